# SPDX-License-Identifier: Apache-2.0
"""Race check by enumeration: compute the elements that every thread or block accesses, for all
values of the loop variables.

Fallback where the symbolic analysis of addresses (`loop_dependence`, `gpu_race_proofs`) proves
nothing. Input: statements and the loop over threads or blocks that runs them. Output: True if no
two iterations access an element that one of them writes. Example of a statement that is proven this
way:

    if t < 64 { sums[t] = sums[t] + sums[t + 64] }
"""

import math
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from aotc.tir import (
    INDEX,
    Binary,
    Buffer,
    Const,
    Expr,
    LinearForm,
    Unary,
    Var,
    conjuncts,
    linear_form,
    substitute,
    unary,
)
from aotc.tir.loops.loop_dependence import (
    Ranges,
    constant_loop_range,
    constant_trip_count,
    direct_accesses,
    is_iteration_invariant,
    loop_var_interval,
    read_buffers,
    written_buffers,
)
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, direct_child_stmts, map_exprs, walk_stmts

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
LoopPoints: TypeAlias = "Mapping[Var, Int64Array]"

#: Largest number of points (values of all loop variables) and of elements that are enumerated.
_MAX_ENUMERATED_POINTS: Final = 1 << 18
_NUMPY_FUNCTION_OF_OP: Final[Mapping[str, Callable[..., Any]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "floormod": np.mod,
    "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


class _UnknownValueError(Exception):
    """Raised where a value depends on more than the enumerated loop variables, or where there are
    too many points.
    """


class _EnumeratedAccess(NamedTuple):
    """An access of `lanes` consecutive elements from the address `form` on, at each of the
    enumerated points.

    stores   True for a store, False for a load
    points   the values of the loop variables, one array element per point
    """

    form: LinearForm
    lanes: int
    stores: bool
    points: LoopPoints


def is_race_free_by_enumeration(
    buffer: Buffer, stmt: Stmt, loop: For, ranges: Ranges, invariant_vars: Container[Var]
) -> bool:
    """Return True if enumeration shows that no iteration of `loop` accesses an element of `buffer`
    that another iteration writes.

    False means that nothing was proven: an address is unknown, or there are more than
    `_MAX_ENUMERATED_POINTS` points or elements.

    buffer            the buffer whose accesses are compared
    stmt              the part of the loop body that is examined
    ranges            the known ranges of variables
    invariant_vars    variables that have an equal value in all iterations
    """
    if not 0 < constant_trip_count(loop) <= _MAX_ENUMERATED_POINTS:
        return False
    counter = _AccessEnumerator(buffer, ranges, {s.var for s in walk_stmts(stmt) if isinstance(s, Assign)})
    try:
        touches = list(counter.enumerate_accesses(stmt, {loop.var: np.array(constant_loop_range(loop), np.int64)}))
        first, *other_terms = (touch.form.terms for touch in touches)
        common = {
            a: c
            for a, c in first.items()
            if is_iteration_invariant(a, invariant_vars) and all(o.get(a) == c for o in other_terms)
        }
        accesses = [(_accessed_element_indices(touch, common), touch) for touch in touches]
    except _UnknownValueError:
        return False
    low = min((int(places.min()) for places, _ in accesses if places.size), default=0)
    high = max((int(places.max()) for places, _ in accesses if places.size), default=0)
    if high - low > _MAX_ENUMERATED_POINTS:
        return False
    least = np.full(high - low + 1, np.iinfo(np.int64).max)
    most = np.full(high - low + 1, -1)
    for places, touch in accesses:
        if touch.stores:
            np.minimum.at(least, places - low, touch.points[loop.var][:, None])
            np.maximum.at(most, places - low, touch.points[loop.var][:, None])
    access_points = ((touch.points[loop.var][:, None], places - low) for places, touch in accesses)
    return all(
        bool(((most[at] < 0) | ((least[at] == iterations) & (most[at] == iterations))).all())
        for iterations, at in access_points
    )


def _accessed_element_indices(access: _EnumeratedAccess, omitted_index_terms: Mapping[Expr, int]) -> Int64Array:
    """Return the accessed elements, an array of shape (points, lanes), without the terms in
    `omitted_index_terms`.

    Raise _UnknownValueError if an address cannot be computed or there are too many elements.
    """
    form = access.form.add_multiple(LinearForm(dict(omitted_index_terms)), -1)
    some = next(iter(access.points.values()))
    total = np.full(some.shape, form.const)
    for atom, factor in form.terms.items():
        total = total + factor * _evaluate_at_points(atom, access.points)
    if total.size * access.lanes > _MAX_ENUMERATED_POINTS:
        raise _UnknownValueError
    return total[:, None] + np.arange(access.lanes)


def _evaluate_at_points(expr: Expr, points: LoopPoints) -> Any:
    """Evaluate an expression at all points; raise _UnknownValueError if it is not a function of
    the loop variables alone.
    """
    match expr:
        case Var() if expr in points:
            return points[expr]
        case Const(value=value):
            return value
        case Binary(op=op) if op in _NUMPY_FUNCTION_OF_OP and (
            op not in ("floordiv", "floormod") or isinstance(expr.b, Const)
        ):
            return _NUMPY_FUNCTION_OF_OP[op](_evaluate_at_points(expr.a, points), _evaluate_at_points(expr.b, points))
        case Unary(op="not", a=a) if a.dtype.is_bool:
            return ~np.asarray(_evaluate_at_points(a, points), np.bool_)
    raise _UnknownValueError


class _AccessEnumerator(NamedTuple):
    """Collects the accesses to one buffer at all values of the loop variables.

    buffer     the buffer whose accesses are collected
    ranges     ranges of the variables that are not enumerated
    changing   registers that are assigned to after their declaration
    """

    buffer: Buffer
    ranges: Ranges
    changing: Container[Var]

    def enumerate_accesses(self, stmt: Stmt, points: LoopPoints) -> Iterator[_EnumeratedAccess]:
        """Yield the accesses to the buffer in a statement that runs at the given points.

        Loops multiply the points by their iterations, conditions filter them, and registers that
        hold an index are replaced by their values.
        """
        if self.buffer not in written_buffers(stmt) | read_buffers(stmt):
            return
        for stores in (False, True):
            for buffer, index, lanes in direct_accesses(stmt, reads=not stores, stores=stores):
                if buffer is self.buffer:
                    yield _EnumeratedAccess(linear_form(index, self.ranges), lanes, stores, points)
        match stmt:
            case For():
                yield from self.enumerate_accesses(stmt.body, self.points_inside_loop(stmt, points))
            case If():
                for branch in direct_child_stmts(stmt):
                    yield from self.enumerate_accesses(
                        branch, _points_possibly_meeting_condition(stmt.cond, branch is stmt.then, points)
                    )
            case Block():
                for k, inner in enumerate(stmt.stmts):
                    yield from self.enumerate_accesses(inner, points)
                    if isinstance(inner, Declare) and inner.var.dtype == INDEX and inner.var not in self.changing:
                        yield from self.enumerate_accesses(
                            _replace_register_by_value(inner, Block(stmt.stmts[k + 1 :])), points
                        )
                        return
            case _:
                for inner in direct_child_stmts(stmt):
                    yield from self.enumerate_accesses(inner, points)

    def points_inside_loop(self, loop: For, points: LoopPoints) -> LoopPoints:
        """Return the points of all iterations of a loop, for each of the given points outside of
        it.

        If the bounds are unknown at a point, the whole range of the variable is enumerated: more
        points than there are can only make the proof fail.
        """
        try:
            begin, end = (_broadcast_to_points(_evaluate_at_points(e, points), points) for e in (loop.begin, loop.end))
        except _UnknownValueError:
            low, high = loop_var_interval(loop, self.ranges)
            if loop.step > 1 or math.inf in (-low, high):
                raise
            begin, end = (_broadcast_to_points(n, points) for n in (int(low), int(high) + 1))
        trips = np.maximum(0, -((begin - end) // loop.step))
        if trips.sum() > _MAX_ENUMERATED_POINTS:
            raise _UnknownValueError
        copies = np.repeat(np.arange(trips.size), trips)
        turn = np.arange(copies.size) - (np.cumsum(trips) - trips)[copies]
        return {**{v: a[copies] for v, a in points.items()}, loop.var: begin[copies] + turn * loop.step}


def _replace_register_by_value(register: Declare, following_stmts: Stmt) -> Stmt:
    """Return the statements after the declaration of a register, with the register replaced by its
    value.

    Raise _UnknownValueError if the register is declared again.
    """
    if any(isinstance(s, Declare) and s.var is register.var for s in walk_stmts(following_stmts)):
        raise _UnknownValueError
    return map_exprs(following_stmts, lambda e: substitute(e, {register.var: register.value}))


def _broadcast_to_points(value: Any, points: LoopPoints) -> Int64Array:
    """Return a value as an int64 array with one element for each enumerated point of the loop
    variables.
    """
    return np.broadcast_to(np.asarray(value, np.int64), next(iter(points.values())).shape)


def _points_possibly_meeting_condition(cond: Expr, holds: bool, points: LoopPoints) -> LoopPoints:
    """Return the points at which a condition is true (false, if `holds` is False).

    Points at which the condition cannot be evaluated are included.
    """
    for part in conjuncts(cond) if holds else (unary("not", cond),):
        with suppress(_UnknownValueError):
            mask = _broadcast_to_points(_evaluate_at_points(part, points), points) != 0
            points = {v: a[mask] for v, a in points.items()}
    return points
