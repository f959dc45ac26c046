# SPDX-License-Identifier: Apache-2.0
"""Non-maximum suppression with limits that are operands, as ONNX defines it.

rows, count = vision.select_boxes(boxes, scores, max_output_boxes, iou_threshold, score_threshold)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.ir import (
    Attrs,
    Dim,
    DType,
    PrecisionTreatment,
    TensorType,
    TupleType,
    Type,
    Types,
    declare_arguments,
    minimum_of_dims,
    product_of_dims,
    require,
)
from aotc.relay.op import sorting
from aotc.relay.op.non_max_suppression import intersection_and_union_area, require_box_rows_type
from aotc.relay.op.opdef import Array, OpDef, Samples, Scalar
from aotc.relay.op.operator_definition import exact_sample, may_be_equal_dims, random_array
from aotc.relay.op.type_rules import require_same_dtype, require_tensor_type
from aotc.tir import BOOL, Assign, Block, Buffer, Declare, For, If, Load, Stmt, Store, Tensor, Var, const, te
from aotc.tir import maximum as larger
from aotc.tir import minimum as smaller


class SelectBoxesAttrs(Attrs):
    """The boxes (B, N, 4) that remain for each image and each class of the scores (B, C, N).

    The corners of a box are its first two and its last two numbers. Of the boxes of a class with a score above
    `score_threshold`, the best one remains, then the best one whose intersection over union with none of those that
    remain exceeds `iou_threshold`, and so on, up to `max_output_boxes`. The result is a tuple: rows of image, class and
    box (B * C * N, 3), of which the first ones are used and the others are 0; and the number of rows that are used,
    of shape (1,). With `most` of at least 0, at most `most` boxes of a class remain, and there are so many fewer rows.
    """

    most: int = -1


def _boxes_of_class(a: SelectBoxesAttrs, extent: Dim) -> Dim:
    """Return the largest number of boxes that remain for an image and a class."""
    return extent if a.most < 0 else minimum_of_dims((a.most, extent))


def _infer_select_boxes_type(a: SelectBoxesAttrs, types: Types) -> Type:
    boxes, scores = require_box_rows_type(types[0]), require_box_rows_type(types[1], "boxes.scores")
    require_same_dtype(boxes, scores)
    expected = (*scores.shape[:1], *scores.shape[2:], 4)
    fits = all(map(may_be_equal_dims, expected, boxes.shape))
    require("boxes.scores", fits, lambda: f"{scores} has no score for each of {boxes}")
    limits = [require_tensor_type(t) for t in types[2:]]
    fits = all(t.is_static and t.numel == 1 for t in limits) and limits[0].dtype.is_integer
    fits = fits and all(t.dtype == boxes.dtype for t in limits[1:])
    require("boxes.count", fits, lambda: f"limits are an integer and two numbers of {boxes.dtype}, got {limits}")
    batch, classes, extent = scores.shape
    rows = product_of_dims((batch, classes, _boxes_of_class(a, extent)))
    return TupleType((TensorType((rows, 3), "int64"), TensorType((1,), "int64")))


def _select_boxes_reference(a: SelectBoxesAttrs, boxes: Array, scores: Array, *limits: Array) -> tuple[Array, Array]:
    most, overlap, least = (limit.reshape(-1)[0] for limit in limits)
    batch, classes, extent = scores.shape
    room = extent if a.most < 0 else min(a.most, extent)
    rows: list[tuple[int, int, int]] = []
    for image, kind in np.ndindex(batch, classes):
        kept: list[int] = []
        for box in sorting.stable_argsort(scores[image, kind], 0, False):
            if len(kept) < min(most, room) and scores[image, kind, box] > least:
                pairs = (
                    intersection_and_union_area(boxes[image, box], boxes[image, other], np.minimum, np.maximum)
                    for other in kept
                )
                if not any(shared > 0 and both > 0 and shared / both > overlap for shared, both in pairs):
                    kept.append(int(box))
        rows += [(image, kind, box) for box in kept]
    table = np.zeros((batch * classes * room, 3), np.int64)
    table[: len(rows)] = np.reshape(rows, (-1, 3))
    return table, np.array([len(rows)], np.int64)


def _compute_select_boxes(a: SelectBoxesAttrs, boxes: Tensor, scores: Tensor, *limits: Tensor) -> tuple[Tensor, ...]:
    batch, classes, extent = scores.shape
    of_class = _boxes_of_class(a, extent)
    room = product_of_dims((batch, classes, of_class))
    if room == 0:
        empty = te.compute((0, 3), lambda *_: const(0, "int64"), "rows")
        return empty, te.compute((1,), lambda _: const(0, "int64"), "count")
    sets = te.view(scores, (product_of_dims((batch, classes)), extent))
    result = TensorType(sets.shape, "int32")
    (order,) = sorting.compute_sorted_rows(sets, 1, False, [(False, result)])

    def build(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        rows, number = outputs
        image, kind, j, k, first, count, clear = map(Var, ("image", "class", "j", "k", "first", "count", "clear"))
        box, other = Var("box", DType("int32")), Var("other", DType("int64"))
        keep = Var("keep", BOOL)
        most, overlap, least = (Load(buffer, const(0)) for buffer in inputs[3:])
        begin = (image * classes + kind) * extent

        def corners(index: Scalar) -> list[Scalar]:
            start = (image * extent + larger(smaller(index, extent - 1), 0)) * 4
            return [Load(inputs[0], start + corner) for corner in range(4)]

        def row(index: Scalar) -> Scalar:
            return larger(smaller(index, room - 1), 0) * 3  # limited so that bounds can be proven

        shared, both = intersection_and_union_area(corners(box.astype("int64")), corners(other), smaller, larger)
        overlaps = (shared > 0.0) & (both > 0.0) & (shared / both > overlap)
        compare = Block((Declare(other, Load(rows, row(k) + 2)), If(overlaps, Assign(keep, const(False, BOOL)))))
        score = Load(inputs[1], begin + larger(smaller(box.astype("int64"), extent - 1), 0))
        has_room = (count - first < most.astype("int64")) & (count - first < of_class)
        values = (image, kind, box.astype("int64"))
        write = [Store(rows, row(count) + column, value) for column, value in enumerate(values)]
        body = (
            Declare(box, Load(inputs[2], begin + j)),
            Declare(keep, has_room & (score > least)),
            If(keep, For(k, count, compare, begin=first)),
            If(keep, Block((*write, Assign(count, count + 1)))),
        )
        of_set = Block((Declare(first, count), For(j, extent, Block(body))))
        all_sets = For(image, batch, For(kind, classes, of_set))
        rest = For(clear, room * 3, Store(rows, clear, const(0, "int64")), begin=larger(count, 0) * 3)
        return Block((Declare(count, const(0)), all_sets, rest, Store(number, const(0), count)))

    shapes = [((room, 3), "int64"), ((1,), "int64")]
    return te.extern("boxes", shapes, [boxes, sets, order, *limits], build, takes_sizes=True)


def _select_boxes_samples() -> Samples:
    for k, (dtype, most, overlap, least) in enumerate(
        (("float32", 3, 0.2, -0.5), ("float32", 0, 0.2, 0.1), ("float64", 9, 0.0, -9.0), ("float32", 2, 0.9, 5.0))
    ):
        boxes = np.round(random_array((2, 7, 4), dtype, k) * 2) / 2
        limits = np.array([most]), np.array([overlap], dtype), np.array(least, dtype)
        yield exact_sample(SelectBoxesAttrs(most=k - 1), boxes, random_array((2, 3, 7), dtype, k), *limits)


select_boxes = OpDef(
    name="vision.select_boxes",
    attrs=SelectBoxesAttrs,
    args=declare_arguments("boxes", "scores", "max_output_boxes", "iou_threshold", "score_threshold"),
    infer=_infer_select_boxes_type,
    reference=_select_boxes_reference,
    compute=_compute_select_boxes,
    precision=PrecisionTreatment.NEVER,
    samples=_select_boxes_samples,
)
