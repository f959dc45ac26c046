# SPDX-License-Identifier: Apache-2.0
"""What kernels know of where their parameters begin: a program in, one out whose kernels may move pieces of them.

Whole tensors lie at multiples of 16 bytes wherever they are; a part of one where it begins at such a place.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from aotc.tir import INDEX, Buffer, Const, Kernel
from aotc.tir.device.parts import elsewhere
from aotc.tir.loops.vector_access import MOST
from aotc.tir.plan.program import Program


def with_alignment(program: Program) -> Program:
    """The program with the alignment that all calls of a kernel give its parameters."""
    known: dict[Buffer, int] = {}
    for step in program.steps:
        for buffer, view in zip(step.kernel.params, step.args, strict=True):
            begin = view.offset * buffer.dtype.itemsize
            known[buffer] = math.gcd(known.get(buffer, MOST), view.storage.align, begin)
    return program.with_kernels({kernel: _aligned(kernel, known) for kernel in program.kernels})


def _aligned(kernel: Kernel, known: dict[Buffer, int]) -> Kernel:
    places = {b: (replace(b, align=known[b]), Const(0, INDEX)) for b in kernel.params if known[b] > b.align}
    if not places or kernel.source is not None:
        return kernel
    kinds: dict[str, Any] = {
        kind: tuple(places[b][0] if b in places else b for b in getattr(kernel, kind))
        for kind in ("inputs", "outputs", "workspace", "private")
    }
    return replace(kernel, **kinds, body=elsewhere(kernel.body, places))
