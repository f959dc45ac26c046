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

from aotc.ir import Attrs, DType, OpPattern, QuantizationTreatment, TensorType, Type, Types, declare_arguments, require
from aotc.relay.expr import Call, Expr
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    Samples,
    choose,
    greater,
    lesser,
    op_with_vector_along_axis,
    to_numpy_computable_dtype,
)
from aotc.relay.op.operator_test_inputs import (
    ANY_DTYPE_KIND,
    FLOAT_KIND,
    NUMBER_KIND,
    exact_sample,
    random_array,
    sample_accuracy,
    special_values,
)
from aotc.relay.op.type_rules import elementwise_axis_map, require_dtype, require_float_tensor, require_tensor_type
from aotc.tir import const
from aotc.tir.numpy_semantics import cast_array_to_dtype

E = TypeVar("E", bound=Expr)

# --- cast


class CastAttrs(Attrs):
    """`data` converted to `dtype`."""

    dtype: str


def _cast_test_samples() -> Samples:
    for source in ANY_DTYPE_KIND.examples:
        values = special_values(source)
        for target in ANY_DTYPE_KIND.examples:
            yield exact_sample(CastAttrs(dtype=target), values)
    beyond = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 300.7, -300.7, 1e10, -1e10, 9.2e18, -9.3e18, 1.9e19])
    for source, target in product(("float32", "float64", "bfloat16"), ANY_DTYPE_KIND.examples):
        yield exact_sample(CastAttrs(dtype=target), beyond.astype(DType(source).numpy))
    for target in ("float16", "bfloat16", "bool"):
        yield exact_sample(CastAttrs(dtype=target), special_values("float32"))
    yield exact_sample(CastAttrs(dtype="float64"), special_values("float16"))
    for shape in ((), (2, 1, 3), (0, 4)):
        yield exact_sample(CastAttrs(dtype="int32"), random_array(shape))


cast = OpDef(
    name="cast",
    attrs=CastAttrs,
    infer=lambda a, types: TensorType(require_tensor_type(types[0]).shape, DType(a.dtype)),
    reference=lambda a, x: cast_array_to_dtype(x, DType(a.dtype).numpy),
    pattern=OpPattern.ELEMWISE,
    axes=elementwise_axis_map,
    element=lambda a, i, x: x[i].astype(a.dtype),
    samples=_cast_test_samples,
)


def compute_narrow_floats_in_float32(build_expr: Callable[..., E], *tensors: Expr) -> E | Call:
    """Return `build_expr(*tensors)`, computed in float32 if all tensors are narrow floats (float16,
    bfloat16).

    The float32 result is rounded once to the dtype of the first tensor. Tensors of unknown type are
    passed unchanged.
    """
    types = [x.checked_type for x in tensors]
    narrow = [t.dtype for t in types if isinstance(t, TensorType) and t.dtype.is_narrow_float]
    if len(narrow) < len(tensors):
        return build_expr(*tensors)
    return cast(build_expr(*(cast(x, "float32") for x in tensors)), str(narrow[0]))


# --- clip


class ClipAttrs(Attrs):
    """min(max(a, a_min), a_max), with NaN preserved; bounds of integers are rounded toward the
    inside.
    """

    a_min: float
    a_max: float


def _infer_clip_type(a: ClipAttrs, types: Types) -> Type:
    require("clip.bounds", not (math.isnan(a.a_min) or math.isnan(a.a_max)), "a bound is not a number")
    data = require_tensor_type(types[0])
    require_dtype(data.dtype, NUMBER_KIND.accepts(data.dtype))
    return data


def _clip_bounds_in_dtype(a: ClipAttrs, dtype: DType) -> tuple[int | float | None, int | float | None]:
    """Return the bounds in the data's dtype; None for a bound outside of the range of the dtype."""
    if dtype.is_integer:
        low = dtype.max if a.a_min > dtype.max else None if a.a_min <= dtype.min else math.ceil(a.a_min)
        high = dtype.min if a.a_max < dtype.min else None if a.a_max >= dtype.max else math.floor(a.a_max)
        return low, high
    low = None if a.a_min < dtype.min else min(a.a_min, dtype.max)
    return low, None if a.a_max > dtype.max else max(a.a_max, dtype.min)


