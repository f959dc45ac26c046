# SPDX-License-Identifier: Apache-2.0
"""Which kernel of a model is wrong, and who made it so: the C compiler, or the schedule.

In: a model on its way, and inputs.  Out: the first kernel, in the order of calls, whose
compiled code has other bits than its interpreted program; if there is none, the first whose program gives something
else than the operators that it was made of.

    first_suspect(work, {"x": array}, bound=1e-5).kernel     # "kernel net_relu (nodes act), ..."

Every kernel runs on what the interpreter made of the ones before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from aotc_codegen.c.kernel_files import print_kernels

from aotc.checking.compare import bound_for, compare
from aotc.checking.input_generation import Arrays
from aotc.checking.memory_budget import DEFAULT_MEMORY_BYTES, TEMPORARY_RESULTS, MemoryBudget
from aotc.driver.compiler_check import nodes_text, unequal
from aotc.driver.pipeline import Compilation
from aotc.ir import Array, DType, frozen, leaves, nested, tensor_types
from aotc.relay.graph_api import Function, evaluate, type_of
from aotc.runtime.kernel_library import KernelLibrary
from aotc.tir import Buffer, Kernel, Program, Step, Storage, View, compile_kernel

COMPILER, SCHEDULE = "the C compiler", "the schedule"


@frozen
class Suspect:
    """A kernel with its nodes and the result that is wrong, and who is to blame; both empty where no kernel is."""

    blame: str = ""
    kernel: str = ""


def first_suspect(work: Compilation, inputs: Arrays, *, bound: float, memory: int = DEFAULT_MEMORY_BYTES) -> Suspect:
    """The first kernel that the compiler translated wrongly; else the first that is not what its operators mean.

    bound     what the error of a float32 result relative to its standard deviation may be between program and operators
    memory    the most bytes that the tensors of the model, and the copies of those that a kernel takes, may be

    Raises AotcError (code "memory") where the memory does not do.
    """
    calls, program = work.calls[work.here], work.programs[work.here]
    work.progress("comparing kernels with the interpreter")
    library = work.compile_kernels({f"{k}": kernel for k, kernel in enumerate(program.kernels)})
    found = Suspect()
    budget = MemoryBudget(memory, "comparing kernels")
    for step, suspect in _Schedule(calls, program, library, bound, budget).suspects(inputs):
        span = step.span or step.kernel.span
        name = f"kernel {_name(program, step.kernel)}{nodes_text([span] if span is not None else [])}"
        if suspect.blame == COMPILER or not found.blame:
            found = Suspect(suspect.blame, f"{name}, {suspect.kernel}")
        if suspect.blame == COMPILER:
            break
    return found


def _name(program: Program, kernel: Kernel) -> str:
    """The name of a kernel in the project, without that of the model."""
    return print_kernels(program.kernels, program.name, share="values").names[kernel].removeprefix(f"{program.name}_")


class _Schedule:
    """Runs a program in the interpreter, each kernel compiled beside it, and the operators that it was made of.

    calls    the program before the passes that work in place and make vectors: its steps have all inputs
    """

    def __init__(
        self, calls: Program, program: Program, library: KernelLibrary, bound: float, budget: MemoryBudget
    ) -> None:
        self._calls, self._program, self._library, self._bound = calls, program, library, bound
        self._budget = budget
        budget.require_fits("the arena", program.plan.peak)
        self._arena = np.zeros(program.plan.peak, np.uint8)
        budget.hold(self._arena)
        self._own: dict[Storage, Array] = {}

    def suspects(self, inputs: Arrays) -> Iterator[tuple[Step, Suspect]]:
        """Results that are wrong, in order; `kernel` says which and how."""
        program = self._program
        for storage in program.inputs:
            self._own[storage] = _flat(inputs[storage.name], storage)
        numbers = {kernel: f"{k}" for k, kernel in enumerate(program.kernels)}
        interpreted = cache(compile_kernel)
        for call, step in zip(self._calls.steps, program.steps, strict=True):
            kernel = step.kernel
            self._require_memory(step)
            outputs = list(zip(step.outputs, step.kernel.outputs, strict=True))
            arrays = [self._part(v, b).copy() for v, b in zip(step.inputs, kernel.inputs, strict=True)]
            # kernels that work in place read their outputs
            before = [self._part(v, b).copy() for v, b in outputs]
            meant = self._meant(call)
            expected = actual = [array.copy() for array in before]
            self._library.call(numbers[kernel], arrays, actual)
            if kernel.source is None:
                # else its program is the user's C
                expected = interpreted(kernel)(arrays, output_init=before)
            for k, (view, buffer) in enumerate(outputs):
                name = f"output {view.storage.name!r}: "
                if reason := unequal(buffer, actual[k], expected[k], "by its program"):
                    yield step, Suspect(COMPILER, name + reason)
                if meant and (reason := self._differs(view, kernel, expected[k], meant[k])):
                    yield step, Suspect(SCHEDULE, name + reason)
                self._part(view, buffer)[:] = expected[k]

    def _require_memory(self, step: Step) -> None:
        """Copies of the inputs, and of the outputs before the call, by the compiled kernel and by its program."""
        kernel = step.kernel
        for view in (*step.inputs, *step.outputs):
            if view.storage.kind != "temp" and view.storage not in self._own:
                self._budget.hold(self._elements(view.storage))
        read, written = (sum(b.nbytes for b in side) for side in (kernel.inputs, kernel.outputs))
        self._budget.require_fits(f"kernel {_name(self._program, kernel)}", read + TEMPORARY_RESULTS * written)

    def _meant(self, call: Step) -> list[Array]:
        """The results of the operators that a kernel was made of; none for copies and the user's code."""
        if not isinstance(call.origin, Function) or call.kernel.source is not None:
            return []
        views = iter(zip(call.inputs, call.kernel.inputs, strict=True))
        arguments = []
        for param in call.origin.params:
            parts = [self._part(*next(views)).reshape(ty.static_shape) for ty in tensor_types(type_of(param))]
            arguments.append(nested(type_of(param), iter(parts)))
        with np.errstate(all="ignore"):
            return [array.reshape(-1) for array in leaves(evaluate(call.origin, *arguments, watch=self._budget))]

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

    def _differs(self, view: View, kernel: Kernel, found: Array, meant: Array) -> str:
        """As `aotc verify` compares; integers that are made of floats may be rounded to the next one."""
        dtype: DType = view.storage.dtype
        compared = compare(view.storage.name, found, meant, bound_for(dtype, self._bound))
        rounded = dtype.is_integer and compared.max_abs <= 1 and any(b.dtype.is_float for b in kernel.params)
        return "" if rounded else compared.reason


def _flat(data: Array | None, storage: Storage) -> Array:
    """The elements of a storage; zeros where it has no values yet."""
    if data is None:
        return np.zeros(storage.size, storage.dtype.numpy)
    return np.ascontiguousarray(data).astype(storage.dtype.numpy, copy=False).reshape(-1)
