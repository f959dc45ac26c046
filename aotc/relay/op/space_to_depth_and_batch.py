# SPDX-License-Identifier: Apache-2.0
"""Operators made of reshape, transpose, reshape: depth_to_space, space_to_depth, space_to_batch_nd,
yolo_reorg.

move = Rearrangement.from_axis_parts(["n", "krc", "h", "w"], ["n", "k", "hr", "wc"], {"n": 1, "k": 3, ...})
move.rearrange_array(x)            # (1, 12, h, w) as (1, 3, 2 * h, 2 * w), in numpy
move.rearrange_expr(x)             # in the graph

depth_to_space(x, 2)                             # (N, 4 * C, H, W) -> (N, C, 2 * H, 2 * W)
space_to_batch_nd(x, (2, 2), ((0, 0), (0, 0)))   # (N, H, W, C) -> (4 * N, H / 2, W / 2, C)

`space_to_batch_nd` and `batch_to_space_nd` block the axes after the batch axis. Image phase * N + n
of the batched data has the elements of image n at offset `phase` in their block, counted row by
row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from aotc.ir import (
    REQUIRED,
    Attrs,
    Dim,
    SymDim,
    TensorType,
    Type,
    attribute_field,
    frozen,
    indexdiv,
    maximum_of_dims,
    product_of_dims,
)
from aotc.ir.op import AxisMap, LayoutTreatment, OpPattern, QuantizationTreatment, Types, require
from aotc.relay.expr import Expr, tensor_type_of
from aotc.relay.op import pad
from aotc.relay.op import shape as shapes
from aotc.relay.op import slice as slices
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Samples,
    canonical_axis_positions,
    canonical_to_layout_order,
    exact_samples_from_rows,
    layout_to_canonical_order,
    random_sample,
    random_samples_from_rows,
)
from aotc.relay.op.shape import multiply_dim
from aotc.relay.op.type_rules import (
    axis_map_row_without_axes,
    require_known_name,
    require_tensor_of_rank,
    require_tensor_type,
    static_shape_of,
)


@frozen
class Rearrangement:
    """A reshape to `split`, a transpose by `order` and a reshape to `whole`."""

    split: tuple[int, ...]
    order: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def from_axis_parts(
        cls, data_axes: Sequence[Sequence[str]], result_axes: Sequence[Sequence[str]], extents: Mapping[str, int]
    ) -> Rearrangement:
        """Return a rearrangement from the parts, outermost first, of each axis of data and result,
        and their extents.
        """
        parts = [part for axis in data_axes for part in axis]
        return cls(
            tuple(extents[part] for part in parts),
            tuple(parts.index(part) for axis in result_axes for part in axis),
            tuple(prod(extents[part] for part in axis) for axis in result_axes),
        )

    def rearrange_array(self, x: Array) -> Any:
        return x.reshape(self.split).transpose(self.order).reshape(self.whole)

    def rearrange_expr(self, x: Expr) -> Expr:
        parts = shapes.reshape(x, self.split, allowzero=0 in self.split)
        return shapes.reshape(shapes.transpose(parts, self.order), self.whole, allowzero=0 in self.whole)


# --- blocks of pixels as channels, and back


class SubPixelAttrs(Attrs):
    """`mode`: whether a channel's number counts the pixel of the block first ("DCR") or last
    ("CRD").
    """

    block_size: int = attribute_field(default=1, parameter_default=REQUIRED)
    layout: str = "NCHW"
    mode: str = "DCR"


def _checked_type_positions_and_nchw_dims(
    a: SubPixelAttrs, types: Types
) -> tuple[TensorType, tuple[int, ...], tuple[Dim, ...]]:
    data = require_tensor_of_rank("depth.rank", types[0], 4)
    require("depth.block", a.block_size > 0, f"block_size must be positive, got {a.block_size}")
    require_known_name("depth.mode", "mode", a.mode, ("DCR", "CRD"))
    where = canonical_axis_positions(a.layout, "NCHW")
    return data, where, layout_to_canonical_order(data.shape, where)


def _require_exact_quotient_dim(extent: Dim, divisor: int) -> Dim:
    whole = not isinstance(extent, int) or extent % divisor == 0
    require("depth.divisible", whole, f"{extent} is not a multiple of {divisor}")
    return extent if divisor == 1 else indexdiv(extent, divisor)


def _infer_depth_space_type(is_space_to_depth: bool, a: SubPixelAttrs, types: Types) -> Type:
    data, where, (n, c, h, w) = _checked_type_positions_and_nchw_dims(a, types)
    wider, thinner = (
        (_require_exact_quotient_dim, multiply_dim)
        if is_space_to_depth
        else (multiply_dim, _require_exact_quotient_dim)
    )
    b = a.block_size
    return TensorType(canonical_to_layout_order((n, thinner(c, b * b), wider(h, b), wider(w, b)), where), data.dtype)


def _depth_space_rearrangement(is_space_to_depth: bool, a: SubPixelAttrs, shape: Sequence[int]) -> Rearrangement:
    """Return the rearrangement between blocks of pixels and channels; `is_space_to_depth` is True
    for space_to_depth.
    """
    n, c, h, w = layout_to_canonical_order(shape, canonical_axis_positions(a.layout, "NCHW"))
    b = a.block_size
    c, h, w = (c, h // b, w // b) if is_space_to_depth else (c // (b * b), h, w)
    deep = {"N": "n", "C": "rck" if a.mode == "DCR" else "krc", "H": "h", "W": "w"}
    wide = {"N": "n", "C": "k", "H": "hr", "W": "wc"}
    source, result = (wide, deep) if is_space_to_depth else (deep, wide)
    before, after = ([axes[letter] for letter in a.layout] for axes in (source, result))
    return Rearrangement.from_axis_parts(before, after, {"n": n, "k": c, "h": h, "w": w, "r": b, "c": b})


def _batch_only_axis_map(a: SubPixelAttrs, types: Types) -> AxisMap:
    batch = a.layout.index("N")
    return AxisMap((tuple(k if k == batch else None for k in range(4)),))


def _depth_space_op(name: str, doc: str, is_space_to_depth: bool, sample_shapes: Sequence[tuple[int, ...]]) -> OpDef:
    """Return the OpDef of space_to_depth (`is_space_to_depth` True) or depth_to_space."""

    def depth_space_samples() -> Samples:
        fields: Any = ({"block_size": 2}, {"block_size": 3, "mode": "CRD"}, {"block_size": 2, "layout": "NHWC"})
        for shape, given, dtype in zip(sample_shapes, fields, ("float32", "float32", "int8"), strict=True):
            yield random_sample((shape,), SubPixelAttrs(**given), dtype)

    return OpDef(
        name=f"nn.{name}",
        doc=doc,
        attrs=SubPixelAttrs,
        infer=partial(_infer_depth_space_type, is_space_to_depth),
        reference=lambda a, x: _depth_space_rearrangement(is_space_to_depth, a, x.shape).rearrange_array(x),
        pattern=OpPattern.INJECTIVE,
        axes=_batch_only_axis_map,
        layout=LayoutTreatment.FOLLOW,
        expand=lambda a, x: _depth_space_rearrangement(is_space_to_depth, a, static_shape_of(x)).rearrange_expr(x),
        samples=depth_space_samples,
    )


depth_to_space = _depth_space_op(
    "depth_to_space",
    "Every block_size^2 channels become a block of pixels of one channel.",
    False,
    ((2, 8, 2, 3), (1, 9, 2, 2), (1, 2, 3, 8)),
)
space_to_depth = _depth_space_op(
    "space_to_depth",
    "Every block of pixels becomes block_size^2 channels.",
    True,
    ((2, 3, 4, 6), (1, 2, 6, 3), (1, 4, 2, 3)),
)


# --- vision.yolo_reorg


class YoloReorgAttrs(Attrs):
    """The layer "reorg" of YOLO 2: (N, C, H, W) becomes (N, C * stride^2, H / stride, W / stride).

    The data is read as (N, C / stride^2, H * stride, W * stride), whose blocks of stride x stride
    pixels become channels; the result is read in the new shape.
    """

    stride: int = attribute_field(default=1, parameter_default=REQUIRED)


def _infer_yolo_reorg_type(a: YoloReorgAttrs, types: Types) -> Type:
    data, s = require_tensor_of_rank("depth.rank", types[0], 4), a.stride
    require("depth.block", s > 0, f"stride must be positive, got {s}")
    n, c, h, w = data.shape
    _require_exact_quotient_dim(c, s * s)
    return TensorType(
        (n, multiply_dim(c, s * s), _require_exact_quotient_dim(h, s), _require_exact_quotient_dim(w, s)), data.dtype
    )


def _yolo_reorg_shapes_and_rearrangement(
    a: YoloReorgAttrs, shape: Sequence[int]
) -> tuple[tuple[int, ...], Rearrangement, tuple[int, ...]]:
    """Return the shape as which the data is read, the rearrangement, and the shape of the result."""
    (n, c, h, w), s = shape, a.stride
    wide = (n, c // (s * s), h * s, w * s)
    return wide, _depth_space_rearrangement(True, SubPixelAttrs(block_size=s), wide), (n, c * s * s, h // s, w // s)


def _yolo_reorg_reference(a: YoloReorgAttrs, x: Array) -> Array:
    wide, move, result = _yolo_reorg_shapes_and_rearrangement(a, x.shape)
    return np.reshape(move.rearrange_array(x.reshape(wide)), result)


def _expand_yolo_reorg(a: YoloReorgAttrs, x: Expr) -> Expr:
    wide, move, result = _yolo_reorg_shapes_and_rearrangement(a, static_shape_of(x))
    zero = 0 in wide
    reordered_data = move.rearrange_expr(shapes.reshape(x, wide, allowzero=zero))
    return shapes.reshape(reordered_data, result, allowzero=zero)


yolo_reorg = OpDef(
    name="vision.yolo_reorg",
    attrs=YoloReorgAttrs,
    infer=_infer_yolo_reorg_type,
    reference=_yolo_reorg_reference,
    pattern=OpPattern.INJECTIVE,
    axes=lambda _, types: AxisMap(((0, None, None, None),)),
    expand=_expand_yolo_reorg,
    samples=random_samples_from_rows(
        YoloReorgAttrs, ((((2, 4, 4, 6),), {"stride": 2}), (((3, 2, 2, 1),), {"stride": 1}, "int8"))
    ),
)


# --- blocks of positions as images of a batch, and back


Pairs = tuple[tuple[int, int], ...]


class SpaceToBatchNDAttrs(Attrs):
    """(before, after) positions of `pad_value` around each blocked axis make it a multiple of the
    block.
    """

    block_shape: tuple[int, ...]
    paddings: tuple[tuple[int, int], ...]
    pad_value: float = attribute_field(default=0.0, convert=lambda value, _: float(value))


class BatchToSpaceNDAttrs(Attrs):
    """(before, after) positions of each blocked axis are left out of the result."""

    block_shape: tuple[int, ...]
    crops: tuple[tuple[int, int], ...]


def _checked_batch_space_type(
    ty: Type, block_shape: Sequence[int], paddings_or_crops: Pairs, pairs_name: str
) -> TensorType:
    data, n = require_tensor_type(ty, "data"), len(block_shape)
    fits = 0 < n < data.rank and len(paddings_or_crops) == n
    require("batch.block", fits, lambda: f"blocks {block_shape} and {pairs_name} {paddings_or_crops} do not fit {data}")
    require("batch.block", min(block_shape, default=1) > 0, f"blocks must be positive, got {block_shape}")
    require(
        "batch.pairs",
        all(v >= 0 for p in paddings_or_crops for v in p),
        lambda: f"{pairs_name} must not be negative, got {paddings_or_crops}",
    )
    return data


def _space_to_batch_extent(extent: Dim, block: int, pad: tuple[int, int]) -> Dim:
    whole = isinstance(extent, SymDim) or (extent + sum(pad)) % block == 0
    require(
        "batch.divisible",
        whole,
        lambda: f"padded extent {extent + sum(pad)} is not a multiple of the block size {block}",
    )
    return (extent + sum(pad)) // block


def _batch_to_space_extent(extent: Dim, block: int, crop: tuple[int, int]) -> Dim:
    whole = multiply_dim(extent, block)
    fits = isinstance(whole, SymDim) or whole >= sum(crop)
    require("batch.crop", fits, lambda: f"{whole} positions are fewer than the crops {crop}")
    return maximum_of_dims((whole - sum(crop), 0))


def _infer_space_to_batch_type(a: SpaceToBatchNDAttrs, types: Types) -> Type:
    data = _checked_batch_space_type(types[0], a.block_shape, a.paddings, "paddings")
    batch, *rest = data.shape
    space = map(_space_to_batch_extent, rest, a.block_shape, a.paddings)
    return TensorType((product_of_dims((batch, *a.block_shape)), *space, *rest[len(a.block_shape) :]), data.dtype)


def _infer_batch_to_space_type(a: BatchToSpaceNDAttrs, types: Types) -> Type:
    data = _checked_batch_space_type(types[0], a.block_shape, a.crops, "crops")
    (batch, *rest), count = data.shape, prod(a.block_shape)
    whole = isinstance(batch, SymDim) or batch % count == 0
    require("batch.divisible", whole, f"{batch} images are not a multiple of {count}")
    space = map(_batch_to_space_extent, rest, a.block_shape, a.crops)
    return TensorType((batch // count, *space, *rest[len(a.block_shape) :]), data.dtype)


def _space_batch_rearrangements(
    block_shape: Sequence[int], data_shape: Sequence[int]
) -> tuple[Rearrangement, Rearrangement]:
    """Return the rearrangements of data with shape `data_shape` from space to batch, and back."""
    axes = [f"d{k}" for k in range(len(data_shape))]
    inner = [f"b{k}" for k in range(len(block_shape))]
    space = [list(pair) for pair in zip(axes[1:], inner, strict=False)]
    spread = [["d0"], *space, *([axis] for axis in axes[1 + len(block_shape) :])]
    batched = [[*inner, "d0"], *([axis] for axis in axes[1:])]
    extents = dict(zip(axes, data_shape, strict=True)) | dict(zip(inner, block_shape, strict=True))
    extents |= {axis: extents[axis] // extents[block] for axis, block in space}
    return Rearrangement.from_axis_parts(spread, batched, extents), Rearrangement.from_axis_parts(
        batched, spread, extents
    )


def _space_to_batch_padding_and_move(a: SpaceToBatchNDAttrs, shape: Sequence[int]) -> tuple[Pairs, Rearrangement]:
    """Return the padding of all axes, and the rearrangement that moves blocks of the padded data
    to the batch axis.
    """
    widths = ((0, 0), *a.paddings, *((0, 0),) * (len(shape) - 1 - len(a.paddings)))
    move, _ = _space_batch_rearrangements(
        a.block_shape, [d + sum(width) for d, width in zip(shape, widths, strict=True)]
    )
    return widths, move


def _batch_to_space_move_and_crops(a: BatchToSpaceNDAttrs, shape: Sequence[int]) -> tuple[Rearrangement, list[slice]]:
    """Return the rearrangement and the slices of the blocked axes that remain after cropping."""
    blocks = a.block_shape
    space = [d * block for d, block in zip(shape[1:], blocks, strict=False)]
    _, move = _space_batch_rearrangements(blocks, [shape[0] // prod(blocks), *space, *shape[1 + len(blocks) :]])
    return move, [slice(low, d - high) for d, (low, high) in zip(space, a.crops, strict=True)]


def _expand_space_to_batch(a: SpaceToBatchNDAttrs, data: Expr) -> Expr:
    widths, move = _space_to_batch_padding_and_move(a, static_shape_of(data))
    value = int(a.pad_value) if tensor_type_of(data).dtype.is_integer else a.pad_value
    return move.rearrange_expr(pad.pad(data, widths, value) if any(map(any, widths)) else data)


def _expand_batch_to_space(a: BatchToSpaceNDAttrs, data: Expr) -> Expr:
    move, cuts = _batch_to_space_move_and_crops(a, static_shape_of(data))
    wide = move.rearrange_expr(data)
    if not any(map(any, a.crops)):
        return wide
    axes = range(1, len(cuts) + 1)
    return slices.strided_slice(wide, [c.start for c in cuts], [c.stop for c in cuts], axes=axes)


def _space_to_batch_reference(a: SpaceToBatchNDAttrs, data: Array) -> Any:
    widths, move = _space_to_batch_padding_and_move(a, data.shape)
    return move.rearrange_array(np.pad(data, widths, constant_values=np.asarray(a.pad_value).astype(data.dtype)))


def _batch_to_space_reference(a: BatchToSpaceNDAttrs, data: Array) -> Any:
    move, cuts = _batch_to_space_move_and_crops(a, data.shape)
    left = (slice(None), *cuts)
    return move.rearrange_array(data)[left]


def _axis_map_without_batch_and_block_axes(attrs: Any, types: Types) -> AxisMap:
    return AxisMap((axis_map_row_without_axes(range(len(attrs.block_shape) + 1), require_tensor_type(types[0]).rank),))


space_to_batch_nd = OpDef(
    name="nn.space_to_batch_nd",
    doc="Data (N, S..., rest) as (N * prod(block), S / block..., rest), each S padded first.",
    attrs=SpaceToBatchNDAttrs,
    infer=_infer_space_to_batch_type,
    reference=_space_to_batch_reference,
    pattern=OpPattern.INJECTIVE,
    axes=_axis_map_without_batch_and_block_axes,
    quantized=QuantizationTreatment.RESCALE,
    expand=_expand_space_to_batch,
    samples=exact_samples_from_rows(SpaceToBatchNDAttrs, "block_shape paddings pad_value", (
        ((2, 4, 6, 3), (2, 3), ((0, 0), (0, 0))), ((1, 3, 5, 2), (2, 2), ((1, 0), (0, 1))),
        (("int8", 2, 3), (4,), ((3, 2),), 7.0), ((1, 2, 2, 2, 3), (1, 2, 1), ((0, 0), (1, 1), (0, 1)), -1.5),
        ((1, 0, 2), (2,), ((2, 0),), 1.0),
    ), ("float32",)),
)  # fmt: skip
batch_to_space_nd = OpDef(
    name="nn.batch_to_space_nd",
    doc="The inverse of `space_to_batch_nd`: data (N, S..., rest) as (N / prod(block), S * block - crops..., rest).",
    attrs=BatchToSpaceNDAttrs,
    infer=_infer_batch_to_space_type,
    reference=_batch_to_space_reference,
    pattern=OpPattern.INJECTIVE,
    axes=_axis_map_without_batch_and_block_axes,
    expand=_expand_batch_to_space,
    samples=exact_samples_from_rows(BatchToSpaceNDAttrs, "block_shape crops", (
        ((12, 2, 2, 3), (2, 3), ((0, 0), (0, 0))), ((4, 2, 3, 2), (2, 2), ((1, 0), (0, 1))),
        (("int8", 8, 2), (4,), ((3, 2),)), ((2, 2, 2, 2, 3), (1, 2, 1), ((0, 0), (1, 1), (0, 1))),
        ((2, 1, 2), (2,), ((1, 1),)),
    ), ("float32",)),
)  # fmt: skip
