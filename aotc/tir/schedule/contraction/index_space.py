# SPDX-License-Identifier: Apache-2.0
"""The index algebra of a contraction: who depends on which axis, and where an operand is out of range.

A te.Contraction in, an `Analysis` of it out; operands become `Operand`s, flat positions in a buffer:

    analysis = analyze(conv)
    analysis.pixel                         # the axes of the data only: n, oh, ow
    analysis.channel                       # the axes of the weights: oc
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

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
    """The contraction is not of the form that a schedule needs."""


@frozen
class Operand:
    """Elements of `buffer` at `flat`, an expression of the contraction's axes."""

    buffer: Buffer
    flat: Expr


@frozen
class Dimension:
    """One index of an operand: `index` is inside [0, extent) everywhere if `inside`."""

    index: Linear
    extent: int
    stride: int
    inside: bool

    @property
    def variables(self) -> set[Var]:
        """The variables that the index depends on."""
        return variables(*self.index.terms)

    def at(self, values: Mapping[Expr, int]) -> int:
        """The index where every variable has a value."""
        return self.index.const + sum(c * values[atom] for atom, c in self.index.terms.items())

    def has(self, values: Mapping[Expr, int]) -> bool:
        """Whether that index is in the data."""
        return 0 <= self.at(values) < self.extent


def variables(*exprs: Expr) -> set[Var]:
    """The variables of expressions."""
    return {node for expr in exprs for node in walk(expr) if isinstance(node, Var)}


def used(dims: Iterable[Dimension]) -> set[Var]:
    """The variables that dimensions depend on."""
    return {var for dim in dims for var in dim.variables}


def dimensions(shape: Sequence[int], index: Sequence[Expr], ranges: Ranges) -> tuple[Dimension, ...]:
    """The dimensions of an operand, outermost first."""
    found: list[Dimension] = []
    stride = 1
    for extent, expr in reversed(list(zip(shape, index, strict=True))):
        low, high = bounds(expr, ranges)
        found.append(Dimension(linear(expr, ranges), extent, stride, low >= 0 and high < extent))
        stride *= extent
    return tuple(reversed(found))


def flat(dims: Iterable[Dimension]) -> Linear:
    """The row-major position of an element."""
    total = Linear()
    for dim in dims:
        total = total.plus(dim.index, dim.stride)
    return total


def points(axes: Sequence[te.Axis]) -> int:
    """How many points some axes have in all."""
    return math.prod(n for _, n in axes)


def row_axis(c: te.Contraction) -> int:
    """The number of the reduction axis that weights lie along; Irregular where they lie along none."""
    held = variables(c.b_index[-1])
    found = [k for k, (var, _) in enumerate(c.reduce_axes) if var in held]
    if not found:
        raise Irregular("weights that are not in rows")
    return found[0]


def require_dense(position: Linear, axes: Sequence[te.Axis], distance: int) -> None:
    """Raise Irregular unless points of some axes lie one after the other, those of the last axis so far apart."""
    for var, extent in reversed(axes):
        if extent > 1 and position.coefficient(var) != distance:
            raise Irregular("weights in another order")
        distance *= extent


def apart(dims: Sequence[Dimension], axes: Sequence[te.Axis]) -> int:
    """How far from each other neighbors along the last one of some axes are in memory."""
    axis = next((var for var, extent in reversed(axes) if extent > 1), None)
    names: dict[Var, Expr] = {var: const(0) for dim in dims for var in dim.variables}
    first, second = (substitute(flat(dims).expr(), {**names, **one}) for one in ({}, {axis: const(1)} if axis else {}))
    difference = linear(second - first, {})
    return 0 if difference.terms else abs(difference.const)


def reach(dims: Iterable[Dimension], extents: Mapping[Var, int]) -> int:
    """About how many elements of an operand are read where its variables take so many values each, 1 if not named."""
    found = 1
    for dim in dims:
        plain = {t: c for t, c in dim.index.terms.items() if isinstance(t, Var)}
        spans = (abs(c) * (extents.get(t, 1) - 1) for t, c in plain.items())
        whole = len(plain) < len(dim.index.terms)
        found *= dim.extent if whole else min(dim.extent, 1 + sum(spans))
    return found


