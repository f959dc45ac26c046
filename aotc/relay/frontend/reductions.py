# SPDX-License-Identifier: Apache-2.0
"""Graph builders for reductions (also over zero elements), norms and top-k.

A reduction takes a tensor, axes counted from 0, and a flag that keeps reduced axes with extent 1;
it returns a tensor.

    reduction_by_name("sum")(x, (1,), False)
    log_sum_exp(x, (1,), False)             # log(sum(exp(x - max(x)))) + max(x)
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g

Axes: TypeAlias = tuple[int, ...]
Reduction: TypeAlias = Callable[[Expr, Axes, bool], Expr]


def reduction_by_name(name: str) -> Reduction:
    """Return the reduction function that calls the reduction operator `name`, such as "sum"."""
    return lambda x, axes, keepdims: g.call_reduction(name, x, axes, keepdims)


def apply_reduction(reduction: Reduction, x: Expr, axes: Iterable[int], keepdims: bool) -> Expr:
    """Apply a reduction over axes given in any order, with duplicates removed; a tensor of rank 0
    is reduced as a vector of one element.
    """
    if not g.rank(x):
        return reduction(g.reshape(x, (1,)), (0,), False)
    return reduction(x, tuple(sorted(set(axes))), keepdims)


def reduction_with_narrow_floats_in_float32(reduction: Reduction) -> Reduction:
    """Return the reduction `reduction`, which consists of several operators, computed in float32
    for narrow floats and rounded once at the end.
    """
    return lambda x, axes, keepdims: g.call_with_narrow_floats_in_float32(lambda y: reduction(y, axes, keepdims), x)


@reduction_with_narrow_floats_in_float32
def log_sum_exp(x: Expr, axes: Axes, keepdims: bool) -> Expr:
    """Compute log(sum(exp(x))) over axes, with the maximum subtracted before `exp` so that it does
    not overflow.
    """
    top = g.call_reduction("max", x, axes, True)
    top = g.where(g.call_op("isfinite", top), top, 0.0)
    result = g.add(g.log(g.call_reduction("sum", g.exp(g.sub(x, top)), axes, True)), top)
    return result if keepdims else g.call_op("squeeze", result, axis=axes)


def p_norm(x: Expr, order: float, sum_over_axes: Callable[[Expr], Expr]) -> Expr:
    """Compute the norm `sum(abs(x)**order)**(1 / order)`, in float32 for narrow floats;
    `sum_over_axes` is the function that sums the powers over the reduced axes.
    """

    def p_norm_in_argument_dtype(y: Expr) -> Expr:
        if order == 2:
            return g.sqrt(sum_over_axes(g.mul(y, y)))
        size = g.absolute(y)
        if order == 1:
            return sum_over_axes(size)
        powers = g.call_op("power", size, g.constant(order, g.dtype(y)))
        return g.call_op("power", sum_over_axes(powers), g.constant(1.0 / order, g.dtype(y)))

    return g.call_with_narrow_floats_in_float32(p_norm_in_argument_dtype, x)


def top_k(x: Expr, k: int, axis: int, ascending: bool) -> list[Expr]:
    """Return the k greatest (or, if `ascending`, the k least) elements of an axis in sorted order,
    and their positions as int64.

    Raises AotcError (code "graph-topk") if the axis has fewer than k elements or if k is negative.
    """
    size = g.dims(x)[axis]
    if k < 0 or (isinstance(size, int) and k > size):
        raise AotcError("graph-topk", f"k is {k}, but the axis has only {size} elements")
    if k == 0:  # in the topk operator, k = 0 means all elements
        values = g.strided_slice(x, [0], [0], [axis])
        return [values, g.cast(values, "int64")]
    return _first_elements(x, k, axis, ascending)


def sorted_elements(x: Expr, axis: int, ascending: bool) -> list[Expr]:
    """Return the elements of an axis in sorted order, and their positions as int64."""
    return _first_elements(x, 0, axis, ascending)


def _first_elements(x: Expr, k: int, axis: int, ascending: bool) -> list[Expr]:
    both = g.call_op("topk", x, k=k, axis=axis, ret_type="both", is_ascend=ascending, dtype="int64")
    return [g.field(both, 0), g.field(both, 1)]
