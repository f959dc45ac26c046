# SPDX-License-Identifier: Apache-2.0
"""Errors of float32 elementary functions, in units in the last place, against the C library's.

program = build(["x86-64", "x86-64-v3"], tmp_path)
measure(program, "exp", step=4099)                 # {"x86-64": Error(ulp=1.2, argument=..., wrong=0, ...), ...}
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aotc_codegen.c.compiler_flags import kernel_cflags

from aotc import tir
from aotc.ir.dtype import DType
from aotc.ir.types import TensorType
from aotc.relay.backend.function_to_kernel import lower_fused_function
from aotc.relay.expr import Function, Var, typed_op_call
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.tir.passes import kernel_passes
from aotc.tir.stmt import Kernel, forall
from aotc.tir.target import Target
from tests.codegen.batch import STRICT, gnu_c_for, source_of
from tests.conftest import require_tool
from tests.e2e.projects import run, run_all
from tests.targets.machines import Machine, machine

_NAMES = """
exp log tanh erf sigmoid sin cos tan rsqrt power exp2 expm1 log2 log10 log1p cbrt asin acos atan sinh cosh asinh acosh
atanh atan2 tgamma lgamma
"""
NAMES = _NAMES.split()
"""In the order of ulp.c."""
CHUNK = 1 << 14


@dataclass(frozen=True)
class Error:
    """The largest error, an argument that has it, and how many results are of the wrong kind (NaN, infinity, zero).

    like    the first of the targets with the same bits of all results
    """

    ulp: float
    argument: float
    wrong: int
    like: str


@dataclass(frozen=True)
class Program:
    """Kernels of several targets behind one comparison; `runner` runs it."""

    path: Path
    runner: Machine


def _kernel(name: str, target: Target) -> Kernel:
    """The kernel of an operator; of a function that is none, a loop over its calls."""
    two = name in ("power", "atan2")
    if name in OPERATORS_BY_NAME:
        x, y = (Var(n, TensorType((CHUNK,), "float32")) for n in "xy")
        return lower_fused_function(
            Function([x, y], typed_op_call(OPERATORS_BY_NAME[name], [x, y] if two else [x])), "f", target
        )
    i, (p, q, out) = tir.Var("i"), (tir.Buffer(n, DType("float32"), CHUNK) for n in ("p", "q", "out"))
    made = tir.call(name, *[tir.Load(b, i) for b in (p, q)][: 1 + two])
    return Kernel(name=name, inputs=(p, q), outputs=(out,), body=forall(i, CHUNK, tir.Store(out, i, made)))


def kernels(target: Target) -> str:
    """A C file: the kernel of each operator on pairs of CHUNK numbers, called kernel0, kernel1, ..."""
    made: Iterable[Kernel] = (_kernel(name, target) for name in NAMES)
    for item in kernel_passes(target):
        made = map(item.rewrite_kernel, made)
    return source_of(made, gnu_c_for(target))


def _compiler(here: Machine, best: Target | None) -> list[str]:
    """The compiler of a target's kernels, and its flags; clang's vectorizer gets portable C for the `best` target."""
    flags = ["-std=c99", *STRICT, *kernel_cflags(here.target)]
    if best is None or not here.target.is_scalar:
        return [*here.compiler, *flags]
    return [require_tool("clang-19"), *flags, "-O3", "-fvectorize", *best.cflags]


def build(targets: Sequence[str], folder: Path, quick: bool = False) -> Program:
    """The program for targets that one machine runs, the best one last, each compiled with its own flags.

    `quick` lets clang's vectorizer have loops of portable C.
    """
    machines = [machine(name) for name in targets]
    runner, commands, lines = machines[-1], [], []
    takes = "(const float *, const float *, float *)"
    for k, here in enumerate(machines):
        (folder / f"kernels{k}.c").write_text(kernels(here.target), encoding="utf-8")
        renamed = [f"-Dkernel{n}=kernel{n}_{k}" for n in range(len(NAMES))]
        commands.append([*_compiler(here, runner.target if quick else None), *renamed, "-c", f"kernels{k}.c"])
        lines += [f"void kernel{n}_{k}{takes};" for n in range(len(NAMES))]
    table = ", ".join("{" + ", ".join(f"kernel{n}_{k}" for n in range(len(NAMES))) + "}" for k in range(len(machines)))
    names = ", ".join(f'"{name}"' for name in targets)
    lines += [
        f"enum {{ MACHINES = {len(machines)}, CHUNK = {CHUNK} }};",
        f"static const char *const NAMES[] = {{{names}}};",
        f"static void (*const KERNELS[][{len(NAMES)}]){takes} = {{{table}}};",
        f'#include "{Path(__file__).with_name("ulp.c")}"',
    ]
    (folder / "main.c").write_text("\n".join(lines) + "\n", encoding="utf-8")
    reference = Path(__file__).with_name("ulp_reference.c")
    commands.append([*runner.compiler, "-std=c99", "-O3", "-fno-trapping-math", *runner.target.cflags, "-c", "main.c"])
    commands.append(
        [*runner.compiler, "-std=c99", "-O3", "-ffast-math", *runner.target.cflags, f"-DCHUNK={CHUNK}", "-c", reference]
    )
    run_all(commands, folder)
    objects = [f"kernels{k}.o" for k in range(len(machines))]
    run([*runner.compiler, "-static", "main.o", "ulp_reference.o", *objects, "-lm", "-o", "ulp"], folder)
    return Program(folder / "ulp", runner)


def measure(program: Program, function: str, step: int, first: int = 0, checked: int = 1) -> dict[str, Error]:
    """By target; every `step`-th float from the one with the bits `first` on.

    Fails where the references of one number and of many differ; both compute every `checked`-th one.
    """
    found = {}
    arguments = (function, *map(str, (step, first, checked)))
    for line in program.runner.run(program.path, *arguments).splitlines():
        name, ulp, bits, wrong, like = line.split()
        (argument,) = struct.unpack("f", struct.pack("I", int(bits, 16)))
        found[name] = Error(float(ulp), argument, int(wrong), like)
    return found
