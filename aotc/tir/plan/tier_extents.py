# SPDX-License-Identifier: Apache-2.0
"""Extents of the outputs of a model with tiers, as formulas over the sizes of all tiers.

of_tiers = [TierExtent({"n": DimRange(4, 4)}, 2), TierExtent({"n": DimRange(9, 9)}, 4)]
extent_in_all_tiers(of_tiers)              # SymDim("n//2"), which is 2 for n = 4, and 4 for n = 9

Only the sizes of tiers occur in a run, so a formula that has the extent of each tier is right, wherever it comes
from. Formulas that a reader expects are preferred: the one that was derived for a whole range of sizes, one of a
tier, or a simple one of a single size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from typing import Final, TypeAlias

import numpy as np

from aotc.ir import Dim, DimRange, SymDim, frozen, symbol_of_multiples
from aotc.ir.dimension_formulas import (
    Formula,
    FormulaSizeError,
    constant,
    formula_of_name,
    formula_text,
    maximum,
    minimum,
    symbol,
)
from aotc.ir.dimension_ranges import dim_text_in_sizes
from aotc.ir.dimensions import dim_of_text

#: Largest divisor in formulas that are fitted to the extents of tiers.
_MAX_FITTED_DIVISOR: Final = 64
#: Largest number of values of a size for which the formulas of a tier and of all tiers are compared.
_MAX_COMPARED_SIZES: Final = 64
#: The sizes of each tier, in one order.
_Points: TypeAlias = "Sequence[Sequence[int]]"


@frozen
class TierExtent:
    """Extent of an axis in one tier.

    sizes    range of each size of the model, by name
    extent   a number, or a formula over the sizes that have several values in this tier
    """

    sizes: Mapping[str, DimRange]
    extent: Dim

    def formula_in_sizes(self, names: Collection[str]) -> Formula:
        """Return the extent as a formula without symbols that count steps of the sizes with these names."""
        if not isinstance(self.extent, SymDim):
            return constant(self.extent)
        stepped = {name: self.sizes[name] for name in names}
        return _formula_of_dim(dim_of_text(dim_text_in_sizes(self.extent, stepped)))


def extent_in_all_tiers(tiers: Sequence[TierExtent], derived: Dim | None = None) -> Dim | None:
    """Return a formula over the sizes of a model that has the extent of an axis in each tier; None if there is none.

    derived    formula for the whole range of sizes, which is taken if it fits; None if it is not known
    """
    for candidate in _candidates(tiers, derived):
        try:
            formula = candidate()
        except (FormulaSizeError, ZeroDivisionError):
            continue
        if formula is not None and all(_has_extent_of_tier(formula, tier) for tier in tiers):
            number = formula.constant_or_none
            text = formula_text(formula)
            if number is not None or formula_of_name(text) == formula:
                return SymDim(text) if number is None else number
    return None


def _candidates(tiers: Sequence[TierExtent], derived: Dim | None) -> Iterator[Callable[[], Formula | None]]:
    if derived is not None and (not isinstance(derived, SymDim) or derived.name):
        yield partial(_formula_of_dim, derived)
    first = tiers[0].sizes
    names = [name for name in first if any(tier.sizes[name] != first[name] for tier in tiers)]
    for tier in tiers:
        if not isinstance(tier.extent, SymDim) or tier.extent.name:
            yield partial(tier.formula_in_sizes, names)
    yield partial(_fitted_formula, tiers, names)


def _formula_of_dim(dim: Dim) -> Formula:
    return formula_of_name(dim.name) if isinstance(dim, SymDim) else constant(dim)


def is_extent_of_tier(dim: Dim, tier: TierExtent) -> bool:
    """Return True if a formula over the sizes of all tiers has the extent of a tier for the sizes of this tier."""
    return _has_extent_of_tier(_formula_of_dim(dim), tier)


def _has_extent_of_tier(formula: Formula, tier: TierExtent) -> bool:
    """Return True if a formula over all sizes has the extent of a tier for the sizes of this tier."""
    if isinstance(tier.extent, SymDim) and not tier.extent.name:
        return False
    own = _formula_of_dim(tier.extent)
    if not formula.symbols <= {*tier.sizes, *(symbol_of_multiples(n, r.step) for n, r in tier.sizes.items())}:
        return False
    used = {name: r for name, r in tier.sizes.items() if _depend_on(name, r, (formula, own))}
    for values in product(*map(_some_sizes, used.values())):
        symbols = {
            symbol_of_multiples(n, s): v // s
            for (n, r), v in zip(used.items(), values, strict=True)
            for s in (1, r.step)
        }
        extent = own.evaluate(symbols)
        if extent is None or formula.evaluate(symbols) != extent:
            return False
    return True


def _depend_on(name: str, sizes: DimRange, formulas: Iterable[Formula]) -> bool:
    symbols = {name, symbol_of_multiples(name, sizes.step)}
    return any(symbols & formula.symbols for formula in formulas)


def _some_sizes(sizes: DimRange) -> list[int]:
    """Return all sizes of a range, or some of many, with both ends."""
    least, most = sizes.least // sizes.step, sizes.most // sizes.step
    if most - least < _MAX_COMPARED_SIZES:
        return [k * sizes.step for k in range(least, most + 1)]
    return [int(k) * sizes.step for k in np.linspace(least, most, _MAX_COMPARED_SIZES).astype(np.int64)]


def _fitted_formula(tiers: Sequence[TierExtent], names: Sequence[str]) -> Formula | None:
    """Return a formula with the extents of tiers that differ in sizes of one value each; None for others.

    names    names of the sizes in which tiers differ

    What the extents have in common, such as a size that has a range in all tiers, is kept: its coefficient in
    each tier is a number, and becomes a formula of the sizes of tiers.
    """
    if any(isinstance(tier.extent, SymDim) and not tier.extent.name for tier in tiers):
        return None
    if any(tier.sizes[name].least != tier.sizes[name].most for tier in tiers for name in names):
        return None
    points = [[tier.sizes[name].least for name in names] for tier in tiers]
    coefficients = [dict(_formula_of_dim(tier.extent).terms) for tier in tiers]
    found = constant(0)
    for factors in dict.fromkeys(factors for of_tier in coefficients for factors in of_tier):
        numbers = [of_tier.get(factors, 0) for of_tier in coefficients]
        found = found + _fitted_number(names, points, numbers) * Formula(((factors, 1),))
    return found


def _fitted_number(names: Sequence[str], points: _Points, numbers: Sequence[int]) -> Formula:
    """Return a formula that is numbers[k] for the sizes points[k], which are in the order of `names`."""
    if len(set(numbers)) == 1:
        return constant(numbers[0])
    for name, values in zip(names, zip(*points, strict=True), strict=True):
        if (line := _rounded_line(name, values, numbers)) is not None:
            return line
    for count in range(2, len(names) + 1):
        for chosen in combinations(range(len(names)), count):
            products = [math.prod(point[j] for j in chosen) for point in points]
            factor = numbers[0] // products[0] if products[0] else 0
            if all(factor * p == number for p, number in zip(products, numbers, strict=True)):
                return math.prod((symbol(names[j]) for j in chosen), start=constant(factor))
    for name, values in zip(names, zip(*points, strict=True), strict=True):
        if len(set(zip(values, numbers, strict=True))) == len(set(values)):
            return _steps(name, dict(zip(values, numbers, strict=True)))
    return _table(names, points, numbers)


def _rounded_line(name: str, values: Sequence[int], numbers: Sequence[int]) -> Formula | None:
    """Return (a * name + b) // c with the least c that has the numbers for the values; None if there is none."""
    (least, low), (most, high) = min(zip(values, numbers, strict=True)), max(zip(values, numbers, strict=True))
    if least == most:
        return None
    for divisor in range(1, _MAX_FITTED_DIVISOR + 1):
        slope = (high - low) * divisor // (most - least)
        for factor in (slope, slope + 1):
            rest = [divisor * number - factor * value for value, number in zip(values, numbers, strict=True)]
            lower, upper = max(rest), min(rest) + divisor - 1
            if factor and lower <= upper:
                added = min(max(lower, 0), upper)
                return (constant(factor) * symbol(name) + constant(added)) // constant(divisor)
    return None


def _steps(name: str, numbers: Mapping[int, int]) -> Formula:
    """Return a formula of one size that is a number for each of some values."""
    found, (before, *values) = constant(0), sorted(numbers)
    found = constant(numbers[before])
    for value in values:
        reached = maximum(constant(0), minimum(constant(1), symbol(name) - constant(value - 1)))
        found, before = found + constant(numbers[value] - numbers[before]) * reached, value
    return found


def _table(names: Sequence[str], points: _Points, numbers: Sequence[int]) -> Formula:
    """Return a formula of several sizes that is a number for each of some points."""
    usual = max(numbers, key=list(numbers).count)
    found = constant(usual)
    for point, number in zip(points, numbers, strict=True):
        is_here = (_equality(symbol(name) - constant(value)) for name, value in zip(names, point, strict=True))
        if number != usual:
            found = found + math.prod(is_here, start=constant(number - usual))
    return found


def _equality(difference: Formula) -> Formula:
    """Return 1 for a difference of 0, and 0 for others."""
    return maximum(constant(0), minimum(constant(1) - difference, constant(1) + difference))
