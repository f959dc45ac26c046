# SPDX-License-Identifier: Apache-2.0
"""The default pipelines: an optimization level and a target in, the passes to run out.

with PassContext(opt_level=3):
    fused = optimize(module, target)             # a module of fused functions, ready to be lowered
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from aotc.ir import AotcError, Op, Pass, PassContext, Sequential, is_attached
from aotc.relay import transform as passes
from aotc.relay.graph_api import Call, IRModule, Let, post_order
from aotc.relay.op.op import ALTER_OP_LAYOUT, LEGALIZE
from aotc.tir import PlanMemory, Target

#: What is between dequantized and quantized tensors, as frameworks compute it: sums are rescaled in float32.
FAKE_QUANTIZATION: Final = passes.FakeQuantizationToInteger(
    use_qat=True, optional_qnn_ops=("nn.softmax",), rounding="FLOAT_EVEN", unsigned=True
)


def _stages(target: Target) -> list[tuple[int, Pass[IRModule]]]:
    """All passes in order, each with the least level whose pipeline has it.

    Level 0 makes one kernel of each operator and rearranges nothing: for finding out which operator is wrong.
    Operators between dequantized and quantized tensors are operators of integers there, too, so that results do not
    depend on the level; disabling FakeQuantizationToInteger leaves them on real numbers.  Level 1 adds what needs no
    arithmetic at compile time, level 2 constants, and level 3 all that keeps results to rounding and pays.  Level 4
    adds what pays on some machines only, and less precise functions.
    """
    patches = int(PassContext.current().get_config("compile.patches", 0))
    args = target.gpu.argument_bytes // 8 if target.gpu is not None else 0
    return [
        (0, passes.InferType()),
        (0, passes.QuantizedEdges()),
        (2, passes.DynamicToStatic()),
        (1, passes.DeadCodeElimination()),
        (0, FAKE_QUANTIZATION),
        (3, passes.SelectSignedness(target)),
        (3, passes.PackWeights(target)),
        *([(1, passes.Legalize())] if is_attached(LEGALIZE) else []),
        (0, passes.SimplifyInference()),
        (4, passes.FastMath()),
        (0, passes.QnnCanonicalizeOps()),
        (0, passes.ExpandOps(target.gpu is not None)),
        (3, passes.EliminateCommonSubexpr()),
        (4, passes.CombineParallelConv2D()),
        (4, passes.CombineParallelDense(copies_data=False)),
        (4, passes.CombineParallelBatchMatmul()),
        (2, passes.FoldConstant(fold_qnn=True)),
        (1, passes.SimplifyExpr()),
        (3, passes.FlattenAtrousConv()),
        (3, passes.FoldExplicitPadding()),
        (3, passes.FoldScaleAxis()),
        (3, passes.CanonicalizeOps()),
        (2, passes.FoldConstant(fold_qnn=True)),
        (3, passes.SimplifyExpr()),
        (3, passes.EliminateCommonSubexpr()),
        (3, passes.SelectLayout(target)),
        (3, passes.AlterOpLayout(target)),
        # functions of the user's own may choose layouts in blocks
        *([(3, passes.ExpandOps(target.gpu is not None))] if is_attached(ALTER_OP_LAYOUT) else []),
        (3, passes.FoldConstant(fold_qnn=True)),
        (3, passes.FuseAttention()),
        (3, passes.PackNibbles()),
        *([(0, passes.PatchFirstLayers(patches))] if patches > 1 else []),
        *([(0, passes.SplitArgs(max(3, args - 1)))] if args else []),
        (0, passes.FuseOps(max_args=args)),
        (1, passes.StoreNarrow(target, args)),
        *([(1, passes.FuseOutputs(args, target.gpu))] if target.gpu is not None else []),
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
    unused = passes.RemoveUnusedFunctions()
    for item in (unused, passes.ToGraphNormalForm(), passes.Inline(everything=True), unused):
        module = item(module)
    return module


def require_lowering(context: PassContext) -> None:
    """AotcError (code "build") if the context leaves out a pass without which there are no kernels, or no memory."""
    for needed, made in (
        (passes.ExpandOps(), "the kernels"),
        (passes.FuseOps(), "the kernels"),
        (PlanMemory(), "the memory plan"),
    ):
        if not context.pass_enabled(needed.info):
            text = f"the pass context disables {needed.info.name}, which makes {made}"
            raise AotcError("build", text, hint="take it out of disabled_pass; opt_level is at least 0")


def optimize(module: IRModule, target: Target) -> IRModule:
    """`module` through the pipeline of the current PassContext's opt_level and required passes, under that context."""
    context = PassContext.current()
    passes = pipeline(context.opt_level, target, context.required_pass)
    return Sequential(passes, name="optimize")(flatten(module))
