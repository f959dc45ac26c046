# SPDX-License-Identifier: Apache-2.0
"""Choose the tiling of a contraction: the cheapest by the cost model, or the one that a chooser
function names.

A chooser, for example one that reads the autotuner's records, is called for each contraction
scheduled inside `use_tiling_chooser`. It returns the name of a candidate, or None:

    with use_tiling_chooser(lambda site: {"5f3a...": "lanes axis=1 vectors=2"}.get(site.signature)):
        kernel = lower_fused_function(function, "dense", target)
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final, TypeAlias

from aotc.ir import frozen, temporarily_set_context_variable
from aotc.tir import Buffer, Expr, Target, Var, substitute, te
from aotc.tir.schedule.contraction.contraction_index_analysis import are_weights_known_finite
from aotc.tir.schedule.contraction.tiling_completion import TilingCandidate

LOG: Final = logging.getLogger("aotc")


@frozen(eq=False)
class TilingSite:
    """A contraction with the buffers of its operands, the target, and the candidate tilings."""

    c: te.Contraction
    a: Buffer
    b: Buffer
    target: Target
    candidates: Sequence[TilingCandidate]

    @property
    def contraction_fingerprint(self) -> str:
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
            *([] if are_weights_known_finite(c) else ["any weights"]),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()


Chooser: TypeAlias = Callable[[TilingSite], "str | None"]

_CURRENT_TILING_CHOOSER: Final[ContextVar[Chooser | None]] = ContextVar("chooser", default=None)


def use_tiling_chooser(chooser: Chooser) -> AbstractContextManager[object]:
    """Return a context in which `chooser` is called for every contraction; None or an unknown name
    selects the cheapest tiling.
    """
    return temporarily_set_context_variable(_CURRENT_TILING_CHOOSER, chooser)


def choose_tiling(
    contraction: te.Contraction, a: Buffer, b: Buffer, target: Target, candidates: Sequence[TilingCandidate]
) -> TilingCandidate:
    """Return one of the tilings `candidates` (at least one): the chooser's, or else the cheapest.

    A name that no candidate has, as in records of an older version, is ignored with a warning.
    """
    chooser = _CURRENT_TILING_CHOOSER.get()
    name = chooser(TilingSite(contraction, a, b, target, candidates)) if chooser is not None else None
    named = [candidate for candidate in candidates if candidate.name == name]
    if name is not None and not named:
        LOG.warning("the tuning record of %s names the unknown tiling %r and is ignored", contraction.name, name)
    return named[0] if named else min(candidates, key=lambda candidate: candidate.cost)
