# SPDX-License-Identifier: Apache-2.0
"""Firmware for boards that QEMU emulates: a model, a program that calls it, start-up code, a linker script.

printed = board("cortex-m4").run(model, MAIN, tmp_path)        # what the program prints by semihosting
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aotc.driver.pipeline import CompiledModel
from aotc.tir.target import Target, get_target
from tests.codegen.batch import Array
from tests.conftest import require_tool
from tests.e2e.projects import ROOT, run

FILES = ROOT / "examples" / "embedded"
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-Wdouble-promotion", "-fstack-usage")
LOW = {"flash": (0, 4 << 20), "ram": (0x20000000, 4 << 20)}
AN505 = {"flash": (0x10000000, 4 << 20), "ram": (0x38000000, 2 << 20)}
AN547 = {"flash": (0x10000000, 512 << 10), "ram": (0x30000000, 512 << 10)}
VIRT = {"flash": (0x80000000, 4 << 20), "ram": (0x80800000, 4 << 20)}
MACHINES = {
    "cortex-m0plus": ("mps2-an385", LOW),
    "cortex-m4": ("mps2-an386", LOW),
    "cortex-m7": ("mps2-an500", LOW),
    "cortex-m33": ("mps2-an505", AN505),
    "cortex-m55": ("mps3-an547", AN547),
    "riscv32": ("virt", VIRT),
}


@dataclass(frozen=True)
class Board:
    """A microcontroller, the board that has it, its memories, and the tools for it."""

    target: Target
    machine: str
    memories: Mapping[str, tuple[int, int]]
    cc: tuple[str, ...]
    emulator: tuple[str, ...]

    @property
    def tool_prefix(self) -> str:
        return self.cc[0].removesuffix("gcc")

    def make(self, project: Path, *flags: str, **variables: str) -> Path:
        """The library of an emitted project by its own Makefile, without warnings."""
        words = [f"CC={' '.join(self.cc)}", f"AR={self.tool_prefix}ar", f"CFLAGS={' '.join((*WARNINGS, *flags))}"]
        run(["make", "-s", "-j2", *words, *(f"{k}={v}" for k, v in variables.items())], project)
        (library,) = (project / "build").glob("lib*.a")
        return library

    def link(self, library: Path, main: str, folder: Path, *flags: str, script: Path = FILES / "board.ld") -> Path:
        """A program: start-up code, `main`, a model's library and nothing but memcpy, memset, sqrtf and fmaf."""
        (folder / "main.c").write_text(main, encoding="utf-8")
        rows = ((f"{m}_origin={at}", f"{m}_bytes={size}") for m, (at, size) in self.memories.items())
        places = [place for row in rows for place in row]
        defined = [f"-Wl,--defsym={place}" for place in places]
        include = [f"-I{FILES}", f"-I{library.parents[1] / 'include'}"]
        command = [*self.cc, "-std=gnu11", "-O2", *self.target.cflags, "-nostartfiles", "-Wl,--gc-sections", *include]
        command += [*map(str, (FILES / "start.c", folder / "main.c", library)), f"-T{script}", *defined]
        program = folder / "firmware.elf"
        run([*command, *flags, "-lm", "-o", program], folder)
        return program

    def command(self, program: Path) -> list[str]:
        """What runs a program."""
        semihosting = ("-semihosting-config", "enable=on,target=native")
        quiet = ("-nographic", "-monitor", "none", "-serial", "none")
        return [*self.emulator, "-M", self.machine, *quiet, *semihosting, "-kernel", str(program)]

    def start(self, program: Path, *options: str) -> str:
        """What a program prints; fails if its main does not return 0."""
        command = [*self.command(program), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def outputs(self, model: CompiledModel, inputs: Sequence[Array], folder: Path) -> tuple[list[Array], int]:
        """What a model gives for inputs, and the bytes of stack that it took."""
        program = self.link(self.make(model.path), program_of(model, inputs), folder)
        *rows, stack = self.start(program).split()
        raw = [np.frombuffer(bytes.fromhex(row), np.uint8) for row in rows]
        found = [
            data.view(o["dtype"]).reshape(o["shape"]) for data, o in zip(raw, model.metadata["outputs"], strict=True)
        ]
        return found, int(stack)


def board(name: str) -> Board:
    """The board for a target; no test where its tools are missing."""
    target, (machine, memories) = get_target(name), MACHINES[name]
    if target.machine == "arm":
        cc: tuple[str, ...] = (require_tool("arm-none-eabi-gcc"),)
        return Board(target, machine, memories, cc, (require_tool("qemu-system-arm"),))
    cc = require_tool("riscv64-unknown-elf-gcc"), "--specs=picolibc.specs"
    return Board(target, machine, memories, cc, (require_tool("qemu-system-riscv32"), "-bios", "none"))


def program_of(model: CompiledModel, inputs: Sequence[Array], runs: int = 1) -> str:
    """A program that runs a model and prints its outputs, and what it took of the stack."""
    metadata = model.metadata
    name, upper = metadata["name"], metadata["name"].upper()
    lines = ['#include "board.h"', f'#include "{name}.h"', f"#define ALIGN {upper}_WORKSPACE_ALIGNMENT"]
    members = [part["member"] for part in metadata["memory"].get("parts", ()) if part["member"]]
    sizes = {member: f"{upper}_WORKSPACE_{member.upper()}_BYTES" for member in members}
    sizes = sizes or {"workspace": f"{upper}_WORKSPACE_BYTES"}
    # behind each piece is what no run may write
    lines += [f"static unsigned char {p}[{size} + 16] __attribute__((aligned(ALIGN)));" for p, size in sizes.items()]
    for k, x in enumerate(inputs):
        data = ",".join(map(str, np.ascontiguousarray(x).reshape(-1).view(np.uint8)))
        lines.append(f"static const unsigned char input{k}[] __attribute__((aligned(8))) = {{{data}}};")
    for k, o in enumerate(metadata["outputs"]):
        lines.append(f"static unsigned char output{k}[{o['bytes']}] __attribute__((aligned(8)));")
    given = ", ".join(f"(const void *)input{k}" for k in range(len(inputs)))
    taken = ", ".join(f"(void *)output{k}" for k in range(len(metadata["outputs"])))
    lines += [
        "int main(void) {",
        f"  const {name}_inputs in = {{{given}}};",
        f"  const {name}_outputs out = {{{taken}}};",
        "  size_t used, k;",
        "  int status;",
        *_pieces(name, members),
        f"  if ({name}_check_weights() != AOTC_OK) return 100;",
        f"  status = {name}_run(&in, &out, {'&wrong' if members else 'workspace + 1'}, NULL);",
        f"  if (status != ({' + '.join(sizes.values())} ? AOTC_ERROR_ALIGNMENT : AOTC_OK)) return 101;",
        "  paint_stack();",
        *[f"  status = {name}_run(&in, &out, {'&pieces' if members else 'workspace'}, NULL);"] * runs,
        "  used = used_stack();",
        *(f"  for (k = 0; k < 16; ++k) if ({p}[{size} + k]) return 102;" for p, size in sizes.items()),
        *(f"  print_bytes(output{k}, sizeof output{k});" for k in range(len(metadata["outputs"]))),
        "  print_number((uint32_t)used);",
        "  return status;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _pieces(name: str, members: Sequence[str]) -> list[str]:
    """The memories of a run, where there are several; the last of them at a place that is not aligned."""
    if not members:
        return []
    kind = f"  const {name}_workspace"
    return [f"{kind} pieces = {{{', '.join(members)}}};", f"{kind} wrong = {{{', '.join(members)} + 1}};"]
