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

from aotc.ir import (
    AotcError,
    AotcValueError,
    Op,
    TensorType,
    TupleType,
    did_you_mean_hint,
    frozen,
    installed_ops,
    span_scope,
)
from aotc.ir.frozen_dataclass import set_frozen_fields
from aotc.relay.expr import (
    Call,
    Expr,
    Function,
    Tuple,
    TupleGetItem,
    require_function,
    require_op_of_call,
    tensor_type_of,
    type_of,
    typed_op_call,
)
from aotc.relay.op.layout import Layout, LayoutTransformAttrs, layout_transform, remove_blocks_from_layout
from aotc.relay.op.shape import expand_dims
from aotc.relay.transform import convert_layout_rules as rules
from aotc.relay.transform.convert_layout_rules import CONVERTIBLE, ORIGINAL_ORDER, AxisOrder, LayoutPlan
from aotc.relay.transform.pass_base import FunctionPass, is_not_primitive_function
from aotc.relay.visitor import map_children, post_order

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
        known = {
            name: layouts
            for name, layouts in self.desired_layouts.items()
            if _check_operator_layout_is_convertible(name)
        }
        checked = {name: _validate_desired_layouts(name, layouts) for name, layouts in known.items()}
        set_frozen_fields(self, desired_layouts=MappingProxyType(checked))

    def rewrite_function_body(self, function: Function) -> Function:
        return convert_to_layouts(function, self.desired_layouts)


def convert_to_layouts(
    function: Function, desired_layouts: Mapping[str, Sequence[str]], quiet: bool = False
) -> Function:
    """Return `function` with operators in the desired layouts (see ConvertLayout); `quiet`
    suppresses the warnings.
    """
    return LayoutConverter(desired_layouts, warned=set(CONVERTIBLE) if quiet else set()).convert_function(function)


def _desired_layout_error(name: str, message: str, hint: str = "") -> AotcValueError:
    return AotcValueError("desired-layout", f"desired layouts of {name}: {message}", hint=hint)


def _check_operator_layout_is_convertible(name: str) -> bool:
    """Return True if the layout of operator `name` can be chosen; otherwise log a warning.

    A program may name operators of other compilers, hence the warning. Raise AotcValueError for an
    unknown operator in one of the installed families ("nn", "image", ...).
    """
    family = name.rpartition(".")[0]
    if name not in installed_ops() and any(op.rpartition(".")[0] == family for op in CONVERTIBLE):
        raise _desired_layout_error(name, "there is no such operator", did_you_mean_hint(name, CONVERTIBLE))
    if name not in CONVERTIBLE:
        LOG.warning("The layout of %s cannot be chosen. %s", name, did_you_mean_hint(name, CONVERTIBLE))
    return name in CONVERTIBLE


def _validate_desired_layouts(name: str, layouts: Sequence[str]) -> tuple[str, ...]:
    """Validate the desired layouts of one operator and return them as a tuple; raise AotcValueError
    if they are invalid.
    """
    axes, kernel_axes = CONVERTIBLE[name].default_data_and_kernel_layouts
    if isinstance(layouts, str) or not all(isinstance(item, str) for item in layouts):
        raise _desired_layout_error(name, f"expected a list of layouts, got {layouts!r}")
    # "default" is accepted for operators without a kernel, too
    if not kernel_axes and set(layouts[1:]) == {"default"}:
        layouts = layouts[:1]
    count = 2 if kernel_axes else 1
    if len(layouts) != count:
        expected_text = "a data and a kernel layout" if kernel_axes else "one data layout"
        raise _desired_layout_error(name, f"expected {expected_text}, got {list(layouts)}")
    data, *kernel = layouts
    if sorted(remove_blocks_from_layout(data)) != sorted(axes) or (
        data != remove_blocks_from_layout(data) and not _require_parsable_layout(name, data)
    ):
        raise _desired_layout_error(name, f"{data!r} is not an order of the axes {', '.join(axes)}")
    for layout in kernel:
        _check_kernel_layout(name, data, layout)
    return tuple(layouts)


def _require_parsable_layout(name: str, layout: str) -> bool:
    """Return True for a well-formed layout; raise AotcValueError otherwise."""
    try:
        return bool(Layout.parse_layout(layout))
    except AotcError as error:
        raise _desired_layout_error(name, error.diagnostics[0].message) from error


def _check_kernel_layout(name: str, data_layout: str, kernel_layout: str) -> None:
    _, letters = CONVERTIBLE[name].default_data_and_kernel_layouts
    if kernel_layout == "default":
        data_layout = remove_blocks_from_layout(data_layout)
        if data_layout.index("C") not in (1, len(data_layout) - 1) or data_layout[0] != "N":
            raise _desired_layout_error(name, f"no kernel layout is the default with {data_layout!r}", "name one")
        return
    _require_parsable_layout(name, kernel_layout)
    if sorted(remove_blocks_from_layout(kernel_layout)) != sorted(letters):
        raise _desired_layout_error(name, f"{kernel_layout!r} is not an order of the axes {', '.join(letters)}")


