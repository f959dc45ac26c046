# SPDX-License-Identifier: Apache-2.0
"""Vectorize statements: replace code for one lane by code for all lanes of a vector.

Input: scalar statements that depend on a lane variable. Output: statements over vectors with
bit-identical results; None if there is no vector form.

    y[i + lane] = max(acc + bias[lane], 0)       ->    y[i:16] = max(acc + bias[0:16], 0)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from itertools import islice
from typing import Any, Final

from aotc.ir import DType, frozen
from aotc.tir import (
    Broadcast,
    Cast,
    Const,
    Expr,
    Load,
    Var,
    as_expr,
    assigned_registers,
    call,
    cast,
    select,
    substitute,
    vars_and_buffers_in,
)
from aotc.tir.expr import COMPARE, INDEX, Binary, Bitcast, Call, Pack, Select, Unary, bitcast, loads_in, walk, walk_once
from aotc.tir.functions.elementary_function_table import elementary_function_definition
from aotc.tir.simplify import LinearForm, linear_form, simplify
from aotc.tir.stmt import (
    Assign,
    Block,
    Declare,
    For,
    If,
    Stmt,
    Store,
    While,
    count_exprs_in_stmt,
    remove_dead_registers,
    walk_stmts,
)

_OPERATION_CLASSES: Final = (Binary, Unary, Select, Call)
_INTEGER_VECTOR_OPS: Final = frozenset({"add", "sub", "mul", "min", "max", "and", "or", "xor"})
_FLOAT_VECTOR_OPS: Final = frozenset({"add", "sub", "mul", "div", "min", "max"})
_BOOL_VECTOR_OPS: Final = frozenset({"and", "or", "xor", "eq", "ne"})
#: Functions of floats for which vector units have one instruction or a short sequence.
_VECTOR_INSTRUCTION_FUNCTIONS: Final = frozenset({"fma", "product", "sqrt", "copysign", "isnan", "above", "below"})
#: Largest number of operations of a statement that is vectorized inside a tile, where it is
#: repeated for each vector.
MAX_OPERATIONS_IN_TILE: Final = 32
#: Largest number of nodes of an expression that is computed element by element.
_MAX_SCALARIZED_NODES: Final = 32
#: 1.5 * 2^23: adding and subtracting it rounds a float32 to an integer, as neighboring floats there
#: are 1 apart.
_ROUND_TO_INTEGER_SHIFTER: Final = 12582912.0


class ScalarError(Exception):
    """Raised if a statement or an expression has no vector form; the message is the reason, for
    reports.
    """


def vectorize_stmt_or_none(
    stmt: Stmt,
    lane: Var,
    lanes: int,
    vector_of_scalar_register: Mapping[Var, Expr],
    *,
    max_operations: int | None = None,
    **how: Any,
) -> Stmt | None:
    """Return the vector form of `stmt` for all values of `lane` from 0 to `lanes` - 1; None if it
    has none.

    vector_of_scalar_register   vectors that replace scalar registers declared outside of the statement
    max_operations    largest number of operations, without those on indices; None for no limit
    how               further arguments of `vectorize_stmt`
    """
    if (
        max_operations is not None
        and count_exprs_in_stmt(stmt, lambda n: isinstance(n, _OPERATION_CLASSES) and n.dtype != INDEX) > max_operations
    ):
        return None
    try:
        return vectorize_stmt(stmt, lane, lanes, vector_of_scalar_register, **how)
    except ScalarError:
        return None


def vectorize_stmt(
    stmt: Stmt,
    lane: Var,
    lanes: int,
    vector_of_scalar_register: Mapping[Var, Expr],
    *,
    loads_in_bounds: bool = False,
    may_scalarize: bool = False,
) -> Stmt:
    """Return the vector form of `stmt` for all values of `lane` from 0 to `lanes` - 1; raise
    ScalarError if it has none.

    vector_of_scalar_register   vectors that replace scalar registers declared outside of the statement
    loads_in_bounds    all loads are within their buffers even where conditions are false
    may_scalarize      compute small expressions that have no vector form element by element
    """
    stores = sum(isinstance(s, Store) for s in walk_stmts(stmt))
    alone = stores == 1 and not any(isinstance(s, For) for s in walk_stmts(stmt))
    scalars = _ScalarDefinitions(assigned_registers(stmt), alone) if may_scalarize else None
    vector_stmt = Block(
        _StmtVectorizer(lane, lanes, loads_in_bounds, dict(vector_of_scalar_register), scalars).vectorize_stmts((stmt,))
    )
    return remove_dead_registers(vector_stmt) if may_scalarize else vector_stmt


@frozen
class _ScalarDefinitions:
    """Scalar definitions of registers, for expressions that are computed element by element.

    changed       registers that are assigned to after their declaration
    reads         True if loads may be repeated where a register is used, as no store comes between
    definitions   for each register, the expression it is computed from
    """

    changed: frozenset[Var]
    reads: bool
    definitions: dict[Var, Expr] = field(default_factory=dict)

    def record_definition_if_recomputable(self, var: Var, value: Expr) -> None:
        """Add the definition of a register, unless the register changes or its loads may not be
        repeated.
        """
        if var not in self.changed and (self.reads or not loads_in(value)):
            self.definitions[var] = substitute(value, self.definitions)


@frozen
class _StmtVectorizer:
    """Converts scalar code to vectors for `lanes` values of the variable `lane`.

    inside    all loads are within their buffers even where conditions are false
    vectors   the vector of each register declared so far
    scalars   scalar definitions of registers; None if nothing is computed element by element
    amounts   the largest values of integer registers, as far as they are known
    """

    lane: Var
    lanes: int
    inside: bool
    vectors: dict[Var, Expr]
    scalars: _ScalarDefinitions | None = None
    amounts: dict[Var, int] = field(default_factory=dict)

    def vectorize_stmts(self, stmts: Iterable[Stmt]) -> list[Stmt]:
        """Return the vector forms of statements; raise ScalarError if one of them has none."""
        vector_stmts: list[Stmt] = []
        for stmt in stmts:
            match stmt:
                case Block():
                    vector_stmts.extend(self.vectorize_stmts(stmt.stmts))
                case Declare():
                    vector_stmts.append(self._vectorize_declaration(stmt))
                case Assign() if isinstance(register := self.vectors.get(stmt.var), Var):
                    vector_stmts.append(Assign(register, self.vectorize_expr(stmt.value)))
                case Store() if stmt.buffer.dtype == stmt.value.dtype:
                    step, index = self._lane_stride_and_first_index(stmt.index)
                    if step != 1:
                        raise ScalarError(f"results of {stmt.buffer.dtype} that do not lie side by side")
                    vector_stmts.append(Store(stmt.buffer, index, self.vectorize_expr(stmt.value)))
                case For(begin=begin, end=end) if not self._varies_between_lanes(
                    begin
                ) and not self._varies_between_lanes(end):
                    body = Block(self.vectorize_stmts((stmt.body,)))
                    vector_stmts.append(For(stmt.var, end, body, begin=begin, step=stmt.step, kind=stmt.kind))
                case If() if not self._varies_between_lanes(stmt.cond):
                    parts = [Block(self.vectorize_stmts((s,))) for s in (stmt.then, stmt.orelse) if s is not None]
                    vector_stmts.append(If(stmt.cond, *parts))
                case _:
                    raise ScalarError(_why_stmt_stays_scalar(stmt))
        return vector_stmts

    def _vectorize_declaration(self, stmt: Declare) -> Declare:
        """Return a register declaration with a vector; index registers that are equal in all lanes
        stay scalar.
        """
        if stmt.var.dtype == INDEX and not self._varies_between_lanes(stmt.value):
            return stmt
        amount = self._nonnegative_upper_bound(stmt.value)
        if amount is not None:
            self.amounts[stmt.var] = amount
        if self.scalars is not None:
            self.scalars.record_definition_if_recomputable(stmt.var, stmt.value)
        register = Var(stmt.var.name, stmt.var.dtype, self.lanes)
        declaration = Declare(register, self.vectorize_expr(stmt.value))
        self.vectors[stmt.var] = register
        return declaration

    def vectorize_expr(self, expr: Expr) -> Expr:
        """Return the vector of the values of an expression in all lanes; raise ScalarError if there
        is none.
        """
        dtype = expr.dtype
        if expr.lanes > 1:
            raise ScalarError("vectors already")
        if dtype.bits < 8 and dtype.is_integer:
            raise ScalarError(f"values of {dtype}")
        if not self._varies_between_lanes(expr):
            return Const(expr.value, dtype, self.lanes) if isinstance(expr, Const) else Broadcast(expr, self.lanes)
        match expr:
            case Var() if expr in self.vectors:
                return self.vectors[expr]
            case Load():
                return self._vectorize_load(expr)
            case Binary() if self._has_vector_instruction(expr):
                return Binary(expr.op, self.vectorize_expr(expr.a), self.vectorize_expr(expr.b))
            case Unary():
                return Unary(expr.op, self.vectorize_expr(expr.a))
            case Cast(a=a):
                return self._vectorize_cast(a, dtype)
            case Bitcast(a=a) if not (dtype.is_narrow_float or a.dtype.is_narrow_float):
                return Bitcast(dtype, self.vectorize_expr(expr.a))
            case Call() if _is_vectorizable_call(expr):
                return replace(expr, args=tuple(map(self.vectorize_expr, expr.args)))
            case Select(cond=cond) if (
                self.inside or not self._varies_between_lanes(cond) or self._is_safe_to_load_both_select_operands(expr)
            ):
                return Select(
                    self.vectorize_expr(cond) if self._varies_between_lanes(cond) else cond,
                    self.vectorize_expr(expr.a),
                    self.vectorize_expr(expr.b),
                )
        return self._vectorize_shift_or_pack_lane_by_lane(expr)

    def _vectorize_shift_or_pack_lane_by_lane(self, expr: Expr) -> Expr:
        """Return the vector of an expression whose operation has no direct vector form; raise
        ScalarError if there is none.
        """
        if isinstance(expr, Binary) and expr.op in ("shl", "shr"):
            return self.vectorize_expr(_guard_shift_against_oversized_amounts(expr))
        return self._pack_lane_by_lane(expr, _why_expr_stays_scalar(expr))

    def _vectorize_cast(self, operand: Expr, dtype: DType) -> Expr:
        value = self._vectorize_index_cast_to_int32(operand, dtype)
        if value is None:
            value = self._vectorize_quantize_dequantize_in_float32(operand, dtype)
        if value is None:
            value = _convert_vector_in_width_doubling_steps(self.vectorize_expr(operand), dtype)
        return value

    def _vectorize_index_cast_to_int32(self, index: Expr, dtype: DType) -> Expr | None:
        """Return an index converted to an int32 vector, modulo 2^32; None for other conversions."""
        if self.scalars is None or index.dtype != INDEX or dtype != "int32":
            return None
        step, first = self._lane_stride_and_first_index(index)
        if step is None or abs(step) >> 31:
            return None
        lane_numbers = Pack(tuple(Const(k, dtype) for k in range(self.lanes)))
        return Broadcast(cast(first, dtype), self.lanes) + (lane_numbers if step == 1 else lane_numbers * step)

    def _vectorize_quantize_dequantize_in_float32(self, expr: Expr, dtype: DType) -> Expr | None:
        """Return the float32 vector of values quantized to bytes and converted back, without
        narrowing; None for other casts.
        """
        if not isinstance(expr, Call) or expr.name not in ("quantize_int8", "quantize_uint8") or dtype != "float32":
            return None
        x, zero = map(self.vectorize_expr, expr.args)
        least, most = (float(v) - zero for v in (expr.dtype.min, expr.dtype.max))
        return (
            call("below", call("above", x, least), most) + _ROUND_TO_INTEGER_SHIFTER - _ROUND_TO_INTEGER_SHIFTER + zero
        )

    def _pack_lane_by_lane(self, expr: Expr, reason_if_impossible: str) -> Pack:
        """Return a vector built from an expression for each lane; raise ScalarError with `reason_if_impossible`
        if it is not small.
        """
        if self.scalars is None:
            raise ScalarError(reason_if_impossible)
        whole = self._replace_registers_by_definitions(expr)
        parts = list(islice(walk(whole), _MAX_SCALARIZED_NODES + 1))
        unknown = any(isinstance(n, Var) and n in self.vectors for n in parts)
        if unknown or len(parts) > _MAX_SCALARIZED_NODES or any(isinstance(n, Call) for n in parts):
            raise ScalarError(reason_if_impossible)
        return Pack(tuple(substitute(whole, {self.lane: Const(k, INDEX)}) for k in range(self.lanes)))

    def _replace_registers_by_definitions(self, expr: Expr) -> Expr:
        """Return an expression with registers replaced by their scalar definitions, where these may
        be recomputed.
        """
        return expr if self.scalars is None else substitute(expr, self.scalars.definitions)

    def _is_safe_to_load_both_select_operands(self, expr: Select) -> bool:
        """Return True if both operands of a selection may be loaded whatever its condition is.

        Registers are loaded where they are declared, whatever the condition is.
        """
        if not loads_in(expr.a) and not loads_in(expr.b):
            return True
        expanded_expr = self._replace_registers_by_definitions(expr)
        return not isinstance(expanded_expr, Select) or _is_safe_to_load_both_operands(expanded_expr)

    def _vectorize_load(self, load: Load) -> Load | Pack:
        """Return the vector form of a load: contiguous, strided, or element by element."""
        step, index = self._lane_stride_and_first_index(load.index)
        if step is None:
            return self._pack_lane_by_lane(load, f"elements of {load.dtype} that do not lie at equal distances")
        return Load(load.buffer, index, self.lanes, step)

    def _has_vector_instruction(self, expr: Binary) -> bool:
        """Return True if a binary operation has a vector form for its element type; shifts only by
        less than their width.
        """
        dtype = expr.a.dtype
        if dtype.is_bool:
            return expr.op in _BOOL_VECTOR_OPS
        if expr.op in COMPARE or expr.op in (_FLOAT_VECTOR_OPS if dtype.is_float else _INTEGER_VECTOR_OPS):
            return True
        amount = self._nonnegative_upper_bound(expr.b) if expr.op in ("shl", "shr") else None
        return amount is not None and amount < dtype.bits

    def _nonnegative_upper_bound(self, expr: Expr) -> int | None:
        """Return an upper bound of an integer; None if it is unknown or the integer may be
        negative.
        """
        match expr:
            case Const(value=value) if expr.dtype.is_integer and value >= 0:
                return int(value)
            case Var():
                return self.amounts.get(expr)
            case Binary(op="and", b=Const()) if expr.dtype.is_integer:
                return self._nonnegative_upper_bound(expr.b)
            case Binary(op="sub", a=Const(), b=b) if expr.dtype.is_integer:
                most, less = self._nonnegative_upper_bound(expr.a), self._nonnegative_upper_bound(b)
                return most if most is not None and less is not None and less <= most else None
        return None

    def _varies_between_lanes(self, expr: Expr) -> bool:
        """Return True if an expression may differ between the lanes."""
        return any(n is self.lane or n in self.vectors for n in vars_and_buffers_in(expr))

    def _lane_stride_and_first_index(self, index: Expr) -> tuple[int | None, Expr]:
        """Return the distance of an index from lane to lane, None if it is not constant, and the
        index in lane 0.
        """
        # a row and a column computed from one flat index simplify to that index
        index = simplify(self._replace_registers_by_definitions(index), {})
        form = linear_form(index, {})
        if self.lanes > 1 and all(isinstance(atom, Var) and atom not in self.vectors for atom in form.terms):
            # an affine index: no need to substitute and to simplify again
            others = {var: factor for var, factor in form.terms.items() if var is not self.lane}
            return form.terms.get(self.lane, 0), LinearForm(others, form.const).to_expr()
        if any(n in self.vectors for n in vars_and_buffers_in(index)):
            return None, index
        step = linear_form(index, {self.lane: (0, self.lanes - 1)}).coefficient(self.lane)
        return step, simplify(substitute(index, {self.lane: Const(0, self.lane.dtype)}), {})


def _guard_shift_against_oversized_amounts(shift: Binary) -> Expr:
    """Return a shift by a data-dependent amount as a shift by less than the width, and a selection
    for larger amounts.
    """
    dtype, last = shift.dtype, shift.dtype.bits - 1
    fills = shift.op == "shr" and dtype.is_signed
    beyond = Binary("shr", shift.a, as_expr(last, shift.a)) if fills else as_expr(0, shift.a)
    inside = bitcast(shift.b, f"uint{dtype.bits}") <= last
    return select(inside, Binary(shift.op, shift.a, shift.b & last), beyond)


def _why_stmt_stays_scalar(stmt: Stmt) -> str:
    """Return the reason, for reports, why a statement cannot be vectorized."""
    match stmt:
        case While():
            return "a loop that data ends"
        case For():
            return "a loop of another length for each element"
        case If():
            return "statements under a condition of each element"
        case Assign():
            return f"a value of {stmt.var.dtype} that is carried from element to element"
    return f"a statement of kind {type(stmt).__name__}"


def _why_expr_stays_scalar(expr: Expr) -> str:
    """Return the reason, for reports, why an expression cannot be vectorized."""
    match expr:
        case Bitcast(a=a, dtype=dtype):
            return f"the bits of {a.dtype} as {dtype}"
        case Call(name=name, args=(a, *_)):
            return f"{name} of {a.dtype}"
        case Binary(op=op, a=a):
            return f"{op} of {a.dtype}"
        case Select():
            return f"a choice of {expr.dtype} where only one of two places may be read"
    return "counters of loops as numbers"


def _is_vectorizable_call(call: Call) -> bool:
    """Return True if vectors have an instruction for a function, or it is defined as a tensor
    program.
    """
    dtype = call.args[0].dtype
    if call.name == "abs" or (call.name in _VECTOR_INSTRUCTION_FUNCTIONS and dtype.is_float):
        return True
    return elementary_function_definition(call.name, dtype) is not None


def _convert_vector_in_width_doubling_steps(value: Expr, dtype: DType) -> Expr:
    """Convert a vector to another type in steps of doubled or halved width, as C compilers
    scalarize wider steps.

    Conversions between bytes and 32 bits have instructions and are done at once.
    """
    if value.dtype.is_integer and not dtype.is_bool and not dtype.is_narrow_float:
        if value.dtype.bits == 8 and dtype.bits >= 32:
            value = cast(value, "int32")
        widest = dtype.bits // 2 if dtype.is_integer else 32
        while value.dtype.bits < widest:
            value = cast(value, f"int{value.dtype.bits * 2}")
        while value.dtype.bits > max(2 * dtype.bits, 32):
            value = cast(value, f"int{value.dtype.bits // 2}")
    return cast(value, dtype)


def _is_safe_to_load_both_operands(select: Select) -> bool:
    """Return True if both operands of a selection may be loaded whatever its condition is.

    An integer condition may guard an index against leaving its buffer, unless the condition itself
    loads that element; a bool computed before may do so, too. A float condition may guard an index
    that is loaded from memory.
    """
    tested = set(loads_in(select.cond))
    guarded = [n for part in (select.a, select.b) for n in loads_in(part) if n not in tested]
    compared = [n.a.dtype for n in walk_once(select.cond) if isinstance(n, Binary) and n.op in COMPARE]
    gathers = any(loads_in(load.index) for load in guarded)
    computed = any(isinstance(n, (Load, Var)) and n.dtype.is_bool for n in walk_once(select.cond))
    return not guarded or not (gathers or computed or any(d.is_integer for d in compared))
