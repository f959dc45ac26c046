# SPDX-License-Identifier: Apache-2.0
"""What kernels know of where their parameters begin: a program in, one out whose kernels may move pieces of them.

Whole tensors lie at multiples of 16 bytes wherever they are; a part of one where it begins at such a place.  Kernels
that were made to read pieces of what begins elsewhere read a copy of it.
"""

import math
from dataclasses import replace
from typing import Any

from aotc.tir import INDEX, Buffer, Const, Kernel, Program, Step, Storage, View, copy_step, loads, walk_stmts
from aotc.tir.device.kernel_fission import elsewhere
from aotc.tir.loops.vector_access import MOST


def with_alignment(program: Program) -> Program:
    """The program with the alignment that all calls of a kernel give its parameters."""
    program = replace(program, steps=tuple(made for step in program.steps for made in _copied(step)))
    known: dict[Buffer, int] = {}
    for step in program.steps:
        for buffer, view in zip(step.kernel.params, step.args, strict=True):
            known[buffer] = math.gcd(known.get(buffer, MOST), _alignment(buffer, view))
    return program.with_kernels({kernel: _aligned(kernel, known) for kernel in program.kernels})


def _alignment(buffer: Buffer, view: View) -> int:
    return math.gcd(MOST, view.storage.align, view.offset * buffer.dtype.itemsize)


def temporary(kernel: Kernel, buffer: Buffer) -> View:
    """New memory for a parameter of a kernel."""
    name = f"{kernel.name}_{buffer.name}"
    return View(Storage(name=name, dtype=buffer.dtype, shape=(buffer.size,)))


def _copied(step: Step) -> list[Step]:
    """A step that reads pieces from multiples of their bytes on, behind the copies that it needs for that."""
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
    places = {b: (replace(b, align=known[b]), Const(0, INDEX)) for b in kernel.params if known[b] != b.align}
    if not places or kernel.source is not None:
        return kernel
    kinds: dict[str, Any] = {
        kind: tuple(places[b][0] if b in places else b for b in getattr(kernel, kind))
        for kind in ("inputs", "outputs", "workspace", "private")
    }
    return replace(kernel, **kinds, body=elsewhere(kernel.body, places))
