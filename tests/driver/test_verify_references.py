# SPDX-License-Identifier: Apache-2.0
"""Verification of Relay text against the interpreter, and of exported programs against torch."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.checking.model_reference_runs import convert_module_to_float64, make_relay_reference
from aotc.checking.verify import verify
from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import Compilation
from aotc.ir.diagnostics import AotcError
from aotc.relay.graph_api import infer_module
from aotc.relay.interpreter import evaluate
from aotc.relay.testing import mlp, resnet
from tests.cli.invoke import call

FAST = {"cflags": ("-O1",)}


def net() -> aotc.IRModule:
    """Two outputs: softmax(relu(x w) + b), and the indices of the largest."""
    rng = np.random.default_rng(0)
    x = relay.var("x", shape=(3, 6))
    w, b = (relay.const(rng.standard_normal(s).astype("float32")) for s in ((4, 6), (4,)))
    y = relay.nn.softmax(relay.nn.bias_add(relay.nn.relu(relay.nn.dense(x, w)), b))
    return aotc.IRModule.from_expr(
        relay.Tuple([y, relay.argmax(relay.cast(relay.cast(y, "int32"), "float32"), axis=1)])
    )


def saved(path: Path, module: aotc.IRModule) -> Path:
    path.write_text(module.astext(), encoding="utf-8")
    return path


def test_relay_text_passes(tmp_path: Path) -> None:
    report = verify(saved(tmp_path / "net.relay", net()), seeds=2, **FAST)
    assert report.ok and report.reference == "the numpy interpreter"
    assert [o.name for o in report.cases[0].outputs] == ["output0", "output1"]


def test_quantized_text_is_judged_by_noise(tmp_path: Path) -> None:
    """Sums of integers are rounded once where the text says that real numbers are."""
    rng = np.random.default_rng(2)

    def q(x: Any, scale: float) -> Any:
        return relay.qnn.op.dequantize(relay.qnn.op.quantize(x, scale, 3), scale, 3)

    w = relay.const(rng.integers(-127, 128, (40, 64)).astype("int8"))
    y = relay.nn.dense(q(relay.var("x", shape=(64, 64)), 0.03), relay.qnn.op.dequantize(w, 0.0117, 0))
    module = aotc.IRModule.from_expr(relay.exp(q(y, 0.0931) * relay.const(0.1)))
    report = verify(saved(tmp_path / "net.relay", module), seeds=2, **FAST)
    assert report.ok and report.reference == "the numpy interpreter"


def test_relay_text_from_the_command_line(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.relay", net())
    done = call("verify", path, "--seeds", "1", "--cflags", "-O1")
    assert done.code == 0 and "compared with the numpy interpreter: all outputs agree" in done.out
    assert call("compile", path, "-o", tmp_path / "net", "--no-build").code == 0
    assert (tmp_path / "net" / "include" / "net.h").exists()
    assert "relu" in call("inspect", path).out
    for arguments, message in (
        ((path, "--dim", "n=3"), "a module of the graph IR states the shapes of its inputs itself"),
        ((tmp_path / "missing.relay",), "No such file"),
    ):
        refused = call("verify", *arguments)
        assert refused.code == 2 and message in refused.err
    assert "other implementations cannot read" in call("bench", path).err


def test_files_that_hold_no_relay_text(tmp_path: Path) -> None:
    (tmp_path / "a.relay").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.relay").write_text('#[version = "0.0.5"]\ndef @main(%x: Tensor[(2), float32]) { nn.rely(%x) }\n')
    (tmp_path / "c.relay").write_text(net().astext(show_meta_data=False))
    for name, message in (("a", "is no text"), ("b", "nn.relu"), ("c", "meta")):
        with pytest.raises(AotcError, match=message):
            verify(tmp_path / f"{name}.relay", **FAST)


def broken(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    """What is compiled is off by a factor."""
    real = CompileOptions.start_compilation

    def wrong(options: CompileOptions, model: Any, **more: Any) -> Compilation:
        module = CompileOptions().import_as_graph_module(model)
        body = relay.multiply(module.main.body, relay.const(np.float32(scale)))
        return real(options, aotc.IRModule.from_expr(relay.Function(module.main.params, body)), **more)

    monkeypatch.setattr(CompileOptions, "start_compilation", wrong)


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    x = relay.var("x", shape=(4,))
    module = aotc.IRModule.from_expr(relay.exp(x))
    assert verify(module, seeds=1, **FAST).ok
    broken(monkeypatch, 1.001)
    report = verify(module, seeds=1, **FAST)
    assert not report.ok and report.cases[0].outputs[0].exact is not None


def test_double_precision_of_a_module() -> None:
    module, params = mlp.get_workload(1)
    wide = convert_module_to_float64(module)
    assert str(wide.main.ret_type) == "Tensor[(1, 10), float64]"
    arrays = {n: p.astype("float64") for n, p in params.items()} | {"data": np.ones((1, 1, 28, 28))}
    found = np.asarray(evaluate(wide, params=arrays))
    assert found.dtype == np.float64
    narrow = make_relay_reference(module, ["y"]).run({n: a.astype("float32") for n, a in arrays.items()})["y"]
    assert 0 < np.abs(found - narrow).max() < 1e-6
    text = '#[version = "0.0.5"]\ndef @main(%x: int32) { cast(%x, dtype="float32") }\n'
    assert str(convert_module_to_float64(relay.fromtext(text)).main.ret_type) == "float64"


def test_double_precision_of_functions_and_branches() -> None:
    x, y = (relay.var(n, shape=(2,)) for n in "xy")
    f = relay.var("f", relay.FuncType([relay.TensorType((2,), "float32")], relay.TensorType((2,), "float32")))
    square = relay.Function([y], y * y)
    body = relay.Let(f, square, relay.If(relay.const(True), relay.Call(f, [x]), x))
    wide = convert_module_to_float64(relay.transform.InferType()(aotc.IRModule.from_expr(relay.Function([x], body))))
    assert list(np.asarray(evaluate(wide, np.array([1e-30, 3])))) == pytest.approx([1e-60, 9], rel=1e-12, abs=0)


def test_a_workload_passes() -> None:
    module, params = resnet.get_workload(num_layers=8, batch_size=1, image_shape=(3, 28, 28), num_classes=10)
    bound = aotc.IRModule.from_expr(relay.bind_params_by_name(module.main, params))
    assert verify(bound, seeds=1, **FAST).ok


# --- exported programs


def exported(module: Any, *inputs: Any, **options: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.export.export(module.eval(), inputs, **options)


def test_an_exported_program_passes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.GELU())
    torch.export.save(exported(net, torch.zeros(1, 3, 8, 8)), tmp_path / "net.pt2")
    report = verify(tmp_path / "net.pt2", seeds=2, **FAST)
    assert report.ok and report.reference.startswith("torch ")
    done = call("verify", tmp_path / "net.pt2", "--seeds", "1", "--cflags", "-O1")
    assert done.code == 0 and "all outputs agree" in done.out


def test_nested_outputs_constants_and_dynamic_inputs() -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor([2.0, 3.0]), persistent=False)

        def forward(self, x: Any, k: int, pair: Any) -> Any:
            narrow = x.to(torch.float32) + torch.full((2,), 0.5, dtype=torch.float32)
            return {"sum": narrow * self.scale + k, "pair": [pair[0] - pair[1], x.argmax(dim=1)]}

    pair = torch.zeros(2), torch.ones(2)
    shapes = ({0: torch.export.Dim("n", min=2, max=9)}, None, (None, None))
    program = exported(Net(), torch.zeros(4, 2), 3, pair, dynamic_shapes=shapes)
    (symbol,) = map(str, program.range_constraints)
    report = verify(program, seeds=1, dims={symbol: 5}, **FAST)
    assert report.ok and len(report.cases[0].outputs) == 3
    report = verify(program, seeds=1, **FAST)
    assert report.ok
    assert {f"{symbol} {size}, seed 0" for size in (2, 9)} < {case.source for case in report.cases}


def test_a_wrong_program_fails_by_the_exact_result(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    program = exported(torch.nn.Softplus(), torch.zeros(5))
    assert verify(program, seeds=1, **FAST).ok
    broken(monkeypatch, 1.0005)
    outputs = verify(program, seeds=1, **FAST).cases[0].outputs
    assert not outputs[0].ok and outputs[0].exact is not None and outputs[0].reference_exact is not None
    assert 0 < outputs[0].reference_exact < 1e-6 < outputs[0].exact


def test_the_judge_of_torch_is_bounded() -> None:
    """By weights, values that are read later and the windows that a convolution copies: all in double precision."""
    torch = pytest.importorskip("torch")
    from aotc.checking.reference_torch import make_torch_reference

    net = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 5, padding=2), torch.nn.ReLU(), torch.nn.Conv2d(8, 1, 1))
    program = exported(net, torch.zeros(1, 8, 64, 64))
    (name,) = program.graph_signature.user_inputs
    x = {name: np.random.default_rng(0).standard_normal((1, 8, 64, 64)).astype("float32")}
    value = 8 * 64 * 64 * 8
    exact = make_torch_reference(program, ["y"], 30 * value).exact(x)
    assert exact is not None and exact["y"].dtype == np.float64
    with pytest.raises(AotcError, match=r"in double precision needs about .* MiB at node 'conv2d'") as refused:
        make_torch_reference(program, ["y"], 20 * value).exact(x)
    assert refused.value.diagnostics[0].code == "memory"


def test_the_judge_of_relay_is_bounded() -> None:
    rng = np.random.default_rng(0)
    y = x = relay.var("x", shape=(1, 8, 64, 64))
    for _ in range(10):
        weight = relay.const(rng.standard_normal((8, 8, 3, 3)).astype("float32") / 6)
        y = relay.nn.relu(relay.nn.conv2d(y, weight, kernel_size=(3, 3), channels=8, padding=(1, 1)))
    module = infer_module(aotc.IRModule.from_expr(y))
    inputs = {x.name_hint: rng.standard_normal((1, 8, 64, 64)).astype("float32")}
    value = 8 * 64 * 64 * 8
    budget = 8 * value
    tracemalloc.start()
    try:
        exact = make_relay_reference(module, ["y"], budget).exact(inputs)
        assert tracemalloc.get_traced_memory()[1] < budget
    finally:
        tracemalloc.stop()
    assert exact is not None and exact["y"].dtype == np.float64
    with pytest.raises(AotcError, match=r"in double precision needs about .* MiB at operator ") as refused:
        make_relay_reference(module, ["y"], 4 * value).exact(inputs)
    assert refused.value.diagnostics[0].code == "memory"
    with pytest.raises(AotcError, match="the reference needs about"):
        make_relay_reference(module, ["y"], value).run(inputs)
