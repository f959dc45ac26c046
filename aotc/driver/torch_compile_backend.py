# SPDX-License-Identifier: Apache-2.0
"""Backend of torch.compile: graphs that TorchDynamo captures run as compiled libraries.

    net = torch.compile(net.eval(), backend="aotc", options={"opt_level": 3})
    with torch.no_grad():
        y = net(x)              # compiles a library at the first call with these shapes

A graph is compiled for each combination of shapes, data types and numbers with which it is called.
Parameters are inputs of the library, so that later changes of them take effect; with the option
`freeze` they are constants, and a changed parameter compiles a further library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from aotc.driver.compile import CompileOptions
from aotc.driver.import_model import export_pytorch_module, functional_exported_program
from aotc.ir import AotcError, AotcTypeError, Array, DType, frozen

if TYPE_CHECKING:
    import torch

#: Arguments and results of a graph: tensors, and numbers for symbolic sizes.
Values: TypeAlias = "Sequence[Any]"

#: Name of the option of the backend that makes parameters constants.
FREEZE: Final = "freeze"


def torch_compile_backend(
    graph: Any, example_inputs: Values, *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return a function that runs a graph of TorchDynamo as compiled libraries: the backend "aotc" of
    torch.compile.

    graph            the torch.fx.GraphModule
    example_inputs   its first arguments; only their number is used
    mode             must be None or "default"
    options          options of aotc.compile, and `freeze`: True for parameters as constants

    The function raises AotcError when it is called: for operators that are not supported, all at
    once; if gradients are needed; for tensors that are not on the CPU.
    """
    given = dict(options or {})
    if mode not in (None, "default"):
        hint = 'give options instead: torch.compile(model, backend="aotc", options={"opt_level": 3})'
        raise AotcTypeError("unknown-option", f"there is no mode {mode!r} of the backend aotc", hint=hint)
    freeze = bool(given.pop(FREEZE, False))
    return _CompiledGraphs(graph, CompileOptions.from_keywords(given), freeze)


class _CompiledGraphs:
    """The libraries of one graph, by the shapes, strides, data types and numbers of its arguments."""

    def __init__(self, graph: Any, options: CompileOptions, freeze: bool) -> None:
        self._graph = graph
        self._options = options
        self._freeze = freeze
        self._numbers = _positions_of_numbers(graph)
        self._by_signature: dict[Any, _CompiledGraph] = {}

    def __call__(self, *args: Any) -> Any:
        import torch

        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        _require_no_gradients(tensors)
        signature = (*map(_argument_signature, args), *(repr(args[k].item()) for k in self._numbers))
        compiled = self._by_signature.get(signature)
        if compiled is None or not compiled.has_frozen_contents(args):
            parameters = [k for k, a in enumerate(args) if self._freeze and isinstance(a, torch.nn.Parameter)]
            parameters = [k for k in parameters if not args[k].is_inference()]
            compiled = _compile_graph(self._graph, args, self._options, parameters, self._numbers)
            self._by_signature[signature] = compiled
        return compiled.run(args)


def _positions_of_numbers(graph: Any) -> tuple[int, ...]:
    """Return the positions of the arguments of a graph that are numbers in tensors of rank 0, in which
    TorchDynamo passes Python's floating-point numbers that change.
    """
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return tuple(
        k
        for k, node in enumerate(placeholders)
        if any(user.op == "call_method" and user.target == "item" for user in node.users)
    )


def _graph_with_numbers(graph: Any, args: Values, positions: Sequence[int]) -> Any:
    """Return a graph in which the numbers in the tensors at some positions of its arguments are
    constants.
    """
    import torch

    if not positions:
        return graph
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    numbers = {placeholders[k]: args[k].item() for k in positions}
    copied, values = torch.fx.Graph(), dict[Any, Any]()
    for node in graph.graph.nodes:
        is_number = node.op == "call_method" and node.target == "item" and node.args[0] in numbers
        values[node] = numbers[node.args[0]] if is_number else copied.node_copy(node, values.__getitem__)
    return torch.fx.GraphModule(graph, copied)


