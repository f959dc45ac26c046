# SPDX-License-Identifier: Apache-2.0
"""Whole networks compiled to C against torch, including inputs, outputs and options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import aotc
from aotc import relay
from aotc.cli.main import main
from aotc.contrib import graph_executor
from tests.frontend_pytorch.cases import all_cases
from tests.frontend_pytorch.frontend_comparison import NAMES, as_module, compare, exported, leaves, traced, values
from tests.frontend_pytorch.small_networks import NETS, ResNet, image, spread_statistics
from tests.share import share


def network(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], list[np.ndarray[Any, Any]]]:
    torch.manual_seed(0)
    make, example = NETS[name]
    net, inputs = spread_statistics(make()), example()
    with torch.no_grad():
        return net, inputs, leaves(net(*inputs))


@pytest.mark.parametrize("name", share(NETS, 2))
def test_exported_network_in_c(name: str) -> None:
    net, inputs, wanted = network(name)
    module = exported(net, inputs)
    names = [p.name for p in module.main.params]
    session = aotc.compile(module).session()
    found = session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})
    compare(found, wanted)


@pytest.mark.parametrize("name", ["resnet", "encoder", "recurrent"])
def test_traced_network_through_relay_build(name: str) -> None:
    net, inputs, wanted = network(name)
    module, params = traced(net, inputs)
    with aotc.transform.PassContext(opt_level=3):
        lib = relay.build(module, "llvm", params=params)
    executor = graph_executor.GraphModule(lib["default"](aotc.cpu()))
    executor.run(**{n: x.numpy() for n, x in zip(NAMES, inputs, strict=False)})
    compare([executor.get_output(k).numpy() for k in range(len(wanted))], wanted)


@pytest.mark.parametrize("name", ["dense", "decoder", "recurrent"])
@pytest.mark.parametrize("frozen", [False, True])
def test_scripted_network_in_the_interpreter(name: str, frozen: bool) -> None:
    net, inputs, wanted = network(name)
    script = torch.jit.freeze(torch.jit.script(net)) if frozen else torch.jit.script(net)
    infos = [(n, (tuple(x.shape), x.dtype)) for n, x in zip(NAMES, inputs, strict=False)]
    module, params = relay.frontend.from_pytorch(script, infos)
    assert bool(params) != frozen
    compare(values(module, inputs, {k: v.numpy() for k, v in params.items()}), wanted)


def test_resnet_of_the_tutorial() -> None:
    net = ResNet(8, 1000).eval()
    data = image(64)
    scripted = torch.jit.trace(net, data).eval()
    module, params = relay.frontend.from_pytorch(scripted, [("input0", tuple(data.shape))])
    assert len(params) == 20 + 20 * 4 + 2  # convolutions, normalizations, the last layer
    assert module["main"].params[0].name_hint == "input0"
    assert "aten::_convolution_0.weight" in params
    assert "aten::batch_norm_0.running_mean" in params
    assert params["aten::linear_0.bias"].shape == (1000,)
    lib = relay.build(module, target="llvm", params=params)
    executor = graph_executor.GraphModule(lib["default"](aotc.cpu(0)))
    executor.set_input("input0", aotc.nd.array(data.numpy()))
    executor.run()
    compare([executor.get_output(0).numpy()], [net(data).detach().numpy()])


def test_text_of_a_traced_module() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 6, 7, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.conv(x), 1)

    data = torch.randn(1, 3, 10, 10)
    trace = torch.jit.trace(Net(), [data]).float().eval()
    module, _ = relay.frontend.from_pytorch(trace, [("input0", data.shape)], custom_convert_map=None)
    weight = "aten::_convolution_0.weight"
    assert str(module["main"]).splitlines() == [
        "fn (%input0: Tensor[(1, 3, 10, 10), float32] /* span=aten::_convolution_0.input0:0:0 */, "
        f"%{weight}: Tensor[(6, 3, 7, 7), float32] /* span={weight}:0:0 */) {{",
        f"  %0 = nn.conv2d(%input0, %{weight}, padding=[0, 0, 0, 0], channels=6, kernel_size=[7, 7]) "
        "/* span=aten::_convolution_0:0:0 */;",
        "  nn.softmax(%0, axis=1) /* span=aten::softmax_0:0:0 */",
        "}",
    ]
    friendly, params = relay.frontend.from_pytorch(trace, [("input0", data.shape)], use_parser_friendly_name=True)
    assert list(params) == ["aten___convolution_0_weight"]
    assert [v.name for v in friendly["main"].params] == ["input0", *params]


def test_a_pt2_file_from_the_command_line(tmp_path: Path) -> None:
    net, inputs, wanted = network("inverted")
    program = torch.export.export(net, inputs)
    torch.export.save(program, str(tmp_path / "net.pt2"))
    result = CliRunner().invoke(main, ["compile", str(tmp_path / "net.pt2"), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    (library,) = (tmp_path / "out").rglob("*.so")
    compare(aotc.load(library).run(None, {"input": inputs[0].numpy()}), wanted)
    compare(aotc.compile(program).session().run(None, {"input": inputs[0].numpy()}), wanted)


def test_a_quantized_program_is_read_by_who_has_not_imported_its_operators(tmp_path: Path) -> None:
    net, inputs = all_cases()["quantized-linear"]
    with torch.no_grad():
        wanted = net(*inputs).numpy()
    torch.export.save(torch.export.export(as_module(net), inputs), str(tmp_path / "net.pt2"))
    code = f"import sys, aotc; aotc.compile({str(tmp_path / 'net.pt2')!r}, output={str(tmp_path / 'out')!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    (library,) = (tmp_path / "out").rglob("*.so")
    session = aotc.load(library)
    names = [i.name for i in session.get_inputs()]
    compare(session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True))), [wanted])


def test_transformer_layer_traced_without_gradients() -> None:
    for kind in ({}, {"norm_first": True}):
        net = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu", **kind).eval()
        data = torch.randn(2, 5, 16)
        with torch.no_grad():
            module, params = traced(net, (data,))
            wanted = net(data).numpy()
        found = relay.create_executor("debug", module, params=None).evaluate()(data.numpy(), **params)
        compare([found.numpy()], [wanted])
