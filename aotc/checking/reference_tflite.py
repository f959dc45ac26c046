# SPDX-License-Identifier: Apache-2.0
"""A TFLite model, run by TFLite Micro or by LiteRT: whichever has the integers that are asked for.

reference = tflite_reference(TfliteFile(Path("net.tflite"), "litert"), ["scores"])
reference.name, reference.run({"x": array})["scores"]          # "ai-edge-litert"
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from aotc.checking.input_generation import Arrays
from aotc.checking.reference import Reference, session_runner
from aotc.ir import AotcError, frozen, open_regular

#: Packages by the rounding whose integers they give.
_PACKAGES: Final = {"tflm": ("tflite_micro", "tflite-micro"), "litert": ("ai_edge_litert", "ai-edge-litert")}
#: Bytes of the memory that TFLite Micro plans its tensors in.
_ARENA: Final = 1 << 28


@frozen
class TfliteFile:
    """A file, and whose integers it is to give."""

    path: Path
    rounding: str


def _is_installed(rounding: str) -> bool:
    return importlib.util.find_spec(_PACKAGES[rounding][0]) is not None


def rounding_at_hand(path: Path, stated: str | None) -> str:
    """The rounding that is stated, else that of the first interpreter which is installed and takes the file.

    AotcError (code "reference") where no interpreter is there.
    """
    wanted = [stated] if stated in _PACKAGES else list(_PACKAGES)
    there = [name for name in wanted if _is_installed(name)]
    found = next((name for name in there if len(there) == 1 or _takes(name, path)), None)
    if found is None:
        names = " or ".join(_PACKAGES[name][1] for name in wanted)
        text = f"a TFLite model is compared with {names}, which is not installed"
        raise AotcError("reference", text, hint=f"pip install {_PACKAGES[wanted[0]][1]}")
    return found


def _takes(rounding: str, path: Path) -> bool:
    """Whether an interpreter has all that a file needs; LiteRT is the last one asked."""
    if rounding != "tflm":
        return True
    try:
        _started(_read(path))
    except Exception:  # whatever it raises, it does not take the file
        return False
    return True


def _read(path: Path) -> bytes:
    with open_regular(path, "tflite-file") as file:
        return file.read()


def tflite_reference(model: TfliteFile, names: Sequence[str]) -> Reference:
    """The interpreter of the file's rounding; `names` are those of the outputs, in order."""
    rounding = rounding_at_hand(model.path, model.rounding)
    name = _PACKAGES[rounding][1]
    session = _Session(_read(model.path), _RUNS[rounding])
    return Reference(name, session_runner(name, session, names), lambda _: None)


@frozen(eq=False)
class _Session:
    """A file behind the interface of a session; each run starts anew."""

    data: bytes
    interpret: Any

    def run(self, _: Any, inputs: Arrays) -> list[Any]:
        return [np.asarray(v) for v in self.interpret(self.data, list(inputs.values()))]


def _started(data: bytes) -> Any:
    from tflite_micro.python.tflite_micro import runtime

    return runtime.Interpreter.from_bytes(data, arena_size=_ARENA)


def _micro(data: bytes, inputs: list[Any]) -> list[Any]:
    interpreter = _started(data)
    for place, array in enumerate(inputs):
        interpreter.set_input(array, place)
    interpreter.invoke()
    return [interpreter.get_output(k) for k in range(_outputs(data))]


def _outputs(data: bytes) -> int:
    import tflite

    return int(tflite.Model.GetRootAs(data, 0).Subgraphs(0).OutputsLength())


def _litert(data: bytes, inputs: list[Any]) -> list[Any]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=data)
    for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


_RUNS: Final = {"tflm": _micro, "litert": _litert}
