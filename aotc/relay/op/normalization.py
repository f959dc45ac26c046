# SPDX-License-Identifier: Apache-2.0
"""Normalizations (batch, layer, instance, group and RMS norm, l2_normalize, lrn) and dropout.

Layer, instance and group norm subtract the mean and divide by the standard deviation of a group of
elements, then scale and shift. The variance is the mean of squared differences from the mean, never
a difference of mean squares.

    batch_norm(x, gamma, beta, mean, var)[0]
    layer_norm(x, gamma, beta, axis=-1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np

from aotc.ir import (
    AxisMap,
    OpPattern,
    PrecisionTreatment,
    TensorType,
    TupleType,
    Type,
    Types,
    declare_arguments,
    require,
)
from aotc.ir.attrs import REQUIRED, Attrs, attribute_field
from aotc.relay.expr import Expr, TupleGetItem
from aotc.relay.op import type_rules
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import (
    cast_array,
    cast_tensor,
    random_array,
    random_sample,
    random_samples_from_rows,
    widen_narrow_float_array,
    widen_narrow_float_tensor,
)
from aotc.relay.op.reduce import Reduction
from aotc.tir import Tensor, all_of, call, const, maximum, te


class BatchNormAttrs(Attrs):
    """Batch normalization with moving statistics: a tuple of the normalized data, the mean and the
    variance.
    """

    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


class LayerNormAttrs(BatchNormAttrs):
    """Layer normalization along one axis, scaled by gamma and shifted by beta."""

    axis: int = -1


class RMSNormAttrs(Attrs):
    """data / sqrt(mean(data^2) + epsilon) * gamma, the mean along one axis (Zhang and Sennrich,
    2019).
    """

    axis: int = -1
    epsilon: float = 1e-5


class InstanceNormAttrs(BatchNormAttrs):
    """Normalization of each channel (along `axis`) of each batch item over all other axes."""


class GroupNormAttrs(Attrs):
    """Normalization of each group of channels of each batch item; gamma and beta are per channel."""

    num_groups: int = attribute_field(default=0, parameter_default=REQUIRED)
    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


class L2NormalizeAttrs(Attrs):
    """data / sqrt(max(sum(data^2), eps)), the sum over `axis` (None: all axes)."""

    eps: float
    axis: tuple[int, ...] | None = attribute_field(parameter_default=None)


class LRNAttrs(Attrs):
    """data / (bias + alpha / size * sum of the squares of `size` neighbors along `axis`) ^ beta.

    If `size` is even, one more neighbor after the element than before it is included, as in ONNX.
    """

    size: int = 5
    axis: int = 1
    bias: float = 2.0
    alpha: float = 0.0001
    beta: float = 0.75


class DropoutAttrs(Attrs):
    """The data unchanged: inference drops no elements."""

    rate: float = 0.5


def _copy_tensor(x: Tensor, name: str) -> Tensor:
    return te.compute(x.shape, lambda *v: x[v], name)


# --- nn.batch_norm


def _infer_batch_norm_type(a: BatchNormAttrs, types: Types) -> Type:
    data = type_rules.require_tensor_type(_infer_normalization_type(a, types))
    vector = TensorType((data.shape[a.axis],), data.dtype)
    return TupleType((data, vector, vector))


def _compute_batch_norm(a: BatchNormAttrs, *args: Tensor) -> tuple[Tensor, ...]:
    """Compute data * factor + shift, with one factor and one shift per channel."""
    data, gamma, beta, mean, var = (widen_narrow_float_tensor(x) for x in args)
    axis = type_rules.normalize_axis(a.axis, data.rank)

    def batch_norm_factor_of_channel(c: Scalar) -> Scalar:
        root = 1.0 / call("sqrt", var[c] + a.epsilon)
        return root * gamma[c] if a.scale else root

    factors = te.compute(mean.shape, batch_norm_factor_of_channel, "factor", materialize=True)

    def batch_norm_shift_of_channel(c: Scalar) -> Scalar:
        shift = -(mean[c] * factors[c])
        return shift + beta[c] if a.center else shift

    shifts = te.compute(mean.shape, batch_norm_shift_of_channel, "shift", materialize=True)
    result = te.compute(data.shape, lambda *v: data[v] * factors[v[axis]] + shifts[v[axis]], "batch_norm")
    moving_stats = tuple(_copy_tensor(s, "moving") for s in args[3:])
    return cast_tensor(result, args[0].dtype), *moving_stats


def _batch_norm_reference(
    a: BatchNormAttrs, data: Array, gamma: Array, beta: Array, mean: Array, var: Array
) -> tuple[Array, Array, Array]:
    factor = 1 / np.sqrt(widen_narrow_float_array(var) + widen_narrow_float_array(var).dtype.type(a.epsilon))
    factor = factor * widen_narrow_float_array(gamma) if a.scale else factor
    shift = -widen_narrow_float_array(mean) * factor + (widen_narrow_float_array(beta) if a.center else 0)
    x = widen_narrow_float_array(data)
    factor, shift = (type_rules.reshape_to_broadcast_along(v, a.axis, x.ndim) for v in (factor, shift))
    result = x * factor + shift
    return result.astype(data.dtype), mean.copy(), var.copy()


def _batch_norm_test_samples() -> Samples:
    for a in (BatchNormAttrs(), BatchNormAttrs(axis=-1, epsilon=1e-3), BatchNormAttrs(scale=False, center=False)):
        n = 4 if a.axis == -1 else 3
        params = [random_array((n,), seed=k) for k in (1, 2, 3)]
        yield Sample(args=(random_array((2, 3, 5, 4)), *params, np.abs(random_array((n,), seed=4))), attrs=a)


# --- normalization of groups of elements: layer, instance, group norm


# These operators have tensor programs of their own, since an expansion to other operators needs a
# kernel for each reduction.  Microseconds on one core with AVX-512, program and expansion: layer
# norm of (128, 768) 31 and 40; instance norm of (1, 64, 56, 56) 50 and 73; group norm of it with 8
# groups 46 and 64; l2_normalize of (128, 768) 16 and 18.


def _normalize_over_axes(data: Tensor, axes: Sequence[int], epsilon: float, subtract_mean: bool = True) -> Tensor:
    """Return (data - mean) / sqrt(variance + epsilon), with statistics over the axes `axes`.

    subtract_mean    if False, the mean is assumed to be zero
    """
    group = Reduction(data.shape, tuple(axes))
    count = group.averaged_elements_per_result
    total = group.reduce_terms("sum", data.__getitem__)
    mean = te.compute(group.result_shape, lambda *v: total[v] / count, "mean", materialize=True)

    def difference_from_mean(index: tuple[Scalar, ...]) -> Scalar:
        return data[index] - mean[group.result_index_of(index)] if subtract_mean else data[index]

    def squared_difference(index: tuple[Scalar, ...]) -> Scalar:
        difference = difference_from_mean(index)
        return difference * difference

    squares = group.reduce_terms("sum", squared_difference, "squares")
    scale = _inverse_sqrt_per_reduction_result(group, lambda *v: squares[v] / count + epsilon)

    return te.compute(data.shape, lambda *v: difference_from_mean(v) * scale[group.result_index_of(v)], "normalized")


def _inverse_sqrt_per_reduction_result(reduction: Reduction, value_at_result_index: Callable[..., Scalar]) -> Tensor:
    """Return 1 / sqrt(group_value(group)) for each group of elements."""
    return te.compute(
        reduction.result_shape, lambda *v: 1.0 / call("sqrt", value_at_result_index(*v)), "scale", materialize=True
    )


def _scale_and_shift(attrs: Any, x: Any, gamma: Any, beta: Any) -> Any:
    """Return x * gamma + beta for scalars or arrays; attributes `scale` and `center` disable gamma
    and beta.
    """
    value = x * gamma if attrs.scale else x
    return value + beta if attrs.center else value


def _shape_split_into_channel_groups(attrs: Any, shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return the shape of the data with the channel axis split into (group, channel) for group
    norm, else unchanged.
    """
    if not isinstance(attrs, GroupNormAttrs):
        return tuple(shape)
    return (*shape[:axis], attrs.num_groups, shape[axis] // attrs.num_groups, *shape[axis + 1 :])


def _statistics_axes(only_along_axis: bool, axis: int, rank: int) -> tuple[int, ...]:
    """Return the axes that statistics are computed over: `axis`, or all axes except the batch and
    channel axes.
    """
    return (axis,) if only_along_axis else tuple(k for k in range(1, rank) if k != axis)


def _compute_layer_or_group_norm(only_along_axis: bool, attrs: Any, *args: Tensor) -> Tensor:
    data, gamma, beta = (widen_narrow_float_tensor(x) for x in args)
    axis = type_rules.normalize_axis(attrs.axis, data.rank)
    split = _shape_split_into_channel_groups(attrs, data.shape, axis)
    x = te.view(data, split) if split != data.shape else data
    x = _normalize_over_axes(x, _statistics_axes(only_along_axis, axis, x.rank), attrs.epsilon)
    x = te.view(x, data.shape) if split != data.shape else x
    result = te.compute(x.shape, lambda *v: _scale_and_shift(attrs, x[v], gamma[v[axis]], beta[v[axis]]), "norm")
    return cast_tensor(result, args[0].dtype)


def _layer_or_group_norm_reference(only_along_axis: bool, attrs: Any, data: Array, gamma: Array, beta: Array) -> Array:
    axis = attrs.axis % data.ndim
    x = widen_narrow_float_array(data).reshape(_shape_split_into_channel_groups(attrs, data.shape, axis))
    axes = _statistics_axes(only_along_axis, axis, x.ndim)
    mean = x.mean(axis=axes, keepdims=True)
    variance = np.square(x - mean).mean(axis=axes, keepdims=True)
    y = ((x - mean) / np.sqrt(variance + np.asarray(attrs.epsilon, x.dtype))).reshape(data.shape)
    gamma, beta = (
        type_rules.reshape_to_broadcast_along(widen_narrow_float_array(v), axis, y.ndim) for v in (gamma, beta)
    )
    return cast_array(_scale_and_shift(attrs, y, gamma, beta), data.dtype)


def _infer_normalization_type(attrs: Any, types: Types) -> Type:
    data = type_rules.require_float_tensor(types[0])
    type_rules.check_vectors_match_axis("norm.params", attrs, data, types[1:], "parameter")
    return data


def _infer_instance_norm_type(attrs: Any, types: Types) -> Type:
    data = type_rules.require_float_tensor(types[0])
    require("norm.rank", data.rank >= 2, lambda: f"data must have a batch axis and channels, got {data}")
    require("axis", type_rules.normalize_axis(attrs.axis, data.rank) > 0, "axis 0 is the batch")
    return _infer_normalization_type(attrs, types)


def _infer_group_norm_type(a: GroupNormAttrs, types: Types) -> Type:
    data = type_rules.require_tensor_type(_infer_instance_norm_type(a, types))
    channels = data.shape[type_rules.normalize_axis(a.axis, data.rank)]
    require("norm.groups", a.num_groups > 0, f"num_groups must be positive, got {a.num_groups}")
    even = not isinstance(channels, int) or channels % a.num_groups == 0
    require("norm.groups", even, f"{channels} channels cannot be divided into {a.num_groups} groups")
    return data


def _norm_attrs_after_permutation(attrs: Any, types: Types, new_axis_of: Callable[[int], int]) -> Any:
    """Return the attributes after a permutation of the axes; None unless the batch axis stays
    first.
    """
    return (
        attrs.replace(axis=new_axis_of(attrs.axis % type_rules.require_tensor_type(types[0]).rank))
        if new_axis_of(0) == 0
        else None
    )


def _batch_only_axis_map(_: Any, types: Types) -> AxisMap:
    return AxisMap(((0, *(None,) * (type_rules.require_tensor_type(types[0]).rank - 1)),))


_LAYER_NORM_TEST_CASES: Any = (
    (((2, 3, 16), (16,), (16,)), {}),
    (((2, 3, 5), (3,), (3,)), {"axis": 1, "scale": False}),
    (((2, 8), (8,), (8,)), {"center": False}, "float16"),
)
_INSTANCE_NORM_TEST_CASES: Any = (
    (((2, 3, 5, 4), (3,), (3,)), {}),
    (((2, 5, 3), (3,), (3,)), {"axis": -1, "epsilon": 1e-3}),
)
_GROUP_NORM_TEST_CASES: Any = (
    (((2, 6, 5, 4), (6,), (6,)), {"num_groups": 3}),
    (((2, 4, 6), (6,), (6,)), {"num_groups": 2, "axis": 2}),
    (((1, 4, 3), (4,), (4,)), {"num_groups": 4, "scale": False}),
)


# --- nn.rms_norm


def _compute_rms_norm(a: RMSNormAttrs, *args: Tensor) -> Tensor:
    data, gamma = (widen_narrow_float_tensor(x) for x in args)
    axis = type_rules.normalize_axis(a.axis, data.rank)
    x = _normalize_over_axes(data, (axis,), a.epsilon, subtract_mean=False)
    return cast_tensor(te.compute(x.shape, lambda *v: x[v] * gamma[v[axis]], "norm"), args[0].dtype)


def _rms_norm_reference(a: RMSNormAttrs, data: Array, gamma: Array) -> Array:
    x = widen_narrow_float_array(data)
    square = np.square(x).mean(axis=a.axis, keepdims=True) + np.asarray(a.epsilon, x.dtype)
    gamma = type_rules.reshape_to_broadcast_along(widen_narrow_float_array(gamma), a.axis % x.ndim, x.ndim)
    return cast_array(x / np.sqrt(square) * gamma, data.dtype)


_RMS_NORM_TEST_CASES: Any = (
    (((2, 3, 16), (16,)), {}),
    (((2, 3, 5), (3,)), {"axis": 1, "epsilon": 1e-3}),
    (((3, 8), (8,)), {}, "float16"),
)


# --- nn.l2_normalize


def _compute_l2_normalize(a: L2NormalizeAttrs, x: Tensor) -> Tensor:
    data = widen_narrow_float_tensor(x)
    group = Reduction(data.shape, type_rules.normalize_axes(a.axis, data.rank))
    total = group.reduce_terms("sum", lambda index: data[index] * data[index], "squares")
    scale = _inverse_sqrt_per_reduction_result(group, lambda *v: maximum(total[v], a.eps))
    result = te.compute(data.shape, lambda *v: data[v] * scale[group.result_index_of(v)], "l2_normalize")
    return cast_tensor(result, x.dtype)


def _l2_normalize_reference(a: L2NormalizeAttrs, data: Array) -> Array:
    x = widen_narrow_float_array(data)
    total = np.square(x).sum(axis=type_rules.normalize_axes(a.axis, x.ndim), keepdims=True)
    return cast_array(x / np.sqrt(np.maximum(total, np.asarray(a.eps, x.dtype))), data.dtype)


def _l2_normalize_test_samples() -> Samples:
    yield random_sample(((2, 3, 5),), L2NormalizeAttrs(eps=1e-12, axis=(1,)))
    yield random_sample(((2, 3, 5),), L2NormalizeAttrs(eps=1e-3, axis=(-1, 1)))
    yield Sample(args=(np.zeros((2, 3), np.float32),), attrs=L2NormalizeAttrs(eps=1e-6, axis=(1,)))


# --- nn.lrn


def _infer_lrn_type(a: LRNAttrs, types: Types) -> Type:
    data = type_rules.infer_float_along_axis_type(a, types)
    require("lrn.size", a.size > 0, f"size must be positive, got {a.size}")
    return data


def _compute_lrn(a: LRNAttrs, x: Tensor) -> Tensor:
    data = widen_narrow_float_tensor(x)
    axis = type_rules.normalize_axis(a.axis, data.rank)
    extent, before = data.shape[axis], (a.size - 1) // 2

    def squared_neighbor(*v: Scalar) -> Scalar:
        where = (*v[:axis], v[axis] + v[-1] - before, *v[axis + 1 : -1])
        value = data[where]
        return value * value

    def is_neighbor_in_bounds(*v: Scalar) -> Scalar:
        at = v[axis] + v[-1] - before
        return all_of(at >= 0, at < extent)

    total = te.reduce("sum", data.shape, (a.size,), squared_neighbor, "squares", guard=is_neighbor_in_bounds)

    def lrn_normalized_element(*v: Scalar) -> Scalar:
        return data[v] / call("pow", total[v] * (a.alpha / a.size) + a.bias, a.beta)

    return cast_tensor(te.compute(data.shape, lrn_normalized_element, "lrn"), x.dtype)


def _lrn_reference(a: LRNAttrs, data: Array) -> Array:
    x = np.moveaxis(widen_narrow_float_array(data), a.axis, -1)
    before, extent = (a.size - 1) // 2, x.shape[-1]
    squares = np.pad(np.square(x), [(0, 0)] * (x.ndim - 1) + [(before, a.size - 1 - before)])
    total = reduce(add, (squares[..., k : k + extent] for k in range(a.size)))
    y = x / np.power(total * x.dtype.type(a.alpha / a.size) + x.dtype.type(a.bias), x.dtype.type(a.beta))
    return cast_array(np.moveaxis(y, -1, a.axis), data.dtype)


_LRN_TEST_CASES: Any = (
    (((2, 7, 3, 2),), {"bias": 1.0, "alpha": 0.5}),
    (((2, 4, 6),), {"size": 3, "axis": -1, "alpha": 0.1}),
    (((1, 5, 2),), {"size": 2, "alpha": 0.1}),
)


# --- nn.dropout


def _infer_dropout_type(a: DropoutAttrs, types: Types) -> Type:
    data = type_rules.require_tensor_type(types[0])
    require("dropout.rate", 0 <= a.rate < 1, f"rate must be in [0, 1), got {a.rate}")
    return TupleType((data, data))


def _compute_dropout(a: DropoutAttrs, data: Tensor) -> tuple[Tensor, ...]:
    mask = te.compute(data.shape, lambda *_: const(1, data.dtype), "mask")
    return _copy_tensor(data, "dropout"), mask


batch_norm = OpDef(
    name="nn.batch_norm",
    attrs=BatchNormAttrs,
    args=declare_arguments("data", "gamma", "beta", "moving_mean", "moving_var"),
    infer=_infer_batch_norm_type,
    refine=type_rules.infer_missing_vector_types,
    reference=_batch_norm_reference,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=type_rules.elementwise_with_vectors_axis_map,
    compute=_compute_batch_norm,
    precision=PrecisionTreatment.FOLLOW,
    samples=_batch_norm_test_samples,
)


def _normalization_op(
    name: str, attrs_class: type[Attrs], infer: Any, samples: Any, only_along_axis: bool = False
) -> OpDef:
    """Return the OpDef of a normalization.

    only_along_axis    True if statistics are over `axis` only; False if over all axes except batch and
                       channels
    """
    return OpDef(
        name=name,
        attrs=attrs_class,
        args=declare_arguments("data", "gamma", "beta"),
        infer=infer,
        refine=type_rules.infer_missing_vector_types,
        reference=partial(_layer_or_group_norm_reference, only_along_axis),
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        axes=type_rules.axis_map_excluding_axis_attribute if only_along_axis else _batch_only_axis_map,
        moved=None if only_along_axis else _norm_attrs_after_permutation,
        compute=partial(_compute_layer_or_group_norm, only_along_axis),
        samples=random_samples_from_rows(attrs_class, samples),
    )


layer_norm = _normalization_op(
    "nn.layer_norm", LayerNormAttrs, _infer_normalization_type, _LAYER_NORM_TEST_CASES, only_along_axis=True
)
instance_norm = _normalization_op(
    "nn.instance_norm", InstanceNormAttrs, _infer_instance_norm_type, _INSTANCE_NORM_TEST_CASES
)
group_norm = _normalization_op("nn.group_norm", GroupNormAttrs, _infer_group_norm_type, _GROUP_NORM_TEST_CASES)
rms_norm = OpDef(
    name="nn.rms_norm",
    attrs=RMSNormAttrs,
    args=declare_arguments("data", "gamma"),
    infer=_infer_normalization_type,
    refine=type_rules.infer_missing_vector_types,
    reference=_rms_norm_reference,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=type_rules.axis_map_excluding_axis_attribute,
    compute=_compute_rms_norm,
    samples=random_samples_from_rows(RMSNormAttrs, _RMS_NORM_TEST_CASES),
)
l2_normalize = OpDef(
    name="nn.l2_normalize",
    attrs=L2NormalizeAttrs,
    infer=type_rules.infer_float_along_axis_type,
    reference=_l2_normalize_reference,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=type_rules.axis_map_excluding_axis_attribute,
    compute=_compute_l2_normalize,
    samples=_l2_normalize_test_samples,
)
lrn = OpDef(
    name="nn.lrn",
    attrs=LRNAttrs,
    infer=_infer_lrn_type,
    reference=_lrn_reference,
    axes=type_rules.axis_map_excluding_axis_attribute,
    compute=_compute_lrn,
    precision=PrecisionTreatment.NEVER,
    samples=random_samples_from_rows(LRNAttrs, _LRN_TEST_CASES),
)
DROPOUT_OP = OpDef(
    name="nn.dropout",
    attrs=DropoutAttrs,
    infer=_infer_dropout_type,
    reference=lambda _, data: (data.copy(), np.ones_like(data)),
    compute=_compute_dropout,
    precision=PrecisionTreatment.FOLLOW,
    axes=type_rules.elementwise_axis_map,
    samples=random_samples_from_rows(DropoutAttrs, ((((2, 3),), {}), (((3,),), {"rate": 0.25}, "int32"))),
)


def dropout(data: Expr, rate: float = 0.5) -> TupleGetItem:
    """The data unchanged: inference drops no elements."""
    return TupleGetItem(DROPOUT_OP(data, rate), 0)
