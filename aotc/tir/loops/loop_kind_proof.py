# SPDX-License-Identifier: Apache-2.0
"""Prove the kinds that loops state: that iterations are independent, only accumulate, or, as blocks
and threads of a GPU, do not race.

Input: a loop, and the ranges of the variables around it. Output: the reason why its kind is not
proven, or None:

    for i in 0..8 independent: for c in 0..16 independent: y[16 * i + c] = ...    # None
    for i in 0..8 independent: for c in 0..17 independent: y[16 * i + c] = ...    # several iterations touch y
    for i in 0..8 reduction: sum = sum + x[i]                                     # None
    for b in 0..4 block: for t in 0..256 thread: for n in 256 * b + t..9999 step 1024: y[n] = x[n]    # None

The proofs ask the access relation of each buffer that the loop writes (`access_relation`).
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from aotc.tir import is_accumulating_dot_instruction
from aotc.tir.expr import Binary, Buffer, Call, Load, Var
from aotc.tir.loops.access_collection import collect_accesses
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.barrier_phases import BarrierPhases
from aotc.tir.loops.loop_dependence import (
    Ranges,
    assigns_to_outer_registers,
    constant_trip_count,
    is_stored_before_first_load,
    loop_var_interval,
    ranges_inside_loops,
    written_buffers,
)
from aotc.tir.stmt import Assign, For, Stmt, Store, buffer_written_by, count_reads_in_stmt, walk_stmts

#: Binary operations by which a reduction loop may combine values.
ASSOCIATIVE_OPS: Final = frozenset({"add", "mul", "min", "max", "and", "or"})


def why_loop_kind_unproven(
    loop: For, ranges: Ranges, outer_vars: Container[Var], unread_buffers: Container[Buffer] = ()
) -> str | None:
    """Return the reason why the kind of a loop ("independent", "reduction") is not proven; None if
    it is proven.

    ranges            the known ranges of the variables around the loop
    outer_vars        all variables around the loop
    unread_buffers    scratch buffers that no statement reads, which are ignored
    """
    low, high = loop_var_interval(loop, ranges)
    if loop.kind == "serial" or high - low < loop.step:  # at most one iteration
        return None
    reads = count_reads_in_stmt(loop.body) if loop.kind == "reduction" else {}
    assigned = list(assigns_to_outer_registers(loop.body))
    for register in dict.fromkeys(s.var for s in assigned):
        if not _changes_by_accumulation_only(register, [s for s in assigned if s.var is register], reads):
            return f"an iteration reads the value of register {register.name} from another iteration"
    relations = {buffer: AccessRelation() for buffer in written_buffers(loop.body) if buffer not in unread_buffers}
    collect_accesses(loop.body, {**ranges, loop.var: (low, high)}, relations, expands_registers=True, around=loop)
    for buffer, relation in relations.items():
        if relation.is_injective(loop.var, loop.step, outer_vars):
            continue
        if buffer.private and is_stored_before_first_load(buffer, loop.body):
            continue
        stores = [s for s in walk_stmts(loop.body) if buffer_written_by(s) is buffer]
        if not _changes_by_accumulation_only(buffer, stores, reads):
            return f"iterations may access the same elements of {buffer.name}"
    return None


def why_gpu_loop_may_race(
    loop: For, ranges: Ranges, outer_vars: Iterable[Var], private_buffers: Container[Buffer]
) -> str | None:
    """Return the reason why the iterations of a loop over blocks or threads may race; None if they
    are proven not to.

    loop               the loop; barriers in it separate phases, each of which is checked alone
    ranges             the known ranges of the variables around the loop
    outer_vars         all variables around the loop
    private_buffers    memory of which each iteration has its own copy, or that no statement reads
    """
    phases = BarrierPhases.split_loop_at_barriers(loop, ranges_inside_loops([loop], ranges), private_buffers)
    fixed = {*outer_vars, *phases.rounds} - phases.changing
    for phase in phases.phase_stmts if constant_trip_count(loop) != 1 else ():  # a single iteration cannot race
        relations = {buffer: AccessRelation() for buffer in written_buffers(phase) if buffer not in private_buffers}
        collect_accesses(phase, phases.ranges, relations, expands_registers=True)
        for buffer, relation in relations.items():
            if not relation.is_injective(loop.var, loop.step, fixed):
                return f"iterations may access the same elements of {buffer.name}"
    return phases.problem


def _changes_by_accumulation_only(target: Var | Buffer, updates: Sequence[Stmt], reads: Mapping[object, int]) -> bool:
    """Return True if a register or buffer changes by `target = target op value` only, with one
    associative operation.

    target     the register or buffer
    updates    all statements that change it
    reads      the number of times the loop reads each register and buffer: reads other than in the updates
               are not allowed
    """
    ops = {_associative_update_op(stmt) for stmt in updates}
    return len(ops) == 1 and None not in ops and reads.get(target) == len(updates)


def _associative_update_op(stmt: Stmt) -> str | None:
    """Return the associative operation of `target = target op value`; None if the statement does
    not have this form.
    """
    if not isinstance(stmt, (Assign, Store)):
        return None
    place = stmt.var if isinstance(stmt, Assign) else Load(stmt.buffer, stmt.index, stmt.value.lanes)
    match stmt.value:
        case Binary(op=op, a=a, b=b) if op in ASSOCIATIVE_OPS and place in (a, b):
            return op
        case Call(name="fma", args=(_, _, added)) if added == place:
            return "add"
        case Call(name=name, args=(added, *_)) if added == place and is_accumulating_dot_instruction(name):
            return "add"
    return None
