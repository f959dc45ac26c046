# SPDX-License-Identifier: Apache-2.0
"""Affine quantization of tensors, and the rewriting of float operators as operators on the stored
integers.

    real = scale * (stored - zero point)

    region.require_exact_integers(nn.relu(qnn.dequantize(%q, 0.5f, 3)))  # maximum(%q, 3)
    region.require_quantized_integers(expr, wanted)  # the integers of qnn.quantize, or IntegerRuleRefused
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import DType, frozen, get_op
from aotc.relay.expr import Call, Constant, Expr, Tuple, TupleGetItem, tensor_type_of, tuple_item, typed_op_call
from aotc.relay.op.qnn.quant_params import constant_value_or_none
from aotc.relay.transform.pass_base import is_op_call
from aotc.relay.visitor import children, depth_first_post_order

Array: TypeAlias = "np.ndarray[Any, Any]"
#: Largest depth of operators through which a requested quantization is passed from a result to its
#: operands.
_MAX_RULE_DEPTH: Final = 64
#: Integer types in which operators on quantized tensors compute.
BYTE_DTYPES: Final = ("int8", "uint8")


class IntegerRuleRefused(Exception):
    """Exception: an operator cannot be computed on integers and stays on real numbers, with the
    reason.
    """

    def __init__(self, reason: str, node: Expr) -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node

    def attributed_to_node_unless_to_call(self, node: Expr) -> IntegerRuleRefused:
        """Return this refusal, attributed to `node` if the expression that it names is not a call."""
        return self if isinstance(self.node, Call) else IntegerRuleRefused(self.reason, node)


@frozen(eq=False)
class TensorAffineType:
    """Quantization parameters of a tensor.

    scale, zero_point   constants: one value, or one for each element along `axis`
    dtype               the type of the stored integers
    """

    scale: Constant
    zero_point: Constant
    dtype: str
    axis: int = -1

    @property
    def is_per_tensor(self) -> bool:
        """True if one scale and one zero point hold for the whole tensor."""
        return self.scale.data.size == 1 and self.zero_point.data.size == 1

    @property
    def scale_values(self) -> Array:
        """The scale as an array: a scalar, or one value for each element along the axis."""
        return self.scale.data.reshape(()) if self.scale.data.size == 1 else self.scale.data

    @property
    def zero_point_value(self) -> int:
        """The zero point of a tensor that has a single one, as a Python int."""
        return int(self.zero_point.data.reshape(-1)[0])

    @property
    def zero_point_constant(self) -> Constant:
        """The single zero point as a scalar constant of the tensor's integer type."""
        return Constant(np.asarray(self.zero_point_value, DType(self.dtype).numpy))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorAffineType) and self._comparison_key() == other._comparison_key()

    def __hash__(self) -> int:
        return hash(self._comparison_key())

    def _comparison_key(self) -> tuple[Any, ...]:
        scale, zero = self.scale_values, self.zero_point.data.astype(np.int64)
        axis = None if self.is_per_tensor else self.axis
        return str(self.dtype), scale.shape, scale.tobytes(), zero.tobytes() if zero.any() else b"", axis


@frozen
class TupleAffineType:
    """Quantization parameters of a tuple of tensors, field by field."""

    types: tuple[TensorAffineType, ...]


AffineType: TypeAlias = TensorAffineType | TupleAffineType


def make_affine_type(scale: Any, zero: Any, dtype: str, axis: int = -1) -> TensorAffineType:
    """Return the quantization parameters of a tensor as constants, from a scale and a zero point
    (arrays or numbers).

    Zero points that are all equal are stored as one scalar. The axis is -1 if scale and zero point
    are both single.
    """
    scales, zeros = np.asarray(scale, np.float32), np.asarray(zero, np.int32)
    zeros = zeros.reshape(-1)[:1].reshape(()) if zeros.size and (zeros == zeros.flat[0]).all() else zeros
    if scales.size == zeros.size == 1:
        axis = -1
    return TensorAffineType(Constant(scales), Constant(zeros), dtype, axis)


