# SPDX-License-Identifier: Apache-2.0
"""Convert an ONNX graph: call the converter of each node in topological order and collect all
problems.

Input: a loaded model and the types of its inputs. Output: an IRModule with the function @main, and
one for each loop that is not unrolled. An operator without a converter is expanded into its function
body, if the model or the ONNX standard defines one.

    module = from_onnx("net.onnx", shape={"x": (1, 3, 224, 224)})
    module.attrs["output_names"]                  # ("scores",)
"""

import logging
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from aotc.ir import AotcError, DimSpecification, Span, TensorType, TupleType, current_span, require, span_scope
from aotc.ir.compilation_work_and_memory_limits import current_budget, running_or_new_budget_scope
from aotc.ir.size_operands import SIZE_CONDITIONS_ATTRIBUTE
from aotc.ir.string_slots import STRING_INPUTS_ATTRIBUTE, STRING_OUTPUTS_ATTRIBUTE
from aotc.ir.terminal_safe_text import escape_unsafe_text
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import PoisonedError, Problems
from aotc.relay.frontend.found_sizes import with_sizes_found_before_use
from aotc.relay.frontend.onnx import load, microsoft_operator_schemas
from aotc.relay.frontend.onnx.attention_head_count_check import check_head_counts
from aotc.relay.frontend.onnx.converter_table import converter_of, converter_of_run_time_sequences
from aotc.relay.frontend.onnx.function_bodies import instantiate_function_body, standard_function_body
from aotc.relay.frontend.onnx.function_expansion_limit import (
    called_function_key,
    check_recursion_and_expanded_node_count,
)
from aotc.relay.frontend.onnx.load import LoadedModel
from aotc.relay.frontend.onnx.model_inputs import (
    hint_on_options_to_fix_dims,
    is_string_input,
    operand_ranges,
    resolve_input_types,
    with_inputs_as_tensors,
)
from aotc.relay.frontend.onnx.node import (
    ClosedSubgraph,
    ConvertedOutput,
    Converter,
    OnnxNode,
    Strings,
    call_converter,
    check_node_signature,
    node_attributes_with_defaults,
    operator_schema,
    sequence_elements,
)
from aotc.relay.frontend.onnx.ops_random import keys_of_random_nodes
from aotc.relay.frontend.onnx.ops_sequences import is_absent
from aotc.relay.frontend.onnx.run_time_values import RunTimeSequences
from aotc.relay.frontend.onnx.sequence_inputs import element_name, tensor_type_of_value
from aotc.relay.frontend.run_time_sequences import RunTimeSequence, tensors_of_output
from aotc.relay.frontend.size_conditions import collect_size_conditions
from aotc.relay.frontend.size_operands import SizeOperands, collect_size_operands
from aotc.relay.frontend.string_slots import string_constant, strings_of_found_number
from aotc.relay.graph_api import Call, Constant, Expr, Function, IRModule, Tuple, Var, global_uses, type_of
from aotc.relay.visitor import free_vars

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Scope:
    """The tensors that are visible in one ONNX graph, by name; its own tensors hide tensors of the
    enclosing graphs. A value is an expression, or an initializer that has not been decoded yet.
    """

    opsets: Mapping[str, int]
    names: ChainMap[str, Expr | TensorProto]
    depth: int = 0


