# SPDX-License-Identifier: Apache-2.0
"""Interpreter of programs: run the schedule of a program on numpy arrays, in its planned memory.

    run = ProgramInterpreter(program)
    run({"x": x})["y"]

Kernels run in the interpreter of tensor programs. Which kernels run, and where their arguments are,
follows the program alone: the arena holds temporaries at their planned offsets, and is filled with
a pattern before each run. A wrong schedule or memory plan therefore gives wrong results here, without
any C.

If the extents of inputs depend on sizes that are known at run time, each tensor has memory for its
largest extents, and the elements behind those of the run hold the pattern.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Final

import numpy as np

from aotc.ir import Array, SymDim, solve_dims, symbol_of_multiples
from aotc.tir import Buffer, Define, Kernel, Program, Storage, View, compile_kernel, executed_steps, value_of_dim

#: Byte that the arena and outputs hold before a run.
_PATTERN: Final = 0x5A


class ProgramInterpreter:
    """A program, and the contents of the state that it keeps between runs."""

    def __init__(self, program: Program) -> None:
        """Begin with the state before the first run."""
        self._program = program
        self._memory: dict[Storage, Array] = {}
        self._compiled = cache(compile_kernel)
        #: Kernels that the last run called, in order.
        self.called: list[Kernel] = []
        #: Length of the state that grows.
        self.length = 0
        for tensor in program.state:
            for storage in (tensor.past, tensor.present):
                self._memory[storage] = np.zeros(storage.size, storage.dtype.numpy)
                if tensor.initial is not None:
                    self._memory[storage][:] = tensor.initial.reshape(-1)

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the program and return its outputs by name.

        inputs   an array of the shape and dtype of each input, by name

        Raise ValueError if the shapes of inputs contradict one another, if their sizes or those that the run finds
        are not allowed, or if the state has no room.
        """
        program = self._program
        symbols = self._symbols_of(inputs)
        arena = np.full(program.plan.peak, _PATTERN, np.uint8)
        temporaries = {storage: self._array(storage, arena) for storage in program.storages_of_kind("temp")}
        self._memory |= temporaries
        for storage in program.inputs:
            elements = np.array(inputs[storage.name], storage.dtype.numpy).reshape(-1)
            self._memory[storage] = _patterned_array(storage)
            self._memory[storage][: elements.size] = elements
        for storage in program.outputs:
            self._memory[storage] = _patterned_array(storage)
        for storage in program.constants:
            self._memory[storage] = np.asarray(storage.data).reshape(-1)
        self.called = []

        def is_true(view: View) -> bool:
            return bool(self._memory[view.storage][view.offset])

        def define(node: Define) -> None:
            self._define(node, symbols)

        tier = program.tier_of_symbols(symbols) if program.tiers else None
        for step in executed_steps(program.body if tier is None else tier.body, is_true, define):
            kernel = step.kernel
            self.called.append(kernel)
            arrays = [self._elements(v, b).copy() for v, b in zip(step.inputs, kernel.inputs, strict=True)]
            outputs = [self._elements(v, b) for v, b in zip(step.outputs, kernel.outputs, strict=True)]
            results = self._compiled(kernel)(
                arrays,
                output_init=[array.copy() for array in outputs],
                numbers=[value_of_dim(n, symbols) if isinstance(n, SymDim) else n.value for n in step.numbers],
            )
            for array, result in zip(outputs, results, strict=True):
                array[:] = result
        if program.growing is not None:
            self.length = value_of_dim(SymDim(program.growing.size) + program.growing.added, symbols)
        for tensor in program.state:
            if tensor.has_two_copies:
                past, present = self._memory[tensor.past], self._memory[tensor.present]
                self._memory[tensor.past], self._memory[tensor.present] = present, past
        return {s.name: self._live_elements(s, symbols) for s in program.outputs}

    def _define(self, node: Define, symbols: dict[str, int]) -> None:
        """Give a size its value in `symbols`. Raise ValueError for a value that is not allowed."""
        value = symbols[node.size] = int(self._memory[node.value.storage][node.value.offset])
        if not node.least <= value <= node.most or not all(check.holds(symbols) for check in node.checks):
            what = node.requirement or f"the size {node.size} that the run finds is {node.least} to {node.most}"
            raise ValueError(f"a condition is violated by the value {value}: {what}")

    def _symbols_of(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Return the values of the symbols in formulas of the program, from the shapes of inputs."""
        pairs = [
            (dim, size, storage.name)
            for storage in self._program.inputs
            for dim, size in zip(storage.run_time_shape, np.shape(inputs[storage.name]), strict=True)
        ]
        values, contradictions = solve_dims((dim, size) for dim, size, _ in pairs if isinstance(dim, SymDim))
        contradictions += [
            f"an extent of {name} is {size} instead of {dim}"
            for dim, size, name in pairs
            if not isinstance(dim, SymDim) and dim != size
        ]
        if contradictions:
            raise ValueError("; ".join(contradictions))
        growing = self._program.growing
        if growing is not None:
            values[growing.size] = self.length
        values |= {name: o.size_of(inputs[o.input]) for name, o in self._program.operands.items()}
        symbols = {symbol_of_multiples(name, r.step): (name, r.step) for name, r in self._program.sizes.items()}
        found = self._program.symbol_values({n: values[s] * step for s, (n, step) in symbols.items() if s in values})
        if growing is not None and not growing.check.holds(found):
            raise ValueError(f"the state has no room: {growing.check} does not hold")
        return found

    def _live_elements(self, storage: Storage, symbols: Mapping[str, int]) -> Array:
        """Return a copy of the elements of a tensor, in its shape for values of symbols."""
        shape = [value_of_dim(dim, symbols) for dim in storage.run_time_shape]
        elements: Array = self._memory[storage][: math.prod(shape)].reshape(shape).copy()
        return elements

    def _array(self, storage: Storage, arena: Array) -> Array:
        """Return the memory of a temporary: a part of the arena, or its own if no memory is planned."""
        at = self._program.plan.offsets.get(storage)
        if at is None:
            return _patterned_array(storage)
        return arena[at : at + storage.nbytes].view(storage.dtype.numpy)

    def _elements(self, view: View, buffer: Buffer) -> Array:
        elements = self._memory[view.storage][view.offset : view.offset + buffer.size]
        assert elements.size == buffer.size, f"{view.storage.name} has fewer elements than {buffer.name}"
        return elements


def _patterned_array(storage: Storage) -> Array:
    return np.full(storage.nbytes, _PATTERN, np.uint8).view(storage.dtype.numpy)
