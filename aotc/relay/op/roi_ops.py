# SPDX-License-Identifier: Apache-2.0
"""Operators on regions of images: image.crop_and_resize, vision.roi_align, vision.roi_pool.

crop_and_resize(x, boxes, indices, (8, 8))         # boxes (N, 4): y1, x1, y2, x2 from 0 to 1
roi_align(x, rois, (7, 7), 0.5)                    # rois (N, 5): image, x1, y1, x2, y2 in pixels, times 0.5
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from functools import reduce as fold
from typing import Any, Final

import numpy as np

from aotc.ir import (
    Attrs,
    AxisMap,
    LayoutTreatment,
    OpPattern,
    PrecisionTreatment,
    TensorType,
    Type,
    Types,
    declare_arguments,
    frozen,
    require,
)
from aotc.ir.dimension_conditions import may_be_equal_dims
from aotc.relay.op.contraction_accumulator_types import (
    cast_array,
    cast_tensor,
    widen_narrow_float_array,
    widen_narrow_float_tensor,
)
from aotc.relay.op.elementwise_op_constructors import (
    choose,
    dispatch_scalar_or_array,
    greater,
    intrinsic_for_scalars_and_arrays,
    lesser,
)
from aotc.relay.op.gather import clip_index, require_integer_tensor
from aotc.relay.op.opdef import Array, Index, OpDef, Sample, Samples, Scalar, reference_from_element_function
from aotc.relay.op.operator_definition import (
    random_array,
    require_dtype,
    require_float_tensor,
    require_known_name,
    require_tensor_of_rank,
)
from aotc.relay.op.window_attributes import (
    canonical_axis_positions,
    canonical_to_layout_order,
    layout_to_canonical_order,
    per_axis_attribute_field,
    transpose_to_canonical,
    transpose_to_layout,
)
from aotc.tir import Block, Buffer, Declare, For, Load, Stmt, Store, Tensor, Var, const, te
from aotc.tir.stmt import Assign, loop_nest

floor, _ceil = intrinsic_for_scalars_and_arrays("floor"), intrinsic_for_scalars_and_arrays("ceil")
_rint: Final = dispatch_scalar_or_array(intrinsic_for_scalars_and_arrays("round_even"), np.rint)
#: Largest number of samples of a cell along one axis.
_MAX_SAMPLES_PER_CELL_AXIS: Final = 1 << 16


def clip_position_to_index(position: Any, extent: int) -> Any:
    """Return a position as an int64 index clipped to the axis."""
    return clip_index(position.astype("int64"), extent)


def linear_interpolation_taps(position: Any, extent: int) -> list[tuple[Any, Any]]:
    """Return (index, weight) of the two pixels around a position along an axis, for linear
    interpolation.
    """
    low = floor(position)
    first = (clip_position_to_index(low, extent), 1.0 - (position - low))
    return [first, (clip_position_to_index(low + 1.0, extent), position - low)]


def interpolate_bilinearly(taps_by_axis: Sequence[Any], element: Callable[[Any, Any], Any]) -> Any:
    """Return the bilinear interpolation of elements from the (index, weight) pairs of both axes."""
    total: Any = 0.0
    for (y, v), (x, w) in itertools.product(*taps_by_axis):
        value = element(y, x)
        total = value * (v * w).astype(value.dtype) + total
    return total


def _axis_positions_and_extents(
    attrs: Any, data: Any, regions: Any
) -> tuple[tuple[int, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Return the positions of the axes NCHW in the data, the data's extents, and the result's
    extents.

    The result has one image for each region.
    """
    where = canonical_axis_positions(attrs.layout, "NCHW")
    shape = layout_to_canonical_order(data.shape, where)
    name = "crop_size" if isinstance(attrs, CropAndResizeAttrs) else "pooled_size"
    size = getattr(attrs, name)
    require("resize.size", min(size) > 0, f"the extents of {name} must be positive, got {size}")
    nothing = 0 in (shape[0], *shape[2:])
    require("resize.empty", not nothing, lambda: f"nothing to sample in {data}")
    return where, shape, (regions.shape[0], shape[1], *size)


