# SPDX-License-Identifier: Apache-2.0
"""Instructions that round four float vectors to one int8 vector, with their semantics and C text.

    quantize_uint8_x16(a, b, c, d, z)    # the elements of a, b, c, d as `quantize_uint8` makes them, one by one

Processors narrow int32 to int8 in two saturating steps of half the width; the zero point is added between them.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import numpy as np

from aotc.tir.instruction_definition import Instruction, vectors
from aotc.tir.int8_dot_products import GROUP, LANES

#: Types of the result, with the last step and the least number.
_BYTES: Final = {"int8": ("packsswb", -128), "uint8": ("packuswb", 0)}
#: By the lanes of the floats: what must be defined, and the ends of gcc's names for vectors of floats and of integers.
_X86: Final = {4: ("SSE2", "", "128"), 8: ("AVX2", "256", "256"), 16: ("AVX512BW", "512_mask", "512_mask")}
#: The words of results of steps within 16 bytes in their order.
_ORDER: Final = {8: "0, 4, 1, 5, 2, 6, 3, 7", 16: ", ".join(str(4 * (k % 4) + k // 4) for k in range(16))}
_FUNCTION: Final = """\
/* Numbers rounded to even integers, plus what zero is, saturated. */
__attribute__((__unused__)) $inline aotc_DTYPExSIZE
aotc_NAME(VECTOR x0, VECTOR x1, VECTOR x2, VECTOR x3, VECTOR zero) {
  typedef char bytes __attribute__((__vector_size__(SIZE), __unused__));
  typedef short halves __attribute__((__vector_size__(SIZE), __unused__));
  typedef int words __attribute__((__vector_size__(SIZE), __unused__));
#if defined(__FEATURE__) && !defined(__clang__)
  const VECTOR none = {0}, most = none + 1073741824.0f;
  const halves z = ZERO;
  const halves low = FIRST;
  const halves high = SECOND;
  return (aotc_DTYPExSIZE)RESULT;
#else
  const VECTOR least = LOW - zero, last = least + 255.0f;
PARTS  const halves low = __builtin_shufflevector((halves)w0, (halves)w1, EVEN2);
  const halves high = __builtin_shufflevector((halves)w2, (halves)w3, EVEN2);
  return (aotc_DTYPExSIZE)__builtin_shufflevector((bytes)low, (bytes)high, EVEN1);
#endif
}
"""
_PART: Final = """\
  const words aK = (words)(xK > least);
  const VECTOR bK = (VECTOR)(((words)xK & aK) | ((words)least & ~aK));
  const words cK = (words)(bK < last);
  const words wK = (words)((VECTOR)(((words)bK & cK) | ((words)last & ~cK)) + 12582912.0f + zero);
"""


def quantize_name(dtype: str, lanes: int) -> str:
    """Return the name of the instruction that takes vectors of `lanes` floats."""
    return f"quantize_{dtype}_x{lanes}"


def quantized(dtype: str, values: Any, zero: Any) -> Any:
    """Round numbers to int8 or uint8 in numpy: the reference semantics."""
    low = _BYTES[dtype][1]
    whole = np.rint(np.asarray(values, np.float64)) + zero
    return np.clip(np.where(np.isnan(whole), low, whole), low, low + 255).astype(dtype)


def _meaning(dtype: str) -> Any:
    return lambda *values: quantized(dtype, np.stack(values[:-1]), values[-1]).reshape(-1)


def _words(dtype: str, lanes: int) -> dict[str, str]:
    """Return the words to substitute in the text of a function."""
    size = GROUP * lanes
    last, low = _BYTES[dtype]
    feature, floats, whole = _X86[lanes]

    def called(builtin: str, width: str, *values: str, mask: str = "") -> str:
        return f"__builtin_ia32_{builtin}{width}({', '.join(values)}{mask if lanes == 16 else ''})"

    def converted(x: str) -> str:
        return called("cvtps2dq", floats, x, mask=", (words){0}, -1, 4")

    def halved(a: str, b: str) -> str:
        least = [called("minps", floats, "most", x, mask=f", {x}, -1, 4") for x in (a, b)]
        packed = called("packssdw", whole, *map(converted, least), mask=", (halves){0}, 4294967295u")
        return called("paddsw", whole, packed, "z", mask=", (halves){0}, 4294967295u")

    zero = called("packssdw", whole, converted("zero"), converted("zero"), mask=", (halves){0}, 4294967295u")
    result = called(last, whole, "low", "high", mask=", (bytes){0}, 0xffffffffffffffffu")
    if lanes in _ORDER:
        order = f"(words){{{_ORDER[lanes]}}}"
        result = called("permvarsi", whole, f"(words){result}", order, mask=", (words){0}, 65535")
    return {
        "FEATURE": feature,
        "ZERO": zero,
        "FIRST": halved("x0", "x1"),
        "SECOND": halved("x2", "x3"),
        "RESULT": result,
        "PARTS": "".join(_PART.replace("K", str(k)) for k in range(GROUP)),
        "LOW": f"{float(low)}f",
        "EVEN2": ", ".join(str(2 * k) for k in range(size // 2)),
        "EVEN1": ", ".join(str(2 * k) for k in range(size)),
        "DTYPE": dtype,
        "SIZE": str(size),
        "VECTOR": f"aotc_float32x{lanes}",
    }


def rows() -> Iterator[Instruction]:
    """Yield the instructions for int8, uint8 and all vector lengths."""
    for dtype, lanes in product(_BYTES, LANES):
        takes, gives = (f"float32x{lanes}",) * (GROUP + 1), f"{dtype}x{GROUP * lanes}"
        name, meaning = quantize_name(dtype, lanes), _meaning(dtype)
        yield vectors(name, takes, gives, meaning, _FUNCTION, **_words(dtype, lanes))
