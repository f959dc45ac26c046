# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX graphs: inputs and pinned dimensions, spans, folding, subgraphs, functions, versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from evaluation import Array, model_of, run_model
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import aotc
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.types import TensorType
from aotc.relay.analysis import list_op_freqs
from aotc.relay.expr import Constant
from aotc.relay.frontend.onnx import from_onnx, supported_ops

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def agree(model: ModelProto, inputs: dict[str, Array], **options: object) -> list[Array]:
    """Our outputs, after comparing them with those of ONNX's reference evaluator."""
    actual = run_model(from_onnx(model, **options), inputs)  # type: ignore[arg-type]
    for a, b in zip(actual, ReferenceEvaluator(model).run(None, inputs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return actual


# --- inputs


def test_initializers_listed_as_inputs_are_constants() -> None:
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])], {"x": (3,), "w": (3,)}, ["y"], constants={"w": floats(3)}
    )
    module = from_onnx(model)
    assert [p.name for p in module.main.params] == ["x"]
    agree(model, {"x": floats(3)})


def test_unused_inputs_stay() -> None:
    module = from_onnx(model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (3,), "unused": (1,)}, ["y"]))
    assert [p.name for p in module.main.params] == ["x", "unused"]


def test_symbolic_dimensions() -> None:
    model = model_of([helper.make_node("Add", ["x", "z"], ["y"])], {"x": ("n", 3), "z": ("n", 3)}, ["y"])
    assert from_onnx(model).main.params[0].checked_type == TensorType((SymDim("n"), 3))
    for pinned in (from_onnx(model, dims={"n": 4}), from_onnx(model, shape={"x": (4, 3)})):
        assert [p.checked_type for p in pinned.main.params] == [TensorType((4, 3))] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dims": {"m": 1}}, "no input has a dimension called 'm'"),
        ({"dims": {"n": -1}}, "cannot be -1"),
        ({"shape": {"q": (1,)}}, "no input 'q'"),
        ({"shape": {"x": (4, 4)}}, "contradicts"),
        ({"shape": {"x": (4,)}}, "contradicts"),
        ({"shape": {"x": (2, 3), "z": (4, 3)}}, "pinned to both 2 and 4"),
        ({"dims": {"n": 2}, "shape": {"x": (4, 3)}}, "pinned to both 2 and 4"),
    ],
)
def test_pins_that_do_not_fit(options: dict[str, object], words: str) -> None:
    model = model_of([helper.make_node("Add", ["x", "z"], ["y"])], {"x": ("n", 3), "z": ("n", 3)}, ["y"])
    with pytest.raises(AotcError, match=words):
        from_onnx(model, **options)  # type: ignore[arg-type]


def _decoder_with_past() -> ModelProto:
    nodes = [
        helper.make_node("Concat", ["cache", "x"], ["all"], axis=0),
        helper.make_node("Add", ["all", "mask"], ["y"]),
    ]
    return model_of(nodes, {"cache": ("past", 3), "x": ("seq", 3), "mask": ("past + seq", 3)}, ["y"])


@pytest.mark.parametrize(
    "options",
    [
        {"dims": {"past": 3, "seq": 1}},
        {"dims": {"past": 3, "seq+past": 4}},
        {"dims": {"seq": 1}, "shape": {"mask": (4, 3)}},
        {"shape": {"mask": (4, 3), "x": (1, 3)}},
    ],
)
def test_formulas_of_dimensions_follow_from_their_symbols(options: dict[str, Any]) -> None:
    types = [p.checked_type for p in from_onnx(_decoder_with_past(), **options).main.params]
    assert types == [TensorType((n, 3)) for n in (3, 1, 4)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dims": {"past": 3, "seq": 1, "past+seq": 5}}, r"dimension 'past\+seq' is pinned to both 4 and 5"),
        ({"dims": {"past": 3}, "shape": {"mask": (2, 3)}}, "no value of seq makes past.seq equal to 2"),
        ({"dims": {"past+sek": 3}}, "no input has a dimension called 'past.sek'"),
    ],
)
def test_sizes_that_contradict_a_formula(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AotcError, match=words):
        from_onnx(_decoder_with_past(), **options)


