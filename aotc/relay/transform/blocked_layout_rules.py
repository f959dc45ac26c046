# SPDX-License-Identifier: Apache-2.0
"""How operators work on tensors whose layout has blocks: the rules of AlterOpLayout and ConvertLayout for those.

BLOCKS = Order("NCHW", "NCHW16c")
plan(sum_call, [BLOCKS])               # axis 1 -> axes 1 and 4, keepdims: Order("NCHW", "NCHW1c")
plan(slice_call, [BLOCKS])             # along channels by whole blocks, or None: it must see the data as it was

Blocks that would have to be filled up are none: `holds_as_much` says of a planned call whether there are any.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import gcd
from typing import Any

from aotc.ir import Attrs, Dim, TensorType, Type, frozen
from aotc.ir import Layout as Kind
from aotc.relay.expr import Call, op_of, tensor_type_of, type_of
from aotc.relay.op.join import concatenate, split
from aotc.relay.op.layout import Layout
from aotc.relay.op.pad import PadAttrs
from aotc.relay.op.reduce import ReduceAttrs
from aotc.relay.op.rules import axes_of, pointwise
from aotc.relay.op.slice import StridedSliceAttrs
from aotc.relay.transform.convert_layout_rules import (
    AS_IT_WAS,
    Order,
    Plan,
    first_known,
    flat_types,
    plan_following,
    plan_layouts,
    ranks_of,
)


def plan(call: Call, orders: Sequence[Order]) -> Plan | None:
    """How `call` works on arguments in these orders, some in blocks; None if it must see them as they were."""
    op, a = op_of(call), call.attrs
    if op.named_layouts[1]:
        return plan_layouts(call, a["data_layout"], a["kernel_layout"])
    if op.layout_kind in (Kind.CHOICE, Kind.FOLLOW):
        return plan_following(call, orders[0])
    if op.axes is pointwise:
        return _broadcast(call, orders)
    order = first_known(orders)
    blocks = _Blocks.of(order)
    ranks = ranks_of(*map(type_of, call.args))
    if blocks is None or ranks[0] != len(order.old):
        return None
    return blocks.plan(call, ranks)


def holds_as_much(old: Call, new: Call, plan: Plan) -> bool:
    """Whether results in blocks have the extents of the original ones."""
    before, after = (flat_types([type_of(c)]) for c in (old, new))
    results = zip(before, after, plan.outputs, strict=True)
    return all(_same_extents(b, a, o) for b, a, o in results)


def _same_extents(before: Type, after: Type, order: Order) -> bool:
    if not order.is_known or not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return before == after
    layouts = (Layout.parse(order.old), before), (Layout.parse(order.new), after)
    if any(len(layout.axes) != ty.rank for layout, ty in layouts):
        return False
    first, second = (layout.extents(ty.shape) for layout, ty in layouts)
    return first == second


# --- elementwise operators that broadcast


def _broadcast(call: Call, orders: Sequence[Order]) -> Plan | None:
    """All tensors of the result's rank in one order; others get the axes that they lack, and blocks of 1 along them."""
    types = [tensor_type_of(x) for x in call.args]
    rank = tensor_type_of(call).rank
    order = first_known([o for o, ty in zip(orders, types, strict=True) if ty.rank == rank])
    inputs = [_operand(ty, order, rank) for ty in types] if order.is_known else [None]
    found = tuple(o for o in inputs if o is not None)
    return Plan(found, (order,), call.attrs) if len(found) == len(inputs) else None


def _operand(ty: TensorType, order: Order, rank: int) -> Order | None:
    """The order for one operand."""
    if ty.rank < rank and all(d == 1 for d in ty.shape):
        return AS_IT_WAS
    shape = (1,) * (rank - ty.rank) + tuple(ty.shape)
    whole = Layout.parse(order.old)
    if len(whole.axes) != rank or (ty.rank < rank and not order.old.isupper()):
        return None
    along: dict[str, Dim] = {}
    for (letter, _), d in zip(whole.axes, shape, strict=True):
        along[letter] = d if along.get(letter, 1) == 1 else along[letter]
    ones = {letter for letter, d in along.items() if d == 1}
    return Order(*(_with_ones(layout, ones) for layout in (order.old, order.new)))


