# SPDX-License-Identifier: Apache-2.0
"""The simplifier: rewrite index arithmetic and conditions to equal, simpler ones (`simplify_statements`
does so for loops and branches).

Index expressions are normalized to linear sums (`LinearForm`), and conditions are decided by
interval arithmetic:

    ranges = {i: (0, 15), j: (0, 3)}
    simplify((i * 4 + j) // 4, ranges)          # i
    simplify((i * 4 + j) % 4 < 4, ranges)       # true
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from aotc.ir import frozen
from aotc.tir import Binary, operands, vars_and_buffers_in, with_operands, wrap_to_int64
from aotc.tir.expr import BOOL, COMPARE, INDEX, Cast, Const, Expr, Select, Unary, Var, as_expr, binary, select

#: An int, or an infinity where nothing is known.
Bound: TypeAlias = "int | float"
#: Least and greatest value, both included.
Interval: TypeAlias = "tuple[Bound, Bound]"
Ranges: TypeAlias = "Mapping[Var, Interval]"

_UNBOUNDED_INTERVAL: Interval = (-math.inf, math.inf)
_MIN_INDEX: Final = int(INDEX.min)
_MAX_INDEX: Final = int(INDEX.max)
#: Largest number of linear forms, and of intervals, that are kept from one call to another. Passes ask again for
#: those of the same loop limits and addresses, which are long where extents are known at run time only.
_MAX_KEPT_RESULTS: Final = 4096
#: The intervals of the variables of an expression, in the order in which the variables occur.
_VarIntervals: TypeAlias = "tuple[tuple[Var, Interval], ...]"


@dataclass(slots=True)
class SimplifierScope:
    """The ranges of variables in a scope, with memoized facts about expressions.  Ranges are
    shared, not copied.

    value_ranges              ranges of variables
    interval_by_expr   intervals of expressions; without memoization the work would be exponential
                       in the depth
    forms              linear forms of index expressions, by identity, each with the expression to
                       keep it alive
    simplified_by_id   simplified expressions by identity, each with the original expression to keep
                       it alive: a shared subexpression is simplified once and stays shared
    """

    value_ranges: Ranges
    interval_by_expr: dict[Expr, Interval] = field(default_factory=dict)
    forms: dict[int, tuple[Expr, LinearForm]] = field(default_factory=dict)
    simplified_by_id: dict[int, tuple[Expr, Expr]] = field(default_factory=dict)


#: What functions take that call each other for the parts of an expression.
RangesOrScope: TypeAlias = "Ranges | SimplifierScope"


def as_simplifier_scope(ranges: RangesOrScope) -> SimplifierScope:
    return ranges if isinstance(ranges, SimplifierScope) else SimplifierScope(ranges)


class _CachedExpr:
    """Base of `LinearForm` with the slot of its expression, once it was requested."""

    __slots__ = ("_expr",)
    _expr: Expr


@frozen
class LinearForm(_CachedExpr):
    """The linear form const + sum(coefficient * atom), without zero coefficients.

    Atoms are variables and nonlinear subexpressions.
    """

    terms: dict[Expr, int] = field(default_factory=dict)
    const: int = 0

    def add_multiple(self, other: LinearForm, factor: int = 1) -> LinearForm:
        """self + factor * other."""
        const = self.const + factor * other.const
        if not other.terms:
            return LinearForm(self.terms, const)
        if not self.terms and factor == 1:
            return LinearForm(other.terms, const)
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + factor * coefficient
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return LinearForm(terms, const)

    def coefficient(self, var: Var) -> int | None:
        """The factor of `var`, None if the expression depends on it in another way too."""
        if any(var in vars_and_buffers_in(atom) for atom in self.terms if not isinstance(atom, Var)):
            return None
        return self.terms.get(var, 0)

    def depends_on(self, var: Var) -> bool:
        return any(var in vars_and_buffers_in(atom) for atom in self.terms)

    def to_expr(self) -> Expr:
        """The sum as an expression, positive terms first, the constant last."""
        try:
            expr = self._expr
        except AttributeError:
            expr = self._sum_of_terms()
            object.__setattr__(self, "_expr", expr)
        return expr

    def _sum_of_terms(self) -> Expr:
        total: Expr | None = None
        terms = [(atom, factor) for atom, c in self.terms.items() if (factor := wrap_to_int64(c))]
        if any(factor < 0 for _, factor in terms):
            terms.sort(key=lambda item: item[1] < 0)
        for atom, c in terms:
            if total is None:
                total = _multiple(atom, c)
            elif _MIN_INDEX < c < 0:
                total = Binary("sub", total, _multiple(atom, -c))
            else:
                total = Binary("add", total, _multiple(atom, c))
        const = wrap_to_int64(self.const)
        if total is None:
            return as_expr(const)
        return total - -const if _MIN_INDEX < const < 0 else total + const


def _multiple(atom: Expr, factor: int) -> Expr:
    """Return `factor * atom` for an atom of a linear form, which is no literal."""
    return atom if factor == 1 else Binary("mul", atom, as_expr(factor, atom))


def linear_form(expr: Expr, ranges: RangesOrScope) -> LinearForm:
    """Return the linear form of an index expression."""
    if isinstance(ranges, SimplifierScope):
        return _linear_form_in_scope(expr, ranges)
    if isinstance(expr, (Const, Var)):
        return _compute_linear_form(expr, SimplifierScope(ranges))
    return _kept_linear_form(expr, _intervals_of_vars_in(expr, ranges))


@lru_cache(_MAX_KEPT_RESULTS)
def _kept_linear_form(expr: Expr, intervals: _VarIntervals) -> LinearForm:
    return _linear_form_in_scope(expr, SimplifierScope(dict(intervals)))


@lru_cache(_MAX_KEPT_RESULTS)
def _kept_bounds_of_atom(atom: Expr, intervals: _VarIntervals) -> Interval:
    return _compute_bounds_of_atom(atom, SimplifierScope(dict(intervals)))


def _intervals_of_vars_in(expr: Expr, ranges: Ranges) -> _VarIntervals:
    """Return the known intervals of the variables of an expression: all that its linear form and its interval depend
    on.
    """
    return tuple([(v, ranges[v]) for v in vars_and_buffers_in(expr) if isinstance(v, Var) and v in ranges])


def _linear_form_in_scope(expr: Expr, ranges: SimplifierScope) -> LinearForm:
    cache_entry = ranges.forms.get(id(expr))
    if cache_entry is None:
        cache_entry = ranges.forms[id(expr)] = expr, _compute_linear_form(expr, ranges)
    return cache_entry[1]


def _compute_linear_form(expr: Expr, ranges: SimplifierScope) -> LinearForm:
    if isinstance(expr, Const):
        return LinearForm({}, int(expr.value))
    if isinstance(expr, Var):
        single = _is_single_value(ranges.value_ranges.get(expr))
        return LinearForm({}, int(ranges.value_ranges[expr][0])) if single else LinearForm({expr: 1})
    if isinstance(expr, Binary):
        function = _LINEAR_FORM_OF_OPERATION.get(expr.op)
        if function is not None:
            a, b = _linear_form_in_scope(expr.a, ranges), _linear_form_in_scope(expr.b, ranges)
            return function(expr.op, a, b, ranges)
    elif isinstance(expr, Unary) and expr.op == "neg":
        return LinearForm().add_multiple(_linear_form_in_scope(expr.a, ranges), -1)
    return _linear_form_of_atom(_simplify_comparison_select_or_operands(expr, ranges))


def _is_single_value(interval: Interval | None) -> bool:
    """Return True if an interval holds exactly one number, as for a loop of one iteration."""
    return interval is not None and interval[0] == interval[1]


def _linear_form_of_atom(expr: Expr) -> LinearForm:
    return LinearForm(const=int(expr.value)) if isinstance(expr, Const) else LinearForm({expr: 1})


def _multiply_linear_forms(_op: str, a: LinearForm, b: LinearForm, _ranges: SimplifierScope) -> LinearForm:
    if not a.terms:
        return _multiply_linear_form(b, a.const)
    if not b.terms:
        return _multiply_linear_form(a, b.const)
    return _linear_form_of_atom(binary("mul", a.to_expr(), b.to_expr()))


def _multiply_linear_form(form: LinearForm, factor: int) -> LinearForm:
    return LinearForm({t: c * factor for t, c in form.terms.items()} if factor else {}, form.const * factor)


def _linear_form_of_division_or_remainder(op: str, a: LinearForm, b: LinearForm, ranges: SimplifierScope) -> LinearForm:
    divisor = b.const
    unknown = b.terms or divisor <= 0 or not _provably_fits_int64(a, ranges)
    if unknown or (op.startswith("trunc") and bounds_of_linear_form(a, ranges)[0] < 0):
        return _linear_form_of_atom(Binary(op, a.to_expr(), b.to_expr()))
    quotient, rest = split_into_quotient_and_remainder(a, divisor)
    low, high = bounds_of_linear_form(rest, ranges)
    inner = _floordiv_with_common_factor_canceled(rest, divisor)
    if low > -math.inf and high < math.inf and low // divisor == high // divisor:
        inner = LinearForm(const=int(low // divisor))
    if op.endswith("div"):
        return quotient.add_multiple(inner)
    if not inner.terms:
        return rest.add_multiple(LinearForm(const=-divisor * inner.const))
    return _floormod_with_common_factor_extracted(rest, divisor)


def split_into_quotient_and_remainder(dividend: LinearForm, divisor: int) -> tuple[LinearForm, LinearForm]:
    """Return (q, r) with a == q * divisor + r, where r has the terms that are not multiples of the
    divisor.
    """
    whole = {t: c // divisor for t, c in dividend.terms.items() if c % divisor == 0}
    rest = {t: c for t, c in dividend.terms.items() if c % divisor}
    return LinearForm(whole, dividend.const // divisor), LinearForm(rest, dividend.const % divisor)


def _divide_by_common_factor(a: LinearForm, divisor: int) -> tuple[int, LinearForm]:
    """Return the greatest common factor of a divisor and all terms, and the sum divided by it."""
    common = math.gcd(divisor, *a.terms.values())
    return common, LinearForm({t: c // common for t, c in a.terms.items()}, a.const // common)


def _floordiv_with_common_factor_canceled(a: LinearForm, divisor: int) -> LinearForm:
    """Return a // divisor with common factors canceled: (4i + 3) // 8 == i // 2; (i // 2) // 3 == i
    // 6.
    """
    common, reduced = _divide_by_common_factor(a, divisor)
    divisor //= common
    if divisor == 1 or not reduced.terms:
        return reduced if divisor == 1 else LinearForm(const=reduced.const // divisor)
    if reduced.const == 0 and len(reduced.terms) == 1:
        atom, c = next(iter(reduced.terms.items()))
        if c == 1 and isinstance(atom, Binary) and atom.op == "floordiv" and isinstance(atom.b, Const):
            return _linear_form_of_atom(binary("floordiv", atom.a, int(atom.b.value) * divisor))
    return _linear_form_of_atom(binary("floordiv", reduced.to_expr(), divisor))


def _floormod_with_common_factor_extracted(a: LinearForm, divisor: int) -> LinearForm:
    common, reduced = _divide_by_common_factor(a, divisor)
    if common == 1:
        return _linear_form_of_atom(binary("floormod", a.to_expr(), divisor))
    inner = binary("floormod", reduced.to_expr(), divisor // common)
    return LinearForm(const=a.const % common).add_multiple(_linear_form_of_atom(inner), common)


def _min_or_max_of_linear_forms(op: str, a: LinearForm, b: LinearForm, ranges: SimplifierScope) -> LinearForm:
    low, high = _bounds_of_difference(a, b, ranges)
    if low >= 0 or high <= 0:
        return a if (low >= 0) == (op == "max") else b
    return _linear_form_of_atom(binary(op, a.to_expr(), b.to_expr()))


#: Functions that compute the linear form of a binary operation from those of its operands.
_LINEAR_FORM_OF_OPERATION: Final[Mapping[str, Callable[[str, LinearForm, LinearForm, SimplifierScope], LinearForm]]] = {
    "add": lambda _op, a, b, _ranges: a.add_multiple(b),
    "sub": lambda _op, a, b, _ranges: a.add_multiple(b, -1),
    "mul": _multiply_linear_forms,
    **dict.fromkeys(("floordiv", "floormod", "truncdiv", "truncmod"), _linear_form_of_division_or_remainder),
    **dict.fromkeys(("min", "max"), _min_or_max_of_linear_forms),
}


def recombine_divmod_terms(form: LinearForm, ranges: RangesOrScope) -> LinearForm:
    """Combine quotients and remainders: x // c * (k * c) + x % c * k == x * k.

    The ranges of variables prove further quotients equal to x // c, for a literal c."""
    for atom, k in form.terms.items():
        match atom:
            case Binary(op="floormod", a=x, b=c) if not isinstance(c, Const):
                product = Binary("mul", Binary("floordiv", x, c), c)
                if form.terms.get(product) == k:
                    both = LinearForm({atom: k, product: k})
                    combined = form.add_multiple(both, -1).add_multiple(linear_form(x, ranges), k)
                    return recombine_divmod_terms(combined, ranges)
            case Binary(op="floormod", a=x, b=Const(value=c)) if int(c) * k in form.terms.values():
                whole = LinearForm({atom: 1}).add_multiple(linear_form(binary("floordiv", x, c), ranges), int(c))
                has_all_terms = all(form.terms.get(t) == k * factor for t, factor in whole.terms.items())
                if has_all_terms and len(whole.terms) == 2:
                    return recombine_divmod_terms(
                        form.add_multiple(whole, -k).add_multiple(linear_form(x, ranges), k), ranges
                    )
    return form


