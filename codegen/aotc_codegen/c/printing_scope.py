# SPDX-License-Identifier: Apache-2.0
"""State of printing one kernel (names, value ranges, required helpers), and operator precedence of
printed expressions.

scope = PrintingScope(Helpers(C99), Indices(body), Names())
scope.record_vector_type_and_return_c_name(DType("float32"), 8)  # "aotc_float32x8", whose
definition the file then begins with CExpression("a + b", SUM).parenthesized_if_looser(PRODUCT)  #
"(a + b)"
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from aotc.ir import DType
from aotc.tir import Interval, bounds
from aotc.tir import expr as tir
from aotc.tir.functions.float16_conversion import storage_dtype_of_narrow_float
from aotc_codegen.c.c_dialects import Dialect
from aotc_codegen.c.c_identifiers import UniqueIdentifiers
from aotc_codegen.c.c_types import computation_dtype, function_name_suffix_of_dtype
from aotc_codegen.c.classify_int64_as_index_or_data import IndexVariables
from aotc_codegen.c.helper_functions import HelperFunctions

# C's precedence levels; a higher level binds tighter
PRIMARY: Final = 16
UNARY: Final = 14
PRODUCT: Final = 13
SHIFT: Final = 11
EQUALITY: Final = 9
OR: Final = 4
TERNARY: Final = 3
ANY_PRECEDENCE: Final = 0
OPERATOR_PRECEDENCE_AND_SYMBOL: Final = {
    "mul": (PRODUCT, "*"), "div": (PRODUCT, "/"), "add": (12, "+"), "sub": (12, "-"),
    "lt": (10, "<"), "le": (10, "<="), "gt": (10, ">"), "ge": (10, ">="),
    "eq": (EQUALITY, "=="), "ne": (EQUALITY, "!="), "and": (5, "&&"), "or": (OR, "||"),
}  # fmt: skip


@dataclass(slots=True, eq=False)
class PrintingScope:
    """State of printing one kernel: names and ranges known so far, and the types and functions the
    text requires.

    c_name_of       C names of variables and buffers
    ranges      value ranges of loop variables
    vectors     vector types in use: element type, number of lanes
    masks       bits per lane of the mask registers that hold bool vectors
    bits        for each buffer of bool or narrow floats, its view as unsigned integers
    functions   C names of the `aotc.tir.functions` in use, by function name, dtype, lanes, and use
                of fused multiply-adds
    outlined    returns the call of an outlined function that computes an expression, or None
    """

    helpers: HelperFunctions
    indices: IndexVariables
    names: UniqueIdentifiers
    c_name_of: dict[tir.Var | tir.Buffer, str] = field(default_factory=dict)
    ranges: dict[tir.Var, Interval] = field(default_factory=dict)
    vectors: dict[tuple[DType, int], None] = field(default_factory=dict)
    masks: dict[tir.Var, int] = field(default_factory=dict)
    bits: dict[tir.Buffer, tir.Buffer] = field(default_factory=dict)
    functions: dict[tuple[str, DType, int, bool], str] = field(default_factory=dict)
    outlined: Callable[[tir.Expr], str | None] = lambda _: None

    @property
    def dialect(self) -> Dialect:
        return self.helpers.dialect

    def c_name(self, item: tir.Var | tir.Buffer) -> str:
        """Return the C name of a variable or buffer; create the name at the first call."""
        if item not in self.c_name_of:
            self.c_name_of[item] = self.names.unique_identifier(item.name, "v")
        return self.c_name_of[item]

    def record_vector_type_and_return_c_name(self, dtype: DType, lanes: int) -> str:
        """Return the C name of a vector type, and record that the type must be defined."""
        self.vectors[computation_dtype(dtype), lanes] = None
        return self.dialect.vector_type_name(computation_dtype(dtype), lanes)

    def buffer_viewed_as_unsigned_integers(self, buffer: tir.Buffer) -> tir.Buffer:
        """Return a view of a buffer of bool or narrow floats as unsigned integers, under an equal C
        name.
        """
        view = self.bits.setdefault(buffer, replace(buffer, dtype=storage_dtype_of_narrow_float(buffer.dtype)))
        self.c_name_of[view] = self.c_name(buffer)
        return view

    def record_function_and_return_c_name(
        self, function_name: str, dtype: DType, lanes: int, fused: bool = False
    ) -> str:
        """Return the C name of a function of `aotc.tir.functions` for a dtype and lane count, and
        record its use.
        """
        suffix = function_name_suffix_of_dtype(dtype) + (f"x{lanes}" if lanes > 1 else "")
        name = f"aotc_{'fused_' if fused else ''}{function_name}_{suffix}"
        return self.functions.setdefault((function_name, dtype, lanes, fused), name)

    def is_index_arithmetic_fitting_32_bits(self, expr: tir.Expr) -> bool:
        """Return True if a value is index arithmetic whose range fits 32 bits, and so the index
        type of every machine.
        """
        if not self.indices.is_index_arithmetic(expr):
            return False
        low, high = bounds(expr, self.ranges)
        return not (-math.inf < low < -(1 << 31) or (1 << 31) <= high < math.inf)


class CExpression(NamedTuple):
    """C expression with its precedence level; `exact` marks a narrow float that has not been
    rounded yet.
    """

    text: str
    level: int = PRIMARY
    exact: bool = False

    def parenthesized_if_looser(self, min_precedence: int) -> str:
        """Return the text, in parentheses if it binds less tightly than the precedence level
        `min_precedence`.
        """
        return self.text if self.level >= min_precedence else f"({self.text})"
