# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Mapping
from typing import Any

from aotc.ir import Pass
from aotc.relay.transform.alter_op_layout import AlterOpLayout as AlterOpLayout
from aotc.relay.transform.annotate_target import AnnotateTarget as AnnotateTarget
from aotc.relay.transform.annotate_target import MergeCompilerRegions as MergeCompilerRegions
from aotc.relay.transform.base import function_pass as function_pass
from aotc.relay.transform.canonicalize_cast import CanonicalizeCast as CanonicalizeCast
from aotc.relay.transform.canonicalize_ops import CanonicalizeOps as CanonicalizeOps
from aotc.relay.transform.combine_parallel_ops import CombineParallelBatchMatmul as CombineParallelBatchMatmul
from aotc.relay.transform.combine_parallel_ops import CombineParallelConv2D as CombineParallelConv2D
from aotc.relay.transform.combine_parallel_ops import CombineParallelDense as CombineParallelDense
from aotc.relay.transform.convert_layout import ConvertLayout as ConvertLayout
from aotc.relay.transform.dead_code_elimination import DeadCodeElimination as DeadCodeElimination
from aotc.relay.transform.defuse_ops import DefuseOps as DefuseOps
from aotc.relay.transform.div_to_mul import DivToMul as DivToMul
from aotc.relay.transform.dynamic_to_static import DynamicToStatic as DynamicToStatic
from aotc.relay.transform.eliminate_common_subexpr import EliminateCommonSubexpr as EliminateCommonSubexpr
from aotc.relay.transform.eta_expand import EtaExpand as EtaExpand
from aotc.relay.transform.expand_ops import ExpandOps as ExpandOps
from aotc.relay.transform.fast_math import FastMath as FastMath
from aotc.relay.transform.flatten_atrous_conv import FlattenAtrousConv as FlattenAtrousConv
from aotc.relay.transform.fold_constant import FoldConstant as FoldConstant
from aotc.relay.transform.fold_explicit_padding import FoldExplicitPadding as FoldExplicitPadding
from aotc.relay.transform.fold_scale_axis import BackwardFoldScaleAxis as BackwardFoldScaleAxis
from aotc.relay.transform.fold_scale_axis import FoldScaleAxis as FoldScaleAxis
from aotc.relay.transform.fold_scale_axis import ForwardFoldScaleAxis as ForwardFoldScaleAxis
from aotc.relay.transform.fuse_attention import FuseAttention as FuseAttention
from aotc.relay.transform.fuse_ops import FuseOps as FuseOps
from aotc.relay.transform.infer_type import InferType as InferType
from aotc.relay.transform.inline import Inline as Inline
from aotc.relay.transform.lambda_lift import LambdaLift as LambdaLift
from aotc.relay.transform.merge_composite import MergeComposite as MergeComposite
from aotc.relay.transform.partition_graph import PartitionGraph as PartitionGraph
from aotc.relay.transform.remove_unused_functions import RemoveUnusedFunctions as RemoveUnusedFunctions
from aotc.relay.transform.select_layout import SelectLayout as SelectLayout
from aotc.relay.transform.simplify_expr import SimplifyExpr as SimplifyExpr
from aotc.relay.transform.simplify_inference import SimplifyInference as SimplifyInference
from aotc.relay.transform.split_args import SplitArgs as SplitArgs
from aotc.relay.transform.to_a_normal_form import ToANormalForm as ToANormalForm
from aotc.relay.transform.to_a_normal_form import ToBasicBlockNormalForm as ToBasicBlockNormalForm
from aotc.relay.transform.to_graph_normal_form import ToGraphNormalForm as ToGraphNormalForm
from aotc.relay.transform.to_mixed_precision import ToMixedPrecision as ToMixedPrecision

PASSES: Mapping[str, Callable[[], Pass[Any]]]
