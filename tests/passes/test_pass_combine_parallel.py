# SPDX-License-Identifier: Apache-2.0
"""CombineParallelConv2D, -Dense, -BatchMatmul: which calls become one, and with the same values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from passes.graphs import checked, const, module_of, noise, ops, var

from aotc.relay.expr import Expr, Tuple
from aotc.relay.op.binary_elementwise import add, divide, multiply
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import batch_matmul, bias_add, dense
from aotc.relay.op.elementwise_unary import exp, relu, tanh
from aotc.relay.transform import CombineParallelBatchMatmul, CombineParallelConv2D, CombineParallelDense

X = var("x", 1, 4, 6, 6)
Y = var("y", 3, 5)


def _kernel(channels: int, seed: int, size: int = 3) -> Expr:
    return noise(channels, 4, size, size, seed=seed)


def _convs(*channels: int) -> list[Expr]:
    return [conv2d(X, _kernel(c, k), padding=(1, 1), channels=c) for k, c in enumerate(channels)]


def test_convolutions() -> None:
    result = checked(CombineParallelConv2D(), module_of(Tuple(_convs(2, 3, 1)), X), atol=1e-4)
    assert ops(result) == {"nn.conv2d": 1, "concatenate": 1, "strided_slice": 3}


def test_weights_that_are_arguments() -> None:
    weights = [var(f"w{k}", k + 1, 4, 1, 1) for k in range(3)]
    module = module_of(Tuple(conv2d(X, w) for w in weights), X, *weights)
    assert ops(checked(CombineParallelConv2D(), module, atol=1e-4))["nn.conv2d"] == 1


def test_what_follows_is_combined() -> None:
    scale = const(0.5)

    def branch(k: int, c: Expr, channels: int) -> Expr:
        value = relu(bias_add(c, noise(channels, seed=10 + k)))
        return multiply(add(value, noise(channels, 1, 1, seed=20 + k)), scale)

    body = Tuple(branch(k, c, n) for k, (c, n) in enumerate(zip(_convs(2, 3, 5), (2, 3, 5), strict=True)))
    result = checked(CombineParallelConv2D(), module_of(body, X), atol=1e-4)
    assert ops(result) == {
        "nn.conv2d": 1, "nn.bias_add": 1, "nn.relu": 1, "add": 1, "multiply": 1, "concatenate": 3, "strided_slice": 3
    }  # fmt: skip


def test_steps_end_where_branches_differ() -> None:
    a, b, c = _convs(2, 2, 2)
    result = checked(CombineParallelConv2D(), module_of(Tuple([exp(relu(a)), tanh(relu(b)), relu(c)]), X), rtol=1e-3)
    assert ops(result)["nn.relu"] == 1 and ops(result)["exp"] == ops(result)["tanh"] == 1
    again = checked(CombineParallelConv2D(), module_of(Tuple([relu(a), relu(b), relu(c), c]), X), atol=1e-4)
    assert ops(again)["nn.relu"] == 3 and ops(again)["nn.conv2d"] == 1


def test_operands_of_a_spatial_axis_stop_the_steps() -> None:
    branches = [add(c, noise(6, seed=k)) for k, c in enumerate(_convs(2, 3, 4))]
    assert ops(checked(CombineParallelConv2D(), module_of(Tuple(branches), X), atol=1e-4))["add"] == 3
    shared = noise(6)
    branches = [add(c, shared) for c in _convs(2, 3, 4)]
    assert ops(checked(CombineParallelConv2D(), module_of(Tuple(branches), X), atol=1e-4))["add"] == 1


@pytest.mark.parametrize("combine", [CombineParallelConv2D(), CombineParallelDense()])
def test_zeros_of_different_signs_are_different_operands(combine: CombineParallelConv2D | CombineParallelDense) -> None:
    products = [dense(Y, noise(4, 5, seed=k)) for k in range(3)]
    branches = _convs(2, 3, 4) if isinstance(combine, CombineParallelConv2D) else products
    quotients = [divide(b, const(zero)) for b, zero in zip(branches, (0.0, 0.0, -0.0), strict=True)]
    module = module_of(Tuple(quotients), X if isinstance(combine, CombineParallelConv2D) else Y)
    checked(combine, module, atol=1e-4)


def test_channels_of_one() -> None:
    branches = [add(c, noise(1, 1, 1, seed=k)) for k, c in enumerate(_convs(1, 1, 1))]
    assert ops(checked(CombineParallelConv2D(), module_of(Tuple(branches), X), atol=1e-4))["nn.conv2d"] == 1


@pytest.mark.parametrize(
    "odd",
    [
        lambda: conv2d(X, _kernel(2, 9, 1)),
        lambda: conv2d(X, _kernel(2, 9), padding=(1, 1), strides=(2, 2)),
        lambda: conv2d(X, _kernel(2, 9), padding=(2, 2), dilation=(2, 2)),
        lambda: conv2d(relu(X), _kernel(2, 9), padding=(1, 1)),
        lambda: conv2d(X, noise(4, 1, 3, 3), padding=(1, 1), groups=4),
    ],
)
def test_others_stay(odd: Callable[[], Expr]) -> None:
    module = module_of(Tuple([*_convs(2, 2), odd()]), X)
    assert ops(checked(CombineParallelConv2D(), module, atol=1e-4))["nn.conv2d"] == 3
    assert ops(checked(CombineParallelConv2D(2), module, atol=1e-4))["nn.conv2d"] == 2


def test_channels_last() -> None:
    x = var("x", 2, 5, 5, 3)
    kernels = [noise(1, 1, 3, k + 1, seed=k) for k in range(3)]
    body = Tuple(
        bias_add(conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"), noise(k + 1, seed=k), axis=-1)
        for k, w in enumerate(kernels)
    )
    assert ops(checked(CombineParallelConv2D(), module_of(body, x), atol=1e-4))["nn.bias_add"] == 1


def test_dense_as_batch() -> None:
    shared = const([[2.0], [3.0], [4.0]])
    branches = [
        multiply(relu(bias_add(dense(Y, noise(4, 5, seed=k)), noise(4, seed=k + 5), -1)), shared) for k in range(3)
    ]
    result = checked(CombineParallelDense(), module_of(Tuple(branches), Y))
    counts = ops(result)
    assert counts["nn.batch_matmul"] == counts["add"] == counts["nn.relu"] == counts["multiply"] == 1
    assert "nn.dense" not in counts


def test_dense_of_other_units() -> None:
    branches = [add(dense(Y, noise(k + 1, 5, seed=k)), noise(k + 1, seed=k + 5)) for k in range(3)]
    module = module_of(Tuple(branches), Y)
    assert ops(checked(CombineParallelDense(), module))["nn.dense"] == 3
    result = checked(CombineParallelDense(to_batch=False), module)
    assert ops(result) == {"nn.dense": 1, "add": 1, "concatenate": 2, "strided_slice": 3}


@pytest.mark.parametrize("transpose_b", [True, False])
def test_batch_matmul(transpose_b: bool) -> None:
    a = var("a", 2, 3, 4)
    others = [var(f"b{k}", 2, *((k + 1, 4) if transpose_b else (4, k + 1))) for k in range(3)]
    body = Tuple(relu(batch_matmul(a, b, transpose_b=transpose_b)) for b in others)
    result = checked(CombineParallelBatchMatmul(), module_of(body, a, *others))
    assert ops(result) == {"nn.batch_matmul": 1, "nn.relu": 1, "concatenate": 1, "strided_slice": 3}


def test_weights_that_need_another_branch_stay() -> None:
    square = var("s", 5, 5)
    first = dense(square, noise(5, 5, seed=1))
    second = dense(square, first)
    third = dense(square, noise(5, 5, seed=2))
    module = module_of(Tuple([second, third]), square)
    assert ops(checked(CombineParallelDense(2, to_batch=False), module, atol=1e-3))["nn.dense"] == 2


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


@pytest.mark.parametrize("copies", [True, False])
def test_the_data_of_a_batch_is_stacked_or_broadcasts(copies: bool) -> None:
    branches = [add(dense(Y, noise(4, 5, seed=k)), noise(4, seed=k + 5)) for k in range(3)]
    counts = ops(checked(CombineParallelDense(copies_data=copies), module_of(Tuple(branches), Y)))
    assert (counts["stack"], "split" in counts) == ((3, True) if copies else (2, False))
    assert counts["nn.batch_matmul"] == counts["add"] == 1
