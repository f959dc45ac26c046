# SPDX-License-Identifier: Apache-2.0
"""Loop algebra: dependence between iterations, and rewriting of loops that leaves what they compute as it is.

In: loops of `aotc.tir.stmt`.  Out: facts about them, or other loops.

    >>> from aotc.tir.expr import Buffer, Load, Var
    >>> from aotc.tir.loops.loop_nest_rewrites import merge_loops
    >>> from aotc.tir.stmt import For, Store
    >>> i, j, x, y = Var("i"), Var("j"), Buffer("x", "float32", 32), Buffer("y", "float32", 32)
    >>> merge_loops(For(i, 4, For(j, 8, Store(y, 8 * i + j, Load(x, 8 * i + j))))).end.value
    32

`dependence` proves what loops say of their iterations, and finds statements that touch common memory; `nest` merges,
splits and unrolls loops; `vectorize` finds the vector form of a body, and `lanes` puts it into loops; `pack` makes
loops longer that are shorter than vectors; `registers` keeps vectors of scratch in registers; `scalar` says which loops
have no vectors, and why; `whole` knows what a device moves at once.
"""
