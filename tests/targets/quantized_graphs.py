# SPDX-License-Identifier: Apache-2.0
"""Random graphs of quantized operators: shapes, strides, groups, paddings, zero points at the limits of their types,
scales from 2^-20 to 2^4.

graph = drawn(7)
graph.variables, graph.inputs, graph.results
whole([drawn(k) for k in range(20)])           # one module of all of them

Scales of results are drawn so that most values are spread over the type, many saturate, and some all do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from aotc.ir.types import TensorType
from aotc.relay import const
from aotc.relay.expr import Expr, Function, Tuple, Var, tensor_type_of
from aotc.relay.module import IRModule
from aotc.relay.op import builders as op
from aotc.relay.op.qnn import builders as qnn
from aotc.relay.type_inference import infer_module

Array = np.ndarray[Any, Any]
MIN_SCALE, MAX_SCALE = 2.0**-20, 2.0**4
"""Range of the drawn scales."""
ROUNDINGS = ("FLOAT_EVEN", "FLOAT_EVEN", "UPWARD", "TONEAREST", "TFLITE")


@dataclass(frozen=True)
class Value:
    """A tensor of bytes, (N, C, H, W), and what it stands for."""

    expr: Expr
    shape: tuple[int, ...]
    scale: np.floating[Any]
    zero: int
    dtype: str

    @property
    def pair(self) -> tuple[Expr, Expr]:
        return const(self.scale), const(np.int32(self.zero))


@dataclass
class Drawing:
    """A graph that grows."""

    rng: np.random.Generator
    name: str = "x"
    variables: list[Var] = field(default_factory=list)
    inputs: list[Array] = field(default_factory=list)
    results: list[Expr] = field(default_factory=list)

    def one(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def bytes(self, dtype: str, *shape: int) -> Array:
        """The whole range, and often its ends alone."""
        values = self.rng.integers(0, 256, shape, dtype=np.uint8).view(dtype)
        ends = self.rng.choice([np.iinfo(dtype).min, np.iinfo(dtype).max], shape)
        return np.where(self.rng.random(shape) < self.one(0.0, 0.3, 1.0), ends, values).astype(dtype)

    def input(self, array: Array) -> Expr:
        variable = Var(f"{self.name}_{len(self.variables)}", TensorType(array.shape, str(array.dtype)))
        self.variables.append(variable)
        self.inputs.append(array)
        return variable

    def operand(self, dtype: str, *shape: int) -> Expr:
        """Weights, which are mostly known."""
        array = self.bytes(dtype, *shape)
        return self.input(array) if self.rng.random() < 0.15 else const(array)

    def scale(self) -> np.floating[Any]:
        return np.float32(2.0 ** self.rng.uniform(-20, 4))

    def zero(self, dtype: str) -> int:
        ends = np.iinfo(dtype)
        return int(self.one(ends.min, ends.max, 0, self.rng.integers(ends.min, ends.max + 1)))

    def fitting(self, spread: float) -> np.floating[Any]:
        """A scale for numbers of about this size: most fit, many do not."""
        if self.rng.random() < 0.15:
            return self.scale()
        return np.float32(np.clip(spread / 2.0 ** self.rng.uniform(4, 8), MIN_SCALE, MAX_SCALE))

    def start(self) -> Value:
        dtype = self.one("uint8", "int8")
        channels = self.one(1, 2, 3, 4, 6, 8, 12, 16, 17, 20, 32)
        shape = (self.one(1, 1, 2), channels, *(int(n) for n in self.rng.integers(1, 12, 2)))
        return Value(self.input(self.bytes(dtype, *shape)), shape, self.scale(), self.zero(dtype), dtype)

    def stored(self, sums: Expr, scale: Any, like: Value, axis: int, size: int) -> Value:
        """Sums of `size` products brought to bytes."""
        dtype = like.dtype if self.rng.random() < 0.8 else self.one("uint8", "int8")
        spread = float(np.mean(scale)) * 100 * 70 * size**0.5
        to, zero = self.fitting(spread), self.zero(dtype)
        onto = const(to), const(np.int32(zero))
        how = {"axis": axis, "rounding": self.one(*ROUNDINGS), "out_dtype": dtype}
        y = qnn.requantize(sums, const(scale), const(np.int32(0)), *onto, **how)
        return self.done(y, to, zero, dtype)

    def done(self, expr: Expr, scale: np.floating[Any], zero: int, dtype: str) -> Value:
        return Value(expr, tensor_type_of(expr).static_shape, scale, zero, dtype)

    def weights(self, x: Value, dtype: str, channels: int, *shape: int) -> tuple[Expr, Expr, Any]:
        """Weights, their zero point, and scales: one, or one a channel; mostly so that there is a scale for sums."""
        many, size = self.rng.random() < 0.6, self.rng.uniform(-20, 4)
        if self.rng.random() < 0.8:
            size = self.rng.uniform(-15, 8) - 13 - np.log2(x.scale)
        scale = np.clip(2.0**size * self.rng.uniform(0.3, 1, channels), MIN_SCALE, MAX_SCALE).astype(np.float32)
        zero = np.int32(self.one(0, 0, self.zero(dtype)))
        return self.operand(dtype, *shape), const(zero), scale if many else scale[0]


def convolution(d: Drawing, x: Value) -> Value:
    """A convolution with a random window that fits; often depthwise or grouped."""
    channels = x.shape[1]
    groups = d.one(1, 1, channels, *(g for g in (2, 4) if channels % g == 0))
    outputs = groups * d.one(1, 1, 2, 5) if groups > 1 else d.one(1, 3, 8, 16, 17, 24)
    taps = [d.one(1, 2, 3, 5) for _ in range(2)]
    dilation, strides = ([d.one(1, 1, 2) for _ in range(2)] for _ in range(2))
    pads = [int(n) for n in d.rng.integers(0, 3, 4)]
    room = [n + pads[k] + pads[k + 2] for k, n in enumerate(x.shape[2:])]
    taps = [t if (t - 1) * s < n else 1 for t, s, n in zip(taps, dilation, room, strict=True)]
    inside = channels // groups
    w, wz, ws = d.weights(x, d.one("int8", "int8", "uint8"), outputs, outputs, inside, *taps)
    sums = qnn.conv2d(
        x.expr, w, const(np.int32(x.zero)), wz, const(x.scale), const(ws), kernel_size=taps, channels=outputs,
        strides=strides, padding=pads, dilation=dilation, groups=groups,
    )  # fmt: skip
    if d.rng.random() < 0.7:
        sums = op.add(sums, const(d.rng.integers(-20000, 20000, (outputs, 1, 1), dtype=np.int32)))
    return d.stored(sums, x.scale * ws, x, 1, inside * prod(taps))


def transposed(d: Drawing, x: Value) -> Value:
    channels, outputs, taps = x.shape[1], d.one(1, 4, 9), [d.one(1, 2, 3) for _ in range(2)]
    w, wz, ws = d.weights(x, "int8", outputs, channels, outputs, *taps)
    strides = [d.one(1, 2) for _ in range(2)]
    sums = qnn.conv2d_transpose(
        x.expr, w, const(np.int32(x.zero)), wz, const(x.scale), const(ws), kernel_size=taps, channels=outputs,
        strides=strides, kernel_layout="IOHW",
    )  # fmt: skip
    return d.stored(sums, x.scale * ws, x, 1, channels * prod(taps))


def product(d: Drawing, x: Value) -> Value:
    """Rows by a matrix of weights."""
    inside, outputs = x.shape[3], d.one(1, 4, 15, 16, 33)
    w, wz, ws = d.weights(x, d.one("int8", "uint8"), outputs, outputs, inside)
    rows = op.reshape(x.expr, (-1, inside))
    sums = qnn.dense(rows, w, const(np.int32(x.zero)), wz, const(x.scale), const(ws), units=outputs)
    y = d.stored(sums, x.scale * ws, x, 1, inside)
    return d.done(op.reshape(y.expr, (*x.shape[:3], outputs)), y.scale, y.zero, y.dtype)


def batches(d: Drawing, x: Value) -> Value:
    """A product of two tensors that are data."""
    n, c, h, w = x.shape
    columns, dtype = d.one(1, 5, 16), d.one("int8", "uint8")
    other, scale, zero = d.input(d.bytes(dtype, n * c, columns, w)), d.scale(), d.zero(dtype)
    flat, points = op.reshape(x.expr, (n * c, h, w)), (const(np.int32(x.zero)), const(np.int32(zero)))
    sums = qnn.batch_matmul(flat, other, *points, const(x.scale), const(scale))
    y = d.stored(sums, x.scale * scale, x, -1, w)
    return d.done(op.reshape(y.expr, (n, c, h, columns)), y.scale, y.zero, y.dtype)


def two(d: Drawing, x: Value) -> Value:
    """A sum, difference or product with another tensor, which may broadcast."""
    shape = d.one(x.shape, x.shape, (1, x.shape[1], 1, 1), (1, 1, 1, x.shape[3]))
    other, scale, zero = d.operand(x.dtype, *shape), d.scale(), d.zero(x.dtype)
    name = d.one("add", "add", "subtract", "mul")
    both = float(x.scale * scale) * 5000 if name == "mul" else 100 * float(x.scale + scale)
    to, onto = d.fitting(both), d.zero(x.dtype)
    numbers = *x.pair, const(scale), const(np.int32(zero)), const(to), const(np.int32(onto))
    made = {"add": qnn.add, "subtract": qnn.subtract, "mul": qnn.mul}[name]
    return d.done(made(x.expr, other, *numbers), to, onto, x.dtype)


def function(d: Drawing, x: Value) -> Value:
    """A function of one element."""
    made: Callable[..., Expr] = d.one(qnn.sigmoid, qnn.tanh, qnn.leaky_relu, qnn.hardswish, qnn.abs)
    to, zero = d.fitting(min(100 * float(x.scale), 100.0)), d.zero(x.dtype)
    return d.done(made(x.expr, *x.pair, const(to), const(np.int32(zero))), to, zero, x.dtype)


def normalized(d: Drawing, x: Value) -> Value:
    to = np.float32(1 / d.one(256, 300, 17))
    zero = int(np.iinfo(x.dtype).min)
    y = qnn.softmax(x.expr, *x.pair, const(to), const(np.int32(zero)), axis=d.one(1, -1))
    return d.done(y, to, zero, x.dtype)


def joined(d: Drawing, x: Value) -> Value:
    other, scale, zero = d.operand(x.dtype, x.shape[0], d.one(1, 5), *x.shape[2:]), d.scale(), d.zero(x.dtype)
    to, onto = d.fitting(100 * float(x.scale)), d.zero(x.dtype)
    scales, zeros = (const(x.scale), const(scale)), (const(np.int32(x.zero)), const(np.int32(zero)))
    y = qnn.concatenate([x.expr, other], scales, zeros, const(to), const(np.int32(onto)), axis=1)
    return d.done(y, to, onto, x.dtype)


def pooled(d: Drawing, x: Value) -> Value:
    window = tuple(min(d.one(1, 2, 3), n) for n in x.shape[2:])
    strides = tuple(d.one(1, 2) for _ in range(2))
    if d.rng.random() < 0.5:
        y = op.max_pool2d(x.expr, pool_size=window, strides=strides)
        return d.done(y, x.scale, x.zero, x.dtype)
    to, zero = d.fitting(200 * float(x.scale)), d.zero(x.dtype)
    y = qnn.avg_pool2d(x.expr, *x.pair, const(to), const(np.int32(zero)), pool_size=window, strides=strides)
    return d.done(y, to, zero, x.dtype)


def moved(d: Drawing, x: Value) -> Value:
    """Bytes in other places, or clamped, or at another scale."""
    low, high = sorted(int(v) for v in d.bytes(x.dtype, 2))
    choices: tuple[Callable[[], Expr], ...] = (
        lambda: op.transpose(x.expr, axes=(0, 1, 3, 2)),
        lambda: op.clip(x.expr, a_min=low, a_max=high),
        lambda: op.maximum(x.expr, const(np.asarray(x.zero, x.dtype))),
        lambda: op.pad(
            x.expr, pad_width=((0, 0), (0, 0), (1, 0), (0, 2)), pad_value=const(np.asarray(x.zero, x.dtype))
        ),
        lambda: op.reverse(x.expr, axis=1),
    )
    kind = int(d.rng.integers(len(choices) + 1))
    if kind < len(choices):
        return d.done(choices[kind](), x.scale, x.zero, x.dtype)
    dtype = d.one("uint8", "int8")
    to, zero = d.fitting(100 * float(x.scale)), d.zero(dtype)
    how = {"rounding": d.one(*ROUNDINGS), "out_dtype": dtype}
    return d.done(qnn.requantize(x.expr, *x.pair, const(to), const(np.int32(zero)), **how), to, zero, dtype)


SUMS = (convolution, convolution, convolution, transposed, product, batches)
STEPS = (*SUMS, two, two, function, normalized, joined, pooled, moved)
LARGEST = 6000
"""Elements of a tensor."""


@dataclass(frozen=True)
class Graph:
    """A function of bytes, and what it is called with."""

    variables: Sequence[Var]
    results: Sequence[Expr]
    inputs: Sequence[Array]


def drawn(seed: int) -> Graph:
    """Some steps, the first of which sums products; what is between them is seldom a result, so that it is fused."""
    d = Drawing(np.random.default_rng([15, seed]), f"g{seed}")
    x = d.start()
    for k in range(int(d.rng.integers(1, 5))):
        y = d.one(*(SUMS if k == 0 else STEPS))(d, x)
        if prod(y.shape) > LARGEST:
            break
        if k and d.rng.random() < 0.15:
            d.results.append(x.expr)
        x = y
    return Graph(d.variables, [*d.results, x.expr], d.inputs)


def whole(graphs: Sequence[Graph]) -> IRModule:
    """All of them as one module; results are a tuple."""
    variables = [v for g in graphs for v in g.variables]
    results = Tuple([r for g in graphs for r in g.results])
    return infer_module(IRModule.from_expr(Function(variables, results)))
