# SPDX-License-Identifier: Apache-2.0
"""Graph passes: one file each, listed by name here; `pipeline` puts them in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aotc.ir.diagnostics import nearest
from aotc.ir.transform import Pass
from aotc.relay.transform.alter_op_layout import AlterOpLayout
from aotc.relay.transform.annotate_target import AnnotateTarget, MergeCompilerRegions
from aotc.relay.transform.base import function_pass as function_pass
from aotc.relay.transform.canonicalize_cast import CanonicalizeCast
from aotc.relay.transform.canonicalize_ops import CanonicalizeOps
from aotc.relay.transform.combine_parallel_ops import (
    CombineParallelBatchMatmul,
    CombineParallelConv2D,
    CombineParallelDense,
)
from aotc.relay.transform.convert_layout import ConvertLayout
from aotc.relay.transform.dead_code_elimination import DeadCodeElimination
from aotc.relay.transform.defuse_ops import DefuseOps
from aotc.relay.transform.div_to_mul import DivToMul
from aotc.relay.transform.dynamic_to_static import DynamicToStatic
from aotc.relay.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from aotc.relay.transform.eta_expand import EtaExpand
from aotc.relay.transform.expand_ops import ExpandOps
from aotc.relay.transform.fast_math import FastMath
from aotc.relay.transform.flatten_atrous_conv import FlattenAtrousConv
from aotc.relay.transform.fold_constant import FoldConstant
from aotc.relay.transform.fold_explicit_padding import FoldExplicitPadding
from aotc.relay.transform.fold_scale_axis import BackwardFoldScaleAxis, FoldScaleAxis, ForwardFoldScaleAxis
from aotc.relay.transform.fuse_attention import FuseAttention
from aotc.relay.transform.fuse_ops import FuseOps
from aotc.relay.transform.infer_type import InferType
from aotc.relay.transform.inline import Inline
from aotc.relay.transform.lambda_lift import LambdaLift
from aotc.relay.transform.merge_composite import MergeComposite
from aotc.relay.transform.partition_graph import PartitionGraph
from aotc.relay.transform.remove_unused_functions import RemoveUnusedFunctions
from aotc.relay.transform.select_layout import SelectLayout
from aotc.relay.transform.simplify_expr import SimplifyExpr
from aotc.relay.transform.simplify_inference import SimplifyInference
from aotc.relay.transform.split_args import SplitArgs
from aotc.relay.transform.to_a_normal_form import ToANormalForm, ToBasicBlockNormalForm
from aotc.relay.transform.to_graph_normal_form import ToGraphNormalForm
from aotc.relay.transform.to_mixed_precision import ToMixedPrecision

_PASSES: tuple[type[Pass[Any]], ...] = (
    AlterOpLayout,
    AnnotateTarget,
    BackwardFoldScaleAxis,
    CanonicalizeCast,
    CanonicalizeOps,
    CombineParallelBatchMatmul,
    CombineParallelConv2D,
    CombineParallelDense,
    ConvertLayout,
    DeadCodeElimination,
    DefuseOps,
    DivToMul,
    DynamicToStatic,
    EliminateCommonSubexpr,
    EtaExpand,
    ExpandOps,
    FastMath,
    FlattenAtrousConv,
    FoldConstant,
    FoldExplicitPadding,
    FoldScaleAxis,
    ForwardFoldScaleAxis,
    FuseAttention,
    FuseOps,
    InferType,
    Inline,
    LambdaLift,
    MergeCompilerRegions,
    MergeComposite,
    PartitionGraph,
    RemoveUnusedFunctions,
    SelectLayout,
    SimplifyExpr,
    SimplifyInference,
    SplitArgs,
    ToANormalForm,
    ToBasicBlockNormalForm,
    ToGraphNormalForm,
    ToMixedPrecision,
)

PASSES: Mapping[str, Callable[[], Pass[Any]]] = MappingProxyType({make.name: make for make in _PASSES})
"""Every pass by name."""


if not TYPE_CHECKING:  # type checkers know the names

    def __getattr__(name: str) -> object:
        """A name that is not there: the error says which pass may be meant."""
        hint = "" if name.startswith("__") else nearest(name, PASSES)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}" + (f"; {hint}" if hint else ""))
