# SPDX-License-Identifier: Apache-2.0
"""Print scalar, index and vector expressions as C, with as few parentheses as operator precedence
allows.

scope = Scope(Helpers(C99), Indices(body))
value(scope, Load(x, i) * 2.0)         # "x[i] * 2.0f"
index(scope, i * 4 + 1, 13)            # "(i * 4 + 1)": an operand of * binds at least as tightly

Index expressions are plain arithmetic in the dialect's signed index type: extents are checked when
a program is made, so they cannot overflow. Values of integer tensors wrap around (they are computed
as unsigned integers), even if they are later clamped and used as indices.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aotc.ir import AotcError, DType, frozen
from aotc.tir import INSTRUCTIONS, Text, bounds
from aotc.tir import expr as tir
from aotc.tir.functions.float16_conversion import bits_of
from aotc.tir.functions.function_table import ROUNDING, definition
from aotc_codegen.c.c_types import carrier, is_small
from aotc_codegen.c.helper_functions import BLOCKS
from aotc_codegen.c.printing_scope import (
    ANY,
    EQUALITY,
    LEVELS,
    OR,
    PRIMARY,
    PRODUCT,
    SHIFT,
    TERNARY,
    UNARY,
    Piece,
    Scope,
)
from aotc_codegen.c.vector_expressions import Vectors, extreme

_BIT_SYMBOLS: Final = {"and": "&", "or": "|", "xor": "^"}
_SHIFTS: Final = {"shl": "<<", "shr": ">>"}
_SUMS: Final = ("add", "sub", "mul")
_LOGICAL: Final = {"mul": "and", "min": "and", "add": "or", "max": "or"}


@frozen
class _Operand:
    """Operand in an instruction's template: "{0:13}" asks for text that binds at least as tightly
    as a product.

    In languages without vectors, a load of several elements prints as the address of the first.
    """

    scope: Scope
    expr: tir.Expr

    def __format__(self, level: str) -> str:
        if self.scope.dialect.vectors is None and isinstance(self.expr, tir.Load) and self.expr.lanes > 1:
            return address(self.scope, self.expr.buffer, self.expr.index)
        return value(self.scope, self.expr, int(level or ANY))


def value(scope: Scope, expr: tir.Expr, needed: int = ANY) -> str:
    """Return an expression in its dtype's value type, in parentheses if it binds less tightly than
    `needed`.
    """
    return _rounded(scope, expr).inside(needed)


def bits(scope: Scope, expr: tir.Expr) -> str:
    """Return the bits of a narrow float as an unsigned integer.

    Bits in memory are copied; a computed value is rounded once, by the conversion.
    """
    if (stored := _in_memory(scope, expr)) is not None:
        return value(scope, stored)
    return f"{scope.program('store', expr.dtype, expr.lanes)}({_piece(scope, expr).text})"


def _in_memory(scope: Scope, expr: tir.Expr) -> tir.Expr | None:
    """Return an IR expression for the stored bits of narrow floats; None if some of them are
    computed.
    """
    match expr:
        case tir.Load():
            return replace(expr, buffer=scope.bits_of(expr.buffer))
        case tir.Pack():
            parts = tuple(found for part in expr.parts if (found := _in_memory(scope, part)) is not None)
            return tir.Pack(parts) if len(parts) == expr.lanes else None
        case tir.Select(a=tir.Load() as a, b=tir.Const() as b) if b == tir.Const(0.0, b.dtype):
            stored = replace(a, buffer=scope.bits_of(a.buffer))
            return tir.Select(expr.cond, stored, tir.Const(0, stored.dtype))
        case tir.Bitcast():
            return tir.bitcast(expr.a, bits_of(expr.dtype))
    return None


def index(scope: Scope, expr: tir.Expr, needed: int = ANY) -> str:
    """Return an expression in the index type, in parentheses if it binds less tightly than
    `needed`.
    """
    return _index(scope, expr).inside(needed)


def register_type(scope: Scope, var: tir.Var) -> str:
    """Return the C type of a register variable whose value has been printed."""
    if var in scope.indices.registers:
        return scope.dialect.index
    if var.lanes == 1:
        return scope.dialect.value_type(var.dtype)
    return scope.vector(DType(f"int{scope.masks[var]}") if var.dtype.is_bool else var.dtype, var.lanes)


def assigned(scope: Scope, var: tir.Var, made: tir.Expr) -> str:
    """Return the C expression of the value `made` that is assigned to the register variable `var`."""
    if var in scope.indices.registers:
        return index(scope, made)
    if not (var.dtype.is_bool and var.lanes > 1):
        return value(scope, made)
    vectors = Vectors(scope, value)
    return vectors.mask(made, scope.masks.setdefault(var, vectors.mask_bits(made)))


def address(scope: Scope, buffer: tir.Buffer, at: tir.Expr) -> str:
    """Return a C expression for the address of an element of a buffer."""
    return f"{scope.name(buffer)} + {index(scope, at, PRODUCT)}"


def place(scope: Scope, buffer: tir.Buffer, at: tir.Expr, lanes: int, const: str = "") -> str:
    """Return a C lvalue for an element of a buffer, or for several consecutive elements as a
    vector.
    """
    if lanes == 1:
        return f"{scope.name(buffer)}[{index(scope, at)}]"
    return f"*({const}{scope.vector(buffer.dtype, lanes)}u *)({address(scope, buffer, at)})"


def _rounded(scope: Scope, expr: tir.Expr) -> Piece:
    """Print an expression, rounded to its dtype; C computes narrow floats in float."""
    piece = _piece(scope, expr)
    if not piece.exact:
        return piece
    return Piece(f"{scope.program('round', expr.dtype, expr.lanes)}({piece.text})")


def _piece(scope: Scope, expr: tir.Expr) -> Piece:
    """Return an expression before rounding: first the forms that scalars and vectors share, then
    the separate ones.
    """
    if expr.dtype.is_narrow_float and (stored := _in_memory(scope, expr)) is not None:
        return Piece(f"{scope.program('load', expr.dtype, expr.lanes)}({value(scope, stored)})")
    match expr:
        case tir.Binary() if expr.dtype.is_float and expr.op in LEVELS:
            return _infix(scope, expr)
        case tir.Call() if (piece := _instruction(scope, expr)) is not None:
            return piece
        case tir.Load(stride=1) if expr.lanes > 1 and not expr.dtype.is_bool:
            return Piece(place(scope, expr.buffer, expr.index, expr.lanes, "const "), UNARY)
    return Vectors(scope, value).piece(expr) if expr.lanes > 1 else _number(scope, expr)


def _number(scope: Scope, expr: tir.Expr) -> Piece:
    if not isinstance(expr, tir.Const) and scope.is_index(expr):
        return Piece(f"({scope.dialect.types[tir.INDEX]}){index(scope, expr, UNARY)}", UNARY)
    match expr:
        case tir.Const():
            text = scope.dialect.literal(expr.value, expr.dtype)
            return Piece(text, UNARY if text[0] in "-(" else PRIMARY)
        case tir.Var():
            return Piece(scope.name(expr))
        case tir.Load():
            return _load(scope, expr)
        case tir.Cast():
            return _cast(scope, expr)
        case tir.Bitcast():
            return _bitcast(scope, expr)
        case tir.Select():
            cond, a = value(scope, expr.cond, OR), value(scope, expr.a, OR)
            return Piece(f"{cond} ? {a} : {value(scope, expr.b, TERNARY)}", TERNARY)
        case tir.Unary():
            return _unary(scope, expr)
        case tir.Binary():
            return _binary(scope, expr)
        case tir.Call():
            return _function(scope, expr)
        case _:
            raise AssertionError(f"{type(expr).__name__} is no scalar")


def _values(scope: Scope, *operands: tir.Expr) -> str:
    return ", ".join([value(scope, operand) for operand in operands])


def _infix(scope: Scope, expr: tir.Binary) -> Piece:
    level, symbol = LEVELS[expr.op]
    text = f"{value(scope, expr.a, level)} {symbol} {value(scope, expr.b, level + 1)}"
    return Piece(text, level, expr.dtype.is_narrow_float)


# --- index expressions


def _index(scope: Scope, expr: tir.Expr) -> Piece:
    if not (isinstance(expr, tir.Const) or getattr(expr, "op", "") in _SUMS or scope.indices.pure(expr)):
        return Piece(f"({scope.dialect.index}){value(scope, expr, UNARY)}", UNARY)
    match expr:
        case tir.Const():
            text = scope.dialect.literal(expr.value, DType("int32" if abs(expr.value) < 1 << 31 else "int64"))
            return Piece(text, UNARY if text[0] == "-" else PRIMARY)
        case tir.Var():
            return Piece(scope.name(expr))
        case tir.Binary() if expr.op in _SUMS:
            return _index_sum(scope, expr)
        case tir.Binary(op="min" | "max"):
            helper = scope.helpers.use(f"index_{expr.op}", tir.INDEX)
            return Piece(f"{helper}({index(scope, expr.a)}, {index(scope, expr.b)})")
        case tir.Binary():
            return _index_division(scope, expr)
        case tir.Unary():
            return Piece(f"-{index(scope, expr.a, UNARY)}", UNARY)
        case _:
            assert isinstance(expr, tir.Select)
            cond = value(scope, expr.cond, OR)
            return Piece(f"{cond} ? {index(scope, expr.a, OR)} : {index(scope, expr.b, TERNARY)}", TERNARY)


def _index_sum(scope: Scope, expr: tir.Binary) -> Piece:
    level, symbol = LEVELS[expr.op]
    a, op, b = expr.a, symbol, expr.b
    if expr.op == "add" and isinstance(b, tir.Const) and b.value < 0:
        op, b = "-", tir.Const(-int(b.value), tir.INDEX)
    right = level if expr.op in ("add", "mul") and op == symbol else level + 1
    return Piece(f"{index(scope, a, level)} {op} {index(scope, b, right)}", level)


def _index_division(scope: Scope, expr: tir.Binary) -> Piece:
    """Return an index division or remainder; C's division rounds to zero, which equals floor if no
    operand is negative.
    """
    natural = all(bounds(e, scope.ranges)[0] >= 0 for e in (expr.a, expr.b))
    divides = expr.op.endswith("div")
    if natural or expr.op.startswith("trunc"):
        symbol = "/" if divides else "%"
        return Piece(f"{index(scope, expr.a, PRODUCT)} {symbol} {index(scope, expr.b, UNARY)}", PRODUCT)
    helper = scope.helpers.use("index_div" if divides else "index_mod", tir.INDEX)
    return Piece(f"{helper}({index(scope, expr.a)}, {index(scope, expr.b)})")


# --- numbers


def _load(scope: Scope, expr: tir.Load) -> Piece:
    text, dtype = place(scope, expr.buffer, expr.index, 1), expr.dtype
    if is_small(dtype):
        return Piece(f"{scope.helpers.use('wrap', dtype)}({text})")
    return Piece(f"{text} != 0", EQUALITY) if dtype.is_bool else Piece(text)


def _cast(scope: Scope, expr: tir.Cast) -> Piece:
    source, target, use = expr.a.dtype, expr.dtype, scope.helpers.use
    inner = value(scope, expr.a, UNARY)
    if target.is_bool:
        zero = scope.dialect.literal(0, carrier(source))
        return Piece(f"{value(scope, expr.a, SHIFT)} != {zero}", EQUALITY)
    if target == "float16" and source == "float64":
        return Piece(f"{scope.program('odd', source, 1)}({value(scope, expr.a)})", exact=True)
    if target.is_narrow_float and carrier(source) == "float32":
        return Piece(inner, UNARY, exact=True)
    if is_small(target):
        wide = f"{use('to_i64', carrier(source))}({inner})" if source.is_float else f"(int64_t){inner}"
        return Piece(f"{use('wrap', target)}({wide})")
    if target.is_float or not source.is_float:
        return Piece(f"({scope.dialect.value_type(target)}){inner}", UNARY, target.is_narrow_float)
    exact = {"uint64": "to_u64", "int64": "to_i64", "uint32": "to_i64"}.get(target, "to_i32")
    text = f"{use(exact, carrier(source))}({inner})"
    if target in ("uint64", "int64", "int32"):
        return Piece(text)
    return Piece(f"({scope.dialect.types[target]}){text}", UNARY)


def _bitcast(scope: Scope, expr: tir.Bitcast) -> Piece:
    dtype, source = expr.dtype, expr.a.dtype
    kind, unsigned = "64" if dtype.bits == 64 else "", bits_of(dtype)
    if (dtype.is_float or source.is_float) and not source.is_narrow_float:
        scope.helpers.use(f"bits{kind}", unsigned)
    if source.is_narrow_float:
        found, inner = unsigned, bits(scope, expr.a)
    elif source.is_float:
        found, inner = unsigned, f"aotc_bits{kind}({value(scope, expr.a)})"
    else:
        found, inner = source, value(scope, expr.a, UNARY)
    wanted = unsigned if dtype.is_float else dtype
    if found != wanted:
        inner = f"({scope.dialect.types[wanted]}){inner}"
    return Piece(f"aotc_from_bits{kind}({inner})") if dtype.is_float else Piece(inner, UNARY)


def _wrapped(scope: Scope, dtype: DType, text: str) -> str:
    """Return a text wrapped to `dtype` if it has fewer than 8 bits: C computes such integers in a
    byte.
    """
    return f"{scope.helpers.use('wrap', dtype)}({text})" if is_small(dtype) else text


def _integer(scope: Scope, dtype: DType, text: str, cut: str) -> Piece:
    """Return an integer operation that was computed in a wider type as a value of `dtype`.

    Integers of fewer than 8 bits wrap `text`; other integers are cast from `cut`.
    """
    if is_small(dtype):
        return Piece(_wrapped(scope, dtype, text))
    return Piece(f"({scope.dialect.types[dtype]}){cut}", UNARY)


def _unary(scope: Scope, expr: tir.Unary) -> Piece:
    inner, dtype = value(scope, expr.a, UNARY), expr.dtype
    if dtype.is_bool:
        return Piece(f"!{inner}", UNARY)
    if dtype.is_float:
        return Piece(f"-{value(scope, expr.a, PRIMARY)}", UNARY, dtype.is_narrow_float)
    if expr.op == "not":
        return _integer(scope, dtype, f"~{inner}", f"~{inner}")
    return _integer(scope, dtype, f"-{inner}", f"(0u - ({scope.dialect.unsigned_type(dtype)}){inner})")


def _binary(scope: Scope, expr: tir.Binary) -> Piece:
    op, dtype = expr.op, expr.a.dtype
    if op in tir.COMPARE:
        level, symbol = LEVELS[op]
        side = index if scope.is_index(expr.a) and scope.is_index(expr.b) else value
        return Piece(f"{side(scope, expr.a, SHIFT)} {symbol} {side(scope, expr.b, SHIFT)}", level)
    if dtype.is_bool:
        return _logical(scope, expr)
    if op in ("min", "max"):
        what = extreme(expr) if dtype.is_float else op
        return Piece(f"{scope.helpers.use(what, carrier(dtype))}({_values(scope, expr.a, expr.b)})")
    if op in _BIT_SYMBOLS:
        text = f"{value(scope, expr.a, UNARY)} {_BIT_SYMBOLS[op]} {value(scope, expr.b, UNARY)}"
        return Piece(f"({scope.dialect.types[dtype]})({text})", UNARY)
    if op in _SHIFTS and isinstance(expr.b, tir.Const) and 0 <= expr.b.value < dtype.bits >= 32 and not dtype.is_signed:
        return Piece(f"{value(scope, expr.a, SHIFT)} {_SHIFTS[op]} {expr.b.value}", SHIFT)
    if op in _SUMS:
        u = f"({scope.dialect.unsigned_type(dtype)})"
        text = f"{u}{value(scope, expr.a, UNARY)} {LEVELS[op][1]} {u}{value(scope, expr.b, UNARY)}"
        return _integer(scope, dtype, text, f"({text})")
    text = f"{scope.helpers.use(op, dtype)}({_values(scope, expr.a, expr.b)})"
    return Piece(_wrapped(scope, dtype, text))


def _logical(scope: Scope, expr: tir.Binary) -> Piece:
    if expr.op == "xor":
        return Piece(f"{value(scope, expr.a, SHIFT)} != {value(scope, expr.b, SHIFT)}", EQUALITY)
    level, symbol = LEVELS[_LOGICAL.get(expr.op, expr.op)]

    def side(e: tir.Expr) -> str:
        same = isinstance(e, tir.Binary) and e.dtype.is_bool and e.op == expr.op
        # gcc warns of && inside || without parentheses
        return value(scope, e, level if same else EQUALITY)

    return Piece(f"{side(expr.a)} {symbol} {side(expr.b)}", level)


# --- instructions


def _instruction(scope: Scope, expr: tir.Call) -> Piece | None:
    """Return a call by the instruction's own template, or of an `aotc.tir.functions` function; None
    if there is neither.
    """
    dtype, lanes, name = expr.args[0].dtype, expr.args[0].lanes, expr.name
    text = INSTRUCTIONS[name].text(scope.dialect.name, lanes)
    if text is not None:
        return _spelled(scope, expr, text)
    libraries = lanes == 1 and name in ROUNDING and name in scope.dialect.functions
    if libraries or definition(name, dtype) is None:
        return None
    args = _values(scope, *expr.args)
    function = scope.program(name, carrier(dtype), expr.lanes, expr.fused)
    return Piece(f"{function}({args})", exact=dtype.is_narrow_float)


def _function(scope: Scope, expr: tir.Call) -> Piece:
    """Print a function call of the IR as a C call of a helper function or of a C library function."""
    dtype, name, args = expr.args[0].dtype, expr.name, _values(scope, *expr.args)
    if not dtype.is_float:
        if name == "abs" and not dtype.is_signed:
            return _piece(scope, expr.args[0])
        return Piece(_wrapped(scope, dtype, f"{scope.helpers.use(name, dtype)}({args})"))
    if name in ("above", "below"):
        return Piece(f"{scope.helpers.use(name, carrier(dtype))}({args})")
    if name not in scope.dialect.functions:
        raise no_word(scope, name)
    function = scope.dialect.functions[name] + scope.dialect.ending(dtype)
    return Piece(f"{function}({args})", exact=dtype.is_narrow_float)


def spelled(scope: Scope, name: str, dtype: DType, lanes: int) -> str:
    """Return the call template of an instruction on blocks of memory: the instruction's own, or a
    call of a helper.

    Raise AotcError (code "c-instruction") if the dialect has neither.
    """
    text = INSTRUCTIONS[name].text(scope.dialect.name, lanes)
    if text is None and name not in BLOCKS:
        raise no_word(scope, name)
    if text is None:
        return f"{scope.helpers.use(BLOCKS[name], dtype, lanes)}({{0}}, {{1}}, {{2}}, {{3}})"
    if text.function:
        scope.helpers.add(name, text.function)
    return text.call


def no_word(scope: Scope, name: str) -> AotcError:
    return AotcError("c-instruction", f"{name} cannot be printed: it is not available in {scope.dialect.name}")


def _spelled(scope: Scope, expr: tir.Call, text: Text) -> Piece:
    """Return a call by an instruction's own template; add the helper function that the template
    needs.
    """
    for vector in (a for a in (expr, *expr.args) if a.lanes > 1 and scope.dialect.vectors is not None):
        scope.vector(vector.dtype, vector.lanes)
    if text.function:
        scope.helpers.add(expr.name, text.function)
    made = text.call.format(*[_Operand(scope, a) for a in expr.args], f=scope.dialect.ending(expr.args[0].dtype))
    return Piece(made, text.level, expr.dtype.is_narrow_float)
