# SPDX-License-Identifier: Apache-2.0
"""Flags of C compilers that may not be given, since results would be others than those of the program.

require_exact(["-O3", "-march=native"])
require_exact(["-ffast-math"])         # AotcError
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from aotc.ir import AotcError

#: Flags by which gcc and clang compute something else than the program says.
_INEXACT: Final = re.compile(
    r"-Ofast|-f(fast-math|unsafe-math-optimizations|finite-math-only|associative-math|reciprocal-math|no-signed-zeros)"
    r"|-f(no-honor-nans|no-honor-infinities|approx-func|single-precision-constant|fp-model=(fast|aggressive))"
    r"|-f(fp-contract=(?!off$).*|fp-eval-method=(?!source$).*)"
    r"|-fdenormal-fp-math(-f32)?=(?!ieee).*|-mfpmath=(?!sse$).*|-mdaz-ftz|-mrecip(=(?!none$).*)?|-mlow-precision-.*"
    # what clang takes behind -Xclang and -mllvm
    r"|-m?enable-(unsafe-fp-math|no-(infs|nans|signed-zeros)(-fp-math)?)|-mreassociate|-fp-contract=(?!off$).*"
)


def require_exact(flags: Iterable[str]) -> None:
    """Raise AotcError (code "cflags") for flags of a C compiler that let it compute something else."""
    if found := [flag for flag in dict.fromkeys(flags) if _INEXACT.fullmatch(flag)]:
        text = f"C is not compiled with {' '.join(found)}: results would not be those of the program"
        hint = "leave it out: kernels have their vectors and multiply-adds without it"
        raise AotcError("cflags", text, hint=hint)
