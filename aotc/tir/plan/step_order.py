# SPDX-License-Identifier: Apache-2.0
"""The order of steps in which least memory is taken at once.

In: a Program whose temporaries have no place yet.  Out: one whose steps come in another order, if that needs less.

    a = f(x); b = g(x); c = h(b); y = a + c      # a waits while b is large
    b = g(x); c = h(b); a = f(x); y = a + c

Every step comes behind those that it shares memory with where one of them writes.  Among all orders the one with the
least peak is found by Dijkstra's algorithm on the sets of steps that are done, where the length of a way is the most
that is taken on it; beyond `SETS` of them each step is the one that takes least, and then leaves least behind.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from aotc.tir import Program, Step, Storage, align_up

#: Sets of steps that are looked at.
SETS: Final = 20_000


def ordered(program: Program, saved: Mapping[tuple[Storage, Storage], int] | None = None, align: int = 1) -> Program:
    """The program in the order that takes least memory, its own where that is as good.

    saved   bytes that need not be there twice while an output is computed from an input that dies
    align   bytes that every temporary is aligned to
    """
    found = _Search(program, dict(saved or {}), align).least()[0]
    if found == tuple(range(len(program.steps))):
        return program
    return replace(program, steps=tuple(program.steps[k] for k in found))


def least_peak(program: Program, saved: Mapping[tuple[Storage, Storage], int] | None = None, align: int = 1) -> int:
    """The bytes that a program takes at most in the order that `ordered` brings it into."""
    return _Search(program, dict(saved or {}), align).least()[1]


def touched(step: Step) -> tuple[Storage, ...]:
    """The temporaries that a step reads or writes."""
    return tuple(dict.fromkeys(v.storage for v in step.args if v.storage.kind == "temp"))


def _behind(steps: Sequence[Step], pinned: Mapping[Storage, Storage]) -> list[int]:
    """For each step the set, as bits, of those that it comes behind."""
    sets: list[int] = []
    writers: dict[Storage, int] = {}
    readers: dict[Storage, int] = {}
    ends = {*pinned.values()}
    entries = 0
    for k, step in enumerate(steps):
        before, inputs = entries, len(step.inputs)
        for n, view in enumerate(step.args):
            storage = view.storage
            if storage.kind == "constant":
                continue
            before |= writers.get(storage, 0)
            if n >= inputs:
                before |= readers.get(storage, 0)
                writers[storage] = writers.get(storage, 0) | 1 << k
            else:
                readers[storage] = readers.get(storage, 0) | 1 << k
        if step.inputs and step.inputs[0].storage in pinned:
            # what the caller has put into the arena is there from the beginning
            entries |= 1 << k
        if step.outputs and step.outputs[0].storage in pinned and step.inputs[0].storage in ends:
            before = (1 << k) - 1
        sets.append(before)
    return sets


@dataclass
class _Search:
    program: Program
    saved: dict[tuple[Storage, Storage], int]
    align: int
    behind: list[int] = field(init=False)
    users: dict[Storage, int] = field(init=False)

    def __post_init__(self) -> None:
        self.behind = _behind(self.program.steps, self.program.resident)
        self.users = {}
        for k, step in enumerate(self.program.steps):
            for storage in touched(step):
                self.users[storage] = self.users.get(storage, 0) | 1 << k

    def size(self, storages: Iterable[Storage]) -> int:
        return sum(align_up(s.nbytes, self.align) for s in storages)

    def after(self, k: int, done: int, live: int) -> tuple[int, int]:
        """Bytes taken during a step, and behind it, where so many live before."""
        step, now = self.program.steps[k], done | 1 << k
        mentioned = touched(step)
        new = self.size(s for s in mentioned if not self.users[s] & done)
        dying = [s for s in mentioned if self.users[s] & ~now == 0]
        twice = 0
        for out in step.outputs:
            twice += max((self.saved.get((out.storage, s), 0) for s in dying), default=0)
        return live + new - twice, live + new - self.size(dying)

    def peak(self, order: Iterable[int]) -> int:
        done = live = most = 0
        for k in order:
            taken, live = self.after(k, done, live)
            done, most = done | 1 << k, max(most, taken)
        return most

    def least(self) -> tuple[tuple[int, ...], int]:
        """The order of the least peak that is found, the program's own where that is as good, and this peak."""
        own = tuple(range(len(self.program.steps)))
        bound = self.peak(own)
        found = self.best(bound) or self.greedy()
        peak = self.peak(found)
        return (found, peak) if peak < bound else (own, bound)

    def ready(self, done: int) -> list[int]:
        return [k for k, before in enumerate(self.behind) if not done >> k & 1 and before & ~done == 0]

    def best(self, bound: int) -> tuple[int, ...] | None:
        """An order of the least peak, if that is below a bound; None where it is not, or there are too many sets."""
        every = (1 << len(self.behind)) - 1
        # the peak so far, what is not done yet, what is done
        queue: list[tuple[int, int, int, int]] = [(0, len(self.behind), 0, 0)]
        came: dict[int, tuple[int, int]] = {}
        peaks = {0: 0}
        while queue:
            peak, left, done, live = heapq.heappop(queue)
            if done == every:
                return self._way(came, done)
            if peak > peaks[done]:
                continue
            for k in self.ready(done):
                taken, kept = self.after(k, done, live)
                now, most = done | 1 << k, max(peak, taken)
                if most < bound and most < peaks.get(now, bound):
                    peaks[now], came[now] = most, (done, k)
                    heapq.heappush(queue, (most, left - 1, now, kept))
            if len(peaks) > SETS:
                break
        return None

    def _way(self, came: Mapping[int, tuple[int, int]], done: int) -> tuple[int, ...]:
        order: list[int] = []
        while done:
            done, k = came[done]
            order.append(k)
        return tuple(reversed(order))

    def greedy(self) -> tuple[int, ...]:
        """Always the step that takes least, then that which leaves least, then the first."""
        order: list[int] = []
        done = live = 0
        while len(order) < len(self.behind):
            rows = [(*self.after(k, done, live), k) for k in self.ready(done)]
            _, live, k = min(rows)
            order.append(k)
            done |= 1 << k
        return tuple(order)
