# SPDX-License-Identifier: Apache-2.0
"""Kernels as C text: a walk over statements and expressions, nothing decided that is not in the program.

    printer = KernelPrinter(helpers)
    printer.kernel(kernel, "net_k0")       # "void net_k0(const float *AOTC_RESTRICT p0, ...) {...}"

Index expressions are printed as plain arithmetic on ptrdiff_t: extents are checked when a program is made, so
they cannot overflow.  Values of integer tensors wrap around (unsigned), also where they are limited to be indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

from aotc.ir.diagnostics import AotcError, assert_never
from aotc.ir.dtype import DType
from aotc.tir.expr import (
    COMPARE,
    INDEX,
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Element,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    walk,
)
from aotc.tir.simplify import Interval, bounds
from aotc.tir.stmt import (
    PART,
    PARTS,
    Assign,
    Block,
    Comment,
    Declare,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Sync,
    Transpose,
    While,
    stmt_exprs,
    walk_stmts,
)
from aotc_codegen.c.bodies import has_guarded_access, prepared
from aotc_codegen.c.ctypes import literal, memory_type, unsigned_type, value_type, vector_name
from aotc_codegen.c.helpers import Helpers
from aotc_codegen.c.indices import Indices
from aotc_codegen.c.mathlib import FUNCTIONS
from aotc_codegen.c.names import KEYWORDS, Names, comment_text

# C's levels of precedence, higher binds tighter
PRIMARY: Final = 16
UNARY: Final = 14
_LEVELS: Final = {
    "mul": (13, "*"), "div": (13, "/"), "add": (12, "+"), "sub": (12, "-"),
    "lt": (10, "<"), "le": (10, "<="), "gt": (10, ">"), "ge": (10, ">="), "eq": (9, "=="), "ne": (9, "!="),
    "and": (5, "&&"), "or": (4, "||"),
}  # fmt: skip
_BIT_SYMBOLS: Final = {"and": "&", "or": "|", "xor": "^"}
_SUMS: Final = ("add", "sub", "mul")
TERNARY: Final = 3
ANY: Final = 0
GUARD: Final = "AOTC_GUARD_ACCESSES"
"""What is before functions that access memory under conditions, up to the end of a file."""
SMALL_ARRAY: Final = 64
"""Bytes of a stack array that is zero at first."""

_MATH_NAMES: Final = {
    "round_even": "rint", "round_away": "round", "abs": "fabs",
    **{n: n for n in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "sin", "cos", "tan", "asin", "acos",
        "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "tgamma", "lgamma", "floor", "ceil", "trunc",
        "pow", "atan2", "fmod", "copysign", "fma",
    )},
}  # fmt: skip
_LIBRARY: Final = frozenset({"aotc", "y0", "y1", "yn", "j0", "j1", "jn", "gamma", "div", "index"})
_RESERVED: Final = KEYWORDS | _LIBRARY | frozenset(_MATH_NAMES.values()) | {"team"}
"""Names that kernels do not use for their own: keywords, and functions of C libraries that -Wshadow knows."""


def _paren(text: str, level: int, needed: int) -> str:
    return text if level >= needed else f"({text})"


class KernelPrinter:
    """Prints kernels; collects the helper functions and vector types they need, and whether one is `guarded`: its file
    must begin with GUARD then.
    """

    def __init__(self, helpers: Helpers) -> None:
        self.helpers = helpers
        self.vectors: dict[tuple[DType, int], None] = {}
        self.guarded = False
        self._names = Names(_RESERVED)
        self._of: dict[Var | Buffer, str] = {}
        self._indices = Indices()
        self._ranges: dict[Var, Interval] = {}

    # --- kernels

    def signature(self, kernel: Kernel, name: str) -> str:
        """The prototype, without the semicolon."""
        return f"void {name}({', '.join(self._parameters(kernel)) or 'void'})"

    def kernel(self, kernel: Kernel, name: str) -> str:
        """The definition, preceded by a comment that names the model's nodes."""
        self._names = Names(_RESERVED)
        self._of, self._indices, self._ranges = {}, Indices(kernel.body), {}
        if kernel.team:
            self._of = {PART: "(ptrdiff_t)team->part", PARTS: "team->parts"}
        body = prepared(kernel)
        self.guarded |= has_guarded_access(body)
        lines = [f"{self.signature(kernel, name)} {{"]
        for buffer in kernel.stack:
            # compilers take small arrays for registers, and cannot see that they are written before they are read
            start = " = {0}" if buffer.nbytes <= SMALL_ARRAY else ""
            size = max(1, buffer.size)
            lines.append(f"  {memory_type(buffer.dtype)} {self.name(buffer)}[{size}] AOTC_ALIGNED(64){start};")
        used = _mentioned(kernel.body)
        lines += [f"  (void){self.name(b)};" for b in (*kernel.params, *kernel.stack) if b not in used]
        lines += self.block(body, 1)
        return "\n".join([*origin(kernel), *lines, "}", ""])

    def _parameters(self, kernel: Kernel) -> list[str]:
        rows = []
        meets = any(isinstance(s, Sync) for s in walk_stmts(kernel.body))
        for buffer in kernel.params:
            read_only = buffer in kernel.inputs and buffer not in kernel.outputs
            # what others write until a meeting must be read anew after it
            restrict = "AOTC_RESTRICT " if read_only or not meets or buffer in kernel.private else ""
            rows.append(f"{'const ' if read_only else ''}{memory_type(buffer.dtype)} *{restrict}{self.name(buffer)}")
        if kernel.team:
            rows.append("const aotc_team *team")
        return rows

    def name(self, item: Var | Buffer) -> str:
        """The C name of a variable or buffer, made on first mention."""
        if item not in self._of:
            self._of[item] = self._names.fresh(item.name, "v")
        return self._of[item]

    # --- statements

    def block(self, stmt: Stmt, depth: int) -> list[str]:
        """The lines of a statement."""
        pad = "  " * depth
        match stmt:
            case Block():
                return [line for s in stmt.stmts for line in self.block(s, depth)]
            case For():
                return self._for(stmt, depth)
            case While():
                return [f"{pad}while ({self.value(stmt.cond)}) {{", *self.block(stmt.body, depth + 1), f"{pad}}}"]
            case If():
                lines = [f"{pad}if ({self.value(stmt.cond)}) {{", *self.block(stmt.then, depth + 1)]
                if stmt.orelse is not None:
                    lines += [f"{pad}}} else {{", *self.block(stmt.orelse, depth + 1)]
                return [*lines, f"{pad}}}"]
            case Store():
                return [f"{pad}{self._store(stmt)};"]
            case Transpose():
                return [f"{pad}{self._transpose(stmt)};"]
            case Declare():
                value = self._assigned(stmt)  # before the name: it cannot mention the register
                return [f"{pad}{self._register_type(stmt.var)} {self.name(stmt.var)} = {value};"]
            case Assign():
                return [f"{pad}{self.name(stmt.var)} = {self._assigned(stmt)};"]
            case Comment():
                return [f"{pad}/* {comment_text(stmt.text)} */"]
            case Sync():
                return [f"{pad}AOTC_TEAM_SYNC(team);"]
            case _:
                assert_never(stmt)

    def _for(self, loop: For, depth: int) -> list[str]:
        pad, var = "  " * depth, self.name(loop.var)
        self._ranges[loop.var] = (bounds(loop.begin, self._ranges)[0], bounds(loop.end, self._ranges)[1] - 1)
        step = f"++{var}" if loop.step == 1 else f"{var} += {loop.step}"
        head = f"{pad}for (ptrdiff_t {var} = {self.index(loop.begin)}; {var} < {self.index(loop.end, 11)}; {step}) {{"
        return [head, *self.block(loop.body, depth + 1), f"{pad}}}"]

    def _transpose(self, stmt: Transpose) -> str:
        self.vector(stmt.buffer.dtype, stmt.size)
        name = self.helpers.use_transpose(stmt.buffer.dtype, stmt.size)
        to = self._address(stmt.buffer, stmt.index)
        source = self._address(stmt.source.buffer, stmt.source.index)
        return f"{name}({to}, {stmt.stride}, {source}, {stmt.source_stride})"

    def _assigned(self, stmt: Declare | Assign) -> str:
        return self.index(stmt.value) if stmt.var in self._indices.registers else self.value(stmt.value)

    def _register_type(self, var: Var) -> str:
        if var in self._indices.registers:
            return "ptrdiff_t"
        return self.vector(var.dtype, var.lanes) if var.lanes > 1 else value_type(var.dtype)

    def vector(self, dtype: DType, lanes: int) -> str:
        """The name of the type of a vector's values, noted for its definition."""
        dtype = _carrier(dtype)
        self.vectors[dtype, lanes] = None
        return vector_name(dtype, lanes)

    def _place(self, buffer: Buffer, index: Expr, lanes: int, const: str = "") -> str:
        """The memory of an element, or of several consecutive ones."""
        if lanes == 1:
            return f"{self.name(buffer)}[{self.index(index)}]"
        return f"*({const}{self.vector(buffer.dtype, lanes)}u *)({self._address(buffer, index)})"

    def _address(self, buffer: Buffer, index: Expr) -> str:
        return f"{self.name(buffer)} + {self.index(index, 13)}"

    def _store(self, stmt: Store) -> str:
        dtype, lanes = stmt.buffer.dtype, stmt.value.lanes
        if lanes > 1 and dtype.is_narrow_float:
            address, value = self._address(stmt.buffer, stmt.index), self._unrounded(stmt.value)
            return f"{self.helpers.use_lanes('store', dtype, lanes)}({address}, {value})"
        return f"{self._place(stmt.buffer, stmt.index, lanes)} = {self._stored(stmt)}"

    def _stored(self, store: Store) -> str:
        dtype = store.buffer.dtype
        if store.value.lanes > 1:
            return self.value(store.value)
        if isinstance(store.value, Load) and (dtype.is_narrow_float or _is_small(dtype)):
            return self._place(store.value.buffer, store.value.index, 1)  # bits are copied
        if dtype.is_narrow_float:
            return f"{self.helpers.use('store', dtype)}({self._unrounded(store.value)})"
        if dtype.is_bool:
            return f"(uint8_t){self.value(store.value, UNARY)}"
        if _is_small(dtype):
            return f"({memory_type(dtype)})({self.value(store.value, UNARY)} & {(1 << dtype.bits) - 1})"
        return self.value(store.value)

    def _unrounded(self, expr: Expr) -> str:
        """A narrow float that is about to be rounded: the rounding of the last operation would be for nothing."""
        use = self.helpers.use if expr.lanes == 1 else partial(self.helpers.use_lanes, lanes=expr.lanes)
        text, rounding = self.value(expr), f"{use('round', expr.dtype)}("
        if isinstance(expr, (Binary, Call, Cast)) and text.startswith(rounding):
            return text[len(rounding) : -1]
        return text

    # --- index expressions: ptrdiff_t

    def index(self, expr: Expr, needed: int = ANY) -> str:
        """An expression of type ptrdiff_t, in parentheses if it binds less tightly than `needed`."""
        if not (isinstance(expr, Const) or getattr(expr, "op", "") in _SUMS or self._indices.pure(expr)):
            return _paren(f"(ptrdiff_t){self.value(expr, UNARY)}", UNARY, needed)
        match expr:
            case Const():
                text = literal(expr.value, DType("int32" if abs(expr.value) < 1 << 31 else "int64"))
                return _paren(text, UNARY if text[0] == "-" else PRIMARY, needed)
            case Var():
                return self.name(expr)
            case Binary() if expr.op in _SUMS:
                return self._index_sum(expr, needed)
            case Binary(op="min" | "max"):
                helper = self.helpers.use(f"index_{expr.op}", INDEX)
                return f"{helper}({self.index(expr.a)}, {self.index(expr.b)})"
            case Binary():
                return self._index_division(expr, needed)
            case Unary():
                return _paren(f"-{self.index(expr.a, UNARY)}", UNARY, needed)
            case _:
                assert isinstance(expr, Select)
                text = f"{self.value(expr.cond, 4)} ? {self.index(expr.a, 4)} : {self.index(expr.b, TERNARY)}"
                return _paren(text, TERNARY, needed)

    def _index_sum(self, expr: Binary, needed: int) -> str:
        level, symbol = _LEVELS[expr.op]
        a, op, b = expr.a, symbol, expr.b
        if expr.op == "add" and isinstance(b, Const) and b.value < 0:
            op, b = "-", Const(-int(b.value), INDEX)
        right = level if expr.op in ("add", "mul") and op == symbol else level + 1
        return _paren(f"{self.index(a, level)} {op} {self.index(b, right)}", level, needed)

    def _index_division(self, expr: Binary, needed: int) -> str:
        """C's division rounds to zero; that is the floor where nothing is negative."""
        natural = self._is_natural(expr.a) and self._is_natural(expr.b)
        divides = expr.op.endswith("div")
        if natural or expr.op.startswith("trunc"):
            symbol = "/" if divides else "%"
            return _paren(f"{self.index(expr.a, 13)} {symbol} {self.index(expr.b, 14)}", 13, needed)
        helper = self.helpers.use("index_div" if divides else "index_mod", INDEX)
        return f"{helper}({self.index(expr.a)}, {self.index(expr.b)})"

    def _is_natural(self, expr: Expr) -> bool:
        """Whether an index is never negative."""
        return bounds(expr, self._ranges)[0] >= 0

    def _is_index(self, expr: Expr) -> bool:
        """Whether a value is index arithmetic that fits in ptrdiff_t on every machine."""
        if not self._indices.pure(expr):
            return False
        low, high = bounds(expr, self._ranges)
        return not (-math.inf < low < -(1 << 31) or (1 << 31) <= high < math.inf)

    # --- values

    def value(self, expr: Expr, needed: int = ANY) -> str:
        """An expression of the dtype's value type, in parentheses if it binds less tightly than `needed`."""
        if expr.lanes > 1:
            return self._vector(expr, needed)
        if not isinstance(expr, Const) and self._is_index(expr):
            return _paren(f"(int64_t){self.index(expr, UNARY)}", UNARY, needed)
        match expr:
            case Const():
                text = literal(expr.value, expr.dtype)
                return _paren(text, UNARY if text[0] in "-(" else PRIMARY, needed)
            case Var():
                return self.name(expr)
            case Load():
                return self._load(expr, needed)
            case Cast():
                return self._cast(expr, needed)
            case Select():
                text = f"{self.value(expr.cond, 4)} ? {self.value(expr.a, 4)} : {self.value(expr.b, TERNARY)}"
                return _paren(text, TERNARY, needed)
            case Unary():
                return self._unary(expr, needed)
            case Binary():
                return self._binary(expr, needed)
            case Call():
                return self._call(expr, needed)
            case Broadcast() | Element():
                raise AssertionError(f"{type(expr).__name__} is no scalar")
            case _:
                assert_never(expr)

    def _load(self, expr: Load, needed: int) -> str:
        place = self._place(expr.buffer, expr.index, 1)
        if expr.dtype.is_narrow_float:
            return f"{self.helpers.use('load', expr.dtype)}({place})"
        if _is_small(expr.dtype):
            return f"{self.helpers.use('wrap', expr.dtype)}({place})"
        return _paren(f"{place} != 0", 9, needed) if expr.dtype.is_bool else place

    def _cast(self, expr: Cast, needed: int) -> str:
        source, target = expr.a.dtype, expr.dtype
        inner = self.value(expr.a, UNARY)
        if target.is_bool:
            zero = literal(0, _carrier(source))
            return _paren(f"{self.value(expr.a, 11)} != {zero}", 9, needed)
        if target.is_narrow_float:
            return f"{self.helpers.use('round', target)}({self._single(source, inner)})"
        if target.bits < 8 and not target.is_float:
            wide = (
                f"{self.helpers.use('to_i64', _carrier(source))}({inner})" if source.is_float else f"(int64_t){inner}"
            )
            return f"{self.helpers.use('wrap', target)}({wide})"
        if source.is_float and not target.is_float:
            return self._float_to_integer(source, target, inner, needed)
        return _paren(f"({value_type(target)}){inner}", UNARY, needed)

    def _single(self, source: DType, inner: str) -> str:
        """A number as a float that rounds to a narrow float as the number itself does."""
        if source == "float32" or source.is_narrow_float:
            return inner
        if source.bits <= 16:
            return f"(float){inner}"
        double = inner if source == "float64" else f"(double){inner}"
        return f"{self.helpers.use('odd', DType('float64'))}({double})"

    def _float_to_integer(self, source: DType, target: DType, inner: str, needed: int) -> str:
        carrier = _carrier(source)
        if target == "uint64":
            return f"{self.helpers.use('to_u64', carrier)}({inner})"
        if target == "int64" or target == "uint32":
            text = f"{self.helpers.use('to_i64', carrier)}({inner})"
        else:
            text = f"{self.helpers.use('to_i32', carrier)}({inner})"
        return text if target in ("int64", "int32") else _paren(f"({memory_type(target)}){text}", UNARY, needed)

    def _rounded(self, dtype: DType, text: str, level: int, needed: int, lanes: int = 1) -> str:
        """Narrow floats round after each operation."""
        if not dtype.is_narrow_float:
            return _paren(text, level, needed)
        helper = self.helpers.use("round", dtype) if lanes == 1 else self.helpers.use_lanes("round", dtype, lanes)
        return f"{helper}({text})"

    def _unary(self, expr: Unary, needed: int) -> str:
        inner, dtype = self.value(expr.a, UNARY), expr.dtype
        if expr.op == "not":
            if dtype.is_bool:
                return _paren(f"!{inner}", UNARY, needed)
            if _is_small(dtype):
                return self._wrapped(dtype, f"~{inner}")
            return _paren(f"({memory_type(dtype)})~{inner}", UNARY, needed)
        if dtype.is_float:
            return self._rounded(dtype, f"-{self.value(expr.a, PRIMARY)}", UNARY, needed)
        if _is_small(dtype):
            return self._wrapped(dtype, f"-{inner}")
        return _paren(f"({memory_type(dtype)})(0u - ({unsigned_type(dtype)}){inner})", UNARY, needed)

    def _wrapped(self, dtype: DType, text: str) -> str:
        """Integers of fewer than 8 bits, computed in a byte, wrap after each operation."""
        return f"{self.helpers.use('wrap', dtype)}({text})" if _is_small(dtype) else text

    def _binary(self, expr: Binary, needed: int) -> str:
        op, dtype = expr.op, expr.a.dtype
        if op in COMPARE:
            return self._comparison(expr, needed)
        if dtype.is_bool:
            return self._logical(expr, needed)
        if op in ("min", "max"):
            return self._extreme(expr)
        if dtype.is_float:
            level, symbol = _LEVELS[op]
            text = f"{self.value(expr.a, level)} {symbol} {self.value(expr.b, level + 1)}"
            return self._rounded(dtype, text, level, needed)
        if op in _BIT_SYMBOLS:
            text = f"{self.value(expr.a, UNARY)} {_BIT_SYMBOLS[op]} {self.value(expr.b, UNARY)}"
            return _paren(f"({memory_type(dtype)})({text})", UNARY, needed)
        if op in _SUMS:
            u = unsigned_type(dtype)
            text = f"({u}){self.value(expr.a, UNARY)} {_LEVELS[op][1]} ({u}){self.value(expr.b, UNARY)}"
            if _is_small(dtype):
                return self._wrapped(dtype, text)
            return _paren(f"({memory_type(dtype)})({text})", UNARY, needed)
        return self._wrapped(dtype, f"{self.helpers.use(op, dtype)}({self.value(expr.a)}, {self.value(expr.b)})")

    def _comparison(self, expr: Binary, needed: int) -> str:
        level, symbol = _LEVELS[expr.op]
        if self._is_index(expr.a) and self._is_index(expr.b):
            return _paren(f"{self.index(expr.a, 11)} {symbol} {self.index(expr.b, 11)}", level, needed)
        return _paren(f"{self.value(expr.a, 11)} {symbol} {self.value(expr.b, 11)}", level, needed)

    def _logical(self, expr: Binary, needed: int) -> str:
        if expr.op == "xor":
            return _paren(f"{self.value(expr.a, 11)} != {self.value(expr.b, 11)}", 9, needed)
        op = {"mul": "and", "min": "and", "add": "or", "max": "or"}.get(expr.op, expr.op)
        level, symbol = _LEVELS[op]

        def side(e: Expr) -> str:
            same = isinstance(e, Binary) and e.dtype.is_bool and e.op == expr.op
            return self.value(e, level if same else 9)  # gcc wants && inside || in parentheses

        return _paren(f"{side(expr.a)} {symbol} {side(expr.b)}", level, needed)

    def _extreme(self, expr: Binary) -> str:
        what, a, b = _bounded(expr) if expr.dtype.is_float else (expr.op, expr.a, expr.b)
        helper = self.helpers.use(what, _carrier(expr.dtype) if expr.dtype.is_float else expr.dtype)
        return f"{helper}({self.value(a)}, {self.value(b)})"

    def _call(self, expr: Call, needed: int) -> str:
        dtype, args = expr.args[0].dtype, [self.value(a) for a in expr.args]
        if expr.name == "isnan":
            operand = self.value(expr.args[0], 11)
            return _paren(f"{operand} != {operand}", 9, needed)
        if expr.name == "isinf":
            return f"{self.helpers.use('isinf', _carrier(dtype))}({args[0]})"
        if not dtype.is_float:
            if expr.name == "abs" and not dtype.is_signed:
                return args[0]
            return self._wrapped(dtype, f"{self.helpers.use(expr.name, dtype)}({', '.join(args)})")
        if expr.name in FUNCTIONS and dtype != "float64":
            text = f"{self.helpers.use(expr.name, DType('float32'))}({', '.join(args)})"
            return self._rounded(dtype, text, PRIMARY, needed)
        end = "" if dtype == "float64" else "f"
        if expr.name == "rsqrt":
            one = literal(1.0, DType("float64" if dtype == "float64" else "float32"))
            return self._rounded(dtype, f"{one} / sqrt{end}({args[0]})", 13, needed)
        return self._rounded(dtype, f"{_MATH_NAMES[expr.name]}{end}({', '.join(args)})", PRIMARY, needed)

    # --- vectors

    def _vector(self, expr: Expr, needed: int) -> str:
        dtype, lanes = expr.dtype, expr.lanes
        carrier = _carrier(dtype)
        vector = self.vector(dtype, lanes)
        match expr:
            case Var():
                return self.name(expr)
            case Const():
                if expr.value == 0:
                    return f"({vector}){{0}}"
                return f"{self.helpers.use_splat(carrier, lanes)}({literal(expr.value, dtype)})"
            case Broadcast():
                return f"{self.helpers.use_splat(carrier, lanes)}({self.value(expr.a)})"
            case Load():
                return self._vector_load(expr, needed)
            case Cast():
                return self._vector_cast(expr, needed)
            case Unary(op="neg"):
                return _paren(f"-{self.value(expr.a, UNARY)}", UNARY, needed)
            case Binary(op="add" | "sub" | "mul" | "div"):
                return self._vector_arithmetic(expr, needed)
            case Binary(op="min" | "max"):
                return self._vector_extreme(expr)
            case Select() if expr.cond.lanes > 1:
                blend = self.helpers.use_lanes("blend", carrier, lanes)
                return f"{blend}({self._mask(expr.cond)}, {self.value(expr.a)}, {self.value(expr.b)})"
            case Call(name="fma"):
                a, b, c = expr.args
                text = f"{self.value(a, 13)} * {self.value(b, 14)} + {self.value(c, 13)}"
                return _paren(text, 12, needed)
            case _:
                raise AotcError("c-vector", f"{type(expr).__name__} on vectors of {lanes} x {dtype} cannot be printed")

    def _vector_load(self, expr: Load, needed: int) -> str:
        if expr.dtype.is_narrow_float:
            load = self.helpers.use_lanes("load", expr.dtype, expr.lanes)
            return f"{load}({self._address(expr.buffer, expr.index)})"
        return _paren(self._place(expr.buffer, expr.index, expr.lanes, "const "), UNARY, needed)

    def _vector_cast(self, expr: Cast, needed: int) -> str:
        dtype, lanes = expr.dtype, expr.lanes
        if _carrier(dtype) == _carrier(expr.a.dtype):
            return self._rounded(dtype, self.value(expr.a, needed), needed, needed, lanes)
        self.vector(expr.a.dtype, lanes)
        text = f"__builtin_convertvector({self.value(expr.a)}, {self.vector(dtype, lanes)})"
        return self._rounded(dtype, text, PRIMARY, needed, lanes)

    def _vector_extreme(self, expr: Binary) -> str:
        carrier = _carrier(expr.dtype)
        for dtype in (carrier, DType(f"int{carrier.bits}")):
            self.vector(dtype, expr.lanes)
        what, a, b = _bounded(expr)
        return f"{self.helpers.use_lanes(what, carrier, expr.lanes)}({self.value(a)}, {self.value(b)})"

    def _mask(self, cond: Expr) -> str:
        """A comparison of vectors: all bits of a lane are set where it holds."""
        if not (isinstance(cond, Binary) and cond.op in COMPARE and cond.a.dtype.is_float):
            raise AotcError("c-vector", f"a selection by {type(cond).__name__} on {cond.lanes} lanes cannot be printed")
        mask = self.vector(DType(f"int{_carrier(cond.a.dtype).bits}"), cond.lanes)
        symbol = _LEVELS[cond.op][1]
        return f"({mask})({self.value(cond.a, 11)} {symbol} {self.value(cond.b, 11)})"

    def _vector_arithmetic(self, expr: Binary, needed: int) -> str:
        level, symbol = _LEVELS[expr.op]
        if expr.dtype.is_integer and expr.dtype.is_signed:  # wraps through unsigned lanes
            signed = self.vector(expr.dtype, expr.lanes)
            cast = f"({self.vector(DType(f'u{expr.dtype}'), expr.lanes)})"
            text = f"({signed})({cast}{self.value(expr.a, UNARY)} {symbol} {cast}{self.value(expr.b, UNARY)})"
            return _paren(text, UNARY, needed)
        text = f"{self.value(expr.a, level)} {symbol} {self.value(expr.b, level + 1)}"
        return self._rounded(expr.dtype, text, level, needed, expr.lanes)


