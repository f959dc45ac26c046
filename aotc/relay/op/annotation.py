# SPDX-License-Identifier: Apache-2.0
"""Operators that tell passes something and compute nothing.

nn.relu(annotation.stop_fusion(add(x, y)))       # two kernels, where FuseOps would make one
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.op import OpPattern
from aotc.relay.expr import Call, Expr
from aotc.relay.expr import call as node
from aotc.relay.op.opdef import Accuracy, OpDef, Sample
from aotc.relay.op.rules import pointwise, same_type
from aotc.relay.op.samples import random_array
from aotc.tir import te


def _samples() -> Iterator[Sample]:
    for shape, dtype in (((2, 3), "float32"), ((), "int8"), ((4, 1, 2), "float16"), ((0, 2), "int64")):
        yield Sample(args=(random_array(shape, dtype),), accuracy=Accuracy.EXACT)


STOP_FUSION = OpDef(
    name="annotation.stop_fusion",
    infer=same_type,
    reference=lambda _, data: data,
    pattern=OpPattern.OPAQUE,
    axes=pointwise,
    compute=lambda _, args: te.view(args[0], args[0].shape),
    samples=_samples,
)


def stop_fusion(data: Expr) -> Call:
    """`data` itself, which no kernel computes together with what uses it."""
    return node(STOP_FUSION, (data,))


OPS: tuple[OpDef, ...] = (STOP_FUSION,)
