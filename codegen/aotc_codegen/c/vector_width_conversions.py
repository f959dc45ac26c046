# SPDX-License-Identifier: Apache-2.0
"""Conversions between vectors of 8-bit and 32-bit integers, and interleaving of four byte vectors,
as C.

GCC compiles the generic conversions element by element; these use x86 shuffle and pack
instructions.

    # vpshufb and vpermd if the features have "avx2" and the compiler is gcc, else two conversions
    c_body_narrowing_or_widening_vector("narrow", 8, features)

    c_body_of_interleaved_vector_quarter(0, 64)  # vpermd of each operand, vpunpcklbw of two, vpunpcklwd of both

"narrow" converts each int32 to its low byte, as int8; "widen" converts int8 or uint8 to int32. The
placeholders $B and $M32 are the vectors of bytes and of int32. An int8 byte is moved to the top of
its int32 ($one, $other) and shifted down ($down), which extends the sign.
"""

from collections.abc import Collection
from typing import Final

from aotc.ir import DType
from aotc.tir import CVariant, c_text_for_features

_ELEMENT_TYPE_BY_VECTOR_TYPE: Final = {"bytes": "char", "words": "int", "longs": "long long", "halves": "short"}
_NARROW_4_LANES_BY_PSHUFB_CODE: Final = """\
VECTORS16  const bytes low = {0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  return ($B)((words)__builtin_ia32_pshufb128((bytes)v, low))[0];
"""
_NARROW_4_LANES_BY_PACKING_CODE: Final = """\
VECTORS16  const halves h = __builtin_ia32_packssdw128((words)v & 255, (words)v & 255);
  return ($B)((words)__builtin_ia32_packuswb128(h, h))[0];
"""
_NARROW_8_LANES_CODE: Final = """\
VECTORS32  const bytes low = {0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                     0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  const words four = (words)__builtin_ia32_pshufb256((bytes)v, low);
  return ($B)((longs)__builtin_ia32_permvarsi256(four, (words){0, 4, 1, 5, 2, 6, 3, 7}))[0];
"""
_NARROW_16_LANES_CODE: Final = """\
VECTORS16  return ($B)__builtin_ia32_pmovdb512_mask(v, (bytes){0}, 65535);
"""
_WIDEN_4_LANES_BY_PMOV_CODE: Final = """\
VECTORS16  return ($M32)__builtin_ia32_pmov${kind}bd128((bytes)(words){(int)v, 0, 0, 0});
"""
_WIDEN_4_LANES_BY_SHUFFLES_CODE: Final = """\
VECTORS16  const bytes from = (bytes)(words){(int)v, 0, 0, 0}, none = {0};
  const bytes two = __builtin_shufflevector($one, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return ($M32)__builtin_shufflevector($other, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23)$down;
"""
_WIDEN_8_LANES_CODE: Final = """\
VECTORS16  return ($M32)__builtin_ia32_pmov${kind}bd256((bytes)(longs){(long long)v, 0});
"""
_WIDEN_16_LANES_CODE: Final = """\
VECTORS16  return ($M32)__builtin_ia32_pmov${kind}bd512_mask((bytes)v, ($M32){0}, 65535);
"""
#: Widening for RISC-V's vectors. The compiler must not know that the result was widened: clang 19 would multiply the
#: vectors of 16 bits instead, and add the products by a second instruction.
_RISCV_WIDEN_CODE: Final = """\
  int32_t zero = 0;
  __asm__("" : "+r"(zero));
  return __builtin_convertvector(__builtin_convertvector(v, $H), $M32) + zero;
"""


def _vector_typedef(name: str, vector_bytes: int | str) -> str:
    kind = _ELEMENT_TYPE_BY_VECTOR_TYPE[name]
    attribute = f"__attribute__((__vector_size__({vector_bytes}), __unused__))"
    return f"  typedef {kind} {name} {attribute};\n"


def _gcc_variant(c_code: str, *requires: str, compiler: str = "defined(__GNUC__) && !defined(__clang__)") -> CVariant:
    """Return a variant for gcc, with the typedefs of vectors that the code uses."""
    for size in ("16", "32"):
        used = (n for n in _ELEMENT_TYPE_BY_VECTOR_TYPE if f"{n})" in c_code or f"{n} " in c_code)
        lines = [_vector_typedef(name, size) for name in used]
        c_code = c_code.replace(f"VECTORS{size}", "".join(lines))
    return CVariant(c_code, requires, compiler)


