# SPDX-License-Identifier: Apache-2.0
"""The kernel of every sample, divided among the participants of a team, gives the very bytes of the undivided one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aotc.relay import op as operators
from aotc.relay.op.opdef import OpDef
from aotc.tir.interp import run_kernel
from aotc.tir.plan.memory import work_in_place
from aotc.tir.schedule import parallel
from aotc.tir.schedule.parallel import for_team
from aotc.tir.stmt import Kernel
from aotc.tir.target import get_target
from tests.ops.harness import Array, kernel_job

FAMILIES = sorted(name for name, module in vars(operators).items() if hasattr(module, "OPS"))


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_WORTH_NS", 0.0)
    monkeypatch.setattr(parallel, "_WORTH_MOVING_NS", 0.0)
    monkeypatch.setattr(parallel, "_MEETING_NS", 0.0)


def in_place(kernel: Kernel, inputs: list[Array]) -> tuple[Kernel, list[Array], list[Array] | None]:
    """The kernel as it works over its inputs, those that remain, and what its outputs hold at first."""
    mine = {o: inputs[i].reshape(-1) for o, i in kernel.inplace}
    if len(mine) < len(kernel.outputs):
        return kernel, inputs, None
    gone = {i for _, i in kernel.inplace}
    remaining = [array for i, array in enumerate(inputs) if i not in gone]
    return work_in_place(kernel, kernel.inplace), remaining, [mine[o] for o in range(len(kernel.outputs))]


def forms(kernel: Kernel, inputs: list[Array]) -> Iterator[tuple[Kernel, list[Array], list[Array] | None]]:
    yield kernel, inputs, None
    if kernel.inplace:
        yield in_place(kernel, inputs)


@pytest.mark.parametrize("target", ["c", "x86-64-v4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_teams_agree_with_one(family: str, target: str) -> None:
    ops: tuple[OpDef, ...] = getattr(operators, family).OPS
    wrong: list[str] = []
    for op, sample in ((o, sample) for o in ops if o.static is None for sample in o.samples()):
        job = kernel_job(op, sample, get_target(target))
        for kernel, inputs, before in forms(job.kernel, job.inputs):
            team = for_team(kernel)
            if not team.team:
                continue
            whole = [array.tobytes() for array in run_kernel(kernel, inputs, output_init=before)]
            for participants, backwards in ((2, True), (3, False)):
                found = run_kernel(team, inputs, output_init=before, participants=participants, backwards=backwards)
                if [array.tobytes() for array in found] != whole:
                    wrong.append(f"{op.name} {sample.attrs} {[a.shape for a in job.inputs]} of {participants}")
    assert not wrong
