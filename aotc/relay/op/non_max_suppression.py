# SPDX-License-Identifier: Apache-2.0
"""Non-maximum suppression of overlapping boxes, and the selection of valid boxes before it.

count, boxes, indices = get_valid_counts(data, 0.1)             # rows: class, score, corners
best = non_max_suppression(boxes, count, indices, return_indices=False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import Arg, Attrs, Precision, TensorType, TupleType, Type, Types, args, param, product, require
from aotc.relay.expr import Constant, Expr, Tuple, TupleGetItem, tensor_type_of
from aotc.relay.op import binary_elementwise, casts, concat_split, gather, reduce, shape, sorting
from aotc.relay.op.operator_definition import Array, OpDef, Samples, Scalar, exact, may_equal, number, random_array
from aotc.relay.op.type_rules import ranked, require_dtype, require_known, require_same_dtype, scalar, static_shape_of
from aotc.tir import BOOL, Block, Buffer, Declare, For, If, Load, Stmt, Store, Var, const, maximum, minimum, select, te
from aotc.tir.stmt import Assign

#: Data type of box counts and box indices.
COUNT: Final = "int32"


def _plain(value: Any, _: Any) -> float:
    """Convert a number or a scalar constant to a float."""
    return float(value.data if isinstance(value, Constant) else value)


def constant(number: Any, dtype: Any = COUNT) -> Constant:
    """Return a number or an array as a constant with a data type."""
    return Constant(np.asarray(number, dtype))


def box_rows(ty: Type, code: str = "boxes.data") -> TensorType:
    """Return `ty` as a tensor type (N, A, E) of floats; raise AotcError (`code`) for another rank
    or dtype.
    """
    data = ranked(code, ty, 3)
    require_dtype(data.dtype, data.dtype in ("float32", "float64"))
    return data


def ahead(valid: Expr, rows: Expr, fill: float = -1) -> tuple[Expr, Expr]:
    """Return the number of valid rows, (N,), and the rows (N, A, ...) with the valid ones moved to
    the front.

    The other rows are set to `fill`.
    """
    flags, ty = casts.cast(valid, COUNT), tensor_type_of(rows)
    batch, extent = static_shape_of(valid)
    order = sorting.argsort(flags, axis=1, is_ascend=False, dtype=COUNT)
    count = reduce.sum(flags, axis=1)
    places = np.arange(extent, dtype=COUNT)
    seen = binary_elementwise.greater(shape.reshape(count, (batch, 1)), constant(places))
    seen = shape.reshape(seen, (batch, extent, *(1,) * (ty.rank - 2)))
    moved = gather.take(rows, order, batch_dims=1, axis=1)
    return count, binary_elementwise.where(seen, moved, constant(fill, ty.dtype.numpy))


def ahead_of_arrays(valid: Array, rows: Array, fill: float = -1) -> tuple[Array, Array]:
    """Compute the result of `ahead` on numpy arrays."""
    count = valid.sum(1).astype(COUNT)
    found = np.full_like(rows, fill)
    for own, seen, out in zip(rows, valid, found, strict=True):
        out[: seen.sum()] = own[seen]
    return count, found


# --- vision.get_valid_counts


class GetValidCountsAttrs(Attrs):
    """Moves rows of `data` (N, A, E) with a score above `score_threshold` and a class >= 0 to the
    front.

    The result is a tuple: the number of valid rows (N,); the rows, followed by rows of -1; the
    original index of each row (N, A), followed by -1. A row has its score at `score_index` and its
    class at `id_index` (-1: no class).
    """

    score_threshold: float = param(given=0.0, type="float | Expr", takes=_plain)
    id_index: int = 0
    score_index: int = 1


def _columns(a: Any, data: TensorType, *more: int) -> None:
    """Raise AotcError if a column index of the attributes or of `more` is out of range for the
    rows.
    """
    extent = data.shape[2]
    columns = (a.score_index, max(a.id_index, 0), *more)
    fits = isinstance(extent, int) and max(columns) < extent
    fits = fits and min(columns) >= 0
    text = f"{data} has no columns {columns}"
    require("boxes.columns", fits, text)


def _valid_infer(a: Any, types: Types) -> Type:
    data = box_rows(types[0])
    _columns(a, data)
    count = TensorType(data.shape[:1], COUNT)
    return TupleType((count, data, TensorType(data.shape[:2], COUNT)))


def _valid_reference(a: Any, data: Array) -> tuple[Array, ...]:
    valid = data[..., a.score_index] > data.dtype.type(a.score_threshold)
    if a.id_index >= 0:
        valid &= data[..., a.id_index] >= 0
    each = np.arange(data.shape[1], dtype=COUNT)
    places = np.broadcast_to(each, data.shape[:2])
    count, rows = ahead_of_arrays(valid, data)
    return count, rows, ahead_of_arrays(valid, places)[1]


def _column(data: Expr, k: int) -> Expr:
    """Return column k of the rows of data, without the column axis."""
    return gather.take(data, constant(k), axis=2)


def _valid_expand(a: Any, data: Expr) -> Expr:
    dtype = tensor_type_of(data).dtype.numpy
    batch, extent, _ = static_shape_of(data)
    least = constant(a.score_threshold, dtype)
    score = _column(data, a.score_index)
    valid: Expr = binary_elementwise.greater(score, least)
    if a.id_index >= 0:
        ids, none = _column(data, a.id_index), constant(0, dtype)
        own = binary_elementwise.greater_equal(ids, none)
        valid = binary_elementwise.logical_and(valid, own)
    count, rows = ahead(valid, data)
    each = np.arange(extent, dtype=COUNT)
    places = np.broadcast_to(each, (batch, extent))
    return Tuple((count, rows, ahead(valid, constant(places))[1]))


def _valid_samples() -> Samples:
    for threshold, ids, score, dtype in ((0.0, 0, 1, "float32"), (0.5, -1, 0, "float64")):
        given: Any = {"id_index": ids, "score_index": score}
        a = GetValidCountsAttrs(score_threshold=threshold, **given)
        yield exact(a, random_array((2, 9, 5), dtype))


get_valid_counts = OpDef(
    name="vision.get_valid_counts",
    attrs=GetValidCountsAttrs,
    infer=_valid_infer,
    reference=_valid_reference,
    expand=_valid_expand,
    samples=_valid_samples,
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

    iou_threshold: float = param(default=0.5, type="float | Expr", takes=_plain)
    force_suppress: bool = False
    top_k: int = -1
    coord_start: int = 2
    score_index: int = 1
    id_index: int = 0
    return_indices: bool = True
    invalid_to_bottom: bool = False


def _suppressed_infer(a: Any, types: Types) -> Type:
    data = box_rows(types[0])
    _columns(a, data, a.coord_start, a.coord_start + 3)
    numbers = gather.integer_tensor(types[1], "valid_count")
    count = ranked("boxes.count", numbers, 1, "valid_count")
    most = gather.integer_tensor(types[3], "max_output_size")
    scalar("boxes.count", most, "max_output_size")
    fits = may_equal(count.shape[0], data.shape[0])
    text = f"{count} has no number for each of {data}"
    require("boxes.count", fits, text)
    if not a.return_indices:
        return data
    indices = gather.integer_tensor(types[2])
    same = all(map(may_equal, indices.shape, data.shape))
    text = f"{indices} has no number for each row of {data}"
    require("boxes.indices", indices.rank == 2 and same, text)
    number = TensorType((data.shape[0], 1), COUNT)
    return TupleType((TensorType(data.shape[:2], COUNT), number))


def _overlap(a: Any, b: Any, least: Any, most: Any) -> tuple[Any, Any]:
    """Return the intersection area and the union area of two boxes given by two corners each."""
    shared, total = 1.0, [1.0, 1.0]
    for k in (0, 1):
        low = [least(box[k], box[k + 2]) for box in (a, b)]
        high = [most(box[k], box[k + 2]) for box in (a, b)]
        along = least(*high) - most(*low)
        shared = most(along, 0.0) * shared
        sizes = zip(total, low, high, strict=True)
        total = [(end - begin) * t for t, begin, end in sizes]
    return shared, total[0] + total[1] - shared


def _kept_of_arrays(a: Any, data: Array, count: int, most: int) -> list[int]:
    """Return the row indices of the boxes of an image, best first, with -1 for suppressed boxes."""
    count = min(max(count, 0), len(data))
    if not a.iou_threshold > 0:
        return [*range(count), *(-1,) * (len(data) - count)]
    scores, threshold = data[:, a.score_index], data.dtype.type(a.iou_threshold)
    order = sorting.numpy_order(scores[:count], 0, False)
    kept = [-1] * len(data)
    best: list[Array] = []
    for j, row in enumerate(order[: a.top_k] if a.top_k > 0 else order):
        own, removed = data[row], len(best) == most
        for other in best if scores[row] > 0 else ():
            plain, ids = a.id_index < 0, (own[a.id_index], other[a.id_index])
            alike = a.force_suppress or plain or ids[0] == ids[1]
            known = plain or ids[1] >= 0
            first, second = (box[a.coord_start :] for box in (own, other))
            shared, both = _overlap(first, second, np.minimum, np.maximum)
            much = both > 0 and shared / both >= threshold
            removed |= bool(alike and known and much)
        if not removed:
            kept[j] = int(row)
            best += [own] * bool(scores[row] > 0)
    return kept


def _suppressed_reference(a: Any, data: Array, counts: Array, indices: Array, most: Array) -> Any:
    rows = zip(data, counts, strict=True)
    each = [_kept_of_arrays(a, x, int(n), int(most)) for x, n in rows]
    kept = np.array(each, COUNT)
    kept = kept.reshape(data.shape[:2])
    if a.return_indices:
        names = indices.astype(COUNT)
        found = np.take_along_axis(names, np.maximum(kept, 0), 1)
        found = np.where(kept >= 0, found, -1).astype(COUNT)
        number, ahead = ahead_of_arrays(found >= 0, found)
        return ahead, number[:, None]
    found = np.take_along_axis(data, np.maximum(kept, 0)[..., None], 1)
    found = np.where(kept[..., None] >= 0, found, data.dtype.type(-1))
    if not a.invalid_to_bottom:
        return found
    return ahead_of_arrays(found[..., 0] >= 0, found)[1]


def _kept(a: Any, data: te.Tensor, counts: te.Tensor, most: te.Tensor) -> te.Tensor:
    """Return the row indices of the boxes of each image, best first, with -1 for suppressed boxes."""
    batch, extent, width = data.shape

    def ranked_score(i: Scalar, j: Scalar) -> Scalar:
        seen = j < counts[(i,)].astype("int64")
        score = data[i, j, a.score_index]
        return select(seen, score, float("-inf"))

    scores = te.compute((batch, extent), ranked_score, "score")
    result = TensorType((batch, extent), COUNT)
    (order,) = sorting.sorted_rows(scores, 1, False, [(False, result)])

    def build(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        i, j, k, count = (Var(name) for name in ("i", "j", "k", "count"))
        row, other = (Var(name, result.dtype) for name in ("row", "other"))
        keep = Var("keep", BOOL)
        kept, start = outputs[0], i * extent

        def at(place: Scalar, column: int) -> Scalar:
            row_ = start + maximum(place, 0).astype("int64")
            return Load(inputs[0], row_ * width + column)

        number = minimum(Load(inputs[1], i).astype("int64"), extent)
        limit = minimum(number, a.top_k) if a.top_k > 0 else number
        places = range(a.coord_start, a.coord_start + 4)
        own, others = ([at(p, c) for c in places] for p in (row, other))
        shared, both = _overlap(own, others, minimum, maximum)
        alike = (other >= 0) & (at(other, a.score_index) > 0.0)
        if a.id_index >= 0:
            ids = at(row, a.id_index), at(other, a.id_index)
            alike = alike & (ids[1] >= 0.0)
            alike = alike if a.force_suppress else alike & ids[0].equal(ids[1])
        overlaps = (both > 0.0) & (shared / both >= a.iou_threshold)
        drop = If(alike & overlaps, Assign(keep, const(False, BOOL)))
        earlier = Declare(other, Load(kept, start + k))
        compare = For(k, j, Block((earlier, drop)))
        better = keep & (at(row, a.score_index) > 0.0)
        grow = If(better, Assign(count, count + 1))
        full = count.equal(Load(inputs[3], const(0)).astype("int64"))
        begin = Declare(row, Load(inputs[2], start + j))
        store = Store(kept, start + j, select(keep, row, -1))
        seen = Declare(keep, (j < limit) & ~full)
        tested = If(better, compare)
        body = Block((begin, seen, tested, grow, store))
        none = Declare(count, const(0))
        image = Block((none, For(j, extent, body)))
        return For(i, batch, image, kind="independent")

    shape_ = [(result.static_shape, result.dtype)]
    return te.extern("suppress", shape_, [data, counts, order, most], build)[0]


def _suppressed_compute(a: Any, data: te.Tensor, counts: te.Tensor, indices: te.Tensor, most: te.Tensor) -> Any:
    batch, extent, width = data.shape
    if a.iou_threshold > 0:
        kept = _kept(a, data, counts, most)
    else:
        kept = te.compute(
            (batch, extent), lambda i, j: select(j < counts[(i,)].astype("int64"), j.astype(COUNT), -1), "kept"
        )

    def build(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        i, j, k, at, row = (Var(name) for name in ("i", "j", "k", "at", "row"))
        place = i * extent
        moved = a.return_indices or a.invalid_to_bottom
        width_ = 1 if a.return_indices else width
        out = outputs[0]
        source = (place + maximum(row, 0)) * width_
        slot = maximum(minimum(at, extent - 1), 0)  # `at`, clamped so that bounds can be proven
        target = (place + slot) * width_ + k
        value = Load(inputs[1], source + k).astype(out.dtype)
        valid = row >= 0
        if moved:
            first = Load(inputs[1], source)
            valid = valid & (first >= 0)
        nothing = Store(out, target, const(-1, out.dtype))
        copy = For(k, width_, Store(out, target, value))
        step = Assign(at, at + 1)
        write: Stmt = Block((copy, step))
        clear: Stmt = Block((For(k, width_, nothing), step))
        chosen = If(valid, write) if moved else If(valid, write, clear)
        name = Load(inputs[0], place + j).astype("int64")
        each = Block((Declare(row, name), chosen))
        begin = Declare(at, const(0))
        rest = For(j, extent, clear, begin=at)
        image = Block((begin, For(j, extent, each), rest))
        return For(i, batch, image, kind="independent")

    if not a.return_indices:
        return te.extern("boxes", [(data.shape, data.dtype)], [kept, data], build)[0]
    (found,) = te.extern("boxes", [(indices.shape, COUNT)], [kept, indices], build)

    def one(i: Scalar, _: Scalar, j: Scalar) -> Scalar:
        return (found[i, j] >= 0).astype(COUNT)

    return found, te.reduce("sum", (batch, 1), (extent,), one, "number")


def _suppressed_samples() -> Samples:
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
        yield exact(a, data, count, indices, np.array(most, np.int32))


non_max_suppression = OpDef(
    name="vision.non_max_suppression",
    attrs=NonMaxSuppressionAttrs,
    args=args("data", "valid_count", "indices", Arg("max_output_size", "int | Expr", -1, number(lambda _: COUNT))),
    infer=_suppressed_infer,
    reference=_suppressed_reference,
    compute=_suppressed_compute,
    precision=Precision.NEVER,
    samples=_suppressed_samples,
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

    max_output_boxes_per_class: int = param(default=-1, type="int | Expr", takes=lambda v, _: int(_plain(v, _)))
    iou_threshold: float = param(default=-1.0, type="float | Expr", takes=_plain)
    score_threshold: float = param(default=-1.0, type="float | Expr", takes=_plain)
    output_format: str = "onnx"


#: Column attributes of rows made of a rank, which serves as score, and four box coordinates.
RANKED: Final[Any] = {"coord_start": 1, "score_index": 0, "id_index": -1}


def _classes_infer(a: Any, types: Types) -> Type:
    boxes, scores = box_rows(types[0]), box_rows(types[1], "boxes.scores")
    require_same_dtype(boxes, scores)
    batch, classes, extent = scores.shape
    same = all(map(may_equal, boxes.shape, (batch, extent, 4)))
    fits = same and 0 not in scores.shape
    text = f"{scores} has no score for each of {boxes}"
    require("boxes.scores", fits, text)
    formats = ("onnx", "tensorflow")
    require_known("boxes.format", "format", a.output_format, formats)
    places = TensorType((product(scores.shape), 3), "int64")
    if a.output_format == "onnx":
        return TupleType((places, TensorType((1,), "int64")))
    found = TensorType((batch, product((classes, extent))), scores.dtype)
    places = TensorType((*found.shape, 2), "int64")
    return TupleType((places, found, TensorType((batch,), "int64")))


def _classes_reference(a: Any, boxes: Array, scores: Array) -> tuple[Array, ...]:
    (batch, classes, extent), onnx = scores.shape, a.output_format == "onnx"
    most = a.max_output_boxes_per_class
    most = most if most > 0 else -1
    fields: list[list[tuple[int, ...]]] = [[] for _ in range(1 if onnx else batch)]
    for image, kind in np.ndindex(batch, classes):
        plain_scores = scores[image, kind]
        valid = plain_scores > boxes.dtype.type(a.score_threshold)
        own = np.where(valid, plain_scores, -np.inf)
        order = sorting.numpy_order(own, 0, False)
        rank = np.arange(extent, 0, -1, dtype=boxes.dtype)
        rows = np.column_stack([rank, boxes[image][order]])
        plain = NonMaxSuppressionAttrs(iou_threshold=a.iou_threshold, **RANKED)
        count = int((own > -np.inf).sum()) if a.iou_threshold > 0 else 0
        kept = [int(order[k]) for k in _kept_of_arrays(plain, rows, count, most) if k >= 0]
        fields[0 if onnx else image] += [(image, kind, k) for k in kept]
    table = np.zeros((len(fields), scores.size // len(fields), 3), np.int64)
    values = np.zeros(table.shape[:2], scores.dtype)
    for image, rows_ in enumerate(fields):
        table[image, : len(rows_)] = np.reshape(rows_, (-1, 3))
        values[image, : len(rows_)] = [scores[row] for row in rows_]
    counts = np.array([len(rows_) for rows_ in fields], np.int64)
    return (table[0], counts) if onnx else (table[..., 1:], values, counts)


def _classes_expand(a: Any, boxes: Expr, scores: Expr) -> Expr:
    batch, classes, extent = static_shape_of(scores)
    dtype, sets = tensor_type_of(boxes).dtype.numpy, batch * classes
    flat = shape.reshape(scores, (sets, extent))
    valid = binary_elementwise.greater(flat, constant(a.score_threshold, dtype))
    known = binary_elementwise.where(valid, flat, constant(-np.inf, dtype))
    order = sorting.argsort(known, axis=1, is_ascend=False, dtype=COUNT)
    count = reduce.sum(casts.cast(valid, COUNT), axis=1)
    if not a.iou_threshold > 0:
        count = binary_elementwise.multiply(count, constant(0))
    own = shape.reshape(boxes, (batch, 1, extent, 4))
    wide = shape.broadcast_to(own, (batch, classes, extent, 4))
    each = shape.reshape(wide, (sets, extent, 4))
    ordered = gather.take(each, order, batch_dims=1, axis=1)
    # ranks replace the scores, since scores below 0 are valid here
    down = np.arange(extent, 0, -1, dtype=dtype)[:, None]
    ranks = np.broadcast_to(down, (sets, extent, 1))
    rows = concat_split.concatenate([constant(ranks, dtype), ordered], -1)
    most = a.max_output_boxes_per_class
    most = most if most > 0 else -1
    found = TupleGetItem(non_max_suppression(rows, count, order, most, a.iou_threshold, True, **RANKED), 0)
    groups = 1 if a.output_format == "onnx" else batch
    picked = shape.reshape(found, (groups, sets * extent // groups))
    chosen = binary_elementwise.greater_equal(picked, constant(0))
    places = np.moveaxis(np.indices((batch, classes, extent))[:2], 0, -1)
    named = constant(places.reshape(groups, -1, 2), "int64")
    box = shape.reshape(casts.cast(picked, "int64"), (groups, -1, 1))
    number, table = ahead(chosen, concat_split.concatenate([named, box], -1), 0)
    number = casts.cast(number, "int64")
    if a.output_format == "onnx":
        return Tuple((shape.reshape(table, (-1, 3)), number))
    own = gather.take(flat, found, batch_dims=1, axis=1)
    values = shape.reshape(own, (groups, -1))
    columns = gather.take(table, constant([1, 2]), axis=2)
    return Tuple((columns, ahead(chosen, values, 0)[1], number))


def _classes_samples() -> Samples:
    boxes = np.round(random_array((2, 7, 4)) * 2) / 2
    scores = random_array((2, 3, 7), seed=4)
    for form, most, overlap, least in (("onnx", 2, 0.2, -0.5), ("tensorflow", -1, 0.3, 0.1), ("onnx", -1, 0.0, 0.0)):
        a = AllClassNonMaxSuppressionAttrs(
            max_output_boxes_per_class=most, iou_threshold=overlap, score_threshold=least, output_format=form
        )
        yield exact(a, boxes, scores)


all_class_non_max_suppression = OpDef(
    name="vision.all_class_non_max_suppression",
    attrs=AllClassNonMaxSuppressionAttrs,
    args=args("boxes", "scores"),
    infer=_classes_infer,
    reference=_classes_reference,
    expand=_classes_expand,
    samples=_classes_samples,
)
