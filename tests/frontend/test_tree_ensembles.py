# SPDX-License-Identifier: Apache-2.0
"""Ensembles of decision trees of ai.onnx.ml against ONNX Runtime and against the standard's reference."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import aotc
from aotc.ir.diagnostics import AotcError
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.graph_api import evaluate

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
NODE_FIELDS = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
FEATURES = 3


class Forest:
    """Random trees, in the attributes of TreeEnsembleClassifier ("class") or TreeEnsembleRegressor ("target").

    weights   classes for which each leaf has a weight: "all", "one" (per tree), "some" or "second"
    """

    def __init__(
        self, rng: np.random.Generator, prefix: str, trees: int, depth: int, targets: int,
        modes: tuple[str, ...] = MODES[:1], missing: bool = False, weights: str = "all", signed: bool = False,
    ) -> None:  # fmt: skip
        self.rng, self.prefix, self.targets, self.modes, self.weights = rng, prefix, targets, modes, weights
        self.lowest = -1.0 if signed else 0.01
        self.fields: dict[str, list[Any]] = {f"nodes_{name}": [] for name in NODE_FIELDS}
        self.fields |= {f"{prefix}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
        for tree in range(trees):
            self.next_node = 0
            self.grow(tree, depth)
        if missing:
            count = len(self.fields["nodes_modes"])
            self.fields["nodes_missing_value_tracks_true"] = rng.integers(0, 2, count).tolist()

    def grow(self, tree: int, depth: int) -> int:
        number, at = self.next_node, len(self.fields["nodes_modes"])
        self.next_node += 1
        threshold = round(float(self.rng.standard_normal()), 1)
        row = (tree, number, int(self.rng.integers(FEATURES)), threshold, str(self.rng.choice(self.modes)), 0, 0)
        for name, value in zip(NODE_FIELDS, row, strict=True):
            self.fields[f"nodes_{name}"].append(value)
        if depth and self.rng.random() > 0.15:
            self.fields["nodes_truenodeids"][at] = self.grow(tree, depth - 1)
            self.fields["nodes_falsenodeids"][at] = self.grow(tree, depth - 1)
            return number
        self.fields["nodes_modes"][at] = "LEAF"
        some = np.flatnonzero(self.rng.random(self.targets) < 0.5).tolist() or [tree % self.targets]
        for target in {"all": range(self.targets), "one": [tree % self.targets], "some": some, "second": [1]}[
            self.weights
        ]:
            weight = float(np.float32(self.rng.uniform(self.lowest, 1)))
            for name, value in zip(
                ("treeids", "nodeids", "ids", "weights"), (tree, number, target, weight), strict=True
            ):
                self.fields[f"{self.prefix}_{name}"].append(value)
        return number


def one_node_model(
    op: str, x: np.ndarray[Any, Any], outputs: dict[str, int], version: int = 3, **fields: Any
) -> ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], [*outputs], name="trees", domain="ai.onnx.ml", **fields)],
        "ml",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info(name, t, None) for name, t in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def rows_of_data(rng: np.random.Generator, rows: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Rows with values that thresholds equal, NaN and infinities."""
    x = rng.standard_normal((rows, FEATURES)).round(1)
    if dtype.startswith("int"):
        return (x * 3).astype(dtype)
    special = rng.random(x.shape)
    return np.where(special < 0.1, np.nan, np.where(special > 0.97, -np.inf, x)).astype(dtype)


def random_model(seed: int) -> tuple[ModelProto, np.ndarray[Any, Any]]:
    """An ensemble whose properties the seed draws, and data for it."""
    rng = np.random.default_rng(seed)

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    modes = pick(MODES[:1], (pick(*MODES),), MODES)
    trees, depth, missing, signed = pick(1, 3, 17), pick(0, 1, 3, 6), pick(False, True), pick(False, True)
    given_fields: dict[str, Any] = {"post_transform": pick("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")}
    rows = pick(1, 3, 8, 29, 150)
    if pick(False, True):
        classes = pick(2, 3, 5)
        weights = pick("all", "one", "some") if classes > 2 else pick("zero", "second")
        targets = 1 if weights == "zero" else classes
        forest = Forest(
            rng, "class", trees, depth, targets, modes, missing, "all" if weights == "zero" else weights, signed
        )
        given_fields["classlabels_int64s"] = rng.permutation(10)[:classes].tolist()
        if weights != "second" and pick(False, True):
            given_fields["base_values"] = rng.standard_normal(classes if classes > 2 else 1).astype(np.float32).tolist()
        x = rows_of_data(rng, rows, pick("float32", "float32", "float64", "int64", "int32"))
        outputs = {"label": INT64, "scores": FLOAT}
        return one_node_model("TreeEnsembleClassifier", x, outputs, **forest.fields, **given_fields), x
    targets = pick(1, 3)
    kind = pick("all", "one", "some")
    forest = Forest(rng, "target", trees, depth, targets, modes, missing, kind, signed)
    given_fields |= {"n_targets": targets, "aggregate_function": pick("SUM", "AVERAGE", "MIN", "MAX")}
    # ONNX Runtime leaves the base value of a target out to which no leaf gives a weight
    if kind == "all":
        given_fields["base_values"] = rng.standard_normal(targets).astype(np.float32).tolist()
    x = rows_of_data(rng, rows, pick("float32", "float64"))
    return one_node_model("TreeEnsembleRegressor", x, {"scores": FLOAT}, **forest.fields, **given_fields), x


