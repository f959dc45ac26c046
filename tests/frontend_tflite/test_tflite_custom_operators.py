# SPDX-License-Identifier: Apache-2.0
"""Custom operators of TFLite models: the post-processing of detectors, and operators of MediaPipe.

Results are compared with those of LiteRT for the operators that it has, and else with numpy functions that follow
MediaPipe's definitions.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from flatbuffers import flexbuffers

import aotc
from aotc.ir import AotcError, flatten_nested_tuple
from aotc.relay.frontend.tflite import CUSTOM_CONVERTERS, from_tflite
from aotc.relay.graph_api import evaluate
from tests.frontend_tflite.model_builder import Builder, litert


def results(data: bytes, arrays: list[Any]) -> list[Any]:
    module = from_tflite(data)
    inputs = {p.name: a for p, a in zip(module.main.params, arrays, strict=True)}
    return [np.asarray(v) for v in flatten_nested_tuple(evaluate(module, params=inputs))]


def single(
    name: str, shapes: list[tuple[int, ...]], outputs: list[tuple[int, ...]], options: bytes, version: int = 1
) -> bytes:
    """A model of one custom operator."""
    model = Builder()
    inputs, results = ([model.tensor(shape) for shape in part] for part in (shapes, outputs))
    model.op(name, inputs, results, version=version, custom_options=options)
    return model.data(inputs, results)


def flexbuffer(**options: Any) -> bytes:
    return bytes(flexbuffers.Dumps(options))


# --- detection

DETECTION: dict[str, Any] = {
    "max_detections": 6,
    "max_classes_per_detection": 1,
    "detections_per_class": 4,
    "use_regular_nms": False,
    "nms_score_threshold": 0.2,
    "nms_iou_threshold": 0.4,
    "num_classes": 3,
    "y_scale": 10.0,
    "x_scale": 10.0,
    "h_scale": 5.0,
    "w_scale": 5.0,
}


def detector(count: int, background: int, **options: Any) -> tuple[bytes, list[Any]]:
    """The operator with anchors in rows and columns, and inputs for it."""
    rng, given = np.random.default_rng(count), DETECTION | options
    classes = given["num_classes"] + background
    model = Builder()
    boxes, scores = model.tensor((1, count, 4)), model.tensor((1, count, classes))
    side = math.isqrt(count - 1) + 1
    grid = np.stack(np.divmod(np.arange(count), side), 1) / side
    anchors = model.tensor((count, 4), data=np.concatenate([grid, np.full((count, 2), 2.0 / side)], 1))
    total = given["max_detections"] * given["max_classes_per_detection"]
    outputs = [model.tensor(shape) for shape in ((1, total, 4), (1, total), (1, total), (1,))]
    model.op("TFLite_Detection_PostProcess", [boxes, scores, anchors], outputs, custom_options=flexbuffer(**given))
    arrays = [rng.standard_normal((1, count, 4)), rng.random((1, count, classes)) ** 2 - 0.05]
    return model.data([boxes, scores], outputs), [a.astype(np.float32) for a in arrays]


@pytest.mark.parametrize(
    ("count", "background", "options"),
    [
        (30, 1, {}),
        (30, 0, {"max_classes_per_detection": 2, "nms_iou_threshold": 0.1}),
        (30, 1, {"use_regular_nms": True}),
        (30, 0, {"use_regular_nms": True, "detections_per_class": 100, "max_detections": 20}),
        (4, 1, {"max_detections": 9}),
        (4, 1, {"max_detections": 30, "use_regular_nms": True}),
        (30, 1, {"nms_score_threshold": 5.0}),
        (30, 0, {"nms_score_threshold": -1.0, "max_detections": 40}),
    ],
)
def test_detection_postprocess(count: int, background: int, options: dict[str, Any]) -> None:
    """Boxes, classes and scores up to the number of boxes, which LiteRT writes alone."""
    data, arrays = detector(count, background, **options)
    expected, actual = litert(data, arrays), results(data, arrays)
    each = (DETECTION | options)["max_classes_per_detection"]
    number = int(expected[3][0]) * each
    assert actual[3] == expected[3] and (number > 0) == ((DETECTION | options)["nms_score_threshold"] < 1)
    for a, e in zip(actual[:3], expected[:3], strict=True):
        assert a.shape == e.shape and a.dtype == e.dtype
        np.testing.assert_allclose(a[:, :number], e[:, :number], rtol=1e-6, atol=1e-7)
        assert not a[:, number:].any()


@pytest.mark.parametrize("apart", [False, True])
def test_compiled_detection_postprocess(apart: bool, tmp_path: Path) -> None:
    data, arrays = detector(30, 1, use_regular_nms=apart)
    (tmp_path / "net.tflite").write_bytes(data)
    session = aotc.compile(tmp_path / "net.tflite", cflags=("-O0",)).session()
    names = [i.name for i in session.get_inputs()]
    actual = session.run(None, dict(zip(names, arrays, strict=True)))
    for a, e in zip(actual, results(data, arrays), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"nms_iou_threshold": 0.0}, "nms_iou_threshold is 0"),
        ({"y_scale": 0.0}, "the scales of boxes"),
        ({"max_detections": 0}, "the option max_detections of TFLite_Detection_PostProcess is 0"),
        ({"num_classes": 9}, "do not fit 9 classes"),
        ({"max_detections": 1 << 30}, "the result of TFLite_Detection_PostProcess"),
        ({"num_classes": "many"}, "num_classes"),
    ],
)
def test_contradicting_detections_are_refused(changed: dict[str, Any], text: str) -> None:
    model = Builder()
    inputs = [model.tensor(s) for s in ((1, 5, 4), (1, 5, 4), (5, 4))]
    outputs = [model.tensor(s) for s in ((1, 6, 4), (1, 6), (1, 6), (1,))]
    options = flexbuffer(**DETECTION | changed)
    model.op("TFLite_Detection_PostProcess", inputs, outputs, custom_options=options)
    with pytest.raises(AotcError, match=text) as caught:
        from_tflite(model.data(inputs, outputs))
    (found,) = caught.value.diagnostics
    assert found.span is not None and str(found.span.node).startswith("TFLite_Detection_PostProcess#0")


TWO_INPUTS = ("MaxUnpooling2D", "TransformLandmarks")


@pytest.mark.parametrize("options", [b"", b"\x00", b"\xff" * 40, flexbuffer(other=1), bytes(range(64))])
def test_damaged_options_are_refused(options: bytes) -> None:
    for name in set(CUSTOM_CONVERTERS) - {"TransformTensor", "TransformTensorBilinear"}:
        inputs = [(1, 4, 4, 4)] * 3 if name != "Landmarks2TransformMatrix" else [(1, 1, 1, 12)]
        inputs = inputs[:1] if name == "MaxPoolingWithArgmax2D" else inputs[:2] if name in TWO_INPUTS else inputs
        with pytest.raises(AotcError) as caught:
            from_tflite(single(name, inputs, [(1, 4, 4, 4)] * 2, options))
        assert {d.code for d in caught.value.diagnostics} <= {"tflite-options", "tflite-shape", "tflite-rank"}


# --- layers of MediaPipe


def struct_options(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


@pytest.mark.parametrize(
    ("padding", "size", "strides"), [(1, (5, 7), (2, 2)), (2, (5, 7), (2, 3)), (1, (4, 6), (1, 2))]
)
def test_transposed_convolution_with_bias(padding: int, size: tuple[int, int], strides: tuple[int, int]) -> None:
    rng, model, kernel = np.random.default_rng(1), Builder(), (3, 4)
    w, bias = rng.standard_normal((2, *kernel, 3)), rng.standard_normal(2)
    total = [max(0, k - (n - 1) % s - 1) if padding == 1 else 0 for n, k, s in zip(size, kernel, strides, strict=True)]
    out = [s * (n - 1) + k - t for n, k, s, t in zip(size, kernel, strides, total, strict=True)]
    x, y = model.tensor((1, *size, 3)), model.tensor((1, *out, 2))
    inputs = [x, model.tensor(w.shape, data=w), model.tensor((2,), data=bias)]
    options = struct_options(padding, strides[1], strides[0], 0, 0)
    model.op("Convolution2DTransposeBias", inputs, [y], custom_options=options)
    data, given = model.data([x], [y]), rng.standard_normal((1, *size, 3)).astype(np.float32)
    (actual,) = results(data, [given])
    expected = np.zeros((1, *(n + t for n, t in zip(out, total, strict=True)), 2))
    for i, j in np.ndindex(*size):
        place = np.s_[:, i * strides[0] : i * strides[0] + kernel[0], j * strides[1] : j * strides[1] + kernel[1]]
        expected[place] += np.einsum("bi,ohwi->bhwo", given[:, i, j], w)
    begin = [t // 2 for t in total]
    expected = expected[:, begin[0] : begin[0] + out[0], begin[1] : begin[1] + out[1]] + bias
    assert actual.shape == (1, *out, 2)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actual, litert(data, [given])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("padding", "size", "stride"), [(1, (5, 7), 2), (2, (6, 8), 2), (1, (5, 5), 1)])
def test_max_pool_and_unpool(padding: int, size: tuple[int, int], stride: int) -> None:
    """Positions of maxima as MediaPipe defines them; unpooling puts the elements back."""
    rng = np.random.default_rng(2)
    x = rng.integers(-9, 0, (2, *size, 3)).astype(np.float32)
    out = [-(-n // stride) if padding == 1 else (n - 2) // stride + 1 for n in size]
    pads = [max((n - 1) * stride + 2 - m, 0) // 2 for n, m in zip(out, size, strict=True)]
    best, place = np.zeros((2, *out, 3), np.float32), np.zeros((2, *out, 3), np.float32)
    for b, i, j, c in np.ndindex(best.shape):
        window = {
            (p, q): x[b, i * stride - pads[0] + p, j * stride - pads[1] + q, c]
            for p, q in np.ndindex(2, 2)
            if 0 <= i * stride - pads[0] + p < size[0] and 0 <= j * stride - pads[1] + q < size[1]
        }
        p, q = max(window, key=lambda k: (window[k], -k[0], -k[1]))
        best[b, i, j, c], place[b, i, j, c] = window[p, q], np.float32(p * 2 + q + 0.1)
    options = struct_options(padding, stride, stride, 2, 2, 0)
    actual = results(single("MaxPoolingWithArgmax2D", [x.shape], [best.shape] * 2, options), [x])
    np.testing.assert_array_equal(actual[0], best)
    np.testing.assert_allclose(actual[1], place, rtol=1e-6)
    whole = (2, out[0] * 2, out[1] * 2, 3)
    unpool = single("MaxUnpooling2D", [best.shape] * 2, [whole], struct_options(1, 2, 2, 2, 2, 0))
    (back,) = results(unpool, [best, np.where(np.arange(3) < 2, place, -3)])
    assert not back[..., 2].any()
    for b, i, j, c in np.ndindex((*best.shape[:3], 2)):
        p, q = divmod(int(place[b, i, j, c]), 2)
        window = back[b, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, c]
        assert window[p, q] == best[b, i, j, c] and np.count_nonzero(window) == 1
    with pytest.raises(AotcError, match="they must be equal"):
        from_tflite(single("MaxUnpooling2D", [best.shape] * 2, [whole], struct_options(1, 1, 1, 2, 2, 0)))


# --- transformations of MediaPipe


@pytest.mark.parametrize("version", [1, 2])
def test_transform_tensor(version: int) -> None:
    rng = np.random.default_rng(3)
    x, m = rng.standard_normal((1, 6, 7, 2)).astype(np.float32), np.eye(4, dtype=np.float32)
    m[:2] = [[0.81, -0.33, 0, 1.27], [0.22, 0.93, 0, -0.56]]
    shape = (1, 5, 8, 2)
    name = "TransformTensor" if version == 1 else "TransformTensorBilinear"
    (actual,) = results(single(name, [x.shape, (1, 4, 4)], [shape], b"", version), [x, m[None]])
    expected = np.zeros(shape)
    half = 0.5 if version == 2 else 0.0
    for i, j in np.ndindex(5, 8):
        px, py = m[:2, :2] @ [j + half, i + half] + m[:2, 3] - half
        if 0 <= px <= 6 and 0 <= py <= 5:
            left, top = int(px), int(py)
            around = np.zeros((2, 2, 2))
            part = x[0, top : top + 2, left : left + 2]
            around[: part.shape[0], : part.shape[1]] = part
            fx, fy = px - left, py - top
            expected[0, i, j] = np.einsum("p,q,pqc->c", [1 - fy, fy], [1 - fx, fx], around)
    assert 0 < np.count_nonzero(expected) < expected.size
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("version", "dimensions"), [(1, 2), (1, 3), (2, 3)])
def test_transform_landmarks(version: int, dimensions: int) -> None:
    shape = (1, 1, 1, 5 * dimensions) if version == 1 else (1, 5, dimensions)
    rng = np.random.default_rng(4)
    x, m = rng.standard_normal(shape).astype(np.float32), rng.standard_normal((1, 4, 4)).astype(np.float32)
    options = flexbuffer(dimensions=dimensions, **({"scale": 3.5} if version == 1 else {}))
    (actual,) = results(single("TransformLandmarks", [shape, m.shape], [shape], options, version), [x, m])
    points = x.reshape(5, dimensions).astype(np.float64)
    offset = m[0, :2, 3] * (3.5 if version == 1 else 1)
    points[:, :2] = points[:, :2] @ m[0, :2, :2].T + offset
    np.testing.assert_allclose(actual, points.reshape(shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("version", [1, 2])
def test_landmarks_to_matrix(version: int) -> None:
    """The product of the matrices by which MediaPipe defines the operator."""
    rng = np.random.default_rng(5)
    shape = (1, 1, 1, 18) if version == 1 else (1, 6, 3)
    points = rng.uniform(10, 90, (6, 3)).astype(np.float32)
    subset, left, right = [0, 3, 2, 5], 1, 4
    common = {"left_rotation_idx": left, "right_rotation_idx": right}
    dx, dy = (points[right] - points[left])[:2].astype(np.float64)
    if version == 1:
        options = {"subset": subset, "dimensions": 3, "landmarks_range": 100, "bbox_size_multiplier": 1.5}
        options |= {"input_hw": [64, 48], "output_hw": [24, 32]}
        r = -math.atan(dy / dx)
    else:
        options = {"subset_idxs": subset, "target_rotation_radians": 0.25, "output_width": 32, "output_height": 24}
        options |= {"scale_x": 1.5, "scale_y": 1.25}
        r = 0.25 - math.atan2(dy, dx)

    def rotation(angle: float) -> Any:
        return np.array([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]])

    def scaling(a: float, b: float, x: float = 0, y: float = 0) -> Any:
        return np.array([[a, 0, x], [0, b, y], [0, 0, 1]])

    around = points[subset][:, :2] @ rotation(r)[:2, :2].T
    low, high = around.min(0), around.max(0)
    center = rotation(-r)[:2, :2] @ ((low + high) / 2)
    if version == 1:
        back = rotation(-r)
        back[:2, 2] = center / 100 * 2 - 1
        expected = scaling(23.5, 31.5, 23.5, 31.5) @ back @ scaling(*((high - low) * 1.5 / 100))
        expected = expected @ scaling(2 / 31, 2 / 23, -1, -1)
    else:
        expected = scaling(1, 1, *center) @ rotation(-r)
        expected = expected @ scaling(*((high - low) * [1.5, 1.25] / [32, 24])) @ scaling(1, 1, -16, -12)
    data = single("Landmarks2TransformMatrix", [shape], [(1, 4, 4)], flexbuffer(**common, **options), version)
    (actual,) = results(data, [points.reshape(shape)])
    np.testing.assert_allclose(actual[0][:2][:, [0, 1, 3]], expected[:2], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(actual[0][2:], [[0, 0, 1, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(actual[0][:2, 2], 0)
