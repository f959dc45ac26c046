# SPDX-License-Identifier: Apache-2.0
"""Primitive functions to a library of compiled kernels, all in one go of the C compiler.

library = compile_kernels({"relu": fused_function}, target)
library.call("relu", [x], [y])
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

from aotc_codegen.c.kernel_table import emit_kernels

from aotc.driver.build import build_library
from aotc.driver.toolchain import Toolchain, find_toolchain
from aotc.ir.types import TensorType, tensor_types
from aotc.relay.backend.kernels import anchor_name, lower_function
from aotc.relay.expr import Function, type_of
from aotc.runtime.kernels import KernelInfo, KernelLibrary
from aotc.runtime.tensor import TensorInfo
from aotc.tir.stmt import Kernel
from aotc.tir.target import Target


def compile_kernels(
    functions: Mapping[str, Function], target: Target, toolchain: Toolchain | None = None
) -> KernelLibrary:
    """A kernel for each function, under its name.

    functions    of static types, each a fused function or one call of an operator; tuples in their types are
                 flattened: a kernel takes and gives tensors
    toolchain    the C compiler; the one of the machine for None

    Raises AotcError for shapes that are not static, operators without a tensor program, and a failing compiler.
    """
    kernels = {name: lower_function(f, anchor_name(f), target) for name, f in functions.items()}
    types = {name: (tuple(map(type_of, f.params)), type_of(f.body)) for name, f in functions.items()}
    infos = {
        name: kernel_info(kernels[name], (t for p in params for t in tensor_types(p)), tensor_types(result))
        for name, (params, result) in types.items()
    }
    return compile_table(kernels, infos, target, toolchain)


def kernel_info(kernel: Kernel, inputs: Iterable[TensorType], outputs: Iterable[TensorType]) -> KernelInfo:
    """What a kernel takes, its tensors of the given types."""

    def infos(types: Iterable[TensorType]) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo(str(k), list(t.static_shape), t.dtype) for k, t in enumerate(types))

    return KernelInfo(infos(inputs), infos(outputs), tuple(b.nbytes for b in kernel.workspace))


def compile_table(
    kernels: Mapping[str, Kernel], infos: Mapping[str, KernelInfo], target: Target, toolchain: Toolchain | None = None
) -> KernelLibrary:
    """The library of `kernels`, each described by the entry of `infos` of its name."""
    folder = tempfile.TemporaryDirectory(prefix="aotc-kernels-")
    path = Path(folder.name)
    if kernels:
        emit_kernels(list(kernels.values()), path, version=version("aotc"))
        path = build_library(path, {"library": "lib/libkernels.so"}, toolchain or find_toolchain(), target)
    return KernelLibrary(path, infos, folder)
