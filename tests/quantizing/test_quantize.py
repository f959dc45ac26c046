# SPDX-License-Identifier: Apache-2.0
"""`aotc.quantize` writes an integer model, and its report states the right errors, sizes and times."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc.cli.commands.quantize import render_quantization_report
from aotc.quantizing.layer_errors import (
    MIN_REPORTED_DB,
    Layer,
    measure_error_of_each_layer,
    power_ratio_decibels,
    suggest_layers_to_leave_in_float,
)
from aotc.quantizing.onnxruntime_quantizer import (
    CHANNEL_OPSET,
    Settings,
    prepare_for_quantization,
    quantize_prepared_model,
)
from tests.cli.invoke import DIGITS, call, refused, save, value
from tests.conftest import skip_or_fail_without
from tests.quantizing.models import digits

if importlib.util.find_spec("onnxruntime") is None:
    skip_or_fail_without("onnxruntime")
QUICK = {"cflags": ["-O1"], "seconds": 0.0}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Report of quantizing the digits network."""
    output = tmp_path_factory.mktemp("quantize") / "digits_int8.onnx"
    return aotc.quantize(DIGITS, output, digits(30), per_channel=True, **QUICK)


def run(model: onnx.ModelProto | str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The first output, as ONNX Runtime computes it without optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, arrays)[0])


def test_the_model_that_is_written(report: dict[str, Any]) -> None:
    made = onnx.load(report["output"])
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("QuantizeLinear") == 8 and {o.domain for o in made.opset_import} == {""}
    weights = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    assert weights["w2_quantized"].dtype == np.int8 and weights["w2_scale"].shape == (16,)
    arrays = digits(3)[2]
    session = aotc.compile(report["output"], cflags=["-O1"]).session()
    np.testing.assert_allclose(session.run(None, arrays)[0], run(report["output"], arrays), atol=0.02)


_SEVERITY_SCRIPT = """
import sys
import numpy as np
import onnx
import onnxruntime
import aotc
from onnx import helper, numpy_helper
sys.path.insert(0, sys.argv[1])
from tests.quantizing.models import digits

# an initializer that no node reads: ONNX Runtime warns of it
model = onnx.load(sys.argv[2])
model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "unread"))

def warn(severity):
    if severity is not None:
        onnxruntime.set_default_logger_severity(severity)
    print("before", severity, file=sys.stderr, flush=True)
    onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    print("after", file=sys.stderr, flush=True)

warn(4)
onnxruntime.set_default_logger_severity(int(sys.argv[3]))
print("quantizing", file=sys.stderr, flush=True)
aotc.quantize(model, "out.onnx", digits(2), build=False)
warn(None)
"""


@pytest.mark.parametrize("severity", [2, 4])
def test_the_log_severity_of_the_caller_remains(severity: int, tmp_path: Path) -> None:
    """ONNX Runtime writes as before the quantization, and nothing during it."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", _SEVERITY_SCRIPT, root, str(DIGITS), str(severity)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    silent, _, rest = done.stderr.partition("quantizing\n")
    assert silent == "before 4\nafter\n"
    during, _, after = rest.partition("before None\n")
    assert "onnxruntime" not in during
    assert ("onnxruntime" in after) == (severity < 4), after


def test_sizes_and_times(report: dict[str, Any]) -> None:
    plain, small = report["float32"], report["quantized"]
    assert small["weights_bytes"] < plain["weights_bytes"] and small["arena_bytes"] < plain["arena_bytes"]
    assert plain["library_bytes"] > 0 and plain["milliseconds"]["min"] > 0
    assert report["ratio"] == small["milliseconds"]["min"] / plain["milliseconds"]["min"]
    assert (report["calibration_sets"], report["compared_sets"]) == (30, 30)


def test_errors_of_outputs(report: dict[str, Any]) -> None:
    (row,) = report["outputs"]
    pairs = [(run(str(DIGITS), a), run(report["output"], a)) for a in digits(30)]
    noise, signal = (sum(float(np.square(v).sum()) for v in side) for side in zip(*((y - x, x) for x, y in pairs)))  # noqa: B905
    assert row["name"] == "scores" and row["snr_db"] == pytest.approx(10 * np.log10(signal / noise), abs=1.5)


def test_outputs_whose_size_a_run_finds() -> None:
    """The quantized model rounds a small product to 0, which the float model finds."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("NonZero", ["product"], ["found"]),
        helper.make_node("Transpose", ["found"], ["rows"]),
    ]
    outputs = [("product", TensorProto.FLOAT), ("rows", TensorProto.INT64)]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    sets = [{"x": np.array([row], np.float32)} for row in ([1, 1, 1, 1], [1, 1, 1, 1e-6])]
    found = aotc.quantize(made, None, sets, **QUICK)
    product, rows = found["outputs"]
    assert (product["sets_of_other_shape"], rows["sets_of_other_shape"]) == (0, 1)
    assert (rows["snr_db"], rows["max_abs"]) == (None, 0)
    shown = "\n".join(str(part) for part in render_quantization_report(found))
    assert "rows: exact, largest error 0.00e+00; another shape than in the float model for 1 of 2 sets" in shown


