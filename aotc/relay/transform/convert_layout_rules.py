# SPDX-License-Identifier: Apache-2.0
"""How operators work on tensors whose axes come in another order: the layout rules of ConvertLayout.

NHWC = Order("NCHW", "NHWC")                       # called NCHW in the original program, NHWC now
plan_call(softmax_call, [NHWC])                    # Plan(inputs=(NHWC,), outputs=(NHWC,), attrs=axis 1 -> axis 3)
plan_call(reshape_call, [NHWC])                    # None: it must see its argument as it was

What an operator does to its axes says its axis map, and which of its attributes name axes say its facets
(`Op.layout_kind`, `Op.moved`): there is no rule for any operator here.  Every plan must agree with the axis maps of
the operator before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, Layout, Op, TensorType, TupleType, Type, frozen
from aotc.relay.expr import Call, axis_map, op_of, tensor_type_of, type_of
from aotc.relay.op import REGISTRY
from aotc.relay.op.layout import without_blocks
from aotc.relay.op.rules import pointwise
from aotc.relay.op.window import KERNEL_LAYOUT


@frozen
class Order:
    """The axes of a tensor: as the original program orders them, and as they are ordered now.

    Both are layouts over the same letters, which may have blocks; both are empty where nothing is known, and then the
    order is the original one.
    """

    old: str = ""
    new: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.old)

    def now(self, axis: int) -> int:
        """Where an axis of the original tensor is now."""
        return self.new.index(self.old[axis]) if self.old else axis

    @property
    def in_blocks(self) -> bool:
        return not (self.old + self.new).isupper() and self.is_known

    def called(self, layout: str) -> Order:
        """This order, the original axes called as in `layout`."""
        old, new = without_blocks(self.old), without_blocks(layout)
        names = str.maketrans(old + old.lower(), new + new.lower())
        return Order(self.old.translate(names), self.new.translate(names))

    def without(self, axes: Sequence[int]) -> Order:
        """The order of a tensor from which axes (original numbers) were taken away."""
        gone = {self.old[k] for k in axes}
        return Order(*("".join(c for c in layout if c not in gone) for layout in (self.old, self.new)))


AS_IT_WAS: Final = Order()


@frozen
class Plan:
    """A call on reordered tensors.

    inputs    the order that each argument tensor is wanted in (fields of tuples one by one); an argument of
              lower rank than its order is first expanded in front
    outputs   the order of each result tensor
    attrs     the attributes to call with
    """

    inputs: tuple[Order, ...]
    outputs: tuple[Order, ...]
    attrs: Attrs


def flat_types(types: Sequence[Type]) -> list[Type]:
    """Types with tuples replaced by their fields."""
    return list(chain.from_iterable(t.fields if isinstance(t, TupleType) else (t,) for t in types))


def ranks_of(*types: Type) -> list[int]:
    return [t.rank if isinstance(t, TensorType) else -1 for t in flat_types(types)]


# --- desired layouts


#: The operators whose layout can be chosen.
CONVERTIBLE: Final = {name: op for name, op in REGISTRY.items() if op.layout_kind is Layout.CHOICE}


def default_kernel(op: Op, data_layout: str, depthwise: bool) -> str:
    """The kernel layout that goes with a data layout, which has the channels first or last after the batch."""
    _, kernel = op.named_layouts
    if data_layout.startswith("NC"):
        return kernel
    return kernel[2:] + ("OI" if depthwise and kernel == KERNEL_LAYOUT[2] else "IO")


def plan_layouts(call: Call, layout: str, kernel_layout: str = "") -> Plan:
    """An operator whose attributes name a layout, and perhaps a kernel's, in these, which may be those that it has."""
    a: Any = call.attrs
    name = "data_layout" if kernel_layout else "layout"
    out = getattr(a, "out_layout", "") or a[name]
    changes: dict[str, Any] = {name: layout}
    inputs = [Order(a[name], layout)]
    if kernel_layout:
        changes |= _kernel_changes(call, kernel_layout)
        inputs.append(Order(a.kernel_layout, changes["kernel_layout"]))
    inputs += [AS_IT_WAS] * (len(call.args) - len(inputs))  # zero points, scales, regions
    if layout == a[name]:
        return Plan(tuple(inputs), (Order(out, out),), a.replace(**changes))
    if hasattr(a, "out_layout"):
        changes["out_layout"] = ""
    return Plan(tuple(inputs), (Order(out, layout),), a.replace(**changes))


