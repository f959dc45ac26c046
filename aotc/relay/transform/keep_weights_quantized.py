# SPDX-License-Identifier: Apache-2.0
"""PackWeights: keep constant weights of float32 products quantized to 2, 4 or 8 bits until they are
in registers. RoundProductData: round the data of products by these weights to int8.

nn.dense(%x, multiply(subtract(cast(meta[Constant][0] /* Tensor[(64, 256), int4] */, "float32"),
%zeros), %scales)) nn.contrib_dense_bits(%x, meta[Constant][0] /* Tensor[(1, 32, 64), uint32] */,
..., units=64, bits=4, block_size=32)

Scales and zero points are constants, one for each unit and each block of consecutive inputs; the
block size is derived from their values. Input: typed functions. Output: equivalent functions. With
"compile.accuracy" = "fast", a partial sum is multiplied by its block's scale once, instead of every
weight by its scale. With other settings each weight is scaled first, so that large sums overflow
exactly where the original definition does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.ir import DType, Op, PassContext, frozen
from aotc.relay.graph_api import Call, Constant, Expr, Function, TupleGetItem, evaluate_constant_call, tensor_type_of
from aotc.relay.op.dense import DenseAttrs, MatmulAttrs
from aotc.relay.op.opdef import Array
from aotc.relay.op.packed_dense import contrib_dense_bits, pack_quantized_weights
from aotc.relay.op.packed_integer_dense import (
    RoundBlocksAttrs,
    can_round_in_blocks_of,
    contrib_dense_integer_bits,
    contrib_quantize_blocks,
    contrib_round_blocks,
    pack_weights_for_integer_products,
)
from aotc.relay.op.shape import TransposeAttrs, transpose_permutation
from aotc.relay.transform.pass_base import FunctionPass, as_op_call, rebuild_call, rewrite_nodes
from aotc.tir import C, Target
from aotc.tir.schedule.algorithms.low_bit_weight_matmul import UINT32, packed_weight_columns_per_tile

#: Largest constant, in bytes, that is evaluated for the analysis.
_MAX_EVALUATED_BYTES = 1 << 31
#: Largest magnitude of a zero point.
_MAX_ZERO_POINT = 1 << 16


@dataclass(frozen=True, repr=False)
class PackWeights(FunctionPass):
    """Pass that keeps constant weights of float32 products in 2, 4 or 8 bits, if they are
    dequantized integers.

    A product whose data is rounded to int8 in blocks (nn.contrib_round_blocks) becomes one of integers.
    It does nothing for GPUs, nor for weights whose scale blocks are not whole 32-bit words.
    """

    opt_level = 3

    target: Target = C

    def rewrite_function_body(self, function: Function) -> Function:
        if self.target.gpu is not None:
            return function
        return rewrite_nodes(function, lambda _, new: self._pack_product_weights(new))

    def _pack_product_weights(self, node: Expr) -> Expr:
        matrix = _weights_of_product(node)
        if matrix is None or not isinstance(node, Call):
            return node
        rounded = as_op_call(node.args[0], "nn.contrib_round_blocks")
        if rounded is not None:
            product = _integer_product(rounded, matrix, self.target)
            if product is not None:
                return product
        packed = _dense_bits_arguments_and_attrs(matrix, self.target)
        return node if packed is None else contrib_dense_bits(node.args[0], *packed[0], **packed[1])


@dataclass(frozen=True, repr=False)
class RoundProductData(FunctionPass):
    """Pass that rounds the float32 data of products to int8 in blocks (nn.contrib_round_blocks), where the
    weights are constant integers with a scale for each block.

    nn.dense(%x, %weights) nn.dense(nn.contrib_round_blocks(%x, block_size=32), %weights)

    The blocks of the data are those of the weights, as in MatMulNBits with `accuracy_level` 4. Weights with
    a single block for each unit, or blocks that nn.contrib_round_blocks does not have, stay as they are.
    """

    def rewrite_function_body(self, function: Function) -> Function:
        return rewrite_nodes(function, lambda _, new: self._round_data(new))

    @staticmethod
    def _round_data(node: Expr) -> Expr:
        matrix = _weights_of_product(node)
        if matrix is None or not isinstance(node, Call) or as_op_call(node.args[0], "nn.contrib_round_blocks"):
            return node
        block = math.gcd(*_starts_of_blocks(matrix))
        if not can_round_in_blocks_of(block):
            return node
        data = contrib_round_blocks(node.args[0], block_size=block)
        return rebuild_call(node, [data, *node.args[1:]])


def _weights_of_product(node: Expr) -> _DequantizedMatrix | None:
    """Return the weights (units, depth) of a float32 product of data (..., depth) by dequantized constants; None
    for other expressions.
    """
    if not isinstance(node, Call) or not isinstance(node.attrs, (DenseAttrs, MatmulAttrs)):
        return None
    a = node.attrs
    x = tensor_type_of(node.args[0])
    if x.dtype != "float32" or a.out_dtype not in ("", "float32") or (isinstance(a, MatmulAttrs) and a.transpose_a):
        return None
    if not isinstance(x.shape[-1], int):
        return None
    matrix = _match_dequantized_matrix(node.args[1])
    is_swapped = isinstance(a, MatmulAttrs) and not a.transpose_b
    return matrix.transposed() if matrix is not None and is_swapped else matrix


@frozen
class _DequantizedMatrix:
    """A matrix of integers with the scale and the zero point of each element."""

    integers: Array
    scale: Array
    zero: Array

    def transposed(self) -> _DequantizedMatrix:
        return _DequantizedMatrix(self.integers.T, self.scale.T, self.zero.T)


def _match_dequantized_matrix(expr: Expr) -> _DequantizedMatrix | None:
    """Return a weight matrix that is made of dequantized constants and perhaps transposed; None for
    other expressions.
    """
    transpose_call = as_op_call(expr, "transpose")
    if transpose_call is not None:
        matrix = _match_dequantized_matrix(transpose_call.args[0])
        assert isinstance(transpose_call.attrs, TransposeAttrs)
        swaps = transpose_permutation(transpose_call.attrs, tensor_type_of(transpose_call).rank) == (1, 0)
        return matrix.transposed() if matrix is not None and swaps else matrix
    plain = as_op_call(expr, "qnn.dequantize")
    if plain is not None:
        axis = plain.attrs.axis  # type: ignore[attr-defined]
        parts = [_per_row_values_as_column(_evaluate_constant_expression(arg), axis) for arg in plain.args[1:]]
        return _dequantized_matrix_if_suitable(plain, plain.args[0], *parts)
    scaled = as_op_call(expr, "multiply")
    if scaled is None:
        return None
    centered = as_op_call(scaled.args[0], "subtract")
    whole = as_op_call(scaled.args[0] if centered is None else centered.args[0], "cast")
    zero = np.zeros(()) if centered is None else _evaluate_constant_expression(centered.args[1])
    return (
        None
        if whole is None
        else _dequantized_matrix_if_suitable(scaled, whole.args[0], _evaluate_constant_expression(scaled.args[1]), zero)
    )


def _per_row_values_as_column(values: Array | None, axis: int) -> Array | None:
    """Return per-channel values as a column if they lie along axis 0 of a matrix; other values
    unchanged.
    """
    return values.reshape(-1, 1) if values is not None and values.size > 1 and axis % 2 == 0 else values


def _dequantized_matrix_if_suitable(
    dequantized: Expr, integers: Expr, scale: Array | None, zero: Array | None
) -> _DequantizedMatrix | None:
    """Return the weights if integers, scales and zero points are all suitable constants; None
    otherwise.

    Integers must have at most 8 bits; scales must be finite and float32; zero points must be whole
    numbers.

    dequantized    the dequantized matrix; its shape must be that of the integers
    """
    if not isinstance(integers, Constant) or scale is None or zero is None or integers.data.ndim != 2:
        return None
    dtype = DType.from_numpy(integers.data)
    if not dtype.is_integer or dtype.bits > 8 or scale.dtype != np.float32:
        return None
    # an infinite scale times a sum is not NaN where a weight of zero times it would be
    if tensor_type_of(dequantized).shape != integers.data.shape or not np.isfinite(scale).all():
        return None
    zero = zero.astype(np.float64)
    if not (np.rint(zero) == zero).all() or np.abs(zero).max(initial=0) > _MAX_ZERO_POINT:
        return None
    shape = integers.data.shape
    numbers = (np.broadcast_to(v.astype(np.float32), shape) for v in (scale, zero))
    return _DequantizedMatrix(integers.data.astype(np.int16), *numbers)


def _evaluate_constant_expression(expr: Expr) -> Array | None:
    """Return the value of an expression of constants; None if it cannot be evaluated."""
    if isinstance(expr, Constant):
        return expr.data
    if not isinstance(expr, Call) or not isinstance(expr.op, Op):
        return None
    parts = [_evaluate_constant_expression(arg) for arg in expr.args]
    known = [Constant(part) for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    result = evaluate_constant_call(
        Call(expr.op, known, expr.attrs, None, expr.span, expr.checked_type), _MAX_EVALUATED_BYTES
    )
    return result.data if isinstance(result, Constant) else None


def _starts_of_blocks(matrix: _DequantizedMatrix) -> list[int]:
    """Return the columns whose scales or zero points differ from those of the column before."""
    edges = np.zeros(max(matrix.integers.shape[1] - 1, 0), bool)
    for values in (matrix.scale, matrix.zero):
        edges |= (values[:, 1:] != values[:, :-1]).any(0)
    return [int(k) + 1 for k in np.flatnonzero(edges)]


def _integer_product(rounded: Call, matrix: _DequantizedMatrix, target: Target) -> Expr | None:
    """Return the product of rounded data and a matrix as a product of integers; None if their blocks differ, or if
    the weights cannot be packed.
    """
    assert isinstance(rounded.attrs, RoundBlocksAttrs)
    block, units = rounded.attrs.block_size, len(matrix.integers)
    if not matrix.integers.size or any(start % block for start in _starts_of_blocks(matrix)):
        return None
    starts = slice(None, None, block)
    packed = pack_weights_for_integer_products(
        matrix.integers,
        matrix.scale[:, starts],
        matrix.zero[:, starts],
        block,
        packed_weight_columns_per_tile(units, target),
        ("float32", "float16") if "f16c" in target.processor_features else ("float32",),
    )
    if packed is None:
        return None
    data = contrib_quantize_blocks(rounded.args[0], block_size=block)
    parts = [TupleGetItem(data, k) for k in range(3)]
    constants = map(Constant, packed.weight_scale_and_zero_arrays)
    return contrib_dense_integer_bits(*parts, *constants, units=units, bits=packed.bits, block_size=block)


def _dense_bits_arguments_and_attrs(
    matrix: _DequantizedMatrix, target: Target
) -> tuple[list[Constant], dict[str, Any]] | None:
    """Return the constant arguments and the attributes of nn.contrib_dense_bits; None if the
    weights cannot be packed.
    """
    units, depth = matrix.integers.shape
    if not units or not depth:
        return None
    block = math.gcd(*_starts_of_blocks(matrix)) or depth
    starts = slice(None, None, block)
    packed_weights = pack_quantized_weights(
        matrix.integers, matrix.scale[:, starts], matrix.zero[:, starts], packed_weight_columns_per_tile(units, target)
    )
    if packed_weights is None or (block < depth and block % (UINT32.bits // packed_weights.bits)):
        return None
    exact = PassContext.current().get_config("compile.accuracy", "fast") != "fast"
    attrs = {"units": units, "bits": packed_weights.bits, "block_size": block, "scale_first": exact}
    return [Constant(part) for part in packed_weights.weight_scale_and_zero_arrays], attrs