def bounds(expr: Expr, ranges: RangesOrScope) -> Interval:
    """Return the smallest and largest value of an integer expression; infinite if unknown or if it
    may wrap around.
    """
    if expr.lanes > 1:
        return _UNBOUNDED_INTERVAL
    if isinstance(expr, Const) and expr.dtype == INDEX:
        return int(expr.value), int(expr.value)
    if isinstance(expr, Var):
        known = ranges.value_ranges if isinstance(ranges, SimplifierScope) else ranges
        return known.get(expr, _UNBOUNDED_INTERVAL)
    if expr.dtype != INDEX:
        return _bounds_of_atom(expr, ranges)
    form = linear_form(expr, ranges)
    try:
        low, high = bounds_of_linear_form(form, ranges)
    except OverflowError:  # the sum of an infinity and an integer that no float can hold
        return _UNBOUNDED_INTERVAL
    fits = (low >= _MIN_INDEX and high <= _MAX_INDEX) or _provably_fits_int64(form, ranges)
    return (low, high) if fits else _UNBOUNDED_INTERVAL


def bounds_of_linear_form(form: LinearForm, ranges: RangesOrScope) -> Interval:
    """Return the smallest and largest value of a linear form; infinite if unknown."""
    low: Bound = form.const
    high: Bound = form.const
    for atom, c in form.terms.items():
        least, greatest = _bounds_of_atom(atom, ranges)
        low, high = (low + c * least, high + c * greatest) if c > 0 else (low + c * greatest, high + c * least)
    return low, high


