# SPDX-License-Identifier: Apache-2.0
"""Int8 products with tile registers (AMX): functions, tiles of positions, and copies of strided positions."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import contrib_dense_pack
from aotc.relay.op.opdef import Accuracy, Sample
from aotc.tir import Load, amx_kernels, as_expr, const, te
from aotc.tir.expr import Buffer, Const, Expr, call
from aotc.tir.instruction_definition import Execution, Instruction
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.int4_unpacking import int4_variant_of_kernel_name
from aotc.tir.int8_dot_products import INT8_DTYPES
from aotc.tir.interpreter import run_kernel
from aotc.tir.micro_kernels import X86_AMX, MicroKernel
from aotc.tir.schedule.contraction import cpu_tiling_candidates
from aotc.tir.schedule.contraction.tiling_choice import TilingSite, use_tiling_chooser
from aotc.tir.stmt import Execute, Kernel, Stmt, Store, walk_stmts
from aotc.tir.target import TARGETS, Target
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
    data: tuple[int, ...],
    outputs: int,
    taps: int,
    stride: int,
    padding: int,
    dtype: str = "uint8",
    target: Target = TARGETS["x86-64-v4-amx"],
    letters: str = "16o4",
) -> _Layer:
    """A convolution with its channels last."""
    rng = np.random.default_rng([outputs, *data])
    letter = "i" if data[-1] > 1 else "w"
    layout = f"OHWI{letters}{letter}"
    how = {"strides": (stride,), "padding": (padding,), "channels": outputs, "kernel_size": (taps, taps)}
    how |= {"data_layout": "NHWC", "out_layout": "NHWC", "kernel_layout": layout, "pad_value": 5}
    attributes = conv2d.attrs(out_dtype="int32", **how)
    weight = packed(some_bytes(rng, (outputs, data[-1], taps, taps), "int8"), "OIHW", layout)
    sample = Sample(args=(some_bytes(rng, data, dtype), weight), attrs=attributes, accuracy=Accuracy.EXACT)
    return kernel_job(conv2d, sample, target), conv2d.reference(attributes, *sample.args)


def product(rows: int, inputs: int, units: int) -> _Layer:
    """Rows by weights."""
    rng = np.random.default_rng([rows, inputs, units])
    weight = packed(some_bytes(rng, (units, inputs), "int8"), "NC", "NC16n4c")
    attributes = contrib_dense_pack.attrs(units=units, weight_layout="NC16n4c", out_dtype="int32")
    args = some_bytes(rng, (rows, inputs), "uint8"), weight
    sample = Sample(args=args, attrs=attributes, accuracy=Accuracy.EXACT)
    expected = contrib_dense_pack.reference(attributes, *args)
    return kernel_job(contrib_dense_pack, sample, TARGETS[NAME]), expected


def is_by_brgemm(job: Job) -> bool:
    stmts = (s for s in walk_stmts(job.kernel.body) if isinstance(s, Execute))
    return any(s.instruction.startswith("brgemm_") for s in stmts)


def layers() -> dict[str, _Layer]:
    """Layers that the micro-kernel computes."""
    return {
        "columns": convolved((1, 9, 9, 64), 40, 3, 2, 1),
        "compact": convolved((2, 9, 9, 64), 32, 1, 2, 0),
        "rows": convolved((1, 7, 7, 32), 16, 3, 1, 1, "int8"),
        "three channels": convolved((1, 20, 22, 3), 24, 7, 2, 3),
        "wide": convolved((1, 2, 70, 16), 80, 3, 1, 1),
        "pointwise": convolved((1, 9, 11, 64), 72, 1, 1, 0),
        "dense": product(67, 64, 48),
    }


def test_layers_call_the_micro_kernel() -> None:
    found = layers()
    assert [name for name, (job, _) in found.items() if not is_by_brgemm(job)] == []
    for name in ("columns", "compact"):
        assert any(b.name == "columns" for b in found[name][0].kernel.workspace)
    for (name, (_, expected)), (actual, *_) in zip(
        found.items(), interpret([j for j, _ in found.values()]), strict=True
    ):
        np.testing.assert_array_equal(actual, expected, err_msg=name)


@pytest.mark.parametrize("seed", range(4))
def test_sizes_of_calls_are_those_of_the_row(seed: int) -> None:
    """A row of another instruction, block, group and sizes of calls, on layers of sizes that they do not divide."""
    draw = random.Random(seed)
    block, group = draw.choice(((8, 4), (4, 2), (16, 8), (32, 4)))
    row = replace(
        X86_AMX,
        name="odd_gemm",
        multiply="odd_gemm",
        requires=(),
        group=group,
        block=block,
        positions=draw.choice((2, 4, 6)),
        outputs=block,
        depth=4 * group,
        max_positions=draw.choice((6, 9)),
        max_outputs=block * draw.choice((1, 2)),
        min_positions=2,
        min_run_bytes=1,
        min_reduction_bytes=1,
        finish=("requantize_once",),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(INSTRUCTIONS, row.multiply, strided_gemm(row))
        target = replace(TARGETS["x86-64-v3"], name="odd", micro_kernels=(row,))
        for data, taps, stride in (
            ((1, 5, 7, 2 * group), 3, 1),
            ((2, 4, 21, group), 1, 2),
            ((1, 3, 13, 3 * group), 2, 1),
        ):
            outputs = draw.choice((block, block + 3, 3 * block + 1))
            for kind in ("", " columns"):
                with use_tiling_chooser(lambda site, kind=kind: name_or_none(site, f"odd_gemm{kind}")):
                    job, expected = convolved(
                        data, outputs, taps, stride, taps // 2, "int8", target=target, letters=f"{block}o{group}"
                    )
                calls = [s for s in walk_stmts(job.kernel.body) if isinstance(s, Execute)]
                assert {s.instruction for s in calls} <= {"odd_gemm"} and (calls or kind)
                for call in calls:
                    sizes = [int(n.value) for n in call.operands[2:] if isinstance(n, Const)]
                    assert sizes[0] <= row.max_positions and sizes[2] * block <= row.max_outputs
                ((actual, *_),) = interpret([job])
                np.testing.assert_array_equal(actual, expected)


def strided_gemm(row: MicroKernel) -> Instruction:
    """An instruction as that of AMX, with the block and the group of a row, and its numpy meaning alone."""

    def extents(_data: int, _weights: int, *sizes: int) -> tuple[int, ...]:
        rows, pitch, blocks, apart, width, steps, n1, x1, w1, n2, x2, w2 = sizes
        data = (rows - 1) * pitch + width * steps + (n1 - 1) * x1 + (n2 - 1) * x2
        weights = (blocks - 1) * apart + width * steps * row.block + (n1 - 1) * w1 + (n2 - 1) * w2
        return rows * blocks * row.block, data, weights

    def meaning(x: Array, w: Array, *sizes: Any) -> Array:
        rows, pitch, blocks, apart, width, steps, n1, x1, w1, n2, x2, w2 = map(int, sizes)
        sums = np.zeros((rows, blocks, row.block), np.int32)
        for r, k, o, a, b, s in np.ndindex(rows, blocks, row.block, n1, n2, width * steps):
            place = k * apart + a * w1 + b * w2 + s // row.group * row.group * row.block + o * row.group + s % row.group
            sums[r, k, o] += np.int32(x[r * pitch + a * x1 + b * x2 + s]) * np.int32(w[place])
        return sums.reshape(-1)

    takes = ("int8[]", "int8[]", *["int32"] * 12)
    return Instruction(
        name=row.multiply, takes=takes, meaning=meaning, execution=Execution(result="int32[]", extents=extents)
    )


def name_or_none(site: TilingSite, name: str) -> str | None:
    return name if any(candidate.name == name for candidate in site.candidates) else None


def test_sums_are_finished_by_an_instruction_that_the_row_names() -> None:
    """Selected by its meaning, as for every memory micro-kernel."""
    row = replace(X86_AMX, finish=("requantize_twice",))
    usual = TARGETS[NAME]
    named = replace(usual, name="odd", micro_kernels=(*usual.micro_kernels[:-1], row))
    bodies, results = list[set[str]](), list[Array]()
    rng = np.random.default_rng(5)
    inputs = [some_bytes(rng, (34, 64), "int8"), some_bytes(rng, (48 * 64,), "int8")]
    for target in (usual, named):
        x, w = te.placeholder((34, 64), "int8", "x"), te.placeholder((3, 16, 16, 4), "int8", "w")
        sums = te.contraction(
            (34, 48),
            (64,),
            x,
            lambda i, o, k: (i, k),
            w,
            lambda i, o, k: (o // 16, k // 4, o % 16, k % 4),
            dtype="int32",
            lane=1,
            block=16,
            group=4,
        )
        y = Buffer("y", DType("int8"), sums.size)
        a, b = (Buffer(tensor.name, tensor.dtype, tensor.size) for tensor in (x, w))

        def store(at: Sequence[Expr], value: Expr, y: Buffer = y, shape: Any = sums.shape) -> Stmt:
            scaled = call("scale_twice", value + 77, const(1 << 30, "int32"), const(9, "int32"))
            return Store(y, te.flat_index(shape, at), call("saturate_int8", scaled + const(-3, "int32")))

        found = {c.name: c for c in cpu_tiling_candidates(sums, a, b, store, target)}
        nest = found["x86_amx"].build_loop_nests()
        kernel = Kernel(
            name="k", inputs=(a, b), outputs=(y,), body=nest.stmt, stack=nest.stack, workspace=nest.workspace
        )
        bodies.append({s.instruction for s in walk_stmts(nest.stmt) if isinstance(s, Execute)})
        (result,) = run_kernel(kernel, [v.ravel() for v in inputs])
        results.append(result)
    np.testing.assert_array_equal(results[1], results[0])
    assert bodies == [{"brgemm_int8_int8"}, {"brgemm_int8_int8", "requantize_twice"}]


def test_layers_in_portable_c(tmp_path: Path) -> None:
    """The same kernels, with the text of their instructions that every processor has."""
    found = layers()
    jobs = [(job.kernel, job.inputs) for job, _ in found.values()]
    results = machine("c").run_kernels(jobs, tmp_path, "-Wno-psabi")
    for (name, (_, expected)), (actual, *_) in zip(found.items(), results, strict=True):
        np.testing.assert_array_equal(actual, np.ravel(expected), err_msg=name)


@pytest.mark.parametrize(
    ("make", "sizes"), [(product, (7, 64, 48)), (product, (67, 16, 48)), (convolved, ((1, 3, 5, 64), 32, 1, 1, 0))]
)
def test_vectors_take_what_is_small(make: Callable[..., _Layer], sizes: tuple[Any, ...]) -> None:
    """Few positions, and short reductions."""
    job, _ = make(*sizes)
    assert not is_by_brgemm(job)


@pytest.mark.skipif(NAME not in HERE, reason="the processor has no tile registers")
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


@pytest.mark.skipif(NAME not in HERE, reason="the processor has no tile registers")
def test_kernels_by_themselves_ask_for_registers() -> None:
    """Linux refuses them to processes whose stacks for signals are too small for their state."""
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["cpu", "1", "True"]), done.stderr
