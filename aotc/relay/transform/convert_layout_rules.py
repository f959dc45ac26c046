# SPDX-License-Identifier: Apache-2.0
"""Layout rules of ConvertLayout: how an operator works on tensors whose axes were reordered.

NHWC = AxisOrder("NCHW", "NHWC")                   # called NCHW in the original program, NHWC now
plan_call_layout(softmax_call, [NHWC])       # LayoutPlan(inputs=(NHWC,), outputs=(NHWC,), attrs=axis 1 -> axis 3)
plan_call_layout(reshape_call, [NHWC])             # None: it must see its argument as it was
BLOCKS = AxisOrder("NCHW", "NCHW16c")
plan_call_layout(sum_call, [BLOCKS])           # axis 1 -> axes 1 and 4, keepdims: AxisOrder("NCHW", "NCHW1c")
plan_call_layout(slice_call, [BLOCKS])             # along channels by whole blocks, or None

The rules are derived from each operator's axis map and from the facets that name its axis
attributes (`Op.layout_treatment`, `Op.moved`). Only operators that support blocked layouts have
rules of their own. Every plan is checked against the axis maps of the operator before and after,
or, for blocked layouts, against the extents of its results: a layout whose blocks would need
padding is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from math import gcd
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, Op, TensorType, TupleType, Type, frozen
from aotc.ir import LayoutTreatment as Kind
from aotc.relay.expr import Call, axis_map_of_call, require_op_of_call, tensor_type_of, type_of
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.concat_split import concatenate, split
from aotc.relay.op.gather import take
from aotc.relay.op.layout import Layout, remove_blocks_from_layout
from aotc.relay.op.pad import PadAttrs
from aotc.relay.op.reduce import ReduceAttrs
from aotc.relay.op.slice import StridedSliceAttrs
from aotc.relay.op.type_rules import elementwise_axis_map, normalize_axes
from aotc.relay.op.window_attributes import KERNEL_LAYOUT_BY_RANK


@frozen
class AxisOrder:
    """Axis order of a tensor: its layout in the original program and its layout now.

    Both layouts have the same letters and may have blocks. Both are empty if the order is unknown,
    which means that it is the original one.
    """

    old: str = ""
    new: str = ""

    @property
    def is_known_axis_order(self) -> bool:
        return bool(self.old)

    def current_position_of_original_axis(self, axis: int) -> int:
        """Return the current position of an axis of the original tensor."""
        return self.new.index(self.old[axis]) if self.old else axis

    @property
    def has_blocked_axes(self) -> bool:
        return not (self.old + self.new).isupper() and self.is_known_axis_order

    def with_original_axes_renamed(self, layout: str) -> AxisOrder:
        """Return this axis order with the original axes renamed to the letters of `layout`."""
        old, new = remove_blocks_from_layout(self.old), remove_blocks_from_layout(layout)
        names = str.maketrans(old + old.lower(), new + new.lower())
        return AxisOrder(self.old.translate(names), self.new.translate(names))

    def without_axes(self, axes: Sequence[int]) -> AxisOrder:
        """Return the axis order of a tensor from which these axes (numbered as in the original) are
        removed.
        """
        removed_letters = {self.old[k] for k in axes}
        return AxisOrder(*("".join(c for c in layout if c not in removed_letters) for layout in (self.old, self.new)))


ORIGINAL_ORDER: Final = AxisOrder()


@frozen
class LayoutPlan:
    """Layout plan of one call: the axis orders of its operands and results, and its new attributes.

    inputs    the order in which each argument tensor is expected (fields of tuples one by one); an argument
              whose rank is lower than its order's is first expanded with leading axes
    outputs   the order of each result tensor
    attrs     the attributes of the new call
    """

    inputs: tuple[AxisOrder, ...]
    outputs: tuple[AxisOrder, ...]
    attrs: Attrs


def flatten_tuple_types(types: Iterable[Type]) -> list[Type]:
    """Return the types with each tuple replaced by its fields."""
    return list(chain.from_iterable(t.fields if isinstance(t, TupleType) else (t,) for t in types))


def ranks_of_flattened_types(*types: Type) -> list[int]:
    return [t.rank if isinstance(t, TensorType) else -1 for t in flatten_tuple_types(types)]


# --- desired layouts


#: The operators whose layout can be chosen, by name.
CONVERTIBLE: Final = {name: op for name, op in OPERATORS_BY_NAME.items() if op.layout_treatment is Kind.CHOICE}


def default_kernel_layout(op: Op, data_layout: str, depthwise: bool) -> str:
    """Return the default kernel layout for a data layout in which the channels come last or follow
    the batch.
    """
    _, kernel = op.default_data_and_kernel_layouts
    if data_layout.startswith("NC"):
        return kernel
    return kernel[2:] + ("OI" if depthwise and kernel == KERNEL_LAYOUT_BY_RANK[2] else "IO")


def plan_with_layouts(call: Call, layout: str, kernel_layout: str = "") -> LayoutPlan:
    """Return the layout plan of a call with its layout attributes set to `layout` and, if given,
    `kernel_layout`.
    """
    name = "data_layout" if kernel_layout else "layout"
    changes = {name: layout, **(_kernel_layout_attr_changes(call, kernel_layout) if kernel_layout else {})}
    if layout != call.attrs[name] and hasattr(call.attrs, "out_layout"):
        changes["out_layout"] = ""
    return plan_with_attrs(call, call.attrs.replace(**changes))


def plan_with_attrs(call: Call, new_attrs: Attrs) -> LayoutPlan:
    """Return the layout plan of a call with new attributes; operands that no layout attribute
    describes are not reordered.
    """
    old = call.attrs
    names = [n for n in ("data_layout", "layout", "kernel_layout") if hasattr(old, n)]
    before, after = ([a[n] for n in names] for a in (old, new_attrs))
    out = (getattr(a, "out_layout", "") or data for a, (data, *_) in ((old, before), (new_attrs, after)))
    data, *kernel = map(AxisOrder, before, after)
    # operands before the kernel have the layout of the data
    count = next((k for k, arg in enumerate(require_op_of_call(call).args) if arg.name in ("kernel", "weight")), 1)
    rest_orders = [ORIGINAL_ORDER] * (len(call.args) - count - len(kernel))
    return LayoutPlan((*[data] * count, *kernel, *rest_orders), (AxisOrder(*out),), new_attrs)


def plan_following_data_order(call: Call, order: AxisOrder) -> LayoutPlan:
    """Return the layout plan of a call whose layout attribute follows the order of its data, if the
    ranks agree.
    """
    layout: str = call.attrs["layout"]
    fits = len(remove_blocks_from_layout(order.old)) == len(remove_blocks_from_layout(layout))
    return plan_with_layouts(call, order.with_original_axes_renamed(layout).new if fits else layout)


def _kernel_layout_attr_changes(call: Call, layout: str) -> dict[str, Any]:
    """Return the attributes of a convolution that change with its kernel's layout."""
    a: Any = call.attrs
    if not a.kernel_layout.isalpha() and layout.isalpha():  # the kernel is packed already
        return {"kernel_layout": a.kernel_layout}
    if layout.isalpha() or not a.kernel_layout.isalpha():
        return {"kernel_layout": layout}
    # a blocked layout hides the number of channels, so state it
    extent = dict(zip(a.kernel_layout, tensor_type_of(call.args[1]).static_shape, strict=True))
    spatial = tuple(extent[c] for c in require_op_of_call(call).default_data_and_kernel_layouts[1][2:])
    return {"kernel_layout": layout, "channels": extent["O"], "kernel_size": spatial}


