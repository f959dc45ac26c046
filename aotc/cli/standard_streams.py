# SPDX-License-Identifier: Apache-2.0
"""The standard streams of the program: what they cannot show or take ends in an exit code, not in a traceback.

with standard_streams():
    ...                                  # prints
"""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

#: Exit code where whoever reads the output has gone: `aotc ops | head -1`.
READER_LEFT: Final = 1
#: Exit code where the output cannot be written: the disk that it goes to is full.
NOT_WRITTEN: Final = 2


class _Closed(io.TextIOBase):
    """Stands for an output that was closed before the program began: whoever writes to it gets an error."""

    def write(self, _: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


@contextmanager
def standard_streams() -> Iterator[None]:
    """Characters that the output's encoding lacks are escaped; an output that fails ends the program."""
    if None in (sys.stdout, sys.stderr):
        # no file that is opened from here on takes the place of a stream
        while os.open(os.devnull, os.O_RDWR) <= 2:
            pass
    if sys.stdout is None:
        sys.stdout = _Closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if not any([_fails(sys.stdout), _fails(sys.stderr)]):
            raise
        if error.errno == errno.EPIPE:
            raise SystemExit(READER_LEFT) from None
        with suppress(OSError):
            sys.stderr.write(f"error: cannot write the output: {error.strerror}\n")
        raise SystemExit(NOT_WRITTEN) from None


def _fails(stream: TextIO | io.TextIOBase | None) -> bool:
    """Whether a stream has something that cannot be written, which is dropped then."""
    if stream is None:
        return False
    try:
        stream.write("")
        stream.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return True
    return False
