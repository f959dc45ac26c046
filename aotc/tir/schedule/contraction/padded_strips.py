# SPDX-License-Identifier: Apache-2.0
"""Padded copies of data whose extents are known at run time only, one strip of positions at a time.

    for image:
        for strip of output rows:
            copy the input rows that it reads, with the border around them
            ...                          # the contraction of the strip, which reads nothing out of range

A convolution whose image size is known has separate code for the tiles at each border. With a size that
is known at run time only, that would be code for each distance from each border. The copy of a strip
stays in the second-level cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aotc.ir import frozen, is_never_negative, is_static, largest_size
from aotc.tir import (
    Buffer,
    Expr,
    Load,
    Target,
    Var,
    all_of,
    as_expr,
    bounds,
    const,
    linear_form,
    minimum,
    new_private_scratch_buffer,
    te,
    tensor_graph,
)
from aotc.tir.expr import maximum
from aotc.tir.schedule.contraction.contraction_index_analysis import are_weights_known_finite, variables_in
from aotc.tir.schedule.contraction.untiled_contraction import least_and_greatest_index, tests_of_index_range
from aotc.tir.stmt import Block, If, Stmt, Store, forall


@frozen(eq=False)
class PaddedStrip:
    """A contraction of one strip of output positions, which reads a copy of its data with the border around it.

    contraction    the contraction of a strip, as long as a whole one
    loops          the loops over strips, and over axes outside of them
    axis, part     the axis of positions in a strip, and where the strip of an iteration begins and ends
    buffer         scratch memory for the copy
    copy           statements that fill it
    whole_index    maps the output indices of `contraction` to those of the whole contraction
    """

    contraction: te.Contraction
    loops: Sequence[tuple[Var, Expr]]
    axis: Var
    part: tuple[Expr, Expr]
    buffer: Buffer
    copy: Stmt
    whole_index: Callable[[Sequence[Expr]], tuple[Expr, ...]]


@frozen(eq=False)
class _CopiedDimension:
    """A dimension of the data and of the copy.

    source       extent of the data
    first        index of the data that is at the beginning of the copy; negative at a border
    extent       extent of the copy
    is_padded    True if the copy may begin before the data, or end behind it
    has_all      True if the copy has all elements of the data from `first` on
    """

    source: te.Extent
    first: Expr
    extent: te.Extent
    is_padded: bool = False
    has_all: bool = False

    def positions_of_data(self, length: Expr) -> tuple[Expr, Expr]:
        """Return the first position of the first `length` ones of the copy that has data, and the one behind the
        last of them.
        """
        begin, end = maximum(-self.first, 0), as_expr(self.source) - self.first
        if self.has_all:
            return begin, end
        begin = minimum(begin, length)
        return begin, maximum(minimum(end, length), begin)


def copy_data_in_padded_strips(contraction: te.Contraction, data: Buffer, target: Target) -> PaddedStrip | None:
    """Return a contraction in strips that read padded copies of the data; None if the data is never read out of
    range, or if it cannot be copied: weights may be infinite, or an index is no sum of axes.

    data    the buffer of the data
    """
    extents = dict((*contraction.axes, *contraction.reduce_axes))
    indices, shape = contraction.a_index, contraction.a.shape
    is_padded = [_may_be_out_of_range(i, n, extents) for i, n in zip(indices, shape, strict=True)]
    if True not in is_padded or not are_weights_known_finite(contraction) or 0 in map(largest_size, extents.values()):
        return None
    rows = _axis_of_strips(contraction, is_padded.index(True))
    if rows is None:
        return None
    outer = _axes_outside_of_copy(contraction, indices[: is_padded.index(True)])
    dims: list[_CopiedDimension] = []
    read: list[Expr] = []
    for index, extent, padded in zip(indices, shape, is_padded, strict=True):
        if index in outer:
            dims.append(_CopiedDimension(extent, index, 1))
            read.append(as_expr(0))
            continue
        dim = _dimension_with_border(index, extent, extents) if padded else _CopiedDimension(extent, as_expr(0), extent)
        if dim is None:
            return None
        dims.append(dim)
        read.append(index - dim.first)
    return _strip_of_rows(contraction, data, target, rows, outer, dims, read)


def _dimension_with_border(index: Expr, extent: te.Extent, extents: Mapping[Var, te.Extent]) -> _CopiedDimension | None:
    """Return a dimension of a copy of all positions at which data of some extent is read; None for an index that
    is no sum of axes, or whose least value is not known.
    """
    least, greatest = least_and_greatest_index(index, extents)
    if not isinstance(least, int) or greatest is None:
        return None
    if is_never_negative(extent - 1 - greatest):
        greatest = extent - 1
    has_all = is_never_negative(greatest + 1 - extent)
    return _CopiedDimension(extent, as_expr(least), te.as_extent(greatest - least + 1), True, has_all)


def _may_be_out_of_range(index: Expr, extent: te.Extent, extents: Mapping[Var, te.Extent]) -> bool:
    """Return True unless an index is known to be in range for all values of axes with these extents."""
    if is_static([extent]):
        low, high = bounds(index, tensor_graph.inclusive_ranges_of_axes(tuple(extents.items())))
        if low >= 0 and high < extent:
            return False
    return bool(tests_of_index_range(index, extent, extents))


def _axis_of_strips(contraction: te.Contraction, dimension: int) -> Var | None:
    """Return the output axis along which the data is copied in strips: the only one in the index of a dimension
    of the data; None if there is none, or if other indices depend on it.
    """
    others = (*contraction.a_index[:dimension], *contraction.a_index[dimension + 1 :], *contraction.b_index)
    used = variables_in(contraction.a_index[dimension]) & {var for var, _ in contraction.axes}
    axis = used.pop() if len(used) == 1 else None
    if axis is None or axis in variables_in(*others):
        return None
    stride = linear_form(contraction.a_index[dimension], {}).coefficient(axis)
    return axis if stride is not None and stride > 0 else None


def _axes_outside_of_copy(contraction: te.Contraction, outer_indices: Sequence[Expr]) -> set[Var]:
    """Return the output axes that are loops around the strips: each is by itself an index of the data outside of
    its borders, and nothing else depends on it.
    """
    found: set[Var] = set()
    for var, _ in contraction.axes:
        others = [index for index in (*contraction.a_index, *contraction.b_index) if index is not var]
        if var in outer_indices and var not in variables_in(*others):
            found.add(var)
    return found


def _strip_of_rows(
    contraction: te.Contraction,
    data: Buffer,
    target: Target,
    rows: Var,
    outer: set[Var],
    dims: list[_CopiedDimension],
    read: list[Expr],
) -> PaddedStrip:
    """Return the contraction of a strip.

    rows     the axis that is divided into strips
    outer    the axes that are loops around the strips
    dims     the dimensions of a copy of all rows
    read     the index of the copy in each of them
    """
    extents = dict((*contraction.axes, *contraction.reduce_axes))
    place = next(k for k, index in enumerate(contraction.a_index) if rows in variables_in(index))
    stride = linear_form(contraction.a_index[place], {}).coefficient(rows)
    assert stride is not None
    most = largest_size(extents[rows])
    taps = {**extents, rows: 1}
    _, last = least_and_greatest_index(read[place], taps)
    assert isinstance(last, int)
    line = math.prod(largest_size(dim.extent) for k, dim in enumerate(dims) if k != place) * data.dtype.itemsize
    weights = contraction.b.capacity * contraction.b.dtype.itemsize
    # weights that exceed the cache are read from memory for each strip
    room = target.l2 // 2 if weights <= target.l2 // 2 else target.winograd.strip_l2_caches * target.l2
    size = min(most, max(1, (room // line - last - 1) // stride + 1))
    strip, count = Var("strip"), as_expr(extents[rows])
    part = (strip * size, minimum(strip * size + size, count))
    first = strip * (size * stride) + dims[place].first
    dims[place] = replace(dims[place], first=first, extent=(size - 1) * stride + last + 1, has_all=False)
    copied = [dim.extent for dim in dims]
    buffer = new_private_scratch_buffer("padded", data.dtype, te.placeholder(copied, data.dtype, "x").capacity)
    lengths = [as_expr(n) for n in copied]
    lengths[place] = (part[1] - part[0] - 1) * stride + last + 1
    axes = tuple((var, size if var is rows else n) for var, n in contraction.axes if var not in outer)
    padded = te.placeholder(copied, data.dtype, "padded")
    inner = replace(contraction, shape=tuple(n for _, n in axes), axes=axes, a=padded, a_index=tuple(read), fill=0)
    order = [var for var, _ in contraction.axes]

    def whole_index(at: Sequence[Expr]) -> tuple[Expr, ...]:
        values = dict(zip((var for var, _ in axes), at, strict=True))
        values[rows] = strip * size + values[rows]
        return tuple(values.get(var, var) for var in order)

    strips = (count + (size - 1)) // size
    loops = [*((var, as_expr(n)) for var, n in contraction.axes if var in outer), (strip, strips)]
    copy = _copy_with_border(data, buffer, contraction.fill, dims, lengths)
    return PaddedStrip(inner, loops, rows, part, buffer, copy, whole_index)


def _copy_with_border(
    data: Buffer, buffer: Buffer, fill: int, dims: Sequence[_CopiedDimension], lengths: Sequence[Expr]
) -> Stmt:
    """Return the statements that copy data with a border around it.

    lengths    the number of positions of each dimension that are filled
    """
    shape, sources = [dim.extent for dim in dims], [dim.source for dim in dims]
    # the last dimension with a border, and those inside of it, are contiguous
    last = max(k for k, dim in enumerate(dims) if dim.is_padded)
    inside = math.prod((as_expr(n) for n in shape[last + 1 :]), start=as_expr(1))

    def run(at: Sequence[Expr], begin: Expr, end: Expr, is_inside: bool) -> Stmt:
        """Fill positions of dimension `last` from `begin` to `end`, for positions `at` of those outside of it."""
        number = Var("s")
        index = te.flat_index(shape[: last + 1], (*at, begin)) * inside + number
        value: Expr = const(fill, data.dtype)
        if is_inside:
            places = [*(v + dim.first for v, dim in zip(at, dims, strict=False)), begin + dims[last].first]
            value = Load(data, te.flat_index(sources[: last + 1], places) * inside + number)
        return forall(number, (end - begin) * inside, Store(buffer, index, value))

    def fill_from(at: Sequence[Expr], is_inside: bool) -> Stmt:
        dim, length = dims[len(at)], lengths[len(at)]
        if not dim.is_padded or not is_inside:
            if len(at) == last:
                return run(at, as_expr(0), length, is_inside)
            position = Var("s")
            return forall(position, length, fill_from((*at, position), is_inside))
        if len(at) < last:
            position = Var("s")
            place = position + dim.first
            test = all_of(place >= 0, place < as_expr(dim.source))
            body = If(test, fill_from((*at, position), True), fill_from((*at, position), False))
            return forall(position, length, body)
        begin, end = dim.positions_of_data(length)
        return Block((run(at, as_expr(0), begin, False), run(at, begin, end, True), run(at, end, length, False)))

    return fill_from((), True)
