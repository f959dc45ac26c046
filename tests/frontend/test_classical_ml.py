# SPDX-License-Identifier: Apache-2.0
"""Operators of ai.onnx.ml against ONNX Runtime: one model has a node for each case."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import aotc
from aotc.checking.verify import verify
from aotc.ir.diagnostics import AotcError
from aotc.relay.frontend.onnx import from_onnx

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
X = np.array([[1, 2], [-1, 0.3], [0, 0]], np.float32)
HOLES = np.array([[np.nan, 2, 0], [1, np.nan, -0.0]], np.float32)
LABELS = np.array([3, 4, -1, 9, 3])
Case = tuple[str, np.ndarray[Any, Any], dict[str, Any]]


def numbers(*shape: int, seed: int = 0) -> list[float]:
    """Seeded numbers between 0.1 and 1, as a flat list."""
    return [float(v) for v in np.random.default_rng(seed).uniform(0.1, 1, shape).round(2).reshape(-1)]


def output_types(op: str, x: np.ndarray[Any, Any], attributes: dict[str, Any]) -> list[int]:
    if op.endswith("Classifier"):
        return [INT64, FLOAT]
    integers = "values_int64s" in attributes or "imputed_value_int64s" in attributes
    return [INT64 if integers else FLOAT]


def model(cases: list[Case], version: int = 3) -> tuple[ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """A model with a node for each case, and its inputs."""
    nodes, inputs, outputs, values = [], [], [], {}
    for k, (op, x, attributes) in enumerate(cases):
        name = f"x{k}"
        values[name] = x
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
        infos = [
            helper.make_tensor_value_info(f"y{k}_{n}", t, None) for n, t in enumerate(output_types(op, x, attributes))
        ]
        outputs += infos
        names = [i.name for i in infos]
        nodes.append(helper.make_node(op, [name], names, name=f"node{k}", domain="ai.onnx.ml", **attributes))
    graph = helper.make_graph(nodes, "ml", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), values


def linear_cases() -> list[Case]:
    cases: list[Case] = []
    for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"):
        given = {"post_transform": transform}
        two = {"classlabels_ints": [5, 7], **given}
        svm = {"rho": [0.2], "kernel_params": [0.5, 0.1, 2.0]}
        pair = {"coefficients": [0.3, -0.2], "support_vectors": numbers(2, 2), "vectors_per_class": [1, 1], **svm}
        cases += [
            ("LinearRegressor", X, {"coefficients": [0.3, 0.2], "intercepts": [0.1], **given}),
            ("LinearRegressor", X, {"coefficients": numbers(2, 2), "targets": 2, **given}),
            ("LinearClassifier", X, {"coefficients": numbers(2, 2), "intercepts": [-0.1, 0.0], **two}),
            ("SVMClassifier", X, {"coefficients": [0.3, -0.2, 0.1, 0.4], **svm, **two}),
            ("SVMClassifier", X, {"coefficients": numbers(2, 2), **svm, **two}),
            ("SVMClassifier", X, {**pair, **two, "prob_a": [0.4], "prob_b": [0.1]}),
            ("SVMRegressor", X, {"coefficients": [0.3, -0.2], **svm, **given}),
        ]
        if transform != "PROBIT":
            one = {"coefficients": [0.3, 0.2], "intercepts": [-0.1]}
            cases += [("LinearClassifier", X, {**one, **two}), ("SVMClassifier", X, {**pair, **two})]
    return cases


def kernel_cases() -> list[Case]:
    cases: list[Case] = []
    rows = np.random.default_rng(1).uniform(0, 1, (5, 3)).astype(np.float32)
    for kernel, degree in (("LINEAR", 1), ("RBF", 1), ("SIGMOID", 1), ("POLY", 2), ("POLY", 3), ("POLY", 2.5)):
        given = {"kernel_type": kernel, "kernel_params": [0.5, 2.0, float(degree)], "support_vectors": numbers(6, 3)}
        classes = {"vectors_per_class": [1, 3, 2], "classlabels_ints": [4, 2, 9], "rho": numbers(3)}
        weights = [v - 0.5 for v in numbers(2, 6, seed=2)]
        probabilities = {"prob_a": numbers(3, seed=3), "prob_b": numbers(3, seed=4)}
        cases += [
            ("SVMRegressor", rows, {"coefficients": weights[:6], "n_supports": 6, "rho": [0.2], **given}),
            ("SVMClassifier", rows, {"coefficients": weights, **classes, **given}),
            ("SVMClassifier", rows, {"coefficients": weights, **classes, **given, **probabilities}),
        ]
    one_class = {"coefficients": weights[:6], "n_supports": 6, "rho": [-0.2], "one_class": 1}
    return [*cases, ("SVMRegressor", rows, {**one_class, **given})]


def feature_cases() -> list[Case]:
    cases: list[Case] = []
    for dtype in ("float32", "float64", "int32", "int64"):
        x = (X * 3).astype(dtype)
        cases += [
            ("Scaler", x, {"scale": [2.0, 0.3], "offset": [0.1, 7.0]}),
            ("Scaler", x, {"scale": [2.0], "offset": [1.5]}),
        ]
        cases += [("Normalizer", x, {"norm": norm}) for norm in ("MAX", "L1", "L2")]
        cases += [("FeatureVectorizer", x, {"inputdimensions": [2]})]
        if dtype != "int32":
            cases += [("OneHotEncoder", x, {"cats_int64s": [3, -3, 1]})]
    integers = X.astype(np.int64)
    return [
        *cases,
        ("Imputer", HOLES, {"imputed_value_floats": [9.0], "replaced_value_float": float("nan")}),
        ("Imputer", HOLES, {"imputed_value_floats": [9.0, 8.0, 7.0], "replaced_value_float": 0.0}),
        ("Imputer", integers, {"imputed_value_int64s": [9], "replaced_value_int64": 0}),
        ("Binarizer", X, {"threshold": 0.25}),
        (
            "LabelEncoder",
            HOLES,
            {"keys_floats": [0.0, 3.0, 2.0], "values_floats": [4.0, 5.0, 6.0], "default_float": 0.5},
        ),
        ("LabelEncoder", LABELS, {"keys_int64s": [9, 3, 4, 3], "values_floats": [0.1, 0.2, 0.3, 0.4]}),
        ("LabelEncoder", LABELS, {"keys_int64s": [9, 3, 4], "values_int64s": [1, 2, 3], "default_int64": 77}),
    ]


@pytest.mark.parametrize(
    "cases", [linear_cases(), kernel_cases(), feature_cases()], ids=["linear", "kernels", "features"]
)
def test_results_are_those_of_onnx_runtime(cases: list[Case]) -> None:
    proto, values = model(cases)
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, values)
    found = aotc.compile(proto, cflags=("-O0",)).session().run(None, values)
    outputs = [(op, attributes) for op, x, attributes in cases for _ in output_types(op, x, attributes)]
    for about, actual, wanted in zip(outputs, found, expected, strict=True):
        assert actual.dtype == wanted.dtype and actual.shape == wanted.shape, about
        np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=1e-5, err_msg=str(about))


def test_what_onnx_runtime_does_not_run() -> None:
    """By the standard's words: thresholds of Binarizer with integers, and with negative numbers."""
    proto, values = model([("Binarizer", np.array([-1, 0, 1], np.float32), {"threshold": -0.5})])
    (binary,) = aotc.compile(proto, cflags=("-O0",)).session().run(None, values)
    np.testing.assert_array_equal(binary, [0, 1, 1])
    graph = helper.make_graph(
        [helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=-0.5)],
        "ml",
        [helper.make_tensor_value_info("x", TensorProto.INT32, [3])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
    )
    integers = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)])
    (binary,) = aotc.compile(integers, cflags=("-O0",)).session().run(None, {"x": np.array([-1, 0, 1], np.int32)})
    np.testing.assert_array_equal(binary, [0, 1, 1])


