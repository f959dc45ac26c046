# SPDX-License-Identifier: Apache-2.0
"""Kernel fission: split a kernel into parts that can be launched one by one, which are parallel
loops and the code between.

    scale = exp(b[0])                            # not stored: every part that needs it computes it
    for i in 0..64 independent: row[i] = ...     # a part
    sum = 0; for i in 0..64: sum = sum + row[i]  # a part for one thread, which leaves `sum` in memory
    for i in 0..64 independent: y[i] = row[i] * scale / sum
    for k in 0..9: for i in 0..64 independent: y[i] = y[i] + x[k * 64 + i]     # a thread for each i

Scratch memory that one part fills and another part reads becomes a buffer that is passed to both.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import Gpu, Interval, Intrinsic, Kernel, Stmt, Use, Uses, stmt_exprs, walk_stmts, written, written_places
from aotc.tir.expr import INDEX, Buffer, Const, Expr, Load, Var, mentioned, operands, with_operands
from aotc.tir.loops.loop_dependence import Ranges, counted, extent_of, outer_assigns, read, read_places, why_not, window
from aotc.tir.stmt import Assign, Block, Declare, For, Store, While, changed, rebuilt, stmt_children, stmts_of

_FIRST: Final[Expr] = Const(0, INDEX)
#: Largest number of statements that one thread executes faster than a GPU starts another launch.
FEW: Final = 128


@frozen(eq=False)
class Part:
    """A part of a kernel: a loop of independent iterations, or consecutive statements for one
    thread.

    before   declarations of the registers that the part uses, recomputed or reloaded
    stmts    a single loop whose iterations are independent, or statements that one thread executes
    own      scratch of which each iteration needs its own copy
    """

    before: tuple[Stmt, ...]
    stmts: tuple[Stmt, ...]
    own: tuple[Buffer, ...] = ()

    @property
    def loop(self) -> For | None:
        """The loop of independent iterations that this part of a kernel is; None if the part is
        statements for one thread.
        """
        first = self.stmts[0] if self.stmts else None
        return first if isinstance(first, For) and len(self.stmts) == 1 and is_shared_out(first) else None

    @property
    def body(self) -> Block:
        """All statements of this part of a kernel, in order."""
        return Block((*self.before, *self.stmts))

    @property
    def is_launch(self) -> bool:
        """True if this part of a kernel has explicit loops over GPU blocks and threads."""
        return any(map(is_launch, self.stmts))

    @property
    def is_single(self) -> bool:
        """True if this part of a kernel is a loop of one iteration, around loops that the threads
        of one block share.
        """
        return self.loop is not None and extent_of(self.loop) == 1


@frozen(eq=False)
class Nest:
    """Nested loops of independent iterations around a body; the last loop is the one whose index
    counts fastest.

    loops           the loops, the outermost first
    body            the body of the innermost loop
    stack, shared   arrays that the body needs for each thread, and for each block
    thread          the variable of the thread index, if the threads of a block share each
                    iteration; else None
    """

    loops: tuple[For, ...]
    body: Block
    stack: tuple[Buffer, ...] = ()
    shared: tuple[Buffer, ...] = ()
    thread: Var | None = None

    @property
    def size(self) -> int:
        """The product of the trip counts of all loops of the nest."""
        return math.prod(map(extent_of, self.loops))

    def threads(self, gpu: Gpu) -> int:
        """Return the number of threads per GPU block for the nest, halved while that occupies more
        multiprocessors.
        """
        threads = gpu.threads
        if self.thread is not None:
            return threads
        while threads > gpu.warp and -(-self.size // threads) < gpu.processors:
            threads //= 2
        return threads

    def iteration(self, n: Expr) -> Block:
        """Return the body of the loop nest for the iteration whose row-major number is `n`, with
        declared loop variables.
        """
        digits: list[Expr] = []
        for loop in reversed(self.loops[1:]):
            digits.append(n % extent_of(loop))
            n = n // extent_of(loop)
        counted = zip(self.loops, [n, *reversed(digits)], strict=True)
        return Block((*(Declare(loop.var, loop.begin + digit * loop.step) for loop, digit in counted), self.body))


def is_shared_out(stmt: Stmt) -> bool:
    """Return True if a statement is a loop whose iterations may run on different threads:
    independent, of constant bounds, and without assignments to outer registers.
    """
    if not (isinstance(stmt, For) and stmt.kind == "independent" and counted(stmt)):
        return False
    return not any(True for _ in outer_assigns(stmt))


def is_launch(stmt: Stmt) -> bool:
    """Return True if a statement is a loop over GPU thread blocks."""
    return isinstance(stmt, For) and stmt.kind == "block"


def _inside_out(stmt: Stmt) -> Stmt:
    """Interchange a serial loop with the independent loop inside it, if the iterations of that loop
    carry no dependence.
    """
    if not isinstance(stmt, For) or stmt.kind == "independent":
        return stmt
    inside = [_inside_out(s) for s in stmts_of(stmt.body)]
    if len(inside) != 1 or not isinstance(inside[0], For) or not is_shared_out(inside[0]):
        return stmt
    made = replace(inside[0], body=replace(stmt, body=inside[0].body))
    return made if why_not(made, {}, ()) is None else stmt


def work(stmt: Stmt) -> int:
    """Return the number of statements executed by a statement; a loop of unknown length counts as
    `FEW` iterations.
    """
    total, stack = 0, [(stmt, 1)]
    while stack:
        node, times = stack.pop()
        inner = stmt_children(node)
        total += 0 if inner else times
        if isinstance(node, (For, While)):
            times *= (len(counted(node)) if isinstance(node, For) else 0) or FEW
        stack += [(s, times) for s in inner]
    return total


def _is_part(stmt: Stmt) -> bool:
    """Return True if a loop is a GPU launch already, or has enough work to be launched separately."""
    return is_launch(stmt) or (is_shared_out(stmt) and work(stmt) > FEW)


def whole(kernel: Kernel) -> Part:
    """Return a kernel as a single part (unit of kernel fission), which one GPU thread executes."""
    return Part((), stmts_of(kernel.body), kernel.stack)


def parts_of(kernel: Kernel) -> list[Part]:
    """Split a kernel into parts that can be launched separately, in order; a single part for one
    thread if that is impossible.
    """
    made = _with_registers(kernel)
    return [whole(kernel)] if made is None else _with_memory(kernel, made) or [whole(kernel)]


def ranked(kernel: Kernel, parts: Sequence[Part]) -> list[list[Part]]:
    """Group the parts of a kernel into runs: parts of one run are independent, and depend on parts
    of earlier runs only.
    """
    uses = Uses(kernel, {b for part in parts for b in part.own})
    used = [uses.of(part.body, {}) for part in parts]
    spans = [{b: _span(u, b) for b in u.reads | u.writes} for u in used]
    runs: list[list[Part]] = []
    at: list[int] = []
    for k, part in enumerate(parts):
        meeting = (j for j in range(k) if _meet(spans[j], spans[k]) and used[k].conflicts(used[j]))
        at.append(max((at[j] + 1 for j in meeting), default=0))
        if at[k] == len(runs):
            runs.append([])
        runs[at[k]].append(part)
    return runs


def _span(use: Use, buffer: Buffer) -> Interval:
    """Return the interval of elements of a buffer that a part may access; an infinite interval if
    that is unknown.
    """
    found = [use.reads.get(buffer), use.writes.get(buffer)]
    return (-math.inf, math.inf) if [] in found else window([a for some in found if some for a in some])


def _meet(a: Mapping[Buffer, Interval], b: Mapping[Buffer, Interval]) -> bool:
    """Return True if two parts access overlapping intervals of a common buffer."""
    return any(a[buffer][0] <= b[buffer][1] and b[buffer][0] <= a[buffer][1] for buffer in a.keys() & b.keys())


def _reads(stmts: Iterable[Stmt]) -> set[Var | Buffer]:
    """Return the registers and buffers that some statements read."""
    return {m for stmt in stmts for s in walk_stmts(stmt) for e in stmt_exprs(s) for m in mentioned(e)}


def _with_registers(kernel: Kernel) -> list[Part] | None:
    """Return the parts of a kernel, each with the registers that it needs; None if several parts
    change one register.

    A register computed from unchanging values is recomputed in each part; every other register is
    passed in memory.
    """
    stmts = [_inside_out(s) for s in stmts_of(kernel.body)]
    changing = written(kernel.body) | {s.var for s in walk_stmts(kernel.body) if isinstance(s, Assign)}
    declared = {s.var for s in stmts if isinstance(s, Declare)}
    again: dict[Var, Declare] = {}
    groups: list[list[Stmt]] = []
    for stmt in stmts:
        if isinstance(stmt, Declare) and stmt.var not in changing:
            needs = _reads([stmt])
            if changing.isdisjoint(needs) and needs & declared <= again.keys():
                again[stmt.var] = stmt
                continue
        joins = groups and not _is_part(stmt) and not _is_part(groups[-1][0])
        groups = [*groups[:-1], [*groups[-1], stmt]] if joins else [*groups, [stmt]]
    declares = [tuple(s.var for s in group if isinstance(s, Declare)) for group in groups]
    changes = [changed(Block(group)) for group in groups]
    reads = [_reads(group) for group in groups]
    kept: dict[Var, Buffer] = {}
    for k, own in enumerate(declares):
        others = [n for n in range(len(groups)) if n != k]
        if any(not changes[n].isdisjoint(own) for n in others):
            return None
        kept |= {var: Buffer(var.name, var.dtype, 1) for var in own if any(var in reads[n] for n in others)}
    return [_part(group, again, kept) for group in groups]


def _part(group: Sequence[Stmt], again: Mapping[Var, Declare], kept: Mapping[Var, Buffer]) -> Part:
    """Return a part (unit of kernel fission) from a group of statements.

    group   the statements
    again   declarations of registers that each part can recompute
    kept    buffers in which registers are passed from part to part
    """
    own = {s.var for s in group if isinstance(s, Declare)}
    needs = _reads(group)
    for declare in reversed(tuple(again.values())):
        needs |= _reads([declare]) if declare.var in needs else set()
    loaded = [Declare(var, Load(b, _FIRST)) for var, b in kept.items() if var in needs and var not in own]
    before = (*loaded, *(declare for var, declare in again.items() if var in needs))
    left = (Store(b, _FIRST, var) for var, b in kept.items() if var in own)
    return Part(before, (*group, *left))


def _with_memory(kernel: Kernel, parts: Sequence[Part]) -> list[Part] | None:
    """Make scratch that several parts of a kernel use a parameter of all of them, and remove parts
    without visible effect.

    Return None if a parallel loop then writes a buffer that its iterations need separately.
    """
    passed: dict[Buffer, Buffer] = {}
    uses = [(part, written(part.body), read(part.body)) for part in parts]
    for buffer in (*kernel.workspace, *kernel.stack):
        touching = [(part, w, r) for part, w, r in uses if buffer in w | r]
        if len(touching) < 2:
            continue
        if buffer.private and all(_is_filled_first(buffer, part.stmts, {}) for part, _, _ in touching):
            continue
        passed[buffer] = replace(buffer, scope="param", private=False)
    made: list[Part] = []
    for part, w, r in uses:
        local = (b for b in (*kernel.workspace, *kernel.stack) if b in w | r and b not in passed)
        own = tuple(b for b in local if b.private or b.scope == "stack")
        if w.issubset(own):
            continue  # no other part reads its results
        places = {b: (to, _FIRST) for b, to in passed.items()}
        before, stmts = (tuple(elsewhere(s, places) for s in some) for some in (part.before, part.stmts))
        made.append(Part(before, stmts, own))
        if places and made[-1].loop is not None and why_not(made[-1].loop, {}, ()) is not None:
            return None
    return made


def _is_filled_first(buffer: Buffer, stmts: Sequence[Stmt], ranges: Ranges, filled: Set[int] = frozenset()) -> bool:
    """Return True if statements read only elements of a scratch buffer that they wrote before, or
    that are in `filled`.
    """
    for stmt in stmts:
        if buffer in read(stmt):
            places = read_places(stmt, buffer, ranges)
            inside = stmt.body if isinstance(stmt, For) and buffer in written(stmt) else None
            known = places is not None and places <= filled
            if not known and (inside is None or not _is_filled_first(buffer, stmts_of(inside), ranges, filled)):
                return False
        if buffer in written(stmt):
            filled = filled | written_places(stmt, buffer, {})
    return True


def elsewhere(stmt: Stmt, places: Mapping[Buffer, tuple[Buffer, Expr]]) -> Stmt:
    """Return a statement with some buffers replaced by other buffers, in which they begin at an
    offset.
    """
    if not places:
        return stmt

    def moved(load: Load) -> Load:
        buffer, first = places.get(load.buffer, (load.buffer, _FIRST))
        return replace(load, buffer=buffer, index=first + load.index)

    def value(expr: Expr) -> Expr:
        made = with_operands(expr, tuple(map(value, operands(expr))))
        return moved(made) if isinstance(made, Load) and made.buffer in places else made

    fresh = rebuilt(stmt, lambda s: elsewhere(s, places), value)
    if isinstance(fresh, Intrinsic):
        fresh = replace(fresh, source=moved(fresh.source))
    if isinstance(fresh, (Store, Intrinsic)) and fresh.buffer in places:
        buffer, first = places[fresh.buffer]
        return replace(fresh, buffer=buffer, index=first + fresh.index)
    return fresh