@dataclass(slots=True)
class _Conversion:
    """The state of the conversion of one ONNX model: its functions, the problems found so far,
    whether loops of known trip counts may stay loops, the global functions of the module other
    than @main, and the expressions that are slots of strings; those of them whose number of strings a run finds,
    with what has room for all; and the expressions that are sequences of run-time length.
    """

    loaded: LoadedModel
    functions: Mapping[tuple[str, str, str], FunctionProto]
    problems: Problems
    has_loops: bool = True
    global_functions: dict[str, Function] = field(default_factory=dict)
    random_keys: Iterator[int] = field(default_factory=keys_of_random_nodes)
    strings: set[Expr] = field(default_factory=set)
    counted_strings: dict[Expr, Strings] = field(default_factory=dict)
    sequences: RunTimeSequences = field(default_factory=RunTimeSequences)

    # --- tensors by name

    def tensor_expression(self, name: str, scope: _Scope) -> Expr:
        """Return the expression of the tensor `name`, and decode it if it is an initializer. Raises
        PoisonedError if its computation failed.
        """
        owner = next((names for names in scope.names.maps if name in names), None)
        if owner is None:
            raise PoisonedError(name)
        value = owner[name]
        if isinstance(value, TensorProto):
            with span_scope(Span(self.loaded.source, node=name)):
                owner[name] = value = self.constant_expression(value)
        return value

    def constant_expression(self, tensor: TensorProto) -> Expr:
        """Return the value of an initializer as a constant."""
        if tensor.data_type != TensorProto.STRING:
            return Constant(self.loaded.decode_tensor(tensor))
        return self.marked_strings(Strings(string_constant(load.decode_string_tensor(tensor))))

    def marked_strings(self, value: Expr | Strings) -> Expr:
        """Return a result of a converter as an expression, and remember that it is slots of strings, or a sequence
        whose elements are.
        """
        if not isinstance(value, Strings):
            return value
        slots = value.slots
        if value.count is not None:
            known = (expr for expr, counted in self.counted_strings.items() if counted == value)
            slots = next(known, None) or strings_of_found_number(slots, value.count, value.axis)
            self.counted_strings[slots] = value
        self.strings.add(slots)
        if isinstance(type_of(slots), TupleType):
            self.strings.update(sequence_elements(slots))
        return slots

    # --- graphs

    def convert_graph(self, graph: GraphProto, scope: _Scope) -> None:
        """Convert the nodes of an ONNX graph that its outputs need, and add their results to
        `scope`.
        """
        if scope.depth > load.MAX_NESTING_DEPTH:
            raise load.nesting_depth_error()
        for tensor in graph.initializer:
            scope.names.maps[0].setdefault(tensor.name, tensor)
        for sparse in graph.sparse_initializer:
            with span_scope(Span(self.loaded.source, node=sparse.values.name)):
                scope.names.maps[0].setdefault(sparse.values.name, Constant(self.loaded.decode_sparse_tensor(sparse)))
        self.convert_nodes(load.needed_nodes_in_topological_order(graph, self.loaded.source), scope)

    def convert_nodes(self, nodes: Iterable[tuple[int, NodeProto]], scope: _Scope) -> None:
        """Convert ONNX nodes in the given order; problems are recorded, and nodes that depend on a
        failed one are skipped.
        """
        outer = current_span()
        for index, proto in nodes:
            span = outer or Span(self.loaded.source, node=load.node_label(proto, index))
            problem_count = len(self.problems.diagnostics)
            with self.problems.collect_errors_at(
                span, malformed_message=partial(self.malformed_node_message, proto, scope)
            ):
                self.convert_node(proto, scope)
            if outer is None and len(self.problems.diagnostics) > problem_count:
                computed = (name for name in proto.input if isinstance(scope.names.get(name), Call))
                self.problems.computed.update(dict.fromkeys(computed))

    def malformed_node_message(self, proto: NodeProto, scope: _Scope) -> str:
        """Return the message for a node whose converter raises an exception: the types of its
        inputs and the names of its attributes.
        """
        types = [str(self.tensor_expression(name, scope).checked_type) if name else "none" for name in proto.input]
        given = f"({', '.join(types)}), [{', '.join(a.name for a in proto.attribute)}]"
        return f"{proto.op_type} does not take these inputs and attributes: {given}"

    def convert_node(self, proto: NodeProto, scope: _Scope) -> None:
        """Convert one ONNX node with the model's own function, the operator's converter or the
        function body in the ONNX standard, whichever is found first, and add its outputs to
        `scope`.

        Raises AotcError if the operator is not supported or the node does not fit it.
        """
        current_budget().spend_compile_time_budget(
            "compile.max_nodes", 1, "the model, its functions and loops expanded,"
        )
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        local = self.functions.get(called_function_key(proto))
        if local is not None:
            self.bind_node_outputs(proto, self.inline_function(proto, local, scope, {}), scope)
            return
        schema = operator_schema(proto.op_type, domain, scope.opsets.get(domain, 0))
        if not _is_supported_operator(proto.op_type, domain, schema):
            raise _unsupported_operator_error(proto, domain, scope.opsets, schema)
        inputs = [self.tensor_expression(name, scope) if name else None for name in proto.input]
        string_inputs = frozenset(k for k, value in enumerate(inputs) if value in self.strings)
        sequence_inputs = frozenset(k for k, x in enumerate(inputs) if self.sequences.of(x) is not None)
        converter = converter_of(domain, proto.op_type, of_strings=bool(string_inputs))
        if sequence_inputs:
            converter = _converter_of_run_time_sequences(proto, domain, schema)
        elif converter is None:
            _require_known_kind_of_inputs(proto, domain, schema, string_inputs)
        unchecked = string_inputs | sequence_inputs
        check_node_signature(proto, schema, [None if k in unchecked else x for k, x in enumerate(inputs)])
        attributes = node_attributes_with_defaults(proto, schema)
        if converter is not None:
            output_flags = [bool(name) for name in proto.output]
            callbacks = (
                self.loaded.decode_tensor,
                partial(self.convert_subgraph, scope),
                partial(self.convert_branch, scope),
                partial(self.convert_closed_subgraph, scope),
            )
            version = schema.since_version
            node = OnnxNode(
                proto.op_type,
                inputs,
                attributes,
                version,
                output_flags,
                *callbacks,
                self.global_functions,
                self.has_loops,
                partial(next, self.random_keys),
                string_inputs,
                {k: s for k, x in enumerate(inputs) if x is not None and (s := self.counted_strings.get(x))},
                self.sequences,
            )
            result = call_converter(converter, node)
            self.bind_node_outputs(proto, list(result) if isinstance(result, Sequence) else [result], scope)
            return
        if not domain:
            check_head_counts(proto.op_type, inputs, attributes)
        body = standard_function_body(schema, proto, inputs, scope.opsets[domain])
        self.bind_node_outputs(proto, self.inline_function(proto, body, scope, attributes), scope)

    def bind_node_outputs(self, proto: NodeProto, values: Sequence[ConvertedOutput], scope: _Scope) -> None:
        """Add the outputs of an ONNX node to `scope` under their names. Raises AotcError (code
        "onnx-output") if a named output was not computed.
        """
        for position, name in enumerate(proto.output):
            value = values[position] if position < len(values) else None
            if name and value is None:
                raise AotcError("onnx-output", f"output {position} of {proto.op_type} is not supported")
            if name and value is not None:
                scope.names[name] = self.marked_strings(value)

    # --- functions and subgraphs

    def inline_function(
        self, proto: NodeProto, function: FunctionProto, scope: _Scope, defaults: Mapping[str, Any]
    ) -> list[Expr | None]:
        """Expand the body of an ONNX function for the inputs and attributes of a node that calls
        it, and return its outputs.
        """
        graph = instantiate_function_body(function, proto, defaults)
        opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in function.opset_import}
        inner = _Scope({**scope.opsets, **opsets}, ChainMap(), scope.depth + 1)
        for formal, actual in zip(function.input, proto.input, strict=False):
            if actual:
                inner.names[formal] = self.tensor_expression(actual, scope)
        self.convert_graph(graph, inner)
        pairs = zip(function.output, proto.output, strict=False)
        return [self.tensor_expression(formal, inner) if actual else None for formal, actual in pairs]

    def convert_subgraph(self, scope: _Scope, graph: GraphProto, inputs: Sequence[Expr]) -> list[Expr]:
        """Convert an ONNX subgraph, such as a loop body, with the given inputs and return its outputs. Raises AotcError
        (code "onnx-dtype") for strings among them.
        """
        outputs = self.subgraph_outputs(scope, graph, inputs)
        if self.strings.intersection((*inputs, *outputs)):
            raise AotcError("onnx-dtype", "a tensor of strings cannot be an input or a result of a subgraph")
        return outputs

    def convert_branch(self, scope: _Scope, graph: GraphProto) -> list[Expr | Strings]:
        """Convert a branch of If, a subgraph without inputs, and return its outputs."""
        outputs = self.subgraph_outputs(scope, graph, [])
        return [self.counted_strings.get(x) or Strings(x) if x in self.strings else x for x in outputs]

    def subgraph_outputs(self, scope: _Scope, graph: GraphProto, inputs: Sequence[Expr]) -> list[Expr]:
        """Convert an ONNX subgraph with the given inputs and return its outputs, which may be slots of strings."""
        inner = _Scope(scope.opsets, scope.names.new_child(), scope.depth + 1)
        if len(inputs) != len(graph.input):
            raise AotcError("onnx-input", f"a subgraph takes {len(graph.input)} inputs, but {len(inputs)} are given")
        inner.names.update({v.name: x for v, x in zip(graph.input, inputs, strict=True)})
        self.convert_graph(graph, inner)
        return [self.tensor_expression(v.name, inner) for v in graph.output]

    def convert_closed_subgraph(self, scope: _Scope, graph: GraphProto, inputs: Sequence[Expr]) -> ClosedSubgraph:
        """Convert an ONNX subgraph with the given inputs, and a variable instead of each tensor of an
        enclosing graph that is not a constant.

        Raises AotcError with the problems of the subgraph, which are not recorded.
        """
        captured: dict[Expr, Var] = {}
        visible: dict[str, Expr | TensorProto] = {}
        names = {v.name for v in graph.output}.union(*map(load.tensor_names_read, graph.node))
        for name in sorted(names & scope.names.keys()):
            value = scope.names[name]
            if not isinstance(value, (TensorProto, Constant)):
                visible[name] = captured.setdefault(value, Var(f"c{len(captured)}", type_of(value)))
        self.strings.update(variable for value, variable in captured.items() if value in self.strings)
        for value, variable in captured.items():
            self.sequences.add_copy(variable, value)
        found = self.problems.diagnostics
        self.problems.diagnostics = []
        try:
            outputs = self.convert_subgraph(replace(scope, names=scope.names.new_child(visible)), graph, inputs)
        except PoisonedError:
            if not self.problems.diagnostics:
                raise
        finally:
            inside, self.problems.diagnostics = self.problems.diagnostics, found
        if inside:
            raise AotcError.collect(inside)
        return ClosedSubgraph(outputs, {variable: value for value, variable in captured.items()})


