# SPDX-License-Identifier: Apache-2.0
"""Write kernels without a model as C: a table of functions that callers such as tests and tuners
call one by one.

Input: kernels. Output: C files that export a table with one function pointer per kernel, in order,
and a function that names the CPU features which the kernels need and the processor lacks. A table
function takes the addresses of the kernel's inputs, outputs and workspace buffers, in the order of
`Kernel.params`, and of its numbers; kernels that are split among threads run with a single thread.

    emit_kernel_table_project([relu, dense], Path("build"))  # extern void (*const aotc_kernels[])(void *const *)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from aotc_runtime_c import hosted_runtime_files as runtime_sources

from aotc.tir import Const, Kernel, Target
from aotc_codegen.c.c_dialects import GNU_C
from aotc_codegen.c.c_types import c_memory_type
from aotc_codegen.c.compiler_flags import riscv_vector_requirement_lines
from aotc_codegen.c.cpu_feature_check import cpu_feature_check_code, features_checked_at_run_time
from aotc_codegen.c.host_project import (
    FileContent,
    common_template_values,
    kernel_files_by_path,
    runtime_files_by_path,
    write_files_and_hash,
)
from aotc_codegen.c.kernel_files import PrintedKernels, c_number_argument, print_kernels
from aotc_codegen.c.template_rendering import render_template

#: Prefix of the emitted C names; no helper function of a kernel begins with it.
KERNEL_TABLE_PREFIX: Final = "kernels"
#: C symbol of the exported table of functions.
KERNEL_TABLE_SYMBOL: Final = "aotc_kernels"


def print_kernel_table(kernels: Sequence[Kernel], target: Target) -> PrintedKernels:
    """Print kernels of a table for the processor of a target."""
    return print_kernels(kernels, KERNEL_TABLE_PREFIX, replace(GNU_C, features=target.processor_features))


def emit_kernel_table_project(kernels: Sequence[Kernel], directory: Path, target: Target) -> dict[str, Any]:
    """Write src/*.c for `kernels` (at least one) into an existing directory; return metadata for
    `build_project_library`.

    The file of the table, which also checks the CPU features, is not compiled with the target's
    flags, so that it runs on every processor of the architecture.
    """
    printed = print_kernel_table(kernels, target)
    team = any(kernel.team for kernel in kernels)
    common = common_template_values(KERNEL_TABLE_PREFIX, team)
    externals = printed.external_kernels_by_path(KERNEL_TABLE_PREFIX)
    entries = c_functions_calling_kernels_by_addresses({printed.names[kernel]: kernel for kernel in kernels})
    table = [f"call_{printed.names[kernel]}" for kernel in kernels]
    words = {"symbol": KERNEL_TABLE_SYMBOL, "cpu": cpu_feature_check_code(features_checked_at_run_time([target]))}
    checks = {"kernel_requirements": riscv_vector_requirement_lines(target)}
    special = kernel_files_by_path(printed, "", common | checks)
    special |= {path: external.source_file_text() for path, external in externals.items()}
    files: dict[str, FileContent] = {
        f"src/{KERNEL_TABLE_PREFIX}_kernel.h": render_template("kernel.h", **common),
        f"src/{KERNEL_TABLE_PREFIX}_internal.h": render_template(
            "internal.h", params=(), prototypes=printed.prototypes, **common
        ),
        f"src/{KERNEL_TABLE_PREFIX}_table.c": render_template(
            "kernel_table.c", entries=entries, table=table, **words, **common
        ),
        **special,
    }
    if team:
        files |= runtime_files_by_path([path for path in runtime_sources(pool=True) if path.suffix == ".h"])
    write_files_and_hash(directory, files)
    return {
        "library": f"lib/lib{KERNEL_TABLE_PREFIX}.so",
        "externals": [external.metadata_entry(path) for path, external in externals.items()],
        "isas": [{"files": [path for path in special if path.endswith(".c")], "cflags": target.cflags}],
    }


def c_functions_calling_kernels_by_addresses(
    kernels: Mapping[str, Kernel],
    *,
    largest_numbers: bool = False,
    added_arguments: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[str]:
    """Return a C function call_NAME for each kernel: it passes the elements of an array of
    addresses as the arguments.

    `kernels` maps the C name of each kernel to the kernel. A line that defines a team of one thread
    comes first if a kernel needs a team.

    largest_numbers    pass the largest values of numbers, instead of values at addresses behind those of buffers
    added_arguments    C arguments after the numbers of a kernel, by its name (`PrintedKernels.numbers`)
    """
    lines = ["static const aotc_team alone = {0, 1, NULL, NULL};"] if any(k.team for k in kernels.values()) else []
    for name, kernel in kernels.items():
        arguments = [f"a[{k}]" for k in range(len(kernel.params))]
        arguments += [
            c_number_argument(Const(number.most, number.var.dtype))
            if largest_numbers
            else f"*(const {c_memory_type(number.var.dtype)} *)a[{k}]"
            for k, number in enumerate(kernel.numbers, len(kernel.params))
        ]
        arguments += added_arguments.get(name, ())
        unused = "" if arguments else "(void)a; "
        arguments += ["&alone"] if kernel.team else []
        lines.append(f"static void call_{name}(void *const *a) {{ {unused}{name}({', '.join(arguments)}); }}")
    return lines
