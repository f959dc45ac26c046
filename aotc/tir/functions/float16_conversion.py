# SPDX-License-Identifier: Apache-2.0
"""Conversions between float32 and floats of at most 16 bits (float16, bfloat16, float8, float4)
that are stored as bits.

"load" converts bits to the float32 value, "store" converts float32 to the bits of the nearest value
(ties to even), and "round" converts float32 to the nearest value as float32. Overflow, NaN and
signed zeros are as in ml_dtypes. float64 is converted to float16 through "odd" (round to odd),
other values through float32.

    narrow_float_conversion("load", DType("bfloat16"))  # of a uint16: bitcast(cast(bits, uint32) << 16, float32)
"""

from __future__ import annotations

from typing import Final

from aotc.ir import DType, frozen
from aotc.tir.expr import Expr, as_expr, bitcast, call, cast, select
from aotc.tir.functions.function_from_formula import ElementaryFunction, function_from_formula

FLOAT32: Final = DType("float32")
_SIGN_BIT: Final = 0x80000000
_MAGNITUDE_MASK: Final = 0x7FFFFFFF
_INFINITY_BITS: Final = 0x7F800000
_NAN_BITS: Final = 0x7FC00000


@frozen
class _NarrowFloatFormat:
    """Format of a narrow float with sign, exponent and mantissa; the codes below are bits without
    the sign.

    largest         largest finite code
    overflow        code of larger values
    nan             code of NaN
    unsigned_zero   True if code 0x80 is NaN: the format has no negative zero and no signed NaN
    """

    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    unsigned_zero: bool = False

    @property
    def dropped_mantissa_bits(self) -> int:
        """Number of mantissa bits that float32 has and the narrow format lacks."""
        return 23 - self.mantissa

    @property
    def addend_rounding_to_narrow_step(self) -> float:
        """Number whose unit in the last place in float32 equals the smallest step of the narrow
        format.
        """
        return float(2.0 ** (24 - self.bias - self.mantissa))

    @property
    def smallest_normal_float32_bits(self) -> int:
        """float32 bits of the smallest normal number of the format."""
        return (128 - self.bias) << 23

    def float32_bits_of_normal_code(self, code: int) -> int:
        """Return the float32 bits of the narrow format's normal number with the bits `code`."""
        return (code << self.dropped_mantissa_bits) + ((127 - self.bias) << 23)

    @property
    def float32_bits_of_nan(self) -> int:
        """float32 bits of the format's NaN; negative if the code of the negative zero is NaN."""
        return _NAN_BITS | _SIGN_BIT if self.unsigned_zero else _NAN_BITS


