# SPDX-License-Identifier: Apache-2.0
"""The kernel of every sample on a device: mapped, printed and emulated, it has the bits of the interpreter."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from aotc.relay import op as operators
from aotc.relay.op.opdef import OpDef, Sample
from tests.codegen.batch import finished
from tests.codegen.bits import wrong
from tests.cuda.device import CUDA, run_batch
from tests.ops.harness import Job, interpret, kernel_job

FAMILIES = {family.__name__.rpartition(".")[2]: operators.operators_of(family) for family in operators.FAMILIES}
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


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_samples(family: str, tmp_path: Path) -> None:
    check(cases(FAMILIES[family]), tmp_path)
