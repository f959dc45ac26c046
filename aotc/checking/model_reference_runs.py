# SPDX-License-Identifier: Apache-2.0
"""Independent executions of a model, to compare compiled code with.

An ONNX model runs in ONNX Runtime if that is installed, else in onnx's reference evaluator; a graph
module runs in the numpy interpreter. Both can also be evaluated in float64.

    reference = make_onnx_reference(model)
    reference.name, reference.run({"input": array})  # "onnxruntime", {"output": array}
    make_relay_reference(module, ["output"]).exact({"x": array})["output"]
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from aotc.checking.evaluation_memory_budget import DEFAULT_MEMORY_BYTES, MemoryBudget
from aotc.checking.input_generation import OTHER_INPUTS_HINT, Arrays
from aotc.ir import (
    AotcError,
    DType,
    Op,
    TensorType,
    Type,
    component_types,
    flatten_nested_tuple,
    frozen,
    replace_component_types,
)
from aotc.relay.expr import Call, Constant, Expr, Function, Var, require_function
from aotc.relay.graph_api import IRModule, evaluate, reinfer_module, rewrite_bottom_up

if TYPE_CHECKING:
    from onnx import ModelProto


#: Function from inputs by name to outputs by name.
ModelRunner: TypeAlias = Callable[[Arrays], Arrays]
#: Function from inputs by name to outputs by name; None if it cannot compute them.
OptionalModelRunner: TypeAlias = Callable[[Arrays], Arrays | None]

#: Name of the reference evaluator of the package onnx, in reports.
ONNX_EVALUATOR_NAME: Final = "onnx.reference"
#: Version of the standard operators for a model that has operators of ai.onnx.ml only.
_OPSET_OF_IDENTITY: Final = 13


def return_none_as_unavailable_evaluation(_: Arrays) -> None:
    """Return None for any inputs: the evaluation that is not available."""
    return


@frozen
class Reference:
    """An independent implementation of a model, to compare the compiled model with.

    name       name of the implementation, for reports
    run        outputs by name for inputs by name
    exact      outputs in float64, without rounding to integers if the model is quantized; None if
               they cannot be computed
    quantized  True if the model computes on quantized integers
    defined    outputs of a quantized model by definition: each operator in float64, its result
               rounded to integers
    rounded    outputs of a second evaluation in the precision of the model: another sample of the
               rounding error
    note       why this implementation was used instead of the preferred one, "" if it is that one
    has_exact_integers   True if the model computes on quantized integers, and those of `run` are the
                         right ones: no difference is then due to rounding
    """

    name: str
    run: ModelRunner
    exact: OptionalModelRunner
    quantized: bool = False
    defined: OptionalModelRunner = return_none_as_unavailable_evaluation
    rounded: OptionalModelRunner = return_none_as_unavailable_evaluation
    note: str = ""
    has_exact_integers: bool = False


def wrap_runner_to_return_none_on_error(run: ModelRunner) -> OptionalModelRunner:
    """Return a function that calls `run` and returns None if it raises an exception.

    An AotcError with code "memory" is raised all the same, since the caller can raise the memory
    budget.
    """

    def run_or_none_unless_memory_error(inputs: Arrays) -> Arrays | None:
        try:
            return run(inputs)
        except Exception as error:
            if isinstance(error, AotcError) and error.code == "memory":
                raise
            return None

    return run_or_none_unless_memory_error


def convert_inputs_to_float64(inputs: Arrays) -> Arrays:
    """Return the inputs of a model with float32 arrays converted to float64."""
    return {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in inputs.items()}


def has_quantized_operators(model: ModelProto) -> bool:
    """Return True if an ONNX model contains operators that quantize, dequantize or compute on
    quantized integers.
    """
    names = [node.op_type for node in model.graph.node]
    return any(re.search(r"Quantize|^QLinear|^QGemm|^(Conv|MatMul)Integer", name) for name in names)


def _onnxruntime_session_or_none(model: ModelProto) -> Any:
    """Return an ONNX Runtime session for a model; None if ONNX Runtime is not installed or refuses
    the model.

    Graph optimization is on for quantized models only: ONNX Runtime uses its integer kernels only
    with it.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    quantized = has_quantized_operators(model)
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if quantized else levels.ORT_DISABLE_ALL
    options.log_severity_level = 3
    if any(node.op_type == "DynamicQuantizeLSTM" for node in model.graph.node):
        # with several threads, each rounds a part of the batch with a scale of its own
        options.intra_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:
        # ONNX Runtime has many exception types; after any of them it cannot be the reference
        return None


