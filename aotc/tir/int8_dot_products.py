# SPDX-License-Identifier: Apache-2.0
"""Dot-product instructions that add four int8 products to int32 (x86, Arm, WebAssembly, GPUs):
semantics and C text.

    word_uint8(x[i:4])                       # four neighboring bytes as the bits of an int32
    dot4_uint8_int8_x16(acc, word, w[j:64])  # acc[k] + the sum of the products of word[k] and w[4 * k : 4 * k + 4]

The second operand holds four bytes in each int32 lane, the third operand has four bytes for each
lane. Sums wrap around at 32 bits; neither products nor partial sums saturate. If an instruction
expects an operand of the opposite signedness (VNNI multiplies uint8 by int8), the operand's sign
bits are flipped, which changes each byte by 128, and 128 times the sum of the operand that it is
multiplied with is added or subtracted to correct the result.

    dot4_int8_uint7_x8(acc, word, w[j:32])   # the same for bytes below 128, of which two products fit in int16
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.tir.instruction_definition import (
    Instruction,
    InstructionText,
    define_c_vector_instruction,
    define_gpu_instruction,
    fill_template,
)
from aotc.tir.processor_features import CVariant

#: Products in a sum.
BYTES_PER_DOT: Final = 4
#: Numbers of int32 in a vector.
INT32_VECTOR_LENGTHS: Final = (4, 8, 16)
INT8_DTYPES: Final = ("uint8", "int8")
#: What `dot_instruction_name` takes for weights of uint8 that are below 128.
SMALL_WEIGHTS: Final = "uint7"


#: A sum in C, from the texts of what it is added to and of both operands.
DotText: TypeAlias = Callable[[str, str, str], str]


def is_accumulating_dot_instruction(name: str) -> bool:
    """Return True if an instruction is a dot product, of int8 or of bfloat16, that accumulates to its
    first operand.
    """
    return name.startswith(("dot4_", "dp4a_", "mmla_", "dot2_"))


def load_words_instruction_name(dtype: str, lanes: int) -> str:
    """Return the name of the instruction that loads `lanes` groups of four bytes as int32."""
    return f"words_{dtype}_x{lanes}"


def dot_instruction_name(data_dtype: str, weight_dtype: str, lanes: int) -> str:
    """Return the name of the dot-product instruction for these operand types."""
    return f"dot4_{data_dtype}_{weight_dtype}_x{lanes}"


def repeat_byte_in_int32(byte: int) -> int:
    """Return the int32 that consists of four copies of a byte."""
    return int(_bytes_to_int32_numpy_reference(np.full(BYTES_PER_DOT, byte & 255, np.uint8)))


def _dp4a_numpy_reference(data_dtype: str, weight_dtype: str, acc: Any, a: Any, b: Any) -> Any:
    pairs = ((a, data_dtype), (b, weight_dtype))
    left, right = (np.asarray(x, np.int32)[..., None].view(kind).astype(np.int32) for x, kind in pairs)
    return (np.asarray(acc, np.int64) + (left * right).sum(axis=-1)).astype(np.int32)[()]


def _bytes_to_int32_numpy_reference(values: Any) -> Any:
    return np.ascontiguousarray(values).view(np.int32)[0]


def _bytes_to_int32_vector_numpy_reference(values: Any) -> Any:
    return np.ascontiguousarray(values).view(np.int32)


def dot_numpy_reference(data_dtype: str, acc: Any, words: Any, values: Any) -> Any:
    """Compute a dot product in numpy: the reference semantics."""
    left = np.ascontiguousarray(words).view(data_dtype).reshape(-1, BYTES_PER_DOT).astype(np.int32)
    return acc + (left * values.reshape(-1, BYTES_PER_DOT)).sum(axis=1, dtype=np.int32)


_BYTES_TO_INT32_C: Final = """\
/* Four bytes as the bits of a number. */
__attribute__((__unused__)) $inline int32_t aotc_NAME(aotc_BYTEx4 bytes) {
  int32_t word;
  __builtin_memcpy(&word, &bytes, sizeof word);
  return word;
}
"""
_DOT_C: Final = """\
/* Sums of four products of DATA by WEIGHTS, added to numbers. */
__attribute__((__unused__)) $inline VECTOR
aotc_NAME(VECTOR acc, VECTOR y, aotc_WEIGHTSxSIZE x) {
  typedef uint32_t bits __attribute__((__vector_size__(SIZE), __unused__));
  typedef int16_t pairs __attribute__((__vector_size__(SIZE), __unused__));
  typedef uint16_t upairs __attribute__((__vector_size__(SIZE), __unused__));
EXTRA  const VECTOR w = (VECTOR)x, none = {0}, turn = none - 2139062144, half = none + 1077952576;
  (void)turn, (void)half;
VARIANT}
"""
#: The vector type of gcc's and clang's builtins for bytes.
_CHAR_VECTOR_C: Final = "  typedef char bytes __attribute__((__vector_size__(SIZE), __unused__));\n"


#: A device's: four bytes are the bits of a number.
_BYTES_TO_INT32_CUDA: Final = """\
/* Four bytes as the bits of a number. */
$inline int32_t aotc_word_DATA(const DATA_t *from) {
  int32_t word;
  aotc_move<4>((DATA_t *)&word, from);
  return word;
}
"""
_DP4A_CUDA: Final = """\
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