# --- plans


def plan_call_layout(call: Call, orders: Sequence[AxisOrder]) -> LayoutPlan | None:
    """Return the layout plan of a call on operands in these axis orders; None if it needs them in
    their original order.
    """
    op, a = require_op_of_call(call), call.attrs
    kind = op.layout_treatment
    if kind is Kind.BARRIER:
        return None
    if op.default_data_and_kernel_layouts[1]:  # without a desired layout a convolution keeps its own
        return plan_with_layouts(call, a["data_layout"], a["kernel_layout"])
    if kind in (Kind.CHOICE, Kind.FOLLOW):
        return plan_following_data_order(call, orders[0])
    if isinstance(op.layout, str):
        return _plan_keeping_data_axis_order(call, AxisOrder(op.layout, op.layout))
    if op.axes is elementwise_axis_map:
        return _plan_elementwise(call, orders)
    if _is_lookup_in_1d_table(call):
        return LayoutPlan((ORIGINAL_ORDER, orders[1]), (orders[1],), a)
    order, ranks = first_reordered_or_known_axis_order(orders), ranks_of_flattened_types(*map(type_of, call.args))
    if not order.is_known_axis_order or len(order.old) != ranks[0]:
        return None
    if not order.has_blocked_axes:
        return _plan_by_axis_map(call, order, ranks)
    return _Blocks.from_order(order).plan_blocked_call(call, ranks) if order.old.isupper() else None


