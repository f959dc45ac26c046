# SPDX-License-Identifier: Apache-2.0
"""Blocks of pixels as channels and back: nn.depth_to_space, nn.space_to_depth, vision.yolo_reorg.

depth_to_space(x, 2)                   # (N, 4 * C, H, W) -> (N, C, 2 * H, 2 * W)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from aotc.ir import REQUIRED, Attrs, AxisMap, Dim, Layout, OpPattern, TensorType, Type, Types, param, require
from aotc.relay.expr import Expr
from aotc.relay.op import shape as shapes
from aotc.relay.op.opdef import Array, OpDef, Samples
from aotc.relay.op.rearrange import Rearrangement
from aotc.relay.op.rules import extent_of, ranked, require_known, static_shape_of
from aotc.relay.op.samples import cases, random_sample
from aotc.relay.op.shape import times
from aotc.relay.op.window import arrange, pick, positions


class SubPixelAttrs(Attrs):
    """`mode`: whether a channel's number counts the pixel of the block first ("DCR") or last ("CRD")."""

    block_size: int = param(default=1, given=REQUIRED)
    layout: str = "NCHW"
    mode: str = "DCR"


def _shape(a: SubPixelAttrs, types: Types) -> tuple[TensorType, tuple[int, ...], tuple[Dim, ...]]:
    data = ranked("depth.rank", types[0], 4)
    require("depth.block", a.block_size > 0, f"block_size must be positive, got {a.block_size}")
    require_known("depth.mode", "mode", a.mode, ("DCR", "CRD"))
    where = positions(a.layout, "NCHW")
    return data, where, pick(data.shape, where)


def _parts(dim: Dim, factor: int) -> Dim:
    whole = not isinstance(dim, int) or dim % factor == 0
    require("depth.divisible", whole, f"{dim} is not a multiple of {factor}")
    return extent_of(dim, lambda d: d // factor, unchanged=factor == 1)


def _infer(deeper: bool, a: SubPixelAttrs, types: Types) -> Type:
    data, where, (n, c, h, w) = _shape(a, types)
    wider, thinner = (_parts, times) if deeper else (times, _parts)
    b = a.block_size
    return TensorType(arrange((n, thinner(c, b * b), wider(h, b), wider(w, b)), where), data.dtype)


def _move(deeper: bool, a: SubPixelAttrs, shape: Sequence[int]) -> Rearrangement:
    """The parts of each axis: pixels of a block, row and column, belong to space or to the channels."""
    n, c, h, w = pick(shape, positions(a.layout, "NCHW"))
    b = a.block_size
    c, h, w = (c, h // b, w // b) if deeper else (c // (b * b), h, w)
    deep = {"N": "n", "C": "rck" if a.mode == "DCR" else "krc", "H": "h", "W": "w"}
    wide = {"N": "n", "C": "k", "H": "hr", "W": "wc"}
    source, result = (wide, deep) if deeper else (deep, wide)
    before, after = ([axes[letter] for letter in a.layout] for axes in (source, result))
    return Rearrangement.of(before, after, {"n": n, "k": c, "h": h, "w": w, "r": b, "c": b})


def _axes(a: SubPixelAttrs, types: Types) -> AxisMap:
    batch = a.layout.index("N")
    return AxisMap((tuple(k if k == batch else None for k in range(4)),))


def _sub_pixel(name: str, doc: str, deeper: bool, shapes: Sequence[tuple[int, ...]]) -> OpDef:
    """`deeper`: from space to channels."""

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
        axes=_axes,
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

    The data is read as (N, C / stride^2, H * stride, W * stride), whose blocks of stride x stride pixels become
    channels; the result of that is read in the new shape.
    """

    stride: int = param(default=1, given=REQUIRED)


def _reorg_infer(a: YoloReorgAttrs, types: Types) -> Type:
    data, s = ranked("depth.rank", types[0], 4), a.stride
    require("depth.block", s > 0, f"stride must be positive, got {s}")
    n, c, h, w = data.shape
    _parts(c, s * s)
    return TensorType((n, times(c, s * s), _parts(h, s), _parts(w, s)), data.dtype)


def _reorg(a: YoloReorgAttrs, shape: Sequence[int]) -> tuple[tuple[int, ...], Rearrangement, tuple[int, ...]]:
    """The shape that the data is read in, what moves, and the shape of the result."""
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
