# SPDX-License-Identifier: Apache-2.0
"""Converters of normalisations.

OPS["LayerNormalization"](node)         # nn.layer_norm(x, scale, bias), or a composition
"""

from __future__ import annotations

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.normalisation import batch_norm, batch_norm_in, moments, per_channel, standardized
from aotc.relay.frontend.onnx.load import dtype_of_elem
from aotc.relay.frontend.onnx.node import Converted, Node, Table


def _batch_normalization(node: Node) -> Converted:
    x, scale, bias, mean, var = (node[k] for k in range(5))
    epsilon = node.number("epsilon", 1e-5)
    if node.integer("training_mode"):
        return _batch_training(node, x, scale, bias, mean, var, epsilon)
    if any(node.wants(k) for k in range(1, 5)):
        raise AotcError("onnx-training", "BatchNormalization with statistics as outputs is for training")
    if node.since < 9 and not node.integer("spatial", 1):
        raise AotcError("onnx-norm", "BatchNormalization with spatial=0 is not supported")
    return [batch_norm(x, scale, bias, mean, var, epsilon)]


def _batch_training(
    node: Node, x: Expr, scale: Expr, bias: Expr, mean: Expr, var: Expr, epsilon: float
) -> list[Expr | None]:
    """Statistics of the batch itself, and running ones that move towards them."""
    momentum, work = node.number("momentum", 0.9), g.dtype(mean)
    axes, data = [0, *range(2, g.rank(x))], g.cast(x, work)
    batch_mean = g.reduce("mean", data, axes, False)
    centred = g.sub(data, g.along(batch_mean, 1, g.rank(x)))
    batch_var = g.reduce("mean", g.mul(centred, centred), axes, False)
    y = batch_norm_in(work, x, scale, bias, batch_mean, batch_var, epsilon)
    pairs = ((mean, batch_mean), (var, batch_var))
    return [y, *(g.add(g.mul(old, momentum), g.mul(new, 1.0 - momentum)) for old, new in pairs)]


def _layer_normalization(node: Node) -> Converted:
    x, scale, bias = node[0], node[1], node.optional(2)
    rank = g.rank(x)
    axis, epsilon = g.axis(node.integer("axis", -1), rank), node.number("epsilon", 1e-5)
    stash = dtype_of_elem(node.integer("stash_type", 1), "the stash type")
    plain = axis == rank - 1 and g.rank(scale) == 1 and g.dtype(x) == stash and g.dims(scale) == g.dims(x)[-1:]
    if plain and not node.wants(1) and not node.wants(2) and (bias is None or g.dims(bias) == g.dims(scale)):
        beta = bias if bias is not None else g.filled(0, g.shape(scale), g.dtype(x))
        y = g.op("nn.layer_norm", x, scale, beta, axis=-1, epsilon=epsilon, center=bias is not None)
        return [y, None, None]
    mean, centred, var = moments(g.cast(x, stash), range(axis, rank))
    inverse = g.div(1.0, g.sqrt(g.add(var, epsilon)))
    y = g.mul(g.cast(g.mul(centred, inverse), g.dtype(x)), scale)
    return [y if bias is None else g.add(y, bias), mean, inverse]


def _rms_normalization(node: Node) -> Expr:
    x, scale = node[0], node[1]
    stash = dtype_of_elem(node.integer("stash_type", 1), "the stash type")
    axes = range(node.axis(x, -1), g.rank(x))
    data = g.cast(x, stash)
    root = g.sqrt(g.add(g.reduce("mean", g.mul(data, data), axes, True), node.number("epsilon", 1e-5)))
    return g.mul(g.cast(g.div(data, root), g.dtype(scale)), scale)


def _group_normalization(node: Node) -> Expr:
    """Scale and bias are per group up to version 18, per channel after."""
    x, scale, bias, groups = node[0], node[1], node[2], node.integer("num_groups")
    shape = g.shape(x)
    if groups < 1 or shape[1] % groups:
        raise AotcError("onnx-norm", f"{shape[1]} channels cannot form {groups} groups")
    stash = dtype_of_elem(node.integer("stash_type", 1), "the stash type")
    data = g.cast(g.reshape(x, (shape[0], groups, -1)), stash)
    y = g.cast(standardized(data, (2,), node.number("epsilon", 1e-5)), g.dtype(x))
    if node.since < 21 and g.dim(scale, 0) == groups:
        y = g.add(g.mul(y, g.reshape(scale, (1, groups, 1))), g.reshape(bias, (1, groups, 1)))
        return g.reshape(y, shape)
    return per_channel(g.reshape(y, shape), scale, bias)


def _lp_normalization(node: Node) -> Expr:
    x, p = node[0], node.integer("p", 2)
    axes = (node.axis(x, -1),)
    if p == 1:
        size = g.reduce("sum", g.absolute(x), axes, True)
    elif p == 2:
        size = g.sqrt(g.reduce("sum", g.mul(x, x), axes, True))
    else:
        raise AotcError("onnx-norm", f"LpNormalization with p = {p} is not supported")
    return g.where(g.binary("equal", size, 0.0), g.constant(0.0, g.dtype(x)), g.div(x, size))  # zeros stay zeros


def _mean_variance_normalization(node: Node) -> Expr:
    x = node[0]
    axes = [g.axis(a, g.rank(x)) for a in node.ints("axes") or (0, 2, 3)]
    _, centred, var = moments(x, axes)
    return g.div(centred, g.add(g.sqrt(var), 1e-9))


def _lrn(node: Node) -> Expr:
    factors = {name: node.number(name, usual) for name, usual in (("bias", 1.0), ("alpha", 1e-4), ("beta", 0.75))}
    return g.op("nn.lrn", node[0], size=node.integer("size"), axis=1, **factors)


def _instance_normalization(node: Node) -> Expr:
    return g.op("nn.instance_norm", *node.all_inputs(), axis=1, epsilon=node.number("epsilon", 1e-5))


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
