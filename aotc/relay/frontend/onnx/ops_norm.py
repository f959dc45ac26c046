# SPDX-License-Identifier: Apache-2.0
"""Converters of normalisations.

OPS["LayerNormalization"](node)         # nn.layer_norm(x, scale, bias), or a composition
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend.onnx.build import (
    add,
    axis_index,
    binary,
    cast,
    constant,
    dim_of,
    dims_of,
    div,
    dtype_of,
    emit,
    field,
    filled,
    mul,
    rank_of,
    reduce,
    reshape,
    shape_of,
    sub,
    where,
)
from aotc.relay.frontend.onnx.load import dtype_of_elem
from aotc.relay.frontend.onnx.node import Converted, Node, Table


def _per_channel(v: Expr, rank: int) -> Expr:
    """A vector laid along axis 1."""
    return reshape(v, (-1, *(1,) * (rank - 2))) if rank > 2 else v


def _batch_normalization(node: Node) -> Converted:
    x, scale, bias, mean, var = (node.input(k) for k in range(5))
    epsilon = node.number("epsilon", 1e-5)
    if node.integer("training_mode"):
        return _batch_training(node, x, scale, bias, mean, var, epsilon)
    if any(node.wants(k) for k in range(1, 5)):
        raise AotcError("onnx-training", "BatchNormalization with statistics as outputs is for training")
    if node.since < 9 and not node.integer("spatial", 1):
        raise AotcError("onnx-norm", "BatchNormalization with spatial=0 is not supported")
    if dtype_of(x) == dtype_of(scale) == dtype_of(mean):
        return [field(emit("nn.batch_norm", x, scale, bias, mean, var, axis=1, epsilon=epsilon), 0)]
    return [_normalized(x, scale, bias, mean, var, epsilon)]


def _normalized(x: Expr, scale: Expr, bias: Expr, mean: Expr, var: Expr, epsilon: float) -> Expr:
    """Batch normalisation where the statistics have another data type than the data: computed in theirs."""
    rank, work = rank_of(x), dtype_of(mean)
    factor = div(cast(scale, work), emit("sqrt", add(var, epsilon)))
    offset = sub(cast(bias, work), mul(mean, factor))
    y = add(mul(cast(x, work), _per_channel(factor, rank)), _per_channel(offset, rank))
    return cast(y, dtype_of(x))


def _batch_training(
    node: Node, x: Expr, scale: Expr, bias: Expr, mean: Expr, var: Expr, epsilon: float
) -> list[Expr | None]:
    """Statistics of the batch itself, and running ones that move towards them."""
    axes = [0, *range(2, rank_of(x))]
    momentum, work = node.number("momentum", 0.9), dtype_of(mean)
    data = cast(x, work)
    batch_mean = reduce("mean", data, axes, False)
    centred = sub(data, _per_channel(batch_mean, rank_of(x)))
    batch_var = reduce("mean", mul(centred, centred), axes, False)
    y = _normalized(x, scale, bias, batch_mean, batch_var, epsilon)
    running = [add(mul(old, momentum), mul(new, 1.0 - momentum)) for old, new in ((mean, batch_mean), (var, batch_var))]
    return [y, *running]


def _instance_normalization(node: Node) -> Expr:
    x, scale, bias = node.input(0), node.input(1), node.input(2)
    return emit("nn.instance_norm", x, scale, bias, axis=1, epsilon=node.number("epsilon", 1e-5))


def _moments(x: Expr, axes: Sequence[int]) -> tuple[Expr, Expr, Expr]:
    """Mean, data minus mean, and variance, reduced axes kept."""
    mean = reduce("mean", x, axes, True)
    centred = sub(x, mean)
    return mean, centred, reduce("mean", mul(centred, centred), axes, True)


def _layer_normalization(node: Node) -> Converted:
    x, scale, bias = node.input(0), node.input(1), node.optional(2)
    rank = rank_of(x)
    axis, epsilon = axis_index(node.integer("axis", -1), rank), node.number("epsilon", 1e-5)
    stash = dtype_of_elem(node.integer("stash_type", 1), "the stash type")
    plain = axis == rank - 1 and rank_of(scale) == 1 and dtype_of(x) == stash and dims_of(scale) == dims_of(x)[-1:]
    if plain and not node.wants(1) and not node.wants(2) and (bias is None or dims_of(bias) == dims_of(scale)):
        beta = bias if bias is not None else filled(0, shape_of(scale), dtype_of(x))
        y = emit("nn.layer_norm", x, scale, beta, axis=-1, epsilon=epsilon, center=bias is not None)
        return [y, None, None]
    mean, centred, var = _moments(cast(x, stash), range(axis, rank))
    inverse = div(1.0, emit("sqrt", add(var, epsilon)))
    y = mul(cast(mul(centred, inverse), dtype_of(x)), scale)
    return [y if bias is None else add(y, bias), mean, inverse]


def _rms_normalization(node: Node) -> Expr:
    x, scale = node.input(0), node.input(1)
    stash = dtype_of_elem(node.integer("stash_type", 1), "the stash type")
    axes = range(axis_index(node.integer("axis", -1), rank_of(x)), rank_of(x))
    data = cast(x, stash)
    root = emit("sqrt", add(reduce("mean", mul(data, data), axes, True), node.number("epsilon", 1e-5)))
    return mul(cast(div(data, root), dtype_of(scale)), scale)


def _group_normalization(node: Node) -> Expr:
    """Scale and bias are per group up to version 18, per channel after."""
    x, scale, bias, groups = node.input(0), node.input(1), node.input(2), node.integer("num_groups")
    shape, rank = shape_of(x), rank_of(x)
    if groups < 1 or shape[1] % groups:
        raise AotcError("onnx-norm", f"{shape[1]} channels cannot form {groups} groups")
    stash = dtype_of_elem(node.integer("stash_type", 1), "the stash type")
    data = cast(reshape(x, (shape[0], groups, -1)), stash)
    _, centred, var = _moments(data, (2,))
    y = cast(div(centred, emit("sqrt", add(var, node.number("epsilon", 1e-5)))), dtype_of(x))
    if node.since < 21 and dim_of(scale, 0) == groups:
        y = add(mul(y, reshape(scale, (1, groups, 1))), reshape(bias, (1, groups, 1)))
        return reshape(y, shape)
    return add(mul(reshape(y, shape), _per_channel(scale, rank)), _per_channel(bias, rank))


def _lp_normalization(node: Node) -> Expr:
    x, p = node.input(0), node.integer("p", 2)
    axes = (axis_index(node.integer("axis", -1), rank_of(x)),)
    if p == 1:
        size = reduce("sum", emit("abs", x), axes, True)
    elif p == 2:
        size = emit("sqrt", reduce("sum", mul(x, x), axes, True))
    else:
        raise AotcError("onnx-norm", f"LpNormalization with p = {p} is not supported")
    return where(binary("equal", size, 0.0), constant(0.0, dtype_of(x)), div(x, size))  # zeros stay zeros


def _mean_variance_normalization(node: Node) -> Expr:
    x = node.input(0)
    axes = [axis_index(a, rank_of(x)) for a in node.ints("axes") or (0, 2, 3)]
    _, centred, var = _moments(x, axes)
    return div(centred, add(emit("sqrt", var), 1e-9))


def _lrn(node: Node) -> Expr:
    return emit(
        "nn.lrn",
        node.input(0),
        size=node.integer("size"),
        axis=1,
        bias=node.number("bias", 1.0),
        alpha=node.number("alpha", 1e-4),
        beta=node.number("beta", 0.75),
    )


OPS: Table = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LRN": _lrn,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "RMSNormalization": _rms_normalization,
}
