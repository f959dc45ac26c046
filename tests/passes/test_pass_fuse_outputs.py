# SPDX-License-Identifier: Apache-2.0
"""FuseOutputs: which calls become further results of a kernel, and which stay."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from passes.graphs import checked, const, module_of, noise, var
from relay.programs import functions, inputs

from aotc.relay.analysis import free_vars, list_op_freqs
from aotc.relay.expr import Call, Expr, Function, Tuple
from aotc.relay.interpreter import evaluate
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.conv import conv2d
from aotc.relay.op.elementwise_unary import relu, sigmoid
from aotc.relay.op.normalization import rms_norm
from aotc.relay.op.reduce import sum as sum_
from aotc.relay.op.shape import reshape
from aotc.relay.op.softmax import softmax
from aotc.relay.transform import FuseOps, FuseOutputs
from aotc.relay.transform.fuse_ops import fuse_operators
from aotc.relay.visitor import post_order

X = var("x", 1, 4, 6, 6)
WEIGHT, CHANNELS = noise(4, 4, 3, 3), noise(4, 1, 1, seed=1)


def convolve(x: Expr) -> Expr:
    return conv2d(x, WEIGHT, padding=(1, 1))


def kernels(*results: Expr, most_args: int = 512) -> list[str]:
    """The operators of each kernel after the pass, which changes no value."""
    fused = FuseOps()(module_of(Tuple(results), *free_vars(Tuple(results))))
    main = checked(FuseOutputs(most_args), fused).main
    calls = (n.op for n in post_order(main) if isinstance(n, Call) and isinstance(n.op, Function))
    return ["+".join(list_op_freqs(f)) for f in calls]


@settings(max_examples=80, deadline=None)
@given(functions())
def test_no_result_changes(function: Function) -> None:
    fused = fuse_operators(function)
    made = FuseOutputs()(module_of(fused.body, *fused.params)).main
    for flag in (True, False):
        before, after = (evaluate(f, *inputs(flag=flag)) for f in (function, made))
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (before, after)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_follows_element_by_element_is_one_more_result() -> None:
    sums = add(convolve(X), X)
    assert kernels(convolve(relu(multiply(sums, CHANNELS))), sums) == ["nn.conv2d+add+multiply+nn.relu", "nn.conv2d"]
    first = relu(X)
    both = sigmoid(first), multiply(first, const(3.0))
    assert kernels(first, *both, convolve(both[0])) == ["nn.relu+sigmoid+multiply", "nn.conv2d"]


def test_what_comes_later_is_not_waited_for() -> None:
    sums = add(convolve(X), X)
    gate = sigmoid(sum_(sums, (2, 3), keepdims=True))
    scaled = multiply(sums, gate)
    assert "nn.conv2d+add" in kernels(scaled, convolve(scaled), sums)


def test_other_shapes_and_other_elements_stay() -> None:
    flat = reshape(X, (4, 36))
    assert kernels(flat, relu(flat)) == ["reshape", "nn.relu"]
    wide = add(X, noise(3, 4, 6, 6))
    assert kernels(wide, X, relu(X)) == ["add", "nn.relu"]


def test_kernels_take_no_more_arguments_than_a_launch() -> None:
    """Inputs, and for each result two."""
    first = add(X, var("a", 1, 4, 6, 6))
    second = add(first, var("b", 1, 4, 6, 6))
    assert kernels(first, second, most_args=7) == ["add"]
    assert kernels(first, second, most_args=6) == ["add", "add"]


def test_norms_take_in_what_is_elementwise_before() -> None:
    """Whoever reads that, too; of several norms the first."""
    half = multiply(X, const(0.5))
    assert kernels(softmax(half)) == kernels(half, softmax(half)) == ["multiply+nn.softmax"]
    assert kernels(softmax(half), rms_norm(half, noise(6))) == ["multiply+nn.softmax", "nn.rms_norm"]
    assert kernels(relu(softmax(half)), half) == ["multiply+nn.softmax+nn.relu"]


def test_norms_stay_behind_products_and_beside_few_long_rows() -> None:
    assert kernels(softmax(relu(convolve(X)))) == ["nn.conv2d+nn.relu", "nn.softmax"]
    few, many = (multiply(var("x", rows, 20_000), const(0.5)) for rows in (2, 108))
    assert kernels(softmax(few)) == ["multiply", "nn.softmax"]
    assert kernels(softmax(many)) == ["multiply+nn.softmax"]
