# SPDX-License-Identifier: Apache-2.0
"""Quantized operators of ONNX and of com.microsoft: numpy arithmetic, ONNX Runtime and the converted operators give
equal bits.

Scales are small multiples of one number, so that many results lie between two integers, where roundings show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
import pytest
from evaluation import Array, run_model
from onnx import ModelProto, helper, numpy_helper

from aotc.checking.float64_reference import evaluate_model_in_float64
from aotc.driver.compile import compile
from aotc.ir.diagnostics import AotcError
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.frontend.onnx.microsoft_operator_schemas import DEFINITIONS, DOMAIN
from aotc.relay.frontend.op_calls import MAX_FOLDED_BYTES
from aotc.runtime.session import load
from tests.ops.exact_quantization import from_ties
from tests.targets.machines import has_vnni

F: Final[Any] = np.float32
Generator = np.random.Generator


@dataclass
class Case:
    """A node, the values of its inputs, and its result; inputs at `variable` come at run time."""

    op: str
    args: Sequence[Any]
    wanted: Array | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    variable: Sequence[int] = (0,)
    domain: str = DOMAIN
    outputs: int = 1
    quotient: Array | None = None
    """In double precision, for ONNX Runtime's kernels that round otherwise next to ties."""

    def model(self, opset: int = 21) -> ModelProto:
        arrays = {f"i{k}": np.asarray(a) for k, a in enumerate(self.args) if a is not None}
        names = ["" if a is None else f"i{k}" for k, a in enumerate(self.args)]
        node = helper.make_node(
            self.op, names, [f"o{k}" for k in range(self.outputs)], "the_node", domain=self.domain, **self.attributes
        )
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in arrays.items()
            if n in self.inputs()
        ]
        known = [numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in self.inputs()]
        outputs = [onnx.ValueInfoProto(name=n) for n in node.output]
        graph = helper.make_graph([node], "g", inputs, outputs, known)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def inputs(self) -> dict[str, Array]:
        return {f"i{k}": np.asarray(self.args[k]) for k in self.variable}

    def ours(self) -> list[Array]:
        return run_model(from_onnx(self.model()), self.inputs())

    def theirs(self) -> list[Array]:
        onnxruntime = pytest.importorskip("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(self.model().SerializeToString(), options)
        return list(session.run(None, self.inputs()))


# --- what is drawn


def numbers(rng: Generator, dtype: str, *shape: int) -> Array:
    """Integers up to the ends of their type."""
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max + 1, shape).astype(dtype)


def zero(rng: Generator, dtype: str) -> Array:
    """A zero point: often the least, the greatest, or 0."""
    ends = np.iinfo(dtype)
    return np.asarray(rng.choice([ends.min, ends.max, 0, int(rng.integers(ends.min, ends.max + 1))])).astype(dtype)


def scales(rng: Generator, count: int) -> list[Any]:
    """Scales whose quotients by the last one are halves, thirds, sixths and the like."""
    base = F(2.0 ** rng.uniform(-8, 0))
    return [F(rng.integers(1, 16)) * base for _ in range(count - 1)] + [F(2 * rng.integers(1, 8)) * base]


def weights(rng: Generator, dtype: str) -> str:
    """A type of weights that ONNX Runtime multiplies with data of `dtype`."""
    return "int8" if dtype == "int8" or rng.integers(2) else "uint8"


def channels(rng: Generator, dtype: str, count: int) -> tuple[Array, Array]:
    """A scale and a zero point for weights, or for each of their channels."""
    if rng.integers(2):
        return np.asarray(F(2.0 ** rng.uniform(-8, 0))), zero(rng, dtype)
    return (2.0 ** rng.uniform(-8, 0, count)).astype(F), numbers(rng, dtype, count)


# --- arithmetic


def clipped(y: Array, dtype: Any) -> Array:
    ends = np.iinfo(dtype)
    return np.clip(np.rint(y), ends.min, ends.max).astype(dtype)


def offset(x: Array, z: Any) -> Array:
    return x.astype(np.int32) - np.asarray(z).astype(np.int32)


def real(x: Array, s: Any, z: Any) -> Array:
    return s * offset(x, z).astype(F)


def quantized(y: Array, s: Any, z: Array) -> Array:
    return clipped(np.rint(y / s) + z.astype(F), z.dtype)


def exactly(x: Array, s: Any, z: Any) -> Array:
    return offset(x, z) * np.float64(s)


def once(y: Array, s: Any, z: Array) -> Array:
    """Numbers in double precision as integers."""
    return clipped(np.rint(y / np.float64(s)) + z.astype(np.float64), z.dtype)


