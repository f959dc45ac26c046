# SPDX-License-Identifier: Apache-2.0
"""Layout rules of ConvertLayout: how an operator works on tensors whose axes were reordered.

NHWC = Order("NCHW", "NHWC")                       # called NCHW in the original program, NHWC now
plan_call(softmax_call, [NHWC])                    # Plan(inputs=(NHWC,), outputs=(NHWC,), attrs=axis 1 -> axis 3)
plan_call(reshape_call, [NHWC])                    # None: it must see its argument as it was
BLOCKS = Order("NCHW", "NCHW16c")
plan_call(sum_call, [BLOCKS])                      # axis 1 -> axes 1 and 4, keepdims: Order("NCHW", "NCHW1c")
plan_call(slice_call, [BLOCKS])                    # along channels by whole blocks, or None

The rules are derived from each operator's axis map and from the facets that name its axis
attributes (`Op.layout_kind`, `Op.moved`). Only operators that support blocked layouts have rules of
their own. Every plan is checked against the axis maps of the operator before and after, or, for
blocked layouts, against the extents of its results: a layout whose blocks would need padding is
rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from math import gcd
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, Op, TensorType, TupleType, Type, frozen
from aotc.ir import Layout as Kind
from aotc.relay.expr import Call, axis_map, op_of, tensor_type_of, type_of
from aotc.relay.op import REGISTRY
from aotc.relay.op.concat_split import concatenate, split
from aotc.relay.op.layout import Layout, without_blocks
from aotc.relay.op.pad import PadAttrs
from aotc.relay.op.reduce import ReduceAttrs
from aotc.relay.op.slice import StridedSliceAttrs
from aotc.relay.op.type_rules import axes_of, pointwise
from aotc.relay.op.window_attributes import KERNEL_LAYOUT


@frozen
class Order:
    """Axis order of a tensor: its layout in the original program and its layout now.

    Both layouts have the same letters and may have blocks. Both are empty if the order is unknown,
    which means that it is the original one.
    """

    old: str = ""
    new: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.old)

    def now(self, axis: int) -> int:
        """Return the current position of an axis of the original tensor."""
        return self.new.index(self.old[axis]) if self.old else axis

    @property
    def in_blocks(self) -> bool:
        return not (self.old + self.new).isupper() and self.is_known

    def called(self, layout: str) -> Order:
        """Return this axis order with the original axes renamed to the letters of `layout`."""
        old, new = without_blocks(self.old), without_blocks(layout)
        names = str.maketrans(old + old.lower(), new + new.lower())
        return Order(self.old.translate(names), self.new.translate(names))

    def without(self, axes: Sequence[int]) -> Order:
        """Return the axis order of a tensor from which these axes (numbered as in the original) are
        removed.
        """
        gone = {self.old[k] for k in axes}
        return Order(*("".join(c for c in layout if c not in gone) for layout in (self.old, self.new)))


AS_IT_WAS: Final = Order()


@frozen
class Plan:
    """Layout plan of one call: the axis orders of its operands and results, and its new attributes.

    inputs    the order in which each argument tensor is expected (fields of tuples one by one); an argument
              whose rank is lower than its order's is first expanded with leading axes
    outputs   the order of each result tensor
    attrs     the attributes of the new call
    """

    inputs: tuple[Order, ...]
    outputs: tuple[Order, ...]
    attrs: Attrs


def flat_types(types: Iterable[Type]) -> list[Type]:
    """Return the types with each tuple replaced by its fields."""
    return list(chain.from_iterable(t.fields if isinstance(t, TupleType) else (t,) for t in types))


def ranks_of(*types: Type) -> list[int]:
    return [t.rank if isinstance(t, TensorType) else -1 for t in flat_types(types)]


# --- desired layouts


#: The operators whose layout can be chosen, by name.
CONVERTIBLE: Final = {name: op for name, op in REGISTRY.items() if op.layout_kind is Kind.CHOICE}


def default_kernel(op: Op, data_layout: str, depthwise: bool) -> str:
    """Return the default kernel layout for a data layout in which the channels come last or follow
    the batch.
    """
    _, kernel = op.named_layouts
    if data_layout.startswith("NC"):
        return kernel
    return kernel[2:] + ("OI" if depthwise and kernel == KERNEL_LAYOUT[2] else "IO")


def plan_layouts(call: Call, layout: str, kernel_layout: str = "") -> Plan:
    """Return the layout plan of a call with its layout attributes set to `layout` and, if given,
    `kernel_layout`.
    """
    name = "data_layout" if kernel_layout else "layout"
    changes = {name: layout, **(_kernel_changes(call, kernel_layout) if kernel_layout else {})}
    if layout != call.attrs[name] and hasattr(call.attrs, "out_layout"):
        changes["out_layout"] = ""
    return plan_attrs(call, call.attrs.replace(**changes))


def plan_attrs(call: Call, new: Attrs) -> Plan:
    """Return the layout plan of a call with new attributes; operands that no layout attribute
    describes are not reordered.
    """
    old = call.attrs
    names = [n for n in ("data_layout", "layout", "kernel_layout") if hasattr(old, n)]
    before, after = ([a[n] for n in names] for a in (old, new))
    out = (getattr(a, "out_layout", "") or data for a, (data, *_) in ((old, before), (new, after)))
    data, *kernel = map(Order, before, after)
    # operands before the kernel have the layout of the data
    count = next((k for k, arg in enumerate(op_of(call).args) if arg.name in ("kernel", "weight")), 1)
    others = [AS_IT_WAS] * (len(call.args) - count - len(kernel))
    return Plan((*[data] * count, *kernel, *others), (Order(*out),), new)


def plan_following(call: Call, order: Order) -> Plan:
    """Return the layout plan of a call whose layout attribute follows the order of its data, if the
    ranks agree.
    """
    layout: str = call.attrs["layout"]
    fits = len(without_blocks(order.old)) == len(without_blocks(layout))
    return plan_layouts(call, order.called(layout).new if fits else layout)


def _kernel_changes(call: Call, layout: str) -> dict[str, Any]:
    """Return the attributes of a convolution that change with its kernel's layout."""
    a: Any = call.attrs
    if not a.kernel_layout.isalpha() and layout.isalpha():  # the kernel is packed already
        return {"kernel_layout": a.kernel_layout}
    if layout.isalpha() or not a.kernel_layout.isalpha():
        return {"kernel_layout": layout}
    # a blocked layout hides the number of channels, so state it
    extent = dict(zip(a.kernel_layout, tensor_type_of(call.args[1]).static_shape, strict=True))
    spatial = tuple(extent[c] for c in op_of(call).named_layouts[1][2:])
    return {"kernel_layout": layout, "channels": extent["O"], "kernel_size": spatial}


