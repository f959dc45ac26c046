# SPDX-License-Identifier: Apache-2.0
"""SelectSignedness: convert activations between uint8 and int8 to the type that the target's dot
products accept.

%0 = qnn.requantize(..., 0.2f, -7, out_dtype="int8");     %0 = qnn.requantize(..., 0.2f, 121, out_dtype="uint8");
qnn.conv2d(%0, %w, -7, 0, ...)                        =>  qnn.conv2d(%0, %w, 121, 0, ...)

Input: typed functions. Output: functions with equal values. Quantized operators absorb the change
by adding or subtracting 128 from the zero point. A user that has no zero point gets the original
values back through `x ^ 0x80`. Constant operands of sums of products, which are weights, are not
converted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from aotc.ir import DType, QuantizationTreatment, TensorType, span_scope
from aotc.relay.expr import (
    Call,
    Constant,
    Expr,
    Function,
    Tuple,
    TupleGetItem,
    require_op_of_call,
    tensor_type_of,
    tuple_item,
    typed_op_call,
)
from aotc.relay.op.binary_elementwise import add, bitwise_xor
from aotc.relay.op.cast_clip_prelu import cast
from aotc.relay.op.layout import may_zero_pad_blocks
from aotc.relay.op.qnn.quant_params import call_or_fold_constants
from aotc.relay.transform.pass_base import FunctionPass, GraphMutator, as_op_call, is_op_call, uniform_value_of_constant
from aotc.relay.visitor import post_order
from aotc.tir import C, Target

#: The sign bit: `x ^ 0x80` converts between uint8 and int8 values with zero points that differ by
#: 128.
_SIGN_BIT: Final = 0x80
_OPPOSITE_SIGNEDNESS: Final = {"uint8": "int8", "int8": "uint8"}
#: Operators that round before they add the zero point, or do not round: their results shift with
#: the zero point.
_SHIFTABLE_OPERATORS: Final = (
    "quantize dequantize requantize concatenate softmax sigmoid tanh exp sqrt rsqrt erf log abs leaky_relu"
)
#: Names of the zero-point argument for each data argument.
_ZERO_POINT_NAMES: Final = {
    "data": ("input_zero_point",),
    "x": ("x_zero_point", "input_zero_point", "zero_point"),
    "lhs": ("lhs_zero_point",),
    "rhs": ("rhs_zero_point",),
}
_RESULT_ZERO_POINT: Final = "output_zero_point"


def flip_sign_bit_and_signedness(x: Expr) -> Expr:
    """Return 8-bit integers with the sign bit flipped and the other signedness (`x ^ 0x80`);
    constants are evaluated.
    """
    ty = tensor_type_of(x)
    if isinstance(x, Constant):
        bits = np.ascontiguousarray(x.data).view(np.uint8) ^ np.uint8(_SIGN_BIT)
        # np.ascontiguousarray turns a scalar into a vector
        return Constant(bits.view(DType(_OPPOSITE_SIGNEDNESS[str(ty.dtype)]).numpy).reshape(x.data.shape))
    bit = Constant(np.array(_SIGN_BIT, np.uint8))
    if ty.dtype == "uint8":
        return cast(bitwise_xor(x, bit), dtype="int8")
    return bitwise_xor(cast(x, dtype="uint8"), bit)


def _match_sign_bit_flip(node: Call) -> Expr | None:
    """Return `x` if `node` is the sign-bit flip (`x ^ 0x80` and a cast) of an 8-bit tensor x; None
    for other nodes.
    """
    steps = ("cast", "bitwise_xor")
    inner = as_op_call(node.args[0], *steps) if is_op_call(node, *steps) else None
    if inner is None or inner.op is node.op:
        return None
    bit = (inner if is_op_call(node, "cast") else node).args[1]
    old, new = map(tensor_type_of, (inner.args[0], node))
    fits = old.shape == new.shape and _OPPOSITE_SIGNEDNESS.get(str(old.dtype)) == new.dtype
    return inner.args[0] if fits and uniform_value_of_constant(bit) == _SIGN_BIT else None


@dataclass(frozen=True, repr=False)
class SelectSignedness(FunctionPass):
    """Pass that converts 8-bit operands of dot products to the signedness that the target requires,
    if it requires one.
    """

    opt_level = 3

    target: Target = C

    def rewrite_function_body(self, function: Function) -> Function:
        activation_dtype = self.target.activations
        sums = any(_is_qnn_contraction(n) for n in post_order(function))
        return _Select(activation_dtype).visit_function(function) if activation_dtype and sums else function


def _is_qnn_contraction(node: Expr) -> bool:
    """Return True if a node is a quantized sum of products."""
    inner = as_op_call(node)
    return (
        inner is not None
        and require_op_of_call(inner).name.startswith("qnn.")
        and require_op_of_call(inner).is_contraction
    )


@dataclass(eq=False)
class _Select(GraphMutator):
    """Mutator that computes 8-bit tensors in the wanted type, and converts them back for users
    without a zero point.

    other   for a node of the original type, the expression of its value in the wanted type
    """

    new_dtype: str
    other: dict[Expr, Expr] = field(default_factory=dict, init=False)

    def is_byte_tensor_of_unwanted_signedness(self, expr: Expr) -> bool:
        """Return True if an expression is an 8-bit tensor of the signedness that is not wanted."""
        ty = expr.checked_type
        return isinstance(ty, TensorType) and ty.dtype == _OPPOSITE_SIGNEDNESS[self.new_dtype]

    def convert_to_wanted_signedness(self, expr: Expr) -> Expr:
        """Return an 8-bit tensor converted to the signedness that the target wants."""
        return self.other.get(expr) or flip_sign_bit_and_signedness(expr)

    def rewrite_rebuilt_node(self, old: Expr, new: Expr) -> Expr:
        node = as_op_call(new)
        if node is None:
            return self._tuple_field_from_converted_tuple(new)
        before = _match_sign_bit_flip(node)
        if before in self.other:
            return self.other[before]
        if before is not None and self.is_byte_tensor_of_unwanted_signedness(node):
            self.other[node] = before
            return node
        with span_scope(node.span):
            if node.args and isinstance(node.args[0], Tuple):
                made_of = self._rewrite_concatenation(node)
            elif require_op_of_call(node).name.startswith("qnn."):
                made_of = self._rewrite_qnn_operator(node)
            else:
                made_of = self._rewrite_move_selection_or_clip(node)
        if made_of is None:
            return node
        return (
            self._convert_to_original_signedness(made_of)
            if self.is_byte_tensor_of_unwanted_signedness(node)
            else made_of
        )

    def _convert_to_original_signedness(self, converted: Expr) -> Expr:
        """Convert a value computed in the wanted signedness back to the node's own type, and
        remember both.
        """
        original_value = flip_sign_bit_and_signedness(converted)
        self.other[original_value] = converted
        return original_value

    def _tuple_field_from_converted_tuple(self, new: Expr) -> Expr:
        """Return a tuple field in its own type, converted from a tuple that is available in the
        wanted signedness.
        """
        if (
            isinstance(new, TupleGetItem)
            and new.tuple_value in self.other
            and self.is_byte_tensor_of_unwanted_signedness(new)
        ):
            return self._convert_to_original_signedness(TupleGetItem(self.other[new.tuple_value], new.index, new.span))
        return new

    def _shift_zero_point_by_128(self, zero: Expr) -> Expr:
        """Return a zero point shifted by 128 along with its tensor."""
        shift = _SIGN_BIT if self.new_dtype == "uint8" else -_SIGN_BIT
        wide = call_or_fold_constants(cast, zero, dtype="int32")
        return call_or_fold_constants(add, wide, Constant(np.array(shift, np.int32)))

    def _rewrite_qnn_operator(self, node: Call) -> Expr | None:
        """Return a quantized operator rewritten for operands of the wanted signedness; None if
        nothing changes.
        """
        op, args = require_op_of_call(node), list(node.args)
        if not op.is_contraction and op.name.removeprefix("qnn.") not in _SHIFTABLE_OPERATORS.split():
            return None
        names = [a.name for a in op.args]
        point = {name: k for k, name in enumerate(names) if name.endswith("zero_point")}
        converts_result = _RESULT_ZERO_POINT in point and self.is_byte_tensor_of_unwanted_signedness(node)
        free = "out_dtype" in dict(node.attrs.items()) and not op.is_contraction
        data = [
            k
            for k, name in enumerate(names)
            if name in _ZERO_POINT_NAMES and self.is_byte_tensor_of_unwanted_signedness(args[k])
        ]
        converted_positions = [k for k in data if args[k] in self.other]
        if not converted_positions and not (converts_result and free) and not (data and op.is_contraction):
            return None
        for k in converted_positions if free else data:
            args[k] = self.convert_to_wanted_signedness(args[k])
            at = next(point[n] for n in _ZERO_POINT_NAMES[names[k]] if n in point)
            args[at] = self._shift_zero_point_by_128(args[at])
        new_attrs: dict[str, Any] = {}
        if converts_result:
            args[point[_RESULT_ZERO_POINT]] = self._shift_zero_point_by_128(args[point[_RESULT_ZERO_POINT]])
            new_attrs = {"out_dtype": self.new_dtype} if free else {}
        return typed_op_call(op, args, node.attrs.replace(**new_attrs))

    def _rewrite_concatenation(self, node: Call) -> Expr | None:
        """Return a concatenation or stack of 8-bit tensors in the wanted signedness; None if
        nothing changes.
        """
        parts, *points = node.args
        assert isinstance(parts, Tuple)
        if require_op_of_call(node).name.removeprefix("qnn.") not in ("concatenate", "stack"):
            return None
        if not self.is_byte_tensor_of_unwanted_signedness(node) or not any(f in self.other for f in parts.fields):
            return None
        data = Tuple([self.convert_to_wanted_signedness(f) for f in parts.fields])
        if points:
            scales, zeros, scale, zero = points
            fields = [tuple_item(zeros, k) for k in range(len(parts.fields))]
            points = [
                scales,
                Tuple(map(self._shift_zero_point_by_128, fields)),
                scale,
                self._shift_zero_point_by_128(zero),
            ]
        return typed_op_call(require_op_of_call(node), (data, *points), node.attrs)

    def _rewrite_move_selection_or_clip(self, node: Call) -> Expr | None:
        """Return a move, selection, clip or table lookup rewritten for the wanted signedness; None
        if it is not one.
        """
        op = require_op_of_call(node)
        if op.name == "take" and isinstance(node.args[0], Constant):
            return self._rewrite_table_lookup(node)
        real = [a for a in node.args if self.is_byte_tensor_of_unwanted_signedness(a)]
        if not any(a in self.other for a in real):
            return None
        clip = op.name == "clip"
        passes = (
            op.quantization_treatment is QuantizationTreatment.PASS
            and op.name != "nn.relu"
            and not may_zero_pad_blocks(node)
        )
        if not (clip or passes):
            return None
        args = [self.convert_to_wanted_signedness(a) if a in real else a for a in node.args]
        new_attrs: dict[str, Any] = {}
        if clip:
            shift = _SIGN_BIT if self.new_dtype == "uint8" else -_SIGN_BIT
            new_attrs = {name: node.attrs[name] + shift for name in ("a_min", "a_max")}
        result = typed_op_call(op, args, node.attrs.replace(**new_attrs))
        if isinstance(result.checked_type, TensorType):
            return result
        self.other[node] = result
        return None

    def _rewrite_table_lookup(self, node: Call) -> Expr | None:
        """Return a lookup in a 256-entry table whose index or entries are converted to the wanted
        type; None if neither is.
        """
        table, places = node.args
        assert isinstance(table, Constant)
        converts_result = self.is_byte_tensor_of_unwanted_signedness(node)
        index_cast = as_op_call(places, "cast")
        source = places if index_cast is None else index_cast.args[0]
        converts_index = table.data.size == 256 and source in self.other and tensor_type_of(places).dtype == "uint8"
        if not (converts_result or converts_index) or table.data.shape != (256,):
            return None
        if converts_index and self.new_dtype == "uint8":
            table, places = Constant(np.roll(table.data, _SIGN_BIT)), self.other[source]
        return typed_op_call(
            require_op_of_call(node),
            (flip_sign_bit_and_signedness(table) if converts_result else table, places),
            node.attrs,
        )
