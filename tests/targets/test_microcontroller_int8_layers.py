# SPDX-License-Identifier: Apache-2.0
"""Quantized layers on microcontrollers: random shapes, roundings and zero points give the bytes of portable C."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.driver.compile import CompileOptions
from aotc.ir import NO_ATTRS
from aotc.relay.expr import Expr
from aotc.relay.op.qnn import target_independent_rounding
from aotc.tir import arm_dsp_kernels, arm_mve_kernels
from aotc.tir.target import TARGETS
from tests.codegen.batch import Array
from tests.share import share
from tests.targets.firmware import MACHINES, board

ROUNDINGS = ("TFLITE", "UPWARD", "TONEAREST", "FLOAT_EVEN")
LAYERS = 6
SEEDS = range(40)


class Layers:
    """A model of layers side by side, each with an input and an output of its own."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.inputs: list[Any] = []
        self.outputs: list[Expr] = []

    def bytes(self, *shape: int) -> Array:
        ends = self.draw.random() < 0.2
        return (self.numbers.choice([-128, 127], shape) if ends else self.numbers.integers(-128, 128, shape)).astype(
            np.int8
        )

    def zero(self) -> int:
        return self.draw.choice([-128, -7, 0, 127, self.draw.randrange(-128, 128)])

    def input(self, *shape: int) -> Any:
        self.inputs.append(relay.var(f"x{len(self.inputs)}", shape=shape, dtype="int8"))
        return self.inputs[-1]

    def finished(self, sums: Expr, outputs: int, products: int) -> None:
        bias = self.numbers.integers(-1 << self.draw.choice([8, 14, 20]), 1 << 14, outputs).astype(np.int32)
        scales = self.numbers.uniform(0.3, 2.0, outputs if self.draw.random() < 0.7 else 1).astype(np.float32)
        scales *= self.draw.choice([1.0, 1.0, 0.01, 30.0])
        scale = relay.const(scales if scales.size > 1 else scales[0])
        sums = relay.add(sums, relay.const(bias))
        onto = float(np.float32(60.0 * products**0.5))
        made = relay.qnn.op.requantize(
            sums, scale, 0, onto, self.zero(), axis=-1, rounding=self.draw.choice(ROUNDINGS), out_dtype="int8"
        )
        self.outputs.append(made)

    def convolution(self) -> None:
        draw = self.draw
        kernel = draw.choice([(1, 1), (1, 1), (3, 3), (3, 3), (5, 2), (10, 4)])
        size = [draw.randrange(max(1, k - 1), k + 12) for k in kernel]
        channels, outputs = draw.choice([1, 2, 3, 4, 5, 8, 16, 21]), draw.choice([1, 2, 3, 4, 6, 7, 8, 12])
        padding = [draw.randrange((k + 1) // 2 + 1) for k in (*kernel, *kernel)]
        padding = (
            padding if min(n + padding[d] + padding[d + 2] - kernel[d] for d, n in enumerate(size)) >= 0 else [9] * 4
        )
        depthwise = draw.random() < 0.35
        outputs, inner = (channels, 1) if depthwise else (outputs, channels)
        x = self.input(1, *size, channels)
        weights = relay.const(self.bytes(*kernel, *((channels, 1) if depthwise else (inner, outputs))))
        how = {"strides": (draw.choice([1, 1, 2]), draw.choice([1, 1, 2])), "padding": tuple(padding)}
        how |= {"data_layout": "NHWC", "kernel_layout": "HWOI" if depthwise else "HWIO", "kernel_size": kernel}
        how |= {"channels": outputs, "groups": channels if depthwise else 1}
        one = relay.const(np.float32(1.0))
        sums = relay.qnn.op.conv2d(x, weights, self.zero(), 0, one, one, **how)
        self.finished(sums, outputs, kernel[0] * kernel[1] * inner)

    def product(self) -> None:
        rows, inner, outputs = (self.draw.choice(c) for c in ([1, 1, 2, 5], [1, 3, 4, 17, 64], [1, 2, 5, 8, 12]))
        one = relay.const(np.float32(1.0))
        x, weights = self.input(rows, inner), relay.const(self.bytes(outputs, inner))
        sums = relay.qnn.op.dense(x, weights, self.zero(), 0, one, one, units=outputs)
        self.finished(sums, outputs, inner)

    def module(self) -> aotc.IRModule:
        for _ in range(LAYERS):
            self.draw.choice([self.convolution, self.convolution, self.convolution, self.product])()
        return aotc.IRModule.from_expr(relay.Function(self.inputs, relay.Tuple(self.outputs)))


@pytest.mark.parametrize(("name", "seed"), share([(n, s) for n in MACHINES for s in SEEDS], 3))
def test_layers_give_the_bytes_of_the_portable_library(name: str, seed: int, tmp_path: Path) -> None:
    here, layers = board(name), Layers(seed)
    module = layers.module()
    data = [layers.bytes(*map(int, x.type_annotation.shape)) for x in layers.inputs]
    model = aotc.compile(module, output=tmp_path / "net", name="net", target=name, build=False)
    found, _ = here.outputs(model, data, tmp_path)
    session = aotc.compile(module, name="net", target="c", cflags=("-O1",)).session()
    expected = session.run(None, {f"x{k}": x for k, x in enumerate(data)})
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    known = bool(TARGETS[name].micro_kernels)
    text = "".join(path.read_text(encoding="utf-8") for path in (model.path / "src").glob("*.c"))
    assert any(f"aotc_{word}" in text for word in ("pairs2", "bytes1", "byte_rows", "byte_taps")) == known


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("kernel", [(3, 3), (5, 2), (10, 8), (1, 7)])
def test_padding_is_not_stored(target: str, kernel: tuple[int, int]) -> None:
    """Images of one channel, whose runs of columns reach over the border: no copy of the image with its padding."""
    layers, sizes = Layers(3), (29, 31)
    x = layers.input(1, *sizes, 1)
    padding = tuple((k - side) // 2 for side in (1, 0) for k in kernel)
    one = relay.const(np.float32(1.0))
    how = {"padding": padding, "data_layout": "NHWC", "kernel_layout": "HWIO", "kernel_size": kernel, "channels": 4}
    sums = relay.qnn.op.conv2d(x, relay.const(layers.bytes(*kernel, 1, 4)), 7, 0, one, one, strides=(2, 2), **how)
    layers.finished(sums, 4, kernel[0] * kernel[1])
    module = aotc.IRModule.from_expr(relay.Function(layers.inputs, layers.outputs[0]))
    (program,) = CompileOptions(target=target, build=False).start_compilation(module).scheduled_programs
    # pairs of 16 bits of what two positions read, and what of their runs is outside
    gathered = 4 * kernel[0] * (kernel[1] + 3) + 2 * kernel[1] + 64
    assert program.plan.peak < gathered


def test_functions_mean_what_their_portable_text_does() -> None:
    """The meanings of the instructions: products of the bytes that went in, whatever order they lie in."""
    rng, meanings = (
        np.random.default_rng(0),
        {row.name: row.meaning for row in arm_dsp_kernels.instruction_definitions()},
    )
    for run in (1, 3, 4, 9, 16):
        size = -(-run // 4) * 4
        x = rng.integers(-128, 128, (2, run)).astype(np.int8)
        w = rng.integers(-128, 128, (4, run)).astype(np.int8)
        packed = np.zeros((4, size), np.int8)
        packed[:, :run] = w
        packed = packed.reshape(4, -1, 4).transpose(1, 0, 2).reshape(-1)
        sums = x.astype(np.int32) @ w.astype(np.int32).T
        col = meanings["pairs2"](*x)
        assert col.size == arm_dsp_kernels.interleaved_int16_count(run)
        np.testing.assert_array_equal(meanings["pairs2x4"](col, packed), sums.T.reshape(-1))
        np.testing.assert_array_equal(meanings["bytes1x4"](x[0], packed), sums[0])


def test_functions_on_rows_mean_what_their_portable_text_does() -> None:
    """Sums of rows and of channels, and what requantizes them."""
    rng, meanings = (
        np.random.default_rng(0),
        {row.name: row.meaning for row in arm_mve_kernels.instruction_definitions()},
    )
    for run, outputs in ((1, 2), (3, 5), (16, 4), (37, 1)):
        x, w = (rng.integers(-128, 128, s).astype(np.int8) for s in (run, (outputs, run)))
        sums = w.astype(np.int32) @ x.astype(np.int32)
        np.testing.assert_array_equal(np.atleast_1d(meanings["byte_rows"](x, w.reshape(-1))), sums)
        x, w = (rng.integers(-128, 128, (run, n)).astype(np.int8) for n in (outputs, outputs + 3))
        taps = (x.astype(np.int32) * w[:, :outputs]).sum(0)
        held = w.reshape(-1)[: (run - 1) * (outputs + 3) + outputs]
        found = meanings["byte_taps"](x.reshape(-1), held, np.int32(run), np.int32(outputs + 3))
        np.testing.assert_array_equal(np.atleast_1d(found), taps)
    x = rng.integers(-(1 << 31), 1 << 31, 4000).astype(np.int32)
    multiplier, shift = (rng.integers(a, b, x.size).astype(np.int32) for a, b in ((0, (1 << 31) - 1), (14, 29)))
    zero, low, high = (np.int32(n) for n in (-5, -100, 90))
    for name in ("once", "twice"):
        scaled = getattr(target_independent_rounding, f"scale_{name}").reference(NO_ATTRS, x, multiplier, shift)
        found = meanings[f"requantize_{name}"](x, np.zeros_like(x), multiplier, shift, zero, low, high)
        np.testing.assert_array_equal(found, np.clip(scaled.astype(np.int64) + zero, low, high))