def _argument_signature(value: Any) -> Any:
    """Return the properties of an argument on which a library and the layouts of its results depend: shape,
    strides and data type of a tensor, or the number itself.
    """
    shape = getattr(value, "shape", None)
    return (type(value), repr(value)) if shape is None else (tuple(map(int, shape)), value.stride(), value.dtype)


def _require_no_gradients(tensors: Sequence[torch.Tensor]) -> None:
    import torch

    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        hint = "call the compiled module under torch.no_grad() or torch.inference_mode()"
        raise AotcError("torch-gradient", "compiled libraries compute no gradients", hint=hint)
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            text = f"an argument is a tensor of layout {tensor.layout} on {tensor.device}"
            raise AotcError("torch-device", text, hint="the backend runs graphs of dense tensors on the CPU")


@frozen(eq=False)
class _ResultLayout:
    """The storage that PyTorch gives a result of a graph, and the view of the result on it.

    The backend gives results the same storage, because callers may write to one of two results that
    share it.

    value        the result itself if it is not a tensor, otherwise None
    memory       key of the storage, which is equal for results that share it
    argument     position of the argument that has this storage; None for a new one
    view         sizes, strides and offset of the result; the offset is counted from the first element
                 of the argument
    elements     number of elements of the storage
    """

    value: Any = None
    memory: Any = None
    argument: int | None = None
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    elements: int = 0


@frozen(eq=False)
class _CompiledGraph:
    """A library for one signature of a graph.

    session     the library's session; None if the graph computes no tensor
    inputs      names of the library's inputs and the positions of their arguments
    layouts     layouts of the results of the graph
    written     positions of the arguments that the graph changes, in the order of the outputs with
                their new contents, which follow the results
    contents    position, tensor and version of each argument that is constant in the library
    """

    session: Any
    inputs: tuple[tuple[str, int], ...]
    layouts: tuple[_ResultLayout, ...]
    written: tuple[int, ...]
    contents: tuple[tuple[int, torch.Tensor, int], ...]

    def has_frozen_contents(self, args: Values) -> bool:
        """Return True if the arguments that are constants in the library have not changed."""
        return all(args[k] is tensor and tensor._version == version for k, tensor, version in self.contents)

    def run(self, args: Values) -> list[Any]:
        """Run the library; return the results with the strides, and as the views, that PyTorch gives
        them.
        """
        import torch

        _require_unshared_arguments(args, self.written)
        feed = {name: _array_of_tensor(args[k]) for name, k in self.inputs}
        found = list(map(_tensor_of_array, self.session.run(None, feed)))
        count = len(found) - len(self.written)
        for k, contents in zip(self.written, found[count:], strict=True):
            args[k].copy_(contents)
        computed = iter(found[:count])
        memories: dict[Any, torch.Tensor] = {}
        results: list[Any] = []
        for layout in self.layouts:
            if layout.view is None:
                results.append(layout.value)
                continue
            contents = next(computed)
            if layout.argument is not None:
                sizes, strides, offset = layout.view
                argument = args[layout.argument]
                results.append(argument.as_strided(sizes, strides, argument.storage_offset() + offset))
                continue
            if layout.memory not in memories:
                memories[layout.memory] = torch.empty(layout.elements, dtype=contents.dtype)
            results.append(_write_view(memories[layout.memory], layout.view, contents))
        return results


