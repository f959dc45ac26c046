# SPDX-License-Identifier: Apache-2.0
"""Every tutorial runs from top to bottom and prints what it shows (`...` stands for what differs between runs)."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
from pathlib import Path
from typing import Any

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = sorted(TUTORIALS.glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_tutorial(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if "torch" in text:
        pytest.importorskip("torch")
    names: dict[str, Any] = {"__name__": "tutorial"}
    for found in BLOCK.finditer(text):
        code, expected = found.groups()
        line = text.count("\n", 0, found.start()) + 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, str(page), "exec"), names)
        if expected is None:
            assert not printed.getvalue(), f"{page.name}:{line} prints what the page does not show"
            continue
        same = doctest.OutputChecker().check_output(
            expected.strip() + "\n", printed.getvalue().strip() + "\n", doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
        assert same, f"{page.name}:{line} prints\n{printed.getvalue()}instead of\n{expected}"


def test_every_output_belongs_to_a_block() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("\n```text") == sum(1 for found in BLOCK.finditer(text) if found[2] is not None), page.name
