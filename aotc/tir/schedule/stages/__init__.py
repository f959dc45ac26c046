# SPDX-License-Identifier: Apache-2.0
"""Stages and epilogues: decide which tensors of a kernel are stored, and which loop nest computes
each of them.

Input: the tensor expressions that a kernel's outputs need. Output: groups of stages. A stage is one
loop nest: its anchor (an elementwise tensor, a reduction, a contraction) and the tensors that
follow it element by element, the epilogue; the stages of a group share their outer loops.

    >>> from aotc.tir import target, te
    >>> from aotc.tir.schedule.stages import stage_grouping, store_or_inline_tensors
    >>> x = te.placeholder((4, 8), "float32", "x")
    >>> total = te.reduce("sum", (4,), (8,), lambda i, k: x[i, k], "total")
    >>> mean = te.compute((4,), lambda i: total[i] / 8.0, "mean")
    >>> plan = store_or_inline_tensors.plan_storage([mean], target.C)
    >>> [[root.name for root in stage.roots] for stage in stage_grouping.form_compute_stages(plan)]
    [['total', 'mean']]

    store_or_inline_tensors  which tensors are stored, and which are computed where they are read
    split_axis_by_reduction_group  splits an output axis in two where outputs read several neighboring results of a
                                   reduction
    stage_grouping      forms stages, and groups of stages that share loops
    inplace_outputs     which outputs may overwrite which inputs
    tensor_element_lowering  builds scalar expressions from the definitions of tensors
    kernel_builder      the kernel under construction: buffers, scratch memory, epilogues
    reduction_loops     loop nests of reductions
    gpu_reduction       long reductions split among the threads of GPU blocks
"""
