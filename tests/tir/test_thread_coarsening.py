# SPDX-License-Identifier: Apache-2.0
"""Threads that execute several adjacent iterations: results of single iterations, and vector copies."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.tir.gpu_launch import launch_of
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.passes import run_tensor_passes
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import Kernel
from aotc.tir.target import CUDA, Gpu
from tests.ops.harness import kernel_job
from tests.share import share
from tests.tir.programs import program_of
from tests.tir.test_lower_to_launches import GROUPS, OPERATORS, check, values

#: One processor is kept busy by few threads: all kernels are made for several elements a thread.
SMALL = replace(CUDA, gpu=Gpu(processors=1, warp=1))


@pytest.mark.parametrize("group", share(range(GROUPS), 1))
def test_samples_of_operators(group: int) -> None:
    for name in OPERATORS[group::GROUPS]:
        for sample in OPERATORS_BY_NAME[name].samples():
            job = kernel_job(OPERATORS_BY_NAME[name], sample, CUDA, printed=False)
            check(job.kernel, job.inputs, SMALL)


def nest(value: str, types: str = "float32", rows: int = 6, columns: int = 96) -> str:
    """A kernel that gives y its value in two loops; `types` are those of x and y."""
    source, made = (types.split() * 2)[:2]
    return f"""kernel "nest" {{
  input x: {source}[{2 * rows * columns}]
  input b: float32[{rows}]
  output y: {made}[{rows * columns}]
  for i in 0..{rows} independent {{ for j in 0..{columns} independent {{ y[i * {columns} + j] = {value} }} }}
}}
"""


def moved(text: str) -> list[str]:
    """What the launch of a kernel loads and stores in pieces."""
    kernel = parse_kernel(text)
    (made,) = check(kernel, values(kernel), SMALL)
    lines = (line.strip() for line in to_text(made).splitlines())
    return [line for line in lines if re.fullmatch(r"\w+\[.*\] = \w+\[.*:\d+\]", line)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (nest("x[i * 96 + j]"), ["y[i * 96 + j * 4] = x[i * 96 + j * 4:4]"]),
        (nest("x[i * 96 + j]", "int8"), ["y[i * 96 + j * 16] = x[i * 96 + j * 16:16]"]),
        (nest("x[i * 96 + j] * b[i]"), ["piece[0] = x[i * 96 + j * 4:4]", "y[i * 96 + j * 4] = made[0:4]"]),
        (  # a piece of each is 16 bytes at most
            nest("float16(x[i * 96 + j] + 1.0)", "float32 float16"),
            ["piece[0] = x[i * 96 + j * 8:4]", "piece[4] = x[i * 96 + j * 8 + 4:4]", "y[i * 96 + j * 8] = made[0:8]"],
        ),
        (  # neighbors have one of the others in common
            nest("x[i * 96 + j // 2] + x[j // 4]"),
            ["y[i * 96 + j * 4] = made[0:4]"],
        ),
        (  # a row at a time may be left out
            nest("i < 3 ? x[i * 96 + j] : 0.0"),
            ["piece[0] = x[i * 96 + j * 4:4]", "y[i * 96 + j * 4] = made[0:4]"],
        ),
        (nest("j < 5 ? x[i * 96 + j] : 0.0"), ["y[i * 96 + j * 4] = made[0:4]"]),
        (nest("x[i * 96 + j + 2]"), []),
        (nest("x[i * 97 + j]"), []),
        (nest("x[i * 192 + j * 2]"), []),  # neighbors are fetched together
        (nest("x[i * 12 + j * 8]", rows=24), ["y[i * 96 + j * 4] = made[0:4]"]),
        (nest("x[i * 97 + j]", rows=1), ["y[j * 4] = x[j * 4:4]"]),
        (nest("x[j]", columns=98), ["y[i * 98 + j * 2] = x[j * 2:2]"]),
        # rows of odd lengths lie behind each other: pieces go from one to the next, elements behind the last are single
        (nest("x[i * 98 + j]", columns=98), ["y[n_2 * 4] = x[n_2 * 4:4]"]),
        (nest("x[i * 97 + j]", columns=97), ["y[n_2 * 4] = x[n_2 * 4:4]"]),
        (nest("max(x[i * 97 + j], 0:int8)", "int8", 6, 97), ["piece[0] = x[n_2 * 16:16]", "y[n_2 * 16] = made[0:16]"]),
        (nest("x[i * 97 + j] * b[i]", columns=97), ["piece[0] = x[n_2 * 4:4]", "y[n_2 * 4] = made[0:4]"]),
        (nest("x[i * 97 + j] + x[j]", "float16", columns=97), ["piece[0] = x[n_2 * 8:8]", "y[n_2 * 8] = made[0:8]"]),
        (nest("x[i * 98 + j] + x[j * 2]", columns=98), []),
        (nest("x[i * 194 + j * 2]", columns=97), []),
        (nest("x[j]", rows=1, columns=103), ["y[n_2 * 4] = x[n_2 * 4:4]"]),
        (nest("x[j + 1]", rows=1, columns=103), []),
    ],
)
def test_what_is_moved_in_pieces(text: str, wanted: list[str]) -> None:
    assert moved(text) == wanted


SUMS = """kernel "sums" {
  input x: float32[4000]
  input at: int64[40]
  output y: float32[400]
  for i in 0..10 independent {
    for j in 0..40 independent {
      let sum: float32 = 0.0
      let place: int64 = at[j]
      for k in 0..10 { sum = sum + x[i * 400 + k * 40 + j] * x[max(min(place, 39), 0)] }
      let same: int64 = i * 40
      if i > 2 { sum = sum * 2.0 }
      if j > 2 { sum = sum + 1.0 }
      y[same + j] = sum
    }
  }
}
"""


def test_registers_become_arrays() -> None:
    """What is carried through loops and under conditions, too."""
    assert moved(SUMS) == [
        "piece[0] = at[j * 4:2]",
        "piece[2] = at[j * 4 + 2:2]",
        "piece_2[0] = x[i * 400 + k * 40 + j * 4:4]",
        "y[i * 40 + j * 4] = made[0:4]",
    ]


def slid(value: str, step: int = 1, columns: int = 16, taps: str = "max(1 - j, 0)..min(17 - j, 3)") -> str:
    """A kernel whose every element is made of neighbors of the element at its place, as far as there are any."""
    return f"""kernel "slid" {{
  input x: float32[{6 * columns * step + 8}]
  input w: float32[9]
  output y: float32[{6 * columns}]
  for i in 0..6 independent {{
    for j in 0..{columns} independent {{
      let acc: float32 = 1.0
      for r in max(1 - i, 0)..min(7 - i, 3) {{ for k in {taps} {{ acc = {value} }} }}
      y[i * {columns} + j] = acc
    }}
  }}
}}
"""


ROW = "i * 16 + r * 16 + j + k - 17"


@pytest.mark.parametrize(
    ("text", "loaded", "single"),
    [
        (slid(f"acc + x[{ROW}] * w[r * 3 + k]"), ["piece[0] = x[i * 16 + r * 16 + j * 4 - 16:4]"], 2),
        (slid(f"max(acc, x[{ROW}])"), ["piece[0] = x[i * 16 + r * 16 + j * 4 - 16:4]"], 2),
        (
            slid("acc + x[i * 32 + j * 2 + k] * w[r]", 2, taps="0..3"),
            ["piece[0] = x[i * 32 + j * 8:4]", "piece_2[0] = x[i * 32 + j * 8 + 4:4]"],
            1,
        ),
    ],
)
def test_neighbors_share_what_they_read(text: str, loaded: list[str], single: int) -> None:
    """Each element of a row is read once by a thread, whether it is there for all of its results or for some."""
    assert moved(text) == [*loaded, "y[i * 16 + j * 4] = made[0:4]"]
    (made,) = check(parse_kernel(text), values(parse_kernel(text)), SMALL)
    assert len(re.findall(r"window\[\d+\] = x\[", to_text(made))) == single


@pytest.mark.parametrize(
    "text",
    [
        slid("acc + x[i * 16 + j + k] * x[j * 2]", taps="0..9"),  # long
        slid("acc * 2.0 + x[i * 16 + j + k] + x[i * 16 + j * 2 + k]", 3, taps="0..2"),  # two ways to go on
        slid("acc + x[i * 16 + j + k]", taps="0..min(2 * j, 3)"),  # ends that do not go with places
    ],
)
def test_neighbors_that_share_nothing(text: str) -> None:
    assert moved(text) == []


def test_few_iterations_stay_single() -> None:
    """Where threads would be too few for all processors."""
    (kernel,) = check(parse_kernel(nest("x[j]")), [np.ones(1152, np.float32), np.ones(6, np.float32)])
    assert launch_of(kernel) is not None and "[0:4]" not in to_text(kernel)


def calls(*offsets: int) -> Program:
    """Calls of one kernel, whose inputs begin inside of a tensor."""
    kernel = parse_kernel(nest("x[i * 96 + j]"))
    x, b = (Storage(name=n, dtype=CUDA_FLOAT, shape=(s,), kind="input") for n, s in (("x", 2000), ("b", 6)))
    ys = [Storage(name=f"y{k}", dtype=CUDA_FLOAT, shape=(576,), kind="output") for k in range(len(offsets))]
    steps = tuple(Step(kernel, (View(x, at), View(b), View(y))) for at, y in zip(offsets, ys, strict=True))
    return Program(name="net", inputs=(x, b), outputs=(*ys,), body=steps)


CUDA_FLOAT = parse_kernel(nest("b[i]")).inputs[0].dtype


@pytest.mark.parametrize(("offsets", "aligned"), [((0, 4), True), ((0, 2), False), ((3,), False)])
def test_parts_of_tensors(offsets: tuple[int, ...], aligned: bool) -> None:
    """A kernel relies on what all of its calls give it."""
    program = run_tensor_passes(calls(*offsets), SMALL)
    assert ("x[i * 96 + j * 4:4]" in to_text(program.distinct_kernels[0])) == aligned


@pytest.mark.parametrize("change", [("align 16", "align 8"), ("n * 4:4", "n * 4 + 2:4"), (":4]", ":3]")])
def test_what_is_not_whole_is_refused(change: tuple[str, str]) -> None:
    text = """kernel "moves" {
  input x: float32[160] align 16
  output y: float32[128] align 64
  for b in 0..1 block { for t in 0..32 thread { let n: int64 = b * 32 + t y[n * 4] = x[n * 4:4] } }
}
"""
    verify(parse_kernel(text))
    with pytest.raises(AotcError, match="x is not accessed at multiples of"):
        verify(parse_kernel(text.replace(*change)))


def test_programs_of_kernels_keep_their_parameters() -> None:
    kernel: Kernel = parse_kernel(nest("x[j]"))
    (made,) = run_tensor_passes(program_of(kernel), SMALL).distinct_kernels
    assert [b.align for b in (*made.inputs, *made.outputs)] == [16, 16]
