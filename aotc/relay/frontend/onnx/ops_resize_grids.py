# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of operators on the positions of images: resizing, grid sampling, and Col2Im (as a scatter).

At most three axes can be resized; they are transposed to the end and become the spatial axes of
`image.resize1d`, `resize2d` or `resize3d`.

    OPS["Resize"](x, None, scales)          # image.resize2d(x, size=(8, 8), ...)
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aotc.ir import (
    AotcError,
    Array,
    Dim,
    DType,
    SymDim,
    exact_quotient_or_none,
    is_static,
    largest_size,
    product_of_dims,
    require,
    require_static_shape,
    sum_of_dims,
)
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.matmul_einsum import matmul
from aotc.relay.frontend.onnx.node import OnnxNode, SizeInput, Table, table_by_function_name
from aotc.relay.frontend.onnx.run_time_axes import flat_indices_in_other_shape, flat_steps
from aotc.relay.frontend.onnx.run_time_resize import resize_at_run_time
from aotc.relay.frontend.run_time_slices import largest_of_dims
from aotc.relay.frontend.size_conditions import require_at_least, require_equal_dims
from aotc.relay.frontend.size_operands import define_size
from aotc.relay.graph_api import Var, compile_time_elements
from aotc.relay.op.resize_sampling import ResizeAttrs, axis_mappings_of_resize

# --- resizing

_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}


class _AxisResize(NamedTuple):
    """The resizing of one axis: result extent, scale factor, and the start and end of the cropped
    region as fractions of the extent.
    """

    size: int
    scale: float = 1.0
    start: float = 0.0
    end: float = 1.0


def _resized_axes(node: OnnxNode, shape: Sequence[int], crops: bool) -> dict[int, _AxisResize]:
    """Return the resizing of each axis in the attribute `axes` (all axes by default) of a Resize
    node, computed from its inputs `scales` or `sizes`, and `roi` if it crops.

    Raises AotcError (code "onnx-resize") for inputs that do not fit.
    """
    places = [g.normalize_axis(a, len(shape)) for a in node.attrs.get("axes") or range(len(shape))]
    scales, sizes = _scales_or_sizes_of_resize_node(node)
    count, extents = len(places), [shape[a] for a in places]
    starts, ends = [0.0] * count, [1.0] * count
    if crops:
        roi = node.constant_value_of_attribute_or_input(1, "roi")
        if roi is None or roi.size != 2 * count:
            text = "tf_crop_and_resize needs a region with a start and an end per axis"
            raise AotcError("onnx-resize", text)
        starts, ends = roi.reshape(2, count).tolist()
    finite = all(map(math.isfinite, (*scales, *starts, *ends)))
    require("onnx-resize", finite, f"scales {scales} and the region must be finite")
    if sizes:
        fits = len(sizes) == count and min(sizes) >= 0
        require("onnx-resize", fits, f"sizes {sizes} must have one value of at least 0 for each of {count} axes")
        policy = node.attrs.get("keep_aspect_ratio_policy", "")
        sizes, scales = _apply_aspect_ratio_policy(sizes, extents, policy)
    else:
        fits = len(scales) == count and min(scales, default=1.0) > 0
        require("onnx-resize", fits, f"scales {scales} must have one positive value for each of {count} axes")
        sizes = list(itertools.starmap(_scaled_extent, zip(extents, starts, ends, scales, strict=True)))
    return dict(zip(places, itertools.starmap(_AxisResize, zip(sizes, scales, starts, ends, strict=True)), strict=True))


def _scaled_extent(extent: int, start: float, end: float, scale: float) -> int:
    """Return floor(extent * (end - start) * scale), with the product rounded to float32 as in ONNX
    Runtime: 5 * 1.4 is 7.

    The standard does not define the rounding of the product; the exact product with float32(1.4) is
    6.99999988.
    """
    part = np.float32(end) - np.float32(start)
    return math.floor(float(np.float32(scale) * (part * np.float32(extent))))