def _bounded(expr: Binary) -> tuple[str, Expr, Expr]:
    """The helper for a minimum or maximum of floats and its operands; a number that is not NaN comes second."""
    for a, b in ((expr.a, expr.b), (expr.b, expr.a)):
        if isinstance(b, Const) and b.value == b.value:
            return f"{expr.op}c", a, b
    return expr.op, expr.a, expr.b


def _carrier(dtype: DType) -> DType:
    """The dtype whose C functions a float dtype uses."""
    return DType("float32") if dtype.is_narrow_float else dtype


def _is_small(dtype: DType) -> bool:
    """Integers of fewer than 8 bits: one to a byte, the other bits mean nothing."""
    return dtype.bits < 8 and dtype.is_integer


def _mentioned(body: Stmt) -> set[Buffer]:
    """The buffers that a body reads or writes."""
    found: set[Buffer] = set()
    for stmt in walk_stmts(body):
        if isinstance(stmt, (Store, Transpose)):
            found.add(stmt.buffer)
        for expr in stmt_exprs(stmt):
            found.update(e.buffer for e in walk(expr) if isinstance(e, Load))
    return found


def origin(kernel: Kernel) -> Sequence[str]:
    """A comment that names the nodes of the model a kernel computes."""
    if kernel.span is None:
        return []
    nodes = [o.node for o in kernel.span.origins() if o.node]
    shown = ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
    return [f"/* {comment_text(shown)} */"] if nodes else []
