# SPDX-License-Identifier: Apache-2.0
"""Operator counts of two workloads after Relay's simplifying passes equal those of the original system."""

from __future__ import annotations

import pytest
from passes.graphs import ops

from aotc.ir.transform import Pass, PassContext, Sequential
from aotc.relay.bind_variables_and_parameters import bind_params_by_name
from aotc.relay.expr import Call, Function
from aotc.relay.module import IRModule
from aotc.relay.testing import dcgan, squeezenet
from aotc.relay.transform import (
    CanonicalizeOps,
    EliminateCommonSubexpr,
    FoldConstant,
    FoldScaleAxis,
    FuseOps,
    SimplifyInference,
)
from aotc.relay.visitor import post_order

SIMPLIFY: list[Pass[IRModule]] = [
    SimplifyInference(), FoldConstant(), FoldScaleAxis(), CanonicalizeOps(), EliminateCommonSubexpr(),
]  # fmt: skip

WORKLOADS = {
    "squeezenet": (
        squeezenet.get_workload,
        40,
        {
            "add": 26, "concatenate": 8, "expand_dims": 26, "nn.batch_flatten": 1, "nn.conv2d": 26,
            "nn.global_avg_pool2d": 1, "nn.max_pool2d": 3, "nn.relu": 26, "nn.softmax": 1,
        },
    ),
    "dcgan": (
        lambda: dcgan.get_workload(1),
        6,
        {
            "add": 3, "multiply": 3, "nn.conv2d_transpose": 4, "nn.dense": 1, "nn.relu": 4, "reshape": 1, "tanh": 1,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
def test_counts(name: str) -> None:
    workload, fused, expected = WORKLOADS[name]
    module, params = workload()
    module = module.with_function("main", bind_params_by_name(module.main, params))
    with PassContext(opt_level=3):
        module = Sequential(SIMPLIFY)(module)
        assert ops(module) == expected
        module = FuseOps()(module)
    assert ops(module) == expected
    assert sum(isinstance(n, Call) and isinstance(n.op, Function) for n in post_order(module.main)) == fused
