# SPDX-License-Identifier: Apache-2.0
"""Compile an emitted C project to a library without make: source files are compiled in parallel,
and object files that were compiled before are read from the object cache.

build_project_library(directory, metadata, toolchain, target)  # directory/lib/libnet.so
record_library_checksum(directory, metadata, library)        # for whoever loads it
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from aotc_codegen.c.compiler_flags import non_kernel_cflags
from aotc_codegen.c.project_metadata import write_metadata_file

from aotc.driver.compiled_system import LINUX, MACOS, OperatingSystem, flags_of_mingw_gcc, system_of_this_machine
from aotc.driver.object_compiler import ObjectCompiler
from aotc.driver.toolchain import (
    Toolchain,
    archiver_of_compiler,
    require_compiler_for_architecture,
    require_vector_extensions,
    run_compiler,
    system_compiled_for,
    triple_compiled_for,
)
from aotc.ir.atomic_write import temporary_folder
from aotc.ir.diagnostics import AotcError, Diagnostic
from aotc.runtime.library_integrity import sha256_of_file
from aotc.tir.target import Target

#: Omit the build ID of ELF files: hashing all parameters takes most of the link time.
_NO_BUILD_ID_LINK_FLAG = "-Wl,--build-id=none"


def make_project_object_compiler(
    directory: Path, metadata: Mapping[str, Any], toolchain: Toolchain, target: Target, *, visible: bool = False
) -> ObjectCompiler:
    """Return the compiler of the C files of a project, with the flags that its library needs.

    The arguments are those of `build_project_library`.
    """
    hidden = () if visible else ("-fvisibility=hidden",)
    shared = ("-ffunction-sections", "-fdata-sections")
    if not target.bare:
        system, triple = system_compiled_for(toolchain), triple_compiled_for(toolchain)
        shared = (*system.object_flags, *hidden, *flags_of_mingw_gcc(triple))
    flags = ("-std=c99", *shared, "-Iinclude", "-Isrc", *non_kernel_cflags(target))
    special = {directory / file: isa["cflags"] for isa in metadata.get("isas", ()) for file in isa["files"]}
    return ObjectCompiler(toolchain, flags, directory, special)


def build_project_library(
    directory: Path, metadata: Mapping[str, Any], toolchain: Toolchain, target: Target, *, visible: bool = False
) -> Path:
    """Compile and link the project in `directory`; return the path of the library.

    metadata  "library": path of the library, in which ".so" stands for the suffix of the system that the
              compiler compiles for; "isas": instruction sets with the compiler flags of their files (all
              other files are compiled for the baseline of the architecture);
              "externals": kernel sources written by the user's own code generator
    visible   export every function, not only the functions marked as exported

    Raises AotcError with the compiler's message: code "compiler-failed", or "external" if the
    user's code for a kernel does not compile or does not define the kernel; code "no-compiler" as
    `require_compiler_for_architecture`, "no-vectors" as `require_vector_extensions`.
    """
    require_compiler_for_architecture(toolchain, target)
    require_vector_extensions(toolchain, target)
    system = system_compiled_for(toolchain)
    library_name = str(metadata["library"]) if target.bare else system.shared_library_path(str(metadata["library"]))
    library = directory / library_name
    library.parent.mkdir(exist_ok=True)
    patterns = ("src/*.c", "src/*.S", "runtime/*.c")
    sources = sorted(path for pattern in patterns for path in directory.glob(pattern))
    sources = [s for s in sources if s.name != "params_to_c.c"]
    compiler = make_project_object_compiler(directory, metadata, toolchain, target, visible=visible)
    with temporary_folder(".objects-", directory.absolute()) as scratch:
        objects = {source: Path(scratch) / f"{source.name}.o" for source in sources}
        externals = {directory / e["source"]: e for e in metadata.get("externals", ())}
        _compile_external_kernels(compiler, {source: (objects[source], e) for source, e in externals.items()})
        # longest jobs first: the parameters (assembly), then the largest sources
        rest = objects.keys() - externals.keys()
        ranked = sorted(rest, key=lambda s: (s.suffix == ".c", -s.stat().st_size, s))
        compiler.compile_objects_in_parallel([(source, objects[source]) for source in ranked])
        if target.bare:
            command = (archiver_of_compiler(toolchain), "rcs", library_name, *sorted(map(str, objects.values())))
            run_compiler(command, directory, toolchain.seconds, library)
            return library
        has_threads = any(s.name == "aotc_pool.c" for s in sources)
        files = (*map(str, objects.values()), *_shared_library_link_flags(system, library, has_threads=has_threads))
        files = (*files, "-o", library_name)
        link = partial(run_compiler, cwd=directory, seconds=toolchain.seconds, required_output=library)
        _link_and_require_user_kernels_defined(
            link, (*toolchain.cc, "-shared", *toolchain.cflags, *files), list(externals.values()), system
        )
    return library


def _shared_library_link_flags(system: OperatingSystem, library: Path, *, has_threads: bool) -> tuple[str, ...]:
    threads = system.thread_flags if has_threads else ()
    build_id = (_NO_BUILD_ID_LINK_FLAG,) if system is LINUX and system_of_this_machine() is LINUX else ()
    return (*threads, *system.math_flags, *build_id, *system.library_name_flags(library.name))


def record_library_checksum(directory: Path, metadata: dict[str, Any], library: Path) -> None:
    """Add the SHA-256 of the library to the checksums in a project's metadata, and rewrite the
    metadata file.
    """
    name = library.relative_to(directory).as_posix()
    metadata["sha256"] = metadata["sha256"] | {name: sha256_of_file(library)}
    write_metadata_file(directory, metadata)


#: Metadata of a kernel whose source was written by the user's code generator.
ExternalKernelMetadata: TypeAlias = "Mapping[str, str]"


def _external_kernel_diagnostic(
    external: ExternalKernelMetadata, failure: str, compiler_lines: Sequence[str]
) -> Diagnostic:
    text = f"what the generator for {external['generator']!r} wrote for @{external['kernel']} {failure}"
    hint = f"it must define, not as static: {external['prototype']}"
    return Diagnostic("external", text, notes=tuple(compiler_lines), hint=hint)


def _compile_external_kernels(
    compiler: ObjectCompiler, jobs: Mapping[Path, tuple[Path, ExternalKernelMetadata]]
) -> None:
    """Compile the kernel sources written by the user; raise one AotcError that lists all that do
    not compile.
    """
    problems: list[Diagnostic] = []
    for source, (target, external) in jobs.items():
        try:
            compiler.compile_to_object(source, target)
        except AotcError as error:
            messages = [d.notes or (d.message,) for d in error.diagnostics]
            problems += [_external_kernel_diagnostic(external, "does not compile", lines) for lines in messages]
    if problems:
        raise AotcError.collect(problems)


def _link_and_require_user_kernels_defined(
    link: Callable[[Sequence[str]], None],
    command: Sequence[str],
    externals: Sequence[ExternalKernelMetadata],
    system: OperatingSystem,
) -> None:
    """Link the library; raise AotcError (code "external") for a kernel that the user's code does
    not define.

    The linker is asked to check this, because an undefined kernel would otherwise only fail when
    the library is loaded.
    """
    flag = "-Wl,-u,_" if system is MACOS else "-Wl,--require-defined="
    required = [f"{flag}{e['kernel']}" for e in externals]
    try:
        link((*command, *required))
    except AotcError as error:
        linker_lines = [
            line for d in error.diagnostics for line in d.notes if re.search("undefined|not defined", line, re.I)
        ]
        missing = []
        for e in externals:
            lines = [line for line in linker_lines if re.search(rf"\b_?{e['kernel']}\b", line)]
            if lines:
                missing.append(_external_kernel_diagnostic(e, "does not define it", lines))
        if missing:
            raise AotcError.collect(missing) from error
        if not required:
            raise
        # the linker does not support the flag
        link(command)
