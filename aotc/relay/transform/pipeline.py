# SPDX-License-Identifier: Apache-2.0
"""The default pipelines of graph passes for an optimization level and a target.

with PassContext(opt_level=3):
    fused = optimize(module, target)             # a module of fused functions, ready to be lowered
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from aotc.ir import AotcError, Op, Pass, PassContext, Sequential, is_any_op_attr_registered, option_text
from aotc.ir.option_description import FULL_PRECISION
from aotc.relay import transform as passes
from aotc.relay.graph_api import Call, IRModule, Let, post_order
from aotc.relay.op.op import ALTER_OP_LAYOUT, LEGALIZE
from aotc.relay.transform.to_mixed_precision import ToMixedPrecision
from aotc.tir import PlanMemory, Target

#: Conversion of operators between dequantized and quantized tensors with the rounding of
#: frameworks: sums are rescaled in float32.
FAKE_QUANTIZATION: Final = passes.FakeQuantizationToInteger(
    use_qat=True, optional_qnn_ops=("nn.softmax",), rounding="FLOAT_EVEN", unsigned=True
)


def _passes_with_min_level(target: Target) -> list[tuple[int, Pass[IRModule]]]:
    """Return all passes in order, each with the lowest optimization level whose pipeline contains
    it.

    Level 0 makes one kernel of each operator and rearranges nothing, to find out which operator is
    wrong. Operators between dequantized and quantized tensors are converted to integers at level 0,
    too, so that results do not depend on the level; disabling FakeQuantizationToInteger leaves them
    on real numbers. Level 1 adds passes that need no arithmetic at compile time, level 2 constant
    folding, level 3 all profitable passes that preserve results up to rounding. Level 4 adds passes
    that are profitable on some machines only, and less precise functions.
    """
    patches = int(PassContext.current().get_config("compile.patches", 0))
    args = target.gpu.argument_bytes // 8 if target.gpu is not None else 0
    return [
        (0, passes.InferType()),
        (0, passes.QuantizedEdges()),
        (2, passes.DynamicToStatic()),
        (1, passes.DeadCodeElimination()),
        (0, FAKE_QUANTIZATION),
        *([(0, passes.RoundProductData())] if PassContext.current().get_config("compile.round_data", False) else []),
        (3, passes.SelectSignedness(target)),
        (3, passes.PackWeights(target)),
        *([(1, passes.Legalize())] if is_any_op_attr_registered(LEGALIZE) else []),
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
        *_reduce_precision_of_products(),
        (3, passes.SelectLayout(target)),
        (3, passes.AlterOpLayout(target)),
        # registered functions may choose blocked layouts
        *([(3, passes.ExpandOps(target.gpu is not None))] if is_any_op_attr_registered(ALTER_OP_LAYOUT) else []),
        (3, passes.FoldConstant(fold_qnn=True)),
        (3, passes.FuseAttention()),
        (3, passes.CompactTrees(target)),
        (3, passes.PackNibbles(target)),
        *([(0, passes.PatchFirstLayers(patches))] if patches > 1 else []),
        *([(0, passes.SplitArgs(max(3, args - 1)))] if args else []),
        (0, passes.FuseOps(max_args=args)),
        (1, passes.StoreNarrow(target, args)),
        *([(3, passes.ShareKernels(target))] if target.gpu is None and not target.small and not target.bare else []),
        *([(1, passes.FuseOutputs(args, target.gpu))] if target.gpu is not None else []),
    ]


def _reduce_precision_of_products() -> list[tuple[int, Pass[IRModule]]]:
    """Return the pass that computes products by weights in the precision of the configuration, with
    its lowest level; nothing for float32.
    """
    context = PassContext.current()
    precision = context.get_config("compile.precision", FULL_PRECISION)
    if precision == FULL_PRECISION:
        return []
    layers = tuple(context.get_config("compile.float32_layers", ()))
    return [(0, ToMixedPrecision(precision, 2, only_weight_products=True, float32_layers=layers))]


def pipeline(opt_level: int, target: Target, required: Collection[str] = ()) -> list[Pass[IRModule]]:
    """Return the passes of a level in order, with the passes of higher levels whose names are in
    `required`.

    Levels are clamped to 0 ... 4.
    """
    level = max(opt_level, 0)
    return [item for least, item in _passes_with_min_level(target) if least <= level or item.info.name in required]


def _is_single_flat_function(module: IRModule) -> bool:
    """Return True if @main is the only function and has no lets and no calls of functions."""
    nodes = (n for f in module.functions.values() for n in post_order(f))
    return list(module) == ["main"] and not any(
        isinstance(n, Let) or (isinstance(n, Call) and not isinstance(n.op, Op)) for n in nodes
    )


def inline_to_single_function(module: IRModule) -> IRModule:
    """Return `module` as one function without lets and calls of functions, except recursive ones.

    The other passes match patterns of operators, which lets and calls would hide. This is done at
    every level.
    """
    if _is_single_flat_function(module):
        return module
    unused = passes.RemoveUnusedFunctions()
    for item in (unused, passes.ToGraphNormalForm(), passes.Inline(everything=True), unused):
        module = item(module)
    return module


def require_lowering_passes(context: PassContext) -> None:
    """Raise AotcError (code "build") if the context disables a pass without which there are no
    kernels or no memory plan.
    """
    for needed, product in (
        (passes.ExpandOps(), "the kernels"),
        (passes.FuseOps(), "the kernels"),
        (PlanMemory(), "the memory plan"),
    ):
        if not context.pass_enabled(needed.info):
            text = f"the pass context disables {needed.info.name}, which makes {product}"
            removal = f"leave {needed.info.name} out of " + option_text("disabled_pass")
            is_disabled = needed.info.name in context.disabled_pass
            level = option_text("opt_level") + " has to be at least 0"
            raise AotcError("build", text, hint=removal if is_disabled else level)


def graph_in_reduced_precision(module: IRModule, target: Target) -> IRModule:
    """Return `module` after the passes of the pipeline that reduce the precision of products, and all
    passes before them, for the current PassContext.
    """
    context = PassContext.current()
    passes = pipeline(context.opt_level, target, context.required_pass)
    last = max((k for k, item in enumerate(passes) if isinstance(item, ToMixedPrecision)), default=-1)
    return Sequential(passes[: last + 1], name="reduce_precision")(inline_to_single_function(module))


def optimize(module: IRModule, target: Target) -> IRModule:
    """Return `module` transformed by the pipeline for the current PassContext's opt_level and
    required passes.
    """
    context = PassContext.current()
    passes = pipeline(context.opt_level, target, context.required_pass)
    return Sequential(passes, name="optimize")(inline_to_single_function(module))
