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

from aotc.ir import AxisMap, OpPattern, Precision, TensorType, TupleType, Type, Types, args, require
from aotc.ir.attrs import REQUIRED, Attrs, param
from aotc.relay.expr import Expr, TupleGetItem
from aotc.relay.op import type_rules
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import (
    as_dtype,
    cases,
    convert,
    float_work,
    promoted,
    random_array,
    random_sample,
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
    """data / sqrt(mean(data^2) + epsilon) * gamma, the mean along one axis (Zhang and Sennrich, 2019)."""

    axis: int = -1
    epsilon: float = 1e-5


class InstanceNormAttrs(BatchNormAttrs):
    """Normalization of each channel (along `axis`) of each batch item over all other axes."""


class GroupNormAttrs(Attrs):
    """Normalization of each group of channels of each batch item; gamma and beta are per channel."""

    num_groups: int = param(default=0, given=REQUIRED)
    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


class L2NormalizeAttrs(Attrs):
    """data / sqrt(max(sum(data^2), eps)), the sum over `axis` (None: all axes)."""

    eps: float
    axis: tuple[int, ...] | None = param(given=None)


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


def _copy(x: Tensor, name: str) -> Tensor:
    return te.compute(x.shape, lambda *v: x[v], name)


# --- nn.batch_norm


def _infer_batch(a: BatchNormAttrs, types: Types) -> Type:
    data = type_rules.tensor(_infer_norm(a, types))
    vector = TensorType((data.shape[a.axis],), data.dtype)
    return TupleType((data, vector, vector))


def _compute_batch(a: BatchNormAttrs, *args: Tensor) -> tuple[Tensor, ...]:
    """Compute data * factor + shift, with one factor and one shift per channel."""
    data, gamma, beta, mean, var = (promoted(x) for x in args)
    axis = type_rules.axis_of(a.axis, data.rank)

    def factor(c: Scalar) -> Scalar:
        root = 1.0 / call("sqrt", var[c] + a.epsilon)
        return root * gamma[c] if a.scale else root

    factors = te.compute(mean.shape, factor, "factor", materialize=True)

    def shift(c: Scalar) -> Scalar:
        moved = -(mean[c] * factors[c])
        return moved + beta[c] if a.center else moved

    shifts = te.compute(mean.shape, shift, "shift", materialize=True)
    result = te.compute(data.shape, lambda *v: data[v] * factors[v[axis]] + shifts[v[axis]], "batch_norm")
    kept = tuple(_copy(s, "moving") for s in args[3:])
    return convert(result, args[0].dtype), *kept


def _reference_batch(
    a: BatchNormAttrs, data: Array, gamma: Array, beta: Array, mean: Array, var: Array
) -> tuple[Array, Array, Array]:
    factor = 1 / np.sqrt(float_work(var) + float_work(var).dtype.type(a.epsilon))
    factor = factor * float_work(gamma) if a.scale else factor
    shift = -float_work(mean) * factor + (float_work(beta) if a.center else 0)
    x = float_work(data)
    factor, shift = (type_rules.broadcast_along(v, a.axis, x.ndim) for v in (factor, shift))
    result = x * factor + shift
    return result.astype(data.dtype), mean.copy(), var.copy()


def _samples_batch() -> Samples:
    for a in (BatchNormAttrs(), BatchNormAttrs(axis=-1, epsilon=1e-3), BatchNormAttrs(scale=False, center=False)):
        n = 4 if a.axis == -1 else 3
        params = [random_array((n,), seed=k) for k in (1, 2, 3)]
        yield Sample(args=(random_array((2, 3, 5, 4)), *params, np.abs(random_array((n,), seed=4))), attrs=a)


# --- normalization of groups of elements: layer, instance, group norm


# These operators have tensor programs of their own, since an expansion to other operators needs a
# kernel for each reduction.  Microseconds on one core with AVX-512, program and expansion: layer
# norm of (128, 768) 31 and 40; instance norm of (1, 64, 56, 56) 50 and 73; group norm of it with 8
# groups 46 and 64; l2_normalize of (128, 768) 16 and 18.


def _normalized(data: Tensor, axes: Sequence[int], epsilon: float, centered: bool = True) -> Tensor:
    """Return (data - mean) / sqrt(variance + epsilon), with statistics over the axes `axes`.

    centered    if False, the mean is assumed to be zero
    """
    group = Reduction(data.shape, tuple(axes))
    count = float(max(group.count, 1))
    total = group.reduce("sum", data.__getitem__)
    mean = te.compute(group.result, lambda *v: total[v] / count, "mean", materialize=True)

    def moved(index: tuple[Scalar, ...]) -> Scalar:
        return data[index] - mean[group.at(index)] if centered else data[index]

    def square(index: tuple[Scalar, ...]) -> Scalar:
        difference = moved(index)
        return difference * difference

    squares = group.reduce("sum", square, "squares")
    scale = _inverse_root(group, lambda *v: squares[v] / count + epsilon)

    return te.compute(data.shape, lambda *v: moved(v) * scale[group.at(v)], "normalized")


def _inverse_root(group: Reduction, of: Callable[..., Scalar]) -> Tensor:
    """Return 1 / sqrt(of(group)) for each group of elements."""
    return te.compute(group.result, lambda *v: 1.0 / call("sqrt", of(*v)), "scale", materialize=True)


def _affine(a: Any, x: Any, gamma: Any, beta: Any) -> Any:
    """Return x * gamma + beta for scalars or arrays; attributes `scale` and `center` disable gamma
    and beta.
    """
    value = x * gamma if a.scale else x
    return value + beta if a.center else value


def _split(a: Any, shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return the shape of the data with the channel axis split into (group, channel) for group
    norm, else unchanged.
    """
    if not isinstance(a, GroupNormAttrs):
        return tuple(shape)
    return (*shape[:axis], a.num_groups, shape[axis] // a.num_groups, *shape[axis + 1 :])


def _within(whole: bool, axis: int, rank: int) -> tuple[int, ...]:
    """Return the axes that statistics are computed over: `axis`, or all axes except the batch and
    channel axes.
    """
    return (axis,) if whole else tuple(k for k in range(1, rank) if k != axis)


def _compute_norm(whole: bool, a: Any, *args: Tensor) -> Tensor:
    data, gamma, beta = (promoted(x) for x in args)
    axis = type_rules.axis_of(a.axis, data.rank)
    split = _split(a, data.shape, axis)
    x = te.view(data, split) if split != data.shape else data
    x = _normalized(x, _within(whole, axis, x.rank), a.epsilon)
    x = te.view(x, data.shape) if split != data.shape else x
    result = te.compute(x.shape, lambda *v: _affine(a, x[v], gamma[v[axis]], beta[v[axis]]), "norm")
    return convert(result, args[0].dtype)


def _reference_norm(whole: bool, a: Any, data: Array, gamma: Array, beta: Array) -> Array:
    axis = a.axis % data.ndim
    x = float_work(data).reshape(_split(a, data.shape, axis))
    axes = _within(whole, axis, x.ndim)
    mean = x.mean(axis=axes, keepdims=True)
    variance = np.square(x - mean).mean(axis=axes, keepdims=True)
    y = ((x - mean) / np.sqrt(variance + np.asarray(a.epsilon, x.dtype))).reshape(data.shape)
    gamma, beta = (type_rules.broadcast_along(float_work(v), axis, y.ndim) for v in (gamma, beta))
    return as_dtype(_affine(a, y, gamma, beta), data.dtype)


def _infer_norm(a: Any, types: Types) -> Type:
    data = type_rules.float_tensor(types[0])
    type_rules.check_vectors("norm.params", a, data, types[1:], "parameter")
    return data


def _infer_instance(a: Any, types: Types) -> Type:
    data = type_rules.float_tensor(types[0])
    require("norm.rank", data.rank >= 2, lambda: f"data must have a batch axis and channels, got {data}")
    require("axis", type_rules.axis_of(a.axis, data.rank) > 0, "axis 0 is the batch")
    return _infer_norm(a, types)


def _infer_group(a: GroupNormAttrs, types: Types) -> Type:
    data = type_rules.tensor(_infer_instance(a, types))
    channels = data.shape[type_rules.axis_of(a.axis, data.rank)]
    require("norm.groups", a.num_groups > 0, f"num_groups must be positive, got {a.num_groups}")
    even = not isinstance(channels, int) or channels % a.num_groups == 0
    require("norm.groups", even, f"{channels} channels cannot be divided into {a.num_groups} groups")
    return data


def _moved(a: Any, types: Types, now: Callable[[int], int]) -> Any:
    """Return the attributes after a permutation of the axes; None unless the batch axis stays
    first.
    """
    return a.replace(axis=now(a.axis % type_rules.tensor(types[0]).rank)) if now(0) == 0 else None


def _batch_axis(_: Any, types: Types) -> AxisMap:
    return AxisMap(((0, *(None,) * (type_rules.tensor(types[0]).rank - 1)),))


_LAYER: Any = (
    (((2, 3, 16), (16,), (16,)), {}),
    (((2, 3, 5), (3,), (3,)), {"axis": 1, "scale": False}),
    (((2, 8), (8,), (8,)), {"center": False}, "float16"),
)
_INSTANCE: Any = ((((2, 3, 5, 4), (3,), (3,)), {}), (((2, 5, 3), (3,), (3,)), {"axis": -1, "epsilon": 1e-3}))
_GROUP: Any = (
    (((2, 6, 5, 4), (6,), (6,)), {"num_groups": 3}),
    (((2, 4, 6), (6,), (6,)), {"num_groups": 2, "axis": 2}),
    (((1, 4, 3), (4,), (4,)), {"num_groups": 4, "scale": False}),
)


# --- nn.rms_norm


def _compute_rms(a: RMSNormAttrs, *args: Tensor) -> Tensor:
    data, gamma = (promoted(x) for x in args)
    axis = type_rules.axis_of(a.axis, data.rank)
    x = _normalized(data, (axis,), a.epsilon, centered=False)
    return convert(te.compute(x.shape, lambda *v: x[v] * gamma[v[axis]], "norm"), args[0].dtype)


def _reference_rms(a: RMSNormAttrs, data: Array, gamma: Array) -> Array:
    x = float_work(data)
    square = np.square(x).mean(axis=a.axis, keepdims=True) + np.asarray(a.epsilon, x.dtype)
    gamma = type_rules.broadcast_along(float_work(gamma), a.axis % x.ndim, x.ndim)
    return as_dtype(x / np.sqrt(square) * gamma, data.dtype)


_RMS: Any = (
    (((2, 3, 16), (16,)), {}),
    (((2, 3, 5), (3,)), {"axis": 1, "epsilon": 1e-3}),
    (((3, 8), (8,)), {}, "float16"),
)


# --- nn.l2_normalize


def _compute_l2(a: L2NormalizeAttrs, x: Tensor) -> Tensor:
    data = promoted(x)
    group = Reduction(data.shape, type_rules.axes_of(a.axis, data.rank))
    total = group.reduce("sum", lambda index: data[index] * data[index], "squares")
    scale = _inverse_root(group, lambda *v: maximum(total[v], a.eps))
    result = te.compute(data.shape, lambda *v: data[v] * scale[group.at(v)], "l2_normalize")
    return convert(result, x.dtype)


def _reference_l2(a: L2NormalizeAttrs, data: Array) -> Array:
    x = float_work(data)
    total = np.square(x).sum(axis=type_rules.axes_of(a.axis, x.ndim), keepdims=True)
    return as_dtype(x / np.sqrt(np.maximum(total, np.asarray(a.eps, x.dtype))), data.dtype)


def _samples_l2() -> Samples:
    yield random_sample(((2, 3, 5),), L2NormalizeAttrs(eps=1e-12, axis=(1,)))
    yield random_sample(((2, 3, 5),), L2NormalizeAttrs(eps=1e-3, axis=(-1, 1)))
    yield Sample(args=(np.zeros((2, 3), np.float32),), attrs=L2NormalizeAttrs(eps=1e-6, axis=(1,)))


# --- nn.lrn


def _infer_lrn(a: LRNAttrs, types: Types) -> Type:
    data = type_rules.float_along_axis(a, types)
    require("lrn.size", a.size > 0, f"size must be positive, got {a.size}")
    return data


def _compute_lrn(a: LRNAttrs, x: Tensor) -> Tensor:
    data = promoted(x)
    axis = type_rules.axis_of(a.axis, data.rank)
    extent, before = data.shape[axis], (a.size - 1) // 2

    def square(*v: Scalar) -> Scalar:
        where = (*v[:axis], v[axis] + v[-1] - before, *v[axis + 1 : -1])
        value = data[where]
        return value * value

    def guard(*v: Scalar) -> Scalar:
        at = v[axis] + v[-1] - before
        return all_of(at >= 0, at < extent)

    total = te.reduce("sum", data.shape, (a.size,), square, "squares", guard=guard)

    def body(*v: Scalar) -> Scalar:
        return data[v] / call("pow", total[v] * (a.alpha / a.size) + a.bias, a.beta)

    return convert(te.compute(data.shape, body, "lrn"), x.dtype)


def _reference_lrn(a: LRNAttrs, data: Array) -> Array:
    x = np.moveaxis(float_work(data), a.axis, -1)
    before, extent = (a.size - 1) // 2, x.shape[-1]
    squares = np.pad(np.square(x), [(0, 0)] * (x.ndim - 1) + [(before, a.size - 1 - before)])
    total = reduce(add, (squares[..., k : k + extent] for k in range(a.size)))
    y = x / np.power(total * x.dtype.type(a.alpha / a.size) + x.dtype.type(a.bias), x.dtype.type(a.beta))
    return as_dtype(np.moveaxis(y, -1, a.axis), data.dtype)


_LRN: Any = (
    (((2, 7, 3, 2),), {"bias": 1.0, "alpha": 0.5}),
    (((2, 4, 6),), {"size": 3, "axis": -1, "alpha": 0.1}),
    (((1, 5, 2),), {"size": 2, "alpha": 0.1}),
)


# --- nn.dropout


def _infer_dropout(a: DropoutAttrs, types: Types) -> Type:
    data = type_rules.tensor(types[0])
    require("dropout.rate", 0 <= a.rate < 1, f"rate must be in [0, 1), got {a.rate}")
    return TupleType((data, data))


def _compute_dropout(a: DropoutAttrs, data: Tensor) -> tuple[Tensor, ...]:
    kept = te.compute(data.shape, lambda *_: const(1, data.dtype), "mask")
    return _copy(data, "dropout"), kept


batch_norm = OpDef(
    name="nn.batch_norm",
    attrs=BatchNormAttrs,
    args=args("data", "gamma", "beta", "moving_mean", "moving_var"),
    infer=_infer_batch,
    refine=type_rules.vectors_along_axis,
    reference=_reference_batch,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=type_rules.elements_and_vectors,
    compute=_compute_batch,
    precision=Precision.FOLLOW,
    samples=_samples_batch,
)


def _norm(name: str, attributes: type[Attrs], infer: Any, samples: Any, whole: bool = False) -> OpDef:
    """Return the OpDef of a normalization.

    whole  True if statistics are over `axis` only; False if over all axes except batch and channels
    """
    return OpDef(
        name=name,
        attrs=attributes,
        args=args("data", "gamma", "beta"),
        infer=infer,
        refine=type_rules.vectors_along_axis,
        reference=partial(_reference_norm, whole),
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        axes=type_rules.all_but_axis if whole else _batch_axis,
        moved=None if whole else _moved,
        compute=partial(_compute_norm, whole),
        samples=cases(attributes, samples),
    )


layer_norm = _norm("nn.layer_norm", LayerNormAttrs, _infer_norm, _LAYER, whole=True)
instance_norm = _norm("nn.instance_norm", InstanceNormAttrs, _infer_instance, _INSTANCE)
group_norm = _norm("nn.group_norm", GroupNormAttrs, _infer_group, _GROUP)
rms_norm = OpDef(
    name="nn.rms_norm",
    attrs=RMSNormAttrs,
    args=args("data", "gamma"),
    infer=_infer_norm,
    refine=type_rules.vectors_along_axis,
    reference=_reference_rms,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=type_rules.all_but_axis,
    compute=_compute_rms,
    samples=cases(RMSNormAttrs, _RMS),
)
l2_normalize = OpDef(
    name="nn.l2_normalize",
    attrs=L2NormalizeAttrs,
    infer=type_rules.float_along_axis,
    reference=_reference_l2,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=type_rules.all_but_axis,
    compute=_compute_l2,
    samples=_samples_l2,
)
lrn = OpDef(
    name="nn.lrn",
    attrs=LRNAttrs,
    infer=_infer_lrn,
    reference=_reference_lrn,
    axes=type_rules.all_but_axis,
    compute=_compute_lrn,
    precision=Precision.NEVER,
    samples=cases(LRNAttrs, _LRN),
)
DROPOUT = OpDef(
    name="nn.dropout",
    attrs=DropoutAttrs,
    infer=_infer_dropout,
    reference=lambda _, data: (data.copy(), np.ones_like(data)),
    compute=_compute_dropout,
    precision=Precision.FOLLOW,
    axes=type_rules.pointwise,
    samples=cases(DropoutAttrs, ((((2, 3),), {}), (((3,),), {"rate": 0.25}, "int32"))),
)


def dropout(data: Expr, rate: float = 0.5) -> TupleGetItem:
    """The data unchanged: inference drops no elements."""
    return TupleGetItem(DROPOUT(data, rate), 0)
