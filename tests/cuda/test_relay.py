# SPDX-License-Identifier: Apache-2.0
"""Relay's API with GPUs: libraries, executors and devices, on the driver that emulates a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.contrib.graph_executor import GraphModule
from aotc.driver.cuda_emulation import build_fake_cuda_driver
from aotc.ir.diagnostics import AotcError

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AOTC_CUDA_DRIVER", str(build_fake_cuda_driver()))
    yield
    gc.collect()


def module() -> aotc.IRModule:
    x, w = relay.var("x", shape=(2, 3)), relay.var("w", shape=(3,))
    return aotc.IRModule.from_expr(relay.Function([x, w], relay.nn.relu(relay.add(x, w))))


def test_a_library_runs_on_a_gpu(tmp_path: Path) -> None:
    lib = relay.build(module(), target="cuda", params={"w": np.ones(3, "float32")})
    lib.export_library(tmp_path / "lib.so")
    dev = aotc.cuda(0)
    assert dev.exist and aotc.runtime.enabled("cuda")
    for one in (lib, aotc.runtime.load_module(tmp_path / "lib.so")):
        executor = GraphModule(one["default"](dev))
        executor.set_input("x", aotc.nd.array(X, dev))
        executor.run()
        np.testing.assert_array_equal(executor.get_output(0).numpy(), np.maximum(X + np.float32(1), 0))
    assert executor.benchmark(dev, repeat=1, number=1).mean > 0
    assert repr(aotc.nd.array(X, dev)).startswith("<aotc.nd.NDArray shape=(2, 3), cuda(0)>")
    with pytest.raises(AotcError, match=r"runs on GPUs only, not on cpu\(0\)"):
        lib["default"](aotc.cpu())
    with pytest.raises(AotcError, match="this model runs on the CPU"):
        lib["debug_create"]("default", dev)
    with pytest.raises(AotcError, match=r"there is no device cuda\(1\)"):
        lib["default"](aotc.cuda(1))


def test_executors_run_on_a_gpu() -> None:
    run = relay.create_executor("graph", module(), device=aotc.cuda(0), target="cuda").evaluate()
    np.testing.assert_array_equal(run(X, np.ones(3, "float32")).numpy(), np.maximum(X + np.float32(1), 0))
    for kind, device, target, said in (
        ("graph", aotc.cpu(), "cuda", "does not run what is compiled for cuda"),
        ("graph", aotc.cuda(0), "c", "does not run what is compiled for c"),
        ("vm", aotc.cuda(0), "cuda", "this model runs on the CPU"),
        ("debug", aotc.cuda(0), "llvm", "this model runs on the CPU"),
    ):
        with pytest.raises(AotcError, match=said):
            relay.create_executor(kind, module(), device=device, target=target)
    with pytest.raises(AotcError, match="calls kernels on processors"):
        relay.vm.compile(module(), target="cuda")
