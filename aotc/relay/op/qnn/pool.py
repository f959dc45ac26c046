# SPDX-License-Identifier: Apache-2.0
"""qnn.avg_pool2d: means of windows of quantised tensors.

avg_pool2d(x, 0.1, 3, 0.1, 3, pool_size=(2, 2), strides=(2, 2))

Sums in float32, in the order of the window's rows, as in ONNX Runtime: sums of integers would round ties another way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc.ir import AxisMap, DType, Layout, OpPattern, Type, Types, args, variant
from aotc.relay.expr import Expr, tensor_type_of
from aotc.relay.op import binary, pool
from aotc.relay.op.opdef import Array, OpDef, Samples
from aotc.relay.op.qnn import numbers, rounded, scale, table
from aotc.relay.op.qnn.numbers import laid, made
from aotc.relay.op.rules import tensor
from aotc.relay.op.samples import random_array

_NAMES = ("input_scale", "input_zero_point", "output_scale", "output_zero_point")
QuantisedAvgPoolAttrs: Any = variant(pool.avg_pool2d.attrs, "QuantisedAvgPoolAttrs")
QuantisedAvgPoolAttrs.__doc__ = """The mean over each window of the numbers that integers stand for.

round_even(mean / output_scale + output_zero_point) saturated, in float32.
"""


def _infer(a: Any, types: Types) -> Type:
    data = numbers.quantised(types[0])
    numbers.check_pairs(types[1:], data, None, *_NAMES)
    return pool.avg_pool2d.infer(a, types[:1])


def _axes(a: Any, types: Types) -> AxisMap:
    assert pool.avg_pool2d.axes is not None
    found = pool.avg_pool2d.axes(a, types[:1])
    assert found is not None
    rank = tensor(types[0]).rank
    return AxisMap((*found.inputs, *((None,) * rank for _ in types[1:])))


def _summed(a: Any, x: Array) -> tuple[Array, Array]:
    """The sums of windows in canonical order, tap by tap, and how many elements each counts."""
    windows = pool.windows_of(2, a, x.shape[2:])
    pads = [(w.pad[0], w.reach() - w.extent - w.pad[0]) for w in windows]
    x = np.pad(x, ((0, 0), (0, 0), *pads))
    total = np.zeros((*x.shape[:2], *(w.count for w in windows)), np.float32)
    for taps in np.ndindex(*(w.size for w in windows)):
        starts = [k * w.dilation for k, w in zip(taps, windows, strict=True)]
        spans = [slice(s, s + (w.count - 1) * w.stride + 1, w.stride) for s, w in zip(starts, windows, strict=True)]
        total += x[:, :, spans[0], spans[1]]
    counts = [np.maximum(w.seen(np.arange(w.count), a.count_include_pad), 1) for w in windows]
    return total, np.multiply.outer(*counts)


def _reference(a: Any, x: Array, s: Array, z: Array, so: Array, zo: Array) -> Array:
    source, result = pool.pool_layouts(2, a)
    wide = numbers.dequantized(x, s, z).transpose(source)
    total, count = _summed(a, wide)
    mean = total / count.astype(np.float32)
    real = mean / so.astype(np.float32).reshape(()) + zo.astype(np.float32).reshape(())
    found = numbers.stored(np.rint(real), np.zeros(()), None, DType.of(x))
    return np.asarray(found.transpose(np.argsort(result)))


def _expand(a: Any, x: Expr, s: Expr, z: Expr, so: Expr, zo: Expr) -> Expr:
    table.check(x, s, z, so, zo)
    whole = numbers.converted(numbers.centred(x, z), "float32")
    real = made(rounded.product, whole, laid(s, None, 0, "float32"))
    mean = pool.avg_pool2d(real, **dict(a.items()))
    scaled = made(binary.divide, mean, laid(so, None, 0, "float32"))
    y = made(binary.add, scaled, laid(zo, None, 0, "float32"))
    return numbers.nearest(y, numbers.constant(0, "int32"), None, tensor_type_of(x).dtype)


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
            yield numbers.with_constants(QuantisedAvgPoolAttrs(**given), x, *pair, *onto)


avg_pool2d = OpDef(
    name="qnn.avg_pool2d",
    attrs=QuantisedAvgPoolAttrs,
    args=(*args("data"), *numbers.scales(*_NAMES)),
    infer=_infer,
    reference=_reference,
    axes=_axes,
    expand=_expand,
    layout=Layout.BARRIER,
    samples=_samples,
    **numbers.facets(OpPattern.OUT_ELEMWISE_FUSABLE),
)
