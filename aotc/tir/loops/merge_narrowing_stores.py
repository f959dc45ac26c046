# SPDX-License-Identifier: Apache-2.0
"""Merge four adjacent vector stores of floats quantized to bytes, as processors narrow four vectors
of 32 bits to one of bytes.

    y[i] = quantize_uint8(a, z); y[i + 16] = quantize_uint8(b, z)     ->  y[i] = quantize_uint8_x16(a, b, c, d, z)
    y[i + 32] = quantize_uint8(c, z); y[i + 48] = quantize_uint8(d, z)

Loops over vectors of bytes are unrolled by four, with a remainder loop.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import GROUP, LANES, Linear, linear, quantize_name, refreshed, simplify_stmt, substituted
from aotc.tir.expr import Buffer, Call, Expr, Load, Var, as_expr, loads_in, walk
from aotc.tir.loops.loop_dependence import assigned, counted, read, straight_line
from aotc.tir.stmt import Assign, Block, Declare, For, Stmt, Store, rebuilt, stmts_of

_BYTES: Final = {"quantize_int8": "int8", "quantize_uint8": "uint8"}
#: Largest number of statements of a loop body that is unrolled.
_LONGEST: Final = 24


def joined(stmt: Stmt, shared: frozenset[tuple[Buffer, Buffer]]) -> Stmt:
    """Return `stmt` with quantized bytes stored four vectors at a time.

    stmt     the statement
    shared   pairs of an output and an input buffer that may share memory
    """
    return _Joiner(shared).statement(stmt)


def _bytes_of(stmt: Stmt) -> Call | None:
    """Return the call that quantizes a vector to bytes, if a statement stores its result; else
    None.
    """
    value = stmt.value if isinstance(stmt, Store) else None
    found = isinstance(value, Call) and value.name in _BYTES and value.lanes in LANES
    return value if found and isinstance(value, Call) else None


@frozen
class _Joiner:
    """Merges stores of quantized bytes; `shared` are the pairs of buffers that may share memory."""

    shared: frozenset[tuple[Buffer, Buffer]]

    def statement(self, stmt: Stmt) -> Stmt:
        """Return a statement in which each four adjacent vector stores of quantized bytes are
        merged into one.
        """
        made = rebuilt(stmt, self.statement)
        if isinstance(made, For):
            return self.unrolled(made)
        return Block(self.together(made.stmts)) if isinstance(made, Block) else made

    def unrolled(self, loop: For) -> Stmt:
        """Return a loop over vectors unrolled by four, with its stores merged; the loop itself if
        that is not possible.

        The body must be straight-line code with a single store of bytes, which overwrites nothing
        that other iterations read.
        """
        body, values = straight_line(loop), counted(loop)
        stores = [s for s in body or () if isinstance(s, Store)]
        alone = len(stores) == 1 and _bytes_of(stores[0]) is not None and not assigned(loop)
        if not body or not alone or loop.kind != "independent":
            return loop
        if len(values) < GROUP or len(body) > _LONGEST:
            return loop
        (store,) = stores
        place = linear(store.index, {})
        if place.coefficient(loop.var) != 1 or loop.step != store.value.lanes:
            return loop
        if any(linear(n.index, {}) != place for n in self.beside(store, loop)):
            return loop
        whole = values.start + len(values) // GROUP * GROUP * loop.step
        var = Var(loop.var.name)
        rounds = [var + k * loop.step for k in range(GROUP)]
        bodies = [refreshed(loop.body) for _ in rounds]
        copies = [substituted(b, {loop.var: v}) for b, v in zip(bodies, rounds, strict=True)]
        made = self.together(stmts_of(simplify_stmt(Block(copies), {})))
        step = GROUP * loop.step
        first = For(var, whole, Block(made), begin=loop.begin, step=step, kind=loop.kind)
        if whole >= values.stop:
            return first
        rest = replace(loop, begin=as_expr(whole))
        return Block((first, refreshed(rest)))

    def beside(self, store: Store, loop: For) -> Iterator[Load]:
        """Yield the loads in a loop from the buffer that it stores to, or from a buffer that may
        share its memory.
        """
        for buffer in read(loop):
            if buffer is store.buffer or (store.buffer, buffer) in self.shared:
                yield from (n for s in stmts_of(loop.body) for n in _loads(s) if n.buffer is buffer)

    def together(self, stmts: Sequence[Stmt]) -> list[Stmt]:
        """Return statements with each four stores of adjacent bytes merged into one, at the
        position of the last store.
        """
        found, k = list(stmts), 0
        while k < len(found):
            places = self.four(found, k)
            if places:
                found = _merged(found, places)
            k += 1
        return found

    def four(self, stmts: Sequence[Stmt], first: int) -> list[int]:
        """Return the positions of four stores of adjacent bytes, the first of which is statement
        `first`; none if they do not exist.

        No statement between them may load bytes that would be stored later, or change the registers
        used.
        """
        call, store = _bytes_of(stmts[first]), stmts[first]
        if call is None or not isinstance(store, Store):
            return []
        places, known = [first], {*_variables(call.args[1]), *_variables(store.index)}
        at = linear(store.index, {})
        for k in range(first + 1, len(stmts)):
            stmt = stmts[k]
            if not isinstance(stmt, (Store, Declare, Assign)):
                return []
            if isinstance(stmt, Assign) and stmt.var in known:
                return []
            later = len(places) * call.lanes
            if not all(_is_apart(load, store.buffer, at, later) for load in _loads(stmt)):
                return []
            if not isinstance(stmt, Store) or stmt.buffer is not store.buffer:
                continue
            other = _bytes_of(stmt)
            apart = linear(stmt.index, {}).plus(at, -1)
            if other is None or (other.name, other.args[1]) != (call.name, call.args[1]):
                return []
            if apart.terms or apart.const != len(places) * call.lanes:
                return []
            places.append(k)
            if len(places) == GROUP:
                return places
        return []


def _is_apart(load: Load, buffer: Buffer, at: Linear, size: int) -> bool:
    """Return True if a load is proven not to access the `size` elements of a buffer from the
    address `at` on.
    """
    if load.buffer is not buffer:
        return True
    distance = linear(load.index, {}).plus(at, -1)
    return not distance.terms and (distance.const >= size or distance.const + load.lanes <= 0)


def _loads(stmt: Stmt) -> Iterator[Load]:
    """Return the loads in the value of a statement."""
    value = getattr(stmt, "value", None)
    return loads_in(value) if value is not None else iter(())


def _variables(expr: Expr) -> Iterator[Var]:
    """Return the variables in an expression."""
    return (n for n in walk(expr) if isinstance(n, Var))


def _merged(stmts: Sequence[Stmt], places: Sequence[int]) -> list[Stmt]:
    """Return statements in which four stores of quantized bytes are replaced by one, at the
    position of the last of them.

    Their float values are declared as registers at the positions of the stores.
    """
    found = list(stmts)
    taken: list[Expr] = []
    calls = [call for k in places if (call := _bytes_of(stmts[k])) is not None]
    for k, call in zip(places, calls, strict=True):
        register = Var("real", call.args[0].dtype, call.lanes)
        found[k] = Declare(register, call.args[0])
        taken.append(register)
    first, last = stmts[places[0]], calls[-1]
    assert isinstance(first, Store)
    name = quantize_name(_BYTES[last.name], last.lanes)
    store = Store(first.buffer, first.index, Call(name, (*taken, last.args[1])))
    return [*found[: places[-1] + 1], store, *found[places[-1] + 1 :]]
