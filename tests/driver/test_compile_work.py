# SPDX-License-Identifier: Apache-2.0
"""Work of the compiler, in counted calls, and size of generated code, for graphs that could need much of both."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from aotc_codegen.c.c_dialects import GNU_C
from aotc_codegen.c.kernel_files import print_kernels

import aotc
from aotc import relay
from aotc.driver.pipeline import Compilation
from aotc.ir.transform import PassContext
from aotc.relay.expr import Expr, Function, Var
from aotc.relay.interpreter import evaluate
from aotc.tir.stmt import For, walk_stmts
from aotc.tir.target import get_target
from tests.call_counts import calls_of, doubles
from tests.share import share

KERNEL_BYTES = 1 << 17
"""Largest size of the C text of a kernel, whatever its number of inputs."""


def tensor(name: str, *shape: int) -> Var:
    return relay.var(name, shape=shape)


def weights(*shape: int) -> Expr:
    return relay.const(np.random.default_rng(0).normal(0, 0.1, shape).astype("float32"))


def slices(count: int) -> Function:
    x = tensor("x", 4, 16 + count)
    parts = [relay.strided_slice(x, begin=[0, k], end=[4, k + 16]) for k in range(count)]
    return Function([x], relay.concatenate(parts, axis=1))


def harmonics(count: int) -> Function:
    """Slices, each padded to one length, side by side: what stands in front of convolutions over pitches."""
    x = tensor("x", 1, 6, 40 + count, 1)
    moved = [relay.strided_slice(x, begin=[0, 0, k, 0], end=[1, 6, 40 + count, 1]) for k in range(count)]
    parts = [relay.nn.pad(y, pad_width=((0, 0), (0, 0), (0, k), (0, 0))) for k, y in enumerate(moved)]
    return Function([x], relay.transpose(relay.concatenate(parts, axis=3), axes=[0, 3, 1, 2]))


def pads(count: int) -> Function:
    """Each is padded and joined with a row of itself."""
    x = y = tensor("x", 2, 8, 8)
    for k in range(count):
        y = relay.nn.pad(y, pad_width=((0, 0), (1, 0), (0, 1)), pad_value=float(k))
        row = relay.strided_slice(y, begin=[0, 0, 0], end=[2, 1, 9 + k])
        y = relay.concatenate([y, relay.nn.pad(row, pad_width=((0, 0), (1, 0), (0, 0)))], axis=1)
    return Function([x], y)


def reshapes(count: int) -> Function:
    """Indices of an element through all of them would be three times as long for each."""
    x = y = tensor("x", 4, 6, 10)
    for k in range(count):
        y = relay.transpose(relay.reshape(y, newshape=[(6, 4, 10), (10, 6, 4)][k % 2]), axes=[2, 0, 1])
    return Function([x], y)


def shifts(count: int) -> Function:
    """A sum of terms that begin at different places along three axes: pieces of all would be without number."""
    x, y = tensor("x", 40, 40, 40), None
    for k in range(1, count + 1):
        inside = relay.strided_slice(x, begin=[0, 0, 0], end=[40 - k] * 3)
        moved = relay.nn.pad(inside, pad_width=((k, 0), (k, 0), (k, 0)))
        y = moved if y is None else relay.add(y, moved)
    return Function([x], y)


def inputs(count: int) -> Function:
    params = [tensor(f"x{k}", 1, 3) for k in range(count)]
    return Function(params, relay.concatenate(params, axis=0))


def branches(count: int) -> Function:
    x, params = tensor("x", 1, 8), [tensor(f"w{k}", 8, 8) for k in range(count)]
    return Function([x, *params], relay.concatenate([relay.nn.relu(relay.nn.dense(x, w)) for w in params], axis=1))


def square(size: int, channels: int = 2) -> Function:
    return windowed((size, size), (32, 48), channels)


def wide(size: int, stride: int = 1) -> Function:
    return windowed((1, size), (1, size + 60), 1, stride)


def strided(size: int) -> Function:
    return wide(size, 2)


def windowed(kernel: tuple[int, int], image: tuple[int, int], channels: int, stride: int = 1) -> Function:
    x, padding = tensor("x", 1, channels, *image), tuple(k // 2 for k in kernel)
    y = relay.nn.conv2d(
        x, weights(4, channels, *kernel), channels=4, kernel_size=kernel, padding=padding, strides=(stride, stride)
    )
    return Function([x], y)


def dilations(count: int) -> Function:
    x, w, found = tensor("x", 1, 1, 80), weights(2, 1, 3), []
    for d in range(1, count + 1):
        found.append(relay.nn.conv1d(x, w, channels=2, kernel_size=(3,), padding=(d, d), dilation=(d,)))
    return Function([x], relay.concatenate(found, axis=1))


def compilation(function: Function, target: str = "x86-64-v4") -> Compilation:
    module = relay.transform.InferType()(aotc.IRModule.from_expr(function))
    config = {"compile.cache": False, "compile.tuning": False}
    return Compilation(module, get_target(target), "net", PassContext(3, config=config), cache=False)


def compiling(build: Callable[[int], Function], target: str) -> Callable[[int], Callable[[], object]]:
    """What prepares the work from a graph to the text of its kernels, for a size."""

    def prepare(size: int) -> Callable[[], object]:
        work = compilation(build(size), target)
        return lambda: print_kernels(work.scheduled_programs[0].distinct_kernels, "net", GNU_C)

    return prepare


SIZES = [
    (slices, 32, "c"),
    (harmonics, 24, "c"),
    (pads, 8, "c"),
    (reshapes, 8, "c"),
    (inputs, 125, "c"),
    (branches, 30, "c"),
    (square, 16, "x86-64-v4"),
    (wide, 500, "x86-64-v4"),
    (strided, 500, "x86-64-v4"),
    (dilations, 4, "c"),
]


@pytest.mark.parametrize(("build", "size", "target"), share(SIZES, 4))
def test_work_grows_with_the_graph(build: Callable[[int], Function], size: int, target: str) -> None:
    assert doubles(compiling(build, target), size)


@pytest.mark.slow
@pytest.mark.parametrize(("build", "size"), [(inputs, 1000), (branches, 250), (dilations, 32)])
def test_work_grows_with_large_graphs(build: Callable[[int], Function], size: int) -> None:
    assert doubles(compiling(build, "c"), size)


def integer_lstm(steps: int, hidden: int = 80) -> Function:
    """A layer whose gates are polynomials of registers: written out, they are trees of millions of nodes."""
    columns = 4 * hidden
    shapes = {
        "data": ((steps, 1, columns), "int16"), "recurrent": ((columns, hidden), "int8"),
        "bias": ((columns,), "int32"), "multiplier": ((5,), "int32"), "shift": ((5,), "int32"),
        "h": ((1, hidden), "int8"), "c": ((1, hidden), "int16"),
    }  # fmt: skip
    given = [relay.var(name, shape=shape, dtype=dtype) for name, (shape, dtype) in shapes.items()]
    return Function(given, relay.qnn.op.lstm_by_series(*given))


def test_registers_are_not_written_out_as_trees() -> None:
    """It takes about 800,000 calls, and took 80 million while shared parts were visited for each of their users."""
    assert calls_of(compiling(integer_lstm, "x86-64-v4")(4)) < 2_000_000


LARGE = [
    (slices, 64),
    (harmonics, 64),
    (pads, 16),
    (reshapes, 48),
    (shifts, 12),
    (square, 31),
    (wide, 1000),
    (strided, 1000),
]


@pytest.mark.parametrize(("build", "size", "target"), share([(*c, t) for c in LARGE for t in ("c", "x86-64-v4")], 6))
def test_the_code_of_a_kernel_is_bounded(build: Callable[[int], Function], size: int, target: str) -> None:
    [program] = compilation(build(size), target).scheduled_programs
    for kernel in print_kernels(program.distinct_kernels, "net", GNU_C).kernels:
        assert len(kernel.text) <= KERNEL_BYTES
    for body in (kernel.body for kernel in program.distinct_kernels):
        assert sum(isinstance(s, For) for s in walk_stmts(body)) <= get_target(target).budget.pieces


SMALL = [
    (slices, 12),
    (harmonics, 12),
    (pads, 4),
    (reshapes, 12),
    (shifts, 5),
    (square, 31),
    (wide, 300),
    (strided, 301),
]


@pytest.mark.parametrize(("build", "size"), share(SMALL, 2, always=[(strided, 301)]))
def test_results_are_those_of_the_definitions(build: Callable[[int], Function], size: int) -> None:
    function = build(size)
    rng = np.random.default_rng(0)
    values = [rng.normal(size=p.checked_type.static_shape).astype("float32") for p in function.params]
    session = compilation(function, "x86-64-v3").emit_project_and_build_library().session()
    [found] = session.run(None, dict(zip((p.name for p in function.params), values, strict=True)))
    np.testing.assert_allclose(found, evaluate(function, *values), rtol=1e-4, atol=1e-5)
