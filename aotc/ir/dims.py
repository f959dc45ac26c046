# SPDX-License-Identifier: Apache-2.0
"""Dimensions: an int, or a named symbol with an optional upper bound.

SymDim("batch", upper=8)               # prints as batch<=8
SymDim()                               # prints as ?
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SymDim:
    """A dimension that is not known at compile time.  Equal names are equal dimensions; "" is anonymous."""

    name: str = ""
    upper: int | None = None

    def __str__(self) -> str:
        name = self.name or "?"
        return name if self.upper is None else f"{name}<={self.upper}"


Dim: TypeAlias = "int | SymDim"
Shape: TypeAlias = "tuple[Dim, ...]"


def indexdiv(a: Dim, b: Dim) -> Dim:
    """The quotient of two dimensions, rounded down; where one is not known, one that is called so."""
    return a // b if isinstance(a, int) and isinstance(b, int) else SymDim(f"{a}//{b}")


def is_static(shape: Iterable[Dim]) -> bool:
    """True if every dimension is known."""
    return all(isinstance(d, int) for d in shape)


def static_shape(shape: Iterable[Dim]) -> tuple[int, ...]:
    """The shape as ints; the caller has made sure that it is static."""
    dims = tuple(shape)
    if not all(isinstance(d, int) for d in dims):
        raise TypeError(f"shape ({', '.join(map(str, dims))}) is not static")
    return tuple(d for d in dims if isinstance(d, int))


def numel(shape: Iterable[Dim]) -> int:
    """The number of elements of a static shape (1 for rank 0)."""
    return math.prod(static_shape(shape))


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are provably equal; two anonymous symbols never are."""
    if isinstance(a, SymDim) and isinstance(b, SymDim):
        return bool(a.name) and a.name == b.name
    return a == b


def fits(shape: Shape, sizes: Sequence[int], known: dict[str, int]) -> bool:
    """Whether a shape can have these sizes; the first use of a named dimension settles its size in `known`."""
    return len(shape) == len(sizes) and all(_fits(dim, size, known) for dim, size in zip(shape, sizes, strict=True))


def _fits(dim: Dim, size: int, known: dict[str, int]) -> bool:
    if isinstance(dim, int):
        return dim == size
    within = dim.upper is None or size <= dim.upper
    return within and (not dim.name or known.setdefault(dim.name, size) == size)
