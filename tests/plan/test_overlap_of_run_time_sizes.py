# SPDX-License-Identifier: Apache-2.0
"""Distances at which an output may overlap an input where extents are parameters: compared with the order of the
accesses for all values of the parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from aotc.ir import DType
from aotc.tir import Block, Buffer, Expr, For, Load, Stmt, Store, Var
from aotc.tir.expr import Broadcast, loads_in
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.plan.inplace_overlap import min_overlap_distance_bytes
from aotc.tir.stmt import If, Kernel, Number, rebuild_stmt
from tests.share import share
from tests.tir.parametric_nests import ParametricNestGenerator
from tests.tir.random_accesses import value_of_expr

NESTS_PER_TEST = 5
FIRST_SEEDS = range(0, 4_000, NESTS_PER_TEST)
MOST_ACCESSES = 3000


class TooManyAccessesError(Exception):
    """Raised where a kernel accesses memory more often than `MOST_ACCESSES` times."""


def kernel_of_seed(seed: int) -> tuple[Kernel, dict[Var, range]]:
    """Return a kernel of two random nests that store to an output and load from an input, and its parameters."""
    pair = ParametricNestGenerator(seed).pair()
    rng = np.random.default_rng(seed)
    types = [DType("int8"), DType("float32")] if seed % 4 == 0 else [DType(["int8", "int16", "float32"][seed % 3])] * 2
    source, output = Buffer("x", types[0], 1 << 20), Buffer("y", types[1], 1 << 20)
    parameters = pair.first.outer

    def moved(stmt: Stmt, shift: Expr | int) -> Stmt:
        if not isinstance(stmt, Store):
            return rebuild_stmt(stmt, lambda s: moved(s, shift))
        index = next((load.index for load in loads_in(stmt.value)), stmt.index + shift)
        value = Load(source, index).astype(output.dtype)
        return Store(output, stmt.index, Broadcast(value, stmt.value.lanes) if stmt.value.lanes > 1 else value)

    shifts = [0, 0, 1, 5, *(var * 1 for var in parameters)]
    loops = [moved(nest.loop, shifts[rng.integers(len(shifts))]) for nest in (pair.first, pair.second)]
    body = Block(loops) if seed % 5 == 0 else loops[0]
    numbers = tuple(Number(var, values[0], values[-1]) for var, values in parameters.items())
    return Kernel(name="k", inputs=(source,), outputs=(output,), body=body, numbers=numbers), parameters


def accesses_in_order(stmt: Stmt, values: dict[Var, int]) -> Iterator[tuple[str, int, int]]:
    """Yield the loads of the input and the stores to the output in their order: "load" or "store", the first element,
    and the number of elements."""
    match stmt:
        case Block(stmts=stmts):
            for inner in stmts:
                yield from accesses_in_order(inner, values)
        case For(var=var):
            for n in range(value_of_expr(stmt.begin, values), value_of_expr(stmt.end, values), stmt.step):
                yield from accesses_in_order(stmt.body, {**values, var: n})
        case If(cond=cond, then=then):
            if value_of_expr(cond, values):
                yield from accesses_in_order(then, values)
        case Store(index=index, value=value):
            for load in loads_in(value):
                yield "load", value_of_expr(load.index, values), 1
            yield "store", value_of_expr(index, values), value.lanes


def needed_distance(kernel: Kernel, values: Mapping[Var, int]) -> float:
    """Return the least number of bytes by which the output must start before the input, so that no load reads what
    has been overwritten."""
    stored_bytes, loaded_bytes = kernel.outputs[0].dtype.itemsize, kernel.inputs[0].dtype.itemsize
    end, needed = -math.inf, -math.inf
    for count, (kind, first, lanes) in enumerate(accesses_in_order(kernel.body, {**values})):
        if count > MOST_ACCESSES:
            raise TooManyAccessesError
        if kind == "store":
            end = max(end, (first + lanes) * stored_bytes)
        else:
            needed = max(needed, end - first * loaded_bytes)
    return needed


def needed_by_some_values(kernel: Kernel, parameters: Mapping[Var, range]) -> float | None:
    """Return the distance that the order of accesses needs for some values of the parameters; None if it is not
    known."""
    values: list[dict[Var, int]] = [{}]
    for var, numbers in parameters.items():
        values = [{**v, var: n} for v in values for n in numbers]
    try:
        return max(needed_distance(kernel, v) for v in values)
    except (TooManyAccessesError, ZeroDivisionError):
        return None


@pytest.mark.parametrize("first_seed", share(FIRST_SEEDS, 1))
def test_distances_hold_for_all_values_of_the_parameters(first_seed: int) -> None:
    counts = Counter[str]()
    for seed in range(first_seed, first_seed + NESTS_PER_TEST):
        kernel, parameters = kernel_of_seed(seed)
        needed = needed_by_some_values(kernel, parameters)
        if needed is None:
            continue
        least = min_overlap_distance_bytes(kernel, kernel.outputs[0], kernel.inputs[0])
        assert least is None or least >= needed, f"seed {seed}: {least} bytes, {needed} are needed"
        counts["near"] += least is not None and least <= max(needed, 0) + 8
        counts["kernels"] += 1
    assert counts["near"] >= 0.3 * counts["kernels"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("for i in 0..m { for j in 0..n { y[n * i + j] = x[n * i + j] } }", 0),
        ("for i in 0..m { for j in 0..n { y[n * i + j] = x[(n + 2) * i + j + 2] } }", -8),
        ("for i in 0..m { y[i] = 0.0\n for j in 0..n { y[i] = y[i] + x[n * i + j] } }", 4),
        ("for i in 0..m { if x[i] < 0.0 { y[i] = x[i + 1] } }", 0),
        # the last row reads the input after all rows before it are written
        ("for i in 0..m { for j in 0..n { y[n * i + j] = x[j] } }", 4 * 16 * 7),
        # an element that all iterations read stays whole
        ("for i in 0..m { y[i] = x[8] }", -4),
        ("for i in 0..n { y[i] = x[8] }", 4 * 7),
        # the end of the loop is read in each iteration
        ("for i in 0..m { for j in 0..int64(x[0]) { y[i] = x[i] } }", 4 * 8),
    ],
)
def test_distances_of_typical_loops(body: str, expected: int) -> None:
    kernel = parse_kernel(
        f"""kernel "k" {{
          input x: float32[256]
          output y: float32[256]
          number m: int64 in [1, 8]
          number n: int64 in [1, 16]
          {body}
        }}"""
    )
    least = min_overlap_distance_bytes(kernel, kernel.outputs[0], kernel.inputs[0])
    assert least is not None and expected <= least <= max(expected + 4, 1.05 * expected)
