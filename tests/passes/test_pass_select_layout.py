# SPDX-License-Identifier: Apache-2.0
"""SelectLayout: channels last where that is faster, never another result."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.dimensions import SymDim, is_static
from aotc.ir.transform import PassContext
from aotc.ir.types import TensorType
from aotc.relay.analysis import list_op_freqs
from aotc.relay.expr import Call, Constant, Expr, Function, Var
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import right_shift
from aotc.relay.op.cast_clip_prelu import cast
from aotc.relay.op.concat_split import concatenate
from aotc.relay.op.conv import conv2d
from aotc.relay.op.elementwise_unary import relu
from aotc.relay.structural_equality import structural_equal
from aotc.relay.transform.select_layout import SelectLayout
from aotc.relay.visitor import post_order
from aotc.tir.target import get_target

RNG = np.random.default_rng(0)
V4 = get_target("x86-64-v4")
KEY = "relay.SelectLayout.channels_last"


def weight(*shape: int) -> Constant:
    return Constant(RNG.normal(size=shape).astype(np.float32))


def separable(x: Expr, blocks: int, channels: int) -> Expr:
    """Depthwise and pointwise convolutions in turn."""
    for _ in range(blocks):
        x = relu(conv2d(x, weight(channels, 1, 3, 3), padding=(1, 1), groups=channels))
        x = relu(conv2d(x, weight(channels, channels, 1, 1)))
    return x


def selected(f: Function, target: str = "x86-64-v4", **config: bool) -> Function:
    before = IRModule({"main": f})
    with PassContext(opt_level=3, config={KEY: config["last"]} if config else {}):
        after = SelectLayout(get_target(target))(before)
    data = [RNG.normal(size=p.checked_type.static_shape).astype(np.float32) for p in f.params]  # type: ignore[union-attr]
    expected = evaluate(before, *data)
    np.testing.assert_allclose(evaluate(after, *data), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert str(after.main.checked_type) == str(f.checked_type)
    return after.main


def layouts(f: Function) -> list[str]:
    calls = (n for n in post_order(f) if isinstance(n, Call) and getattr(n.op, "name", "") == "nn.conv2d")
    return [c.attrs.data_layout for c in calls]  # type: ignore[attr-defined]


def test_separable_convolutions_have_the_channels_last() -> None:
    x = Var("x", TensorType((1, 3, 20, 20)))
    stem = relu(conv2d(x, weight(32, 3, 3, 3), padding=(1, 1)))
    found = selected(Function((x,), separable(stem, 3, 32)))
    assert layouts(found) == ["NCHW"] + ["NHWC"] * 6  # few channels are read as they lie
    assert list_op_freqs(found)["layout_transform"] == 1  # the result


@pytest.mark.parametrize("last", [True, False])
def test_the_configuration_decides(last: bool) -> None:
    x = Var("x", TensorType((1, 16, 9, 9)))
    f = Function((x,), separable(x, 2, 16))
    assert layouts(selected(f, last=last)) == ["NHWC" if last else "NCHW"] * 4


def test_winograd_keeps_the_channels_first() -> None:
    x = body = Var("x", TensorType((1, 64, 28, 28)))
    for _ in range(4):
        body = relu(conv2d(body, weight(64, 64, 3, 3), padding=(1, 1)))  # type: ignore[assignment]
    f = Function((x,), body)
    assert layouts(selected(f)) == ["NCHW"] * 4


def test_scalar_targets_keep_what_they_have() -> None:
    x = Var("x", TensorType((1, 16, 9, 9)))
    f = Function((x,), separable(x, 2, 16))
    assert structural_equal(selected(f, target="c").body, f.body)


def bytes_network(channels: int, size: int) -> Function:
    """A stem of one channel and two pointwise convolutions of bytes, channels first."""
    x = Var("x", TensorType((1, 1, size, size), "int8"))
    body: Expr = x
    for inner, kernel in ((1, 3), (channels, 1), (channels, 1)):
        values = RNG.integers(-128, 128, (channels, inner, kernel, kernel)).astype(np.int8)
        sums = conv2d(body, Constant(values), padding=(kernel // 2,) * 2, out_dtype="int32")
        body = cast(right_shift(sums, Constant(np.int32(9))), dtype="int8")
    return Function((x,), body)


@pytest.mark.parametrize("channels", [2, 8, 16])
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55", "cortex-m0plus"])
def test_bytes_decide_on_microcontrollers(target: str, channels: int) -> None:
    """Runs of channels are read where they lie, if the channels come last: no copy of a convolution's data."""
    function = bytes_network(channels, 12)
    before = IRModule({"main": function})
    with PassContext(opt_level=3):
        after = SelectLayout(get_target(target))(before)
    found = layouts(after.main)
    assert found == (["NCHW"] * 3 if target == "cortex-m0plus" else ["NCHW", "NHWC", "NHWC"])
    x = RNG.integers(-128, 128, (1, 1, 12, 12)).astype(np.int8)
    np.testing.assert_array_equal(evaluate(after, x), evaluate(before, x))
    floats = Function((y := Var("y", TensorType((1, 16, 9, 9))),), separable(y, 2, 16))
    assert structural_equal(selected(floats, target=target).body, floats.body)


def test_what_has_no_convolutions_is_left_alone() -> None:
    x = Var("x", TensorType((1, 16, 9, 9)))
    f = Function((x,), relu(x))
    assert structural_equal(selected(f).body, f.body)


def test_joined_branches() -> None:
    x = Var("x", TensorType((1, 16, 12, 12)))
    f = Function((x,), concatenate([separable(x, 2, 16), separable(x, 1, 16)], 1))
    assert set(layouts(selected(f, last=True))) == {"NHWC"}


def test_convolutions_of_unknown_shapes_stay() -> None:
    """Also where the result's shape is known: the weights say how many channels the data must have."""
    x = Var("x", TensorType((1, SymDim("channels"), 18, 18), "float32"))
    body = conv2d(relu(conv2d(x, weight(16, 3, 3, 3))), weight(16, 16, 3, 3))
    assert is_static(body.checked_type.shape)
    module = IRModule({"main": Function([x], body)})
    assert layouts(SelectLayout(V4)(module).main) == ["NCHW", "NCHW"]
