# SPDX-License-Identifier: Apache-2.0
"""Converters that move data without computing: reshapes, transposes, joins, cuts, padding,
and constants.

Whatever decides a shape must be known at compile time; a shape taken from a static tensor is.

    OPS["Flatten"](node)                    # reshape(x, (2, 12))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotc.ir import AotcError, Dim, DType, is_static
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.onnx.load import dtype_of_elem
from aotc.relay.frontend.onnx.node import Converter, Node, Table
from aotc.relay.frontend.shapes import cropped, depth_to_space, space_to_depth
from aotc.relay.op.rules import broadcast_shape

# --- reshaping


def _reshape(node: Node) -> Expr:
    x = node[0]
    given = node.needed(node.ints_or_input("shape", 1), "the shape")
    dims, allow_zero = g.dims(x), node.flag("allowzero")
    target: list[Dim] = []
    for k, d in enumerate(given):
        if d == 0 and not allow_zero:
            if k >= len(dims):
                raise AotcError("onnx-reshape", f"{given} copies dimension {k} of an input of rank {len(dims)}")
            target.append(dims[k])
        else:
            target.append(d)
    if allow_zero and 0 in given and -1 in given:
        raise AotcError("onnx-reshape", f"{given} holds both 0 and -1, with allowzero")
    if not is_static(target):
        if is_static(dims) or list(target) == list(dims):
            return x
        return g.op("reshape", x, newshape=tuple(given), allowzero=False)
    return g.reshape(x, [d for d in target if isinstance(d, int)])


def _flatten(node: Node) -> Expr:
    x = node[0]
    rank = g.rank(x)
    axis = node.integer("axis", 1)
    axis = axis + rank if axis < 0 else axis
    if not 0 <= axis <= rank:
        raise AotcError("onnx-axis", f"axis {node.integer('axis')} is outside rank {rank}")
    if axis == 1 and rank > 2:
        return g.op("nn.batch_flatten", x)
    shape = g.shape(x)
    return g.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _squeeze(node: Node) -> Expr:
    x = node[0]
    axes = node.ints_or_input("axes", 1)
    if axes is None or (not axes and node.optional(1) is None):  # an empty attribute is as good as none
        return g.squeeze(x, [k for k, d in enumerate(g.shape(x)) if d == 1])
    return g.squeeze(x, sorted(g.axis(a, g.rank(x)) for a in axes))


def _unsqueeze(node: Node) -> Expr:
    x, axes = node[0], node.needed(node.ints_or_input("axes", 1), "the axes")
    rank = g.rank(x) + len(axes)
    places = sorted(g.axis(a, rank) for a in axes)
    if len(set(places)) != len(places):
        raise AotcError("onnx-axis", f"an axis is named twice in {axes}")
    return g.unsqueeze(x, places)


def _transpose(node: Node) -> Expr:
    x = node[0]
    order = node.ints("perm") or list(reversed(range(g.rank(x))))
    if sorted(order) != list(range(g.rank(x))):
        raise AotcError("onnx-transpose", f"perm {order} is no permutation of {g.rank(x)} axes")
    return g.transpose(x, order)


def _blocks(move: Callable[..., Expr]) -> Converter:
    def convert(node: Node) -> Expr:
        x = node[0]
        return move(x, node.integer("blocksize"), g.rank(x) - 2, node.text("mode", "DCR") == "DCR")

    return convert


# --- joining and cutting


def _concat(node: Node) -> Expr:
    parts = node.all_inputs()
    axis = g.axis(node.integer("axis", 1), g.rank(parts[0]))
    filled_parts = [p for p in parts if _extent(p, axis) != 0]
    return g.concat(filled_parts or parts[:1], axis)


def _extent(x: Expr, axis: int) -> Dim:
    """A dimension, which may be dynamic; AotcError (code "onnx-axis") where there is no such axis."""
    if axis >= g.rank(x):
        raise AotcError("onnx-axis", f"a tensor of shape ({', '.join(map(str, g.dims(x)))}) has no axis {axis}")
    return g.dims(x)[axis]


def split_sizes(size: int, count: int) -> list[int]:
    """`count` parts of equal size, the last one smaller where it does not divide."""
    if count < 1:
        raise AotcError("onnx-split", f"{size} elements cannot be split into {count} parts")
    part = -(-size // count)
    sizes = [min(part, size - k * part) for k in range(count)]
    if min(sizes) < 0:
        raise AotcError("onnx-split", f"{size} elements cannot be split into {count} parts")
    return sizes


def _split(node: Node) -> Sequence[Expr | None]:
    x = node[0]
    axis = node.axis(x)
    size = g.dim(x, axis)
    sizes = node.ints_or_input("split", 1)
    count = node.integer("num_outputs", len(node.wanted)) if sizes is None else len(sizes)
    if count > len(node.wanted):
        g.check_unrolled(count, "a split")
    if sizes is None:
        if not 0 < count <= max(size, len(node.wanted)):
            raise AotcError("onnx-split", f"{size} elements cannot be split into {count} parts")
        sizes = split_sizes(size, count)
    if sum(sizes) != size or min(sizes, default=0) < 0 or len(sizes) < len(node.wanted):
        raise AotcError("onnx-split", f"parts {sizes} do not make up {size} elements")
    return g.split(x, sizes, axis)


def _slice(node: Node) -> Expr:
    x = node[0]
    starts = node.needed(node.ints_or_input("starts", 1), "the starts")
    ends = node.needed(node.ints_or_input("ends", 2), "the ends")
    axes = node.ints_or_input("axes", 3)
    given = node.const_ints(4, "`steps`")
    steps = [1] * len(starts) if given is None else given
    places = [g.axis(a, g.rank(x)) for a in (axes if axes is not None else range(len(starts)))]
    if not len(starts) == len(ends) == len(places) == len(steps) or 0 in steps or len(set(places)) != len(places):
        raise AotcError("onnx-slice", f"starts {starts}, ends {ends}, axes {places} and steps {steps} do not agree")
    box = []
    for start, end, axis, step in zip(starts, ends, places, steps, strict=True):
        size = g.dim(x, axis)
        first, last = _cut(start, end, step, size)
        if (first, last, step) != (0, size, 1):
            # a backwards slice that ends before element 0 needs an end that numpy does not take from the back
            box.append((axis, first, last if last >= 0 else -size - 1, step))
    if not box:
        return x
    return g.cut(x, [b[1] for b in box], [b[2] for b in box], [b[0] for b in box], [b[3] for b in box])


def _cut(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """Where a slice begins and ends: limited to the axis, backwards from no place before its
    first element.
    """
    before, after = (0, size) if step > 0 else (-1, size - 1)
    first = min(max(start + size if start < 0 else start, 0), after)
    last = min(max(end + size if end < 0 else end, before), after)
    return (first, last) if range(first, last, step) else (0, 0)


def _pad(node: Node) -> Expr:
    x = node[0]
    rank = g.rank(x)
    pads = node.needed(node.ints("paddings") or node.ints_or_input("pads", 1), "the pads")
    axes = node.const_ints(3, "`axes`")
    places = [g.axis(a, rank) for a in axes] if axes is not None else list(range(rank))
    if len(pads) != 2 * len(places):
        raise AotcError("onnx-pad", f"{len(pads)} pads do not fit {len(places)} axes")
    given = [(0, 0)] * rank
    for k, axis in enumerate(places):
        given[axis] = pads[k], pads[k + len(places)]
    x = cropped(x, given)
    widths = [(max(b, 0), max(a, 0)) for b, a in given]
    mode = node.text("mode", "constant")
    g.checked_shape([d + b + a for d, (b, a) in zip(g.shape(x), widths, strict=True)], g.dtype(x), "the result of Pad")
    if mode != "constant":
        return g.pad(x, widths, mode=mode)
    value = node.optional(2)
    if value is not None and any(b or a for b, a in widths):
        return g.op("nn.pad", x, g.reshape(value, ()), pad_width=tuple(widths), pad_mode="constant")
    return g.pad(x, widths, node.number("value") if g.dtype(x).is_float else int(node.number("value")))


def _tile(node: Node) -> Expr:
    x = node[0]
    if node.since < 6:
        raise AotcError("onnx-op", "Tile of operator set 1 is not supported")
    repeats = node.const_ints(1, "`repeats`")
    if repeats is None or len(repeats) != g.rank(x) or min(repeats, default=1) < 0:
        raise AotcError("onnx-tile", f"repeats {repeats} do not fit rank {g.rank(x)}")
    g.checked_shape([d * r for d, r in zip(g.shape(x), repeats, strict=True)], g.dtype(x), "the result of Tile")
    return x if all(r == 1 for r in repeats) else g.op("tile", x, reps=tuple(repeats))


def _expand(node: Node) -> Expr:
    x, given = node[0], node.needed(node.const_ints(1, "the shape"), "the shape")
    shape = g.checked_shape(given, g.dtype(x), "the shape of Expand")
    target = broadcast_shape(g.dims(x), shape)
    if not is_static(target):
        g.shape(x)
    return g.broadcast(x, g.checked_shape(target, g.dtype(x), "the result of Expand"))


# --- shapes as values, and constants


def _shape(node: Node) -> Expr:
    dims = g.dims(node[0])
    rank = len(dims)
    start, end = node.integer("start"), node.integer("end", rank)
    chosen = dims[max(start + rank, 0) if start < 0 else start : max(end + rank, 0) if end < 0 else end]
    if not is_static(chosen):
        g.shape(node[0], "a tensor whose shape is asked for")
    return g.constant([d for d in chosen if isinstance(d, int)], "int64")


_CONSTANTS = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}


def _constant(node: Node) -> Expr:
    if "value" in node.attrs:
        return Constant(node.host.tensor(node.attrs["value"]))
    for name, dtype in _CONSTANTS.items():
        if name in node.attrs:
            return g.constant(node.attrs[name], dtype)
    raise AotcError("onnx-constant", "this form of constant is not supported (a string or sparse tensor)")


def _constant_of_shape(node: Node) -> Expr:
    shape = node.needed(node.const_ints(0, "the shape"), "the shape")
    value = node.host.tensor(node.attrs["value"]) if "value" in node.attrs else np.zeros(1, np.float32)
    dtype = DType.of(value)
    return g.filled(
        g.only(value, "the value of ConstantOfShape"),
        g.checked_shape(shape, dtype, "the result of ConstantOfShape"),
        dtype,
    )


def _range(node: Node) -> Expr:
    values = [node.const(k, what) for k, what in enumerate(("the start", "the limit", "the step"))]
    start, limit, step = (g.only(v, "each input of Range") for v in values)
    dtype = g.dtype(node[0])
    exact: list[Any] = [float(v) if dtype.is_float else int(v) for v in (start, limit, step)]
    if exact[2] == 0:
        raise AotcError("onnx-range", "the step of Range is 0")
    if not all(map(math.isfinite, exact)):
        raise AotcError("onnx-range", f"no range goes from {exact[0]} to {exact[1]} by {exact[2]}")
    span = exact[1] - exact[0]
    count = max(math.ceil(span / exact[2]) if dtype.is_float else -(-span // exact[2]), 0)
    g.check_materialized((count,), dtype, "the result of Range")
    work = np.float64 if dtype.is_float else np.int64
    return Constant((exact[0] + np.arange(count, dtype=work) * exact[2]).astype(dtype.numpy))


def _eye_like(node: Node) -> Expr:
    x = node[0]
    dtype = dtype_of_elem(node.integer("dtype"), "the result of EyeLike") if "dtype" in node.attrs else g.dtype(x)
    shape = g.shape(x)
    g.check_materialized(shape, dtype, "the result of EyeLike")
    rows, columns = shape
    return Constant(np.eye(rows, columns, node.integer("k")).astype(dtype.numpy))


def _trilu(node: Node) -> Expr:
    k = node.optional(1)
    diagonal = g.constant(0, "int64") if k is None else g.reshape(k, ())
    return g.op("trilu", node[0], diagonal, upper=node.flag("upper", 1))


OPS: Table = {
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _blocks(depth_to_space),
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Flatten": _flatten,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "ReverseSequence": lambda node: g.op(
        "reverse_sequence",
        node[0],
        node[1],
        seq_axis=node.integer("time_axis"),
        batch_axis=node.integer("batch_axis", 1),
    ),
    "Shape": _shape,
    "Size": lambda node: g.constant(math.prod(g.shape(node[0])), "int64"),
    "Slice": _slice,
    "SpaceToDepth": _blocks(space_to_depth),
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
