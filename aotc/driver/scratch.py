# SPDX-License-Identifier: Apache-2.0
"""Unfinished work on disk that outlives no process: a killed one's is recognised and removed by the next.

with scratch_folder(Path("build")) as folder:        # build/.aotc-k3j2h1g0, removed at the end of the block
    ...
with written(Path("out.npz")) as file:               # appears as a whole, or stays as it was
    file.write(data)
for folder in abandoned(Path("build")):              # what dead processes left there
    discard(folder)

What is unfinished is called .aotc-XXXXXXXX and locked by the process that it belongs to; the system releases the
locks of those that die.  Where a file system has no locks, a day without a change takes their place.
"""

import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from aotc.ir import refusals

try:
    import fcntl
except ImportError:
    # a platform without them
    fcntl = None  # type: ignore[assignment]

_PREFIX: Final = ".aotc-"
_NAME: Final = re.compile(r"\.aotc-[a-z0-9_]{8}")
_LOCK: Final = "lock"
#: A folder with a file of this name is not discarded: what it tells of is done or undone before.
PLAN: Final = "plan.json"
#: The age at which a scratch belongs to no running process, where locks do not tell.
_ABANDONED_SECONDS: Final = 86400


def is_scratch(path: Path) -> bool:
    """Whether a name is one that this module gives."""
    return _NAME.fullmatch(path.name) is not None


def _lock(path: Path, flags: int, *, mode: int = 0o600, wait: bool = False, trusted: bool = True) -> int | None:
    """A descriptor that holds the lock of a path; None where another process has it, or has removed the path since.

    trusted    without locks, that none is needed; else the age decides
    """
    descriptor = os.open(path, flags, mode)
    try:
        if fcntl is None:
            raise OSError
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        mine = True
    except BlockingIOError:
        mine = False
    except OSError:
        # none here
        mine = trusted or time.time() - os.fstat(descriptor).st_mtime > _ABANDONED_SECONDS
    with suppress(FileNotFoundError):
        if mine and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    os.close(descriptor)
    return None


@contextmanager
def exclusively(folder: Path) -> Iterator[None]:
    """One process at a time for a directory; others wait.  OSError where it cannot be read."""
    descriptor = None
    while descriptor is None:
        descriptor = _lock(folder, os.O_RDONLY, wait=True)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def scratch_folder(home: Path) -> Iterator[Path]:
    """A new folder in `home`, which goes with the block; OSError where there can be none."""
    lock = None
    # until no other process takes it, still without a lock, for abandoned
    while lock is None:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
        try:
            lock = _lock(folder / _LOCK, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            continue
        except OSError:
            folder.rmdir()
            raise
    try:
        yield folder
    finally:
        discard(folder)
        os.close(lock)


def discard(path: Path) -> None:
    """Remove a scratch.  What cannot be removed stays one: the lock goes last."""
    with suppress(OSError):
        if path.is_file():
            path.unlink()
        if not path.is_dir() or (path / PLAN).exists():
            return
        for inner in path.iterdir():
            if inner.is_dir() and not inner.is_symlink():
                shutil.rmtree(inner, ignore_errors=True)
            elif inner.name != _LOCK:
                inner.unlink()
        if [inner.name for inner in path.iterdir()] == [_LOCK]:
            (path / _LOCK).unlink()
            path.rmdir()


def scratches(home: Path) -> list[Path]:
    """What is unfinished in a directory, abandoned or not."""
    try:
        return sorted(filter(is_scratch, home.iterdir()))
    except OSError:
        return []


def abandoned(home: Path) -> Iterator[Path]:
    """What dead processes of this user left in a directory, each locked while the caller looks at it."""
    for path in scratches(home):
        with suppress(OSError):
            # gone since, or another user's
            state = path.lstat()
            if state.st_uid != os.geteuid():
                continue
            if stat.S_ISDIR(state.st_mode):
                with suppress(OSError):
                    # empty: without a lock yet, or no more
                    path.rmdir()
            lock = _lock(path / _LOCK if stat.S_ISDIR(state.st_mode) else path, os.O_RDWR, trusted=False)
            if lock is None:
                continue
            try:
                yield path
            finally:
                os.close(lock)


@contextmanager
def written(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write, which takes its place when the block succeeds; devices and pipes are written as they are.

    mode    the rights of a new file, but for those that the process does not give

    OSError where that is not possible; a file that was there before is then as it was.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    for left in abandoned(target.parent):
        if left.is_file():
            discard(left)
    descriptor = None
    while descriptor is None:
        unfinished = target.with_name(_PREFIX + secrets.token_hex(4))
        descriptor = _lock(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if target.exists():
                unfinished.chmod(stat.S_IMODE(target.stat().st_mode))
            unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def output_file(path: Path, code: str) -> Iterator[IO[bytes]]:
    """As `written`, with an AotcError of a code where that is not possible."""
    with refusals(code, f"write {path}"), written(path) as file:
        yield file
