# SPDX-License-Identifier: Apache-2.0
"""Compile kernels, without the schedule of a model, to a library that calls them by name.

library = compile_kernel_library({"relu": kernel}, target)
library.run_kernel("relu", [x], [y])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aotc_codegen.c.kernel_library_project import emit_kernel_table_project

from aotc.driver.compile_sources import build_project_library
from aotc.driver.detect_c_compiler_miscompilation import check_c_compiler_on_kernels
from aotc.driver.toolchain import Toolchain, find_toolchain, require_cpu_can_run
from aotc.ir.atomic_write import temporary_folder
from aotc.runtime.fork_safety import ScratchDirectory
from aotc.runtime.kernel_library import KernelInfo, KernelLibrary
from aotc.runtime.tensor_info import TensorInfo
from aotc.tir import Kernel, Target


def _describe_kernel_buffers_for_runtime(kernel: Kernel) -> KernelInfo:
    """Describe the buffers of a kernel for the runtime, as one-dimensional tensors."""
    inputs, outputs = (
        tuple(TensorInfo(b.name, [b.size], b.dtype) for b in buffers) for buffers in (kernel.inputs, kernel.outputs)
    )
    return KernelInfo(inputs, outputs, tuple(b.nbytes for b in kernel.workspace))


def compile_kernel_library(
    kernels: Mapping[str, Kernel], target: Target, toolchain: Toolchain | None = None
) -> KernelLibrary:
    """Compile kernels to a library that calls them by name.

    toolchain    the C compiler; None for the machine's default
    """
    folder = ScratchDirectory("aotc-kernels-")
    path = Path(folder.name)
    if kernels:
        require_cpu_can_run(target)
        metadata = emit_kernel_table_project(list(kernels.values()), path, target)
        path = build_project_library(path, metadata, toolchain or find_toolchain(target=target), target)
    return KernelLibrary(
        path, {name: _describe_kernel_buffers_for_runtime(kernel) for name, kernel in kernels.items()}, folder
    )


def check_kernels_against_unoptimized_build(kernels: Sequence[Kernel], target: Target, toolchain: Toolchain) -> None:
    """Raise AotcError (code "compiler-check") if the results of compiled kernels differ from those
    at -O0.
    """
    with temporary_folder("aotc-check-") as folder:
        metadata = emit_kernel_table_project(kernels, Path(folder), target)
        check_c_compiler_on_kernels(Path(folder), metadata, kernels, target, toolchain)
