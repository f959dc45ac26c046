# SPDX-License-Identifier: Apache-2.0
"""The code in docs/start, docs/how-to and docs/gallery runs and prints the output on the pages.

Blocks run in order, in a folder of their own: `sh` by a shell, `python` by an interpreter.  A block of another language
whose first line is a comment with the path of a file is written to that file.  A `text` block after a command is its
output, where `...` stands for any text.  If the block begins with `error:`, the command fails with this message.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.conftest import require_tool
from tests.examples.conftest import ROOT, Shell
from tests.share import share

PAGES = sorted(p for folder in ("start", "how-to", "gallery") for p in (ROOT / "docs" / folder).glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^(?://|#) (\S+\.\w+)$")
SLOW = {"resnet_cpp"}
"""Pages whose networks take long to compile."""
CASES = [*share([p for p in PAGES if p.stem not in SLOW], 10), *share([p for p in PAGES if p.stem in SLOW], 0)]
TOOLS = {"cmake", "arm-none-eabi-gcc", "qemu-system-arm"}


def agrees(shown: str, printed: str) -> bool:
    """Return True if a page shows the output of a program; `...` on the page stands for any text."""
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return checker.check_output(shown.strip() + "\n", printed.strip() + "\n", flags)


def run(page: Path, shell: Shell) -> int:
    """Run the blocks of a page; return the number of commands among them."""
    printed: str | None = None
    count = 0
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    for (language, content), (_, shown) in zip(blocks, [*blocks, ("", "")][1:], strict=True):
        if language == "text":
            assert printed is None or agrees(content, printed), f"{page.name} shows\n{content}\nbut got\n{printed}"
            printed = None
            continue
        if language == "python":
            (shell.folder / "page.py").write_text(content, encoding="utf-8")
        if language in ("sh", "python"):
            command = "python page.py" if language == "python" else content
            printed = shell.fail(command) if shown.startswith("error:") else shell.succeed(command)
            count += 1
        elif (named := FILE.match(content.partition("\n")[0])) is not None:
            path = shell.folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    return count


@pytest.mark.always
@pytest.mark.parametrize("page", CASES, ids=lambda p: p.stem)
def test_page(page: Path, shell: Shell) -> None:
    text = page.read_text(encoding="utf-8")
    for tool in TOOLS & set(re.findall(r"[\w-]+", text)):
        require_tool(tool)
    commands = len(re.findall(r"^```(?:sh|python)$", text, re.MULTILINE))
    assert run(page, shell) == commands


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_pages_write_below_build(page: Path) -> None:
    """Pages write below build/ only, and put no file into a folder that the README uses for another project."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    written = [named[1] for _, content in blocks if (named := FILE.match(content.partition("\n")[0])) is not None]
    written += [path for _, content in blocks for path in re.findall(r"(?<=\s-o )\S+", content)]
    assert [path for path in written if not path.startswith("build/")] == []
    folders = {str(Path(path).parent) for path in written}
    readme = re.findall(r"(?<=\s-o )\S+", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert folders.isdisjoint(path for path in readme if not path.startswith(("build/digits", "build/board")))


def test_wrong_output_is_found(shell: Shell) -> None:
    page = shell.folder / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="but got"):
        run(page, shell)
