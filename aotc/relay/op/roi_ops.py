# SPDX-License-Identifier: Apache-2.0
"""Operators on regions of images: image.crop_and_resize, vision.roi_align, vision.roi_pool.

crop_and_resize(x, boxes, indices, (8, 8))         # boxes (N, 4): y1, x1, y2, x2 from 0 to 1
roi_align(x, rois, (7, 7), 0.5)                    # rois (N, 5): image, x1, y1, x2, y2 in pixels, times 0.5
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, Layout, OpPattern, Precision, TensorType, Type, Types, args, frozen, require
from aotc.relay.op.contraction import as_dtype, convert, float_work, promoted
from aotc.relay.op.elementwise_table import choose, either, greater, intrinsic, lesser
from aotc.relay.op.gather import clipped, integer_tensor
from aotc.relay.op.opdef import Array, Index, OpDef, Sample, Samples, Scalar, of_formula
from aotc.relay.op.operator_definition import float_tensor, random_array, ranked, require_dtype, require_known
from aotc.relay.op.window_attributes import arrange, canonical, each_axis, laid_out, may_equal, pick, positions
from aotc.tir import Block, Buffer, Declare, For, Load, Stmt, Store, Tensor, Var, const, te
from aotc.tir.stmt import Assign, loops

floor, _ceil = intrinsic("floor"), intrinsic("ceil")
_rint: Final = either(intrinsic("round_even"), np.rint)
#: Largest number of samples of a cell along one axis.
_MOST: Final = 1 << 16


def bounded(x: Any, extent: int) -> Any:
    """Return a position as an int64 index clipped to the axis."""
    return clipped(x.astype("int64"), extent)


def beside(x: Any, extent: int) -> list[tuple[Any, Any]]:
    """Return (index, weight) of the two pixels around a position along an axis, for linear
    interpolation.
    """
    low = floor(x)
    first = (bounded(low, extent), 1.0 - (x - low))
    return [first, (bounded(low + 1.0, extent), x - low)]


def blended(sides: Sequence[Any], element: Callable[[Any, Any], Any]) -> Any:
    """Return the bilinear interpolation of elements from the (index, weight) pairs of both axes."""
    total: Any = 0.0
    for (y, v), (x, w) in itertools.product(*sides):
        value = element(y, x)
        total = value * (v * w).astype(value.dtype) + total
    return total


def _spaces(a: Any, data: Any, regions: Any) -> tuple[tuple[int, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Return the positions of the axes NCHW in the data, the data's extents, and the result's
    extents.

    The result has one image for each region.
    """
    where = positions(a.layout, "NCHW")
    shape = pick(data.shape, where)
    size = a.crop_size if isinstance(a, CropAndResizeAttrs) else a.pooled_size
    require("resize.size", min(size) > 0, f"sizes must be positive, got {size}")
    nothing = 0 in (shape[0], *shape[2:])
    require("resize.empty", not nothing, lambda: f"nothing to sample in {data}")
    return where, shape, (regions.shape[0], shape[1], *size)


def _axes(a: Any, types: Types) -> AxisMap:
    """Return the axis map of a region operator.

    Channels are mapped to the data's channels; images of the result are mapped to rows of the other
    arguments.
    """
    batch, channels = positions(a.layout, "NCHW")[:2]
    data = tuple(k if k == channels else None for k in range(4))
    region = tuple(0 if k == batch else None for k in range(4))
    return AxisMap((data, *(region,) * (len(types) - 1)))


_FACETS: Final[Any] = {"axes": _axes, "layout": Layout.FOLLOW, "precision": Precision.NEVER}

# --- image.crop_and_resize


class CropAndResizeAttrs(Attrs):
    """Box n of image box_indices[n] of `data` resampled to `crop_size`.

    Corners of a box are y1, x1, y2, x2, where 0 and 1 are the centers of the first and the last
    pixel. Positions outside of the image give `extrapolation_value`. A single row or column is
    sampled at the middle of the box. `method` is "bilinear" or "nearest_neighbor".
    """

    crop_size: tuple[int, ...] = each_axis(2)
    layout: str = "NHWC"
    method: str = "bilinear"
    extrapolation_value: float = 0.0
    out_dtype: str = ""


