# SPDX-License-Identifier: Apache-2.0
"""Call compiled kernels one by one on numpy arrays.

Input: a shared library with a table of kernels, and a description of each kernel.

library = KernelLibrary(path, {"relu": KernelInfo(inputs=(info,), outputs=(info,))})
library.run_kernel("relu", [x], [y])                 # writes y
run_relu = library.bind_kernel("relu", [x], [y])
run_relu()                                           # again with the same arrays
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np

from aotc.ir import AotcError, frozen, option_text
from aotc.runtime.abi import cffi_interface_for
from aotc.runtime.library import load_shared_library
from aotc.runtime.tensor_info import (
    Array,
    TensorInfo,
    allocate_aligned_bytes,
    copy_array_pairs,
    memory_address,
    pairs_of_distinct_arrays,
)

#: Bytes to which tensors and scratch memory are aligned.
ALIGNMENT_BYTES: Final = 64


_KERNEL_TABLE_DECLARATION: Final = "extern void (*const aotc_kernels[])(void *const *);"
_FFI: Final = cffi_interface_for(f"{_KERNEL_TABLE_DECLARATION} const char *aotc_kernels_lack(void);")


@frozen
class KernelInfo:
    """Signature of a kernel: tensors that it reads and writes, and sizes of its scratch buffers in
    bytes.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    workspace: tuple[int, ...] = ()


def has_kernel_table(path: Path) -> bool:
    """Return True if a library contains a table of kernels; AotcError (code "load") if it is not a
    library.
    """
    library = load_shared_library(path, _FFI)
    with suppress(KeyError, AttributeError):  # of cffi, for a symbol that is not there
        return library.aotc_kernels is not None
    return False


class KernelLibrary:
    """A library of kernels, the entries of its table in the order of `infos`.

    path    path of the file
    infos   signatures of the kernels by name

    Threads may call kernels concurrently, since each thread has its own scratch memory.  Calls
    release the GIL.

    Raises AotcError: code "load" if the file is not a library, "cpu" if the processor lacks
    features that kernels need.
    """

    def __init__(self, path: Path, infos: Mapping[str, KernelInfo], keep_alive: object = None) -> None:
        self.path, self.infos = path, dict(infos)
        self._keep_alive = keep_alive
        self._handle = load_shared_library(path, _FFI) if infos else None
        if self._handle is not None and (lacked := self._handle.aotc_kernels_lack()) != _FFI.NULL:
            text = f"{path} has kernels that need what this processor lacks: {_FFI.string(lacked).decode()}"
            raise AotcError("cpu", text, hint="compile with " + option_text("target", "host") + " to run them here")
        entries = self._handle.aotc_kernels if self._handle is not None else ()
        self._functions = {name: entries[k] for k, name in enumerate(self.infos)}
        self._forms = {
            name: [(t.dtype.numpy, math.prod(t.shape), t.c_memory_dtype) for t in (*info.inputs, *info.outputs)]
            for name, info in self.infos.items()
        }
        self._local = threading.local()

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return tuple(self.infos)

    def run_kernel(self, name: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run a kernel: read `inputs` and write `outputs`, all C-contiguous and of the stated size
        and dtype.
        """
        self.bind_kernel(name, inputs, outputs)()

    def bind_kernel(self, name: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Return a function that runs a kernel on the given arrays; only one thread may call it at
        a time.
        """
        info = self.infos[name]
        function = self._functions[name]
        forms = self._forms[name]
        arrays = (*inputs, *outputs)
        buffers = []
        for array, (dtype, size, memory) in zip(arrays, forms, strict=True):
            assert array.dtype == dtype and array.size == size and array.flags.c_contiguous, name
            buffers.append(array if memory == dtype else np.empty(array.shape, memory))
        loads = pairs_of_distinct_arrays(buffers, inputs)
        stores = pairs_of_distinct_arrays(outputs, buffers[len(inputs) :])
        pointers = _FFI.new("void *[]", len(arrays) + len(info.workspace) + 1)
        for k, buffer in enumerate(buffers):
            pointers[k] = _FFI.cast("void *", memory_address(buffer))

        def run_bound_kernel() -> None:
            copy_array_pairs(loads)
            for k, start in enumerate(self._scratch_buffer_addresses(info.workspace), len(arrays)):
                pointers[k] = _FFI.cast("void *", start)
            function(pointers)
            copy_array_pairs(stores)

        return run_bound_kernel

    def _scratch_buffer_addresses(self, sizes: Sequence[int]) -> list[int]:
        """Return the addresses of the calling thread's scratch buffers, which are enlarged if they
        are too small.
        """
        ends = list(accumulate(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes))
        if not ends:
            return []
        memory = getattr(self._local, "memory", None)
        if memory is None or memory.nbytes < ends[-1]:
            memory = self._local.memory = allocate_aligned_bytes(ends[-1], ALIGNMENT_BYTES)
        return [memory_address(memory) + start for start in (0, *ends[:-1])]
