# SPDX-License-Identifier: Apache-2.0
"""Decide which int64 values of a kernel are index arithmetic, printed as plain C, and which are
data.

Input: the body of a kernel. Output: a predicate on expressions. Index arithmetic (loop variables,
literals, registers computed from them) is bounded by the sizes of buffers, cannot overflow and is
printed as plain C. Other int64 values are data, whose arithmetic wraps.

    indices = IndexVariables(kernel.body)
    indices.is_index_arithmetic(i * 4 + 1)        # True; a Load would make it data
"""

from collections.abc import Iterable

from aotc.tir.expr import INDEX, Binary, Const, Expr, Select, Unary, Var, operands
from aotc.tir.stmt import THREAD_COUNT, THREAD_NUMBER, Assign, Block, Declare, For, Stmt, walk_stmts

_INDEX_OPERATORS = frozenset({"neg", "add", "sub", "mul", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max"})
_EMPTY_BLOCK = Block(())


class IndexVariables:
    """Variables that hold index arithmetic: loop variables, integer parameters, and registers
    assigned only from them.

    `fixed` are the registers that are assigned once.
    """

    def __init__(self, body: Stmt = _EMPTY_BLOCK, numbers: Iterable[Var] = ()) -> None:
        self.loops: set[Var] = {THREAD_NUMBER, THREAD_COUNT, *numbers}
        values: dict[Var, list[Expr]] = {}
        for stmt in walk_stmts(body):
            if isinstance(stmt, For):
                self.loops.add(stmt.var)
            elif isinstance(stmt, (Declare, Assign)) and stmt.var.dtype == INDEX and stmt.var.lanes == 1:
                values.setdefault(stmt.var, []).append(stmt.value)
        self.registers: set[Var] = set(values)
        changed = True
        while changed:
            impure = {var for var in self.registers if not all(map(self.is_index_arithmetic, values[var]))}
            self.registers -= impure
            changed = bool(impure)
        self.fixed: set[Var] = {var for var in self.registers if len(values[var]) == 1}

    def is_index_arithmetic(self, expr: Expr) -> bool:
        """Return True if an expression is index arithmetic (on loop variables and constants), which
        cannot overflow.
        """
        if expr.dtype != INDEX or expr.lanes != 1:
            return False
        match expr:
            case Const():
                return abs(expr.value) < 1 << 31
            case Var():
                return expr in self.loops or expr in self.registers
            case Binary(op="mul") if not (self._contains_no_register(expr.a) or self._contains_no_register(expr.b)):
                # a register times a variable factor may grow in every iteration
                return False
            case Binary(op=op) | Unary(op=op) if op in _INDEX_OPERATORS:
                return all(map(self.is_index_arithmetic, operands(expr)))
            case Select():
                return self.is_index_arithmetic(expr.a) and self.is_index_arithmetic(expr.b)
            case _:
                return False

    def _contains_no_register(self, expr: Expr) -> bool:
        """Return True if an expression that is index arithmetic contains no register."""
        if isinstance(expr, (Binary, Select)):
            return self._contains_no_register(expr.a) and self._contains_no_register(expr.b)
        if isinstance(expr, Unary):
            return self._contains_no_register(expr.a)
        return not (isinstance(expr, Var) and expr in self.registers)