def test_a_formula_that_becomes_negative() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": ("n", 3), "z": ("n - 4", 3)}, ["y"])
    with pytest.raises(AotcError, match="input 'z': dimension n-4 is -1"):
        from_onnx(model, dims={"n": 3})


def test_hints_name_the_symbols_of_formulas() -> None:
    with pytest.raises(AotcError) as caught:
        aotc.compile(_decoder_with_past(), target="c", build=False)
    text = str(caught.value)
    assert '"past": 1, "seq": 1' in text and '"past+seq": 1' not in text


def test_a_dynamic_dimension_in_the_way_names_the_option() -> None:
    nodes = [helper.make_node("Einsum", ["x"], ["y"], equation="bij->bj")]
    model = model_of(nodes, {"x": ("batch", 3, 4)}, ["y"])
    with pytest.raises(AotcError, match=r'dims=\{"batch": 1\}'):
        from_onnx(model)
    agree(model, {"x": floats(2, 3, 4)}, dims={"batch": 2})


def test_shapes_that_depend_on_run_time_values_are_refused() -> None:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["s"], axis=1, keepdims=0),
        helper.make_node("Expand", ["x", "s"], ["y"]),
    ]
    model = model_of(nodes, {"x": (2, 6)}, ["y"])
    with pytest.raises(AotcError) as caught:
        from_onnx(model)
    assert caught.value.code == "onnx-runtime-shape"


def test_numbers_are_cast_to_the_type_of_others() -> None:
    """CastLike has a converter for strings, and a function body for numbers."""
    nodes = [helper.make_node("Shape", ["x"], ["n"]), helper.make_node("CastLike", ["x", "n"], ["y"])]
    (y,) = run_model(from_onnx(model_of(nodes, {"x": (2,)}, ["y"])), {"x": np.array([1.75, -2.5], np.float32)})
    assert y.dtype == np.int64 and y.tolist() == [1, -2]


# --- outputs and spans


def test_several_outputs_keep_their_names() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["x"], ["b"])]
    module = from_onnx(model_of(nodes, {"x": (2,)}, ["b", "a", "x"][:2]))
    assert module.attrs["output_names"] == ("b", "a")


def test_nodes_know_where_they_come_from() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["h"], name="act"), helper.make_node("Gelu", ["h"], ["y"])]
    module = from_onnx(model_of(nodes, {"x": (2,)}, ["y"]), name="net.onnx")
    body = module.main.body
    assert str(body.span) == "net.onnx: node Gelu#1"


# --- folding


def test_shape_arithmetic_disappears() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Slice", ["s", "one", "two"], ["m"]),
        helper.make_node("Mul", ["m", "three"], ["m3"]),
        helper.make_node("Div", ["m3", "three"], ["k"]),
        helper.make_node("Cast", ["k"], ["kf"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["kf"], ["k2"], to=TensorProto.INT64),
        helper.make_node("Concat", ["n1", "k2", "minus"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    constants = {
        "zero": np.array(0),
        "axes": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "three": np.array([3]),
        "minus": np.array([-1]),
    }
    model = model_of(nodes, {"x": (2, 3, 4, 5)}, ["y"], constants=constants)
    assert list_op_freqs(from_onnx(model).main) == {"reshape": 1}
    assert agree(model, {"x": floats(2, 3, 4, 5)})[0].shape == (2, 3, 20)


def test_large_splats_stay_symbolic() -> None:
    nodes = [helper.make_node("ConstantOfShape", ["shape"], ["c"]), helper.make_node("MatMul", ["x", "c"], ["y"])]
    module = from_onnx(model_of(nodes, {"x": (1, 1 << 14)}, ["y"], constants={"shape": np.array([1 << 14, 1 << 14])}))
    weight = module.main.body.args[1]  # type: ignore[union-attr]
    assert isinstance(weight, Constant)
    assert weight.is_splat


def test_nodes_that_nothing_needs_are_not_converted() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Frobnicate", ["x"], ["z"])]
    from_onnx(model_of(nodes, {"x": (2,)}, ["y"]))


def test_a_chain_of_ten_thousand_nodes() -> None:
    nodes = [helper.make_node("Relu", [f"t{k}"], [f"t{k + 1}"]) for k in range(10_000)]
    module = from_onnx(model_of(nodes, {"t0": (2,)}, ["t10000"]))
    assert list_op_freqs(module.main) == {"nn.relu": 10_000}


# --- constants in all their forms


@pytest.mark.parametrize(
    "attribute",
    [
        {"value": numpy_helper.from_array(np.array([1.5, 2.5], np.float32))},
        {"value_float": 2.5},
        {"value_floats": [1.0, 2.0]},
        {"value_int": 3},
        {"value_ints": [3, 4]},
    ],
)
def test_constants(attribute: dict[str, object]) -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], **attribute),
        helper.make_node("CastLike", ["c", "x"], ["f"]),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    agree(model_of(nodes, {"x": (2,)}, ["y"]), {"x": floats(2)})


# --- subgraphs and functions


def _graph(name: str, nodes: list[object], inputs: list[tuple[str, int, list[int]]], outputs: list[str]) -> object:
    return helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(n, e, s) for n, e, s in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in outputs],
    )


