# SPDX-License-Identifier: Apache-2.0
"""Stages and epilogues: which tensors of a kernel are stored, and which loop nest computes them.

In: the tensor expressions that a kernel's outputs need.  Out: groups of stages.  A stage is one loop nest: its anchor
(an elementwise tensor, a reduction, a contraction) and the tensors that follow it element by element, the epilogue;
the stages of a group share their outer loops.

    >>> from aotc.tir import target, te
    >>> from aotc.tir.schedule.stages import stage_grouping, storage_plan
    >>> x = te.placeholder((4, 8), "float32", "x")
    >>> total = te.reduce("sum", (4,), (8,), lambda i, k: x[i, k], "total")
    >>> mean = te.compute((4,), lambda i: total[i] / 8.0, "mean")
    >>> plan = inline.plan_storage([mean], target.C)
    >>> [[root.name for root in stage.roots] for stage in grouping.form_stages(plan)]
    [['total', 'mean']]

    inline     what is stored, and what is computed where it is read
    dividing   results of groups of neighbors by axes of their own
    grouping   stages, and groups of them
    inplace    outputs that may take the memory of an input
    body       expressions of elements from the definitions of tensors
    kernel     the kernel that is being built: memory, scratch, epilogues
    reduce     the nests of reductions
    by_threads long reductions in pieces, for the threads of blocks
"""
