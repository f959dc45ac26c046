# SPDX-License-Identifier: Apache-2.0
"""Run Python's cyclic garbage collector less often while a compilation creates millions of objects.

with collect_garbage_rarely():
    kernel = lower(...)                # nodes of expressions have no cycles: reference counts free them
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: New objects until a collection of the youngest generation, and collections of a generation until
#: one of the next older generation.  With Python's defaults (700, 10, 10), a tenth of the time of a
#: compilation is spent on searching for cycles; with 100,000, a twentieth of that of a small model.
_COMPILATION_THRESHOLDS: Final = (400_000, 20, 20)


@contextmanager
def collect_garbage_rarely() -> Iterator[None]:
    """Context manager: raise the thresholds of the garbage collector in the block, unless they are
    as high already or the collector is switched off.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < _COMPILATION_THRESHOLDS[0]:
        yield
        return
    gc.set_threshold(*_COMPILATION_THRESHOLDS)
    try:
        yield
    finally:
        _move_all_objects_to_the_oldest_generation()
        gc.set_threshold(*before)


def _move_all_objects_to_the_oldest_generation() -> None:
    """Let the next collection of the youngest generation start with no objects: a lower threshold
    would at once have the collector look at all those of the block.

    Nothing is done in a process that has frozen objects, which would thaw.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()
