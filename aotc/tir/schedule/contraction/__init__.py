# SPDX-License-Identifier: Apache-2.0
"""The contraction generator: one te.Contraction in, a register-tiled loop nest out.

Convolutions, matrix products, depthwise convolutions, batched ones: all are found by how the operands' indices
depend on the axes, never by an operator's name.

    nest = build_contraction(dense, x, w, store, get_target("x86-64-v4"))
    nest.stmt                              # for tile: acc0_0 = 0 ...; for k: acc0_0 += w * x ...; store
"""

from __future__ import annotations

from aotc.tir import te
from aotc.tir.expr import Buffer
from aotc.tir.schedule.contraction import naive
from aotc.tir.schedule.contraction.by_lanes import by_lanes
from aotc.tir.schedule.contraction.by_pixels import by_pixels
from aotc.tir.schedule.contraction.candidate import Candidate, Request
from aotc.tir.schedule.contraction.choice import choose
from aotc.tir.schedule.contraction.cost import computed_lanes, pack_block
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.contraction.space import Irregular, analyse
from aotc.tir.target import Target

__all__ = ["ContractionNest", "StoreFn", "build_contraction", "candidates", "pack_block"]


def build_contraction(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> ContractionNest:
    """The nest that computes `c` from the buffers of its operands and hands each element to `store`.

    `store(indices of the output axes, value)` gives the statement that finishes one element; it is called for
    every element exactly once.  The order of a sum depends on shapes, target and chooser only (taps of a border
    come outermost; a small tile keeps partial sums), never on data.  What no tiling fits is computed by the
    plain nest of the definition.
    """
    found = candidates(c, a, b, store, target)
    if not found:
        return naive.build_contraction(c, a, b, store, target)
    return choose(c, a, b, target, found).nest()


def candidates(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> list[Candidate]:
    """Every tiling of `c`, with its estimated cost in cycles; none for an empty or irregular contraction."""
    if any(extent == 0 for _, extent in (*c.axes, *c.reduce_axes)):
        return []
    try:
        request = Request(analyse(c), a, b, store, target, computed_lanes(target, c.dtype, a.dtype, b.dtype))
    except Irregular:
        return []
    return [*by_lanes(request), *by_pixels(request)]
