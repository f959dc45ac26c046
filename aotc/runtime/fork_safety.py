# SPDX-License-Identifier: Apache-2.0
"""Locks and temporary directories that are safe when the process forks.

self._lock = new_fork_safe_lock_for(self)        # forked children get another one
folder = ScratchDirectory("aotc-")          # folder.name; removed by this process, not by its children
"""

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from aotc.ir.atomic_write import make_temporary_folder
from aotc.ir.interrupts import remove_temporary_path

#: For each object with a lock, the function that makes such locks.
_LOCK_MAKERS: Final[weakref.WeakKeyDictionary[Any, Callable[[], Any]]] = weakref.WeakKeyDictionary()


def new_fork_safe_lock_for(owner: Any) -> threading.Lock:
    """Return a lock for the attribute `_lock` of an object; forked children replace it by a new,
    free lock.

    Otherwise a lock held by another thread at the time of the fork would never be released in the
    child.
    """
    _LOCK_MAKERS[owner] = threading.Lock
    return threading.Lock()


def new_fork_safe_reentrant_lock_for(owner: Any) -> "threading.RLock":
    """Return a lock as `new_fork_safe_lock_for` does, which the thread that holds it can acquire again, and which no
    other thread can release.
    """
    _LOCK_MAKERS[owner] = threading.RLock
    return threading.RLock()


def _replace_locks_after_fork() -> None:
    for owner, make_lock in _LOCK_MAKERS.items():
        owner._lock = make_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_locks_after_fork)


class ForkSafeMutex:
    """A mutex for `with` statements that is always free in forked child processes."""

    def __init__(self) -> None:
        self._lock = new_fork_safe_lock_for(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ScratchDirectory:
    """A temporary directory, removed when the object is no longer referenced and at exit.

    name      path of the directory
    remove    function that removes it at once

    Only the process that created it removes it, not forked children.
    """

    def __init__(self, prefix: str) -> None:
        self.name: Final = make_temporary_folder(prefix)
        self.remove: Final = weakref.finalize(self, _remove_unless_forked, self.name, os.getpid())


def _remove_unless_forked(path: str, creator_process_id: int) -> None:
    if os.getpid() == creator_process_id:
        remove_temporary_path(Path(path))
