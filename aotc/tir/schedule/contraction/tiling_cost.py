# SPDX-License-Identifier: Apache-2.0
"""Cost model of contractions: cycles of register tilings, of calls of micro-kernels, of tiles of GPU
thread blocks and of split reductions, and the tile sizes whose accumulators fit in the vector registers.

max_tile_columns(get_target("x86-64-v4"), 2)      # 14: 28 accumulators, 2 vectors of weights, 1 broadcast
weight_packing_block_size(64, get_target("x86-64-v4"), "float32")  # 32
"""

import math
from itertools import product
from typing import Final

from aotc.ir.dtype import DType
from aotc.tir.micro_kernels import MULTIPLY_ADD, MicroKernel
from aotc.tir.schedule.contraction.gpu_block_tile_shape import BlockTile
from aotc.tir.schedule.contraction.operand_staging import StridedWalk
from aotc.tir.schedule.contraction.register_tiling_types import RegisterTiling
from aotc.tir.target import Gpu, Target

#: Numbers of weight vectors of a tile that are tried.
CANDIDATE_VECTORS_PER_TILE: Final = (1, 2, 3, 4)
#: Smallest number of channels in a block of packed weights: the elements of the shortest vector.
MIN_BLOCK_CHANNELS: Final = 4
#: Packing for vectors of half the width must take at most this fraction of the time.
MAX_HALF_WIDTH_TIME_FRACTION: Final = 0.9


