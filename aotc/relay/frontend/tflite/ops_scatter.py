# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of operators that write parts of tensors, of segments, and of non-maximum
suppression.

OPS["DYNAMIC_UPDATE_SLICE"](cache, rows, position)
OPS["UNSORTED_SEGMENT_SUM"](x, segments, 4)
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import numpy as np

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.tflite.detection_postprocess import suppress_boxes
from aotc.relay.frontend.tflite.node import KnownArray, KnownInts, Table, TfliteNode
from aotc.relay.graph_api import compile_time_elements


def convert_dynamic_update_slice_node(x: Expr, update: Expr, starts: Expr) -> Expr:
    """Convert DYNAMIC_UPDATE_SLICE: write `update` at `starts`, which are moved so that it fits."""
    shape, part = g.shape(x), g.shape(update)
    fits = len(shape) == len(part) == g.dim(starts, 0) and all(m <= n for m, n in zip(part, shape, strict=True))
    require("graph-shape", fits, f"an update of shape {part} does not fit data of shape {shape}")
    if 0 in part:
        return x
    most = np.array([n - m for n, m in zip(shape, part, strict=True)])
    known = compile_time_elements(starts)
    if known is not None:
        begin = np.clip(np.reshape(known, -1).astype(np.int64), 0, most)
        places = [np.arange(b, b + m) for b, m in zip(begin, part, strict=True)]
        g.check_materialization_cost((len(part), *part), "int64", "the positions of an update")
        index: Expr = g.constant(np.stack(np.meshgrid(*places, indexing="ij")), "int64")
    else:
        first = g.minimum(g.maximum(g.cast(starts, "int64"), 0), g.constant(most, "int64"))
        g.check_materialization_cost((len(part), *part), "int64", "the positions of an update")
        offsets = np.stack(np.meshgrid(*map(np.arange, part), indexing="ij"))
        index = g.add(g.constant(offsets, "int64"), g.reshape(first, (len(part), *(1,) * len(part))))
    return g.call_op("scatter_nd", x, index, update, mode="update")


def _convert_sparse_to_dense_node(indices: Expr, shape: KnownInts, values: Expr, default: Expr) -> Expr:
    sizes = g.checked_shape(shape, g.dtype(values), "the result of SPARSE_TO_DENSE")
    return g.call_op("sparse_to_dense", indices, values, g.reshape(default, ()), output_shape=sizes)


#: For each operator, the reduction and the value of a segment without elements.
_SEGMENT_REDUCTIONS: Final = {"SUM": "add", "PROD": "mul", "MAX": "max", "MIN": "min"}


def _value_of_empty_segment(name: str, x: Expr) -> float | int:
    if name in ("SUM", "PROD"):
        return 0 if name == "SUM" else 1
    dtype = g.dtype(x)
    value = dtype.min if name == "MAX" else dtype.max
    return float(value) if dtype.is_float else int(value)


def _convert_unsorted_segment_node(name: str, x: Expr, segments: Expr, count: KnownInts) -> Expr:
    """Reduce the rows of `x` with equal numbers of segments; rows with negative numbers are left out."""
    rank, fits = g.rank(segments), len(count) == 1 and count[0] >= 0
    require("tflite-input", fits, f"UNSORTED_SEGMENT_{name} has the number of segments {count}")
    fits = g.shape(x)[:rank] == g.shape(segments)
    require("graph-shape", fits, f"segments of shape {g.shape(segments)} do not fit data of shape {g.shape(x)}")
    rows = (count[0] + 1, *g.shape(x)[rank:])
    g.checked_shape(rows, g.dtype(x), f"the result of UNSORTED_SEGMENT_{name}")
    place = g.where(g.less(segments, 0), g.constant(count[0], str(g.dtype(segments))), segments)
    empty = g.full(_value_of_empty_segment(name, x), rows, str(g.dtype(x)))
    mode = _SEGMENT_REDUCTIONS[name]
    y = g.call_op("scatter_nd", empty, g.unsqueeze(place, [0]), x, mode=mode)
    return g.strided_slice(y, [0], [count[0]], [0])


# --- matrices


def _convert_matrix_diag_node(x: Expr) -> Expr:
    count = g.dim(x, g.rank(x) - 1)
    g.check_materialization_cost((count, count), "bool", "the diagonal of a matrix")
    zero = g.full(0, (), str(g.dtype(x)))
    return g.where(g.constant(np.eye(count, dtype=bool)), g.unsqueeze(x, [g.rank(x)]), zero)


def _convert_matrix_set_diag_node(x: Expr, diagonal: Expr) -> Expr:
    *lead, rows, columns = g.shape(x)
    fits = g.shape(diagonal) == (*lead, min(rows, columns))
    require("graph-shape", fits, f"a diagonal of shape {g.shape(diagonal)} does not fit {g.shape(x)}")
    g.check_materialization_cost((rows, columns), "bool", "the diagonal of a matrix")
    missing = columns - min(rows, columns)
    whole = g.pad(diagonal, [*[(0, 0)] * len(lead), (0, missing)]) if missing else diagonal
    return g.where(g.constant(np.eye(rows, columns, dtype=bool)), g.unsqueeze(whole, [len(lead)]), x)


