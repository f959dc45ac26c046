# SPDX-License-Identifier: Apache-2.0
"""Change the case of characters one by one, as `towupper` and `towlower` of the C library do.

These are the simple mappings of Unicode, of the version that Python has: one character becomes one character.

    case_mapping("upper")[ord("a")]            # 65, "A"; "ß" has no entry, since its capital is two characters
    [*case_variants([(97, 97)])]               # [(97, 97), (65, 65), (97, 97)]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

#: Code points behind the last character that has a case.
_CASED_END: Final = 0x1F000
#: Capital I with a dot: its small letter is "i", and in full two characters.
_CAPITAL_I_WITH_DOT: Final = 0x130
#: The letters "I" with and without a dot of Turkish, which differ from "i" in more than case.
_TURKISH_LETTERS: Final = (_CAPITAL_I_WITH_DOT, 0x131)


def _simple_upper(character: str) -> str:
    upper = character.upper()
    if len(upper) == 1:
        return upper
    # Greek letters with iota have a capital of one character, which begins titles
    title = character.title()
    return title if len(title) == 1 else character


def _simple_lower(character: str) -> str:
    if ord(character) == _CAPITAL_I_WITH_DOT:
        return "i"
    lower = character.lower()
    return lower if len(lower) == 1 else character


@cache
def case_mapping(case: str) -> Mapping[int, int]:
    """Return the code points that change, with their new ones, where `case` is "upper" or "lower"."""
    change = {"upper": _simple_upper, "lower": _simple_lower}[case]
    pairs = ((point, ord(change(chr(point)))) for point in range(_CASED_END))
    return MappingProxyType({old: new for old, new in pairs if old != new})


@cache
def _variants_by_code_point() -> Mapping[int, frozenset[int]]:
    """Return for each code point that has a case all code points that differ from it in case only."""
    groups: dict[int, set[int]] = {}
    for case in ("lower", "upper"):
        for old, new in case_mapping(case).items():
            if old in _TURKISH_LETTERS:
                continue
            merged = groups.get(old, {old}) | groups.get(new, {new})
            groups.update(dict.fromkeys(merged, merged))
    return MappingProxyType({point: frozenset(points) for point, points in groups.items()})


def case_variants(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ranges of code points, both ends included, and those that differ in case only."""
    variants = _variants_by_code_point()
    for low, high in ranges:
        yield low, high
        for point in variants if high - low > len(variants) else range(low, high + 1):
            if low <= point <= high:
                yield from ((p, p) for p in variants.get(point, ()))
