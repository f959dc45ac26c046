# SPDX-License-Identifier: Apache-2.0
"""Non-maximum suppression of overlapping boxes, and the selection of valid boxes before it.

count, boxes, indices = get_valid_counts(data, 0.1)             # rows: class, score, corners
best = non_max_suppression(boxes, count, indices, return_indices=False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import (
    Arg,
    Attrs,
    PrecisionTreatment,
    TensorType,
    TupleType,
    Type,
    Types,
    attribute_field,
    declare_arguments,
    product_of_dims,
    require,
)
from aotc.relay.expr import Constant, Expr, Tuple, TupleGetItem, tensor_type_of
from aotc.relay.op import binary_elementwise, cast_clip_prelu, concat_split, gather, reduce, shape, sorting
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Samples,
    Scalar,
    exact_sample,
    may_be_equal_dims,
    number_to_constant_converter,
    random_array,
)
from aotc.relay.op.type_rules import (
    require_dtype,
    require_known_name,
    require_same_dtype,
    require_scalar_tensor_type,
    require_tensor_of_rank,
    static_shape_of,
)
from aotc.tir import BOOL, Block, Buffer, Declare, For, If, Load, Stmt, Store, Var, const, maximum, minimum, select, te
from aotc.tir.stmt import Assign

#: Data type of box counts and box indices.
BOX_INDEX_DTYPE: Final = "int32"


def _number_or_constant_to_float(value: Any, _: Any) -> float:
    """Convert a number or a scalar constant to a float."""
    return float(value.data if isinstance(value, Constant) else value)


def to_constant_of_dtype(number: Any, dtype: Any = BOX_INDEX_DTYPE) -> Constant:
    """Return a number or an array as a constant with a data type."""
    return Constant(np.asarray(number, dtype))


def require_box_rows_type(ty: Type, error_code: str = "boxes.data") -> TensorType:
    """Return `ty` as a tensor type (N, A, E) of floats; raise AotcError (`error_code`) for another
    rank or dtype.
    """
    data = require_tensor_of_rank(error_code, ty, 3)
    require_dtype(data.dtype, data.dtype in ("float32", "float64"))
    return data


def count_and_move_valid_rows_to_front(valid: Expr, rows: Expr, fill: float = -1) -> tuple[Expr, Expr]:
    """Return the number of valid rows, (N,), and the rows (N, A, ...) with the valid ones moved to
    the front.

    The other rows are set to `fill`.
    """
    flags, ty = cast_clip_prelu.cast(valid, BOX_INDEX_DTYPE), tensor_type_of(rows)
    batch, extent = static_shape_of(valid)
    order = sorting.argsort(flags, axis=1, is_ascend=False, dtype=BOX_INDEX_DTYPE)
    count = reduce.sum(flags, axis=1)
    places = np.arange(extent, dtype=BOX_INDEX_DTYPE)
    mask = binary_elementwise.greater(shape.reshape(count, (batch, 1)), to_constant_of_dtype(places))
    mask = shape.reshape(mask, (batch, extent, *(1,) * (ty.rank - 2)))
    ordered_rows = gather.take(rows, order, batch_dims=1, axis=1)
    return count, binary_elementwise.where(mask, ordered_rows, to_constant_of_dtype(fill, ty.dtype.numpy))


def count_and_move_valid_array_rows_to_front(valid: Array, rows: Array, fill: float = -1) -> tuple[Array, Array]:
    """Compute the result of `count_and_move_valid_rows_to_front` on numpy arrays."""
    count = valid.sum(1).astype(BOX_INDEX_DTYPE)
    result = np.full_like(rows, fill)
    for image_rows, mask, out in zip(rows, valid, result, strict=True):
        out[: mask.sum()] = image_rows[mask]
    return count, result


# --- vision.get_valid_counts


class GetValidCountsAttrs(Attrs):
    """Moves rows of `data` (N, A, E) with a score above `score_threshold` and a class >= 0 to the
    front.

    The result is a tuple: the number of valid rows (N,); the rows, followed by rows of -1; the
    original index of each row (N, A), followed by -1. A row has its score at `score_index` and its
    class at `id_index` (-1: no class).
    """

    score_threshold: float = attribute_field(
        parameter_default=0.0, type="float | Expr", convert=_number_or_constant_to_float
    )
    id_index: int = 0
    score_index: int = 1


def _check_column_indices(attrs: Any, data: TensorType, *columns_to_check: int) -> None:
    """Raise AotcError if a column index of the attributes or of `columns_to_check` is out of range
    for the rows.
    """
    extent = data.shape[2]
    columns = (attrs.score_index, max(attrs.id_index, 0), *columns_to_check)
    fits = isinstance(extent, int) and max(columns) < extent
    fits = fits and min(columns) >= 0
    text = f"{data} has no columns {columns}"
    require("boxes.columns", fits, text)


def _infer_get_valid_counts_type(attrs: Any, types: Types) -> Type:
    data = require_box_rows_type(types[0])
    _check_column_indices(attrs, data)
    count = TensorType(data.shape[:1], BOX_INDEX_DTYPE)
    return TupleType((count, data, TensorType(data.shape[:2], BOX_INDEX_DTYPE)))


def _get_valid_counts_reference(attrs: Any, data: Array) -> tuple[Array, ...]:
    valid = data[..., attrs.score_index] > data.dtype.type(attrs.score_threshold)
    if attrs.id_index >= 0:
        valid &= data[..., attrs.id_index] >= 0
    each = np.arange(data.shape[1], dtype=BOX_INDEX_DTYPE)
    places = np.broadcast_to(each, data.shape[:2])
    count, rows = count_and_move_valid_array_rows_to_front(valid, data)
    return count, rows, count_and_move_valid_array_rows_to_front(valid, places)[1]


def _column_of_rows(data: Expr, column: int) -> Expr:
    """Return the column `column` of (batch, rows, columns) data, of shape (batch, rows)."""
    return gather.take(data, to_constant_of_dtype(column), axis=2)


def _expand_get_valid_counts(attrs: Any, data: Expr) -> Expr:
    dtype = tensor_type_of(data).dtype.numpy
    batch, extent, _ = static_shape_of(data)
    least = to_constant_of_dtype(attrs.score_threshold, dtype)
    score = _column_of_rows(data, attrs.score_index)
    valid: Expr = binary_elementwise.greater(score, least)
    if attrs.id_index >= 0:
        ids, none = _column_of_rows(data, attrs.id_index), to_constant_of_dtype(0, dtype)
        is_class = binary_elementwise.greater_equal(ids, none)
        valid = binary_elementwise.logical_and(valid, is_class)
    count, rows = count_and_move_valid_rows_to_front(valid, data)
    each = np.arange(extent, dtype=BOX_INDEX_DTYPE)
    places = np.broadcast_to(each, (batch, extent))
    return Tuple((count, rows, count_and_move_valid_rows_to_front(valid, to_constant_of_dtype(places))[1]))


def _get_valid_counts_test_samples() -> Samples:
    for threshold, ids, score, dtype in ((0.0, 0, 1, "float32"), (0.5, -1, 0, "float64")):
        given: Any = {"id_index": ids, "score_index": score}
        a = GetValidCountsAttrs(score_threshold=threshold, **given)
        yield exact_sample(a, random_array((2, 9, 5), dtype))


get_valid_counts = OpDef(
    name="vision.get_valid_counts",
    attrs=GetValidCountsAttrs,
    infer=_infer_get_valid_counts_type,
    reference=_get_valid_counts_reference,
    expand=_expand_get_valid_counts,
    samples=_get_valid_counts_test_samples,
)


# --- vision.non_max_suppression


class NonMaxSuppressionAttrs(Attrs):
    """Non-maximum suppression of the first `valid_count` (N,) rows of `data` (N, A, E), by
    descending score.

    A row has two corners (four numbers from `coord_start` on), a score and a class. A row is
    suppressed if its intersection over union with a better row of its class (any class with
    `force_suppress`) is at least `iou_threshold`. Of the `top_k` best rows, at most
    `max_output_size` with a score above 0 remain; negative numbers mean all. The result is the rows
    in order with suppressed ones set to -1 (moved to the end with `invalid_to_bottom`), or with
    `return_indices` a tuple: the remaining rows' `indices` (N, A), followed by -1, and their number
    (N, 1).
    """

    iou_threshold: float = attribute_field(default=0.5, type="float | Expr", convert=_number_or_constant_to_float)
    force_suppress: bool = False
    top_k: int = -1
    coord_start: int = 2
    score_index: int = 1
    id_index: int = 0
    return_indices: bool = True
    invalid_to_bottom: bool = False


def _infer_non_max_suppression_type(attrs: Any, types: Types) -> Type:
    data = require_box_rows_type(types[0])
    _check_column_indices(attrs, data, attrs.coord_start, attrs.coord_start + 3)
    numbers = gather.require_integer_tensor(types[1], "valid_count")
    count = require_tensor_of_rank("boxes.count", numbers, 1, "valid_count")
    most = gather.require_integer_tensor(types[3], "max_output_size")
    require_scalar_tensor_type("boxes.count", most, "max_output_size")
    fits = may_be_equal_dims(count.shape[0], data.shape[0])
    text = f"{count} has no number for each of {data}"
    require("boxes.count", fits, text)
    if not attrs.return_indices:
        return data
    indices = gather.require_integer_tensor(types[2])
    same = all(map(may_be_equal_dims, indices.shape, data.shape))
    text = f"{indices} has no number for each row of {data}"
    require("boxes.indices", indices.rank == 2 and same, text)
    number = TensorType((data.shape[0], 1), BOX_INDEX_DTYPE)
    return TupleType((TensorType(data.shape[:2], BOX_INDEX_DTYPE), number))


def intersection_and_union_area(a: Any, b: Any, minimum_fn: Any, maximum_fn: Any) -> tuple[Any, Any]:
    """Return the intersection area and the union area of two boxes given by two corners each."""
    shared, total = 1.0, [1.0, 1.0]
    for k in (0, 1):
        low = [minimum_fn(box[k], box[k + 2]) for box in (a, b)]
        high = [maximum_fn(box[k], box[k + 2]) for box in (a, b)]
        along = minimum_fn(*high) - maximum_fn(*low)
        shared = maximum_fn(along, 0.0) * shared
        sizes = zip(total, low, high, strict=True)
        total = [(end - begin) * t for t, begin, end in sizes]
    return shared, total[0] + total[1] - shared


def _row_indices_or_minus_one_if_suppressed(attrs: Any, data: Array, count: int, max_boxes: int) -> list[int]:
    """Return the row indices of the boxes of an image, best first, with -1 for suppressed boxes."""
    count = min(max(count, 0), len(data))
    if not attrs.iou_threshold > 0:
        return [*range(count), *(-1,) * (len(data) - count)]
    scores, threshold = data[:, attrs.score_index], data.dtype.type(attrs.iou_threshold)
    order = sorting.stable_argsort(scores[:count], 0, False)
    row_indices = [-1] * len(data)
    best: list[Array] = []
    for j, row in enumerate(order[: attrs.top_k] if attrs.top_k > 0 else order):
        candidate, removed = data[row], len(best) == max_boxes
        for other in best if scores[row] > 0 else ():
            plain, ids = attrs.id_index < 0, (candidate[attrs.id_index], other[attrs.id_index])
            alike = attrs.force_suppress or plain or ids[0] == ids[1]
            known = plain or ids[1] >= 0
            first, second = (box[attrs.coord_start :] for box in (candidate, other))
            shared, both = intersection_and_union_area(first, second, np.minimum, np.maximum)
            much = both > 0 and shared / both >= threshold
            removed |= bool(alike and known and much)
        if not removed:
            row_indices[j] = int(row)
            best += [candidate] * bool(scores[row] > 0)
    return row_indices


def _non_max_suppression_reference(attrs: Any, data: Array, counts: Array, indices: Array, max_boxes: Array) -> Any:
    rows = zip(data, counts, strict=True)
    each = [_row_indices_or_minus_one_if_suppressed(attrs, x, int(n), int(max_boxes)) for x, n in rows]
    row_indices = np.array(each, BOX_INDEX_DTYPE)
    row_indices = row_indices.reshape(data.shape[:2])
    if attrs.return_indices:
        names = indices.astype(BOX_INDEX_DTYPE)
        selection = np.take_along_axis(names, np.maximum(row_indices, 0), 1)
        selection = np.where(row_indices >= 0, selection, -1).astype(BOX_INDEX_DTYPE)
        number, ahead = count_and_move_valid_array_rows_to_front(selection >= 0, selection)
        return ahead, number[:, None]
    selection = np.take_along_axis(data, np.maximum(row_indices, 0)[..., None], 1)
    selection = np.where(row_indices[..., None] >= 0, selection, data.dtype.type(-1))
    if not attrs.invalid_to_bottom:
        return selection
    return count_and_move_valid_array_rows_to_front(selection[..., 0] >= 0, selection)[1]


def _compute_row_indices_or_minus_one(
    attrs: Any, data: te.Tensor, counts: te.Tensor, max_boxes: te.Tensor
) -> te.Tensor:
    """Return the row indices of the boxes of each image, best first, with -1 for suppressed boxes."""
    batch, extent, width = data.shape

    def score_or_minus_infinity(i: Scalar, j: Scalar) -> Scalar:
        in_range = j < counts[(i,)].astype("int64")
        score = data[i, j, attrs.score_index]
        return select(in_range, score, float("-inf"))

    scores = te.compute((batch, extent), score_or_minus_infinity, "score")
    result = TensorType((batch, extent), BOX_INDEX_DTYPE)
    (order,) = sorting.compute_sorted_rows(scores, 1, False, [(False, result)])

    def build_suppression_loops(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        i, j, k, count = (Var(name) for name in ("i", "j", "k", "count"))
        row, other = (Var(name, result.dtype) for name in ("row", "other"))
        keep = Var("keep", BOOL)
        index_buffer, start = outputs[0], i * extent

        def load_box_column(row_index: Scalar, column: int) -> Scalar:
            row_ = start + maximum(row_index, 0).astype("int64")
            return Load(inputs[0], row_ * width + column)

        number = minimum(Load(inputs[1], i).astype("int64"), extent)
        limit = minimum(number, attrs.top_k) if attrs.top_k > 0 else number
        places = range(attrs.coord_start, attrs.coord_start + 4)
        corners, other_corners = ([load_box_column(p, c) for c in places] for p in (row, other))
        shared, both = intersection_and_union_area(corners, other_corners, minimum, maximum)
        alike = (other >= 0) & (load_box_column(other, attrs.score_index) > 0.0)
        if attrs.id_index >= 0:
            ids = load_box_column(row, attrs.id_index), load_box_column(other, attrs.id_index)
            alike = alike & (ids[1] >= 0.0)
            alike = alike if attrs.force_suppress else alike & ids[0].equal(ids[1])
        overlaps = (both > 0.0) & (shared / both >= attrs.iou_threshold)
        drop = If(alike & overlaps, Assign(keep, const(False, BOOL)))
        earlier = Declare(other, Load(index_buffer, start + k))
        compare = For(k, j, Block((earlier, drop)))
        better = keep & (load_box_column(row, attrs.score_index) > 0.0)
        grow = If(better, Assign(count, count + 1))
        full = count.equal(Load(inputs[3], const(0)).astype("int64"))
        begin = Declare(row, Load(inputs[2], start + j))
        store = Store(index_buffer, start + j, select(keep, row, -1))
        declare_keep = Declare(keep, (j < limit) & ~full)
        tested = If(better, compare)
        body = Block((begin, declare_keep, tested, grow, store))
        none = Declare(count, const(0))
        image = Block((none, For(j, extent, body)))
        return For(i, batch, image, kind="independent")

    shape_ = [(result.static_shape, result.dtype)]
    return te.extern("suppress", shape_, [data, counts, order, max_boxes], build_suppression_loops)[0]


def _compute_non_max_suppression(
    attrs: Any, data: te.Tensor, counts: te.Tensor, indices: te.Tensor, max_boxes: te.Tensor
) -> Any:
    batch, extent, width = data.shape
    if attrs.iou_threshold > 0:
        selected_rows = _compute_row_indices_or_minus_one(attrs, data, counts, max_boxes)
    else:
        selected_rows = te.compute(
            (batch, extent),
            lambda i, j: select(j < counts[(i,)].astype("int64"), j.astype(BOX_INDEX_DTYPE), -1),
            "kept",
        )

    def build_copy_unsuppressed_loops(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        i, j, k, at, row = (Var(name) for name in ("i", "j", "k", "at", "row"))
        place = i * extent
        is_compact = attrs.return_indices or attrs.invalid_to_bottom
        width_ = 1 if attrs.return_indices else width
        out = outputs[0]
        source = (place + maximum(row, 0)) * width_
        slot = maximum(minimum(at, extent - 1), 0)  # `at`, clamped so that bounds can be proven
        target = (place + slot) * width_ + k
        value = Load(inputs[1], source + k).astype(out.dtype)
        valid = row >= 0
        if is_compact:
            first = Load(inputs[1], source)
            valid = valid & (first >= 0)
        nothing = Store(out, target, const(-1, out.dtype))
        copy = For(k, width_, Store(out, target, value))
        step = Assign(at, at + 1)
        write: Stmt = Block((copy, step))
        clear: Stmt = Block((For(k, width_, nothing), step))
        chosen = If(valid, write) if is_compact else If(valid, write, clear)
        name = Load(inputs[0], place + j).astype("int64")
        each = Block((Declare(row, name), chosen))
        begin = Declare(at, const(0))
        rest = For(j, extent, clear, begin=at)
        image = Block((begin, For(j, extent, each), rest))
        return For(i, batch, image, kind="independent")

    if not attrs.return_indices:
        return te.extern("boxes", [(data.shape, data.dtype)], [selected_rows, data], build_copy_unsuppressed_loops)[0]
    (index_tensor,) = te.extern(
        "boxes", [(indices.shape, BOX_INDEX_DTYPE)], [selected_rows, indices], build_copy_unsuppressed_loops
    )

    def is_row_valid_as_integer(i: Scalar, _: Scalar, j: Scalar) -> Scalar:
        return (index_tensor[i, j] >= 0).astype(BOX_INDEX_DTYPE)

    return index_tensor, te.reduce("sum", (batch, 1), (extent,), is_row_valid_as_integer, "number")


def _non_max_suppression_test_samples() -> Samples:
    data = random_array((2, 12, 6))
    data[..., 0] = np.arange(12) % 3 - 1.0
    data[..., 2:] = np.round(data[..., 2:] * 2) / 2
    count = np.array([9, 20], np.int32)
    indices = np.arange(24, dtype=np.int32)[::-1].reshape(2, 12)
    rows: Any = (
        ({}, -1),
        ({"force_suppress": True, "iou_threshold": 0.1, "top_k": 6}, -1),
        ({"return_indices": False, "iou_threshold": 0.25, "id_index": -1}, 3),
        ({"return_indices": False, "invalid_to_bottom": True, "iou_threshold": 0.25}, 4),
        ({"iou_threshold": 0.0}, 2),
    )
    for given, most in rows:
        a = NonMaxSuppressionAttrs(**given)
        yield exact_sample(a, data, count, indices, np.array(most, np.int32))


non_max_suppression = OpDef(
    name="vision.non_max_suppression",
    attrs=NonMaxSuppressionAttrs,
    args=declare_arguments(
        "data",
        "valid_count",
        "indices",
        Arg("max_output_size", "int | Expr", -1, number_to_constant_converter(lambda _: BOX_INDEX_DTYPE)),
    ),
    infer=_infer_non_max_suppression_type,
    reference=_non_max_suppression_reference,
    compute=_compute_non_max_suppression,
    precision=PrecisionTreatment.NEVER,
    samples=_non_max_suppression_test_samples,
)


# --- vision.all_class_non_max_suppression


class AllClassNonMaxSuppressionAttrs(Attrs):
    """Non-maximum suppression of boxes (B, N, 4) for each image and each class of the scores (B, C,
    N).

    Of boxes with a score above `score_threshold`, at most `max_output_boxes_per_class` remain
    (below 1: all), without boxes whose intersection over union with a better box is at least
    `iou_threshold`; no box remains if the threshold is not above 0. `output_format` "onnx" gives a
    tuple: rows of image, class and box (B * C * N, 3), the best first within each class, and their
    number (1,). "tensorflow" gives rows of class and box (B, C * N, 2), their scores, and their
    number (B,). Unused rows are zero.
    """

    max_output_boxes_per_class: int = attribute_field(
        default=-1, type="int | Expr", convert=lambda v, _: int(_number_or_constant_to_float(v, _))
    )
    iou_threshold: float = attribute_field(default=-1.0, type="float | Expr", convert=_number_or_constant_to_float)
    score_threshold: float = attribute_field(default=-1.0, type="float | Expr", convert=_number_or_constant_to_float)
    output_format: str = "onnx"


#: Column attributes of rows made of a rank, which serves as score, and four box coordinates.
RANKED_BOX_COLUMNS: Final[Any] = {"coord_start": 1, "score_index": 0, "id_index": -1}


def _infer_all_class_nms_type(attrs: Any, types: Types) -> Type:
    boxes, scores = require_box_rows_type(types[0]), require_box_rows_type(types[1], "boxes.scores")
    require_same_dtype(boxes, scores)
    batch, classes, extent = scores.shape
    same = all(map(may_be_equal_dims, boxes.shape, (batch, extent, 4)))
    fits = same and 0 not in scores.shape
    text = f"{scores} has no score for each of {boxes}"
    require("boxes.scores", fits, text)
    formats = ("onnx", "tensorflow")
    require_known_name("boxes.format", "format", attrs.output_format, formats)
    places = TensorType((product_of_dims(scores.shape), 3), "int64")
    if attrs.output_format == "onnx":
        return TupleType((places, TensorType((1,), "int64")))
    score_type = TensorType((batch, product_of_dims((classes, extent))), scores.dtype)
    places = TensorType((*score_type.shape, 2), "int64")
    return TupleType((places, score_type, TensorType((batch,), "int64")))


def _all_class_nms_reference(attrs: Any, boxes: Array, scores: Array) -> tuple[Array, ...]:
    (batch, classes, extent), onnx = scores.shape, attrs.output_format == "onnx"
    most = attrs.max_output_boxes_per_class
    most = most if most > 0 else -1
    fields: list[list[tuple[int, ...]]] = [[] for _ in range(1 if onnx else batch)]
    for image, kind in np.ndindex(batch, classes):
        plain_scores = scores[image, kind]
        valid = plain_scores > boxes.dtype.type(attrs.score_threshold)
        masked_scores = np.where(valid, plain_scores, -np.inf)
        order = sorting.stable_argsort(masked_scores, 0, False)
        rank = np.arange(extent, 0, -1, dtype=boxes.dtype)
        rows = np.column_stack([rank, boxes[image][order]])
        plain = NonMaxSuppressionAttrs(iou_threshold=attrs.iou_threshold, **RANKED_BOX_COLUMNS)
        count = int((masked_scores > -np.inf).sum()) if attrs.iou_threshold > 0 else 0
        box_indices = [
            int(order[k]) for k in _row_indices_or_minus_one_if_suppressed(plain, rows, count, most) if k >= 0
        ]
        fields[0 if onnx else image] += [(image, kind, k) for k in box_indices]
    table = np.zeros((len(fields), scores.size // len(fields), 3), np.int64)
    values = np.zeros(table.shape[:2], scores.dtype)
    for image, rows_ in enumerate(fields):
        table[image, : len(rows_)] = np.reshape(rows_, (-1, 3))
        values[image, : len(rows_)] = [scores[row] for row in rows_]
    counts = np.array([len(rows_) for rows_ in fields], np.int64)
    return (table[0], counts) if onnx else (table[..., 1:], values, counts)


def _expand_all_class_nms(attrs: Any, boxes: Expr, scores: Expr) -> Expr:
    batch, classes, extent = static_shape_of(scores)
    dtype, sets = tensor_type_of(boxes).dtype.numpy, batch * classes
    flat = shape.reshape(scores, (sets, extent))
    valid = binary_elementwise.greater(flat, to_constant_of_dtype(attrs.score_threshold, dtype))
    known = binary_elementwise.where(valid, flat, to_constant_of_dtype(-np.inf, dtype))
    order = sorting.argsort(known, axis=1, is_ascend=False, dtype=BOX_INDEX_DTYPE)
    count = reduce.sum(cast_clip_prelu.cast(valid, BOX_INDEX_DTYPE), axis=1)
    if not attrs.iou_threshold > 0:
        count = binary_elementwise.multiply(count, to_constant_of_dtype(0))
    operand = shape.reshape(boxes, (batch, 1, extent, 4))
    wide = shape.broadcast_to(operand, (batch, classes, extent, 4))
    each = shape.reshape(wide, (sets, extent, 4))
    ordered = gather.take(each, order, batch_dims=1, axis=1)
    # ranks replace the scores, since scores below 0 are valid here
    down = np.arange(extent, 0, -1, dtype=dtype)[:, None]
    ranks = np.broadcast_to(down, (sets, extent, 1))
    rows = concat_split.concatenate([to_constant_of_dtype(ranks, dtype), ordered], -1)
    most = attrs.max_output_boxes_per_class
    most = most if most > 0 else -1
    row_indices = TupleGetItem(
        non_max_suppression(rows, count, order, most, attrs.iou_threshold, True, **RANKED_BOX_COLUMNS), 0
    )
    groups = 1 if attrs.output_format == "onnx" else batch
    picked = shape.reshape(row_indices, (groups, sets * extent // groups))
    chosen = binary_elementwise.greater_equal(picked, to_constant_of_dtype(0))
    places = np.moveaxis(np.indices((batch, classes, extent))[:2], 0, -1)
    named = to_constant_of_dtype(places.reshape(groups, -1, 2), "int64")
    box = shape.reshape(cast_clip_prelu.cast(picked, "int64"), (groups, -1, 1))
    number, table = count_and_move_valid_rows_to_front(chosen, concat_split.concatenate([named, box], -1), 0)
    number = cast_clip_prelu.cast(number, "int64")
    if attrs.output_format == "onnx":
        return Tuple((shape.reshape(table, (-1, 3)), number))
    operand = gather.take(flat, row_indices, batch_dims=1, axis=1)
    values = shape.reshape(operand, (groups, -1))
    columns = gather.take(table, to_constant_of_dtype([1, 2]), axis=2)
    return Tuple((columns, count_and_move_valid_rows_to_front(chosen, values, 0)[1], number))


def _all_class_nms_test_samples() -> Samples:
    boxes = np.round(random_array((2, 7, 4)) * 2) / 2
    scores = random_array((2, 3, 7), seed=4)
    for form, most, overlap, least in (("onnx", 2, 0.2, -0.5), ("tensorflow", -1, 0.3, 0.1), ("onnx", -1, 0.0, 0.0)):
        a = AllClassNonMaxSuppressionAttrs(
            max_output_boxes_per_class=most, iou_threshold=overlap, score_threshold=least, output_format=form
        )
        yield exact_sample(a, boxes, scores)


all_class_non_max_suppression = OpDef(
    name="vision.all_class_non_max_suppression",
    attrs=AllClassNonMaxSuppressionAttrs,
    args=declare_arguments("boxes", "scores"),
    infer=_infer_all_class_nms_type,
    reference=_all_class_nms_reference,
    expand=_expand_all_class_nms,
    samples=_all_class_nms_test_samples,
)