def _scales_or_sizes_of_resize_node(node: OnnxNode) -> tuple[list[float], list[int]]:
    """Return the inputs `scales` and `sizes` of a Resize node, one of which is empty. Raises
    AotcError (code "onnx-resize") if both or neither is given.
    """
    if "height_scale" in node.attrs:  # Upsample of operator set 1
        return [1.0, 1.0, node.attrs["height_scale"], node.attrs["width_scale"]], []
    newer = node.op_type != "Upsample" and node.since >= 11
    factors = node.constant_value_of_attribute_or_input(2 if newer else 1, "scales")
    given = node.constant_value_of_attribute_or_input(3, "sizes") if newer else None
    scales = [] if factors is None else [float(s) for s in factors.reshape(-1)]
    sizes = [] if given is None else [int(s) for s in given.reshape(-1)]
    require("onnx-resize", bool(scales) != bool(sizes), f"{node.op_type} needs either scales or sizes")
    return scales, sizes


def _has_constant_sizes(node: OnnxNode, crops: bool) -> bool:
    """Return True if all numbers that a Resize uses are known when the model is compiled; only cropping uses the
    region.
    """
    has_region = node.op_type != "Upsample" and node.since >= 11
    used = [value for k, value in enumerate(node.inputs) if k > 1 or (k == 1 and (crops or not has_region))]
    return all(value is None or compile_time_elements(value) is not None for value in used)


#: Coordinate modes in which an output of a resize by a whole factor has the same place relative to its
#: source element in tensors of all extents.
_MODES_OF_EACH_EXTENT = ("asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")


def _repeated_by_whole_factors(
    x: Expr, method: str, coordinate_mode: str, nearest_mode: str, node: OnnxNode
) -> Expr | None:
    """Convert a Resize that repeats each element of axes; None for any other one."""
    places = [g.normalize_axis(a, g.rank(x)) for a in node.attrs.get("axes") or range(g.rank(x))]
    is_operand = len(node.inputs) > 1 and isinstance(node.inputs[-1], Var)  # no multiple of an extent
    if is_operand or method != "nearest_neighbor" or coordinate_mode not in _MODES_OF_EACH_EXTENT:
        return None
    factors = _whole_factors_or_none(x, places, node)
    rounding = nearest_mode if nearest_mode != "simple" else "floor"
    if factors is None or not all(_repeats(f, coordinate_mode, rounding) for f in factors):
        return None
    for axis, factor in zip(places, factors, strict=True):
        if factor != 1:
            x = g.call_op("repeat", x, repeats=factor, axis=axis)
    return x


def _whole_factors_or_none(x: Expr, places: Sequence[int], node: OnnxNode) -> list[int] | None:
    """Return the factors by which a Resize multiplies extents; None if one is no whole number."""
    newer = node.op_type != "Upsample" and node.since >= 11
    sizes = node.sizes_of_attribute_or_input(3, "sizes") if newer else None
    factors: list[Any]
    if sizes:
        policy = node.attrs.get("keep_aspect_ratio_policy", "stretch")
        if len(sizes) != len(places) or policy != "stretch":
            return None
        factors = [exact_quotient_or_none(size, g.dims(x)[k]) for size, k in zip(sizes, places, strict=True)]
    elif _has_constant_sizes(node, False):
        factors, _ = _scales_or_sizes_of_resize_node(node)
    else:
        return None
    whole = [int(f) for f in factors if isinstance(f, (int, float)) and math.isfinite(f) and f >= 1 and f == int(f)]
    return whole if len(whole) == len(places) else None


