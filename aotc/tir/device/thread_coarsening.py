# SPDX-License-Identifier: Apache-2.0
"""Thread coarsening: let one thread execute several neighboring iterations, with memory accesses of
up to 16 bytes.

Input: a loop with its body. Output: a loop of fewer iterations:

    for i in 0..4096: y[i] = max(x[i] + b[i // 64], 0)
    ->  for four in 0..1024:
          piece[0:4] = x[4 * four : 4]
          for k in 0..4: made[k] = max(piece[k] + b[four // 16], 0)
          y[4 * four : 4] = made[0:4]

Computations stay scalar; registers that differ between the iterations become small arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from aotc.ir import DType
from aotc.tir import Access, all_of, mentioned, operands, plain, refreshed, substitute, substituted, with_operands
from aotc.tir.device.kernel_fission import Nest
from aotc.tir.device.shared_memory_transpose import replaced
from aotc.tir.expr import INDEX, Buffer, Const, Expr, Load, Select, Var, loads_in, unary
from aotc.tir.loops.loop_dependence import Ranges, assigned, extent_of, inside, loads, nested
from aotc.tir.loops.vector_access import MOST, is_vector_access
from aotc.tir.simplify import Linear, bounds, half_space, linear, simplify
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, Store, kept, map_exprs, rebuilt, stmts_of, walk_stmts

_FIRST: Final[Expr] = Const(0, INDEX)
#: Bytes of a memory transaction: accesses farther apart are separate transactions in any case.
_SECTOR: Final = 32
#: Largest number of iterations of a loop over a window that is unrolled.
_SHORT: Final = 7


@dataclass(slots=True)
class Coarsening:
    """A loop each of whose iterations executes `lanes` neighboring iterations of the original loop.

    loop       the loop over groups of iterations
    lanes      iterations per group
    ranges     ranges of variables
    changing   registers that are assigned to after their declaration
    lane       variable of the iteration within a group
    values     for original registers, their values as index expressions or array elements
    stack      the arrays
    moved      number of accesses of several elements
    single     number of accesses of one element although its neighbors are accessed as well
    """

    loop: For
    lanes: int
    ranges: Ranges
    changing: frozenset[Var]
    lane: Var = field(default_factory=lambda: Var("lane"))
    values: dict[Var, Expr] = field(default_factory=dict)
    stack: list[Buffer] = field(default_factory=list)
    moved: int = 0
    single: int = 0

    @staticmethod
    def of(loops: Sequence[For], body: Block, lanes: int) -> Nest | None:
        """Return a nest with its last loop coarsened; None if no access would become wider.

        One more thread executes the iterations that remain after the last full group, one by one.
        """
        loop = loops[-1]
        whole, left = divmod(extent_of(loop), lanes)
        if lanes < 2 or not whole or loop.begin != _FIRST or loop.step != 1:
            return None
        several = replace(loop, var=Var(loop.var.name), end=Const(whole, INDEX))
        made = Coarsening(several, lanes, inside([*loops[:-1], several], {}), assigned(body))
        made.ranges[made.lane] = (0, lanes - 1)
        made.values[loop.var] = several.var * lanes + made.lane
        block = Block(made.together(body))
        if not made.moved or made.single:
            return None
        if left:
            lane = Var("lane")
            one = substituted(refreshed(body), {loop.var: several.var * lanes + lane})
            block = Block([If(several.var < whole, block, For(lane, left, one))])
            several = replace(several, end=Const(whole + 1, INDEX))
        return Nest((*loops[:-1], several), block, (*made.stack,))

    # statements

    def together(self, stmt: Stmt) -> list[Stmt]:
        """Return a statement executed for all lanes: the neighboring iterations that one coarsened
        thread executes.
        """
        match stmt:
            case Block():
                return [made for s in stmt.stmts for made in self.together(s)]
            case Declare():
                return self.declared(stmt)
            case Store():
                return self.stored(stmt)
            case For() if (windowed := self.windowed(stmt)) is not None:
                return windowed
            case For():
                begin, end = self.value(stmt.begin), self.value(stmt.end)
                if not self.varies(begin) and not self.varies(end):
                    loop = replace(stmt, begin=begin, end=end, kind="serial")
                    self.ranges = inside([loop], self.ranges)
                    return [replace(loop, body=Block(self.together(stmt.body)))]
            case If(orelse=None) if not self.varies(cond := self.value(stmt.cond)):
                return [If(cond, Block(self.together(stmt.then)))]
        return self.each(self.one(stmt))

    def declared(self, stmt: Declare) -> list[Stmt]:
        """Return a register declaration for all lanes (merged iterations): nothing for an index, an
        array if the values may differ.
        """
        var, value = stmt.var, self.value(stmt.value)
        if var not in self.changing and self.is_index(stmt.value):
            self.values[var] = value
            return []
        if var not in self.changing and not self.varies(value):
            return [replace(stmt, value=value)]
        array = self.array(var.name, var.dtype)
        made = self.each(Store(array, self.lane, value))
        self.values[var] = Load(array, self.lane)
        return made

    def stored(self, stmt: Store) -> list[Stmt]:
        """Return a store for all lanes (merged iterations), as one wide store if the elements are
        contiguous.
        """
        index, value = self.value(stmt.index), self.value(stmt.value)
        first = self.neighbors(stmt.buffer, index)
        if first is None:
            return self.each(Store(stmt.buffer, index, value))
        if isinstance(value, Load) and (source := self.neighbors(value.buffer, value.index)) is not None:
            return self.moves(stmt.buffer, first, value.buffer, source)
        array = self.array("made", stmt.buffer.dtype)
        return [*self.each(Store(array, self.lane, value)), *self.moves(stmt.buffer, first, array, _FIRST)]

    def windowed(self, loop: For) -> list[Stmt] | None:
        """Return a short sliding-window loop unrolled for all lanes, so that each input element is
        loaded once.

        Return None if the loop is not a sliding window over contiguous elements. Example, with four
        lanes:

        for k in max(1 - i, 0)..3: acc = acc + x[i + k - 1] * w[k]
        ->  if four > 0: window[0] = x[4 * four - 1]
            window[1:5] = x[4 * four : 4]; window[5] = x[4 * four + 4]
            if four > 0: acc[0] = acc[0] + window[0] * w[0]
            acc[1] = acc[1] + window[1] * w[0] ... acc[3] = acc[3] + window[5] * w[2]
        """
        begin, end, k = self.value(loop.begin), self.value(loop.end), loop.var
        low, high = bounds(begin, self.ranges)[0], bounds(end, self.ranges)[1]
        stmts = stmts_of(loop.body)
        if low or not 1 < high <= _SHORT or loop.step > 1 or not all(isinstance(s, Assign) for s in stmts):
            return None
        self.ranges = {**self.ranges, k: (0, high - 1)}
        body = [self.one(s) for s in stmts]
        tests = [k >= e for e in nested("max", begin)] + [k < e for e in nested("min", end)]
        tests = [test for test in tests if not isinstance(simplify(test, self.ranges), Const)]
        forms = {load: linear(load.index, self.ranges) for s in body for load in loads(s)}
        along = {load: form for load, form in forms.items() if form.coefficient(self.lane)}
        found = {load: form for load, form in along.items() if form.coefficient(k) == 1}
        step = next((int(form.coefficient(self.lane) or 0) for form in found.values()), 0)
        halves = [half for test in tests if (half := half_space(test, self.ranges)) is not None]
        sums = (*found.values(), *halves)
        follow = all(f.coefficient(self.lane) == step * (f.coefficient(k) or 0) for f in sums)
        if step < 1 or len(halves) < len(tests) or not follow:
            return None
        made: list[Stmt] = []
        windows: dict[Load, Expr] = {}
        for load in found:
            window = Buffer("window", load.dtype, (self.lanes - 1) * step + int(high), "stack", MOST)
            self.stack.append(window)
            made += self.filled(window, load, tests, k)
            windows[load] = Load(window, self.lane * step + k)
        steady = [load for load in forms if self.is_steady(load)]
        for n, lane in product(range(int(high)), range(self.lanes)):
            names: dict[Var, Expr] = {k: Const(n, INDEX), self.lane: Const(lane, INDEX)}
            if lane == 0:
                taken = {load: kept(load.buffer.name, substitute(load, names), made) for load in steady}
            once = [_with(s, {**windows, **taken}, names) for s in body]
            made += self.guarded([self.at(test, k, n + lane * step) for test in tests], once)
        return made

    def is_steady(self, load: Load) -> bool:
        """Return True if all lanes (merged iterations) load one common element, which is always
        within its buffer.
        """
        first, last = bounds(load.index, self.ranges)
        return not self.varies(load) and first >= 0 and last < load.buffer.size

    def filled(self, window: Buffer, load: Load, tests: Sequence[Expr], k: Var) -> list[Stmt]:
        """Return statements that load a sliding window into an array, with wide loads where
        elements are known to be in bounds.
        """
        size, made, at = self.piece(load.dtype), list[Stmt](), 0
        while at < window.size:
            found = [self.at(test, k, n) for n in range(at, min(at + size, window.size)) for test in tests]
            first = self.at(load.index, k, at)
            whole = is_vector_access(load.buffer, linear(first, self.ranges), size) and at + size <= window.size
            if whole and size > 1 and all(isinstance(test, Const) and test.value for test in found):
                array = self.array("piece", load.dtype)
                made += self.moves(array, _FIRST, load.buffer, first)
                made += [Store(window, Const(at + n, INDEX), Load(array, Const(n, INDEX))) for n in range(size)]
                at += size
                continue
            one = Store(window, Const(at, INDEX), Load(load.buffer, first))
            made += self.guarded(found[: len(tests)], [one])
            at += 1
        return made

    def guarded(self, tests: Sequence[Expr], stmts: Sequence[Stmt]) -> Sequence[Stmt]:
        """Return statements under conditions; unconditional, or nothing, if the conditions are
        known to be true or false.
        """
        known = simplify(all_of(*tests), self.ranges)
        if isinstance(known, Const):
            return stmts if known.value else ()
        return [If(known, Block(stmts))]

    def at(self, expr: Expr, k: Var, number: int) -> Expr:
        """Return an expression for element `number` of a sliding window: `k` is that number, and
        the lane is 0.
        """
        return simplify(substitute(expr, {k: Const(number, INDEX), self.lane: _FIRST}), self.ranges)

    def one(self, stmt: Stmt) -> Stmt:
        """Return a statement for one lane (one of the merged iterations), with its registers
        replaced by array elements.
        """
        array = self.values.get(stmt.var) if isinstance(stmt, Assign) else None
        if isinstance(stmt, Assign) and isinstance(array, Load):
            return Store(array.buffer, self.lane, self.value(stmt.value))
        return rebuilt(stmt, self.one, self.value)

    def each(self, stmt: Stmt) -> list[Stmt]:
        """Return a loop over the lanes around a statement, preceded by wide loads of the elements
        that it reads.
        """
        before: list[Stmt] = []
        if not isinstance(stmt, Store):
            found = (load for s in walk_stmts(stmt) for load in loads(s) if load.buffer not in self.stack)
            self.single += sum(linear(load.index, self.ranges).coefficient(self.lane) == 1 for load in found)
        else:
            stmt = Store(stmt.buffer, stmt.index, self.fetched(stmt.value, (), {}, before))
        return [*before, For(self.lane, self.lanes, stmt)]

    def moves(self, to: Buffer, first: Expr, source: Buffer, begin: Expr) -> list[Stmt]:
        """Return statements that copy one element per merged iteration from `source` to `to`, in
        wide memory accesses.
        """
        size = self.piece(to.dtype)
        return [Store(to, first + k, Load(source, begin + k, size)) for k in range(0, self.lanes, size)]

    # expressions

    def value(self, expr: Expr) -> Expr:
        """Return an expression for one of the merged iterations, with indices simplified to linear
        forms where possible.
        """
        return self.placed(substitute(expr, self.values))

    def placed(self, expr: Expr) -> Expr:
        """Return an expression with the indices in it simplified to linear forms."""
        if expr.dtype == INDEX and expr.lanes == 1 and self.varies(expr) and not any(loads_in(expr)):
            return plain(Access(linear(expr, self.ranges), 1, self.ranges, {})).form.expr()
        return with_operands(expr, tuple(map(self.placed, operands(expr))))

    def fetched(self, expr: Expr, guards: Sequence[Expr], found: dict[Expr, Expr], before: list[Stmt]) -> Expr:
        """Return an expression with loads of contiguous elements replaced by loads from arrays;
        wide loads are added to `before`.

        Loads under a condition (`guards`) stay under that condition.
        """
        if isinstance(expr, Select) and self.varies(expr.cond):
            return replace(expr, cond=self.fetched(expr.cond, guards, found, before))
        if isinstance(expr, Select):
            sides = ((expr.a, expr.cond), (expr.b, unary("not", expr.cond)))
            return Select(expr.cond, *(self.fetched(e, (*guards, cond), {}, before) for e, cond in sides))
        if isinstance(expr, Load) and expr not in found:
            first = self.neighbors(expr.buffer, expr.index)
            if first is not None:
                array = self.array("piece", expr.dtype)
                moved = self.moves(array, _FIRST, expr.buffer, first)
                before += [If(all_of(*guards), Block(moved))] if guards else moved
                found[expr] = Load(array, self.lane)
        inner = (self.fetched(e, guards, found, before) for e in operands(expr))
        return found.get(expr) or with_operands(expr, tuple(inner))

    def neighbors(self, buffer: Buffer, index: Expr) -> Expr | None:
        """Return the index of the first lane's element if the lanes access contiguous, aligned
        elements; else None.

        Counts the access in `moved` or `single`.
        """
        form = linear(index, self.ranges)
        step = form.coefficient(self.lane)
        if buffer in self.stack or not step:
            return None
        if step != 1:
            self.single += abs(step) * buffer.dtype.itemsize < _SECTOR
            return None
        form = form.plus(Linear({self.lane: 1}), -1)
        if not is_vector_access(buffer, form, self.piece(buffer.dtype)):
            self.single += 1
            return None
        self.moved += 1
        return form.expr()

    def varies(self, expr: Expr) -> bool:
        """Return True if an expression may differ between the lanes (iterations executed by one
        coarsened thread).
        """
        return self.lane in mentioned(expr)

    def is_index(self, expr: Expr) -> bool:
        """Return True if an expression is an index that loads nothing from memory."""
        return expr.dtype == INDEX and not any(loads_in(expr))

    def piece(self, dtype: DType) -> int:
        """Return the number of elements that one memory access of up to 16 bytes covers, at most
        one per lane.
        """
        return min(self.lanes, MOST // dtype.itemsize)

    def array(self, name: str, dtype: DType) -> Buffer:
        """Return a new stack array with one element for each lane (iteration executed by one
        coarsened thread).
        """
        self.stack.append(Buffer(name, dtype, self.lanes, "stack", MOST))
        return self.stack[-1]


def _with(stmt: Stmt, found: Mapping[Load, Expr], names: Mapping[Var, Expr]) -> Stmt:
    """Return a statement with the loads in `found` replaced, and then the variables in `names`."""
    return map_exprs(stmt, lambda e: substitute(replaced(e, found), names))


def lanes_of(loop: For, body: Stmt) -> int:
    """Return the number of iterations whose stores fill one wide memory access; 1 if the stores are
    not contiguous.
    """
    stores = (s for s in walk_stmts(body) if isinstance(s, Store))
    sizes = [s.buffer.dtype.itemsize for s in stores if linear(s.index, {}).coefficient(loop.var) == 1]
    return MOST // max(sizes) if sizes else 1
