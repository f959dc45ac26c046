# SPDX-License-Identifier: Apache-2.0
"""Parse regular expressions in the syntax of RE2 (https://github.com/google/re2/wiki/Syntax).

    parse_regular_expression("a+|[0-9]")       # Choice((Repetition(Characters(((97, 97),)), 1, None), ...))

Groups do not capture, and how greedy a repetition is does not matter, since only whether a text matches is asked,
or which is the longest match. What no finite automaton decides (references to groups, assertions on the text
around), and what RE2 refuses, raises AotcError (code "graph-regex").
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Final, NoReturn, TypeAlias

from aotc.ir import AotcError
from aotc.relay.frontend.unicode_case import case_variants

#: Ranges of code points, both ends included, sorted and apart from each other.
Ranges: TypeAlias = tuple[tuple[int, int], ...]
MAX_CODE_POINT: Final = 0x10FFFF
#: Largest count of a repetition, as in RE2.
MAX_REPETITIONS: Final = 1000
#: Largest depth of groups in groups.
MAX_GROUP_DEPTH: Final = 100
#: General categories of the characters in names of groups.
_NAME_CATEGORIES: Final = frozenset({"Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Mn", "Nd", "Nl", "Pc"})


@dataclass(frozen=True, slots=True)
class Characters:
    """One character out of ranges of code points."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Assertion:
    """A condition on the characters before and after a place: "begin text", "end text", "begin line",
    "end line", "word boundary" or "no word boundary".
    """

    kind: str


