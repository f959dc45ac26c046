# SPDX-License-Identifier: Apache-2.0
"""Kernels for several threads: every thread of a team runs all statements, and its share of the divided loops.

In: a finished kernel.  Out: one for a team, or the kernel itself where there is nothing to gain.  Every thread runs
the whole kernel with its own `PART` of `PARTS`:

    for i in 0..64: y[i] = ...       =>   lo = 64 * part / parts; hi = ...; for i in lo..hi: y[i] = ...
    sum = ...; for ...: sum += x[i]  =>   unchanged: what is in registers and on the stack, every thread computes
    y[0] = sum                       =>   if part == 0: y[0] = sum

Loops are divided only where their iterations provably write apart from each other, and what they write depends on
nothing but themselves: results have equal bits for any number of threads.  Between statements that touch common
memory the threads wait for each other at a barrier (`Sync`).
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
#: Units that any team can share evenly enough.
_ENOUGH: Final = 64
#: Units of different loops are told apart by this many times.
_WEIGHTS: Final = 8
#: Kernels of more statements in a row (hundreds of tensors joined) are not divided: proofs compare each with each.
_MOST_STATEMENTS: Final = 256


def for_teams(program: Program, threads: Threads) -> Program:
    """The program with each kernel that is worth it for a team; the plan stays as it is."""
    constants: dict[Kernel, set[Buffer]] = {}
    for step in program.steps:
        fixed = {b for b, v in zip(step.kernel.inputs, step.inputs, strict=True) if v.storage.kind == "constant"}
        constants[step.kernel] = constants.get(step.kernel, fixed) & fixed
    return program.with_kernels({kernel: for_team(kernel, fixed, threads) for kernel, fixed in constants.items()})


def for_team(kernel: Kernel, constants: AbstractSet[Buffer] = frozenset(), threads: Threads = COMMON) -> Kernel:
    """The kernel for a team; itself if it is too small, or nothing in it can be divided.

    constants    those of its inputs that nobody writes
    threads      what sharing costs on the machine
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
    made = splitter.region(stmts_of(kernel.body), {})
    if made is None or not made.divided:
        return kernel
    if made.time >= splitter.costs.alone(splitter.uses.of(kernel.body, {}), kernel.body, {}):
        return kernel
    private = tuple(b for b in kernel.workspace if b in splitter.uses.private)
    return replace(kernel, body=Block(made.stmts), team=True, private=private)


@frozen
class _Made:
    """Statements that all threads run, and the time of the thread that has most to do."""

    stmts: list[Stmt]
    time: float
    divided: bool


@dataclass(frozen=True)
class _Splitter:
    """One kernel's division: what its statements use, and what they cost.

    `ranges` are those of the variables of loops around, of which every thread runs all iterations.
    """

    uses: Uses
    costs: Costs

    def region(self, stmts: Sequence[Stmt], ranges: Ranges) -> _Made | None:
        """Statements that all threads run, with barriers between them; None if they cannot be divided so.

        ranges   of the variables of loops around, of which every thread runs all iterations
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
        """Loops that write, each by itself, and what stands between them in one piece, if it writes."""
        for are_loops, run in groupby(stmts, lambda s: isinstance(s, For) and bool(self.uses.writes(s))):
            found = list(run)
            if are_loops or not any(self.uses.writes(s) for s in found):
                yield from ([s] for s in found)
            else:
                yield found

    def _joined(self, stmts: Sequence[Stmt], ranges: Ranges) -> Iterator[list[Stmt]]:
        """The groups of `_groups`; what continues the results of a loop is joined to it, and divided with it."""
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
        """Whether statements are the remainder of a loop, or write behind it as it does: borders, one more row."""
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
        """Whether the units of all leaves take about as long."""
        times = [
            self.costs.time(Block(leaf.stmts), ranges) / sum(n.units for n in self._finest(leaf, ranges))
            for leaf in leaves
        ]
        return max(times) <= 2 * min(times)

    def _finest(self, leaf: Leaf, ranges: Ranges) -> tuple[Nest, ...]:
        """The leaf as a nest of its own, with as many loops as can be divided."""
        if leaf.loop is None:
            return (Nest((), leaf),)
        return max(self._nests([leaf.loop], ranges), key=lambda nests: sum(n.units for n in nests))

    def _leaves(self, stmts: Sequence[Stmt], ranges: Ranges) -> tuple[Leaf, ...] | None:
        """What of these statements can be divided; None if some of it must run before or after what remains."""
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
        loop = group[0] if len(group) == 1 else None
        if not isinstance(loop, For) or extent_of(loop) == 0 or not self.uses.is_divisible(loop):
            return None
        return loop if not is_innermost(loop) or (only and not ranges) else None

    def _nests(self, group: Sequence[Stmt], ranges: Ranges) -> Iterator[tuple[Nest, ...]]:
        """Nests of the loops whose iterations may be divided, from the outermost one alone to all.

        Several nests, whose units are counted on, where loops have remainders: these run after their main loops.
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
        """Whether nothing else is in the loops, and what is read once more for the remainders stays in the cache."""
        known = {s for leaf in leaves for s in leaf.stmts} | set(loops)
        again = sum(b.nbytes for b in read(loops[0]) & self.costs.constants)
        return again <= self.costs.threads.cached_bytes and all(
            s in known for loop in loops for s in stmts_of(loop.body)
        )

    def _shared(self, group: Sequence[Stmt], ranges: Ranges) -> _Made | None:
        """The division that takes the least time; None if there is none."""
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
        """The nests with the times of their units as weights."""
        times = [
            nest.rounds * self.costs.time(Block(nest.leaf.stmts), inside(nest.loops, ranges)) / nest.units
            for nest in nests
        ]
        weights = [max(1, round(_WEIGHTS * time / max(times))) if max(times) else 1 for time in times]
        return tuple(replace(nest, weight=weight) for nest, weight in zip(nests, weights, strict=True))

    def _together(self, loop: For, ranges: Ranges) -> _Made | None:
        """A loop that every thread runs in full, its body divided; None if each thread would do most of it alone."""
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
