# SPDX-License-Identifier: Apache-2.0
"""What a forked child must not take over from its parent as it is: locks, and the removal of files.

self._lock = own_lock(self)                 # forked children get another one
folder = ScratchDirectory("aotc-")          # folder.name; removed by this process, not by its children
"""

import os
import threading
import weakref
from pathlib import Path
from typing import Any, Final

from aotc.ir.atomic_write import make_temporary_folder
from aotc.ir.interrupts import remove_temporary

_OWNERS: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def own_lock(owner: Any) -> threading.Lock:
    """A lock for the attribute `_lock` of an object, which is a new one in forked children.

    A thread that held the old one when the process forked does not exist there, so nobody would release it.
    """
    _OWNERS.add(owner)
    return threading.Lock()


def _renew() -> None:
    for owner in _OWNERS:
        owner._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class Turns:
    """One thread after the other: `with turns: ...`; a lock that is free in forked children."""

    def __init__(self) -> None:
        self._lock = own_lock(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ScratchDirectory:
    """A temporary directory, removed when nothing refers to it any more and at exit.

    name      its path
    remove    a function that removes it at once

    The process that made it removes it: forked children that exit leave it to their parent.
    """

    def __init__(self, prefix: str) -> None:
        self.name: Final = make_temporary_folder(prefix)
        self.remove: Final = weakref.finalize(self, _remove, self.name, os.getpid())


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:
        remove_temporary(Path(path))
