# SPDX-License-Identifier: Apache-2.0
"""Where a piece of a program came from: a model file and node, or a line and column of text.

Span("model.onnx", node="/layer1/Conv")          # model.onnx: node /layer1/Conv
Span("net.relay", line=3, column=7)              # net.relay:3:7
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A source location.  `merged` keeps the other origins of a node that a rewrite made out of several."""

    source: str
    node: str = ""
    line: int = 0
    column: int = 0
    merged: tuple[Span, ...] = ()

    def __str__(self) -> str:
        text = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        if self.node:
            text = f"{text}: node {self.node}" if text else f"node {self.node}"
        return text

    def origins(self) -> tuple[Span, ...]:
        """This location and all merged ones, each once, in order."""
        return tuple(dict.fromkeys((Span(self.source, self.node, self.line, self.column), *self.merged)))


def merge_spans(spans: Iterable[Span | None]) -> Span | None:
    """One span for a node that replaces nodes with these spans; None if none has one."""
    origins = list(dict.fromkeys(o for s in spans if s is not None for o in s.origins()))
    if not origins:
        return None
    first = origins[0]
    return Span(first.source, first.node, first.line, first.column, tuple(origins[1:]))


_SCOPE: ContextVar[Span | None] = ContextVar("aotc_span", default=None)


def current_span() -> Span | None:
    """The span that nodes built now get where none is given."""
    return _SCOPE.get()


@contextmanager
def span_scope(span: Span | None) -> Iterator[None]:
    """Nodes built inside come from `span`: a front end wraps the conversion of one model node in it."""
    token = _SCOPE.set(span)
    try:
        yield
    finally:
        _SCOPE.reset(token)
