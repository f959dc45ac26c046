# SPDX-License-Identifier: Apache-2.0
"""Print scalar, index and vector expressions as C, with as few parentheses as operator precedence
allows.

scope = Scope(Helpers(C99), Indices(body))
print_value(scope, Load(x, i) * 2.0)   # "x[i] * 2.0f"
print_index(scope, i * 4 + 1, 13)      # "(i * 4 + 1)": an operand of * binds at least as tightly

Index expressions are plain arithmetic in the dialect's signed index type: extents are checked when
a program is made, so they cannot overflow. Values of integer tensors wrap around (they are computed
as unsigned integers), even if they are later clamped and used as indices.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aotc.ir import AotcError, DType, frozen
from aotc.tir import INSTRUCTIONS, InstructionText, bounds
from aotc.tir import expr as tir
from aotc.tir.functions.elementary_function_table import EXACT_FUNCTIONS, elementary_function_definition
from aotc.tir.functions.float16_conversion import storage_dtype_of_narrow_float
from aotc_codegen.c.c_types import computation_dtype, is_sub_byte_integer
from aotc_codegen.c.helper_functions import HELPER_OF_INSTRUCTION
from aotc_codegen.c.printing_scope import (
    ANY_PRECEDENCE,
    EQUALITY,
    OPERATOR_PRECEDENCE_AND_SYMBOL,
    OR,
    PRIMARY,
    PRODUCT,
    SHIFT,
    TERNARY,
    UNARY,
    CExpression,
    PrintingScope,
)
from aotc_codegen.c.vector_expressions import VectorPrinter, float_min_max_helper_name

_C_BITWISE_OPERATORS: Final = {"and": "&", "or": "|", "xor": "^"}
_C_SHIFT_OPERATORS: Final = {"shl": "<<", "shr": ">>"}
_ADD_SUB_MUL: Final = ("add", "sub", "mul")
_LOGICAL_OP_BY_BOOL_OP: Final = {"mul": "and", "min": "and", "add": "or", "max": "or"}


@frozen
class _Operand:
    """Operand in an instruction's template: "{0:13}" asks for text that binds at least as tightly
    as a product.

    In languages without vectors, a load of several elements prints as the address of the first.
    """

    scope: PrintingScope
    expr: tir.Expr

    def __format__(self, level: str) -> str:
        if self.scope.dialect.vectors is None and isinstance(self.expr, tir.Load) and self.expr.lanes > 1:
            return print_element_address(self.scope, self.expr.buffer, self.expr.index)
        return print_value(self.scope, self.expr, int(level or ANY_PRECEDENCE))


def print_value(scope: PrintingScope, expr: tir.Expr, min_precedence: int = ANY_PRECEDENCE) -> str:
    """Return an expression in its dtype's value type, in parentheses if it binds less tightly than
    `min_precedence`.
    """
    return _print_rounded_to_dtype(scope, expr).parenthesized_if_looser(min_precedence)


def print_narrow_float_bits(scope: PrintingScope, expr: tir.Expr) -> str:
    """Return the bits of a narrow float as an unsigned integer.

    Bits in memory are copied; a computed value is rounded once, by the conversion.
    """
    if (stored := _ir_expr_of_stored_float_bits(scope, expr)) is not None:
        return print_value(scope, stored)
    function = scope.record_function_and_return_c_name("store", expr.dtype, expr.lanes)
    return f"{function}({_print_expression_before_rounding(scope, expr).text})"


def _ir_expr_of_stored_float_bits(scope: PrintingScope, expr: tir.Expr) -> tir.Expr | None:
    """Return an IR expression for the stored bits of narrow floats; None if some of them are
    computed.
    """
    match expr:
        case tir.Load():
            return replace(expr, buffer=scope.buffer_viewed_as_unsigned_integers(expr.buffer))
        case tir.Pack():
            parts = tuple(
                stored_part
                for part in expr.parts
                if (stored_part := _ir_expr_of_stored_float_bits(scope, part)) is not None
            )
            return tir.Pack(parts) if len(parts) == expr.lanes else None
        case tir.Select(a=tir.Load() as a, b=tir.Const() as b) if b == tir.Const(0.0, b.dtype):
            stored = replace(a, buffer=scope.buffer_viewed_as_unsigned_integers(a.buffer))
            return tir.Select(expr.cond, stored, tir.Const(0, stored.dtype))
        case tir.Bitcast():
            return tir.bitcast(expr.a, storage_dtype_of_narrow_float(expr.dtype))
    return None


def print_index(scope: PrintingScope, expr: tir.Expr, min_precedence: int = ANY_PRECEDENCE) -> str:
    """Return an expression in the index type, in parentheses if it binds less tightly than
    `min_precedence`.
    """
    return _print_index_expression(scope, expr).parenthesized_if_looser(min_precedence)


def c_type_of_register_var(scope: PrintingScope, var: tir.Var) -> str:
    """Return the C type of a register variable whose value has been printed."""
    if var in scope.indices.registers:
        return scope.dialect.index
    if var.lanes == 1:
        return scope.dialect.c_value_type(var.dtype)
    return scope.record_vector_type_and_return_c_name(
        DType(f"int{scope.masks[var]}") if var.dtype.is_bool else var.dtype, var.lanes
    )


def print_assigned_value(scope: PrintingScope, var: tir.Var, assigned_expr: tir.Expr) -> str:
    """Return the C expression of the value `assigned_expr` that is assigned to the register
    variable `var`.
    """
    if var in scope.indices.registers:
        return print_index(scope, assigned_expr)
    if not (var.dtype.is_bool and var.lanes > 1):
        return print_value(scope, assigned_expr)
    vectors = VectorPrinter(scope, print_value)
    return vectors.print_bool_vector_as_mask(
        assigned_expr, scope.masks.setdefault(var, vectors.natural_mask_lane_bits(assigned_expr))
    )


def print_element_address(scope: PrintingScope, buffer: tir.Buffer, element_index: tir.Expr) -> str:
    """Return a C expression for the address of an element of a buffer."""
    return f"{scope.c_name(buffer)} + {print_index(scope, element_index, PRODUCT)}"


def print_element_lvalue(
    scope: PrintingScope, buffer: tir.Buffer, element_index: tir.Expr, lanes: int, const_qualifier: str = ""
) -> str:
    """Return a C lvalue for an element of a buffer, or for several consecutive elements as a
    vector.
    """
    if lanes == 1:
        return f"{scope.c_name(buffer)}[{print_index(scope, element_index)}]"
    return (
        f"*({const_qualifier}{scope.record_vector_type_and_return_c_name(buffer.dtype, lanes)}u "
        f"*)({print_element_address(scope, buffer, element_index)})"
    )


def _print_rounded_to_dtype(scope: PrintingScope, expr: tir.Expr) -> CExpression:
    """Print an expression, rounded to its dtype; C computes narrow floats in float."""
    piece = _print_expression_before_rounding(scope, expr)
    if not piece.exact:
        return piece
    return CExpression(f"{scope.record_function_and_return_c_name('round', expr.dtype, expr.lanes)}({piece.text})")


def _print_expression_before_rounding(scope: PrintingScope, expr: tir.Expr) -> CExpression:
    """Return an expression before rounding: first the forms that scalars and vectors share, then
    the separate ones.
    """
    if expr.dtype.is_narrow_float and (stored := _ir_expr_of_stored_float_bits(scope, expr)) is not None:
        return CExpression(
            f"{scope.record_function_and_return_c_name('load', expr.dtype, expr.lanes)}({print_value(scope, stored)})"
        )
    match expr:
        case tir.Binary() if expr.dtype.is_float and expr.op in OPERATOR_PRECEDENCE_AND_SYMBOL:
            return _print_infix_operator(scope, expr)
        case tir.Call() if (piece := _print_instruction_or_none(scope, expr)) is not None:
            return piece
        case tir.Bitcast(a=a) if expr.lanes > 1 and a.dtype.is_narrow_float:
            vector_type = scope.record_vector_type_and_return_c_name(expr.dtype, expr.lanes)
            return CExpression(f"({vector_type})({print_narrow_float_bits(scope, a)})", UNARY)
        case tir.Load(stride=1) if expr.lanes > 1 and not expr.dtype.is_bool:
            return CExpression(print_element_lvalue(scope, expr.buffer, expr.index, expr.lanes, "const "), UNARY)
    return VectorPrinter(scope, print_value).print_vector(expr) if expr.lanes > 1 else _print_scalar(scope, expr)


def _print_scalar(scope: PrintingScope, expr: tir.Expr) -> CExpression:
    if not isinstance(expr, tir.Const) and scope.is_index_arithmetic_fitting_32_bits(expr):
        return CExpression(f"({scope.dialect.types[tir.INDEX]}){print_index(scope, expr, UNARY)}", UNARY)
    match expr:
        case tir.Const():
            text = scope.dialect.literal(expr.value, expr.dtype)
            return CExpression(text, UNARY if text[0] in "-(" else PRIMARY)
        case tir.Var():
            return CExpression(scope.c_name(expr))
        case tir.Load():
            return _print_scalar_load(scope, expr)
        case tir.Cast():
            return _print_scalar_cast(scope, expr)
        case tir.Bitcast():
            return _print_scalar_bitcast(scope, expr)
        case tir.Select():
            cond, a = print_value(scope, expr.cond, OR), print_value(scope, expr.a, OR)
            return CExpression(f"{cond} ? {a} : {print_value(scope, expr.b, TERNARY)}", TERNARY)
        case tir.Unary():
            return _print_scalar_unary(scope, expr)
        case tir.Binary():
            return _print_scalar_binary(scope, expr)
        case tir.Call():
            return _print_helper_or_library_call(scope, expr)
        case _:
            raise AssertionError(f"{type(expr).__name__} is no scalar")


def _print_operand_list(scope: PrintingScope, *operands: tir.Expr) -> str:
    return ", ".join([print_value(scope, operand) for operand in operands])


def _print_infix_operator(scope: PrintingScope, expr: tir.Binary) -> CExpression:
    level, symbol = OPERATOR_PRECEDENCE_AND_SYMBOL[expr.op]
    text = f"{print_value(scope, expr.a, level)} {symbol} {print_value(scope, expr.b, level + 1)}"
    return CExpression(text, level, expr.dtype.is_narrow_float)


# --- index expressions


def _print_index_expression(scope: PrintingScope, expr: tir.Expr) -> CExpression:
    if not (
        isinstance(expr, tir.Const)
        or getattr(expr, "op", "") in _ADD_SUB_MUL
        or scope.indices.is_index_arithmetic(expr)
    ):
        return CExpression(f"({scope.dialect.index}){print_value(scope, expr, UNARY)}", UNARY)
    match expr:
        case tir.Const():
            text = scope.dialect.literal(expr.value, DType("int32" if abs(expr.value) < 1 << 31 else "int64"))
            return CExpression(text, UNARY if text[0] == "-" else PRIMARY)
        case tir.Var():
            return CExpression(scope.c_name(expr))
        case tir.Binary() if expr.op in _ADD_SUB_MUL:
            return _print_index_add_sub_mul(scope, expr)
        case tir.Binary(op="min" | "max"):
            helper = scope.helpers.define_helper_and_return_name(f"index_{expr.op}", tir.INDEX)
            return CExpression(f"{helper}({print_index(scope, expr.a)}, {print_index(scope, expr.b)})")
        case tir.Binary():
            return _print_index_division(scope, expr)
        case tir.Unary():
            return CExpression(f"-{print_index(scope, expr.a, UNARY)}", UNARY)
        case _:
            assert isinstance(expr, tir.Select)
            cond = print_value(scope, expr.cond, OR)
            return CExpression(
                f"{cond} ? {print_index(scope, expr.a, OR)} : {print_index(scope, expr.b, TERNARY)}", TERNARY
            )


def _print_index_add_sub_mul(scope: PrintingScope, expr: tir.Binary) -> CExpression:
    level, symbol = OPERATOR_PRECEDENCE_AND_SYMBOL[expr.op]
    a, op, b = expr.a, symbol, expr.b
    if expr.op == "add" and isinstance(b, tir.Const) and b.value < 0:
        op, b = "-", tir.Const(-int(b.value), tir.INDEX)
    # a * (b / c) is not a * b / c
    associative = expr.op in ("add", "mul") and op == symbol and not (expr.op == "mul" and _begins_with_division(b))
    right = level if associative else level + 1
    return CExpression(f"{print_index(scope, a, level)} {op} {print_index(scope, b, right)}", level)


def _begins_with_division(expr: tir.Expr) -> bool:
    """Return True if the text of a product begins with a quotient or remainder."""
    while isinstance(expr, tir.Binary) and expr.op == "mul":
        expr = expr.a
    return isinstance(expr, tir.Binary) and expr.op not in _ADD_SUB_MUL


def _print_index_division(scope: PrintingScope, expr: tir.Binary) -> CExpression:
    """Return an index division or remainder; C's division rounds to zero, which equals floor if no
    operand is negative.
    """
    natural = all(bounds(e, scope.ranges)[0] >= 0 for e in (expr.a, expr.b))
    divides = expr.op.endswith("div")
    if natural or expr.op.startswith("trunc"):
        symbol = "/" if divides else "%"
        return CExpression(
            f"{print_index(scope, expr.a, PRODUCT)} {symbol} {print_index(scope, expr.b, UNARY)}", PRODUCT
        )
    helper = scope.helpers.define_helper_and_return_name("index_div" if divides else "index_mod", tir.INDEX)
    return CExpression(f"{helper}({print_index(scope, expr.a)}, {print_index(scope, expr.b)})")


# --- numbers


def _print_scalar_load(scope: PrintingScope, expr: tir.Load) -> CExpression:
    text, dtype = print_element_lvalue(scope, expr.buffer, expr.index, 1), expr.dtype
    if is_sub_byte_integer(dtype):
        return CExpression(f"{scope.helpers.define_helper_and_return_name('wrap', dtype)}({text})")
    return CExpression(f"{text} != 0", EQUALITY) if dtype.is_bool else CExpression(text)


def _print_scalar_cast(scope: PrintingScope, expr: tir.Cast) -> CExpression:
    source, target, use = expr.a.dtype, expr.dtype, scope.helpers.define_helper_and_return_name
    inner = print_value(scope, expr.a, UNARY)
    if target.is_bool:
        zero = scope.dialect.literal(0, computation_dtype(source))
        return CExpression(f"{print_value(scope, expr.a, SHIFT)} != {zero}", EQUALITY)
    if target == "float16" and source == "float64":
        return CExpression(
            f"{scope.record_function_and_return_c_name('odd', source, 1)}({print_value(scope, expr.a)})", exact=True
        )
    if target.is_narrow_float and computation_dtype(source) == "float32":
        return CExpression(inner, UNARY, exact=True)
    if is_sub_byte_integer(target):
        wide = f"{use('to_i64', computation_dtype(source))}({inner})" if source.is_float else f"(int64_t){inner}"
        return CExpression(f"{use('wrap', target)}({wide})")
    if target.is_float or not source.is_float:
        return CExpression(f"({scope.dialect.c_value_type(target)}){inner}", UNARY, target.is_narrow_float)
    exact = {"uint64": "to_u64", "int64": "to_i64", "uint32": "to_i64"}.get(target, "to_i32")
    text = f"{use(exact, computation_dtype(source))}({inner})"
    if target in ("uint64", "int64", "int32"):
        return CExpression(text)
    return CExpression(f"({scope.dialect.types[target]}){text}", UNARY)


def _print_scalar_bitcast(scope: PrintingScope, expr: tir.Bitcast) -> CExpression:
    dtype, source = expr.dtype, expr.a.dtype
    kind, unsigned = "64" if dtype.bits == 64 else "", storage_dtype_of_narrow_float(dtype)
    if source.is_narrow_float:
        inner_dtype, inner = unsigned, print_narrow_float_bits(scope, expr.a)
    elif source.is_float:
        function = scope.helpers.define_helper_and_return_name(f"bits{kind}", unsigned)
        inner_dtype, inner = unsigned, f"{function}({print_value(scope, expr.a)})"
    else:
        inner_dtype, inner = source, print_value(scope, expr.a, UNARY)
    target_dtype = unsigned if dtype.is_float else dtype
    if inner_dtype != target_dtype:
        inner = f"({scope.dialect.types[target_dtype]}){inner}"
    if not dtype.is_float:
        return CExpression(inner, UNARY)
    return CExpression(f"{scope.helpers.define_helper_and_return_name(f'from_bits{kind}', unsigned)}({inner})")


def _wrap_c_text_to_sub_byte_integer(scope: PrintingScope, dtype: DType, text: str) -> str:
    """Return a text wrapped to `dtype` if it has fewer than 8 bits: C computes such integers in a
    byte.
    """
    return (
        f"{scope.helpers.define_helper_and_return_name('wrap', dtype)}({text})" if is_sub_byte_integer(dtype) else text
    )


def _wrap_or_cast_integer_result(scope: PrintingScope, dtype: DType, wrapped_text: str, cast_text: str) -> CExpression:
    """Return an integer operation that was computed in a wider type as a value of `dtype`.

    Integers of fewer than 8 bits wrap `wrapped_text`; other integers are cast from `cast_text`.
    """
    if is_sub_byte_integer(dtype):
        return CExpression(_wrap_c_text_to_sub_byte_integer(scope, dtype, wrapped_text))
    return CExpression(f"({scope.dialect.types[dtype]}){cast_text}", UNARY)


def _print_scalar_unary(scope: PrintingScope, expr: tir.Unary) -> CExpression:
    inner, dtype = print_value(scope, expr.a, UNARY), expr.dtype
    if dtype.is_bool:
        return CExpression(f"!{inner}", UNARY)
    if dtype.is_float:
        return CExpression(f"-{print_value(scope, expr.a, PRIMARY)}", UNARY, dtype.is_narrow_float)
    if expr.op == "not":
        return _wrap_or_cast_integer_result(scope, dtype, f"~{inner}", f"~{inner}")
    return _wrap_or_cast_integer_result(
        scope, dtype, f"-{inner}", f"(0u - ({scope.dialect.wrapping_unsigned_type(dtype)}){inner})"
    )


def _print_scalar_binary(scope: PrintingScope, expr: tir.Binary) -> CExpression:
    op, dtype = expr.op, expr.a.dtype
    if op in tir.COMPARE:
        level, symbol = OPERATOR_PRECEDENCE_AND_SYMBOL[op]
        side = (
            print_index
            if scope.is_index_arithmetic_fitting_32_bits(expr.a) and scope.is_index_arithmetic_fitting_32_bits(expr.b)
            else print_value
        )
        return CExpression(f"{side(scope, expr.a, SHIFT)} {symbol} {side(scope, expr.b, SHIFT)}", level)
    if dtype.is_bool:
        return _print_bool_binary(scope, expr)
    if op in ("min", "max"):
        helper_kind = float_min_max_helper_name(expr) if dtype.is_float else op
        helper = scope.helpers.define_helper_and_return_name(helper_kind, computation_dtype(dtype))
        return CExpression(f"{helper}({_print_operand_list(scope, expr.a, expr.b)})")
    if op in _C_BITWISE_OPERATORS:
        text = f"{print_value(scope, expr.a, UNARY)} {_C_BITWISE_OPERATORS[op]} {print_value(scope, expr.b, UNARY)}"
        return CExpression(f"({scope.dialect.types[dtype]})({text})", UNARY)
    if (
        op in _C_SHIFT_OPERATORS
        and isinstance(expr.b, tir.Const)
        and 0 <= expr.b.value < dtype.bits >= 32
        and not dtype.is_signed
    ):
        return CExpression(f"{print_value(scope, expr.a, SHIFT)} {_C_SHIFT_OPERATORS[op]} {expr.b.value}", SHIFT)
    if op in _ADD_SUB_MUL:
        u = f"({scope.dialect.wrapping_unsigned_type(dtype)})"
        text = (
            f"{u}{print_value(scope, expr.a, UNARY)} "
            f"{OPERATOR_PRECEDENCE_AND_SYMBOL[op][1]} {u}{print_value(scope, expr.b, UNARY)}"
        )
        return _wrap_or_cast_integer_result(scope, dtype, text, f"({text})")
    text = f"{scope.helpers.define_helper_and_return_name(op, dtype)}({_print_operand_list(scope, expr.a, expr.b)})"
    return CExpression(_wrap_c_text_to_sub_byte_integer(scope, dtype, text))


def _print_bool_binary(scope: PrintingScope, expr: tir.Binary) -> CExpression:
    if expr.op == "xor":
        return CExpression(f"{print_value(scope, expr.a, SHIFT)} != {print_value(scope, expr.b, SHIFT)}", EQUALITY)
    level, symbol = OPERATOR_PRECEDENCE_AND_SYMBOL[_LOGICAL_OP_BY_BOOL_OP.get(expr.op, expr.op)]

    def print_bool_operand(operand: tir.Expr) -> str:
        same = isinstance(operand, tir.Binary) and operand.dtype.is_bool and operand.op == expr.op
        # gcc warns of && inside || without parentheses
        return print_value(scope, operand, level if same else EQUALITY)

    return CExpression(f"{print_bool_operand(expr.a)} {symbol} {print_bool_operand(expr.b)}", level)


# --- instructions


def _print_instruction_or_none(scope: PrintingScope, expr: tir.Call) -> CExpression | None:
    """Return a call by the instruction's own template, or of an `aotc.tir.functions` function; None
    if there is neither.
    """
    dtype, lanes, name = expr.args[0].dtype, expr.args[0].lanes, expr.name
    text = INSTRUCTIONS[name].text_for_dialect(scope.dialect.name, lanes, scope.dialect.features)
    if text is not None:
        return _fill_instruction_template(scope, expr, text)
    libraries = lanes == 1 and name in EXACT_FUNCTIONS and name in scope.dialect.functions
    if libraries or elementary_function_definition(name, dtype) is None:
        return None
    args = _print_operand_list(scope, *expr.args)
    function = scope.record_function_and_return_c_name(name, computation_dtype(dtype), expr.lanes, expr.fused)
    return CExpression(f"{function}({args})", exact=dtype.is_narrow_float)


def _print_helper_or_library_call(scope: PrintingScope, expr: tir.Call) -> CExpression:
    """Print a function call of the IR as a C call of a helper function or of a C library function."""
    dtype, name, args = expr.args[0].dtype, expr.name, _print_operand_list(scope, *expr.args)
    if not dtype.is_float:
        if name == "abs" and not dtype.is_signed:
            return _print_expression_before_rounding(scope, expr.args[0])
        return CExpression(
            _wrap_c_text_to_sub_byte_integer(
                scope, dtype, f"{scope.helpers.define_helper_and_return_name(name, dtype)}({args})"
            )
        )
    if name in ("above", "below"):
        return CExpression(f"{scope.helpers.define_helper_and_return_name(name, computation_dtype(dtype))}({args})")
    if name not in scope.dialect.functions:
        raise unavailable_in_dialect_error(scope, name)
    function = scope.dialect.functions[name] + scope.dialect.math_function_suffix(dtype)
    return CExpression(f"{function}({args})", exact=dtype.is_narrow_float)


def statement_instruction_template(scope: PrintingScope, instruction: str, dtype: DType, lanes: int) -> str:
    """Return the call template of an instruction that is a statement: the instruction's own, or a
    call of a helper for elements of `dtype` in rows of `lanes` elements.

    Raise AotcError (code "c-instruction") if the dialect has neither.
    """
    text = INSTRUCTIONS[instruction].text_for_dialect(scope.dialect.name, lanes, scope.dialect.features)
    if text is None and instruction not in HELPER_OF_INSTRUCTION:
        raise unavailable_in_dialect_error(scope, instruction)
    if text is None:
        scope.record_vector_type_and_return_c_name(dtype, lanes)
        helper, call = HELPER_OF_INSTRUCTION[instruction]
        return call.replace("$helper", scope.helpers.define_helper_and_return_name(helper, dtype, lanes))
    if text.function:
        scope.helpers.define_function_used_by_instruction(instruction, text.function)
    return text.call


def unavailable_in_dialect_error(scope: PrintingScope, name: str) -> AotcError:
    return AotcError("c-instruction", f"{name} cannot be printed: it is not available in {scope.dialect.name}")


def _fill_instruction_template(scope: PrintingScope, expr: tir.Call, text: InstructionText) -> CExpression:
    """Return a call by an instruction's own template; add the helper function that the template
    needs.
    """
    for vector in (a for a in (expr, *expr.args) if a.lanes > 1 and scope.dialect.vectors is not None):
        scope.record_vector_type_and_return_c_name(vector.dtype, vector.lanes)
    if text.function:
        scope.helpers.define_function_used_by_instruction(expr.name, text.function)
    call_text = text.call.format(
        *[_Operand(scope, a) for a in expr.args], f=scope.dialect.math_function_suffix(expr.args[0].dtype)
    )
    return CExpression(call_text, text.level, expr.dtype.is_narrow_float)
