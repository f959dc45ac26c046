# SPDX-License-Identifier: Apache-2.0
"""SimplifyInference: what training operators are at inference.

nn.batch_norm(%x, %gamma, %beta, %mean, %var).0
add(multiply(%x, expand_dims(%s, ...)), expand_dims(%b, ...))
    where %s = gamma / sqrt(var + eps) and %b = beta - mean * %s
"""

from __future__ import annotations

import numpy as np

from aotc.ir import span_scope
from aotc.relay.expr import Call, Constant, Expr, Function, TupleGetItem, tensor_type_of
from aotc.relay.op.binary import add, divide, multiply
from aotc.relay.op.elementwise import negative, sqrt
from aotc.relay.op.norm import BatchNormAttrs
from aotc.relay.op.shape import expand_dims
from aotc.relay.transform.base import FunctionPass, GraphMutator, is_call


def along_axis(vector: Expr, axis: int, rank: int) -> Expr:
    """A vector shaped so that it broadcasts along `axis` of a tensor of `rank`."""
    after = rank - axis - 1
    return expand_dims(vector, axis=1, num_newaxis=after) if after else vector


def _scale_and_shift(norm: Call) -> Expr:
    data, gamma, beta, mean, var = norm.args
    attributes = norm.attrs
    assert isinstance(attributes, BatchNormAttrs)
    ty = tensor_type_of(data)
    axis = attributes.axis % ty.rank
    one, epsilon = (Constant(np.array(v, ty.dtype.numpy)) for v in (1.0, attributes.epsilon))
    scale: Expr = divide(one, sqrt(add(var, epsilon)))
    if attributes.scale:
        scale = multiply(scale, gamma)
    shift: Expr = multiply(negative(mean), scale)
    if attributes.center:
        shift = add(shift, beta)
    scaled = multiply(data, along_axis(scale, axis, ty.rank))
    return add(scaled, along_axis(shift, axis, ty.rank))


class _Simplify(GraphMutator):
    def rewrite_tuple_get_item(self, old: Expr, new: TupleGetItem) -> Expr:
        call = new.tuple_value
        if new.index != 0 or not isinstance(call, Call):
            return new
        if is_call(call, "nn.dropout"):
            return call.args[0]
        if is_call(call, "nn.batch_norm"):
            with span_scope(call.span):
                return _scale_and_shift(call)
        return new


class SimplifyInference(FunctionPass):
    """batch_norm becomes a scale and a shift, dropout nothing; only the first result of each is rewritten."""

    def rewritten(self, function: Function) -> Function:
        return _Simplify().visit_function(function)