def digits(axes: Sequence[te.Axis], number: Expr) -> dict[Var, Expr]:
    """The values of axes at a row-major number."""
    return graph.bind(axes, graph.unflatten(number, [extent for _, extent in axes]))


@frozen(eq=False)
class Analysis:
    """Which operand depends on which output axis.

    pixel    axes of `a` only (rows of a matrix, positions of an image)
    channel  axes of `b`, perhaps of `a` too (output channels, groups, batches of matrices)
    """

    c: te.Contraction
    a: tuple[Dimension, ...]
    b: tuple[Dimension, ...]
    ranges: dict[Var, tuple[int, int]]
    pixel: tuple[te.Axis, ...]
    channel: tuple[te.Axis, ...]


def analyze(c: te.Contraction, whole: bool = True) -> Analysis:
    """The dependences of a contraction; `whole` says that its weights must be read in range."""
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
    """The contraction by steps over groups of a reduction axis, and what counts in a group.

    The groups are those of packed weights; for others they are along an axis of the data, if possible one along which
    it is contiguous.  Raises Irregular where there are none.
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
    """The contraction with its taps (reduction axes that share an index of the data with an axis of the output) first.

    It is the order of sums on `ordered` targets: tiles with borders can keep to it without a copy of the data.
    """
    outer = {var for var, _ in c.axes}
    shared = [found for index in c.a_index if (found := variables(index)) & outer]
    axes = sorted(c.reduce_axes, key=lambda axis: not any(axis[0] in found for found in shared))
    return replace(c, reduce_axes=tuple(axes))


def divided(c: te.Contraction) -> tuple[te.Contraction, Callable[[Sequence[Expr]], tuple[Expr, ...]]]:
    """The contraction with an output axis for groups of channels, and what maps its indices to those of `c`.

    The data of a grouped convolution is read at `channel // per_group`.  Where the axis of the channels is two, groups
    and the channels of one, tiles of channels of one group read the same data, as those of an ungrouped convolution
    do, and groups are one more loop outside.  Other contractions are returned as they are.
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
    """The number that the data's indices divide an output axis by, 0 if there is none or the axis is no multiple."""
    extent = next(n for v, n in c.axes if v is var)
    quotients = [n for index in c.a_index for n in walk(index) if isinstance(n, Binary) and n.op == "floordiv"]
    divisors = {n.b.value for n in quotients if n.a is var and isinstance(n.b, Const)}
    per_group = divisors.pop() if len(divisors) == 1 else 0
    return int(per_group) if per_group > 1 and extent % per_group == 0 and extent > per_group else 0


def finite_weights(c: te.Contraction) -> bool:
    """Whether the weights are known to hold no infinity and no NaN."""
    weights = graph.base(c.b)
    return not weights.dtype.is_float or (isinstance(weights, te.Placeholder) and weights.finite)


def independent(dims: Iterable[Dimension], var: Var) -> bool:
    return var not in used(dims)


def fusible(outer: te.Axis, inner: te.Axis, position: Linear, dims: Iterable[Dimension]) -> bool:
    """Whether two neighboring output axes are one in the operand: no border, no gap between rows."""
    if any(not d.inside and d.variables & {outer[0], inner[0]} for d in dims):
        return False
    step, unit = position.coefficient(outer[0]), position.coefficient(inner[0])
    return bool(step and unit and step == unit * inner[1])


@frozen(eq=False)
class Split:
    """The operands with an axis of the weights written as tile * size + lane; as they are if there is no axis.

    An axis that is read as quotient and remainder (groups, packed blocks) gets a plain form by it.
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
        """The operands for tiles of `size`."""
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
        """What the operands call a position of the axis, as in TileAxis."""
        return self.tile, self.lane, self.size


@frozen(eq=False)
class Pixels:
    """The axes of the data; neighbors that are one in memory have the inner one's variable."""

    axes: tuple[te.Axis, ...]
    position: Linear
    unfuse: dict[Var, Expr]


def fused(analysis: Analysis, dims: Sequence[Dimension], position: Linear) -> Pixels:
    """The axes of the data at `position`; those that `dims` give a border are not fused."""
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
