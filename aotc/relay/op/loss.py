# SPDX-License-Identifier: Apache-2.0
"""Loss functions: nn.nll_loss (negative log likelihood).

nll_loss(log_softmax(x), targets, weights)        # x (N, C), targets (N), weights (C): a scalar
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aotc.ir import Attrs, AxisMap, PrecisionTreatment, TensorType, Type, Types, declare_arguments, require
from aotc.relay.expr import Call, Constant, Expr, tensor_type_of
from aotc.relay.op import binary_elementwise, cast_clip_prelu, elementwise_unary, gather, reduce, shape
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    Samples,
    may_be_equal_dims,
    random_array,
    widen_narrow_float_array,
)
from aotc.relay.op.type_rules import (
    require_dtype,
    require_float_tensor,
    require_known_name,
    require_same_dtype,
    require_tensor_of_rank,
    require_tensor_type,
)

_LOSS_REDUCTIONS: Final = ("mean", "sum", "none")


class NLLLossAttrs(Attrs):
    """Negative log likelihood -weights[t] * predictions[n, t, ...] for each target t = targets[n,
    ...].

    predictions (N, C, d1, ..., dk), targets (N, d1, ..., dk), weights (C). Targets equal to
    `ignore_index` contribute nothing; others are clipped to 0 .. C - 1. `reduction` is "none",
    "sum", or "mean", the weighted mean.
    """

    reduction: str = "mean"
    ignore_index: int = -100


def _infer_nll_loss_type(a: NLLLossAttrs, types: Types) -> Type:
    data, targets, weights = (
        require_float_tensor(types[0]),
        require_tensor_type(types[1], "targets"),
        require_tensor_type(types[2], "weights"),
    )
    require_known_name("nll_loss.reduction", "reduction", a.reduction, _LOSS_REDUCTIONS)
    require_same_dtype(data, require_tensor_of_rank("nll_loss.weights", weights, 1, "weights"))
    require_dtype(targets.dtype, str(targets.dtype) in ("int32", "int64"))
    require("nll_loss.rank", data.rank >= 2, lambda: f"predictions need axes of samples and of classes, got {data}")
    expected = (data.shape[0], *data.shape[2:])
    same = len(expected) == targets.rank and all(map(may_be_equal_dims, expected, targets.shape))
    require("nll_loss.targets", same, lambda: f"targets {targets} do not fit predictions {data}")
    fits = may_be_equal_dims(data.shape[1], weights.shape[0])
    require("nll_loss.weights", fits, lambda: f"weights {weights} do not fit axis 1 of {data}")
    require("nll_loss.empty", data.shape[1] != 0, lambda: f"there are no classes in {data}")
    return TensorType(targets.shape if a.reduction == "none" else (), data.dtype)


def _nll_loss_reference(a: NLLLossAttrs, data: Array, targets: Array, weights: Array) -> Array:
    narrow, data, weights = data.dtype, widen_narrow_float_array(data), widen_narrow_float_array(weights)
    ignored, at = targets == a.ignore_index, gather.clip_index(targets, data.shape[1])
    weight = np.where(ignored, 0, weights[at])
    values = np.take_along_axis(data, np.expand_dims(at, 1), 1).squeeze(1)
    loss = np.where(ignored, 0, -values * weight)
    if a.reduction != "none":
        loss = loss.sum() / (weight.sum() if a.reduction == "mean" else 1)
    return np.asarray(loss).astype(narrow)


def _expand_nll_loss(a: NLLLossAttrs, data: Expr, targets: Expr, weights: Expr) -> Expr:
    return cast_clip_prelu.compute_narrow_floats_in_float32(
        lambda x, w: _nll_loss_in_dtype_of_data(a, x, targets, w), data, weights
    )


def _nll_loss_in_dtype_of_data(a: NLLLossAttrs, data: Expr, targets: Expr, weights: Expr) -> Call:
    ty, given = tensor_type_of(data), cast_clip_prelu.cast(targets, "int64")
    ignored = binary_elementwise.equal(given, Constant(np.asarray(a.ignore_index, np.int64)))
    last = Constant(np.asarray(ty.static_shape[1] - 1, np.int64))
    at = binary_elementwise.minimum(binary_elementwise.maximum(given, Constant(np.asarray(0, np.int64))), last)
    nothing = Constant(np.zeros((), ty.dtype.numpy))
    weight = binary_elementwise.where(ignored, nothing, gather.take(weights, at, axis=0))
    values = shape.squeeze(gather.gather(data, 1, shape.expand_dims(at, 1)), axis=1)
    loss = binary_elementwise.where(
        ignored, nothing, elementwise_unary.negative(binary_elementwise.multiply(values, weight))
    )
    if a.reduction == "none":
        return loss
    total = reduce.sum(loss)
    return binary_elementwise.divide(total, reduce.sum(weight)) if a.reduction == "mean" else total


def _nll_loss_axis_map(a: NLLLossAttrs, types: Types) -> AxisMap:
    if a.reduction != "none":
        return AxisMap(((),) * 3)
    rank = require_tensor_type(types[1]).rank
    return AxisMap(((0, *range(2, rank + 1)), tuple(range(rank)), (None,) * rank))


def _nll_loss_test_samples() -> Samples:
    for reduction, dtype in (("mean", "int32"), ("sum", "int64"), ("none", "int32")):
        for space in ((), (2, 2)):
            targets = (random_array((4, *space), "int8", 1) % 7 - 2).astype(dtype)
            a = NLLLossAttrs(reduction=reduction, ignore_index=2)
            yield Sample(args=(random_array((4, 3, *space)), targets, np.abs(random_array((3,), seed=2))), attrs=a)


nll_loss = OpDef(
    name="nn.nll_loss",
    attrs=NLLLossAttrs,
    args=declare_arguments("predictions", "targets", "weights"),
    infer=_infer_nll_loss_type,
    reference=_nll_loss_reference,
    axes=_nll_loss_axis_map,
    expand=_expand_nll_loss,
    precision=PrecisionTreatment.NEVER,
    samples=_nll_loss_test_samples,
)
