# SPDX-License-Identifier: Apache-2.0
"""Vector forms of straight-line code: what is done to each of some neighbouring elements, done to all at once.

In: scalar statements that depend on a lane.  Out: statements over vectors, whose results are equal bit by bit; None for
anything but float arithmetic, each operation in its own type.

    y[i + lane] = max(acc + bias[lane], 0)       ->    y[i:16] = max(acc + bias[0:16], 0)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import Broadcast, Const, Expr, Load, Var, walk
from aotc.tir.expr import COMPARE, Binary, Call, Cast, Select, Unary, cast, substitute
from aotc.tir.simplify import linear, simplify
from aotc.tir.stmt import Assign, Block, Declare, Stmt, Store, nodes

_FLOATS: Final = frozenset({"float16", "float32", "float64"})
_WORK: Final = (Binary, Unary, Select, Call)
_ARITHMETIC: Final = frozenset({"add", "sub", "mul", "div", "min", "max"})
#: Narrow floats whose vectors become vectors of float32 in an instruction or a few.
CONVERTED: Final = frozenset({"float16"})
#: Statements of more operations are left alone: they would be long, once for each vector of a tile.
MOST: Final = 32


class _ScalarError(Exception):
    """A statement or a value has no vector form."""


def vectorized(stmt: Stmt, lane: Var, lanes: int, vectors: Mapping[Var, Expr]) -> Stmt | None:
    """`stmt` for all values of `lane` from 0 to `lanes` - 1; None if it has no vector form.

    vectors    what takes the place of scalar registers from outside
    """
    if sum(isinstance(n, _WORK) and n.dtype in _FLOATS for n in nodes(stmt)) > MOST:
        return None
    try:
        return Block(_Vectorizer(lane, lanes, dict(vectors)).statements((stmt,)))
    except _ScalarError:
        return None


@frozen
class _Vectorizer:
    """Vector forms for `lanes` values of `lane`; `vectors` are those of the registers met so far."""

    lane: Var
    lanes: int
    vectors: dict[Var, Expr]

    def statements(self, stmts: Iterable[Stmt]) -> list[Stmt]:
        found: list[Stmt] = []
        for stmt in stmts:
            match stmt:
                case Block():
                    found.extend(self.statements(stmt.stmts))
                case Declare():
                    register = Var(stmt.var.name, self._float(stmt.var.dtype), self.lanes)
                    found.append(Declare(register, self.value(stmt.value)))
                    self.vectors[stmt.var] = register
                case Assign() if isinstance(own := self.vectors.get(stmt.var), Var):
                    found.append(Assign(own, self.value(stmt.value)))
                case Store():
                    step, index = self._place(stmt.index)
                    if step != 1 or stmt.buffer.dtype != stmt.value.dtype:
                        raise _ScalarError
                    found.append(Store(stmt.buffer, index, self.value(stmt.value)))
                case _:
                    raise _ScalarError
        return found

    def value(self, expr: Expr) -> Expr:
        """The values of an expression in all lanes."""
        self._float(expr.dtype)
        match expr:
            case Var():
                return self.vectors[expr] if expr in self.vectors else Broadcast(expr, self.lanes)
            case Const():
                return Const(expr.value, expr.dtype, self.lanes)
            case Load():
                step, index = self._place(expr.index)
                if step == 1:
                    return Load(expr.buffer, index, self.lanes)
                if step == 0:
                    return Broadcast(Load(expr.buffer, index), self.lanes)
            case Binary() if expr.op in _ARITHMETIC:
                return Binary(expr.op, self.value(expr.a), self.value(expr.b))
            case Unary(op="neg"):
                return Unary("neg", self.value(expr.a))
            case Cast() if {expr.dtype, expr.a.dtype} == {"float16", "float32"}:
                return cast(self.value(expr.a), expr.dtype)
            case Select(cond=Binary() as cond) if (
                # a comparison of vectors is a mask for what it chooses
                cond.op in COMPARE and cond.a.dtype == expr.dtype and not _gathers(expr.a, expr.b)
            ):
                test = Binary(cond.op, self.value(cond.a), self.value(cond.b))
                return Select(test, self.value(expr.a), self.value(expr.b))
        raise _ScalarError

    def _place(self, index: Expr) -> tuple[int | None, Expr]:
        """How far an index moves from lane to lane, and where it begins."""
        ranges = {self.lane: (0, self.lanes - 1)}
        index = simplify(index, {})  # a row and a column of one flat position become that position again
        step = linear(index, ranges).coefficient(self.lane)
        return step, simplify(substitute(index, {self.lane: Const(0, self.lane.dtype)}), {})

    @staticmethod
    def _float(dtype: DType) -> DType:
        if dtype not in _FLOATS:
            raise _ScalarError
        return dtype


def _gathers(*exprs: Expr) -> bool:
    """Whether anything is read from a place that data tells: the test may be there to keep it inside."""
    reads = (n for e in exprs for n in walk(e) if isinstance(n, Load))
    return any(isinstance(n, Load) for read in reads for n in walk(read.index))
