# SPDX-License-Identifier: Apache-2.0
"""Properties of operators for layouts, precision and quantization: stated and derived ones are right."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.ir.op import LayoutTreatment, OpPattern, PrecisionTreatment, QuantizationTreatment
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import OpDef
from tests.ops.harness import flat

FACETS = ("layout", "moved", "precision", "quantized")
DERIVED = {"layout": "layout_treatment", "precision": "precision_treatment", "quantized": "quantization_treatment"}
"""Property with the value of a facet, stated or derived, by facet."""
STATED = {
    "layout=FOLLOW": """
        image.crop_and_resize nn.depth_to_space nn.space_to_depth nn.upsampling nn.upsampling3d vision.roi_align
        vision.roi_pool
    """,
    "layout=BARRIER": """
        after image.dilation2d leading_rows nn.correlation nn.deformable_im2col qnn.add qnn.avg_pool2d qnn.mul
        qnn.subtract require_range
    """,
    "layout=NC": """
        nn.dense
    """,
    "moved": """
        all any argmax argmin max mean min nn.group_norm nn.instance_norm nn.mirror_pad nn.pad prod squeeze
        strided_slice sum take transpose variance
    """,
    "precision=FOLLOW": """
        annotation.stop_fusion argmax argmin argsort dyn.broadcast_to dyn.expand_dims dyn.full dyn.nn.pad dyn.one_hot
        dyn.ones dyn.reshape dyn.squeeze dyn.strided_slice dyn.tile dyn.topk dyn.zeros max min ndarray_size
        nn.adaptive_max_pool1d nn.adaptive_max_pool2d nn.adaptive_max_pool3d nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d
        nn.batch_norm nn.dropout nn.global_max_pool1d nn.global_max_pool2d nn.global_max_pool3d nn.max_pool1d
        nn.max_pool2d nn.max_pool3d one_hot run_automaton scatter_elements scatter_nd searchsorted shape_of sort topk
    """,
    "precision=NEVER": """
        acos acosh asin asinh atanh cosh cumprod cumsum dft dyn.image.resize2d dyn.nn.upsampling dyn.nn.upsampling3d erf
        exp expm1 fast_erf fast_exp image.affine_grid image.crop_and_resize image.dilation2d image.grid_sample log log10
        log1p log2 matrix_determinant ml.compact_tree_ensemble ml.couple_probabilities ml.tree_ensemble ml.tree_votes
        nn.contrib_conv2d_winograd_weight_transform nn.deformable_conv2d nn.deformable_im2col nn.lrn nn.nll_loss power
        qnn.abs qnn.add qnn.batch_matmul qnn.concatenate qnn.conv1d qnn.conv1d_transpose qnn.conv2d
        qnn.conv2d_transpose qnn.conv3d qnn.conv3d_transpose qnn.dense qnn.dequantize qnn.erf qnn.exp qnn.hardswish
        qnn.leaky_relu qnn.log qnn.mul qnn.multiply_add qnn.nearest_int8 qnn.nearest_uint8 qnn.product qnn.quantize
        qnn.requantize qnn.rsqrt qnn.saturate_int8 qnn.saturate_uint8 qnn.scale_once qnn.scale_twice qnn.sigmoid
        qnn.sqrt qnn.subtract qnn.tanh reinterpret rsqrt sinh stft tan vision.non_max_suppression vision.roi_align
        vision.roi_pool vision.select_boxes
    """,
    "quantized=PASS": """
        annotation.stop_fusion copy gather gather_nd max maximum min minimum nn.adaptive_max_pool1d
        nn.adaptive_max_pool2d nn.adaptive_max_pool3d nn.global_max_pool1d nn.global_max_pool2d nn.global_max_pool3d
        nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.pad nn.relu reverse_sequence sort take where
    """,
    "quantized=REFUSE": """
        adv_index image.affine_grid nn.contrib_conv2d_winograd_weight_transform qnn.saturate_int8 qnn.saturate_uint8
    """,
    "quantized=RESCALE": """
        add clip concatenate image.resize1d image.resize2d image.resize3d mean multiply nn.adaptive_avg_pool1d
        nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.bias_add
        nn.global_avg_pool1d nn.global_avg_pool2d nn.global_avg_pool3d nn.space_to_batch_nd nn.upsampling
        nn.upsampling3d stack subtract sum
    """,
}
"""What is stated, by operator: everything that cannot be derived from pattern, axis map and attributes."""

NOTHING = """
    abs annotation.checkpoint annotation.compiler_begin annotation.compiler_end arange atan atan2 bitwise_and
    bitwise_not bitwise_or bitwise_xor broadcast_to broadcast_to_like cast cast_like ceil collapse_sum_like
    collapse_sum_to cos divide dyn.sparse_to_dense einsum equal expand_dims fast_tanh fixed_point_multiply
    fixed_point_multiply_per_axis floor floor_divide floor_mod full full_like greater greater_equal isfinite isinf
    isnan layout_transform left_shift less less_equal logical_and logical_not logical_or logical_xor matrix_set_diag
    meshgrid mod negative nn.batch_flatten nn.batch_matmul nn.batch_to_space_nd
    nn.contrib_conv2d_winograd_without_weight_transform nn.contrib_dense_bits nn.contrib_dense_integer_bits
    nn.contrib_dense_pack nn.contrib_quantize_blocks nn.contrib_round_blocks nn.conv1d
    nn.conv1d_transpose nn.conv2d nn.conv2d_transpose nn.conv3d nn.conv3d_transpose nn.fast_softmax nn.gru
    nn.l2_normalize nn.layer_norm nn.leaky_relu nn.log_softmax nn.lstm nn.matmul nn.prelu nn.rms_norm nn.rnn
    nonzero_positions
    nn.softmax not_equal ones ones_like permute_axes qnn.lstm_by_series qnn.lstm_by_table qnn.softmax repeat reshape
    reshape_like reverse reverse_reshape right_shift round sequence_mask sigmoid sign sin slice_like sliding_window
    sparse_fill_empty_rows sparse_reshape sparse_to_dense split sqrt strided_set tanh tile trilu trunc trunc_divide
    trunc_mod unique unique_rows unravel_index vision.all_class_non_max_suppression vision.get_valid_counts
    vision.multibox_prior vision.multibox_transform_loc vision.proposal vision.yolo_reorg zeros zeros_like
