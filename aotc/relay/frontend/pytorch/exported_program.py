# SPDX-License-Identifier: Apache-2.0
"""Convert a program of torch.export to the graph IR.

Input: an ExportedProgram. Output: a module, whose variables have the names of the program's inputs,
and its parameters under their names in the state dictionary. The program is functionalized first;
operators without a converter are decomposed into core ATen operators.

    module, params = from_exported(torch.export.export(net, (x,)))
"""

import logging
import math
import operator
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._python_dispatch import TorchDispatchMode

from aotc.ir import (
    AotcError,
    AotcTypeError,
    Array,
    DimRange,
    DimSpecification,
    Span,
    SymDim,
    TensorType,
    bind_ranges,
    bound_dim,
    did_you_mean_hint,
    dim_size_or_range,
    require,
    running_or_new_budget_scope,
)
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import Problems
from aotc.relay.frontend.found_sizes import with_sizes_found_before_use
from aotc.relay.frontend.pytorch.changed_tensors import (
    CHANGED_BUFFER_KINDS,
    CHANGED_TENSOR_KINDS,
    changed_constants_as_buffers,
    names_of_module_tensors,
    require_unshared_changed_tensors,
    require_unshared_memory,
    with_conversions_before_copies,
)
from aotc.relay.frontend.pytorch.converter_table import converter_of, plain_operator_name
from aotc.relay.frontend.pytorch.higher_order_operators import HIGHER_ORDER_CONVERTERS
from aotc.relay.frontend.pytorch.inplace_and_out_forms import inplace_out_or_functional_form
from aotc.relay.frontend.pytorch.operator_conversion import (
    FAILED_NODE_VALUE,
    convert_operator_call,
    flatten_output_tensors,
    qualified_operator_name,
    require_converted_value,
    stack_trace_source_line,
    unsupported_operator_error,
)
from aotc.relay.frontend.pytorch.ops_complex import COMPLEX_OPS, ComplexTensor
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import (
    PYTHON_NUMBER_FUNCTIONS,
    TorchValue,
    dtype_name_of_torch_dtype,
    to_python_number,
    torch_tensor_to_array,
)
from aotc.relay.frontend.size_operands import collect_size_operands, is_name_of_found_size
from aotc.relay.graph_api import Constant, Expr, Function, IRModule, Tuple, Var

_LOG: Final = logging.getLogger(__name__)
#: Operators that check values, or that state what is known of sizes; they compute nothing.
_IGNORED_OPERATORS: Final = {
    "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_functional_assert_async",
    "_functional_assert_scalar", "_functional_sym_constrain_range", "_functional_sym_constrain_range_for_size",
    "_make_dep_token", "sym_constrain_range", "sym_constrain_range_for_size",
}  # fmt: skip


def functionalize_and_decompose(program: Any) -> Any:
    """Return an exported program without in-place operators, and with operators that have no
    converter decomposed as far as PyTorch can.

    Raises AotcError before the slow decomposition if there are operators that PyTorch cannot
    decompose.
    """
    if not any(map(_needs_decomposition, program.graph.nodes)):
        return program
    program = with_conversions_before_copies(changed_constants_as_buffers(program))
    defaults = torch.export.default_decompositions()
    _check_operators_convertible(program, defaults)
    # operators that have a converter or have no decomposition remain unchanged
    table = {operator: rule for operator, rule in defaults.items() if is_operator_without_converter(operator)}
    try:
        return program.run_decompositions(table)
    except Exception as error:  # torch raises various exceptions for nodes whose arguments and shapes are inconsistent
        _LOG.debug("torch cannot decompose the program", exc_info=True)
        require_unshared_changed_tensors(program)
        text = "torch cannot follow the program: its nodes do not fit one another"
        hint = "export the module again"
        if any(node.target is torch.ops.higher_order.cond for node in program.graph.nodes):
            hint = "a branch of torch.cond must not create tensors from constants, or change tensors in place: "
            hint += "make the constants buffers of the module, and export it again"
        raise AotcError("torch-program", text, hint=hint) from error


