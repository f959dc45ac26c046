# SPDX-License-Identifier: Apache-2.0
"""Report the loops that were not vectorized although the target has vectors, with the reasons.

Input: a kernel after `with_vectors`. Output: one line of the report per loop nest:

    for i in 0..64: y[i] = asin(x[i])    ->    i: asin of float32

Loops of one iteration, nests of few iterations and the remainder loops of vectorized loops are not
reported.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from aotc.ir import frozen
from aotc.tir import LEAST, For, Kernel, Stmt, Target, made_of_vectors, stmt_children, why_scalar
from aotc.tir.loops.loop_dependence import Ranges, extent_of, is_innermost, range_of

_FEW: Final = 4 * LEAST


@frozen
class ScalarLoop:
    """A loop nest without vectors.

    loop     names of the loop variables, the outermost first: "n, c, i"
    reason   reason for the innermost loop; if that loop is too short, then the reason for the next
             outer loop as well: "fewer elements than a vector has, 3; results of int8 that do not
             lie side by side"
    """

    loop: str
    reason: str


def scalar_loops(kernel: Kernel, target: Target) -> tuple[ScalarLoop, ...]:
    """Return the loop nests of a kernel that have no vectors, without duplicates; none on targets
    without vectors.
    """
    if kernel.source is not None or target.is_scalar:
        return ()
    return tuple(dict.fromkeys(_found(kernel, kernel.body, (), {}, behind=False)))


def _found(kernel: Kernel, stmt: Stmt, nest: Sequence[For], ranges: Ranges, *, behind: bool) -> Iterator[ScalarLoop]:
    """Yield the scalar loops in a statement.

    nest     the loops around the statement, the outermost first
    ranges   the ranges of their variables
    behind   vector code directly precedes the statement: a short loop here is its remainder
    """
    if isinstance(stmt, For):
        ranges, nest = {**ranges, stmt.var: range_of(stmt, ranges)}, (*nest, stmt)
        if is_innermost(stmt):
            left_over = behind and (not extent_of(stmt) or _most(stmt, ranges) < LEAST)
            yield from () if left_over else _judged(kernel, nest, ranges)
            return
        behind = False
    for child in stmt_children(stmt):
        yield from _found(kernel, child, nest, ranges, behind=behind)
        left_over = isinstance(child, For) and 0 < extent_of(child) < LEAST
        behind = behind if left_over else made_of_vectors(child)


def _judged(kernel: Kernel, nest: Sequence[For], ranges: Ranges) -> Iterator[ScalarLoop]:
    """Yield the report on an innermost loop; nothing if a vector form would not matter."""
    scalar = [loop for loop in nest if not made_of_vectors(loop)]
    worth = [loop for loop in reversed(scalar) if loop.kind != "serial" and _most(loop, ranges) > 1]
    if worth and math.prod(_most(loop, ranges) for loop in nest) >= _FEW:
        short = [*takewhile(lambda loop: _most(loop, ranges) < LEAST, worth)]
        tried = worth[: len(short) + 1]
        reasons = dict.fromkeys(why_scalar(loop, kernel, ranges) for loop in tried)
        yield ScalarLoop(", ".join(loop.var.name for loop in scalar), "; ".join(reasons))


def _most(loop: For, ranges: Ranges) -> float:
    """Return the largest possible number of iterations of a loop."""
    low, high = ranges[loop.var]
    return max(high - low + 1, 0) / loop.step
