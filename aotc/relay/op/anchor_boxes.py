# SPDX-License-Identifier: Apache-2.0
"""Anchor boxes of object detectors: generation, decoding of box predictions, and region proposals.

anchors = multibox_prior(x, sizes=(0.3, 0.5))
boxes, count = multibox_transform_loc(classes, offsets, anchors)    # rows: class, probability, corners
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from aotc.ir import (
    Attrs,
    AxisMap,
    TensorType,
    TupleType,
    Type,
    Types,
    declare_arguments,
    product_of_dims,
    require,
    require_static_shape,
)
from aotc.relay.expr import Constant, Expr, Tuple, TupleGetItem, tensor_type_of
from aotc.relay.op import (
    binary_elementwise,
    cast_clip_prelu,
    concat_split,
    elementwise_unary,
    gather,
    non_max_suppression,
    reduce,
    shape,
    sorting,
)
from aotc.relay.op.non_max_suppression import (
    BOX_INDEX_DTYPE,
    RANKED_BOX_COLUMNS,
    count_and_move_valid_array_rows_to_front,
    count_and_move_valid_rows_to_front,
    require_box_rows_type,
    to_constant_of_dtype,
)
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    Samples,
    exact_sample,
    may_be_equal_dims,
    random_array,
)
from aotc.relay.op.type_rules import (
    reference_from_expansion,
    require_dtype,
    require_same_dtype,
    require_tensor_of_rank,
    static_shape_of,
)

# --- vision.multibox_prior


class MultiboxPriorAttrs(Attrs):
    """Anchor boxes for each pixel of `data` (N, C, H, W): corners from 0 to 1, (1, H * W * (sizes +
    ratios - 1), 4).

    A pixel has one anchor for each of `sizes`, with the first of `ratios`, then one anchor of the
    first size for each further ratio. `steps` between pixels and `offsets`, in units of steps, are
    given for y, then x; negative steps divide the image evenly. `clip` clips corners to [0, 1].
    """

    sizes: tuple[float, ...] = (1.0,)
    ratios: tuple[float, ...] = (1.0,)
    steps: tuple[float, ...] = (-1.0, -1.0)
    offsets: tuple[float, ...] = (0.5, 0.5)
    clip: bool = False


def _infer_multibox_prior_type(attrs: Any, types: Types) -> Type:
    data = require_tensor_of_rank("boxes.data", types[0], 4)
    pairs = len(attrs.steps) == len(attrs.offsets) == 2
    fits = pairs and bool(attrs.sizes)
    fits = fits and min(attrs.ratios, default=0) > 0
    text = "sizes, positive ratios, two steps, two offsets"
    require("boxes.anchors", fits, f"expected: {text}")
    each = len(attrs.sizes) + len(attrs.ratios) - 1
    return TensorType((1, product_of_dims((*data.shape[2:], each)), 4), "float32")


def _multibox_prior_reference(attrs: Any, data: Array) -> Array:
    extents = data.shape[2:]
    pairs = zip(attrs.steps, extents, strict=True)
    steps = [s if s > 0 else 1.0 / max(n, 1) for s, n in pairs]
    pixels = zip(extents, attrs.offsets, steps, strict=True)
    places = ((np.arange(n) + o) * s for n, o, s in pixels)
    centers = np.meshgrid(*places, indexing="ij")
    sizes = np.array([*attrs.sizes, *attrs.sizes[:1] * (len(attrs.ratios) - 1)])
    roots = np.sqrt([*(1.0,) * len(attrs.sizes), *attrs.ratios[1:]])
    aspect = extents[0] / max(extents[1], 1)
    w = sizes * aspect * roots / 2
    h = sizes / roots / 2
    y, x = (c[..., None] for c in centers)
    corners = [x - w, y - h, x + w, y + h]
    boxes = np.stack(corners, -1)
    boxes = boxes.reshape(1, -1, 4).astype(np.float32)
    return np.clip(boxes, 0, 1) if attrs.clip else boxes


def _expand_multibox_prior(attrs: Any, data: Expr) -> Expr:
    pixels = np.broadcast_to(np.float32(0), static_shape_of(data))
    return Constant(_multibox_prior_reference(attrs, pixels))


def _multibox_prior_test_samples() -> Samples:
    given: Any = {"sizes": (0.3, 1.5), "ratios": (1.3, 2.4, 0.5), "steps": (2.0, -1.0), "offsets": (0.2, 0.3)}
    for a in (MultiboxPriorAttrs(), MultiboxPriorAttrs(clip=True, **given)):
        yield exact_sample(a, random_array((1, 2, 3, 4)))


multibox_prior = OpDef(
    name="vision.multibox_prior",
    attrs=MultiboxPriorAttrs,
    infer=_infer_multibox_prior_type,
    axes=lambda *_: AxisMap(((None,) * 3,)),
    reference=_multibox_prior_reference,
    expand=_expand_multibox_prior,
    samples=_multibox_prior_test_samples,
)


# --- vision.multibox_transform_loc


class MultiboxTransformLocAttrs(Attrs):
    """Boxes decoded from class probabilities (N, C, A), box offsets (N, A * 4) and anchors (1, A,
    4).

    The result is a tuple: rows (N, A, 6) of class, probability and two corners (clipped to [0, 1]
    with `clip`), and the number of valid rows (N,). Valid rows come first, others are -1. The first
    class is the background: unless `keep_background`, background boxes and boxes with a probability
    below `threshold` are dropped, and class numbers do not count the background.
    """

    clip: bool = True
    threshold: float = 0.01
    variances: tuple[float, ...] = (0.1, 0.1, 0.2, 0.2)
    keep_background: bool = False


def _infer_multibox_transform_loc_type(attrs: Any, types: Types) -> Type:
    classes = require_box_rows_type(types[0], "boxes.classes")
    anchors = require_box_rows_type(types[2], "boxes.anchors")
    offsets = require_tensor_of_rank("boxes.offsets", types[1], 2, "loc_pred")
    require_same_dtype(classes, offsets)
    require_same_dtype(classes, anchors)
    batch, kinds, extent = classes.shape
    least = 1 if attrs.keep_background else 2
    some = isinstance(kinds, int) and kinds >= least
    some = some and isinstance(extent, int)
    text = f"there is no class in {classes}"
    require("boxes.classes", some, text)
    (known,) = require_static_shape((extent,))
    actual_dims = (*offsets.shape, *anchors.shape)
    same = all(map(may_be_equal_dims, actual_dims, (batch, known * 4, 1, known, 4)))
    fits = same and len(attrs.variances) == 4
    both = f"{offsets} and {anchors}"
    text = f"{both} have no box for each of {classes}"
    require("boxes.offsets", fits, text)
    rows = TensorType((batch, extent, 6), classes.dtype)
    return TupleType((rows, TensorType((batch,), BOX_INDEX_DTYPE)))


def _multibox_transform_loc_reference(attrs: Any, classes: Array, offsets: Array, anchors: Array) -> tuple[Array, ...]:
    batch, _, extent = classes.shape
    first, dtype = int(not attrs.keep_background), classes.dtype
    score = np.maximum(classes[:, first:].max(1), dtype.type(-1))
    kind = np.where(score > -1, classes[:, first:].argmax(1) + first, 0)
    kind = np.where(score < dtype.type(attrs.threshold), 0, kind)
    moves = offsets.reshape(batch, extent, 4)
    spread = np.array(attrs.variances, dtype)
    low, high = anchors[..., :2], anchors[..., 2:]
    size = high - low
    center = moves[..., :2] * spread[:2] * size + (low + high) / 2
    grown = np.exp(moves[..., 2:] * spread[2:])
    half = grown * size / 2
    box = np.concatenate([center - half, center + half], -1)
    box = np.clip(box, 0, 1) if attrs.clip else box
    fields = [(kind - first)[..., None], score[..., None]]
    rows = np.concatenate([*fields, box], -1).astype(dtype)
    count, valid_rows = count_and_move_valid_array_rows_to_front((kind > 0) | attrs.keep_background, rows)
    return valid_rows, count


def _expand_multibox_transform_loc(attrs: Any, classes: Expr, offsets: Expr, anchors: Expr) -> Expr:
    batch, kinds, extent = static_shape_of(classes)
    first = int(not attrs.keep_background)
    class_dtype = tensor_type_of(classes).dtype
    dtype = class_dtype.numpy
    some = gather.take(classes, to_constant_of_dtype(np.arange(first, kinds)), axis=1)
    score = binary_elementwise.maximum(reduce.max(some, axis=1), to_constant_of_dtype(-1, dtype))
    place = cast_clip_prelu.cast(reduce.argmax(some, axis=1), BOX_INDEX_DTYPE)
    best = binary_elementwise.add(place, to_constant_of_dtype(first))
    # no class has a probability above -1: the background
    least = np.nextafter(dtype.type(-1), dtype.type(0))
    bound = to_constant_of_dtype(max(attrs.threshold, least), dtype)
    low_score = binary_elementwise.less(score, bound)
    kind = binary_elementwise.where(low_score, to_constant_of_dtype(0), best)

    def take_two_columns(x: Expr, begin: int) -> Expr:
        return gather.take(x, to_constant_of_dtype([begin, begin + 1]), axis=2)

    moves = shape.reshape(offsets, (batch, extent, 4))
    spread = [to_constant_of_dtype(attrs.variances[k : k + 2], dtype) for k in (0, 2)]
    low, high = take_two_columns(anchors, 0), take_two_columns(anchors, 2)
    size, two = binary_elementwise.subtract(high, low), to_constant_of_dtype(2, dtype)
    times = binary_elementwise.multiply
    displacement = times(times(take_two_columns(moves, 0), spread[0]), size)
    middle = binary_elementwise.divide(binary_elementwise.add(low, high), two)
    center = binary_elementwise.add(displacement, middle)
    wide = times(take_two_columns(moves, 2), spread[1])
    grown = times(elementwise_unary.exp(wide), size)
    half = binary_elementwise.divide(grown, two)
    begin = binary_elementwise.subtract(center, half)
    end = binary_elementwise.add(center, half)
    box: Expr = concat_split.concatenate([begin, end], -1)
    box = cast_clip_prelu.clip(box, 0.0, 1.0) if attrs.clip else box
    names = binary_elementwise.subtract(kind, to_constant_of_dtype(first))
    pair = (cast_clip_prelu.cast(names, str(class_dtype)), score)
    fields = [shape.reshape(x, (batch, extent, 1)) for x in pair]
    valid = binary_elementwise.greater(kind, to_constant_of_dtype(first - 1))
    every = concat_split.concatenate([*fields, box], -1)
    count, rows = count_and_move_valid_rows_to_front(valid, every)
    return Tuple((rows, count))


def _multibox_transform_loc_test_samples() -> Samples:
    for keep, threshold in ((False, 0.4), (True, 0.01)):
        given: Any = {"threshold": threshold, "clip": keep}
        a = MultiboxTransformLocAttrs(keep_background=keep, **given)
        classes = np.abs(random_array((2, 3, 5)))
        offsets = random_array((2, 20))
        anchors = random_array((1, 5, 4))
        yield Sample(args=(classes, offsets, anchors), attrs=a)


multibox_transform_loc = OpDef(
    name="vision.multibox_transform_loc",
    attrs=MultiboxTransformLocAttrs,
    args=declare_arguments("cls_prob", "loc_pred", "anchor"),
    infer=_infer_multibox_transform_loc_type,
    reference=_multibox_transform_loc_reference,
    expand=_expand_multibox_transform_loc,
    samples=_multibox_transform_loc_test_samples,
)


# --- vision.proposal


class ProposalAttrs(Attrs):
    """Region proposals: the best decoded anchors after non-maximum suppression, (N *
    rpn_post_nms_top_n, 5).

    A row is the image index and two corners. Pixels are `feature_stride` apart; each has an anchor
    for each of `ratios` and, within, of `scales`: A in all. Only the second half of the scores (N,
    2 * A, H, W) is used. Offsets (N, 4 * A, H, W) are center shifts in units of the size and
    logarithms of size factors, or shifts of corners with `iou_loss`. `im_info` (N, 3) has the
    height, width and scale of each image.

    Boxes are clipped to the image. Boxes smaller than `rpn_min_size` times the scale, which grow by
    half of that on each side, and boxes of pixels outside the image have a score of -1. Of the
    `rpn_pre_nms_top_n` best boxes (0: all), boxes whose intersection over union with a better box
    exceeds `threshold` are removed; the remaining boxes repeat until there are enough. Corners are
    pixel positions: a size is the difference of corners plus 1.
    """

    scales: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0)
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    feature_stride: float = 16.0
    threshold: float = 0.7
    rpn_pre_nms_top_n: int = 6000
    rpn_post_nms_top_n: int = 300
    rpn_min_size: int = 16
    iou_loss: bool = False


def _infer_proposal_type(attrs: Any, types: Types) -> Type:
    scores = require_tensor_of_rank("boxes.scores", types[0], 4, "cls_prob")
    moves = require_tensor_of_rank("boxes.offsets", types[1], 4, "bbox_pred")
    images = require_tensor_of_rank("boxes.data", types[2], 2, "im_info")
    require_dtype(scores.dtype, scores.dtype in ("float32", "float64"))
    for other in (moves, images):
        require_same_dtype(scores, other)
    each = len(attrs.scales) * len(attrs.ratios)
    positive = min(*attrs.scales, *attrs.ratios, attrs.feature_stride, attrs.rpn_post_nms_top_n, 1) > 0
    require("boxes.anchors", each > 0 and positive, "expected: positive scales, ratios, strides and numbers of boxes")
    batch, channels, *space = scores.shape
    actual_dims = (channels, *moves.shape, *images.shape)
    same = all(map(may_be_equal_dims, actual_dims, (2 * each, batch, 4 * each, *space, batch, 3)))
    text = f"{scores}, {moves} and {images} do not fit {each} anchors"
    require("boxes.offsets", same and 0 not in space, text)
    return TensorType((product_of_dims((batch, attrs.rpn_post_nms_top_n)), 5), scores.dtype)


def _anchor_corners_by_pixel(attrs: Any, height: int, width: int) -> Array:
    """Return the corner coordinates (H, W, A, 4) of the A anchors at each pixel."""
    side, rows = attrs.feature_stride, []
    for ratio, scale in itertools.product(attrs.ratios, attrs.scales):
        w = np.floor(np.sqrt(np.floor(side * side / ratio)) + 0.5)
        half = (np.array([w, np.floor(w * ratio + 0.5)]) * scale - 1) / 2
        rows.append([(side - 1) / 2 - half, (side - 1) / 2 + half])
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    shifts = np.stack([x, y, x, y], -1)[:, :, None] * side
    return np.asarray(np.array(rows).reshape(-1, 4) + shifts)


def _decode_proposal_scores_and_boxes(attrs: Any, scores: Expr, offsets: Expr, image_info: Expr) -> Expr:
    """Return rows of score and corners (N, H * W * A, 5) of the anchors moved by the predicted
    offsets.
    """
    (batch, channels, *space), dtype = static_shape_of(scores), tensor_type_of(scores).dtype.numpy
    each = channels // 2

    def constant_of_scores_dtype(value: Any) -> Expr:
        return to_constant_of_dtype(value, dtype)

    def take_columns(x: Expr, *column_indices: int) -> Expr:
        return gather.take(x, to_constant_of_dtype(column_indices), axis=-1)

    def split_channel_axis_and_transpose(x: Expr, channel_parts: tuple[int, ...], order: tuple[int, ...]) -> Expr:
        return shape.transpose(shape.reshape(x, (batch, *channel_parts, *space), allowzero=True), order)

    add, subtract, times, divide = (
        binary_elementwise.add,
        binary_elementwise.subtract,
        binary_elementwise.multiply,
        binary_elementwise.divide,
    )
    unit, two, nothing = map(constant_of_scores_dtype, (1, 2, 0))
    anchors = _anchor_corners_by_pixel(attrs, *space)
    low, high = constant_of_scores_dtype(anchors[..., :2]), constant_of_scores_dtype(anchors[..., 2:])
    delta = split_channel_axis_and_transpose(offsets, (each, 4), (0, 3, 4, 1, 2))
    first, second = take_columns(delta, 0, 1), take_columns(delta, 2, 3)
    begin, end = add(low, first), add(high, second)
    if not attrs.iou_loss:
        size = constant_of_scores_dtype(anchors[..., 2:] - anchors[..., :2] + 1)
        middle = constant_of_scores_dtype((anchors[..., 2:] + anchors[..., :2]) / 2)
        center = add(times(first, size), middle)
        half = divide(subtract(times(elementwise_unary.exp(second), size), unit), two)
        begin, end = subtract(center, half), add(center, half)
    image = shape.reshape(image_info, (batch, 1, 1, 1, 3), allowzero=True)
    extents, scale = take_columns(image, 1, 0), take_columns(image, 2)
    last = subtract(extents, unit)
    begin, end = (binary_elementwise.maximum(binary_elementwise.minimum(x, last), nothing) for x in (begin, end))
    least = times(scale, constant_of_scores_dtype(attrs.rpn_min_size))
    narrow = binary_elementwise.less(add(subtract(end, begin), unit), least)
    small = reduce.any(narrow, axis=-1, keepdims=True)
    grown = binary_elementwise.where(small, divide(least, two), nothing)
    y, x = np.indices(space)
    pixels = constant_of_scores_dtype(np.stack([x, y], -1)[:, :, None] + 1)
    beyond = binary_elementwise.less(divide(extents, constant_of_scores_dtype(attrs.feature_stride)), pixels)
    outside = reduce.any(beyond, axis=-1, keepdims=True)
    object_scores = take_columns(split_channel_axis_and_transpose(scores, (2, each), (0, 3, 4, 2, 1)), 1)
    score = binary_elementwise.where(
        binary_elementwise.logical_or(small, outside), constant_of_scores_dtype(-1), object_scores
    )
    rows = concat_split.concatenate([score, subtract(begin, grown), add(end, grown)], -1)
    return shape.reshape(rows, (batch, each * product_of_dims(space), 5), allowzero=True)


def _expand_proposal(attrs: Any, scores: Expr, offsets: Expr, image_info: Expr) -> Expr:
    rows, dtype = (
        _decode_proposal_scores_and_boxes(attrs, scores, offsets, image_info),
        tensor_type_of(scores).dtype.numpy,
    )
    batch, extent, _ = static_shape_of(rows)
    most, output_count = attrs.rpn_pre_nms_top_n, attrs.rpn_post_nms_top_n
    candidate_count = min(most, extent) if most > 0 else extent
    order = sorting.topk(
        gather.take(rows, to_constant_of_dtype(0), axis=2), candidate_count, ret_type="indices", dtype=BOX_INDEX_DTYPE
    )
    ordered = gather.take(rows, order, batch_dims=1, axis=1)
    best = gather.take(ordered, to_constant_of_dtype([1, 2, 3, 4]), axis=2)
    # ranks replace the scores, as boxes with scores below 0 suppress no others; ends are exclusive
    ranks = np.broadcast_to(np.arange(candidate_count, 0, -1)[:, None], (batch, candidate_count, 1))
    exclusive_boxes = binary_elementwise.add(best, to_constant_of_dtype([0, 0, 1, 1], dtype))
    boxes: Expr = concat_split.concatenate([to_constant_of_dtype(ranks, dtype), exclusive_boxes], -1)
    above = float(np.nextafter(dtype.type(attrs.threshold), dtype.type(np.inf)))
    places = np.broadcast_to(np.arange(candidate_count, dtype=BOX_INDEX_DTYPE), (batch, candidate_count))
    counts = to_constant_of_dtype(np.full(batch, candidate_count))
    suppress = non_max_suppression.non_max_suppression
    nms_result = suppress(boxes, counts, to_constant_of_dtype(places), -1, above, True, **RANKED_BOX_COLUMNS)
    again = binary_elementwise.mod(to_constant_of_dtype(np.arange(output_count)[None]), TupleGetItem(nms_result, 1))
    chosen = gather.take(TupleGetItem(nms_result, 0), again, batch_dims=1, axis=1)
    boxes = gather.take(best, chosen, batch_dims=1, axis=1)
    images_ = to_constant_of_dtype(np.broadcast_to(np.arange(batch)[:, None, None], (batch, output_count, 1)), dtype)
    return shape.reshape(concat_split.concatenate([images_, boxes], -1), (batch * output_count, 5), allowzero=True)


def _proposal_test_samples() -> Samples:
    few: Any = {"scales": (0.5, 2.0), "ratios": (1.0,), "rpn_min_size": 5, "feature_stride": 8.0}
    rows: Any = ({"threshold": 0.4, "rpn_post_nms_top_n": 12, "rpn_pre_nms_top_n": 9}, {"iou_loss": True})
    for given in rows:
        a = ProposalAttrs(**{"rpn_post_nms_top_n": 4, **few, **given})
        scores, moves = np.abs(random_array((2, 4, 3, 4))), random_array((2, 8, 3, 4))
        yield Sample(args=(scores, moves, np.array([[24, 20, 1], [31, 9, 0.5]], np.float32)), attrs=a)


proposal = OpDef(
    name="vision.proposal",
    attrs=ProposalAttrs,
    args=declare_arguments("cls_prob", "bbox_pred", "im_info"),
    infer=_infer_proposal_type,
    axes=lambda *_: AxisMap(((None,) * 2,)),
    reference=reference_from_expansion(_expand_proposal),
    expand=_expand_proposal,
    samples=_proposal_test_samples,
)
