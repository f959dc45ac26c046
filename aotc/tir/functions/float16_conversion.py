# SPDX-License-Identifier: Apache-2.0
"""Conversions between float32 and floats of at most 16 bits (float16, bfloat16, float8, float4)
that are stored as bits.

"load" converts bits to the float32 value, "store" converts float32 to the bits of the nearest value
(ties to even), and "round" converts float32 to the nearest value as float32. Overflow, NaN and
signed zeros are as in ml_dtypes. float64 is converted to float16 through "odd" (round to odd),
other values through float32.

    conversion("load", DType("bfloat16"))     # of a uint16: bitcast(cast(bits, uint32) << 16, float32)
"""

from __future__ import annotations

from typing import Final

from aotc.ir import DType, frozen
from aotc.tir.expr import Expr, as_expr, bitcast, call, cast, select
from aotc.tir.functions.function_definition import Function, defined

SINGLE: Final = DType("float32")
_SIGN: Final = 0x80000000
_MAGNITUDE: Final = 0x7FFFFFFF
_INFINITE: Final = 0x7F800000
_NAN: Final = 0x7FC00000


@frozen
class _Format:
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
    def dropped(self) -> int:
        """Number of mantissa bits that float32 has and the narrow format lacks."""
        return 23 - self.mantissa

    @property
    def magic(self) -> float:
        """Number whose unit in the last place in float32 equals the smallest step of the narrow
        format.
        """
        return float(2.0 ** (24 - self.bias - self.mantissa))

    @property
    def least(self) -> int:
        """float32 bits of the smallest normal number of the format."""
        return (128 - self.bias) << 23

    def single(self, code: int) -> int:
        """Return the float32 bits of the narrow format's normal number with the bits `code`."""
        return (code << self.dropped) + ((127 - self.bias) << 23)

    @property
    def single_nan(self) -> int:
        """float32 bits of the format's NaN; negative if the code of the negative zero is NaN."""
        return _NAN | _SIGN if self.unsigned_zero else _NAN


