# SPDX-License-Identifier: Apache-2.0
"""The operations of tensor programs on numpy scalars and arrays.

`NAMESPACE` holds the functions that the interpreter's Python code calls: `op_...` for operators,
and checked memory access; `FUNCTIONS` what functions of values mean that are no tensor programs.
Integers wrap, `cast` is numpy's astype.

    NAMESPACE["op_truncdiv"](-7, 2)            # -3
    NAMESPACE["load"](array, 99, "x")          # AotcError: x[99] is outside 0..16
"""

import ctypes
import operator
from collections.abc import Callable
from ctypes.util import find_library
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import DTYPES, AotcError, DType

#: A numpy scalar or array; Python int and bool for index arithmetic.
Value: TypeAlias = Any

_NUMPY_DTYPE_OF_NAME: Final = {str(name): name.numpy for name in DTYPES}
_DTYPE_WITHOUT_NAN: Final = _NUMPY_DTYPE_OF_NAME["float4_e2m1fn"]


def _check_index_bounds(array: Value, index: Value, label: str) -> None:
    """Raise AotcError unless every index is within the bounds of an array."""
    first, last = (index, index) if isinstance(index, int) else (index.min(), index.max())
    if not 0 <= first <= last < array.size:
        place = first if first == last else f"{first} .. {last}"
        raise AotcError("tir-run", f"{label}[{place}] is outside its {array.size} elements")


def _load(array: Value, index: int, label: str) -> Value:
    _check_index_bounds(array, index, label)
    item = array[index]
    return int(item) if array.dtype == np.int64 else item


def _take(array: Value, index: Value, mask: Value, label: str) -> Value:
    index = np.asarray(index)
    if mask is not None:
        index = np.where(mask, index, 0)
        if not np.any(mask):
            return np.zeros(index.shape, array.dtype)
    if index.size:
        _check_index_bounds(array, index, label)
    return array[index]


def _store(array: Value, index: int, value: Value, label: str) -> None:
    _check_index_bounds(array, index, label)
    array[index] = _wrap64(value) if isinstance(value, int) else value


def _put(array: Value, index: Value, value: Value, label: str) -> None:
    if index.size:
        _check_index_bounds(array, index, label)
    array[index] = value


def _accumulate(ufunc: Any, start: Value, values: Value, dtype: Any) -> Value:
    """Return the last result of an accumulation that rounds after every step, as a loop does."""
    items = np.concatenate((np.asarray([start], dtype), values))
    last = ufunc.accumulate(items, dtype=dtype)[-1]
    if last == 0 and ufunc in (np.minimum, np.maximum):
        last = items[items == 0][0]  # numpy says nothing of the signs of zeros
    return int(last) if dtype == np.int64 else last


def wrap_to_int64(value: int) -> int:
    """Return an integer wrapped to int64 (modulo 2**64)."""
    return (value + 2**63) % 2**64 - 2**63


