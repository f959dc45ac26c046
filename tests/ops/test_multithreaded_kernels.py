# SPDX-License-Identifier: Apache-2.0
"""The kernel of every sample, divided among threads, gives the bytes of the undivided kernel."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from aotc.relay import op as operators
from aotc.relay.op.opdef import OpDef
from aotc.tir.target import get_target
from tests.ops.harness import kernel_job
from tests.share import share
from tests.tir.thread_teams import EAGER, wrong_teams

FAMILIES = {family.__name__.removeprefix("aotc.relay.op."): family for family in operators.OPERATOR_MODULES}


@pytest.mark.parametrize(("family", "target"), share(product(FAMILIES, ["c", "x86-64-v4"]), 14))
def test_teams_agree_with_one(family: str, target: str) -> None:
    threads = replace(EAGER, barrier_ns=0.0)
    ops: tuple[OpDef, ...] = operators.operators_defined_in(FAMILIES[family])
    wrong: list[str] = []
    for op, sample in ((o, sample) for o in ops if o.static is None for sample in o.samples()):
        job = kernel_job(op, sample, get_target(target), printed=False)
        wrong += [f"{sample.attrs}: {text}" for text in wrong_teams(job.kernel, job.inputs, threads)]
    assert not wrong
