# SPDX-License-Identifier: Apache-2.0
"""How operators work on tensors whose axes come in another order: the layout rules of ConvertLayout.

NHWC = Order("NCHW", "NHWC")                       # called NCHW in the original program, NHWC now
plan_call(softmax_call, [NHWC])                    # Plan(inputs=(NHWC,), outputs=(NHWC,), attrs=axis 1 -> axis 3)
plan_call(reshape_call, [NHWC])                    # None: it must see its argument as it was

Elementwise and broadcasting operators need no rule of their own, their axis map is the rule; and every plan
must agree with the axis maps of the operator before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from aotc.ir.attrs import Attrs
from aotc.ir.op import AxisMap, Op
from aotc.ir.types import TensorType, TupleType, Type
from aotc.relay.expr import Call, type_of
from aotc.relay.op.reduce import reduced_axes
from aotc.relay.op.rules import pointwise
from aotc.relay.op.shape import permutation
from aotc.relay.op.window import DATA_LAYOUT, KERNEL_LAYOUT, TRANSPOSED_LAYOUT


@dataclass(frozen=True, slots=True)
class Order:
    """The axes of a tensor: as the original program orders them, and as they are ordered now.

    Both are layouts without blocks over the same letters, or two equal layouts; both are empty where nothing
    is known, and then the order is the original one.
    """

    old: str = ""
    new: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.old)

    def now(self, axis: int) -> int:
        """Where an axis of the original tensor is now."""
        return self.new.index(self.old[axis]) if self.old else axis

    def called(self, layout: str) -> Order:
        """The same order, the original axes called as in `layout`."""
        return Order(layout, "".join(layout[self.old.index(letter)] for letter in self.new))

    def without(self, axes: Sequence[int]) -> Order:
        """The order of a tensor from which axes (original numbers) were taken away."""
        gone = {self.old[k] for k in axes}
        return Order(*("".join(c for c in layout if c not in gone) for layout in (self.old, self.new)))


AS_IT_WAS: Final = Order()


@dataclass(frozen=True, slots=True)
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


def _ranks(types: Sequence[Type]) -> list[int]:
    return [t.rank if isinstance(t, TensorType) else -1 for t in flat_types(types)]


def _argument_ranks(call: Call) -> list[int]:
    return _ranks([type_of(a) for a in call.args])


def _result_ranks(call: Call) -> list[int]:
    return _ranks([type_of(call)])


# --- desired layouts


@dataclass(frozen=True, slots=True)
class Convertible:
    """An operator whose layout can be chosen: the axes of its data, and of its kernel if it has one."""

    data: str
    kernel: str = ""


def _convertible() -> dict[str, Convertible]:
    found: dict[str, Convertible] = {}
    for n, data in DATA_LAYOUT.items():
        found[f"nn.conv{n}d"] = Convertible(data, KERNEL_LAYOUT[n])
        found[f"nn.conv{n}d_transpose"] = Convertible(data, TRANSPOSED_LAYOUT[n])
        for kind in ("max", "avg"):
            found[f"nn.{kind}_pool{n}d"] = found[f"nn.adaptive_{kind}_pool{n}d"] = Convertible(data)
        found[f"image.resize{n}d"] = Convertible(data)
    for kind in ("max", "avg"):
        found[f"nn.global_{kind}_pool2d"] = Convertible(DATA_LAYOUT[2])
    return found


CONVERTIBLE: Final = _convertible()


def default_kernel(name: str, data_layout: str, depthwise: bool) -> str:
    """The kernel layout that goes with a data layout, which has the channels first or last after the batch."""
    kernel = CONVERTIBLE[name].kernel
    if data_layout.startswith("NC"):
        return kernel
    return kernel[2:] + ("OI" if depthwise and name == "nn.conv2d" else "IO")


def plan_conv(call: Call, data_layout: str, kernel_layout: str) -> Plan:
    """A convolution in the given layouts, which may be the ones that it has."""
    a: Any = call.attrs
    changes: dict[str, Any] = {}
    if not a.kernel_layout.isalpha():  # packed already
        kernel_layout = a.kernel_layout
    elif not kernel_layout.isalpha():  # to be packed: blocks hide how many channels there are
        weight = type_of(call.args[1])
        assert isinstance(weight, TensorType)
        extent = dict(zip(a.kernel_layout, weight.static_shape, strict=True))
        spatial = tuple(extent[c] for c in CONVERTIBLE[_name(call)].kernel[2:])
        changes = {"channels": extent["O"], "kernel_size": spatial}
    out = Order(a.out_layout or a.data_layout, data_layout)
    if data_layout == a.data_layout:
        out = Order(out.old, out.old)
    else:
        changes["out_layout"] = ""
    inputs = (Order(a.data_layout, data_layout), Order(a.kernel_layout, kernel_layout))
    return Plan(inputs, (out,), a.replace(data_layout=data_layout, kernel_layout=kernel_layout, **changes))


def plan_layout(call: Call, layout: str) -> Plan:
    """An operator with the attribute `layout`, in this layout."""
    a: Any = call.attrs
    out_layout = getattr(a, "out_layout", "")
    if layout == a.layout:
        out = out_layout or layout
        return Plan((Order(layout, layout),), (Order(out, out),), a)
    changes = {"out_layout": ""} if out_layout else {}
    attrs = a.replace(layout=layout, **changes)
    return Plan((Order(a.layout, layout),), (Order(out_layout or a.layout, layout),), attrs)


# --- rules


Rule = Callable[[Call, Sequence[Order]], "Plan | None"]


def _name(call: Call) -> str:
    assert isinstance(call.op, Op)
    return call.op.name


def _conv(call: Call, orders: Sequence[Order]) -> Plan | None:
    """Without a desired layout a convolution keeps its own."""
    a: Any = call.attrs
    return plan_conv(call, a.data_layout, a.kernel_layout)


def _follow(call: Call, orders: Sequence[Order]) -> Plan | None:
    """Pools and resizes take their data as it comes."""
    a: Any = call.attrs
    return plan_layout(call, orders[0].called(a.layout).new if orders[0].is_known else a.layout)


def _broadcast(call: Call, orders: Sequence[Order]) -> Plan | None:
    """All arguments in the order of the first that is reordered, or else of the first that is known."""
    ranks, (rank, *_) = _argument_ranks(call), _result_ranks(call)
    whole = [o for o, r in zip(orders, ranks, strict=True) if o.is_known and r == rank]
    if not whole:
        return None
    order = next((o for o in whole if o.old != o.new), whole[0])
    inputs = tuple(order if r else AS_IT_WAS for r in ranks)
    return Plan(inputs, (order,), call.attrs)


def _same_rank(call: Call, order: Order, attrs: Attrs) -> Plan:
    """Arguments and results of the data's rank in its order, others as they were."""
    ranks = _argument_ranks(call)

    def orders(found: Sequence[int]) -> tuple[Order, ...]:
        return tuple(order if r == ranks[0] else AS_IT_WAS for r in found)

    return Plan(orders(ranks), orders(_result_ranks(call)), attrs)


