# SPDX-License-Identifier: Apache-2.0
"""Compiled objects kept on disk under a hash of all that they are made from.

cache = default_cache()                              # ~/.cache/aotc, $XDG_CACHE_HOME/aotc or $AOTC_CACHE_DIR
key = digest(preprocessed_source, flags, compiler)
if (data := cache.get(key)) is None:
    data = ...                                       # make net.o
    cache.put(key, data)
cache.trim()

An entry is a file: a SHA-256 of its key and the object, then the object.  Entries appear by renaming, so other
processes see a whole one or none; one that does not fit its checksum is thrown away with a warning.  `trim` removes the
entries that were used longest ago.  Objects are linked into what the user runs, so folders that others may write to are
not used.  What goes wrong with the cache costs time, never a result: it is told as a warning once.
"""

import hashlib
import logging
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import aotc_codegen
import numpy as np

from aotc.driver.temporary_folders import abandoned_files, written
from aotc.ir import AotcError

LOG = logging.getLogger("aotc")
DEFAULT_MEGABYTES: Final = 1000
#: The part of the limit that is left after trimming, so that not every compile has to.
TRIMMED: Final = 0.8
_CHECK: Final = hashlib.sha256().digest_size
_SUFFIX: Final = ".entry"
#: Names of folders and entries; other files in the folder of the cache are left alone.
_FOLDER: Final = re.compile(r"[0-9a-f]{2}")
_ENTRY: Final = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}")
#: The layout of entries; those of another layout are never found.
_LAYOUT: Final = "2"


