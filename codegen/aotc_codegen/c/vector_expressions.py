# SPDX-License-Identifier: Apache-2.0
"""Print vector expressions for C compilers whose operators work on vectors (the vector extensions
of gcc and clang).

    VectorPrinter(scope, texts).print_vector(Load(x, i, 8) * Const(2.0, f32, 8))

A vector of bool is a mask of integers with all bits set or none. Its lanes are as wide as the
compared values; the mask is converted if it is combined with values of another width.
"""

import math
from typing import Final, Protocol

from aotc.ir import AotcError, DType, frozen
from aotc.tir import expr as tir
from aotc_codegen.c.c_types import c_literal, computation_dtype, function_name_suffix_of_dtype, is_sub_byte_integer
from aotc_codegen.c.printing_scope import (
    ANY_PRECEDENCE,
    OPERATOR_PRECEDENCE_AND_SYMBOL,
    OR,
    PRIMARY,
    SHIFT,
    TERNARY,
    UNARY,
    CExpression,
    PrintingScope,
)

_C_OPERATOR_BY_OP: Final = {
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "add": "+", "sub": "-", "mul": "*",
    "neg": "-", "not": "~",
}  # fmt: skip
_MASK_OPERATOR_BY_OP: Final = {"and": "&", "or": "|", "xor": "^", "ne": "^", "eq": "^ ~"}
#: Bits per lane of bool vectors in memory.
_BOOL_BITS_IN_MEMORY: Final = 8


class OperandPrinter(Protocol):
    """Function that prints an expression, in parentheses unless it binds at least as tightly as
    `min_precedence`.
    """

    def __call__(self, scope: PrintingScope, expr: tir.Expr, min_precedence: int = ANY_PRECEDENCE) -> str: ...