_FORMATS: Final = {
    "float16": _NarrowFloatFormat(10, 15, 0x7BFF, 0x7C00, 0x7E00),
    "float8_e5m2": _NarrowFloatFormat(2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e4m3fn": _NarrowFloatFormat(3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": _NarrowFloatFormat(3, 8, 0x7F, 0x80, 0x80, True),
    "float8_e5m2fnuz": _NarrowFloatFormat(2, 16, 0x7F, 0x80, 0x80, True),
    "float4_e2m1fn": _NarrowFloatFormat(1, 1, 0x7, 0x7, 0x0),  # has no NaN: it becomes zero
}


def _float32_to_bits(x: Expr) -> Expr:
    return bitcast(x, "uint32")


def _bits_to_float32(u: Expr) -> Expr:
    return bitcast(u, "float32")


def _bits_as_int32(u: Expr) -> Expr:
    """Return bits below 2^31 as signed integers, which processors compare in one instruction."""
    return bitcast(u, "int32")


def _narrow_bits_to_float32(dtype: DType, code: Expr) -> Expr:
    """Return the float32 value of a narrow float that is given by its bits (in a uint32)."""
    if dtype == "bfloat16":
        return _bits_to_float32(code << 16)
    if dtype == "float8_e8m0fnu":  # powers of two: exponents of float32
        exponent = select(code.equal(0), 1 << 22, code << 23)
        return _bits_to_float32(select(code.equal(255), as_expr(_NAN_BITS, code), exponent))
    f, sign = _FORMATS[dtype], 1 << (dtype.bits - 1)
    magnitude = code & (sign - 1)
    small = cast(_bits_as_int32(magnitude), "float32") * (f.addend_rounding_to_narrow_step * 2.0**-23)
    normal = (magnitude << f.dropped_mantissa_bits) + ((127 - f.bias) << 23)
    finite = select(_bits_as_int32(magnitude) < (1 << f.mantissa), _float32_to_bits(small), normal)
    if f.overflow != f.nan and f.nan:
        beyond = select(_bits_as_int32(magnitude) > f.overflow, as_expr(_NAN_BITS, code), _INFINITY_BITS)
        finite = select(_bits_as_int32(magnitude) > f.largest, beyond, finite)
    elif f.nan and not f.unsigned_zero:
        finite = select(magnitude.equal(f.nan), as_expr(_NAN_BITS, code), finite)
    whole = finite | ((code & sign) << (32 - dtype.bits))
    if f.unsigned_zero:
        whole = select(code.equal(f.nan), as_expr(f.float32_bits_of_nan, code), whole)
    return _bits_to_float32(whole)


def _float32_to_narrow_bits(dtype: DType, x: Expr) -> Expr:
    """Return the bits (in a uint32) of the narrow float nearest to a float32 `x`."""
    u = _float32_to_bits(x)
    if dtype == "bfloat16":
        return select(x.not_equal(x), as_expr(0x7FC0, u), (u + 0x7FFF + ((u >> 16) & 1)) >> 16)
    if (
        dtype == "float8_e8m0fnu"
    ):  # ties away from zero; values between the two least ones are rounded up, as in ml_dtypes
        tiny = select(u > (1 << 22), as_expr(1, u), 0)
        code = select(u < (1 << 23), tiny, (u + (1 << 22)) >> 23)
        return select(u.equal(0) | (u >= _INFINITY_BITS), as_expr(255, u), code)
    f = _FORMATS[dtype]
    a = u & _MAGNITUDE_MASK
    magic = as_expr(f.addend_rounding_to_narrow_step, x)
    small = _float32_to_bits(_bits_to_float32(a) + magic) - _float32_to_bits(magic)
    normal = (_round_mantissa_keeping_low_bits(f, a) >> f.dropped_mantissa_bits) - ((127 - f.bias) << f.mantissa)
    code = select(_bits_as_int32(a) < f.smallest_normal_float32_bits, small, normal)
    code = select(_bits_as_int32(code) > f.largest, f.overflow, code)
    return _apply_sign_and_nan(f, x, code, (u & _SIGN_BIT) >> (32 - dtype.bits), f.nan)


def _round_mantissa_keeping_low_bits(narrow_format: _NarrowFloatFormat, float32_bits: Expr) -> Expr:
    """Return float32 bits with the mantissa rounded to the format's precision, ties to even; lower
    bits are not cleared.
    """
    return (
        float32_bits
        + ((1 << (narrow_format.dropped_mantissa_bits - 1)) - 1)
        + ((float32_bits >> narrow_format.dropped_mantissa_bits) & 1)
    )


def _apply_sign_and_nan(narrow_format: _NarrowFloatFormat, x: Expr, magnitude: Expr, sign: Expr, nan: int) -> Expr:
    """Return the bits of `x` converted to a narrow format: its rounded magnitude with its sign, or
    `nan` if `x` is NaN.
    """
    whole = magnitude | sign
    if narrow_format.unsigned_zero:
        whole = select(magnitude.equal(0), as_expr(0, whole), whole)
    return select(x.not_equal(x), as_expr(nan, whole), whole)


def _round_float32_to_narrow_value(dtype: DType, x: Expr) -> Expr:
    """Return the value nearest to a float32 `x` that a narrow float dtype can represent, as
    float32.
    """
    if dtype not in _FORMATS:
        return _narrow_bits_to_float32(dtype, _float32_to_narrow_bits(dtype, x))
    f, u = _FORMATS[dtype], _float32_to_bits(x)
    a = u & _MAGNITUDE_MASK
    small = _float32_to_bits(
        (_bits_to_float32(a) + f.addend_rounding_to_narrow_step) - f.addend_rounding_to_narrow_step
    )
    normal = _round_mantissa_keeping_low_bits(f, a) & (0xFFFFFFFF >> f.dropped_mantissa_bits << f.dropped_mantissa_bits)
    rounded = select(_bits_as_int32(a) < f.smallest_normal_float32_bits, small, normal)
    largest = f.float32_bits_of_normal_code(f.largest)
    beyond = {f.largest: largest, f.nan: _NAN_BITS}.get(f.overflow, _INFINITY_BITS)
    rounded = select(_bits_as_int32(rounded) > largest, beyond, rounded)
    return _bits_to_float32(_apply_sign_and_nan(f, x, rounded, u & _SIGN_BIT, f.float32_bits_of_nan if f.nan else 0))


def _round_float64_to_odd_float32(x: Expr) -> Expr:
    """Return float64 `x` as float32, rounded to odd: inexact results get an odd last bit.

    A second rounding to a narrow type then gives the correctly rounded result.
    """
    nearest = cast(x, "float32")
    u, back = _float32_to_bits(nearest), cast(nearest, "float64")
    size = call("abs", back)
    exact = back.equal(x) | x.not_equal(x) | size.equal(float("inf"))
    stays = exact | (u & 1).not_equal(0)
    beyond = size > call("abs", x)
    return select(stays, nearest, _bits_to_float32(select(beyond, u - 1, u + 1)))


CONVERSION_NAMES: Final = ("load", "store", "round", "odd")


def storage_dtype_of_narrow_float(dtype: DType) -> DType:
    """Return the unsigned integer dtype that stores the bits of a narrow float."""
    return DType(f"uint{8 * dtype.itemsize}")


def narrow_float_conversion(conversion_name: str, dtype: DType) -> ElementaryFunction:
    """Return a conversion function of CONVERSION_NAMES ("load", "store", "round") for a narrow
    float; "odd" is for float64.
    """
    bits = storage_dtype_of_narrow_float(dtype)
    match conversion_name:
        case "load":
            return function_from_formula(
                conversion_name, bits, lambda bits: _narrow_bits_to_float32(dtype, cast(bits, "uint32"))
            )
        case "store":
            return function_from_formula(
                conversion_name, FLOAT32, lambda x: cast(_float32_to_narrow_bits(dtype, x), bits)
            )
        case "round":
            return function_from_formula(conversion_name, FLOAT32, lambda x: _round_float32_to_narrow_value(dtype, x))
    return function_from_formula(conversion_name, dtype, _round_float64_to_odd_float32)
