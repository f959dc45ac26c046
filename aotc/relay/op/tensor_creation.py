# SPDX-License-Identifier: Apache-2.0
"""Operators that create tensors: zeros, ones, full, their `_like` variants, and arange.

zeros((2, 3), "float32")
arange(0, 10, 2, "int64")              # 0 2 4 6 8
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from numbers import Real
from typing import Any

import numpy as np

from aotc.ir import (
    AotcError,
    AxisMap,
    Dim,
    DType,
    OpPattern,
    SymDim,
    TensorType,
    Type,
    Types,
    declare_arguments,
    maximum_of_dims,
    require,
)
from aotc.ir.attrs import NO_ATTRS, REQUIRED, Attrs, NoAttrs, attribute_field
from aotc.relay.expr import Constant, Expr
from aotc.relay.op.opdef import (
    Array,
    Index,
    OpDef,
    Sample,
    Samples,
    Scalar,
    reference_from_element_function,
    tensor_types_of_values,
)
from aotc.relay.op.operator_test_inputs import ANY_DTYPE_KIND, exact_sample, random_array
from aotc.relay.op.shape import InitAttrs, axis_map_without_mapped_axes
from aotc.relay.op.type_rules import (
    elementwise_axis_map,
    require_dtype,
    require_same_dtype,
    require_scalar_tensor_type,
    require_tensor_type,
)
from aotc.tir import Tensor, const, wrap_to_int64
from aotc.tir.numpy_semantics import cast_array_to_dtype


class FilledAttrs(InitAttrs):
    dtype: str = attribute_field(default="", parameter_default=REQUIRED)


class FullAttrs(InitAttrs):
    shape: tuple[int | SymDim, ...] = attribute_field(parameter_default=())


# --- one value: zeros, ones, full, and in the shape of a tensor


def _infer_filled_type(a: InitAttrs, types: Types) -> Type:
    given = require_scalar_tensor_type("full.value", types[0], "fill value").dtype if types else "float32"
    require("init.shape", all(isinstance(d, SymDim) or d >= 0 for d in a.shape), f"negative dimension in {a.shape}")
    return TensorType(a.shape, DType(a.dtype or given))


def _infer_filled_like_type(_: Any, types: Types) -> Type:
    data = require_tensor_type(types[0], "data")
    for value in types[1:]:
        require_same_dtype(data, require_scalar_tensor_type("full.value", value, "fill value"))
    return data


def _fill_test_samples(attrs_class: type[Attrs], has_fill_value_argument: bool) -> Samples:
    """Yield samples; if `has_fill_value_argument` is True, the last argument is the fill value."""
    if issubclass(attrs_class, InitAttrs):
        for shape, dtype in product(((2, 3), (), (0, 2), (1,)), (*ANY_DTYPE_KIND.examples, "")):
            yield exact_sample(
                attrs_class(shape=shape, dtype=dtype), *[np.array(3, np.int32)] * has_fill_value_argument
            )
        return
    floats = [random_array(shape) for shape in ((), (0, 2))]
    for data in (*(random_array((2, 3), "int8").astype(DType(d).numpy) for d in ANY_DTYPE_KIND.examples), *floats):
        yield exact_sample(NO_ATTRS, data, *[np.ones((), data.dtype)] * has_fill_value_argument)


def _constant_fill_op(name: str, doc: str, fill_value: int | None = None) -> OpDef:
    """Return the OpDef of a constant-filled tensor.

    The fill value is `fill_value`, or the last argument if `fill_value` is None. The shape is an
    attribute or, for a name that ends with "_like", the shape of the first argument.
    """
    like, given = name.endswith("_like"), fill_value is None
    infer = _infer_filled_like_type if like else _infer_filled_type
    attributes = NoAttrs if like else FullAttrs if given else FilledAttrs

    def infer_result_type(attrs: Any, args: Sequence[Any]) -> TensorType:
        return require_tensor_type(infer(attrs, tensor_types_of_values(args)))

    def fill_array(attrs: Any, *args: Array) -> Array:
        ty = infer_result_type(attrs, args)
        value = np.asarray(args[-1] if fill_value is None else fill_value)
        return np.broadcast_to(cast_array_to_dtype(value, ty.dtype.numpy), ty.static_shape)

    def fill_value_as_scalar(attrs: Any, _: Index, *args: Tensor) -> Scalar:
        dtype = infer_result_type(attrs, args).dtype
        return args[-1][()].astype(dtype) if fill_value is None else const(fill_value, dtype)

    return OpDef(
        name=name,
        doc=doc,
        attrs=attributes,
        args=declare_arguments(*["data"] * like, *["fill_value"] * given),
        infer=infer,
        reference=fill_array,
        pattern=OpPattern.ELEMWISE,
        axes=elementwise_axis_map if like else axis_map_without_mapped_axes,
        element=fill_value_as_scalar,
        samples=partial(_fill_test_samples, attributes, given),
    )


zeros = _constant_fill_op("zeros", "A tensor of zeros.", 0)
ones = _constant_fill_op("ones", "A tensor of ones.", 1)
zeros_like = _constant_fill_op("zeros_like", "Zeros in the shape and type of `data`.", 0)
ones_like = _constant_fill_op("ones_like", "Ones in the shape and type of `data`.", 1)
full = _constant_fill_op("full", "A tensor of one value, converted to `dtype` if that is given.")
full_like = _constant_fill_op("full_like", "One value in the shape of `data`.")


# --- arange


def _number_or_constant_value(value: Expr | float) -> float:
    if isinstance(value, Constant) and value.data.ndim == 0:
        return value.data.item()  # type: ignore[no-any-return]
    if not isinstance(value, Real):
        text = f"arange: start, stop and step are numbers or scalar constants, not {type(value).__name__}"
        raise AotcError("arange", text, hint="the shape depends on their values")
    return float(value) if isinstance(value, np.floating) else value


def _range_start_or_zero_without_stop(value: Any, arguments: Mapping[str, Any]) -> float:
    return 0 if arguments["stop"] is None else _number_or_constant_value(value)


def _range_stop_or_start(value: Any, arguments: Mapping[str, Any]) -> float | SymDim:
    if isinstance(value, SymDim):
        return value
    return _number_or_constant_value(arguments["start"] if value is None else value)


class ArangeAttrs(Attrs):
    """start, start + step, ... up to but excluding `stop`; from 0 to `start` if `stop` is None.

    Arguments are numbers or scalar constants; AotcError for other expressions.
    """

    start: int | float = attribute_field(type="Expr | float", convert=_range_start_or_zero_without_stop)
    stop: int | float | SymDim = attribute_field(
        type="Expr | float | None", parameter_default=None, convert=_range_stop_or_start
    )
    step: int | float = attribute_field(
        type="Expr | float", parameter_default=1, convert=lambda value, _: _number_or_constant_value(value)
    )
    dtype: str = attribute_field(parameter_default="float32")


def _arange_element_count(a: ArangeAttrs) -> Dim:
    if isinstance(a.stop, SymDim):
        text = f"a range up to {a.stop}, which is known at run time only, must go from 0 in steps of 1"
        require("arange.step", a.start == 0 and a.step == 1, text)
        return maximum_of_dims((a.stop, 0))
    finite = all(math.isfinite(v) for v in (a.start, a.stop, a.step))
    require(
        "arange.step", finite and a.step != 0, f"a range from {a.start} to {a.stop} with step {a.step} is not possible"
    )
    integers = all(isinstance(v, int) for v in (a.start, a.stop, a.step))
    steps = -((a.start - a.stop) // a.step) if integers else math.ceil((a.stop - a.start) / a.step)
    return max(int(steps), 0)


def _infer_arange_type(a: ArangeAttrs, _: Sequence[Type]) -> Type:
    dtype = DType(a.dtype)
    require_dtype(dtype, not dtype.is_bool)
    whole = dtype.is_float or all(float(v).is_integer() for v in (a.start, a.step))
    require(
        "arange.fraction",
        whole,
        f"a range of integers needs integer bounds and steps, got start {a.start} and step {a.step}",
    )
    return TensorType((_arange_element_count(a),), dtype)


def _arange_computation_dtype(a: ArangeAttrs) -> DType:
    dtype = DType(a.dtype)
    return dtype if dtype in ("float32", "float64") else DType("float32" if dtype.is_float else "int64")


def _arange_element(a: ArangeAttrs, i: Index) -> Any:
    work = _arange_computation_dtype(a)
    # start and step wrap modulo 2**64, as the elements do
    start, step = (v if work.is_float else wrap_to_int64(int(v)) for v in (a.start, a.step))
    return (i[0].astype(work) * step + start).astype(a.dtype)


_ARANGE_TEST_CASES: Any = (
    (0, 10, 2, "int64"), (10, 0, -3, "int32"), (0, 0, 1, "int32"), (5, 0, 1, "int64"), (0.0, 1.0, 0.3, "float32"),
    (1, 5, 1, "float32"), (2.0, -1.0, -0.25, "float64"), (0, 7, 3, "uint8"),
)  # fmt: skip


def _arange_test_samples() -> Samples:
    for start, stop, step, dtype in _ARANGE_TEST_CASES:
        yield Sample(args=(), attrs=ArangeAttrs(start=start, stop=stop, step=step, dtype=dtype))


arange = OpDef(
    name="arange",
    attrs=ArangeAttrs,
    args=(),
    infer=_infer_arange_type,
    reference=reference_from_element_function(_infer_arange_type, _arange_element),
    axes=lambda _, types: AxisMap(()),
    element=_arange_element,
    samples=_arange_test_samples,
)
