# SPDX-License-Identifier: Apache-2.0
"""Print the kernels of a program as one CUDA source for NVRTC; C++ compilers accept it with the
emulator's header.

printed = print_cuda_kernels(program.kernels, "net", gpu)
render_cuda_source_file(printed, name="net", banner="...")  # extern "C" __global__ void net_conv2d(...) { ... }
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from aotc.ir import AotcError
from aotc.tir import Gpu, Kernel, launch_of
from aotc_codegen.c.c_dialects import CUDA
from aotc_codegen.c.kernel_files import PrintedKernels, print_kernels

#: Limit of element and iteration counts up to which indices have 32 bits: half of what 32 bits can
#: represent, since indices may exceed the ends of buffers before conditions restrict them.
MAX_INT32_INDEX_EXTENT: Final = 1 << 30
#: Size in bytes of a launch argument; all are pointers.
_POINTER_BYTES: Final = 8


def print_cuda_kernels(kernels: Sequence[Kernel], prefix: str, gpu: Gpu) -> PrintedKernels:
    """Print kernels that have the form of `aotc.tir.gpu_launch` as CUDA functions PREFIX_NAME.

    Raise AotcError: code "external" for a kernel with user-supplied C code, "target" for a kernel
    with more parameters than a launch can pass, or with more shared memory than a block has on
    every GPU.
    """
    for kernel in kernels:
        if kernel.source is not None:
            text = f"the code of {kernel.name} is C, which {kernel.source.author} wrote: it does not run on a GPU"
            raise AotcError("external", text, span=kernel.span, hint="take a target that runs C")
        if _POINTER_BYTES * len(kernel.params) > gpu.argument_bytes:
            text = f"kernel {kernel.name} has {len(kernel.params)} parameters, a GPU takes "
            text += f"{gpu.argument_bytes // _POINTER_BYTES} at most"
            raise AotcError("target", text, span=kernel.span, hint="concatenate fewer tensors in one operator")
        launch = launch_of(kernel)
        if launch is not None and launch.shared_bytes > gpu.shared_bytes:
            text = f"kernel {kernel.name} takes {launch.shared_bytes} bytes of shared memory, a GPU has "
            text += f"{gpu.shared_bytes} for a block"
            raise AotcError("target", text, span=kernel.span, hint="this is a fault of aotc, please report it")
    printed = print_kernels(kernels, prefix, CUDA)
    sizes = (b.size for kernel in kernels for b in (*kernel.params, *kernel.stack_and_shared_buffers))
    if (
        max((*sizes, *(printed_kernel.printed.reach for printed_kernel in printed.kernels)), default=0)
        < MAX_INT32_INDEX_EXTENT
    ):
        return printed
    return print_kernels(kernels, prefix, replace(CUDA, index="int64_t"))


def render_cuda_source_file(printed: PrintedKernels, **common: Any) -> str:
    """Return the text of a file with all kernels.

    common   template values of the project: its `name`, the `banner` in the first line
    """
    return printed.render_kernel_file("device.cu", printed.kernels, **common)
