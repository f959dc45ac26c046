# SPDX-License-Identifier: Apache-2.0
"""Templates are compiled once, and compiled again where their bytecode is missing, damaged or of another text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from aotc_codegen.c import template_rendering
from aotc_codegen.c.template_rendering import render_template


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of templates whose bytecode may be written."""
    monkeypatch.setattr(template_rendering, "_TEMPLATES_FOLDER", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return tmp_path


def rendered(text: str, folder: Path) -> str:
    """What the template `t` with this text gives in a new process."""
    template_rendering._template_environment.cache_clear()
    (folder / "t.j2").write_text(text, encoding="utf-8")
    try:
        return render_template("t", name="net")
    finally:
        template_rendering._template_environment.cache_clear()


def test_bytecode_is_written_and_used(templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendered("int {{ name }};", templates) == "int net;"
    (kept,) = (templates / "__pycache__").iterdir()
    monkeypatch.setattr("jinja2.Environment.compile", None)
    assert rendered("int {{ name }};", templates) == "int net;"
    monkeypatch.undo()
    assert kept.is_file()


def test_bytecode_of_another_text_is_replaced(templates: Path) -> None:
    rendered("int {{ name }};", templates)
    (kept,) = (templates / "__pycache__").iterdir()
    before = kept.read_bytes()
    assert rendered("long {{ name }};", templates) == "long net;"
    assert kept.read_bytes() != before


def test_damaged_bytecode_is_replaced(templates: Path) -> None:
    rendered("int {{ name }};", templates)
    (kept,) = (templates / "__pycache__").iterdir()
    for damaged in (b"", kept.read_bytes()[:-20], b"\n".join([kept.read_bytes().split(b"\n")[0], b""])):
        kept.write_bytes(damaged)
        assert rendered("int {{ name }};", templates) == "int net;"


def test_nothing_is_written_where_python_writes_nothing(templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert rendered("int {{ name }};", templates) == "int net;"
    assert not (templates / "__pycache__").exists()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (templates / "__pycache__").write_text("not a folder", encoding="utf-8")
    assert rendered("int {{ name }};", templates) == "int net;"
