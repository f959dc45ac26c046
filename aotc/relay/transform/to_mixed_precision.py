# SPDX-License-Identifier: Apache-2.0
"""ToMixedPrecision: compute expensive operators in 16-bit floats, and sensitive ones in float32.

nn.softmax(nn.relu(nn.conv2d(%x, %w)))
=>  %0 = nn.conv2d(cast(%x, "float16"), cast(%w, "float16"), out_dtype="float32")
    nn.softmax(cast(nn.relu(cast(%0, "float16")), "float32"))

Input: typed functions over float32. Output: equivalent functions up to rounding; parameters keep
their types.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

import numpy as np

from aotc.ir import (
    Attrs,
    DType,
    FuncType,
    PassContext,
    Span,
    TensorType,
    TupleType,
    Type,
    frozen,
    option_text,
    span_scope,
)
from aotc.ir.diagnostics import AotcError, AotcValueError, Diagnostic, did_you_mean_hint
from aotc.ir.op import Op, PrecisionTreatment, installed_ops
from aotc.relay.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
    require_op_of_call,
    tuple_item,
    type_of,
)
from aotc.relay.expr import typed_op_call as node_of
from aotc.relay.graph_api import IRModule, children, global_uses, post_order, with_children
from aotc.relay.op.cast_clip_prelu import cast
from aotc.relay.op.conv import ConvAttrs
from aotc.relay.op.dense import DenseAttrs, MatmulAttrs
from aotc.relay.transform.pass_base import FunctionPass, GraphMutator, is_op_call

KEEP_OUTPUT_DTYPE_CONFIG: Final = "relay.ToMixedPrecision.keep_orig_output_dtype"
FULL_PRECISION_DTYPE: Final = DType("float32")


@dataclass(frozen=True, repr=False)
class ToMixedPrecision(FunctionPass):
    """Pass that computes operators in reduced precision if they declare that this is faster and
    accurate enough (`Op.precision_treatment`).

    mixed_precision_type  "float16" or "bfloat16"
    missing_op_mode       an operator without a declaration stays in float32: 0 raises an error, 1 warns, 2 is silent
    conversions           overrides of the operators' declarations, by operator name
    only_weight_products  reduce only convolutions and matrix products by constant weights, except
                          depthwise ones: their operands are reduced, and their results and all other
                          operators stay in float32. Results of functions keep their types
    float32_layers        patterns such as "encoder/layer.0/*" of names of nodes in the model; products
                          of these nodes stay in float32 if `only_weight_products` is True

    Sums of products are computed in float32 and rounded at the end. An operator that follows is
    reduced if one argument is, and all others are reduced, variables or constants. Constants beyond
    the range of the type keep an operator in float32, and so do arguments of other floating types.
    The result of @main may get the reduced type unless the configuration has
    "relay.ToMixedPrecision.keep_orig_output_dtype"; other functions, branches and variables keep
    their types. Raise AotcError (code "mixed-precision") in mode 0, AotcValueError for invalid
    options, and AotcError (code "precision") for a pattern that matches no product, and for a weight
    beyond the range of the type if `only_weight_products` is True.
    """

    mixed_precision_type: str = "float16"
    missing_op_mode: int = 1
    conversions: Mapping[str, PrecisionTreatment] = field(default_factory=dict, hash=False)
    only_weight_products: bool = False
    float32_layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mixed_precision_type not in ("float16", "bfloat16"):
            text = f"mixed_precision_type {self.mixed_precision_type!r} is neither float16 nor bfloat16"
            raise AotcValueError("mixed-precision", text)
        if self.missing_op_mode not in (0, 1, 2):
            raise AotcValueError("mixed-precision", f"missing_op_mode {self.missing_op_mode!r} is not 0, 1 or 2")
        for name in self.conversions:
            if installed_ops() and name not in installed_ops():
                text = f"a conversion for `{name}`, which is no operator"
                raise AotcValueError("mixed-precision", text, hint=did_you_mean_hint(name, installed_ops()))

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        low = DType(self.mixed_precision_type)
        if self.only_weight_products:
            _require_patterns_match_products(self.float32_layers, module)
            products = _WeightProducts(low, self.conversions, float32_layers=self.float32_layers)
            body = products.convert_to_type(products.visit(function.body), type_of(function.body))
            return function if body is function.body else replace(function, body=body)
        reduce = _Reduce(low, self.conversions)
        body = reduce.visit(function.body)
        self._warn_or_raise_missing_declarations(reduce.missing)
        entry = module.functions.get("main") is function and not _is_global_function_referenced(module, "main")
        if ctx.get_config(KEEP_OUTPUT_DTYPE_CONFIG, False) or not entry:
            body = reduce.convert_to_type(body, type_of(function.body))
        if body is function.body:
            return function
        ret_type = function.ret_type if type_of(body) == type_of(function.body) else None
        return replace(function, body=body, ret_type=ret_type)

    def _warn_or_raise_missing_declarations(self, missing: Mapping[str, Span | None]) -> None:
        if not missing or self.missing_op_mode == 2:
            return
        if self.missing_op_mode == 1:
            names = ", ".join(sorted(missing))
            warnings.warn(f"{self.name}: no conversion is known for {names}: kept in float32", stacklevel=2)
            return
        raise AotcError.collect(
            Diagnostic("mixed-precision", f"no conversion is known for {n}", span=s) for n, s in missing.items()
        )


def _is_global_function_referenced(module: IRModule, name: str) -> bool:
    return any(name in global_uses(function) for function in module.functions.values())


@frozen
class _ArgumentTensor:
    """One tensor among the arguments of a call: its type before and after, and its expression if
    that is available.
    """

    old: TensorType
    new: TensorType
    expr: Expr | None


@dataclass(eq=False)
class _Reduce(GraphMutator):
    """Mutator that reduces precision: the new value of a node may have another precision than the
    node.
    """

    low: DType
    conversions: Mapping[str, PrecisionTreatment]
    missing: dict[str, Span | None] = field(default_factory=dict)
    casts: dict[tuple[Expr, Type], Expr] = field(default_factory=dict)

    def rewrite_rebuilt_node(self, old: Expr, new: Expr) -> Expr:
        match new:
            case Call(op=Op()):
                assert isinstance(old, Call)
                with span_scope(old.span):
                    return self._rewrite_operator(old, new)
            case _ if new is old:
                return old
            case Tuple():
                return Tuple(new.fields, new.span)
            case TupleGetItem():
                return tuple_item(new.tuple_value, new.index, new.span)
            case _:  # nodes that bind or join values keep the original types
                new_children = (
                    self._convert_to_original_type(n, o) for n, o in zip(children(new), children(old), strict=True)
                )
                return with_children(new, tuple(new_children))

    def _convert_to_original_type(self, new: Expr, old: Expr) -> Expr:
        return new if old.checked_type is None else self.convert_to_type(new, old.checked_type)

    def convert_to_type(self, expr: Expr, ty: Type) -> Expr:
        """Return `expr` converted to `ty`, which differs in floating types only; conversions of one
        value are shared.
        """
        if isinstance(expr, (Op, GlobalVar)) or isinstance(ty, FuncType) or expr.checked_type == ty:
            return expr
        key = (expr, ty)
        if key not in self.casts:
            self.casts[key] = self._cast_to_type(expr, ty)
        return self.casts[key]

    def _cast_to_type(self, expr: Expr, ty: Type) -> Expr:
        if isinstance(ty, TupleType):
            return Tuple(self.convert_to_type(tuple_item(expr, k), t) for k, t in enumerate(ty.fields))
        assert isinstance(ty, TensorType)
        same = isinstance(expr.checked_type, TensorType) and expr.checked_type.dtype == ty.dtype
        return expr if same else cast(expr, str(ty.dtype))

    # --- operators

    def _rewrite_operator(self, old: Call, new: Call) -> Expr:
        op = require_op_of_call(new)
        if not self._is_call_to_run_in_reduced_precision(op, old, new):
            args = tuple(map(self._convert_to_original_type, new.args, old.args))
            return old if args == old.args else node_of(op, args, new.attrs, new.span)
        arg_types = [self._type_in_reduced_precision(type_of(o)) for o in old.args]
        args = tuple(map(self.convert_to_type, new.args, arg_types))
        result = node_of(op, args, self._attrs_in_reduced_precision(new.attrs), new.span)
        if is_op_call(result, "cast") and type_of(args[0]) == result.checked_type:
            return args[0]
        if result.checked_type != old.checked_type or not hasattr(new.attrs, "out_dtype"):
            return result
        narrow = self.convert_to_type(result, self._type_in_reduced_precision(type_of(result)))
        # users that need float32 take the sum before rounding
        self.casts[narrow, type_of(result)] = result
        return narrow

    def _attrs_in_reduced_precision(self, a: Attrs) -> Attrs:
        if hasattr(a, "out_dtype"):
            return a.replace(out_dtype=str(FULL_PRECISION_DTYPE))
        return a.replace(dtype=str(self.low)) if getattr(a, "dtype", "") == FULL_PRECISION_DTYPE else a

    def _type_in_reduced_precision(self, ty: Type) -> Type:
        match ty:
            case TensorType():
                return TensorType(ty.shape, self.low) if ty.dtype == FULL_PRECISION_DTYPE else ty
            case TupleType():
                return TupleType(map(self._type_in_reduced_precision, ty.fields))
            case _:
                return ty

    def _is_call_to_run_in_reduced_precision(self, op: Op, old: Call, new: Call) -> bool:
        """Return True if a call is to be computed in reduced precision."""
        pairs = zip(old.args, new.args, strict=True)
        leaves = [
            leaf for o, n in pairs for leaf in _argument_tensors(type_of(o), type_of(n), n) if leaf.old.dtype.is_float
        ]
        if not self._do_arguments_allow_reduced_precision(new.attrs, leaves):
            return False
        conversion = self.conversions.get(op.name, op.precision_treatment)
        if conversion is None:
            self.missing.setdefault(op.name, old.span)
        if conversion is None or conversion == PrecisionTreatment.NEVER:
            return False
        reduced = [leaf.new.dtype == self.low for leaf in leaves]
        cheap = [isinstance(leaf.expr, (Var, Constant)) for leaf in leaves]
        follows = any(reduced) and all(r or c for r, c in zip(reduced, cheap, strict=True))
        return follows or conversion == PrecisionTreatment.ALWAYS

    def _do_arguments_allow_reduced_precision(self, a: Attrs, leaves: Sequence[_ArgumentTensor]) -> bool:
        """Return True if types and values allow reduced precision and some argument is float32."""
        dtypes = {leaf.old.dtype for leaf in leaves}
        result = getattr(a, "out_dtype", "") in ("", FULL_PRECISION_DTYPE)
        return (
            result
            and FULL_PRECISION_DTYPE in dtypes
            and dtypes <= {FULL_PRECISION_DTYPE, self.low}
            and all(map(self._is_within_range_of_reduced_dtype, leaves))
        )

    def _is_within_range_of_reduced_dtype(self, argument: _ArgumentTensor) -> bool:
        """Return True unless rounding a constant to the reduced floating type would make an
        infinity of it.
        """
        if not isinstance(argument.expr, Constant) or argument.old.dtype != FULL_PRECISION_DTYPE:
            return True
        return _largest_finite_magnitude(argument.expr) <= self.low.max


@dataclass(eq=False)
class _WeightProducts(_Reduce):
    """Mutator that reduces the operands of convolutions and matrix products by constant weights, and
    nothing else.
    """

    float32_layers: tuple[str, ...] = ()

    def _cast_to_type(self, expr: Expr, ty: Type) -> Expr:
        if isinstance(expr, Constant) and isinstance(ty, TensorType) and not expr.is_splat:
            return Constant(expr.data.astype(ty.dtype.numpy), expr.span)
        return super()._cast_to_type(expr, ty)

    def _is_call_to_run_in_reduced_precision(self, op: Op, old: Call, new: Call) -> bool:
        if not _is_product_by_weight(old) or _matching_node_name(old, self.float32_layers):
            return False
        types = [type_of(arg) for arg in old.args]
        dtypes = {t.dtype if isinstance(t, TensorType) else None for t in types}
        if dtypes != {FULL_PRECISION_DTYPE} or getattr(new.attrs, "out_dtype", "") not in ("", FULL_PRECISION_DTYPE):
            return False
        weight = old.args[1]
        assert isinstance(weight, Constant)
        largest = _largest_finite_magnitude(weight)
        if largest > self.low.max:
            text = f"a weight of {op.name} is {largest:g}, and the largest number of {self.low} is {self.low.max:g}"
            names = _node_names(old) or ["NAME"]
            hint = "leave this layer in float32: " + option_text("float32_layers", names[:1])
            raise AotcError("precision", text, span=old.span, hint=hint)
        return True


def _is_product_by_weight(node: Expr) -> bool:
    """Return True for a convolution that is not depthwise, or a matrix product, by a constant weight."""
    if not isinstance(node, Call) or len(node.args) != 2 or not isinstance(node.args[1], Constant):
        return False
    if isinstance(node.attrs, ConvAttrs):
        channels = dict(zip(node.attrs.kernel_layout, node.args[1].data.shape, strict=False)).get("I", 1)
        return node.attrs.groups == 1 or channels > 1
    return isinstance(node.attrs, (DenseAttrs, MatmulAttrs))


def _node_names(node: Expr) -> list[str]:
    """Return the names of the model's nodes that a call was made from."""
    span = node.span
    return [] if span is None else [s.node for s in (span, *span.merged) if s.node]


