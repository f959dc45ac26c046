# SPDX-License-Identifier: Apache-2.0
"""The limits of the whole: its size, its longest files and classes, and no circles of imports among files.

What does not keep a limit yet stands in a list of exceptions, which may only shrink.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.arch.sources import (
    OTHERS,
    PYTHON,
    code_lines,
    imports,
    lines_of,
    lines_of_code,
    modules,
    name_of,
    text_of,
    tree_of,
)

CODE_LINES = 59_721
"""Most lines of code of the three packages: Python, C and templates, without blanks, comments and docstrings."""
APART = ("aotc/tir/functions", "aotc/driver/compiler_check.py", "codegen/aotc_codegen/templates/check.c.j2")
"""Counted in no sum: formulas of elementary functions, of which operators need many, and the check of C compilers."""
MEAN_LENGTH = 50.51  # without imports, so that leaving one out is no loss
"""Of lines of Python's code that are no imports, in characters: text does not get smaller by crowding it."""
FILE_LINES = 500
METHODS = 20
"""Of a class, without those whose names begin with two underscores."""

LONG_FILES: set[str] = set()
BIG_CLASSES: set[tuple[str, str]] = set()


def long_files() -> set[str]:
    return {name_of(p) for p in [*PYTHON, *OTHERS] if len(text_of(p).splitlines()) > FILE_LINES}


def big_classes() -> set[tuple[str, str]]:
    return {
        (name_of(path), node.name)
        for path in PYTHON
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and methods(node) > METHODS
    }


def methods(node: ast.ClassDef) -> int:
    return sum(isinstance(d, (ast.FunctionDef, ast.AsyncFunctionDef)) and d.name[:2] != "__" for d in node.body)


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported(path: Path) -> set[str]:
    """The modules of ours that a file imports when it runs, inside of functions too."""
    typing_only = {
        entry for node in ast.walk(tree_of(path)) if is_for_type_checkers(node) for entry in map(tuple, imports(node))
    }
    names = {name for line, name in imports(tree_of(path)) if (line, name) not in typing_only}
    return {n if n in modules() else n.rpartition(".")[0] for n in names} & modules().keys()


def test_files_are_short() -> None:
    assert long_files() <= LONG_FILES


def test_classes_are_small() -> None:
    assert big_classes() <= BIG_CLASSES


def test_no_circles_of_imports_among_files() -> None:
    try:
        TopologicalSorter({name: imported(path) - {name} for name, path in modules().items()}).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_whole_is_small() -> None:
    assert sum(code_lines(p) for p in [*PYTHON, *OTHERS] if not name_of(p).startswith(APART)) <= CODE_LINES


def test_lines_are_no_longer_than_they_were() -> None:
    lengths = [len(line) for path in PYTHON for line in written(path)]
    assert sum(lengths) / len(lengths) <= MEAN_LENGTH


def written(path: Path) -> list[str]:
    """The code of a file without its imports, which may stand in one line or in many."""
    skipped = {k for n in ast.walk(tree_of(path)) if isinstance(n, (ast.Import, ast.ImportFrom)) for k in lines_of(n)}
    lines = text_of(path).splitlines()
    return [lines[k - 1].rstrip() for k in sorted(lines_of_code(path) - skipped)]
