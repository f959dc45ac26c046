# SPDX-License-Identifier: Apache-2.0
"""Print the changes that a tutorial makes to the sources as one patch.

mkdir -p build
python docs/_ext/tutorial_changes.py add_an_operator > build/change.patch && git apply build/change.patch

The `diff` blocks of a tutorial have no line numbers, so they remain valid if other lines of the files change.  Each
block is applied to the sources of this checkout, in which its unchanged and removed lines must occur exactly once.
"""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHANGE = re.compile(r"^```diff\n--- (\S+)\n\+\+\+ b/(\S+)\n@@\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def changed_files(page: Path) -> dict[str, tuple[str | None, str]]:
    """Return old and new content of each file that a tutorial changes, by path; a new file has no old content."""
    files: dict[str, tuple[str | None, str]] = {}
    for old_name, name, difference in CHANGE.findall(page.read_text(encoding="utf-8")):
        lines = difference.splitlines(keepends=True)
        if old_name == "/dev/null":
            assert not (ROOT / name).exists(), f"{name} exists"
            files[name] = (None, "".join(line[1:] for line in lines))
            continue
        original, content = files.get(name) or [(ROOT / name).read_text(encoding="utf-8")] * 2
        before, after = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
        assert before and content.count(before) == 1, f"{name} holds {content.count(before)} times\n{before}"
        files[name] = (original, content.replace(before, after))
    return files


def patch_of_tutorial(page: Path) -> str:
    """Return the changes of a tutorial as a patch that `git apply` and `patch -p1` accept."""
    parts = []
    for name, (old, new) in changed_files(page).items():
        source = "/dev/null" if old is None else f"a/{name}"
        lines = [(old or "").splitlines(keepends=True), new.splitlines(keepends=True)]
        parts += difflib.unified_diff(*lines, source, f"b/{name}")
    return "".join(parts)


if __name__ == "__main__":
    print(patch_of_tutorial(ROOT / "docs" / "tutorials" / f"{Path(sys.argv[1]).stem}.md"), end="")
