# SPDX-License-Identifier: Apache-2.0
"""The contraction generator: one sum of products in, a register-tiled loop nest out.

Convolutions, matrix products, depthwise convolutions, batched ones: all are found by how the operands' indices
depend on the axes, never by an operator's name.

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

The way of a contraction:

    space                 its axes, and the operands' indices as sums of terms
    by_lanes, by_pixels   tiles with vectors of weights, and with vectors of data
    by_taps               depthwise convolutions of bytes, four taps at a time
    segments, staging     how an axis is cut into tiles; how an operand is copied, with its border, for vectors
    candidate, cost       partial sums, scratch, cycles: a tiling completed and compared
    choice                the cheapest tiling, or the one that a measurement names
    tiling                the tiling as data: loops, product, reduction, output
    tile, epilogue        its statements: loops, multiply-adds, what becomes of finished elements
    by_runs               tiles by functions on memory, for microcontrollers
    by_rows               rows by functions on memory, where vectors are added up into a number
    by_matrices           tiles by functions on memory, where registers hold matrices
    by_blocks             tiles for blocks of threads, where a kernel has a device for itself
    by_warps              these by matrix instructions of warps, for operands of 16 bits
    by_words              operands of these that are bytes, four to a number
    fetching              how these bring pieces of operands to shared memory
    by_slices             thin products there: threads share out the reduction
    naive                 the definition as it stands, for what no tiling fits

A packed layout is said by the operand's indices alone (`o // 32, k, o % 32`); `space.Split` gives them a plain form in
a tile.  What a step multiplies and adds is `tiling.Product`.  Tiles' sizes are numbers; only how many
tiles there are (`segments.Segment.count`) becomes the trip count of a loop.
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
    """The nest that computes `c` from the buffers of its operands and hands each element to `store`.

    `store(indices of the output axes, value)` gives the statement that finishes one element; it is called for
    every element exactly once.  The order of a sum depends on shapes, target and chooser only (taps of a border
    come outermost; a small tile keeps partial sums), never on data; on shapes alone where the target is `ordered`.
    What no tiling fits is computed by the plain nest of the definition, and so is all for a GPU: a thread for each
    element.
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
    """Every tiling of `c` with its cost in cycles; none for an empty or irregular contraction."""
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
