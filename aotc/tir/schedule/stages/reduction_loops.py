# SPDX-License-Identifier: Apache-2.0
"""Loop nests of reductions: from a stage whose anchor is a te.Reduce, a statement.

Five shapes, chosen by the number of elements that are combined and by the axis that is contiguous
in memory:

    window     a few elements:              for j: acc = x[j]; acc += x[j + 1]; ...; y[j] = acc
    rows       the last output axis:    for k: for j: row[j] += x[k, j]        a row of accumulators, or a few rows
                                                                               of them for parts of many k
    partial    a reduction axis:        for k by 16: for l in 0..16: part[l] += x[i, k + l]
    scalar     neither:                 for k: acc += x[...]
    threads    long, on a device:       for l in 0..256: for k from l by 256: part[l] += x[i, k]        (`by_threads`)

Partial results combine elements a fixed distance apart. Left-over elements go to the first partial
results or, where elements may be combined twice (min, max, and, or), a whole number of vectors
begins earlier. Then halves are combined until one result is left. The order is fixed by the
program, whatever it is compiled to. Minima and maxima do not depend on it, except for zeros of
different signs, of which either may be the result.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import (
    Buffer,
    Expr,
    Load,
    Operand,
    Threads,
    Var,
    as_expr,
    binary,
    const,
    linear,
    minimum,
    refreshed,
    substitute,
    substituted,
    te,
)
from aotc.tir.loops.loop_dependence import loads, straight_line, written
from aotc.tir.loops.loop_nest_rewrites import iterations, literal, merge_loops
from aotc.tir.schedule.stages.gpu_reduction import Long, in_pieces
from aotc.tir.schedule.stages.kernel_builder import KernelBuilder
from aotc.tir.schedule.stages.stage_grouping import ROW, Stage
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, Store, forall, loops, rebuilt, walk_stmts

COMBINE: Final = {"sum": "add", "prod": "mul", "min": "min", "max": "max", "and": "and", "or": "or"}
#: Least number of results of a row whose accumulators are updated together, if neighbors read up to
#: _ROW_STRIDE apart.
_ROW_STRIDED: Final = 4
_ROW_STRIDE: Final = 4
#: Largest number of elements of a reduction that is unrolled; fewer if borders multiply the code.
_WINDOW: Final = 32
_WINDOW_GUARDED: Final = 9
#: Partial accumulators on targets without vectors: enough to hide the latency of an addition.
_SCALAR_LANES: Final = 4
#: Partial accumulators on every `ordered` target.
ORDERED_LANES: Final = 8


def identity(combiner: str, dtype: DType) -> Expr:
    """Return the identity element of a combiner, which is the result of a reduction over no
    elements.
    """
    every_bit = -1 if dtype.is_integer and dtype.is_signed else dtype.max
    found = {"sum": 0, "or": 0, "prod": 1, "and": every_bit, "min": dtype.highest, "max": dtype.lowest}
    return const(found[combiner], dtype)


@frozen
class _Reduction:
    """The parts of a reduction: `acc` is set to `start`, `update` runs the reduction loops,
    `finish` uses the result.
    """

    builder: KernelBuilder
    op: str
    acc: Var
    start: Expr
    update: Stmt
    finish: tuple[Stmt, ...]


def reduce_nest(builder: KernelBuilder, stage: Stage, anchor: te.Reduce, depth: int) -> Stmt:
    """Return the loop nest of a reduction stage inside its outer `depth` loops."""
    acc = Var(anchor.name, anchor.dtype)
    start = identity(anchor.combiner, anchor.dtype)
    scalar = Block((Declare(acc, start), _update(builder, stage, anchor, acc), builder.finish(stage, acc)))
    free: list[tuple[Var, int]] = []
    nest = merge_loops(_without_units(stage.axes[depth:], scalar, "independent"))
    while isinstance(nest, For):
        free.append((nest.var, literal(nest).stop))
        nest = nest.body
    if not isinstance(nest, Block):
        raise AssertionError("a reduction is a block")
    parts = _Reduction(builder, COMBINE[anchor.combiner], acc, start, nest.stmts[1], nest.stmts[2:])
    return _shaped(parts, free, nest, depth, stage.axes)


def _update(builder: KernelBuilder, stage: Stage, anchor: te.Reduce, acc: Var) -> Stmt:
    """Return the loops over the reduction axes, with the axis of the smallest stride innermost."""
    body = builder.body(stage)
    value = body.expr(anchor.body, {})
    update: Stmt = Block((*body.statements, Assign(acc, binary(COMBINE[anchor.combiner], acc, value))))
    if anchor.guard is not None:
        outer = builder.body(stage)
        guard = outer.expr(anchor.guard, {})
        update = Block((*outer.statements, If(guard, update)))
    axes = sorted(anchor.reduce_axes, key=lambda axis: -(_stride(update, axis[0]) or 0))
    nest = merge_loops(_without_units(axes, update, "reduction"))
    # without iterations there still is one statement for the loops, so that the parts can be
    # distinguished
    return nest if isinstance(nest, For) else If(const(True, "bool"), nest)


def _without_units(axes: Sequence[te.Axis], body: Stmt, kind: str) -> Stmt:
    """Return loops over axes, without axes of one element, which would hide contiguous memory."""
    units: dict[Var, Expr] = {var: as_expr(0) for var, extent in axes if extent == 1}
    kept = [axis for axis in axes if axis[0] not in units]
    return loops(kept, substituted(body, units) if units else body, kind)


def _stride(stmt: Stmt, var: Var) -> int | None:
    """Return the largest distance in memory between the loads of successive iterations; None if it
    varies.
    """
    found = [linear(load.index, {}).coefficient(var) for s in walk_stmts(stmt) for load in loads(s)]
    return None if None in found else max((abs(factor or 0) for factor in found), default=0)


def _shaped(
    parts: _Reduction, free: Sequence[tuple[Var, int]], scalar: Stmt, depth: int, axes: Sequence[te.Axis]
) -> Stmt:
    """Return the loop nest of a reduction, vectorized in the way that suits its sizes and strides."""
    builder, dtype = parts.builder, parts.acc.dtype
    lanes = ORDERED_LANES if builder.target.ordered else max(builder.target.lanes(dtype), _SCALAR_LANES)
    row = _stride(parts.update, free[-1][0]) if free and not written(parts.update) else None
    strided = row is not None and row <= _ROW_STRIDE and free[-1][1] >= _ROW_STRIDED
    window = _window(parts.update) if strided else None
    if window is not None:
        return loops(free, Block((Declare(parts.acc, parts.start), *window, *parts.finish)), "independent")
    if (gpu := builder.target.gpu) is not None and builder.target.shares_sums:
        long = Long(parts.op, parts.acc, parts.start, parts.update, Block(parts.finish), free, builder.scratch)
        across = any(extent > 1 and _stride(parts.update, var) == 1 for var, extent in (*free, *axes[:depth])[-1:])
        results = math.prod(extent for _, extent in axes)
        return in_pieces(long, gpu, results, across=across, alone=depth == 0) or loops(free, scalar, "independent")
    if row is not None and row <= 1 and free[-1][1] >= ROW:
        if depth == 0 and (count := _parts_of_long(parts, free)):
            return loops(free[:-1], _in_parts(parts, *free[-1], count), "independent")
        return loops(free[:-1], _rows(parts, *free[-1]), "independent")
    inner = _innermost(parts.update)
    # adding integers one after the other has no latency to hide
    pays = dtype.is_float or builder.target.lanes(dtype) >= _SCALAR_LANES
    if inner is not None and (_stride(inner.body, inner.var) or 2) <= 1 and pays:
        values = literal(inner)
        while not builder.target.ordered and len(values) < 2 * lanes and lanes > _SCALAR_LANES:
            lanes //= 2
        if values.start == 0 and len(values) >= 2 * lanes:
            return loops(free, _partial(parts, inner, len(values), lanes), "independent")
    if strided:
        return loops(free[:-1], _rows(parts, *free[-1]), "independent")
    return loops(free, scalar, "independent")


def _window(update: Stmt) -> list[Stmt] | None:
    """Return the reduction loops fully unrolled; None if there are too many iterations."""
    points, nest = 1, update
    while isinstance(nest, For):
        points, nest = points * len(literal(nest)), nest.body
    kinds = {type(s) for s in walk_stmts(nest)}
    most = _WINDOW_GUARDED if If in kinds else _WINDOW
    if For in kinds or not 0 < points <= most:
        return None
    return _written_out(update)


def _written_out(stmt: Stmt) -> list[Stmt]:
    """Return a statement with its loops fully unrolled."""
    if not isinstance(stmt, For):
        return [stmt]
    return [inner for copy in iterations(stmt) for inner in _written_out(copy)]


def _innermost(stmt: Stmt) -> For | None:
    """Return the innermost loop of a perfect nest if its body has no branches and loops, else None."""
    while isinstance(stmt, For) and isinstance(stmt.body, For):
        stmt = stmt.body
    return stmt if isinstance(stmt, For) and straight_line(stmt) is not None else None


def _parts_of_long(parts: _Reduction, free: Sequence[tuple[Var, int]]) -> int:
    """Return the number of parts into which a long reduction to one row is divided for threads; 0
    for no division.
    """
    target = parts.builder.target
    threads = Threads() if target.ordered else target.threads
    if threads is None:
        return 0
    values = literal(parts.update)
    one = math.prod(extent for _, extent in free[:-1]) == 1 and values.start == 0
    long = one and len(values) >= 4 * threads.parts and len(values) * free[-1][1] >= threads.long
    return threads.parts if long else 0


def _in_parts(parts: _Reduction, var: Var, extent: int, count: int) -> Stmt:
    """Return a row of accumulators for each part of the outermost reduction loop, followed by the
    combination of the rows.
    """
    loop = parts.update
    if not isinstance(loop, For):
        raise AssertionError("a long reduction is a loop")
    part, lane = Var("part"), Var("l")
    kept = parts.builder.scratch(f"{parts.acc.name}_parts", parts.acc.dtype, count * extent, shared=True)
    begin, end = (at * as_expr(loop.end) // count for at in (part, part + 1))
    update = replace(loop, end=end, begin=begin)
    store = Store(kept, part * extent + var, parts.acc)
    rows = forall(part, count, _rows(replace(parts, update=update, finish=(store,)), var, extent))
    total: Expr = Load(kept, lane)
    for k in range(1, count):
        total = binary(parts.op, total, Load(kept, lane + k * extent))
    finish = Block((Declare(parts.acc, total), *parts.finish))
    return Block((rows, forall(lane, extent, _replaced(finish, {var: lane}))))


def _rows(parts: _Reduction, var: Var, extent: int) -> Stmt:
    """Return a reduction with a row of accumulators along an output axis, in tiles if the axis is
    long.
    """
    limit = max(parts.builder.target.budget.row_bytes // parts.acc.dtype.itemsize, 1)
    tile = extent if extent <= limit else _tile(extent, limit)
    row = parts.builder.scratch(f"{parts.acc.name}_row", parts.acc.dtype, tile, private=True)
    outer = Var(var.name)
    width = minimum(tile, extent - outer) if extent % tile else as_expr(tile)
    along = partial(_along, parts.acc, row, var, outer, width)
    init = along(Assign(parts.acc, parts.start))
    update = _inside(parts.update, along)
    return forall(outer, extent, Block((init, update, along(Block(parts.finish)))), step=tile)


def _along(acc: Var, row: Buffer, var: Var, base: Expr, width: Operand, body: Stmt) -> Stmt:
    """Return a loop over `width` values of a variable from `base` on, each with its own accumulator
    in a row.
    """
    lane = Var("l")
    return forall(lane, width, refreshed(_replaced(body, {var: base + lane, acc: Load(row, lane)})))


def _tile(extent: int, limit: int) -> int:
    """Return a tile size for an axis: its largest divisor up to a limit, or the limit itself if all
    divisors are small.
    """
    best = max(d for d in range(1, limit + 1) if extent % d == 0)
    return best if best >= limit // 4 else limit


def _inside(stmt: Stmt, wrap: Callable[[Stmt], Stmt], core: For | None = None) -> Stmt:
    """Apply `wrap` to the body of a perfect loop nest or, if `core` is given, to that loop of the
    nest.
    """
    if isinstance(stmt, For) and stmt is not core:
        return replace(stmt, body=_inside(stmt.body, wrap, core))
    return wrap(stmt)


def _replaced(stmt: Stmt, mapping: dict[Var, Expr]) -> Stmt:
    """Return `stmt` with variables replaced; an assignment to a variable that is now in memory
    becomes a store.
    """
    if isinstance(stmt, Assign) and isinstance(load := mapping.get(stmt.var), Load):
        return Store(load.buffer, load.index, substitute(stmt.value, mapping))
    return rebuilt(stmt, lambda s: _replaced(s, mapping), lambda e: substitute(e, mapping))


def _partial(parts: _Reduction, inner: For, extent: int, lanes: int) -> Stmt:
    """Return a reduction with several accumulators along the contiguous reduction axis, combined in
    pairs at the end.
    """
    width = lanes * (4 if extent >= 8 * lanes else 1)
    buffer = parts.builder.scratch(f"{parts.acc.name}_part", parts.acc.dtype, width, private=True)
    whole, rest = extent - extent % width, extent % width
    if parts.op not in ("add", "mul"):  # min, max, and, or may combine an element twice
        rest = -(-rest // lanes) * lanes

    along = partial(_along, parts.acc, buffer, inner.var)
    chunk = Var(inner.var.name)
    most = For(chunk, whole, along(chunk, width, inner.body), step=width, kind="reduction")
    chunks = Block((most, along(as_expr(extent - rest), rest, inner.body)))
    init = along(chunk, width, Assign(parts.acc, parts.start))
    folds: list[Stmt] = []
    while width > 1:
        width //= 2
        lane = Var("l")
        pair = binary(parts.op, Load(buffer, lane), Load(buffer, lane + width))
        folds.append(forall(lane, width, Store(buffer, lane, pair)))
    declare = Declare(parts.acc, Load(buffer, as_expr(0)))
    return Block((init, _inside(parts.update, lambda _: chunks, inner), *folds, declare, *parts.finish))
