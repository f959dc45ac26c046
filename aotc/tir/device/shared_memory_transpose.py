# SPDX-License-Identifier: Apache-2.0
"""Coalesce the loads of transposing loops, which read along another axis than they write: stage
tiles of the data in shared memory.

Input: loops of independent iterations, the last one along contiguous outputs. Output: the
statements of a block for a tile of 32 x 32 iterations:

    for i in 0..100: for j in 0..200: y[100 * j + i] = x[200 * i + j]      # neighbors i write next to each other
    ->  tile[33 * (i % 32) + j % 32] = x[200 * i + j]      # by neighbors j
        sync
        y[100 * j + i] = tile[33 * (i % 32) + j % 32]      # by neighbors i

The rows of the tile are padded to 33 elements, so that neither rows nor columns cause bank
conflicts. If the contiguous axis of the input is short, such as the channels of a pixel, one thread
reads all of it instead, as its first load brings the other elements into the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from aotc.ir import frozen
from aotc.tir import (
    all_of,
    assigned_registers,
    known_trip_count,
    linear_form,
    operands,
    substitute,
    vars_and_buffers_in,
    with_operands,
    written_buffers,
)
from aotc.tir.device.kernel_fission import ParallelNest
from aotc.tir.expr import INDEX, Buffer, Const, Expr, Load, Select, Var
from aotc.tir.instruction_statements import block_barrier
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, Store, direct_exprs_of_stmt, map_exprs, walk_stmts

#: Rows and columns of a tile.
_TILE_SIDE: Final = 32
#: Smallest extent of an axis that is tiled.
MIN_TILED_AXIS_EXTENT: Final = 16


@frozen(eq=False)
class TransposingLoads:
    """Loads that run along another axis than the stores of a loop nest.

    loop    the loop along whose iterations the loads are contiguous
    innermost_loop    the loop along whose iterations the stores are contiguous
    reads   the loads, with their indices as expressions of the loop variables
    """

    loop: For
    innermost_loop: For
    reads: Mapping[Load, Expr]

    @staticmethod
    def find_transposing_loads(loops: Sequence[For], body: Block) -> TransposingLoads | None:
        """Return the loads of a loop nest that run along another axis than its stores; None if
        there are none.

        Only loads that are executed whatever the conditions are count.
        """
        last, changing, changed = loops[-1], assigned_registers(body), written_buffers(body)
        along = {loop.var: loop for loop in loops if loop.begin == Const(0, INDEX) and loop.step == 1}
        stores = (s for s in walk_stmts(body) if isinstance(s, Store))
        if last.var not in along or not any(linear_form(s.index, {}).coefficient(last.var) == 1 for s in stores):
            return None
        registers: dict[Var, Expr] = {}
        loads_by_var: dict[Var, dict[Load, Expr]] = {}
        for stmt in body.stmts:
            loads = [
                load
                for e in direct_exprs_of_stmt(stmt)
                for load in _unconditional_loads(e)
                if isinstance(stmt, (Declare, Assign, Store))
            ]
            for load in loads:
                place = substitute(load.index, registers)
                form = linear_form(place, {})
                if form.coefficient(last.var) in (0, 1, None) or load.buffer in changed:
                    continue
                var = next((v for v in along if form.coefficient(v) == 1), None)
                if var is not None and {loop.var for loop in loops}.issuperset(vars_and_buffers_in(place)):
                    loads_by_var.setdefault(var, {})[load] = place
            if isinstance(stmt, Declare) and stmt.var.dtype == INDEX and stmt.var not in changing:
                registers[stmt.var] = substitute(stmt.value, registers)
        return next((TransposingLoads(along[var], last, reads) for var, reads in loads_by_var.items()), None)

    def nest_with_shared_memory_tiles(
        self, outer_loops: Iterable[For], body: Block, threads_per_block: int
    ) -> ParallelNest:
        """Return a loop nest for GPU blocks of `threads_per_block` threads, each of which processes
        a tile staged in shared memory.

        `outer_loops` are the loops around the tiles.
        """
        thread = Var("lane")
        tiles = {loop: Var(f"{loop.var.name}_tile") for loop in (self.loop, self.innermost_loop)}
        shared = {load: Buffer("tile", load.dtype, _TILE_SIDE * (_TILE_SIDE + 1), "shared", 16) for load in self.reads}

        def loop_over_tile_elements(var_of_loop: Mapping[For, Var], stmts: Sequence[Stmt]) -> For:
            """Return a loop that executes statements for all elements of a tile, contiguous along
            the first loop of `var_of_loop`.
            """
            turn = Var("turn")
            parts = (thread % _TILE_SIDE, turn * (threads_per_block // _TILE_SIDE) + thread // _TILE_SIDE)
            places = (
                Declare(var, tiles[loop] * _TILE_SIDE + at)
                for (loop, var), at in zip(var_of_loop.items(), parts, strict=True)
            )
            limits = [
                var < known_trip_count(loop) for loop, var in var_of_loop.items() if known_trip_count(loop) % _TILE_SIDE
            ]
            inside = (If(all_of(*limits), Block(stmts)),) if limits else stmts
            return For(turn, _TILE_SIDE * _TILE_SIDE // threads_per_block, Block((*places, *inside)))

        def index_in_padded_tile(var_of_loop: Mapping[For, Var]) -> Expr:
            """Return the index of an element within a transposed tile in shared memory, whose rows
            are padded by one element.
            """
            row, column = (var_of_loop[loop] - tiles[loop] * _TILE_SIDE for loop in (self.innermost_loop, self.loop))
            return row * (_TILE_SIDE + 1) + column

        ahead = {loop: Var(loop.var.name) for loop in (self.loop, self.innermost_loop)}
        loop_vars = {loop: loop.var for loop in (self.innermost_loop, self.loop)}
        fresh = {loop.var: var for loop, var in ahead.items()}
        filled = [
            Store(shared[load], index_in_padded_tile(ahead), Load(load.buffer, substitute(index, fresh)))
            for load, index in self.reads.items()
        ]
        tile_loads = {load: Load(tile, index_in_padded_tile(loop_vars)) for load, tile in shared.items()}
        stmts = (
            loop_over_tile_elements(ahead, filled),
            block_barrier(),
            loop_over_tile_elements(loop_vars, [map_exprs(body, lambda e: replace_loads(e, tile_loads))]),
        )
        over = (For(var, -(-known_trip_count(loop) // _TILE_SIDE), Block(())) for loop, var in tiles.items())
        return ParallelNest((*outer_loops, *over), Block(stmts), shared=(*shared.values(),), thread=thread)


def replace_loads(expr: Expr, replacements: Mapping[Load, Expr]) -> Expr:
    """Return an expression in which the loads that are keys of `replacements` are replaced by its
    values.
    """
    if isinstance(expr, Load) and expr in replacements:
        return replacements[expr]
    return with_operands(expr, tuple(replace_loads(e, replacements) for e in operands(expr)))


def _unconditional_loads(expr: Expr) -> Iterator[Load]:
    """Yield the loads of an expression that are executed whatever the conditions in it are."""
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, Load):
            yield node
        stack += [node.cond] if isinstance(node, Select) else operands(node)