def _converter_of_run_time_sequences(proto: NodeProto, domain: str, schema: Any) -> Converter | None:
    """Return the converter of an operator that reads a sequence whose length a run decides; None if the operator is
    defined by a function. Raises AotcError (code "onnx-sequence") if it has neither.
    """
    converter = converter_of_run_time_sequences(domain, proto.op_type)
    text = f"{proto.op_type} of a sequence, or of an optional value, that a run decides about is not supported"
    require("onnx-sequence", converter is not None or _has_function_body(schema), text)
    return converter


def _require_known_kind_of_inputs(proto: NodeProto, domain: str, schema: Any, string_inputs: Collection[int]) -> None:
    """Raise AotcError (code "onnx-dtype") for strings that an operator without a converter for strings reads,
    and for an operator that has neither another converter nor a function body.
    """
    if string_inputs:
        name = schema.inputs[min(min(string_inputs), len(schema.inputs) - 1)].name
        raise AotcError("onnx-dtype", f"{proto.op_type} of strings is not supported: {name} is a tensor of strings")
    text = f"{proto.op_type} needs a tensor of strings as an input"
    is_of_numbers = _has_function_body(schema) or converter_of(domain, proto.op_type, of_strings=True) is None
    require("onnx-dtype", is_of_numbers, text)


