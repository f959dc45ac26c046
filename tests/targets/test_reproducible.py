# SPDX-License-Identifier: Apache-2.0
"""Compilations for `reproducible` results: equal bits on every target, whichever tilings and number of threads.

The interpreter of tensor programs runs the scheduled kernels of all targets, those without a machine here, too; then
compiled libraries give what it gives.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from aotc.checking.inputs import input_types, random_inputs
from aotc.driver.compilation import Compilation
from aotc.driver.compile import CompileOptions
from aotc.relay import op as operators
from aotc.relay.module import IRModule
from aotc.relay.op.opdef import OpDef, Sample
from aotc.tir.interp import run_kernel
from aotc.tir.passes import kernel_passes
from aotc.tir.schedule.contraction.choice import Site, choosing
from aotc.tir.stmt import Kernel
from aotc.tir.target import TARGETS, Budget, Target, Tiles, in_order
from tests.fuzz.execute import run_program
from tests.golden.cases import KERNELS, PROJECTS, Case, tensor
from tests.ops.harness import kernel_job
from tests.share import share
from tests.targets.machines import FOREIGN, machine, native_targets
from tests.targets.shapes import Model, parts
from tests.tir.contractions import conv, matmul

Array = np.ndarray[Any, Any]
#: Fits no processor: whatever a schedule asks of a target differs from the others.
ODD = replace(
    TARGETS["x86-64-v3"], name="odd", vector_bytes=128, registers=11, fma_bytes=16, l1=4 << 10, l2=16 << 10,
    line=128, store_cost=1, tiles=Tiles(latency=9), threads=None,
    budget=Budget(unrolled=60, row_bytes=64, index_nodes=20, stack_bytes=64),
)  # fmt: skip
MACHINES = [t for t in TARGETS.values() if not t.versions] + [ODD]
AT_ONCE = 45
NETWORKS = {
    **KERNELS,
    **PROJECTS,
    "long": Case("long", "c", f"%x: {tensor(3000, 8)}", "nn.softmax(multiply(mean(%x, axis=[0]), sum(%x, axis=[0])))"),
}


def bits(arrays: Sequence[Array]) -> list[bytes]:
    """What decides whether results are equal: all NaN are."""
    wide = (np.asarray(a, np.float32 if a.dtype.kind == "V" else a.dtype) for a in arrays)
    return [(np.where(np.isnan(a), np.full_like(a, np.nan), a) if a.dtype.kind == "f" else a).tobytes() for a in wide]


def finished(kernel: Kernel, target: Target) -> Kernel:
    """The kernel as it is printed."""
    for item in kernel_passes(target):
        kernel = item.kernel(kernel)
    return kernel


def samples() -> list[tuple[OpDef, Sample]]:
    """Those of all operators, in an order that spreads families over shares."""
    found = [(op, sample) for op in operators.REGISTRY.values() if op.static is None for sample in op.samples()]
    random.Random(0).shuffle(found)
    return found


@pytest.mark.parametrize("first", share(range(0, 2340, AT_ONCE), 3))
def test_samples_of_operators(first: int) -> None:
    wrong = []
    for op, sample in samples()[first : first + AT_ONCE]:
        found = []
        for target in map(in_order, MACHINES):
            job = kernel_job(op, sample, target)
            found.append(bits(run_kernel(finished(job.kernel, target), job.inputs)))
        wrong += [op.name] * (len(set(map(tuple, found))) > 1)
    assert wrong == []


def test_no_sample_is_left_out() -> None:
    assert len(samples()) <= 2340


def shape_of_a_convolution(rng: random.Random) -> dict[str, Any]:
    """Arguments of `conv`."""
    rows, columns, stride, dilation = rng.choice([1, 3, 3, 5, 7]), rng.choice([1, 3, 3, 5]), rng.choice([1, 1, 2, 3]), 1
    dilation = rng.choice([1, 1, 2])
    many = rng.choice([8, 16, 33])
    inner, outer, groups = rng.choice([(3, 24, 1), (16, 8, 1), (24, 40, 1), (8, 16, 2), (many, many, many)])
    size = tuple(dilation * (k - 1) + stride + rng.randint(0, 12) for k in (rows, columns))
    return {
        "batch": rng.choice([1, 1, 2]), "ic": inner, "oc": outer, "groups": groups, "size": size, "stride": stride,
        "kernel": (rows, columns), "dilation": dilation, "padding": rows // 2, "last": rng.random() < 0.4,
        "block": rng.choice([0, 16, 32]) if groups == 1 else 0, "finite": rng.random() < 0.8,
    }  # fmt: skip


@pytest.mark.parametrize("seed", share(range(60), 4))
def test_every_tiling_of_a_sum_of_products(seed: int) -> None:
    """Whichever of the proposed tilings is taken."""
    rng = random.Random(seed)
    if seed % 6:
        case = conv(**shape_of_a_convolution(rng))
    else:
        case = matmul(m=rng.choice([1, 5, 30]), k=rng.randint(1, 70), n=rng.randint(1, 50), block=rng.choice([0, 16]))
    values, found = case.values(seed), set()
    for target in map(in_order, MACHINES):
        known: list[str] = []

        def collect(site: Site, known: list[str] = known) -> None:
            known.extend(candidate.name for candidate in site.found)

        with choosing(collect):
            kernels = [case.kernel(target)]
        for name in rng.sample(known, min(3, len(known))):
            with choosing(lambda _, name=name: name):
                kernels.append(case.kernel(target))
        found.update(bits(run_kernel(kernel, values))[0] for kernel in kernels)
    assert len(found) == 1


def compilation(module: IRModule, target: Target, **options: Any) -> Compilation:
    chosen = CompileOptions(target=target, accuracy="reproducible", name="net", cache=False, tuning=False, **options)
    return chosen.compilation(module)


def interpreted(module: IRModule, inputs: dict[str, Array], **options: Any) -> set[tuple[bytes, ...]]:
    """The different results on all machines."""
    made = (compilation(module, target, **options) for target in MACHINES)
    return {tuple(bits(run_program(work.programs[0], inputs))) for work in made}


def inputs_of(module: IRModule) -> dict[str, Array]:
    return random_inputs(input_types(module), 1)


@pytest.mark.parametrize("name", share(NETWORKS, 8, always=["long", "attention", "lstm"]))
def test_networks(name: str) -> None:
    module = NETWORKS[name].module()
    assert len(interpreted(module, inputs_of(module))) == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_random_networks() -> None:
    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(parts(2))
    def run(drawn: list[Any]) -> None:
        model = Model.of(drawn, 0)
        assert len(interpreted(model.module, dict(model.inputs))) == 1

    run()


@pytest.mark.parametrize("name", share(["threads", "attention", "lstm", "long", "softmax"], 1, always=["threads"]))
def test_libraries(name: str, tmp_path: Path) -> None:
    """What was compiled gives the interpreter's bits, for any number of threads."""
    module = NETWORKS[name].module()
    inputs = inputs_of(module)
    (expected,) = interpreted(module, inputs)
    for target in native_targets():
        made = CompileOptions(
            output=tmp_path / target, target=target, accuracy="reproducible", name="net", cflags=["-O1"]
        ).compiled(module)
        for threads in (1, 2, 3):
            assert tuple(bits(made.session(threads).run(None, inputs))) == expected, (target, threads)


@pytest.mark.parametrize(("target", "name"), share(product(FOREIGN, ["scalar", "attention", "lstm"]), 1))
def test_libraries_for_other_processors(target: str, name: str, tmp_path: Path) -> None:
    module, here = NETWORKS[name].module(), machine(target)
    inputs = inputs_of(module)
    (expected,) = interpreted(module, inputs)
    made = compilation(module, here.target).project(tmp_path / "net")
    assert tuple(bits(here.run_model(made, list(inputs.values())))) == expected
