# SPDX-License-Identifier: Apache-2.0
"""Blocks of positions as images of a batch, and back: nn.space_to_batch_nd, nn.batch_to_space_nd.

space_to_batch_nd(x, (2, 2), ((0, 0), (0, 0)))   # (N, H, W, C) -> (4 * N, H / 2, W / 2, C)

The blocked axes are those after the first.  Image phase * N + n holds the positions of
image n that lie `phase` away from the beginning of their block, blocks counted row by
row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aotc.ir.attrs import Attrs, attrs, param
from aotc.ir.dims import Dim, SymDim
from aotc.ir.op import AxisMap, OpPattern, Quantised, Types, require
from aotc.ir.types import TensorType, Type
from aotc.relay.op.opdef import Accuracy, Array, OpDef, Sample, Tensors
from aotc.relay.op.rules import tensor
from aotc.relay.op.samples import random_array
from aotc.tir import te
from aotc.tir.expr import Expr as Scalar
from aotc.tir.expr import all_of, as_expr, const, select

Pairs = tuple[tuple[int, int], ...]


@attrs
class SpaceToBatchNDAttrs(Attrs):
    """(before, after) positions of `pad_value` around each blocked axis make it a multiple of the block."""

    block_shape: tuple[int, ...]
    paddings: tuple[tuple[int, int], ...]
    pad_value: float = param(default=0.0, takes=lambda value, _: float(value))


@attrs
class BatchToSpaceNDAttrs(Attrs):
    """(before, after) positions of each blocked axis are left out of the result."""

    block_shape: tuple[int, ...]
    crops: tuple[tuple[int, int], ...]


def _data(ty: Type, block: Sequence[int], pairs: Pairs, what: str) -> TensorType:
    data, n = tensor(ty, "data"), len(block)
    fits = 0 < n < data.rank and len(pairs) == n
    require("batch.block", fits, lambda: f"blocks {block} and {what} {pairs} do not fit {data}")
    require("batch.block", min(block, default=1) > 0, lambda: f"blocks must be positive, got {block}")
    require("batch.pairs", all(v >= 0 for p in pairs for v in p), lambda: f"{what} must not be negative, got {pairs}")
    return data


def _to_batch_dim(d: Dim, block: int, pad: tuple[int, int]) -> Dim:
    if isinstance(d, SymDim):
        return d if block == 1 and pad == (0, 0) else SymDim(upper=d.upper and (d.upper + sum(pad)) // block)
    whole = d + sum(pad)
    require("batch.divisible", whole % block == 0, lambda: f"{d} positions padded by {pad} are no blocks of {block}")
    return whole // block


def _to_space_dim(d: Dim, block: int, crop: tuple[int, int]) -> Dim:
    if isinstance(d, SymDim):
        return d if block == 1 and crop == (0, 0) else SymDim(upper=d.upper and max(d.upper * block - sum(crop), 0))
    left = d * block - sum(crop)
    require("batch.crop", left >= 0, lambda: f"{d * block} positions are fewer than the crops {crop}")
    return left


def _infer_to_batch(a: SpaceToBatchNDAttrs, types: Types) -> Type:
    data = _data(types[0], a.block_shape, a.paddings, "paddings")
    batch, *rest = data.shape
    count = math.prod(a.block_shape)
    images = batch * count if isinstance(batch, int) else SymDim(upper=batch.upper and batch.upper * count)
    space = map(_to_batch_dim, rest, a.block_shape, a.paddings)
    return TensorType((images, *space, *rest[len(a.block_shape) :]), data.dtype)


def _infer_to_space(a: BatchToSpaceNDAttrs, types: Types) -> Type:
    data = _data(types[0], a.block_shape, a.crops, "crops")
    batch, *rest = data.shape
    count = math.prod(a.block_shape)
    whole = isinstance(batch, SymDim) or batch % count == 0
    require("batch.divisible", whole, lambda: f"{batch} images are not a multiple of {count}")
    images = batch // count if isinstance(batch, int) else SymDim(upper=batch.upper and batch.upper // count)
    space = map(_to_space_dim, rest, a.block_shape, a.crops)
    return TensorType((images, *space, *rest[len(a.block_shape) :]), data.dtype)


def _split(blocks: Sequence[int]) -> list[int]:
    """How many phases one step along each blocked axis is."""
    return [math.prod(blocks[k + 1 :]) for k in range(len(blocks))]


def _compute_to_batch(a: SpaceToBatchNDAttrs, args: Tensors) -> te.Tensor:
    (data,) = args
    batch, n = data.shape[0], len(a.block_shape)
    result = _infer_to_batch(a, (TensorType(data.shape, data.dtype),))
    assert isinstance(result, TensorType)
    fill = const(a.pad_value if data.dtype.is_float else int(a.pad_value), data.dtype)

    def body(image: Scalar, *v: Scalar) -> Scalar:
        phase = image // batch
        steps = zip(v, a.block_shape, _split(a.block_shape), a.paddings, strict=False)
        at = [i * block + phase // step % block - pad[0] for i, block, step, pad in steps]
        bounds = zip(at, data.shape[1:], a.paddings, strict=False)
        inside = [c for k, d, pad in bounds for c, on in ((k >= 0, pad[0] > 0), (k < d, pad[1] > 0)) if on]
        source = (image % batch, *at, *v[n:])
        value = data[source]
        return select(all_of(*inside), value, fill) if inside else value

    return te.compute(result.static_shape, body, "space_to_batch")


def _compute_to_space(a: BatchToSpaceNDAttrs, args: Tensors) -> te.Tensor:
    (data,) = args
    n = len(a.block_shape)
    result = _infer_to_space(a, (TensorType(data.shape, data.dtype),))
    assert isinstance(result, TensorType)
    batch = result.static_shape[0]

    def body(image: Scalar, *v: Scalar) -> Scalar:
        places = [i + crop[0] for i, crop in zip(v, a.crops, strict=False)]
        phase: Scalar = as_expr(0)
        for at, block, step in zip(places, a.block_shape, _split(a.block_shape), strict=True):
            phase = phase + at % block * step
        space = (at // block for at, block in zip(places, a.block_shape, strict=True))
        source = (phase * batch + image, *space, *v[n:])
        return data[source]

    return te.compute(result.static_shape, body, "batch_to_space")


def _reference_to_batch(a: SpaceToBatchNDAttrs, data: Array) -> Array:
    n = len(a.block_shape)
    rest = ((0, 0),) * (data.ndim - 1 - n)
    fill = np.asarray(a.pad_value).astype(data.dtype)
    x = np.pad(data, ((0, 0), *a.paddings, *rest), constant_values=fill)
    pairs = [v for d, block in zip(x.shape[1 : n + 1], a.block_shape, strict=True) for v in (d // block, block)]
    split = x.reshape(x.shape[0], *pairs, *x.shape[n + 1 :])
    order = (*range(2, 2 * n + 1, 2), 0, *range(1, 2 * n, 2), *range(2 * n + 1, split.ndim))
    images = math.prod(a.block_shape) * x.shape[0]
    result: Array = split.transpose(order).reshape(images, *pairs[::2], *x.shape[n + 1 :])
    return result


def _reference_to_space(a: BatchToSpaceNDAttrs, data: Array) -> Array:
    n, count = len(a.block_shape), math.prod(a.block_shape)
    split = data.reshape(*a.block_shape, data.shape[0] // count, *data.shape[1:])
    order = [n, *(axis for k in range(n) for axis in (n + 1 + k, k)), *range(2 * n + 1, split.ndim)]
    space = [d * block for d, block in zip(data.shape[1:], a.block_shape, strict=False)]
    x = split.transpose(order).reshape(data.shape[0] // count, *space, *data.shape[n + 1 :])
    cuts = (slice(None), *(slice(low, d - high) for d, (low, high) in zip(space, a.crops, strict=True)))
    result: Array = x[cuts]
    return result


def _axes(a: Any, types: Types) -> AxisMap:
    n, rank = len(a.block_shape), tensor(types[0]).rank
    return AxisMap((tuple(k if k > n else None for k in range(rank)),))


def _samples_to_batch() -> Iterator[Sample]:
    for shape, block, paddings, value, dtype in (
        ((2, 4, 6, 3), (2, 3), ((0, 0), (0, 0)), 0.0, "float32"),
        ((1, 3, 5, 2), (2, 2), ((1, 0), (0, 1)), 0.0, "float32"),
        ((2, 3), (4,), ((3, 2),), 7.0, "int8"),
        ((1, 2, 2, 2, 3), (1, 2, 1), ((0, 0), (1, 1), (0, 1)), -1.5, "float32"),
        ((1, 0, 2), (2,), ((2, 0),), 1.0, "float32"),
    ):
        attributes = SpaceToBatchNDAttrs(block_shape=block, paddings=paddings, pad_value=value)
        yield Sample(args=(random_array(shape, dtype),), attrs=attributes, accuracy=Accuracy.EXACT)


def _samples_to_space() -> Iterator[Sample]:
    for shape, block, crops, dtype in (
        ((12, 2, 2, 3), (2, 3), ((0, 0), (0, 0)), "float32"),
        ((4, 2, 3, 2), (2, 2), ((1, 0), (0, 1)), "float32"),
        ((8, 2), (4,), ((3, 2),), "int8"),
        ((2, 2, 2, 2, 3), (1, 2, 1), ((0, 0), (1, 1), (0, 1)), "float32"),
        ((2, 1, 2), (2,), ((1, 1),), "float32"),
    ):
        attributes = BatchToSpaceNDAttrs(block_shape=block, crops=crops)
        yield Sample(args=(random_array(shape, dtype),), attrs=attributes, accuracy=Accuracy.EXACT)


space_to_batch_nd = OpDef(
    name="nn.space_to_batch_nd",
    doc="Data (N, S..., rest) as (N * prod(block), S / block..., rest), each S padded first.",
    attrs=SpaceToBatchNDAttrs,
    infer=_infer_to_batch,
    reference=_reference_to_batch,
    pattern=OpPattern.INJECTIVE,
    axes=_axes,
    compute=_compute_to_batch,
    quantised=Quantised.RESCALE,
    samples=_samples_to_batch,
)
batch_to_space_nd = OpDef(
    name="nn.batch_to_space_nd",
    doc="The inverse of `space_to_batch_nd`: data (N, S..., rest) as (N / prod(block), S * block - crops..., rest).",
    attrs=BatchToSpaceNDAttrs,
    infer=_infer_to_space,
    reference=_reference_to_space,
    pattern=OpPattern.INJECTIVE,
    axes=_axes,
    compute=_compute_to_space,
    samples=_samples_to_space,
)