def check(proto: ModelProto, x: np.ndarray[Any, Any], found: list[np.ndarray[Any, Any]]) -> None:
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype == wanted.dtype and actual.shape == wanted.shape
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_random_ensembles_in_numpy(seed: int) -> None:
    proto, x = random_model(seed)
    result = evaluate(from_onnx(proto), x)
    check(proto, x, [*result] if isinstance(result, tuple) else [result])


@pytest.mark.parametrize("seed", range(6))
def test_random_ensembles_compiled(seed: int) -> None:
    proto, x = random_model(seed)
    check(proto, x, aotc.compile(proto, cflags=("-O0",)).session().run(None, {"x": x}))


def test_labels_of_two_classes_with_weights_for_both() -> None:
    """ONNX Runtime gives 0 and 1 here, which are not among the labels: the class of the greatest score counts."""
    rng = np.random.default_rng(0)
    x = rows_of_data(rng, 20)
    fields = Forest(rng, "class", 5, 3, 2).fields
    proto = one_node_model(
        "TreeEnsembleClassifier", x, {"label": INT64, "scores": FLOAT}, classlabels_int64s=[7, 5], **fields
    )
    labels, scores = evaluate(from_onnx(proto), x)
    np.testing.assert_array_equal(labels, np.array([7, 5])[scores.argmax(1)])
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(["scores"], {"x": x})[0]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


@pytest.mark.parametrize("position", [0, 1])
def test_two_base_values_are_added_to_the_scores_of_both_classes(position: int) -> None:
    """By the standard's words. ONNX Runtime leaves out one of the two."""
    x = np.array([[-1, 0, 0], [1, 0, 0]], np.float32)
    fields = {k.replace("target_", "class_"): v for k, v in SMALL.items() if k != "n_targets"}
    fields |= {"class_ids": [position] * 2, "classlabels_int64s": [7, 5]}
    outputs = {"label": INT64, "scores": FLOAT}
    proto = one_node_model("TreeEnsembleClassifier", x, outputs, **fields, base_values=[0.5, 2.0])
    labels, scores = evaluate(from_onnx(proto), x)
    wanted = np.array([[0.5, 2.0], [0.5, 2.0]])
    wanted[:, position] += [1, 2]
    np.testing.assert_array_equal(scores, wanted)
    np.testing.assert_array_equal(labels, np.array([7, 5])[wanted.argmax(1)])
    if position:
        proto = one_node_model("TreeEnsembleClassifier", x, outputs, **fields, base_values=[0.5])
        with pytest.raises(AotcError, match="'base_values' of TreeEnsembleClassifier has 1 values; 2 are needed"):
            from_onnx(proto)


def test_a_batch_without_rows() -> None:
    x = np.zeros((0, FEATURES), np.float32)
    proto = one_node_model("TreeEnsembleRegressor", x, {"y": FLOAT}, **SMALL)
    assert evaluate(from_onnx(proto), x).shape == (0, 1)


def test_a_large_cycle_is_found_in_linear_time() -> None:
    """A search level by level, up to the number of nodes, took minutes."""
    count, rng = 20_000, np.random.default_rng(0)
    yes, no = (rng.integers(1, count, count + 1).tolist() for _ in range(2))
    no[0] = count
    fields = SMALL | {
        "nodes_treeids": [0] * (count + 1), "nodes_nodeids": [*range(count + 1)],
        "nodes_featureids": [0] * (count + 1), "nodes_values": [0.0] * (count + 1),
        "nodes_modes": [*["BRANCH_LEQ"] * count, "LEAF"], "nodes_truenodeids": yes, "nodes_falsenodeids": no,
        "target_treeids": [0], "target_nodeids": [count], "target_ids": [0], "target_weights": [1.0],
    }  # fmt: skip
    proto = one_node_model("TreeEnsembleRegressor", np.zeros((2, FEATURES), np.float32), {"y": FLOAT}, **fields)
    with pytest.raises(AotcError, match="the branches of a tree form a cycle"):
        from_onnx(proto)


