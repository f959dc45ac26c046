# SPDX-License-Identifier: Apache-2.0
"""Accumulator types and helpers of contractions (matmul, convolution), for numpy and for tensor
expressions.

accumulator("float16", "float16")      # float32
dot(a, b, "int32")                     # numpy: a @ b, summed exactly, as int32
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotc.ir import DType, TensorType, require
from aotc.relay.op.operator_definition import Array, require_dtype
from aotc.tir import Expr, Operand, Tensor, te


def result_dtype(a: TensorType, b: TensorType, out_dtype: str) -> DType:
    """Return the dtype of a contraction's result: `out_dtype`, or the operands' dtype if it is "".

    Raise AotcError (code "dtype-mismatch") unless the operands have equal dtypes, or are integers
    and `out_dtype` is given.
    """
    alike = a.dtype == b.dtype or (a.dtype.is_integer and b.dtype.is_integer and bool(out_dtype))
    require("dtype-mismatch", alike, f"data types {a.dtype} and {b.dtype} do not match")
    require_dtype(a.dtype, not a.dtype.is_bool)
    return DType(out_dtype) if out_dtype else a.dtype


def accumulator(dtype: str, out_dtype: str) -> DType:
    """Return the dtype in which products are summed, given the dtypes of the operands and of the
    result.
    """
    out, operand = DType(out_dtype), DType(dtype)
    if operand.is_float:
        return max((DType("float32"), out, operand), key=lambda d: d.bits if d.is_float else 0)
    if out.is_float or out.bits >= 32:
        return out
    return DType("int32") if operand.bits < 32 else operand


def dot(a: Array, b: Array, out_dtype: str) -> Array:
    """Return numpy.matmul(a, b) summed in the accumulator's dtype and converted to `out_dtype`."""
    dtype = DType.of(a)
    acc = accumulator(dtype, out_dtype)
    # float64 sums of products of 16-bit integers are exact, and fast
    exact = dtype.is_integer and dtype.bits <= 16
    work = np.dtype(np.float64) if exact else acc.numpy
    total = a.astype(work) @ b.astype(work)
    return as_dtype(total.astype(np.int64) if exact else total, out_dtype)


def contract(
    shape: Sequence[int],
    extents: Sequence[int],
    a: Tensor,
    a_index: Callable[..., Sequence[Operand]],
    b: Tensor,
    b_index: Callable[..., Sequence[Operand]],
    *,
    out_dtype: str,
    name: str,
    **how: Any,
) -> Tensor:
    """Return te.contraction in the accumulator's dtype, converted to `out_dtype` ("" for the
    operands' dtype).

    how  options of te.contraction
    """
    out = out_dtype or a.dtype
    acc = accumulator(a.dtype, out)
    total = te.contraction(shape, extents, a, a_index, b, b_index, dtype=acc, name=name, **how)
    return total if acc == out else convert(total, out)


def convert(x: Tensor, dtype: str) -> Tensor:
    """Return tensor `x` converted to `dtype`."""

    def body(*i: Expr) -> Expr:
        return x[i].astype(dtype)

    return x if x.dtype == dtype else te.compute(x.shape, body, "convert")


def promoted(x: Tensor) -> Tensor:
    """Return tensor `x` in a dtype that C computes in: float16 and bfloat16 are converted to
    float32.
    """
    return convert(x, "float32") if x.dtype.is_narrow_float else x


def as_dtype(x: Any, dtype: str | np.dtype[Any]) -> Array:
    """Return a numpy array converted to a data type; integers wrap around."""
    return np.asarray(x.astype(DType(dtype).numpy if isinstance(dtype, str) else dtype))


def float_work(x: Array) -> Array:
    """Return an array of narrow floats (float16, bfloat16) as float32, other arrays unchanged."""
    return as_dtype(x, "float32") if DType.of(x).is_narrow_float else x


def sum_type(dtype: DType) -> DType:
    """Return the dtype in which averages are summed: wide enough for sums of whole images, except
    of 64-bit integers.
    """
    if dtype.is_float:
        return DType("float32") if dtype.is_narrow_float else dtype
    return dtype if dtype.bits == 64 else DType("int64" if dtype.bits > 8 else "int32")


def truncated_quotient(total: Array, count: Any) -> Array:
    """Return total / count of integers, rounded toward zero, for counts of at least 1."""
    count = np.asarray(count).astype(total.dtype)
    floor = total // count
    return np.asarray(floor + ((total < 0) & (floor * count != total)))
