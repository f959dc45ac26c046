# SPDX-License-Identifier: Apache-2.0
"""Blocks of pixels as channels and back: nn.depth_to_space, nn.space_to_depth.

depth_to_space(x, 2)                   # (N, 4 * C, H, W) -> (N, C, 2 * H, 2 * W)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aotc.ir import AxisMap, Dim, Layout, OpPattern, SymDim, TensorType, Type, Types, require
from aotc.ir.attrs import REQUIRED, Attrs, attrs, param
from aotc.relay.op.opdef import OpDef, Sample
from aotc.relay.op.rearrange import Rearrangement
from aotc.relay.op.rules import static_shape_of, tensor
from aotc.relay.op.samples import random_sample
from aotc.relay.op.window import arrange, pick, positions


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


def _parts_of(a: SubPixelAttrs, space: str) -> list[str]:
    """The parts of each axis: pixels of a block, row and column, belong to space or to the channels."""
    if space == "deep":
        axes = {"N": "n", "C": "rck" if a.mode == "DCR" else "krc", "H": "h", "W": "w"}
    else:
        axes = {"N": "n", "C": "k", "H": "hr", "W": "wc"}
    return [axes[letter] for letter in a.layout]


def _to_space(a: SubPixelAttrs, shape: Sequence[int]) -> Rearrangement:
    n, c, h, w = pick(shape, positions(a.layout, "NCHW"))
    b = a.block_size
    extents = {"n": n, "k": c // (b * b), "h": h, "w": w, "r": b, "c": b}
    return Rearrangement.of(_parts_of(a, "deep"), _parts_of(a, "wide"), extents)


def _to_depth(a: SubPixelAttrs, shape: Sequence[int]) -> Rearrangement:
    n, c, h, w = pick(shape, positions(a.layout, "NCHW"))
    b = a.block_size
    extents = {"n": n, "k": c, "h": h // b, "w": w // b, "r": b, "c": b}
    return Rearrangement.of(_parts_of(a, "wide"), _parts_of(a, "deep"), extents)


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
    reference=lambda a, x: _to_space(a, x.shape).array(x),
    pattern=OpPattern.INJECTIVE,
    axes=_axes,
    layout=Layout.FOLLOW,
    expand=lambda a, args: _to_space(a, static_shape_of(args[0])).expr(args[0]),
    samples=_samples_to_space,
)
space_to_depth = OpDef(
    name="nn.space_to_depth",
    doc="Every block of pixels becomes block_size^2 channels.",
    attrs=SubPixelAttrs,
    infer=_infer_to_depth,
    reference=lambda a, x: _to_depth(a, x.shape).array(x),
    pattern=OpPattern.INJECTIVE,
    axes=_axes,
    layout=Layout.FOLLOW,
    expand=lambda a, args: _to_depth(a, static_shape_of(args[0])).expr(args[0]),
    samples=_samples_to_depth,
)
