# SPDX-License-Identifier: Apache-2.0
"""Strings in compiled C against ONNX Runtime: operators of ONNX and of ai.onnx.ml on tensors of strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import aotc
from aotc.checking.verify import _strings_as_numbers, verify
from aotc.ir import AotcError
from aotc.relay.frontend.onnx import from_onnx
from tests.frontend.string_cases import BOOL, FLOAT, INT64, STRING, Cases, strings

KEYS = ["cat", "dog", "", "häuser", "a word of twenty-six bytes", "a\0b", "a", "ab", "語"]
#: Known and unknown strings, among them prefixes of keys and strings longer than each key.
X = np.array([["cat", "dog", "cats"], ["", "häuser", "h"], ["a\0b", "a", "語"]], object)
LONG = np.array([["a word of twenty-six bytes", "a word of twenty-six bytes!"]], object)
NUMBERS = np.array([[2, 7, -1], [0, 8, 3]], np.int64)
FEATURES = np.array([[1, 2], [-1, 0.3], [0, 0], [0.5, 0.5]], np.float32)
STEPS = list(range(10, 10 + len(KEYS)))


def test_encoders() -> None:
    cases = Cases()
    for x in (X, LONG):
        cases.ml("LabelEncoder", x, INT64, keys_strings=KEYS, values_int64s=STEPS)
        cases.ml("LabelEncoder", x, INT64, keys_strings=KEYS[:1], values_int64s=[5], default_int64=9)
        cases.ml("LabelEncoder", x, FLOAT, keys_strings=["dog", "dog"], values_floats=[1.5, 2.5])
        cases.ml("LabelEncoder", x, STRING, keys_strings=KEYS, values_strings=KEYS[::-1], default_string="nö")
        cases.ml("OneHotEncoder", x, FLOAT, cats_strings=KEYS)
        cases.ml("CategoryMapper", x, INT64, cats_strings=KEYS, cats_int64s=STEPS)
        cases.ml("CategoryMapper", x, INT64, cats_strings=["x" * 99], cats_int64s=[1])
        cases.ml("CategoryMapper", x, INT64, cats_strings=["dog", "dog"], cats_int64s=[1, 2])
    cases.ml("LabelEncoder", NUMBERS, STRING, keys_int64s=[2, 7, 3], values_strings=["two", "sieben", ""])
    cases.ml("LabelEncoder", FEATURES, STRING, keys_floats=[2.0, -1.0, np.nan], values_strings=["a", "", "nan"])
    cases.ml("CategoryMapper", NUMBERS, STRING, cats_strings=["a", "bb", "c"], cats_int64s=[7, 3, 7],
             default_string="?")  # fmt: skip
    cases.check()


def test_first_version_of_label_encoder() -> None:
    cases = Cases()
    cases.ml("LabelEncoder", X, INT64, classes_strings=KEYS, default_int64=-3)
    cases.ml("LabelEncoder", X, INT64, classes_strings=["dog", "dog"])
    cases.ml("LabelEncoder", NUMBERS, STRING, classes_strings=["a", "b", "c"], default_string="?")
    cases.check(version=1)


def test_string_labels_of_classifiers() -> None:
    cases = Cases()
    two, three = ["no", "yes, surely"], ["a", "bb", "ccc"]
    weights = [0.3, -0.2, 0.1, 0.4, -0.5, 0.6]
    svm = {"rho": [0.2], "kernel_params": [0.5, 0.1, 2.0]}
    for labels in (two, three):
        n = len(labels)
        cases.ml("LinearClassifier", FEATURES, STRING, FLOAT, coefficients=weights[: 2 * n], intercepts=[0.1] * n,
                 classlabels_strings=labels)  # fmt: skip
        pairs = n * (n - 1) // 2
        cases.ml("SVMClassifier", FEATURES, STRING, FLOAT, coefficients=weights[: n * (n - 1)],
                 support_vectors=weights[: 2 * n], vectors_per_class=[1] * n, classlabels_strings=labels,
                 **(svm | {"rho": [0.2] * pairs}))  # fmt: skip
        cases.ml("TreeEnsembleClassifier", FEATURES, STRING, FLOAT, classlabels_strings=labels, **small_forest(n))
    cases.ml("LinearClassifier", FEATURES, STRING, FLOAT, coefficients=weights[:2], intercepts=[0.1],
             classlabels_strings=two)  # fmt: skip
    cases.check()


def small_forest(classes: int) -> dict[str, Any]:
    """One tree of three nodes; with two classes, its leaves have weights for the second one."""
    ids = [1, 1] if classes == 2 else [0, 2]
    return {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.4, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "class_treeids": [0, 0],
        "class_nodeids": [1, 2], "class_ids": ids, "class_weights": [0.2, 0.9],
    }  # fmt: skip


def test_operators_that_move_and_compare_strings() -> None:
    cases = Cases()
    one, row = (STRING,), strings(["a", "語", "cat"])
    int64s = lambda *values: np.array(values, np.int64)  # noqa: E731
    cases.add("Identity", X, types=one)
    cases.add("Reshape", X, types=one, constants=(int64s(1, -1),))
    cases.add("Flatten", X, types=one, axis=0)
    cases.add("Transpose", X, types=one, perm=[1, 0])
    cases.add("Unsqueeze", row, types=one, constants=(int64s(0, 2),))
    cases.add("Squeeze", X[None], types=one, constants=(int64s(0),))
    cases.add("Expand", row, types=one, constants=(int64s(2, 3),))
    cases.add("Tile", X, types=one, constants=(int64s(2, 1),))
    cases.add("Slice", X, types=one, constants=(int64s(2), int64s(-4), int64s(1), int64s(-2)))
    cases.add("Split", X, types=(STRING, STRING), constants=(int64s(1, 2),), axis=1)
    cases.add("Concat", X, X, types=one, axis=1)
    cases.add("Concat", X, types=one, constants=(strings([["long constant string", "x", "y"]]),), axis=0)
    cases.add("Gather", X, np.array([1, -1]), types=one, axis=1)
    cases.add("GatherElements", X, np.array([[0, -1, 1]]), types=one, axis=0)
    cases.add("GatherND", X, np.array([[0, 1], [2, -1]]), types=one)
    cases.add("Where", np.array([[True], [False], [True]]), X, row, types=one)
    cases.add("Equal", X, row, types=(BOOL,))
    cases.add("Equal", X, types=(BOOL,), constants=(strings("語"),))
    cases.add("Shape", X, types=(INT64,))
    cases.add("Size", X, types=(INT64,))
    cases.add("Cast", X, types=one, to=STRING)
    cases.add("StringConcat", X, row, types=one)
    cases.add("StringConcat", strings("h"), types=one, constants=(strings(["äuser", "", "\0"]),))
    cases.add("StringNormalizer", row, types=one)
    cases.ml("ArrayFeatureExtractor", X, STRING)
    cases.nodes[-1].input.append("columns")
    cases.initializers.append(helper.make_tensor("columns", INT64, [2], [2, 0]))
    cases.check()


def test_constants_are_strings() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["a"], value_strings=["x", "yé"]),
            helper.make_node("Constant", [], ["b"], value=helper.make_tensor("", STRING, [1], [b"!"])),
            helper.make_node("StringConcat", ["a", "b"], ["c"]),
            helper.make_node("Constant", [], ["classes"], value_strings=["zero", "one", "two"]),
            helper.make_node("ArrayFeatureExtractor", ["classes", "k"], ["d"], domain="ai.onnx.ml"),
        ],
        "constants",
        [helper.make_tensor_value_info("k", INT64, [2])],
        [helper.make_tensor_value_info(n, STRING, None) for n in "cd"],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    session = aotc.compile(helper.make_model(graph, opset_imports=opsets), cflags=("-O0",)).session()
    c, d = session.run(None, {"k": np.array([2, 0])})
    assert c.tolist() == ["x!", "yé!"] and d.tolist() == [["two", "zero"]]
    assert [o.type for o in session.get_outputs()] == ["tensor(string)"] * 2
    assert [o.shape for o in session.get_outputs()] == [[2], [1, 2]]


def identity(shape: tuple[Any, ...] = (2,), name: str = "x", op: str = "Identity") -> ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, [name], ["y"], name="node0")],
        "identity",
        [helper.make_tensor_value_info(name, STRING, shape)],
        [helper.make_tensor_value_info("y", STRING, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_inputs_state_their_largest_size() -> None:
    with pytest.raises(AotcError, match="'x' holds strings, and their largest size is not known") as caught:
        from_onnx(identity())
    assert caught.value.diagnostics[0].code == "onnx-string"
    assert '{"x": 64}' in str(caught.value)
    for size in (0, -1, 1 << 30, (1, 9)):
        with pytest.raises(AotcError, match="not 1 to"):
            from_onnx(identity(), dims={"x": size})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["ok", "語語語"], "'語語語' has 9 bytes in UTF-8; at most 8 are allowed"),
        (["ok", "\ud800"], "has no UTF-8 text"),
        (["ok", 3], "int in place of a string"),
        (["ok", None], "NoneType in place of a string"),
        (["ok", b"ok"], "bytes in place of a string"),
    ],
)
def test_strings_that_do_not_fit(session: Any, values: list[Any], text: str) -> None:
    with pytest.raises(AotcError, match=text) as caught:
        session.run(None, {"x": strings(values)})
    assert caught.value.diagnostics[0].code == "input-string" and "'x'" in str(caught.value)


@pytest.fixture(scope="module")
def session() -> Any:
    return aotc.compile(identity(), dims={"x": 8}, cflags=("-O0",)).session()


def test_session_takes_strings_in_each_form(session: Any) -> None:
    texts = ["語語", "a\0\0"]
    for given in (strings(texts), np.array(texts, np.dtypes.StringDType())):
        (y,) = session.run(None, {"x": given})
        assert y.dtype == object and y.tolist() == texts
    (y,) = session.run(None, {"x": np.array(["語語", "12345678"])})
    assert y.tolist() == ["語語", "12345678"]
    (info,) = session.get_inputs()
    assert (info.shape, info.type, info.string_bytes, info.nbytes) == ([2], "tensor(string)", 8, 16)
    with pytest.raises(AotcError, match="'x' is int64, expected strings"):
        session.run(None, {"x": np.zeros(2, np.int64)})
    with pytest.raises(AotcError, match=r"has shape \[1, 2\], expected \[2\]"):
        session.run(None, {"x": strings([["a", "b"]])})


def test_what_is_refused() -> None:
    for op, text in (("Neg", "Neg of strings is not supported: X is a tensor of strings"),
                     ("Relu", "Relu of strings is not supported")):  # fmt: skip
        with pytest.raises(AotcError, match=text):
            from_onnx(identity(op=op), dims={"x": 8})
    numbers = identity(op="StringConcat")
    numbers.graph.input[0].type.tensor_type.elem_type = FLOAT
    numbers.graph.node[0].input.append("x")
    with pytest.raises(AotcError, match="StringConcat needs a tensor of strings"):
        from_onnx(numbers)
    proto = identity()
    proto.graph.initializer.append(helper.make_tensor("k", STRING, [1], [b"\xff"]))
    proto.graph.node[0].op_type = "StringConcat"
    proto.graph.node[0].input.append("k")
    with pytest.raises(AotcError, match="a string of tensor 'k' is not UTF-8"):
        from_onnx(proto, dims={"x": 8})
    scattered = identity(op="ScatterElements")
    scattered.graph.initializer.append(helper.make_tensor("k", INT64, [1], [0]))
    scattered.graph.initializer.append(helper.make_tensor("text", STRING, [1], [b"a"]))
    scattered.graph.node[0].input.extend(["k", "text"])
    scattered.graph.node[0].attribute.append(helper.make_attribute("reduction", "add"))
    with pytest.raises(AotcError, match="ScatterElements of strings with reduction 'add' is not supported"):
        from_onnx(scattered, dims={"x": 8})
    encoder = identity(op="LabelEncoder")
    encoder.graph.node[0].domain = "ai.onnx.ml"
    encoder.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    values = {"keys_strings": [b"a\xc0"], "values_strings": [b"b"]}
    encoder.graph.node[0].attribute.extend(helper.make_attribute(k, v) for k, v in values.items())
    with pytest.raises(AotcError, match="a string of attribute 'keys_strings' is not UTF-8"):
        from_onnx(encoder, dims={"x": 8})


def test_verify_compares_string_labels(tmp_path: Any) -> None:
    cases = Cases()
    forest = {"classlabels_strings": ["a", "b", "c"], **small_forest(3)}
    cases.ml("TreeEnsembleClassifier", FEATURES, STRING, FLOAT, **forest)
    path = tmp_path / "labels.onnx"
    path.write_bytes(cases.model().SerializeToString())
    assert verify(path, seeds=1, cflags=("-O0",), check_compiler=False).verdict == "agree"
    path.write_bytes(identity().SerializeToString())
    with pytest.raises(AotcError, match="'x' holds strings, which are not drawn"):
        verify(path, dims={"x": 8})


def test_different_strings_are_different_numbers() -> None:
    actual, expected = {"y": strings(["a", "b", "a"])}, {"y": strings(["a", "c", "a"])}
    found = _strings_as_numbers(actual, expected)
    assert [side["y"].tolist() for side in found] == [[0, 1, 0], [0, 2, 0]]


def branching(outputs: tuple[list[bytes], list[bytes]], shapes: tuple[list[int], list[int]]) -> Any:
    """An If whose first branch returns the input strings and a constant, and the second one two constants."""
    kinds = [TensorProto.STRING, TensorProto.STRING, TensorProto.FLOAT]
    graphs = []
    for k, (values, shape) in enumerate(zip(outputs, shapes, strict=True)):
        names = [f"b{k}_{n}" for n in range(3)]
        text = helper.make_tensor("v", TensorProto.STRING, shape, values)
        nodes = [
            helper.make_node("Constant", [], names[:1], value=text),
            helper.make_node("Identity", ["x"] if k == 0 else names[:1], names[1:2]),
            helper.make_node("Constant", [], names[2:], value_floats=[float(k)]),
        ]
        ends = [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, kinds, strict=True)]
        graphs.append(helper.make_graph(nodes, f"branch{k}", [], ends))
    names = ["a", "b", "c"]
    inputs = [("condition", TensorProto.BOOL, []), ("x", TensorProto.STRING, [2])]
    graph = helper.make_graph(
        [helper.make_node("If", ["condition"], names, then_branch=graphs[0], else_branch=graphs[1])],
        "branching",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in zip(names, kinds, ([2], [2], [1]), strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_branches_return_strings() -> None:
    """Strings of different lengths, from inputs and constants."""
    proto = branching(([b"abc", b""], ["ein längerer Text".encode(), b"w"]), ([2], [2]))
    session = aotc.compile(proto, dims={"x": 4}, cflags=("-O0",)).session()
    reference = onnxruntime.InferenceSession(proto.SerializeToString())
    for condition in (True, False):
        feeds = {"condition": np.array(condition), "x": np.array(["é", "abcd"], object)}
        for found, expected in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
            assert found.tolist() == expected.tolist()


def test_branches_must_return_as_many_strings() -> None:
    with pytest.raises(AotcError, match="both branches compute as many of them, here in the shapes"):
        from_onnx(branching(([b"a", b"b"], [b"a", b"b", b"c"]), ([2], [3])), dims={"x": 4})
