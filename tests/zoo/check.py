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
import re
import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

import aotc
from tests.zoo.libraries import BuildError, Sample, sample

_TORCH: Final = ("torch.export", "onnx")

IMPORT_PATHS: Final = {
    "JAX": ("onnx",),
    "Keras": ("onnx", "tflite"),
    "LightGBM": ("onnx",),
    "XGBoost": ("onnx",),
    "scikit-learn": ("onnx",),
    "segmentation-models-pytorch": _TORCH,
    "timm": _TORCH,
    "torchvision": _TORCH,
    "transformers": _TORCH,
}
"""The import paths of each library's architectures."""

RELATIVE_TOLERANCE: Final = 1e-3
"""Greatest difference from the reference, relative to its greatest finite element."""


class Exported(NamedTuple):
    """An exported model, its inputs in their order, and the outputs of the reference for them."""

    model: Any
    inputs: Sequence[Any]
    outputs: Sequence[Any]


def check(library: str, name: str, path: str) -> tuple[str, str]:
    """Return the outcome and its detail for an architecture by an import path."""
    try:
        built = sample(library, name)
    except BuildError as error:
        return "not built", str(error)
    try:
        exported = _exported(library, path, built)
    except Exception as error:
        cause = _cause(error)
        return "not exported", f"{type(cause).__name__}: {_first_line(cause)}"
    try:
        options = {"input_shapes": _onnx_shapes(exported)} if path == "onnx" else {}
        session = aotc.compile(exported.model, cflags=["-O0"], **options).session()
        names = (info.name for info in session.get_inputs())
        got = session.run(None, dict(zip(names, exported.inputs, strict=True)))
    except aotc.AotcError as error:
        return "refused", _first_line(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {_first_line(error)}"
    difference = _difference(got, exported.outputs)
    return ("differs", difference) if difference else ("agrees", "")


def _onnx_shapes(exported: Exported) -> dict[str, tuple[int, ...]]:
    return {info.name: x.shape for info, x in zip(exported.model.graph.input, exported.inputs, strict=True)}


def _cause(error: BaseException) -> BaseException:
    """Return the error that an error was raised from first."""
    return error if error.__cause__ is None else _cause(error.__cause__)


def _first_line(error: BaseException) -> str:
    return (re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() or [""])[0][:300]


def _exported(library: str, path: str, built: Sample) -> Exported:
    if library == "Keras":
        return _exported_keras(path, built)
    if library == "JAX":
        return _exported_jax(built)
    if not hasattr(built.model, "forward"):
        return _exported_estimator(built)
    import torch

    with torch.no_grad():
        want = [np.asarray(tensor) for tensor in built.model(*built.inputs)]
    inputs = [tensor.numpy() for tensor in built.inputs]
    if path == "torch.export":
        return Exported(torch.export.export(built.model, built.inputs), inputs, want)
    program = torch.onnx.export(built.model, built.inputs, dynamo=True, verbose=False)
    return Exported(program.model_proto, inputs, want)


def _exported_estimator(built: Sample) -> Exported:
    import onnxruntime

    model = _onnx_estimator(built)
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = session.run(None, {model.graph.input[0].name: built.inputs[0]})
    return Exported(model, built.inputs, [_array(output) for output in outputs])


def _onnx_estimator(built: Sample) -> Any:
    """Return an estimator as an ONNX model."""
    library = type(built.model).__module__.partition(".")[0]
    if library != "sklearn":
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        types = [("x", FloatTensorType([None, built.inputs[0].shape[1]]))]
        convert = onnxmltools.convert_xgboost if library == "xgboost" else onnxmltools.convert_lightgbm
        return convert(built.model, initial_types=types)
    from skl2onnx import to_onnx

    # estimators without classes have no such option, and some converters know an older set of operators only
    attempts: tuple[dict[str, Any], ...] = (
        {"options": {"zipmap": False}},
        {},
        {"target_opset": {"": 18, "ai.onnx.ml": 3}},
    )
    for keywords in attempts[:-1]:
        try:
            return to_onnx(built.model, built.inputs[0][:1], **keywords)
        except (NameError, RuntimeError, AttributeError):
            continue
    return to_onnx(built.model, built.inputs[0][:1], **attempts[-1])


def _exported_keras(path: str, built: Sample) -> Exported:
    import tensorflow
    import tf2onnx

    want = [np.asarray(built.model(*built.inputs, training=False))]
    if path == "onnx":
        shapes = [tensorflow.TensorSpec(x.shape, x.dtype, name=f"x{k}") for k, x in enumerate(built.inputs)]
        function = tensorflow.function(lambda *inputs: built.model(*inputs, training=False), input_signature=shapes)
        # tf2onnx makes inputs of constant tensors that layers hold, such as the means of a normalization
        captured = function.get_concrete_function().captured_inputs
        held = [np.asarray(tensor) for tensor in captured if tensor.dtype != tensorflow.resource]
        return Exported(tf2onnx.convert.from_function(function, shapes, opset=17)[0], [*built.inputs, *held], want)
    # the converter leaves out the weights of functions of Keras 3's models
    converter = tensorflow.lite.TFLiteConverter.from_keras_model(built.model)
    with tempfile.NamedTemporaryFile(suffix=".tflite", delete=False) as file:
        file.write(converter.convert())
    return Exported(file.name, built.inputs, want)


def _exported_jax(built: Sample) -> Exported:
    import jax
    from jax2onnx import to_onnx

    outputs = jax.tree_util.tree_leaves(built.model(*built.inputs))
    model = to_onnx(built.model, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in built.inputs])
    return Exported(model, built.inputs, [np.asarray(output) for output in outputs])


def _array(output: Any) -> Any:
    """Return an output as an array; ZipMap's mappings become rows, as aotc gives them."""
    if isinstance(output, list) and output and isinstance(output[0], dict):
        return np.array([list(mapping.values()) for mapping in output])
    return np.asarray(output)


def _difference(got: Sequence[Any], want: Sequence[Any]) -> str:
    """Return how outputs differ; "" if they agree."""
    if len(got) != len(want):
        return f"{len(got)} outputs instead of {len(want)}"
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
