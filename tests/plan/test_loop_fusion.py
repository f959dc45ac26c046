# SPDX-License-Identifier: Apache-2.0
"""Loop fusion: steps become one if the second reads block by block what the first writes, with equal results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.ir import DType, PassContext
from aotc.tir.expr import Buffer, Expr, Load, Var, as_expr, minimum
from aotc.tir.passes import ProgramVerifier, program_passes
from aotc.tir.plan.loop_fusion import fuse_loops_while_peak_falls
from aotc.tir.plan.memory_plan import check_memory_plan, shareable_bytes_of_output_input_pairs
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.step_order import least_peak_bytes
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import Block, For, If, Kernel, Stmt, Store, forall
from aotc.tir.target import CORTEX_M4
from tests.share import share
from tests.tir.programs import run_program

I16 = DType("int16")


def filling(name: str, size: int, rows: int, per_row: int, total: int) -> Kernel:
    """y[(rows * t + k) * per_row + c] = 3 x[...] - 1, in each iteration so many rows, or what is left of them."""
    x, y = Buffer("x", I16, size), Buffer("y", I16, total)
    t, k, c = Var("t"), Var("k"), Var("c")
    row = t * rows + k
    store = Store(y, row * per_row + c, Load(x, minimum((row * per_row + c) % size, size - 1)) * 3 - 1)
    count = total // per_row
    body: Stmt = store if count % rows == 0 else If(row < count, store)
    return Kernel(
        name=name, inputs=(x,), outputs=(y,), body=forall(t, -(-count // rows), loops2(k, rows, c, per_row, body))
    )


def loops2(k: Var, rows: int, c: Var, width: int, body: Stmt) -> Stmt:
    return forall(k, rows, forall(c, width, body))


def summing(rows: int, per_row: int, total: int, ahead: int = 0) -> Kernel:
    """z[t] = z's number before + the sum of some rows; the state goes from iteration to iteration."""
    y, z, state = Buffer("y", I16, total), Buffer("z", I16, total // per_row // rows), Buffer("state", I16, 1, "stack")
    t, c, i = Var("t"), Var("c"), as_expr(0)
    size = rows * per_row
    at: Expr = t * size + c
    if ahead:
        at = minimum(at + ahead, total - 1)
    steps = [For(c, size, Store(state, i, Load(state, i) * 5 + Load(y, at))), Store(z, t, Load(state, i))]
    body = Block([Store(state, i, as_expr(7, Load(state, i))), For(t, z.size, Block(steps))])
    return Kernel(name="sum", inputs=(y,), outputs=(z,), body=body, stack=(state,))


def program(first: Kernel, second: Kernel) -> Program:
    x = Storage(name="x", dtype=I16, shape=(first.inputs[0].size,), kind="input")
    y = Storage(name="y", dtype=I16, shape=(first.outputs[0].size,))
    z = Storage(name="z", dtype=I16, shape=(second.outputs[0].size,), kind="output")
    steps = (Step(first, (View(x), View(y))), Step(second, (View(y), View(z))))
    return Program(name="net", inputs=(x,), outputs=(z,), body=steps)


def peak(made: Program) -> int:
    return least_peak_bytes(made, shareable_bytes_of_output_input_pairs(made, True, 8), 8)


def planned(made: Program, *, joins: bool) -> Program:
    with PassContext(instruments=[ProgramVerifier()], config={"compile.reorder": joins}):
        for item in program_passes(CORTEX_M4):
            made = item.run(made, PassContext.current())
    check_memory_plan(made)
    return made


CASES = [(writes, reads, count) for writes in (1, 2, 3, 4, 6) for reads in (1, 2, 3, 6) for count in (12, 13, 36)]


@pytest.mark.parametrize(("writes", "reads", "count"), share(CASES, 12))
def test_random_blocks_give_the_same_results(writes: int, reads: int, count: int) -> None:
    """Blocks of several sizes, the last of which may not be full."""
    total = count // reads * reads * 8
    whole = program(filling("fill", 40, writes, 8, total), summing(reads, 8, total))
    x = np.random.default_rng(count).integers(-99, 99, 40).astype(np.int16)
    (expected,) = run_program(planned(whole, joins=False), [x])
    made = planned(whole, joins=True)
    (found,) = run_program(made, [x])
    np.testing.assert_array_equal(found, expected)
    fits = max(writes, reads) % min(writes, reads) == 0
    assert len(made.steps) == (1 if fits else 2)
    if fits:
        assert peak(fuse_loops_while_peak_falls(whole, peak)) <= max(writes, reads) * 16 + 8
        assert made.plan.peak <= max(writes, reads) * 16 + 8


def test_loops_change_places_where_a_block_is_written_by_the_inner_one() -> None:
    """Columns outside, rows inside: the rows are those of blocks."""
    x, y = Buffer("x", I16, 40), Buffer("y", I16, 96)
    row, column = Var("row"), Var("column")
    store = Store(y, row * 8 + column, Load(x, row * 2 + column) * 3 - 1)
    first = Kernel(name="fill", inputs=(x,), outputs=(y,), body=forall(column, 8, forall(row, 12, store)))
    whole = program(first, summing(2, 8, 96))
    data = np.random.default_rng(1).integers(-99, 99, 40).astype(np.int16)
    made = planned(whole, joins=True)
    assert len(made.steps) == 1
    assert made.plan.peak <= 40
    np.testing.assert_array_equal(run_program(made, [data])[0], run_program(planned(whole, joins=False), [data])[0])
    # what iterations hand to each other keeps them in their order
    serial = For(column, 8, For(row, 12, store))
    refused(Kernel(name="fill", inputs=(x,), outputs=(y,), body=serial), summing(2, 8, 96))


def refused(first: Kernel, second: Kernel) -> None:
    whole = program(first, second)
    assert fuse_loops_while_peak_falls(whole, peak) is whole


def test_elements_of_other_blocks_are_not_read() -> None:
    refused(filling("fill", 40, 1, 8, 96), summing(1, 8, 96, ahead=1))


def test_what_saves_little_is_left_alone() -> None:
    """A small tensor while a large one, which is read again at the end, is in the arena."""
    x, y, z = (Storage(name=n, dtype=I16, shape=(s,)) for n, s in (("x", 4000), ("y", 64), ("z", 2)))
    given = Storage(name="given", dtype=I16, shape=(4000,), kind="input")
    last = Storage(name="last", dtype=I16, shape=(8,), kind="output")
    end = filling("end", 4000, 1, 8, 8)
    steps = (
        Step(filling("copy", 4000, 1, 8, 4000), (View(given), View(x))),
        Step(filling("fill", 4000, 4, 8, 64), (View(x), View(y))),
        Step(summing(4, 8, 64), (View(y), View(z))),
        Step(end, (View(x), View(last))),
    )
    whole = Program(name="net", inputs=(given,), outputs=(last,), body=steps)
    assert fuse_loops_while_peak_falls(whole, peak) is whole


def test_a_reader_of_some_blocks_is_no_partner() -> None:
    """The second step reads the first two of many blocks, in a loop of two iterations."""
    first, second = filling("fill", 40, 1, 32, 640), filling("few", 640, 4, 8, 64)
    refused(first, second)


@pytest.mark.parametrize("change", ["read twice", "written before the loop"])
def test_other_uses_of_the_tensor(change: str) -> None:
    first, second = filling("fill", 40, 1, 8, 96), summing(1, 8, 96)
    whole = program(first, second)
    if change == "read twice":
        other = Storage(name="w", dtype=I16, shape=(12,), kind="output")
        step: Any = Step(second, (whole.steps[0].args[1], View(other)))
        whole = Program(name="net", inputs=whole.inputs, outputs=(*whole.outputs, other), body=(*whole.steps, step))
    else:
        y = first.outputs[0]
        body = Block([Store(y, as_expr(5), as_expr(1, Load(y, as_expr(5)))), first.body])
        early = Kernel(name="fill", inputs=first.inputs, outputs=(y,), body=body)
        whole = program(early, second)
    assert fuse_loops_while_peak_falls(whole, peak) is whole
