# SPDX-License-Identifier: Apache-2.0
"""Files and functions stay small enough to read, and every source file says its licence."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = sorted(p for top in ("aotc", "codegen", "runtime_c") for p in (ROOT / top).rglob("*.py"))
C = sorted(p for pattern in ("*.c", "*.h") for p in (ROOT / "runtime_c").rglob(pattern))
TEMPLATES = sorted((ROOT / "codegen").rglob("*.j2"))

FILE_LINES = 600
FUNCTION_LINES = 60
RUNTIME_LINES = 1500


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_functions_and_files_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, f"{node.name} is too long"


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_modules_say_what_they_do(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0")
    if path.name != "__init__.py":
        assert ast.get_docstring(ast.parse(text)), "no module docstring"


def test_the_runtime_is_small() -> None:
    assert sum(len(p.read_text(encoding="utf-8").splitlines()) for p in C) <= RUNTIME_LINES
    assert all("SPDX-License-Identifier" in p.read_text(encoding="utf-8").splitlines()[0] for p in C)


@pytest.mark.parametrize("path", TEMPLATES, ids=name_of)
def test_templates_hold_no_logic(path: Path) -> None:
    """Only `{{ value }}` and a flat `{% for row in rows %}`."""
    depth = 0
    for directive in re.findall(r"{%-?\s*(\w+)", path.read_text(encoding="utf-8")):
        assert directive in {"for", "endfor"}, f"{{% {directive} %}}"
        depth += 1 if directive == "for" else -1
        assert depth <= 1, "a nested loop"
