# SPDX-License-Identifier: Apache-2.0
"""Find the tensors of an exported program that its runs change: buffers, parameters and constants.

changed_buffers_of_program(program)     # {"cache.k": "cache.k_out"}, by the name of the input

They are state of the compiled model. A constant is a tensor that is neither a buffer nor a parameter of the
module, such as the caches of a StaticCache of the package transformers; torch.export cannot functionalize
writes to constants, so that those become buffers first.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import count
from operator import getitem
from typing import Any, Final

import torch
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputKind

from aotc.ir import Array, require
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import torch_tensor_to_array

#: Kinds of outputs that are new contents of tensors of the module.
CHANGED_BUFFER_KINDS: Final = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
#: Kinds of outputs that are new contents of tensors of the module, or of inputs.
CHANGED_TENSOR_KINDS: Final = (*CHANGED_BUFFER_KINDS, OutputKind.USER_INPUT_MUTATION)
#: Operators that call a graph in a context, such as that of `torch.no_grad()`; the operands of the graph follow it.
_CONTEXT_OPERATORS: Final = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def names_of_module_tensors(program: Any) -> dict[str, str]:
    """Return the names that parameters, buffers and constants of an exported program have among the inputs of the
    imported module, by their names in the program: the same, followed by a number where an input has this name.
    """
    specs = program.graph_signature.input_specs
    inputs = {spec.arg.name for spec in specs if spec.kind == InputKind.USER_INPUT}
    targets = [spec.target for spec in specs if spec.target is not None]
    taken = inputs | set(targets)
    names: dict[str, str] = {}
    for target in targets:
        free = (f"{target}_{k}" for k in count(1) if f"{target}_{k}" not in taken)
        names[target] = next(free) if target in inputs else target
        taken.add(names[target])
    return names


def changed_buffers_of_program(program: Any) -> dict[str, str]:
    """Return the buffers and parameters that a functional exported program changes: the name of the output
    that receives the new contents, by the name of the input of the imported module.
    """
    return {name: f"{name}_out" for name in _names_of_changed_buffers(program).values()}


def contents_of_changed_buffers(program: Any) -> dict[str, Array]:
    """Return the contents of the buffers and parameters that an exported program changes, by the name of the input of
    the imported module.
    """
    tensors = {**program.constants, **program.state_dict}
    return {name: torch_tensor_to_array(tensors[t]) for t, name in _names_of_changed_buffers(program).items()}


def _names_of_changed_buffers(program: Any) -> dict[str, str]:
    names, specs = names_of_module_tensors(program), program.graph_signature.output_specs
    return {spec.target: names[spec.target] for spec in specs if spec.kind in CHANGED_BUFFER_KINDS}


def require_unshared_memory(tensor: Any, name: str, program: Any) -> None:
    """Raise AotcError (code "torch-mutation") if a buffer that the program changes shares its memory
    with another parameter or buffer, which would change too.
    """
    others = {n: t for n, t in {**program.state_dict, **program.constants}.items() if n != name}
    tensors = {n: t for n, t in others.items() if isinstance(t, torch.Tensor) and t.layout == torch.strided}
    memory = tensor.untyped_storage().data_ptr()
    shared = [n for n, t in tensors.items() if memory and t.untyped_storage().data_ptr() == memory]
    text = f"the program changes its buffer {name!r}, which shares memory with {', '.join(map(repr, shared))}"
    require("torch-mutation", not shared, text)


def require_unshared_changed_tensors(program: Any) -> None:
    """Raise AotcError (code "torch-mutation") if an exported program, which may have operators that work in place,
    changes a parameter, buffer or constant that shares its memory with another one.
    """
    tensors, written = {**program.constants, **program.state_dict}, _inputs_written_to(program)
    for spec in program.graph_signature.input_specs:
        if spec.arg.name in written and isinstance(tensor := tensors.get(spec.target), torch.Tensor):
            require_unshared_memory(tensor, spec.target, program)


def changed_constants_as_buffers(program: Any) -> Any:
    """Return an exported program in which constants that operators write to are buffers; the program itself if
    there are none.

    A constant that is also a buffer of the module, under another name, becomes this buffer.
    """
    changed = _constants_written_to(program)
    if not changed:
        return program
    graph_module = copy.deepcopy(program.graph_module)
    nodes = {node.name: node for node in graph_module.graph.nodes if node.op == "placeholder"}
    constants, specs = dict(program.constants), list[InputSpec]()
    buffers = {spec.target: spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.BUFFER}
    for spec in program.graph_signature.input_specs:
        if spec.arg.name not in changed:
            specs.append(spec)
            continue
        constants[spec.target] = constants[spec.target].detach()
        same = _buffer_with_memory_of(constants[spec.target], buffers, program)
        if same is None:
            specs.append(InputSpec(InputKind.BUFFER, spec.arg, spec.target, persistent=False))
            continue
        nodes[spec.arg.name].replace_all_uses_with(nodes[same.arg.name])
        graph_module.graph.erase_node(nodes[spec.arg.name])
        del constants[spec.target]
    graph_module.recompile()
    signature = ExportGraphSignature(specs, list(program.graph_signature.output_specs))
    return program._update(graph_module, signature, constants=constants)


def with_conversions_before_copies(program: Any) -> Any:
    """Return an exported program in which what `copy_` writes has the data type of the tensor that it writes to.

    torch.export replaces a buffer or an input of which `copy_` writes all elements by what is copied, of whichever
    data type that is.
    """
    if not any(_converts(node) for module in _graph_modules(program.graph_module) for node in module.graph.nodes):
        return program
    graph_module = copy.deepcopy(program.graph_module)
    for module in _graph_modules(graph_module):
        for node in filter(_converts, list(module.graph.nodes)):
            target, source = node.args[:2]
            dtype = target.meta["val"].dtype
            with module.graph.inserting_before(node):
                converted = module.graph.call_function(torch.ops.aten._to_copy.default, (source,), {"dtype": dtype})
            converted.meta = {**node.meta, "val": source.meta["val"].to(dtype)}
            node.replace_input_with(source, converted)
        module.recompile()
    return program._update(graph_module, program.graph_signature)


def _graph_modules(module: Any) -> list[Any]:
    return [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]


def _converts(node: Any) -> bool:
    """Return True for a node that copies a tensor to one of another data type."""
    if node.target is not torch.ops.aten.copy_.default:
        return False
    values = [arg.meta.get("val") for arg in node.args[:2] if isinstance(arg, torch.fx.Node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return len(tensors) == 2 and tensors[0].dtype != tensors[1].dtype


def _buffer_with_memory_of(tensor: Any, buffers: Mapping[str, InputSpec], program: Any) -> InputSpec | None:
    """Return the buffer that has exactly the elements of a tensor, in its memory; None if there is none."""

    def place(x: Any) -> tuple[Any, ...]:
        return x.data_ptr(), x.shape, x.stride(), x.dtype

    tensors = {**program.constants, **program.state_dict}
    if not tensor.data_ptr():
        return None
    return next((spec for name, spec in buffers.items() if place(tensors[name]) == place(tensor)), None)


def _constants_written_to(program: Any) -> set[str]:
    """Return the names of the nodes of constants of an exported program that operators write to."""
    specs = program.graph_signature.input_specs
    constants = {spec.arg.name for spec in specs if spec.kind == InputKind.CONSTANT_TENSOR}
    return constants & _inputs_written_to(program)


def _inputs_written_to(program: Any) -> set[str]:
    """Return the names of the nodes of inputs, parameters, buffers and constants of an exported program that operators
    write to, also by their views.
    """
    return _names_written_to(program.graph_module, [{n.name} for n in program.graph.nodes if n.op == "placeholder"])[0]


def _names_written_to(module: Any, parameters: Sequence[Set[str]]) -> tuple[set[str], set[str]]:
    """Return the names of the tensors that operators of a graph write to, and of those that its results may share
    memory with.

    parameters    for each parameter of the graph, the names of the tensors that it may share memory with
    """
    viewed: dict[Any, Set[str]] = {}
    changed: set[str] = set()
    names = iter(parameters)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            viewed[node] = next(names)
        elif node.op == "output":
            return changed, set().union(*(viewed.get(result, ()) for result in node.all_input_nodes))
        elif node.op == "call_function" and node.target is getitem:
            viewed[node] = viewed.get(node.args[0], set())
        elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            aliases = [(viewed.get(source, set()), is_write) for source, is_write in _aliases_of_result(node)]
            viewed[node] = set().union(*(names for names, _ in aliases))
            changed.update(*(names for names, is_write in aliases if is_write))
        elif node.op == "call_function" and getattr(node.target, "__name__", "") in _CONTEXT_OPERATORS:
            first = next(k for k, arg in enumerate(node.args) if getattr(arg, "op", "") == "get_attr")
            body = module.get_submodule(node.args[first].target)
            arguments = [viewed.get(arg, set()) for arg in node.args[first + 1 :]]
            written, viewed[node] = _names_written_to(body, arguments)
            changed |= written
    return changed, set()


def _aliases_of_result(node: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the operands of a call whose memory the result may share, and whether the operator writes to it."""
    for k, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None:
            continue
        value = node.args[k] if k < len(node.args) and not argument.kwarg_only else node.kwargs.get(argument.name)
        for operand in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(operand, torch.fx.Node):
                yield operand, bool(argument.alias_info.is_write)