def _dot_text_from_uint8_int8_dot(data_dtype: str, weight_dtype: str, dot_text: DotText) -> str:
    """Return the C text of a dot product by an instruction for uint8 times int8."""
    if data_dtype != weight_dtype:
        return dot_text("acc", "y", "w") if data_dtype == "uint8" else dot_text("acc", "w", "y")
    if data_dtype == "uint8":
        return dot_text(dot_text(dot_text("acc", "y", "w ^ turn"), "y", "half"), "y", "half")
    return _vector_difference_text(dot_text("acc", "y ^ turn", "w"), dot_text("none", "turn", "w"))


def _vector_difference_text(a: str, b: str) -> str:
    return f"(VECTOR)((bits){a} - (bits){b})"


def _dot_text_from_same_sign_dots(
    data_dtype: str, weight_dtype: str, signed_dot_text: DotText, unsigned_dot_text: DotText
) -> str:
    """Return the C text of a dot product by instructions for operands of equal signedness."""
    if data_dtype == weight_dtype:
        return (signed_dot_text if data_dtype == "int8" else unsigned_dot_text)("acc", "y", "w")
    if data_dtype == "uint8":
        return _vector_difference_text(signed_dot_text("acc", "y ^ turn", "w"), signed_dot_text("none", "turn", "w"))
    return _vector_difference_text(signed_dot_text("acc", "y", "w ^ turn"), signed_dot_text("none", "y", "turn"))


def _x86_builtin_dot_text(name: str) -> DotText:
    return lambda acc, a, b: f"(VECTOR)__builtin_ia32_{name}({acc}, {a}, {b})"


def _aarch64_assembly_dot_text(mnemonic: str) -> DotText:
    """Return the text of an aarch64 instruction as inline assembly, since compilers name the
    intrinsic differently.
    """
    text = f'__asm__("{mnemonic} %0.4s, %1.16b, %2.16b" : "+w"(sum)'

    def inline_assembly_text(acc: str, a: str, b: str) -> str:
        assembly = f'{text} : "w"({a}), "w"({b}))'
        return f"__extension__({{ VECTOR sum = {acc}; {assembly}; sum; }})"

    return inline_assembly_text


def _dot_variant(dot_text: str, *requires: str, builtin: str = "") -> CVariant:
    """Return a variant that returns a dot product; `builtin` is the compiler's function that it
    calls.
    """
    return CVariant(f"  return {dot_text};\n", requires, f"AOTC_HAS({builtin})" if builtin else "")


def _vnni_dot_variants(data_dtype: str, weight_dtype: str, vector_bytes: int) -> Iterator[CVariant]:
    """Yield the variants for AVX-VNNI and AVX512-VNNI, whose builtin has two names in compilers."""
    pmaddwd_feature = _PMADDWD_FEATURE_AND_CALLS[vector_bytes][0]
    processors = [("avx512_vnni", "avx512vl", pmaddwd_feature), ("avx_vnni", pmaddwd_feature)]
    if vector_bytes == 64:
        processors = [("avx512_vnni", pmaddwd_feature)]
    for name in (f"vpdpbusd_v{vector_bytes // 4}si", f"vpdpbusd{vector_bytes * 8}"):
        dot_text = _dot_text_from_uint8_int8_dot(data_dtype, weight_dtype, _x86_builtin_dot_text(name))
        yield from (_dot_variant(dot_text, *p, builtin=f"__builtin_ia32_{name}") for p in processors)


def _aarch64_dot_variants(data_dtype: str, weight_dtype: str) -> Iterator[CVariant]:
    """Yield the variants for aarch64."""
    if data_dtype != weight_dtype:
        usdot = _aarch64_assembly_dot_text("usdot")
        yield _dot_variant(_dot_text_from_uint8_int8_dot(data_dtype, weight_dtype, usdot), "i8mm")
    dot_text = _dot_text_from_same_sign_dots(
        data_dtype, weight_dtype, _aarch64_assembly_dot_text("sdot"), _aarch64_assembly_dot_text("udot")
    )
    yield _dot_variant(dot_text, "dotprod")