@pytest.mark.parametrize("condition", [True, False])
def test_if_with_a_known_condition_takes_the_branch(condition: bool) -> None:
    yes = _graph("yes", [helper.make_node("Relu", ["x"], ["a"])], [], ["a"])
    no = _graph("no", [helper.make_node("Neg", ["x"], ["b"])], [], ["b"])
    node = helper.make_node("If", ["c"], ["y"], then_branch=yes, else_branch=no)
    model = model_of([node], {"x": (2,)}, ["y"], constants={"c": np.array(condition)})
    assert list(list_op_freqs(from_onnx(model).main)) == ["nn.relu" if condition else "negative"]


def test_if_at_run_time() -> None:
    yes = _graph("yes", [helper.make_node("Relu", ["x"], ["a"])], [], ["a"])
    no = _graph("no", [helper.make_node("Neg", ["x"], ["b"])], [], ["b"])
    model = model_of([helper.make_node("If", ["c"], ["y"], then_branch=yes, else_branch=no)], {"x": (2,)}, ["y"])
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    module = from_onnx(model)
    x = floats(2)
    np.testing.assert_array_equal(run_model(module, {"x": x, "c": np.array(False)})[0], -x)
    np.testing.assert_array_equal(run_model(module, {"x": x, "c": np.array(True)})[0], np.maximum(x, 0))


def test_loop_with_a_known_trip_count() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["v", "f"], ["w"]),
            helper.make_node("Mul", ["w", "x"], ["s"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [2]),
        ],
    )
    node = helper.make_node("Loop", ["trips", "", "x"], ["last", "all"], body=body)
    model = model_of([node], {"x": (2,)}, ["last", "all"], constants={"trips": np.array(3)})
    x = floats(2)
    last, scanned = run_model(from_onnx(model), {"x": x})
    np.testing.assert_allclose(last, x + 3, rtol=1e-6)
    np.testing.assert_allclose(scanned, np.stack([x, x + 1, x + 3]) * x, rtol=1e-5)


def test_functions_of_the_model() -> None:
    body = [
        helper.make_node("Constant", [], ["k"]),
        helper.make_node("Mul", ["a", "k"], ["b"]),
        helper.make_node("Sub", ["a", "k"], ["unwanted"]),
    ]
    reference = body[0].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "value_float", "factor", 1
    imports = [helper.make_opsetid("", 20)]
    function = helper.make_function("local", "Scale", ["a"], ["b", "unwanted"], body, imports, ["factor"])
    model = model_of([helper.make_node("Scale", ["x"], ["y"], domain="local", factor=2.5)], {"x": (2,)}, ["y"])
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.functions.append(function)
    assert list_op_freqs(from_onnx(model).main) == {"multiply": 1}
    agree(model, {"x": floats(2)})


