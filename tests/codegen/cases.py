# SPDX-License-Identifier: Apache-2.0
"""One small kernel for every operation, function and conversion, and for every data type on which it is defined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from aotc.ir.dtype import DTYPES, DType
from aotc.tir.expr import BITWISE, BOOL, COMPARE, Binary, Buffer, Call, Cast, Expr, Load, Select, Unary, Var
from aotc.tir.functions.elementary_function_table import INTEGER_FUNCTION_NAMES as WORDS
from aotc.tir.instruction_definition import OPERAND_KIND_DTYPES
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.stmt import For, Kernel, Store
from tests.codegen.bit_comparison import differing

INTEGER_DIVISIONS = ("floordiv", "floormod", "truncdiv", "truncmod")
FLOATS = tuple(d for d in DTYPES if d.is_float)
INTEGERS = tuple(d for d in DTYPES if d.is_integer)


@dataclass(frozen=True)
class Case:
    """A kernel with one output, and inputs for it."""

    name: str
    kernel: Kernel
    inputs: tuple[np.ndarray[Any, Any], ...]


def values(dtype: DType, seed: int, count: int = 257) -> np.ndarray[Any, Any]:
    """Ordinary values, extremes and, for floats, infinities, NaN, subnormals and signed zeros."""
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.is_float:
        edge = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, dtype.max, dtype.min, 1e-40, 3e-6]
        edge += [6e-46, -1e-60, 5e-324, 3.4028235677973366e38, -1e300]  # which other floats do not hold
        body = rng.normal(size=count - len(edge)) * 2.0 ** rng.integers(-8, 9, count - len(edge))
        with np.errstate(all="ignore"):
            return rng.permutation(np.concatenate((edge, body))).astype(np.float64).astype(dtype.numpy)
    low, high = int(dtype.min), int(dtype.max)
    picked = rng.integers(low, high, count, dtype=np.uint64 if dtype == "uint64" else np.int64, endpoint=True)
    small = rng.integers(max(low, -9), min(high, 70), count, endpoint=True)
    mixed = np.where(rng.random(count) < 0.5, picked, small.astype(picked.dtype))
    mixed[:4] = [low, high, 0, 1]
    return rng.permutation(mixed).astype(dtype.numpy)


def pointwise(name: str, inputs: tuple[np.ndarray[Any, Any], ...], make: Any) -> Case:
    """out[i] = make(*loads at i)."""
    buffers = tuple(Buffer(f"x{k}", DType.from_numpy(a), a.size) for k, a in enumerate(inputs))
    i = Var("i")
    value: Expr = make(*(Load(b, i) for b in buffers))
    out = Buffer("out", value.dtype, inputs[0].size)
    kernel = Kernel(name="k", inputs=buffers, outputs=(out,), body=For(i, out.size, Store(out, i, value)))
    return Case(name, kernel, inputs)


def binary_operators(dtype: DType) -> list[str]:
    """The operations of two operands that a type has."""
    if dtype.is_bool:
        return ["and", "or", "xor", "eq", "ne"]
    if dtype.is_float:
        return ["add", "sub", "mul", "div", "min", "max", *sorted(COMPARE)]
    return ["add", "sub", "mul", "min", "max", *INTEGER_DIVISIONS, *sorted(BITWISE), *sorted(COMPARE)]


def binary_cases() -> Iterator[Case]:
    for seed, dtype in enumerate(DTYPES):
        for op in binary_operators(dtype):
            pair = (values(dtype, seed), values(dtype, seed + 100))
            if op in INTEGER_DIVISIONS:
                pair = (pair[0], np.where(pair[1] == 0, np.ones_like(pair[1]), pair[1]))
            if op in ("shl", "shr"):
                shifts = np.random.default_rng(seed).integers(0, min(8 * dtype.itemsize + 4, dtype.max), pair[0].size)
                pair = (pair[0], shifts.astype(dtype.numpy))
            yield pointwise(f"{op}-{dtype}", pair, lambda a, b, op=op: Binary(op, a, b))


def unary_cases() -> Iterator[Case]:
    for seed, dtype in enumerate(DTYPES):
        operators = ["not"] if dtype.is_bool else ["neg"] if dtype.is_float else ["neg", "not"]
        for op in operators:
            yield pointwise(f"{op}-{dtype}", (values(dtype, seed),), lambda a, op=op: Unary(op, a))
        chosen = (values(BOOL, seed), values(dtype, seed), values(dtype, seed + 1))
        yield pointwise(f"select-{dtype}", chosen, lambda c, a, b: Select(c, a, b))


def cast_cases() -> Iterator[Case]:
    for source, target in product(DTYPES, DTYPES):
        x = values(source, 7)
        if source.is_float and not target.is_float:
            # what does not fit differs between machines in numpy; that it is defined is another test
            wide = x.astype(np.float64)
            fits = (wide > target.min - 1) & (wide < target.max + 1)
            x = np.where(fits, x, np.ones_like(x))
        if not target.can_represent_zero:  # which ml_dtypes takes for what float32 does not hold
            with np.errstate(over="ignore"):
                x = np.where(x.astype(np.float32) == 0, np.ones_like(x), x)
        yield pointwise(f"{source}-to-{target}", (x,), lambda a, target=target: Cast(target, a))


def call_cases() -> Iterator[Case]:
    for name, row in INSTRUCTIONS.items():
        if row.execution is not None or any(
            text.dialects == ("cuda",) for text in row.texts
        ):  # they have tests of their own
            continue
        if name in WORDS:  # tensor programs, which samples of their operators compare
            continue
        if row.takes[0] not in OPERAND_KIND_DTYPES or name.startswith("quarter"):  # instructions of vectors
            continue
        arity, kind = len(row.takes), "float" if row.gives == "bool" else row.takes[0]
        all_types = {"float": FLOATS, "integer": INTEGERS, "number": (*FLOATS, *INTEGERS)}
        types = all_types.get(kind) or tuple(OPERAND_KIND_DTYPES[kind])
        for seed, dtype in enumerate(types):
            inputs = tuple(values(dtype, seed + 10 * k) for k in range(arity))
            yield pointwise(f"{name}-{dtype}", inputs, lambda *a, name=name: Call(name, a))


def all_cases() -> list[Case]:
    """All of them."""
    return [*binary_cases(), *unary_cases(), *cast_cases(), *call_cases()]


def difference(case: Case, actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> str:
    """Return the first difference of a result as text; "" if there is none."""
    places = differing(actual, expected)
    if not places.size:
        return ""
    k = int(places[0])
    operands = ", ".join(str(x[k]) for x in case.inputs)
    return f"{case.name}({operands}) = {actual[k]}, not {expected[k]} ({places.size} wrong)"
