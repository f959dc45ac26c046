# SPDX-License-Identifier: Apache-2.0
"""Spans of weights that FoldScaleAxis scales; `fold_scale_axis.test` has all other cases."""

from __future__ import annotations

from typing import Any

from passes.graphs import module_of, noise, var

from aotc.ir.transform import PassContext
from aotc.relay.expr import Expr
from aotc.relay.op.binary_elementwise import multiply
from aotc.relay.op.conv import conv2d
from aotc.relay.transform import FoldScaleAxis

S8 = noise(8, 1, 1, seed=1, positive=True)
IMAGE = (1, 6, 5, 5)


def conv(x: Expr, **attributes: Any) -> Expr:
    return conv2d(x, noise(8, 6 // attributes.get("groups", 1), 3, 3, seed=3), padding=(1, 1), **attributes)


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