def _wrap64(value: Value) -> Value:
    return wrap_to_int64(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def cast_array_to_dtype(array: Any, dtype: Any) -> Any:
    """Return a numpy array converted to a numpy dtype as tensor programs convert it, also where numpy's
    result depends on the processor: NaN and values that the type cannot represent.
    """
    if dtype == _DTYPE_WITHOUT_NAN:  # it has no NaN: it becomes zero, whatever its sign
        array = np.where(np.isnan(array.astype(np.float32)), np.float32(0), array)
    if DType.from_numpy(array.dtype).is_float and DType.from_numpy(np.dtype(dtype)).is_integer:
        return _truncate_float_to_integer(np.asarray(array, np.float64), np.dtype(dtype))
    try:
        return array.astype(dtype)
    except TypeError:  # between types below 16 bits, all of whose values float32 has
        return array.astype(np.float32).astype(dtype)


def _truncate_float_to_integer(x: Any, dtype: Any) -> Any:
    """Truncate floats to 32-bit integers, or to 64-bit ones if `dtype` needs them, then keep the
    low bits.

    Values out of range, and NaN, become the smallest integer.
    """
    if dtype == np.uint64:  # the upper half is that of negative numbers
        upper = x >= 2.0**63
        low = _truncate_float_to_integer(np.where(upper, x - 2.0**63, x), np.dtype(np.int64))
        return low.astype(np.uint64) + np.where(upper, np.uint64(1 << 63), np.uint64(0))
    bits = 64 if dtype in (np.int64, np.uint32) else 32
    in_range = (x >= -(2.0 ** (bits - 1))) & (x < 2.0 ** (bits - 1))
    whole = np.where(in_range, x, -(2.0 ** (bits - 1))).astype(np.int64)
    return whole.astype(dtype)


def _cast(value: Value, dtype: Any) -> Value:
    if isinstance(value, np.ndarray):
        return cast_array_to_dtype(value, dtype)
    result = cast_array_to_dtype(np.asarray(_wrap64(value)), dtype)[()]
    return int(result) if dtype == np.int64 else bool(result) if dtype == np.bool_ else result


def _truncdiv(a: Value, b: Value) -> Value:
    quotient = _floordiv(a, b)
    if isinstance(a, int) and isinstance(b, int):
        return quotient + (quotient < 0 and quotient * b != a)
    inexact = (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
    return (quotient + inexact.astype(quotient.dtype)).astype(quotient.dtype)


def _floordiv(a: Value, b: Value) -> Value:
    """Divide and round down; division by zero, which programs must not contain, gives 0 as in
    numpy.
    """
    return 0 if isinstance(b, int) and b == 0 else a // b


def _truncmod(a: Value, b: Value) -> Value:
    if isinstance(a, int) and isinstance(b, int):
        return a - _truncdiv(a, b) * b
    return np.fmod(a, b) if _int8_carrier_dtype(a) is None else (a - _truncdiv(a, b) * b)


def _int8_carrier_dtype(a: Value) -> Any:
    """Return the dtype (int8 or uint8) in which integers of fewer than 8 bits are processed; None
    for others.
    """
    dtype = np.asarray(a).dtype
    facts = DType.from_numpy(dtype)
    return None if facts.bits >= 8 or facts.is_bool else np.int8 if facts.is_signed else np.uint8


def _carry_subbyte_ints_in_int8(function: Callable[..., Value]) -> Callable[..., Value]:
    """`function` on integers, those of fewer than 8 bits carried by int8 or uint8."""

    def apply_with_int8_carrier(*args: Value) -> Value:
        carrier = None if isinstance(args[0], int) else _int8_carrier_dtype(args[0])
        if carrier is None:
            return function(*args)
        return function(*(np.asarray(a).astype(carrier) for a in args)).astype(args[0].dtype)[()]

    return apply_with_int8_carrier


def _shift_with_overflow_result(
    shift: Callable[[Value, Value], Value], result_of_oversized_shift: Callable[[Value], Value]
) -> Callable[..., Value]:
    """Return a shift whose result for counts of at least the width is
    `result_of_oversized_shift(a)`.
    """

    def shift_or_overflow(a: Value, b: Value) -> Value:
        width = _bit_width(a)
        if isinstance(a, int) and isinstance(b, int):
            return _wrap64(shift(a, b)) if 0 <= b < width else result_of_oversized_shift(a)
        left, right = np.asarray(a), np.asarray(b)
        inside = (right >= 0) & (right < width)
        result: Any = np.where(inside, shift(left, np.where(inside, right, 0)), result_of_oversized_shift(left))
        return result.astype(left.dtype)[()]

    return _carry_subbyte_ints_in_int8(shift_or_overflow)


def _bit_width(a: Value) -> int:
    return 64 if isinstance(a, int) else DType.from_numpy(np.asarray(a).dtype).itemsize * 8


def _not(a: Value) -> Value:
    return np.logical_not(a) if np.asarray(a).dtype == np.bool_ else ~a


def _nan_propagating_min_or_max(is_more_extreme: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return a minimum or maximum that propagates NaN; `is_more_extreme` compares the second
    operand with the first.
    """

    def min_or_max(a: Value, b: Value) -> Value:
        if isinstance(a, int) and isinstance(b, int):
            return b if is_more_extreme(b, a) else a
        result: Any = np.where(is_more_extreme(b, a) | (b != b), b, a)
        return result[()]

    return min_or_max


def _compute_in_float64(function: Callable[..., Value]) -> Callable[..., Value]:
    """`function` computed in float64 and rounded to the operand's type."""

    def apply_in_float64(*args: Value) -> Value:
        dtype = np.asarray(args[0]).dtype
        wide = [np.asarray(a).astype(np.float64) for a in args]
        return cast_array_to_dtype(np.asarray(function(*wide)), dtype)[()]

    return apply_in_float64


def _div(a: Value, b: Value) -> Value:
    return _compute_in_float64(np.true_divide)(a, b) if a.dtype == _DTYPE_WITHOUT_NAN else a / b


def _round_half_away_from_zero(x: Value) -> Value:
    whole = np.trunc(x)
    return np.copysign(whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(1.0, x), 0.0), x)


def _integer_power(a: Value, b: Value) -> Value:
    """Raise integers to a power modulo the width; a negative exponent gives 0 except for the bases
    1 and -1.
    """

    def power_modulo_2_64(base: int, exponent: int) -> int:
        if exponent >= 0:
            return pow(base, exponent, 2**64)
        return base ** (-exponent % 2) if base in (1, -1) else 0

    powers = np.array([_wrap64(power_modulo_2_64(int(x), int(y))) for x, y in np.broadcast(a, b)], np.int64)
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))
    result = powers.reshape(shape).astype(np.int64 if isinstance(a, int) else a.dtype)[()]
    return int(result) if isinstance(result, np.int64) else result


