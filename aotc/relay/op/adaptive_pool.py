# SPDX-License-Identifier: Apache-2.0
"""Pools over all of the data, or over windows that cut it into a given number of parts.

global_avg_pool2d(x)                   # (N, C, H, W) -> (N, C, 1, 1)
adaptive_avg_pool2d(x, (7, 7))         # (N, C, H, W) -> (N, C, 7, 7)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd
from typing import Any

import numpy as np

from aotc.ir import Attrs, DType, TensorType, Type, Types, require
from aotc.relay.op.contract import as_dtype, float_work, sum_type
from aotc.relay.op.opdef import Array, OpDef, Samples, Scalar
from aotc.relay.op.pool import POOLED, divided, mean_of, pool_data, pool_layouts, pool_op
from aotc.relay.op.samples import random_sample
from aotc.relay.op.window import arrange, canonical, each_axis, for_axes, laid_out, pick, spread
from aotc.tir import Const, all_of, const, te


class GlobalPool2DAttrs(Attrs):
    layout: str = "NCHW"
    out_layout: str = ""


class AdaptivePoolAttrs(Attrs):
    """Attributes of an adaptive pool; an empty `output_size` keeps the data's."""

    output_size: tuple[int, ...] = ()
    layout: str = ""
    out_layout: str = ""


# output i of m sees the data from i * extent // m to (i + 1) * extent / m, rounded up


def _infer_adaptive(n: int, mean: bool, a: AdaptivePoolAttrs, types: Types) -> Type:
    data = pool_data(n, types[0], mean)
    source, result = pool_layouts(n, a)
    batch, channels, *space = pick(data.shape, source)
    sizes = spread(a.output_size, n) if a.output_size else space
    require("pool.size", all(not isinstance(m, int) or m > 0 for m in sizes), f"output_size is {a.output_size}")
    return TensorType(arrange((batch, channels, *sizes), result), data.dtype)


def _span(i: Any, extent: int, count: int) -> tuple[Any, Any]:
    """The first position that output i sees, and the one after the last."""
    return i * extent // count, ((i + 1) * extent + (count - 1)) // count


def _widths(extent: int, count: int) -> tuple[int, int]:
    """How many positions the narrowest and the widest output see.

    With extent = q * count + r, output i sees q + ceil((i * r % count + r) / count)
    positions, and i * r % count is every multiple of gcd(r, count).
    """
    whole, rest = divmod(extent, count)
    if rest == 0:
        return whole, whole
    return whole + 1, whole + (2 if rest > gcd(rest, count) else 1)


def _adaptive(n: int, a: AdaptivePoolAttrs, data: te.Tensor, combiner: str, dtype: DType, name: str) -> te.Reduce:
    source, result = pool_layouts(n, a)
    batch, channels, *space = pick(data.shape, source)
    sizes = spread(a.output_size, n) if a.output_size else space
    pairs = list(zip(space, sizes, strict=True))
    widths = [_widths(e, m) for e, m in pairs]

    def body(*v: Scalar) -> Scalar:
        at = [_span(v[p], e, m)[0] + k for p, (e, m), k in zip(result[2:], pairs, v[n + 2 :], strict=True)]
        return data[arrange((v[result[0]], v[result[1]], *at), source)].astype(dtype)

    def guard(*v: Scalar) -> Scalar:
        conditions = []
        for p, (e, m), k, (least, most) in zip(result[2:], pairs, v[n + 2 :], widths, strict=True):
            if least != most:
                low, high = _span(v[p], e, m)
                conditions.append(low + k < high)
        return all_of(*conditions)

    uneven = any(least != most for least, most in widths)
    shape = arrange((batch, channels, *sizes), result)
    return te.reduce(combiner, shape, [most for _, most in widths], body, name, guard=guard if uneven else None)


def _compute_max(n: int, name: str, a: AdaptivePoolAttrs, data: te.Tensor) -> te.Tensor:
    return _adaptive(n, a, data, "or" if data.dtype.is_bool else "max", data.dtype, name)


