# SPDX-License-Identifier: Apache-2.0
"""Ranges of dimensions that are known at run time only, and their text.

dim_size_or_range("1..512")          # DimRange(least=1, most=512)
dim_size_or_range("64..640:32")      # multiples of 32 from 64 to 640
dim_size_or_range((1, 512))          # the same as "1..512"
dim_size_or_range("8")               # 8
dim_size_range_or_tiers("1,8..64")   # sizes in tiers: 1, or 8 to 64
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Final, TypeAlias

from aotc.ir.dimension_formulas import Formula, Interval, constant, formula_of_name, formula_text, symbol
from aotc.ir.dimensions import Dim, SymDim

#: The largest size of a dimension with a range.
MAX_RANGE_EXTENT: Final = (1 << 31) - 1
_RANGE_TEXT: Final = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?(?:~(\d+))?", re.ASCII)
RANGE_FORM: Final = "LEAST..MOST, LEAST..MOST:STEP or LEAST..MOST~TYPICAL"


@dataclass(frozen=True, slots=True)
class DimRange:
    """The sizes that a symbolic dimension may have at run time.

    least, most    the smallest and the largest size
    step           sizes are multiples of it; so are both ends
    typical        size for which costs are compared; the largest one if it is None
    tiers          for sizes in several ranges, each of which has code of its own: these ranges, in the order
                   in which they are tried. `least` and `most` are the ends of all of them, with the step 1

    Raises ValueError if the ends, the step or the typical size contradict each other.
    """

    least: int
    most: int
    step: int = 1
    typical: int | None = None
    tiers: "tuple[DimRange, ...]" = ()

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most <= MAX_RANGE_EXTENT:
            raise ValueError(f"{self} does not go from at least 0 up to at most {MAX_RANGE_EXTENT}")
        if self.step < 1 or self.least % self.step or self.most % self.step:
            raise ValueError(f"the ends of {self} are not multiples of its step")
        if self.typical is not None and self.typical not in self:
            raise ValueError(f"the typical size of {self} is not one of its sizes")

    def __contains__(self, size: int) -> bool:
        if self.tiers:
            return any(size in tier for tier in self.tiers)
        return self.least <= size <= self.most and size % self.step == 0

    def __str__(self) -> str:
        """Return the text that `dim_size_or_range` reads, or `dim_size_range_or_tiers` for sizes in tiers."""
        if self.tiers:
            return ",".join(str(t.least if t.least == t.most else t) for t in self.tiers)
        step = f":{self.step}" if self.step != 1 else ""
        return f"{self.least}..{self.most}{step}" + (f"~{self.typical}" if self.typical is not None else "")

    @property
    def steps(self) -> tuple[int, ...]:
        """The step, and those of the tiers; formulas may count each of them."""
        return tuple(dict.fromkeys([self.step, *(tier.step for tier in self.tiers)]))

    @property
    def ends(self) -> list[int]:
        """The least and the largest size, or those of each tier."""
        return list(dict.fromkeys(end for r in self.tiers or (self,) for end in (r.least, r.most)))

    @property
    def description(self) -> str:
        """The sizes as text: "1 to 64", "32 to 96 in steps of 32", "1, 8 or 32"."""
        if self.tiers:
            *first, last = (t.description for t in self.tiers)
            return f"{', '.join(first)} or {last}"
        if self.least == self.most:
            return str(self.least)
        return f"{self.least} to {self.most}" + (f" in steps of {self.step}" if self.step != 1 else "")


#: A size or a range of sizes, as callers write it.
DimSpecification: TypeAlias = int | tuple[int, int] | str | DimRange
#: The same, or a list of sizes and ranges: a tier for each.
TieredDimSpecification: TypeAlias = DimSpecification | Sequence[DimSpecification]


def dim_size_or_range(value: object) -> int | DimRange:
    """Return a size or a range from what callers write: an integer, a pair (least, most), or text such
    as "8", "1..512", "64..640:32" and "1..512~128". A range of one size is that size.

    Raises ValueError for other values.
    """
    match value:
        case DimRange():
            found = value
        case str() if match := _RANGE_TEXT.fullmatch(value.strip()):
            least, most, step, typical = match.groups()
            found = DimRange(int(least), int(most), int(step or 1), None if typical is None else int(typical))
        case str() if value.strip().isascii() and value.strip().isdigit():
            return int(value)
        case tuple([Integral() as least, Integral() as most]) if not isinstance(least, bool):
            found = DimRange(int(least), int(most))
        case Integral() if not isinstance(value, bool):
            return int(value)
        case _:
            raise ValueError(f"{value!r} is neither a size nor a range {RANGE_FORM}")
    return found.least if found.least == found.most else found


def range_of_tiers(tiers: Iterable[int | DimRange]) -> int | DimRange:
    """Return the sizes of several tiers, in the order in which they are tried; a single one is returned itself.
    The typical size is that of the first tier with the largest size.

    Raises ValueError if there are none, or if an earlier tier has all sizes of a later one.
    """
    found: list[DimRange] = []
    for given in tiers:
        tier = DimRange(given, given) if isinstance(given, int) else given
        if (first := next((t for t in found if _has_all_sizes_of(t, tier)), None)) is not None:
            text = f"a run never takes {tier.description}, as {first.description} comes first"
            raise ValueError(f"{text}: give each size once, and small ranges in front of larger ones")
        found.append(tier)
    if not found:
        raise ValueError("the list of sizes is empty: give at least one size or range")
    if len(found) == 1:
        return found[0].least if found[0].least == found[0].most else found[0]
    least, most = min(t.least for t in found), max(t.most for t in found)
    last = next(t for t in found if t.most == most)
    return DimRange(least, most, typical=most if last.typical is None else last.typical, tiers=tuple(found))


def _has_all_sizes_of(range_: DimRange, part: DimRange) -> bool:
    is_inside = range_.least <= part.least and part.most <= range_.most
    return is_inside and part.least in range_ and (part.least == part.most or part.step % range_.step == 0)


def dim_size_range_or_tiers(value: object) -> int | DimRange:
    """Return what `dim_size_or_range` does, and sizes in several tiers for a list of sizes and ranges, such as
    [1, 8, 32] and [(1, 64), (65, 512)], or for text with commas, such as "1,8,32" and "1..64,65..512".

    Raises ValueError for other values, for empty lists, and for tiers that no run takes.
    """
    match value:
        case str() if "," in value:
            return range_of_tiers(map(dim_size_or_range, value.split(",")))
        case list():
            return range_of_tiers(map(dim_size_or_range, value))
        case _:
            return dim_size_or_range(value) if not isinstance(value, DimRange) else value


def bind_ranges(dim: SymDim, ranges: Mapping[str, DimRange]) -> Dim:
    """Return a dimension with ranges for some of its symbols: with its bounds, and with a symbol
    `height` of step 32 replaced by 32*'height/32'; a number if the formula is constant then.

    Raises ValueError if no values in these ranges are sizes of the dimension.
    """
    known = {name: ranges[name] for name in dim.symbols if name in ranges}
    if not known:
        return dim
    multiples = {name: _multiple_of_step(name, r.step) for name, r in known.items()}
    formula = formula_of_name(dim.name).substitute(multiples)
    size = formula.constant_or_none
    if size is not None:
        if size < dim.lower or (dim.upper is not None and size > dim.upper):
            raise ValueError(f"dimension {dim.name} has the size {size} in these ranges, which is not in {dim}")
        return size
    intervals: dict[str, Interval] = {
        next(iter(multiples[name].symbols)): (r.least // r.step, r.most // r.step) for name, r in known.items()
    }
    return bound_dim(replace(dim, name=formula_text(formula)), intervals)


def bound_dim(dim: SymDim, intervals: Mapping[str, Interval]) -> SymDim:
    """Return a dimension with the bounds that follow from intervals of its symbols.

    Raises ValueError if no values in these intervals are sizes of the dimension.
    """
    if not dim.name:
        return dim
    least, most = formula_of_name(dim.name).interval(intervals)
    lower = max(dim.lower, int(max(least, 0)))
    upper = dim.upper if most > MAX_RANGE_EXTENT else int(most) if dim.upper is None else min(dim.upper, int(most))
    if upper is not None and lower > upper:
        raise ValueError(f"dimension {dim.name} has no size: it is at least {lower} and at most {upper}")
    return replace(dim, lower=lower, upper=upper)


def symbol_and_sizes(dim: SymDim) -> tuple[str, int, int | None] | None:
    """Return the name of a dimension that is one symbol, possibly with a step, its least size of at
    least 1, and its largest size, None if that is not known; None for a formula of another kind.
    """
    formula, symbols = formula_of_name(dim.name), tuple(dim.symbols)
    if len(symbols) != 1:
        return None
    name, _, step = symbols[0].rpartition("/")
    if name and step.isdigit() and formula == _multiple_of_step(name, int(step)):
        return name, max(dim.lower, int(step)), dim.upper
    return (symbols[0], max(dim.lower, 1), dim.upper) if formula == symbol(symbols[0]) else None


def symbol_of_multiples(name: str, step: int) -> str:
    """Return the name of the symbol that counts the steps of a dimension."""
    return name if step == 1 else f"{name}/{step}"


def dim_text_in_sizes(dim: SymDim, ranges: Mapping[str, DimRange]) -> str:
    """Return the text of a dimension in terms of sizes instead of numbers of their steps: height for
    32*'height/32' if `ranges` has a step of 32 for `height`.
    """
    formula, steps = formula_of_name(dim.name), {symbol_of_multiples(n, r.step): (n, r.step) for n, r in ranges.items()}
    terms = constant(0)
    for factors, number in formula.terms:
        term = Formula(((factors, number),))
        for factor in factors:
            name, step = steps.get(str(factor), ("", 1))
            if step != 1 and factors.count(factor) == 1 and number % step == 0:
                others = tuple(f for f in factors if f != factor)
                term = Formula(((others, number // step),)) * symbol(name)
                break
        terms = terms + term
    quotients = {s: symbol(name) // constant(step) for s, (name, step) in steps.items() if step != 1}
    return formula_text(terms.substitute(quotients))


def _multiple_of_step(name: str, step: int) -> Formula:
    return constant(step) * symbol(symbol_of_multiples(name, step))