def _check_operators_convertible(program: Any, decompositions: Mapping[Any, Any]) -> None:
    """Raise AotcError listing all operators of an exported program that have no converter and that
    PyTorch cannot decompose.
    """
    problems = Problems("torch-node")
    needed = _nodes_that_results_need(program.graph)
    for node in program.graph.nodes:
        if node not in needed or not is_operator_without_converter(node.target):
            continue
        with problems.collect_errors_at(Span("exported program", node=node.name), stack_trace_source_line(node.meta)):
            for target in (node.target, *_operators_in_decomposition_of_node(node)):
                if is_operator_without_converter(target) and not is_decomposable(target, decompositions):
                    raise unsupported_operator_error(qualified_operator_name(target._schema))
    problems.raise_collected_problems()


def _nodes_that_results_need(graph: Any) -> set[Any]:
    """Return the calls in a graph on which its outputs and its writes to tensors depend, and not only
    its assertions.
    """
    needed: set[Any] = set()
    for node in reversed(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        name = "" if schema is None else schema.name.removeprefix("aten::")
        writes = schema is not None and schema.is_mutable and name not in _IGNORED_OPERATORS
        if node.op == "output" or node in needed or writes:
            needed.add(node)
            needed.update(node.all_input_nodes)
    return {node for node in needed if node.op == "call_function"}


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that records the operators that PyTorch runs inside its context, in `operators`."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "prim":  # these read properties of tensors, such as their device
            self.operators.append(func)
        return func(*args, **(kwargs or {}))


def _operators_in_decomposition_of_node(node: Any) -> list[Any]:
    """Return the operators of which PyTorch composes the operator of a node, found by running its
    decomposition on the node's example tensors, which hold no values.
    """
    if not node.target._can_decompose():
        return []
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: arg.meta.get("val"))
    recorder = _Recorder()
    with recorder:
        try:
            node.target.decompose(*args, **kwargs)
        except Exception:  # torch raises various exceptions; if it matters, run_decompositions fails later
            _LOG.debug("torch cannot compose %s", node.target, exc_info=True)
    return recorder.operators


def is_decomposable(target: Any, decompositions: Mapping[Any, Any]) -> bool:
    """Return True if PyTorch has a decomposition of an operator, or of the functional operator of
    which it is an in-place or `out=` form.
    """
    schema = inplace_out_or_functional_form(target._schema).functional
    packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"), None)
    functional = getattr(packet, schema.overload_name or "default", target)
    return any(op in decompositions or op._can_decompose() for op in (target, functional))


def _needs_decomposition(node: Any) -> bool:
    """Return True if a node of an exported program must be functionalized or decomposed before
    conversion: it works in place, contains a graph or has no converter.
    """
    if node.op != "call_function":
        return node.op not in ("placeholder", "output")
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable) or is_operator_without_converter(target)
    return target is not operator.getitem and target not in PYTHON_NUMBER_FUNCTIONS


