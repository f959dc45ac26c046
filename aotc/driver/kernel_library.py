# SPDX-License-Identifier: Apache-2.0
"""Kernels to a library of functions that are called one by one, all in one go of the C compiler.

library = compile_table({"relu": kernel}, target)
library.call("relu", [x], [y])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from aotc_codegen.c.kernel_table import emit_kernels

from aotc.driver.build import build_library
from aotc.driver.toolchain import Toolchain, find_toolchain, require_cpu
from aotc.ir.types import Type, tensor_types
from aotc.relay.expr import Function, type_of
from aotc.runtime.forks import ScratchDirectory
from aotc.runtime.kernels import KernelInfo, KernelLibrary
from aotc.runtime.tensor import TensorInfo
from aotc.tir.expr import Buffer
from aotc.tir.stmt import Kernel
from aotc.tir.target import Target


def typed_info(function: Function, kernel: Kernel) -> KernelInfo:
    """What the kernel of a function takes, as the function's types say it, tuples flattened."""
    return KernelInfo(_tensors(*map(type_of, function.params)), _tensors(type_of(function.body)), _workspace(kernel))


def _tensors(*types: Type) -> tuple[TensorInfo, ...]:
    tensors = [t for ty in types for t in tensor_types(ty)]
    return tuple(TensorInfo(str(k), list(t.static_shape), t.dtype) for k, t in enumerate(tensors))


def _workspace(kernel: Kernel) -> tuple[int, ...]:
    """The bytes of a kernel's scratch buffers."""
    return tuple(b.nbytes for b in kernel.workspace)


def flat_info(kernel: Kernel) -> KernelInfo:
    """What a kernel takes, as flat memory."""

    def flat(buffers: Sequence[Buffer]) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo(b.name, [b.size], b.dtype) for b in buffers)

    return KernelInfo(flat(kernel.inputs), flat(kernel.outputs), _workspace(kernel))


def compile_table(
    kernels: Mapping[str, Kernel],
    target: Target,
    infos: Mapping[str, KernelInfo] | None = None,
    toolchain: Toolchain | None = None,
) -> KernelLibrary:
    """The library of `kernels`, each described by the entry of `infos` of its name; None stands for flat memory.

    toolchain    the C compiler; the one of the machine for None
    """
    folder = ScratchDirectory("aotc-kernels-")
    path = Path(folder.name)
    if kernels:
        require_cpu(target)
        externals = emit_kernels(list(kernels.values()), path, version=version("aotc"))
        metadata = {"library": "lib/libkernels.so", "externals": externals}
        path = build_library(path, metadata, toolchain or find_toolchain(target=target), target)
    described = infos if infos is not None else {name: flat_info(kernel) for name, kernel in kernels.items()}
    return KernelLibrary(path, described, folder)
