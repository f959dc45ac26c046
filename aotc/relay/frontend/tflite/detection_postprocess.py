# SPDX-License-Identifier: Apache-2.0
"""TFLite converter of TFLite_Detection_PostProcess, the last operator of SSD detectors: it decodes boxes
by anchors and suppresses boxes that overlap better ones.

CUSTOM_OPS["TFLite_Detection_PostProcess"](encodings, predictions, anchors, node=node)
# boxes (1, n, 4), classes (1, n), scores (1, n), and the number of boxes (1,)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from aotc.ir import frozen, require
from aotc.relay.expr import Expr, TupleGetItem
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import reductions
from aotc.relay.frontend.tflite.custom_options import FlexbufferOptions
from aotc.relay.frontend.tflite.node import Table, TfliteNode

_DEFAULT_DETECTIONS_PER_CLASS: Final = 100
_RANK_AND_CORNERS: Final = {"coord_start": 1, "score_index": 0, "id_index": -1}


@frozen
class _Detection:
    """Options of one operator.

    most         largest number of boxes
    per_box      number of classes of each box
    per_class    largest number of boxes of a class, if classes are suppressed apart
    least        smallest score of a box
    overlap      largest intersection over union of two boxes
    """

    most: int
    per_box: int
    per_class: int
    least: float
    overlap: float
    classes: int
    classes_apart: bool

    @classmethod
    def from_node(cls, node: TfliteNode) -> _Detection:
        options = FlexbufferOptions(node)
        overlap = options.number("nms_iou_threshold")
        text = f"nms_iou_threshold is {overlap:g}, it must be above 0 and at most 1"
        require("tflite-options", 0 < overlap <= 1, text)
        return cls(
            options.integer("max_detections", 1),
            options.integer("max_classes_per_detection", 1),
            options.integer("detections_per_class", 1, _DEFAULT_DETECTIONS_PER_CLASS),
            options.number("nms_score_threshold"),
            overlap,
            options.integer("num_classes", 1),
            bool(options.number("use_regular_nms", 0)),
        )


def _decode_boxes(encodings: Expr, anchors: Expr, node: TfliteNode) -> Expr:
    """Return the corners (y, x, y, x) of boxes, (n, 4), from centers and sizes relative to anchors.
    As in LiteRT, centers and half sizes are computed in float64 and rounded to float32.
    """
    options = FlexbufferOptions(node)
    scales = [options.number(f"{name}_scale") for name in "yxhw"]
    text = f"the scales of boxes {scales} must be finite and not 0"
    require("tflite-options", all(np.isfinite(scales)) and all(scales), text)
    wide, anchor = g.cast(encodings, "float64"), g.cast(anchors, "float64")
    first, last = ([0, 0], [g.dim(anchors, 0), 2]), ([0, 2], [g.dim(anchors, 0), 4])
    (center, size), (anchor_center, anchor_size) = (
        [g.strided_slice(x, *ends, [0, 1]) for ends in (first, last)] for x in (wide, anchor)
    )
    center_scale, size_scale = (
        g.constant(np.asarray(v, np.float32).astype(np.float64)) for v in (scales[:2], scales[2:])
    )
    middle = g.cast(g.add(g.mul(g.div(center, center_scale), anchor_size), anchor_center), "float32")
    half = g.cast(g.mul(g.mul(g.exp(g.div(size, size_scale)), 0.5), anchor_size), "float32")
    return g.concat([g.sub(middle, half), g.add(middle, half)], 1)


def suppress_boxes(
    boxes: Expr, scores: Expr, is_valid: Callable[[Expr], Expr], threshold: float, most: int
) -> tuple[Expr, Expr]:
    """Suppress boxes by the scores of each of several classes.

    boxes       corners, (n, 4), float32
    scores      (classes, n), float32
    is_valid    function from scores to bools, True for each score that is not less than a valid one
    threshold   least intersection over union by which a box suppresses worse ones

    Return the positions of at most `most` remaining boxes of each class, best first, followed by -1,
    as int32 (classes, most), and their number, int32 (classes, 1).
    """
    classes, count = g.shape(scores)
    # scores that are not valid, among them NaN, are behind all others
    ranked = g.where(is_valid(scores), scores, g.constant(-np.inf, "float32"))
    order = g.call_op("argsort", ranked, axis=1, is_ascend=False, dtype="int32")
    ordered = g.call_op("take", scores, order, batch_dims=1, axis=1)
    counts = g.count_of_flags(is_valid(ordered))
    corners = g.call_op("take", boxes, order, axis=0)
    # ranks serve as scores: the operator keeps boxes with scores above 0 only
    ranks = g.constant(np.arange(count, 0, -1, dtype=np.float32).reshape(1, count, 1))
    rows = g.concat([g.broadcast_to(ranks, (classes, count, 1)), corners], 2)
    places = g.constant(np.ascontiguousarray(np.broadcast_to(np.arange(count, dtype=np.int32), (classes, count))))
    most = min(most, count)
    selection = g.call_op(
        "vision.non_max_suppression",
        rows,
        counts,
        places,
        g.constant(most, "int32"),
        iou_threshold=threshold,
        return_indices=True,
        **_RANK_AND_CORNERS,
    )
    found = g.strided_slice(TupleGetItem(selection, 0), [0], [most], [1])
    safe = g.call_op("take", order, g.maximum(found, 0), batch_dims=1, axis=1)
    return g.where(g.less(found, 0), g.constant(-1, "int32"), safe), TupleGetItem(selection, 1)


def _suppressed(boxes: Expr, scores: Expr, how: _Detection, most: int) -> tuple[Expr, Expr]:
    """Suppress boxes as `suppress_boxes` does, by the options of a detector."""
    # LiteRT suppresses boxes that overlap by more than the threshold
    threshold = float(np.nextafter(np.float32(how.overlap), np.float32(2)))
    least = g.constant(how.least, "float32")
    return suppress_boxes(boxes, scores, lambda s: g.greater_equal(s, least), threshold, most)


def _padded_rows(x: Expr, count: int) -> Expr:
    """Return (n, ...) with rows of zeros after it, (count, ...)."""
    missing = count - g.dim(x, 0)
    return g.pad(x, [(0, missing), *[(0, 0)] * (g.rank(x) - 1)]) if missing else x


def _where_found(found: Expr, x: Expr) -> Expr:
    """Return rows of `x` (n, ...), and zeros where `found` (n,), bool, is False."""
    return g.where(g.reshape(found, (g.dim(x, 0), *(1,) * (g.rank(x) - 1))), x, g.full(0.0, (), "float32"))


def _detections_of_best_classes(boxes: Expr, scores: Expr, how: _Detection) -> list[Expr]:
    """Suppress boxes by their best score; return boxes, classes, scores and the number of boxes."""
    per_box = min(how.per_box, how.classes)
    values, classes = reductions.top_k(scores, per_box, 1, False)
    best = g.transpose(g.strided_slice(values, [0], [1], [1]), (1, 0))
    places, number = _suppressed(boxes, best, how, how.most)
    place = g.reshape(places, (-1,))
    found, row = g.greater_equal(place, g.constant(0, "int32")), g.maximum(place, 0)

    def selected(x: Expr) -> Expr:
        """Each remaining box has `per_box` classes, and room for more."""
        rows = _padded_rows(_where_found(found, g.call_op("take", x, row, axis=0)), how.most)
        return g.pad(rows, [(0, 0), (0, how.per_box - per_box)]) if per_box < how.per_box else rows

    each = g.reshape(g.broadcast_to(g.unsqueeze(boxes, [1]), (g.dim(boxes, 0), per_box, 4)), (-1, per_box * 4))
    corners = _padded_rows(_where_found(found, g.call_op("take", each, row, axis=0)), how.most)
    corners = g.pad(corners, [(0, 0), (0, (how.per_box - per_box) * 4)]) if per_box < how.per_box else corners
    total = how.most * how.per_box
    return [
        g.reshape(corners, (1, total, 4)),
        g.reshape(selected(g.cast(classes, "float32")), (1, total)),
        g.reshape(selected(values), (1, total)),
        g.reshape(g.cast(number, "float32"), (1,)),
    ]


def _detections_of_each_class(boxes: Expr, scores: Expr, how: _Detection) -> list[Expr]:
    """Suppress boxes of each class apart and keep the best of all classes; return boxes, classes,
    scores and the number of boxes.
    """
    by_class = g.transpose(scores, (1, 0))
    places, _ = _suppressed(boxes, by_class, how, how.per_class)
    each = g.dim(places, 1)
    found = g.greater_equal(places, g.constant(0, "int32"))
    row = g.maximum(places, 0)
    values = g.call_op("take", by_class, row, batch_dims=1, axis=1)
    values = g.where(found, values, g.constant(-np.inf, "float32"))
    count = min(how.most, how.classes * each)
    best, at = reductions.top_k(g.reshape(values, (1, how.classes * each)), count, 1, False)
    at = g.reshape(at, (count,))
    remains = g.reshape(g.call_op("take", g.reshape(found, (-1,)), at, axis=0), (count,))
    box = g.call_op("take", g.reshape(row, (-1,)), at, axis=0)
    numbers = np.repeat(np.arange(how.classes, dtype=np.float32), each)
    fields = [g.call_op("take", boxes, box, axis=0), g.call_op("take", g.constant(numbers), at, axis=0)]
    rows = [_padded_rows(_where_found(remains, x), how.most) for x in (*fields, g.reshape(best, (count,)))]
    total = how.most * how.per_box
    corners, classes, values = (_padded_rows(x, total) for x in rows)
    number = g.call_reduction("sum", g.cast(remains, "float32"), [0], True)
    return [g.reshape(corners, (1, total, 4)), g.reshape(classes, (1, total)), g.reshape(values, (1, total)), number]


def _convert_detection_postprocess_node(
    encodings: Expr, predictions: Expr, anchors: Expr, *, node: TfliteNode
) -> list[Expr]:
    """Convert TFLite_Detection_PostProcess. Rows of the outputs after the last box are zeros."""
    encodings, predictions, anchors = (node.dequantized_or_real_input(k) for k in range(3))
    how, shapes = _Detection.from_node(node), [g.shape(x) for x in (encodings, predictions, anchors)]
    ranks = [len(shape) for shape in shapes] == [3, 3, 2]
    count = shapes[0][1] if ranks else 0
    fits = ranks and shapes[0][0] == shapes[1][0] == 1 and shapes[1][1] == shapes[2][0] == count > 0
    fits = fits and shapes[0][2] >= 4 and shapes[2][1] == 4 and shapes[1][2] in (how.classes, how.classes + 1)
    text = f"boxes {shapes[0]}, scores {shapes[1]} and anchors {shapes[2]} do not fit {how.classes} classes"
    require("graph-shape", fits, text)
    g.check_materialization_cost((how.most * how.per_box, 4), "float32", "the result of TFLite_Detection_PostProcess")
    encoded = g.strided_slice(g.reshape(encodings, shapes[0][1:]), [0], [4], [1])
    boxes = _decode_boxes(encoded, anchors, node)
    background = shapes[1][2] - how.classes
    scores = g.strided_slice(g.reshape(predictions, shapes[1][1:]), [background], [shapes[1][2]], [1])
    return (_detections_of_each_class if how.classes_apart else _detections_of_best_classes)(boxes, scores, how)


CUSTOM_OPS: Final[Table] = {"TFLite_Detection_PostProcess": _convert_detection_postprocess_node}
