# SPDX-License-Identifier: Apache-2.0
"""Compiles a batch of kernels as one C library, and compares their results with the interpreter's.

results = run_batch([(kernel, [x, y])], tmp_path)      # [[out], ...]
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from aotc_codegen.c.c_dialects import GNU_C, Dialect
from aotc_codegen.c.compiler_flags import OPTIMIZATION_FLAGS
from aotc_codegen.c.cpu_feature_check import amx_permission_constructor_code
from aotc_codegen.c.kernel_printer import print_kernel
from aotc_codegen.c.template_rendering import render_template

from aotc.ir.architecture_names import normalized_architecture_name
from aotc.tir.passes import kernel_passes
from aotc.tir.stmt import Kernel
from aotc.tir.target import Target

Array = np.ndarray[Any, Any]
#: C for the processors that compilers generate code for without flags.
HOST_C = replace(GNU_C, features=frozenset({normalized_architecture_name()}))
FLAGS = OPTIMIZATION_FLAGS
STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")


def finished(kernel: Kernel, target: Target) -> Kernel:
    """A scheduled kernel as it is printed, with vectors and multiply-adds."""
    for item in kernel_passes(target):
        kernel = item.rewrite_kernel(kernel)
    return kernel


def gnu_c_for(target: Target) -> Dialect:
    """C with vectors, for the processor of a target."""
    return replace(GNU_C, features=target.processor_features)


def source_of(kernels: Iterable[Kernel], dialect: Dialect = HOST_C) -> str:
    """One C file: what kernels need, and kernels called kernel0, kernel1, ..."""
    printed = [print_kernel(kernel, dialect) for kernel in kernels]
    texts = [made.definition_with_name(f"kernel{k}") for k, made in enumerate(printed)]
    vectors = dialect.vector_file_prelude({vector for made in printed for vector in made.vectors})
    helpers = {name: text for made in printed for name, text in made.definitions.items()}
    begin, end = '#ifdef __cplusplus\nextern "C" {\n#endif', "#ifdef __cplusplus\n}\n#endif\n"
    header = render_template("kernel.h", banner="test", upper="TEST")
    first = (
        amx_permission_constructor_code(["amx_int8"]) if any("ldtilecfg" in text for text in helpers.values()) else ""
    )
    return "\n".join((header, begin, vectors, first, "\n".join(helpers.values()), *texts, end))


def build(source: str, folder: Path, *flags: str, cc: str = "gcc") -> Path:
    """A library of a C file; fails with the compiler's message."""
    path, library = folder / "batch.c", folder / "libbatch.so"
    path.write_text(source, encoding="utf-8")
    command = [cc, "-std=c99", *FLAGS, "-w", *flags, "-shared", "-fPIC", str(path), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return library


def call(library: ctypes.CDLL, name: str, kernel: Kernel, inputs: Sequence[Array]) -> list[Array]:
    """Run one kernel; outputs and scratch hold rubbish before."""
    arrays = [np.ascontiguousarray(a) for a in inputs]
    rest = [np.full(b.nbytes, 0x5A, np.uint8).view(b.dtype.numpy) for b in (*kernel.outputs, *kernel.workspace)]
    library[name](*(ctypes.c_void_p(a.ctypes.data) for a in (*arrays, *rest)))
    return rest[: len(kernel.outputs)]


def run_batch(
    jobs: Sequence[tuple[Kernel, Sequence[Array]]], folder: Path, *flags: str, dialect: Dialect = HOST_C
) -> list[list[Array]]:
    """The outputs of every job."""
    library = ctypes.CDLL(str(build(source_of((k for k, _ in jobs), dialect), folder, *flags)))
    return [call(library, f"kernel{k}", kernel, inputs) for k, (kernel, inputs) in enumerate(jobs)]
