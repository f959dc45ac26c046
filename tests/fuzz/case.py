# SPDX-License-Identifier: Apache-2.0
"""Fuzzing cases: their interface, and the possible verdicts of a case.

A case is some files, made from a seed by a kind; the first is the model.  A kind checks the files in a folder: it
returns a word for what happened ("accepted", "agreed"), raises AotcError for a refusal, and anything else is a fault.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from aotc.ir.diagnostics import AotcError

Files: TypeAlias = "dict[str, bytes]"
Stage: TypeAlias = "Callable[[str], None]"
"""Told what begins; a name that starts with "other:" is somebody else's code, whose death is not ours."""

ROOT = Path(__file__).parents[2]
SOURCES = ("aotc", "codegen", "runtime_c")

INTERNALS = re.compile(
    r"Traceback|NoneType|object has no attribute|values to unpack|index out of range|not subscriptable|unhashable"
    r"|object is not (?:iterable|callable)|object at 0x|<class '|<function |<built-in|unsupported operand type"
    r"|\b(?:Value|Type|Key|Index|Attribute|Assertion|Overflow|ZeroDivision|Unicode\w+|Recursion)Error\b"
    r"|could not be broadcast|cannot reshape array|axes don't match|could not convert string|invalid literal for"
    r"|object cannot be interpreted|expected at (?:most|least) \d+ arguments|positional argument|unexpected keyword"
    r"|codec can't|Expecting (?:value|property)|Extra data: line|must be (?:str|real number|bytes), not"
    r"|too large to convert to C|Python int|maximum recursion|dictionary changed|buffer is smaller"
)
"""Words of Python and numpy that no diagnostic may show."""


@dataclass(frozen=True)
class Verdict:
    """What came of a case.

    outcome     "accepted", "agreed", "refused", "no reference" or, for faults, what kind of fault
    signature   equal for faults that are probably the same one; "" if there is no fault
    detail      for people
    """

    outcome: str
    signature: str = ""
    detail: str = ""

    @property
    def is_fault(self) -> bool:
        return bool(self.signature)


class Found(Exception):
    """A fault that a kind sees itself: a wrong result, a sanitizer's report."""

    def __init__(self, outcome: str, where: str, detail: str) -> None:
        super().__init__(detail)
        self.verdict = Verdict(outcome, f"{outcome}: {where}", detail)


class Kind(Protocol):
    """A kind of cases.

    make      the files for a seed; the numbers in `without` name mutations that are left out
    check     run them; see above
    smaller   variants of files that are simpler, the boldest first; they need not make sense
    command   what a user types to see a fault of the files in a folder; "" where only a replay shows it
    """

    name: str

    def make(self, seed: int, without: frozenset[int] = frozenset()) -> Files: ...
    def check(self, folder: Path, stage: Stage) -> str: ...
    def smaller(self, files: Files) -> Iterator[Files]: ...
    def command(self, folder: Path) -> str: ...


@dataclass
class Mutations:
    """Draws how many mutations a seed means, and a generator for each, so that some can be left out."""

    seed: int
    without: frozenset[int] = field(default_factory=frozenset)
    most: int = 5

    def base(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, 0])

    def each(self) -> Iterator[np.random.Generator]:
        count = int(np.random.default_rng([self.seed, 1]).geometric(0.5))
        for k in range(min(count, self.most)):
            if k not in self.without:
                yield np.random.default_rng([self.seed, 2, k])


def innermost(frames: Sequence[tuple[str, str]]) -> str:
    """The innermost of (file, function) that is ours, from the outermost on: "aotc/relay/type_inference.py:visit"."""
    for file, function in reversed(frames):
        path = Path(file)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in SOURCES:
            return f"{path.relative_to(ROOT)}:{function}"
    return "elsewhere"


def verdict_of(error: BaseException) -> Verdict:
    """What an exception says about a case."""
    if isinstance(error, Found):
        return error.verdict
    text = "".join(traceback.format_exception(error))
    where = innermost([(f.filename, f.name) for f in traceback.extract_tb(error.__traceback__)])
    if isinstance(error, MemoryError):
        return Verdict("memory", f"memory: {where}", text)
    if not isinstance(error, AotcError):
        return Verdict("error", f"error: {type(error).__name__} in {where}", text)
    for diagnostic in error.diagnostics:
        problem = poor(diagnostic.code, str(diagnostic))
        if problem:
            plain = re.sub(r"/\S+|'[^']*'|\b0x\w+|-?\d+", "#", diagnostic.message)[:70]
            return Verdict("internals", f"internals: {diagnostic.code} in {where}: {plain}", f"{problem}\n{text}")
    return Verdict("refused", detail=f"{error.code}: {error}")


def poor(code: str, text: str) -> str:
    """Return the defect of a diagnostic; "" if it has none."""
    if not code:
        return "a diagnostic without a code"
    found = INTERNALS.search(text)
    if found:
        return f"a diagnostic shows {found.group()!r}: {text[:500]}"
    return f"a diagnostic of {len(text)} characters" if len(text) > 20_000 else ""


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """The files in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def read(folder: Path) -> Files:
    """The files in a folder, but for those that tell of the fault."""
    names = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "FAULT.txt")
    return {str(p.relative_to(folder)): p.read_bytes() for p in names}
