# SPDX-License-Identifier: Apache-2.0
"""CPU tilings of int8 depthwise convolutions with channels last, four kernel offsets (taps) at a
time.

The data of four taps of a kernel column are four vectors of adjacent channels, padded with zero
vectors. Interleaved byte by byte, each quarter of the result is an operand of a dot product of four
bytes. The quarters of an output row, with the padding, are stored in a panel before the row is
computed, so that one loop serves all its tiles. A panel that would fill the L1 cache is stored tile
by tile:

    for 64 channels:
        for row: for column of the data: panel[column] = quarters of 3 rows and zeros, or of the padding
            for 6 columns: for column of the kernel: for k in 0..4:
                acc[k][j] = dot4(acc[k][j], panel[j + column][k], weights[column][k]) ...

The weights are rearranged in this order once for each tile of channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice, product
from typing import Final, TypeAlias

from aotc.ir import frozen
from aotc.tir import (
    BYTES_PER_DOT,
    INT8_DTYPES,
    INT32_VECTOR_LENGTHS,
    Assign,
    Block,
    Buffer,
    Stmt,
    Store,
    all_of,
    as_expr,
    bind_to_new_register,
    te,
)
from aotc.tir.expr import Const, Expr, Load, Var, call, new_private_scratch_buffer, substitute
from aotc.tir.micro_kernels import DOT4, MicroKernel
from aotc.tir.schedule.contraction import tile_segments
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    AddressedOperand,
    ChannelSplit,
    OperandDimension,
    row_major_address,
    variables_of_dimensions,
)
from aotc.tir.schedule.contraction.epilogue import Accumulators
from aotc.tir.schedule.contraction.operand_staging import CopyFn
from aotc.tir.schedule.contraction.register_tiling_types import (
    MultiplyAddStep,
    OutputStores,
    ReductionLoops,
    RegisterTile,
    RegisterTiling,
)
from aotc.tir.schedule.contraction.tile_segments import BorderSignature, TileAxis, TileSegment
from aotc.tir.schedule.contraction.tiling_completion import RegisterTilingCandidate, TilingRequest, feasible_candidates
from aotc.tir.schedule.contraction.tiling_cost import interleaving_cycles, tiling_cycles
from aotc.tir.simplify import LinearForm, Ranges, bounds, simplify
from aotc.tir.stmt import Declare, For, If, loop_nest

#: Numbers of columns of a tile that are tried.
CANDIDATE_TILE_COLUMNS: Final = (7, 6, 5, 4, 3, 2)
#: Largest number of vector products of a row that is fully unrolled.
MAX_UNROLLED_VECTOR_PRODUCTS: Final = 100
#: Bytes of the shortest vectors.
MIN_VECTOR_BYTES: Final = 16
#: The values of the reduction axes at a tap.
_TapValues: TypeAlias = Mapping[Var, int]


def int8_depthwise_tilings(request: TilingRequest) -> list[RegisterTilingCandidate]:
    """Return CPU tilings of an int8 depthwise convolution, if the channels are the last axis of data
    and weights.
    """
    c = request.contraction
    all_bytes = c.dtype == "int32" and {request.a.dtype, request.b.dtype} <= {*INT8_DTYPES}
    if not all_bytes or request.lanes == 1 or c.block:
        return []
    # registers hold the accumulators of a tile and one column of weights
    operand_registers = _dot_product_micro_kernel(request, request.lanes).vector_registers
    fitting = [n for n in CANDIDATE_TILE_COLUMNS if BYTES_PER_DOT * (n + operand_registers) <= request.target.registers]
    tile_columns = fitting or CANDIDATE_TILE_COLUMNS[-1:]
    return feasible_candidates(_depthwise_tiling, request, ((columns,) for columns in tile_columns))


def _depthwise_tiling(request: TilingRequest, tile_columns: int) -> RegisterTilingCandidate | None:
    """Return a tiling of a depthwise convolution with tiles of `tile_columns` columns; None if the
    channels do not fill vectors or are not contiguous.

    The channels are split into vectors of decreasing width.
    """
    axis = request.contraction.axes[-1]
    most = min(request.target.vector_bytes, BYTES_PER_DOT * INT32_VECTOR_LENGTHS[-1])
    widths = [n for n in (most >> k for k in range(most.bit_length())) if MIN_VECTOR_BYTES <= n <= axis[1]]
    candidates: list[RegisterTilingCandidate] = []
    begin = 0
    while rest := axis[1] - begin:
        # the last channels may be computed by one vector that begins earlier, in whole quarters
        last = [n for n in widths if n > rest and rest % (n // BYTES_PER_DOT) == 0]
        width = min(last) if last else next((n for n in widths if n <= rest), 0)
        if not width:
            return None
        size, count = (rest, 1) if last else (width, rest // width)
        tiles = TileSegment(begin, count, size, tuple(range(0, size, width // BYTES_PER_DOT)))
        candidate = _channel_segment_tiling(request, tile_columns, tiles, width)
        if candidate is None:
            return None
        candidates.append(candidate)
        begin += count * size
    first, *rest_candidates = candidates
    scratch = tuple(b for candidate in candidates for b in candidate.workspace)
    cost = sum(candidate.cost for candidate in candidates)
    return replace(first, workspace=scratch, cost=cost, rest_tilings=tuple(rest_candidates))


def _channel_segment_tiling(
    request: TilingRequest, tile_columns: int, channels: TileSegment, vector_bytes: int
) -> RegisterTilingCandidate | None:
    """Return the tiling of a segment of the channels, in vectors of `vector_bytes` bytes; None if
    the channels are not contiguous, or if the borders are not known at compile time.
    """
    axis = request.contraction.axes[-1]
    split = ChannelSplit.split_channel_axis(request.analysis, axis, vector_bytes)
    position, weights = row_major_address(split.a), row_major_address(split.b)
    steps = [p.coefficient(split.lane) for p in (position, weights)]
    tiles_apart = [p.coefficient(split.tile) for p in (position, weights)]
    along = axis[1] <= vector_bytes or tiles_apart == [vector_bytes, vector_bytes]
    if steps != [1, 1] or not along or not request.analysis.pixel:
        return None
    open_dims = [d for d in split.a if not d.inside and split.lane not in d.variables_of_index]
    static = variables_of_dimensions(open_dims) <= request.output_axis_vars_of_data_only | request.reduction_axis_vars
    if not static or not all(isinstance(t, Var) for d in open_dims for t in d.index.terms):
        return None
    lane = TileAxis(
        axis[0], axis[1], (channels,), "x", vector_bytes // BYTES_PER_DOT, split.tile_and_lane_vars_and_size
    )
    *rows, column = request.analysis.pixel
    inner = [tile_segments.untiled_axis(*row) for row in rows]
    tiles = TileAxis(*column, tile_segments.evenly_sized_tiles(column[1], tile_columns), "y")
    panels = _InterleavedPanels.build_panels(request, split, open_dims, tiles, vector_bytes - channels.size)
    if panels is None:
        return None
    panel, dtype = AddressedOperand(panels.weights, as_expr(0)), request.contraction.dtype
    # a short row that is a single tile needs no panel
    written = (
        tiles.tile_count_of_all_segments == 1
        and panels.vector_products_per_position * column[1] <= MAX_UNROLLED_VECTOR_PRODUCTS
    )
    copies: dict[TileAxis | None, CopyFn] = {
        lane: panels.fill_weight_panel if inner or written or panels.is_per_tile else panels.fill_weight_and_data_panels
    }
    if panels.is_per_tile and not written:
        copies[tiles] = panels.fill_data_panel_of_tile
    elif inner and not written:
        copies[inner[-1]] = panels.fill_data_panel_for_output_row
    tiling = RegisterTiling(
        [*request.output_axes_outside_of_tile(axis), lane, *inner, tiles],
        MultiplyAddStep(panel, panels.a, dtype, lane.lanes, True, request.contraction.fill),
        ReductionLoops((), (), request.contraction.reduce_axes, open_dims),
        OutputStores(request.contraction.axes, request.store, {}),
        copies,
        panels.unrolled_row_dot_products if written else panels.dot_product_loops,
    )
    name = request.candidate_name("taps", axis, columns=tile_columns)
    scratch = (panels.weights,) if written else (panels.weights, panels.panel)
    return RegisterTilingCandidate(panels.estimated_cycles(tiling, request), name, tiling, scratch)


def _dot_product_micro_kernel(request: TilingRequest, lanes: int) -> MicroKernel:
    """Return the first micro-kernel of the target that adds four products of bytes to each of `lanes`
    accumulators; `DOT4`, which every target with vectors can compute, if it lists none.
    """
    types = (request.a.dtype, request.b.dtype, request.contraction.dtype)
    fitting = (
        k
        for k in request.target.micro_kernels
        if (k.level, k.group, k.groups) == ("registers", BYTES_PER_DOT, 1) and lanes in (k.lanes or (lanes,))
    )
    return next((k for k in fitting if k.accepts_types(*types)), DOT4)


def _enumerate_axis_points(axes: Sequence[te.Axis]) -> list[dict[Var, int]]:
    """Return, for each point of some axes, the values of their variables."""
    names = [var for var, _ in axes]
    places = product(*(range(n) for _, n in axes))
    return [dict(zip(names, at, strict=True)) for at in places]


def _panel_steps_of_output_and_kernel_column(
    address: LinearForm, output_column: Var, kernel_column: Var | None
) -> tuple[int, int] | None:
    """Return the panel entries between adjacent output columns, and between adjacent kernel
    columns; None if the data's address does not increase with both.

    address          address of the data as a linear form of output and kernel columns
    kernel_column    the column of the kernel; None for kernels with a single column
    """
    along = output_column if kernel_column is None else kernel_column
    step, dilation = (address.coefficient(var) or 0 for var in (output_column, along))
    entry_distance = step if kernel_column is None else math.gcd(step, dilation)
    if min(step, dilation) < 1:
        return None
    return step // entry_distance, dilation // entry_distance


def _panel_entry_count(columns: int, step: int, kernel_columns: int, dilation: int) -> int:
    """Return the number of panel entries that adjacent output columns use; see `_InterleavedPanels`."""
    return (columns - 1) * step + (kernel_columns - 1) * dilation + 1


def _conv_kernel_axes_across_and_along_rows(
    request: TilingRequest, split: ChannelSplit, column: Var
) -> tuple[list[te.Axis], list[te.Axis]]:
    """Return the kernel axes that move across the rows of the data, and the kernel axes that move
    along the columns.

    If no axis moves across rows, all axes count as moving across rows.
    """
    taps = [(v, n) for v, n in request.contraction.reduce_axes if n > 1]
    column_index_vars = {var for d in split.a if column in d.variables_of_index for var in d.variables_of_index}
    across = [axis for axis in taps if axis[0] not in column_index_vars] or taps
    along = [axis for axis in taps if axis not in across]
    return across, along


def _factors_of_columns(index: LinearForm, columns_and_steps: Sequence[tuple[Var | None, int]]) -> list[int]:
    """Return the factor of the panel's entry in an index by each of the output and kernel columns."""
    return [index.terms.get(v, 0) // step for v, step in columns_and_steps if v is not None]


def _index_by_panel_entry(
    index: LinearForm, columns_and_steps: Sequence[tuple[Var | None, int]], entry: Var
) -> LinearForm:
    """Return an index with its output and kernel columns replaced by the entry of the panel."""
    columns = {v for v, _ in columns_and_steps}
    terms = {t: c for t, c in index.terms.items() if t not in columns}
    factor = _factors_of_columns(index, columns_and_steps)[0]
    return LinearForm(terms | ({entry: factor} if factor else {}), index.const)


@frozen(eq=False)
class _InterleavedPanels:
    """Panels of data and weights for a tile of channels, in the order in which they are multiplied.

    kernel           the micro-kernel that multiplies four taps
    split            the operands with channels split into vectors
    early            channels of the previous tile at the beginning of the vectors
    a, b             the operands; `a` is indexed by `entry` of the panel in place of columns of
                     output and kernel
    dims             dimensions of the data that may be out of range, indexed by `entry` as well
    ranges           ranges of the output axes that the panel is filled for
    column           the column axis of the output, in tiles
    entry            variable and number of panel entries: output column j and kernel column k use
                     entry step * j + dilation * k
    step, dilation   see `entry`
    across           the taps at an entry (rows of the kernel)
    along            the columns of the kernel
    weights, panel   the buffers of weights and data
    fill             value of the data outside of its range
    is_per_tile      True if the panel is filled for each tile of columns, False if for each row
    """

    kernel: MicroKernel
    split: ChannelSplit
    early: int
    a: AddressedOperand
    b: AddressedOperand
    dims: Sequence[OperandDimension]
    ranges: Ranges
    column: TileAxis
    entry: te.Axis
    step: int
    dilation: int
    across: Sequence[_TapValues]
    along: Sequence[_TapValues]
    weights: Buffer
    panel: Buffer
    fill: int
    is_per_tile: bool

    @classmethod
    def build_panels(
        cls,
        request: TilingRequest,
        split: ChannelSplit,
        border_dims: Sequence[OperandDimension],
        column_tiles: TileAxis,
        repeated_channels: int,
    ) -> _InterleavedPanels | None:
        """Return the panels of a depthwise convolution; None if the data's index is not a sum of
        output column and kernel column.
        """
        across, kernel = _conv_kernel_axes_across_and_along_rows(request, split, column_tiles.var)
        position = row_major_address(split.a)
        (tap, count) = kernel[0] if kernel else (None, 1)
        entry_steps = _panel_steps_of_output_and_kernel_column(position, column_tiles.var, tap)
        if len(kernel) > 1 or entry_steps is None:
            return None
        step, dilation = entry_steps
        entry = (Var("entry"), _panel_entry_count(column_tiles.extent, step, count, dilation))
        columns_and_steps = ((column_tiles.var, step), (tap, dilation))
        if any(
            len(set(_factors_of_columns(i, columns_and_steps))) > 1 for i in (position, *(d.index for d in border_dims))
        ):
            return None

        def index_by_panel_entry(index: LinearForm) -> LinearForm:
            return _index_by_panel_entry(index, columns_and_steps, entry[0])

        places = [
            dict.fromkeys((v for v, _ in request.contraction.reduce_axes), 0) | at
            for at in _enumerate_axis_points(across)
        ]
        groups = -(-len(places) // BYTES_PER_DOT)
        entry_bytes = groups * BYTES_PER_DOT * split.size
        is_per_tile = entry[1] * entry_bytes > request.target.tiles.panel_l1_share * request.target.l1
        columns = column_tiles.segments[0].size if is_per_tile else column_tiles.extent
        entries = _panel_entry_count(columns, step, count, dilation)
        return cls(
            _dot_product_micro_kernel(request, split.size // BYTES_PER_DOT),
            split,
            repeated_channels,
            AddressedOperand(request.a, index_by_panel_entry(position).to_expr() - repeated_channels),
            AddressedOperand(request.b, row_major_address(split.b).to_expr() - repeated_channels),
            [replace(d, index=index_by_panel_entry(d.index)) for d in border_dims],
            split.ranges,
            column_tiles,
            entry,
            step,
            dilation,
            places,
            _enumerate_axis_points(kernel),
            new_private_scratch_buffer("taps", request.b.dtype, count * entry_bytes),
            new_private_scratch_buffer("panel", request.a.dtype, entries * entry_bytes),
            request.contraction.fill,
            is_per_tile,
        )

    @property
    def groups_of_4_taps(self) -> list[Sequence[_TapValues]]:
        """The kernel offsets (taps) of a panel entry in groups of four; the last group may be
        smaller.
        """
        return [self.across[k : k + BYTES_PER_DOT] for k in range(0, len(self.across), BYTES_PER_DOT)]

    @property
    def first_quarter_not_in_previous_tile(self) -> int:
        """Number (0 to 3) of the first quarter of a vector whose channels were not computed with
        the previous tile of channels.
        """
        return BYTES_PER_DOT * self.early // self.split.size

    @property
    def vector_products_per_position(self) -> int:
        """Number of vector products per output position of a depthwise convolution."""
        return len(self.along) * len(self.groups_of_4_taps) * BYTES_PER_DOT

    def fill_weight_and_data_panels(self, values_of_vars: Mapping[Var, Expr]) -> Stmt:
        """Return statements that fill the panels of weights and data, for outputs without rows."""
        return Block((self.fill_weight_panel(values_of_vars), self.fill_data_panel_for_output_row(values_of_vars)))

    def fill_weight_panel(self, values_of_vars: Mapping[Var, Expr]) -> Stmt:
        """Return statements that rearrange the weights of a tile of channels into a panel."""
        stmts: list[Stmt] = []
        size, column = self.split.size, Var("column")
        kernel = dict.fromkeys(self.along[0], column)
        for number, group in enumerate(self.groups_of_4_taps):
            places = [_operand_address(self.b, {**values_of_vars, **tap, **kernel}) for tap in group]
            for k, value in islice(
                enumerate(self.load_and_interleave(self.b, places, stmts)),
                self.first_quarter_not_in_previous_tile,
                None,
            ):
                index = (column * len(self.groups_of_4_taps) + number) * (BYTES_PER_DOT * size) + k * size
                stmts.append(Store(self.weights, simplify(index, {}), value))
        return loop_nest([(column, as_expr(len(self.along)))], Block(stmts))

    def fill_data_panel_for_output_row(self, values_of_vars: Mapping[Var, Expr]) -> Stmt:
        """Return statements that fill the data panel for an output row.

        There is one loop for each set of kernel offsets (taps) that is in range.
        """
        stmts: list[Stmt] = []
        taps = [(v, 1 + max(tap[v] for tap in self.across)) for v in self.across[0]]
        signature = BorderSignature.signature_for_axis(self._data_dims_depending_on_panel_entry, self.entry[0], taps)
        for segment in tile_segments.even_tiles_grouped_by_border_signature(self.entry[1], 1, signature):
            var = Var("entry")
            place = var + segment.begin if segment.count > 1 else as_expr(segment.begin)
            body = self._store_data_panel_entry({**values_of_vars, self.entry[0]: place}, place, segment.begin)
            stmts.append(For(var, segment.count, body) if segment.count > 1 else body)
        return Block(stmts)

    def fill_data_panel_of_tile(self, values_of_vars: Mapping[Var, Expr]) -> Stmt:
        """Return statements that fill the data panel for a tile of columns.

        Entries that are padding in the first or the last tile of the loop are tested at run time.
        """
        stmts: list[Stmt] = []
        first_column = values_of_vars[self.column.var]
        segment = self.column.segments[0]
        if isinstance(first_column, Const):
            segment = next(s for s in reversed(self.column.segments) if s.begin <= first_column.value)
        columns = (segment.begin, segment.begin + (segment.count - 1) * segment.size)
        dims = self._data_dims_depending_on_panel_entry

        def is_in_range_in_each_tile(entry: int) -> bool:
            ends: list[dict[Expr, int]] = [{self.entry[0]: column * self.step + entry} for column in columns]
            return all(d.is_index_in_range(end | dict(tap)) for end, tap, d in product(ends, self.across, dims))

        count = _panel_entry_count(segment.size, self.step, len(self.along), self.dilation)
        for is_in_range, group in groupby(range(count), is_in_range_in_each_tile):
            entries = list(group)
            var = Var("entry")
            place = var + entries[0] if len(entries) > 1 else as_expr(entries[0])
            values = {**values_of_vars, self.entry[0]: first_column * self.step + place}
            reference = segment.begin * self.step + entries[0] if is_in_range else None
            body = self._store_data_panel_entry(values, place, reference)
            stmts.append(For(var, len(entries), body) if len(entries) > 1 else body)
        return Block(stmts)

    @property
    def _data_dims_depending_on_panel_entry(self) -> list[OperandDimension]:
        """The dimensions of the data whose index depends on the panel entry (the column)."""
        return [d for d in self.dims if self.entry[0] in d.variables_of_index]

    def _store_data_panel_entry(
        self, values_of_vars: Mapping[Var, Expr], entry: Expr, border_reference_entry: int | None
    ) -> Stmt:
        """Return statements that store an entry of the data panel, with the set of taps in range
        that entry number `border_reference_entry` has; None for a set that is tested at run time.
        """
        stmts: list[Stmt] = []
        size = self.split.size
        for number, values in enumerate(self._interleaved_data_of_entry(values_of_vars, border_reference_entry, stmts)):
            for k, value in islice(enumerate(values), self.first_quarter_not_in_previous_tile, None):
                index = (entry * len(self.groups_of_4_taps) + number) * (BYTES_PER_DOT * size) + k * size
                stmts.append(Store(self.panel, simplify(index, {}), value))
        return Block(stmts)

    def _interleaved_data_of_entry(
        self, values_of_vars: Mapping[Var, Expr], border_reference_entry: int | None, stmts: list[Stmt]
    ) -> Iterator[list[Expr]]:
        """Yield, for each group of four kernel offsets at a panel entry, the four interleaved
        vectors of data.
        """
        columns = self._data_dims_depending_on_panel_entry
        tested = self.dims if border_reference_entry is None else [d for d in self.dims if d not in columns]
        for group in self.groups_of_4_taps:
            here = [True] * len(group)
            if border_reference_entry is not None:
                at: dict[Expr, int] = {self.entry[0]: border_reference_entry}
                here = [all(d.is_index_in_range(at | dict(tap)) for d in columns) for tap in group]
            if any(here):
                rows = [
                    self._load_data_vector_at_tap(values_of_vars, tap, tested, stmts)
                    if inside
                    else self._padding_vector
                    for tap, inside in zip(group, here, strict=True)
                ]
                yield self.interleave_vectors_bytewise(rows, stmts)
            else:
                yield [self._padding_vector] * BYTES_PER_DOT

    @property
    def _padding_vector(self) -> Const:
        """A vector of the padding value."""
        return Const(self.fill, self.a.buffer.dtype, self.split.size)

    def _load_data_vector_at_tap(
        self,
        values_of_vars: Mapping[Var, Expr],
        tap: _TapValues,
        tested_dims: Sequence[OperandDimension],
        stmts: list[Stmt],
    ) -> Expr:
        """Return the data vector at a kernel offset (tap) and column; padding where it is out of
        range in one of `tested_dims`.
        """
        values = dict(values_of_vars) | {var: as_expr(at) for var, at in tap.items()}
        tests: list[Expr] = []
        for dim in tested_dims:
            index = simplify(substitute(dim.index.to_expr(), values), self.ranges)
            low, high = bounds(index, self.ranges)
            tests += [index >= 0] * (low < 0) + [index < dim.extent] * (high >= dim.extent)
        value = Load(self.a.buffer, _operand_address(self.a, values), self.split.size)
        if not tests:
            return bind_to_new_register("row", value, stmts)
        row = Var("row", value.dtype, value.lanes)
        stmts += [Declare(row, self._padding_vector), If(all_of(*tests), Assign(row, value))]
        return row

    def load_and_interleave(
        self, operand: AddressedOperand, addresses: Sequence[Expr], stmts: list[Stmt]
    ) -> list[Expr]:
        """Return vectors loaded from up to four addresses, interleaved byte by byte into four
        vectors.
        """
        rows = [bind_to_new_register("row", Load(operand.buffer, place, self.split.size), stmts) for place in addresses]
        return self.interleave_vectors_bytewise(rows, stmts)

    def interleave_vectors_bytewise(self, vectors: Sequence[Expr], stmts: list[Stmt]) -> list[Expr]:
        """Interleave up to four vectors byte by byte into four vectors; missing vectors count as
        zeros.
        """
        none = Const(0, vectors[0].dtype, self.split.size)
        four = [*vectors, *[none] * (BYTES_PER_DOT - len(vectors))]
        return [bind_to_new_register("quarter", call(f"quarter{k}", *four), stmts) for k in range(BYTES_PER_DOT)]

    def dot_product_loops(self, tile: RegisterTile, accumulators: Accumulators) -> Sequence[Stmt]:
        """Return the dot products of a register tile: loops over the kernel columns and over groups
        of four kernel offsets.
        """
        column, group, stmts = Var("column"), Var("group"), list[Stmt]()
        size, groups = self.split.size, len(self.groups_of_4_taps)
        step = (column * groups + group) * (BYTES_PER_DOT * size)
        weights = [
            bind_to_new_register("x", self._load_interleaved_weights(step, k), stmts) for k in range(BYTES_PER_DOT)
        ]
        base = next(base for axis, base in tile.bases.items() if axis is self.column)
        base = as_expr(0) if self.is_per_tile else base
        for j, y in enumerate(tile.ys):
            (offset,) = y.values()
            entry = (base + offset) * self.step + column * self.dilation
            data: list[Expr] = []
            for k in range(BYTES_PER_DOT):
                index = simplify((entry * groups + group) * (BYTES_PER_DOT * size) + k * size, {})
                data.append(Load(self.panel, index, size))
            stmts += self._accumulate_dot_products(accumulators, j, data, weights)
        return [loop_nest([(column, as_expr(len(self.along))), (group, as_expr(groups))], Block(stmts), "reduction")]

    def unrolled_row_dot_products(self, tile: RegisterTile, accumulators: Accumulators) -> Sequence[Stmt]:
        """Return the dot products of a whole output row, unrolled, with interleaved data in
        registers instead of the panel.
        """
        stmts: list[Stmt] = []
        groups = len(self.groups_of_4_taps)
        for entry in range(self.entry[1]):
            names = {**tile.origin, self.entry[0]: as_expr(entry)}
            for number, data in enumerate(self._interleaved_data_of_entry(names, entry, stmts)):
                if not self.fill and all(isinstance(value, Const) for value in data):
                    continue
                for j, column in product(range(len(tile.ys)), range(len(self.along))):
                    if j * self.step + column * self.dilation == entry:
                        step = as_expr((column * groups + number) * (BYTES_PER_DOT * self.split.size))
                        stmts += self._accumulate_dot_products(
                            accumulators,
                            j,
                            data,
                            [self._load_interleaved_weights(step, k) for k in range(BYTES_PER_DOT)],
                        )
        return stmts

    def _load_interleaved_weights(self, step: Expr, quarter: int) -> Load:
        """Return the load of one of the four interleaved weight vectors of a step."""
        size = self.split.size
        return Load(self.weights, simplify(step + quarter * size, {}), size)

    def _accumulate_dot_products(
        self, accumulators: Accumulators, column: int, data: Sequence[Expr], weights: Sequence[Expr]
    ) -> Iterator[Stmt]:
        """Yield the dot products of interleaved data and weights, added to the accumulators of one
        column of a tile.
        """
        lanes = self.split.size // BYTES_PER_DOT
        name = self.kernel.multiply_name(self.panel.dtype, self.weights.dtype, lanes)
        words = self.kernel.load_name(self.panel.dtype, lanes)
        for i, k in enumerate(range(self.first_quarter_not_in_previous_tile, BYTES_PER_DOT)):
            yield Assign(
                accumulators[0][i, column], call(name, accumulators[0][i, column], call(words, data[k]), weights[k])
            )

    def estimated_cycles(self, tiling: RegisterTiling, request: TilingRequest) -> float:
        """Return the cycles of a tiling: the products and stores of its tiles, and filling the panel of
        data.
        """
        columns = max(segment.size for segment in tiling.levels[-1].segments)
        trips = math.prod(axis.tile_count_of_all_segments for axis in tiling.levels)
        rows = math.prod(axis.tile_count_of_all_segments for axis in tiling.levels[:-1])
        entries = _panel_entry_count(columns, self.step, len(self.along), self.dilation)
        filled = (trips * entries if self.is_per_tile else rows * self.entry[1]) * len(self.groups_of_4_taps)
        steps = len(self.along) * len(self.groups_of_4_taps)
        products = tiling_cycles(tiling, request.target, kernel=self.kernel, steps=steps)
        return (products + interleaving_cycles(BYTES_PER_DOT * filled)) * request.target.tiles.slowdown


def _operand_address(operand: AddressedOperand, values_of_vars: Mapping[Var, Expr | int]) -> Expr:
    """Return the address of an operand's element for given values of its variables."""
    values = {var: as_expr(value) for var, value in values_of_vars.items()}
    return simplify(substitute(operand.flat, values), {})
