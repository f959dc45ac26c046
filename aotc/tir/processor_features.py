# SPDX-License-Identifier: Apache-2.0
"""Names of processor features, and C texts that are only for processors with some features.

    PROCESSOR_FEATURES["avx2"].macro                     # "__AVX2__"
    texts = (CVariant("return a;", requires=("avx2",)), CVariant("return b;"))
    c_text_for_features(texts, {"x86_64", "avx2"})       # "return a;"

A target lists its features in `Target.features`. Texts of instructions and helper functions state
which features they require, and the printer prints the text for the target's features: emitted C
has no conditions on instruction sets. Conditions on C compilers remain in it.
"""

from collections.abc import Collection, Iterable
from typing import Final

from aotc.ir import frozen


@frozen
class ProcessorFeature:
    """A feature that some processors of an architecture have.

    name      its name in `Target.features` and in requirements
    machine   the architecture, as `Target.machine` names it
    macro     the preprocessor macro that gcc and clang define if their flags allow code to use it
    vector_bytes   bytes of the vectors that micro-kernels use by it, if a target with it need not have
                   vectors in loops; else 0
    """

    name: str
    machine: str
    macro: str
    vector_bytes: int = 0


_X86_MACROS: Final = {
    "sse3": "__SSE3__",
    "ssse3": "__SSSE3__",
    "sse4_1": "__SSE4_1__",
    "sse4_2": "__SSE4_2__",
    "popcnt": "__POPCNT__",
    "movbe": "__MOVBE__",
    "lzcnt": "__LZCNT__",
    "avx": "__AVX__",
    "f16c": "__F16C__",
    "fma": "__FMA__",
    "avx2": "__AVX2__",
    "bmi1": "__BMI__",
    "bmi2": "__BMI2__",
    "avx512f": "__AVX512F__",
    "avx512dq": "__AVX512DQ__",
    "avx512cd": "__AVX512CD__",
    "avx512bw": "__AVX512BW__",
    "avx512vl": "__AVX512VL__",
    "avx512_vnni": "__AVX512VNNI__",
    "avx512_bf16": "__AVX512BF16__",
    "avx_vnni": "__AVXVNNI__",
    "amx_tile": "__AMX_TILE__",
    "amx_int8": "__AMX_INT8__",
}
_AARCH64_MACROS: Final = {
    "dotprod": "__ARM_FEATURE_DOTPROD",
    "i8mm": "__ARM_FEATURE_MATMUL_INT8",
    "bf16": "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC",
}
_ARM_MACROS: Final = {
    "dsp": "__ARM_FEATURE_DSP",
    "sat": "__ARM_FEATURE_SAT",
    "thumb2": "__thumb2__",
    "mve": "__ARM_FEATURE_MVE",
}
_RISCV_MACROS: Final = {"v": "__riscv_vector", "zvl256b": "__riscv_zvl256b"}
_WASM_MACROS: Final = {"simd128": "__wasm_simd128__", "relaxed_simd": "__wasm_relaxed_simd__"}
_MACROS_BY_MACHINE: Final = {
    "x86_64": _X86_MACROS,
    "aarch64": _AARCH64_MACROS,
    "arm": _ARM_MACROS,
    "riscv64": _RISCV_MACROS,
    "wasm32": _WASM_MACROS,
}
_MICRO_KERNEL_VECTOR_BYTES: Final = {"mve": 16}
#: By name. Names of x86 features are those of /proc/cpuinfo, except those in
#: `aotc.tir.target.feature_names_from_cpu_flags`.
PROCESSOR_FEATURES: Final = {
    name: ProcessorFeature(name, machine, macro, _MICRO_KERNEL_VECTOR_BYTES.get(name, 0))
    for machine, macros in _MACROS_BY_MACHINE.items()
    for name, macro in macros.items()
}
#: What texts can require: features, and architectures, for instructions that all their processors have.
FEATURES_AND_ARCHITECTURES: Final = (
    *PROCESSOR_FEATURES,
    *dict.fromkeys(f.machine for f in PROCESSOR_FEATURES.values()),
)


@frozen
class CVariant:
    """C text for processors that have some features.

    text       the text
    requires   names of `FEATURES_AND_ARCHITECTURES` that the processor must have
    compiler   preprocessor condition on the C compiler, such as "!defined(__clang__)"; "" if every
               compiler can compile the text
    """

    text: str
    requires: tuple[str, ...] = ()
    compiler: str = ""


def c_text_for_features(variants: Iterable[CVariant], features: Collection[str]) -> str:
    """Return the first text whose required features are in `features`.

    If it has a condition on the compiler, return an #if group with it and with the next texts, up
    to one without a condition.  Raise ValueError if there is none.
    """
    text_by_compiler: dict[str, str] = {}
    for variant in variants:
        if set(variant.requires).issubset(features):
            text_by_compiler.setdefault(variant.compiler, variant.text)
        if "" in text_by_compiler:
            break
    else:
        raise ValueError(f"no text for processors with {sorted(features)} and any C compiler")
    last = text_by_compiler.pop("")
    if not text_by_compiler:
        return last
    branches = "el".join(f"if {condition}\n{text}#" for condition, text in text_by_compiler.items())
    return f"#{branches}else\n{last}#endif\n"
