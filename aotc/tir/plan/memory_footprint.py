# SPDX-License-Identifier: Apache-2.0
"""Memory footprint of a program: arena usage per step, and estimates of code and stack sizes.

moments(program)[3].size           # aligned bytes of the arena in use during step 3
most_taken(program).live           # tensors live in the step with the largest usage, largest first
code_bytes(program.kernels)        # estimated size of Thumb-2 code
"""

from collections.abc import Iterable
from typing import Final

from aotc.ir import frozen
from aotc.tir import Declare, For, Kernel, Program, Step, Storage, Store, align_up, drop_dead, groups, nodes, walk_stmts

#: Estimated bytes of code for each distinct expression, loop, store and kernel call, and fixed
#: bytes of the schedule: fitted to the kernels of three networks that arm-none-eabi-gcc 12 compiled for a
#: Cortex-M4 with -Os; errors for single kernels are up to 20 %.
_NODE, _LOOP, _STORE, _STEP, _ENTRY = 2.5, 4, 15, 49, 300
#: Bytes of code for passing one integer argument in a call.
NUMBER: Final = 6
#: Largest number of spilled registers of a kernel.
_SPILLED: Final = 64
#: Further words in a kernel's frame, and words in the frames of its callers.
_FRAME, _CALLERS = 24, 40


@frozen
class Moment:
    """Tensors that are live in the arena during one step, largest first.

    size   their total aligned size in bytes; overlapping bytes count once
    """

    step: int
    live: tuple[Storage, ...]
    size: int


def moments(program: Program) -> tuple[Moment, ...]:
    """Return, for each step of a program, the tensors that are live in the arena."""
    lives, align = groups(program), program.plan.align
    found: list[Moment] = []
    for k in range(len(program.steps)):
        live = sorted((s for s, life in lives.items() if life.first <= k <= life.last), key=lambda s: -s.nbytes)
        at = sorted((program.plan.offsets[s], align_up(s.nbytes, align)) for s in live)
        found.append(Moment(k, tuple(live), _covered(at)))
    return tuple(found)


def _covered(pieces: Iterable[tuple[int, int]]) -> int:
    """Return the number of bytes covered by sorted intervals (first, size), which may overlap."""
    size = end = 0
    for first, count in pieces:
        size += max(0, first + count - max(first, end))
        end = max(end, first + count)
    return size


def most_taken(program: Program) -> tuple[Moment, Step] | None:
    """Return the step of peak arena usage; None for a program without steps."""
    found = max(moments(program), key=lambda moment: moment.size, default=None)
    return (found, program.steps[found.step]) if found is not None else None


def code_bytes(kernels: Iterable[Kernel], steps: int = 0) -> int:
    """Estimate the code size in bytes of kernels and of a schedule of `steps` calls, for Thumb-2 and -Os."""
    size: float = _ENTRY + _STEP * steps if steps else 0
    for kernel in kernels:
        body = drop_dead(kernel.body)
        stmts = list(walk_stmts(body))
        loops, stores = (sum(isinstance(s, kind) for s in stmts) for kind in (For, Store))
        size += _NODE * len(set(nodes(body))) + _LOOP * loops + _STORE * stores
    return int(size)


def stack_bytes(program: Program, word: int = 4) -> int:
    """Estimate an upper bound of the stack usage of a run in bytes, from the call tree.

    A run calls kernels one after another, and functions called by kernels use only a few words of
    stack. The kernel with the largest frame (its arrays and spilled registers) therefore decides.
    `word` is the size of a register in bytes.
    """
    largest = largest_frame(program, word)
    return _CALLERS * word + (_frame(largest, word) if largest is not None else 0)


def largest_frame(program: Program, word: int = 4) -> Kernel | None:
    """Return the kernel with the largest stack frame; None for a program without kernels."""
    return max(program.kernels, key=lambda kernel: _frame(kernel, word), default=None)


def _frame(kernel: Kernel, word: int) -> int:
    stmts = list(walk_stmts(kernel.body))
    registers = min(_SPILLED, sum(isinstance(s, Declare) for s in stmts))
    words = _FRAME + registers + 2 * sum(isinstance(s, For) for s in stmts) + len(kernel.params)
    return words * word + sum(align_up(max(1, b.nbytes), word) for b in kernel.stack)
