# SPDX-License-Identifier: Apache-2.0
"""Pools over all of the data, or over windows that cut it into a given number of parts.

global_avg_pool2d(x)                   # (N, C, H, W) -> (N, C, 1, 1)
adaptive_avg_pool2d(x, (7, 7))         # (N, C, H, W) -> (N, C, 7, 7)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd
from typing import Any

import numpy as np

from aotc.ir import Attrs, Dim, DType, frozen, require
from aotc.relay.op.opdef import Array, OpDef, Scalar
from aotc.relay.op.pool import POOLED, divided, mean_of, pool_layouts, pool_op, pooled
from aotc.relay.op.samples import cases
from aotc.relay.op.window import each_axis, for_axes, pick, spread
from aotc.tir import Const, const, te


class GlobalPool2DAttrs(Attrs):
    layout: str = "NCHW"
    out_layout: str = ""


class AdaptivePoolAttrs(Attrs):
    """Attributes of an adaptive pool; an empty `output_size` keeps the data's."""

    output_size: tuple[int, ...] = ()
    layout: str = ""
    out_layout: str = ""


@frozen
class _Part:
    """An axis that is cut: output i sees from i * extent // count to (i + 1) * extent / count, rounded up."""

    extent: int
    count: int

    def ends(self, i: Any) -> tuple[Any, Any]:
        """The first position that output i sees, and the one after the last."""
        return i * self.extent // self.count, ((i + 1) * self.extent + (self.count - 1)) // self.count

    @property
    def widths(self) -> tuple[int, int]:
        """How many positions the narrowest and the widest output see.

        With extent = q * count + r, output i sees q + ceil((i * r % count + r) / count)
        positions, and i * r % count is every multiple of gcd(r, count).
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


def _compute(n: int, mean: bool, name: str, a: AdaptivePoolAttrs, data: te.Tensor) -> te.Tensor:
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


def _values(n: int, mean: bool, a: AdaptivePoolAttrs, x: Array, dtype: DType) -> Array:
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


def _samples(n: int) -> list[Any]:
    plain = [((POOLED[n],), {"output_size": (size,) * n} if size else {}) for size in (3, 1, 0)]
    return plain + ([(((2, 8, 6, 3),), {"output_size": (4, 4), "layout": "NHWC"})] if n == 2 else [])


def _adapted(of: Callable[..., Any]) -> Callable[..., Any]:
    """A facet of global pools from that of adaptive pools: a global pool is one whose output is a single element."""

    def said(a: GlobalPool2DAttrs, *given: Any) -> Any:
        return of(AdaptivePoolAttrs(output_size=(1, 1), layout=a.layout, out_layout=a.out_layout), *given)

    return said


def _facets(n: int, mean: bool, name: str) -> dict[str, Any]:
    """How a pool of `n` axes is computed, a mean or a greatest value, in a tensor called `name`."""
    return {
        "extents": partial(_sizes, n),
        "values": partial(_values, n, mean),
        "compute": partial(_compute, n, mean, name),
    }


def _global_pool(mean: bool) -> OpDef:
    facets = {k: _adapted(v) for k, v in _facets(2, mean, f"{'sum' if mean else 'max'}_pool").items()}
    doc = "The {} of each channel: (N, C, 1, 1)."
    samples = cases(GlobalPool2DAttrs, _GLOBAL)
    return pool_op(2, "global", mean, doc, attrs=GlobalPool2DAttrs, samples=samples, **facets)


def _adaptive_pool(n: int, mean: bool) -> OpDef:
    size = each_axis(n, (), given=None)
    attributes = for_axes(n, AdaptivePoolAttrs, f"AdaptivePool{n}DAttrs", output_size=size)
    doc = "The {} over windows that cut each spatial axis into `output_size` parts."
    samples, facets = cases(attributes, _samples(n)), _facets(n, mean, "pool")
    return pool_op(n, "adaptive", mean, doc, attrs=attributes, samples=samples, **facets)


global_max_pool2d, global_avg_pool2d = map(_global_pool, (False, True))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive_pool(n, mean=False) for n in (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive_pool(n, mean=True) for n in (1, 2, 3))
