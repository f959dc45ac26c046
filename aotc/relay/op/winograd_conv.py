# SPDX-License-Identifier: Apache-2.0
"""3x3 convolutions by Winograd's minimal filtering, as two operators: weight transform and
convolution.

u = contrib_conv2d_winograd_weight_transform(w, 4)          # (O, I, 3, 3) -> (6, 6, O, I)
u = layout_transform(u, "HWOI", "HWOI32o")                  # blocks of output channels
y = contrib_conv2d_winograd_without_weight_transform(x, u, 4, padding=(1, 1), channels=64)
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import prod
from operator import add
from typing import Any

import numpy as np

from aotc.ir import Attrs, AxisMap, OpPattern, Precision, Quantized, TensorType, Type, Types, args, require
from aotc.relay.op import conv
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    Samples,
    Scalar,
    as_dtype,
    literal,
    random_array,
    random_sample,
)
from aotc.relay.op.type_rules import ranked, require_dtype, shape_text, tensor
from aotc.relay.op.window_attributes import full_padding, pad_pairs, paddings, window_extent
from aotc.tir import TAPS, TILES, Tensor, matrices, te


class ConvWinogradWeightTransformAttrs(Attrs):
    """Winograd transform of weights (O, I, 3, 3) to (tile_size + 2, tile_size + 2, O, I); tiles of
    2 or 4 rows and columns.
    """

    tile_size: int


class Conv2DWinogradAttrs(Attrs):
    """3x3 Winograd convolution of data (N, I, H, W) by transformed weights in layout HWOI{n}o;
    stride 1, one group.

    The result differs from that of the direct convolution by rounding: a few 1e-6 (tile 4) of its
    standard deviation. An infinity or NaN in the data may make NaN of every result of a tile
    (tile_size rows and columns) whose patch contains it.

    tile_size   of the output, for which the weights were transformed
    padding     top, left, bottom, right
    channels    of the output; the weights hold whole blocks
    """

    tile_size: int
    padding: tuple[int, ...] = paddings(2, 4)
    channels: int


def _check(tile: int, *types: TensorType) -> int:
    """Return the rows and columns of a transformed patch; raise AotcError for an invalid tile size
    or dtype.
    """
    require("winograd.tile", tile in TILES, f"tile_size must be one of {', '.join(map(str, TILES))}, got {tile}")
    for ty in types:
        require_dtype(ty.dtype, ty.dtype == "float32")
    return tile + TAPS - 1


# --- weights


def _infer_weights(a: ConvWinogradWeightTransformAttrs, types: Types) -> Type:
    weight = tensor(types[0], "weight")
    alpha = _check(a.tile_size, weight)
    fits = weight.rank == 4 and weight.shape[2:] == (TAPS, TAPS)
    require("winograd.weight", fits, lambda: f"weight must have shape (O, I, {TAPS}, {TAPS}), got {weight}")
    return TensorType((alpha, alpha, *weight.shape[:2]), weight.dtype)


def _reference_weights(a: ConvWinogradWeightTransformAttrs, weight: Array) -> Array:
    """Compute G w G^T, rounded once, as one matrix product for the weights of all channels."""
    g = matrices(a.tile_size)[1]
    squares = np.kron(g, g) @ weight.astype(np.float64).reshape(-1, TAPS * TAPS).T
    return as_dtype(squares.reshape(len(g), len(g), *weight.shape[:2]), "float32")


def _compute_weights(a: ConvWinogradWeightTransformAttrs, weight: Tensor) -> Tensor:
    g = matrices(a.tile_size)[1]

    def factor(row: Scalar, tap: int) -> Scalar:
        """Return element [row, tap] of G for a symbolic row."""
        return literal(g[:, tap].tolist(), row, weight.dtype)

    def body(x: Scalar, y: Scalar, o: Scalar, i: Scalar) -> Scalar:
        taps = product(range(TAPS), repeat=2)
        return reduce(add, (weight[o, i, p, q] * (factor(x, p) * factor(y, q)) for p, q in taps))

    return te.compute((len(g), len(g), *weight.shape[:2]), body, "winograd_weights")


# --- convolution


def _infer(a: Conv2DWinogradAttrs, types: Types) -> Type:
    data, weight = ranked("conv.data-rank", types[0], 4), tensor(types[1], "weight")
    alpha = _check(a.tile_size, data, weight)
    fits = weight.rank == 5 and weight.shape[:2] == (alpha, alpha) and weight.shape[3] == data.shape[1]
    wanted = f"({alpha}, {alpha}, O / block, {data.shape[1]}, block)"
    require("winograd.weight", fits, lambda: f"weight must have shape {wanted}, got {shape_text(weight.shape)}")
    blocks, block = weight.shape[2], weight.shape[4]
    whole = isinstance(block, int) and block > 0 and blocks == -(-a.channels // block)
    require("conv.block", whole, f"{a.channels} channels do not fill {blocks} blocks of {block}")
    space = [window_extent(d, TAPS, pad=p) for d, p in zip(data.shape[2:], pad_pairs(a.padding, 2), strict=True)]
    return TensorType((data.shape[0], a.channels, *space), data.dtype)


def _plain(a: Conv2DWinogradAttrs, weight: Array) -> Array:
    """Return the untransformed weights: G has full rank, so the pseudoinverse recovers them."""
    back = np.linalg.pinv(matrices(a.tile_size)[1])
    packed = np.moveaxis(weight.astype(np.float64), 4, 3)
    alpha, _, blocks, block, inputs = packed.shape
    flat = packed.reshape(alpha, alpha, blocks * block, inputs)[:, :, : a.channels]
    return as_dtype(np.einsum("ia,aboc,jb->ocij", back, flat, back, optimize=True), "float32")


def _reference(a: Conv2DWinogradAttrs, data: Array, weight: Array) -> Any:
    """Compute the direct convolution with the untransformed weights."""
    plain = conv.Conv2DAttrs(padding=full_padding(a.padding, 2))
    return conv.conv2d.reference(plain, data, _plain(a, weight))


def _compute(a: Conv2DWinogradAttrs, data: Tensor, weight: Tensor) -> Tensor:
    pads = pad_pairs(a.padding, 2)
    space = [window_extent(d, TAPS, pad=p) for d, p in zip(data.shape[2:], pads, strict=True)]
    return te.winograd(
        (data.shape[0], a.channels, *space),
        data,
        te.view(weight, (prod(weight.shape[:2]), *weight.shape[2:])),
        tile=a.tile_size,
        pads=(pads[0][0], pads[1][0]),
    )


def _sample(tile: int, data: tuple[int, ...], channels: int, block: int, padding: tuple[int, ...]) -> Sample:
    plain = random_array((channels, data[1], TAPS, TAPS), seed=1)
    u = _reference_weights(ConvWinogradWeightTransformAttrs(tile_size=tile), plain)
    blocks = -(-channels // block)
    padded = np.pad(u, ((0, 0), (0, 0), (0, blocks * block - channels), (0, 0)))
    packed = padded.reshape(tile + 2, tile + 2, blocks, block, data[1])
    attributes = Conv2DWinogradAttrs(tile_size=tile, padding=padding, channels=channels)
    return Sample(args=(random_array(data), np.ascontiguousarray(np.moveaxis(packed, 3, 4))), attrs=attributes)


def _samples() -> Samples:
    yield _sample(2, (1, 3, 6, 7), 5, 4, (1, 1, 1, 1))
    yield _sample(4, (2, 2, 9, 5), 16, 16, (1, 0, 2, 1))
    yield _sample(4, (1, 3, 3, 3), 3, 4, (0, 0, 0, 0))
    yield _sample(4, (1, 2, 8, 30), 20, 32, (2, 3, 0, 0))


contrib_conv2d_winograd_weight_transform = OpDef(
    name="nn.contrib_conv2d_winograd_weight_transform",
    attrs=ConvWinogradWeightTransformAttrs,
    args=args("weight"),
    infer=_infer_weights,
    reference=_reference_weights,
    pattern=OpPattern.INJECTIVE,
    axes=lambda *_: AxisMap(((None, None, 0, 1),)),  # filters are transformed one by one
    compute=_compute_weights,
    precision=Precision.NEVER,
    quantized=Quantized.REFUSE,
    samples=lambda: (
        random_sample(((3, 2, 3, 3),), ConvWinogradWeightTransformAttrs(tile_size=tile)) for tile in TILES
    ),
)
contrib_conv2d_winograd_without_weight_transform = OpDef(
    name="nn.contrib_conv2d_winograd_without_weight_transform",
    attrs=Conv2DWinogradAttrs,
    args=args("data", "weight"),
    infer=_infer,
    reference=_reference,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=lambda *_: AxisMap(((0, None, None, None),)),  # channels and windows are summed
    compute=_compute,
    samples=_samples,
)
