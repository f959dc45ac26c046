# SPDX-License-Identifier: Apache-2.0
"""On-disk cache of compiled objects, addressed by a hash of everything that they are made from.

cache = user_object_cache()                          # ~/.cache/aotc, $XDG_CACHE_HOME/aotc or $AOTC_CACHE_DIR
key = sha256_of_parts(preprocessed_source, flags, compiler)
if (data := cache.get(key)) is None:
    data = ...                                       # make net.o
    cache.put(key, data)
cache.trim_cache_if_enough_was_added()

An entry is a file with a SHA-256 of key and object, followed by the object.  Entries are created by
renaming, so that other processes see a complete entry or none; an entry with a wrong checksum is
deleted with a warning.  `trim_cache_to_size_limit` removes the least recently used entries, and
`trim_cache_if_enough_was_added` does so when this process has added enough of them to make it worthwhile.
Folders that other users may write to are not used, because objects are linked into programs that
the user runs.  Errors of the cache cost time but never change a result; each kind is logged once as
a warning.
"""

import hashlib
import logging
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import aotc_codegen
import numpy as np

from aotc.driver.temporary_folders import is_abandoned_temporary_file, open_for_atomic_write
from aotc.ir import AotcError

LOG = logging.getLogger("aotc")
DEFAULT_CACHE_MEGABYTES: Final = 1000
#: Fraction of the size limit that trimming leaves, so that not every compilation trims.
TRIMMED_FRACTION_OF_LIMIT: Final = 0.8
_CHECKSUM_BYTES: Final = hashlib.sha256().digest_size
_ENTRY_SUFFIX: Final = ".entry"
#: Patterns of names of subfolders and entries; other files in the folder are never touched.
_SUBFOLDER_NAME_PATTERN: Final = re.compile(r"[0-9a-f]{2}")
_ENTRY_NAME_PATTERN: Final = re.compile(rf"[0-9a-f]{{64}}{re.escape(_ENTRY_SUFFIX)}")
#: Fraction of the free space that a process may fill before it trims a cache again.
_FREE_FRACTION_BEFORE_NEXT_TRIM: Final = 1 / 8
#: Version of the format of entries; entries of another version are never found.
_ENTRY_FORMAT_VERSION: Final = "2"


def sha256_of_parts(*parts: bytes | str) -> str:
    """Return the SHA-256, in hexadecimal, of a sequence of strings, each hashed together with its
    length.
    """
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        hasher.update(f"{len(data)}:".encode())
        hasher.update(data)
    return hasher.hexdigest()


def _is_writable_by_user_only(file_state: os.stat_result) -> bool:
    """Return True if a file or folder belongs to the current user and nobody else can write to it."""
    # Windows: access rights are not in the file mode
    if not hasattr(os, "geteuid"):
        return True
    return file_state.st_uid == os.geteuid() and not file_state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def why_folder_is_untrusted(folder: Path) -> str:
    """Return the reason why another user could have written to a folder of the cache; "" if nobody
    could.

    The folder, after resolving links, must belong to the user and be writable by nobody else.  A
    folder above it that everybody may write to must have the sticky bit, as /tmp has.
    """
    real = folder.resolve()
    folder_stat = real.stat()
    if not _is_writable_by_user_only(folder_stat) and folder_stat.st_uid != os.geteuid():
        return f"{real} belongs to another user"
    if not _is_writable_by_user_only(folder_stat):
        return f"other users may write to {real} (chmod -R go-w {shlex.quote(str(real))} mends it, or removing it)"
    for above in dict.fromkeys((*real.parents, *folder.absolute().parents)):
        mode = above.stat().st_mode if hasattr(os, "geteuid") else 0
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"everybody may write to {above}, where it is"
    return ""


#: Cache folders for which a warning that they are not used was logged.
_REFUSED_CACHE_FOLDERS: Final[set[Path]] = set()


#: Bytes that this process may still add before it trims, by cache folder and size limit; a cache that
#: it never trimmed has none.
_BYTES_BEFORE_NEXT_TRIM: Final[dict[tuple[Path, int], int]] = {}


class _CachedFile(NamedTuple):
    """A regular file in a subfolder for entries."""

    subfolder: os.DirEntry[str]
    name: str
    size_bytes: int
    modification_time_seconds: float

    @property
    def path(self) -> Path:
        """The path of the file."""
        return Path(self.subfolder.path, self.name)

    @property
    def is_entry(self) -> bool:
        """True if the file is named like an entry and lies in the subfolder of its name."""
        return self.name[:2] == self.subfolder.name and _ENTRY_NAME_PATTERN.fullmatch(self.name) is not None


