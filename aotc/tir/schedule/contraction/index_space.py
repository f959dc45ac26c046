# SPDX-License-Identifier: Apache-2.0
"""Index algebra of a contraction: which operand depends on which axis, and where an operand is out
of range.

Input: a te.Contraction. Output: an `Analysis`, whose operands become `Operand`s with flat addresses
in a buffer:

    analysis = analyze(conv)
    analysis.pixel                         # the axes of the data only: n, oh, ow
    analysis.channel                       # the axes of the weights: oc
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from aotc.ir import frozen
from aotc.tir import (
    GROUP,
    Binary,
    Buffer,
    Const,
    Expr,
    Linear,
    Ranges,
    Var,
    bounds,
    const,
    graph,
    linear,
    substitute,
    te,
    walk,
)
from aotc.tir.simplify import simplify


class Irregular(Exception):
    """Raised if a contraction does not have the form that a schedule needs; other schedules are
    tried then.
    """


@frozen
class Operand:
    """Elements of `buffer` at the address `flat`, an expression of the contraction's axes."""

    buffer: Buffer
    flat: Expr


@frozen
class Dimension:
    """One index of an operand of a contraction.

    index    the index, as a linear form of the contraction's axes
    extent   the size of the operand along this dimension
    stride   the distance of neighbors in memory, in elements
    inside   True if the index is always in [0, extent)
    """

    index: Linear
    extent: int
    stride: int
    inside: bool

    @property
    def variables(self) -> set[Var]:
        """The variables that this index of an operand depends on."""
        return variables(*self.index.terms)

    def at(self, values: Mapping[Expr, int]) -> int:
        """Return the value of an operand's index for given values of all variables."""
        return self.index.const + sum(c * values[atom] for atom, c in self.index.terms.items())

    def has(self, values: Mapping[Expr, int]) -> bool:
        """Return True if an operand's index is in range for given values of all variables."""
        return 0 <= self.at(values) < self.extent

    def count(self, extents: Mapping[Var, int]) -> int:
        """Return the number of points whose index is in the data.

        extents   number of values, from 0, of each variable of the index, whose terms are variables

        Points along the variable of the largest extent are counted by the first and the last one
        inside. A constant index has one point.
        """
        if not self.variables:
            return int(self.has({}))
        *others, longest = sorted(self.variables, key=lambda var: extents[var])
        step, last, total = self.index.terms[longest], extents[longest] - 1, 0
        for at in product(*(range(extents[var]) for var in others)):
            first = self.at({**dict(zip(others, at, strict=True)), longest: 0})
            inside = (-first, self.extent - 1 - first) if step > 0 else (first - self.extent + 1, first)
            low, high = -(-inside[0] // abs(step)), inside[1] // abs(step)
            total += max(0, min(high, last) - max(low, 0) + 1)
        return total


def variables(*exprs: Expr) -> set[Var]:
    """Return the variables in some expressions."""
    return {node for expr in exprs for node in walk(expr) if isinstance(node, Var)}


def used(dims: Iterable[Dimension]) -> set[Var]:
    """Return the variables that some indices of an operand depend on."""
    return {var for dim in dims for var in dim.variables}


def dimensions(shape: Sequence[int], index: Sequence[Expr], ranges: Ranges) -> tuple[Dimension, ...]:
    """Return the indices of an operand as linear forms with extents and strides, outermost first."""
    found: list[Dimension] = []
    stride = 1
    for extent, expr in reversed(list(zip(shape, index, strict=True))):
        low, high = bounds(expr, ranges)
        found.append(Dimension(linear(expr, ranges), extent, stride, low >= 0 and high < extent))
        stride *= extent
    return tuple(reversed(found))


def flat(dims: Iterable[Dimension]) -> Linear:
    """Return the row-major address of an element, as a linear form."""
    total = Linear()
    for dim in dims:
        total = total.plus(dim.index, dim.stride)
    return total


def points(axes: Sequence[te.Axis]) -> int:
    """Return the number of points of an iteration space: the product of the extents of some axes."""
    return math.prod(n for _, n in axes)


def row_axis(c: te.Contraction) -> int:
    """Return the index of the reduction axis along which weights are contiguous; raise Irregular if
    there is none.
    """
    held = variables(c.b_index[-1])
    found = [k for k, (var, _) in enumerate(c.reduce_axes) if var in held]
    if not found:
        raise Irregular("weights that are not in rows")
    return found[0]


def require_dense(position: Linear, axes: Sequence[te.Axis], distance: int) -> None:
    """Raise Irregular unless the points of some axes are contiguous in row-major order, `distance`
    elements apart.
    """
    for var, extent in reversed(axes):
        if extent > 1 and position.coefficient(var) != distance:
            raise Irregular("weights in another order")
        distance *= extent


def apart(dims: Sequence[Dimension], axes: Sequence[te.Axis]) -> int:
    """Return the distance in memory of an operand's neighbors along the last axis whose extent
    exceeds 1.

    Return 0 if the distance is not constant.
    """
    axis = next((var for var, extent in reversed(axes) if extent > 1), None)
    names: dict[Var, Expr] = {var: const(0) for dim in dims for var in dim.variables}
    first, second = (substitute(flat(dims).expr(), {**names, **one}) for one in ({}, {axis: const(1)} if axis else {}))
    difference = linear(second - first, {})
    return 0 if difference.terms else abs(difference.const)


def reach(dims: Iterable[Dimension], extents: Mapping[Var, int]) -> int:
    """Estimate the number of elements of an operand that are read when its variables take the given
    numbers of values.
    """
    found = 1
    for dim in dims:
        plain = {t: c for t, c in dim.index.terms.items() if isinstance(t, Var)}
        spans = (abs(c) * (extents.get(t, 1) - 1) for t, c in plain.items())
        whole = len(plain) < len(dim.index.terms)
        found *= dim.extent if whole else min(dim.extent, 1 + sum(spans))
    return found


def digits(axes: Sequence[te.Axis], number: Expr) -> dict[Var, Expr]:
    """Return the values of axes at a row-major number of their iteration space."""
    return graph.bind(axes, graph.unflatten(number, [extent for _, extent in axes]))


@frozen(eq=False)
class Analysis:
    """A contraction with the dependences of its operands on the output axes.

    c         the contraction
    a, b      the dimensions of data and weights
    ranges    the ranges of all axes
    pixel     axes that only `a` depends on (rows of a matrix, positions of an image)
    channel   axes that `b` depends on, and perhaps `a` too (output channels, groups, batches of
              matrices)
    """

    c: te.Contraction
    a: tuple[Dimension, ...]
    b: tuple[Dimension, ...]
    ranges: dict[Var, tuple[int, int]]
    pixel: tuple[te.Axis, ...]
    channel: tuple[te.Axis, ...]


def analyze(c: te.Contraction, whole: bool = True) -> Analysis:
    """Return the output axes that the operands of a contraction depend on.

    Raise Irregular if `whole` is True and its weights may be read out of range.
    """
    ranges = graph.axis_ranges((*c.axes, *c.reduce_axes))
    a = dimensions(c.a.shape, c.a_index, ranges)
    b = dimensions(c.b.shape, c.b_index, ranges)
    of_a, of_b = used(a), used(b)
    if whole and not all(d.inside for d in b):
        raise Irregular("the weights are read out of range")
    pixel = tuple((v, n) for v, n in c.axes if v in of_a and v not in of_b)
    channel = tuple((v, n) for v, n in c.axes if v in of_b)
    return Analysis(c, a, b, ranges, pixel, channel)


def in_groups(c: te.Contraction) -> tuple[Analysis, Var]:
    """Split a reduction axis into steps of groups, for dot-product instructions.

    Return the contraction with the axis divided, and the variable that counts within a group. The
    groups are the groups of packed weights; for other weights they are along an axis of the data,
    preferably one along which it is contiguous. Raise Irregular if there is none.
    """
    ranges = graph.axis_ranges((*c.axes, *c.reduce_axes))
    position = flat(dimensions(c.a.shape, c.a_index, ranges))
    held = variables(c.b_index[-1]) if c.group else {var for var, n in c.reduce_axes if n > 1}
    fitting = [axis for axis in c.reduce_axes if axis[0] in held]
    if not fitting or (c.block and not c.group):
        raise Irregular("weights without groups")

    def worth(axis: te.Axis) -> tuple[bool, int]:
        return position.coefficient(axis[0]) == 1, axis[1]

    var, extent = axis = max(fitting, key=worth)
    group, steps, place = c.group or GROUP, Var(var.name), Var("g")
    names: dict[Var, Expr] = {var: steps * group + place}
    axes = tuple((steps, -(-extent // group)) if one is axis else one for one in c.reduce_axes)
    a_index = tuple(substitute(i, names) for i in c.a_index)
    b_index = tuple(substitute(i, names) for i in c.b_index)
    whole = replace(c, a_index=a_index, b_index=b_index, group=group)
    every = replace(whole, reduce_axes=(*axes, (place, group)))
    found = analyze(every, bool(c.group))
    return replace(found, c=replace(whole, reduce_axes=axes)), place


def in_order(c: te.Contraction) -> te.Contraction:
    """Move taps (reduction axes that share an index of the data with an output axis) before the
    other reduction axes.

    This is the summation order on `ordered` targets: tiles with borders can keep to it without a
    copy of the data.
    """
    outer = {var for var, _ in c.axes}
    shared = [found for index in c.a_index if (found := variables(index)) & outer]
    axes = sorted(c.reduce_axes, key=lambda axis: not any(axis[0] in found for found in shared))
    return replace(c, reduce_axes=tuple(axes))


def divided(c: te.Contraction) -> tuple[te.Contraction, Callable[[Sequence[Expr]], tuple[Expr, ...]]]:
    """Split the channel axis of a grouped convolution into groups and channels of a group.

    The data of a grouped convolution is read at `channel // per_group`. With two axes, a tile of
    channels of one group reads common data, as in an ungrouped convolution, and the groups are an
    additional outer loop. Return the contraction, and a function that maps its output indices to
    those of `c`. Other contractions are returned unchanged.
    """
    found = next(((n, per) for n, (var, _) in enumerate(c.axes) if (per := _quotient(c, var))), None)
    if found is None:
        return c, tuple
    number, per_group = found
    var, extent = c.axes[number]
    group, inner = Var(f"{var.name}g"), Var(var.name)
    axes = (*c.axes[:number], (group, extent // per_group), (inner, per_group), *c.axes[number + 1 :])
    ranges = graph.axis_ranges((*axes, *c.reduce_axes))
    names: dict[Var, Expr] = {var: group * per_group + inner}
    a_index, b_index = (
        tuple(simplify(substitute(index, names), ranges) for index in operand) for operand in (c.a_index, c.b_index)
    )
    shape = tuple(n for _, n in axes)
    lane = inner if c.lane is var else c.lane

    def joined(at: Sequence[Expr]) -> tuple[Expr, ...]:
        return (*at[:number], at[number] * per_group + at[number + 1], *at[number + 2 :])

    return replace(c, shape=shape, axes=axes, a_index=a_index, b_index=b_index, lane=lane), joined


def _quotient(c: te.Contraction, var: Var) -> int:
    """Return the number by which the data's indices divide an output axis; 0 if there is none or it
    does not divide the extent.
    """
    extent = next(n for v, n in c.axes if v is var)
    quotients = [n for index in c.a_index for n in walk(index) if isinstance(n, Binary) and n.op == "floordiv"]
    divisors = {n.b.value for n in quotients if n.a is var and isinstance(n.b, Const)}
    per_group = divisors.pop() if len(divisors) == 1 else 0
    return int(per_group) if per_group > 1 and extent % per_group == 0 and extent > per_group else 0


def finite_weights(c: te.Contraction) -> bool:
    """Return True if the weights are known to contain no infinity and no NaN."""
    weights = graph.base(c.b)
    return not weights.dtype.is_float or (isinstance(weights, te.Placeholder) and weights.finite)


def independent(dims: Iterable[Dimension], var: Var) -> bool:
    """Return True if no index of an operand depends on a variable."""
    return var not in used(dims)


def fusible(outer: te.Axis, inner: te.Axis, position: Linear, dims: Iterable[Dimension]) -> bool:
    """Return True if two neighboring output axes can be fused for an operand: no border, and no gap
    between rows.
    """
    if any(not d.inside and d.variables & {outer[0], inner[0]} for d in dims):
        return False
    step, unit = position.coefficient(outer[0]), position.coefficient(inner[0])
    return bool(step and unit and step == unit * inner[1])


@frozen(eq=False)
class Split:
    """The operands with an axis of the weights written as tile * size + lane; unchanged if there is
    no axis.

    An axis that is read as quotient and remainder (groups, packed blocks) becomes affine by this.
    """

    axis: te.Axis | None
    size: int
    tile: Var
    lane: Var
    a: Sequence[Dimension]
    b: Sequence[Dimension]
    ranges: dict[Var, tuple[int, int]]

    @staticmethod
    def of(analysis: Analysis, axis: te.Axis | None, size: int) -> Split:
        """Return the operands of a contraction with an axis of the weights split into tiles of
        `size`.
        """
        c, lane = analysis.c, Var("lane")
        if axis is None:
            return Split(None, size, Var("c"), lane, analysis.a, analysis.b, analysis.ranges)
        var, extent = axis
        tile = Var(var.name)
        ranges = {**analysis.ranges, tile: (0, (extent - 1) // size), lane: (0, size - 1)}
        place: dict[Var, Expr] = {var: tile if size == 1 else tile * size + lane}
        a, b = (
            dimensions(operand.shape, [substitute(i, place) for i in index], ranges)
            for operand, index in ((c.a, c.a_index), (c.b, c.b_index))
        )
        return Split(axis, size, tile, lane, a, b, ranges)

    @property
    def names(self) -> tuple[Var, Var, int]:
        """The variables that replace the axis and the tile size, as in TileAxis.split."""
        return self.tile, self.lane, self.size


@frozen(eq=False)
class Pixels:
    """The axes of the data, with axes that are adjacent in memory fused; the fused axis has the
    inner axis's variable.

    axes       the axes
    position   the address of an element of the data
    unfuse     the original axes as expressions of the fused axes
    """

    axes: tuple[te.Axis, ...]
    position: Linear
    unfuse: dict[Var, Expr]


def fused(analysis: Analysis, dims: Sequence[Dimension], position: Linear) -> Pixels:
    """Return the axes of the data with fusible axes fused; axes on which `dims` have a border are
    not fused.
    """
    order = [var for var, _ in analysis.c.axes]
    axes: list[te.Axis] = []
    unfuse: dict[Var, Expr] = {}
    for var, extent in analysis.pixel:
        outer = axes[-1] if axes else None
        adjacent = outer is not None and order.index(var) == order.index(outer[0]) + 1
        if outer is None or not adjacent or not fusible(outer, (var, extent), position, dims):
            axes.append((var, extent))
            continue
        position = Linear({t: k for t, k in position.terms.items() if t is not outer[0]}, position.const)
        unfuse = {v: substitute(e, {outer[0]: var // extent}) for v, e in unfuse.items()}
        unfuse.setdefault(outer[0], var // extent)
        unfuse[var] = var % extent
        axes[-1] = (var, outer[1] * extent)
    return Pixels(tuple(axes), position, unfuse)
