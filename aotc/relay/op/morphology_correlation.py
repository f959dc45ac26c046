# SPDX-License-Identifier: Apache-2.0
"""Sliding-window operators for images: dilation2d, deformable_conv2d and correlation.

dilation2d(x, w)                       # the maximum of x + w over a window
deformable_conv2d(x, offset, w)        # a convolution with data-dependent, fractional tap positions
correlation(x, y, 1, 4)                # products of x and of y shifted by up to 4 pixels
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import floordiv, mod
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, Infer, Layout, OpPattern, Precision, TensorType, Type, Types, args, param, require
from aotc.ir.dimensions import Dim, is_static, static_shape
from aotc.relay.op import conv
from aotc.relay.op.contraction import as_dtype, float_work, promoted
from aotc.relay.op.gather import clipped
from aotc.relay.op.opdef import Array, Index, OpDef, Samples, Scalar, types_of
from aotc.relay.op.operator_definition import (
    cases,
    choose,
    intrinsic,
    random_sample,
    spread,
    window_extent,
    window_extents,
)
from aotc.relay.op.roi_ops import beside, blended, floor
from aotc.relay.op.type_rules import float_tensor, require_same_dtype, shape_text
from aotc.relay.op.window_attributes import (
    arrange,
    each_axis,
    full_padding,
    may_equal,
    pad_pairs,
    paddings,
    pick,
    positions,
)
from aotc.tir import Tensor, te

_abs = intrinsic("abs")
_FACETS: Final[Any] = {"pattern": OpPattern.OUT_ELEMWISE_FUSABLE, "precision": Precision.NEVER}


def _batch(a: Any) -> tuple[int | None, ...]:
    """Return an axis-map row that maps only the batch axis of the data layout."""
    return tuple(k if letter == "N" else None for k, letter in enumerate(a.data_layout))


def _pixel(x: Any, where: Sequence[int], at: Sequence[Any], outside: float) -> Any:
    """Return the element of an image at canonical position (N, C, H, W), or `outside` if it is out
    of bounds.
    """
    space = pick(x.shape, where)[2:]
    (y, height), (z, width) = zip(at[2:], space, strict=True)
    inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
    place = (*at[:2], clipped(y, height), clipped(z, width))
    return choose(inside, x[arrange(place, where)], outside)


def _folding(
    name: str, infer: Infer, combiner: str, sizes: Callable[..., Sequence[int]], term: Callable[..., Any]
) -> dict[str, Any]:
    """Return `infer`, `reference` and `compute` of an operator that reduces terms over windows.

    combiner  "sum", "mean" or "max"
    sizes     (attributes, *arguments) -> the extents of the window's axes
    term      (attributes, (*axes, *taps), *arguments) -> the term of a result element and a tap, for
              arrays as well as for scalar expressions
    """
    start, fold = (-np.inf, np.maximum) if combiner == "max" else (0.0, np.add)

    def typed(a: Any, given: Any) -> TensorType:
        result = infer(a, types_of(given))
        assert isinstance(result, TensorType)
        return result

    def reference(a: Any, *given: Array) -> Array:
        result, work = typed(a, given), [float_work(x) for x in given]
        total = np.full(result.static_shape, start, work[0].dtype)
        axes, extents = np.indices(total.shape, sparse=True), sizes(a, *given)
        for tap in np.ndindex(*extents):
            total = fold(total, term(a, (*axes, *tap), *work))
        count = total.dtype.type(np.prod(extents))
        return as_dtype(total / count if combiner == "mean" else total, result.dtype)

    def compute(a: Any, *given: Tensor) -> Tensor:
        result, work = typed(a, given), [promoted(x) for x in given]
        extents, kind = sizes(a, *given), "sum" if combiner == "mean" else combiner

        def body(*v: Scalar) -> Any:
            return term(a, v, *work)

        def finished(*i: Scalar) -> Scalar:
            value = total[i]
            count = float(np.prod(extents))
            return (value / count if combiner == "mean" else value).astype(result.dtype)

        total: Tensor = te.reduce(kind, result.static_shape, extents, body, name)
        return te.compute(total.shape, finished, "finished")

    return {"infer": infer, "reference": reference, "compute": compute}


# --- image.dilation2d


def _two(values: Any, _: Any) -> tuple[int, ...]:
    """Convert an integer or a sequence to a tuple for two axes; values after the second are
    ignored.
    """
    return spread(values if isinstance(values, int) else tuple(values)[:2], 2)


class Dilation2DAttrs(Attrs):
    """Grayscale dilation: the maximum over a window of data (N, C, H, W) plus weight (C, KH, KW),
    per channel.
    """

    strides: tuple[int, ...] = param(default=(1, 1), takes=_two)
    padding: tuple[int, ...] = paddings(2)
    dilations: tuple[int, ...] = param(default=(1, 1), takes=_two)
    data_layout: str = "NCHW"
    kernel_layout: str = "IHW"
    out_dtype: str = ""


def _dilation_layouts(a: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return positions(a.data_layout, "NCHW"), positions(a.kernel_layout, "IHW")


def _dilation_infer(a: Any, types: Types) -> Type:
    data, weight = map(float_tensor, types)
    require_same_dtype(data, weight)
    ranks = data.rank == 4 and weight.rank == 3
    require("dilation2d.rank", ranks, lambda: f"data must have rank 4 and the weight 3, got {data} and {weight}")
    where, inner = _dilation_layouts(a)
    batch, channels, *space = pick(data.shape, where)
    own, *taps = pick(weight.shape, inner)
    fits = is_static(taps) and may_equal(channels, own)
    require("dilation2d.weight", fits, lambda: f"the weight {weight} does not fit {data}")
    require("resize.empty", 0 not in data.shape, lambda: f"nothing to sample in {data}")
    steps = (a.strides, a.dilations, pad_pairs(a.padding, 2))
    rows = zip(space, static_shape(taps), *steps, strict=True)
    shape = (batch, channels, *(window_extent(*row) for row in rows))
    return TensorType(arrange(shape, where), a.out_dtype or data.dtype)


def _dilation_term(a: Any, v: Index, data: Any, weight: Any) -> Any:
    where, inner = _dilation_layouts(a)
    image, channel, *out = pick(v[:4], where)
    pads = pad_pairs(a.padding, 2)
    rows = zip(out, v[4:], a.strides, a.dilations, pads, strict=True)
    at = [o * s + k * d - before for o, k, s, d, (before, _) in rows]
    seen = _pixel(data, where, (image, channel, *at), -np.inf)
    return seen + weight[arrange((channel, *v[4:]), inner)]


def _taps(a: Any, _: Any, weight: Any) -> tuple[int, ...]:
    return pick(weight.shape, _dilation_layouts(a)[1])[1:]


_LAST: Final = {"data_layout": "NHWC", "kernel_layout": "HWI"}

dilation2d = OpDef(
    name="image.dilation2d",
    attrs=Dilation2DAttrs,
    args=args("data", "weight"),
    axes=lambda a, _: AxisMap((_batch(a), (None,) * 4)),
    samples=cases(
        Dilation2DAttrs,
        (
            (((2, 3, 5, 6), (3, 2, 3)), {"padding": (1, 0, 1, 2)}),
            (((1, 5, 6, 2), (2, 2, 2)), {"strides": (1, 2), "dilations": (2, 1), **_LAST}),
            (((1, 1, 3, 3), (1, 2, 2)), {}, "float16"),
        ),
    ),
    **_folding("dilation2d", _dilation_infer, "max", _taps, _dilation_term),
    layout=Layout.BARRIER,
    **_FACETS,
)


# --- nn.deformable_conv2d


class DeformableConv2DAttrs(Attrs):
    """2-D convolution with a data-dependent offset for each tap of each output.

    data (N, C, H, W), offset (N, deformable_groups * KH * KW * 2, OH, OW) with a y and an x offset
    for each tap. Channels are divided among the `deformable_groups`. Values between pixels are
    interpolated bilinearly, values outside of the image are 0.
    """

    strides: tuple[int, ...] = each_axis(2, 1)
    padding: tuple[int, ...] = paddings(2)
    dilation: tuple[int, ...] = each_axis(2, 1)
    deformable_groups: int = 1
    groups: int = 1
    channels: int | None = None
    kernel_size: tuple[int, ...] | None = each_axis(2, None)
    data_layout: str = "NCHW"
    kernel_layout: str = "OIHW"
    out_layout: str = ""
    out_dtype: str = ""


def _layouts(a: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    same = a.out_layout in ("", a.data_layout)
    require("layout", same, f"out_layout must be {a.data_layout}, got {a.out_layout!r}")
    return positions(a.data_layout, "NCHW"), positions(a.kernel_layout, "OIHW")


def _deformed(a: Any, data: Sequence[Dim], taps: Any) -> tuple[Dim, ...]:
    """Return the shape of the offsets with axes in the order (N, C, H, W)."""
    batch, _, *space = pick(data, _layouts(a)[0])
    count = a.deformable_groups * taps[0] * taps[1] * 2
    return (batch, count, *window_extents(2, a, space, taps))


def _deformable_infer(a: Any, types: Types) -> Type:
    data, offset, weight = map(float_tensor, types)
    ranks = data.rank == offset.rank == weight.rank == 4
    require("deformable.rank", ranks, lambda: f"{data}, {offset} and {weight} must have rank 4")
    require_same_dtype(data, weight)
    require_same_dtype(data, offset)
    where, kernel = _layouts(a)
    channels = pick(data.shape, where)[1]
    dims = (*pick(weight.shape, kernel), channels)
    require("dynamic-shape", is_static(dims), lambda: f"unknown taps or channels: {data}, {weight}")
    out, inner, *taps, own = static_shape(dims)
    some = min(a.groups, a.deformable_groups) > 0
    divided = some and own % a.deformable_groups == 0 == out % a.groups
    fits = divided and inner * a.groups == own
    require("deformable.groups", fits, lambda: f"{weight} in {a.groups} groups does not fit {data}")
    require("resize.empty", 0 not in data.shape, lambda: f"nothing to sample in {data}")
    wanted = _deformed(a, data.shape, taps)
    same = all(map(may_equal, pick(offset.shape, where), wanted))
    require("deformable.offset", same, lambda: f"offset must be {shape_text(arrange(wanted, where))}, got {offset}")
    shape = (wanted[0], out, *wanted[2:])
    return TensorType(arrange(shape, where), a.out_dtype or data.dtype)


def _deformable_refine(a: Any, types: Sequence[Any]) -> Sequence[Type | None]:
    """Infer the types of the offset and the weight from the data's type and the attributes."""
    data, offset, weight = types
    size, out = a.kernel_size, a.channels
    if not isinstance(data, TensorType) or data.rank != 4 or None in (size, out):
        return types
    where, kernel = _layouts(a)
    channels = pick(data.shape, where)[1]
    if isinstance(channels, int) and weight is None:
        shape = (out, channels // max(a.groups, 1), *size)
        weight = TensorType(arrange(shape, kernel), data.dtype)
    wanted = arrange(_deformed(a, data.shape, size), where)
    return [data, TensorType(wanted, data.dtype) if offset is None else offset, weight]


def _columns(a: Any, sizes: Any, data: Any, offset: Any) -> tuple[tuple[int, ...], Any]:
    """Return shape and element function of the im2col image: all values sampled by the taps of each
    output.

    The image has H and W multiplied by the kernel size; the samples of one output are adjacent.
    """
    where = _layouts(a)[0]
    shape, spots = pick(data.shape, where), pick(offset.shape, where)
    each = shape[1] // a.deformable_groups

    def element(*i: Any) -> Any:
        image, channel, *places = pick(i, where)
        out, taps = [list(map(f, places, sizes)) for f in (floordiv, mod)]
        first = ((channel // each * sizes[0] + taps[0]) * sizes[1] + taps[1]) * 2
        inside, sides = [], []
        for k, extent in enumerate(shape[2:]):
            moved = offset[arrange((image, first + k, *out), where)]
            before = pad_pairs(a.padding, 2)[k][0]
            place = out[k] * a.strides[k] + taps[k] * a.dilation[k] - before
            x = place.astype("float32") + moved.astype("float32")
            inside.append((x >= 0.0) & (x < float(extent)))
            low, (behind, weight) = beside(x, extent)
            # the last pixel has no next neighbor
            weight = choose(floor(x) < float(extent - 1), weight, 0.0)
            sides.append([low, (behind, weight)])
        seen = blended(sides, lambda y, x: data[arrange((image, channel, y, x), where)])
        return choose(inside[0] & inside[1], seen, 0.0)

    space = [n * k for n, k in zip(spots[2:], sizes, strict=True)]
    return arrange((*shape[:2], *space), where), element


def _plain(a: Any, data: Any, weight: Any) -> tuple[tuple[int, int], Any]:
    """Return the kernel's (height, width) and the attributes of the non-overlapping convolution of
    the im2col image.
    """
    rows, columns = pick(weight.shape, _layouts(a)[1])[2:]
    attributes: Any = conv.conv2d.attrs
    return (rows, columns), attributes(
        strides=(rows, columns),
        groups=a.groups,
        data_layout=a.data_layout,
        kernel_layout=a.kernel_layout,
        out_dtype=a.out_dtype or str(data.dtype),
    )


def _deformable_reference(a: Any, data: Array, offset: Array, weight: Array) -> Array:
    sizes, plain = _plain(a, data, weight)
    shape, element = _columns(a, sizes, float_work(data), offset)
    seen = element(*np.indices(shape, sparse=True))
    return np.asarray(conv.conv2d.reference(plain, seen, float_work(weight)))


def _deformable_compute(a: Any, data: Tensor, offset: Tensor, weight: Tensor) -> Any:
    sizes, plain = _plain(a, data, weight)
    shape, element = _columns(a, sizes, promoted(data), offset)
    seen = te.compute(shape, element, "deformed", materialize=True)
    convolve: Any = conv.conv2d.compute
    return convolve(plain, seen, promoted(weight))


def _deformable_samples() -> Samples:
    last = {"strides": (2, 2), "data_layout": "NHWC", "kernel_layout": "HWIO"}
    rows: Any = ({"deformable_groups": 2}, {"groups": 2, **last})
    for given in rows:
        a = DeformableConv2DAttrs(padding=(1, 1, 1, 1), **given)
        where = positions(a.data_layout, "NCHW")
        data, weight = arrange((1, 4, 5, 6), where), (2, 4 // a.groups, 3, 3)
        offset = arrange(static_shape(_deformed(a, data, (3, 3))), where)
        yield random_sample((data, offset, arrange(weight, _layouts(a)[1])), a)


deformable_conv2d = OpDef(
    name="nn.deformable_conv2d",
    attrs=DeformableConv2DAttrs,
    args=args("data", "offset", "weight"),
    infer=_deformable_infer,
    refine=_deformable_refine,
    reference=_deformable_reference,
    axes=lambda a, _: AxisMap((*(_batch(a),) * 2, (None,) * 4)),
    compute=_deformable_compute,
    samples=_deformable_samples,
    **_FACETS,
)


# --- nn.correlation


class CorrelationAttrs(Attrs):
    """Correlation of patches of `data1` with shifted patches of `data2` (N, C, H, W): mean product
    or distance.

    Patches have kernel_size x kernel_size pixels and are `stride1` apart. Patches of `data2` are
    shifted by every multiple of `stride2` up to `max_displacement` in y and x; each shift is a
    channel of the result. Without `is_multiply` the mean absolute difference is computed.
    """

    kernel_size: int = 1
    max_displacement: int = 1
    stride1: int = 1
    stride2: int = 1
    padding: tuple[int, ...] = param(default=(0,) * 4, takes=lambda values, _: full_padding(values, 2))
    is_multiply: bool = True
    layout: str = "NCHW"


def _radius(a: Any) -> int:
    return int(a.max_displacement // a.stride2)


def _correlation_infer(a: Any, types: Types) -> Type:
    data, other = map(float_tensor, types)
    ranks = data.rank == 4 == other.rank and data.dtype == other.dtype
    same = ranks and all(map(may_equal, data.shape, other.shape))
    require("correlation.data", same, lambda: f"two images of rank 4 and one type expected, got {data} and {other}")
    require("layout", a.layout == "NCHW", lambda: f"layout must be NCHW, got {a.layout!r}")
    least = min(a.stride1, a.stride2, a.kernel_size, a.max_displacement + 1)
    fits = a.kernel_size % 2 == 1 and least > 0
    require("correlation.size", fits, "kernel_size must be odd, strides positive, max_displacement not negative")
    batch, _, *space = data.shape
    require("resize.empty", 0 not in data.shape, lambda: f"nothing to sample in {data}")
    # a window of this size has as many positions as there are patches
    reach = a.kernel_size + 2 * a.max_displacement
    pairs = zip(space, pad_pairs(a.padding, 2), strict=True)
    extents = [window_extent(d, reach, a.stride1, 1, pad) for d, pad in pairs]
    return TensorType((batch, (2 * _radius(a) + 1) ** 2, *extents), data.dtype)


def _correlation_term(a: Any, v: Index, data: Any, other: Any) -> Any:
    image, q, *out, row, column, channel = v
    side, plain = 2 * _radius(a) + 1, range(4)
    rows = zip(out, (row, column), pad_pairs(a.padding, 2), strict=True)
    own = [o * a.stride1 + k + a.max_displacement - before for o, k, (before, _) in rows]
    steps = zip(own, (q // side, q % side), strict=True)
    moved = [p + (m - _radius(a)) * a.stride2 for p, m in steps]
    first = _pixel(data, plain, (image, channel, *own), 0.0)
    second = _pixel(other, plain, (image, channel, *moved), 0.0)
    return first * second if a.is_multiply else _abs(first - second)


def _patches(a: Any, data: Any, _: Any) -> tuple[int, ...]:
    return (a.kernel_size, a.kernel_size, data.shape[1])


def _alike(*shape: int, **fields: Any) -> tuple[Any, dict[str, Any]]:
    return (shape, shape), fields


correlation = OpDef(
    name="nn.correlation",
    attrs=CorrelationAttrs,
    args=args("data1", "data2"),
    axes=lambda *_: AxisMap(((0, None, None, None),) * 2),
    samples=cases(
        CorrelationAttrs,
        (
            _alike(1, 3, 5, 5, max_displacement=2, padding=(2,) * 4),
            _alike(2, 1, 6, 4, kernel_size=3, stride1=2, stride2=2, max_displacement=2, padding=(3,)),
            _alike(2, 2, 5, 6, padding=(1, 0, 2, 1), is_multiply=False),
        ),
    ),
    **_folding("correlation", _correlation_infer, "mean", _patches, _correlation_term),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    layout=Layout.BARRIER,
)
