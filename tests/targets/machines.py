# SPDX-License-Identifier: Apache-2.0
"""Machines for tests: a target, its compiler, and the processor or the QEMU emulator that runs its programs.

outputs = machine("riscv64").run_kernels([(kernel, [x, y])], tmp_path)      # [[out], ...], as `run_batch` gives

All kernels are one program, which reads every buffer from a file, calls the kernels and writes the buffers back.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from aotc_codegen.c.compiler_flags import least_riscv_vector_bits

from aotc.driver.emulators import qemu_command
from aotc.driver.pipeline import CompiledModel
from aotc.driver.toolchain import gnu_cross_compiler_name
from aotc.ir.architecture_names import normalized_architecture_name
from aotc.ir.dtype import DType
from aotc.tir.stmt import Kernel
from aotc.tir.target import TARGETS, Target, get_target
from tests.codegen.batch import FLAGS, Array, gnu_c_for, source_of
from tests.conftest import require_tool
from tests.e2e.projects import run, write_raw
from tests.targets.native_targets import native_targets as native_targets
from tests.targets.native_targets import node_has_relaxed_simd
from tests.targets.native_targets import targets_that_cannot_run as targets_that_cannot_run

ALIGNMENT = 64
SYSTEMS = {name: t for name, t in TARGETS.items() if t.machine not in ("", "wasm32") and not t.bare}
FOREIGN = tuple(name for name, t in SYSTEMS.items() if t.machine not in ("x86_64", normalized_architecture_name()))
"""Targets that need an emulator here, for programs of Linux."""
ELSEWHERE = (*FOREIGN, "wasm32", *(["wasm32-relaxed"] if node_has_relaxed_simd() else []))
"""These and WebAssembly, whose programs node runs; projects for it have no example program."""
WASI = Path(__file__).with_name("wasi.mjs")
PORTABLE = tuple(f"c on {name}" for name in FOREIGN if name == TARGETS[name].machine)
"""Portable C there."""

MAIN = r"""
#include <stdio.h>
static unsigned char data[%d] __attribute__((aligned(%d)));
int main(int argc, char **argv) {
  FILE *file = argc == 2 ? fopen(argv[1], "r+b") : NULL;
  if (file == NULL || fread(data, 1, sizeof data, file) != sizeof data) return 1;
%s
  rewind(file);
  return fwrite(data, 1, sizeof data, file) != sizeof data || fclose(file) != 0;
}
"""


def has_vnni() -> bool:
    """Whether ONNX Runtime's kernels multiply bytes exactly here: older ones saturate sums of two products."""
    told = Path("/proc/cpuinfo")
    return told.exists() and "vnni" in told.read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class Machine:
    """A target, the command of the C compiler for it, and that of the emulator, if one is needed."""

    target: Target
    cc: str
    emulator: tuple[str, ...] = ()

    @property
    def compiler(self) -> list[str]:
        """The words of the compiler's command."""
        return shlex.split(self.cc)

    def program(self, source: Path, *flags: str) -> Path:
        """A C file compiled to a program that needs no libraries of the machine; without warnings, unless asked for."""
        made = source.with_suffix("")
        static = ("-static",) if self.target.machine != "wasm32" else ()
        flags = (*FLAGS, *self.target.cflags, *(() if "-Wall" in flags else ("-w",)), *flags)
        command = (*self.compiler, "-std=c99", *static, *flags, source, "-o", made, "-lm")
        run(command, source.parent)
        return made

    def run(self, program: Path, *arguments: str | Path) -> str:
        """What a program prints; fails if it does."""
        return run([*self.emulator, program, *arguments], program.parent)

    def run_model(self, model: CompiledModel, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of a model that was compiled without a library: its own Makefile builds its example program."""
        name, outputs = model.metadata["name"], model.metadata["outputs"]
        program = f"build/{name}_example"
        run(["make", "-s", "-j2", f"CC={self.cc}", "CFLAGS=-O1", "LDFLAGS=-static", "STATIC=1", program], model.path)
        files = [write_raw(model.path, f"input{k}", x) for k, x in enumerate(inputs)]
        results = [model.path / f"output{k}.bin" for k in range(len(outputs))]
        self.run(model.path / program, *files, *results)
        return [
            np.fromfile(file, DType(o["dtype"]).numpy).reshape(o["shape"])
            for file, o in zip(results, outputs, strict=True)
        ]

    def run_kernels(
        self, jobs: Sequence[tuple[Kernel, Sequence[Array]]], folder: Path, *flags: str
    ) -> list[list[Array]]:
        """The outputs of every job; outputs and scratch hold rubbish before, inputs must be as they were after."""
        calls, parts, places, end = [], [], [], 0
        for number, (kernel, inputs) in enumerate(jobs):
            arrays = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in inputs]
            arrays += [np.full(b.nbytes, 0x5A, np.uint8) for b in (*kernel.outputs, *kernel.workspace)]
            starts = []
            for array in arrays:
                starts.append(end)
                parts += [array, np.zeros(-array.size % ALIGNMENT, np.uint8)]
                end += array.size + parts[-1].size
            places.append(starts)
            calls.append(f"  kernel{number}({', '.join(f'(void *)(data + {at})' for at in starts)});")
        before = np.concatenate([*parts, np.zeros(ALIGNMENT, np.uint8)])
        (folder / "data.bin").write_bytes(before.tobytes())
        text = source_of((kernel for kernel, _ in jobs), gnu_c_for(self.target)) + MAIN % (
            before.size,
            ALIGNMENT,
            "\n".join(calls),
        )
        (folder / "batch.c").write_text(text, encoding="utf-8")
        self.run(self.program(folder / "batch.c", *flags), folder / "data.bin")
        after = np.fromfile(folder / "data.bin", np.uint8)
        results = []
        for (kernel, inputs), starts in zip(jobs, places, strict=True):
            for a, at in zip(inputs, starts, strict=False):
                assert (before[at : at + a.nbytes] == after[at : at + a.nbytes]).all(), f"{kernel.name}: input changed"
            rest = zip(kernel.outputs, starts[len(inputs) :], strict=False)
            results.append([after[at : at + b.nbytes].view(b.dtype.numpy) for b, at in rest])
        return results


def machine(name: str) -> Machine:
    """The machine for a target; no test where its tools are missing.  "c on riscv64" is "c" for that architecture."""
    name, _, there = name.partition(" on ")
    target = get_target(name)
    there = there or target.machine
    if there in ("", normalized_architecture_name()):
        return Machine(target, require_tool("gcc"))
    if there == "wasm32":
        compiler = f"{require_tool('clang-19')} --target=wasm32-wasi"
        require_tool("wasm-ld-19")
        return Machine(target, compiler, (require_tool("node"), "--no-warnings", str(WASI)))
    emulator, *cpu = qemu_command(there, target)
    cc = require_tool(gnu_cross_compiler_name(there))
    if least_riscv_vector_bits(target.features):
        # it links with the libraries of the GNU compiler
        cc = f"{require_tool('clang-19')} --target={there}-linux-gnu"
    return Machine(target, cc, (require_tool(emulator), *cpu))
