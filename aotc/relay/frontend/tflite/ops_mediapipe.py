# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of the custom operators of MediaPipe: layers of segmentation networks, and the
transformation of images and landmarks by matrices.

CUSTOM_OPS["Convolution2DTransposeBias"](x, w, bias, node=node)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.conv_pool import Window
from aotc.relay.frontend.tflite.custom_options import (
    STRUCT_SAME_PADDING,
    STRUCT_VALID_PADDING,
    FlexbufferOptions,
    convolution_options,
    pool_options,
)
from aotc.relay.frontend.tflite.node import Table, TfliteNode

# --- layers


def _convert_transposed_convolution_node(x: Expr, w: Expr, bias: Expr, *, node: TfliteNode) -> Expr:
    require("graph-rank", g.rank(x) == g.rank(w) == 4, f"{node.op.name} needs data and weights of rank 4")
    options = convolution_options(node)
    strides, kernel = (options.stride_height, options.stride_width), g.shape(w)[1:3]
    total = [0, 0]
    if options.padding == STRUCT_SAME_PADDING:
        sizes = zip(g.shape(x)[1:3], kernel, strides, strict=True)
        total = [max(0, k - (n - 1) % stride - 1) for n, k, stride in sizes]
    before = [n // 2 for n in total]
    window = Window(kernel, strides, (1, 1), (*before, *(n - b for n, b in zip(total, before, strict=True))))
    return conv_pool.build_transposed_convolution(
        x, w, window, bias, 1, (0, 0), data_layout="NHWC", kernel_layout="OHWI"
    )


def _convert_max_pool_with_argmax_node(x: Expr, *, node: TfliteNode) -> list[Expr]:
    """Return the maxima of windows, and the position of each in its window, plus 0.1: the first one
    in the order of rows. As in MediaPipe, the maximum of NaN alone is the least float32, at 0.
    """
    require("graph-rank", g.rank(x) == 4, f"data of rank {g.rank(x)} is not supported (4 is)")
    options = pool_options(node)
    kernel, strides = (options.filter_height, options.filter_width), (options.stride_height, options.stride_width)
    g.check_unroll_count(kernel[0] * kernel[1], node.op.name)
    extents = g.shape(x)[1:3]
    window = Window(kernel, strides, (1, 1), (0, 0, 0, 0))
    if options.padding == STRUCT_VALID_PADDING:
        fits = all(n >= k for n, k in zip(extents, kernel, strict=True))
        require("graph-shape", fits, f"a window of {kernel} does not fit {extents}")
    else:
        window = window.with_pads(conv_pool.same_padding_widths(extents, window))
    least = float(np.finfo(np.float32).min)
    top, left, bottom, right = window.pads
    padded = g.pad(x, [(0, 0), (top, bottom), (left, right), (0, 0)], least)
    counts = [(n - k) // stride + 1 for n, k, stride in zip(g.shape(padded)[1:3], kernel, strides, strict=True)]
    best: Expr = g.full(least, (g.dim(x, 0), *counts, g.dim(x, 3)), "float32")
    place: Expr = g.full(0.1, g.shape(best), "float32")
    for k in range(kernel[0] * kernel[1]):
        begin = divmod(k, kernel[1])
        end = [b + stride * (n - 1) + 1 for b, stride, n in zip(begin, strides, counts, strict=True)]
        part = g.strided_slice(padded, begin, end, [1, 2], strides)
        greater = g.greater(part, best)
        number = np.float32(np.float32(k) + np.float32(0.1))
        best, place = g.where(greater, part, best), g.where(greater, g.constant(number), place)
    return [best, place]


def _convert_max_unpooling_node(x: Expr, places: Expr, *, node: TfliteNode) -> Expr:
    """Set each element of `x` at its position in a window of zeros; positions outside are dropped."""
    require("graph-rank", g.rank(x) == 4, f"data of rank {g.rank(x)} is not supported (4 is)")
    fits = g.shape(x) == g.shape(places)
    require("graph-shape", fits, f"data of shape {g.shape(x)} and positions of shape {g.shape(places)} differ")
    options = pool_options(node)
    kernel, strides = (options.filter_height, options.filter_width), (options.stride_height, options.stride_width)
    text = f"{node.op.name} with windows of {kernel} and strides of {strides} is not supported: they must be equal"
    require("tflite-options", kernel == strides, text)
    g.check_unroll_count(kernel[0] * kernel[1], node.op.name)
    number = g.call_op("trunc", places)
    parts = [g.where(g.equal(number, float(k)), x, 0.0) for k in range(kernel[0] * kernel[1])]
    n, h, w, c = g.shape(x)
    y = g.reshape(g.stack(parts, 3), (n, h, w, *kernel, c))
    return g.reshape(g.transpose(y, (0, 1, 3, 2, 4, 5)), (n, h * kernel[0], w * kernel[1], c))


# --- transformations


def _first_rows_of_matrix(matrix: Expr, node: TfliteNode) -> tuple[Expr, Expr]:
    """Return the first two rows of a 4 x 4 matrix, with leading axes of extent 1, as (4,) each."""
    dims = g.shape(matrix)
    fits = dims[-2:] == (4, 4) and all(n == 1 for n in dims[:-2])
    require("graph-shape", fits, f"the matrix of {node.op.name} has the shape {dims}, not (1, 4, 4)")
    flat = g.reshape(matrix, (16,))
    x, y = (g.strided_slice(flat, [k], [k + 4], [0]) for k in (0, 4))
    return x, y


def _element(vector: Expr, k: int) -> Expr:
    return g.reshape(g.strided_slice(vector, [k], [k + 1], [0]), ())


def _convert_transform_tensor_node(x: Expr, matrix: Expr, *, node: TfliteNode) -> Expr:
    """Sample an image at the positions to which a matrix maps those of the result, with bilinear
    interpolation; positions outside of the image give 0. Version 2 maps the centers of pixels.
    """
    require("graph-rank", g.rank(x) == 4, f"data of rank {g.rank(x)} is not supported (4 is)")
    shape = node.first_output_declaration.shape
    height, width, channels = g.shape(x)[1:]
    fits = len(shape) == 4 and g.dim(x, 0) == shape[0] == 1 and shape[3] == channels
    require("graph-shape", fits, f"an image of shape {g.shape(x)} does not fit a result of shape {shape}")
    g.check_materialization_cost(shape[1:3], "float32", "the positions of an image")
    columns = g.constant(np.tile(np.arange(shape[2], dtype=np.float32), (shape[1], 1)))
    rows = g.constant(np.repeat(np.arange(shape[1], dtype=np.float32), shape[2]).reshape(shape[1:3]))

    def position(row: Expr) -> Expr:
        a, b, _, offset = (_element(row, k) for k in range(4))
        if node.op.version > 1:
            offset = g.add(offset, g.sub(g.add(g.mul(a, 0.5), g.mul(b, 0.5)), 0.5))
        return g.add(g.add(g.mul(a, columns), g.mul(b, rows)), offset)

    px, py = map(position, _first_rows_of_matrix(matrix, node))
    inside = _within(px, width - 1.0)
    inside = g.logical_and(inside, _within(py, height - 1.0))
    left, top = g.call_op("floor", px), g.call_op("floor", py)
    right_part, lower_part = (g.unsqueeze(g.sub(p, q), [2]) for p, q in ((px, left), (py, top)))
    flat = g.reshape(x, (height * width, channels))

    def pixel(dy: int, dx: int) -> Expr:
        # at the last row or column, the neighbor has the factor 0
        column = g.cast(g.clip(g.add(left, float(dx)), 0.0, width - 1.0), "int32")
        row = g.cast(g.clip(g.add(top, float(dy)), 0.0, height - 1.0), "int32")
        return g.call_op("take", flat, g.add(g.mul(row, width), column), axis=0)

    def mixed(a: Expr, b: Expr, part: Expr) -> Expr:
        return g.add(g.mul(g.sub(1.0, part), a), g.mul(part, b))

    upper, lower = (mixed(pixel(dy, 0), pixel(dy, 1), right_part) for dy in (0, 1))
    result = g.where(g.unsqueeze(inside, [2]), mixed(upper, lower, lower_part), 0.0)
    return g.reshape(result, shape)


def _within(position: Expr, last: float) -> Expr:
    return g.logical_and(g.greater_equal(position, 0.0), g.less_equal(position, last))


def _convert_transform_landmarks_node(x: Expr, matrix: Expr, *, node: TfliteNode) -> Expr:
    """Map the first two coordinates of landmarks by a matrix, of which version 1 scales the offset."""
    options, dims = FlexbufferOptions(node), g.shape(x)
    dimensions = options.integer("dimensions", 2)
    fits = dimensions in (2, 3) and len(dims) in (3, 4) and dims[-1] % dimensions == 0
    fits = fits and (node.op.version == 1 or dims == (1, dims[1], dimensions))
    require("graph-shape", fits, f"landmarks of {dimensions} coordinates do not fit data of shape {dims}")
    scale = options.number("scale") if node.op.version == 1 else 1.0
    require("tflite-options", scale != 0, f"the option scale of {node.op.name} is 0")
    points = g.reshape(x, (-1, dimensions))
    columns = [g.strided_slice(points, [k], [k + 1], [1]) for k in range(dimensions)]

    def mapped(row: Expr) -> Expr:
        a, b, _, offset = (_element(row, k) for k in range(4))
        offset = g.mul(offset, scale) if scale != 1.0 else offset
        return g.add(g.add(g.mul(a, columns[0]), g.mul(b, columns[1])), offset)

    parts = [*map(mapped, _first_rows_of_matrix(matrix, node)), *columns[2:]]
    return g.reshape(g.concat(parts, 1), dims)


def _product(matrices: Sequence[Sequence[Sequence[Expr | float]]]) -> list[list[Expr | float]]:
    """Multiply 3 x 3 matrices of expressions and numbers, from left to right."""

    def times(a: Expr | float, b: Expr | float) -> Expr | float:
        if isinstance(a, float) and isinstance(b, float):
            return a * b
        if 0.0 in (a, b):
            return 0.0
        return b if a == 1.0 else a if b == 1.0 else g.mul(a, b)

    def plus(a: Expr | float, b: Expr | float) -> Expr | float:
        if isinstance(a, float) and isinstance(b, float):
            return a + b
        return b if a == 0.0 else a if b == 0.0 else g.add(a, b)

    first, *rest = matrices
    result = [list(row) for row in first]
    for other in rest:
        result = [
            [plus(plus(times(r[0], other[0][c]), times(r[1], other[1][c])), times(r[2], other[2][c])) for c in range(3)]
            for r in result
        ]
    return result


def _matrix_of_4_rows(m: Sequence[Sequence[Expr | float]], third: Sequence[float]) -> Expr:
    """Return a transformation of the plane as a matrix (1, 4, 4)."""
    numbers: list[Expr | float] = []
    for row in m[:2]:
        numbers += [row[0], row[1], 0.0, row[2]]
    numbers += [*third, 0.0, 0.0, 0.0, 1.0]
    parts = [g.constant(v, "float32") if isinstance(v, float) else v for v in numbers]
    return g.reshape(g.concat([g.reshape(v, (1,)) for v in parts], 0), (1, 4, 4))


def _convert_landmarks_to_matrix_node(x: Expr, *, node: TfliteNode) -> Expr:
    """Return the matrix that maps positions of an upright crop around landmarks to those of the image."""
    options = FlexbufferOptions(node)
    version_1 = node.op.version == 1
    subset = options.integers("subset" if version_1 else "subset_idxs")
    ends = [options.integer(f"{side}_rotation_idx", 0) for side in ("left", "right")]
    points = g.reshape(x, (-1, 3)) if np.prod(g.shape(x)) % 3 == 0 else None
    count = g.dim(points, 0) if points is not None else 0
    text = f"landmarks {sorted({*subset, *ends})[-1:]} do not exist in data of shape {g.shape(x)}"
    require("graph-shape", points is not None and bool(subset) and max(*subset, *ends) < count, text)
    assert points is not None
    xs, ys = (g.reshape(g.strided_slice(points, [k], [k + 1], [1]), (count,)) for k in (0, 1))
    across, down = (g.sub(_element(v, ends[1]), _element(v, ends[0])) for v in (ys, xs))
    if version_1:
        return _matrix_of_version_1(options, xs, ys, subset, g.negative(g.call_op("atan", g.div(across, down))))
    target = options.number("target_rotation_radians")
    return _matrix_of_version_2(options, xs, ys, subset, g.sub(target, g.call_op("atan2", across, down)))


def _rotated_box(xs: Expr, ys: Expr, subset: Sequence[int], angle: Expr) -> tuple[list[Expr], list[Expr]]:
    """Return the center of the box around some landmarks after a rotation, rotated back, and its size."""
    cos, sin = g.call_op("cos", angle), g.call_op("sin", angle)
    index = g.constant(subset, "int32")
    x, y = (g.call_op("take", v, index, axis=0) for v in (xs, ys))
    rotated = g.sub(g.mul(x, cos), g.mul(y, sin)), g.add(g.mul(x, sin), g.mul(y, cos))
    ends = [[g.call_reduction(name, v, [0], False) for v in rotated] for name in ("min", "max")]
    size = [g.sub(high, low) for low, high in zip(*ends, strict=True)]
    mx, my = (g.mul(g.add(high, low), 0.5) for low, high in zip(*ends, strict=True))
    center = [g.add(g.mul(mx, cos), g.mul(my, sin)), g.sub(g.mul(my, cos), g.mul(mx, sin))]
    return center, size


def _matrix_of_version_1(options: FlexbufferOptions, xs: Expr, ys: Expr, subset: Sequence[int], angle: Expr) -> Expr:
    dimensions = options.integer("dimensions", 1)
    require("tflite-options", dimensions == 3, f"landmarks of {dimensions} coordinates are not supported (3 are)")
    extent, factor = options.number("landmarks_range"), options.number("bbox_size_multiplier")
    positive = extent > 0 and factor != 0
    require("tflite-options", positive, f"landmarks_range {extent:g} and bbox_size_multiplier {factor:g} are invalid")
    sizes = [options.integers(f"{name}_hw") for name in ("input", "output")]
    text = f"sizes {sizes} of the image and the crop are invalid"
    require("tflite-options", all(len(hw) == 2 and min(hw) > 0 for hw in sizes) and min(sizes[1]) > 1, text)
    (in_h, in_w), (out_h, out_w) = sizes
    center, size = _rotated_box(xs, ys, subset, angle)
    cos, sin = g.call_op("cos", angle), g.call_op("sin", angle)
    scale = [g.div(g.mul(v, factor), extent) for v in size]
    shift = [g.sub(g.mul(g.div(v, extent), 2.0), 1.0) for v in center]
    half_w, half_h = (in_w - 1.0) / 2.0, (in_h - 1.0) / 2.0
    matrix = _product(
        [
            [[half_w, 0.0, half_w], [0.0, half_h, half_h], [0.0, 0.0, 1.0]],
            [[cos, sin, shift[0]], [g.negative(sin), cos, shift[1]], [0.0, 0.0, 1.0]],
            [[scale[0], 0.0, 0.0], [0.0, scale[1], 0.0], [0.0, 0.0, 1.0]],
            [[2.0 / (out_w - 1.0), 0.0, -1.0], [0.0, 2.0 / (out_h - 1.0), -1.0], [0.0, 0.0, 1.0]],
        ]
    )
    return _matrix_of_4_rows(matrix, (0.0, 0.0, 1.0, 0.0))


def _matrix_of_version_2(options: FlexbufferOptions, xs: Expr, ys: Expr, subset: Sequence[int], angle: Expr) -> Expr:
    width, height = options.integer("output_width", 1), options.integer("output_height", 1)
    factors = [options.number(f"scale_{axis}") for axis in "xy"]
    require("tflite-options", min(factors) > 0, f"the factors {factors} of the crop must be positive")
    center, size = _rotated_box(xs, ys, subset, angle)
    cos, sin = g.call_op("cos", angle), g.call_op("sin", angle)
    scale = [g.div(g.mul(v, f), float(n)) for v, f, n in zip(size, factors, (width, height), strict=True)]
    matrix = _product(
        [
            [[cos, sin, center[0]], [g.negative(sin), cos, center[1]], [0.0, 0.0, 1.0]],
            [[scale[0], 0.0, 0.0], [0.0, scale[1], 0.0], [0.0, 0.0, 1.0]],
            [[1.0, 0.0, -width / 2.0], [0.0, 1.0, -height / 2.0], [0.0, 0.0, 1.0]],
        ]
    )
    return _matrix_of_4_rows(matrix, (0.0, 0.0, 1.0, 0.0))


CUSTOM_OPS: Final[Table] = {
    "Convolution2DTransposeBias": _convert_transposed_convolution_node,
    "Landmarks2TransformMatrix": _convert_landmarks_to_matrix_node,
    "MaxPoolingWithArgmax2D": _convert_max_pool_with_argmax_node,
    "MaxUnpooling2D": _convert_max_unpooling_node,
    "TransformLandmarks": _convert_transform_landmarks_node,
    "TransformTensor": _convert_transform_tensor_node,
    "TransformTensorBilinear": _convert_transform_tensor_node,
}
