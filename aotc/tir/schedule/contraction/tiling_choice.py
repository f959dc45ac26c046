# SPDX-License-Identifier: Apache-2.0
"""Choose the tiling of a contraction: the cheapest by the cost model, or the one that a chooser
function names.

A chooser, for example one that reads the autotuner's records, is called for each contraction
scheduled inside `choosing`. It returns the name of a candidate, or None:

    with choosing(lambda site: {"5f3a...": "lanes axis=1 vectors=2"}.get(site.signature)):
        kernel = lower_function(function, "dense", target)
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final, TypeAlias

from aotc.ir import frozen, setting
from aotc.tir import Buffer, Expr, Target, Var, substitute, te
from aotc.tir.schedule.contraction.index_space import finite_weights
from aotc.tir.schedule.contraction.tiling_candidate import Candidate


@frozen(eq=False)
class Site:
    """A contraction with the buffers of its operands, the target, and the candidate tilings."""

    c: te.Contraction
    a: Buffer
    b: Buffer
    target: Target
    found: Sequence[Candidate]

    @property
    def signature(self) -> str:
        """SHA-256 of everything that candidates are made from: shapes, types, indices and target,
        without names.
        """
        c = self.c
        axes = (*c.axes, *c.reduce_axes)
        names: dict[Var, Expr] = {var: Var(f"i{k}") for k, (var, _) in enumerate(axes)}
        parts = (
            [extent for _, extent in axes],
            len(c.axes),
            [(str(t.dtype), t.shape) for t in (c, c.a, c.b)],
            [[substitute(index, names) for index in operand] for operand in (c.a_index, c.b_index)],
            next((k for k, (var, _) in enumerate(axes) if var is c.lane), None),
            c.block,
            *([c.fill] if c.fill else []),
            self.target,
            *([] if finite_weights(c) else ["any weights"]),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()


Chooser: TypeAlias = Callable[[Site], "str | None"]

_CHOOSER: Final[ContextVar[Chooser | None]] = ContextVar("chooser", default=None)


def choosing(chooser: Chooser) -> AbstractContextManager[object]:
    """Return a context in which `chooser` is called for every contraction; None or an unknown name
    selects the cheapest tiling.
    """
    return setting(_CHOOSER, chooser)


def choose(c: te.Contraction, a: Buffer, b: Buffer, target: Target, found: Sequence[Candidate]) -> Candidate:
    """Return one of the tilings `found` (at least one): the chooser's, or else the cheapest."""
    chooser = _CHOOSER.get()
    name = chooser(Site(c, a, b, target, found)) if chooser is not None else None
    named = [candidate for candidate in found if candidate.name == name]
    return named[0] if named else min(found, key=lambda candidate: candidate.cost)
