# SPDX-License-Identifier: Apache-2.0
"""QuantizedEdges changes the types of inputs and outputs; `quantized_edges.test` has its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir import DType, PassContext, Quantization, TensorType
from aotc.relay.expr import type_of
from aotc.relay.instrument.op_count_changes import count_op_calls
from aotc.relay.interpreter import evaluate
from aotc.relay.module import quantizations_of_inputs_or_outputs
from aotc.relay.transform import InferType, QuantizedEdges
from aotc.relay.transform.pipeline import FAKE_QUANTIZATION

HEADER = '#[version = "0.0.5"]\n'
BOTH = """
def @main(%x: Tensor[(2, 3, 4), float32], %ids: Tensor[(3), int64]) {
  %0 = qnn.quantize(%x, 0.05f, 3, out_dtype="uint8");
  %1 = qnn.dequantize(%0, 0.05f, 3);
  %2 = nn.relu(%1);
  %3 = qnn.quantize(%2, 0.04f, -128, out_dtype="int8");
  %4 = qnn.dequantize(%3, 0.04f, -128);
  (%4, %ids)
}
"""


def module(text: str) -> aotc.IRModule:
    return InferType()(relay.parse(HEADER + text))


def edged(text: str | aotc.IRModule, wanted: Any) -> aotc.IRModule:
    """The module after the pass; the text form of its attributes is read back."""
    start = module(text) if isinstance(text, str) else text
    with PassContext(config={} if wanted is None else {"compile.io_dtype": wanted}):
        made = QuantizedEdges()(start)
    return InferType()(relay.parse(made.astext()))


def dtypes(made: aotc.IRModule) -> list[str]:
    outputs = type_of(made.main.body)
    fields = getattr(outputs, "fields", [outputs])
    return [str(ty.dtype) for ty in (*map(type_of, made.main.params), *fields) if isinstance(ty, TensorType)]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_both_sides(dtype: str) -> None:
    start = module(BOTH)
    made = edged(start, dtype)
    assert dtypes(made) == [dtype, "int64", dtype, "int64"]
    meaning, none = quantizations_of_inputs_or_outputs(made, "input", 2)
    result, _ = quantizations_of_inputs_or_outputs(made, "output", 2)
    assert meaning is not None and result is not None and none is None
    shift = 128 if dtype == "int8" else 0
    assert (meaning.zero_point, result.zero_point) == (3 - shift, 0 - shift)
    assert (meaning.scale, result.scale) == (float(np.float32(0.05)), float(np.float32(0.04)))
    x = np.linspace(-20, 20, 24, dtype=np.float32).reshape(2, 3, 4)
    ids = np.arange(3)
    expected, _ = evaluate(start, x, ids)
    actual, _ = evaluate(made, meaning.quantize(x), ids)
    np.testing.assert_array_equal(result.dequantize(actual), expected)


def test_nothing_is_asked_for() -> None:
    start = module(BOTH)
    assert QuantizedEdges()(start) is start
    with PassContext(config={"compile.io_dtype": "float32"}):
        assert QuantizedEdges()(start) is start


def test_by_name() -> None:
    assert dtypes(edged(BOTH, {"x": "int8"})) == ["int8", "int64", "float32", "int64"]
    assert dtypes(edged(BOTH, {"": "uint8", "x": "float32"})) == ["float32", "int64", "uint8", "int64"]


def test_scales_along_an_axis() -> None:
    x = relay.var("x", shape=(2, 3, 4))
    scale, zero = relay.const(np.float32([0.5, 0.25, 0.1])), relay.const(np.int32([1, 0, -3]))
    quantized = relay.qnn.op.quantize(x, scale, zero, axis=-2, out_dtype="int8")
    back = relay.qnn.op.dequantize(quantized, scale, zero, axis=1)
    start = InferType()(aotc.IRModule.from_expr(relay.Function([x], back)))
    made = edged(start, "uint8")
    (meaning,) = quantizations_of_inputs_or_outputs(made, "input", 1)
    assert meaning == Quantization(DType("uint8"), (0.5, 0.25, float(np.float32(0.1))), (129, 128, 125), 1)
    assert meaning is not None and quantizations_of_inputs_or_outputs(made, "output", 1) == [meaning]
    values = np.linspace(-30, 30, 24, dtype=np.float32).reshape(2, 3, 4)
    actual = meaning.dequantize(evaluate(made, meaning.quantize(values)))
    np.testing.assert_array_equal(actual, evaluate(start, values))


def test_integers_that_the_model_has_are_stated() -> None:
    text = """
    def @main(%x: Tensor[(4), int8], %n: Tensor[(4), int8]) {
      %0 = qnn.dequantize(%x, 0.5f, 7);
      %1 = qnn.quantize(%0, 0.25f, 9, out_dtype="uint8");
      (%1, negative(%n))
    }
    """
    made = edged(text, None)
    assert [m and m.zero_point for m in quantizations_of_inputs_or_outputs(made, "input", 2)] == [7, None]
    assert [m and m.zero_point for m in quantizations_of_inputs_or_outputs(made, "output", 2)] == [9, None]
    assert dtypes(edged(text, "int8")) == ["int8", "int8", "uint8", "int8"]
    assert dtypes(edged(text, {"x": "uint8", "output0": "int8"})) == ["uint8", "int8", "int8", "int8"]
    x, n = np.arange(-2, 2, dtype=np.int8), np.arange(4, dtype=np.int8)
    other = edged(text, {"x": "uint8", "output0": "int8"})
    expected, actual = evaluate(made, x, n), evaluate(other, (x.astype(np.int16) + 128).astype(np.uint8), n)
    np.testing.assert_array_equal(actual[0].astype(np.int16) + 128, expected[0])


def test_several_readers_that_agree() -> None:
    text = """
    def @main(%x: Tensor[(4), float32]) {
      %0 = qnn.quantize(%x, 0.5f, 7, out_dtype="int8");
      %1 = qnn.quantize(%x, 0.5f, 7, out_dtype="int8");
      add(cast(%0, dtype="int32"), cast(%1, dtype="int32"))
    }
    """
    made = edged(text, "int8")
    assert "qnn.quantize" not in count_op_calls(made)
    np.testing.assert_array_equal(evaluate(made, np.int8([1, 2, 3, 4])), [2, 4, 6, 8])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_moves_between_an_edge_and_its_quantization(dtype: str) -> None:
    """As in a network of TensorFlow's that takes rows and works on images."""
    start = module("""
    def @main(%x: Tensor[(2, 12), float32]) {
      %0 = transpose(reshape(%x, newshape=[2, 3, 4]), axes=[0, 2, 1]);
      %1 = qnn.quantize(%0, 0.05f, 3, out_dtype="uint8");
      %5 = strided_slice(%x, begin=[0, 4], end=[2, 8], strides=[1, 1], axes=[0, 1]);
      %2 = qnn.quantize(%5, 0.05f, 3, out_dtype="uint8");
      %3 = nn.relu(qnn.dequantize(%1, 0.05f, 3));
      %4 = qnn.dequantize(qnn.quantize(%3, 0.04f, -128, out_dtype="int8"), 0.04f, -128);
      (squeeze(reshape(%4, newshape=[1, 2, 12])), reshape(qnn.dequantize(%2, 0.05f, 3), newshape=[8]))
    }
    """)
    made = edged(start, dtype)
    assert dtypes(made) == [dtype] * 3 and count_op_calls(made)["qnn.quantize"] == 1
    (meaning,), results = (
        quantizations_of_inputs_or_outputs(made, "input", 1),
        quantizations_of_inputs_or_outputs(made, "output", 2),
    )
    assert meaning is not None
    x = np.linspace(-20, 20, 24, dtype=np.float32).reshape(2, 12)
    expected, actual = evaluate(start, x), evaluate(made, meaning.quantize(x))
    for result, one, other in zip(results, actual, expected, strict=True):
        assert result is not None
        np.testing.assert_array_equal(result.dequantize(one), other)


