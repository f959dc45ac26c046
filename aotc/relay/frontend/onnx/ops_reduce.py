# SPDX-License-Identifier: Apache-2.0
"""Converters of reductions, arg reductions and running sums.

OPS["ReduceL2"](x, [1], keepdims=0)     # sqrt(sum(x * x, 1))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend import reductions
from aotc.relay.frontend.arguments import Axis
from aotc.relay.frontend.onnx.node import Converter, Int, Ints, Table
from aotc.relay.frontend.reductions import Axes, Reduction, plain
from aotc.relay.frontend.shapes import from_start


def _same(x: Expr) -> Expr:
    return x


def _square(x: Expr) -> Expr:
    return g.mul(x, x)


def _reduction(body: Reduction, prepare: Callable[[Expr], Expr] = _same) -> Converter:
    """A converter for a reduction; with nothing to reduce only `prepare`
    (the elementwise part) remains.
    """

    def convert(x: Expr, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Expr:
        rank = g.rank(x)
        if not axes and noop_with_empty_axes:
            return prepare(x)
        places = sorted({g.axis(a, rank) for a in axes or range(rank)})
        if not places:  # rank 0: a reduction over no axes is one over a single element
            return body(g.unsqueeze(x, [0]), (0,), False)
        return body(x, tuple(places), keepdims == 1)

    return convert


def _in_floats(body: Reduction) -> Reduction:
    """A reduction whose integers are computed as float64."""

    def convert(x: Expr, axes: Axes, keepdims: bool) -> Expr:
        dtype = g.dtype(x)
        return g.cast(body(x if dtype.is_float else g.cast(x, "float64"), axes, keepdims), dtype)

    return convert


def _sum_of(inner: Callable[[Expr], Expr], outer: Callable[[Expr], Expr] = _same) -> Reduction:
    """The sum of a function of the elements, and a function of the sum."""
    return lambda x, axes, keepdims: outer(g.reduce("sum", inner(x), axes, keepdims))


def _arg(name: str, x: Expr, *, axis: Axis = 0, keepdims: int = 1, select_last_index: bool = False) -> Expr:
    last = {"select_last_index": select_last_index}
    return g.cast(g.op(name, x, axis=(axis,), keepdims=keepdims == 1, **last), "int64")


def _running(name: str, x: Expr, axis: Expr, *, reverse: int = 0, exclusive: bool = False) -> Expr:
    """CumSum and CumProd; `reverse` runs from the end, `exclusive` leaves
    the element itself out.
    """

    def along(place: int) -> Expr:
        y = g.op("reverse", x, axis=place) if reverse else x
        y = g.op(name, y, axis=place, dtype=str(g.dtype(x)), exclusive=exclusive)
        return g.op("reverse", y, axis=place) if reverse else y

    rank = g.rank(x)
    if isinstance(axis, Constant):
        return along(g.axis(int(g.only(axis.data, "the axis")), rank))
    chosen = from_start(g.reshape(axis, ()), rank)
    result = along(0)  # the axis comes at run time: compute along each, choose one
    for k in range(1, rank):
        result = g.where(g.equal(chosen, k), along(k), result)
    return result


def _top_k(x: Expr, k: Int, *, axis: Axis = -1, largest: int = 1) -> list[Expr]:
    return reductions.top_k(x, k, axis, ascending=not largest)


OPS: Table = {
    "ArgMax": partial(_arg, "argmax"),
    "ArgMin": partial(_arg, "argmin"),
    "CumProd": partial(_running, "cumprod"),
    "CumSum": partial(_running, "cumsum"),
    "ReduceL1": _reduction(_sum_of(g.absolute), g.absolute),
    "ReduceL2": _reduction(_in_floats(_sum_of(_square, g.sqrt)), g.absolute),
    "ReduceLogSum": _reduction(_in_floats(_sum_of(_same, g.log)), g.log),
    "ReduceLogSumExp": _reduction(_in_floats(reductions.log_sum_exp)),
    "ReduceMax": _reduction(reductions.extreme("max")),
    "ReduceMean": _reduction(plain("mean")),
    "ReduceMin": _reduction(reductions.extreme("min")),
    "ReduceProd": _reduction(plain("prod")),
    "ReduceSum": _reduction(plain("sum")),
    "ReduceSumSquare": _reduction(_sum_of(_square), _square),
    "TopK": _top_k,
}
