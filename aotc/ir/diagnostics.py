# SPDX-License-Identifier: Apache-2.0
"""AotcError, the exception for all errors of users, with its diagnostics: problem, location and
hint.

raise AotcError("onnx-op", "operator FooBar is not supported", span=span, hint="see `aotc ops`")
raise AotcError.collect(diagnostics)             # several problems at once
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from aotc.ir.frozen_dataclass import frozen, set_frozen_fields
from aotc.ir.option_mentions_in_messages import join_texts, map_texts_between_references, rename_options_in_text
from aotc.ir.terminal_safe_text import escape_unsafe_text

if TYPE_CHECKING:
    from aotc.ir.span import Span


@frozen
class Diagnostic:
    """One problem: a stable `code`, a message, a source location, notes and a hint.

    All texts are made printable (see `aotc.ir.terminal_safe_text`), because they may quote names
    from the model.  Where a text names options (see `aotc.ir.option_mentions_in_messages`), it is as Python's
    callers write them.
    """

    code: str
    message: str
    span: Span | None = None
    notes: tuple[str, ...] = ()
    hint: str = ""

    def __post_init__(self) -> None:
        set_frozen_fields(
            self,
            message=_escape_unsafe_parts_of_text(self.message),
            notes=tuple(map(_escape_unsafe_parts_of_text, self.notes)),
            hint=_escape_unsafe_parts_of_text(self.hint),
        )

    def map_texts(self, function: Callable[[str], str]) -> Diagnostic:
        """Return the diagnostic with `function` applied to its message, its notes and its hint."""
        return replace(
            self, message=function(self.message), notes=tuple(map(function, self.notes)), hint=function(self.hint)
        )

    def text(self) -> str:
        """Return all of the diagnostic as one text, which keeps references to options."""
        lines = [f"{self.span}: " + self.message if self.span is not None else self.message]
        lines += [excerpt for excerpt in (self.span.source_line_excerpt() if self.span is not None else "",) if excerpt]
        lines += ["  note: " + note for note in self.notes]
        if self.hint:
            lines.append("  hint: " + self.hint)
        return join_texts("\n", lines)

    def __str__(self) -> str:
        return str(self.text())


def _escape_unsafe_parts_of_text(text: str) -> str:
    return map_texts_between_references(text, escape_unsafe_text)


def diagnostic_texts(diagnostics: Sequence[Diagnostic]) -> list[str]:
    """Return the text of each diagnostic; a hint that several share appears only with the last of
    them.
    """
    last = {d.hint: k for k, d in enumerate(diagnostics)}
    return [(d if last[d.hint] == k else replace(d, hint="")).text() for k, d in enumerate(diagnostics)]


class AotcError(Exception):
    """The exception for errors that the user can correct; `diagnostics` holds one or more problems."""

    def __init__(
        self, code: str, message: str, *, span: Span | None = None, notes: Sequence[str] = (), hint: str = ""
    ) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (Diagnostic(code, message, span, tuple(notes), hint),)
        super().__init__(str(self.diagnostics[0]))

    @classmethod
    def collect(cls, diagnostics: Iterable[Diagnostic]) -> AotcError:
        """Return one AotcError that holds all of `diagnostics` (at least one)."""
        items = tuple(diagnostics)
        error = cls(items[0].code, items[0].message)
        error._set_diagnostics(items)
        return error

    def _set_diagnostics(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        self.diagnostics = diagnostics
        self.args = ("\n".join(diagnostic_texts(diagnostics)),)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).collect, (self.diagnostics,)

    @property
    def code(self) -> str:
        return self.diagnostics[0].code

    def with_default_span(self, span: Span | None) -> AotcError:
        """Return the error with the source location `span` added to diagnostics that have no
        location.
        """
        if span is None:
            return self
        return AotcError.collect(
            Diagnostic(d.code, d.message, d.span or span, d.notes, d.hint) for d in self.diagnostics
        )


@contextmanager
def rename_options_in_errors(**keywords: str) -> Iterator[None]:
    """Context manager for a function that passes its arguments to parameters of other names: rename
    options in an AotcError from the block, so that it names the parameters of the caller.

    keywords   parameters of the function that enters the block, by those of the function called in it
    """
    try:
        yield
    except AotcError as error:
        error._set_diagnostics(
            tuple(d.map_texts(lambda text: rename_options_in_text(text, keywords)) for d in error.diagnostics)
        )
        raise


class AotcTypeError(AotcError, TypeError):
    """Argument of a wrong type passed to the Python interface."""


class AotcValueError(AotcError, ValueError):
    """Argument of the right type but with an invalid value passed to the Python interface."""


def did_you_mean_hint(name: str, candidates: Iterable[str]) -> str:
    """Return a hint naming up to three candidates closest to a misspelt `name`; "" if none is
    close.
    """
    close = difflib.get_close_matches(name, list(candidates), n=3)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""


def require_known_name(error_code: str, kind: str, name: object, known_names: Collection[str]) -> None:
    """Raise AotcError unless `name` is in `known_names`; the hint names the closest known names,
    else all.
    """
    if name not in known_names:
        hint = did_you_mean_hint(str(name), known_names) or f"known: {', '.join(known_names)}"
        raise AotcError(error_code, f"unknown {kind} {name!r}", hint=hint)


def assert_never(value: NoReturn) -> NoReturn:
    """Mark an unreachable case of a match statement for the type checker (typing.assert_never needs
    Python 3.11).
    """
    raise AssertionError(f"unhandled case: {value!r}")
