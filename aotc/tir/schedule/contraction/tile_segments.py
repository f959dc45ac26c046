# SPDX-License-Identifier: Apache-2.0
"""Split an output axis into segments of tiles of equal size.

    tiles_with_smaller_last(20, 8)   # two tiles of 8 from 0 on, one of 4 from 16 on
    tiles_of_vectors(20, 1, 8, may_exceed_axis=False, merges_last_tile=False)
                                     # two vectors of 8 from 0 on, one from 12 on: it overlaps the second

Sizes are constants, as the code of a tile is unrolled; the number of tiles becomes the trip count
of a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Final

from aotc.ir import frozen
from aotc.tir import Const, Expr, Var, all_of, as_expr, maximum, minimum, select, te
from aotc.tir.schedule.contraction.contraction_index_analysis import OperandDimension
from aotc.tir.simplify import simplify

#: Largest number of positions of a tile along an axis whose extent is known at run time only. It is small,
#: because there is separate code for the tiles of each smaller number of positions.
MAX_RUN_TIME_TILE_POSITIONS: Final = 6
#: The same for tiles with one vector of weights, which have half as much code for each position, and need more of them
#: to hide the latency of multiply-adds.
MAX_RUN_TIME_POSITIONS_OF_ONE_VECTOR: Final = 8


@frozen
class TileSegment:
    """`count` consecutive tiles of equal shape from position `begin` on, `size` positions each.

    starts   offsets in a tile of the computed positions, or of the first elements of vectors
    clip     True if the last tile of the segment extends beyond the axis
    """

    begin: int
    count: int
    size: int
    starts: tuple[int, ...]
    clip: bool = False

    @property
    def elements_overlapping_previous_tile(self) -> int:
        """Number of elements before the first position of a tile, if a vector overlaps the previous
        tile.
        """
        return -min(0, *self.starts)


@frozen(eq=False)
class TileAxis:
    """An output axis split into tiles.

    role    "outer" (one position at a time), "x" (axis of the vector operand) or "y" (axis of the
            broadcast operand)
    lanes   elements of a vector; 1 if positions are computed one by one
    split   (tile, lane, size) if the operands address a position as tile * size + lane instead of
            `var`
    run_time_extent   the extent of a run, if it is known at run time only; `extent` is a typical one then,
            and `segments`, of which one has the largest tiles, are those of the typical extent
    part    for an axis of run-time extent that is part of a longer axis: the positions there at which it begins
            and ends. The loop over an axis that is not tiled then counts positions of the longer axis
    """

    var: Var
    extent: int
    segments: tuple[TileSegment, ...]
    role: str = "outer"
    lanes: int = 1
    split: tuple[Var, Var, int] | None = None
    run_time_extent: Expr | None = None
    part: tuple[Expr, Expr] | None = None

    def operand_var_values(self, tile_start: Expr, offset: int) -> dict[Var, Expr]:
        """Return the values of the operands' variables at position base + offset of an output axis."""
        if self.split is None:
            return {self.var: tile_start + offset}
        tile, lane, size = self.split
        # a tile at a constant position may begin within a block
        within = tile_start.value % size if isinstance(tile_start, Const) else 0
        return {tile: simplify(tile_start // size, {}), lane: as_expr(within + offset)}

    @property
    def operand_vars_addressing_axis(self) -> frozenset[Var]:
        """The variables by which the operands address a position of this axis."""
        return frozenset((self.var,) if self.split is None else self.split[:2])

    @property
    def max_tile_elements(self) -> int:
        """Number of elements that the widest tile of this axis computes."""
        return max(s.starts[-1] + self.lanes + s.elements_overlapping_previous_tile for s in self.segments)

    @property
    def tile_count_of_all_segments(self) -> int:
        """Number of tiles of all segments, which is the number of iterations of the loops over
        them.
        """
        return sum(s.count for s in self.segments)


def untiled_axis(
    var: Var, extent: int, run_time_extent: Expr | None = None, part: tuple[Expr, Expr] | None = None
) -> TileAxis:
    """Return an output axis that is not tiled: its loop runs position by position."""
    return TileAxis(var, extent, (TileSegment(0, extent, 1, (0,)),), run_time_extent=run_time_extent, part=part)


def whole_tiles(extent: int, tile_size: int) -> TileSegment:
    """Return the tiles of `tile_size` positions that cover an extent; the last one may exceed it."""
    return TileSegment(0, -(-extent // tile_size), tile_size, tuple(range(tile_size)))


@frozen
class RunTimeTiles:
    """Tiles of `size` positions along an axis, from position `begin` on.

    count      number of tiles, known at run time only
    end        position at which the tiles end, or a lesser one after the beginning of the last tile; given in place
               of `count` where both ends depend on the extent
    condition  where the tiles exist; None if `count` or `end` says it. With neither of them, there is one tile
    """

    begin: Expr
    size: int
    count: Expr | None = None
    end: Expr | None = None
    condition: Expr | None = None


def tiles_of_run_time_extent(extent: Expr, tile_size: int) -> list[RunTimeTiles]:
    """Return the tiles of an extent that is known at run time only: as many of `tile_size` positions as fit, and
    smaller ones, with one item for each size.

    A remainder is joined to the last of these tiles, and both are divided anew into two tiles whose sizes
    differ by 1 at most, as small tiles take longer for each position: for tiles of 8, an extent of 19 is
    8 + 6 + 5. A remainder of `tile_size - 1` positions, or of an extent below `tile_size`, is one tile.
    """
    if tile_size == 1:
        return [RunTimeTiles(as_expr(0), 1, extent)]
    quotient, rest = extent // tile_size, extent % tile_size
    # the last tile is divided unless nothing or one position less than a tile remains
    whole = quotient - minimum(minimum(rest, 1), tile_size - 1 - rest)
    tiles = [RunTimeTiles(as_expr(0), tile_size, whole)]
    is_divided = all_of(extent >= tile_size, rest >= 1, rest < tile_size - 1)
    last_whole = extent - rest  # where the tiles of `tile_size` positions end that fit
    middle = last_whole - (tile_size - rest) // 2  # where the second of two tiles begins
    for size in range(1, tile_size):
        is_first, is_second = (((tile_size + rest + k) // 2).equal(size) for k in (1, 0))
        if 2 * size < tile_size:
            tiles.append(RunTimeTiles(as_expr(0), size, condition=all_of(extent >= size, extent <= size)))
            continue
        begin = select(is_divided, select(is_first, last_whole - tile_size, middle), last_whole)
        end = select(is_divided, select(is_second, extent, middle), select(rest.equal(size), extent, last_whole))
        # the outer limits say for any proof that tiles are within the extent
        tiles.append(RunTimeTiles(maximum(begin, 0), size, end=minimum(end, extent - (size - 1))))
    return tiles


def tiles_with_smaller_last(extent: int, tile_size: int) -> tuple[TileSegment, ...]:
    """Split an extent into tiles of `tile_size` positions, and a smaller last tile if positions
    remain.
    """
    return tiles_of_vectors(extent, tile_size, 1, may_exceed_axis=True, merges_last_tile=False)


def evenly_sized_tiles(extent: int, max_tile_size: int) -> tuple[TileSegment, ...]:
    """Split an extent into tiles of at most `max_tile_size` positions, with sizes as equal as one
    smaller last tile permits.
    """
    return tiles_with_smaller_last(extent, -(-extent // -(-extent // max_tile_size)))


def even_tiles_grouped_by_border_signature(
    extent: int, max_tile_size: int, signature: BorderSignature
) -> tuple[TileSegment, ...]:
    """Split an output axis into even tiles; adjacent tiles form one segment if their border
    signatures are equal.
    """
    marked_segments: list[tuple[object, TileSegment]] = []
    changes = signature.positions_where_signature_may_change()
    for segment in evenly_sized_tiles(extent, max_tile_size):
        tiles = {(at - segment.begin) // segment.size for at in changes}
        edges = sorted({0, segment.count, *(k for t in tiles for k in (t, t + 1) if 0 < k < segment.count)})
        for k, end in pairwise(edges):
            begin, count = segment.begin + k * segment.size, end - k
            mark = tuple(signature.is_data_in_range_at_each_tap(begin + s) for s in segment.starts)
            if marked_segments and marked_segments[-1][0] == mark:
                last = marked_segments.pop()[1]
                begin, count = last.begin, last.count + count
            marked_segments.append((mark, replace(segment, begin=begin, count=count)))
    return tuple(segment for _, segment in marked_segments)


def tiles_of_vectors(
    extent: int, vectors: int, lanes: int, may_exceed_axis: bool, merges_last_tile: bool
) -> tuple[TileSegment, ...]:
    """Split an extent into tiles of `vectors` vectors of `lanes` elements.

    The last vector of the axis may extend beyond it if operands are `may_exceed_axis`; if not, it
    overlaps the previous vector, and only its new elements are stored. With `merges_last_tile`, a
    last tile of as many vectors as the others is an iteration of their loop (less code, but the
    loops of the stores no longer have a constant length).
    """
    size = vectors * lanes
    count, left = divmod(extent, size)
    starts = tuple(range(0, size, lanes))
    last = tuple(range(0, left, lanes))
    if merges_last_tile and left and may_exceed_axis and len(last) == vectors:
        return (TileSegment(0, count + 1, size, starts, clip=True),)
    segments = [TileSegment(0, count, size, starts)] if count else []
    if left:
        if not may_exceed_axis:
            last = (*last[:-1], left - lanes)
        segments.append(TileSegment(count * size, 1, left, last))
    return tuple(segments)


@frozen
class BorderSignature:
    """Classifies positions of an output axis by the kernel offsets (taps) at which the data is in
    range.

    dims   dimensions of the data that depend on `axis`
    axis   the axis
    taps   reduction axes that the borders depend on
    """

    dims: tuple[OperandDimension, ...]
    axis: Var
    taps: tuple[te.Axis, ...]

    @classmethod
    def signature_for_axis(
        cls, dims: Sequence[OperandDimension], axis: Var, taps: Sequence[te.Axis]
    ) -> BorderSignature:
        """Return the signature of positions of `axis` for the dimensions in `dims` that depend on
        it.
        """
        return cls(tuple(dim for dim in dims if axis in dim.variables_of_index), axis, tuple(taps))

    def _var_values_at_taps(self, position: int) -> Iterator[dict[Expr, int]]:
        """Yield the values of the variables at an output position, for each combination of kernel
        offsets (taps).
        """
        for values in product(*([(var, k) for k in range(extent)] for var, extent in self.taps)):
            yield {self.axis: position, **dict(values)}

    def is_data_in_range_at_each_tap(self, position: int) -> tuple[bool, ...]:
        """Return, for each combination of kernel offsets (taps), True if the data at an output
        position is in range.
        """
        return tuple(all(dim.is_index_in_range(at) for dim in self.dims) for at in self._var_values_at_taps(position))

    def positions_where_signature_may_change(self) -> set[int]:
        """Return the output positions whose border signature may differ from that of the previous
        position.
        """
        positions = set()
        for dim in self.dims:
            step = dim.index.terms[self.axis]
            first, last = (0, dim.extent) if step > 0 else (-1, dim.extent - 1)
            # the first positions whose index is at least `first`, and at least `last`
            for at in self._var_values_at_taps(0):
                positions |= {-((dim.index_value(at) - end) // step) for end in (first, last)}
        return positions
