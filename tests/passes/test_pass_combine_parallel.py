# SPDX-License-Identifier: Apache-2.0
"""Passes that combine parallel calls: a long chain and levels; `combine_parallel.test` has single cases."""

from __future__ import annotations

from passes.graphs import checked, module_of, noise, ops, var

from aotc.relay.expr import Expr
from aotc.relay.op.binary_elementwise import add
from aotc.relay.op.dense import dense
from aotc.relay.op.elementwise_unary import tanh
from aotc.relay.transform import CombineParallelBatchMatmul, CombineParallelConv2D, CombineParallelDense

Y = var("y", 3, 5)


def test_long_chains() -> None:
    value: Expr = Y
    weight = noise(5, 5)
    for _ in range(300):
        value = tanh(
            add(add(dense(value, weight), dense(value, noise(5, 5, seed=1))), dense(value, noise(5, 5, seed=2)))
        )
    result = checked(CombineParallelDense(to_batch=False), module_of(value, Y), atol=1e-1)
    assert ops(result)["nn.dense"] == 300


def test_levels() -> None:
    assert {p.opt_level for p in (CombineParallelConv2D, CombineParallelDense, CombineParallelBatchMatmul)} == {4}
