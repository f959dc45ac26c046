# SPDX-License-Identifier: Apache-2.0
"""Text that names options of the compiler, for messages and hints: a keyword for Python's callers,
an option for users of the command.

hint = "pin it: " + option_text("dims", {"batch": 1})    # pin it: dims={"batch": 1}
spell_option_references_for_command(hint)                                  # pin it: --dim batch=1

The string itself is the Python spelling.  The text keeps references to its options, so that the code
that shows it can spell them in another way: `spell_option_references_for_command` in
`aotc.cli.options_in_messages` derives the spelling of a reference from the declarations of the
command's options, which `aotc.ir.option_description` describes.  Concatenation with + keeps
references; f-strings lose them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, Final, TypeAlias

from aotc.ir.frozen_dataclass import frozen
from aotc.ir.terminal_safe_text import escape_unsafe_text


@frozen
class OptionReference:
    """An option of the compiler, with or without a value.

    keyword    parameter of the command's function and of the Python function of the same purpose
    value      None to name the option alone
    function   name of the Python function that has the keyword, if callers of functions without it
               may read the text; "" otherwise
    """

    keyword: str
    value: Any = None
    function: str = ""

    def __str__(self) -> str:
        """Return the spelling in Python: `keyword`, keyword=value or function(..., keyword=value)."""
        if self.value is None:
            return f"`{self.keyword}`"
        setting = f"{self.keyword}={python_expression(self.value)}"
        return f"{self.function}(..., {setting})" if self.function else setting


@frozen
class CommandOrPython:
    """A name of a command, for users of the command line, and of a Python function that does the same
    work, for Python's callers.
    """

    command: str
    python: str

    def __str__(self) -> str:
        """Return the text for Python's callers."""
        return self.python


Reference: TypeAlias = "OptionReference | CommandOrPython"
TextPart: TypeAlias = "str | Reference"


class OptionText(str):
    """A string with references to options, which a user of the command reads in another spelling.

    parts   texts and references, whose strings joined are the string itself
    """

    parts: tuple[TextPart, ...]

    def __new__(cls, *parts: TextPart) -> OptionText:
        """Join parts; references are escaped for terminals, since values may come from a model."""
        text = super().__new__(cls, "".join(_part_text_with_spelled_reference(part, str) for part in parts))
        text.parts = parts
        return text

    def __add__(self, other: str) -> OptionText:
        return OptionText(*self.parts, *split_into_texts_and_references(other))

    def __radd__(self, other: str) -> OptionText:
        return OptionText(*split_into_texts_and_references(other), *self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return OptionText, self.parts

    def text_with_spelled_references(self, spell_reference: Callable[[Reference], str]) -> str:
        """Return the text as a plain string in which a function spells the references."""
        return "".join(_part_text_with_spelled_reference(part, spell_reference) for part in self.parts)


def option_text(keyword: str, value: Any = None, function: str = "") -> OptionText:
    """Return text that names an option, set to a value if one is given.

    keyword    a parameter that the command's function and the Python function have in common
    value      as the Python function takes it; None names the option without a value
    function   name of the Python function that has the keyword, if callers of functions without it
               may read the text; "" otherwise
    """
    return OptionText(OptionReference(keyword, value, function))


def text_for_command_or_python(*, command: str, python: str) -> OptionText:
    """Return text that is `command` for users of the command, and `python` for Python's callers."""
    return OptionText(CommandOrPython(command, python))


def split_into_texts_and_references(text: str) -> tuple[TextPart, ...]:
    """Return the texts and references that a string consists of; a plain string is one text."""
    return text.parts if isinstance(text, OptionText) else (text,)


def join_texts(separator: str, texts: Iterable[str]) -> str:
    """Join strings as str.join does; references to options are kept."""
    first, *others = [*texts] or [""]
    return reduce(lambda joined, text: joined + separator + text, others, first)


def map_texts_between_references(text: str, function: Callable[[str], str]) -> str:
    """Return a string with `function` applied to its texts, but not to its references."""
    if not isinstance(text, OptionText):
        return function(text)
    return OptionText(*(function(part) if isinstance(part, str) else part for part in text.parts))


def rename_options_in_text(text: str, new_keyword_by_old: Mapping[str, str]) -> str:
    """Return a string in which options have other keywords.

    new_keyword_by_old   new keywords by present keywords; options with other keywords remain as they are
    """
    if not isinstance(text, OptionText):
        return text
    return OptionText(*(_rename_option_in_reference(part, new_keyword_by_old) for part in text.parts))


def _rename_option_in_reference(part: TextPart, new_keyword_by_old: Mapping[str, str]) -> TextPart:
    if not isinstance(part, OptionReference):
        return part
    return replace(part, keyword=new_keyword_by_old.get(part.keyword, part.keyword))


def _part_text_with_spelled_reference(part: TextPart, spell_reference: Callable[[Reference], str]) -> str:
    return part if isinstance(part, str) else escape_unsafe_text(spell_reference(part))


def python_expression(value: object) -> str:
    """Return a value as a Python expression, with double quotes around strings."""
    match value:
        case str():
            return repr(value) if '"' in value or "\\" in repr(value) else f'"{value}"'
        case Mapping():
            return "{" + ", ".join(f"{python_expression(k)}: {python_expression(v)}" for k, v in value.items()) + "}"
        case tuple() if len(value) != 1:
            return f"({', '.join(map(python_expression, value))})"
        case tuple() | list():
            return f"[{', '.join(map(python_expression, value))}]"
        case _:
            return repr(value)


#: The entry point of the compiler.
COMPILE_CALL: Final = text_for_command_or_python(command="`aotc compile`", python="aotc.compile")