def requantized(sums: Array, factor: Any, z: Array) -> Array:
    return clipped(np.rint(sums.astype(F) * factor) + z.astype(F), z.dtype)


def dynamic(x: Array) -> tuple[Any, Array]:
    """Scale and zero point of data as uint8."""
    low, high = min(F(0), x.min()), max(F(0), x.max())
    scale = (high - low) / F(255) if low != high else F(1)
    return scale, np.asarray(np.rint(np.clip(-low / scale, 0, 255))).astype(np.uint8)


# --- operators


def add(rng: Generator, dtype: str) -> Case:
    """Each difference from a zero point times a quotient of scales, and the sum of both, in float32."""
    kind = rng.integers(3)
    a, b = numbers(rng, dtype, *((4, 1), (4, 33), (4, 33))[kind]), numbers(rng, dtype, *((33,), (1,), (4, 33))[kind])
    sa, sb, sc = scales(rng, 3)
    za, zb, zc = (zero(rng, dtype) for _ in range(3))
    y = offset(a, za).astype(F) * (sa / sc) + offset(b, zb).astype(F) * (sb / sc)
    quotient = (exactly(a, sa, za) + exactly(b, sb, zb)) / sc
    args = [a, sa, za, b, sb, zb, sc, zc]
    return Case("QLinearAdd", args, clipped(np.rint(y) + zc.astype(F), dtype), variable=(0, 3), quotient=quotient)


def mul(rng: Generator, dtype: str) -> Case:
    """A product of integers times one factor of float32."""
    a, b = numbers(rng, dtype, 4, 33), numbers(rng, dtype, *((33,), (1,))[rng.integers(2)])
    (sa, sb, sc), (za, zb, zc) = scales(rng, 3), (zero(rng, dtype) for _ in range(3))
    sc = sc * F(rng.integers(1, 100))
    y = requantized(offset(a, za) * offset(b, zb), sa * sb / sc, zc)
    quotient = exactly(a, sa, za) * exactly(b, sb, zb) / sc
    return Case("QLinearMul", [a, sa, za, b, sb, zb, sc, zc], y, variable=(0, 3), quotient=quotient)


def leaky_relu(rng: Generator, dtype: str) -> Case:
    (sx, sy), zx, zy, alpha = scales(rng, 2), zero(rng, dtype), zero(rng, dtype), F(rng.choice([0.01, 0.5, 0.3]))
    x = np.arange(256).astype(np.uint8).view(dtype)
    v = exactly(x, sx, zx)
    v = np.where(v >= 0, v, alpha * v)
    return Case("QLinearLeakyRelu", [x, sx, zx, sy, zy], once(v, sy, zy), {"alpha": float(alpha)}, quotient=v / sy)


def sigmoid(rng: Generator, dtype: str) -> Case:
    sx, sy, zx, zy = (
        F(2.0 ** rng.uniform(-8, -1)),
        F(rng.choice([1 / 256, 1 / 300])),
        zero(rng, dtype),
        zero(rng, dtype),
    )
    x = np.arange(256).astype(np.uint8).view(dtype)
    y = 1 / (1 + np.exp(-exactly(x, sx, zx)))
    return Case("QLinearSigmoid", [x, sx, zx, sy, zy], once(y, sy, zy), quotient=y / sy)


def softmax(rng: Generator, dtype: str) -> Case:
    """Exponentials of distances from the greatest element as multiples of 2^-30, whose sum is exact.

    ONNX Runtime multiplies by the integer below 1 / scale: scales are inverses of integers here.
    """
    count, sx, sy = int(rng.choice([4, 12, 1000])), F(2.0 ** rng.uniform(-6, 0)), F(0.5 ** rng.integers(5, 9))
    x, zx, zy = numbers(rng, dtype, 3, count), zero(rng, dtype), np.asarray(np.iinfo(dtype).min).astype(dtype)
    table = np.rint(np.exp((np.arange(256) - 255) * np.float64(sx)) * 2.0**30).astype(np.int64)
    e = table[x.astype(np.int32) - x.max(1, keepdims=True) + 255]
    total = e.sum(1, keepdims=True)
    y = requantized(e, F(1) / (total.astype(F) * sy), zy)
    args = [x, sx, zx, sy, zy]
    return Case("QLinearSoftmax", args, y, {"opset": 13}, quotient=e / total / np.float64(sy))