def _abs(a: Value) -> Value:
    return _wrap64(abs(a)) if isinstance(a, int) else np.abs(a)


def _fma(*args: Value) -> Value:
    """a * b + c, rounded once.

    For float32 the product is exact in float64, and the sum is rounded to odd, which makes the
    second rounding correct (Boldo and Melquiond, 2008); float64 uses the C library's fma.
    """
    dtype = np.asarray(args[0]).dtype
    a, b, c = (np.asarray(x).astype(np.float64) for x in args)
    if dtype == np.float64:
        return np.asarray(_FMA(a, b, c), np.float64)[()]
    product = a * b
    total = np.asarray(product + c)
    rest = total - product
    error = (product - (total - rest)) + (c - rest)  # of the sum, exact (Knuth)
    bits = total.view(np.int64)
    even = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    return (bits + np.where(even, np.where(away, 1, -1), 0)).view(np.float64).astype(dtype)[()]


_LIBRARY_FMA: Final = ctypes.CDLL(find_library("m")).fma
_LIBRARY_FMA.restype, _LIBRARY_FMA.argtypes = ctypes.c_double, [ctypes.c_double] * 3
_FMA: Final = np.vectorize(_LIBRARY_FMA, otypes=[np.float64])
_NUMPY_NAMES: Final = "sqrt floor ceil trunc copysign fmod"
#: Functions of values, by name.
FUNCTIONS: Final[dict[str, Callable[..., Value]]] = {
    "pow": _integer_power,
    "abs": _abs,
    "fma": _fma,
    "product": operator.mul,
    "isnan": np.isnan,
    "round_even": _compute_in_float64(np.rint),
    "round_away": _compute_in_float64(_round_half_away_from_zero),
    **{name: _compute_in_float64(getattr(np, name)) for name in _NUMPY_NAMES.split()},
}
#: What the interpreter's generated code may call, besides FUNCTIONS.
NAMESPACE: Final[dict[str, Any]] = {
    **{f.__name__[1:]: f for f in (_load, _take, _store, _put, _accumulate, _wrap64, _cast)},
    "dtypes": _NUMPY_DTYPE_OF_NAME,
    **{f"op{f.__name__}": f for f in (_div, _floordiv, _truncdiv, _truncmod)},
    "op_min": _nan_propagating_min_or_max(operator.lt),
    "op_max": _nan_propagating_min_or_max(operator.gt),
    "op_floormod": lambda a, b: 0 if isinstance(b, int) and b == 0 else a % b,
    "op_not": _carry_subbyte_ints_in_int8(_not),
    "op_and": _carry_subbyte_ints_in_int8(operator.and_),
    "op_or": _carry_subbyte_ints_in_int8(operator.or_),
    "op_xor": _carry_subbyte_ints_in_int8(operator.xor),
    "op_shl": _shift_with_overflow_result(operator.lshift, lambda a: a * 0),
    "op_shr": _shift_with_overflow_result(operator.rshift, lambda a: a >> (_bit_width(a) - 1) >> 1),
}
