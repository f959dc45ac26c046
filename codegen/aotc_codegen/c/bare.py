# SPDX-License-Identifier: Apache-2.0
"""A program as a project for machines without an operating system: a static library that calls kernels directly.

    metadata = emit_bare(program, Path("build/net"), target=get_target("cortex-m4"))

Its parameters are one piece, with a mark of how they are laid out and a checksum behind them.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from aotc_runtime_c import bare_sources

from aotc.ir import AotcError, require_known
from aotc.tir import Target
from aotc.tir.plan.program import Program
from aotc_codegen.c.dialect import DIALECTS
from aotc_codegen.c.kernels import PrintedKernels, print_kernels
from aotc_codegen.c.metadata import describe, footprint
from aotc_codegen.c.params import Params
from aotc_codegen.c.project import (
    Content,
    aligned_array,
    common_words,
    kernel_files,
    model_words,
    require_name,
    write_project,
)
from aotc_codegen.c.schedule import call_rows
from aotc_codegen.c.templates import render

#: The usual compilers and their archivers, by the architecture of a target.
_TOOLS: Final = {
    "arm": ("arm-none-eabi-gcc", "arm-none-eabi-ar"),
    "riscv32": ("'riscv64-unknown-elf-gcc --specs=picolibc.specs'", "riscv64-unknown-elf-ar"),
}
#: Functions of the mathematical library, as kernels call them.
_MATH: Final = re.compile(r"\b(sqrt|fma|fmod|floor|ceil|trunc|rint|round|copysign|fabs)(f?)\(")
#: Those of which compilers make instructions on any machine.
_INLINE: Final = ("fabs", "fabsf", "copysign", "copysignf")


class Weights:
    """The file of parameters: these, a mark of the layout that the code expects, the CRC-32 of all before."""

    def __init__(self, params: Params) -> None:
        rows = [f"{s.dtype}{list(s.shape)} {offset}" for s, offset in params.offsets.items()]
        self.layout = zlib.crc32("\n".join(rows).encode())
        self.pieces = [*params.blob(), struct.pack("<I", self.layout)]
        crc = 0
        for piece in self.pieces:
            crc = zlib.crc32(piece, crc)
        self.crc = crc
        self.pieces.append(struct.pack("<I", crc))

    @property
    def bytes(self) -> int:
        return sum(map(len, self.pieces))


def required_functions(kernels: PrintedKernels) -> list[str]:
    """What kernels call of the mathematical library, where no instruction does it."""
    text = "\n".join(k.text + "".join(k.printed.definitions.values()) for k in kernels.kernels)
    return sorted({"".join(found) for found in _MATH.findall(text)}.difference(_INLINE))


def _sources(name: str, params: Params, common: dict[str, Any], kernels: PrintedKernels) -> dict[str, Content]:
    """Headers, kernels, schedule."""
    upper, note = common["upper"], render("bare_run.h", **common)
    check = ["/* AOTC_OK where the parameters are whole and made for this code, else AOTC_ERROR_WEIGHTS. */"]
    check.append(f"int {name}_check_weights(void);")
    stack = ["/* Bytes of stack that a run takes at most. */", f"#define {upper}_STACK_BYTES {common['stack_bytes']}"]
    words = {"header": "aotc_bare.h", "run_note": note, "bounds": stack, "functions": check}
    symbol, *rows = params.declarations()
    place = f"#define {name}_params ((const unsigned char *){upper}_WEIGHTS_ADDRESS)"
    declared = [f"#ifdef {upper}_WEIGHTS_ADDRESS", place, "#else", symbol, "#endif", *rows]
    return {
        f"include/{name}.h": render("model.h", **common, **words),
        f"src/{name}_internal.h": render("internal.h", params=declared, prototypes=kernels.prototypes, **common),
        f"src/{name}_kernel.h": render("kernel.h", **common),
        **kernel_files(kernels, "", common),
        f"src/{name}.c": render("bare.c", **common),
        f"src/{name}_weights.c": render("bare_weights.c", **common),
    }


def _build(name: str, common: dict[str, Any]) -> dict[str, Content]:
    """What builds the sources, and a page on it."""
    align = common["weights_align"]
    begin = ["#ifndef AOTC_WEIGHTS_SECTION", f"#define AOTC_WEIGHTS_SECTION {common['section']}", "#endif"]
    begin += ["#define TEXT(x) #x", "#define SECTION(x) section(TEXT(x))"]
    prologue = aligned_array(align, "SECTION(AOTC_WEIGHTS_SECTION)", before=begin)
    params = render("params.cmake", **common)
    return {
        f"src/{name}_params.S": render("bare_params.S", **common),
        "src/params_to_c.c": render("params_to_c.c", prologue=prologue, **common),
        f"{name}_weights.ld": render("weights.ld", **common),
        "Makefile": render("bare.mk", **common),
        "CMakeLists.txt": render("bare.cmake", params=params, **common),
        "README.md": render("bare.md", **common),
    }


def emit_bare(
    program: Program,
    directory: Path,
    *,
    target: Target,
    accuracy: str = "fast",
    passes: Sequence[str] = (),
    numerics: str = "",
) -> dict[str, Any]:
    """Write the project into an existing directory and return its metadata.

    accuracy, passes   what was asked for, and the names of the passes that made the
                       program, for the record
    numerics           the name of what decides its bits

    Raises AotcError: code "name" if the program's name will not do, "memory" if a run
    needs more than the target has, "output" if a file cannot be written, "target" for
    kernels of several threads.
    """
    name = program.name
    require_name(name)
    require_known("target", f"dialect of target {target.name}:", target.dialect, DIALECTS)
    if any(kernel.team for kernel in program.kernels):
        raise AotcError("target", f"target {target.name} has no operating system, and so no threads")
    plan = program.plan
    params = Params(name, program.constants, 0, target.places({"parameters": 0})["parameters"].align)
    kernels = print_kernels(program.kernels, name, DIALECTS[target.dialect])
    facts = program, target, kernels.names, params
    metadata = describe(*facts) | {"footprint": footprint(*facts)}
    weights, math = Weights(params), required_functions(kernels)
    common = common_words(name, False) | model_words(program, target, numerics, params)
    compiler, archiver = _TOOLS.get(target.machine, ("cc", "ar"))
    common |= {
        "workspace_bytes": plan.peak,
        "workspace_align": plan.align,
        "weights_align": target.places({"parameters": 0})["parameters"].align,
        "weights_file_bytes": weights.bytes,
        "section": f".rodata.{name}_weights",
        "layout": weights.layout,
        "stack_bytes": metadata["footprint"]["stack"],
        "steps": call_rows(program, kernels, params),
        "required": [f"{t.role}s->{t.ident}" for t in common["tensors"] if t.storage.size],
        "aligned": [plan.align] if plan.peak else [],
        "compiler": compiler,
        "archiver": archiver,
        "math_said": "".join(f", `{function}`" for function in math),
    }
    common["required"] += ["workspace"] if plan.peak else []
    externals = kernels.external_files(name)
    files = _sources(name, params, common, kernels)
    files |= {path: external.file() for path, external in externals.items()}
    common["sources"] = [path for path in files if path.endswith(".c")]
    files |= {f"src/{name}_params.bin": weights.pieces, **_build(name, common)}
    metadata |= {"accuracy": accuracy, "numerics": numerics, "passes": list(passes)}
    metadata["links"] = {"c": ["memcpy", "memset"], "m": math, "compiler": "arithmetic that the core lacks"}
    metadata["weights"] = {"file": f"src/{name}_params.bin", "bytes": weights.bytes, "crc32": f"{weights.crc:08x}"}
    metadata["externals"] = [external.described(path) for path, external in externals.items()]
    return write_project(directory, files, metadata, bare_sources())
