# SPDX-License-Identifier: Apache-2.0
"""Coalesce transposing loops: stage tiles of what they read along another axis than they write in
shared memory.

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
from aotc.tir import all_of, assigned, extent_of, linear, mentioned, operands, substitute, with_operands, written
from aotc.tir.device.kernel_fission import Nest
from aotc.tir.expr import INDEX, Buffer, Const, Expr, Load, Select, Var
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, Store, Sync, map_exprs, stmt_exprs, walk_stmts

#: Rows and columns of a tile.
_SIDE: Final = 32
#: Smallest extent of an axis that is tiled.
LEAST: Final = 16


@frozen(eq=False)
class Across:
    """Loads that run along another axis than the stores of a loop nest.

    loop    the loop along whose iterations the loads are contiguous
    last    the loop along whose iterations the stores are contiguous
    reads   the loads, with their indices as expressions of the loop variables
    """

    loop: For
    last: For
    reads: Mapping[Load, Expr]

    @staticmethod
    def of(loops: Sequence[For], body: Block) -> Across | None:
        """Return the loads of a loop nest that run along another axis than its stores; None if
        there are none.

        Only loads that are executed whatever the conditions are count.
        """
        last, changing, changed = loops[-1], assigned(body), written(body)
        along = {loop.var: loop for loop in loops if loop.begin == Const(0, INDEX) and loop.step == 1}
        stores = (s for s in walk_stmts(body) if isinstance(s, Store))
        if last.var not in along or not any(linear(s.index, {}).coefficient(last.var) == 1 for s in stores):
            return None
        registers: dict[Var, Expr] = {}
        found: dict[Var, dict[Load, Expr]] = {}
        for stmt in body.stmts:
            loads = [
                load for e in stmt_exprs(stmt) for load in _always(e) if isinstance(stmt, (Declare, Assign, Store))
            ]
            for load in loads:
                place = substitute(load.index, registers)
                form = linear(place, {})
                if form.coefficient(last.var) in (0, 1, None) or load.buffer in changed:
                    continue
                var = next((v for v in along if form.coefficient(v) == 1), None)
                if var is not None and {loop.var for loop in loops}.issuperset(mentioned(place)):
                    found.setdefault(var, {})[load] = place
            if isinstance(stmt, Declare) and stmt.var.dtype == INDEX and stmt.var not in changing:
                registers[stmt.var] = substitute(stmt.value, registers)
        return next((Across(along[var], last, reads) for var, reads in found.items()), None)

    def by_tiles(self, outer: Iterable[For], body: Block, threads: int) -> Nest:
        """Return a loop nest for GPU blocks of `threads` threads, each of which processes a tile
        staged in shared memory.

        `outer` are the loops around the tiles.
        """
        thread = Var("lane")
        tiles = {loop: Var(f"{loop.var.name}_tile") for loop in (self.loop, self.last)}
        shared = {load: Buffer("tile", load.dtype, _SIDE * (_SIDE + 1), "shared", 16) for load in self.reads}

        def phase(names: Mapping[For, Var], stmts: Sequence[Stmt]) -> For:
            """Return a loop that executes statements for all elements of a tile, contiguous along
            the first loop of `names`.
            """
            turn = Var("turn")
            parts = (thread % _SIDE, turn * (threads // _SIDE) + thread // _SIDE)
            places = (
                Declare(var, tiles[loop] * _SIDE + at) for (loop, var), at in zip(names.items(), parts, strict=True)
            )
            limits = [var < extent_of(loop) for loop, var in names.items() if extent_of(loop) % _SIDE]
            inside = (If(all_of(*limits), Block(stmts)),) if limits else stmts
            return For(turn, _SIDE * _SIDE // threads, Block((*places, *inside)))

        def place(names: Mapping[For, Var]) -> Expr:
            """Return the index of an element within a transposed tile in shared memory, whose rows
            are padded by one element.
            """
            row, column = (names[loop] - tiles[loop] * _SIDE for loop in (self.last, self.loop))
            return row * (_SIDE + 1) + column

        ahead = {loop: Var(loop.var.name) for loop in (self.loop, self.last)}
        own = {loop: loop.var for loop in (self.last, self.loop)}
        fresh = {loop.var: var for loop, var in ahead.items()}
        filled = [
            Store(shared[load], place(ahead), Load(load.buffer, substitute(index, fresh)))
            for load, index in self.reads.items()
        ]
        taken = {load: Load(tile, place(own)) for load, tile in shared.items()}
        stmts = (phase(ahead, filled), Sync(), phase(own, [map_exprs(body, lambda e: replaced(e, taken))]))
        over = (For(var, -(-extent_of(loop) // _SIDE), Block(())) for loop, var in tiles.items())
        return Nest((*outer, *over), Block(stmts), shared=(*shared.values(),), thread=thread)


def replaced(expr: Expr, found: Mapping[Load, Expr]) -> Expr:
    """Return an expression in which the loads that are keys of `found` are replaced by its values."""
    if isinstance(expr, Load) and expr in found:
        return found[expr]
    return with_operands(expr, tuple(replaced(e, found) for e in operands(expr)))


def _always(expr: Expr) -> Iterator[Load]:
    """Yield the loads of an expression that are executed whatever the conditions in it are."""
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, Load):
            yield node
        stack += [node.cond] if isinstance(node, Select) else operands(node)
