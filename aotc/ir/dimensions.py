# SPDX-License-Identifier: Apache-2.0
"""Tensor dimensions: an int, or a named symbol with an optional upper bound.

SymDim("batch", upper=8)               # prints as batch<=8
SymDim()                               # prints as ?
SymDim("n") * 2 + 1                    # one that is called so: prints as "2*n+1"
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SymDim:
    """A dimension unknown at compile time; equal names mean equal dimensions, and "" means an
    anonymous one.
    """

    name: str = ""
    upper: int | None = None

    def __str__(self) -> str:
        name = self.name or "?"
        return name if self.upper is None else f"{name}<={self.upper}"

    def __add__(self, other: Dim) -> Dim:
        return sum_of_dims((self, other))

    def __sub__(self, other: int) -> Dim:
        return sum_of_dims((self, -other))

    def __mul__(self, other: Dim) -> Dim:
        return product_of_dims((self, other))

    __radd__, __rmul__ = __add__, __mul__


Dim: TypeAlias = "int | SymDim"
Shape: TypeAlias = "tuple[Dim, ...]"


def sum_of_dims(dims: Iterable[Dim]) -> Dim:
    """Return the sum of dimensions, as an int or as a symbol named after its terms.

    Its upper bound is the sum of the bounds, if all symbols have one.
    """
    symbols, known, bounds = _split_symbolic_and_static_dims(dims, sum)
    if not symbols or (len(symbols) == 1 and known == 0):
        return symbols[0] if symbols else known
    upper = None if bounds is None else sum(bounds) + known
    names = [d.name for d in symbols]
    # fold constants: (n+2)-2 is n
    last = re.fullmatch(r"(.+?)([+-]\d+)", names[-1])
    if last:
        names[-1], known = last[1], known + int(last[2])
    return SymDim("+".join(names) + (f"{known:+d}" if known else "") if all(names) else "", upper)


def product_of_dims(dims: Iterable[Dim]) -> Dim:
    """Return the product of dimensions, as an int or as a symbol named after its factors.

    Its upper bound is the product of the bounds, if all symbols have one.
    """
    symbols, known, bounds = _split_symbolic_and_static_dims(dims, math.prod)
    if not symbols or known == 0:
        return known
    if len(symbols) == 1 and known == 1:
        return symbols[0]
    upper = None if bounds is None else math.prod(bounds) * known
    names = [_parenthesize_factor(d.name) for d in symbols]
    first = re.fullmatch(r"(\d+)\*(.+)", names[0])
    if first:
        names[0], known = first[2], known * int(first[1])
    factors = [str(known)] * (known != 1) + names
    return SymDim("*".join(factors) if all(names) else "", upper)


def indexdiv(a: Dim, b: Dim) -> Dim:
    """Return `a // b`; if a dimension is symbolic, a symbol with this expression as its name."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    names = [_parenthesize_factor(d.name) if isinstance(d, SymDim) else str(d) for d in (a, b)]
    upper = None
    if isinstance(a, SymDim) and isinstance(b, int) and a.upper is not None:
        upper = a.upper // b
    return SymDim("//".join(names) if all(names) else "", upper)


def _split_symbolic_and_static_dims(
    dims: Iterable[Dim], combine_ints: Callable[[list[int]], int]
) -> tuple[list[SymDim], int, list[int] | None]:
    """Split dimensions into symbols, the combined ints (`combine_ints`), and the symbols' bounds,
    None unless all are bounded.
    """
    items = list(dims)
    symbols = [d for d in items if isinstance(d, SymDim)]
    bounds = [d.upper for d in symbols if d.upper is not None]
    known = combine_ints([index(d) for d in items if not isinstance(d, SymDim)])
    return symbols, known, bounds if len(bounds) == len(symbols) else None


def _parenthesize_factor(name: str) -> str:
    """Return a dimension's name as a factor: in parentheses if it contains sums or quotients."""
    return name if re.fullmatch(r"\w*(\*(\w+|\([^()]*\)))*", name) else f"({name})"


def is_static(shape: Iterable[Dim]) -> bool:
    """Return True if every dimension of a shape is known, that is, an int."""
    return all(isinstance(d, int) for d in shape)


def require_static_shape(shape: Iterable[Dim]) -> tuple[int, ...]:
    """Return a static shape as a tuple of ints; raise TypeError if a dimension is symbolic."""
    dims = tuple(shape)
    if not all(isinstance(d, int) for d in dims):
        raise TypeError(f"shape ({', '.join(map(str, dims))}) is not static")
    return tuple(d for d in dims if isinstance(d, int))


def numel(shape: Iterable[Dim]) -> int:
    """Return the number of elements of a static shape (1 for rank 0)."""
    return math.prod(require_static_shape(shape))


def same_dim(a: Dim, b: Dim) -> bool:
    """Return True if two dimensions are provably equal; two anonymous symbols never are."""
    if isinstance(a, SymDim) and isinstance(b, SymDim):
        return bool(a.name) and a.name == b.name
    return a == b


def is_shape_compatible_binding_symbols(shape: Shape, sizes: Sequence[int], symbol_sizes: dict[str, int]) -> bool:
    """Return True if a shape can have the given sizes.

    `symbol_sizes` maps names of symbols to sizes: a symbol not in it is added with its size,
    otherwise sizes must agree.
    """
    return len(shape) == len(sizes) and all(
        _is_dim_compatible_binding_symbol(dim, size, symbol_sizes) for dim, size in zip(shape, sizes, strict=True)
    )


def _is_dim_compatible_binding_symbol(dim: Dim, size: int, symbol_sizes: dict[str, int]) -> bool:
    if isinstance(dim, int):
        return dim == size
    within = dim.upper is None or size <= dim.upper
    return within and (not dim.name or symbol_sizes.setdefault(dim.name, size) == size)
