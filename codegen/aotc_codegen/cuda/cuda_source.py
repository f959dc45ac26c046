# SPDX-License-Identifier: Apache-2.0
"""The kernels of a program as one CUDA text, which NVRTC takes, and C++ with an emulator of the device in front.

printed = print_device_kernels(program.kernels, "net", gpu)
device_source(printed, name="net", banner="...")       # extern "C" __global__ void net_conv2d(...) { ... }
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from aotc.ir import AotcError
from aotc.tir import Gpu, Kernel, launch_of
from aotc_codegen.c.c_dialects import CUDA
from aotc_codegen.c.kernel_files import PrintedKernels, print_kernels

#: Numbers of elements, and of iterations, below which indices have 32 bits; half of what 32 bits hold, since indices
#: may go beyond the ends of buffers before conditions keep them inside.
SMALL: Final = 1 << 30
#: Bytes of one argument of a launch: all are pointers.
_POINTER: Final = 8


def print_device_kernels(kernels: Sequence[Kernel], prefix: str, gpu: Gpu) -> PrintedKernels:
    """Print each kernel, which must have the form of `aotc.tir.gpu_launch`, as PREFIX_NAME.

    Raises AotcError: code "external" for a kernel whose code is the user's C, "target" for one of more parameters than
    the device takes arguments, or of more shared memory than every device has for a block.
    """
    for kernel in kernels:
        if kernel.source is not None:
            text = f"the code of {kernel.name} is C, which {kernel.source.author} wrote: it does not run on a GPU"
            raise AotcError("external", text, span=kernel.span, hint="take a target that runs C")
        if _POINTER * len(kernel.params) > gpu.argument_bytes:
            text = f"kernel {kernel.name} has {len(kernel.params)} parameters, a GPU takes "
            text += f"{gpu.argument_bytes // _POINTER} at most"
            raise AotcError("target", text, span=kernel.span, hint="concatenate fewer tensors in one operator")
        launch = launch_of(kernel)
        if launch is not None and launch.shared_bytes > gpu.shared_bytes:
            text = f"kernel {kernel.name} takes {launch.shared_bytes} bytes of shared memory, a GPU has "
            text += f"{gpu.shared_bytes} for a block"
            raise AotcError("target", text, span=kernel.span, hint="this is a fault of aotc, please report it")
    printed = print_kernels(kernels, prefix, CUDA)
    sizes = (b.size for kernel in kernels for b in (*kernel.params, *kernel.local))
    if max((*sizes, *(one.printed.reach for one in printed.kernels)), default=0) < SMALL:
        return printed
    return print_kernels(kernels, prefix, replace(CUDA, index="int64_t"))


def device_source(printed: PrintedKernels, **common: Any) -> str:
    """The text of a file with all kernels.

    common   the project's values for templates: its `name`, the `banner` in the first line
    """
    return printed.file("device.cu", printed.kernels, **common)