def _write_view(memory: torch.Tensor, view: Any, contents: torch.Tensor) -> torch.Tensor:
    """Write a tensor to a view of a vector, given by sizes, strides and offset; return the view. Its
    elements may share memory, as in the result of torch.expand.
    """
    import torch

    result = memory.as_strided(*view)
    if _is_dense(*view[:2]):
        return result.copy_(contents)
    places = torch.arange(memory.numel()).as_strided(*view)
    memory[places.reshape(-1)] = contents.reshape(-1)
    return result


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if the elements of a view lie side by side in memory, each once."""
    count = 1
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size != 1 and stride != count:
            return False
        count *= size
    return True


def _array_of_tensor(tensor: torch.Tensor) -> Array:
    import torch

    plain = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(plain.view(torch.int16).numpy()).view(DType("bfloat16").numpy)
    return np.asarray(plain.resolve_conj().resolve_neg().numpy())


def _tensor_of_array(array: Array) -> torch.Tensor:
    import torch

    if array.dtype == DType("bfloat16").numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _compile_graph(
    graph: Any, args: Values, options: CompileOptions, parameters: Sequence[int], numbers: Sequence[int]
) -> _CompiledGraph:
    """Compile a graph for the shapes of its arguments; those at the positions `parameters` and
    `numbers` are constants.
    """
    import torch

    graph = _graph_with_numbers(graph, args, numbers)
    fixed = {*parameters, *numbers}
    free = [k for k, a in enumerate(args) if isinstance(a, torch.Tensor) and k not in fixed]
    copies = tuple(args[k].detach().clone() for k in free)
    program = functional_exported_program(export_pytorch_module(_module_of_tensors(graph, args, free), copies))
    signature = program.graph_signature
    names = {name: free[k] for k, name in enumerate(signature.user_inputs)}
    written = [names[n] for n in signature.user_inputs_to_mutate.values()]
    session = options.compile_model(program).session()
    inputs = tuple((info.name, names[info.name]) for info in session.get_inputs())
    contents = tuple((k, args[k], args[k]._version) for k in parameters)
    return _CompiledGraph(session, inputs, _result_layouts(graph, args), tuple(written), contents)


def _module_of_tensors(graph: Any, args: Values, free: Sequence[int]) -> Any:
    """Return a torch.nn.Module that takes the tensors at the positions `free` of the arguments of a
    graph, and returns the results of the graph that are tensors.
    """
    import torch

    class TensorsOfGraph(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.graph = graph
            self.fixed = dict(enumerate(args))
            for k, value in self.fixed.items():
                if k not in free and isinstance(value, torch.Tensor):
                    self.register_buffer(f"constant{k}", value.detach())

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = dict(zip(free, tensors, strict=True))
            values = [given.get(k, getattr(self, f"constant{k}", v)) for k, v in self.fixed.items()]
            return tuple(r for r in self.graph(*values) if isinstance(r, torch.Tensor))

    return TensorsOfGraph()


def _result_layouts(graph: Any, args: Values) -> tuple[_ResultLayout, ...]:
    """Return the layouts of the results of a graph, which PyTorch evaluates on tensors without data."""
    import torch
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(a.detach()) if isinstance(a, torch.Tensor) else a for a in args]
        results = graph(*fakes)
    positions = {_memory_key(a): k for k, a in enumerate(fakes) if isinstance(a, torch.Tensor)}

    def layout_of_result(result: Any) -> _ResultLayout:
        if not isinstance(result, torch.Tensor):
            return _ResultLayout(value=result)
        memory = _memory_key(result)
        argument = positions.get(memory)
        origin = 0 if argument is None else fakes[argument].storage_offset()
        view = tuple(result.shape), tuple(result.stride()), int(result.storage_offset() - origin)
        elements = result.untyped_storage().nbytes() // result.element_size()
        return _ResultLayout(None, memory, argument, view, elements)

    return tuple(map(layout_of_result, results))


def _memory_key(tensor: torch.Tensor) -> Any:
    """Return a key that tensors have in common exactly if they share memory and data type."""
    return tensor.untyped_storage()._cdata, tensor.dtype


def _require_unshared_arguments(args: Values, written: Sequence[int]) -> None:
    """Raise AotcError (code "torch-mutation") if the graph changes an argument that shares its memory
    with another one.
    """
    if not written:
        return
    import torch

    keys = [_memory_key(a)[0] if isinstance(a, torch.Tensor) else None for a in args]
    if any(keys.count(keys[k]) > 1 for k in written):
        text = "the graph changes a tensor that shares its memory with another argument"
        raise AotcError("torch-mutation", text, hint="pass a clone of one of them")
