# SPDX-License-Identifier: Apache-2.0
"""Write a program as a project for bare-metal targets: a static C library that calls the kernels
directly.

    metadata = emit_bare_metal_project(program, Path("build/net"), target=get_target("cortex-m4"))

The parameters are stored in one file, followed by a checksum of the code and layout that they are for, and a
checksum of the contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aotc_runtime_c import bare_metal_runtime_files, freestanding_files, string_runtime_files

from aotc.ir import AotcError
from aotc.tir import PROCESSOR_FEATURES, Program, Target
from aotc.tir.float_abi import float_abi
from aotc_codegen.c.bare_metal_weights import ParameterFile, assign_params_to_memories
from aotc_codegen.c.c_dialects import dialect_for_target
from aotc_codegen.c.host_project import (
    FileContent,
    common_template_values,
    has_inline_assembly,
    kernel_files_by_path,
    model_template_values,
    require_valid_model_name,
    string_header_paths,
    write_project_and_manifest,
)
from aotc_codegen.c.kernel_files import FIRMWARE_FILE_SIZES, PrintedKernels, print_kernels
from aotc_codegen.c.parameter_files import ParameterLayout
from aotc_codegen.c.project_metadata import describe_compiled_program, estimate_memory_footprint
from aotc_codegen.c.run_time_sizes import pointer_bits
from aotc_codegen.c.schedule_calls import (
    ModelTensor,
    model_input_and_output_tensors,
    resident_tensors_header_text,
    schedule_call_lines,
)
from aotc_codegen.c.selftest import SelftestData, selftest_template_values
from aotc_codegen.c.separate_weights import SeparateWeights, separate_parameter_layout
from aotc_codegen.c.size_code import definition_lines, null_conditions, size_lines
from aotc_codegen.c.state_block import state_block_layout, state_metadata
from aotc_codegen.c.template_rendering import render_template
from aotc_codegen.c.workspace_parameter import workspace_struct_definition, workspace_template_values

#: Default compiler and archiver by the architecture of a target.
_COMPILER_AND_ARCHIVER: Final = {
    "arm": ("arm-none-eabi-gcc", "arm-none-eabi-ar"),
    "riscv32": ("'riscv64-unknown-elf-gcc --specs=picolibc.specs'", "riscv64-unknown-elf-ar"),
    "wasm32": ("'clang-19 --target=wasm32-wasi'", "llvm-ar-19"),
}
#: Pattern of calls of C math library functions in kernels.
_MATH_CALL_PATTERN: Final = re.compile(r"\b(sqrt|fma|fmod|floor|ceil|trunc|rint|round|copysign|fabs)(f?)\(")
_LOCAL_INCLUDE_PATTERN: Final = re.compile(r'^#include "([^"\n]+)"\n', re.MULTILINE)
#: README text on the compiler for projects whose kernels contain inline assembly.
_INLINE_ASSEMBLY_README_TEXT: Final = """gcc or
clang, since its kernels have inline assembly for this core (`aotc compile --portable` makes C99 without it),"""
_LICENSED_HEADER_README_TEXT: Final = (
    "The file `include/aotc_bare.h` is\npart of aotc and under the Apache License 2.0."
)
#: Math functions that compilers replace by instructions on every machine.
_INLINED_MATH_FUNCTIONS: Final = ("fabs", "fabsf", "copysign", "copysignf")


def called_math_library_functions(kernels: PrintedKernels) -> list[str]:
    """Return the names of the math library functions that kernels call and that compilers do not
    inline.
    """
    text = "\n".join(k.text + "".join(k.printed.definitions.values()) for k in kernels.kernels)
    return sorted({"".join(groups) for groups in _MATH_CALL_PATTERN.findall(text)}.difference(_INLINED_MATH_FUNCTIONS))


def _preprocessor_lines_rejecting_flags(
    target: Target, math_functions: Sequence[str], kernels: PrintedKernels
) -> list[str]:
    """Return preprocessor lines that reject compiler flags with which the code does not compile, or
    under which results would differ.

    C libraries for cores without an FPU, such as newlib's fmaf, round a multiply-add twice.  The
    inline assembly for Arm's DSP and vector extensions needs these, and reads several bytes as one
    number.
    """
    checks = []
    if target.machine == "arm" and {"fma", "fmaf"}.intersection(math_functions):
        text = "this code needs an FPU, and the flags of the C compiler say that there is none or leave it unused"
        hint = "generate it with --float-abi soft"
        checks += ["#if defined(__arm__) && !defined(__ARM_FEATURE_FMA)", f'#error "{text}: {hint}"', "#endif"]
    definitions = (text for kernel in kernels.kernels for text in kernel.printed.definitions.values())
    if target.machine == "arm" and any("__asm__" in text for text in definitions):
        missing = " || ".join(
            ["defined(__ARM_BIG_ENDIAN)", *(f"!defined({PROCESSOR_FEATURES[f].macro})" for f in target.features)]
        )
        text = f"this code is for little-endian processors with the extensions of {target.name}"
        hint = "correct the flags of the C compiler, or generate it with --portable"
        checks += [f"#if defined(__arm__) && ({missing})", f'#error "{text}: {hint}"', "#endif"]
    if target.machine == "wasm32":
        missing = " || ".join(f"!defined({PROCESSOR_FEATURES[f].macro})" for f in target.features)
        text = f"kernels for {target.name} need vectors of 128 bits: compile with {target.cflags[0]}"
        checks += [f"#if {missing}", f'#error "{text}"', "#endif"]
    return checks


def _c_source_files(
    name: str, params: ParameterLayout, template_values: dict[str, Any], kernels: PrintedKernels
) -> dict[str, FileContent]:
    """Return the C headers, kernels and schedule of a bare-metal project: contents by path."""
    upper, note = (
        template_values["upper"],
        template_values["resident"] + render_template("bare_run.h", **template_values),
    )
    separate: Sequence[SeparateWeights] = template_values["weight_files"]
    check = ["/* AOTC_OK where the parameters are whole and made for this code, else AOTC_ERROR_WEIGHTS. */"]
    check = [] if separate else [*check, f"int {name}_check_weights(void);"]
    stack = [
        "/* Estimated upper bound of the stack that a run needs, in bytes. */",
        f"#define {upper}_STACK_BYTES {template_values['stack_bytes']}",
    ]
    if template_values["tested"]:
        check += [
            "/* Runs the model on values whose results are known, into `outputs`: AOTC_OK,",
            " * AOTC_ERROR_SELFTEST where they are others, or what was wrong before. */",
            f"int {name}_selftest({template_values['outputs_type']} *outputs,"
            f" {template_values['workspace']['parameter']});",
        ]
    words = {"header": "aotc_bare.h", "run_note": note, "bounds": stack, "functions": check}
    rows, count = params.c_declarations_of_parameters(), len(params.pieces)
    address, align = f"{upper}_WEIGHTS_ADDRESS", params.align
    aligned = [f"#if {address} % {align}", f"#error {address} must be a multiple of {align}", "#endif"]
    pointer = f"(const unsigned char *){address}"
    places = (f"#define {params.c_array_name(p)} ({pointer} + {p.begin})" for p in params.pieces)
    placed = [f"#ifdef {address}", *aligned, *places, "#else"]
    declared = [*placed, *rows[:count], "#endif", *rows[count:]]
    for weights in separate:
        declared = [*weights.declarations, *rows]
    tested: dict[str, FileContent] = {}
    if template_values["tested"]:
        text = render_template("selftest.c", **template_values, **template_values["tested"])
        tested[f"src/{name}_selftest.c"] = text
    return {
        f"include/{name}.h": render_template("model.h", **template_values, **words),
        f"src/{name}_internal.h": render_template(
            "internal.h", params=declared, prototypes=kernels.prototypes, **template_values
        ),
        f"src/{name}_kernel.h": render_template("kernel.h", **template_values),
        **kernel_files_by_path(kernels, "", template_values),
        f"src/{name}.c": render_template("bare.c", **template_values),
        f"src/{name}_weights.c": render_template(
            "weights_file.c", hosted=[], crc32=render_template("crc32_small.c"), **template_values
        )
        if separate
        else render_template("bare_weights.c", **template_values),
        **tested,
    }


def _merge_into_single_source(
    kernels: PrintedKernels, files: dict[str, FileContent], template_values: dict[str, Any]
) -> dict[str, FileContent]:
    """Return the files with the model's code merged into one source and one header; user-supplied
    code stays separate.
    """
    name = template_values["name"]
    header = f"include/{name}.h"
    code_files: dict[str, str] = {}
    rest: dict[str, FileContent] = {}
    for path, text in files.items():
        if path.endswith((".c", ".h")) and "_extern_" not in path:
            code_files[path] = str(text)
        else:
            rest[path] = text
    shared = {path.name: path for path in (*bare_metal_runtime_files(), *string_runtime_files())}
    parts = [
        code_files[f"src/{name}_kernel.h"],
        code_files[f"src/{name}_internal.h"],
        code_files.pop(f"src/{name}_params.c", ""),
    ]
    later = [code_files.pop(path) for path in list(code_files) if path.endswith(".c") and "_kernels_" not in path]
    parts += [kernels.render_kernel_file("kernels.c", kernels.kernels, **template_values), *later]
    source = f'#include "{name}.h"\n' + "".join(_LOCAL_INCLUDE_PATTERN.sub("", part) for part in parts)
    return {
        header: _LOCAL_INCLUDE_PATTERN.sub(lambda m: shared[m[1]].read_text("utf-8"), code_files[header]),
        f"src/{name}.c": source,
        **rest,
    }


def _template_values_for_params_file(name: str, template_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Makefile and README texts for parameters in a separate binary file."""
    portable = "for assemblers without .incbin; HOSTCC compiles for this machine"
    array = f"$(BUILD)/{name}_params_array"
    return {
        "params_usage": f"# make PORTABLE_PARAMS=1            {portable}\n",
        "params_host": "HOSTCC ?= cc\n",
        "params_choice": f"else ifdef PORTABLE_PARAMS\nOBJECTS += {array}.o\nelse\n"
        f"OBJECTS += $(BUILD)/src/{name}_params.o\n",
        "params_rules": render_template("bare_params.mk", **template_values),
        "params_built": f"$(BUILD)/src/{name}_params.o {array}.o {array}.c {array}.c.new $(BUILD)/params_to_c ",
        "params_place": f"one file, `src/{name}_params.bin`",
        "licensed": _LICENSED_HEADER_README_TEXT,
        "files_said": "",
    }


