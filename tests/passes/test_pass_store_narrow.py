# SPDX-License-Identifier: Apache-2.0
"""StoreNarrow on random functions, its cost, and memory of compiled code; see `store_narrow.test`, too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from passes.graphs import const, module_of, var
from relay.programs import functions, inputs

import aotc
from aotc import relay
from aotc.relay.analysis import list_op_freqs
from aotc.relay.expr import Expr, Function, Tuple
from aotc.relay.interpreter import evaluate
from aotc.relay.op.binary_elementwise import multiply
from aotc.relay.op.reduce import max as max_
from aotc.relay.op.reduce import sum as sum_
from aotc.relay.transform import FuseOps, StoreNarrow
from aotc.relay.transform.fuse_ops import fuse_operators
from aotc.tir.target import get_target

X = var("x", 1, 8, 6, 6, dtype="int8")


def bytes_of(x: Expr) -> Expr:
    """A kernel with a result of int8 that is nothing but its own: a pool."""
    return relay.nn.max_pool2d(x, pool_size=(3, 3), padding=(1, 1))


@settings(max_examples=80, deadline=None)
@given(functions())
def test_no_result_changes(function: Function) -> None:
    fused = fuse_operators(function)
    made = StoreNarrow()(module_of(fused.body, *fused.params)).main
    for flag in (True, False):
        before, after = (evaluate(f, *inputs(flag=flag)) for f in (function, made))
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (before, after)), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("channels_last", [True, False])
def test_pools_add_up_the_bytes_of_the_last_layer(channels_last: bool) -> None:
    """On a microcontroller, the arena has the bytes of two neighboring layers, and scratch of a kernel."""
    axes = (1, 2) if channels_last else (2, 3)
    shape = (1, 25, 5, 64) if channels_last else (1, 64, 25, 5)
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"} if channels_last else {}
    weights = np.random.default_rng(0).integers(-9, 9, (1, 1, 64, 64) if channels_last else (64, 64, 1, 1))
    x = relay.var("x", shape=shape, dtype="int8")
    one, zero = relay.const(np.float32(0.5)), relay.const(0)
    y = relay.qnn.op.conv2d(
        x, relay.const(weights.astype(np.int8)), zero, zero, one, one, kernel_size=(1, 1), channels=64, **layouts
    )
    y = relay.qnn.op.requantize(y, one, zero, relay.const(np.float32(8)), zero, out_dtype="int8")
    module = aotc.IRModule.from_expr(Function([x], relay.sum(relay.cast(y, "int32"), axis=axes)))
    model = aotc.compile(module, target="cortex-m4", build=False, workspace_io=True)
    assert model.metadata["memory"]["peak"] < 3 * 8000 + 512


def test_the_price_of_storing_decides() -> None:
    wide = multiply(relay.cast(bytes_of(X), dtype="float32"), const(0.25))
    fused = FuseOps()(module_of(Tuple([sum_(wide, axis=(2, 3)), max_(wide, axis=(1,))]), X))
    dear, cheap = (replace(get_target("c"), store_cost=cost) for cost in (16, 0))
    counts = [list_op_freqs(StoreNarrow(target)(fused).main)["cast"] for target in (dear, cheap)]
    assert counts == [2, 1]
