# SPDX-License-Identifier: Apache-2.0
"""Random convolutions, matrix products and pools for hypothesis, several in one model, since compilers start slowly.

model = Model.of(parts, seed=0)        # parts: what `parts()` draws, a list
model.module                           # @main gives a tuple, one tensor for each part
model.problems(session.run(None, model.inputs), bound)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import aotc
from aotc import relay
from aotc.relay.interpreter import evaluate

Array = np.ndarray[Any, Any]
UNIT = {"float64": 2.0**-29, "float16": 2.0**13, "bfloat16": 2.0**16, "int8": 0.0, "uint8": 0.0}
"""Rounding of a type against that of float32."""
LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
KERNELS = {1: ("OIW", "WIO"), 2: ("OIHW", "HWIO"), 3: ("OIDHW", "DHWIO")}


@dataclass(frozen=True)
class Part:
    """One call: its operator, the shapes and type of its operands, attributes, and what is fused behind it.

    baked     the second operand is a constant, so that it can be packed
    behind    "bias", "relu" and "residual", in order
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    attributes: Mapping[str, Any]
    dtype: str = "float32"
    baked: bool = False
    behind: tuple[str, ...] = ()
    axis: int = 1


@dataclass(frozen=True)
class _Windows:
    """Random windows over axes of space: everything odd, and never a result of nothing."""

    space: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]


@st.composite
def windows(draw: st.DrawFn, n: int, *, wide: bool) -> _Windows:
    """`wide`: paddings may be wider than the kernel, as no pool has them."""

    def each(strategy: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(draw(strategy) for _ in range(n))

    usual = draw(st.booleans())
    kernel = (3,) * n if usual and draw(st.booleans()) else each(st.integers(1, {1: 9, 2: 5, 3: 3}[n]))
    strides = (1,) * n if usual else each(st.integers(1, 3))
    dilation = (1,) * n if usual else each(st.integers(1, 3))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    most = [r + 1 if wide else (k + 1) // 2 - (k == 1) for r, k in zip(reach, kernel, strict=True)]
    before, after = (tuple(draw(st.integers(0, min(m, 5))) for m in most) for _ in range(2))
    least = [max(1, r - b - a) for r, b, a in zip(reach, before, after, strict=True)]
    room = {1: 70, 2: 20, 3: 7}[n]
    return _Windows(tuple(m + draw(st.integers(0, room)) for m in least), kernel, strides, dilation, before + after)


def _placed(order: str, batch: int, channels: int, space: Sequence[int]) -> tuple[int, ...]:
    """A shape in the order of a layout."""
    axes = dict(zip("DHW"[-len(space) :], space, strict=True)) | {"N": batch, "C": channels}
    return tuple(axes[letter] for letter in order)


channel_counts = st.one_of(st.integers(1, 5), st.sampled_from([8, 13, 16, 17, 24, 31, 32, 33, 48, 64]))
dtypes = st.sampled_from(["float32"] * 8 + ["float64", "float16", "int8"])
epilogues = st.sampled_from(
    [(), (), ("bias",), ("bias", "relu"), ("relu",), ("bias", "residual", "relu"), ("residual",)]
)


@st.composite
def convolutions(draw: st.DrawFn) -> Part:
    n = draw(st.sampled_from([1, 2, 2, 2, 3]))
    w, last = draw(windows(n, wide=True)), draw(st.booleans())
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 8, 33]))
    depthwise = groups > 1 and draw(st.booleans())
    inner = 1 if depthwise else draw(channel_counts if groups == 1 else st.integers(1, 6))
    outer = (
        draw(st.sampled_from([1, 1, 2])) if depthwise else draw(channel_counts if groups == 1 else st.integers(1, 18))
    )
    order, kernel_order = LAYOUTS[n][last], KERNELS[n][last]
    data = _placed(order, draw(st.sampled_from([1, 1, 2])), groups * inner, w.space)
    names = dict(zip("DHW"[-n:], w.kernel, strict=True)) | {"O": groups * outer, "I": inner}
    weight = tuple(names[letter] for letter in kernel_order)
    attributes = {
        "strides": w.strides, "padding": w.padding, "dilation": w.dilation, "groups": groups,
        "channels": groups * outer, "kernel_size": w.kernel, "data_layout": order, "kernel_layout": kernel_order,
    }  # fmt: skip
    dtype = draw(dtypes)
    attributes |= {"out_dtype": "int32"} if dtype == "int8" else {}
    axis = n + 1 if last else 1
    return Part(f"conv{n}d", (data, weight), attributes, dtype, draw(st.booleans()), draw(epilogues), axis)


