# SPDX-License-Identifier: Apache-2.0
"""Quantized operators against independent references: Python's integers and fractions, direct sums, ONNX Runtime."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.relay.expr import Call, Constant, Expr, Function, Var, tensor_type_of
from aotc.relay.op import OPERATORS_BY_NAME, binary_elementwise
from aotc.relay.op.opdef import Array
from aotc.relay.op.qnn import builders as qnn
from aotc.relay.op.qnn import target_independent_rounding
from aotc.relay.visitor import post_order
from aotc.tir.expr import Call as Said
from aotc.tir.stmt import all_exprs_in_stmt
from aotc.tir.target import TARGETS
from tests.codegen.batch import finished
from tests.ops.exact_quantization import Wide, from_ties, real
from tests.ops.harness import expanded, lower_fused_function, type_of_value
from tests.ops.onnxruntime_oracle import error_code, evaluate
from tests.targets.machines import has_vnni

F32 = np.float32
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


def c(value: Any, dtype: Any = None) -> Constant:
    return Constant(np.asarray(value, dtype))


def lowered(name: str, data: list[Array], constants: list[Any], **attributes: Any) -> Array:
    """What the definition of an operator gives, its scales and zero points being constants."""
    variables = [Var(f"x{k}", type_of_value(v)) for k, v in enumerate(data)]
    node = getattr(qnn, name)(*variables, *constants, **attributes)
    return evaluate(expanded(node), dict(zip(variables, data, strict=True)))


def both(name: str, data: list[Array], constants: list[Array], **attributes: Any) -> Array:
    """What an operator's numpy meaning gives, which its definition gives, too."""
    op = OPERATORS_BY_NAME[f"qnn.{name}"]
    made = getattr(qnn, name)(*(Var("x", type_of_value(v)) for v in data), *map(c, constants), **attributes)
    want = np.asarray(op.reference(made.attrs, *data, *constants))
    np.testing.assert_array_equal(lowered(name, data, list(map(c, constants)), **attributes), want)
    return want


# --- requantize


def nearest(x: Fraction) -> int:
    """The nearest integer, halves up."""
    return math.floor(x + Fraction(1, 2))


def away(x: Fraction) -> int:
    """The nearest integer, halves away from zero."""
    return nearest(x) if x >= 0 else -nearest(-x)


def single(x: Fraction) -> Fraction:
    """The nearest number of 24 binary digits, halves to even digits; for numbers that float32 holds normally."""
    if x == 0:
        return x
    unit = Fraction(2) ** (math.frexp(float(abs(x)))[1] - 24)
    return round(x / unit) * unit


