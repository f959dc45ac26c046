# SPDX-License-Identifier: Apache-2.0
"""Converters that move data without computing: reshapes, transposes, joins, cuts, padding,
and constants.

Whatever decides a shape must be known at compile time; a shape taken from a static tensor is.

    OPS["Flatten"](x, axis=1)               # reshape(x, (2, 12))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from aotc.ir import AotcError, Dim, DType, is_static, require
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.arguments import Axis
from aotc.relay.frontend.onnx.load import dtype_of_elem
from aotc.relay.frontend.onnx.node import Ints, Known, Node, Table
from aotc.relay.frontend.shapes import cropped, depth_to_space, space_to_depth
from aotc.relay.op.rules import broadcast_shape

# --- reshaping


def _reshape(x: Expr, shape: Ints, *, allowzero: int = 0) -> Expr:
    dims = g.dims(x)
    target: list[Dim] = []
    for k, d in enumerate(shape):
        copied = d == 0 and not allowzero
        fits = not copied or k < len(dims)
        require("onnx-reshape", fits, f"{shape} copies dimension {k} of an input of rank {len(dims)}")
        target.append(dims[k] if copied else d)
    both = allowzero and 0 in shape and -1 in shape
    require("onnx-reshape", not both, f"{shape} holds both 0 and -1, with allowzero")
    if not is_static(target):
        if is_static(dims) or list(target) == list(dims):
            return x
        return g.op("reshape", x, newshape=tuple(shape), allowzero=False)
    return g.reshape(x, [d for d in target if isinstance(d, int)])


def _flatten(x: Expr, *, axis: int = 1) -> Expr:
    rank = g.rank(x)
    place = axis + rank if axis < 0 else axis
    require("onnx-axis", 0 <= place <= rank, f"axis {axis} is outside rank {rank}")
    if place == 1 and rank > 2:
        return g.op("nn.batch_flatten", x)
    shape = g.shape(x)
    return g.reshape(x, (math.prod(shape[:place]), math.prod(shape[place:])))


def _squeeze(x: Expr, axes: Ints | None = None, *, node: Node) -> Expr:
    if axes is None or (not axes and node.optional(1) is None):  # an empty attribute is as good as none
        return g.squeeze(x, [k for k, d in enumerate(g.shape(x)) if d == 1])
    return g.squeeze(x, sorted(g.axis(a, g.rank(x)) for a in axes))


def _unsqueeze(x: Expr, axes: Ints) -> Expr:
    rank = g.rank(x) + len(axes)
    places = sorted(g.axis(a, rank) for a in axes)
    require("onnx-axis", len(set(places)) == len(places), f"an axis is named twice in {axes}")
    return g.unsqueeze(x, places)


def _transpose(x: Expr, *, perm: list[int] | None = None) -> Expr:
    rank = g.rank(x)
    order = perm or list(reversed(range(rank)))
    require("onnx-transpose", sorted(order) == list(range(rank)), f"perm {order} is no permutation of {rank} axes")
    return g.transpose(x, order)


def _blocks(move: Callable[..., Expr], x: Expr, *, blocksize: int, mode: str = "DCR") -> Expr:
    return move(x, blocksize, g.rank(x) - 2, mode == "DCR")


# --- joining and cutting


def _concat(*parts: Expr, axis: int = 1) -> Expr:
    place = g.axis(axis, g.rank(parts[0]))
    filled = [p for p in parts if _extent(p, place) != 0]
    return g.concat(filled or parts[:1], place)


def _extent(x: Expr, axis: int) -> Dim:
    """A dimension, which may be dynamic; AotcError (code "onnx-axis") where
    there is no such axis.
    """
    dims = g.dims(x)
    require("onnx-axis", axis < len(dims), f"a tensor of shape ({', '.join(map(str, dims))}) has no axis {axis}")
    return dims[axis]


def _split(
    x: Expr, split: Ints | None = None, *, axis: Axis = 0, num_outputs: int | None = None, node: Node
) -> Sequence[Expr | None]:
    size, names = g.dim(x, axis), len(node.wanted)
    count = len(split) if split is not None else names if num_outputs is None else num_outputs
    if count > names:
        g.check_unrolled(count, "a split")
    if split is None:
        fits = 0 < count <= max(size, names)
        require("onnx-split", fits, f"{size} elements cannot be split into {count} parts")
        part = -(-size // count)  # the last part is smaller where that does not divide
        split = [min(part, size - k * part) for k in range(count)]
        require("onnx-split", min(split) >= 0, f"{size} elements cannot be split into {count} parts")
    fits = sum(split) == size and min(split, default=0) >= 0 and len(split) >= names
    require("onnx-split", fits, f"parts {split} do not make up {size} elements")
    return g.split(x, split, axis)


def _slice(x: Expr, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None) -> Expr:
    steps = [1] * len(starts) if steps is None else steps
    places = [g.axis(a, g.rank(x)) for a in (axes if axes is not None else range(len(starts)))]
    fits = len(starts) == len(ends) == len(places) == len(steps) and 0 not in steps
    text = f"starts {starts}, ends {ends}, axes {places} and steps {steps} do not agree"
    require("onnx-slice", fits and len(set(places)) == len(places), text)
    box = []
    for start, end, axis, step in zip(starts, ends, places, steps, strict=True):
        size = g.dim(x, axis)
        first, last = _cut(start, end, step, size)
        if (first, last, step) != (0, size, 1):
            # a backwards slice that ends before element 0 needs an end that numpy does not take from the back
            box.append((first, last if last >= 0 else -size - 1, axis, step))
    return g.cut(x, *zip(*box, strict=True)) if box else x


def _cut(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """Where a slice begins and ends: limited to the axis, backwards from no
    place before its first element.
    """
    before, after = (0, size) if step > 0 else (-1, size - 1)
    first = min(max(start + size if start < 0 else start, 0), after)
    last = min(max(end + size if end < 0 else end, before), after)
    return (first, last) if range(first, last, step) else (0, 0)


def _pad(
    x: Expr, pads: Ints | None = None, filling: Expr | None = None, axes: Ints | None = None, *, node: Node
) -> Expr:
    rank = g.rank(x)
    pads = node.attrs.get("paddings") or pads  # as they are called in operator set 1
    if pads is None:
        raise AotcError("onnx-input", "Pad needs `pads`; it is left out")
    places = range(rank) if axes is None else [g.axis(a, rank) for a in axes]
    require("onnx-pad", len(pads) == 2 * len(places), f"{len(pads)} pads do not fit {len(places)} axes")
    given = [(0, 0)] * rank
    for k, axis in enumerate(places):
        given[axis] = pads[k], pads[k + len(places)]
    x = cropped(x, given)
    widths = [(max(b, 0), max(a, 0)) for b, a in given]
    mode, value = node.attrs.get("mode", "constant"), node.attrs.get("value", 0.0)
    g.checked_shape([d + b + a for d, (b, a) in zip(g.shape(x), widths, strict=True)], g.dtype(x), "the result of Pad")
    if mode != "constant":
        return g.pad(x, widths, mode=mode)
    if filling is not None and any(b or a for b, a in widths):
        return g.op("nn.pad", x, g.reshape(filling, ()), pad_width=tuple(widths), pad_mode="constant")
    return g.pad(x, widths, value if g.dtype(x).is_float else int(value))


def _tile(x: Expr, repeats: Ints) -> Expr:
    fits = len(repeats) == g.rank(x) and min(repeats, default=1) >= 0
    require("onnx-tile", fits, f"repeats {repeats} do not fit rank {g.rank(x)}")
    g.checked_shape([d * r for d, r in zip(g.shape(x), repeats, strict=True)], g.dtype(x), "the result of Tile")
    return x if all(r == 1 for r in repeats) else g.op("tile", x, reps=tuple(repeats))


def _expand(x: Expr, shape: Ints) -> Expr:
    wanted = g.checked_shape(shape, g.dtype(x), "the shape of Expand")
    target = broadcast_shape(g.dims(x), wanted)
    if not is_static(target):
        g.shape(x)
    return g.broadcast(x, g.checked_shape(target, g.dtype(x), "the result of Expand"))


# --- shapes as values, and constants


def _shape(x: Expr, *, start: int = 0, end: int | None = None) -> Expr:
    chosen = g.dims(x)[start:end]
    if not is_static(chosen):
        g.shape(x, "a tensor whose shape is asked for")
    return g.constant([d for d in chosen if isinstance(d, int)], "int64")


_CONSTANTS = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}


def _constant(*, node: Node, value: Any = None, **values: Any) -> Expr:
    if value is not None:
        return Constant(node.host.tensor(value))
    for name, dtype in _CONSTANTS.items():
        if name in values:
            return g.constant(values[name], dtype)
    raise AotcError("onnx-constant", "this form of constant is not supported (a string or sparse tensor)")


def _constant_of_shape(shape: Ints, *, value: Any = None, node: Node) -> Expr:
    filling = np.zeros(1, np.float32) if value is None else node.host.tensor(value)
    dtype = DType.of(filling)
    only = g.only(filling, "the value of ConstantOfShape")
    return g.filled(only, g.checked_shape(shape, dtype, "the result of ConstantOfShape"), dtype)


def _range(start: Known, limit: Known, delta: Known) -> Expr:
    dtype = DType.of(start)
    number: Any = float if dtype.is_float else int
    first, last, step = (number(g.only(v, "each input of Range")) for v in (start, limit, delta))
    require("onnx-range", step != 0, "the step of Range is 0")
    finite = all(map(math.isfinite, (first, last, step)))
    require("onnx-range", finite, f"no range goes from {first} to {last} by {step}")
    span = last - first
    count = max(math.ceil(span / step) if dtype.is_float else -(-span // step), 0)
    g.check_materialized((count,), dtype, "the result of Range")
    work = np.float64 if dtype.is_float else np.int64
    return Constant((first + np.arange(count, dtype=work) * step).astype(dtype.numpy))


def _eye_like(x: Expr, *, k: int = 0, node: Node) -> Expr:
    code = node.attrs.get("dtype")
    dtype = g.dtype(x) if code is None else dtype_of_elem(code, "the result of EyeLike")
    g.check_materialized(g.shape(x), dtype, "the result of EyeLike")
    rows, columns = g.shape(x)
    return Constant(np.eye(rows, columns, k).astype(dtype.numpy))


def _trilu(x: Expr, k: Expr | None = None, *, upper: bool = True) -> Expr:
    diagonal = g.constant(0, "int64") if k is None else g.reshape(k, ())
    return g.op("trilu", x, diagonal, upper=upper)


def _reverse_sequence(x: Expr, lengths: Expr, *, time_axis: int = 0, batch_axis: int = 1) -> Expr:
    return g.op("reverse_sequence", x, lengths, seq_axis=time_axis, batch_axis=batch_axis)


OPS: Table = {
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": partial(_blocks, depth_to_space),
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Flatten": _flatten,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "Shape": _shape,
    "Size": lambda x: g.constant(math.prod(g.shape(x)), "int64"),
    "Slice": _slice,
    "SpaceToDepth": partial(_blocks, space_to_depth),
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
