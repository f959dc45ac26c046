# SPDX-License-Identifier: Apache-2.0
"""Places in texts in Relay's order: `relay.Span(relay.SourceName("net"), 1, 1, 3, 9)`."""

from aotc.ir.span import Span as _Span

#: The name of a source.
SourceName = str


class _OfPlaces(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Span)

    def __call__(cls, source_name: str | None, line: int, end_line: int, column: int, end_column: int) -> _Span:
        return _Span(source_name or "", line=line, column=column, end_line=end_line, end_column=end_column)


class Span(metaclass=_OfPlaces):
    """Makes a span, a value of `aotc.ir.Span`, from the numbers of its lines and columns."""