#: Instruction sequences by conversion and number of lanes, the preferred one first.
_VARIANTS_BY_CONVERSION_AND_LANES: Final = {
    "narrow": {
        4: (
            _gcc_variant(_NARROW_4_LANES_BY_PSHUFB_CODE, "ssse3"),
            _gcc_variant(_NARROW_4_LANES_BY_PACKING_CODE, "x86_64"),
        ),
        8: (_gcc_variant(_NARROW_8_LANES_CODE, "avx2"),),
        16: (_gcc_variant(_NARROW_16_LANES_CODE, "avx512f"),),
    },
    "widen": {
        4: (
            _gcc_variant(_WIDEN_4_LANES_BY_PMOV_CODE, "sse4_1"),
            _gcc_variant(
                _WIDEN_4_LANES_BY_SHUFFLES_CODE, compiler="defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12"
            ),
        ),
        8: (_gcc_variant(_WIDEN_8_LANES_CODE, "avx2"),),
        16: (_gcc_variant(_WIDEN_16_LANES_CODE, "avx512f"),),
    },
}


def sign_dependent_conversion_placeholders(dtype: DType) -> dict[str, str]:
    """Return the placeholder values for conversions from a signed or unsigned `dtype`."""
    if dtype.is_signed:
        return {"kind": "sx", "one": "none, from", "other": "none, two", "down": " >> 24"}
    return {"kind": "zx", "one": "from, none", "other": "two, none", "down": ""}


def c_body_narrowing_or_widening_vector(narrow_or_widen: str, lanes: int, features: Collection[str]) -> str:
    """Return the body of a C function that narrows or widens a vector v.

    narrow_or_widen   "narrow" or "widen"
    features          features and architecture of the processor (`Target.processor_features`)
    """
    result_type = "B" if narrow_or_widen == "narrow" else "M32"
    steps = f"  return __builtin_convertvector(__builtin_convertvector(v, $H), ${result_type});\n"
    variants = _VARIANTS_BY_CONVERSION_AND_LANES[narrow_or_widen].get(lanes, ())
    if narrow_or_widen == "widen":
        variants = (CVariant(_RISCV_WIDEN_CODE, ("v",)), *variants)
    return c_text_for_features((*variants, CVariant(steps)), features)


def c_body_of_interleaved_vector_quarter(quarter_index: int, lanes: int) -> str:
    """Return the body of a C function that yields quarter `quarter_index` of the interleaving a[0],
    b[0], c[0], d[0], a[1], ...

    The operands a, b, c, d are vectors of `lanes` bytes.
    """
    count = lanes // 16
    order = ", ".join(str(count * j + block) for block in range(count) for j in range(4))

    def interleaving_shuffle_indices(element_bytes: int, half: int) -> str:
        """Return shuffle indices that interleave one half of each 16-byte block of two vectors."""
        each = 16 // element_bytes
        first = (each * block + each // 2 * half + i for block in range(count) for i in range(each // 2))
        return ", ".join(f"{p}, {p + lanes // element_bytes}" for p in first)

    kinds = ["bytes", "halves", *(["words"] if lanes > 16 else [])]
    lines = [_vector_typedef(name, lanes)[:-1] for name in kinds]
    operands = {x: x for x in "abcd"}
    if lanes > 16:
        operands = {x: f"__builtin_shufflevector((words){x}, (words){x}, {order})" for x in operands}
    for x, y in ("ab", "cd"):
        pair = f"(bytes){operands[x]}, (bytes){operands[y]}"
        lines.append(
            f"  const halves {x}{y} = (halves)__builtin_shufflevector({pair}, "
            f"{interleaving_shuffle_indices(1, quarter_index // 2)});"
        )
    lines.append(
        f"  return ($vector)__builtin_shufflevector(ab, cd, {interleaving_shuffle_indices(2, quarter_index % 2)});"
    )
    plain = (
        f"  $vector y = a;\n  for (int i = 0; i < {lanes}; ++i) "
        f"{{\n    const int at = (i + {quarter_index * lanes}) / 4;\n"
    )
    plain += "    y[i] = i % 4 == 0 ? a[at] : i % 4 == 1 ? b[at] : i % 4 == 2 ? c[at] : d[at];\n  }\n  return y;\n"
    head = "#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)\n"
    return head + "\n".join(lines) + f"\n#else\n{plain}#endif\n"