def _region_op_axis_map(attrs: Any, types: Types) -> AxisMap:
    """Return the axis map of a region operator.

    Channels are mapped to the data's channels; images of the result are mapped to rows of the other
    arguments.
    """
    batch, channels = canonical_axis_positions(attrs.layout, "NCHW")[:2]
    data = tuple(k if k == channels else None for k in range(4))
    region = tuple(0 if k == batch else None for k in range(4))
    return AxisMap((data, *(region,) * (len(types) - 1)))


_REGION_OP_FACETS: Final[Any] = {
    "axes": _region_op_axis_map,
    "layout": LayoutTreatment.FOLLOW,
    "precision": PrecisionTreatment.NEVER,
}

# --- image.crop_and_resize


class CropAndResizeAttrs(Attrs):
    """Box n of image box_indices[n] of `data` resampled to `crop_size`.

    Corners of a box are y1, x1, y2, x2, where 0 and 1 are the centers of the first and the last
    pixel. Positions outside of the image give `extrapolation_value`. A single row or column is
    sampled at the middle of the box. `method` is "bilinear" or "nearest_neighbor".
    """

    crop_size: tuple[int, ...] = per_axis_attribute_field(2)
    layout: str = "NHWC"
    method: str = "bilinear"
    extrapolation_value: float = 0.0
    out_dtype: str = ""


def _infer_crop_and_resize_type(attrs: Any, types: Types) -> Type:
    data = require_tensor_of_rank("crop_and_resize.data", types[0], 4)
    boxes = require_tensor_of_rank("crop_and_resize.boxes", types[1], 2, "boxes")
    numbers = require_integer_tensor(types[2], "box_indices")
    indices = require_tensor_of_rank("crop_and_resize.boxes", numbers, 1, "box_indices")
    require_dtype(data.dtype, not data.dtype.is_bool)
    require_dtype(boxes.dtype, boxes.dtype == "float32")
    methods = ("bilinear", "nearest_neighbor")
    require_known_name("crop_and_resize.method", "method", attrs.method, methods)
    fits = may_be_equal_dims(boxes.shape[1], 4) and may_be_equal_dims(boxes.shape[0], indices.shape[0])
    require("crop_and_resize.boxes", fits, lambda: f"there is no box of 4 numbers in {boxes} for each of {indices}")
    where, _, shape = _axis_positions_and_extents(attrs, data, boxes)
    return TensorType(canonical_to_layout_order(shape, where), attrs.out_dtype or "float32")


def _crop_and_resize_element(attrs: Any, i: Index, data: Any, boxes: Any, indices: Any) -> Any:
    where, (batch, _, *space), _ = _axis_positions_and_extents(attrs, data, boxes)
    box, channel, *out = layout_to_canonical_order(i, where)
    image = clip_index(indices[(box,)], batch)
    inside, sides = [], []
    for k, (count, extent) in enumerate(zip(attrs.crop_size, space, strict=True)):
        start, end = boxes[(box, k)], boxes[(box, k + 2)]
        o = out[k].astype("float32")
        along = o / float(count - 1) if count > 1 else o + 0.5
        x = (start + (end - start) * along) * float(extent - 1)
        inside.append((x >= 0.0) & (x <= float(extent - 1)))
        x = x if attrs.method == "bilinear" else _rint(x)
        both = linear_interpolation_taps(x, extent)
        sides.append(both if attrs.method == "bilinear" else both[:1])

    def pixel_as_float32(y: Any, x: Any) -> Any:
        return data[canonical_to_layout_order((image, channel, y, x), where)].astype("float32")

    value = choose(inside[0] & inside[1], interpolate_bilinearly(sides, pixel_as_float32), attrs.extrapolation_value)
    return value.astype(attrs.out_dtype or "float32")


def _crop_and_resize_test_samples() -> Samples:
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
    args=declare_arguments("data", "boxes", "box_indices"),
    infer=_infer_crop_and_resize_type,
    reference=reference_from_element_function(_infer_crop_and_resize_type, _crop_and_resize_element),
    element=_crop_and_resize_element,
    pattern=OpPattern.INJECTIVE,
    samples=_crop_and_resize_test_samples,
    **_REGION_OP_FACETS,
)