def fixed(ratio: float) -> tuple[int, int]:
    """31 binary digits and an exponent."""
    digits, exponent = math.frexp(ratio)
    whole = nearest(Fraction(digits) * 2**31)
    return (whole // 2, exponent + 1) if whole == 2**31 else (whole, exponent)


def truncated(a: int, b: int) -> int:
    return abs(a) // b * (1 if a >= 0 else -1)


def gemmlowp(x: int, ratio: float) -> int:
    """The doubling high product that saturates, and the division by a power of two that rounds."""
    multiplier, shift = fixed(ratio)
    if shift < -31:
        multiplier, shift = 0, 0
    if shift > 30:
        multiplier, shift = 2**31 - 1, 30
    left = min(max(x << max(shift, 0), -(2**31)), 2**31 - 1)
    if shift > 0:
        left = min(max(x, -(2**31 >> shift)), (2**31 >> shift) - 1) << shift
    product = left * multiplier
    high = truncated(product + (2**30 if product >= 0 else 1 - 2**30), 2**31)
    exponent = max(-shift, 0)
    rest, limit = high & ((1 << exponent) - 1), ((1 << exponent) - 1 >> 1) + (high < 0)
    return (high >> exponent) + (rest > limit)


def expected(x: int, source: np.floating[Any], result: np.floating[Any], rounding: str) -> int:
    """The rounded product, without zero points and not saturated."""
    if rounding == "FLOAT_EVEN":
        ratio = single(Fraction(float(source)) / Fraction(float(result)))
        return round(single(single(Fraction(x)) * ratio))
    quotient = float(source) / float(result)
    if rounding == "TFLITE":
        return gemmlowp(x, quotient)
    multiplier, shift = fixed(quotient)
    exact = x * multiplier * Fraction(2) ** (shift - 31)
    return away(exact) if rounding == "TONEAREST" else nearest(exact)


def saturated(value: int, zero: int, dtype: str) -> int:
    kind = DType(dtype)
    return min(max(value + zero, int(kind.min)), int(kind.max))


def some_integers(rng: np.random.Generator) -> Array:
    ends = [-(2**31), 2**31 - 1, 2**24 + 1, -(2**24) - 3, *range(-6, 7)]
    small = rng.integers(-300, 300, 20)
    return np.array([*ends, *small, *rng.integers(-(2**31), 2**31, 20), *rng.integers(-(2**18), 2**18, 20)], np.int32)


@pytest.mark.parametrize("rounding", ["UPWARD", "TONEAREST", "TFLITE", "FLOAT_EVEN"])
@pytest.mark.parametrize("seed", range(12))
def test_requantize_rounds_as_fractions_do(rounding: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = some_integers(rng)
    dtype = INTEGERS[seed % (4 if rounding == "FLOAT_EVEN" else 5)]
    zero = int(rng.integers(DType(dtype).min, int(DType(dtype).max) + 1)) if seed % 3 and dtype != "int32" else 0
    # halves, thirds, ratios from 2^-40 to 2^34
    source = F32([0.5, 0.25, 1 / 3, 1.0, 3.0][seed % 5] if seed < 5 else 2.0 ** rng.uniform(-20, 4))
    result = F32(1.0 if seed < 5 else 2.0 ** rng.uniform(-30, 20))
    got = both(
        "requantize",
        [x],
        [np.asarray(source), np.int32(0), np.asarray(result), np.int32(zero)],
        rounding=rounding,
        out_dtype=dtype,
    )
    want = [saturated(expected(int(v), source, result, rounding), zero, dtype) for v in x]
    assert got.tolist() == want


@pytest.mark.parametrize("rounding", ["UPWARD", "TONEAREST", "TFLITE", "FLOAT_EVEN"])
def test_requantize_for_each_channel(rounding: str) -> None:
    rng = np.random.default_rng(7)
    scales = (2.0 ** rng.uniform(-20, 4, 5)).astype(F32)
    x = rng.integers(-(2**20), 2**20, (2, 5, 9)).astype(np.int32)
    pair = [np.asarray(F32(0.37)), np.int32(-3)]
    got = both("requantize", [x], [scales, np.int32(0), *pair], rounding=rounding, axis=1)
    for channel, scale in enumerate(scales):
        want = [saturated(expected(int(v), scale, pair[0], rounding), -3, "int8") for v in x[:, channel].flat]
        assert got[:, channel].reshape(-1).tolist() == want


def test_roundings_differ_where_they_should() -> None:
    x = np.array([1, 3, -1, -3, 5], np.int32)
    halves = [np.asarray(F32(0.5)), np.int32(0), np.asarray(F32(1)), np.int32(0)]
    found = {r: both("requantize", [x], halves, rounding=r).tolist() for r in ("UPWARD", "TONEAREST", "FLOAT_EVEN")}
    assert found == {"UPWARD": [1, 2, 0, -1, 3], "TONEAREST": [1, 2, -1, -2, 3], "FLOAT_EVEN": [0, 2, 0, -2, 2]}
    # a little below a half: the first of two roundings makes a half of it
    small = [np.asarray(F32(0.0123)), np.int32(0), np.asarray(F32(37)), np.int32(0)]
    many = np.arange(0, 10_000_000, 7, dtype=np.int32)
    once, twice = (both("requantize", [many], small, rounding=r, out_dtype="int16") for r in ("TONEAREST", "TFLITE"))
    assert 0 < (once != twice).sum() < many.size // 500
    assert (twice - once).max() == 1


def test_wide_scales_are_not_rounded_to_float32() -> None:
    """The product of two scales in float64, as TFLite has it."""
    x = np.arange(-70000, 70000, 11, dtype=np.int32)
    wide = float(F32(0.0123)) * float(F32(0.0321))
    pair = [np.asarray(F32(0.037)), np.int32(0)]
    got = both("requantize", [x], [np.asarray(wide), np.int32(0), *pair], rounding="TFLITE", out_dtype="int16")
    want = [saturated(gemmlowp(int(v), wide / float(F32(0.037))), 0, "int16") for v in x]
    assert got.tolist() == want


# --- quantize and dequantize


def test_nan_is_the_least_integer() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3.0], F32)
    for dtype, low, high in (("int8", -128, 127), ("uint8", 0, 255)):
        got = both("quantize", [x], [np.asarray(F32(1)), np.int32(1)], out_dtype=dtype)
        assert got.tolist() == [low, high, low, 4]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantize_gives_back_what_was_dequantized(dtype: str) -> None:
    every = np.arange(256).astype(np.uint8).view(dtype)
    for scale, zero in ((2.0**-20, 0), (0.1, 100), (16.0, 127)):
        pair = [np.asarray(F32(scale)), np.int32(zero)]
        real = both("dequantize", [every], pair)
        np.testing.assert_array_equal(both("quantize", [real], pair, out_dtype=dtype), every)


