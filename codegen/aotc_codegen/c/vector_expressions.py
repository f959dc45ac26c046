# SPDX-License-Identifier: Apache-2.0
"""Print vector expressions for C compilers whose operators work on vectors (the vector extensions
of gcc and clang).

    Vectors(scope, texts).piece(Load(x, i, 8) * Const(2.0, f32, 8))

A vector of bool is a mask of integers with all bits set or none. Its lanes are as wide as the
compared values; the mask is converted if it is combined with values of another width.
"""

import math
from typing import Final, Protocol

from aotc.ir import AotcError, DType, frozen
from aotc.tir import expr as tir
from aotc_codegen.c.c_types import carrier, literal, suffix
from aotc_codegen.c.printing_scope import ANY, LEVELS, OR, PRIMARY, SHIFT, TERNARY, UNARY, Piece, Scope

_SYMBOLS: Final = {
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "add": "+", "sub": "-", "mul": "*",
    "neg": "-", "not": "~",
}  # fmt: skip
_LOGICAL: Final = {"and": "&", "or": "|", "xor": "^", "ne": "^", "eq": "^ ~"}
#: Bits per lane of bool vectors in memory.
_BYTE: Final = 8


class Value(Protocol):
    """Function that prints an expression, in parentheses unless it binds at least as tightly as
    `needed`.
    """

    def __call__(self, scope: Scope, expr: tir.Expr, needed: int = ANY) -> str: ...