def _compute_avg(n: int, name: str, a: AdaptivePoolAttrs, data: te.Tensor) -> te.Tensor:
    source, result = pool_layouts(n, a)
    total = _adaptive(n, a, data, "sum", sum_type(data.dtype), name)
    space = pick(data.shape, source)[2:]

    def body(*v: Scalar) -> Scalar:
        fixed, varying = 1, const(1)
        for p, extent in zip(result[2:], space, strict=True):
            low, high = _span(v[p], extent, total.shape[p])
            if extent % total.shape[p] == 0:
                fixed *= extent // total.shape[p]
            else:
                varying = varying * (high - low)
        return divided(total[v], fixed if isinstance(varying, Const) else varying * fixed).astype(data.dtype)

    return te.compute(total.shape, body, "avg_pool")


def _reference_adaptive(n: int, mean: bool, a: AdaptivePoolAttrs, data: Array) -> Array:
    source, result = pool_layouts(n, a)
    x = canonical(data, source)
    x = x.astype(sum_type(DType.of(data)).numpy) if mean else float_work(x)
    sizes = spread(a.output_size, n) if a.output_size else x.shape[2:]
    count = np.ones((), np.int64)
    for axis, (extent, m) in enumerate(zip(x.shape[2:], sizes, strict=True), start=2):
        spans = [_span(i, extent, m) for i in range(m)]
        parts = [np.take(x, range(*span), axis) for span in spans]
        x = np.stack([p.sum(axis) if mean else p.max(axis, initial=DType.of(data).lowest) for p in parts], axis)
        count = np.multiply.outer(count, [hi - lo for lo, hi in spans])
    value = mean_of(x, count) if mean else x
    return laid_out(as_dtype(value, data.dtype), result)


# --- samples and the table


def _global_samples() -> Samples:
    yield random_sample(((2, 3, 5, 4),), GlobalPool2DAttrs())
    yield random_sample(((2, 5, 4, 3),), GlobalPool2DAttrs(layout="NHWC"))
    yield random_sample(((1, 3, 5, 4),), GlobalPool2DAttrs(), "int32")
    yield random_sample(((1, 3, 5, 4),), GlobalPool2DAttrs(), "float16")


def _adaptive_samples(n: int, attributes: type[AdaptivePoolAttrs]) -> Samples:
    yield random_sample((POOLED[n],), attributes(output_size=(3,) * n))
    yield random_sample((POOLED[n],), attributes(output_size=(1,) * n))
    yield random_sample((POOLED[n],), attributes())
    if n == 2:
        yield random_sample(((2, 8, 6, 3),), attributes(output_size=(4, 4), layout="NHWC"))


def _adapted(of: Callable[..., Any]) -> Callable[..., Any]:
    """A facet of global pools from that of adaptive pools: a global pool is one whose output is a single element."""

    def said(a: GlobalPool2DAttrs, *given: Any) -> Any:
        return of(AdaptivePoolAttrs(output_size=(1, 1), layout=a.layout, out_layout=a.out_layout), *given)

    return said


def _facets(n: int, mean: bool, name: str) -> dict[str, Any]:
    """How a pool of `n` axes is computed, a mean or a greatest value, in a tensor called `name`."""
    return {
        "infer": partial(_infer_adaptive, n, mean),
        "reference": partial(_reference_adaptive, n, mean),
        "compute": partial(_compute_avg if mean else _compute_max, n, name),
    }


def _global_pool(mean: bool) -> OpDef:
    what = "mean" if mean else "greatest value"
    facets = {k: _adapted(v) for k, v in _facets(2, mean, f"{'sum' if mean else 'max'}_pool").items()}
    doc = f"The {what} of each channel: (N, C, 1, 1)."
    return pool_op(2, "global", mean, doc=doc, attrs=GlobalPool2DAttrs, samples=_global_samples, **facets)


def _adaptive_pool(n: int, mean: bool) -> OpDef:
    size = each_axis(n, (), given=None)
    attributes = for_axes(n, AdaptivePoolAttrs, f"AdaptivePool{n}DAttrs", output_size=size)
    what = "mean" if mean else "greatest value"
    doc = f"The {what} over windows that cut each spatial axis into `output_size` parts."
    samples, facets = partial(_adaptive_samples, n, attributes), _facets(n, mean, "pool")
    return pool_op(n, "adaptive", mean, doc=doc, attrs=attributes, samples=samples, **facets)


global_max_pool2d, global_avg_pool2d = map(_global_pool, (False, True))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive_pool(n, mean=False) for n in (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive_pool(n, mean=True) for n in (1, 2, 3))
