# SPDX-License-Identifier: Apache-2.0
"""Converters of reductions, running sums, and orders of elements.

OPS["mean.dim"](x=a, dim=[2, 3], keepdim=True)      # mean(a, axis=(2, 3), keepdims=True)
"""

from __future__ import annotations

import math
from functools import partial

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.arguments import Axis
from aotc.relay.frontend.pytorch import values as tv
from aotc.relay.frontend.pytorch.ops_elementwise import as_bool
from aotc.relay.frontend.pytorch.values import Converter, Table, Value
from aotc.relay.frontend.reductions import Reduction, extreme, log_sum_exp, p_norm, plain, top_k


def reduced(body: Reduction, x: Expr, dim: Value, keepdim: bool) -> Expr:
    """A reduction over axes (None, or none at all: over all of
    them); one number counts as an axis of one element.
    """
    if not g.rank(x):
        return body(g.reshape(x, (1,)), (0,), False)
    return body(x, tuple(tv.axes(dim, g.rank(x))), keepdim)


def _summing(name: str, x: Expr, dim: Value = None, keepdim: bool = False, dtype: str | None = None) -> Expr:
    """Sums and products: integers are added up as int64."""
    wanted = dtype or (g.dtype(x) if g.dtype(x).is_float else "int64")
    return reduced(plain(name), g.cast(x, wanted), dim, keepdim)


def _mean(x: Expr, dim: Value = None, keepdim: bool = False, dtype: str | None = None) -> Expr:
    return reduced(plain("mean"), g.cast(x, dtype) if dtype is not None else x, dim, keepdim)


def _extreme(name: str, x: Expr, dim: Value = None, keepdim: bool = False) -> Expr:
    return reduced(extreme(name), x, dim, keepdim)


def _extreme_with_place(name: str, x: Expr, dim: int, keepdim: bool = False) -> list[Expr]:
    return [_extreme(name, x, [dim], keepdim), _arg(f"arg{name}", x, dim, keepdim)]


def _arg(name: str, x: Expr, dim: int | None = None, keepdim: bool = False) -> Expr:
    if dim is None:
        flat = g.op(name, g.reshape(x, (-1,)), axis=(0,), keepdims=False)
        return g.cast(g.reshape(flat, [1] * g.rank(x)) if keepdim else flat, "int64")
    return g.cast(reduced(plain(name), x, [dim], keepdim), "int64")


def _truth(name: str, x: Expr, dim: Value = None, keepdim: bool = False) -> Expr:
    result = reduced(plain(name), as_bool(x), dim, keepdim)
    return g.cast(result, "uint8") if g.dtype(x) == "uint8" else result


def _var(x: Expr, dim: Value = None, unbiased: Value = True, correction: Value = None, keepdim: bool = False) -> Expr:
    """The mean of squared distances from the mean; `correction` (1
    where `unbiased`) comes off the count.
    """
    biased = 1 if unbiased is None else unbiased
    less = float(biased if correction is None else correction)

    def moment(y: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
        count = math.prod(tv.shape(y)[a] for a in axes)
        centred = g.sub(y, g.reduce("mean", y, axes, True))
        squares = g.reduce("sum", g.mul(centred, centred), axes, keep)
        return g.mul(squares, 1.0 / (count - less) if count > less else math.nan)

    return reduced(moment, x, dim, keepdim)


def _std(x: Expr, **options: Value) -> Expr:
    return g.sqrt(_var(x, **options))


def _with_mean(body: Converter, x: Expr, dim: Value = None, keepdim: bool = False, **options: Value) -> list[Expr]:
    return [body(x, dim=dim, keepdim=keepdim, **options), _mean(x, dim, keepdim)]


def _norm(x: Expr, p: Value = 2, dim: Value = None, keepdim: bool = False, dtype: str | None = None) -> Expr:
    y = tv.floating(x) if dtype is None else g.cast(x, dtype)
    order = 2.0 if p is None or p == "fro" else float(p)
    if math.isinf(order):
        return reduced(plain("max" if order > 0 else "min"), g.absolute(y), dim, keepdim)
    if order == 0:
        return reduced(plain("sum"), g.cast(as_bool(y), g.dtype(y)), dim, keepdim)
    return p_norm(y, order, lambda powers: reduced(plain("sum"), powers, dim, keepdim))


def _linalg_norm(
    x: Expr, ord: Value = None, dim: Value = None, keepdim: bool = False, dtype: str | None = None
) -> Expr:
    axes = dim if isinstance(dim, (list, tuple)) else list(range(g.rank(x))) if dim is None else [dim]
    if ord is not None and len(axes) != 1 and ord != "fro":
        raise AotcError("torch-op", f"the matrix norm {ord!r} is not supported", hint="vector norms are")
    return _norm(x, ord, dim, keepdim, dtype)


def _running(name: str, x: Expr, dim: Axis, dtype: str | None = None) -> Expr:
    wanted = dtype or (g.dtype(x) if g.dtype(x).is_float else "int64")
    y = g.cast(x, wanted)
    return g.op(name, y, axis=dim, dtype=str(wanted)) if g.rank(x) else y


def _argsort(x: Expr, dim: Axis = -1, descending: bool = False) -> Expr:
    return g.op("argsort", x, axis=dim, is_ascend=not descending, dtype="int64")


def _sort(x: Expr, dim: Axis = -1, descending: bool = False) -> list[Expr]:
    places = _argsort(x, dim, descending)
    return [g.op("gather", x, places, axis=dim), places]


def _median(x: Expr) -> Expr:
    """The lower one of the middle elements."""
    flat = g.reshape(x, (-1,))
    middle = (tv.shape(flat)[0] - 1) // 2
    return g.op("take", g.op("sort", flat, axis=0, is_ascend=True), g.constant(middle, "int64"), axis=0)


def _cosine_similarity(x1: Expr, x2: Expr, dim: int = 1, eps: float = 1e-8) -> Expr:
    def total(y: Expr) -> Expr:
        return reduced(plain("sum"), y, [dim], False)

    lengths = [g.binary("maximum", g.sqrt(total(g.mul(y, y))), eps) for y in (x1, x2)]
    return g.div(total(g.mul(x1, x2)), g.mul(*lengths))


OPS: Table = {
    **tv.named(_argsort, _cosine_similarity, _linalg_norm, _mean, _median, _norm, _sort, _std, _var),
    "all": partial(_truth, "all"),
    "amax": partial(_extreme, "max"),
    "amin": partial(_extreme, "min"),
    "any": partial(_truth, "any"),
    "argmax": partial(_arg, "argmax"),
    "argmin": partial(_arg, "argmin"),
    "cumprod": partial(_running, "cumprod"),
    "cumsum": partial(_running, "cumsum"),
    "linalg_vector_norm": lambda x, ord=2, dim=None, keepdim=False, dtype=None: _norm(x, ord, dim, keepdim, dtype),
    "logsumexp": lambda x, dim, keepdim=False: reduced(log_sum_exp, tv.floating(x), dim, keepdim),
    "max": partial(_extreme, "max"),
    "max.dim": partial(_extreme_with_place, "max"),
    "min": partial(_extreme, "min"),
    "min.dim": partial(_extreme_with_place, "min"),
    "prod": partial(_summing, "prod"),
    "std_mean": partial(_with_mean, _std),
    "sum": partial(_summing, "sum"),
    "topk": lambda x, k, dim=-1, largest=True: top_k(x, k, tv.axis(dim, x), not largest),
    "var_mean": partial(_with_mean, _var),
}
