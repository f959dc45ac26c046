# SPDX-License-Identifier: Apache-2.0
"""Progress within a stage of a compilation: loops report each item, and whoever compiles may listen.

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

#: Called with the number of items that are done, the number of all items, and the name of the item under way.
Listener: TypeAlias = Callable[[int, int, str], None]

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` for every item that code in the block reports."""
    with setting(_LISTENER, listener):
        yield


def report_progress(done: int, total: int, item: str) -> None:
    """Report that `done` of `total` items are done, and that the work is at `item`; nothing where nobody listens."""
    if (listener := _LISTENER.get()) is not None:
        listener(done, total, item)
