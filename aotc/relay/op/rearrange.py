# SPDX-License-Identifier: Apache-2.0
"""Operators made of reshape, transpose, reshape: depth_to_space, space_to_depth, space_to_batch_nd,
yolo_reorg.

move = Rearrangement.of(["n", "krc", "h", "w"], ["n", "k", "hr", "wc"], {"n": 1, "k": 3, "r": 2, "c": 2, ...})
move.array(x)                      # (1, 12, h, w) as (1, 3, 2 * h, 2 * w), in numpy
move.expr(x)                       # in the graph

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

from aotc.ir import REQUIRED, Attrs, Dim, SymDim, TensorType, Type, frozen, indexdiv, param, product
from aotc.ir.op import AxisMap, Layout, OpPattern, Quantized, Types, require
from aotc.relay.expr import Expr, tensor_type_of
from aotc.relay.op import pad
from aotc.relay.op import shape as shapes
from aotc.relay.op import slice as slices
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Samples,
    arrange,
    cases,
    pick,
    positions,
    random_sample,
    samples_of,
)
from aotc.relay.op.shape import times
from aotc.relay.op.type_rules import extent_of, ranked, require_known, row_but, static_shape_of, tensor


@frozen
class Rearrangement:
    """A reshape to `split`, a transpose by `order` and a reshape to `whole`."""

    split: tuple[int, ...]
    order: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def of(
        cls, data: Sequence[Sequence[str]], result: Sequence[Sequence[str]], extents: Mapping[str, int]
    ) -> Rearrangement:
        """Return a rearrangement from the parts, outermost first, of each axis of data and result,
        and their extents.
        """
        parts = [part for axis in data for part in axis]
        return cls(
            tuple(extents[part] for part in parts),
            tuple(parts.index(part) for axis in result for part in axis),
            tuple(prod(extents[part] for part in axis) for axis in result),
        )

    def array(self, x: Array) -> Any:
        return x.reshape(self.split).transpose(self.order).reshape(self.whole)

    def expr(self, x: Expr) -> Expr:
        parts = shapes.reshape(x, self.split, allowzero=0 in self.split)
        return shapes.reshape(shapes.transpose(parts, self.order), self.whole, allowzero=0 in self.whole)


# --- blocks of pixels as channels, and back


class SubPixelAttrs(Attrs):
    """`mode`: whether a channel's number counts the pixel of the block first ("DCR") or last ("CRD")."""

    block_size: int = param(default=1, given=REQUIRED)
    layout: str = "NCHW"
    mode: str = "DCR"


def _sub_pixels(a: SubPixelAttrs, types: Types) -> tuple[TensorType, tuple[int, ...], tuple[Dim, ...]]:
    data = ranked("depth.rank", types[0], 4)
    require("depth.block", a.block_size > 0, f"block_size must be positive, got {a.block_size}")
    require_known("depth.mode", "mode", a.mode, ("DCR", "CRD"))
    where = positions(a.layout, "NCHW")
    return data, where, pick(data.shape, where)


def _parts(dim: Dim, factor: int) -> Dim:
    whole = not isinstance(dim, int) or dim % factor == 0
    require("depth.divisible", whole, f"{dim} is not a multiple of {factor}")
    return dim if factor == 1 else indexdiv(dim, factor)


def _infer(deeper: bool, a: SubPixelAttrs, types: Types) -> Type:
    data, where, (n, c, h, w) = _sub_pixels(a, types)
    wider, thinner = (_parts, times) if deeper else (times, _parts)
    b = a.block_size
    return TensorType(arrange((n, thinner(c, b * b), wider(h, b), wider(w, b)), where), data.dtype)


