# SPDX-License-Identifier: Apache-2.0
"""Handle interrupts: remove temporary files when the process ends, and protect short critical
sections.

# the path is removed at the end of the block, or of the process
with remove_temporary_path_after_block(folder / ".aotc-k3j2h1g0") as path:
    path.mkdir()
with postpone_signals():                                # a signal in this block takes effect after it
    ...
install_exit_signal_handlers()                          # the command: SIGINT and SIGTERM clean up and end the process

`install_exit_signal_handlers` does not raise an exception: libraries catch or translate
KeyboardInterrupt (click exits with 1, C extensions print and ignore it).  Its handler ends child
processes, removes every path that is registered as temporary, and leaves the process with exit code
128 + the number of the signal, as shells do.
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

#: Temporary paths with the ID of the process that registered each: forked children must not remove them.
_TEMPORARY_PATHS: Final[dict[Path, int]] = {}
#: Directories created for results, with the process ID; removed at exit if they are empty.
_NEW_FOLDERS: Final[dict[Path, int]] = {}
#: Functions that end child processes.
_CHILD_TERMINATORS: Final[list[Callable[[], None]]] = []
#: Number of attempts, and pause between them, to remove files that other threads still write to.
_MAX_REMOVAL_ATTEMPTS: Final = 100
_PAUSE_SECONDS: Final = 0.01
_HANDLED_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_SHOW_CURSOR_SEQUENCE: Final = b"\r\x1b[K\x1b[?25h"


@contextmanager
def remove_temporary_path_after_block(path: Path) -> Iterator[Path]:
    """Context manager: register a path, with a unique name, as temporary before it is created;
    remove it after the block.

    A path that an interrupt leaves is removed when the process ends.
    """
    register_temporary_path(path)
    try:
        yield path
    finally:
        remove_temporary_path(path)


def register_temporary_path(path: Path) -> None:
    """Register a path to be removed when the process ends, unless `remove_temporary_path` removes
    it earlier.
    """
    _TEMPORARY_PATHS[path] = os.getpid()


def remove_temporary_path(path: Path) -> None:
    """Remove the file or folder at a path registered by `register_temporary_path`, and forget the
    path.
    """
    if os.path.lexists(path):
        _remove_file_or_folder_if_possible(path)
    if not os.path.lexists(path):
        _TEMPORARY_PATHS.pop(path, None)


@contextmanager
def create_folders_remove_if_empty(folder: Path) -> Iterator[None]:
    """Context manager: create a directory and its parents; after the block, remove those created
    that are empty.

    Raises OSError if they cannot be created.
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


def register_child_terminator(terminate_children: Callable[[], None]) -> None:
    """Register a function that ends child processes; the signal handler calls it before the process
    exits.
    """
    _CHILD_TERMINATORS.append(terminate_children)


@contextmanager
def postpone_signals() -> Iterator[None]:
    """Context manager: postpone signals until the end of the block, which must be short.

    Python runs signal handlers in the main thread only, so blocks in other threads are not changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    former: dict[int, Any] = {}
    try:
        for number in _HANDLED_SIGNALS:
            # None: a handler not installed by Python, which cannot be restored
            if (handler := signal.getsignal(number)) not in (None, signal.SIG_IGN):
                former[number] = handler
                signal.signal(number, lambda number, _: arrived.append(number))
        yield
    finally:
        # SIGINT last: its default handler raises an exception
        for number, handler in reversed(former.items()):
            signal.signal(number, handler)
        for number in arrived[:1]:
            signal.raise_signal(number)


def install_exit_signal_handlers() -> None:
    """Install handlers that end this process on SIGINT, SIGTERM and SIGHUP with exit code 128 +
    signal number.

    Child processes are ended and temporary files removed first.  Ignored signals stay ignored
    (nohup).
    """
    for number in _HANDLED_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _clean_up_and_exit_on_signal)


def _clean_up_and_exit_on_signal(signal_number: int, _: FrameType | None) -> None:
    # only system calls: any lock may be held when the signal is handled
    for _attempt in range(_MAX_REMOVAL_ATTEMPTS):
        for action in _CHILD_TERMINATORS:
            action()
        if _remove_all_temporary_paths():
            break
        # other threads are still writing
        time.sleep(_PAUSE_SECONDS)
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR_SEQUENCE)
    os._exit(128 + signal_number)


def _remove_all_temporary_paths() -> bool:
    """Remove the temporary paths of this process; return True if none is left."""
    process_paths = [path for path, process in list(_TEMPORARY_PATHS.items()) if process == os.getpid()]
    for path in process_paths:
        _remove_file_or_folder_if_possible(path)
    folders = [path for path, process in list(_NEW_FOLDERS.items()) if process == os.getpid()]
    for path in sorted(folders, key=lambda p: len(p.parts), reverse=True):
        with suppress(OSError):
            path.rmdir()
    return not any(map(os.path.lexists, process_paths))


def _remove_file_or_folder_if_possible(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


atexit.register(_remove_all_temporary_paths)
