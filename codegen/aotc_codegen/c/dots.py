# SPDX-License-Identifier: Apache-2.0
"""Sums of four products of bytes, and what brings bytes side by side for them.

    dot4(16)             # "#if defined(__AVX512VNNI__) ... vpdpbusd ... #elif ... vpmaddwd ... #else ... #endif"
    quarter(0, 64)       # vpermd of each operand, vpunpcklbw of two, vpunpcklwd of both
"""

from __future__ import annotations

from typing import Final

#: Lanes, and what must be defined, the type of the operands of gcc, the names of gcc and clang.
_PRODUCTS: Final = {
    16: ("__AVX512VNNI__", "vpdpbusd_v16si", "vpdpbusd512"),
    8: ("__AVXVNNI__", "vpdpbusd_v8si", "vpdpbusd256"),
    4: ("__AVXVNNI__", "vpdpbusd_v4si", "vpdpbusd128"),
}
#: What must be defined, the name, and what gcc wants behind the operands.
_MADD: Final = {
    16: ("__AVX512BW__", "pmaddwd512", "_mask", ", (words){0}, 65535"),
    8: ("__AVX2__", "pmaddwd256", "", ""),
    4: ("__SSE2__", "pmaddwd128", "", ""),
}
_HALVES: Final = """\
  typedef short halves __attribute__((__vector_size__($size)));
  typedef unsigned short counts __attribute__((__vector_size__($size)));
  typedef int words __attribute__((__vector_size__($size)));
  const halves a0 = (halves)a & 255, a1 = (halves)((counts)a >> 8);
  const halves b0 = (halves)((counts)b << 8) >> 8, b1 = (halves)b >> 8;
"""
#: A product of a uint8 and an int8 fits 16 bits.
_PLAIN: Final = """\
  const words even = (words)(a0 * b0), odd = (words)(a1 * b1);
  return acc + ((words)((unsigned_words)even << 16) >> 16) + (even >> 16)
             + ((words)((unsigned_words)odd << 16) >> 16) + (odd >> 16);
"""


def dot4(lanes: int) -> str:
    """The lines of a function of vectors acc, a, b."""
    halves = _HALVES.replace("$size", str(4 * lanes))
    counts = f"  typedef unsigned unsigned_words __attribute__((__vector_size__({4 * lanes})));\n"
    plain = f"{halves}{counts}{_PLAIN}"
    if lanes not in _PRODUCTS:
        return plain
    feature, gcc, clang = _PRODUCTS[lanes]
    has = f"defined({feature})"
    if lanes < 16:
        has = f"({has} || (defined(__AVX512VNNI__) && defined(__AVX512VL__)))"
    sums, name, masked, mask = _MADD[lanes]

    def added(ending: str, mask: str) -> str:
        calls = (f" + (words)__builtin_ia32_{name}{ending}(a{k}, b{k}{mask})" for k in (0, 1))
        return f"  return acc{''.join(calls)};\n"

    return (
        f"#if {has} && defined(__clang__)\n  return __builtin_ia32_{clang}(acc, ($M)a, ($M)b);\n"
        f"#elif {has}\n  return __builtin_ia32_{gcc}(acc, ($M)a, ($M)b);\n"
        f"#elif defined({sums}) && defined(__clang__)\n{halves}{added('', '')}"
        f"#elif defined({sums})\n{halves}{added(masked, mask)}"
        f"#else\n{plain}#endif\n"
    )


def quarter(k: int, lanes: int) -> str:
    """The lines of a function of vectors a, b, c, d of bytes."""
    count = lanes // 16
    order = ", ".join(str(count * j + block) for block in range(count) for j in range(4))

    def taken(size: int, half: int) -> str:
        """The places of elements of two vectors by turns, from one half of each 16 bytes."""
        each = 16 // size
        first = (each * block + each // 2 * half + i for block in range(count) for i in range(each // 2))
        return ", ".join(f"{p}, {p + lanes // size}" for p in first)

    lines = [
        f"  typedef char bytes __attribute__((__vector_size__({lanes})));",
        f"  typedef short halves __attribute__((__vector_size__({lanes})));",
        f"  typedef int words __attribute__((__vector_size__({lanes})));",
    ]
    turned = {x: f"({x})" if lanes == 16 else f"__builtin_shufflevector((words){x}, (words){x}, {order})" for x in "abcd"}
    for x, y in ("ab", "cd"):
        pair = f"(bytes){turned[x]}, (bytes){turned[y]}"
        lines.append(f"  const halves {x}{y} = (halves)__builtin_shufflevector({pair}, {taken(1, k // 2)});")
    lines.append(f"  return ($vector)__builtin_shufflevector(ab, cd, {taken(2, k % 2)});")
    plain = f"  $vector y = a;\n  for (int i = 0; i < {lanes}; ++i) {{\n    const int at = (i + {k * lanes}) / 4;\n"
    plain += "    y[i] = i % 4 == 0 ? a[at] : i % 4 == 1 ? b[at] : i % 4 == 2 ? c[at] : d[at];\n  }\n  return y;\n"
    head = "#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)\n"
    return head + "\n".join(lines) + f"\n#else\n{plain}#endif\n"
