# SPDX-License-Identifier: Apache-2.0
"""Operators in channel-blocked layouts, chosen by registered functions, and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc import relay
from aotc.ir.diagnostics import AotcError
from aotc.ir.transform import PassContext
from aotc.relay.expr import Call, Expr, Function, Var
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.testing import TempOpAttr
from aotc.relay.visitor import post_order

RNG = np.random.default_rng(5)


def var(name: str, *shape: int) -> Var:
    return relay.var(name, shape=shape)


def values(function: Function) -> list[np.ndarray]:
    return [RNG.normal(size=p.annotation.static_shape).astype("float32") for p in function.params]  # type: ignore


def layouts(data: str, kernel: str = "OIHW") -> Any:
    """A function that wants convolutions in these layouts."""

    def alter(attrs: Any, inputs: Any, types: Any, result: Any) -> Any:
        return relay.nn.conv2d(*inputs, **{**attrs, "data_layout": data, "kernel_layout": kernel})

    return TempOpAttr("nn.conv2d", "FTVMAlterOpLayout", alter)


def altered(body: Expr, data: str = "NCHW4c", kernel: str = "OIHW4i4o") -> Expr:
    """The body in other layouts, which computes what it did."""
    function = Function(relay.analysis.free_vars(body), body)
    before = relay.transform.InferType()(IRModule.from_expr(function))
    with layouts(data, kernel), PassContext(opt_level=3):
        after = relay.transform.AlterOpLayout()(before)
    given = values(function)
    np.testing.assert_allclose(evaluate(after, *given), evaluate(before, *given), rtol=1e-4, atol=1e-5)
    return after["main"].body


def convolved(channels: int = 8, **attributes: Any) -> Call:
    return relay.nn.conv2d(var("x", 1, 8, 6, 6), var("w", channels, 8, 3, 3), padding=(1, 1), **attributes)


def moves(body: Expr) -> list[tuple[str, str]]:
    nodes = (n for n in post_order(body) if isinstance(n, Call) and n.op.name == "layout_transform")  # type: ignore
    return [(n.attrs["src_layout"], n.attrs["dst_layout"]) for n in nodes]


IN = [("NCHW", "NCHW4c"), ("OIHW", "OIHW4i4o")]


def test_blocks_go_on_to_what_follows() -> None:
    pooled = relay.nn.max_pool2d(relay.nn.relu(convolved()), pool_size=(2, 2))
    body = altered(relay.nn.batch_flatten(pooled))
    assert moves(body) == [*IN, ("NCHW4c", "NCHW")]
    assert body.args[0].args[0].attrs.layout == "NCHW4c"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("follow", "last"),
    [
        (lambda y: relay.sum(y, axis=1, keepdims=True), "NCHW1c"),
        (lambda y: relay.mean(y, axis=1, exclude=True), "C4c"),
        (lambda y: relay.min(y, axis=[2]), "NCW4c"),
        (lambda y: relay.nn.pad(y, pad_width=((0, 0), (0, 0), (1, 2), (0, 0))), "NCHW4c"),
        (lambda y: relay.strided_slice(y, begin=[0, 4], end=[1, 8]), "NCHW4c"),
        (lambda y: relay.strided_slice(y, begin=[1], end=[5], axes=[3]), "NCHW4c"),
        (lambda y: relay.concatenate([y, relay.abs(y)], axis=1), "NCHW4c"),
        (lambda y: relay.split(y, [4], axis=1)[1], "NCHW4c"),
        (lambda y: relay.nn.upsampling(y, scale_h=2.0, scale_w=2.0), "NCHW4c"),
    ],
)
def test_operators_along_axes(follow: Any, last: str) -> None:
    body = altered(follow(convolved()))
    assert [source for source, _ in moves(body)] == ["NCHW", "OIHW", last]


@pytest.mark.parametrize(
    "follow",
    [
        lambda y: relay.nn.pad(y, pad_width=((0, 0), (1, 0), (0, 0), (0, 0))),
        lambda y: relay.strided_slice(y, begin=[0, 2], end=[1, 8]),
        lambda y: relay.split(y, [6], axis=1)[0],
        lambda y: relay.nn.softmax(y, axis=1),
    ],
)
def test_operators_that_would_cut_blocks_see_the_data_as_it_was(follow: Any) -> None:
    body = altered(follow(convolved()))
    assert moves(body) == [*IN, ("NCHW4c", "NCHW")]


def test_operands_that_broadcast() -> None:
    y = convolved() + var("row", 1, 6, 6)
    y = y * var("scale", 8, 1, 1) + var("one", 1)
    body = altered(y + var("whole", 1, 8, 6, 6))
    assert ("NCHW", "NCHW1c") in moves(body)
    assert moves(body)[-1] == ("NCHW4c", "NCHW")


@pytest.mark.parametrize("channels", [6, 9])
def test_blocks_that_are_not_full_are_not_made(channels: int) -> None:
    assert moves(altered(relay.nn.relu(convolved(channels)))) == []


def test_programs_in_blocks_change_to_others() -> None:
    y = relay.nn.conv2d(
        var("x", 1, 2, 5, 5, 4), var("w", 2, 2, 1, 1, 4, 4), data_layout="NCHW4c", kernel_layout="OIHW4i4o"
    )
    body = altered(y + var("bias", 1, 2, 1, 1, 4), "NCHW2c", "OIHW2i2o")
    assert moves(body)[-1] == ("NCHW2c", "NCHW4c")
    # an operand of fewer axes is added in the layout that it is meant for
    body = altered(y + var("bias", 4), "NCHW", "OIHW")
    assert moves(body) == [("NCHW4c", "NCHW"), ("OIHW4i4o", "OIHW"), ("NCHW", "NCHW4c")]


@pytest.mark.parametrize("level", [0, 3])
def test_compiled(level: int) -> None:
    y = relay.nn.conv2d(
        var("x", 1, 2, 5, 5, 4), var("w", 1, 2, 3, 3, 4, 4), data_layout="NCHW4c", kernel_layout="OIHW4i4o"
    )
    y = relay.nn.avg_pool2d(y, pool_size=(2, 2), layout="NCHW4c")
    module = IRModule.from_expr(Function(relay.analysis.free_vars(y), y))
    given = values(module["main"])
    with PassContext(opt_level=level):
        run = relay.create_executor("graph", module, target="c").evaluate()
    np.testing.assert_allclose(run(*given).numpy(), evaluate(module, *given), rtol=1e-4, atol=1e-5)


def test_ill_formed_blocks() -> None:
    with pytest.raises(AotcError, match="a block of 16 has extent 4"):
        relay.nn.conv2d(var("x", 1, 2, 5, 5, 4), var("w", 8, 32, 1, 1), data_layout="NCHW16c")
    with pytest.raises(AotcError, match="malformed"):
        relay.nn.max_pool2d(var("x", 1, 2, 5, 5, 4), layout="NCHWc")


# --- scales into weights that are variables


def test_groups_that_blocks_would_divide_stay() -> None:
    x, layouts = var("x", 1, 6, 4, 4), [("NCHW4c", "OIHW4i4o", 4, 0), ("NCHW3c", "OIHW3i3o", 6, 3)]
    for data, kernel, channels, count in layouts:
        conv = relay.nn.conv2d(x, var("w", channels, 3, 1, 1), groups=2, channels=channels, kernel_size=1)
        assert len(moves(altered(conv, data, kernel))) == count
