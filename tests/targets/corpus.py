# SPDX-License-Identifier: Apache-2.0
"""Kernels from seeds, compiled by every C compiler at hand at two levels, beside the interpreter: equal bits.

jobs = [drawn(seed, machine("x86-64-v3").target) for seed in range(12)]
disagreements(jobs, machine("x86-64-v3"), tmp_path)      # ["clang -O2: k7: ..."]

Vectors and multiply-adds are in the program, so that nothing but a fault of a compiler, or code that means nothing
certain, can tell the results apart.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from aotc import relay
from aotc.relay.backend.kernels import lower_function
from aotc.tir.interp import run_kernel
from aotc.tir.stmt import Kernel
from aotc.tir.target import Target
from tests.codegen.batch import Array, finished
from tests.codegen.bits import calls_library, wrong
from tests.targets.fused import fused
from tests.targets.machines import Machine
from tests.tir.loopgen import made

Job = tuple[Kernel, Sequence[Array]]
LEVELS = ("-O2", "-O0")
COMPILERS = ("gcc", "clang", "clang-19")


def lowered(function: relay.Function, name: str, target: Target) -> Kernel:
    """The kernel of a function as it is printed, with vectors and multiply-adds."""
    return finished(lower_function(function, name, target), target)


def of_fused(seed: int, target: Target) -> Job:
    """A fused function as one kernel."""
    function = fused(seed)
    return lowered(function.function, f"k{seed}", target), function.inputs


def drawn(seed: int, target: Target) -> Job:
    """A fused function, or for odd seeds a loop of all kinds of numbers and operations."""
    if seed % 2 == 0:
        return of_fused(seed // 2, target)
    kernel, inputs = made(seed // 2)
    return finished(kernel, target), inputs


def compilers(here: Machine) -> Sequence[str]:
    """The compilers for a machine: those that are installed, or the only one for another architecture."""
    return (here.cc,) if here.emulator else tuple(filter(shutil.which, COMPILERS))


def disagreements(jobs: Sequence[Job], here: Machine, folder: Path, *flags: str) -> list[str]:
    """What compiled kernels compute differently from the interpreter; `flags` come last.

    Where the C library decides on the bits, the results of the first compilation are those that are expected.
    """
    expected, problems = [run_kernel(*job) for job in jobs], []
    for number, (cc, level) in enumerate(product(compilers(here), LEVELS)):
        place = folder / f"{number}"
        place.mkdir()
        results = replace(here, cc=cc).run_kernels(jobs, place, level, *flags)
        if number == 0:
            rows = zip(jobs, results, expected, strict=True)
            expected = [found if calls_library(job[0]) else want for job, found, want in rows]
        texts = [wrong(k, found, want) for (k, _), found, want in zip(jobs, results, expected, strict=True)]
        problems += [f"{Path(cc).name} {level}: {text}" for text in texts if text]
    return problems
