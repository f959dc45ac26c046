# SPDX-License-Identifier: Apache-2.0
"""Files and programs of other compilers to graph modules: exported programs of PyTorch, TFLite files, Relay text.

module = imported("net.pt2", {}, {"batch": 1}, "tflm")
module = read_relay_text("net.relay")
"""

import importlib
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aotc.ir import AotcError, frozen, open_regular
from aotc.relay.frontend.onnx import cut_model, from_onnx, load_model
from aotc.relay.graph_api import IRModule, bind_params_by_name
from aotc.relay.text.parser import parse


def _front_end(name: str, package: str, needed: str, install: str) -> Any:
    """A front end; AotcError where the package that it reads models by is not installed."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        text = f"{needed}, which is missing: {error}"
        raise AotcError(f"{package}-missing", text, hint=f"pip install {install}") from error
    return importlib.import_module(f"aotc.relay.frontend.{name}")


def pytorch_front_end() -> Any:
    """The PyTorch front end; AotcError where torch is not installed."""
    return _front_end("pytorch", "torch", "PyTorch models need torch", "torch")


def is_exported_program(model: object) -> bool:
    """Whether `model` is an ExportedProgram, or the path of a .pt2 file."""
    if isinstance(model, (str, Path)):
        return Path(model).suffix == ".pt2"
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.export.ExportedProgram)


def load_exported(model: Any) -> Any:
    """The ExportedProgram in a .pt2 file; what is one already stays as it is."""
    return pytorch_front_end().load_exported(model) if isinstance(model, (str, Path)) else model


def import_exported(model: Any, dims: Mapping[str, int]) -> IRModule:
    """The module of an ExportedProgram or .pt2 file, parameters as constants."""
    module: IRModule = pytorch_front_end().from_exported(load_exported(model), dims=dims)[0]
    return module


def tflite_front_end() -> Any:
    """The TFLite front end; AotcError where the schema is not installed."""
    return _front_end("tflite", "tflite", "TFLite models need the package tflite", "'aotc[tflite]'")


def is_tflite(model: object) -> bool:
    """Whether `model` is the path of a TFLite file: its name ends in .tflite."""
    return isinstance(model, (str, Path)) and Path(model).suffix == ".tflite"


def is_relay_text(model: object) -> bool:
    """Whether `model` is the path of a file of Relay text: its name ends in .relay."""
    return isinstance(model, (str, Path)) and Path(model).suffix == ".relay"


def read_relay_text(path: str | Path) -> IRModule:
    """The module in a file of Relay text; AotcError where it cannot be read or parsed."""
    try:
        with open_regular(path, "relay-file") as file:
            text = io.TextIOWrapper(file, encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise AotcError("relay-file", f"{path} is no text: {error.reason} at byte {error.start}") from error
    return parse(text, str(path))


@frozen
class Cut:
    """Names of tensors between which a model is compiled: new inputs, and new outputs (those of the model for none)."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.before or self.after)


NO_CUT: Final = Cut()


def part_of(model: Any, cut: Cut) -> Any:
    """Return the part of an ONNX model, a path or a ModelProto, as a ModelProto; the model itself where nothing is cut.

    A TFLite file is returned as it is: its reader cuts it.  Raises AotcError (code "cut") for models in other forms.
    """
    if not cut or is_tflite(model):
        return model
    if isinstance(model, IRModule) or is_relay_text(model) or is_exported_program(model):
        hint = "give a model whose outputs are the tensors you want: in PyTorch, export a module that returns them"
        raise AotcError("cut", "only ONNX and TFLite models can be cut at tensors", hint=hint)
    return cut_model(load_model(model), cut.before, cut.after)


def require_whole_tflite(model: Any, cut: Cut) -> None:
    """Raise AotcError (code "cut") for a TFLite file that is cut: its interpreters run whole models only."""
    if cut and is_tflite(model):
        text = "a part of a TFLite model cannot be compared: its interpreters run whole models"
        raise AotcError("cut", text, hint="compile the part (aotc compile), or compare the whole model")


def imported(
    model: Any, shapes: Mapping[str, Any], dims: Mapping[str, int], rounding: str, cut: Cut = NO_CUT
) -> IRModule:
    """Return the module of a model in any accepted form, parameters of files as constants.

    rounding    whose integers a TFLite model gives
    cut         the tensors between which the model is converted

    Raises AotcError for shapes and dimensions that a model of its form states itself, and for what cannot be cut.
    """
    name = Path(model).name if cut and isinstance(model, (str, Path)) else None
    model = part_of(model, cut)
    if isinstance(model, IRModule) or is_relay_text(model):
        if shapes or dims:
            text = "input_shapes and dims pin ONNX models; a module states its own types"
            raise AotcError("pin-module", text)
        return model if isinstance(model, IRModule) else read_relay_text(model)
    if is_exported_program(model):
        if shapes:
            hint = "pin symbols with dims"
            raise AotcError(
                "pin-exported",
                "the shapes of an exported program are fixed in its file: leave out input shapes",
                hint=hint,
            )
        return import_exported(model, dims)
    if is_tflite(model):
        if dims:
            hint = "give the shapes of inputs (--input-shape)"
            raise AotcError("tflite-pin", "TFLite models have no named dimensions: leave out dims (--dim)", hint=hint)
        ends = {"cut_before": cut.before, "cut_after": cut.after}
        module: IRModule = tflite_front_end().from_tflite(model, shape=shapes, rounding=rounding, **ends)
        return module
    return from_onnx(model, shape=shapes, dims=dims, name=name)


def with_params(module: IRModule, params: Mapping[str, Any] | None) -> IRModule:
    """A module whose @main has some of its parameters baked in, by name."""
    return module.with_function("main", bind_params_by_name(module["main"], params)) if params else module
