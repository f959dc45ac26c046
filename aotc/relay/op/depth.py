# SPDX-License-Identifier: Apache-2.0
"""Blocks of pixels as channels and back: nn.depth_to_space, nn.space_to_depth.

depth_to_space(x, 2)                   # (N, 4 * C, H, W) -> (N, C, 2 * H, 2 * W)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aotc.ir.attrs import REQUIRED, Attrs, attrs, param
from aotc.ir.dims import Dim, SymDim
from aotc.ir.op import AxisMap, Layout, OpPattern, Types, require
from aotc.ir.types import TensorType, Type
from aotc.relay.op.opdef import Array, OpDef, Sample, Tensors
from aotc.relay.op.rules import tensor
from aotc.relay.op.samples import random_sample
from aotc.relay.op.window import arrange, canonical, laid_out, pick, positions
from aotc.tir import te
from aotc.tir.expr import Expr as Scalar


@attrs
class SubPixelAttrs(Attrs):
    """`mode`: whether a channel's number counts the pixel of the block first ("DCR") or last ("CRD")."""

    block_size: int = param(default=1, given=REQUIRED)
    layout: str = "NCHW"
    mode: str = "DCR"


def _shape(a: SubPixelAttrs, types: Types) -> tuple[TensorType, tuple[int, ...], tuple[Dim, ...]]:
    data = tensor(types[0], "data")
    require("depth.rank", data.rank == 4, lambda: f"data must have rank 4, got {data}")
    require("depth.block", a.block_size > 0, f"block_size must be positive, got {a.block_size}")
    require("depth.mode", a.mode in ("DCR", "CRD"), f"unknown mode {a.mode!r}; known: DCR, CRD")
    where = positions(a.layout, "NCHW")
    return data, where, pick(data.shape, where)


def _times(dim: Dim, factor: int) -> Dim:
    if isinstance(dim, int):
        return dim * factor
    return SymDim(upper=dim.upper and dim.upper * factor) if factor > 1 else dim


def _parts(dim: Dim, factor: int) -> Dim:
    if isinstance(dim, int):
        require("depth.divisible", dim % factor == 0, f"{dim} is not a multiple of {factor}")
        return dim // factor
    return SymDim(upper=dim.upper and dim.upper // factor) if factor > 1 else dim


def _infer_to_space(a: SubPixelAttrs, types: Types) -> Type:
    data, where, (n, c, h, w) = _shape(a, types)
    b = a.block_size
    return TensorType(arrange((n, _parts(c, b * b), _times(h, b), _times(w, b)), where), data.dtype)


def _infer_to_depth(a: SubPixelAttrs, types: Types) -> Type:
    data, where, (n, c, h, w) = _shape(a, types)
    b = a.block_size
    return TensorType(arrange((n, _times(c, b * b), _parts(h, b), _parts(w, b)), where), data.dtype)


def _deep(a: SubPixelAttrs, channel: Any, row: Any, column: Any, channels: int) -> Any:
    """The channel that holds pixel (row, column) of the block of one of the shallow `channels`."""
    b = a.block_size
    return (row * b + column) * channels + channel if a.mode == "DCR" else (channel * b + row) * b + column


def _compute_to_space(a: SubPixelAttrs, args: Tensors) -> te.Tensor:
    (data,) = args
    where, b = positions(a.layout, "NCHW"), a.block_size
    n, c, h, w = pick(data.shape, where)
    channels = c // (b * b)

    def body(*v: Scalar) -> Scalar:
        image, channel, row, column = pick(v, where)
        deep = _deep(a, channel, row % b, column % b, channels)
        return data[arrange((image, deep, row // b, column // b), where)]

    return te.compute(arrange((n, channels, h * b, w * b), where), body, "depth_to_space")


def _compute_to_depth(a: SubPixelAttrs, args: Tensors) -> te.Tensor:
    (data,) = args
    where, b = positions(a.layout, "NCHW"), a.block_size
    n, c, h, w = pick(data.shape, where)

    def body(*v: Scalar) -> Scalar:
        image, deep, row, column = pick(v, where)
        if a.mode == "DCR":
            channel, pixel = deep % c, deep // c
        else:
            channel, pixel = deep // (b * b), deep % (b * b)
        return data[arrange((image, channel, row * b + pixel // b, column * b + pixel % b), where)]

    return te.compute(arrange((n, c * b * b, h // b, w // b), where), body, "space_to_depth")


def _reference_to_space(a: SubPixelAttrs, data: Array) -> Array:
    where, b = positions(a.layout, "NCHW"), a.block_size
    x = canonical(data, where)
    n, c, h, w = x.shape
    if a.mode == "DCR":
        x = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return laid_out(x.reshape(n, c // (b * b), h * b, w * b), where)


def _reference_to_depth(a: SubPixelAttrs, data: Array) -> Array:
    where, b = positions(a.layout, "NCHW"), a.block_size
    x = canonical(data, where)
    n, c, h, w = x.shape
    x = x.reshape(n, c, h // b, b, w // b, b)
    x = x.transpose(0, 3, 5, 1, 2, 4) if a.mode == "DCR" else x.transpose(0, 1, 3, 5, 2, 4)
    return laid_out(x.reshape(n, c * b * b, h // b, w // b), where)


def _axes(a: SubPixelAttrs, types: Types) -> AxisMap:
    batch = a.layout.index("N")
    return AxisMap((tuple(k if k == batch else None for k in range(4)),))


def _samples_to_space() -> Iterable[Sample]:
    yield random_sample(((2, 8, 2, 3),), SubPixelAttrs(block_size=2))
    yield random_sample(((1, 9, 2, 2),), SubPixelAttrs(block_size=3, mode="CRD"))
    yield random_sample(((1, 2, 3, 8),), SubPixelAttrs(block_size=2, layout="NHWC"), "int8")


def _samples_to_depth() -> Iterable[Sample]:
    yield random_sample(((2, 3, 4, 6),), SubPixelAttrs(block_size=2))
    yield random_sample(((1, 2, 6, 3),), SubPixelAttrs(block_size=3, mode="CRD"))
    yield random_sample(((1, 4, 2, 3),), SubPixelAttrs(block_size=2, layout="NHWC"), "int8")


depth_to_space = OpDef(
    name="nn.depth_to_space",
    doc="Every block_size^2 channels become a block of pixels of one channel.",
    attrs=SubPixelAttrs,
    infer=_infer_to_space,
    reference=_reference_to_space,
    pattern=OpPattern.INJECTIVE,
    axes=_axes,
    layout=Layout.FOLLOW,
    compute=_compute_to_space,
    samples=_samples_to_space,
)
space_to_depth = OpDef(
    name="nn.space_to_depth",
    doc="Every block of pixels becomes block_size^2 channels.",
    attrs=SubPixelAttrs,
    infer=_infer_to_depth,
    reference=_reference_to_depth,
    pattern=OpPattern.INJECTIVE,
    axes=_axes,
    layout=Layout.FOLLOW,
    compute=_compute_to_depth,
    samples=_samples_to_depth,
)
