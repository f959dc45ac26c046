# SPDX-License-Identifier: Apache-2.0
"""What a tiling costs, and which tile sizes a machine can hold in registers.  Numbers in, numbers out.

tile_columns(get_target("x86-64-v4"), 2)          # 14: 28 accumulators, 2 vectors of weights, 1 broadcast
pack_block(64, get_target("x86-64-v4"), "float32")  # 32
"""

import math
from itertools import product
from typing import Final

from aotc.ir.dtype import DType
from aotc.tir.schedule.contraction.gpu_split_reduction import LEAST
from aotc.tir.schedule.contraction.tiling import Tiling
from aotc.tir.target import Dots, Target

#: Vectors of weights in a tile.
VECTORS: Final = (1, 2, 3, 4)
#: Rows from which on tiles of three vectors and fewer rows are faster where rows compete for one set of the cache.
MANY: Final = 32
#: How much longer a product of two vectors takes that are widened first, and multiplied by a slow instruction.
WIDENED: Final = 3
#: What finishing vectors takes, beside one by itself, where their bytes are narrowed and stored as a line of the cache.
#: Measured where weights fill at most half of the first-level cache: larger ones are read from the next one too often.
LINES: Final = 0.4
#: Packing in halves of vectors must take no more than this share of the time.
WORTH: Final = 0.9


