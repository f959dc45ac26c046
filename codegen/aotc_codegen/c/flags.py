# SPDX-License-Identifier: Apache-2.0
"""How emitted C is compiled.

cflags(target)                         # ("-O3", "-fno-math-errno", ..., "-march=x86-64-v4")
base_cflags(target)                    # ("-O3", "-fno-math-errno", ..., "-march=x86-64")
"""

from __future__ import annotations

from typing import Final

from aotc.tir.target import Target

#: No -ffast-math: results must be right for NaN and infinities.
OPTIMISE: Final = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")


def cflags(target: Target) -> tuple[str, ...]:
    """Flags of gcc and clang for kernels."""
    return (*OPTIMISE, *target.cflags)


def base_cflags(target: Target) -> tuple[str, ...]:
    """Flags of gcc and clang for all other code."""
    return (*OPTIMISE, *target.base_cflags)
