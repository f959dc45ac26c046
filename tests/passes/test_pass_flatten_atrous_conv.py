# SPDX-License-Identifier: Apache-2.0
"""FlattenAtrousConv in compiled code; `flatten_atrous_conv.test` has single cases."""

from __future__ import annotations

from typing import Any

import numpy as np
from passes.graphs import module_of, noise, var

from aotc import relay
from aotc.ir.transform import PassContext
from aotc.relay.module import IRModule
from aotc.relay.op.conv import conv2d
from aotc.relay.op.elementwise_unary import relu
from aotc.relay.op.space_to_depth_and_batch import batch_to_space_nd, space_to_batch_nd

NHWC: dict[str, Any] = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def blocked(block: Any, paddings: Any, crops: Any, after: Any = None, value: float = 0, **options: Any) -> IRModule:
    """A convolution of 9 x 11 positions by a kernel of 3 x 3 over blocks."""
    x = var("x", 2, 9, 11, 3)
    phases = space_to_batch_nd(x, block, paddings, value)
    conv = conv2d(phases, noise(3, 3, 3, 4), **{**NHWC, **options})
    return module_of(relu(batch_to_space_nd(conv, after or block, crops)), x)


def test_compiled() -> None:
    """At level 3 a blocked convolution is one kernel, at level 1 it is three; the results agree."""
    module = blocked((2, 2), ((2, 3), (2, 3)), ((0, 1), (0, 1)))
    data = np.random.default_rng(2).standard_normal((2, 9, 11, 3)).astype(np.float32)
    results = []
    for level in (1, 3):
        with PassContext(opt_level=level):
            results.append(relay.create_executor("aot", module, target="c").evaluate()(data).numpy())
    np.testing.assert_allclose(*results, atol=1e-4)
