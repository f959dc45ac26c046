# SPDX-License-Identifier: Apache-2.0
"""Loop vectorization: strip-mine the independent loops of a kernel by the vector width.

    for i in 0..100: y[i] = max(x[i], 0)    ->    for i in 0..96 by 16: y[i:16] = max(x[i:16], 0)
                                                  y[84:16] = max(x[84:16], 0)

The last elements are computed by an overlapping vector where that is safe, else by a remainder
loop. Loops without a vector form do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import Block, Expr, Target, Var, in_registers, iterations, joined, minimum, packed, refreshed, substituted
from aotc.tir.expr import INDEX, Binary, Buffer, Call, Cast, Const, Load, Pack, Select, Unary, maximum, operands
from aotc.tir.loops.loop_dependence import extent_of, read, straight_line, written
from aotc.tir.loops.loop_dependence import inside as ranges_in
from aotc.tir.loops.statement_vectorization import ScalarError, vector_form, vectorized
from aotc.tir.simplify import Ranges, bounds, linear, simplify, simplify_stmt
from aotc.tir.stmt import Declare, For, Kernel, Stmt, Store, forall, nodes, rebuilt, remembered_kernel, walk_stmts

#: Smallest number of elements of a vector.
LEAST: Final = 4
#: Largest number of expression nodes of a loop that is fully unrolled.
_WRITTEN: Final = 200
#: Cost of a function call, or of an integer division, in simple operations.
_LONG: Final = 10
_DIVISIONS: Final = frozenset({"floordiv", "floormod", "truncdiv", "truncmod"})


def with_vectors(kernel: Kernel, target: Target) -> Kernel:
    """Return a kernel with its independent loops vectorized.

    Kernels of user-supplied C source, and all kernels on targets without vectors, are returned
    unchanged.
    """
    if kernel.source is not None or target.is_scalar:
        return kernel
    registers = target.registers // 2
    source = ("lanes", kernel, target.vector_bytes, registers)
    loops = _Lanes(target.vector_bytes, _shared(kernel))

    def make() -> Kernel:
        body = joined(loops.statement(kernel.body, {}), loops.shared)
        body = written_out(in_registers(body, registers))
        return replace(kernel, body=body, stack=(*kernel.stack, *loops.scratch))

    return remembered_kernel("lanes", source, kernel.span, make)


def why_scalar(loop: For, kernel: Kernel, ranges: Ranges) -> str:
    """Return the reason why a loop of a kernel is not vectorized, as text for reports.

    loop     the loop
    kernel   the kernel that contains it
    ranges   ranges of the loop variable and of the variables around the loop
    """
    extent = bounds(loop.end - loop.begin, ranges)[1]
    if extent < LEAST:
        return f"fewer elements than a vector has, {extent}"
    if loop.step != 1:
        return f"elements {loop.step} apart"
    if _Lanes(0, _shared(kernel)).reads_behind(loop):
        return "results that may lie where other elements are read"
    try:
        inside = _is_inside(loop.body, ranges)
        for packs in (True, False):  # computing elements one by one may be possible but too slow
            vector_form(*_of_lanes(loop, loop.begin), LEAST, {}, inside=inside, packs=packs)
    except ScalarError as error:
        return str(error)
    return f"numbers of which vectors have fewer than {LEAST}"


def _shared(kernel: Kernel) -> frozenset[tuple[Buffer, Buffer]]:
    """Return the pairs of an output and an input buffer that may share memory."""
    return frozenset((kernel.outputs[o], kernel.inputs[i]) for o, i in kernel.inplace)


@frozen
class _Lanes:
    """Vectorizes loops with vectors of `width` bytes.

    width     bytes of a vector
    shared    pairs of an output and an input buffer that may share memory
    scratch   new scratch buffers of packed loops
    """

    width: int
    shared: frozenset[tuple[Buffer, Buffer]]
    scratch: list[Buffer] = field(default_factory=list)

    def statement(self, stmt: Stmt, ranges: Ranges) -> Stmt:
        """Return a statement with its loops vectorized, innermost loops first: a loop is tried if
        no loop inside it has vectors.

        `ranges` are the ranges of the variables around the statement.
        """
        if isinstance(stmt, For):
            if (found := self._packed(stmt, ranges)) is not None:
                return found
            ranges = ranges_in([stmt], dict(ranges))
        made = rebuilt(stmt, lambda s: self.statement(s, ranges))
        if not isinstance(stmt, For) or stmt.kind != "independent" or stmt.step != 1 or made_of_vectors(made):
            return made
        if self.reads_behind(stmt):
            return made
        lanes, most = self.width // _widest(stmt), bounds(stmt.end - stmt.begin, ranges)[1]
        while lanes >= LEAST and most < 2 * lanes and not isinstance(stmt.end, Const):
            lanes //= 2  # a loop that may be empty would be hard to verify
        return self._vectors(stmt, lanes, _is_inside(stmt.body, ranges)) or made

    def _packed(self, nest: For, ranges: Ranges) -> Stmt | None:
        """Return a loop nest with its short inner loop packed (`pack_short_loops`) and vectorized;
        None if it cannot be packed.
        """
        shared = {buffer for pair in self.shared for buffer in pair}
        lanes = self.width // _widest(nest) if isinstance(nest.body, For) else 0
        found = packed(nest, lanes, dict(ranges), shared) if lanes >= LEAST else None
        if found is None:
            return None
        stmt, scratch = found
        self.scratch.extend(scratch)
        return self.statement(stmt, ranges)

    def _vectors(self, loop: For, lanes: int, inside: bool) -> Stmt | None:
        """Return a vectorized loop, with a remainder loop if needed; None if no vector width fits.

        lanes    elements of a vector; halved if the loop is shorter
        inside   all loads are within their buffers even where conditions are false
        """
        if lanes < LEAST:
            return None
        count = simplify(maximum(loop.end - loop.begin, 0) // lanes * lanes, {})
        if isinstance(count, Const) and count.value == 0:
            return self._vectors(loop, lanes // 2, inside)
        var, once = Var(loop.var.name), isinstance(count, Const) and count.value == lanes
        vectors = self._body(loop, loop.begin if once else var, lanes, inside)
        if vectors is None or not _pays(vectors):
            return None
        whole = simplify(loop.begin + count, {})
        end = whole if isinstance(whole, Const) else _less(loop.end, lanes - 1)
        most = vectors if once else forall(var, end, vectors, begin=loop.begin, step=lanes)
        if not isinstance(whole, Const):
            rest = Var("rest", INDEX)
            return Block((Declare(rest, whole), most, replace(loop, begin=rest)))
        if whole == loop.end:
            return most
        if (last := self._last(loop, whole, lanes, inside)) is not None:
            return Block((most, last))
        remainder = replace(loop, begin=whole, body=refreshed(loop.body))
        return Block((most, self._vectors(remainder, lanes // 2, inside) or remainder))

    def _last(self, loop: For, whole: Const, lanes: int, inside: bool) -> Stmt | None:
        """Return the elements from `whole` on computed by one vector, which may repeat some
        elements; None if that is unsafe.

        Repeating an iteration is safe if the loop reads nothing that it writes. Vectors with
        function calls have the width of the main loop, as each width would need its own definitions
        of the functions.
        """
        reads, writes = read(loop.body), written(loop.body)
        if writes & reads or any((w, r) in self.shared for w in writes for r in reads):
            return None
        rest = bounds(loop.end - whole, {})[1]
        called = (n for n in nodes(loop.body) if isinstance(n, Call))
        if not any(called):
            if rest == 1:
                return substituted(refreshed(loop.body), {loop.var: whole})
            while lanes // 2 >= max(rest, LEAST):
                lanes //= 2
        return self._body(loop, loop.end - lanes, lanes, inside)

    def _body(self, loop: For, first: Expr, lanes: int, inside: bool) -> Stmt | None:
        """Return the vector form of a loop body for `lanes` iterations from `first` on; None if it
        has none.
        """
        return vectorized(*_of_lanes(loop, first), lanes, {}, inside=inside, packs=True)

    def reads_behind(self, loop: For) -> bool:
        """Return True if a loop may read an input, through memory shared with an output, that it
        has overwritten.

        It may if one of several statements, or an inner loop, writes to an index other than the
        index that is read.
        """
        stores = [s for s in walk_stmts(loop.body) if isinstance(s, Store)]
        pairs = [(s, load) for s in stores for load in _loads(loop.body) if (s.buffer, load.buffer) in self.shared]
        alone = len(stores) == 1 and not any(isinstance(s, For) for s in walk_stmts(loop.body))
        return not alone and any(linear(s.index, {}) != linear(load.index, {}) for s, load in pairs)


def written_out(stmt: Stmt, repeated: bool = False) -> Stmt:
    """Return a statement with short scalar loops inside other loops fully unrolled, which C
    compilers do not do reliably.

    stmt       the statement
    repeated   the statement is inside a loop
    """
    inside = repeated or isinstance(stmt, For)
    made = rebuilt(stmt, lambda s: written_out(s, inside))
    if not isinstance(made, For) or not repeated or made_of_vectors(made):
        return made
    small = extent_of(made) * sum(1 for _ in nodes(made)) <= _WRITTEN
    if not 0 < extent_of(made) <= LEAST or not small or straight_line(made) is None:
        return made
    return Block(simplify_stmt(copy, {}) for copy in iterations(made))


def _less(end: Expr, by: int) -> Expr:
    """Return a loop end reduced by a number; for a minimum of several ends, each of them is
    reduced.
    """
    if isinstance(end, Binary) and end.op == "min":
        return minimum(_less(end.a, by), _less(end.b, by))
    return simplify(end - by, {})


def made_of_vectors(stmt: Stmt) -> bool:
    """Return True if a statement contains an expression of more than one lane."""
    return any(n.lanes > 1 for n in nodes(stmt))


def _loads(stmt: Stmt) -> Sequence[Load]:
    """Return all loads in a statement and the statements nested in it."""
    return [n for n in nodes(stmt) if isinstance(n, Load)]


def _widest(loop: For) -> int:
    """Return the bytes of the widest element type that a loop loads, stores or converts to, without
    index computations.

    Narrow floats count as 4 bytes, as they are computed in float32.
    """
    buffers = [b.dtype for b in read(loop.body) | written(loop.body)]
    converted = [n.dtype for n in nodes(loop.body) if isinstance(n, Cast) and n.dtype != INDEX]
    return max(4 if d.is_narrow_float else d.itemsize for d in (*buffers, *converted))


def _pays(vectors: Stmt) -> bool:
    """Return True if a vectorized body does at least as much vector work as scalar work.

    Scalar work is that of vectors whose elements are computed one by one and then packed.
    """
    packs = [n.parts[0] for n in nodes(vectors) if isinstance(n, Pack) and not isinstance(n.parts[0], Const)]
    computed = (n for n in nodes(vectors) if isinstance(n, (Binary, Call, Cast)) and n.lanes > 1)
    work = sum(_LONG if isinstance(n, Call) else 1 for n in computed)
    return not packs or work >= len(packs) + sum(map(_operations, packs))


def _operations(expr: Expr) -> int:
    """Return the number of operations in an expression, without those that compute the addresses of
    loads.
    """
    inner = () if isinstance(expr, Load) else operands(expr)
    own = _LONG if getattr(expr, "op", "") in _DIVISIONS else isinstance(expr, (Binary, Cast, Select, Unary))
    return own + sum(map(_operations, inner))


def _is_inside(stmt: Stmt, ranges: Ranges) -> bool:
    """Return True if all loads in a statement are within their buffers, even where the conditions
    around them are false.
    """
    known = ranges_in((s for s in walk_stmts(stmt) if isinstance(s, For)), dict(ranges))
    reached = ((load, bounds(load.index, known)) for load in _loads(stmt))
    return all(low >= 0 and high < load.buffer.size for load, (low, high) in reached)


def _of_lanes(loop: For, first: Expr) -> tuple[Stmt, Var]:
    """Return a loop body for iteration `first + lane`, and the new variable `lane`."""
    lane = Var("lane")
    return substituted(refreshed(loop.body), {loop.var: first + lane}), lane
