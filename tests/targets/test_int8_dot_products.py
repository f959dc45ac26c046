# SPDX-License-Identifier: Apache-2.0
"""Int8 dot products: every instruction, and every tiling that uses one, gives numpy's sums modulo 2^32.

Shapes, strides, borders, groups and types are drawn from a seed; values are of the whole range, its ends above all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.driver import toolchain
from aotc.driver.toolchain import gnu_cross_compiler_name
from aotc.ir.architecture_names import normalized_architecture_name
from aotc.ir.dtype import DType
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import batch_matmul, contrib_dense_pack
from aotc.relay.op.layout import layout_transform
from aotc.relay.op.opdef import Accuracy, OpDef, Sample
from aotc.tir import Broadcast, Call, Load, Store, arm_sdot_smmla, as_expr, call, int4_unpacking
from aotc.tir.expr import Buffer
from aotc.tir.instruction_definition import parse_vector_type
from aotc.tir.int8_dot_products import INT8_DTYPES, INT32_VECTOR_LENGTHS, SMALL_WEIGHTS, dot_instruction_name
from aotc.tir.interpreter import run_kernel
from aotc.tir.stmt import Kernel, all_exprs_in_stmt
from aotc.tir.target import TARGETS
from tests.codegen.batch import STRICT, build, gnu_c_for, source_of
from tests.codegen.batch import call as call_kernel
from tests.conftest import require_tool
from tests.e2e.projects import run
from tests.ops.harness import Job, interpret, kernel_job
from tests.share import share
from tests.targets.machines import ELSEWHERE, machine, native_targets, targets_that_cannot_run

Array = np.ndarray[Any, Any]
#: Without wasm32-threads, whose kernels are those of wasm32.
VECTORS = [
    name
    for name, t in TARGETS.items()
    if t.micro_kernels and t.vector_bytes and not t.versions and name != "wasm32-threads"
]
HERE = [name for name in native_targets() if name in VECTORS]
THERE = [name for name in ELSEWHERE if name in VECTORS]


def some_bytes(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    """Numbers of the whole range, of which half are its ends."""
    limits = np.iinfo(dtype)
    ends = np.where(rng.random(tuple(shape)) < 0.5, limits.min, limits.max)
    return np.where(rng.random(tuple(shape)) < 0.5, ends, rng.integers(limits.min, limits.max + 1, shape)).astype(dtype)


def packed(weight: Array, source: str, target: str) -> Array:
    attributes = layout_transform.attrs(src_layout=source, dst_layout=target)
    return np.ascontiguousarray(layout_transform.reference(attributes, weight))


def convolution(rng: np.random.Generator) -> tuple[OpDef, Sample]:
    """A 2-D convolution by weights in groups."""
    types = [str(rng.choice(INT8_DTYPES)) for _ in range(2)]
    groups = int(rng.choice([1, 1, 1, 2]))
    inputs, block = (
        int(rng.choice([1, 2, 3, 4, 5, 8, 12, 16, 17])) * (1 if groups == 1 else 4),
        int(rng.choice([4, 16])),
    )
    outputs = int(rng.choice([1, 3, 8, 16, 21, 24, 40, 48])) if groups == 1 else 32
    taps = [int(k) for k in rng.choice([1, 2, 3, 5], 2)]
    size = [int(n) for n in rng.integers(9, 20, 2)]
    letter = "i" if inputs > 1 or taps[1] == 1 else "w"
    layout = f"OHWI{block}o4{letter}"
    channels_last = bool(rng.random() < 0.6)
    limits = np.iinfo(types[0])
    attributes = conv2d.attrs(
        strides=tuple(int(s) for s in rng.choice([1, 1, 2, 3], 2)),
        padding=tuple(int(p) for p in rng.integers(0, 3, 4)),
        dilation=tuple(int(d) for d in rng.choice([1, 1, 2], 2)),
        groups=groups,
        channels=outputs,
        kernel_size=tuple(taps),
        data_layout="NHWC" if channels_last else "NCHW",
        kernel_layout=layout,
        out_layout="NHWC",
        out_dtype="int32",
        pad_value=int(rng.choice([0, 0, limits.min, limits.max, 3])),
    )
    shape = (int(rng.choice([1, 2])), *size, inputs) if channels_last else (1, inputs, *size)
    weight = some_bytes(rng, (outputs, inputs // groups, *taps), types[1])
    args = some_bytes(rng, shape, types[0]), packed(weight, "OIHW", layout)
    return conv2d, Sample(args=args, attrs=attributes, accuracy=Accuracy.EXACT)


def plain(rng: np.random.Generator) -> tuple[OpDef, Sample]:
    """A 2-D convolution by weights as they come, often depthwise."""
    types = [str(rng.choice(INT8_DTYPES)) for _ in range(2)]
    inputs, taps = int(rng.choice([1, 4, 6, 17, 32])), int(rng.choice([1, 3]))
    groups = int(rng.choice([1, inputs]))
    outputs = groups * int(rng.choice([1, 2]))
    channels_last = bool(rng.random() < 0.6)
    attributes = conv2d.attrs(
        strides=(int(rng.choice([1, 2])),),
        padding=(taps // 2,),
        groups=groups,
        data_layout="NHWC" if channels_last else "NCHW",
        kernel_layout="HWOI" if channels_last else "OIHW",
        out_dtype="int32",
        pad_value=int(rng.choice([0, 5])),
    )
    size, inside = tuple(map(int, rng.integers(5, 12, 2))), inputs // groups
    shape = (1, *size, inputs) if channels_last else (1, inputs, *size)
    kernel = (taps, taps, outputs, inside) if channels_last else (outputs, inside, taps, taps)
    args = some_bytes(rng, shape, types[0]), some_bytes(rng, kernel, types[1])
    return conv2d, Sample(args=args, attrs=attributes, accuracy=Accuracy.EXACT)


def matrices(rng: np.random.Generator) -> tuple[OpDef, Sample]:
    """Rows by packed weights."""
    types = [str(rng.choice(INT8_DTYPES)) for _ in range(2)]
    rows, inputs, units = (int(rng.choice(n)) for n in ([1, 2, 7, 30], [1, 3, 4, 16, 31, 64], [1, 4, 15, 16, 33, 64]))
    args = (
        some_bytes(rng, (rows, inputs), types[0]),
        packed(some_bytes(rng, (units, inputs), types[1]), "NC", "NC16n4c"),
    )
    attributes = contrib_dense_pack.attrs(units=units, weight_layout="NC16n4c", out_dtype="int32")
    return contrib_dense_pack, Sample(args=args, attrs=attributes, accuracy=Accuracy.EXACT)


def batches(rng: np.random.Generator) -> tuple[OpDef, Sample]:
    """Products of matrices that are both data."""
    types = [str(rng.choice(INT8_DTYPES)) for _ in range(2)]
    batch, rows, inputs, columns = (int(rng.choice(n)) for n in ([1, 3], [1, 5, 17], [1, 4, 9, 32], [1, 5, 16, 40]))
    transposed = bool(rng.random() < 0.5)
    second = (batch, columns, inputs) if transposed else (batch, inputs, columns)
    args = some_bytes(rng, (batch, rows, inputs), types[0]), some_bytes(rng, second, types[1])
    attributes = batch_matmul.attrs(transpose_b=transposed, out_dtype="int32")
    return batch_matmul, Sample(args=args, attrs=attributes, accuracy=Accuracy.EXACT)


KINDS = (convolution, convolution, plain, matrices, batches)


def check(target: str, seed: int, folder: Path | None, *flags: str, count: int = 10) -> None:
    """Some products on a machine, or in the interpreter where there is no folder to compile in."""
    jobs: list[Job] = []
    wanted: list[Array] = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        op, sample = KINDS[number % len(KINDS)](rng)
        jobs.append(kernel_job(op, sample, TARGETS[target]))
        wanted.append(np.asarray(op.reference(sample.attrs, *sample.args)))
    if folder is None:
        found = interpret(jobs)
    else:
        found = machine(target).run_kernels([(job.kernel, job.inputs) for job in jobs], folder, *flags)
    for number, ((actual, *_), expected) in enumerate(zip(found, wanted, strict=True)):
        same = np.array_equal(actual.reshape(-1), expected.reshape(-1))
        assert same, f"seed {seed}, product {number}, {jobs[number].kernel.name}"


SEEDS = range(24)


@pytest.mark.parametrize(("target", "seed"), share(product(HERE, SEEDS), len(HERE)))
def test_products_here(target: str, seed: int, tmp_path: Path) -> None:
    check(target, seed, tmp_path, ("-O0", "-O1", "-O2", "-O3")[seed % 4])


@pytest.mark.parametrize(("target", "seed"), share(product(THERE, SEEDS), len(THERE)))
def test_products_there(target: str, seed: int, tmp_path: Path) -> None:
    check(target, seed, tmp_path, ("-O1", "-O2")[seed % 2])


@pytest.mark.parametrize(("target", "seed"), share(product(VECTORS, SEEDS), 4))
def test_products_in_the_interpreter(target: str, seed: int) -> None:
    check(target, seed, None, count=5)


def instruction(data: str, weights: str, lanes: int) -> Kernel:
    """One sum, of four bytes of data with all weights."""
    dtype = DType("uint8" if weights == SMALL_WEIGHTS else weights)
    x, w, a = Buffer("x", DType(data), 4), Buffer("w", dtype, 4 * lanes), Buffer("a", DType("int32"), lanes)
    y = Buffer("y", DType("int32"), lanes)
    word = Broadcast(call(f"word_{data}", Load(x, as_expr(0), 4)), lanes)
    made = call(
        dot_instruction_name(data, weights, lanes), Load(a, as_expr(0), lanes), word, Load(w, as_expr(0), 4 * lanes)
    )
    return Kernel(name="sum", inputs=(x, w, a), outputs=(y,), body=Store(y, as_expr(0), made))


def instructions(target: str) -> list[tuple[Kernel, list[Array]]]:
    """Each instruction that fits the vectors of a target, on some numbers."""
    rng, jobs = np.random.default_rng(5), []
    kinds = [*product(INT8_DTYPES, INT8_DTYPES), ("int8", SMALL_WEIGHTS)]
    for (data, weights), lanes in product(kinds, INT32_VECTOR_LENGTHS):
        if lanes > TARGETS[target].lanes("int32"):
            continue
        for _ in range(4):
            acc = rng.choice([-(2**31), 2**31 - 1, 0, 77], lanes).astype(np.int32)
            small = weights == SMALL_WEIGHTS
            numbers = some_bytes(rng, (4 * lanes,), "uint8" if small else weights) >> small
            operands = [some_bytes(rng, (4,), data), numbers, acc]
            jobs.append((instruction(data, weights, lanes), operands))
    return jobs


def check_instructions(jobs: list[tuple[Kernel, list[Array]]], found: list[list[Array]]) -> None:
    for (kernel, (x, w, acc)), (actual,) in zip(jobs, found, strict=True):
        sums = acc + w.reshape(-1, 4).astype(np.int32) @ x.astype(np.int32)
        np.testing.assert_array_equal(actual, sums)
        np.testing.assert_array_equal(run_kernel(kernel, [x, w, acc])[0], sums)


@pytest.mark.parametrize("target", [*HERE, *THERE])
def test_each_instruction(target: str, tmp_path: Path) -> None:
    jobs = instructions(target)
    check_instructions(jobs, machine(target).run_kernels(jobs, tmp_path, *STRICT))


def compiled_and_interpreted(target: str, folder: Path) -> None:
    """What can be said of instructions that nothing here runs."""
    here, jobs = TARGETS[target], instructions(target)
    source = folder / "batch.c"
    source.write_text(source_of((kernel for kernel, _ in jobs), gnu_c_for(here)), encoding="utf-8")
    if here.machine == "wasm32":
        cc = machine("wasm32").compiler
    else:
        native = here.machine == normalized_architecture_name()
        cc = [require_tool("gcc" if native else gnu_cross_compiler_name(here.machine))]
    run([*cc, "-std=c99", "-O2", *here.cflags, *STRICT, "-c", source, "-o", folder / "batch.o"], folder)
    check_instructions(jobs, [[run_kernel(*job)[0]] for job in jobs])


@pytest.mark.parametrize("target", [t for t in VECTORS if t not in (*HERE, *THERE)] or HERE[-1:])
def test_instructions_that_are_not_run(target: str, tmp_path: Path) -> None:
    compiled_and_interpreted(target, tmp_path)


def test_the_report_names_targets_that_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(targets_that_cannot_run()) == {t for t in VECTORS if t not in (*HERE, *THERE)}
    monkeypatch.setattr(toolchain, "usable_cpu_feature_flags", lambda: frozenset({"avx2", "fma", "bmi2"}))
    lacking = targets_that_cannot_run()
    assert {
        "x86-64-v3-vnni",
        "x86-64-v4",
        "x86-64-v4-vnni",
    } <= lacking.keys() or normalized_architecture_name() != "x86_64"
    assert all("the processor lacks" in why or "node lacks" in why for why in lacking.values())


def wide_instructions() -> list[tuple[Kernel, list[Array]]]:
    """Those that take several groups, and integers of 4 bits, on some numbers."""
    rng, jobs = np.random.default_rng(6), []
    for row in (*arm_sdot_smmla.instruction_definitions(), *int4_unpacking.instruction_definitions()):
        types = [parse_vector_type(text, 1) for text in row.takes]
        dtype, lanes = row.result_dtype_and_lanes(*types[0])
        buffers = [Buffer(f"p{k}", *one) for k, one in enumerate(types)]
        y = Buffer("y", dtype, lanes)
        made = call(row.name, *(Load(b, as_expr(0), b.size) for b in buffers))
        kernel = Kernel(name="wide", inputs=tuple(buffers), outputs=(y,), body=Store(y, as_expr(0), made))
        for _ in range(4):
            bits = [some_bytes(rng, (n * d.itemsize,), "uint8").view(d.numpy) for d, n in types]
            jobs.append(
                (kernel, [np.nan_to_num(x) if d.is_float else x for x, (d, _) in zip(bits, types, strict=True)])
            )
    return jobs


@pytest.mark.parametrize("target", [*THERE, *HERE[-1:]])
def test_each_wide_instruction(target: str, tmp_path: Path) -> None:
    """On processors that have them or not; compilers have texts of their own for those that have not."""
    jobs = wide_instructions()
    # vectors of several registers are passed to functions that are always inlined
    for (kernel, inputs), (actual,) in zip(
        jobs, machine(target).run_kernels(jobs, tmp_path, *STRICT, "-Wno-psabi"), strict=True
    ):
        np.testing.assert_array_equal(actual, run_kernel(kernel, inputs)[0])


@pytest.mark.parametrize(
    ("target", "name"), [("aarch64-dotprod", "dot4_int8_int8_lane3"), ("aarch64-i8mm", "mmla_int8_int8")]
)
def test_products_take_several_groups(target: str, name: str) -> None:
    """Where the channels of the data fill vectors, and for borders with other numbers than 0."""
    weight = some_bytes(np.random.default_rng(0), (16, 32, 3, 3), "int8")
    how = {"padding": (1,), "channels": 16, "kernel_size": (3, 3), "data_layout": "NHWC", "out_layout": "NHWC"}
    attributes = conv2d.attrs(kernel_layout="OHWI16o4i", out_dtype="int32", pad_value=3, **how)
    data = some_bytes(np.random.default_rng(1), (1, 5, 7, 32), "int8")
    args = data, packed(weight, "OIHW", "OHWI16o4i")
    job = kernel_job(conv2d, Sample(args=args, attrs=attributes, accuracy=Accuracy.EXACT), TARGETS[target])
    assert name in {node.name for node in all_exprs_in_stmt(job.kernel.body) if isinstance(node, Call)}
    np.testing.assert_array_equal(interpret([job])[0][0].reshape(-1), conv2d.reference(attributes, *args).reshape(-1))


@pytest.mark.parametrize("level", ["-O0", "-O3"])
@pytest.mark.parametrize("target", HERE)
def test_each_instruction_by_clang(target: str, level: str, tmp_path: Path) -> None:
    cc, jobs = require_tool("clang"), instructions(target)
    flags = (level, *TARGETS[target].cflags)
    source = source_of((k for k, _ in jobs), gnu_c_for(TARGETS[target]))
    library = ctypes.CDLL(str(build(source, tmp_path, *flags, cc=cc)))
    found = [call_kernel(library, f"kernel{k}", *job) for k, job in enumerate(jobs)]
    check_instructions(jobs, found)
