# SPDX-License-Identifier: Apache-2.0
"""Analyses and rewrites of loop nests of the tensor IR (`aotc.tir.stmt`). Every rewrite preserves
the results bit for bit.

    >>> from aotc.tir.expr import Buffer, Load, Var
    >>> from aotc.tir.loops.loop_nest_rewrites import merge_nested_loops_into_flat_loop
    >>> from aotc.tir.stmt import For, Store
    >>> i, j, x, y = Var("i"), Var("j"), Buffer("x", "float32", 32), Buffer("y", "float32", 32)
    >>> merge_nested_loops_into_flat_loop(For(i, 4, For(j, 8, Store(y, 8 * i + j, Load(x, 8 * i + j))))).end.value
    32

`access_relation` answers which iterations access which elements of a buffer, `access_collection`
collects it from statements, and `loop_kind_proof` proves the kinds of loops with it;
`loop_dependence` has queries about single statements and loops; `loop_nest_rewrites` merges, splits
and unrolls loops; `statement_vectorization` finds the vector form of a loop body and `loop_vectorization` applies it;
`pack_outer_iterations_to_vector` merges loops shorter than a vector into longer loops;
`register_transposes` transposes square blocks in vector registers; `register_promotion` holds
vectors of scratch memory in registers; `unvectorized_loop_report` lists the loops without vectors,
with the reasons; `gpu_vector_access_predicate` finds the accesses that a GPU can make with one wide
instruction.
"""
