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
from aotc.tir import (
    BYTES_PER_DOT,
    INT32_VECTOR_LENGTHS,
    LinearForm,
    linear_form,
    quantize_instruction_name,
    rename_declared_vars,
    simplify_stmt,
    substitute_in_stmt,
)
from aotc.tir.expr import INDEX, Buffer, Call, Const, Expr, Load, Var, as_expr, loads_in, maximum, vars_and_buffers_in
from aotc.tir.loops.loop_dependence import (
    assigned_registers,
    constant_loop_range,
    decrement_loop_end,
    read_buffers,
    straight_line_stmts,
)
from aotc.tir.simplify import simplify
from aotc.tir.stmt import Assign, Block, Declare, For, Stmt, Store, block_stmts_or_self, rebuild_stmt

_RESULT_DTYPE_OF_QUANTIZE: Final = {"quantize_int8": "int8", "quantize_uint8": "uint8"}
#: Largest number of statements of a loop body that is unrolled.
_MAX_UNROLLED_STMTS: Final = 24


def merge_4_adjacent_quantized_byte_stores(stmt: Stmt, aliased_buffer_pairs: frozenset[tuple[Buffer, Buffer]]) -> Stmt:
    """Return `stmt` with quantized bytes stored four vectors at a time.

    stmt                    the statement
    aliased_buffer_pairs    pairs of an output and an input buffer that may share memory
    """
    return _QuantizedStoreMerger(aliased_buffer_pairs).merge_stores_in_stmt(stmt)


def _match_quantization_call_in_store(stmt: Stmt) -> Call | None:
    """Return the call that quantizes a vector to bytes, if a statement stores its result; else
    None.
    """
    value = stmt.value if isinstance(stmt, Store) else None
    is_quantization = (
        isinstance(value, Call) and value.name in _RESULT_DTYPE_OF_QUANTIZE and value.lanes in INT32_VECTOR_LENGTHS
    )
    return value if is_quantization and isinstance(value, Call) else None


