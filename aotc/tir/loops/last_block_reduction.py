# SPDX-License-Identifier: Apache-2.0
"""Blocks of which the last one to arrive goes on: what has to be proven of them.

for b in 0..12 block { for t in 0..64 thread {
    let g: int64 = b // 4
    part[64 * b + t] = x[64 * b + t]
    let last: bool = arrive(count[g], 4:int32)
    if last { y[64 * g + t] = part[256 * g + t] + part[256 * g + t + 64] + ... }
} }

Blocks have to be independent without what the last ones do, and so have groups of four one after the other, with it:

for b in 0..12 block { ... part[64 * b + t] = x[64 * b + t] }
for g in 0..3 block { ... for r in 0..4 { part[64 * (4 * g + r) + t] = ... } y[64 * g + t] = part[256 * g + t] + ... }

Which block is the last is nobody's choice: what it does may hang on the group alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.ir import frozen
from aotc.tir import INDEX, Binary, Call, Const, Expr, Load, Var, assigned, linear, maximum, substitute, substituted
from aotc.tir.stmt import Block, Declare, For, If, Stmt, arrival, changed, nodes, stmts_of, walk_stmts


def in_groups(loop: For) -> list[For] | None:
    """The loops over blocks that are to be proven in place of one, the first without what last blocks do.

    None where blocks arrive in another form than that above, or in one branch of `if b < 8 { ... } else { ... }`.
    """
    found: list[For] = []
    while any(map(arrival, walk_stmts(loop.body))):
        match stmts_of(loop.body), loop.end:
            case (For(kind="thread") as threads,), Const(value=blocks):
                group = Var("group")
                made = _Blocks(loop.var, int(blocks), threads.var).parted(threads.body, group)
            case _:
                made = None
        if made is None:
            return None
        found.append(_with(loop, threads, made.before))
        loop = _with(For(group, made.groups, loop.body, kind="block"), threads, made.body)
    return [*found, loop]


def _with(blocks: For, threads: For, body: Stmt) -> For:
    inner = For(threads.var, threads.end, body, kind="thread")
    return For(blocks.var, blocks.end, inner, kind="block")


@frozen
class _Parted:
    """What blocks do before they arrive, how many groups of them there are, and what a group does."""

    before: Stmt
    groups: int
    body: Stmt


@dataclass(slots=True)
class _Blocks:
    """So many blocks with the numbers `block`; `thread` is that of a thread."""

    block: Var
    count: int
    thread: Var

    def parted(self, stmt: Stmt, group: Var) -> _Parted | None:
        """What these blocks do, whose groups have the number `group`; None for another form."""
        match stmts_of(stmt):
            case (If(cond=Binary(op="lt", a=Var() as var, b=Const(value=n)), orelse=Block() as rest) as branch,):
                return self.branches(branch, rest, int(n), group) if var is self.block else None
            case (*before, Declare() as arrives, If(cond=Var() as cond, orelse=None) as last):
                if (call := arrival(arrives)) is not None:
                    return self.arrived(before, call, last.then, group) if cond is arrives.var else None
        if any(map(arrival, walk_stmts(stmt))):
            return None
        return _Parted(stmt, self.count, substituted(stmt, {self.block: group}))

    def branches(self, branch: If, rest: Block, first: int, group: Var) -> _Parted | None:
        """The first blocks do one thing, the others another one."""
        match rest.stmts:
            case (Declare(var=own, value=Binary(op="max", a=number, b=Const(value=0))) as declare, *others):
                form = linear(number, {}).plus(linear(self.block, {}), -1)
            case _:
                return None
        if form.terms or form.const != -first:
            return None
        other = Var(own.name)
        a = _Blocks(self.block, first, self.thread).parted(branch.then, group)
        b = _Blocks(own, self.count - first, self.thread).parted(Block(others), other)
        if a is None or b is None:
            return None
        before = If(branch.cond, a.before, Block((declare, b.before)))
        numbered = Declare(other, maximum(group - a.groups, 0))
        body = If(group < a.groups, a.body, Block((numbered, b.body)))
        return _Parted(before, a.groups + b.groups, body)

    def arrived(self, before: Sequence[Stmt], call: Call, last: Stmt, group: Var) -> _Parted | None:
        """Groups of neighbors, the last of which goes on."""
        match call.args:
            case (Load(index=index), Const(value=size)) if size > 0 and self.count % size == 0:
                size = int(size)
            case _:
                return None
        changing = assigned(Block(before))
        known: dict[Var, Expr] = {}
        turn, own = Var("turn"), dict[Var, Expr]()
        kept: list[Stmt] = []
        for stmt in before:
            if isinstance(stmt, Declare) and stmt.var.dtype == INDEX and stmt.var not in changing:
                value = known[stmt.var] = substitute(stmt.value, known)
                found = self.digit(value, size)
                if found is not None or isinstance(value, Const):
                    own[stmt.var] = {"floordiv": group, "floormod": turn}.get(found or "", value)
                    continue
            kept.append(stmt)
        index = substitute(index, known)
        whole = self.count == size and isinstance(index, Const)
        if not whole and self.digit(index, size) != "floordiv":
            return None
        told = {var for var, value in own.items() if value is not turn}
        used = {n for n in (*nodes(last), *changed(last)) if isinstance(n, Var)}
        declared = {s.var for s in walk_stmts(last) if isinstance(s, (Declare, For))}
        if not used <= declared | told | {self.thread}:
            return None
        first = substituted(Block(kept), {**own, self.block: group * size + turn})
        body = Block((For(turn, size, first), substituted(last, own)))
        return _Parted(Block(before), self.count // size, body)

    def digit(self, value: Expr, size: int) -> str | None:
        """Whether a value is the number of a block divided by the size of groups, or what is left then."""
        match value:
            case Binary(op="floordiv" | "floormod" as op, a=a, b=Const(value=n)) if a is self.block and n == size:
                return op
        return None
