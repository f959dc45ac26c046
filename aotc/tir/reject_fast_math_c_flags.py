# SPDX-License-Identifier: Apache-2.0
"""Rejects C compiler flags that change results, such as -ffast-math.

reject_result_changing_c_flags(["-O3", "-march=native"])
reject_result_changing_c_flags(["-ffast-math"])  # AotcError
"""

import re
from collections.abc import Iterable
from typing import Final

from aotc.ir import AotcError, option_text

#: Flags by which gcc and clang compute something else than the program says.
_INEXACT_FLAG_PATTERN: Final = re.compile(
    r"-Ofast|--optimize=fast|-f(fast-math|unsafe-math-optimizations|finite-math-only|associative-math|reciprocal-math|no-signed-zeros)"
    r"|-f(no-honor-nans|no-honor-infinities|approx-func|single-precision-constant|fp-model=(fast|aggressive))"
    r"|-f(fp-contract=(?!off$).*|fp-eval-method=(?!source$).*)"
    r"|-fdenormal-fp-math(-f32)?=(?!ieee).*|-mfpmath=(?!sse$).*|-mdaz-ftz|-mrecip(=(?!none$).*)?|-mlow-precision-.*"
    # what clang takes behind -Xclang and -mllvm
    r"|-m?enable-(unsafe-fp-math|no-(infs|nans|signed-zeros)(-fp-math)?)|-mreassociate|-fp-contract=(?!off$).*"
)
#: What flags are refused for, by what they look like, and what to do instead.
_REFUSED_FLAG_PATTERNS: Final = (
    (
        _INEXACT_FLAG_PATTERN,
        "results would not be those of the program",
        "leave it out: kernels have their vectors and multiply-adds without it",
    ),
    (
        re.compile(r"-[cES]|-MM?|-fsyntax-only"),
        "no library would come of it",
        "leave it out; " + option_text("build", False) + " writes sources only",
    ),
    (re.compile("@.*"), "flags in a file are not looked at", "write what the file holds in its place"),
)


def reject_result_changing_c_flags(cflags: Iterable[str]) -> None:
    """Raise AotcError (code "cflags") for compiler flags that change results or outputs."""
    given = tuple(dict.fromkeys(cflags))
    for pattern, why, hint in _REFUSED_FLAG_PATTERNS:
        if matches := list(filter(pattern.fullmatch, given)):
            text = f"C is not compiled with {' '.join(matches)}: {why}"
            raise AotcError("cflags", text, hint=hint)
