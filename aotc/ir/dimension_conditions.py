# SPDX-License-Identifier: Apache-2.0
"""Conditions on dimensions that type rules assume, where sizes are known at run time only.

with collect_dim_conditions() as conditions:
    infer(...)
conditions                            # [DimCondition(n, "==", m)]: the types hold only for such sizes

A type rule accepts n and m as equal dimensions if they are not known to differ.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from aotc.ir.dimensions import Dim, SymDim, same_dim


@dataclass(frozen=True, slots=True)
class DimCondition:
    """A condition on two dimensions; `relation` is "==" or ">="."""

    left: Dim
    relation: str
    right: Dim

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


_CONDITIONS: Final[ContextVar[list[DimCondition] | None]] = ContextVar("aotc_dim_conditions", default=None)


@contextmanager
def collect_dim_conditions() -> Iterator[list[DimCondition]]:
    """Context manager: yield a list that gets every condition that type rules inside the block assume
    of sizes which are known at run time only.
    """
    conditions: list[DimCondition] = []
    token = _CONDITIONS.set(conditions)
    try:
        yield conditions
    finally:
        _CONDITIONS.reset(token)


def _record_condition(condition: DimCondition) -> None:
    conditions = _CONDITIONS.get()
    if conditions is not None and condition not in conditions:
        conditions.append(condition)


def assume_equal_dims(a: Dim, b: Dim) -> None:
    """Record that a type rule assumes two dimensions to be equal, unless they are known to be."""
    if not same_dim(a, b):
        _record_condition(DimCondition(a, "==", b))


def assume_at_least(dim: Dim, least: int) -> None:
    """Record that a type rule assumes a dimension to be at least a number, unless it is known to be."""
    if isinstance(dim, SymDim) and dim.lower < least:
        _record_condition(DimCondition(dim, ">=", least))


def may_be_equal_dims(a: Dim, b: Dim) -> bool:
    """Return False if two dimensions are static and differ; else True, and record that they are assumed
    to be equal.
    """
    if not (isinstance(a, SymDim) or isinstance(b, SymDim)):
        return a == b
    assume_equal_dims(a, b)
    return True