# --- plans


def plan_call(call: Call, orders: Sequence[Order]) -> Plan | None:
    """Return the layout plan of a call on operands in these axis orders; None if it needs them in
    their original order.
    """
    op, a = op_of(call), call.attrs
    kind = op.layout_kind
    if kind is Kind.BARRIER:
        return None
    if op.named_layouts[1]:  # without a desired layout a convolution keeps its own
        return plan_layouts(call, a["data_layout"], a["kernel_layout"])
    if kind in (Kind.CHOICE, Kind.FOLLOW):
        return plan_following(call, orders[0])
    if isinstance(op.layout, str):
        return _always(call, Order(op.layout, op.layout))
    if op.axes is pointwise:
        return _broadcast(call, orders)
    order, ranks = first_known(orders), ranks_of(*map(type_of, call.args))
    if not order.is_known or len(order.old) != ranks[0]:
        return None
    if not order.in_blocks:
        return _carried(call, order, ranks)
    return _Blocks.of(order).plan(call, ranks) if order.old.isupper() else None


def _always(call: Call, order: Order) -> Plan | None:
    """Return the layout plan of an operator whose data and result have one fixed layout; None if
    the rank differs.
    """
    data, *others = ranks_of(*map(type_of, call.args))
    if data == len(order.old):
        return Plan((order, *(AS_IT_WAS for _ in others)), (order,), call.attrs)
    return None


def first_known(orders: Sequence[Order]) -> Order:
    """Return the first axis order that differs from the original one, or else the first known
    order.
    """
    known = [o for o in orders if o.is_known]
    return next((o for o in known if o.old != o.new), known[0] if known else AS_IT_WAS)


def _broadcast(call: Call, orders: Sequence[Order]) -> Plan | None:
    """Return the layout plan of an elementwise call that has all operands of the result's rank in
    one axis order.

    It is the order of the first operand that is reordered, or else of the first that is known.
    Operands of lower rank are expanded, with blocks of 1 along the new axes. None if there is no
    such plan.
    """
    types, (rank, *others) = [tensor_type_of(x) for x in call.args], ranks_of(type_of(call))
    order = first_known([o for o, ty in zip(orders, types, strict=True) if ty.rank == rank])
    if not order.is_known or len(Layout.parse(order.old).axes) != rank:
        return None
    if not order.old.isupper() and any(_lacks_axes(ty, order, rank) for ty in types):
        return None
    laid = [ty.rank == rank or _lacks_axes(ty, order, rank) for ty in types]
    inputs = (_operand(ty, order) if own else AS_IT_WAS for ty, own in zip(types, laid, strict=True))
    return Plan(tuple(inputs), (order,) * (1 + len(others)), call.attrs)


def _lacks_axes(ty: TensorType, order: Order, rank: int) -> bool:
    """Return True for an operand of lower rank that needs explicit axes in a blocked or reordered
    layout.

    A single element does not: it broadcasts in any blocked order.
    """
    return 0 < ty.rank < rank and not (order.in_blocks and all(d == 1 for d in ty.shape))


def _operand(ty: TensorType, order: Order) -> Order:
    """Return the axis order for one operand: `order` with blocks of 1 along the axes where the
    operand has extent 1.
    """
    letters = [letter for letter, _ in Layout.parse(order.old).axes]
    shape = (1,) * (len(letters) - ty.rank) + tuple(ty.shape)
    ones = set(letters) - {letter for letter, d in zip(letters, shape, strict=True) if d != 1}
    return Order(*(_with_ones(layout, ones) for layout in (order.old, order.new)))


