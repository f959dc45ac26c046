# SPDX-License-Identifier: Apache-2.0
"""Max and average pooling over one to three spatial axes: sliding, adaptive and global windows.

With `ceil_mode`, a last, partial window produces an output unless it starts after the end of the
data and its leading padding. An average is divided by the number of data elements in the window or,
with `count_include_pad`, of data and padding elements.

    max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1))
    global_avg_pool2d(x)               # (N, C, H, W) -> (N, C, 1, 1)
    adaptive_avg_pool2d(x, (7, 7))     # (N, C, H, W) -> (N, C, 7, 7)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd, prod
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from aotc.ir import Attrs, Dim, DType, TensorType, Type, frozen
from aotc.ir.op import AxisMap, OpPattern, Precision, Quantized, Types, require
from aotc.relay.op import window_attributes
from aotc.relay.op.contraction import as_dtype, float_work, sum_type, truncated_quotient
from aotc.relay.op.layout import in_blocks
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import cases, greater, lesser, random_sample, ranked, require_dtype, tensor
from aotc.relay.op.window_attributes import arrange, each_axis, for_axes, pick, spread, steps
from aotc.tir import Const, Operand, Tensor, all_of, binary, const, maximum, te


class MaxPoolAttrs(Attrs):
    """Attributes of a sliding maximum; those of one dimensionality have one value for each axis."""

    pool_size: tuple[int, ...]
    strides: tuple[int, ...] = (1,)
    dilation: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0,)
    layout: str = ""
    out_layout: str = ""
    ceil_mode: bool = False


class AvgPoolAttrs(MaxPoolAttrs):
    """Attributes of a sliding mean."""

    count_include_pad: bool = False


def pool_layouts(n: int, a: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the positions of the canonical axes (N, C, spatial axes) in the data and in the
    result.
    """
    return window_attributes.layouts(n, a.layout, a.out_layout)


def pool_op(
    n: int, kind: str, mean: bool, doc: str, extents: Callable[..., Any], values: Callable[..., Array], **facets: Any
) -> OpDef:
    """Return the OpDef of a pool over `n` spatial axes.

    kind     "" for sliding windows, "adaptive" or "global"
    mean     True for average pooling, False for max pooling
    doc      documentation, in which {} stands for the pooled value
    extents  (attrs, the data's spatial extents) -> the result's spatial extents
    values   (attrs, data in canonical axis order and in the dtype of the computation, the data's dtype) -> the result
             in canonical axis order
    """

    def infer(a: Any, types: Types) -> Type:
        data = ranked("pool.rank", types[0], n + 2)
        require_dtype(data.dtype, not (mean and data.dtype.is_bool))
        source, result = pool_layouts(n, a)
        batch, channels, *space = pick(data.shape, source)
        return TensorType(arrange((batch, channels, *extents(a, space)), result), data.dtype)

    def reference(a: Any, data: Array) -> Array:
        source, result = pool_layouts(n, a)
        dtype = DType.of(data)
        work = data.astype(sum_type(dtype).numpy) if mean else float_work(data)
        return window_attributes.laid_out(
            as_dtype(values(a, window_attributes.canonical(work, source), dtype), data.dtype), result
        )

    name = "_".join(filter(None, (kind, "avg" if mean else "max", f"pool{n}d")))
    shared: dict[str, Any] = {
        "pattern": OpPattern.OUT_ELEMWISE_FUSABLE,
        "axes": lambda a, _: AxisMap((window_attributes.axes_kept(*pool_layouts(n, a), 2),)),
        "precision": None if mean else Precision.FOLLOW,
        "quantized": Quantized.RESCALE if mean else Quantized.PASS,
    }
    what = "mean" if mean else "greatest value"
    return in_blocks(
        OpDef(name=f"nn.{name}", doc=doc.format(what), infer=infer, reference=reference, **shared | facets)
    )


# --- sliding windows


