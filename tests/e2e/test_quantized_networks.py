# SPDX-License-Identifier: Apache-2.0
"""Networks quantized by ONNX Runtime's tool and compiled: the bytes of ONNX Runtime's kernels, or at most their noise.

Networks are seeded.  Where the arithmetic between the first quantization and the last dequantization is on integers,
outputs are equal bit for bit.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc.checking.dequantized_model import expand_quantized_operators_to_qdq, remove_quantization_rounding
from aotc.checking.float64_reference import evaluate_model_in_float64
from aotc.checking.input_generation import draw_scaled_random_inputs
from aotc.checking.model_reference_runs import convert_inputs_to_float64
from aotc.checking.output_comparison import MAX_SNR_LOSS_DB, signal_to_noise_decibels
from aotc.checking.verify import verify
from aotc.driver.compile import CompileOptions
from aotc.ir import TensorType
from aotc.reporting.model_inspection import inspect_model
from tests.share import share, share_of_each
from tests.targets.firmware import board
from tests.targets.machines import has_vnni

ort: Any = pytest.importorskip("onnxruntime")
quantization: Any = pytest.importorskip("onnxruntime.quantization")


class Net:
    """A network of float32 as it is written down."""

    def __init__(self, *shape: int) -> None:
        self.rng = np.random.default_rng(3)
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.last = "x"

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int) -> str:
        scale = (2.0 / np.prod(shape[1:])) ** 0.5
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self.last = f"t{len(self.nodes)}"
        given = inputs or (self.nodes[-1].output[0] if self.nodes else "x",)
        self.nodes.append(helper.make_node(kind, given, [self.last], name=self.last, **attributes))
        return self.last

    def conv(self, x: str, o: int, i: int, k: int = 3, **more: Any) -> str:
        bias = self.constant(self.rng.standard_normal(o).astype(np.float32) * np.float32(0.1))
        more.setdefault("pads", [k // 2] * 4)
        return self.op("Conv", x, self.weight(o, i // more.get("group", 1), k, k), bias, **more)

    def model(self) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        y = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "net", [x], [y], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        return onnx.shape_inference.infer_shapes(model)


def mobile() -> Net:
    """Inverted residuals: depthwise convolutions, clipped, and a sum."""
    n = Net(1, 3, 16, 16)
    low, high = n.constant(np.float32(0)), n.constant(np.float32(6))
    x = n.op("Clip", n.conv("x", 8, 3, strides=[2, 2]), low, high)
    y = n.op("Clip", n.conv(x, 16, 8, 1), low, high)
    y = n.op("Clip", n.conv(y, 16, 16, group=16), low, high)
    y = n.op("Add", x, n.conv(y, 8, 16, 1))
    y = n.op("Flatten", n.op("GlobalAveragePool", y))
    n.op("Gemm", y, n.weight(5, 8), n.constant(np.ones(5, np.float32)), transB=1)
    return n


def fire() -> Net:
    """Convolutions side by side, joined, pooled, and a softmax."""
    n = Net(1, 3, 15, 13)
    x = n.op("Relu", n.conv("x", 7, 3))
    both = [n.op("Relu", n.conv(x, 6, 7, k)) for k in (1, 3)]
    y = n.op("MaxPool", n.op("Concat", *both, axis=1), kernel_shape=[3, 3], strides=[2, 2])
    # means of nine, never halfway between two integers: ONNX Runtime adds the zero point before it rounds
    y = n.op("AveragePool", n.op("Relu", n.conv(y, 9, 12)), kernel_shape=[3, 3], strides=[2, 2])
    n.op("Softmax", n.op("Flatten", y), axis=-1)
    return n


def gated() -> Net:
    """x * sigmoid(x), leaky ReLU, nearest neighbors, and a head in another order."""
    n = Net(1, 4, 8, 8)
    x = n.conv("x", 8, 4)
    x = n.op("Mul", x, n.op("Sigmoid", x))
    y = n.op("LeakyRelu", n.conv(x, 8, 8, strides=[2, 2]), alpha=0.1)
    y = n.op("Resize", y, "", n.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    y = n.op("Add", n.conv(y, 8, 8, 1), x)
    n.op("Reshape", n.op("Transpose", y, perm=[0, 2, 3, 1]), n.constant(np.array([1, -1, 8])))
    return n


def perceptron() -> Net:
    """Products of matrices and sums."""
    n = Net(4, 24)
    x = n.op("Relu", n.op("Add", n.op("MatMul", "x", n.weight(24, 32)), n.weight(32)))
    n.op("Add", n.op("MatMul", x, n.weight(32, 10)), n.weight(10))
    return n


NETS: dict[str, Callable[[], Net]] = {f.__name__: f for f in (mobile, fire, gated, perceptron)}


class Data:
    """Calibration: a few normal inputs."""

    def __init__(self, shape: Sequence[int]) -> None:
        rng = np.random.default_rng(9)
        self.items = iter([{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(4)])

    def get_next(self) -> Any:
        return next(self.items, None)


def quantized(net: Net, path: Path, how: str) -> Path:
    """The network in a file, quantized: "qdq-s8-channel" and so on."""
    form, dtype, *channel = how.split("-")
    weight = quantization.QuantType.QInt8
    kind = {"s8": quantization.QuantType.QInt8, "u8": quantization.QuantType.QUInt8}[dtype]
    source = path / "float.onnx"
    onnx.save(net.model(), source)
    forms = {"qdq": quantization.QuantFormat.QDQ, "qop": quantization.QuantFormat.QOperator}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        if form == "dynamic":
            quantization.quantize_dynamic(source, path / "int8.onnx", weight_type=weight, per_channel=bool(channel))
            return path / "int8.onnx"
        quantization.quantize_static(
            str(source),
            str(path / "int8.onnx"),
            Data(net.shape),
            quant_format=forms[form],
            activation_type=kind,
            weight_type=weight,
            per_channel=bool(channel),
        )
    return path / "int8.onnx"


HOW = ("qdq-u8", "qdq-u8-channel", "qdq-s8", "qdq-s8-channel", "qop-u8-channel", "qop-s8")


def largest(report: Any) -> float:
    """Return the greatest difference of all outputs on inputs of the usual size."""
    usual = (case for case in report.cases if not case.source.endswith(" times 0.1"))
    return max(o.max_abs for case in usual for o in case.outputs)


@pytest.mark.parametrize(("name", "how"), share(product(NETS, HOW), 2))
def test_bytes_of_onnx_runtime(name: str, how: str, tmp_path: Path) -> None:
    path = quantized(NETS[name](), tmp_path, how)
    report = verify(path, seeds=3)
    assert report.ok and report.reference == "onnxruntime's integer kernels"
    if name != "fire":
        assert not has_vnni() or largest(report) == 0
    # ONNX Runtime's softmax multiplies by 254 where the scale is 1 / 255, and it may round
    # small inputs to another neighbor than the definition does, which is what counts
    session, shape = CompileOptions(cflags=("-O1",)).compile_model(path).session(), NETS[name]().shape
    small = {
        s.source: s.arrays
        for s in draw_scaled_random_inputs({"x": TensorType(tuple(shape), "float32")}, {}, 25, within_scales=True)
    }
    usual = [{"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)} for seed in range(3)]
    for x in (*usual, small["seed 1000 times 0.1"], small["seed 1024 times 0.1"]):
        (want,) = evaluate_model_in_float64(
            expand_quantized_operators_to_qdq(onnx.load(path)), convert_inputs_to_float64(x)
        ).values()
        np.testing.assert_allclose(session.run(None, x)[0], want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("name", "how"), share(product(NETS, ["qdq-u8-channel", "qdq-s8-channel", "qop-s8"]), 2))
def test_all_levels_and_targets_give_equal_bits(name: str, how: str, tmp_path: Path) -> None:
    path, shape = quantized(NETS[name](), tmp_path, how), NETS[name]().shape
    rng = np.random.default_rng(5)
    inputs = [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(4)]
    found = {}
    for target, level in (("host", 3), ("host", 0), ("c", 3), ("c", 0), ("c", 1), ("host", 2)):
        session = CompileOptions(target=target, opt_level=level, cflags=("-O1",)).compile_model(path).session()
        found[target, level] = np.stack([session.run(None, x)[0] for x in inputs])
    first = found["host", 3]
    assert len(np.unique(first)) > 4
    assert {k: int((v != first).sum()) for k, v in found.items() if not np.array_equal(v, first)} == {}


@pytest.mark.parametrize(("name", "level"), share(product(["mobile", "fire"], [0, 3]), 1))
def test_a_microcontroller_gives_the_same_bits(name: str, level: int, tmp_path: Path) -> None:
    here, path = board("cortex-m4"), quantized(NETS[name](), tmp_path, "qdq-s8-channel")
    options = CompileOptions(
        target="cortex-m4", opt_level=level, build=False, output=tmp_path / "net", name="net", workspace_io=True
    )
    x = np.random.default_rng(5).standard_normal(NETS[name]().shape).astype(np.float32)
    (found,), _ = here.outputs(options.compile_model(path), [x], tmp_path)
    want = CompileOptions(cflags=("-O1",)).compile_model(path).session().run(None, {"x": x})[0]
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(("name", "how"), share_of_each([*NETS, "mixed"], ["qdq-u8-channel", "qdq-s8-channel"], 1))
def test_noise_is_that_of_onnx_runtime(name: str, how: str, tmp_path: Path) -> None:
    """What rounding to integers takes from the network of real numbers."""
    net = mixed() if name == "mixed" else NETS[name]()
    path = quantized(net, tmp_path, how)
    compiled = CompileOptions().compile_model(path).session()
    both = [ort.InferenceSession(str(p), providers=["CPUExecutionProvider"]) for p in (path, tmp_path / "float.onnx")]
    rng = np.random.default_rng(1)
    results: list[list[Any]] = [[], [], []]
    for _ in range(4):
        x = {"x": rng.standard_normal(net.shape).astype(np.float32)}
        for found, session in zip(results, (compiled, *both), strict=True):
            found.append(session.run(None, x)[0])
    ours, theirs, exact = map(np.stack, results)
    assert signal_to_noise_decibels(ours, exact) >= signal_to_noise_decibels(theirs, exact) - MAX_SNR_LOSS_DB


def mixed() -> Net:
    """Operators that integers do not reach among others that they do."""
    n = Net(1, 6, 12, 12)
    x = n.op("HardSwish", n.conv("x", 8, 6))
    x = n.op("PRelu", n.conv(x, 8, 8), n.constant(np.linspace(0.1, 0.4, 8, dtype=np.float32).reshape(8, 1, 1)))
    x = n.op("Resize", x, "", n.constant(np.array([1, 1, 2, 2], np.float32)), mode="linear")
    x = n.op("LayerNormalization", n.conv(x, 8, 8, 1), n.constant(np.ones(24, np.float32)))
    x = n.op("Pad", n.op("Tanh", x), n.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])))
    n.op("ReduceMean", n.conv(x, 8, 8), axes=[2, 3], keepdims=0)
    return n


def resized() -> Net:
    """Means of neighbors, which often lie between two integers."""
    n = Net(1, 4, 8, 8)
    n.op("Resize", n.conv("x", 8, 4), "", n.constant(np.array([1, 1, 2, 2], np.float32)), mode="linear")
    return n


@pytest.mark.parametrize("how", ["qdq-u8-channel", "qdq-s8-channel"])
def test_numbers_between_two_integers_are_judged_by_noise(how: str, tmp_path: Path) -> None:
    assert verify(quantized(resized(), tmp_path, how), seeds=2).ok


@pytest.mark.parametrize("how", ["qop-u8-channel", "dynamic-u8"])
def test_operators_of_integers_are_judged_by_noise(how: str, tmp_path: Path) -> None:
    """Between them some compute on real numbers, which are rounded to a neighbor now and then."""
    report = verify(quantized(mixed(), tmp_path, how), seeds=2)
    assert report.ok, report
    assert any("noise" in o.reason or o.ok for case in report.cases for o in case.outputs)


@pytest.mark.parametrize(("shape", "more"), [((), {}), ((3,), {"axis": 0}), ((3, 3), {"axis": 1, "block_size": 2})])
def test_dequantized_in_double_precision(shape: tuple[int, ...], more: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    stored = rng.integers(-128, 128, (3, 5)).astype(np.int8)
    scale, zero = np.asarray(rng.random(shape), np.float32), np.asarray(rng.integers(-128, 128, shape), np.int8)
    arrays = [numpy_helper.from_array(a, n) for n, a in (("s", scale), ("z", zero))]
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], **more)
    x = helper.make_tensor_value_info("x", TensorProto.INT8, stored.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, stored.shape)
    opset = 21 if "block_size" in more else 13
    model = helper.make_model(
        helper.make_graph([node], "one", [x], [y], arrays), opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    )
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, {"x": stored})[0]
    np.testing.assert_allclose(evaluate_model_in_float64(model, {"x": stored})["y"], wanted, rtol=1e-6)


def test_what_stays_on_real_numbers_is_listed(tmp_path: Path) -> None:
    rows = inspect_model(quantized(mixed(), tmp_path, "qdq-u8"), target="x86-64-v3")["left_real"]
    found = {row["operator"]: row for row in rows}
    assert found["nn.layer_norm"]["reason"] == "there is no rule for nn.layer_norm"
    assert found["image.resize2d"]["reason"] == "it weighs elements with real numbers"
    # PRelu, behind which the tool puts no QuantizeLinear
    assert found["where"]["reason"] == "its operands and its result are not all quantized"
    assert found["nn.layer_norm"]["nodes"] and "nn.conv2d" not in found
    assert inspect_model(tmp_path / "float.onnx", target="x86-64-v3")["left_real"] == []


def test_bytes_take_one_byte(tmp_path: Path) -> None:
    net = fire()
    path = quantized(net, tmp_path, "qdq-u8-channel")
    options = {"target": "x86-64-v3", "build": False}
    small, large = (CompileOptions(**options).compile_model(p).metadata for p in (path, tmp_path / "float.onnx"))
    assert small["memory"]["peak"] < 0.5 * large["memory"]["peak"]
    assert small["weights_bytes"] < large["weights_bytes"]


@pytest.mark.parametrize("target", ["c", "x86-64-v4-vnni"])
def test_operands_have_no_wider_copies(target: str, models: Path, tmp_path: Path) -> None:
    """A model of 1.3 MB: none of its large tensors is wider than a byte, also where nothing quantizes the sums."""
    options = CompileOptions(target=target, build=False)
    work = options.start_compilation(options.import_as_graph_module(models / "squeezenet10_int8_qdq.onnx"))
    assert work.emit_project(tmp_path / "net").metadata["weights_bytes"] < 1_600_000
    (program,) = work.scheduled_programs
    weights, data = ([s for s in program.storages_of_kind(k) if s.nbytes > 32 << 10] for k in ("constant", "temp"))
    assert len(weights) > 4 and {s.dtype.itemsize for s in weights} == {1}
    assert {s.dtype.itemsize for s in data} == {1} and len(data) > 20


@pytest.mark.parametrize("name", NETS)
def test_operators_of_integers_stand_for_those_of_real_numbers(name: str, tmp_path: Path) -> None:
    """Without rounding all forms of a network give about what the network gave before it was quantized."""
    model = NETS[name]().model()
    x = {"x": np.random.default_rng(9).standard_normal(NETS[name]().shape)}
    plain = evaluate_model_in_float64(model, x)
    found = {}
    for how in ("qdq-u8-channel", "qop-u8-channel", "qop-s8", "dynamic-u8"):
        work = remove_quantization_rounding(onnx.load(quantized(NETS[name](), tmp_path, how)))
        found[how] = evaluate_model_in_float64(work, x)
    for output, wanted in plain.items():
        assert min(signal_to_noise_decibels(f[output], wanted) for f in found.values()) > 25
        np.testing.assert_allclose(
            found["qop-u8-channel"][output], found["qdq-u8-channel"][output], rtol=1e-6, atol=1e-7
        )
