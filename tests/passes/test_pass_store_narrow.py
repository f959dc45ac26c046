# SPDX-License-Identifier: Apache-2.0
"""StoreNarrow: which tensors between kernels become narrower, and which stay as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from passes.graphs import checked, const, module_of, noise, var
from relay.programs import functions, inputs

import aotc
from aotc import relay
from aotc.relay.analysis import free_vars, list_op_freqs
from aotc.relay.expr import Call, Expr, Function, Tuple, type_of
from aotc.relay.interpreter import evaluate
from aotc.relay.op.binary_elementwise import multiply
from aotc.relay.op.elementwise_unary import exp, relu
from aotc.relay.op.reduce import max as max_
from aotc.relay.op.reduce import sum as sum_
from aotc.relay.op.shape import reshape
from aotc.relay.transform import FuseOps, StoreNarrow
from aotc.relay.transform.fuse_ops import fuse_operators
from aotc.relay.visitor import post_order
from aotc.tir.target import get_target

X = var("x", 1, 8, 6, 6, dtype="int8")


def bytes_of(x: Expr) -> Expr:
    """A kernel with a result of int8 that is nothing but its own: a pool."""
    return relay.nn.max_pool2d(x, pool_size=(3, 3), padding=(1, 1))


def kernels(*results: Expr, max_args: int = 0) -> list[tuple[str, str]]:
    """The operators of each kernel after the pass, and the type of its result; no value changes."""
    fused = FuseOps()(module_of(Tuple(results), *free_vars(Tuple(results))))
    main = checked(StoreNarrow(max_args=max_args), fused).main
    calls = [n for n in post_order(main) if isinstance(n, Call) and isinstance(n.op, Function)]
    return [("+".join(list_op_freqs(n.op)), str(type_of(n).dtype)) for n in calls]


@settings(max_examples=80, deadline=None)
@given(functions())
def test_no_result_changes(function: Function) -> None:
    fused = fuse_operators(function)
    made = StoreNarrow()(module_of(fused.body, *fused.params)).main
    for flag in (True, False):
        before, after = (evaluate(f, *inputs(flag=flag)) for f in (function, made))
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (before, after)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_reductions_widen_what_they_read() -> None:
    wide = relay.cast(bytes_of(X), dtype="int32")
    pooled = [("nn.max_pool2d", "int8"), ("cast+sum", "int32")]
    assert kernels(sum_(wide, axis=(2, 3))) == pooled


def test_several_kernels_widen_for_themselves() -> None:
    scaled = multiply(relay.cast(bytes_of(X), dtype="float32"), const(0.25))
    found = kernels(sum_(scaled, axis=(2, 3)), max_(scaled, axis=(1,)))
    assert [dtype for _, dtype in found] == ["int8", "float32", "float32"]
    assert sorted(names for names, _ in found) == ["cast+multiply+max", "cast+multiply+sum", "nn.max_pool2d"]


def test_a_kernel_that_widens_alone_disappears() -> None:
    wide = relay.cast(X, dtype="float32")
    assert kernels(sum_(wide, axis=(2, 3)), max_(wide, axis=(1,))) == [("cast+sum", "float32"), ("cast+max", "float32")]


def test_scales_of_channels_move_with_the_operation() -> None:
    scaled = multiply(relay.cast(bytes_of(X), dtype="float32"), noise(8, 1, 1))
    assert kernels(sum_(scaled, axis=(2, 3))) == [("nn.max_pool2d", "int8"), ("cast+multiply+sum", "float32")]


def test_what_costs_more_than_storing_stays() -> None:
    dear = exp(relay.cast(bytes_of(X), dtype="float32"))
    found = kernels(sum_(dear, axis=(2, 3)), max_(dear, axis=(1,)))
    assert [dtype for _, dtype in found] == ["float32"] * 3
    assert kernels(sum_(dear, axis=(2, 3)))[0] == ("nn.max_pool2d", "int8"), "one kernel computes it as often as before"


def test_what_must_be_in_memory_stays() -> None:
    """A result of the model, what a contraction reads, and what is looked at in another shape."""
    wide = relay.cast(bytes_of(X), dtype="float32")
    pooled = sum_(wide, axis=(2, 3))
    for other in (wide, relu(relay.nn.conv2d(wide, noise(4, 8, 3, 3))), reshape(wide, (8, 36))):
        assert ("nn.max_pool2d", "int8") not in kernels(other, pooled)


def test_kernels_take_no_more_arguments_than_a_launch() -> None:
    scaled = multiply(relay.cast(bytes_of(X), dtype="float32"), noise(8, 1, 1))
    found = sum_(scaled, axis=(2, 3))
    assert kernels(found, max_args=3)[0][1] == "float32"
    assert kernels(found, max_args=4)[0][1] == "int8"


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
