# SPDX-License-Identifier: Apache-2.0
"""Execute a static graph of kernel calls one by one, with separate memory for every tensor.

Input: the graph and a library of its kernels.  Output: the model's outputs and every intermediate
tensor.

machine = GraphMachine(tensors, inputs, outputs, constants, nodes, library)
binding = machine.bind({"x": x})
binding.run()
binding.outputs["output"], binding.node_outputs(3)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from aotc.ir import Span, frozen
from aotc.runtime.fork_safety import ForkSafeMutex
from aotc.runtime.kernel_library import ALIGNMENT_BYTES, KernelLibrary
from aotc.runtime.tensor_info import (
    Array,
    TensorInfo,
    allocate_aligned_bytes,
    convert_and_check_inputs,
    raise_if_problems,
)


class TensorPart(Protocol):
    """A contiguous part of a tensor: the tensor's key, and the offset of its first element."""

    @property
    def storage(self) -> Hashable: ...

    @property
    def offset(self) -> int: ...


@frozen
class GraphNode:
    """An input or constant (`kernel` is ""), or a kernel call.

    name       unique name of the node
    shapes     shapes of the outputs in the model, which may differ from those of the kernel's buffers
    span       source location in the model of the call
    """

    name: str
    outputs: tuple[TensorPart, ...]
    shapes: tuple[tuple[int, ...], ...]
    kernel: str = ""
    inputs: tuple[TensorPart, ...] = ()
    span: Span | None = None


@frozen
class GraphMachine:
    """A graph of kernel calls in execution order, over tensors that are identified by keys.

    tensors            description of each tensor; inputs and outputs have their names in the model
    inputs, outputs    keys of tensors, in the model's order
    constants          values of tensors by key
    library            library of the kernels
    """

    tensors: Mapping[Hashable, TensorInfo]
    inputs: Sequence[Hashable]
    outputs: Sequence[Hashable]
    constants: Mapping[Hashable, Array]
    nodes: tuple[GraphNode, ...]
    library: KernelLibrary

    def get_inputs(self) -> list[TensorInfo]:
        """Return name, shape and dtype of each input of the graph, in order."""
        return [self.tensors[k] for k in self.inputs]

    def get_outputs(self) -> list[TensorInfo]:
        """Return name, shape and dtype of each output of the graph, in order."""
        return [self.tensors[k] for k in self.outputs]

    def bind(self, inputs: Mapping[str, Array]) -> GraphBinding:
        """Allocate memory for one execution, independent of others.

        `inputs` are C-contiguous arrays of the stated types, one for each input, and are read in
        place.  Raises AotcError with one diagnostic for each array that is missing, unknown or of
        another type.
        """
        arrays, problems = convert_and_check_inputs(inputs, self.get_inputs())
        raise_if_problems(problems)
        return GraphBinding(self, {**self.constants, **dict(zip(self.inputs, arrays, strict=True))})


class GraphBinding:
    """The tensors of one execution, which persist between runs; `outputs` maps names to arrays."""

    def __init__(self, machine: GraphMachine, given: Mapping[Hashable, Array]) -> None:
        infos = machine.tensors
        self._turns = ForkSafeMutex()
        self._tensors = {
            k: given[k]
            if k in given
            else allocate_aligned_bytes(i.nbytes, ALIGNMENT_BYTES).view(i.dtype.numpy).reshape(i.shape)
            for k, i in infos.items()
        }
        self._nodes = machine.nodes
        self._calls = [self._bind_node_kernel(node, machine.library) for node in machine.nodes]
        self.outputs = {infos[k].name: self._tensors[k] for k in machine.outputs}

    def _bind_node_kernel(self, node: GraphNode, library: KernelLibrary) -> Callable[[], None]:
        if not node.kernel:
            return lambda: None
        info = library.infos[node.kernel]
        inputs = [self._array_view_of_part(p, t.shape) for p, t in zip(node.inputs, info.inputs, strict=True)]
        outputs = [self._array_view_of_part(p, t.shape) for p, t in zip(node.outputs, info.outputs, strict=True)]
        return library.bind_kernel(node.kernel, inputs, outputs)

    def _array_view_of_part(self, part: TensorPart, shape: Sequence[int]) -> Array:
        """Return a part of a tensor as an array view of the given shape."""
        end = part.offset + math.prod(shape)
        return self._tensors[part.storage].reshape(-1)[part.offset : end].reshape(shape)

    def run(self) -> None:
        """Run the kernels of all nodes of the graph, in order."""
        with self._turns:
            for call in self._calls:
                call()

    def run_node(self, index: int) -> None:
        """Run the kernel of one node of the graph on the current values of its inputs."""
        with self._turns:
            self._calls[index]()

    def node_outputs(self, index: int) -> list[Array]:
        """Return the outputs of a node from its last run; for an input or constant, its value."""
        node = self._nodes[index]
        return [self._array_view_of_part(place, shape) for place, shape in zip(node.outputs, node.shapes, strict=True)]
