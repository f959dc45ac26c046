# SPDX-License-Identifier: Apache-2.0
"""Generate the loops over the tiles of an output, for register tiles and for calls of memory
micro-kernels.

    loops_over_tiles([rows, columns], {rows: copy_row}, body)
    # for row: { copy_row; for tile of columns: body; body of the smaller last tile }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from aotc.ir import frozen
from aotc.tir import Expr, Stmt, Var, as_expr, minimum
from aotc.tir.schedule.contraction.operand_staging import CopyFn
from aotc.tir.schedule.contraction.tile_segments import TileAxis, TileSegment, tiles_of_run_time_extent
from aotc.tir.stmt import Block, If, forall


@frozen(eq=False)
class OutputTile:
    """A tile of the output.

    starts     its first position along each axis
    segments   the segment of each axis that the tile belongs to
    """

    starts: Mapping[TileAxis, Expr]
    segments: Mapping[TileAxis, TileSegment]

    def axis_values(self) -> dict[Var, Expr]:
        """Return the values of the output axes at the first position of the tile."""
        return {axis.var: start for axis, start in self.starts.items()}

    def operand_var_values(self) -> dict[Var, Expr]:
        """Return the values of the operands' variables at the first position of the tile."""
        return operand_var_values_at_start(self.starts)

    def count_along(self, axis: TileAxis) -> Expr:
        """Return the number of positions of the tile along an axis."""
        segment = self.segments[axis]
        size = as_expr(segment.size)
        return minimum(size, axis.extent - self.starts[axis]) if segment.clip else size


#: Function that returns the statements of a tile.
TileBody: TypeAlias = Callable[[OutputTile], Stmt]


def operand_var_values_at_start(start_positions: Mapping[TileAxis, Expr]) -> dict[Var, Expr]:
    """Return the values of the operands' variables at the first position of a tile."""
    return {
        var: value for axis, base in start_positions.items() for var, value in axis.operand_var_values(base, 0).items()
    }


def loops_over_tiles(levels: Sequence[TileAxis], copies: Mapping[TileAxis | None, CopyFn], body: TileBody) -> Stmt:
    """Return the loops over the tiles of some axes, around the statements of each tile.

    levels   the axes, outermost loop first
    copies   statements at the beginning of the loop over an axis's tiles; None: before all loops
    body     the statements of a tile
    """
    nest = _loops_over_remaining_axes(levels, copies, body, OutputTile({}, {}))
    return Block((copies[None]({}), nest)) if None in copies else nest


def _loops_over_remaining_axes(
    levels: Sequence[TileAxis], copies: Mapping[TileAxis | None, CopyFn], body: TileBody, outer: OutputTile
) -> Stmt:
    """Return the loops over the axes that are not yet among those of `outer`, the tile of the outer
    loops.
    """
    if len(outer.starts) == len(levels):
        return body(outer)
    axis = levels[len(outer.starts)]
    if axis.run_time_extent is not None:
        return _loops_over_axis_of_run_time_extent(levels, copies, body, outer, axis.run_time_extent)
    stmts: list[Stmt] = []
    for segment in axis.segments:
        loop = Var(axis.var.name)
        base = as_expr(segment.begin) if segment.count == 1 else segment.begin + loop * segment.size
        tile = OutputTile({**outer.starts, axis: base}, {**outer.segments, axis: segment})
        stmt = _loops_over_remaining_axes(levels, copies, body, tile)
        if axis in copies:
            stmt = Block((copies[axis](tile.operand_var_values()), stmt))
        stmts.append(stmt if segment.count == 1 else forall(loop, segment.count, stmt))
    return Block(stmts) if len(stmts) != 1 else stmts[0]


def _loops_over_axis_of_run_time_extent(
    levels: Sequence[TileAxis],
    copies: Mapping[TileAxis | None, CopyFn],
    body: TileBody,
    outer: OutputTile,
    extent: Expr,
) -> Stmt:
    """Return the loops over the next axis, whose extent is known at run time only, and inner axes."""
    axis = levels[len(outer.starts)]
    stmts: list[Stmt] = []
    if axis.part is not None and axis.max_tile_elements == 1:
        loop, (first, end) = Var(axis.var.name), axis.part
        tile = OutputTile({**outer.starts, axis: loop - first}, {**outer.segments, axis: TileSegment(0, 1, 1, (0,))})
        stmt = _loops_over_remaining_axes(levels, copies, body, tile)
        if axis in copies:
            stmt = Block((copies[axis](tile.operand_var_values()), stmt))
        return forall(loop, end, stmt, begin=first)
    for tiles in tiles_of_run_time_extent(extent, max(segment.size for segment in axis.segments)):
        loop = Var(axis.var.name)
        base = tiles.begin if tiles.count is None else tiles.begin + loop * tiles.size
        base = base if tiles.end is None else loop
        segment = TileSegment(0, 1, tiles.size, tuple(range(tiles.size)))
        tile = OutputTile({**outer.starts, axis: base}, {**outer.segments, axis: segment})
        stmt = _loops_over_remaining_axes(levels, copies, body, tile)
        if axis in copies:
            stmt = Block((copies[axis](tile.operand_var_values()), stmt))
        if tiles.count is not None:
            stmt = forall(loop, tiles.count, stmt)
        elif tiles.end is not None:
            stmt = forall(loop, tiles.end, stmt, begin=tiles.begin, step=tiles.size)
        stmts.append(stmt if tiles.condition is None else If(tiles.condition, stmt))
    return Block(stmts) if len(stmts) != 1 else stmts[0]
