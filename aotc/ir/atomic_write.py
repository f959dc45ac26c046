# SPDX-License-Identifier: Apache-2.0
"""Write files atomically: a file appears complete or not at all, also when the process is
interrupted.

with open_for_atomic_write(Path("out.npz")) as file:  # a temporary file beside it, renamed at the end of the block
    file.write(data)
with open_output_file(Path("out.npz"), "outputs-file", inputs_to_protect=[model]) as file:  # with AotcErrors
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
from aotc.ir.interrupts import register_temporary_path, remove_temporary_path_after_block
from aotc.ir.regular_files import translate_os_errors

_TEMPORARY_NAME_PREFIX: Final = ".aotc-"
_TEMPORARY_NAME_PATTERN: Final = re.compile(r"\.aotc-[0-9a-f]{16}")


def random_temporary_name() -> str:
    """Return a random name for a temporary file or folder: .aotc- and 16 hexadecimal digits."""
    return _TEMPORARY_NAME_PREFIX + secrets.token_hex(8)


def is_generated_temporary_file_name(name: str) -> bool:
    """Return True if a file name has the form that `random_temporary_name` generates."""
    return _TEMPORARY_NAME_PATTERN.fullmatch(name) is not None


def make_temporary_folder(prefix: str) -> str:
    """Create a private folder in the directory for temporary files; return its path.

    It is removed when the process ends, if not before.
    """
    path = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
    register_temporary_path(path)
    path.mkdir(mode=0o700)
    return str(path)


@contextmanager
def temporary_folder(prefix: str, parent_folder: Path | None = None) -> Iterator[str]:
    """Context manager: create a private folder in `parent_folder`, or in the directory for
    temporary files; remove it after the block.
    """
    with remove_temporary_path_after_block(
        Path(parent_folder or tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
    ) as path:
        path.mkdir(mode=0o700)
        yield str(path)


@contextmanager
def open_for_atomic_write(path: Path, permissions: int = 0o666) -> Iterator[IO[bytes]]:
    """Context manager: yield a file to write, which replaces `path` atomically when the block
    succeeds.

    permissions    permissions of a new file, before the umask is applied

    If `path` is a symbolic link, its target is replaced.  Devices and pipes are written directly.
    Raises OSError on failure; an existing file is then unchanged.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    with remove_temporary_path_after_block(target.with_name(random_temporary_name())) as unfinished:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), permissions)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        if target.exists():
            unfinished.chmod(stat.S_IMODE(target.stat().st_mode))
        unfinished.replace(target)


@contextmanager
def open_output_file(path: Path, error_code: str, inputs_to_protect: Iterable[object] = ()) -> Iterator[IO[bytes]]:
    """Context manager: like `open_for_atomic_write`, but raise AotcError with the given code if the
    file cannot be written.

    inputs_to_protect    paths that must not be overwritten (other values are ignored): AotcError if `path` is
                         one of them
    """
    require_not_an_input_file(path, error_code, inputs_to_protect)
    with translate_os_errors(error_code, f"write {path}"), open_for_atomic_write(path) as file:
        yield file


def require_not_an_input_file(path: Path, error_code: str, inputs: Iterable[object]) -> None:
    """Raise AotcError with a code if the output `path` and an input are one file, also through
    links.
    """
    for given in inputs:
        if isinstance(given, (str, Path)) and path.is_file() and Path(given).exists() and path.samefile(given):
            text = f"cannot write {path}: it is the input {given}"
            raise AotcError(error_code, text, hint="write to another file")
