# SPDX-License-Identifier: Apache-2.0
"""ONNX operators on signals and images whose sizes, axes and steps are inputs, compiled once, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import aotc
from aotc.ir import AotcError
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.interpreter import evaluate
from aotc.relay.text.parser import parse
from aotc.relay.text.printer import astext

Array = np.ndarray[Any, Any]

#: Tensors that are no sizes.
DATA: dict[str, tuple[int, ...]] = {
    "real": (2, 5, 6, 1), "complex": (2, 5, 6, 2), "signal": (1, 40), "window": (16,),
    "columns": (2, 12, 6), "padded_columns": (1, 12, 6), "flat": (2, 3, 4), "theta": (2, 2, 3), "theta3": (1, 3, 4),
    "pooled": (1, 2, 2, 2),
}  # fmt: skip
#: Operators with the names of their inputs, and attributes.
NODES: list[tuple[str, list[str], dict[str, Any]]] = [
    ("DFT", ["real", "", "axis"], {}),
    ("DFT", ["complex", "", "other_axis"], {"inverse": 1}),
    ("DFT", ["real", "", "other_axis"], {"onesided": 1}),
    ("DFT", ["complex", "dft_length"], {"inverse": 1}),
    ("STFT", ["signal", "step", "", "length"], {}),
    ("STFT", ["signal", "step", "window"], {}),
    ("Col2Im", ["columns", "image", "block"], {}),
    ("Col2Im", ["padded_columns", "other_image", "block"], {"pads": [1, 0, 0, 1], "dilations": [1, 2],
                                                             "strides": [1, 2]}),
    ("Col2Im", ["flat", "line", "line_block"], {}),
    ("AffineGrid", ["theta", "plane"], {"align_corners": 1}),
    ("AffineGrid", ["theta3", "volume"], {}),
    ("MaxUnpool", ["pooled", "indices", "larger"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("MelWeightMatrix", ["mel_bins", "mel_length", "rate", "low", "high"], {}),
]  # fmt: skip
#: Valid values of the operands; those of lists are vectors.
VALUES: list[dict[str, Any]] = [
    {"axis": 1, "other_axis": 0, "dft_length": 3, "step": 4, "length": 7,
     "image": [4, 3], "block": [2, 2], "other_image": [2, 6], "line": [6], "line_block": [3],
     "plane": [2, 5, 3, 4], "volume": [1, 2, 2, 3, 4], "larger": [1, 2, 4, 4],
     "indices": [0, 3, 8, 11, 17, 18, 25, 31],
     "mel_bins": 8, "mel_length": 16, "rate": 8192, "low": 0.0, "high": 4096.0},
    {"axis": 2, "other_axis": -2, "dft_length": 9, "step": 1, "length": 40,
     "image": [3, 4], "block": [2, 2], "other_image": [3, 4], "line": [4], "line_block": [1],
     "plane": [2, 1, 2, 6], "volume": [1, 1, 1, 2, 1], "larger": [1, 2, 5, 6],
     "indices": [2, 5, 10, 15, 16, 22, 29, 30],
     "mel_bins": 3, "mel_length": 11, "rate": 16000, "low": 20.0, "high": 7000.0},
    {"axis": -3, "other_axis": 1, "dft_length": 6, "step": 40, "length": 1,
     "image": [3, 9], "block": [3, 4], "other_image": [7, 6], "line": [6], "line_block": [3],
     "plane": [2, 9, 12, 3], "volume": [1, 3, 5, 2, 3], "larger": [1, 2, 7, 4],
     "indices": [0, 3, 8, 11, 17, 18, 25, 31],
     "mel_bins": 1, "mel_length": 1, "rate": 8, "low": 1.0, "high": 2.0},
    {"axis": -4, "other_axis": -4, "dft_length": 12, "step": 7, "length": 8,
     "image": [7, 4], "block": [6, 2], "other_image": [5, 12], "line": [4], "line_block": [1],
     "plane": [2, 0, 7, 7], "volume": [1, 0, 3, 3, 3], "larger": [1, 2, 12, 12],
     "indices": [0, 2, 8, 10, 16, 18, 24, 26],
     "mel_bins": 12, "mel_length": 32, "rate": 44100, "low": 50.0, "high": 12345.6},
]  # fmt: skip
#: Values that no run accepts, and what the error says.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"axis": 3}, "element 0 of the input axis is 3, which is not -4 to 2"),
    ({"axis": -1}, "node DFT#0: "),
    ({"dft_length": 0}, "element 0 of the input dft_length is 0, which is not 1 to 12"),
    ({"dft_length": 13}, "element 0 of the input dft_length is 13"),
    ({"step": 0}, "element 0 of the input step is 0, which is not 1 to 40"),
    ({"step": 41}, "element 0 of the input step is 41"),
    ({"length": 0}, "element 0 of the input length is 0"),
    ({"length": 41}, "element 0 of the input length is 41, which is not 1 to 40"),
    ({"image": [4, 4]}, "node Col2Im#6: "),
    ({"image": [1, 12]}, "node Col2Im#6: "),
    ({"image": [13, 4]}, "element 0 of the input image is 13, which is not 0 to 12"),
    ({"block": [2, 5]}, "node Col2Im#"),
    ({"block": [0, 4]}, "element 0 of the input block is 0, which is not 1 to 12"),
    ({"line_block": [2]}, "node Col2Im#8: "),
    ({"plane": [3, 1, 2, 2]}, "node AffineGrid#9: "),
    ({"volume": [1, 1, -1, 2, 2]}, "element 2 of the input volume is -1"),
    ({"larger": [1, 2, 3, 4]}, "node MaxUnpool#11: "),
    ({"larger": [2, 1, 4, 4]}, "node MaxUnpool#11: "),
    ({"mel_bins": 0}, "element 0 of the input mel_bins is 0, which is not 1 to 12"),
    ({"mel_length": 33}, "element 0 of the input mel_length is 33, which is not 1 to 32"),
]
DIMS: dict[str, Any] = {"[*]": (0, 12), "mel_length[0]": (1, 32)}
FLOATS = ("low", "high")


def model() -> onnx.ModelProto:
    """A model of all nodes; all shapes of results are open."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in DATA.items()]
    inputs += [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds(VALUES[0]).items()
        if name not in DATA
    ]
    nodes = [helper.make_node(op, names, [f"y{k}"], **attrs) for k, (op, names, attrs) in enumerate(NODES)]
    results = [helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, None) for k in range(len(NODES))]
    graph = helper.make_graph(nodes, "signals", inputs, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def feeds(values: dict[str, Any]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    data = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in DATA.items()}
    arrays = {name: np.array(v, np.float32 if name in FLOATS else np.int64) for name, v in values.items()}
    return {**data, **arrays, "indices": arrays["indices"].reshape(1, 2, 2, 2)}


@pytest.fixture(scope="module")
def expected() -> list[list[Array]]:
    session = onnxruntime.InferenceSession(model().SerializeToString())
    results = [session.run(None, feeds(values)) for values in VALUES]
    # ONNX defines that indices refer to the shape which the window implies; in ONNX Runtime they refer to output_shape
    (unpool,) = (k for k, (op, _, _) in enumerate(NODES) if op == "MaxUnpool")
    for values, outputs in zip(VALUES, results, strict=True):
        outputs[unpool] = np.zeros(values["larger"], np.float32)
        outputs[unpool][np.unravel_index(values["indices"], (1, 2, 4, 4))] = feeds(values)["pooled"].reshape(-1)
    return results


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> aotc.Session:
    flags = ["-O0", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    flags += ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
    folder = tmp_path_factory.mktemp("signals")
    return aotc.compile(model(), output=folder, dims=DIMS, target="c", cflags=flags).session()


def check(outputs: list[Array], expected: list[Array]) -> None:
    for k, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        assert got.shape == want.shape, NODES[k]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=str(NODES[k]))


def test_one_library_for_all_values(session: aotc.Session, expected: list[list[Array]]) -> None:
    for values, results in zip(VALUES, expected, strict=True):
        check(session.run(None, feeds(values)), results)


def test_interpreter_takes_all_values_also_from_text(expected: list[list[Array]]) -> None:
    module = parse(astext(from_onnx(model(), dims=DIMS)))
    for values, results in zip(VALUES, expected, strict=True):
        check(evaluate(module, *feeds(values).values()), results)


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_other_values_are_refused(
    session: aotc.Session, changed: dict[str, Any], message: str, expected: list[list[Array]]
) -> None:
    with pytest.raises(AotcError) as caught:
        session.run(None, feeds({**VALUES[0], **changed}))
    assert message in str(caught.value)
    check(session.run(None, feeds(VALUES[0])), expected[0])


def test_real_inverse_along_an_axis_of_the_run() -> None:
    """ONNX Runtime has no inverse of one-sided transforms."""
    text = """<ir_version: 9, opset_import: ["": 20]> net (float[3, 5, 2] x, int64 axis) => (float[a, b, c] y) {
      y = DFT <onesided = 1, inverse = 1> (x, "", axis)
    }"""
    module = from_onnx(onnx.parser.parse_model(text))
    x = np.random.default_rng(0).standard_normal((3, 5, 2)).astype(np.float32)
    for axis in (0, 1, -2, -3):
        got = np.asarray(evaluate(module, x, np.array(axis)))
        want = np.fft.irfft(x[..., 0] + 1j * x[..., 1], axis=axis if axis >= 0 else axis + 1)
        assert got.shape == (*want.shape, 1)
        np.testing.assert_allclose(got[..., 0], want, rtol=1e-4, atol=1e-5)


def test_empty_grids_and_numbers_that_make_no_mel_weights() -> None:
    """ONNX Runtime refuses both."""
    text = """<ir_version: 9, opset_import: ["": 20]> net (float[1, 2, 3] theta, int64[4] size, int64 bins, float low)
      => (float[a, b, c, d] grid, float[e, f] weights) {
      length = Constant <value_int = 16> ()
      rate = Constant <value_int = 8000> ()
      high = Constant <value_float = 4000.0> ()
      grid = AffineGrid (theta, size)
      weights = MelWeightMatrix (bins, length, rate, low, high)
    }"""
    module = from_onnx(onnx.parser.parse_model(text), dims={"[*]": (0, 8)})
    theta = np.ones((1, 2, 3), np.float32)
    for low, count in ((0.0, 3), (4000.0, 2), (-1.0, 1), (np.nan, 4)):
        arrays = theta, np.array([1, 3, 0, 5]), np.array(count), np.float32(low)
        if low != 0:
            with pytest.raises(AotcError, match="MelWeightMatrix"):
                evaluate(module, *arrays)
            continue
        grid, weights = evaluate(module, *arrays)
        assert np.shape(grid) == (1, 0, 5, 2)
        assert np.shape(weights) == (9, count)
        assert np.isfinite(weights).all()