def test_errors_of_layers_are_those_of_each_alone(report: dict[str, Any]) -> None:
    """The reported error of a layer is that of a model in which only this layer is quantized."""
    prepared = prepare_for_quantization(onnx.load(DIGITS), "int8")
    names = [node.name for node in prepared.graph.node]
    reported = {row["node"]: row["snr_db"] for row in report["layers"]}
    # convolutions and what is behind them are one layer
    assert sorted(reported) == sorted(name for name in names if "relu" not in name)
    others = [name for name in names if name != "dense"]
    alone = quantize_prepared_model(prepared, digits(30), Settings(per_channel=True, exclude=others))
    for model, name in ((prepared, "logits"), (alone, "logits_DequantizeLinear_Output")):
        del model.graph.output[:]
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 10]))
    pairs = [(run(prepared, a), run(alone, a)) for a in digits(30)]
    noise = sum(float(np.square(x - y).sum()) for x, y in pairs)
    signal = sum(float(np.square(x).sum()) for x, _ in pairs)
    assert reported["dense"] == pytest.approx(10 * np.log10(signal / noise), abs=0.1)


def test_scales_for_channels_of_old_models(models: Path) -> None:
    """Models of an ONNX version without per-axis scales, with constants among the inputs, get per-channel scales."""
    model = onnx.load(models / "mnist8.onnx")
    assert model.opset_import[0].version < CHANNEL_OPSET and len(model.graph.input) > 1
    prepared = prepare_for_quantization(model, "int8", per_channel=True)
    rng = np.random.default_rng(0)
    sets = [{"Input3": rng.standard_normal((1, 1, 28, 28)).astype(np.float32)} for _ in range(4)]
    made = quantize_prepared_model(prepared, sets, Settings(per_channel=True))
    found, wanted = (run(m, sets[0]) for m in (made, prepared))
    assert np.abs(found - wanted).max() < 0.2 * wanted.std()
    assert any(a.name == "axis" for n in made.graph.node if n.op_type == "DequantizeLinear" for a in n.attribute)


def test_the_worst_layer_is_first_and_excluded_on_request(tmp_path: Path) -> None:
    """A feature that is small, and has large weights: one scale for all features is poor, and float makes it good."""
    rng = np.random.default_rng(0)
    sizes = np.array([1000.0, *np.ones(7)], np.float32)
    tensors = {f"w{k}": rng.standard_normal((8, 8)).astype(np.float32) for k in range(4)}
    tensors["w0"] *= sizes[:, None]
    names = [*(f"t{k}" for k in range(4)), "y"]
    nodes = [helper.make_node("MatMul", [names[k], f"w{k}"], [names[k + 1]], name=f"layer{k}") for k in range(4)]
    model = save(tmp_path / "m.onnx", nodes, [value("t0", (16, 8))], [value("y", (16, 8))], **tensors)
    sets = [{"t0": rng.standard_normal((16, 8)).astype(np.float32) / sizes} for _ in range(4)]
    found = aotc.quantize(model, None, sets, **QUICK)
    assert found["suggested_exclusions"] == ["layer0"] and found["layers"][0]["node"] == "layer0"
    better = aotc.quantize(model, None, sets, exclude=["layer0"], **QUICK)
    assert "layer0" not in [row["node"] for row in better["layers"]] and better["suggested_exclusions"] == []
    assert better["outputs"][0]["snr_db"] > found["outputs"][0]["snr_db"] + 10


