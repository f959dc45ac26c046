# SPDX-License-Identifier: Apache-2.0
"""Projects optimized for size, and reports of the bytes of weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aotc
from tests.cli.invoke import call


def network(channels: int = 32, classes: int = 10, size: int = 16) -> onnx.ModelProto:
    """Two 3x3 convolutions, which Winograd's algorithm suits, a mean, and a matrix."""
    rng = np.random.default_rng(1)
    weights = {
        "w1": rng.standard_normal((channels, channels, 3, 3)) / 17,
        "w2": rng.standard_normal((channels, channels, 3, 3)) / 17,
        "w3": rng.standard_normal((classes, channels)),
        "b3": rng.standard_normal(classes),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "w3", "b3"], ["y"], transB=1),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, size, size]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, classes]),
    ]
    arrays = [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def plain_bytes(channels: int = 32, classes: int = 10) -> int:
    return 4 * (2 * 9 * channels**2 + classes * channels + classes)


def printed(*arguments: str | Path) -> str:
    """What a command prints that succeeds."""
    outcome = call(*arguments)
    assert outcome.code == 0, outcome
    return outcome.out


def sizes(**options: Any) -> dict[str, Any]:
    found: dict[str, Any] = aotc.compile(network(), name="net", build=False, **options).metadata["sizes"]
    return found


def test_the_parts_are_all_that_weights_take() -> None:
    usual, small = sizes(target="x86-64-v3"), sizes(target="x86-64-v3", size=True)
    for found in (usual, small):
        assert found["model"] == plain_bytes()
        assert found["weights"] == sum(found[key] for key in ("model", "winograd", "padding", "other"))
        assert abs(found["other"]) < 1024
    # (6 x 6 - 3 x 3) elements more for each of the filters
    assert usual["winograd"] == 2 * (36 - 9) * 32 * 32 * 4 and not usual["small"]
    assert small["winograd"] == 0 and small["small"]
    assert usual["time_ratio"] == small["time_ratio"] > 1.2
    assert small["padding"] <= usual["padding"] < 1024


def test_small_projects_report_the_time_of_winograd_in_groups() -> None:
    weight = numpy_helper.from_array(
        np.random.default_rng(0).standard_normal((128, 64, 3, 3)).astype(np.float32), name="w"
    )
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 128, 28, 28]) for name in "xy"]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4, group=2)
    graph = helper.make_graph([node], "net", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    usual, small = (
        aotc.compile(model, name="net", build=False, target="x86-64-v3", size=size).metadata["sizes"]
        for size in (False, True)
    )
    assert usual["winograd"] > 0 == small["winograd"]
    assert usual["time_ratio"] == small["time_ratio"] > 1.2


@pytest.mark.parametrize("target", ["c", "cortex-m4"])
def test_targets_without_vectors_have_nothing_to_leave_out(target: str) -> None:
    usual, small = sizes(target=target), sizes(target=target, size=True)
    assert {**usual, "small": True} == small and small["winograd"] == 0 and small["time_ratio"] == 1.0


@pytest.mark.parametrize("target", ["host", "x86-64-multi"])
def test_small_projects_compute_the_same(target: str, tmp_path: Path) -> None:
    usual = aotc.compile(network(), output=tmp_path / "usual", name="net", target=target)
    small = aotc.compile(network(), output=tmp_path / "small", name="net", target=target, size=True)
    assert small.metadata["weights_bytes"] < plain_bytes() + 2048 < usual.metadata["weights_bytes"]
    assert small.built.stat().st_size < usual.built.stat().st_size
    for made in (usual, small):
        written = json.loads((made.path / "metadata.json").read_text(encoding="utf-8"))["sizes"]
        assert written == made.metadata["sizes"] and written["library"] == made.built.stat().st_size
    x = np.random.default_rng(2).standard_normal((1, 32, 16, 16)).astype(np.float32)
    first, second = (made.session().run(None, {"x": x})[0] for made in (usual, small))
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def test_code_for_microcontrollers_is_optimized_for_size(tmp_path: Path) -> None:
    for size, level in ((False, "-O2"), (True, "-Os")):
        made = aotc.compile(network(), output=tmp_path / level, name="net", target="cortex-m4", size=size, build=False)
        for file in ("Makefile", "CMakeLists.txt"):
            text = (made.path / file).read_text(encoding="utf-8")
            assert re.findall(r"(-O\w)[ ;]-fno-tree", text) == [level], file


def test_models_with_tuples_and_without_parameters_have_sizes() -> None:
    """A recurrent layer has a tuple of results."""
    rng = np.random.default_rng(3)
    weights = {"w": (1, 64, 8), "r": (1, 64, 16)}
    arrays = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=16)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [5, 1, 8]), ("y", [5, 1, 1, 16]))]
    graph = helper.make_graph([node], "net", ends[:1], ends[1:], arrays)
    lstm = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    relu = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"])],
        "net",
        ends[:1],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [5, 1, 8])],
    )
    bare = helper.make_model(relu, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    for model, expected in ((lstm, 4 * 64 * 24), (bare, 0)):
        for size in (False, True):
            found = aotc.compile(model, name="net", target="x86-64-v3", size=size, build=False).metadata["sizes"]
            # zeros stand for the biases that the node leaves out
            assert expected <= found["model"] <= expected + 1024
            assert found["time_ratio"] == 1.0 and found["winograd"] == 0


def test_the_summary_says_what_costs_what(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "net.onnx")
    words = "compile", tmp_path / "net.onnx", "--target", "x86-64-v3", "--no-build", "-o"
    usual, small = (printed(*words, tmp_path / name, *flags) for name, flags in (("a", ()), ("b", ("--size",))))
    assert "221.2 kB for Winograd convolutions" in usual and "--size leaves 221.2 kB out" in usual
    assert "of the model" in small and "Winograd" not in small and "as long as without --size" in small
    assert "221.2 kB for Winograd convolutions" in printed("inspect", tmp_path / "a")
    found = json.loads(printed("inspect", tmp_path / "b", "--json"))
    assert found["sizes"]["small"] is True and found["sizes"]["model"] == plain_bytes()


def test_a_project_of_an_earlier_version_is_shown(tmp_path: Path) -> None:
    aotc.compile(network(), output=tmp_path / "net", name="net", target="c", build=False)
    path = tmp_path / "net" / "metadata.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["sizes"]
    path.write_text(json.dumps(data), encoding="utf-8")
    shown = printed("inspect", tmp_path / "net")
    assert "parameters" in shown and "of the model" not in shown