@frozen(eq=False)
class QuantizedExpr:
    """An integer expression that represents a real-valued expression under an affine quantization.

    bound   an upper bound of the magnitude of int32 sums; None for other values
    """

    expr: Expr
    type: AffineType
    bound: float | None = None

    @property
    def affine_type(self) -> TensorAffineType:
        """The quantization parameters of a tensor; asserts that the value is not a tuple."""
        assert isinstance(self.type, TensorAffineType)
        return self.type

    @property
    def is_per_tensor_byte(self) -> bool:
        """True if the value is an 8-bit tensor with a single scale and zero point."""
        return isinstance(self.type, TensorAffineType) and self.type.dtype in BYTE_DTYPES and self.type.is_per_tensor

    def with_expr(self, expr: Expr, **changes: Any) -> QuantizedExpr:
        """Return a copy of this quantized value with another expression and, by keyword, other
        quantization parameters.
        """
        return QuantizedExpr(expr, replace(self.affine_type, **changes) if changes else self.type, self.bound)


def call_qnn_op(name: str, *args: Expr, **attributes: Any) -> Call:
    """Return a call of the operator `qnn.NAME` with these arguments and attributes."""
    op = get_op(f"qnn.{name}")
    return typed_op_call(op, args, op.attrs(**attributes))


def scale_and_zero_point(ty: TensorAffineType) -> tuple[Expr, Expr]:
    """Return the scale and the zero point of a quantization as two arguments of a qnn operator."""
    return ty.scale, ty.zero_point


# --- quantization parameters of qnn operators


def affine_type_of_quantize_or_dequantize(node: Call, dtype: str) -> TensorAffineType:
    """Return the quantization parameters that a call of qnn.quantize or qnn.dequantize carries.

    Raise IntegerRuleRefused if the scale or the zero point is not constant, or a scale is not
    positive and finite.
    """
    scale, zero = (constant_value_or_none(a) for a in node.args[1:])
    if scale is None or zero is None:
        raise IntegerRuleRefused("the scale or the zero point is not known at compile time", node)
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise IntegerRuleRefused("a scale is not positive and finite", node)
    axis = node.attrs["axis"] % max(tensor_type_of(node).rank, 1)
    return make_affine_type(
        scale if scale.size > 1 else scale.reshape(()), zero if zero.size > 1 else zero.reshape(()), dtype, axis
    )


# --- regions

ExactRule: TypeAlias = "Callable[[IntegerRegion, Call], QuantizedExpr]"
QuantizedRule: TypeAlias = "Callable[[IntegerRegion, Call, TensorAffineType], Expr]"


@frozen
class AbsorbRule:
    """Rule that computes one float operator on the integers of its quantized operands.

    name      an equation, for reports
    exact     (region, call) -> integers that represent the result exactly; their quantization
              follows from the operands'
    rounded   (region, call, target_type) -> the integers that quantizing the result to `target_type` gives
    sums      True if the operator sums products, which is worth computing on integers even if its
              result is not quantized

    Both functions raise IntegerRuleRefused where the integer form would be wrong.
    """

    name: str
    exact: ExactRule | None = None
    rounded: QuantizedRule | None = None
    sums: bool = False


