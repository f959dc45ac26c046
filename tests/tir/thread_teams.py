# SPDX-License-Identifier: Apache-2.0
"""Compares kernels divided among threads with undivided ones: equal bytes for every order of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from aotc.tir.interpreter import run_kernel
from aotc.tir.plan.memory_plan import merge_inplace_params
from aotc.tir.stmt import Kernel
from aotc.tir.target import Threads
from aotc.tir.threads.parallel_kernels import DEFAULT_THREAD_COSTS, parallelize_kernel

Array: TypeAlias = "np.ndarray[Any, Any]"
Form: TypeAlias = "tuple[Kernel, Sequence[Array], list[Array] | None]"
TEAMS = ((2, True), (3, False))
"""Numbers of participants, and whether the last one goes first."""
EAGER = Threads(worth_ns=0.0, worth_moving_ns=0.0)
"""A machine on which the smallest kernels are divided."""


def forms(kernel: Kernel, inputs: Sequence[Array]) -> Iterator[Form]:
    """The kernel, its inputs, what its outputs hold at first; the same of the kernel that works over its inputs."""
    yield kernel, inputs, None
    if len(kernel.inplace) == len(kernel.outputs):
        source = dict(kernel.inplace)
        remaining = [array for i, array in enumerate(inputs) if i not in source.values()]
        before = [inputs[source[o]].reshape(-1) for o in range(len(kernel.outputs))]
        yield merge_inplace_params(kernel, kernel.inplace), remaining, before


def wrong_teams(kernel: Kernel, inputs: Sequence[Array], threads: Threads = DEFAULT_THREAD_COSTS) -> list[str]:
    """The teams that the kernel, or its form that works in place, gives other bytes for; none of one left undivided."""
    found = []
    for form, arrays, before in forms(kernel, inputs):
        team = parallelize_kernel(form, thread_costs=threads)
        whole = [array.tobytes() for array in run_kernel(form, arrays, output_init=before)] if team.team else []
        for participants, backwards in TEAMS if team.team else ():
            made = run_kernel(team, arrays, output_init=before, participants=participants, backwards=backwards)
            if [array.tobytes() for array in made] != whole:
                found.append(f"{participants} participants of {form.name}, in place: {before is not None}")
    return found