# --- cells of regions


class RoiPoolAttrs(Attrs):
    """Maximum of each cell of a region of interest, 0 for an empty cell.

    `rois` (N, 5) has image, x1, y1, x2, y2 of each region, in pixels before multiplication by
    `spatial_scale`; corners are rounded. A region has pooled_size[0] x pooled_size[1] cells.
    """

    pooled_size: tuple[int, ...] = per_axis_attribute_field(2)
    spatial_scale: float
    layout: str = "NCHW"


class RoiAlignAttrs(Attrs):
    """Mean (or maximum, with `mode` "max") of bilinear samples in each cell of a region of
    interest.

    `rois` (N, 5) has image, x1, y1, x2, y2 of each region, in pixels before multiplication by
    `spatial_scale`. A region has pooled_size[0] x pooled_size[1] cells. A cell has `sample_ratio`
    samples along each axis, or about one for each pixel if that is not positive. With `aligned`, the
    centers of pixels are at halves, and a region may be smaller than a pixel. The mode "max_weighted" is the
    maximum of the pixels around all samples, each multiplied by its weight in the interpolation, as
    ONNX defines it.
    """

    pooled_size: tuple[int, ...] = per_axis_attribute_field(2)
    spatial_scale: float
    sample_ratio: int = -1
    layout: str = "NCHW"
    mode: str = "avg"
    aligned: bool = False


def _infer_roi_op_type(attrs: Any, types: Types) -> Type:
    data, rois = map(require_float_tensor, types)
    fits = data.rank == 4 and rois.rank == 2 and may_be_equal_dims(rois.shape[1], 5)
    require("roi.data", fits, lambda: f"data must have rank 4 and rois the shape (N, 5), got {data} and {rois}")
    if isinstance(attrs, RoiAlignAttrs):
        require_known_name("roi_align.mode", "mode", attrs.mode, ("avg", "max", "max_weighted"))
    where, _, shape = _axis_positions_and_extents(attrs, data, rois)
    return TensorType(canonical_to_layout_order(shape, where), data.dtype)


def _variable_declarer(stmts: list[Stmt]) -> Callable[[Any], Any]:
    """Return a function `let` that declares a variable for a value, appending the declaration to
    `stmts`.
    """

    def declare_variable(value: Any) -> Any:
        var = Var("v", value.dtype)
        stmts.append(Declare(var, value))
        return var

    return declare_variable


def _roi_cell_initial_value_and_combiner(attrs: Any) -> tuple[float, Callable[[Any, Any], Any]]:
    """Return the initial value of a cell and the function that combines it with a term."""
    mean = getattr(attrs, "mode", "max") == "avg"
    return (0.0, lambda x, y: x + y) if mean else (-np.inf, greater)


