# SPDX-License-Identifier: Apache-2.0
"""The body of a kernel made ready for C compilers, and what they must be told about it.

    body = prepared(kernel)               # no register that nothing reads; loads in front of selections
    has_guarded_access(body)              # whether memory is read or written under a condition

    y[i] = t < 0 ? t * s[i] : t           ->    e = s[i];  y[i] = t < 0 ? t * e : t

gcc vectorises a loop with an access under a condition by accessing under a mask,
and some versions, 12.2 among them, mix up the elements of a load under a mask that
belongs to a group (decision 0012). What can be read in any case is therefore read
before it is selected, which is the faster code, too. Kernels where an access stays
under a condition, because its place may be outside of the buffer, are compiled
without such loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from aotc.tir import Interval, Kernel, Stmt, bounds, drop_dead, linear, map_exprs, stmt_exprs, walk_stmts
from aotc.tir.expr import Binary, Buffer, Expr, Load, Select, Var, operands, walk, with_operands
from aotc.tir.stmt import PART, PARTS, Assign, Block, Declare, For, If, Store, While, rebuilt, stmt_children

#: The iterations of loops that gcc writes out in whole, at most.
UNROLLED: Final = 16


def prepared(kernel: Kernel) -> Stmt:
    """The body without registers that nothing reads, and with loads in front of the selections that use them."""
    # what others write, and local arrays that nothing has written yet, are read only where the program says so
    readable = kernel.inputs if kernel.team else (*kernel.inputs, *kernel.outputs)
    return _Preparation(frozenset(readable)).statement(drop_dead(kernel.body))


def has_guarded_access(body: Stmt) -> bool:
    """Whether a loop reads or writes elements under a condition, one here and one there, as far as they are not read in
    any case.

    What counts are loops that compilers may vectorise: without loops inside, but
    for those that may be written out. Vectors are nothing to vectorise, and
    elements side by side are no group whose order could be mixed up.
    """
    counters = frozenset(s.var for s in walk_stmts(body) if isinstance(s, For)) | {PART, PARTS}
    stack: list[tuple[Stmt, _Around]] = [(body, _Around(counters))]
    while stack:
        stmt, around = stack.pop()
        if any(map(around.scatters, _guarded_places(stmt, around.guarded))):
            return True
        if isinstance(stmt, (For, While)):
            around = around.inside(stmt)
        elif isinstance(stmt, If):
            around = replace(around, guarded=around.looped)
        stack += [(child, around) for child in stmt_children(stmt)]
    return False


def _guarded_places(stmt: Stmt, guarded: bool) -> Iterator[Expr]:
    """The indices of elements that a statement accesses under a condition; `guarded`: it is under one itself."""
    for expr in stmt_exprs(stmt):
        loads = (load for load, _ in _loads(expr)) if guarded else guarded_loads(expr)
        yield from (load.index for load in loads if load.lanes == 1)
    if guarded and isinstance(stmt, Store) and stmt.value.lanes == 1:
        yield stmt.index


@dataclass(frozen=True)
class _Around:
    """The loops and conditions around a statement.

    counters  the variables of all loops; others may depend on them
    loops     the innermost loop that compilers do not write out, and those inside of
              it
    looped    whether they may vectorise it
    guarded   whether there is a condition inside of it
    """

    counters: frozenset[Var]
    loops: tuple[For, ...] = ()
    looped: bool = False
    guarded: bool = False

    def inside(self, loop: For | While) -> _Around:
        """The loops and conditions around the body of a loop."""
        outer = self if _may_unroll(loop) else _Around(self.counters)
        loops = (*outer.loops, loop) if isinstance(loop, For) else ()
        return _Around(self.counters, loops, all(map(_may_unroll, walk_stmts(loop.body))), outer.guarded)

    def scatters(self, index: Expr) -> bool:
        """Whether iterations that follow one another may access elements that do not."""
        if not self.looped:
            return False
        terms = linear(index, {}).terms
        if not self.counters.issuperset(atom for atom in terms if isinstance(atom, Var)):
            return True
        inner = {node for atom in terms if not isinstance(atom, Var) for node in walk(atom)}
        if any(isinstance(node, Load) or (isinstance(node, Var) and node not in self.counters) for node in inner):
            return True
        return any(loop.step * terms.get(loop.var, 0) not in (0, 1) or loop.var in inner for loop in self.loops)


def _may_unroll(stmt: Stmt) -> bool:
    """Whether a statement is no loop, or one that a compiler may write out, so that its body is part of what is around
    it.
    """
    if isinstance(stmt, For):
        return not bounds(stmt.end - stmt.begin, {})[0] > UNROLLED * stmt.step
    return not isinstance(stmt, While)


def guarded_loads(expr: Expr) -> Sequence[Load]:
    """The loads of an expression that are evaluated under a condition only, in order."""
    found = list(_loads(expr))
    always = {load for load, guarded in found if not guarded}
    return [load for load in dict.fromkeys(load for load, guarded in found if guarded) if load not in always]


def _loads(expr: Expr) -> Iterator[tuple[Load, bool]]:
    """The loads of an expression, each with whether it is under a condition."""
    stack = [(expr, False)]
    while stack:
        node, guarded = stack.pop()
        if isinstance(node, Load):
            yield node, guarded
        inner = _guarded_operands(node)
        below = [(o, guarded or k in inner) for k, o in enumerate(operands(node))]
        stack += reversed(below)


def _guarded_operands(expr: Expr) -> Sequence[int]:
    """Which operands C evaluates only if another one says so; selections of vectors evaluate all."""
    match expr:
        case Select() if expr.cond.lanes == 1:
            return (1, 2)
        case Binary(op="and" | "or") if expr.dtype.is_bool and expr.lanes == 1:
            return (1,)
        case _:
            return ()


@dataclass
class _Preparation:
    """Moves loads from the buffers that are `readable`; `ranges` are those of the loops around."""

    readable: frozenset[Buffer]
    ranges: dict[Var, Interval] = field(default_factory=dict)

    def statement(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block):
            return self.block(stmt)
        if isinstance(stmt, Store):
            return self.behind_loads(stmt)
        if isinstance(stmt, For):
            begin = bounds(stmt.begin, self.ranges)[0]
            end = bounds(stmt.end, self.ranges)[1]
            self.ranges[stmt.var] = (begin, end - 1)
        return rebuilt(stmt, self.statement)

    def block(self, block: Block) -> Block:
        """Loads are moved where a store follows: compilers move none behind a condition that a store follows."""
        stores = [k for k, s in enumerate(block.stmts) if isinstance(s, Store)]
        last = stores[-1] if stores else -1
        return Block(
            self.behind_loads(s) if k < last and isinstance(s, (Declare, Assign)) else self.statement(s)
            for k, s in enumerate(block.stmts)
        )

    def behind_loads(self, stmt: Store | Declare | Assign) -> Stmt:
        """A statement behind the loads that its value may do in any case."""
        loads = [load for load in guarded_loads(stmt.value) if self.is_safe(load)]
        if not loads:
            return stmt
        registers = {load: Var(f"{load.buffer.name}_e", load.dtype) for load in loads}
        declared = [Declare(register, load) for load, register in registers.items()]
        return Block([*declared, map_exprs(stmt, lambda expr: _replaced(expr, registers))])

    def is_safe(self, load: Load) -> bool:
        """Whether a load may be done in any case: it is never outside of its buffer."""
        if load.lanes > 1 or load.buffer not in self.readable or any(isinstance(n, Load) for n in walk(load.index)):
            return False
        low, high = bounds(load.index, self.ranges)
        return low >= 0 and high < load.buffer.size


def _replaced(expr: Expr, registers: Mapping[Load, Var]) -> Expr:
    if isinstance(expr, Load) and expr in registers:
        return registers[expr]
    return with_operands(expr, tuple(_replaced(o, registers) for o in operands(expr)))
