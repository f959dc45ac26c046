# SPDX-License-Identifier: Apache-2.0
"""Search for the first wrong kernel of a compiled model, and for its cause: the C compiler or the
schedule.

In: a compilation and inputs.  Out: the first kernel, in the order of calls, whose compiled code
gives other bits than the interpreter of its loop nest; if there is none, the first kernel whose
loop nest gives other values than the graph operators that it implements.

    find_first_wrong_kernel(work, {"x": array}, bound=1e-5).kernel  # "kernel net_relu (nodes act), ..."

Every kernel runs on the interpreter's results of the kernels before it, so an error does not
propagate.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from aotc_codegen.c.kernel_files import print_kernels

from aotc.checking.evaluation_memory_budget import DEFAULT_MEMORY_BYTES, EVALUATION_BYTES_PER_RESULT_BYTE, MemoryBudget
from aotc.checking.input_generation import Arrays
from aotc.checking.output_comparison import compare_arrays, relative_error_bound_for_dtype
from aotc.driver.detect_c_compiler_miscompilation import describe_bit_difference, model_nodes_text
from aotc.driver.pipeline import Compilation
from aotc.ir import Array, DType, flatten_nested_tuple, frozen, nest_values_like_type, tensor_types
from aotc.relay.graph_api import Function, evaluate, type_of
from aotc.runtime.kernel_library import KernelLibrary
from aotc.tir import Buffer, Kernel, Program, Step, Storage, View, compile_kernel, executed_steps

COMPILER, SCHEDULE = "the C compiler", "the schedule"


@frozen
class SuspectKernel:
    """A wrong kernel and the cause of the error; both fields are empty if no kernel is wrong.

    blame    "the C compiler" or "the schedule"
    kernel   the kernel with its nodes, the output that is wrong, and how it differs
    """

    blame: str = ""
    kernel: str = ""


def find_first_wrong_kernel(
    compilation: Compilation, inputs: Arrays, *, bound: float, memory: int = DEFAULT_MEMORY_BYTES
) -> SuspectKernel:
    """Return the first kernel that the C compiler translated wrongly, else the first whose loop
    nest differs from its operators.

    bound     largest accepted error of a float32 result of a loop nest against its operators,
              relative to the standard deviation
    memory    largest number of bytes of the model's tensors and of the copies that a comparison
              makes

    Raise AotcError (code "memory") if the comparison needs more memory.
    """
    calls, program = (
        compilation.lowered_programs[compilation.index_of_best_runnable_version],
        compilation.scheduled_programs[compilation.index_of_best_runnable_version],
    )
    compilation.progress("comparing kernels with the interpreter")
    library = compilation.compile_kernels({f"{k}": kernel for k, kernel in enumerate(program.distinct_kernels)})
    first_suspect = SuspectKernel()
    budget = MemoryBudget(memory, "comparing kernels")
    schedule = _KernelComparison(calls, program, library, bound, budget)
    for step, suspect in schedule.run_steps_and_yield_wrong_outputs(inputs):
        span = step.span or step.kernel.span
        name = f"kernel {schedule.names[step.kernel]}{model_nodes_text([span] if span is not None else [])}"
        if suspect.blame == COMPILER or not first_suspect.blame:
            first_suspect = SuspectKernel(suspect.blame, f"{name}, {suspect.kernel}")
        if suspect.blame == COMPILER:
            break
    return first_suspect


def _kernel_names_without_model_prefix(program: Program) -> dict[Kernel, str]:
    """Return the names of kernels in the emitted project, without the model's name as a prefix."""
    names = print_kernels(program.distinct_kernels, program.name, kernel_merging="values").names
    return {kernel: name.removeprefix(f"{program.name}_") for kernel, name in names.items()}


