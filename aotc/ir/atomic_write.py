# SPDX-License-Identifier: Apache-2.0
"""Files that appear as a whole or not at all, also where the process is interrupted.

with written(Path("out.npz")) as file:               # a temporary file beside it, renamed at the end of the block
    file.write(data)
with output_file(Path("out.npz"), "outputs-file", inputs=[model]) as file:      # with AotcErrors
    file.write(data)
"""

import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from aotc.ir.diagnostics import AotcError
from aotc.ir.interrupts import register_temporary, temporary
from aotc.ir.regular_files import refusals

_PREFIX: Final = ".aotc-"
_NAME: Final = re.compile(r"\.aotc-[0-9a-f]{16}")


def temporary_name() -> str:
    """A name for a temporary file or folder, which nobody else uses."""
    return _PREFIX + secrets.token_hex(8)


def is_temporary_name(name: str) -> bool:
    """Whether a name is one that `temporary_name` gives."""
    return _NAME.fullmatch(name) is not None


def make_temporary_folder(prefix: str) -> str:
    """A new folder of the user alone among the temporary files, which goes with the process at the latest; its path."""
    path = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
    register_temporary(path)
    path.mkdir(mode=0o700)
    return str(path)


@contextmanager
def temporary_folder(prefix: str, home: Path | None = None) -> Iterator[str]:
    """A new folder in `home`, or among the temporary files, for a block; its path."""
    with temporary(Path(home or tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}") as path:
        path.mkdir(mode=0o700)
        yield str(path)


@contextmanager
def written(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write, which takes its place when the block succeeds; devices and pipes are written as they are.

    mode    the permissions of a new file, before the process's umask

    Where `path` is a link to a file, the file that it leads to is replaced.  OSError where that is not possible; a file
    that was there before is then as it was.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    with temporary(target.with_name(temporary_name())) as unfinished:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        if target.exists():
            unfinished.chmod(stat.S_IMODE(target.stat().st_mode))
        unfinished.replace(target)


@contextmanager
def output_file(path: Path, code: str, inputs: Iterable[object] = ()) -> Iterator[IO[bytes]]:
    """As `written`, with an AotcError of a code where that is not possible.

    inputs    paths that must not be replaced, among other values, which are ignored: an AotcError where `path` is one
    """
    require_other_file(path, code, inputs)
    with refusals(code, f"write {path}"), written(path) as file:
        yield file


def require_other_file(path: Path, code: str, inputs: Iterable[object]) -> None:
    """Raise AotcError with a code where a file to write is one of the files that are read, under any name."""
    for given in inputs:
        if isinstance(given, (str, Path)) and path.is_file() and Path(given).exists() and path.samefile(given):
            text = f"cannot write {path}: it is the input {given}"
            raise AotcError(code, text, hint="give the output another name")