def _move(deeper: bool, a: SubPixelAttrs, shape: Sequence[int]) -> Rearrangement:
    """Return the rearrangement between blocks of pixels and channels; `deeper` is True for
    space_to_depth.
    """
    n, c, h, w = pick(shape, positions(a.layout, "NCHW"))
    b = a.block_size
    c, h, w = (c, h // b, w // b) if deeper else (c // (b * b), h, w)
    deep = {"N": "n", "C": "rck" if a.mode == "DCR" else "krc", "H": "h", "W": "w"}
    wide = {"N": "n", "C": "k", "H": "hr", "W": "wc"}
    source, result = (wide, deep) if deeper else (deep, wide)
    before, after = ([axes[letter] for letter in a.layout] for axes in (source, result))
    return Rearrangement.of(before, after, {"n": n, "k": c, "h": h, "w": w, "r": b, "c": b})


def _batch_alone(a: SubPixelAttrs, types: Types) -> AxisMap:
    batch = a.layout.index("N")
    return AxisMap((tuple(k if k == batch else None for k in range(4)),))


def _sub_pixel(name: str, doc: str, deeper: bool, shapes: Sequence[tuple[int, ...]]) -> OpDef:
    """Return the OpDef of space_to_depth (`deeper` True) or depth_to_space."""

    def samples() -> Samples:
        fields: Any = ({"block_size": 2}, {"block_size": 3, "mode": "CRD"}, {"block_size": 2, "layout": "NHWC"})
        for shape, given, dtype in zip(shapes, fields, ("float32", "float32", "int8"), strict=True):
            yield random_sample((shape,), SubPixelAttrs(**given), dtype)

    return OpDef(
        name=f"nn.{name}",
        doc=doc,
        attrs=SubPixelAttrs,
        infer=partial(_infer, deeper),
        reference=lambda a, x: _move(deeper, a, x.shape).array(x),
        pattern=OpPattern.INJECTIVE,
        axes=_batch_alone,
        layout=Layout.FOLLOW,
        expand=lambda a, x: _move(deeper, a, static_shape_of(x)).expr(x),
        samples=samples,
    )


depth_to_space = _sub_pixel(
    "depth_to_space",
    "Every block_size^2 channels become a block of pixels of one channel.",
    False,
    ((2, 8, 2, 3), (1, 9, 2, 2), (1, 2, 3, 8)),
)
space_to_depth = _sub_pixel(
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

    stride: int = param(default=1, given=REQUIRED)


def _reorg_infer(a: YoloReorgAttrs, types: Types) -> Type:
    data, s = ranked("depth.rank", types[0], 4), a.stride
    require("depth.block", s > 0, f"stride must be positive, got {s}")
    n, c, h, w = data.shape
    _parts(c, s * s)
    return TensorType((n, times(c, s * s), _parts(h, s), _parts(w, s)), data.dtype)


def _reorg(a: YoloReorgAttrs, shape: Sequence[int]) -> tuple[tuple[int, ...], Rearrangement, tuple[int, ...]]:
    """Return the shape as which the data is read, the rearrangement, and the shape of the result."""
    (n, c, h, w), s = shape, a.stride
    wide = (n, c // (s * s), h * s, w * s)
    return wide, _move(True, SubPixelAttrs(block_size=s), wide), (n, c * s * s, h // s, w // s)


def _reorg_reference(a: YoloReorgAttrs, x: Array) -> Array:
    wide, move, result = _reorg(a, x.shape)
    return np.reshape(move.array(x.reshape(wide)), result)


def _reorg_expand(a: YoloReorgAttrs, x: Expr) -> Expr:
    wide, move, result = _reorg(a, static_shape_of(x))
    zero = 0 in wide
    moved = move.expr(shapes.reshape(x, wide, allowzero=zero))
    return shapes.reshape(moved, result, allowzero=zero)


yolo_reorg = OpDef(
    name="vision.yolo_reorg",
    attrs=YoloReorgAttrs,
    infer=_reorg_infer,
    reference=_reorg_reference,
    pattern=OpPattern.INJECTIVE,
    axes=lambda _, types: AxisMap(((0, None, None, None),)),
    expand=_reorg_expand,
    samples=cases(YoloReorgAttrs, ((((2, 4, 4, 6),), {"stride": 2}), (((3, 2, 2, 1),), {"stride": 1}, "int8"))),
)


# --- blocks of positions as images of a batch, and back


Pairs = tuple[tuple[int, int], ...]


class SpaceToBatchNDAttrs(Attrs):
    """(before, after) positions of `pad_value` around each blocked axis make it a multiple of the block."""

    block_shape: tuple[int, ...]
    paddings: tuple[tuple[int, int], ...]
    pad_value: float = param(default=0.0, takes=lambda value, _: float(value))


class BatchToSpaceNDAttrs(Attrs):
    """(before, after) positions of each blocked axis are left out of the result."""

    block_shape: tuple[int, ...]
    crops: tuple[tuple[int, int], ...]


def _data(ty: Type, block: Sequence[int], pairs: Pairs, what: str) -> TensorType:
    data, n = tensor(ty, "data"), len(block)
    fits = 0 < n < data.rank and len(pairs) == n
    require("batch.block", fits, lambda: f"blocks {block} and {what} {pairs} do not fit {data}")
    require("batch.block", min(block, default=1) > 0, f"blocks must be positive, got {block}")
    require("batch.pairs", all(v >= 0 for p in pairs for v in p), lambda: f"{what} must not be negative, got {pairs}")
    return data


def _to_batch_dim(d: Dim, block: int, pad: tuple[int, int]) -> Dim:
    whole = isinstance(d, SymDim) or (d + sum(pad)) % block == 0
    require(
        "batch.divisible", whole, lambda: f"padded extent {d + sum(pad)} is not a multiple of the block size {block}"
    )
    return extent_of(d, lambda n: (n + sum(pad)) // block, unchanged=block == 1 and pad == (0, 0))


def _to_space_dim(d: Dim, block: int, crop: tuple[int, int]) -> Dim:
    whole = times(d, block)
    fits = isinstance(whole, SymDim) or whole >= sum(crop)
    require("batch.crop", fits, lambda: f"{whole} positions are fewer than the crops {crop}")
    return extent_of(whole, lambda n: max(n - sum(crop), 0), unchanged=crop == (0, 0))


def _infer_to_batch(a: SpaceToBatchNDAttrs, types: Types) -> Type:
    data = _data(types[0], a.block_shape, a.paddings, "paddings")
    batch, *rest = data.shape
    space = map(_to_batch_dim, rest, a.block_shape, a.paddings)
    return TensorType((product((batch, *a.block_shape)), *space, *rest[len(a.block_shape) :]), data.dtype)


def _infer_to_space(a: BatchToSpaceNDAttrs, types: Types) -> Type:
    data = _data(types[0], a.block_shape, a.crops, "crops")
    (batch, *rest), count = data.shape, prod(a.block_shape)
    whole = isinstance(batch, SymDim) or batch % count == 0
    require("batch.divisible", whole, f"{batch} images are not a multiple of {count}")
    space = map(_to_space_dim, rest, a.block_shape, a.crops)
    return TensorType((extent_of(batch, lambda n: n // count), *space, *rest[len(a.block_shape) :]), data.dtype)


def _moves(blocks: Sequence[int], wide: Sequence[int]) -> tuple[Rearrangement, Rearrangement]:
    """Return the rearrangements of data with shape `wide` from space to batch, and back."""
    axes = [f"d{k}" for k in range(len(wide))]
    inner = [f"b{k}" for k in range(len(blocks))]
    space = [list(pair) for pair in zip(axes[1:], inner, strict=False)]
    spread = [["d0"], *space, *([axis] for axis in axes[1 + len(blocks) :])]
    batched = [[*inner, "d0"], *([axis] for axis in axes[1:])]
    extents = dict(zip(axes, wide, strict=True)) | dict(zip(inner, blocks, strict=True))
    extents |= {axis: extents[axis] // extents[block] for axis, block in space}
    return Rearrangement.of(spread, batched, extents), Rearrangement.of(batched, spread, extents)


def _to_batch(a: SpaceToBatchNDAttrs, shape: Sequence[int]) -> tuple[Pairs, Rearrangement]:
    """Return the padding of all axes and the rearrangement of the padded data."""
    widths = ((0, 0), *a.paddings, *((0, 0),) * (len(shape) - 1 - len(a.paddings)))
    move, _ = _moves(a.block_shape, [d + sum(width) for d, width in zip(shape, widths, strict=True)])
    return widths, move


def _to_space(a: BatchToSpaceNDAttrs, shape: Sequence[int]) -> tuple[Rearrangement, list[slice]]:
    """Return the rearrangement and the slices of the blocked axes that remain after cropping."""
    blocks = a.block_shape
    space = [d * block for d, block in zip(shape[1:], blocks, strict=False)]
    _, move = _moves(blocks, [shape[0] // prod(blocks), *space, *shape[1 + len(blocks) :]])
    return move, [slice(low, d - high) for d, (low, high) in zip(space, a.crops, strict=True)]


def _expand_to_batch(a: SpaceToBatchNDAttrs, data: Expr) -> Expr:
    widths, move = _to_batch(a, static_shape_of(data))
    value = int(a.pad_value) if tensor_type_of(data).dtype.is_integer else a.pad_value
    return move.expr(pad.pad(data, widths, value) if any(map(any, widths)) else data)


def _expand_to_space(a: BatchToSpaceNDAttrs, data: Expr) -> Expr:
    move, cuts = _to_space(a, static_shape_of(data))
    wide = move.expr(data)
    if not any(map(any, a.crops)):
        return wide
    axes = range(1, len(cuts) + 1)
    return slices.strided_slice(wide, [c.start for c in cuts], [c.stop for c in cuts], axes=axes)


def _reference_to_batch(a: SpaceToBatchNDAttrs, data: Array) -> Any:
    widths, move = _to_batch(a, data.shape)
    return move.array(np.pad(data, widths, constant_values=np.asarray(a.pad_value).astype(data.dtype)))


def _reference_to_space(a: BatchToSpaceNDAttrs, data: Array) -> Any:
    move, cuts = _to_space(a, data.shape)
    left = (slice(None), *cuts)
    return move.array(data)[left]


def _unblocked(a: Any, types: Types) -> AxisMap:
    return AxisMap((row_but(range(len(a.block_shape) + 1), tensor(types[0]).rank),))


space_to_batch_nd = OpDef(
    name="nn.space_to_batch_nd",
    doc="Data (N, S..., rest) as (N * prod(block), S / block..., rest), each S padded first.",
    attrs=SpaceToBatchNDAttrs,
    infer=_infer_to_batch,
    reference=_reference_to_batch,
    pattern=OpPattern.INJECTIVE,
    axes=_unblocked,
    quantized=Quantized.RESCALE,
    expand=_expand_to_batch,
    samples=samples_of(SpaceToBatchNDAttrs, "block_shape paddings pad_value", (
        ((2, 4, 6, 3), (2, 3), ((0, 0), (0, 0))), ((1, 3, 5, 2), (2, 2), ((1, 0), (0, 1))),
        (("int8", 2, 3), (4,), ((3, 2),), 7.0), ((1, 2, 2, 2, 3), (1, 2, 1), ((0, 0), (1, 1), (0, 1)), -1.5),
        ((1, 0, 2), (2,), ((2, 0),), 1.0),
    ), ("float32",)),
)  # fmt: skip
batch_to_space_nd = OpDef(
    name="nn.batch_to_space_nd",
    doc="The inverse of `space_to_batch_nd`: data (N, S..., rest) as (N / prod(block), S * block - crops..., rest).",
    attrs=BatchToSpaceNDAttrs,
    infer=_infer_to_space,
    reference=_reference_to_space,
    pattern=OpPattern.INJECTIVE,
    axes=_unblocked,
    expand=_expand_to_space,
    samples=samples_of(BatchToSpaceNDAttrs, "block_shape crops", (
        ((12, 2, 2, 3), (2, 3), ((0, 0), (0, 0))), ((4, 2, 3, 2), (2, 2), ((1, 0), (0, 1))),
        (("int8", 8, 2), (4,), ((3, 2),)), ((2, 2, 2, 2, 3), (1, 2, 1), ((0, 0), (1, 1), (0, 1))),
        ((2, 1, 2), (2,), ((1, 1),)),
    ), ("float32",)),
)  # fmt: skip
