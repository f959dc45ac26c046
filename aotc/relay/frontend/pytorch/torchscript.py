# SPDX-License-Identifier: Apache-2.0
"""Convert a traced or scripted TorchScript graph to the graph IR, as from_pytorch of TVM's Relay
does.

Input: a ScriptModule and the names, shapes and dtypes of its inputs. Output: a module and its
parameters by name. Branches and loops are evaluated at compile time; in-place operators update the
tensors of which their argument is a view.

    module, params = from_script(torch.jit.trace(net, x), [("x", (1, 3, 224, 224))])
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

import torch

from aotc.ir import AotcError, AotcTypeError, AotcValueError, Array, Op, Span, SymDim, TensorType
from aotc.ir.compilation_work_and_memory_limits import current_budget, running_or_new_budget_scope
from aotc.relay.analysis import free_vars
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.error_collection import Problems
from aotc.relay.frontend.pytorch.converter_table import plain_operator_name
from aotc.relay.frontend.pytorch.inplace_and_out_forms import inplace_out_or_functional_form
from aotc.relay.frontend.pytorch.operator_conversion import (
    FAILED_NODE_VALUE,
    CustomConverter,
    call_custom_converter,
    convert_operator_call,
    flatten_output_tensors,
    qualified_operator_name,
    require_converted_value,
)
from aotc.relay.frontend.pytorch.tensor_alias_tracking import Memory
from aotc.relay.frontend.pytorch.torchscript_inputs import parse_input_infos
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import (
    TorchValue,
    UncomputedValue,
    dtype_name_of_torch_dtype,
    is_tensor,
    to_python_int,
    torch_tensor_to_array,
)
from aotc.relay.graph_api import Constant, Expr, Function, IRModule, Mutator, Tuple, Var, unused_name, with_checked_type

BUDGET_SUBJECT: Final = "the program, its loops unrolled,"


#: Operators, by the names of their converters, whose results depend on how their argument lies in memory, which
#: TorchScript does not state.
_OPERATORS_ON_MEMORY: Final = {"as_strided"}
#: Operators that return a view or a copy, depending on the strides of their argument.
_VIEW_OR_COPY_OPERATORS: Final = {"contiguous", "reshape", "reshape_as", "flatten", "ravel", "to", "type_as"}


@dataclass(slots=True)
class _Conversion:
    """The state of the conversion of one TorchScript graph; values are identified by their
    TorchScript names (`debugName`).
    """

    root: Any
    custom: Mapping[str, CustomConverter]
    separator: str
    names: dict[str, str]
    consumers: dict[str, str]
    memory: Memory = field(default_factory=Memory)
    params: dict[str, Any] = field(default_factory=dict)
    vars: dict[tuple[Any, ...], Var] = field(default_factory=dict)
    problems: Problems = field(default_factory=lambda: Problems("torch-node"))

    def require_converted_torchscript_value(self, torchscript_value: Any) -> TorchValue:
        return require_converted_value(self.memory.values[torchscript_value.debugName()])

    def converted_inputs_of_node(self, node: Any) -> list[TorchValue]:
        return [self.require_converted_torchscript_value(v) for v in node.inputs()]

    def convert_block(self, block: Any) -> None:
        """Convert the nodes of a TorchScript graph or block in order; problems are recorded."""
        for node in block.nodes():
            for out in node.outputs():
                self.memory.bind_name_and_rename_old_value(out.debugName(), FAILED_NODE_VALUE)
            with self.problems.collect_errors_at(self.torchscript_node_span(node), _node_source_line(node)):
                self.convert_node(node)

    def torchscript_node_span(self, node: Any) -> Span:
        first = next(iter(node.outputs()), None)
        if node.kind() == "prim::GetAttr":
            return Span(f"{self.consumers.get(node.output().debugName(), 'self')}.{node.s('name')}")
        return Span(self.names.get(first.debugName(), node.kind()) if first is not None else node.kind())

    def convert_node(self, node: Any) -> None:
        current_budget().spend_compile_time_budget("compile.max_nodes", 1, BUDGET_SUBJECT)
        kind = node.kind().removeprefix("prim::")
        special, plain = _PRIM_CONVERTERS.get(kind), _PRIM_VALUE_FUNCTIONS.get(kind)
        if special is not None:
            special(self, node)
            return
        args = self.converted_inputs_of_node(node)
        if plain is not None:
            self.bind_node_results(node, plain(*args))
            self.record_container_elements_or_alias(node, kind)
            return
        custom = self.custom.get(node.kind())
        if custom is not None:
            self.bind_node_results(
                node, call_custom_converter(custom, node.kind(), args, [str(v.type()) for v in node.inputs()])
            )
            return
        if node.kind().startswith("prim::") or node.schema() == "(no schema)":
            raise AotcError("torch-op", f"{node.kind()} is not supported")
        schema = torch._C.parse_schema(node.schema())
        if plain_operator_name(schema.name.rpartition("::")[2], schema.overload_name) in _OPERATORS_ON_MEMORY:
            hint = "export the module by torch.export: exported programs state how tensors lie in memory"
            raise AotcError("torch-op", f"{node.kind()} is not supported in TorchScript", hint=hint)
        result = convert_operator_call(schema, args, {})
        self.bind_node_results(node, result)
        self.record_result_views_or_write_in_place(node, schema, args)

    def bind_node_results(self, node: Any, result: TorchValue) -> None:
        """Bind the results of a TorchScript node to the names of its outputs."""
        outputs = [v.debugName() for v in node.outputs()]
        results = [result] if len(outputs) == 1 else result
        for name, value in zip(outputs, results, strict=False):
            self.memory.values[name] = value

    # --- aliases

    def record_container_elements_or_alias(self, node: Any, kind: str) -> None:
        """Record the elements of a container that a TorchScript node constructs, or the alias that
        it creates.
        """
        (out,) = (v.debugName() for v in node.outputs())
        inputs = [v.debugName() for v in node.inputs()]
        if kind.endswith("Construct"):
            self.memory.record_container_elements(out, inputs, in_order=kind != "DictConstruct")
        elif kind in ("unchecked_cast", "data"):
            self.memory.record_view_of_parent_value(out, inputs[0], None)
        elif kind == "TupleIndex":
            self.record_element_alias(out, inputs[0], int(self.memory.values[inputs[1]]))

    def record_element_alias(self, out: str, container: str, index: Any) -> None:
        """Record that the value `out` is the element `index` of a list, tuple or dictionary."""
        parts = self.memory.container_element_names(container)
        if parts is not None and isinstance(index, int):
            self.memory.record_view_of_parent_value(out, parts[index], None)
        else:
            self.memory.record_view_of_parent_value(out, container, lambda values: values[index])

    def record_result_views_or_write_in_place(self, node: Any, schema: Any, args: list[TorchValue]) -> None:
        """Record the views that a TorchScript operator returns; for an in-place operator, write its
        result to the tensors that it modifies.
        """
        outputs = [v.debugName() for v in node.outputs()]
        inputs = [v.debugName() for v in node.inputs()]
        if inplace_out_or_functional_form(schema).written:
            self.write_in_place_results(schema, inputs, outputs, args)
            return
        plain = schema.name.removeprefix("aten::")
        if plain == "__getitem__" and isinstance(args[0], (list, tuple, dict)):
            self.record_element_alias(outputs[0], inputs[0], args[1])
            return
        if any(isinstance(a, (list, tuple, dict)) for a in args):
            containers = [name for name in outputs if isinstance(self.memory.values[name], (list, tuple, dict))]
            for name in containers:
                self.memory.record_container_elements(name, inputs, in_order=False)
        shares = [k for k, a in enumerate(schema.arguments) if a.alias_info]
        certain = bool(shares) and any(r.alias_info for r in schema.returns) and plain not in _VIEW_OR_COPY_OPERATORS
        if not certain:
            result: TorchValue = self.memory.values[outputs[0]] if outputs and plain != "clone" else None
            same = is_tensor(result) and is_tensor(args[0]) and g.dtype(result) == g.dtype(args[0])
            if same and (plain in _VIEW_OR_COPY_OPERATORS or result is args[0]):
                self.memory.record_view_of_parent_value(outputs[0], inputs[0], None, is_certainly_view=False)
            return
        k = shares[0]
        for name in outputs:
            self.memory.record_view_of_parent_value(name, inputs[k], _operator_as_function_of_argument(schema, args, k))

    def write_in_place_results(
        self, schema: Any, inputs: list[str], outputs: list[str], args: list[TorchValue]
    ) -> None:
        """Write the results of an in-place operator to its written arguments, and make the outputs
        aliases of these.
        """
        memory, form = self.memory, inplace_out_or_functional_form(schema)
        for number, out in zip_longest(form.written, outputs):
            if number is None:
                raise AotcError("torch-op", f"{qualified_operator_name(schema)} is not supported")
            target = memory.first_name_of_aliased_tensor(inputs[number])
            if form.changes:
                memory.replace_tensor_by_view_of_its_memory(
                    target, _operator_as_function_of_argument(form.functional, args, number)
                )
            else:
                value = FAILED_NODE_VALUE if out is None else memory.values[out]
                _check_written_shape(
                    schema,
                    args[number],
                    value,
                    number in form.outs and not memory.may_share_memory_with_other_tensors(target),
                )
                memory.write_in_place_and_update_views(target, value)
            if schema.name == "aten::append":
                memory.elements[target] = (*memory.elements.get(target, ()), inputs[1])
            if out is not None:
                memory.values[out] = memory.values[target]
                memory.record_view_of_parent_value(out, target, None)

    # --- attributes of modules

    def convert_get_attribute(self, node: Any) -> None:
        """Convert prim::GetAttr, access to an attribute of a module: a submodule or number becomes
        a Python value, a parameter becomes a variable named after the first operator that reads it.
        """
        owner, name = self.require_converted_torchscript_value(node.input()), node.s("name")
        value, out = getattr(owner, name), node.output().debugName()
        if isinstance(value, torch.Tensor):
            self.memory.fixed[out] = name
            value = self.find_or_create_parameter_variable(out, name, value)
        elif isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            value = [self.find_or_create_parameter_variable(out, name, v) for v in value]
        self.memory.values[out] = value

    def find_or_create_parameter_variable(self, out: str, name: str, tensor: Any) -> Var:
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.storage_offset())
        if key in self.vars and tensor.numel():
            return self.vars[key]
        stem = f"{self.consumers.get(out, self.names.get(out, 'self'))}{self.separator}{name}"
        label = unused_name(stem, self.params)
        array = torch_tensor_to_array(tensor)
        self.params[label] = array
        self.vars[key] = Var(label, TensorType(array.shape, str(dtype_name_of_torch_dtype(tensor.dtype))), Span(label))
        return self.vars[key]


def _node_source_line(node: Any) -> str:
    """Return the line of Python source of a TorchScript node for messages, or "" if it is not
    recorded.
    """
    text = str(node.sourceRange()).strip().splitlines()
    return f"in {text[0]}" if text and "(" in text[0] else ""


# --- nodes that are not operators


def _torch_tensors_to_constants(value: TorchValue) -> TorchValue:
    """Convert torch tensors, also in nested lists, to constants; other values are returned
    unchanged.
    """
    if isinstance(value, (list, tuple)):
        return [_torch_tensors_to_constants(v) for v in value]
    return g.constant(torch_tensor_to_array(value)) if isinstance(value, torch.Tensor) else value


def _operator_as_function_of_argument(
    schema: Any, args: Sequence[TorchValue], argument_index: int
) -> Callable[[TorchValue], TorchValue]:
    """Return a function that converts a call of a PyTorch operator with `args`, in which the
    function's parameter replaces the argument with the index `argument_index`.
    """

    def call_with_argument(value: TorchValue) -> TorchValue:
        return convert_operator_call(schema, [*args[:argument_index], value, *args[argument_index + 1 :]], {})

    return call_with_argument


def _check_written_shape(schema: Any, target: TorchValue, value: TorchValue, may_resize: bool) -> None:
    """Raise AotcError (code "torch-op") if the result of an in-place or `out=` operator and the
    tensor to which it is written have different shapes, unless `may_resize` is True.
    """
    if not is_tensor(target) or not is_tensor(value) or may_resize or g.dims(target) == g.dims(value):
        return
    text = (
        f"{qualified_operator_name(schema)} writes a result of shape "
        f"{g.dims(value)} to a tensor of shape {g.dims(target)}"
    )
    raise AotcError("torch-op", text, hint="write to a tensor of the shape of the result, or use the result itself")


def _convert_list_or_tuple_unpack_node(conversion: _Conversion, node: Any) -> None:
    items = list(conversion.converted_inputs_of_node(node)[0])
    outputs = [v.debugName() for v in node.outputs()]
    source = node.input().debugName()
    for k, (name, item) in enumerate(zip(outputs, items, strict=True)):
        conversion.memory.values[name] = item
        conversion.record_element_alias(name, source, k)


def _raise_error_of_raise_exception_node(conversion: _Conversion, node: Any) -> None:
    message = conversion.memory.values.get(next(iter(node.inputs())).debugName(), "")
    raise AotcError(
        "torch-raise", f"the TorchScript module reaches a raise statement for these input shapes: {message}"
    )


def _require_compile_time_truth_value(value: TorchValue) -> bool:
    if isinstance(value, Constant):
        return bool(value.data.reshape(-1)[0])
    if is_tensor(value) or isinstance(value, SymDim):
        hint = "torch.where chooses element by element"
        raise AotcError(
            "torch-dynamic", "a branch or loop that depends on a value computed at run time is not supported", hint=hint
        )
    return bool(value)


def _convert_if_node(conversion: _Conversion, node: Any) -> None:
    blocks = list(node.blocks())
    chosen = blocks[0 if _require_compile_time_truth_value(conversion.converted_inputs_of_node(node)[0]) else 1]
    conversion.convert_block(chosen)
    for out, value in zip(node.outputs(), chosen.outputs(), strict=True):
        _bind_alias(conversion, value.debugName(), out.debugName())


def _bind_alias(conversion: _Conversion, source: str, name: str) -> None:
    """Bind `name` to the value of `source`, as its alias, when the value enters or leaves a
    TorchScript block.
    """
    conversion.memory.bind_name_and_rename_old_value(name, conversion.memory.values[source])
    conversion.memory.record_view_of_parent_value(name, source, None)


def _convert_loop_node(conversion: _Conversion, node: Any) -> None:
    trips, going, *_ = conversion.converted_inputs_of_node(node)
    limit, step = to_python_int(trips), 0
    (body,) = node.blocks()
    counter, *formals = body.inputs()
    names = [v.debugName() for v in list(node.inputs())[2:]]
    while step < limit and _require_compile_time_truth_value(going):
        current_budget().spend_compile_time_budget("compile.max_nodes", 1, BUDGET_SUBJECT)
        conversion.memory.bind_name_and_rename_old_value(counter.debugName(), step)
        for source, formal in zip(_alias_to_generated_names(conversion, names), formals, strict=True):
            _bind_alias(conversion, source, formal.debugName())
        conversion.convert_block(body)
        first, *rest = body.outputs()
        going, names = conversion.require_converted_torchscript_value(first), [v.debugName() for v in rest]
        step += 1
    for source, out in zip(_alias_to_generated_names(conversion, names), node.outputs(), strict=True):
        _bind_alias(conversion, source, out.debugName())


def _alias_to_generated_names(conversion: _Conversion, names: Sequence[str]) -> list[str]:
    """Return generated names bound to the current values of `names`, so that a loop iteration can
    bind the names to new values while the old ones are still read.
    """
    aliases = [conversion.memory.generate_unused_name(name) for name in names]
    for source, name in zip(names, aliases, strict=True):
        _bind_alias(conversion, source, name)
    return aliases


def _number_to_constant_tensor(value: TorchValue) -> TorchValue:
    """Convert a number to a constant tensor (prim::NumToTensor); a dynamic dimension is returned
    unchanged.
    """
    if isinstance(value, SymDim):
        return value
    return g.constant(value, None if isinstance(value, int) else "float32")


_PRIM_CONVERTERS: Final[Mapping[str, Callable[[_Conversion, Any], None]]] = {
    "Constant": lambda c, node: c.bind_node_results(node, _torch_tensors_to_constants(node.output().toIValue())),
    "GetAttr": _Conversion.convert_get_attribute,
    "If": _convert_if_node,
    "ListUnpack": _convert_list_or_tuple_unpack_node,
    "Loop": _convert_loop_node,
    "RaiseException": _raise_error_of_raise_exception_node,
    "TupleUnpack": _convert_list_or_tuple_unpack_node,
}
#: TorchScript nodes (without "prim::") that compute a value from the values of their inputs only,
#: and their functions.
_PRIM_VALUE_FUNCTIONS: Final[Mapping[str, Callable[..., TorchValue]]] = {
    "DictConstruct": lambda *items: dict(zip(items[::2], items[1::2], strict=True)),
    "ListConstruct": lambda *items: list(items),
    "NumToTensor": _number_to_constant_tensor,
    "TupleConstruct": lambda *items: items,
    "TupleIndex": operator.getitem,
    "Uninitialized": lambda: UncomputedValue("values that were never set"),
    "data": lambda x: x,
    "device": lambda _: torch.device("cpu"),
    "dtype": lambda x: getattr(torch, g.dtype(x)),
    "is_cuda": lambda _: False,
    "is_quantized": lambda _: False,
    "max": max,
    "min": min,
    "unchecked_cast": lambda x: x,
}


# --- entry point


def _node_and_consumer_names(graph: Any, use_parser_friendly_names: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of TorchScript nodes by output, made of kind and running number as in TVM's
    Relay, and for each value the name of the first node that reads it.
    """
    counts: dict[str, int] = {}
    names: dict[str, str] = {}
    consumers: dict[str, str] = {}
    blocks = [graph]
    while blocks:
        for node in blocks.pop().nodes():
            blocks.extend(node.blocks())
            kind = node.kind()
            number = counts.get(kind, 0)
            if kind != "prim::GetAttr":
                counts[kind] = number + 1
            name = f"{kind}_{number}"
            name = name.replace(":", "_").replace(".", "_") if use_parser_friendly_names else name
            names.update({v.debugName(): name for v in node.outputs()})
            for value in node.inputs():
                consumers.setdefault(value.debugName(), name)
    return names, consumers


