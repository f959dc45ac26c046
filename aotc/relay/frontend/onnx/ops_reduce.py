# SPDX-License-Identifier: Apache-2.0
"""Converters of reductions, arg reductions and running sums.

OPS["ReduceL2"](node)                   # sqrt(sum(x * x, axes))
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend import reductions
from aotc.relay.frontend.onnx.node import Converter, Node, Table
from aotc.relay.frontend.reductions import Axes, Reduction, plain


def _axes(node: Node) -> Axes | None:
    """The axes to reduce, None for a node that reduces nothing."""
    rank = g.rank(node[0])
    given = node.ints_or_input("axes", 1)
    if given:
        return tuple(sorted({g.axis(a, rank) for a in given}))
    return None if node.integer("noop_with_empty_axes") else tuple(range(rank))


def _reduction(body: Reduction, prepare: Callable[[Expr], Expr] | None = None) -> Converter:
    """A converter for a reduction; with nothing to reduce only `prepare` (the elementwise
    part) remains.
    """

    def convert(node: Node) -> Expr:
        x, axes = node[0], _axes(node)
        if axes is None:
            return prepare(x) if prepare is not None else x
        if not axes:  # rank 0: a reduction over no axes is one over a single element
            return body(g.unsqueeze(x, [0]), (0,), False)
        return body(x, axes, node.integer("keepdims", 1) == 1)

    return convert


def _in_floats(body: Reduction) -> Reduction:
    """A reduction whose integers are computed as float64."""

    def convert(x: Expr, axes: Axes, keepdims: bool) -> Expr:
        dtype = g.dtype(x)
        return g.cast(body(x if dtype.is_float else g.cast(x, "float64"), axes, keepdims), dtype)

    return convert


def _sum_of(inner: Callable[[Expr], Expr], outer: str = "") -> Reduction:
    """The sum of a function of the elements, and a function of the sum."""

    def convert(x: Expr, axes: Axes, keepdims: bool) -> Expr:
        total = g.reduce("sum", inner(x), axes, keepdims)
        return g.op(outer, total) if outer else total

    return convert


def _square(x: Expr) -> Expr:
    return g.mul(x, x)


_abs, _log = g.absolute, g.log


def _arg(name: str) -> Converter:
    def convert(node: Node) -> Expr:
        x, last = node[0], node.flag("select_last_index")
        axes = (node.axis(x),)
        keepdims = node.integer("keepdims", 1) == 1
        return g.cast(g.op(name, x, axis=axes, keepdims=keepdims, select_last_index=last), "int64")

    return convert


def _running(name: str) -> Converter:
    """CumSum and CumProd; `reverse` runs from the end, `exclusive` leaves the element itself out."""

    def along(node: Node, axis: int) -> Expr:
        x, backwards = node[0], node.flag("reverse")
        y = g.op("reverse", x, axis=axis) if backwards else x
        y = g.op(name, y, axis=axis, dtype=str(g.dtype(x)), exclusive=node.flag("exclusive"))
        return g.op("reverse", y, axis=axis) if backwards else y

    def convert(node: Node) -> Expr:
        axis, rank = node[1], g.rank(node[0])
        if isinstance(axis, Constant):
            return along(node, g.axis(node.const_int(1, "the axis"), rank))
        chosen = g.reshape(axis, ())
        chosen = g.where(g.less(chosen, 0), g.add(chosen, rank), chosen)
        result = along(node, 0)  # the axis comes at run time: compute along each, choose one
        for k in range(1, rank):
            result = g.where(g.binary("equal", chosen, k), along(node, k), result)
        return result

    return convert


def _top_k(node: Node) -> list[Expr]:
    x = node[0]
    axis = node.axis(x, -1)
    k = node.integer("k") if "k" in node.attrs else node.const_int(1, "k")
    return reductions.top_k(x, k, axis, ascending=not node.integer("largest", 1))


OPS: Table = {
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "CumProd": _running("cumprod"),
    "CumSum": _running("cumsum"),
    "ReduceL1": _reduction(_sum_of(_abs), _abs),
    "ReduceL2": _reduction(_in_floats(_sum_of(_square, "sqrt")), _abs),
    "ReduceLogSum": _reduction(_in_floats(_sum_of(lambda x: x, "log")), _log),
    "ReduceLogSumExp": _reduction(_in_floats(reductions.log_sum_exp)),
    "ReduceMax": _reduction(reductions.extreme("max")),
    "ReduceMean": _reduction(plain("mean")),
    "ReduceMin": _reduction(reductions.extreme("min")),
    "ReduceProd": _reduction(plain("prod")),
    "ReduceSum": _reduction(plain("sum")),
    "ReduceSumSquare": _reduction(_sum_of(_square), _square),
    "TopK": _top_k,
}
