# SPDX-License-Identifier: Apache-2.0
"""Kernels lowered to blocks and threads have the results of the original kernels, for every order of threads."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.ir.transform import PassContext
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.tir.device.lower_to_launches import lower_kernel_to_gpu_kernels
from aotc.tir.gpu_launch import Launch, launch_of
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.passes import ProgramVerifier, run_tensor_passes
from aotc.tir.stmt import For, Kernel, walk_stmts
from aotc.tir.target import CUDA, Budget, Gpu, Target
from tests.codegen.batch import finished
from tests.ops.harness import kernel_job
from tests.share import share
from tests.tir.programs import program_of, run_program

OPERATORS = sorted(n for n, op in OPERATORS_BY_NAME.items() if op.expand is None and op.static is None)
GROUPS = 80


def check(kernel: Kernel, inputs: list[np.ndarray], target: Target = CUDA) -> list[Kernel]:
    """The launches of a kernel; each is verified, and their results are those of the kernel, bit for bit."""
    with PassContext(instruments=[ProgramVerifier()]):
        program = run_tensor_passes(program_of(kernel), target)
    expected = run_kernel(finished(kernel, target), inputs)
    for backwards in (False, True):
        for result, wanted in zip(run_program(program, inputs, backwards), expected, strict=True):
            wide = np.float64 if DType.from_numpy(wanted).is_float else wanted.dtype
            np.testing.assert_array_equal(result.astype(wide), wanted.astype(wide))
    assert all(launch_of(k) is not None for k in program.distinct_kernels)
    return list(program.distinct_kernels)


def values(kernel: Kernel) -> list[np.ndarray]:
    """Small whole numbers for the inputs."""
    rng = np.random.default_rng(7)
    return [rng.integers(-9, 9, b.size).astype(b.dtype.numpy) for b in kernel.inputs]


def launches(text: str, target: Target = CUDA) -> list[Launch | None]:
    """The sizes of the launches of a kernel."""
    kernel = parse_kernel(text)
    verify(kernel)
    return [launch_of(k) for k in check(kernel, values(kernel), target)]


@pytest.mark.parametrize("group", share(range(GROUPS), 1))
def test_samples_of_operators(group: int) -> None:
    for name in OPERATORS[group::GROUPS]:
        for sample in OPERATORS_BY_NAME[name].samples():
            job = kernel_job(OPERATORS_BY_NAME[name], sample, CUDA, printed=False)
            check(job.kernel, job.inputs)


TURNED = """kernel "turned" {
  input x: float32[600]
  output y: float32[600]
  for i in 0..6 independent { for j in 0..100 independent { y[j * 6 + i] = x[i * 100 + j] } }
}
"""


def test_neighbors_write_next_to_each_other() -> None:
    """The loop along which results lie next to each other counts fastest, whichever stands inside."""
    (kernel,) = lower_kernel_to_gpu_kernels(parse_kernel(TURNED), CUDA)
    assert "let j: int64 = n // 6\n" in to_text(kernel)
    assert "let i: int64 = n % 6\n" in to_text(kernel)
    assert launches(TURNED) == [Launch(grid=19, block=32, shared_bytes=0)]


def test_threads_take_several_iterations_of_long_loops() -> None:
    small = replace(CUDA, gpu=Gpu(threads=64, processors=1, resident=64))
    assert launches(TURNED.replace("100", "1000").replace("600", "6000"), small) == [Launch(8, 64, 0)]


HANDED_ON = """kernel "handed_on" {
  input x: float32[300]
  output y: float32[300]
  workspace row: float32[300] align 64 private
  let scale: float32 = exp(x[0])
  for i in 0..300 independent { row[i] = x[i] * scale }
  let sum: float32 = 0.0
  for k in 0..300 reduction { sum = sum + row[k] }
  for j in 0..300 independent { y[j] = row[j] * scale / sum }
}
"""


def test_what_passes_between_parts_is_memory_of_the_program() -> None:
    """A loop, a sum by one thread, a loop; `scale` is computed by whoever needs it, `sum` and `row` are passed on."""
    assert launches(HANDED_ON) == [Launch(10, 32, 0), Launch(1, 1, 0), Launch(10, 32, 0)]
    first, second, third = lower_kernel_to_gpu_kernels(parse_kernel(HANDED_ON), CUDA)
    names = [[b.name for b in (*k.inputs, *k.outputs)] for k in (first, second, third)]
    assert names == [["x", "row"], ["row", "sum"], ["x", "sum", "row", "y"]]
    assert first.outputs[0] is second.inputs[0] is third.inputs[2]
    assert launches(HANDED_ON.replace("300", "30")) == [Launch(1, 32, 128)]  # sooner done than launched


OWN = """kernel "own" {
  input x: float32[4000]
  output y: float32[4000]
  workspace row: float32[40] align 64 private
  for i in 0..100 independent {
    for j in 0..40 { row[j] = x[i * 40 + j] }
    for k in 0..40 { y[i * 40 + k] = row[39 - k] * 2.0 }
  }
}
"""


def test_threads_have_scratch_of_their_own() -> None:
    """On the stack where it fits there, else a copy in memory for each thread, and no more threads than copies."""
    (kernel,) = lower_kernel_to_gpu_kernels(parse_kernel(OWN), CUDA)
    assert [b.size for b in kernel.stack] == [40] and not kernel.workspace
    assert launches(OWN) == [Launch(4, 32, 0)]
    none = replace(CUDA, budget=Budget(stack_bytes=100))
    (kernel,) = lower_kernel_to_gpu_kernels(parse_kernel(OWN), none)
    assert [b.size for b in kernel.workspace] == [40 * 4 * 32] and not kernel.stack
    assert launches(OWN, none) == [Launch(4, 32, 0)]
    assert launches(OWN, replace(none, gpu=Gpu(scratch_bytes=11_000))) == [Launch(2, 32, 0)]


INNER = """kernel "inner" {
  input x: float32[4000]
  output y: float32[4000]
  output z: float32[100]
  workspace row: float32[20] align 64 private
  for i in 0..100 independent {
    z[i] = x[i]
    for half in 0..2 independent {
      for j in 0..20 { row[j] = x[i * 40 + half * 20 + j] }
      for k in 0..20 { y[i * 40 + half * 20 + k] = row[19 - k] }
    }
  }
}
"""


def test_scratch_of_inner_iterations_has_a_copy_for_each_thread() -> None:
    """It stays private to them: each fills it anew."""
    few = replace(CUDA, budget=Budget(stack_bytes=40), gpu=Gpu(scratch_bytes=100_000))
    assert launches(INNER, few) == [Launch(4, 32, 0)]


CLEARED = """kernel "cleared" {
  input x: float32[800]
  output y: float32[1000]
  stack row: float32[10] private
  for l in 0..10 independent { row[l] = 0.0 }
  for i in 0..100 independent {
    for j in 0..8 { row[j] = x[i * 8 + j] }
    for k in 0..10 { y[i * 10 + k] = row[9 - k] }
  }
}
"""


def test_what_is_cleared_once_is_not_taken_for_scratch_of_a_thread() -> None:
    """The end of a row is cleared before the loop that fills the beginning: a row of each thread would lack it."""
    assert launches(CLEARED) == [Launch(1, 1, 0)]
    assert launches(CLEARED.replace("0..8", "0..10").replace("i * 8 + j", "i * 7 + j")) == [Launch(4, 32, 0)]


def test_scratch_that_nobody_reads_is_left_out() -> None:
    (kernel,) = lower_kernel_to_gpu_kernels(parse_kernel(OWN.replace("row[39 - k]", "x[k]")), CUDA)
    assert not kernel.stack and "row" not in to_text(kernel)


TWO = """kernel "two" {
  input x: float32[300]
  output y: float32[300]
  output z: float32[500]
  for i in 0..300 independent { y[i] = x[i] + 1.0 }
  for j in 0..500 independent { z[j] = x[j // 2] }
}
"""


def test_parts_that_do_not_depend_on_each_other_are_one_launch() -> None:
    assert launches(TWO) == [Launch(10 + 16, 32, 0)]
    assert launches(TWO.replace("x[j // 2]", "y[j // 2]")) == [Launch(1, 128, 0)]  # a barrier instead of a launch
    long = TWO.replace("300", "300000").replace("500", "500000")
    assert len(lower_kernel_to_gpu_kernels(parse_kernel(long.replace("x[j // 2]", "y[j // 2]")), CUDA)) == 2
    joined = TWO.replace("  output z: float32[500]\n", "").replace("y: float32[300]", "y: float32[800]")
    assert launches(joined.replace("z[j]", "y[300 + j]")) == [Launch(10 + 16, 32, 0)]
    running = TWO.replace("for j in 0..500 independent { z[j] =", "for j in 0..500 { z[j // 2] =")
    assert launches(running.replace("z: float32[500]", "z: float32[250]")) == [Launch(10 + 1, 32, 0)]
    few = replace(CUDA, gpu=Gpu(argument_bytes=16))
    assert launches(TWO, few) == [Launch(10, 32, 0), Launch(16, 32, 0)]


@pytest.mark.parametrize(("read", "kept"), [("i", True), ("299 - i", False), ("min(i + 1, 299)", False)])
def test_results_lie_over_inputs_that_no_other_thread_reads(read: str, kept: bool) -> None:
    text = f"""kernel "over" {{
      input x: float32[300]
      output y: float32[300]
      inplace y = x
      for i in 0..300 independent {{ y[i] = x[{read}] }}
    }}"""
    (kernel,) = lower_kernel_to_gpu_kernels(parse_kernel(text), CUDA)
    assert kernel.inplace == (((0, 0),) if kept else ())


def test_what_is_not_independent_is_left_to_one_thread() -> None:
    text = """kernel "running" {
      input x: float32[300]
      output y: float32[300]
      let sum: float32 = 0.0
      for i in 0..300 { sum = sum + x[i]; y[i] = sum }
    }"""
    assert launches(text.replace("; ", "\n")) == [Launch(1, 1, 0)]


@pytest.mark.parametrize(("at", "size", "launch"), [("i", 300, Launch(10, 32, 0)), ("i + k", 308, Launch(1, 128, 0))])
def test_loops_change_places_where_independent_iterations_never_meet(at: str, size: int, launch: Launch) -> None:
    """A thread writes over what it wrote before, but over what others wrote only after a barrier."""
    text = f"""kernel "running" {{
      input x: float32[2700]
      output y: float32[{size}]
      for k in 0..9 {{ for i in 0..300 independent {{ y[{at}] = x[k * 300 + i] }} }}
    }}"""
    assert launches(text) == [launch]


def test_one_thread_may_write_where_data_say() -> None:
    text = """kernel "scattered" {
      input at: int64[300]
      output y: float32[300]
      for i in 0..300 independent { y[i] = 0.0 }
      for i in 0..300 { if at[i] >= 0 & at[i] < 300 { y[at[i]] = 1.0 } }
    }"""
    assert launches(text) == [Launch(10, 32, 0), Launch(1, 1, 0)]


def test_every_kernel_of_a_kind_is_for_all_threads() -> None:
    """Products, windows and elementwise operators have a thread for each result."""
    for name in ("nn.conv2d", "nn.dense", "nn.max_pool2d", "add", "transpose"):
        for sample in islice(OPERATORS_BY_NAME[name].samples(), 3):
            kernel = kernel_job(OPERATORS_BY_NAME[name], sample, CUDA, printed=False).kernel
            (made,) = lower_kernel_to_gpu_kernels(kernel, CUDA)
            launch = launch_of(made)
            assert launch is not None
            assert launch.grid * launch.block >= made.outputs[0].size
            assert not any(isinstance(s, For) and s.kind == "independent" for s in walk_stmts(made.body))