def _first_known(orders: Sequence[Order]) -> Order:
    known = [o for o in orders if o.is_known]
    return next((o for o in known if o.old != o.new), known[0] if known else AS_IT_WAS)


def _renumbered(order: Order, axis: int | tuple[int, ...]) -> int | tuple[int, ...]:
    rank = len(order.old)
    return order.now(axis % rank) if isinstance(axis, int) else tuple(order.now(k % rank) for k in axis)


def _axis(call: Call, orders: Sequence[Order]) -> Plan | None:
    """Operators along `axis`; without an axis they work on the flattened tensor, which is as it was."""
    a: Any = call.attrs
    order = _first_known(orders)
    if not order.is_known or a.axis is None or len(order.old) != _argument_ranks(call)[0]:
        return None
    return _same_rank(call, order, a.replace(axis=_renumbered(order, a.axis)))


def _channel_groups(call: Call, orders: Sequence[Order]) -> Plan | None:
    """Norms of each element of the batch, which must stay the first axis."""
    return _axis(call, orders) if orders[0].now(0) == 0 else None


def _any_axes(call: Call, orders: Sequence[Order]) -> Plan | None:
    """Operators on each element that have several results."""
    return _same_rank(call, orders[0], call.attrs) if orders[0].is_known else None


def _reduce(call: Call, orders: Sequence[Order]) -> Plan | None:
    """The kept axes stay in order.  The position of an extremum over several axes depends on their order."""
    a: Any = call.attrs
    order = _first_known(orders)
    if not order.is_known:
        return None
    axes = reduced_axes(a, len(order.old))
    if _name(call) in ("argmax", "argmin") and len(axes) != 1:
        return None
    attrs = a.replace(axis=tuple(sorted(order.now(k) for k in axes)), exclude=False)
    result = order if a.keepdims else order.without(axes)
    return Plan((order,) * len(orders), (result,), attrs)


