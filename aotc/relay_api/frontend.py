# SPDX-License-Identifier: Apache-2.0
"""Relay's entry points to the front ends: each converts a model to a module and its parameters.

mod, params = from_onnx("net.onnx", shape={"input": (1, 3, 224, 224)})
mod, params = from_pytorch(torch.jit.trace(net, x), [("x", (1, 3, 224, 224))])
mod, params = from_exported_program(torch.export.export(net, (x,)))
mod, params = from_tflite(tflite.Model.GetRootAsModel(data, 0), {"input": (1, 49, 10, 1)}, {"input": "int8"})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotc.driver.import_model import import_pytorch_front_end, import_tflite_front_end
from aotc.ir import AotcError, DimSpecification, NDArray, PassContext, array, rename_options_in_errors
from aotc.relay.frontend.onnx.convert import from_onnx as convert_onnx
from aotc.relay.graph_api import IRModule, tensor_type_of

if TYPE_CHECKING:
    from onnx import ModelProto


def from_onnx(
    model: str | Path | ModelProto,
    shape: Mapping[str, Sequence[int]] | None = None,
    *,
    dims: Mapping[str, DimSpecification] | None = None,
) -> tuple[IRModule, dict[str, Any]]:
    """Convert an ONNX model to a module. The returned parameters are empty: initializers are
    constants in the module.

    Arguments and errors are those of `aotc.relay.frontend.onnx.convert.from_onnx`.
    """
    with rename_options_in_errors(input_shapes="shape"):
        return convert_onnx(model, shape=shape, dims=dims), {}


def from_pytorch(
    script_module: Any,
    input_infos: Sequence[Any],
    custom_convert_map: Mapping[str, Callable[[list[Any], list[str]], Any]] | None = None,
    default_dtype: str = "float32",
    use_parser_friendly_name: bool = False,
) -> tuple[IRModule, dict[str, NDArray]]:
    """Convert a TorchScript module (traced, or scripted with static control flow) to a module and
    its parameters.

    script_module             result of torch.jit.trace or torch.jit.script, in evaluation mode, on
                              the CPU
    input_infos               (name, shape) or (name, (shape, dtype)) for each input, in order
    custom_convert_map        converters by kind of node ("aten::relu"), which replace aotc's: each
                              is called with the input values and the names of their types, and
                              returns the result or results
    default_dtype             data type of inputs whose description has none
    use_parser_friendly_name  True to replace ":" and "." in names of parameters by "_"

    The parameters of @main are the inputs by their names, then the module's parameters in the order
    of their use, named after the first operator that reads them (`aten::_convolution_0.weight`).
    Nested outputs become one flat tuple.

    Raises AotcError with all problems: unsupported operators, with the node and its line of Python
    source; wrong descriptions of inputs; operators in training mode; branches on values known only
    at run time.
    """
    module, params = import_pytorch_front_end().from_script(
        script_module, input_infos, custom_convert_map, default_dtype, use_parser_friendly_name
    )
    return module, {name: array(value) for name, value in params.items()}


def from_exported_program(
    exported_program: Any,
    keep_params_as_input: bool = False,
    unwrap_unit_return_tuple: bool = True,
    *,
    dims: Mapping[str, DimSpecification] | None = None,
) -> tuple[IRModule, dict[str, NDArray]]:
    """Convert a program of torch.export to a module and its parameters.

    keep_params_as_input       True: parameters and buffers become variables after the inputs, under
                               their names in the state dictionary, and are returned; False: they
                               are constants, and none is returned
    unwrap_unit_return_tuple   True: a single output is a tensor; False: it is a tuple of one tensor
    dims                       values of dynamic dimensions, or ranges such as (1, 512), by symbol;
                               other dimensions remain dynamic

    Inputs have the names that the program gives them. Nested outputs become one flat tuple. A buffer
    that the program changes is always an input, and the returned parameters have its initial contents.
    For each buffer or input NAME that the program changes, there is an output NAME_out with its new
    contents; these outputs follow those of the program.

    Raises AotcError with all problems: unsupported operators, with the node and its line of Python
    source; dynamic dimensions where a number is needed.
    """
    module, params = import_pytorch_front_end().from_exported(
        exported_program, keep_params_as_input, unwrap_unit_return_tuple, dims
    )
    return module, {name: array(value) for name, value in params.items()}


def from_tflite(
    model: Any,
    shape_dict: Mapping[str, Sequence[int]] | None = None,
    dtype_dict: Mapping[str, str] | None = None,
    op_converter: Any = None,
) -> tuple[IRModule, dict[str, NDArray]]:
    """Convert a TFLite model to a module. The returned parameters are empty: weights are constants
    in the module.

    model          a `tflite.Model`, the bytes of a file, or its path
    shape_dict     shapes of inputs by name, which replace the shapes in the file
    dtype_dict     data types of inputs by name, which must be the types in the file
    op_converter   exists for compatibility with Relay; must be None

    The configuration key `tflite.rounding` names the interpreter whose integer results are
    reproduced: "tflm" or "litert".

    Raises AotcError with all problems: see `aotc.relay.frontend.tflite.convert.from_tflite`.
    """
    if op_converter is not None:
        raise AotcError("tflite-op", "custom converters are not supported", hint="leave op_converter out")
    rounding = PassContext.current().get_config("tflite.rounding", "tflm")
    with rename_options_in_errors(input_shapes="shape_dict"):
        module: IRModule = import_tflite_front_end().from_tflite(model, shape=shape_dict, rounding=rounding)
    types = {p.name: str(tensor_type_of(p).dtype) for p in module.main.params}
    for name, dtype in (dtype_dict or {}).items():
        if types.get(name) != dtype:
            text = f"input {name!r} is said to be {dtype}, the model has {types.get(name, 'no such input')}"
            raise AotcError("tflite-pin", text)
    return module, {}
