# SPDX-License-Identifier: Apache-2.0
"""Which compiled kernel of a model computes something else than its program says.

In: a model, inputs, the options that it was compiled with.  Out: the first kernel, in the order of the schedule, whose
compiled code and whose interpreted program differ by more than rounding; "" if there is none.

    first_wrong_kernel(model, {"x": array}, CompileOptions(), bound=1e-5)     # "kernel net_relu (nodes act), ..."

Every kernel runs on what the interpreter made of the ones before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from aotc_codegen.c.kernels import print_kernels
from aotc_codegen.c.names import nodes_of

from aotc.checking.compare import Comparison, bound_for, compare
from aotc.checking.inputs import Arrays
from aotc.driver.compile import CompileOptions
from aotc.ir import Array
from aotc.runtime.kernels import KernelLibrary
from aotc.tir import Buffer, CompiledKernel, Kernel, compile_kernel
from aotc.tir.plan.program import Program, Step, Storage, View

SHOWN_NODES = 8


def first_wrong_kernel(model: Any, inputs: Arrays, options: CompileOptions, *, bound: float) -> str:
    """The first kernel whose compiled code differs from its program, with its nodes and by how much; "" if none does.

    bound     what the error of a float32 result relative to its standard deviation may be
    """
    work = options.compilation(model, toolchain=options.toolchain())
    program = work.programs[work.here]
    options.progress("comparing kernels with the interpreter")
    library = work.compile_kernels({f"{k}": kernel for k, kernel in enumerate(program.kernels)})
    for step, found in _Schedule(program, library, bound).comparisons(inputs):
        if not found.ok:
            return f"kernel {_name(program, step.kernel)}{_nodes(step)}, output {found.name!r}: {found.reason}"
    return ""


def _name(program: Program, kernel: Kernel) -> str:
    """The name of a kernel in the project, without that of the model."""
    return print_kernels(program.kernels, program.name).names[kernel].removeprefix(f"{program.name}_")


def _nodes(step: Step) -> str:
    nodes = nodes_of(step.span or step.kernel.span)
    more = f" and {len(nodes) - SHOWN_NODES} more" if len(nodes) > SHOWN_NODES else ""
    return f" (nodes {', '.join(nodes[:SHOWN_NODES])}{more})" if nodes else ""


class _Schedule:
    """Runs a program in the interpreter, and each kernel compiled beside it, in memory as planned."""

    def __init__(self, program: Program, library: KernelLibrary, bound: float) -> None:
        self._program, self._library, self._bound = program, library, bound
        self._arena = np.zeros(program.plan.peak, np.uint8)
        self._own: dict[Storage, Array] = {}

    def comparisons(self, inputs: Arrays) -> Iterator[tuple[Step, Comparison]]:
        """The results of each step, in order."""
        program = self._program
        for storage in program.inputs:
            self._own[storage] = _flat(inputs[storage.name], storage)
        numbers = {kernel: f"{k}" for k, kernel in enumerate(program.kernels)}
        interpreted: dict[Kernel, CompiledKernel] = {}
        for step in program.steps:
            kernel, outputs = step.kernel, list(zip(step.outputs, step.kernel.outputs, strict=True))
            arrays = [self._part(v, b).copy() for v, b in zip(step.inputs, kernel.inputs, strict=True)]
            before = [self._part(v, b).copy() for v, b in outputs]  # kernels that work in place read their outputs
            expected = actual = [array.copy() for array in before]
            self._library.call(numbers[kernel], arrays, actual)
            if kernel.source is None:  # else its program is the user's C
                if kernel not in interpreted:
                    interpreted[kernel] = compile_kernel(kernel)
                expected = interpreted[kernel](arrays, output_init=before)
            for (view, buffer), a, e in zip(outputs, actual, expected, strict=True):
                yield step, self._compared(view, kernel, a, e)
                self._part(view, buffer)[:] = e

    def _part(self, view: View, buffer: Buffer) -> Array:
        """The elements that a kernel gets."""
        return self._elements(view.storage)[view.offset : view.offset + buffer.size]

    def _elements(self, storage: Storage) -> Array:
        if storage.kind == "temp":
            start = self._program.plan.offsets[storage]
            return self._arena[start : start + storage.nbytes].view(storage.dtype.numpy)
        if storage not in self._own:
            self._own[storage] = _flat(storage.data, storage)
        return self._own[storage]

    def _compared(self, view: View, kernel: Kernel, actual: Array, expected: Array) -> Comparison:
        """As `aotc verify` compares; integers that are made of floats may be rounded to the next one."""
        dtype = view.storage.dtype
        found = compare(view.storage.name, actual, expected, bound_for(dtype, self._bound))
        rounded = dtype.is_integer and found.max_abs <= 1 and any(b.dtype.is_float for b in kernel.params)
        return replace(found, reason="") if rounded else found


def _flat(data: Array | None, storage: Storage) -> Array:
    """The elements of a storage; zeros where it has no values yet."""
    if data is None:
        return np.zeros(storage.size, storage.dtype.numpy)
    return np.ascontiguousarray(data).astype(storage.dtype.numpy, copy=False).reshape(-1)
