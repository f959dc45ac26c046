# SPDX-License-Identifier: Apache-2.0
"""Compile the sources of a project for WebAssembly to a module that JavaScript can run.

module = compile_wasm_module(sources, glue)    # the bytes of net.wasm
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aotc_codegen.c.compiler_flags import kernel_cflags

from aotc.driver.toolchain import find_toolchain, packages_of_compiler, require_compiler_for_architecture, run_compiler
from aotc.ir import AotcError
from aotc.ir.atomic_write import temporary_folder
from aotc.packaging.project_sources import ProjectSources

#: Stack beyond the estimate of the kernels: the least that linkers give.
_STACK_BYTES: Final = 64 << 10
_STACK_ALIGNMENT: Final = 16
_LINK_FLAGS: Final = (
    "-nostartfiles",
    "-Wl,--no-entry",
    "-Wl,--strip-all",
    # an overflow of the stack ends the run, and never writes into data
    "-Wl,--stack-first",
)


def compile_wasm_module(sources: ProjectSources, glue: str, cc: str | None = None) -> bytes:
    """Return the module of a project for WebAssembly, and of a C source `glue` that exports functions.

    cc    C compiler for WebAssembly; None for that of `aotc.driver.toolchain.find_toolchain`

    Raise AotcError: code "no-compiler" if there is no compiler for WebAssembly, "compiler-failed" with its
    message.
    """
    toolchain = find_toolchain(cc, cache=False, target=sources.target)
    require_compiler_for_architecture(toolchain, sources.target)
    stack = _STACK_BYTES + sources.sizes.get("STACK_BYTES", 0)
    stack += -stack % _STACK_ALIGNMENT
    files = {**sources.headers, **sources.files, "module_exports.c": glue.encode()}
    names = sorted(name for name in files if name.endswith(".c"))
    with temporary_folder("aotc-wasm-") as scratch:
        folder = Path(scratch)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        flags = ("-std=c11", "-I.", *kernel_cflags(sources.target), *_LINK_FLAGS, f"-Wl,-z,stack-size={stack}")
        command = (*toolchain.cc, *flags, *names, "-lm", "-o", "module.wasm")
        try:
            run_compiler(command, folder, toolchain.seconds, folder / "module.wasm")
        except AotcError as error:
            (problem,) = error.diagnostics
            packages = packages_of_compiler(sources.target)
            hint = f"it links by wasm-ld with the C library of WASI (on Debian and Ubuntu: {packages})"
            raise AotcError(problem.code, problem.message, notes=problem.notes, hint=hint) from error
        return (folder / "module.wasm").read_bytes()