def test_suggestions_need_a_culprit() -> None:
    good = [Layer(f"{k}", "Conv", 40.0 + k) for k in range(4)]
    assert (
        suggest_layers_to_leave_in_float(good)
        == suggest_layers_to_leave_in_float([])
        == suggest_layers_to_leave_in_float([Layer("a", "Conv", None)])
        == []
    )
    assert suggest_layers_to_leave_in_float([Layer("bad", "Conv", 12.0), *good]) == ["bad"]
    assert suggest_layers_to_leave_in_float([Layer(f"{k}", "Conv", 12.0) for k in range(4)]) == []


def test_decibels() -> None:
    assert power_ratio_decibels(100.0, 1.0) == pytest.approx(20) and power_ratio_decibels(1.0, 0.0) is None
    assert power_ratio_decibels(0.0, 1.0) == MIN_REPORTED_DB


@pytest.mark.parametrize(("method", "weights"), [("percentile", "int8"), ("minmax", "int4")])
def test_methods_and_weights(method: str, weights: str) -> None:
    found = aotc.quantize(DIGITS, None, digits(10), build=False, method=method, weights=weights, per_channel=True)
    assert "float32" not in found and found["output"] is None
    assert 10 < found["layers"][0]["snr_db"] < 45


def test_nodes_without_names_get_some(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("MatMul", ["y", "w"], ["z"])]
    model = save(tmp_path / "m.onnx", nodes, [value("x", ("n", 8))], [value("z", ("n", 8))], w=weights)
    sets = [{"x": np.random.default_rng(k).standard_normal((4, 8)).astype(np.float32)} for k in range(3)]
    found = aotc.quantize(model, tmp_path / "q.onnx", sets, dims={"n": 4}, exclude=["MatMul#1"], **QUICK)
    assert [row["node"] for row in found["layers"]] == ["MatMul#0"]
    assert found["outputs"][0]["snr_db"] > 25