def test_composite_operators_without_a_converter_use_their_body() -> None:
    assert "CenterCropPad" not in supported_ops()[""]
    node = helper.make_node("CenterCropPad", ["x", "shape"], ["y"])
    model = model_of([node], {"x": (5, 4)}, ["y"], constants={"shape": np.array([3, 7])})
    assert agree(model, {"x": floats(5, 4)})[0].shape == (3, 7)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(1, 1, 3, 4), (2, 1, 3, 4), (2, 1, 2, 3, 4)])
def test_affine_grid(size: tuple[int, ...], align: int) -> None:
    import onnx.reference.ops.op_affine_grid as reference

    n = len(size) - 2
    node = helper.make_node("AffineGrid", ["theta", "size"], ["grid"], align_corners=align)
    model = model_of([node], {"theta": (size[0], n, n + 1)}, ["grid"], constants={"size": np.array(size)})
    theta = floats(size[0], n, n + 1)
    grid = reference.construct_original_grid(size[2:], align)
    expected = reference.apply_affine_transform(theta, grid)
    np.testing.assert_allclose(run_model(from_onnx(model), {"theta": theta})[0], expected, rtol=1e-5, atol=1e-6)


# --- meanings that changed from version to version


def test_softmax_flattens_up_to_version_12() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], axis=1)
    x = floats(2, 3, 4)
    old, new = (
        run_model(from_onnx(model_of([node], {"x": (2, 3, 4)}, ["y"], opset=opset)), {"x": x})[0] for opset in (11, 13)
    )
    np.testing.assert_allclose(old.sum((1, 2)), 1, rtol=1e-5)
    np.testing.assert_allclose(new.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("opset", [9, 13])
def test_axes_as_attribute_and_as_input(opset: int) -> None:
    if opset < 13:
        nodes = [
            helper.make_node("Unsqueeze", ["x"], ["u"], axes=[0, 2]),
            helper.make_node("Squeeze", ["u"], ["v"], axes=[0]),
            helper.make_node("ReduceSum", ["v"], ["y"], axes=[-1], keepdims=0),
        ]
    else:
        nodes = [
            helper.make_node("Unsqueeze", ["x", "outer"], ["u"]),
            helper.make_node("Squeeze", ["u", "first"], ["v"]),
            helper.make_node("ReduceSum", ["v", "last"], ["y"], keepdims=0),
        ]
    constants = {"outer": np.array([0, 2]), "first": np.array([0]), "last": np.array([-1])} if opset >= 13 else {}
    assert agree(model_of(nodes, {"x": (2, 3)}, ["y"], constants=constants, opset=opset), {"x": floats(2, 3)})


def test_upsample_and_clip_of_old_versions() -> None:
    nodes = [
        helper.make_node("Upsample", ["x"], ["u"], mode="nearest", scales=[1.0, 1.0, 2.0, 3.0]),
        helper.make_node("Clip", ["u"], ["y"], min=-0.5, max=0.5),
    ]
    x = floats(1, 2, 3, 3)
    actual = run_model(from_onnx(model_of(nodes, {"x": (1, 2, 3, 3)}, ["y"], opset=7)), {"x": x})[0]
    np.testing.assert_array_equal(actual, np.clip(x.repeat(2, 2).repeat(3, 3), -0.5, 0.5))


def test_broadcasting_of_operator_set_6() -> None:
    node = helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)
    x, b = floats(2, 3, 4), floats(3)
    module = from_onnx(model_of([node], {"x": (2, 3, 4)}, ["y"], constants={"b": b}, opset=6))
    np.testing.assert_array_equal(run_model(module, {"x": x})[0], x + b[:, None])


