# SPDX-License-Identifier: Apache-2.0
"""Select an instruction that computes and stores consecutive elements, by its meaning for one
element.

    forall(k, 8, Store(y, at + k, saturate_int8(scale_once(sums[k] + bias[k], factor[k], shift[k]) + 3)))
        ->  y[at:at + 8] = requantize_once(sums[0:8], bias[0:8], factor[0:8], shift[0:8], 3, -128, 127)

The meaning (`ELEMENT_MEANINGS`) is an expression of one variable for each operand of the instruction.
It is unified with the value of the store, which gives the operands. An addition, a minimum or a
maximum that the value lacks is one with the neutral number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final, TypeAlias

from aotc.ir import DType, frozen
from aotc.tir import Buffer, Const, Expr, Load, Var, as_expr, const, linear_form, new_private_scratch_buffer, substitute
from aotc.tir.expr import Binary, Cast, maximum, minimum, operands, with_operands
from aotc.tir.functions.elementary_function_table import ELEMENT_MEANINGS
from aotc.tir.instruction_definition import is_memory_type
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.schedule.contraction.contraction_index_analysis import variables_in
from aotc.tir.simplify import simplify
from aotc.tir.stmt import Block, Declare, Execute, Stmt, Store

_Bindings: TypeAlias = Mapping[Var, Expr]
_COMMUTATIVE_OPS: Final = ("add", "min", "max")


@frozen(eq=False)
class RepeatedValues:
    """Buffers filled with one value each, for operands that are equal for all elements.

    size      elements of a buffer
    buffers   for each value, its buffer
    """

    size: int
    buffers: dict[Expr, Buffer] = field(default_factory=dict)

    def load(self, value: Expr, count: int) -> Load:
        """Return the load of `count` times a value."""
        if value not in self.buffers:
            self.buffers[value] = new_private_scratch_buffer("spread", value.dtype, self.size, "stack")
        return Load(self.buffers[value], as_expr(0), count)


def select_elementwise_instruction(
    stmt: Stmt, element: Var, count: int, names: Sequence[str], repeated: RepeatedValues
) -> Execute | None:
    """Return the first of some instructions that does what `stmt` does for the values 0 to
    `count` - 1 of the variable `element`; None if there is none.

    names      instructions that have a meaning for one element
    repeated   buffers for operands that are equal for all elements, to which new ones are added
    """
    store = _single_store(stmt)
    if store is None or linear_form(store.index, {}).coefficient(element) != 1:
        return None
    value = _with_merged_constant_clamps(store.value)
    for name in names:
        row = INSTRUCTIONS[name]
        variables = [Var(f"operand{k}", DType(kind.partition("[")[0])) for k, kind in enumerate(row.takes)]
        found = _unify(ELEMENT_MEANINGS[name](*variables), value, {})
        if found is None:
            continue
        parts = [
            _Operand.from_element(found[var], element, is_memory_type(kind))
            for var, kind in zip(variables, row.takes, strict=True)
        ]
        fitting = [part for part in parts if part is not None]
        if len(fitting) == len(parts):
            place = simplify(substitute(store.index, {element: as_expr(0)}), {})
            return execute_to_memory(name, store.buffer, place, *(part.load(count, repeated) for part in fitting))
    return None


@frozen(eq=False)
class _Operand:
    """An operand of an instruction for consecutive elements.

    value    the operand at position 0
    kind     "elements" of a buffer from that on, the value "repeated" for all elements, or a "number"
    """

    value: Expr
    kind: str

    @staticmethod
    def from_element(value: Expr, element: Var, is_in_memory: bool) -> _Operand | None:
        """Return the operand that is `value` for element number `element`; None if it is neither
        consecutive elements of a buffer nor equal for all elements, or if a number must be a constant and
        is not.
        """
        if not is_in_memory:
            return _Operand(value, "number") if isinstance(value, Const) else None
        if isinstance(value, Load) and linear_form(value.index, {}).coefficient(element) == 1:
            first = simplify(substitute(value.index, {element: as_expr(0)}), {})
            return _Operand(Load(value.buffer, first), "elements")
        # the buffer is filled outside of all loops
        return None if variables_in(value) else _Operand(value, "repeated")

    def load(self, count: int, repeated: RepeatedValues) -> Expr:
        """Return the operand for `count` elements."""
        if self.kind == "elements" and isinstance(self.value, Load):
            return Load(self.value.buffer, self.value.index, count)
        return repeated.load(self.value, count) if self.kind == "repeated" else self.value


def _single_store(stmt: Stmt) -> Store | None:
    """Return the only store of a statement, with the values of registers in place of them; None if
    there are several, or other statements.
    """
    *declarations, last = stmt.stmts if isinstance(stmt, Block) else (stmt,)
    if not isinstance(last, Store):
        return None
    values: dict[Var, Expr] = {}
    for declaration in declarations:
        if not isinstance(declaration, Declare):
            return None
        values[declaration.var] = substitute(declaration.value, values)
    return Store(last.buffer, substitute(last.index, values), substitute(last.value, values))


def _with_merged_constant_clamps(value: Expr) -> Expr:
    """Return an equal value in which all minima and maxima with numbers, applied last, are one
    maximum and then one minimum.
    """
    if not value.dtype.is_integer:
        return value
    low, high = int(value.dtype.min), int(value.dtype.max)
    while isinstance(value, Binary) and value.op in ("min", "max") and isinstance(value.b, Const):
        limit = int(value.b.value)
        # a value beyond one limit still has to satisfy the limits that are applied later
        if value.op == "min":
            high = max(min(high, limit), low)
        else:
            low = min(max(low, limit), high)
        value = value.a
    return minimum(maximum(value, low), high)


def _unify(meaning: Expr, value: Expr, bindings: _Bindings) -> _Bindings | None:
    """Return `bindings` with values of further variables of `meaning`, such that it computes
    `value`; None if there are none.
    """
    if isinstance(meaning, Var):
        known = bindings.get(meaning, value)
        return {**bindings, meaning: value} if meaning.dtype == value.dtype and known == value else None
    if isinstance(meaning, Cast) and isinstance(value, Const) and meaning.dtype == value.dtype:
        # the range of a number's type is within that of the operand's type
        return _unify(meaning.a, const(int(value.value), meaning.a.dtype), bindings)
    parts, others = operands(meaning), operands(value)
    if type(meaning) is type(value) and len(parts) == len(others) and with_operands(value, parts) == meaning:
        orders = [others, others[::-1]] if getattr(meaning, "op", "") in _COMMUTATIVE_OPS else [others]
        for order in orders:
            found: _Bindings | None = bindings
            for part, other in zip(parts, order, strict=True):
                found = None if found is None else _unify(part, other, found)
            if found is not None:
                return found
    if isinstance(meaning, Binary) and (neutral := _neutral_number(meaning)) is not None:
        found = _unify(meaning.b, neutral, bindings)
        return None if found is None else _unify(meaning.a, value, found)
    return None


def _neutral_number(operation: Binary) -> Const | None:
    """Return the number with which an operation returns its first operand; None if it has none."""
    dtype = operation.dtype
    if not dtype.is_integer or operation.op not in _COMMUTATIVE_OPS:
        return None
    return const({"add": 0, "min": int(dtype.max), "max": int(dtype.min)}[operation.op], dtype)
