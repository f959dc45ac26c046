# SPDX-License-Identifier: Apache-2.0
"""vision.proposal against a loop over boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.relay.op import anchor_boxes
from tests.ops.onnxruntime_oracle import close, error_code, reference, var


def box_at(a: Any, y: int, x: int, k: int, delta: Any, image: Any) -> tuple[float, list[float]]:
    """What is subtracted of the score, for boxes that are left out, and the corners of anchor k of a pixel."""
    side, (height, width, scale) = a.feature_stride, image
    ratio, factor = a.ratios[k // len(a.scales)], a.scales[k % len(a.scales)]
    w = np.floor(np.sqrt(np.floor(side * side / ratio)) + 0.5)
    sizes = [w * factor, np.floor(w * ratio + 0.5) * factor]
    corners = [0.0] * 4
    for axis, (place, most) in enumerate(((x, width), (y, height))):
        center, size = place * side + (side - 1) / 2, sizes[axis]
        begin, end = center - (size - 1) / 2, center + (size - 1) / 2
        if a.iou_loss:
            begin, end = begin + delta[axis], end + delta[axis + 2]
        else:
            center, size = center + delta[axis] * size, size * np.exp(delta[axis + 2])
            begin, end = center - (size - 1) / 2, center + (size - 1) / 2
        corners[axis], corners[axis + 2] = (min(max(v, 0), most - 1) for v in (begin, end))
    least = a.rpn_min_size * scale
    small = min(corners[2] - corners[0], corners[3] - corners[1]) + 1 < least
    if small:
        corners = [v + least / 2 * sign for v, sign in zip(corners, (-1, -1, 1, 1), strict=True)]
    return small or y >= height // side or x >= width // side, corners


def share(a: Any, b: Any) -> float:
    """How much of the area of both two boxes have in common."""
    sides = [max(0.0, min(a[k + 2], b[k + 2]) - max(a[k], b[k]) + 1) for k in (0, 1)]
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (a, b)]
    common = sides[0] * sides[1]
    return float(common / (sum(areas) - common))


def rows_of(a: Any, scores: Any, moves: Any, images: Any) -> list[list[float]]:
    rows = []
    batch, each, height, width = scores.shape
    each //= 2
    for n in range(batch):
        found = []
        for y, x, k in np.ndindex(height, width, each):
            delta = moves[n, 4 * k : 4 * k + 4, y, x]
            out, corners = box_at(a, y, x, k, delta, images[n])
            found.append((-1.0 if out else scores[n, each + k, y, x], corners))
        found.sort(key=lambda box: -box[0])
        kept: list[Any] = []
        for _, corners in found[: a.rpn_pre_nms_top_n or None]:
            if all(share(corners, other) <= a.threshold for other in kept):
                kept.append(corners)
        rows += [[n, *kept[k % len(kept)]] for k in range(a.rpn_post_nms_top_n)]
    return rows


@pytest.mark.parametrize("iou_loss", [False, True])
@pytest.mark.parametrize("most", [0, 7])
def test_proposals_are_the_best_boxes(iou_loss: bool, most: int) -> None:
    rng = np.random.default_rng(most)
    scores, moves = rng.uniform(0, 1, (2, 12, 3, 4)), rng.normal(0, 0.4, (2, 24, 3, 4))
    images = np.array([[48, 64, 1.0], [30, 41, 0.6]])
    given: Any = {"scales": (0.5, 1.0, 2.0), "ratios": (0.5, 1.5), "rpn_min_size": 9, "threshold": 0.3}
    counts: Any = {"rpn_pre_nms_top_n": most, "rpn_post_nms_top_n": 20, "iou_loss": iou_loss}
    a = anchor_boxes.ProposalAttrs(**given, **counts)
    moves *= 12 if iou_loss else 1
    found = reference("vision.proposal", a, scores, moves, images)
    assert found.shape == (40, 5)
    close(found, np.array(rows_of(a, scores, moves, images)))


def test_what_is_refused() -> None:
    fields: Any = {"scales": (1.0,), "ratios": (1.0,)}
    good = var(1, 2, 3, 3), var(1, 4, 3, 3), var(1, 3)
    assert str(anchor_boxes.proposal(*good, **fields).checked_type) == "Tensor[(300, 5), float32]"
    assert error_code(anchor_boxes.proposal, good[0], good[0], good[2], **fields) == "boxes.offsets"
    assert error_code(anchor_boxes.proposal, *good, scales=(0.0,), ratios=(1.0,)) == "boxes.anchors"
    assert error_code(anchor_boxes.proposal, *good[:2], var(1, 3, 1), **fields) == "boxes.data"
    assert error_code(anchor_boxes.proposal, *good[:2], var(1, 3, dtype="float64"), **fields) == "dtype-mismatch"
