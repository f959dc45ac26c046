# SPDX-License-Identifier: Apache-2.0
"""Formulas of dimensions: polynomials over symbols in a normal form, so that equal formulas compare
equal.

f = parse_formula("(past + seq) * 2")
str(f)                                      # "2*past+2*seq"
f == parse_formula("2*seq + 2*past")        # True
f.evaluate({"past": 3, "seq": 1})           # 8
f.solve(8, {"seq": 1})                      # ("past", 3)

A formula is a sum of terms; a term is an integer coefficient and a product of factors; a factor is
a symbol or a call of `//`, `min` or `max` on formulas.  A remainder `a % b` is stored as
`a - b * (a // b)`.  Sums and products have one normal form; two formulas with quotients, `min` and
`max` may be equal for all values and still differ.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")
#: The largest text, power and number of terms that are read as a formula; a longer text is a name.
MAX_FORMULA_CHARACTERS: Final = 4000
MAX_POWER: Final = 8
MAX_TERMS: Final = 64
_QUOTED_NAME: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
#: Comments, and numbers with letters: Python would skip the former, and warn about some of the latter.
_NOT_IN_FORMULAS: Final = re.compile(r"#|(?<!\w)\d\w*[A-Za-z]")
#: The largest number of products of terms that a multiplication computes.
_MAX_PRODUCTS: Final = MAX_TERMS**2
#: Magnitudes of coefficients are less than this; sizes have 64 bits.
_COEFFICIENT_LIMIT: Final = 1 << 64


class FormulaSizeError(ValueError):
    """A formula with too many terms, or with a number of more than 64 bits."""


@dataclass(frozen=True, slots=True)
class FormulaCall:
    """A factor that is a function of formulas: `function` is "//", "min" or "max"."""

    function: str
    arguments: tuple[Formula, ...]

    def __str__(self) -> str:
        if self.function == "//":
            return "//".join(map(_factor_text, self.arguments))
        return f"{self.function}({', '.join(map(str, self.arguments))})"


#: Functions of formulas on numbers, by name.
_OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "min": min,
    "max": max,
}

#: Least and greatest value; infinite where nothing is known.
Interval: TypeAlias = "tuple[int | float, int | float]"
Factor = str | FormulaCall
Factors = tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Formula:
    """A sum of terms in normal form.

    terms    pairs of factors and an integer coefficient other than 0, with the constant term (which
             has no factors) last; factors are sorted by their text, terms by the number of factors,
             most first, and their text
    """

    terms: tuple[tuple[Factors, int], ...] = ()

    def __str__(self) -> str:
        text = "".join(_term_text(*term) for term in self.terms)
        return text.removeprefix("+") or "0"

    def __add__(self, other: Formula) -> Formula:
        return _sum_of_terms((*self.terms, *other.terms))

    def __sub__(self, other: Formula) -> Formula:
        return self + other * constant(-1)

    def __mul__(self, other: Formula) -> Formula:
        if len(self.terms) * len(other.terms) > _MAX_PRODUCTS:
            raise FormulaSizeError(f"a product of {len(self.terms)} and {len(other.terms)} terms")
        return _sum_of_terms((f + g, n * m) for f, n in self.terms for g, m in other.terms)

    def __floordiv__(self, divisor: Formula) -> Formula:
        """Return the quotient, rounded down.

        A quotient by a formula with symbols has a value only where that formula is not 0.  Raises
        ZeroDivisionError for the constant 0.
        """
        number = divisor.constant_or_none
        if number == 0:
            raise ZeroDivisionError("a dimension divided by 0")
        if number is not None:
            return _quotient_by_constant(self, number)
        return _exact_quotient_or_none(self, divisor) or _formula_of_one_call("//", self, divisor)

    def __mod__(self, divisor: Formula) -> Formula:
        return self - divisor * (self // divisor)

    @property
    def constant_or_none(self) -> int | None:
        """The value of a formula without symbols, else None."""
        factors, value = self.terms[0] if self.terms else ((), 0)
        return None if factors else value

    @property
    def constant_term(self) -> int:
        """The summand without symbols."""
        return sum(number for factors, number in self.terms if not factors)

    @property
    def symbols(self) -> frozenset[str]:
        """The names of all symbols of the formula."""
        return frozenset(_symbols_of_formula(self))

    @property
    def is_never_negative(self) -> bool:
        """True if the value is known to be at least 0, as symbols are: every term is."""
        return all(number >= 0 and all(map(_is_factor_never_negative, factors)) for factors, number in self.terms)

    def substitute(self, formulas: Mapping[str, Formula]) -> Formula:
        """Return the formula with symbols replaced by formulas; symbols without one stay."""
        return _substitute_symbols(self, formulas)

    def evaluate(self, values: Mapping[str, int]) -> int | None:
        """Return the value of the formula for values of its symbols; None if a symbol has none, where
        the formula divides by 0, and if the value has more than 64 bits.
        """
        try:
            number = self.compute(values.__getitem__, int, lambda function, a, b: _OPERATIONS[function](a, b))
        except (KeyError, ZeroDivisionError):
            return None
        return number if abs(number) < _COEFFICIENT_LIMIT else None

    def compute(
        self, symbol_value: Callable[[str], T], constant_value: Callable[[int], T], operation: Callable[[str, T, T], T]
    ) -> T:
        """Return the formula computed in another kind of values, such as index expressions.

        symbol_value, constant_value    return the value of a symbol, and of a number
        operation                       combines two values by "+", "*", "//", "min" or "max"
        """

        def factor_value(factor: Factor) -> T:
            if isinstance(factor, str):
                return symbol_value(factor)
            arguments = (a.compute(symbol_value, constant_value, operation) for a in factor.arguments)
            return reduce(lambda a, b: operation(factor.function, a, b), arguments)

        def term_value(factors: Factors, number: int) -> T:
            values = [*map(factor_value, factors), *([constant_value(number)] if number != 1 or not factors else [])]
            return reduce(lambda a, b: operation("*", a, b), values)

        terms = [term_value(*term) for term in self.terms]
        return reduce(lambda a, b: operation("+", a, b), terms) if terms else constant_value(0)

    def interval(self, intervals: Mapping[str, Interval]) -> Interval:
        """Return an interval that contains every value of the formula.

        intervals    the intervals of symbols; symbols without one are at least 0
        """
        low, high = self._interval_of_independent_terms(intervals)
        # k * d * (f // d) is k * (f - f % d), whose symbols other terms may cancel: n - 2 * (n // 2) is at most 1
        exact, remainders = self, list[tuple[int, int]]()
        for factors, number in self.terms:
            match factors:
                case [FormulaCall(function="//", arguments=(dividend, by))]:
                    divisor = by.constant_or_none
                    if divisor is not None and divisor > 0 and number % divisor == 0:
                        exact += dividend * constant(number // divisor) - Formula(((factors, number),))
                        remainders.append((0, -(number // divisor) * (divisor - 1)))
        if not remainders:
            return low, high
        least, most = exact._interval_of_independent_terms(intervals)
        return max(low, least + sum(map(min, remainders))), min(high, most + sum(map(max, remainders)))

    def _interval_of_independent_terms(self, intervals: Mapping[str, Interval]) -> Interval:
        """Return the interval of a formula whose terms take all of their values independently."""
        low: int | float = 0
        high: int | float = 0
        for factors, number in self.terms:
            term: Interval = (number, number)
            for factor in factors:
                term = product_of_intervals(term, _interval_of_factor(factor, intervals))
            low, high = low + term[0], high + term[1]
        return low, high

    def solve(self, value: int, known: Mapping[str, int]) -> tuple[str, int] | None:
        """Return the one symbol without a known value, and its value for which the formula is
        `value`; None if there are more such symbols, or if it occurs in a product or call.

        Raises ValueError if no integer from 0 on is a solution, and if the formula divides by 0.
        """
        try:
            rest = self.substitute({name: constant(number) for name, number in known.items()}) - constant(value)
        except ZeroDivisionError as error:
            raise ValueError(f"dimension {self} divides by 0") from error
        symbolic = [(factors, number) for factors, number in rest.terms if factors]
        if len(symbolic) != 1 or len(symbolic[0][0]) != 1 or not isinstance(symbolic[0][0][0], str):
            return None
        (name,), coefficient = symbolic[0]
        solution, remainder = divmod(-rest.constant_term, coefficient)
        if remainder or solution < 0:
            raise ValueError(f"no value of {name} makes {self} equal to {value}")
        return str(name), solution


def symbol(name: str) -> Formula:
    """Return the formula that is one symbol."""
    return Formula((((name,), 1),))


def minimum(*formulas: Formula) -> Formula:
    """Return the least of several formulas."""
    return _simplified_min_or_max("min", formulas)


def maximum(*formulas: Formula) -> Formula:
    """Return the greatest of several formulas."""
    return _simplified_min_or_max("max", formulas)


def constant(value: int) -> Formula:
    """Return the formula of a number."""
    return Formula((((), value),) if value else ())


def _sum_of_terms(terms: Iterable[tuple[Factors, int]]) -> Formula:
    coefficients: Counter[Factors] = Counter()
    for factors, number in terms:
        coefficients[tuple(sorted(factors, key=str))] += number
    remaining = [(factors, number) for factors, number in coefficients.items() if number]
    if any(abs(number) >= _COEFFICIENT_LIMIT for _, number in remaining):
        raise FormulaSizeError("a number of more than 64 bits")
    return Formula(tuple(sorted(remaining, key=lambda term: (-len(term[0]), [str(f) for f in term[0]]))))


def _formula_of_one_call(function: str, *arguments: Formula) -> Formula:
    return Formula((((FormulaCall(function, arguments),), 1),))


def _quotient_by_constant(formula: Formula, divisor: int) -> Formula:
    """Return `formula // divisor` for a number other than 0.

    Each coefficient `k` contributes `k // divisor` to the quotient; what remains, with coefficients
    from 0 to `divisor - 1`, is divided by a common factor of its symbolic coefficients and the
    divisor: floor((g * x + c) / (g * d)) = floor((x + floor(c / g)) / d).  A quotient of a quotient
    is one quotient: floor((floor(x / a) + c) / d) = floor((x + a * c) / (a * d)).
    """
    if divisor < 0:
        return _quotient_by_constant(formula * constant(-1), -divisor)
    whole = _sum_of_terms((factors, number // divisor) for factors, number in formula.terms)
    rest = _sum_of_terms((factors, number % divisor) for factors, number in formula.terms)
    if rest.constant_or_none is not None:
        return whole
    common = math.gcd(divisor, *(number for factors, number in rest.terms if factors))
    rest = _sum_of_terms((factors, number // common) for factors, number in rest.terms)
    divisor //= common
    if divisor == 1:
        return whole + rest
    inner = _constant_quotient_plus_constant_or_none(rest)
    if inner is not None:
        dividend, inner_divisor, added = inner
        return whole + _quotient_by_constant(dividend + constant(added * inner_divisor), divisor * inner_divisor)
    return whole + _formula_of_one_call("//", rest, constant(divisor))


def _constant_quotient_plus_constant_or_none(formula: Formula) -> tuple[Formula, int, int] | None:
    """Return x, a and c of a formula `x // a + c` with constant a and c; None for other formulas."""
    match formula.terms:
        case [((FormulaCall(function="//", arguments=(dividend, by)),), 1), *others] if not any(f for f, _ in others):
            divisor = by.constant_or_none
            return None if divisor is None else (dividend, divisor, formula.constant_term)
    return None


def _exact_quotient_or_none(formula: Formula, divisor: Formula) -> Formula | None:
    """Return the quotient if every term of `formula` is a multiple of a divisor of one term, or if
    both are equal; else None.
    """
    if formula == divisor:
        return constant(1)
    if len(divisor.terms) != 1:
        return None
    divisor_factors, divisor_number = Counter(divisor.terms[0][0]), divisor.terms[0][1]
    quotient: list[tuple[Factors, int]] = []
    for factors, number in formula.terms:
        remaining = Counter(factors)
        if number % divisor_number or not divisor_factors <= remaining:
            return None
        quotient.append((tuple((remaining - divisor_factors).elements()), number // divisor_number))
    return _sum_of_terms(quotient)


def _simplified_min_or_max(function: str, formulas: Iterable[Formula]) -> Formula:
    """Return the minimum or maximum, without operands that another one is known to exclude."""
    sign = 1 if function == "max" else -1
    remaining: list[Formula] = []
    for formula in dict.fromkeys(_operands_of_nested_calls(function, formulas)):
        if any(_is_known_at_least(other, formula, sign) for other in remaining):
            continue
        remaining = [other for other in remaining if not _is_known_at_least(formula, other, sign)] + [formula]
    if len(remaining) == 1:
        return remaining[0]
    return _formula_of_one_call(function, *sorted(remaining, key=lambda f: (f.constant_or_none is not None, str(f))))


def _operands_of_nested_calls(function: str, formulas: Iterable[Formula]) -> Iterator[Formula]:
    """Yield formulas, with a call of `function` replaced by its arguments: max(max(a, b), c) has the
    operands a, b and c.
    """
    for formula in formulas:
        match formula.terms:
            case [((FormulaCall(function=inner, arguments=arguments),), 1)] if inner == function:
                yield from arguments
            case _:
                yield formula


def _is_known_at_least(a: Formula, b: Formula, sign: int) -> bool:
    """Return True if a >= b (for sign -1: a <= b) follows from symbols being at least 0."""
    return ((a - b) * constant(sign)).is_never_negative


def _is_factor_never_negative(factor: Factor) -> bool:
    if isinstance(factor, str):
        return True
    is_enough = any if factor.function == "max" else all
    return is_enough(argument.is_never_negative for argument in factor.arguments)


def _symbols_of_formula(formula: Formula) -> Iterator[str]:
    for factors, _ in formula.terms:
        for factor in factors:
            if isinstance(factor, str):
                yield factor
            else:
                for argument in factor.arguments:
                    yield from _symbols_of_formula(argument)


def _interval_of_factor(factor: Factor, intervals: Mapping[str, Interval]) -> Interval:
    if isinstance(factor, str):
        return intervals.get(factor, (0, math.inf))
    ends = [argument.interval(intervals) for argument in factor.arguments]
    if factor.function == "//":
        return quotient_of_intervals(*ends)
    pick = min if factor.function == "min" else max
    return pick(low for low, _ in ends), pick(high for _, high in ends)


def product_of_intervals(a: Interval, b: Interval) -> Interval:
    """Return the interval of products of values of two intervals."""
    ends = [0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)


def quotient_of_intervals(dividend: Interval, divisor: Interval) -> Interval:
    """Return the interval of quotients that are rounded down; unbounded unless the divisor is
    positive.
    """
    if divisor[0] < 1:
        return -math.inf, math.inf
    ends = [_floor_quotient(x, d) for x in dividend for d in divisor]
    return min(ends), max(ends)


def _floor_quotient(dividend: int | float, divisor: int | float) -> int | float:
    if math.isinf(divisor):
        return 0 if dividend >= 0 else -1 if dividend > -math.inf else dividend
    return dividend if math.isinf(dividend) else dividend // divisor


_OPERATION_OF_CALL: Final[Mapping[str, Callable[..., Formula]]] = {
    "//": lambda a, b: a // b,
    "min": minimum,
    "max": maximum,
}


def _substitute_symbols(formula: Formula, formulas: Mapping[str, Formula]) -> Formula:
    def factor_value(factor: Factor) -> Formula:
        if isinstance(factor, str):
            return formulas.get(factor, symbol(factor))
        return _OPERATION_OF_CALL[factor.function](*(_substitute_symbols(a, formulas) for a in factor.arguments))

    terms = (
        reduce(lambda product, factor: product * factor_value(factor), factors, constant(number))
        for factors, number in formula.terms
    )
    return reduce(lambda a, b: a + b, terms, constant(0))


# --- text


def _term_text(factors: Factors, number: int) -> str:
    """Return a term with its sign, such as +2*n or -1."""
    texts = [str(abs(number))] if abs(number) != 1 or not factors else []
    # a minus sign binds tighter than a quotient
    is_quotient_alone = number == 1 and len(factors) == 1
    texts += [_text_in_product(f, is_quotient_alone) for f in factors]
    return ("-" if number < 0 else "+") + "*".join(texts)


def _text_in_product(factor: Factor, is_alone: bool) -> str:
    if isinstance(factor, str):
        return _symbol_text(factor)
    return str(factor) if is_alone or factor.function != "//" else f"({factor})"


def _symbol_text(name: str) -> str:
    """Return a symbol as it stands in a formula: quoted unless it is an identifier that Python reads
    as this name.
    """
    match _parse_expression_or_none(name):
        case ast.Name(id=identifier) if identifier == name:
            return name
    return repr(name) if _is_normalized(name) else ascii(name)


def _factor_text(formula: Formula) -> str:
    """Return a formula as an operand of `//`."""
    match formula.terms:
        case [((str() as name,), 1)]:
            return _symbol_text(name)
        case [] | [((), int(1)), *_] | [((FormulaCall(function="min" | "max"),), 1)]:
            return str(formula)
    number = formula.constant_or_none
    return str(formula) if number is not None and number >= 0 else f"({formula})"


def formula_text(formula: Formula) -> str:
    """Return a formula as text that `formula_of_name` reads as the same formula.

    A formula that is one symbol is the name of the symbol, unless the name spells another formula.
    """
    match formula.terms:
        case [((str() as name,), 1)] if formula_of_name(name) == formula:
            return name
    return str(formula)


@lru_cache(maxsize=4096)
def formula_of_name(name: str) -> Formula:
    """Return the formula that the name of a dimension spells, or a symbol of this name if it spells
    none.

    Sums, differences, products, `//`, `%`, `min`, `max` and powers are read, and the spellings of
    sympy: `Min`, `Max`, `floor(a/b)` and `ceiling(a/b)`.
    """
    formula = parse_formula(name)
    return symbol(name) if formula is None or formula.constant_or_none is not None else formula


def parse_formula(text: str) -> Formula | None:
    """Return the formula that a text spells, as `formula_of_name` reads it; None if it spells none."""
    tree = _parse_expression_or_none(text)
    try:
        return None if tree is None else _formula_of_node(tree)
    except (_NotAFormulaError, FormulaSizeError, ZeroDivisionError, RecursionError):
        return None


class _NotAFormulaError(Exception):
    """A text that is not a formula."""


def _is_normalized(text: str) -> bool:
    """Return True if Python reads the identifiers in a text as they are written."""
    return text.isascii() or unicodedata.is_normalized("NFKC", text)


def _parse_expression_or_none(text: str) -> ast.expr | None:
    """Return the syntax tree of a text that is one expression; None if it is none.

    Names with a comment sign, such as "axis #1" and "axis #2", are no expressions.
    """
    if len(text) > MAX_FORMULA_CHARACTERS or not _is_normalized(text):
        return None
    if _NOT_IN_FORMULAS.search(_QUOTED_NAME.sub("''", text)):
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_BINARY_OPERATIONS: Final[Mapping[type, Callable[[Formula, Formula], Formula]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_FUNCTIONS: Final = {"min": minimum, "max": maximum, "Min": minimum, "Max": maximum}


def _formula_of_node(node: ast.expr) -> Formula:
    formula = _formula_of_node_without_limit(node)
    if len(formula.terms) > MAX_TERMS:
        raise _NotAFormulaError
    return formula


def _formula_of_node_without_limit(node: ast.expr) -> Formula:
    match node:
        case ast.Name(id=name):
            return symbol(name)
        case ast.Constant(value=bool() | float() | complex() | None):
            raise _NotAFormulaError
        case ast.Constant(value=int(number)):
            return constant(number)
        case ast.Constant(value=str(name)) if name:
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return constant(-1) * _formula_of_node(operand)
        case ast.BinOp(op=ast.Pow(), left=base, right=ast.Constant(value=int(power))) if 0 < power <= MAX_POWER:
            return reduce(lambda a, b: a * b, [_formula_of_node(base)] * power)
        case ast.BinOp(op=operator, left=left, right=right) if type(operator) in _BINARY_OPERATIONS:
            return _BINARY_OPERATIONS[type(operator)](_formula_of_node(left), _formula_of_node(right))
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            return _formula_of_call(function, arguments)
    raise _NotAFormulaError


def _formula_of_call(function: str, arguments: list[Any]) -> Formula:
    if function in _FUNCTIONS and arguments:
        return _FUNCTIONS[function](*map(_formula_of_node, arguments))
    match arguments:
        case [ast.BinOp(op=ast.Div(), left=left, right=right)] if function == "floor":
            return _formula_of_node(left) // _formula_of_node(right)
        case [ast.BinOp(op=ast.Div(), left=left, right=right)] if function in ("ceil", "ceiling"):
            divisor = _formula_of_node(right)
            return (_formula_of_node(left) + divisor - constant(1)) // divisor
    raise _NotAFormulaError
