# SPDX-License-Identifier: Apache-2.0
"""Write a program as a project for bare-metal targets: a static C library that calls the kernels
directly.

    metadata = emit_bare(program, Path("build/net"), target=get_target("cortex-m4"))

The parameters are stored in one file, followed by a checksum of their layout and a checksum of the
contents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aotc_runtime_c import bare_sources

from aotc.ir import AotcError, require_known
from aotc.tir import Program, Target
from aotc.tir.float_abi import float_abi
from aotc_codegen.c.bare_metal_weights import Weights, placed_params
from aotc_codegen.c.c_dialects import DIALECTS
from aotc_codegen.c.file_templates import render
from aotc_codegen.c.host_project import (
    Content,
    common_words,
    has_inline_assembly,
    kernel_files,
    model_words,
    require_name,
    write_project,
)
from aotc_codegen.c.kernel_files import PrintedKernels, print_kernels
from aotc_codegen.c.metadata import describe, footprint
from aotc_codegen.c.parameter_files import Params
from aotc_codegen.c.schedule_calls import call_rows, resident_note, tensors_of
from aotc_codegen.c.selftest import Golden, selftest_words
from aotc_codegen.c.workspace import struct_of, workspace_words

#: Default compiler and archiver by the architecture of a target.
_TOOLS: Final = {
    "arm": ("arm-none-eabi-gcc", "arm-none-eabi-ar"),
    "riscv32": ("'riscv64-unknown-elf-gcc --specs=picolibc.specs'", "riscv64-unknown-elf-ar"),
}
#: Pattern of calls of C math library functions in kernels.
_MATH: Final = re.compile(r"\b(sqrt|fma|fmod|floor|ceil|trunc|rint|round|copysign|fabs)(f?)\(")
_LOCAL: Final = re.compile(r'^#include "[^"\n]+"\n', re.MULTILINE)
#: README text on the compiler for projects whose kernels contain inline assembly.
_ASSEMBLY: Final = """gcc or
clang, since its kernels have inline assembly for this core (`aotc compile --portable` makes C99 without it),"""
_LICENSED_HEADER: Final = "The file `include/aotc_bare.h` is\npart of aotc and under the Apache License 2.0."
#: Math functions that compilers replace by instructions on every machine.
_INLINE: Final = ("fabs", "fabsf", "copysign", "copysignf")


def required_functions(kernels: PrintedKernels) -> list[str]:
    """Return the names of the math library functions that kernels call and that compilers do not
    inline.
    """
    text = "\n".join(k.text + "".join(k.printed.definitions.values()) for k in kernels.kernels)
    return sorted({"".join(found) for found in _MATH.findall(text)}.difference(_INLINE))


def _requirements(target: Target, math: Sequence[str]) -> list[str]:
    """Return preprocessor lines that reject compiler flags under which results would differ.

    C libraries for cores without an FPU, such as newlib's fmaf, round a multiply-add twice.
    """
    if target.machine != "arm" or not {"fma", "fmaf"}.intersection(math):
        return []
    text = "this code needs an FPU, and the flags of the C compiler say that there is none or leave it unused"
    hint = "generate it with --float-abi soft"
    return ["#if defined(__arm__) && !defined(__ARM_FEATURE_FMA)", f'#error "{text}: {hint}"', "#endif"]


def _sources(name: str, params: Params, common: dict[str, Any], kernels: PrintedKernels) -> dict[str, Content]:
    """Return the C headers, kernels and schedule of a bare-metal project: contents by path."""
    upper, note = common["upper"], common["resident"] + render("bare_run.h", **common)
    check = ["/* AOTC_OK where the parameters are whole and made for this code, else AOTC_ERROR_WEIGHTS. */"]
    check.append(f"int {name}_check_weights(void);")
    stack = ["/* Bytes of stack that a run takes at most. */", f"#define {upper}_STACK_BYTES {common['stack_bytes']}"]
    if common["tested"]:
        check += [
            "/* Runs the model on values whose results are known, into `outputs`: AOTC_OK,",
            " * AOTC_ERROR_SELFTEST where they are others, or what was wrong before. */",
            f"int {name}_selftest(const {name}_outputs *outputs, {common['workspace']['parameter']});",
        ]
    words = {"header": "aotc_bare.h", "run_note": note, "bounds": stack, "functions": check}
    rows, count = params.declarations(), len(params.pieces)
    address, align = f"{upper}_WEIGHTS_ADDRESS", params.align
    aligned = [f"#if {address} % {align}", f"#error {address} must be a multiple of {align}", "#endif"]
    pointer = f"(const unsigned char *){address}"
    places = (f"#define {params.array(p)} ({pointer} + {p.begin})" for p in params.pieces)
    placed = [f"#ifdef {address}", *aligned, *places, "#else"]
    declared = [*placed, *rows[:count], "#endif", *rows[count:]]
    tested: dict[str, Content] = {}
    if common["tested"]:
        text = render("selftest.c", **common, **common["tested"])
        tested[f"src/{name}_selftest.c"] = text
    return {
        f"include/{name}.h": render("model.h", **common, **words),
        f"src/{name}_internal.h": render("internal.h", params=declared, prototypes=kernels.prototypes, **common),
        f"src/{name}_kernel.h": render("kernel.h", **common),
        **kernel_files(kernels, "", common),
        f"src/{name}.c": render("bare.c", **common),
        f"src/{name}_weights.c": render("bare_weights.c", **common),
        **tested,
    }


def _single(kernels: PrintedKernels, files: dict[str, Content], common: dict[str, Any]) -> dict[str, Content]:
    """Return the files with the model's code merged into one source and one header; user-supplied
    code stays separate.
    """
    name = common["name"]
    header = f"include/{name}.h"
    own: dict[str, str] = {}
    rest: dict[str, Content] = {}
    for path, text in files.items():
        if path.endswith((".c", ".h")) and "_extern_" not in path:
            own[path] = str(text)
        else:
            rest[path] = text
    (shared,) = bare_sources()
    parts = [own[f"src/{name}_kernel.h"], own[f"src/{name}_internal.h"], own.pop(f"src/{name}_params.c")]
    later = [own.pop(path) for path in list(own) if path.endswith(".c") and "_kernels_" not in path]
    parts += [kernels.file("kernels.c", kernels.kernels, **common), *later]
    source = f'#include "{name}.h"\n' + "".join(_LOCAL.sub("", part) for part in parts)
    common_header = shared.read_text("utf-8")
    return {header: _LOCAL.sub(lambda _: common_header, own[header]), f"src/{name}.c": source, **rest}


def _words_of_files(name: str, common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Makefile and README texts for parameters in a separate binary file."""
    portable = "for assemblers without .incbin; HOSTCC compiles for this machine"
    array = f"$(BUILD)/{name}_params_array"
    return {
        "params_usage": f"# make PORTABLE_PARAMS=1            {portable}\n",
        "params_host": "HOSTCC ?= cc\n",
        "params_choice": f"else ifdef PORTABLE_PARAMS\nOBJECTS += {array}.o\nelse\n"
        f"OBJECTS += $(BUILD)/src/{name}_params.o\n",
        "params_rules": render("bare_params.mk", **common),
        "params_built": f"$(BUILD)/src/{name}_params.o {array}.o {array}.c {array}.c.new $(BUILD)/params_to_c ",
        "params_place": f"one file, `src/{name}_params.bin`",
        "licensed": _LICENSED_HEADER,
        "files_said": "",
    }


