# SPDX-License-Identifier: Apache-2.0
"""Report progress within a stage of a compilation to a listener, item by item.

def show(done, total, item):                         # 3, 93, "conv2d_3"
    ...

with listening(show):
    for k, kernel in enumerate(kernels):
        report_progress(k, len(kernels), kernel.name)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from aotc.ir.context_variables import setting

#: Function called with the number of items done, the total number, and the name of the current item.
Listener: TypeAlias = Callable[[int, int, str], None]

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Context manager: call `listener` for every item that code in the block reports."""
    with setting(_LISTENER, listener):
        yield


def report_progress(done: int, total: int, item: str) -> None:
    """Report to the listener, if any, that `done` of `total` items are done and that `item` is
    being processed.
    """
    if (listener := _LISTENER.get()) is not None:
        listener(done, total, item)
