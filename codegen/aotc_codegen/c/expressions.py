# SPDX-License-Identifier: Apache-2.0
"""Expressions as text: numbers, indices and short vectors, in as few parentheses as precedence allows.

scope = Scope(Helpers(C99), Indices(body))
value(scope, Load(x, i) * 2.0)         # "x[i] * 2.0f"
index(scope, i * 4 + 1, 13)            # "(i * 4 + 1)": an operand of * binds at least as tightly

Index expressions are plain arithmetic on the dialect's signed index type: extents
are checked when a program is made, so they cannot overflow.  Values of integer
tensors wrap around (unsigned), also where they are limited to be indices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aotc.ir import AotcError, DType, assert_never
from aotc.tir import INDEX, INSTRUCTIONS, Expr, Interval, Text, Var, bounds
from aotc.tir.expr import COMPARE, Binary, Broadcast, Buffer, Call, Cast, Const, Element, Load, Select, Unary
from aotc_codegen.c.ctypes import carrier
from aotc_codegen.c.dialect import Dialect
from aotc_codegen.c.helpers import BLOCKS, Helpers
from aotc_codegen.c.indices import Indices
from aotc_codegen.c.mathlib import FUNCTIONS
from aotc_codegen.c.names import Names

# C's levels of precedence, higher binds tighter
PRIMARY: Final = 16
UNARY: Final = 14
PRODUCT: Final = 13
SHIFT: Final = 11
EQUALITY: Final = 9
OR: Final = 4
TERNARY: Final = 3
ANY: Final = 0
_LEVELS: Final = {
    "mul": (PRODUCT, "*"), "div": (PRODUCT, "/"), "add": (12, "+"), "sub": (12, "-"),
    "lt": (10, "<"), "le": (10, "<="), "gt": (10, ">"), "ge": (10, ">="),
    "eq": (EQUALITY, "=="), "ne": (EQUALITY, "!="), "and": (5, "&&"), "or": (OR, "||"),
}  # fmt: skip
_BIT_SYMBOLS: Final = {"and": "&", "or": "|", "xor": "^"}
_SUMS: Final = ("add", "sub", "mul")
_LOGICAL: Final = {"mul": "and", "min": "and", "add": "or", "max": "or"}


@dataclass(slots=True, eq=False)
class Scope:
    """What is known while a kernel is printed (names, ranges of loops), and the vector types that it needs."""

    helpers: Helpers
    indices: Indices
    names: Names
    known: dict[Var | Buffer, str] = field(default_factory=dict)
    ranges: dict[Var, Interval] = field(default_factory=dict)
    vectors: dict[tuple[DType, int], None] = field(default_factory=dict)

    @property
    def dialect(self) -> Dialect:
        return self.helpers.dialect

    def name(self, item: Var | Buffer) -> str:
        """The name of a variable or buffer, made on first mention."""
        if item not in self.known:
            self.known[item] = self.names.fresh(item.name, "v")
        return self.known[item]

    def vector(self, dtype: DType, lanes: int) -> str:
        """The name of the type of a vector's values, noted for its definition."""
        self.vectors[carrier(dtype), lanes] = None
        return self.dialect.vector_name(carrier(dtype), lanes)

    def is_index(self, expr: Expr) -> bool:
        """Whether a value is index arithmetic that fits in the index type on every machine."""
        if not self.indices.pure(expr):
            return False
        low, high = bounds(expr, self.ranges)
        return not (-math.inf < low < -(1 << 31) or (1 << 31) <= high < math.inf)


class _Piece(NamedTuple):
    """A text, how tightly it binds, and whether it is a narrow float that is yet to be rounded."""

    text: str
    level: int = PRIMARY
    exact: bool = False


@dataclass(frozen=True, slots=True)
class _Operand:
    """An expression in a text of an instruction: "{0:13}" asks for one that binds at least as tightly as a product."""

    scope: Scope
    expr: Expr

    def __format__(self, level: str) -> str:
        return value(self.scope, self.expr, int(level or ANY))


def is_small(dtype: DType) -> bool:
    """Integers of fewer than 8 bits: one to a byte, the other bits mean nothing."""
    return dtype.bits < 8 and dtype.is_integer


def value(scope: Scope, expr: Expr, needed: int = ANY) -> str:
    """An expression of the dtype's value type, in parentheses if it binds less tightly than `needed`."""
    return _paren(_rounded(scope, expr), needed)