@frozen
class VectorPrinter:
    """Printer of vector expressions whose spelling differs from scalar ones; `inside` prints their
    operands.
    """

    scope: PrintingScope
    inside: OperandPrinter

    def print_operand(self, expr: tir.Expr, min_precedence: int = ANY_PRECEDENCE) -> str:
        return self.inside(self.scope, expr, min_precedence)

    def print_vector_helper_call(self, helper_name: str, dtype: DType, lanes: int, *values: str) -> CExpression:
        """Return a call of a C helper function on vectors, or on masks with lanes as wide as those
        of `dtype`.
        """
        bits = computation_dtype(dtype).bits
        for kind in (dtype, DType(f"int{bits}")):
            self.scope.record_vector_type_and_return_c_name(kind, lanes)
        helper = self.scope.helpers.define_helper_and_return_name(helper_name, computation_dtype(dtype), lanes)
        return CExpression(f"{helper}({', '.join(values)})")

    def print_element_conversion(self, vector_text: str, dtype: DType, lanes: int) -> str:
        """Return C code that converts each element of a vector to `dtype`."""
        convert = self.scope.dialect.require_vector_spelling("a conversion").convert
        return convert.format(value=vector_text, type=self.scope.record_vector_type_and_return_c_name(dtype, lanes))

    def print_vector(self, expr: tir.Expr) -> CExpression:
        """Print a vector expression of the IR as C."""
        if expr.dtype.is_bool:
            return CExpression(self.print_bool_vector_as_mask(expr, self.natural_mask_lane_bits(expr)), UNARY)
        match expr:
            case tir.Var():
                self.scope.record_vector_type_and_return_c_name(expr.dtype, expr.lanes)
                return CExpression(self.scope.c_name(expr))
            case tir.Const() | tir.Broadcast():
                return self.print_scalar_broadcast_to_lanes(expr)
            case tir.Load(stride=2) if (
                _does_load_give_bits_in_memory(expr.dtype) and expr.lanes & (expr.lanes - 1) == 0
            ):
                first_element = self.print_operand(tir.Load(expr.buffer, expr.index), UNARY)
                return self.print_vector_helper_call("load_alternate", expr.dtype, expr.lanes, f"&{first_element}")
            case tir.Load():
                # a strided load: one element after another
                places = (expr.index + k * expr.stride for k in range(expr.lanes))
                return self.print_vector_packed_from_scalars(
                    tir.Pack(tuple(tir.Load(expr.buffer, place) for place in places))
                )
            case tir.Pack():
                return self.print_vector_packed_from_scalars(expr)
            case tir.Bitcast():
                vector_type = self.scope.record_vector_type_and_return_c_name(expr.dtype, expr.lanes)
                return CExpression(f"({vector_type}){self.print_operand(expr.a, UNARY)}", UNARY)
            case tir.Cast():
                return self.print_vector_cast(expr)
            case tir.Unary() | tir.Binary():
                return self.print_vector_arithmetic(expr)
            case tir.Select():
                return self.print_vector_select(expr)
            case tir.Call():
                return self.print_vector_call(expr)
            case _:
                raise _unprintable_vector_error(expr)

    def print_scalar_broadcast_to_lanes(self, expr: tir.Const | tir.Broadcast) -> CExpression:
        """Return C code for a vector with one scalar in all lanes."""
        vector = self.scope.record_vector_type_and_return_c_name(expr.dtype, expr.lanes)
        if isinstance(expr, tir.Broadcast):
            return self.print_vector_helper_call("splat", expr.dtype, expr.lanes, self.print_operand(expr.a))
        if expr.dtype.can_represent_zero and expr.value == 0 and math.copysign(1, expr.value) > 0:
            return CExpression(self.scope.dialect.require_vector_spelling(vector).zero.format(type=vector))
        return self.print_vector_helper_call(
            "splat", expr.dtype, expr.lanes, self.scope.dialect.literal(expr.value, expr.dtype)
        )

    def print_vector_packed_from_scalars(self, expr: tir.Pack) -> CExpression:
        """Return C code for a vector made of scalars that are computed one by one."""
        vector = self.scope.record_vector_type_and_return_c_name(expr.dtype, expr.lanes)
        return CExpression(f"({vector}){{{', '.join(map(self.print_operand, expr.parts))}}}", UNARY)

    def print_vector_cast(self, expr: tir.Cast) -> CExpression:
        dtype, source, lanes = computation_dtype(expr.dtype), computation_dtype(expr.a.dtype), expr.lanes
        narrow = expr.dtype.is_narrow_float
        if source == dtype:
            return CExpression(self.print_operand(expr.a, UNARY), UNARY, narrow)
        if source.is_bool:
            mask = f"-{self.print_bool_vector_as_mask(expr.a, dtype.bits)}"
            return CExpression(self.print_element_conversion(mask, dtype, lanes), exact=narrow)
        text = self.print_operand(expr.a)
        if expr.a.dtype == "float64" and expr.dtype == "float16":
            return CExpression(
                f"{self.scope.record_function_and_return_c_name('odd', source, lanes)}({text})", exact=True
            )
        if source.is_float and not dtype.is_float:
            integer_type = {"uint64": "uint64", "int64": "int64", "uint32": "int64"}.get(dtype, "int32")
            for kind in ("int64", integer_type):
                self.scope.record_vector_type_and_return_c_name(DType(kind), lanes)
            piece = self.print_vector_helper_call(
                f"to_{function_name_suffix_of_dtype(DType(integer_type))}", source, lanes, text
            )
            if dtype == integer_type:
                return piece
            text, source = piece.text, DType(integer_type)
        if source.is_integer and dtype.is_integer and (source.bits, dtype.bits) in ((32, 8), (8, 32)):
            return self.print_int8_int32_conversion(text, source, dtype, lanes)
        return CExpression(self.print_element_conversion(text, dtype, lanes), exact=narrow)

    def print_int8_int32_conversion(self, text: str, source: DType, dtype: DType, lanes: int) -> CExpression:
        """Return C code for a conversion between vectors of 8-bit and 32-bit integers."""
        for kind in ("int8", "int16", "int32"):
            self.scope.record_vector_type_and_return_c_name(DType(kind), lanes)
        helper, result_type = ("narrow", "int8") if dtype.bits == 8 else ("widen", "int32")
        if helper == "narrow" and not source.is_signed:
            source, text = (
                DType("int32"),
                f"({self.scope.record_vector_type_and_return_c_name(DType('int32'), lanes)})({text})",
            )
        piece = self.print_vector_helper_call(helper, source, lanes, text)
        return (
            piece
            if dtype == result_type
            else CExpression(f"({self.scope.record_vector_type_and_return_c_name(dtype, lanes)}){piece.text}", UNARY)
        )

    # --- operations

    def print_vector_arithmetic(self, expr: tir.Binary | tir.Unary) -> CExpression:
        """Print a unary or binary operator on vectors; signed integers are computed as unsigned
        ones, so that they wrap.
        """
        dtype, op = expr.dtype, expr.op
        if isinstance(expr, tir.Binary) and op in ("min", "max"):
            return self.print_vector_min_max(expr)
        if op not in _C_OPERATOR_BY_OP:
            raise _unprintable_vector_error(expr)
        level = UNARY if isinstance(expr, tir.Binary) else PRIMARY
        operands = [self.print_operand(o, level) for o in tir.operands(expr)]
        back = unsigned = ""
        if dtype.is_integer and dtype.is_signed and op != "shr":
            back = f"({self.scope.record_vector_type_and_return_c_name(dtype, expr.lanes)})"
            unsigned = f"({self.scope.record_vector_type_and_return_c_name(DType(f'u{dtype}'), expr.lanes)})"
        *left, right = (unsigned + o for o in operands)
        text = f"{left[0]} {_C_OPERATOR_BY_OP[op]} {right}" if left else f"{_C_OPERATOR_BY_OP[op]}{right}"
        return CExpression(f"{back}({text})" if back or left else text, UNARY, dtype.is_narrow_float)

    def print_vector_min_max(self, expr: tir.Binary) -> CExpression:
        dtype = computation_dtype(expr.dtype)
        helper = float_min_max_helper_name(expr) if dtype.is_float else f"{expr.op}c"
        return self.print_vector_helper_call(
            helper, dtype, expr.lanes, self.print_operand(expr.a), self.print_operand(expr.b)
        )

    def print_vector_select(self, expr: tir.Select) -> CExpression:
        dtype = computation_dtype(expr.dtype)
        if expr.cond.lanes == 1:
            # gcc requires equal types of both branches, and vectors in memory have a type of their
            # own
            vector = self.scope.record_vector_type_and_return_c_name(dtype, expr.lanes)
            a, b = (f"({vector}){self.print_operand(e, UNARY)}" for e in (expr.a, expr.b))
            return CExpression(f"{self.print_operand(expr.cond, OR)} ? {a} : {b}", TERNARY)
        mask = self.print_bool_vector_as_mask(expr.cond, dtype.bits)
        return self.print_vector_helper_call(
            "blend", dtype, expr.lanes, mask, self.print_operand(expr.a), self.print_operand(expr.b)
        )

    def print_vector_call(self, expr: tir.Call) -> CExpression:
        """Print a function call on vectors as a call of a C helper function."""
        dtype = computation_dtype(expr.dtype)
        if expr.name == "abs" and not dtype.is_float:
            (a,) = expr.args
            return (
                self.print_vector_min_max(tir.Binary("max", a, tir.Unary("neg", a)))
                if dtype.is_signed
                else self.print_vector(a)
            )
        piece = self.print_vector_helper_call(expr.name, dtype, expr.lanes, *map(self.print_operand, expr.args))
        return piece._replace(exact=expr.dtype.is_narrow_float)

    # --- masks

    def natural_mask_lane_bits(self, expr: tir.Expr) -> int:
        """Return the lane width in bits of the mask that a bool expression yields without
        conversion.
        """
        match expr:
            case tir.Var():
                return self.scope.masks[expr]
            case tir.Cast(a=a) | tir.Call(args=(a, *_)):
                return computation_dtype(a.dtype).bits
            case tir.Binary(a=a) if not a.dtype.is_bool:
                return computation_dtype(a.dtype).bits
            case tir.Binary() | tir.Unary():
                return max(map(self.natural_mask_lane_bits, tir.operands(expr)))
            case tir.Select():
                return max(self.natural_mask_lane_bits(expr.a), self.natural_mask_lane_bits(expr.b))
            case _:
                return _BOOL_BITS_IN_MEMORY

    def print_bool_vector_as_mask(self, expr: tir.Expr, lane_bits: int) -> str:
        """Print a vector of bool as a C mask: integers of `lane_bits` bits per lane, all set or
        none.
        """
        dtype, lanes = DType(f"int{lane_bits}"), expr.lanes
        self.scope.record_vector_type_and_return_c_name(dtype, lanes)
        match expr:
            case tir.Const():
                return self.print_vector_helper_call("splat", dtype, lanes, str(-int(expr.value))).text
            case tir.Broadcast():
                # the operand has type int in C
                kind = f"({self.scope.dialect.types[dtype]})" if lane_bits < 32 else ""
                return self.print_vector_helper_call(
                    "splat", dtype, lanes, f"{kind}-({self.print_operand(expr.a)})"
                ).text
            case tir.Pack():
                kind = self.scope.dialect.types[dtype]
                lines = (f"({kind})-({self.print_operand(part)})" for part in expr.parts)
                return f"({self.scope.record_vector_type_and_return_c_name(dtype, lanes)}){{{', '.join(lines)}}}"
            case tir.Binary(op=op) if expr.a.dtype.is_bool:
                return (
                    f"({self.print_bool_vector_as_mask(expr.a, lane_bits)} "
                    f"{_MASK_OPERATOR_BY_OP[op]}{self.print_bool_vector_as_mask(expr.b, lane_bits)})"
                )
            case tir.Unary():
                return f"(~{self.print_bool_vector_as_mask(expr.a, lane_bits)})"
            case tir.Select() if expr.cond.lanes == 1:
                return (
                    f"({self.print_operand(expr.cond, OR)} ? "
                    f"{self.print_bool_vector_as_mask(expr.a, lane_bits)} : "
                    f"{self.print_bool_vector_as_mask(expr.b, lane_bits)})"
                )
            case tir.Select():
                masks = (self.print_bool_vector_as_mask(part, lane_bits) for part in (expr.cond, expr.a, expr.b))
                return self.print_vector_helper_call("blend", dtype, lanes, *masks).text
        natural_bits = self.natural_mask_lane_bits(expr)
        text = self.print_vector_test_as_mask(expr)
        return text if natural_bits == lane_bits else self.print_element_conversion(text, dtype, lanes)

    def print_vector_test_as_mask(self, expr: tir.Expr) -> str:
        """Print a vector test (comparison, load, cast, isnan) as a C mask in the lane width of the
        tested values.
        """
        lane_dtype = DType(f"int{self.natural_mask_lane_bits(expr)}")
        mask = f"({self.scope.record_vector_type_and_return_c_name(lane_dtype, expr.lanes)})"
        match expr:
            case tir.Var():
                return self.scope.c_name(expr)
            case tir.Load():
                elements = tir.Load(
                    self.scope.buffer_viewed_as_unsigned_integers(expr.buffer), expr.index, expr.lanes, expr.stride
                )
                return f"{mask}({self.print_operand(elements, SHIFT)} != 0)"
            case tir.Binary():
                return (
                    f"{mask}({self.print_operand(expr.a, SHIFT)} "
                    f"{OPERATOR_PRECEDENCE_AND_SYMBOL[expr.op][1]} {self.print_operand(expr.b, SHIFT)})"
                )
            case tir.Cast():
                return f"{mask}({self.print_operand(expr.a, SHIFT)} != 0)"
            case tir.Call(name="isnan", args=(a,)):
                return f"{mask}({self.print_operand(a, SHIFT)} != {self.print_operand(a, SHIFT)})"
            case _:
                raise _unprintable_vector_error(expr)


def _does_load_give_bits_in_memory(dtype: DType) -> bool:
    """Return True if a load gives the bits in memory: narrow floats are converted, and the
    undefined upper bits of integers of fewer than 8 bits are removed.
    """
    return not (dtype.is_narrow_float or is_sub_byte_integer(dtype))


def _unprintable_vector_error(expr: tir.Expr) -> AotcError:
    return AotcError("c-vector", f"{type(expr).__name__} on vectors of {expr.lanes} x {expr.dtype} cannot be printed")


def float_min_max_helper_name(expr: tir.Binary) -> str:
    """Return the helper's name for a float minimum or maximum; a constant that prints as NaN needs
    the NaN-aware one.
    """
    number = isinstance(expr.b, tir.Const) and "NAN" not in c_literal(expr.b.value, expr.dtype)
    return f"{expr.op}c" if number else expr.op
