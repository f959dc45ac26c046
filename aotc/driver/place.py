# SPDX-License-Identifier: Apache-2.0
"""Where results go on disk: never over what is not ours, never half-written.

with staged(Path("build/net")) as work:          # a scratch folder beside it
    ...                                          # write into `work`; it takes the place on success
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
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
    if output.is_dir() and any(output.iterdir()) and not is_ours(output):
        raise AotcError(
            "output",
            f"directory {output} is not empty and was not made by aotc",
            hint="give an empty or new directory with -o",
        )


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """A scratch directory that replaces `output` when the block succeeds and vanishes when it fails."""
    check_destination(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    except OSError as error:
        raise AotcError("output", f"cannot write to {output.parent}: {error.strerror}") from error
    try:
        work = scratch / "new"
        work.mkdir()
        yield work
        if output.exists():
            output.replace(scratch / "old")
        work.replace(output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