@pytest.mark.parametrize(("version", "label"), [(2, -1), (3, -1), (4, 4)])
def test_nan_as_a_key_of_label_encoder(version: int, label: int) -> None:
    keys = [float("nan"), 0.0, float("nan")]
    some: Case = ("LabelEncoder", HOLES, {"keys_floats": keys, "values_int64s": [4, 6, 5]})
    all_nan: Case = ("LabelEncoder", HOLES, {"keys_floats": keys[:1], "values_int64s": [4]})
    proto, values = model([some, all_nan], version)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, values)
    found = aotc.compile(proto, cflags=("-O0",)).session().run(None, values)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found[0], [[label, -1, 6], [-1, label, 6]])


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [4, -2]}, {"classlabels_strings": ["no", "a"]}])
@pytest.mark.parametrize("opsets", [("ai.onnx.ml",), ("ai.onnx.ml", "")])
def test_verification_compares_zip_map_by_class_label(labels: dict[str, Any], opsets: tuple[str, ...]) -> None:
    (names,) = labels.values()
    key = TensorProto.STRING if isinstance(names[0], str) else INT64
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(key, helper.make_tensor_type_proto(FLOAT, [])))
    graph = helper.make_graph(
        [
            helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.5, 1.0], scale=[1.0, 2.0]),
            helper.make_node("ZipMap", ["s"], ["y"], domain="ai.onnx.ml", **labels),
        ],
        "ml",
        [helper.make_tensor_value_info("x", FLOAT, X.shape)],
        [helper.make_value_info("y", maps)],
    )
    imports = [helper.make_opsetid(domain, 1 if domain else 17) for domain in opsets]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
    report = verify(proto, seeds=1, cflags=("-O0",))
    assert report.ok and report.reference == "onnxruntime", report.cases[0]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = [[row[name] for name in names] for row in session.run(None, {"x": X})[0]]
    (found,) = aotc.compile(proto, cflags=("-O0",)).session().run(None, {"x": X})
    np.testing.assert_allclose(found, rows, rtol=1e-6)


