# SPDX-License-Identifier: Apache-2.0
"""Integer inputs and outputs of models: sessions, metadata and header describe them, and the header converts them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from aotc_runtime_c import include_dir
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc import relay
from aotc.ir import DType, Quantization
from aotc.relay.interpreter import evaluate
from aotc.runtime.session import Session
from tests.cli.invoke import DIGITS, call, refused
from tests.conftest import require_tool
from tests.targets.machines import has_vnni

WARNINGS = ["-O1", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"]
LANGUAGES = {"c": ("gcc", "-std=c99"), "c++": ("g++", "-std=c++11")}
TWIN = DIGITS.parent / "digits_int8.onnx"


def network(dtype: str, scales: list[float], zeros: list[int]) -> aotc.IRModule:
    """y = relu(x), all of it quantized; several scales lie along the axis of 3."""
    x = relay.var("x", shape=(2, 3, 4))
    scale, zero = np.float32(scales), np.int32(zeros)
    numbers = [relay.const(v if len(scales) > 1 else v[0]) for v in (scale, zero)]
    quantized = relay.qnn.op.quantize(x, *numbers, axis=1, out_dtype=dtype)
    real = relay.nn.relu(relay.qnn.op.dequantize(quantized, *numbers, axis=1))
    result = relay.qnn.op.quantize(real, relay.const(0.25), relay.const(0), out_dtype=dtype)
    return aotc.IRModule.from_expr(
        relay.Function([x], relay.qnn.op.dequantize(result, relay.const(0.25), relay.const(0)))
    )


def hard_values(meaning: Quantization) -> np.ndarray:
    """Floats at and next to where integers change, beyond both ends, and specials; three for each."""
    scale = np.float32(np.asarray(meaning.scales)[:, None])
    halves = np.arange(-300, 300, dtype=np.float32) / 2
    near = (halves * scale).reshape(-1)
    special = np.float32([0, -0.0, np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-45, 3.4e38])
    found = np.concatenate([near, np.nextafter(near, np.float32(9e9)), np.nextafter(near, np.float32(-9e9)), special])
    return np.repeat(found, 3).astype(np.float32)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("dtype", "scales", "zeros"),
    [
        ("int8", [0.1], [-128]),
        ("uint8", [1 / 255], [0]),
        ("uint8", [3e-30], [255]),
        ("int8", [0.5, 0.01, 7.0], [0, 5, -100]),
    ],
)
def test_functions_of_the_header(
    tmp_path: Path, language: str, dtype: str, scales: list[float], zeros: list[int]
) -> None:
    """They give what the operators mean, for all kinds of floats."""
    compiler, standard = LANGUAGES[language]
    require_tool(compiler)
    made = aotc.compile(network(dtype, scales, zeros), output=tmp_path / "net", name="net", target="c", io_dtype=dtype)
    meaning = made.session().get_inputs()[0].quantization
    assert meaning is not None
    sources = [Path(__file__).parent / "quantized.c", *(tmp_path / "net" / "src").glob("*.c")]
    flags = [*WARNINGS, f"-I{tmp_path}/net/include", f"-I{tmp_path}/net/src", f"-Dnet_integer={dtype}_t"]
    test = tmp_path / "host.o"
    subprocess.run([compiler, standard, *flags, "-x", language, "-c", sources[0], "-o", test], check=True)
    program = tmp_path / "host"
    library = [path for path in sources[1:] if not path.name.endswith("_entry.c")]
    runtime = [*(tmp_path / "net" / "runtime").glob("*.c")]
    flags = [f"-I{tmp_path}/net/include", f"-I{include_dir()}"]
    objects = []
    for source in (*library, *runtime):
        objects.append(tmp_path / f"{source.stem}.o")
        subprocess.run(["gcc", "-std=c99", *flags, "-c", source, "-o", objects[-1]], check=True)
    subprocess.run([compiler, test, *objects, "-lm", "-o", program], check=True)
    values = hard_values(meaning)
    done = subprocess.run([program], input=values.tobytes(), capture_output=True, check=True)
    rows = np.frombuffer(done.stdout, np.int32).reshape(-1, 2)
    stated = done.stderr.decode().split()
    assert [np.float32(s) for s in stated[:-1:2]] == [np.float32(s) for s in scales]
    assert list(map(int, stated[1:-1:2])) == zeros and int(stated[-1]) == (1 if len(scales) > 1 else -1)
    x = values.reshape(1, -1, 3, 1) if meaning.axis == 1 else values
    laid = np.moveaxis(x, 2, 1) if meaning.axis == 1 else x
    whole = meaning.quantize(laid)
    expected = np.moveaxis(whole, 1, 2).reshape(-1) if meaning.axis == 1 else whole
    np.testing.assert_array_equal(rows[:, 0], expected)
    real = meaning.dequantize(whole)
    real = np.moveaxis(real, 1, 2).reshape(-1) if meaning.axis == 1 else real
    np.testing.assert_array_equal(rows[:, 1].copy().view(np.float32), real)


@pytest.mark.parametrize(("dtype", "zero"), [("int8", -3), ("uint8", 200), ("int16", 5), ("int4", -8)])
@pytest.mark.parametrize("axis", [None, 0])
def test_python_quantizes_as_the_operator_does(dtype: str, zero: int, axis: int | None) -> None:
    scales, zeros = (np.float32([0.1, 3.0]), np.int32([zero, 0])) if axis == 0 else (np.float32(0.1), np.int32(zero))
    x = relay.var("x", shape=(2, 50))
    meaning = Quantization(DType(dtype), tuple(np.ravel(scales).tolist()), tuple(np.ravel(zeros).tolist()), axis)
    numbers = relay.const(scales), relay.const(zeros)
    values = np.random.default_rng(0).standard_normal((2, 50)).astype(np.float32) * 20
    values[:, :6] = np.nan, np.inf, -np.inf, 0.05, 0.15, 0.25
    quantized = relay.qnn.op.quantize(x, *numbers, axis=axis or 0, out_dtype=dtype)
    whole = evaluate(aotc.IRModule.from_expr(relay.Function([x], quantized)), values)
    np.testing.assert_array_equal(meaning.quantize(values), whole)
    q = relay.var("q", shape=(2, 50), dtype=dtype)
    real = relay.qnn.op.dequantize(q, *numbers, axis=axis or 0)
    expected = evaluate(aotc.IRModule.from_expr(relay.Function([q], real)), whole)
    np.testing.assert_array_equal(meaning.dequantize(whole), expected)


def integers(path: Path, *flags: str) -> Session:
    assert call("compile", TWIN, "-o", path, "--cflags=-O1", *flags).code == 0
    return aotc.load(path)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_network_of_integers_from_edge_to_edge(tmp_path: Path, dtype: str) -> None:
    """It gives the bits of the network with floats at its edges."""
    floats = integers(tmp_path / "floats")
    made = integers(tmp_path / "integers", "--io-dtype", dtype)
    (x,), (y,) = made.get_inputs(), made.get_outputs()
    assert (x.dtype, y.dtype) == (dtype, dtype) and x.quantization and y.quantization
    assert x.quantization.zero_point == y.quantization.zero_point == (-128 if dtype == "int8" else 0)
    metadata = json.loads((tmp_path / "integers" / "metadata.json").read_text())
    stated = metadata["inputs"][0]["quantization"]
    assert stated == {"scale": x.quantization.scale, "zero_point": x.quantization.zero_point, "axis": None}
    assert "quantization" not in json.loads((tmp_path / "floats" / "metadata.json").read_text())["inputs"][0]
    assert floats.get_inputs()[0].quantization is None
    header = (tmp_path / "integers" / "include" / "digits_int8.h").read_text()
    assert f"DIGITS_INT8_INPUT_IMAGE_ZERO_POINT ({x.quantization.zero_point})" in header
    images = np.fromfile(DIGITS.parent / "digits_test.bin", np.uint8).reshape(-1, 65)[:40, :64]
    for image in images.reshape(-1, 1, 1, 8, 8).astype(np.float32) / 16:
        (expected,) = floats.run(None, {"image": image})
        (scores,) = made.run(None, {"image": x.quantization.quantize(image)})
        np.testing.assert_array_equal(y.quantization.dequantize(scores), expected)


def test_one_edge_by_its_name(tmp_path: Path) -> None:
    made = integers(tmp_path / "net", "--io-dtype", "uint8", "--io-dtype", "scores:float32")
    assert [made.get_inputs()[0].dtype, made.get_outputs()[0].dtype] == ["uint8", "float32"]


def test_models_of_floats_are_refused() -> None:
    text = refused("compile", DIGITS, "-o", "nowhere", "--no-build", "--io-dtype", "int8")
    assert "input 'image' cannot be int8" in text and "output 'scores' cannot be int8" in text
    assert "--io-dtype image:float32" in text
    assert "is no data type" in refused("compile", TWIN, "-o", "nowhere", "--no-build", "--io-dtype", "int16")


def test_unknown_shapes_are_told_beside_edges_that_are_no_integers() -> None:
    x, y = (relay.var(name, shape=(relay.Any(), 4)) for name in "xy")
    with pytest.raises(aotc.AotcError) as caught:
        aotc.compile(aotc.IRModule.from_expr(relay.exp(relay.add(x, y))), build=False, io_dtype={"x": "int8"})
    assert [d.code for d in caught.value.diagnostics] == ["dynamic-shape", "io-dtype"]


def test_the_integers_of_a_model_are_stated_without_being_asked(tmp_path: Path) -> None:
    """A model whose interface is integers from the beginning."""
    scale, zero = (numpy_helper.from_array(v, n) for n, v in (("s", np.float32(0.5)), ("z", np.uint8(9))))
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["x"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    sides = [helper.make_tensor_value_info(n, TensorProto.UINT8, [4]) for n in "qy"]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], [scale, zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.checker.check_model(model)
    session = aotc.compile(model, cflags=["-O1"]).session()
    found = [info.quantization for info in (*session.get_inputs(), *session.get_outputs())]
    assert found == [Quantization(DType("uint8"), (0.5,), (9,))] * 2
    np.testing.assert_array_equal(session.run(None, {"q": np.uint8([0, 8, 10, 255])})[0], [9, 9, 10, 255])


def test_verify_gives_the_reference_what_integers_stand_for() -> None:
    done = call("verify", TWIN, "--io-dtype", "int8", "--cflags=-O1", "--seeds", "2", "--no-check-compiler", "--json")
    cases = json.loads(done.out)["cases"]
    assert done.code == 0 and [case["source"] for case in cases[:2]] == ["seed 0", "seed 1"]
    outputs = [output for case in cases for output in case["outputs"]]
    assert all(output["ok"] for output in outputs)
    if has_vnni():
        # ONNX Runtime's softmax multiplies by the floor of the inverse scale: one step of 1/255 at most
        assert all(output["max_abs"] < 1.01 / 255 for output in outputs)
    assert "cannot be bisected" in refused("verify", TWIN, "--io-dtype", "int8", "--bisect")
