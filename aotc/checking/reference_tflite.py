# SPDX-License-Identifier: Apache-2.0
"""Reference execution of a TFLite model by TFLite Micro or LiteRT: the interpreter whose integer
rounding is asked for.

    reference = make_tflite_reference(TfliteFile(Path("net.tflite"), "litert"), ["scores"])
    reference.name, reference.run({"x": array})["scores"]          # "ai-edge-litert"
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.checking.input_generation import Arrays
from aotc.checking.model_reference_runs import Reference, make_session_runner, return_none_as_unavailable_evaluation
from aotc.driver.import_model import import_tflite_front_end
from aotc.ir import AotcError, frozen, open_regular_file, option_text, require

#: Function from the inputs of a model to its outputs, both in the order of the model.
Interpret: TypeAlias = Callable[[list[Any]], list[Any]]
#: Module and package name of the interpreter for each rounding.
_INTERPRETER_PACKAGES: Final = {
    "tflm": ("tflite_micro", "tflite-micro"),
    "litert": ("ai_edge_litert", "ai-edge-litert"),
}
#: Type of the numbers of runs that stand for the contents of resource variables, which no resource
#: variable has.
_RUN_NUMBER_DTYPE: Final = "complex128"
#: Size in bytes of the arena in which TFLite Micro allocates tensors.
_TFLM_ARENA_BYTES: Final = 1 << 28


@frozen
class TfliteFile:
    """A TFLite file, and the interpreter whose integer rounding its results must have: "tflm" or
    "litert". `signature` is the name of the function that runs; None for the first subgraph.
    """

    path: Path
    rounding: str
    signature: str | None = None


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

    Raise AotcError (code "reference") if the interpreter is not installed, or cannot run a signature.
    """
    rounding = stated_or_installed_interpreter_rounding(model.path, model.rounding)
    name = _INTERPRETER_PACKAGES[rounding][1]
    data = _read_tflite_file(model.path)
    loaded = import_tflite_front_end().read_model(data)
    main, start = loaded.main, _INTERPRETER_BY_ROUNDING[rounding]
    ends: tuple[Sequence[Any], Sequence[Any]] = main.inputs, main.outputs
    if model.signature is not None:
        if rounding != "litert":
            hint = "compare with LiteRT: " + option_text("rounding", "litert")
            raise AotcError("reference", f"{name} cannot run a signature of a TFLite model", hint=hint)
        function = loaded.signature(model.signature)
        main, ends = function.subgraph, (list(function.inputs), list(function.outputs))
        start = partial(_start_litert_signature, model.signature, *ends)
    session = _Session(data, start, len(ends[0]), len(ends[1]))
    return Reference(
        name,
        make_session_runner(name, session, output_names),
        return_none_as_unavailable_evaluation,
        # integers that are no constants; a model whose weights alone are quantized has none
        has_exact_integers=any(tensor.is_quantized and tensor.data is None for tensor in main.tensors),
    )


@dataclass(eq=False)
class _Session:
    """A TFLite file with the `run` method of an ONNX Runtime session.

    Each run creates a new interpreter, unless it receives what the run before returned as the
    contents of resource variables: then it continues with the interpreter of that run, which holds
    the variables. No interpreter shows them, so that what a run returns for them is the number of the
    run.
    """

    data: bytes
    new_interpreter: Callable[[bytes, list[Any]], Interpret]
    input_count: int
    output_count: int
    _interpret: Interpret | None = None
    _runs: int = 0

    def run(self, output_names: Sequence[str], inputs: Arrays) -> list[Any]:
        given = list(inputs.values())
        arrays, variables = given[: self.input_count], given[self.input_count :]
        continues = bool(variables) and all(v.dtype == _RUN_NUMBER_DTYPE and v == self._runs for v in variables)
        if self._interpret is None or not continues:
            self._interpret = self.new_interpreter(self.data, arrays)
        outputs = [np.array(v) for v in self._interpret(arrays)]
        self._runs += 1
        number = np.array(self._runs, _RUN_NUMBER_DTYPE)
        return outputs + [number] * (len(output_names) - self.output_count)


def _new_tflite_micro_interpreter(model_data: bytes) -> Any:
    """Return a new TFLite Micro interpreter of a model file's contents."""
    from tflite_micro.python.tflite_micro import runtime

    return runtime.Interpreter.from_bytes(model_data, arena_size=_TFLM_ARENA_BYTES)


def _start_tflite_micro(model_data: bytes, _: list[Any]) -> Interpret:
    """Return a function that runs TFLite Micro on inputs in the order of the model and returns the
    outputs.
    """
    interpreter = _new_tflite_micro_interpreter(model_data)
    output_count = len(import_tflite_front_end().read_model(model_data).main.outputs)

    def run(inputs: list[Any]) -> list[Any]:
        for place, array in enumerate(inputs):
            shape = tuple(map(int, interpreter.get_input_details(place)["shape"]))
            text = f"tflite-micro runs models of one size: input {place} has the shape {shape}, not {array.shape}"
            hint = "compare other sizes with LiteRT: " + option_text("rounding", "litert")
            require("reference", shape == array.shape, text, hint=hint)
            interpreter.set_input(array, place)
        interpreter.invoke()
        return [interpreter.get_output(k) for k in range(output_count)]

    return run


def _start_litert(model_data: bytes, first_inputs: list[Any]) -> Interpret:
    """Return a function that runs LiteRT on inputs in the order of the model and returns the outputs;
    its input tensors are resized to the shapes of `first_inputs`.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=model_data)
    for detail, array in zip(interpreter.get_input_details(), first_inputs, strict=True):
        interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()

    def run(inputs: list[Any]) -> list[Any]:
        for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]

    return run


def _start_litert_signature(
    key: str, input_names: Sequence[str], output_names: Sequence[str], model_data: bytes, _: list[Any]
) -> Interpret:
    """Return a function that runs a signature in LiteRT on inputs in the order of `input_names` and
    returns the outputs in that of `output_names`.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=model_data)
    runner = interpreter.get_signature_runner(key)

    def run(inputs: list[Any]) -> list[Any]:
        outputs = runner(**dict(zip(input_names, inputs, strict=True)))
        return [outputs[name] for name in output_names]

    return run


_INTERPRETER_BY_ROUNDING: Final = {"tflm": _start_tflite_micro, "litert": _start_litert}
