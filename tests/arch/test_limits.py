# SPDX-License-Identifier: Apache-2.0
"""Limits on the length of files and the number of methods in a class, and no circular imports between files.

What does not keep a limit yet stands in a list of exceptions, which may only shrink.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.arch.sources import OTHERS, PYTHON, imports, modules, name_of, text_of, tree_of

FILE_LINES = 600
METHODS = 20
"""Largest number of methods of a class, without special methods (`__init__` etc.)."""

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
