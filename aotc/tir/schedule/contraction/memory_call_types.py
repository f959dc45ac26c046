# SPDX-License-Identifier: Apache-2.0
"""Data structures of calls of memory micro-kernels, functions that read both operands from memory.

CallData               how calls read the data, and which part of the output each one computes
    gathered_data      copied run by run before the calls (im2col)
    strided_data       read at constant distances
CallOperands           the operands of one call
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aotc.ir import frozen
from aotc.tir import Buffer, Expr, Load, Stmt, Var
from aotc.tir.micro_kernels import MicroKernel
from aotc.tir.schedule.contraction.epilogue import LayoutOfSums
from aotc.tir.schedule.contraction.operand_staging import CopyFn
from aotc.tir.schedule.contraction.tile_loops import OutputTile
from aotc.tir.schedule.contraction.tile_segments import TileAxis, TileSegment, tiles_with_smaller_last
from aotc.tir.schedule.contraction.tiling_completion import TilingRequest
from aotc.tir.simplify import LinearForm


@frozen(eq=False)
class CallOperands:
    """The operands of a call.

    instruction     the name of the function
    data            the data
    weight_extent   elements of the weights that it reads, from those of its first output on
    sizes           further operands
    before          statements before the call
    """

    instruction: str
    data: Load
    weight_extent: int
    sizes: Sequence[Expr] = ()
    before: Sequence[Stmt] = ()


@frozen(eq=False, kw_only=True)
class CallData:
    """How the calls of a memory micro-kernel read the data of a contraction.

    request     the contraction, with its reduction in groups of the micro-kernel
    positions   axes of output positions, in tiles of calls
    channel     axis of outputs, in tiles of calls
    unfuse      output axes as expressions of `positions`
    weights     address of a weight
    sum_count   sums of the largest call
    before      statements before all loops
    workspace   buffers of copies
    copies      statements inside the loop over an axis's tiles
    """

    request: TilingRequest
    positions: Sequence[TileAxis]
    channel: TileAxis
    unfuse: Mapping[Var, Expr]
    weights: LinearForm

    @property
    def kernel(self) -> MicroKernel:
        """The micro-kernel."""
        return self.request.kernel

    @property
    def sum_count(self) -> int:
        """Number of sums of the largest call."""
        raise NotImplementedError

    @property
    def before(self) -> Sequence[Stmt]:
        """Statements before all loops."""
        raise NotImplementedError

    @property
    def workspace(self) -> Sequence[Buffer]:
        """Buffers of copies of the data."""
        raise NotImplementedError

    @property
    def copies(self) -> Mapping[TileAxis | None, CopyFn]:
        """Statements inside the loop over an axis's tiles, before the calls."""
        return {}

    @property
    def estimated_cycles(self) -> float:
        """Estimated cycles of the whole contraction."""
        raise NotImplementedError

    def operands(self, tile: OutputTile) -> CallOperands:
        """Return the operands of the call that computes a tile."""
        raise NotImplementedError

    def layout_of_sums(self, tile: OutputTile) -> LayoutOfSums:
        """Return the layout of the sums of the call that computes a tile."""
        raise NotImplementedError


def outputs_in_calls(request: TilingRequest, extent: int, block: int) -> tuple[TileSegment, ...]:
    """Return the outputs of calls: as many as a call of the micro-kernel has, or whole blocks of
    `block` outputs that include all `extent` outputs.

    A call of a single block may include outputs that pad it, where their sums are finished one by one.
    """
    kernel = request.kernel
    size = min(kernel.max_outputs // block, -(-extent // block)) * block
    if size == block > 1 and extent % block and request.target.is_scalar:
        return (TileSegment(0, -(-extent // size), size, (0,), clip=True),)
    return tiles_with_smaller_last(extent, size)