def _matching_node_name(node: Expr, patterns: Sequence[str]) -> str | None:
    """Return a name of a model's node that a call was made from and that matches a pattern; None if
    there is none.
    """
    return next((n for n in _node_names(node) for p in patterns if fnmatchcase(n, p)), None)


def _require_patterns_match_products(patterns: Sequence[str], module: IRModule) -> None:
    """Raise AotcError (code "precision") for a pattern that no convolution or matrix product of a
    module has as its name.
    """
    nodes = (node for function in module.functions.values() for node in post_order(function))
    names = [name for node in nodes if patterns and _is_product_by_weight(node) for name in _node_names(node)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            known = f"names: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else ""
            text = f"no convolution or matrix product by weights matches {pattern!r}"
            raise AotcError("precision", text, hint=did_you_mean_hint(pattern, names) or known)


def _largest_finite_magnitude(constant: Constant) -> float:
    """Return the largest magnitude of the finite elements of a constant, 0 if there are none."""
    values = constant.stored_elements
    finite = np.isfinite(values)
    return float(np.abs(values, where=finite, out=np.zeros(values.shape, values.dtype)).max(initial=0))


def _argument_tensors(old: Type, new: Type, expr: Expr | None) -> Iterator[_ArgumentTensor]:
    """Yield the tensors of a call's argument, fields of tuples one by one."""
    match old, new:
        case TensorType(), TensorType():
            yield _ArgumentTensor(old, new, expr)
        case TupleType(), TupleType():
            for k, (a, b) in enumerate(zip(old.fields, new.fields, strict=True)):
                yield from _argument_tensors(a, b, expr.fields[k] if isinstance(expr, Tuple) else None)