def unrounded(scope: Scope, expr: Expr) -> str:
    """A narrow float that is about to be rounded: the rounding of the last operation would be for nothing."""
    text = _piece(scope, expr).text if isinstance(expr, (Binary, Call, Cast)) else value(scope, expr)
    scope.helpers.use("round", expr.dtype, expr.lanes)  # stands beside every store
    return text


def index(scope: Scope, expr: Expr, needed: int = ANY) -> str:
    """An expression of the index type, in parentheses if it binds less tightly than `needed`."""
    return _paren(_index(scope, expr), needed)


def address(scope: Scope, buffer: Buffer, at: Expr) -> str:
    """A pointer to an element."""
    return f"{scope.name(buffer)} + {index(scope, at, PRODUCT)}"


def place(scope: Scope, buffer: Buffer, at: Expr, lanes: int, const: str = "") -> str:
    """The memory of an element, or of several consecutive ones."""
    if lanes == 1:
        return f"{scope.name(buffer)}[{index(scope, at)}]"
    return f"*({const}{scope.vector(buffer.dtype, lanes)}u *)({address(scope, buffer, at)})"


def _paren(piece: _Piece, needed: int) -> str:
    return piece.text if piece.level >= needed else f"({piece.text})"


def _rounded(scope: Scope, expr: Expr) -> _Piece:
    """The text of an expression, rounded to its type: C computes narrow floats in float."""
    piece = _piece(scope, expr)
    if not piece.exact:
        return piece
    return _Piece(f"{scope.helpers.use('round', expr.dtype, expr.lanes)}({piece.text})")


def _piece(scope: Scope, expr: Expr) -> _Piece:
    if expr.lanes > 1:
        return _vector(scope, expr)
    if not isinstance(expr, Const) and scope.is_index(expr):
        return _Piece(f"({scope.dialect.types[INDEX]}){index(scope, expr, UNARY)}", UNARY)
    match expr:
        case Const():
            text = scope.dialect.literal(expr.value, expr.dtype)
            return _Piece(text, UNARY if text[0] in "-(" else PRIMARY)
        case Var():
            return _Piece(scope.name(expr))
        case Load():
            return _load(scope, expr)
        case Cast():
            return _cast(scope, expr)
        case Select():
            cond, a, b = (value(scope, e, level) for e, level in ((expr.cond, OR), (expr.a, OR), (expr.b, TERNARY)))
            return _Piece(f"{cond} ? {a} : {b}", TERNARY)
        case Unary():
            return _unary(scope, expr)
        case Binary():
            return _binary(scope, expr)
        case Call():
            return _instruction(scope, expr)
        case Broadcast() | Element():
            raise AssertionError(f"{type(expr).__name__} is no scalar")
        case _:
            assert_never(expr)


def _call(scope: Scope, helper: str, *operands: Expr) -> _Piece:
    return _Piece(f"{helper}({', '.join([value(scope, operand) for operand in operands])})")


def _infix(scope: Scope, expr: Binary) -> _Piece:
    level, symbol = _LEVELS[expr.op]
    text = f"{value(scope, expr.a, level)} {symbol} {value(scope, expr.b, level + 1)}"
    return _Piece(text, level, expr.dtype.is_narrow_float)


def _compared(scope: Scope, a: Expr, symbol: str, b: Expr) -> str:
    return f"{value(scope, a, SHIFT)} {symbol} {value(scope, b, SHIFT)}"


# --- index expressions


def _index(scope: Scope, expr: Expr) -> _Piece:
    if not (isinstance(expr, Const) or getattr(expr, "op", "") in _SUMS or scope.indices.pure(expr)):
        return _Piece(f"({scope.dialect.index}){value(scope, expr, UNARY)}", UNARY)
    match expr:
        case Const():
            text = scope.dialect.literal(expr.value, DType("int32" if abs(expr.value) < 1 << 31 else "int64"))
            return _Piece(text, UNARY if text[0] == "-" else PRIMARY)
        case Var():
            return _Piece(scope.name(expr))
        case Binary() if expr.op in _SUMS:
            return _index_sum(scope, expr)
        case Binary(op="min" | "max"):
            helper = scope.helpers.use(f"index_{expr.op}", INDEX)
            return _Piece(f"{helper}({index(scope, expr.a)}, {index(scope, expr.b)})")
        case Binary():
            return _index_division(scope, expr)
        case Unary():
            return _Piece(f"-{index(scope, expr.a, UNARY)}", UNARY)
        case _:
            assert isinstance(expr, Select)
            cond = value(scope, expr.cond, OR)
            return _Piece(f"{cond} ? {index(scope, expr.a, OR)} : {index(scope, expr.b, TERNARY)}", TERNARY)