@frozen
class _Window:
    """Sliding window along one axis: tap k of output i reads position `i * stride - pad + k *
    dilation`.
    """

    extent: int
    size: int
    stride: int
    dilation: int
    pad: tuple[int, int]
    count: int  # outputs

    def at(self, i: Scalar, k: Scalar) -> Scalar:
        return i * self.stride + k * self.dilation - self.pad[0]

    def guard(self, i: Scalar, k: Scalar) -> list[Scalar]:
        """Return the conditions for a tap to be inside the data; empty if all taps of all outputs
        are inside.
        """
        leaves = self.pad[0] > 0 or self.reach() > self.pad[0] + self.extent
        return [self.at(i, k) >= 0, self.at(i, k) < self.extent] if leaves else []

    def bounds(self, include_pad: bool) -> tuple[int, int]:
        """Return the half-open range of positions that an average counts."""
        return (-self.pad[0], self.extent + self.pad[1]) if include_pad else (0, self.extent)

    def reach(self) -> int:
        """Return the number of positions from the first tap of the first output to the last tap or
        the end of the data.
        """
        last = (self.count - 1) * self.stride + (self.size - 1) * self.dilation + 1
        return max(last, self.pad[0] + self.extent)

    def seen(self, i: Any, include_pad: bool) -> Any:
        """Return the number of counted taps of outputs `i`, an expression or an array."""
        low, high = self.bounds(include_pad)
        start = i * self.stride - self.pad[0]
        first = greater((low - start + (self.dilation - 1)) // self.dilation, 0)
        last = lesser((high - 1 - start) // self.dilation, self.size - 1)
        return last - first + 1

    def seen_at(self, i: Scalar, include_pad: bool) -> Operand:
        """Return the number of counted taps of output `i`: an integer if it is equal for all
        outputs, else an expression.
        """
        ends = {int(n) for n in self.seen(np.array([0, self.count - 1]), include_pad)}
        low, high = self.bounds(include_pad)
        # if the first and the last window are complete or cover all of the data, so do the windows
        # between them
        alike = {self.size, high - low} if self.dilation == 1 else {self.size}
        if self.count == 1 or (len(ends) == 1 and ends <= alike):
            return ends.pop()
        found: Operand = self.seen(i, include_pad)
        return found


def windows_of(n: int, a: MaxPoolAttrs, space: Sequence[int]) -> list[_Window]:
    size = spread(a.pool_size, n)
    counts = window_attributes.window_extents(n, a, space, size, a.ceil_mode)
    return [_Window(*w) for w in zip(space, size, *steps(n, a), counts, strict=True)]


def _extents(n: int, a: MaxPoolAttrs, space: Sequence[Dim]) -> list[Dim]:
    return window_attributes.window_extents(n, a, space, spread(a.pool_size, n), a.ceil_mode)


def pooled(n: int, a: Any, data: Tensor, parts: Sequence[Any], mean: bool = False, name: str = "") -> te.Reduce:
    """Return the reduction (maximum or sum) over windows that are the product of one part per
    spatial axis.

    A part describes an axis: `count` outputs with `size` taps each, tap k of output i at position
    `at(i, k)`, counted if all conditions of `guard(i, k)` hold.
    """
    source, result = pool_layouts(n, a)
    batch, channels, *_ = pick(data.shape, source)
    combiner = "sum" if mean else "or" if data.dtype.is_bool else "max"
    dtype = sum_type(data.dtype) if mean else data.dtype

    def taps(v: Sequence[Scalar]) -> list[tuple[Any, Scalar, Scalar]]:
        return list(zip(parts, pick(v, result[2:]), v[n + 2 :], strict=True))

    def body(*v: Scalar) -> Scalar:
        where = (*pick(v, result[:2]), *(p.at(i, k) for p, i, k in taps(v)))
        return data[arrange(where, source)].astype(dtype)

    def guard(*v: Scalar) -> Scalar:
        return all_of(*(c for p, i, k in taps(v) for c in p.guard(i, k)))

    shape = arrange((batch, channels, *(p.count for p in parts)), result)
    nothing = const(0)
    some = guard if any(p.guard(nothing, nothing) for p in parts) else None
    return te.reduce(combiner, shape, [p.size for p in parts], body, name or f"{combiner}_pool", guard=some)


def divided(total: Scalar, count: Scalar | int) -> Scalar:
    """Return total / count, truncated for integers; a count of 0 is treated as 1."""
    if not isinstance(count, int):
        count = maximum(count, 1).astype(total.dtype)
    elif count <= 1:
        return total
    return total / count if total.dtype.is_float else binary("truncdiv", total, count)


#: Smallest number of taps for which max pooling runs axis by axis: k + k comparisons instead of k *
#: k.
SEPARATE_TAPS: Final = 25
#: Smallest number of taps for pooling axis by axis if rows have at least LONG columns; on shorter
#: rows the loop overhead exceeds the savings.
SEPARATE_TAPS_LONG: Final = 9
LONG: Final = 48


def _compute_max(n: int, a: MaxPoolAttrs, data: Tensor) -> Tensor:
    source, result = pool_layouts(n, a)
    space = pick(data.shape, source)[2:]
    windows = windows_of(n, a, space)
    wide = [w.size for w in windows if w.size > 1]
    least = SEPARATE_TAPS_LONG if space[-1] >= LONG else SEPARATE_TAPS
    if len(wide) < 2 or prod(wide) < least or source != result:
        return pooled(n, a, data, windows)
    for axis, own in enumerate(windows):  # rows first: whole rows are compared elementwise
        single = (_Window(extent, 1, 1, 1, (0, 0), extent) for extent in pick(data.shape, source)[2:])
        data = pooled(n, a, data, [own if k == axis else w for k, w in enumerate(single)])
    return data


def _compute_avg(n: int, a: Any, data: Tensor) -> Tensor:
    source, result = pool_layouts(n, a)
    windows = windows_of(n, a, pick(data.shape, source)[2:])
    total = pooled(n, a, data, windows, mean=True)

    def body(*v: Scalar) -> Scalar:
        seen = [w.seen_at(v[p], a.count_include_pad) for w, p in zip(windows, result[2:], strict=True)]
        count: Any = prod(s for s in seen if isinstance(s, int))
        for s in seen:
            count = count if isinstance(s, int) else s * count
        return divided(total[v], count).astype(data.dtype)

    return te.compute(total.shape, body, "avg_pool")


def _values(n: int, mean: bool, a: Any, x: Array, dtype: DType) -> Array:
    windows = windows_of(n, a, x.shape[2:])
    reach = [(w.size - 1) * w.dilation + 1 for w in windows]
    pads = ((w.pad[0], w.reach() - w.extent - w.pad[0]) for w in windows)
    x = np.pad(x, ((0, 0), (0, 0), *pads), constant_values=0 if mean else dtype.lowest)
    view = sliding_window_view(x, reach, tuple(range(2, n + 2)))
    outputs = [slice(0, (w.count - 1) * w.stride + 1, w.stride) for w in windows]
    taps = (slice(None, None, w.dilation) for w in windows)
    steps = (slice(None), slice(None), *outputs, *taps)
    inner = tuple(range(-n, 0))
    if not mean:
        return np.asarray(view[steps].max(axis=inner))
    count = np.ones((), np.int64)
    for w in windows:
        count = np.multiply.outer(count, np.maximum(w.seen(np.arange(w.count), a.count_include_pad), 1))
    return mean_of(in_order(view[steps], n), count)


def _scratch(n: int, a: MaxPoolAttrs, types: Types) -> int:
    """Return the number of elements of the padded data, the scratch memory of the operator."""
    batch, channels, *space = pick(tensor(types[0]).static_shape, pool_layouts(n, a)[0])
    return batch * channels * prod(w.reach() for w in windows_of(n, a, space))


def in_order(windows: Array, n: int) -> Array:
    """Return the sums over the last `n` axes, added in row-major order: float sums depend on the
    order.
    """
    total = np.zeros(windows.shape[:-n], windows.dtype)
    for tap in np.ndindex(*windows.shape[-n:]):
        place = (Ellipsis, *tap)
        total += windows[place]
    return total


def mean_of(total: Array, count: Any) -> Array:
    """Return total / count, truncated for integers; a count of 0 is treated as 1."""
    count = np.maximum(count, 1)
    if DType.of(total).is_float:
        return np.asarray(total / np.asarray(count).astype(total.dtype))
    return truncated_quotient(total, count)


# --- samples and the table

POOLED: Final = {1: (2, 3, 9), 2: (1, 3, 8, 7), 3: (1, 2, 5, 6, 4)}


def _samples(n: int, attributes: type[MaxPoolAttrs]) -> Samples:
    def sample(dtype: str = "float32", **fields: Any) -> Sample:
        return random_sample((POOLED[n],), attributes(**fields), dtype)

    yield sample(pool_size=(2,) * n, strides=(2,) * n)
    yield sample(pool_size=(3,) * n, strides=(2,) * n, padding=(1,) * n, ceil_mode=True)
    yield sample(pool_size=(2,) * n, dilation=(2,) * n, padding=(1, 0) * n)
    yield sample(pool_size=(3,) * n, strides=(2,) * n, padding=(1,) * n, dtype="int8")
    yield sample(pool_size=(3,) * n, dtype="float16")
    yield sample(pool_size=(5,) * n, strides=(2,) * n, padding=(2,) * n, ceil_mode=True)
    if issubclass(attributes, AvgPoolAttrs):
        yield sample(pool_size=(3,) * n, strides=(2,) * n, padding=(1,) * n, ceil_mode=True, count_include_pad=True)
    if n == 2:
        yield sample(pool_size=(3, 2), padding=(1, 0), layout="NHWC")
        yield sample(pool_size=(3, 2), out_layout="NHWC")
        yield random_sample(((1, 2, 8, 7, 4),), attributes(pool_size=(3, 2), layout="NCHW4c"))


def _pool(n: int, mean: bool) -> OpDef:
    base, size = AvgPoolAttrs if mean else MaxPoolAttrs, each_axis(n, given=(1,) * n)
    attributes = window_attributes.for_axes(n, base, f"{'Avg' if mean else 'Max'}Pool{n}DAttrs", pool_size=size)
    return pool_op(
        n,
        "",
        mean,
        "The {} over each window.",
        partial(_extents, n),
        partial(_values, n, mean),
        attrs=attributes,
        scratch=partial(_scratch, n),
        precision=Precision.FOLLOW,
        compute=partial(_compute_avg if mean else _compute_max, n),
        samples=partial(_samples, n, attributes),
    )


max_pool1d, max_pool2d, max_pool3d = (_pool(n, mean=False) for n in (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = (_pool(n, mean=True) for n in (1, 2, 3))


# --- pools over all of the data, or over windows that cut it into a given number of parts


class GlobalPoolAttrs(Attrs):
    """Attributes of a pool over all of the data."""

    layout: str = ""
    out_layout: str = ""


GlobalPool1DAttrs, GlobalPool2DAttrs, GlobalPool3DAttrs = (
    for_axes(n, GlobalPoolAttrs, f"GlobalPool{n}DAttrs") for n in (1, 2, 3)
)


class AdaptivePoolAttrs(Attrs):
    """Attributes of an adaptive pool; an empty `output_size` keeps the data's."""

    output_size: tuple[int, ...] = ()
    layout: str = ""
    out_layout: str = ""


@frozen
class _Part:
    """Adaptive window along one axis: output i covers positions floor(i * extent / count) to
    ceil((i + 1) * extent / count).
    """

    extent: int
    count: int

    def ends(self, i: Any) -> tuple[Any, Any]:
        """Return the half-open range of positions that output i covers."""
        return i * self.extent // self.count, ((i + 1) * self.extent + (self.count - 1)) // self.count

    @property
    def widths(self) -> tuple[int, int]:
        """Return the smallest and the largest number of positions that an output covers.

        With extent = q * count + r, output i covers q + ceil((i * r % count + r) / count)
        positions, and i * r % count takes every multiple of gcd(r, count).
        """
        whole, rest = divmod(self.extent, self.count)
        if rest == 0:
            return whole, whole
        return whole + 1, whole + (2 if rest > gcd(rest, self.count) else 1)

    @property
    def size(self) -> int:
        return self.widths[1]

    def at(self, i: Scalar, k: Scalar) -> Scalar:
        return i * self.extent // self.count + k

    def guard(self, i: Scalar, k: Scalar) -> list[Scalar]:
        low, high = self.ends(i)
        least, most = self.widths
        return [low + k < high] if least != most else []


def _sizes(n: int, a: AdaptivePoolAttrs, space: Sequence[Dim]) -> Sequence[Dim]:
    sizes = spread(a.output_size, n) if a.output_size else space
    positive = all(not isinstance(m, int) or m > 0 for m in sizes)
    require("pool.size", positive, f"output_size must be positive, got {a.output_size}")
    return sizes


def _parts(n: int, a: AdaptivePoolAttrs, space: Sequence[int]) -> list[_Part]:
    return list(map(_Part, space, spread(a.output_size, n) if a.output_size else space))


def _compute_adaptive(n: int, mean: bool, name: str, a: AdaptivePoolAttrs, data: Tensor) -> Tensor:
    source, result = pool_layouts(n, a)
    parts = _parts(n, a, pick(data.shape, source)[2:])
    total = pooled(n, a, data, parts, mean, name)

    def body(*v: Scalar) -> Scalar:
        fixed, varying = 1, const(1)
        for p, part in zip(result[2:], parts, strict=True):
            low, high = part.ends(v[p])
            if part.extent % part.count == 0:
                fixed *= part.size
            else:
                varying = varying * (high - low)
        return divided(total[v], fixed if isinstance(varying, Const) else varying * fixed).astype(data.dtype)

    return te.compute(total.shape, body, "avg_pool") if mean else total


def _adaptive_values(n: int, mean: bool, a: AdaptivePoolAttrs, x: Array, dtype: DType) -> Array:
    count = np.ones((), np.int64)
    for axis, part in enumerate(_parts(n, a, x.shape[2:]), start=2):
        spans = [part.ends(i) for i in range(part.count)]
        seen = [np.take(x, range(*span), axis) for span in spans]
        x = np.stack([s.sum(axis) if mean else s.max(axis, initial=dtype.lowest) for s in seen], axis)
        count = np.multiply.outer(count, [hi - lo for lo, hi in spans])
    return mean_of(x, count) if mean else x


# --- samples and the table


_GLOBAL: Any = (
    (((2, 3, 5, 4),), {}),
    (((2, 5, 4, 3),), {"layout": "NHWC"}),
    (((1, 3, 5, 4),), {}, "int32"),
    (((1, 3, 5, 4),), {}, "float16"),
)


def _adaptive_samples(n: int) -> list[Any]:
    plain = [((POOLED[n],), {"output_size": (size,) * n} if size else {}) for size in (3, 1, 0)]
    return plain + ([(((2, 8, 6, 3),), {"output_size": (4, 4), "layout": "NHWC"})] if n == 2 else [])


def _adapted(of: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a global pool derived from the adaptive pool with an output size of 1."""

    def said(a: GlobalPoolAttrs, *given: Any) -> Any:
        return of(AdaptivePoolAttrs(output_size=(1,), **dict(a.items())), *given)

    return said


def _adaptive_facets(n: int, mean: bool, name: str) -> dict[str, Any]:
    """Return the functions that define an adaptive pool over `n` axes, whose tensor is called
    `name`.
    """
    return {
        "extents": partial(_sizes, n),
        "values": partial(_adaptive_values, n, mean),
        "compute": partial(_compute_adaptive, n, mean, name),
    }


def _global_pool(n: int, attributes: type[GlobalPoolAttrs], mean: bool) -> OpDef:
    name = f"{'sum' if mean else 'max'}_pool"
    facets = {k: _adapted(v) for k, v in _adaptive_facets(n, mean, name).items()}
    doc = f"The {{}} of each channel: (N, C{', 1' * n})."
    samples = cases(attributes, _GLOBAL if n == 2 else [((POOLED[n],), {})])
    return pool_op(n, "global", mean, doc, attrs=attributes, samples=samples, **facets)


def _adaptive_pool(n: int, mean: bool) -> OpDef:
    size = each_axis(n, (), given=None)
    attributes = for_axes(n, AdaptivePoolAttrs, f"AdaptivePool{n}DAttrs", output_size=size)
    doc = "The {} over windows that cut each spatial axis into `output_size` parts."
    samples, facets = cases(attributes, _adaptive_samples(n)), _adaptive_facets(n, mean, "pool")
    return pool_op(n, "adaptive", mean, doc, attrs=attributes, samples=samples, **facets)


global_max_pool1d, global_avg_pool1d = (_global_pool(1, GlobalPool1DAttrs, mean) for mean in (False, True))
global_max_pool2d, global_avg_pool2d = (_global_pool(2, GlobalPool2DAttrs, mean) for mean in (False, True))
global_max_pool3d, global_avg_pool3d = (_global_pool(3, GlobalPool3DAttrs, mean) for mean in (False, True))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive_pool(n, mean=False) for n in (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive_pool(n, mean=True) for n in (1, 2, 3))
