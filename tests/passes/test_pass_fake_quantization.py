# SPDX-License-Identifier: Apache-2.0
"""Reasons for which operators remain float, and SelectSignedness; see `fake_quantization.test`, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from passes.graphs import const, module_of, noise, ops, var

from aotc.ir import AotcError
from aotc.ir.transform import PassContext
from aotc.relay.expr import Constant, Expr, Tuple, TupleGetItem, Var
from aotc.relay.instrument.op_count_changes import count_op_calls
from aotc.relay.instrument.verifier import Verifier
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.cast_clip_prelu import clip
from aotc.relay.op.concat_split import concatenate
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import bias_add, dense
from aotc.relay.op.elementwise_unary import relu, sigmoid, tanh
from aotc.relay.op.layout import layout_transform
from aotc.relay.op.normalization import layer_norm
from aotc.relay.op.pad import pad
from aotc.relay.op.pool import avg_pool2d, max_pool2d
from aotc.relay.op.qnn.builders import dequantize, quantize
from aotc.relay.op.shape import reshape, transpose
from aotc.relay.op.sorting import topk
from aotc.relay.transform import FakeQuantizationToInteger, QuantizedEdges, SelectSignedness
from aotc.relay.transform.fake_quantization_to_integer import find_operators_left_in_float
from aotc.relay.transform.quantized_region_to_integers import TensorAffineType, make_affine_type
from aotc.tir import TARGETS

EVEN = FakeQuantizationToInteger(rounding="FLOAT_EVEN", optional_qnn_ops=["nn.softmax"])
IMAGE = (2, 6, 5, 5)
RNG = np.random.default_rng(11)
W_SCALE = np.float32(0.013)
X_SCALE, X_ZERO = np.float32(0.05), 3
Body = Callable[[Expr], Expr]


def weights(*shape: int, per_channel: int | None = None, dtype: str = "int8", zero: int = 0) -> Expr:
    """Constant weights as real numbers."""
    data = RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    scale: Any = W_SCALE
    if per_channel is not None:
        scale = np.linspace(0.005, 0.03, shape[per_channel], dtype=np.float32)
    return dequantize(Constant(data), const(scale), const(zero, "int32"), axis=per_channel or 0)


def bias(scale: Any, count: int, low: int = -900, high: int = 900) -> Expr:
    data = RNG.integers(low, high, count).astype(np.int32)
    return dequantize(Constant(data), const(scale), const(0, "int32"), axis=0)


def real(x: Expr, scale: float = X_SCALE, zero: int = X_ZERO) -> Expr:
    return dequantize(x, const(scale), const(zero, "int32"))


def fake(body: Body, *shape: int, dtype: str = "int8", scale: float = 0.07, zero: int = -5) -> IRModule:
    """`body` between a dequantization and a quantization."""
    x = var("x", *(shape or IMAGE), dtype=dtype)
    y = quantize(body(real(x)), const(scale), const(zero, "int32"), out_dtype=dtype)
    return module_of(y, x)


def whole(module: IRModule, seed: int = 5) -> list[Any]:
    """Integers over the whole range, the ends among them, for each parameter."""
    rng, made = np.random.default_rng(seed), []
    for p in module.main.params:
        ty: Any = p.checked_type
        if ty.dtype.is_float:
            made.append(rng.standard_normal(ty.static_shape).astype(np.float32))
            continue
        low, high = int(ty.dtype.min), int(ty.dtype.max)
        made.append(rng.integers(low, high + 1, ty.static_shape).astype(ty.dtype.numpy))
    return made


def run(pass_: Any, module: IRModule) -> IRModule:
    with PassContext(opt_level=3, instruments=[Verifier()]):
        return pass_(module)


def distance(module: IRModule, other: IRModule) -> tuple[int, float]:
    """The greatest difference of the results in steps, and the share of elements that differ."""
    most, count, size = 0, 0, 0
    for seed in range(3):
        inputs = whole(module, seed)
        a, b = (evaluate(m, *inputs) for m in (module, other))
        pairs = zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]
        for one, two in pairs:
            assert one.dtype == two.dtype
            apart = np.abs(one.astype(np.int64) - two.astype(np.int64))
            most, count, size = max(most, int(apart.max())), count + int((apart > 0).sum()), size + apart.size
    return most, count / size


def conv(x: Expr, **more: Any) -> Expr:
    return conv2d(x, weights(8, 6 // more.get("groups", 1), 3, 3, per_channel=0), padding=(1, 1), **more)


def _biased(x: Expr) -> Expr:
    scale = X_SCALE * np.linspace(0.005, 0.03, 8, dtype=np.float32)
    return bias_add(conv(x), bias(scale, 8))


def _silu(x: Expr) -> Expr:
    gate = quantize(sigmoid(x), const(1 / 255), const(-128, "int32"))
    return multiply(x, real(gate, 1 / 255, -128))


def _stored(x: Expr, scale: float, zero: int, dtype: str) -> Expr:
    """Real numbers as a quantized model stores them between operators."""
    return real(quantize(x, const(scale), const(zero, "int32"), out_dtype=dtype), scale, zero)


def _gelu_of_stored_bytes(x: Expr, dtype: str) -> Expr:
    one = real(Constant(np.int8(127)), 1 / 127, 0)
    gate = _stored(tanh(_stored(multiply(x, const(0.8)), 0.03, 2, dtype)), 1 / 120, 4, dtype)
    return multiply(x, _stored(add(gate, one), 1 / 60, 9, dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("body", [lambda x, _: _silu(x), _gelu_of_stored_bytes], ids=["silu", "gelu"])
def test_functions_of_a_stored_byte_are_one_table(body: Callable[[Expr, str], Expr], dtype: str) -> None:
    """The byte is read several times, and each step between is stored as another byte."""
    module = fake(lambda x: body(_stored(conv(x), 0.05, 7, "int8"), dtype), dtype=dtype, zero=20)
    result = run(EVEN, module)
    counts = {name: count for name, count in ops(result).items() if name != "cast"}
    assert counts == {"qnn.conv2d": 1, "qnn.requantize": 1, "take": 1}
    assert distance(module, result)[0] <= 1


def test_a_gate_of_another_integer_type_is_part_of_the_table() -> None:
    module = fake(_silu, dtype="uint8", zero=20)
    result = run(EVEN, module)
    assert dict(ops(result)) == {"take": 1} and distance(module, result)[0] <= 1


def test_functions_of_two_stored_bytes_are_no_table() -> None:
    first, second = (lambda x, s=scale: _stored(conv(x), s, 7, "int8") for scale in (0.05, 0.04))
    result = run(EVEN, fake(lambda x: multiply(first(x), sigmoid(second(x)))))
    assert "multiply" in ops(result) and "take" not in ops(result)


def test_places_of_the_greatest_stay() -> None:
    module = fake(lambda x: TupleGetItem(topk(x, k=3), 0))
    assert "it gives places" in [r.reason for r in find_operators_left_in_float(module, EVEN)]


# --- what must not be folded


def test_what_stays_has_a_reason() -> None:
    module = fake(lambda x: layer_norm(x, noise(5), noise(5)))
    (row,) = find_operators_left_in_float(module, EVEN)
    assert (str(row.node.op), row.reason) == ("nn.layer_norm", "there is no rule for nn.layer_norm")
    assert ops(run(EVEN, module)) == ops(module)
    with pytest.raises(AotcError) as caught:
        run(replace(EVEN, hard_fail=True), module)
    assert caught.value.code == "fake-quantization"


# --- sums whose results are not quantized


def test_an_edge_stays_as_it_is() -> None:
    x = var("x", *IMAGE)
    module = module_of(real(quantize(relu(x), const(0.1), const(0, "int32")), 0.1, 0), x)
    assert ops(run(EVEN, module)) == ops(module) and find_operators_left_in_float(module, EVEN) == []


def test_long_chains() -> None:
    def body(x: Expr) -> Expr:
        for _ in range(3000):
            x = transpose(x, (1, 0))
        return x

    assert ops(run(EVEN, fake(body, 3, 4)))["transpose"] == 3000


# --- affine types


def test_affine_types_compare_by_value() -> None:
    a = TensorAffineType(const(0.5), const(3, "int32"), "int8", 1)
    assert a == make_affine_type(0.5, 3, "int8", axis=0) and hash(a) == hash(make_affine_type(0.5, 3, "int8"))
    assert (
        a != make_affine_type(0.5, 4, "int8")
        and a != make_affine_type(0.25, 3, "int8")
        and a != make_affine_type(0.5, 3, "uint8")
    )
    assert make_affine_type([0.5, 1], 0, "int8", 0) != make_affine_type([0.5, 1], 0, "int8", 1)


# --- signedness


def network(x: Var) -> Expr:
    """Two convolutions, a sum, pools, moves, a table and a join, with bytes that have a sign."""

    def q(y: Expr, scale: float, zero: int) -> Expr:
        return real(quantize(y, const(scale), const(zero, "int32")), scale, zero)

    first = q(relu(_biased(real(x))), 0.04, -128)
    pooled = q(max_pool2d(first, pool_size=(2, 2)), 0.04, -128)
    gate = q(sigmoid(pooled), 1 / 256, -128)
    product = q(multiply(pooled, gate), 0.03, -100)
    second = q(conv2d(product, weights(8, 8, 1, 1)), 0.06, 5)
    total = q(add(second, pooled), 0.08, -3)
    joined = q(concatenate(Tuple([total, second]), axis=1), 0.08, -3)
    moved = q(transpose(clip(joined, a_min=-1.0, a_max=4.0), (0, 2, 3, 1)), 0.08, -3)
    mean_of = q(avg_pool2d(moved, pool_size=(2, 2), layout="NHWC"), 0.05, 7)
    return quantize(dense(reshape(mean_of, (2, -1)), weights(4, 36 * 16)), const(0.2), const(0, "int32"))


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64", "c"])
@pytest.mark.parametrize("unsigned", [False, True])
def test_signedness_changes_no_value(target: str, unsigned: bool) -> None:
    x = var("x", 2, 6, 8, 8, dtype="int8")
    module = module_of(network(x), x)
    integers = run(replace(EVEN, unsigned=unsigned), module)
    result = run(SelectSignedness(TARGETS[target]), integers)
    assert distance(integers, result) == (0, 0)
    wanted = TARGETS[target].activations
    if wanted:
        data = {str(n.args[0].checked_type.dtype) for n in sums_of(result)}
        assert data == {wanted}
    else:
        assert result is integers


def test_bytes_that_edges_turned_are_not_turned_twice() -> None:
    """The model has int8, its edges and the target's sums uint8: nothing but their zero points is left of it."""
    x = var("x", 2, 6, 8, 8, dtype="int8")
    with PassContext(config={"compile.io_dtype": {"x": "uint8", "output": "uint8"}}):
        edged = QuantizedEdges()(module_of(network(x), x))
    integers = run(EVEN, edged)
    result = run(SelectSignedness(TARGETS["x86-64-v3"]), integers)
    assert count_op_calls(integers)["bitwise_xor"] == 2 and not count_op_calls(result)["bitwise_xor"]
    assert distance(integers, result) == (0, 0)


