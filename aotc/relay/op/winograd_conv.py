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

from aotc.ir import (
    AotcError,
    Attrs,
    AxisMap,
    Dim,
    OpPattern,
    PrecisionTreatment,
    QuantizationTreatment,
    Shape,
    TensorType,
    Type,
    Types,
    declare_arguments,
    require,
)
from aotc.relay.op import conv
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    Samples,
    Scalar,
    cast_array,
    random_array,
    random_sample,
    select_constant_at_index,
)
from aotc.relay.op.type_rules import require_dtype, require_tensor_of_rank, require_tensor_type, shape_text
from aotc.relay.op.window_attributes import (
    befores_then_afters_padding,
    pad_pairs_of_axes,
    padding_attribute_field,
    window_count,
)
from aotc.tir import FILTER_EXTENT, SUPPORTED_OUTPUT_TILES, Tensor, te, winograd_matrices_at_g_bt


class ConvWinogradWeightTransformAttrs(Attrs):
    """Winograd transform of weights (O, I, 3, 3) to (tile_size + 2, tile_size + 2, O, I); tiles of
    2 or 4 rows and columns.
    """

    tile_size: int


class Conv2DWinogradAttrs(Attrs):
    """3x3 Winograd convolution of data (N, groups * I, H, W) by transformed weights in layout
    HWOI{n}o; stride 1.

    The result differs from that of the direct convolution by rounding: a few 1e-6 (tile 4) of its
    standard deviation. An infinity or NaN in the data may make NaN of every result of a tile
    (tile_size rows and columns) whose patch contains it.

    tile_size   of the output, for which the weights were transformed
    padding     top, left, bottom, right
    channels    of the output; the weights hold whole blocks
    groups      number of groups of channels; the weights of each group are padded to whole blocks
    data_layout NCHW, or NHWC with one group, for the data and the result
    """

    tile_size: int
    padding: tuple[int, ...] = padding_attribute_field(2, 4)
    channels: int
    groups: int = 1
    data_layout: str = "NCHW"


def _checked_transformed_tile_size(tile: int, *types: TensorType) -> int:
    """Return the rows and columns of a transformed patch; raise AotcError for an invalid tile size
    or dtype.
    """
    require(
        "winograd.tile",
        tile in SUPPORTED_OUTPUT_TILES,
        f"tile_size must be one of {', '.join(map(str, SUPPORTED_OUTPUT_TILES))}, got {tile}",
    )
    for ty in types:
        require_dtype(ty.dtype, ty.dtype == "float32")
    return tile + FILTER_EXTENT - 1


# --- weights


def _infer_winograd_weight_type(a: ConvWinogradWeightTransformAttrs, types: Types) -> Type:
    weight = require_tensor_type(types[0], "weight")
    alpha = _checked_transformed_tile_size(a.tile_size, weight)
    fits = weight.rank == 4 and weight.shape[2:] == (FILTER_EXTENT, FILTER_EXTENT)
    require(
        "winograd.weight",
        fits,
        lambda: f"weight must have shape (O, I, {FILTER_EXTENT}, {FILTER_EXTENT}), got {weight}",
    )
    return TensorType((alpha, alpha, *weight.shape[:2]), weight.dtype)


def _winograd_weight_reference(a: ConvWinogradWeightTransformAttrs, weight: Array) -> Array:
    """Compute G w G^T, rounded once, as one matrix product for the weights of all channels."""
    g = winograd_matrices_at_g_bt(a.tile_size)[1]
    squares = np.kron(g, g) @ weight.astype(np.float64).reshape(-1, FILTER_EXTENT * FILTER_EXTENT).T
    return cast_array(squares.reshape(len(g), len(g), *weight.shape[:2]), "float32")