@dataclass
class ObjectCache:
    """Cached objects in a folder, which is ignored if other users may write to it or to its parent.

    limit    largest total size in bytes after `trim_cache_to_size_limit`
    hits     number of calls of `get` that found an entry
    misses   number of calls of `get` that did not
    """

    folder: Path
    limit: int
    hits: int = 0
    misses: int = 0
    _warned: bool = field(default=False, repr=False)
    _trusted: dict[Path, bool] = field(default_factory=dict, repr=False)

    def _cache_entry_path(self, key: str) -> Path:
        name = sha256_of_parts(_ENTRY_FORMAT_VERSION, key)
        return self.folder / name[:2] / f"{name}{_ENTRY_SUFFIX}"

    def _are_cache_folders_trusted(self, *inside: Path) -> bool:
        """Return True if no other user can write to the existing folders of the cache; log one
        warning otherwise.
        """
        for folder in (self.folder.parent, self.folder, *inside):
            if folder not in self._trusted and folder.exists():
                reason = why_folder_is_untrusted(folder)
                self._trusted[folder] = not reason
                if reason and self.folder not in _REFUSED_CACHE_FOLDERS:
                    LOG.warning("the cache in %s is not used: %s", self.folder, reason)
                    _REFUSED_CACHE_FOLDERS.add(self.folder)
            if not self._trusted.get(folder, True):
                return False
        return True

    @contextmanager
    def _suppress_os_errors_and_log_first(self, action: str) -> Iterator[None]:
        """Context manager: log the first OSError of the block as a warning and suppress it;
        `action` names the action.
        """
        try:
            yield
        except OSError as error:
            if not self._warned:
                LOG.warning("cannot %s the cache in %s: %s", action, self.folder, error.strerror)
            self._warned = True

    def get(self, key: str) -> bytes | None:
        """Return the object stored under a key; None if there is none.  A hit updates the time of
        last use.
        """
        path = self._cache_entry_path(key)
        with self._suppress_os_errors_and_log_first("read"), suppress(FileNotFoundError):
            if (
                self._are_cache_folders_trusted(path.parent)
                and (data := self._read_entry_or_delete_corrupt_one(path, key)) is not None
            ):
                self.hits += 1
                # the entry was removed by another process or belongs to another user
                with suppress(OSError):
                    # the modification time records the last use
                    os.utime(path)
                return data
        self.misses += 1
        return None

    def _read_entry_or_delete_corrupt_one(self, path: Path, key: str) -> bytes | None:
        """Read a compiled object from its cache file; if the checksum is wrong, delete the file and
        return None.
        """
        data = path.read_bytes()
        if _entry_checksum(key, data[_CHECKSUM_BYTES:]) == data[:_CHECKSUM_BYTES] and _is_writable_by_user_only(
            path.stat()
        ):
            return data[_CHECKSUM_BYTES:]
        LOG.warning("the cache entry %s is corrupt: it is thrown away and made again", path)
        path.unlink(missing_ok=True)
        return None

    def put(self, key: str, data: bytes) -> None:
        """Store the bytes of a compiled object in the cache under a key."""
        path = self._cache_entry_path(key)
        with self._suppress_os_errors_and_log_first("write to"):
            if not path.parent.is_dir():
                for folder in (self.folder.parent, self.folder, path.parent):
                    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._are_cache_folders_trusted(path.parent):
                with open_for_atomic_write(path, permissions=0o600) as file:
                    file.write(_entry_checksum(key, data) + data)
                if (self.folder, self.limit) in _BYTES_BEFORE_NEXT_TRIM:
                    _BYTES_BEFORE_NEXT_TRIM[self.folder, self.limit] -= _CHECKSUM_BYTES + len(data)

    def _files_in_entry_subfolders(self) -> Iterator[_CachedFile]:
        """Yield the regular files in the subfolders for entries; unreadable folders, symbolic links
        and files that are removed meanwhile are skipped.

        A cache may have tens of thousands of entries, therefore `os.scandir` is used: it needs one
        system call for each file, and no `Path`.
        """
        with suppress(OSError):
            for folder in _scan_folder(self.folder):
                if _SUBFOLDER_NAME_PATTERN.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                    with suppress(OSError):
                        for file in _scan_folder(folder.path):
                            with suppress(OSError):
                                state = file.stat(follow_symlinks=False)
                                if stat.S_ISREG(state.st_mode):
                                    yield _CachedFile(folder, file.name, state.st_size, state.st_mtime)

    def cache_entry_count_and_total_bytes(self) -> tuple[int, int]:
        """Return the number of entries in the cache and their total size in bytes."""
        sizes = [file.size_bytes for file in self._files_in_entry_subfolders() if file.is_entry]
        return len(sizes), sum(sizes)

    def trim_cache_if_enough_was_added(self) -> None:
        """Trim the cache if this process never did, or if it has since added an eighth of the space
        that was free then; otherwise do nothing, because listing all entries takes time.
        """
        if _BYTES_BEFORE_NEXT_TRIM.get((self.folder, self.limit), 0) <= 0:
            self.trim_cache_to_size_limit()

    def trim_cache_to_size_limit(self) -> None:
        """Remove the least recently used entries beyond the limit, and temporary files left by
        killed processes.
        """
        # an unreadable folder holds no entries
        with suppress(OSError):
            if self._are_cache_folders_trusted():
                files = list(self._files_in_entry_subfolders())
                abandoned = (f.path for f in files if is_abandoned_temporary_file(f.name, f.modification_time_seconds))
                _remove_files_or_warn(abandoned)
                self._remove_oldest_entries_over_size_limit([f for f in files if f.is_entry])

    def _remove_oldest_entries_over_size_limit(self, entries: Sequence[_CachedFile]) -> None:
        """If entries exceed the limit, remove the least recently used ones until their total size is
        `TRIMMED_FRACTION_OF_LIMIT` of it.
        """
        total_bytes = sum(entry.size_bytes for entry in entries)
        allowed_bytes = self.limit if total_bytes <= self.limit else int(TRIMMED_FRACTION_OF_LIMIT * self.limit)
        for entry in sorted(entries, key=lambda e: e.modification_time_seconds):
            if total_bytes <= allowed_bytes:
                break
            _remove_files_or_warn([entry.path])
            total_bytes -= entry.size_bytes
        free_bytes = self.limit - total_bytes
        _BYTES_BEFORE_NEXT_TRIM[self.folder, self.limit] = int(_FREE_FRACTION_BEFORE_NEXT_TRIM * free_bytes)

    def remove_all_cache_entries(self) -> tuple[int, int]:
        """Remove all entries of the cache; return their number and total size in bytes."""
        count_and_bytes = self.cache_entry_count_and_total_bytes()
        _remove_files_or_warn(file.path for file in self._files_in_entry_subfolders() if file.is_entry)
        return count_and_bytes