@st.composite
def wide_convolutions(draw: st.DrawFn) -> Part:
    """Such as networks are made of: 3x3 and 1x1, many channels, constant weights."""
    inner, outer, last = draw(st.integers(16, 70)), draw(st.integers(16, 100)), draw(st.booleans())
    k, padding = draw(st.sampled_from([1, 3, 3])), draw(st.integers(0, 1))
    space = [draw(st.integers(5, 21)) for _ in range(2)]
    order, kernel_order = LAYOUTS[2][last], KERNELS[2][last]
    weight = (k, k, inner, outer) if last else (outer, inner, k, k)
    attributes = {
        "padding": (padding,) * 4, "channels": outer, "kernel_size": (k, k),
        "data_layout": order, "kernel_layout": kernel_order,
    }  # fmt: skip
    data = _placed(order, 1, inner, space)
    return Part("conv2d", (data, weight), attributes, "float32", True, draw(epilogues), 3 if last else 1)


@st.composite
def transposed_convolutions(draw: st.DrawFn) -> Part:
    n = draw(st.sampled_from([1, 2, 2, 3]))
    groups, inner, outer = draw(st.sampled_from([1, 1, 2, 3])), draw(st.integers(1, 9)), draw(st.integers(1, 17))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(n))

    kernel, strides, dilation = each(1, 4), each(1, 3), each(1, 2)
    space = each(1, {1: 30, 2: 9, 3: 4}[n])
    more = tuple(draw(st.integers(0, s - 1)) for s in strides)
    full = [
        (x - 1) * s + d * (k - 1) + 1 + m for x, s, d, k, m in zip(space, strides, dilation, kernel, more, strict=True)
    ]
    before = tuple(draw(st.integers(0, min(3, f - 1))) for f in full)
    after = tuple(draw(st.integers(0, min(3, f - 1 - b))) for f, b in zip(full, before, strict=True))
    data, weight = (draw(st.sampled_from([1, 2])), groups * inner, *space), (groups * inner, outer, *kernel)
    attributes = {
        "strides": strides, "padding": before + after, "dilation": dilation, "groups": groups,
        "output_padding": more, "channels": groups * outer, "kernel_size": kernel,
    }  # fmt: skip
    return Part(f"conv{n}d_transpose", (data, weight), attributes, baked=draw(st.booleans()), behind=draw(epilogues))


@st.composite
def pools(draw: st.DrawFn) -> Part:
    n, kind = draw(st.sampled_from([1, 2, 2, 3])), draw(st.sampled_from(["max", "avg"]))
    w, order = draw(windows(n, wide=False)), LAYOUTS[n][draw(st.booleans())]
    data = _placed(order, draw(st.sampled_from([1, 2])), draw(channel_counts), w.space)
    attributes: dict[str, Any] = {
        "pool_size": w.kernel, "strides": w.strides, "dilation": w.dilation, "padding": w.padding,
        "layout": order, "ceil_mode": draw(st.booleans()),
    }  # fmt: skip
    if kind == "avg":
        attributes["count_include_pad"] = draw(st.booleans())
    return Part(
        f"{kind}_pool{n}d", (data,), attributes, draw(st.sampled_from(["float32", "float32", "float64", "float16"]))
    )


@st.composite
def products(draw: st.DrawFn) -> Part:
    size = st.one_of(st.integers(1, 9), st.integers(10, 70))
    m, k, n, batch = draw(size), draw(size), draw(size), draw(st.integers(1, 5))
    op = draw(st.sampled_from(["dense", "matmul", "batch_matmul"]))
    if op == "dense":
        attributes: dict[str, Any] = {"units": n}
        shapes: tuple[tuple[int, ...], ...] = ((m, k), (n, k))
    else:
        a, b = draw(st.booleans()), draw(st.booleans())
        attributes = {"transpose_a": a, "transpose_b": b}
        shapes = ((k, m) if a else (m, k), (n, k) if b else (k, n))
        if op == "batch_matmul":
            other = 1 if draw(st.booleans()) else batch
            shapes = ((batch, *shapes[0]), (other, *shapes[1]))
    dtype = draw(dtypes)
    attributes |= {"out_dtype": "int32"} if dtype == "int8" else {}
    axis = len(shapes[0]) - 1
    return Part(op, shapes, attributes, dtype, draw(st.booleans()), draw(epilogues), axis)


