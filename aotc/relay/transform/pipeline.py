# SPDX-License-Identifier: Apache-2.0
"""The default pipelines: an optimisation level and a target in, the passes to run out.

with PassContext(opt_level=3):
    fused = optimize(module, target)             # a module of fused functions, ready to be lowered
"""

from __future__ import annotations

from aotc.ir.transform import Pass, PassContext, Sequential
from aotc.relay.module import IRModule
from aotc.relay.transform.canonicalize_ops import CanonicalizeOps
from aotc.relay.transform.dead_code_elimination import DeadCodeElimination
from aotc.relay.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from aotc.relay.transform.expand_ops import ExpandOps
from aotc.relay.transform.fold_constant import FoldConstant
from aotc.relay.transform.fuse_ops import FuseOps
from aotc.relay.transform.infer_type import InferType
from aotc.relay.transform.simplify_inference import SimplifyInference
from aotc.tir.target import Target


def pipeline(opt_level: int, target: Target) -> list[Pass[IRModule]]:
    """The passes of a level, in order.

    0    one kernel per operator, nothing rearranged: for finding out which operator is wrong
    1    fusion
    2    constants folded
    3    everything
    """
    if opt_level <= 0:
        return [InferType(), SimplifyInference(), ExpandOps(), FuseOps()]
    if opt_level == 1:
        return [InferType(), DeadCodeElimination(), SimplifyInference(), ExpandOps(), FuseOps()]
    if opt_level == 2:
        return [
            InferType(),
            DeadCodeElimination(),
            SimplifyInference(),
            FoldConstant(),
            ExpandOps(),
            FoldConstant(),
            FuseOps(),
        ]
    return [
        InferType(),
        DeadCodeElimination(),
        SimplifyInference(),
        EliminateCommonSubexpr(),
        FoldConstant(),
        CanonicalizeOps(),
        ExpandOps(),
        FoldConstant(),
        EliminateCommonSubexpr(),
        FuseOps(),
    ]


def optimize(module: IRModule, target: Target) -> IRModule:
    """`module` through the pipeline of the current PassContext's opt_level, under that context."""
    passes = pipeline(PassContext.current().opt_level, target)
    return Sequential(passes, name="optimize")(module)
