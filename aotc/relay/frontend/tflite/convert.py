# SPDX-License-Identifier: Apache-2.0
"""Convert the operators of a TFLite model to the graph IR and collect all problems.

Input: a file and, optionally, other shapes of its inputs. Output: an IRModule with the function
@main, and functions for loops.

    module = from_tflite("net.tflite", rounding="litert")
    module.attrs["output_names"]                  # ("scores",)
    module, state = import_tflite("stream.tflite")     # state: the resource variables that runs change
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from aotc.ir import (
    AotcError,
    DimSpecification,
    Span,
    TensorType,
    did_you_mean_hint,
    frozen,
    option_text,
    require,
    require_known_name,
)
from aotc.ir.compilation_work_and_memory_limits import current_budget, running_or_new_budget_scope
from aotc.ir.size_operands import SIZE_CONDITIONS_ATTRIBUTE
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import PoisonedError, Problems
from aotc.relay.frontend.found_sizes import with_sizes_found_before_use
from aotc.relay.frontend.graph_cut import NodeTensors, select_nodes_between_tensors
from aotc.relay.frontend.size_conditions import collect_size_conditions
from aotc.relay.frontend.size_operands import collect_size_operands
from aotc.relay.frontend.tflite.converter_table import CONVERTERS, CUSTOM_CONVERTERS, DEQUANTIZING, INTEGERS, MOVES
from aotc.relay.frontend.tflite.interpreter_integer_arithmetic import ARITHMETIC_BY_ROUNDING, IntegerArithmetic
from aotc.relay.frontend.tflite.load import (
    TfliteModel,
    TfliteOperator,
    TfliteSubgraph,
    TfliteTensor,
    read_model,
    require_valid_file,
)
from aotc.relay.frontend.tflite.model_inputs import operand_ranges, resolve_input_types
from aotc.relay.frontend.tflite.node import (
    Converter,
    TfliteNode,
    arithmetic_for_operator,
    call_converter,
    check_quantization_support,
    check_quantized_dtypes,
)
from aotc.relay.frontend.tflite.ops_random import unseeded_streams
from aotc.relay.frontend.tflite.ops_signal import COMPLEX_OPERATORS, MOVES_COMPLEX, complex_from_parts, complex_part
from aotc.relay.frontend.tflite.resource_variables import ResourceVariables, assigned_variables
from aotc.relay.frontend.tflite.unsupported_operators import reason_for_missing_converter
from aotc.relay.graph_api import (
    Constant,
    Expr,
    Function,
    IRModule,
    Tuple,
    Var,
    bind_params_by_name,
    compile_time_elements,
    tensor_type_of,
)
from aotc.relay.state_pair import StatePair

#: Largest number of subgraphs that run one another.
_MAX_SUBGRAPH_DEPTH: Final = 32
_LOG: Final = logging.getLogger(__name__)
_STATIC_SHAPE_HINT = "compile for one size: give the shapes of the inputs with " + option_text("input_shapes")


def from_tflite(
    model: str | Path | bytes | Any,
    *,
    shape: Mapping[str, Sequence[int]] | None = None,
    rounding: str = "tflm",
    name: str | None = None,
    cut_before: Sequence[str] = (),
    cut_after: Sequence[str] = (),
    has_loops: bool = True,
    signature: str | None = None,
    dims: Mapping[str, DimSpecification] | None = None,
    seed: int | None = None,
) -> IRModule:
    """Convert a TFLite model (a path, its bytes, or a `tflite.TfliteModel`) to a module.

    shape     shapes of inputs by name, which replace those of the file
    rounding  interpreter whose integer results are reproduced: "tflm" for TFLite Micro, "litert"
              for LiteRT
    name      name of the model in source locations; None for its file name
    cut_before   names of tensors that become the inputs; operators before them are omitted
    cut_after    names of tensors that become the outputs; operators after them are omitted
    has_loops    False to unroll each loop whose trip count is known, for targets without loops
    signature    name of the function of the model to convert; its inputs and outputs have the names
                 and the order of the signature. None for the first subgraph and the names of tensors
    seed         seed of random operators that state none, from 0 to 2**63 - 1; see `ops_random`

    The parameters of @main are the inputs of the first subgraph, under their names, then the
    contents before a run of each resource variable that runs change; quantized tensors remain
    integers. `attrs["output_names"]` holds the names of the outputs, then those of the contents
    after a run; several outputs are returned as a tuple.

    Raises AotcError listing every problem of the model: see `read_model`; and every operator that
    cannot be converted, with its number, the name of its result, and a hint.
    """
    return import_tflite(
        model,
        shape=shape,
        rounding=rounding,
        name=name,
        cut_before=cut_before,
        cut_after=cut_after,
        has_loops=has_loops,
        signature=signature,
        dims=dims,
        seed=seed,
    )[0]


@g.replace_graph_prefix_of_error_codes("tflite")
def import_tflite(
    model: str | Path | bytes | Any,
    *,
    shape: Mapping[str, Sequence[int]] | None = None,
    rounding: str = "tflm",
    name: str | None = None,
    cut_before: Sequence[str] = (),
    cut_after: Sequence[str] = (),
    has_loops: bool = True,
    signature: str | None = None,
    dims: Mapping[str, DimSpecification] | None = None,
    seed: int | None = None,
) -> tuple[IRModule, tuple[StatePair, ...]]:
    """Convert a TFLite model to a module, as `from_tflite` does; return the module and the state
    pairs of the resource variables that runs change.
    """
    require_known_name("tflite-rounding", "rounding", rounding, tuple(ARITHMETIC_BY_ROUNDING))
    loaded = read_model(model, name)
    with running_or_new_budget_scope():
        conversion = _Conversion(loaded, ARITHMETIC_BY_ROUNDING[rounding], has_loops, seed)
        sizes = InputSizes(dict(shape or {}), dict(dims or {}))
        part, operators, names = _converted_part(loaded, cut_before, cut_after, signature)
        return conversion.convert_module(part, sizes, operators, names)


@g.replace_graph_prefix_of_error_codes("tflite")
def input_types_of_tflite(
    model: str | Path | bytes | Any,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, DimSpecification],
    cut_before: Sequence[str] = (),
    cut_after: Sequence[str] = (),
    signature: str | None = None,
) -> dict[str, TensorType]:
    """Return the types of the inputs of a TFLite model by name; the parameters are those of `from_tflite`. Operators
    are not converted.
    """
    loaded = read_model(model)
    part, _, (names, _) = _converted_part(loaded, cut_before, cut_after, signature)
    inputs = [(name, part.tensors[number]) for name, number in zip(names, part.inputs, strict=True)]
    return dict(zip(names, resolve_input_types(part.source, inputs, shapes, dims), strict=True))


def _converted_part(
    loaded: TfliteModel, cut_before: Sequence[str], cut_after: Sequence[str], signature: str | None
) -> tuple[TfliteSubgraph, Sequence[int], tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the subgraph that is converted, the indices of its operators, and the names of its inputs and outputs."""
    if signature is not None:
        if cut_before or cut_after:
            hint = "leave " + option_text("signature") + " out, and cut the first subgraph"
            raise AotcError("cut", "a signature cannot be cut at tensors", span=Span(loaded.main.source), hint=hint)
        function = loaded.signature(signature)
        inputs, outputs = (tuple(ends.values()) for ends in (function.inputs, function.outputs))
        part = replace(function.subgraph, inputs=inputs, outputs=outputs)
        return part, range(len(part.operators)), (tuple(function.inputs), tuple(function.outputs))
    part, operators = _cut_subgraph_between_tensors(loaded.main, cut_before, cut_after)
    return part, operators, (_tensor_names(part, part.inputs), _tensor_names(part, part.outputs))