def _is_lookup_in_1d_table(call: Call) -> bool:
    """Return True for a call of `take` that maps each index to an entry of a one-dimensional table."""
    return (
        require_op_of_call(call) is take and tensor_type_of(call.args[0]).rank == 1 and call.attrs["axis"] is not None
    )


def _plan_keeping_data_axis_order(call: Call, order: AxisOrder) -> LayoutPlan | None:
    """Return the layout plan of an operator whose data and result have one fixed layout; None if
    the rank differs.
    """
    data, *other_ranks = ranks_of_flattened_types(*map(type_of, call.args))
    if data == len(order.old):
        return LayoutPlan((order, *(ORIGINAL_ORDER for _ in other_ranks)), (order,), call.attrs)
    return None


def first_reordered_or_known_axis_order(orders: Sequence[AxisOrder]) -> AxisOrder:
    """Return the first axis order that differs from the original one, or else the first known
    order.
    """
    known = [o for o in orders if o.is_known_axis_order]
    return next((o for o in known if o.old != o.new), known[0] if known else ORIGINAL_ORDER)


def _plan_elementwise(call: Call, orders: Sequence[AxisOrder]) -> LayoutPlan | None:
    """Return the layout plan of an elementwise call that has all operands of the result's rank in
    one axis order.

    It is the order of the first operand that is reordered, or else of the first that is known.
    Operands of lower rank are expanded, with blocks of 1 along the new axes. None if there is no
    such plan.
    """
    types, (rank, *other_ranks) = [tensor_type_of(x) for x in call.args], ranks_of_flattened_types(type_of(call))
    order = first_reordered_or_known_axis_order([o for o, ty in zip(orders, types, strict=True) if ty.rank == rank])
    if not order.is_known_axis_order or len(Layout.parse_layout(order.old).axes) != rank:
        return None
    if not order.old.isupper() and any(_needs_broadcast_axes_made_explicit(ty, order, rank) for ty in types):
        return None
    laid = [ty.rank == rank or _needs_broadcast_axes_made_explicit(ty, order, rank) for ty in types]
    inputs = (
        _axis_order_with_unit_blocks_for_operand(ty, order) if has_order else ORIGINAL_ORDER
        for ty, has_order in zip(types, laid, strict=True)
    )
    return LayoutPlan(tuple(inputs), (order,) * (1 + len(other_ranks)), call.attrs)


def _needs_broadcast_axes_made_explicit(ty: TensorType, order: AxisOrder, rank: int) -> bool:
    """Return True for an operand of lower rank that needs explicit axes in a blocked or reordered
    layout.

    A single element does not: it broadcasts in any blocked order.
    """
    return 0 < ty.rank < rank and not (order.has_blocked_axes and all(d == 1 for d in ty.shape))


def _axis_order_with_unit_blocks_for_operand(ty: TensorType, order: AxisOrder) -> AxisOrder:
    """Return the axis order for one operand: `order` with blocks of 1 along the axes where the
    operand has extent 1.
    """
    letters = [letter for letter, _ in Layout.parse_layout(order.old).axes]
    shape = (1,) * (len(letters) - ty.rank) + tuple(ty.shape)
    ones = set(letters) - {letter for letter, d in zip(letters, shape, strict=True) if d != 1}
    return AxisOrder(*(_layout_with_unit_blocks_for_letters(layout, ones) for layout in (order.old, order.new)))


def _layout_with_unit_blocks_for_letters(layout: str, letters: set[str]) -> str:
    """Return a layout with block size 1 along the axes in `letters`."""
    return re.sub(r"\d+([a-z])", lambda m: f"1{m[1]}" if m[1].upper() in letters else m[0], layout)


