# SPDX-License-Identifier: Apache-2.0
"""Simplify statements: normalize their indices and conditions, and remove loops of one iteration and decided
branches.

    for i in 0..1 { if i < 4 { y[i + 2 + 1] = x[i] } }     # y[3] = x[0]

Conditions that depend on a loop variable become bounds of the loop.
"""

from __future__ import annotations

from dataclasses import replace

from aotc.tir import all_of, vars_and_buffers_in
from aotc.tir.expr import Const, Expr, binary, unary
from aotc.tir.simplify import (
    LinearForm,
    Ranges,
    RangesOrScope,
    SimplifierScope,
    as_simplifier_scope,
    bounds,
    bounds_of_linear_form,
    comparison_as_nonnegative_form,
    conjuncts,
    linear_form,
    simplify,
)
from aotc.tir.stmt import (
    GPU_LOOP_KINDS,
    Block,
    For,
    If,
    Stmt,
    While,
    modified_vars_and_buffers,
    rebuild_stmt,
    rename_declared_vars,
    substitute_in_stmt,
    walk_stmts,
)


def simplify_stmt(stmt: Stmt, ranges: RangesOrScope, *, only_control_flow: bool = False) -> Stmt:
    """Simplify a statement: normalize indices, remove loops of one iteration and decided branches.

    Affine conditions of a guarded loop body become loop bounds. With `only_control_flow`, values and indices stay as
    they are, which takes less time.
    """
    return _simplify_in_scope(stmt, as_simplifier_scope(ranges), only_control_flow)


def _simplify_in_scope(stmt: Stmt, ranges: SimplifierScope, only_control_flow: bool) -> Stmt:
    match stmt:
        case For():
            return _simplify_for(stmt, ranges, only_control_flow)
        case If():
            return _simplify_if(stmt, ranges, only_control_flow)
        case Block() | While() if only_control_flow:
            new_stmt = rebuild_stmt(stmt, lambda s: _simplify_in_scope(s, ranges, True))
            return new_stmt.stmts[0] if isinstance(new_stmt, Block) and len(new_stmt.stmts) == 1 else new_stmt
        case _ if only_control_flow:
            return stmt
        case _:
            new_stmt = rebuild_stmt(stmt, lambda s: _simplify_in_scope(s, ranges, False), lambda e: simplify(e, ranges))
            return new_stmt.stmts[0] if isinstance(new_stmt, Block) and len(new_stmt.stmts) == 1 else new_stmt


def is_empty(stmt: Stmt) -> bool:
    """Return True if the statement does nothing."""
    return all(isinstance(s, Block) for s in walk_stmts(stmt))


def _simplify_for(loop: For, ranges: SimplifierScope, only_control_flow: bool) -> Stmt:
    begin, end = simplify(loop.begin, ranges), simplify(loop.end, ranges)
    inside = {**ranges.value_ranges, loop.var: (bounds(begin, ranges)[0], bounds(end, ranges)[1] - 1)}
    if loop.kind in GPU_LOOP_KINDS:  # these say how the kernel is launched
        return replace(loop, body=simplify_stmt(loop.body, inside, only_control_flow=only_control_flow))
    extent = linear_form(end, ranges).add_multiple(linear_form(begin, ranges), -1)
    low, high = bounds_of_linear_form(extent, ranges)
    if high <= 0:
        return Block(())
    if low > 0 and high <= loop.step:
        # without its loop, the body is in one block with what may declare the same registers
        inner = substitute_in_stmt(rename_declared_vars(loop.body), {loop.var: begin})
        return _simplify_in_scope(inner, ranges, only_control_flow)
    body = simplify_stmt(loop.body, inside, only_control_flow=only_control_flow)
    if is_empty(body):
        return Block(())
    fresh = replace(loop, begin=begin, end=end, body=body)
    if isinstance(body, If) and body.orelse is None:
        moved = _move_guard_into_loop_bounds(fresh, body, inside)
        return moved if moved is fresh else _simplify_in_scope(moved, ranges, only_control_flow)
    return fresh


def _move_guard_into_loop_bounds(loop: For, guard: If, ranges_in_loop: Ranges) -> Stmt:
    """Rewrite `For v: If(c, s)`: conditions on v become bounds, conditions without v move out of
    the loop.
    """
    begin, end = loop.begin, loop.end
    conditions = list(conjuncts(guard.cond))
    outer: list[Expr] = []
    inner: list[Expr] = []
    for cond in conditions:
        half = comparison_as_nonnegative_form(cond, ranges_in_loop) or LinearForm()
        factor = half.coefficient(loop.var) or 0
        rest = half.add_multiple(LinearForm({loop.var: 1}), -factor)
        if _is_loop_invariant(cond, loop):
            outer.append(cond)
        elif not factor or loop.step != 1 or not _is_loop_invariant(rest.to_expr(), loop):
            inner.append(cond)
        elif factor > 0:  # v >= ceil(-rest / factor)
            begin = binary(
                "max", begin, binary("floordiv", LinearForm(const=factor - 1).add_multiple(rest, -1).to_expr(), factor)
            )
        else:  # v < floor(rest / -factor) + 1
            end = binary("min", end, binary("floordiv", rest.to_expr(), -factor) + 1)
    if len(inner) == len(conditions):
        return loop
    body = guard.then if not inner else If(all_of(*inner), guard.then)
    fresh: Stmt = replace(loop, begin=begin, end=end, body=body)
    return fresh if not outer else If(all_of(*outer), fresh)


def _is_loop_invariant(cond: Expr, loop: For) -> bool:
    """Return True if `cond` is loop-invariant: it reads no loop variable, register or buffer that
    the loop changes.
    """
    return modified_vars_and_buffers(loop).isdisjoint(vars_and_buffers_in(cond))


def _simplify_if(stmt: If, ranges: SimplifierScope, only_control_flow: bool) -> Stmt:
    cond = simplify(stmt.cond, ranges)
    if isinstance(cond, Const):
        chosen = stmt.then if cond.value else stmt.orelse
        return (
            Block(()) if chosen is None else _simplify_in_scope(rename_declared_vars(chosen), ranges, only_control_flow)
        )
    then = _simplify_in_scope(stmt.then, ranges, only_control_flow)
    orelse = None if stmt.orelse is None else _simplify_in_scope(stmt.orelse, ranges, only_control_flow)
    if orelse is None or is_empty(orelse):
        return Block(()) if is_empty(then) else If(cond, then)
    return If(unary("not", cond), orelse) if is_empty(then) else If(cond, then, orelse)