def joint_model(x: np.ndarray[Any, Any], aggregate: int, sets: list[list[float]], **changes: Any) -> ModelProto:
    """A TreeEnsemble (operator set 5) whose nodes test each mode, the last ones membership in `sets`."""
    rng = np.random.default_rng(1)
    modes = [*range(6), *[6] * len(sets)]
    count = len(modes)
    chain = [*range(1, count), 2 * count - 1]
    members = [v for s in sets for v in (*s, float("nan"))]

    def tensor(values: Any, dtype: Any) -> TensorProto:
        return numpy_helper.from_array(np.array(values, dtype))

    fields: dict[str, Any] = {
        "n_targets": 3,
        "aggregate_function": aggregate,
        "tree_roots": [0],
        "nodes_modes": tensor(modes, np.uint8),
        "nodes_featureids": rng.integers(0, FEATURES, count).tolist(),
        "nodes_splits": tensor(rng.standard_normal(count).round(1), x.dtype),
        "nodes_truenodeids": [*range(count)],
        "nodes_trueleafs": [1] * count,
        "nodes_falsenodeids": [*chain[:-1], count],
        "nodes_falseleafs": [*[0] * (count - 1), 1],
        "nodes_missing_value_tracks_true": rng.integers(0, 2, count).tolist(),
        "leaf_targetids": rng.integers(0, 3, count + 1).tolist(),
        "leaf_weights": tensor(rng.standard_normal(count + 1).round(2), x.dtype),
        "membership_values": tensor(members, x.dtype),
        **changes,
    }
    return one_node_model("TreeEnsemble", x, {"y": helper.np_dtype_to_tensor_dtype(x.dtype)}, version=5, **fields)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_modes_and_membership_of_tree_ensemble(dtype: str) -> None:
    x = rows_of_data(np.random.default_rng(2), 60, dtype)
    sets = [[0.5, -0.5, 1.0], [], [round(0.1 * k, 1) for k in range(-9, 0)]]
    proto = joint_model(x, 1, sets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    (found,) = aotc.compile(proto, cflags=("-O0",)).session().run(None, {"x": x})
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


SMALL: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0], "nodes_values": [0.0] * 3,
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
    "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0],
    "n_targets": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"nodes_truenodeids": [9, 0, 0]}, "'nodes_truenodeids' of TreeEnsembleRegressor names the node 9 of tree 0"),
        ({"nodes_truenodeids": [0, 0, 0]}, "leads to the first node of a tree, 0 of tree 0"),
        (
            {"nodes_modes": ["BRANCH_LT", "BRANCH_LT", "LEAF"], "nodes_truenodeids": [1, 1, 0],
             "nodes_falsenodeids": [2, 2, 0]},
            "the branches of a tree form a cycle: 1 of tree 0",
        ),
        ({"nodes_nodeids": [0, 1, 1]}, "names the node 1 of tree 0 twice"),
        ({"nodes_values": [0.0]}, "'nodes_values' of TreeEnsembleRegressor has 1 values; 3 are needed"),
        ({"nodes_modes": ["BRANCH", "LEAF", "LEAF"]}, "is 'BRANCH'; known: BRANCH_LEQ"),
        ({"nodes_featureids": [3, 0, 0]}, "names feature 3 at position 0; there are 3"),
        ({"target_ids": [0, 1]}, "names target 1 at position 1; there are 1"),
        ({"target_nodeids": [1, 7]}, "'target_nodeids' of TreeEnsembleRegressor names the node 7 of tree 0"),
        ({"target_nodeids": [1, 1]}, "has no weight for the leaf 2 of tree 0"),
        ({"target_weights": [1.0]}, "'target_weights' of TreeEnsembleRegressor has 1 values; 2 are needed"),
        ({"base_values": [1.0, 2.0]}, "'base_values' of TreeEnsembleRegressor has 2 values; 1 are needed"),
        ({"aggregate_function": "MEAN"}, "is 'MEAN'; known: AVERAGE, SUM, MIN, MAX"),
        ({"nodes_missing_value_tracks_true": [1]}, "has 1 values; 3 are needed"),
        ({"n_targets": 10**12}, "the ensemble has 1000000000000 targets, which are too many"),
        ({"n_targets": 10**10, "target_ids": [0, 1]}, "has 10000000000 targets, which are too many"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], text: str) -> None:
    proto = one_node_model(
        "TreeEnsembleRegressor", np.zeros((2, FEATURES), np.float32), {"y": FLOAT}, **SMALL | changes
    )
    with pytest.raises(AotcError) as caught:
        from_onnx(proto)
    (problem,) = caught.value.diagnostics
    assert problem.code == ("onnx-tree" if "cycle" in text or "many" in text else "onnx-attribute")
    assert text in problem.message and "trees" in str(problem.span)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"nodes_truenodeids": [9] * 7}, "names leaf 9 at position 0; there are 8"),
        ({"nodes_falsenodeids": [1, 2, 3, 4, 5, 3, 7]}, "the branches of a tree form a cycle"),
        ({"tree_roots": [7]}, "names node 7 at position 0; there are 7"),
        ({"membership_values": numpy_helper.from_array(np.float32([1, 2]))}, "has 0 sets, each ended by NaN, for 1"),
        ({"leaf_targetids": [3] * 8}, "names target 3 at position 0; there are 3"),
        ({"aggregate_function": 4}, "'aggregate_function' of TreeEnsemble is 4; it must be from 0 to 3"),
    ],
)  # fmt: skip
def test_what_is_refused_in_tree_ensemble(changes: dict[str, Any], text: str) -> None:
    proto = joint_model(np.zeros((2, FEATURES), np.float32), 1, [[1.0]], **changes)
    with pytest.raises(AotcError, match=text.replace("(", "\\(")):
        from_onnx(proto)
