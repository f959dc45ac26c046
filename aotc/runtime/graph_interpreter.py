# SPDX-License-Identifier: Apache-2.0
"""A static graph of kernel calls, executed call by call, with memory of its own for every tensor.

In: the graph and a library of its kernels.  Out: what a compiled library gives, and every intermediate besides.

machine = GraphMachine(tensors, inputs, outputs, constants, nodes, library)
binding = machine.bind({"x": x})
binding.run(); binding.outputs["output"]; binding.node_outputs(3)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from aotc.ir import Span, frozen
from aotc.runtime.fork_safety import Turns
from aotc.runtime.kernel_library import ALIGNMENT, KernelLibrary
from aotc.runtime.tensor_info import Array, TensorInfo, aligned, check_inputs, require_none


class Place(Protocol):
    """A contiguous part of a tensor, from element `offset` on."""

    @property
    def storage(self) -> Hashable: ...

    @property
    def offset(self) -> int: ...


@frozen
class GraphNode:
    """An input or constant (no kernel), or the call of a kernel.

    name       differs from node to node
    shapes     of the outputs; reshaped, they may be a tensor of the graph
    span       where in the model the call came from
    """

    name: str
    outputs: tuple[Place, ...]
    shapes: tuple[tuple[int, ...], ...]
    kernel: str = ""
    inputs: tuple[Place, ...] = ()
    span: Span | None = None


@frozen
class GraphMachine:
    """Nodes in the order of their execution, over tensors that are told apart by keys, ready to run.

    tensors            what each holds; those of inputs and outputs are called as the model's
    inputs, outputs    keys of tensors, in the model's order
    constants          values of tensors by key
    library            of the kernels
    """

    tensors: Mapping[Hashable, TensorInfo]
    inputs: Sequence[Hashable]
    outputs: Sequence[Hashable]
    constants: Mapping[Hashable, Array]
    nodes: tuple[GraphNode, ...]
    library: KernelLibrary

    def get_inputs(self) -> list[TensorInfo]:
        """The inputs, in order."""
        return [self.tensors[k] for k in self.inputs]

    def get_outputs(self) -> list[TensorInfo]:
        """The outputs, in order."""
        return [self.tensors[k] for k in self.outputs]

    def bind(self, inputs: Mapping[str, Array]) -> GraphBinding:
        """Memory for one execution, independent of others.  `inputs` are read in place: C-contiguous arrays of the
        stated types, all of them.

        Raises AotcError with one diagnostic for each array that is missing, unknown or of another type.
        """
        arrays, problems = check_inputs(inputs, self.get_inputs())
        require_none(problems)
        return GraphBinding(self, {**self.constants, **dict(zip(self.inputs, arrays, strict=True))})


class GraphBinding:
    """The tensors of one execution, kept from run to run; `outputs` are arrays by name."""

    def __init__(self, machine: GraphMachine, given: Mapping[Hashable, Array]) -> None:
        infos = machine.tensors
        self._turns = Turns()
        self._tensors = {
            k: given[k] if k in given else aligned(i.nbytes, ALIGNMENT).view(i.dtype.numpy).reshape(i.shape)
            for k, i in infos.items()
        }
        self._nodes = machine.nodes
        self._calls = [self._bind(node, machine.library) for node in machine.nodes]
        self.outputs = {infos[k].name: self._tensors[k] for k in machine.outputs}

    def _bind(self, node: GraphNode, library: KernelLibrary) -> Callable[[], None]:
        if not node.kernel:
            return lambda: None
        info = library.infos[node.kernel]
        inputs = [self._part(p, t.shape) for p, t in zip(node.inputs, info.inputs, strict=True)]
        outputs = [self._part(p, t.shape) for p, t in zip(node.outputs, info.outputs, strict=True)]
        return library.bind(node.kernel, inputs, outputs)

    def _part(self, place: Place, shape: Sequence[int]) -> Array:
        """Part of a tensor, in another shape; kernels take theirs flat."""
        end = place.offset + math.prod(shape)
        return self._tensors[place.storage].reshape(-1)[place.offset : end].reshape(shape)

    def run(self) -> None:
        """Run every node, in order."""
        with self._turns:
            for call in self._calls:
                call()

    def run_node(self, index: int) -> None:
        """Run one node on what its inputs hold now."""
        with self._turns:
            self._calls[index]()

    def node_outputs(self, index: int) -> list[Array]:
        """What a node gave when it last ran; for an input or a constant, its value."""
        node = self._nodes[index]
        return [self._part(place, shape) for place, shape in zip(node.outputs, node.shapes, strict=True)]