def _with_ones(layout: str, letters: set[str]) -> str:
    """Return a layout with block size 1 along the axes in `letters`."""
    return re.sub(r"\d+([a-z])", lambda m: f"1{m[1]}" if m[1].upper() in letters else m[0], layout)


def _carried(call: Call, order: Order, ranks: Sequence[int]) -> Plan | None:
    """Return the layout plan of a call derived from its axis map; None if attributes or axes cannot
    be renumbered.

    Arguments of the data's rank have the data's order, results the order that the axis map implies.
    """
    results, axes = ranks_of(type_of(call)), axis_map(call)
    attrs = _moved(call, order, axes) if axes is not None else None
    if axes is None or attrs is None:
        return None
    inputs = tuple(order if r == ranks[0] else AS_IT_WAS for r in ranks)
    row = axes.inputs[0]
    kept = [k for k in row if k is not None]
    if len(row) != ranks[0]:
        found = order.without([k for k in range(ranks[0]) if k not in kept])
    else:
        found = order if all(k == axis for k, axis in enumerate(row) if axis is not None) else AS_IT_WAS
    if found.is_known and len(found.old) != results[0]:  # the operator adds axes
        return None
    return Plan(inputs, tuple(found if r == results[0] else AS_IT_WAS for r in results), attrs)


def _moved(call: Call, order: Order, axes: AxisMap) -> Attrs | None:
    """Return the attributes for reordered data, or None unless each axis is mapped or named by the
    attribute `axis`.
    """
    op, a = op_of(call), call.attrs
    if op.moved is not None:
        return op.moved(a, [type_of(x) for x in call.args], order.now)
    axis, rank = getattr(a, "axis", ()), len(order.old)
    if axis is None or not set(range(rank)) <= {*axes.inputs[0], *(k % rank for k in np.atleast_1d(axis))}:
        return None
    if isinstance(axis, int):
        return a.replace(axis=order.now(axis % rank))
    return a.replace(axis=tuple(order.now(k % rank) for k in axis)) if axis else a


# --- plans in blocks


@frozen
class _Blocks:
    """Axes of a blocked layout: `places[k]` are the axes that hold original axis k, `size[k]` its
    block size.
    """

    order: Order
    places: tuple[tuple[int, ...], ...]
    size: tuple[int, ...]

    @classmethod
    def of(cls, order: Order) -> _Blocks:
        """Return the blocked axes for an axis order whose original layout has no blocks."""
        layout = Layout.parse(order.new)
        places = (tuple(j for j, (found, _) in enumerate(layout.axes) if found == letter) for letter in order.old)
        return cls(order, tuple(places), tuple(layout.blocks(letter) for letter in order.old))

    def plan(self, call: Call, ranks: Sequence[int]) -> Plan | None:
        """Return the layout plan of a reduction, pad, slice, concatenate or split on blocked
        tensors; None if there is none.
        """
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
        """Return the attributes of a slice that cuts whole blocks out of a blocked axis, or None if
        it does not.
        """
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


# --- the check of a plan


def agrees(old: Call, new: Call, plan: Plan) -> bool:
    """Return True if a planned call is equivalent to the original one up to the order of axes.

    Its axis map must be the original's with renumbered axes. With blocks, its results, and the
    arguments of a grouped operator, must have the original extents: padded blocks would move
    channels from one group to another.
    """
    if any(o.in_blocks for o in (*plan.inputs, *plan.outputs)):
        grouped = getattr(old.attrs, "groups", 1) > 1
        types, others = (flat_types(map(type_of, (c, *(c.args if grouped else ())))) for c in (old, new))
        return all(map(_same_extents, types, others, (*plan.outputs, *plan.inputs)))
    if new is old:
        return True
    before, after = axis_map(old), axis_map(new)
    if before is None or after is None:
        return before is after
    return after == _renumbered_map(before, [type_of(a) for a in old.args], plan)


def _renumbered_map(axes: AxisMap, types: Sequence[Type], plan: Plan) -> AxisMap:
    sizes = [len(t.fields) if isinstance(t, TupleType) else 1 for t in types]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    ranks, output = ranks_of(*types), plan.outputs[0]
    rows = []
    for row, start in zip(axes.inputs, starts, strict=False):
        order = plan.inputs[start]
        fresh: list[int | None] = [None] * len(row)
        for k, axis in enumerate(row):
            if axis is not None:
                fresh[output.now(k)] = order.now(axis + max(0, len(order.old) - ranks[start]))
        rows.append(tuple(fresh))
    return AxisMap(tuple(rows))


def _same_extents(before: Type, after: Type, order: Order) -> bool:
    if not order.is_known or not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return before == after
    layouts = (Layout.parse(order.old), before), (Layout.parse(order.new), after)
    if any(len(layout.axes) != ty.rank for layout, ty in layouts):
        return False
    first, second = (layout.extents(ty.shape) for layout, ty in layouts)
    return first == second