# --- sums of products


def direct(x: Array, w: Array, xz: int, wz: Any, pads: int, stride: int, groups: int) -> Array:
    """Sums over windows in Python's order, what stands for zero outside of the data."""
    wide = np.pad(x.astype(np.int64) - xz, ((0, 0), (0, 0), (pads, pads), (pads, pads)))
    kernel = w.astype(np.int64) - np.reshape(wz, (-1, 1, 1, 1))
    height, width = ((wide.shape[k] - w.shape[k]) // stride + 1 for k in (2, 3))
    out = np.zeros((len(x), len(w), height, width), np.int64)
    inner = w.shape[1]
    for n, o, i, j in np.ndindex(*out.shape):
        first = o // (len(w) // groups) * inner
        part = wide[
            n, first : first + inner, i * stride : i * stride + w.shape[2], j * stride : j * stride + w.shape[3]
        ]
        out[n, o, i, j] = (part * kernel[o]).sum()
    return out


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kinds", ["int8 int8", "uint8 int8", "uint8 uint8", "int8 uint8", "int16 int8"])
@pytest.mark.parametrize("known", [False, True])
def test_convolutions_are_sums_of_products(groups: int, kinds: str, known: bool) -> None:
    rng = np.random.default_rng(groups)
    data, weight = map(DType, kinds.split())
    x = rng.integers(data.min, int(data.max) + 1, (2, 4, 6, 5)).astype(data.numpy)
    w = rng.integers(weight.min, int(weight.max) + 1, (4, 4 // groups, 3, 2)).astype(weight.numpy)
    for xz in (int(data.min), 0, int(data.max)):
        for wz in (int(weight.min), 0, 77, rng.integers(weight.min, int(weight.max) + 1, 4)):
            zeros: list[Expr] = [c(xz, np.int32), c(wz, np.int32), c(1, F32), c(1, F32)]
            given = [x] if known else [x, w]
            attributes: Any = {"padding": (1, 1), "strides": (2, 2), "groups": groups}
            with warnings.catch_warnings():
                warnings.simplefilter("error" if data.bits == 8 else "ignore")
                got = lowered("conv2d", given, [c(w), *zeros] if known else zeros, **attributes)
            np.testing.assert_array_equal(got, direct(x, w, xz, wz, 1, 2, groups))


def test_zero_points_that_are_computed() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, (1, 3, 5, 5)).astype(np.uint8), rng.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8)
    values = [x, w, np.int32(200), np.int32(-7)]
    got = lowered("conv2d", [np.asarray(v) for v in values], [c(1, F32), c(1, F32)], padding=(1, 1))
    np.testing.assert_array_equal(got, direct(x, w, 200, -7, 1, 1, 1))


@pytest.mark.parametrize("known", [False, True])
def test_dense_and_batch_matmul(known: bool) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.integers(0, 256, (3, 19)).astype(np.uint8), rng.integers(0, 256, (5, 19)).astype(np.uint8)
    one = [c(1, F32), c(1, F32)]
    for xz, wz in ((0, 0), (255, 128), (7, 0), (0, 200), (3, rng.integers(0, 256, 5))):
        zeros = [c(xz, np.int32), c(wz, np.int32), *one]
        want = (x.astype(np.int64) - xz) @ (w.astype(np.int64) - np.reshape(wz, (-1, 1))).T
        got = lowered("dense", [x] if known else [x, w], [c(w), *zeros] if known else zeros)
        np.testing.assert_array_equal(got, want)
        if np.ndim(wz) == 0:
            np.testing.assert_array_equal(lowered("batch_matmul", [x[None], w[None]], zeros)[0], want)


def test_weights_around_128_become_int8() -> None:
    x = Var("x", type_of_value(np.zeros((1, 3, 5, 5), np.uint8)))
    w = np.random.default_rng(0).integers(0, 256, (4, 3, 3, 3)).astype(np.uint8)
    node = expanded(qnn.conv2d(x, c(w), 3, 128, 1.0, 1.0, padding=(1, 1)))
    calls = {n.op.name: n for n in post_order(node) if isinstance(n, Call)}  # type: ignore[union-attr]
    assert calls.keys() == {"nn.conv2d", "subtract"}
    conv = calls["nn.conv2d"]
    assert [tensor_type_of(a).dtype for a in conv.args] == ["uint8", "int8"]
    assert conv.attrs["pad_value"] == 3 and conv.attrs["padding"] == (1, 1, 1, 1)


def test_sums_that_leave_int32_are_warned_of() -> None:
    x = Var("x", type_of_value(np.zeros((1, 70_000), np.uint8)))
    full, half = np.full((1, 70_000), 127, np.int8), np.full((1, 60_000), 127, np.int8)
    with pytest.warns(UserWarning, match="sums of 70000 products may reach 2,266,950,000"):
        expanded(qnn.dense(x, c(full), 0, 0, 1.0, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expanded(qnn.dense(Var("x", type_of_value(np.zeros((1, 60_000), np.uint8))), c(half), 0, 0, 1.0, 1.0))


# --- ONNX Runtime

KINDS = {"uint8": onnx.TensorProto.UINT8, "int8": onnx.TensorProto.INT8}


def fused(op: str, data: dict[str, Array], constants: dict[str, Any], order: str, domain: str, **more: Any) -> Array:
    """One quantized node by ONNX Runtime, all optimizations on."""
    kind = KINDS[str(next(iter(data.values())).dtype)]
    graph = helper.make_graph(
        [helper.make_node(op, order.split(), ["y"], domain=domain, **more)],
        "one",
        [helper.make_tensor_value_info(k, KINDS[str(v.dtype)], v.shape) for k, v in data.items()],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, data)[0])


class Case:
    """Random tensors of one type, scales and zero points."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = DType(("uint8", "int8")[seed % 2])

    def tensor(self, *shape: int) -> Array:
        return self.rng.integers(self.dtype.min, int(self.dtype.max) + 1, shape).astype(self.dtype.numpy)

    def pair(self, simple: bool = False) -> tuple[Array, Array]:
        scale = self.rng.choice([0.25, 0.5, 0.75, 1.0]) if simple else 2.0 ** self.rng.uniform(-6, 2)
        return np.asarray(F32(scale)), np.asarray(self.tensor())

    def wide(self, *pairs: tuple[Array, Array]) -> list[Array]:
        return [v for scale, zero in pairs for v in (scale, zero.astype(np.int32))]


def next_to_ties(ours: Array, theirs: Array, quotient: Array) -> None:
    """ONNX Runtime's kernels add the zero point before they round, and round factors: both decide about ties alone."""
    apart = np.abs(ours.astype(int) - theirs.astype(int))
    assert apart.max() <= 1 and (from_ties(quotient)[apart > 0] < 1e-4).all()


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize(("op", "name"), [("QLinearAdd", "add"), ("QLinearMul", "mul")])
def test_sums_and_products_have_the_bytes_of_onnx_runtime_but_for_ties(op: str, name: str, seed: int) -> None:
    case = Case(seed)
    a, b, s = (case.pair(simple=seed % 4 < 2) for _ in range(3))
    x, y = case.tensor(3, 70), case.tensor(3, 70)
    given = dict(zip(("sa", "za", "sb", "zb", "sc", "zc"), (*a, *b, *s), strict=True))
    want = fused(op, {"a": x, "b": y}, given, "a sa za b sb zb sc zc", "com.microsoft")
    combine = np.add if name == "add" else np.multiply
    next_to_ties(both(name, [x, y], case.wide(a, b, s)), want, combine(real(x, a), real(y, b)) / Wide(s[0]))


@pytest.mark.parametrize("seed", range(16))
def test_differences_have_the_bytes_of_onnx_runtime_but_for_ties(seed: int) -> None:
    """It has no operator of integers for them: it dequantizes, subtracts and quantizes; every second draw has ties."""
    onnxruntime = pytest.importorskip("onnxruntime")
    case = Case(seed)
    pairs = dict(zip("abc", (case.pair(simple=seed % 4 < 2) for _ in range(3)), strict=True))
    data = {n: case.tensor(3, 70) for n in "ab"}
    known = {f"{k}{n}": v for n, pair in pairs.items() for k, v in zip("sz", pair, strict=True)}
    nodes = [helper.make_node("DequantizeLinear", [n, f"s{n}", f"z{n}"], [f"real_{n}"]) for n in "ab"]
    nodes.append(helper.make_node("Sub", ["real_a", "real_b"], ["c"]))
    nodes.append(helper.make_node("QuantizeLinear", ["c", "sc", "zc"], ["y"]))
    kind = KINDS[str(case.dtype)]
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info(n, kind, (3, 70)) for n in "ab"],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(v, n) for n, v in known.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    want = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, data)[0]
    quotient = (real(data["a"], pairs["a"]) - real(data["b"], pairs["b"])) / Wide(pairs["c"][0])
    next_to_ties(both("subtract", list(data.values()), case.wide(*pairs.values())), want, quotient)


