# SPDX-License-Identifier: Apache-2.0
"""Independent executions of a model, to compare compiled code with.

An ONNX model runs in ONNX Runtime if that is installed, else in onnx's reference evaluator; a graph
module runs in the numpy interpreter. Both can also be evaluated in float64.

    reference = onnx_reference(model)
    reference.name, reference.run({"input": array})  # "onnxruntime", {"output": array}
    relay_reference(module, ["output"]).exact({"x": array})["output"]
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from aotc.checking.input_generation import OTHER_INPUTS, Arrays
from aotc.checking.memory_budget import DEFAULT_MEMORY_BYTES, MemoryBudget
from aotc.ir import AotcError, DType, Op, TensorType, Type, frozen, leaves, parts, with_parts
from aotc.relay.expr import Call, Constant, Expr, Function, Var, as_function
from aotc.relay.graph_api import IRModule, evaluate, mutated, reinfer_module

if TYPE_CHECKING:
    from onnx import ModelProto


#: Function from inputs by name to outputs by name.
RunOnce: TypeAlias = Callable[[Arrays], Arrays]
#: Function from inputs by name to outputs by name; None if it cannot compute them.
ExactRun: TypeAlias = Callable[[Arrays], Arrays | None]


def no_result(_: Arrays) -> None:
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
    """

    name: str
    run: RunOnce
    exact: ExactRun
    quantized: bool = False
    defined: ExactRun = no_result
    rounded: ExactRun = no_result


def or_none(run: RunOnce) -> ExactRun:
    """Return a function that calls `run` and returns None if it raises an exception.

    An AotcError with code "memory" is raised all the same, since the caller can raise the memory
    budget.
    """

    def attempt(inputs: Arrays) -> Arrays | None:
        try:
            return run(inputs)
        except Exception as error:
            if isinstance(error, AotcError) and error.code == "memory":
                raise
            return None

    return attempt


def in_float64(inputs: Arrays) -> Arrays:
    """Return the inputs of a model with float32 arrays converted to float64."""
    return {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in inputs.items()}


def is_quantized(model: ModelProto) -> bool:
    """Return True if an ONNX model contains operators that quantize, dequantize or compute on
    quantized integers.
    """
    names = [node.op_type for node in model.graph.node]
    return any(re.search(r"Quantize|^QLinear|^QGemm|^(Conv|MatMul)Integer", name) for name in names)


def _onnxruntime_session(model: ModelProto) -> Any:
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
    quantized = is_quantized(model)
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if quantized else levels.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:
        # ONNX Runtime has many exception types; after any of them it cannot be the reference
        return None


def session_runner(name: str, session: Any, names: Sequence[str]) -> RunOnce:
    """Return a function that runs another implementation of a model and returns its outputs by
    name.

    The function raises AotcError (code "reference") if the implementation cannot run the model on
    its inputs.

    name       name of the implementation, for the error
    session    object with the `run` method of an ONNX Runtime session
    names      names of the outputs, in order
    """

    def run(inputs: Arrays) -> Arrays:
        try:
            values = session.run(list(names), dict(inputs))
        except Exception as error:
            # implementations raise exceptions of many types
            text = f"{name} cannot run the model on these inputs: {str(error).strip() or type(error).__name__}"
            raise AotcError("reference", text, hint=OTHER_INPUTS) from error
        return dict(zip(names, map(np.asarray, values), strict=True))

    return run