def _has_function_body(schema: Any) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)


def _is_deprecated_without_function_body(schema: Any) -> bool:
    """Return True if an operator is removed in this version: deprecated and without a function
    body.

    ONNX Runtime still runs a deprecated operator that is defined as a function, such as
    GroupNormalization of version 18.
    """
    return bool(schema.deprecated) and not _has_function_body(schema)


def _is_supported_operator(op_type: str, domain: str, schema: Any) -> bool:
    """Return True if an operator with this schema (None: it has none) has a converter for some inputs, or is
    defined by a function.
    """
    if schema is None or _is_deprecated_without_function_body(schema):
        return False
    converters = (converter_of(domain, op_type, of_strings=of_strings) for of_strings in (False, True))
    return _has_function_body(schema) or any(converter is not None for converter in converters)


def _unsupported_operator_error(proto: NodeProto, domain: str, opsets: Mapping[str, int], schema: Any) -> AotcError:
    """Return the AotcError for an ONNX operator that is not supported, with the reason."""
    name = f"{domain}::{proto.op_type}" if domain else proto.op_type
    if domain not in opsets:
        return AotcError("onnx-op", f"operator {name}: the model does not import the domain {domain!r}")
    if domain.startswith(microsoft_operator_schemas.PROCESSOR_DOMAIN):
        text = f"operator {name} is not supported: ONNX Runtime wrote the model for one processor"
        hint = "save the optimized model at the level ORT_ENABLE_EXTENDED, or give the original one"
        return AotcError("onnx-op", text, hint=hint)
    if schema is None and domain == microsoft_operator_schemas.DOMAIN:
        why = "is not supported"
    elif schema is None:
        why = f"is not defined in version {opsets[domain]} of {domain or 'ai.onnx'}"
    elif _is_deprecated_without_function_body(schema):
        why = f"was removed in version {schema.since_version} of {domain or 'ai.onnx'}"
    else:
        why = f"(opset {opsets[domain]}) is not supported"
    return AotcError("onnx-op", f"operator {name} {why}", hint="`aotc ops` lists the supported operators")