def _entry_checksum(key: str, data: bytes) -> bytes:
    return hashlib.sha256(key.encode() + data).digest()


def _scan_folder(folder: Path | str) -> list[os.DirEntry[str]]:
    """Return the contents of a folder; OSError if it cannot be read."""
    with os.scandir(folder) as contents:
        return list(contents)


def _remove_files_or_warn(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("cannot remove %s: %s", path, error.strerror)


@lru_cache
def digest_of_aotc_python_code() -> str:
    """Return a hash of the compiler's own Python code and of the versions of Python and numpy that
    run it.
    """
    folders = (Path(__file__).parents[1], Path(aotc_codegen.__file__).parent)
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return sha256_of_parts(sys.version, np.__version__, *(part for f in files for part in (str(f), f.read_bytes())))


def cache_folder() -> Path | None:
    """Return $AOTC_CACHE_DIR, $XDG_CACHE_HOME/aotc or ~/.cache/aotc; None if there is no home
    directory.
    """
    if given := os.environ.get("AOTC_CACHE_DIR"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "aotc"
    try:
        return Path.home() / ".cache" / "aotc"
    except RuntimeError:
        return None


def cache_limit_bytes() -> int:
    """Return the size limit of the cache in bytes, from $AOTC_CACHE_MB (megabytes) or the default.

    Raise AotcError (code "cache") if $AOTC_CACHE_MB is not a number.
    """
    text = os.environ.get("AOTC_CACHE_MB") or str(DEFAULT_CACHE_MEGABYTES)
    if not text.isdecimal():
        raise AotcError("cache", f"AOTC_CACHE_MB must be a number of megabytes, not {text!r}")
    return int(text) * 1_000_000


def user_object_cache() -> ObjectCache | None:
    """Return the user's object cache; None if there is no folder for it."""
    folder = cache_folder()
    return ObjectCache(folder / "objects", cache_limit_bytes()) if folder is not None else None
