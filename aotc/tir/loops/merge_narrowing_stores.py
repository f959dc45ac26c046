# SPDX-License-Identifier: Apache-2.0
"""Four neighboring vectors of floats that become bytes, as one: processors narrow four vectors at a time.

    y[i] = quantize_uint8(a, z); y[i + 16] = quantize_uint8(b, z)     ->  y[i] = quantize_uint8_x16(a, b, c, d, z)
    y[i + 32] = quantize_uint8(c, z); y[i + 48] = quantize_uint8(d, z)

Loops over such vectors take four of them at a time, then the others.
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
#: Statements of a body that is repeated.
_LONGEST: Final = 24


def joined(stmt: Stmt, shared: frozenset[tuple[Buffer, Buffer]]) -> Stmt:
    """`stmt` with its bytes stored four vectors at a time; `shared` are pairs of buffers that may share memory."""
    return _Joiner(shared).statement(stmt)


def _bytes_of(stmt: Stmt) -> Call | None:
    """What is rounded to bytes and stored."""
    value = stmt.value if isinstance(stmt, Store) else None
    found = isinstance(value, Call) and value.name in _BYTES and value.lanes in LANES
    return value if found and isinstance(value, Call) else None


@frozen
class _Joiner:
    shared: frozenset[tuple[Buffer, Buffer]]

    def statement(self, stmt: Stmt) -> Stmt:
        made = rebuilt(stmt, self.statement)
        if isinstance(made, For):
            return self.unrolled(made)
        return Block(self.together(made.stmts)) if isinstance(made, Block) else made

    def unrolled(self, loop: For) -> Stmt:
        """A loop over vectors, four of them in an iteration."""
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
        """Loads from what may be the memory that is stored to."""
        for buffer in read(loop):
            if buffer is store.buffer or (store.buffer, buffer) in self.shared:
                yield from (n for s in stmts_of(loop.body) for n in _loads(s) if n.buffer is buffer)

    def together(self, stmts: Sequence[Stmt]) -> list[Stmt]:
        """Statements with four stores of bytes next to each other as one, at the place of the last."""
        found, k = list(stmts), 0
        while k < len(found):
            places = self.four(found, k)
            if places:
                found = _merged(found, places)
            k += 1
        return found

    def four(self, stmts: Sequence[Stmt], first: int) -> list[int]:
        """The places of four stores that begin at one of them; none where there are not so many."""
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
    """Whether what is loaded is known not to be among so many elements from a place on."""
    if load.buffer is not buffer:
        return True
    distance = linear(load.index, {}).plus(at, -1)
    return not distance.terms and (distance.const >= size or distance.const + load.lanes <= 0)


def _loads(stmt: Stmt) -> Iterator[Load]:
    value = getattr(stmt, "value", None)
    return loads_in(value) if value is not None else iter(())


def _variables(expr: Expr) -> Iterator[Var]:
    return (n for n in walk(expr) if isinstance(n, Var))


def _merged(stmts: Sequence[Stmt], places: Sequence[int]) -> list[Stmt]:
    """The first three stores as registers, and the last one as a store of them all."""
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