def _provably_fits_int64(form: LinearForm, ranges: RangesOrScope) -> bool:
    """Return True if a linear form provably does not overflow."""
    low = high = form.const
    for atom, c in form.terms.items():
        least, greatest = _bounds_of_atom(atom, ranges)
        ends = c * int(max(least, _MIN_INDEX)), c * int(min(greatest, _MAX_INDEX))
        low, high = low + min(ends), high + max(ends)
    return low >= _MIN_INDEX and high <= _MAX_INDEX


def _bounds_of_difference(a: LinearForm, b: LinearForm, ranges: SimplifierScope) -> Interval:
    """Return the smallest and largest value of a - b without overflow; infinite if a or b may
    overflow.
    """
    exact = _provably_fits_int64(a, ranges) and _provably_fits_int64(b, ranges)
    difference = recombine_divmod_terms(a.add_multiple(b, -1), {})
    return (
        bounds_of_linear_form(difference, ranges)
        if exact or (not difference.terms and not difference.const)
        else _UNBOUNDED_INTERVAL
    )


def _bounds_of_atom(atom: Expr, ranges: RangesOrScope) -> Interval:
    if isinstance(atom, Var):
        return bounds(atom, ranges)
    if not isinstance(ranges, SimplifierScope):
        return _kept_bounds_of_atom(atom, _intervals_of_vars_in(atom, ranges))
    known = ranges.interval_by_expr.get(atom)
    if known is None:
        known = ranges.interval_by_expr[atom] = _compute_bounds_of_atom(atom, ranges)
    return known