def concat(rng: Generator, dtype: str) -> Case:
    (sy, *others), zy = scales(rng, 3), zero(rng, dtype)
    parts = [(numbers(rng, dtype, 3, 5), sy, zy), *((numbers(rng, dtype, 3, 70), s, zero(rng, dtype)) for s in others)]
    moved = [once(exactly(*part), sy, zy) for part in parts]
    quotient = np.concatenate([exactly(*part) / sy for part in parts], 1)
    args = [sy, zy, *(v for part in parts for v in part)]
    how: Any = {"variable": (2, 5, 8), "quotient": quotient}
    return Case("QLinearConcat", args, np.concatenate(moved, 1), {"axis": 1}, **how)


def where(rng: Generator, dtype: str) -> Case:
    (sx, sy, sz), zz, chosen = scales(rng, 3), zero(rng, dtype), rng.integers(0, 2, (3, 40)).astype(bool)
    x, y = ((numbers(rng, dtype, *shape), s, zero(rng, dtype)) for shape, s in (((3, 40), sx), ((1, 40), sy)))
    wanted = np.where(chosen, *(once(exactly(*v), sz, zz) for v in (x, y)))
    how: Any = {"variable": (0, 1, 4), "quotient": np.where(chosen, exactly(*x), exactly(*y)) / sz}
    return Case("QLinearWhere", [chosen, *x, *y, sz, zz], wanted, **how)


def global_average_pool(rng: Generator, dtype: str) -> Case:
    """The sum of integers is scaled once."""
    x, sx, zx, zy = numbers(rng, dtype, 2, 5, 6, 8), F(2.0 ** rng.uniform(-4, 2)), zero(rng, dtype), zero(rng, dtype)
    sy, last = sx * F(rng.choice([0.5, 0.25, 1, 47 / 48])), int(rng.integers(2))
    axes = (1, 2) if last else (2, 3)
    count = math.prod(x.shape[k] for k in axes)
    sums = offset(x, zx).sum(axes, keepdims=True)
    wanted = requantized(sums, sx / (sy * F(count)), zy)
    return Case("QLinearGlobalAveragePool", [x, sx, zx, sy, zy], wanted, {"channels_last": last})


def average_pool(rng: Generator, dtype: str) -> Case:
    """A mean of integers times a quotient of scales."""
    x, sx, zx, zy = numbers(rng, dtype, 2, 5, 8, 9), F(2.0 ** rng.uniform(-4, 2)), zero(rng, dtype), zero(rng, dtype)
    sy, k = sx * F(rng.choice([0.5, 0.25, 1])), int(rng.integers(2, 4))
    views = np.lib.stride_tricks.sliding_window_view(offset(x, zx), (k, k), (2, 3))
    mean = views.sum((-1, -2)).astype(F) / F(k * k)
    wanted = clipped(np.rint(mean * (sx / sy)) + zy.astype(F), dtype)
    quotient = views.sum((-1, -2)) / (k * k) * (np.float64(sx) / sy)
    return Case("QLinearAveragePool", [x, sx, zx, sy, zy], wanted, {"kernel_shape": [k, k]}, quotient=quotient)


def max_pool(rng: Generator, dtype: str) -> Case:
    """Its channels are the last axis; padding is never the greatest."""
    x = numbers(rng, dtype, 2, 7, 8, 5)
    padded = np.pad(x.astype(np.int32), ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-999)
    parts = [padded[:, i : i + 7 : 2, j : j + 7 : 2] for i, j in np.ndindex(3, 3)]
    how = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    return Case("NhwcMaxPool", [x], np.max(parts, axis=0).astype(dtype), how)


def conv(rng: Generator, dtype: str) -> Case:
    x, kernel = numbers(rng, dtype, 1, 6, 9, 9), numbers(rng, weights(rng, dtype), 8, 6, 3, 3)
    (sw, zw), zx, zy = channels(rng, kernel.dtype.name, 8), zero(rng, dtype), zero(rng, dtype)
    sx, sy, bias = F(2.0 ** rng.uniform(-8, 0)), F(2.0 ** rng.uniform(-3, 4)), numbers(rng, "int16", 8).astype(np.int32)
    padded = np.pad(offset(x, zx), ((0, 0), (0, 0), (1, 1), (1, 1)))
    w = offset(kernel, zw.reshape(-1, 1, 1, 1))
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    sums = np.einsum("ncijyx,ocyx->noij", views, w) + bias.reshape(-1, 1, 1)
    wanted = requantized(sums, (sx * sw / sy).reshape(-1, 1, 1), zy)
    args = [x, sx, zx, kernel, sw, zw, sy, zy, bias]
    return Case("QLinearConv", args, wanted, {"pads": [1] * 4}, domain="")


