# SPDX-License-Identifier: Apache-2.0
"""The interpreter's arithmetic is numpy's, its loops are sequential, its accesses are checked."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DTYPES, DType
from aotc.tir.expr import Binary, Broadcast, Buffer, Call, Cast, Const, Load, Select, Var, as_expr, const
from aotc.tir.interpreter import compile_kernel, run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.stmt import Assign, Block, Declare, For, If, Kernel, Stmt, Store, While

F32 = DType("float32")
INTEGERS = [d for d in DTYPES if d.is_integer]
FLOATS = [d for d in DTYPES if d.is_float and d not in ("float8_e8m0fnu", "float4_e2m1fn")]


def kernel(body: Stmt, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...], **more: object) -> Kernel:
    return Kernel(name="k", inputs=inputs, outputs=outputs, body=body, **more)  # type: ignore[arg-type]


def elementwise(make: object, dtype: DType, *arrays: np.ndarray, vector: bool) -> np.ndarray:
    """`make(loads)` at every element, in a loop that becomes numpy operations or in one that cannot."""
    size = arrays[0].size
    inputs = tuple(Buffer(f"x{k}", DType.from_numpy(a), size) for k, a in enumerate(arrays))
    i, y = Var("i"), Buffer("y", dtype, size)
    store: Stmt = Store(y, i, make(*(Load(b, i) for b in inputs)))  # type: ignore[operator]
    if not vector:
        store = If(Binary("ge", i, as_expr(0)), store)
    kind = "independent" if vector else "serial"
    return run_kernel(kernel(For(i, size, store, kind=kind), inputs, (y,)), arrays)[0]


def grid(dtype: DType, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    if dtype.is_float:
        a, b = rng.normal(0, 4, 64), rng.normal(0, 4, 64)
        a[:4] = [np.nan, np.inf, -np.inf, 0.0]
        return a.astype(dtype.numpy), b.astype(dtype.numpy)
    low, high = int(dtype.min), min(int(dtype.max), 2**62)
    a, b = rng.integers(low, high, 64, endpoint=True), rng.integers(low, high, 64, endpoint=True)
    return a.astype(dtype.numpy), b.astype(dtype.numpy)


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(dtype: DType, vector: bool) -> None:
    a, b = grid(dtype, np.random.default_rng(1))
    wide_a, wide_b = a.astype(object), b.astype(object)
    for op, want in (("add", wide_a + wide_b), ("sub", wide_a - wide_b), ("mul", wide_a * wide_b)):
        got = elementwise(lambda x, y, op=op: Binary(op, x, y), dtype, a, b, vector=vector)
        modulus = 2**dtype.bits
        assert [int(g) % modulus for g in got] == [int(w) % modulus for w in want]


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division(dtype: DType, vector: bool) -> None:
    a, b = grid(dtype, np.random.default_rng(2))
    b = np.where((b.astype(np.int64) == 0) | (b.astype(np.int64) == -1), np.array(1, b.dtype), b)
    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    truncated = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs]
    expected = {
        "floordiv": [x // y for x, y in pairs],
        "floormod": [x % y for x, y in pairs],
        "truncdiv": truncated,
        "truncmod": [x - q * y for (x, y), q in zip(pairs, truncated, strict=True)],
    }
    for op, want in expected.items():
        got = elementwise(lambda x, y, op=op: Binary(op, x, y), dtype, a, b, vector=vector)
        assert [int(g) for g in got] == want, op


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_round_each_operation(dtype: DType, vector: bool) -> None:
    a, b = grid(dtype, np.random.default_rng(3))
    with np.errstate(all="ignore"):
        want = (a * b + a) / b
        least = np.minimum(a, b)
    got = elementwise(lambda x, y: (x * y + x) / y, dtype, a, b, vector=vector)
    assert got.tobytes() == want.tobytes() or np.array_equal(
        got.astype(np.float64), want.astype(np.float64), equal_nan=True
    )
    got = elementwise(lambda x, y: Binary("min", x, y), dtype, a, b, vector=vector)
    assert np.array_equal(got.astype(np.float64), least.astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("vector", [True, False])
def test_shifts_by_the_width_or_more(vector: bool) -> None:
    a = np.array([-5, 5, -128, 127, 1, -1], np.int8)
    by = np.array([1, 8, 9, 7, 100, 8], np.int8)
    left = elementwise(lambda x, y: Binary("shl", x, y), DType("int8"), a, by, vector=vector)
    right = elementwise(lambda x, y: Binary("shr", x, y), DType("int8"), a, by, vector=vector)
    assert left.tolist() == [-10, 0, 0, -128, 0, 0]
    assert right.tolist() == [-3, 0, -1, 0, 0, -1]


@pytest.mark.parametrize("vector", [True, False])
def test_casts_are_astype(vector: bool) -> None:
    a = np.array([-1.9, 1.9, 0.0, -0.4, 100.5, np.nan], np.float32)
    for dtype in ("int8", "int64", "bool", "float16", "bfloat16", "float64"):
        got = elementwise(lambda x, d=dtype: Cast(DType(d), x), DType(dtype), a[:5], vector=vector)
        assert np.array_equal(got, a[:5].astype(DType(dtype).numpy))
    wide = np.array([300, -1, 2**40 + 7], np.int64)
    got = elementwise(lambda x: Cast(DType("uint8"), x), DType("uint8"), wide, vector=vector)
    assert got.tolist() == [44, 255, 7]


def test_sums_are_sequential() -> None:
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    buffer, y, k, acc = Buffer("x", F32, 1000), Buffer("y", F32, 1), Var("k"), Var("acc", F32)
    body = Block(
        (
            Declare(acc, const(0, F32)),
            For(k, 1000, Assign(acc, acc + Load(buffer, k)), kind="reduction"),
            Store(y, const(0), acc),
        )
    )
    total = np.float32(0)
    for item in x:
        total = total + item
    assert run_kernel(kernel(body, (buffer,), (y,)), [x])[0][0] == total


def test_loop_carried_dependence_is_kept() -> None:
    y, i = Buffer("y", DType("int64"), 20), Var("i")
    body = Block((Store(y, const(0), const(1)), For(i, 20, Store(y, i, Load(y, i - 1) * 2), begin=1)))
    assert run_kernel(kernel(body, (), (y,)), [])[0].tolist() == [2**k for k in range(20)]


@pytest.mark.parametrize("private", [True, False])
def test_iterations_that_write_one_place(private: bool) -> None:
    """Private scratch that each iteration fills before it reads it, and scratch that nothing reads."""
    x, y, i = Buffer("x", F32, 8), Buffer("y", F32, 8), Var("i")
    scratch = Buffer("s", F32, 1, scope="stack", private=private)
    result = Load(scratch, const(0)) if private else Load(x, i)
    body = Block((Store(scratch, const(0), Load(x, i)), Store(y, i, result)))
    data = np.arange(8, dtype=np.float32)
    made = kernel(For(i, 8, body, kind="independent"), (x,), (y,), stack=(scratch,))
    verify(made)
    assert run_kernel(made, [data])[0].tolist() == data.tolist()


def test_selection_guards_the_load() -> None:
    x, y, i = Buffer("x", F32, 4), Buffer("y", F32, 8), Var("i")
    value = Select(i < 4, Load(x, i), const(-1.0, F32))
    data = np.arange(4, dtype=np.float32)
    assert (
        run_kernel(kernel(For(i, 8, Store(y, i, value), kind="independent"), (x,), (y,)), [data])[0].tolist()
        == [0, 1, 2, 3] + [-1] * 4
    )
    nested = Select(i >= 2, value, Load(x, i + 1))
    got = run_kernel(kernel(For(i, 8, Store(y, i, nested), kind="independent"), (x,), (y,)), [data])[0]
    assert got.tolist() == [1, 2, 2, 3] + [-1] * 4


def test_vectors() -> None:
    x, y, v = Buffer("x", F32, 8), Buffer("y", F32, 8), Var("v", F32, 4)
    total = Call("fma", (v, Broadcast(Load(x, const(7)), 4), Const(1.0, F32, 4)))
    body = Block((Declare(v, Load(x, const(2), 4)), Store(y, const(4), total), Store(y, const(0), v)))
    got = run_kernel(kernel(body, (x,), (y,)), [np.arange(8, dtype=np.float32)])[0]
    assert got.tolist() == [2, 3, 4, 5, 15, 22, 29, 36]


def test_while() -> None:
    y, n = Buffer("y", DType("int64"), 1), Var("n")
    body = Block((Declare(n, as_expr(1)), While(n < 100, Assign(n, n * 3)), Store(y, as_expr(0), n)))
    assert run_kernel(kernel(body, (), (y,)), [])[0].tolist() == [243]


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("offset", [-1, 1])
def test_accesses_outside_are_errors(count: int, offset: int) -> None:
    x, y, i = Buffer("x", F32, count), Buffer("y", F32, count), Var("i")
    data = np.zeros(count, np.float32)
    with pytest.raises(AotcError, match="outside"):
        run_kernel(kernel(For(i, count, Store(y, i, Load(x, i + offset)), kind="independent"), (x,), (y,)), [data])
    with pytest.raises(AotcError, match="outside"):
        run_kernel(kernel(For(i, count, Store(y, i + offset, Load(x, i)), kind="independent"), (x,), (y,)), [data])


def test_inputs_are_checked_and_kept() -> None:
    x, y = Buffer("x", F32, 4), Buffer("y", F32, 4)
    run = compile_kernel(kernel(Store(y, const(0), Load(x, const(0))), (x,), (y,)))
    with pytest.raises(AotcError, match="has 1 inputs, got 0"):
        run([])
    with pytest.raises(AotcError, match="needs 4 x float32, got 4 x float64"):
        run([np.zeros(4)])
    data = np.ones(4, np.float32)
    first = run([data], output_init=[np.full(4, 7, np.float32)])[0]
    assert first.tolist() == [1, 7, 7, 7]
    assert np.isnan(run([data])[0][1:]).all()
    assert data.flags.writeable


def test_integer_power_and_bits() -> None:
    a, b = np.array([2, -3, 0, 1, -1, 2], np.int32), np.array([10, 3, 0, -5, -3, -1], np.int32)
    got = elementwise(lambda x, y: Call("pow", (x, y)), DType("int32"), a, b, vector=True)
    assert got.tolist() == [1024, -27, 1, 1, -1, 0]
    c = np.array([0, 1, -1, 127], np.int8)
    assert elementwise(lambda x: Call("popcount", (x,)), DType("int8"), c, vector=True).tolist() == [0, 1, 8, 7]
    assert elementwise(lambda x: Call("clz", (x,)), DType("int8"), c, vector=False).tolist() == [8, 7, 0, 1]


def test_kernels_of_c_source_are_refused() -> None:
    kernel = Kernel(name="mine", inputs=(), outputs=(), body=Block(()), source="void mine(void) {}")
    with pytest.raises(AotcError, match="mine is C source"):
        run_kernel(kernel, [])
