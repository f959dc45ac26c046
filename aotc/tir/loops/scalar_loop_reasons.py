# SPDX-License-Identifier: Apache-2.0
"""Loops that stay scalar although the target has vectors, and why.

A kernel as `with_vectors` leaves it in, what a report says of it out:

    for i in 0..64: y[i] = asin(x[i])    ->    i: asin of float32

Loops that run once, nests of few iterations, and what vectors right before them leave over are not worth a word.
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
    """A nest of loops without vectors.

    loop     their variables, the outermost first: "n, c, i"
    reason   what the innermost one is scalar because of, then what the next one is where the innermost is too short:
             "fewer elements than a vector has, 3; results of int8 that do not lie side by side"
    """

    loop: str
    reason: str


def scalar_loops(kernel: Kernel, target: Target) -> tuple[ScalarLoop, ...]:
    """The nests of a kernel that have no vectors, equal ones once; none on targets that have no vectors."""
    if kernel.source is not None or target.is_scalar:
        return ()
    return tuple(dict.fromkeys(_found(kernel, kernel.body, (), {}, behind=False)))


def _found(kernel: Kernel, stmt: Stmt, nest: Sequence[For], ranges: Ranges, *, behind: bool) -> Iterator[ScalarLoop]:
    """What is found in a statement inside of loops; `behind` says that vectors stand right before it."""
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
    """What is to say of an innermost loop and those around it."""
    scalar = [loop for loop in nest if not made_of_vectors(loop)]
    worth = [loop for loop in reversed(scalar) if loop.kind != "serial" and _most(loop, ranges) > 1]
    if worth and math.prod(_most(loop, ranges) for loop in nest) >= _FEW:
        short = [*takewhile(lambda loop: _most(loop, ranges) < LEAST, worth)]
        tried = worth[: len(short) + 1]
        reasons = dict.fromkeys(why_scalar(loop, kernel, ranges) for loop in tried)
        yield ScalarLoop(", ".join(loop.var.name for loop in scalar), "; ".join(reasons))


def _most(loop: For, ranges: Ranges) -> float:
    """How often a loop runs at most."""
    low, high = ranges[loop.var]
    return max(high - low + 1, 0) / loop.step