def _clamp_to_bounds(a: ClipAttrs, dtype: DType, x: Any) -> Any:
    low, high = _clip_bounds_in_dtype(a, dtype)
    x = x if low is None else greater(x, low)
    return x if high is None else lesser(x, high)


def _clip_reference(a: ClipAttrs, data: Array) -> Array:
    return np.asarray(_clamp_to_bounds(a, DType.from_numpy(data), to_numpy_computable_dtype(data))).astype(data.dtype)


def _clip_test_samples() -> Samples:
    for dtype, (low, high) in product(NUMBER_KIND.examples, ((0.0, 6.0), (-1.0, 1.0))):
        yield exact_sample(ClipAttrs(a_min=low, a_max=high), special_values(dtype))
    bounds = ((-math.inf, 1.0), (-math.inf, math.inf), (0.5, math.inf), (3.0, -3.0), (-1e30, 1e30))
    for (low, high), dtype in product(bounds, ("float32", "float16", "int8")):
        yield exact_sample(ClipAttrs(a_min=low, a_max=high), special_values(dtype))
    yield exact_sample(ClipAttrs(a_min=0.0, a_max=1.0), random_array((0, 2)))
    yield exact_sample(ClipAttrs(a_min=0.0, a_max=0.1), random_array(()))


clip = OpDef(
    name="clip",
    attrs=ClipAttrs,
    args=declare_arguments("a"),
    infer=_infer_clip_type,
    reference=_clip_reference,
    pattern=OpPattern.ELEMWISE,
    axes=elementwise_axis_map,
    element=lambda a, i, data: _clamp_to_bounds(a, data.dtype, data[i]),
    quantized=QuantizationTreatment.RESCALE,
    samples=_clip_test_samples,
)


# --- leaky_relu, prelu


class LeakyReluAttrs(Attrs):
    """x where x > 0, else alpha * x."""

    alpha: float = 0.25


def _leaky_relu_value(x: Any, slope: Any) -> Any:
    return choose(x > 0, x, x * slope)


def _leaky_relu_test_samples() -> Samples:
    for dtype, alpha in product(FLOAT_KIND.examples, (0.25, 0.1, -1.5)):
        yield Sample(args=(special_values(dtype),), attrs=LeakyReluAttrs(alpha=alpha), accuracy=sample_accuracy(dtype))
    for shape in ((), (2, 1, 3), (0, 4)):
        yield Sample(args=(random_array(shape),), attrs=LeakyReluAttrs())


leaky_relu = OpDef(
    name="nn.leaky_relu",
    attrs=LeakyReluAttrs,
    infer=lambda _, types: require_float_tensor(types[0]),
    reference=lambda a, x: _leaky_relu_value(x, np.asarray(a.alpha).astype(x.dtype)),
    pattern=OpPattern.ELEMWISE,
    axes=elementwise_axis_map,
    element=lambda a, i, x: _leaky_relu_value(x[i], const(a.alpha, x.dtype)),
    samples=_leaky_relu_test_samples,
)


class PReluAttrs(Attrs):
    """x where x > 0, else alpha[channel] * x."""

    axis: int = 1


_PRELU_TEST_CASES = [
    (((2, 3, 4), (3,)), {"axis": 1}),
    (((3,), (3,)), {"axis": 0}),
    (((2, 3), (3,)), {"axis": -1}),
    (((2, 0), (0,)), {"axis": 1}),
]
prelu = op_with_vector_along_axis(
    "nn.prelu", PReluAttrs, "alpha", _leaky_relu_value, "prelu.alpha", _PRELU_TEST_CASES, require_float_tensor
)
