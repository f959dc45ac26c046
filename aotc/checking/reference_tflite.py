# SPDX-License-Identifier: Apache-2.0
"""Reference execution of a TFLite model by TFLite Micro or LiteRT: the interpreter whose integer
rounding is asked for.

    reference = make_tflite_reference(TfliteFile(Path("net.tflite"), "litert"), ["scores"])
    reference.name, reference.run({"x": array})["scores"]          # "ai-edge-litert"
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from aotc.checking.input_generation import Arrays
from aotc.checking.model_reference_runs import Reference, make_session_runner, return_none_as_unavailable_evaluation
from aotc.driver.import_model import import_tflite_front_end
from aotc.ir import AotcError, frozen, open_regular_file

#: Module and package name of the interpreter for each rounding.
_INTERPRETER_PACKAGES: Final = {
    "tflm": ("tflite_micro", "tflite-micro"),
    "litert": ("ai_edge_litert", "ai-edge-litert"),
}
#: Size in bytes of the arena in which TFLite Micro allocates tensors.
_TFLM_ARENA_BYTES: Final = 1 << 28


@frozen
class TfliteFile:
    """A TFLite file, and the interpreter whose integer rounding its results must have: "tflm" or
    "litert".
    """

    path: Path
    rounding: str


def _is_interpreter_installed(rounding: str) -> bool:
    """Return True if the interpreter for a rounding is installed."""
    return importlib.util.find_spec(_INTERPRETER_PACKAGES[rounding][0]) is not None


def stated_or_installed_interpreter_rounding(path: Path, stated: str | None) -> str:
    """Return the rounding `stated` by the caller, else that of the first installed interpreter that
    can load the TFLite file.

    Raise AotcError (code "reference") if no suitable interpreter is installed.
    """
    candidates = [stated] if stated in _INTERPRETER_PACKAGES else list(_INTERPRETER_PACKAGES)
    there = [name for name in candidates if _is_interpreter_installed(name)]
    interpreter = next(
        (name for name in there if len(there) == 1 or _can_tflite_interpreter_load_file(name, path)), None
    )
    if interpreter is None:
        names = " or ".join(_INTERPRETER_PACKAGES[name][1] for name in candidates)
        text = f"a TFLite model is compared with {names}, which is not installed"
        raise AotcError("reference", text, hint=f"pip install {_INTERPRETER_PACKAGES[candidates[0]][1]}")
    return interpreter


def _can_tflite_interpreter_load_file(rounding: str, path: Path) -> bool:
    """Return True if an interpreter can load a TFLite file; LiteRT, the last choice, is assumed to
    load every file.
    """
    if rounding != "tflm":
        return True
    try:
        _new_tflite_micro_interpreter(_read_tflite_file(path))
    except Exception:  # any exception means that it cannot load the file
        return False
    return True


def _read_tflite_file(path: Path) -> bytes:
    with open_regular_file(path, "tflite-file") as file:
        return file.read()


def make_tflite_reference(model: TfliteFile, output_names: Sequence[str]) -> Reference:
    """Return a Reference that runs the interpreter for the rounding of a TFLite file;
    `output_names` are the model's output names, in order.

    Raise AotcError (code "reference") if the interpreter is not installed.
    """
    rounding = stated_or_installed_interpreter_rounding(model.path, model.rounding)
    name = _INTERPRETER_PACKAGES[rounding][1]
    data = _read_tflite_file(model.path)
    session = _Session(data, _INTERPRETER_BY_ROUNDING[rounding])
    return Reference(
        name,
        make_session_runner(name, session, output_names),
        return_none_as_unavailable_evaluation,
        has_exact_integers=_has_quantized_activations(data),
    )


@frozen(eq=False)
class _Session:
    """A TFLite file with the `run` method of an ONNX Runtime session; each run creates a new
    interpreter.
    """

    data: bytes
    interpret: Any

    def run(self, _: Any, inputs: Arrays) -> list[Any]:
        return [np.asarray(v) for v in self.interpret(self.data, list(inputs.values()))]


def _new_tflite_micro_interpreter(model_data: bytes) -> Any:
    """Return a new TFLite Micro interpreter of a model file's contents."""
    from tflite_micro.python.tflite_micro import runtime

    return runtime.Interpreter.from_bytes(model_data, arena_size=_TFLM_ARENA_BYTES)


def _run_tflite_micro(model_data: bytes, inputs: list[Any]) -> list[Any]:
    """Run TFLite Micro on inputs in the order of the model; return the outputs."""
    interpreter = _new_tflite_micro_interpreter(model_data)
    for place, array in enumerate(inputs):
        interpreter.set_input(array, place)
    interpreter.invoke()
    return [interpreter.get_output(k) for k in range(_count_tflite_outputs(model_data))]


def _count_tflite_outputs(model_data: bytes) -> int:
    """Return the number of outputs of the first subgraph of a TFLite model."""
    import tflite

    return int(tflite.Model.GetRootAs(model_data, 0).Subgraphs(0).OutputsLength())


def _has_quantized_activations(model_data: bytes) -> bool:
    """Return True if a TFLite model has quantized integers that are no constants; a model whose
    weights alone are quantized has none.
    """
    tensors = import_tflite_front_end().read_model(model_data).tensors
    return any(tensor.is_quantized and tensor.data is None for tensor in tensors)


def _run_litert(model_data: bytes, inputs: list[Any]) -> list[Any]:
    """Run LiteRT on inputs in the order of the model, with input tensors resized to their shapes;
    return the outputs.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=model_data)
    for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


_INTERPRETER_BY_ROUNDING: Final = {"tflm": _run_tflite_micro, "litert": _run_litert}
