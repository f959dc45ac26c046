# SPDX-License-Identifier: Apache-2.0
"""Multithreaded kernels: every thread of a team runs the whole kernel, with its share of the
divided loops.

Input: a finished kernel. Output: a kernel for a team, or the kernel itself where threads gain
nothing. Thread number `THREAD_NUMBER` of `THREAD_COUNT` runs:

    for i in 0..64: y[i] = ...       =>   lo = 64 * part / parts; hi = ...; for i in lo..hi: y[i] = ...
    sum = ...; for ...: sum += x[i]  =>   unchanged: every thread computes what stays in registers and on the stack
    y[0] = sum                       =>   if part == 0: y[0] = sum

A loop is divided only if its iterations are proven to write different elements that depend on no
other iteration, so the results are bit-identical for any number of threads. Between statements that
access common memory the threads wait for each other at a barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Final

from aotc.ir import frozen
from aotc.ir.parallel_memo import memoize_in_parallel
from aotc.tir import (
    Block,
    Buffer,
    DividedLeaf,
    DividedNest,
    For,
    MemoryEffects,
    Program,
    ThreadCostModel,
    Threads,
    ThreadSharedAccesses,
    largest_thread_share,
    loops_stripped_to_leaf_stmts,
    thread_share_of_loop_of_run_time_extent,
    thread_share_of_nests,
    vars_and_buffers_in,
)
from aotc.tir.instruction_statements import block_barrier
from aotc.tir.loops.loop_dependence import Ranges, constant_trip_count, is_innermost, ranges_inside_loops, read_buffers
from aotc.tir.stmt import THREAD_NUMBER, If, Kernel, Stmt, block_stmts_or_self, memoized_kernel

DEFAULT_THREAD_COSTS: Final = Threads()
#: Number of units that is enough for any team: no further loops are divided.
_SUFFICIENT_UNITS: Final = 64
#: Number of iterations of a loop that is enough where loops in it have extents that are known at run time only: their
#: shares would be uneven, and proofs for them take long.
_SUFFICIENT_ITERATIONS_AROUND_RUN_TIME_EXTENTS: Final = 16
#: Largest weight of a unit: times of the units of different loops are distinguished in this many
#: steps.
_MAX_UNIT_WEIGHT: Final = 8
#: Largest number of statements in a row (hundreds of concatenated tensors) of a kernel that is
#: divided: the proofs compare each pair of them.
_MAX_DIVIDED_STATEMENTS: Final = 256


def parallelize_program(program: Program, thread_costs: Threads) -> Program:
    """Return the program with each kernel that is large enough divided among threads; the memory
    plan does not change.
    """
    constants: dict[Kernel, set[Buffer]] = {}
    for step in program.steps:
        fixed = {b for b, v in zip(step.kernel.inputs, step.inputs, strict=True) if v.storage.kind == "constant"}
        constants[step.kernel] = constants.get(step.kernel, fixed) & fixed
    memoize_in_parallel(
        [partial(parallelize_kernel, kernel, fixed, thread_costs) for kernel, fixed in constants.items()]
    )
    return program.replace_kernels(
        {kernel: parallelize_kernel(kernel, fixed, thread_costs) for kernel, fixed in constants.items()}
    )


def parallelize_kernel(
    kernel: Kernel, constant_inputs: AbstractSet[Buffer] = frozenset(), thread_costs: Threads = DEFAULT_THREAD_COSTS
) -> Kernel:
    """Return a kernel divided among the threads of a team; the kernel itself if it is too small or
    nothing can be divided.

    constant_inputs    the inputs of the kernel that no thread writes
    thread_costs       costs of threads on the target
    """
    nbytes = sum(b.nbytes for b in kernel.params)
    computing, moving = kernel.macs / thread_costs.macs_per_ns, nbytes / thread_costs.bytes_per_ns
    small = computing < thread_costs.worth_ns and moving < thread_costs.worth_moving_ns
    if kernel.source is not None or small or len(block_stmts_or_self(kernel.body)) > _MAX_DIVIDED_STATEMENTS:
        return kernel
    kind = " ".join([f"team {thread_costs}", *(str(k) for k, b in enumerate(kernel.inputs) if b in constant_inputs)])
    uses = MemoryEffects(kernel)
    splitter = _KernelDivider(
        uses, ThreadCostModel(kernel, constant_inputs, max(computing, moving), thread_costs, uses), bool(kernel.numbers)
    )
    new_kernel = memoized_kernel(kind, kernel, kernel.span, lambda: _divide_kernel_if_faster(splitter, kernel))
    return new_kernel if new_kernel.team else kernel


def _divide_kernel_if_faster(splitter: _KernelDivider, kernel: Kernel) -> Kernel:
    """Return a kernel divided among threads by `splitter`; the kernel itself if a single thread is
    not slower.
    """
    division = splitter.divide_stmts_among_threads(block_stmts_or_self(kernel.body), {})
    if division is None or not division.divided:
        return kernel
    if division.time >= splitter.costs.ns_of_stmt_while_other_threads_wait(
        splitter.uses.accesses_to_thread_shared_buffers(kernel.body, {}), kernel.body, {}
    ):
        return kernel
    private = tuple(b for b in kernel.workspace if b in splitter.uses.private)
    return replace(kernel, body=Block(division.stmts), team=True, private=private)


@frozen
class _DividedStmts:
    """Statements that all threads run.

    stmts     the statements
    time      nanoseconds of the slowest thread
    divided   some statements are divided among the threads
    """

    stmts: list[Stmt]
    time: float
    divided: bool


@dataclass(frozen=True)
class _KernelDivider:
    """Divides one kernel among threads, given the memory effects and costs of its statements.

    `ranges` arguments hold the variables of outer loops of which every thread runs all iterations.
    """

    uses: MemoryEffects
    costs: ThreadCostModel
    has_run_time_sizes: bool

    def divide_stmts_among_threads(self, stmts: Sequence[Stmt], ranges: Ranges) -> _DividedStmts | None:
        """Divide a sequence of statements, with barriers where they conflict; return None if that
        is impossible.

        Statements that cannot be divided are run by thread 0 alone, or by all threads if they write
        local memory only.

        stmts    the statements
        ranges   ranges of the variables of outer loops, of which every thread runs all iterations
        """
        self.uses.mark_private_scratch_filled_before_read(stmts)
        new_stmts: list[Stmt] = []
        pending: list[ThreadSharedAccesses] = []
        time, divided = 0.0, False
        for group in self._groups_joined_to_continued_loops(stmts, ranges):
            block = Block(group)
            use = self.uses.accesses_to_thread_shared_buffers(block, ranges)
            division = _DividedStmts(
                list(group),
                self.costs.single_thread_ns(block, ranges) + self.costs.cache_transfer_wait_ns(group, None, ranges),
                False,
            )
            if use.writes:
                shared = (
                    None
                    if self.uses.may_later_stmts_read_private_scratch(group, stmts, ranges)
                    else self._fastest_thread_division_of_group(group, ranges)
                )
                if shared is None and not self.uses.can_run_on_one_thread(group):
                    return None
                use = use if shared is not None else replace(use, single=True)
                division = shared or _DividedStmts(
                    [If(THREAD_NUMBER.equal(0), block)],
                    self.costs.ns_of_stmt_while_other_threads_wait(use, block, ranges),
                    False,
                )
            if any(use.needs_barrier_with(other) for other in pending):
                new_stmts.append(block_barrier())
                time += self.costs.threads.barrier_ns
                pending = []
            new_stmts += division.stmts
            time, divided = time + division.time, divided or division.divided
            pending.append(use)
        return _DividedStmts(new_stmts, time, divided)

    def _groups_split_at_shared_writing_loops(self, stmts: Sequence[Stmt]) -> Iterator[list[Stmt]]:
        """Yield each loop that writes shared memory by itself, and the statements between loops as
        one group if they write.
        """
        for are_loops, run in groupby(
            stmts, lambda s: isinstance(s, For) and bool(self.uses.thread_shared_buffers_written(s))
        ):
            run_stmts = list(run)
            if are_loops or not any(self.uses.thread_shared_buffers_written(s) for s in run_stmts):
                yield from ([s] for s in run_stmts)
            else:
                yield run_stmts

    def _groups_joined_to_continued_loops(self, stmts: Sequence[Stmt], ranges: Ranges) -> Iterator[list[Stmt]]:
        """Yield the groups of `_groups_split_at_shared_writing_loops`, with groups that continue
        the result of a loop joined to it, to be divided together.
        """
        groups = list(self._groups_split_at_shared_writing_loops(stmts))
        while groups:
            group = groups.pop(0)
            if len(group) > 1 and not self.uses.has_no_register_or_stack_flow_outside(group):
                groups = [[s] for s in group] + groups
                group = groups.pop(0)
            while groups and self._continues_output_of_loop_group(group, groups[0], ranges):
                group = [*group, *groups.pop(0)]
            yield group

    def _continues_output_of_loop_group(
        self, group: Sequence[Stmt], next_group: Sequence[Stmt], ranges: Ranges
    ) -> bool:
        """Return True if `next_group` is the remainder of the loop in `group`, or writes directly
        after its output (for example a border).
        """
        if not isinstance(group[0], For) or any(
            is_innermost(s) for s in (group[0], *next_group[:1]) if isinstance(s, For)
        ):
            return False
        leaves = self._divisible_parts_of_stmts([*group, *next_group], ranges)
        if leaves is None or len(leaves) < 2 or leaves[0].loop is not group[0]:
            return False
        if not isinstance(next_group[0], For):
            return any(self.uses.thread_shared_buffers_written(s) for s in next_group)
        uses = [self.uses.accesses_to_thread_shared_buffers(Block(part), ranges).writes for part in (group, next_group)]
        at_higher_addresses = uses[0].keys() == uses[1].keys() and all(
            uses[1][b].is_entirely_above(uses[0][b]) for b in uses[0]
        )
        return (
            at_higher_addresses
            and leaves[-1].loop is not None
            and self._do_leaf_units_take_similar_times(leaves, ranges)
        )

    def _do_leaf_units_take_similar_times(self, leaves: Sequence[DividedLeaf], ranges: Ranges) -> bool:
        """Return True if the units of all leaves take similar times, within a factor of two."""
        times = [
            self.costs.single_thread_ns(Block(leaf.stmts), ranges)
            / sum(n.work_units_divided_among_threads for n in self._finest_loop_division_of_leaf(leaf, ranges))
            for leaf in leaves
        ]
        return max(times) <= 2 * min(times)

    def _finest_loop_division_of_leaf(self, leaf: DividedLeaf, ranges: Ranges) -> tuple[DividedNest, ...]:
        """Return loop nests for a leaf (a loop that can be divided), with as many nested loops
        divided as possible.
        """
        if leaf.loop is None:
            return (DividedNest((), leaf),)
        return max(
            self._possible_loop_divisions_of_group([leaf.loop], ranges),
            key=lambda nests: sum(n.work_units_divided_among_threads for n in nests),
        )

    def _divisible_parts_of_stmts(self, stmts: Sequence[Stmt], ranges: Ranges) -> tuple[DividedLeaf, ...] | None:
        """Return the divisible parts of statements; None if one must be complete before another
        part of them begins.
        """
        all_groups = list(self._groups_split_at_shared_writing_loops(stmts))
        groups = [g for g in all_groups if any(self.uses.thread_shared_buffers_written(s) for s in g)]
        common = Block(s for g in all_groups if g not in groups for s in g)
        uses = [self.uses.accesses_to_thread_shared_buffers(part, ranges) for part in (common, *map(Block, groups))]
        if any(a.needs_barrier_with(b) for k, a in enumerate(uses) for b in uses[:k]):
            return None
        if not all(
            self.uses.has_no_register_or_stack_flow_outside(g)
            and not self.uses.may_later_stmts_read_private_scratch(g, stmts, ranges)
            for g in groups
        ):
            return None
        return tuple(
            DividedLeaf(tuple(g), self._divisible_loop_of_single_stmt_group(g, ranges, len(groups) == 1))
            for g in groups
        )

    def _divisible_loop_of_single_stmt_group(
        self, group: Sequence[Stmt], ranges: Ranges, is_only_group: bool
    ) -> For | None:
        """Return the loop of a group if its iterations can be divided; None if the group is one
        unit.
        """
        loop = group[0] if len(group) == 1 else None
        if (
            not isinstance(loop, For)
            or not constant_trip_count(loop)
            or not self.uses.do_kind_and_buffers_allow_division(loop)
        ):
            return None
        return loop if not is_innermost(loop) or (is_only_group and not ranges) else None

    def _possible_loop_divisions_of_group(
        self, group: Sequence[Stmt], ranges: Ranges
    ) -> Iterator[tuple[DividedNest, ...]]:
        """Yield ways to divide the loops of a group: from the outermost loop alone to all nested
        loops.

        A way has several nests, whose units are numbered consecutively, if loops have remainders,
        which run after them.
        """
        leaves = self._divisible_parts_of_stmts(group, ranges)
        loops: tuple[For, ...] = ()
        while leaves:
            if len(leaves) > 1 and loops and not self._do_loops_hold_leaves_only_and_fit_cache(loops, leaves):
                return
            if len(leaves) == 1 or loops:
                nests = tuple(
                    DividedNest(loops if len(leaves) == 1 else loops_stripped_to_leaf_stmts(loops, leaf), leaf)
                    for leaf in leaves
                )
            elif sum(leaf.loop is not None for leaf in leaves) > 1:
                nests = tuple(nest for leaf in leaves for nest in self._finest_loop_division_of_leaf(leaf, ranges))
            else:
                nests = tuple(DividedNest((), leaf) for leaf in leaves)
            yield nests
            loop = leaves[0].loop
            if (
                len(leaves) > 1
                or loop is None
                or nests[0].is_divided_in_runs
                or self._has_enough_iterations_around_run_time_extents(loop)
                or (loops and nests[0].work_units_divided_among_threads >= _SUFFICIENT_UNITS)
            ):
                return
            loops = (*loops, loop)
            ranges = ranges_inside_loops([loop], ranges)
            leaves = self._divisible_parts_of_stmts(block_stmts_or_self(loop.body), ranges)

    def _do_loops_hold_leaves_only_and_fit_cache(self, loops: Sequence[For], leaves: Sequence[DividedLeaf]) -> bool:
        """Return True if loops contain only the leaves, and the constants that are reread for each
        leaf fit in the cache.
        """
        known = {s for leaf in leaves for s in leaf.stmts} | set(loops)
        again = sum(b.nbytes for b in read_buffers(loops[0]) & self.costs.constants)
        return again <= self.costs.threads.cached_bytes and all(
            s in known for loop in loops for s in block_stmts_or_self(loop.body)
        )

    def _fastest_thread_division_of_group(self, group: Sequence[Stmt], ranges: Ranges) -> _DividedStmts | None:
        """Return the fastest way to divide the loops of a group of statements among threads, by the
        cost model; None if they cannot be divided.
        """
        divisions: list[_DividedStmts] = []
        for division in self._possible_loop_divisions_of_group(group, ranges):
            nests = self._set_weights_to_unit_times(division, ranges)
            inner_first_nests = tuple(replace(n, inner_first=bool(n.loops) and n.leaf.loop is not None) for n in nests)
            for some in (nests, inner_first_nests) if inner_first_nests[0].inner_first else (nests,):
                single_parts = tuple((nest,) for nest in some)
                for parts in ((some,), single_parts) if len(some) > 1 else (single_parts,):
                    if largest_thread_share(parts, 2) < 1:
                        divisions.append(
                            _DividedStmts(
                                [thread_share_of_nests(parts)],
                                self.costs.slowest_thread_ns_of_divided_nests(parts, group, ranges),
                                True,
                            )
                        )
        if len(group) == 1 and isinstance(group[0], For):
            if self._is_divisible_loop_of_run_time_extent(group[0], ranges):
                time = self.costs.ns_of_loop_divided_evenly(group[0], ranges)
                divisions.append(_DividedStmts([thread_share_of_loop_of_run_time_extent(group[0])], time, True))
            if not (divisions and self._has_enough_iterations_around_run_time_extents(group[0])):
                body_division = self._divide_body_of_loop_run_by_all_threads(group[0], ranges)
                divisions += [body_division] if body_division is not None else []
        return min(divisions, key=lambda division: division.time, default=None)

    def _has_enough_iterations_around_run_time_extents(self, loop: For) -> bool:
        """Return True if a loop has iterations enough for a team, and loops inside it whose extents are known at run
        time only.
        """
        if not self.has_run_time_sizes:
            return False
        inner = (s for s in block_stmts_or_self(loop.body) if isinstance(s, For))
        is_long = (constant_trip_count(loop) or 0) >= _SUFFICIENT_ITERATIONS_AROUND_RUN_TIME_EXTENTS
        return is_long and any(constant_trip_count(s) is None for s in inner)

    def _is_divisible_loop_of_run_time_extent(self, loop: For, ranges: Ranges) -> bool:
        """Return True if the iterations of a loop, whose number is known at run time only, can be divided among
        threads. Those of an innermost loop are not: vectors and the rest may be rounded differently. Those of a loop
        inside a tile, whose bounds are variables of outer loops, are not either: the tile would not stay whole.
        """
        return (
            constant_trip_count(loop) is None
            and ranges.keys().isdisjoint((*vars_and_buffers_in(loop.begin), *vars_and_buffers_in(loop.end)))
            and loop.step == 1
            and not is_innermost(loop)
            and self.uses.do_kind_and_buffers_allow_division(loop)
            and self.uses.has_no_register_or_stack_flow_outside([loop])
        )

    def _set_weights_to_unit_times(self, nests: Sequence[DividedNest], ranges: Ranges) -> tuple[DividedNest, ...]:
        """Return loop nests with weights proportional to the estimated times of their units."""
        times = [
            nest.iterations_of_loops_around_leaf
            * self.costs.single_thread_ns(Block(nest.leaf.stmts), ranges_inside_loops(nest.loops, ranges))
            / nest.work_units_divided_among_threads
            for nest in nests
        ]
        weights = [max(1, round(_MAX_UNIT_WEIGHT * time / max(times))) if max(times) else 1 for time in times]
        return tuple(replace(nest, weight=weight) for nest, weight in zip(nests, weights, strict=True))

    def _divide_body_of_loop_run_by_all_threads(self, loop: For, ranges: Ranges) -> _DividedStmts | None:
        """Return a loop of which every thread runs all iterations, with a divided body.

        Return None if most of the body's work would be repeated by every thread.
        """
        body, inner = block_stmts_or_self(loop.body), ranges_inside_loops([loop], ranges)
        common = sum(
            self.costs.single_thread_ns(s, inner) for s in body if not self.uses.thread_shared_buffers_written(s)
        )
        if 2 * common > sum(self.costs.single_thread_ns(s, inner) for s in body):
            return None
        before = set(self.uses.private)
        division = self.divide_stmts_among_threads(body, inner)
        if division is None or not division.divided:
            self.uses.private.intersection_update(before)
            return None
        parallel = self.uses.do_kind_and_buffers_allow_division(loop)
        end = () if parallel else (block_barrier(),)
        rounds = max(1, constant_trip_count(loop) or 1) * (division.time + len(end) * self.costs.threads.barrier_ns)
        time = rounds * (self.costs.threads.reordered if parallel else 1.0)
        return _DividedStmts([replace(loop, body=Block([*division.stmts, *end]))], time, True)
