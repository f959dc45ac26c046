# SPDX-License-Identifier: Apache-2.0
"""How emitted C is compiled.

cflags(target)                         # ("-O2", "-fno-tree-vectorize", ..., "-march=x86-64-v4")
base_cflags(target)                    # ("-O2", "-fno-tree-vectorize", ..., "-march=x86-64")
"""

from typing import Final

from aotc.tir.target import Target

#: Vectors and multiply-adds are those of the program: compilers choose addresses, registers and the order of work.
OPTIMIZE: Final = ("-O2", "-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-fno-math-errno", "-ffp-contract=off")

#: For nvcc and NVRTC: each operation is rounded by itself, as in C; a multiply-add is one where the program says so.
ON_DEVICES: Final = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--std=c++17")


def cflags(target: Target) -> tuple[str, ...]:
    """Flags of gcc and clang for kernels."""
    return (*OPTIMIZE, *target.cflags)


def base_cflags(target: Target) -> tuple[str, ...]:
    """Flags of gcc and clang for all other code."""
    return (*OPTIMIZE, *target.base_cflags)
