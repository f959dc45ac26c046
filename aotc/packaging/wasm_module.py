# SPDX-License-Identifier: Apache-2.0
"""Compile the sources of a project for WebAssembly to a module that JavaScript can run.

module = compile_wasm_module(sources, {"module_exports.c": text})    # the bytes of net.wasm
memory_pages(sources, module)    # the least and the largest size of the memory that a module with threads imports
"""

from __future__ import annotations

from collections.abc import Mapping
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
#: Largest number of threads of a module.
MAX_THREADS: Final = 16
#: Bytes of a page of memory, and the pages of 4 GiB.
_PAGE_BYTES: Final = 64 << 10
_MOST_PAGES: Final = 1 << 16
#: In modules: the header, and the numbers of the import section and of an imported memory.
_MODULE_HEADER_BYTES: Final = 8
_IMPORT_SECTION: Final = 2
_MEMORY_IMPORT: Final = 2
_LINK_FLAGS: Final = (
    "-nostartfiles",
    "-Wl,--no-entry",
    "-Wl,--strip-all",
    # an overflow of the stack ends the run, and never writes into data
    "-Wl,--stack-first",
)


#: The memory is that of all threads, and each sets its stack pointer. The C library has no atomics, and may
#: be linked nevertheless: the functions that kernels call keep nothing in memory.
_THREAD_LINK_FLAGS: Final = (
    "-Wl,--import-memory",
    "-Wl,--shared-memory",
    f"-Wl,--max-memory={_MOST_PAGES * _PAGE_BYTES}",
    "-Wl,--export=__stack_pointer",
    "-Wl,--no-check-features",
    # of the runtime: threads are those of the module
    "-DAOTC_NO_THREADS",
)


def stack_bytes(sources: ProjectSources) -> int:
    """Return the bytes of the stack of each thread that runs a model."""
    stack = _STACK_BYTES + sources.sizes.get("STACK_BYTES", 0)
    return stack + -stack % _STACK_ALIGNMENT


def compile_wasm_module(sources: ProjectSources, glue: Mapping[str, str], cc: str | None = None) -> bytes:
    """Return the module of a project for WebAssembly.

    glue  C sources and headers that export functions: texts by file name
    cc    C compiler for WebAssembly; None for that of `aotc.driver.toolchain.find_toolchain`

    Raise AotcError: code "no-compiler" if there is no compiler for WebAssembly, "compiler-failed" with its
    message.
    """
    toolchain = find_toolchain(cc, cache=False, target=sources.target)
    require_compiler_for_architecture(toolchain, sources.target)
    files = {**sources.headers, **sources.files, **{name: text.encode() for name, text in glue.items()}}
    names = sorted(name for name in files if name.endswith(".c"))
    with temporary_folder("aotc-wasm-") as scratch:
        folder = Path(scratch)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        flags = ("-std=c11", "-I.", *kernel_cflags(sources.target), *_LINK_FLAGS)
        flags += (f"-Wl,-z,stack-size={stack_bytes(sources)}", *(_THREAD_LINK_FLAGS if sources.target.threads else ()))
        command = (*toolchain.cc, *flags, *names, "-lm", "-o", "module.wasm")
        try:
            run_compiler(command, folder, toolchain.seconds, folder / "module.wasm")
        except AotcError as error:
            (problem,) = error.diagnostics
            packages = packages_of_compiler(sources.target)
            hint = f"it links by wasm-ld with the C library of WASI (on Debian and Ubuntu: {packages})"
            raise AotcError(problem.code, problem.message, notes=problem.notes, hint=hint) from error
        return (folder / "module.wasm").read_bytes()


def memory_pages(sources: ProjectSources, module: bytes) -> tuple[int, int]:
    """Return the pages of 64 KiB of the memory that a module imports: as it is instantiated, and after it has grown for
    the largest number of threads. Both are 0 for a module with a memory of its own.
    """
    initial, added = imported_memory_pages(module), MAX_THREADS - 1
    per_thread = sources.sizes.get("THREAD_WORKSPACE_BYTES", 0) + stack_bytes(sources)
    grown = sources.sizes["WORKSPACE_BYTES"] + added * per_thread + _STACK_ALIGNMENT
    return initial, min(initial + -(-grown // _PAGE_BYTES), _MOST_PAGES) if initial else 0


def imported_memory_pages(module: bytes) -> int:
    """Return the pages of 64 KiB that the memory must have that a module of WebAssembly imports, its only import; 0 if
    there is none.

    Source: WebAssembly Core Specification 2.0, 5.5.5, import section.
    """
    sections = _sections(module)
    imports = sections.get(_IMPORT_SECTION, b"")
    count, at = _unsigned_number(imports, 0) if imports else (0, 0)
    if count != 1:
        return 0
    for _ in ("module", "name"):
        length, at = _unsigned_number(imports, at)
        at += length
    if imports[at] != _MEMORY_IMPORT:
        return 0
    # a byte of flags is before the limits
    return _unsigned_number(imports, at + 2)[0]


def _sections(module: bytes) -> dict[int, bytes]:
    """Return the contents of the sections of a module by their numbers."""
    sections: dict[int, bytes] = {}
    at = _MODULE_HEADER_BYTES
    while at < len(module):
        number = module[at]
        size, begin = _unsigned_number(module, at + 1)
        sections[number], at = module[begin : begin + size], begin + size
    return sections


def _unsigned_number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in the format LEB128 at an offset, and the offset behind it."""
    number = shift = 0
    while True:
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at
