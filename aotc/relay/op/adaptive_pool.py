# SPDX-License-Identifier: Apache-2.0
"""Pools over all of the data, or over windows that cut it into a given number of parts.

global_avg_pool2d(x)                   # (N, C, H, W) -> (N, C, 1, 1)
adaptive_avg_pool2d(x, (7, 7))         # (N, C, H, W) -> (N, C, 7, 7)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import gcd, prod
from typing import Any

import numpy as np

from aotc.ir.attrs import Attrs, attrs
from aotc.ir.dims import Dim
from aotc.ir.dtype import DType
from aotc.ir.op import OpPattern, require
from aotc.ir.types import TensorType, Type
from aotc.relay.expr import Call, Expr, call
from aotc.relay.op.contract import as_dtype, float_work, sum_type
from aotc.relay.op.opdef import Array, OpDef, Sample
from aotc.relay.op.pool import divided, mean_of, pool_axes, pool_data, pool_layouts
from aotc.relay.op.samples import random_sample
from aotc.relay.op.window import Ints, arrange, canonical, laid_out, pick, spread
from aotc.tir import te
from aotc.tir.expr import Const, all_of, const
from aotc.tir.expr import Expr as Scalar


@attrs
class GlobalPool2DAttrs(Attrs):
    layout: str = "NCHW"
    out_layout: str = ""


@attrs
class AdaptivePoolAttrs(Attrs):
    """Attributes of an adaptive pool; an empty `output_size` keeps the data's."""

    output_size: tuple[int, ...] = ()
    layout: str
    out_layout: str = ""


@attrs
class AdaptivePool1DAttrs(AdaptivePoolAttrs):
    layout: str = "NCW"


@attrs
class AdaptivePool2DAttrs(AdaptivePoolAttrs):
    layout: str = "NCHW"


@attrs
class AdaptivePool3DAttrs(AdaptivePoolAttrs):
    layout: str = "NCDHW"


# --- global windows


def _infer_global(mean: bool, a: GlobalPool2DAttrs, types: Sequence[Type]) -> Type:
    data = pool_data(2, types[0], mean)
    source, result = pool_layouts(2, a)
    return TensorType(arrange((*pick(data.shape, source)[:2], 1, 1), result), data.dtype)


def _whole(a: GlobalPool2DAttrs, data: te.Tensor, combiner: str, dtype: DType) -> te.Reduce:
    source, result = pool_layouts(2, a)
    batch, channels, *space = pick(data.shape, source)

    def body(*v: Scalar) -> Scalar:
        return data[arrange((v[result[0]], v[result[1]], v[4], v[5]), source)].astype(dtype)

    return te.reduce(combiner, arrange((batch, channels, 1, 1), result), space, body, f"{combiner}_pool")


def _compute_global_max(a: GlobalPool2DAttrs, args: Sequence[te.Tensor]) -> te.Tensor:
    (data,) = args
    return _whole(a, data, "or" if data.dtype.is_bool else "max", data.dtype)


def _compute_global_avg(a: GlobalPool2DAttrs, args: Sequence[te.Tensor]) -> te.Tensor:
    (data,) = args
    total = _whole(a, data, "sum", sum_type(data.dtype))
    count = prod(pick(data.shape, pool_layouts(2, a)[0])[2:])

    def body(*v: Scalar) -> Scalar:
        return divided(total[v], count).astype(data.dtype)

    return te.compute(total.shape, body, "avg_pool")


def _reference_global(mean: bool, a: GlobalPool2DAttrs, data: Array) -> Array:
    source, result = pool_layouts(2, a)
    x = canonical(data, source)
    if mean:
        total = x.astype(sum_type(DType.of(data)).numpy).sum(axis=(2, 3), keepdims=True)
        value = mean_of(total, prod(x.shape[2:])).astype(data.dtype)
    else:
        value = float_work(x).max(axis=(2, 3), keepdims=True, initial=DType.of(data).lowest).astype(data.dtype)
    return laid_out(value, result)