def is_operator_without_converter(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = target._schema.name.removeprefix("aten::")
    if name in _IGNORED_OPERATORS or plain_operator_name(name, target._schema.overload_name) in COMPLEX_OPS:
        return False
    return converter_of(name, target._schema.overload_name) is None


def _example_tensor_dims(
    tensor: Any, program: Any, dim_values: Mapping[str, int | DimRange]
) -> tuple[int | SymDim, ...]:
    """Return the shape of an example tensor of an exported program. A dynamic dimension becomes the
    number that follows from the values `dim_values` of its symbols, or a SymDim with its symbol or
    formula, such as 2*s0, and the bounds that the program and the ranges in `dim_values` give.

    Raises AotcError (code "torch-dims") if values make a dimension negative.
    """
    sizes = {name: value for name, value in dim_values.items() if isinstance(value, int)}
    ranges = {name: value for name, value in dim_values.items() if isinstance(value, DimRange)}
    intervals = {str(symbol): _interval_of_constraint(limits) for symbol, limits in program.range_constraints.items()}
    dims: list[int | SymDim] = []
    for dim in tensor.shape:
        if isinstance(dim, int):
            dims.append(dim)
            continue
        try:
            bound = bound_dim(SymDim(str(dim.node.expr)), intervals).bind(sizes)
            dims.append(bind_ranges(bound, ranges) if isinstance(bound, SymDim) else bound)
        except ValueError as error:
            raise AotcError("torch-dims", f"an input cannot have this shape: {error}") from error
    return tuple(dims)


def _interval_of_constraint(limits: Any) -> tuple[int | float, int | float]:
    """Return the least and the greatest value that a range constraint of a program allows."""
    least = int(limits.lower) if limits.lower.is_number and limits.lower > 0 else 0
    return least, int(limits.upper) if limits.upper.is_number and limits.upper < 1 << 31 else math.inf


def _checked_dim_values(program: Any, dim_values: Mapping[str, DimSpecification]) -> dict[str, int | DimRange]:
    """Return the sizes and ranges of symbols, and of sizes that a run finds, such as "found0".

    Raise AotcError (code "torch-dims") if `dim_values` has a symbol that the shape of no input has,
    something that is neither a size nor a range, or sizes outside the range that the program allows.
    """
    values: dict[str, int | DimRange] = {}
    stated = _symbols_of_inputs(program)
    bounds = {str(symbol): limits for symbol, limits in program.range_constraints.items() if str(symbol) in stated}
    for name, specification in dim_values.items():
        is_found = name not in bounds and is_name_of_found_size(name)
        if name not in bounds and not is_found:
            hint = did_you_mean_hint(name, bounds) or f"dynamic dimensions: {', '.join(bounds) or 'none'}"
            raise AotcError("torch-dims", f"the program has no dynamic dimension {name!r}", hint=hint)
        try:
            value = values[name] = dim_size_or_range(specification)
        except ValueError as error:
            raise AotcError("torch-dims", f"dimension {name!r}: {error}") from error
        if is_found:
            continue
        ends = (value.least, value.most) if isinstance(value, DimRange) else (value,)
        text = f"{name} = {value} is outside {bounds[name].lower} to {bounds[name].upper}"
        require("torch-dims", all(end in bounds[name] for end in ends), text)
    return values


def _symbols_of_inputs(program: Any) -> set[str]:
    """Return the symbols in the shapes of the inputs of an exported program, without those that a run finds."""
    examples = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    dims = [dim for example in examples if isinstance(example, torch.Tensor) for dim in example.shape]
    return {str(symbol) for dim in dims if not isinstance(dim, int) for symbol in dim.node.expr.free_symbols}


def _placeholder_values(
    program: Any, dim_values: Mapping[str, int | DimRange], keep_params: bool, problems: Problems
) -> tuple[dict[str, TorchValue], list[Var], dict[str, Any]]:
    """Return the values of all placeholders (inputs, parameters, buffers) of an exported program by
    name, the variables among them, and the arrays of those that are not the user's inputs: the
    parameters and buffers if `keep_params` is True, otherwise the buffers that the program changes.
    """
    examples = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    values: dict[str, TorchValue] = {}
    users: list[Var] = []
    weights: list[Var] = []
    params: dict[str, Any] = {}
    shared: dict[int, TorchValue] = {}
    names = names_of_module_tensors(program)
    changed = {spec.target for spec in program.graph_signature.output_specs if spec.kind in CHANGED_BUFFER_KINDS}
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        values[name] = FAILED_NODE_VALUE
        with problems.collect_errors_at(Span("exported program", node=spec.target or name)):
            if spec.kind == InputKind.USER_INPUT:
                values[name] = _user_input_value(spec, examples.get(name), program, dim_values)
                users += [values[name]] if isinstance(values[name], Var) else []
                continue
            tensor = program.state_dict.get(spec.target, program.constants.get(spec.target))
            fits = isinstance(tensor, torch.Tensor)
            text = f"{spec.kind.name.lower()} {spec.target} is no tensor"
            require("torch-inputs", fits, text)
            if spec.target in changed:
                require_unshared_memory(tensor, spec.target, program)
                state = names[spec.target]
                params[state] = torch_tensor_to_array(tensor)
                values[name] = Var(state, Constant(params[state]).checked_type)
                weights.append(values[name])
                continue
            if fits and tensor.is_complex():
                parts = (tensor.real, tensor.imag)
                values[name] = ComplexTensor(*(Constant(torch_tensor_to_array(p)) for p in parts))
                continue
            if id(tensor) not in shared:
                constant = shared[id(tensor)] = Constant(torch_tensor_to_array(tensor))
                if keep_params and spec.kind != InputKind.CONSTANT_TENSOR:
                    shared[id(tensor)] = Var(names[spec.target], constant.checked_type)
                    weights.append(shared[id(tensor)])
                    params[names[spec.target]] = constant.data
            values[name] = shared[id(tensor)]
    return values, users + weights, params


def _user_input_value(spec: Any, example: Any, program: Any, dim_values: Mapping[str, int | DimRange]) -> TorchValue:
    if isinstance(example, torch.Tensor):
        if example.is_complex():
            text = f"input {spec.arg.name} has the data type {str(example.dtype).removeprefix('torch.')}"
            hint = "make it a real tensor, and call torch.view_as_complex in the module"
            raise AotcError("torch-dtype", text, hint=hint)
        dtype = dtype_name_of_torch_dtype(example.dtype) or ""
        return Var(spec.arg.name, TensorType(_example_tensor_dims(example, program, dim_values), dtype))
    value = getattr(spec.arg, "value", None)
    if not isinstance(value, (int, float, bool, str, type(None))):
        raise AotcError("torch-inputs", f"input {spec.arg.name} is not a tensor")
    return value


def _convert_call_node(node: Any, values: Mapping[str, TorchValue], functions: dict[str, Function]) -> TorchValue:
    """Convert a call; loops are added to `functions`, the global functions of the module."""
    args, kwargs = torch.fx.node.map_arg(
        (node.args, node.kwargs), lambda arg: require_converted_value(values[arg.name])
    )
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        if target is torch.ops.aten.as_strided.default or target is torch.ops.aten.as_strided_copy.default:
            _require_contiguous(node.args[0])
        if target._schema.name.removeprefix("aten::") in _IGNORED_OPERATORS:
            return None
        return convert_operator_call(target._schema, args, kwargs)
    if target is operator.getitem:
        return args[0][args[1]]
    if target in PYTHON_NUMBER_FUNCTIONS:
        return target(*map(to_python_number, args), **kwargs)
    name = str(getattr(target, "__name__", target))
    convert = HIGHER_ORDER_CONVERTERS.get(name) if isinstance(target, torch._ops.HigherOrderOperator) else None
    if convert is None:
        raise unsupported_operator_error(name)
    require("torch-op", any(isinstance(a, torch.fx.GraphModule) for a in args), f"{name} is called without a graph")
    graphs = [partial(_convert_subgraph, a, functions) if isinstance(a, torch.fx.GraphModule) else a for a in args]
    return convert(functions, *graphs, **kwargs)


def _require_contiguous(node: Any) -> None:
    """Raise AotcError (code "torch-op") unless PyTorch holds the tensor of a node contiguously at the
    beginning of its memory.
    """
    tensor = node.meta.get("val")
    is_contiguous = isinstance(tensor, torch.Tensor) and tensor.is_contiguous() and not tensor.storage_offset()
    text = "as_strided of a tensor that is a part or a permutation of another one is not supported"
    require("torch-op", is_contiguous, text)


def _convert_subgraph(module: Any, functions: dict[str, Function], operands: Sequence[TorchValue]) -> list[Expr]:
    """Convert a graph inside an exported program, given the values of its inputs; return its tensors."""
    given, values = iter(operands), dict[str, TorchValue]()
    results: list[Expr] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node.name] = next(given)
        elif node.op == "get_attr":
            values[node.name] = getattr(module, node.target)
        elif node.op == "output":
            outputs = torch.fx.node.map_arg(node.args[0], lambda arg: require_converted_value(values[arg.name]))
            results = flatten_output_tensors(outputs)
        elif node.op == "call_function":
            values[node.name] = _convert_call_node(node, values, functions)
        else:
            raise unsupported_operator_error(f"{node.op} {node.target}")
    return results