def _compute_bounds_of_atom(atom: Expr, ranges: SimplifierScope) -> Interval:
    match atom:
        case Binary(op="floordiv" | "truncdiv" | "floormod" | "truncmod", b=Const(value=divisor)) if divisor > 0:
            return _bounds_of_division_or_remainder(atom.op, bounds(atom.a, ranges), int(divisor))
        case Binary(op="floordiv" | "floormod") if bounds(atom.a, ranges)[0] >= 0 and bounds(atom.b, ranges)[0] >= 0:
            # a divisor of 0 has no quotient
            (low, high), (least, most) = bounds(atom.a, ranges), bounds(atom.b, ranges)
            if atom.op == "floormod":
                return 0, max(min(high, most - 1), 0)
            return 0 if most == math.inf else low // max(most, 1), _floordiv_bound(high, int(max(least, 1)))
        case Binary(op="min" | "max"):
            pick = min if atom.op == "min" else max
            (a, b), (c, d) = bounds(atom.a, ranges), bounds(atom.b, ranges)
            return pick(a, c), pick(b, d)
        case Binary(op="mul"):
            ends = [_multiply_bounds(x, y) for x in bounds(atom.a, ranges) for y in bounds(atom.b, ranges)]
            return _interval_unless_it_wraps(atom, min(ends), max(ends))
        case Select():
            (a, b), (c, d) = bounds(atom.a, ranges), bounds(atom.b, ranges)
            return min(a, c), max(b, d)
        case Cast() if not atom.a.dtype.is_float:
            low, high = _bounds_of_atom(atom.a, ranges) if atom.a.dtype != INDEX else bounds(atom.a, ranges)
            return _interval_unless_it_wraps(atom, low, high)
        case _:
            return _dtype_bounds_unless_float_or_index(atom)


