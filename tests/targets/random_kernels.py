# SPDX-License-Identifier: Apache-2.0
"""Random kernels, compiled by every installed C compiler at two levels, have the interpreter's bits.

jobs = [drawn(seed, machine("x86-64-v3").target) for seed in range(12)]
disagreements(jobs, machine("x86-64-v3"), tmp_path)      # ["clang -O2: k7: ..."]

Vectors and multiply-adds are in the program, so that nothing but a fault of a compiler, or code that means nothing
certain, can tell the results apart.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

from aotc import relay
from aotc.relay.backend.function_to_kernel import lower_fused_function
from aotc.tir.expr import Call
from aotc.tir.interpreter import run_kernel
from aotc.tir.stmt import Kernel, all_exprs_in_stmt
from aotc.tir.target import Target
from tests.codegen.batch import Array, finished
from tests.codegen.bit_comparison import wrong
from tests.targets.fused_functions import fused
from tests.targets.machines import Machine
from tests.tir.random_loops import made

Job = tuple[Kernel, Sequence[Array]]
LEVELS = ("-O2", "-O0")
COMPILERS = ("gcc", "clang", "clang-19")
BELOW_ZERO = """
#include <math.h>
double below(double x) { return 1.0 / sqrt(x) < 0.0; }
int main(int count, char **arguments) { return below(-0.0 * count) != 1.0; }
"""
"""What clang 14 optimizes wrongly: a number divided by a square root may be less than zero, where the root is -0.0."""


def lowered(function: relay.Function, name: str, target: Target) -> Kernel:
    """The kernel of a function as it is printed, with vectors and multiply-adds."""
    return finished(lower_fused_function(function, name, target), target)


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


@cache
def is_wrong_below_zero(cc: str, level: str) -> bool:
    """Whether a compiler thinks so."""
    with tempfile.TemporaryDirectory() as folder:
        command = [cc, "-fno-math-errno", level, "-x", "c", "-", "-o", f"{folder}/below", "-lm"]
        subprocess.run(command, input=BELOW_ZERO, text=True, check=True, capture_output=True)
        return subprocess.run([f"{folder}/below"], check=False).returncode == 1


def has_roots(kernel: Kernel) -> bool:
    """Whether a kernel has square roots, or functions that do."""
    return any(isinstance(n, Call) and n.name in ("sqrt", "rsqrt") for n in all_exprs_in_stmt(kernel.body))


def disagreements(
    jobs: Sequence[Job], here: Machine, folder: Path, *flags: str, levels: Sequence[str] = LEVELS, others: bool = True
) -> list[str]:
    """What compiled kernels compute differently from the interpreter; `flags` come last.

    others    whether by all compilers that are installed

    Kernels with square roots are not compared by a compiler that is wrong about these.
    """
    expected, problems = [run_kernel(*job) for job in jobs], []
    ways = product(compilers(here) if others else (here.cc,), levels)
    for number, (cc, level) in enumerate(ways):
        place = folder / f"{number}"
        place.mkdir()
        results = replace(here, cc=cc).run_kernels(jobs, place, level, *flags)
        roots = not here.emulator and is_wrong_below_zero(cc, level)
        for (kernel, _), found, want in zip(jobs, results, expected, strict=True):
            text = wrong(kernel, found, want)
            if text and not (roots and has_roots(kernel)):
                problems.append(f"{Path(cc).name} {level}: {text}")
    return problems
