# SPDX-License-Identifier: Apache-2.0
"""Horizontal fusion of launches: results do not change; dependent or too large launches stay separate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.tir.device.horizontal_fusion import fuse_gpu_launches, fuse_independent_kernels
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.plan.memory_plan import plan_memory
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import Kernel
from aotc.tir.target import Gpu
from tests.tir.programs import run_program

GPU = Gpu()


def turned(blocks: int = 2, threads: int = 32) -> Kernel:
    """Each run of so many elements from its end to its beginning."""
    size = blocks * threads
    return parse_kernel(f"""kernel "turned{blocks}" {{
  input x: float32[{size}]
  output y: float32[{size}]
  shared tile: float32[{threads}]
  for b in 0..{blocks} block {{
    for t in 0..{threads} thread {{
      tile[t] = x[b * {threads} + t]
      sync
      y[b * {threads} + t] = tile[{threads - 1} - t]
    }}
  }}
}}
""")


SUM = parse_kernel("""kernel "sum" {
  input x: float32[64]
  input y: float32[64]
  output z: float32[64]
  inplace z = x
  for b in 0..2 block { for t in 0..32 thread { z[b * 32 + t] = x[b * 32 + t] + y[b * 32 + t] } }
}
""")


def storage(name: str, kind: str = "temp", size: int = 64) -> Storage:
    return Storage(name=name, dtype=DType("float32"), shape=(size,), kind=kind)


def program(*calls: tuple[Kernel, str]) -> Program:
    """A program of calls by the letters of what they read and write: a and b are inputs, y and z outputs."""
    found = {n: storage(n, {"a": "input", "b": "input", "y": "output", "z": "output"}.get(n, "temp")) for n in "abcdyz"}
    steps = tuple(Step(kernel, tuple(View(found[n]) for n in names)) for kernel, names in calls)
    return Program(name="net", inputs=(found["a"], found["b"]), outputs=(found["y"], found["z"]), body=steps)


def check(before: Program, gpu: Gpu = GPU) -> list[str]:
    """The names of the kernels after joining, which changes no result."""
    after = fuse_gpu_launches(before, gpu)
    inputs = list(np.random.default_rng(5).standard_normal((2, 64)).astype(np.float32))
    expected = run_program(plan_memory(before), inputs)
    for kernel in after.distinct_kernels:
        verify(kernel)
    for backwards in (False, True):
        for got, wanted in zip(run_program(plan_memory(after), inputs, backwards), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    return [step.kernel.name for step in after.steps]


def test_independent_launches_are_one() -> None:
    one = turned()
    assert check(program((one, "ac"), (one, "bd"), (SUM, "cdy"), (one, "az"))) == ["turned2_turned2", "sum_turned2"]
    assert check(program((one, "ac"), (one, "bd"), (one, "ay"), (SUM, "cdz"))) == ["turned2_turned2_turned2", "sum"]
    assert check(program((SUM, "aby"), (SUM, "aaz"))) == ["sum_sum"]


def test_what_waits_stays_behind() -> None:
    one = turned()
    assert check(program((one, "ac"), (one, "cy"), (one, "cz"))) == ["turned2", "turned2_turned2"]
    assert check(program((one, "ac"), (SUM, "cby"), (one, "yd"), (SUM, "ddz"))) == ["turned2", "sum", "turned2", "sum"]


@pytest.mark.parametrize("gpu", [Gpu(processors=1, resident=64), Gpu(argument_bytes=24), Gpu(shared_bytes=100)])
def test_launches_that_fill_the_device_or_have_no_room_stay_apart(gpu: Gpu) -> None:
    assert check(program((turned(), "ay"), (turned(), "bz")), gpu) == ["turned2", "turned2"]


def test_launches_of_other_blocks_stay_apart() -> None:
    assert check(program((turned(1, 64), "ay"), (turned(), "bz"))) == ["turned1", "turned2"]


def test_memory_of_blocks_is_that_of_the_larger_one() -> None:
    made = fuse_independent_kernels(turned(), replace(turned(4, 32), shared=()), (0,))
    assert len(made.inputs) == 1
    assert [b.nbytes for b in fuse_independent_kernels(turned(), turned(3), (None,)).shared] == [128]


def test_no_result_lies_over_what_others_read() -> None:
    assert fuse_independent_kernels(SUM, SUM, (0, None)).inplace == ()
    assert fuse_independent_kernels(SUM, SUM, (1, None)).inplace == ((0, 0),)
    assert fuse_independent_kernels(SUM, SUM, (None, 0)).inplace == ((1, 2),)
