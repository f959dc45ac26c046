# SPDX-License-Identifier: Apache-2.0
"""Rows mapped to GPU blocks: right, proven, for all numbers of threads; every barrier is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Sample
from aotc.tir.bare_metal_portable_and_small_targets import target_with_fixed_summation_order
from aotc.tir.device.lower_to_launches import lower_kernel_to_gpu_kernels
from aotc.tir.gpu_launch import Launch, launch_of
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.stmt import Kernel
from aotc.tir.target import CUDA, C, Target
from tests.ops.harness import Job, assert_agrees, kernel_job
from tests.share import share
from tests.tir.test_lower_to_launches import check
from tests.tir.test_lower_to_launches import launches as launches_of

Array = np.ndarray[Any, Any]
SIZES = (1, 31, 32, 33, 100, 1000, 4097)
NAMES = ("sum", "mean", "prod", "max", "min", "argmax", "argmin", "nn.softmax", "nn.log_softmax", "nn.l2_normalize")
#: Operators, the shape of their data, the axis.
CASES = [
    *((name, (rows, size), 1) for name in NAMES for size in SIZES for rows in (1, 3)),
    *((name, (size, columns), 0) for name in NAMES for size in SIZES for columns in (1, 33)),
    *((name, (2, 37, 9, 5), axis) for name in NAMES for axis in (0, 1, 2, 3)),
]
RNG = np.random.default_rng(5)


def job(name: str, data: Array, axis: int, target: Target = CUDA) -> tuple[Job, Sample]:
    """A reduction or softmax of data along an axis."""
    op = OPERATORS_BY_NAME[name]
    given: dict[str, Any] = {"axis": axis} if "softmax" in name else {"axis": (axis,)}
    given |= {"eps": 1e-6} if "l2" in name else {}
    sample = Sample(args=(data,), attrs=op.attrs(**given))
    return kernel_job(op, sample, target, printed=False), sample


def launches(name: str, shape: Sequence[int], axis: int) -> list[Launch | None]:
    """The launches of a reduction; nothing runs."""
    kernels = lower_kernel_to_gpu_kernels(job(name, np.zeros(shape, np.float32), axis)[0].kernel, CUDA)
    for kernel in kernels:
        verify(kernel)
    return [launch_of(kernel) for kernel in kernels]


@pytest.mark.parametrize(("name", "shape", "axis"), share(CASES, 12))
def test_reductions(name: str, shape: tuple[int, ...], axis: int) -> None:
    """Whatever the sizes, with NaN and infinities in some rows."""
    data = RNG.standard_normal(shape).astype(np.float32)
    for special in (np.nan, np.inf, -np.inf):
        if RNG.random() < 0.5:
            data.reshape(-1)[RNG.integers(data.size)] = special
    made, sample = job(name, data, axis)
    check(made.kernel, made.inputs)
    (found,) = run_kernel(made.kernel, made.inputs)
    expected = OPERATORS_BY_NAME[name].reference(sample.attrs, data)
    assert_agrees(found.reshape(expected.shape), expected, sample.accuracy)


@pytest.mark.parametrize("dtype", ["int8", "int32", "float16", "float64"])
@pytest.mark.parametrize("name", ["sum", "max", "argmin"])
def test_types(name: str, dtype: str) -> None:
    made, sample = job(name, RNG.integers(-9, 9, (3, 70)).astype(dtype), 1)
    check(made.kernel, made.inputs)
    (found,) = run_kernel(made.kernel, made.inputs)
    expected = OPERATORS_BY_NAME[name].reference(sample.attrs, sample.args[0])
    assert_agrees(found.reshape(expected.shape), expected, sample.accuracy)


def test_sums_of_negative_zeros() -> None:
    made, _ = job("sum", np.full((2, 100), -0.0, np.float32), 1)
    (found,) = run_kernel(lower_kernel_to_gpu_kernels(made.kernel, CUDA)[0], made.inputs)
    assert not np.signbit(found).any()  # a sum begins with zero


@pytest.mark.parametrize(
    ("name", "shape", "axis", "expected"),
    [
        ("nn.softmax", (128, 384), 1, [(128, 128)]),
        ("nn.softmax", (1, 1000), 1, [(1, 256)]),
        ("nn.softmax", (100_000, 64), 1, [(12_500, 256)]),
        ("sum", (300_000,), 0, [(69, 256), (1, 32)]),
        ("sum", (1000, 64), 0, [(14, 256), (2, 32)]),
        ("mean", (512, 49), 1, [(128, 128)]),
        ("sum", (7, 100_000), 0, [(391, 256)]),
    ],
)
def test_launches(name: str, shape: tuple[int, ...], axis: int, expected: list[tuple[int, int]]) -> None:
    """A block or a part of one for each row, several rows of threads for columns, parts where results are few."""
    assert [(one.grid, one.block) for one in launches(name, shape, axis) if one] == expected


@pytest.mark.parametrize("axis", [0, 1])
def test_sums_in_one_order(axis: int) -> None:
    """What is reproducible has the order of other targets."""
    data = RNG.standard_normal((3, 500)).astype(np.float32)
    made = [job("nn.softmax", data, axis, target_with_fixed_summation_order(target))[0] for target in (CUDA, C)]
    one, other = (run_kernel(each.kernel, each.inputs)[0] for each in made)
    assert one.tobytes() == other.tobytes()
    check(made[0].kernel, made[0].inputs, target_with_fixed_summation_order(CUDA))


def softmax() -> Kernel:
    """Rows of two blocks that share memory."""
    (kernel,) = lower_kernel_to_gpu_kernels(job("nn.softmax", np.zeros((5, 70), np.float32), 1)[0].kernel, CUDA)
    return kernel


@pytest.mark.parametrize("number", [0, 1, 3, 4])
def test_barriers_are_needed(number: int) -> None:
    """All but the one after the exponentials: each thread sums its own, if there are as many threads as pieces."""
    parts = to_text(softmax()).split("sync\n")
    assert len(parts) == 6
    text = "sync\n".join(parts[: number + 1]) + "sync\n".join(parts[number + 1 :])
    with pytest.raises(AotcError, match="iterations may access the same elements"):
        verify(parse_kernel(text))


def test_rows_that_do_not_fit_are_in_memory() -> None:
    (kernel,) = lower_kernel_to_gpu_kernels(job("nn.softmax", np.zeros((3, 20_000), np.float32), 1)[0].kernel, CUDA)
    assert [b.size for b in kernel.workspace if b.size > 20_000] == [60_000]
    verify(kernel)


ROWS = """kernel "rows" {
  input x: float32[4000]
  output y: float32[4000]
  output z: float32[100]
  workspace row: float32[40] align 64 private
  for i in 0..100 independent {
    let scale: float32 = x[i * 40] + 1.0
    for j in 0..40 independent { row[j] = x[i * 40 + j] * scale }
    for step in 0..3 { for j in 0..20 independent { row[j] = row[j] + row[39 - j] } }
    z[i] = row[3]
    for k in 0..40 independent { y[i * 40 + k] = row[39 - k] }
  }
}
"""


def test_what_is_between_loops() -> None:
    """Loops around others are followed together; one thread stores what is no loop."""
    kernel = parse_kernel(ROWS)
    (made,) = check(kernel, [RNG.integers(-9, 9, 4000).astype(np.float32)])
    assert launch_of(made) == Launch(100, 32, 160)
    assert "if thread_2 < 1 {\n        z[i]" in to_text(made)
    assert to_text(made).count("sync\n") == 2


STRIPS = """kernel "strips" {
  input x: float32[8192]
  output y: float32[8192]
  workspace keys: float32[256] align 64 private
  workspace strip: float32[1024] align 64 private
  workspace own: float32[128] align 64 private
  for head in 0..2 independent {
    for k in 0..256 independent { keys[k] = x[head * 4096 + k] * 0.5 }
    for part in 0..4 independent {
      for i in 0..1024 independent { strip[i] = x[head * 4096 + part * 1024 + i] + keys[i % 256] }
      for row in 0..8 independent {
        for j in 0..128 { own[j] = strip[row * 128 + j] * 2.0 }
        for l in 0..128 { strip[row * 128 + l] = own[127 - l] }
      }
      for o in 0..1024 independent { y[head * 4096 + part * 1024 + o] = strip[o] + keys[o % 256] }
    }
  }
}
"""


def test_what_little_comes_before_a_loop_is_done_for_each_of_its_iterations() -> None:
    """Eight strips are blocks; `keys` are filled in each.  What is a thread's own is in memory if it is large."""
    (launch,) = launches_of(STRIPS)
    assert launch is not None
    assert (launch.grid, launch.shared_bytes) == (8, 4 * (1024 + 256))
    (kernel,) = lower_kernel_to_gpu_kernels(parse_kernel(STRIPS), CUDA)
    assert [b.size for b in kernel.stack] == [128] and not kernel.workspace
    small = replace(CUDA, budget=replace(CUDA.budget, stack_bytes=64))
    (launch,) = launches_of(STRIPS, small)
    (kernel,) = lower_kernel_to_gpu_kernels(parse_kernel(STRIPS), small)
    assert launch is not None
    assert [b.size for b in kernel.workspace] == [128 * launch.grid * launch.block] and not kernel.stack


NESTED = """kernel "nested" {
  input x: float32[768]
  output y: float32[768]
  workspace tile: float32[256] align 64 private
  workspace part: float32[40] align 64 private
  for i in 0..3 independent {
    for j in 0..256 independent { tile[j] = x[i * 256 + j] }
    for r in 0..6 independent {
      for l in 0..40 independent { part[l] = tile[r * 40 + l] * 2.0 }
      let s: float32 = part[0]
      for k in 1..40 reduction { s = s + part[k] }
      for l in 0..40 independent { tile[r * 40 + l] = part[39 - l] + s }
    }
    for j in 0..256 independent { y[i * 256 + j] = tile[255 - j] }
  }
}
"""


def test_rows_inside_of_rows() -> None:
    """Few iterations around loops are for some threads each; these share scratch of their own."""
    (made,) = check(parse_kernel(NESTED), [RNG.integers(-9, 9, 768).astype(np.float32)])
    launch = launch_of(made)
    assert launch is not None and launch.grid == 3 and launch.block >= 128
    groups = launch.block // 32
    assert [b.size for b in made.shared] == [256, 40 * groups] and not made.workspace
    assert "= thread_2 // 32\n" in to_text(made)