def _plan_by_axis_map(call: Call, order: AxisOrder, ranks: Sequence[int]) -> LayoutPlan | None:
    """Return the layout plan of a call derived from its axis map; None if attributes or axes cannot
    be renumbered.

    Arguments of the data's rank have the data's order, results the order that the axis map implies.
    """
    results, axes = ranks_of_flattened_types(type_of(call)), axis_map_of_call(call)
    attrs = _renumber_axis_attrs(call, order, axes) if axes is not None else None
    if axes is None or attrs is None:
        return None
    inputs = tuple(order if r == ranks[0] else ORIGINAL_ORDER for r in ranks)
    row = axes.inputs[0]
    mapped_axes = [k for k in row if k is not None]
    if len(row) != ranks[0]:
        result_order = order.without_axes([k for k in range(ranks[0]) if k not in mapped_axes])
    else:
        result_order = order if all(k == axis for k, axis in enumerate(row) if axis is not None) else ORIGINAL_ORDER
    if result_order.is_known_axis_order and len(result_order.old) != results[0]:  # the operator adds axes
        return None
    return LayoutPlan(inputs, tuple(result_order if r == results[0] else ORIGINAL_ORDER for r in results), attrs)


def _renumber_axis_attrs(call: Call, order: AxisOrder, axes: AxisMap) -> Attrs | None:
    """Return the attributes for reordered data, or None unless each axis is mapped or named by the
    attribute `axis`.
    """
    op, a = require_op_of_call(call), call.attrs
    if op.moved is not None:
        return op.moved(a, [type_of(x) for x in call.args], order.current_position_of_original_axis)
    axis, rank = getattr(a, "axis", ()), len(order.old)
    if axis is None or not set(range(rank)) <= {*axes.inputs[0], *(k % rank for k in np.atleast_1d(axis))}:
        return None
    if isinstance(axis, int):
        return a.replace(axis=order.current_position_of_original_axis(axis % rank))
    return a.replace(axis=tuple(order.current_position_of_original_axis(k % rank) for k in axis)) if axis else a


# --- plans in blocks