def _why_onnxruntime_is_not_the_reference() -> str:
    """Return a sentence on why the evaluator of the package onnx took the place of ONNX Runtime."""
    if importlib.util.find_spec("onnxruntime") is None:
        return f"{ONNX_EVALUATOR_NAME} was used because ONNX Runtime is not installed (pip install onnxruntime)"
    return f"{ONNX_EVALUATOR_NAME} was used because ONNX Runtime cannot load this model"


def make_session_runner(name: str, session: Any, output_names: Sequence[str]) -> ModelRunner:
    """Return a function that runs another implementation of a model and returns its outputs by
    name.

    The function raises AotcError (code "reference") if the implementation cannot run the model on
    its inputs.

    name            name of the implementation, for the error
    session         object with the `run` method of an ONNX Runtime session
    output_names    names of the outputs, in order
    """

    def run_session_by_names(inputs: Arrays) -> Arrays:
        try:
            values = session.run(list(output_names), dict(inputs))
        except AotcError:
            raise
        except Exception as error:
            # implementations raise exceptions of many types
            text = f"{name} cannot run the model on these inputs: {str(error).strip() or type(error).__name__}"
            raise AotcError("reference", text, hint=OTHER_INPUTS_HINT) from error
        return dict(zip(output_names, map(np.asarray, values), strict=True))

    return run_session_by_names


def _with_tensors_in_place_of_maps(model: ModelProto) -> ModelProto:
    """Return an ONNX model in which each ZipMap returns its scores, a tensor with a column for each class label,
    as compiled models do, in place of a sequence of maps, and in which inputs that are maps are tensors; the model
    itself if it has no maps.
    """
    from aotc.relay.frontend.onnx.map_inputs import with_map_inputs_as_tensors

    model = with_map_inputs_as_tensors(model, None)
    if not any(node.op_type == "ZipMap" for node in model.graph.node):
        return model
    from onnx import helper

    changed = copy.deepcopy(model)
    maps = set[str]()
    for node in changed.graph.node:
        if node.op_type == "ZipMap":
            node.CopyFrom(helper.make_node("Identity", node.input, node.output, name=node.name))
            maps.update(node.output)
    for output in changed.graph.output:
        if output.name in maps:
            output.CopyFrom(helper.make_empty_tensor_value_info(output.name))
    if not any(opset.domain in ("", "ai.onnx") for opset in changed.opset_import):
        changed.opset_import.append(helper.make_opsetid("", _OPSET_OF_IDENTITY))
    return changed


def _with_stated_opset(model: ModelProto) -> ModelProto:
    """Return an ONNX model that states operator set 1, if it is one of the old models that state none."""
    if model.opset_import:
        return model
    from onnx import helper

    changed = copy.deepcopy(model)
    changed.opset_import.append(helper.make_opsetid("", 1))
    return changed


def _evaluator_of_onnx(model: ModelProto) -> Any:
    """Return onnx's reference evaluator of a model. Raises AotcError (code "reference") if it does not load it."""
    from onnx.reference import ReferenceEvaluator

    try:
        return ReferenceEvaluator(model)
    except Exception as error:  # of many types
        text = f"neither onnxruntime nor {ONNX_EVALUATOR_NAME} loads the model: {error}"
        raise AotcError("reference", text, hint="convert the model to a newer operator set") from error


def make_onnx_reference(model: ModelProto, max_bytes: int = DEFAULT_MEMORY_BYTES) -> Reference:
    """Return the Reference of an ONNX model: ONNX Runtime if it accepts the model, else onnx's reference evaluator.

    Its float64 results and second evaluations come from onnx's evaluator. `max_bytes` is the
    largest number of bytes that each of them may take.
    """
    model = _with_tensors_in_place_of_maps(_with_stated_opset(model))
    quantized = has_quantized_operators(model)
    name = "onnxruntime's integer kernels" if quantized else "onnxruntime"
    session, note = _onnxruntime_session_or_none(model), ""
    if session is None:
        name, session = ONNX_EVALUATOR_NAME, _evaluator_of_onnx(model)
        note = _why_onnxruntime_is_not_the_reference()

    # onnx's evaluator takes long to import, so these functions import it when they are called
    @cache
    def cached_float64_evaluator_of_onnx_model() -> Any:
        from aotc.checking.dequantized_model import remove_quantization_rounding
        from aotc.checking.float64_reference import Float64Evaluator

        return Float64Evaluator(remove_quantization_rounding(model) if quantized else model, max_bytes)

    @cache
    def cached_evaluator_of_operator_definitions(uses_float64: bool) -> Any:
        from aotc.checking.dequantized_model import expand_quantized_operators_to_qdq
        from aotc.checking.float64_reference import Float64Evaluator

        return Float64Evaluator(
            expand_quantized_operators_to_qdq(model) if quantized else model, max_bytes, uses_float64
        )

    def evaluate_in_float64(inputs: Arrays) -> Arrays:
        results: Arrays = cached_float64_evaluator_of_onnx_model().evaluate_model(convert_inputs_to_float64(inputs))
        return results

    def evaluate_model_by_definition_in_float64(inputs: Arrays) -> Arrays:
        results: Arrays = cached_evaluator_of_operator_definitions(True).evaluate_model(
            convert_inputs_to_float64(inputs)
        )
        return results

    def evaluate_in_model_precision(inputs: Arrays) -> Arrays:
        results: Arrays = cached_evaluator_of_operator_definitions(False).evaluate_model(inputs)
        return results

    run = make_session_runner(name, session, [o.name for o in model.graph.output])
    defined = wrap_runner_to_return_none_on_error(evaluate_model_by_definition_in_float64)
    return Reference(
        name,
        run,
        wrap_runner_to_return_none_on_error(evaluate_in_float64),
        quantized,
        defined=defined if quantized else return_none_as_unavailable_evaluation,
        rounded=wrap_runner_to_return_none_on_error(evaluate_in_model_precision),
        note=note,
    )