def _tensor_names(graph: TfliteSubgraph, tensor_indices: Sequence[int]) -> tuple[str, ...]:
    """Return distinct names of tensors."""
    return tuple(_number_duplicate_tensor_names([graph.tensors[k].name for k in tensor_indices]))


def _cut_subgraph_between_tensors(
    loaded: TfliteSubgraph, before: Sequence[str], after: Sequence[str]
) -> tuple[TfliteSubgraph, list[int]]:
    """Return the subgraph with its inputs and outputs replaced by the tensors of a cut, and the
    indices of the operators between them. Raises AotcError (code "cut") if they read variables.
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
    reading = next((k for k in part.nodes if loaded.operators[k].name == "READ_VARIABLE"), None)
    if reading is not None:
        text = "a part of a model that reads resource variables cannot be compiled"
        hint = "cut before the tensors that are read, or compile the whole model"
        raise AotcError("cut", text, span=loaded.operator_span(reading), hint=hint)
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


@frozen
class InputSizes:
    """Sizes of the inputs of a model, as the caller of the compiler gives them.

    shapes    the shape of an input, by name of the input
    dims      the size or the range of sizes of a dimension that the model leaves open, by name of the dimension
    """

    shapes: Mapping[str, Sequence[int]]
    dims: Mapping[str, DimSpecification]


class _Conversion:
    """The conversion of one TFLite model: its resource variables, and the functions of its loops."""

    def __init__(
        self, loaded: TfliteModel, rounding: IntegerArithmetic, has_loops: bool, seed: int | None = None
    ) -> None:
        self.loaded = loaded
        self.rounding = rounding
        self.has_loops = has_loops
        self._unseeded_streams = unseeded_streams(seed)
        self.functions: dict[str, Function] = {}
        self.variables = ResourceVariables(set())
        #: Numbers of the subgraphs that are being converted, each of which an operator of the one
        #: before runs.
        self.running: list[int] = []

    def convert_module(
        self,
        main: TfliteSubgraph,
        sizes: InputSizes,
        operator_indices: Sequence[int],
        names_of_ends: tuple[tuple[str, ...], tuple[str, ...]],
    ) -> tuple[IRModule, tuple[StatePair, ...]]:
        """Convert the operators with these indices of the subgraph that runs compute to a module.
        Return the module and its state. Raises AotcError with all problems.

        sizes          shapes of inputs, and sizes and ranges of open dimensions, by name
        names_of_ends  names of the inputs, and of the outputs
        """
        problems = Problems("tflite-node", _STATIC_SHAPE_HINT)
        graph = _SubgraphConversion(self, main, problems)
        input_names, names = names_of_ends
        params = graph.input_variables(sizes.shapes, sizes.dims, input_names)
        variables = {param.name: param for param in params}
        self.variables.used_names.update(param.name for param in params)
        self.running.append(main.index)
        ranges = operand_ranges(sizes.dims, input_names)
        with collect_size_conditions() as conditions, collect_size_operands(variables, ranges) as operands:
            graph.convert_operators(operator_indices)
            outputs = list(graph.output_expressions())
        problems.raise_collected_problems()
        operands.require_known_names_of_found_sizes()
        state = list(self.variables.state(names))
        constants = self.variables.unchanged_parameters()
        if constants:
            self._warn_about_variables_that_others_assign(main)
        params += [variable for variable, _, _ in state]
        outputs += [last for _, last, _ in state]
        body = with_sizes_found_before_use(outputs[0] if len(outputs) == 1 else Tuple(outputs), operands.found)
        unchanged = [v for v in self.variables.parameters() if v.name in constants]
        function = Function((*params, *unchanged), body, span=Span(main.source))
        function = bind_params_by_name(function, constants) if constants else function
        pairs = tuple(pair for _, _, pair in state)
        attrs: dict[str, Any] = {"output_names": (*names, *(pair.present for pair in pairs))}
        of_sizes = {SIZE_CONDITIONS_ATTRIBUTE: tuple(conditions), **operands.module_attributes}
        attrs |= {name: value for name, value in of_sizes.items() if value}
        return IRModule({"main": function, **self.functions}, attrs), pairs

    def _warn_about_variables_that_others_assign(self, main: TfliteSubgraph) -> None:
        """Log a warning for variables whose contents become constants, but which the function of
        another signature assigns.
        """
        for key, graph in self.loaded.signature_subgraphs().items():
            shared = assigned_variables(graph) & self.variables.unchanged_variables()
            if graph.index != main.index and shared:
                names = ", ".join(sorted(repr(name) for _, name in shared))
                text = (
                    "%s: the compiled model always reads the first contents of the resource variables %s, which the "
                    "signature %r assigns: each signature is compiled alone"
                )
                _LOG.warning(text, main.source, names, key)

    def convert_subgraph(self, index: int, inputs: Sequence[Expr]) -> list[Expr]:
        """Convert a subgraph with the given inputs and return its outputs. Raises AotcError with all
        its problems, and for a subgraph that does not exist or that runs itself (code
        "tflite-subgraph").
        """
        graph = self.loaded.subgraph(index)
        text = f"subgraph {index} runs itself: {' runs '.join(map(str, [*self.running, index]))}"
        hint = "recursion cannot be compiled: use a loop"
        require_valid_file("tflite-subgraph", index not in self.running, text, hint)
        text = f"more than {_MAX_SUBGRAPH_DEPTH} subgraphs run one another"
        require("tflite-subgraph", len(self.running) <= _MAX_SUBGRAPH_DEPTH, text)
        text = f"subgraph {index} has {len(graph.inputs)} inputs, but {len(inputs)} are given"
        require("tflite-subgraph", len(graph.inputs) == len(inputs), text)
        problems = Problems("tflite-node", _STATIC_SHAPE_HINT)
        conversion = _SubgraphConversion(self, graph, problems)
        for number, value in zip(graph.inputs, inputs, strict=True):
            conversion.check_and_store_output(number, value)
        self.running.append(index)
        try:
            conversion.convert_operators(range(len(graph.operators)))
            outputs = list(conversion.output_expressions())
        finally:
            self.running.pop()
        problems.raise_collected_problems()
        return outputs

    def initialize_variables(self, index: int) -> None:
        """Set the contents of variables before the first run: those that a subgraph assigns. Raises
        AotcError (code "tflite-variable") if they are not known when the model is compiled.
        """
        text = "CALL_ONCE in a subgraph that other operators run is not supported"
        require("tflite-variable", len(self.running) == 1, text)
        before = self.variables.exchange_contents({})
        try:
            self.convert_subgraph(index, ())
        finally:
            assigned = self.variables.exchange_contents(before)
        contents = {k: compile_time_elements(value) for k, value in assigned.items()}
        for k, array in contents.items():
            text = f"the first contents of resource variable {self.variables.name(k)!r} are not constant"
            require("tflite-variable", array is not None, text)
        self.variables.initialize({k: array for k, array in contents.items() if array is not None})

    def next_unseeded_stream(self) -> tuple[int, int]:
        """Return the key and the stream of the next random operator that states no seeds."""
        return next(self._unseeded_streams)

    def unchanged_values(self, index: int) -> set[int]:
        """Return the positions of the inputs of a subgraph that are its outputs at the same
        positions.
        """
        graph = self.loaded.subgraph(index)
        return {k for k, (a, b) in enumerate(zip(graph.inputs, graph.outputs, strict=False)) if a == b}


class _SubgraphConversion:
    """The conversion of one subgraph: the expressions of its tensors by index."""

    def __init__(self, control: _Conversion, loaded: TfliteSubgraph, problems: Problems) -> None:
        self.control = control
        self.loaded = loaded
        self.problems = problems
        self.values: dict[int, Expr] = {}

    def convert_operators(self, operator_indices: Sequence[int]) -> None:
        """Convert the operators with these indices, and collect their problems."""
        for index in operator_indices:
            op = self.loaded.operators[index]
            with self.problems.collect_errors_at(
                self.loaded.operator_span(index), malformed_message=partial(self.unsupported_operand_types_message, op)
            ):
                self.convert_operator(op)

    def input_variables(
        self, shapes: Mapping[str, Sequence[int]], dims: Mapping[str, DimSpecification], names: Sequence[str]
    ) -> list[Var]:
        """Return the inputs of the TFLite model, which have `names`, as variables of @main. Raises AotcError as
        `resolve_input_types` does.
        """
        loaded = self.loaded
        tensors = [loaded.tensors[number] for number in loaded.inputs]
        types = resolve_input_types(loaded.source, list(zip(names, tensors, strict=True)), shapes, dims)
        params = []
        for number, name, tensor, ty in zip(loaded.inputs, names, tensors, types, strict=True):
            text = f"input {name!r} is a resource variable, which is not supported"
            require("tflite-variable", not tensor.resource, text)
            _require_real_model_input_or_output(f"input {name!r}", tensor)
            params.append(Var(name, ty, Span(loaded.source, node=name)))
            self.values[number] = params[-1]
        return params

    def output_expressions(self) -> Iterator[Expr]:
        for number in self.loaded.outputs:
            with self.problems.collect_errors_at(Span(self.loaded.source)):
                tensor = self.loaded.tensors[number]
                _require_real_model_input_or_output(f"output {tensor.name!r}", tensor)
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
        text = f"tensor {tensor.name!r} keeps its value between runs of subgraph {self.loaded.index}"
        hint = "only tensors of the subgraph that is compiled may do so: convert the model with resource variables"
        is_run_by_operator = self.loaded.index != self.control.running[0]
        require_valid_file("tflite-variable", not is_run_by_operator, text, hint)
        zero = int(tensor.zero[0]) if tensor.is_quantized else 0
        zeros = g.full(zero, tensor.shape, str(tensor.dtype))
        return self.values.setdefault(tensor_index, zeros)

    def convert_operator(self, op: TfliteOperator) -> None:
        """Convert one TFLite operator and store the expressions of its outputs."""
        current_budget().spend_compile_time_budget("compile.max_nodes", 1, "the model")
        table = CUSTOM_CONVERTERS if op.custom else CONVERTERS
        converter = table.get(op.name)
        if converter is None:
            kind, hint = "custom operator" if op.custom else "operator", did_you_mean_hint(op.name, table)
            default_hint = "`aotc ops` lists the supported operators"
            reason = "" if op.custom else reason_for_missing_converter(op.name)
            text = f"{kind} {op.name} is not supported" + (f": {reason}" if reason else "")
            raise AotcError("tflite-op", text, hint=hint or default_hint)
        tensors = self.loaded.tensors

        def declared_tensors(tensor_indices: Sequence[int]) -> tuple[TfliteTensor | None, ...]:
            return tuple(None if k < 0 else tensors[k] for k in tensor_indices)

        args = tuple(None if k < 0 else self.tensor_expression(k) for k in op.inputs)
        results = tuple(tensors[k] for k in op.outputs)
        sides = declared_tensors(op.inputs), results, declared_tensors(op.intermediates)
        rounding = arithmetic_for_operator(self.control.rounding, op.name, (*sides[0], *results))
        node = TfliteNode(op, args, *sides, rounding, self.control)
        if op.name in INTEGERS:
            check_quantized_dtypes(node)
        elif op.name not in DEQUANTIZING:
            check_quantization_support(node, op.name in MOVES)
        values = _convert_complex_node(converter, node) if node.has_complex_tensors else _converted(converter, node)
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


def _require_real_model_input_or_output(subject: str, tensor: TfliteTensor) -> None:
    hint = "convert it to real numbers in the model, with tf.math.real and tf.math.imag"
    require_valid_file("tflite-dtype", not tensor.is_complex, f"{subject} is complex, which is not supported", hint)


def _converted(converter: Converter, node: TfliteNode) -> list[Expr]:
    output = call_converter(converter, node)
    return list(output) if isinstance(output, Sequence) else [output]


def _convert_complex_node(converter: Converter, node: TfliteNode) -> list[Expr]:
    """Convert an operator of complex tensors: one that moves elements is applied to both parts.
    Raises AotcError (code "tflite-dtype") for other operators that do not compute with complex numbers.
    """
    if node.op.name in COMPLEX_OPERATORS:
        fits = node.op.name == "RFFT2D" or node.input_declaration(0).is_complex
        require("tflite-dtype", fits, f"{node.op.name} of real numbers is not supported")
        return _converted(converter, node)
    text = f"{node.op.name} of complex numbers is not supported"
    require("tflite-dtype", not node.op.custom and node.op.name in MOVES_COMPLEX, text)
    parts = []
    for part in (0, 1):
        args = (
            complex_part(x, part) if x is not None and tensor is not None and tensor.is_complex else x
            for x, tensor in zip(node.args, node.inputs, strict=True)
        )
        parts.append(_converted(converter, replace(node, args=tuple(args))))
    return [complex_from_parts(pair) for pair in zip(*parts, strict=True)]