def parts(count: int) -> st.SearchStrategy[list[Part]]:
    """Lists of `count` parts at most."""
    one = st.one_of(convolutions(), wide_convolutions(), transposed_convolutions(), products(), pools())
    return st.lists(one, min_size=1, max_size=count)


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype.startswith(("int", "uint")):
        return rng.integers(-100, 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def distance(found: Array, expected: Array) -> float:
    """The largest difference; infinities and NaN must be in the same places (a window may see nothing but padding)."""
    if not np.array_equal(
        np.where(np.isfinite(found), 0, found), np.where(np.isfinite(expected), 0, expected), equal_nan=True
    ):
        return float("inf")
    finite = np.isfinite(expected)
    return float(np.abs(found[finite].astype(np.float64) - expected[finite].astype(np.float64)).max(initial=0.0))


@dataclass(frozen=True)
class Model:
    """The parts as one module, with inputs and the results that they should give.

    magnitudes   of each result: what it is with all operands made positive, so how large the terms of its sums are
    """

    parts: Sequence[Part]
    module: aotc.IRModule
    inputs: Mapping[str, Array]
    expected: Sequence[Array]
    magnitudes: Sequence[float]

    @classmethod
    def of(cls, parts: Sequence[Part], seed: int, special: bool = False) -> Model:
        """With random operands; `special`: infinities and NaN among the data, not among weights."""
        made, positive = (_Builder(np.random.default_rng(seed), part, special) for part in (False, True))
        module, terms = made.module(parts), positive.module(parts)
        with np.errstate(all="ignore"):
            expected, sizes = evaluate(module, params=made.inputs), evaluate(terms, params=positive.inputs)
        largest = [float(np.abs(s)[np.isfinite(s)].max(initial=0)) for s in sizes]
        return cls(parts, module, made.inputs, expected, largest)

    def problems(self, found: Sequence[Array], bound: float) -> str:
        """Which parts are wrong; `bound` is relative, for float32."""
        wrong = []
        for part, a, e, size in zip(self.parts, found, self.expected, self.magnitudes, strict=True):
            limit = bound * UNIT.get(part.dtype, 1.0) * size
            error = distance(a, e) if a.shape == e.shape and a.dtype == e.dtype else np.inf
            if not error <= limit:
                wrong.append(f"{part}: {a.dtype}{a.shape} for {e.dtype}{e.shape}, off by {error}, at most {limit}")
        return "\n".join(wrong)


class _Builder:
    """Makes expressions for parts, and inputs for their operands."""

    def __init__(self, rng: np.random.Generator, positive: bool, special: bool) -> None:
        self.rng, self.positive, self.special = rng, positive, special
        self.params: list[relay.Var] = []
        self.inputs: dict[str, Array] = {}

    def module(self, parts: Sequence[Part]) -> aotc.IRModule:
        fields = [self.part(k, part) for k, part in enumerate(parts)]
        return aotc.IRModule.from_expr(relay.Function(self.params, relay.Tuple(fields)))

    def part(self, number: int, part: Part) -> relay.Expr:
        operands = [self.operand(f"x{number}_{k}", s, part, k > 0) for k, s in enumerate(part.shapes)]
        y = getattr(relay.nn, part.op)(*operands, **part.attributes)
        for what in part.behind:
            ty = relay.transform.InferType()(aotc.IRModule.from_expr(relay.Function(self.params, y))).main.ret_type
            shape, dtype = ty.static_shape, str(ty.dtype)
            if what == "relu":
                y = relay.nn.relu(y)
            elif what == "bias":
                bias = self.value((shape[part.axis],), dtype)
                y = relay.nn.bias_add(y, relay.const(bias), axis=part.axis)
            else:
                y = relay.add(y, self.variable(f"r{number}", shape, dtype))
        return y

    def value(self, shape: tuple[int, ...], dtype: str) -> Array:
        values = _values(self.rng, shape, dtype)
        return np.abs(values) if self.positive else values

    def variable(self, name: str, shape: tuple[int, ...], dtype: str) -> relay.Var:
        self.params.append(relay.var(name, shape=shape, dtype=dtype))
        value = self.inputs[name] = self.value(shape, dtype)
        if self.special and dtype.startswith("float") and not name.endswith("_1"):
            value.flat[self.rng.integers(value.size)] = self.rng.choice([np.nan, np.inf, -np.inf])
        return self.params[-1]

    def operand(self, name: str, shape: tuple[int, ...], part: Part, second: bool) -> relay.Expr:
        if second and part.baked:
            return relay.const(self.value(shape, part.dtype))
        return self.variable(name, shape, part.dtype)
