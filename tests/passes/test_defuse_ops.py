# SPDX-License-Identifier: Apache-2.0
"""DefuseOps on random functions, a network and a long chain; `defuse_ops.test` has single cases."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from passes.graphs import module_of, ops, var
from passes.test_fuse_ops import groups
from relay.programs import functions

from aotc.ir.transform import PassContext, Sequential
from aotc.relay.expr import Expr, Function
from aotc.relay.module import IRModule
from aotc.relay.op.elementwise_unary import negative
from aotc.relay.structural_equality import assert_structural_equal
from aotc.relay.testing import squeezenet
from aotc.relay.transform import DefuseOps, FuseOps
from aotc.relay.type_inference import infer_module

# --- DefuseOps


@settings(max_examples=80, deadline=None)
@given(functions())
def test_defusing_is_the_inverse_of_fusing(function: Function) -> None:
    module = infer_module(IRModule({"main": function}))
    fused = FuseOps()(module)
    assert_structural_equal(DefuseOps()(fused), module)


def test_a_network_fused_and_defused() -> None:
    module, _ = squeezenet.get_workload(1)
    with PassContext(opt_level=3):
        fused = FuseOps()(module)
        back = Sequential([DefuseOps()])(fused)
    assert len(groups(fused.main)) < sum(ops(module).values())
    assert not groups(back.main)
    assert_structural_equal(back, module)


@pytest.mark.parametrize("length", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_long_chain_of_kernels(length: int) -> None:
    x = var("x", 2)
    body: Expr = x
    for _ in range(length):
        body = negative(body)
    module = module_of(body, x)
    assert_structural_equal(DefuseOps()(FuseOps(fuse_opt_level=0)(module)), module)
