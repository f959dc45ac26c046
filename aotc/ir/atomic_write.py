# SPDX-License-Identifier: Apache-2.0
"""Write files atomically: a file appears complete or not at all, also when the process is
interrupted.

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
    """Return a random name for a temporary file or folder: .aotc- and 16 hexadecimal digits."""
    return _PREFIX + secrets.token_hex(8)


def is_temporary_name(name: str) -> bool:
    """Return True if a file name has the form that `temporary_name` generates."""
    return _NAME.fullmatch(name) is not None


def make_temporary_folder(prefix: str) -> str:
    """Create a private folder in the directory for temporary files; return its path.

    It is removed when the process ends, if not before.
    """
    path = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
    register_temporary(path)
    path.mkdir(mode=0o700)
    return str(path)


@contextmanager
def temporary_folder(prefix: str, home: Path | None = None) -> Iterator[str]:
    """Context manager: create a private folder in `home`, or in the directory for temporary files;
    remove it after the block.
    """
    with temporary(Path(home or tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}") as path:
        path.mkdir(mode=0o700)
        yield str(path)


@contextmanager
def written(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Context manager: yield a file to write, which replaces `path` atomically when the block
    succeeds.

    mode    permissions of a new file, before the umask is applied

    If `path` is a symbolic link, its target is replaced.  Devices and pipes are written directly.
    Raises OSError on failure; an existing file is then unchanged.
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
    """Context manager: like `written`, but raise AotcError with the given code if the file cannot
    be written.

    inputs    paths that must not be overwritten (other values are ignored): AotcError if `path` is one of them
    """
    require_other_file(path, code, inputs)
    with refusals(code, f"write {path}"), written(path) as file:
        yield file


def require_other_file(path: Path, code: str, inputs: Iterable[object]) -> None:
    """Raise AotcError with a code if the output `path` and an input are one file, also through
    links.
    """
    for given in inputs:
        if isinstance(given, (str, Path)) and path.is_file() and Path(given).exists() and path.samefile(given):
            text = f"cannot write {path}: it is the input {given}"
            raise AotcError(code, text, hint="give the output another name")