@frozen
class Vectors:
    """Printer of vector expressions whose spelling differs from scalar ones; `inside` prints their
    operands.
    """

    scope: Scope
    inside: Value

    def value(self, expr: tir.Expr, needed: int = ANY) -> str:
        return self.inside(self.scope, expr, needed)

    def helper(self, what: str, dtype: DType, lanes: int, *values: str) -> Piece:
        """Return a call of a C helper function on vectors, or on masks with lanes as wide as those
        of `dtype`.
        """
        bits = carrier(dtype).bits
        for kind in (dtype, DType(f"int{bits}")):
            self.scope.vector(kind, lanes)
        return Piece(f"{self.scope.helpers.use(what, carrier(dtype), lanes)}({', '.join(values)})")

    def converted(self, text: str, dtype: DType, lanes: int) -> str:
        """Return C code that converts each element of a vector to `dtype`."""
        convert = self.scope.dialect.spelled_vectors("a conversion").convert
        return convert.format(value=text, type=self.scope.vector(dtype, lanes))

    def piece(self, expr: tir.Expr) -> Piece:
        """Print a vector expression of the IR as C."""
        if expr.dtype.is_bool:
            return Piece(self.mask(expr, self.mask_bits(expr)), UNARY)
        match expr:
            case tir.Var():
                self.scope.vector(expr.dtype, expr.lanes)
                return Piece(self.scope.name(expr))
            case tir.Const() | tir.Broadcast():
                return self.repeated(expr)
            case tir.Load():
                # a strided load: one element after another
                places = (expr.index + k * expr.stride for k in range(expr.lanes))
                return self.packed(tir.Pack(tuple(tir.Load(expr.buffer, place) for place in places)))
            case tir.Pack():
                return self.packed(expr)
            case tir.Bitcast():
                return Piece(f"({self.scope.vector(expr.dtype, expr.lanes)}){self.value(expr.a, UNARY)}", UNARY)
            case tir.Cast():
                return self.cast(expr)
            case tir.Unary() | tir.Binary():
                return self.arithmetic(expr)
            case tir.Select():
                return self.select(expr)
            case tir.Call():
                return self.call(expr)
            case _:
                raise _unprintable(expr)

    def repeated(self, expr: tir.Const | tir.Broadcast) -> Piece:
        """Return C code for a vector with one scalar in all lanes."""
        vector = self.scope.vector(expr.dtype, expr.lanes)
        if isinstance(expr, tir.Broadcast):
            return self.helper("splat", expr.dtype, expr.lanes, self.value(expr.a))
        if expr.dtype.has_zero and expr.value == 0 and math.copysign(1, expr.value) > 0:
            return Piece(self.scope.dialect.spelled_vectors(vector).zero.format(type=vector))
        return self.helper("splat", expr.dtype, expr.lanes, self.scope.dialect.literal(expr.value, expr.dtype))

    def packed(self, expr: tir.Pack) -> Piece:
        """Return C code for a vector made of scalars that are computed one by one."""
        vector = self.scope.vector(expr.dtype, expr.lanes)
        return Piece(f"({vector}){{{', '.join(map(self.value, expr.parts))}}}", UNARY)

    def cast(self, expr: tir.Cast) -> Piece:
        dtype, source, lanes = carrier(expr.dtype), carrier(expr.a.dtype), expr.lanes
        narrow = expr.dtype.is_narrow_float
        if source == dtype:
            return Piece(self.value(expr.a, UNARY), UNARY, narrow)
        if source.is_bool:
            mask = f"-{self.mask(expr.a, dtype.bits)}"
            return Piece(self.converted(mask, dtype, lanes), exact=narrow)
        text = self.value(expr.a)
        if expr.a.dtype == "float64" and expr.dtype == "float16":
            return Piece(f"{self.scope.program('odd', source, lanes)}({text})", exact=True)
        if source.is_float and not dtype.is_float:
            made = {"uint64": "uint64", "int64": "int64", "uint32": "int64"}.get(dtype, "int32")
            for kind in ("int64", made):
                self.scope.vector(DType(kind), lanes)
            piece = self.helper(f"to_{suffix(DType(made))}", source, lanes, text)
            if dtype == made:
                return piece
            text, source = piece.text, DType(made)
        if source.is_integer and dtype.is_integer and (source.bits, dtype.bits) in ((32, 8), (8, 32)):
            return self.resized(text, source, dtype, lanes)
        return Piece(self.converted(text, dtype, lanes), exact=narrow)

    def resized(self, text: str, source: DType, dtype: DType, lanes: int) -> Piece:
        """Return C code for a conversion between vectors of 8-bit and 32-bit integers."""
        for kind in ("int8", "int16", "int32"):
            self.scope.vector(DType(kind), lanes)
        what, made = ("narrow", "int8") if dtype.bits == 8 else ("widen", "int32")
        if what == "narrow" and not source.is_signed:
            source, text = DType("int32"), f"({self.scope.vector(DType('int32'), lanes)})({text})"
        piece = self.helper(what, source, lanes, text)
        return piece if dtype == made else Piece(f"({self.scope.vector(dtype, lanes)}){piece.text}", UNARY)

    # --- operations

    def arithmetic(self, expr: tir.Binary | tir.Unary) -> Piece:
        """Print a unary or binary operator on vectors; signed integers are computed as unsigned
        ones, so that they wrap.
        """
        dtype, op = expr.dtype, expr.op
        if isinstance(expr, tir.Binary) and op in ("min", "max"):
            return self.extreme(expr)
        if op not in _SYMBOLS:
            raise _unprintable(expr)
        level = UNARY if isinstance(expr, tir.Binary) else PRIMARY
        operands = [self.value(o, level) for o in tir.operands(expr)]
        back = unsigned = ""
        if dtype.is_integer and dtype.is_signed and op != "shr":
            back = f"({self.scope.vector(dtype, expr.lanes)})"
            unsigned = f"({self.scope.vector(DType(f'u{dtype}'), expr.lanes)})"
        *left, right = (unsigned + o for o in operands)
        text = f"{left[0]} {_SYMBOLS[op]} {right}" if left else f"{_SYMBOLS[op]}{right}"
        return Piece(f"{back}({text})" if back or left else text, UNARY, dtype.is_narrow_float)

    def extreme(self, expr: tir.Binary) -> Piece:
        dtype = carrier(expr.dtype)
        what = extreme(expr) if dtype.is_float else f"{expr.op}c"
        return self.helper(what, dtype, expr.lanes, self.value(expr.a), self.value(expr.b))

    def select(self, expr: tir.Select) -> Piece:
        dtype = carrier(expr.dtype)
        if expr.cond.lanes == 1:
            # gcc requires equal types of both branches, and vectors in memory have a type of their
            # own
            vector = self.scope.vector(dtype, expr.lanes)
            a, b = (f"({vector}){self.value(e, UNARY)}" for e in (expr.a, expr.b))
            return Piece(f"{self.value(expr.cond, OR)} ? {a} : {b}", TERNARY)
        mask = self.mask(expr.cond, dtype.bits)
        return self.helper("blend", dtype, expr.lanes, mask, self.value(expr.a), self.value(expr.b))

    def call(self, expr: tir.Call) -> Piece:
        """Print a function call on vectors as a call of a C helper function."""
        dtype = carrier(expr.dtype)
        if expr.name == "abs" and not dtype.is_float:
            (a,) = expr.args
            return self.extreme(tir.Binary("max", a, tir.Unary("neg", a))) if dtype.is_signed else self.piece(a)
        piece = self.helper(expr.name, dtype, expr.lanes, *map(self.value, expr.args))
        return piece._replace(exact=expr.dtype.is_narrow_float)

    # --- masks

    def mask_bits(self, expr: tir.Expr) -> int:
        """Return the lane width in bits of the mask that a bool expression yields without
        conversion.
        """
        match expr:
            case tir.Var():
                return self.scope.masks[expr]
            case tir.Cast(a=a) | tir.Call(args=(a, *_)):
                return carrier(a.dtype).bits
            case tir.Binary(a=a) if not a.dtype.is_bool:
                return carrier(a.dtype).bits
            case tir.Binary() | tir.Unary():
                return max(map(self.mask_bits, tir.operands(expr)))
            case tir.Select():
                return max(self.mask_bits(expr.a), self.mask_bits(expr.b))
            case _:
                return _BYTE

    def mask(self, expr: tir.Expr, bits: int) -> str:
        """Print a vector of bool as a C mask: integers of `bits` bits per lane, all set or none."""
        dtype, lanes = DType(f"int{bits}"), expr.lanes
        self.scope.vector(dtype, lanes)
        match expr:
            case tir.Const():
                return self.helper("splat", dtype, lanes, str(-int(expr.value))).text
            case tir.Broadcast():
                # the operand has type int in C
                kind = f"({self.scope.dialect.types[dtype]})" if bits < 32 else ""
                return self.helper("splat", dtype, lanes, f"{kind}-({self.value(expr.a)})").text
            case tir.Pack():
                kind = self.scope.dialect.types[dtype]
                lines = (f"({kind})-({self.value(part)})" for part in expr.parts)
                return f"({self.scope.vector(dtype, lanes)}){{{', '.join(lines)}}}"
            case tir.Binary(op=op) if expr.a.dtype.is_bool:
                return f"({self.mask(expr.a, bits)} {_LOGICAL[op]}{self.mask(expr.b, bits)})"
            case tir.Unary():
                return f"(~{self.mask(expr.a, bits)})"
            case tir.Select() if expr.cond.lanes == 1:
                return f"({self.value(expr.cond, OR)} ? {self.mask(expr.a, bits)} : {self.mask(expr.b, bits)})"
            case tir.Select():
                masks = (self.mask(part, bits) for part in (expr.cond, expr.a, expr.b))
                return self.helper("blend", dtype, lanes, *masks).text
        own = self.mask_bits(expr)
        text = self.tested(expr)
        return text if own == bits else self.converted(text, dtype, lanes)

    def tested(self, expr: tir.Expr) -> str:
        """Print a vector test (comparison, load, cast, isnan) as a C mask in the lane width of the
        tested values.
        """
        mask = f"({self.scope.vector(DType(f'int{self.mask_bits(expr)}'), expr.lanes)})"
        match expr:
            case tir.Var():
                return self.scope.name(expr)
            case tir.Load():
                elements = tir.Load(self.scope.bits_of(expr.buffer), expr.index, expr.lanes, expr.stride)
                return f"{mask}({self.value(elements, SHIFT)} != 0)"
            case tir.Binary():
                return f"{mask}({self.value(expr.a, SHIFT)} {LEVELS[expr.op][1]} {self.value(expr.b, SHIFT)})"
            case tir.Cast():
                return f"{mask}({self.value(expr.a, SHIFT)} != 0)"
            case tir.Call(name="isnan", args=(a,)):
                return f"{mask}({self.value(a, SHIFT)} != {self.value(a, SHIFT)})"
            case _:
                raise _unprintable(expr)


def _unprintable(expr: tir.Expr) -> AotcError:
    return AotcError("c-vector", f"{type(expr).__name__} on vectors of {expr.lanes} x {expr.dtype} cannot be printed")


def extreme(expr: tir.Binary) -> str:
    """Return the helper's name for a float minimum or maximum; a constant that prints as NaN needs
    the NaN-aware one.
    """
    number = isinstance(expr.b, tir.Const) and "NAN" not in literal(expr.b.value, expr.dtype)
    return f"{expr.op}c" if number else expr.op