def test_layers_in_branches_are_left_out() -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "b", [], [value("t", (2, 2))])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="product"),
        helper.make_node("If", ["yes"], ["z"], name="choice", then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["y", "z"], ["out"], name="sum"),
    ]
    tensors = [
        numpy_helper.from_array(np.eye(2, dtype=np.float32) * 3, "w"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    graph = helper.make_graph(nodes, "g", [value("x", (2, 2))], [value("out", (2, 2))], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    sets = [{"x": np.random.default_rng(k).standard_normal((2, 2)).astype(np.float32)} for k in range(2)]
    made = quantize_prepared_model(model, sets, Settings())
    names = {"product", "choice", "sum"}
    assert {layer.node for layer in measure_error_of_each_layer(model, made, names, sets)} == {"product", "sum"}


# --- the command


def test_the_command(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", image=np.concatenate([a["image"] for a in digits(12)]))
    arguments = ["--calibration", tmp_path / "data.npz", "--cflags=-O1", "--seconds", "0"]
    shown = call("quantize", DIGITS, "-o", tmp_path / "q.onnx", *arguments, "--exclude", "softmax")
    assert shown.code == 0
    for text in ("conv2", "Gemm", " dB", "scores", "arena", "min us", "of the time of the float one", "q.onnx"):
        assert text in shown.out
    assert "Softmax" not in shown.out
    data = json.loads(call("quantize", DIGITS, "-o", tmp_path / "q.onnx", *arguments, "--no-build", "--json").out)
    assert data["calibration_sets"] == 12 and "ratio" not in data
    assert {"node", "operator", "snr_db"} == data["layers"][0].keys()
    shown = call("quantize", DIGITS, "-o", tmp_path / "q.onnx", *arguments, "--no-build")
    assert "times        not measured" in shown.out
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"))


def test_integers_at_the_edges_of_what_is_measured(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", image=digits(5)[4]["image"])
    for flags in ([], ["--io-dtype", "int8"]):
        arguments = ["--calibration", tmp_path / "data.npz", "--cflags=-O1", "--seconds", "0", *flags]
        shown = json.loads(call("quantize", DIGITS, "-o", tmp_path / "q.onnx", *arguments, "--json").out)
        assert shown["outputs"][0]["snr_db"] > 25


def test_refusals(tmp_path: Path) -> None:
    data, out = tmp_path / "data.npz", tmp_path / "q.onnx"
    np.savez(data, image=digits(1)[0]["image"])
    arguments = ("-o", out, "--calibration", data)
    text = refused("quantize", DIGITS, *arguments, "--exclude", "conv3", "--exclude", "nothing")
    assert "no node 'conv3'" in text and "no node 'nothing'" in text
    assert "nothing of the model is quantized" in refused(
        "quantize", DIGITS, *arguments, *(f"--exclude={n.name}" for n in onnx.load(DIGITS).graph.node)
    )
    assert "does not end in .onnx" in refused("quantize", DIGITS, "-o", tmp_path / "q.txt", "--calibration", data)
    twin = DIGITS.parent / "digits_int8.onnx"
    assert "is quantized already: node 'image_QuantizeLinear'" in refused("quantize", twin, *arguments)
    (tmp_path / "net.relay").write_text('#[version = "0.0.5"]\ndef @main(%x: Tensor[(2), float32]) { exp(%x) }')
    assert "only ONNX models are quantized" in refused("quantize", tmp_path / "net.relay", *arguments)
    np.savez(data, image=np.full((1, 1, 8, 8), np.nan, np.float32))
    assert "64 of 64 values are NaN" in refused("quantize", DIGITS, *arguments)
    assert not out.exists()


def flexible(path: Path, external: bool) -> Path:
    """A model whose batch is dynamic, with a target shape that two nodes share, and one that none reads."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "f": rng.standard_normal((10, 128)).astype(np.float32),
        "rest": np.array([128], np.int64),
        "unread": np.array([-1, 128], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["x"], ["batch"], start=0, end=1),
        helper.make_node("Concat", ["batch", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["c", "target"], ["flat"], allowzero=1),
        helper.make_node("Reshape", ["flat", "target"], ["again"]),
        helper.make_node("Gemm", ["again", "f"], ["y"], transB=1, name="gemm"),
    ]
    graph = helper.make_graph(
        nodes,
        "flexible",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    np.savez(path.with_suffix(".npz"), x=rng.standard_normal((4, 3, 4, 4)).astype(np.float32))
    return path


@pytest.mark.parametrize("external", [False, True])
def test_initializers_that_are_external_shared_or_unread(tmp_path: Path, external: bool) -> None:
    model = flexible(tmp_path / "m.onnx", external)
    arguments = ["-o", tmp_path / "q.onnx", "--calibration", model.with_suffix(".npz"), "--no-build"]
    shown = call("quantize", model, *arguments, "--dim", "batch=1")
    assert shown.code == 0, shown.err
    assert "Traceback" not in shown.err
    assert {"QuantizeLinear", "DequantizeLinear"} <= {n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node}


def test_dynamic_dimensions_are_one_error_with_the_flags_to_add(tmp_path: Path) -> None:
    model = flexible(tmp_path / "m.onnx", external=False)
    loaded = onnx.load(model)
    del loaded.graph.node[1:]
    loaded.graph.output[0].CopyFrom(helper.make_tensor_value_info("c", TensorProto.FLOAT, None))
    onnx.save(loaded, model)
    text = refused("quantize", model, "-o", tmp_path / "q.onnx", "--calibration", model.with_suffix(".npz"))
    assert "inputs with dynamic dimensions" in text and "--dim batch=1" in text


def test_memories_of_a_board_before_and_after(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", image=digits(3)[0]["image"])
    arguments = ["-o", tmp_path / "q.onnx", "--calibration", tmp_path / "data.npz", "--target", "cortex-m4"]
    found = json.loads(call("quantize", DIGITS, *arguments, "--json").out)
    assert "ratio" not in found
    for memory in ("ram_bytes", "flash_bytes"):
        assert found["quantized"][memory] > 0
    assert found["quantized"]["ram_bytes"] < found["float32"]["ram_bytes"]
    shown = call("quantize", DIGITS, *arguments)
    assert "RAM" in shown.out and "flash" in shown.out


def test_the_missing_package_is_named() -> None:
    with mock.patch("importlib.util.find_spec", lambda name: None), pytest.raises(aotc.AotcError) as caught:
        aotc.quantize(DIGITS, None, digits(1))
    assert caught.value.diagnostics[0].hint == "pip install onnxruntime"


def test_unknown_settings() -> None:
    for setting in ({"method": "entropy"}, {"weights": "int3"}):
        with pytest.raises(aotc.AotcError) as caught:
            Settings(**setting)  # type: ignore[arg-type]
        assert "unknown " in str(caught.value.diagnostics[0])
