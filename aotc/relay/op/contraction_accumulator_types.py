# SPDX-License-Identifier: Apache-2.0
"""Accumulator types and helpers of contractions (matmul, convolution), for numpy and for tensor
expressions.

accumulator_dtype("float16", "float16")  # float32
matmul_with_accumulator(a, b, "int32")  # numpy: a @ b, summed exactly, as int32
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotc.ir import DType, TensorType, require
from aotc.relay.op.operator_definition import Array, require_dtype
from aotc.tir import Expr, Operand, Tensor, te


def contraction_result_dtype(lhs: TensorType, rhs: TensorType, out_dtype: str) -> DType:
    """Return the dtype of a contraction's result: `out_dtype`, or the operands' dtype if it is "".

    Raise AotcError (code "dtype-mismatch") unless the operands have equal dtypes, or are integers
    and `out_dtype` is given.
    """
    alike = lhs.dtype == rhs.dtype or (lhs.dtype.is_integer and rhs.dtype.is_integer and bool(out_dtype))
    require("dtype-mismatch", alike, f"data types {lhs.dtype} and {rhs.dtype} do not match")
    require_dtype(lhs.dtype, not lhs.dtype.is_bool)
    return DType(out_dtype) if out_dtype else lhs.dtype


def accumulator_dtype(operand_dtype: str, out_dtype: str) -> DType:
    """Return the dtype in which products are summed, given the dtypes of the operands and of the
    result.
    """
    out, operand = DType(out_dtype), DType(operand_dtype)
    if operand.is_float:
        return max((DType("float32"), out, operand), key=lambda d: d.bits if d.is_float else 0)
    if out.is_float or out.bits >= 32:
        return out
    return DType("int32") if operand.bits < 32 else operand


def matmul_with_accumulator(a: Array, b: Array, out_dtype: str) -> Array:
    """Return numpy.matmul(a, b) summed in the accumulator's dtype and converted to `out_dtype`."""
    dtype = DType.from_numpy(a)
    acc = accumulator_dtype(dtype, out_dtype)
    # float64 sums of products of 16-bit integers are exact, and fast
    exact = dtype.is_integer and dtype.bits <= 16
    work = np.dtype(np.float64) if exact else acc.numpy
    total = a.astype(work) @ b.astype(work)
    return cast_array(total.astype(np.int64) if exact else total, out_dtype)


def contract_to_dtype(
    result_shape: Sequence[int],
    reduction_extents: Sequence[int],
    a: Tensor,
    a_index: Callable[..., Sequence[Operand]],
    b: Tensor,
    b_index: Callable[..., Sequence[Operand]],
    *,
    out_dtype: str,
    name: str,
    **options: Any,
) -> Tensor:
    """Return te.contraction in the accumulator's dtype, converted to `out_dtype` ("" for the
    operands' dtype).

    options    options of te.contraction
    """
    out = out_dtype or a.dtype
    acc = accumulator_dtype(a.dtype, out)
    total = te.contraction(result_shape, reduction_extents, a, a_index, b, b_index, dtype=acc, name=name, **options)
    return total if acc == out else cast_tensor(total, out)


def cast_tensor(x: Tensor, dtype: str) -> Tensor:
    """Return tensor `x` converted to `dtype`."""

    def cast_element(*i: Expr) -> Expr:
        return x[i].astype(dtype)

    return x if x.dtype == dtype else te.compute(x.shape, cast_element, "convert")


def widen_narrow_float_tensor(x: Tensor) -> Tensor:
    """Return tensor `x` in a dtype that C computes in: float16 and bfloat16 are converted to
    float32.
    """
    return cast_tensor(x, "float32") if x.dtype.is_narrow_float else x


def cast_array(x: Any, dtype: str | np.dtype[Any]) -> Array:
    """Return a numpy array converted to a data type; integers wrap around."""
    return np.asarray(x.astype(DType(dtype).numpy if isinstance(dtype, str) else dtype))


def widen_narrow_float_array(x: Array) -> Array:
    """Return an array of narrow floats (float16, bfloat16) as float32, other arrays unchanged."""
    return cast_array(x, "float32") if DType.from_numpy(x).is_narrow_float else x


def average_accumulator_dtype(dtype: DType) -> DType:
    """Return the dtype in which averages are summed: wide enough for sums of whole images, except
    of 64-bit integers.
    """
    if dtype.is_float:
        return DType("float32") if dtype.is_narrow_float else dtype
    return dtype if dtype.bits == 64 else DType("int64" if dtype.bits > 8 else "int32")


def divide_integers_rounding_to_zero(total: Array, count: Any) -> Array:
    """Return total / count of integers, rounded toward zero, for counts of at least 1."""
    count = np.asarray(count).astype(total.dtype)
    floor = total // count
    return np.asarray(floor + ((total < 0) & (floor * count != total)))
