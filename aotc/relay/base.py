# SPDX-License-Identifier: Apache-2.0
"""Source spans with the argument order of Relay: `relay.Span(relay.SourceName("net"), 1, 1, 3, 9)`."""

from aotc.ir.span import Span as _Span

#: The name of a source text.
SourceName = str


class _OfPlaces(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Span)

    def __call__(cls, source_name: str | None, line: int, end_line: int, column: int, end_column: int) -> _Span:
        return _Span(source_name or "", line=line, column=column, end_line=end_line, end_column=end_column)


class Span(metaclass=_OfPlaces):
    """Constructor of `aotc.ir.Span` with Relay's argument order: source, line, end line, column,
    end column.
    """