def _compute_winograd_weights(a: ConvWinogradWeightTransformAttrs, weight: Tensor) -> Tensor:
    g = winograd_matrices_at_g_bt(a.tile_size)[1]

    def transform_matrix_element(row: Scalar, tap: int) -> Scalar:
        """Return element [row, tap] of G for a symbolic row."""
        return select_constant_at_index(g[:, tap].tolist(), row, weight.dtype)

    def transformed_weight_element(x: Scalar, y: Scalar, o: Scalar, i: Scalar) -> Scalar:
        taps = product(range(FILTER_EXTENT), repeat=2)
        return reduce(
            add,
            (weight[o, i, p, q] * (transform_matrix_element(x, p) * transform_matrix_element(y, q)) for p, q in taps),
        )

    return te.compute((len(g), len(g), *weight.shape[:2]), transformed_weight_element, "winograd_weights")


# --- convolution


def _input_channels_per_group(a: Conv2DWinogradAttrs, input_channels: Dim) -> int:
    """Return the input channels of each group; raise AotcError unless the number of groups divides
    the channels.
    """
    if not isinstance(input_channels, int) or a.groups <= 0 or input_channels % a.groups or a.channels % a.groups:
        text = f"{input_channels} input and {a.channels} output channels are not divisible into {a.groups} groups"
        raise AotcError("conv.groups", text)
    return input_channels // a.groups