def input_types_of_exported(program: Any, dims: Mapping[str, DimSpecification]) -> dict[str, TensorType]:
    """Return the types of the tensors that a user of an exported program gives, by name, with sizes and ranges of
    dimensions inserted. The calls of the program are not converted.

    Raise AotcError as `from_exported` does for an input or a dimension.
    """
    problems = Problems("torch-node")
    prepared = functionalize_and_decompose(program)
    _, variables, _ = _placeholder_values(prepared, _checked_dim_values(program, dims), False, problems)
    problems.raise_collected_problems()
    kept = set(names_of_module_tensors(prepared).values())
    types = {v.name: v.checked_type for v in variables if v.name not in kept}
    return {name: ty for name, ty in types.items() if isinstance(ty, TensorType)}


@g.replace_graph_prefix_of_error_codes("torch")
def from_exported(
    program: Any,
    keep_params_as_input: bool = False,
    unwrap_unit_return_tuple: bool = True,
    dims: Mapping[str, DimSpecification] | None = None,
) -> tuple[IRModule, dict[str, Array]]:
    """Convert an ExportedProgram to a module and its parameters; see
    `aotc.relay_api.frontend.from_exported_program`.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        hint = "torch.export.export(module, example_inputs) makes one; from_pytorch takes ScriptModules"
        text = f"from_exported_program takes a torch.export.ExportedProgram, not {type(program).__name__}"
        raise AotcTypeError("torch-module", text, hint=hint)
    problems = Problems("torch-node")
    dim_values = _checked_dim_values(program, dims or {})
    prepared = functionalize_and_decompose(program)
    functions: dict[str, Function] = {}
    with running_or_new_budget_scope(), ExitStack() as conversion:
        values, variables, params = _placeholder_values(prepared, dim_values, keep_params_as_input, problems)
        needed = _nodes_that_results_need(prepared.graph)
        ranges = {name: value for name, value in dim_values.items() if is_name_of_found_size(name)}
        operands = conversion.enter_context(collect_size_operands({v.name: v for v in variables}, ranges))
        for node in prepared.graph.nodes:
            if node.op in ("placeholder", "output") or (node.op == "call_function" and node not in needed):
                continue
            values[node.name] = FAILED_NODE_VALUE
            with problems.collect_errors_at(
                Span("exported program", node=node.name), stack_trace_source_line(node.meta)
            ):
                if node.op == "get_attr" and hasattr(prepared.graph_module, node.target):
                    values[node.name] = getattr(prepared.graph_module, node.target)
                    continue
                if node.op != "call_function":
                    raise unsupported_operator_error(f"{node.op} {node.target}")
                values[node.name] = _convert_call_node(node, values, functions)
        outputs, names = _program_outputs(prepared, values, problems)
    operands.require_known_names_of_found_sizes()
    body = outputs[0] if len(outputs) == 1 and unwrap_unit_return_tuple else Tuple(outputs)
    body = with_sizes_found_before_use(body, operands.found)
    attrs = {"output_names": tuple(names)} if len(set(names)) == len(names) else {}
    return IRModule({"main": Function(variables, body), **functions}, attrs), params


def _program_outputs(
    program: Any, values: Mapping[str, TorchValue], problems: Problems
) -> tuple[list[Expr], Sequence[str]]:
    """Return the outputs of an exported program and their names: the results of the module, then
    the new contents of the buffers and inputs that it changes.
    """
    outputs: list[Expr] = []
    names: list[str] = []
    tensors = names_of_module_tensors(program)
    specs = program.graph_signature.output_specs
    results = [spec for spec in specs if spec.kind == OutputKind.USER_OUTPUT]
    for spec in [*results, *(spec for spec in specs if spec.kind in CHANGED_TENSOR_KINDS)]:
        with problems.collect_errors_at(Span("exported program", node="output")):
            name = getattr(spec.arg, "name", None)
            outputs += flatten_output_tensors(
                require_converted_value(values[str(name)]) if name in values else getattr(spec.arg, "value", None)
            )
            changed = tensors.get(spec.target, spec.target)
            names.append(f"{changed}_out" if spec.kind in CHANGED_TENSOR_KINDS else str(name))
    problems.raise_collected_problems()
    require("torch-output", bool(outputs), "the program returns no tensors")
    return outputs, names
