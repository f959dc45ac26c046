# SPDX-License-Identifier: Apache-2.0
"""nn.contrib_dense_bits: dense layer with block-quantized weights of 2, 4 or 8 bits.

packed = pack_quantized_weights(integers, scale, zero, tile_units=64)  # integers (N, K), scale (N, K / 32)
parts = map(const, packed.weight_scale_and_zero_arrays)
nn.contrib_dense_bits(x, *parts, units=N, bits=packed.bits, block_size=32)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aotc.ir import (
    Attrs,
    AxisMap,
    Dim,
    OpPattern,
    TensorType,
    Type,
    Types,
    declare_arguments,
    frozen,
    product_of_dims,
    require,
    require_static_shape,
)
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
from aotc.tir import Tensor, const, te
from aotc.tir.schedule.algorithms.low_bit_weight_matmul import UINT32, PackedProduct, build_packed_low_bit_weight_matmul


class DenseBitsAttrs(Attrs):
    """data (..., K) times the transpose of scale * (weight - zero) (N, K), in float32: a result
    (..., N).

    weight   uint32 (tiles, ceil(K / fields), tile): integers of `bits` bits packed along K, the first in the lowest
             bits, for tiles of consecutive units
    scale    (tiles, ceil(K / block_size), tile): one scale for `block_size` consecutive weights along K
    zero     2 ** bits + the zero points, in the shape of the scales, or one value: (1, 1, 1)

    The sum of a block is multiplied by its scale. With `scale_first` each weight is multiplied
    instead, so that no sum overflows.
    """

    units: int
    bits: int
    block_size: int
    scale_first: bool = False


@frozen
class PackedWeights:
    """Weights, scales and zero points in the tiled layout of an operator; `bits` is 2, 4 or 8."""

    weight: Array
    scale: Array
    zero: Array
    bits: int

    @property
    def weight_scale_and_zero_arrays(self) -> tuple[Array, Array, Array]:
        return self.weight, self.scale, self.zero


def pack_quantized_weights(integers: Array, scale: Array, zero: Array, tile_units: int) -> PackedWeights | None:
    """Pack integer weights (N, K) with float32 scales and zero points (N, blocks) into the
    operator's layout.

    Zero points may have any value; they are stored relative to the smallest integer. Return None if
    the integers span more than 8 bits.
    """
    low = int(integers.min())
    span = int(integers.max()) - low
    bits = next((b for b in (2, 4, 8) if span < 1 << b), 0)
    if not bits:
        return None
    fields = UINT32.bits // bits
    units, depth = integers.shape
    words = np.zeros((-(-units // tile_units) * tile_units, -(-depth // fields)), np.uint32)
    for field in range(fields):
        part = (integers[:, field::fields].astype(np.int64) - low).astype(np.uint32)
        words[:units, : part.shape[1]] |= part << np.uint32(field * bits)
    biased_zero = (zero.astype(np.float64) - low + (1 << bits)).astype(np.float32)
    same = (biased_zero == biased_zero.flat[0]).all()
    numbers = biased_zero[:1, :1, None] if same else rows_to_tiles(biased_zero, tile_units)
    return PackedWeights(
        rows_to_tiles(words, tile_units), rows_to_tiles(scale, tile_units), np.ascontiguousarray(numbers), bits
    )


def rows_to_tiles(rows: Array, tile: int) -> Array:
    """Return an array (N, K) as (ceil(N / tile), K, tile), with zeros for rows after N."""
    padded = np.pad(rows, ((0, -len(rows) % tile), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, tile, rows.shape[1]).swapaxes(1, 2))


def tiles_to_rows(tiles: Array, units: int) -> Array:
    """Return the first N rows of an array (tiles, K, tile) of `rows_to_tiles` as (N, K)."""
    return np.asarray(tiles.swapaxes(1, 2).reshape(-1, tiles.shape[1])[:units])


def _packed_product_sizes(a: DenseBitsAttrs, data_shape: Sequence[Dim], tile: int) -> PackedProduct:
    rows, depth = product_of_dims(data_shape[:-1]), require_known_row_length(data_shape)
    return PackedProduct(rows, depth, a.units, a.bits, a.block_size, tile, a.scale_first)


def require_known_row_length(shape: Sequence[Dim]) -> int:
    """Return the last dimension; raise AotcError (code "dense.bits") if it is known at run time only."""
    depth = shape[-1]
    require("dense.bits", isinstance(depth, int), lambda: f"rows of {depth} elements have no known length")
    assert isinstance(depth, int)
    return depth


def _infer_dense_bits_type(a: DenseBitsAttrs, types: Types) -> Type:
    data, (weight, scale, zero) = (
        require_tensor_type(types[0]),
        (require_tensor_of_rank("dense.weight-rank", t, 3, "a part") for t in types[1:]),
    )
    require_dtype(data.dtype, {data.dtype, scale.dtype, zero.dtype} == {"float32"} and weight.dtype == UINT32)
    require("dense.bits", a.bits in (2, 4, 8) and a.block_size > 0, "bits must be 2, 4 or 8, and block_size positive")
    require("dense.bits", data.rank > 0, lambda: f"{data} has no rows")
    require_known_row_length(data.shape)
    tile = weight.static_shape[2]
    product = _packed_product_sizes(a, data.shape, tile)
    whole = a.block_size % product.integers_per_word == 0 or product.scales_per_column == 1
    require("dense.bits", whole, f"blocks of {a.block_size} integers of {a.bits} bits do not fill whole 32-bit words")
    tiles = -(-a.units // max(tile, 1))
    shapes = (tiles, product.words_per_column, tile), (tiles, product.scales_per_column, tile)
    fits = (weight.shape, scale.shape) == shapes and zero.shape in (shapes[1], (1, 1, 1))
    require("dense.bits", fits, lambda: f"{weight}, {scale} and {zero} do not fit {a.units} units of {data}")
    return TensorType((*data.shape[:-1], a.units), data.dtype)


def _dense_bits_reference(a: DenseBitsAttrs, data: Array, weight: Array, scale: Array, zero: Array) -> Array:
    product = _packed_product_sizes(a, data.shape, weight.shape[2])
    shifts = np.arange(0, UINT32.bits, a.bits, dtype=np.uint32)
    words = tiles_to_rows(weight, a.units)
    integers = (words[..., None] >> shifts & np.uint32((1 << a.bits) - 1)).reshape(a.units, -1)[:, : product.depth]
    zeros = np.broadcast_to(zero, scale.shape)
    scales, zeros = (np.repeat(tiles_to_rows(v, a.units), a.block_size, 1)[:, : product.depth] for v in (scale, zeros))
    real = (integers.astype(np.float32) - (zeros - np.float32(1 << a.bits))) * scales
    return np.asarray(data @ real.T)


def _compute_dense_bits(a: DenseBitsAttrs, data: Tensor, *parts: Tensor) -> Tensor:
    product = _packed_product_sizes(a, data.shape, require_static_shape(parts[0].shape)[2])
    shape = (*data.shape[:-1], a.units)
    if product.rows == 0:
        return te.compute(shape, lambda *_: const(0.0, "float32"), "dense")
    kinds = [(shape, data.dtype)]
    return te.extern_for_target(
        "dense",
        kinds,
        (data, *parts),
        lambda target: build_packed_low_bit_weight_matmul(product, target),
        macs=product.macs,
        takes_sizes=True,
    )[0]


def random_low_bit_weights(units: int, depth: int, bits: int, block: int) -> tuple[Array, Array, Array]:
    """Return integers (units, depth) of `bits` bits, and scales (float32) and zero points (units, blocks) for blocks of
    `block` integers; the zero points are equal if the number of units is even.
    """
    rng = np.random.default_rng(depth)
    integers = rng.integers(0, 1 << bits, (units, depth))
    integers.flat[:2] = 0, (1 << bits) - 1
    blocks = -(-depth // block)
    zero = rng.integers(0, 1 << bits, (units, blocks)) if units % 2 else np.full((units, blocks), 3)
    return integers, rng.uniform(0.1, 1, (units, blocks)).astype(np.float32), zero


def _dense_bits_test_samples() -> Iterator[Sample]:
    cases: Any = (
        *((1, 64, 40, 4, 32, 16), (3, 70, 33, 4, 16, 16), (1, 37, 5, 2, 64, 4), (7, 24, 64, 8, 8, 64)),
        *((2, 3, 16, 4, 64, 16), (1, 96, 130, 4, 32, 64), (17, 44, 20, 4, 8, 16)),
    )
    for rows, depth, units, bits, block, tile in cases:
        integers, scale, zero = random_low_bit_weights(units, depth, bits, block)
        packed_weights = pack_quantized_weights(integers, scale, zero, tile)
        assert packed_weights is not None
        for first in (False, True):
            attrs = DenseBitsAttrs(units=units, bits=bits, block_size=block, scale_first=first)
            yield Sample(
                args=(random_array((rows, depth)), *packed_weights.weight_scale_and_zero_arrays),
                attrs=attrs,
                accuracy=Accuracy.LOOSE,
            )


def axis_map_of_rows(_: Attrs, types: Types) -> AxisMap:
    """Return the axis map of a dense layer, which maps all axes of the data except the last one."""
    rank = require_tensor_type(types[0]).rank
    return AxisMap(((*range(rank - 1), None), *((None,) * rank for _ in types[1:])))


contrib_dense_bits = OpDef(
    name="nn.contrib_dense_bits",
    attrs=DenseBitsAttrs,
    args=declare_arguments("data", "weight", "scale", "zero"),
    pattern=OpPattern.OPAQUE,
    axes=axis_map_of_rows,
    infer=_infer_dense_bits_type,
    reference=_dense_bits_reference,
    compute=_compute_dense_bits,
    samples=_dense_bits_test_samples,
)
