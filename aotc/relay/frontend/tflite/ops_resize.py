# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of operators that resize images.

OPS["RESIZE_BILINEAR"](x, size, half_pixel_centers=True, node=node)
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from aotc.ir import Array, Dim, SymDim, exact_quotient_or_none, is_static, require, require_static_shape
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.frontend.tflite import integer_activations_resize_matmul
from aotc.relay.frontend.tflite.node import SizeInput, Table, TfliteNode
from aotc.relay.frontend.tflite.ops_shape import checked_nhwc_dims


def _nearest_source_indices(
    input_extent: int, output_count: int, align_corners: bool, half_pixel_centers: bool
) -> Array:
    """Return for each of `output_count` result positions of a nearest-neighbor resize the index of
    its source element.
    """
    aligned = align_corners and output_count > 1
    scale = (
        np.float32(input_extent - 1) / np.float32(output_count - 1)
        if aligned
        else np.float32(input_extent) / np.float32(output_count)
    )
    offset = np.float32(0.5 if half_pixel_centers else 0.0)
    places = (np.arange(output_count, dtype=np.float32) + offset) * scale
    whole = np.floor(places + np.float32(0.5)) if align_corners else np.floor(places)
    return np.asarray(np.clip(whole, 0, input_extent - 1), np.int32)


def check_image_extents(sizes: Sequence[Dim]) -> None:
    """Raise AotcError unless `sizes` are a positive height and width (code "graph-shape") within
    the compile-time limits ("budget").
    """
    fits = len(sizes) == 2 and all(isinstance(d, SymDim) or d > 0 for d in sizes)
    require("graph-shape", fits, f"{list(sizes)} are not valid extents of an image")
    if is_static(sizes):
        g.check_materialization_cost((sum(require_static_shape(sizes)),), "float64", "the lines of an image")


def resize_linearly_at_run_time(x: Expr, sizes: Sequence[Dim], coordinates: str) -> Expr:
    """Resize an image in NHWC whose extents, or those of the result, are known at run time only, by linear
    interpolation.
    """
    extents = g.dims(x)[1:3]
    whole = ((0, 1), (0, 1), (1, 1), (1, 1))
    y = conv_pool.build_resize(
        g.transpose(x, (0, 3, 1, 2)),
        sizes,
        "linear",
        coordinates,
        scale_fractions=tuple(zip(sizes, extents, strict=True)),
        roi_fractions=whole,
        out_dtype=str(g.dtype(x)),
    )
    return g.transpose(y, (0, 2, 3, 1))


def check_resize_options(align_corners: bool, half_pixel_centers: bool) -> None:
    """Raise AotcError (code "tflite-options") for a resize with both options, which exclude each
    other.
    """
    text = "a resize with both align_corners and half_pixel_centers is not defined"
    require("tflite-options", not (align_corners and half_pixel_centers), text)


def _convert_resize_nearest_node(
    x: Expr, size: SizeInput, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Expr:
    sizes = size.within(1, None)
    check_image_extents(sizes)
    check_resize_options(align_corners, half_pixel_centers)
    checked_nhwc_dims(x)
    if not is_static((*sizes, *g.dims(x)[1:3])):
        return _repeat_elements_to_size(x, sizes, align_corners)
    for axis, count in enumerate(require_static_shape(sizes), 1):
        places = _nearest_source_indices(g.dim(x, axis), count, align_corners, half_pixel_centers)
        x = gather_slices(x, g.constant(places), axis)
    return x


def _repeat_elements_to_size(x: Expr, sizes: Sequence[Dim], align_corners: bool) -> Expr:
    """Return an image in NHWC with rows and columns repeated, which a nearest-neighbor resize does whose sizes are
    multiples of the extents. Raises AotcError (code "graph-dynamic") for other sizes.
    """
    for axis, size in enumerate(sizes, 1):
        extent = g.dims(x)[axis]
        factor = exact_quotient_or_none(size, extent)
        text = f"RESIZE_NEAREST_NEIGHBOR of {extent} to {size} elements, known at run time only, is not supported"
        hint = "sizes that are whole multiples of the extents are, without align_corners"
        require("graph-dynamic", isinstance(factor, int) and not align_corners, text, hint=hint)
        x = g.call_op("repeat", x, repeats=factor, axis=axis)
    return x


def _convert_resize_bilinear_node(
    x: Expr, size: SizeInput, *, align_corners: bool = False, half_pixel_centers: bool = False, node: TfliteNode
) -> Expr:
    check_resize_options(align_corners, half_pixel_centers)
    sizes = size.within(1, None)
    mode = "align_corners" if align_corners else "half_pixel" if half_pixel_centers else "asymmetric"
    check_image_extents(sizes)
    require("graph-rank", g.rank(x) == 4, f"data of rank {g.rank(x)} is not supported (4 is)")
    if node.has_quantized_output:
        known = node.compile_time_input_value(1)
        assert known is not None
        extents = [int(v) for v in known.reshape(-1)]
        return integer_activations_resize_matmul.integer_resize_bilinear(
            node, extents, align_corners, half_pixel_centers
        )
    if is_static((*sizes, *g.dims(x)[1:3])):
        return conv_pool.build_resize(x, sizes, "linear", mode, layout="NHWC")
    return resize_linearly_at_run_time(x, sizes, mode)


OPS: Table = {"RESIZE_BILINEAR": _convert_resize_bilinear_node, "RESIZE_NEAREST_NEIGHBOR": _convert_resize_nearest_node}
#: Operators whose converters compute with quantized integers.
INTEGERS: Final = frozenset({"RESIZE_BILINEAR"})
#: Operators that move quantized integers unchanged.
MOVES: Final = frozenset({"RESIZE_NEAREST_NEIGHBOR"})