@frozen
class _QuantizedStoreMerger:
    """Merges stores of quantized bytes; `shared` are the pairs of buffers that may share memory."""

    shared: frozenset[tuple[Buffer, Buffer]]

    def merge_stores_in_stmt(self, stmt: Stmt) -> Stmt:
        """Return a statement in which each four adjacent vector stores of quantized bytes are
        merged into one.
        """
        new_stmt = rebuild_stmt(stmt, self.merge_stores_in_stmt)
        if isinstance(new_stmt, For):
            return self.unroll_by_4_and_merge_stores(new_stmt)
        return Block(self.merge_adjacent_stores(new_stmt.stmts)) if isinstance(new_stmt, Block) else new_stmt

    def unroll_by_4_and_merge_stores(self, loop: For) -> Stmt:
        """Return a loop over vectors unrolled by four, with its stores merged; the loop itself if
        that is not possible.

        The body must be straight-line code with a single store of bytes, which overwrites nothing
        that other iterations read.
        """
        body, values = straight_line_stmts(loop), constant_loop_range(loop)
        stores = [s for s in body or () if isinstance(s, Store)]
        alone = (
            len(stores) == 1
            and _match_quantization_call_in_store(stores[0]) is not None
            and not assigned_registers(loop)
        )
        if not body or not alone or loop.kind != "independent" or len(body) > _MAX_UNROLLED_STMTS:
            return loop
        is_constant = isinstance(simplify(loop.end - loop.begin, {}), Const)
        if is_constant and len(values) < BYTES_PER_DOT:
            return loop
        (store,) = stores
        place = linear_form(store.index, {})
        if place.coefficient(loop.var) != 1 or loop.step != store.value.lanes:
            return loop
        if any(linear_form(n.index, {}) != place for n in self.loads_that_may_alias_store(store, loop)):
            return loop
        if not is_constant:
            return self.unroll_loop_of_unknown_length(loop)
        whole = values.start + len(values) // BYTES_PER_DOT * BYTES_PER_DOT * loop.step
        first = self.unrolled_loop(loop, as_expr(whole))
        if whole >= values.stop:
            return first
        rest = replace(loop, begin=as_expr(whole))
        return Block((first, rename_declared_vars(rest)))

    def unroll_loop_of_unknown_length(self, loop: For) -> Block:
        """Return a loop over vectors whose bounds are not constants, unrolled by four with its
        stores merged, and a loop over the remaining vectors.
        """
        step, rest = BYTES_PER_DOT * loop.step, Var("rest", INDEX)
        whole = simplify(loop.begin + maximum(loop.end - loop.begin + (loop.step - 1), 0) // step * step, {})
        first = self.unrolled_loop(loop, decrement_loop_end(loop.end, step - loop.step))
        return Block((Declare(rest, whole), first, rename_declared_vars(replace(loop, begin=rest))))

    def unrolled_loop(self, loop: For, end: Expr) -> For:
        """Return a loop over vectors, up to `end`, unrolled by four with its stores merged."""
        var = Var(loop.var.name)
        rounds = [var + k * loop.step for k in range(BYTES_PER_DOT)]
        bodies = [rename_declared_vars(loop.body) for _ in rounds]
        copies = [substitute_in_stmt(b, {loop.var: v}) for b, v in zip(bodies, rounds, strict=True)]
        merged_stmts = self.merge_adjacent_stores(block_stmts_or_self(simplify_stmt(Block(copies), {})))
        step = BYTES_PER_DOT * loop.step
        return For(var, end, Block(merged_stmts), begin=loop.begin, step=step, kind=loop.kind)

    def loads_that_may_alias_store(self, store: Store, loop: For) -> Iterator[Load]:
        """Yield the loads in a loop from the buffer that it stores to, or from a buffer that may
        share its memory.
        """
        for buffer in read_buffers(loop):
            if buffer is store.buffer or (store.buffer, buffer) in self.shared:
                yield from (n for s in block_stmts_or_self(loop.body) for n in _loads_in_value(s) if n.buffer is buffer)

    def merge_adjacent_stores(self, stmts: Sequence[Stmt]) -> list[Stmt]:
        """Return statements with each four stores of adjacent bytes merged into one, at the
        position of the last store.
        """
        new_stmts, k = list(stmts), 0
        while k < len(new_stmts):
            places = self.find_4_adjacent_stores(new_stmts, k)
            if places:
                new_stmts = _replace_4_stores_by_wide_store(new_stmts, places)
            k += 1
        return new_stmts

    def find_4_adjacent_stores(self, stmts: Sequence[Stmt], first_store_position: int) -> list[int]:
        """Return the positions of four stores of adjacent bytes, the first of which is statement
        `first_store_position`; none if they do not exist.

        No statement between them may load bytes that would be stored later, or change the registers
        used.
        """
        call, store = _match_quantization_call_in_store(stmts[first_store_position]), stmts[first_store_position]
        if call is None or not isinstance(store, Store):
            return []
        places, known = [first_store_position], {*_variables_in(call.args[1]), *_variables_in(store.index)}
        at = linear_form(store.index, {})
        for k in range(first_store_position + 1, len(stmts)):
            stmt = stmts[k]
            if not isinstance(stmt, (Store, Declare, Assign)):
                return []
            if isinstance(stmt, Assign) and stmt.var in known:
                return []
            later = len(places) * call.lanes
            if not all(
                _is_proven_not_to_access_elements(load, store.buffer, at, later) for load in _loads_in_value(stmt)
            ):
                return []
            if not isinstance(stmt, Store) or stmt.buffer is not store.buffer:
                continue
            other = _match_quantization_call_in_store(stmt)
            distance = linear_form(stmt.index, {}).add_multiple(at, -1)
            if other is None or (other.name, other.args[1]) != (call.name, call.args[1]):
                return []
            if distance.terms or distance.const != len(places) * call.lanes:
                return []
            places.append(k)
            if len(places) == BYTES_PER_DOT:
                return places
        return []


def _is_proven_not_to_access_elements(load: Load, buffer: Buffer, address: LinearForm, element_count: int) -> bool:
    """Return True if a load is proven not to access the `element_count` elements of a buffer from
    the address `address` on.
    """
    if load.buffer is not buffer:
        return True
    distance = linear_form(load.index, {}).add_multiple(address, -1)
    return not distance.terms and (distance.const >= element_count or distance.const + load.lanes <= 0)


def _loads_in_value(stmt: Stmt) -> tuple[Load, ...]:
    """Return the loads in the value of a statement."""
    value = getattr(stmt, "value", None)
    return loads_in(value) if value is not None else ()


def _variables_in(expr: Expr) -> Iterator[Var]:
    """Return the variables in an expression."""
    return (n for n in vars_and_buffers_in(expr) if isinstance(n, Var))


def _replace_4_stores_by_wide_store(stmts: Sequence[Stmt], store_positions: Sequence[int]) -> list[Stmt]:
    """Return statements in which four stores of quantized bytes are replaced by one, at the
    position of the last of them.

    Their float values are declared as registers at the positions of the stores.
    """
    new_stmts = list(stmts)
    registers: list[Expr] = []
    calls = [call for k in store_positions if (call := _match_quantization_call_in_store(stmts[k])) is not None]
    for k, call in zip(store_positions, calls, strict=True):
        register = Var("real", call.args[0].dtype, call.lanes)
        new_stmts[k] = Declare(register, call.args[0])
        registers.append(register)
    first, last = stmts[store_positions[0]], calls[-1]
    assert isinstance(first, Store)
    name = quantize_instruction_name(_RESULT_DTYPE_OF_QUANTIZE[last.name], last.lanes)
    store = Store(first.buffer, first.index, Call(name, (*registers, last.args[1])))
    return [*new_stmts[: store_positions[-1] + 1], store, *new_stmts[store_positions[-1] + 1 :]]
