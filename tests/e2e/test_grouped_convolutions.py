# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few groups against ONNX Runtime: channels that do not fill vectors, strides, dilations, few pixels.

All are nodes of one model, so that a target needs one build.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import aotc
from tests.share import share
from tests.targets.native_targets import native_targets


@dataclass(frozen=True)
class Conv:
    """A convolution with bias; `inputs` and `outputs` are channels of one group."""

    inputs: int
    outputs: int
    groups: int
    size: tuple[int, int]
    kernel: int = 3
    stride: int = 1
    dilation: int = 1
    batch: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, self.inputs * self.groups, *self.size)


CASES = (
    Conv(32, 64, 2, (2, 2)),
    Conv(32, 64, 2, (4, 4)),
    Conv(16, 32, 2, (16, 16)),
    Conv(5, 23, 3, (7, 9)),
    Conv(5, 23, 3, (1, 1)),
    Conv(3, 37, 4, (5, 5), stride=2, batch=2),
    Conv(8, 17, 2, (6, 11), dilation=2),
    Conv(7, 9, 5, (9, 3), kernel=5, stride=2, dilation=3),
    Conv(4, 12, 6, (13, 8), kernel=1),
    Conv(33, 50, 2, (3, 3), kernel=1, batch=3),
    Conv(9, 106, 2, (2, 5), kernel=7),
    Conv(2, 3, 16, (10, 10), kernel=5),
    Conv(12, 10, 2, (9, 9), kernel=7, stride=2, dilation=3),
    Conv(4, 2, 7, (6, 40), stride=2),
)


def model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    graph = onnx.GraphProto(name="groups")
    for n, case in enumerate(CASES):
        channels = case.outputs * case.groups
        fan = case.inputs * case.kernel**2
        weights = rng.standard_normal((channels, case.inputs, case.kernel, case.kernel)) / np.sqrt(fan)
        for name, values in ((f"w{n}", weights), (f"b{n}", rng.standard_normal(channels))):
            graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
        pads = [case.dilation * (case.kernel // 2)] * 4
        how = {"strides": [case.stride] * 2, "dilations": [case.dilation] * 2, "pads": pads}
        graph.node.append(helper.make_node("Conv", [f"x{n}", f"w{n}", f"b{n}"], [f"y{n}"], group=case.groups, **how))
        graph.input.append(helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, case.shape))
        size = [-(-extent // case.stride) for extent in case.size]
        graph.output.append(helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, [case.batch, channels, *size]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(
    "target", share([*(t for t in native_targets() if t in {"c", "x86-64-v3", "x86-64-v4"}), "host"], 2)
)
def test_results_are_those_of_onnx_runtime(target: str) -> None:
    made = model()
    rng = np.random.default_rng(1)
    inputs = {f"x{n}": rng.standard_normal(case.shape).astype(np.float32) for n, case in enumerate(CASES)}
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = aotc.compile(made, target=target, name="groups").session()
    for found, expected, case in zip(compiled.run(None, inputs), session.run(None, inputs), CASES, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5, err_msg=str(case))
