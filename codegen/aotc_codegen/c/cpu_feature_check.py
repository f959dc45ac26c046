# SPDX-License-Identifier: Apache-2.0
"""Emit C code that determines at run time which features of x86, AArch64 or RISC-V the processor
lacks; it runs on every processor of the architecture.

Input: feature names. Output: C text that defines `cpu_features`, the names, and `cpu_missing()`, a
bit mask in which bit k is set if the processor lacks the k-th feature. `isa_feature_mask_rows`
prints the features that each instruction set needs.

    text = cpu_feature_check_code(("avx2", "fma"))
"""

from collections.abc import Iterable, Sequence
from typing import Final

from aotc.tir.processor_features import PROCESSOR_FEATURES
from aotc.tir.target import Target
from aotc_codegen.c.compiler_flags import least_riscv_vector_bits
from aotc_codegen.c.template_rendering import render_template

_EAX, _EBX, _ECX, _EDX = range(4)
#: Processor state that the operating system must save, as bits of the register XCR0.
_YMM, _ZMM, _TILES = 0x6, 0xE6, 0x600E6
_EXTENDED_CPUID_LEAF: Final = 0x80000001

_FEATURE_BITS_BY_REGISTER: Final = {
    (1, 0, _ECX, 0): {"sse3": 0, "ssse3": 9, "sse4_1": 19, "sse4_2": 20, "movbe": 22, "popcnt": 23},
    (_EXTENDED_CPUID_LEAF, 0, _ECX, 0): {"lzcnt": 5},
    (1, 0, _ECX, _YMM): {"avx": 28, "f16c": 29, "fma": 12},
    (7, 0, _EBX, _YMM): {"bmi1": 3, "avx2": 5, "bmi2": 8},
    (7, 0, _EBX, _ZMM): {"avx512f": 16, "avx512dq": 17, "avx512cd": 28, "avx512bw": 30, "avx512vl": 31},
    (7, 0, _ECX, _ZMM): {"avx512_vnni": 11},
    (7, 1, _EAX, _YMM): {"avx_vnni": 4},
    (7, 1, _EAX, _ZMM): {"avx512_bf16": 5},
    (7, 0, _EDX, _TILES): {"amx_tile": 24, "amx_int8": 25},
}
#: Location of each feature in the results of the CPUID instruction: leaf, subleaf, register, bit;
#: and the XCR0 state that it needs. Source: Intel 64 and IA-32 Architectures Software Developer's
#: Manual, volume 2, CPUID, and volume 1, chapter 13.
CPUID_LOCATION_BY_FEATURE: Final = {
    name: (*place, bit, state)
    for (*place, state), bits in _FEATURE_BITS_BY_REGISTER.items()
    for name, bit in bits.items()
}
#: Location of each feature of AArch64: the entry of Linux's auxiliary vector (AT_HWCAP is 16,
#: AT_HWCAP2 is 26), the bit in it, the variable of macOS, and the number for Windows' function
#: IsProcessorFeaturePresent, which says no of numbers that it is too old to know. Source: Linux,
#: Documentation/arch/arm64/elf_hwcaps.rst; Apple, "Determining instruction set characteristics";
#: Microsoft, winnt.h, PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE and the like.
AARCH64_LOCATION_BY_FEATURE: Final = {
    "dotprod": (16, 20, "FEAT_DotProd", 43),
    "i8mm": (26, 13, "FEAT_I8MM", 66),
    "bf16": (26, 14, "FEAT_BF16", 68),
}
#: C code that asks Linux to save AMX tiles for this process, by arch_prctl(ARCH_REQ_XCOMP_PERM,
#: 18).
_AMX_PERMISSION_CODE: Final = """

/* The state without matrices where the system does not save them for this process. */
static unsigned granted(unsigned state) {
  long result = 158;
#if defined(__linux__)
  __asm__ volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
#endif
  return result == 0 ? state : state & ~0x60000u;
}"""


def features_checked_at_run_time(targets: Iterable[Target]) -> list[str]:
    """Return the features of targets that `cpu_feature_check_code` can check: those of x86,
    AArch64 and RISC-V.
    """
    known = {
        *CPUID_LOCATION_BY_FEATURE,
        *AARCH64_LOCATION_BY_FEATURE,
        *(f.name for f in PROCESSOR_FEATURES.values() if f.machine == "riscv64"),
    }
    return list(dict.fromkeys(f for t in targets for f in t.features if f in known))


def isa_feature_mask_rows(targets: Sequence[Target], features: Sequence[str]) -> list[str]:
    """Return the C table entries of instruction sets: name and bit mask of the needed features."""
    return [f'{{"{t.name}", {sum(1 << k for k, f in enumerate(features) if f in t.features):#x}}},' for t in targets]


def cpu_feature_check_code(features: Sequence[str]) -> str:
    """Return the C text that checks for `features`; without features, a check that always succeeds."""
    if not features:
        return render_template("cpu_any.c")
    if any(PROCESSOR_FEATURES[feature].machine == "riscv64" for feature in features):
        vector_bytes = [str(least_riscv_vector_bits(("v", feature)) // 8) for feature in features]
        return render_template("cpu_riscv64.c", names=features, rows=vector_bytes)
    if AARCH64_LOCATION_BY_FEATURE.keys() & set(features):
        places = [AARCH64_LOCATION_BY_FEATURE[feature] for feature in features]
        rows = [f'{{{entry}, {bit}, "hw.optional.arm.{name}", {windows}}}' for entry, bit, name, windows in places]
        return render_template("cpu_aarch64.c", names=features, rows=rows)
    locations = [CPUID_LOCATION_BY_FEATURE[feature] for feature in features]
    rows = [f"{{{leaf:#x}, {part}, {word}, {bit}, {state:#x}}}" for leaf, part, word, bit, state in locations]
    asks = bool(amx_permission_constructor_code(features))
    granted = "\n  state = granted(state);" * asks
    return render_template("cpu_x86.c", names=features, rows=rows, ask=_AMX_PERMISSION_CODE * asks, granted=granted)


def amx_permission_constructor_code(features: Sequence[str]) -> str:
    """Return C text that asks the operating system at start for the state `features` need (AMX
    tiles); "" if none.

    It is for programs made of kernels alone, which have no model start-up code.
    """
    call = "\n\n__attribute__((constructor)) static void ask(void) {\n  (void)granted(0);\n}"
    return (
        _AMX_PERMISSION_CODE + call
        if any(CPUID_LOCATION_BY_FEATURE[f][-1] == _TILES for f in features if f in CPUID_LOCATION_BY_FEATURE)
        else ""
    )
