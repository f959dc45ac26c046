# SPDX-License-Identifier: Apache-2.0
"""ONNX models whose shapes depend on values of their inputs, compiled once, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import aotc
from aotc.checking.input_generation import read_or_draw_session_inputs
from aotc.checking.verify import verify
from aotc.ir import AotcError, DimRange
from aotc.ir.size_operands import SizeOperand, arrays_with_operands, size_operand_of_name
from aotc.relay.backend.run_time_sizes import RunTimeSizes
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.interpreter import evaluate
from aotc.relay.text.parser import parse
from aotc.relay.text.printer import astext

Array = np.ndarray[Any, Any]

#: Operators on x of shape (2, 3, 4), with the lengths of their operands, outputs and attributes.
NODES: list[tuple[str, dict[str, int], list[str], dict[str, Any]]] = [
    ("Reshape", {"shape": 2}, ["reshaped"], {}),
    ("Unsqueeze", {"new_axes": 2}, ["unsqueezed"], {}),
    ("Squeeze", {"ones": 1}, ["squeezed"], {}),
    ("ReduceSum", {"sum_axes": 1}, ["sums"], {"keepdims": 0}),
    ("ReduceMean", {"mean_axes": 2}, ["means"], {"keepdims": 1}),
    ("ReduceLogSumExp", {"log_axes": 1}, ["logs"], {"keepdims": 1}),
    ("Expand", {"expanded_shape": 4}, ["expanded"], {}),
    ("Tile", {"repeats": 3}, ["tiled"], {}),
    ("Pad", {"pads": 6}, ["padded"], {}),
    ("Pad", {"widths": 6}, ["reflected"], {"mode": "reflect"}),
    ("Split", {"parts": 2}, ["first", "second"], {"axis": 2}),
    ("TopK", {"k": 1}, ["values", "indices"], {"axis": 1}),
    ("Slice", {"starts": 2, "ends": 2, "slice_axes": 2, "steps": 2}, ["sliced"], {}),
    ("Slice", {"from": 3, "to": 3}, ["cut"], {}),
    ("Pad", {"axis_pads": 2, "": 0, "pad_axes": 1}, ["padded_axis"], {}),
]
#: Valid values of the operands.
VALUES: list[dict[str, list[int]]] = [
    {"shape": [4, 6], "new_axes": [0, 3], "ones": [0], "sum_axes": [0], "mean_axes": [0, 1], "log_axes": [2],
     "expanded_shape": [5, 2, 3, 4], "repeats": [1, 2, 3], "pads": [1, 0, 2, 0, 1, 0], "widths": [1, 2, 3, 0, 1, 0],
     "parts": [1, 3], "k": [2], "starts": [3, 0], "ends": [-9, 9], "slice_axes": [2, 0], "steps": [-2, 1],
     "from": [0, 1, -3], "to": [2, -1, 4], "axis_pads": [1, 2], "pad_axes": [-1]},
    {"shape": [-1, 8], "new_axes": [-1, 1], "ones": [2], "sum_axes": [-1], "mean_axes": [-1, -3], "log_axes": [-3],
     "expanded_shape": [1, 1, 3, 1], "repeats": [2, 0, 1], "pads": [0, -1, 0, 0, 0, -2], "widths": [0] * 6,
     "parts": [0, 4], "k": [0], "starts": [-9, 1], "ends": [2**62, -(2**62)], "slice_axes": [1, -1], "steps": [2, -1],
     "from": [-1, -2, 2], "to": [9, 3, 1], "axis_pads": [0, -1], "pad_axes": [1]},
    {"shape": [0, 12], "new_axes": [4, 2], "ones": [-3], "sum_axes": [1], "mean_axes": [2, 1], "log_axes": [1],
     "expanded_shape": [0, 2, 1, 4], "repeats": [3, 3, 3], "pads": [0, 0, 0, 0, 0, 0], "widths": [0, 1, 0, 1, 0, 2],
     "parts": [4, 0], "k": [3], "starts": [5, -2], "ends": [-3, -1], "slice_axes": [2, 1], "steps": [-(2**60), 1],
     "from": [1, 0, 0], "to": [1, 1, -9], "axis_pads": [-1, 3], "pad_axes": [-3]},
]  # fmt: skip
#: Values that no run accepts, and what the error says.
REFUSED: list[tuple[dict[str, list[int]], str]] = [
    ({"shape": [5, 5]}, "== 24"),
    ({"shape": [-1, -1]}, "1 >="),
    ({"shape": [25, 1]}, "element 0 of the input shape is 25, which is not -1 to 24"),
    ({"shape": [-2, 12]}, "element 0 of the input shape is -2"),
    ({"new_axes": [1, 1]}, "node Unsqueeze#1: the size"),
    ({"new_axes": [5, 0]}, "element 0 of the input new_axes is 5, which is not -5 to 4"),
    ({"ones": [1]}, "== 6"),
    ({"sum_axes": [3]}, "element 0 of the input sum_axes is 3"),
    ({"mean_axes": [0, -3]}, "node ReduceMean#4: the size"),
    ({"expanded_shape": [2, 3, 3, 4]}, "== 0"),
    ({"expanded_shape": [9, 2, 3, 4]}, "element 0 of the input expanded_shape is 9, which is not 0 to 8"),
    ({"repeats": [-1, 1, 1]}, "element 0 of the input repeats is -1"),
    ({"repeats": [2**40, 1, 1]}, "element 0 of the input repeats is"),
    ({"pads": [-2, 0, 0, -1, 0, 0]}, "node Pad#8: the size"),
    ({"widths": [-1, 0, 0, 0, 0, 0]}, "element 0 of the input widths is -1"),
    ({"parts": [1, 2]}, "== 4"),
    ({"parts": [-1, 5]}, "element 0 of the input parts is -1"),
    ({"steps": [1, 0]}, "node Slice#12: "),
    ({"slice_axes": [1, -2]}, "node Slice#12: "),
    ({"slice_axes": [3, 0]}, "element 0 of the input slice_axes is 3, which is not -3 to 2"),
    ({"pad_axes": [3]}, "element 0 of the input pad_axes is 3"),
    ({"axis_pads": [-2, -3]}, "node Pad#14: "),
    ({"k": [4]}, "element 0 of the input k is 4, which is not 0 to 3"),
    ({"k": [-(2**63)]}, "element 0 of the input k is -9223372036854775808"),
]
DIMS: dict[str, Any] = {"[*]": (0, 8)}


def model(nodes: list[tuple[str, dict[str, int], list[str], dict[str, Any]]] = NODES) -> onnx.ModelProto:
    """A model of all operators; Squeeze reads y of shape (1, 6, 1)."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])]
    inputs += [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 1])]
    built = []
    for op, operands, outputs, attrs in nodes:
        inputs += [helper.make_tensor_value_info(n, TensorProto.INT64, [size]) for n, size in operands.items() if n]
        built.append(helper.make_node(op, ["y" if op == "Squeeze" else "x", *operands], outputs, **attrs))
    results = [
        helper.make_tensor_value_info(n, TensorProto.INT64 if n == "indices" else TensorProto.FLOAT, None)
        for node in built
        for n in node.output
    ]
    graph = helper.make_graph(built, "net", inputs, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def feeds(values: dict[str, list[int]]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    arrays = {name: np.array(value, np.int64) for name, value in values.items()}
    x, y = rng.standard_normal((2, 3, 4)).astype(np.float32), rng.standard_normal((1, 6, 1)).astype(np.float32)
    return {"x": x, "y": y, **arrays}


@pytest.fixture(scope="module")
def expected() -> list[list[Array]]:
    session = onnxruntime.InferenceSession(model().SerializeToString())
    return [session.run(None, feeds(values)) for values in VALUES]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> aotc.Session:
    folder = tmp_path_factory.mktemp("operands")
    flags = ["-O0", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    return aotc.compile(model(), output=folder, dims=DIMS, target="c", cflags=flags).session()


def test_one_library_for_all_values(session: aotc.Session, expected: list[list[Array]]) -> None:
    for values, results in zip(VALUES, expected, strict=True):
        for info, got, want in zip(session.get_outputs(), session.run(None, feeds(values)), results, strict=True):
            assert got.shape == want.shape, (info.name, values)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=info.name)


def test_interpreter_takes_all_values_also_from_text(expected: list[list[Array]]) -> None:
    module = from_onnx(model(), dims=DIMS)
    for values, results in zip(VALUES, expected, strict=True):
        for got, want in zip(evaluate(parse(astext(module)), *feeds(values).values()), results, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_other_values_are_refused_before_anything_is_written(
    session: aotc.Session, changed: dict[str, list[int]], message: str
) -> None:
    with pytest.raises(AotcError) as caught:
        session.run(None, feeds({**VALUES[0], **changed}))
    assert message in str(caught.value)
    session.run(None, feeds(VALUES[0]))


def test_a_binding_refuses_values_that_need_other_outputs(session: aotc.Session) -> None:
    binding = session.bind(feeds(VALUES[0]))
    binding.run()
    binding.inputs["repeats"][0] = 8
    with pytest.raises(AotcError, match="which shapes depend on, have changed"):
        binding.run()


def test_values_without_bound_are_named_with_the_option() -> None:
    with pytest.raises(AotcError) as caught:
        from_onnx(model([NODES[7]]))
    assert "nothing bounds element 0 of the input 'repeats'" in str(caught.value)
    assert 'dims={"repeats[0]": (0, 64)}' in str(caught.value.diagnostics[0].hint)
    from_onnx(model([NODES[7]]), dims={"repeats[0]": (1, 4), "repeats[*]": 2})
    with pytest.raises(AotcError, match="no input has a dimension called 'reps"):
        from_onnx(model([NODES[7]]), dims={"reps[0]": (1, 4)})


@pytest.mark.parametrize(
    ("body", "size", "hint"),
    [
        ("z = ReduceSum (x, n)", "b", '{"b": (1, 64)}'),
        ("z = NonZero (x)", "b*k", '{"b": (1, 64), "k": (1, 64)}'),
        ("s = Size (x) z = Range (n, s, n)", "max((b*k-'n[0]-1'+s0-2)//s0, 0)", '{"b": (1, 64), "k": (1, 64)}'),
    ],
)
def test_dimensions_without_range_are_named_with_the_option(body: str, size: str, hint: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 18]> net (float[b, k] x, int64[1] n) => (float z) {{ {body} }}"""
    with pytest.raises(AotcError) as caught:
        from_onnx(onnx.parser.parse_model(text), dims={"n[0]": (1, 9)})
    found = caught.value.diagnostics[0]
    assert found.code == "onnx-operand-bound"
    assert f"nothing bounds the size {size}, of which" in found.message
    assert hint in str(found.hint)


def test_random_inputs_have_values_that_a_run_accepts(session: aotc.Session) -> None:
    session.run(None, read_or_draw_session_inputs(session, None))


def test_verification_draws_values_that_a_run_accepts() -> None:
    net = model([NODES[0], NODES[4]])
    report = verify(net, seeds=1, check_compiler=False, target="c", cflags=["-O0"])
    assert report.ok
    assert len(report.cases) > 3
    assert "shape[0] " in report.cases[0].source
    with pytest.raises(AotcError, match=r"no values of shape, mean_axes are known that the model takes"):
        verify(net, input_ranges={"shape": (5, 5)}, check_compiler=False, target="c", cflags=["-O0"])


def test_an_element_that_several_operators_take_has_one_value() -> None:
    operands = [SizeOperand("a", 0, -9, 9, True), SizeOperand("a", 0, 0, 20)]
    sizes = {operands[0].name: 18, operands[1].name: 15}
    given = {"a": np.array([0, 5])}
    assert arrays_with_operands(given, operands, sizes)["a"].tolist() == [15, 5]
    assert given["a"].tolist() == [0, 5]


def test_an_element_has_no_value_that_an_operator_refuses() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> net (int64[2] n) => (float[a, b] y, float[c, d] z) {
      y = ConstantOfShape (n)
      z = Reshape (y, n)
    }"""
    module = from_onnx(onnx.parser.parse_model(text), dims={"[*]": (0, 5)})
    assert [row[:4] for row in module.attrs["size_operands"]] == [("n", 0, 0, 5), ("n", 1, 0, 5)]
    results = evaluate(module, np.array([2, 3]))
    assert [np.shape(y) for y in results] == [(2, 3), (2, 3)]


@pytest.mark.parametrize(
    "operand",
    [SizeOperand("a", 3, 0, 7), SizeOperand("a[1]", 0, -4, 3), SizeOperand("clip(b)", 2, -9, 9, True)],
    ids=lambda o: o.name,
)
def test_names_of_operands_say_what_they_are(operand: SizeOperand) -> None:
    assert size_operand_of_name(operand.name, operand.most - operand.least) == operand
    assert size_operand_of_name("batch", 4) is None


def test_conditions_compare_with_negative_numbers() -> None:
    sizes = RunTimeSizes({"n": DimRange(0, 20)})
    sizes.add_stated_conditions([("n", ">=", "-10", "a"), ("n-15", ">=", "-10", "b")], None)
    assert [str(check.right) for check in sizes.checks] == ["-10"]
