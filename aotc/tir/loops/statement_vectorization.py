# SPDX-License-Identifier: Apache-2.0
"""Vector forms of code: what is done to each of some neighboring elements, done to all at once.

In: scalar statements that depend on a lane.  Out: statements over vectors, whose results are equal bit by bit; None for
what has no vector form.

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
    assigned,
    call,
    cast,
    mentioned,
    select,
    substitute,
)
from aotc.tir.expr import COMPARE, INDEX, Binary, Bitcast, Call, Pack, Select, Unary, bitcast, loads_in, walk, walk_once
from aotc.tir.functions.function_table import definition
from aotc.tir.simplify import linear, simplify
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, Store, While, drop_dead, nodes, walk_stmts

_WORK: Final = (Binary, Unary, Select, Call)
_INTEGER: Final = frozenset({"add", "sub", "mul", "min", "max", "and", "or", "xor"})
_FLOAT: Final = frozenset({"add", "sub", "mul", "div", "min", "max"})
_LOGICAL: Final = frozenset({"and", "or", "xor", "eq", "ne"})
#: Functions of floats that vectors have an instruction or a few for.
_PRIMITIVE: Final = frozenset({"fma", "product", "sqrt", "copysign", "isnan", "above", "below"})
#: Statements of more operations are left alone where they are repeated: once for each vector of a tile.
MOST: Final = 32
#: The most parts of an expression that is computed lane by lane.
_SMALL: Final = 32
#: 1.5 * 2^23: neighboring float32 there are neighboring integers.
_SHIFT: Final = 12582912.0


class ScalarError(Exception):
    """A statement or a value has no vector form: why, for people who read reports."""


def vectorized(
    stmt: Stmt, lane: Var, lanes: int, vectors: Mapping[Var, Expr], *, most: int | None = None, **how: Any
) -> Stmt | None:
    """`stmt` for all values of `lane` from 0 to `lanes` - 1; None if it has no vector form.

    vectors    what takes the place of scalar registers from outside
    most       operations in it, beside those on indices; None for any number
    how        what else `vector_form` takes
    """
    if most is not None and sum(isinstance(n, _WORK) and n.dtype != INDEX for n in nodes(stmt)) > most:
        return None
    try:
        return vector_form(stmt, lane, lanes, vectors, **how)
    except ScalarError:
        return None


def vector_form(
    stmt: Stmt, lane: Var, lanes: int, vectors: Mapping[Var, Expr], *, inside: bool = False, packs: bool = False
) -> Stmt:
    """What `vectorized` gives; ScalarError, which says why, where there is no vector form.

    inside     whether everything that it reads is there whatever its conditions are
    packs      whether small expressions that have no vector form are computed lane by lane
    """
    stores = sum(isinstance(s, Store) for s in walk_stmts(stmt))
    alone = stores == 1 and not any(isinstance(s, For) for s in walk_stmts(stmt))
    scalars = _Scalars(assigned(stmt), alone) if packs else None
    made = Block(_Vectorizer(lane, lanes, inside, dict(vectors), scalars).statements((stmt,)))
    return drop_dead(made) if packs else made


@frozen
class _Scalars:
    """What registers are made of, for expressions that are computed lane by lane.

    changed   registers that are assigned to
    reads     whether memory may be read again where a register is used: nothing is written in between
    """

    changed: frozenset[Var]
    reads: bool
    made: dict[Var, Expr] = field(default_factory=dict)

    def declare(self, var: Var, value: Expr) -> None:
        if var not in self.changed and (self.reads or not any(loads_in(value))):
            self.made[var] = substitute(value, self.made)


@frozen
class _Vectorizer:
    """Vector forms for `lanes` values of `lane`.

    inside    whether everything may be read whatever conditions are
    vectors   of the registers met so far
    scalars   how registers are computed lane by lane; None where nothing is
    amounts   the greatest values of registers of integers, as far as they are known
    """

    lane: Var
    lanes: int
    inside: bool
    vectors: dict[Var, Expr]
    scalars: _Scalars | None = None
    amounts: dict[Var, int] = field(default_factory=dict)

    def statements(self, stmts: Iterable[Stmt]) -> list[Stmt]:
        found: list[Stmt] = []
        for stmt in stmts:
            match stmt:
                case Block():
                    found.extend(self.statements(stmt.stmts))
                case Declare():
                    found.append(self._declared(stmt))
                case Assign() if isinstance(own := self.vectors.get(stmt.var), Var):
                    found.append(Assign(own, self.value(stmt.value)))
                case Store() if stmt.buffer.dtype == stmt.value.dtype:
                    step, index = self._place(stmt.index)
                    if step != 1:
                        raise ScalarError(f"results of {stmt.buffer.dtype} that do not lie side by side")
                    found.append(Store(stmt.buffer, index, self.value(stmt.value)))
                case For(begin=begin, end=end) if not self._varies(begin) and not self._varies(end):
                    body = Block(self.statements((stmt.body,)))
                    found.append(For(stmt.var, end, body, begin=begin, step=stmt.step, kind=stmt.kind))
                case If() if not self._varies(stmt.cond):
                    parts = [Block(self.statements((s,))) for s in (stmt.then, stmt.orelse) if s is not None]
                    found.append(If(stmt.cond, *parts))
                case _:
                    raise ScalarError(_why_stays(stmt))
        return found

    def _declared(self, stmt: Declare) -> Declare:
        if stmt.var.dtype == INDEX and not self._varies(stmt.value):
            return stmt
        amount = self._amount(stmt.value)
        if amount is not None:
            self.amounts[stmt.var] = amount
        if self.scalars is not None:
            self.scalars.declare(stmt.var, stmt.value)
        register = Var(stmt.var.name, stmt.var.dtype, self.lanes)
        made = Declare(register, self.value(stmt.value))
        self.vectors[stmt.var] = register
        return made

    def value(self, expr: Expr) -> Expr:
        """The values of an expression in all lanes."""
        dtype = expr.dtype
        if expr.lanes > 1:
            raise ScalarError("vectors already")
        if dtype.bits < 8 and dtype.is_integer:
            raise ScalarError(f"values of {dtype}")
        if not self._varies(expr):
            return Const(expr.value, dtype, self.lanes) if isinstance(expr, Const) else Broadcast(expr, self.lanes)
        match expr:
            case Var() if expr in self.vectors:
                return self.vectors[expr]
            case Load():
                return self._load(expr)
            case Binary() if self._has_form(expr):
                return Binary(expr.op, self.value(expr.a), self.value(expr.b))
            case Unary():
                return Unary(expr.op, self.value(expr.a))
            case Cast(a=a):
                return self._numbered(a, dtype) or self._real_steps(a, dtype) or _by_halves(self.value(a), dtype)
            case Bitcast(a=a) if not (dtype.is_narrow_float or a.dtype.is_narrow_float):
                return Bitcast(dtype, self.value(expr.a))
            case Call() if _is_of_vectors(expr):
                return replace(expr, args=tuple(map(self.value, expr.args)))
            case Select(cond=cond) if self.inside or not self._varies(cond) or self._reads_all(expr):
                return Select(self.value(cond) if self._varies(cond) else cond, self.value(expr.a), self.value(expr.b))
        return self._otherwise(expr)

    def _otherwise(self, expr: Expr) -> Expr:
        """An expression whose operation has no vector form."""
        if isinstance(expr, Binary) and expr.op in ("shl", "shr"):
            return self.value(_bounded(expr))
        return self._packed(expr, _why_scalar(expr))

    def _numbered(self, index: Expr, dtype: DType) -> Expr | None:
        """An index as int32, modulo its width; None for other numbers."""
        if self.scalars is None or index.dtype != INDEX or dtype != "int32":
            return None
        step, first = self._place(index)
        if step is None or abs(step) >> 31:
            return None
        apart = Pack(tuple(Const(k, dtype) for k in range(self.lanes)))
        return Broadcast(cast(first, dtype), self.lanes) + (apart if step == 1 else apart * step)

    def _real_steps(self, expr: Expr, dtype: DType) -> Expr | None:
        """Bytes that numbers are rounded to as float32, without being narrowed; None for other numbers."""
        if not isinstance(expr, Call) or expr.name not in ("quantize_int8", "quantize_uint8") or dtype != "float32":
            return None
        x, zero = map(self.value, expr.args)
        least, most = (float(v) - zero for v in (expr.dtype.min, expr.dtype.max))
        return call("below", call("above", x, least), most) + _SHIFT - _SHIFT + zero

    def _packed(self, expr: Expr, why: str) -> Pack:
        """An expression for one lane after the other; ScalarError, which says why, where it is not small."""
        if self.scalars is None:
            raise ScalarError(why)
        whole = self._made_of(expr)
        parts = list(islice(walk(whole), _SMALL + 1))
        unknown = any(isinstance(n, Var) and n in self.vectors for n in parts)
        if unknown or len(parts) > _SMALL or any(isinstance(n, Call) for n in parts):
            raise ScalarError(why)
        return Pack(tuple(substitute(whole, {self.lane: Const(k, INDEX)}) for k in range(self.lanes)))

    def _made_of(self, expr: Expr) -> Expr:
        """An expression with what registers are made of in their place, where that may be computed again."""
        return expr if self.scalars is None else substitute(expr, self.scalars.made)

    def _reads_all(self, expr: Select) -> bool:
        made = self._made_of(expr)
        return not isinstance(made, Select) or _may_read_all(made)

    def _load(self, load: Load) -> Load | Pack:
        step, index = self._place(load.index)
        if step is None:
            return self._packed(load, f"elements of {load.dtype} that do not lie at equal distances")
        return Load(load.buffer, index, self.lanes, step)

    def _has_form(self, expr: Binary) -> bool:
        dtype = expr.a.dtype
        if dtype.is_bool:
            return expr.op in _LOGICAL
        if expr.op in COMPARE or expr.op in (_FLOAT if dtype.is_float else _INTEGER):
            return True
        amount = self._amount(expr.b) if expr.op in ("shl", "shr") else None
        return amount is not None and amount < dtype.bits

    def _amount(self, expr: Expr) -> int | None:
        """The greatest value of an integer; None if that is not known, or if it may be negative."""
        match expr:
            case Const(value=value) if expr.dtype.is_integer and value >= 0:
                return int(value)
            case Var():
                return self.amounts.get(expr)
            case Binary(op="and", b=Const()) if expr.dtype.is_integer:
                return self._amount(expr.b)
            case Binary(op="sub", a=Const(), b=b) if expr.dtype.is_integer:
                most, less = self._amount(expr.a), self._amount(b)
                return most if most is not None and less is not None and less <= most else None
        return None

    def _varies(self, expr: Expr) -> bool:
        return any(n is self.lane or n in self.vectors for n in mentioned(expr))

    def _place(self, index: Expr) -> tuple[int | None, Expr]:
        """How far an index moves from lane to lane, None where data tells, and where it begins."""
        # a row and a column of one flat position become that position again
        index = simplify(self._made_of(index), {})
        if any(n in self.vectors for n in mentioned(index)):
            return None, index
        step = linear(index, {self.lane: (0, self.lanes - 1)}).coefficient(self.lane)
        return step, simplify(substitute(index, {self.lane: Const(0, self.lane.dtype)}), {})


def _bounded(shift: Binary) -> Expr:
    """A shift by data as one by less than the width, and what is beyond."""
    dtype, last = shift.dtype, shift.dtype.bits - 1
    fills = shift.op == "shr" and dtype.is_signed
    beyond = Binary("shr", shift.a, as_expr(last, shift.a)) if fills else as_expr(0, shift.a)
    inside = bitcast(shift.b, f"uint{dtype.bits}") <= last
    return select(inside, Binary(shift.op, shift.a, shift.b & last), beyond)


def _why_stays(stmt: Stmt) -> str:
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


def _why_scalar(expr: Expr) -> str:
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


def _is_of_vectors(call: Call) -> bool:
    """Whether a function is a tensor program, or vectors have an instruction for it."""
    dtype = call.args[0].dtype
    if call.name == "abs" or (call.name in _PRIMITIVE and dtype.is_float):
        return True
    return definition(call.name, dtype) is not None


def _by_halves(value: Expr, dtype: DType) -> Expr:
    """Integers converted from each width to the next one: compilers make wider steps element by element.

    There are instructions between bytes and 32 bits.
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


def _may_read_all(chosen: Select) -> bool:
    """Whether both operands of a selection may be read in any case.

    A condition on integers may be there to keep a place inside of a buffer, unless it reads that place itself, as may a
    bool that was computed before; a condition on floats may keep one inside that data tells.
    """
    tested = set(loads_in(chosen.cond))
    guarded = [n for part in (chosen.a, chosen.b) for n in loads_in(part) if n not in tested]
    compared = [n.a.dtype for n in walk_once(chosen.cond) if isinstance(n, Binary) and n.op in COMPARE]
    gathers = any(any(loads_in(load.index)) for load in guarded)
    computed = any(isinstance(n, (Load, Var)) and n.dtype.is_bool for n in walk_once(chosen.cond))
    return not guarded or not (gathers or computed or any(d.is_integer for d in compared))
