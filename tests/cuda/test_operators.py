# SPDX-License-Identifier: Apache-2.0
"""The kernel of every operator sample, mapped to a device, printed and emulated, has the interpreter's bits."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from aotc.relay import op as operators
from aotc.relay.op.opdef import OpDef, Sample
from aotc.tir.device.lower_to_launches import lower_kernel_to_gpu_kernels
from aotc.tir.gpu_launch import launch_of
from tests.codegen.batch import finished
from tests.codegen.bit_comparison import wrong
from tests.cuda.device import CUDA, run_batch
from tests.ops.harness import Job, interpret, kernel_job
from tests.tir.contractions import conv, matmul

FAMILIES = {
    family.__name__.removeprefix("aotc.relay.op."): operators.operators_defined_in(family)
    for family in operators.OPERATOR_MODULES
}
SOME = 60


def cases(ops: Sequence[OpDef]) -> list[tuple[OpDef, Sample]]:
    return [(op, sample) for op in ops if op.static is None for sample in op.samples()]


def check(chosen: Sequence[tuple[OpDef, Sample]], folder: Path) -> None:
    """Blocks and threads in both orders give the bits of the interpreter."""
    jobs = [kernel_job(op, sample, CUDA, printed=False) for op, sample in chosen]
    orders = run_batch([(job.kernel, job.inputs) for job in jobs], folder)
    expected = interpret([Job(finished(job.kernel, CUDA), job.inputs, job.types) for job in jobs])
    problems: dict[str, str] = {}
    for (op, sample), job, interpreted, *emulated in zip(chosen, jobs, expected, *orders, strict=True):
        for order, outputs in zip(("forwards", "backwards"), emulated, strict=True):
            if difference := wrong(job.kernel, outputs, interpreted):
                problems.setdefault(op.name, f"{sample.attrs}, {order}: {difference}")
    assert not problems, "\n".join(f"{name}: {why}" for name, why in problems.items())


def test_some_samples(tmp_path: Path) -> None:
    """A share of all, drawn by $AOTC_TEST_SEED, but for those that the interpreter takes seconds for."""
    every = cases([op for family, ops in FAMILIES.items() if family != "recurrent" for op in ops])
    check(random.Random(int(os.environ.get("AOTC_TEST_SEED", "0"))).sample(every, SOME), tmp_path)


@pytest.mark.parametrize("limit", [48 << 10, 12 << 10, 1 << 8, 0])
def test_kernels_keep_to_the_shared_memory_that_there_is(limit: int) -> None:
    """Smaller tiles, and none in the end, instead of a device that refuses a launch."""
    assert CUDA.gpu is not None
    target = replace(CUDA, gpu=replace(CUDA.gpu, shared_bytes=limit))
    cases = (matmul(m=65, k=70, n=66), conv(oc=32, size=(9, 9)), matmul(m=3, k=256, n=40), matmul(m=2, k=80, n=96))
    taken = [launch_of(one) for case in cases for one in lower_kernel_to_gpu_kernels(case.kernel(target), target)]
    sizes = [launch.shared_bytes for launch in taken if launch is not None]
    assert len(sizes) == len(taken) and max(sizes) <= limit
    assert (max(sizes) > 0) == (limit > 1 << 8)


def check_shared_memory(chosen: Sequence[tuple[OpDef, Sample]], limit: int) -> None:
    assert CUDA.gpu is not None
    target = replace(CUDA, gpu=replace(CUDA.gpu, shared_bytes=limit))
    for op, sample in chosen:
        for one in lower_kernel_to_gpu_kernels(kernel_job(op, sample, target, printed=False).kernel, target):
            launch = launch_of(one)
            assert launch is not None and launch.shared_bytes <= limit, f"{op.name}: {sample.attrs}"


@pytest.mark.parametrize("limit", [1 << 12, 1 << 7, 0])
def test_some_samples_keep_to_the_shared_memory_that_there_is(limit: int) -> None:
    """A share of all, drawn by $AOTC_TEST_SEED."""
    drawn = random.Random(int(os.environ.get("AOTC_TEST_SEED", "0")) + limit)
    check_shared_memory(drawn.sample(cases([op for ops in FAMILIES.values() for op in ops]), SOME // 3), limit)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1 << 12, 1 << 7, 0])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_samples_keep_to_the_shared_memory_that_there_is(family: str, limit: int) -> None:
    check_shared_memory(cases(FAMILIES[family]), limit)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_samples(family: str, tmp_path: Path) -> None:
    check(cases(FAMILIES[family]), tmp_path)