def onnx_reference(model: ModelProto, memory: int = DEFAULT_MEMORY_BYTES) -> Reference:
    """Return the Reference of an ONNX model: ONNX Runtime if it is installed and accepts the model,
    else onnx's reference evaluator.

    Its float64 results and second evaluations come from onnx's evaluator. `memory` is the largest
    number of bytes that each of them may take.
    """
    quantized = is_quantized(model)
    name = "onnxruntime's integer kernels" if quantized else "onnxruntime"
    session = _onnxruntime_session(model)
    if session is None:
        from onnx.reference import ReferenceEvaluator

        name, session = "onnx.reference", ReferenceEvaluator(model)

    @cache
    def in_double_precision() -> Any:
        # imported here, since onnx's evaluator takes long to import
        from aotc.checking.dequantized_model import without_rounding
        from aotc.checking.float64_reference import InDouble

        return InDouble(without_rounding(model) if quantized else model, memory)

    def exact(inputs: Arrays) -> Arrays:
        found: Arrays = in_double_precision().run(in_float64(inputs))
        return found

    def defined(inputs: Arrays) -> Arrays:
        from aotc.checking.dequantized_model import by_definition
        from aotc.checking.float64_reference import InDouble

        found: Arrays = InDouble(by_definition(model), memory).run(in_float64(inputs))
        return found

    def rounded(inputs: Arrays) -> Arrays:
        from aotc.checking.float64_reference import InDouble

        found: Arrays = InDouble(model, memory, is_wide=False).run(inputs)
        return found

    run = session_runner(name, session, [o.name for o in model.graph.output])
    if quantized:
        return Reference(name, run, or_none(exact), quantized, defined=or_none(defined))
    return Reference(name, run, or_none(exact), rounded=or_none(rounded))


# --- references of graph modules


def relay_reference(module: IRModule, names: Sequence[str], memory: int = DEFAULT_MEMORY_BYTES) -> Reference:
    """Return the Reference of a graph module: the numpy interpreter of its main function; `names`
    are the output names, in order.

    memory    largest number of bytes that each evaluation may take
    """
    plain = without_rounding(module)

    def exact(inputs: Arrays) -> Arrays:
        return _evaluated(in_double(plain), names, in_float64(inputs), MemoryBudget(memory))

    def run(inputs: Arrays) -> Arrays:
        return _evaluated(module, names, inputs, MemoryBudget(memory, "the reference"))

    return Reference("the numpy interpreter", run, or_none(exact), plain is not module)


def without_rounding(module: IRModule) -> IRModule:
    """Return a module in which qnn.dequantize directly after qnn.quantize is removed with it.

    The result is `module` itself if nothing changes.
    """

    def unrounded(_: Expr, node: Expr) -> Expr:
        match node:
            case Call(op=Op(name="qnn.dequantize"), args=[Call(op=Op(name="qnn.quantize"), args=[x, *_]), *_]):
                return x
        return node

    return module.with_functions({n: as_function(mutated(f, unrounded)) for n, f in module.functions.items()})


def _evaluated(module: IRModule, names: Sequence[str], inputs: Arrays, budget: MemoryBudget) -> Arrays:
    """Return the outputs of a module by name, computed by the numpy interpreter within a memory
    budget.
    """
    with np.errstate(all="ignore"):
        values = map(np.asarray, leaves(evaluate(module, params=inputs, watch=budget)))
        return dict(zip(names, values, strict=True))


def in_double(module: IRModule) -> IRModule:
    """Return a module with float64 in place of every float32; raise AotcError if type inference of
    it fails.
    """
    wide = {name: as_function(mutated(function, _widened)) for name, function in module.functions.items()}
    return reinfer_module(module.with_functions(wide))


def _widened(_: Expr, node: Expr) -> Expr:
    """Return a variable, constant, call or function with float64 annotations and attributes; other
    types are inferred later.
    """
    match node:
        case Var(name=name, annotation=ty) if ty is not None:
            return Var(name, _wide_type(ty), node.span)
        case Constant(data=data) if DType.of(data) == "float32":
            return Constant(data.astype(np.float64), node.span)
        case Call(attrs=attrs):
            wide = {name: type(v)("float64") for name, v in attrs.items() if v == "float32"}
            return Call(node.op, node.args, attrs.replace(**wide), span=node.span)
        case Function(ret_type=ty):
            return dataclasses.replace(node, ret_type=ty and _wide_type(ty))
    return node


def _wide_type(ty: Type) -> Type:
    """Return a type with float64 in place of float32, in tuples and functions too."""
    match ty:
        case TensorType(dtype="float32"):
            return TensorType(ty.shape, "float64")
        case _:
            wide: Type = with_parts(ty, tuple(map(_wide_type, parts(ty))))
            return wide