@pytest.mark.parametrize("shape", [(3, 1), (1, 1, 40), (2, 3, 40)])
def test_sums_are_alike_whichever_operand_comes_first(shape: tuple[int, ...]) -> None:
    for seed in range(40):
        case = Case(seed)
        a, b, s = ((np.asarray(F32(case.rng.integers(1, 16) / 16)), np.asarray(case.tensor())) for _ in range(3))
        x, y = case.tensor(2, 3, 40), case.tensor(*shape)
        forth, back = both("add", [x, y], case.wide(a, b, s)), both("add", [y, x], case.wide(b, a, s))
        np.testing.assert_array_equal(forth, back)


UNARY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sigmoid": ("QLinearSigmoid", "sigmoid", {}),
    "leaky_relu": ("QLinearLeakyRelu", "leaky_relu", {"alpha": 0.1}),
}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", UNARY)
def test_tables_have_the_bytes_of_onnx_runtime_but_for_ties(name: str, seed: int) -> None:
    op, ours, attributes = UNARY[name]
    case = Case(seed)
    source, result = case.pair(), case.pair()
    every = np.arange(256).astype(np.uint8).view(case.dtype.numpy)
    given = dict(zip(("s", "z", "t", "u"), (*source, *result), strict=True))
    want = fused(op, {"x": every}, given, "x s z t u", "com.microsoft", **attributes)
    y = real(every, source)
    y = 1 / (1 + np.exp(-y)) if ours == "sigmoid" else np.where(y > 0, y, y * Wide(F32(0.1)))
    next_to_ties(both(ours, [every], case.wide(source, result), **attributes), want, y / Wide(result[0]))


