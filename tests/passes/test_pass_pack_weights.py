# SPDX-License-Identifier: Apache-2.0
"""Weights of few bits in compiled code; `pack_weights.test` has single cases."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc import relay
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.instrument.op_count_changes import count_op_calls
from aotc.relay.interpreter import evaluate
from aotc.relay.transform import PackWeights
from tests.share import share

RNG = np.random.default_rng(0)


def n_bits(rows: int, depth: int, units: int, bits: int, block: int, zeros: bool) -> tuple[onnx.ModelProto, np.ndarray]:
    """A model of MatMulNBits, and its weights as real numbers."""
    blocks = -(-depth // block)
    integers, zero = RNG.integers(0, 1 << bits, (units, blocks, block)), RNG.integers(0, 1 << bits, (units, blocks))
    scale = RNG.uniform(0.01, 0.1, (units, blocks)).astype(np.float32)

    def packed(values: np.ndarray) -> np.ndarray:
        padded = np.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, -values.shape[-1] % (8 // bits))])
        parts = padded.reshape(*values.shape[:-1], -1, 8 // bits) << np.arange(0, 8, bits)
        return parts.sum(-1).astype(np.uint8)

    parts = {"w": packed(integers), "s": scale.reshape(-1)} | ({"z": packed(zero).reshape(-1)} if zeros else {})
    node = helper.make_node(
        "MatMulNBits", ["x", *parts], ["y"], domain="com.microsoft", K=depth, N=units, bits=bits, block_size=block
    )
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (rows, k)) for n, k in (("x", depth), ("y", units)))
    graph = helper.make_graph([node], "g", [x], [y], [onnx.numpy_helper.from_array(v, k) for k, v in parts.items()])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    middle = zero[..., None] if zeros else 1 << bits - 1
    real = (integers - middle) * scale[..., None].astype(np.float64)
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return model, real.reshape(units, -1)[:, :depth]


@pytest.mark.parametrize("target", ["c", "host", "x86-64-v3"])
@pytest.mark.parametrize(
    ("rows", "depth", "units", "bits", "block", "zeros"),
    [(1, 256, 200, 4, 32, False), (9, 144, 37, 4, 32, True), (1, 96, 64, 8, 32, True), (2, 64, 16, 2, 16, False)],
)
def test_blocks(rows: int, depth: int, units: int, bits: int, block: int, zeros: bool, target: str) -> None:
    model, real = n_bits(rows, depth, units, bits, block, zeros)
    made = aotc.compile(model, target=target, cflags=["-O1"])
    padded, numbers = -(-units // 64) * 64, (1 + zeros) * -(-depth // block)
    assert made.metadata["weights_bytes"] <= padded * (depth * bits // 8 + 4 * numbers) + 256
    x = RNG.standard_normal((rows, depth)).astype(np.float32)
    got = made.session().run(None, {"x": x})[0]
    np.testing.assert_allclose(got, x @ real.T, atol=1e-5 * np.abs(x).max() * np.abs(real).sum(1).max())


def rounds_its_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with leave to round the data of its product to int8."""
    model.graph.node[0].attribute.append(helper.make_attribute("accuracy_level", 4))
    return model


