# SPDX-License-Identifier: Apache-2.0
"""Checks one architecture by one import path, in a process of its own.

python -m tests.zoo.check timm resnet18 torch.export

Prints a line of JSON: the outcome and its detail.  Outcomes:

not built       the library cannot build a small instance, or it takes inputs that are not made here
not exported    the exporter fails
agrees          compiled C gives what the library gives (estimators: ONNX Runtime with the exported model)
refused         aotc refuses the model; the detail is its first diagnostic
differs         compiled C gives something else
failed          anything else: aotc fails with another exception
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

import aotc
from tests.zoo.libraries import BuildError, Sample, sample

IMPORT_PATHS: Final = {
    "scikit-learn": ("onnx",),
    "timm": ("torch.export", "onnx"),
    "transformers": ("torch.export", "onnx"),
}
"""The import paths of each library's architectures."""

RELATIVE_TOLERANCE: Final = 1e-3
"""Greatest difference from the reference, relative to its greatest finite element."""


def check(library: str, name: str, path: str) -> tuple[str, str]:
    """Return the outcome and its detail for an architecture by an import path."""
    try:
        built = sample(library, name)
    except BuildError as error:
        return "not built", str(error)
    try:
        exported, inputs, want = _exported(library, path, built)
    except Exception as error:
        return "not exported", f"{type(error).__name__}: {_first_line(error)}"
    try:
        options = {"input_shapes": {key: value.shape for key, value in inputs.items()}} if path == "onnx" else {}
        session = aotc.compile(exported, cflags=["-O1"], **options).session()
        got = session.run(None, dict(zip((i.name for i in session.get_inputs()), inputs.values(), strict=True)))
    except aotc.AotcError as error:
        return "refused", _first_line(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {_first_line(error)}"
    difference = _difference(got, want)
    return ("differs", difference) if difference else ("agrees", "")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]


def _exported(library: str, path: str, built: Sample) -> tuple[Any, dict[str, Any], Sequence[Any]]:
    """Return the exported model, its inputs by name, and the outputs of the reference."""
    if library == "scikit-learn":
        return _exported_estimator(built)
    import torch

    with torch.no_grad():
        want = [np.asarray(tensor) for tensor in built.model(*built.inputs)]
    if path == "torch.export":
        exported: Any = torch.export.export(built.model, built.inputs)
        return exported, {str(k): tensor.numpy() for k, tensor in enumerate(built.inputs)}, want
    exported = torch.onnx.export(built.model, built.inputs, dynamo=True, verbose=False).model_proto
    return exported, {i.name: x.numpy() for i, x in zip(exported.graph.input, built.inputs, strict=True)}, want


def _exported_estimator(built: Sample) -> tuple[Any, dict[str, Any], Sequence[Any]]:
    import onnxruntime
    from skl2onnx import to_onnx

    try:
        exported = to_onnx(built.model, built.inputs[0][:1], options={"zipmap": False})
    except (NameError, RuntimeError, AttributeError):  # estimators without classes have no such option
        exported = to_onnx(built.model, built.inputs[0][:1])
    inputs = {exported.graph.input[0].name: built.inputs[0]}
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    return exported, inputs, [_array(output) for output in session.run(None, inputs)]


def _array(output: Any) -> Any:
    """Return an output as an array; ZipMap's mappings become rows, as aotc gives them."""
    if isinstance(output, list) and output and isinstance(output[0], dict):
        return np.array([list(mapping.values()) for mapping in output])
    return np.asarray(output)


def _difference(got: Sequence[Any], want: Sequence[Any]) -> str:
    """Return how outputs differ; "" if they agree."""
    for k, (mine, other) in enumerate(zip(map(np.asarray, got), want, strict=True)):
        if mine.shape != other.shape:
            return f"output {k} has shape {mine.shape} instead of {other.shape}"
        if other.dtype.kind != "f":
            if not np.array_equal(mine, other):
                return f"{np.sum(mine != other)} of {other.size} elements of output {k} differ"
            continue
        scale = np.max(np.abs(other[np.isfinite(other)]), initial=1e-30)
        with np.errstate(invalid="ignore"):
            error = np.where((mine == other) | (np.isnan(mine) & np.isnan(other)), 0, np.abs(mine - other))
        if not np.all(error <= RELATIVE_TOLERANCE * scale):
            return f"output {k} differs by up to {np.max(error):.2e}"
    return ""


def main() -> None:
    """Print the outcome for the architecture and the import path that the arguments name."""
    warnings.filterwarnings("ignore")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        outcome, detail = check(*sys.argv[1:4])
    print(json.dumps({"outcome": outcome, "detail": detail}))


if __name__ == "__main__":
    main()
