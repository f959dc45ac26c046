# SPDX-License-Identifier: Apache-2.0
"""Parallel merge sort on a device is stable: of equal elements, the one with the lower index comes first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Sample
from aotc.tir.device.lower_to_launches import lower_kernel_to_gpu_kernels
from aotc.tir.gpu_launch import launch_of
from aotc.tir.kernel_verifier import verify
from aotc.tir.target import Target
from tests.cuda.device import CUDA, run_batch
from tests.ops.harness import Job, kernel_job


def job(name: str, data: Any, target: Target, **attrs: Any) -> tuple[Job, list[Any]]:
    """The kernel, and what it has to give."""
    op = OPERATORS_BY_NAME[name]
    given = op.attrs(**attrs)
    found = op.reference(given, data)
    expected = list(found) if isinstance(found, tuple) else [found]
    return kernel_job(op, Sample(args=(data,), attrs=given), target, printed=False), expected


def test_order_of_equals(tmp_path: Path) -> None:
    """In shared memory, and level by level where a block has too little of it."""
    assert CUDA.gpu is not None
    little = replace(CUDA, gpu=replace(CUDA.gpu, shared_bytes=64))
    rng = np.random.default_rng(5)
    few = rng.integers(0, 6, (3, 77)).astype(np.float32)
    few[1, ::9] = np.nan
    cases = [
        job("argsort", few, CUDA),
        job("argsort", few, CUDA, is_ascend=False),
        job("topk", few, CUDA, k=5),
        job("topk", few, little, k=20, is_ascend=True),
        job("sort", few.T.copy(), little, axis=0),
        job("argsort", few, little, is_ascend=False),
    ]
    for outputs in run_batch([(one.kernel, one.inputs) for one, _ in cases], tmp_path):
        for (one, expected), found in zip(cases, outputs, strict=True):
            for values, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(values, wanted.ravel(), one.kernel.name)


def test_many_threads_take_part() -> None:
    assert CUDA.gpu is not None
    row = np.zeros((2, 300), np.float32)
    (one,) = lower_kernel_to_gpu_kernels(job("argsort", row, CUDA)[0].kernel, CUDA)
    launch = launch_of(one)
    assert launch is not None and launch.grid == 2 and launch.block >= 128
    verify(one)
    large = np.zeros((2, 7000), np.float32)
    kernels = lower_kernel_to_gpu_kernels(job("topk", large, CUDA, k=300)[0].kernel, CUDA)
    launches = [launch_of(kernel) for kernel in kernels]
    assert all(one is not None and one.block >= 32 for one in launches)
    assert max(one.grid for one in launches if one is not None) >= CUDA.gpu.processors