def digest(*parts: bytes | str) -> str:
    """A key: the parts in order, each with its length."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        found.update(f"{len(data)}:".encode())
        found.update(data)
    return found.hexdigest()


def _is_ours(found: os.stat_result) -> bool:
    """Whether a file or folder belongs to the user and is writable by nobody else."""
    # Windows keeps the rights of a user's folders elsewhere
    if not hasattr(os, "geteuid"):
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def distrust(folder: Path) -> str:
    """Why somebody else could have put something into a folder of the user's; "" where nobody can.

    It must belong to the user and be writable by nobody else, where a link leads, too.  Nor may everybody be able to
    put another in its place: a folder above it that all may write to must be sticky, as /tmp is.
    """
    real = folder.resolve()
    found = real.stat()
    if not _is_ours(found) and found.st_uid != os.geteuid():
        return f"{real} belongs to another user"
    if not _is_ours(found):
        return f"other users may write to {real} (chmod -R go-w {shlex.quote(str(real))} mends it, or removing it)"
    for above in dict.fromkeys((*real.parents, *folder.absolute().parents)):
        mode = above.stat().st_mode if hasattr(os, "geteuid") else 0
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"everybody may write to {above}, where it is"
    return ""


#: Folders whose user has been told that they are not used.
_REFUSED: Final[set[Path]] = set()


@dataclass
class ObjectCache:
    """The entries in a folder, which is not used where others may write to it or to the one that it is in.

    limit    bytes that `trim` leaves at most
    hits, misses    of `get`
    """

    folder: Path
    limit: int
    hits: int = 0
    misses: int = 0
    _warned: bool = field(default=False, repr=False)
    _trusted: dict[Path, bool] = field(default_factory=dict, repr=False)

    def _path(self, key: str) -> Path:
        name = digest(_LAYOUT, key)
        return self.folder / name[:2] / f"{name}{_SUFFIX}"

    def _trusts(self, *inside: Path) -> bool:
        """Whether nobody else writes to the folders that exist; told once where somebody may."""
        for folder in (self.folder.parent, self.folder, *inside):
            if folder not in self._trusted and folder.exists():
                reason = distrust(folder)
                self._trusted[folder] = not reason
                if reason and self.folder not in _REFUSED:
                    LOG.warning("the cache in %s is not used: %s", self.folder, reason)
                    _REFUSED.add(self.folder)
            if not self._trusted.get(folder, True):
                return False
        return True

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """What the system refuses in the block costs time alone; it is told once."""
        try:
            yield
        except OSError as error:
            if not self._warned:
                LOG.warning("cannot %s the cache in %s: %s", what, self.folder, error.strerror)
            self._warned = True

    def get(self, key: str) -> bytes | None:
        """The object of a key; None where there is none."""
        path = self._path(key)
        with self._telling("read"), suppress(FileNotFoundError):
            if self._trusts(path.parent) and (data := self._read(path, key)) is not None:
                self.hits += 1
                # another process removed it, or it belongs to another user
                with suppress(OSError):
                    # its modification time is that of its last use
                    os.utime(path)
                return data
        self.misses += 1
        return None

    def _read(self, path: Path, key: str) -> bytes | None:
        """The object in an entry, which is thrown away if it is corrupt."""
        data = path.read_bytes()
        if _checksum(key, data[_CHECK:]) == data[:_CHECK] and _is_ours(path.stat()):
            return data[_CHECK:]
        LOG.warning("the cache entry %s is corrupt: it is thrown away and made again", path)
        path.unlink(missing_ok=True)
        return None

    def put(self, key: str, data: bytes) -> None:
        """Keep bytes as the object of a key."""
        path = self._path(key)
        with self._telling("write to"):
            for folder in (self.folder.parent, self.folder, path.parent):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._trusts(path.parent):
                with written(path, mode=0o600) as file:
                    file.write(_checksum(key, data) + data)

    def _entries(self) -> list[tuple[Path, os.stat_result]]:
        """The files of our own making, whatever else may lie there."""
        found = []
        for folder in self._folders():
            for path in folder.iterdir():
                if _ENTRY.fullmatch(path.name) and path.name[:2] == folder.name:
                    with suppress(OSError):
                        # gone since
                        state = path.lstat()
                        found += [(path, state)] if stat.S_ISREG(state.st_mode) else []
        return found

    def _folders(self) -> Iterator[Path]:
        """The folders of entries; a folder that may not be looked into holds nothing for us, links lead elsewhere."""
        with suppress(OSError):
            for folder in self.folder.iterdir():
                if _FOLDER.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
                    yield folder

    def usage(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = [found.st_size for _, found in self._entries()]
        return len(sizes), sum(sizes)

    def trim(self) -> None:
        """Remove what was used longest ago beyond the limit, and abandoned files."""
        # a folder that may not be looked into holds nothing for us
        with suppress(OSError):
            if self._trusts():
                for folder in self._folders():
                    _remove(abandoned_files(folder))
                _remove(self._excess())

    def _excess(self) -> Iterator[Path]:
        """What was used longest ago beyond the limit, and as much more as leaves room."""
        entries = sorted(self._entries(), key=lambda e: e[1].st_mtime)
        excess = sum(found.st_size for _, found in entries) - self.limit
        excess += int((1 - TRIMMED) * self.limit) if excess > 0 else 0
        for path, found in entries:
            if excess <= 0:
                break
            yield path
            excess -= found.st_size

    def clear(self) -> tuple[int, int]:
        """Remove all entries; how many there were, and their bytes."""
        found = self.usage()
        _remove(path for path, _ in self._entries())
        return found


def _checksum(key: str, data: bytes) -> bytes:
    return hashlib.sha256(key.encode() + data).digest()


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("cannot remove %s: %s", path, error.strerror)


@lru_cache
def code_digest() -> str:
    """What tells one compiler of ours from another: its own code, and what runs it."""
    folders = (Path(__file__).parents[1], Path(aotc_codegen.__file__).parent)
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return digest(sys.version, np.__version__, *(part for f in files for part in (str(f), f.read_bytes())))


def cache_folder() -> Path | None:
    """$AOTC_CACHE_DIR, $XDG_CACHE_HOME/aotc or ~/.cache/aotc; None where there is no home."""
    if given := os.environ.get("AOTC_CACHE_DIR"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "aotc"
    try:
        return Path.home() / ".cache" / "aotc"
    except RuntimeError:
        return None


def cache_limit() -> int:
    """Bytes: $AOTC_CACHE_MB megabytes, or the default; AotcError (code "cache") for what is no number."""
    text = os.environ.get("AOTC_CACHE_MB") or str(DEFAULT_MEGABYTES)
    if not text.isdecimal():
        raise AotcError("cache", f"AOTC_CACHE_MB must be a number of megabytes, not {text!r}")
    return int(text) * 1_000_000


def default_cache() -> ObjectCache | None:
    """The user's cache; None where there is no place for one."""
    folder = cache_folder()
    return ObjectCache(folder / "objects", cache_limit()) if folder is not None else None
