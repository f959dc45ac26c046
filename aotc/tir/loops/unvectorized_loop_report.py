# SPDX-License-Identifier: Apache-2.0
"""Report the loops that were not vectorized although the target has vectors, with the reasons.

Input: a kernel after `vectorize_kernel`. Output: one line of the report per loop nest:

    for i in 0..64: y[i] = asin(x[i])    ->    i: asin of float32

Loops of one iteration, nests of few iterations and the remainder loops of vectorized loops are not
reported.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from aotc.ir import frozen
from aotc.tir import (
    MIN_VECTOR_ELEMENTS,
    For,
    Kernel,
    Stmt,
    Target,
    contains_vectors,
    direct_child_stmts,
    why_loop_not_vectorized,
)
from aotc.tir.loops.loop_dependence import Ranges, constant_trip_count, is_innermost, loop_var_interval

_MIN_REPORTED_ITERATIONS: Final = 4 * MIN_VECTOR_ELEMENTS


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
    return tuple(dict.fromkeys(_scalar_loops_in_stmt(kernel, kernel.body, (), {}, follows_vector_code=False)))


def _scalar_loops_in_stmt(
    kernel: Kernel, stmt: Stmt, nest: Sequence[For], ranges: Ranges, *, follows_vector_code: bool
) -> Iterator[ScalarLoop]:
    """Yield the scalar loops in a statement.

    nest                   the loops around the statement, the outermost first
    ranges                 the ranges of their variables
    follows_vector_code    vector code directly precedes the statement: a short loop here is its remainder
    """
    if isinstance(stmt, For):
        ranges, nest = {**ranges, stmt.var: loop_var_interval(stmt, ranges)}, (*nest, stmt)
        if is_innermost(stmt):
            left_over = follows_vector_code and (
                not constant_trip_count(stmt) or _max_trip_count(stmt, ranges) < MIN_VECTOR_ELEMENTS
            )
            yield from () if left_over else _report_innermost_loop_if_worthwhile(kernel, nest, ranges)
            return
        follows_vector_code = False
    for child in direct_child_stmts(stmt):
        yield from _scalar_loops_in_stmt(kernel, child, nest, ranges, follows_vector_code=follows_vector_code)
        left_over = isinstance(child, For) and 0 < (constant_trip_count(child) or 0) < MIN_VECTOR_ELEMENTS
        follows_vector_code = follows_vector_code if left_over else contains_vectors(child)


def _report_innermost_loop_if_worthwhile(kernel: Kernel, nest: Sequence[For], ranges: Ranges) -> Iterator[ScalarLoop]:
    """Yield the report on an innermost loop; nothing if a vector form would not matter."""
    scalar = [loop for loop in nest if not contains_vectors(loop)]
    worth = [loop for loop in reversed(scalar) if loop.kind != "serial" and _max_trip_count(loop, ranges) > 1]
    if worth and math.prod(_max_trip_count(loop, ranges) for loop in nest) >= _MIN_REPORTED_ITERATIONS:
        short = [*takewhile(lambda loop: _max_trip_count(loop, ranges) < MIN_VECTOR_ELEMENTS, worth)]
        tried = worth[: len(short) + 1]
        reasons = dict.fromkeys(why_loop_not_vectorized(loop, kernel, ranges) for loop in tried)
        yield ScalarLoop(", ".join(loop.var.name for loop in scalar), "; ".join(reasons))


def _max_trip_count(loop: For, ranges: Ranges) -> float:
    """Return the largest possible number of iterations of a loop."""
    low, high = ranges[loop.var]
    return max(high - low + 1, 0) / loop.step