def _index_sum(scope: Scope, expr: Binary) -> _Piece:
    level, symbol = _LEVELS[expr.op]
    a, op, b = expr.a, symbol, expr.b
    if expr.op == "add" and isinstance(b, Const) and b.value < 0:
        op, b = "-", Const(-int(b.value), INDEX)
    right = level if expr.op in ("add", "mul") and op == symbol else level + 1
    return _Piece(f"{index(scope, a, level)} {op} {index(scope, b, right)}", level)


def _index_division(scope: Scope, expr: Binary) -> _Piece:
    """C's division rounds to zero; that is the floor where nothing is negative."""
    natural = all(bounds(e, scope.ranges)[0] >= 0 for e in (expr.a, expr.b))
    divides = expr.op.endswith("div")
    if natural or expr.op.startswith("trunc"):
        symbol = "/" if divides else "%"
        return _Piece(f"{index(scope, expr.a, PRODUCT)} {symbol} {index(scope, expr.b, UNARY)}", PRODUCT)
    helper = scope.helpers.use("index_div" if divides else "index_mod", INDEX)
    return _Piece(f"{helper}({index(scope, expr.a)}, {index(scope, expr.b)})")


# --- numbers


def _load(scope: Scope, expr: Load) -> _Piece:
    text = place(scope, expr.buffer, expr.index, 1)
    dtype = expr.dtype
    if dtype.is_narrow_float or is_small(dtype):
        return _Piece(f"{scope.helpers.use('load' if dtype.is_float else 'wrap', dtype)}({text})")
    return _Piece(f"{text} != 0", EQUALITY) if dtype.is_bool else _Piece(text)


def _cast(scope: Scope, expr: Cast) -> _Piece:
    source, target = expr.a.dtype, expr.dtype
    use = scope.helpers.use
    inner = value(scope, expr.a, UNARY)
    if target.is_bool:
        zero = scope.dialect.literal(0, carrier(source))
        return _Piece(f"{value(scope, expr.a, SHIFT)} != {zero}", EQUALITY)
    if target.is_narrow_float:
        return _Piece(_single(scope, source, inner), exact=True)
    if is_small(target):
        wide = f"{use('to_i64', carrier(source))}({inner})" if source.is_float else f"(int64_t){inner}"
        return _Piece(f"{use('wrap', target)}({wide})")
    if target.is_float or not source.is_float:
        return _Piece(f"({scope.dialect.value_type(target)}){inner}", UNARY)
    exact = {"uint64": "to_u64", "int64": "to_i64", "uint32": "to_i64"}.get(target, "to_i32")
    text = f"{use(exact, carrier(source))}({inner})"
    if target in ("uint64", "int64", "int32"):
        return _Piece(text)
    return _Piece(f"({scope.dialect.types[target]}){text}", UNARY)


def _single(scope: Scope, source: DType, inner: str) -> str:
    """A number as a float that rounds to a narrow float as the number itself does."""
    if source == "float32" or source.is_narrow_float:
        return inner
    if source.bits <= 16:
        return f"(float){inner}"
    double = inner if source == "float64" else f"(double){inner}"
    return f"{scope.helpers.use('odd', DType('float64'))}({double})"


def _wrapped(scope: Scope, dtype: DType, text: str) -> str:
    """Integers of fewer than 8 bits, computed in a byte, wrap after each operation."""
    return f"{scope.helpers.use('wrap', dtype)}({text})" if is_small(dtype) else text


def _integer(scope: Scope, dtype: DType, text: str, cut: str) -> _Piece:
    """An integer operation, done in a wider type, as a value of `dtype`; `cut` is what is converted to it."""
    if is_small(dtype):
        return _Piece(_wrapped(scope, dtype, text))
    return _Piece(f"({scope.dialect.types[dtype]}){cut}", UNARY)


def _unary(scope: Scope, expr: Unary) -> _Piece:
    inner = value(scope, expr.a, UNARY)
    dtype = expr.dtype
    if dtype.is_bool:
        return _Piece(f"!{inner}", UNARY)
    if dtype.is_float:
        return _Piece(f"-{value(scope, expr.a, PRIMARY)}", UNARY, dtype.is_narrow_float)
    if expr.op == "not":
        return _integer(scope, dtype, f"~{inner}", f"~{inner}")
    return _integer(scope, dtype, f"-{inner}", f"(0u - ({scope.dialect.unsigned_type(dtype)}){inner})")


