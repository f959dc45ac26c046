# SPDX-License-Identifier: Apache-2.0
"""Parts of models between given tensors: selected nodes, results, errors and suggestions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aotc
from aotc.relay.frontend.graph_cut import NodeTensors, select_nodes_between_tensors
from aotc.relay.frontend.onnx import cut_model
from tests.cli.invoke import call, refused, save, value


def detector(path: Path) -> Path:
    """Two branches, of which the second ends in an operator that cannot be compiled."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"], name="scale"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Neg", ["a"], ["scores out"], name="neg"),
        helper.make_node("TfIdfVectorizer", ["scores out"], ["i"], name="words"),
    ]
    inputs = [value("x", (1, 2, 10))]
    outputs = [value("b", (1, 2, 10)), value("i", None, TensorProto.INT64)]
    return save(path, nodes, inputs, outputs, w=np.float32(3))


def run(model: object, feeds: dict[str, np.ndarray], **options: object) -> list[np.ndarray]:
    return aotc.compile(model, target="c", cflags=["-O1"], **options).session().run(None, feeds)


X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(1, 2, 10)


def test_a_part_up_to_tensors(tmp_path: Path) -> None:
    model = detector(tmp_path / "m.onnx")
    made = run(model, {"x": X}, cut_after=["scores out", "b"])
    np.testing.assert_array_equal(made, [-3 * X, np.maximum(3 * X, 0)])


def test_a_part_from_tensors_on(tmp_path: Path) -> None:
    model = detector(tmp_path / "m.onnx")
    (made,) = run(model, {"a": X}, cut_before=["a"], cut_after=["b"])
    np.testing.assert_array_equal(made, np.maximum(X, 0))


def test_subgraphs_read_tensors_around_them() -> None:
    then = helper.make_graph([helper.make_node("Neg", ["outer"], ["t"])], "then", [], [value("t")])
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["e"])], "else", [], [value("e")])
    nodes = [
        helper.make_node("Relu", ["x"], ["outer"]),
        helper.make_node("Sin", ["x"], ["useless"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("Cos", ["y"], ["z"]),
    ]
    inputs = [value("x"), value("c", (), TensorProto.BOOL)]
    graph = helper.make_graph(nodes, "g", inputs, [value("z")])
    part = cut_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), [], ["y"])
    assert [node.op_type for node in part.graph.node] == ["Relu", "If"]
    assert [v.name for v in part.graph.input] == ["x", "c"]
    onnx.checker.check_model(part)


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ([], ["q"], "no node of the model computes a tensor called 'q'"),
        (["scores"], [], "did you mean 'scores out'"),
        (["scores out"], ["b"], "do not depend on the tensors 'scores out'"),
        (["b"], ["b"], "do not depend on the tensors 'b'"),
        (["w"], ["b"], "is a constant"),
    ],
)
def test_cuts_that_are_not_possible(tmp_path: Path, before: list[str], after: list[str], complaint: str) -> None:
    flags = [word for name in before for word in ("--cut-before", name)]
    flags += [word for name in after for word in ("--cut-after", name)]
    assert complaint in refused("compile", detector(tmp_path / "m.onnx"), "-o", tmp_path / "net", *flags)
    assert not (tmp_path / "net").exists()


def test_the_hint_of_an_unsupported_node_names_tensors(tmp_path: Path) -> None:
    model = detector(tmp_path / "m.onnx")
    text = refused("compile", model, "-o", tmp_path / "net")
    assert "operator TfIdfVectorizer" in text and "--cut-after 'scores out'" in text
    assert call("verify", model, "--target", "c", "--cut-after", "scores out", "--seeds", "1").code == 0


def test_commands_that_compare_take_the_part(tmp_path: Path) -> None:
    model = detector(tmp_path / "m.onnx")
    ends = ("--cut-after", "b", "--target", "c", "--cflags=-O1")
    timed = call("bench", model, *ends, "--against", "onnxruntime", "--repeat", "2")
    assert timed.code == 0 and "left out" not in timed.out
    assert "'scores out'" not in call("inspect", model, "--cut-after", "b").out


def test_other_forms_of_models_are_not_cut(tmp_path: Path) -> None:
    (tmp_path / "m.relay").write_text("def @main(%x: Tensor[(2), float32]) { nn.relu(%x) }", encoding="utf-8")
    text = refused("compile", tmp_path / "m.relay", "-o", tmp_path / "net", "--cut-after", "y")
    assert "only ONNX and TFLite models can be cut" in text


def test_inputs_that_are_not_needed_are_left_out() -> None:
    nodes = [NodeTensors(("x", "", "k"), ("a",)), NodeTensors(("z",), ("c",)), NodeTensors(("a", "a"), ("b", ""))]
    part = select_nodes_between_tensors(nodes, ["x", "z", "k"], ["b"], [])
    assert (part.nodes, part.inputs) == ([0, 2], ["x", "k"])
    assert select_nodes_between_tensors(nodes, ["x", "z", "k"], ["b"], ["a"]).inputs == ["a"]