@g.replace_graph_prefix_of_error_codes("onnx")
def from_onnx(
    model: str | Path | ModelProto,
    *,
    shape: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, DimSpecification] | None = None,
    name: str | None = None,
    has_loops: bool = True,
    seed: int | None = None,
) -> IRModule:
    """Convert an ONNX model (a path or a ModelProto; operator sets 1 to the newest) to a module.

    shape  static shapes for inputs with dynamic dimensions, by input name
    dims   values for symbolic dimensions, or ranges such as (1, 512), by symbol
    name   name of the model in source locations; None for its file name
    has_loops  False to unroll each Loop whose trip count and conditions are known, for targets
               that have no loops around kernels; another Loop becomes a function
    seed   seed of random operators that state none, from 0 to 2**63 - 1; see `ops_random`

    The parameters of @main are the inputs of the graph without initializers, under their ONNX
    names; initializers become constants. `attrs["output_names"]` holds the names of the outputs;
    several outputs are returned as a tuple. Declared shapes of intermediate and output tensors are
    never relied on.

    Raises AotcError listing every problem of the model: see `read_model` and `resolve_input_types`;
    and every node that cannot be converted, with its operator, version and name.
    """
    loaded, dims = with_inputs_as_tensors(_read_named_model(model, name), dict(dims or {}))
    graph = loaded.proto.graph
    fixed = load.initializer_names(graph)
    inputs = [v for v in graph.input if v.name not in fixed]
    types = resolve_input_types(loaded, inputs, dict(shape or {}), dims)
    local = {(f.domain, f.name, getattr(f, "overload", "")): f for f in loaded.proto.functions}
    params = {n: Var(n, ty, Span(loaded.source, node=n)) for n, ty in types.items()}
    problems = Problems("onnx-node", hint_on_options_to_fix_dims(types))
    conversion = _Conversion(loaded, local, problems, has_loops, random_keys=keys_of_random_nodes(seed))
    conversion.strings.update(params[v.name] for v in inputs if is_string_input(v))
    scope = _Scope(loaded.opsets, ChainMap(dict(params)))
    with (
        running_or_new_budget_scope(),
        collect_size_conditions() as conditions,
        collect_size_operands(params, operand_ranges(dims, inputs)) as operands,
    ):
        if local:
            check_recursion_and_expanded_node_count(graph, local, loaded.source)
        conversion.convert_graph(graph, scope)
        body, output_names, string_outputs = _main_function_body(conversion, graph, scope)
    operands.require_known_names_of_found_sizes()
    main = Function(params.values(), with_sizes_found_before_use(body, operands.found), span=Span(loaded.source))
    global_functions = {n: _with_found_sizes(f, operands) for n, f in conversion.global_functions.items()}
    functions = _used_functions(main, global_functions)
    optional_attributes = {
        STRING_INPUTS_ATTRIBUTE: tuple(v.name for v in inputs if is_string_input(v)),
        STRING_OUTPUTS_ATTRIBUTE: tuple(string_outputs),
        SIZE_CONDITIONS_ATTRIBUTE: tuple(conditions),
        **operands.module_attributes,
    }
    attributes = {name: value for name, value in optional_attributes.items() if value}
    return IRModule({"main": main, **functions}, {"output_names": tuple(output_names), **attributes})


def _with_found_sizes(function: Function, operands: SizeOperands) -> Function:
    """Return the function of a loop in which calls that depend on a size come after the call that finds it, if this
    call is in the loop as well.
    """
    params = set(function.params)
    found = {name: call for name, call in operands.found.items() if not params.isdisjoint(free_vars(call))}
    body = with_sizes_found_before_use(function.body, found)
    return function if body is function.body else function.with_body(body)


