# SPDX-License-Identifier: Apache-2.0
"""An independent execution of a model: of an ONNX model by ONNX Runtime where installed, else by onnx's reference
evaluator, of a graph module by the numpy interpreter, also in double precision.

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


#: Outputs by name for inputs by name; None where these cannot be had.
RunOnce: TypeAlias = Callable[[Arrays], Arrays]
ExactRun: TypeAlias = Callable[[Arrays], Arrays | None]


def no_result(_: Arrays) -> None:
    """There is none."""
    return


@frozen
class Reference:
    """What a compiled model is compared with.

    run        outputs by name for inputs by name
    exact      outputs in double precision; None where these cannot be had
    quantized  whether integers stand for real numbers inside; the exact outputs are then those without rounding
    defined    outputs of a quantized model with rounding: each operator in double precision, its result quantized
    rounded    outputs of another evaluation in the precision of the model: a second example of what rounding does
    """

    name: str
    run: RunOnce
    exact: ExactRun
    quantized: bool = False
    defined: ExactRun = no_result
    rounded: ExactRun = no_result


def or_none(run: RunOnce) -> ExactRun:
    """`run`, with None for what it raises: there is no exact result then.

    An AotcError with code "memory" is raised all the same: the caller can raise the budget.
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
    """The inputs of a model in double precision."""
    return {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in inputs.items()}


def is_quantized(model: ModelProto) -> bool:
    """Whether an ONNX model computes with integers that stand for real numbers."""
    names = [node.op_type for node in model.graph.node]
    return any(re.search(r"Quantize|^QLinear|^QGemm|^(Conv|MatMul)Integer", name) for name in names)


def _onnxruntime_session(model: ModelProto) -> Any:
    """An ONNX Runtime session; None where absent or refused.

    It optimizes quantized models, whose integer kernels it has only then, and no others.
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
        # its own exception types; whatever it is, it cannot serve as the reference
        return None


def session_runner(name: str, session: Any, names: Sequence[str]) -> RunOnce:
    """Runs another implementation, which gives outputs of these names.

    What it gives raises AotcError (code "reference") where the implementation cannot run the model.
    """

    def run(inputs: Arrays) -> Arrays:
        try:
            values = session.run(list(names), dict(inputs))
        except Exception as error:
            # errors of many kinds
            text = f"{name} cannot run the model on these inputs: {str(error).strip() or type(error).__name__}"
            raise AotcError("reference", text, hint=OTHER_INPUTS) from error
        return dict(zip(names, map(np.asarray, values), strict=True))

    return run


def onnx_reference(model: ModelProto, memory: int = DEFAULT_MEMORY_BYTES) -> Reference:
    """The best independent implementation at hand for `model`, and onnx's evaluator in double precision.

    memory    the most bytes that the latter may take
    """
    quantized = is_quantized(model)
    name = "onnxruntime's integer kernels" if quantized else "onnxruntime"
    session = _onnxruntime_session(model)
    if session is None:
        from onnx.reference import ReferenceEvaluator

        name, session = "onnx.reference", ReferenceEvaluator(model)

    @cache
    def in_double_precision() -> Any:
        # onnx's evaluator takes long to import
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


# --- of graph modules


def relay_reference(module: IRModule, names: Sequence[str], memory: int = DEFAULT_MEMORY_BYTES) -> Reference:
    """The interpreter on @main; `names` are those of the outputs, in order.

    memory    the most bytes that each evaluation may take
    """
    plain = without_rounding(module)

    def exact(inputs: Arrays) -> Arrays:
        return _evaluated(in_double(plain), names, in_float64(inputs), MemoryBudget(memory))

    def run(inputs: Arrays) -> Arrays:
        return _evaluated(module, names, inputs, MemoryBudget(memory, "the reference"))

    return Reference("the numpy interpreter", run, or_none(exact), plain is not module)


def without_rounding(module: IRModule) -> IRModule:
    """`module` with nothing done where tensors are quantized and dequantized at once."""

    def unrounded(_: Expr, node: Expr) -> Expr:
        match node:
            case Call(op=Op(name="qnn.dequantize"), args=[Call(op=Op(name="qnn.quantize"), args=[x, *_]), *_]):
                return x
        return node

    return module.with_functions({n: as_function(mutated(f, unrounded)) for n, f in module.functions.items()})


def _evaluated(module: IRModule, names: Sequence[str], inputs: Arrays, budget: MemoryBudget) -> Arrays:
    with np.errstate(all="ignore"):
        values = map(np.asarray, leaves(evaluate(module, params=inputs, watch=budget)))
        return dict(zip(names, values, strict=True))


def in_double(module: IRModule) -> IRModule:
    """`module` with every float32 turned into float64; AotcError where that has no types."""
    wide = {name: as_function(mutated(function, _widened)) for name, function in module.functions.items()}
    return reinfer_module(module.with_functions(wide))


def _widened(_: Expr, node: Expr) -> Expr:
    """Variables, constants and attributes in double precision; the types between them are inferred later."""
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
    match ty:
        case TensorType(dtype="float32"):
            return TensorType(ty.shape, "float64")
        case _:
            wide: Type = with_parts(ty, tuple(map(_wide_type, parts(ty))))
            return wide