def _interval_unless_it_wraps(expr: Expr, low: Bound, high: Bound) -> Interval:
    """Return the interval of the exact value of an expression; all values of its dtype if that may wrap around."""
    if expr.dtype.is_float:
        return _UNBOUNDED_INTERVAL
    fits = int(expr.dtype.min) <= low and high <= int(expr.dtype.max)
    return (low, high) if fits else _dtype_bounds_unless_float_or_index(expr)


def _dtype_bounds_unless_float_or_index(expr: Expr) -> Interval:
    if expr.dtype.is_float or expr.dtype == INDEX:
        return _UNBOUNDED_INTERVAL
    return int(expr.dtype.min), int(expr.dtype.max)


def _multiply_bounds(x: Bound, y: Bound) -> Bound:
    return 0 if 0 in (x, y) else x * y


def _bounds_of_division_or_remainder(op: str, operand: Interval, divisor: int) -> Interval:
    low, high = operand
    if op == "floormod":
        return (low, high) if low >= 0 and high < divisor else (0, divisor - 1)
    if op == "truncmod":
        return (0 if low >= 0 else 1 - divisor), (0 if high <= 0 else min(high, divisor - 1))
    rounded = _floordiv_bound if op == "floordiv" else _truncdiv_bound
    return rounded(low, divisor), rounded(high, divisor)


def _floordiv_bound(value: Bound, divisor: int) -> Bound:
    return value if math.isinf(value) else value // divisor


def _truncdiv_bound(value: Bound, divisor: int) -> Bound:
    return -_floordiv_bound(-value, divisor) if value < 0 else _floordiv_bound(value, divisor)