# --- adaptive windows: output i of m sees the data from i * extent // m to (i + 1) * extent / m, rounded up


def _sizes(n: int, a: AdaptivePoolAttrs, space: Sequence[Dim]) -> tuple[Dim, ...]:
    return spread(a.output_size, n) if a.output_size else tuple(space)


def _infer_adaptive(n: int, mean: bool, a: AdaptivePoolAttrs, types: Sequence[Type]) -> Type:
    data = pool_data(n, types[0], mean)
    source, result = pool_layouts(n, a)
    batch, channels, *space = pick(data.shape, source)
    sizes = _sizes(n, a, space)
    require("pool.size", all(not isinstance(m, int) or m > 0 for m in sizes), f"output_size is {a.output_size}")
    return TensorType(arrange((batch, channels, *sizes), result), data.dtype)


def _span(i: Any, extent: int, count: int) -> tuple[Any, Any]:
    """The first position that output i sees, and the one after the last."""
    return i * extent // count, ((i + 1) * extent + (count - 1)) // count


def _widths(extent: int, count: int) -> tuple[int, int]:
    """How many positions the narrowest and the widest output see.

    With extent = q * count + r, output i sees q + ceil((i * r % count + r) / count) positions, and i * r % count is
    every multiple of gcd(r, count).
    """
    whole, rest = divmod(extent, count)
    if rest == 0:
        return whole, whole
    return whole + 1, whole + (2 if rest > gcd(rest, count) else 1)


def _adaptive(n: int, a: AdaptivePoolAttrs, data: te.Tensor, combiner: str, dtype: DType) -> te.Reduce:
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
    return te.reduce(combiner, shape, [most for _, most in widths], body, "pool", guard=guard if uneven else None)


def _compute_adaptive_max(n: int, a: AdaptivePoolAttrs, args: Sequence[te.Tensor]) -> te.Tensor:
    (data,) = args
    return _adaptive(n, a, data, "or" if data.dtype.is_bool else "max", data.dtype)


def _compute_adaptive_avg(n: int, a: AdaptivePoolAttrs, args: Sequence[te.Tensor]) -> te.Tensor:
    (data,) = args
    source, result = pool_layouts(n, a)
    total = _adaptive(n, a, data, "sum", sum_type(data.dtype))
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

_SHAPES = {1: (2, 3, 9), 2: (1, 3, 8, 7), 3: (1, 2, 5, 6, 4)}


def _global_samples() -> Iterable[Sample]:
    yield random_sample(((2, 3, 5, 4),), GlobalPool2DAttrs())
    yield random_sample(((2, 5, 4, 3),), GlobalPool2DAttrs(layout="NHWC"))
    yield random_sample(((1, 3, 5, 4),), GlobalPool2DAttrs(), "int32")
    yield random_sample(((1, 3, 5, 4),), GlobalPool2DAttrs(), "float16")


def _adaptive_samples(n: int, attributes: type[AdaptivePoolAttrs]) -> Iterable[Sample]:
    yield random_sample((_SHAPES[n],), attributes(output_size=(3,) * n))  # type: ignore[call-arg]
    yield random_sample((_SHAPES[n],), attributes(output_size=(1,) * n))  # type: ignore[call-arg]
    yield random_sample((_SHAPES[n],), attributes())  # type: ignore[call-arg]
    if n == 2:
        yield random_sample(((2, 8, 6, 3),), AdaptivePool2DAttrs(output_size=(4, 4), layout="NHWC"))


def _global_pool(mean: bool) -> OpDef:
    return OpDef(
        name=f"nn.global_{'avg' if mean else 'max'}_pool2d",
        attrs=GlobalPool2DAttrs,
        infer=partial(_infer_global, mean),
        reference=partial(_reference_global, mean),
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        axes=partial(pool_axes, 2),
        compute=_compute_global_avg if mean else _compute_global_max,
        samples=_global_samples,
    )


