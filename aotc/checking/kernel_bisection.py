# SPDX-License-Identifier: Apache-2.0
"""Search for the first wrong kernel of a compiled model, and for its cause: the C compiler or the
schedule.

In: a compilation and inputs.  Out: the first kernel, in the order of calls, whose compiled code
gives other bits than the interpreter of its loop nest; if there is none, the first kernel whose
loop nest gives other values than the graph operators that it implements.

    first_suspect(work, {"x": array}, bound=1e-5).kernel     # "kernel net_relu (nodes act), ..."

Every kernel runs on the interpreter's results of the kernels before it, so an error does not
propagate.
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
    """A wrong kernel and the cause of the error; both fields are empty if no kernel is wrong.

    blame    "the C compiler" or "the schedule"
    kernel   the kernel with its nodes, the output that is wrong, and how it differs
    """

    blame: str = ""
    kernel: str = ""


def first_suspect(work: Compilation, inputs: Arrays, *, bound: float, memory: int = DEFAULT_MEMORY_BYTES) -> Suspect:
    """Return the first kernel that the C compiler translated wrongly, else the first whose loop
    nest differs from its operators.

    bound     largest accepted error of a float32 result of a loop nest against its operators,
              relative to the standard deviation
    memory    largest number of bytes of the model's tensors and of the copies that a comparison
              makes

    Raise AotcError (code "memory") if the comparison needs more memory.
    """
    calls, program = work.calls[work.here], work.programs[work.here]
    work.progress("comparing kernels with the interpreter")
    library = work.compile_kernels({f"{k}": kernel for k, kernel in enumerate(program.kernels)})
    found = Suspect()
    budget = MemoryBudget(memory, "comparing kernels")
    schedule = _Schedule(calls, program, library, bound, budget)
    for step, suspect in schedule.suspects(inputs):
        span = step.span or step.kernel.span
        name = f"kernel {schedule.names[step.kernel]}{nodes_text([span] if span is not None else [])}"
        if suspect.blame == COMPILER or not found.blame:
            found = Suspect(suspect.blame, f"{name}, {suspect.kernel}")
        if suspect.blame == COMPILER:
            break
    return found


def _names(program: Program) -> dict[Kernel, str]:
    """Return the names of kernels in the emitted project, without the model's name as a prefix."""
    names = print_kernels(program.kernels, program.name, share="values").names
    return {kernel: name.removeprefix(f"{program.name}_") for kernel, name in names.items()}


class _Schedule:
    """Comparison of each kernel of a program in three forms: compiled C, interpreted loop nest, and
    graph operators.

    calls    the program before the passes for in-place execution and vectorization: its steps list
             all their inputs
    names    names of the kernels in the emitted project
    """

    def __init__(
        self, calls: Program, program: Program, library: KernelLibrary, bound: float, budget: MemoryBudget
    ) -> None:
        self._calls, self._program, self._library, self._bound = calls, program, library, bound
        self.names, self._budget = _names(program), budget
        budget.require_fits("the arena", program.plan.peak)
        self._arena = np.zeros(program.plan.peak, np.uint8)
        budget.hold(self._arena)
        self._own: dict[Storage, Array] = {}

    def suspects(self, inputs: Arrays) -> Iterator[tuple[Step, Suspect]]:
        """Run all steps on the inputs and yield each wrong output, in the order of the steps, with
        its step.

        In the Suspect, `kernel` is the output's name and how it differs. The interpreter's results
        are the inputs of later steps.
        """
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
            # in-place kernels read their outputs
            before = [self._part(v, b).copy() for v, b in outputs]
            meant = self._meant(call)
            expected = actual = [array.copy() for array in before]
            self._library.call(numbers[kernel], arrays, actual)
            if kernel.source is None:
                # a kernel in the user's C has no loop nest to interpret
                expected = interpreted(kernel)(arrays, output_init=before)
            for k, (view, buffer) in enumerate(outputs):
                name = f"output {view.storage.name!r}: "
                if reason := unequal(buffer, actual[k], expected[k], "by its program"):
                    yield step, Suspect(COMPILER, name + reason)
                if meant and (reason := self._differs(view, kernel, expected[k], meant[k])):
                    yield step, Suspect(SCHEDULE, name + reason)
                self._part(view, buffer)[:] = expected[k]

    def _require_memory(self, step: Step) -> None:
        """Raise AotcError (code "memory") unless the buffers of a step and copies of its inputs and
        outputs fit in the budget; count the new buffers.
        """
        kernel = step.kernel
        for view in (*step.inputs, *step.outputs):
            if view.storage.kind != "temp" and view.storage not in self._own:
                self._budget.hold(self._elements(view.storage))
        read, written = (sum(b.nbytes for b in side) for side in (kernel.inputs, kernel.outputs))
        self._budget.require_fits(f"kernel {self.names[kernel]}", read + TEMPORARY_RESULTS * written)

    def _meant(self, call: Step) -> list[Array]:
        """Return the results of the graph operators that a kernel implements; an empty list for
        copies and for kernels in the user's C.
        """
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
        """Return the array of the elements that a kernel accesses through a view of a storage."""
        return self._elements(view.storage)[view.offset : view.offset + buffer.size]

    def _elements(self, storage: Storage) -> Array:
        """Return all elements of a storage as a flat array: a part of the arena for temporaries,
        else an array of its own.
        """
        if storage.kind == "temp":
            start = self._program.plan.offsets[storage]
            return self._arena[start : start + storage.nbytes].view(storage.dtype.numpy)
        if storage not in self._own:
            self._own[storage] = _flat(storage.data, storage)
        return self._own[storage]

    def _differs(self, view: View, kernel: Kernel, found: Array, meant: Array) -> str:
        """Return how an output of a loop nest differs from its operators' result, "" if it is
        within the bounds of `aotc verify`.

        Integers that are computed from floats may differ by 1, for rounding.
        """
        dtype: DType = view.storage.dtype
        compared = compare(view.storage.name, found, meant, bound_for(dtype, self._bound))
        rounded = dtype.is_integer and compared.max_abs <= 1 and any(b.dtype.is_float for b in kernel.params)
        return "" if rounded else compared.reason


def _flat(data: Array | None, storage: Storage) -> Array:
    """Return data as a flat array of a storage's dtype; zeros if there is no data yet."""
    if data is None:
        return np.zeros(storage.size, storage.dtype.numpy)
    return np.ascontiguousarray(data).astype(storage.dtype.numpy, copy=False).reshape(-1)
