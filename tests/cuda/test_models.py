# SPDX-License-Identifier: Apache-2.0
"""Networks through the whole CUDA pipeline: emitted projects, with an emulated driver on machines without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import pytest

from aotc.checking.verify import verify
from benchmarks.networks import NETWORK_BUILD_FUNCTIONS
from benchmarks.onnx_graph_builder import resnet18
from benchmarks.run import INPUT_SHAPES_BY_MODEL, TRAINED_MODELS
from tests.e2e.test_verify_models import LIGHT, light_model
from tests.share import share

#: Beside those that benchmarks measure, with the shapes of inputs that models leave open.
OTHERS: dict[str, dict[str, Sequence[int]]] = {
    "squeezenet10_fp16": {},
    "squeezenet10_int8_qdq": {},
    "kws_int8_qdq": {"serving_default_input:0": [1, 1960]},
    "kws_int8_qoperator": {},
    "yunet_n_320_int8_qdq": {},
}


def check(model: Path | onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None) -> None:
    report = verify(model, seeds=1, input_shapes=shapes, target="cuda")
    assert "GPU" in report.device
    assert report.ok, "\n".join(f"{o.name}: {o.reason}" for c in report.cases for o in c.outputs if not o.ok)


@pytest.mark.parametrize("name", share((*TRAINED_MODELS, *OTHERS), 0, always=("mnist8",)))
def test_trained_models(name: str, models: Path) -> None:
    check(models / f"{name}.onnx", INPUT_SHAPES_BY_MODEL.get(name) or OTHERS.get(name))


@pytest.mark.parametrize("name", share(NETWORK_BUILD_FUNCTIONS, 0))
def test_networks(name: str) -> None:
    """Those that benchmarks build."""
    check(NETWORK_BUILD_FUNCTIONS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_light_models(name: str) -> None:
    check(light_model(name))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_resnet18(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_EMULATOR_ORDER", order)
    check(resnet18())
