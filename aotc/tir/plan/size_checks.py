# SPDX-License-Identifier: Apache-2.0
"""Conditions on the sizes of a run, and the length of state that grows.

SizeCheck(n, "==", m).holds({"n": 3, "m": 3})       # True
GrowingState("past", 1, 512).check                  # 512 >= past + 1
"""

from __future__ import annotations

from collections.abc import Mapping

from aotc.ir import Dim, Span, SymDim, frozen


@frozen
class SizeCheck:
    """Condition on the sizes of a run: `left` is at least `right`, or equal to it.

    relation    "==" or ">="
    span        node of the model that needs it
    """

    left: Dim
    relation: str
    right: Dim
    span: Span | None = None

    def holds(self, symbols: Mapping[str, int]) -> bool:
        """Return True if the condition holds for values of all symbols; False if a formula has no value."""
        try:
            left, right = (d.bind(symbols) if isinstance(d, SymDim) else d for d in (self.left, self.right))
        except ValueError:
            return False
        if isinstance(left, SymDim) or isinstance(right, SymDim):
            return False
        return left == right if self.relation == "==" else left >= right

    def __str__(self) -> str:
        left, right = (d.name if isinstance(d, SymDim) else str(d) for d in (self.left, self.right))
        return f"{left} {self.relation} {right}"


@frozen
class GrowingState:
    """Length of the state tensors that become longer in each run. It begins with 0. They have as many rows,
    which are their elements along the outermost axis.

    size        name of the size of a run that is the length before the run
    added       rows that a run appends
    capacity    largest length; the block of state has room for this number of rows
    """

    size: str
    added: Dim
    capacity: int

    @property
    def check(self) -> SizeCheck:
        """Condition that the state has room for what a run appends."""
        return SizeCheck(self.capacity, ">=", SymDim(self.size) + self.added)


def value_of_dim(dim: Dim, symbols: Mapping[str, int]) -> int:
    """Return the value of a dimension for values of all symbols; ValueError if there is none."""
    value = dim.bind(symbols) if isinstance(dim, SymDim) else dim
    if isinstance(value, SymDim):
        raise ValueError(f"dimension {dim} has no value for {dict(symbols)}")
    return value
