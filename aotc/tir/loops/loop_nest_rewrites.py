# SPDX-License-Identifier: Apache-2.0
"""Loop nest rewrites (merging, splitting, unrolling, tiling, hoisting), each from a statement to an
equivalent statement.

merge_nested_loops_into_flat_loop
    for i in 0..4: for j in 0..8: y[i * 8 + j] = x[i * 8 + j]  ->  for i in 0..32: y[i] = x[i]
split_loops_at_condition_changes
    for i in 0..9: y[i] = i < 2 ? 0 : x[i - 2]                 ->  a loop to 2, one from 2 to 9
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from aotc.tir import (
    Budget,
    Operand,
    as_expr,
    direct_exprs_of_stmt,
    operands,
    rename_declared_vars,
    substitute_in_stmt,
    vars_and_buffers_in,
    walk_stmts,
    with_operands,
)
from aotc.tir.expr import BOOL, INDEX, Binary, Buffer, Call, Const, Expr, Load, Select, Unary, Var, const
from aotc.tir.loops.loop_dependence import constant_loop_range, direct_loads, known_trip_count, straight_line_stmts
from aotc.tir.loops.polynomial_bounds import add_multiple_of_terms
from aotc.tir.simplify import Ranges, comparison_as_nonnegative_form, linear_form
from aotc.tir.simplify_statements import simplify_stmt
from aotc.tir.stmt import (
    Block,
    Declare,
    For,
    If,
    Stmt,
    Store,
    all_exprs_in_stmt,
    count_exprs_in_stmt,
    direct_child_stmts,
    forall,
    map_exprs,
    modified_vars_and_buffers,
    rebuild_stmt,
)

#: Largest number of pieces that one loop is split into.
_MAX_LOOP_PIECES: Final = 128
#: Number of pieces from which a loop is split by halves: each half simplifies its body before it is
#: split further.
_MIN_PIECES_TO_BISECT: Final = 8
_MAX_NODE_GROWTH_FACTOR: Final = 4
#: Splitting may multiply the number of nodes by _MAX_NODE_GROWTH_FACTOR, and add _MAX_ADDED_NODES.
_MAX_ADDED_NODES: Final = 200

#: Largest number of nodes outside of conditional statements that are duplicated when a loop is
#: split.
_MAX_DUPLICATED_NODES: Final = 2000

#: Budget if no target gives one.
DEFAULT_BUDGET: Final = Budget()
_MAX_UNROLLED_ITERATIONS: Final = 4


def constant_unit_step_range(loop: Stmt) -> range:
    """Return the values of a loop variable if the loop has constant bounds and step 1; an empty
    range for other statements.
    """
    return constant_loop_range(loop) if isinstance(loop, For) and loop.step == 1 else range(0)


def merge_nested_loops_into_flat_loop(stmt: Stmt) -> Stmt:
    """Merge perfectly nested loops whose body depends on the flat index i * extent + j only."""
    stmt = rebuild_stmt(stmt, merge_nested_loops_into_flat_loop)
    if isinstance(stmt, For) and isinstance(stmt.body, For):
        outer, inner = constant_unit_step_range(stmt), constant_unit_step_range(stmt.body)
        if outer and inner and inner.start == 0 and _body_uses_flat_index_only(stmt, stmt.body, inner.stop):
            flat = Var(stmt.var.name)
            mapping: dict[Var, Expr] = {stmt.var: as_expr(0), stmt.body.var: flat}
            kinds = {loop.kind for loop in (stmt, stmt.body) if known_trip_count(loop) > 1}
            kind = kinds.pop() if len(kinds) == 1 else "serial"
            body = substitute_in_stmt(stmt.body.body, mapping)
            return For(flat, outer.stop * inner.stop, body, begin=outer.start * inner.stop, kind=kind)
        if not (outer and inner):
            return _merge_loops_of_run_time_extents(stmt, stmt.body) or stmt
    return stmt


def _merge_loops_of_run_time_extents(outer: For, inner: For) -> For | None:
    """Return two nested loops from 0, one of whose ends is known at run time only, as one loop; None if
    their body depends on other things than i * extent + j.
    """
    starts_at_0 = outer.begin == inner.begin == as_expr(0) and outer.step == inner.step == 1
    is_known = isinstance(outer.end, Const) and isinstance(inner.end, Const)
    if is_known or not starts_at_0 or outer.kind != inner.kind or outer.kind not in ("independent", "reduction"):
        return None
    extent = _polynomial(inner.end)
    changing = modified_vars_and_buffers(outer)
    exprs = (e for s in walk_stmts(inner.body) for e in direct_exprs_of_stmt(s))
    if not changing.isdisjoint(vars_and_buffers_in(inner.end)) or not all(
        _uses_polynomial_flat_index_only(e, outer.var, inner.var, extent) for e in exprs
    ):
        return None
    flat = Var(outer.var.name)
    body = substitute_in_stmt(inner.body, {outer.var: as_expr(0), inner.var: flat})
    return For(flat, outer.end * inner.end, body, kind=outer.kind)


#: Coefficients of products of expressions, which are sorted by identity.
_Monomials: TypeAlias = "dict[tuple[Expr, ...], int]"


def _polynomial(expr: Expr) -> _Monomials:
    """Return an index expression as a polynomial over variables and other expressions."""
    match expr:
        case Const(value=value):
            return {(): int(value)} if value else {}
        case Binary(op="add" | "sub" as op, a=a, b=b):
            return add_multiple_of_terms(_polynomial(a), _polynomial(b), 1 if op == "add" else -1)
        case Binary(op="mul", a=a, b=b):
            return _product_of_monomials(_polynomial(a), _polynomial(b))
    return {(expr,): 1}


def _product_of_monomials(a: _Monomials, b: _Monomials) -> _Monomials:
    total: _Monomials = {}
    for x, c in a.items():
        for y, d in b.items():
            key = tuple(sorted(x + y, key=_order_of_factor))
            total[key] = total.get(key, 0) + c * d
    return {key: c for key, c in total.items() if c}


def _order_of_factor(expr: Expr) -> int:
    return id(expr) if isinstance(expr, Var) else hash(expr)


def _uses_polynomial_flat_index_only(expr: Expr, i: Var, j: Var, extent: _Monomials) -> bool:
    """Return True if `expr` depends on the variables i and j through i * extent + j only."""
    if not {i, j} & {*vars_and_buffers_in(expr)}:
        return True
    if expr.dtype != INDEX or expr.lanes != 1:
        return all(_uses_polynomial_flat_index_only(o, i, j, extent) for o in operands(expr))
    of_outer: _Monomials = {}
    of_inner: _Monomials = {}
    for factors, c in _polynomial(expr).items():
        counts = factors.count(i), factors.count(j)
        if sum(counts) > 1:
            return False
        for part, var, count in ((of_outer, i, counts[0]), (of_inner, j, counts[1])):
            if count:
                part[tuple(f for f in factors if f is not var)] = c
        others = (o for f in factors if not isinstance(f, Var) for o in operands(f))
        if not all(_uses_polynomial_flat_index_only(o, i, j, extent) for o in others):
            return False
    return of_outer == _product_of_monomials(of_inner, extent)


def _body_uses_flat_index_only(outer: For, inner: For, extent: int) -> bool:
    """Return True if the body of two nested loops depends on their variables through the flat index
    only.
    """
    exprs = (e for s in walk_stmts(inner.body) for e in direct_exprs_of_stmt(s))
    return all(_uses_flat_index_only(e, outer.var, inner.var, extent) for e in exprs)


def _uses_flat_index_only(expr: Expr, i: Var, j: Var, extent: int) -> bool:
    """Return True if `expr` depends on the variables i and j through i * extent + j only."""
    if expr.dtype != INDEX or expr.lanes != 1:
        return all(_uses_flat_index_only(o, i, j, extent) for o in operands(expr))
    form = linear_form(expr, {})
    if form.terms.get(i, 0) != extent * form.terms.get(j, 0):
        return False
    return all(_uses_flat_index_only(o, i, j, extent) for atom in form.terms for o in operands(atom))


@dataclass(slots=True)
class _SplitBudget:
    """Budget left for splitting the loops of one nest.

    pieces   number of loop pieces that may be added
    nodes    number of expression nodes that may be added
    """

    pieces: int
    nodes: int

    def spend_pieces_and_nodes_if_available(self, pieces: int, nodes: int) -> bool:
        """Subtract a number of pieces and nodes from the budget if they fit; return True if they
        did.
        """
        fits = pieces <= self.pieces and nodes <= self.nodes
        if fits:
            self.pieces, self.nodes = self.pieces - pieces, self.nodes - nodes
        return fits


def split_loops_at_condition_changes(stmt: Stmt, ranges: Ranges, budget: Budget = DEFAULT_BUDGET) -> Stmt:
    """Split loops at the iterations where conditions on their variables change, so that the pieces
    have no such conditions.

    A loop whose pieces would exceed the budget does not change.
    """
    return _split_loops_at_conditions_in_budget(stmt, ranges, _SplitBudget(budget.pieces, budget.piece_nodes))


def _split_loops_at_conditions_in_budget(stmt: Stmt, ranges: Ranges, budget_left: _SplitBudget) -> Stmt:
    if isinstance(stmt, For) and (values := constant_unit_step_range(stmt)):
        pieces = _split_loop_at_condition_changes(stmt, values, ranges, budget_left)
        if pieces is not None:
            return Block(_split_loops_at_conditions_in_budget(p, ranges, budget_left) for p in pieces)
        ranges = {**ranges, stmt.var: (values[0], values[-1])}
    return rebuild_stmt(stmt, lambda s: _split_loops_at_conditions_in_budget(s, ranges, budget_left))


def _split_loop_at_condition_changes(
    loop: For, values: range, ranges: Ranges, budget_left: _SplitBudget
) -> list[Stmt] | None:
    """Return a loop split where conditions in it change; None if no condition changes or the budget
    does not suffice.
    """
    change_points = set(_condition_change_points(loop, {**ranges, loop.var: (values[0], values[-1])}))
    cuts = sorted(c for c in change_points if c in values[1:])
    if not cuts or len(cuts) >= min(_MAX_LOOP_PIECES, budget_left.pieces):
        return None
    size = _expr_node_count(loop)
    if len(cuts) * _expr_nodes_repeated_by_every_piece(loop) > _MAX_DUPLICATED_NODES:
        return None
    most = _MAX_NODE_GROWTH_FACTOR * size + _MAX_ADDED_NODES
    edges = [values.start, *cuts, values.stop]
    bodies = _bodies_of_loop_pieces(loop, edges, ranges, _MAX_NODE_GROWTH_FACTOR * most)
    if bodies is None:
        return None
    pieces: list[Stmt] = []
    for (begin, end), body in zip(itertools.pairwise(edges), bodies, strict=True):
        piece = rename_declared_vars(For(loop.var, end, body, begin=begin, kind=loop.kind))
        pieces.append(simplify_stmt(piece, ranges))
    grown = sum(map(_expr_node_count, pieces))
    return (
        pieces
        if grown <= most and budget_left.spend_pieces_and_nodes_if_available(len(cuts), max(0, grown - size))
        else None
    )


def _bodies_of_loop_pieces(loop: For, piece_bounds: Sequence[int], ranges: Ranges, max_nodes: int) -> list[Stmt] | None:
    """Return the body of each piece of a loop that is split; None if all bodies together exceed
    `max_nodes` nodes.

    If there are many pieces, the bodies are simplified while the range is bisected, since most of
    hundreds of conditions are decided long before a single piece is left. For few pieces the bodies
    are not simplified.
    """
    if len(piece_bounds) <= _MIN_PIECES_TO_BISECT + 1:
        return [loop.body] * (len(piece_bounds) - 1)
    bodies: list[Stmt] = []
    pending, size = [(piece_bounds, loop.body)], _expr_node_count(loop.body)
    while pending and size <= max_nodes:
        among, body = pending.pop()
        if len(among) == 2:
            bodies.append(body)
            continue
        middle = len(among) // 2
        size -= _expr_node_count(body)
        for half in (among[middle:], among[: middle + 1]):
            narrowed = simplify_stmt(body, {**ranges, loop.var: (half[0], half[-1] - 1)})
            pending.append((half, narrowed))
            size += _expr_node_count(narrowed)
    return None if pending else bodies


def _expr_node_count(stmt: Stmt) -> int:
    """Return the number of expression nodes in a statement and its substatements."""
    return count_exprs_in_stmt(stmt)


def _expr_nodes_repeated_by_every_piece(loop: For) -> int:
    """Return the number of expression nodes outside of conditional statements, which every piece
    would repeat; 0 without conditional statements.
    """
    conditional = 0
    pending = [loop.body]
    while pending:
        stmt = pending.pop()
        if isinstance(stmt, If):
            conditional += _expr_node_count(stmt)
        else:
            pending.extend(direct_child_stmts(stmt))
    return _expr_node_count(loop) - conditional if conditional else 0


def _condition_change_points(loop: For, ranges: Ranges) -> Iterator[int]:
    """Yield the values of a loop variable at which a condition in the loop body changes."""
    conditions = (
        part for part in (*walk_stmts(loop.body), *all_exprs_in_stmt(loop.body)) if isinstance(part, (If, Select))
    )
    for part in conditions:
        yield from _change_points_of_condition(part.cond, loop.var, ranges)


def _change_points_of_condition(cond: Expr, var: Var, ranges: Ranges) -> Iterator[int]:
    """Yield the values of a variable at which the truth of a condition changes."""
    match cond:
        case Binary(op="and" | "or") | Unary(op="not") if cond.dtype == BOOL:
            for operand in operands(cond):
                yield from _change_points_of_condition(operand, var, ranges)
        case Binary(op="eq" | "ne") if cond.a.dtype == INDEX:
            form = linear_form(cond.a - cond.b, ranges)
            factor = form.terms.get(var, 0)
            if factor in (1, -1) and len(form.terms) == 1:
                yield -form.const * factor
                yield -form.const * factor + 1
        case _:
            half = comparison_as_nonnegative_form(cond, ranges)
            factor = 0 if half is None or len(half.terms) != 1 else half.terms.get(var, 0)
            if half is not None and factor:
                yield -(half.const // factor) if factor > 0 else half.const // -factor + 1


def copy_buffer_loop(source: Buffer, target: Buffer, count: Operand | None = None) -> Stmt:
    """Return a loop that copies the first `count` elements of `source` to `target`; without a count, all
    elements.
    """
    i = Var("i")
    return forall(i, target.size if count is None else count, Store(target, i, Load(source, i)))


def fill_buffer_loop(buffer: Buffer, value: int | Expr = 0) -> Stmt:
    """Return a loop that stores a value to all elements of a buffer."""
    i, element = Var("i"), const(value, buffer.dtype) if isinstance(value, int) else value
    return forall(i, buffer.size, Store(buffer, i, element))


def unrolled_iterations(loop: For) -> Iterator[Stmt]:
    """Yield the body of each iteration of a loop, in order; nothing if its bounds are not
    constants.
    """
    for value in constant_loop_range(loop):
        yield substitute_in_stmt(rename_declared_vars(loop.body), {loop.var: as_expr(value)})


def tile_transposing_loops(stmt: Stmt, side: int) -> Stmt:
    """Tile pairs of loops that read along the outer and write along the inner loop, as a transpose
    does. Loops of their own compute the rows and columns beyond the last whole tiles.

    side   the side of the square tiles; 1 for no tiling
    """
    if (
        side > 1
        and isinstance(stmt, For)
        and isinstance(stmt.body, For)
        and _is_transposing_loop_pair(stmt, stmt.body, side)
    ):
        return _square_tiles_and_remainder_loops(stmt, stmt.body, side)
    return rebuild_stmt(stmt, lambda s: tile_transposing_loops(s, side))


def _square_tiles_and_remainder_loops(outer: For, inner: For, side: int) -> Stmt:
    """Return two nested loops of constant bounds as loops over whole square tiles, followed by
    loops over the remaining rows and columns.
    """
    ranges = {loop: constant_unit_step_range(loop) for loop in (outer, inner)}
    ends = {loop: as_expr(values.start + len(values) // side * side) for loop, values in ranges.items()}
    tiles = [(loop, Var(f"{loop.var.name}_tile")) for loop in (inner, outer)]
    body = inner.body
    for loop, tile in tiles:
        body = replace(loop, begin=tile, end=tile + side, body=body)
    for loop, tile in tiles:
        body = replace(loop, var=tile, end=ends[loop], body=body, step=side)
    columns = replace(outer, end=ends[outer], body=replace(inner, begin=ends[inner]))
    rows = replace(outer, begin=ends[outer])
    remainders = [nest for nest, loop in ((columns, inner), (rows, outer)) if len(ranges[loop]) % side]
    return Block((body, *map(rename_declared_vars, remainders)))


def _is_transposing_loop_pair(outer: For, inner: For, side: int) -> bool:
    """Return True if two loops read contiguously along the outer and write contiguously along the
    inner loop.

    Loops shorter than two tiles do not count.
    """
    body = straight_line_stmts(inner)
    short = min(len(constant_unit_step_range(outer)), len(constant_unit_step_range(inner))) < 2 * side
    if body is None or short or {inner.kind, outer.kind} != {"independent"}:
        return False
    stores = [linear_form(s.index, {}).coefficient(inner.var) for s in body if isinstance(s, Store)]
    return stores == [1] and any(
        form.coefficient(outer.var) == 1 and (form.coefficient(inner.var) or 0) >= side
        for form in (linear_form(load.index, {}) for s in body for load in direct_loads(s))
    )


def unroll_loops_bounding_inner_loops(stmt: Stmt) -> Stmt:
    """Unroll short loops whose variable is used in the bounds of an inner loop, so that these
    bounds become constants.
    """
    stmt = rebuild_stmt(stmt, unroll_loops_bounding_inner_loops)
    values = constant_unit_step_range(stmt)
    if not isinstance(stmt, For) or not 0 < len(values) <= _MAX_UNROLLED_ITERATIONS:
        return stmt
    inner = [s for s in walk_stmts(stmt.body) if isinstance(s, For)]
    bounded = any(stmt.var in vars_and_buffers_in(e) for s in inner for e in (s.begin, s.end))
    if not bounded or _expr_node_count(stmt) * len(values) > _MAX_ADDED_NODES:
        return stmt
    return Block(simplify_stmt(copy, {}) for copy in unrolled_iterations(stmt))


def hoist_costly_loop_invariants(stmt: Stmt) -> Stmt:
    """Hoist costly loop-invariant expressions (calls, divisions) out of innermost loops."""
    if not isinstance(stmt, For) or straight_line_stmts(stmt) is None or not constant_unit_step_range(stmt):
        return rebuild_stmt(stmt, hoist_costly_loop_invariants)
    changing, hoisted_vars = modified_vars_and_buffers(stmt), dict[Expr, Expr]()
    fresh = map_exprs(stmt.body, lambda e: _replace_costly_invariants_by_registers(e, changing, hoisted_vars))
    if not hoisted_vars:
        return stmt
    registers = [Declare(var, value) for value, var in hoisted_vars.items() if isinstance(var, Var)]
    return Block((*registers, replace(stmt, body=fresh)))


def _replace_costly_invariants_by_registers(
    expr: Expr, changing_vars_and_buffers: set[Var | Buffer], register_of_expr: dict[Expr, Expr]
) -> Expr:
    """Return `expr` with costly invariant parts replaced by registers; the replacements are added
    to `register_of_expr`.
    """
    if isinstance(expr, Select):  # an operand that is not selected might not be evaluated
        cond = _replace_costly_invariants_by_registers(expr.cond, changing_vars_and_buffers, register_of_expr)
        return with_operands(expr, (cond, expr.a, expr.b))
    if isinstance(expr, Call) or (isinstance(expr, Binary) and expr.op == "div"):
        parts = set(vars_and_buffers_in(expr))
        if changing_vars_and_buffers.isdisjoint(parts):
            return register_of_expr.setdefault(expr, Var("hoisted", expr.dtype, expr.lanes)) if parts else expr
    return with_operands(
        expr,
        tuple(
            _replace_costly_invariants_by_registers(o, changing_vars_and_buffers, register_of_expr)
            for o in operands(expr)
        ),
    )


def optimize_loop_nests(stmt: Stmt, budget: Budget = DEFAULT_BUDGET) -> Stmt:
    """Return a statement with indices simplified, loops merged, split at conditions (within the
    budget), transposes tiled and loop invariants hoisted.
    """
    stmt = merge_nested_loops_into_flat_loop(simplify_stmt(stmt, {}))
    stmt = unroll_loops_bounding_inner_loops(simplify_stmt(split_loops_at_condition_changes(stmt, {}, budget), {}))
    stmt = tile_transposing_loops(simplify_stmt(merge_nested_loops_into_flat_loop(stmt), {}), budget.transposed)
    return hoist_costly_loop_invariants(stmt)