def products(rng: Generator, dtype: str) -> tuple[list[Any], Array, Any, Any]:
    """Inputs of a product of matrices, its sums, its scale, and a zero point of the result."""
    a, b = numbers(rng, dtype, 5, 37), numbers(rng, weights(rng, dtype), 37, 19)
    (sb, zb), sa, za = channels(rng, b.dtype.name, 19), F(2.0 ** rng.uniform(-8, 0)), zero(rng, dtype)
    return [a, sa, za, b, sb, zb], offset(a, za) @ offset(b, zb), sa * sb, zero(rng, dtype)


def matmul(rng: Generator, dtype: str) -> Case:
    args, sums, scale, zy = products(rng, dtype)
    sy = F(2.0 ** rng.uniform(-3, 4))
    return Case("QLinearMatMul", [*args, sy, zy], requantized(sums, scale / sy, zy), domain="")


def gemm(rng: Generator, dtype: str) -> Case:
    args, sums, _, zy = products(rng, dtype)
    alpha, sy, flip = F(rng.choice([1.0, 0.3])), F(2.0 ** rng.uniform(-3, 4)), int(rng.integers(2))
    shape = ((19,), (5, 1), (5, 19))[rng.integers(3)]
    bias = rng.integers(-20000, 20000, shape).astype(np.int32)
    factor = alpha * args[1] * args[4]
    if flip:
        args[0], args[3] = args[0].T.copy(), args[3].T.copy()
    attributes = {"alpha": float(alpha), "transA": flip, "transB": flip}
    if rng.integers(2):
        return Case("QGemm", [*args, bias], (sums + bias).astype(F) * factor, attributes)
    return Case("QGemm", [*args, bias, sy, zy], requantized(sums + bias, factor / sy, zy), attributes)


def integers_to_float(rng: Generator, dtype: str) -> Case:
    """The bias is added to a product that is rounded by itself."""
    (a, sa, za, b, sb, zb), sums, scale, _ = products(rng, "uint8")
    bias = rng.standard_normal(19).astype(F)
    return Case("MatMulIntegerToFloat", [a, b, sa, sb, za, zb, bias], sums.astype(F) * scale + bias)


def dynamic_matmul(rng: Generator, dtype: str) -> Case:
    (_, _, _, b, sb, zb), *_ = products(rng, dtype)
    x, bias = rng.standard_normal((2, 5, 37)).astype(F), rng.standard_normal(19).astype(F)
    scale, z = dynamic(x)
    sums = offset(quantized(x, scale, z), z) @ offset(b, zb)
    return Case("DynamicQuantizeMatMul", [x, b, sb, zb, bias], sums.astype(F) * (scale * sb) + bias)


