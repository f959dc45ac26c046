# SPDX-License-Identifier: Apache-2.0
"""FlattenAtrousConv: which blocked convolutions are dilated ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from passes.graphs import checked, const, module_of, noise, ops, var

from aotc import relay
from aotc.ir.transform import PassContext
from aotc.relay.expr import Call, Constant, Expr
from aotc.relay.module import IRModule
from aotc.relay.op.conv import Conv2DAttrs, conv1d, conv2d
from aotc.relay.op.elementwise_unary import relu
from aotc.relay.op.space_to_depth_and_batch import batch_to_space_nd, space_to_batch_nd
from aotc.relay.transform import FlattenAtrousConv
from aotc.relay.transform.pass_base import rewrite_report

NHWC: dict[str, Any] = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
NONE = ((0, 0), (0, 0))


def blocked(block: Any, paddings: Any, crops: Any, after: Any = None, value: float = 0, **options: Any) -> IRModule:
    """A convolution of 9 x 11 positions by a kernel of 3 x 3 over blocks."""
    x = var("x", 2, 9, 11, 3)
    phases = space_to_batch_nd(x, block, paddings, value)
    conv = conv2d(phases, noise(3, 3, 3, 4), **{**NHWC, **options})
    return module_of(relu(batch_to_space_nd(conv, after or block, crops)), x)


@pytest.mark.parametrize(
    ("block", "paddings", "crops", "options", "dilation", "padding"),
    [
        ((2, 2), ((2, 3), (2, 3)), ((0, 1), (0, 1)), {}, (2, 2), (2, 2, 2, 2)),
        ((2, 3), ((0, 1), (0, 1)), NONE, {"padding": (1, 1)}, (2, 3), (2, 3, 3, 4)),
        ((3, 1), NONE, NONE, {}, (3, 1), (0, 0, 0, 0)),
        ((2,), ((2, 3),), ((1, 0),), {}, (2, 1), (1, 0, 3, 0)),
        ((2, 2), ((2, 3), (4, 5)), NONE, {"dilation": (1, 2)}, (2, 4), (2, 4, 3, 5)),
        ((1, 1), NONE, NONE, {"groups": 1}, (1, 1), (0, 0, 0, 0)),
    ],
)
def test_dilated(block: Any, paddings: Any, crops: Any, options: Any, dilation: Any, padding: Any) -> None:
    result = checked(FlattenAtrousConv(), blocked(block, paddings, crops, **options), atol=1e-4)
    assert ops(result) == {"nn.conv2d": 1, "nn.relu": 1}
    (conv,) = (n for n in result.main.body.args if isinstance(n, Call))  # type: ignore[union-attr]
    assert isinstance(conv.attrs, Conv2DAttrs)
    assert (conv.attrs.dilation, conv.attrs.padding) == (dilation, padding)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"strides": (1, 2), "padding": (1, 1)}, "strides"),
        ({"value": 1.0}, "not the convolution's"),
        ({"crops": ((3, 0), (0, 0))}, "crops"),
        ({"after": (4, 1)}, "another way"),
        ({"data_layout": "NHCW"}, "axes"),
        ({"data_layout": "NWHC"}, "axes"),
    ],
)
def test_others_stay(change: dict[str, Any], reason: str) -> None:
    options: dict[str, Any] = {"crops": NONE, **change}
    if "data_layout" in options:  # channels where the width was
        x = var("x", 2, 9, *((3, 11) if change["data_layout"] == "NHCW" else (11, 3)))
        conv = conv2d(space_to_batch_nd(x, (3,), ((0, 0),)), noise(3, 3, 3, 4), **{**NHWC, **change})
        module = module_of(batch_to_space_nd(conv, (3,), ((0, 0),)), x)
    else:
        module = blocked((2, 2), ((2, 3), (2, 3)), **options)
    with rewrite_report() as report:
        result = checked(FlattenAtrousConv(), module, atol=1e-4)
    assert ops(result)["nn.space_to_batch_nd"] == 1
    assert [r for stats in report.values() for r in stats.refused if reason in r]


def test_parts_of_the_pattern_stay() -> None:
    x = var("x", 2, 8, 8, 3)
    split = space_to_batch_nd(x, (2, 2), NONE)
    for body in (batch_to_space_nd(split, (2, 2), NONE), batch_to_space_nd(relu(split), (2, 2), NONE)):
        module = module_of(body, x)
        assert FlattenAtrousConv()(module) is module


def test_quantized() -> None:
    """Blocks are filled up with what stands for 0."""
    x, w = var("x", 1, 6, 7, 2, dtype="int8"), Constant(np.arange(-27, 27, dtype=np.int8).reshape(3, 3, 2, 3))
    pairs = const(-4, "int32"), const(1, "int32"), const(0.5), const(0.25)
    for value, count in ((-4, 1), (0, 3)):
        phases = space_to_batch_nd(x, (2, 3), ((2, 2), (3, 5)), value)
        body = batch_to_space_nd(relay.qnn.op.conv2d(phases, w, *pairs, **NHWC), (2, 3), NONE)
        assert sum(ops(checked(FlattenAtrousConv(), module_of(body, x))).values()) == count


def test_other_ranks() -> None:
    x = var("x", 1, 12, 3)
    body: Expr = conv1d(space_to_batch_nd(x, (4,), ((4, 4),)), noise(3, 3, 2), data_layout="NWC", kernel_layout="WIO")
    assert ops(checked(FlattenAtrousConv(), module_of(batch_to_space_nd(body, (4,), ((0, 0),)), x))) == {"nn.conv1d": 1}


def test_compiled() -> None:
    """At level 3 a blocked convolution is one kernel, at level 1 it is three; the results agree."""
    module = blocked((2, 2), ((2, 3), (2, 3)), ((0, 1), (0, 1)))
    data = np.random.default_rng(2).standard_normal((2, 9, 11, 3)).astype(np.float32)
    results = []
    for level in (1, 3):
        with PassContext(opt_level=level):
            results.append(relay.create_executor("aot", module, target="c").evaluate()(data).numpy())
    np.testing.assert_allclose(*results, atol=1e-4)
