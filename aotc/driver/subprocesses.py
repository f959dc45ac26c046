# SPDX-License-Identifier: Apache-2.0
"""Programs that are run to their end, or ended with all that they started.

done = run(["cc", "--version"], seconds=60)
done.code, done.output, done.errors
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from aotc.ir import frozen
from aotc.ir.interrupts import end_children_by
from aotc.runtime.fork_safety import ScratchDirectory

#: The process groups of programs that are running now, each with the process that started it.
_RUNNING: Final[dict[int, int]] = {}


@frozen
class Finished:
    """How a program ended, and what it wrote."""

    code: int
    output: bytes
    errors: bytes

    def lines(self) -> list[str]:
        """What it said, in whatever encoding, as text: of errors, else on its output."""
        return (self.errors or self.output).decode("utf-8", "backslashreplace").strip().splitlines()


def run(command: Sequence[str], *, seconds: float, cwd: Path | None = None, given: bytes = b"") -> Finished:
    """Run a program, with `given` as its input, in a process group of its own.

    Raises OSError if it cannot be run, TimeoutError if it is not done within `seconds`: it is ended then.
    """
    pipe = subprocess.PIPE
    # compilers that are killed leave temporary files
    environment = {**os.environ, "TMPDIR": _temporary_files().name}
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        _RUNNING[process.pid] = os.getpid()
        try:
            output, errors = process.communicate(given, seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            _RUNNING.pop(process.pid, None)
            if process.returncode is None:
                _kill(process.pid)
    return Finished(process.returncode, output, errors)


@lru_cache
def _temporary_files() -> ScratchDirectory:
    """The directory for temporary files of the programs that this process runs."""
    return ScratchDirectory("aotc-cc-")


def end_all() -> None:
    """End what `run` runs, in other threads: an interrupt of this process does not reach it by itself."""
    for group, parent in list(_RUNNING.items()):
        # a forked child leaves what its parent started alone
        if parent == os.getpid():
            _kill(group)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


end_children_by(end_all)