def _adaptive_pool(n: int, mean: bool) -> OpDef:
    return OpDef(
        name=f"nn.adaptive_{'avg' if mean else 'max'}_pool{n}d",
        attrs=_ADAPTIVE[n],
        infer=partial(_infer_adaptive, n, mean),
        reference=partial(_reference_adaptive, n, mean),
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        axes=partial(pool_axes, n),
        compute=partial(_compute_adaptive_avg if mean else _compute_adaptive_max, n),
        samples=partial(_adaptive_samples, n, _ADAPTIVE[n]),
    )


_ADAPTIVE: dict[int, type[AdaptivePoolAttrs]] = {1: AdaptivePool1DAttrs, 2: AdaptivePool2DAttrs, 3: AdaptivePool3DAttrs}
_ADAPTIVES = {(n, mean): _adaptive_pool(n, mean) for n in (1, 2, 3) for mean in (False, True)}
GLOBAL_MAX_POOL2D = _global_pool(False)
GLOBAL_AVG_POOL2D = _global_pool(True)

OPS: tuple[OpDef, ...] = (GLOBAL_MAX_POOL2D, GLOBAL_AVG_POOL2D, *_ADAPTIVES.values())


def global_max_pool2d(data: Expr, layout: str = "NCHW", out_layout: str = "") -> Call:
    """The greatest value of each channel: (N, C, 1, 1)."""
    return call(GLOBAL_MAX_POOL2D, (data,), GlobalPool2DAttrs(layout=layout, out_layout=out_layout))


def global_avg_pool2d(data: Expr, layout: str = "NCHW", out_layout: str = "") -> Call:
    """The mean of each channel: (N, C, 1, 1)."""
    return call(GLOBAL_AVG_POOL2D, (data,), GlobalPool2DAttrs(layout=layout, out_layout=out_layout))


def _build_adaptive(n: int, mean: bool, data: Expr, output_size: Ints | None, layout: str, out_layout: str) -> Call:
    op = _ADAPTIVES[n, mean]
    size = () if output_size is None else spread(output_size, n)
    fields = {"output_size": size, "layout": layout, "out_layout": out_layout}
    return call(op, (data,), op.attrs(**fields))


def adaptive_max_pool1d(data: Expr, output_size: Ints | None = None, layout: str = "NCW", out_layout: str = "") -> Call:
    """The greatest value over windows that cut each spatial axis into `output_size` parts."""
    return _build_adaptive(1, False, data, output_size, layout, out_layout)


def adaptive_avg_pool1d(data: Expr, output_size: Ints | None = None, layout: str = "NCW", out_layout: str = "") -> Call:
    """The mean over windows that cut each spatial axis into `output_size` parts."""
    return _build_adaptive(1, True, data, output_size, layout, out_layout)


def adaptive_max_pool2d(
    data: Expr, output_size: Ints | None = None, layout: str = "NCHW", out_layout: str = ""
) -> Call:
    """The greatest value over windows that cut each spatial axis into `output_size` parts."""
    return _build_adaptive(2, False, data, output_size, layout, out_layout)


def adaptive_avg_pool2d(
    data: Expr, output_size: Ints | None = None, layout: str = "NCHW", out_layout: str = ""
) -> Call:
    """The mean over windows that cut each spatial axis into `output_size` parts."""
    return _build_adaptive(2, True, data, output_size, layout, out_layout)


def adaptive_max_pool3d(
    data: Expr, output_size: Ints | None = None, layout: str = "NCDHW", out_layout: str = ""
) -> Call:
    """The greatest value over windows that cut each spatial axis into `output_size` parts."""
    return _build_adaptive(3, False, data, output_size, layout, out_layout)


def adaptive_avg_pool3d(
    data: Expr, output_size: Ints | None = None, layout: str = "NCDHW", out_layout: str = ""
) -> Call:
    """The mean over windows that cut each spatial axis into `output_size` parts."""
    return _build_adaptive(3, True, data, output_size, layout, out_layout)
