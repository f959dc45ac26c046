# SPDX-License-Identifier: Apache-2.0
"""Estimate the time of the statements of a kernel on one thread or a team of threads, in
nanoseconds.

The model is rough: it counts operations, and waiting for data in the caches of other threads. Sizes that are known at
run time only have their typical values in it, or the largest ones, where none are typical.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from aotc.tir import (
    INDEX,
    Binary,
    Buffer,
    Const,
    DividedNest,
    Expr,
    Load,
    MemoryEffects,
    Threads,
    ThreadSharedAccesses,
    Var,
    as_expr,
    largest_thread_share,
    simplify_stmt,
    substitute,
)
from aotc.tir.expr import operands, with_operands
from aotc.tir.expr_occurrences import occurrences
from aotc.tir.loops.buffer_access import Access
from aotc.tir.loops.loop_dependence import Ranges, known_trip_count, loop_var_interval, ranges_inside_loops
from aotc.tir.stmt import (
    Block,
    For,
    Kernel,
    Stmt,
    block_stmts_or_self,
    buffer_written_by,
    direct_child_stmts,
    direct_exprs_of_stmt,
    rebuild_stmt,
)


@dataclass
class _NumbersAsValues:
    """Replaces the numbers of a kernel by values. Statements and expressions that others share are replaced once.

    values    the value of each number
    """

    values: Mapping[Var, Expr]
    _stmts: dict[Stmt, Stmt] = field(default_factory=dict)
    _exprs: dict[int, tuple[Expr, Expr]] = field(default_factory=dict)

    def of_stmt(self, stmt: Stmt) -> Stmt:
        """Return a statement after the replacement."""
        if stmt not in self._stmts:
            self._stmts[stmt] = rebuild_stmt(stmt, self.of_stmt, self._of_expr)
        return self._stmts[stmt]

    def _of_expr(self, expr: Expr) -> Expr:
        if isinstance(expr, (Var, Const)):
            return self.values.get(expr, expr) if isinstance(expr, Var) else expr
        known = self._exprs.get(id(expr))
        if known is None:
            # the key is an identity: the expression is kept, so that no other one has it
            fresh = with_operands(expr, tuple([self._of_expr(part) for part in operands(expr)]))
            known = self._exprs[id(expr)] = expr, fresh
        return known[1]


@dataclass
class ThreadCostModel:
    """Time estimates for the statements of one kernel.

    kernel      the kernel
    constants   inputs that no thread writes
    whole       nanoseconds that one thread needs for the kernel
    threads     costs of barriers and data transfer on the target
    uses        memory effects of the statements
    """

    kernel: Kernel
    constants: AbstractSet[Buffer]
    whole: float
    threads: Threads
    uses: MemoryEffects
    _own_operations: dict[Stmt, int] = field(default_factory=dict)
    _operations_without_loops: dict[Stmt, float | None] = field(default_factory=dict)
    _at_typical_sizes: dict[Stmt, Stmt] = field(default_factory=dict)

    @cached_property
    def _typical_values(self) -> dict[Var, Expr]:
        """The typical values of the numbers of the kernel that are indices."""
        numbers = (number for number in self.kernel.numbers if number.var.dtype == INDEX)
        return {n.var: as_expr(int(n.most) if n.typical is None else n.typical) for n in numbers}

    @cached_property
    def _numbers_as_typical_values(self) -> _NumbersAsValues:
        return _NumbersAsValues(self._typical_values)

    def _with_typical_sizes(self, stmt: Stmt) -> Stmt:
        """Return a statement in which typical values stand for the numbers of the kernel, so that loops over tiles of
        all sizes have the iterations of a typical run. Values and addresses are not simplified.
        """
        if not self._typical_values:
            return stmt
        if isinstance(stmt, Block):
            return Block(tuple(map(self._with_typical_sizes, stmt.stmts)))
        if stmt not in self._at_typical_sizes:
            self._at_typical_sizes[stmt] = simplify_stmt(
                self._numbers_as_typical_values.of_stmt(stmt), {}, only_control_flow=True
            )
        return self._at_typical_sizes[stmt]

    def _mean_over_team_sizes(self, function: Callable[[int], float]) -> float:
        """Return the mean of a function of the number of threads, over the team sizes for which
        divisions are compared.
        """
        return sum(map(function, self.threads.teams)) / len(self.threads.teams)

    @cached_property
    def _mean_fraction_in_other_thread_caches(self) -> float:
        """The average fraction of a shared buffer that other threads have accessed last."""
        return self._mean_over_team_sizes(lambda threads: 1 - 1 / threads)

    def single_thread_ns(self, stmt: Stmt, ranges: Ranges) -> float:
        """Return the nanoseconds that one thread needs for a statement."""
        count = self._operation_and_store_count(self._with_typical_sizes(stmt), ranges)
        return self._estimated_ns_per_kernel_operation * count

    @cached_property
    def _estimated_ns_per_kernel_operation(self) -> float:
        """Estimated nanoseconds per operation of this kernel."""
        body = self._with_typical_sizes(self.kernel.body)
        return self.whole / max(1.0, self._operation_and_store_count(body, {}))

    def _operation_and_store_count(self, stmt: Stmt, ranges: Ranges) -> float:
        """Return the number of operations on values and of stores in a statement, over all
        iterations of its loops.
        """
        if isinstance(stmt, For):
            inner = ranges_inside_loops([stmt], ranges)
            low, high = inner[stmt.var]
            times = (high - low + 1) / stmt.step if high - low < math.inf else 1
            return max(0.0, times) * self._operation_and_store_count(stmt.body, inner)
        count = self._operation_and_store_count_without_loops(stmt)
        if count is not None:
            return count
        return self._own_operation_and_store_count(stmt) + sum(
            self._operation_and_store_count(s, ranges) for s in direct_child_stmts(stmt)
        )

    def _operation_and_store_count_without_loops(self, stmt: Stmt) -> float | None:
        """Return the number of operations and stores of a statement that contains no loops; None
        for others, whose number depends on the ranges of variables.
        """
        if stmt not in self._operations_without_loops:
            parts = [self._operation_and_store_count_without_loops(s) for s in direct_child_stmts(stmt)]
            known = [count for count in parts if count is not None]
            has_loops = isinstance(stmt, For) or len(known) < len(parts)
            count = None if has_loops else self._own_operation_and_store_count(stmt) + sum(known)
            self._operations_without_loops[stmt] = count
        return self._operations_without_loops[stmt]

    def _own_operation_and_store_count(self, stmt: Stmt) -> int:
        """Return the number of operations and stores of a statement, without those of statements
        nested in it.
        """
        if stmt not in self._own_operations:
            values = (item for e in direct_exprs_of_stmt(stmt) for item in occurrences(e))
            operation_count = sum(
                times for n, times in values if isinstance(n, Load) or (isinstance(n, Binary) and n.dtype != INDEX)
            )
            self._own_operations[stmt] = operation_count + (buffer_written_by(stmt) is not None)
        return self._own_operations[stmt]

    def slowest_thread_ns_of_divided_nests(
        self, parts: Sequence[Sequence[DividedNest]], group: Sequence[Stmt], ranges: Ranges
    ) -> float:
        """Return the nanoseconds of the slowest thread when loop nests of a group of statements are
        divided among threads.

        Includes waiting for data in the caches of other threads.
        """
        nests = [nest for part in parts for nest in part]
        inner, common, times = ranges, 0.0, 1
        for loop in nests[0].loops:
            inner, times = ranges_inside_loops([loop], inner), times * known_trip_count(loop)
            common += times * sum(
                self.single_thread_ns(s, inner)
                for s in block_stmts_or_self(loop.body)
                if not self.uses.thread_shared_buffers_written(s)
            )
        share = self._mean_over_team_sizes(partial(largest_thread_share, parts))
        largest = max(nests, key=lambda nest: nest.work_units_divided_among_threads)
        is_inner_first = nests[0].inner_first
        repeated = common * (1 - share) if is_inner_first else 0.0
        work = self.single_thread_ns(Block(group), ranges) * share + repeated
        order = (self.threads.reordered if is_inner_first else 1.0) * (
            self.threads.reordered if len(parts) > 1 else 1.0
        )
        return (work + self.cache_transfer_wait_ns(group, largest.outermost_divided_var, ranges)) * order

    def ns_of_loop_divided_evenly(self, loop: For, ranges: Ranges) -> float:
        """Return the nanoseconds of a thread that runs its share of the iterations of a loop, whose number is known at
        run time only: the largest share at the typical sizes.
        """
        # simplified, a loop of one iteration would give way to its body, which may be another loop
        begin, end = (substitute(limit, self._typical_values) for limit in (loop.begin, loop.end))
        low, high = loop_var_interval(replace(loop, begin=begin, end=end), ranges)
        count = max(1, int(high - low + 1)) if high - low < math.inf else 1
        share = self._mean_over_team_sizes(lambda threads: -(-count // threads) / count)
        return self.single_thread_ns(loop, ranges) * share + self.cache_transfer_wait_ns([loop], loop.var, ranges)

    def cache_transfer_wait_ns(self, group: Sequence[Stmt], divided_var: Var | None, ranges: Ranges) -> float:
        """Return the nanoseconds of waiting for data in the caches of other threads, if each thread
        has a share of every buffer.

        Buffers that are divided along `divided_var` cost nothing if the range of that variable
        covers most of the buffer: then the thread that needs an element has it in its own cache.
        """
        typical = Block(tuple(map(self._with_typical_sizes, group)))
        use = self.uses.accesses_to_thread_shared_buffers(typical, ranges)
        mine = self._mean_over_team_sizes(lambda threads: 1 / threads)
        # if a buffer was divided differently before, other threads have accessed a part of a
        # thread's own share
        mine_of_others = self._mean_over_team_sizes(lambda threads: (1 - 1 / threads) / threads)
        total = 0.0
        for buffer, relation in (*use.reads.items(), *use.writes.items()):
            span = max((_address_shift_over_var_range(access, divided_var) for access in relation.accesses), default=0)
            if 2 * span < buffer.size:
                read_part, own_part = (
                    (mine_of_others, mine_of_others) if span else (self._mean_fraction_in_other_thread_caches, mine)
                )
                total += self._cache_to_cache_transfer_ns(
                    buffer, _estimated_bytes_accessed(buffer, relation.accesses, ranges), read_part, own_part, use
                )
        return total

    def _cache_to_cache_transfer_ns(
        self,
        buffer: Buffer,
        nbytes: int,
        remotely_cached_read_fraction: float,
        written_fraction: float,
        accesses: ThreadSharedAccesses,
    ) -> float:
        """Return the nanoseconds to transfer data between caches.

        nbytes      bytes of the buffer that are accessed
        remotely_cached_read_fraction   fraction that is read from other caches
        written_fraction    fraction that is written here, or by the threads that write there next
        """
        fetching = (
            nbytes * remotely_cached_read_fraction / self.threads.fetched_bytes_per_ns
            if buffer in accesses.reads
            else 0.0
        )
        return fetching + (
            0.0 if buffer in self.constants else nbytes * written_fraction / self.threads.owned_bytes_per_ns
        )

    def ns_of_stmt_while_other_threads_wait(self, accesses: ThreadSharedAccesses, stmt: Stmt, ranges: Ranges) -> float:
        """Return the nanoseconds of a statement that one thread runs while the other threads wait.

        accesses    the accesses of the statement to buffers that threads share
        """
        if self._typical_values:
            accesses = self.uses.accesses_to_thread_shared_buffers(self._with_typical_sizes(stmt), ranges)
        places = {**accesses.reads, **accesses.writes}
        other_share = self._mean_fraction_in_other_thread_caches
        moving = sum(
            self._cache_to_cache_transfer_ns(
                b, _estimated_bytes_accessed(b, f.accesses, {}), other_share, other_share, accesses
            )
            for b, f in places.items()
        )
        return self.single_thread_ns(stmt, ranges) + moving


def _address_shift_over_var_range(access: Access, var: Var | None) -> int:
    """Return by how many elements the address of an access shifts over the whole range of a
    variable; a huge number if unknown.
    """
    if var is None or not access.form.depends_on(var):
        return 0
    low, high = access.ranges[var]
    step = access.form.coefficient(var)
    return 1 << 62 if step is None or high - low == math.inf else int(abs(step) * (high - low + 1))


def _estimated_bytes_accessed(buffer: Buffer, accesses: Sequence[Access], excluded_vars: Container[Var]) -> int:
    """Estimate the bytes of a buffer that some accesses touch, over the ranges of all variables
    except those in `excluded_vars`.
    """
    elements = 0.0 if accesses else math.inf
    for access in accesses:
        sizes = [
            access.ranges[v][1] - access.ranges[v][0] + 1
            for v in access.form.terms
            if isinstance(v, Var) and v in access.ranges and v not in excluded_vars
        ]
        elements += access.lanes * math.prod(sizes)
    return int(min(elements, buffer.size)) * buffer.dtype.itemsize
