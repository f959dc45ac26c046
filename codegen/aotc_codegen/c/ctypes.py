# SPDX-License-Identifier: Apache-2.0
"""How data types look in C: the type in memory, the type of a value, literals.

memory_type(DType("float16"))          # "uint16_t": stored as bits
value_type(DType("float16"))           # "float": computed in single precision
literal(0.1, DType("float32"))         # "0.1f"
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from aotc.ir.dtype import DType

_REGISTERS_ARE_FULL: Final = """/* Tiles fill the registers: GCC would keep values from one iteration
 * to the next in memory. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-predictive-commoning")
#endif

"""
_PLAIN: Final = {"float32": "float", "float64": "double", "bool": "uint8_t"}


def memory_type(dtype: DType) -> str:
    """The C type of an element in memory; floats that C lacks are their bits, sub-byte types take a byte."""
    if dtype in _PLAIN:
        return _PLAIN[dtype]
    if dtype.is_float:
        return f"uint{8 * dtype.itemsize}_t"
    sign = "" if dtype.is_signed else "u"
    return f"{sign}int{max(8, dtype.bits)}_t"


def value_type(dtype: DType) -> str:
    """The C type of a value in an expression; narrow floats are floats, bools are ints."""
    if dtype.is_narrow_float:
        return "float"
    return "int" if dtype.is_bool else memory_type(dtype)


def unsigned_type(dtype: DType) -> str:
    """The unsigned C type in which integers of `dtype` wrap around."""
    return f"uint{max(32, dtype.bits)}_t"


def _float_literal(value: float, dtype: DType) -> str:
    double = dtype == "float64"
    with np.errstate(over="ignore"):
        value = float(np.float64(value).astype(dtype.numpy))  # a narrow type may have other specials
    if math.isnan(value):
        return "(double)NAN" if double else "NAN"
    if math.isinf(value):
        sign = "-" if value < 0 else ""
        return f"{sign}(double)INFINITY" if double else f"{sign}INFINITY"
    number = np.float64(value) if double else np.float32(value)
    text = str(number)  # the shortest decimal that reads back as the same number
    if "." not in text and "e" not in text:
        text += ".0"
    return text if double else f"{text}f"


def _integer_literal(value: int, dtype: DType) -> str:
    if not dtype.is_signed:
        return f"UINT64_C({value})" if dtype.bits == 64 else f"{value}u"
    if dtype.bits < 64:
        return "INT32_MIN" if value == -(1 << 31) else str(value)
    return "INT64_MIN" if value == -(1 << 63) else f"INT64_C({value})"


def literal(value: int | float | bool, dtype: DType) -> str:
    """A value as a C constant expression, exact."""
    if dtype.is_bool:
        return "1" if value else "0"
    return _float_literal(float(value), dtype) if dtype.is_float else _integer_literal(int(value), dtype)


def vector_name(dtype: DType, lanes: int) -> str:
    """The name of the vector type of `lanes` elements."""
    return f"aotc_{dtype}x{lanes}"


def vector_prelude(vectors: Iterable[tuple[DType, int]]) -> str:
    """What a file of kernels that use vectors, (element type, lanes) each, begins with; empty without any."""
    typedefs = "".join(vector_typedefs(dtype, lanes) for dtype, lanes in sorted(vectors))
    return _REGISTERS_ARE_FULL + typedefs if typedefs else ""


def vector_typedefs(dtype: DType, lanes: int) -> str:
    """The vector type and its twin for memory that is aligned to elements only (GCC and Clang extension)."""
    ctype, size = memory_type(dtype), dtype.itemsize
    name = vector_name(dtype, lanes)
    attributes = f"__vector_size__({size * lanes}), __may_alias__"
    return (
        f"typedef {ctype} {name} __attribute__(({attributes}));\n"
        f"typedef {ctype} {name}u __attribute__(({attributes}, __aligned__({size})));\n"
    )
