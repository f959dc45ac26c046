# SPDX-License-Identifier: Apache-2.0
"""Where a piece of a program came from: a model file and node, or a line and column of text.

Span("model.onnx", node="/layer1/Conv")          # model.onnx: node /layer1/Conv
Span("net.relay", line=3, column=7)              # net.relay:3:7
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import field, replace

from aotc.ir.context_variables import setting
from aotc.ir.frozen_dataclass import frozen
from aotc.ir.printable import masked, printable


@frozen
class Span:
    """A source location.

    end_line, end_column   where it ends, 0 where that is not known
    merged   the other origins of a node that a rewrite made out of several
    text     the line of the source, where that is text
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
        """Relay's word for the source; None where there is none."""
        return self.source or None

    def same_as(self, other: object) -> bool:
        """Whether this is that very object."""
        return self is other

    def excerpt(self) -> str:
        """The place in its line of text, with a caret below; "" without one.  Long lines are cut around it."""
        if not self.text or not self.column:
            return ""
        left = max(0, self.column - 60)
        line = masked(self.text[left : left + 100].replace("\t", " "))
        return f"  {line}\n  {' ' * (self.column - 1 - left)}^"

    def __str__(self) -> str:
        text = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        text = printable(text)
        if self.node:
            node = printable(self.node)
            text = f"{text}: node {node}" if text else f"node {node}"
        return text

    def origins(self) -> tuple[Span, ...]:
        """This location and all merged ones, each once, in order."""
        return tuple(dict.fromkeys((replace(self, merged=()), *self.merged)))


def merge_spans(spans: Iterable[Span | None]) -> Span | None:
    """One span for a node that replaces nodes with these spans; None if none has one."""
    origins = list(dict.fromkeys(o for s in spans if s is not None for o in s.origins()))
    if not origins:
        return None
    return replace(origins[0], merged=tuple(origins[1:]))


_SCOPE: ContextVar[Span | None] = ContextVar("aotc_span", default=None)


def current_span() -> Span | None:
    """The span that nodes built now get where none is given."""
    return _SCOPE.get()


def span_scope(span: Span | None) -> AbstractContextManager[Span | None]:
    """Nodes built inside come from `span`: a front end wraps the conversion of one model node in it."""
    return setting(_SCOPE, span)