def gather_blocks(rng: Generator, dtype: str) -> Case:
    bits = int(rng.choice([2, 4, 8]))
    packed, z = numbers(rng, "uint8", 10, 8 * bits), numbers(rng, "uint8", 10, -(-4 * bits // 8))
    scale, places = (2.0 ** rng.uniform(-6, 0, (10, 4))).astype(F), rng.integers(-10, 10, (3, 2))

    def unpacked(v: Array) -> Array:
        return (v[..., None] >> np.arange(0, 8, bits) & (1 << bits) - 1).reshape(10, -1).astype(F)

    wanted = (unpacked(packed) - np.repeat(unpacked(z)[:, :4], 16, 1)) * np.repeat(scale, 16, 1)
    attributes = {"block_size": 16, "bits": bits}
    return Case("GatherBlockQuantized", [packed, places, scale, z], wanted[places], attributes, variable=(1,))


OPERATORS: Final[tuple[Callable[[Generator, str], Case], ...]] = (
    *(add, mul, leaky_relu, sigmoid, softmax, concat, where, global_average_pool, average_pool, max_pool, conv),
    *(matmul, gemm),
    *(integers_to_float, dynamic_matmul, gather_blocks),
)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda f: f.__name__)
def test_bits_are_those_of_the_arithmetic_and_but_for_ties_of_onnx_runtime(
    operator: Callable[[Generator, str], Case], dtype: str
) -> None:
    for seed in range(12):
        case = operator(np.random.default_rng([seed, *operator.__name__.encode()]), dtype)
        (ours,) = case.ours()
        np.testing.assert_array_equal(ours, case.wanted)
        if not has_vnni():
            continue
        (theirs,) = case.theirs()
        if case.quotient is None:
            np.testing.assert_array_equal(theirs, case.wanted)
            continue
        other = theirs != case.wanted
        if case.op == "QLinearSoftmax":
            # a probability of 1 is one step more than the type holds: ONNX Runtime wraps it
            other &= case.wanted != np.iinfo(dtype).max
        assert (from_ties(case.quotient)[other] < 1e-4).all()
        assert (np.abs(theirs.astype(int) - ours.astype(int))[other] == 1).all()


@pytest.mark.parametrize("target", ["c", "host"])
def test_compiled_bits(target: str, tmp_path: Path) -> None:
    """All operators in one model, with one more draw of each for each of the types."""
    cases = [f(np.random.default_rng([99, k]), t) for k, f in enumerate(OPERATORS) for t in ("uint8", "int8")]
    whole = cases[0].model()
    for part in ("node", "input", "output", "initializer"):
        del getattr(whole.graph, part)[:]
    for k, case in enumerate(cases):
        one = onnx.compose.add_prefix(case.model(), f"c{k}_").graph
        for part in ("node", "input", "output", "initializer"):
            getattr(whole.graph, part).extend(getattr(one, part))
    compiled = compile(whole, output=tmp_path / "project", target=target, cflags=("-O1",))
    inputs = {f"c{k}_{name}": value for k, case in enumerate(cases) for name, value in case.inputs().items()}
    found = load(compiled.path).run([f"c{k}_o0" for k in range(len(cases))], inputs)
    for case, y in zip(cases, found, strict=True):
        np.testing.assert_array_equal(y, case.wanted, err_msg=case.op)


@pytest.mark.parametrize("target", ["c", "host"])
def test_a_network_of_integers_has_the_bits_of_onnx_runtime(target: str, models: Path, tmp_path: Path) -> None:
    path, rng = models / "kws_int8_qoperator.onnx", np.random.default_rng(0)
    compiled = compile(path, output=tmp_path / "project", target=target, cflags=("-O1",))
    session, stored = load(compiled.path), np.load(path.with_suffix(".npz"))
    (name,), (result,) = ([v.name for v in ends] for ends in (session.get_inputs(), session.get_outputs()))
    x = stored[f"in/{name}"]
    np.testing.assert_array_equal(session.run([result], {name: x})[0], stored[f"out/{result}"])
    if has_vnni():
        theirs = pytest.importorskip("onnxruntime").InferenceSession(path)
        for scale in (0.1, 1.0, 10.0):
            noisy = {name: (x + scale * x.std() * rng.standard_normal(x.shape)).astype(F)}
            np.testing.assert_array_equal(session.run([result], noisy)[0], theirs.run([result], noisy)[0])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("axis", [None, 0])
def test_numbers_of_several_widths(dtype: Any, axis: int | None) -> None:
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal((3, 8)) * 20).astype(F), np.arange(1, 4).astype(dtype)
    scale, z, attributes = (F(0.37), z[0], {}) if axis is None else (F([0.1, 0.2, 0.3]), z, {"axis": axis})
    column = (-1, 1) if axis is not None else ()
    s, wide = np.asarray(scale).reshape(column), np.asarray(z).astype(np.int32).reshape(column)
    ends = ml_dtypes.iinfo(dtype)
    stored = np.clip(np.rint(x / s) + wide, ends.min, ends.max).astype(dtype)
    case = Case("QuantizeLinear", [x, scale, z], attributes=attributes)
    np.testing.assert_array_equal(case.ours()[0].astype(np.int32), stored.astype(np.int32))
    case = Case("DequantizeLinear", [stored, scale, z], attributes=attributes)
    np.testing.assert_array_equal(case.ours()[0], (stored.astype(np.int32) - wide).astype(F) * s)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
