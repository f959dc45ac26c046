# SPDX-License-Identifier: Apache-2.0
"""Int8 products with matrix registers (AMX): functions, tiles of positions, and copies of strided positions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import contrib_dense_pack
from aotc.relay.op.opdef import Accuracy, Sample
from aotc.tir import Load, amx_kernels, as_expr, const
from aotc.tir.expr import Buffer
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.int4_unpacking import int4_variant_of_kernel_name
from aotc.tir.int8_dot_products import INT8_DTYPES
from aotc.tir.interpreter import run_kernel
from aotc.tir.stmt import Execute, Kernel, walk_stmts
from aotc.tir.target import TARGETS
from tests.codegen.batch import STRICT
from tests.ops.harness import Job, interpret, kernel_job
from tests.targets.machines import machine, native_targets
from tests.targets.test_int8_dot_products import packed, some_bytes

Array = np.ndarray[Any, Any]
NAME = "x86-64-v4-amx"
_Layer = tuple[Job, Array]
HERE = [name for name in ("x86-64", NAME) if name in native_targets()]


def functions() -> list[tuple[Kernel, list[Array]]]:
    """One call of each, of some sizes."""
    rng, jobs = np.random.default_rng(3), []
    for number, (rows, blocks, width, steps, n1, n2) in enumerate(
        ((1, 1, 4, 1, 1, 1), (16, 2, 64, 2, 3, 1), (33, 3, 28, 1, 7, 1), (49, 4, 64, 1, 3, 3), (30, 1, 12, 3, 1, 2))
    ):
        data, weights = INT8_DTYPES[number % 2], INT8_DTYPES[number // 2 % 2]
        run, pitch = width * steps, width * steps + 5
        x1, w1 = pitch, run * 16
        x2, w2, apart = 3 * pitch, n1 * w1, n1 * n2 * w1
        size = (rows - 1) * pitch + (n1 - 1) * x1 + (n2 - 1) * x2 + run
        x, w = Buffer("x", DType(data), size), Buffer("w", DType(weights), blocks * apart)
        y = Buffer("y", DType("int32"), rows * blocks * 16)
        numbers = (rows, pitch, blocks, apart, width, steps, n1, x1, w1, n2, x2, w2)
        operands = (Load(x, as_expr(0), x.size), Load(w, as_expr(0), w.size), *(const(n, "int32") for n in numbers))
        name = amx_kernels.amx_kernel_name(data, weights)
        sums = execute_to_memory(name, y, 0, *operands)
        kernel = Kernel(name="sums", inputs=(x, w), outputs=(y,), body=sums)
        jobs.append((kernel, [some_bytes(rng, (x.size,), data), some_bytes(rng, (w.size,), weights)]))
        half = Buffer("w", DType("uint8"), w.size // 2)
        operands = (
            operands[0],
            Load(half, as_expr(0), half.size),
            *operands[2:],
            const(number - 8 * (weights == "int8"), "int32"),
        )
        sums = execute_to_memory(int4_variant_of_kernel_name(name), y, 0, *operands)
        kernel = Kernel(name="sums", inputs=(x, half), outputs=(y,), body=sums)
        jobs.append((kernel, [some_bytes(rng, (x.size,), data), some_bytes(rng, (half.size,), "uint8")]))
    return jobs


@pytest.mark.parametrize("target", HERE)
def test_functions_mean_what_their_texts_do(target: str, tmp_path: Path) -> None:
    """That of a processor with such registers, and the portable one."""
    jobs = functions()
    for (kernel, inputs), (actual,) in zip(jobs, machine(target).run_kernels(jobs, tmp_path, *STRICT), strict=True):
        np.testing.assert_array_equal(actual, run_kernel(kernel, inputs)[0])


def convolved(
    data: tuple[int, ...], outputs: int, taps: int, stride: int, padding: int, dtype: str = "uint8"
) -> _Layer:
    """A convolution with its channels last."""
    rng = np.random.default_rng([outputs, *data])
    letter = "i" if data[-1] > 1 else "w"
    layout = f"OHWI16o4{letter}"
    how = {"strides": (stride,), "padding": (padding,), "channels": outputs, "kernel_size": (taps, taps)}
    how |= {"data_layout": "NHWC", "out_layout": "NHWC", "kernel_layout": layout, "pad_value": 5}
    attributes = conv2d.attrs(out_dtype="int32", **how)
    weight = packed(some_bytes(rng, (outputs, data[-1], taps, taps), "int8"), "OIHW", layout)
    sample = Sample(args=(some_bytes(rng, data, dtype), weight), attrs=attributes, accuracy=Accuracy.EXACT)
    return kernel_job(conv2d, sample, TARGETS[NAME]), conv2d.reference(attributes, *sample.args)


def product(rows: int, inputs: int, units: int) -> _Layer:
    """Rows by weights."""
    rng = np.random.default_rng([rows, inputs, units])
    weight = packed(some_bytes(rng, (units, inputs), "int8"), "NC", "NC16n4c")
    attributes = contrib_dense_pack.attrs(units=units, weight_layout="NC16n4c", out_dtype="int32")
    args = some_bytes(rng, (rows, inputs), "uint8"), weight
    sample = Sample(args=args, attrs=attributes, accuracy=Accuracy.EXACT)
    expected = contrib_dense_pack.reference(attributes, *args)
    return kernel_job(contrib_dense_pack, sample, TARGETS[NAME]), expected


def by_matrices(job: Job) -> bool:
    stmts = (s for s in walk_stmts(job.kernel.body) if isinstance(s, Execute))
    return any(s.instruction.startswith("matrices_") for s in stmts)


def layers() -> dict[str, _Layer]:
    """What is summed up by matrices."""
    return {
        "columns": convolved((1, 9, 9, 64), 40, 3, 2, 1),
        "compact": convolved((2, 9, 9, 64), 32, 1, 2, 0),
        "rows": convolved((1, 7, 7, 32), 16, 3, 1, 1, "int8"),
        "three channels": convolved((1, 20, 22, 3), 24, 7, 2, 3),
        "wide": convolved((1, 2, 70, 16), 80, 3, 1, 1),
        "pointwise": convolved((1, 9, 11, 64), 72, 1, 1, 0),
        "dense": product(67, 64, 48),
    }


def test_layers_are_matrices() -> None:
    found = layers()
    assert [name for name, (job, _) in found.items() if not by_matrices(job)] == []
    for name in ("columns", "compact"):
        assert any(b.name == "columns" for b in found[name][0].kernel.workspace)
    for (name, (_, expected)), (actual, *_) in zip(
        found.items(), interpret([j for j, _ in found.values()]), strict=True
    ):
        np.testing.assert_array_equal(actual, expected, err_msg=name)


@pytest.mark.parametrize(
    ("make", "sizes"), [(product, (7, 64, 48)), (product, (67, 16, 48)), (convolved, ((1, 3, 5, 64), 32, 1, 1, 0))]
)
def test_vectors_take_what_is_small(make: Callable[..., _Layer], sizes: tuple[Any, ...]) -> None:
    """Few positions, and short reductions."""
    job, _ = make(*sizes)
    assert not by_matrices(job)


@pytest.mark.skipif(NAME not in HERE, reason="the processor has no registers of matrices")
def test_layers_on_the_processor(tmp_path: Path) -> None:
    found = layers()
    jobs = [(job.kernel, job.inputs) for job, _ in found.values()]
    for (name, (_, expected)), (actual, *_) in zip(
        found.items(), machine(NAME).run_kernels(jobs, tmp_path), strict=True
    ):
        np.testing.assert_array_equal(actual, np.ravel(expected), err_msg=name)


REFUSED = """
import ctypes
import numpy as np
from aotc.driver.kernel_libraries import compile_kernel_library
from aotc.ir import AotcError
from tests.targets.test_amx_tiles import NAME, TARGETS, product

def handle_signals(size, flags=0):
    stack = (ctypes.c_uint64 * 3)(ctypes.addressof(room), flags, size)
    assert ctypes.CDLL(None).sigaltstack(stack, None) == 0

room, (job, expected) = ctypes.create_string_buffer(8192), product(67, 64, 48)
handle_signals(8192)
try:
    compile_kernel_library({"product": job.kernel}, TARGETS[NAME])
except AotcError as error:
    print(error.code, str(error).count("amx_"))
handle_signals(0, 2)
library, actual = compile_kernel_library({"product": job.kernel}, TARGETS[NAME]), np.empty(expected.size, np.int32)
library.run_kernel("product", [np.ravel(x) for x in job.inputs], [actual])
print(np.array_equal(actual, np.ravel(expected)))
"""


@pytest.mark.skipif(NAME not in HERE, reason="the processor has no registers of matrices")
def test_kernels_by_themselves_ask_for_registers() -> None:
    """Linux refuses them to processes whose stacks for signals are too small for their state."""
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["cpu", "1", "True"]), done.stderr