class _KernelComparison:
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
        self.names, self._budget = _kernel_names_without_model_prefix(program), budget
        budget.require_bytes_fit_in_memory_budget("the arena", program.plan.peak)
        self._arena = np.zeros(program.plan.peak, np.uint8)
        budget.add_buffers_of_held_value(self._arena)
        self._node_values: dict[Storage, Array] = {}

    def run_steps_and_yield_wrong_outputs(self, inputs: Arrays) -> Iterator[tuple[Step, SuspectKernel]]:
        """Run all steps on the inputs and yield each wrong output, in the order of the steps, with
        its step.

        In the Suspect, `kernel` is the output's name and how it differs. The interpreter's results
        are the inputs of later steps.
        """
        program = self._program
        for storage in program.inputs:
            self._node_values[storage] = _flat_array_of_storage_dtype(inputs[storage.name], storage)
        numbers = {kernel: f"{k}" for k, kernel in enumerate(program.distinct_kernels)}
        interpreted = cache(compile_kernel)
        call_of_step = dict(zip(program.steps, self._calls.steps, strict=True))
        for step in executed_steps(program.body, self._is_true, lambda _: None):
            call, kernel = call_of_step[step], step.kernel
            self._require_and_count_memory_of_step(step)
            outputs = list(zip(step.outputs, step.kernel.outputs, strict=True))
            arrays = [
                self._elements_accessed_through_view(v, b).copy()
                for v, b in zip(step.inputs, kernel.inputs, strict=True)
            ]
            # in-place kernels read their outputs
            before = [self._elements_accessed_through_view(v, b).copy() for v, b in outputs]
            meant = self._evaluate_graph_operators_of_step(call)
            expected = actual = [array.copy() for array in before]
            self._library.run_kernel(numbers[kernel], arrays, actual)
            if kernel.source is None:
                # a kernel in the user's C has no loop nest to interpret
                expected = interpreted(kernel)(arrays, output_init=before)
            for k, (view, buffer) in enumerate(outputs):
                name = f"output {view.storage.name!r}: "
                if reason := describe_bit_difference(buffer, actual[k], expected[k], "by its program"):
                    yield step, SuspectKernel(COMPILER, name + reason)
                if meant and (
                    reason := self._describe_difference_from_graph_result(view, kernel, expected[k], meant[k])
                ):
                    yield step, SuspectKernel(SCHEDULE, name + reason)
                self._elements_accessed_through_view(view, buffer)[:] = expected[k]

    def _is_true(self, condition: View) -> bool:
        return bool(self._elements_of_storage(condition.storage)[condition.offset])

    def _require_and_count_memory_of_step(self, step: Step) -> None:
        """Raise AotcError (code "memory") unless the buffers of a step and copies of its inputs and
        outputs fit in the budget; count the new buffers.
        """
        kernel = step.kernel
        for view in (*step.inputs, *step.outputs):
            if view.storage.kind != "temp" and view.storage not in self._node_values:
                self._budget.add_buffers_of_held_value(self._elements_of_storage(view.storage))
        read, written = (sum(b.nbytes for b in side) for side in (kernel.inputs, kernel.outputs))
        self._budget.require_bytes_fit_in_memory_budget(
            f"kernel {self.names[kernel]}", read + EVALUATION_BYTES_PER_RESULT_BYTE * written
        )

    def _evaluate_graph_operators_of_step(self, step: Step) -> list[Array]:
        """Return the results of the graph operators that a kernel implements; an empty list for
        copies and for kernels in the user's C.
        """
        if not isinstance(step.origin, Function) or step.kernel.source is not None:
            return []
        views = iter(zip(step.inputs, step.kernel.inputs, strict=True))
        arguments = []
        for param in step.origin.params:
            parts = [
                self._elements_accessed_through_view(*next(views)).reshape(ty.static_shape)
                for ty in tensor_types(type_of(param))
            ]
            arguments.append(nest_values_like_type(type_of(param), iter(parts)))
        with np.errstate(all="ignore"):
            return [
                array.reshape(-1)
                for array in flatten_nested_tuple(evaluate(step.origin, *arguments, watch=self._budget))
            ]

    def _elements_accessed_through_view(self, view: View, buffer: Buffer) -> Array:
        """Return the array of the elements that a kernel accesses through a view of a storage."""
        return self._elements_of_storage(view.storage)[view.offset : view.offset + buffer.size]

    def _elements_of_storage(self, storage: Storage) -> Array:
        """Return all elements of a storage as a flat array: a part of the arena for temporaries,
        else an array of its own.
        """
        if storage.kind == "temp":
            start = self._program.plan.offsets[storage]
            return self._arena[start : start + storage.nbytes].view(storage.dtype.numpy)
        if storage not in self._node_values:
            self._node_values[storage] = _flat_array_of_storage_dtype(storage.data, storage)
        return self._node_values[storage]

    def _describe_difference_from_graph_result(self, view: View, kernel: Kernel, actual: Array, expected: Array) -> str:
        """Return how an output of a loop nest differs from its operators' result, "" if it is
        within the bounds of `aotc verify`.

        Integers that are computed from floats may differ by 1, for rounding.
        """
        dtype: DType = view.storage.dtype
        compared = compare_arrays(
            view.storage.name, actual, expected, relative_error_bound_for_dtype(dtype, self._bound)
        )
        rounded = dtype.is_integer and compared.max_abs <= 1 and any(b.dtype.is_float for b in kernel.params)
        return "" if rounded else compared.reason


def _flat_array_of_storage_dtype(data: Array | None, storage: Storage) -> Array:
    """Return data as a flat array of a storage's dtype; zeros if there is no data yet."""
    if data is None:
        return np.zeros(storage.size, storage.dtype.numpy)
    return np.ascontiguousarray(data).astype(storage.dtype.numpy, copy=False).reshape(-1)
