# SPDX-License-Identifier: Apache-2.0
"""Inputs that are maps, and sequences of strings, in compiled C against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import aotc
from aotc.checking.verify import verify
from aotc.ir import AotcError
from aotc.relay.frontend.onnx import from_onnx
from tests.frontend.string_cases import FLOAT, INT64, STRING, strings

ROW = {"a": 1.5, "z": 3.0, "c": -2.0}
VOCABULARY = ["c", "b", "a"]
FLAGS = ("-O0",)


def map_model(nodes: list[Any], key: int, value: int, outputs: dict[str, int]) -> ModelProto:
    """A model with the input `x`, which is a map."""
    type_ = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))
    results = [helper.make_tensor_value_info(name, type_, None) for name, type_ in outputs.items()]
    graph = helper.make_graph(nodes, "maps", [helper.make_value_info("x", type_)], results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3)], ir_version=9)


def ml(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, name=op, domain="ai.onnx.ml", **attributes)


def onnx_runtime(proto: ModelProto, feed: dict[str, Any]) -> Any:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def test_dictionaries_are_rows_of_values() -> None:
    scaler = ml("Scaler", ["d"], ["y"], offset=[1.0], scale=[2.0, 3.0, 4.0])
    scaler.attribute[0].floats[:] = [1.0, 0.5, 0.25]
    proto = map_model(
        [ml("DictVectorizer", ["x"], ["d"], string_vocabulary=VOCABULARY), scaler], TensorProto.STRING, FLOAT,
        {"d": FLOAT, "y": FLOAT},
    )  # fmt: skip
    row = np.array([[ROW.get(key, 0) for key in VOCABULARY]], np.float32)
    found = aotc.compile(proto, cflags=FLAGS).session().run(None, {"x": row})
    for a, b in zip(onnx_runtime(proto, {"x": ROW}), found, strict=True):
        assert a.dtype == b.dtype and a.tolist() == b.tolist()
    report = verify(proto, seeds=1, cflags=FLAGS)
    assert report.ok and report.reference == "onnxruntime"


def test_cast_map() -> None:
    nodes = [ml("CastMap", ["x"], ["y"], cast_to="TO_INT64", map_form="SPARSE", max_map=5)]
    sparse = map_model(nodes, INT64, FLOAT, {"y": INT64})
    (expected,) = onnx_runtime(sparse, {"x": {1: 1.5, 3: -2.7}})
    row = np.array([[0, 1.5, 0, -2.7, 0]], np.float32)
    assert aotc.compile(sparse, cflags=FLAGS).session().run(None, {"x": row})[0].tolist() == expected.tolist()
    dense = map_model([ml("CastMap", ["x"], ["y"], cast_to="TO_FLOAT")], INT64, FLOAT, {"y": FLOAT})
    (expected,) = onnx_runtime(dense, {"x": {1: 1.5, 7: -2.5}})
    compiled = aotc.compile(dense, dims={"x": 2}, cflags=FLAGS)
    assert compiled.session().run(None, {"x": np.array([[1.5, -2.5]], np.float32)})[0].tolist() == expected.tolist()
    with pytest.raises(AotcError, match="the number of elements of the map 'x' is not known"):
        from_onnx(dense)


@pytest.mark.parametrize(
    ("node", "key", "value", "text"),
    [
        (ml("DictVectorizer", ["x"], ["y"], string_vocabulary=["a"]), INT64, FLOAT, "must list distinct keys"),
        (ml("DictVectorizer", ["x"], ["y"], int64_vocabulary=[1, 1]), INT64, FLOAT, "must list distinct keys"),
        (ml("DictVectorizer", ["x"], ["y"], int64_vocabulary=[1]), INT64, STRING, "are not of type float"),
        (ml("CastMap", ["x"], ["y"], cast_to="TO_STRING", map_form="SPARSE"), INT64, FLOAT, "'TO_STRING', which is"),
        (ml("CastMap", ["x"], ["y"], map_form="SPARSE", max_map=0), INT64, FLOAT, "'max_map' of CastMap is 0"),
        (helper.make_node("Identity", ["x"], ["y"]), INT64, FLOAT, "must be read by DictVectorizer or CastMap alone"),
    ],
)
def test_maps_that_are_refused(node: Any, key: int, value: int, text: str) -> None:
    with pytest.raises(AotcError, match=text):
        from_onnx(map_model([node], key, value, {"y": FLOAT}))


def test_readers_of_a_map_agree_on_its_keys() -> None:
    nodes = [ml("DictVectorizer", ["x"], [f"y{k}"], int64_vocabulary=[k]) for k in (1, 2)]
    with pytest.raises(AotcError, match="list different keys"):
        from_onnx(map_model(nodes, INT64, FLOAT, {"y1": FLOAT, "y2": FLOAT}))


# --- sequences of strings


def test_sequences_of_strings() -> None:
    node = helper.make_node
    nodes = [
        node("SequenceConstruct", ["x", "text"], ["s0"]),
        node("SequenceInsert", ["s0", "w", "one"], ["s1"]),
        node("SequenceAt", ["s1", "one"], ["at"]),
        node("SequenceAt", ["s1", "place"], ["found"]),
        node("SequenceErase", ["s1", "place"], ["s2"]),
        node("ConcatFromSequence", ["s2"], ["joined"], axis=-1),
        node("ConcatFromSequence", ["s1"], ["stacked"], axis=0, new_axis=1),
        node("SequenceLength", ["s1"], ["length"]),
        node("SplitToSequence", ["joined"], ["parts"], axis=-1, keepdims=0),
        node("SequenceAt", ["parts", "two"], ["part"]),
        node("SequenceEmpty", [], ["nothing"], dtype=STRING),
        node("SequenceInsert", ["nothing", "x"], ["single"]),
        node("SequenceAt", ["single", "zero"], ["same"]),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("x", STRING, [2]), info("w", STRING, [2]), info("place", INT64, [])]
    names = ["at", "found", "joined", "stacked", "part", "same"]
    outputs = [*(info(name, STRING, None) for name in names), info("length", INT64, None)]
    outputs.append(
        helper.make_value_info("s2", helper.make_sequence_type_proto(helper.make_tensor_type_proto(STRING, None)))
    )
    constants = {"zero": 0, "one": 1, "two": 2}
    initializers = [helper.make_tensor(name, INT64, [], [value]) for name, value in constants.items()]
    initializers.append(helper.make_tensor("text", STRING, [2], [b"a long constant", "é".encode()]))
    graph = helper.make_graph(nodes, "sequences", inputs, outputs, initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = aotc.compile(proto, dims={"x": 6, "w": 12}, cflags=FLAGS).session()
    for place in (0, 2, -1):
        feed = {"x": strings(["cat", ""]), "w": strings(["語", "twelve bytes"]), "place": np.array(place)}
        *expected, pair = onnx_runtime(proto, feed)
        found = session.run(None, feed)
        for a, b in zip([*expected, *pair], found, strict=True):
            assert np.asarray(a).tolist() == b.tolist()
