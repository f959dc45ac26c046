# SPDX-License-Identifier: Apache-2.0
"""Bit reinterpretation of numbers, and fixed-point multiplication by 31-bit fractions.

reinterpret(x, "int32")                          # the int32 values with the bits of the float32 values
fixed_point_multiply(x, 1073741824, -3)          # int32: x * 0.5 / 8, halves rounded up
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aotc.ir import (
    Attrs,
    AxisMap,
    DType,
    OpPattern,
    PrecisionTreatment,
    TensorType,
    Type,
    Types,
    declare_arguments,
    require,
)
from aotc.relay.op.operator_definition import (
    Index,
    OpDef,
    Samples,
    exact_sample,
    may_be_equal_dims,
    random_array,
    reference_from_element_function,
    special_values,
)
from aotc.relay.op.type_rules import (
    axis_map_row_without_axes,
    elementwise_axis_map,
    normalize_axes,
    require_dtype,
    require_tensor_type,
    shape_text,
)
from aotc.tir.expr import bitcast

# --- reinterpret


class ReinterpretAttrs(Attrs):
    """The bits of the data reinterpreted as `dtype`, which must have the bit width of the data's
    type.
    """

    dtype: str


def _infer_reinterpret_type(a: ReinterpretAttrs, types: Types) -> Type:
    data, result = require_tensor_type(types[0], "data"), DType(a.dtype)
    for dtype in (data.dtype, result):
        require_dtype(dtype, dtype.bits >= 8 and not dtype.is_bool)
    text = f"{data.dtype} has not as many bits as {result}"
    require("dtype", data.dtype.bits == result.bits, text)
    return TensorType(data.shape, result)


_REINTERPRET_SAMPLE_DTYPES = (
    *("float32 int32", "int32 float32", "uint32 float32", "float64 int64", "int64 float64", "int8 uint8"),
    *("float16 int16", "uint16 float16", "bfloat16 float16", "int8 float8_e4m3fn"),
)


def _reinterpret_test_samples() -> Samples:
    for source, target in map(str.split, _REINTERPRET_SAMPLE_DTYPES):
        yield exact_sample(ReinterpretAttrs(dtype=target), special_values(source))
    yield exact_sample(ReinterpretAttrs(dtype="uint32"), random_array((3, 40)))


reinterpret = OpDef(
    name="reinterpret",
    attrs=ReinterpretAttrs,
    infer=_infer_reinterpret_type,
    reference=lambda a, data: data.view(DType(a.dtype).numpy),
    pattern=OpPattern.ELEMWISE,
    axes=elementwise_axis_map,
    precision=PrecisionTreatment.NEVER,
    element=lambda a, i, data: bitcast(data[i], a.dtype),
    samples=_reinterpret_test_samples,
)


# --- fixed_point_multiply, fixed_point_multiply_per_axis


#: Number of fractional bits of a multiplier, and largest shift.
_FRACTION_BITS: Final = 31


def _require_int32_tensors(*types: Type) -> TensorType:
    """Return the first type; raise AotcError (code "dtype") unless all types are int32 tensors."""
    for ty in types:
        tensor_type = require_tensor_type(ty)
        require_dtype(tensor_type.dtype, tensor_type.dtype == "int32")
    return require_tensor_type(types[0])


class FixedPointMultiplyAttrs(Attrs):
    """data * multiplier / 2^31 * 2^shift for int32, rounded with halves up, as int32 with
    wraparound.

    `shift` is -31 to 31.
    """

    multiplier: int
    shift: int


def _infer_fixed_point_multiply_type(a: FixedPointMultiplyAttrs, types: Types) -> Type:
    word, fits = 1 << _FRACTION_BITS, abs(a.shift) <= _FRACTION_BITS
    text = f"multiplier {a.multiplier} or shift {a.shift} is out of range"
    hint = "multipliers have 31 bits and a sign, shifts are -31 to 31"
    require("fixed-point", fits and -word <= a.multiplier < word, text, hint)
    return _require_int32_tensors(*types)


def _shifted_fixed_point_product(data: Any, multiplier: Any, left_shift: Any, right_shift: Any) -> Any:
    """Return (data << left) * multiplier >> right for int64 arguments, rounded with halves up, as
    int32.
    """
    half = (right_shift * 0 + 1) << (right_shift - 1)
    return (((data << left_shift) * multiplier + half) >> right_shift).astype("int32")


def _fixed_point_multiply_element(a: FixedPointMultiplyAttrs, i: Index, data: Any) -> Any:
    wide = data[i].astype("int64")
    zero = wide * 0
    right = zero + (_FRACTION_BITS + max(-a.shift, 0))
    return _shifted_fixed_point_product(wide, a.multiplier, zero + max(a.shift, 0), right)


_INT32_EXTREME_SAMPLES = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 23, -23, 1 << 20], np.int32)


def _fixed_point_multiply_test_samples() -> Samples:
    for multiplier, shift in ((1 << 30, -3), (2**31 - 1, 0), (-(2**31), -31), (1518500250, 4), (3, 31)):
        a = FixedPointMultiplyAttrs(multiplier=multiplier, shift=shift)
        yield exact_sample(a, _INT32_EXTREME_SAMPLES)
    yield exact_sample(a, random_array((2, 3, 5), "int32"))


fixed_point_multiply = OpDef(
    name="fixed_point_multiply",
    attrs=FixedPointMultiplyAttrs,
    infer=_infer_fixed_point_multiply_type,
    reference=reference_from_element_function(_infer_fixed_point_multiply_type, _fixed_point_multiply_element),
    pattern=OpPattern.ELEMWISE,
    axes=elementwise_axis_map,
    element=_fixed_point_multiply_element,
    samples=_fixed_point_multiply_test_samples,
)


class FixedPointMultiplyPerAxisAttrs(Attrs):
    """x * y / 2^31 * 2^(lshift - rshift) for int32, rounded with halves up, as int32 with
    wraparound.

    The multipliers y and the shifts, 0 to 31, have one value for each index of the axes `axes` of
    x. `lshift` and `rshift` are used only if `is_lshift_required` and `is_rshift_required` are set.
    """

    is_lshift_required: bool = False
    is_rshift_required: bool = False
    axes: tuple[int, ...] = ()


def _infer_fixed_point_per_axis_type(a: FixedPointMultiplyPerAxisAttrs, types: Types) -> Type:
    data = _require_int32_tensors(*types)
    axis_extents = tuple(data.shape[k] for k in normalize_axes(a.axes, data.rank))
    for factor_type in map(require_tensor_type, types[1:]):
        fits = factor_type.rank == len(axis_extents) and all(map(may_be_equal_dims, factor_type.shape, axis_extents))
        text = f"{factor_type} does not have the axes {a.axes} of {data}: {shape_text(axis_extents)}"
        require("fixed-point", fits, text)
    return data


def _fixed_point_per_axis_element(
    a: FixedPointMultiplyPerAxisAttrs, i: Index, x: Any, y: Any, left_shift: Any, right_shift: Any
) -> Any:
    at = tuple(i[k] for k in normalize_axes(a.axes, len(i)))
    value, factor = x[i].astype("int64"), y[at].astype("int64")
    shifts = [v[at].astype("int64") & _FRACTION_BITS for v in (left_shift, right_shift)]
    required = (a.is_lshift_required, a.is_rshift_required)
    up, down = (v if used else v * 0 for v, used in zip(shifts, required, strict=True))
    return _shifted_fixed_point_product(value, factor, up, down + _FRACTION_BITS)


def _axis_map_without_scaled_axes(a: FixedPointMultiplyPerAxisAttrs, types: Types) -> AxisMap:
    rank = require_tensor_type(types[0]).rank
    return AxisMap((axis_map_row_without_axes(normalize_axes(a.axes, rank), rank),))


def _fixed_point_per_axis_test_samples() -> Samples:
    x = random_array((2, 3, 4), "int32") * 9999
    y = np.array([1 << 30, 2**31 - 1, 77], np.int32)
    shifts = np.array([0, 3, 1], np.int32), np.array([5, 0, 31], np.int32)
    for left, right in ((True, True), (False, True), (False, False)):
        given: Any = {"is_lshift_required": left, "is_rshift_required": right}
        yield exact_sample(FixedPointMultiplyPerAxisAttrs(axes=(1,), **given), x, y, *shifts)


fixed_point_multiply_per_axis = OpDef(
    name="fixed_point_multiply_per_axis",
    attrs=FixedPointMultiplyPerAxisAttrs,
    args=declare_arguments("x", "y", "lshift", "rshift"),
    infer=_infer_fixed_point_per_axis_type,
    reference=reference_from_element_function(_infer_fixed_point_per_axis_type, _fixed_point_per_axis_element),
    pattern=OpPattern.INJECTIVE,
    axes=_axis_map_without_scaled_axes,
    element=_fixed_point_per_axis_element,
    samples=_fixed_point_per_axis_test_samples,
)