@pytest.mark.parametrize("seed", range(8))
def test_softmax_has_the_bytes_of_onnx_runtime_but_for_ties(seed: int) -> None:
    case = Case(seed)
    scale, zero = case.pair()
    x = case.tensor(9, int(case.rng.integers(1, 50)))
    onto = (np.asarray(F32(1 / 256)), np.asarray(case.dtype.min, case.dtype.numpy))
    given = {"s": scale, "z": zero, "t": onto[0], "u": onto[1]}
    want = fused("QLinearSoftmax", {"x": x}, given, "x s z t u", "com.microsoft", axis=-1, opset=13)
    got = both("softmax", [x], case.wide((scale, zero), onto))
    # a probability of 1 is 256 steps: ONNX Runtime wraps it to the least int8
    most = got == int(case.dtype.max)
    e = np.exp(real(x, (scale, int(zero))))
    quotient = e / e.sum(-1, keepdims=True) / Wide(onto[0])
    next_to_ties(got[~most], want[~most], quotient[~most])


@pytest.mark.parametrize("seed", range(12))
def test_average_pools_have_the_bytes_of_onnx_runtime_but_for_ties(seed: int) -> None:
    case = Case(seed)
    source = case.pair()
    result = source if seed % 3 == 0 else case.pair()
    x = case.tensor(1, 3, 9, 8)
    size, pad, counts = (int(v) for v in (case.rng.integers(1, 5), case.rng.integers(0, 2), seed % 2))
    pad = min(pad, size - 1)
    given = dict(zip(("s", "z", "t", "u"), (*source, *result), strict=True))
    window: Any = {"kernel_shape": [size, size], "strides": [2, 1], "pads": [pad] * 4, "count_include_pad": counts}
    want = fused("QLinearAveragePool", {"x": x}, given, "x s z t u", "com.microsoft", **window)
    ours: Any = {"pool_size": (size, size), "strides": (2, 1), "padding": (pad, pad), "count_include_pad": bool(counts)}
    got = both("avg_pool2d", [x], case.wide(source, result), **ours)
    attributes = OPERATORS_BY_NAME["nn.avg_pool2d"].attrs(**ours)
    mean = OPERATORS_BY_NAME["nn.avg_pool2d"].reference(attributes, real(x, source).astype(np.float64))
    next_to_ties(got, want, mean / np.float64(result[0]))


