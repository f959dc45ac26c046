# SPDX-License-Identifier: Apache-2.0
"""Model names of a million characters are shortened in every listing of the command; JSON has them in full."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc.ir.terminal_safe_text import MAX_TEXT_CHARACTERS, PreformattedText, escape_texts_in_nested_data
from tests.cli.invoke import call

#: One word, and a name of many words with what a terminal takes for a command; shorter ones that a compiler reads.
WORD, WORDS = "w" * 1_000_000, "\x1b[2J" + "m n " * 250_000
SHORTER = WORD[:30_000], WORDS[:30_000]
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")
MAX_MESSAGE_CHARACTERS = 3 * MAX_TEXT_CHARACTERS


def saved(path: Path, batch: int | str = 1, names: tuple[str, str] = (WORD, WORDS)) -> Path:
    """Two matrix products and a softmax; inputs, outputs, weights and nodes have long names."""
    rng, (word, words) = np.random.default_rng(0), names
    weights = [
        numpy_helper.from_array(rng.standard_normal((16, 16)).astype(np.float32), f"{kind}{name}")
        for kind, name in (("a", word), ("b", words))
    ]
    nodes = [
        helper.make_node("MatMul", [f"x{word}", f"a{word}"], [f"h{word}"], name=f"first{word}"),
        helper.make_node("Softmax", [f"h{word}"], [f"s{words}"], name=f"second{words}"),
        helper.make_node("MatMul", [f"s{words}", f"b{words}"], [f"y{words}"], name=f"third{words}"),
    ]
    x, y = (
        helper.make_tensor_value_info(f"{k}{name}", TensorProto.FLOAT, [batch, 16])
        for k, name in (("x", word), ("y", words))
    )
    graph = helper.make_graph(nodes, words, [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def check_text(text: str) -> None:
    assert text.strip()
    assert not UNSAFE.search(text)
    assert max(map(len, text.split("\n"))) <= MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize("options", [[], ["--memory"], ["--target", "cortex-m4"]])
def test_inspect_a_model(options: list[str], tmp_path: Path) -> None:
    path = saved(tmp_path / "net.onnx")
    outcome = call("inspect", path, *options)
    assert outcome.code == 0
    check_text(outcome.out)
    assert "more characters" in outcome.out or "--memory" in options
    whole = call("inspect", path, *options, "--json")
    assert json.loads(whole.out)["inputs"][0]["name"] == f"x{WORD}"


def test_inspect_a_model_with_open_dimensions(tmp_path: Path) -> None:
    outcome = call("inspect", saved(tmp_path / "net.onnx", f"n{WORD}"))
    assert outcome.code == 0
    check_text(outcome.out)


def test_commands_on_a_compiled_model(tmp_path: Path) -> None:
    """The project is inspected, run, profiled and verified; the reports are short, too."""
    path, project = saved(tmp_path / "net.onnx", names=SHORTER), tmp_path / "out"
    report, roofline = tmp_path / "report.html", tmp_path / "roofline.html"
    made = call("compile", path, "-o", project, "--cflags=-O0", "--timing", "-v", "--report", report)
    assert made.code == 0, made
    check_text(made.out)
    check_text(made.err)
    assert re.search(r"library +\S+ \([\d.]+ [kM]B\)", made.out)
    for arguments in (
        ["inspect", project],
        ["run", project],
        ["run", project, "--profile", "--repeat", "2", "--report", roofline],
        ["verify", path],
    ):
        outcome = call(*arguments)
        assert outcome.code == 0, outcome
        check_text(outcome.out)
    for page in (report, roofline):
        text = page.read_text()
        assert WORD[:2000] not in text and len(text) < 2_000_000
        assert "</html>" in text


def test_what_a_structure_of_texts_becomes() -> None:
    lines = PreformattedText("a\nb" * 3000)
    assert escape_texts_in_nested_data(lines) == lines
    found = escape_texts_in_nested_data({WORD: (1, None, [WORDS, "ok"], {"k": "a\nb"})})
    ((key, (number, nothing, (long, short), inner)),) = found.items()
    assert len(key) <= 400 and len(long) <= MAX_TEXT_CHARACTERS and "\x1b" not in long
    assert (number, nothing, short, inner) == (1, None, "ok", {"k": "a\\nb"})


def test_no_entry_is_lost_where_escaped_keys_are_equal() -> None:
    rows = {"a\nb": 1, "a\\nb": 2, "a\\nb (2)": 3, "x" * 900: 4, "x" * 500 + "y" + "x" * 399: 5, 7: 6}
    shown = escape_texts_in_nested_data(rows)
    assert [*shown.values()] == [1, 2, 3, 4, 5, 6]
    assert [*shown][:3] == ["a\\nb", "a\\nb (2)", "a\\nb (2) (2)"] and [*shown][-1] == 7
