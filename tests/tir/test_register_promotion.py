# SPDX-License-Identifier: Apache-2.0
"""Partial results of reductions stay in registers, with equal bits in the interpreter and in C."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Accuracy, OpDef, Sample
from aotc.tir.expr import Buffer, Load, Var, as_expr, const, maximum
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.loops.loop_vectorization import vectorize_kernel
from aotc.tir.stmt import Block, For, If, Kernel, Store, forall, loop_nest, walk_stmts
from aotc.tir.target import X86_64_V3, Target, get_target
from tests.codegen.batch import gnu_c_for, run_batch
from tests.codegen.bit_comparison import same
from tests.ops.harness import Array, Job, assert_agrees, flat, kernel_job
from tests.share import share
from tests.targets.machines import native_targets

SINGLE = DType("float32")
EXTENTS = (33, 275)
NUMBERS = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
CASES = [(name, dtype) for name in ("sum", "prod", "min", "max", "mean", "argmax", "argmin") for dtype in NUMBERS]
CASES += [(name, "bool") for name in ("any", "all")] + [
    (name, "float32") for name in ("nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.l2_normalize", "variance")
]
ATTRIBUTES: dict[str, dict[str, Any]] = {"nn.l2_normalize": {"eps": 1e-5, "axis": (1,)}}
VECTORS = [t for t in native_targets() if t != "c"]


def accumulated(extent: int, width: int, *, kind: str = "reduction", reads_first: bool = False) -> Kernel:
    """y = the sum of rows of `width` elements, in scratch of as many, whose first one each iteration may change."""
    x, y = Buffer("x", SINGLE, extent * width), Buffer("y", SINGLE, width)
    row = Buffer("row", SINGLE, width + 16, "stack", private=True)
    k, lanes = Var("k"), [Var("l") for _ in range(3)]
    first = forall(lanes[0], width, Store(row, lanes[0], const(0, SINGLE)))
    added = forall(lanes[1], width, Store(row, lanes[1], Load(row, lanes[1]) + Load(x, k * width + lanes[1])))
    last = forall(lanes[2], width, Store(y, lanes[2], Load(row, lanes[2])))
    inner = Block((added, Store(row, as_expr(0), Load(row, as_expr(3))))) if reads_first else added
    return Kernel(
        name="k", inputs=(x,), outputs=(y,), body=Block((first, For(k, extent, inner, kind=kind), last)), stack=(row,)
    )


def stores_in_loops(kernel: Kernel) -> int:
    """Stores to scratch in loops that go on with it."""
    scratch = {*kernel.stack, *kernel.workspace}
    going_on = [s for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind != "independent"]
    return sum(isinstance(s, Store) and s.buffer in scratch for loop in going_on for s in walk_stmts(loop.body))


def kept(kernel: Kernel) -> bool:
    made = vectorize_kernel(kernel, X86_64_V3)
    verify(made)
    data = np.random.default_rng(0).standard_normal(kernel.inputs[0].size).astype(np.float32)
    assert same(run_kernel(made, [data])[0], run_kernel(kernel, [data])[0])
    return stores_in_loops(made) == 0


def test_rows_of_a_few_vectors_stay_in_registers() -> None:
    assert kept(accumulated(5, 32))
    assert kept(accumulated(5, 12))  # a vector of 8 and one of 4
    assert kept(accumulated(5, 32, kind="serial"))
    assert not kept(accumulated(5, 13))  # and one element alone
    assert not kept(accumulated(5, 72))  # more vectors than registers are for


def test_rows_that_are_read_in_other_parts_stay_in_memory() -> None:
    assert not kept(accumulated(5, 32, kind="serial", reads_first=True))


def test_rows_that_each_iteration_fills_first_stay_in_memory() -> None:
    """A register in front of the loop would begin with what nobody stored."""
    kernel, k, lanes = accumulated(5, 32), Var("k"), [Var("l") for _ in range(3)]
    (row,), (x,), (y,) = kernel.stack, kernel.inputs, kernel.outputs
    filled = forall(lanes[0], 32, Store(row, lanes[0], Load(x, k * 32 + lanes[0])))
    doubled = forall(lanes[1], 32, Store(row, lanes[1], Load(row, lanes[1]) + Load(row, lanes[1])))
    used = forall(lanes[2], 32, Store(y, lanes[2], Load(row, lanes[2])))
    assert not kept(replace(kernel, body=For(k, 5, Block((filled, doubled, used)), kind="serial")))


def test_loops_inside_of_branches_and_loops_are_found() -> None:
    kernel, n, lane = accumulated(5, 32), Var("n"), Var("l")
    (row,), (x,), (y,) = kernel.stack, kernel.inputs, kernel.outputs
    inside = loop_nest([(n, 3)], If(n < 2, kernel.body))
    assert kept(replace(kernel, body=inside))
    greatest = Store(row, lane, maximum(Load(row, lane), Load(x, n * 32 + lane)))
    again = For(n, 5, forall(lane, 32, greatest), kind="reduction")
    assert kept(replace(kernel, body=Block((kernel.body, again, forall(lane, 32, Store(y, lane, Load(row, lane)))))))


def jobs(name: str, dtype: str, target: Target) -> Iterator[tuple[Job, OpDef, Sample]]:
    """Rows of several lengths, with special values."""
    op, rng = OPERATORS_BY_NAME[name], np.random.default_rng(0)
    for extent in EXTENTS:
        data = rows(dtype, extent, rng)
        more = tuple(rng.standard_normal(extent).astype(data.dtype) for _ in range(2 if name == "nn.layer_norm" else 0))
        if name == "variance":
            more = (data.mean(1, keepdims=True),)
        attrs = op.attrs(**ATTRIBUTES.get(name, {} if "." in name else {"axis": (1,)}))
        sample = Sample(args=(data, *more), attrs=attrs)
        yield kernel_job(op, sample, target), op, sample


def rows(dtype: str, extent: int, rng: np.random.Generator) -> Array:
    kind = DType(dtype)
    if kind.is_bool:
        return rng.random((4, extent)) < np.array([[0], [1], [0.01], [0.99]])
    if kind.is_integer:
        facts = np.iinfo(kind.numpy)
        return rng.integers(facts.min, facts.max, (4, extent), kind.numpy, endpoint=True)
    data = rng.standard_normal((4, extent))
    data[1, rng.integers(extent)] = np.nan
    data[2] = np.where(rng.random(extent) < 0.5, 0.0, -0.0)
    return data.astype(kind.numpy)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("target", VECTORS)
@pytest.mark.parametrize("part", share(range(12), 1))
def test_reductions_have_the_same_bits(part: int, target: str, tmp_path: Path) -> None:
    machine = get_target(target)
    found = [job for name, dtype in CASES[part::12] for job in jobs(name, dtype, machine)]
    wide = [(vectorize_kernel(job.kernel, machine), job.inputs) for job, _, _ in found]
    compiled = run_batch(wide, tmp_path, *machine.cflags, dialect=gnu_c_for(machine))
    for (job, op, sample), (kernel, _), outputs in zip(found, wide, compiled, strict=True):
        verify(kernel)
        (expected,), (seen,), (c,) = run_kernel(job.kernel, job.inputs), run_kernel(kernel, job.inputs), outputs
        assert same(seen, expected), f"{kernel.name}: interpreted"
        assert same(c, expected), f"{kernel.name}: compiled"
        if op.expand is None:
            (exact,) = flat(op.reference(sample.attrs, *sample.args))
            assert_agrees(c.reshape(exact.shape), exact, Accuracy.ROUNDING)