#: By the bytes of a vector: the feature that has sums of two products, and the compilers' builtins.
_PMADDWD_FEATURE_AND_CALLS: Final = {
    16: ("x86_64", "128(%s, %s)"),
    32: ("avx2", "256(%s, %s)"),
    64: ("avx512bw", "512_mask(%s, %s, none, 65535)", "512(%s, %s)"),
}


#: Likewise for sums of two products of uint8 and int8, which saturate.
_PMADDUBSW_FEATURE_AND_CALLS: Final = {
    16: ("ssse3", "128(%s, %s)"),
    32: ("avx2", "256(%s, %s)"),
    64: ("avx512bw", "512_mask(%s, %s, (pairs)none, 4294967295u)", "512(%s, %s)"),
}


def _even_and_odd_bytes_as_int16_text(vector_name: str, dtype: str) -> tuple[str, str]:
    """Return the C texts that widen the bytes at even and at odd positions to int16."""
    if dtype == "uint8":
        return f"(pairs)((upairs){vector_name} & 255)", f"(pairs)((upairs){vector_name} >> 8)"
    return f"(pairs)((upairs){vector_name} << 8) >> 8", f"(pairs){vector_name} >> 8"


def _int16_pair_sum_dot_variants(data_dtype: str, weight_dtype: str, vector_bytes: int) -> Iterator[CVariant]:
    """Yield the variants that use exact sums of two int16 products: pmaddwd of x86, and i32x4.dot_i16x8_s of
    WebAssembly, whose vectors have 16 bytes.
    """
    feature, *calls = _PMADDWD_FEATURE_AND_CALLS[vector_bytes]
    for call in calls:
        yield _int16_pair_sum_dot_variant(data_dtype, weight_dtype, f"__builtin_ia32_pmaddwd{call}", feature)
    if vector_bytes == 16:
        call = "__builtin_wasm_dot_s_i32x4_i16x8(%s, %s)"
        yield _int16_pair_sum_dot_variant(data_dtype, weight_dtype, call, "simd128")


def _int16_pair_sum_dot_variant(data_dtype: str, weight_dtype: str, call: str, feature: str) -> CVariant:
    """Return the variant that widens bytes to int16, and adds two products of these by a builtin function, whose
    operands `call` has as %s.
    """
    operands = zip(
        _even_and_odd_bytes_as_int16_text("y", data_dtype),
        _even_and_odd_bytes_as_int16_text("w", weight_dtype),
        strict=True,
    )
    sums = " + ".join(f"(bits){call % pair}" for pair in operands)
    return _dot_variant(f"(VECTOR)((bits)acc + ({sums}))", feature, builtin=call.partition("(")[0])


def _wasm_dot_variant_for_small_weights() -> CVariant:
    """Return the variant that uses the dot product of WebAssembly's relaxed SIMD. Its result is exact on all hosts if
    the bytes of the second operand, here the weights, are below 128; otherwise it depends on the host.
    """
    builtin = "__builtin_wasm_relaxed_dot_i8x16_i7x16_add_s_i32x4"
    text = f"""\
  typedef signed char signed_bytes __attribute__((__vector_size__(SIZE)));
  return (VECTOR){builtin}((signed_bytes)y, (signed_bytes)w, acc);
"""
    return CVariant(text, ("relaxed_simd",), f"AOTC_HAS({builtin})")


def _pmaddubsw_dot_variants(vector_bytes: int) -> Iterator[CVariant]:
    """Yield the variants for weights below 128, of which two products fit in int16 (pmaddubsw)."""
    feature, *calls = _PMADDUBSW_FEATURE_AND_CALLS[vector_bytes]
    for call, pair_call in zip(calls, _PMADDWD_FEATURE_AND_CALLS[vector_bytes][1:], strict=True):
        products = f"__builtin_ia32_pmaddubsw{call % ('(bytes)w', '(bytes)y')}"
        operands = (products, "(pairs)none + 1")
        sums = f"(bits)__builtin_ia32_pmaddwd{pair_call % operands}"
        builtin = f"__builtin_ia32_pmaddubsw{call.partition('(')[0]}"
        yield _dot_variant(f"(VECTOR)((bits)acc + {sums})", feature, builtin=builtin)


def _extract_byte_text(vector_name: str, dtype: str, position: int) -> str:
    """Return the C text that extracts the byte at a position of each int32."""
    if dtype == "uint8":
        return f"(VECTOR)((bits){vector_name} >> {8 * position} & 255)"
    return f"((VECTOR)((bits){vector_name} << {24 - 8 * position}) >> 24)"


