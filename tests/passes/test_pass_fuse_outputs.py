# SPDX-License-Identifier: Apache-2.0
"""FuseOutputs on random functions; `fuse_outputs.test` has single cases."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from passes.graphs import module_of, noise
from relay.programs import functions, inputs

from aotc.relay.expr import Function
from aotc.relay.interpreter import evaluate
from aotc.relay.transform import FuseOutputs
from aotc.relay.transform.fuse_ops import fuse_operators

WEIGHT, CHANNELS = noise(4, 4, 3, 3), noise(4, 1, 1, seed=1)


@settings(max_examples=80, deadline=None)
@given(functions())
def test_no_result_changes(function: Function) -> None:
    fused = fuse_operators(function)
    made = FuseOutputs()(module_of(fused.body, *fused.params)).main
    for flag in (True, False):
        before, after = (evaluate(f, *inputs(flag=flag)) for f in (function, made))
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (before, after)), strict=True):
            np.testing.assert_array_equal(a, b)
