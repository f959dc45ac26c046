# SPDX-License-Identifier: Apache-2.0
"""Bfloat16 dot products: the processor, the portable C and numpy give equal bits, and tilings of
matrix products and convolutions by them give the sums of the definition.

Shapes, layouts and numbers are drawn from a seed; numbers are of the whole range, subnormal ones,
infinities and NaN among them.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import batch_matmul, contrib_dense_pack, dense
from aotc.relay.op.opdef import Accuracy, OpDef, Sample
from aotc.tir import Call, Load, Store, as_expr, call
from aotc.tir.bare_metal_portable_and_small_targets import target_with_fixed_summation_order
from aotc.tir.bfloat16_dot_products import BFDOT_INSTRUCTION, FLOAT32_VECTOR_LENGTHS
from aotc.tir.expr import Buffer
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.interpreter import run_kernel
from aotc.tir.stmt import Kernel, all_exprs_in_stmt
from aotc.tir.target import TARGETS
from tests.codegen.batch import STRICT, build, gnu_c_for, source_of
from tests.codegen.batch import call as call_kernel
from tests.conftest import require_tool
from tests.ops.harness import Job, interpret, kernel_job
from tests.share import share
from tests.targets.machines import machine, native_targets
from tests.targets.test_int8_dot_products import packed

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
TARGET = "x86-64-v4-bf16"
ARM_TARGET = "aarch64-bf16"
INSTRUCTION = "dot2_bfloat16"
ALL_INSTRUCTIONS = (*(f"{INSTRUCTION}_x{lanes}" for lanes in FLOAT32_VECTOR_LENGTHS), BFDOT_INSTRUCTION)
SMALLEST_NORMAL = Fraction(2) ** -126


def require_processor(target: str) -> None:
    if target not in native_targets():
        pytest.skip(f"this processor does not run {target}")


# --- the instruction


def numbers_of_all_kinds(rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
    """Bits of sums and of both factors: ordinary numbers, any bits, products around the smallest
    normal number, and special values.
    """
    sums, factors = [], []
    for scale in (1.0, None, 2.0):
        if scale is None:
            sums.append(rng.integers(0, 1 << 32, count, np.uint32))
            factors.append(rng.integers(0, 1 << 16, (2, 2 * count), np.uint16))
            continue
        exponents = (rng.integers(-140, -105, count), rng.integers(-72, -52, (2, 2 * count)))
        parts = [
            (rng.standard_normal(e.shape) * (2.0**e if scale == 2.0 else 1)).astype(np.float32).view(np.uint32)
            for e in exponents
        ]
        sums.append(parts[0])
        factors.append((parts[1] >> 16).astype(np.uint16))
    special = np.array([0, 1, 0x7F, 0x80, 0x81, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0x7FC0], np.uint16)
    special = np.concatenate([special, special | 0x8000])
    sums.append(rng.choice(special, count).astype(np.uint32) << 16)
    factors.append(rng.choice(special, (2, 2 * count)))
    # the exact sum 2^-126 - k * 2^-152, close to the smallest normal number
    border = np.zeros((2, 2 * count), np.float32)
    border[0, 1::2], border[1, 1::2] = -rng.integers(0, 256, count) * 2.0**-80, 2.0**-72
    sums.append(np.full(count, 0x00800000, np.uint32))
    factors.append((border.view(np.uint32) >> 16).astype(np.uint16))
    joined = np.concatenate(factors, axis=1)
    return np.concatenate(sums), joined[0], joined[1]


def exact_fused_multiply_add(acc: float, a: float, b: float) -> float:
    """acc + a * b by rational arithmetic, as Intel's manual defines it for VDPBF16PS."""

    def without_subnormal(x: float) -> float:
        return np.copysign(0.0, x) if abs(x) < SMALLEST_NORMAL else x

    acc, a, b = map(without_subnormal, (acc, a, b))
    if not np.isfinite([acc, a, b]).all() or (acc + a * b == 0 and not (Fraction(acc) + Fraction(a) * Fraction(b))):
        with np.errstate(all="ignore"):
            return float(np.float64(acc) + np.float64(a) * np.float64(b))
    exact = Fraction(acc) + Fraction(a) * Fraction(b)
    size, sign = abs(exact), -1.0 if exact < 0 else 1.0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    step = Fraction(2) ** (exponent - 23)
    rounded = round(size / step) * step  # Python rounds ties to even
    if rounded < SMALLEST_NORMAL:
        return sign * 0.0
    return sign * (float("inf") if rounded >= Fraction(2) ** 128 else float(rounded))


