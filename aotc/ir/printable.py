# SPDX-License-Identifier: Apache-2.0
"""Make text from a model safe for messages: on one line, of bounded length, harmless to terminals.

printable("conv\x1b[2J")                 # "conv\\x1b[2J"
printable("a" * 1_000_000)               # "aaaa... (999600 more characters) ...aaaa"
"""

import re
from typing import Final

#: Largest number of characters shown of one word, and of one message.
MAX_WORD: Final = 400
MAX_TEXT: Final = 4000
#: Matches control characters, line ends, bidirectional marks and surrogates.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_LONG_WORD: Final = re.compile(rf"\S{{{MAX_WORD + 1},}}")


def printable(text: str) -> str:
    """Escape characters in `text` that control a terminal or change the direction of text.

    The middle of long words, and of text that is too long as a whole, is replaced by "...".
    """
    text = _UNSAFE.sub(_escaped, text)
    if len(text) <= MAX_WORD:
        return text
    return _cut(_LONG_WORD.sub(lambda word: _cut(word[0], MAX_WORD), text), MAX_TEXT)


def masked(text: str) -> str:
    """Replace each character of `text` that is unsafe for terminals by a question mark, which
    preserves columns.
    """
    return _UNSAFE.sub("?", text)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = (most - len("... (1000000000 more characters) ...")) // 2
    return f"{text[:half]}... ({len(text) - 2 * half} more characters) ...{text[-half:]}"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")
