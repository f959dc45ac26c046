# SPDX-License-Identifier: Apache-2.0
"""Exhaustiveness check of match expressions: patterns of the values that no clause covers.

match (%xs) { Cons(_, Cons(_, _)) => ... }       # Nil and Cons(_, Nil)

A candidate pattern that a clause covers only in part is split into more specific candidates, one
level at a time. The search is therefore only as deep as the patterns of the clauses.
"""

from enum import IntEnum

from aotc.relay.graph_api import (
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternWildcard,
    replace_subpatterns,
    subpatterns,
)


class _Coverage(IntEnum):
    """Result of comparing a clause's pattern with a candidate pattern: covers all of its values,
    some, or none.

    The largest result of several parts holds for the whole.
    """

    TAKEN = 0
    OPEN = 1  # covers some of the values
    REFUSED = 2


def unmatched_cases(match: Match, module: object = None) -> list[Pattern]:
    """Return patterns of the values that no clause matches; an empty list if the match is complete.

    `module` is accepted for compatibility with Relay and ignored: constructors know their data
    types.
    """
    missing: list[Pattern] = []
    candidates: list[Pattern] = [PatternWildcard()]
    while candidates:
        candidate = candidates.pop()
        for clause in match.clauses:
            verdict = _coverage_of_candidate_by_pattern(clause.lhs, candidate)
            if verdict is _Coverage.OPEN:
                candidates += _split_candidate_pattern(clause.lhs, candidate)
            if verdict is not _Coverage.REFUSED:
                break
        else:
            missing.append(candidate)
    return missing


def _coverage_of_candidate_by_pattern(pattern: Pattern, candidate: Pattern) -> _Coverage:
    if not isinstance(pattern, PatternConstructor | PatternTuple):
        return _Coverage.TAKEN
    if not isinstance(candidate, PatternConstructor | PatternTuple):
        return _Coverage.OPEN
    if getattr(pattern, "constructor", None) is not getattr(candidate, "constructor", None):
        return _Coverage.REFUSED
    return max(
        map(_coverage_of_candidate_by_pattern, subpatterns(pattern), subpatterns(candidate)), default=_Coverage.TAKEN
    )


def _split_candidate_pattern(pattern: Pattern, candidate: Pattern) -> list[Pattern]:
    """Split a candidate pattern, where the clause's pattern is more specific, into candidates that
    together cover it.
    """
    if not isinstance(candidate, PatternConstructor | PatternTuple):
        if isinstance(pattern, PatternConstructor):
            of = pattern.constructor
            alternatives = of.data.constructors if of.data is not None else (of,)
            return [PatternConstructor(c, [PatternWildcard()] * len(c.inputs)) for c in alternatives]
        return [PatternTuple([PatternWildcard()] * len(subpatterns(pattern)))]
    parts = [*subpatterns(candidate)]
    open_at = next(
        k
        for k, p in enumerate(subpatterns(pattern))
        if _coverage_of_candidate_by_pattern(p, parts[k]) is _Coverage.OPEN
    )
    return [
        replace_subpatterns(candidate, [*parts[:open_at], part, *parts[open_at + 1 :]])
        for part in _split_candidate_pattern(subpatterns(pattern)[open_at], parts[open_at])
    ]