# --- single elements


def _convert_bitcast_node(x: Expr, *, node: TfliteNode) -> Expr:
    target = node.first_output_declaration.dtype
    same = target.bits == g.dtype(x).bits and not target.is_bool
    require(
        "tflite-options", same, f"BITCAST from {g.dtype(x)} to {target} is not supported: their sizes must be equal"
    )
    return g.call_op("reinterpret", x, dtype=str(target))


def _convert_fake_quant_node(x: Expr, *, min: float, max: float, num_bits: int, narrow_range: bool = False) -> Expr:
    """Convert FAKE_QUANT: round to one of 2^num_bits equally distant numbers, among them 0."""
    require("graph-dtype", g.dtype(x) == "float32", f"FAKE_QUANT of {g.dtype(x)} is not supported (float32 is)")
    require("tflite-options", not narrow_range, "FAKE_QUANT with a narrow range is not supported, as in LiteRT")
    valid = 2 <= num_bits <= 16 and math.isfinite(min) and math.isfinite(max) and min < max
    text = f"FAKE_QUANT to {num_bits} bits between {min:g} and {max:g} is not possible"
    require("tflite-options", valid, text)
    high = np.float32((1 << num_bits) - 1)
    scale = (np.float32(max) - np.float32(min)) / high
    zero = np.clip(np.floor(np.float32(0.5) - np.float32(min) / scale), np.float32(0), high)
    first, last = -zero * scale, (high - zero) * scale
    steps = g.mul(g.sub(g.clip(x, float(first), float(last)), float(first)), float(np.float32(1) / scale))
    return g.add(g.mul(g.call_op("floor", g.add(steps, 0.5)), float(scale)), float(first))


# --- non-maximum suppression


def _convert_non_max_suppression_node(
    boxes: Expr,
    scores: Expr,
    most: KnownInts,
    overlap: KnownArray,
    least: KnownArray,
    sigma: KnownArray | None = None,
    *,
    node: TfliteNode,
) -> list[Expr]:
    """Convert NON_MAX_SUPPRESSION_V4 and V5: positions of the remaining boxes, best first, followed by
    zeros; for V5 their scores; and their number.
    """
    version_5 = node.op.name.endswith("V5")
    soft = sigma is not None and float(g.require_single_element(sigma, "sigma")) != 0
    require("tflite-options", not soft, f"{node.op.name} that lowers scores (sigma other than 0) is not supported")
    count = g.dim(scores, 0)
    fits = g.shape(boxes) == (count, 4) and len(most) == 1 and most[0] >= 0 and count > 0
    require("graph-shape", fits, f"{most} of boxes {g.shape(boxes)} with scores {g.shape(scores)} cannot remain")
    threshold = float(g.require_single_element(overlap, "the overlap"))
    require("tflite-options", 0 < threshold <= 1, f"the overlap is {threshold:g}, it must be above 0 and at most 1")
    limit = np.float32(g.require_single_element(least, "the smallest score"))
    places, number = suppress_boxes(
        boxes, g.unsqueeze(scores, [0]), lambda s: g.greater(s, g.constant(limit)), threshold, most[0]
    )
    found, row = g.greater_equal(places, g.constant(0, "int32")), g.maximum(places, 0)
    missing = most[0] - g.dim(places, 1)

    def padded(x: Expr) -> Expr:
        flat = g.reshape(x, (-1,))
        return g.pad(flat, [(0, missing)]) if missing else flat

    results = [padded(row)]
    if version_5:
        best = g.call_op("take", scores, row, axis=0)
        results.append(padded(g.where(found, best, 0.0)))
    return [*results, g.reshape(number, ())]


OPS: Final[Table] = {
    "BITCAST": _convert_bitcast_node,
    "DYNAMIC_UPDATE_SLICE": convert_dynamic_update_slice_node,
    "FAKE_QUANT": _convert_fake_quant_node,
    "MATRIX_DIAG": _convert_matrix_diag_node,
    "MATRIX_SET_DIAG": _convert_matrix_set_diag_node,
    "NON_MAX_SUPPRESSION_V4": _convert_non_max_suppression_node,
    "NON_MAX_SUPPRESSION_V5": _convert_non_max_suppression_node,
    "SPARSE_TO_DENSE": _convert_sparse_to_dense_node,
    **{f"UNSORTED_SEGMENT_{name}": partial(_convert_unsorted_segment_node, name) for name in _SEGMENT_REDUCTIONS},
}
INTEGERS: Final[frozenset[str]] = frozenset()
#: Operators that move quantized integers unchanged.
MOVES: Final[frozenset[str]] = frozenset({"DYNAMIC_UPDATE_SLICE"})