def _read_named_model(model: str | Path | ModelProto, name: str | None) -> LoadedModel:
    loaded = load.read_model(model)
    return loaded if name is None else LoadedModel(loaded.proto, name, loaded.opsets, loaded.folder)


def _used_functions(main: Function, functions: Mapping[str, Function]) -> dict[str, Function]:
    """Return the global functions that @main calls, also through others."""
    used: dict[str, Function] = {}
    names = global_uses(main)
    while names:
        name = names.pop()
        if name not in used:
            used[name] = functions[name]
            names += global_uses(used[name])
    return dict(sorted(used.items()))


def _main_function_body(conversion: _Conversion, graph: GraphProto, scope: _Scope) -> tuple[Expr, list[str], list[str]]:
    """Return the outputs of the ONNX graph as the body of @main, one expression or a tuple, their
    names, and the names of those that are strings. The elements of a sequence are outputs of their own.
    Raises AotcError with all problems found during the conversion.
    """
    problems, span = conversion.problems, Span(conversion.loaded.source)
    outputs: list[Expr] = []
    names: list[str] = []
    string_outputs: list[str] = []
    for value in graph.output:
        with problems.collect_errors_at(span):
            found = conversion.tensor_expression(value.name, scope)
            for name, tensor in _tensors_of_output(value.name, found, conversion.sequences.of(found)):
                is_string = tensor in conversion.strings
                if tensor is found or name.startswith(f"{value.name}["):
                    _check_output_dtype_and_warn_on_shape(value, tensor, is_string)
                string_outputs += [name] * is_string
                outputs.append(tensor)
                names.append(name)
            continue
        if not problems.diagnostics:
            problems.add_problem("onnx-undefined", f"output {value.name!r} is never computed", span)
    if not graph.output:
        problems.add_problem("onnx-output", "the graph has no outputs", span)
    problems.raise_collected_problems()
    return (outputs[0] if len(outputs) == 1 else Tuple(outputs)), names, string_outputs


def _tensors_of_output(name: str, value: Expr, sequence: RunTimeSequence | None) -> list[tuple[str, Expr]]:
    """Return the tensors of an output of the model with their names: the elements of a sequence, or one
    tensor. Raises AotcError (code "onnx-output") if there is none.

    sequence    the value as a sequence of run-time length; None if it is none
    """
    if sequence is not None:
        return [(name + suffix, tensor) for suffix, tensor in tensors_of_output(sequence)]
    if not isinstance(type_of(value), TupleType):
        return [(name, value)]
    text = f"output {name!r} is an optional value that is absent"
    require("onnx-output", not is_absent(value), text)
    elements = sequence_elements(value)
    require("onnx-output", bool(elements), f"output {name!r} is a sequence without elements")
    return [(element_name(name, k), element) for k, element in enumerate(elements)]


def _check_output_dtype_and_warn_on_shape(declared_output: Any, result: Expr, is_string: bool) -> None:
    """Raise AotcError if the declared element type of an output of the model, or of the elements of a
    sequence, differs from the computed one; log a warning if its declared shape differs.
    """
    ty = result.checked_type
    assert isinstance(ty, TensorType)
    declared = tensor_type_of_value(declared_output.type)
    computed = "string" if is_string else str(ty.dtype)
    stated = computed
    if declared.elem_type == TensorProto.STRING:
        stated = "string"
    elif declared.elem_type:
        stated = str(load.dtype_of_onnx_type(declared.elem_type, f"output {declared_output.name!r}"))
    text = f"output {declared_output.name!r} is declared {stated}, the graph computes {computed}"
    require("onnx-output", stated == computed, text)
    if is_string:
        # the last dimension of slots is no dimension of the model
        ty = TensorType(ty.shape[:-1], ty.dtype)
    dims = [d.dim_value if d.HasField("dim_value") else None for d in declared.shape.dim]
    shaped = declared.HasField("shape") and ty.is_static
    if shaped and (len(dims) != ty.rank or any(d not in (None, s) for d, s in zip(dims, ty.shape, strict=True))):
        name = escape_unsafe_text(declared_output.name)
        _LOG.warning("output %r is declared with shape %s; it is %s", name, dims, ty.static_shape)