def _portable_dot_text(data_dtype: str, weight_dtype: str) -> str:
    parts = (
        f"(bits)({_extract_byte_text('y', data_dtype, k)} * {_extract_byte_text('w', weight_dtype, k)})"
        for k in range(BYTES_PER_DOT)
    )
    return f"(VECTOR)((bits)acc + {' + '.join(parts)})"


def _define_dot_instruction_for_small_weights(lanes: int) -> Instruction:
    """Define the dot product of int8 and of weights below 128, which are uint8 and int8 alike."""
    size = lanes * BYTES_PER_DOT
    variants = [*_vnni_dot_variants("int8", "uint8", size)]
    if size == 16:
        variants.append(_dot_variant(_aarch64_assembly_dot_text("sdot")("acc", "y", "w"), "dotprod"))
        variants.append(_wasm_dot_variant_for_small_weights())
    variants += _pmaddubsw_dot_variants(size)
    variants += _int16_pair_sum_dot_variants("int8", "uint8", size)
    return _dot_instruction_of_variants(SMALL_WEIGHTS, "int8", "uint8", lanes, variants)


def _define_dot_instruction(data_dtype: str, weight_dtype: str, lanes: int) -> Instruction:
    size = lanes * BYTES_PER_DOT
    variants = [*_vnni_dot_variants(data_dtype, weight_dtype, size)]
    variants += _aarch64_dot_variants(data_dtype, weight_dtype) if size == 16 else ()
    variants += _int16_pair_sum_dot_variants(data_dtype, weight_dtype, size)
    return _dot_instruction_of_variants(weight_dtype, data_dtype, weight_dtype, lanes, variants)


def _dot_instruction_of_variants(
    weight_kind: str, data_dtype: str, weight_dtype: str, lanes: int, variants: list[CVariant]
) -> Instruction:
    """Return the instruction with these variants, and with the portable one."""
    size, number = lanes * BYTES_PER_DOT, f"int32x{lanes}"
    variants.append(_dot_variant(_portable_dot_text(data_dtype, weight_dtype)))
    words = {"EXTRA": _CHAR_VECTOR_C if weight_kind == SMALL_WEIGHTS else ""}
    words |= {"DATA": data_dtype, "WEIGHTS": weight_dtype, "SIZE": str(size), "VECTOR": f"aotc_{number}"}
    arg_types = (number, number, f"{weight_dtype}x{size}")
    return define_c_vector_instruction(
        dot_instruction_name(data_dtype, weight_kind, lanes),
        arg_types,
        "",
        partial(dot_numpy_reference, data_dtype),
        _DOT_C,
        variants,
        **words,
    )


def instruction_definitions() -> Iterator[Instruction]:
    """Yield the instructions for all operand types and vector lengths."""
    for data in INT8_DTYPES:
        row = define_c_vector_instruction(
            f"word_{data}",
            (f"{data}x{BYTES_PER_DOT}",),
            "int32x1",
            _bytes_to_int32_numpy_reference,
            _BYTES_TO_INT32_C,
            BYTE=data,
        )
        text = fill_template(_BYTES_TO_INT32_CUDA, DATA=data)
        device = replace(row.texts[0], dialects=("cuda",), function=text)
        yield replace(row, texts=(*row.texts, device))
    for data, lanes in product(INT8_DTYPES, INT32_VECTOR_LENGTHS):
        number = f"int32x{lanes}"
        cast_text = InstructionText(call=f"((aotc_{number}){{0:14}})", dialects=("gnu-c",))
        facts: dict[str, Any] = {
            "gives": number,
            "meaning": _bytes_to_int32_vector_numpy_reference,
            "texts": (cast_text,),
        }
        yield Instruction(
            name=load_words_instruction_name(data, lanes), takes=(f"{data}x{BYTES_PER_DOT * lanes}",), **facts
        )
    yield from (
        _define_dot_instruction(data, weights, lanes)
        for data, weights, lanes in product(INT8_DTYPES, INT8_DTYPES, INT32_VECTOR_LENGTHS)
    )
    yield from map(_define_dot_instruction_for_small_weights, INT32_VECTOR_LENGTHS)
    for data, weights in product(INT8_DTYPES, INT8_DTYPES):
        name, short = f"dp4a_{data}_{weights}", {d: d[0].replace("i", "s") + "32" for d in INT8_DTYPES}
        words: dict[str, Any] = {"DATA": data, "WEIGHTS": weights}
        words |= {"SHORT_A": short[data], "SHORT_B": short[weights]}
        meaning = partial(_dp4a_numpy_reference, data, weights)
        yield define_gpu_instruction(name, ("int32",) * 3, "int32", meaning, _DP4A_CUDA, least=61, **words)
