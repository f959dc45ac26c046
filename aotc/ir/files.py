# SPDX-License-Identifier: Apache-2.0
"""Files to read, told from what only has their names: a pipe keeps its reader waiting, a device has no end.

with open_regular("net.onnx", "onnx-file") as file:
    data = file.read()
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO, Final

from aotc.ir.diagnostics import AotcError

_KINDS: Final = (
    (stat.S_ISDIR, "it is a directory"),
    (stat.S_ISFIFO, "it is a pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (lambda mode: not stat.S_ISREG(mode), "it is a device"),
)


def open_regular(path: str | Path, code: str) -> IO[bytes]:
    """A regular file, to be read; AotcError with a code, without waiting, for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise AotcError(code, f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a null character
        raise AotcError(code, f"cannot read {str(path)!r}: {error}") from error
    mode = os.fstat(descriptor).st_mode
    for is_kind, text in _KINDS:
        if is_kind(mode):
            os.close(descriptor)
            hint = "write it to a file first" if "pipe" in text else ""
            raise AotcError(code, f"cannot read {path}: {text}", hint=hint)
    return os.fdopen(descriptor, "rb")
