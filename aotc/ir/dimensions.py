# SPDX-License-Identifier: Apache-2.0
"""Tensor dimensions: an int, or a named symbol or formula with bounds.

SymDim("batch", upper=8)               # prints as batch<=8
SymDim("batch", upper=8, lower=1)      # prints as 1<=batch<=8
SymDim()                               # prints as ?
SymDim("n") * 2 + 1                    # prints as 2*n+1
SymDim("m+n") == SymDim("n + m")       # True: both have the name "m+n"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from numbers import Integral
from operator import index
from typing import Final, NoReturn, TypeAlias, TypeVar

from aotc.ir.dimension_formulas import (
    Formula,
    FormulaSizeError,
    Interval,
    constant,
    formula_of_name,
    formula_text,
    maximum,
    minimum,
    parse_formula,
    product_of_intervals,
    quotient_of_intervals,
)

T = TypeVar("T")
#: Lower bound of a difference that may be negative.
_NO_LOWER_BOUND: Final = -(1 << 63)


@dataclass(frozen=True, slots=True)
class SymDim:
    """A dimension unknown at compile time.

    name     a symbol, or a formula over symbols (`aotc.ir.dimension_formulas`), which is stored in
             its normal form. Equal names mean equal dimensions; "" is an anonymous dimension, which
             is equal to no other one
    upper    the largest value, or None if it is not known
    lower    a number that the value is known not to be less than; it has no part in comparisons
    """

    name: str = ""
    upper: int | None = None
    lower: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", formula_text(formula_of_name(self.name)) if self.name else "")

    def __str__(self) -> str:
        return text_with_bounds(self.name or "?", self)

    def __bool__(self) -> NoReturn:
        # `if extent` and `extent or 1` would take one branch for all sizes
        raise TypeError(f"the dimension {self} has no truth value: its size is known at run time only")

    def __add__(self, other: Dim) -> Dim:
        return sum_of_dims((self, other)) if _is_dim(other) else NotImplemented

    def __neg__(self) -> Dim:
        return 0 - self

    def __sub__(self, other: Dim) -> Dim:
        if isinstance(other, int):
            return sum_of_dims((self, -other))
        if not _is_dim(other):
            return NotImplemented
        return _dim_of_formula((self, other), lambda a, b: a - b, _difference_of_intervals(self, other))

    def __rsub__(self, other: int) -> Dim:
        if not _is_dim(other):
            return NotImplemented
        return _dim_of_formula((other, self), lambda a, b: a - b, _difference_of_intervals(other, self))

    def __mul__(self, other: Dim) -> Dim:
        return product_of_dims((self, other)) if _is_dim(other) else NotImplemented

    def __floordiv__(self, other: Dim) -> Dim:
        return indexdiv(self, other) if _is_dim(other) else NotImplemented

    def __rfloordiv__(self, other: int) -> Dim:
        return indexdiv(other, self) if _is_dim(other) else NotImplemented

    def __mod__(self, other: Dim) -> Dim:
        return self - other * (self // other) if _is_dim(other) else NotImplemented

    __radd__, __rmul__ = __add__, __mul__

    @property
    def symbols(self) -> frozenset[str]:
        """The names of the symbols that the value depends on; empty for an anonymous dimension."""
        return formula_of_name(self.name).symbols if self.name else frozenset()

    def compute(
        self, symbol_value: Callable[[str], T], constant_value: Callable[[int], T], operation: Callable[[str, T, T], T]
    ) -> T:
        """Return the size in another kind of values (see `Formula.compute`); TypeError for an anonymous
        dimension.
        """
        if not self.name:
            raise TypeError("a dimension without a name has no value")
        return formula_of_name(self.name).compute(symbol_value, constant_value, operation)

    def bind(self, values: Mapping[str, int]) -> Dim:
        """Return the dimension with values for some of its symbols, or for its whole formula.

        Raises ValueError if these values make it negative, divide by 0, or need more than 64 bits.
        """
        if self.name in values:
            return values[self.name]
        if not self.name or not self.symbols & values.keys():
            return self
        try:
            formula = formula_of_name(self.name).substitute({name: constant(v) for name, v in values.items()})
        except ZeroDivisionError as error:
            raise ValueError(f"dimension {self.name} divides by 0") from error
        number = formula.constant_or_none
        if number is None:
            return _symbolic_dim(formula, interval_of_dim(self))
        if number < 0:
            raise ValueError(f"dimension {self.name} is {number}")
        return number


Dim: TypeAlias = "int | SymDim"


def _is_dim(value: object) -> bool:
    return isinstance(value, (SymDim, Integral))


Shape: TypeAlias = "tuple[Dim, ...]"


def text_with_bounds(name: str, dim: SymDim) -> str:
    """Return the name of a dimension with the bounds that are known and do not follow from its formula."""
    implied = formula_of_name(dim.name).interval({})[0] if dim.name else 0
    lower = f"{dim.lower}<=" if dim.lower > max(implied, 0) else ""
    return f"{lower}{name}" if dim.upper is None else f"{lower}{name}<={dim.upper}"


def interval_of_dim(dim: Dim) -> Interval:
    """Return the least and the greatest value of a dimension, as far as they are known."""
    if isinstance(dim, SymDim):
        return dim.lower, math.inf if dim.upper is None else dim.upper
    return index(dim), index(dim)


def is_never_negative(dim: Dim) -> bool:
    """Return True if a dimension is known to be at least 0, by its bounds or by its formula."""
    if not isinstance(dim, SymDim) or not dim.name:
        return interval_of_dim(dim)[0] >= 0
    return dim.lower >= 0 or formula_of_name(dim.name).interval({})[0] >= 0


def _difference_of_intervals(a: Dim, b: Dim) -> Interval:
    (a_low, a_high), (b_low, b_high) = interval_of_dim(a), interval_of_dim(b)
    return a_low - b_high, a_high - b_low


def dim_of_text(text: str) -> Dim:
    """Return the dimension that a text spells: a number, or a symbol or formula."""
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""  # Python reads no zeros in front
    formula = parse_formula(digits or text)
    number = None if formula is None else formula.constant_or_none
    return SymDim(text) if number is None or number < 0 else number


def dim_in_attribute(name: str, upper: int | None = None) -> SymDim:
    """Return the dimension of a symbol or formula that is a number in an operator attribute: unlike a
    size, it may be negative.
    """
    low = formula_of_name(name).interval({})[0] if name else -math.inf
    return SymDim(name, upper, _NO_LOWER_BOUND if math.isinf(low) else int(low))


def sum_of_dims(dims: Iterable[Dim]) -> Dim:
    """Return the sum of dimensions, as an int or as a formula.

    Its upper bound is the sum of the bounds, if all symbols have one.
    """
    items = tuple(dims)
    symbols, known = _split_symbolic_and_static_dims(items, sum)
    if not symbols or (len(symbols) == 1 and known == 0):
        return symbols[0] if symbols else known
    lows, highs = zip(*map(interval_of_dim, items), strict=True)
    return _dim_of_formula(items, lambda *formulas: sum(formulas, constant(0)), (sum(lows), sum(highs)))


def product_of_dims(dims: Iterable[Dim]) -> Dim:
    """Return the product of dimensions, as an int or as a formula.

    Its upper bound is the product of the bounds, if all symbols have one.
    """
    items = tuple(dims)
    symbols, known = _split_symbolic_and_static_dims(items, math.prod)
    if not symbols or known == 0:
        return known
    if len(symbols) == 1 and known == 1:
        return symbols[0]
    interval = reduce(product_of_intervals, map(interval_of_dim, items))
    return _dim_of_formula(items, lambda *formulas: math.prod(formulas, start=constant(1)), interval)


def indexdiv(a: Dim, b: Dim) -> Dim:
    """Return `a // b`; a formula if a dimension is symbolic."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    interval = quotient_of_intervals(interval_of_dim(a), interval_of_dim(b))
    return _dim_of_formula((a, b), lambda x, y: x // y, interval)


def exact_quotient_or_none(a: Dim, b: Dim) -> Dim | None:
    """Return `a / b` if it is known to be a whole number or a formula without a quotient, else None."""
    if (isinstance(a, SymDim) and not a.name) or (isinstance(b, SymDim) and not b.name) or b == 0:
        return None
    dividend, divisor = (formula_of_name(d.name) if isinstance(d, SymDim) else constant(d) for d in (a, b))
    quotient = dividend // divisor
    return indexdiv(a, b) if quotient * divisor == dividend else None


def minimum_of_dims(dims: Sequence[Dim]) -> Dim:
    """Return the least of several dimensions, as an int or as a formula."""
    lows, highs = zip(*map(interval_of_dim, dims), strict=True)
    # what is never less than another dimension does not count
    dims = _without_excluded_dims(dims, lambda j, k: highs[j] <= lows[k])
    return dims[0] if len(dims) == 1 else _dim_of_formula(dims, minimum, (min(lows), min(highs)))


def maximum_of_dims(dims: Sequence[Dim]) -> Dim:
    """Return the greatest of several dimensions, as an int or as a formula."""
    lows, highs = zip(*map(interval_of_dim, dims), strict=True)
    # what is never greater than another dimension does not count
    dims = _without_excluded_dims(dims, lambda j, k: lows[j] >= highs[k])
    return dims[0] if len(dims) == 1 else _dim_of_formula(dims, maximum, (max(lows), max(highs)))


def equality_of_dims(a: Dim, b: Dim) -> Dim:
    """Return 1 where two dimensions are equal, and 0 elsewhere."""
    (low, high), (least, most) = interval_of_dim(a), interval_of_dim(b)
    if high < least or most < low:
        return 0
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    difference = a - b
    return maximum_of_dims((0, minimum_of_dims((1 - difference, 1 + difference))))


def sign_bit_of_dim(dim: Dim) -> Dim:
    """Return 1 for a number below 0, and 0 for others."""
    return maximum_of_dims((0, minimum_of_dims((1, 0 - dim))))


def _without_excluded_dims(dims: Sequence[Dim], excludes: Callable[[int, int], bool]) -> Sequence[Dim]:
    """Return the dimensions that no other one excludes; of those that exclude each other, which are equal, the
    first one.

    excludes    whether the dimension at one position excludes the one at another position
    """
    positions = range(len(dims))
    return [
        dims[k]
        for k in positions
        if not any(j != k and excludes(j, k) and (j < k or not excludes(k, j)) for j in positions)
    ]


def _dim_of_formula(dims: Iterable[Dim], combine: Callable[..., Formula], interval: Interval) -> Dim:
    """Return the dimension whose formula is `combine(*formulas of dims)`; an anonymous one if one
    of them has no name, or if the formula is too large.
    """
    formulas = [constant(index(d)) if not isinstance(d, SymDim) else formula_of_name(d.name) for d in dims]
    if any(isinstance(d, SymDim) and not d.name for d in dims):
        return _dim_in_interval("", interval)
    try:
        formula = combine(*formulas)
    except FormulaSizeError:
        return _dim_in_interval("", interval)
    number = formula.constant_or_none
    return _symbolic_dim(formula, interval) if number is None else number


def _dim_in_interval(name: str, interval: Interval) -> SymDim:
    low, high = interval
    return SymDim(name, None if math.isinf(high) else int(high), _NO_LOWER_BOUND if math.isinf(low) else int(low))


def _symbolic_dim(formula: Formula, interval: Interval) -> SymDim:
    """Return the dimension of a formula with symbols; an anonymous one if the text of the formula is
    too long to be read again, and would be a symbol of its own.
    """
    text = formula_text(formula)
    return _dim_in_interval(text if formula_of_name(text) == formula else "", interval)


def _split_symbolic_and_static_dims(
    dims: Iterable[Dim], combine_ints: Callable[[list[int]], int]
) -> tuple[list[SymDim], int]:
    """Split dimensions into symbols and the combined ints (`combine_ints`)."""
    items = list(dims)
    symbols = [d for d in items if isinstance(d, SymDim)]
    return symbols, combine_ints([index(d) for d in items if not isinstance(d, SymDim)])


class UnboundedDimError(TypeError):
    """Raised for a dimension without an upper bound where its largest size is needed.

    dim    the dimension
    """

    def __init__(self, dim: SymDim) -> None:
        super().__init__(f"the dimension {dim} has no upper bound")
        self.dim = dim


def largest_size(dim: Dim) -> int:
    """Return the largest size of a dimension. Raises UnboundedDimError, a TypeError, if it has no upper bound, and
    TypeError if it has no name.
    """
    if not isinstance(dim, SymDim):
        return index(dim)
    if not dim.name:
        raise TypeError(f"the dimension {dim} has no name")
    if dim.upper is None:
        raise UnboundedDimError(dim)
    return dim.upper


def are_bounded(shape: Iterable[Dim]) -> bool:
    """Return True if every dimension of a shape is known, or has a name and an upper bound."""
    return all(not isinstance(d, SymDim) or (bool(d.name) and d.upper is not None) for d in shape)


def largest_number_of_elements(shape: Iterable[Dim]) -> int:
    """Return the number of elements of a shape with its dimensions at their upper bounds."""
    return math.prod(map(largest_size, shape))


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


def solve_dims(equations: Iterable[tuple[SymDim, int]]) -> tuple[dict[str, int], list[str]]:
    """Return the values of symbols for which dimensions have given sizes, and a text for each
    contradiction.

    A formula determines the one symbol in it that nothing else determines, if the formula is linear
    in this symbol. A formula whose symbols stay unknown, such as the name "batch-size", has a value
    as a whole, by its name.
    """
    values: dict[str, int] = {}
    contradictions: list[str] = []
    # symbols before formulas
    remaining = sorted(equations, key=lambda equation: _formula_symbol_count(equation[0]))
    while remaining:
        unsolved: list[tuple[SymDim, int]] = []
        for dim, size in remaining:
            formula = formula_of_name(dim.name)
            known = formula.evaluate(values)
            if known is not None:
                if known != size:
                    contradictions.append(_contradiction_text(dim, known, size))
                continue
            try:
                solution = formula.solve(size, values)
            except ValueError as error:
                contradictions.append(str(error))
                continue
            if solution is None:
                unsolved.append((dim, size))
            else:
                values[solution[0]] = solution[1]
        if len(unsolved) == len(remaining):
            break
        remaining = unsolved
    for dim, size in remaining:
        if (known := values.setdefault(dim.name, size)) != size:
            contradictions.append(_contradiction_text(dim, known, size))
    return values, contradictions


def _contradiction_text(dim: SymDim, *sizes: int) -> str:
    return f"dimension {dim.name!r} is pinned to both {' and '.join(map(str, sizes))}"


def is_shape_compatible_binding_symbols(shape: Shape, sizes: Sequence[int], symbol_sizes: dict[str, int]) -> bool:
    """Return True if a shape can have the given sizes.

    `symbol_sizes` maps names of symbols to sizes: a symbol not in it is added with its size,
    otherwise sizes must agree. A formula with one unknown symbol determines that symbol; with
    several it is not checked until they are known (`check_until_symbols_are_known`).
    """
    if len(shape) != len(sizes):
        return False
    # formulas last: the other axes may determine their symbols
    pairs = sorted(zip(shape, sizes, strict=True), key=lambda pair: _formula_symbol_count(pair[0]))
    return all(_is_dim_compatible_binding_symbol(dim, size, symbol_sizes) for dim, size in pairs)


def check_until_symbols_are_known(check: Callable[[dict[str, int]], T]) -> T:
    """Return the result of a function that compares several shapes with sizes.

    check    receives the sizes of symbols by name, and adds those that it finds; it is called again as
             long as it finds any, since they may be in formulas that it could not check before
    """
    symbol_sizes: dict[str, int] = {}
    while True:
        count = len(symbol_sizes)
        result = check(symbol_sizes)
        if len(symbol_sizes) == count:
            return result


def _formula_symbol_count(dim: Dim) -> int:
    """Return the number of symbols of a formula; 0 for a number, a symbol, or an anonymous one."""
    return 0 if isinstance(dim, int) or dim.symbols <= {dim.name} else len(dim.symbols)


def _is_dim_compatible_binding_symbol(dim: Dim, size: int, symbol_sizes: dict[str, int]) -> bool:
    if isinstance(dim, int):
        return dim == size
    if size < dim.lower or (dim.upper is not None and size > dim.upper):
        return False
    if not dim.name:
        return True
    unknown = dim.symbols - symbol_sizes.keys()
    formula = formula_of_name(dim.name)
    if not unknown:
        return formula.evaluate(symbol_sizes) == size
    try:
        solution = formula.solve(size, symbol_sizes)
    except ValueError:
        return False
    if solution is not None:
        symbol_sizes[solution[0]] = solution[1]
    return True
