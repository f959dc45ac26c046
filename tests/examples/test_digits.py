# SPDX-License-Identifier: Apache-2.0
"""The digits example: C and Python agree, on the accuracy that its page states."""

from __future__ import annotations

import re

from tests.examples.conftest import ROOT, Shell, blocks

FOLDER = ROOT / "examples" / "digits"
ACCURACY = re.compile(r"(C|Python): (\d+) of (\d+) digits right \(([\d.]+) %\)")


def check(printed: str) -> None:
    """Both programs saw all images and found what the page says."""
    c, python = ACCURACY.findall(printed)
    assert (c[0], python[0]) == ("C", "Python")
    assert c[1:] == python[1:]
    assert int(c[2]) == (FOLDER / "digits_test.bin").stat().st_size // 65
    assert f"{c[3]} %" in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert float(c[3]) > 97


def test_make(shell: Shell) -> None:
    check(shell.succeed(f'make -C examples/digits PYTHON=python OUT="{shell.folder}/out"'))


def test_page(shell: Shell) -> None:
    (commands,) = blocks(FOLDER / "README.md", "sh")
    check(shell.succeed(commands))


def test_figures_on_the_page(shell: Shell) -> None:
    shell.succeed("aotc compile examples/digits/digits.onnx -o digits --no-build -q")
    header = (shell.folder / "digits" / "include" / "digits.h").read_text(encoding="utf-8")
    workspace, weights = (
        re.search(rf"DIGITS_{name}_BYTES (\d+)", header).group(1)  # type: ignore[union-attr]
        for name in ("WORKSPACE", "WEIGHTS")
    )
    assert f"workspace is {workspace} bytes and the weights are {weights}" in (FOLDER / "README.md").read_text(
        encoding="utf-8"
    )


def test_classify_refuses_a_missing_file(shell: Shell) -> None:
    shell.succeed(f'make -s -C examples/digits PYTHON=python OUT="{shell.folder}/out"')
    done = shell("out/classify nothing.bin")
    assert done.returncode == 2
    assert "usage" in done.stderr
