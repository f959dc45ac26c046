# SPDX-License-Identifier: Apache-2.0
"""Source locations of program parts: a model file and node, or a line and column of text.

Span("model.onnx", node="/layer1/Conv")          # model.onnx: node /layer1/Conv
Span("net.relay", line=3, column=7)              # net.relay:3:7
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import field, replace

from aotc.ir.frozen_dataclass import frozen
from aotc.ir.temporary_context_value import temporarily_set_context_variable
from aotc.ir.terminal_safe_text import escape_unsafe_text, mask_unsafe_characters


@frozen
class Span:
    """A source location.

    source     path of the model or text file
    node       name of the node in the model file
    end_line, end_column   end of the location, 0 if unknown
    merged     locations of further nodes, for a node that a rewrite created from several
    text       the source line, for text files
    """

    source: str
    node: str = ""
    line: int = 0
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    merged: tuple[Span, ...] = ()
    text: str = field(default="", compare=False, repr=False)

    @property
    def source_name(self) -> str | None:
        """The file name of the source location, under Relay's name; None if it is unknown."""
        return self.source or None

    def same_as(self, other: object) -> bool:
        """Return True if `other` is this very source location object, not only an equal one."""
        return self is other

    def source_line_excerpt(self) -> str:
        """Return the source line with a caret under the column, cut to 100 characters; "" if there
        is no text.
        """
        if not self.text or not self.column:
            return ""
        left = max(0, self.column - 60)
        line = mask_unsafe_characters(self.text[left : left + 100].replace("\t", " "))
        return f"  {line}\n  {' ' * (self.column - 1 - left)}^"

    def __str__(self) -> str:
        text = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        text = escape_unsafe_text(text)
        if self.node:
            node = escape_unsafe_text(self.node)
            text = f"{text}: node {node}" if text else f"node {node}"
        return text

    def all_origins(self) -> tuple[Span, ...]:
        """Return this source location and those merged into it, without duplicates, in order."""
        return tuple(dict.fromkeys((replace(self, merged=()), *self.merged)))


def merge_spans(spans: Iterable[Span | None]) -> Span | None:
    """Return one span for a node that replaces nodes with the given spans; None if none has a span."""
    origins = list(dict.fromkeys(o for s in spans if s is not None for o in s.all_origins()))
    if not origins:
        return None
    return replace(origins[0], merged=tuple(origins[1:]))


_CURRENT_SPAN: ContextVar[Span | None] = ContextVar("aotc_span", default=None)


def current_span() -> Span | None:
    """Return the default source location of graph nodes being built; None outside of `span_scope`."""
    return _CURRENT_SPAN.get()


def span_scope(span: Span | None) -> AbstractContextManager[Span | None]:
    """Context manager: nodes built in the block get `span` by default; front ends use it per model
    node.
    """
    return temporarily_set_context_variable(_CURRENT_SPAN, span)
