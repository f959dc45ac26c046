# SPDX-License-Identifier: Apache-2.0
"""Data type conversion (cast), clipping, and leaky and parametric ReLU.

cast(x, "int32")                       # as numpy's astype
clip(x, 0.0, 6.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any, TypeVar

import numpy as np

from aotc.ir import Attrs, DType, OpPattern, Quantized, TensorType, Type, Types, args, require
from aotc.relay.expr import Call, Expr
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    Samples,
    along_axis,
    carried,
    choose,
    greater,
    lesser,
)
from aotc.relay.op.sample_arguments import ANY, FLOAT, NUMBER, accuracy, exact, random_array, special_values
from aotc.relay.op.type_rules import float_tensor, pointwise, require_dtype, tensor
from aotc.tir import const

E = TypeVar("E", bound=Expr)

# --- cast


class CastAttrs(Attrs):
    """`data` converted to `dtype`."""

    dtype: str


def _cast_samples() -> Samples:
    for source in ANY.examples:
        values = special_values(source)
        # numpy's conversion of NaN and of out-of-range values depends on the machine
        if DType(source).is_float:
            values = values[np.isfinite(values) & (np.abs(values.astype(np.float32)) < 120)]
        for target in ANY.examples:
            tame = np.abs(values) if DType(source).is_float and target.startswith("uint") else values
            yield exact(CastAttrs(dtype=target), tame)
    for target in ("float16", "bfloat16", "bool"):
        yield exact(CastAttrs(dtype=target), special_values("float32"))
    yield exact(CastAttrs(dtype="float64"), special_values("float16"))
    for shape in ((), (2, 1, 3), (0, 4)):
        yield exact(CastAttrs(dtype="int32"), random_array(shape))


cast = OpDef(
    name="cast",
    attrs=CastAttrs,
    infer=lambda a, types: TensorType(tensor(types[0]).shape, DType(a.dtype)),
    reference=lambda a, x: x.astype(DType(a.dtype).numpy),
    pattern=OpPattern.ELEMWISE,
    axes=pointwise,
    element=lambda a, i, x: x[i].astype(a.dtype),
    samples=_cast_samples,
)


def in_float32(body: Callable[..., E], *tensors: Expr) -> E | Call:
    """Return `body(*tensors)`, computed in float32 if all tensors are narrow floats (float16,
    bfloat16).

    The float32 result is rounded once to the dtype of the first tensor. Tensors of unknown type are
    passed unchanged.
    """
    types = [x.checked_type for x in tensors]
    narrow = [t.dtype for t in types if isinstance(t, TensorType) and t.dtype.is_narrow_float]
    if len(narrow) < len(tensors):
        return body(*tensors)
    return cast(body(*(cast(x, "float32") for x in tensors)), str(narrow[0]))


# --- clip


class ClipAttrs(Attrs):
    """min(max(a, a_min), a_max), with NaN preserved; bounds of integers are rounded toward the
    inside.
    """

    a_min: float
    a_max: float


def _clip_infer(a: ClipAttrs, types: Types) -> Type:
    require("clip.bounds", not (math.isnan(a.a_min) or math.isnan(a.a_max)), "a bound is not a number")
    data = tensor(types[0])
    require_dtype(data.dtype, NUMBER.accepts(data.dtype))
    return data


def _bounds(a: ClipAttrs, dtype: DType) -> tuple[int | float | None, int | float | None]:
    """Return the bounds in the data's dtype; None for a bound outside of the range of the dtype."""
    if dtype.is_integer:
        low = dtype.max if a.a_min > dtype.max else None if a.a_min <= dtype.min else math.ceil(a.a_min)
        high = dtype.min if a.a_max < dtype.min else None if a.a_max >= dtype.max else math.floor(a.a_max)
        return low, high
    low = None if a.a_min < dtype.min else min(a.a_min, dtype.max)
    return low, None if a.a_max > dtype.max else max(a.a_max, dtype.min)


def _clamped(a: ClipAttrs, dtype: DType, x: Any) -> Any:
    low, high = _bounds(a, dtype)
    x = x if low is None else greater(x, low)
    return x if high is None else lesser(x, high)


def _clip_reference(a: ClipAttrs, data: Array) -> Array:
    return np.asarray(_clamped(a, DType.of(data), carried(data))).astype(data.dtype)


def _clip_samples() -> Samples:
    for dtype, (low, high) in product(NUMBER.examples, ((0.0, 6.0), (-1.0, 1.0))):
        yield exact(ClipAttrs(a_min=low, a_max=high), special_values(dtype))
    bounds = ((-math.inf, 1.0), (-math.inf, math.inf), (0.5, math.inf), (3.0, -3.0), (-1e30, 1e30))
    for (low, high), dtype in product(bounds, ("float32", "float16", "int8")):
        yield exact(ClipAttrs(a_min=low, a_max=high), special_values(dtype))
    yield exact(ClipAttrs(a_min=0.0, a_max=1.0), random_array((0, 2)))
    yield exact(ClipAttrs(a_min=0.0, a_max=0.1), random_array(()))


clip = OpDef(
    name="clip",
    attrs=ClipAttrs,
    args=args("a"),
    infer=_clip_infer,
    reference=_clip_reference,
    pattern=OpPattern.ELEMWISE,
    axes=pointwise,
    element=lambda a, i, data: _clamped(a, data.dtype, data[i]),
    quantized=Quantized.RESCALE,
    samples=_clip_samples,
)


# --- leaky_relu, prelu


class LeakyReluAttrs(Attrs):
    """x where x > 0, else alpha * x."""

    alpha: float = 0.25


def _leaky(x: Any, slope: Any) -> Any:
    return choose(x > 0, x, x * slope)


def _leaky_samples() -> Samples:
    for dtype, alpha in product(FLOAT.examples, (0.25, 0.1, -1.5)):
        yield Sample(args=(special_values(dtype),), attrs=LeakyReluAttrs(alpha=alpha), accuracy=accuracy(dtype))
    for shape in ((), (2, 1, 3), (0, 4)):
        yield Sample(args=(random_array(shape),), attrs=LeakyReluAttrs())


leaky_relu = OpDef(
    name="nn.leaky_relu",
    attrs=LeakyReluAttrs,
    infer=lambda _, types: float_tensor(types[0]),
    reference=lambda a, x: _leaky(x, np.asarray(a.alpha).astype(x.dtype)),
    pattern=OpPattern.ELEMWISE,
    axes=pointwise,
    element=lambda a, i, x: _leaky(x[i], const(a.alpha, x.dtype)),
    samples=_leaky_samples,
)


class PReluAttrs(Attrs):
    """x where x > 0, else alpha[channel] * x."""

    axis: int = 1


_PRELU = [
    (((2, 3, 4), (3,)), {"axis": 1}),
    (((3,), (3,)), {"axis": 0}),
    (((2, 3), (3,)), {"axis": -1}),
    (((2, 0), (0,)), {"axis": 1}),
]
prelu = along_axis("nn.prelu", PReluAttrs, "alpha", _leaky, "prelu.alpha", _PRELU, float_tensor)