def _binary(scope: Scope, expr: Binary) -> _Piece:
    op, dtype = expr.op, expr.a.dtype
    if op in COMPARE:
        level, symbol = _LEVELS[op]
        if scope.is_index(expr.a) and scope.is_index(expr.b):
            return _Piece(f"{index(scope, expr.a, SHIFT)} {symbol} {index(scope, expr.b, SHIFT)}", level)
        return _Piece(_compared(scope, expr.a, symbol, expr.b), level)
    if dtype.is_bool:
        return _logical(scope, expr)
    if op in ("min", "max"):
        what, a, b = _bounded(expr) if dtype.is_float else (op, expr.a, expr.b)
        return _call(scope, scope.helpers.use(what, carrier(dtype)), a, b)
    if dtype.is_float:
        return _infix(scope, expr)
    if op in _BIT_SYMBOLS:
        text = f"{value(scope, expr.a, UNARY)} {_BIT_SYMBOLS[op]} {value(scope, expr.b, UNARY)}"
        return _Piece(f"({scope.dialect.types[dtype]})({text})", UNARY)
    if op in _SUMS:
        u = f"({scope.dialect.unsigned_type(dtype)})"
        text = f"{u}{value(scope, expr.a, UNARY)} {_LEVELS[op][1]} {u}{value(scope, expr.b, UNARY)}"
        return _integer(scope, dtype, text, f"({text})")
    return _Piece(_wrapped(scope, dtype, _call(scope, scope.helpers.use(op, dtype), expr.a, expr.b).text))


def _logical(scope: Scope, expr: Binary) -> _Piece:
    if expr.op == "xor":
        return _Piece(_compared(scope, expr.a, "!=", expr.b), EQUALITY)
    level, symbol = _LEVELS[_LOGICAL.get(expr.op, expr.op)]

    def side(e: Expr) -> str:
        same = isinstance(e, Binary) and e.dtype.is_bool and e.op == expr.op
        return value(scope, e, level if same else EQUALITY)  # gcc wants && inside || in parentheses

    return _Piece(f"{side(expr.a)} {symbol} {side(expr.b)}", level)


def _bounded(expr: Binary) -> tuple[str, Expr, Expr]:
    """The helper for a minimum or maximum of floats and its operands; a number that is not NaN comes second."""
    for a, b in ((expr.a, expr.b), (expr.b, expr.a)):
        if isinstance(b, Const) and b.value == b.value:
            return f"{expr.op}c", a, b
    return expr.op, expr.a, expr.b


# --- instructions


def _instruction(scope: Scope, expr: Call) -> _Piece:
    """A call by the instruction's own text, by a function of ours, or by the library's."""
    dtype, name = expr.args[0].dtype, expr.name
    text = INSTRUCTIONS[name].text(scope.dialect.name, expr.args[0].lanes)
    if text is not None:
        return _spelled(scope, expr, text)
    args = ", ".join([value(scope, a) for a in expr.args])
    if name == "isinf":
        return _Piece(f"{scope.helpers.use(name, carrier(dtype))}({args})")
    if not dtype.is_float:
        if name == "abs" and not dtype.is_signed:
            return _piece(scope, expr.args[0])
        return _Piece(_wrapped(scope, dtype, f"{scope.helpers.use(name, dtype)}({args})"))
    if name in FUNCTIONS and dtype != "float64":
        function = scope.helpers.use(name, DType("float32"))
    elif name in scope.dialect.functions:
        function = scope.dialect.functions[name] + scope.dialect.ending(dtype)
    else:
        raise _no_word(scope, name)
    return _Piece(f"{function}({args})", exact=dtype.is_narrow_float)


def spelled(scope: Scope, name: str, dtype: DType, lanes: int) -> str:
    """The call of an instruction on blocks of memory, by its own text or by a function of ours."""
    text = INSTRUCTIONS[name].text(scope.dialect.name, lanes)
    if text is None and name not in BLOCKS:
        raise _no_word(scope, name)
    if text is None:
        return f"{scope.helpers.use(BLOCKS[name], dtype, lanes)}({{0}}, {{1}}, {{2}}, {{3}})"
    if text.function:
        scope.helpers.add(name, text.function)
    return text.call


def _no_word(scope: Scope, name: str) -> AotcError:
    return AotcError("c-instruction", f"{name} cannot be printed: {scope.dialect.name} has no word for it")


