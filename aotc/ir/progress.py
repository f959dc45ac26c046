# SPDX-License-Identifier: Apache-2.0
"""Report progress within a stage of a compilation to a listener, item by item.

def show(done, total, item):                         # 3, 93, "conv2d_3"
    ...

with listen_to_progress(show):
    for k, kernel in enumerate(kernels):
        report_progress(k, len(kernels), kernel.name)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from aotc.ir.temporary_context_value import temporarily_set_context_variable

#: Function called with the number of items done, the total number, and the name of the current item.
ProgressListener: TypeAlias = Callable[[int, int, str], None]

_CURRENT_PROGRESS_LISTENER: ContextVar[ProgressListener | None] = ContextVar("listener", default=None)


@contextmanager
def listen_to_progress(listener: ProgressListener) -> Iterator[None]:
    """Context manager: call `listener` for every item that code in the block reports."""
    with temporarily_set_context_variable(_CURRENT_PROGRESS_LISTENER, listener):
        yield


def report_progress(done: int, total: int, item: str) -> None:
    """Report to the listener, if any, that `done` of `total` items are done and that `item` is
    being processed.
    """
    if (listener := _CURRENT_PROGRESS_LISTENER.get()) is not None:
        listener(done, total, item)
