# SPDX-License-Identifier: Apache-2.0
"""The official ONNX suite on an emulated GPU: tests that pass as C pass there."""

from __future__ import annotations

import os
from functools import partial

import pytest

from aotc.driver.cuda_emulation import build_fake_cuda_driver
from tests.conformance.onnx_suite import Case, all_cases, compiled, failing, read_list, run_cases

JOBS = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
DEVICE = {"cflags": ("-O0",), "target": "cuda", "emulated": True}


def check(cases: list[Case]) -> None:
    build_fake_cuda_driver()  # once, not in each process
    results = run_cases(cases, JOBS, prepare=partial(compiled, options=DEVICE))
    new = {name: why for name, why in failing(results).items() if name not in read_list()}
    assert not new, "\n".join(f"{name} | {why}" for name, why in new.items())


def test_a_sample_of_the_suite() -> None:
    """Every 240th test."""
    check(all_cases(("node", "pytorch-operator", "pytorch-converted"))[::240])


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_whole_suite() -> None:
    """But for whole networks, which tests/cuda/test_models.py has."""
    check(all_cases(("node", "simple", "pytorch-operator", "pytorch-converted")))
