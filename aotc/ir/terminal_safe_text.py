# SPDX-License-Identifier: Apache-2.0
"""Make text from a model safe for messages: on one line, of bounded length, harmless to terminals.

escape_unsafe_text("conv\x1b[2J")        # "conv\\x1b[2J"
escape_unsafe_text("a" * 1_000_000)      # "aaaa... (999600 more characters) ...aaaa"
escape_texts_in_nested_data({"nodes": ["a" * 1_000_000]})   # in a structure of mappings and lists
"""

import re
from collections.abc import Mapping
from itertools import chain, count
from typing import Any, Final

#: Largest number of characters shown of one word, and of one message.
MAX_WORD_CHARACTERS: Final = 400
MAX_TEXT_CHARACTERS: Final = 4000
#: Matches control characters, line ends, bidirectional marks and surrogates.
_UNSAFE_CHARACTERS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
_LONG_WORD_PATTERN: Final = re.compile(rf"\S{{{MAX_WORD_CHARACTERS + 1},}}")


def escape_unsafe_text(text: str) -> str:
    """Escape characters in `text` that control a terminal or change the direction of text.

    The middle of long words, and of text that is too long as a whole, is replaced by "...".
    """
    text = _UNSAFE_CHARACTERS.sub(_escape_matched_character, text)
    if len(text) <= MAX_WORD_CHARACTERS:
        return text
    return _elide_middle(
        _LONG_WORD_PATTERN.sub(lambda word: _elide_middle(word[0], MAX_WORD_CHARACTERS), text), MAX_TEXT_CHARACTERS
    )


class PreformattedText(str):
    """Text of several lines that `escape_texts_in_nested_data` leaves unchanged."""

    __slots__ = ()


def escape_texts_in_nested_data(data: Any) -> Any:
    """Apply `escape_unsafe_text` to all texts, keys too, in a structure of mappings, lists and
    tuples; lists and tuples become lists.

    No entry of a mapping is lost: keys that become equal are numbered, "a", "a (2)".
    """
    match data:
        case PreformattedText():
            return data
        case str():
            return escape_unsafe_text(data)
        case Mapping():
            keys = _distinct_escaped_keys(data)
            return {key: escape_texts_in_nested_data(value) for key, value in zip(keys, data.values(), strict=True)}
        case list() | tuple():
            return [escape_texts_in_nested_data(item) for item in data]
        case _:
            return data


def _distinct_escaped_keys(mapping: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of a mapping, in order, with `escape_unsafe_text` applied to texts; a text
    that an earlier key has already gets a number: "a (2)".
    """
    # a dict keeps the order of insertion
    distinct: dict[Any, None] = {}
    for key in mapping:
        escaped = escape_unsafe_text(key) if isinstance(key, str) else key
        candidates = chain([escaped], (f"{escaped} ({number})" for number in count(2)))
        distinct[next(candidate for candidate in candidates if candidate not in distinct)] = None
    return list(distinct)


def escape_and_shorten_unsafe_lines(text: str) -> str:
    """Apply `escape_unsafe_text` to each line of a text."""
    return "\n".join(map(escape_unsafe_text, text.split("\n")))


def mask_unsafe_characters(text: str) -> str:
    """Replace each character of `text` that is unsafe for terminals by a question mark, which
    preserves columns.
    """
    return _UNSAFE_CHARACTERS.sub("?", text)


def _elide_middle(text: str, max_characters: int) -> str:
    if len(text) <= max_characters:
        return text
    half = (max_characters - len("... (1000000000 more characters) ...")) // 2
    return f"{text[:half]}... ({len(text) - 2 * half} more characters) ...{text[-half:]}"


def _escape_matched_character(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")
