# SPDX-License-Identifier: Apache-2.0
"""Import models from ONNX, PyTorch exported programs, TFLite files and Relay text as graph modules.

module, state = import_model_and_state("net.pt2", {}, {"batch": 1}, "tflm")
module = read_relay_text("net.relay")
"""

import importlib
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aotc.driver.state_pairs import input_names_matching_state, lengths_of_growing_states
from aotc.ir import COMPILE_CALL, AotcError, Array, DimSpecification, TensorType, frozen, open_regular_file, option_text
from aotc.relay.frontend.onnx import cut_model, from_onnx, load_model
from aotc.relay.frontend.onnx.model_inputs import (
    dim_names_of_values,
    names_of_inputs_with_default,
    remove_default_values,
    resolve_model_input_types,
)
from aotc.relay.graph_api import IRModule, bind_params_by_name
from aotc.relay.state_pair import StatePair
from aotc.relay.text.parser import parse


def _import_front_end(name: str, package: str, need_text: str, pip_package: str) -> Any:
    """Return a front end module; raise AotcError if the package that it needs to read models is not
    installed.
    """
    try:
        importlib.import_module(package)
    except ImportError as error:
        text = f"{need_text}, which is missing: {error}"
        raise AotcError(f"{package}-missing", text, hint=f"pip install {pip_package}") from error
    return importlib.import_module(f"aotc.relay.frontend.{name}")


def import_pytorch_front_end() -> Any:
    """Return the PyTorch front end; raise AotcError if torch is not installed."""
    return _import_front_end("pytorch", "torch", "PyTorch models need torch", "torch")


def is_exported_program_or_pt2_path(model: object) -> bool:
    """Return True if `model` is a torch.export.ExportedProgram or the path of a .pt2 file."""
    if isinstance(model, (str, Path)):
        return Path(model).suffix == ".pt2"
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.export.ExportedProgram)


def load_exported_program(model: Any) -> Any:
    """Return the ExportedProgram in a .pt2 file; an ExportedProgram is returned unchanged."""
    return import_pytorch_front_end().load_exported(model) if isinstance(model, (str, Path)) else model


def import_exported_program(model: Any, dims: Mapping[str, DimSpecification]) -> IRModule:
    """Convert an ExportedProgram or a .pt2 file to a graph module whose parameters are constants."""
    module: IRModule = import_pytorch_front_end().from_exported(load_exported_program(model), dims=dims)[0]
    return module


def functional_exported_program(model: Any) -> Any:
    """Return an exported program, or that in a .pt2 file, with outputs for the new contents of the
    tensors that it changes, in place of operators that write to them; models of other formats
    unchanged.
    """
    if not is_exported_program_or_pt2_path(model):
        return model
    return import_pytorch_front_end().functionalize_and_decompose(load_exported_program(model))


def changed_buffers_of_exported_program(model: Any) -> tuple[dict[str, str], dict[str, Array]]:
    """Return the buffers that a functional exported program changes, which are state of the compiled
    model: the names of the outputs with the new contents by the names of the buffers, and the
    contents before the first run. Both are empty for models of other formats.
    """
    if not is_exported_program_or_pt2_path(model):
        return {}, {}
    front_end = import_pytorch_front_end()
    return front_end.changed_buffers_of_program(model), front_end.contents_of_changed_buffers(model)


