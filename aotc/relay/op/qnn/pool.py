# SPDX-License-Identifier: Apache-2.0
"""qnn.avg_pool2d: means of windows of quantised tensors.

avg_pool2d(x, 0.1, 3, 0.1, 3, pool_size=(2, 2), strides=(2, 2))

Sums in float32, in the order of the window's rows, as in ONNX Runtime: sums of integers would round ties another way.
"""

from typing import Any

import numpy as np

from aotc.ir import DType, Layout, OpPattern, Type, Types, args, variant
from aotc.relay.expr import Expr
from aotc.relay.op import pool
from aotc.relay.op.define import Array, OpDef, Samples, random_array
from aotc.relay.op.qnn import numbers as q
from aotc.relay.op.qnn import rounded, scale

_NAMES = (*q.FROM, *q.ONTO)
QuantisedAvgPoolAttrs: Any = variant(pool.avg_pool2d.attrs, "QuantisedAvgPoolAttrs")
QuantisedAvgPoolAttrs.__doc__ = """The mean over each window of the numbers that integers stand for.

round_even(mean / output_scale + output_zero_point) saturated, in float32.
"""


def _infer(a: Any, types: Types) -> Type:
    data = q.quantised(types[0])
    q.check_pairs(types[1:], data, None, *_NAMES)
    return pool.avg_pool2d.infer(a, types[:1])


def _reference(a: Any, x: Array, s: Array, z: Array, so: Array, zo: Array) -> Array:
    mean = pool.avg_pool2d.reference(a, q.dequantized(x, s, z))
    real = mean / so.astype(np.float32).reshape(()) + zo.astype(np.float32).reshape(())
    return q.stored(np.rint(real), np.zeros(()), None, DType.of(x))


def _expand(a: Any, x: Expr, s: Expr, z: Expr, so: Expr, zo: Expr) -> Expr:
    q.checked(q.dtype_of(x), _NAMES, s, z, so, zo)
    whole = q.converted(q.centred(x, z), "float32")
    real = q.made(rounded.product, whole, q.laid(s, None, 0, "float32"))
    mean = pool.avg_pool2d(real, **dict(a.items()))
    scaled = q.div(mean, q.laid(so, None, 0, "float32"))
    y = q.add(scaled, q.laid(zo, None, 0, "float32"))
    return q.nearest(y, q.constant(0, "int32"), None, q.dtype_of(x))


def _samples() -> Samples:
    onto = (scale.scale_array(0.013), scale.zero_array(3))
    for dtype in ("int8", "uint8"):
        for given in (
            {"pool_size": (2, 2), "strides": (2, 2)},
            {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1), "ceil_mode": True},
            {"pool_size": (3, 2), "padding": (1, 0), "layout": "NHWC", "count_include_pad": True},
            {"pool_size": (8, 7)},
        ):
            x = random_array((1, 8, 7, 3) if "layout" in given else (1, 3, 8, 7), dtype)
            pair = (scale.scale_array(0.0137), scale.zero_array(5))
            yield q.with_constants(QuantisedAvgPoolAttrs(**given), x, *pair, *onto)


avg_pool2d = OpDef(
    name="qnn.avg_pool2d",
    attrs=QuantisedAvgPoolAttrs,
    args=(*args("data"), *q.scales(*_NAMES)),
    infer=_infer,
    reference=_reference,
    axes=pool.avg_pool2d.axes,
    expand=_expand,
    layout=Layout.BARRIER,
    samples=_samples,
    **q.facets(OpPattern.OUT_ELEMWISE_FUSABLE),
)