def max_tile_columns(target: Target, weight_vectors: int, lanes: int = 0, kernel: MicroKernel = MULTIPLY_ADD) -> int:
    """Return the number of output columns of a tile with `weight_vectors` vectors of weights, such
    that its registers suffice.

    Accumulators, weights and one broadcast value need registers. Return 1 where even one column
    does not fit: then the C compiler spills to memory.
    """
    if target.is_scalar or lanes == 1:
        return dict(enumerate(target.tiles.scalar_columns, 1)).get(weight_vectors, 1)
    operand_registers = (weight_vectors * kernel.groups + 1) * kernel.registers
    columns = (target.registers - operand_registers) // weight_vectors
    return max(1, columns // kernel.positions * kernel.positions)


def accumulator_lanes(target: Target, *dtypes: str) -> int:
    """Return the elements of a vector of accumulators (of the first type); 1 if C vectors cannot
    hold one of the types.
    """
    types = [DType(d) for d in dtypes]
    if any(t.is_bool or t.bits < 8 for t in types):
        return 1
    return 1 if types[0].is_narrow_float else target.lanes(types[0])


def weight_packing_block_size(
    output_channels: int, target: Target, dtype: str, *, output_positions: int = 0, position_pitch_bytes: int = 0
) -> int:
    """Return the block size for packing the weights of `output_channels` output channels at compile
    time; 0 if they should not be packed.

    output_positions        output positions that share the weights, 0 if unknown
    position_pitch_bytes    bytes from the data of one position to the data of the next, 0 if it varies
    """
    if target.gpu is not None:  # neighboring threads load neighboring channels
        return (
            0
            if output_channels <= 2 or 0 < output_positions < target.gpu.costs.min_gemm_side
            else min(target.gpu.warp, -(-output_channels // 4) * 4)
        )
    acc = DType("float32") if DType(dtype).is_narrow_float else DType(dtype)
    acc = DType("int32") if acc.is_integer and acc.bits < 32 else acc
    lanes = accumulator_lanes(target, acc)
    if lanes == 1:
        return 4 if output_channels > 2 else 0
    if output_channels < lanes // 2:
        return _packing_block_size_for_few_channels(output_channels, output_positions, lanes, may_pad=not target.small)
    vectors = -(-output_channels // lanes)
    if output_positions == 1:
        most = min(4, vectors)
        least_padded = min(range(most, 0, -1), key=lambda v: -(-vectors // v) * v)
        return lanes * (least_padded if target.small else most)
    # tiles with more rows than the cache has ways evict lines before all of their elements are used
    competing = position_pitch_bytes > 0 and position_pitch_bytes % target.l1_stride == 0
    crowded = (
        competing
        and output_positions >= target.tiles.three_vector_rows
        and max_tile_columns(target, 2, lanes) > target.l1_ways
    )
    waste = {v: -(-vectors // v) * v for v in ((3, 2, 1) if crowded else (2, 3, 1)) if v <= vectors}
    least = min(waste.values())
    spare = 0 if target.small else least // 8
    block = lanes * next(v for v, w in waste.items() if w <= least + spare)
    if _vector_multiply_adds_per_cycle(target, lanes) > 1:
        return block
    # vectors of half the length, two per cycle, may fit the channels better: 24 are 3 of 8, but 2
    # of 16
    halves = [lanes // 2 * v for v in (3, 1)]
    best = min(halves, key=lambda b: _reduction_step_cycles_per_position(output_channels, b, lanes // 2, target))
    worth = _reduction_step_cycles_per_position(
        output_channels, best, lanes // 2, target
    ) < MAX_HALF_WIDTH_TIME_FRACTION * _reduction_step_cycles_per_position(output_channels, block, lanes, target)
    return best if worth else block


def _packing_block_size_for_few_channels(output_channels: int, output_positions: int, lanes: int, may_pad: bool) -> int:
    """Return the block size for packing fewer output channels than half a vector of `lanes`
    elements; 0 if they should not be packed.

    With so few output positions that vectors along them are impossible, weights that are not packed
    would be transposed in every run.
    """
    block = max(MIN_BLOCK_CHANNELS, 1 << (output_channels - 1).bit_length())
    is_packed = output_channels > 2 and 0 < output_positions < lanes // 2
    return block if is_packed and (may_pad or block == output_channels) else 0


def _vector_multiply_adds_per_cycle(target: Target, lanes: int) -> int:
    """Return the number of multiply-adds per cycle for vectors of `lanes` 4-byte elements."""
    return min(2, max(1, target.fma_bytes // (4 * lanes)))


def _reduction_step_cycles_per_position(channels: int, channels_per_block: int, lanes: int, target: Target) -> float:
    """Return the cycles of one reduction step for `channels` channels at one position, with weights
    packed in blocks.
    """
    vectors = channels_per_block // lanes
    columns = max_tile_columns(target, vectors, lanes)
    return -(-channels // channels_per_block) * reduction_step_cycles(target, vectors, columns, lanes) / columns


def reduction_step_cycles(
    target: Target,
    x_vectors: int,
    y_elements: int,
    lanes: int,
    are_both_vectors: bool = False,
    kernel: MicroKernel = MULTIPLY_ADD,
    widens: bool = False,
) -> float:
    """Return the cycles of one reduction step of a tile: the maximum of multiply-adds, loads, and
    latency of the results.

    x_vectors, y_elements    vectors of the first operand, and elements of the second operand
    are_both_vectors         both operands are vectors, and every product loads a vector of its own
    kernel                   the micro-kernel that multiplies
    widens                   vectors of the first operand are converted to a wider type when they are loaded
    """
    if kernel.group > 1:
        chains = max(x_vectors * y_elements, kernel.latency * kernel.rate)
        if are_both_vectors:
            return max(chains / kernel.vector_rate, x_vectors * (1 + y_elements) * target.tiles.broadcast)
        sums = chains / kernel.rate + (x_vectors + y_elements) * kernel.split
        return max(sums, (x_vectors + y_elements) * target.tiles.broadcast)
    per_cycle, tiles = _vector_multiply_adds_per_cycle(target, lanes), target.tiles
    penalty = 1 if target.fma or lanes == 1 else 2
    chains = max(x_vectors * y_elements, tiles.latency * per_cycle)
    if are_both_vectors:
        vector_loads = x_vectors + x_vectors * y_elements
        address_cycles = max(0, vector_loads - tiles.load_addresses) * tiles.load_address
        return max(chains * penalty, vector_loads) / per_cycle + address_cycles
    loads = x_vectors * tiles.load * 2 / per_cycle + y_elements * tiles.broadcast
    loads += x_vectors * tiles.widened_load if widens else 0
    return max(chains / per_cycle * penalty, loads)


def memory_kernel_cycles(
    target: Target, kernel: MicroKernel, *, calls: float, tiles: float, runs: float, copies: float, sums: float
) -> float:
    """Return the cycles of a contraction by calls of a micro-kernel that reads operands from memory.

    calls, tiles     number of calls, and of tiles (`kernel.positions` x `outputs` x `depth`) in all calls
    runs, copies     runs (contiguous data of a position) that im2col copies, and their elements or
                     vectors, one of which it copies in a cycle
    sums             number of sums, which are stored, loaded again and finished
    """
    # each vector of sums (or each sum, without vectors) is loaded in a cycle and finished
    finish = 1 + target.tiles.finish_element if target.is_scalar else (1 + target.tiles.finish_vector) / kernel.block
    packing = runs * kernel.run_cycles + copies
    return calls * kernel.call_cycles + tiles * kernel.tile_cycles + packing + sums * finish


def weight_load_wait_cycles(
    weight_bytes: int, passes: int, compute_cycles_of_all_passes: float, target: Target
) -> float:
    """Return the cycles that the first of several passes over the weights waits for memory; 0 if
    the weights fit in the cache.

    Computation overlaps with the loads, so that only passes with little computation per weight
    wait.
    """
    if weight_bytes <= target.l2:
        return 0.0
    return max(0.0, weight_bytes / target.memory_rate - compute_cycles_of_all_passes / passes)


def fraction_of_unpadded_products(tiling: RegisterTiling) -> float:
    """Return the fraction of a tiling's products whose data is not padding; its tiles compute only
    that fraction.
    """
    reduction = tiling.reduction
    extents = {axis.var: axis.extent for axis in tiling.levels}
    extents |= dict((*reduction.taps, *reduction.looped, *reduction.unrolled))
    share = 1.0
    for dim in () if tiling.product.fill else (*reduction.borders, *reduction.guards):
        if extents.keys() >= dim.index.terms.keys():
            share *= dim.estimated_points_with_index_in_range(extents) / math.prod(
                extents[var] for var in dim.variables_of_index
            )
    return share


def interleaving_cycles(vectors: float) -> float:
    """Return the cycles of interleaving vectors of bytes four by four and storing the results: three
    shuffles for each vector, two in a cycle, with which the stores overlap.
    """
    return vectors * 3 / 2


def tiling_cycles(
    tiling: RegisterTiling, target: Target, *, kernel: MicroKernel | None = None, steps: float | None = None
) -> float:
    """Return the cycles of a whole tiled contraction, without copying operands to scratch.

    kernel, steps    the micro-kernel, and the steps of each accumulator, if `tiling.accumulate` makes the products
    """
    vector, tiled, along, cost = tiling.vector_axis, tiling.register_tile_axes, tiling.product.along, target.tiles
    outer = math.prod(axis.extent for axis in tiling.levels if axis.role == "outer")
    straight = vector.var is tiling.output.axes[-1][0] or vector.lanes == 1
    kernel = kernel or tiling.product.kernel
    element = cost.finish_vector / vector.lanes if straight else cost.finish_element
    near = kernel.group > 1 and kernel.sums == "int32" and straight and 2 * tiling.product.x.buffer.nbytes <= target.l1
    widens = _widens_vectors(tiling)
    if steps is None:
        steps = tiling.reduction.products_per_output * fraction_of_unpadded_products(tiling)
    total = 0.0
    for segments in product(*(axis.segments for axis in tiled)):
        count = math.prod(s.count for s in segments)
        sizes: dict[str, int] = {"x": 1, "y": 1}
        for axis, segment in zip(tiled, segments, strict=True):
            sizes[axis.role] *= len(segment.starts)
        elements = sizes["x"] * sizes["y"] * vector.lanes
        # bytes of a whole cache line are narrowed and stored at once
        lines = near and sizes["x"] * vector.lanes % target.line == 0
        finish = elements * element * (cost.finish_line_ratio if lines else 1) + cost.finish
        step = reduction_step_cycles(target, sizes["x"], sizes["y"], vector.lanes, along, kernel, widens)
        if along and kernel.group == 1 and tiling.product.dtype.is_integer:
            step *= cost.widened_products
        total += count * (steps * step + finish)
    return outer * total + _strided_store_cycles(tiling, target)


def _widens_vectors(tiling: RegisterTiling) -> bool:
    """Return True if a tiling loads vectors of integers that are narrower than its sums."""
    product = tiling.product
    is_widened = product.x.buffer.dtype.itemsize < product.dtype.itemsize and product.kernel.group == 1
    return is_widened and product.dtype.is_integer and product.lanes > 1


def _strided_store_cycles(tiling: RegisterTiling, target: Target) -> float:
    """Return the cycles in which stores of integers wait for cache lines, whose other elements are stored
    by later iterations of an outer loop over the last axis of the output.

    Results are assumed to be bytes. Floats have no such term: the costs of their tilings were fitted without
    it.
    """
    var, extent = tiling.output.axes[-1]
    place = next((k for k, axis in enumerate(tiling.levels) if axis.var is var), None)
    if place is None or tiling.vector_axis.var is var or not tiling.product.dtype.is_integer:
        return 0.0
    inside = math.prod(axis.extent for axis in tiling.levels[place + 1 :])
    walks = math.prod(axis.extent for axis in tiling.levels[:place]) * tiling.levels[place].tile_count_of_all_segments
    return walks * strided_walk_cycles(StridedWalk(inside, extent), target)


def strided_walk_cycles(walk: StridedWalk, target: Target) -> float:
    """Return the cycles in which a walk over elements at a constant distance waits for cache lines.

    If the lines of the walk do not fit in the first-level cache, they have been evicted when their next
    elements are accessed, so each access reads a line again. There is no wait for targets without vectors,
    most of which have no cache.
    """
    lines = walk.elements * min(1.0, walk.stride_bytes / target.line)
    line_bytes = lines * target.line
    if target.is_scalar or line_bytes <= target.l1:
        return 0.0
    return lines * (target.tiles.l2_line if line_bytes <= target.l2 else target.line / target.memory_rate)


def block_tile_cycles(tile: BlockTile, rows: int, columns: int, batch: int, steps: int, gpu: Gpu) -> float:
    """Return the cycles of a GPU multiprocessor for `batch` products of `rows` by `columns` elements
    and `steps` reduction steps, by tiles of thread blocks.

    Counts the multiplication, copies to shared memory, and adding the sums of groups and blocks.
    """
    costs, splits = gpu.costs, tile.shape.splits
    share = -(-tile.tile_count(rows, columns, batch) * splits // gpu.processors)
    copied = (
        costs.copied_element * tile.shape.depth * (tile.tile_rows + tile.tile_columns) / costs.multiply_adds_per_cycle
    )
    work = share * (tile.cycles_per_operand_piece(costs) + copied)
    summed = tile.shared_elements_for_thread_group_sums + (splits + 1) * tile.tile_elements * (splits > 1)
    latency = costs.memory_latency_cycles
    last = share * summed / costs.sums_per_cycle + costs.last_block_accesses * latency * (splits > 1)
    return -(-steps // tile.shape.depth) / splits * max(work, latency) + last


def split_reduction_cycles(
    blocks: int, threads_per_sum: int, elements: int, steps: int, threads: int, gpu: Gpu
) -> float:
    """Return the cycles of a GPU for `elements` sums of `steps` products, each divided among the threads
    of a block.

    blocks             thread blocks, of `threads` threads
    threads_per_sum    threads among which a sum is divided

    Each thread waits for a load in each step. Blocks beyond those that have enough loads in flight
    take more time; fewer blocks wait for the steps of one thread.
    """
    costs = gpu.costs
    resident = costs.loading_blocks * gpu.processors
    rounds = elements * steps / (resident * threads) if blocks >= resident else steps / threads_per_sum
    return rounds * costs.memory_latency_cycles + threads_per_sum / costs.sums_per_cycle