def test_integers_that_are_moved_are_stated() -> None:
    text = """
    def @main(%x: Tensor[(4), int8]) {
      %0 = qnn.dequantize(reshape(%x, newshape=[2, 2]), 0.5f, 7);
      reverse(qnn.quantize(%0, 0.25f, 9, out_dtype="uint8"), axis=1)
    }
    """
    made = edged(text, {"x": "uint8"})
    found = (
        *quantizations_of_inputs_or_outputs(made, "input", 1),
        *quantizations_of_inputs_or_outputs(made, "output", 1),
    )
    assert [m and m.zero_point for m in found] == [135, 9]
    np.testing.assert_array_equal(evaluate(made, np.uint8([128, 129, 130, 131])), [[0, 0], [1, 0]])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("op", ["nn.softmax", "sigmoid", "tanh", "nn.relu", "exp", "add", "mean"])
def test_operators_next_to_an_edge_compute_as_between_floats(op: str, dtype: str) -> None:
    """Those on integers want one type of data and result: bytes within the model have no sign, so none at its edges."""
    more = {"add": "{0}, {0}", "mean": "{0}, axis=[1], keepdims=True"}.get(op, "{0}")
    start = module(f"""
    def @main(%x: Tensor[(200, 5), float32]) {{
      %0 = qnn.quantize(%x, 0.0371f, -17, out_dtype="int8");
      %1 = qnn.dequantize(%0, 0.0371f, -17);
      %2 = qnn.quantize({op}({more.format("%1")}), 0.0171f, -128, out_dtype="int8");
      %3 = qnn.dequantize(%2, 0.0171f, -128);
      %4 = qnn.quantize({op}({more.format("%3")}), 0.00392157f, -128, out_dtype="int8");
      qnn.dequantize(%4, 0.00392157f, -128)
    }}
    """)
    made = edged(start, dtype)
    (meaning,), (result,) = (
        quantizations_of_inputs_or_outputs(made, "input", 1),
        quantizations_of_inputs_or_outputs(made, "output", 1),
    )
    assert meaning is not None and result is not None
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32) * 2
    expected, actual = FAKE_QUANTIZATION(start), FAKE_QUANTIZATION(made)
    assert count_op_calls(actual)[op] == count_op_calls(expected)[op]
    found = result.dequantize(evaluate(actual, meaning.quantize(x)))
    np.testing.assert_array_equal(found, evaluate(expected, x))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("reader", ["qnn.dequantize(%1, 0.5f, 7)", 'cast(%1, dtype="float32")'])
def test_readers_of_an_input_with_and_without_signs(reader: str, dtype: str) -> None:
    start = module(f"""
    def @main(%x: Tensor[(4), float32]) {{
      %0 = qnn.quantize(%x, 0.5f, 7, out_dtype="int8");
      %1 = qnn.quantize(%x, 0.5f, 7, out_dtype="int8");
      (add(qnn.dequantize(%0, 0.5f, 7), {reader}), add(%1, %1))
    }}
    """)
    made = edged(start, {"x": dtype})
    (meaning,) = quantizations_of_inputs_or_outputs(made, "input", 1)
    assert meaning is not None
    x = np.float32([-1.3, 0, 2.2, 300])
    expected, actual = evaluate(start, x), evaluate(made, meaning.quantize(x))
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_array_equal(actual[1], expected[1])
