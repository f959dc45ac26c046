# SPDX-License-Identifier: Apache-2.0
"""Handle failures of the standard streams: an output that cannot be written ends the program with
an exit code.

with exit_if_output_cannot_be_written():
    ...                                  # prints
"""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

#: Exit code if the reader of the output has closed it, as in `aotc ops | head -1`.
READER_CLOSED_EXIT_CODE: Final = 1
#: Exit code if the output cannot be written, such as on a full disk.
UNWRITABLE_OUTPUT_EXIT_CODE: Final = 2


class _Closed(io.TextIOBase):
    """Replacement for an output stream that was closed before the program began; writing to it
    raises OSError.
    """

    def write(self, _: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


@contextmanager
def exit_if_output_cannot_be_written() -> Iterator[None]:
    """Context manager: escape characters that an output's encoding lacks; exit if an output cannot
    be written.
    """
    if None in (sys.stdout, sys.stderr):
        # occupy descriptors 0 to 2, so that no file opened later gets one of them
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
        if not any([_has_flush_failed_discarding_output(sys.stdout), _has_flush_failed_discarding_output(sys.stderr)]):
            raise
        if error.errno == errno.EPIPE:
            raise SystemExit(READER_CLOSED_EXIT_CODE) from None
        with suppress(OSError):
            sys.stderr.write(f"error: cannot write the output: {error.strerror}\n")
        raise SystemExit(UNWRITABLE_OUTPUT_EXIT_CODE) from None


def _has_flush_failed_discarding_output(stream: TextIO | io.TextIOBase | None) -> bool:
    """Return True if a stream cannot be written; its pending data is discarded."""
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