@frozen
class _RegionCellReduction:
    """An operator that sums terms, or takes their maximum, over each cell of each region.

    The functions are formulas for arrays as well as for scalar expressions:

    ends     (attrs, roi, axis, cell, extent) -> half-open range of taps along an axis
    term     (attrs, roi, cell, taps, spatial extents, element(row, column), let) -> a term; let(value) binds
             a variable
    finish   (attrs, total, ends along both axes) -> the result's element
    """

    ends: Callable[..., Any]
    term: Callable[..., Any]
    finish: Callable[..., Any]

    def reduce_roi_cells_of_arrays(self, attrs: Any, data: Array, rois: Array) -> Array:
        where, (batch, _, *space), shape = _axis_positions_and_extents(attrs, data, rois)
        x, (start, combine) = (
            transpose_to_canonical(widen_narrow_float_array(data), where),
            _roi_cell_initial_value_and_combiner(attrs),
        )
        n, channel, *at = np.indices(shape, sparse=True)
        roi = [rois[n, k].astype(np.float32) for k in range(5)]
        bounds = [self.ends(attrs, roi, k, at[k], extent) for k, extent in enumerate(space)]
        image, total = clip_position_to_index(roi[0], batch), np.full(shape, start, x.dtype)

        def pixel_of_array(row: Any, column: Any) -> Any:
            return x[image, channel, row, column]

        taps = (np.arange(np.min(b, initial=0), np.max(e, initial=0)) for b, e in bounds)
        for tap in itertools.product(*taps):
            masks = [(b <= t) & (t < e) for t, (b, e) in zip(tap, bounds, strict=True)]
            value = self.term(attrs, roi, at, tap, space, pixel_of_array, lambda v: v)
            total = np.where(masks[0] & masks[1], combine(total, value), total)
        return cast_array(transpose_to_layout(self.finish(attrs, total, bounds), where), data.dtype)

    def reduce_roi_cells_of_tensors(self, attrs: Any, data: Tensor, rois: Tensor) -> Tensor:
        where, (batch, _, *space), extents = _axis_positions_and_extents(attrs, data, rois)
        x, table, shape = (
            widen_narrow_float_tensor(data),
            cast_tensor(rois, "float32"),
            canonical_to_layout_order(extents, where),
        )
        start, combine = _roi_cell_initial_value_and_combiner(attrs)

        def build_roi_cell_loops(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
            n, channel, *at = axes = [Var(name) for name in "ncij"]
            before: list[Stmt] = []
            inner: list[Stmt] = []
            let = _variable_declarer(before)
            image, *roi = (let(Load(inputs[1], n * 5 + k)) for k in range(5))
            roi, image = [image, *roi], let(clip_position_to_index(image, batch))
            bounds = [[*map(let, self.ends(attrs, roi, k, at[k], extent))] for k, extent in enumerate(space)]
            taps, total = [Var("y"), Var("x")], Var("total", x.dtype)

            def load_pixel(*pixel: Scalar) -> Scalar:
                place = canonical_to_layout_order((image, channel, *pixel), where)
                return Load(inputs[0], te.flat_index(data.shape, place))

            value = self.term(attrs, roi, at, taps, space, load_pixel, _variable_declarer(inner))
            body: Stmt = Block((*inner, Assign(total, combine(total, value))))
            for tap, (begin, end) in zip(reversed(taps), reversed(bounds), strict=True):
                body = For(tap, end, body, begin=begin)
            place = te.flat_index(shape, canonical_to_layout_order(axes, where))
            keep = Store(outputs[0], place, self.finish(attrs, total, bounds))
            begin_ = Declare(total, const(start, x.dtype))
            cell = Block((*before, begin_, body, keep))
            return loop_nest(zip(axes, extents, strict=True), cell, "independent")

        return cast_tensor(te.extern("cells", [(shape, x.dtype)], [x, table], build_roi_cell_loops)[0], data.dtype)


def _roi_op_test_samples(attrs_class: Any, sample_attributes: Sequence[dict[str, Any]]) -> Samples:
    rows = [(0, 1, 1, 6, 4), (1, -3, 2, 2.5, 9), (9, 2, 2, 2, 2), (1, 3, 1, 9, 3)]
    for given in sample_attributes:
        for layout, scale in (("NCHW", 1.0), ("NHWC", 0.7)):
            data = random_array(canonical_to_layout_order((2, 3, 6, 7), canonical_axis_positions(layout, "NCHW")))
            attr_values = {"layout": layout, "spatial_scale": scale, **given}
            a = attrs_class(pooled_size=(2, 3), **attr_values)
            yield Sample(args=(data, np.array(rows, np.float32)), attrs=a)


def _roi_op(
    name: str, attrs_class: type[Attrs], cells: _RegionCellReduction, *sample_attributes: dict[str, Any]
) -> OpDef:
    return OpDef(
        name=f"vision.{name}",
        attrs=attrs_class,
        args=declare_arguments("data", "rois"),
        infer=_infer_roi_op_type,
        reference=cells.reduce_roi_cells_of_arrays,
        compute=cells.reduce_roi_cells_of_tensors,
        samples=partial(_roi_op_test_samples, attrs_class, sample_attributes),
        **_REGION_OP_FACETS,
    )


def _roi_pool_pixel_range(attrs: Any, roi: Any, axis: int, cell: Any, extent: int) -> list[Any]:
    start, end = (_rint(roi[n] * attrs.spatial_scale).astype("int64") for n in (2 - axis, 4 - axis))
    size, count = greater(end - start + 1, 1), attrs.pooled_size[axis]
    cell_end = ((cell + 1) * size + (count - 1)) // count
    return [lesser(greater(start + p, 0), extent) for p in (cell * size // count, cell_end)]


def _zero_if_roi_cell_is_empty(_: Any, total: Any, bounds: Any) -> Any:
    rows, columns = (end <= begin for begin, end in bounds)
    return choose(rows | columns, 0.0, total)


def _roi_pool_pixel_at_tap(_a: Any, _roi: Any, _at: Any, taps: Any, _space: Any, element: Any, _let: Any) -> Any:
    return element(*taps)


roi_pool = _roi_op(
    "roi_pool",
    RoiPoolAttrs,
    _RegionCellReduction(_roi_pool_pixel_range, _roi_pool_pixel_at_tap, _zero_if_roi_cell_is_empty),
    {},
)


def _roi_align_start_cell_size_and_samples(attrs: Any, roi: Any, axis: int) -> tuple[Any, Any, Any]:
    """Return the start of a region along an axis, the size of its cells, and the number of samples
    per cell.
    """
    start, end = (roi[n] * attrs.spatial_scale - (0.5 if attrs.aligned else 0.0) for n in (2 - axis, 4 - axis))
    size = (end - start if attrs.aligned else greater(end - start, 1.0)) / float(attrs.pooled_size[axis])
    if attrs.sample_ratio > 0:
        return start, size, size * 0.0 + float(attrs.sample_ratio)
    return start, size, lesser(_ceil(size), float(_MAX_SAMPLES_PER_CELL_AXIS))


def _roi_align_sample_range(attrs: Any, roi: Any, axis: int, *_: Any) -> list[Any]:
    count = _roi_align_start_cell_size_and_samples(attrs, roi, axis)[2].astype("int64")
    return [count * 0, count]


def _roi_align_bilinear_sample(
    attrs: Any, roi: Any, cell_index: Any, taps: Any, spatial_extents: Any, element: Any, bind: Any
) -> Any:
    inside, sides = [], []
    for k, extent in enumerate(spatial_extents):
        start, size, count = _roi_align_start_cell_size_and_samples(attrs, roi, k)
        cell, tap = (v[k].astype("float32") for v in (cell_index, taps))
        x = bind(start + cell * size + (tap + 0.5) * (size / count))
        inside.append((x >= -1.0) & (x <= float(extent)))
        x = bind(lesser(greater(x, 0.0), float(extent - 1)))
        sides.append(linear_interpolation_taps(x, extent))
    combine = _greatest_weighted_pixel if attrs.mode == "max_weighted" else interpolate_bilinearly
    return choose(inside[0] & inside[1], combine(sides, element), 0.0)


def _greatest_weighted_pixel(taps_by_axis: Sequence[Any], element: Callable[[Any, Any], Any]) -> Any:
    """Return the greatest of the pixels around a position, each multiplied by its weight."""
    terms = []
    for (y, v), (x, w) in itertools.product(*taps_by_axis):
        value = element(y, x)
        terms.append(value * (v * w).astype(value.dtype))
    return fold(greater, terms)


def _roi_align_cell_result(attrs: Any, total: Any, bounds: Any) -> Any:
    (_, rows), (_, columns) = bounds
    count = rows * columns
    if attrs.mode == "avg":
        return total / greater(count, 1).astype(total.dtype)
    # a region without extent has no samples
    return choose(count > 0, total, 0.0) if attrs.aligned else total


_ROI_ALIGN_REDUCTION: Final = _RegionCellReduction(
    _roi_align_sample_range, _roi_align_bilinear_sample, _roi_align_cell_result
)
roi_align = _roi_op(
    "roi_align",
    RoiAlignAttrs,
    _ROI_ALIGN_REDUCTION,
    {},
    {"sample_ratio": 2},
    {"mode": "max"},
    {"mode": "max_weighted", "aligned": True},
    {"aligned": True, "sample_ratio": 3},
)