def simplify(expr: Expr, ranges: RangesOrScope) -> Expr:
    """Simplify an expression, given the inclusive ranges of its variables.

    Integer index arithmetic (int64 scalars) is normalized; floats are left as they are written, but
    for their indices and conditions.
    """
    ranges = as_simplifier_scope(ranges)
    if isinstance(expr, Const):
        return expr
    cache_entry = ranges.simplified_by_id.get(id(expr))
    if cache_entry is None:
        index = expr.dtype == INDEX and expr.lanes == 1
        simple = (
            recombine_divmod_terms(linear_form(expr, ranges), {}).to_expr()
            if index
            else _simplify_comparison_select_or_operands(expr, ranges)
        )
        cache_entry = ranges.simplified_by_id[id(expr)] = expr, simple
    return cache_entry[1]


def _simplify_comparison_select_or_operands(expr: Expr, ranges: SimplifierScope) -> Expr:
    match expr:
        case Var() | Const():
            return expr
        case Binary() if expr.op in COMPARE and expr.a.dtype == INDEX and expr.lanes == 1:
            a, b = linear_form(expr.a, ranges), linear_form(expr.b, ranges)
            always, never = _COMPARISON_OUTCOME_BY_BOUNDS[expr.op](*_bounds_of_difference(a, b, ranges))
            return Const(always, BOOL) if always or never else binary(expr.op, a.to_expr(), b.to_expr())
        case Select():
            cond = simplify(expr.cond, ranges)
            if isinstance(cond, Const):
                return simplify(expr.a if cond.value else expr.b, ranges)
            return select(cond, simplify(expr.a, ranges), simplify(expr.b, ranges))
        case _:
            return with_operands(expr, tuple(simplify(o, ranges) for o in operands(expr)))


#: Whether `form op 0` holds for every d of [low, high], and whether for none.
_COMPARISON_OUTCOME_BY_BOUNDS: Final[Mapping[str, Callable[[Bound, Bound], tuple[bool, bool]]]] = {
    "lt": lambda low, high: (high < 0, low >= 0),
    "le": lambda low, high: (high <= 0, low > 0),
    "gt": lambda low, high: (low > 0, high <= 0),
    "ge": lambda low, high: (low >= 0, high < 0),
    "eq": lambda low, high: (low == high == 0, low > 0 or high < 0),
    "ne": lambda low, high: (low > 0 or high < 0, low == high == 0),
}


def conjuncts(cond: Expr) -> Iterator[Expr]:
    """Yield the conditions whose conjunction is `cond`."""
    stack = [cond]
    while stack:
        node = stack.pop()
        if isinstance(node, Binary) and node.op == "and" and node.dtype == BOOL:
            stack += [node.b, node.a]
        else:
            yield node


def comparison_as_nonnegative_form(cond: Expr, ranges: RangesOrScope) -> LinearForm | None:
    """Return d such that the index comparison `cond` is equivalent to d >= 0; None for other
    conditions.
    """
    if not (isinstance(cond, Binary) and cond.op in ("lt", "le", "gt", "ge") and cond.a.dtype == INDEX):
        return None
    ranges = as_simplifier_scope(ranges)
    a, b = linear_form(cond.a, ranges), linear_form(cond.b, ranges)
    difference = a.add_multiple(b, -1)
    if not all(_provably_fits_int64(form, ranges) for form in (a, b, difference)):
        return None
    if cond.op in ("lt", "le"):
        difference = LinearForm().add_multiple(difference, -1)
    return _remove_floordiv_from_nonnegative_form(
        difference.add_multiple(LinearForm(const=-1)) if cond.op in ("lt", "gt") else difference, ranges
    )


def _remove_floordiv_from_nonnegative_form(form: LinearForm, ranges: SimplifierScope) -> LinearForm:
    """Return a linear form that is non-negative exactly when d is, without the division if d is
    +-(x // c) + k.
    """
    match list(form.terms.items()):
        case [(Binary(op="floordiv", a=x, b=Const(value=c)), 1 | -1 as sign)] if c > 0:
            c = int(c)
            new_form = LinearForm(const=form.const * c + (c - 1 if sign < 0 else 0)).add_multiple(
                linear_form(x, ranges), sign
            )
            return new_form if _provably_fits_int64(new_form, ranges) else form
    return form
