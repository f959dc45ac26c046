# SPDX-License-Identifier: Apache-2.0
"""Square blocks transposed in vector registers: in C and C++, by gcc, clang, and a compiler without shuffles."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.tir.expr import Buffer
from aotc.tir.instruction_statements import transpose_square
from aotc.tir.stmt import Kernel
from tests.codegen.batch import STRICT, build, call, source_of
from tests.conftest import require_tool

SQUARES = [("float32", 4), ("float32", 8), ("float32", 16), ("float64", 2), ("float64", 8), ("int32", 16), ("int8", 16)]


def square(dtype: str, lanes: int) -> Kernel:
    """A square out of the middle of a wider matrix, to the middle of another."""
    x, y = (Buffer(name, DType(dtype), lanes * (lanes + 3)) for name in "xy")
    body = transpose_square(lanes, y, 2, lanes + 3, x, 1, lanes + 3)
    return Kernel(name="turn", inputs=(x,), outputs=(y,), body=body)


@pytest.mark.parametrize("compiler", ["gcc", "clang", "g++", "old"])
def test_squares_are_turned(compiler: str, tmp_path: Path) -> None:
    cc = require_tool("gcc" if compiler in ("old", "g++") else compiler)
    kernels = [square(*s) for s in SQUARES]
    source = source_of(kernels)
    if compiler == "old":  # what a compiler without shuffles gets
        source = source.replace("defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)", "0")
        assert "#if 0\n" in source
    flags = [*STRICT, "-march=native", *(("-x", "c++", "-std=c++17") if compiler == "g++" else ())]
    library = ctypes.CDLL(str(build(source, tmp_path, *flags, cc=str(cc))))
    for k, (kernel, (dtype, lanes)) in enumerate(zip(kernels, SQUARES, strict=True)):
        x = np.random.default_rng(k).integers(-100, 100, (lanes, lanes + 3)).astype(dtype)
        (y,) = call(library, f"kernel{k}", kernel, [x])
        turned = y[2 : 2 + lanes * (lanes + 3)]
        rows = [turned[i * (lanes + 3) : i * (lanes + 3) + lanes] for i in range(lanes)]
        np.testing.assert_array_equal(rows, x[:, 1 : 1 + lanes].T)
