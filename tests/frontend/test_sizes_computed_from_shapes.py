# SPDX-License-Identifier: Apache-2.0
"""ONNX models that compute sizes from shapes, compiled once for ranges of sizes, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc import relay
from aotc.ir import AotcError, SymDim, TensorType
from aotc.ir.dimension_formulas import formula_of_name
from aotc.relay.expr import Var
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.frontend.size_values import size_values
from aotc.relay.interpreter import evaluate
from aotc.relay.text.parser import parse
from aotc.relay.text.printer import astext

INT64_MAX = 2**63 - 1
#: Constants of the model: names, and lists of integers.
CONSTANTS: dict[str, Any] = {
    "zero": 0, "two": 2, "zeros": [0], "ones": [1], "minus_ones": [-1], "fours": [4],
    "three_four": [3, 4], "last": [INT64_MAX], "minus_threes": [-3], "minus_last": [-INT64_MAX],
    "rows_and_planes": [[0, -1], [-2, 1]], "factors": np.array([1, 2, 3], np.float32),
}  # fmt: skip

#: Operators with their inputs, outputs and attributes; x has the shape (n, m, 4) and y (m, 4).
NODES: list[tuple[str, list[str], list[str], dict[str, Any]]] = [
    ("Shape", ["x"], ["shape"], {}),
    ("Shape", ["x"], ["tail"], {"start": 1}),
    ("Gather", ["shape", "zero"], ["n"], {}),
    ("Gather", ["shape", "ones"], ["ms"], {}),
    ("Unsqueeze", ["n", "zeros"], ["ns"], {}),
    ("Mul", ["ns", "ms"], ["nm"], {}),
    ("Squeeze", ["nm", "zeros"], ["nm_scalar"], {}),
    # reshapes
    ("Concat", ["nm", "fours"], ["rows"], {"axis": 0}),
    ("Reshape", ["x", "rows"], ["out_rows"], {}),
    ("Concat", ["ms", "minus_ones"], ["split_rows"], {"axis": 0}),
    ("Reshape", ["x", "split_rows"], ["out_quotient"], {}),
    ("Flatten", ["x"], ["out_flat"], {"axis": 2}),
    # expansion
    ("Concat", ["ns", "tail"], ["whole"], {"axis": 0}),
    ("Expand", ["y", "whole"], ["out_expand"], {}),
    ("ConstantOfShape", ["rows"], ["filled"], {"value": helper.make_tensor("v", TensorProto.INT64, [1], [-1])}),
    ("Shape", ["whole"], ["rank"], {}),
    ("ConstantOfShape", ["rank"], ["minus"], {"value": helper.make_tensor("v", TensorProto.INT64, [1], [-1])}),
    ("Equal", ["whole", "minus"], ["is_minus"], {}),
    ("Where", ["is_minus", "minus", "whole"], ["chosen"], {}),
    ("Expand", ["y", "chosen"], ["out_chosen"], {}),
    ("Concat", ["ones", "ms", "ones"], ["repeats"], {"axis": 0}),
    ("Tile", ["x", "repeats"], ["out_tile"], {}),
    # slices
    ("Slice", ["x", "zeros", "ms", "zeros"], ["out_first"], {}),
    ("Slice", ["x", "ones", "last", "ones"], ["out_rest"], {}),
    ("Slice", ["x", "minus_threes", "last", "ones"], ["out_last"], {}),
    ("Slice", ["x", "last", "minus_last", "ones", "minus_ones"], ["out_reversed"], {}),
    ("Sub", ["ms", "ones"], ["m_less"], {}),
    ("Slice", ["y", "m_less", "ms", "zeros"], ["out_one"], {}),
    ("Split", ["x"], ["out_left", "out_right"], {"axis": 1, "num_outputs": 2}),
    # others
    ("Range", ["zero", "nm_scalar", "two"], ["out_range"], {}),
    ("Concat", ["zeros", "ms", "ms", "zeros"], ["pads"], {"axis": 0}),
    ("Pad", ["y", "pads"], ["out_pad"], {}),
    ("Concat", ["ones", "zeros", "zeros", "ones"], ["edges"], {"axis": 0}),
    ("Pad", ["y", "edges"], ["out_edge"], {"mode": "edge"}),
    ("Gather", ["x", "rows_and_planes"], ["out_gather"], {"axis": 1}),
    ("Resize", ["x", "", "factors"], ["out_resize"],
     {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}),
    ("Add", ["whole", "ones"], ["out_shape"], {}),
    ("Size", ["x"], ["out_size"], {}),
]  # fmt: skip


def model() -> onnx.ModelProto:
    """A model whose outputs are the results that begin with "out_", and the filled tensor."""
    shapes = {"x": ["n", "m", 4], "y": ["m", 4]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    nodes = [helper.make_node(op, i, o, **attrs) for op, i, o, attrs in NODES]
    integers = ("filled", "out_range", "out_shape", "out_size")
    names = [name for _, _, outs, _ in NODES for name in outs if name.startswith("out_") or name == "filled"]
    outputs = [
        helper.make_tensor_value_info(n, TensorProto.INT64 if n in integers else TensorProto.FLOAT, None) for n in names
    ]
    constants = [
        numpy_helper.from_array(np.asarray(v) if isinstance(v, np.ndarray) else np.array(v, np.int64), name)
        for name, v in CONSTANTS.items()
    ]
    graph = helper.make_graph(nodes, "net", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


DIMS: dict[str, Any] = {"n": (2, 6), "m": (2, 6)}
SIZES = ((2, 2), (3, 5), (6, 6), (4, 3), (5, 2))


def feeds(n: int, m: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(n * 10 + m)
    return {"x": rng.standard_normal((n, m, 4)).astype(np.float32), "y": rng.standard_normal((m, 4)).astype(np.float32)}


@pytest.fixture(scope="module")
def expected() -> list[list[np.ndarray[Any, Any]]]:
    session = onnxruntime.InferenceSession(model().SerializeToString())
    return [session.run(None, feeds(*sizes)) for sizes in SIZES]


def test_one_library_computes_all_sizes(expected: list[list[np.ndarray[Any, Any]]], tmp_path: Path) -> None:
    session = aotc.compile(model(), output=tmp_path, dims=DIMS, target="c", cflags=["-O0"]).session()
    for sizes, results in zip(SIZES, expected, strict=True):
        for info, got, want in zip(session.get_outputs(), session.run(None, feeds(*sizes)), results, strict=True):
            assert got.shape == want.shape and np.array_equal(got, want), (info.name, sizes)


def test_interpreter_computes_all_sizes_also_from_text(expected: list[list[np.ndarray[Any, Any]]]) -> None:
    module = from_onnx(model(), dims=DIMS)
    for sizes, results in zip(SIZES[:3], expected, strict=False):
        for program in (module, parse(astext(module))):
            for got, want in zip(evaluate(program, *feeds(*sizes).values()), results, strict=True):
                assert got.shape == want.shape and np.array_equal(got, want), sizes


def test_size_values_are_formulas() -> None:
    """Values that are not known as formulas are None, also where the formula of a branch is known."""
    x = Var("x", TensorType((SymDim("n", 8, 1), 3), "float32"))
    shape = relay.shape_of(x, "int64")
    first = relay.take(shape, relay.const(0, "int64"))
    known = size_values(relay.add(first, relay.const(2, "int64")))
    assert known is not None and str(known.item()) == "3<=n+2<=10"
    assert size_values(relay.where(relay.less(first, relay.const(9, "int64")), first, first)) is not None
    assert size_values(relay.where(relay.less(first, relay.const(4, "int64")), first, first)) is None
    half = size_values(relay.divide(relay.subtract(first, relay.const(5, "int64")), relay.const(2, "int64")))
    assert half is not None
    values = [formula_of_name(half.item().name).evaluate({"n": n}) for n in range(1, 9)]
    assert values == [-2, -1, -1, 0, 0, 0, 1, 1], "the quotient is rounded toward zero"
    assert size_values(Var("v", TensorType((2,), "int64"))) is None


def single(op: str, inputs: list[str], shape: list[Any], **attrs: Any) -> onnx.ModelProto:
    """A model of one operator on x of a shape, which may read the constants."""
    results = ["out", "rest"] if op == "Split" else ["out"]
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node(op, inputs, results, **attrs)]
    constants = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in CONSTANTS.items() if n != "factors"]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in nodes[-1].output]
    inputs_of_graph = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "net", inputs_of_graph, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def test_sizes_that_do_not_fit_are_found_before_the_run(tmp_path: Path) -> None:
    """Parts of a split that must add up to an extent, and rows that must be filled."""
    split = single("Split", ["x", "three_four"], ["n"], axis=0)
    session = aotc.compile(split, output=tmp_path / "split", dims={"n": "1..9~7"}, target="c", cflags=["-O0"]).session()
    first, second = session.run(None, {"x": np.arange(7, dtype=np.float32)})
    assert first.tolist() == [0, 1, 2] and second.tolist() == [3, 4, 5, 6]
    for n in (1, 6, 8):
        with pytest.raises(AotcError, match=r"7 == n|n == 7"):
            session.run(None, {"x": np.zeros(n, np.float32)})
    with pytest.raises(AotcError, match="do not add up"):
        from_onnx(split, dims={"n": (8, 9)})


def test_squeeze_without_axes_keeps_axes_of_the_run(tmp_path: Path) -> None:
    """The rank of its result is known, so that no run squeezes an axis whose extent varies."""
    squeeze = single("Squeeze", ["x"], ["n", 1, 2])
    session = aotc.compile(squeeze, output=tmp_path, dims={"n": (0, 5)}, target="c", cflags=["-O0"]).session()
    for n in (0, 2, 5):
        x = np.random.default_rng(n).standard_normal((n, 1, 2)).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x[:, 0])
    with pytest.raises(AotcError, match="node Squeeze#1: "):
        session.run(None, {"x": np.zeros((1, 1, 2), np.float32)})


def test_branches_of_different_ranks_are_chosen_by_the_largest_sizes(tmp_path: Path) -> None:
    """torch.onnx exports the squeezing of an axis as such a choice."""
    text = """<ir_version: 9, opset_import: ["": 18]> net (float[n, 3] x) => (float[a, b] y) {
      zero = Constant <value_ints = [0]> ()
      one = Constant <value_ints = [1]> ()
      n = Shape <start = 0, end = 1> (x)
      is_one = Equal (n, one)
      s = If (is_one) <then_branch = squeezed () => (t) { t = Squeeze (x, zero) },
                       else_branch = whole () => (e) { e = Identity (x) }>
      y = Add (s, s)
    }"""
    net = onnx.parser.parse_model(text)
    session = aotc.compile(net, output=tmp_path, dims={"n": (0, 5)}, target="c", cflags=["-O0"]).session()
    for n in (0, 2, 5):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * x)
    with pytest.raises(AotcError, match="node If#4: "):
        session.run(None, {"x": np.zeros((1, 3), np.float32)})
    # ranges that decide the condition leave nothing to check
    assert "size_conditions" not in from_onnx(net, dims={"n": (2, 5)}).attrs
    assert from_onnx(net, dims={"n": 1}).main.body.checked_type.rank == 1
    computed = text.replace("n = Shape <start = 0, end = 1> (x)", "n = ArgMax <axis = 1> (x)")
    with pytest.raises(AotcError, match="outputs of different types"):
        from_onnx(onnx.parser.parse_model(computed), dims={"n": 1})


def test_data_of_any_extent_is_resized_in_all_modes(tmp_path: Path) -> None:
    linear = single("Resize", ["x", "", "scales"], [1, 1, "n"], mode="linear")
    linear.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 1.7], np.float32), "scales"))
    module = from_onnx(linear, dims={"n": (1, 9)})
    compiled = aotc.compile(linear, output=tmp_path, dims={"n": (1, 9)}, target="c", cflags=["-O0"]).session()
    session = onnxruntime.InferenceSession(linear.SerializeToString())
    for n in (1, 2, 5, 9):
        x = np.random.default_rng(n).standard_normal((1, 1, n)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        for got in (evaluate(module, x), *compiled.run(None, {"x": x})):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