def _infer_winograd_conv_type(a: Conv2DWinogradAttrs, types: Types) -> Type:
    data, weight = require_tensor_of_rank("conv.data-rank", types[0], 4), require_tensor_type(types[1], "weight")
    alpha = _checked_transformed_tile_size(a.tile_size, data, weight)
    known = a.data_layout == "NCHW" or (a.data_layout == "NHWC" and a.groups == 1)
    require("conv.groups", known, f"{a.groups} groups of channels in layout {a.data_layout} are not supported")
    inputs = _input_channels_per_group(a, data.shape[a.data_layout.index("C")])
    fits = weight.rank == 5 and weight.shape[:2] == (alpha, alpha) and weight.shape[3] == inputs
    expected_shape = f"({alpha}, {alpha}, O / block, {inputs}, block)"
    require("winograd.weight", fits, lambda: f"weight must have shape {expected_shape}, got {shape_text(weight.shape)}")
    blocks, block = weight.shape[2], weight.shape[4]
    whole = isinstance(block, int) and block > 0 and blocks == a.groups * -(-a.channels // a.groups // block)
    text = f"the weight has {blocks} blocks of {block} output channels, but `channels` is {a.channels}"
    text += f" in {a.groups} groups" if a.groups > 1 else ""
    require("conv.block", whole, text)
    return TensorType(_output_shape(a, data.shape), data.dtype)


def _output_shape(a: Conv2DWinogradAttrs, data: Shape) -> Shape:
    """Return the shape of the result in the layout of the data."""
    last = a.data_layout == "NHWC"
    space = data[1:3] if last else data[2:]
    sizes = [window_count(d, FILTER_EXTENT, pad=p) for d, p in zip(space, pad_pairs_of_axes(a.padding, 2), strict=True)]
    return (data[0], *sizes, a.channels) if last else (data[0], a.channels, *sizes)


def _invert_winograd_weights(a: Conv2DWinogradAttrs, weight: Array) -> Array:
    """Return the untransformed weights: G has full rank, so the pseudoinverse recovers them."""
    back = np.linalg.pinv(winograd_matrices_at_g_bt(a.tile_size)[1])
    packed = np.moveaxis(weight.astype(np.float64), 4, 3)
    alpha, _, blocks, block, inputs = packed.shape
    by_group = packed.reshape(alpha, alpha, a.groups, blocks * block // a.groups, inputs)
    flat = by_group[:, :, :, : a.channels // a.groups].reshape(alpha, alpha, a.channels, inputs)
    return cast_array(np.einsum("ia,aboc,jb->ocij", back, flat, back, optimize=True), "float32")


def _winograd_conv_reference(a: Conv2DWinogradAttrs, data: Array, weight: Array) -> Any:
    """Compute the direct convolution with the untransformed weights."""
    plain = conv.Conv2DAttrs(
        padding=befores_then_afters_padding(a.padding, 2), groups=a.groups, data_layout=a.data_layout
    )
    return conv.conv2d.reference(plain, data, _invert_winograd_weights(a, weight))


def _compute_winograd_conv(a: Conv2DWinogradAttrs, data: Tensor, weight: Tensor) -> Tensor:
    pads = pad_pairs_of_axes(a.padding, 2)
    return te.winograd(
        _output_shape(a, data.shape),
        data,
        te.view(weight, (prod(weight.shape[:2]), *weight.shape[2:])),
        tile=a.tile_size,
        pads=(pads[0][0], pads[1][0]),
        channels_last=a.data_layout == "NHWC",
    )


def _winograd_conv_sample(
    tile: int,
    data_shape: tuple[int, ...],
    channels: int,
    block: int,
    padding: tuple[int, ...],
    groups: int = 1,
    data_layout: str = "NCHW",
) -> Sample:
    inputs = data_shape[1] // groups
    plain = random_array((channels, inputs, FILTER_EXTENT, FILTER_EXTENT), seed=1)
    u = _winograd_weight_reference(ConvWinogradWeightTransformAttrs(tile_size=tile), plain)
    by_group = u.reshape(tile + 2, tile + 2, groups, channels // groups, inputs)
    padded = np.pad(by_group, ((0, 0), (0, 0), (0, 0), (0, -(channels // groups) % block), (0, 0)))
    packed = padded.reshape(tile + 2, tile + 2, -1, block, inputs)
    attributes = Conv2DWinogradAttrs(
        tile_size=tile, padding=padding, channels=channels, groups=groups, data_layout=data_layout
    )
    data = random_array(data_shape)
    data = np.ascontiguousarray(np.moveaxis(data, 1, 3)) if data_layout == "NHWC" else data
    return Sample(args=(data, np.ascontiguousarray(np.moveaxis(packed, 3, 4))), attrs=attributes)


def _winograd_conv_test_samples() -> Samples:
    yield _winograd_conv_sample(2, (1, 3, 6, 7), 5, 4, (1, 1, 1, 1))
    yield _winograd_conv_sample(4, (2, 2, 9, 5), 16, 16, (1, 0, 2, 1))
    yield _winograd_conv_sample(4, (1, 3, 3, 3), 3, 4, (0, 0, 0, 0))
    yield _winograd_conv_sample(4, (1, 2, 8, 30), 20, 32, (2, 3, 0, 0))
    yield _winograd_conv_sample(4, (2, 6, 9, 5), 32, 8, (1, 1, 1, 1), groups=2)
    yield _winograd_conv_sample(2, (1, 6, 5, 8), 15, 4, (1, 1, 0, 1), groups=3)
    yield _winograd_conv_sample(4, (2, 9, 10, 13), 16, 16, (1, 1, 1, 1), data_layout="NHWC")
    yield _winograd_conv_sample(2, (1, 3, 5, 4), 5, 8, (2, 0, 1, 1), data_layout="NHWC")


contrib_conv2d_winograd_weight_transform = OpDef(
    name="nn.contrib_conv2d_winograd_weight_transform",
    attrs=ConvWinogradWeightTransformAttrs,
    args=declare_arguments("weight"),
    infer=_infer_winograd_weight_type,
    reference=_winograd_weight_reference,
    pattern=OpPattern.INJECTIVE,
    axes=lambda *_: AxisMap(((None, None, 0, 1),)),  # filters are transformed one by one
    compute=_compute_winograd_weights,
    precision=PrecisionTreatment.NEVER,
    quantized=QuantizationTreatment.REFUSE,
    samples=lambda: (
        random_sample(((3, 2, 3, 3),), ConvWinogradWeightTransformAttrs(tile_size=tile))
        for tile in SUPPORTED_OUTPUT_TILES
    ),
)
contrib_conv2d_winograd_without_weight_transform = OpDef(
    name="nn.contrib_conv2d_winograd_without_weight_transform",
    attrs=Conv2DWinogradAttrs,
    args=declare_arguments("data", "weight"),
    infer=_infer_winograd_conv_type,
    reference=_winograd_conv_reference,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=lambda *_: AxisMap(((0, None, None, None),)),  # channels and windows are summed
    compute=_compute_winograd_conv,
    samples=_winograd_conv_test_samples,
)