def _spelled(scope: Scope, expr: Call, text: Text) -> _Piece:
    """A text of an instruction's own, with the function that it may need in front of the kernel."""
    for vector in (a for a in (expr, *expr.args) if a.lanes > 1):
        scope.vector(vector.dtype, vector.lanes)
    if text.function:
        scope.helpers.add(expr.name, text.function)
    made = text.call.format(*[_Operand(scope, a) for a in expr.args], f=scope.dialect.ending(expr.args[0].dtype))
    return _Piece(made, text.level, expr.dtype.is_narrow_float)


# --- vectors


def _vector(scope: Scope, expr: Expr) -> _Piece:
    dtype, lanes = expr.dtype, expr.lanes
    helpers = scope.helpers
    vector = scope.vector(dtype, lanes)
    match expr:
        case Var():
            return _Piece(scope.name(expr))
        case Const():
            if expr.value == 0:
                return _Piece(scope.dialect.spelled_vectors(vector).zero.format(type=vector))
            number = scope.dialect.literal(expr.value, dtype)
            return _Piece(f"{helpers.use('splat', carrier(dtype), lanes)}({number})")
        case Broadcast():
            return _call(scope, helpers.use("splat", carrier(dtype), lanes), expr.a)
        case Load():
            return _vector_load(scope, expr)
        case Cast():
            return _vector_cast(scope, expr)
        case Unary(op="neg"):
            return _Piece(f"-{value(scope, expr.a, UNARY)}", UNARY)
        case Binary(op="add" | "sub" | "mul" | "div"):
            return _vector_arithmetic(scope, expr)
        case Binary(op="min" | "max"):
            scope.vector(DType(f"int{carrier(dtype).bits}"), lanes)
            what, a, b = _bounded(expr)
            return _call(scope, helpers.use(what, carrier(dtype), lanes), a, b)
        case Select() if expr.cond.lanes > 1:
            blend = helpers.use("blend", carrier(dtype), lanes)
            return _Piece(f"{blend}({_mask(scope, expr.cond)}, {value(scope, expr.a)}, {value(scope, expr.b)})")
        case Call() if text := INSTRUCTIONS[expr.name].text(scope.dialect.name, lanes):
            return _spelled(scope, expr, text)
        case _:
            raise AotcError("c-vector", f"{type(expr).__name__} on vectors of {lanes} x {dtype} cannot be printed")


def _vector_load(scope: Scope, expr: Load) -> _Piece:
    if expr.dtype.is_narrow_float:
        load = scope.helpers.use("load", expr.dtype, expr.lanes)
        return _Piece(f"{load}({address(scope, expr.buffer, expr.index)})")
    return _Piece(place(scope, expr.buffer, expr.index, expr.lanes, "const "), UNARY)


def _vector_cast(scope: Scope, expr: Cast) -> _Piece:
    dtype, lanes = expr.dtype, expr.lanes
    if carrier(dtype) == carrier(expr.a.dtype):
        return _rounded(scope, expr.a)._replace(exact=dtype.is_narrow_float)
    made = scope.dialect.spelled_vectors("a conversion").convert
    text = made.format(value=value(scope, expr.a), type=scope.vector(dtype, lanes))
    return _Piece(text, exact=dtype.is_narrow_float)


def _mask(scope: Scope, cond: Expr) -> str:
    """A comparison of vectors: all bits of a lane are set where it holds."""
    if not (isinstance(cond, Binary) and cond.op in COMPARE and cond.a.dtype.is_float):
        raise AotcError("c-vector", f"a selection by {type(cond).__name__} on {cond.lanes} lanes cannot be printed")
    mask = scope.vector(DType(f"int{carrier(cond.a.dtype).bits}"), cond.lanes)
    return f"({mask})({_compared(scope, cond.a, _LEVELS[cond.op][1], cond.b)})"


def _vector_arithmetic(scope: Scope, expr: Binary) -> _Piece:
    if not (expr.dtype.is_integer and expr.dtype.is_signed):
        return _infix(scope, expr)
    signed = scope.vector(expr.dtype, expr.lanes)  # wraps through unsigned lanes
    cast = f"({scope.vector(DType(f'u{expr.dtype}'), expr.lanes)})"
    text = f"{cast}{value(scope, expr.a, UNARY)} {_LEVELS[expr.op][1]} {cast}{value(scope, expr.b, UNARY)}"
    return _Piece(f"({signed})({text})", UNARY)
