# SPDX-License-Identifier: Apache-2.0
"""Set a context variable for the duration of a block; the value is visible only in the current
context.

_DEPTH: ContextVar[int] = ContextVar("depth", default=0)
with temporarily_set_context_variable(_DEPTH, 1):
    _DEPTH.get()                                     # 1
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def temporarily_set_context_variable(variable: ContextVar[T] | ContextVar[T | None], value: T) -> Iterator[T]:
    """Context manager: set a context variable to a value in the block, yield the value, and restore
    it afterwards.
    """
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)  # type: ignore[arg-type]
