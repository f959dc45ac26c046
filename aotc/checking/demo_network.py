# SPDX-License-Identifier: Apache-2.0
"""Run the network of `aotc demo`, which recognizes handwritten digits, and compare its outputs with a reference.

The folder `demo_model` holds the network, `examples/digits/digits.onnx`, and one image of each digit from
`digits_test.bin` there: 64 gray values from 0 to 16, then the label.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from aotc.checking.compare_model_runs import Run, compare_runs_with_reference
from aotc.checking.input_generation import InputSet
from aotc.checking.model_reference_runs import make_onnx_reference
from aotc.driver.pipeline import CompiledModel
from aotc.relay.frontend.onnx import load_model

_FOLDER: Final = Path(__file__).parent / "demo_model"
DEMO_MODEL_PATH: Final = _FOLDER / "digits.onnx"
_PIXELS: Final = 64
#: Characters for gray values from 0 to 16, from white to black.
_SHADES: Final = " .:-=+*#%@"
#: The digit that is shown.
_SHOWN_DIGIT: Final = 3


def run_demo_network(compiled: CompiledModel) -> dict[str, Any]:
    """Run the compiled network on each image, and compare its outputs with those of a reference.

    Return, for `aotc demo --json`: digits (with `digit` and `recognized` for each image), shown (the number of the
    image in `image`), image (lines of text), reference (its name), largest_error, agrees.
    """
    rows = np.frombuffer((_FOLDER / "digits.bin").read_bytes(), np.uint8).reshape(-1, _PIXELS + 1)
    reference, session = make_onnx_reference(load_model(DEMO_MODEL_PATH)), compiled.session()
    runs, digits = [], []
    for row in rows:
        inputs = {"image": (row[:_PIXELS].reshape(1, 1, 8, 8) / 16).astype(np.float32)}
        outputs = {"scores": session.run(None, inputs)[0]}
        runs.append(Run(InputSet(f"digit {row[_PIXELS]}", inputs), inputs, outputs, reference.run(inputs)))
        digits.append({"digit": int(row[_PIXELS]), "recognized": int(outputs["scores"].argmax())})
    cases = compare_runs_with_reference(runs, compiled.metadata["error_bound"], reference)
    comparisons = [comparison for case in cases for comparison in case.outputs]
    return {
        "digits": digits,
        "shown": _SHOWN_DIGIT,
        "image": _image_lines(rows[_SHOWN_DIGIT]),
        "reference": reference.name,
        "largest_error": max(float(comparison.max_abs) for comparison in comparisons),
        "agrees": all(comparison.ok for comparison in comparisons),
    }


def _image_lines(row: np.ndarray[Any, Any]) -> list[str]:
    """Return an image as text, two characters for each pixel."""
    shades = [_SHADES[int(gray) * (len(_SHADES) - 1) // 16] * 2 for gray in row[:_PIXELS]]
    return ["".join(shades[k : k + 8]) for k in range(0, _PIXELS, 8)]
