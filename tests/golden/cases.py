# SPDX-License-Identifier: Apache-2.0
"""Small networks whose emitted text is stored: one for each way in which kernels are generated.

Parameters whose names begin with w are weights: seeded numbers, baked in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import Compilation
from aotc.ir.types import TensorType
from aotc.relay.module import IRModule
from aotc.relay.text.parser import parse


@dataclass(frozen=True)
class Case:
    """A network as Relay text, and what it is compiled for."""

    name: str
    target: str
    params: str
    body: str
    options: dict[str, Any] = field(default_factory=dict)

    def module(self) -> IRModule:
        """The network with its weights."""
        module = parse(f'#[version = "0.0.5"]\ndef @main({self.params}) {{\n{self.body}\n}}\n')
        rng = np.random.default_rng(0)
        weights = {}
        for p in module.main.params:
            ty = p.checked_type
            if p.name.startswith("w") and isinstance(ty, TensorType):
                weights[p.name] = rng.uniform(-1, 1, ty.static_shape).astype(ty.dtype.numpy)
        return CompileOptions(params=weights).import_as_graph_module(module)

    def compilation(self) -> Compilation:
        """The network on its way to C."""
        chosen = CompileOptions(target=self.target, name="net", cache=False, tuning=False, **self.options)
        return chosen.start_compilation(self.module())


def tensor(*shape: int, dtype: str = "float32") -> str:
    """A type in Relay text."""
    return f"Tensor[({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''}), {dtype}]"


def _convolution(
    name: str, target: str, data: str, weight: str, attributes: str, channels: int, **options: Any
) -> Case:
    """A convolution with bias and ReLU."""
    params = f"%x: {data}, %w: {weight}, %wb: {tensor(channels)}"
    axis = 3 if '"NHWC"' in attributes else 1
    body = f"nn.relu(nn.bias_add(nn.conv2d(%x, %w, {attributes}), %wb, axis={axis}))"
    return Case(name, target, params, body, options)


def _convolutions() -> list[Case]:
    three = "kernel_size=[3, 3], padding=[1, 1, 1, 1]"
    small, wide = tensor(1, 16, 14, 14), tensor(32, 16, 3, 3)
    depthwise = tensor(16, 1, 3, 3)
    half = tensor(1, 16, 14, 14, dtype="float16")
    return [
        _convolution("conv-direct", "x86-64-v3", small, wide, three, 32, accuracy="strict"),
        _convolution("conv-direct-wide", "x86-64-v4", small, wide, three, 32, accuracy="strict"),
        _convolution("conv-direct-neon", "aarch64", small, wide, three, 32, accuracy="strict"),
        _convolution("conv-riscv", "riscv64", tensor(1, 4, 8, 8), tensor(8, 4, 3, 3), three, 8),
        _convolution("conv-riscv-vectors", "riscv64-v256", small, wide, three, 32, accuracy="strict"),
        Case(
            "conv-riscv-vectors-int8",
            "riscv64-v128",
            f"%x: {tensor(1, 7, 7, 16, dtype='int8')}, %w: {tensor(3, 3, 16, 32, dtype='int8')}",
            f'nn.conv2d(%x, %w, {three}, data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32")',
        ),
        _convolution("conv-scalar", "c", tensor(1, 4, 8, 8), tensor(8, 4, 3, 3), three, 8),
        _convolution("conv-winograd", "x86-64-v3", tensor(1, 32, 28, 28), tensor(32, 32, 3, 3), three, 32),
        _convolution("conv-depthwise", "x86-64-v3", small, depthwise, f"{three}, strides=[2, 2], groups=16", 16),
        _convolution("conv-pointwise", "x86-64-v4", small, tensor(32, 16, 1, 1), "kernel_size=[1, 1]", 32),
        _convolution(
            "conv-first-layer", "x86-64-v3", tensor(1, 3, 32, 32), tensor(16, 3, 3, 3), f"{three}, strides=[2, 2]", 16
        ),
        _convolution(
            "conv-channels-last",
            "x86-64-v3",
            tensor(1, 14, 14, 16),
            tensor(3, 3, 16, 32),
            f'{three}, data_layout="NHWC", kernel_layout="HWIO"',
            32,
        ),
        _convolution("conv-groups", "x86-64-v3", small, tensor(32, 4, 3, 3), f"{three}, groups=4", 32),
        Case(
            "conv-float16",
            "x86-64-v3",
            f"%x: {half}, %w: {tensor(32, 16, 3, 3, dtype='float16')}",
            f"nn.relu(nn.conv2d(%x, %w, {three}))",
        ),
        Case(
            "conv-transposed",
            "x86-64-v3",
            f"%x: {tensor(1, 8, 7, 7)}, %w: {tensor(8, 16, 4, 4)}",
            "nn.conv2d_transpose(%x, %w, kernel_size=[4, 4], strides=[2, 2], padding=[1, 1, 1, 1])",
        ),
        _convolution(
            "conv-threads", "x86-64-v3", tensor(1, 64, 28, 28), tensor(64, 64, 1, 1), "kernel_size=[1, 1]", 64
        ),
    ]


def _products() -> list[Case]:
    dense = "nn.dense(%x, %w, units=None)"
    return [
        Case("dense-vector", "x86-64-v3", f"%x: {tensor(1, 64)}, %w: {tensor(48, 64)}", f"tanh({dense})"),
        Case("dense-packed", "x86-64-v4", f"%x: {tensor(32, 64)}, %w: {tensor(48, 64)}", dense),
        Case(
            "dense-bfloat16",
            "x86-64-v4-bf16",
            f"%x: {tensor(32, 64)}, %w: {tensor(48, 64)}",
            f"nn.relu({dense})",
            {"precision": "bfloat16"},
        ),
        Case("dense-scalar", "c", f"%x: {tensor(2, 12)}, %w: {tensor(10, 12)}", f"sigmoid({dense})"),
        Case(
            "batch-matmul",
            "aarch64",
            f"%x: {tensor(2, 8, 16)}, %y: {tensor(2, 12, 16)}",
            "nn.batch_matmul(%x, %y, transpose_b=True)",
        ),
        Case(
            "attention",
            "x86-64-v3",
            f"%q: {tensor(2, 32, 16)}, %k: {tensor(2, 32, 16)}, %v: {tensor(2, 32, 16)}",
            "nn.batch_matmul(nn.softmax(multiply(nn.batch_matmul(%q, %k, transpose_b=True), 0.25f)), %v,"
            " transpose_b=False)",
        ),
        Case(
            "lstm",
            "x86-64-v4",
            f"%x: {tensor(5, 1, 8)}, %wi: {tensor(8, 64)}, %wh: {tensor(16, 64)}, %wb: {tensor(64)},"
            f" %h: {tensor(1, 16)}, %c: {tensor(1, 16)}",
            "nn.lstm(%x, %wi, %wh, %wb, %h, %c)",
        ),
        Case(
            "integers",
            "c",
            f"%x: {tensor(2, 16, dtype='int8')}, %w: {tensor(8, 16, dtype='int8')}",
            'clip(nn.dense(%x, %w, units=None, out_dtype="int32"), a_min=-128f, a_max=127f)',
        ),
    ]


def _others() -> list[Case]:
    row, image = tensor(4, 40), tensor(1, 4, 12, 12)
    return [
        Case("softmax", "x86-64-v3", f"%x: {row}", "nn.softmax(%x)"),
        Case("softmax-scalar", "c", f"%x: {row}", "nn.softmax(%x)"),
        Case(
            "layer-norm", "x86-64-v4", f"%x: {row}, %wg: {tensor(40)}, %wb: {tensor(40)}", "nn.layer_norm(%x, %wg, %wb)"
        ),
        Case("elementwise", "x86-64-v3", f"%x: {row}, %y: {row}", "multiply(exp(%x), add(erf(%y), 1f))"),
        Case("elementwise-scalar", "c", f"%x: {row}, %y: {row}", "multiply(exp(%x), add(tanh(%y), 1f))"),
        Case("elementwise-float16", "aarch64", f"%x: {tensor(4, 40, dtype='float16')}", "multiply(%x, sigmoid(%x))"),
        Case("reduce", "x86-64-v3", f"%x: {tensor(4, 40, 24)}", "mean(%x, axis=[1, 2])"),
        Case("reduce-rows", "x86-64-v4", f"%x: {tensor(4, 40, 24)}", "max(%x, axis=[1])"),
        Case(
            "max-pool",
            "x86-64-v3",
            f"%x: {image}, %y: {tensor(1, 4, 6, 6)}, %s: {tensor(4)}",
            "nn.prelu(add(nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 2]), %y), %s)",
        ),
        Case(
            "avg-pool", "c", f"%x: {image}", "nn.avg_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])"
        ),
        Case("resize", "c", f"%x: {image}", 'image.resize2d(%x, size=[20, 18], method="linear")'),
        Case("concatenate", "x86-64-v3", f"%x: {image}, %y: {image}", "nn.relu(concatenate((%x, %y), axis=1))"),
        Case("transpose", "x86-64-v3", f"%x: {tensor(24, 40)}", "transpose(%x, axes=[1, 0])"),
        Case("pad", "c", f"%x: {image}", "nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 2], [3, 0]])"),
        Case("take", "c", f"%x: {row}, %i: {tensor(5, dtype='int64')}", "take(%x, %i, axis=0)"),
        Case("sort", "c", f"%x: {row}", "argsort(%x, axis=1)"),
    ]


KERNELS = {case.name: case for case in (*_convolutions(), *_products(), *_others())}
"""Cases of which the kernels are kept."""

_SMALL = (
    "  %0 = nn.max_pool2d(nn.relu(nn.bias_add(nn.conv2d(%x, %w, kernel_size=[3, 3], padding=[1, 1, 1, 1]), %wb)),"
    " pool_size=[2, 2], strides=[2, 2]);\n  nn.softmax(nn.dense(nn.batch_flatten(%0), %wd, units=None))"
)
_PARAMS = f"%x: {tensor(1, 2, 8, 8)}, %w: {tensor(4, 2, 3, 3)}, %wb: {tensor(4)}, %wd: {tensor(5, 64)}"
# large enough to be shared by threads
_LARGER = f"%x: {tensor(1, 16, 14, 14)}, %w: {tensor(32, 16, 3, 3)}, %wb: {tensor(32)}, %wd: {tensor(5, 1568)}"
_TWO = f"%x: {tensor(17, 20)}, %w: {tensor(24, 20)}, %y: {tensor(3, 100)}"
_HALF = (
    f"%x: {tensor(1, 16, dtype='float16')}, %w: {tensor(16, 16, dtype='float16')}, %y: {tensor(1, 16, dtype='float16')}"
)
PROJECTS = {
    case.name: case
    for case in (
        Case("scalar", "c", _PARAMS, _SMALL),
        Case("threads", "x86-64-v3", _LARGER, _SMALL, {"accuracy": "strict"}),
        Case("versions", "x86-64-multi", _PARAMS, _SMALL),
        Case("riscv-vectors", "riscv64-v256", _PARAMS, _SMALL),
        Case("gpu", "cuda", _TWO, "(nn.relu(nn.dense(%x, %w, units=None)), multiply(%y, exp(%y)))"),
        Case("float16", "aarch64", _HALF, "(add(nn.dense(%x, %w, units=None), %y), nn.relu(%y))"),
    )
}
"""Cases of which every emitted file is kept."""
