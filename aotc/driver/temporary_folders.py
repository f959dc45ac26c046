# SPDX-License-Identifier: Apache-2.0
"""Temporary folders on disk that are removed at the end of a block, also when the process is
interrupted.

# build/.aotc-0123456789abcdef, removed at the end of the block
with create_locked_scratch_folder(Path("build")) as folder:
    ...
with lock_folder(Path("build")):                     # other processes wait
    ...

A process that is killed leaves its folder.  The folder's owner is not certain, so aotc never
removes it: `unlocked_scratch_folders` finds it, and a warning asks the user to remove it.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from aotc.ir.atomic_write import is_generated_temporary_file_name, random_temporary_name
from aotc.ir.atomic_write import open_for_atomic_write as open_for_atomic_write
from aotc.ir.atomic_write import open_output_file as open_output_file
from aotc.ir.interrupts import remove_temporary_path_after_block

try:
    import fcntl
except ImportError:
    # a platform without file locks
    fcntl = None  # type: ignore[assignment]

#: Age in seconds from which a temporary file counts as abandoned.
_ABANDONED_SECONDS: Final = 86400


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Context manager: hold an exclusive lock on a directory, if the file system supports locks.

    Other processes wait for the lock.  Raises OSError if the directory cannot be opened.
    """
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
def create_locked_scratch_folder(parent_folder: Path) -> Iterator[Path]:
    """Context manager: create a folder in `parent_folder`, locked during the block and removed at
    its end; OSError on failure.
    """
    with remove_temporary_path_after_block(parent_folder / random_temporary_name()) as folder:
        folder.mkdir(mode=0o700)
        with lock_folder(folder):
            yield folder


def unlocked_scratch_folders(parent_folder: Path) -> list[Path]:
    """Return the folders in a directory that are named like a `create_locked_scratch_folder` and
    that no process has locked.
    """
    if fcntl is None:
        return []
    with suppress(OSError):
        candidates = [path for path in sorted(parent_folder.iterdir()) if is_generated_temporary_file_name(path.name)]
        return [
            path
            for path in candidates
            if path.is_dir() and not path.is_symlink() and not _is_locked_or_inaccessible(path)
        ]
    return []


def _is_locked_or_inaccessible(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        # removed in the meantime, or another user's
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_abandoned_temporary_file(name: str, modification_time_seconds: float) -> bool:
    """Return True if a file has the name of a temporary file of aotc and is older than a day, so that
    a process that was killed must have left it.
    """
    is_old = time.time() - modification_time_seconds > _ABANDONED_SECONDS
    return is_old and is_generated_temporary_file_name(name)
