# SPDX-License-Identifier: Apache-2.0
"""Dense layers whose data is rounded to int8, with a scale for each block of consecutive elements, and whose weights
have 4 or 8 bits.

rounded = nn.contrib_round_blocks(x, block_size=32)     # float32: what the integers stand for
parts = nn.contrib_quantize_blocks(x, block_size=32)    # the integers, their scales and sums
nn.contrib_dense_integer_bits(parts[0], parts[1], parts[2], weight, scale, zero, units=N, bits=4, block_size=32)

`PackWeights` replaces a dense layer of rounded data by the latter two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import (
    Attrs,
    AxisMap,
    Dim,
    DType,
    OpPattern,
    TensorType,
    TupleType,
    Type,
    Types,
    declare_arguments,
    largest_size,
    product_of_dims,
    require,
    require_static_shape,
)
from aotc.relay.expr import Constant, Expr, tensor_type_of
from aotc.relay.op import binary_elementwise, elementwise_unary, pad, reduce, shape, slice
from aotc.relay.op.operator_definition import (
    Accuracy,
    Array,
    OpDef,
    Sample,
    random_array,
    require_dtype,
    require_tensor_of_rank,
    require_tensor_type,
)
from aotc.relay.op.packed_dense import (
    PackedWeights,
    axis_map_of_rows,
    random_low_bit_weights,
    require_known_row_length,
    rows_to_tiles,
    tiles_to_rows,
)
from aotc.tir import Tensor, const, te
from aotc.tir.float_to_int8 import quantize_numpy_reference
from aotc.tir.int8_dot_products import BYTES_PER_DOT
from aotc.tir.schedule.algorithms.integer_low_bit_matmul import (
    LARGEST_INT8,
    MAX_BLOCK,
    SMALLEST_SCALE,
    IntegerProduct,
    build_integer_low_bit_matmul,
    build_quantization_in_blocks,
)

_LARGEST_UINT8: Final = 255


class RoundBlocksAttrs(Attrs):
    """The data, float32 (..., K), rounded to the integers from -127 to 127 times a scale for each block of
    `block_size` consecutive elements of the last axis: the largest magnitude of the block, divided by 127.

    Blocks whose scale is not a normal number become zeros, and those with an infinity or NaN become NaN.
    """

    block_size: int


class QuantizeBlocksAttrs(Attrs):
    """The integers of nn.contrib_round_blocks: int8 (..., blocks * block_size), which are followed by zeros, and for
    each block the scale, float32 (..., blocks), and the sum of the integers, int32 (..., blocks).

    The scale of a block with an infinity or NaN is NaN.
    """

    block_size: int


class DenseIntegerBitsAttrs(Attrs):
    """data (..., K) times the transpose of scale * (weight - zero) (N, K), in float32: a result (..., N).

    data          int8 (..., K), with the scales and the sums of its blocks of `block_size` elements, float32 and int32
                  (..., K / block_size)
    weight        uint8 (tiles, K / fields, tile, 4): integers of 8 bits for tiles of consecutive units, four
                  consecutive ones in a row (fields = 4); of 4 bits, the first four of eight in the lower halves of
                  the bytes (fields = 8)
    scale         float32 or float16 (tiles, K / block_size, tile)
    zero          zero points, uint8 in the shape of the scales, or one value: (1, 1, 1)
    """

    units: int
    bits: int
    block_size: int


def pack_weights_for_integer_products(
    integers: Array, scale: Array, zero: Array, block: int, tile_units: int, scale_dtypes: Sequence[str]
) -> PackedWeights | None:
    """Pack integer weights (N, K) with float32 scales and zero points (N, blocks) into the operator's layout, with
    scales of the last one of `scale_dtypes` that represents all of them.

    Return None if the integers span more than 8 bits, or zero points do not lie within 8 bits of the least integer.
    """
    low = int(integers.min())
    span, zero = int(integers.max()) - low, zero.astype(np.float64) - low
    if span > _LARGEST_UINT8 or zero.min() < 0 or zero.max() > _LARGEST_UINT8:
        return None
    bits = 4 if span < 1 << 4 else 8
    units, depth = integers.shape
    padding = ((0, -units % tile_units), (0, -depth % block))
    bytes_of_rows = np.pad((integers.astype(np.int64) - low).astype(np.uint8), padding)
    words: Array = bytes_of_rows.reshape(-1, tile_units, bytes_of_rows.shape[1] // BYTES_PER_DOT, BYTES_PER_DOT)
    if bits == 4:
        words = words[:, :, ::2] | words[:, :, 1::2] << 4
    narrow = [d for d in scale_dtypes if (scale.astype(d).astype(np.float32) == scale).all()]
    is_one = (zero == zero.flat[0]).all()
    zeros = zero[:1, :1, None].astype(np.uint8) if is_one else rows_to_tiles(zero.astype(np.uint8), tile_units)
    scales = rows_to_tiles(scale.astype(narrow[-1]), tile_units)
    return PackedWeights(np.ascontiguousarray(words.swapaxes(1, 2)), scales, zeros, bits)


def can_round_in_blocks_of(block_size: int) -> bool:
    """Return True if the operators accept blocks of this size."""
    return 0 < block_size <= MAX_BLOCK and block_size % 8 == 0


def blocks_in(depth: int, block_size: int) -> int:
    """Return the number of blocks of an axis, the last one of which may be shorter."""
    return -(-depth // block_size)


# --- nn.contrib_round_blocks, nn.contrib_quantize_blocks


def _require_rows_in_blocks(block_size: int, types: Types) -> tuple[TensorType, int]:
    """Return the type of the data and the number of blocks of a row."""
    data = require_tensor_type(types[0])
    require_dtype(data.dtype, data.dtype == "float32")
    fits = can_round_in_blocks_of(block_size)
    require("dense.bits", fits, f"block_size must be a multiple of 8 up to {MAX_BLOCK}, got {block_size}")
    require("dense.bits", data.rank > 0, lambda: f"{data} has no rows")
    return data, blocks_in(require_known_row_length(data.shape), block_size)


def _infer_round_blocks_type(a: RoundBlocksAttrs, types: Types) -> Type:
    return _require_rows_in_blocks(a.block_size, types)[0]


def _infer_quantize_blocks_type(a: QuantizeBlocksAttrs, types: Types) -> Type:
    data, blocks = _require_rows_in_blocks(a.block_size, types)
    rows = data.shape[:-1]
    parts = ((blocks * a.block_size, "int8"), (blocks, "float32"), (blocks, "int32"))
    return TupleType([TensorType((*rows, count), DType(dtype)) for count, dtype in parts])


def _quantize_blocks_reference(a: Any, data: Array) -> tuple[Array, Array, Array]:
    depth, rows = data.shape[-1], data.shape[:-1]
    blocks = blocks_in(depth, a.block_size)
    padded = np.pad(data, [*[(0, 0)] * len(rows), (0, blocks * a.block_size - depth)])
    cut = padded.reshape(*rows, blocks, a.block_size)
    largest = np.abs(cut).max(-1, initial=0)
    scale = largest / np.float32(LARGEST_INT8) + (largest - largest)
    inverse = np.where(scale >= np.float32(SMALLEST_SCALE), np.float32(1) / scale, np.float32(0))
    whole = quantize_numpy_reference("int8", cut * inverse[..., None], np.float32(0))
    return whole.reshape(padded.shape), scale, whole.sum(-1, dtype=np.int32)


def _round_blocks_reference(a: RoundBlocksAttrs, data: Array) -> Array:
    whole, scale, _ = _quantize_blocks_reference(a, data)
    return np.asarray((whole * np.repeat(scale, a.block_size, -1))[..., : data.shape[-1]])


def _expand_round_blocks(a: RoundBlocksAttrs, data: Expr) -> Expr:
    """Return the rounded data as an expression of other operators."""
    ty = tensor_type_of(data)
    depth = require_known_row_length(ty.shape)
    rows, blocks = ty.shape[:-1], blocks_in(depth, a.block_size)
    if missing := blocks * a.block_size - depth:
        data = pad.pad(data, (*((0, 0),) * len(rows), (0, missing)))
    cut = shape.reshape(data, (*rows, blocks, a.block_size))
    largest = reduce.max(elementwise_unary.abs(cut), axis=-1, keepdims=True)
    values = (LARGEST_INT8, 1, SMALLEST_SCALE, 0)
    count, one, least, nothing = (Constant(np.asarray(v, np.float32)) for v in values)
    is_not_finite = binary_elementwise.subtract(largest, largest)
    scale = binary_elementwise.add(binary_elementwise.divide(largest, count), is_not_finite)
    is_normal = binary_elementwise.greater_equal(scale, least)
    inverse = binary_elementwise.where(is_normal, binary_elementwise.divide(one, scale), nothing)
    whole = elementwise_unary.round(binary_elementwise.multiply(cut, inverse))
    real = shape.reshape(binary_elementwise.multiply(whole, scale), (*rows, blocks * a.block_size))
    return real if not missing else slice.strided_slice(real, begin=(0,), end=(depth,), axes=(len(rows),))


def _compute_quantize_blocks(a: QuantizeBlocksAttrs, data: Tensor) -> tuple[Tensor, ...]:
    rows, depth = product_of_dims(data.shape[:-1]), require_known_row_length(data.shape)
    blocks = blocks_in(depth, a.block_size)
    parts = ((blocks * a.block_size, "int8"), (blocks, "float32"), (blocks, "int32"))
    kinds = [((*data.shape[:-1], count), dtype) for count, dtype in parts]
    program = partial(build_quantization_in_blocks, rows, depth, a.block_size)
    return te.extern_for_target("quantized", kinds, [data], program, takes_sizes=True)


# --- nn.contrib_dense_integer_bits


def _integer_product(a: DenseIntegerBitsAttrs, data_shape: Sequence[Dim], tile: int) -> IntegerProduct:
    rows = product_of_dims(data_shape[:-1])
    return IntegerProduct(rows, require_known_row_length(data_shape), a.units, a.bits, a.block_size, tile)


def _infer_dense_integer_bits_type(a: DenseIntegerBitsAttrs, types: Types) -> Type:
    data, data_scale, data_sum = map(require_tensor_type, types[:3])
    weight = require_tensor_of_rank("dense.weight-rank", types[3], 4, "the weight")
    scale, zero = (require_tensor_of_rank("dense.weight-rank", t, 3, "a part") for t in types[4:])
    require_dtype(data.dtype, [data.dtype, data_scale.dtype, data_sum.dtype] == ["int8", "float32", "int32"])
    require_dtype(scale.dtype, weight.dtype == zero.dtype == "uint8" and scale.dtype in ("float32", "float16"))
    fits = can_round_in_blocks_of(a.block_size) and a.bits in (4, 8)
    require("dense.bits", fits, f"bits must be 4 or 8, and block_size a multiple of 8 up to {MAX_BLOCK}")
    is_whole = data.rank > 0 and require_known_row_length(data.shape) % a.block_size == 0
    require("dense.bits", is_whole, lambda: f"{data} has no rows of whole blocks")
    tile = weight.static_shape[2]
    product = _integer_product(a, data.shape, tile)
    tiles = -(-a.units // max(tile, 1))
    shapes = (tiles, product.words_per_column, tile, BYTES_PER_DOT), (tiles, product.blocks, tile)
    fits = (weight.shape, scale.shape) == shapes and zero.shape in (shapes[1], (1, 1, 1))
    fits = fits and data_scale.shape == data_sum.shape == (*data.shape[:-1], product.blocks)
    require("dense.bits", fits, lambda: f"{weight}, {scale} and {zero} do not fit {a.units} units of {data}")
    return TensorType((*data.shape[:-1], a.units), DType("float32"))


def _dense_integer_bits_reference(
    a: DenseIntegerBitsAttrs, data: Array, data_scale: Array, _: Array, weight: Array, scale: Array, zero: Array
) -> Array:
    words = weight.swapaxes(1, 2)
    if a.bits == 4:
        words = np.stack([words & 15, words >> 4], 3)
    integers = words.reshape(-1, data.shape[-1])[: a.units].astype(np.float32)
    scales, zeros = (
        np.repeat(tiles_to_rows(v, a.units).astype(np.float32), a.block_size, 1)
        for v in (scale, np.broadcast_to(zero, scale.shape))
    )
    real = data * np.repeat(data_scale, a.block_size, -1)
    return np.asarray(real @ ((integers - zeros) * scales).T, np.float32)


def _compute_dense_integer_bits(a: DenseIntegerBitsAttrs, data: Tensor, *parts: Tensor) -> Tensor:
    product = _integer_product(a, data.shape, require_static_shape(parts[2].shape)[2])
    kinds = [((*data.shape[:-1], a.units), "float32")]
    if product.rows == 0:
        return te.compute(kinds[0][0], lambda *_: const(0.0, "float32"), "dense")
    macs = product.depth * product.columns * largest_size(product.rows)
    program = partial(build_integer_low_bit_matmul, product)
    return te.extern_for_target("dense", kinds, (data, *parts), program, macs=macs, takes_sizes=True)[0]


def _dense_integer_bits_axis_map(_: Attrs, types: Types) -> AxisMap:
    """Return the axis map, which maps all axes of the data, its scales and its sums except the last one."""
    rank = require_tensor_type(types[0]).rank
    row = (*range(rank - 1), None)
    return AxisMap((row, row, row, *((None,) * rank for _ in types[3:])))


# --- samples


def _rows_with_special_values(rows: int, depth: int) -> Array:
    data = random_array((rows, depth))
    data[0, :5] = -0.0, 1e-39, 1e30, -0.5, 0.5
    data[-1, -1:] = np.inf
    return data


def _round_blocks_test_samples() -> Iterator[Sample]:
    for (rows, depth), block in (((3, 64), 32), ((2, 70), 16), ((2, 5), 8), ((1, 256), 256)):
        yield Sample(args=(_rows_with_special_values(rows, depth),), attrs=RoundBlocksAttrs(block_size=block))


def _quantize_blocks_test_samples() -> Iterator[Sample]:
    for (rows, depth), block in (((3, 64), 32), ((2, 70), 16), ((2, 5), 8), ((1, 256), 256)):
        yield Sample(args=(random_array((rows, depth)),), attrs=QuantizeBlocksAttrs(block_size=block))


def _dense_integer_bits_test_samples() -> Iterator[Sample]:
    cases: Any = (
        *((1, 64, 20, 4, 32, 16), (3, 32, 33, 4, 16, 32), (5, 32, 16, 8, 32, 16)),
        *((9, 16, 8, 8, 8, 8), (1, 64, 16, 4, 64, 16)),
    )
    for rows, depth, units, bits, block, tile in cases:
        integers, scale, zero = random_low_bit_weights(units, depth, bits, block)
        if rows % 2:
            scale = scale.astype(np.float16).astype(np.float32)
        packed = pack_weights_for_integer_products(integers, scale, zero, block, tile, ("float32", "float16"))
        assert packed is not None
        data = _quantize_blocks_reference(QuantizeBlocksAttrs(block_size=block), random_array((rows, depth)))
        attrs = DenseIntegerBitsAttrs(units=units, bits=bits, block_size=block)
        yield Sample(args=(*data, *packed.weight_scale_and_zero_arrays), attrs=attrs, accuracy=Accuracy.LOOSE)


contrib_round_blocks = OpDef(
    name="nn.contrib_round_blocks",
    attrs=RoundBlocksAttrs,
    args=declare_arguments("data"),
    pattern=OpPattern.OPAQUE,
    axes=axis_map_of_rows,
    infer=_infer_round_blocks_type,
    reference=_round_blocks_reference,
    expand=_expand_round_blocks,
    samples=_round_blocks_test_samples,
)

contrib_quantize_blocks = OpDef(
    name="nn.contrib_quantize_blocks",
    attrs=QuantizeBlocksAttrs,
    args=declare_arguments("data"),
    pattern=OpPattern.OPAQUE,
    infer=_infer_quantize_blocks_type,
    reference=_quantize_blocks_reference,
    compute=_compute_quantize_blocks,
    samples=_quantize_blocks_test_samples,
)

contrib_dense_integer_bits = OpDef(
    name="nn.contrib_dense_integer_bits",
    attrs=DenseIntegerBitsAttrs,
    args=declare_arguments("data", "data_scale", "data_sum", "weight", "scale", "zero"),
    pattern=OpPattern.OPAQUE,
    axes=_dense_integer_bits_axis_map,
    infer=_infer_dense_integer_bits_type,
    reference=_dense_integer_bits_reference,
    compute=_compute_dense_integer_bits,
    samples=_dense_integer_bits_test_samples,
)
