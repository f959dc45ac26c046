# SPDX-License-Identifier: Apache-2.0
"""Schedules compute what the tensor expressions say."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotc.tir.interp import run_kernel
from aotc.tir.schedule import schedule
from aotc.tir.target import X86_64_V4, C, Target
from tests.tir.evaluate import evaluate
from tests.tir.graphs import Graph, graphs


def check(inputs, outputs, target: Target = C, seed: int = 0, tolerance: float = 0.0):
    """The kernel, after its outputs were compared with direct evaluation."""
    kernel = schedule("k", inputs, outputs, target)
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-4, 5, t.shape).astype(t.dtype.numpy) for t in inputs]
    got = run_kernel(kernel, arrays)
    want = evaluate(outputs, dict(zip(inputs, arrays, strict=True)))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w.reshape(-1), rtol=tolerance, atol=tolerance)
    return kernel


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), target=st.sampled_from([C, X86_64_V4]))
def test_random_graphs(graph: Graph, target: Target) -> None:
    check(graph.inputs, graph.outputs, target)
