# SPDX-License-Identifier: Apache-2.0
"""Fused kernels, optimized by C compilers and unoptimized, have the interpreter's bits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.compiler_flags import OPTIMIZATION_FLAGS
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc import relay
from aotc.ir.dtype import DType
from aotc.relay.module import IRModule
from aotc.relay.type_inference import infer_module
from aotc.tir.expr import Binary, Buffer, Load, Select, Var, const
from aotc.tir.stmt import Block, Declare, For, Kernel, Store
from aotc.tir.target import Target
from tests.targets.fused_functions import LONGEST_ROW, Fused, fused
from tests.targets.machines import ELSEWHERE, PORTABLE, Machine, machine, native_targets
from tests.targets.random_kernels import Job, disagreements, lowered, of_fused

SEEDS, WIDE, AT_ONCE = 540, 2040, 60
"""Kernels from the first seeds are for every target, all of them for one."""
WAS_WRONG = (24, 45, 181, 221, 320)
"""Seeds of kernels that gcc 12 compiles wrongly for x86-64-v3 or -v4 where loads stay under conditions."""
SAMPLE = sorted({*WAS_WRONG, *range(0, SEEDS, 90), *range(SEEDS, WIDE, 150)})
VECTORS = [t for t in native_targets() if t != "c"]
TARGETS = (*native_targets(), *ELSEWHERE, *PORTABLE)
EVERY = [(t, first) for t in TARGETS for first in range(0, WIDE if t == "x86-64-v3" else SEEDS, AT_ONCE)]


def kernels(seeds: Iterable[int], here: Machine) -> list[Job]:
    return [of_fused(seed, here.target) for seed in seeds]


@pytest.mark.parametrize("target", VECTORS)
def test_some_fused_kernels(target: str, tmp_path: Path) -> None:
    here = machine(target)
    assert disagreements(kernels(SAMPLE, here), here, tmp_path) == []


@pytest.mark.parametrize("target", [*ELSEWHERE, *PORTABLE])
def test_some_fused_kernels_elsewhere(target: str, tmp_path: Path) -> None:
    here = machine(target)
    assert disagreements(kernels(SAMPLE[::4], here), here, tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("target", "first"), EVERY)
def test_all_fused_kernels(target: str, first: int, tmp_path: Path) -> None:
    here = machine(target)
    assert disagreements(kernels(range(first, first + AT_ONCE), here), here, tmp_path) == []


def test_the_comparison_finds_what_a_compiler_does_wrong(tmp_path: Path) -> None:
    """Arithmetic that may not be rearranged is."""
    here = machine("c")
    jobs = kernels(range(16), here)
    hidden = ("-U__ASSOCIATIVE_MATH__", "-U__RECIPROCAL_MATH__", "-U__NO_SIGNED_ZEROS__")  # kernels would refuse it
    flags = ("-funsafe-math-optimizations", *hidden)
    names = {text.split(": ")[1] for text in disagreements(jobs, here, tmp_path, *flags)}
    assert 0 < len(names) < len(jobs)


def test_the_corpus_is_what_it_says() -> None:
    made: list[Fused] = [fused(seed) for seed in range(60)]
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(fused(7).inputs, made[7].inputs, strict=True))
    rows = {f.function.ret_type.static_shape[-1] for f in made}  # type: ignore[union-attr]
    assert min(rows) == 1 and max(rows) <= LONGEST_ROW + 1 and len(rows) > 12


@pytest.mark.parametrize("target", VECTORS)
def test_a_pool_a_sum_and_a_slope_for_each_element(target: str) -> None:
    """One kernel with rows of 4, compiled as users compile it."""
    rng = np.random.default_rng(0)
    x, other, slope = (rng.standard_normal(s).astype(np.float32) for s in ((1, 3, 8, 8), (1, 3, 4, 4), (3, 4, 4)))
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Add", ["p", "a"], ["q"]),
        helper.make_node("PRelu", ["q", "s"], ["y"]),
    ]
    types = {"x": x.shape, "a": other.shape, "y": other.shape}
    x_type, a_type, y_type = (helper.make_tensor_value_info(n, TensorProto.FLOAT, t) for n, t in types.items())
    graph = helper.make_graph(nodes, "net", [x_type, a_type], [y_type], [numpy_helper.from_array(slope, "s")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (found,) = aotc.compile(model, target=target, cache=False).session().run(None, {"x": x, "a": other})
    q = x.reshape(1, 3, 4, 2, 4, 2).max(axis=(3, 5)) + other
    np.testing.assert_array_equal(found, np.where(q < 0, q * slope, q))


def windows_with_channels_last(seed: int, target: Target) -> Job:
    """A padded maximum over windows: loads of neighbors under conditions, which gcc may do under masks."""
    rng = np.random.default_rng(seed)
    size, channels = int(rng.integers(2, 5)), int(rng.integers(1, 40))
    shape = (1, int(rng.integers(3, 9)), int(rng.integers(3, 9)), channels)
    x = relay.var("x", shape=shape, dtype="float32")
    pads = (size - 1) // 2, size // 2
    pool = relay.nn.max_pool2d(x, pool_size=(size, size), padding=(pads[0],) * 2 + (pads[1],) * 2, layout="NHWC")
    function = infer_module(IRModule.from_expr(relay.Function([x], relay.nn.relu(pool)))).main
    made = lowered(function, f"pool{seed}", target)
    return made, [rng.standard_normal(shape).astype(np.float32)]


@pytest.mark.parametrize("target", VECTORS)
def test_windows_with_channels_last(target: str, tmp_path: Path) -> None:
    here = machine(target)
    assert disagreements([windows_with_channels_last(seed, here.target) for seed in range(6)], here, tmp_path) == []


def guarded_kernel(size: int) -> Kernel:
    """y[i] = t < 0 ? s[i] : t, where t is x[i] + 1, or x[i] * 3 in the second half of each four.

    s is shorter than the loop says, so that its loads stay under the condition.
    """
    f32 = DType("float32")
    x, s, y, i = Buffer("x", f32, size), Buffer("s", f32, size - 3), Buffer("y", f32, size), Var("i")

    def two(first: int, op: str, by: float) -> For:
        j, t = Var("j"), Var("t", f32)
        at = i * 4 + j
        made = Declare(t, Binary(op, Load(x, at), const(by, "float32")))
        store = Store(y, at, Select(t < const(0.0, "float32"), Load(s, at), t))
        return For(j, const(first + 2), Block((made, store)), begin=const(first))

    body = For(i, const(size // 4), Block((two(0, "add", 1.0), two(2, "mul", 3.0))))
    return Kernel(name="guarded", inputs=(x, s), outputs=(y,), body=body)


@pytest.mark.parametrize("target", [*VECTORS, *ELSEWHERE])
def test_loads_under_a_condition(target: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, s = rng.standard_normal((2, 64)).astype(np.float32)
    x[-3:] = 1.0
    here = machine(target)
    (found,) = here.run_kernels([(guarded_kernel(64), [x, s[:-3]])], tmp_path, *OPTIMIZATION_FLAGS)[0]
    t = np.where(np.arange(64) % 4 < 2, x + np.float32(1), x * np.float32(3))
    np.testing.assert_array_equal(found, np.where(t < 0, s, t))
