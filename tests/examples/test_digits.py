# SPDX-License-Identifier: Apache-2.0
"""The digits example: C and Python agree, with the accuracy that its page states."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.conftest import skip_or_fail_without
from tests.examples.conftest import ROOT, Shell, blocks

FOLDER = ROOT / "examples" / "digits"
ACCURACY = re.compile(r"(C|Python)(|, int8): (\d+) of (\d+) digits right \(([\d.]+) %\)")
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def check(printed: str) -> None:
    """All programs saw all images and found what the page says, C what Python found."""
    found = ACCURACY.findall(printed)
    images = str((FOLDER / "digits_test.bin").stat().st_size // 65)
    for network, said in (("", "Both print the same accuracy, {} %"), (", int8", "as many right: {} % too")):
        c, python = sorted(row for row in found if row[1] == network)
        assert (c[0], python[0]) == ("C", "Python")
        assert c[2:] == python[2:] and c[3] == images
        assert said.format(c[4]) in " ".join(README.split())
        assert float(c[4]) > 97


def test_make(shell: Shell) -> None:
    check(shell.succeed(f'make -C examples/digits PYTHON=python OUT="{shell.folder}/out"'))


def test_page(shell: Shell) -> None:
    (commands,) = blocks(FOLDER / "README.md", "sh")
    check(shell.succeed(commands))


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("digits", "", "The workspace is {} bytes and the weights are {};"),
        ("digits_int8", "--target c --io-dtype uint8", "those of the twin are {} and {}."),
    ],
)
def test_figures_on_the_page(shell: Shell, name: str, options: str, said: str) -> None:
    shell.succeed(f"aotc compile examples/digits/{name}.onnx -o {name} {options} --no-build -q")
    header = (shell.folder / name / "include" / f"{name}.h").read_text(encoding="utf-8")
    sizes = [
        re.search(rf"{name.upper()}_{what}_BYTES (\d+)", header).group(1)  # type: ignore[union-attr]
        for what in ("WORKSPACE", "WEIGHTS")
    ]
    assert said.format(*sizes) in " ".join(README.split())


def test_the_twin_can_be_made_again(shell: Shell) -> None:
    """The same layers are quantized, with weights and ranges that are those of the file in the repository."""
    if importlib.util.find_spec("onnxruntime") is None:
        skip_or_fail_without("onnxruntime")
    (command,) = re.findall(r"^aotc quantize (?:.*\\\n)*.*", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE)
    shell.succeed(f"mkdir build && {command.partition('#')[0]} --no-build")
    paths = shell.folder / "build" / "digits_int8.onnx", FOLDER / "digits_int8.onnx"
    made, kept = (onnx.load(path).graph for path in paths)
    assert [node.op_type for node in made.node] == [node.op_type for node in kept.node]
    for tensors in zip(made.initializer, kept.initializer, strict=True):
        a, b = map(numpy_helper.to_array, tensors)
        off_by = 1 if a.dtype.kind in "iu" else 0
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=1e-5, atol=off_by)


def test_calibration_data() -> None:
    """They are images of the example."""
    with np.load(FOLDER / "calibration.npz") as file:
        images = file["image"]
    rows = np.fromfile(FOLDER / "digits_test.bin", np.uint8).reshape(-1, 65)[:60, :64]
    np.testing.assert_array_equal(images * 16, rows.reshape(60, 1, 8, 8))


def test_classify_refuses_a_missing_file(shell: Shell) -> None:
    shell.succeed(f'make -s -C examples/digits PYTHON=python OUT="{shell.folder}/out"')
    done = shell("out/classify nothing.bin")
    assert done.returncode == 2
    assert "usage" in done.stderr
