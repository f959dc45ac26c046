# SPDX-License-Identifier: Apache-2.0
"""Worker processes that check cases under limits; a worker that hangs or dies is replaced.

with Workers(kinds, jobs=2) as workers:
    workers.submit(Task("onnx", seed=3))
    for task, verdict in workers.results(): ...
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from aotc.driver import subprocesses
from tests.fuzz.case import Files, Kind, Verdict, innermost, verdict_of, write

CASES_EACH = 400
"""A worker is replaced after so many cases: what libraries keep does not add up."""
FRAME = re.compile(r'File "([^"]+)", line \d+ in (\S+)')


@dataclass(frozen=True)
class Limits:
    """What one case may take: seconds of processor time (on a busy machine it may wait for as much nine times), and
    bytes of address space beyond those of the start.
    """

    seconds: float = 20.0
    bytes: int = 3 << 30


@dataclass(frozen=True)
class Task:
    """A case to check: what a kind makes of a seed, or files if they are there."""

    kind: str
    seed: int = 0
    without: frozenset[int] = frozenset()
    files: Files | None = field(default=None, repr=False)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def _limit(limits: Limits) -> None:
    most = _address_space() + limits.bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))  # children may ask for more: sanitizers do
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))


def _run(task: Task, kinds: Mapping[str, Kind], home: Path, stage: Connection) -> Verdict:
    """Check one case in a folder of its own; nothing may be left where temporary files go."""
    folder, scratch = home / "case", home / "tmp"
    for place in (folder, scratch):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    kind = kinds[task.kind]
    try:
        write(kind.make(task.seed, task.without) if task.files is None else task.files, folder)
        found = Verdict(kind.check(folder, lambda name: stage.send(("stage", name))))
    except BaseException as error:  # whatever it is, it is the verdict
        found = verdict_of(error)
        del error
    if not found.is_fault:
        left = _leftovers(scratch)
        if left:
            gc.collect()
            left = _leftovers(scratch)
        if left:
            what = re.sub(r"[_-]\w+$|^tmp.*", "", left[0])
            return Verdict("leftover", f"leftover: {task.kind} {what}", f"left behind: {left[:5]}")
    return found


def _leftovers(folder: Path) -> list[str]:
    """What lies in a folder, but for what ONNX Runtime keeps there."""
    return sorted(p.name for p in folder.iterdir() if p.name != ".ses")


def _serve(kinds: Mapping[str, Kind], limits: Limits, home: Path, pipe: Connection) -> None:
    """The loop of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    # aotc's directory for temporary files of compilers lives as long as the process: it must not be in the folder that
    # is examined and emptied after each case
    tempfile.tempdir = str(home)
    subprocesses.run_program(["true"], seconds=60)
    tempfile.tempdir = os.environ["TMPDIR"] = str(home / "tmp")
    os.environ["AOTC_CACHE_DIR"] = str(home / "cache")
    with (home / "stderr").open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    traces = (home / "trace").open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, traces, all_threads=False)
    faulthandler.enable(traces, all_threads=False)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    _limit(limits)
    gc.freeze()
    while True:
        task = pipe.recv()
        if task is None:
            return
        verdict = _run(task, kinds, home, pipe)
        pipe.send(("done", verdict))


@dataclass
class _Worker:
    process: ForkProcess
    pipe: Connection
    home: Path
    task: Task | None = None
    stage: str = ""
    started: float = 0.0
    before: float = 0.0
    done: int = 0


