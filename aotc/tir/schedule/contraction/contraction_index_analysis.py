# SPDX-License-Identifier: Apache-2.0
"""Index algebra of a contraction: which operand depends on which axis, and where an operand is out
of range.

Input: a te.Contraction. Output: an `ContractionAnalysis`, whose operands become `AddressedOperand`s
with flat addresses in a buffer:

    analysis = analyze_operand_dims_and_output_axes(conv)
    analysis.pixel                         # the axes of the data only: n, oh, ow
    analysis.channel                       # the axes of the weights: oc
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import product

from aotc.ir import frozen
from aotc.tir import (
    BYTES_PER_DOT,
    Binary,
    Buffer,
    Const,
    Expr,
    LinearForm,
    Ranges,
    Var,
    bounds,
    const,
    linear_form,
    substitute,
    te,
    tensor_graph,
)
from aotc.tir.expr import vars_and_buffers_in, walk_once
from aotc.tir.simplify import simplify


@frozen
class AddressedOperand:
    """Elements of `buffer` at the row-major address `flat`, an expression of the contraction's
    axes.
    """

    buffer: Buffer
    flat: Expr


@frozen
class OperandDimension:
    """One index of an operand of a contraction.

    index    the index, as a linear form of the contraction's axes
    extent   the size of the operand along this dimension
    stride   the distance of neighbors in memory, in elements
    inside   True if the index is always in [0, extent)
    """

    index: LinearForm
    extent: int
    stride: int
    inside: bool

    @property
    def variables_of_index(self) -> set[Var]:
        """The variables that this index of an operand depends on."""
        return variables_in(*self.index.terms)

    def index_value(self, values: Mapping[Expr, int]) -> int:
        """Return the value of an operand's index for given values of all variables."""
        return self.index.const + sum(c * values[atom] for atom, c in self.index.terms.items())

    def is_index_in_range(self, values: Mapping[Expr, int]) -> bool:
        """Return True if an operand's index is in range for given values of all variables."""
        return 0 <= self.index_value(values) < self.extent

    def estimated_points_with_index_in_range(self, extents: Mapping[Var, int]) -> int:
        """Return the number of points whose index is in the data.

        extents   number of values, from 0, of each variable of the index, whose terms are variables

        Points along the variable of the largest extent are counted by the first and the last one
        inside. A constant index has one point.
        """
        if not self.variables_of_index:
            return int(self.is_index_in_range({}))
        *other_vars, longest = sorted(self.variables_of_index, key=lambda var: extents[var])
        step, last, total = self.index.terms[longest], extents[longest] - 1, 0
        for at in product(*(range(extents[var]) for var in other_vars)):
            first = self.index_value({**dict(zip(other_vars, at, strict=True)), longest: 0})
            inside = (-first, self.extent - 1 - first) if step > 0 else (first - self.extent + 1, first)
            low, high = -(-inside[0] // abs(step)), inside[1] // abs(step)
            total += max(0, min(high, last) - max(low, 0) + 1)
        return total


def variables_in(*exprs: Expr) -> set[Var]:
    """Return the variables in some expressions."""
    return {node for expr in exprs for node in vars_and_buffers_in(expr) if isinstance(node, Var)}


def variables_of_dimensions(dims: Iterable[OperandDimension]) -> set[Var]:
    """Return the variables that some indices of an operand depend on."""
    return {var for dim in dims for var in dim.variables_of_index}


def operand_dimensions(shape: Sequence[int], index: Sequence[Expr], ranges: Ranges) -> tuple[OperandDimension, ...]:
    """Return the indices of an operand as linear forms with extents and strides, outermost first."""
    dims: list[OperandDimension] = []
    stride = 1
    for extent, expr in reversed(list(zip(shape, index, strict=True))):
        low, high = bounds(expr, ranges)
        dims.append(OperandDimension(linear_form(expr, ranges), extent, stride, low >= 0 and high < extent))
        stride *= extent
    return tuple(reversed(dims))


def row_major_address(dims: Iterable[OperandDimension]) -> LinearForm:
    """Return the row-major address of an element, as a linear form."""
    total = LinearForm()
    for dim in dims:
        total = total.add_multiple(dim.index, dim.stride)
    return total


def iteration_space_point_count(axes: Sequence[te.Axis]) -> int:
    """Return the number of points of an iteration space: the product of the extents of some axes."""
    return math.prod(n for _, n in axes)


def contiguous_weight_reduction_axis_index(contraction: te.Contraction) -> int | None:
    """Return the index of the reduction axis along which weights are contiguous; None if there is
    none.
    """
    row_vars = variables_in(contraction.b_index[-1])
    return next((k for k, (var, _) in enumerate(contraction.reduce_axes) if var in row_vars), None)


def are_axes_row_major_contiguous(address: LinearForm, axes: Sequence[te.Axis], element_distance: int) -> bool:
    """Return True if the points of some axes are in row-major order, `element_distance` elements
    apart.
    """
    for var, extent in reversed(axes):
        if extent > 1 and address.coefficient(var) != element_distance:
            return False
        element_distance *= extent
    return True


def neighbor_distance_along_last_axis(dims: Sequence[OperandDimension], axes: Sequence[te.Axis]) -> int:
    """Return the distance in memory of an operand's neighbors along the last axis whose extent
    exceeds 1.

    Return 0 if the distance is not constant.
    """
    axis = next((var for var, extent in reversed(axes) if extent > 1), None)
    names: dict[Var, Expr] = {var: const(0) for dim in dims for var in dim.variables_of_index}
    address = row_major_address(dims).to_expr()
    first, second = (
        substitute(address, values) for values in (names, names if axis is None else {**names, axis: const(1)})
    )
    difference = linear_form(second - first, {})
    return 0 if difference.terms else abs(difference.const)


def estimated_elements_read(dims: Iterable[OperandDimension], extents: Mapping[Var, int]) -> int:
    """Estimate the number of elements of an operand that are read when its variables take the given
    numbers of values.
    """
    count = 1
    for dim in dims:
        plain = {t: c for t, c in dim.index.terms.items() if isinstance(t, Var)}
        spans = (abs(c) * (extents.get(t, 1) - 1) for t, c in plain.items())
        whole = len(plain) < len(dim.index.terms)
        count *= dim.extent if whole else min(dim.extent, 1 + sum(spans))
    return count


def axis_values_at_row_major_number(axes: Sequence[te.Axis], number: Expr) -> dict[Var, Expr]:
    """Return the values of axes at a row-major number of their iteration space."""
    return tensor_graph.substitution_for_axes(
        axes, tensor_graph.indices_from_flat_offset(number, [extent for _, extent in axes])
    )


@frozen(eq=False)
class ContractionAnalysis:
    """A contraction with the dependences of its operands on the output axes.

    c         the contraction
    a, b      the dimensions of data and weights
    ranges    the ranges of all axes
    pixel     axes that only `a` depends on (rows of a matrix, positions of an image)
    channel   axes that `b` depends on, and perhaps `a` too (output channels, groups, batches of
              matrices)
    """

    c: te.Contraction
    a: tuple[OperandDimension, ...]
    b: tuple[OperandDimension, ...]
    ranges: dict[Var, tuple[int, int]]
    pixel: tuple[te.Axis, ...]
    channel: tuple[te.Axis, ...]
    _channel_splits: dict[tuple[te.Axis, int], ChannelSplit] = field(default_factory=dict, init=False, repr=False)


def analyze_operand_dims_and_output_axes(
    contraction: te.Contraction, requires_weights_in_range: bool = True
) -> ContractionAnalysis | None:
    """Return the output axes that the operands of a contraction depend on; None if
    `requires_weights_in_range` is True and its weights may be read out of range.
    """
    ranges = tensor_graph.inclusive_ranges_of_axes((*contraction.axes, *contraction.reduce_axes))
    a = operand_dimensions(contraction.a.shape, contraction.a_index, ranges)
    b = operand_dimensions(contraction.b.shape, contraction.b_index, ranges)
    of_a, of_b = variables_of_dimensions(a), variables_of_dimensions(b)
    if requires_weights_in_range and not all(d.inside for d in b):
        return None
    pixel = tuple((v, n) for v, n in contraction.axes if v in of_a and v not in of_b)
    channel = tuple((v, n) for v, n in contraction.axes if v in of_b)
    return ContractionAnalysis(contraction, a, b, ranges, pixel, channel)


def split_reduction_into_dot_groups(
    contraction: te.Contraction, group: int = BYTES_PER_DOT
) -> tuple[ContractionAnalysis, Var] | None:
    """Split a reduction axis into steps of `group` products, for dot-product instructions.

    Return the contraction with the axis divided, and the variable that counts within a group; None
    if no axis can be divided. The groups are the groups of packed weights; for other weights they
    are along an axis of the data, preferably one along which it is contiguous.
    """
    ranges = tensor_graph.inclusive_ranges_of_axes((*contraction.axes, *contraction.reduce_axes))
    position = row_major_address(operand_dimensions(contraction.a.shape, contraction.a_index, ranges))
    candidate_vars = (
        variables_in(contraction.b_index[-1])
        if contraction.group
        else {var for var, n in contraction.reduce_axes if n > 1}
    )
    fitting = [axis for axis in contraction.reduce_axes if axis[0] in candidate_vars]
    if not fitting or (contraction.block and not contraction.group):
        return None

    def contiguity_and_extent(axis: te.Axis) -> tuple[bool, int]:
        return position.coefficient(axis[0]) == 1, axis[1]

    var, extent = axis = max(fitting, key=contiguity_and_extent)
    group, steps, place = contraction.group or group, Var(var.name), Var("g")
    names: dict[Var, Expr] = {var: steps * group + place}
    axes = tuple(
        (steps, -(-extent // group)) if reduce_axis is axis else reduce_axis for reduce_axis in contraction.reduce_axes
    )
    a_index = tuple(substitute(i, names) for i in contraction.a_index)
    b_index = tuple(substitute(i, names) for i in contraction.b_index)
    whole = replace(contraction, a_index=a_index, b_index=b_index, group=group)
    every = replace(whole, reduce_axes=(*axes, (place, group)))
    analysis = analyze_operand_dims_and_output_axes(every, bool(contraction.group))
    return None if analysis is None else (replace(analysis, c=replace(whole, reduce_axes=axes)), place)


def move_taps_before_reduction_axes(contraction: te.Contraction) -> te.Contraction:
    """Move taps (reduction axes that share an index of the data with an output axis) before the
    other reduction axes.

    This is the summation order on `ordered` targets: tiles with borders can keep to it without a
    copy of the data.
    """
    outer = {var for var, _ in contraction.axes}
    shared = [index_vars for index in contraction.a_index if (index_vars := variables_in(index)) & outer]
    axes = sorted(contraction.reduce_axes, key=lambda axis: not any(axis[0] in index_vars for index_vars in shared))
    return replace(contraction, reduce_axes=tuple(axes))


def split_grouped_channel_axis(
    contraction: te.Contraction,
) -> tuple[te.Contraction, Callable[[Sequence[Expr]], tuple[Expr, ...]]]:
    """Split the channel axis of a grouped convolution into groups and channels of a group.

    The data of a grouped convolution is read at `channel // per_group`. With two axes, a tile of
    channels of one group reads common data, as in an ungrouped convolution, and the groups are an
    additional outer loop. Return the contraction, and a function that maps its output indices to
    those of `contraction`. Other contractions are returned unchanged.
    """
    grouped_axis = next(
        ((n, per) for n, (var, _) in enumerate(contraction.axes) if (per := _channels_per_group(contraction, var))),
        None,
    )
    if grouped_axis is None:
        return contraction, tuple
    number, per_group = grouped_axis
    var, extent = contraction.axes[number]
    group, inner = Var(f"{var.name}g"), Var(var.name)
    axes = (
        *contraction.axes[:number],
        (group, extent // per_group),
        (inner, per_group),
        *contraction.axes[number + 1 :],
    )
    ranges = tensor_graph.inclusive_ranges_of_axes((*axes, *contraction.reduce_axes))
    names: dict[Var, Expr] = {var: group * per_group + inner}
    a_index, b_index = (
        tuple(simplify(substitute(index, names), ranges) for index in operand)
        for operand in (contraction.a_index, contraction.b_index)
    )
    shape = tuple(n for _, n in axes)
    lane = inner if contraction.lane is var else contraction.lane

    def join_group_and_channel_indices(indices: Sequence[Expr]) -> tuple[Expr, ...]:
        return (*indices[:number], indices[number] * per_group + indices[number + 1], *indices[number + 2 :])

    return replace(
        contraction, shape=shape, axes=axes, a_index=a_index, b_index=b_index, lane=lane
    ), join_group_and_channel_indices


def _channels_per_group(contraction: te.Contraction, channel_var: Var) -> int:
    """Return the number by which the data's indices divide an output axis; 0 if there is none or it
    does not divide the extent.
    """
    extent = next(n for v, n in contraction.axes if v is channel_var)
    quotients = [
        n for index in contraction.a_index for n in walk_once(index) if isinstance(n, Binary) and n.op == "floordiv"
    ]
    divisors = {n.b.value for n in quotients if n.a is channel_var and isinstance(n.b, Const)}
    per_group = divisors.pop() if len(divisors) == 1 else 0
    return int(per_group) if per_group > 1 and extent % per_group == 0 and extent > per_group else 0


def are_weights_known_finite(contraction: te.Contraction) -> bool:
    """Return True if the weights are known to contain no infinity and no NaN."""
    weights = tensor_graph.strip_views(contraction.b)
    return not weights.dtype.is_float or (isinstance(weights, te.Placeholder) and weights.finite)


def are_indices_independent_of_var(dims: Iterable[OperandDimension], var: Var) -> bool:
    """Return True if no index of an operand depends on a variable."""
    return var not in variables_of_dimensions(dims)


def are_axes_fusible(outer: te.Axis, inner: te.Axis, address: LinearForm, dims: Iterable[OperandDimension]) -> bool:
    """Return True if two neighboring output axes can be fused for an operand: no border, and no gap
    between rows.
    """
    if any(not d.inside and d.variables_of_index & {outer[0], inner[0]} for d in dims):
        return False
    step, unit = address.coefficient(outer[0]), address.coefficient(inner[0])
    return bool(step and unit and step == unit * inner[1])


@frozen(eq=False)
class ChannelSplit:
    """The operands with an axis of the weights written as tile * size + lane; unchanged if there is
    no axis.

    An axis that is read as quotient and remainder (groups, packed blocks) becomes affine by this.
    """

    axis: te.Axis | None
    size: int
    tile: Var
    lane: Var
    a: Sequence[OperandDimension]
    b: Sequence[OperandDimension]
    ranges: dict[Var, tuple[int, int]]

    @staticmethod
    def split_channel_axis(analysis: ContractionAnalysis, axis: te.Axis | None, tile_size: int) -> ChannelSplit:
        """Return the operands of a contraction with an axis of the weights split into tiles of
        `tile_size`.
        """
        known = None if axis is None else analysis._channel_splits.get((axis, tile_size))
        if known is not None:
            return known
        c, lane = analysis.c, Var("lane")
        if axis is None:
            return ChannelSplit(None, tile_size, Var("c"), lane, analysis.a, analysis.b, analysis.ranges)
        var, extent = axis
        tile = Var(var.name)
        ranges = {**analysis.ranges, tile: (0, (extent - 1) // tile_size), lane: (0, tile_size - 1)}
        place: dict[Var, Expr] = {var: tile if tile_size == 1 else tile * tile_size + lane}
        a, b = (
            operand_dimensions(operand.shape, [substitute(i, place) for i in index], ranges)
            for operand, index in ((c.a, c.a_index), (c.b, c.b_index))
        )
        split = ChannelSplit(axis, tile_size, tile, lane, a, b, ranges)
        return analysis._channel_splits.setdefault((axis, tile_size), split)

    @property
    def tile_and_lane_vars_and_size(self) -> tuple[Var, Var, int]:
        """The variables that replace the axis and the tile size, as in TileAxis.split."""
        return self.tile, self.lane, self.size


@frozen(eq=False)
class FusedDataAxes:
    """The axes of the data, with axes that are adjacent in memory fused; the fused axis has the
    inner axis's variable.

    axes       the axes
    position   the address of an element of the data
    unfuse     the original axes as expressions of the fused axes
    """

    axes: tuple[te.Axis, ...]
    position: LinearForm
    unfuse: dict[Var, Expr]


def fuse_data_axes(
    analysis: ContractionAnalysis, dims: Sequence[OperandDimension], address: LinearForm, unfusible: Container[Var] = ()
) -> FusedDataAxes:
    """Return the axes of the data with fusible axes fused; axes on which `dims` have a border, and those
    in `unfusible`, are not fused.
    """
    order = [var for var, _ in analysis.c.axes]
    axes: list[te.Axis] = []
    unfuse: dict[Var, Expr] = {}
    for var, extent in analysis.pixel:
        outer = axes[-1] if axes else None
        adjacent = outer is not None and order.index(var) == order.index(outer[0]) + 1
        apart = outer is None or not adjacent or outer[0] in unfusible or var in unfusible
        if outer is None or apart or not are_axes_fusible(outer, (var, extent), address, dims):
            axes.append((var, extent))
            continue
        address = LinearForm({t: k for t, k in address.terms.items() if t is not outer[0]}, address.const)
        unfuse = {v: substitute(e, {outer[0]: var // extent}) for v, e in unfuse.items()}
        unfuse.setdefault(outer[0], var // extent)
        unfuse[var] = var % extent
        axes[-1] = (var, outer[1] * extent)
    return FusedDataAxes(tuple(axes), address, unfuse)
