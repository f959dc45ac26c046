# SPDX-License-Identifier: Apache-2.0
"""How emitted C is compiled.

cflags(target)                         # ("-O2", "-fno-tree-vectorize", ..., "-march=x86-64-v4")
base_cflags(target)                    # ("-O2", "-fno-tree-vectorize", ..., "-march=x86-64")
"""

import re
import shlex
from collections.abc import Sequence
from typing import Any, Final

from aotc.tir.target import Target

#: Vectors and multiply-adds are those of the program: compilers choose addresses, registers and the order of work.
OPTIMIZE: Final = ("-O2", "-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-fno-math-errno", "-ffp-contract=off")

#: For nvcc and NVRTC: each operation is rounded by itself, as in C; a multiply-add is one where the program says so.
ON_DEVICES: Final = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--std=c++17")


def _level(target: Target) -> tuple[str, ...]:
    """The flags of all targets; code is optimized for size where it is to be small and shares flash with weights."""
    return ("-Os", *OPTIMIZE[1:]) if target.small and target.bare else OPTIMIZE


def cflags(target: Target) -> tuple[str, ...]:
    """Flags of gcc and clang for kernels."""
    return (*_level(target), *target.cflags)


def base_cflags(target: Target) -> tuple[str, ...]:
    """Flags of gcc and clang for all other code."""
    return (*_level(target), *target.base_cflags)


#: Options that choose a machine or its calling convention.
_MACHINE: Final = re.compile(r"-m(arch|cpu|tune|fpu|float-abi|abi)=.+")


def flag_words(target: Target, given: Sequence[str] = ()) -> dict[str, Any]:
    """What templates of build files take that tell of flags.

    given    flags of the C compiler that the user gave for the project, which come after those of the target

    Without an operating system those that choose the machine are apart ("machine_flags"), since the flags of the
    application that the library is linked with decide; of several for one option only the last is left.
    """
    chosen = [flag for flag in given if target.bare and _MACHINE.fullmatch(flag)]
    rest = [flag for flag in given if flag not in chosen]
    named = {flag.partition("=")[0]: flag for flag in (*target.base_cflags, *chosen)}
    return {
        "cflags": base_cflags(target),
        "optimize_flags": _level(target),
        "machine_flags": list(named.values()),
        "given_make": "".join(f" {shlex.quote(flag)}" for flag in rest).replace("$", "$$").replace("#", r"\#"),
        "given_cmake": [f'"SHELL:{_escaped(shlex.join(rest))}"'] if rest else [],
        "given_options": [_escaped(flag) for flag in rest],
    }


def _escaped(text: str) -> str:
    """Text within quotes in CMake."""
    return re.sub(r'([\\"$;])', r"\\\1", text)
