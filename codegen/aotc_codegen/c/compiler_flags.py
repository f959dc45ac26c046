# SPDX-License-Identifier: Apache-2.0
"""Compiler flags for emitted C and CUDA code.

kernel_cflags(target)                  # ("-O1", "-fno-tree-vectorize", ..., "-march=x86-64-v4")
non_kernel_cflags(target)              # ("-O1", "-fno-tree-vectorize", ..., "-march=x86-64")
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Final

from aotc.tir.target import Target

#: Flags of gcc and clang besides the optimization level: no automatic vectorization and no fused
#: multiply-adds, as the program contains both explicitly; compilers choose addresses, registers and
#: the order of instructions.
_EXPLICIT_PROGRAM_FLAGS: Final = (
    "-fno-tree-vectorize",
    "-fno-tree-slp-vectorize",
    "-fno-math-errno",
    "-ffp-contract=off",
)
#: Optimization flags of gcc and clang for targets whose instructions they should order.
OPTIMIZATION_FLAGS: Final = ("-O2", *_EXPLICIT_PROGRAM_FLAGS)

#: Least value of __riscv_v_intrinsic in compilers that translate vector types to RISC-V's vector instructions.
#: Version 0.12 of the intrinsics has types that the kernels use; compilers without the macro know the flags only.
_LEAST_RISCV_INTRINSICS_VERSION: Final = 12000

#: Flags of nvcc and NVRTC: each operation is rounded separately, as in C; the program contains
#: fused multiply-adds explicitly.
CUDA_COMPILER_FLAGS: Final = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--std=c++17")


def _optimization_level(target: Target) -> str:
    """Return the optimization level of gcc and clang for a target.

    - -Os for small bare-metal targets, where code shares flash with weights
    - -O1 for vectors of x86-64: kernels contain the loops that the compilers would create, and these
      processors order instructions themselves, so that -O2 makes no network faster but takes up to
      half as long again to compile
    - -O2 for all other targets
    """
    if target.small and target.bare:
        return "-Os"
    return "-O1" if target.machine == "x86_64" and not target.is_scalar else "-O2"


def _optimization_flags(target: Target) -> tuple[str, ...]:
    return (_optimization_level(target), *_EXPLICIT_PROGRAM_FLAGS)


def kernel_cflags(target: Target) -> tuple[str, ...]:
    """Return the flags of gcc and clang for kernels."""
    return (*_optimization_flags(target), *target.cflags)


def non_kernel_cflags(target: Target) -> tuple[str, ...]:
    """Return the flags of gcc and clang for all code except kernels."""
    return (*_optimization_flags(target), *target.base_cflags)


def least_riscv_vector_bits(features: Iterable[str]) -> int:
    """Return the least length in bits of a vector register that `Target.features` require on
    RISC-V; 0 without the vector extension.
    """
    names = set(features)
    lengths = (int(name[3:-1]) for name in names if re.fullmatch(r"zvl\d+b", name))
    return max((128, *lengths)) if "v" in names else 0


def riscv_vector_requirement_lines(target: Target) -> list[str]:
    """Return preprocessor lines that reject compilers and flags that translate RISC-V vectors to
    scalar instructions or assume shorter registers; none for targets without them.
    """
    bits = least_riscv_vector_bits(target.features)
    if not bits:
        return []
    return [
        f"#if !defined(__riscv_v_min_vlen) || __riscv_v_min_vlen < {bits}",
        f'#error "kernels for {target.name} need vector registers of {bits} bits: compile with {target.cflags[0]}"',
        f"#elif !defined(__riscv_v_intrinsic) || __riscv_v_intrinsic < {_LEAST_RISCV_INTRINSICS_VERSION}",
        '#error "this compiler has no vector instructions of RISC-V for vector types: clang 19 has"',
        "#endif",
    ]


def required_compiler(target: Target) -> str:
    """Return the C compilers that translate a project for a target, as a phrase for its README."""
    if least_riscv_vector_bits(target.features):
        return "clang 19 or newer"
    return "a C99 compiler" if target.is_scalar else "gcc or clang"


#: Options that select a machine or its calling convention.
_MACHINE_FLAG_PATTERN: Final = re.compile(r"-m(arch|cpu|tune|fpu|float-abi|abi)=.+")


def build_file_flag_values(target: Target, user_flags: Sequence[str] = ()) -> dict[str, Any]:
    """Return the flags as values for the templates of build files.

    user_flags    C compiler flags of the user for the project, which come after the target's flags

    For bare-metal targets, the options that select the machine are separate ("machine_flags"),
    since they must match the application that the library is linked with; if an option occurs
    several times, only the last one remains.
    """
    chosen = [flag for flag in user_flags if target.bare and _MACHINE_FLAG_PATTERN.fullmatch(flag)]
    rest = [flag for flag in user_flags if flag not in chosen]
    named = {flag.partition("=")[0]: flag for flag in (*target.base_cflags, *chosen)}
    return {
        "cflags": non_kernel_cflags(target),
        "optimize_flags": _optimization_flags(target),
        "machine_flags": list(named.values()),
        "given_make": "".join(f" {shlex.quote(flag)}" for flag in rest).replace("$", "$$").replace("#", r"\#"),
        "given_cmake": [f'"SHELL:{_escape_for_cmake(shlex.join(rest))}"'] if rest else [],
        "given_options": [_escape_for_cmake(flag) for flag in rest],
    }


def _escape_for_cmake(text: str) -> str:
    """Return a text escaped for a quoted argument in CMake."""
    return re.sub(r'([\\"$;])', r"\\\1", text)
