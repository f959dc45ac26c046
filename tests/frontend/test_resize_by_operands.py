# SPDX-License-Identifier: Apache-2.0
"""ONNX models that resize by sizes, factors and regions that are inputs, compiled once, against ONNX Runtime."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import aotc
from aotc.ir import AotcError
from aotc.ir.size_operands import MAX_DENOMINATOR, SizeDefinition, SizeOperand, bits_of_float32, size_operand_of_name
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.interpreter import evaluate
from aotc.relay.text.parser import parse
from aotc.relay.text.printer import astext

Array = np.ndarray[Any, Any]

#: Inputs roi, scales and sizes of Resize, and its attributes. The data has the shape (1, 2, 5, 6).
NODES: list[tuple[list[str], dict[str, Any]]] = [
    (["", "", "whole_sizes"], {"nearest_mode": "round_prefer_ceil"}),
    (["", "scales"], {"axes": [2, 3], "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    (["", "", "sizes"], {"axes": [2, 3], "mode": "cubic", "antialias": 1}),
    (["", "", "bounds"], {"axes": [3, 2], "keep_aspect_ratio_policy": "not_larger"}),
    (["roi", "", "sizes"], {"axes": [2, 3], "mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize",
                            "extrapolation_value": 7.0}),
]  # fmt: skip
VALUES: list[dict[str, list[float]]] = [
    {"whole_sizes": [2, 2, 3, 9], "scales": [0.6, 1.4], "sizes": [3, 2], "bounds": [9, 4], "roi": [0.1, 0.2, 1.2, 0.9]},
    {"whole_sizes": [1, 3, 12, 1], "scales": [2.0, 0.99999994], "sizes": [8, 12], "bounds": [3, 11],
     "roi": [0.0, 0.5, 1.0, 0.5]},
    {"whole_sizes": [1, 2, 5, 6], "scales": [1 / 3, 1.2345], "sizes": [1, 1], "bounds": [6, 5],
     "roi": [0.9, 0.0, 0.3, 1.5]},
]  # fmt: skip
#: Values that no run accepts, and what the error says.
REFUSED: list[tuple[dict[str, list[float]], str]] = [
    ({"sizes": [0, 3]}, "element 0 of the input sizes is 0"),
    ({"sizes": [13, 3]}, "element 0 of the input sizes is 13"),
    ({"scales": [0.1, 1.0]}, "the size floor(scales[0] * 5) is 1 to 60"),
    ({"scales": [-1.0, 1.0]}, "element 0 of the input scales is -1"),
    ({"scales": [12.5, 1.0]}, "element 0 of the input scales is 12.5, which is not 0 to 12"),
    ({"scales": [float("nan"), 1.0]}, "element 0 of the input scales is nan"),
    ({"roi": [-0.5, 0.0, 1.0, 1.0]}, "element 0 of the input roi is -0.5"),
]
DIMS: dict[str, Any] = {"[*]": (0, 12)}


def model() -> onnx.ModelProto:
    """A model of all nodes; all shapes of results are open."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 5, 6])
    lengths = {name: len(value) for name, value in VALUES[0].items()}
    floats = ("scales", "roi")
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT if name in floats else TensorProto.INT64, [length])
        for name, length in lengths.items()
    ]
    nodes = [helper.make_node("Resize", ["x", *names], [f"y{k}"], **attrs) for k, (names, attrs) in enumerate(NODES)]
    results = [helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, None) for k in range(len(NODES))]
    graph = helper.make_graph(nodes, "resizes", [x, *inputs], results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def feeds(values: dict[str, list[float]]) -> dict[str, Array]:
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype(np.float32)
    dtypes = {"scales": np.float32, "roi": np.float32}
    return {"x": x, **{name: np.array(value, dtypes.get(name, np.int64)) for name, value in values.items()}}


@pytest.fixture(scope="module")
def expected() -> list[list[Array]]:
    session = onnxruntime.InferenceSession(model().SerializeToString())
    return [session.run(None, feeds(values)) for values in VALUES]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> aotc.Session:
    flags = ["-O0", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    flags += ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
    folder = tmp_path_factory.mktemp("resizes")
    return aotc.compile(model(), output=folder, dims=DIMS, target="c", cflags=flags).session()


def check(outputs: list[Array], expected: list[Array]) -> None:
    for k, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        assert got.shape == want.shape, k
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=str(NODES[k]))


def test_one_library_for_all_values(session: aotc.Session, expected: list[list[Array]]) -> None:
    for values, results in zip(VALUES, expected, strict=True):
        check(session.run(None, feeds(values)), results)


def test_interpreter_takes_all_values_also_from_text(expected: list[list[Array]]) -> None:
    module = parse(astext(from_onnx(model(), dims=DIMS)))
    for values, results in zip(VALUES, expected, strict=True):
        check(evaluate(module, *feeds(values).values()), results)


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_other_values_are_refused(
    session: aotc.Session, changed: dict[str, list[float]], message: str, expected: list[list[Array]]
) -> None:
    with pytest.raises(AotcError) as caught:
        session.run(None, feeds({**VALUES[0], **changed}))
    assert message in str(caught.value)
    check(session.run(None, feeds(VALUES[0])), expected[0])


def test_factors_are_the_nearest_fractions(session: aotc.Session) -> None:
    # numerators and denominators as extents: the shape of a result shows what C computes
    rng = np.random.default_rng(1)
    for scale in (*rng.uniform(0.2, 12, 40).astype(np.float32), np.float32(0.7), np.float32(1.1)):
        (got,) = session.run(["y1"], feeds({**VALUES[0], "scales": [float(scale), 1.0]}))
        fraction = Fraction(float(scale)).limit_denominator(MAX_DENOMINATOR)
        rows = int(scale * np.float32(5))
        places = [min(k * fraction.denominator // fraction.numerator, 4) for k in range(rows)]
        np.testing.assert_array_equal(got, feeds(VALUES[0])["x"][:, :, places])


def test_sizes_of_floats_know_their_names_and_values() -> None:
    operand = SizeOperand("f", 1, bits_of_float32(0.5), bits_of_float32(4.0), is_bits=True)
    assert size_operand_of_name(operand.name, operand.most - operand.least) == operand
    for value in (0.5, 0.7, 4.0):
        size = operand.size_of(np.array([9, value], np.float32))
        assert operand.value_of_size(size) == np.float32(value)
    assert bits_of_float32(-0.0) == 0
    assert bits_of_float32(-1.0) == -1
    assert operand.text_of_size(0) == "f[1] 0.5"
    definition = SizeDefinition("s", "n", 0, 99, "", "product", operand.name)
    assert str(definition) == "floor(f[1] * n)"
    assert str(SizeDefinition("s", "0", 0, 99, "", "numerator", str(bits_of_float32(0.75)))) == "numerator(0.75)"
    assert definition.symbols == {"n", operand.name}
