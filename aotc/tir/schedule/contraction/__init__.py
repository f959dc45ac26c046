# SPDX-License-Identifier: Apache-2.0
"""The contraction generator: build a register-tiled loop nest for one contraction (a sum of products).

Convolutions, depthwise convolutions, matrix products and batched matrix products are recognized by how the indices of
the operands depend on the axes, never by the name of an operator.

    >>> from aotc.tir import target, te
    >>> from aotc.tir.stmt import Store
    >>> x, w = te.placeholder((6, 9), "float32", "x"), te.placeholder((9, 64), "float32", "w")
    >>> rows, columns = lambda i, j, k: (i, k), lambda i, j, k: (k, j)
    >>> dense = te.contraction((6, 64), (9,), x, rows, w, columns, dtype="float32", lane=1)
    >>> a, b, y = (Buffer(tensor.name, tensor.dtype, tensor.size) for tensor in (x, w, dense))
    >>> store = lambda at, value: Store(y, te.flat_index(dense.shape, at), value)
    >>> found = candidates(dense, a, b, store, target.get_target("x86-64-v4"))
    >>> min(found, key=lambda candidate: candidate.cost).name
    'lanes axis=1 vectors=4 lanes=16'

Modules, in the order in which a contraction passes through them:

    index_space             the axes, and the operands' indices as affine expressions of them
    cpu_weight_vectors      CPU tilings whose vectors run along the weights
    cpu_data_vectors        CPU tilings whose vectors run along the data
    int8_depthwise          CPU tilings of int8 depthwise convolutions, four kernel offsets per dot product
    tile_segments           splits an axis into tiles of equal size and a remainder
    operand_staging         copies an operand with its padding to scratch, so that vector loads need no bounds checks
    tiling_candidate        completes a tiling: partial sums, scratch memory, estimated cost
    tiling_cost             the cost model: cycles of a tiling, tile sizes that fit the registers
    tiling_choice           picks the cheapest tiling, or the one that a measurement recorded
    tiling                  a tiling as data: loops, products, reduction, output
    tile_loop_nest          emits the loops and multiply-adds of a tiling
    epilogue                emits the code after the accumulation: bias, activation, requantization, stores
    grouped_dot_steps       reduction steps that issue several dot-product instructions
    arm_dsp                 int8 GEMM micro-kernels of Cortex-M with the DSP extension
    arm_mve                 int8 GEMM micro-kernels of Cortex-M with Helium (MVE)
    x86_amx                 int8 GEMM micro-kernels of x86 with AMX tiles
    gpu_block_tiles         one tile of the output per GPU thread block, operands in shared memory
    gpu_tensor_cores        multiplies block tiles by tensor cores (float16, bfloat16, TF32)
    gpu_dp4a                multiplies int8 block tiles by dp4a
    shared_memory_copies    asynchronous copies from global to shared memory
    gpu_split_reduction     matrix-vector products: the threads of a block split the reduction
    naive                   the loop nest of the definition, used where no tiling applies

Packed layouts appear only in the indices of an operand (`o // 32, k, o % 32`); `index_space.Split` makes them affine
within a tile.  Tile sizes are constants; the number of tiles (`tile_segments.Segment.count`) becomes a trip count.
"""

from contextlib import suppress

from aotc.tir import BYTES, LANES, Buffer, Target, te
from aotc.tir.schedule.contraction import naive
from aotc.tir.schedule.contraction.arm_dsp import by_runs
from aotc.tir.schedule.contraction.arm_mve import by_rows
from aotc.tir.schedule.contraction.cpu_data_vectors import by_pixels
from aotc.tir.schedule.contraction.cpu_weight_vectors import by_lanes
from aotc.tir.schedule.contraction.gpu_tensor_cores import by_warps
from aotc.tir.schedule.contraction.index_space import Irregular, analyze, divided, in_groups, in_order
from aotc.tir.schedule.contraction.int8_depthwise import by_taps
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.contraction.tiling_candidate import Candidate, Request
from aotc.tir.schedule.contraction.tiling_choice import choose
from aotc.tir.schedule.contraction.tiling_cost import computed_lanes, pack_block
from aotc.tir.schedule.contraction.x86_amx import by_matrices

__all__ = ["ContractionNest", "StoreFn", "build_contraction", "by_warps", "candidates", "pack_block"]


def build_contraction(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> ContractionNest:
    """Return the loop nest that computes the contraction `c` from the buffers of its operands.

    `store(indices of the output axes, value)` returns the statement that finishes one element; it
    is called for every element exactly once. The order of summation depends on shapes, target and
    chooser only (kernel offsets at a border are outermost loops; small tiles have several partial
    sums), never on data; on shapes alone if the target is `ordered`.

    Where no tiling fits, and on GPUs, the nest is that of the definition, with one thread per
    element on a GPU.
    """
    for on_memory in (by_runs, by_rows, by_matrices):
        with suppress(Irregular):
            return on_memory(c, a, b, store, target)
    c = in_order(c) if target.ordered else c
    found = candidates(c, a, b, store, target) if target.gpu is None else []
    if not found:
        return naive.build_contraction(c, a, b, store)
    return choose(c, a, b, target, found).nest()


def candidates(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> list[Candidate]:
    """Return every CPU tiling of `c`, each with its cost in cycles; none if the contraction is
    empty or irregular.
    """
    if any(extent == 0 for _, extent in (*c.axes, *c.reduce_axes)):
        return []
    c = in_order(c) if target.ordered else c
    c, joined = divided(c)
    finish = (lambda at, value: store(joined(at), value)) if joined is not tuple else store
    lanes = computed_lanes(target, c.dtype, a.dtype, b.dtype)
    found: list[Candidate] = []
    with suppress(Irregular):
        bytes_alone = c.dtype == "int32" and {a.dtype, b.dtype} <= set(BYTES)
        if target.dots is not None and bytes_alone and lanes in LANES:
            found += by_lanes(Request(*in_groups(c), a, b, finish, target, lanes))
    with suppress(Irregular):
        request = Request(analyze(c), None, a, b, finish, target, lanes)
        found += [*by_lanes(request), *by_pixels(request), *by_taps(request)]
    return found
