# SPDX-License-Identifier: Apache-2.0
"""Read `.test` files: text cases of graph passes, each a module before, passes with options, and
the module after.

    [case fold_constant_adds_two_constants]
    # The sum of two constants is computed at compile time.
    [pass FoldConstant]
    [before]
    def @main(%x: Tensor[(2), float32]) { add(%x, add(1f, 2f)) }
    [after]
    def @main(%x: Tensor[(2), float32]) -> Tensor[(2), float32] {
      add(%x, 3f)
    }

`SECTIONS` explains every section. CONTRIBUTING.md explains how to write a case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from aotc.ir import did_you_mean_hint

SECTIONS: Final = {
    "case": "begins a case and names it; comment lines below it say what the case proves",
    "pass": "a pass with its options, `[pass FuseOps(max_args=3)]`; several such lines are run in order",
    "compiler": "an external compiler and the operators that it supports, `[compiler one exp nn.relu]`",
    "context": "arguments of the PassContext, `[context opt_level=4]`; without it opt_level is 3",
    "inputs": "values of parameters, one `%x = $normal(2, 3)` a line; other parameters get random values",
    "tolerance": "bounds of errors of results: rtol, atol, of_largest (share of the largest magnitude, at least 1) and "
    "mismatches (share of the elements); any_float_type=True accepts other floating-point types; bits are compared "
    "without a tolerance",
    "not_executed": "the reason for which no results are compared, `[not_executed @main has 10^12 elements]`",
    "idempotent": "applying the passes to their result returns that object",
    "before": "the module given to the passes",
    "after": "the module that the passes return, as the printer writes it",
    "unchanged": "the passes return the object that they are given",
    "error": "the diagnostics that the passes raise",
    "reasons": "why rewrite rules did not apply where they matched, one `RULE: REASON` a line, sorted",
}
TAKES_ARGUMENT: Final = frozenset({"case", "pass", "compiler", "context", "tolerance", "not_executed"})
MAY_BE_REPEATED: Final = frozenset({"pass", "compiler"})
OUTCOMES: Final = ("after", "unchanged", "error")
#: Sections that have no effect in a case with the section that is the key: no results are compared,
#: or the passes return nothing.
SECTIONS_WITHOUT_EFFECT: Final = {
    "not_executed": frozenset({"inputs", "tolerance"}),
    "unchanged": frozenset({"inputs", "tolerance", "not_executed"}),
    "error": frozenset({"inputs", "tolerance", "not_executed", "idempotent", "reasons"}),
}

_HEADING_REGEX: Final = re.compile(r"\[([a-z_]+)(?: (.*))?\]\s*")
_NAME_REGEX: Final = re.compile(r"[a-z][a-z0-9_]*")


class CaseFileError(Exception):
    """A `.test` file that is not well formed; the text begins with the file and the line."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}")


@dataclass(frozen=True)
class Section:
    """A section of a case.

    argument    the text after the section's name inside the brackets, or ""
    line        number of the line of the heading; the body begins on the next line
    body        the lines below the heading, without blank lines and comments at the end
    """

    name: str
    argument: str
    line: int
    body: str

    @property
    def end_line(self) -> int:
        """Number of the last line of the heading and the body."""
        return self.line + (self.body.count("\n") + 1 if self.body else 0)


