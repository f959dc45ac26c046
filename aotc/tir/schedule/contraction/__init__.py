# SPDX-License-Identifier: Apache-2.0
"""The contraction generator: build a register-tiled loop nest for one contraction (a sum of
products).

Convolutions, depthwise convolutions, matrix products and batched matrix products are recognized by
how the indices of the operands depend on the axes, never by the name of an operator.

    >>> from aotc.tir import target, te
    >>> from aotc.tir.stmt import Store
    >>> x, w = te.placeholder((6, 9), "float32", "x"), te.placeholder((9, 64), "float32", "w")
    >>> rows, columns = lambda i, j, k: (i, k), lambda i, j, k: (k, j)
    >>> dense = te.contraction((6, 64), (9,), x, rows, w, columns, dtype="float32", lane=1)
    >>> a, b, y = (Buffer(tensor.name, tensor.dtype, tensor.size) for tensor in (x, w, dense))
    >>> store = lambda at, value: Store(y, te.flat_index(dense.shape, at), value)
    >>> found = cpu_tiling_candidates(dense, a, b, store, target.get_target("x86-64-v4"))
    >>> min(found, key=lambda candidate: candidate.cost).name
    'lanes axis=1 vectors=4 lanes=16'

Modules, in the order in which a contraction passes through them:

    contraction_index_analysis         the axes, and the operands' indices as affine expressions of
                                       them
    cpu_tilings_vector_along_weights   CPU tilings whose vectors run along the weights
    cpu_tilings_vector_along_data      CPU tilings whose vectors run along the data
    int8_depthwise                     CPU tilings of int8 depthwise convolutions, four kernel
                                       offsets per dot product
    tile_segments                      splits an axis into tiles of equal size and a remainder
    run_time_extents                   the typical extents of a contraction whose extents are known at
                                       run time only
    padded_strips                      strips of output positions that read a copy of their data with the
                                       border around it
    operand_packing                    one description of copies to scratch, shared memory and registers,
                                       and the generator of their loops
    operand_staging                    copies an operand with its padding to scratch, so that vector
                                       loads need no bounds checks
    tiling_completion                  completes a tiling: partial sums, scratch memory, estimated
                                       cost
    tiling_cost                        the cost model: cycles of a tiling, tile sizes that fit the
                                       registers
    tiling_choice                      picks the cheapest tiling, or the one that a measurement
                                       recorded
    register_tiling_types              a tiling as data: loops, products, reduction, output
    tile_loops                         emits the loops over tiles, of registers and of calls
    tile_loop_nest                     emits the multiply-adds of a tiling
    epilogue                           emits the code after the accumulation: bias, activation,
                                       requantization, stores
    arm_multi_group_dot_steps          reduction steps that issue several dot-product instructions
    instruction_selection              selects an instruction that finishes sums in memory, by its
                                       meaning for one element
    memory_kernels                     calls of memory micro-kernels
    memory_call_types                  how calls read the data, and their operands, as data
    memory_call_data                   the data in place, as a padded copy, or gathered run by run
                                       (im2col)
    gathered_data                      calls that read gathered data (Cortex-M DSP, Helium)
    strided_data                       calls that read data at constant distances (x86 AMX)
    contraction_operand                an operand of GPU schedules, with its fill value
    gpu_block_tiles                    one tile of the output per GPU thread block, operands in
                                       shared memory
    gpu_block_tile_shape               the tile of a GPU thread block: its threads, shared memory
                                       and registers
    gpu_tensor_cores                   multiplies block tiles by tensor cores (mma): float16, bfloat16,
                                       TF32, int8
    gpu_dp4a                           operands of int8 block tiles, in words of four bytes
    shared_memory_copies               asynchronous copies from global to shared memory
    gpu_split_reduction                matrix-vector products: the threads of a block split the
                                       reduction
    untiled_contraction                the loop nest of the definition, used where no tiling applies

Every module of tilings offers candidates, of the micro-kernels of the target
(`aotc.tir.micro_kernels`), each with its cost in cycles; `tiling_choice` picks one of them all.

Packed layouts appear only in the indices of an operand (`o // 32, k, o % 32`);
`contraction_index_analysis.ChannelSplit` makes them affine within a tile. Tile sizes are constants;
the number of tiles (`tile_segments.TileSegment.count`) becomes a trip count.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from aotc.tir import Buffer, Expr, Target, Var, te
from aotc.tir.micro_kernels import MULTIPLY_ADD, MicroKernel
from aotc.tir.schedule.contraction import untiled_contraction
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    analyze_operand_dims_and_output_axes,
    move_taps_before_reduction_axes,
    split_grouped_channel_axis,
    split_reduction_into_dot_groups,
)
from aotc.tir.schedule.contraction.cpu_tilings_vector_along_data import tilings_vectorized_along_data
from aotc.tir.schedule.contraction.cpu_tilings_vector_along_weights import tilings_vectorized_along_weights
from aotc.tir.schedule.contraction.gpu_block_tiles import gpu_tiling_candidates
from aotc.tir.schedule.contraction.int8_depthwise import int8_depthwise_tilings
from aotc.tir.schedule.contraction.memory_kernels import memory_kernel_candidates
from aotc.tir.schedule.contraction.padded_strips import copy_data_in_padded_strips
from aotc.tir.schedule.contraction.run_time_extents import RunTimeExtents, contraction_of_typical_size, merge_row_axes
from aotc.tir.schedule.contraction.tiling_choice import choose_tiling
from aotc.tir.schedule.contraction.tiling_completion import TilingCandidate, TilingRequest
from aotc.tir.schedule.contraction.tiling_cost import accumulator_lanes, weight_packing_block_size
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest, StoreFn
from aotc.tir.stmt import Block, Number, loop_nest

__all__ = [
    "ContractionNest",
    "StoreFn",
    "build_contraction_nest",
    "build_contraction_nest_of_parts",
    "build_contraction_nest_of_run_time_extents",
    "cpu_tiling_candidates",
    "tiling_candidates",
    "weight_packing_block_size",
]


def build_contraction_nest(
    contraction: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target, *, is_whole_kernel: bool = False
) -> ContractionNest:
    """Return the loop nest that computes the contraction `contraction` from the buffers of its
    operands.

    `store(indices of the output axes, value)` returns the statement that finishes one element; it
    is called for every element exactly once. The order of summation depends on shapes, target and
    chooser only (kernel offsets at a border are outermost loops; small tiles have several partial
    sums), never on data; on shapes alone if the target is `ordered`.

    Thread blocks are the outermost loops of a kernel, so that GPU tilings apply if `is_whole_kernel`.
    Where no tiling fits, the nest is that of the definition, with one thread per element on a GPU.
    """
    is_tiled = target.gpu is None or is_whole_kernel
    candidates = tiling_candidates(contraction, a, b, store, target) if is_tiled else []
    contraction = move_taps_before_reduction_axes(contraction) if target.ordered else contraction
    if not candidates:
        return untiled_contraction.build_untiled_contraction(contraction, a, b, store)
    return choose_tiling(contraction, a, b, target, candidates).build_loop_nests()


def tiling_candidates(
    contraction: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target
) -> Sequence[TilingCandidate]:
    """Return every way to compute `contraction` by micro-kernels of a CPU, or as a whole kernel of a
    GPU, each with its cost in cycles; none if no micro-kernel fits.
    """
    candidates = cpu_tiling_candidates if target.gpu is None else gpu_tiling_candidates
    return candidates(contraction, a, b, store, target)


def cpu_tiling_candidates(
    contraction: te.Contraction,
    a: Buffer,
    b: Buffer,
    store: StoreFn,
    target: Target,
    run_time: RunTimeExtents | None = None,
) -> list[TilingCandidate]:
    """Return every way to compute `contraction` on a CPU by micro-kernels, each with its cost in
    cycles; none if the contraction is empty or has no form that a micro-kernel accepts.

    run_time    extents of a run, if `contraction` has typical ones; only tilings that vectorize along weights
                are generated then
    """
    if any(extent == 0 for _, extent in (*contraction.axes, *contraction.reduce_axes)):
        return []
    kernels = [k for k in target.micro_kernels if k.accepts_types(a.dtype, b.dtype, contraction.dtype)]
    candidates: list[TilingCandidate] = []
    for kernel in kernels:
        if kernel.level == "memory" and run_time is None:
            request = _tiling_request(contraction, a, b, store, target, 1, kernel)
            candidates += [] if request is None else memory_kernel_candidates(contraction, request)
    contraction = move_taps_before_reduction_axes(contraction) if target.ordered else contraction
    contraction, joined = split_grouped_channel_axis(contraction)
    finish = (lambda at, value: store(joined(at), value)) if joined is not tuple else store
    lanes = accumulator_lanes(target, contraction.dtype, a.dtype, b.dtype)
    on_vectors = [k for k in kernels if k.level == "registers" and k.group > 1 and k.groups == 1]
    dots = [k for k in on_vectors if lanes in (k.lanes or (lanes,))]
    for kernel in (*dots, MULTIPLY_ADD):
        request = _tiling_request(contraction, a, b, finish, target, lanes, kernel)
        is_every_generator = kernel.group == 1 and run_time is None
        for tilings in _REGISTER_TILING_GENERATORS if is_every_generator else _REGISTER_TILING_GENERATORS[:1]:
            candidates += [] if request is None else tilings(replace(request, run_time=run_time))
    return candidates


def build_contraction_nest_of_run_time_extents(
    contraction: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target, numbers: Sequence[Number]
) -> ContractionNest | None:
    """Return the loop nest of a contraction with extents that are known at run time only, by the tiling
    that is cheapest at the largest sizes; None if no tiling fits, for a target without vectors, and for GPUs.

    numbers    the sizes of the kernel
    """
    if target.is_scalar or target.gpu is not None:
        return None
    contraction, joined = split_grouped_channel_axis(contraction)
    if contraction_of_typical_size(contraction, numbers) is not None:
        return build_contraction_nest_of_parts(contraction, a, b, lambda at, v: store(joined(at), v), target, numbers)
    strip = copy_data_in_padded_strips(contraction, a, target)
    if strip is None:
        return None
    whole = strip.whole_index
    nest = build_contraction_nest_of_parts(
        strip.contraction,
        strip.buffer,
        b,
        lambda at, v: store(joined(whole(at)), v),
        target,
        numbers,
        {strip.axis: strip.part},
    )
    if nest is None:
        return None
    stmt = loop_nest(strip.loops, Block((strip.copy, nest.stmt)), "independent")
    return replace(nest, stmt=stmt, workspace=(strip.buffer, *nest.workspace))


def build_contraction_nest_of_parts(
    contraction: te.Contraction,
    a: Buffer,
    b: Buffer,
    store: StoreFn,
    target: Target,
    numbers: Sequence[Number],
    parts: Mapping[Var, tuple[Expr, Expr]] = MappingProxyType({}),
) -> ContractionNest | None:
    """Return the loop nest of a contraction that reads nothing out of range, by the tiling that is cheapest at the
    largest sizes; None if no tiling fits, or if it may read out of range.

    parts    for axes that are parts of longer ones: the positions there at which the part begins and ends
    """
    contraction, joined = merge_row_axes(contraction)
    found = contraction_of_typical_size(contraction, numbers)
    if found is None:
        return None
    typical, run_time = found
    run_time = run_time.with_parts(parts)
    candidates = cpu_tiling_candidates(typical, a, b, lambda at, v: store(joined(at), v), target, run_time)
    return choose_tiling(typical, a, b, target, candidates).build_loop_nests() if candidates else None


def _tiling_request(
    contraction: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target, lanes: int, kernel: MicroKernel
) -> TilingRequest | None:
    """Return the contraction as a micro-kernel computes it, with its reduction in groups; None if
    the weights are packed in another way than a memory micro-kernel reads them, or if no reduction axis
    can be divided.
    """
    layout = (contraction.group, contraction.block)
    if kernel.level == "memory" and layout != ((kernel.group, kernel.block) if kernel.weights == "blocks" else (0, 0)):
        return None
    if kernel.group == 1:
        analysis = analyze_operand_dims_and_output_axes(contraction)
        return None if analysis is None else TilingRequest(analysis, None, a, b, store, target, lanes, kernel)
    if contraction.group not in (0, kernel.group):
        return None
    grouped = split_reduction_into_dot_groups(contraction, kernel.group)
    return None if grouped is None else TilingRequest(*grouped, a, b, store, target, lanes, kernel)


#: Functions that return the register tilings of a micro-kernel; only the first one for dot products.
_REGISTER_TILING_GENERATORS: Final[Sequence[Callable[[TilingRequest], Sequence[TilingCandidate]]]] = (
    tilings_vectorized_along_weights,
    tilings_vectorized_along_data,
    int8_depthwise_tilings,
)
