# SPDX-License-Identifier: Apache-2.0
"""Kernels for several threads: the same statements, of which every participant does its share.

In: a finished kernel.  Out: one for a team, or the very same where there is nothing to gain.  Every participant runs
the whole kernel with its own `PART` of `PARTS`:

    for i in 0..64: y[i] = ...       =>   lo = 64 * part / parts; hi = ...; for i in lo..hi: y[i] = ...
    sum = ...; for ...: sum += x[i]  =>   the same: what is in registers and on the stack, everybody computes
    y[0] = sum                       =>   if part == 0: y[0] = sum

Loops are divided only where their iterations provably write apart from each other, and what they write depends on
nothing but themselves: results are the same bits for any number of participants.  Between statements that touch the
same memory the participants wait for each other (`Sync`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from aotc.tir.expr import INDEX, Binary, Buffer, Load, Var, walk
from aotc.tir.loops.dependence import (
    Access,
    Ranges,
    collect,
    disjoint,
    extent_of,
    follows,
    is_filled_before_read,
    is_innermost,
    outer_assigns,
    range_of,
    read,
    written,
)
from aotc.tir.plan.program import Program, Step
from aotc.tir.stmt import (
    PART,
    Block,
    Declare,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Sync,
    Transpose,
    remembered_kernel,
    stmt_children,
    stmt_exprs,
    walk_stmts,
)
from aotc.tir.target import Threads
from aotc.tir.threads.division import Leaf, Nest, alone, divided, largest_share

COMMON: Final = Threads()
_ENOUGH: Final = 64
"""Units that any team can share evenly enough."""
_TEAMS: Final = (2, 4)
"""Numbers of participants that divisions are compared for."""
_WEIGHTS: Final = 8
"""Units of different loops are told apart by this many times."""
_MOST_STATEMENTS: Final = 256
"""Kernels of more statements in a row (hundreds of tensors joined) are not divided: proofs compare each with each."""


def for_teams(program: Program, threads: Threads) -> Program:
    """The program with each kernel that is worth it for a team; the plan stays as it is."""
    constants: dict[Kernel, set[Buffer]] = {}
    for step in program.steps:
        fixed = {b for b, v in zip(step.kernel.inputs, step.inputs, strict=True) if v.storage.kind == "constant"}
        constants[step.kernel] = constants.get(step.kernel, fixed) & fixed
    made = {kernel: for_team(kernel, constants[kernel], threads) for kernel in program.kernels}
    return replace(program, steps=tuple(_step(step, made[step.kernel]) for step in program.steps))


def _step(step: Step, kernel: Kernel) -> Step:
    return step if kernel is step.kernel else replace(step, kernel=kernel)


def for_team(kernel: Kernel, constants: AbstractSet[Buffer] = frozenset(), threads: Threads = COMMON) -> Kernel:
    """The kernel for a team; itself if it is too small, or nothing in it can be divided.

    constants    those of its inputs that nobody writes
    threads      what sharing costs on the machine
    """
    nbytes = sum(b.nbytes for b in kernel.params)
    computing, moving = kernel.macs / threads.macs_per_ns, nbytes / threads.bytes_per_ns
    small = computing < threads.worth_ns and moving < threads.worth_moving_ns
    if kernel.source is not None or small or len(_stmts(kernel.body)) > _MOST_STATEMENTS:
        return kernel
    kind = " ".join([f"team {threads}", *(str(k) for k, b in enumerate(kernel.inputs) if b in constants)])
    splitter = _Splitter(kernel, constants, max(computing, moving), threads)
    made = remembered_kernel(kind, kernel, kernel.span, lambda: _divided(splitter, kernel))
    return made if made.team else kernel


def _divided(splitter: _Splitter, kernel: Kernel) -> Kernel:
    made = splitter.region(_stmts(kernel.body), {}, frozenset())
    if made is None or not made.divided or made.time >= splitter.alone():
        return kernel
    private = tuple(b for b in kernel.workspace if b in splitter.private)
    return replace(kernel, body=Block(made.stmts), team=True, private=private)


def _stmts(stmt: Stmt) -> tuple[Stmt, ...]:
    return stmt.stmts if isinstance(stmt, Block) else (stmt,)


def _average(of_parts: Sequence[float]) -> float:
    return sum(of_parts) / len(of_parts)


def _largest(parts: Sequence[Sequence[Nest]]) -> float:
    """The share of the participant that has most to do."""
    return _average([largest_share(parts, p) for p in _TEAMS])


_OTHERS: Final = _average([1 - 1 / p for p in _TEAMS])
"""The part of a buffer that other participants have touched last."""
_MINE: Final = _average([1 / p for p in _TEAMS])
"""A participant's own part."""
_MINE_OF_OTHERS: Final = _average([(1 - 1 / p) / p for p in _TEAMS])
"""The same of a participant's own share, if it is dealt out in another way than before."""


