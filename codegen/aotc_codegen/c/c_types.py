# SPDX-License-Identifier: Apache-2.0
"""Map dtypes to C: types in memory, computation types, suffixes of function names, literals.

c_memory_type(DType("float16"))        # "uint16_t": stored as bits
function_name_suffix_of_dtype(DType("float16"))  # "f16"
computation_dtype(DType("float16"))    # float32: computation type
c_literal(0.1, DType("float32"))       # "0.1f"
"""

import math
import re
from typing import Final

import numpy as np

from aotc.ir.dtype import DType

_C_TYPE_BY_DTYPE: Final = {"float32": "float", "float64": "double", "bool": "uint8_t"}


def c_memory_type(dtype: DType) -> str:
    """Return the C type of an element in memory; floats that C lacks are stored as bits, sub-byte
    integers in a byte.
    """
    if dtype in _C_TYPE_BY_DTYPE:
        return _C_TYPE_BY_DTYPE[dtype]
    if dtype.is_float:
        return f"uint{8 * dtype.itemsize}_t"
    sign = "" if dtype.is_signed else "u"
    return f"{sign}int{max(8, dtype.bits)}_t"


def computation_dtype(dtype: DType) -> DType:
    """Return the dtype in which values of a dtype are computed: float32 for narrow floats, else the
    dtype itself.
    """
    return DType("float32") if dtype.is_narrow_float else dtype


def is_sub_byte_integer(dtype: DType) -> bool:
    """Return True for integers of fewer than 8 bits, which are stored in one byte each with
    undefined upper bits.
    """
    return dtype.bits < 8 and dtype.is_integer


def function_name_suffix_of_dtype(dtype: DType) -> str:
    """Return the suffix of function names for a dtype: f32, i64, u8, b, f16, bf16, f8_e4m3fn..."""
    return re.sub("^(b?f|b|i|u)(loat|ool|nt|int)", r"\1", dtype)


def _c_float_literal(value: float, dtype: DType) -> str:
    double = dtype == "float64"
    with np.errstate(over="ignore"):
        # the narrow type may lack infinities or NaN
        value = float(np.float64(value).astype(dtype.numpy))
    if not math.isfinite(value):
        sign, cast = "-" if value < 0 else "", "(double)" if double else ""
        return f"{sign}{cast}{'NAN' if math.isnan(value) else 'INFINITY'}"
    number = np.float64(value) if double else np.float32(value)
    # str gives the shortest decimal that reads back as the value
    text = str(number)
    if "." not in text and "e" not in text:
        text += ".0"
    return text if double else f"{text}f"


def _c_integer_literal(value: int, dtype: DType) -> str:
    if not dtype.is_signed:
        return f"UINT64_C({value})" if dtype.bits == 64 else f"{value}u"
    if dtype.bits < 64:
        return "INT32_MIN" if value == -(1 << 31) else str(value)
    return "INT64_MIN" if value == -(1 << 63) else f"INT64_C({value})"


def c_literal(value: int | float | bool, dtype: DType) -> str:
    """Return a value as an exact C constant expression."""
    if dtype.is_bool:
        return "1" if value else "0"
    return _c_float_literal(float(value), dtype) if dtype.is_float else _c_integer_literal(int(value), dtype)