def tile_columns(target: Target, vectors: int, lanes: int = 0, dots: Dots | None = None) -> int:
    """Columns beside so many vectors: accumulators, weights and one broadcast fill the registers.

    One where the registers do not suffice: the C compiler keeps some of these values in memory.
    """
    if target.is_scalar or lanes == 1:
        return dict(enumerate(target.tiles.scalar_columns, 1)).get(vectors, 1)
    groups, rows, held = (1, 1, 1) if dots is None else (dots.groups, dots.rows, dots.registers)
    columns = (target.registers - (vectors * groups + 1) * held) // vectors
    return max(1, columns // rows * rows)


def computed_lanes(target: Target, *dtypes: str) -> int:
    """Elements of a vector of accumulators (the first type); 1 where C vectors cannot hold a type."""
    types = [DType(d) for d in dtypes]
    if any(t.is_bool or t.bits < 8 for t in types):
        return 1
    return 1 if types[0].is_narrow_float else target.lanes(types[0])


def pack_block(n: int, target: Target, dtype: str, *, columns: int = 0, pitch: int = 0) -> int:
    """The block of weights of `n` output channels packed at compile time, 0 if they are better left alone.

    columns    output positions that share the weights, 0 if not known
    pitch      bytes from the data of one position to those of the next, 0 if they are not one after the other
    """
    if target.gpu is not None:  # neighboring threads load neighboring channels
        return 0 if n <= 2 or 0 < columns < LEAST else min(target.gpu.warp, -(-n // 4) * 4)
    acc = DType("float32") if DType(dtype).is_narrow_float else DType(dtype)
    acc = DType("int32") if acc.is_integer and acc.bits < 32 else acc
    lanes = computed_lanes(target, acc)
    if lanes == 1:
        return 4 if n > 2 else 0
    if n < lanes // 2:
        return 0
    vectors = -(-n // lanes)
    if columns == 1:
        most = min(4, vectors)
        least_padded = min(range(most, 0, -1), key=lambda v: -(-vectors // v) * v)
        return lanes * (least_padded if target.small else most)
    # higher tiles than the cache has ways lose lines before all of their elements are used
    competing = pitch > 0 and pitch % target.l1_stride == 0
    crowded = competing and columns >= MANY and tile_columns(target, 2, lanes) > target.l1_ways
    waste = {v: -(-vectors // v) * v for v in ((3, 2, 1) if crowded else (2, 3, 1)) if v <= vectors}
    least = min(waste.values())
    spare = 0 if target.small else least // 8
    block = lanes * next(v for v, w in waste.items() if w <= least + spare)
    if _per_cycle(target, lanes) > 1:
        return block
    # vectors of half the length, two at a time, may fit the channels better: 24 are 3 of 8, but 2 of 16
    halves = [lanes // 2 * v for v in (3, 1)]
    best = min(halves, key=lambda b: _position_cost(n, b, lanes // 2, target))
    worth = _position_cost(n, best, lanes // 2, target) < WORTH * _position_cost(n, block, lanes, target)
    return best if worth else block


def _per_cycle(target: Target, lanes: int) -> int:
    """Multiply-adds of vectors of so many 4-byte elements that begin in a cycle."""
    return min(2, max(1, target.fma_bytes // (4 * lanes)))


def _position_cost(n: int, block: int, lanes: int, target: Target) -> float:
    """Cycles of one product step for `n` channels at one position, weights packed in blocks."""
    vectors = block // lanes
    columns = tile_columns(target, vectors, lanes)
    return -(-n // block) * step_cost(target, vectors, columns, lanes) / columns


def step_cost(target: Target, xs: int, ys: int, lanes: int, along: bool = False, dots: Dots | None = None) -> float:
    """Cycles of one product step of a tile: multiply-adds, loads, or waiting for results.

    along   both operands are vectors, and every product needs one of its own
    dots    its products are sums of products of bytes
    """
    if dots is not None:
        sums = max(xs * ys, dots.latency * dots.rate) / dots.rate + (xs + ys) * dots.split
        return max(sums, (xs + ys) * target.tiles.broadcast)
    per_cycle, tiles = _per_cycle(target, lanes), target.tiles
    penalty = 1 if target.fma or lanes == 1 else 2
    chains = max(xs * ys, tiles.latency * per_cycle)
    if along:
        return max(chains * penalty, xs + xs * ys) / per_cycle
    loads = xs * tiles.load * 2 / per_cycle + ys * tiles.broadcast
    return max(chains / per_cycle * penalty, loads)


def waiting_cost(weight_bytes: int, passes: int, cycles: float, target: Target) -> float:
    """Cycles that the first of several passes over weights waits for memory, where they are not in a cache.

    A pass that does little with each weight is over before the next ones have come.
    """
    if weight_bytes <= target.l2:
        return 0.0
    return max(0.0, weight_bytes / target.memory_rate - cycles / passes)


def inside_share(tiling: Tiling) -> float:
    """The share of a tiling's products whose data is not padding, as far as its tiles leave out the others."""
    reduction = tiling.reduction
    extents = {axis.var: axis.extent for axis in tiling.levels}
    extents |= dict((*reduction.taps, *reduction.looped, *reduction.unrolled))
    share = 1.0
    for dim in () if tiling.product.fill else (*reduction.borders, *reduction.guards):
        names = list(dim.variables)
        if all(name in extents for name in names):
            places = list(product(*(range(extents[name]) for name in names)))
            share *= sum(dim.has(dict(zip(names, at, strict=True))) for at in places) / len(places)
    return share


def tiling_cost(tiling: Tiling, target: Target) -> float:
    """Cycles of a whole contraction, staging apart."""
    vector, tiled, along, cost = tiling.vector, tiling.tiled, tiling.product.along, target.tiles
    outer = math.prod(axis.extent for axis in tiling.levels if axis.role == "outer")
    straight = vector.var is tiling.output.axes[-1][0] or vector.lanes == 1
    dots = target.dots if tiling.product.group > 1 else None
    element = cost.finish_vector / vector.lanes if straight else cost.finish_element
    near = dots is not None and straight and 2 * tiling.product.x.buffer.nbytes <= target.l1
    total = 0.0
    for segments in product(*(axis.segments for axis in tiled)):
        count = math.prod(s.count for s in segments)
        sizes: dict[str, int] = {"x": 1, "y": 1}
        for axis, segment in zip(tiled, segments, strict=True):
            sizes[axis.role] *= len(segment.starts)
        elements = sizes["x"] * sizes["y"] * vector.lanes
        # bytes of a whole line of the cache are narrowed and stored at once
        lines = near and sizes["x"] * vector.lanes % target.line == 0
        finish = elements * element * (LINES if lines else 1) + cost.finish
        step = step_cost(target, sizes["x"], sizes["y"], vector.lanes, along, dots)
        if along and tiling.product.dtype.is_integer:
            step *= WIDENED
        total += count * (tiling.reduction.steps * step + finish)
    return outer * total