def _repeats(factor: int, coordinate_mode: str, rounding: str) -> bool:
    """Return True if a resize by a whole factor takes element o // factor for each output o."""
    attrs = ResizeAttrs(size=(2 * factor,), coordinate_transformation_mode=coordinate_mode)
    (axis,) = axis_mappings_of_resize(1, attrs, (2,))
    outputs = np.arange(2 * factor, dtype=np.int64)
    return bool((axis.nearest_source_index(outputs, rounding).clip(0, 1) == outputs // factor).all())


def _apply_aspect_ratio_policy(sizes: list[int], extents: list[int], policy: str) -> tuple[list[int], list[float]]:
    """Return result extents and scale factors. With the policy "not_larger" or "not_smaller" all
    axes use the smallest or the largest factor, as ONNX's keep_aspect_ratio_policy defines;
    otherwise `sizes` are used unchanged.
    """
    factors = [size / extent for size, extent in zip(sizes, extents, strict=True)]
    common = {"not_larger": min, "not_smaller": max}.get(policy)
    if common is None:
        return sizes, factors
    factor = common(factors)
    return [math.floor(extent * factor + 0.5) for extent in extents], [factor] * len(sizes)


def _resize(
    x: Expr,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "asymmetric",  # default for operator sets up to 10, as is the next
    nearest_mode: str = "floor",
    node: OnnxNode,
    **numbers: Any,
) -> Expr:
    """Convert Resize and Upsample: transpose the resized axes to the end, flatten the other axes to
    one, resize, and undo both.
    """
    method = _METHODS.get(mode, "")
    require(
        "onnx-resize", bool(method), f"{node.op_type} has the unknown mode {mode!r}; known modes: {', '.join(_METHODS)}"
    )
    crops = coordinate_transformation_mode == "tf_crop_and_resize"
    if not is_static(g.dims(x)):
        repeated = _repeated_by_whole_factors(x, method, coordinate_transformation_mode, nearest_mode, node)
        if repeated is not None:
            return repeated
    if not is_static(g.dims(x)) or not _has_constant_sizes(node, crops):
        return resize_at_run_time(x, method, coordinate_transformation_mode, nearest_mode, node, numbers)
    shape = g.shape(x)
    axes = _resized_axes(node, shape, crops)
    result_shape = [axes[k].size if k in axes else n for k, n in enumerate(shape)]
    g.checked_shape(result_shape, g.dtype(x), f"the result of {node.op_type}")
    changed = [k for k in sorted(axes) if axes[k] != _AxisResize(shape[k])]
    count = len(changed)
    require("onnx-resize", count <= 3, f"resizing {count} axes at once is not supported (3 are)")
    if not changed:
        return x
    other_axes = [k for k in range(len(shape)) if k not in changed]
    order, extents = [*other_axes, *changed], [shape[k] for k in changed]
    sizes, scales, starts, ends = zip(*(axes[k] for k in changed), strict=True)
    exact = not crops and all(n * scale == size for n, scale, size in zip(extents, scales, sizes, strict=True))
    y = conv_pool.build_resize(
        g.reshape(g.transpose(x, order), (1, math.prod(shape[k] for k in other_axes), *extents)),
        sizes,
        method,
        coordinate_transformation_mode,
        nearest_mode,
        numbers.get("cubic_coeff_a", -0.75),
        roi=(*starts, *ends) if crops else None,
        cubic_exclude=numbers.get("exclude_outside", 0),
        extrapolation_value=numbers.get("extrapolation_value", 0.0),
        scales=None if exact else scales,
        antialias=bool(numbers.get("antialias")) and method != "nearest_neighbor",
    )
    y = g.reshape(y, [result_shape[k] for k in order])
    return g.transpose(y, [order.index(k) for k in range(len(shape))])


_SAMPLING = {"linear": "bilinear", "cubic": "bicubic"}


def _grid_sample(x: Expr, grid: Expr, *, mode: str, padding_mode: str, align_corners: bool) -> Expr:
    return conv_pool.grid_sample(x, grid, _SAMPLING.get(mode, mode), padding_mode, align_corners)


def _affine_grid(theta: Expr, size: SizeInput, *, align_corners: bool = False) -> Expr:
    """Convert AffineGrid: the sampling positions of all output elements as the product of their coordinates with the
    matrices `theta`.
    """
    values = size.within(0, None)
    spatial, rank = values[2:], len(values) - 2
    fits = rank in (2, 3) and g.rank(theta) == 3 and g.dims(theta)[1:] == (rank, rank + 1)
    text = f"matrices of shape {g.dims(theta)} do not fit the size {values}"
    require("onnx-grid", fits, text)
    require_equal_dims("onnx-grid", g.dims(theta)[0], values[0], text)
    if is_static(spatial):
        base = _known_coordinates(require_static_shape(spatial), align_corners, g.dtype(theta))
    else:
        base = _run_time_coordinates(spatial, align_corners, g.dtype(theta))
    grid = matmul(base, g.transpose(theta, (0, 2, 1)))
    return g.reshape(grid, (g.dims(theta)[0], *spatial, rank))


def _known_coordinates(spatial: Sequence[int], align_corners: bool, dtype: DType) -> Expr:
    """Return the coordinates, last axis first, of all elements of a grid from -1 to 1, each with a 1 behind it."""
    g.check_materialization_cost((*spatial, len(spatial) + 1), "float64", "the positions of AffineGrid")
    axes = [np.linspace(-1.0, 1.0, n) if align_corners else (np.arange(n) * 2 + 1) / n - 1 for n in spatial]
    places = np.stack([*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(spatial)], -1)
    return g.constant(places.reshape(1, -1, len(spatial) + 1), dtype)


def _run_time_coordinates(spatial: Sequence[Dim], align_corners: bool, dtype: DType) -> Expr:
    """Return what `_known_coordinates` does, for extents that are known at run time only."""
    rank, count = len(spatial), product_of_dims(spatial)
    columns: list[Expr] = []
    for k, extent in reversed(list(enumerate(spatial))):
        numbers, size = g.positions_up_to(extent, "float64"), g.cast(g.size_as_tensor(extent), "float64")
        if align_corners:
            steps = g.maximum(g.sub(size, 1.0), 1.0)
            axis = g.sub(g.div(g.mul(numbers, 2.0), steps), 1.0)
        else:
            axis = g.sub(g.div(g.add(g.mul(numbers, 2.0), 1.0), size), 1.0)
        along = g.reshape(g.cast(axis, dtype), [extent if j == k else 1 for j in range(rank)])
        columns.append(g.reshape(g.broadcast_to(along, spatial), (1, count, 1)))
    columns.append(g.call_op("ones", shape=(1, count, 1), dtype=str(dtype)))
    return g.concat(columns, 2)


def _roi_align(
    x: Expr,
    rois: Expr,
    batch_indices: Expr,
    *,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
    coordinate_transformation_mode: str = "output_half_pixel",  # all that operator set 10 has
) -> Expr:
    """Convert RoiAlign: the image of each region becomes the first of its five numbers."""
    modes = {"avg": "avg", "max": "max_weighted"}
    aligned = {"half_pixel": True, "output_half_pixel": False}
    for name, value, known in (
        ("mode", mode, modes),
        ("coordinate_transformation_mode", coordinate_transformation_mode, aligned),
    ):
        text = f"{name} of RoiAlign is {value!r}; known: {', '.join(known)}"
        require("onnx-roi", value.lower() in known, text)
    count = g.dims(batch_indices)
    fits = len(count) == 1 and g.dims(rois)[1:] == (4,)
    text = f"regions of shape {g.dims(rois)} with {count} images; (N, 4) and (N) are needed"
    require("onnx-roi", fits, text)
    # as float32, image numbers are exact up to 2**24
    images = g.unsqueeze(g.cast(batch_indices, "float32"), [1])
    return g.call_op(
        "vision.roi_align",
        x,
        g.concat([images, g.cast(rois, "float32")], 1),
        pooled_size=(output_height, output_width),
        spatial_scale=spatial_scale,
        sample_ratio=sampling_ratio,
        mode=modes[mode.lower()],
        aligned=aligned[coordinate_transformation_mode.lower()],
    )


# --- Col2Im


class _WindowsOfAxis(NamedTuple):
    """The windows of `block` elements along an axis of `extent` elements, padding included."""

    extent: Dim
    block: Dim
    stride: int
    dilation: int

    @property
    def covered(self) -> Dim:
        """The number of elements from the first to the last one of a window."""
        return sum_of_dims((product_of_dims((self.dilation, self.block - 1)), 1))

    @property
    def windows(self) -> Dim:
        """The number of windows."""
        return (self.extent - self.covered) // self.stride + 1


def _col2im(
    x: Expr,
    image_shape: SizeInput,
    block_shape: SizeInput,
    *,
    strides: Any = None,
    dilations: Any = None,
    pads: Any = None,
) -> Expr:
    """Convert Col2Im: add each column into the image at the position of its window, with
    scatter_elements.
    """
    batch, rows, columns = g.dims(x)
    image, block = image_shape.within(0, None), block_shape.within(1, largest_of_dims([rows]))
    rank, taps, known = len(image), product_of_dims(block), is_static((rows, columns, *image, *block))
    text = f"columns of shape {g.dims(x)} do not fit image {image} and block {block}"
    require("onnx-col2im", len(block) == rank and all(isinstance(b, SymDim) or b > 0 for b in block), text)
    before, after = (pads or [0] * rank)[:rank], (pads or [0] * (2 * rank))[rank:]
    total = [sum_of_dims(widths) for widths in zip(image, before, after, strict=True)]
    windows = zip(total, block, strides or [1] * rank, dilations or [1] * rank, strict=True)
    axes = list(itertools.starmap(_WindowsOfAxis, windows))
    for axis in axes:
        require_at_least("onnx-col2im", axis.extent, axis.covered, text)
    counts = [_defined(axis.windows, largest_of_dims([columns])) for axis in axes]
    require_equal_dims("onnx-col2im", product_of_dims(counts), columns, text)
    channels = _defined(rows // taps, largest_of_dims([rows]))
    require_equal_dims("onnx-col2im", product_of_dims((channels, taps)), rows, text)
    elements = product_of_dims((taps, columns))
    if known:
        g.check_materialization_cost(
            (largest_size(taps), math.prod(map(largest_size, total))), "int64", "the positions of Col2Im"
        )
        index = _col2im_positions(
            require_static_shape(total), require_static_shape(block), strides or [1] * rank, dilations or [1] * rank
        )
        places: Expr = g.constant(index.reshape(1, 1, -1), "int64")
    else:
        places = g.reshape(_positions_of_run_time_windows(axes, counts, taps, columns), (1, 1, elements))
    flat = g.reshape(x, (batch, channels, elements))
    places = g.broadcast_to(places, (batch, channels, elements))
    zeros = g.filled(0, (batch, channels, product_of_dims(total)), str(g.dtype(x)))
    y = g.call_op("scatter_elements", zeros, places, flat, axis=2, reduction="add")
    y = g.reshape(y, (batch, channels, *total))
    if not known:
        return g.counted_slice(y, [0, 0, *before], [batch, channels, *image], [1] * (rank + 2))
    ends = [b + n for b, n in zip(before, image, strict=True)]
    return g.strided_slice(y, before, ends, list(range(2, rank + 2)))


def _defined(size: Dim, most: int | None) -> Dim:
    return size if isinstance(size, int) or most is None else define_size(size, 0, most)


def _positions_of_run_time_windows(
    axes: Sequence[_WindowsOfAxis], counts: Sequence[Dim], taps: Dim, columns: Dim
) -> Expr:
    """Return a tensor (kernel elements, windows) as `_col2im_positions` does: each position is the sum of that of the
    window and that of the element in the window.
    """
    steps = flat_steps([axis.extent for axis in axes])
    in_window = [g.mul(step, axis.dilation) for step, axis in zip(steps, axes, strict=True)]
    of_window = [g.mul(step, axis.stride) for step, axis in zip(steps, axes, strict=True)]
    elements = flat_indices_in_other_shape(g.positions_up_to(taps), [axis.block for axis in axes], in_window)
    windows = flat_indices_in_other_shape(g.positions_up_to(columns), counts, of_window)
    return g.add(g.reshape(elements, (taps, 1)), g.reshape(windows, (1, columns)))


def _col2im_positions(
    padded_extents: Sequence[int], block: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Array:
    """Return an array (kernel elements, windows) of the flat position in the padded image, of shape
    `padded_extents`, of each kernel element of each window.
    """
    flat = np.zeros((1, 1), np.int64)
    for k, extent in enumerate(padded_extents):
        count = (extent - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1
        at = np.arange(block[k])[:, None] * dilations[k] + np.arange(count)[None, :] * strides[k]
        joined = flat[:, None, :, None] * extent + at[None, :, None, :]
        flat = joined.reshape(flat.shape[0] * block[k], -1)
    return flat


OPS: Table = {
    **table_by_function_name(_affine_grid, _grid_sample, _resize, _roi_align),
    "Col2Im": _col2im,
    "Upsample": _resize,
}
