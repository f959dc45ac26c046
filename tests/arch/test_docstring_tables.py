# SPDX-License-Identifier: Apache-2.0
"""Tables in docstrings name only parameters, fields or keys that the documented definition has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arch.sources import PYTHON, name_of, tree_of

#: A row of a table: names, two or more spaces, and their meaning.
ROW = re.compile(r"^((?:[a-z_]\w*, )*[a-z_]\w*)  +\S")
#: Names that stand in a base class, are keywords which a function hands on, or are arguments of the operator.
INHERITED_OR_HANDED_ON = {
    "DenseBitsAttrs": {"weight", "scale", "zero"},
    "DenseIntegerBitsAttrs": {"data", "weight", "scale", "zero"},
    "BenchmarkResult": {"mean", "median", "max", "min", "std"},
    "run_kernel": {"numbers", "output_init", "participants", "backwards"},
    "PadAttrs": {"pad_value"},
    "BackwardFoldScaleAxis": {"only_constants"},
    "ForwardFoldScaleAxis": {"only_constants"},
}
Definition = ast.FunctionDef | ast.ClassDef


def names_in_tables(docstring: str) -> Iterator[str]:
    """Yield the names in the first column of a docstring's tables."""
    for line in docstring.splitlines()[1:]:
        if (row := ROW.match(line)) is not None:
            yield from row[1].split(", ")


def words_of_code(definition: Definition) -> set[str]:
    """Return the identifiers and the words of strings in a definition, its own docstring left out."""
    words: set[str] = set()
    for node in [*definition.body[1:], *([] if isinstance(definition, ast.ClassDef) else [definition.args])]:
        words.update(re.findall(r"\w+", ast.unparse(node)))
    return words


def stale_names(tree: ast.Module) -> list[str]:
    """Return the names in tables of docstrings that the code of the definition does not have."""
    found = []
    for node in ast.walk(tree):
        names = [*names_in_tables(ast.get_docstring(node) or "")] if isinstance(node, Definition) else []
        if names:
            known = words_of_code(node) | INHERITED_OR_HANDED_ON.get(node.name, set())
            found += [f"{node.name}: {name}" for name in names if name not in known]
    return found


@pytest.mark.always
@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_tables_of_docstrings_name_what_exists(path: Path) -> None:
    assert stale_names(tree_of(path)) == []


def test_a_stale_name_is_found() -> None:
    code = '''
def call(name: str, extra_flags: list[str]) -> None:
    """Call it.

    name    the function
    more    further flags
    """
    print(name, extra_flags)
'''
    assert stale_names(ast.parse(code)) == ["call: more"]
