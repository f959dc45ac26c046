# SPDX-License-Identifier: Apache-2.0
"""Compute memoized results in several processes, before they are requested one by one.

memoize_in_parallel([partial(lower_function_to_kernel, f, target) for f in functions])
kernels = [lower_function_to_kernel(f, target) for f in functions]      # read from the store

The processes are forked from this one, so that tasks need not be serialized; results are exchanged
through the store of `aotc.ir.persistent_memo`, which makes them independent of the process that
computed them.  A task that fails in a forked process fails again where its result is requested.
"""

import gc
import logging
import os
import signal
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from aotc.ir.interrupts import register_child_terminator
from aotc.ir.persistent_memo import current_memo_state
from aotc.ir.progress import listen_to_progress

Task = Callable[[], object]
#: Smallest number of tasks for which processes are forked.
MIN_FORKED_TASKS: Final = 3
#: Largest number of processes, this one included: each copies the pages that it writes to.
MAX_PROCESSES: Final = 8
_TASK_NUMBER: Final = struct.Struct("<H")
#: Largest number of tasks of a queue; the smallest pipe of Linux, one page, holds the numbers of as many.
_MAX_QUEUED_TASKS: Final = 2048


@dataclass(slots=True)
class _Settings:
    """may_fork   True if this process is the command's own"""

    may_fork: bool = False


_SETTINGS: Final = _Settings()
#: Process IDs of the forked processes that run.
_CHILD_PROCESS_IDS: Final[set[int]] = set()


def memoize_in_parallel(tasks: Sequence[Task]) -> None:
    """Call functions whose results `load_or_compute_memoized_result` stores, in several processes;
    later calls find the results.

    Does nothing if results are not stored.  Runs all tasks in this process if there is one
    processor only, or if this process may not be forked, see `can_fork_safely`.  Tasks are started
    in order; exceptions are ignored.
    """
    memory = current_memo_state()
    if memory is None or len(tasks) < MIN_FORKED_TASKS:
        return
    with memory.keep_block_results_in_memory():
        first = 0
        computed_before = memory.computed
        # with a warm cache, loading the results is faster than forking
        while memory.computed == computed_before and first < len(tasks):
            _run_ignoring_exceptions(tasks[first])
            first += 1
        remaining = tasks[first : first + _MAX_QUEUED_TASKS]
        count = min(_usable_processors(), len(remaining) // 2, MAX_PROCESSES) if can_fork_safely() else 1
        if count > 1:
            _run_tasks_in_processes(remaining, count)


def allow_forked_processes() -> None:
    """Let `memoize_in_parallel` fork this process.

    The command calls this.  Processes of other programs are not forked: locks that threads of their
    libraries hold would stay locked in the forked process.
    """
    _SETTINGS.may_fork = True


def can_fork_safely() -> bool:
    """Return True if this process may be forked: after `allow_forked_processes`, on Linux, if it has
    no other threads of Python.
    """
    return _SETTINGS.may_fork and sys.platform == "linux" and threading.active_count() == 1


def _usable_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_tasks_in_processes(tasks: Sequence[Task], process_count: int) -> None:
    """Run tasks in up to `process_count` processes, of which this one is the first; return when all
    are done.

    A pipe is the queue: each read returns the number of a task that no process has started.
    """
    queue, queue_end = os.pipe()
    os.write(queue_end, b"".join(map(_TASK_NUMBER.pack, range(len(tasks)))))
    os.close(queue_end)
    children: list[int] = []
    try:
        with suppress(OSError):  # at a limit of processes or memory, fewer processes do the work
            for _ in range(process_count - 1):
                children.append(_fork_worker(tasks, queue))
        _run_tasks_numbered_in_pipe(tasks, queue)
    except BaseException:
        terminate_forked_processes()
        raise
    finally:
        os.close(queue)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child, 0)
            _CHILD_PROCESS_IDS.discard(child)


def _fork_worker(tasks: Sequence[Task], queue_descriptor: int) -> int:
    """Fork a process that runs tasks of a queue and ends; return its process ID."""
    with warnings.catch_warnings():
        # Python 3.12 warns of threads: those of numpy's libraries, which do nothing here
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        _CHILD_PROCESS_IDS.add(child)
        return child
    try:
        _CHILD_PROCESS_IDS.clear()
        gc.disable()
        logging.disable(logging.CRITICAL)
        with listen_to_progress(lambda *_: None):
            _run_tasks_numbered_in_pipe(tasks, queue_descriptor)
    finally:
        os._exit(0)


def _run_tasks_numbered_in_pipe(tasks: Sequence[Task], queue_descriptor: int) -> None:
    while number := os.read(queue_descriptor, _TASK_NUMBER.size):
        _run_ignoring_exceptions(tasks[_TASK_NUMBER.unpack(number)[0]])


def _run_ignoring_exceptions(task: Task) -> None:
    with suppress(Exception):
        task()


def terminate_forked_processes() -> None:
    """End the processes that `memoize_in_parallel` has forked."""
    for child in list(_CHILD_PROCESS_IDS):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)


register_child_terminator(terminate_forked_processes)