def _squeeze(call: Call, orders: Sequence[Order]) -> Plan | None:
    a: Any = call.attrs
    order, data = orders[0], type_of(call.args[0])
    if not order.is_known or not isinstance(data, TensorType):
        return None
    every = tuple(k for k, d in enumerate(data.shape) if d == 1)
    axes = every if a.axis is None else tuple(k % data.rank for k in a.axis)
    attrs = a.replace(axis=tuple(sorted(order.now(k) for k in axes)))
    return Plan((order,), (order.without(axes),), attrs)


def _transpose(call: Call, orders: Sequence[Order]) -> Plan | None:
    """A transposition of the data as it is now gives what it gave before, so that the order ends here."""
    a: Any = call.attrs
    order = orders[0]
    if not order.is_known:
        return None
    axes = tuple(order.now(k) for k in permutation(a, len(order.old)))
    return Plan((order,), (AS_IT_WAS,), a.replace(axes=axes))


def _pad(call: Call, orders: Sequence[Order]) -> Plan | None:
    a: Any = call.attrs
    order = orders[0]
    if not order.is_known:
        return None
    widths = tuple(a.pad_width[order.old.index(letter)] for letter in order.new)
    return _same_rank(call, order, a.replace(pad_width=widths))


def _strided_slice(call: Call, orders: Sequence[Order]) -> Plan | None:
    a: Any = call.attrs
    order = orders[0]
    if not order.is_known:
        return None
    axes = tuple(range(len(a.begin))) if a.axes is None else a.axes
    return _same_rank(call, order, a.replace(axes=_renumbered(order, axes)))


def _dense(call: Call, orders: Sequence[Order]) -> Plan | None:
    """Rows of channels: NC in, NC out."""
    order = Order("NC", "NC")
    return Plan((order, AS_IT_WAS), (order,), call.attrs) if _argument_ranks(call)[0] == 2 else None


_ALONG_AXIS: Final = (
    "nn.batch_norm", "nn.layer_norm", "nn.l2_normalize", "nn.lrn", "nn.fast_softmax",
    "nn.softmax", "nn.log_softmax", "nn.bias_add", "nn.prelu", "concatenate", "split", "repeat", "reverse",
    "cumsum", "cumprod", "sort", "argsort", "topk",
)  # fmt: skip
_REDUCTIONS: Final = ("sum", "mean", "max", "min", "prod", "all", "any", "argmax", "argmin", "variance")
_FOLLOWERS: Final = ("nn.upsampling", "nn.depth_to_space", "nn.space_to_depth")

RULES: Final[dict[str, Rule]] = {
    **{name: _conv if c.kernel else _follow for name, c in CONVERTIBLE.items()},
    **dict.fromkeys(_FOLLOWERS, _follow),
    **dict.fromkeys(_ALONG_AXIS, _axis),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    "nn.instance_norm": _channel_groups,
    "nn.group_norm": _channel_groups,
    "nn.dropout": _any_axes,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "nn.pad": _pad,
    "nn.mirror_pad": _pad,
    "strided_slice": _strided_slice,
    "nn.dense": _dense,
}


def plan_call(call: Call, orders: Sequence[Order]) -> Plan | None:
    """How `call` works on arguments in these orders; None if it must see them as they were."""
    op = call.op
    assert isinstance(op, Op)
    rule = _broadcast if op.axes is pointwise else RULES.get(op.name)
    return rule(call, orders) if rule is not None else None


# --- the check of a plan


def agrees(old: Call, new: Call, plan: Plan) -> bool:
    """Whether the axis map of the planned call is that of the original one, renumbered."""
    assert isinstance(old.op, Op)
    if old.op.axes is None:
        return True
    before = old.op.axes(old.attrs, [type_of(a) for a in old.args])
    after = old.op.axes(new.attrs, [type_of(a) for a in new.args])
    if before is None or after is None:
        return before is after
    return after == _renumbered_map(before, [type_of(a) for a in old.args], plan)


def _renumbered_map(axes: AxisMap, types: Sequence[Type], plan: Plan) -> AxisMap:
    sizes = [len(t.fields) if isinstance(t, TupleType) else 1 for t in types]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    ranks, output = _ranks(types), plan.outputs[0]
    rows = []
    for row, start in zip(axes.inputs, starts, strict=False):
        order = plan.inputs[start]
        fresh: list[int | None] = [None] * len(row)
        for k, axis in enumerate(row):
            if axis is not None:
                fresh[output.now(k)] = order.now(axis + max(0, len(order.old) - ranks[start]))
        rows.append(tuple(fresh))
    return AxisMap(tuple(rows))