def _with_ones(layout: str, letters: set[str]) -> str:
    """A layout with blocks of 1 along some axes."""
    return re.sub(r"\d+([a-z])", lambda m: f"1{m[1]}" if m[1].upper() in letters else m[0], layout)


# --- operators along axes


@frozen
class _Blocks:
    """The axes of an order: `places[k]` are those that hold the original axis k, `size[k]` the elements of a block."""

    order: Order
    places: tuple[tuple[int, ...], ...]
    size: tuple[int, ...]

    @classmethod
    def of(cls, order: Order) -> _Blocks | None:
        """None for an unknown order, and where the original one has blocks."""
        if not order.old.isupper():
            return None
        layout = Layout.parse(order.new)
        places = (tuple(j for j, (found, _) in enumerate(layout.axes) if found == letter) for letter in order.old)
        return cls(order, tuple(places), tuple(layout.blocks(letter) for letter in order.old))

    def plan(self, call: Call, ranks: Sequence[int]) -> Plan | None:
        """The call with its arguments of the first one's rank in this order."""
        a: Any = call.attrs
        attrs: Attrs | None = None
        after = self.order
        match a:
            case ReduceAttrs():
                attrs, after = self._reduced(a)
            case PadAttrs():
                attrs = self._padded(a)
            case StridedSliceAttrs():
                attrs = self._sliced(a)
            case _ if call.op is concatenate:
                attrs = a.replace(axis=self.places[a.axis % len(self.places)][0])
            case _ if call.op is split:
                attrs = self._split(a)
        if attrs is None:
            return None
        inputs = tuple(self.order if rank == ranks[0] else AS_IT_WAS for rank in ranks)
        return Plan(inputs, (after,) * len(flat_types([type_of(call)])), attrs)

    def _reduced(self, a: ReduceAttrs) -> tuple[Attrs, Order]:
        named = axes_of(a.axis, len(self.places))
        rank = len(self.places)
        others = a.exclude and a.axis is not None
        gone = {k for k in range(rank) if (k in named) != others}
        axis = None if a.axis is None else tuple(sorted(j for k in named for j in self.places[k]))
        letters = {self.order.old[k] for k in gone}
        if a.keepdims:
            return a.replace(axis=axis), Order(self.order.old, _with_ones(self.order.new, letters))
        pattern = "|".join(rf"\d+{letter.lower()}|{letter}" for letter in sorted(letters)) or "$"
        left = (re.sub(pattern, "", layout) for layout in (self.order.old, self.order.new))
        return a.replace(axis=axis), Order(*left)

    def _padded(self, a: PadAttrs) -> Attrs | None:
        widths = [(0, 0)] * sum(map(len, self.places))
        for width, places in zip(a.pad_width, self.places, strict=True):
            if len(places) > 1 and tuple(width) != (0, 0):
                return None
            widths[places[0]] = width
        return a.replace(pad_width=tuple(widths))

    def _sliced(self, a: StridedSliceAttrs) -> Attrs | None:
        """Along an axis in blocks whole ones are cut out, one after the other."""
        axes = [k % len(self.places) for k in (range(len(a.begin)) if a.axes is None else a.axes)]
        begin, end = list(a.begin), list(a.end)
        for k, axis in enumerate(axes):
            size = self.size[axis]
            if size == 1:
                continue
            step = a.strides[k % len(a.strides)]
            if a.slice_mode != "end" or step != 1:
                return None
            if begin[k] % size or end[k] % size:
                return None
            begin[k], end[k] = begin[k] // size, end[k] // size
        places = tuple(self.places[axis][0] for axis in axes)
        as_before = a.axes is None and places == tuple(range(len(places)))
        return a.replace(begin=tuple(begin), end=tuple(end), axes=None if as_before else places)

    def _split(self, a: Any) -> Attrs | None:
        axis = a.axis % len(self.places)
        where, size = a.indices_or_sections, self.size[axis]
        if not isinstance(where, int):
            if gcd(size, *where) != size:
                return None
            where = tuple(index // size for index in where)
        return a.replace(indices_or_sections=where, axis=self.places[axis][0])  # type: ignore[no-any-return]
