# SPDX-License-Identifier: Apache-2.0
"""Every tutorial runs completely and prints the output that it shows (`...` matches text that differs between runs).

Pages that change the compiler show the changes as differences, and say how many lines these add.  They run with a copy
of the package that has the changes, in a process of their own.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs._ext.tutorial_changes import CHANGE, changed_files

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
PAGES = sorted(TUTORIALS.glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def run(page: Path) -> None:
    """Run the code of a page, and compare what it prints."""
    text = page.read_text(encoding="utf-8")
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


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_tutorial(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if "torch" in text:
        pytest.importorskip("torch")
    from tests.conftest import require_tool  # not for pages that run by themselves, which import this module

    for tool in {"arm-none-eabi-gcc", "qemu-system-arm"} & set(re.findall(r"[\w-]+", text)):
        require_tool(tool)
    changes = CHANGE.findall(text)
    assert len(changes) == text.count("```diff")
    if not changes:
        run(page)
        return
    shutil.copytree(ROOT / "aotc", tmp_path / "aotc")
    for folder in ("tests", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    command = [sys.executable, "docs/_ext/tutorial_changes.py", page.stem]
    patch = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    subprocess.run(["git", "apply"], cwd=tmp_path, input=patch, text=True, check=True)
    for name, (_, new) in changed_files(page).items():
        assert (tmp_path / name).read_text(encoding="utf-8") == new
    assert f"tutorial_changes.py {page.stem} > build/{page.stem}.patch && git apply" in text
    added = sum(line.startswith("+") for _, _, difference in changes for line in difference.splitlines())
    assert f": {added} lines." in text, f"the changes add {added} lines"
    packages = os.pathsep.join(map(str, (tmp_path, ROOT / "codegen", ROOT / "runtime_c")))
    code = f"from tests.examples.test_tutorials import Path, run; run(Path({str(page)!r}))"
    environment = {**os.environ, "PYTHONPATH": packages}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_output_belongs_to_a_block() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("\n```text") == sum(1 for found in BLOCK.finditer(text) if found[2] is not None), page.name
