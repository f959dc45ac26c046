# SPDX-License-Identifier: Apache-2.0
"""Run external programs with a time limit; a program that exceeds it is killed with all its child
processes.

done = run_program(["cc", "--version"], seconds=60)
done.code, done.output, done.errors
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from aotc.ir import frozen
from aotc.ir.interrupts import register_child_terminator
from aotc.runtime.fork_safety import ScratchDirectory

#: Process group of each running program, mapped to the ID of the process that started it.
_PARENT_ID_BY_PROCESS_GROUP: Final[dict[int, int]] = {}


@frozen
class FinishedProcess:
    """Result of a program: its exit code, standard output and standard error."""

    code: int
    output: bytes
    errors: bytes

    def error_or_output_lines(self) -> list[str]:
        """Return the lines of standard error, or of standard output if that is empty, decoded as
        UTF-8.
        """
        return (self.errors or self.output).decode("utf-8", "backslashreplace").strip().splitlines()


def run_program(
    command: Sequence[str], *, seconds: float, cwd: Path | None = None, given: bytes = b""
) -> FinishedProcess:
    """Run a program in its own process group, with `given` as standard input; return its result.

    Raises OSError if it cannot be started, TimeoutError after `seconds`; the program is then
    killed.
    """
    pipe = subprocess.PIPE
    # killed compilers leave temporary files: place them in a folder that is removed
    environment = {**os.environ, "TMPDIR": _program_scratch_directory().name}
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        _PARENT_ID_BY_PROCESS_GROUP[process.pid] = os.getpid()
        try:
            output, errors = process.communicate(given, seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            _PARENT_ID_BY_PROCESS_GROUP.pop(process.pid, None)
            if process.returncode is None:
                _kill_process_group(process.pid)
    return FinishedProcess(process.returncode, output, errors)


@lru_cache
def _program_scratch_directory() -> ScratchDirectory:
    """Return the directory for temporary files of the programs that this process runs."""
    return ScratchDirectory("aotc-cc-")


def kill_all_started_programs() -> None:
    """Kill all programs started by `run_program` in any thread: they are in other process groups,
    so signals do not reach them.
    """
    for group, parent in list(_PARENT_ID_BY_PROCESS_GROUP.items()):
        # a forked child must not kill programs that its parent started
        if parent == os.getpid():
            _kill_process_group(group)


def _kill_process_group(process_group_id: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            # there are no groups: a process has the number of its own
            os.kill(process_group_id, signal.SIGTERM)
        else:
            os.killpg(process_group_id, signal.SIGKILL)


register_child_terminator(kill_all_started_programs)
