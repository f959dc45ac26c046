# SPDX-License-Identifier: Apache-2.0
"""Loops over float16 without a vector form: scratch holds what they read, and what they write, as float32.

C compilers turn loops over float32 into vectors, functions and strides included; conversions are loops of their own.
A loop in, statements and scratch out; each operation is rounded as before:

    for i in 0..n: y[i] = max(x[2*i], x[2*i+1])
    ->  for t: s[t] = float32(x[t]);  for i: r[i] = max(s[2*i], s[2*i+1]);  for i: y[i] = float16(r[i])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from aotc.ir.dtype import DType
from aotc.tir import as_expr, operands, private_buffer, substitute, with_operands
from aotc.tir.expr import Binary, Buffer, Call, Cast, Const, Expr, Load, Select, Unary, Var, cast, minimum, walk
from aotc.tir.loops.dependence import loads, straight_line
from aotc.tir.loops.nest import literal
from aotc.tir.simplify import Linear, linear, simplify
from aotc.tir.stmt import Assign, Block, Comment, Declare, For, Stmt, Store, forall

HALF: Final = DType("float16")
SINGLE: Final = DType("float32")
#: Iterations that scratch is made for.
CHUNK: Final = 256
#: Fewer iterations are not worth it.
LEAST: Final = 4
#: Pieces of scratch in a loop.
MOST_SCRATCH: Final = 8
#: The longest step from element to element that is read as a whole.
FARTHEST: Final = 4
_EXACT: Final = frozenset({"min", "max"})


class _Unfit(Exception):
    """The loop stays as it is."""


def in_single(loop: For) -> tuple[Stmt, list[Buffer]] | None:
    """The loop in float32 and its stack buffers; None where float16 is accessed without a pattern."""
    stmts = straight_line(loop)
    if stmts is None or loop.step != 1:
        return None
    try:
        return _Conversion(loop).statements([s for s in stmts if not isinstance(s, Comment)])
    except _Unfit:
        return None


@dataclass(eq=False)
class _Run:
    """Elements form + low to form + high of a buffer, which move on by `step` with each iteration."""

    buffer: Buffer
    form: Linear
    step: int
    low: int
    high: int
    scratch: Buffer | None = None

    def length(self, count: Expr) -> Expr:
        return simplify((count - 1) * self.step + (self.high - self.low + 1), {})


@dataclass(eq=False)
class _Conversion:
    loop: For
    runs: list[_Run] = field(default_factory=list)
    names: dict[Var, Var] = field(default_factory=dict)
    fixed: dict[Load, Var] = field(default_factory=dict)

    def __post_init__(self) -> None:
        extent = len(literal(self.loop)) or CHUNK
        self.size = min(CHUNK, extent)
        if self.size < LEAST:
            raise _Unfit
        whole = 0 < len(literal(self.loop)) <= CHUNK
        self.first, self.count = (self.loop.begin, as_expr(extent)) if whole else (Var("chunk"), Var("count"))
        self.here = Var(self.loop.var.name)

    def statements(self, stmts: list[Stmt]) -> tuple[Stmt, list[Buffer]]:
        """Reading, computing and writing; in chunks where it is much."""
        written = [self._run(s.buffer, s.index) for s in stmts if isinstance(s, Store) and s.buffer.dtype == HALF]
        read = {n: self._run(n.buffer, n.index) for n in _narrow_loads(stmts) if self._moves(n.index)}
        buffers = {run.buffer for run in written}
        if any(run.step != 1 for run in written) or buffers & {n.buffer for n in _narrow_loads(stmts)}:
            raise _Unfit
        self.runs = _merged([*written, *read.values()])
        if len(self.runs) > MOST_SCRATCH:
            raise _Unfit
        for run in self.runs:
            size = (self.size - 1) * run.step + run.high - run.low + 1
            run.scratch = private_buffer(f"{run.buffer.name}_single", SINGLE, size, "stack")
        into = [self._copy(run, back=False) for run in self.runs if run.buffer not in buffers]
        back = [self._copy(run, back=True) for run in self.runs if run.buffer in buffers]
        made = forall(self.here, self.count, Block(self._statement(s) for s in stmts))
        fixed = [Declare(var, cast(load, SINGLE)) for load, var in self.fixed.items()]
        whole: Stmt = Block((*into, *fixed, made, *back))
        scratch = [run.scratch for run in self.runs if run.scratch is not None]
        if not isinstance(self.first, Var) or not isinstance(self.count, Var):
            return whole, scratch
        count = Declare(self.count, minimum(self.loop.end - self.first, CHUNK))
        body = Block((count, whole))
        return forall(self.first, self.loop.end, body, begin=self.loop.begin, step=CHUNK), scratch

    # --- memory

    def _moves(self, index: Expr) -> bool:
        return any(node is self.loop.var for node in walk(index))

    def _run(self, buffer: Buffer, index: Expr) -> _Run:
        form = linear(index, {})
        step = form.coefficient(self.loop.var)
        if step is None or not 0 < step <= FARTHEST or any(isinstance(n, Load) for n in walk(index)):
            raise _Unfit
        return _Run(buffer, Linear(form.terms), step, form.const, form.const)

    def _copy(self, run: _Run, back: bool) -> For:
        """A run to its scratch, or back."""
        assert run.scratch is not None
        t = Var("t")
        place = substitute(Linear(run.form.terms, run.low).expr(), {self.loop.var: self.first}) + t
        move = Store(run.scratch, t, cast(Load(run.buffer, place), SINGLE))
        if back:
            move = Store(run.buffer, place, cast(Load(run.scratch, t), HALF))
        return forall(t, run.length(self.count), move)

    def _place(self, buffer: Buffer, index: Expr) -> tuple[Buffer, Expr]:
        """Where scratch has an element."""
        form = linear(index, {})
        run = next(r for r in self.runs if r.buffer is buffer and r.form.terms == form.terms and r.low <= form.const)
        assert run.scratch is not None
        return run.scratch, self.here * run.step + (form.const - run.low)

    # --- values

    def _statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case Store() if stmt.buffer.dtype == HALF:
                value = self._value(stmt.value)
                if isinstance(value, Cast) and isinstance(value.a, Cast) and value.a.dtype == HALF:
                    value = value.a.a  # it is rounded as it is stored
                scratch, index = self._place(stmt.buffer, stmt.index)
                return Store(scratch, index, cast(value, SINGLE))
            case Store():
                return Store(stmt.buffer, self._at(stmt.index), self._value(stmt.value))
            case Declare():
                value = self._value(stmt.value)
                self.names[stmt.var] = Var(stmt.var.name, value.dtype)
                return Declare(self.names[stmt.var], value)
            case Assign() if stmt.var in self.names:
                return Assign(self.names[stmt.var], self._value(stmt.value))
            case _:
                raise _Unfit

    def _at(self, index: Expr) -> Expr:
        """An index of the loop as one of the loop over the scratch."""
        moved: dict[Var, Expr] = {self.loop.var: self.first + self.here, **self.names}
        return simplify(substitute(index, moved), {})

    def _value(self, expr: Expr) -> Expr:
        """The value, in float32 where it was in float16."""
        match expr:
            case Var() if expr is self.loop.var:
                return self.first + self.here
            case Var():
                if expr.dtype == HALF and expr not in self.names:
                    return cast(expr, SINGLE)
                return self.names.get(expr, expr)
            case Const():
                narrow = expr.dtype == HALF
                return Const(float(np.float64(expr.value).astype(np.float16)), SINGLE) if narrow else expr
            case Load() if expr.dtype == HALF and self._moves(expr.index):
                return Load(*self._place(expr.buffer, expr.index))
            case Load() if expr.dtype == HALF:
                if any(node in self.names for node in walk(expr.index)):
                    raise _Unfit
                return self.fixed.setdefault(expr, Var(expr.buffer.name, SINGLE))
            case Load():
                return Load(expr.buffer, self._at(expr.index))
            case Select() if any(n.dtype == HALF for n in (*walk(expr.a), *walk(expr.b)) if isinstance(n, Load)):
                raise _Unfit  # what is not chosen may be out of range
            case Cast():
                value = self._value(expr.a)
                return _rounded(value) if expr.dtype == HALF else cast(value, expr.dtype)
        value = with_operands(expr, tuple(self._value(o) for o in operands(expr)))
        exact = isinstance(expr, (Select, Unary)) or (isinstance(expr, Binary) and expr.op in _EXACT)
        exact = exact or (isinstance(expr, Call) and expr.name in ("abs", "copysign"))
        return value if exact or expr.dtype != HALF else _rounded(value)


def _rounded(value: Expr) -> Expr:
    return cast(cast(value, HALF), SINGLE)


def _narrow_loads(stmts: list[Stmt]) -> Iterator[Load]:
    return (n for s in stmts for n in loads(s) if n.dtype == HALF)


def _merged(runs: list[_Run]) -> list[_Run]:
    """The runs, those made one that differ in their constants only."""
    found: list[_Run] = []
    for run in runs:
        known = next((r for r in found if r.buffer is run.buffer and r.form.terms == run.form.terms), None)
        if known is None:
            found.append(run)
        elif max(known.high, run.high) - min(known.low, run.low) > CHUNK:
            raise _Unfit
        else:
            known.low, known.high = min(known.low, run.low), max(known.high, run.high)
    return found
