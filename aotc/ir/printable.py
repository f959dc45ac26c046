# SPDX-License-Identifier: Apache-2.0
"""Text from a model as it may stand in a message: on one line, of bounded length, harmless to a terminal.

printable("conv\x1b[2J")                 # "conv\\x1b[2J"
printable("a" * 1_000_000)               # "aaaa... (999600 more characters) ...aaaa"
"""

import re
from typing import Final

#: Characters of one word, and of one message, that are shown.
MAX_WORD: Final = 400
MAX_TEXT: Final = 4000
#: Control characters, ends of lines, marks that reorder what follows them, and halves of characters.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_LONG_WORD: Final = re.compile(rf"\S{{{MAX_WORD + 1},}}")


def printable(text: str) -> str:
    """`text` with escapes for characters that change a terminal's state or the order of what is shown; long words, and
    text that is too long as a whole, lose their middle.
    """
    text = _UNSAFE.sub(_escaped, text)
    if len(text) <= MAX_WORD:
        return text
    return _cut(_LONG_WORD.sub(lambda word: _cut(word[0], MAX_WORD), text), MAX_TEXT)


def masked(text: str) -> str:
    """`text` with a question mark for each character that is not safe to show, so that columns stay where they are."""
    return _UNSAFE.sub("?", text)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = (most - len("... (1000000000 more characters) ...")) // 2
    return f"{text[:half]}... ({len(text) - 2 * half} more characters) ...{text[-half:]}"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")
