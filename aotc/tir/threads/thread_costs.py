# SPDX-License-Identifier: Apache-2.0
"""How long the statements of a kernel take one thread of a team, or all of them.  Nests in, nanoseconds out.

What is compared is rough: operations, and waiting for what other threads have in their caches.
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
    """Times of one kernel.

    constants  inputs that nobody writes
    whole      nanoseconds that one thread needs for it
    threads    what sharing costs
    """

    kernel: Kernel
    constants: AbstractSet[Buffer]
    whole: float
    threads: Threads
    uses: Uses
    _own_operations: dict[Stmt, int] = field(default_factory=dict)

    def _average(self, of: Callable[[int], float]) -> float:
        """The mean of a function of the number of threads, over the numbers that divisions are compared for."""
        return sum(map(of, self.threads.teams)) / len(self.threads.teams)

    @cached_property
    def _others(self) -> float:
        """The part of a buffer that other threads have touched last."""
        return self._average(lambda threads: 1 - 1 / threads)

    def time(self, stmt: Stmt, ranges: Ranges) -> float:
        return self._pace * self._operations(stmt, ranges)

    @cached_property
    def _pace(self) -> float:
        """Nanoseconds of an operation."""
        return self.whole / max(1.0, self._operations(self.kernel.body, {}))

    def _operations(self, stmt: Stmt, ranges: Ranges) -> float:
        """Operations on values, and places written, over all iterations."""
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
        """Nanoseconds of the thread that has most to do, with waiting for what is in other caches."""
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
        """Nanoseconds of waiting for what is in the caches of other threads, if each has its share of every buffer.

        Nobody waits for a buffer that is divided by `key`, where the variable goes through all of the buffer.
        """
        use = self.uses.of(Block(group), ranges)
        mine = self._average(lambda threads: 1 / threads)
        # of a buffer that is divided in another way than before, others have touched a part of a thread's own share
        mine_of_others = self._average(lambda threads: (1 - 1 / threads) / threads)
        total = 0.0
        for buffer, found in (*use.reads.items(), *use.writes.items()):
            span = max((_reach(access, key) for access in found), default=0)
            if 2 * span < buffer.size:
                read_part, own_part = (mine_of_others, mine_of_others) if span else (self._others, mine)
                total += self._waiting(buffer, _touched(buffer, found, ranges), read_part, own_part, use)
        return total

    def _waiting(self, buffer: Buffer, nbytes: int, read_part: float, own_part: float, use: Use) -> float:
        """Nanoseconds for parts of a buffer: read from other caches, and written here or by who writes there next."""
        fetching = nbytes * read_part / self.threads.fetched_bytes_per_ns if buffer in use.reads else 0.0
        return fetching + (0.0 if buffer in self.constants else nbytes * own_part / self.threads.owned_bytes_per_ns)

    def alone(self, use: Use, stmt: Stmt, ranges: Ranges) -> float:
        """Nanoseconds of a statement that one thread runs while the others wait."""
        places = {**use.reads, **use.writes}
        others = self._others
        moving = sum(self._waiting(b, _touched(b, f, {}), others, others, use) for b, f in places.items())
        return self.time(stmt, ranges) + moving


def _reach(access: Access, key: Var | None) -> int:
    """Elements from the first to the last value of a variable; all, if it cannot be told."""
    form, _, ranges, _ = access
    if key is None or not form.depends_on(key):
        return 0
    low, high = ranges[key]
    step = form.coefficient(key)
    return 1 << 62 if step is None or high - low == math.inf else int(abs(step) * (high - low + 1))


def _touched(buffer: Buffer, accesses: Sequence[Access], fixed: Container[Var]) -> int:
    """Bytes at these places, roughly."""
    elements = 0.0 if accesses else math.inf
    for form, lanes, ranges, _ in accesses:
        sizes = [
            ranges[v][1] - ranges[v][0] + 1 for v in form.terms if isinstance(v, Var) and v in ranges and v not in fixed
        ]
        elements += lanes * math.prod(sizes)
    return int(min(elements, buffer.size)) * buffer.dtype.itemsize
