# SPDX-License-Identifier: Apache-2.0
"""Write a project into its output folder without replacing or deleting files that aotc did not
write.

with stage_output_files(Path("build/net")) as work:  # a scratch folder inside of build/net
    ...                                          # files written into `work` are moved to build/net on success

The manifest of a project (`aotc.ir.file_checksum_manifest`) holds the names and checksums of all
files that were written; no other file is replaced or removed, unless `overwrite` is set.  Files are
replaced one by one:

1. all destination paths are checked; a conflicting file is an error, and nothing is written
2. a pending manifest with old and new checksums is written, and the manifest is removed
3. new files are renamed to their destinations, and obsolete files are removed
4. the new manifest is written, and the pending manifest is removed

A project without a manifest is neither built nor loaded.  If a process is killed between steps 2
and 4, the next compilation recognizes all files by the pending manifest and replaces the remaining
ones.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from aotc.driver.temporary_folders import (
    create_locked_scratch_folder,
    lock_folder,
    open_for_atomic_write,
    unlocked_scratch_folders,
)
from aotc.ir import AotcError, frozen, option_text, translate_os_errors
from aotc.ir.file_checksum_manifest import (
    MANIFEST_FILE_NAME,
    PENDING_MANIFEST_FILE_NAME,
    PathState,
    RecordedChecksums,
    checksums_of_files,
    inspect_path_in_folder,
    manifest_json_text,
    mount_points_below,
    read_manifest_checksums,
)
from aotc.ir.interrupts import create_folders_remove_if_empty, postpone_signals

LOG = logging.getLogger("aotc")
_FILE_CONFLICT_HINT: Final = "move them away, name another directory, or replace them with " + option_text(
    "overwrite", True
)
_DAMAGED_MANIFEST_HINT: Final = (
    "it says which files aotc wrote, and these are left alone without it; " + _FILE_CONFLICT_HINT
)
_OTHER_PATH_HINT: Final = "name another directory with " + option_text("output")


def check_project_can_be_written_to_folder(output: Path, overwrite: bool = False) -> None:
    """Raise AotcError (code "output") unless a project can be written to `output`, as far as can be
    known before its files exist.

    overwrite    allow replacing files that were changed since aotc wrote them
    """
    with translate_os_errors("output", f"use {output}"):
        if output.is_symlink() or (output.exists() and not output.is_dir()):
            raise AotcError("output", f"{output} is not a directory", hint=_OTHER_PATH_HINT)
        above = next((p for p in output.absolute().parents if os.path.lexists(p)), output)
        if not above.is_dir():
            raise AotcError("output", f"cannot write to {output}: {above} is not a directory", hint=_OTHER_PATH_HINT)
        if not os.access(output if output.exists() else above, os.W_OK | os.X_OK):
            raise AotcError("output", f"cannot write to {output}: {os.strerror(errno.EACCES)}", hint=_OTHER_PATH_HINT)
        if output.is_dir():
            _Exchange.plan_output_file_replacement(output, {}, overwrite).require_no_user_file_is_lost()


def require_folder_without_foreign_files(output: Path) -> None:
    """Raise AotcError (code "output") if a folder that was not named by the user has contents and is no
    project of aotc: files that do not conflict would otherwise be mixed with those of the user.
    """
    with translate_os_errors("output", f"use {output}"):
        has_manifest = any((output / name).exists() for name in (MANIFEST_FILE_NAME, PENDING_MANIFEST_FILE_NAME))
        if not has_manifest and output.is_dir() and any(output.iterdir()):
            text = f"{output}, the default directory, holds files that aotc did not write"
            raise AotcError("output", text, hint=_OTHER_PATH_HINT)


def _read_manifest_checksums(output: Path, overwrite: bool) -> dict[str, set[str]]:
    """Read the manifests in a folder; return the checksums by path.

    Raise AotcError (code "output") for a damaged manifest unless `overwrite` is set.
    """
    known: dict[str, set[str]] = {}
    for name in (MANIFEST_FILE_NAME, PENDING_MANIFEST_FILE_NAME):
        try:
            for path, sums in read_manifest_checksums(output / name, "output", _DAMAGED_MANIFEST_HINT).items():
                known.setdefault(path, set()).update(sums)
        except AotcError:
            if not overwrite:
                raise
    return known


@frozen
class _Exchange:
    """Replacement of the files of an earlier project in the output folder by new files.

    recorded_checksums   checksums of the earlier files by path, one or two for each
    new                  checksums of the new files by path
    former_states        state of the file at each of these paths before the exchange
    overwrite            allow replacing files that aotc did not write
    """

    output: Path
    recorded_checksums: RecordedChecksums
    new: Mapping[str, str]
    former_states: Mapping[str, PathState]
    overwrite: bool

    @classmethod
    def plan_output_file_replacement(cls, output: Path, new_checksums: Mapping[str, str], overwrite: bool) -> _Exchange:
        known, mounts = _read_manifest_checksums(output, overwrite), mount_points_below(output)
        states = {path: inspect_path_in_folder(output, path, mounts) for path in {**known, **new_checksums}}
        manifests = {
            path: inspect_path_in_folder(output, path, mounts, compute_checksum=False)
            for path in (MANIFEST_FILE_NAME, PENDING_MANIFEST_FILE_NAME)
        }
        return cls(output, known, new_checksums, states | manifests, overwrite)

    def is_written_by_aotc(self, path: str) -> bool:
        """Return True if an earlier run of aotc wrote the file that exists at a path."""
        return self.former_states[path].checksum in self.recorded_checksums.get(path, ())

    def has_new_contents_already(self, path: str) -> bool:
        """Return True if the output file at a path already has the contents that are to be written."""
        return self.former_states[path].exists and self.former_states[path].checksum == self.new.get(path)

    def _unreplaceable_files_and_reasons(self) -> Iterator[tuple[PathState, str]]:
        for path, state in self.former_states.items():
            if not state.exists or self.is_written_by_aotc(path) or self.has_new_contents_already(path):
                continue
            if path in (MANIFEST_FILE_NAME, PENDING_MANIFEST_FILE_NAME):
                # readable manifests were read already
                if state.problem:
                    yield state, state.problem
            elif state.checksum and path in self.recorded_checksums:
                if path in self.new or not self.overwrite:
                    yield state, "changed since aotc wrote it"
            elif path in self.new:
                yield state, state.problem or "not written by aotc"

    def require_no_user_file_is_lost(self) -> None:
        """Raise AotcError (code "output") that names every file that would be lost; PermissionError
        for a read-only folder.
        """
        problems = {
            f.at: reason
            for f, reason in self._unreplaceable_files_and_reasons()
            if not (self.overwrite and f.removable)
        }
        if problems:
            rows = [f"{path}: {reason}" for path, reason in sorted(problems.items())]
            names = ", ".join(sorted(problems)[:3]) + (", ..." if len(problems) > 3 else "")
            text = f"{self.output} holds files that would be lost: {names}"
            raise AotcError("output", text, notes=rows, hint=_FILE_CONFLICT_HINT)
        for folder in {self.output, *(self.output / PurePosixPath(path).parent for path in self.former_states)}:
            if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    def replace_output_files(self, staging_folder: Path) -> None:
        """Rename the new files from `staging_folder` to their destinations, and remove obsolete
        files of the earlier project.
        """
        if (
            not all(map(self.has_new_contents_already, self.new))
            or self.recorded_checksums.keys() != self.new.keys()
            or self._is_manifest_missing_or_pending()
        ):
            former = {
                path: state.checksum for path, state in self.former_states.items() if self.is_written_by_aotc(path)
            }
            self._write_manifest(PENDING_MANIFEST_FILE_NAME, manifest_json_text(self.new, former))
            (self.output / MANIFEST_FILE_NAME).unlink(missing_ok=True)
            for path in {self.former_states[path].at for path in self.new if self.former_states[path].problem}:
                (self.output / path).unlink()
            for path in self.new:
                if not self.has_new_contents_already(path):
                    (self.output / path).parent.mkdir(parents=True, exist_ok=True)
                    (staging_folder / path).replace(self.output / path)
            self._remove_files_and_empty_folders(
                path for path in self.recorded_checksums if path not in self.new and self.is_written_by_aotc(path)
            )
            self._write_manifest(MANIFEST_FILE_NAME, manifest_json_text(self.new))
        (self.output / PENDING_MANIFEST_FILE_NAME).unlink(missing_ok=True)

    def _is_manifest_missing_or_pending(self) -> bool:
        return (
            not self.former_states[MANIFEST_FILE_NAME].exists or self.former_states[PENDING_MANIFEST_FILE_NAME].exists
        )

    def _write_manifest(self, name: str, text: str) -> None:
        path = self.output / name
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.unlink()
        with open_for_atomic_write(path) as file:
            file.write(text.encode())

    def _remove_files_and_empty_folders(self, paths: Iterable[str]) -> None:
        """Remove files, and then folders that became empty, the deepest first."""
        file_paths = list(paths)
        for path in file_paths:
            (self.output / path).unlink(missing_ok=True)
        folders = {folder for path in file_paths for folder in PurePosixPath(path).parents if folder.name}
        for folder in sorted(folders, key=lambda f: len(f.parts), reverse=True):
            with suppress(OSError):
                (self.output / folder).rmdir()


def _move_project_files_under_folder_lock(
    staging_folder: Path, output: Path, overwrite: bool, known_checksums: Mapping[str, str]
) -> None:
    """Move the files of `staging_folder` to `output` while holding a lock on the folder, so that
    processes do it one at a time.

    known_checksums    SHA-256 of files in `staging_folder` by path; those of other files are computed
    """
    found = (p.relative_to(staging_folder).as_posix() for p in sorted(staging_folder.rglob("*")) if p.is_file())
    paths = [path for path in found if path != MANIFEST_FILE_NAME]
    computed = checksums_of_files(staging_folder, (path for path in paths if path not in known_checksums))
    new = {path: known_checksums.get(path) or computed[path] for path in paths}
    with lock_folder(output):
        exchange = _Exchange.plan_output_file_replacement(output, new, overwrite)
        exchange.require_no_user_file_is_lost()
        with postpone_signals():
            exchange.replace_output_files(staging_folder)


@contextmanager
def stage_output_files(
    output: Path, overwrite: bool = False, known_checksums: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Path]:
    """Context manager: yield a scratch directory whose files are moved to `output` when the block
    succeeds.

    If the block fails, `output` is unchanged.

    overwrite          allow replacing files that aotc did not write or that were changed since
    known_checksums    SHA-256 of files that the block wrote, by path relative to the scratch directory,
                       in hexadecimal; the block can add to it, and other files are read to compute theirs

    Raises AotcError (code "output") as `check_project_can_be_written_to_folder` does, for a conflicting
    file that aotc did not write, and if the folder is not writable.
    """
    check_project_can_be_written_to_folder(output, overwrite)
    try:
        with create_folders_remove_if_empty(output), create_locked_scratch_folder(output) as scratch:
            for left in unlocked_scratch_folders(output):
                LOG.warning("%s may be left over from a run that was killed: remove it if it is not yours", left)
            work = scratch / "new"
            work.mkdir()
            yield work
            _move_project_files_under_folder_lock(work, output, overwrite, known_checksums)
    except OSError as error:
        raise AotcError("output", f"cannot write to {error.filename or output}: {error.strerror or error}") from error
