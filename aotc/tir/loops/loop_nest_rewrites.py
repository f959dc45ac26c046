# SPDX-License-Identifier: Apache-2.0
"""Loop nest rewrites (merging, splitting, unrolling, tiling, hoisting), each from a statement to an
equivalent statement.

for i in 0..4: for j in 0..8: y[i * 8 + j] = x[i * 8 + j]     ->  for i in 0..32: y[i] = x[i]     merge_loops
for i in 0..9: y[i] = i < 2 ? 0 : x[i - 2]                    ->  a loop to 2, one from 2 to 9     split_loops
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aotc.tir import Budget, as_expr, mentioned, operands, refreshed, stmt_exprs, substituted, walk_stmts, with_operands
from aotc.tir.expr import BOOL, INDEX, Binary, Buffer, Call, Expr, Load, Select, Unary, Var, binary, const, walk
from aotc.tir.loops.loop_dependence import counted, extent_of, loads, straight_line
from aotc.tir.simplify import Ranges, half_space, linear, simplify_stmt
from aotc.tir.stmt import (
    Block,
    Declare,
    For,
    If,
    Stmt,
    Store,
    changed,
    forall,
    map_exprs,
    nodes,
    rebuilt,
    stmt_children,
)

#: Largest number of pieces that one loop is split into.
_SEGMENT_LIMIT: Final = 128
#: Number of pieces from which a loop is split by halves: each half simplifies its body before it is
#: split further.
_MANY: Final = 8
_GROWTH: Final = 4
#: Splitting may multiply the number of nodes by _GROWTH, and add _GROWTH_FREE.
_GROWTH_FREE: Final = 200

#: Largest number of nodes outside of conditional statements that are duplicated when a loop is
#: split.
_REPEATED: Final = 2000

#: Budget if no target gives one.
COMMON: Final = Budget()
_UNROLL: Final = 4


def literal(loop: Stmt) -> range:
    """Return the values of a loop variable if the loop has constant bounds and step 1; an empty
    range for other statements.
    """
    return counted(loop) if isinstance(loop, For) and loop.step == 1 else range(0)


def merge_loops(stmt: Stmt) -> Stmt:
    """Merge perfectly nested loops whose body depends on the flat index i * extent + j only."""
    stmt = rebuilt(stmt, merge_loops)
    if isinstance(stmt, For) and isinstance(stmt.body, For):
        outer, inner = literal(stmt), literal(stmt.body)
        if outer and inner and inner.start == 0 and _flat_only(stmt, stmt.body, inner.stop):
            flat = Var(stmt.var.name)
            mapping: dict[Var, Expr] = {stmt.var: as_expr(0), stmt.body.var: flat}
            kinds = {loop.kind for loop in (stmt, stmt.body) if extent_of(loop) > 1}
            kind = kinds.pop() if len(kinds) == 1 else "serial"
            body = substituted(stmt.body.body, mapping)
            return For(flat, outer.stop * inner.stop, body, begin=outer.start * inner.stop, kind=kind)
    return stmt


def _flat_only(outer: For, inner: For, extent: int) -> bool:
    """Return True if the body of two nested loops depends on their variables through the flat index
    only.
    """
    exprs = (e for s in walk_stmts(inner.body) for e in stmt_exprs(s))
    return all(_keeps_value(e, outer.var, inner.var, extent) for e in exprs)


def _keeps_value(expr: Expr, i: Var, j: Var, extent: int) -> bool:
    """Return True if `expr` depends on the variables i and j through i * extent + j only."""
    if expr.dtype != INDEX or expr.lanes != 1:
        return all(_keeps_value(o, i, j, extent) for o in operands(expr))
    form = linear(expr, {})
    if form.terms.get(i, 0) != extent * form.terms.get(j, 0):
        return False
    return all(_keeps_value(o, i, j, extent) for atom in form.terms for o in operands(atom))


@dataclass(slots=True)
class _Room:
    """Budget left for splitting the loops of one nest.

    pieces   number of loop pieces that may be added
    nodes    number of expression nodes that may be added
    """

    pieces: int
    nodes: int

    def takes(self, pieces: int, nodes: int) -> bool:
        """Subtract a number of pieces and nodes from the budget if they fit; return True if they
        did.
        """
        fits = pieces <= self.pieces and nodes <= self.nodes
        if fits:
            self.pieces, self.nodes = self.pieces - pieces, self.nodes - nodes
        return fits


def split_loops(stmt: Stmt, ranges: Ranges, budget: Budget = COMMON) -> Stmt:
    """Split loops at the iterations where conditions on their variables change, so that the pieces
    have no such conditions.

    A loop whose pieces would exceed the budget does not change.
    """
    return _split(stmt, ranges, _Room(budget.pieces, budget.piece_nodes))


def _split(stmt: Stmt, ranges: Ranges, room: _Room) -> Stmt:
    if isinstance(stmt, For) and (values := literal(stmt)):
        pieces = _pieces(stmt, values, ranges, room)
        if pieces is not None:
            return Block(_split(p, ranges, room) for p in pieces)
        ranges = {**ranges, stmt.var: (values[0], values[-1])}
    return rebuilt(stmt, lambda s: _split(s, ranges, room))


def _pieces(loop: For, values: range, ranges: Ranges, room: _Room) -> list[Stmt] | None:
    """Return a loop split where conditions in it change; None if no condition changes or the budget
    does not suffice.
    """
    found = set(_cuts(loop, {**ranges, loop.var: (values[0], values[-1])}))
    cuts = sorted(c for c in found if c in values[1:])
    if not cuts or len(cuts) >= min(_SEGMENT_LIMIT, room.pieces):
        return None
    size = _size(loop)
    if len(cuts) * _repeated(loop) > _REPEATED:
        return None
    most = _GROWTH * size + _GROWTH_FREE
    edges = [values.start, *cuts, values.stop]
    bodies = _bodies(loop, edges, ranges, _GROWTH * most)
    if bodies is None:
        return None
    pieces: list[Stmt] = []
    for (begin, end), body in zip(itertools.pairwise(edges), bodies, strict=True):
        piece = refreshed(For(loop.var, end, body, begin=begin, kind=loop.kind))
        pieces.append(simplify_stmt(piece, ranges))
    grown = sum(map(_size, pieces))
    return pieces if grown <= most and room.takes(len(cuts), max(0, grown - size)) else None


def _bodies(loop: For, edges: Sequence[int], ranges: Ranges, most: int) -> list[Stmt] | None:
    """Return the body of each piece of a loop that is split; None if all bodies together exceed
    `most` nodes.

    If there are many pieces, the bodies are simplified while the range is bisected, since most of
    hundreds of conditions are decided long before a single piece is left. For few pieces the bodies
    are not simplified.
    """
    if len(edges) <= _MANY + 1:
        return [loop.body] * (len(edges) - 1)
    found: list[Stmt] = []
    pending, size = [(edges, loop.body)], _size(loop.body)
    while pending and size <= most:
        among, body = pending.pop()
        if len(among) == 2:
            found.append(body)
            continue
        middle = len(among) // 2
        size -= _size(body)
        for half in (among[middle:], among[: middle + 1]):
            narrowed = simplify_stmt(body, {**ranges, loop.var: (half[0], half[-1] - 1)})
            pending.append((half, narrowed))
            size += _size(narrowed)
    return None if pending else found


def _size(stmt: Stmt) -> int:
    """Return the number of statements and expression nodes of a statement."""
    return sum(1 for _ in nodes(stmt))


def _repeated(loop: For) -> int:
    """Return the number of nodes outside of conditional statements, which every piece would repeat;
    0 without conditional statements.
    """
    conditional = 0
    pending = [loop.body]
    while pending:
        stmt = pending.pop()
        if isinstance(stmt, If):
            conditional += _size(stmt)
        else:
            pending.extend(stmt_children(stmt))
    return _size(loop) - conditional if conditional else 0


def _cuts(loop: For, ranges: Ranges) -> Iterator[int]:
    """Yield the values of a loop variable at which a condition in the loop body changes."""
    conditions = (part for part in (*walk_stmts(loop.body), *nodes(loop.body)) if isinstance(part, (If, Select)))
    for part in conditions:
        yield from _cuts_of(part.cond, loop.var, ranges)


def _cuts_of(cond: Expr, var: Var, ranges: Ranges) -> Iterator[int]:
    """Yield the values of a variable at which the truth of a condition changes."""
    match cond:
        case Binary(op="and" | "or") | Unary(op="not") if cond.dtype == BOOL:
            for operand in operands(cond):
                yield from _cuts_of(operand, var, ranges)
        case Binary(op="eq" | "ne") if cond.a.dtype == INDEX:
            form = linear(cond.a - cond.b, ranges)
            factor = form.terms.get(var, 0)
            if factor in (1, -1) and len(form.terms) == 1:
                yield -form.const * factor
                yield -form.const * factor + 1
        case _:
            half = half_space(cond, ranges)
            factor = 0 if half is None or len(half.terms) != 1 else half.terms.get(var, 0)
            if half is not None and factor:
                yield -(half.const // factor) if factor > 0 else half.const // -factor + 1


def copied(source: Buffer, target: Buffer) -> Stmt:
    """Return a loop that copies the whole buffer `source` to `target`."""
    i = Var("i")
    return forall(i, target.size, Store(target, i, Load(source, i)))


def filled(buffer: Buffer, value: int = 0) -> Stmt:
    """Return a loop that fills a buffer with a number."""
    i = Var("i")
    return forall(i, buffer.size, Store(buffer, i, const(value, buffer.dtype)))


def iterations(loop: For) -> Iterator[Stmt]:
    """Yield the body of each iteration of a loop, in order; nothing if its bounds are not
    constants.
    """
    for value in counted(loop):
        yield substituted(refreshed(loop.body), {loop.var: as_expr(value)})


def tile_transposes(stmt: Stmt, side: int) -> Stmt:
    """Tile pairs of loops that read along the outer and write along the inner loop, as a transpose
    does.

    side   the side of the square tiles; 1 for no tiling
    """
    if side > 1 and isinstance(stmt, For) and isinstance(stmt.body, For) and _crosses(stmt, stmt.body, side):
        outer, inner = stmt, stmt.body
        tiles = [(loop, Var(f"{loop.var.name}_tile")) for loop in (inner, outer)]
        body = inner.body
        for loop, tile in tiles:
            body = replace(loop, begin=tile, end=binary("min", tile + side, loop.end), body=body)
        for loop, tile in tiles:
            body = replace(loop, var=tile, body=body, step=side)
        return body
    return rebuilt(stmt, lambda s: tile_transposes(s, side))


def _crosses(outer: For, inner: For, side: int) -> bool:
    """Return True if two loops read contiguously along the outer and write contiguously along the
    inner loop.

    Loops shorter than two tiles do not count.
    """
    body = straight_line(inner)
    short = min(len(literal(outer)), len(literal(inner))) < 2 * side
    if body is None or short or {inner.kind, outer.kind} != {"independent"}:
        return False
    stores = [linear(s.index, {}).coefficient(inner.var) for s in body if isinstance(s, Store)]
    return stores == [1] and any(
        form.coefficient(outer.var) == 1 and (form.coefficient(inner.var) or 0) >= side
        for form in (linear(load.index, {}) for s in body for load in loads(s))
    )


def unroll_bounds(stmt: Stmt) -> Stmt:
    """Unroll short loops whose variable is used in the bounds of an inner loop, so that these
    bounds become constants.
    """
    stmt = rebuilt(stmt, unroll_bounds)
    values = literal(stmt)
    if not isinstance(stmt, For) or not 0 < len(values) <= _UNROLL:
        return stmt
    inner = [s for s in walk_stmts(stmt.body) if isinstance(s, For)]
    bounded = any(stmt.var in walk(e) for s in inner for e in (s.begin, s.end))
    if not bounded or _size(stmt) * len(values) > _GROWTH_FREE:
        return stmt
    return Block(simplify_stmt(copy, {}) for copy in iterations(stmt))


def hoist_invariants(stmt: Stmt) -> Stmt:
    """Hoist costly loop-invariant expressions (calls, divisions) out of innermost loops."""
    if not isinstance(stmt, For) or straight_line(stmt) is None or not literal(stmt):
        return rebuilt(stmt, hoist_invariants)
    changing, found = changed(stmt), dict[Expr, Expr]()
    fresh = map_exprs(stmt.body, lambda e: _without_invariants(e, changing, found))
    if not found:
        return stmt
    registers = [Declare(var, value) for value, var in found.items() if isinstance(var, Var)]
    return Block((*registers, replace(stmt, body=fresh)))


def _without_invariants(expr: Expr, changing: set[Var | Buffer], found: dict[Expr, Expr]) -> Expr:
    """Return `expr` with costly invariant parts replaced by registers; the replacements are added
    to `found`.
    """
    if isinstance(expr, Select):  # an operand that is not selected might not be evaluated
        cond = _without_invariants(expr.cond, changing, found)
        return with_operands(expr, (cond, expr.a, expr.b))
    if isinstance(expr, Call) or (isinstance(expr, Binary) and expr.op == "div"):
        parts = set(mentioned(expr))
        if changing.isdisjoint(parts):
            return found.setdefault(expr, Var("hoisted", expr.dtype, expr.lanes)) if parts else expr
    return with_operands(expr, tuple(_without_invariants(o, changing, found) for o in operands(expr)))


def optimized(stmt: Stmt, budget: Budget = COMMON) -> Stmt:
    """Return a statement with indices simplified, loops merged, split at conditions (within the
    budget), transposes tiled and loop invariants hoisted.
    """
    stmt = merge_loops(simplify_stmt(stmt, {}))
    stmt = unroll_bounds(simplify_stmt(split_loops(stmt, {}, budget), {}))
    stmt = tile_transposes(simplify_stmt(merge_loops(stmt), {}), budget.transposed)
    return hoist_invariants(stmt)