def _template_values_for_params_arrays(name: str, template_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Makefile and README texts for parameters as C arrays, which may be part of the
    single source file.
    """
    words = dict.fromkeys(("params_usage", "params_host", "params_choice", "params_rules", "params_built"), "")
    if not template_values["single"]:
        place = {"params_place": f"arrays in `src/{name}_params.c`"}
        return {**words, **place, "licensed": _LICENSED_HEADER_README_TEXT, "files_said": ""}
    files = " and ".join(f"`{path}`" for path in (*template_values["sources"], f"include/{name}.h"))
    files_text = f"{files} are all of the code, with the parameters: copy them into your build,"
    return {
        **words,
        "params_place": f"arrays in `src/{name}.c`",
        "licensed": f"What `include/{name}.h`\nhas between the guards of `AOTC_BARE_H` is part of aotc and under the "
        "Apache License 2.0.",
        "files_said": f"## Files\n\n{files_text}\nor use the build files here.\n\n",
    }


def _template_values_for_separate_weights(template_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Makefile and README texts for parameters that are not part of the library."""
    return {**_template_values_for_params_arrays(template_values["name"], template_values), "params_place": ""}


def _build_files_and_readme(name: str, template_values: dict[str, Any]) -> dict[str, FileContent]:
    """Return the build files, the linker scripts of the weights and the README: contents by path."""
    arrays, separate = template_values["arrays"], template_values["weight_files"]
    params = (
        f"set({template_values['upper']}_PARAMS)\n" if arrays else render_template("params.cmake", **template_values)
    )
    params = "" if separate else params
    words = {
        **template_values,
        **(
            _template_values_for_separate_weights(template_values)
            if separate
            else _template_values_for_params_arrays(name, template_values)
            if arrays
            else _template_values_for_params_file(name, template_values)
        ),
    }
    params_files = {
        f"src/{name}_params.S": render_template("bare_params.S", **template_values),
        "src/params_to_c.c": render_template("params_to_c.c", **template_values),
    }
    freestanding: dict[str, FileContent] = {
        f"freestanding/{path.name}": [path.read_bytes()] for path in freestanding_files()
    }
    return {
        **({} if template_values["single"] else freestanding),
        **({} if arrays or separate else params_files),
        **{
            f"{row['output']}.ld": render_template("weights.ld", **template_values | row)
            for row in template_values["pieces"]
        },
        "Makefile": render_template("bare.mk", **words),
        "CMakeLists.txt": render_template(
            "bare.cmake",
            params=params,
            manifest=render_template("manifest.cmake", runtime=(), name=name),
            **template_values,
        ),
        "README.md": render_template("bare.md", **words),
    }


def _readme_compiler_values(target: Target, files: Mapping[str, FileContent]) -> dict[str, str]:
    """Return the README texts on the required C compiler and, if the target has a choice, on the
    float ABI.
    """
    float_abi_name = float_abi(target)
    language = "a\nC99 compiler," if target.is_scalar else "gcc or\nclang, since its kernels have vectors of GNU C,"
    return {
        "language": _INLINE_ASSEMBLY_README_TEXT if has_inline_assembly(files) else language,
        "abi_said": f"; the float ABI\nis `{float_abi_name}` without such flags" if float_abi_name else "",
    }


def _memory_and_compiler_values(
    program: Program,
    target: Target,
    metadata: Mapping[str, Any],
    weights: ParameterFile | SeparateWeights,
    math_functions: Sequence[str],
) -> dict[str, Any]:
    """Return the template values for a bare-metal project's memory, compiler and archiver."""
    name, plan = program.name, program.plan
    compiler, archiver = _COMPILER_AND_ARCHIVER.get(target.machine, ("cc", "ar"))
    inputs, outputs = model_input_and_output_tensors(program)
    required = null_conditions(program, [*inputs, *outputs])
    workspace = workspace_template_values(program)
    return {
        "workspace_align": plan.align,
        "struct": workspace_struct_definition(name, workspace),
        **_workspace_description_values(program, workspace),
        **_linked_weights_values(weights),
        "stack_bytes": metadata["footprint"]["stack"],
        "required": [*required, *workspace["required"]],
        "compiler": compiler,
        "archiver": archiver,
        "math_said": "".join(f", `{function}`" for function in math_functions),
    }


def _linked_weights_values(weights: ParameterFile | SeparateWeights) -> dict[str, Any]:
    """Return the template values for parameters in the library; none if runs get them by their address."""
    if isinstance(weights, SeparateWeights):
        return {"pieces": []}
    return {"weights_align": weights.align, "pieces": weights.rows, "layout": weights.layout}


def _workspace_description_values(program: Program, workspace_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts about the workspace memory of a run, for the README and comments."""
    name, upper = program.name, program.name.upper()
    size_text = f"has {upper}_WORKSPACE_BYTES bytes (NULL if that is 0)"
    if not workspace_values["several"]:
        return {
            "workspace_said": size_text,
            "workspace_split": "",
            "workspace_made": [],
            "workspace_argument": "workspace",
        }
    split = " and ".join(f"{part.bytes} in {part.memory}" for part in program.plan.parts)
    members = ", ".join(piece for piece, _ in workspace_values["given"])
    return {
        "workspace_said": "has a pointer to each piece of memory",
        "workspace_split": f", {split}",
        "workspace_made": [f"const {name}_workspace workspace = {{ {members} }};"],
        "workspace_argument": "&workspace",
    }


def _parameters_and_kernels(
    program: Program, target: Target, golden: SelftestData | None, separate: bool = False
) -> tuple[ParameterLayout, PrintedKernels, ParameterFile | SeparateWeights, dict[str, Any]]:
    """Return the parameters, the printed kernels, the parameter file and the footprint of a
    project.
    """
    if separate:
        align = max(space.align for space in target.memory_spaces_for_role("parameters"))
        params = separate_parameter_layout([program], align)
    else:
        params = assign_params_to_memories(program, target, golden)
    kernels = print_kernels(
        program.distinct_kernels,
        program.name,
        dialect_for_target(target),
        kernel_merging="numbers",
        code_size=target.code_size,
        file_sizes=FIRMWARE_FILE_SIZES,
    )
    numbers = [len(kernels.numbers.get(step.kernel, ())) for step in program.steps]
    weights = SeparateWeights([program], params) if separate else ParameterFile(params, golden, program)
    footprint = estimate_memory_footprint(program, target, kernels.names, params, numbers)
    return params, kernels, weights, footprint | {"parameters": weights.byte_count}


def bare_metal_footprint(program: Program, target: Target) -> dict[str, Any]:
    """Return the memory footprint that the project's metadata would contain, without writing the
    project.
    """
    return _parameters_and_kernels(program, target, None)[-1]


def _selftest_values(
    tensors: Sequence[ModelTensor], params: ParameterLayout, weights: ParameterFile
) -> dict[str, list[str]]:
    """Return the template values for a self-test on the inputs and outputs stored in a parameter
    file.
    """
    return selftest_template_values(tensors, [params.c_address_of_byte(at) for at in weights.offsets])


def _required_functions(math_functions: Sequence[str]) -> dict[str, Any]:
    """Return the entry of the metadata on functions that a program must provide, by library."""
    return {"c": ["memcpy", "memset"], "m": [*math_functions], "compiler": "arithmetic that the core lacks"}


def _file_of_parameter_arrays(
    name: str, weights: ParameterFile, template_values: Mapping[str, Any]
) -> dict[str, FileContent]:
    """Return the C file that defines the parameters as arrays: contents by path."""
    rows = [f"#ifndef {name.upper()}_WEIGHTS_ADDRESS", *weights.c_array_definitions().splitlines(), "#endif"]
    return {f"src/{name}_params.c": render_template("params.c", **{**template_values, "arrays": rows})}


def _require_bare_metal_compatible(program: Program, target: Target) -> None:
    """Raise AotcError for a program whose name cannot be used in C, or kernels that are split among
    threads.
    """
    require_valid_model_name(program.name)
    if any(kernel.team for kernel in program.distinct_kernels):
        raise AotcError("target", f"target {target.name} has no operating system and therefore no threads")


def _runtime_files(program: Program) -> tuple[Path, ...]:
    return *bare_metal_runtime_files(), *string_header_paths(program)


def _source_and_header_lists(paths: Iterable[str]) -> dict[str, Any]:
    """Return the template values that name the C sources and headers among the files of a project."""
    return {
        "sources": [path for path in paths if path.endswith(".c")],
        "headers": " ".join(path for path in paths if path.endswith(".h")),
    }


def emit_bare_metal_project(
    program: Program,
    directory: Path,
    *,
    target: Target,
    accuracy: str = "fast",
    passes: Sequence[str] = (),
    numerics: str = "",
    golden: SelftestData | None = None,
    single_file: bool = False,
    cflags: Sequence[str] = (),
    separate_weights: bool = False,
) -> dict[str, Any]:
    """Write the project into an existing directory and return its metadata.

    accuracy      requested accuracy mode, which is recorded in the metadata
    passes        names of the passes that produced the program, which are recorded in the metadata
    numerics      identifier of the numerical behavior of the program
    golden        example inputs and outputs for a self-test, None for no self-test
    single_file   if True, emit one source and one header
    cflags        C compiler flags of the user for the build files
    separate_weights    True for parameters in a file that runs get by its address; needs golden None

    Raise AotcError: code "name" if the program's name cannot be used in C, "memory" if a run needs
    more memory than the target has, "output" if a file cannot be written, "target" if a kernel is
    split among threads.
    """
    name = program.name
    _require_bare_metal_compatible(program, target)
    params, kernels, weights, footprint = _parameters_and_kernels(program, target, golden, separate_weights)
    math = called_math_library_functions(kernels)
    metadata = describe_compiled_program(program, target, kernels.names, params) | {"footprint": footprint}
    state = state_block_layout([program], numerics)
    common = common_template_values(name, False)
    linked, separate = (weights, None) if isinstance(weights, ParameterFile) else (None, weights)
    common |= model_template_values(program, target, numerics, params, cflags, state, weights=separate)
    sizes = size_lines(program, dialect_for_target(target).index, pointer_bits(target))
    definitions = definition_lines(program, sizes, "return STATUS;")
    common |= _memory_and_compiler_values(program, target, metadata, weights, math) | {
        "size_lines": [*sizes.tier, *sizes.at_entry],
        "steps": schedule_call_lines(program, kernels, params, state, sizes.names, definitions),
        "resident": resident_tensors_header_text(program),
        "requirements": _preprocessor_lines_rejecting_flags(target, math, kernels),
    }
    common |= {"single": single_file, "freestanding": [] if single_file else ["freestanding/aotc_freestanding"]}
    common["tested"] = {} if golden is None or linked is None else _selftest_values(common["tensors"], params, linked)
    externals = kernels.external_kernels_by_path(name)
    files = _c_source_files(name, params, common, kernels)
    files |= {path: external.source_file_text() for path, external in externals.items()}
    common["arrays"] = linked is not None and (single_file or linked.byte_count < target.budget.array_bytes)
    if linked is not None and common["arrays"]:
        files |= _file_of_parameter_arrays(name, linked, common)
    if single_file:
        files = _merge_into_single_source(kernels, files, common)
    common |= _source_and_header_lists(files) | _readme_compiler_values(target, files)
    files |= {weights.file: weights.contents, **_build_files_and_readme(name, common)}
    metadata |= {"accuracy": accuracy, "numerics": numerics, "passes": list(passes), **state_metadata(state)}
    metadata |= {"float_abi": float_abi(target), "links": _required_functions(math), "weights": weights.metadata_entry}
    metadata["externals"] = [external.metadata_entry(path) for path, external in externals.items()]
    return write_project_and_manifest(directory, files, metadata, () if single_file else _runtime_files(program))
