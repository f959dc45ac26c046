# SPDX-License-Identifier: Apache-2.0
"""Converters of reductions, arg reductions and running sums.

OPS["ReduceL2"](node)                   # sqrt(sum(x * x, axes))
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend.onnx.build import (
    Number,
    add,
    axis_index,
    binary,
    cast,
    dims_of,
    dtype_of,
    emit,
    field,
    filled,
    less,
    mul,
    rank_of,
    reduce,
    reshape,
    slice_axes,
    sub,
    where,
)
from aotc.relay.frontend.onnx.node import Converter, Node, Table

_Axes = tuple[int, ...]
_Reduction = Callable[[Expr, _Axes, bool], Expr]


def _axes(node: Node) -> _Axes | None:
    """The axes to reduce, None for a node that reduces nothing."""
    rank = rank_of(node.input(0))
    given = node.ints_or_input("axes", 1)
    if given:
        return tuple(sorted({axis_index(a, rank) for a in given}))
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
    return body(emit("expand_dims", x, axis=0, num_newaxis=1), (0,), False)


def _is_empty(x: Expr, axes: _Axes) -> bool:
    return any(dims_of(x)[a] == 0 for a in axes)


def _identity_result(x: Expr, axes: _Axes, keepdims: bool, value: Number) -> Expr:
    """What a reduction of nothing gives."""
    kept = [1 if k in axes else d for k, d in enumerate(dims_of(x)) if keepdims or k not in axes]
    return filled(value, [d for d in kept if isinstance(d, int)], dtype_of(x))


def _sum(x: Expr, axes: _Axes, keepdims: bool) -> Expr:
    return reduce("sum", x, axes, keepdims)


def _extreme(name: str, on_bool: str) -> _Reduction:
    def body(x: Expr, axes: _Axes, keepdims: bool) -> Expr:
        dtype = dtype_of(x)
        if dtype.is_bool:
            return reduce(on_bool, x, axes, keepdims)
        if _is_empty(x, axes):
            return _identity_result(x, axes, keepdims, _worst(dtype, name == "max"))
        return reduce(name, x, axes, keepdims)

    return body


def _worst(dtype: DType, lowest: bool) -> Number:
    if dtype.is_float:
        return float("-inf") if lowest else float("inf")
    return dtype.min if lowest else dtype.max


def _root_of_squares(x: Expr, axes: _Axes, keepdims: bool) -> Expr:
    dtype = dtype_of(x)
    y = x if dtype.is_float else cast(x, "float64")
    return cast(emit("sqrt", _sum(mul(y, y), axes, keepdims)), dtype)


def _log_sum(x: Expr, axes: _Axes, keepdims: bool) -> Expr:
    dtype = dtype_of(x)
    y = x if dtype.is_float else cast(x, "float64")
    return cast(emit("log", _sum(y, axes, keepdims)), dtype)


def log_sum_exp(x: Expr, axes: _Axes, keepdims: bool) -> Expr:
    """log(sum(exp(x))), shifted by the maximum so that it does not overflow."""
    if _is_empty(x, axes):
        return _identity_result(x, axes, keepdims, float("-inf"))
    top = reduce("max", x, axes, True)
    top = where(emit("isfinite", top), top, 0.0)
    result = add(emit("log", _sum(emit("exp", sub(x, top)), axes, True)), top)
    return result if keepdims else emit("squeeze", result, axis=axes)


def _log_sum_exp(x: Expr, axes: _Axes, keepdims: bool) -> Expr:
    dtype = dtype_of(x)
    return cast(log_sum_exp(x if dtype.is_float else cast(x, "float64"), axes, keepdims), dtype)


def _square(x: Expr) -> Expr:
    return mul(x, x)


def _abs(x: Expr) -> Expr:
    return emit("abs", x)


def _arg(name: str) -> Converter:
    def convert(node: Node) -> Expr:
        x = node.input(0)
        result = emit(
            name,
            x,
            axis=(axis_index(node.integer("axis"), rank_of(x)),),
            keepdims=node.integer("keepdims", 1) == 1,
            select_last_index=bool(node.integer("select_last_index")),
        )
        return cast(result, "int64")

    return convert


def _running(name: str) -> Converter:
    """CumSum and CumProd; `reverse` runs from the end, `exclusive` leaves the element itself out."""

    def along(node: Node, axis: int) -> Expr:
        x, backwards = node.input(0), bool(node.integer("reverse"))
        y = emit("reverse", x, axis=axis) if backwards else x
        y = emit(name, y, axis=axis, dtype=str(dtype_of(x)), exclusive=bool(node.integer("exclusive")))
        return emit("reverse", y, axis=axis) if backwards else y

    def convert(node: Node) -> Expr:
        axis, rank = node.input(1), rank_of(node.input(0))
        if isinstance(axis, Constant):
            return along(node, axis_index(node.const_int(1, "the axis"), rank))
        chosen = reshape(axis, ())
        chosen = where(less(chosen, 0), add(chosen, rank), chosen)
        result = along(node, 0)  # the axis comes at run time: compute along each, choose one
        for k in range(1, rank):
            result = where(binary("equal", chosen, k), along(node, k), result)
        return result

    return convert


def _top_k(node: Node) -> list[Expr | None]:
    x = node.input(0)
    axis = axis_index(node.integer("axis", -1), rank_of(x))
    k = node.integer("k") if "k" in node.attrs else node.const_int(1, "k")
    size = dims_of(x)[axis]
    if k < 0 or (isinstance(size, int) and k > size):
        raise AotcError("onnx-topk", f"k is {k}, the axis has {size} elements")
    ascending = not node.integer("largest", 1)
    if k == 0:  # which the graph's operator takes for all of them
        values = slice_axes(x, [0], [0], [axis])
        return [values, cast(values, "int64")]
    both = emit("topk", x, k=k, axis=axis, ret_type="both", is_ascend=ascending, dtype="int64")
    return [field(both, 0), field(both, 1)]


OPS: Table = {
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "CumProd": _running("cumprod"),
    "CumSum": _running("cumsum"),
    "ReduceL1": _reduction(lambda x, axes, keep: _sum(_abs(x), axes, keep), _abs),
    "ReduceL2": _reduction(_root_of_squares, _abs),
    "ReduceLogSum": _reduction(_log_sum, lambda x: emit("log", x)),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(_extreme("max", "any")),
    "ReduceMean": _reduction(lambda x, axes, keep: reduce("mean", x, axes, keep)),
    "ReduceMin": _reduction(_extreme("min", "all")),
    "ReduceProd": _reduction(lambda x, axes, keep: reduce("prod", x, axes, keep)),
    "ReduceSum": _reduction(_sum),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: _sum(_square(x), axes, keep), _square),
    "TopK": _top_k,
}