@pytest.mark.parametrize("seed", range(6))
def test_concatenation_has_the_bytes_of_onnx_runtime(seed: int) -> None:
    case = Case(seed)
    a, b, s = (case.pair() for _ in range(3))
    x, y = case.tensor(2, 3, 5), case.tensor(2, 4, 5)
    given = dict(zip(("sc", "zc", "sa", "za", "sb", "zb"), (*s, *a, *b), strict=True))
    want = fused("QLinearConcat", {"a": x, "b": y}, given, "sc zc a sa za b sb zb", "com.microsoft", axis=1)
    scales, zeros = tuple(c(p[0]) for p in (a, b)), tuple(c(p[1].astype(np.int32)) for p in (a, b))
    variables = [Var(n, type_of_value(v)) for n, v in (("x", x), ("y", y))]
    node = qnn.concatenate(variables, scales, zeros, c(s[0]), c(s[1].astype(np.int32)), axis=1)
    got = evaluate(expanded(node), dict(zip(variables, (x, y), strict=True)))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("seed", range(10))
def test_convolutions_have_the_bytes_of_onnx_runtime(seed: int) -> None:
    """Requantized in floats, halves to even, per channel: QLinearConv."""
    case = Case(seed)
    rng, channels = case.rng, 8
    x = case.tensor(1, 6, 9, 7)
    # ONNX Runtime's sums of two products of larger weights saturate on other processors
    most = 128 if has_vnni() else 64
    w = rng.integers(-most, most, (channels, 6, 3, 3)).astype(np.int8)
    source, result = case.pair(), (np.asarray(F32(2.0 ** rng.uniform(1, 6))), np.asarray(case.tensor()))
    scales = (2.0 ** rng.uniform(-10, -4, channels)).astype(F32)
    bias = rng.integers(-5000, 5000, channels).astype(np.int32)
    given = {"s": source[0], "z": source[1], "w": w, "ws": scales, "wz": np.zeros(channels, np.int8)}
    given |= {"t": result[0], "u": result[1], "b": bias}
    want = fused("QLinearConv", {"x": x}, given, "x s z w ws wz t u b", "", pads=[1, 1, 1, 1])
    zero = c(source[1].astype(np.int32))
    data = Var("x", type_of_value(x))
    sums = qnn.conv2d(data, c(w), zero, 0, c(source[0]), c(scales), padding=(1, 1))
    biased = OPERATORS_BY_NAME["nn.bias_add"](sums, c(bias))
    onto = (c(result[0]), c(result[1].astype(np.int32)))
    y = qnn.requantize(
        biased, c(source[0] * scales), 0, *onto, axis=1, rounding="FLOAT_EVEN", out_dtype=str(case.dtype)
    )
    np.testing.assert_array_equal(evaluate(expanded(y), {data: x}), want)


# --- roundings that a definition fixes


def instructions(body: Callable[..., Expr], target: str) -> set[str]:
    """The functions that a kernel calls."""
    params = [Var(n, type_of_value(np.zeros(64, F32))) for n in "xyz"]
    kernel = lower_fused_function(Function(params, body(*params)), "f", TARGETS[target])
    return {n.name for n in all_exprs_in_stmt(finished(kernel, TARGETS[target]).body) if isinstance(n, Said)}


