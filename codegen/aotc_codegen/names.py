# SPDX-License-Identifier: Apache-2.0
"""Names from models as C identifiers, comments and string literals.  Any text in, safe C text out.

identifier("input_1:0")          # "input_1_0"
identifier("class")              # "class_"
comment("evil */ name")          # "evil * / name"
string_literal('say "hi"\\n')    # '"say \\"hi\\"\\n"'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_C: Final = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while asm typeof
main errno assert offsetof stdin stdout stderr signgam environ unix linux i386 near far
isnan isinf isfinite signbit fpclassify isnormal
"""
_CPP: Final = """
alignas alignof and and_eq bitand bitor bool catch char8_t char16_t char32_t class co_await co_return co_yield compl
concept const_cast consteval constexpr constinit decltype delete dynamic_cast explicit export false friend import
module mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
reinterpret_cast requires static_assert static_cast template this thread_local throw true try typeid typename using
virtual wchar_t xor xor_eq
"""
RESERVED: Final = frozenset((_C + _CPP).split())
"""Keywords of C and C++, and names that are macros or special in common C libraries."""

MAX_LENGTH: Final = 63
"""Significant characters of an identifier that C99 promises."""


def identifier(text: str) -> str:
    """A C and C++ identifier of at most 63 characters made from any text; equal for an identifier that is free."""
    name = re.sub(r"[^0-9A-Za-z]+", "_", text).lstrip("_")
    if not name[:1].isalpha():
        name = "x" + name
    name = name[:MAX_LENGTH]
    return name[: MAX_LENGTH - 1] + "_" if name in RESERVED else name


def unique_identifiers(texts: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """An identifier for each text, all different even when upper-cased (macros are made from them)."""
    used = {name.upper() for name in taken}
    found: list[str] = []
    for text in texts:
        stem = identifier(text)
        name, number = stem, 2
        while name.upper() in used:
            suffix = f"_{number}"
            name, number = stem[: MAX_LENGTH - len(suffix)] + suffix, number + 1
        used.add(name.upper())
        found.append(name)
    return found


class Scope:
    """Names visible in a function, without shadowing: an inner scope sees and avoids those outside.

    with_name = scope.declare(var, "i")           # "i", or "i_2" if `i` is visible already
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._names: dict[object, str] = {}
        self._used: set[str] = set(reserved)
        self._open: list[list[object]] = [[]]

    def declare(self, item: object, wanted: str) -> str:
        """A free name for `item`, known to the end of the innermost open scope."""
        stem = identifier(wanted)
        name, number = stem, 2
        while name in self._used:
            name, number = f"{stem}_{number}", number + 1
        self._used.add(name)
        self._names[item] = name
        self._open[-1].append(item)
        return name

    def __getitem__(self, item: object) -> str:
        return self._names[item]

    def __contains__(self, item: object) -> bool:
        return item in self._names

    def enter(self) -> None:
        self._open.append([])

    def leave(self) -> None:
        for item in self._open.pop():
            self._used.discard(self._names.pop(item))


def comment(text: str, limit: int = 200) -> str:
    """`text` as it may stand inside a C comment on one line: printable ASCII, no comment ends, no trigraphs."""
    safe = "".join(c if " " <= c <= "~" else "?" for c in text)
    safe = safe.replace("\\", "/").replace("*/", "* /").replace("/*", "/ *").replace("*/", "* /")
    safe = re.sub(r"\?{2,}", "?", safe)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."


_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "?": "\\?"}


def string_literal(text: str) -> str:
    """A C string literal of the UTF-8 bytes of `text`."""
    data = text.encode("utf-8", "surrogatepass")
    escaped = (_ESCAPES.get(chr(b)) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in data)
    return '"' + "".join(escaped) + '"'
