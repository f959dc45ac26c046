# SPDX-License-Identifier: Apache-2.0
"""FoldScaleAxis: which multiplications go into weights, and that the values stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from passes.graphs import checked, const, module_of, noise, ops, var

from aotc.ir.transform import PassContext
from aotc.relay.expr import Constant, Expr, Tuple, Var
from aotc.relay.op.binary_elementwise import add, multiply, subtract
from aotc.relay.op.cast_clip_prelu import leaky_relu
from aotc.relay.op.conv import conv1d, conv2d, conv3d
from aotc.relay.op.dense import bias_add, dense
from aotc.relay.op.elementwise_unary import exp, relu
from aotc.relay.op.pool import max_pool2d
from aotc.relay.transform import FoldScaleAxis, ForwardFoldScaleAxis

Wrap = Callable[[Expr], Expr]
S8 = noise(8, 1, 1, seed=1, positive=True)
S6 = noise(6, 1, 1, seed=1, positive=True)
B8 = noise(8, 1, 1, seed=2)
B6 = noise(6, 1, 1, seed=2)
IMAGE = (1, 6, 5, 5)


def conv(x: Expr, **attributes: Any) -> Expr:
    return conv2d(x, noise(8, 6 // attributes.get("groups", 1), 3, 3, seed=3), padding=(1, 1), **attributes)


def left(body: Expr, *params: Var) -> int:
    """Multiplications left after the pass."""
    return ops(checked(FoldScaleAxis(), module_of(body, *params), rtol=1e-4, atol=1e-4)).get("multiply", 0)


BACKWARD: dict[str, Wrap] = {
    "conv2d": conv,
    "conv2d, 2 groups": lambda x: conv(x, groups=2),
    "conv2d, NHWC": lambda x: conv2d(x, noise(3, 3, 5, 8), data_layout="NHWC", kernel_layout="HWIO", out_layout="NCHW"),
    "relu": lambda x: relu(conv(x)),
    "leaky_relu": lambda x: leaky_relu(conv(x), 0.1),
    "sum with a constant": lambda x: add(conv(x), B8),
    "constant minus": lambda x: subtract(B8, conv(x)),
    "scalar added": lambda x: add(conv(x), const(0.5)),
    "bias_add": lambda x: bias_add(conv(x), noise(8)),
    "sum of two": lambda x: add(conv(x), relu(conv(x))),
    "all of it": lambda x: relu(add(leaky_relu(subtract(conv(x), B8), 0.2), B8)),
}


@pytest.mark.parametrize("name", BACKWARD)
@pytest.mark.parametrize("scale", [S8, const(2.5), const([[[3.0]]])], ids=["per channel", "scalar", "one element"])
def test_backward(name: str, scale: Constant) -> None:
    x = var("x", *IMAGE)
    if "NHWC" in name:
        x = var("x", 1, 7, 5, 5)
    assert left(multiply(BACKWARD[name](x), scale), x) == 0
    assert left(multiply(scale, BACKWARD[name](x)), x) == 0


def test_backward_other_anchors() -> None:
    x = var("x", 2, 6, 9)
    assert left(multiply(conv1d(x, noise(8, 6, 3)), noise(8, 1, seed=4)), x) == 0
    y = var("y", 1, 2, 3, 4, 5)
    assert left(multiply(conv3d(y, noise(3, 2, 2, 2, 2)), noise(3, 1, 1, 1, seed=4)), y) == 0
    z = var("z", 4, 6)
    assert left(multiply(relu(dense(z, noise(5, 6))), noise(5, seed=4, positive=True)), z) == 0


NOT_BACKWARD: dict[str, Wrap] = {
    "a negative factor through relu": lambda x: multiply(relu(conv(x)), noise(8, 1, 1, seed=5)),
    "another axis": lambda x: multiply(conv(x), noise(5, 1, seed=1)),
    "two axes": lambda x: multiply(conv(x), noise(8, 5, 1, seed=1)),
    "a pool in between": lambda x: multiply(max_pool2d(conv(x), (2, 2)), S8),
    "a factor that is no constant": lambda x: multiply(conv(x), exp(conv(x))),
    "infinity": lambda x: multiply(conv(x), const(np.full((8, 1, 1), 1e39))),
    "a sum with what has no weights": lambda x: multiply(add(conv2d(x, noise(6, 6, 1, 1)), x), S6),
}


@pytest.mark.parametrize("name", NOT_BACKWARD)
def test_not_backward(name: str) -> None:
    x = var("x", *IMAGE)
    with np.errstate(over="ignore", invalid="ignore"):
        assert left(NOT_BACKWARD[name](x), x) >= 1


def test_a_result_that_others_need_is_not_scaled() -> None:
    x = var("x", *IMAGE)
    shared = conv(x)
    assert left(Tuple((multiply(shared, S8), shared)), x) == 1
    inner = relu(shared)
    assert left(Tuple((multiply(inner, S8), exp(inner))), x) == 1


def test_a_weight_that_is_no_constant_stays() -> None:
    x, w = var("x", *IMAGE), var("w", 8, 6, 3, 3)
    assert left(multiply(conv2d(x, w), S8), x, w) == 1


# --- forward

FORWARD: dict[str, Wrap] = {
    "conv2d": lambda x: conv(x),
    "relu": lambda x: conv(relu(x)),
    "sum": lambda x: conv(relu(add(x, B6))),
    "difference": lambda x: conv(subtract(B6, x)),
    "2 groups": lambda x: conv(x, groups=2),
    "depthwise": lambda x: conv2d(x, noise(12, 1, 3, 3), groups=6),
    "HWIO": lambda x: conv2d(x, noise(3, 3, 3, 8), groups=2, kernel_layout="HWIO"),
    "two users": lambda x: add(exp(conv(relu(x))), exp(conv(x, strides=(1, 1)))),
    "users below users": lambda x: Tuple((conv(x), conv(relu(leaky_relu(x))))),
}


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("scale", [S6, const(2.5)], ids=["per channel", "scalar"])
def test_forward(name: str, scale: Constant) -> None:
    x = var("x", *IMAGE)
    assert left(FORWARD[name](multiply(x, scale)), x) == 0
    assert left(FORWARD[name](multiply(multiply(scale, x), S6)), x) == 0


def test_forward_into_dense() -> None:
    x = var("x", 4, 6)
    assert left(dense(relu(multiply(x, noise(6, positive=True))), noise(5, 6)), x) == 0
    assert left(dense(multiply(x, noise(4, 1)), noise(5, 6)), x) == 1


NOT_FORWARD: dict[str, Wrap] = {
    "one user cannot": lambda x: Tuple((conv(x), exp(x))),
    "it is a result": lambda x: Tuple((conv(x), x)),
    "pool": lambda x: conv(max_pool2d(x, (2, 2))),
    "no constant is added": lambda x: conv(add(x, exp(x))),
}


@pytest.mark.parametrize("name", NOT_FORWARD)
def test_not_forward(name: str) -> None:
    x = var("x", *IMAGE)
    assert left(NOT_FORWARD[name](multiply(x, S6)), x) == 1


def test_data_that_is_the_weight_as_well_stays_scaled() -> None:
    x = var("x", 4, 6)
    scaled = multiply(x, noise(6))
    module = module_of(dense(scaled, scaled), x)
    fold = ForwardFoldScaleAxis()
    result = checked(fold, module, rtol=1e-5, atol=1e-5)
    assert ops(result)["multiply"] == 1


def test_division_by_a_tiny_scale_is_not_risked() -> None:
    x = var("x", *IMAGE)
    tiny = const(np.full((6, 1, 1), 1e-38))
    assert left(conv(add(multiply(x, tiny), const(1e5))), x) == 1
    zero = const(np.zeros((6, 1, 1)))
    assert left(conv(add(multiply(x, zero), B6)), x) == 1
    assert left(conv(multiply(x, zero)), x) == 0


def test_addends_are_not_confused_with_data() -> None:
    """The data side of a sum may itself be a quotient of constants."""
    x = var("x", *IMAGE)
    scaled = multiply(add(x, const(np.ones(IMAGE))), S6)
    body = conv(add(scaled, B6))
    result = checked(ForwardFoldScaleAxis(), module_of(body, x), rtol=1e-4, atol=1e-4)
    assert ops(result)["divide"] == 1


def test_levels_gate_the_two_halves() -> None:
    x = var("x", *IMAGE)
    module = module_of(multiply(conv(x), S8), x)
    with PassContext(opt_level=2):
        assert ops(FoldScaleAxis()(module))["multiply"] == 1
    with PassContext(opt_level=3):
        assert "multiply" not in ops(FoldScaleAxis()(module))


def test_spans_name_both() -> None:
    from aotc.ir.span import Span, span_scope

    x = var("x", *IMAGE)
    with span_scope(Span("net", node="conv")):
        anchor = conv(x)
    with span_scope(Span("net", node="scale")):
        body = multiply(anchor, S8)
    with PassContext(opt_level=3):
        result = FoldScaleAxis()(module_of(body, x)).main.body
    assert result.span is not None
    assert [s.node for s in result.span.all_origins()] == ["conv", "scale"]