def _words_of_arrays(name: str, common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Makefile and README texts for parameters as C arrays, which may be part of the
    single source file.
    """
    words = dict.fromkeys(("params_usage", "params_host", "params_choice", "params_rules", "params_built"), "")
    if not common["single"]:
        place = {"params_place": f"arrays in `src/{name}_params.c`"}
        return {**words, **place, "licensed": _LICENSED_HEADER, "files_said": ""}
    files = " and ".join(f"`{path}`" for path in (*common["sources"], f"include/{name}.h"))
    said = f"{files} are all of the code, with the parameters: copy them into your build,"
    return {
        **words,
        "params_place": f"arrays in `src/{name}.c`",
        "licensed": f"What `include/{name}.h`\nhas between the guards of `AOTC_BARE_H` is part of aotc and under the "
        "Apache License 2.0.",
        "files_said": f"## Files\n\n{said}\nor use the build files here.\n\n",
    }


def _build(name: str, common: dict[str, Any]) -> dict[str, Content]:
    """Return the build files, the linker scripts of the weights and the README: contents by path."""
    arrays = common["arrays"]
    params = f"set({common['upper']}_PARAMS)\n" if arrays else render("params.cmake", **common)
    words = {**common, **(_words_of_arrays(name, common) if arrays else _words_of_files(name, common))}
    apart = {
        f"src/{name}_params.S": render("bare_params.S", **common),
        "src/params_to_c.c": render("params_to_c.c", **common),
    }
    return {
        **({} if arrays else apart),
        **{f"{row['output']}.ld": render("weights.ld", **common | row) for row in common["pieces"]},
        "Makefile": render("bare.mk", **words),
        "CMakeLists.txt": render(
            "bare.cmake", params=params, manifest=render("manifest.cmake", runtime=(), name=name), **common
        ),
        "README.md": render("bare.md", **words),
    }


def _compiler_words(abi: str, files: Mapping[str, Content]) -> dict[str, str]:
    """Return the README texts on the required C compiler and, if the target has a choice, on the
    float ABI.
    """
    return {
        "language": _ASSEMBLY if has_inline_assembly(files) else "a\nC99 compiler,",
        "abi_said": f"; the float ABI\nis `{abi}` without such flags" if abi else "",
    }


def _words(
    program: Program, target: Target, metadata: Mapping[str, Any], weights: Weights, math: Sequence[str]
) -> dict[str, Any]:
    """Return the template values for a bare-metal project's memory, compiler and archiver."""
    name, plan = program.name, program.plan
    compiler, archiver = _TOOLS.get(target.machine, ("cc", "ar"))
    inputs, outputs = tensors_of(program)
    required = [f"{t.role}s->{t.ident}" for t in (*inputs, *outputs) if t.storage.size]
    workspace = workspace_words(program)
    return {
        "workspace_align": plan.align,
        "struct": struct_of(name, workspace),
        **_workspace_texts(program, workspace),
        "weights_align": weights.align,
        "pieces": weights.rows,
        "layout": weights.layout,
        "stack_bytes": metadata["footprint"]["stack"],
        "required": [*required, *workspace["required"]],
        "compiler": compiler,
        "archiver": archiver,
        "math_said": "".join(f", `{function}`" for function in math),
    }


def _workspace_texts(program: Program, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts about the workspace memory of a run, for the README and comments."""
    name, upper = program.name, program.name.upper()
    said = f"has {upper}_WORKSPACE_BYTES bytes (NULL if that is 0)"
    if not words["several"]:
        return {"workspace_said": said, "workspace_split": "", "workspace_made": [], "workspace_argument": "workspace"}
    split = " and ".join(f"{part.bytes} in {part.memory}" for part in program.plan.parts)
    members = ", ".join(piece for piece, _ in words["given"])
    return {
        "workspace_said": "has a pointer to each piece of memory",
        "workspace_split": f", {split}",
        "workspace_made": [f"const {name}_workspace workspace = {{ {members} }};"],
        "workspace_argument": "&workspace",
    }


def _parts(
    program: Program, target: Target, golden: Golden | None
) -> tuple[Params, PrintedKernels, Weights, dict[str, Any]]:
    """Return the parameters, the printed kernels, the parameter file and the footprint of a
    project.
    """
    params = placed_params(program, target, golden)
    kernels = print_kernels(program.kernels, program.name, DIALECTS[target.dialect], share="numbers")
    numbers = [len(kernels.numbers.get(step.kernel, ())) for step in program.steps]
    weights = Weights(params, golden)
    taken = footprint(program, target, kernels.names, params, numbers)
    return params, kernels, weights, taken | {"parameters": weights.bytes}


def bare_footprint(program: Program, target: Target) -> dict[str, Any]:
    """Return the memory footprint that the project's metadata would contain, without writing the
    project.
    """
    return _parts(program, target, None)[-1]


def emit_bare(
    program: Program,
    directory: Path,
    *,
    target: Target,
    accuracy: str = "fast",
    passes: Sequence[str] = (),
    numerics: str = "",
    golden: Golden | None = None,
    single_file: bool = False,
    cflags: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the project into an existing directory and return its metadata.

    accuracy      requested accuracy mode, which is recorded in the metadata
    passes        names of the passes that produced the program, which are recorded in the metadata
    numerics      identifier of the numerical behavior of the program
    golden        example inputs and outputs for a self-test, None for no self-test
    single_file   if True, emit one source and one header
    cflags        C compiler flags of the user for the build files

    Raise AotcError: code "name" if the program's name cannot be used in C, "memory" if a run needs
    more memory than the target has, "output" if a file cannot be written, "target" if a kernel is
    split among threads.
    """
    name = program.name
    require_name(name)
    require_known("target", f"dialect of target {target.name}:", target.dialect, DIALECTS)
    if any(kernel.team for kernel in program.kernels):
        raise AotcError("target", f"target {target.name} has no operating system and therefore no threads")
    params, kernels, weights, taken = _parts(program, target, golden)
    math = required_functions(kernels)
    metadata = describe(program, target, kernels.names, params) | {"footprint": taken}
    common = common_words(name, False) | model_words(program, target, numerics, params, cflags)
    common |= _words(program, target, metadata, weights, math) | {"steps": call_rows(program, kernels, params)}
    common |= {"resident": resident_note(program), "requirements": _requirements(target, math)}
    common |= {"single": single_file, "tested": {}}
    if golden is not None:
        common["tested"] = selftest_words(common["tensors"], [params.place(at) for at in weights.offsets])
    externals = kernels.external_files(name)
    files = _sources(name, params, common, kernels)
    files |= {path: external.file() for path, external in externals.items()}
    common["arrays"] = single_file or weights.bytes < target.budget.array_bytes
    if common["arrays"]:
        common["array"] = f"#ifndef {name.upper()}_WEIGHTS_ADDRESS\n{weights.arrays()}#endif\n"
        files[f"src/{name}_params.c"] = render("params.c", **common | {"arrays": common["array"].splitlines()})
    if single_file:
        files = _single(kernels, files, common)
    common["sources"] = [path for path in files if path.endswith(".c")]
    common["headers"] = " ".join(path for path in files if path.endswith(".h"))
    metadata["float_abi"] = float_abi(target)
    common |= _compiler_words(metadata["float_abi"], files)
    files |= {f"src/{name}_params.bin": weights.contents, **_build(name, common)}
    metadata |= {"accuracy": accuracy, "numerics": numerics, "passes": list(passes)}
    metadata["links"] = {"c": ["memcpy", "memset"], "m": math, "compiler": "arithmetic that the core lacks"}
    metadata["weights"] = {"file": f"src/{name}_params.bin", **weights.described}
    metadata["externals"] = [external.described(path) for path, external in externals.items()]
    return write_project(directory, files, metadata, () if single_file else bare_sources())
