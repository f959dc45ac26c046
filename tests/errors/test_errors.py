# SPDX-License-Identifier: Apache-2.0
"""docs/errors.md lists every diagnostic code, and each of its examples ends with the diagnostic of its code.

python -m pytest tests/errors --update-golden     # write the messages anew
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from aotc.cli.main import import_command, main
from aotc.cli.options_in_messages import spell_option_references_for_command
from aotc.ir.diagnostics import Diagnostic
from tests.conftest import ROOT
from tests.errors.error_examples import Entry, Surroundings, entries

PAGE = ROOT / "docs" / "errors.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
RAISING = (
    "AotcError",
    "AotcTypeError",
    "AotcValueError",
    "Diagnostic",
    "require",
    "require_known_name",
    "require_scalar_tensor_type",
    "require_tensor_of_rank",
    "require_valid_file",
    "refuse_unless",
)


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Surroundings:
    return Surroundings(tmp_path_factory.mktemp("errors"))


def section(name: str) -> str:
    return TEXT.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


def shown(message: str, folder: Path) -> str:
    """A message without what differs between machines and runs: folders, digests, what a C compiler says."""
    text = message.replace(str(folder), "...")
    text = re.sub(rf"{tempfile.gettempdir()}(/[\w.-]+)+(?=/[\w.-]+)", "...", text)
    text = re.sub(r"(aotc-\w+-[\w.-]+?)-[0-9a-f]{8}\.json", r"\1.json", text)
    text = re.sub(r"[0-9a-f]{64}", "...", re.sub(r"0x[0-9a-f]{6,}", "0x...", text))
    text = re.sub(r"(note: cc:|the command was: cc|note: in|note: In) .*", r"\1 ...", text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE) + "\n"


@pytest.mark.always
@pytest.mark.parametrize("name", SECTIONS)
def test_examples(name: str, surroundings: Surroundings, tmp_path: Path, update_golden: bool) -> None:
    """Each ends with a diagnostic of its code, whose text is the one that the page shows."""
    wrong: list[str] = []
    page = PAGE.read_text(encoding="utf-8")
    for number, entry in enumerate(entries(section(name))):
        folder = tmp_path / str(number)
        found = surroundings.diagnostics(entry, folder)
        message = next((shown(in_both_spellings(d), folder) for d in found if d.code == entry.code), "")
        if not message:
            wrong.append(f"{entry.code}: {[(d.code, d.message) for d in found]}")
        elif update_golden:
            page = replaced(page, entry, message)
        elif message != entry.message:
            wrong.append(f"{entry.code}: the page shows\n{entry.message}it is\n{message}")
    if update_golden:
        PAGE.write_text(page, encoding="utf-8")
    assert not wrong, "\n".join(wrong)


def in_both_spellings(found: Diagnostic) -> str:
    """The text for Python's callers, with the hint that the command shows if its users read another one."""
    with click.Context(main) as group, click.Context(import_command("compile"), parent=group):
        hint = spell_option_references_for_command(found.hint)
    return str(found) if hint == found.hint else f"{found}\n  hint of the command: {hint}"


def replaced(page: str, entry: Entry, message: str) -> str:
    """The page with another message in an entry."""
    old = next(e for e in entries(page) if e.code == entry.code)
    return page[: old.place.start] + message + page[old.place.stop :]


def codes(path: Path) -> Iterator[str]:
    """The codes that a file raises, as regular expressions: what is filled in may be anything."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        given = [k.value for k in node.keywords if k.arg in ("code", "error_code")]
        for value in [*(node.args[:1] if name in RAISING else ()), *given]:
            match value:
                case ast.Constant(value=str(text)):
                    yield re.escape(text).replace(
                        r"graph\-", r"(onnx|torch|tflite)\-"
                    )  # the front end's name stands for it
                case ast.JoinedStr(values=parts):
                    yield "".join(re.escape(p.value) if isinstance(p, ast.Constant) else ".+" for p in parts)


@pytest.mark.always
def test_every_code_has_an_entry() -> None:
    known = [entry.code for entry in entries(TEXT)]
    assert len(set(known)) == len(known)
    files = [p for top in ("aotc", "codegen") for p in (ROOT / top).rglob("*.py")]
    raised = {code for path in files for code in codes(path)}
    missing = [code for code in sorted(raised) if not any(re.fullmatch(code, k) for k in known)]
    assert not missing, f"docs/errors.md lacks {', '.join(missing)}"


def test_entries_are_in_order() -> None:
    for name in SECTIONS:
        found = [entry.code for entry in entries(section(name))]
        assert found == sorted(found)
        assert found, f"no entries under {name}"