def is_pytorch_module(model: object) -> bool:
    """Return True if `model` is a torch.nn.Module that torch.export can export."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module) and not isinstance(model, torch.jit.ScriptModule)


def export_pytorch_module(module: Any, example_inputs: Any) -> Any:
    """Export a torch.nn.Module by torch.export; return the ExportedProgram.

    example_inputs    a tensor, a tuple or list of positional arguments, or a mapping of keyword arguments,
                      whose shapes and data types the program has

    Raises AotcError (code "torch-export") if torch cannot export the module.
    """
    import torch

    if isinstance(example_inputs, Mapping):
        args, kwargs = (), dict(example_inputs)
    else:
        args, kwargs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs), {}
    try:
        with torch.no_grad():
            return torch.export.export(module, args, kwargs)
    except Exception as error:  # torch raises various exceptions for what it cannot trace
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        text = f"torch.export cannot export {type(module).__name__}: {reason}"
        hint = "rewrite this part of forward: a choice or a shape must not depend on the values of tensors"
        raise AotcError("torch-export", text, hint=hint) from error


def import_tflite_front_end() -> Any:
    """Return the TFLite front end; raise AotcError if the package tflite is not installed."""
    return _import_front_end("tflite", "tflite", "TFLite models need the package tflite", "tflite")


def is_tflite_path(model: object) -> bool:
    """Return True if `model` is the path of a TFLite file: its name ends in .tflite."""
    return isinstance(model, (str, Path)) and Path(model).suffix == ".tflite"


def is_relay_text_path(model: object) -> bool:
    """Return True if `model` is the path of a file of Relay text: its name ends in .relay."""
    return isinstance(model, (str, Path)) and Path(model).suffix == ".relay"


def read_relay_text(path: str | Path) -> IRModule:
    """Parse a file of Relay text; return the module.  Raise AotcError if it cannot be read or
    parsed.
    """
    try:
        with open_regular_file(path, "relay-file") as file:
            text = io.TextIOWrapper(file, encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise AotcError("relay-file", f"{path} is no text: {error.reason} at byte {error.start}") from error
    return parse(text, str(path))


@frozen
class Cut:
    """Names of the tensors between which a model is compiled: `before` become inputs, `after`
    become outputs.

    An empty tuple means the model's own inputs or outputs.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.before or self.after)


NO_CUT: Final = Cut()


def cut_model_at_tensors(model: Any, cut: Cut) -> Any:
    """Extract the part of an ONNX model (path or ModelProto) between the tensors of `cut`, as a
    ModelProto.

    An empty cut returns the model unchanged; so does a TFLite file, which its importer cuts.
    Raises AotcError (code "cut") for models of other formats.
    """
    if not cut or is_tflite_path(model):
        return model
    if isinstance(model, IRModule) or is_relay_text_path(model) or is_exported_program_or_pt2_path(model):
        hint = "give a model whose outputs are the tensors you want: in PyTorch, export a module that returns them"
        raise AotcError("cut", "only ONNX and TFLite models can be cut at tensors", hint=hint)
    return cut_model(load_model(model), cut.before, cut.after)


def require_tflite_model_is_not_cut(model: Any, cut: Cut) -> None:
    """Raise AotcError (code "cut") if a TFLite file is cut: TFLite interpreters run whole models
    only.
    """
    if cut and is_tflite_path(model):
        text = "a part of a TFLite model cannot be compared: its interpreters run whole models"
        hint = "compile the part (" + COMPILE_CALL + "), or compare the whole model"
        raise AotcError("cut", text, hint=hint)


