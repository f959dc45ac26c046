# SPDX-License-Identifier: Apache-2.0
"""Interrupts: temporary files that must not outlive the process, and work that must not be cut in two.

with temporary(folder / ".aotc-k3j2h1g0") as path:      # removed at the end of the block, or of the process
    path.mkdir()
with uninterrupted():                                   # a signal in this block takes effect after it
    ...
exit_on_signals()                                       # the command: SIGINT and SIGTERM clean up and end the process

`exit_on_signals` does not raise an exception: libraries catch or translate KeyboardInterrupt (click exits with 1, C
extensions print and ignore it).  Its handler ends child processes, removes every path that is registered as temporary,
and leaves the process with exit code 128 + the number of the signal, as shells do.
"""

import atexit
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

#: Temporary paths, each with the process that made it: a forked child leaves those of its parent alone.
_TEMPORARY: Final[dict[Path, int]] = {}
#: Directories that a process made for its results, which are removed while they are empty.
_NEW_FOLDERS: Final[dict[Path, int]] = {}
#: What ends the child processes.
_END_CHILDREN: Final[list[Callable[[], None]]] = []
#: How often, and with which pause, the handler of a signal tries to remove what other threads still write to.
_ATTEMPTS: Final = 100
_PAUSE_SECONDS: Final = 0.01
_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_SHOW_CURSOR: Final = b"\r\x1b[K\x1b[?25h"


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Register a path, whose name nobody else uses, before anything is made there; remove it at the end of the block.

    A path that an interrupt leaves behind is removed when the process ends.
    """
    register_temporary(path)
    try:
        yield path
    finally:
        remove_temporary(path)


def register_temporary(path: Path) -> None:
    """Remove a path when the process ends, unless `remove_temporary` did so before."""
    _TEMPORARY[path] = os.getpid()


def remove_temporary(path: Path) -> None:
    """Remove what was made at a registered path."""
    if os.path.lexists(path):
        _remove(path)
    if not os.path.lexists(path):
        _TEMPORARY.pop(path, None)


@contextmanager
def new_folders(folder: Path) -> Iterator[None]:
    """Make a directory and its parents for the block; those that were made and are empty behind it are removed.

    Raises OSError where they cannot be made.
    """
    missing = [path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()]
    _NEW_FOLDERS.update(dict.fromkeys(missing, os.getpid()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
            _NEW_FOLDERS.pop(path, None)


def end_children_by(action: Callable[[], None]) -> None:
    """Register a function that ends child processes; it is called when a signal ends this process."""
    _END_CHILDREN.append(action)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Postpone signals that arrive in the block until its end; for short blocks.

    Python handles signals in the main thread, so in other threads nothing needs to be postponed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    former: dict[int, Any] = {}
    try:
        for number in _SIGNALS:
            # None is a handler that Python cannot restore
            if (handler := signal.getsignal(number)) not in (None, signal.SIG_IGN):
                former[number] = handler
                signal.signal(number, lambda number, _: arrived.append(number))
        yield
    finally:
        # SIGINT last: its usual handler raises an exception
        for number, handler in reversed(former.items()):
            signal.signal(number, handler)
        for number in arrived[:1]:
            signal.raise_signal(number)


def exit_on_signals() -> None:
    """End this process on SIGINT, SIGTERM and SIGHUP: exit code 128 + number, children ended, nothing left behind.

    A signal that is ignored stays ignored (nohup).
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, _: FrameType | None) -> None:
    # system calls alone: the signal may have arrived while any lock was held
    for _attempt in range(_ATTEMPTS):
        for action in _END_CHILDREN:
            action()
        if _remove_all():
            break
        # other threads still write
        time.sleep(_PAUSE_SECONDS)
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
    os._exit(128 + number)


def _remove_all() -> bool:
    """Remove temporary paths of this process; whether none is left."""
    own = [path for path, process in list(_TEMPORARY.items()) if process == os.getpid()]
    for path in own:
        _remove(path)
    folders = [path for path, process in list(_NEW_FOLDERS.items()) if process == os.getpid()]
    for path in sorted(folders, key=lambda p: len(p.parts), reverse=True):
        with suppress(OSError):
            path.rmdir()
    return not any(map(os.path.lexists, own))


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


atexit.register(_remove_all)