def exact_round_to_odd(value: Fraction) -> float:
    """A number truncated to 24 bits, with the last bit set if bits were lost; 0 below 2^-126."""
    size, sign = abs(value), -1.0 if value < 0 else 1.0
    if size < SMALLEST_NORMAL:
        return sign * 0.0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    step = Fraction(2) ** (exponent - 23)
    whole = size // step
    whole |= whole * step != size
    return sign * (float("inf") if whole * step >= Fraction(2) ** 128 else float(whole * step))


def exact_bfdot(acc: float, a: Sequence[float], b: Sequence[float]) -> float:
    """acc + (a[0] * b[0] + a[1] * b[1]) by rational arithmetic, as Arm's manual defines BFDOT."""

    def rounded(operation: Any, x: float, y: float) -> float:
        x, y = (np.copysign(0.0, v) if abs(v) < SMALLEST_NORMAL else v for v in (x, y))
        with np.errstate(all="ignore"):
            plain = float(operation(np.float64(x), np.float64(y)))
        if not np.isfinite([x, y]).all() or plain == 0:
            return plain
        return exact_round_to_odd(operation(Fraction(x), Fraction(y)))

    products = [rounded(operator.mul, x, y) for x, y in zip(a, b, strict=True)]
    return rounded(operator.add, acc, rounded(operator.add, *products))


def assert_equal_bits(actual: Array, expected: Array) -> None:
    """All NaN count as equal."""
    same = (actual.view(np.int32) == expected.view(np.int32)) | (np.isnan(actual) & np.isnan(expected))
    wrong = np.flatnonzero(~same)[:5]
    assert same.all(), f"{(~same).sum()} of {same.size} differ: {actual[wrong]} instead of {expected[wrong]}"


@pytest.mark.parametrize("name", [ALL_INSTRUCTIONS[0], BFDOT_INSTRUCTION])
def test_numpy_semantics_are_those_of_the_manual(name: str) -> None:
    acc, x, y = numbers_of_all_kinds(np.random.default_rng(1), 300)
    with np.errstate(invalid="ignore"):  # signaling NaN
        a, b = ((bits.astype(np.uint32) << 16).view(np.float32).astype(float).reshape(-1, 2) for bits in (x, y))
        totals = acc.view(np.float32).astype(float)
    expected = []
    for total, p, q in zip(totals.tolist(), a.tolist(), b.tolist(), strict=True):
        if name == BFDOT_INSTRUCTION:
            expected.append(exact_bfdot(total, p, q))
            continue
        upper = exact_fused_multiply_add(total, p[1], q[1])
        expected.append(exact_fused_multiply_add(upper, p[0], q[0]))
    actual = INSTRUCTIONS[name].meaning(acc.view(np.float32), x.view(np.int32), y)
    assert_equal_bits(actual, np.array(expected, np.float32))


