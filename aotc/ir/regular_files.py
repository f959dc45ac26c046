# SPDX-License-Identifier: Apache-2.0
"""Open regular files only, refusing pipes and devices, read JSON safely, and turn OSError into
AotcError.

with open_regular_file("net.onnx", "onnx-file") as file:
    data = file.read()
read_json_object(Path("build/net/metadata.json"), "load")["library"]
with translate_os_errors("output", f"write {path}"):  # AotcError: cannot write build/net: No space left on device
    path.write_bytes(data)
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from aotc.ir.diagnostics import AotcError

#: Largest size in bytes of a JSON file that is read; a model of 10,000 nodes has a few million.
MAX_JSON_BYTES: Final = 1 << 28
_RECREATE_FILE_HINT: Final = "copy it again, or compile the model again"
#: Largest nesting depth of JSON that is read; files written by aotc have fewer than ten levels.
MAX_JSON_DEPTH: Final = 100
_REFUSED_FILE_KINDS: Final = (
    (stat.S_ISDIR, "it is a directory"),
    (stat.S_ISFIFO, "it is a pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (lambda mode: not stat.S_ISREG(mode), "it is a device"),
)


@contextmanager
def translate_os_errors(error_code: str, action: str) -> Iterator[None]:
    """Context manager: turn an OSError of the block into AotcError "cannot ACTION: reason" with a
    code.
    """
    try:
        yield
    except OSError as error:
        raise AotcError(error_code, f"cannot {action}: {error.strerror or error}") from error


def open_regular_file(path: str | Path, error_code: str) -> IO[bytes]:
    """Open a regular file for reading in binary mode, without blocking.

    Raises AotcError with a code if it cannot be opened, or is a directory, pipe, socket or device.
    """
    try:
        with translate_os_errors(error_code, f"read {path}"):
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a null character
        raise AotcError(error_code, f"the path {str(path)!r} is not valid: {error}") from error
    mode = os.fstat(descriptor).st_mode
    for is_kind, text in _REFUSED_FILE_KINDS:
        if is_kind(mode):
            os.close(descriptor)
            hint = "write it to a file first" if "pipe" in text else ""
            raise AotcError(error_code, f"cannot read {path}: {text}", hint=hint)
    return os.fdopen(descriptor, "rb")


def read_json_object(path: Path, error_code: str, hint: str = _RECREATE_FILE_HINT) -> dict[str, Any]:
    """Read a JSON file whose outermost value is an object; return it as a dict.

    Raises AotcError with a code for anything else: files larger than 256 MiB or not UTF-8, invalid
    JSON (NaN included), numbers of thousands of digits, values nested more than 100 deep, strings
    with unpaired surrogates.
    """
    with open_regular_file(path, error_code) as file:
        data = file.read() if os.fstat(file.fileno()).st_size <= MAX_JSON_BYTES else None
    if data is None:
        raise AotcError(error_code, f"cannot read {path}: it is larger than {MAX_JSON_BYTES >> 20} MiB", hint=hint)
    try:
        document = _parse_depth_limited_json(data)
    except UnicodeError:
        reason = "it is not UTF-8"
    except RecursionError:
        reason = f"it is nested more than {MAX_JSON_DEPTH} deep"
    except json.JSONDecodeError as error:
        reason = f"it is no JSON from line {error.lineno}, column {error.colno} on"
    except ValueError:
        reason = "it is no JSON that aotc writes"
    else:
        if isinstance(document, dict):
            return document
        reason = "it holds no table"
    raise AotcError(error_code, f"cannot read {path}: {reason}", hint=hint)


def _parse_depth_limited_json(data: bytes) -> object:
    document = json.loads(data.decode("utf-8"), parse_constant=_reject_json_constant)
    level, depth = [document], 0
    while level:
        if (depth := depth + 1) > MAX_JSON_DEPTH:
            raise RecursionError
        level = [part for item in level for part in _json_value_children(item)]
    return document


def _json_value_children(item: object) -> list[Any]:
    """Return the direct parts of a JSON value; UnicodeError for a string with an unpaired
    surrogate.
    """
    match item:
        case str() if not item.isascii():
            item.encode("utf-8")
        case list():
            return item
        case dict():
            return [*item, *item.values()]
    return []


def _reject_json_constant(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}")
