# SPDX-License-Identifier: Apache-2.0
"""Multithreaded kernels: every thread of a team runs the whole kernel, with its share of the
divided loops.

Input: a finished kernel. Output: a kernel for a team, or the kernel itself where threads gain
nothing. Thread number `PART` of `PARTS` runs:

    for i in 0..64: y[i] = ...       =>   lo = 64 * part / parts; hi = ...; for i in lo..hi: y[i] = ...
    sum = ...; for ...: sum += x[i]  =>   unchanged: what is in registers and on the stack, every thread computes
    y[0] = sum                       =>   if part == 0: y[0] = sum

A loop is divided only if its iterations are proven to write different elements that depend on no
other iteration, so the results are bit-identical for any number of threads. Between statements that
access common memory the threads wait for each other at a barrier (`Sync`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from aotc.ir import frozen
from aotc.tir import Block, Buffer, Costs, For, Leaf, Nest, Program, Threads, Use, Uses, alone, divided, largest_share
from aotc.tir.loops.loop_dependence import Ranges, extent_of, follows, inside, is_innermost, read
from aotc.tir.stmt import PART, If, Kernel, Stmt, Sync, remembered_kernel, stmts_of

COMMON: Final = Threads()
#: Number of units that is enough for any team: no further loops are divided.
_ENOUGH: Final = 64
#: Largest weight of a unit: times of the units of different loops are distinguished in this many
#: steps.
_WEIGHTS: Final = 8
#: Largest number of statements in a row (hundreds of concatenated tensors) of a kernel that is
#: divided: the proofs compare each pair of them.
_MOST_STATEMENTS: Final = 256


def for_teams(program: Program, threads: Threads) -> Program:
    """Return the program with each kernel that is large enough divided among threads; the memory
    plan does not change.
    """
    constants: dict[Kernel, set[Buffer]] = {}
    for step in program.steps:
        fixed = {b for b, v in zip(step.kernel.inputs, step.inputs, strict=True) if v.storage.kind == "constant"}
        constants[step.kernel] = constants.get(step.kernel, fixed) & fixed
    return program.with_kernels({kernel: for_team(kernel, fixed, threads) for kernel, fixed in constants.items()})


def for_team(kernel: Kernel, constants: AbstractSet[Buffer] = frozenset(), threads: Threads = COMMON) -> Kernel:
    """Return a kernel divided among the threads of a team; the kernel itself if it is too small or
    nothing can be divided.

    constants   the inputs of the kernel that no thread writes
    threads     costs of threads on the target
    """
    nbytes = sum(b.nbytes for b in kernel.params)
    computing, moving = kernel.macs / threads.macs_per_ns, nbytes / threads.bytes_per_ns
    small = computing < threads.worth_ns and moving < threads.worth_moving_ns
    if kernel.source is not None or small or len(stmts_of(kernel.body)) > _MOST_STATEMENTS:
        return kernel
    kind = " ".join([f"team {threads}", *(str(k) for k, b in enumerate(kernel.inputs) if b in constants)])
    uses = Uses(kernel)
    splitter = _Splitter(uses, Costs(kernel, constants, max(computing, moving), threads, uses))
    made = remembered_kernel(kind, kernel, kernel.span, lambda: _divided(splitter, kernel))
    return made if made.team else kernel


def _divided(splitter: _Splitter, kernel: Kernel) -> Kernel:
    """Return a kernel divided among threads by `splitter`; the kernel itself if a single thread is
    not slower.
    """
    made = splitter.region(stmts_of(kernel.body), {})
    if made is None or not made.divided:
        return kernel
    if made.time >= splitter.costs.alone(splitter.uses.of(kernel.body, {}), kernel.body, {}):
        return kernel
    private = tuple(b for b in kernel.workspace if b in splitter.uses.private)
    return replace(kernel, body=Block(made.stmts), team=True, private=private)


@frozen
class _Made:
    """Statements that all threads run.

    stmts     the statements
    time      nanoseconds of the slowest thread
    divided   some statements are divided among the threads
    """

    stmts: list[Stmt]
    time: float
    divided: bool


@dataclass(frozen=True)
class _Splitter:
    """Divides one kernel among threads, given the memory effects and costs of its statements.

    `ranges` arguments hold the variables of outer loops of which every thread runs all iterations.
    """

    uses: Uses
    costs: Costs

    def region(self, stmts: Sequence[Stmt], ranges: Ranges) -> _Made | None:
        """Divide a sequence of statements, with barriers where they conflict; return None if that
        is impossible.

        Statements that cannot be divided are run by thread 0 alone, or by all threads if they write
        local memory only.

        stmts    the statements
        ranges   ranges of the variables of outer loops, of which every thread runs all iterations
        """
        self.uses.classify(stmts)
        found: list[Stmt] = []
        pending: list[Use] = []
        time, divided = 0.0, False
        for group in self._joined(stmts, ranges):
            block = Block(group)
            use = self.uses.of(block, ranges)
            made = _Made(list(group), self.costs.time(block, ranges) + self.costs.moving(group, None, ranges), False)
            if use.writes:
                shared = None if self.uses.hands_on(group, stmts, ranges) else self._shared(group, ranges)
                if shared is None and not self.uses.can_be_single(group):
                    return None
                use = use if shared is not None else replace(use, single=True)
                made = shared or _Made([If(PART.equal(0), block)], self.costs.alone(use, block, ranges), False)
            if any(use.conflicts(other) for other in pending):
                found.append(Sync())
                time += self.costs.threads.barrier_ns
                pending = []
            found += made.stmts
            time, divided = time + made.time, divided or made.divided
            pending.append(use)
        return _Made(found, time, divided)

    def _groups(self, stmts: Sequence[Stmt]) -> Iterator[list[Stmt]]:
        """Yield each loop that writes shared memory by itself, and the statements between loops as
        one group if they write.
        """
        for are_loops, run in groupby(stmts, lambda s: isinstance(s, For) and bool(self.uses.writes(s))):
            found = list(run)
            if are_loops or not any(self.uses.writes(s) for s in found):
                yield from ([s] for s in found)
            else:
                yield found

    def _joined(self, stmts: Sequence[Stmt], ranges: Ranges) -> Iterator[list[Stmt]]:
        """Yield the groups of `_groups`, with groups that continue the result of a loop joined to
        it, to be divided together.
        """
        groups = list(self._groups(stmts))
        while groups:
            group = groups.pop(0)
            if len(group) > 1 and not self.uses.is_closed(group):
                groups = [[s] for s in group] + groups
                group = groups.pop(0)
            while groups and self._continues(group, groups[0], ranges):
                group = [*group, *groups.pop(0)]
            yield group

    def _continues(self, group: Sequence[Stmt], after: Sequence[Stmt], ranges: Ranges) -> bool:
        """Return True if `after` is the remainder of the loop in `group`, or writes directly after
        its output (for example a border).
        """
        if not isinstance(group[0], For) or any(is_innermost(s) for s in (group[0], *after[:1]) if isinstance(s, For)):
            return False
        leaves = self._leaves([*group, *after], ranges)
        if leaves is None or len(leaves) < 2 or leaves[0].loop is not group[0]:
            return False
        if not isinstance(after[0], For):
            return any(self.uses.writes(s) for s in after)
        uses = [self.uses.of(Block(part), ranges).writes for part in (group, after)]
        behind = uses[0].keys() == uses[1].keys() and all(follows(uses[1][b], uses[0][b]) for b in uses[0])
        return behind and leaves[-1].loop is not None and self._are_alike(leaves, ranges)

    def _are_alike(self, leaves: Sequence[Leaf], ranges: Ranges) -> bool:
        """Return True if the units of all leaves take similar times, within a factor of two."""
        times = [
            self.costs.time(Block(leaf.stmts), ranges) / sum(n.units for n in self._finest(leaf, ranges))
            for leaf in leaves
        ]
        return max(times) <= 2 * min(times)

    def _finest(self, leaf: Leaf, ranges: Ranges) -> tuple[Nest, ...]:
        """Return loop nests for a leaf (a loop that can be divided), with as many nested loops
        divided as possible.
        """
        if leaf.loop is None:
            return (Nest((), leaf),)
        return max(self._nests([leaf.loop], ranges), key=lambda nests: sum(n.units for n in nests))

    def _leaves(self, stmts: Sequence[Stmt], ranges: Ranges) -> tuple[Leaf, ...] | None:
        """Return the divisible parts of statements; None if one must be complete before another
        part of them begins.
        """
        all_groups = list(self._groups(stmts))
        groups = [g for g in all_groups if any(self.uses.writes(s) for s in g)]
        common = Block(s for g in all_groups if g not in groups for s in g)
        uses = [self.uses.of(part, ranges) for part in (common, *map(Block, groups))]
        if any(a.conflicts(b) for k, a in enumerate(uses) for b in uses[:k]):
            return None
        if not all(self.uses.is_closed(g) and not self.uses.hands_on(g, stmts, ranges) for g in groups):
            return None
        return tuple(Leaf(tuple(g), self._dealt(g, ranges, len(groups) == 1)) for g in groups)

    def _dealt(self, group: Sequence[Stmt], ranges: Ranges, only: bool) -> For | None:
        """Return the loop of a group if its iterations can be divided; None if the group is one
        unit.
        """
        loop = group[0] if len(group) == 1 else None
        if not isinstance(loop, For) or extent_of(loop) == 0 or not self.uses.is_divisible(loop):
            return None
        return loop if not is_innermost(loop) or (only and not ranges) else None

    def _nests(self, group: Sequence[Stmt], ranges: Ranges) -> Iterator[tuple[Nest, ...]]:
        """Yield ways to divide the loops of a group: from the outermost loop alone to all nested
        loops.

        A way has several nests, whose units are numbered consecutively, if loops have remainders,
        which run after them.
        """
        leaves = self._leaves(group, ranges)
        loops: tuple[For, ...] = ()
        while leaves:
            if len(leaves) > 1 and loops and not self._can_be_parted(loops, leaves):
                return
            if len(leaves) == 1 or loops:
                nests = tuple(Nest(loops if len(leaves) == 1 else alone(loops, leaf), leaf) for leaf in leaves)
            elif sum(leaf.loop is not None for leaf in leaves) > 1:
                nests = tuple(nest for leaf in leaves for nest in self._finest(leaf, ranges))
            else:
                nests = tuple(Nest((), leaf) for leaf in leaves)
            yield nests
            loop = leaves[0].loop
            if len(leaves) > 1 or loop is None or nests[0].in_runs or (loops and nests[0].units >= _ENOUGH):
                return
            loops = (*loops, loop)
            ranges = inside([loop], ranges)
            leaves = self._leaves(stmts_of(loop.body), ranges)

    def _can_be_parted(self, loops: Sequence[For], leaves: Sequence[Leaf]) -> bool:
        """Return True if loops contain only the leaves, and the constants that are reread for each
        leaf fit in the cache.
        """
        known = {s for leaf in leaves for s in leaf.stmts} | set(loops)
        again = sum(b.nbytes for b in read(loops[0]) & self.costs.constants)
        return again <= self.costs.threads.cached_bytes and all(
            s in known for loop in loops for s in stmts_of(loop.body)
        )

    def _shared(self, group: Sequence[Stmt], ranges: Ranges) -> _Made | None:
        """Return the fastest division of a group by the cost model; None if there is none."""
        found: list[_Made] = []
        for made in self._nests(group, ranges):
            nests = self._weighed(made, ranges)
            turned = tuple(replace(n, inner_first=bool(n.loops) and n.leaf.loop is not None) for n in nests)
            for some in (nests, turned) if turned[0].inner_first else (nests,):
                apart = tuple((nest,) for nest in some)
                for parts in ((some,), apart) if len(some) > 1 else (apart,):
                    if largest_share(parts, 2) < 1:
                        found.append(_Made([divided(parts)], self.costs.of_parts(parts, group, ranges), True))
        if len(group) == 1 and isinstance(group[0], For):
            together = self._together(group[0], ranges)
            found += [together] if together is not None else []
        return min(found, key=lambda made: made.time, default=None)

    def _weighed(self, nests: Sequence[Nest], ranges: Ranges) -> tuple[Nest, ...]:
        """Return loop nests with weights proportional to the estimated times of their units."""
        times = [
            nest.rounds * self.costs.time(Block(nest.leaf.stmts), inside(nest.loops, ranges)) / nest.units
            for nest in nests
        ]
        weights = [max(1, round(_WEIGHTS * time / max(times))) if max(times) else 1 for time in times]
        return tuple(replace(nest, weight=weight) for nest, weight in zip(nests, weights, strict=True))

    def _together(self, loop: For, ranges: Ranges) -> _Made | None:
        """Return a loop of which every thread runs all iterations, with a divided body.

        Return None if most of the body's work would be repeated by every thread.
        """
        body, inner = stmts_of(loop.body), inside([loop], ranges)
        common = sum(self.costs.time(s, inner) for s in body if not self.uses.writes(s))
        if 2 * common > sum(self.costs.time(s, inner) for s in body):
            return None
        before = set(self.uses.private)
        made = self.region(body, inner)
        if made is None or not made.divided:
            self.uses.private.intersection_update(before)
            return None
        parallel = self.uses.is_divisible(loop)
        end = () if parallel else (Sync(),)
        rounds = max(1, extent_of(loop)) * (made.time + len(end) * self.costs.threads.barrier_ns)
        time = rounds * (self.costs.threads.reordered if parallel else 1.0)
        return _Made([replace(loop, body=Block([*made.stmts, *end]))], time, True)
