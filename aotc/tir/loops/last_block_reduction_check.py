# SPDX-License-Identifier: Apache-2.0
"""Verifier rule for last-block reductions: thread blocks count themselves with an atomic counter,
and the last block of each group does the final work.

for b in 0..12 block { for t in 0..64 thread {
    let g: int64 = b // 4
    part[64 * b + t] = x[64 * b + t]
    let last: bool = arrive(count[g], 4:int32)
    if last { y[64 * g + t] = part[256 * g + t] + part[256 * g + t + 64] + ... }
} }

The kernel is right if two loops over blocks without atomic counters are right: first, all blocks
without the final work; second, groups of four blocks one after the other, each followed by its
final work:

for b in 0..12 block { ... part[64 * b + t] = x[64 * b + t] } for g in 0..3 block { ... for r in
0..4 { part[64 * (4 * g + r) + t] = ... } y[64 * g + t] = part[256 * g + t] + ... }

Which block is the last one depends on timing, so the final work may depend on the number of the
group only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.ir import frozen
from aotc.tir import (
    INDEX,
    Binary,
    Const,
    Expr,
    Load,
    Var,
    assigned_registers,
    linear_form,
    maximum,
    substitute,
    substitute_in_stmt,
)
from aotc.tir.stmt import (
    Block,
    Declare,
    Execute,
    For,
    If,
    Stmt,
    all_exprs_in_stmt,
    block_stmts_or_self,
    declared_registers,
    increments_block_counter,
    modified_vars_and_buffers,
    walk_stmts,
)


def split_at_last_block_counters(loop: For) -> list[For] | None:
    """Return loops over blocks without atomic counters whose correctness implies that of `loop`, a
    loop over blocks with counters.

    The first loop has no final work; each following loop runs over the groups of one counter (see
    the module). A loop without counters is returned alone.

    Return None if the counters are used in a form other than that of the module's example,
    optionally within one branch of `if b < 8 { ... } else { ... }`.
    """
    new_loops: list[For] = []
    while any(map(increments_block_counter, walk_stmts(loop.body))):
        match block_stmts_or_self(loop.body), loop.end:
            case (For(kind="thread") as threads,), Const(value=blocks):
                group = Var("group")
                split = _NumberedBlocks(loop.var, int(blocks), threads.var).split_gpu_block_body_at_atomic_counter(
                    threads.body, group
                )
            case _:
                split = None
        if split is None:
            return None
        new_loops.append(_rebuild_gpu_launch_with_body(loop, threads, split.before))
        loop = _rebuild_gpu_launch_with_body(For(group, split.groups, loop.body, kind="block"), threads, split.body)
    return [*new_loops, loop]


def _rebuild_gpu_launch_with_body(blocks: For, threads: For, body: Stmt) -> For:
    """Return a loop over GPU blocks around a loop over threads, with the variables and extents of
    given loops and another body.
    """
    inner = For(threads.var, threads.end, body, kind="thread")
    return For(blocks.var, blocks.end, inner, kind="block")


@frozen
class _CounterSplit:
    """Kernel body split at an atomic counter.

    before   the statements of a block before it increments the counter
    groups   the number of groups of blocks, each with a counter
    body     the statements of a group: those of all its blocks in a serial loop, then the final
             work
    """

    before: Stmt
    groups: int
    body: Stmt


@dataclass(slots=True)
class _NumberedBlocks:
    """The GPU blocks of a loop, numbered from 0 to `count` - 1 by the variable `block`; `thread` is
    the index of a thread.
    """

    block: Var
    count: int
    thread: Var

    def split_gpu_block_body_at_atomic_counter(self, stmt: Stmt, block_group_number: Var) -> _CounterSplit | None:
        """Split the body of GPU blocks at its atomic counter: work before it, number of groups,
        work of a whole group.

        `block_group_number` is the number of a group in the result. A body without a counter has
        groups of one block. Return None if the body has another form.
        """
        match block_stmts_or_self(stmt):
            case (If(cond=Binary(op="lt", a=Var() as var, b=Const(value=n)), orelse=Block() as rest) as branch,):
                return (
                    self.split_branches_at_atomic_counters(branch, rest, int(n), block_group_number)
                    if var is self.block
                    else None
                )
            case (*before, Execute() as arrives, If(cond=Var() as cond, orelse=None) as last) if (
                increments_block_counter(arrives)
            ):
                return (
                    self.split_at_atomic_counter_increment(before, arrives, last.then, block_group_number)
                    if cond is arrives.result
                    else None
                )
        if any(map(increments_block_counter, walk_stmts(stmt))):
            return None
        return _CounterSplit(stmt, self.count, substitute_in_stmt(stmt, {self.block: block_group_number}))

    def split_branches_at_atomic_counters(
        self, branch: If, else_body: Block, first_else_block: int, block_group_number: Var
    ) -> _CounterSplit | None:
        """Split both branches of `if block < first_else_block {...} else {...}`, in which different
        blocks do different work.

        The groups of the second branch are numbered after the groups of the first. Return None if a
        branch has another form.
        """
        match else_body.stmts:
            case (Declare(var=local_block, value=Binary(op="max", a=number, b=Const(value=0))) as declare, *else_stmts):
                form = linear_form(number, {}).add_multiple(linear_form(self.block, {}), -1)
            case _:
                return None
        if form.terms or form.const != -first_else_block:
            return None
        other = Var(local_block.name)
        a = _NumberedBlocks(self.block, first_else_block, self.thread).split_gpu_block_body_at_atomic_counter(
            branch.then, block_group_number
        )
        b = _NumberedBlocks(
            local_block, self.count - first_else_block, self.thread
        ).split_gpu_block_body_at_atomic_counter(Block(else_stmts), other)
        if a is None or b is None:
            return None
        before = If(branch.cond, a.before, Block((declare, b.before)))
        numbered = Declare(other, maximum(block_group_number - a.groups, 0))
        body = If(block_group_number < a.groups, a.body, Block((numbered, b.body)))
        return _CounterSplit(before, a.groups + b.groups, body)

    def split_at_atomic_counter_increment(
        self, before: Sequence[Stmt], increment: Execute, final_work: Stmt, block_group_number: Var
    ) -> _CounterSplit | None:
        """Split a body in which each group of `size` consecutive blocks has a counter, at the
        increment `increment` of that counter.

        Index registers that are the number of the group or the number within the group become
        expressions of the new loops. Return None if the group size does not divide the number of
        blocks, or the final work `final_work` uses registers that are not equal for all blocks of a
        group.
        """
        match increment.operands:
            case (Load(index=index), Const(value=size)) if size > 0 and self.count % size == 0:
                size = int(size)
            case _:
                return None
        changing = assigned_registers(Block(before))
        known: dict[Var, Expr] = {}
        turn, replacements = Var("turn"), dict[Var, Expr]()
        new_before: list[Stmt] = []
        for stmt in before:
            if isinstance(stmt, Declare) and stmt.var.dtype == INDEX and stmt.var not in changing:
                value = known[stmt.var] = substitute(stmt.value, known)
                divmod_op = self.operator_of_gpu_block_number_divmod(value, size)
                if divmod_op is not None or isinstance(value, Const):
                    replacements[stmt.var] = {"floordiv": block_group_number, "floormod": turn}.get(
                        divmod_op or "", value
                    )
                    continue
            new_before.append(stmt)
        index = substitute(index, known)
        whole = self.count == size and isinstance(index, Const)
        if not whole and self.operator_of_gpu_block_number_divmod(index, size) != "floordiv":
            return None
        uniform_vars = {var for var, value in replacements.items() if value is not turn}
        used = {
            n for n in (*all_exprs_in_stmt(final_work), *modified_vars_and_buffers(final_work)) if isinstance(n, Var)
        }
        declared = {s.var for s in walk_stmts(final_work) if isinstance(s, For)} | {*declared_registers(final_work)}
        if not used <= declared | uniform_vars | {self.thread}:
            return None
        first = substitute_in_stmt(Block(new_before), {**replacements, self.block: block_group_number * size + turn})
        body = Block((For(turn, size, first), substitute_in_stmt(final_work, replacements)))
        return _CounterSplit(Block(before), self.count // size, body)

    def operator_of_gpu_block_number_divmod(self, value: Expr, size: int) -> str | None:
        """Return the operator of `block // size` or `block % size` ("floordiv", "floormod"), None
        for any other value.
        """
        match value:
            case Binary(op="floordiv" | "floormod" as op, a=a, b=Const(value=n)) if a is self.block and n == size:
                return op
        return None
