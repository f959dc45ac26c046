# SPDX-License-Identifier: Apache-2.0
"""Limits on the size of files and functions, and a license line in every source file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.arch.sources import OTHERS, PYTHON, ROOT, name_of, text_of, tree_of

RUNTIME = [p for p in OTHERS if p.suffix in {".c", ".h"} and p.is_relative_to(ROOT / "runtime_c")]
C = [p for p in RUNTIME if p.parent.name != "emulator"]
TEMPLATES = [p for p in OTHERS if p.suffix == ".j2" and p.is_relative_to(ROOT / "codegen")]

FUNCTION_LINES = 60
RUNTIME_LINES = 2980


@pytest.mark.always
@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, f"{node.name} is too long"


@pytest.mark.always
@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_modules_say_what_they_do(path: Path) -> None:
    assert text_of(path).startswith("# SPDX-License-Identifier: Apache-2.0")
    if path.name != "__init__.py":
        assert ast.get_docstring(tree_of(path)), "no module docstring"


def test_the_runtime_is_small() -> None:
    assert sum(len(text_of(p).splitlines()) for p in C) <= RUNTIME_LINES
    assert all("SPDX-License-Identifier" in text_of(p).splitlines()[0] for p in C)


@pytest.mark.parametrize("path", TEMPLATES, ids=name_of)
def test_templates_hold_no_logic(path: Path) -> None:
    """Only `{{ value }}` and a flat `{% for row in rows %}`."""
    depth = 0
    for directive in re.findall(r"{%-?\s*(\w+)", text_of(path)):
        assert directive in {"for", "endfor"}, f"{{% {directive} %}}"
        depth += 1 if directive == "for" else -1
        assert depth <= 1, "a nested loop"
