# SPDX-License-Identifier: Apache-2.0
"""Real networks through the whole pipeline: compiled C against ONNX Runtime, three random inputs each.

The light models come with the onnx package: real architectures with constant weights.  They are verified as
they are, and with seeded random weights in place of the constant ones.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from aotc.checking.verify import Report, verify
from benchmarks.onnx_graph_builder import resnet18
from tests.share import share

LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "zfnet512",
)  # fmt: skip
PINS: dict[str, dict[str, tuple[int, ...]]] = {
    "mnist8": {},
    "superres10": {"input": (1, 1, 224, 224)},
    "squeezenet10_fp32": {},
    "ppocr_cls": {"x": (1, 3, 48, 192)},
    "ultraface_rfb320": {},
    "yunet_n_320": {},
    "yolox_nano": {},
    "selfie_seg": {},
    "vittrack": {},
    "dtln_2": {},
    "kws_fp32": {},
    "magika_v3_3": {"bytes": (1, 2048)},
}
"""The trained models, and shapes for their dynamic inputs."""
LONG = ("yolox_nano", "vittrack", "superres10")
"""Trained models whose verification takes half a minute."""


def slow(name: str) -> Any:
    """A parameter of `make test-all` alone."""
    return pytest.param(name, marks=pytest.mark.slow)


HEAVY = slow("vgg19")
SEEDS = 3


def assert_verified(report: Report) -> None:
    assert [c.source for c in report.cases][:SEEDS] == [f"seed {k}" for k in range(SEEDS)]
    assert report.reference == "onnxruntime"
    assert report.ok, "\n".join(f"{c.source} {o.name}: {o.reason}" for c in report.cases for o in c.outputs if not o.ok)


def light_model(name: str) -> onnx.ModelProto:
    data = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return onnx.load(data / f"light_{name}.onnx")


def with_random_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Constants made by ConstantOfShape become random weights: matrices and kernels scaled by fan-in, vectors in
    [0.5, 1.5) (they may be variances)."""
    rng = np.random.default_rng(seed)
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(int(d) for d in shapes[node.input[0]])
        if len(shape) > 1:
            values = rng.standard_normal(shape, np.float32) * np.float32(math.sqrt(2 / math.prod(shape[1:])))
        else:
            values = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def test_resnet18() -> None:
    assert_verified(verify(resnet18(), seeds=SEEDS))


@pytest.mark.always
@pytest.mark.parametrize("name", [*share(LIGHT, 1), HEAVY])
def test_light_models(name: str) -> None:
    assert_verified(verify(light_model(name), seeds=SEEDS, cflags=("-O2",)))


@pytest.mark.parametrize("name", [*share((*LIGHT[2:], *LIGHT[:2]), 1), HEAVY])  # others than above
def test_light_models_with_random_weights(name: str) -> None:
    model = with_random_weights(light_model(name), seed=len(name))
    assert_verified(verify(model, seeds=SEEDS, cflags=("-O2",)))


@pytest.mark.parametrize("name", [*share([name for name in PINS if name not in LONG], 1), *map(slow, LONG)])
def test_trained_models(name: str, models: Path) -> None:
    path = models / f"{name}.onnx"
    assert path.exists(), f"{name} is missing from {models}"
    assert_verified(verify(path, seeds=SEEDS, input_shapes=PINS[name]))


def test_every_trained_model_is_here(models: Path) -> None:
    assert len(PINS) == 12
    assert [name for name in PINS if not (models / f"{name}.onnx").exists()] == []
