# SPDX-License-Identifier: Apache-2.0
"""Runs programs with the interpreter of tensor programs, with temporaries at their planned addresses.

outputs = run_program(program, [x])        # flat arrays, in the order of the program's outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.tir.interpreter import compile_kernel
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import Kernel

Array = np.ndarray[Any, Any]


def program_of(kernel: Kernel) -> Program:
    """The program that calls a kernel once; its results are temporaries, which a copy takes to the outputs."""
    kinds = {"input": kernel.inputs, "output": kernel.outputs, "temp": kernel.workspace}
    storage = [
        Storage(name=b.name, dtype=b.dtype, shape=(b.size,), kind=kind) for kind, group in kinds.items() for b in group
    ]
    inputs, outputs = (tuple(s for s in storage if s.kind == kind) for kind in ("input", "output"))
    return Program(name="net", inputs=inputs, outputs=outputs, body=(Step(kernel, tuple(map(View, storage))),))


def run_program(program: Program, inputs: Sequence[Array], backwards: bool = False) -> list[Array]:
    """The outputs, from what is rubbish at first."""
    arena = np.full(program.plan.peak, 0x5A, np.uint8)
    memory: dict[Storage, Array] = dict(zip(program.inputs, (np.array(a).reshape(-1) for a in inputs), strict=True))
    for view in (view for step in program.steps for view in step.args):
        storage = view.storage
        if storage.kind == "temp":
            at = program.plan.offsets[storage]
            memory[storage] = arena[at : at + storage.nbytes].view(storage.dtype.numpy)
        elif storage.data is not None:
            memory[storage] = np.asarray(storage.data).reshape(-1)
        elif storage not in memory:
            memory[storage] = np.full(storage.nbytes, 0x5A, np.uint8).view(storage.dtype.numpy)
    for output in program.outputs:
        memory.setdefault(output, np.zeros(output.size, output.dtype.numpy))
    for step in program.steps:
        kernel, args = step.kernel, step.args
        arrays = [memory[v.storage][v.offset : v.offset + b.size] for v, b in zip(args, kernel.params, strict=True)]
        first, last = len(kernel.inputs), len(kernel.inputs) + len(kernel.outputs)
        given = [a.copy() for a in arrays[:first]]
        made = compile_kernel(kernel)(given, output_init=arrays[first:last], backwards=backwards)
        for array, result in zip(arrays[first:last], made, strict=True):
            array[:] = result
    return [memory[output] for output in program.outputs]