def _seconds_of(pid: int | None) -> float:
    """The processor time of a process and of the children that it waited for."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    return sum(map(int, text.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")


class Workers:
    """A number of workers; `submit` what is to be checked, and take what comes out of `result`.

    took    seconds of the case whose verdict came last
    """

    def __init__(self, kinds: Mapping[str, Kind], jobs: int = 1, limits: Limits | None = None) -> None:
        self.kinds, self.limits = kinds, limits or Limits()
        self._home = Path(tempfile.mkdtemp(prefix="aotc-fuzz-"))
        self._waiting: deque[Task] = deque()
        self.took = 0.0
        self._workers = [self._started(k) for k in range(jobs)]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
        shutil.rmtree(self._home, ignore_errors=True)

    def _started(self, number: int) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        home = self._home / str(number)
        home.mkdir(exist_ok=True)
        sys.stdout.flush()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_serve, args=(self.kinds, self.limits, home, theirs), daemon=False)
        process.start()
        theirs.close()
        return _Worker(process, ours, home)

    def _replace(self, worker: _Worker) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        number = self._workers.index(worker)
        self._workers[number] = self._started(number)

    def submit(self, task: Task) -> None:
        """Put a case in the queue."""
        self._waiting.append(task)

    @property
    def pending(self) -> int:
        """Cases whose verdicts are not out yet."""
        return len(self._waiting) + sum(w.task is not None for w in self._workers)

    def result(self) -> tuple[Task, Verdict]:
        """The next verdict; there must be cases under way."""
        while True:
            for worker in self._workers:
                if worker.task is None and self._waiting:
                    worker.task, worker.stage = self._waiting.popleft(), ""
                    worker.started, worker.before = time.monotonic(), _seconds_of(worker.process.pid)
                    worker.pipe.send(worker.task)
            busy = {w.pipe: w for w in self._workers if w.task is not None}
            for pipe in wait(list(busy), timeout=0.5):
                worker = busy.pop(pipe)  # type: ignore[index]
                verdict = self._heard(worker)
                if verdict is not None:
                    return self._finish(worker, verdict)
            for worker in busy.values():
                if self._is_late(worker):
                    return self._finish(worker, self._late(worker))

    def _finish(self, worker: _Worker, verdict: Verdict) -> tuple[Task, Verdict]:
        task = worker.task
        assert task is not None
        worker.task = None
        worker.done += 1
        self.took = time.monotonic() - worker.started
        if worker.done >= CASES_EACH or not worker.process.is_alive():
            self._replace(worker)
        return task, verdict

    def _heard(self, worker: _Worker) -> Verdict | None:
        """What a worker says; None for no more than the stage that begins."""
        try:
            what, value = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            return self._died(worker)
        if what == "done":
            assert isinstance(value, Verdict)
            return value
        worker.stage = value
        return None

    def _died(self, worker: _Worker) -> Verdict:
        status = worker.process.exitcode or 0
        name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        tail = (worker.home / "stderr").read_bytes()[-4000:].decode("utf-8", "replace")
        trace = (worker.home / "trace").read_text(encoding="utf-8", errors="replace")
        if worker.stage.startswith("other:"):
            return Verdict("no reference", detail=f"{worker.stage} died of {name}")
        frames = [(m[1], m[2]) for m in FRAME.finditer(trace)][::-1]
        where = f"{name} while {worker.stage or 'making the case'} in {innermost(frames)}"
        return Verdict("signal", f"signal: {where}", f"{trace[-4000:]}\n{tail}")

    def _is_late(self, worker: _Worker) -> bool:
        waited, limit = time.monotonic() - worker.started, self.limits.seconds
        return waited > limit and (waited > 10 * limit or _seconds_of(worker.process.pid) - worker.before > limit)

    def _late(self, worker: _Worker) -> Verdict:
        """The verdict on a case that takes too long: where it is."""
        assert worker.process.pid is not None
        os.kill(worker.process.pid, signal.SIGUSR1)
        time.sleep(0.3)
        trace = (worker.home / "trace").read_text(encoding="utf-8", errors="replace")
        self._kill(worker)
        if worker.stage.startswith("other:"):
            return Verdict("no reference", detail=f"{worker.stage} takes too long")
        frames = [(m[1], m[2]) for m in FRAME.finditer(trace)][::-1]
        where = f"{worker.stage} in {innermost(frames)}"
        return Verdict("timeout", f"timeout: {where}", f"over {self.limits.seconds} s\n{trace[-4000:]}")

    def _kill(self, worker: _Worker) -> None:
        """A worker and what it started."""
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = entry.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            if int(text.rpartition(")")[2].split()[1]) == worker.process.pid:
                os.kill(int(entry.parent.name), signal.SIGKILL)
        worker.process.kill()
        worker.process.join()
