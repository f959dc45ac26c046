# SPDX-License-Identifier: Apache-2.0
"""ConvertLayout: convert operators to the layouts that the user asks for, and propagate the layouts
between them.

ConvertLayout({"nn.conv2d": ["NHWC", "HWIO"]})
nn.conv2d(%x, %w)   =>   nn.conv2d(layout_transform(%x, src_layout="NCHW", dst_layout="NHWC"),
                                   layout_transform(%w, src_layout="OIHW", dst_layout="HWIO"),
                                   data_layout="NHWC", kernel_layout="HWIO")

Input: typed functions. Output: equivalent functions with unchanged parameters. An operator that
follows works in the new layout if it has a layout rule. Otherwise, and at the boundaries of
functions, tensors are transformed back. FoldConstant evaluates the transforms of weights.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final

from aotc.ir import AotcError, AotcValueError, Op, TensorType, TupleType, frozen, installed_ops, nearest, span_scope
from aotc.ir.frozen_dataclass import fill
from aotc.relay.expr import Call, Expr, Function, Tuple, TupleGetItem, as_function, call, op_of, tensor_type_of, type_of
from aotc.relay.op.layout import Layout, LayoutTransformAttrs, layout_transform, without_blocks
from aotc.relay.op.shape import expand_dims
from aotc.relay.transform import convert_layout_rules as rules
from aotc.relay.transform.convert_layout_rules import AS_IT_WAS, CONVERTIBLE, Order, Plan
from aotc.relay.transform.pass_base import FunctionPass, outside_kernels
from aotc.relay.visitor import post_order, rebuild

LOG: Final = logging.getLogger("aotc.pass")


@dataclass(frozen=True, repr=False)
class ConvertLayout(FunctionPass):
    """Pass that converts operators to desired layouts.

    desired_layouts   operator name to [data layout], or to [data layout, kernel layout] for a convolution;
                      the kernel layout "default" is the one that goes with the data layout, and is accepted
                      for operators without a kernel. Layouts may have blocks ("NCHW16c", "OIHW4i16o")

    Raise AotcValueError (code "desired-layout") for a layout that an operator cannot have. Log a
    warning for each kind of operator that could be converted but has no desired layout, and for
    each entry whose operator has no choice of layouts.
    """

    opt_level = 3
    required = ("InferType", "CanonicalizeOps")

    desired_layouts: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        known = {name: layouts for name, layouts in self.desired_layouts.items() if _known(name)}
        checked = {name: _checked(name, layouts) for name, layouts in known.items()}
        fill(self, desired_layouts=MappingProxyType(checked))

    def rewritten(self, function: Function) -> Function:
        return convert(function, self.desired_layouts)


def convert(function: Function, desired: Mapping[str, Sequence[str]], quiet: bool = False) -> Function:
    """Return `function` with operators in the desired layouts (see ConvertLayout); `quiet`
    suppresses the warnings.
    """
    return Converter(desired, warned=set(CONVERTIBLE) if quiet else set()).convert_function(function)


def _refuse(name: str, message: str, hint: str = "") -> AotcValueError:
    return AotcValueError("desired-layout", f"desired layouts of {name}: {message}", hint=hint)


def _known(name: str) -> bool:
    """Return True if the layout of operator `name` can be chosen; otherwise log a warning.

    A program may name operators of other compilers, hence the warning. Raise AotcValueError for an
    unknown operator in one of the installed families ("nn", "image", ...).
    """
    family = name.rpartition(".")[0]
    if name not in installed_ops() and any(op.rpartition(".")[0] == family for op in CONVERTIBLE):
        raise _refuse(name, "there is no such operator", nearest(name, CONVERTIBLE))
    if name not in CONVERTIBLE:
        LOG.warning("The layout of %s cannot be chosen. %s", name, nearest(name, CONVERTIBLE))
    return name in CONVERTIBLE


def _checked(name: str, layouts: Sequence[str]) -> tuple[str, ...]:
    """Validate the desired layouts of one operator and return them as a tuple; raise AotcValueError
    if they are invalid.
    """
    axes, kernel_axes = CONVERTIBLE[name].named_layouts
    if isinstance(layouts, str) or not all(isinstance(item, str) for item in layouts):
        raise _refuse(name, f"expected a list of layouts, got {layouts!r}")
    # "default" is accepted for operators without a kernel, too
    if not kernel_axes and set(layouts[1:]) == {"default"}:
        layouts = layouts[:1]
    count = 2 if kernel_axes else 1
    if len(layouts) != count:
        wanted = "a data and a kernel layout" if kernel_axes else "one data layout"
        raise _refuse(name, f"expected {wanted}, got {list(layouts)}")
    data, *kernel = layouts
    if sorted(without_blocks(data)) != sorted(axes) or (data != without_blocks(data) and not _parsed(name, data)):
        raise _refuse(name, f"{data!r} is not an order of the axes {', '.join(axes)}")
    for layout in kernel:
        _check_kernel(name, data, layout)
    return tuple(layouts)


def _parsed(name: str, layout: str) -> bool:
    """Return True for a well-formed layout; raise AotcValueError otherwise."""
    try:
        return bool(Layout.parse(layout))
    except AotcError as error:
        raise _refuse(name, error.diagnostics[0].message) from error


def _check_kernel(name: str, data: str, layout: str) -> None:
    _, letters = CONVERTIBLE[name].named_layouts
    if layout == "default":
        data = without_blocks(data)
        if data.index("C") not in (1, len(data) - 1) or data[0] != "N":
            raise _refuse(name, f"no kernel layout is the default with {data!r}", "name one")
        return
    _parsed(name, layout)
    if sorted(without_blocks(layout)) != sorted(letters):
        raise _refuse(name, f"{layout!r} is not an order of the axes {', '.join(letters)}")


# --- the engine


@frozen
class Laid:
    """A rewritten expression and the new order of its axes; only tensors are reordered."""

    expr: Expr
    order: Order = AS_IT_WAS


@frozen
class LaidTuple:
    """A rewritten tuple of tensors, as one expression and field by field."""

    expr: Expr
    fields: tuple[Laid, ...]

    def over(self, exprs: list[Expr]) -> Expr:
        """Return a tuple of the expressions `exprs`, or the original tuple if they are its own
        fields.
        """
        return self.expr if exprs == [f.expr for f in self.fields] else Tuple(exprs)


Value = Laid | LaidTuple


@dataclass
class Converter:
    desired: Mapping[str, Sequence[str]]
    values: dict[Expr, Value] = field(default_factory=dict)
    transformed: dict[tuple[Expr, str, str], Expr] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)
    #: True if a transform into a blocked layout replaces a transform before it.
    merges: ClassVar[bool] = True

    def convert_function(self, function: Function) -> Function:
        for node in post_order(function, outside_kernels):
            with span_scope(node.span):
                self.values[node] = self._value(node)
        return as_function(self.restored(function))

    def _value(self, node: Expr) -> Value:
        match node:
            case Function() if node.is_primitive:
                return Laid(node)
            case Call() if isinstance(node.op, Op):
                return self.call(node)
            case Tuple():
                return self._tuple(node)
            case TupleGetItem():
                return self._field(node)
            case _:
                return Laid(rebuild(node, self.restored))

    def _tuple(self, node: Tuple) -> Value:
        fields = [self.values[f] for f in node.fields]
        laid = tuple(f for f in fields if isinstance(f, Laid))
        if len(laid) != len(fields) or not all(isinstance(f.checked_type, TensorType) for f in node.fields):
            return Laid(rebuild(node, self.restored))
        exprs = tuple(f.expr for f in laid)
        return LaidTuple(node if exprs == node.fields else Tuple(exprs, node.span), laid)

    def _field(self, node: TupleGetItem) -> Value:
        whole = self.values[node.tuple_value]
        if isinstance(whole, LaidTuple):
            found = whole.fields[node.index]
            return Laid(node, found.order) if whole.expr is node.tuple_value else found
        return Laid(rebuild(node, self.restored))

    # --- calls

    def call(self, node: Call) -> Value:
        arguments = [self.values[a] for a in node.args]
        renamed = _renamed(node, arguments[0]) if arguments else None
        if renamed is not None:
            return renamed
        plan = self._plan(node, arguments)
        planned = None if plan is None else self.planned(node, arguments, plan)
        if planned is not None:
            return planned
        new_args = [self.restored(a) for a in node.args]
        count = len(ty.fields) if isinstance(ty := type_of(node), TupleType) else 1
        return results(_recalled(node, new_args, node.attrs), (AS_IT_WAS,) * count)

    def planned(self, node: Call, arguments: Sequence[Value], plan: Plan) -> Value | None:
        """Return a call with the layouts of a plan; None if it would not be equivalent to the
        original call.
        """
        try:
            new = _recalled(node, self._arguments(arguments, plan), plan.attrs)
        except AotcError:  # the operator does not support these blocks, or they would need padding
            return None
        return results(new, plan.outputs) if rules.agrees(node, new, plan) else None

    def _plan(self, node: Call, arguments: Sequence[Value]) -> Plan | None:
        orders = []
        for expr, value in zip(node.args, arguments, strict=True):
            if isinstance(value, Laid) and not isinstance(expr.checked_type, TensorType):
                return None  # a tuple whose fields are not known one by one
            orders += [f.order for f in _flat(value)]
        name = op_of(node).name
        if name in self.desired:
            return self._desired(node, name, self.desired[name])
        if name in CONVERTIBLE and name not in self.warned:
            self.warned.add(name)
            LOG.warning("Desired layout(s) not specified for op: %s", name)
        return rules.plan_call(node, orders)

    def _desired(self, node: Call, name: str, layouts: Sequence[str]) -> Plan:
        a: Any = node.attrs
        data, *kernels = layouts
        kernel = "".join(kernels)
        if kernel == "default":
            channels = tensor_type_of(node.args[0]).shape[a.data_layout.index("C")]
            depthwise = a.groups > 1 and a.groups == channels
            kernel = rules.default_kernel(CONVERTIBLE[name], data, depthwise)
        plan = rules.plan_layouts(node, data, kernel)
        # a desired layout of pooling determines its output layout, too
        if kernel or not hasattr(a, "out_layout") or plan.outputs[0].new != data:
            return plan
        return replace(plan, attrs=plan.attrs.replace(out_layout=data))

    def _arguments(self, arguments: Sequence[Value], plan: Plan) -> list[Expr]:
        orders = iter(plan.inputs)
        found: list[Expr] = []
        for value in arguments:
            exprs = [self._in_order(f, next(orders)) for f in _flat(value)]
            found += exprs if isinstance(value, Laid) else [value.over(exprs)]
        return found

    # --- transforms

    def _in_order(self, value: Laid, wanted: Order) -> Expr:
        """Return a tensor transformed to the axis order that an operator expects."""
        if not wanted.is_known:
            return self._as_it_was(value)
        if value.order == wanted:
            return value.expr
        if _renamable(value.order.old, wanted.old):
            return self._transform(value.expr, value.order.called(wanted.old).new, wanted.new)
        expr = self._as_it_was(value)
        missing = len(Layout.parse(wanted.old).axes) - tensor_type_of(expr).rank
        if missing:
            expr = self.transformed.setdefault((expr, "", str(missing)), expand_dims(expr, 0, missing))
        return self._transform(expr, wanted.old, wanted.new)

    def _as_it_was(self, value: Laid) -> Expr:
        return self._transform(value.expr, value.order.new, value.order.old)

    def restored(self, node: Expr) -> Expr:
        """Return the value of a node with its axes in their original order."""
        value = self.values[node]
        if isinstance(value, Laid):
            return self._as_it_was(value)
        return value.over([self._as_it_was(f) for f in value.fields])

    def _transform(self, expr: Expr, source: str, target: str) -> Expr:
        """Return `expr` transformed from layout `source` to `target`; a transform that produced it
        is replaced, not undone.
        """
        new = expr if source == target else self._transformed(expr, source, target)
        return self.transformed.setdefault((expr, source, target), new)

    def _transformed(self, expr: Expr, source: str, target: str) -> Expr:
        match expr:
            case Call(args=(before,), attrs=LayoutTransformAttrs(src_layout=first, dst_layout=last)) if (
                last == source and (first + source).isalpha() and (self.merges or target.isalpha())
            ):
                return before if first == target else layout_transform(before, first, target)
            case _:
                return layout_transform(expr, source, target)


def _renamed(node: Call, data: Value) -> Laid | None:
    """Return the result of a program's own layout_transform of a reordered tensor by renaming axes,
    or None.
    """
    a = node.attrs
    if not isinstance(a, LayoutTransformAttrs) or not isinstance(data, Laid) or data.order.old == data.order.new:
        return None
    plain = (a.src_layout + a.dst_layout).isalpha() and not data.order.in_blocks
    return Laid(data.expr, Order(a.dst_layout, data.order.called(a.src_layout).new)) if plain else None


def _renamable(layout: str, other: str) -> bool:
    """Return True if two layouts without blocks differ at most in their letters."""
    return layout == other or (len(layout) == len(other) and (layout + other).isupper())


def _flat(value: Value) -> Iterator[Laid]:
    yield from (value,) if isinstance(value, Laid) else value.fields


def _recalled(node: Call, args: Sequence[Expr], attrs: Any) -> Call:
    """Return a call of the operator of `node` with these arguments: `node` itself if nothing
    changes.
    """
    if attrs == node.attrs and (*args,) == node.args:
        return node
    return call(op_of(node), args, attrs, node.span)


def results(node: Call, orders: Sequence[Order]) -> Value:
    if not isinstance(type_of(node), TupleType):
        return Laid(node, orders[0])
    fields = tuple(Laid(TupleGetItem(node, k), order) for k, order in enumerate(orders))
    return LaidTuple(node, fields)