def plan_following(call: Call, order: Order) -> Plan:
    """An operator whose attributes name a layout in the order of its data, or in its own where that has other axes."""
    layout: str = call.attrs["layout"]
    fits = len(without_blocks(order.old)) == len(without_blocks(layout))
    return plan_layouts(call, order.called(layout).new if fits else layout)


def _kernel_changes(call: Call, layout: str) -> dict[str, Any]:
    """The attributes of a convolution that change with the layout of its kernel."""
    a: Any = call.attrs
    if not a.kernel_layout.isalpha() and layout.isalpha():  # packed already
        return {"kernel_layout": a.kernel_layout}
    if layout.isalpha() or not a.kernel_layout.isalpha():
        return {"kernel_layout": layout}
    # to be packed: blocks hide how many channels there are
    extent = dict(zip(a.kernel_layout, tensor_type_of(call.args[1]).static_shape, strict=True))
    spatial = tuple(extent[c] for c in op_of(call).named_layouts[1][2:])
    return {"kernel_layout": layout, "channels": extent["O"], "kernel_size": spatial}


# --- plans


def plan_call(call: Call, orders: Sequence[Order]) -> Plan | None:
    """How `call` works on arguments in these orders; None if it must see them as they were."""
    op, a = op_of(call), call.attrs
    kind = op.layout_kind
    if kind is Layout.BARRIER:
        return None
    if op.named_layouts[1]:  # without a desired layout a convolution keeps its own
        return plan_layouts(call, a["data_layout"], a["kernel_layout"])
    if kind in (Layout.CHOICE, Layout.FOLLOW):
        return plan_following(call, orders[0])
    if isinstance(op.layout, str):
        return _always(call, Order(op.layout, op.layout))
    return _broadcast(call, orders) if op.axes is pointwise else _carried(call, orders)


def _always(call: Call, order: Order) -> Plan | None:
    """Data and result in the one order that there is, where they have its rank."""
    data, *others = ranks_of(*map(type_of, call.args))
    return Plan((order, *(AS_IT_WAS for _ in others)), (order,), call.attrs) if data == len(order.old) else None


def first_known(orders: Sequence[Order]) -> Order:
    """The first order that is another than the original one, or else the first that is known."""
    known = [o for o in orders if o.is_known]
    return next((o for o in known if o.old != o.new), known[0] if known else AS_IT_WAS)


def _broadcast(call: Call, orders: Sequence[Order]) -> Plan | None:
    """All arguments in the order of the first that is reordered, or else of the first that is known."""
    ranks, results = ranks_of(*map(type_of, call.args)), ranks_of(type_of(call))
    order = first_known([o for o, r in zip(orders, ranks, strict=True) if r == results[0]])
    if not order.is_known:
        return None
    return Plan(tuple(order if r else AS_IT_WAS for r in ranks), (order,) * len(results), call.attrs)


def _carried(call: Call, orders: Sequence[Order]) -> Plan | None:
    """Arguments of the data's rank in its order; results in the order in which the axis map says that they come."""
    ranks, results, order = ranks_of(*map(type_of, call.args)), ranks_of(type_of(call)), first_known(orders)
    if not order.is_known or len(order.old) != ranks[0]:
        return None
    axes = axis_map(call)
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
    if found.is_known and len(found.old) != results[0]:  # axes are new
        return None
    return Plan(inputs, tuple(found if r == results[0] else AS_IT_WAS for r in results), attrs)


def _moved(call: Call, order: Order, axes: AxisMap) -> Attrs | None:
    """The attributes for data in another order, if each axis is mapped or named by the attribute `axis`."""
    op, a = op_of(call), call.attrs
    if op.moved is not None:
        return op.moved(a, [type_of(x) for x in call.args], order.now)
    axis, rank = getattr(a, "axis", ()), len(order.old)
    if axis is None or not set(range(rank)) <= {*axes.inputs[0], *(k % rank for k in np.atleast_1d(axis))}:
        return None
    if isinstance(axis, int):
        return a.replace(axis=order.now(axis % rank))
    return a.replace(axis=tuple(order.now(k % rank) for k in axis)) if axis else a


# --- the check of a plan


def agrees(old: Call, new: Call, plan: Plan) -> bool:
    """Whether the axis map of the planned call is that of the original one, renumbered."""
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