@dataclass(frozen=True, slots=True)
class _Use:
    """The shared buffers that a statement reads and writes, with the places where (none if they cannot be told).

    single    one participant does it alone
    """

    reads: dict[Buffer, list[Access]]
    writes: dict[Buffer, list[Access]]
    single: bool = False

    def conflicts(self, other: _Use) -> bool:
        """Whether one must be over before the other begins."""
        if self.single and other.single:
            return False
        pairs = ((self.writes, other.writes), (self.writes, other.reads), (self.reads, other.writes))
        return not all(disjoint(a[b], c[b]) for a, c in pairs for b in a.keys() & c.keys())


@dataclass(frozen=True, slots=True)
class _Made:
    """Statements that all participants run through together, and the time of the one that has most to do."""

    stmts: list[Stmt]
    time: float
    divided: bool


@dataclass
class _Splitter:
    """One kernel's division.

    constants  inputs that nobody writes
    whole      nanoseconds that one participant needs for it
    threads    what sharing costs
    private    scratch of which each participant needs its own
    """

    kernel: Kernel
    constants: AbstractSet[Buffer]
    whole: float
    threads: Threads
    private: set[Buffer] = field(default_factory=set)
    _known_uses: dict[object, _Use] = field(default_factory=dict)
    _own_operations: dict[Stmt, int] = field(default_factory=dict)

    def alone(self) -> float:
        """The time if the first participant does it all."""
        return self._alone(self._use(self.kernel.body, {}), self.kernel.body, {})

    def region(self, stmts: Sequence[Stmt], ranges: Ranges, fixed: frozenset[Var]) -> _Made | None:
        """Statements that all participants run through together; None if they cannot.

        ranges   of the variables of loops outside, in which all participants go round together (`fixed`)
        """
        self._classify(stmts)
        found: list[Stmt] = []
        pending: list[_Use] = []
        time, divided = 0.0, False
        for group in self._joined(stmts, ranges, fixed):
            block = Block(group)
            use = self._use(block, ranges)
            made = _Made(list(group), self._time(block, ranges) + self._moving(group, None, ranges, fixed), False)
            if use.writes:
                shared = None if self._hands_on(group, stmts, ranges) else self._shared(group, ranges, fixed)
                if shared is None and not self._can_be_single(group):
                    return None
                use = use if shared is not None else replace(use, single=True)
                made = shared or _Made([If(PART.equal(0), block)], self._alone(use, block, ranges), False)
            if any(use.conflicts(other) for other in pending):
                found.append(Sync())
                time += self.threads.barrier_ns
                pending = []
            found += made.stmts
            time, divided = time + made.time, divided or made.divided
            pending.append(use)
        return _Made(found, time, divided)

    def _classify(self, stmts: Sequence[Stmt]) -> None:
        """Scratch is private where a statement of this region fills it and reads it; else one hands it to another."""
        for buffer in self.kernel.workspace:
            if buffer.private and any(buffer in written(s) and buffer in read(s) for s in stmts):
                self.private.add(buffer)

    def _is_local(self, buffer: Buffer) -> bool:
        return buffer.scope == "stack" or buffer in self.private

    def _writes(self, stmt: Stmt) -> set[Buffer]:
        return {b for b in written(stmt) if not self._is_local(b)}

    def _use(self, stmt: Stmt, ranges: Ranges) -> _Use:
        key = (_stmts(stmt), tuple(ranges.items()), frozenset(self.private))
        if key not in self._known_uses:
            self._known_uses[key] = self._found_use(stmt, ranges)
        return self._known_uses[key]

    def _found_use(self, stmt: Stmt, ranges: Ranges) -> _Use:
        reads: dict[Buffer, list[Access]] = {b: [] for b in read(stmt) if not self._is_local(b)}
        writes: dict[Buffer, list[Access]] = {b: [] for b in self._writes(stmt)}
        collect(stmt, ranges, reads, stores=False)
        collect(stmt, ranges, writes, reads=False)
        return _Use(reads, writes)

    def _can_be_single(self, group: Sequence[Stmt]) -> bool:
        """Whether nothing that every participant needs is left in registers or on the stack."""
        local = {b for s in group for b in written(s) if self._is_local(b)}
        return self._is_closed(group) and not self._is_used(local, group)

    def _is_closed(self, stmts: Sequence[Stmt]) -> bool:
        """Whether the statements leave nothing in registers or on the stack, and change no registers."""
        if any(True for _ in outer_assigns(Block(stmts))):
            return False
        declared = {s.var for s in stmts if isinstance(s, Declare)}
        local = {b for s in stmts for b in written(s) if self._is_local(b) and not b.private}
        return not self._is_used(declared | local, stmts)

    def _is_used(self, kept: AbstractSet[Var | Buffer], stmts: Sequence[Stmt]) -> bool:
        """Whether another statement of the kernel than these computes with one of the registers or buffers."""
        inside = set(walk_stmts(Block(stmts))) if kept else set()
        return any(s not in inside for k in kept for s in self._users.get(k, ()))

    @cached_property
    def _users(self) -> dict[Var | Buffer, dict[Stmt, None]]:
        """The statements of the kernel that compute with each register, and that load from each buffer."""
        found: dict[Var | Buffer, dict[Stmt, None]] = {}
        for stmt in walk_stmts(self.kernel.body):
            for node in (n for e in stmt_exprs(stmt) for n in walk(e) if isinstance(n, (Load, Var))):
                found.setdefault(node.buffer if isinstance(node, Load) else node, {})[stmt] = None
        return found

    # --- what may be dealt out

    def _groups(self, stmts: Sequence[Stmt]) -> Iterator[list[Stmt]]:
        """Loops that write, each by itself, and what stands between them in one piece, if it writes."""
        between: list[Stmt] = []
        for stmt in (*stmts, None):
            if stmt is not None and not (isinstance(stmt, For) and self._writes(stmt)):
                between.append(stmt)
                continue
            if any(self._writes(s) for s in between):
                yield between
            else:
                yield from ([s] for s in between)
            between = []
            if stmt is not None:
                yield [stmt]

    def _joined(self, stmts: Sequence[Stmt], ranges: Ranges, fixed: frozenset[Var]) -> Iterator[list[Stmt]]:
        """The same; what continues the results of a loop is dealt out with it."""
        groups = list(self._groups(stmts))
        while groups:
            group = groups.pop(0)
            if len(group) > 1 and not self._is_closed(group):
                groups = [[s] for s in group] + groups
                group = groups.pop(0)
            while groups and self._continues(group, groups[0], ranges, fixed):
                group = [*group, *groups.pop(0)]
            yield group

    def _continues(self, group: Sequence[Stmt], after: Sequence[Stmt], ranges: Ranges, fixed: frozenset[Var]) -> bool:
        """Whether statements are the rest of a loop, or loops like it write behind it: borders, one row after all."""
        if not isinstance(group[0], For) or any(is_innermost(s) for s in (group[0], *after[:1]) if isinstance(s, For)):
            return False
        leaves = self._leaves([*group, *after], ranges, fixed)
        if leaves is None or len(leaves) < 2 or leaves[0].loop is not group[0]:
            return False
        if not isinstance(after[0], For):
            return any(self._writes(s) for s in after)
        uses = [self._use(Block(part), ranges).writes for part in (group, after)]
        behind = uses[0].keys() == uses[1].keys() and all(follows(uses[1][b], uses[0][b]) for b in uses[0])
        return behind and leaves[-1].loop is not None and self._are_alike(leaves, ranges, fixed)

    def _are_alike(self, leaves: Sequence[Leaf], ranges: Ranges, fixed: frozenset[Var]) -> bool:
        """Whether units take much the same time."""
        times = [
            self._time(Block(leaf.stmts), ranges) / sum(n.units for n in self._finest(leaf, ranges, fixed))
            for leaf in leaves
        ]
        return max(times) <= 2 * min(times)

    def _finest(self, leaf: Leaf, ranges: Ranges, fixed: frozenset[Var]) -> tuple[Nest, ...]:
        """The leaf as a nest of its own, with as many loops as can be dealt out."""
        if leaf.loop is None:
            return (Nest((), leaf),)
        return max(self._nests([leaf.loop], ranges, fixed), key=lambda nests: sum(n.units for n in nests))

    def _leaves(self, stmts: Sequence[Stmt], ranges: Ranges, fixed: frozenset[Var]) -> tuple[Leaf, ...] | None:
        """What of these statements can be dealt out; None if some of it must be done before or after the rest."""
        all_groups = list(self._groups(stmts))
        groups = [g for g in all_groups if any(self._writes(s) for s in g)]
        common = Block(s for g in all_groups if g not in groups for s in g)
        uses = [self._use(part, ranges) for part in (common, *map(Block, groups))]
        if any(a.conflicts(b) for k, a in enumerate(uses) for b in uses[:k]):
            return None
        if not all(self._is_closed(g) and not self._hands_on(g, stmts, ranges) for g in groups):
            return None
        return tuple(Leaf(tuple(g), self._dealt(g, ranges, fixed, len(groups) == 1)) for g in groups)

    def _hands_on(self, group: Sequence[Stmt], stmts: Sequence[Stmt], ranges: Ranges) -> bool:
        """Whether a statement behind the group reads what this has left in private scratch."""
        left = {b for s in group for b in written(s) if b.private and self._is_local(b)}
        last = max(k for k, s in enumerate(stmts) if s is group[-1])
        return any(not is_filled_before_read(b, stmts[last + 1 :], ranges) for b in left)

    def _dealt(self, group: Sequence[Stmt], ranges: Ranges, fixed: frozenset[Var], only: bool) -> For | None:
        loop = group[0] if len(group) == 1 else None
        if not isinstance(loop, For) or extent_of(loop) == 0 or not self._is_parallel(loop, ranges, fixed):
            return None
        return loop if not is_innermost(loop) or (only and not fixed) else None

    def _nests(self, group: Sequence[Stmt], ranges: Ranges, fixed: frozenset[Var]) -> Iterator[tuple[Nest, ...]]:
        """Nests of the loops whose iterations may be dealt out, from the outermost one alone to all.

        Several, to be counted through, where there are rests; they are done after all of what they are rests of.
        """
        leaves = self._leaves(group, ranges, fixed)
        loops: tuple[For, ...] = ()
        while leaves:
            if len(leaves) > 1 and loops and not self._can_be_parted(loops, leaves):
                return
            if len(leaves) == 1 or loops:
                nests = tuple(Nest(loops if len(leaves) == 1 else alone(loops, leaf), leaf) for leaf in leaves)
            elif sum(leaf.loop is not None for leaf in leaves) > 1:
                nests = tuple(nest for leaf in leaves for nest in self._finest(leaf, ranges, fixed))
            else:
                nests = tuple(Nest((), leaf) for leaf in leaves)
            yield nests
            loop = leaves[0].loop
            if len(leaves) > 1 or loop is None or nests[0].in_runs or (loops and nests[0].units >= _ENOUGH):
                return
            loops, fixed = (*loops, loop), fixed | {loop.var}
            ranges = {**ranges, loop.var: range_of(loop, ranges)}
            leaves = self._leaves(_stmts(loop.body), ranges, fixed)

    def _can_be_parted(self, loops: Sequence[For], leaves: Sequence[Leaf]) -> bool:
        """Whether nothing else is in the loops, and what is read once more for the rests stays in the cache."""
        inside = {s for leaf in leaves for s in leaf.stmts} | set(loops)
        again = sum(b.nbytes for b in read(loops[0]) & self.constants)
        return again <= self.threads.cached_bytes and all(s in inside for loop in loops for s in _stmts(loop.body))

    def _shared(self, group: Sequence[Stmt], ranges: Ranges, fixed: frozenset[Var]) -> _Made | None:
        """The division that takes the least time; None if there is none."""
        found: list[_Made] = []
        for made in self._nests(group, ranges, fixed):
            nests = self._weighed(made, ranges)
            turned = tuple(replace(n, inner_first=bool(n.loops) and n.leaf.loop is not None) for n in nests)
            for some in (nests, turned) if turned[0].inner_first else (nests,):
                apart = tuple((nest,) for nest in some)
                for parts in ((some,), apart) if len(some) > 1 else (apart,):
                    if largest_share(parts, 2) < 1:
                        found.append(_Made([divided(parts)], self._time_of(parts, group, ranges, fixed), True))
        if len(group) == 1 and isinstance(group[0], For):
            together = self._together(group[0], ranges, fixed)
            found += [together] if together is not None else []
        return min(found, key=lambda made: made.time, default=None)

    def _weighed(self, nests: Sequence[Nest], ranges: Ranges) -> tuple[Nest, ...]:
        """With the time of a unit in each of them."""
        times = []
        for nest in nests:
            inner = ranges
            for loop in nest.loops:
                inner = {**inner, loop.var: range_of(loop, inner)}
            times.append(nest.rounds * self._time(Block(nest.leaf.stmts), inner) / nest.units)
        weights = [max(1, round(_WEIGHTS * time / max(times))) if max(times) else 1 for time in times]
        return tuple(replace(nest, weight=weight) for nest, weight in zip(nests, weights, strict=True))

    def _together(self, loop: For, ranges: Ranges, fixed: frozenset[Var]) -> _Made | None:
        """A loop that all go round together, its body divided; None if each would do most of it for itself."""
        inside, inner = _stmts(loop.body), {**ranges, loop.var: range_of(loop, ranges)}
        common = sum(self._time(s, inner) for s in inside if not self._writes(s))
        if 2 * common > sum(self._time(s, inner) for s in inside):
            return None
        before = set(self.private)
        made = self.region(_stmts(loop.body), inner, fixed | {loop.var})
        if made is None or not made.divided:
            self.private = before
            return None
        parallel = self._is_parallel(loop, ranges, fixed)
        end = () if parallel else (Sync(),)
        body = Block([*made.stmts, *end])
        rounds = max(1, extent_of(loop)) * (made.time + len(end) * self.threads.barrier_ns)
        time = rounds * (self.threads.reordered if parallel else 1.0)
        return _Made([replace(loop, body=body)], time, True)

    @cached_property
    def _all_read(self) -> set[Buffer]:
        return read(self.kernel.body)

    def _is_parallel(self, loop: For, ranges: Ranges, fixed: frozenset[Var]) -> bool:
        """Whether a participant may do some of the iterations, as far as the loop and its scratch say."""
        kept = {b for b in written(loop.body) if self._is_local(b) and not b.private}
        if kept & self._all_read:  # what one iteration leaves there another one may read
            return False
        turned = any(isinstance(s, Transpose) and not self._is_local(s.buffer) for s in walk_stmts(loop.body))
        return loop.kind == "independent" and not turned

    # --- how long it takes

    def _time(self, stmt: Stmt, ranges: Ranges) -> float:
        return self._pace * self._operations(stmt, ranges)

    @cached_property
    def _pace(self) -> float:
        """Nanoseconds of an operation."""
        return self.whole / max(1.0, self._operations(self.kernel.body, {}))

    def _operations(self, stmt: Stmt, ranges: Ranges) -> float:
        """Operations on values, and places written, over all iterations."""
        if isinstance(stmt, For):
            low, high = range_of(stmt, ranges)
            times = (high - low + 1) / stmt.step if high < math.inf else 1
            return max(0.0, times) * self._operations(stmt.body, {**ranges, stmt.var: (low, high)})
        if stmt not in self._own_operations:
            values = [n for e in stmt_exprs(stmt) for n in walk(e)]
            own = sum(isinstance(n, Load) or (isinstance(n, Binary) and n.dtype != INDEX) for n in values)
            self._own_operations[stmt] = own + isinstance(stmt, Store)
        return self._own_operations[stmt] + sum(self._operations(s, ranges) for s in stmt_children(stmt))

    def _time_of(
        self, parts: Sequence[Sequence[Nest]], group: Sequence[Stmt], ranges: Ranges, fixed: frozenset[Var]
    ) -> float:
        """Of the participant that has most to do, with waiting for what is in other caches."""
        nests = [nest for part in parts for nest in part]
        inner, common, times = ranges, 0.0, 1
        for loop in nests[0].loops:
            inner, times = {**inner, loop.var: range_of(loop, inner)}, times * extent_of(loop)
            common += times * sum(self._time(s, inner) for s in _stmts(loop.body) if not self._writes(s))
        share = _largest(parts)
        largest = max(nests, key=lambda nest: nest.units)
        turned = nests[0].inner_first
        repeated = common * (1 - share) if turned else 0.0
        work = self._time(Block(group), ranges) * share + repeated
        order = (self.threads.reordered if turned else 1.0) * (self.threads.reordered if len(parts) > 1 else 1.0)
        return (work + self._moving(group, largest.key, ranges, fixed)) * order

    def _moving(self, group: Sequence[Stmt], key: Var | None, ranges: Ranges, fixed: frozenset[Var]) -> float:
        """Waiting for what other participants have in their caches, if all had their parts of everything.

        Nobody waits if parts are dealt out by `key` and it goes through all of a buffer: every buffer is dealt out so.
        """
        use = self._use(Block(group), ranges)
        total = 0.0
        for buffer, found in (*use.reads.items(), *use.writes.items()):
            span = max((_reach(access, key) for access in found), default=0)
            if 2 * span < buffer.size:
                read_part, own_part = (_MINE_OF_OTHERS, _MINE_OF_OTHERS) if span else (_OTHERS, _MINE)
                total += self._waiting(buffer, _touched(buffer, found, fixed), read_part, own_part, use)
        return total

    def _waiting(self, buffer: Buffer, nbytes: int, read_part: float, own_part: float, use: _Use) -> float:
        """For parts of a buffer: to be read from other caches, and to be written here or by who writes there next."""
        fetching = nbytes * read_part / self.threads.fetched_bytes_per_ns if buffer in use.reads else 0.0
        return fetching + (0.0 if buffer in self.constants else nbytes * own_part / self.threads.owned_bytes_per_ns)

    def _alone(self, use: _Use, stmt: Stmt, ranges: Ranges) -> float:
        """If one participant does it."""
        places = {**use.reads, **use.writes}
        moving = sum(self._waiting(b, _touched(b, f, frozenset()), _OTHERS, _OTHERS, use) for b, f in places.items())
        return self._time(stmt, ranges) + moving


def _reach(access: Access, key: Var | None) -> int:
    """Elements from the first to the last value of a variable; all, if it cannot be told."""
    form, _, ranges, _ = access
    if key is None or not form.depends_on(key):
        return 0
    low, high = ranges[key]
    step = form.coefficient(key)
    return 1 << 62 if step is None or high == math.inf else int(abs(step) * (high - low + 1))


def _touched(buffer: Buffer, accesses: Sequence[Access], fixed: frozenset[Var]) -> int:
    """Bytes at these places, roughly."""
    elements = 0.0 if accesses else math.inf
    for form, lanes, ranges, _ in accesses:
        sizes = [
            ranges[v][1] - ranges[v][0] + 1 for v in form.terms if isinstance(v, Var) and v in ranges and v not in fixed
        ]
        elements += lanes * math.prod(sizes)
    return int(min(elements, buffer.size)) * buffer.dtype.itemsize
