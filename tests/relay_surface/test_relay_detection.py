# SPDX-License-Identifier: Apache-2.0
"""Relay's operators on boxes, windows and losses against loops over their elements."""

from __future__ import annotations

from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pytest

from aotc import relay

Array = np.ndarray[Any, Any]


def run(make: Any, *arrays: Array) -> Any:
    """What the interpreter gives."""
    params = [relay.var(f"a{k}", shape=a.shape, dtype=str(a.dtype)) for k, a in enumerate(arrays)]
    result = relay.create_executor("debug").evaluate(relay.Function(params, make(*params).astuple()))(*arrays)
    return [r.numpy() for r in result] if isinstance(result, tuple) else result.numpy()


def noise(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_dilations_take_the_greatest_sum(layout: str) -> None:
    data, weight = noise(2, 3, 7, 8), noise(3, 2, 3)
    found = run(
        lambda x, w: relay.image.dilation2d(
            *((x, w) if layout == "NCHW" else (relay.transpose(x, (0, 2, 3, 1)), relay.transpose(w, (1, 2, 0)))),
            strides=(2, 1), padding=(1, 0), dilations=(1, 2), data_layout=layout,
            kernel_layout="IHW" if layout == "NCHW" else "HWI",
        ),
        data, weight,
    )  # fmt: skip
    wide = np.pad(data, ((0, 0), (0, 0), (1, 1), (0, 0)), constant_values=-np.inf)
    taps = [
        wide[:, :, i : i + 7 : 2, 2 * j : 2 * j + 4] + weight[None, :, i, j, None, None]
        for i, j in product(range(2), range(3))
    ]
    expected = np.maximum.reduce([t[:, :, :4] for t in taps])
    np.testing.assert_allclose(found if layout == "NCHW" else found.transpose(0, 3, 1, 2), expected, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses_are_weighted(reduction: str) -> None:
    scores, weights = noise(2, 4, 3), np.array([1, 2, 0.5, 3], np.float32)
    targets = np.array([[0, 3, -100], [1, 1, 2]], np.int32)
    found = run(lambda *a: relay.nn.nll_loss(*a, reduction=reduction), scores, targets, weights)
    each, total = np.zeros((2, 3), np.float32), 0.0
    for n, d in product(range(2), range(3)):
        if (t := targets[n, d]) >= 0:
            each[n, d] = -weights[t] * scores[n, t, d]
            total += weights[t]
    expected = {"none": each, "sum": each.sum(), "mean": each.sum() / total}[reduction]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_anchors_of_each_pixel() -> None:
    sizes, ratios = (0.5, 0.25), (1.0, 4.0)
    found = run(lambda x: relay.vision.multibox_prior(x, sizes=sizes, ratios=ratios), noise(1, 2, 3, 4))
    expected = []
    for y, x in product(range(3), range(4)):
        for size, ratio in ((0.5, 1.0), (0.25, 1.0), (0.5, 4.0)):
            w, h = size * 3 / 4 * sqrt(ratio) / 2, size / sqrt(ratio) / 2
            cx, cy = (x + 0.5) / 4, (y + 0.5) / 3
            expected.append((cx - w, cy - h, cx + w, cy + h))
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)


def test_boxes_from_anchors_and_offsets() -> None:
    scores = np.array([[[0.1, 0.9, 0.2], [0.7, 0.05, 0.3], [0.2, 0.05, 0.5]]], np.float32)
    anchors = np.array([[[0.1, 0.1, 0.5, 0.3], [0, 0, 1, 1], [0.6, 0.6, 0.8, 1.0]]], np.float32)
    offsets = np.array([[1, -1, 0.5, 0, 0, 0, 0, 0, 0, 2, 0, 1]], np.float32)
    rows, count = run(lambda *a: relay.vision.multibox_transform_loc(*a, threshold=0.25), scores, offsets, anchors)
    assert count.tolist() == [2]
    w, h = 0.4 * np.exp(0.1), 0.2
    x, y = 0.3 + 0.1 * 0.4, 0.2 - 0.1 * 0.2
    first = [0, 0.7, x - w / 2, y - h / 2, x + w / 2, y + h / 2]
    h, y = 0.4 * np.exp(0.2), 0.8 + 0.2 * 0.4
    second = [1, 0.5, 0.6, y - h / 2, 0.8, min(y + h / 2, 1)]
    np.testing.assert_allclose(rows[0], [first, second, [-1] * 6], rtol=1e-5, atol=1e-6)


#: Class, score and corners; the second and third share most of their area, the last one is of another class.
BOXES = np.array([[5, 5, 6, 6], [0, 0, 2, 2], [0, 0, 2, 1.8], [0, 0, 9, 9], [0, 0, 2, 2]], np.float32)
BOXES = np.concatenate(([[0, 0.3], [0, 0.9], [0, 0.8], [-1, 0.99], [1, 0.7]], BOXES), 1, dtype=np.float32)[None]


@pytest.mark.parametrize(("force", "kept"), [(False, [1, 4, 0]), (True, [1, 0])])
def test_the_best_of_boxes_that_overlap(force: bool, kept: list[int]) -> None:
    count, rows, places = run(lambda x: relay.vision.get_valid_counts(x, 0.2), BOXES)
    assert count.tolist() == [4] and places.tolist() == [[0, 1, 2, 4, -1]]
    np.testing.assert_array_equal(rows[0], [*BOXES[0, [0, 1, 2, 4]], [-1] * 6])

    def suppressed(x: Any, n: Any, i: Any, **more: Any) -> Any:
        return relay.vision.non_max_suppression(x, n, i, iou_threshold=0.5, force_suppress=force, **more)

    best, number = run(suppressed, rows, count, places)
    assert number.tolist() == [[len(kept)]] and best[0].tolist() == kept + [-1] * (5 - len(kept))
    left = run(lambda *a: suppressed(*a, return_indices=False, invalid_to_bottom=True), rows, count, places)
    np.testing.assert_array_equal(left[0, : len(kept)], BOXES[0, kept])
    assert (left[0, len(kept) :] == -1).all()


def test_each_class_has_its_best_boxes() -> None:
    boxes = BOXES[:, :3, 2:]
    scores = np.array([[[0.3, 0.9, 0.8], [0.6, 0.1, 0.7]]], np.float32)

    def found(form: str) -> Any:
        return lambda b, s: relay.vision.all_class_non_max_suppression(b, s, 5, 0.5, 0.2, form)

    rows, count = run(found("onnx"), boxes, scores)
    assert count.tolist() == [4]
    assert rows[:4].tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 2], [0, 1, 0]]
    rows, values, count = run(found("tensorflow"), boxes, scores)
    assert count.tolist() == [4]
    ordered = {(*row, round(float(v), 4)) for row, v in zip(rows[0, :4].tolist(), values[0, :4], strict=True)}
    assert ordered == {(0, 1, 0.9), (0, 0, 0.3), (1, 2, 0.7), (1, 0, 0.6)}


def test_shapes_from_the_right_and_blocks_of_pixels() -> None:
    x = noise(2, 3, 4, 5)
    np.testing.assert_array_equal(run(lambda a: relay.reverse_reshape(a, (-1, 0)), x), x.reshape(-1, 5))
    np.testing.assert_array_equal(run(lambda a: relay.reverse_reshape(a, (0, -3, 5)), x), x.reshape(2, 12, 5))
    y = noise(1, 8, 4, 6)
    blocks = y.reshape(1, 2, 4, 2, 6, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 32, 2, 3)
    np.testing.assert_array_equal(run(lambda a: relay.vision.yolo_reorg(a, 2), y), blocks)
