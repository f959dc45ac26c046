# SPDX-License-Identifier: Apache-2.0
"""ExpandOps, CanonicalizeOps, SimplifyInference, FastMath: replace operators by definitions in
other operators.

ExpandOps: replace operators that are defined by other operators with their definition.

hard_swish(%x)
multiply(%x, clip(add(...)))                     # the result of OpDef.expand, or of OpDef.unblocked
    for a device, an operator with a kernel of its own stays, unless it has constant operands to rearrange

CanonicalizeOps: replace special operators by general ones.

nn.bias_add(%x, %b, axis=1)
add(%x, expand_dims(%b, axis=1, num_newaxis=2))

SimplifyInference: replace training operators by their inference form.

nn.batch_norm(%x, %gamma, %beta, %mean, %var).0
add(multiply(%x, expand_dims(%s, ...)), expand_dims(%b, ...))
    where %s = gamma / sqrt(var + eps) and %b = beta - mean * %s

FastMath: replace elementary functions by approximations.

nn.softmax(tanh(%x))
nn.fast_softmax(fast_tanh(%x))

Input: typed functions. Output: functions equal except for the errors stated in
`aotc.relay.op.elementwise_unary`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, Op, span_scope, tensor_types
from aotc.relay.expr import (
    Call,
    Constant,
    Expr,
    Function,
    TupleGetItem,
    require_op_of_call,
    tensor_type_of,
    type_of,
    typed_op_call,
)
from aotc.relay.op.binary_elementwise import add, divide, multiply
from aotc.relay.op.elementwise_unary import fast_erf, fast_exp, fast_tanh, negative, sqrt
from aotc.relay.op.opdef import OpDef
from aotc.relay.op.shape import expand_dims
from aotc.relay.op.softmax import fast_softmax
from aotc.relay.transform.pass_base import (
    FunctionPass,
    RewriteOutcome,
    Rule,
    RulePass,
    apply_to_fixpoint,
    rewrite_nodes,
)


def _replace_op_call_by_definition(for_gpu: bool, _: Expr, new: Expr) -> Expr:
    """Replace one operator call by its definition; operators in the definition are expanded in the
    next round.

    An operator whose definition needs static shapes stays if they are unknown: virtual machines
    compute it by its reference implementation.
    """
    if not isinstance(new, Call) or not isinstance(new.op, OpDef):
        return new
    with span_scope(new.span):
        use_compute = for_gpu and new.op.compute and not any(isinstance(a, Constant) for a in new.args)
        if new.op.expand is None or use_compute:
            return (new.op.unblocked and new.op.unblocked(new.attrs, *new.args)) or new
        try:
            return new.op.expand(new.attrs, *new.args)
        except AotcError as error:
            if error.code != "dynamic-shape":
                raise
            return new
        except (TypeError, ValueError):  # a size that is known at run time only has no order and no truth value
            if all(t.is_static for a in new.args for t in tensor_types(type_of(a))):
                raise
            return new


@dataclass(frozen=True, repr=False)
class ExpandOps(FunctionPass):
    """Pass that expands operators until each has a kernel of its own; `device` selects GPU kernels
    instead of CPU kernels.
    """

    device: bool = False

    def rewrite_function_body(self, function: Function) -> Function:
        return apply_to_fixpoint(
            lambda f: rewrite_nodes(f, partial(_replace_op_call_by_definition, self.device)), function
        )


# --- general operators


def _rewrite_bias_add_as_add(node: Call) -> Expr:
    data, bias = node.args
    rank = tensor_type_of(data).rank
    return add(data, expand_vector_along_axis(bias, node.attrs["axis"] % rank, rank))


RULES: Final = (Rule("bias_add(x, b) => x + expand_dims(b)", ("nn.bias_add",), _rewrite_bias_add_as_add),)


class CanonicalizeOps(RulePass):
    """Pass that replaces nn.bias_add by an addition."""

    rules = RULES
    opt_level = 3


# --- inference


def expand_vector_along_axis(vector: Expr, axis: int, rank: int) -> Expr:
    """Return a vector reshaped to broadcast along `axis` of a tensor of `rank`."""
    after = rank - axis - 1
    return expand_dims(vector, axis=1, num_newaxis=after) if after else vector


def _batch_norm_as_scale_and_shift(batch_norm: Call) -> Expr:
    data, gamma, beta, mean, var = batch_norm.args
    a: Any = batch_norm.attrs
    ty = tensor_type_of(data)
    axis = a.axis % ty.rank
    unit, epsilon = (Constant(np.array(v, ty.dtype.numpy)) for v in (1.0, a.epsilon))
    scale: Expr = divide(unit, sqrt(add(var, epsilon)))
    if a.scale:
        scale = multiply(scale, gamma)
    shift: Expr = multiply(negative(mean), scale)
    if a.center:
        shift = add(shift, beta)
    scaled = multiply(data, expand_vector_along_axis(scale, axis, ty.rank))
    return add(scaled, expand_vector_along_axis(shift, axis, ty.rank))


def _remove_dropout_and_batch_norm(_: Expr, new: Expr) -> Expr:
    match new:
        case TupleGetItem(tuple_value=Call(op=Op(name="nn.dropout")) as call, index=0):
            return call.args[0]
        case TupleGetItem(tuple_value=Call(op=Op(name="nn.batch_norm")) as call, index=0):
            with span_scope(call.span):
                return _batch_norm_as_scale_and_shift(call)
        case _:
            return new


class SimplifyInference(FunctionPass):
    """Pass that replaces batch_norm by a scale and a shift, and dropout by its input; only result 0
    of each is rewritten.
    """

    def rewrite_function_body(self, function: Function) -> Function:
        return rewrite_nodes(function, _remove_dropout_and_batch_norm)


# --- approximations


_FAST_OPERATORS: Final[dict[str, Op]] = {
    "exp": fast_exp,
    "tanh": fast_tanh,
    "erf": fast_erf,
    "nn.softmax": fast_softmax,
}


def _rewrite_as_fast_math(node: Call) -> RewriteOutcome:
    return typed_op_call(_FAST_OPERATORS[require_op_of_call(node).name], node.args, node.attrs)


_FAST_MATH_RULE: Final = Rule("f(x) => fast_f(x)", tuple(_FAST_OPERATORS), _rewrite_as_fast_math)


class FastMath(RulePass):
    """Pass that replaces exp, tanh, erf and nn.softmax by fast_exp, fast_tanh, fast_erf and
    nn.fast_softmax.
    """

    rules = (_FAST_MATH_RULE,)
    opt_level = 4
