# SPDX-License-Identifier: Apache-2.0
"""Propagate the alignment of kernel parameters, so that GPU kernels may use vector loads.

Input: a program. Output: the program with the alignment of parameters that holds in all calls of
each kernel. Whole tensors are aligned to 16 bytes; a part of a tensor is as well aligned as its
offset. If a kernel with vector loads is called with an argument of smaller alignment, it reads an
aligned copy.
"""

import math
from dataclasses import replace
from typing import Any

from aotc.tir import (
    INDEX,
    Buffer,
    Const,
    Kernel,
    Program,
    Step,
    Storage,
    View,
    direct_loads,
    make_copy_step,
    walk_stmts,
)
from aotc.tir.device.kernel_fission import replace_buffers_with_offsets
from aotc.tir.loops.gpu_vector_access_predicate import MAX_ACCESS_BYTES


def annotate_parameter_alignment(program: Program) -> Program:
    """Return the program with each kernel parameter annotated with the alignment that all calls
    guarantee.
    """
    program = program.map_steps(_copy_misaligned_arguments)
    known: dict[Buffer, int] = {}
    for step in program.steps:
        for buffer, view in zip(step.kernel.params, step.args, strict=True):
            known[buffer] = math.gcd(known.get(buffer, MAX_ACCESS_BYTES), _argument_alignment_bytes(buffer, view))
    return program.replace_kernels(
        {kernel: _set_parameter_alignments(kernel, known) for kernel in program.distinct_kernels}
    )


def _argument_alignment_bytes(param: Buffer, argument: View) -> int:
    """Return the alignment in bytes, at most `MAX_ACCESS_BYTES`, of the memory that a call passes
    for a kernel parameter.
    """
    return math.gcd(MAX_ACCESS_BYTES, argument.storage.align, argument.offset * param.dtype.itemsize)


def new_temporary_view(kernel: Kernel, param: Buffer) -> View:
    """Return a view of a new temporary of the program, with a kernel parameter's dtype and size."""
    name = f"{kernel.name}_{param.name}"
    return View(Storage(name=name, dtype=param.dtype, shape=(param.size,)))


def _copy_misaligned_arguments(step: Step) -> list[Step]:
    """Return a kernel call, preceded by copies of the arguments that are not aligned for the
    kernel's vector loads.
    """
    pieces: dict[Buffer, int] = {}
    for load in (e for s in walk_stmts(step.kernel.body) for e in direct_loads(s) if e.lanes > 1):
        pieces[load.buffer] = max(pieces.get(load.buffer, 0), load.lanes * load.dtype.itemsize)
    args, copies = list(step.args), list[Step]()
    for k, (buffer, view) in enumerate(zip(step.kernel.inputs, step.inputs, strict=True)):
        if _argument_alignment_bytes(buffer, view) % pieces.get(buffer, 1):
            args[k] = new_temporary_view(step.kernel, buffer)
            copies.append(make_copy_step(view, args[k]))
    return [*copies, replace(step, args=tuple(args)) if copies else step]


def _set_parameter_alignments(kernel: Kernel, alignment_of_param: dict[Buffer, int]) -> Kernel:
    """Return a kernel with the alignment of its parameters set to the values in
    `alignment_of_param`.
    """
    places = {
        b: (replace(b, align=alignment_of_param[b]), Const(0, INDEX))
        for b in kernel.params
        if alignment_of_param[b] != b.align
    }
    if not places or kernel.source is not None:
        return kernel
    kinds: dict[str, Any] = {
        kind: tuple(places[b][0] if b in places else b for b in getattr(kernel, kind))
        for kind in ("inputs", "outputs", "workspace", "private")
    }
    return replace(kernel, **kinds, body=replace_buffers_with_offsets(kernel.body, places))