def instruction_jobs(seed: int, names: Sequence[str] = ALL_INSTRUCTIONS) -> list[tuple[Kernel, list[Array]]]:
    """Instructions on numbers of all kinds."""
    jobs = []
    for name in names:
        lanes = int(name.rpartition("x")[2])
        acc, x, y = numbers_of_all_kinds(np.random.default_rng([seed, lanes]), 16)
        types = (("acc", "float32", lanes), ("x", "int32", lanes), ("y", "uint16", 2 * lanes))
        inputs = tuple(Buffer(name, DType(dtype), size) for name, dtype, size in types)
        output = Buffer("out", DType("float32"), lanes)
        loads = [Load(b, as_expr(0), b.size) for b in inputs]
        value = call(name, *loads)
        kernel = Kernel(name=name, inputs=inputs, outputs=(output,), body=Store(output, as_expr(0), value))
        operands = (acc.view(np.float32), x.view(np.int32), y)
        for k in range(len(acc) // lanes):
            jobs.append(
                (kernel, [v[k * lanes * n : (k + 1) * lanes * n] for v, n in zip(operands, (1, 1, 2), strict=True)])
            )
    return jobs


def check_instruction_jobs(jobs: Sequence[tuple[Kernel, list[Array]]], results: Sequence[Sequence[Array]]) -> None:
    for (kernel, inputs), (actual,) in zip(jobs, results, strict=True):
        expected = INSTRUCTIONS[kernel.name].meaning(*inputs)
        assert_equal_bits(actual, expected)
        assert_equal_bits(run_kernel(kernel, inputs)[0], expected)


def test_processor_computes_the_instruction(tmp_path: Path) -> None:
    require_processor(TARGET)
    jobs = instruction_jobs(0, ALL_INSTRUCTIONS[:-1])
    check_instruction_jobs(jobs, machine(TARGET).run_kernels(jobs, tmp_path, *STRICT))


def test_emulator_computes_bfdot(tmp_path: Path) -> None:
    jobs = instruction_jobs(2, (BFDOT_INSTRUCTION,))
    check_instruction_jobs(jobs, machine(ARM_TARGET).run_kernels(jobs, tmp_path, *STRICT))


@pytest.mark.parametrize(("cc", "target", "level"), [
    ("gcc", "x86-64", "-O2"), ("gcc", "x86-64-v4", "-O3"), ("clang", "x86-64-v3", "-O2"), ("clang", TARGET, "-O0"),
])  # fmt: skip
def test_portable_c_computes_the_instruction(cc: str, target: str, level: str, tmp_path: Path) -> None:
    """Targets without the instruction compile its portable form; wider vectors than a target's are
    split by the compiler.
    """
    require_processor(target)
    jobs = instruction_jobs(1)
    source = source_of((kernel for kernel, _ in jobs), gnu_c_for(TARGETS[target]))
    library = ctypes.CDLL(str(build(source, tmp_path, level, *TARGETS[target].cflags, cc=require_tool(cc))))
    check_instruction_jobs(jobs, [call_kernel(library, f"kernel{k}", *job) for k, job in enumerate(jobs)])


# --- products of matrices and convolutions


def small_numbers(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    return rng.standard_normal(tuple(shape)).astype(BF16)


def packed_weight(weight: Array, source: str, target: str) -> Array:
    return packed(weight.view(np.uint16), source, target).view(BF16)


def rows_by_packed_weights(rng: np.random.Generator) -> tuple[OpDef, Sample]:
    sizes = ([1, 2, 7, 30], [1, 2, 3, 16, 31, 64], [1, 2, 15, 16, 33, 64])
    rows, inputs, units = (int(rng.choice(n)) for n in sizes)
    layout = str(rng.choice(["NC16n2c", "NC32n2c", "NC64n2c"]))
    weight = packed_weight(small_numbers(rng, (units, inputs)), "NC", layout)
    attributes = contrib_dense_pack.attrs(units=units, weight_layout=layout, out_dtype="float32")
    args = small_numbers(rng, (rows, inputs)), weight
    return contrib_dense_pack, Sample(args=args, attrs=attributes, accuracy=Accuracy.LOOSE)


def rows_by_plain_weights(rng: np.random.Generator) -> tuple[OpDef, Sample]:
    rows, inputs, units = (int(rng.choice(n)) for n in ([1, 5, 17], [1, 4, 9, 32], [1, 5, 16, 40]))
    args = small_numbers(rng, (rows, inputs)), small_numbers(rng, (units, inputs))
    return dense, Sample(args=args, attrs=dense.attrs(units=units, out_dtype="float32"), accuracy=Accuracy.LOOSE)


def products_per_batch(rng: np.random.Generator) -> tuple[OpDef, Sample]:
    batch, rows, inputs, columns = (int(rng.choice(n)) for n in ([1, 3], [1, 5, 17], [1, 4, 9, 32], [1, 5, 16, 40]))
    transposed = bool(rng.random() < 0.5)
    second = (batch, columns, inputs) if transposed else (batch, inputs, columns)
    args = small_numbers(rng, (batch, rows, inputs)), small_numbers(rng, second)
    attributes = batch_matmul.attrs(transpose_b=transposed, out_dtype="float32")
    return batch_matmul, Sample(args=args, attrs=attributes, accuracy=Accuracy.LOOSE)


def packed_convolution(rng: np.random.Generator) -> tuple[OpDef, Sample]:
    groups = int(rng.choice([1, 1, 1, 2]))
    inputs = int(rng.choice([1, 2, 3, 5, 8, 17])) * (1 if groups == 1 else 4)
    outputs = int(rng.choice([1, 3, 16, 21, 40, 48])) if groups == 1 else 32
    taps = [int(k) for k in rng.choice([1, 2, 3], 2)]
    across = taps[1] > 1 and groups == 1 and (inputs == 1 or rng.random() < 0.5)
    layout = f"OHWI16o2{'w' if across else 'i'}"
    channels_last = bool(rng.random() < 0.6)
    attributes = conv2d.attrs(
        strides=tuple(int(s) for s in rng.choice([1, 1, 2], 2)),
        padding=tuple(int(p) for p in rng.integers(0, 3, 4)),
        groups=groups,
        channels=outputs,
        kernel_size=tuple(taps),
        data_layout="NHWC" if channels_last else "NCHW",
        kernel_layout=layout,
        out_layout="NHWC",
        out_dtype="float32",
    )
    size = [int(n) for n in rng.integers(6, 13, 2)]
    shape = (1, *size, inputs) if channels_last else (1, inputs, *size)
    weight = packed_weight(small_numbers(rng, (outputs, inputs // groups, *taps)), "OIHW", layout)
    args = small_numbers(rng, shape), weight
    return conv2d, Sample(args=args, attrs=attributes, accuracy=Accuracy.LOOSE)


KINDS = (rows_by_packed_weights, packed_convolution, rows_by_plain_weights, products_per_batch, packed_convolution)


def jobs_and_references(target: str, seed: int, count: int = 10) -> tuple[list[Job], list[Array]]:
    """Kernels of drawn products, and their results in float64."""
    jobs, references = [], []
    for number in range(count):
        op, sample = KINDS[number % len(KINDS)](np.random.default_rng([seed, number]))
        jobs.append(kernel_job(op, sample, TARGETS[target]))
        wide = sample.attrs.replace(out_dtype="float64")
        references.append(np.asarray(op.reference(wide, *(x.astype(np.float64) for x in sample.args))))
    return jobs, references


def used_instructions(kernel: Kernel) -> set[str]:
    return {node.name for node in all_exprs_in_stmt(kernel.body) if isinstance(node, Call)}


@pytest.mark.parametrize(("target", "seed"), share([(t, k) for k in range(12) for t in (TARGET, ARM_TARGET)], 4))
def test_products_equal_the_interpreter(target: str, seed: int, tmp_path: Path) -> None:
    """The sums are those of the definition in float64 up to float32's rounding, and the processor
    gives the bits of the interpreter.
    """
    jobs, references = jobs_and_references(target, seed)
    expected = [result for (result, *_) in interpret(jobs)]
    for result, reference in zip(expected, references, strict=True):
        np.testing.assert_allclose(result.reshape(-1), reference.reshape(-1), rtol=1e-5, atol=1e-4)
    assert any(name.startswith(INSTRUCTION) for job in jobs for name in used_instructions(job.kernel))
    if target == TARGET:
        require_processor(target)
    flags = (("-O0", "-O1", "-O2", "-O3")[seed % 4],)
    results = machine(target).run_kernels([(job.kernel, job.inputs) for job in jobs], tmp_path, *flags)
    for (actual, *_), result in zip(results, expected, strict=True):
        assert_equal_bits(actual.reshape(-1), result.reshape(-1))


def test_fixed_order_of_sums_excludes_the_instruction() -> None:
    rng = np.random.default_rng(3)
    weight = packed_weight(small_numbers(rng, (33, 64)), "NC", "NC16n2c")
    attributes = contrib_dense_pack.attrs(units=33, weight_layout="NC16n2c", out_dtype="float32")
    sample = Sample(args=(small_numbers(rng, (7, 64)), weight), attrs=attributes, accuracy=Accuracy.LOOSE)
    for target, uses in ((TARGETS[TARGET], True), (target_with_fixed_summation_order(TARGETS[TARGET]), False)):
        names = used_instructions(kernel_job(contrib_dense_pack, sample, target).kernel)
        assert any(name.startswith(INSTRUCTION) for name in names) == uses
