# SPDX-License-Identifier: Apache-2.0
"""Every code block of the README runs unchanged and does what the page says."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arch.test_layers import FACADES, LAYER_IMPORTS
from tests.cli.invoke import call
from tests.conftest import require_tool
from tests.examples.conftest import ROOT, Shell, blocks

README = ROOT / "README.md"
GENERATED = ROOT / "docs" / "generated"
PAGES = sorted(
    p
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for p in ROOT.glob(pattern)
    if not p.is_relative_to(GENERATED)
)


def block(language: str, word: str) -> str:
    """The one block in a language that holds a word."""
    (found,) = [text for text in blocks(README, language) if word in text]
    return found


def test_every_block_is_run_here() -> None:
    text = README.read_text(encoding="utf-8")
    languages = re.findall(r"^```(\w+)$", text, re.MULTILINE)
    assert sorted(languages) == ["c", "cmake", "python", "sh", "sh", "sh", "sh"]


def test_make_targets_exist(shell: Shell) -> None:
    targets = {line.split()[0] for line in shell.succeed(f'make -s -C "{ROOT}" help').splitlines()}
    assert {line.split()[1] for line in block("sh", "make demo").splitlines()} <= targets


def test_model_and_arguments_reach_the_demo(shell: Shell) -> None:
    (line,) = re.findall(r"`make (demo MODEL=path.onnx ARGS=[^`]*)`", README.read_text(encoding="utf-8"))
    printed = shell.succeed(f'cd "{ROOT}" && make --dry-run VENV=/nonexistent/venv {line}')
    assert '-m examples.demo --model "path.onnx" --dim batch=1' in printed


@pytest.fixture
def compiled(shell: Shell) -> Shell:
    """The checkout after the Python example, with the C example in build/app.c."""
    (shell.folder / "example.py").write_text(block("python", "aotc.load"), encoding="utf-8")
    assert re.search(r"class \d in \d+ bytes of workspace", shell.succeed("python example.py"))
    (shell.folder / "build" / "app.c").write_text(block("c", "digits_run"), encoding="utf-8")
    return shell


def zero(printed: str) -> float:
    found = re.search(r"score of zero: ([\d.]+)", printed)
    assert found is not None, printed
    return float(found.group(1))


def test_python_then_c(compiled: Shell) -> None:
    assert 0 < zero(compiled.succeed(block("sh", "build/app"))) < 1


def test_c_example_has_no_warnings(compiled: Shell) -> None:
    strict = "-Wall -Wextra -Wconversion -Wshadow -Werror -pedantic"
    compiled.succeed(f"cc -std=c11 {strict} -Ibuild/digits/include -c build/app.c -o build/app.o")


def test_cmake(compiled: Shell) -> None:
    require_tool("cmake")
    (compiled.folder / "build" / "CMakeLists.txt").write_text(block("cmake", "add_subdirectory"), encoding="utf-8")
    printed = compiled.succeed(
        "cmake -S build -B build/cmake >log && cmake --build build/cmake >>log && build/cmake/app"
    )
    assert 0 < zero(printed) < 1


@pytest.mark.always
def test_commands(shell: Shell) -> None:
    printed = shell.succeed(block("sh", "aotc inspect"))
    assert "all outputs agree" in printed and "nn.conv2d" in printed
    assert (shell.folder / "build" / "out.npz").exists() and any((shell.folder / "build" / "ir").iterdir())


def test_what_firmware_keeps_free(shell: Shell) -> None:
    require_tool("arm-none-eabi-gcc")
    printed = shell.succeed(block("sh", "cortex-m4"))
    assert re.search(r"RAM \d+ bytes with inputs and outputs, flash \d+ \(measured\), stack at most \d+", printed)
    assert "digits_int8_selftest" in (shell.folder / "build/board/include/digits_int8.h").read_text()


def options_on(page: Path) -> Iterator[str]:
    """Return the options of aotc that a page names; `cmake --build` has an option of another program."""
    return iter(re.findall(r"(?<![\w-])(?<!cmake )--[a-z][a-z-]+", page.read_text(encoding="utf-8")))


def test_options_exist() -> None:
    commands = ("compile", "run", "verify", "bench", "quantize", "tune", "cache", "inspect", "ops", "package")
    known = "".join(call(c, "--help").out for c in commands)
    assert [option for option in options_on(README) if option not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", prose)
    # pages of reference are made by `make docs`
    paths = [(page.parent / link).resolve() for link in links]
    assert [p for p in paths if not p.exists() and not p.is_relative_to(GENERATED)] == []


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"], ids=str)
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"`((?:aotc|codegen|docs|examples|runtime_c|tests|benchmarks)(?:/[\w./*-]+)+)`", text)
    assert [p for p in paths if not list(ROOT.glob(p.rstrip("/")))] == []


def test_files_that_decisions_name_exist() -> None:
    """Decision notes name existing Python files only, also where a note omits the folder."""
    names = [
        p.as_posix() for top in ("aotc", "codegen", "tests", "benchmarks", "docs") for p in (ROOT / top).rglob("*.py")
    ]
    missing = [
        (note.name, name)
        for note in ROOT.glob("docs/decisions/0*.md")
        for name in re.findall(r"`([\w./]+\.py)`", note.read_text(encoding="utf-8"))
        if not any(path.endswith(f"/{name}") for path in names)
    ]
    assert missing == []


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(aotc[\w.]*)`", text))
    assert set(LAYER_IMPORTS) | FACADES <= named
    assert [n for n in named if importlib.util.find_spec(n) is None] == []


def test_the_index_links_every_decision() -> None:
    text = (ROOT / "docs" / "decisions" / "index.md").read_text(encoding="utf-8")
    assert [p.name for p in ROOT.glob("docs/decisions/0*.md") if f"({p.name})" not in text] == []
