# SPDX-License-Identifier: Apache-2.0
"""Outputs that overlap dead inputs: proven distances, checked by runs of kernels and programs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from aotc.driver.compile import CompileOptions
from aotc.ir import AotcError, DType, PassContext
from aotc.tir import C
from aotc.tir.expr import INDEX, Buffer, Expr, Load, Var, as_expr
from aotc.tir.interpreter import compile_kernel, run_kernel
from aotc.tir.passes import ProgramVerifier, program_passes
from aotc.tir.plan.inplace_overlap import make_loops_serial_for_overlap, min_overlap_distance_bytes
from aotc.tir.plan.memory_plan import check_memory_plan, intersecting_output_input_pairs, plan_memory
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import Assign, Block, Declare, For, Kernel, Stmt, Store, loop_nest
from tests.codegen.bit_comparison import same
from tests.fuzz.differential import load_case
from tests.fuzz.execute import MOST_WORK, run_program
from tests.fuzz.graphs import make
from tests.share import share

I8 = DType("int8")
ON = {"compile.overlap": True, "compile.reorder": True}


def kernel(make_body: Any, size: int, read: int) -> Kernel:
    x, y = Buffer("x", I8, read), Buffer("y", I8, size)
    return Kernel(name="k", inputs=(x,), outputs=(y,), body=make_body(x, y))


def distance(k: Kernel) -> int | None:
    return min_overlap_distance_bytes(k, k.outputs[0], k.inputs[0])


def rows(x: Buffer, y: Buffer, *offsets: int) -> Stmt:
    """y[16 r + c] = sum of x[16 r + c + 32 + offset]."""
    r, c = Var("r"), Var("c")
    at = r * 16 + c
    total: Expr = Load(x, at + 32 + offsets[0])
    for offset in offsets[1:]:
        total = total + Load(x, at + 32 + offset)
    return loop_nest(((r, 8), (c, 16)), Store(y, at, total), "independent")


@pytest.mark.parametrize(
    ("offsets", "expected"), [((-32,), 0), ((0,), -32), ((-32, 0), 0), ((32,), -64), ((-31, -16), -1)]
)
def test_distances_of_rows(offsets: tuple[int, ...], expected: int) -> None:
    assert distance(kernel(lambda x, y: rows(x, y, *offsets), 128, 200)) == expected


def test_what_is_read_again_is_kept() -> None:
    """A row that all outputs need, and one that is read behind."""
    r, c = Var("r"), Var("c")

    def body(x: Buffer, y: Buffer) -> Stmt:
        return loop_nest(((r, 8), (c, 16)), Store(y, r * 16 + c, Load(x, c)))

    assert distance(kernel(body, 128, 16)) == 112
    behind = kernel(lambda x, y: Block([rows(x, y, -32), Store(y, as_expr(0), Load(x, as_expr(0)))]), 128, 200)
    assert distance(behind) == 128


def test_unknown_places_and_types_do_not_overlap() -> None:
    i = Var("i")
    gather = kernel(lambda x, y: For(i, 8, Store(y, i, Load(x, Load(x, i).astype("int64")))), 8, 8)
    # the last element is written behind all reads
    assert distance(gather) == 7
    x, y = Buffer("x", DType("int32"), 8), Buffer("y", DType("float32"), 8)
    other = Kernel(name="k", inputs=(x,), outputs=(y,), body=For(i, 8, Store(y, i, Load(x, i).astype("float32"))))
    assert min_overlap_distance_bytes(other, y, x) is None


def test_registers_stand_for_values_of_before() -> None:
    """`before` is not what `k` is when elements are stored: only the arithmetic of unknown numbers is left."""
    i, k, before = Var("i"), Var("k", INDEX), Var("before", INDEX)

    def body(x: Buffer, y: Buffer) -> Stmt:
        step = [Declare(before, k), Assign(k, k + 5), Store(y, k - before + i, Load(x, i))]
        return Block([Declare(k, as_expr(0)), For(i, 20, Block(step))])

    moved = kernel(body, 40, 40)
    least = distance(moved)
    assert least is not None and not wrong(moved, least)


def drawn(seed: int) -> Kernel:
    """A kernel of random loops over random places."""
    rng = np.random.default_rng(seed)
    x, y = Buffer("x", I8, 400), Buffer("y", I8, 400)

    def nest(depth: int, around: list[Var]) -> Stmt:
        if depth == 0 or rng.random() < 0.2:

            def place() -> Expr:
                at = as_expr(int(rng.integers(0, 20)))
                for v in around:
                    at = at + v * int(rng.integers(0, 9))
                return at

            return Store(y, place(), Load(x, place()) + Load(x, place()))
        var = Var(f"i{depth}{rng.integers(1000)}")
        parts = [nest(depth - 1, [*around, var]) for _ in range(rng.integers(1, 3))]
        begin = int(rng.integers(0, 2))
        return For(var, begin + int(rng.integers(1, 6)), Block(parts), begin=begin)

    return Kernel(name="k", inputs=(x,), outputs=(y,), body=Block([nest(3, []), nest(2, [])]))


def together(k: Kernel, data: Any, apart: int) -> Any:
    """The output where it begins so many bytes before the input, in memory of which the rest is 77."""
    k = make_loops_serial_for_overlap(k, [(0, 0)])
    size = k.outputs[0].size
    memory = np.full(3 * size, 77, np.int8)
    start, at = max(0, -apart) + 8, max(0, apart) + 8
    source, target = memory[at : at + data.size], memory[start : start + size]
    source[...] = data
    compile_kernel(k).run_kernel_in_place([source, target])
    return target.copy()


def wrong(k: Kernel, apart: int) -> bool:
    """Whether what is written differs from what separate memory gives."""
    data = np.random.default_rng(1).integers(-128, 128, k.inputs[0].size).astype(np.int8)
    starts = [np.full(k.outputs[0].size, value, np.int8) for value in (1, 2)]
    one, two = (run_kernel(k, [data], output_init=[start])[0] for start in starts)
    return bool(((one == two) & (together(k, data, apart) != one)).any())


@pytest.mark.parametrize("seed", range(60))
def test_random_kernels_at_their_distance(seed: int) -> None:
    k = drawn(seed)
    least = distance(k)
    assert least is not None and not wrong(k, least)


def test_the_check_of_random_kernels_can_fail() -> None:
    found = [(k, distance(k)) for k in map(drawn, range(60))]
    assert sum(wrong(k, least - 1) for k, least in found if least is not None and least > -300) > 10


def planned(program: Program, config: dict[str, Any]) -> Program:
    with PassContext(3, config=config, instruments=[ProgramVerifier()]):
        for item in program_passes(C):
            program = item.run(program, PassContext.current())
    check_memory_plan(program)
    return program


@pytest.mark.parametrize("seed", share(range(300), 2, always=(161,)))
def test_random_graphs_compute_the_same_in_less_memory(seed: int, tmp_path: Any) -> None:
    """All outputs by the interpreter, with one arena in which results overlap inputs, and inputs and outputs lie."""
    for name, data in make(seed).items():
        (tmp_path / name).write_bytes(data)
    try:
        module, inputs, setting = load_case(tmp_path)
        options = CompileOptions(target="c", opt_level=setting.opt_level, accuracy="strict", cache=False, build=False)
        (lowered,) = options.start_compilation(module).lowered_programs
    except AotcError:
        pytest.skip("not a graph that can be compiled")
    if sum(step.kernel.macs for step in lowered.steps) > MOST_WORK:
        pytest.skip("takes long")
    plain = planned(lowered, {})
    expected = run_program(plain, inputs)
    for ends in (False, True):
        small = planned(lowered, ON | {"compile.workspace_io": ends})
        assert ends or small.plan.peak <= plain.plan.peak
        for a, b in zip(expected, run_program(small, inputs), strict=True):
            assert same(a, b)


def test_a_wrong_overlap_is_found() -> None:
    """The check of plans follows accesses anew, and the interpreter gives another result."""
    i, size = Var("i"), 64
    x, y = Buffer("x", I8, size), Buffer("y", I8, size)
    backwards = Kernel(name="k", inputs=(x,), outputs=(y,), body=For(i, size, Store(y, i, Load(x, size - 1 - i))))
    names = [("x", "input"), ("a", "temp"), ("b", "temp"), ("y", "output")]
    stored = [Storage(name=n, dtype=I8, shape=(size,), kind=kind) for n, kind in names]
    steps = [Step(backwards, (View(s), View(t))) for s, t in pairwise(stored)]
    program = Program(name="p", inputs=(stored[0],), outputs=(stored[3],), body=tuple(steps))
    made = plan_memory(program, 8, outputs_may_overlap_inputs=True)
    assert made.plan.peak == 2 * size
    broken = replace(made, plan=replace(made.plan, offsets=dict.fromkeys(made.plan.offsets, 0)))
    assert intersecting_output_input_pairs(broken, broken.steps[1]) == [(0, 0)]
    with pytest.raises(AssertionError, match="overlap"):
        check_memory_plan(broken)
    marked = broken.replace_kernels({backwards: make_loops_serial_for_overlap(backwards, [(0, 0)])})
    with pytest.raises(AssertionError, match="overlap"):
        check_memory_plan(marked)
    data = {"x": np.arange(size, dtype=np.int8)}
    assert run_program(marked, data)[0].tobytes() != run_program(made, data)[0].tobytes()