@dataclass(eq=False)
class IntegerRegion:
    """Rewriter of float expressions between dequantized and quantized tensors to integer
    expressions.

    rules      the rule of each operator, by operator name
    fallback   returns the rule for a call whose operator has no entry in `rules`, or None
    rounding   rounding mode of sums: the `rounding` attribute of qnn.requantize
    rescale    converts integers to another quantization
    table      computes a function of one 8-bit value by table lookup
    inside     nodes computed from dequantized tensors; the visitor that walks the graph adds to it
    """

    rules: Mapping[str, AbsorbRule]
    fallback: Callable[[Call], AbsorbRule | None]
    rounding: str
    rescale: Callable[[IntegerRegion, QuantizedExpr, TensorAffineType], Expr]
    table: QuantizedRule
    inside: set[Expr] = field(default_factory=set)
    _converted_by_expr: dict[Expr, QuantizedExpr | IntegerRuleRefused] = field(default_factory=dict)
    _depth: int = 0

    def find_rule(self, node: Call) -> AbsorbRule | None:
        """Return the integer rule for a float operator call, or None if there is none."""
        return self.rules.get(str(node.op)) or self.fallback(node)

    def require_rule(self, node: Call) -> AbsorbRule:
        """Return the integer rule for a float operator call; raise IntegerRuleRefused if there is
        none.
        """
        rule = self.find_rule(node)
        if rule is None:
            raise IntegerRuleRefused(f"there is no rule for {node.op}", node)
        return rule

    def require_exact_integers(self, expr: Expr) -> QuantizedExpr:
        """Return integers that represent the value of `expr` exactly; raise IntegerRuleRefused if
        there are none.
        """
        if expr not in self._converted_by_expr:
            for node in depth_first_post_order([expr], self._operands_without_known_integers):
                self._compute_and_cache_exact_integers(node)
        outcome = self._converted_by_expr[expr]
        if isinstance(outcome, IntegerRuleRefused):
            raise outcome
        return outcome

    def _operands_without_known_integers(self, node: Expr) -> list[Expr]:
        """Return the operands whose integer form must be computed before that of `node`, to avoid
        deep recursion.
        """
        inside = node in self.inside and not is_op_call(node, "qnn.dequantize")
        return [c for c in children(node) if c in self.inside and c not in self._converted_by_expr] if inside else []

    def _compute_and_cache_exact_integers(self, node: Expr) -> None:
        if node in self._converted_by_expr:
            return
        try:
            self._converted_by_expr[node] = self._compute_exact_integers(node)
        except IntegerRuleRefused as refused:
            self._converted_by_expr[node] = refused.attributed_to_node_unless_to_call(node)

    def dequantize_value(self, quantized: QuantizedExpr) -> Expr:
        """Return qnn.dequantize of a quantized value, and record that its integers represent the
        result exactly.
        """
        ty = quantized.affine_type
        call = call_qnn_op("dequantize", quantized.expr, *scale_and_zero_point(ty), axis=ty.axis)
        self._converted_by_expr[call] = quantized
        self.inside.add(call)
        return call

    def _compute_exact_integers(self, expr: Expr) -> QuantizedExpr:
        match expr:
            case Tuple(fields=fields):
                parts = [self.require_exact_integers(f) for f in fields]
                return QuantizedExpr(
                    Tuple([p.expr for p in parts]), TupleAffineType(tuple(p.affine_type for p in parts))
                )
            case TupleGetItem(tuple_value=whole, index=index):
                quantized_tuple = self.require_exact_integers(whole)
                assert isinstance(quantized_tuple.type, TupleAffineType)
                return QuantizedExpr(
                    tuple_item(quantized_tuple.expr, index), quantized_tuple.type.types[index], quantized_tuple.bound
                )
            case Call() if str(expr.op) == "qnn.dequantize":
                return QuantizedExpr(
                    expr.args[0], affine_type_of_quantize_or_dequantize(expr, str(tensor_type_of(expr.args[0]).dtype))
                )
            case Call() if expr in self.inside:
                rule = self.require_rule(expr)
                if rule.exact is None:
                    raise IntegerRuleRefused("the type of its result does not follow from those of its operands", expr)
                return rule.exact(self, expr)
        raise IntegerRuleRefused("an operand is not quantized", expr)

    def require_quantized_integers(self, expr: Expr, target_type: TensorAffineType) -> Expr:
        """Return the integers that quantizing `expr` to `target_type` gives; raise
        IntegerRuleRefused if no rule can compute them.

        The operator's own rule is tried first, then exact integers that are rescaled, then a lookup
        table. The first refusal is raised if all of them fail.
        """
        if self._depth >= _MAX_RULE_DEPTH or not (isinstance(expr, Call) and expr in self.inside):
            return self.rescale(self, self.require_exact_integers(expr), target_type)
        if str(expr.op) == "qnn.dequantize":
            return self.rescale(self, self.require_exact_integers(expr), target_type)
        rule = self.require_rule(expr)
        first: IntegerRuleRefused | None = None
        for attempt in (rule.rounded, self._rescale_exact_integers, self.table):
            if attempt is None:
                continue
            self._depth += 1
            try:
                return attempt(self, expr, target_type)
            except IntegerRuleRefused as refused:
                first = first or refused.attributed_to_node_unless_to_call(expr)
            finally:
                self._depth -= 1
        assert first is not None
        raise first

    @staticmethod
    def _rescale_exact_integers(region: IntegerRegion, node: Call, target_type: TensorAffineType) -> Expr:
        """Compute the exact integers of a call and convert them to the requested quantization."""
        return region.rescale(region, region.require_exact_integers(node), target_type)
