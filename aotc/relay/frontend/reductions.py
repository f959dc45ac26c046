# SPDX-License-Identifier: Apache-2.0
"""Reductions, also of no elements, and the greatest elements.

In: a tensor, axes from 0, and whether reduced axes stay with size
1. Out: a tensor.

    plain("sum")(x, (1,), False)
    log_sum_exp(x, (1,), False)             # log(sum(exp(x - max(x)))) + max(x)
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g

Axes: TypeAlias = tuple[int, ...]
Reduction: TypeAlias = Callable[[Expr, Axes, bool], Expr]


def plain(name: str) -> Reduction:
    """The reduction of an operator."""
    return lambda x, axes, keepdims: g.reduce(name, x, axes, keepdims)


def over(body: Reduction, x: Expr, axes: Iterable[int], keepdims: bool) -> Expr:
    """A reduction over axes in any order; a tensor without
    dimensions counts as one element along an axis.
    """
    if not g.rank(x):
        return body(g.reshape(x, (1,)), (0,), False)
    return body(x, tuple(sorted(set(axes))), keepdims)


def in_float32(body: Reduction) -> Reduction:
    """A reduction of several operators, which narrow floats go through in float32 and are rounded once."""
    return lambda x, axes, keepdims: g.in_float32(lambda y: body(y, axes, keepdims), x)


@in_float32
def log_sum_exp(x: Expr, axes: Axes, keepdims: bool) -> Expr:
    """log(sum(exp(x))), shifted by the maximum so that it does not
    overflow.
    """
    top = g.reduce("max", x, axes, True)
    top = g.where(g.op("isfinite", top), top, 0.0)
    result = g.add(g.log(g.reduce("sum", g.exp(g.sub(x, top)), axes, True)), top)
    return result if keepdims else g.op("squeeze", result, axis=axes)


def p_norm(x: Expr, order: float, total: Callable[[Expr], Expr]) -> Expr:
    """The root of a sum of powers, in float32 for narrow floats; `total` adds up the powers that belong together."""

    def norm(y: Expr) -> Expr:
        if order == 2:
            return g.sqrt(total(g.mul(y, y)))
        size = g.absolute(y)
        if order == 1:
            return total(size)
        powers = g.op("power", size, g.constant(order, g.dtype(y)))
        return g.op("power", total(powers), g.constant(1.0 / order, g.dtype(y)))

    return g.in_float32(norm, x)


def top_k(x: Expr, k: int, axis: int, ascending: bool) -> list[Expr]:
    """The k greatest (or least) elements of an axis, in order, and
    their positions as int64.

    Raises AotcError (code "graph-topk") where there are not so
    many.
    """
    size = g.dims(x)[axis]
    if k < 0 or (isinstance(size, int) and k > size):
        raise AotcError("graph-topk", f"k is {k}, but the axis has only {size} elements")
    if k == 0:  # which the graph's operator takes for all of them
        values = g.cut(x, [0], [0], [axis])
        return [values, g.cast(values, "int64")]
    both = g.op("topk", x, k=k, axis=axis, ret_type="both", is_ascend=ascending, dtype="int64")
    return [g.field(both, 0), g.field(both, 1)]