@pytest.mark.parametrize("target", ["c", "x86-64-v3", "x86-64-v4"])
def test_products_are_rounded_as_they_say(target: str) -> None:
    add = binary_elementwise.add
    assert "fma" not in instructions(lambda x, y, z: add(target_independent_rounding.product(x, y), z), target)
    assert "fma" in instructions(lambda x, y, z: target_independent_rounding.multiply_add(x, y, z), target)
    if target != "c":
        assert "fma" in instructions(lambda x, y, z: add(binary_elementwise.multiply(x, y), z), target)


# --- what is wrong


def failing(**changes: Any) -> Call:
    x = Var("x", type_of_value(np.zeros((1, 3, 5, 5), np.uint8)))
    given: Any = {"data": x, "input_scale": 0.5, "input_zero_point": 3, "output_scale": 0.25, "output_zero_point": 0}
    return qnn.requantize(**given | {"axis": 1, "out_dtype": "int8"} | changes)


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("qnn.scale", {"input_scale": 0.0}),
        ("qnn.scale", {"input_scale": -1.0}),
        ("qnn.scale", {"output_scale": math.nan}),
        ("qnn.scale", {"output_scale": math.inf}),
        ("qnn.scale", {"input_scale": c([0.5, 0.0, 0.5], F32)}),
        ("qnn.zero-point", {"input_zero_point": -1}),
        ("qnn.zero-point", {"input_zero_point": 256}),
        ("qnn.zero-point", {"output_zero_point": 128}),
        ("qnn.axis", {"input_scale": c([0.5, 1.0], F32)}),
        ("qnn.axis", {"input_scale": c([[0.5]], F32)}),
        ("qnn.dtype", {"input_scale": c(1)}),
        ("qnn.dtype", {"input_zero_point": c(1.0)}),
        ("qnn.rounding", {"rounding": "NEAREST"}),
        ("qnn.compute-dtype", {"rounding": "FLOAT_EVEN", "compute_dtype": "int64"}),
        ("dtype", {"out_dtype": "float32"}),
        ("dtype", {"data": Var("x", type_of_value(np.zeros((1, 3), F32)))}),
        ("axis", {"axis": 4, "input_scale": c([0.5, 1.0, 0.5], F32)}),
        ("qnn.scale", {"input_scale": Var("s", type_of_value(np.zeros((), F32)))}),
    ],
)
def test_bad_scales_and_zero_points(code: str, changes: dict[str, Any]) -> None:
    assert error_code(lambda: expanded(failing(**changes))) == code


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("qnn.axis", {"input_zero_point": c([0, 0, 0], np.int32)}),
        ("qnn.axis", {"kernel_scale": c([0.5] * 3, F32)}),
        ("qnn.axis", {"kernel_zero_point": c([0] * 3, np.int32)}),
        ("qnn.scale", {"kernel_scale": c([0.5, 0.5, -0.5, 0.5], F32)}),
        ("qnn.zero-point", {"kernel_zero_point": 200}),
        ("conv.in-channels", {"groups": 3}),
        ("layout", {"kernel_layout": "OIHW16o", "kernel": c(np.zeros((1, 3, 3, 3, 16), np.int8))}),
        ("dtype", {"data": Var("x", type_of_value(np.zeros((1, 3, 5, 5), np.int64)))}),
    ],
)
def test_bad_convolutions(code: str, changes: dict[str, Any]) -> None:
    x = Var("x", type_of_value(np.zeros((1, 3, 5, 5), np.uint8)))
    given: Any = {"data": x, "kernel": c(np.zeros((4, 3, 3, 3), np.int8)), "input_scale": 0.5, "kernel_scale": 0.5}
    zeros = {"input_zero_point": 3, "kernel_zero_point": 0}
    assert error_code(lambda: expanded(qnn.conv2d(**given | zeros | changes))) == code


def test_tensors_with_too_few_scales() -> None:
    x = Var("x", type_of_value(np.zeros((1, 3), np.uint8)))
    with pytest.raises(AotcError, match="2 tensors need as many scales and zero points, got 1 and 2"):
        qnn.concatenate((x, x), (0.1,), (0, 0), 0.1, 0)
