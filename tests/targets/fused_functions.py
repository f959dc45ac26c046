# SPDX-License-Identifier: Apache-2.0
"""Random fused functions like those of real networks, with short rows and branches, which C compilers may miscompile.

made = fused(7)                       # always the same
made.function, made.inputs            # one primitive function, and an array for each of its parameters

A stem (a pool, padding, a strided slice, an upsampling, a sum or a product, a reduction, a convolution or nothing) is
followed by one to four elementwise steps: sums, selects, PReLU with slopes of several shapes, clip, hard-swish and
others. Results have rows of 1 to 17 elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc import relay
from aotc.ir.types import TensorType
from aotc.relay.expr import type_of
from aotc.relay.module import IRModule
from aotc.relay.transform.expand_ops import ExpandOps
from aotc.relay.type_inference import infer_module

Array = np.ndarray[Any, Any]
LONGEST_ROW = 17
FIRST_WIDE = 540
DTYPES = ("float32",) * 7 + ("float64", "float16", "int32", "int8")


@dataclass(frozen=True)
class Fused:
    """A function that becomes one kernel, and values for its parameters."""

    seed: int
    function: relay.Function
    inputs: Sequence[Array]


class _Drawing:
    """A function under construction: `value` is the last result."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = self.pick(*DTYPES)
        self.special = self.is_float and self.chance(0.2)
        self.params: list[relay.Var] = []
        self.inputs: list[Array] = []
        self.value: relay.Expr = self.stem()

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high, endpoint=True))

    # --- operands

    def array(self, shape: Sequence[int]) -> Array:
        if not self.is_float:
            return self.rng.integers(-90, 90, shape).astype(self.dtype)
        values = (3 * self.rng.standard_normal(shape)).astype(self.dtype)
        if self.special:
            places = self.rng.random(shape) < 0.1
            odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], self.dtype)
            values = np.where(places, odd[self.rng.integers(odd.size, size=shape)], values)
        return values

    def tensor(self, shape: Sequence[int]) -> relay.Var:
        """Another parameter of the function."""
        name = f"x{len(self.params)}"
        self.params.append(relay.var(name, shape=tuple(shape), dtype=self.dtype))
        self.inputs.append(self.array(shape))
        return self.params[-1]

    def number(self, low: float, high: float) -> relay.Expr:
        value = self.rng.uniform(low, high)
        return relay.const(np.asarray(value if self.is_float else round(value), self.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        module = infer_module(IRModule.from_expr(relay.Function(self.params, self.value)))
        ty = module.main.ret_type
        assert isinstance(ty, TensorType)
        return ty.static_shape

    def other(self) -> relay.Expr:
        """An operand for the last result: of its shape, or broadcast to it."""
        shape = self.shape
        some = tuple(n if self.chance(0.5) else 1 for n in shape)
        return self.pick(
            lambda: self.tensor(shape),
            lambda: self.tensor(shape),
            lambda: self.tensor(some),
            lambda: self.tensor(shape[-1:]),
            lambda: self.number(-2, 2),
        )()

    # --- stems

    def stem(self) -> relay.Expr:
        n, c, h = self.pick(1, 1, 2), self.pick(1, 2, 3, 4, 5, 8, 16), self.between(1, 6)
        w = self.between(1, LONGEST_ROW)
        stems: list[Callable[[int, int, int, int], relay.Expr]]
        stems = [self.pool, self.pool, self.pool, self.pad, self.slice, self.binary, self.plain, self.joined]
        if self.is_float:
            stems += [self.average, self.reduce, self.convolve, self.upsample]
        return self.pick(*stems, *self.more_stems())(n, c, h, w)

    def more_stems(self) -> Sequence[Callable[[int, int, int, int], relay.Expr]]:
        return ()

    def window(self, h: int, w: int) -> tuple[tuple[int, int], dict[str, Any]]:
        """The extents of an image whose windows make h rows of w, and the attributes of the windows."""
        size = self.pick((2, 2), (2, 2), (3, 3), (1, 3), (1, 2))
        stride = tuple(self.pick(1, s) for s in size)
        before = tuple(self.pick(0, (s - 1) // 2) for s in size)
        extents = tuple((o - 1) * t + s - b for o, t, s, b in zip((h, w), stride, size, before, strict=True))
        return (extents[0], extents[1]), {"pool_size": size, "strides": stride, "padding": (*before, 0, 0)}

    def pool(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        extents, attributes = self.window(h, w)
        return relay.nn.max_pool2d(self.tensor((n, c, *extents)), **attributes)

    def average(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        extents, attributes = self.window(h, w)
        x = self.tensor((n, c, *extents))
        return relay.nn.avg_pool2d(x, **attributes, count_include_pad=self.chance(0.5))

    def convolve(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        extents, window = self.window(h, w)
        x, weight = self.tensor((n, c, *extents)), self.tensor((c, 1, *window["pool_size"]))
        del window["pool_size"]
        return relay.nn.conv2d(x, weight, **window, groups=c)

    def reduce(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        x = self.tensor((n, c, self.between(1, 9), h, w))
        return self.pick(relay.sum, relay.max, relay.min, relay.mean)(x, axis=[2])

    def upsample(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        return relay.nn.upsampling(self.tensor((n, c, h, (w + 1) // 2)), scale_h=2.0, scale_w=2.0)

    def pad(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        before, after = self.between(0, 2), self.between(0, 2)
        room = max(1, w - before - after)
        widths = ((0, 0), (0, 0), (self.between(0, 1), self.between(0, 1)), (before, after))
        return relay.nn.pad(self.tensor((n, c, h, room)), pad_width=widths, pad_value=self.pick(0.0, 1.0))

    def slice(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        step, begin = self.pick(1, 2, 3), self.between(0, 3)
        length = begin + (w - 1) * step + 1
        x = self.tensor((n, c, h, length + self.between(0, 3)))
        return relay.strided_slice(x, begin=[0, 0, 0, begin], end=[n, c, h, length], strides=[1, 1, 1, step])

    def binary(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        a, b = self.tensor((n, c, h, w)), self.tensor((n, c, h, w))
        return self.pick(relay.add, relay.subtract, relay.multiply)(a, b)

    def plain(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        return self.tensor((n, c, h, w))

    def joined(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        a, b = self.tensor((n, c, h, (w + 1) // 2)), self.tensor((n, c, h, max(1, w // 2)))
        return relay.concatenate([a, b], axis=3)

    # --- steps

    def step(self) -> relay.Expr:
        x = self.value
        steps: list[Callable[[relay.Expr], relay.Expr]] = [
            lambda x: relay.add(x, self.other()),
            lambda x: relay.subtract(x, self.other()),
            lambda x: relay.multiply(x, self.other()),
            lambda x: relay.maximum(x, self.other()),
            lambda x: relay.minimum(self.other(), x),
            relay.nn.relu,
            lambda x: relay.clip(x, a_min=self.pick(-1.0, 0.0), a_max=self.pick(1.0, 6.0)),
            self.prelu,
            self.prelu,
            self.select,
            self.select,
        ]
        if self.is_float:
            steps += [
                lambda x: relay.nn.leaky_relu(x, alpha=0.1),
                self.hard_swish,
                self.hard_swish,
                self.channel_prelu,
                lambda x: relay.divide(x, self.other()),
                self.pick(relay.abs, relay.negative, relay.sqrt, relay.floor, relay.sigmoid, relay.tanh),
            ]
        return self.pick(*steps, *self.more_steps())(x)

    def more_steps(self) -> Sequence[Callable[[relay.Expr], relay.Expr]]:
        return ()

    def test(self, x: relay.Expr) -> relay.Expr:
        compare = self.pick(relay.less, relay.less_equal, relay.greater, relay.greater_equal, relay.equal)
        return compare(x, self.pick(lambda: self.number(-1, 1), self.other)())

    def prelu(self, x: relay.Expr) -> relay.Expr:
        zero = relay.const(np.asarray(0, self.dtype))
        return relay.where(relay.less(x, zero), relay.multiply(x, self.other()), x)

    def channel_prelu(self, x: relay.Expr) -> relay.Expr:
        return relay.nn.prelu(x, self.tensor(self.shape[1:2]), axis=1)

    def select(self, x: relay.Expr) -> relay.Expr:
        def arm() -> relay.Expr:
            return self.pick(self.other, lambda: x, lambda: relay.add(x, self.other()))()

        return relay.where(self.test(x), arm(), arm())

    def hard_swish(self, x: relay.Expr) -> relay.Expr:
        three, sixth = (relay.const(np.asarray(v, self.dtype)) for v in (3, 1 / 6))
        gate = relay.multiply(relay.clip(relay.add(x, three), a_min=0.0, a_max=6.0), sixth)
        return relay.multiply(x, gate)


class _Wide(_Drawing):
    """With products, convolutions, sums along rows and across them, softmax, functions and conversions, too."""

    def more_stems(self) -> Sequence[Callable[[int, int, int, int], relay.Expr]]:
        if self.dtype == "int8":
            return [self.dense, self.channels]
        if not self.is_float:
            return [self.transpose]
        return [self.dense, self.product, self.channels, self.softmax, self.norm, self.rows, self.transpose]

    def contracted(self) -> dict[str, str]:
        """Bytes are summed in wider integers."""
        if self.dtype != "int8":
            return {}
        self.dtype = "int32"
        return {"out_dtype": "int32"}

    def dense(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        k = self.between(1, 40)
        x, weight = self.tensor((n * h, k)), self.tensor((self.between(1, 40), k))
        return relay.nn.dense(x, weight, **self.contracted())

    def product(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        k = self.between(1, 20)
        return relay.nn.batch_matmul(self.tensor((c, h, k)), self.tensor((c, self.between(1, 20), k)))

    def channels(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        extents, window = self.window(h, w)
        outer = self.pick(1, 3, 8, 17, 32)
        x, weight = self.tensor((n, c, *extents)), self.tensor((outer, c, *window.pop("pool_size")))
        return relay.nn.conv2d(x, weight, **window, **self.contracted())

    def softmax(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        return self.pick(relay.nn.softmax, relay.nn.log_softmax)(self.tensor((n, c, h, w)), axis=self.pick(-1, 1))

    def norm(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        return relay.nn.layer_norm(self.tensor((n, h, w)), self.tensor((w,)), self.tensor((w,)))

    def rows(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        x = self.tensor((n, c, h, self.between(1, 70)))
        return self.pick(relay.sum, relay.max, relay.min, relay.mean, relay.prod)(x, axis=[3], keepdims=True)

    def transpose(self, n: int, c: int, h: int, w: int) -> relay.Expr:
        order = [int(k) for k in self.rng.permutation(4)]
        return relay.transpose(self.tensor((n, c, h, w)), axes=order)

    def more_steps(self) -> Sequence[Callable[[relay.Expr], relay.Expr]]:
        steps = [self.there_and_back] * 2
        functions = [relay.exp, relay.log, relay.erf, relay.sin, relay.cos, relay.rsqrt, relay.ceil, relay.round]
        return [*steps, *([self.pick(*functions)] * 4 if self.is_float else [])]

    def there_and_back(self, x: relay.Expr) -> relay.Expr:
        there = self.pick("float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "int64")
        return relay.cast(relay.cast(x, there), self.dtype)


def fused(seed: int) -> Fused:
    """The function of a seed; those of the first seeds are what they were before there were more stems and steps."""
    drawing = (_Drawing if seed < FIRST_WIDE else _Wide)(seed)
    for _ in range(drawing.between(1, 4)):
        drawing.value = drawing.step()
    module = infer_module(IRModule.from_expr(relay.Function(drawing.params, drawing.value)))
    function = infer_module(ExpandOps()(module)).main
    assert type_of(function.body) is not None
    return Fused(seed, function, drawing.inputs)