def _crop_infer(a: Any, types: Types) -> Type:
    data = ranked("crop_and_resize.data", types[0], 4)
    boxes = ranked("crop_and_resize.boxes", types[1], 2, "boxes")
    numbers = integer_tensor(types[2], "box_indices")
    indices = ranked("crop_and_resize.boxes", numbers, 1, "box_indices")
    require_dtype(data.dtype, not data.dtype.is_bool)
    require_dtype(boxes.dtype, boxes.dtype == "float32")
    methods = ("bilinear", "nearest_neighbor")
    require_known("crop_and_resize.method", "method", a.method, methods)
    fits = may_equal(boxes.shape[1], 4) and may_equal(boxes.shape[0], indices.shape[0])
    require("crop_and_resize.boxes", fits, lambda: f"there is no box of 4 numbers in {boxes} for each of {indices}")
    where, _, shape = _spaces(a, data, boxes)
    return TensorType(arrange(shape, where), a.out_dtype or "float32")


def _crop_element(a: Any, i: Index, data: Any, boxes: Any, indices: Any) -> Any:
    where, (batch, _, *space), _ = _spaces(a, data, boxes)
    box, channel, *out = pick(i, where)
    image = clipped(indices[(box,)], batch)
    inside, sides = [], []
    for k, (count, extent) in enumerate(zip(a.crop_size, space, strict=True)):
        start, end = boxes[(box, k)], boxes[(box, k + 2)]
        o = out[k].astype("float32")
        along = o / float(count - 1) if count > 1 else o + 0.5
        x = (start + (end - start) * along) * float(extent - 1)
        inside.append((x >= 0.0) & (x <= float(extent - 1)))
        x = x if a.method == "bilinear" else _rint(x)
        both = beside(x, extent)
        sides.append(both if a.method == "bilinear" else both[:1])

    def element(y: Any, x: Any) -> Any:
        return data[arrange((image, channel, y, x), where)].astype("float32")

    value = choose(inside[0] & inside[1], blended(sides, element), a.extrapolation_value)
    return value.astype(a.out_dtype or "float32")


def _crop_samples() -> Samples:
    rows = [(0.1, 0.2, 0.8, 0.9), (-0.2, 0.1, 0.5, 1.3), (0.9, 0.7, 0.3, 0.2)]
    boxes, images = np.array(rows, np.float32), np.array([1, 0, 9], np.int32)
    for method, layout, size in (
        ("bilinear", "NHWC", (3, 4)),
        ("nearest_neighbor", "NCHW", (3, 4)),
        ("bilinear", "NCHW", (1, 2)),
    ):
        data = random_array((2, 5, 6, 3))
        given: Any = {"crop_size": size, "layout": layout, "method": method}
        a = CropAndResizeAttrs(extrapolation_value=2.0, **given)
        yield Sample(args=(data, boxes, images), attrs=a)


crop_and_resize = OpDef(
    name="image.crop_and_resize",
    attrs=CropAndResizeAttrs,
    args=args("data", "boxes", "box_indices"),
    infer=_crop_infer,
    reference=of_formula(_crop_infer, _crop_element),
    element=_crop_element,
    pattern=OpPattern.INJECTIVE,
    samples=_crop_samples,
    **_FACETS,
)


# --- cells of regions


class RoiPoolAttrs(Attrs):
    """Maximum of each cell of a region of interest, 0 for an empty cell.

    `rois` (N, 5) has image, x1, y1, x2, y2 of each region, in pixels before multiplication by
    `spatial_scale`; corners are rounded. A region has pooled_size[0] x pooled_size[1] cells.
    """

    pooled_size: tuple[int, ...] = each_axis(2)
    spatial_scale: float
    layout: str = "NCHW"


class RoiAlignAttrs(Attrs):
    """Mean (or maximum, with `mode` "max") of bilinear samples in each cell of a region of
    interest.

    `rois` (N, 5) has image, x1, y1, x2, y2 of each region, in pixels before multiplication by
    `spatial_scale`. A region has pooled_size[0] x pooled_size[1] cells. A cell has `sample_ratio`
    samples along each axis, or about one for each pixel if that is not positive.
    """

    pooled_size: tuple[int, ...] = each_axis(2)
    spatial_scale: float
    sample_ratio: int = -1
    layout: str = "NCHW"
    mode: str = "avg"


