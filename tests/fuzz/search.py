# SPDX-License-Identifier: Apache-2.0
"""Fuzzing: run many cases, group equal faults, minimize each and store it with the command that shows it."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.case import Files, Kind, Verdict, write
from tests.fuzz.workers import Limits, Task, Workers

TRIES, SECONDS = 300, 40.0
"""Variants that are checked to make a fault small, and the time that it may take."""
SEEDS = 1 << 32
LOOSELY = ("wrong", "sanitizer")
"""Faults whose signature may change on the way: which operator is to blame is clear in small graphs only."""


@dataclass
class Fault:
    """A fault: how often it was met, the first case that shows it, and where that is kept."""

    kind: str
    verdict: Verdict
    task: Task
    times: int = 1
    folder: Path | None = None


@dataclass
class Tally:
    """What came of a run.

    same    signatures that were met first, and those of the small cases that were made of them
    """

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    faults: dict[tuple[str, str], Fault] = field(default_factory=dict)
    seconds: float = 0.0
    same: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def add(self, kind: str, outcome: str) -> None:
        self.outcomes.setdefault(kind, Counter())[outcome] += 1

    def table(self) -> str:
        """Cases by kind and outcome, and the distinct faults."""
        names = sorted({name for found in self.outcomes.values() for name in found})
        rows = [f"{'kind':<12}{'cases':>9}" + "".join(f"{n:>14}" for n in names)]
        for kind, found in self.outcomes.items():
            rows.append(f"{kind:<12}{found.total():>9}" + "".join(f"{found[n]:>14}" for n in names))
        rows.append(f"{self.seconds:.0f} s, {len(self.faults)} distinct faults")
        for (kind, signature), fault in sorted(self.faults.items(), key=lambda f: -f[1].times):
            rows.append(f"{fault.times:>6} x {kind}: {signature}" + (f"  {fault.folder}" if fault.folder else ""))
        return "\n".join(rows)


def seeds(start: int) -> Callable[[int], int]:
    """The seed of the n-th case of a run that starts from a seed."""
    return lambda n: (start * 1_000_003 + n) % SEEDS


def fuzz(
    kinds: Mapping[str, Kind],
    *,
    seed: int,
    cases: Mapping[str, int] | None = None,
    seconds: float = float("inf"),
    jobs: int = 1,
    out: Path | None = None,
    limits: Limits | None = None,
    report: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Check cases of all kinds, until there were as many as `cases` says of each, or the time is over, of which each
    kind gets the same share.

    out       where faults are kept; nowhere for None, and nothing is made small then
    report    called now and then
    """
    tally, begun, told = Tally(), time.monotonic(), time.monotonic()
    of, done, busy = seeds(seed), Counter[str](), dict.fromkeys(kinds, 0.0)
    with Workers(kinds, jobs, limits) as workers:
        stopped = False
        while True:
            while not stopped and workers.pending < 2 * jobs:
                left = [k for k in kinds if cases is None or done[k] < cases[k]]
                stopped = not left or time.monotonic() - begun > seconds
                if not stopped:
                    kind = min(left, key=lambda k: (busy[k] if cases is None else 0.0, done[k]))
                    workers.submit(Task(kind, of(done[kind])))
                    done[kind] += 1
                    busy[kind] += 0.01  # until it is known
            if not workers.pending:
                break
            task, verdict = workers.result()
            busy[task.kind] += workers.took
            tally.add(task.kind, verdict.outcome)
            tally.seconds = time.monotonic() - begun
            if verdict.is_fault:
                _note(tally, kinds, task, verdict, out, limits)
            if time.monotonic() - told > 60:
                told = time.monotonic()
                report(tally)
    tally.seconds = time.monotonic() - begun
    return tally


def _note(
    tally: Tally, kinds: Mapping[str, Kind], task: Task, verdict: Verdict, out: Path | None, limits: Limits | None
) -> None:
    key = (task.kind, verdict.signature)
    key = tally.same.get(key, key)
    if key in tally.faults:
        tally.faults[key].times += 1
        return
    folder, final = None, verdict
    if out is not None:
        folder, final = keep(kinds[task.kind], task, verdict, out, limits)
    tally.same[key] = (task.kind, final.signature)
    known = tally.faults.setdefault(tally.same[key], Fault(task.kind, final, task, 0, folder))
    known.times += 1


def keep(kind: Kind, task: Task, verdict: Verdict, out: Path, limits: Limits | None = None) -> tuple[Path, Verdict]:
    """Make a fault small, and write it to a folder below `out`; the folder, and the verdict on what is in it."""
    files, final = shrunk(kind, task, verdict, limits)
    name = re.sub(r"[^A-Za-z0-9]+", "-", final.signature)[:80].strip("-")
    folder = out / f"{kind.name}-{name}-{hashlib.sha256(final.signature.encode()).hexdigest()[:6]}"
    write(files, folder)
    text = f"{final.signature}\nseed {task.seed}\n\n{kind.command(folder)}\n"
    text += f"python -m tests.fuzz replay {folder}\n\n{final.detail}\n"
    (folder / "FAULT.txt").write_text(text, encoding="utf-8")
    (folder / "kind").write_text(kind.name, encoding="utf-8")
    return folder, final


def _variants(kind: Kind, files: Files) -> Iterator[Files]:
    """Simpler variants, as far as the kind can make some of files that are wrong."""
    try:
        yield from kind.smaller(files)
    except Exception:  # such as an operator that has no definition for what it is given
        return


def shrunk(kind: Kind, task: Task, verdict: Verdict, limits: Limits | None = None) -> tuple[Files, Verdict]:
    """The smallest files found that show the fault of a case, and the verdict on them."""
    with Workers({kind.name: kind}, 1, limits) as workers:

        def shows(candidate: Task) -> Verdict | None:
            workers.submit(candidate)
            found = workers.result()[1]
            same = found.signature == verdict.signature
            return found if same or (found.outcome == verdict.outcome and found.outcome in LOOSELY) else None

        left, tries, end = TRIES, 0, time.monotonic() + SECONDS
        without: frozenset[int] = task.without
        if task.files is None:
            for k in range(8):
                fewer = Task(kind.name, task.seed, without | {k})
                if kind.make(task.seed, fewer.without) != kind.make(task.seed, without) and shows(fewer):
                    without = fewer.without
        files = kind.make(task.seed, without) if task.files is None else task.files
        final, progress = verdict, True
        while progress and tries < left and time.monotonic() < end:
            progress = False
            for candidate in _variants(kind, files):
                tries += 1
                found = shows(Task(kind.name, files=candidate))
                if found is not None:
                    files, final, progress = candidate, found, True
                    break
                if tries >= left or time.monotonic() > end:
                    break
        return files, final
