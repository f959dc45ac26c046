# SPDX-License-Identifier: Apache-2.0
"""Memory footprint of a program: arena usage per step, and estimates of code and stack sizes.

memory_use_of_steps(program)[3].size  # aligned bytes of the arena in use during step 3
peak_memory_step(program).live     # tensors live in the step with the largest usage, largest first
estimated_code_bytes(program.kernels, target.code_size)
"""

from collections.abc import Iterable

from aotc.ir import frozen
from aotc.tir import (
    CodeSize,
    For,
    Kernel,
    Program,
    Step,
    Storage,
    Store,
    align_up,
    all_exprs_in_stmt,
    lifetimes_of_memory_owners,
    remove_dead_registers,
    walk_stmts,
)
from aotc.tir.stmt import executions_in, register_declared_by


@frozen
class StepMemoryUse:
    """Tensors that are live in the arena during one step, largest first.

    size   their total aligned size in bytes; overlapping bytes count once
    """

    step: int
    live: tuple[Storage, ...]
    size: int


def memory_use_of_steps(program: Program) -> tuple[StepMemoryUse, ...]:
    """Return, for each step of a program, the tensors that are live in the arena."""
    lives, align = lifetimes_of_memory_owners(program), program.plan.align
    uses: list[StepMemoryUse] = []
    for k in range(len(program.steps)):
        live = sorted(
            (s for s, life in lives.items() if life.first_step <= k <= life.last_step), key=lambda s: -s.nbytes
        )
        at = sorted((program.plan.offsets[s], align_up(s.nbytes, align)) for s in live)
        uses.append(StepMemoryUse(k, tuple(live), _bytes_covered_by_sorted_intervals(at)))
    return tuple(uses)


def _bytes_covered_by_sorted_intervals(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the number of bytes covered by sorted intervals (first, size), which may overlap."""
    size = end = 0
    for first, count in intervals:
        size += max(0, first + count - max(first, end))
        end = max(end, first + count)
    return size


def peak_memory_step(program: Program) -> tuple[StepMemoryUse, Step] | None:
    """Return the step of peak arena usage; None for a program without steps."""
    peak_use = max(memory_use_of_steps(program), key=lambda moment: moment.size, default=None)
    return (peak_use, program.steps[peak_use.step]) if peak_use is not None else None


def estimated_code_bytes(kernels: Iterable[Kernel], costs: CodeSize, call_count: int = 0) -> int:
    """Estimate the code size in bytes of kernels and of a schedule of `call_count` calls, from the
    figures of a target.
    """
    size: float = costs.schedule_bytes + costs.call_bytes * call_count if call_count else 0
    for kernel in kernels:
        body = remove_dead_registers(kernel.body)
        stmts = list(walk_stmts(body))
        loops, stores = (sum(isinstance(s, kind) for s in stmts) for kind in (For, Store))
        instructions = sum(s.result is not None for s in executions_in(body))
        nodes = len(set(all_exprs_in_stmt(body))) + instructions
        size += costs.expression_bytes * nodes + costs.loop_bytes * loops
        size += costs.store_bytes * (stores + instructions)
    return int(size)


def estimated_stack_bytes(program: Program, costs: CodeSize, register_bytes: int = 4) -> int:
    """Estimate an upper bound of the stack usage of a run in bytes, from the call tree.

    A run calls kernels one after another, and functions called by kernels use only a few words of
    stack. The kernel with the largest frame (its arrays and spilled registers) therefore decides.
    `register_bytes` is the size of a register in bytes.
    """
    largest = kernel_with_largest_stack_frame(program, costs, register_bytes)
    frame = _stack_frame_bytes(largest, costs, register_bytes) if largest is not None else 0
    return costs.caller_words * register_bytes + frame


def kernel_with_largest_stack_frame(program: Program, costs: CodeSize, register_bytes: int = 4) -> Kernel | None:
    """Return the kernel with the largest stack frame; None for a program without kernels."""
    kernels = program.distinct_kernels
    return max(kernels, key=lambda kernel: _stack_frame_bytes(kernel, costs, register_bytes), default=None)


def _stack_frame_bytes(kernel: Kernel, costs: CodeSize, register_bytes: int) -> int:
    stmts = list(walk_stmts(kernel.body))
    registers = min(costs.spilled_registers, sum(register_declared_by(s) is not None for s in stmts))
    words = costs.frame_words + registers + 2 * sum(isinstance(s, For) for s in stmts) + len(kernel.params)
    return words * register_bytes + sum(align_up(max(1, b.nbytes), register_bytes) for b in kernel.stack)