"""
"""Operators that state nothing: whoever adds one decides that the defaults are right for it."""


def stated(op: OpDef) -> set[str]:
    """The statements of an operator, as they are written in `STATED`."""
    found = {facet: getattr(op, facet) for facet in FACETS if getattr(op, facet) is not None}
    return {
        facet if callable(value) else f"{facet}={value if isinstance(value, str) else value.name}"
        for facet, value in found.items()
    }


def test_what_is_stated() -> None:
    expected = {name: {what for what, names in STATED.items() if name in names.split()} for name in OPERATORS_BY_NAME}
    assert {name: stated(op) for name, op in OPERATORS_BY_NAME.items()} == expected
    assert sorted(NOTHING.split()) == sorted(name for name, facets in expected.items() if not facets)
    assert {name for names in STATED.values() for name in names.split()} <= set(OPERATORS_BY_NAME)


@pytest.mark.parametrize("facet", ["layout", "precision", "quantized"])
def test_nothing_is_stated_that_can_be_derived(facet: str) -> None:
    for name, op in OPERATORS_BY_NAME.items():
        if getattr(op, facet) is not None and op.static is None:
            silent = dataclasses.replace(op, **{facet: None})
            assert getattr(silent, DERIVED[facet]) != getattr(op, facet), name


def test_an_operator_that_states_nothing_has_defaults() -> None:
    def kinds(name: str, **changes: Any) -> tuple[Any, ...]:
        plain = dict.fromkeys(FACETS)
        op = dataclasses.replace(OPERATORS_BY_NAME[name], **{**plain, **changes})
        return op.layout_treatment, op.precision_treatment, op.quantization_treatment

    assert kinds("exp") == (LayoutTreatment.CARRY, PrecisionTreatment.FOLLOW, QuantizationTreatment.REFUSE)
    assert kinds("reshape") == (LayoutTreatment.CARRY, PrecisionTreatment.FOLLOW, QuantizationTreatment.PASS)
    assert kinds("nn.softmax") == (LayoutTreatment.CARRY, PrecisionTreatment.NEVER, QuantizationTreatment.REFUSE)
    assert kinds("nn.conv2d") == (LayoutTreatment.CHOICE, PrecisionTreatment.ALWAYS, QuantizationTreatment.RESCALE)
    assert kinds("nn.max_pool2d") == (LayoutTreatment.CHOICE, PrecisionTreatment.NEVER, QuantizationTreatment.REFUSE)
    assert kinds("nn.lstm") == (LayoutTreatment.BARRIER, None, QuantizationTreatment.REFUSE)
    assert kinds("exp", pattern=OpPattern.OPAQUE, axes=None) == (
        LayoutTreatment.BARRIER,
        None,
        QuantizationTreatment.REFUSE,
    )
    assert OPERATORS_BY_NAME["nn.conv2d"].default_data_and_kernel_layouts == ("NCHW", "OIHW")
    assert OPERATORS_BY_NAME["nn.conv1d_transpose"].default_data_and_kernel_layouts == ("NCW", "IOW")


PASSING = {
    name: op for name, op in OPERATORS_BY_NAME.items() if op.quantization_treatment is QuantizationTreatment.PASS
}


@pytest.mark.parametrize("op", PASSING.values(), ids=PASSING)
def test_operators_that_pass_take_a_scale_through(op: OpDef) -> None:
    """Integers less a zero point, times a scale: the operator's result is so of its result on the integers.

    But for nn.relu, which has the zero point for its bound, and blocks that are filled up with zeros.
    """
    zero = 0 if op.name in ("nn.relu", "layout_transform") else 3
    rng = np.random.default_rng(3)
    tried = 0
    for sample in op.samples():
        integers = [scaled(value, rng) for value in sample.args]
        if not any(a.dtype == np.float32 for a in flat(tuple(integers))):
            continue
        real = op.reference(sample.attrs, *(meant(value, zero) for value in integers))
        exact = op.reference(sample.attrs, *integers)
        tried += 1
        for expected, found in zip(flat(meant(exact, zero)), flat(real), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert tried


def scaled(value: Any, rng: np.random.Generator) -> Any:
    """Small integers in the place of floating values."""
    if isinstance(value, tuple):
        return tuple(scaled(v, rng) for v in value)
    floats = DType.from_numpy(value).is_float and value.dtype == np.float32
    return rng.integers(-128, 128, value.shape).astype(np.float32) if floats else value


def meant(value: Any, zero: int) -> Any:
    if isinstance(value, tuple):
        return tuple(meant(v, zero) for v in value)
    return (value - np.float32(zero)) * np.float32(0.25) if value.dtype == np.float32 else value
