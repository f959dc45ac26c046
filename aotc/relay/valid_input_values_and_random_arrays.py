# SPDX-License-Identifier: Apache-2.0
"""Domains of model inputs (the values that make sense), and seeded random arrays with values from
them.

ValueDomain(0, 511, firm=True)               # a row of a table with 512 rows
ValueDomain(0, 1, whole=True)                # a mask of ones and zeros, whatever its dtype
ValueDomain(sides=(4.0,))                    # compared with 4: some values on either side of it
random_array_in_domain(np.random.default_rng(0), TensorType((1, 128), "int64"), ValueDomain(0, 511, firm=True))
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, Array, TensorType, frozen

#: Largest random integer for an input of unknown meaning: larger ones could be indices out of
#: range.
MAX_UNKNOWN_INTEGER: Final = 7
#: Largest size in bytes of an integer type that is drawn from its whole range: samples, pixels, or
#: quantized values.
MAX_FULL_RANGE_INTEGER_BYTES: Final = 2
#: Largest magnitude of a constant that widens the range of random floats compared with it.
MAX_SPREAD_MAGNITUDE: Final = 1e4
#: Largest number of constants stored with which values are compared.
MAX_STORED_POINTS: Final = 16
#: Fraction of elements that are set to a constant that the model tests for equality.
TESTED_VALUE_FRACTION: Final = 0.5

Gap = tuple[float, float]


@frozen
class ValueDomain:
    """A set of numbers: an interval without a gap, with points that random values should represent.

    lo, hi   the least and the greatest value
    whole    True: integers only
    gap      an open interval inside that is excluded, e.g. around zero for divisors
    sides    points on both sides of which values are wanted; for integers these values themselves
    values   values that some elements are to have exactly, because the model tests for them
    firm     True: the model has no meaning outside of the interval, e.g. for indices out of range
    """

    lo: float = -math.inf
    hi: float = math.inf
    whole: bool = False
    gap: Gap | None = None
    sides: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    firm: bool = False

    @property
    def has_finite_interval(self) -> bool:
        """True if both ends of the interval are finite."""
        return math.isfinite(self.lo) and math.isfinite(self.hi)

    @property
    def is_unconstrained(self) -> bool:
        """True if nothing is known about the values of the domain."""
        return self == ValueDomain()

    @property
    def to_json_fields(self) -> dict[str, Any]:
        """The fields of the domain that differ from the defaults, as JSON values;
        `value_domain_from_json` reads them.
        """
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


def value_domain_from_json(json_fields: Any) -> ValueDomain:
    """Return the domain of input values from the JSON form written by `to_json_fields`; raise
    AotcError (code "load") otherwise.
    """
    numbers = {"lo", "hi"}, {"gap", "sides", "values"}, {"whole", "firm"}
    known = isinstance(json_fields, dict) and {*json_fields} <= set().union(*numbers)
    if not known or not all(_is_valid_json_field(numbers, key, value) for key, value in json_fields.items()):
        raise AotcError("load", "the metadata of the project gives no values for an input", hint="compile it again")
    row: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in json_fields.items()}
    domain = ValueDomain(**row)
    if domain.lo > domain.hi:
        raise AotcError(
            "load", "the metadata of the project gives an empty range for an input", hint="compile it again"
        )
    return domain


def _is_valid_json_field(number_list_and_bool_keys: tuple[set[str], ...], key: str, value: Any) -> bool:
    """Return True if a JSON value is valid for a field: a number, a list of numbers (two for a
    gap), or a bool.
    """
    if key in number_list_and_bool_keys[0]:
        return _is_json_number_within_limit(value)
    if key in number_list_and_bool_keys[1]:
        return (
            isinstance(value, list)
            and all(map(_is_json_number_within_limit, value))
            and (key != "gap" or len(value) == 2)
        )
    return isinstance(value, bool)


def _is_json_number_within_limit(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2.0**1000


UNCONSTRAINED_DOMAIN: Final = ValueDomain()
ZERO_ONE_DOMAIN: Final = ValueDomain(0, 1, whole=True)


def _thin_out_points(points: Iterable[float]) -> tuple[float, ...]:
    """Return the distinct points in ascending order; if they are more than MAX_STORED_POINTS, return
    that many of them: the first, the last, and evenly spaced ones in between.
    """
    distinct_points = sorted(set(points))
    if len(distinct_points) <= MAX_STORED_POINTS:
        return tuple(distinct_points)
    return tuple(distinct_points[round(k)] for k in np.linspace(0, len(distinct_points) - 1, MAX_STORED_POINTS))


def intersect_value_domains(domains: Iterable[ValueDomain]) -> ValueDomain:
    """Return the domain of values that satisfies all uses of a model input.

    Intervals are intersected. If two intervals are disjoint, they belong to alternatives, as in
    where(x < 0, x + n, x): a firm one takes precedence, of two firm ones the one without negative
    numbers.
    """
    constraints = [d for d in domains if not d.is_unconstrained]
    ordered = sorted(constraints, key=lambda d: (not d.firm, d.lo < 0))
    lo, hi, firm, whole = -math.inf, math.inf, False, False
    for d in ordered:
        if max(lo, d.lo) <= min(hi, d.hi):
            lo, hi, firm = max(lo, d.lo), min(hi, d.hi), firm or d.firm
            whole = whole or (d.whole and d.has_finite_interval)
    sides = _thin_out_points(p for d in constraints for p in d.sides if lo <= p <= hi)
    values = _thin_out_points(p for d in constraints for p in d.values if lo <= p <= hi)
    gap = next((d.gap for d in constraints if d.gap is not None), None)
    return ValueDomain(lo, hi, whole, gap, sides, values, firm)


def value_domain_before_affine_map(
    domain_of_result: ValueDomain, slope: float, offset: float, *, is_integer: bool = False
) -> ValueDomain:
    """Return the domain of x for which slope * x + offset is in `domain_of_result`; exact values
    are preserved for integers only.
    """
    if not (math.isfinite(slope) and math.isfinite(offset)) or slope == 0:
        return UNCONSTRAINED_DOMAIN

    def invert_affine_map(y: float) -> float:
        # adding 0.0 turns -0.0 into 0.0
        return (y - offset) / slope + 0.0

    lo, hi = sorted((invert_affine_map(domain_of_result.lo), invert_affine_map(domain_of_result.hi)))
    gap = domain_of_result.gap and (
        min(map(invert_affine_map, domain_of_result.gap)),
        max(map(invert_affine_map, domain_of_result.gap)),
    )
    sides = _thin_out_points(
        map(invert_affine_map, (*domain_of_result.sides, *(() if is_integer else domain_of_result.values)))
    )
    values = _thin_out_points(map(invert_affine_map, domain_of_result.values)) if is_integer else ()
    whole = domain_of_result.whole and abs(slope) == 1 and float(offset).is_integer()
    return ValueDomain(lo, hi, whole, gap, sides, values, domain_of_result.firm)


# --- random values


def random_array_in_domain(
    rng: np.random.Generator, ty: TensorType, domain: ValueDomain = UNCONSTRAINED_DOMAIN
) -> Array:
    """Return a random array of a static tensor type with values from a domain.

    Floats are standard normal as far as the domain allows, integers uniform between the ends of the
    domain.
    """
    if ty.dtype.is_float and not (domain.whole and domain.has_finite_interval):
        values = _random_floats_in_domain(rng, ty.static_shape, domain)
    else:
        values = _random_integers_in_domain(rng, ty, domain)
    return np.asarray(values).astype(ty.dtype.numpy)


def _random_floats_in_domain(rng: np.random.Generator, shape: tuple[int, ...], domain: ValueDomain) -> Array:
    reached = [abs(p) for p in (*domain.sides, *domain.values) if abs(p) <= MAX_SPREAD_MAGNITUDE]
    x = rng.standard_normal(shape) * max([1.0, *reached])
    if domain.has_finite_interval:
        inside = (domain.lo <= x) & (x <= domain.hi)
        uniform = rng.uniform(domain.lo, domain.hi, shape)
        x = np.where(inside & (not domain.firm), x, uniform)
    x = np.where(x < domain.lo, 2 * domain.lo - x, x)
    x = np.where(x > domain.hi, 2 * domain.hi - x, x)
    return np.asarray(_mirror_elements_out_of_gap(domain.gap, _insert_values_tested_by_model(rng, x, domain)))


def _insert_values_tested_by_model(rng: np.random.Generator, x: Any, domain: ValueDomain) -> Any:
    """Return an array with some elements replaced by values for which the model tests."""
    if not domain.values:
        return x
    return np.where(rng.random(np.shape(x)) < TESTED_VALUE_FRACTION, rng.choice(domain.values, np.shape(x)), x)


def _mirror_elements_out_of_gap(gap: Gap | None, x: Any) -> Any:
    """Return an array with elements inside the gap of a domain mirrored at the gap's nearer end."""
    if gap is None:
        return x
    low, high = gap
    inside, upper = (low < x) & (x < high), x >= (low + high) / 2
    return np.where(inside, np.where(upper, 2 * high - x, 2 * low - x), x)