# --- compositions checked against ONNX's reference evaluator


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("ij->ji", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ab,cd", [(2, 3), (4, 5)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    names = [f"x{k}" for k in range(len(shapes))]
    model = model_of(
        [helper.make_node("Einsum", names, ["y"], equation=equation)], dict(zip(names, shapes, strict=True)), ["y"]
    )
    agree(model, {n: floats(*s) for n, s in zip(names, shapes, strict=True)})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((2, 1, 4, 3), (5, 3, 2)),
        ((1, 2, 3), (4, 3, 2)),
        ((2, 3), (4, 3, 2)),
    ],
)
def test_matmul_of_any_rank(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    model = model_of([helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": left, "b": right}, ["y"])
    agree(model, {"a": floats(*left), "b": floats(*right)})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers(op: str, gates: int, direction: str) -> None:
    import onnxruntime

    steps, batch, inputs, hidden = 5, 2, 3, 4
    count = 2 if direction == "bidirectional" else 1
    constants = {
        "w": floats(count, gates * hidden, inputs),
        "r": floats(count, gates * hidden, hidden),
        "b": floats(count, 2 * gates * hidden),
    }
    outputs = ["y", "h", "c"] if op == "LSTM" else ["y", "h"]
    node = helper.make_node(op, ["x", "w", "r", "b"], outputs, hidden_size=hidden, direction=direction)
    model = model_of([node], {"x": (steps, batch, inputs)}, outputs, constants=constants, opset=14)
    for output in model.graph.output:
        output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, None))
    model.ir_version = 8
    x = floats(steps, batch, inputs)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for a, b in zip(run_model(from_onnx(model), {"x": x}), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_sequences_of_no_steps_end_in_zeros(op: str, gates: int) -> None:
    import onnxruntime

    outputs = ["y", "h", "c"] if op == "LSTM" else ["y", "h"]
    inputs = {"x": (3, 2, 4), "w": (1, 3 * gates, 4), "r": (1, 3 * gates, 3), "b": (1, 6 * gates), "h0": (1, 2, 3)}
    inputs |= {"c0": (1, 2, 3)} if op == "LSTM" else {}
    node = helper.make_node(op, ["x", "w", "r", "b", "lengths", *list(inputs)[4:]], outputs, hidden_size=3)
    model = model_of([node], inputs, [], opset=14)
    model.graph.input.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, [2]))
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs)
    model.ir_version = 8
    data = {name: floats(*shape) for name, shape in inputs.items()} | {"lengths": np.array([2, 0], np.int32)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, data)
    for a, b in zip(run_model(from_onnx(model), data), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_negative_indices_at_run_time() -> None:
    model = model_of([helper.make_node("Gather", ["table", "i"], ["y"])], {}, ["y"], constants={"table": floats(5, 3)})
    model.graph.input.append(helper.make_tensor_value_info("i", TensorProto.INT64, [4]))
    agree(model, {"i": np.array([0, -1, 4, -5])})


def test_slices_that_go_backwards() -> None:
    constants = {"a": np.array([-1, 3]), "b": np.array([-100, 0]), "axes": np.array([0, 1]), "step": np.array([-1, -2])}
    model = model_of(
        [helper.make_node("Slice", ["x", "a", "b", "axes", "step"], ["y"])], {"x": (4, 5)}, ["y"], constants=constants
    )
    agree(model, {"x": floats(4, 5)})


@pytest.mark.parametrize("shape", [(), (3,), (2, 0)])
def test_a_range_of_nothing_quantizes_to_zero(shape: tuple[int, ...]) -> None:
    """ONNX Runtime's scale of all zeros is 1, the specification leaves it open."""
    import onnxruntime

    model = model_of([helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])], {"x": shape}, [])
    types = {"y": TensorProto.UINT8, "scale": TensorProto.FLOAT, "zero": TensorProto.UINT8}
    model.graph.output.extend(helper.make_tensor_value_info(name, elem, None) for name, elem in types.items())
    model.ir_version = 8
    x = np.zeros(shape, np.float32)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for a, b in zip(run_model(from_onnx(model), {"x": x}), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_squeeze_of_no_axes_is_of_all() -> None:
    node = helper.make_node("Squeeze", ["x"], ["y"])
    node.attribute.append(helper.make_attribute("axes", [], attr_type=AttributeProto.INTS))
    model = model_of([node], {"x": (1, 3, 1)}, ["y"], opset=11)
    assert run_model(from_onnx(model), {"x": floats(1, 3, 1)})[0].shape == (3,)


@pytest.mark.parametrize(("keepdims", "shape"), [(0, (3,)), (1, (1, 3)), (2, (3,))])
def test_only_one_keeps_dimensions(keepdims: int, shape: tuple[int, ...]) -> None:
    for op in ("ReduceSum", "ReduceMax", "ArgMax"):
        axes = {"axis": 0} if op == "ArgMax" else {} if op == "ReduceSum" else {"axes": [0]}
        inputs = ["x", "axes"] if op == "ReduceSum" else ["x"]
        node = helper.make_node(op, inputs, ["y"], keepdims=keepdims, **axes)
        constants = {"axes": np.array([0])} if op == "ReduceSum" else {}
        model = model_of([node], {"x": (2, 3)}, ["y"], constants=constants, opset=13)
        assert run_model(from_onnx(model), {"x": floats(2, 3)})[0].shape == shape


def quantized_product(left: tuple[int, ...], right: tuple[int, ...], scales: list[Array]) -> ModelProto:
    """QLinearMatMul of uint8 with these scales of its operands."""
    inputs = ["a", "as", "z", "b", "bs", "z", "one", "z"]
    node = helper.make_node("QLinearMatMul", inputs, ["y"])
    types = {"a": left, "b": right}
    given = [helper.make_tensor_value_info(n, TensorProto.UINT8, s) for n, s in types.items()]
    constants = {"as": scales[0], "bs": scales[1], "one": np.float32(1), "z": np.uint8(0)}
    held = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    made = [helper.make_tensor_value_info("y", TensorProto.UINT8, None)]
    graph = helper.make_graph([node], "net", given, made, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=8)


@pytest.mark.parametrize(("left", "right"), [((3, 4), (4, 2)), ((3, 4), (4,)), ((4,), (4, 2)), ((2, 3, 4), (4, 2))])
def test_quantized_products_have_a_scale_for_each_row_and_column(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    rows = np.float32([0.5, 1, 2])[: left[-2]] if len(left) > 1 else np.float32(0.5)
    columns = np.float32([0.25, 1])[: right[-1]] if len(right) > 1 else np.float32(0.25)
    a, b = (rng.integers(0, 8, shape).astype(np.uint8) for shape in (left, right))
    (y,) = run_model(from_onnx(quantized_product(left, right, [rows, columns])), {"a": a, "b": b})
    exact = (a * (rows[:, None] if len(left) > 1 else rows)) @ (b * columns)
    np.testing.assert_array_equal(y, np.clip(np.rint(exact), 0, 255).astype(np.uint8), strict=True)


def test_a_vector_has_one_scale() -> None:
    for scales in ([np.ones(4, np.float32), np.float32(1)], [np.float32(1), np.ones(4, np.float32)]):
        with pytest.raises(AotcError, match="a single scale and a single zero point"):
            from_onnx(quantized_product((4,), (4,), scales))


@pytest.mark.parametrize("op", ["GlobalLpPool", "LpPool"])
def test_orders_of_norms_are_floats_in_the_first_version(op: str) -> None:
    attributes = {} if op == "GlobalLpPool" else {"kernel_shape": [2, 3]}
    node = helper.make_node(op, ["x"], ["y"], p=2.5, **attributes)
    x = floats(1, 2, 2, 3)
    (y,) = run_model(from_onnx(model_of([node], {"x": x.shape}, ["y"], opset=1)), {"x": x})
    np.testing.assert_allclose(y, (abs(x) ** 2.5).sum((2, 3), keepdims=True) ** (1 / 2.5), rtol=1e-5)


@pytest.mark.parametrize(("inputs", "word"), [(["x", "", "two"], "axis"), (["x", "two"], "dft_length")])
def test_transforms_have_one_axis_and_one_length(inputs: list[str], word: str) -> None:
    node = helper.make_node("DFT", inputs, ["y"])
    model = model_of([node], {"x": (1, 4, 4, 1)}, ["y"], constants={"two": np.array([1, 2], np.int64)})
    with pytest.raises(AotcError, match=word) as caught:
        from_onnx(model)
    assert caught.value.diagnostics[0].code.startswith("onnx-")
