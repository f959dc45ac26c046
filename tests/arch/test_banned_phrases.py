# SPDX-License-Identifier: Apache-2.0
"""Code and documents use the terms of the field (docs/glossary.md) and none of a list of banned phrases.

`phrases.txt` counts the phrases that each file had before this test.  A count may only become smaller.
`python -m tests.arch.test_banned_phrases` writes the counts of today.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.arch.sources import ROOT

COUNTS = Path(__file__).with_name("phrases.txt")

BANNED = {
    r"what becomes of": "result of",
    r"what is wrong with": "problem of, error in",
    r"nibbles?": "packed int4 value, 4-bit integer",
    r"lie two to a byte": "are stored as packed int4",
    r"turned back": "restored; with the sign bit flipped again",
    r"turned inside out": "interchanged (loops)",
    r"dealt out": "partitioned, distributed",
    r"houses?": "package",
    r"roads?": "pipeline",
    r"doors?": "facade, public module",
    r"told apart": "distinguished",
    r"told from": "distinguished from",
    r"by turns": "interleaved, alternately",
    r"kin": "variants",
    r"nobody took": "was never consumed",
    r"never meet": "carry no dependence on each other; do not overlap",
    r"seen by what": "read by an operator that",
    r"nothing can be done in no time": "must be greater than zero",
    r"of such": "name what is meant",
    r"(?:is|are) told": "is given, receives",
    r"whose edges": "whose inputs and outputs",
    r"\w*quantis(?:e|ed|es|er|ers|ing|ation)\w*": "quantize (codespell does not know this one)",
}
"""Phrases without a legitimate use, each with what to write instead."""

WORDS = re.compile(r"\b(?:" + "|".join(BANNED) + r")\b", re.IGNORECASE)
GENITIVE = re.compile(r'"""Of ')
"""A docstring that begins with a genitive without a subject."""

KINDS = {".py", ".pyi", ".md", ".c", ".h", ".cpp", ".cu", ".j2", ".test"}
FOLDERS = ("aotc", "codegen", "runtime_c", "benchmarks", "distribution", "docs", "examples", "tests")
OTHERS = {
    "CHANGELOG.md",
    "aotc/packaging/templates/common/LICENSE-APACHE-2.0.txt.j2",
    "tests/arch/test_banned_phrases.py",
}
"""The history of releases, the text of a license, and this file."""


def files() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in KINDS and not name.startswith(("tests/fuzz/found", "tests/golden/", "docs/generated")):
                yield path


def phrases(path: Path) -> list[str]:
    """The banned phrases of a file, as `LINE: PHRASE (instead)`."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found += [f"{number}: {match[0]!r} (write: {instead(match[0])})" for match in WORDS.finditer(line)]
        found += [f"{number}: {match[0]!r} (begin with a noun)" for match in GENITIVE.finditer(line)]
    return found


def instead(phrase: str) -> str:
    return next(good for bad, good in BANNED.items() if re.fullmatch(bad, phrase, re.IGNORECASE))


@cache
def counted() -> dict[str, list[str]]:
    """The phrases of every file that has some."""
    named = {path.relative_to(ROOT).as_posix(): path for path in files()}
    found = {name: phrases(path) for name, path in sorted(named.items()) if name not in OTHERS}
    return {name: lines for name, lines in found.items() if lines}


def allowed() -> dict[str, int]:
    rows = (line.split() for line in COUNTS.read_text(encoding="utf-8").splitlines())
    return {name: int(count) for count, name in rows}


@pytest.mark.always
def test_no_file_gains_a_banned_phrase() -> None:
    exceptions = allowed()
    more = {name: lines for name, lines in counted().items() if len(lines) > exceptions.get(name, 0)}
    bad = [f"{name}:{line}" for name, lines in more.items() for line in lines]
    assert not bad, "\n".join(bad)


def test_every_exception_is_needed() -> None:
    """A file without banned phrases has no line in phrases.txt."""
    assert [name for name in allowed() if name not in counted()] == []


def test_phrases_are_found(tmp_path: Path) -> None:
    text = '"""Of a call."""\n# What becomes of the NIBBLES\nnibbles_int8 = kind\n'
    (tmp_path / "x.py").write_text(text, encoding="utf-8")
    lines = phrases(tmp_path / "x.py")
    assert [line.partition(":")[0] for line in lines] == ["1", "2", "2"], lines


def write() -> None:
    """Write the counts of today."""
    COUNTS.write_text("".join(f"{len(lines)} {name}\n" for name, lines in counted().items()), encoding="utf-8")


if __name__ == "__main__":
    write()
