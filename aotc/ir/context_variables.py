# SPDX-License-Identifier: Apache-2.0
"""Values of context variables that hold inside a block: each thread, and each copy of its context, has its own.

_DEPTH: ContextVar[int] = ContextVar("depth", default=0)
with setting(_DEPTH, 1):
    _DEPTH.get()                                     # 1
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def setting(variable: ContextVar[T] | ContextVar[T | None], value: T) -> Iterator[T]:
    """Give a variable a value inside the block, which is given the value, too."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)  # type: ignore[arg-type]