# --- references of graph modules


def make_relay_reference(
    module: IRModule, output_names: Sequence[str], max_bytes: int = DEFAULT_MEMORY_BYTES
) -> Reference:
    """Return the Reference of a graph module: the numpy interpreter of its main function;
    `output_names` are the output names, in order.

    max_bytes    largest number of bytes that each evaluation may take
    """
    plain = remove_quantize_dequantize_pairs(module)

    def interpret_in_float64(inputs: Arrays) -> Arrays:
        return _interpret_module_within_budget(
            convert_module_to_float64(plain), output_names, convert_inputs_to_float64(inputs), MemoryBudget(max_bytes)
        )

    def interpret_module(inputs: Arrays) -> Arrays:
        return _interpret_module_within_budget(module, output_names, inputs, MemoryBudget(max_bytes, "the reference"))

    return Reference(
        "the numpy interpreter",
        interpret_module,
        wrap_runner_to_return_none_on_error(interpret_in_float64),
        plain is not module,
    )


def remove_quantize_dequantize_pairs(module: IRModule) -> IRModule:
    """Return a module in which qnn.dequantize directly after qnn.quantize is removed with it.

    The result is `module` itself if nothing changes.
    """

    def bypass_quantize_dequantize(_: Expr, node: Expr) -> Expr:
        match node:
            case Call(op=Op(name="qnn.dequantize"), args=[Call(op=Op(name="qnn.quantize"), args=[x, *_]), *_]):
                return x
        return node

    return module.with_functions(
        {n: require_function(rewrite_bottom_up(f, bypass_quantize_dequantize)) for n, f in module.functions.items()}
    )


def _interpret_module_within_budget(
    module: IRModule, output_names: Sequence[str], inputs: Arrays, budget: MemoryBudget
) -> Arrays:
    """Return the outputs of a module by name, computed by the numpy interpreter within a memory
    budget.
    """
    with np.errstate(all="ignore"):
        values = map(np.asarray, flatten_nested_tuple(evaluate(module, params=inputs, watch=budget)))
        return dict(zip(output_names, values, strict=True))


def convert_module_to_float64(module: IRModule) -> IRModule:
    """Return a module with float64 in place of every float32; raise AotcError if type inference of
    it fails.
    """
    wide = {
        name: require_function(rewrite_bottom_up(function, _widen_single_node_to_float64))
        for name, function in module.functions.items()
    }
    return reinfer_module(module.with_functions(wide))


def _widen_single_node_to_float64(_: Expr, node: Expr) -> Expr:
    """Return a variable, constant, call or function with float64 annotations and attributes; other
    types are inferred later.
    """
    match node:
        case Var(name=name, annotation=ty) if ty is not None:
            return Var(name, _type_with_float64(ty), node.span)
        case Constant(data=data) if DType.from_numpy(data) == "float32":
            return Constant(data.astype(np.float64), node.span)
        case Call(attrs=attrs):
            wide = {name: type(v)("float64") for name, v in attrs.items() if v == "float32"}
            return Call(node.op, node.args, attrs.replace(**wide), span=node.span)
        case Function(ret_type=ty):
            return dataclasses.replace(node, ret_type=ty and _type_with_float64(ty))
    return node


def _type_with_float64(ty: Type) -> Type:
    """Return a type with float64 in place of float32, in tuples and functions too."""
    match ty:
        case TensorType(dtype="float32"):
            return TensorType(ty.shape, "float64")
        case _:
            wide: Type = replace_component_types(ty, tuple(map(_type_with_float64, component_types(ty))))
            return wide
