# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Mapping
from typing import Any

from aotc.ir import Pass
from aotc.relay.transform.annotate_spans import AnnotateSpans as AnnotateSpans
from aotc.relay.transform.annotate_spans import InferTypeLocal as InferTypeLocal
from aotc.relay.transform.canonicalize_qnn_ops import QnnCanonicalizeOps as QnnCanonicalizeOps
from aotc.relay.transform.change_batch import ChangeBatch as ChangeBatch
from aotc.relay.transform.combine_parallel import CombineParallelBatchMatmul as CombineParallelBatchMatmul
from aotc.relay.transform.combine_parallel import CombineParallelConv2D as CombineParallelConv2D
from aotc.relay.transform.combine_parallel import CombineParallelDense as CombineParallelDense
from aotc.relay.transform.common_subexpressions import CanonicalizeCast as CanonicalizeCast
from aotc.relay.transform.common_subexpressions import EliminateCommonSubexpr as EliminateCommonSubexpr
from aotc.relay.transform.compact_trees import CompactTrees as CompactTrees
from aotc.relay.transform.convert_layout import ConvertLayout as ConvertLayout
from aotc.relay.transform.expand_ops import CanonicalizeOps as CanonicalizeOps
from aotc.relay.transform.expand_ops import ExpandOps as ExpandOps
from aotc.relay.transform.expand_ops import FastMath as FastMath
from aotc.relay.transform.expand_ops import SimplifyInference as SimplifyInference
from aotc.relay.transform.external_compilers import AnnotateTarget as AnnotateTarget
from aotc.relay.transform.external_compilers import MergeCompilerRegions as MergeCompilerRegions
from aotc.relay.transform.external_compilers import MergeComposite as MergeComposite
from aotc.relay.transform.external_compilers import PartitionGraph as PartitionGraph
from aotc.relay.transform.fake_quantization_to_integer import FakeQuantizationToInteger as FakeQuantizationToInteger
from aotc.relay.transform.first_layers_in_patches import PatchFirstLayers as PatchFirstLayers
from aotc.relay.transform.fold_constant import DynamicToStatic as DynamicToStatic
from aotc.relay.transform.fold_constant import FoldConstant as FoldConstant
from aotc.relay.transform.fold_padding_dilation import FlattenAtrousConv as FlattenAtrousConv
from aotc.relay.transform.fold_padding_dilation import FoldExplicitPadding as FoldExplicitPadding
from aotc.relay.transform.fold_scale_axis import BackwardFoldScaleAxis as BackwardFoldScaleAxis
from aotc.relay.transform.fold_scale_axis import FoldScaleAxis as FoldScaleAxis
from aotc.relay.transform.fold_scale_axis import ForwardFoldScaleAxis as ForwardFoldScaleAxis
from aotc.relay.transform.fuse_attention import FuseAttention as FuseAttention
from aotc.relay.transform.fuse_ops import DefuseOps as DefuseOps
from aotc.relay.transform.fuse_ops import FuseOps as FuseOps
from aotc.relay.transform.fuse_outputs import FuseOutputs as FuseOutputs
from aotc.relay.transform.inline_eta_expand_lambda_lift import EtaExpand as EtaExpand
from aotc.relay.transform.inline_eta_expand_lambda_lift import Inline as Inline
from aotc.relay.transform.inline_eta_expand_lambda_lift import LambdaLift as LambdaLift
from aotc.relay.transform.inline_eta_expand_lambda_lift import RemoveUnusedFunctions as RemoveUnusedFunctions
from aotc.relay.transform.keep_weights_quantized import PackWeights as PackWeights
from aotc.relay.transform.keep_weights_quantized import RoundProductData as RoundProductData
from aotc.relay.transform.legalize import Legalize as Legalize
from aotc.relay.transform.let_conversion import DeadCodeElimination as DeadCodeElimination
from aotc.relay.transform.let_conversion import ToANormalForm as ToANormalForm
from aotc.relay.transform.let_conversion import ToBasicBlockNormalForm as ToBasicBlockNormalForm
from aotc.relay.transform.let_conversion import ToGraphNormalForm as ToGraphNormalForm
from aotc.relay.transform.move_widening_to_readers import StoreNarrow as StoreNarrow
from aotc.relay.transform.pack_constant_weights import AlterOpLayout as AlterOpLayout
from aotc.relay.transform.pack_int4 import PackNibbles as PackNibbles
from aotc.relay.transform.pass_base import InferType as InferType
from aotc.relay.transform.pass_base import function_pass as function_pass
from aotc.relay.transform.quantized_model_inputs_outputs import QuantizedEdges as QuantizedEdges
from aotc.relay.transform.select_layout import SelectLayout as SelectLayout
from aotc.relay.transform.select_signedness import SelectSignedness as SelectSignedness
from aotc.relay.transform.share_kernels_across_constants import ShareKernels as ShareKernels
from aotc.relay.transform.simplify_expr import DivToMul as DivToMul
from aotc.relay.transform.simplify_expr import SimplifyExpr as SimplifyExpr
from aotc.relay.transform.split_args import SplitArgs as SplitArgs
from aotc.relay.transform.to_mixed_precision import ToMixedPrecision as ToMixedPrecision

PASSES: Mapping[str, Callable[[], Pass[Any]]]
