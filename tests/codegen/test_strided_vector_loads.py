# SPDX-License-Identifier: Apache-2.0
"""Vectors that load every second element of memory: values, bounds and C text, with several compilers."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from aotc_codegen.c.c_types import is_sub_byte_integer

from aotc.ir.dtype import DTYPES, DType
from aotc.tir.expr import Buffer, Load, as_expr
from aotc.tir.stmt import Kernel, Store
from tests.codegen.batch import STRICT, build, call, source_of
from tests.codegen.cases import values
from tests.conftest import require_tool

Array: TypeAlias = np.ndarray[Any, Any]
#: Condition under which the emitted C uses vector shuffles.
SHUFFLES = "defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)"


def alternate(dtype: DType, lanes: int, stride: int = 2) -> Kernel:
    """Copy elements 1, 1 + stride, ... to a vector; the last one is the last element of the input."""
    x, y = Buffer("x", dtype, 2 + stride * (lanes - 1)), Buffer("y", dtype, lanes)
    return Kernel(name="k", inputs=(x,), outputs=(y,), body=Store(y, as_expr(0), Load(x, as_expr(1), lanes, stride)))


def before_protected_page(array: Array) -> Array:
    """Return a copy of an array whose last byte is followed by memory that may not be read."""
    size = mmap.PAGESIZE
    pages = np.frombuffer(mmap.mmap(-1, 2 * size), np.uint8)
    array_bytes = np.frombuffer(array.tobytes(), np.uint8)
    pages[size - array.nbytes : size] = array_bytes
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(pages.ctypes.data + size), ctypes.c_size_t(size), 0) == 0
    return pages[size - array.nbytes : size].view(array.dtype)


def bytes_of(array: Array) -> bytes:
    """Return the bytes of the elements; integers of fewer than 8 bits, with undefined upper bits, as int8."""
    return (array.astype(np.int8) if is_sub_byte_integer(DType.from_numpy(array)) else array).tobytes()


@pytest.mark.parametrize("compiler", ["gcc", "clang", "old"])
def test_alternate_loads_give_every_second_element_and_read_nothing_beyond(compiler: str, tmp_path: Path) -> None:
    cc = require_tool("gcc" if compiler == "old" else compiler)
    kernels = [alternate(dtype, lanes) for dtype in DTYPES for lanes in (2, 4, 8, 16) if lanes * dtype.itemsize <= 64]
    source = source_of(kernels)
    assert SHUFFLES in source
    if compiler == "old":  # the text for compilers without shuffles
        source = source.replace(SHUFFLES, "0")
    library = ctypes.CDLL(str(build(source, tmp_path, *STRICT, "-march=native", cc=str(cc))))
    for k, kernel in enumerate(kernels):
        x = before_protected_page(values(kernel.inputs[0].dtype, k)[: kernel.inputs[0].size])
        (found,) = call(library, f"kernel{k}", kernel, [x])
        assert bytes_of(found) == bytes_of(x[1::2]), kernel.inputs[0]


def test_alternate_loads_of_integers_are_two_loads_and_a_shuffle() -> None:
    source = source_of([alternate(DType("uint8"), 16)])
    assert SHUFFLES in source
    assert "__builtin_shufflevector(first, second, 0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31)" in source
    assert SHUFFLES not in source_of([alternate(DType("uint8"), 16, stride=3)])


@pytest.mark.parametrize("dtype", [DType("int4"), DType("uint4"), DType("int2"), DType("uint2")])
def test_undefined_upper_bits_of_small_integers_are_removed(dtype: DType, tmp_path: Path) -> None:
    kernel = alternate(dtype, 8)
    x = values(dtype, 3)[: kernel.inputs[0].size]
    stored = x.view(np.uint8) ^ np.uint8(256 - (1 << dtype.bits))
    library = ctypes.CDLL(str(build(source_of([kernel]), tmp_path, *STRICT)))
    (found,) = call(library, "kernel0", kernel, [stored])
    assert bytes_of(found) == bytes_of(x[1::2])