_FORMATS: Final = {
    "float16": _Format(10, 15, 0x7BFF, 0x7C00, 0x7E00),
    "float8_e5m2": _Format(2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e4m3fn": _Format(3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": _Format(3, 8, 0x7F, 0x80, 0x80, True),
    "float8_e5m2fnuz": _Format(2, 16, 0x7F, 0x80, 0x80, True),
    "float4_e2m1fn": _Format(1, 1, 0x7, 0x7, 0x0),  # has no NaN: it becomes zero
}


def _bits(x: Expr) -> Expr:
    return bitcast(x, "uint32")


def _number(u: Expr) -> Expr:
    return bitcast(u, "float32")


def _signed(u: Expr) -> Expr:
    """Return bits below 2^31 as signed integers, which processors compare in one instruction."""
    return bitcast(u, "int32")


def _value(dtype: DType, code: Expr) -> Expr:
    """Return the float32 value of a narrow float that is given by its bits (in a uint32)."""
    if dtype == "bfloat16":
        return _number(code << 16)
    if dtype == "float8_e8m0fnu":  # powers of two: exponents of float32
        exponent = select(code.equal(0), 1 << 22, code << 23)
        return _number(select(code.equal(255), as_expr(_NAN, code), exponent))
    f, sign = _FORMATS[dtype], 1 << (dtype.bits - 1)
    magnitude = code & (sign - 1)
    small = cast(_signed(magnitude), "float32") * (f.magic * 2.0**-23)
    normal = (magnitude << f.dropped) + ((127 - f.bias) << 23)
    finite = select(_signed(magnitude) < (1 << f.mantissa), _bits(small), normal)
    if f.overflow != f.nan and f.nan:
        beyond = select(_signed(magnitude) > f.overflow, as_expr(_NAN, code), _INFINITE)
        finite = select(_signed(magnitude) > f.largest, beyond, finite)
    elif f.nan and not f.unsigned_zero:
        finite = select(magnitude.equal(f.nan), as_expr(_NAN, code), finite)
    whole = finite | ((code & sign) << (32 - dtype.bits))
    if f.unsigned_zero:
        whole = select(code.equal(f.nan), as_expr(f.single_nan, code), whole)
    return _number(whole)


def _code(dtype: DType, x: Expr) -> Expr:
    """Return the bits (in a uint32) of the narrow float nearest to a float32 `x`."""
    u = _bits(x)
    if dtype == "bfloat16":
        return select(x.not_equal(x), as_expr(0x7FC0, u), (u + 0x7FFF + ((u >> 16) & 1)) >> 16)
    if (
        dtype == "float8_e8m0fnu"
    ):  # ties away from zero; values between the two least ones are rounded up, as in ml_dtypes
        tiny = select(u > (1 << 22), as_expr(1, u), 0)
        code = select(u < (1 << 23), tiny, (u + (1 << 22)) >> 23)
        return select(u.equal(0) | (u >= _INFINITE), as_expr(255, u), code)
    f = _FORMATS[dtype]
    a = u & _MAGNITUDE
    magic = as_expr(f.magic, x)
    small = _bits(_number(a) + magic) - _bits(magic)
    normal = (_to_even(f, a) >> f.dropped) - ((127 - f.bias) << f.mantissa)
    code = select(_signed(a) < f.least, small, normal)
    code = select(_signed(code) > f.largest, f.overflow, code)
    return _finished(f, x, code, (u & _SIGN) >> (32 - dtype.bits), f.nan)


def _to_even(f: _Format, a: Expr) -> Expr:
    """Return float32 bits with the mantissa rounded to the format's precision, ties to even; lower
    bits are not cleared.
    """
    return a + ((1 << (f.dropped - 1)) - 1) + ((a >> f.dropped) & 1)


def _finished(f: _Format, x: Expr, magnitude: Expr, sign: Expr, nan: int) -> Expr:
    """Return the bits of `x` converted to a narrow format: its rounded magnitude with its sign, or
    `nan` if `x` is NaN.
    """
    whole = magnitude | sign
    if f.unsigned_zero:
        whole = select(magnitude.equal(0), as_expr(0, whole), whole)
    return select(x.not_equal(x), as_expr(nan, whole), whole)


def _nearest(dtype: DType, x: Expr) -> Expr:
    """Return the value nearest to a float32 `x` that a narrow float dtype can represent, as
    float32.
    """
    if dtype not in _FORMATS:
        return _value(dtype, _code(dtype, x))
    f, u = _FORMATS[dtype], _bits(x)
    a = u & _MAGNITUDE
    small = _bits((_number(a) + f.magic) - f.magic)
    normal = _to_even(f, a) & (0xFFFFFFFF >> f.dropped << f.dropped)
    rounded = select(_signed(a) < f.least, small, normal)
    largest = f.single(f.largest)
    beyond = {f.largest: largest, f.nan: _NAN}.get(f.overflow, _INFINITE)
    rounded = select(_signed(rounded) > largest, beyond, rounded)
    return _number(_finished(f, x, rounded, u & _SIGN, f.single_nan if f.nan else 0))


def _odd(x: Expr) -> Expr:
    """Return float64 `x` as float32, rounded to odd: inexact results get an odd last bit.

    A second rounding to a narrow type then gives the correctly rounded result.
    """
    nearest = cast(x, "float32")
    u, back = _bits(nearest), cast(nearest, "float64")
    size = call("abs", back)
    exact = back.equal(x) | x.not_equal(x) | size.equal(float("inf"))
    stays = exact | (u & 1).not_equal(0)
    beyond = size > call("abs", x)
    return select(stays, nearest, _number(select(beyond, u - 1, u + 1)))


CONVERSIONS: Final = ("load", "store", "round", "odd")


def bits_of(dtype: DType) -> DType:
    """Return the unsigned integer dtype that stores the bits of a narrow float."""
    return DType(f"uint{8 * dtype.itemsize}")


def conversion(name: str, dtype: DType) -> Function:
    """Return a conversion function of CONVERSIONS ("load", "store", "round") for a narrow float;
    "odd" is for float64.
    """
    bits = bits_of(dtype)
    match name:
        case "load":
            return defined(name, bits, lambda bits: _value(dtype, cast(bits, "uint32")))
        case "store":
            return defined(name, SINGLE, lambda x: cast(_code(dtype, x), bits))
        case "round":
            return defined(name, SINGLE, lambda x: _nearest(dtype, x))
    return defined(name, dtype, _odd)