def import_model_and_state(
    model: Any,
    shapes: Mapping[str, Any],
    dims: Mapping[str, DimSpecification],
    rounding: str,
    cut: Cut = NO_CUT,
    has_loops: bool = True,
    signature: str | None = None,
    seed: int | None = None,
) -> tuple[IRModule, tuple[StatePair, ...]]:
    """Convert a model in any supported form to a graph module whose parameters are constants; return
    the module, and the state that the file itself states: the resource variables of TFLite.

    shapes      shapes of inputs by name, for models with dynamic dimensions
    dims        values or ranges of symbolic dimensions by name
    rounding    the reference implementation that integers of a TFLite model reproduce
    cut         the tensors between which the model is converted
    has_loops   False to unroll loops wherever their trip counts are known
    signature   name of the function of a TFLite model that is converted; None for the first subgraph
    seed        seed of those random operators of an ONNX or TFLite model that state none

    Raises AotcError if shapes or dims are given for a format that fixes them itself, and if a
    format cannot be cut.
    """
    if signature is not None and not is_tflite_path(model):
        hint = "leave " + option_text("signature") + " out"
        raise AotcError("tflite-signature", "only TFLite models have signatures", hint=hint)
    name = Path(model).name if cut and isinstance(model, (str, Path)) else None
    model = cut_model_at_tensors(model, cut)
    if isinstance(model, IRModule) or is_relay_text_path(model):
        if shapes or dims:
            text = "a module of the graph IR states the shapes of its inputs itself"
            hint = "leave " + option_text("input_shapes") + " and " + option_text("dims") + " out"
            raise AotcError("pin-module", text, hint=hint)
        return model if isinstance(model, IRModule) else read_relay_text(model), ()
    if is_exported_program_or_pt2_path(model):
        if shapes:
            text = "an exported program states the shapes of its inputs itself, up to dynamic dimensions"
            hint = "leave " + option_text("input_shapes") + " out; " + option_text("dims") + " pins dynamic dimensions"
            raise AotcError("pin-exported", text, hint=hint)
        return import_exported_program(model, dims), ()
    if is_tflite_path(model):
        options: dict[str, Any] = {"cut_before": cut.before, "cut_after": cut.after, "has_loops": has_loops}
        options |= {"signature": signature, "seed": seed}
        imported: tuple[IRModule, tuple[StatePair, ...]] = import_tflite_front_end().import_tflite(
            model, shape=shapes, dims=dims, rounding=rounding, **options
        )
        return imported
    return from_onnx(model, shape=shapes, dims=dims, name=name, has_loops=has_loops, seed=seed), ()


def import_input_types(
    model: Any,
    shapes: Mapping[str, Any],
    dims: Mapping[str, DimSpecification],
    cut: Cut = NO_CUT,
    signature: str | None = None,
) -> dict[str, TensorType]:
    """Return the types of the inputs of a model with dynamic dimensions by name, without converting its operators.
    The parameters are those of `import_model_and_state`.

    Raise AotcError for inputs of types that are not supported, and for shapes and dims that the inputs cannot have.
    """
    types: dict[str, TensorType]
    if is_exported_program_or_pt2_path(model):
        types = import_pytorch_front_end().input_types_of_exported(load_exported_program(model), dims)
    elif is_tflite_path(model):
        front_end = import_tflite_front_end()
        types = front_end.input_types_of_tflite(model, shapes, dims, cut.before, cut.after, signature)
    else:
        types = resolve_model_input_types(cut_model_at_tensors(model, cut), shapes, dims)
    return types


def inputs_without_default_values(model: Any, state: Mapping[str, str]) -> tuple[Any, dict[str, Array]]:
    """Return an ONNX model whose state inputs have no default values, and these values by name.

    state    the option `state`: names of outputs by names of inputs

    An ONNX initializer with the name of an input is the default value of this input, which becomes
    a constant otherwise. Models of other formats are returned unchanged.
    """
    if isinstance(model, IRModule) or is_relay_text_path(model) or is_exported_program_or_pt2_path(model):
        return model, {}
    if is_tflite_path(model):
        return model, {}
    named = input_names_matching_state(state, names_of_inputs_with_default(load_model(model)))
    return remove_default_values(load_model(model), named) if named else (model, {})


def ranges_of_growing_states(
    model: Any, state: Mapping[str, str], dims: Mapping[str, DimSpecification]
) -> dict[str, DimSpecification]:
    """Return ranges for the lengths of the states of an ONNX model that grow, from the capacities in the option
    `state`. Models of other formats state the ranges themselves.

    dims    values and ranges that the caller gives, which are not replaced
    """
    if isinstance(model, IRModule) or is_relay_text_path(model) or is_exported_program_or_pt2_path(model):
        return {}
    if is_tflite_path(model) or not any(":" in present for present in state.values()):
        return {}
    graph = load_model(model).graph
    lengths = lengths_of_growing_states(state, *(dim_names_of_values(side) for side in (graph.input, graph.output)))
    return {name: (0, capacity) for name, capacity in lengths.items() if name not in dims}


def bind_params_as_constants(module: IRModule, params: Mapping[str, Any] | None) -> IRModule:
    """Return the module with some parameters of @main, given by name, replaced by constants."""
    return module.with_function("main", bind_params_by_name(module["main"], params)) if params else module