def test_what_is_padded_with_turns_with_its_tensor() -> None:
    x = var("x", 2, 6, 8, 8, dtype="int8")
    inner = real(quantize(_biased(real(x)), const(0.04), const(-100, "int32")), 0.04, -100)
    wider = pad(inner, ((0, 0), (0, 0), (1, 1), (0, 2)), const(-1.0))
    y = quantize(conv2d(wider, weights(4, 8, 3, 3)), const(0.2), const(3, "int32"))
    integers = run(EVEN, module_of(y, x))
    result = run(SelectSignedness(TARGETS["x86-64-v3"]), integers)
    assert distance(integers, result) == (0, 0)
    assert {str(n.args[0].checked_type.dtype) for n in sums_of(result)} == {"uint8"}


def test_zeros_in_incomplete_blocks_stay() -> None:
    x = var("x", 2, 6, 8, 8, dtype="int8")
    data = quantize(_biased(real(x)), const(0.04), const(-100, "int32"))
    blocks = layout_transform(layout_transform(data, src_layout="NCHW", dst_layout="NCHW5c"), "NCHW5c", "NCHW")
    y = quantize(conv2d(real(blocks, 0.04, -100), weights(4, 10, 3, 3)), const(0.2), const(3, "int32"))
    integers = run(EVEN, module_of(y, x))
    result = run(SelectSignedness(TARGETS["x86-64-v3"]), integers)
    assert distance(integers, result) == (0, 0)


def sums_of(module: IRModule) -> list[Any]:
    from aotc.relay.visitor import post_order

    names = ("qnn.conv2d", "qnn.dense")
    return [n for n in post_order(module.main) if str(getattr(n, "op", "")) in names]