@pytest.mark.parametrize("target", ["c", "x86-64-v3"])
@pytest.mark.parametrize(
    ("rows", "depth", "units", "bits", "block", "zeros"),
    [(1, 80, 40, 4, 32, False), (9, 72, 37, 4, 16, True), (3, 96, 64, 8, 32, True), (2, 64, 16, 8, 64, False)],
)
def test_data_that_may_be_rounded(
    rows: int, depth: int, units: int, bits: int, block: int, zeros: bool, target: str
) -> None:
    """Results are those of ONNX Runtime, which rounds data to int8, too, but for the order of sums."""
    model = rounds_its_data(n_bits(rows, depth, units, bits, block, zeros)[0])
    made = aotc.compile(model, target=target, cflags=["-O0"])
    assert made.metadata["weights_bytes"] <= -(-units // 32) * 32 * (depth + block) * bits / 8 * 1.6
    x = RNG.standard_normal((rows, depth)).astype(np.float32)
    want = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    got = made.session().run(None, {"x": x})[0]
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
    assert np.isnan(made.session().run(None, {"x": x * np.float32(np.inf)})[0]).all()


@pytest.mark.parametrize("rows", [1, 4, 7])
def test_data_that_may_be_rounded_has_any_number_of_rows(rows: int) -> None:
    model = rounds_its_data(n_bits(7, 64, 40, 4, 32, False)[0])
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    made = aotc.compile(model, target="x86-64-v3", cflags=["-O0"], dims={"rows": "1..8"})
    x = RNG.standard_normal((rows, 64)).astype(np.float32)
    want = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(made.session().run(None, {"x": x})[0], want, atol=1e-5 * np.abs(want).max())


def test_scales_in_float16_are_kept() -> None:
    """Scales that float16 represents are stored as such, where a processor converts them."""
    model = rounds_its_data(n_bits(1, 64, 32, 4, 32, False)[0])
    scale = next(t for t in model.graph.initializer if t.name == "s")
    exact = numpy_helper.to_array(scale)
    rounded = numpy_helper.from_array(exact.astype(np.float16).astype(np.float32), "s")
    sizes = []
    for value in (exact, numpy_helper.to_array(rounded)):
        scale.CopyFrom(numpy_helper.from_array(value, "s"))
        sizes.append(aotc.compile(model, target="x86-64-v3", cflags=["-O0"]).metadata["weights_bytes"])
    assert sizes[0] - sizes[1] == 2 * 64


@pytest.mark.parametrize("target", ["c", "host"])
@pytest.mark.parametrize("accuracy", ["strict", "reproducible"])
def test_strict_sums_do_not_overflow_before_they_are_scaled(accuracy: str, target: str) -> None:
    start = product(dequantized(int4(24, 64), np.full(24, 1e-3, np.float32), 0))
    made = aotc.compile(start, target=target, accuracy=accuracy, cflags=["-O1"])
    assert made.metadata["weights_bytes"] < 24 * 64
    x = np.full((3, 64), 1e38, np.float32)
    got = made.session().run(None, {"x": x})[0]
    np.testing.assert_allclose(got, evaluate(start, x), rtol=1e-5, atol=1e31)


def test_more_than_a_megabyte_of_weights() -> None:
    """Limits of what is evaluated at compile time do not hold for them."""
    depth, units, block = 2048, 1100, 32
    blocks = depth // block
    parts = {
        "w": np.full((units, blocks, block // 2), 0x87, np.uint8),
        "s": np.ones(units * blocks, np.float32),
        "z": np.full(units * blocks // 2, 0x87, np.uint8),
    }
    attrs: dict[str, int] = {"K": depth, "N": units, "bits": 4, "block_size": block}
    node = helper.make_node("MatMulNBits", ["x", *parts], ["y"], domain="com.microsoft", **attrs)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, k)) for n, k in (("x", depth), ("y", units)))
    graph = helper.make_graph([node], "g", [x], [y], [onnx.numpy_helper.from_array(v, k) for k, v in parts.items()])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = PackWeights()(from_onnx(helper.make_model(graph, opset_imports=imports, ir_version=8)))
    assert count_op_calls(made)["nn.contrib_dense_bits"] == 1


def product(weights: relay.Expr, rows: int = 3, depth: int = 64) -> aotc.IRModule:
    x = relay.var("x", shape=(rows, depth))
    return relay.transform.InferType()(aotc.IRModule.from_expr(relay.Function([x], relay.nn.dense(x, weights))))


def int4(*shape: int) -> np.ndarray:
    return RNG.integers(-8, 8, shape).astype(ml_dtypes.int4)


def dequantized(integers: np.ndarray, scales: np.ndarray, axis: int, zeros: np.ndarray | None = None) -> relay.Expr:
    zeros = np.zeros(scales.shape, np.int32) if zeros is None else zeros
    return relay.qnn.op.dequantize(relay.const(integers), relay.const(scales), relay.const(zeros), axis=axis)


@pytest.mark.parametrize("zeros", share([False, True], 1))
def test_reproducible_bits_are_equal_on_all_targets(zeros: bool) -> None:
    """With one zero point vectors of 16 floats take weights from a table."""
    model, _ = n_bits(3, 144, 37, 4, 32, zeros)
    x = RNG.standard_normal((3, 144)).astype(np.float32)
    made = (aotc.compile(model, target=t, accuracy="reproducible", cflags=["-O1"]) for t in ("c", "x86-64", "host"))
    first, *others = (m.session().run(None, {"x": x})[0] for m in made)
    for other in others:
        np.testing.assert_array_equal(other, first)
