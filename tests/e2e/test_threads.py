# SPDX-License-Identifier: Apache-2.0
"""Compiled models on several threads: equal bits for any number of threads."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from aotc.driver.compile import compile
from aotc.driver.pipeline import CompiledModel
from aotc.ir.diagnostics import AotcError
from aotc.ir.types import TensorType
from aotc.relay.expr import Constant, Expr, Function, Var
from aotc.relay.module import IRModule
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import dense
from aotc.relay.op.elementwise_unary import relu
from aotc.relay.op.pool import global_avg_pool2d, max_pool2d
from aotc.relay.op.shape import batch_flatten
from aotc.relay.op.softmax import softmax
from aotc.runtime.session import load

RNG = np.random.default_rng(0)


def weight(*shape: int) -> Constant:
    return Constant((RNG.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))


def network() -> IRModule:
    """Direct, depthwise, pointwise and Winograd convolutions, a pool, a matrix product, a softmax."""
    x = body = Var("image", TensorType((1, 3, 61, 45)))
    body = relu(conv2d(body, weight(40, 3, 3, 3), strides=(2, 2), padding=(1, 1)))  # type: ignore[assignment]
    body = relu(conv2d(body, weight(40, 1, 3, 3), padding=(1, 1), groups=40))  # type: ignore[assignment]
    body = relu(conv2d(body, weight(72, 40, 1, 1)))  # type: ignore[assignment]
    for _ in range(2):
        body = relu(conv2d(body, weight(72, 72, 3, 3), padding=(1, 1)))  # type: ignore[assignment]
    body = max_pool2d(body, (3, 3), (2, 2))  # type: ignore[assignment]
    flat: Expr = batch_flatten(global_avg_pool2d(relu(conv2d(body, weight(256, 72, 1, 1)))))
    return IRModule({"main": Function((x,), softmax(dense(flat, weight(2000, 256))))})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    return compile(network(), output=tmp_path_factory.mktemp("threads") / "net", name="net", target="x86-64-v3")


def image(seed: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).standard_normal((1, 3, 61, 45)).astype(np.float32)}


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_the_same_bits(model: CompiledModel, threads: int) -> None:
    alone, shared = load(model.path), load(model.path, threads=threads)
    assert alone.threads is None
    assert shared.threads is not None
    assert shared.threads.count == threads
    assert shared.workspace_bytes >= alone.workspace_bytes
    (expected,) = alone.run(None, image())
    binding = shared.bind(image())
    for _ in range(5):
        binding.run()
        np.testing.assert_array_equal(next(iter(binding.outputs.values())), expected)


def test_long_sums_give_the_same_bits(tmp_path: Path) -> None:
    x = Var("x", TensorType((1, 40, 40, 48)))
    module = IRModule({"main": Function((x,), global_avg_pool2d(relu(x), layout="NHWC"))})
    made = compile(module, output=tmp_path / "mean", name="mean", target="x86-64-v3")
    given = {"x": np.random.default_rng(1).standard_normal((1, 40, 40, 48)).astype(np.float32)}
    (expected,) = load(made.path).run(None, given)
    np.testing.assert_allclose(expected, np.maximum(given["x"], 0).mean((1, 2), keepdims=True), rtol=1e-5)
    for threads in (2, 3, 5):
        (found,) = load(made.path, threads=threads).run(None, given)
        np.testing.assert_array_equal(found, expected)


def test_sessions_share_threads(model: CompiledModel) -> None:
    first = load(model.path, threads=2)
    second = load(model.path, threads=first.threads)  # type: ignore[arg-type]
    assert second.threads is first.threads
    (expected,) = load(model.path).run(None, image())
    wrong: list[str] = []

    def work(session: object) -> None:
        for _ in range(10):
            (found,) = session.run(None, image())  # type: ignore[attr-defined]
            if not (found == expected).all():
                wrong.append("differs")

    callers = [threading.Thread(target=work, args=(s,)) for s in (first, second)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.parametrize("threads", [0, -1, 65, 1000])
def test_numbers_that_cannot_be_had(model: CompiledModel, threads: int) -> None:
    with pytest.raises(AotcError, match=f"threads must be 1 to 64, got {threads}"):
        load(model.path, threads=threads)


def test_a_model_without_shared_kernels_runs_alone(tmp_path: Path) -> None:
    made = compile(network(), output=tmp_path / "net", name="net", target="x86-64-v3", threads=False)
    assert not (made.path / "runtime" / "aotc_pool.c").exists()
    session = load(made.path, threads=4)
    assert session.threads is None
    (found,) = session.run(None, image())
    assert found.shape == (1, 2000)


def test_scalar_targets_have_no_threads(tmp_path: Path) -> None:
    made = compile(network(), output=tmp_path / "net", name="net", target="c", build=False)
    assert not list(made.path.rglob("*pool*"))
    assert "aotc_team" not in (made.path / "src" / "net.c").read_text(encoding="utf-8")


def test_warnings_and_make(model: CompiledModel, tmp_path: Path) -> None:
    """The project builds by itself, cleanly as C and C++; a program of one thread needs none of the system's."""
    flags = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-march=x86-64-v3", "-Iinclude", "-Isrc"]
    for compiler in (["gcc", "-std=c99", "-pedantic"], ["g++", "-std=c++17", "-x", "c++"]):
        for source in ("src/net.c", "src/net_threads.c", "runtime/aotc_pool.c"):
            command = [*compiler, *flags, "-c", source, "-o", str(tmp_path / "unit.o")]
            subprocess.run(command, cwd=model.path, check=True)
    subprocess.run(
        ["make", f"BUILD={tmp_path}/build", "-j2", "static"], cwd=model.path, check=True, capture_output=True
    )
    symbols = subprocess.run(["nm", tmp_path / "build" / "libnet.a"], capture_output=True, text=True, check=True)
    assert "pthread" not in symbols.stdout


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no processor sets of threads")
def test_runs_leave_the_processor_sets_of_threads_as_they_are(model: CompiledModel) -> None:
    """A worker that shares a processor with the caller moves, and may use the same processors as before."""
    before = set(Path("/proc/self/task").iterdir())
    session = load(model.path, threads=2)
    expected = session.run(None, image())[0]
    workers = [int(task.name) for task in set(Path("/proc/self/task").iterdir()) - before]
    allowed = os.sched_getaffinity(0)
    first = {min(allowed)}
    try:
        os.sched_setaffinity(0, first)
        for processors in (first, allowed):
            for worker in workers:
                os.sched_setaffinity(worker, processors)
            for _ in range(20):
                np.testing.assert_array_equal(session.run(None, image())[0], expected)
            assert all(os.sched_getaffinity(worker) == processors for worker in workers)
    finally:
        os.sched_setaffinity(0, allowed)
