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

from aotc.tir import INDEX, Buffer, Const, Kernel, Program, Step, Storage, View, copy_step, loads, walk_stmts
from aotc.tir.device.kernel_fission import elsewhere
from aotc.tir.loops.vector_access import MOST


def with_alignment(program: Program) -> Program:
    """Return the program with each kernel parameter annotated with the alignment that all calls
    guarantee.
    """
    program = replace(program, steps=tuple(made for step in program.steps for made in _copied(step)))
    known: dict[Buffer, int] = {}
    for step in program.steps:
        for buffer, view in zip(step.kernel.params, step.args, strict=True):
            known[buffer] = math.gcd(known.get(buffer, MOST), _alignment(buffer, view))
    return program.with_kernels({kernel: _aligned(kernel, known) for kernel in program.kernels})


def _alignment(buffer: Buffer, view: View) -> int:
    """Return the alignment in bytes, at most `MOST`, of the memory that a call passes for a kernel
    parameter.
    """
    return math.gcd(MOST, view.storage.align, view.offset * buffer.dtype.itemsize)


def temporary(kernel: Kernel, buffer: Buffer) -> View:
    """Return a view of newly allocated memory for a parameter of a kernel."""
    name = f"{kernel.name}_{buffer.name}"
    return View(Storage(name=name, dtype=buffer.dtype, shape=(buffer.size,)))


def _copied(step: Step) -> list[Step]:
    """Return a kernel call, preceded by copies of the arguments that are not aligned for the
    kernel's vector loads.
    """
    pieces: dict[Buffer, int] = {}
    for load in (e for s in walk_stmts(step.kernel.body) for e in loads(s) if e.lanes > 1):
        pieces[load.buffer] = max(pieces.get(load.buffer, 0), load.lanes * load.dtype.itemsize)
    args, made = list(step.args), list[Step]()
    for k, (buffer, view) in enumerate(zip(step.kernel.inputs, step.inputs, strict=True)):
        if _alignment(buffer, view) % pieces.get(buffer, 1):
            args[k] = temporary(step.kernel, buffer)
            made.append(copy_step(view, args[k]))
    return [*made, replace(step, args=tuple(args)) if made else step]


def _aligned(kernel: Kernel, known: dict[Buffer, int]) -> Kernel:
    """Return a kernel with the alignment of its parameters set to the values in `known`."""
    places = {b: (replace(b, align=known[b]), Const(0, INDEX)) for b in kernel.params if known[b] != b.align}
    if not places or kernel.source is not None:
        return kernel
    kinds: dict[str, Any] = {
        kind: tuple(places[b][0] if b in places else b for b in getattr(kernel, kind))
        for kind in ("inputs", "outputs", "workspace", "private")
    }
    return replace(kernel, **kinds, body=elsewhere(kernel.body, places))