@frozen
class _Blocks:
    """Axes of a blocked layout: `places[k]` are the axes that hold original axis k, `size[k]` its
    block size.
    """

    order: AxisOrder
    places: tuple[tuple[int, ...], ...]
    size: tuple[int, ...]

    @classmethod
    def from_order(cls, order: AxisOrder) -> _Blocks:
        """Return the blocked axes for an axis order whose original layout has no blocks."""
        layout = Layout.parse_layout(order.new)
        places = (
            tuple(j for j, (axis_letter, _) in enumerate(layout.axes) if axis_letter == letter) for letter in order.old
        )
        return cls(order, tuple(places), tuple(layout.elements_per_block(letter) for letter in order.old))

    def plan_blocked_call(self, call: Call, ranks: Sequence[int]) -> LayoutPlan | None:
        """Return the layout plan of a reduction, pad, slice, concatenate or split on blocked
        tensors; None if there is none.
        """
        a: Any = call.attrs
        attrs: Attrs | None = None
        after = self.order
        match a:
            case ReduceAttrs():
                attrs, after = self._blocked_reduce_attrs_and_order(a)
            case PadAttrs():
                attrs = self._blocked_pad_attrs(a)
            case StridedSliceAttrs():
                attrs = self._blocked_slice_attrs(a)
            case _ if call.op is concatenate:
                attrs = a.replace(axis=self.places[a.axis % len(self.places)][0])
            case _ if call.op is split:
                attrs = self._blocked_split_attrs(a)
        if attrs is None:
            return None
        inputs = tuple(self.order if rank == ranks[0] else ORIGINAL_ORDER for rank in ranks)
        return LayoutPlan(inputs, (after,) * len(flatten_tuple_types([type_of(call)])), attrs)

    def _blocked_reduce_attrs_and_order(self, attrs: ReduceAttrs) -> tuple[Attrs, AxisOrder]:
        named = normalize_axes(attrs.axis, len(self.places))
        rank = len(self.places)
        is_complement = attrs.exclude and attrs.axis is not None
        reduced_axes = {k for k in range(rank) if (k in named) != is_complement}
        axis = None if attrs.axis is None else tuple(sorted(j for k in named for j in self.places[k]))
        letters = {self.order.old[k] for k in reduced_axes}
        if attrs.keepdims:
            return attrs.replace(axis=axis), AxisOrder(
                self.order.old, _layout_with_unit_blocks_for_letters(self.order.new, letters)
            )
        pattern = "|".join(rf"\d+{letter.lower()}|{letter}" for letter in sorted(letters)) or "$"
        left = (re.sub(pattern, "", layout) for layout in (self.order.old, self.order.new))
        return attrs.replace(axis=axis), AxisOrder(*left)

    def _blocked_pad_attrs(self, attrs: PadAttrs) -> Attrs | None:
        widths: list[Any] = [(0, 0)] * sum(map(len, self.places))
        for width, places in zip(attrs.pad_width, self.places, strict=True):
            if len(places) > 1 and tuple(width) != (0, 0):
                return None
            widths[places[0]] = width
        return attrs.replace(pad_width=tuple(widths))

    def _blocked_slice_attrs(self, attrs: StridedSliceAttrs) -> Attrs | None:
        """Return the attributes of a slice that cuts whole blocks out of a blocked axis, or None if
        it does not.
        """
        axes = [k % len(self.places) for k in (range(len(attrs.begin)) if attrs.axes is None else attrs.axes)]
        begin, end = list(attrs.begin), list(attrs.end)
        for k, axis in enumerate(axes):
            size = self.size[axis]
            if size == 1:
                continue
            step = attrs.strides[k % len(attrs.strides)]
            if attrs.slice_mode != "end" or step != 1:
                return None
            first, last = begin[k], end[k]
            if not isinstance(first, int) or not isinstance(last, int) or first % size or last % size:
                return None
            begin[k], end[k] = first // size, last // size
        places = tuple(self.places[axis][0] for axis in axes)
        as_before = attrs.axes is None and places == tuple(range(len(places)))
        return attrs.replace(begin=tuple(begin), end=tuple(end), axes=None if as_before else places)

    def _blocked_split_attrs(self, attrs: Any) -> Attrs | None:
        axis = attrs.axis % len(self.places)
        where, size = attrs.indices_or_sections, self.size[axis]
        if not isinstance(where, int):
            if gcd(size, *where) != size:
                return None
            where = tuple(index // size for index in where)
        return attrs.replace(indices_or_sections=where, axis=self.places[axis][0])  # type: ignore[no-any-return]


# --- the check of a plan


def is_equivalent_up_to_axis_order(old: Call, new: Call, plan: LayoutPlan) -> bool:
    """Return True if a planned call is equivalent to the original one up to the order of axes.

    Its axis map must be the original's with renumbered axes. With blocks, its results, and the
    arguments of a grouped operator, must have the original extents: padded blocks would move
    channels from one group to another.
    """
    if any(o.has_blocked_axes for o in (*plan.inputs, *plan.outputs)):
        grouped = getattr(old.attrs, "groups", 1) > 1
        types, new_types = (flatten_tuple_types(map(type_of, (c, *(c.args if grouped else ())))) for c in (old, new))
        return all(map(_has_same_extents_in_new_axis_order, types, new_types, (*plan.outputs, *plan.inputs)))
    if new is old:
        return True
    before, after = axis_map_of_call(old), axis_map_of_call(new)
    if before is None or after is None:
        return before is after
    return after == _renumber_axis_map(before, [type_of(a) for a in old.args], plan)


def _renumber_axis_map(axes: AxisMap, types: Sequence[Type], plan: LayoutPlan) -> AxisMap:
    sizes = [len(t.fields) if isinstance(t, TupleType) else 1 for t in types]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    ranks, output = ranks_of_flattened_types(*types), plan.outputs[0]
    rows = []
    for row, start in zip(axes.inputs, starts, strict=False):
        order = plan.inputs[start]
        fresh: list[int | None] = [None] * len(row)
        for k, axis in enumerate(row):
            if axis is not None:
                fresh[output.current_position_of_original_axis(k)] = order.current_position_of_original_axis(
                    axis + max(0, len(order.old) - ranks[start])
                )
        rows.append(tuple(fresh))
    return AxisMap(tuple(rows))


def _has_same_extents_in_new_axis_order(before: Type, after: Type, order: AxisOrder) -> bool:
    if not order.is_known_axis_order or not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return before == after
    layouts = (Layout.parse_layout(order.old), before), (Layout.parse_layout(order.new), after)
    if any(len(layout.axes) != ty.rank for layout, ty in layouts):
        return False
    first, second = (layout.primal_extents(ty.shape) for layout, ty in layouts)
    return first == second