def _cells_infer(a: Any, types: Types) -> Type:
    data, rois = map(float_tensor, types)
    fits = data.rank == 4 and rois.rank == 2 and may_equal(rois.shape[1], 5)
    require("roi.data", fits, lambda: f"data must have rank 4 and rois the shape (N, 5), got {data} and {rois}")
    if isinstance(a, RoiAlignAttrs):
        require_known("roi_align.mode", "mode", a.mode, ("avg", "max"))
    where, _, shape = _spaces(a, data, rois)
    return TensorType(arrange(shape, where), data.dtype)


def _naming(stmts: list[Stmt]) -> Callable[[Any], Any]:
    """Return a function `let` that declares a variable for a value, appending the declaration to
    `stmts`.
    """

    def let(value: Any) -> Any:
        var = Var("v", value.dtype)
        stmts.append(Declare(var, value))
        return var

    return let


def _fold(a: Any) -> tuple[float, Callable[[Any, Any], Any]]:
    """Return the initial value of a cell and the function that combines it with a term."""
    mean = getattr(a, "mode", "max") == "avg"
    return (0.0, lambda x, y: x + y) if mean else (-np.inf, greater)


@frozen
class _Cells:
    """An operator that sums terms, or takes their maximum, over each cell of each region.

    The functions are formulas for arrays as well as for scalar expressions:

    ends     (attrs, roi, axis, cell, extent) -> half-open range of taps along an axis
    term     (attrs, roi, cell, taps, spatial extents, element(row, column), let) -> a term; let(value) binds a variable
    finish   (attrs, total, ends along both axes) -> the result's element
    """

    ends: Callable[..., Any]
    term: Callable[..., Any]
    finish: Callable[..., Any]

    def reference(self, a: Any, data: Array, rois: Array) -> Array:
        where, (batch, _, *space), shape = _spaces(a, data, rois)
        x, (start, combine) = canonical(float_work(data), where), _fold(a)
        n, channel, *at = np.indices(shape, sparse=True)
        roi = [rois[n, k].astype(np.float32) for k in range(5)]
        bounds = [self.ends(a, roi, k, at[k], extent) for k, extent in enumerate(space)]
        image, total = bounded(roi[0], batch), np.full(shape, start, x.dtype)

        def element(row: Any, column: Any) -> Any:
            return x[image, channel, row, column]

        taps = (np.arange(np.min(b, initial=0), np.max(e, initial=0)) for b, e in bounds)
        for tap in itertools.product(*taps):
            seen = [(b <= t) & (t < e) for t, (b, e) in zip(tap, bounds, strict=True)]
            value = self.term(a, roi, at, tap, space, element, lambda v: v)
            total = np.where(seen[0] & seen[1], combine(total, value), total)
        return as_dtype(laid_out(self.finish(a, total, bounds), where), data.dtype)

    def compute(self, a: Any, data: Tensor, rois: Tensor) -> Tensor:
        where, (batch, _, *space), extents = _spaces(a, data, rois)
        x, table, shape = promoted(data), convert(rois, "float32"), arrange(extents, where)
        start, combine = _fold(a)

        def build(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
            n, channel, *at = axes = [Var(name) for name in "ncij"]
            before: list[Stmt] = []
            inner: list[Stmt] = []
            let = _naming(before)
            image, *roi = (let(Load(inputs[1], n * 5 + k)) for k in range(5))
            roi, image = [image, *roi], let(bounded(image, batch))
            bounds = [[*map(let, self.ends(a, roi, k, at[k], extent))] for k, extent in enumerate(space)]
            taps, total = [Var("y"), Var("x")], Var("total", x.dtype)

            def element(*pixel: Scalar) -> Scalar:
                place = arrange((image, channel, *pixel), where)
                return Load(inputs[0], te.flat_index(data.shape, place))

            value = self.term(a, roi, at, taps, space, element, _naming(inner))
            body: Stmt = Block((*inner, Assign(total, combine(total, value))))
            for tap, (begin, end) in zip(reversed(taps), reversed(bounds), strict=True):
                body = For(tap, end, body, begin=begin)
            place = te.flat_index(shape, arrange(axes, where))
            keep = Store(outputs[0], place, self.finish(a, total, bounds))
            begin_ = Declare(total, const(start, x.dtype))
            cell = Block((*before, begin_, body, keep))
            return loops(zip(axes, extents, strict=True), cell, "independent")

        return convert(te.extern("cells", [(shape, x.dtype)], [x, table], build)[0], data.dtype)


def _cell_samples(attributes: Any, fields: Sequence[dict[str, Any]]) -> Samples:
    rows = [(0, 1, 1, 6, 4), (1, -3, 2, 2.5, 9), (9, 2, 2, 2, 2), (1, 3, 1, 9, 3)]
    for given in fields:
        for layout, scale in (("NCHW", 1.0), ("NHWC", 0.7)):
            data = random_array(arrange((2, 3, 6, 7), positions(layout, "NCHW")))
            own = {"layout": layout, "spatial_scale": scale, **given}
            a = attributes(pooled_size=(2, 3), **own)
            yield Sample(args=(data, np.array(rows, np.float32)), attrs=a)


def _pooling(name: str, attributes: type[Attrs], cells: _Cells, *fields: dict[str, Any]) -> OpDef:
    return OpDef(
        name=f"vision.{name}",
        attrs=attributes,
        args=args("data", "rois"),
        infer=_cells_infer,
        reference=cells.reference,
        compute=cells.compute,
        samples=partial(_cell_samples, attributes, fields),
        **_FACETS,
    )


def _pool_ends(a: Any, roi: Any, k: int, at: Any, extent: int) -> list[Any]:
    start, end = (_rint(roi[n] * a.spatial_scale).astype("int64") for n in (2 - k, 4 - k))
    size, count = greater(end - start + 1, 1), a.pooled_size[k]
    behind = ((at + 1) * size + (count - 1)) // count
    return [lesser(greater(start + p, 0), extent) for p in (at * size // count, behind)]


def _pool_finish(_: Any, total: Any, bounds: Any) -> Any:
    rows, columns = (end <= begin for begin, end in bounds)
    return choose(rows | columns, 0.0, total)


def _pool_term(_a: Any, _roi: Any, _at: Any, taps: Any, _space: Any, element: Any, _let: Any) -> Any:
    return element(*taps)


roi_pool = _pooling("roi_pool", RoiPoolAttrs, _Cells(_pool_ends, _pool_term, _pool_finish), {})


def _grid(a: Any, roi: Any, k: int) -> tuple[Any, Any, Any]:
    """Return the start of a region along an axis, the size of its cells, and the number of samples
    per cell.
    """
    start, end = roi[2 - k] * a.spatial_scale, roi[4 - k] * a.spatial_scale
    size = greater(end - start, 1.0) / float(a.pooled_size[k])
    if a.sample_ratio > 0:
        return start, size, size * 0.0 + float(a.sample_ratio)
    return start, size, lesser(_ceil(size), float(_MOST))


def _align_ends(a: Any, roi: Any, k: int, *_: Any) -> list[Any]:
    count = _grid(a, roi, k)[2].astype("int64")
    return [count * 0, count]


def _align_term(a: Any, roi: Any, at: Any, taps: Any, space: Any, element: Any, let: Any) -> Any:
    inside, sides = [], []
    for k, extent in enumerate(space):
        start, size, count = _grid(a, roi, k)
        cell, tap = (v[k].astype("float32") for v in (at, taps))
        x = let(start + cell * size + (tap + 0.5) * (size / count))
        inside.append((x >= -1.0) & (x <= float(extent)))
        x = let(lesser(greater(x, 0.0), float(extent - 1)))
        sides.append(beside(x, extent))
    return choose(inside[0] & inside[1], blended(sides, element), 0.0)


def _align_finish(a: Any, total: Any, bounds: Any) -> Any:
    (_, rows), (_, columns) = bounds
    return total / (rows * columns).astype(total.dtype) if a.mode == "avg" else total


_ALIGN: Final = _Cells(_align_ends, _align_term, _align_finish)
roi_align = _pooling("roi_align", RoiAlignAttrs, _ALIGN, {}, {"sample_ratio": 2}, {"mode": "max"})