@pytest.mark.parametrize("permuted", [False, True])
def test_a_matrix_of_few_bits(bits: int, zeros: str, permuted: bool) -> None:
    rng = np.random.default_rng(bits)
    inner, rows, block = 60, 24, 16
    blocks = -(-inner // block)
    packed, scale = numbers(rng, "uint8", rows, blocks, block * bits // 8), (2.0 ** rng.uniform(-6, 0, rows * blocks))
    x, bias, groups = (
        rng.standard_normal((3, inner)).astype(F),
        rng.standard_normal(rows).astype(F),
        np.arange(inner) // block,
    )
    groups = rng.permutation(groups).astype(np.int32) if permuted else groups

    def unpacked(v: Array, count: int) -> Array:
        parts = v.reshape(rows, -1)[..., None] >> np.arange(0, 8, bits) & (1 << bits) - 1
        return parts.reshape(rows, -1)[:, :count].astype(np.float64)

    given: Any = {
        "none": None,
        "packed": numbers(rng, "uint8", rows * -(-blocks * bits // 8)),
        "float": rng.uniform(0, 15, rows * blocks).astype(F),
    }[zeros]
    z = np.full((rows, blocks), float(1 << bits - 1)) if given is None else given.reshape(rows, -1)
    z = unpacked(given, blocks) if zeros == "packed" else z
    w = (unpacked(packed, inner) - z[:, groups]) * scale.astype(F).reshape(rows, blocks)[:, groups]
    attributes = {"K": inner, "N": rows, "block_size": block, "bits": bits}
    args = [x, packed, scale.astype(F), given, groups if permuted else None, bias]
    case, wanted = Case("MatMulNBits", args, attributes=attributes), x.astype(np.float64) @ w.T + bias
    np.testing.assert_allclose(case.ours()[0], wanted, rtol=1e-4, atol=1e-3)
    exact = evaluate_model_in_float64(case.model(), {"i0": x.astype(np.float64)})["o0"]
    np.testing.assert_allclose(exact, wanted, rtol=1e-12)


def model_with_weights_in_blocks(block: int, transposed: bool) -> tuple[ModelProto, Array]:
    """Return a product of 3 rows of 128 floats with int4 weights of 24 columns in blocks, and the weights as floats."""
    rng = np.random.default_rng(block)
    weights, scales = rng.integers(-8, 8, (128, 24)), rng.uniform(0.01, 0.02, (128 // block, 24)).astype(np.float32)
    flat = weights.T if transposed else weights
    stored = helper.make_tensor("w", onnx.TensorProto.INT4, flat.shape, flat.ravel())
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=int(transposed), block_size=block),
        helper.make_node("Gemm" if transposed else "MatMul", ["x", "d"], ["y"], **{"transB": 1} if transposed else {}),
    ]
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, d) for n, d in (("x", [3, 128]), ("y", [3, 24])))
    constants = [stored, numpy_helper.from_array(scales.T if transposed else scales, "s")]
    graph = helper.make_graph(nodes, "blocks", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model, weights.astype(np.float32) * np.repeat(scales, block, 0)


@pytest.mark.parametrize(("block", "transposed"), [(32, False), (16, True), (64, False)])
def test_data_of_products_by_weights_in_blocks_can_be_rounded(block: int, transposed: bool, tmp_path: Path) -> None:
    """With `round_data`, each block of the data becomes multiples of its largest magnitude divided by 127."""
    model, weights = model_with_weights_in_blocks(block, transposed)
    x = np.random.default_rng(1).standard_normal((3, 128)).astype(np.float32)
    blocks = x.reshape(3, -1, block)
    step = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    rounded = (np.rint(blocks / step) * step).reshape(x.shape)
    for level in (0, 3):
        for round_data, data in ((False, x), (True, rounded)):
            output = tmp_path / f"{level}{round_data}"
            compile(model, output=output, name="net", opt_level=level, round_data=round_data, cflags=["-O1"])
            (result,) = load(output).run(None, {"x": x})
            np.testing.assert_allclose(result, data @ weights, rtol=1e-4, atol=1e-4)
    assert np.abs(rounded @ weights - x @ weights).max() > 1e-3


def test_data_without_elements_can_be_rounded(tmp_path: Path) -> None:
    """A product whose depth is 0 has no blocks: its results are zeros, also with `round_data`."""
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, d) for n, d in (("x", [3, 0]), ("y", [3, 24])))
    constants = [
        helper.make_tensor("w", onnx.TensorProto.INT4, (0, 24), []),
        numpy_helper.from_array(np.zeros((0, 24), np.float32), "s"),
    ]
    graph = helper.make_graph(nodes, "empty", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    compile(model, output=tmp_path / "net", name="net", round_data=True, cflags=["-O1"])
    (result,) = load(tmp_path / "net").run(None, {"x": np.zeros((3, 0), np.float32)})
    np.testing.assert_array_equal(result, np.zeros((3, 24), np.float32))


def test_a_matrix_of_few_bits_of_more_than_a_megabyte() -> None:
    """Larger than what is computed while a model is read: its integers are known all the same."""
    rng = np.random.default_rng(0)
    inner, rows, block = 4096, 576, 64
    packed = numbers(rng, "uint8", rows, inner // block, block // 2)
    assert packed.nbytes > MAX_FOLDED_BYTES
    scale, x = rng.uniform(0.5, 1, rows * inner // block).astype(F), rng.standard_normal((1, inner)).astype(F)
    attributes = {"K": inner, "N": rows, "block_size": block, "bits": 4}
    case = Case("MatMulNBits", [x, packed, scale, None], attributes=attributes)
    exact = evaluate_model_in_float64(case.model(), {"i0": x.astype(np.float64)})["o0"]
    np.testing.assert_allclose(case.ours()[0], exact, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [None, "lengths", "each"])
@pytest.mark.parametrize("past", [0, 3])
def test_attention_on_bytes(causal: int, mask: str | None, past: int) -> None:
    rng = np.random.default_rng(past)
    batch, steps, width, heads = 2, 5, 16, 2
    hidden = {
        "lengths": np.int32([steps + past - 2, steps + past]),
        "each": (np.arange(steps + past) < np.array([[4], [6]])).astype(np.int32),
        None: None,
    }[mask]
    earlier = rng.standard_normal((2, batch, heads, past, width // heads)).astype(F) if past else None
    x, w = numbers(rng, "uint8", batch, steps, width), numbers(rng, "int8", width, 3 * width)
    if not has_vnni():
        w //= 2  # ONNX Runtime's sums of two larger products saturate
    bias = rng.standard_normal(3 * width).astype(F)
    args = [x, w, bias, F(0.02), F(0.01), hidden, np.uint8(120), np.int8(0), earlier]
    case = Case("QAttention", args, attributes={"num_heads": heads, "unidirectional": causal}, outputs=2)
    for ours, theirs in zip(case.ours(), case.theirs(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def quantized_lstm(
    direction: str, kind: str, each: bool, steps: int = 6, lengths: Any = None, **attributes: Any
) -> tuple[Case, list[Array]]:
    """A recurrent layer whose weights have one scale, or one for each column, and the weights as real numbers."""
    rng = np.random.default_rng(steps)
    count, size, units = 2 if direction == "bidirectional" else 1, 5, 4
    shape = (count, 4 * units) if each else (count,)
    zero = 117 if kind == "uint8" else 0
    w, r = (numbers(rng, kind, count, rows, 4 * units) for rows in (size, units))
    if kind == "int8" and not has_vnni():
        w, r = w // 2, r // 2  # ONNX Runtime's sums of two larger products saturate
    scale, z = rng.uniform(0.005, 0.02, shape).astype(F), np.full(shape, zero, kind)
    floats = [(offset(v, zero) * scale.reshape(count, 1, -1)).astype(F).transpose(0, 2, 1) for v in (w, r)]
    x, bias = rng.standard_normal((steps, 2, size)).astype(F), rng.standard_normal((count, 8 * units)).astype(F)
    first = [rng.standard_normal((count, 2, units)).astype(F) for _ in range(2)]
    attributes |= {"hidden_size": units, "direction": direction}
    args = [x, w, r, bias, lengths, *first, None, scale, z, scale, z]
    return Case("DynamicQuantizeLSTM", args, attributes=attributes, outputs=3), [x, *floats, bias, lengths, *first]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "each"), [("uint8", True), ("int8", False)])
def test_a_recurrent_layer_with_quantized_weights_rounds_its_data(direction: str, kind: str, each: bool) -> None:
    """Data and state become integers, as in ONNX Runtime; the result is near that of the weights as real numbers."""
    case, floats = quantized_lstm(direction, kind, each)
    plain = Case("LSTM", floats, attributes=case.attributes, domain="", outputs=3).ours()
    for ours, wanted, theirs in zip(case.ours(), plain, case.theirs(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ours, wanted, atol=0.05)
        assert np.abs(ours - wanted).max() > 1e-4


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_long_recurrent_layer_with_quantized_weights_is_a_loop(direction: str) -> None:
    case, _ = quantized_lstm(direction, "uint8", True, steps=20)
    module = from_onnx(case.model())
    assert len(module.functions) == (3 if direction == "bidirectional" else 2)
    for ours, theirs in zip(run_model(module, case.inputs()), case.theirs(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    unrolled = run_model(from_onnx(case.model(), has_loops=False), case.inputs())
    for ours, same in zip(run_model(module, case.inputs()), unrolled, strict=True):
        np.testing.assert_array_equal(ours, same)


def test_a_recurrent_layer_with_quantized_weights_takes_lengths_and_a_clip() -> None:
    case, _ = quantized_lstm("forward", "uint8", False, lengths=np.array([6, 3], np.int32), clip=0.8)
    for ours, theirs in zip(case.ours(), case.theirs(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


# --- definitions


FLOAT_TYPES = {f"tensor({dtype})" for dtype in ("float", "double", "float16", "bfloat16")}


def test_definitions_are_those_of_onnx_runtime() -> None:
    """Inputs by name, types and whether they may be left out; attributes with their defaults."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    theirs = {s.name: s for s in state.get_all_operator_schema() if s.domain == DOMAIN}
    for name, ours in DEFINITIONS.items():
        schema = theirs[name]
        types = {t.type_param_str: set(t.allowed_type_strs) for t in schema.type_constraints}
        for one, other in zip(ours.inputs, schema.inputs, strict=True):
            assert (one.name, one.option.name) == (other.name, other.option.name)
            # float types are converted, too, for which ONNX Runtime has no kernel
            assert one.types - FLOAT_TYPES <= types.get(other.typeStr, {other.typeStr}), name
        assert len(schema.outputs) == ours.max_output
        attributes = {n: (a.required, a.default_value.SerializeToString()) for n, a in ours.attributes.items()}
        assert attributes == {n: (a.required, a._default_value) for n, a in schema.attributes.items()}


# --- what is refused


SCALE, ZERO, X = F(0.1), np.uint8(3), np.zeros((1, 2, 4, 4), np.uint8)
W, WZ = np.zeros((3, 2, 1, 1), np.int8), np.int8(0)
REAL = np.zeros((2, 3), F)


@pytest.mark.parametrize(
    ("op", "args", "code", "text"),
    [
        ("QuantizeLinear", [REAL, F(0), ZERO], "qnn.scale", "is 0: not positive"),
        ("QuantizeLinear", [REAL, F(-1), ZERO], "qnn.scale", "is -1: not positive"),
        ("QuantizeLinear", [REAL, F([1, np.nan, 2]), np.zeros(3, np.int8)], "qnn.scale", "[1] is nan"),
        ("DequantizeLinear", [X, F(np.inf), ZERO], "qnn.scale", "is inf"),
        ("QLinearConv", [X, SCALE, ZERO, W, F([1, 0, 1]), WZ, SCALE, ZERO], "qnn.scale", "[1] is 0"),
        ("QuantizeLinear", [REAL, F([1, 2]), np.zeros(2, np.int8)], "qnn.axis", "has 2 values"),
        ("DequantizeLinear", [X, F([1, 2, 3]), np.zeros(3, np.uint8)], "qnn.axis", "has 3 values"),
        ("QLinearConv", [X, SCALE, ZERO, W, F([1, 1]), WZ, SCALE, ZERO], "qnn.axis", "kernel_scale has 2 values"),
        ("QLinearConv", [X, SCALE, ZERO, W, SCALE, ZERO, SCALE, ZERO], "onnx-type", "w_zero_point"),
        ("QLinearConv", [X, SCALE, WZ, W, SCALE, WZ, SCALE, ZERO], "onnx-type", "x_zero_point"),
        ("DequantizeLinear", [X, SCALE, np.int32(300)], "onnx-type", "x_zero_point"),
        ("QLinearMatMul", [X, SCALE, ZERO, X, SCALE, WZ, SCALE, ZERO], "onnx-type", "b_zero_point"),
        ("QLinearConv", [X, F([1, 1]), ZERO, W, SCALE, WZ, SCALE, ZERO], "onnx-quant", "single value"),
    ],
)
def test_numbers_that_are_none(op: str, args: list[Any], code: str, text: str) -> None:
    with pytest.raises(AotcError) as caught:
        from_onnx(Case(op, args, domain="").model())
    (problem,) = caught.value.diagnostics
    assert problem.code == code
    assert text in problem.message
    assert problem.span is not None and problem.span.node == "the_node"


def test_a_quantized_tensor_where_floats_are_needed() -> None:
    case = Case("QuantizeLinear", [np.zeros((1, 2, 4, 4), F), SCALE, ZERO], domain="")
    model = case.model()
    kernel = numpy_helper.from_array(np.zeros((3, 2, 1, 1), np.uint8), "w")
    model.graph.initializer.append(kernel)
    model.graph.node.append(helper.make_node("Conv", ["o0", "w"], ["y"], "the_layer"))
    model.graph.output[0].name = "y"
    with pytest.raises(AotcError, match="node the_layer: X of Conv is of type uint8; it must be one of") as caught:
        from_onnx(model)
    assert "DequantizeLinear" in caught.value.diagnostics[0].hint