# --- the engine


@frozen
class ReorderedTensor:
    """A rewritten expression and the new order of its axes; only tensors are reordered."""

    expr: Expr
    order: AxisOrder = ORIGINAL_ORDER


@frozen
class ReorderedTuple:
    """A rewritten tuple of tensors, as one expression and field by field."""

    expr: Expr
    fields: tuple[ReorderedTensor, ...]

    def tuple_with_fields_replaced(self, exprs: list[Expr]) -> Expr:
        """Return a tuple of the expressions `exprs`, or the original tuple if they are its own
        fields.
        """
        return self.expr if exprs == [f.expr for f in self.fields] else Tuple(exprs)


ReorderedValue = ReorderedTensor | ReorderedTuple


@dataclass
class LayoutConverter:
    desired: Mapping[str, Sequence[str]]
    values: dict[Expr, ReorderedValue] = field(default_factory=dict)
    transformed: dict[tuple[Expr, str, str], Expr] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)
    #: True if a transform into a blocked layout replaces a transform before it.
    merges: ClassVar[bool] = True

    def convert_function(self, function: Function) -> Function:
        for node in post_order(function, is_not_primitive_function):
            with span_scope(node.span):
                self.values[node] = self._convert_node(node)
        return require_function(self.value_in_original_axis_order(function))

    def _convert_node(self, node: Expr) -> ReorderedValue:
        match node:
            case Function() if node.is_primitive:
                return ReorderedTensor(node)
            case Call() if isinstance(node.op, Op):
                return self.convert_call(node)
            case Tuple():
                return self._convert_tuple(node)
            case TupleGetItem():
                return self._convert_tuple_field(node)
            case _:
                return ReorderedTensor(map_children(node, self.value_in_original_axis_order))

    def _convert_tuple(self, node: Tuple) -> ReorderedValue:
        fields = [self.values[f] for f in node.fields]
        laid = tuple(f for f in fields if isinstance(f, ReorderedTensor))
        if len(laid) != len(fields) or not all(isinstance(f.checked_type, TensorType) for f in node.fields):
            return ReorderedTensor(map_children(node, self.value_in_original_axis_order))
        exprs = tuple(f.expr for f in laid)
        return ReorderedTuple(node if exprs == node.fields else Tuple(exprs, node.span), laid)

    def _convert_tuple_field(self, node: TupleGetItem) -> ReorderedValue:
        whole = self.values[node.tuple_value]
        if isinstance(whole, ReorderedTuple):
            tuple_field = whole.fields[node.index]
            return ReorderedTensor(node, tuple_field.order) if whole.expr is node.tuple_value else tuple_field
        return ReorderedTensor(map_children(node, self.value_in_original_axis_order))

    # --- calls

    def convert_call(self, node: Call) -> ReorderedValue:
        arguments = [self.values[a] for a in node.args]
        renamed = _rename_axes_instead_of_transforming(node, arguments[0]) if arguments else None
        if renamed is not None:
            return renamed
        plan = self._plan_for_call(node, arguments)
        planned = None if plan is None else self.apply_layout_plan_to_call(node, arguments, plan)
        if planned is not None:
            return planned
        new_args = [self.value_in_original_axis_order(a) for a in node.args]
        count = len(ty.fields) if isinstance(ty := type_of(node), TupleType) else 1
        return label_call_results_with_axis_orders(
            _call_with_args_and_attrs(node, new_args, node.attrs), (ORIGINAL_ORDER,) * count
        )

    def apply_layout_plan_to_call(
        self, node: Call, arguments: Sequence[ReorderedValue], plan: LayoutPlan
    ) -> ReorderedValue | None:
        """Return a call with the layouts of a plan; None if it would not be equivalent to the
        original call.
        """
        try:
            new = _call_with_args_and_attrs(node, self._arguments_reordered_by_plan(arguments, plan), plan.attrs)
        except AotcError:  # the operator does not support these blocks, or they would need padding
            return None
        return (
            label_call_results_with_axis_orders(new, plan.outputs)
            if rules.is_equivalent_up_to_axis_order(node, new, plan)
            else None
        )

    def _plan_for_call(self, node: Call, arguments: Sequence[ReorderedValue]) -> LayoutPlan | None:
        orders = []
        for expr, value in zip(node.args, arguments, strict=True):
            if isinstance(value, ReorderedTensor) and not isinstance(expr.checked_type, TensorType):
                return None  # a tuple whose fields are not known one by one
            orders += [f.order for f in _reordered_tensors(value)]
        name = require_op_of_call(node).name
        if name in self.desired:
            return self._plan_desired_layouts(node, name, self.desired[name])
        if name in CONVERTIBLE and name not in self.warned:
            self.warned.add(name)
            LOG.warning("Desired layout(s) not specified for op: %s", name)
        return rules.plan_call_layout(node, orders)

    def _plan_desired_layouts(self, node: Call, name: str, layouts: Sequence[str]) -> LayoutPlan:
        a: Any = node.attrs
        data, *kernels = layouts
        kernel = "".join(kernels)
        if kernel == "default":
            channels = tensor_type_of(node.args[0]).shape[a.data_layout.index("C")]
            depthwise = a.groups > 1 and a.groups == channels
            kernel = rules.default_kernel_layout(CONVERTIBLE[name], data, depthwise)
        plan = rules.plan_with_layouts(node, data, kernel)
        # a desired layout of pooling determines its output layout, too
        if kernel or not hasattr(a, "out_layout") or plan.outputs[0].new != data:
            return plan
        return replace(plan, attrs=plan.attrs.replace(out_layout=data))

    def _arguments_reordered_by_plan(self, arguments: Sequence[ReorderedValue], plan: LayoutPlan) -> list[Expr]:
        orders = iter(plan.inputs)
        new_args: list[Expr] = []
        for value in arguments:
            exprs = [self._to_axis_order(f, next(orders)) for f in _reordered_tensors(value)]
            new_args += exprs if isinstance(value, ReorderedTensor) else [value.tuple_with_fields_replaced(exprs)]
        return new_args

    # --- transforms

    def _to_axis_order(self, value: ReorderedTensor, target_order: AxisOrder) -> Expr:
        """Return a tensor transformed to the axis order that an operator expects."""
        if not target_order.is_known_axis_order:
            return self._to_original_axis_order(value)
        if value.order == target_order:
            return value.expr
        if _are_layouts_equal_up_to_letters(value.order.old, target_order.old):
            return self._transform_layout_cached(
                value.expr, value.order.with_original_axes_renamed(target_order.old).new, target_order.new
            )
        expr = self._to_original_axis_order(value)
        missing = len(Layout.parse_layout(target_order.old).axes) - tensor_type_of(expr).rank
        if missing:
            expr = self.transformed.setdefault((expr, "", str(missing)), expand_dims(expr, 0, missing))
        return self._transform_layout_cached(expr, target_order.old, target_order.new)

    def _to_original_axis_order(self, value: ReorderedTensor) -> Expr:
        return self._transform_layout_cached(value.expr, value.order.new, value.order.old)

    def value_in_original_axis_order(self, node: Expr) -> Expr:
        """Return the value of a node with its axes in their original order."""
        value = self.values[node]
        if isinstance(value, ReorderedTensor):
            return self._to_original_axis_order(value)
        return value.tuple_with_fields_replaced([self._to_original_axis_order(f) for f in value.fields])

    def _transform_layout_cached(self, expr: Expr, source: str, target: str) -> Expr:
        """Return `expr` transformed from layout `source` to `target`; a transform that produced it
        is replaced, not undone.
        """
        new = expr if source == target else self._build_layout_transform(expr, source, target)
        return self.transformed.setdefault((expr, source, target), new)

    def _build_layout_transform(self, expr: Expr, source: str, target: str) -> Expr:
        match expr:
            case Call(args=(before,), attrs=LayoutTransformAttrs(src_layout=first, dst_layout=last)) if (
                last == source and (first + source).isalpha() and (self.merges or target.isalpha())
            ):
                return before if first == target else layout_transform(before, first, target)
            case _:
                return layout_transform(expr, source, target)


