# SPDX-License-Identifier: Apache-2.0
"""Unfinished work on disk: folders that go with the block that made them, also when the process is interrupted.

with scratch_folder(Path("build")) as folder:        # build/.aotc-0123456789abcdef, removed at the end of the block
    ...
with exclusively(Path("build")):                     # other processes wait
    ...

A process that is killed leaves its folder.  Nothing proves whose it is, so nobody removes it but the user:
`left_behind` finds it, to be named in a warning.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from aotc.ir.atomic_write import is_temporary_name, temporary_name
from aotc.ir.atomic_write import output_file as output_file
from aotc.ir.atomic_write import written as written
from aotc.ir.interrupts import temporary

try:
    import fcntl
except ImportError:
    # a platform without them
    fcntl = None  # type: ignore[assignment]

#: The age of a temporary file at which no running process writes to it.
_ABANDONED_SECONDS: Final = 86400


@contextmanager
def exclusively(folder: Path) -> Iterator[None]:
    """Lock a directory; other processes wait, where the file system has locks.  OSError where it cannot be read."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def scratch_folder(home: Path) -> Iterator[Path]:
    """A new folder in `home`, locked while the block runs and removed at its end; OSError where there can be none."""
    with temporary(home / temporary_name()) as folder:
        folder.mkdir(mode=0o700)
        with exclusively(folder):
            yield folder


def left_behind(home: Path) -> list[Path]:
    """Folders in a directory that look like a `scratch_folder` and that no running process has locked."""
    if fcntl is None:
        return []
    with suppress(OSError):
        found = [path for path in sorted(home.iterdir()) if is_temporary_name(path.name)]
        return [path for path in found if path.is_dir() and not path.is_symlink() and not _is_locked(path)]
    return []


def _is_locked(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        # gone since, or another user's
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def abandoned_files(folder: Path) -> Iterator[Path]:
    """Temporary files that killed processes left in a folder of the cache, which belongs to aotc alone."""
    for path in folder.iterdir():
        with suppress(OSError):
            # gone since
            state = path.lstat()
            old = time.time() - state.st_mtime > _ABANDONED_SECONDS
            if is_temporary_name(path.name) and stat.S_ISREG(state.st_mode) and old:
                yield path
