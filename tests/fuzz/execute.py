# SPDX-License-Identifier: Apache-2.0
"""Executes a module: by the interpreter of tensor programs, as compiled C, and as C under sanitizers."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from aotc.checking.output_comparison import Array
from aotc.driver.compile import CompileOptions, compile
from aotc.driver.pipeline import CompiledModel
from aotc.driver.toolchain import resolve_target
from aotc.ir.dtype import DType
from aotc.relay.module import IRModule
from aotc.runtime.session import load
from aotc.tir.interpreter import compile_kernel, run_kernel
from aotc.tir.plan.program import Program
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import Buffer
from tests.e2e.projects import write_raw
from tests.targets.machines import native_targets

SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
MOST_WORK = 3_000_000
"""Multiplications of programs that the interpreter runs, too."""


@dataclass(frozen=True)
class Setting:
    """How a module is compiled and run.

    sanitized   whether the emitted project runs under the sanitizers, too
    """

    target: str = "c"
    opt_level: int = 3
    accuracy: str = "strict"
    threads: int = 1
    sanitized: bool = False

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@functools.lru_cache(maxsize=1)
def targets() -> Sequence[str]:
    """Those whose code runs here."""
    return native_targets()


def interpreted(module: IRModule, inputs: Mapping[str, Array], setting: Setting) -> list[Array] | None:
    """The outputs by the interpreter of tensor programs; None for what would take it too long."""
    options = CompileOptions(target=setting.target, opt_level=setting.opt_level, accuracy=setting.accuracy, cache=False)
    (program,) = options.start_compilation(module).scheduled_programs
    if sum(step.kernel.macs for step in program.steps) > MOST_WORK:
        return None
    return run_program(program, inputs)


def run_program(program: Program, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of a planned program, kernel by kernel: its temporaries lie in an arena, as planned."""
    arena = np.full(program.plan.peak, 0x5A, np.uint8)
    memory: dict[Storage, Array] = {}

    def flat(storage: Storage) -> Array:
        if storage in memory:
            return memory[storage]
        if storage.kind == "temp":
            start = program.plan.offsets[storage]
            made = arena[start : start + storage.nbytes].view(storage.dtype.numpy)
        elif storage.data is not None:
            made = np.ascontiguousarray(storage.data).reshape(-1)
        elif storage.kind == "input":
            made = np.ascontiguousarray(inputs[storage.name]).reshape(-1)
        else:
            made = np.full(storage.nbytes, 0x5A, np.uint8).view(storage.dtype.numpy)
        return memory.setdefault(storage, made)

    def part(view: View, buffer: Buffer) -> Array:
        return flat(view.storage)[view.offset : view.offset + buffer.size]

    for step in program.steps:
        if step.kernel.overlaps:
            compile_kernel(step.kernel).run_kernel_in_place(
                [part(v, b) for v, b in zip(step.args, step.kernel.params, strict=True)]
            )
            continue
        arguments = [part(v, b).copy() for v, b in zip(step.inputs, step.kernel.inputs, strict=True)]
        before = [part(v, b).copy() for v, b in zip(step.outputs, step.kernel.outputs, strict=True)]
        results = run_kernel(step.kernel, arguments, output_init=before)
        for view, buffer, result in zip(step.outputs, step.kernel.outputs, results, strict=True):
            part(view, buffer)[...] = result
    return [flat(s).reshape(s.shape) for s in program.outputs]


def compiled(module: IRModule, folder: Path, setting: Setting) -> CompiledModel:
    """The module as a project and a library in `folder`."""
    return compile(
        module,
        output=folder,
        name="net",
        target=setting.target,
        opt_level=setting.opt_level,
        accuracy=setting.accuracy,
        cflags=["-O1"],
        cache=False,
        tuning=False,
    )


def run_compiled(model: CompiledModel, inputs: Mapping[str, Array], threads: int) -> list[Array]:
    """The outputs of the library; rubbish is where they will be."""
    session = load(model.path, threads=threads)
    binding = session.bind(dict(inputs))
    for output in binding.outputs.values():
        output.reshape(-1).view(np.uint8)[...] = 0x5A
    binding.run()
    return [o.copy() for o in binding.outputs.values()]


def run_sanitized(model: CompiledModel, inputs: Mapping[str, Array], target: str) -> tuple[list[Array], str]:
    """The outputs of the emitted example program under the sanitizers, and what they report."""
    project, machine = model.path, resolve_target(target)
    sources = sorted(str(p.relative_to(project)) for p in [*project.glob("src/*.c"), *project.glob("runtime/*.c")])
    sources = [s for s in sources if not s.endswith("params_to_c.c")] + [
        str(p.relative_to(project)) for p in project.glob("src/*.S")
    ]
    command = ["gcc", "-std=c99", "-O1", "-g1", "-w", *SANITIZE, *machine.cflags, "-Iinclude", "-Isrc", *sources]
    command += ["examples/main.c", "-o", "sanitized", "-lm", "-pthread"]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    metadata = model.metadata
    files = [write_raw(project, f"in{k}", inputs[i["name"]]) for k, i in enumerate(metadata["inputs"])]
    outputs = [project / f"out{k}.bin" for k in range(len(metadata["outputs"]))]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -v unlimited; exec ./sanitized "$@"', "sh", *map(str, files), *map(str, outputs)],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )
    if done.returncode:
        return [], done.stderr[-3000:] or f"exit status {done.returncode}"
    found = [
        np.fromfile(f, DType(o["dtype"]).numpy).reshape(o["shape"])
        for f, o in zip(outputs, metadata["outputs"], strict=True)
    ]
    return found, ""