def _random_integers_in_domain(rng: np.random.Generator, ty: TensorType, domain: ValueDomain) -> Array:
    lo, hi = drawn_integer_range(ty, domain)
    shape = ty.static_shape
    x = rng.integers(lo, hi, shape, endpoint=True)
    if hi - lo == 1 and shape and shape[-1] > 1:
        x = _put_both_values_in_every_row(rng, x, lo, hi)
    if domain.gap is not None:
        low, high = domain.gap
        inside = (low < x) & (x < high)
        # the least integer above the gap
        x = np.where(inside, min(math.ceil(high), hi), x)
    return np.asarray(_insert_values_tested_by_model(rng, x, domain))


def _put_both_values_in_every_row(rng: np.random.Generator, x: Array, lo: int, hi: int) -> Array:
    """Return two-valued flags with both values in every row: a softmax over a completely masked row
    is undefined.
    """
    rows = x.reshape(-1, x.shape[-1])
    places = rng.permuted(np.tile(np.arange(x.shape[-1]), (len(rows), 1)), axis=1)[:, :2]
    np.put_along_axis(rows, places, np.array([[lo, hi]]), axis=1)
    return np.asarray(rows.reshape(x.shape))


def drawn_integer_range(ty: TensorType, domain: ValueDomain) -> tuple[int, int]:
    """Return the least and the greatest integer, both inclusive, that is drawn for a type and a
    domain.
    """
    dtype = ty.dtype
    if dtype.is_bool:
        return 0, 1
    least, most = (-(2**53), 2**53) if dtype.is_float else (int(dtype.min), int(dtype.max))
    points = (*domain.sides, *domain.values)
    lo, hi = domain.lo, domain.hi
    if dtype.itemsize <= MAX_FULL_RANGE_INTEGER_BYTES:
        default = float(least), float(most)
    elif points:
        # several constants beginning with 0 are positions compared with a length, which is at least
        # 1
        counted = len(points) > 2 and min(points) == 0
        default = (1.0 if counted else min(points)), max(points)
    else:
        default = 0.0, float(MAX_UNKNOWN_INTEGER)
    if not domain.has_finite_interval:
        lo, hi = _clamp_range_to_interval(default, lo, hi)
    lo, hi = max(math.ceil(lo), least), min(math.floor(hi), most)
    return int(min(lo, hi)), int(max(lo, hi))


def _clamp_range_to_interval(default_range: tuple[float, float], lo: float, hi: float) -> tuple[float, float]:
    """Return the part of a default range inside an interval with an infinite end.

    If they are disjoint, a range of the default's width at the finite end is returned.
    """
    width = default_range[1] - default_range[0]
    if default_range[1] < lo:
        return lo, lo + width
    if default_range[0] > hi:
        return hi - width, hi
    return max(default_range[0], lo), min(default_range[1], hi)
