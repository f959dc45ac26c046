# SPDX-License-Identifier: Apache-2.0
"""Contractions by memory micro-kernels, functions that read both operands from memory and store their
sums there: from a TilingRequest, the nest of calls.

    copies of the data
    for positions: for outputs:
      tile[...] = multiply(data, weights, sizes)
      finish and store tile[...]

The row of the micro-kernel (`aotc.tir.micro_kernels`) states what differs. The layout of the data selects
how calls read it: `gathered_data` (im2col) or `strided_data`. The loops over tiles, the layouts of
weights, the calls, and the statements that finish and store sums are common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from aotc.tir import Load, as_expr, fill_buffer_loop, new_private_scratch_buffer, substitute, te
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.schedule.contraction.epilogue import EpilogueOfSums
from aotc.tir.schedule.contraction.gathered_data import gathered_data
from aotc.tir.schedule.contraction.instruction_selection import RepeatedValues
from aotc.tir.schedule.contraction.memory_call_types import CallData
from aotc.tir.schedule.contraction.register_tiling_types import OutputStores
from aotc.tir.schedule.contraction.strided_data import strided_data
from aotc.tir.schedule.contraction.tile_loops import OutputTile, loops_over_tiles
from aotc.tir.schedule.contraction.tiling_completion import MemoryKernelCandidate, TilingRequest
from aotc.tir.schedule.contraction.tiling_cost import accumulator_lanes
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest
from aotc.tir.simplify import simplify
from aotc.tir.stmt import Block, Stmt

_CallDataOfContraction: TypeAlias = Callable[[te.Contraction, TilingRequest], Mapping[str, CallData]]
#: Functions that return how calls may read the data, by suffixes of names of candidates; by layout of data.
DATA_OF_LAYOUT: Final[Mapping[str, _CallDataOfContraction]] = {"im2col": gathered_data, "strided": strided_data}


def memory_kernel_candidates(contraction: te.Contraction, request: TilingRequest) -> list[MemoryKernelCandidate]:
    """Return the candidates that compute a contraction by the micro-kernel of `request`; none if the
    operands do not have its layouts.

    request    the contraction with its reduction in groups of the micro-kernel
    """
    found = DATA_OF_LAYOUT[request.kernel.data](contraction, request)
    return [
        MemoryKernelCandidate(data.estimated_cycles, request.kernel.name + kind, partial(_build_loop_nest, data))
        for kind, data in found.items()
    ]


def _build_loop_nest(data: CallData) -> ContractionNest:
    """Return the loop nest of a contraction with the buffers it needs."""
    request, outputs = data.request, data.channel.segments[0].size
    dtype, stack = request.contraction.dtype, request.target.budget.stack_bytes
    scope = "stack" if data.sum_count * dtype.itemsize <= stack else "workspace"
    sums = new_private_scratch_buffer("tile", dtype, data.sum_count, scope)
    repeated = RepeatedValues(outputs)
    output = OutputStores(request.contraction.axes, request.store, data.unfuse)
    lanes = accumulator_lanes(request.target, dtype)
    finish = EpilogueOfSums(sums, data.channel, output, lanes, data.kernel.finish, repeated)

    def call_and_stores(tile: OutputTile) -> Stmt:
        operands = data.operands(tile)
        zero = dict.fromkeys(request.reduction_axis_vars, as_expr(0))
        first = simplify(substitute(data.weights.to_expr(), {**zero, **tile.operand_var_values()}), {})
        weights = Load(request.b, first, operands.weight_extent)
        call = execute_to_memory(operands.instruction, sums, 0, operands.data, weights, *operands.sizes)
        return Block((*operands.before, call, finish.finish_and_store(tile, data.layout_of_sums(tile))))

    nest = loops_over_tiles([*data.positions, data.channel], data.copies, call_and_stores)
    fills = [fill_buffer_loop(buffer, value) for value, buffer in repeated.buffers.items()]
    buffers = {
        "stack": [*([sums] if scope == "stack" else []), *repeated.buffers.values()],
        "workspace": [*data.workspace, *([] if scope == "stack" else [sums])],
    }
    return ContractionNest(Block((*data.before, *fills, nest)), tuple(buffers["stack"]), tuple(buffers["workspace"]))
