# SPDX-License-Identifier: Apache-2.0
"""Kernels that round wider numbers to bytes, and int8 dot products: numpy's results, with every vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc import relay
from aotc.ir.dtype import DType
from aotc.relay.module import IRModule
from aotc.relay.op.qnn.target_independent_rounding import ROUND_NEAREST_OPS_BY_DTYPE
from aotc.relay.type_inference import infer_module
from aotc.tir.expr import Buffer, Call, Const, Load, Var, as_expr, call, cast, minimum
from aotc.tir.interpreter import run_kernel
from aotc.tir.loops import merge_narrowing_stores as together
from aotc.tir.loops.loop_nest_rewrites import fill_buffer_loop
from aotc.tir.stmt import Block, For, Kernel, Store, all_exprs_in_stmt, forall
from aotc.tir.target import X86_64, X86_64_V3, X86_64_V4, Target
from tests.codegen.batch import Array, finished
from tests.share import share
from tests.targets.machines import FOREIGN, PORTABLE, machine, native_targets
from tests.targets.random_kernels import Job, disagreements, lowered

TARGETS = (*native_targets(), *FOREIGN, *PORTABLE)
SINGLE = DType("float32")
HALVES = (np.arange(-601, 600) / 2).astype(np.float32)
EDGES = np.array(
    [np.nan, -np.nan, np.inf, -np.inf, -0.0, 3e9, -3e9, 2.0**31, -(2.0**31), 2.0**30, 2.0**23 + 1, 4194304.5, 1e-40],
    np.float32,
)
ZEROS = {"int8": (-128, -3, 127), "uint8": (0, 11, 255)}
FEW, ALL = 3, 60
"""Convolutions in each test."""


def names(kernel: Kernel) -> set[str]:
    return {n.name for n in all_exprs_in_stmt(kernel.body) if isinstance(n, Call)}


def quantized(dtype: str, zero: int, values: Array) -> Job:
    """Numbers rounded to bytes around a zero point."""
    x, y, i = Buffer("x", SINGLE, values.size), Buffer("y", DType(dtype), values.size), Var("i")
    body = forall(i, values.size, Store(y, i, call(f"quantize_{dtype}", Load(x, i), float(zero))))
    return Kernel(name=f"{dtype}_{zero}_{values.size}", inputs=(x,), outputs=(y,), body=body), [values]


def rounded(dtype: str, zero: int, values: Array) -> Array:
    """What these are by definition."""
    low, high = int(DType(dtype).min), int(DType(dtype).max)
    whole = np.rint(values.astype(np.float64)) + zero
    return np.clip(np.where(np.isnan(whole), low, whole), low, high).astype(dtype)


def jobs_of_bytes() -> list[Job]:
    rng = np.random.default_rng(0)
    values = np.concatenate([HALVES, EDGES, rng.normal(0, 200, 300).astype(np.float32)])
    sizes = (values.size, 3, 17, 64, 100)
    return [quantized(d, zero, values[-n:]) for d, zeros in ZEROS.items() for zero in zeros for n in sizes]


@pytest.mark.parametrize("target", share(TARGETS, 6))
def test_floats_become_bytes(target: str, tmp_path: Path) -> None:
    here, jobs = machine(target), []
    for kernel, (values,) in jobs_of_bytes():
        dtype, zero, _ = kernel.name.split("_")
        made = finished(kernel, here.target)
        for each in (kernel, made):
            np.testing.assert_array_equal(run_kernel(each, [values])[0], rounded(dtype, int(zero), values))
        jobs.append((made, [values]))
    assert disagreements(jobs, here, tmp_path) == []


@pytest.mark.parametrize("target", [X86_64, X86_64_V3, X86_64_V4], ids=lambda t: t.name)
def test_four_vectors_become_one(target: Target) -> None:
    lanes = target.lanes("float32")
    for vectors, joined in ((3, False), (4, True), (11, True)):
        kernel, _ = quantized("uint8", 3, np.zeros(vectors * lanes, np.float32))
        assert (f"quantize_uint8_x{lanes}" in names(finished(kernel, target))) == joined


@pytest.mark.parametrize("target", share(TARGETS, 6))
def test_vectors_are_joined_in_loops_of_unknown_length(target: str, tmp_path: Path) -> None:
    """Threads compute parts whose bounds are not constants: whole groups of four vectors, then single vectors, then
    single elements.
    """
    here, jobs, size = machine(target), [], 700
    values = np.random.default_rng(1).normal(0, 100, size).astype(np.float32)
    for part_size in (7, 64, 128, 300):
        x, y, i, part = Buffer("x", SINGLE, size), Buffer("y", DType("uint8"), size), Var("i"), Var("part")
        store = Store(y, i, call("quantize_uint8", Load(x, i), 3.0))
        parts = forall(i, minimum(part * part_size + part_size, size), store, begin=part * part_size)
        body = For(part, -(-size // part_size), parts)
        kernel = finished(Kernel(name=f"parts_{part_size}", inputs=(x,), outputs=(y,), body=body), here.target)
        np.testing.assert_array_equal(run_kernel(kernel, [values])[0], rounded("uint8", 3, values))
        if part_size >= 128 and target in ("x86-64", "x86-64-v3", "x86-64-v4"):
            assert f"quantize_uint8_x{here.target.lanes('float32')}" in names(kernel)
        jobs.append((kernel, [values]))
    assert disagreements(jobs, here, tmp_path) == []


def test_stores_stay_apart_where_what_they_store_is_read() -> None:
    """An element that is read in a later round lies in what would be stored after that."""
    x, y, i = Buffer("x", SINGLE, 128), Buffer("y", DType("uint8"), 144), Var("i")
    shifted = call("quantize_uint8", Load(x, i) + cast(Load(y, i + 16), "float32"), 0.0)
    kernel = Kernel(name="k", inputs=(x,), outputs=(y,), body=forall(i, 128, Store(y, i, shifted)))
    assert "quantize_uint8_x16" not in names(finished(kernel, X86_64_V4))


@pytest.mark.parametrize("target", share(TARGETS, 4))
def test_bytes_that_are_numbers_again(target: str, tmp_path: Path) -> None:
    """They are rounded and limited as they would be, without being narrowed where there are vectors."""
    here, jobs = machine(target), []
    for kernel, (values,) in jobs_of_bytes():
        dtype, zero, _ = kernel.name.split("_")
        x, y, i = Buffer("x", SINGLE, values.size), Buffer("y", SINGLE, values.size), Var("i")
        number = cast(call(f"quantize_{dtype}", Load(x, i), float(zero)), "float32")
        again = Kernel(name="k", inputs=(x,), outputs=(y,), body=forall(i, values.size, Store(y, i, number)))
        made = finished(again, here.target)
        expected = rounded(dtype, int(zero), values).astype(np.float32)
        np.testing.assert_array_equal(run_kernel(made, [values])[0], expected)
        jobs.append((made, [values]))
    assert disagreements(jobs, here, tmp_path) == []


@pytest.mark.parametrize(("distance", "joins"), [(0, True), (8, True), (64, True), (-8, False), (-16, False)])
def test_four_stores_into_what_they_read(distance: int, joins: bool) -> None:
    """Stores wait for the last one of them, unless what is read in between is what they store."""
    x, y, zero = Buffer("x", SINGLE, 64), Buffer("y", DType("uint8"), 192), Const(0.0, SINGLE, 16)
    stores = []
    for k in range(0, 64, 16):
        before = cast(Load(y, as_expr(64 + k + distance), 16), "float32")
        stores.append(Store(y, as_expr(64 + k), call("quantize_uint8", Load(x, as_expr(k), 16) + before, zero)))
    made = together.merge_4_adjacent_quantized_byte_stores(Block(stores), frozenset())
    assert any(isinstance(n, Call) and n.name == "quantize_uint8_x16" for n in all_exprs_in_stmt(made)) == joins
    data = [np.arange(64, dtype=np.float32)]
    pair = [
        Kernel(name="k", inputs=(x,), outputs=(y,), body=Block((fill_buffer_loop(y, 3), b)))
        for b in (Block(stores), made)
    ]
    np.testing.assert_array_equal(*(run_kernel(kernel, data)[0] for kernel in pair))


def converted(source: str, to: str, count: int) -> Job:
    """Numbers of one width as those of another one."""
    rng = np.random.default_rng(count)
    x, y, i = Buffer("x", DType(source), count), Buffer("y", DType(to), count), Var("i")
    data = rng.integers(-(2**31), 2**31, count, dtype=np.int64).astype(source)
    kernel = Kernel(
        name=f"{source}_{to}", inputs=(x,), outputs=(y,), body=forall(i, count, Store(y, i, cast(Load(x, i), to)))
    )
    return kernel, [data]


@pytest.mark.parametrize("target", share(TARGETS, 4))
def test_bytes_and_wider_numbers(target: str, tmp_path: Path) -> None:
    here, jobs = machine(target), []
    wide = ("int32", "uint32", "float32", "int64")
    pairs = [(a, b) for n in ("int8", "uint8") for w in wide for a, b in ((n, w), (w, n)) if a != "float32"]
    for source, to in pairs:
        for count in (4, 8, 16, 77):
            kernel, data = converted(source, to, count)
            made = finished(kernel, here.target)
            np.testing.assert_array_equal(run_kernel(made, data)[0], data[0].astype(to))
            jobs.append((made, data))
    assert disagreements(jobs, here, tmp_path) == []


# --- depthwise convolutions


@dataclass(frozen=True)
class Depthwise:
    """A convolution of bytes, each channel by itself, whose sums are rounded to bytes."""

    function: relay.Function
    inputs: Sequence[Array]
    expected: Array


def depthwise(seed: int) -> Depthwise:
    """A depthwise convolution of random shape, with a random value in the padding."""
    rng = np.random.default_rng(seed)
    data_type, weight_type = (str(rng.choice(["uint8", "int8"], p=p)) for p in ([0.7, 0.3], [0.1, 0.9]))
    height, width = (int(n) for n in rng.integers(1, 12, 2))
    rows, columns = (int(n) for n in rng.integers(1, 6, 2))
    windows: dict[str, Any] = {}
    strides, dilation = (tuple(int(n) for n in rng.integers(1, 3, 2)) for _ in range(2))
    pads = tuple(int(n) for n in rng.integers(0, 3, 4))
    height += max(0, (rows - 1) * dilation[0] + 1 - height - pads[0] - pads[2])
    width += max(0, (columns - 1) * dilation[1] + 1 - width - pads[1] - pads[3])
    channels = 16 * int(rng.integers(1, 10))
    x = _bytes(rng, data_type, (int(rng.integers(1, 3)), height, width, channels))
    w = _bytes(rng, weight_type, (rows, columns, channels, 1))
    fill = int(rng.integers(int(DType(data_type).min), int(DType(data_type).max), endpoint=True))
    bias = rng.integers(-9999, 9999, channels, dtype=np.int32)
    scale = (rng.random(channels) * 0.01).astype(np.float32)
    arrays = [x, w, bias, scale]
    parameters = [relay.var(f"p{k}", shape=a.shape, dtype=str(a.dtype)) for k, a in enumerate(arrays)]
    data, weight, *others = parameters
    windows |= {"strides": strides, "dilation": dilation, "padding": pads}
    sums = relay.nn.conv2d(
        data, weight, groups=channels, channels=channels, kernel_size=(rows, columns), data_layout="NHWC",
        kernel_layout="HWOI", out_dtype="int32", pad_value=fill, **windows,
    )  # fmt: skip
    real = relay.multiply(relay.cast(relay.add(sums, others[0]), "float32"), others[1])
    body = ROUND_NEAREST_OPS_BY_DTYPE[data_type](real, relay.const(np.float32(fill)))
    function = infer_module(IRModule.from_expr(relay.Function(parameters, body))).main
    whole = np.pad(x.astype(np.int32), ((0, 0), pads[::2], pads[1::2], (0, 0)), constant_values=fill)
    total = _windows(whole, w.astype(np.int32)[..., 0], strides, dilation)
    values = (total + bias).astype(np.float32) * scale
    return Depthwise(function, arrays, rounded(data_type, fill, values))


def _bytes(rng: np.random.Generator, dtype: str, shape: Sequence[int]) -> Array:
    return rng.integers(0, 256, shape, dtype=np.uint8).view(dtype)


def _windows(x: Array, w: Array, strides: Sequence[int], dilation: Sequence[int]) -> Array:
    (rows, columns, _), spans = w.shape, [(n - 1) * d for n, d in zip(w.shape, dilation, strict=False)]
    down, across = x.shape[1] - spans[0], x.shape[2] - spans[1]
    total: Any = 0
    for k in range(rows):
        for j in range(columns):
            top, left = k * dilation[0], j * dilation[1]
            total = total + w[k, j] * x[:, top : top + down : strides[0], left : left + across : strides[1]]
    return np.asarray(total)


def compare(seeds: Sequence[int], target: str, folder: Path) -> None:
    here, jobs = machine(target), []
    for seed in seeds:
        case = depthwise(seed)
        kernel = lowered(case.function, f"k{seed}", here.target)
        found = run_kernel(kernel, case.inputs)[0]
        np.testing.assert_array_equal(found, case.expected.reshape(-1), err_msg=f"seed {seed}")
        jobs.append((kernel, case.inputs))
    assert disagreements(jobs, here, folder) == []


@pytest.mark.parametrize("target", share(TARGETS, 4))
def test_some_depthwise_convolutions_of_bytes(target: str, tmp_path: Path) -> None:
    compare(range(FEW), target, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, ALL, 10))
@pytest.mark.parametrize("target", TARGETS)
def test_depthwise_convolutions_of_bytes(target: str, first: int, tmp_path: Path) -> None:
    compare(range(first, first + 10), target, tmp_path)


@pytest.mark.parametrize(("channels", "widths"), [(64, {64}), (96, {64}), (144, {64, 32}), (40, {32, 16})])
def test_vectors_of_several_lengths_cover_the_channels(channels: int, widths: set[int]) -> None:
    """The last vector may repeat channels of the one before."""
    x = relay.var("x", shape=(1, 9, 9, channels), dtype="uint8")
    w = relay.var("w", shape=(3, 3, channels, 1), dtype="int8")
    attributes: dict[str, Any] = {"groups": channels, "channels": channels, "kernel_size": (3, 3), "padding": (1, 1)}
    y = relay.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWOI", out_dtype="int32", **attributes)
    function = infer_module(IRModule.from_expr(relay.Function([x, w], y))).main
    calls = [n for n in all_exprs_in_stmt(lowered(function, "k", X86_64_V4).body) if isinstance(n, Call)]
    assert {4 * n.lanes for n in calls if n.name.startswith("dot4")} == widths
