# SPDX-License-Identifier: Apache-2.0
"""Converters of reductions, arg reductions and running sums.

OPS["ReduceL2"](node)                   # sqrt(sum(x * x, axes))
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.onnx.node import Converter, Node, Table
from aotc.relay.frontend.reductions import is_empty, log_sum_exp, result_of_nothing

_Axes = tuple[int, ...]
_Reduction = Callable[[Expr, _Axes, bool], Expr]


def _axes(node: Node) -> _Axes | None:
    """The axes to reduce, None for a node that reduces nothing."""
    rank = g.rank(node.input(0))
    given = node.ints_or_input("axes", 1)
    if given:
        return tuple(sorted({g.axis(a, rank) for a in given}))
    return None if node.integer("noop_with_empty_axes") else tuple(range(rank))


def _reduction(body: _Reduction, prepare: Callable[[Expr], Expr] | None = None) -> Converter:
    """A converter for a reduction; with nothing to reduce only `prepare` (the elementwise part) remains."""

    def convert(node: Node) -> Expr:
        x, axes = node.input(0), _axes(node)
        if axes is None:
            return prepare(x) if prepare is not None else x
        if not axes:  # rank 0: a reduction over no axes is one over a single element
            return _scalar(x, body)
        return body(x, axes, node.integer("keepdims", 1) == 1)

    return convert


def _scalar(x: Expr, body: _Reduction) -> Expr:
    return body(g.op("expand_dims", x, axis=0, num_newaxis=1), (0,), False)


def _sum(x: Expr, axes: _Axes, keepdims: bool) -> Expr:
    return g.reduce("sum", x, axes, keepdims)


def _extreme(name: str, on_bool: str) -> _Reduction:
    def body(x: Expr, axes: _Axes, keepdims: bool) -> Expr:
        dtype = g.dtype(x)
        if dtype.is_bool:
            return g.reduce(on_bool, x, axes, keepdims)
        if is_empty(x, axes):
            return result_of_nothing(x, axes, keepdims, _worst(dtype, name == "max"))
        return g.reduce(name, x, axes, keepdims)

    return body


def _worst(dtype: DType, lowest: bool) -> g.Number:
    if dtype.is_float:
        return float("-inf") if lowest else float("inf")
    return dtype.min if lowest else dtype.max


def _root_of_squares(x: Expr, axes: _Axes, keepdims: bool) -> Expr:
    dtype = g.dtype(x)
    y = x if dtype.is_float else g.cast(x, "float64")
    return g.cast(g.op("sqrt", _sum(g.mul(y, y), axes, keepdims)), dtype)


def _log_sum(x: Expr, axes: _Axes, keepdims: bool) -> Expr:
    dtype = g.dtype(x)
    y = x if dtype.is_float else g.cast(x, "float64")
    return g.cast(g.op("log", _sum(y, axes, keepdims)), dtype)


def _log_sum_exp(x: Expr, axes: _Axes, keepdims: bool) -> Expr:
    dtype = g.dtype(x)
    return g.cast(log_sum_exp(x if dtype.is_float else g.cast(x, "float64"), axes, keepdims), dtype)


def _square(x: Expr) -> Expr:
    return g.mul(x, x)


def _abs(x: Expr) -> Expr:
    return g.op("abs", x)


def _arg(name: str) -> Converter:
    def convert(node: Node) -> Expr:
        x = node.input(0)
        result = g.op(
            name,
            x,
            axis=(g.axis(node.integer("axis"), g.rank(x)),),
            keepdims=node.integer("keepdims", 1) == 1,
            select_last_index=bool(node.integer("select_last_index")),
        )
        return g.cast(result, "int64")

    return convert


def _running(name: str) -> Converter:
    """CumSum and CumProd; `reverse` runs from the end, `exclusive` leaves the element itself out."""

    def along(node: Node, axis: int) -> Expr:
        x, backwards = node.input(0), bool(node.integer("reverse"))
        y = g.op("reverse", x, axis=axis) if backwards else x
        y = g.op(name, y, axis=axis, dtype=str(g.dtype(x)), exclusive=bool(node.integer("exclusive")))
        return g.op("reverse", y, axis=axis) if backwards else y

    def convert(node: Node) -> Expr:
        axis, rank = node.input(1), g.rank(node.input(0))
        if isinstance(axis, Constant):
            return along(node, g.axis(node.const_int(1, "the axis"), rank))
        chosen = g.reshape(axis, ())
        chosen = g.where(g.less(chosen, 0), g.add(chosen, rank), chosen)
        result = along(node, 0)  # the axis comes at run time: compute along each, choose one
        for k in range(1, rank):
            result = g.where(g.binary("equal", chosen, k), along(node, k), result)
        return result

    return convert


def _top_k(node: Node) -> list[Expr | None]:
    x = node.input(0)
    axis = g.axis(node.integer("axis", -1), g.rank(x))
    k = node.integer("k") if "k" in node.attrs else node.const_int(1, "k")
    size = g.dims(x)[axis]
    if k < 0 or (isinstance(size, int) and k > size):
        raise AotcError("onnx-topk", f"k is {k}, the axis has {size} elements")
    ascending = not node.integer("largest", 1)
    if k == 0:  # which the graph's operator takes for all of them
        values = g.cut(x, [0], [0], [axis])
        return [values, g.cast(values, "int64")]
    both = g.op("topk", x, k=k, axis=axis, ret_type="both", is_ascend=ascending, dtype="int64")
    return [g.field(both, 0), g.field(both, 1)]


OPS: Table = {
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "CumProd": _running("cumprod"),
    "CumSum": _running("cumsum"),
    "ReduceL1": _reduction(lambda x, axes, keep: _sum(_abs(x), axes, keep), _abs),
    "ReduceL2": _reduction(_root_of_squares, _abs),
    "ReduceLogSum": _reduction(_log_sum, lambda x: g.op("log", x)),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(_extreme("max", "any")),
    "ReduceMean": _reduction(lambda x, axes, keep: g.reduce("mean", x, axes, keep)),
    "ReduceMin": _reduction(_extreme("min", "all")),
    "ReduceProd": _reduction(lambda x, axes, keep: g.reduce("prod", x, axes, keep)),
    "ReduceSum": _reduction(_sum),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: _sum(_square(x), axes, keep), _square),
    "TopK": _top_k,
}
