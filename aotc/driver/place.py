# SPDX-License-Identifier: Apache-2.0
"""Where results go on disk: never over what is not ours, never half-written.

with staged(Path("build/net")) as work:          # a scratch folder on the same file system
    ...                                          # write into `work`; its files take their places on success
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aotc.ir.diagnostics import AotcError

MARKER = "metadata.json"


def is_ours(directory: Path) -> bool:
    """Whether a directory holds a project that aotc emitted."""
    try:
        found = json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("generator") == "aotc"


def check_destination(output: Path) -> None:
    """Raise AotcError (code "output") unless `output` is absent, empty, or an earlier project of ours."""
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise AotcError("output", f"{output} is not a directory", hint="give another path with -o")
    try:
        empty = not output.is_dir() or not any(output.iterdir())
    except OSError as error:
        raise AotcError("output", f"cannot look into {output}: {error.strerror}") from error
    if not empty and not is_ours(output):
        raise AotcError(
            "output",
            f"directory {output} is not empty and was not made by aotc",
            hint="give an empty or new directory with -o",
        )


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _files(directory: Path) -> list[Path]:
    return sorted(p.relative_to(directory) for p in directory.rglob("*") if _is_file(p))


def _former(output: Path) -> list[Path]:
    """The files that an earlier run of ours wrote into `output`, and what its Makefile built from them."""
    if not is_ours(output):
        return []
    metadata = json.loads((output / MARKER).read_text(encoding="utf-8"))
    hashes = metadata.get("sha256")
    written = [*(hashes if isinstance(hashes, dict) else ()), str(metadata.get("library", MARKER)), MARKER]
    inside = [p for p in map(Path, written) if not p.is_absolute() and ".." not in p.parts]
    return [*inside, *(Path("build") / p for p in _files(output / "build"))]


def _move(moves: Iterable[tuple[Path, Path]]) -> None:
    """Rename files, all or none."""
    done: list[tuple[Path, Path]] = []
    try:
        for source, destination in moves:
            destination.parent.mkdir(parents=True, exist_ok=True)
            source.replace(destination)
            done.append((source, destination))
    except OSError:
        for source, destination in reversed(done):
            destination.replace(source)
        raise


def _install(work: Path, output: Path, aside: Path) -> None:
    """Put the files of `work` into the directory `output` in place of our former ones; others stay."""
    new = _files(work)
    old = [p for p in dict.fromkeys([*_former(output), *new]) if _is_file(output / p)]
    folders = {output / f for p in old for f in p.parents if f != Path()}
    _move([*((output / p, aside / p) for p in old), *((work / p, output / p) for p in new)])
    for folder in sorted(folders, reverse=True):  # the deepest first
        if not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """A scratch directory whose files go to `output` when the block succeeds; a failure changes nothing there.

    Raises AotcError (code "output") where `check_destination` does and where nothing can be written.
    """
    check_destination(output)
    existed = output.is_dir()
    home = output if existed else output.parent
    try:
        home.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".aotc-", dir=home))
    except OSError as error:
        raise AotcError("output", f"cannot write to {home}: {error.strerror}") from error
    try:
        work = scratch / "new"
        work.mkdir()
        yield work
        try:
            if existed:
                _install(work, output, scratch / "old")
            else:
                work.replace(output)
        except OSError as error:
            raise AotcError("output", f"cannot write to {output}: {error.strerror}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
