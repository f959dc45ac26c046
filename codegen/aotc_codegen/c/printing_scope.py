# SPDX-License-Identifier: Apache-2.0
"""What is known while a kernel is printed, and how texts of expressions fit into one another.

scope = Scope(Helpers(C99), Indices(body), Names())
scope.vector(DType("float32"), 8)      # "aotc_float32x8", whose definition the file then begins with
Piece("a + b", SUM).inside(PRODUCT)    # "(a + b)"
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from aotc.ir import DType
from aotc.tir import Interval, bounds
from aotc.tir import expr as tir
from aotc.tir.functions.float16_conversion import bits_of
from aotc_codegen.c.c_dialects import Dialect
from aotc_codegen.c.c_identifiers import Names
from aotc_codegen.c.c_types import carrier, suffix
from aotc_codegen.c.helper_functions import Helpers
from aotc_codegen.c.index_arithmetic import Indices

# C's levels of precedence, higher binds tighter
PRIMARY: Final = 16
UNARY: Final = 14
PRODUCT: Final = 13
SHIFT: Final = 11
EQUALITY: Final = 9
OR: Final = 4
TERNARY: Final = 3
ANY: Final = 0
LEVELS: Final = {
    "mul": (PRODUCT, "*"), "div": (PRODUCT, "/"), "add": (12, "+"), "sub": (12, "-"),
    "lt": (10, "<"), "le": (10, "<="), "gt": (10, ">"), "ge": (10, ">="),
    "eq": (EQUALITY, "=="), "ne": (EQUALITY, "!="), "and": (5, "&&"), "or": (OR, "||"),
}  # fmt: skip


@dataclass(slots=True, eq=False)
class Scope:
    """What is known while a kernel is printed, and what it needs.

    known      the names of variables and buffers
    ranges     those of the variables of loops
    vectors    the vector types in use: element type, lanes
    masks      the bits of each lane of registers of bool
    functions  the names of the functions in use that are tensor programs: of a dtype, for
               some lanes, with multiply-adds or without
    outlined   the call of a function that computes an expression; None where there is none
    """

    helpers: Helpers
    indices: Indices
    names: Names
    known: dict[tir.Var | tir.Buffer, str] = field(default_factory=dict)
    ranges: dict[tir.Var, Interval] = field(default_factory=dict)
    vectors: dict[tuple[DType, int], None] = field(default_factory=dict)
    masks: dict[tir.Var, int] = field(default_factory=dict)
    bits: dict[tir.Buffer, tir.Buffer] = field(default_factory=dict)
    functions: dict[tuple[str, DType, int, bool], str] = field(default_factory=dict)
    outlined: Callable[[tir.Expr], str | None] = lambda _: None

    @property
    def dialect(self) -> Dialect:
        return self.helpers.dialect

    def name(self, item: tir.Var | tir.Buffer) -> str:
        """The name of a variable or buffer, made on first mention."""
        if item not in self.known:
            self.known[item] = self.names.fresh(item.name, "v")
        return self.known[item]

    def vector(self, dtype: DType, lanes: int) -> str:
        """The name of the type of a vector's values, noted for its definition."""
        self.vectors[carrier(dtype), lanes] = None
        return self.dialect.vector_name(carrier(dtype), lanes)

    def bits_of(self, buffer: tir.Buffer) -> tir.Buffer:
        """A buffer of bool or of narrow floats by its name, as the unsigned integers that it is in memory."""
        made = self.bits.setdefault(buffer, replace(buffer, dtype=bits_of(buffer.dtype)))
        self.known[made] = self.name(buffer)
        return made

    def program(self, what: str, dtype: DType, lanes: int, fused: bool = False) -> str:
        """The name of a tensor program of `aotc.tir.functions`, noted for its definition."""
        name = f"aotc_{'fused_' if fused else ''}{what}_{suffix(dtype)}{f'x{lanes}' if lanes > 1 else ''}"
        return self.functions.setdefault((what, dtype, lanes, fused), name)

    def is_index(self, expr: tir.Expr) -> bool:
        """Whether a value is index arithmetic that fits in the index type on every machine."""
        if not self.indices.pure(expr):
            return False
        low, high = bounds(expr, self.ranges)
        return not (-math.inf < low < -(1 << 31) or (1 << 31) <= high < math.inf)


class Piece(NamedTuple):
    """A text, how tightly it binds, and whether it is a narrow float that is yet to be rounded."""

    text: str
    level: int = PRIMARY
    exact: bool = False

    def inside(self, needed: int) -> str:
        """The text, in parentheses if it binds less tightly than `needed`."""
        return self.text if self.level >= needed else f"({self.text})"
