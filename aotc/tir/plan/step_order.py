# SPDX-License-Identifier: Apache-2.0
"""Order the steps of a program so that the peak memory usage is least.

Input: a Program whose temporaries have no addresses yet. Output: a Program with reordered steps if
this saves memory.

    a = f(x); b = g(x); c = h(b); y = a + c      # a is live while the large b is
    b = g(x); c = h(b); a = f(x); y = a + c

A step comes after every earlier step with which it shares memory that one of them writes. The order
with the least peak is a shortest path in the graph of sets of executed steps, where the length of a
path is its peak; it is found by Dijkstra's algorithm. Beyond `MAX_VISITED_STEP_SETS` sets a greedy
order is used: the next step is the step with the least usage during it, and among those with the
least usage after it.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from aotc.tir import Program, Step, Storage, align_up

#: Largest number of sets of executed steps that the search visits.
MAX_VISITED_STEP_SETS: Final = 20_000


def reorder_steps_for_least_peak(
    program: Program, shareable_bytes: Mapping[tuple[Storage, Storage], int] | None = None, align: int = 1
) -> Program:
    """Return the program with steps in the order of least peak memory; the original order if that
    is as good, or if the program has control flow.

    shareable_bytes    for (output, dying input) pairs: bytes that both can share while the output is computed
    align              alignment of every temporary in bytes
    """
    if program.has_control_flow:
        return program
    order = _StepOrderSearch(program, dict(shareable_bytes or {}), align).best_order_and_peak()[0]
    if order == tuple(range(len(program.steps))):
        return program
    return replace(program, body=tuple(program.steps[k] for k in order))


def least_peak_bytes(
    program: Program, shareable_bytes: Mapping[tuple[Storage, Storage], int] | None = None, align: int = 1
) -> int:
    """Return the peak memory usage in bytes under the order that `reorder_steps_for_least_peak`
    chooses.
    """
    return _StepOrderSearch(program, dict(shareable_bytes or {}), align).best_order_and_peak()[1]


def accessed_temporaries(step: Step) -> tuple[Storage, ...]:
    """Return the temporaries that a step reads or writes."""
    return tuple(dict.fromkeys(v.storage for v in step.args if v.storage.kind == "temp"))


def _bit_masks_of_preceding_steps(steps: Sequence[Step], resident: Mapping[Storage, Storage]) -> list[int]:
    """Return, for each step, the set of steps that must precede it, as a bit mask."""
    sets: list[int] = []
    writers: dict[Storage, int] = {}
    readers: dict[Storage, int] = {}
    ends = {*resident.values()}
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
        if step.inputs and step.inputs[0].storage in resident:
            # the caller has put these inputs into the arena before the first step
            entries |= 1 << k
        if step.outputs and step.outputs[0].storage in resident and step.inputs[0].storage in ends:
            before = (1 << k) - 1
        sets.append(before)
    return sets


@dataclass
class _StepOrderSearch:
    program: Program
    saved: dict[tuple[Storage, Storage], int]
    align: int
    predecessor_masks: list[int] = field(init=False)
    users: dict[Storage, int] = field(init=False)

    def __post_init__(self) -> None:
        self.predecessor_masks = _bit_masks_of_preceding_steps(self.program.steps, self.program.resident)
        self.users = {}
        for k, step in enumerate(self.program.steps):
            for storage in accessed_temporaries(step):
                self.users[storage] = self.users.get(storage, 0) | 1 << k

    def total_aligned_bytes_of_storages(self, storages: Iterable[Storage]) -> int:
        return sum(align_up(s.nbytes, self.align) for s in storages)

    def bytes_during_and_after_step(self, step_number: int, executed_mask: int, live_bytes: int) -> tuple[int, int]:
        """Return the bytes in use during and after step `step_number`, given `live_bytes` bytes
        before it and the executed steps `executed_mask`.
        """
        step, now = self.program.steps[step_number], executed_mask | 1 << step_number
        mentioned = accessed_temporaries(step)
        new = self.total_aligned_bytes_of_storages(s for s in mentioned if not self.users[s] & executed_mask)
        dying = [s for s in mentioned if self.users[s] & ~now == 0]
        twice = 0
        for out in step.outputs:
            twice += max((self.saved.get((out.storage, s), 0) for s in dying), default=0)
        return live_bytes + new - twice, live_bytes + new - self.total_aligned_bytes_of_storages(dying)

    def peak_bytes_of_order(self, order: Iterable[int]) -> int:
        done = live = most = 0
        for k in order:
            step_bytes, live = self.bytes_during_and_after_step(k, done, live)
            done, most = done | 1 << k, max(most, step_bytes)
        return most

    def best_order_and_peak(self) -> tuple[tuple[int, ...], int]:
        """Return the best order found and its peak; the original order unless another one is
        better.
        """
        original_order = tuple(range(len(self.program.steps)))
        bound = self.peak_bytes_of_order(original_order)
        new_order = self.least_peak_order_by_dijkstra(bound) or self.greedy_least_memory_step_order()
        peak = self.peak_bytes_of_order(new_order)
        return (new_order, peak) if peak < bound else (original_order, bound)

    def unexecuted_steps_ready_to_run(self, executed_mask: int) -> list[int]:
        return [
            k
            for k, before in enumerate(self.predecessor_masks)
            if not executed_mask >> k & 1 and before & ~executed_mask == 0
        ]

    def least_peak_order_by_dijkstra(self, peak_bound: int) -> tuple[int, ...] | None:
        """Return an order of least peak by Dijkstra's algorithm; None if no peak is below
        `peak_bound` or there are too many sets.
        """
        every = (1 << len(self.predecessor_masks)) - 1
        # (peak so far, number of remaining steps, bit mask of executed steps, live bytes)
        queue: list[tuple[int, int, int, int]] = [(0, len(self.predecessor_masks), 0, 0)]
        predecessors: dict[int, tuple[int, int]] = {}
        peaks = {0: 0}
        while queue:
            peak, left, done, live = heapq.heappop(queue)
            if done == every:
                return self._step_order_from_predecessor_masks(predecessors, done)
            if peak > peaks[done]:
                continue
            for k in self.unexecuted_steps_ready_to_run(done):
                step_bytes, live_after = self.bytes_during_and_after_step(k, done, live)
                now, most = done | 1 << k, max(peak, step_bytes)
                if most < peak_bound and most < peaks.get(now, peak_bound):
                    peaks[now], predecessors[now] = most, (done, k)
                    heapq.heappush(queue, (most, left - 1, now, live_after))
            if len(peaks) > MAX_VISITED_STEP_SETS:
                break
        return None

    def _step_order_from_predecessor_masks(
        self, predecessor: Mapping[int, tuple[int, int]], executed_mask: int
    ) -> tuple[int, ...]:
        order: list[int] = []
        while executed_mask:
            executed_mask, k = predecessor[executed_mask]
            order.append(k)
        return tuple(reversed(order))

    def greedy_least_memory_step_order(self) -> tuple[int, ...]:
        """Return the greedy order: next is the step with the least usage during it, then after it,
        then the first.
        """
        order: list[int] = []
        done = live = 0
        while len(order) < len(self.predecessor_masks):
            rows = [
                (*self.bytes_during_and_after_step(k, done, live), k) for k in self.unexecuted_steps_ready_to_run(done)
            ]
            _, live, k = min(rows)
            order.append(k)
            done |= 1 << k
        return tuple(order)
