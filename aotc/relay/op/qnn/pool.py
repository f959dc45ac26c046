# SPDX-License-Identifier: Apache-2.0
"""qnn.avg_pool2d: average pooling of quantized tensors.

avg_pool2d(x, 0.1, 3, 0.1, 3, pool_size=(2, 2), strides=(2, 2))

Windows are summed in float32. The sums are exact: 8-bit windows of up to 65,793 elements sum to
less than 2^24.
"""

from typing import Any

import numpy as np

from aotc.ir import DType, Layout, OpPattern, Type, Types, args, variant
from aotc.relay.expr import Expr
from aotc.relay.op import pool
from aotc.relay.op.operator_definition import Array, OpDef, Samples, random_array
from aotc.relay.op.qnn import defined_rounding, requantize
from aotc.relay.op.qnn import quant_params as q

_NAMES = (*q.FROM, *q.ONTO)
QuantizedAvgPoolAttrs: Any = variant(pool.avg_pool2d.attrs, "QuantizedAvgPoolAttrs")
QuantizedAvgPoolAttrs.__doc__ = """The mean over each window of the numbers that integers stand for.

round_even(mean(data - input_zero_point) * (input_scale / output_scale)) + output_zero_point, saturated; the mean,
the ratio and the product are each rounded to float32.
"""


def _infer(a: Any, types: Types) -> Type:
    data = q.quantized_type(types[0])
    q.check_pairs(types[1:], data, None, *_NAMES)
    return pool.avg_pool2d.infer(a, types[:1])


def _reference(a: Any, x: Array, s: Array, z: Array, so: Array, zo: Array) -> Array:
    mean = pool.avg_pool2d.reference(a, q.offsets(x, z).astype(np.float32))
    ratio = s.astype(np.float32).reshape(()) / so.astype(np.float32).reshape(())
    return q.stored(np.rint(mean * ratio), zo, None, DType.of(x))


def _expand(a: Any, x: Expr, s: Expr, z: Expr, so: Expr, zo: Expr) -> Expr:
    q.checked(q.dtype_of(x), _NAMES, s, z, so, zo)
    mean = pool.avg_pool2d(q.converted(q.centered(x, z), "float32"), **dict(a.items()))
    ratio = q.div(q.laid(s, None, 0, "float32"), q.laid(so, None, 0, "float32"))
    return q.nearest(q.made(defined_rounding.product, mean, ratio), zo, None, q.dtype_of(x))


def _samples() -> Samples:
    onto = (requantize.scale_array(0.013), requantize.zero_array(3))
    for dtype in ("int8", "uint8"):
        for given in (
            {"pool_size": (2, 2), "strides": (2, 2)},
            {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1), "ceil_mode": True},
            {"pool_size": (3, 2), "padding": (1, 0), "layout": "NHWC", "count_include_pad": True},
            {"pool_size": (8, 7)},
        ):
            x = random_array((1, 8, 7, 3) if "layout" in given else (1, 3, 8, 7), dtype)
            pair = (requantize.scale_array(0.0137), requantize.zero_array(5))
            yield q.with_constants(QuantizedAvgPoolAttrs(**given), x, *pair, *onto)


avg_pool2d = OpDef(
    name="qnn.avg_pool2d",
    attrs=QuantizedAvgPoolAttrs,
    args=(*args("data"), *q.scales(*_NAMES)),
    infer=_infer,
    reference=_reference,
    axes=pool.avg_pool2d.axes,
    expand=_expand,
    layout=Layout.BARRIER,
    samples=_samples,
    **q.facets(OpPattern.OUT_ELEMWISE_FUSABLE),
)
