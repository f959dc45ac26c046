# SPDX-License-Identifier: Apache-2.0
"""Lexer of the Relay text format: convert source text to a list of tokens without blanks and
comments.

The last token has the kind "end".

Source("%0.1 2f", "net.relay").tokenize()      # local "0", field "1", number "2f", end
"""

import bisect
import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn

from aotc.ir import AotcError, Span, frozen
from aotc.relay.text.literal_printer import UNQUOTED_NAME_PATTERN

_STRING_PATTERN: Final = r'"(?:[^"\\\n]|\\.)*"'
_NUMBER_PATTERN: Final = r"(?:(?:inf|nan)f(?:16|32|64)?\b|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?:[fiu]\d*)?(?!\w))"
_TOKEN_REGEX: Final = re.compile(
    rf"""(?P<space>[ \t\r\n]+|//[^\n]*)
    |(?P<comment>/\*)
    |(?P<temp>%\d+)
    |(?P<local>%(?:{UNQUOTED_NAME_PATTERN}|{_STRING_PATTERN}))
    |(?P<global>@(?:{UNQUOTED_NAME_PATTERN}|{_STRING_PATTERN}))
    |(?P<metadata>\#\[metadata\])
    |(?P<version>\#\[version\s*=)
    |(?P<field>\.\d+)
    |(?P<number>{_NUMBER_PATTERN})
    |(?P<name>{UNQUOTED_NAME_PATTERN})
    |(?P<string>{_STRING_PATTERN})
    |(?P<punct>->|=>|==|!=|<=|>=|[-+*/<>=(){{}}\[\],;:?.])
    """,
    re.VERBOSE | re.ASCII,
)
_COMMENT_REGEX: Final = re.compile(r"/\*|\*/")


@frozen
class Token:
    """A token: its kind (a group of the token regex, or "end"), its text without sigil and quotes,
    its offset.
    """

    kind: str
    text: str
    offset: int

    def __str__(self) -> str:
        return "end of text" if self.kind == "end" else f"`{self.text}`"


class Source:
    """A source text with a name: splits itself into tokens, locates offsets and raises errors at
    offsets.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self._lines = [0, *(m.end() for m in re.finditer("\n", text))]
        self._texts = [line.rstrip("\r") for line in text.split("\n")]

    def span_at_offset(self, offset: int) -> Span:
        """Return the source span (line and column, counted from 1) of a character offset."""
        line = bisect.bisect_right(self._lines, offset)
        return Span(self.name, line=line, column=offset - self._lines[line - 1] + 1, text=self._texts[line - 1])

    def raise_error_at(self, code: str, message: str, offset: int, hint: str = "") -> NoReturn:
        """Raise AotcError located at a character offset of the text."""
        raise AotcError(code, message, span=self.span_at_offset(offset), hint=hint)

    def tokenize(self) -> list[Token]:
        """Return all tokens of the text; the last one has the kind "end".

        Raise AotcError (code "syntax") for a character that starts no token and for an unterminated
        string or comment.
        """
        return list(self._scan_tokens())

    def _scan_tokens(self) -> Iterator[Token]:
        position = 0
        while position < len(self.text):
            match = _TOKEN_REGEX.match(self.text, position)
            if match is None:
                self._raise_invalid_character(position)
            kind = match.lastgroup or ""
            if kind == "comment":
                position = self._offset_after_nested_comment(position)
                continue
            if kind != "space":
                yield Token(kind, self._token_text_without_sigil_and_quotes(kind, match.group(), position), position)
            position = match.end()
            if kind == "metadata":  # the rest is JSON
                break
        yield Token("end", self.text[position:], position)

    def _raise_invalid_character(self, position: int) -> NoReturn:
        """Raise AotcError for the character at `position`, which starts no token."""
        if self.text[position] == '"' or self.text[position : position + 2] in ('%"', '@"'):
            self.raise_error_at(
                "syntax", "this string does not end on its line", position, 'close it with `"` on this line'
            )
        hint = "remove it; operators without a sign are called by name, as in power(%x, 2f)"
        self.raise_error_at("syntax", f"unexpected character {self.text[position]!r}", position, hint)

    def _offset_after_nested_comment(self, start: int) -> int:
        """Return the offset after the end of a comment; comments may be nested."""
        depth = 0
        for match in _COMMENT_REGEX.finditer(self.text, start):
            depth += 1 if match.group() == "/*" else -1
            if depth == 0:
                return match.end()
        self.raise_error_at("syntax", "this comment does not end", start, "close it with `*/`, one for each `/*`")

    def _token_text_without_sigil_and_quotes(self, kind: str, text: str, offset: int) -> str:
        if kind in ("temp", "local", "global", "field"):
            text, offset = text[1:], offset + 1
        if text.startswith('"'):
            try:
                value = json.loads(text)
            except ValueError:
                self.raise_error_at("syntax", "malformed string", offset, "strings have the escapes of JSON")
            assert isinstance(value, str)
            return value
        return text
