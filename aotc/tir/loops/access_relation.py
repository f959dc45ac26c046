# SPDX-License-Identifier: Apache-2.0
"""The access relation of a buffer: which iterations of a loop nest access which elements.

An access is the relation {x -> form(x) + l : x in domain, 0 <= l < lanes}. The domain has a variable
for each loop, with an interval, a step, and upper bounds that are linear forms of other variables;
conditions restrict it further. Quotients and remainders by constants are additional dimensions
(`dependence_system`). Extents may be variables that have one value in all iterations. The relation of
a buffer is the union of its accesses. Its questions are answered True only if that is proven:

    16 * i + c, 0 <= c < 16        # injective in i: no two iterations have a common element
    16 * i + c, 0 <= c < 17        # not injective in i: elements 16, 32, ...
    16 * i + c, 0 <= c < 8         # disjoint from 16 * i + 8 + c

Method: a common element of two accesses is a solution of a system of linear equations over integers,
which `integer_system` proves to have none. Where that proof fails, `point_enumeration` computes the
elements of all iterations, up to `MAX_ENUMERATED_POINTS`. A proof that fails takes long: first,
`common_element_search` looks for a common element. Sources: dependence systems, Maydan,
Hennessy and Lam, "Efficient and exact data dependence analysis" (1991); relations with existentially
quantified dimensions for quotients, Pugh, "The Omega test" (1991).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import frozen
from aotc.tir import Expr, LinearForm, Var, bounds_of_linear_form
from aotc.tir.loops.access_coverage import is_load_covered
from aotc.tir.loops.buffer_access import Access, is_invariant
from aotc.tir.loops.common_element_search import addresses_at_first_iterations
from aotc.tir.loops.dependence_system import IsShared, IterationPoint
from aotc.tir.loops.integer_constraints import LinearSum, Terms
from aotc.tir.loops.integer_system import IntegerSystem, divide_bound
from aotc.tir.loops.offset_dimensions import OffsetDimension, split_offsets_into_dimensions
from aotc.tir.loops.point_enumeration import MAX_ENUMERATED_POINTS, NotEnumerableError
from aotc.tir.simplify import Bound, Interval

Float64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
#: Largest number of pairs of pieces of two relations that are compared.
_MAX_COMPARED_PAIRS: Final = 256
#: Number of values of each variable that are enumerated first.
_VALUES_OF_FIRST_ENUMERATION: Final = 3
#: Largest number of pairs of pieces of which least distances are computed, and of times that the interval
#: of a least distance is halved.
_MAX_PAIRS_OF_DISTANCES: Final = 16
_MAX_BISECTIONS: Final = 6


@frozen(eq=False)
class _Piece:
    """Accesses whose addresses differ by constants only.

    access       one of the accesses
    offset       the smallest constant
    dimensions   the dimensions of the other offsets: an offset is a sum of multiples of their distances
    is_write     True if one of the accesses is a store
    """

    access: Access
    offset: int
    dimensions: tuple[OffsetDimension, ...]
    is_write: bool

    @property
    def elements_key(self) -> tuple[object, ...]:
        """A key that is equal for pieces of the same elements in the same iterations."""
        return (*_iterations_key(self.access), self.offset, self.dimensions)


@dataclass
class AccessRelation:
    """The accesses of some statements to one buffer. Without accesses, nothing is known."""

    accesses: list[Access] = field(default_factory=list)

    def accesses_of_kind(self, *, is_write: bool) -> AccessRelation:
        """Return the relation of the stores alone, or of the loads alone."""
        return AccessRelation([access for access in self.accesses if access.is_write == is_write])

    def bounds(self) -> Interval:
        """Return an interval that includes all accessed elements."""
        first, last = math.inf, -math.inf
        for access in self.accesses:
            first = min(first, bounds_of_linear_form(access.form, access.ranges)[0])
            last = max(last, access.upper_bound_of_address() + access.lanes - 1)
        return first, last

    def bounds_by_iteration(self, loops: Sequence[tuple[Var, range]]) -> tuple[Float64Array, Float64Array]:
        """Return the first and the last accessed element in each iteration of some loops, as arrays
        with an axis for each loop; infinities where they are unknown.

        loops    the loop variables and their values, the outermost first
        """
        first, last = np.array(math.inf), np.array(-math.inf)
        for access in self.accesses:
            by_iteration: Float64Array = np.zeros(())
            rest = access.form
            for axis, (var, values) in enumerate(loops):
                factor = access.form.coefficient(var)
                if factor:
                    column = np.array(values, np.float64).reshape(-1, *[1] * (len(loops) - axis - 1))
                    by_iteration = by_iteration + factor * column
                    rest = rest.add_multiple(LinearForm({var: factor}), -1)
            low, high = bounds_of_linear_form(rest, access.ranges)
            first = np.minimum(first, by_iteration + low)
            last = np.maximum(last, by_iteration + high + access.lanes - 1)
        return first, last

    def is_within(self, size: int | LinearForm) -> bool:
        """Return True if all elements are proven to be among the first `size` elements of the buffer.

        size    a number, or a linear form of variables that have one value in all iterations
        """
        return bool(self.accesses) and all(_is_access_within(access, size) for access in self.accesses)

    def is_entirely_above(self, lower: AccessRelation) -> bool:
        """Return True if every element is at a higher address than every element of `lower`."""
        return bool(self.accesses and lower.accesses) and lower.bounds()[1] < self.bounds()[0]

    def is_disjoint_from(self, other: AccessRelation, fixed: Container[Var] = ()) -> bool:
        """Return True if no element that one relation writes is accessed by the other one, in any two
        iterations.

        fixed    variables that have one value in all iterations of both relations
        """
        if not self.accesses or not other.accesses:
            return False
        (first, last), (other_first, other_last) = self.bounds(), other.bounds()
        if last < other_first or other_last < first:
            return True
        pairs = _pairs_within_limit(self.accesses, other.accesses)
        if pairs is None or _has_pair_with_common_element(pairs, fixed):
            return False
        return all(_are_pieces_disjoint(a, b, fixed) for a, b in pairs)

    def covers(self, other: AccessRelation, fixed: Container[Var] = ()) -> bool:
        """Return True if every execution accesses all elements that `other` may access.

        fixed    variables that have one value in all iterations of both relations

        Both relations are enumerated; conditions make the accesses of this one uncertain. Where extents
        are known at run time only, `access_coverage` proves it for all their values.
        """
        return self._covers_at_points(other) or (
            any(access.loops is not None and not access.is_certain for access in self.accesses)
            and all(is_load_covered(self.accesses, access, fixed) for access in other.accesses)
        )

    def _covers_at_points(self, other: AccessRelation) -> bool:
        """Return True if enumeration shows that every execution accesses all elements that `other` may
        access.
        """
        try:
            needed = [access.accessed_elements({}, None)[0] for access in other.accesses]
        except NotEnumerableError:
            return False
        certain: set[int] = set()
        for access in self.accesses if needed else ():
            with suppress(NotEnumerableError):
                certain.update(access.certain_elements().tolist())
        return all(certain.issuperset(elements.ravel().tolist()) for elements in needed)

    def least_distance(
        self,
        later: AccessRelation,
        element_bytes: tuple[int, int],
        fixed: Container[Var],
        loop: tuple[Var, int] | None = None,
    ) -> Bound:
        """Return by how many bytes the memory of the stores must begin before that of the loads, so that
        no load reads what a store has overwritten; infinity if no distance is proven.

        later           loads that follow the stores of this relation
        element_bytes   bytes of an element that is stored, and of one that is loaded
        fixed           variables that have one value in all iterations of both relations
        loop            a loop variable and the distance of its values, where only the loads of a later
                        iteration follow a store; None if all loads follow

        Every greater distance has this property, too. It holds for all values of extents that are known
        at run time only. A negative distance lets the memory of the stores begin after that of the loads.
        """
        if not self.accesses or not later.accesses:
            return math.inf
        if loop is not None and all(a.ranges[loop[0]][1] - a.ranges[loop[0]][0] < loop[1] for a in self.accesses):
            return -math.inf  # there is one iteration at most
        pairs = _pairs_within_limit(self.accesses, later.accesses, _MAX_PAIRS_OF_DISTANCES)
        if pairs is None:
            return math.inf
        least: Bound = -math.inf
        for store, load in pairs:
            question = _DistanceQuestion(store, load, element_bytes, fixed, loop)
            least = max(least, question.least_distance_above(least))
        return least

    def is_injective(self, var: Var, step: int, fixed: Container[Var]) -> bool:
        """Return True if no element that is written for one value of a loop variable is accessed for
        another value of it.

        var      the variable
        step     the distance of its values
        fixed    variables that have one value in all iterations
        """
        if not self.accesses:
            return False
        if all(a.ranges[var][1] - a.ranges[var][0] < step for a in self.accesses):
            return True  # there is one iteration at most
        if any(a.is_write and not a.depends_on(var) for a in self.accesses):
            return False
        pairs = _pairs_within_limit(self.accesses, self.accesses)
        if pairs is not None and all(
            _are_iterations_disjoint(a, b, var, step, fixed) for a, b in _unequal_pairs(pairs)
        ):
            return True
        # a few values of each variable usually show that two iterations access an element
        return all(self._is_injective_at_points(var, fixed, n) for n in (_VALUES_OF_FIRST_ENUMERATION, None))

    def _is_injective_at_points(self, var: Var, fixed: Container[Var], max_values: int | None) -> bool:
        """Return True if enumeration shows that no element that is written for one value of a loop
        variable is accessed for another value, at the points with at most `max_values` values of each
        variable.
        """
        # a number that all iterations subtract from all addresses changes no answer
        invariant = {term: c for term, c in self.accesses[0].form.terms.items() if is_invariant(term, fixed)}
        try:
            enumerated = [(a, *a.accessed_elements(invariant, var, max_values)) for a in self.accesses]
        except NotEnumerableError:
            return False
        filled = [elements for _, elements, _ in enumerated if elements.size]
        low, high = (min(int(e.min()) for e in filled), max(int(e.max()) for e in filled)) if filled else (0, 0)
        if high - low > MAX_ENUMERATED_POINTS:
            return False
        # the least value of the variable for which each element is written; no other value may access it
        unwritten = np.iinfo(np.int64).max
        writer = np.full(high - low + 1, unwritten)
        for access, elements, values in enumerated:
            if access.is_write:
                np.minimum.at(writer, elements - low, values[:, None])
        return all(
            bool(((writer[elements - low] == unwritten) | (writer[elements - low] == values[:, None])).all())
            for _, elements, values in enumerated
        )


def _iterations_key(access: Access) -> tuple[object, ...]:
    """Return a key that is equal for accesses in the same iterations whose addresses differ by constants only."""
    return frozenset(access.form.terms.items()), id(access.ranges), id(access.lasts), access.conditions


def _pieces_of_accesses(accesses: Iterable[Access], *, merges_offsets: bool) -> list[_Piece]:
    """Return accesses as pieces; `merges_offsets` includes the elements between the accesses of a
    piece.
    """
    groups: dict[object, tuple[Access, set[tuple[int, int]]]] = {}
    for access in accesses:
        key = (*_iterations_key(access), access.is_write)
        groups.setdefault(key, (access, set()))[1].add((access.form.const, access.lanes))
    return [
        _Piece(access, offset, dimensions, access.is_write)
        for access, intervals in groups.values()
        for offset, dimensions in split_offsets_into_dimensions(intervals, merges_offsets=merges_offsets)
    ]


def _pairs_within_limit(
    a: Sequence[Access], b: Sequence[Access], most: int = _MAX_COMPARED_PAIRS
) -> list[tuple[_Piece, _Piece]] | None:
    """Return the pairs of a piece of `a` and a piece of `b` of which at least one is written; None if
    there are more than `most`.
    """
    for merges_offsets in (False, True):
        pieces = _pieces_of_accesses(a, merges_offsets=merges_offsets)
        others = pieces if a is b else _pieces_of_accesses(b, merges_offsets=merges_offsets)
        if len(pieces) * len(others) <= most:
            return [(p, q) for p in pieces for q in others if p.is_write or q.is_write]
    return None


def _unequal_pairs(pairs: Iterable[tuple[_Piece, _Piece]]) -> Iterable[tuple[_Piece, _Piece]]:
    """Return pairs of pieces, one of those that ask for the same elements: a load from where a store writes needs no
    proof of its own.
    """
    return {(a.elements_key, b.elements_key): (a, b) for a, b in pairs}.values()


def _has_pair_with_common_element(pairs: Iterable[tuple[_Piece, _Piece]], fixed: Container[Var]) -> bool:
    """Return True if a few iterations show that the pieces of a pair have a common element."""
    addresses: dict[_Piece, frozenset[int]] = {}
    for pair in pairs:
        for piece in pair:
            if piece not in addresses:
                addresses[piece] = addresses_at_first_iterations(piece.access, piece.offset, piece.dimensions, fixed)
        if not addresses[pair[0]].isdisjoint(addresses[pair[1]]):
            return True
    return False


def _are_pieces_disjoint(a: _Piece, b: _Piece, fixed: Container[Var]) -> bool:
    """Return True if two pieces are proven to have no common element."""
    system, a_point, b_point = _any_two_iterations(a, b, fixed)
    return _is_address_equation_unsolvable(system, a, a_point, b, b_point)


def _are_iterations_disjoint(a: _Piece, b: _Piece, var: Var, step: int, fixed: Container[Var]) -> bool:
    """Return True if a piece in one iteration has no common element with another piece in a later
    iteration of a loop.
    """
    system, first, second = _iteration_and_later_one(a, b, var, step, fixed)
    return _is_address_equation_unsolvable(system, a, first, b, second)


@frozen(eq=False)
class _DistanceQuestion:
    """The question for the least distance of one piece of stores from one of loads; see
    `AccessRelation.least_distance` for the fields.
    """

    store: _Piece
    load: _Piece
    element_bytes: tuple[int, int]
    fixed: Container[Var]
    loop: tuple[Var, int] | None

    def least_distance_above(self, known: Bound) -> Bound:
        """Return the least distance in bytes that is proven, infinity if none is; at most `known` if the
        least distance may be less than that.

        The bounds of both addresses prove a distance. Lesser ones are tried: those of the constant offsets,
        which are exact for most loops, then those between the last one without a proof and the least one
        with a proof.
        """
        stored, loaded = self.element_bytes
        last = self.store.offset + sum(distance * (count - 1) for distance, count in self.store.dimensions)
        last_form = LinearForm(self.store.access.form.terms, last)
        first_form = LinearForm(self.load.access.form.terms, self.load.offset)
        proven = (bounds_of_linear_form(last_form, self.store.access.ranges)[1] + 1) * stored
        proven -= bounds_of_linear_form(first_form, self.load.access.ranges)[0] * loaded
        if proven <= known:
            return known
        unproven: Bound = -math.inf
        candidates = {known} if known > -math.inf else set()
        candidates |= {end * stored - self.load.offset * loaded for end in (self.store.offset, last + 1)}
        for candidate in sorted(candidates):
            if known <= candidate < proven:
                if self.is_proven(int(candidate)):
                    return candidate
                unproven = candidate
        for _ in range(_MAX_BISECTIONS if -math.inf < unproven and proven < math.inf else 0):
            middle = int(unproven + proven) // 2
            if middle == unproven:
                break
            if self.is_proven(middle):
                proven = middle
            else:
                unproven = middle
        return proven

    def is_proven(self, distance: int) -> bool:
        """Return True if no byte of an element that is stored is proven to be `distance` or more bytes after
        the begin of an element that is loaded later.
        """
        system, first, second = (
            _any_two_iterations(self.store, self.load, self.fixed)
            if self.loop is None
            else _iteration_and_later_one(self.store, self.load, *self.loop, self.fixed)
        )
        stored, loaded = self.element_bytes
        total, const = _sum_of_addresses(system, ((stored, self.store, first), (-loaded, self.load, second)))
        system.add_inequality(total, const + stored - distance - 1)
        return system.has_no_solution()


def _any_two_iterations(
    a: _Piece, b: _Piece, fixed: Container[Var]
) -> tuple[IntegerSystem, IterationPoint, IterationPoint]:
    """Return a system with an iteration that makes the accesses of `a`, and one that makes those of `b`."""
    system = IntegerSystem()
    shared: dict[Expr, LinearSum] = {}
    first, second = (_iteration_point(system, p.access, lambda e: is_invariant(e, fixed), shared) for p in (a, b))
    return system, first, second


def _iteration_and_later_one(
    a: _Piece, b: _Piece, var: Var, step: int, fixed: Container[Var]
) -> tuple[IntegerSystem, IterationPoint, IterationPoint]:
    """Return a system with an iteration of a loop that makes the accesses of `a`, and a later one that
    makes those of `b`.
    """
    system, first, second = _any_two_iterations(a, b, fixed)
    (low, high), (other_low, other_high) = a.access.ranges[var], b.access.ranges[var]
    low, high = min(low, other_low), max(high, other_high)
    number = system.add_variable(low, high)
    distance = system.add_variable(1, divide_bound(high - low, step))
    first.own[var] = {number: 1}, 0
    second.own[var] = {number: 1, distance: step}, 0
    if high < math.inf:
        system.add_inequality({number: -1, distance: -step}, int(high))
    for point in (first, second):
        point.require_limits_of_var(var)
    return system, first, second


def _is_access_within(access: Access, size: int | LinearForm) -> bool:
    """Return True if an access is proven to be among the first `size` elements."""
    end = LinearForm(const=size) if isinstance(size, int) else size
    last = access.form.add_multiple(LinearForm(const=access.lanes - 1))
    # below 0, beyond the last element
    for outside in (LinearForm(const=-1).add_multiple(access.form, -1), last.add_multiple(end, -1)):
        system = IntegerSystem()
        # in one iteration, every variable has one value
        point = _iteration_point(system, access, lambda _: True, {})
        point.require_nonnegative(outside)
        point.require_conditions(access.conditions)
        if not system.has_no_solution():
            return False
    return True


def _iteration_point(
    system: IntegerSystem, access: Access, is_shared: IsShared, shared: dict[Expr, LinearSum]
) -> IterationPoint:
    """Return a new iteration that makes an access, in a system under construction."""
    return IterationPoint(system, access.ranges, access.lasts, access.firsts, access.steps, is_shared, shared)


def _is_address_equation_unsolvable(
    system: IntegerSystem, a: _Piece, a_point: IterationPoint, b: _Piece, b_point: IterationPoint
) -> bool:
    """Return True if two pieces, at two points, are proven to have no common element."""
    system.add_equation(*_sum_of_addresses(system, ((1, a, a_point), (-1, b, b_point))))
    return system.has_no_solution()


def _sum_of_addresses(system: IntegerSystem, parts: Iterable[tuple[int, _Piece, IterationPoint]]) -> LinearSum:
    """Return the sum of the addresses of elements of some pieces, each multiplied by a factor, at points
    at which the conditions of the accesses hold.
    """
    total: Terms = {}
    const = 0
    for factor, piece, point in parts:
        terms, offset = point.sum_of_form(LinearForm(piece.access.form.terms, piece.offset))
        const += factor * offset
        for var, c in terms.items():
            total[var] = total.get(var, 0) + factor * c
        for distance, count in piece.dimensions:
            total[system.add_variable(0, count - 1)] = factor * distance
        point.require_conditions(piece.access.conditions)
    return {v: c for v, c in total.items() if c}, const
