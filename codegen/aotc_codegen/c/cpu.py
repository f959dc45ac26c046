# SPDX-License-Identifier: Apache-2.0
"""Which features a processor lacks, as C that runs on every processor of the architecture.

In: names of features.  Out: C text that defines `cpu_features`, their names, and `cpu_missing()`, a mask of those that
the processor lacks: bit k stands for the k-th name.  And `isa_rows`, which states what instruction sets need of them.

    text = cpu_check(("avx2", "fma"))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aotc.tir.target import Target
from aotc_codegen.c.templates import render

_EAX, _EBX, _ECX, _EDX = range(4)
_YMM, _ZMM = 0x6, 0xE6
"""Parts of the state that the system must save: bits of XCR0."""
_EXTENDED: Final = 0x80000001

CPUID: Final = {
    "sse3": (1, _ECX, 0, 0),
    "ssse3": (1, _ECX, 9, 0),
    "sse4_1": (1, _ECX, 19, 0),
    "sse4_2": (1, _ECX, 20, 0),
    "movbe": (1, _ECX, 22, 0),
    "popcnt": (1, _ECX, 23, 0),
    "lzcnt": (_EXTENDED, _ECX, 5, 0),
    "avx": (1, _ECX, 28, _YMM),
    "f16c": (1, _ECX, 29, _YMM),
    "fma": (1, _ECX, 12, _YMM),
    "bmi1": (7, _EBX, 3, _YMM),
    "avx2": (7, _EBX, 5, _YMM),
    "bmi2": (7, _EBX, 8, _YMM),
    "avx512f": (7, _EBX, 16, _ZMM),
    "avx512dq": (7, _EBX, 17, _ZMM),
    "avx512cd": (7, _EBX, 28, _ZMM),
    "avx512bw": (7, _EBX, 30, _ZMM),
    "avx512vl": (7, _EBX, 31, _ZMM),
}
"""Where the CPUID instruction tells of a feature: leaf, register, bit; and the state that it needs.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID, and volume 1, chapter 13.
"""


def isa_rows(targets: Sequence[Target], features: Sequence[str]) -> list[str]:
    """Entries of the table of instruction sets."""
    return [f'{{"{t.name}", {sum(1 << k for k, f in enumerate(features) if f in t.features):#x}}},' for t in targets]


def cpu_check(features: Sequence[str]) -> str:
    """The C text for `features`, which may be none."""
    if not features:
        return render("cpu_any.c")
    rows = [f"{{{leaf:#x}, {word}, {bit}, {state:#x}}}" for leaf, word, bit, state in (CPUID[f] for f in features)]
    return render("cpu_x86.c", names=features, rows=rows)
