# SPDX-License-Identifier: Apache-2.0
"""Resampling along spatial axes: image.resize1d, resize2d, resize3d, nn.upsampling and
nn.upsampling3d.

Output element o of an axis samples the source coordinate (p * o + q) / r with integers p, q, r, so
that rounding to an index is exact. Interpolation is separable, one axis after another. Coordinate
modes and filters are those of ONNX Resize. In addition to Relay's attributes there are `scales`
(the factors, if they differ from output / input) and `antialias` (a wider filter for downsampling).

    resize2d(x, (64, 64), method="nearest_neighbor",
    coordinate_transformation_mode="asymmetric")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import floor, isfinite
from operator import add
from typing import Any, Final

import numpy as np

from aotc.ir import REQUIRED, Attrs, Dim, DType, TensorType, Type, is_static, param, static_shape
from aotc.ir.op import AxisMap, Layout, OpPattern, Quantized, Types, require
from aotc.relay.op import resize_sampling
from aotc.relay.op.layout import in_blocks
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    Samples,
    Scalar,
    as_dtype,
    convert,
    random_sample,
    replaced,
)
from aotc.relay.op.resize_sampling import AxisMapping, ResizeAttrs, axes_of, first_tap, pass_order, rounding, widened
from aotc.relay.op.type_rules import extent_of, ranked, require_known, static_shape_of, tensor
from aotc.relay.op.window_attributes import (
    DATA_LAYOUT,
    arrange,
    canonical,
    each_axis,
    for_axes,
    laid_out,
    pick,
    positions,
    spread,
)
from aotc.tir import Tensor, all_of, call, const, maximum, minimum, select, te

#: Largest number of outputs of an axis that are enumerated to prove that a simple index formula
#: holds.
SHORT: Final = 1 << 20
#: Distance below a whole number within which a value is rounded up, since truncation would drop
#: rounding errors.
WHOLE: Final = 2.0**-10


def _scale() -> Any:
    return param(given=1, takes=lambda value, _: float(value))


class UpSamplingAttrs(Attrs):
    """Data upsampled by two factors; `method` is "nearest_neighbor", "bilinear" or "bicubic"."""

    scale_h: float = _scale()
    scale_w: float = _scale()
    layout: str = "NCHW"
    method: str = "nearest_neighbor"
    align_corners: bool = False


class UpSampling3DAttrs(Attrs):
    """Data upsampled by three factors; `method` is "nearest_neighbor" or "trilinear"."""

    scale_d: float = _scale()
    scale_h: float = _scale()
    scale_w: float = _scale()
    layout: str = "NCDHW"
    method: str = "nearest_neighbor"
    coordinate_transformation_mode: str = "half_pixel"


def _mapped(n: int, a: ResizeAttrs, shape: Sequence[int]) -> tuple[tuple[int, ...], list[AxisMapping]]:
    """Return the positions of the canonical axes in the data, and the coordinate mapping of each
    spatial axis.
    """
    where = positions(a.layout, DATA_LAYOUT[n])
    return where, axes_of(n, a, pick(shape, where)[2:])


# --- numpy


def _interpolate(x: Array, dimension: int, a: ResizeAttrs, axis: AxisMapping) -> Array:
    index, weight = resize_sampling.tap_table(a, axis)
    shape = [-1 if k == dimension else 1 for k in range(x.ndim)]
    total = np.zeros_like(np.take(x, index[:, 0], dimension))
    for k in range(index.shape[1]):
        total = total + np.take(x, index[:, k], dimension) * weight[:, k].astype(x.dtype).reshape(shape)
    return total


def _slack(a: ResizeAttrs) -> float:
    return 0.0 if a.method == "nearest_neighbor" else WHOLE


def _work(dtype: DType) -> str:
    """Return the dtype of the interpolation: float64 for float64 and for integers wider than 8
    bits, else float32.
    """
    wide = dtype == "float64" or (dtype.is_integer and dtype.bits > 8)
    return "float64" if wide else "float32"


def _reference(n: int, a: ResizeAttrs, data: Array) -> Array:
    where, axes = _mapped(n, a, data.shape)
    dtype, out = DType.of(data), DType(a.out_dtype or DType.of(data))
    x = canonical(data, where)
    if a.method == "nearest_neighbor":
        for k, axis in enumerate(axes, start=2):
            index = axis.nearest(np.arange(axis.count, dtype=np.int64), rounding(a)).clip(0, axis.extent - 1)
            x = np.take(x, index, k)
    else:
        x = as_dtype(x, _work(dtype))
        for k in pass_order(axes):
            x = _interpolate(x, k + 2, a, axes[k])
    if a.coordinate_transformation_mode == "tf_crop_and_resize":
        x = _extrapolated(a, x, axes)
    if out.is_integer and DType.of(x).is_float:
        x = np.clip(np.trunc(x + np.copysign(x.dtype.type(_slack(a)), x)), out.min, out.max)
    return laid_out(as_dtype(x, out), where)


def _extrapolated(a: ResizeAttrs, x: Array, axes: Sequence[AxisMapping]) -> Array:
    inside = np.ones((), bool)
    for axis in axes:
        at = axis.times(np.arange(axis.count))
        inside = np.logical_and.outer(inside, (at >= 0) & (at <= (axis.extent - 1) * axis.r))
    return np.where(inside, x, np.asarray(a.extrapolation_value).astype(x.dtype))


# --- tensor expressions


def _table(axis: AxisMapping, body: Any, name: str) -> Tensor:
    """Return a tensor with one value per output index of an axis, computed once."""
    return te.compute((axis.count,), body, name, materialize=True)


def _clamped(index: Scalar, extent: int) -> Scalar:
    return minimum(maximum(index, 0), extent - 1)


def _nearest_index(axis: AxisMapping, method: str) -> Any:
    """Return a function from output index to source index: an arithmetic formula if one is exact,
    else a table.
    """
    if axis.is_identity:
        return lambda o: o
    if axis.count <= SHORT:
        at = np.arange(axis.count, dtype=np.int64)
        found = axis.nearest(at, method).clip(0, axis.extent - 1)
        factor = axis.count // axis.extent
        if factor and (found == at // factor).all():
            return lambda o: o // factor
        first, step = int(found[0]), int(found[1] - found[0]) if axis.count > 1 else 0
        if (found == first + at * step).all():
            return lambda o: o * step + first
    table = _table(axis, lambda o: _clamped(axis.nearest(o, method), axis.extent), "index")
    return lambda o: table[o]


def _nearest(a: ResizeAttrs, data: Tensor, where: Sequence[int], axes: Sequence[AxisMapping]) -> Tensor:
    index = [_nearest_index(axis, rounding(a)) for axis in axes]
    shape = arrange((*pick(data.shape, where)[:2], *(axis.count for axis in axes)), where)

    def body(*v: Scalar) -> Scalar:
        image, channel, *at = pick(v, where)
        return data[arrange((image, channel, *(i(o) for i, o in zip(index, at, strict=True))), where)]

    return te.compute(shape, body, "resize")


def _fraction_at(axis: AxisMapping, o: Scalar, dtype: str) -> Any:
    return (axis.times(o) % axis.r).astype(dtype) / float(axis.r)


def _element_at(axis: AxisMapping, o: Scalar, k: Any) -> Any:
    """Return the index of the element `k` after the element below the coordinate of output o."""
    return axis.times(o) // axis.r + k


def _on_data(axis: AxisMapping, at: Scalar, weight: Scalar) -> Scalar:
    return select(all_of(at >= 0, at < axis.extent), weight, 0.0)


def _along_taps(x: Tensor, dimension: int, a: ResizeAttrs, axis: AxisMapping, store: bool) -> Tensor:
    """Resample one axis with the filter's own number of taps; `store` materializes the result for
    the next axis.
    """
    start, taps = first_tap(a, axis)

    def weights_at(o: Scalar) -> list[Scalar]:
        items = resize_sampling.weights(a, _fraction_at(axis, o, x.dtype))
        if not a.cubic_exclude:
            return items
        kept = [_on_data(axis, _element_at(axis, o, start + k), w) for k, w in enumerate(items)]
        return [w / reduce(add, kept) for w in kept]

    def body(*v: Scalar) -> Scalar:
        o = v[dimension]
        rows = [replaced(v, dimension, i[o]) for i in index]
        return reduce(add, (x[row] * w[o] for row, w in zip(rows, weight, strict=True)))

    places = range(start, start + taps)
    index = [_table(axis, lambda o, k=k: _clamped(_element_at(axis, o, k), axis.extent), "index") for k in places]
    weight = [_table(axis, lambda o, k=k: weights_at(o)[k], "weight") for k in range(taps)]
    return te.compute(replaced(x.shape, dimension, axis.count), body, "resize", materialize=store)


def _along_widened(x: Tensor, dimension: int, a: ResizeAttrs, axis: AxisMapping, _: bool) -> Tensor:
    """Downsample one axis with the filter widened by the scale factor (antialias)."""
    start, taps = first_tap(a, axis)

    def raw(o: Scalar, k: Scalar) -> Scalar:
        distance = (k + start).astype(x.dtype) - _fraction_at(axis, o, x.dtype)
        weight: Scalar = resize_sampling.falloff(a, call("abs", distance) * float(axis.scale))
        return _on_data(axis, _element_at(axis, o, k) + start, weight) if a.cubic_exclude else weight

    weight = te.compute((axis.count, taps), raw, "weight", materialize=True)
    total = te.reduce("sum", (axis.count,), (taps,), lambda o, k: weight[o, k], "total")
    scale = _table(axis, lambda o: 1.0 / total[o], "scale")

    def body(*v: Scalar) -> Scalar:
        o, k = v[dimension], v[-1]
        at = replaced(v[:-1], dimension, _clamped(_element_at(axis, o, k) + start, axis.extent))
        return x[at] * (weight[o, k] * scale[o])

    return te.reduce("sum", replaced(x.shape, dimension, axis.count), (taps,), body, "resize")


def _compute(n: int, a: ResizeAttrs, data: Tensor) -> Tensor:
    where, axes = _mapped(n, a, data.shape)
    if a.method == "nearest_neighbor":
        x = _nearest(a, data, where, axes)
    else:
        x = convert(data, _work(data.dtype))
        order = pass_order(axes)
        for k in order:
            along = _along_widened if widened(a, axes[k]) else _along_taps
            x = along(x, where[k + 2], a, axes[k], k != order[-1])
    return _finished(a, x, data.dtype, [(where[k + 2], axis) for k, axis in enumerate(axes)])


def _finished(a: ResizeAttrs, x: Tensor, dtype: DType, axes: Sequence[tuple[int, AxisMapping]]) -> Tensor:
    """Apply extrapolation and convert to the result's dtype: integers are truncated (see WHOLE) and
    saturated.
    """
    out = DType(a.out_dtype or dtype)
    crop = a.coordinate_transformation_mode == "tf_crop_and_resize"

    def body(*v: Scalar) -> Scalar:
        value: Scalar = x[v]
        if crop:
            inside = all_of(*(c for k, axis in axes for c in axis.inside(v[k])))
            value = select(inside, value, const(a.extrapolation_value, x.dtype))
        if out.is_integer and x.dtype.is_float:
            whole = value + call("copysign", const(_slack(a), x.dtype), value)
            value = minimum(maximum(whole, float(out.min)), float(out.max))
        return value.astype(out)

    return te.compute(x.shape, body, "resized")


# --- the operators


def _infer(n: int, a: ResizeAttrs, types: Types) -> Type:
    data = ranked("resize.rank", types[0], n + 2)
    require("resize.size", a.size is not None, "size is missing")
    sizes = spread(a.size or (), n)
    require("resize.size", min(sizes) > 0, f"size must be positive, got {sizes}")
    _check_names(a)
    scales = a.scales is None or (len(a.scales) == n and min(a.scales) > 0)
    require("resize.scales", scales, f"expected {n} positive scales, got {a.scales}")
    require("resize.roi", a.roi is None or len(a.roi) == 2 * n, f"expected {2 * n} values in roi, got {a.roi}")
    where = positions(a.layout, DATA_LAYOUT[n])
    batch, channels, *space = pick(data.shape, where)
    require("resize.empty", 0 not in space, lambda: f"nothing to sample in {data}")
    numbers = (*(a.scales or ()), *(a.roi or ()))
    require("resize.roi", all(map(isfinite, numbers)), f"scales and roi must be finite, got {numbers}")
    known_sizes = [d for d in space if isinstance(d, int)]
    if len(known_sizes) == n:
        axes_of(n, a, known_sizes)
    return TensorType(arrange((batch, channels, *sizes), where), a.out_dtype or data.dtype)


def _check_names(a: ResizeAttrs) -> None:
    mode = a.coordinate_transformation_mode
    require_known("resize.method", "method", a.method, resize_sampling.METHODS)
    require_known("resize.mode", "coordinate mode", mode, resize_sampling.COORDINATES)
    require_known("resize.rounding", "rounding", a.rounding_method, resize_sampling.ROUNDINGS)
    crop = mode != "tf_crop_and_resize" or a.roi is not None
    require("resize.roi", crop, "tf_crop_and_resize needs a roi")


def _scratch(n: int, a: ResizeAttrs, types: Types) -> int:
    """Return the number of scratch elements: indices and weights of the outputs of each axis."""
    _, axes = _mapped(n, a, tensor(types[0]).static_shape)
    return sum(4 * axis.count * (1 if a.method == "nearest_neighbor" else first_tap(a, axis)[1]) for axis in axes)


def _axes(n: int, a: ResizeAttrs, types: Types) -> AxisMap:
    where = positions(a.layout, DATA_LAYOUT[n])
    return AxisMap((tuple(k if k in where[:2] else None for k in range(n + 2)),))


def _samples(n: int, attributes: type[ResizeAttrs]) -> Samples:
    shape, size = (1, 2, 4, 5, 3)[: n + 2], (8, 10, 6)

    def sample(
        size: Sequence[int], method: str = "linear", mode: str = "half_pixel", dtype: str = "float32", **fields: Any
    ) -> Sample:
        fields |= {"size": size[:n], "method": method, "coordinate_transformation_mode": mode}
        return random_sample((shape,), attributes(**fields), dtype)

    nearest, *_ = resize_sampling.METHODS
    *modes, crop = resize_sampling.COORDINATES
    yield from (sample(size, mode=mode) for mode in modes)
    yield from (sample((7, 7, 7), nearest, rounding_method=name) for name in resize_sampling.ROUNDINGS)
    yield sample(size, nearest, "asymmetric", rounding_method="")
    yield sample((7, 3, 5), "cubic", cubic_alpha=-0.75)
    yield sample((7, 3, 5), "cubic", cubic_exclude=1)
    yield sample((2, 2, 2), "cubic", antialias=True)
    yield sample((2, 2, 2), antialias=True, cubic_exclude=1)
    yield sample((6, 6, 6), scales=(1.6, 1.3, 2.1)[:n])
    roi = (0.2, -0.1, 0.0)[:n] + (0.9, 1.2, 1.0)[:n]
    yield sample((5, 5, 5), mode=crop, roi=roi, extrapolation_value=9.0)
    yield sample(size, dtype="uint8")
    yield sample(size, dtype="float16")
    yield sample(size, nearest, dtype="int8")


def _resize(n: int) -> OpDef:
    size = each_axis(n, None, given=REQUIRED)
    attributes = for_axes(n, ResizeAttrs, f"Resize{n}DAttrs", size=size)
    return OpDef(
        name=f"image.resize{n}d",
        doc="Data resampled to `size` along its spatial axes.",
        attrs=attributes,
        infer=partial(_infer, n),
        reference=partial(_reference, n),
        scratch=partial(_scratch, n),
        pattern=OpPattern.INJECTIVE,
        axes=partial(_axes, n),
        quantized=Quantized.RESCALE,
        compute=partial(_compute, n),
        samples=partial(_samples, n, attributes),
    )


_METHODS: Final = {
    2: {"nearest_neighbor": "nearest_neighbor", "bilinear": "linear", "bicubic": "cubic"},
    3: {"nearest_neighbor": "nearest_neighbor", "trilinear": "linear"},
}


def _enlarged(n: int, a: Any, space: Sequence[Dim]) -> list[Dim]:
    """Return the spatial extents of the result of an upsampling."""
    scales = (a.scale_h, a.scale_w) if n == 2 else (a.scale_d, a.scale_h, a.scale_w)
    finite = all(map(isfinite, scales))
    require("resize.scales", finite, f"scales must be finite, got {scales}")
    return [extent_of(d, partial(_times, s)) for d, s in zip(space, scales, strict=True)]


def _times(scale: float, extent: int) -> int:
    return floor(extent * scale + 0.5)


def _resized(n: int, a: Any, shape: Sequence[Dim]) -> ResizeAttrs:
    """Return the attributes of the resize that computes an upsampling."""
    require_known("upsampling.method", "method", a.method, _METHODS[n])
    space = pick(shape, positions(a.layout, DATA_LAYOUT[n]))[2:]
    if n == 2:
        mode = "align_corners" if a.align_corners else "asymmetric"
    else:
        mode = a.coordinate_transformation_mode
    return ResizeAttrs(
        size=static_shape(_enlarged(n, a, space)),
        layout=a.layout,
        method=_METHODS[n][a.method],
        coordinate_transformation_mode=mode,
        rounding_method="",
    )


def _infer_upsampling(n: int, a: Any, types: Types) -> Type:
    data = ranked("resize.rank", types[0], n + 2)
    where = positions(a.layout, DATA_LAYOUT[n])
    batch, channels, *space = pick(data.shape, where)
    if is_static(space):
        return _infer(n, _resized(n, a, data.shape), types)
    return TensorType(arrange((batch, channels, *_enlarged(n, a, space)), where), data.dtype)


def _samples_upsampling() -> Samples:
    yield random_sample(((1, 2, 3, 4),), UpSamplingAttrs(scale_h=2.0, scale_w=3.0))
    yield random_sample(((1, 3, 4, 2),), UpSamplingAttrs(scale_h=2.0, scale_w=1.5, layout="NHWC", method="bilinear"))
    corners = UpSamplingAttrs(scale_h=2.0, scale_w=2.0, method="bicubic", align_corners=True)
    yield random_sample(((1, 2, 3, 4),), corners)
    yield random_sample(((1, 2, 3, 4, 2),), UpSamplingAttrs(scale_h=2.0, scale_w=3.0, layout="NCHW2c"))


def _samples_upsampling3d() -> Samples:
    scales: dict[str, Any] = {"scale_d": 2.0, "scale_h": 1.5, "scale_w": 3.0}
    a = UpSampling3DAttrs(**scales, coordinate_transformation_mode="asymmetric")
    yield random_sample(((1, 2, 3, 4, 2),), a)
    yield random_sample(((1, 3, 4, 2, 2),), UpSampling3DAttrs(**scales, layout="NDHWC", method="trilinear"))


def _upsampling(n: int, attributes: type[Attrs], resize: OpDef, samples: Callable[[], Samples]) -> OpDef:
    return OpDef(
        name="nn.upsampling" if n == 2 else "nn.upsampling3d",
        attrs=attributes,
        infer=partial(_infer_upsampling, n),
        reference=lambda a, x: _reference(n, _resized(n, a, x.shape), x),
        pattern=OpPattern.INJECTIVE,
        axes=partial(_axes, n),
        layout=Layout.FOLLOW,
        quantized=Quantized.RESCALE,
        expand=lambda a, x: resize(x, **dict(_resized(n, a, static_shape_of(x)).items())),
        samples=samples,
    )


resize1d, resize2d, resize3d = map(_resize, (1, 2, 3))
upsampling = in_blocks(_upsampling(2, UpSamplingAttrs, resize2d, _samples_upsampling))
upsampling3d = _upsampling(3, UpSampling3DAttrs, resize3d, _samples_upsampling3d)
