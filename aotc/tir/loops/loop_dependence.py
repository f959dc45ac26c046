# SPDX-License-Identifier: Apache-2.0
"""Queries about statements and loops: the buffers and registers that they access, and the ranges of
loop variables.

Input: statements over flat buffers. The access relations of whole loop nests are collected by
`access_collection`.

    for i in 0..8 by 2: y[i:2] = x[i:2] + 1    # reads x, writes y; 4 iterations; i in 0, 2, 4, 6
"""

import math
from collections.abc import Container, Iterable, Iterator

from aotc.tir import Interval, bounds, direct_exprs_of_stmt, linear_form
from aotc.tir.expr import INDEX, Binary, Buffer, Const, Expr, Load, Var, loads_in, minimum, vars_and_buffers_in
from aotc.tir.instruction_accesses import accesses_of_instruction
from aotc.tir.simplify import simplify
from aotc.tir.stmt import (
    Assign,
    Declare,
    Execute,
    For,
    Stmt,
    Store,
    While,
    block_stmts_or_self,
    buffer_written_by,
    declared_registers,
    remove_stmts,
    walk_stmts,
)

Ranges = dict[Var, Interval]


def direct_loads(stmt: Stmt) -> Iterator[Load]:
    """Yield every load directly in a statement; statements nested inside it are not visited."""
    return (load for e in direct_exprs_of_stmt(stmt) for load in loads_in(e))


def straight_line_stmts(loop: For) -> tuple[Stmt, ...] | None:
    """Return the statements of an innermost loop whose body is straight-line code; None for any
    other loop.

    Straight-line code consists of stores, declarations and assignments of values.
    """
    stmts = block_stmts_or_self(loop.body)
    return stmts if all(isinstance(s, (Store, Declare, Assign)) for s in stmts) else None


def written_buffers(stmt: Stmt) -> set[Buffer]:
    """Return the buffers that a statement, with the statements nested in it, writes."""
    return {buffer for s in walk_stmts(stmt) if (buffer := buffer_written_by(s)) is not None}


def read_buffers(stmt: Stmt) -> set[Buffer]:
    """Return the buffers that a statement, with the statements nested in it, loads from."""
    return {load.buffer for s in walk_stmts(stmt) for load in direct_loads(s)}


def remove_unread_stores(stmt: Stmt, scratch: Container[Buffer]) -> Stmt:
    """Return a statement without those that write scratch memory which nothing reads, such as the positions along an
    axis of which a consumer reads only one element, and without loops that have no other statements.
    """
    while True:
        read = read_buffers(stmt)
        dead = {
            s for s in walk_stmts(stmt) if (b := buffer_written_by(s)) is not None and b in scratch and b not in read
        }
        if not dead:
            return stmt
        stmt = remove_stmts(stmt, dead)


def assigned_registers(stmt: Stmt) -> frozenset[Var]:
    """Return the registers that a statement assigns to (declarations do not count)."""
    return frozenset(s.var for s in walk_stmts(stmt) if isinstance(s, Assign))


def is_replaceable_by_value(stmt: Declare, changing: Container[Var | Buffer]) -> bool:
    """Return True if an index register may be replaced by its value in the statements that use it.

    Neither the register nor anything that its value is computed from may be in `changing`, the
    registers and buffers that these statements change.
    """
    return stmt.var.dtype == INDEX and not any(n in changing for n in (stmt.var, *vars_and_buffers_in(stmt.value)))


def assigns_to_outer_registers(stmt: Stmt) -> Iterator[Assign]:
    """Yield the assignments in a statement to registers that are declared outside of it."""
    declared = {*declared_registers(stmt)}
    return (s for s in walk_stmts(stmt) if isinstance(s, Assign) and s.var not in declared)


def constant_loop_range(loop: For) -> range:
    """Return the values of a loop variable as a range; an empty range if the loop bounds are not
    constants.
    """
    match loop:
        case For(begin=Const(value=begin), end=Const(value=end), step=step):
            return range(int(begin), int(end), step)
    return range(0)


def constant_trip_count(loop: For) -> int | None:
    """Return the number of iterations of a loop; None if its bounds are not constants."""
    match loop:
        case For(begin=Const(), end=Const()):
            return len(constant_loop_range(loop))
    return None


def known_trip_count(loop: For) -> int:
    """Return the number of iterations of a loop whose bounds are constants."""
    count = constant_trip_count(loop)
    assert count is not None, f"the bounds of the loop over {loop.var.name} are not constants"
    return count


def decrement_loop_end(end: Expr, decrement: int) -> Expr:
    """Return a loop end reduced by a number; for a minimum of several ends, each of them is
    reduced.
    """
    if isinstance(end, Binary) and end.op == "min":
        return minimum(decrement_loop_end(end.a, decrement), decrement_loop_end(end.b, decrement))
    return simplify(end - decrement, {})


def is_innermost(loop: For) -> bool:
    """Return True if a loop contains no other loop."""
    return not any(isinstance(s, (For, While)) for s in walk_stmts(loop.body))


def loop_var_interval(loop: For, ranges: Ranges) -> Interval:
    """Return the smallest and largest value of a loop variable, given the ranges of the variables
    in the loop bounds.
    """
    low, high = bounds(loop.begin, ranges)[0], bounds(loop.end, ranges)[1] - 1
    if loop.step == 1 or high - low == math.inf:
        return low, high
    if not any(factor % loop.step for factor in linear_form(loop.begin, ranges).terms.values()):
        high = low + (high - low) // loop.step * loop.step
    return low, high


def ranges_inside_loops(loops: Iterable[For], ranges: Ranges) -> Ranges:
    """Return `ranges` extended by the variables of nested loops, given from the outermost to the
    innermost.
    """
    for loop in loops:
        ranges = {**ranges, loop.var: loop_var_interval(loop, ranges)}
    return ranges


def direct_accesses(stmt: Stmt, *, reads: bool = True, stores: bool = True) -> Iterator[tuple[Buffer, Expr, int]]:
    """Yield (buffer, index of the first element, number of elements) of every access that a
    statement itself makes.
    """
    if isinstance(stmt, Execute):
        yield from accesses_of_instruction(stmt, reads=reads, stores=stores)
        return
    if stores and isinstance(stmt, Store):
        yield stmt.buffer, stmt.index, stmt.value.lanes
    yield from ((load.buffer, *load.lowest_index_and_extent) for load in direct_loads(stmt) if reads)


def operands_of_nested_min_max(min_or_max: str, expr: Expr) -> list[Expr]:
    """Return the operands of nested minima (`min_or_max` "min") or maxima ("max"): `expr` is the
    minimum or maximum of them all.
    """
    if isinstance(expr, Binary) and expr.op == min_or_max:
        return [*operands_of_nested_min_max(min_or_max, expr.a), *operands_of_nested_min_max(min_or_max, expr.b)]
    return [expr]


def is_stored_before_first_load(buffer: Buffer, stmt: Stmt) -> bool:
    """Return True if a statement loads from a scratch buffer, and a store to it precedes the first
    load in program order.
    """
    filled = False
    for inner in walk_stmts(stmt):
        if any(load.buffer is buffer for load in direct_loads(inner)):
            return filled
        filled = filled or buffer_written_by(inner) is buffer
    return False
