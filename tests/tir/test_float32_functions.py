# SPDX-License-Identifier: Apache-2.0
"""Elementary functions as tensor programs: interpreter and compiled C have equal bits, in vectors and scalars."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.tir.expr import Binary, Buffer, Expr, Load, Var, binary, call, cast
from aotc.tir.functions import float32_functions, float64_functions
from aotc.tir.functions.elementary_function_table import elementary_function_definition
from aotc.tir.functions.fma_contraction import contract_to_fma
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.stmt import Block, Kernel, Store, all_exprs_in_stmt, forall
from aotc.tir.target import TARGETS
from tests.codegen.batch import finished, run_batch
from tests.codegen.bit_comparison import wrong

SINGLE, DOUBLE = DType("float32"), DType("float64")
_NAMES = """
exp log tanh erf sin cos tan sqrt rsqrt abs floor ceil trunc round_even round_away exp2 expm1 log2 log10 log1p cbrt asin
acos atan sinh cosh asinh acosh atanh tgamma lgamma
"""
ONE = _NAMES.split()
TWO = ["pow", "copysign", "atan2"]
SPECIAL = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38, 88.7, -104, 1e10, 0.5, 1.5, 2.5, -0.5, 1, -1, 2, -2,
    8388609, -8388609, 4194304.5, 1.17549435e-38, 0.49999997, 2147483648, -2147483904,
]  # fmt: skip
SIZE = 603


def numbers() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal(SIZE - len(SPECIAL)) * np.exp(rng.uniform(-20, 20, SIZE - len(SPECIAL)))
    x = np.concatenate([drawn, SPECIAL]).astype(np.float32)
    return x, rng.permutation(x)


def of(name: str, dtype: DType = SINGLE) -> Kernel:
    """y[i] = name(x[i]), or of x[i] and z[i]."""
    x, z, y = (Buffer(n, dtype, SIZE) for n in "xzy")
    i = Var("i")
    made = call(name, *[Load(b, i) for b in (x, z)][: len(INSTRUCTIONS[name].takes)])
    return Kernel(name=name, inputs=(x, z), outputs=(y,), body=forall(i, SIZE, Store(y, i, made)))


@pytest.mark.parametrize(
    "name", ["float32 c", "float32 x86-64", "float32 x86-64-v3", "bfloat16 c", "float16 x86-64-v3"]
)
def test_compiled_functions_have_the_bits_of_the_interpreter(name: str, tmp_path: Path) -> None:
    """Those of narrow floats are computed in float32 and rounded."""
    made, (dtype, target) = [], name.split()
    with np.errstate(over="ignore"):
        inputs = [x.astype(DType(dtype).numpy) for x in numbers()]
    for n in (*ONE, *TWO):
        kernel = finished(of(n, DType(dtype)), TARGETS[target])
        verify(kernel)
        assert target == "c" or any(n.lanes > 1 for n in all_exprs_in_stmt(kernel.body))
        made.append((kernel, inputs))
    for (kernel, _), found in zip(made, run_batch(made, tmp_path, "-O1"), strict=True):
        assert not wrong(kernel, found, run_kernel(kernel, inputs))


@pytest.mark.parametrize("exponential", [float32_functions.exp, float64_functions.exp, float64_functions.exp2])
def test_exponentials_of_masked_values_are_products_of_zeros(exponential: Callable[[Expr], Expr]) -> None:
    """A product that underflows would take a hundred times as long on some processors."""
    dtype = SINGLE if exponential is float32_functions.exp else DOUBLE
    x, *factors = (Buffer(name, dtype, 4) for name in ("x", "first", "second"))
    i = Var("i")
    product = exponential(Load(x, i))
    assert isinstance(product, Binary)
    assert product.op == "mul"
    stores = [Store(y, i, value) for y, value in zip(factors, (product.a, product.b), strict=True)]
    kernel = Kernel(name="factors", inputs=(x,), outputs=tuple(factors), body=forall(i, 4, Block(stores)))
    for factor in run_kernel(kernel, [np.array([-1e4, -1e9, -3e38, -np.inf], dtype.numpy)]):
        np.testing.assert_array_equal(factor, np.zeros(4))


@pytest.mark.parametrize("target", ["c", "x86-64-v3"])
def test_bits_of_integers_are_counted(target: str, tmp_path: Path) -> None:
    rng, made = np.random.default_rng(0), []
    for dtype in ("int8", "uint16", "int32", "uint32", "int64", "uint64"):
        facts = np.iinfo(dtype)
        drawn = rng.integers(facts.min, facts.max, SIZE - 4, dtype=dtype, endpoint=True)
        drawn = drawn >> rng.integers(0, facts.bits - 1, SIZE - 4).astype(dtype)
        inputs = [np.concatenate([drawn, np.array([0, 1, facts.min, facts.max], dtype)])] * 2
        for name in ("popcount", "clz"):
            kernel = finished(of(name, DType(dtype)), TARGETS[target])
            assert target == "c" or any(n.lanes > 1 for n in all_exprs_in_stmt(kernel.body))
            made.append((kernel, inputs))
    for (kernel, (x, _)), (c,) in zip(made, run_batch(made, tmp_path), strict=True):
        bits = [int(value) % 2 ** (8 * x.itemsize) for value in x]
        counted = [b.bit_count() if kernel.name == "popcount" else 8 * x.itemsize - b.bit_length() for b in bits]
        assert c.tolist() == counted == run_kernel(kernel, [x, x])[0].tolist()


def test_a_multiply_add_is_rounded_once() -> None:
    rng = np.random.default_rng(0)
    meaning = INSTRUCTIONS["fma"].meaning
    for kind in (np.float32, np.float64):
        a, b = (rng.standard_normal(2000).astype(kind) for _ in "ab")
        c = (-a * b * (1 + rng.integers(-3, 4, 2000) * np.finfo(kind).eps)).astype(kind)  # most digits cancel
        c[::3] = rng.standard_normal(len(c[::3])) * 1e-9
        found = meaning(a, b, c)
        exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
        errors = [abs(Fraction(float(f)) - e) for f, e in zip(found, exact, strict=True)]
        for direction in (-np.inf, np.inf):
            others = np.nextafter(found, kind(direction))
            assert all(abs(Fraction(float(o)) - e) >= r for o, e, r in zip(others, exact, errors, strict=True))


def test_products_and_sums_are_fused_where_a_target_does() -> None:
    a, b, c = (Var(name, SINGLE) for name in "abc")
    texts = {
        a * b + c: "fma(a, b, c)",
        c + a * b: "fma(a, b, c)",
        a * b - c: "fma(a, b, neg(c))",
        c - a * b: "fma(neg(a), b, c)",
        call("exp", a * b): "fused_exp(a * b)",
    }
    y = Buffer("y", SINGLE, 1)
    for expr, text in texts.items():
        kernel = Kernel(name="k", inputs=(), outputs=(y,), body=Store(y, 0 * Var("i"), contract_to_fma(expr)))
        assert to_text(kernel).splitlines()[2].strip() == f"y[0] = {text}"
    halves = Var("h", DType("float16")) * 2.0 + 1.0
    assert contract_to_fma(halves) == halves  # rounded after each operation


def test_functions_say_what_they_are_made_of() -> None:
    plain, with_fma = (
        elementary_function_definition("exp", SINGLE),
        elementary_function_definition("exp", SINGLE, uses_fma=True),
    )
    assert plain is not None and with_fma is not None

    def count(function: Any, name: str) -> int:
        exprs = [*(s.value for s in function.body), function.result]
        stmts = forall(Var("i"), 1, Store(Buffer("y", SINGLE, 1), 0 * Var("i"), exprs[-1]))
        found = [n for e in exprs[:-1] for n in all_exprs_in_stmt(Store(Buffer("t", e.dtype, 1), 0 * Var("i"), e))]
        return sum(getattr(n, "name", "") == name for n in (*found, *all_exprs_in_stmt(stmts)))

    assert count(plain, "fma") == 0 and count(with_fma, "fma") > 5
    assert elementary_function_definition("abs", DOUBLE) is None  # an instruction


def test_conversions_and_extremes_mean_one_thing() -> None:
    x = np.array([3e9, -3e9, np.nan, np.inf, -1.5, 2.9, 300.0], np.float32)
    least = {"int32": [-(2**31)] * 4, "int64": [3000000000, -3000000000, -(2**63), -(2**63)], "int8": [0] * 4}
    for name, wide in least.items():
        xs, y, i = Buffer("x", SINGLE, x.size), Buffer("y", DType(name), x.size), Var("i")
        kernel = Kernel(
            name="k", inputs=(xs,), outputs=(y,), body=forall(i, x.size, Store(y, i, cast(Load(xs, i), name)))
        )
        (found,) = run_kernel(kernel, [x])
        assert found[:4].tolist() == wide
        assert found[4:6].tolist() == [-1, 2]
    a, b = np.array([0.0, -0.0, 1.0], np.float32), np.array([-0.0, 0.0, np.nan], np.float32)
    for op in ("min", "max"):
        p, q, y, i = (*(Buffer(n, SINGLE, 3) for n in "pqy"), Var("i"))
        body = forall(i, 3, Store(y, i, binary(op, Load(p, i), Load(q, i))))
        (found,) = run_kernel(Kernel(name="k", inputs=(p, q), outputs=(y,), body=body), [a, b])
        assert np.signbit(found[:2]).tolist() == [False, True] and np.isnan(found[2])
