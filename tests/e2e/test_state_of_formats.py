# SPDX-License-Identifier: Apache-2.0
"""The option `state` for models of all formats: a step h_out = h + x, y = tanh(h_out)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc

SHAPE = (1, 8)
RELAY_TEXT = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 8), float32], %h: Tensor[(1, 8), float32]) {
  %0 = add(%x, %h);
  (tanh(%0), %0)
}
"""


def relay_step(folder: Path) -> Path:
    path = folder / "step.relay"
    path.write_text(RELAY_TEXT)
    return path


def exported_step(folder: Path) -> Any:
    torch = pytest.importorskip("torch")

    class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, h: Any) -> Any:
            total = x + h
            return torch.tanh(total), total

    return torch.export.export(Step(), (torch.zeros(SHAPE), torch.zeros(SHAPE)))


def tflite_step(folder: Path) -> str:
    from tests.frontend_tflite.model_builder import Builder

    model = Builder()
    x, h, total, y = (model.tensor(SHAPE, name=name) for name in ("x", "h", "total", "y"))
    model.op("ADD", [x, h], [total])
    model.op("TANH", [total], [y])
    return model.saved([x, h], [y, total], str(folder / "step.tflite"))


@pytest.mark.parametrize(
    ("make_step", "state"),
    [(relay_step, {"h": "output1"}), (exported_step, {"h": "add"}), (tflite_step, {"h": "total"})],
)
def test_steps_add_up(make_step: Any, state: dict[str, str], tmp_path: Path) -> None:
    session = aotc.compile(make_step(tmp_path), output=tmp_path / "net", name="net", target="c", state=state).session()
    assert [i.name for i in session.get_inputs()] == ["x"] and len(session.get_outputs()) == 1
    kept, total = session.new_state(), np.zeros(SHAPE, np.float32)
    for number in range(4):
        x = np.random.default_rng(number).normal(0, 0.3, SHAPE).astype(np.float32)
        total += x
        np.testing.assert_allclose(session.run(None, {"x": x}, state=kept)[0], np.tanh(total), rtol=1e-5, atol=1e-6)
