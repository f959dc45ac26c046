# SPDX-License-Identifier: Apache-2.0
"""Convert the operators of a TFLite model to the graph IR and collect all problems.

Input: a file and, optionally, other shapes of its inputs. Output: an IRModule with one function,
@main.

    module = from_tflite("net.tflite", rounding="litert")
    module.attrs["output_names"]                  # ("scores",)
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aotc.ir import AotcError, Span, TensorType, did_you_mean_hint, option_text, require, require_known_name
from aotc.ir.compilation_work_and_memory_limits import current_budget, running_or_new_budget_scope
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import PoisonedError, Problems
from aotc.relay.frontend.graph_cut import NodeTensors, select_nodes_between_tensors
from aotc.relay.frontend.tflite.converter_table import CONVERTERS, INTEGERS, MOVES
from aotc.relay.frontend.tflite.interpreter_integer_arithmetic import ARITHMETIC_BY_ROUNDING, IntegerArithmetic
from aotc.relay.frontend.tflite.load import TfliteModel, TfliteOperator, TfliteTensor, read_model
from aotc.relay.frontend.tflite.node import (
    TfliteNode,
    arithmetic_for_operator,
    call_converter,
    check_quantization_support,
    check_quantized_dtypes,
)
from aotc.relay.graph_api import Constant, Expr, Function, IRModule, Tuple, Var, tensor_type_of

_STATIC_SHAPE_HINT = "aotc compiles for static shapes: give those of the inputs with " + option_text("input_shapes")


@g.replace_graph_prefix_of_error_codes("tflite")
def from_tflite(
    model: str | Path | bytes | Any,
    *,
    shape: Mapping[str, Sequence[int]] | None = None,
    rounding: str = "tflm",
    name: str | None = None,
    cut_before: Sequence[str] = (),
    cut_after: Sequence[str] = (),
) -> IRModule:
    """Convert a TFLite model (a path, its bytes, or a `tflite.TfliteModel`) to a module.

    shape     shapes of inputs by name, which replace those of the file
    rounding  interpreter whose integer results are reproduced: "tflm" for TFLite Micro, "litert"
              for LiteRT
    name      name of the model in source locations; None for its file name
    cut_before   names of tensors that become the inputs; operators before them are omitted
    cut_after    names of tensors that become the outputs; operators after them are omitted

    The parameters of @main are the inputs of the first subgraph, under their names; quantized
    tensors remain integers. `attrs["output_names"]` holds the names of the outputs; several outputs
    are returned as a tuple.

    Raises AotcError listing every problem of the model: see `read_model`; and every operator that
    cannot be converted, with its number, the name of its result, and a hint.
    """
    require_known_name("tflite-rounding", "rounding", rounding, tuple(ARITHMETIC_BY_ROUNDING))
    loaded = read_model(model, name)
    with running_or_new_budget_scope():
        part, operators = _cut_model_between_tensors(loaded, cut_before, cut_after)
        return _Conversion(part, ARITHMETIC_BY_ROUNDING[rounding]).convert_module(dict(shape or {}), operators)


def _cut_model_between_tensors(
    loaded: TfliteModel, before: Sequence[str], after: Sequence[str]
) -> tuple[TfliteModel, list[int]]:
    """Return the model with its inputs and outputs replaced by the tensors of a cut, and the
    indices of the operators between them.
    """
    if not before and not after:
        return loaded, list(range(len(loaded.operators)))
    names = list(_number_duplicate_tensor_names([tensor.name for tensor in loaded.tensors]))

    def tensor_names(tensor_indices: Sequence[int]) -> tuple[str, ...]:
        return tuple(names[k] if k >= 0 else "" for k in tensor_indices)

    links = [NodeTensors(tensor_names(op.inputs), tensor_names(op.outputs)) for op in loaded.operators]
    outputs = list(after) or list(tensor_names(loaded.outputs))
    part = select_nodes_between_tensors(links, tensor_names(loaded.inputs), outputs, before)
    inputs, results = (tuple(map(names.index, given)) for given in (part.inputs, outputs))
    return replace(loaded, inputs=inputs, outputs=results), part.nodes


def _number_duplicate_tensor_names(names: Sequence[str]) -> Iterator[str]:
    """Yield tensor names with numbers appended to duplicates, so that all are distinct."""
    total, used_names = Counter(names), set(names)
    for place, name in enumerate(names):
        candidate = name
        while total[name] > 1 and candidate in used_names:
            candidate += f"_{place}"
        used_names.add(candidate)
        yield candidate


class _Conversion:
    """The state of the conversion of one TFLite model: the expressions of its tensors by index."""

    def __init__(self, loaded: TfliteModel, rounding: IntegerArithmetic) -> None:
        self.loaded = loaded
        self.rounding = rounding
        self.problems = Problems("tflite-node", _STATIC_SHAPE_HINT)
        self.values: dict[int, Expr] = {}

    def convert_module(self, shapes: dict[str, Sequence[int]], operator_indices: Sequence[int]) -> IRModule:
        """Convert the TFLite operators with these indices to a module; `shapes` are shapes of
        inputs by name. Raises AotcError with all problems.
        """
        loaded = self.loaded
        params = self.input_variables(shapes)
        for index in operator_indices:
            op = loaded.operators[index]
            with self.problems.collect_errors_at(
                loaded.operator_span(index), malformed_message=partial(self.unsupported_operand_types_message, op)
            ):
                self.convert_operator(op)
        outputs = list(self.output_expressions())
        self.problems.raise_collected_problems()
        body = outputs[0] if len(outputs) == 1 else Tuple(outputs)
        main = Function(tuple(params), body, span=Span(loaded.source))
        names = tuple(_number_duplicate_tensor_names([loaded.tensors[k].name for k in loaded.outputs]))
        return IRModule({"main": main}, {"output_names": names})

    def input_variables(self, shapes: dict[str, Sequence[int]]) -> list[Var]:
        """Return the inputs of the TFLite model as variables of @main. Raises AotcError (code
        "tflite-pin") if `shapes` names an input that does not exist.
        """
        loaded = self.loaded
        names = list(_number_duplicate_tensor_names([loaded.tensors[k].name for k in loaded.inputs]))
        for name in shapes.keys() - set(names):
            text = f"the model has no input {name!r}"
            hint = did_you_mean_hint(name, names) or f"inputs: {', '.join(names)}"
            raise AotcError("tflite-pin", text, span=Span(loaded.source), hint=hint)
        params = []
        for number, name in zip(loaded.inputs, names, strict=True):
            tensor, span = loaded.tensors[number], Span(loaded.source, node=name)
            shape = g.checked_shape(shapes.get(name, tensor.shape), tensor.dtype, f"input {name!r}")
            params.append(Var(name, TensorType(shape, tensor.dtype), span))
            self.values[number] = params[-1]
        return params

    def output_expressions(self) -> Iterator[Expr]:
        for number in self.loaded.outputs:
            with self.problems.collect_errors_at(Span(self.loaded.source)):
                yield self.tensor_expression(number)
                continue
            if not self.problems.diagnostics:
                text = f"output {self.loaded.tensors[number].name!r} is never computed"
                self.problems.add_problem("tflite-output", text, Span(self.loaded.source))

    def tensor_expression(self, tensor_index: int) -> Expr:
        """Return the expression of a TFLite tensor. Raises PoisonedError if its computation failed."""
        value = self.values.get(tensor_index)
        if value is not None:
            return value
        tensor = self.loaded.tensors[tensor_index]
        if tensor.data is None and not tensor.variable:
            raise PoisonedError(tensor.name)
        span = Span(self.loaded.source, node=tensor.name)
        if tensor.data is not None:
            return self.values.setdefault(tensor_index, Constant(tensor.data, span))
        zero = int(tensor.zero[0]) if tensor.is_quantized else 0
        zeros = g.full(zero, tensor.shape, str(tensor.dtype))
        return self.values.setdefault(tensor_index, zeros)

    def convert_operator(self, op: TfliteOperator) -> None:
        """Convert one TFLite operator and store the expressions of its outputs."""
        current_budget().spend_compile_time_budget("compile.max_nodes", 1, "the model")
        converter = None if op.custom else CONVERTERS.get(op.name)
        if converter is None:
            kind = "custom operator" if op.custom else "operator"
            hint = "" if op.custom else did_you_mean_hint(op.name, CONVERTERS)
            default_hint = "`aotc ops` lists the supported operators"
            raise AotcError("tflite-op", f"{kind} {op.name} is not supported", hint=hint or default_hint)
        tensors = self.loaded.tensors

        def declared_tensors(tensor_indices: Sequence[int]) -> tuple[TfliteTensor | None, ...]:
            return tuple(None if k < 0 else tensors[k] for k in tensor_indices)

        args = tuple(None if k < 0 else self.tensor_expression(k) for k in op.inputs)
        results = tuple(tensors[k] for k in op.outputs)
        sides = declared_tensors(op.inputs), results, declared_tensors(op.intermediates)
        rounding = arithmetic_for_operator(self.rounding, op.name, (*sides[0], *results))
        node = TfliteNode(op, args, *sides, rounding)
        if op.name not in INTEGERS:
            check_quantization_support(node, op.name in MOVES)
        else:
            check_quantized_dtypes(node)
        output = call_converter(converter, node)
        values = list(output) if isinstance(output, Sequence) else [output]
        text = f"{op.name} has {len(results)} outputs, {len(values)} are computed"
        require("tflite-output", len(values) >= len(results), text)
        for number, value in zip(op.outputs, values, strict=False):
            self.check_and_store_output(number, value)

    def check_and_store_output(self, tensor_index: int, value: Expr) -> None:
        tensor, ty = self.loaded.tensors[tensor_index], tensor_type_of(value)
        text = f"output {tensor.name!r} is declared {tensor.dtype}, the operator computes {ty.dtype}"
        require("tflite-output", ty.dtype == tensor.dtype, text)
        self.values[tensor_index] = value

    def unsupported_operand_types_message(self, op: TfliteOperator) -> str:
        """Return the message for a TFLite operator whose converter raises an exception."""
        known = (self.values.get(k) for k in op.inputs)
        types = ("none" if x is None else str(x.checked_type) for x in known)
        return f"{op.name} does not take these inputs and options: ({', '.join(types)})"
