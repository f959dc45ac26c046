# SPDX-License-Identifier: Apache-2.0
"""Write kernels without a model as C: a table of functions that callers such as tests and tuners
call one by one.

Input: kernels. Output: C files that export a table with one function pointer per kernel, in order,
and a function that names the CPU features which the kernels need and the processor lacks. A table
function takes the addresses of the kernel's inputs, outputs and workspace buffers, in the order of
`Kernel.params`; kernels that are split among threads run with a single thread.

    emit_kernels([relu, dense], Path("build"))     # extern void (*const aotc_kernels[])(void *const *)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aotc_runtime_c import sources as runtime_sources

from aotc.tir import Kernel, Target
from aotc_codegen.c.cpu_feature_check import cpu_check
from aotc_codegen.c.file_templates import render
from aotc_codegen.c.host_project import Content, common_words, kernel_files, runtime_files, write_files
from aotc_codegen.c.kernel_files import print_kernels

#: Prefix of the emitted C names; no helper function of a kernel begins with it.
PREFIX: Final = "kernels"
#: C symbol of the exported table of functions.
TABLE: Final = "aotc_kernels"


def emit_kernels(kernels: Sequence[Kernel], directory: Path, target: Target) -> dict[str, Any]:
    """Write src/*.c for `kernels` (at least one) into an existing directory; return metadata for
    `build_library`.

    The file of the table, which also checks the CPU features, is not compiled with the target's
    flags, so that it runs on every processor of the architecture.
    """
    printed = print_kernels(kernels, PREFIX)
    team = any(kernel.team for kernel in kernels)
    common = common_words(PREFIX, team)
    externals = printed.external_files(PREFIX)
    entries = call_entries({printed.names[kernel]: kernel for kernel in kernels})
    table = [f"call_{printed.names[kernel]}" for kernel in kernels]
    words = {"symbol": TABLE, "cpu": cpu_check(target.features)}
    special = kernel_files(printed, "", common)
    special |= {path: external.file() for path, external in externals.items()}
    files: dict[str, Content] = {
        f"src/{PREFIX}_kernel.h": render("kernel.h", **common),
        f"src/{PREFIX}_internal.h": render("internal.h", params=(), prototypes=printed.prototypes, **common),
        f"src/{PREFIX}_table.c": render("kernel_table.c", entries=entries, table=table, **words, **common),
        **special,
    }
    if team:
        files |= runtime_files([path for path in runtime_sources(pool=True) if path.suffix == ".h"])
    write_files(directory, files)
    return {
        "library": f"lib/lib{PREFIX}.so",
        "externals": [external.described(path) for path, external in externals.items()],
        "isas": [{"files": [path for path in special if path.endswith(".c")], "cflags": target.cflags}],
    }


def call_entries(kernels: Mapping[str, Kernel]) -> list[str]:
    """Return a C function call_NAME for each kernel: it passes the elements of an array of
    addresses as the arguments.

    `kernels` maps the C name of each kernel to the kernel. A line that defines a team of one thread
    comes first if a kernel needs a team.
    """
    lines = ["static const aotc_team alone = {0, 1, NULL, NULL};"] if any(k.team for k in kernels.values()) else []
    for name, kernel in kernels.items():
        arguments = [*(f"a[{k}]" for k in range(len(kernel.params))), *(["&alone"] if kernel.team else [])]
        unused = "" if kernel.params else "(void)a; "
        lines.append(f"static void call_{name}(void *const *a) {{ {unused}{name}({', '.join(arguments)}); }}")
    return lines
