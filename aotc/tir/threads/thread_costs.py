# SPDX-License-Identifier: Apache-2.0
"""Estimate the time of the statements of a kernel on one thread or a team of threads, in
nanoseconds.

The model is rough: it counts operations, and waiting for data in the caches of other threads.
"""

import math
from collections.abc import Callable, Container, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, partial

from aotc.tir import INDEX, Access, Binary, Buffer, Load, Nest, Threads, Use, Uses, Var, largest_share, walk
from aotc.tir.loops.loop_dependence import Ranges, extent_of, inside
from aotc.tir.stmt import Block, For, Kernel, Stmt, Store, stmt_children, stmt_exprs, stmts_of


@dataclass
class Costs:
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
    uses: Uses
    _own_operations: dict[Stmt, int] = field(default_factory=dict)

    def _average(self, of: Callable[[int], float]) -> float:
        """Return the mean of a function of the number of threads, over the team sizes for which
        divisions are compared.
        """
        return sum(map(of, self.threads.teams)) / len(self.threads.teams)

    @cached_property
    def _others(self) -> float:
        """The average fraction of a shared buffer that other threads have accessed last."""
        return self._average(lambda threads: 1 - 1 / threads)

    def time(self, stmt: Stmt, ranges: Ranges) -> float:
        """Return the nanoseconds that one thread needs for a statement."""
        return self._pace * self._operations(stmt, ranges)

    @cached_property
    def _pace(self) -> float:
        """Estimated nanoseconds per operation of this kernel."""
        return self.whole / max(1.0, self._operations(self.kernel.body, {}))

    def _operations(self, stmt: Stmt, ranges: Ranges) -> float:
        """Return the number of operations on values and of stores in a statement, over all
        iterations of its loops.
        """
        if isinstance(stmt, For):
            inner = inside([stmt], ranges)
            low, high = inner[stmt.var]
            times = (high - low + 1) / stmt.step if high - low < math.inf else 1
            return max(0.0, times) * self._operations(stmt.body, inner)
        if stmt not in self._own_operations:
            values = [n for e in stmt_exprs(stmt) for n in walk(e)]
            own = sum(isinstance(n, Load) or (isinstance(n, Binary) and n.dtype != INDEX) for n in values)
            self._own_operations[stmt] = own + isinstance(stmt, Store)
        return self._own_operations[stmt] + sum(self._operations(s, ranges) for s in stmt_children(stmt))

    def of_parts(self, parts: Sequence[Sequence[Nest]], group: Sequence[Stmt], ranges: Ranges) -> float:
        """Return the nanoseconds of the slowest thread when loop nests of a group of statements are
        divided among threads.

        Includes waiting for data in the caches of other threads.
        """
        nests = [nest for part in parts for nest in part]
        inner, common, times = ranges, 0.0, 1
        for loop in nests[0].loops:
            inner, times = inside([loop], inner), times * extent_of(loop)
            common += times * sum(self.time(s, inner) for s in stmts_of(loop.body) if not self.uses.writes(s))
        share = self._average(partial(largest_share, parts))
        largest = max(nests, key=lambda nest: nest.units)
        turned = nests[0].inner_first
        repeated = common * (1 - share) if turned else 0.0
        work = self.time(Block(group), ranges) * share + repeated
        order = (self.threads.reordered if turned else 1.0) * (self.threads.reordered if len(parts) > 1 else 1.0)
        return (work + self.moving(group, largest.key, ranges)) * order

    def moving(self, group: Sequence[Stmt], key: Var | None, ranges: Ranges) -> float:
        """Return the nanoseconds of waiting for data in the caches of other threads, if each thread
        has a share of every buffer.

        Buffers that are divided along `key` cost nothing if the range of that variable covers most
        of the buffer: then the thread that needs an element has it in its own cache.
        """
        use = self.uses.of(Block(group), ranges)
        mine = self._average(lambda threads: 1 / threads)
        # if a buffer was divided differently before, other threads have accessed a part of a
        # thread's own share
        mine_of_others = self._average(lambda threads: (1 - 1 / threads) / threads)
        total = 0.0
        for buffer, found in (*use.reads.items(), *use.writes.items()):
            span = max((_reach(access, key) for access in found), default=0)
            if 2 * span < buffer.size:
                read_part, own_part = (mine_of_others, mine_of_others) if span else (self._others, mine)
                total += self._waiting(buffer, _touched(buffer, found, ranges), read_part, own_part, use)
        return total

    def _waiting(self, buffer: Buffer, nbytes: int, read_part: float, own_part: float, use: Use) -> float:
        """Return the nanoseconds to transfer data between caches.

        nbytes      bytes of the buffer that are accessed
        read_part   fraction that is read from other caches
        own_part    fraction that is written here, or by the threads that write there next
        """
        fetching = nbytes * read_part / self.threads.fetched_bytes_per_ns if buffer in use.reads else 0.0
        return fetching + (0.0 if buffer in self.constants else nbytes * own_part / self.threads.owned_bytes_per_ns)

    def alone(self, use: Use, stmt: Stmt, ranges: Ranges) -> float:
        """Return the nanoseconds of a statement that one thread runs while the other threads wait."""
        places = {**use.reads, **use.writes}
        others = self._others
        moving = sum(self._waiting(b, _touched(b, f, {}), others, others, use) for b, f in places.items())
        return self.time(stmt, ranges) + moving


def _reach(access: Access, key: Var | None) -> int:
    """Return the number of elements that an access moves over the whole range of a variable; a huge
    number if unknown.
    """
    form, _, ranges, _ = access
    if key is None or not form.depends_on(key):
        return 0
    low, high = ranges[key]
    step = form.coefficient(key)
    return 1 << 62 if step is None or high - low == math.inf else int(abs(step) * (high - low + 1))


def _touched(buffer: Buffer, accesses: Sequence[Access], fixed: Container[Var]) -> int:
    """Estimate the bytes of a buffer that some accesses touch, over the ranges of all variables
    except those in `fixed`.
    """
    elements = 0.0 if accesses else math.inf
    for form, lanes, ranges, _ in accesses:
        sizes = [
            ranges[v][1] - ranges[v][0] + 1 for v in form.terms if isinstance(v, Var) and v in ranges and v not in fixed
        ]
        elements += lanes * math.prod(sizes)
    return int(min(elements, buffer.size)) * buffer.dtype.itemsize