def test_zip_map_keeps_the_scores_as_a_tensor() -> None:
    graph = helper.make_graph(
        [helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[4, 2])],
        "ml",
        [helper.make_tensor_value_info("x", FLOAT, [3, 2])],
        [helper.make_empty_tensor_value_info("y")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)])
    np.testing.assert_array_equal(aotc.compile(proto, cflags=("-O0",)).session().run(None, {"x": X})[0], X)


@pytest.mark.parametrize(
    ("op", "attributes", "text"),
    [
        ("Scaler", {"scale": [1.0, 2.0, 3.0], "offset": [0.0]}, "'scale' of Scaler has 3 values for 2"),
        ("Normalizer", {"norm": "L3"}, "'norm' of Normalizer is 'L3'; known: MAX, L1, L2"),
        ("Imputer", {"imputed_value_floats": [1.0] * 3}, "has 3 values for 2 features"),
        ("LinearRegressor", {"coefficients": [1.0]}, "has 1 values; 1 x 2 are needed"),
        (
            "LinearClassifier",
            {"coefficients": numbers(3, 2), "intercepts": [0.0] * 3, "classlabels_ints": [1, 2]},
            "has 2 labels for 3 sets of coefficients",
        ),
        (
            "LinearClassifier",
            {"coefficients": numbers(2, 2), "intercepts": [0.0] * 2, "classlabels_ints": [1, 1]},
            "repeats a class label",
        ),
        (
            "LinearClassifier",
            {"coefficients": numbers(1, 2), "intercepts": [0.0], "classlabels_strings": ["a"]},
            "has 1 labels; 2 are needed for 1 score",
        ),
        ("SVMRegressor", {"coefficients": [1.0, 2.0]}, "'rho' of SVMRegressor has 0 values"),
        (
            "SVMClassifier",
            {"coefficients": [1.0], "vectors_per_class": [1], "classlabels_ints": [0, 1], "rho": [0.0]},
            "has 1 values for 2 class labels",
        ),
        ("SVMRegressor", {"coefficients": [1.0, 2.0], "kernel_type": "RBG"}, "is 'RBG'"),
        ("LabelEncoder", {"keys_floats": [1.0], "values_floats": [1.0, 2.0]}, "has 2 values for 1 keys"),
        ("LabelEncoder", {"keys_int64s": [1], "values_floats": [1.0]}, "is of type int64, the input"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_floats": [1.0]}, "is of type string, the input"),
        ("OneHotEncoder", {"cats_strings": ["a"]}, "OneHotEncoder of numbers needs categories"),
        ("OneHotEncoder", {"cats_int64s": [1, 2, 1]}, "repeats a category: [1, 2, 1]"),
        ("FeatureVectorizer", {"inputdimensions": [3]}, "the inputs have [2] features"),
        ("CategoryMapper", {"cats_int64s": [1], "cats_strings": ["a"]}, "is of type int64, the input"),
    ],
)  # fmt: skip
def test_what_is_refused(op: str, attributes: dict[str, Any], text: str) -> None:
    proto, _ = model([(op, X, attributes)])
    with pytest.raises(AotcError) as caught:
        from_onnx(proto)
    (problem,) = caught.value.diagnostics
    assert problem.code == "onnx-attribute" and text in problem.message
    assert problem.span is not None and "node0" in str(problem.span)
