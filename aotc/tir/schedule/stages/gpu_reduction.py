# SPDX-License-Identifier: Apache-2.0
"""Long reductions on GPUs: partial results of elements a fixed distance apart, one per thread,
combined in two steps.

    for i in 0..9 independent {
        for l in 0..256 independent { s = 0; for k in l..9000 step 256 { s = s + x[i * 9000 + k] } part[l] = s }
        for a in 0..16 independent { s = part[a]; for j in 1..16 { s = s + part[16 * j + a] } fold[a] = s }
        s = fold[0]; for j in 1..16 { s = s + fold[j] }                      # every thread
        y[i] = s
    }

Each `l`, and each `a`, is a thread of a block (`aotc.tir.device.block_per_row`). If results are few
and have many elements, these are divided into parts for several blocks, whose results are reduced
afterwards. The order is fixed by the program; the number of partial results depends on the sizes
and the `Gpu`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import MOST_THREADS, Buffer, Expr, Gpu, Load, Store, Var, as_expr, binary, graph, literal, refreshed, te
from aotc.tir.stmt import Assign, Block, Declare, For, Stmt, loops

#: Least number of elements of a thread if reductions are divided; in parts; and the number from
#: which parts are used.
_LEAST: Final = 4
_PART: Final = 16
_MANY: Final = 64


@frozen(eq=False)
class Long:
    """The parts of a reduction: `acc` is set to `start`, `update` combines it with the elements by
    `op`, `finish` uses it.

    free      loops around the reduction, each iteration of which has a result
    scratch   function that allocates partial results (name, type, size, and keyword arguments)
    """

    op: str
    acc: Var
    start: Expr
    update: Stmt
    finish: Stmt
    free: Sequence[te.Axis]
    scratch: Callable[..., Buffer]

    @property
    def loops(self) -> list[For]:
        """The loops over the elements of a reduction, the outermost first; none if they do not
        begin at 0.
        """
        found, nest = list[For](), self.update
        while isinstance(nest, For):
            found.append(nest)
            nest = nest.body
        return found if all(literal(loop).start == 0 and literal(loop) for loop in found) else []

    @property
    def size(self) -> int:
        """The number of elements that are combined."""
        return math.prod(len(literal(loop)) for loop in self.loops) if self.loops else 0

    def elements(self, begin: Expr, end: Expr, step: int) -> Stmt:
        """Return the loop that combines the elements with numbers from `begin` to `end`, `step`
        apart.
        """
        *outer, inner = self.loops
        if not outer:
            return replace(inner, begin=begin, end=end, step=step)
        number = Var("k")
        places = graph.unflatten(number, [len(literal(loop)) for loop in self.loops])
        digits = (Declare(loop.var, place) for loop, place in zip(self.loops, places, strict=True))
        return For(number, end, Block((*digits, inner.body)), begin=begin, step=step, kind="reduction")


def in_pieces(long: Long, gpu: Gpu, results: int, *, across: bool, alone: bool) -> Stmt | None:
    """Return a long reduction split among GPU threads; None if a single thread per result is
    better.

    results   number of results
    across    elements of different results are adjacent in memory, elements of one result are not
    alone     no other statements are inside the loops around the reduction
    """
    size = long.size
    count = _pieces(size, results, gpu, across)
    each = size // count
    parts = min(size // (count * _PART), gpu.busy // (count * max(results, 1)))
    if not alone or each < _MANY or parts < 2:
        if not across and each >= _MANY and results < gpu.processors:
            count = min(4 * gpu.threads, MOST_THREADS)
        if count == 1:
            return None
        folded = _folded(long, count, as_expr(0), as_expr(size))
        return loops(long.free, folded, "independent")
    chunk = -(-size // (parts * count)) * count
    return _in_parts(long, gpu, results, count, chunk)


def _pieces(size: int, results: int, gpu: Gpu, across: bool) -> int:
    """Return the number of partial results for each result of a reduction; 1 if threads do not
    split it.
    """
    if across:
        columns = min(gpu.warp, _power(max(1, 2 * results - 1)))
        return _power(max(1, min(gpu.threads // columns, size // _LEAST, gpu.busy // max(1, results))))
    few = gpu.warp if results < gpu.busy // 4 else 2 * gpu.warp
    return 1 if size < few else min(max(gpu.warp, _power(size // 2)), gpu.threads)


def _power(number: int) -> int:
    """Return the largest power of two up to a number."""
    return 1 << (number.bit_length() - 1)


def _in_parts(long: Long, gpu: Gpu, results: int, count: int, chunk: int) -> Stmt:
    """Return the reduction of each part of the elements, executed by different blocks, followed by
    that of the parts' results.
    """
    part, other, place = Var("part"), Var("part"), as_expr(0)
    size, parts = long.size, -(-long.size // chunk)
    for var, extent in long.free:
        place = place * extent + var
    kept = long.scratch(f"{long.acc.name}_parts", long.acc.dtype, parts * results, shared=True)
    one = replace(long, finish=Store(kept, part * results + place, long.acc))
    first = _folded(one, count, part * chunk, binary("min", (part + 1) * chunk, size))
    total = binary(long.op, long.acc, Load(kept, other * results + place))
    update = For(other, parts, Assign(long.acc, total), kind="reduction")
    rest = replace(long, update=update)
    scalar = Block((Declare(long.acc, long.start), update, long.finish))
    last = in_pieces(rest, gpu, results, across=results > 1, alone=False) or loops(long.free, scalar, "independent")
    return Block((loops([(part, parts), *long.free], first, "independent"), refreshed(last)))


def _folded(long: Long, count: int, begin: Expr, end: Expr) -> Block:
    """Return the statements that compute partial results of elements `count` apart, and combine
    them in two steps.
    """
    part = long.scratch(f"{long.acc.name}_part", long.acc.dtype, count, private=True)
    lane, acc = Var("l"), Var(long.acc.name, long.acc.dtype)
    each = long.elements(begin + lane, end, count)
    own = refreshed(Block((Declare(long.acc, long.start), each, Store(part, lane, long.acc))))
    stmts: list[Stmt] = [For(lane, count, own, kind="independent")]
    groups = 1 << (count.bit_length() - 1) // 2
    if count > _PART:
        fold = long.scratch(f"{acc.name}_fold", acc.dtype, groups, private=True)
        group = Var("a")
        combined = _combined(long.op, acc, part, group, count // groups, groups)
        stmts.append(For(group, groups, Block((*combined, Store(fold, group, acc))), kind="independent"))
        part, count = fold, groups
    return Block((*stmts, *_combined(long.op, long.acc, part, as_expr(0), count, 1), long.finish))


def _combined(op: str, acc: Var, source: Buffer, first: Expr, count: int, step: int) -> tuple[Stmt, Stmt]:
    """Return statements that combine `count` elements, `step` apart, in the register `acc`."""
    j = Var("j")
    update = Assign(acc, binary(op, acc, Load(source, first + j * step)))
    return Declare(acc, Load(source, first)), For(j, count, update, begin=1, kind="reduction")
