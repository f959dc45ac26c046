# SPDX-License-Identifier: Apache-2.0
"""Primitive functions to a library of compiled kernels, all in one go of the C compiler.

library = compile_kernels({"relu": fused_function}, target)
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
from aotc.relay.backend.external import external_kernel
from aotc.relay.backend.kernels import anchor_name, lower_function
from aotc.relay.expr import Function, type_of
from aotc.runtime.forks import ScratchDirectory
from aotc.runtime.kernels import KernelInfo, KernelLibrary
from aotc.runtime.tensor import TensorInfo
from aotc.tir.expr import Buffer
from aotc.tir.stmt import Kernel
from aotc.tir.target import Target


def compile_kernels(
    functions: Mapping[str, Function], target: Target, toolchain: Toolchain | None = None
) -> KernelLibrary:
    """A kernel for each function, under its name.

    functions    of static types, each a fused function, one call of an operator, or a function that the user's code
                 computes; tuples in their types are flattened: a kernel takes and gives tensors
    toolchain    the C compiler; the one of the machine for None

    Raises AotcError for shapes that are not static, operators without a tensor program, and a failing compiler.
    """
    kernels = {
        name: external_kernel(f) if "Compiler" in f.attrs else lower_function(f, anchor_name(f), target)
        for name, f in functions.items()
    }
    types = {name: (_tensors(*map(type_of, f.params)), _tensors(type_of(f.body))) for name, f in functions.items()}
    infos = {name: KernelInfo(*types[name], workspace_of(kernel)) for name, kernel in kernels.items()}
    return compile_table(kernels, target, infos, toolchain)


def _tensors(*types: Type) -> tuple[TensorInfo, ...]:
    tensors = [t for ty in types for t in tensor_types(ty)]
    return tuple(TensorInfo(str(k), list(t.static_shape), t.dtype) for k, t in enumerate(tensors))


def workspace_of(kernel: Kernel) -> tuple[int, ...]:
    """The bytes of a kernel's scratch buffers."""
    return tuple(b.nbytes for b in kernel.workspace)


def flat_info(kernel: Kernel) -> KernelInfo:
    """What a kernel takes, as flat memory."""

    def flat(buffers: Sequence[Buffer]) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo(b.name, [b.size], b.dtype) for b in buffers)

    return KernelInfo(flat(kernel.inputs), flat(kernel.outputs), workspace_of(kernel))


def compile_table(
    kernels: Mapping[str, Kernel],
    target: Target,
    infos: Mapping[str, KernelInfo] | None = None,
    toolchain: Toolchain | None = None,
) -> KernelLibrary:
    """The library of `kernels`, each described by the entry of `infos` of its name; None stands for flat memory."""
    folder = ScratchDirectory("aotc-kernels-")
    path = Path(folder.name)
    if kernels:
        require_cpu(target)
        externals = emit_kernels(list(kernels.values()), path, version=version("aotc"))
        metadata = {"library": "lib/libkernels.so", "externals": externals}
        path = build_library(path, metadata, toolchain or find_toolchain(target=target), target)
    described = infos if infos is not None else {name: flat_info(kernel) for name, kernel in kernels.items()}
    return KernelLibrary(path, described, folder)
