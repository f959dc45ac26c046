# SPDX-License-Identifier: Apache-2.0
"""The default pipelines: an optimisation level and a target in, the passes to run out.

with PassContext(opt_level=3):
    fused = optimize(module, target)             # a module of fused functions, ready to be lowered
"""

from __future__ import annotations

from collections.abc import Collection

from aotc.ir.diagnostics import AotcError
from aotc.ir.op import Op
from aotc.ir.transform import Pass, PassContext, Sequential
from aotc.relay.expr import Call, Let
from aotc.relay.module import IRModule
from aotc.relay.transform.alter_op_layout import AlterOpLayout
from aotc.relay.transform.canonicalize_ops import CanonicalizeOps
from aotc.relay.transform.combine_parallel_ops import (
    CombineParallelBatchMatmul,
    CombineParallelConv2D,
    CombineParallelDense,
)
from aotc.relay.transform.dead_code_elimination import DeadCodeElimination
from aotc.relay.transform.dynamic_to_static import DynamicToStatic
from aotc.relay.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from aotc.relay.transform.expand_ops import ExpandOps
from aotc.relay.transform.fast_math import FastMath
from aotc.relay.transform.flatten_atrous_conv import FlattenAtrousConv
from aotc.relay.transform.fold_constant import FoldConstant
from aotc.relay.transform.fold_explicit_padding import FoldExplicitPadding
from aotc.relay.transform.fold_scale_axis import FoldScaleAxis
from aotc.relay.transform.fuse_attention import FuseAttention
from aotc.relay.transform.fuse_ops import FuseOps
from aotc.relay.transform.infer_type import InferType
from aotc.relay.transform.inline import Inline
from aotc.relay.transform.remove_unused_functions import RemoveUnusedFunctions
from aotc.relay.transform.select_layout import SelectLayout
from aotc.relay.transform.simplify_expr import SimplifyExpr
from aotc.relay.transform.simplify_inference import SimplifyInference
from aotc.relay.transform.to_graph_normal_form import ToGraphNormalForm
from aotc.relay.visitor import post_order
from aotc.tir.passes import PlanMemory
from aotc.tir.target import Target


def _stages(target: Target) -> list[tuple[int, Pass[IRModule]]]:
    """All passes in order, each with the least level whose pipeline has it.

    Level 0 makes one kernel of each operator and rearranges nothing: for finding out which operator is wrong.  Level 1
    adds what needs no arithmetic at compile time, level 2 constants, and level 3 all that keeps results to rounding
    and pays.  Level 4 adds what pays on some machines only, and less precise functions.
    """
    return [
        (0, InferType()),
        (2, DynamicToStatic()),
        (1, DeadCodeElimination()),
        (0, SimplifyInference()),
        (4, FastMath()),
        (0, ExpandOps()),
        (3, EliminateCommonSubexpr()),
        (4, CombineParallelConv2D()),
        (4, CombineParallelDense()),
        (4, CombineParallelBatchMatmul()),
        (2, FoldConstant()),
        (1, SimplifyExpr()),
        (3, FlattenAtrousConv()),
        (3, FoldExplicitPadding()),
        (3, FoldScaleAxis()),
        (3, CanonicalizeOps()),
        (2, FoldConstant()),
        (3, SimplifyExpr()),
        (3, EliminateCommonSubexpr()),
        (3, SelectLayout(target)),
        (3, AlterOpLayout(target)),
        (3, FoldConstant()),
        (3, FuseAttention()),
        (0, FuseOps()),
    ]


def pipeline(opt_level: int, target: Target, required: Collection[str] = ()) -> list[Pass[IRModule]]:
    """The passes of a level in order, and those of higher levels that are required by name.

    Levels below 0 are level 0, those beyond 4 are level 4.
    """
    level = max(opt_level, 0)
    return [item for least, item in _stages(target) if least <= level or item.info.name in required]


def _is_flat(module: IRModule) -> bool:
    """Whether @main is all there is, without lets and calls of functions."""
    nodes = (n for f in module.functions.values() for n in post_order(f))
    return list(module) == ["main"] and not any(
        isinstance(n, Let) or (isinstance(n, Call) and not isinstance(n.op, Op)) for n in nodes
    )


def flatten(module: IRModule) -> IRModule:
    """`module` as one function without lets and calls of functions, but for recursive ones, at any level.

    The other passes look for patterns of operators, which lets and calls would hide.
    """
    if _is_flat(module):
        return module
    passes: tuple[Pass[IRModule], ...] = (
        RemoveUnusedFunctions(), ToGraphNormalForm(), Inline(everything=True), RemoveUnusedFunctions()
    )  # fmt: skip
    for item in passes:
        module = item(module)
    return module


def require_lowering(context: PassContext) -> None:
    """AotcError (code "build") if the context leaves out a pass without which there are no kernels, or no memory."""
    for needed, made in ((ExpandOps(), "the kernels"), (FuseOps(), "the kernels"), (PlanMemory(), "the memory plan")):
        if not context.pass_enabled(needed.info):
            text = f"the pass context leaves out {needed.info.name}, which makes {made}"
            raise AotcError("build", text, hint="take it out of disabled_pass; opt_level is at least 0")


def optimize(module: IRModule, target: Target) -> IRModule:
    """`module` through the pipeline of the current PassContext's opt_level and required passes, under that context."""
    context = PassContext.current()
    passes = pipeline(context.opt_level, target, context.required_pass)
    return Sequential(passes, name="optimize")(flatten(module))
