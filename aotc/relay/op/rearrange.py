# SPDX-License-Identifier: Apache-2.0
"""Axes split into parts, and the parts put together to other axes: a reshape, a transposition, a reshape.

move = Rearrangement.of(["n", "krc", "h", "w"], ["n", "k", "hr", "wc"], {"n": 1, "k": 3, "r": 2, "c": 2, ...})
move.array(x)                      # (1, 12, h, w) as (1, 3, 2 * h, 2 * w), in numpy
move.expr(x)                       # in the graph
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from aotc.ir import frozen
from aotc.relay.expr import Expr
from aotc.relay.op import shape
from aotc.relay.op.opdef import Array


@frozen
class Rearrangement:
    """Data reshaped to `split`, transposed to `order`, reshaped to `whole`."""

    split: tuple[int, ...]
    order: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def of(
        cls, data: Sequence[Sequence[str]], result: Sequence[Sequence[str]], extents: Mapping[str, int]
    ) -> Rearrangement:
        """The parts that each axis of data and result has, outermost first, and their extents."""
        parts = [part for axis in data for part in axis]
        return cls(
            tuple(extents[part] for part in parts),
            tuple(parts.index(part) for axis in result for part in axis),
            tuple(prod(extents[part] for part in axis) for axis in result),
        )

    def array(self, x: Array) -> Any:
        return x.reshape(self.split).transpose(self.order).reshape(self.whole)

    def expr(self, x: Expr) -> Expr:
        parts = shape.reshape(x, self.split, allowzero=0 in self.split)
        return shape.reshape(shape.transpose(parts, self.order), self.whole, allowzero=0 in self.whole)
