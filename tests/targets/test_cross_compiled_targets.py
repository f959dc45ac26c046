# SPDX-License-Identifier: Apache-2.0
"""Cross-compiled targets run by QEMU: operations, functions and networks give the right results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import aotc
from aotc.ir.diagnostics import AotcError
from aotc.relay.interpreter import evaluate
from aotc.relay.testing import mlp, squeezenet
from aotc.tir.interpreter import run_kernel
from aotc.tir.target import TARGETS
from tests.codegen.cases import all_cases, difference
from tests.e2e.projects import DIGITS, run
from tests.share import draw, share
from tests.targets.machines import FOREIGN, Machine, machine

Array = np.ndarray


VERSIONS = [
    pytest.param(name, marks=() if name == TARGETS[name].machine else pytest.mark.slow, id=name) for name in FOREIGN
]
"""Architectures; what a later version of one adds are products of bytes, which have tests of their own."""


@pytest.fixture(params=VERSIONS)
def foreign(request: pytest.FixtureRequest) -> Machine:
    """Each architecture that is not this machine's."""
    return machine(request.param)


@pytest.mark.parametrize("most", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_operations_agree_with_the_interpreter(foreign: Machine, tmp_path: Path, most: int) -> None:
    """At most `most` of them, drawn by seed, others on each machine."""
    cases = draw(all_cases(), most, foreign.target.name)
    results = foreign.run_kernels([(c.kernel, c.inputs) for c in cases], tmp_path, "-O1")
    problems = [difference(c, r[0], run_kernel(c.kernel, c.inputs)[0]) for c, r in zip(cases, results, strict=True)]
    assert not any(problems), "\n".join(filter(None, problems))


def close(found: Array, expected: Array) -> None:
    """Within a hundred thousandth of the standard deviation."""
    assert np.abs(found - expected).max() <= 1e-5 * expected.std()


@pytest.mark.parametrize("name", ["mlp", "squeezenet"])
def test_workloads(foreign: Machine, name: str, tmp_path: Path) -> None:
    shape, make = ((1, 28, 28), mlp) if name == "mlp" else ((3, 48, 48), squeezenet)
    module, params = make.get_workload(image_shape=shape, num_classes=10)
    # large, so that the classes' scores differ by more than rounding does
    x = 1e3 * np.random.default_rng(1).standard_normal((1, *shape)).astype(np.float32)
    model = aotc.compile(
        module, params=params, output=tmp_path / name, name=name, target=foreign.target, accuracy="strict", build=False
    )
    close(foreign.run_model(model, [x])[0], np.asarray(evaluate(module, x, params=params)))


def test_a_convolutional_network(foreign: Machine, tmp_path: Path) -> None:
    x = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
    model = aotc.compile(DIGITS, output=tmp_path / "digits", target=foreign.target, build=False)
    (expected,) = ReferenceEvaluator(str(DIGITS)).run(None, {"image": x})
    close(foreign.run_model(model, [x])[0], np.asarray(expected))


def test_a_trained_model(foreign: Machine, models: Path, tmp_path: Path) -> None:
    """Keyword spotting, with depthwise convolutions."""
    name = "kws_fp32"
    with np.load(models / f"{name}.npz") as file:
        ((x, expected),) = [
            (file[i], file[o]) for i in file for o in file if i.startswith("in/") and o.startswith("out/")
        ]
    model = aotc.compile(models / f"{name}.onnx", output=tmp_path / name, target=foreign.target, build=False)
    close(foreign.run_model(model, [x])[0], expected)


@pytest.mark.parametrize("target", share([name for name in FOREIGN if not TARGETS[name].is_scalar], 1))
def test_threads_share_runs(target: str, tmp_path: Path) -> None:
    """The pool, its waiting and the kernels' shares, in a program of the other architecture."""
    here = machine(target)
    module, params = squeezenet.get_workload(image_shape=(3, 48, 48), num_classes=10)
    model = aotc.compile(module, params=params, output=tmp_path / "net", name="net", target=target, build=False)
    run(["make", "-s", "-j2", f"CC={here.cc}", "CFLAGS=-O1", "build/libnet.a"], model.path)
    files = (Path(__file__).with_name("teams.c"), "runtime/aotc_rt.c", "runtime/aotc_pool.c", "build/libnet.a")
    run([*here.compiler, "-std=c99", "-static", "-pthread", "-Iinclude", *files, "-lm", "-o", "teams"], model.path)
    assert here.run(model.path / "teams") == "ok\n"


def test_the_cross_compiler_is_found(foreign: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library for another machine comes out, and is refused here by its name."""
    monkeypatch.delenv("CC", raising=False)
    model = aotc.compile(DIGITS, output=tmp_path / "digits", target=foreign.target, cflags=["-O1"])
    with pytest.raises(AotcError, match=f"compiled for {foreign.target.machine}, this machine is") as caught:
        model.session()
    assert caught.value.code == "load" and 'target="host"' in str(caught.value.diagnostics[0].hint)
