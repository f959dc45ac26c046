# SPDX-License-Identifier: Apache-2.0
"""Layers that differ in sizes share one kernel on microcontrollers: its bytes, and its code size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import relay
from tests.e2e.projects import run
from tests.share import share
from tests.targets.firmware import board

#: Bytes of code of all of a library but its parameters, at most.
CODE = {
    "tflite/kws_int8.tflite": 10_000,
    "kws_int8_qdq.onnx": 10_000,
    "tflite/vww_int8.tflite": 20_000,
    "yunet_n_320_int8_qdq.onnx": 25_000,
}


def network() -> aotc.IRModule:
    """Layers of integers that differ in sizes, weights, and what is added."""
    rng = np.random.default_rng(0)
    x = relay.var("x", shape=(1, 4, 13, 11), dtype="int8")
    net: relay.Expr = x
    for inner, outer in ((4, 8), (8, 12), (12, 8), (8, 4)):
        weights = rng.integers(-128, 128, (outer, inner, 3, 3)).astype(np.int8)
        net = relay.nn.conv2d(net, relay.const(weights), padding=(1, 1), out_dtype="int32")
        net = relay.right_shift(net + relay.const(inner * 37, "int32"), relay.const(9, "int32"))
        net = relay.cast(relay.clip(net, -128, 127), "int8")
        net = relay.nn.max_pool2d(net, pool_size=(2, 2), strides=(1, 1))
    return aotc.IRModule.from_expr(relay.Function([x], net))


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "riscv32"])
def test_bytes_of_layers_of_several_sizes(target: str, tmp_path: Path) -> None:
    here, net = board(target), network()
    model = aotc.compile(net, output=tmp_path / "net", name="net", target=target, build=False)
    assert model.metadata["kernels"] < len(model.metadata["steps"])
    data = np.random.default_rng(1).integers(-128, 128, (1, 4, 13, 11)).astype(np.int8)
    (found,), stack = here.outputs(model, [data], tmp_path)
    np.testing.assert_array_equal(found, aotc.compile(net, target="c").session().run(None, {"x": data})[0])
    assert 0 < stack <= model.metadata["footprint"]["stack"]


@pytest.mark.parametrize("name", share(CODE, 0, always=["tflite/kws_int8.tflite"]))
def test_code(name: str, models: Path, tmp_path: Path) -> None:
    here, dims = board("cortex-m4"), {"unk__68": 1} if name.startswith("kws_int8_qdq") else {}
    model = aotc.compile(models / name, output=tmp_path / "net", name="net", target="cortex-m4", build=False, dims=dims)
    rows = run([f"{here.tool_prefix}size", here.make(model.path)], tmp_path).splitlines()[1:]
    sizes = {row.split()[5]: int(row.split()[0]) for row in rows}
    assert sum(size for file, size in sizes.items() if "params" not in file) <= CODE[name]
