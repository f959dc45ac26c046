# SPDX-License-Identifier: Apache-2.0
"""Dot-product instructions that add four int8 products to int32 (x86, Arm, GPUs): semantics and C text.

    word_uint8(x[i:4])                       # four neighboring bytes as the bits of an int32
    dot4_uint8_int8_x16(acc, word, w[j:64])  # acc[k] + the sum of the products of word[k] and w[4 * k : 4 * k + 4]

The second operand has four bytes in each number of int32, the third one four times as many bytes as there are numbers.
Sums wrap around as those of int32 do; no product and no part of a sum is saturated.  Where a processor multiplies
operands of one signedness only, the sign bits of the other operand are flipped, which adds 128 to each byte.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.tir.instruction_definition import Instruction, Text, filled, on_device, vectors

#: Products in a sum.
GROUP: Final = 4
#: Numbers of int32 in a vector.
LANES: Final = (4, 8, 16)
BYTES: Final = ("uint8", "int8")


#: A sum in C, from the texts of what it is added to and of both operands.
Dot: TypeAlias = Callable[[str, str, str], str]


def is_sum(name: str) -> bool:
    """Return True if an instruction is an int8 dot product that accumulates to its first operand."""
    return name.startswith(("dot4_", "dp4a_", "mmla_"))


def words_name(data: str, lanes: int) -> str:
    """Return the name of the instruction that loads `lanes` groups of four bytes as int32."""
    return f"words_{data}_x{lanes}"


def dot_name(data: str, weights: str, lanes: int) -> str:
    """Return the name of the dot-product instruction for these operand types."""
    return f"dot4_{data}_{weights}_x{lanes}"


def word_of(value: int) -> int:
    """Return the int32 that consists of four copies of a byte."""
    return int(_word(np.full(GROUP, value & 255, np.uint8)))


def _dot_of_words(data: str, weights: str, acc: Any, a: Any, b: Any) -> Any:
    pairs = ((a, data), (b, weights))
    left, right = (np.asarray(x, np.int32)[..., None].view(kind).astype(np.int32) for x, kind in pairs)
    return (np.asarray(acc, np.int64) + (left * right).sum(axis=-1)).astype(np.int32)[()]


def _word(values: Any) -> Any:
    return np.ascontiguousarray(values).view(np.int32)[0]


def _words(values: Any) -> Any:
    return np.ascontiguousarray(values).view(np.int32)


def plain_dot(data: str, acc: Any, words: Any, values: Any) -> Any:
    """Compute a dot product in numpy: the reference semantics."""
    left = np.ascontiguousarray(words).view(data).reshape(-1, GROUP).astype(np.int32)
    return acc + (left * values.reshape(-1, GROUP)).sum(axis=1, dtype=np.int32)


_WORD: Final = """\
/* Four bytes as the bits of a number. */
__attribute__((__unused__)) $inline int32_t aotc_NAME(aotc_BYTEx4 bytes) {
  int32_t word;
  __builtin_memcpy(&word, &bytes, sizeof word);
  return word;
}
"""
_DOT: Final = """\
/* Sums of four products of DATA by WEIGHTS, added to numbers. */
__attribute__((__unused__)) $inline VECTOR
aotc_NAME(VECTOR acc, VECTOR y, aotc_WEIGHTSxSIZE x) {
  typedef uint32_t bits __attribute__((__vector_size__(SIZE), __unused__));
  typedef int16_t pairs __attribute__((__vector_size__(SIZE), __unused__));
  typedef uint16_t upairs __attribute__((__vector_size__(SIZE), __unused__));
  const VECTOR w = (VECTOR)x, none = {0}, turn = none - 2139062144, half = none + 1077952576;
  (void)turn, (void)half;
BRANCHES}
"""


#: A device's: four bytes are the bits of a number.
_DEVICE_WORD: Final = """\
/* Four bytes as the bits of a number. */
$inline int32_t aotc_word_DATA(const DATA_t *from) {
  int32_t word;
  aotc_move<4>((DATA_t *)&word, from);
  return word;
}
"""
_DEVICE_DOT: Final = """\
/* A number and the sum of four products of bytes. */
$inline int32_t aotc_dp4a_DATA_WEIGHTS(int32_t sum, int32_t a, int32_t b) {
#if defined(AOTC_EMULATED)
  for (int k = 0; k < 32; k += 8)
    sum = (int32_t)((uint32_t)sum + (uint32_t)((int)(DATA_t)(a >> k) * (int)(WEIGHTS_t)(b >> k)));
#else
  asm("dp4a.SHORT_A.SHORT_B %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
#endif
  return sum;
}
"""


def _from_mixed(data: str, weights: str, dot: Dot) -> str:
    """Return the C text of a dot product by an instruction for uint8 times int8."""
    if data != weights:
        return dot("acc", "y", "w") if data == "uint8" else dot("acc", "w", "y")
    if data == "uint8":
        return dot(dot(dot("acc", "y", "w ^ turn"), "y", "half"), "y", "half")
    return _less(dot("acc", "y ^ turn", "w"), dot("none", "turn", "w"))


def _less(a: str, b: str) -> str:
    return f"(VECTOR)((bits){a} - (bits){b})"


def _from_signed(data: str, weights: str, dot: Dot, unsigned: Dot) -> str:
    """Return the C text of a dot product by instructions for operands of equal signedness."""
    if data == weights:
        return (dot if data == "int8" else unsigned)("acc", "y", "w")
    if data == "uint8":
        return _less(dot("acc", "y ^ turn", "w"), dot("none", "turn", "w"))
    return _less(dot("acc", "y", "w ^ turn"), dot("none", "y", "turn"))


def _builtin(name: str) -> Dot:
    return lambda acc, a, b: f"(VECTOR)__builtin_ia32_{name}({acc}, {a}, {b})"


def _assembled(name: str) -> Dot:
    """Return the text of an aarch64 instruction as inline assembly, since compilers name the intrinsic differently."""
    text = f'__asm__("{name} %0.4s, %1.16b, %2.16b" : "+w"(sum)'

    def dot(acc: str, a: str, b: str) -> str:
        made = f'{text} : "w"({a}), "w"({b}))'
        return f"__extension__({{ VECTOR sum = {acc}; {made}; sum; }})"

    return dot


def _with_vnni(data: str, weights: str, size: int) -> Iterator[tuple[str, str]]:
    """Yield preprocessor conditions and C texts for VNNI, whose intrinsic has two names in compilers."""
    features = "defined(__AVX512VNNI__)"
    if size < 64:
        features = f"(({features} && defined(__AVX512VL__)) || defined(__AVXVNNI__))"
    for name in (f"vpdpbusd_v{size // 4}si", f"vpdpbusd{size * 8}"):
        found = f"{features} && AOTC_HAS(__builtin_ia32_{name})"
        yield found, _from_mixed(data, weights, _builtin(name))


def _with_arm(data: str, weights: str) -> Iterator[tuple[str, str]]:
    """Yield preprocessor conditions and C texts for aarch64."""
    if data != weights:
        yield "defined(__ARM_FEATURE_MATMUL_INT8)", _from_mixed(data, weights, _assembled("usdot"))
    made = _from_signed(data, weights, _assembled("sdot"), _assembled("udot"))
    yield "defined(__ARM_FEATURE_DOTPROD)", made


#: Sums of two products by the bytes of a vector: where there are some, and what compilers call them.
_PAIRS: Final = {
    16: ("SSE2", "128(%s, %s)"),
    32: ("AVX2", "256(%s, %s)"),
    64: ("AVX512BW", "512_mask(%s, %s, none, 65535)", "512(%s, %s)"),
}


def _halves(name: str, dtype: str) -> tuple[str, str]:
    """Return the C texts that widen the bytes at even and at odd positions to int16."""
    if dtype == "uint8":
        return f"(pairs)((upairs){name} & 255)", f"(pairs)((upairs){name} >> 8)"
    return f"(pairs)((upairs){name} << 8) >> 8", f"(pairs){name} >> 8"


def _with_pairs(data: str, weights: str, size: int) -> Iterator[tuple[str, str]]:
    """Yield conditions and C texts by exact int16 pair products (pmaddwd)."""
    feature, *calls = _PAIRS[size]
    for call in calls:
        parts = zip(_halves("y", data), _halves("w", weights), strict=True)
        sums = " + ".join(f"(bits)__builtin_ia32_pmaddwd{call % pair}" for pair in parts)
        name = f"__builtin_ia32_pmaddwd{call.partition('(')[0]}"
        yield f"defined(__{feature}__) && AOTC_HAS({name})", f"(VECTOR)((bits)acc + ({sums}))"


def _byte(name: str, dtype: str, place: int) -> str:
    """Return the C text that extracts the byte at a position of each int32."""
    if dtype == "uint8":
        return f"(VECTOR)((bits){name} >> {8 * place} & 255)"
    return f"((VECTOR)((bits){name} << {24 - 8 * place}) >> 24)"


def _plain(data: str, weights: str) -> str:
    parts = (f"(bits)({_byte('y', data, k)} * {_byte('w', weights, k)})" for k in range(GROUP))
    return f"(VECTOR)((bits)acc + {' + '.join(parts)})"


def _dot(data: str, weights: str, lanes: int) -> Instruction:
    size, number = lanes * GROUP, f"int32x{lanes}"
    found = [*_with_vnni(data, weights, size)]
    found += _with_arm(data, weights) if size == 16 else ()
    found += _with_pairs(data, weights, size)
    lines = (f"if {features}\n  return {made};\n" for features, made in found)
    branches = "#" + "#el".join(lines)
    branches += f"#else\n  return {_plain(data, weights)};\n#endif\n"
    words = {"BRANCHES": branches, "DATA": data, "WEIGHTS": weights}
    words |= {"SIZE": str(size), "VECTOR": f"aotc_{number}"}
    takes = (number, number, f"{weights}x{size}")
    return vectors(dot_name(data, weights, lanes), takes, "", partial(plain_dot, data), _DOT, **words)


def rows() -> Iterator[Instruction]:
    """Yield the instructions for all operand types and vector lengths."""
    for data in BYTES:
        row = vectors(f"word_{data}", (f"{data}x{GROUP}",), "int32x1", _word, _WORD, BYTE=data)
        text = filled(_DEVICE_WORD, DATA=data)
        device = replace(row.texts[0], dialects=("cuda",), function=text)
        yield replace(row, texts=(*row.texts, device))
    for data, lanes in product(BYTES, LANES):
        number = f"int32x{lanes}"
        made = Text(call=f"((aotc_{number}){{0:14}})", dialects=("gnu-c",))
        facts: dict[str, Any] = {"gives": number, "meaning": _words, "texts": (made,)}
        yield Instruction(name=words_name(data, lanes), takes=(f"{data}x{GROUP * lanes}",), **facts)
    yield from (_dot(data, weights, lanes) for data, weights, lanes in product(BYTES, BYTES, LANES))
    for data, weights in product(BYTES, BYTES):
        name, short = f"dp4a_{data}_{weights}", {d: d[0].replace("i", "s") + "32" for d in BYTES}
        words: dict[str, Any] = {"DATA": data, "WEIGHTS": weights}
        words |= {"SHORT_A": short[data], "SHORT_B": short[weights]}
        meaning = partial(_dot_of_words, data, weights)
        yield on_device(name, ("int32",) * 3, "int32", meaning, _DEVICE_DOT, least=61, **words)
