# SPDX-License-Identifier: Apache-2.0
"""Manifest of the files that aotc wrote to a folder: their paths and SHA-256 checksums.

MANIFEST = {"generator": "aotc", "format": 1, "files": {"src/net.c": "9f86d081...", ...}}

known = read_manifest(folder / MANIFEST, "output")   # {"src/net.c": {"9f86d081..."}}, {} where there is none
look(folder, "src/net.c").checksum in known["src/net.c"]
write_recorded(folder, DUMPS, "000_FuseOps.relay", data)

A manifest is untrusted, because the folder may come from anyone.  It names regular files by
relative path; they are replaced or removed only if their checksum matches, and symbolic links and
mount points are never followed.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from aotc.ir.atomic_write import written
from aotc.ir.diagnostics import AotcError
from aotc.ir.regular_files import read_table, refusals

#: File names of a project's manifest, and of the manifest while its files are being replaced.
MANIFEST: Final = "aotc-manifest.json"
PENDING: Final = "aotc-manifest.pending.json"
_FORMAT: Final = 1
#: Recorded checksums by path: an unchanged file has one of them.
Known: TypeAlias = Mapping[str, Collection[str]]
_MAX_MANIFEST_BYTES: Final = 1 << 24
_MAX_PATH_CHARACTERS: Final = 1000
_PIECE_BYTES: Final = 1 << 20
_CHECKSUM: Final = re.compile(r"[0-9a-f]{64}")
#: Relative paths of printable ASCII, without the separators of Windows: backslash and colon.
_PATH: Final = re.compile(r"[!-.0-9;-\[\]-~ ]+(/[!-.0-9;-\[\]-~ ]+)*")
_MOUNTS: Final = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class Found:
    """State of the file system at a relative path of a folder.

    at          the path of an obstacle, or of the file itself
    problem     why no regular file can be written there, such as a link or directory in its place; or ""
    checksum    SHA-256 of a regular file in hexadecimal; "" if there is none
    exists      True if the path, or the obstacle, exists
    removable   False if the obstacle is a directory or a mount point
    """

    at: str
    problem: str = ""
    checksum: str = ""
    exists: bool = False
    removable: bool = True


def manifest_text(files: Mapping[str, str], former: Mapping[str, str] | None = None) -> str:
    """Return a manifest as JSON text: checksums by path; `former` holds checksums of files not yet
    replaced.
    """
    table: dict[str, object] = {"generator": "aotc", "format": _FORMAT, "files": dict(sorted(files.items()))}
    if former is not None:
        table["former"] = dict(sorted(former.items()))
    return json.dumps(table, indent=1) + "\n"


def read_manifest(path: Path, code: str, hint: str = "") -> dict[str, set[str]]:
    """Read a manifest; return the set of recorded checksums by path, {} if there is no file.

    Raises AotcError with a code and a hint for a file that is not a valid manifest: links and
    special files, damaged or large files, absolute paths, paths with `..`.
    """
    problem = ""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise AotcError(code, f"cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        problem = "is not a regular file"
    elif found.st_size > _MAX_MANIFEST_BYTES:
        problem = f"is larger than {_MAX_MANIFEST_BYTES >> 20} MiB"
    if problem:
        raise AotcError(code, f"{path} {problem}", hint=hint)
    table = read_table(path, code, hint)
    known: dict[str, set[str]] = {}
    is_ours = table.get("generator") == "aotc" and table.get("format") == _FORMAT
    if not is_ours or not {"files"} <= table.keys() <= {"generator", "format", "files", "former"}:
        raise AotcError(code, f"{path} is not a manifest written by aotc", hint=hint)
    for part in (table["files"], table.get("former", {})):
        if not isinstance(part, dict) or not all(map(_is_entry, part.items())):
            raise AotcError(code, f"{path} is damaged: it has entries that aotc never writes", hint=hint)
        for name, checksum in part.items():
            known.setdefault(name, set()).add(checksum)
    return known


def _is_entry(entry: tuple[str, object]) -> bool:
    """Return True if a manifest entry has a valid relative path without `.` and `..`, and a valid
    checksum.
    """
    path, checksum = entry
    if not isinstance(checksum, str) or not _CHECKSUM.fullmatch(checksum):
        return False
    if len(path) > _MAX_PATH_CHARACTERS or not _PATH.fullmatch(path):
        return False
    return not {".", ".."} & {*path.split("/")}


def look(folder: Path, path: str, mounts: Collection[str] = (), read: bool = True) -> Found:
    """Return the state of a relative path; links and mount points are not followed, only regular
    files are opened.

    mounts    mount points, as `mount_points` returns them
    read      compute the checksum

    Raises OSError if the file cannot be read.
    """
    *parents, _ = (str(p) for p in [*reversed(PurePosixPath(path).parents), PurePosixPath(path)][1:])
    for parent in parents:
        try:
            mode = (folder / parent).lstat().st_mode
        except FileNotFoundError:
            return Found(path)
        if stat.S_ISLNK(mode):
            return Found(parent, "a link, which is not followed", exists=True)
        if not stat.S_ISDIR(mode):
            return Found(parent, "a file where a directory is needed", exists=True)
        if parent in mounts:
            return Found(parent, "a mount, which is not entered", exists=True, removable=False)
    try:
        mode = (folder / path).lstat().st_mode
    except FileNotFoundError:
        return Found(path)
    if path in mounts:
        return Found(path, "a mount", exists=True, removable=False)
    if stat.S_ISDIR(mode):
        return Found(path, "a directory where a file is needed", exists=True, removable=False)
    if not stat.S_ISREG(mode):
        return Found(path, "a link" if stat.S_ISLNK(mode) else "a special file", exists=True)
    return Found(path, checksum=file_checksum(folder / path) if read else "", exists=True)


def mount_points(folder: Path) -> set[str]:
    """Return the relative paths of mount points below a folder (on Linux; empty elsewhere)."""
    home = os.path.realpath(folder)
    try:
        rows = _MOUNTS.read_bytes().decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return set()
    points = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), row.split(" ")[4]) for row in rows)
    return {os.path.relpath(point, home) for point in points if point.startswith(f"{home.rstrip('/')}/")}


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a regular file in hexadecimal; OSError if it cannot be read or is a
    symbolic link.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    found = hashlib.sha256()
    with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            found.update(piece)
    return found.hexdigest()


def write_recorded(folder: Path, manifest: str, name: str, data: bytes, code: str) -> None:
    """Write a file into the user's folder and record it in a manifest there.

    Raises AotcError with a code if a file exists that the manifest does not record or that was
    changed since.
    """
    with refusals(code, f"write {folder / name}"):
        known = _known(folder, manifest, code)
        found = look(folder, name)
        checksum = hashlib.sha256(data).hexdigest()
        if found.exists and found.checksum not in {*known.get(name, ()), checksum}:
            text = f"cannot write {folder / name}: aotc did not write what is there, or it was changed since"
            raise AotcError(code, text, hint="move it away, or name another directory")
        # record both checksums until the file is replaced: the process may be killed in between
        record = {path: _actual(folder, path, checksums) for path, checksums in known.items()}
        _write(folder / manifest, manifest_text(record | {name: checksum}, {name: found.checksum or checksum}))
        _write(folder / name, data)
        _write(folder / manifest, manifest_text(record | {name: checksum}))


def remove_recorded(folder: Path, manifest: str, code: str) -> None:
    """Remove a manifest and the files that it records, except files that were changed since.

    Raises AotcError with a code if the manifest is damaged.
    """
    with refusals(code, f"write to {folder}"):
        for name, checksums in _known(folder, manifest, code).items():
            if look(folder, name).checksum in checksums:
                (folder / name).unlink()
        (folder / manifest).unlink(missing_ok=True)


def _actual(folder: Path, path: str, checksums: Collection[str]) -> str:
    """Return which of the recorded checksums of a path its file has; the smallest if it has none of
    them.
    """
    first = min(checksums)
    return first if len(checksums) == 1 else next(iter({look(folder, path).checksum} & {*checksums}), first)


def _known(folder: Path, manifest: str, code: str) -> dict[str, set[str]]:
    return read_manifest(folder / manifest, code, "move it away, or name another directory")


def _write(path: Path, content: str | bytes) -> None:
    with written(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def checksums(folder: Path, files: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 checksums of files in a folder, by path."""
    return {path: file_checksum(folder / path) for path in files}
