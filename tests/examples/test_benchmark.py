# SPDX-License-Identifier: Apache-2.0
"""The benchmark prints a complete row for a model, and one line for each model that it cannot measure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from tests.examples.conftest import Shell

BENCHMARK = f'"{sys.executable}" -m benchmarks.run'


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    declare = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "dynamic",
        [declare("x", TensorProto.FLOAT, ["n"])],
        [declare("y", TensorProto.FLOAT, ["n"])],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "dynamic.onnx")
    return tmp_path / "dynamic.onnx"


def test_row(shell: Shell) -> None:
    pytest.importorskip("onnxruntime")
    printed = shell.succeed(f"{BENCHMARK} --repeat 3 --against onnxruntime examples/digits/digits.onnx")
    header, _, row = (line.split(" | ") for line in printed.splitlines() if line.startswith("|"))
    assert len(row) == len(header)
    figures = dict(zip((h.strip("| ") for h in header), (r.strip("| ") for r in row), strict=True))
    assert (figures["model"], figures["threads"]) == ("digits", "1")
    assert float(figures["aotc min"]) <= float(figures["median"])
    assert float(figures["onnxruntime"]) > 0 and float(figures["ratio"]) > 0
    assert 0 <= float(figures["difference"]) < 1e-5
    assert "load" in printed and "onnxruntime" in printed


def test_dynamic_model_is_pinned_or_refused(shell: Shell, dynamic: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = shell(f'{BENCHMARK} "{dynamic}"')
    assert done.returncode == 2
    assert "--dim" in done.stderr and "Traceback" not in done.stderr
    assert "| dynamic |" in shell.succeed(f'{BENCHMARK} --repeat 1 --against onnxruntime "{dynamic}" --dim n=3')
