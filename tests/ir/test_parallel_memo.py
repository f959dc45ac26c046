# SPDX-License-Identifier: Apache-2.0
"""Memoized results that several processes compute are those of one process, each computed once."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from aotc.ir import parallel_memo
from aotc.ir.parallel_memo import memoize_in_parallel
from aotc.ir.persistent_memo import load_or_compute_memoized_result, memoize_results_in_store
from aotc.ir.safe_json import JsonFormat

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
LISTS: JsonFormat[list[int]] = JsonFormat(list)


class FolderStore:
    """A store of files, which forked processes share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> bytes | None:
        path = self.folder / key
        return path.read_bytes() if path.exists() else None

    def put(self, key: str, data: bytes) -> None:
        unfinished = self.folder / f"{key}.{os.getpid()}"
        unfinished.write_bytes(data)
        unfinished.rename(self.folder / key)


@pytest.fixture
def several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_memo, "can_fork_safely", lambda: True)
    monkeypatch.setattr(parallel_memo, "_usable_processors", lambda: 3)


def square_task(log: Path, number: int, needed_processes: int) -> Callable[[], list[int]]:
    """A task that logs the process that computes it, and ends when `needed_processes` have begun one."""

    def compute() -> list[int]:
        with log.open("a") as file:
            file.write(f"{number} {os.getpid()}\n")
        end = time.monotonic() + 20
        while number and len(processes_in(log)) < needed_processes and time.monotonic() < end:
            time.sleep(0.001)
        if number == 5:
            raise ValueError("five")
        return [number * number]

    return lambda: load_or_compute_memoized_result("square", number, compute, LISTS)


def processes_in(log: Path) -> set[str]:
    return {line.split()[1] for line in log.read_text().splitlines()}


@pytest.mark.usefixtures("several_processes")
def test_each_result_is_computed_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tasks = [square_task(log, number, 3) for number in range(12)]
    (tmp_path / "store").mkdir()
    with memoize_results_in_store(FolderStore(tmp_path / "store"), "salt"):
        memoize_in_parallel(tasks)
        assert sorted(int(line.split()[0]) for line in log.read_text().splitlines()) == list(range(12))
        assert len(processes_in(log)) == 3
        for number, task in enumerate(tasks):
            if number != 5:
                assert task() == [number * number]
        assert len(log.read_text().splitlines()) == 12
        with pytest.raises(ValueError, match="five"):  # where its result is requested
            tasks[5]()
    assert not parallel_memo._CHILD_PROCESS_IDS


@pytest.mark.usefixtures("several_processes")
def test_stored_results_are_loaded_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    (tmp_path / "store").mkdir()
    tasks = [square_task(log, number, 1) for number in range(5)]
    with memoize_results_in_store(FolderStore(tmp_path / "store"), "salt"):
        for task in tasks:
            task()
    monkeypatch.delattr(os, "fork")
    with memoize_results_in_store(FolderStore(tmp_path / "store"), "salt"):
        memoize_in_parallel(tasks)
        assert [task() for task in tasks] == [[0], [1], [4], [9], [16]]
    assert len(log.read_text().splitlines()) == 5


@pytest.mark.usefixtures("several_processes")
def test_an_interrupt_ends_the_other_processes(tmp_path: Path) -> None:
    parent, started = os.getpid(), tmp_path / "started"
    (tmp_path / "store").mkdir()

    def interrupt_parent(number: int) -> list[int]:
        if number and os.getpid() != parent:
            started.touch()
            time.sleep(60)
        while number and not started.exists():
            time.sleep(0.001)
        if number:
            raise KeyboardInterrupt
        return [0]

    tasks = [partial(load_or_compute_memoized_result, "k", n, partial(interrupt_parent, n), LISTS) for n in range(6)]
    with memoize_results_in_store(FolderStore(tmp_path / "store"), "salt"), pytest.raises(KeyboardInterrupt):
        memoize_in_parallel(tasks)
    assert not parallel_memo._CHILD_PROCESS_IDS


@pytest.mark.usefixtures("several_processes")
def test_without_a_free_process_all_tasks_run_in_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    log = tmp_path / "log"
    (tmp_path / "store").mkdir()
    monkeypatch.setattr(os, "fork", refuse_to_fork)
    with memoize_results_in_store(FolderStore(tmp_path / "store"), "salt"):
        memoize_in_parallel([square_task(log, number, 1) for number in range(5)])
    assert sorted(log.read_text().splitlines()) == [f"{number} {os.getpid()}" for number in range(5)]


def test_nothing_is_forked_beside_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, done = tmp_path / "log", threading.Event()
    (tmp_path / "store").mkdir()
    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(parallel_memo._SETTINGS, "may_fork", True)
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not parallel_memo.can_fork_safely()
        with memoize_results_in_store(FolderStore(tmp_path / "store"), "salt"):
            memoize_in_parallel([square_task(log, number, 1) for number in range(5)])
    finally:
        done.set()
        thread.join()
    assert processes_in(log) == {str(os.getpid())}


def test_processes_of_other_programs_are_not_forked() -> None:
    assert not parallel_memo.can_fork_safely()


def test_nothing_runs_without_a_store(tmp_path: Path) -> None:
    memoize_in_parallel([square_task(tmp_path / "log", number, 1) for number in range(5)])
    assert not (tmp_path / "log").exists()