@dataclass(frozen=True, slots=True)
class Sequenced:
    """Expressions one after the other; none of them match the empty text."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several expressions."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """An expression `least` to `most` times; `most` is None for any number."""

    item: Expression
    least: int
    most: int | None


Expression: TypeAlias = Characters | Assertion | Sequenced | Choice | Repetition


def union_of_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges of code points that are sorted and apart from each other."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], high))
        else:
            result.append((low, high))
    return tuple(result)


def complement_of_ranges(ranges: Ranges) -> Ranges:
    """Return the ranges of all other code points."""
    ends = [-1, *(high for _, high in ranges)]
    begins = [*(low for low, _ in ranges), MAX_CODE_POINT + 1]
    return tuple((end + 1, begin - 1) for end, begin in zip(ends, begins, strict=True) if end + 1 < begin)


def _ranges_of_text(*pairs: str) -> Ranges:
    """Return ranges, each given as its first and last character, or as its only one."""
    return union_of_ranges((ord(pair[0]), ord(pair[-1])) for pair in pairs)


_DIGIT, _SPACE = _ranges_of_text("09"), _ranges_of_text("\t\n", "\f\r", " ")
_WORD = _ranges_of_text("09", "AZ", "_", "az")
_PERL_CLASSES: Final[Mapping[str, Ranges]] = {"d": _DIGIT, "s": _SPACE, "w": _WORD}
_NAMED_CLASSES: Final[Mapping[str, Ranges]] = {
    "alnum": _ranges_of_text("09", "AZ", "az"), "alpha": _ranges_of_text("AZ", "az"), "ascii": ((0, 0x7F),),
    "blank": _ranges_of_text("\t", " "), "cntrl": ((0, 0x1F), (0x7F, 0x7F)), "digit": _DIGIT,
    "graph": _ranges_of_text("!~"), "lower": _ranges_of_text("az"), "print": _ranges_of_text(" ~"),
    "punct": _ranges_of_text("!/", ":@", "[`", "{~"), "space": _ranges_of_text("\t\r", " "),
    "upper": _ranges_of_text("AZ"), "word": _WORD, "xdigit": _ranges_of_text("09", "AF", "af"),
}  # fmt: skip
_CONTROL_ESCAPES: Final = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_ASSERTIONS: Final = {"A": "begin text", "z": "end text", "b": "word boundary", "B": "no word boundary"}
_REPETITIONS: Final[Mapping[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@cache
def _ranges_by_category() -> Mapping[str, Sequence[tuple[int, int]]]:
    """Return the code points of each general category of Unicode, such as "Lu".

    "Cn" is left out: RE2 has no class of the code points that are not assigned, nor are they in its class "C".
    """
    result: dict[str, list[tuple[int, int]]] = {}
    points = range(MAX_CODE_POINT + 1)
    first = 0
    for name, group in groupby(points, key=lambda point: unicodedata.category(chr(point))):
        end = first + sum(1 for _ in group)
        if name != "Cn":
            result.setdefault(name, []).append((first, end - 1))
        first = end
    return result


def _category_ranges(name: str) -> Ranges:
    """Return the code points of a general category of Unicode, such as "L" or "Lu"; () for other names."""
    found = (ranges for category, ranges in _ranges_by_category().items() if category.startswith(name))
    return union_of_ranges(pair for ranges in found for pair in ranges)


@dataclass
class _Reader:
    """A pattern that is read from left to right: the next character of `pattern` is at `place`."""

    pattern: str
    place: int = 0

    def refuse(self, why: str) -> NoReturn:
        text = f"the regular expression {self.pattern[:80]!r} is not supported: {why} at character {self.place}"
        raise AotcError("graph-regex", text)

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.place)

    def skip(self, text: str) -> bool:
        """Return True and go on behind `text` if it is next."""
        found = self.peek(text)
        self.place += len(text) * found
        return found

    def take(self, count: int = 1) -> str:
        """Return the next characters. Raises AotcError if there are fewer."""
        if self.place + count > len(self.pattern):
            self.refuse("it ends too early")
        self.place += count
        return self.pattern[self.place - count : self.place]

    def take_until(self, end: str) -> str:
        """Return the characters before the next `end`, and go on behind it."""
        found = self.pattern.find(end, self.place)
        if found < 0:
            self.refuse(f"{end!r} is missing")
        text = self.pattern[self.place : found]
        self.place = found + len(end)
        return text


@dataclass
class _Parser(_Reader):
    """The state of parsing: `flags` apply from `place` on, and `depth` groups are open."""

    flags: frozenset[str] = frozenset()
    depth: int = 0

    # --- expressions

    def parse_choice(self) -> Expression:
        """Parse alternatives up to the end of a group or of the pattern."""
        flags = self.flags
        items = [self.parse_sequence()]
        while self.skip("|"):
            items.append(self.parse_sequence())
        self.flags = flags
        return items[0] if len(items) == 1 else Choice(tuple(items))

    def parse_sequence(self) -> Expression:
        items: list[Expression] = []
        while self.place < len(self.pattern) and not self.peek("|") and not self.peek(")"):
            if self.skip("\\Q"):
                end = self.pattern.find("\\E", self.place)
                quoted = self.take((end if end >= 0 else len(self.pattern)) - self.place)
                self.skip("\\E")
                items += [self.characters(((ord(c), ord(c)),)) for c in quoted]
            else:
                item = self.parse_item()
                items += [] if item is None else [item]
            if items:
                items[-1] = self.parse_repetition(items[-1])
        return Sequenced(tuple(items))

    def parse_item(self) -> Expression | None:
        """Parse one character, class, assertion or group; None for flags, which match nothing themselves."""
        match self.take():
            case "(":
                return self.parse_group()
            case "[":
                return self.characters(self.parse_class())
            case ".":
                return Characters(
                    ((0, MAX_CODE_POINT),) if "s" in self.flags else complement_of_ranges(_ranges_of_text("\n"))
                )
            case "^":
                return Assertion("begin line" if "m" in self.flags else "begin text")
            case "$":
                return Assertion("end line" if "m" in self.flags else "end text")
            case "\\":
                return self.parse_escape()
            case "*" | "+" | "?":
                self.refuse("a repetition of nothing")
            case c:
                return self.characters(((ord(c), ord(c)),))

    def characters(self, ranges: Ranges) -> Characters:
        return Characters(self.all_cases(ranges))

    def all_cases(self, ranges: Sequence[tuple[int, int]]) -> Ranges:
        """Return the ranges of characters, in all cases if the flag "i" is set."""
        return union_of_ranges(case_variants(ranges) if "i" in self.flags else ranges)

    def class_ranges(self, ranges: Ranges, is_negated: bool) -> Ranges:
        """Return the ranges of a class that has a name. As in RE2, a negated class contains a character if the class
        contains it in no case: the letter "k" is not in (?i)\\W, although the Kelvin sign is no \\w without the flag.
        """
        return complement_of_ranges(self.all_cases(ranges)) if is_negated else ranges

    def parse_group(self) -> Expression | None:
        if self.skip("?"):
            if self.peek("P<") or (self.peek("<") and not self.peek("<=") and not self.peek("<!")):
                self.take_group_name()
                outer = self.flags
            else:
                outer = self.flags
                if self.parse_flags():
                    return None
        else:
            outer = self.flags
        self.depth += 1
        if self.depth > MAX_GROUP_DEPTH:
            self.refuse(f"more than {MAX_GROUP_DEPTH} groups in groups")
        item = self.parse_choice()
        if not self.skip(")"):
            self.refuse("')' is missing")
        self.depth -= 1
        self.flags = outer
        return item

    def take_group_name(self) -> None:
        """Go on behind the name of a group, on which no result depends. Raises AotcError for one that RE2 refuses."""
        name = self.take_until(">").removeprefix("P").removeprefix("<")
        if not name or not {*map(unicodedata.category, name)} <= _NAME_CATEGORIES:
            self.refuse(f"{name!r} as the name of a group")

    def parse_flags(self) -> bool:
        """Parse flags up to ":" or ")"; return True if the group ends there."""
        flags, is_on = set(self.flags), True
        while True:
            c = self.take()
            if c in ":)":
                if self.pattern[self.place - 2] == "-":
                    self.refuse("'-' without a flag behind it")
                self.flags = frozenset(flags)
                return c == ")"
            if c == "-" and is_on:
                is_on = False
            elif c in "imsU":
                flags = flags | {c} if is_on else flags - {c}
            else:
                self.refuse(f"a group that begins with '(?' and {c!r}")

    def parse_repetition(self, item: Expression) -> Expression:
        """Parse the repetition that follows `item`, if any."""
        counts = self.take_counts()
        if counts is None:
            return item
        self.skip("?")
        if self.take_counts() is not None:
            self.refuse("a repetition of a repetition")
        least, most = counts
        if max(least, most or 0) > MAX_REPETITIONS or (most is not None and most < least):
            self.refuse(f"a repetition of {least} to {most} times")
        return Repetition(item, least, most)

    def take_counts(self) -> tuple[int, int | None] | None:
        """Return the least and the largest number of repetitions that are next; None if there is no repetition."""
        c = self.pattern[self.place : self.place + 1]
        if c in _REPETITIONS:
            self.place += 1
            return _REPETITIONS[c]
        end = self.pattern.find("}", self.place)
        if c != "{" or end < 0:
            return None
        first, comma, second = self.pattern[self.place + 1 : end].partition(",")
        # other texts in braces are those characters
        if not _is_number(first) or not (second == "" or _is_number(second)):
            return None
        self.place = end + 1
        # numbers beyond the limit are refused: the first digits of a long one suffice
        least, most = (int(text[: len(str(MAX_REPETITIONS)) + 1]) if text else None for text in (first, second))
        assert least is not None
        return least, most if comma else least

    # --- escapes and classes

    def parse_escape(self) -> Expression:
        c = self.pattern[self.place : self.place + 1]
        if c in _ASSERTIONS:
            self.place += 1
            return Assertion(_ASSERTIONS[c])
        return self.characters(self.parse_escaped_ranges())

    def parse_escaped_ranges(self) -> Ranges:
        """Parse what follows a backslash: a class or a character."""
        c = self.take()
        if c.lower() in _PERL_CLASSES:
            return self.class_ranges(_PERL_CLASSES[c.lower()], c.isupper())
        if c in "pP":
            return self.parse_category(c == "P")
        point = self.parse_escaped_character(c)
        return ((point, point),)

    def parse_category(self, is_negated: bool) -> Ranges:
        name = self.take_until("}") if self.skip("{") else self.take()
        if name.startswith("^"):
            is_negated, name = not is_negated, name[1:]
        ranges = ((0, MAX_CODE_POINT),) if name == "Any" else _category_ranges(name) if 0 < len(name) <= 2 else ()
        if not ranges:
            self.refuse(f"the class {name!r} of Unicode")
        return self.class_ranges(ranges, is_negated)

    def parse_escaped_character(self, c: str) -> int:
        if c in _CONTROL_ESCAPES:
            return _CONTROL_ESCAPES[c]
        if c == "x":
            digits = self.take_until("}") if self.skip("{") else self.take(2)
            point = int(digits, 16) if digits and all(d in "0123456789abcdefABCDEF" for d in digits) else -1
        elif c in "01234567":
            # one digit other than 0 is the number of a group
            digits = c
            while len(digits) < 3 and self.pattern[self.place : self.place + 1] in tuple("01234567"):
                digits += self.take()
            point = int(digits, 8) if c == "0" or len(digits) > 1 else -1
        else:
            point = ord(c) if c.isascii() and not c.isalnum() else -1
        if not 0 <= point <= MAX_CODE_POINT:
            self.refuse(f"the escape '\\{c}'")
        return point

    def parse_class(self) -> Ranges:
        """Parse a class of characters behind its "["."""
        is_negated = self.skip("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or not self.peek("]"):
            is_first = False
            ranges += self.parse_class_item()
        self.take()
        found = self.all_cases(ranges)
        return complement_of_ranges(found) if is_negated else found

    def parse_class_item(self) -> Sequence[tuple[int, int]]:
        """Parse a class in a class, a range, or a character."""
        if self.skip("[:"):
            name = self.take_until(":]")
            named = _NAMED_CLASSES.get(name.removeprefix("^"))
            if named is None:
                self.refuse(f"the class [:{name}:]")
            return self.class_ranges(named, name.startswith("^"))
        # a class begins no range: the minus sign that follows one is a character, or begins one
        is_class = self.peek("\\") and self.pattern[self.place + 1 : self.place + 2] in tuple("dDsSwWpP")
        low = self.parse_class_characters()
        if is_class or not self.peek("-") or self.peek("-]"):
            return low
        self.take()
        high = self.parse_class_characters()
        is_range = len(low) == len(high) == 1 and low[0][0] == low[0][1] <= high[0][0] == high[0][1]
        if not is_range:
            self.refuse("a range of characters without a beginning or an end")
        return [(low[0][0], high[0][0])]

    def parse_class_characters(self) -> Ranges:
        c = self.take()
        return self.parse_escaped_ranges() if c == "\\" else ((ord(c), ord(c)),)


def _is_number(text: str) -> bool:
    """Return True for digits that RE2 reads as a number, without a zero before others."""
    return text.isascii() and text.isdecimal() and (text == "0" or text[0] != "0")


def ranges_of_one_character(expression: Expression) -> Ranges | None:
    """Return the code points that an expression of exactly one character matches; None for other expressions."""
    match expression:
        case Sequenced((Characters(ranges),)):
            return ranges
    return None


def parse_regular_expression(pattern: str) -> Expression:
    """Return a regular expression as a tree. Raises AotcError (code "graph-regex") for one that is refused."""
    parser = _Parser(pattern)
    result = parser.parse_choice()
    if parser.place < len(pattern):
        parser.refuse("')' without '('")
    return result
