# SPDX-License-Identifier: Apache-2.0
"""Anchors of detectors, and the boxes that are predicted beside them.

anchors = multibox_prior(x, sizes=(0.3, 0.5))
boxes, count = multibox_transform_loc(classes, offsets, anchors)    # rows: class, probability, corners
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc.ir import Attrs, AxisMap, TensorType, TupleType, Type, Types, args, product, require, static_shape
from aotc.relay.expr import Constant, Expr, Tuple, tensor_type_of
from aotc.relay.op import binary, casts, elementwise, index, join, reduce, shape
from aotc.relay.op.detection import COUNT, ahead, ahead_of_arrays, box_rows, constant
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples
from aotc.relay.op.rules import ranked, require_same_dtype, static_shape_of
from aotc.relay.op.samples import exact, random_array
from aotc.relay.op.window import may_equal

# --- vision.multibox_prior


class MultiboxPriorAttrs(Attrs):
    """Anchors (1, H * W * (sizes + ratios - 1), 4) for each pixel of `data` (N, C, H, W): two corners from 0 to 1.

    One for each of `sizes`, with the first of `ratios`, then one of the first size for each other one. `steps` between
    pixels and `offsets` in steps are down, then to the right; negative steps are those that fill the image.
    """

    sizes: tuple[float, ...] = (1.0,)
    ratios: tuple[float, ...] = (1.0,)
    steps: tuple[float, ...] = (-1.0, -1.0)
    offsets: tuple[float, ...] = (0.5, 0.5)
    clip: bool = False


def _prior_infer(a: Any, types: Types) -> Type:
    data = ranked("boxes.data", types[0], 4)
    pairs = len(a.steps) == len(a.offsets) == 2
    fits = pairs and bool(a.sizes)
    fits = fits and min(a.ratios, default=0) > 0
    text = "sizes, positive ratios, two steps, two offsets"
    require("boxes.anchors", fits, f"expected: {text}")
    each = len(a.sizes) + len(a.ratios) - 1
    return TensorType((1, product((*data.shape[2:], each)), 4), "float32")


def _prior_reference(a: Any, data: Array) -> Array:
    extents = data.shape[2:]
    pairs = zip(a.steps, extents, strict=True)
    steps = [s if s > 0 else 1.0 / max(n, 1) for s, n in pairs]
    pixels = zip(extents, a.offsets, steps, strict=True)
    places = ((np.arange(n) + o) * s for n, o, s in pixels)
    centres = np.meshgrid(*places, indexing="ij")
    sizes = np.array([*a.sizes, *a.sizes[:1] * (len(a.ratios) - 1)])
    roots = np.sqrt([*(1.0,) * len(a.sizes), *a.ratios[1:]])
    aspect = extents[0] / max(extents[1], 1)
    w = sizes * aspect * roots / 2
    h = sizes / roots / 2
    y, x = (c[..., None] for c in centres)
    corners = [x - w, y - h, x + w, y + h]
    found = np.stack(corners, -1)
    found = found.reshape(1, -1, 4).astype(np.float32)
    return np.clip(found, 0, 1) if a.clip else found


def _prior_expand(a: Any, data: Expr) -> Expr:
    pixels = np.broadcast_to(np.float32(0), static_shape_of(data))
    return Constant(_prior_reference(a, pixels))


def _prior_samples() -> Samples:
    given: Any = {"sizes": (0.3, 1.5), "ratios": (1.3, 2.4, 0.5), "steps": (2.0, -1.0), "offsets": (0.2, 0.3)}
    for a in (MultiboxPriorAttrs(), MultiboxPriorAttrs(clip=True, **given)):
        yield exact(a, random_array((1, 2, 3, 4)))


multibox_prior = OpDef(
    name="vision.multibox_prior",
    attrs=MultiboxPriorAttrs,
    infer=_prior_infer,
    axes=lambda *_: AxisMap(((None,) * 3,)),
    reference=_prior_reference,
    expand=_prior_expand,
    samples=_prior_samples,
)


# --- vision.multibox_transform_loc


class MultiboxTransformLocAttrs(Attrs):
    """Boxes from the probabilities of classes (N, C, A), their offsets (N, A * 4) and anchors (1, A, 4).

    A tuple: rows (N, A, 6) of class, probability and two corners, in [0, 1] with `clip`, and how many there are, (N,);
    behind them rows are -1. The first class is the background: boxes of it, and those below `threshold`, are left out
    and classes count without it, unless `keep_background`.
    """

    clip: bool = True
    threshold: float = 0.01
    variances: tuple[float, ...] = (0.1, 0.1, 0.2, 0.2)
    keep_background: bool = False


def _decoded_infer(a: Any, types: Types) -> Type:
    classes = box_rows(types[0], "boxes.classes")
    anchors = box_rows(types[2], "boxes.anchors")
    offsets = ranked("boxes.offsets", types[1], 2, "loc_pred")
    require_same_dtype(classes, offsets)
    require_same_dtype(classes, anchors)
    batch, kinds, extent = classes.shape
    least = 1 if a.keep_background else 2
    some = isinstance(kinds, int) and kinds >= least
    some = some and isinstance(extent, int)
    text = f"there is no class in {classes}"
    require("boxes.classes", some, text)
    (known,) = static_shape((extent,))
    found = (*offsets.shape, *anchors.shape)
    same = all(map(may_equal, found, (batch, known * 4, 1, known, 4)))
    fits = same and len(a.variances) == 4
    both = f"{offsets} and {anchors}"
    text = f"{both} have no box for each of {classes}"
    require("boxes.offsets", fits, text)
    rows = TensorType((batch, extent, 6), classes.dtype)
    return TupleType((rows, TensorType((batch,), COUNT)))


def _decoded_reference(a: Any, classes: Array, offsets: Array, anchors: Array) -> tuple[Array, ...]:
    batch, _, extent = classes.shape
    first, dtype = int(not a.keep_background), classes.dtype
    score = np.maximum(classes[:, first:].max(1), dtype.type(-1))
    kind = np.where(score > -1, classes[:, first:].argmax(1) + first, 0)
    kind = np.where(score < dtype.type(a.threshold), 0, kind)
    moves = offsets.reshape(batch, extent, 4)
    spread = np.array(a.variances, dtype)
    low, high = anchors[..., :2], anchors[..., 2:]
    size = high - low
    centre = moves[..., :2] * spread[:2] * size + (low + high) / 2
    grown = np.exp(moves[..., 2:] * spread[2:])
    half = grown * size / 2
    box = np.concatenate([centre - half, centre + half], -1)
    box = np.clip(box, 0, 1) if a.clip else box
    fields = [(kind - first)[..., None], score[..., None]]
    rows = np.concatenate([*fields, box], -1).astype(dtype)
    count, found = ahead_of_arrays((kind > 0) | a.keep_background, rows)
    return found, count


def _decoded_expand(a: Any, classes: Expr, offsets: Expr, anchors: Expr) -> Expr:
    batch, kinds, extent = static_shape_of(classes)
    first = int(not a.keep_background)
    kept = tensor_type_of(classes).dtype
    dtype = kept.numpy
    some = index.take(classes, constant(np.arange(first, kinds)), axis=1)
    score = binary.maximum(reduce.max(some, axis=1), constant(-1, dtype))
    place = casts.cast(reduce.argmax(some, axis=1), COUNT)
    best = binary.add(place, constant(first))
    # none is above -1: the background
    least = np.nextafter(dtype.type(-1), dtype.type(0))
    bound = constant(max(a.threshold, least), dtype)
    low_score = binary.less(score, bound)
    kind = binary.where(low_score, constant(0), best)

    def columns(x: Expr, begin: int) -> Expr:
        return index.take(x, constant([begin, begin + 1]), axis=2)

    moves = shape.reshape(offsets, (batch, extent, 4))
    spread = [constant(a.variances[k : k + 2], dtype) for k in (0, 2)]
    low, high = columns(anchors, 0), columns(anchors, 2)
    size, two = binary.subtract(high, low), constant(2, dtype)
    times = binary.multiply
    moved = times(times(columns(moves, 0), spread[0]), size)
    middle = binary.divide(binary.add(low, high), two)
    centre = binary.add(moved, middle)
    wide = times(columns(moves, 2), spread[1])
    grown = times(elementwise.exp(wide), size)
    half = binary.divide(grown, two)
    begin = binary.subtract(centre, half)
    end = binary.add(centre, half)
    box: Expr = join.concatenate([begin, end], -1)
    box = casts.clip(box, 0.0, 1.0) if a.clip else box
    names = binary.subtract(kind, constant(first))
    pair = (casts.cast(names, str(kept)), score)
    fields = [shape.reshape(x, (batch, extent, 1)) for x in pair]
    valid = binary.greater(kind, constant(first - 1))
    every = join.concatenate([*fields, box], -1)
    count, rows = ahead(valid, every)
    return Tuple((rows, count))


def _decoded_samples() -> Samples:
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
    args=args("cls_prob", "loc_pred", "anchor"),
    infer=_decoded_infer,
    reference=_decoded_reference,
    expand=_decoded_expand,
    samples=_decoded_samples,
)