class _Untyped(Mutator):
    """A pass that removes inferred types, since from_pytorch of TVM's Relay returns an untyped
    module; InferType adds them.
    """

    def rewrite_rebuilt_node(self, old: Expr, new: Expr) -> Expr:
        return new if isinstance(new, (Op, Constant)) else with_checked_type(new, None)  # type: ignore[type-var]


@g.replace_graph_prefix_of_error_codes("torch")
def from_script(
    script_module: Any,
    input_infos: Sequence[Any],
    custom_convert_map: Mapping[str, CustomConverter] | None = None,
    default_dtype: str = "float32",
    use_parser_friendly_name: bool = False,
) -> tuple[IRModule, dict[str, Array]]:
    """Convert a ScriptModule to a module and its parameters; see
    `aotc.relay_api.frontend.from_pytorch`.
    """
    if not isinstance(script_module, torch.jit.ScriptModule):
        hint = "torch.jit.trace(module, example_inputs) makes one; from_exported_program takes torch.export programs"
        text = f"from_pytorch takes a torch.jit.ScriptModule, not {type(script_module).__name__}"
        raise AotcTypeError("torch-module", text, hint=hint)
    graph = script_module.graph.copy()
    torch._C._jit_pass_inline(graph)
    names, consumers = _node_and_consumer_names(graph, use_parser_friendly_name)
    this, *inputs = graph.inputs()
    types = parse_input_infos(input_infos, inputs, default_dtype)
    separator = "_" if use_parser_friendly_name else "."
    conversion = _Conversion(script_module, custom_convert_map or {}, separator, names, consumers)
    conversion.memory.values[this.debugName()] = script_module
    params: list[Var] = []
    for value, (name, ty) in zip(inputs, types, strict=True):
        reader = consumers.get(value.debugName())
        params.append(Var(name, ty, Span(f"{reader}{separator}{name}" if reader else name)))
        conversion.memory.values[value.debugName()] = params[-1]
    with running_or_new_budget_scope():
        conversion.convert_block(graph)
        outputs = _convert_graph_outputs(conversion, graph)
    clash = dict(types).keys() & conversion.params
    if clash:
        raise AotcValueError("torch-inputs", f"{min(clash)!r} is the name of a parameter: call the input otherwise")
    body = outputs[0] if len(outputs) == 1 else Tuple(outputs)
    used = [v for v in free_vars(body) if v not in params]
    arrays = {v.name: conversion.params[v.name] for v in used}
    main = _Untyped().visit_function(Function([*params, *used], body))
    return IRModule({"main": main}), arrays


def _convert_graph_outputs(conversion: _Conversion, graph: Any) -> list[Expr]:
    outputs: list[Expr] = []
    for value in graph.outputs():
        with conversion.problems.collect_errors_at(Span("the output")):
            outputs += flatten_output_tensors(conversion.require_converted_torchscript_value(value))
    if not outputs and not conversion.problems.diagnostics:
        raise AotcError("torch-output", "the module returns nothing")
    conversion.problems.raise_collected_problems()
    return outputs