@dataclass(frozen=True)
class Case:
    """One case of a `.test` file: its sections in the order of the file, `[case ...]` first."""

    path: Path
    name: str
    sections: tuple[Section, ...]

    @property
    def line(self) -> int:
        return self.sections[0].line

    def all_sections(self, name: str) -> list[Section]:
        """Return the sections called `name`, in order."""
        return [section for section in self.sections if section.name == name]

    def optional_section(self, name: str) -> Section | None:
        """Return the section called `name`, or None if the case has none."""
        return next(iter(self.all_sections(name)), None)

    def section(self, name: str) -> Section:
        """Return the section called `name`, which the case has."""
        return self.all_sections(name)[0]

    @property
    def outcome(self) -> Section:
        """The section that states the result: `[after]`, `[unchanged]` or `[error]`."""
        return next(section for section in self.sections if section.name in OUTCOMES)

    def fail(self, line: int, message: str) -> NoReturn:
        """Raise CaseFileError for a line of this case."""
        raise CaseFileError(self.path, line, message)


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a `.test` file; raise CaseFileError if the file is not well formed."""
    groups: list[list[Section]] = []
    for section in _read_sections(path):
        if section.name == "case":
            groups.append([])
        elif not groups:
            raise CaseFileError(path, section.line, f"[{section.name}] belongs to no case; begin with [case NAME]")
        groups[-1].append(section)
    cases = [Case(path, group[0].argument, tuple(group)) for group in groups]
    if not cases:
        raise CaseFileError(path, 1, "the file has no case; begin one with [case NAME]")
    line_of_name: dict[str, int] = {}
    for case in cases:
        _check_case(case)
        _check_sections_have_effect(case)
        if case.name in line_of_name:
            case.fail(case.line, f"a case called {case.name} begins on line {line_of_name[case.name]}, too")
        line_of_name[case.name] = case.line
    return cases


def replace_body(case: Case, section: Section, body: str) -> None:
    """Write a new body of a section of `case` into its file, wherever the case stands there now."""
    (current,) = (c for c in read_cases(case.path) if c.name == case.name)
    old = current.section(section.name)
    lines = case.path.read_text(encoding="utf-8").split("\n")
    lines[old.line : old.end_line] = body.split("\n")
    case.path.write_text("\n".join(lines), encoding="utf-8")


def _read_sections(path: Path) -> Iterator[Section]:
    """Yield the sections of a file in order; raise CaseFileError for wrong headings and stray text."""
    lines = path.read_text(encoding="utf-8").split("\n")
    headings = [(k, match) for k, line in enumerate(lines) if (match := _HEADING_REGEX.fullmatch(line))]
    ends = [k for k, _ in headings[1:]] + [len(lines)] * bool(headings)
    for k, line in enumerate(lines):
        if line.startswith("[") and not _HEADING_REGEX.fullmatch(line):
            raise CaseFileError(path, k + 1, f"malformed heading {line!r}: write [name] or [name argument]")
        if line.strip() and not line.startswith("#") and k < (headings[0][0] if headings else len(lines)):
            raise CaseFileError(path, k + 1, f"{line!r} belongs to no case; begin with [case NAME], comments with #")
    for (start, match), end in zip(headings, ends, strict=True):
        name, argument = match[1], (match[2] or "").strip()
        if name not in SECTIONS:
            hint = did_you_mean_hint(name, SECTIONS) or f"sections are {', '.join(SECTIONS)}"
            raise CaseFileError(path, start + 1, f"there is no section [{name}]; {hint}")
        if bool(argument) != (name in TAKES_ARGUMENT):
            problem = "takes no argument" if argument else "needs an argument"
            raise CaseFileError(path, start + 1, f"[{name}] {problem}: {SECTIONS[name]}")
        body = lines[start + 1 : end]
        while body and (not body[-1].strip() or (name != "case" and body[-1].startswith("# "))):
            body = body[:-1]
        yield Section(name, argument, start + 1, "\n".join(body))


def _check_case(case: Case) -> None:
    """Raise CaseFileError unless a case has a name, an explanation, passes, a module before, and
    one outcome.
    """
    heading = case.sections[0]
    if not _NAME_REGEX.fullmatch(case.name):
        case.fail(case.line, f"the name {case.name!r} of a case must be words in lower case joined by _")
    if not heading.body.startswith("# ") or any(not s.startswith("#") for s in heading.body.splitlines() if s):
        case.fail(case.line, f"say in comment lines (# ...) below [case {case.name}] what the case proves")
    for name in ("pass", "before"):
        if not case.all_sections(name):
            case.fail(case.line, f"the case has no section [{name}]: {SECTIONS[name]}")
    for section in case.sections:
        if section.name not in MAY_BE_REPEATED and case.section(section.name) is not section:
            case.fail(section.line, f"the case has a second section [{section.name}]")
        takes_body = section.name in {"case", "inputs", "before", "after", "error", "reasons"}
        if not takes_body and any(not s.startswith("# ") for s in section.body.splitlines() if s):
            case.fail(section.line + 1, f"[{section.name}] is one line, without text below it")
    if not case.section("before").body:
        case.fail(case.section("before").line, "the section [before] is empty")
    outcomes = [section for section in case.sections if section.name in OUTCOMES]
    if len(outcomes) != 1:
        listed = ", ".join(f"[{section.name}]" for section in outcomes) or "none"
        case.fail(case.line, f"the case needs one of [after], [unchanged] and [error], and has {listed}")


def _check_sections_have_effect(case: Case) -> None:
    """Raise CaseFileError for a section that has no effect because of another section of the case."""
    for name, unused in SECTIONS_WITHOUT_EFFECT.items():
        for section in case.sections if case.all_sections(name) else ():
            if section.name in unused:
                case.fail(section.line, f"[{section.name}] has no effect in a case with [{name}]; remove one of them")
