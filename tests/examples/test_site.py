# SPDX-License-Identifier: Apache-2.0
"""`make docs` builds the site without a warning; the forms of glossary, decisions and changelog are checked."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aotc
from tests.examples.conftest import ROOT

DOCS = ROOT / "docs"


def build(source: Path, folder: Path, builder: str, *pages: Path) -> subprocess.CompletedProcess[str]:
    """Sphinx, with warnings as errors: broken internal links and pages that no other page leads to are warnings.

    The builder `dummy` reads and resolves all pages without writing files, in a third of the time of `html`.
    """
    options = ["-q", "-W", "--keep-going", "-b", builder, "-d", folder / "doctrees"]
    command = [sys.executable, "-m", "sphinx", *options, source, folder / builder, *pages]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


@pytest.mark.always
def test_site(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    done = build(DOCS, tmp_path, "dummy")
    assert done.returncode == 0, done.stderr
    names = ["index", "generated/command", "generated/python", "generated/passes"]
    done = build(DOCS, tmp_path, "text", *(DOCS / f"{name}.md" for name in names))
    assert done.returncode == 0, done.stderr
    assert [name for name in names if not (tmp_path / "text" / f"{name}.txt").is_file()] == []
    text = (tmp_path / "text/generated/command.txt").read_text(encoding="utf-8")
    assert "--io-dtype" in text and "--bisect" in text


def test_broken_links_fail(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    source = tmp_path / "source"
    source.mkdir()
    configuration = (DOCS / "conf.py").read_text(encoding="utf-8").replace('"reference"', "")
    (source / "conf.py").write_text(configuration.replace("__file__", repr(str(DOCS / "conf.py"))), encoding="utf-8")
    (source / "index.md").write_text("# Page\n\n[elsewhere](nowhere.md)\n", encoding="utf-8")
    done = build(source, tmp_path, "dummy")
    assert done.returncode != 0 and "nowhere.md" in done.stderr, done.stderr


def test_glossary() -> None:
    """60 to 140 terms, each once, in one line, in alphabetical order within its section."""
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    sections = [re.findall(r"^\| (?!term|---)(.+?) \|", part, re.MULTILINE) for part in text.split("\n## ")[1:]]
    terms = [term for section in sections for term in section]
    assert 60 <= len(terms) <= 140 and len(set(terms)) == len(terms)
    assert all(section == sorted(section, key=str.lower) for section in sections)


@pytest.mark.parametrize("note", sorted(DOCS.glob("decisions/0*.md")), ids=lambda p: p.stem)
def test_decisions_have_status_date_and_measurements(note: Path) -> None:
    first, _, third, _, row = note.read_text(encoding="utf-8").splitlines()[:5]
    assert re.match(rf"# {note.name[:4]}: \w|# {note.name[:4]}: `", first) and third == "| status | date | measured |"
    status, date, measured = (field.strip() for field in row.strip("|").split("|"))
    assert re.match(r"accepted|rejected|superseded by \[", status) and measured
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_changelog() -> None:
    """The first release is the version of the package, and each release has at most ten highlights."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    versions = [re.match(r"(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)\n", release) for release in releases]
    assert all(versions) and versions[0] is not None and versions[0][1] == aotc.__version__
    for release in releases:
        highlights = release.partition("### Highlights\n")[2].partition("\n### ")[0]
        assert 1 <= len(re.findall(r"^- ", highlights, re.MULTILINE)) <= 10


def test_fragments_become_a_release(tmp_path: Path) -> None:
    pytest.importorskip("towncrier")
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "changes", tmp_path / "changes")
    (tmp_path / "changes" / "+example.fixed.md").write_text("An example.\n", encoding="utf-8")
    options = ["build", "--yes", "--version", "9.9.9", "--dir", str(tmp_path)]
    command = [sys.executable, "-m", "towncrier", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.index("## 9.9.9 (") < text.index("- An example.") < text.index(f"## {aotc.__version__} (")
