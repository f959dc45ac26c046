# SPDX-License-Identifier: Apache-2.0
"""Blocks of positions as images of a batch, and back: nn.space_to_batch_nd, nn.batch_to_space_nd.

space_to_batch_nd(x, (2, 2), ((0, 0), (0, 0)))   # (N, H, W, C) -> (4 * N, H / 2, W / 2, C)

The blocked axes are those after the first.  Image phase * N + n holds the positions of
image n that lie `phase` away from the beginning of their block, blocks counted row by
row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.ir import Attrs, AxisMap, Dim, OpPattern, Quantised, SymDim, TensorType, Type, Types, param, product, require
from aotc.relay.expr import Expr, tensor_type_of
from aotc.relay.op import pad
from aotc.relay.op import slice as slices
from aotc.relay.op.opdef import Array, OpDef
from aotc.relay.op.rearrange import Rearrangement
from aotc.relay.op.rules import extent_of, row_but, static_shape_of, tensor
from aotc.relay.op.samples import samples_of
from aotc.relay.op.shape import times

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
    require("batch.divisible", whole, lambda: f"{d} positions padded by {pad} are no blocks of {block}")
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
    (batch, *rest), count = data.shape, math.prod(a.block_shape)
    whole = isinstance(batch, SymDim) or batch % count == 0
    require("batch.divisible", whole, f"{batch} images are not a multiple of {count}")
    space = map(_to_space_dim, rest, a.block_shape, a.crops)
    return TensorType((extent_of(batch, lambda n: n // count), *space, *rest[len(a.block_shape) :]), data.dtype)


def _moves(blocks: Sequence[int], wide: Sequence[int]) -> tuple[Rearrangement, Rearrangement]:
    """How data of the shape `wide`, whose blocks are in space, gets them into the batch, and back."""
    axes = [f"d{k}" for k in range(len(wide))]
    inner = [f"b{k}" for k in range(len(blocks))]
    space = [list(pair) for pair in zip(axes[1:], inner, strict=False)]
    spread = [["d0"], *space, *([axis] for axis in axes[1 + len(blocks) :])]
    batched = [[*inner, "d0"], *([axis] for axis in axes[1:])]
    extents = dict(zip(axes, wide, strict=True)) | dict(zip(inner, blocks, strict=True))
    extents |= {axis: extents[axis] // extents[block] for axis, block in space}
    return Rearrangement.of(spread, batched, extents), Rearrangement.of(batched, spread, extents)


def _to_batch(a: SpaceToBatchNDAttrs, shape: Sequence[int]) -> tuple[Pairs, Rearrangement]:
    """The padding of all axes, and what follows it."""
    widths = ((0, 0), *a.paddings, *((0, 0),) * (len(shape) - 1 - len(a.paddings)))
    move, _ = _moves(a.block_shape, [d + sum(width) for d, width in zip(shape, widths, strict=True)])
    return widths, move


def _to_space(a: BatchToSpaceNDAttrs, shape: Sequence[int]) -> tuple[Rearrangement, list[slice]]:
    """The move, and what is left of the blocked axes after it."""
    blocks = a.block_shape
    space = [d * block for d, block in zip(shape[1:], blocks, strict=False)]
    _, move = _moves(blocks, [shape[0] // math.prod(blocks), *space, *shape[1 + len(blocks) :]])
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


def _axes(a: Any, types: Types) -> AxisMap:
    return AxisMap((row_but(range(len(a.block_shape) + 1), tensor(types[0]).rank),))


space_to_batch_nd = OpDef(
    name="nn.space_to_batch_nd",
    doc="Data (N, S..., rest) as (N * prod(block), S / block..., rest), each S padded first.",
    attrs=SpaceToBatchNDAttrs,
    infer=_infer_to_batch,
    reference=_reference_to_batch,
    pattern=OpPattern.INJECTIVE,
    axes=_axes,
    quantised=Quantised.RESCALE,
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
    axes=_axes,
    expand=_expand_to_space,
    samples=samples_of(BatchToSpaceNDAttrs, "block_shape crops", (
        ((12, 2, 2, 3), (2, 3), ((0, 0), (0, 0))), ((4, 2, 3, 2), (2, 2), ((1, 0), (0, 1))),
        (("int8", 8, 2), (4,), ((3, 2),)), ((2, 2, 2, 2, 3), (1, 2, 1), ((0, 0), (1, 1), (0, 1))),
        ((2, 1, 2), (2,), ((1, 1),)),
    ), ("float32",)),
)  # fmt: skip
