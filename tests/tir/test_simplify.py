# SPDX-License-Identifier: Apache-2.0
"""Simplified expressions and statements have equal results, and expected ones become short."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.dtype import DType
from aotc.tir.expr import BOOL, Binary, Buffer, Const, Expr, Select, Var, all_of, as_expr, binary, const, select, walk
from aotc.tir.interpreter import run_kernel
from aotc.tir.loops.loop_nest_rewrites import (
    merge_nested_loops_into_flat_loop,
    split_loops_at_condition_changes,
    unroll_loops_bounding_inner_loops,
)
from aotc.tir.simplify import bounds, simplify
from aotc.tir.simplify_statements import simplify_stmt
from aotc.tir.stmt import (
    Assign,
    Block,
    Declare,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    loop_nest,
    remove_dead_registers,
    walk_stmts,
)
from tests.call_counts import calls_of

A, B = Var("i"), Var("j")
RANGES = {A: (0, 5), B: (0, 3)}
OPS = ("add", "sub", "mul", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max")


def python_value(expr: Expr, values: dict[Var, int]) -> int:
    match expr:
        case Var():
            return values[expr]
        case Const():
            return int(expr.value)
        case Select():
            return python_value(expr.a if python_value(expr.cond, values) else expr.b, values)
        case Binary():
            a, b = python_value(expr.a, values), python_value(expr.b, values)
            return int(_apply(expr.op, a, b))
        case _:
            raise TypeError(expr)


def _apply(op: str, a: int, b: int) -> int | bool:
    truncated = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    table = {
        "add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b),
        "floordiv": a // b if b else 0, "floormod": a % b if b else 0,
        "truncdiv": truncated, "truncmod": a - truncated * b,
        "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b, "ne": a != b,
        "and": a and b, "or": a or b,
    }  # fmt: skip
    return table[op]


def index_exprs(depth: int = 4) -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from([A, B]) | st.integers(-9, 9).map(const)

    def extend(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        divisor = st.integers(1, 8).map(const)
        plain = st.builds(Binary, st.sampled_from(["add", "sub", "mul", "min", "max"]), children, children)
        division = st.builds(Binary, st.sampled_from(OPS[3:7]), children, divisor)
        choice = st.builds(
            Select, st.builds(Binary, st.sampled_from(["lt", "eq", "ge"]), children, children), children, children
        )
        return plain | division | choice

    return st.recursive(leaves, extend, max_leaves=2**depth)


@settings(max_examples=400, deadline=None)
@given(expr=index_exprs())
def test_simplify_keeps_values_and_bounds_hold(expr: Expr) -> None:
    short = simplify(expr, RANGES)
    low, high = bounds(expr, RANGES)
    for i in range(6):
        for j in range(4):
            want = python_value(expr, {A: i, B: j})
            assert python_value(short, {A: i, B: j}) == want
            assert low <= want <= high


def test_bounds_of_nested_terms_are_found_once() -> None:
    """They are asked for at each level, of all levels below it."""

    def nested(depth: int) -> Callable[[], object]:
        expr: Expr = A
        for k in range(depth):
            expr = binary("floordiv", binary("max", binary("min", expr * 5 + B, 900 - k) + k, 3), 7)
        return lambda: simplify(expr, RANGES)

    assert calls_of(nested(8)) < 8 * calls_of(nested(4))


def test_kept_bounds_are_those_of_the_ranges_of_variables_that_occur() -> None:
    expr = (A + 3) // 4 * select(A < 2, as_expr(1), B)
    first = calls_of(lambda: bounds(expr, RANGES))
    assert bounds(expr, RANGES) == (0, 6)
    assert bounds(expr, {A: (0, 1), B: (0, 3)}) == (0, 1)
    assert bounds(expr, {A: (0, 1)}) == (0, 1)
    assert 4 * calls_of(lambda: bounds(expr, {Var("k"): (0, 9), **RANGES})) < first


def test_bounds_hold_where_results_wrap_around() -> None:
    wide, narrow = Var("u", DType("uint64")), Var("s", DType("int32"))
    assert bounds(wide.astype("int64"), {wide: (0, 2**64 - 1)}) == (-math.inf, math.inf)
    assert bounds(wide.astype("int64"), {wide: (0, 9)}) == (0, 9)
    assert bounds((A + 2**62) * B, RANGES) == (-math.inf, math.inf)
    assert bounds((A + 2**60) * B, RANGES) == (0, 3 * (2**60 + 5))
    product = Binary("mul", narrow, narrow)
    assert bounds(product, {narrow: (0, 50_000)}) == (-(2**31), 2**31 - 1)
    assert bounds(product.astype("int64"), {narrow: (0, 40_000)}) == (0, 40_000**2)


@pytest.mark.parametrize(
    ("expr", "want"),
    [
        ((A * 4 + B) // 4, A),
        ((A * 4 + B) % 4, B),
        (((A * 4 + B) * 3) // 12, A),
        ((A // 2) * 2 + A % 2, A),
        ((A // 2) // 3, const(0)),
        (A * 2 - A - A, const(0)),
        (binary("max", A, 0), A),
        (binary("min", B, 3), B),
        (A + B < 9, Const(True, BOOL)),
        ((A * 24 + B * 6) // 8, A * 3 + (B * 3) // 4),
    ],
)
def test_known_cases(expr: Expr, want: Expr) -> None:
    assert simplify(expr, RANGES) == want


def guards() -> st.SearchStrategy[Expr]:
    coefficient = st.integers(-3, 3)
    side = st.builds(lambda a, b, c: A * a + B * b + c, coefficient, coefficient, st.integers(-6, 6))
    quotient = st.builds(lambda a, d, s, c: (a // d) * s + c, side, st.integers(1, 4), coefficient, st.integers(-3, 3))
    either = side | quotient
    one = st.builds(lambda op, a, b: binary(op, a, b), st.sampled_from(["lt", "le", "gt", "ge", "eq"]), either, either)
    return st.lists(one, min_size=1, max_size=3).map(lambda cs: all_of(*cs))


def _filled(body: Stmt, size: int) -> np.ndarray:
    y = next(s.buffer for s in walk_stmts(body) if isinstance(s, Store)) if body else None
    assert y is not None
    kernel = Kernel(name="k", inputs=(), outputs=(y,), body=body)
    return run_kernel(kernel, [], output_init=[np.zeros(size, np.int64)])[0]


@settings(max_examples=200, deadline=None)
@given(cond=guards(), begin=st.integers(-2, 2), end=st.integers(0, 7))
def test_guards_become_bounds(cond: Expr, begin: int, end: int) -> None:
    """The loops visit the same places, whatever way the guard is written into them."""
    y = Buffer("y", DType("int64"), 64)
    place = (A + 2) * 6 + B
    touch: Stmt = Store(y, place, place + 1)
    first = Store(y, as_expr(63), as_expr(1))
    nest = Block((first, For(A, end, For(B, 4, If(cond, touch)), begin=begin)))
    choose = Store(y, place, Select(cond, place + 1, place * 2))
    other = Block((first, For(A, end, For(B, 4, choose), begin=begin)))
    for stmt in (nest, other):
        want = _filled(stmt, 64)
        short = simplify_stmt(stmt, {})
        assert np.array_equal(_filled(short, 64), want)
        assert np.array_equal(
            _filled(unroll_loops_bounding_inner_loops(split_loops_at_condition_changes(short, {})), 64), want
        )


def test_guard_is_gone() -> None:
    y = Buffer("y", DType("int64"), 64)
    nest = For(A, 8, For(B, 8, If(all_of(A * 2 + B - 1 >= 0, A * 2 + B - 1 < 8), Store(y, A * 8 + B, as_expr(1)))))
    short = simplify_stmt(nest, {})
    assert not any(isinstance(s, If) for s in walk_stmts(short))


def test_flat_loops_are_merged() -> None:
    y = Buffer("y", DType("int64"), 64)
    merged = merge_nested_loops_into_flat_loop(loop_nest([(A, 8), (B, 8)], Store(y, A * 8 + B, as_expr(1))))
    assert isinstance(merged, For)
    assert merged.end == const(64)
    apart = merge_nested_loops_into_flat_loop(loop_nest([(A, 8), (B, 4)], Store(y, A * 8 + B, as_expr(1))))
    assert isinstance(apart, For)
    assert apart.end == const(8)


@pytest.mark.parametrize(
    ("cond", "count"), [(all_of(A >= 2, A < 10), 3), (A // 4 - 1 < 1, 2), (2 - A // 4 > 1, 2), (A // 4 >= 1, 2)]
)
def test_conditions_split_loops(cond: Expr, count: int) -> None:
    y = Buffer("y", DType("int64"), 12)
    value = Select(cond, binary("add", A, 1), as_expr(-1))
    pieces = split_loops_at_condition_changes(For(A, 12, Store(y, A, value)), {})
    assert len([s for s in walk_stmts(pieces) if isinstance(s, For)]) == count
    assert not any(isinstance(n, Select) for s in walk_stmts(pieces) if isinstance(s, Store) for n in walk(s.value))


def test_registers_that_nobody_reads_go() -> None:
    y = Buffer("y", DType("int64"), 1)
    a, b = Var("a"), Var("b")
    dead = (Declare(a, as_expr(1)), Declare(b, a + 1), Assign(b, b + a))
    kept = remove_dead_registers(Block((*dead, Store(y, as_expr(0), as_expr(5)))))
    assert [type(s) for s in walk_stmts(kept) if not isinstance(s, Block)] == [Store]
