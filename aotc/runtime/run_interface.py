# SPDX-License-Identifier: Apache-2.0
"""What one run of a compiled model gets: descriptions of its tensors, and C arrays of their addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, combinations, product
from typing import Any, Final, cast

import _cffi_backend
import numpy as np

from aotc.ir.diagnostics import Diagnostic
from aotc.runtime.abi import ffi
from aotc.runtime.tensor_info import Array, TensorInfo, raise_if_problems

POINTER_ARRAY_TYPE: Final = ffi.typeof("void *[]")


def new_ffi_array_of_addresses(arrays: Sequence[Array], sizes: Any = ffi.NULL) -> Any:
    """Return a new cffi array of pointers to the memory of numpy arrays, to an array of sizes or shapes if there is
    one, and entries for a state and for a file of parameters.
    """
    addresses: list[Any] = list(map(ffi.from_buffer, arrays))
    if sizes != ffi.NULL:
        addresses.append(sizes)
    # for a state, and for a file of parameters
    return ffi.new(POINTER_ARRAY_TYPE, [*addresses, ffi.NULL, ffi.NULL])


#: Flags of numpy arrays that are aligned and C-contiguous: NPY_ARRAY_ALIGNED | NPY_ARRAY_C_CONTIGUOUS.
_ALIGNED_CONTIGUOUS_FLAGS: Final = 0x101


#: Returns a buffer of an array's memory for C; the array cannot be resized while it exists. `ffi.from_buffer` is a
#: Python function around this one, which takes half of the time.
memory_of_array: Final[Callable[[Array], Any]] = partial(cast(Any, _cffi_backend.from_buffer), ffi.typeof("char[]"))


class RunInterface:
    """Descriptions of the tensors of a run, whose shapes are known.

    inputs, outputs    descriptions, in order
    expected           name, dtype and shape of each input
    results            shape and dtype in memory of each output
    sizes              C array of the sizes of the run; NULL for a model whose shapes do not depend on sizes
    length             length of the state on which these shapes depend; None if they depend on none
    """

    __slots__ = ("expected", "inputs", "length", "outputs", "results", "sizes")

    def __init__(
        self,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        sizes: Any = ffi.NULL,
        length: int | None = None,
    ) -> None:
        self.inputs, self.outputs, self.sizes, self.length = inputs, outputs, sizes, length
        self.expected = [(i.name, i.dtype.numpy, tuple(i.shape)) for i in inputs]
        self.results = [(tuple(i.shape), i.c_memory_dtype) for i in outputs]

    def buffers_read_in_place(self, inputs: Mapping[str, Any]) -> list[Any] | None:
        """Return buffers of the inputs if all are valid and C can read them in place; None otherwise."""
        if type(inputs) is not dict or len(inputs) != len(self.expected):
            return None
        buffers = []
        for name, dtype, shape in self.expected:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.shape != shape:
                return None
            if (
                array.dtype is not dtype and array.dtype != dtype
            ) or array.flags.num & _ALIGNED_CONTIGUOUS_FLAGS != _ALIGNED_CONTIGUOUS_FLAGS:
                return None
            buffers.append(memory_of_array(array))
        return buffers


def require_no_memory_overlap(outputs: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
    """Raise AotcError if an output shares memory with another output or with an input that is read
    in place.
    """
    written = [(f"output {name!r}", array) for name, array in outputs.items()]
    read = [(f"input {name!r}", array) for name, array in inputs.items()]
    pairs = chain(combinations(written, 2), product(written, read))
    shared = [f"{first} and {second} share memory" for (first, a), (second, b) in pairs if np.may_share_memory(a, b)]
    raise_if_problems([Diagnostic("output-overlap", text, hint="give each its own array") for text in shared])
