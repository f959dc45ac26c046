# SPDX-License-Identifier: Apache-2.0
"""Last-block reductions: their semantics, the verifier's rules, and the transformations that create them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.tir import te
from aotc.tir.device.horizontal_fusion import fuse_independent_kernels
from aotc.tir.device.lower_to_launches import lower_program_to_gpu_launches
from aotc.tir.gpu_launch import buffers_of_last_block_counters, launch_of
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.micro_kernels import BlockShape
from aotc.tir.plan.memory_plan import check_memory_plan, lifetimes_of_temporaries, plan_memory
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.storage import Storage, View
from aotc.tir.schedule import schedule
from aotc.tir.target import CUDA, Gpu, GpuCosts, Target
from tests.tir.contractions import Case, conv, matmul, with_block_shapes
from tests.tir.programs import run_program

SUMS = """kernel "sums" {
  input x: float32[768] align 4
  output y: float32[192] align 4
  output z: float32[64] align 4
  workspace part: float32[768] align 4
  workspace count: int32[3] align 4
  workspace count_2: int32[1] align 4
  shared turned: float32[64] align 4
  for b in 0..12 block {
    for t in 0..64 thread {
      let g: int64 = b // 4
      turned[t] = x[64 * b + t]
      sync
      part[64 * b + t] = turned[63 - t]
      let last: bool = arrive(count[g], 4:int32)
      if last {
        let sum: float32 = 0.0
        for k in 0..4 {
          sum = sum + part[256 * g + (64 * k + t)]
        }
        turned[t] = sum
        sync
        y[64 * g + t] = turned[63 - t]
        let all: bool = arrive(count_2[0], 3:int32)
        if all {
          z[t] = y[t] + y[64 + t] + y[128 + t]
        }
      }
    }
  }
}
"""
"""Kernel that reverses runs of 64 elements, adds those of four blocks, reverses the sums and adds all sums."""


@pytest.mark.parametrize("backwards", [False, True])
def test_the_last_block_goes_on(backwards: bool) -> None:
    kernel = parse_kernel(SUMS)
    assert to_text(kernel) == SUMS
    verify(kernel)
    assert {buffer.name for buffer in buffers_of_last_block_counters(kernel)} == {"count", "count_2"}
    x = np.random.default_rng(0).standard_normal((3, 4, 64)).astype(np.float32)
    y, z = run_kernel(kernel, [x], backwards=backwards)
    expected = x[:, 0] + x[:, 1] + x[:, 2] + x[:, 3]
    np.testing.assert_array_equal(y.reshape(3, 64), expected)
    np.testing.assert_array_equal(z, expected[0] + expected[1] + expected[2])


FORM, SAME = "last-block counters are used in another form", "iterations may access the same elements of"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("arrive(count_2[0], 3:int32)", "g == 2", f"b is not block: {SAME} [yz]"),
        ("arrive(count_2[0], 3:int32)", "g >= 0", f"b is not block: {SAME} [yz]"),
        ("count[g], 4", "count[g], 3", FORM),
        ("count[g], 4", "count[b], 4", FORM),
        ("count[g], 4", "count[0], 4", FORM),
        (
            "count[g], 4",
            "count_2[g], 4",
            "a last-block counter is not a workspace buffer that one counting instruction alone accesses",
        ),
        (
            "      sync\n      part",
            "      count[g] = int32(t)\n      sync\n      part",
            "a last-block counter is not a workspace buffer",
        ),
        ("count_2[0], 3", "count_2[0], 2", FORM),
        ("g: int64 = b // 4", "g: int64 = b % 3", FORM),
        ("part[256 * g + (", "part[256 * (2 - g) + (", f"{SAME} part"),
        ("y[64 * g + t] = turned", "y[t] = turned", f"{SAME} y"),
        ("z[t] = y[t]", "z[t] = float32(int32(b)) + y[t]", FORM),
        ("sum: float32 = 0.0", "sum: float32 = turned[t]", "turned is read before anything is written to it"),
        ("if last {", "if last & (t < 9) {", FORM),
        ("if all {", "if t < 32 { let q: bool = arrive(count_3[0], 3:int32) } if all {", FORM),
        ("4:int32)\n", "4:int32) | (b < 9)\n", "arrive is a statement, and cannot be part of an expression"),
        ("      sync\n      part", "      part", "t is not thread"),
        ("        sync\n        y", "        y", "t is not thread"),
    ],
)
def test_what_blocks_may_not_do(old: str, new: str, message: str) -> None:
    assert SUMS.count(old) == 1
    text = SUMS.replace(old, new).replace("  shared", "  workspace count_3: int32[1] align 4\n  shared")
    with pytest.raises(AotcError, match=message):
        verify(parse_kernel(text))


PLAIN = (
    SUMS[: SUMS.index("        let all")].replace("      let last", "      sync\n      let last")
    + "      }\n    }\n  }\n}\n"
)
"""Without the sums of all."""


@pytest.mark.parametrize("order", [False, True])
def test_what_lacks_an_arrival(order: bool) -> None:
    """The verifier knows; the interpreter shows it where that block goes on which was not the last."""
    x = np.random.default_rng(0).standard_normal(768).astype(np.float32)
    verify(parse_kernel(PLAIN))
    right = run_kernel(parse_kernel(PLAIN), [x], backwards=order)[0]
    for turn, which in enumerate(("b % 4 == 3", "b % 4 == 0")):
        kernel = parse_kernel(PLAIN.replace("arrive(count[g], 4:int32)", which))
        with pytest.raises(AotcError, match=f"b is not block: {SAME} (part|y)"):
            verify(kernel)
        assert np.array_equal(run_kernel(kernel, [x], backwards=order)[0], right) == (order == turn)


def test_blocks_that_are_not_counted_to_the_last() -> None:
    with pytest.raises(
        AotcError, match="a last-block counter is not 0 at the end: fewer blocks incremented it than its group has"
    ):
        run_kernel(parse_kernel(SUMS.replace("count[g], 4", "count[g], 5")), [np.zeros(768, np.float32)])


def test_blocks_side_by_side_with_others() -> None:
    kernel, x = parse_kernel(SUMS), np.random.default_rng(1).standard_normal((2, 768)).astype(np.float32)
    expected = [one for row in x for one in run_kernel(kernel, [row])]
    joined = fuse_independent_kernels(kernel, kernel, (None,))
    verify(joined)
    for backwards in (False, True):
        for got, wanted in zip(run_kernel(joined, [*x], backwards=backwards), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    wrong = to_text(joined)
    assert wrong.count("max(block_2 - 12, 0)") == wrong.count("if block_2 < 12 {") == 1
    for old, new in (("if block_2 < 12 {", "if block_2 < 11 {"), ("max(block_2 - 12, 0)", "max(block_2 - 11, 0)")):
        with pytest.raises(AotcError, match=FORM):
            verify(parse_kernel(wrong.replace(old, new)))


def test_counts_have_their_memory_for_themselves() -> None:
    kernel = parse_kernel(SUMS)
    names = ["x", "y", "z", "a", "b", "p", "q", "r", "s", "u", "v"]
    sizes = dict(zip(names, (768, 192, 64, 192, 64, 768, 3, 1, 768, 3, 1), strict=True))
    kinds = {"x": "input", "y": "output", "z": "output"}
    found = {
        n: Storage(
            name=n, dtype=DType("int32" if n in "qruv" else "float32"), shape=(sizes[n],), kind=kinds.get(n, "temp")
        )
        for n in names
    }
    steps = tuple(Step(kernel, tuple(View(found[n]) for n in line)) for line in ("xabpqr", "xyzsuv"))
    program = plan_memory(Program(name="net", inputs=(found["x"],), outputs=(found["y"], found["z"]), body=steps))
    check_memory_plan(program)
    lives = lifetimes_of_temporaries(program)
    assert {(lives[found[n]].first_step, lives[found[n]].last_step) for n in "qruv"} == {(0, 1)}
    assert program.plan.offsets[found["p"]] == program.plan.offsets[found["s"]]


#: Without matrix instructions, whose tiles are others.
OLD = replace(CUDA, gpu=Gpu(architectures=(75, 80)))
SPLIT = {
    "conv": (conv(ic=16, oc=17, size=(3, 4), kernel=(3, 1), padding=1, block=16), BlockShape(4, 4, 4, 4, splits=3)),
    "batched": (matmul(m=16, k=64, n=16, batch=2, transposed=True), BlockShape(4, 4, 4, 4, splits=4)),
    "groups of threads": (matmul(m=18, k=128, n=20), BlockShape(2, 2, 4, 4, 4, 32, splits=2)),
    "int8": (matmul(m=17, k=128, n=40, dtype="int8", acc="int32"), BlockShape(4, 4, 4, 4, splits=2)),
}


@pytest.mark.parametrize("name", SPLIT)
def test_reductions_in_parts(name: str) -> None:
    case, tile = SPLIT[name]
    kernel = case.kernel(with_block_shapes(OLD if name == "int8" else CUDA, tile))
    verify(kernel)
    (count,) = buffers_of_last_block_counters(kernel)
    launch = launch_of(kernel)
    assert launch is not None
    assert launch.grid == count.size * tile.splits
    a, b = case.values(seed=1)
    forwards, backwards = (run_kernel(kernel, [a, b], backwards=turned)[0] for turned in (False, True))
    assert forwards.tobytes() == backwards.tobytes()
    expected = case.expected(a, b)
    np.testing.assert_allclose(forwards.reshape(expected.shape), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("case", "splits"),
    [
        (conv(ic=512, oc=512, size=(7, 7), padding=1, block=32), 6),
        (conv(ic=64, oc=64, size=(56, 56), padding=1, block=32), 1),
        (matmul(m=128, k=384, n=384), 1),
        (matmul(m=32, k=4096, n=32), 8),
    ],
)
def test_who_splits_reductions(case: Case, splits: int) -> None:
    """Those whose tiles leave processors idle, where the reduction is long."""
    kernel, gpu = case.kernel(CUDA), CUDA.gpu
    found, launch = buffers_of_last_block_counters(kernel), launch_of(kernel)
    assert gpu is not None
    assert launch is not None
    assert [launch.grid // count.size for count in found] == [splits] * (splits > 1)
    assert splits == 1 or launch.grid <= gpu.processors
    verify(kernel)


def means(case: Case, columns: int, target: Target = CUDA) -> Program:
    """A product, then each run of so many elements without its mean."""
    product = replace(case.kernel(target), macs=1)
    (y,) = product.outputs
    whole = te.placeholder((y.size // columns, columns), "float32", "y")
    sums = te.reduce("sum", (whole.shape[0],), (columns,), lambda i, k: whole[i, k], name="sums")
    less = te.compute(whole.shape, lambda i, j: whole[i, j] - sums[i] * (1.0 / columns), name="centered")
    parts = [*product.inputs, y]
    found = [Storage(name=b.name, dtype=b.dtype, shape=(b.size,)) for b in parts]
    a, b = (replace(storage, kind="input") for storage in found[:2])
    out = Storage(name="out", dtype=y.dtype, shape=(y.size,), kind="output")
    scratch = [View(Storage(name=b.name, dtype=b.dtype, shape=(b.size,))) for b in product.workspace]
    steps = (
        Step(product, (View(a), View(b), View(found[2]), *scratch)),
        Step(schedule("center", [whole], [less], CUDA), (View(found[2]), View(out))),
    )
    return Program(name="net", inputs=(a, b), outputs=(out,), body=steps)


def with_launch_cost(statements: int) -> Target:
    """The GPU with launches that take as long as so many statements, after another launch."""
    assert CUDA.gpu is not None
    return replace(CUDA, gpu=replace(CUDA.gpu, costs=GpuCosts(dependent_launch_statements=statements)))


FUSED = {
    "rows": (matmul(m=32, k=16, n=64), 64, BlockShape(4, 8, 4, 4), [4, 2]),
    "channels": (conv(ic=16, oc=64, size=(5, 5), block=16, kernel=(1, 1)), 25, BlockShape(4, 8, 4, 4), [4, 2]),
    "one block": (conv(ic=16, oc=64, size=(4, 4), block=16, kernel=(1, 1)), 16, BlockShape(4, 8, 4, 4), [2]),
    "parts": (matmul(m=32, k=32, n=64), 64, BlockShape(4, 8, 4, 4, splits=2), [8, 4, 2]),
}


@pytest.mark.parametrize("name", FUSED)
def test_small_launches_behind_products(name: str) -> None:
    """They are done by the blocks of these; `levels` are the numbers of blocks, and of groups of them."""
    case, columns, tile, levels = FUSED[name]
    # the interpreter runs blocks of few threads in reasonable time
    slow_launches = with_launch_cost(1024)
    program = means(case, columns, with_block_shapes(CUDA, tile))
    made = lower_program_to_gpu_launches(program, slow_launches)
    (step,) = made.steps
    verify(step.kernel)
    launch = launch_of(step.kernel)
    assert launch is not None
    counts = sorted((b.size for b in buffers_of_last_block_counters(step.kernel)), reverse=True)
    assert [launch.grid, *counts] == levels
    inputs = [value.reshape(-1) for value in case.values(seed=3)]
    expected = run_program(plan_memory(program), inputs)
    for backwards in (False, True):
        (got,) = run_program(plan_memory(made), inputs, backwards)
        np.testing.assert_array_equal(got, expected[0])


def test_launches_that_stay_apart() -> None:
    """What has much to do is left to all processors; what others write over what the product reads, behind it."""
    program = means(matmul(m=64, k=16, n=64), 64, with_block_shapes(CUDA, BlockShape(8, 8, 4, 4)))
    assert len(lower_program_to_gpu_launches(program, with_launch_cost(20)).steps) == 2
    program = means(matmul(m=64, k=64, n=64), 64)
    product, center = program.steps
    over = replace(center, args=(center.args[0], product.args[0]))
    assert len(lower_program_to_gpu_launches(replace(program, body=(product, over)), CUDA).steps) == 2
