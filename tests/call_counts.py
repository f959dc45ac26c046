# SPDX-License-Identifier: Apache-2.0
"""Measures work in function calls, which do not depend on the machine or its load.

assert grows_linearly(lambda n: fuse(chain(n)))
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def calls_of(run: Callable[[], object]) -> int:
    """How many functions are called."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def grows_linearly(prepare: Callable[[int], Callable[[], object]], size: int = 200) -> bool:
    """Whether four times the size takes about four times the work; `prepare` makes what is measured for a size."""
    prepare(8)()  # what is looked up once
    return calls_of(prepare(4 * size)) < 6 * calls_of(prepare(size))


def doubles(prepare: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Whether twice the size takes at most twice the work and a fifth more."""
    prepare(size)()  # what is looked up once
    return calls_of(prepare(2 * size)) <= 2.4 * calls_of(prepare(size))
