# SPDX-License-Identifier: Apache-2.0
"""Manifest of the files that aotc wrote to a folder: their paths and SHA-256 checksums.

MANIFEST = {"generator": "aotc", "format": 1, "files": {"src/net.c": "9f86d081...", ...}}

known = read_manifest_checksums(folder / MANIFEST, "output")  # {"src/net.c": {"9f86d081..."}}, {} where there is none
inspect_path_in_folder(folder, "src/net.c").checksum in known["src/net.c"]
write_file_and_record_in_manifest(folder, DUMPS, "000_FuseOps.relay", data)

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

from aotc.ir.atomic_write import open_for_atomic_write
from aotc.ir.diagnostics import AotcError
from aotc.ir.regular_files import read_json_object, translate_os_errors

#: File names of a project's manifest, and of the manifest while its files are being replaced.
MANIFEST_FILE_NAME: Final = "aotc-manifest.json"
PENDING_MANIFEST_FILE_NAME: Final = "aotc-manifest.pending.json"
_MANIFEST_FORMAT_VERSION: Final = 1
#: Recorded checksums by path: an unchanged file has one of them.
RecordedChecksums: TypeAlias = Mapping[str, Collection[str]]
_MAX_MANIFEST_BYTES: Final = 1 << 24
_MAX_PATH_CHARACTERS: Final = 1000
_READ_CHUNK_BYTES: Final = 1 << 20
_SHA256_HEX_PATTERN: Final = re.compile(r"[0-9a-f]{64}")
#: Relative paths of printable ASCII, without the separators of Windows: backslash and colon.
_RELATIVE_PATH_PATTERN: Final = re.compile(r"[!-.0-9;-\[\]-~ ]+(/[!-.0-9;-\[\]-~ ]+)*")
_MOUNTINFO_PATH: Final = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class PathState:
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


def manifest_json_text(
    checksum_by_path: Mapping[str, str], former_checksum_by_path: Mapping[str, str] | None = None
) -> str:
    """Return a manifest as JSON text: checksums by path; `former_checksum_by_path` holds checksums
    of files not yet replaced.
    """
    table: dict[str, object] = {
        "generator": "aotc",
        "format": _MANIFEST_FORMAT_VERSION,
        "files": dict(sorted(checksum_by_path.items())),
    }
    if former_checksum_by_path is not None:
        table["former"] = dict(sorted(former_checksum_by_path.items()))
    return json.dumps(table, indent=1) + "\n"


def read_manifest_checksums(path: Path, error_code: str, hint: str = "") -> dict[str, set[str]]:
    """Read a manifest; return the set of recorded checksums by path, {} if there is no file.

    Raises AotcError with a code and a hint for a file that is not a valid manifest: links and
    special files, damaged or large files, absolute paths, paths with `..`.
    """
    problem = ""
    try:
        file_stat = path.lstat()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise AotcError(error_code, f"cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(file_stat.st_mode):
        problem = "is not a regular file"
    elif file_stat.st_size > _MAX_MANIFEST_BYTES:
        problem = f"is larger than {_MAX_MANIFEST_BYTES >> 20} MiB"
    if problem:
        raise AotcError(error_code, f"{path} {problem}", hint=hint)
    table = read_json_object(path, error_code, hint)
    known: dict[str, set[str]] = {}
    is_ours = table.get("generator") == "aotc" and table.get("format") == _MANIFEST_FORMAT_VERSION
    if not is_ours or not {"files"} <= table.keys() <= {"generator", "format", "files", "former"}:
        raise AotcError(error_code, f"{path} is not a manifest written by aotc", hint=hint)
    for part in (table["files"], table.get("former", {})):
        if not isinstance(part, dict) or not all(map(_is_valid_manifest_entry, part.items())):
            raise AotcError(
                error_code,
                f"{path}, the list of the files that aotc wrote, is damaged: it has entries that aotc never writes",
                hint=hint,
            )
        for name, checksum in part.items():
            known.setdefault(name, set()).add(checksum)
    return known


def _is_valid_manifest_entry(entry: tuple[str, object]) -> bool:
    """Return True if a manifest entry has a valid relative path without `.` and `..`, and a valid
    checksum.
    """
    path, checksum = entry
    if not isinstance(checksum, str) or not _SHA256_HEX_PATTERN.fullmatch(checksum):
        return False
    if len(path) > _MAX_PATH_CHARACTERS or not _RELATIVE_PATH_PATTERN.fullmatch(path):
        return False
    return not {".", ".."} & {*path.split("/")}


def inspect_path_in_folder(
    folder: Path, relative_path: str, mounted_paths: Collection[str] = (), compute_checksum: bool = True
) -> PathState:
    """Return the state of a relative path; links and mount points are not followed, only regular
    files are opened.

    mounted_paths       mount points, as `mount_points_below` returns them
    compute_checksum    compute the checksum

    Raises OSError if the file cannot be read.
    """
    *parents, _ = (str(p) for p in [*reversed(PurePosixPath(relative_path).parents), PurePosixPath(relative_path)][1:])
    for parent in parents:
        try:
            mode = (folder / parent).lstat().st_mode
        except FileNotFoundError:
            return PathState(relative_path)
        if stat.S_ISLNK(mode):
            return PathState(parent, "a link, which is not followed", exists=True)
        if not stat.S_ISDIR(mode):
            return PathState(parent, "a file where a directory is needed", exists=True)
        if parent in mounted_paths:
            return PathState(parent, "a mount, which is not entered", exists=True, removable=False)
    try:
        mode = (folder / relative_path).lstat().st_mode
    except FileNotFoundError:
        return PathState(relative_path)
    if relative_path in mounted_paths:
        return PathState(relative_path, "a mount", exists=True, removable=False)
    if stat.S_ISDIR(mode):
        return PathState(relative_path, "a directory where a file is needed", exists=True, removable=False)
    if not stat.S_ISREG(mode):
        return PathState(relative_path, "a link" if stat.S_ISLNK(mode) else "a special file", exists=True)
    return PathState(
        relative_path, checksum=file_checksum(folder / relative_path) if compute_checksum else "", exists=True
    )


def mount_points_below(folder: Path) -> set[str]:
    """Return the relative paths of mount points below a folder (on Linux; empty elsewhere)."""
    home = os.path.realpath(folder)
    try:
        rows = _MOUNTINFO_PATH.read_bytes().decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return set()
    points = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), row.split(" ")[4]) for row in rows)
    return {os.path.relpath(point, home) for point in points if point.startswith(f"{home.rstrip('/')}/")}


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a regular file in hexadecimal; OSError if it cannot be read or is a
    symbolic link.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    hasher = hashlib.sha256()
    with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
        while piece := file.read(_READ_CHUNK_BYTES):
            hasher.update(piece)
    return hasher.hexdigest()


def write_file_and_record_in_manifest(
    folder: Path, manifest_name: str, file_name: str, data: bytes, error_code: str
) -> None:
    """Write a file into the user's folder and record it in a manifest there.

    Raises AotcError with a code if a file exists that the manifest does not record or that was
    changed since.
    """
    with translate_os_errors(error_code, f"write {folder / file_name}"):
        known = _read_checksums_from_folder_manifest(folder, manifest_name, error_code)
        file_state = inspect_path_in_folder(folder, file_name)
        checksum = hashlib.sha256(data).hexdigest()
        if file_state.exists and file_state.checksum not in {*known.get(file_name, ()), checksum}:
            text = f"cannot write {folder / file_name}: aotc did not write what is there, or it was changed since"
            raise AotcError(error_code, text, hint="move it away, or name another directory")
        # record both checksums until the file is replaced: the process may be killed in between
        record = {
            path: _matching_or_smallest_recorded_checksum(folder, path, checksums) for path, checksums in known.items()
        }
        _write_atomically(
            folder / manifest_name,
            manifest_json_text(record | {file_name: checksum}, {file_name: file_state.checksum or checksum}),
        )
        _write_atomically(folder / file_name, data)
        _write_atomically(folder / manifest_name, manifest_json_text(record | {file_name: checksum}))


def remove_manifest_and_unchanged_files(folder: Path, manifest_name: str, error_code: str) -> None:
    """Remove a manifest and the files that it records, except files that were changed since.

    Raises AotcError with a code if the manifest is damaged.
    """
    with translate_os_errors(error_code, f"write to {folder}"):
        for name, checksums in _read_checksums_from_folder_manifest(folder, manifest_name, error_code).items():
            if inspect_path_in_folder(folder, name).checksum in checksums:
                (folder / name).unlink()
        (folder / manifest_name).unlink(missing_ok=True)


def _matching_or_smallest_recorded_checksum(folder: Path, path: str, recorded_checksums: Collection[str]) -> str:
    """Return which of the recorded checksums of a path its file has; the smallest if it has none of
    them.
    """
    first = min(recorded_checksums)
    return (
        first
        if len(recorded_checksums) == 1
        else next(iter({inspect_path_in_folder(folder, path).checksum} & {*recorded_checksums}), first)
    )


def _read_checksums_from_folder_manifest(folder: Path, manifest_name: str, error_code: str) -> dict[str, set[str]]:
    return read_manifest_checksums(folder / manifest_name, error_code, "move it away, or name another directory")


def _write_atomically(path: Path, content: str | bytes) -> None:
    with open_for_atomic_write(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def checksums_of_files(folder: Path, relative_paths: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 checksums of files in a folder, by path."""
    return {path: file_checksum(folder / path) for path in relative_paths}