def _rename_axes_instead_of_transforming(node: Call, data: ReorderedValue) -> ReorderedTensor | None:
    """Return the result of a program's own layout_transform of a reordered tensor by renaming axes,
    or None.
    """
    a = node.attrs
    if (
        not isinstance(a, LayoutTransformAttrs)
        or not isinstance(data, ReorderedTensor)
        or data.order.old == data.order.new
    ):
        return None
    plain = (a.src_layout + a.dst_layout).isalpha() and not data.order.has_blocked_axes
    return (
        ReorderedTensor(data.expr, AxisOrder(a.dst_layout, data.order.with_original_axes_renamed(a.src_layout).new))
        if plain
        else None
    )


def _are_layouts_equal_up_to_letters(layout: str, other: str) -> bool:
    """Return True if two layouts without blocks differ at most in their letters."""
    return layout == other or (len(layout) == len(other) and (layout + other).isupper())


def _reordered_tensors(value: ReorderedValue) -> Iterator[ReorderedTensor]:
    yield from (value,) if isinstance(value, ReorderedTensor) else value.fields


def _call_with_args_and_attrs(node: Call, args: Sequence[Expr], attrs: Any) -> Call:
    """Return a call of the operator of `node` with these arguments: `node` itself if nothing
    changes.
    """
    if attrs == node.attrs and (*args,) == node.args:
        return node
    return typed_op_call(require_op_of_call(node), args, attrs, node.span)


def label_call_results_with_axis_orders(node: Call, orders: Sequence[AxisOrder]) -> ReorderedValue:
    if not isinstance(type_of(node), TupleType):
        return ReorderedTensor(node, orders[0])
    fields = tuple(ReorderedTensor(TupleGetItem(node, k), order) for k, order in enumerate(orders))
    return ReorderedTuple(node, fields)
