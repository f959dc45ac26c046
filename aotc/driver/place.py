# SPDX-License-Identifier: Apache-2.0
"""Where results go on disk: never over what is not ours, never half-written.

with staged(Path("build/net")) as work:          # a scratch folder on the same file system
    ...                                          # write into `work`; its files take their places on success

Files move one by one where the destination exists.  A plan of the moves lies in the scratch meanwhile: if the process
is killed, the next compile, here or beside, brings back what was there before, or clears up behind what is complete.
The old files leave before the new ones come, and the marker is exchanged between: a project that is being replaced may
lack files, is never a mixture, and is always known as ours.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path

from aotc.driver.scratch import PLAN, abandoned, discard, exclusively, is_scratch, scratch_folder, scratches
from aotc.ir import AotcError, frozen, read_table, refusals
from aotc.runtime.library import MARKER, is_inside, read_metadata

#: What a scratch holds: the files that come, those that go.
_NEW, _OLD = "new", "old"
#: What the plan in a scratch is called after all of its moves.
_DONE = "done.json"


def is_ours(directory: Path) -> bool:
    """Whether a directory holds a project that aotc emitted."""
    try:
        return read_metadata(directory).get("generator") == "aotc"
    except (OSError, AotcError):
        return False


def check_destination(output: Path) -> None:
    """Raise AotcError (code "output") unless `output` is absent, empty, or an earlier project of ours.

    What killed processes left there and beside it is brought in order before.
    """
    with refusals("output", f"use {output}"):
        if output.is_symlink() or (output.exists() and not output.is_dir()):
            raise AotcError("output", f"{output} is not a directory", hint="give another path with -o")
        _recover(output.parent)
        _recover(output)
        empty = not output.is_dir() or all(map(is_scratch, output.iterdir()))
    if not empty and not is_ours(output):
        text = f"directory {output} is not empty and was not made by aotc"
        raise AotcError("output", text, hint="give an empty or new directory with -o")


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _files(directory: Path) -> list[Path]:
    return sorted(p.relative_to(directory) for p in directory.rglob("*") if _is_file(p))


def _inside(output: Path, paths: Iterable[object]) -> list[Path]:
    """The paths that lead nowhere else; the last part may be a link."""
    found = (Path(p) for p in paths if isinstance(p, str) and ".." not in Path(p).parts)
    return [p for p in found if is_inside(output, str(p.parent)) and "\0" not in p.name]


def _former(output: Path) -> list[Path]:
    """The files that an earlier run of ours wrote into `output`, and what its Makefile built from them."""
    if not is_ours(output):
        return []
    metadata = read_metadata(output)
    hashes = metadata.get("sha256")
    written = [*(hashes if isinstance(hashes, dict) else ()), metadata.get("library"), MARKER]
    return [*_inside(output, written), *(Path("build") / p for p in _files(output / "build"))]


def _move(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    source.replace(destination)


def _remove_empty(output: Path, folders: Iterable[Path]) -> None:
    # the deepest first
    for folder in sorted(folders, reverse=True):
        with suppress(OSError):
            # not empty, or gone
            (output / folder).rmdir()


@frozen
class _Plan:
    """The moves of an installation: files that go and come, folders that these make or leave empty."""

    old: list[Path]
    new: list[Path]
    made: list[Path]
    left: list[Path]

    @classmethod
    def of(cls, work: Path, output: Path) -> _Plan:
        new = _files(work)
        old = [p for p in dict.fromkeys([*_former(output), *new]) if _is_file(output / p)]
        folders = [{f for p in files for f in p.parents if f != Path()} for files in (old, new)]
        return cls(old, new, [f for f in folders[1] if not (output / f).exists()], list(folders[0]))

    @classmethod
    def read(cls, path: Path) -> _Plan | None:
        """The one in a file; None where there is none."""
        if not path.is_file():
            return None
        try:
            found = read_table(path, "output")
            output = path.parent.parent
            return cls(*(_inside(output, found[field.name]) for field in fields(cls)))
        except (AotcError, KeyError, TypeError) as error:
            hint = f"what was there before is in {path.parent / _OLD}; remove {path.parent} when it is saved"
            raise AotcError("output", f"{path}, of a run that was killed, is damaged", hint=hint) from error

    def write(self, path: Path) -> None:
        """Write the plan to a file, which is there as a whole or not at all."""
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")
        unfinished.replace(path)


def _carry_out(plan: _Plan, scratch: Path) -> None:
    marker = Path(MARKER)
    for p in (p for p in plan.old if p != marker):
        _move(scratch.parent / p, scratch / _OLD / p)
    for p in sorted(plan.new, key=lambda p: p != marker):
        _move(scratch / _NEW / p, scratch.parent / p)


def _roll_back(plan: _Plan, scratch: Path) -> None:
    """Undo those moves that were made; doing so again changes nothing."""
    output, aside = scratch.parent, scratch / _OLD
    for p in plan.new:
        if p not in plan.old and not _is_file(scratch / _NEW / p):
            (output / p).unlink(missing_ok=True)
    for p in filter(lambda p: _is_file(aside / p), plan.old):
        _move(aside / p, output / p)
    _remove_empty(output, plan.made)
    (scratch / PLAN).unlink()


def _install(scratch: Path) -> None:
    """Put the new files of a scratch into its directory, in place of our former ones; others stay."""
    output = scratch.parent
    with exclusively(output):
        _settle_all(output)
        plan = _Plan.of(scratch / _NEW, output)
        if Path(MARKER) in plan.old:
            (scratch / _OLD).mkdir()
            shutil.copy2(output / MARKER, scratch / _OLD / MARKER)
        plan.write(scratch / PLAN)
        try:
            _carry_out(plan, scratch)
            (scratch / PLAN).replace(scratch / _DONE)
        except BaseException:
            _roll_back(plan, scratch)
            raise
        _remove_empty(output, plan.left)


def _settle_all(home: Path) -> None:
    """Bring in order what dead processes left in a directory, which nobody else does meanwhile."""
    for scratch in abandoned(home):
        if (plan := _Plan.read(scratch / PLAN)) is not None:
            _roll_back(plan, scratch)
        elif (plan := _Plan.read(scratch / _DONE)) is not None:
            _remove_empty(home, plan.left)
        discard(scratch)


def _recover(home: Path) -> None:
    if scratches(home):
        with exclusively(home):
            _settle_all(home)


def _place(work: Path, output: Path) -> None:
    """Make a new directory of `work`; another process may have done so in the meantime."""
    try:
        work.replace(output)
    except OSError:
        if not output.is_dir():
            raise
        check_destination(output)
        with scratch_folder(output) as scratch:
            work.replace(scratch / _NEW)
            _install(scratch)


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """A scratch directory whose files go to `output` when the block succeeds; a failure changes nothing there.

    Raises AotcError (code "output") where `check_destination` does and where nothing can be written.
    """
    check_destination(output)
    home = output if output.is_dir() else output.parent
    at = home
    try:
        home.mkdir(parents=True, exist_ok=True)
        with scratch_folder(home) as scratch:
            work = scratch / _NEW
            work.mkdir()
            yield work
            at = output
            if home == output:
                _install(scratch)
            else:
                _place(work, output)
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise AotcError("output", f"cannot write to {at}: {reason}") from error
