# SPDX-License-Identifier: Apache-2.0
"""Compiled objects kept on disk under a hash of all that they are made from.

cache = default_cache()                              # ~/.cache/aotc, $XDG_CACHE_HOME/aotc or $AOTC_CACHE_DIR
key = digest(preprocessed_source, flags, compiler)
if (data := cache.get(key)) is None:
    data = ...                                       # make net.o
    cache.put(key, data)
cache.trim()

An entry is a file: a SHA-256 of the object, then the object.  Entries appear by renaming, so other processes see a
whole one or none; one that does not fit its checksum is thrown away with a warning.  `trim` removes the entries that
were used longest ago.  What goes wrong with the cache costs time, never a result: it is told as a warning once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import aotc_codegen
import numpy as np

from aotc.ir.diagnostics import AotcError

LOG = logging.getLogger("aotc")
DEFAULT_MEGABYTES: Final = 1000
TRIMMED: Final = 0.8
"""The part of the limit that is left after trimming, so that not every compile has to."""
_CHECK: Final = hashlib.sha256().digest_size
_SUFFIX, _UNFINISHED = ".entry", ".tmp"
_ABANDONED_SECONDS: Final = 3600
"""The age at which an unfinished entry belongs to no running process."""


def digest(*parts: bytes | str) -> str:
    """A key: the parts in order, each with its length."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        found.update(f"{len(data)}:".encode())
        found.update(data)
    return found.hexdigest()


@dataclass
class ObjectCache:
    """The entries in a folder.

    limit    bytes that `trim` leaves at most
    hits, misses    of `get`
    """

    folder: Path
    limit: int
    hits: int = 0
    misses: int = 0
    _warned: bool = field(default=False, repr=False)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{_SUFFIX}"

    def _warn(self, text: str) -> None:
        if not self._warned:
            LOG.warning(text)
        self._warned = True

    def get(self, key: str) -> bytes | None:
        """The object of a key; None where there is none."""
        data = self._read(self._path(key))
        if data is None:
            self.misses += 1
            return None
        self.hits += 1
        with suppress(OSError):  # another process removed it, or it belongs to another user
            os.utime(self._path(key))  # its modification time is that of its last use
        return data

    def _read(self, path: Path) -> bytes | None:
        """The object in an entry; None for an entry that does not exist, cannot be read or is corrupt."""
        try:
            data = path.read_bytes()
            if hashlib.sha256(data[_CHECK:]).digest() == data[:_CHECK]:
                return data[_CHECK:]
            LOG.warning("the cache entry %s is corrupt: it is thrown away and made again", path)
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._warn(f"cannot read the cache in {self.folder}: {error.strerror}")
        return None

    def put(self, key: str, data: bytes) -> None:
        """Keep bytes as the object of a key."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=path.parent, suffix=_UNFINISHED, delete=False) as file:
                unfinished = Path(file.name)
                try:
                    file.write(hashlib.sha256(data).digest() + data)
                    file.flush()
                    unfinished.replace(path)
                except BaseException:
                    unfinished.unlink(missing_ok=True)
                    raise
        except OSError as error:
            self._warn(f"cannot write to the cache in {self.folder}: {error.strerror}")

    def _files(self, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
        """The files of our own making, whatever else may lie there."""
        try:
            found = list(self.folder.glob(f"??/*{suffix}"))
        except OSError:  # a folder that may not be looked into holds nothing for us
            found = []
        for path in found:
            try:
                yield path, path.stat()
            except OSError:
                continue  # gone since

    def usage(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = [stat.st_size for _, stat in self._files(_SUFFIX)]
        return len(sizes), sum(sizes)

    def trim(self) -> None:
        """Remove the entries that were used longest ago where they are more than the limit, and abandoned files."""
        now = time.time()
        _remove(path for path, stat in self._files(_UNFINISHED) if now - stat.st_mtime > _ABANDONED_SECONDS)
        entries = sorted(self._files(_SUFFIX), key=lambda e: e[1].st_mtime)
        excess = sum(stat.st_size for _, stat in entries) - self.limit
        if excess <= 0:
            return
        excess += int((1 - TRIMMED) * self.limit)
        old = []
        for path, stat in entries:
            if excess <= 0:
                break
            old.append(path)
            excess -= stat.st_size
        _remove(old)

    def clear(self) -> tuple[int, int]:
        """Remove all entries; how many there were, and their bytes."""
        found = self.usage()
        _remove(path for suffix in (_SUFFIX, _UNFINISHED) for path, _ in list(self._files(suffix)))
        return found


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
        raise AotcError("cache", f"AOTC_CACHE_MB is {text!r}, not a number of megabytes")
    return int(text) * 1_000_000


def default_cache() -> ObjectCache | None:
    """The user's cache; None where there is no place for one."""
    folder = cache_folder()
    return ObjectCache(folder / "objects", cache_limit()) if folder is not None else None
