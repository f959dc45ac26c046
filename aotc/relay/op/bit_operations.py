# SPDX-License-Identifier: Apache-2.0
"""Bit reinterpretation of numbers, and fixed-point multiplication by 31-bit fractions.

reinterpret(x, "int32")                          # the int32 values with the bits of the float32 values
fixed_point_multiply(x, 1073741824, -3)          # int32: x * 0.5 / 8, halves rounded up
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, DType, OpPattern, Precision, TensorType, Type, Types, args, require
from aotc.relay.op.operator_definition import (
    Index,
    OpDef,
    Samples,
    exact,
    may_equal,
    of_formula,
    random_array,
    special_values,
)
from aotc.relay.op.type_rules import axes_of, pointwise, require_dtype, row_but, shape_text, tensor
from aotc.tir.expr import bitcast

# --- reinterpret


class ReinterpretAttrs(Attrs):
    """The bits of the data reinterpreted as `dtype`, which must have the bit width of the data's
    type.
    """

    dtype: str


def _reinterpret_infer(a: ReinterpretAttrs, types: Types) -> Type:
    data, result = tensor(types[0], "data"), DType(a.dtype)
    for dtype in (data.dtype, result):
        require_dtype(dtype, dtype.bits >= 8 and not dtype.is_bool)
    text = f"{data.dtype} has not as many bits as {result}"
    require("dtype", data.dtype.bits == result.bits, text)
    return TensorType(data.shape, result)


_PAIRS = (
    *("float32 int32", "int32 float32", "uint32 float32", "float64 int64", "int64 float64", "int8 uint8"),
    *("float16 int16", "uint16 float16", "bfloat16 float16", "int8 float8_e4m3fn"),
)


def _reinterpret_samples() -> Samples:
    for source, target in map(str.split, _PAIRS):
        yield exact(ReinterpretAttrs(dtype=target), special_values(source))
    yield exact(ReinterpretAttrs(dtype="uint32"), random_array((3, 40)))


reinterpret = OpDef(
    name="reinterpret",
    attrs=ReinterpretAttrs,
    infer=_reinterpret_infer,
    reference=lambda a, data: data.view(DType(a.dtype).numpy),
    pattern=OpPattern.ELEMWISE,
    axes=pointwise,
    precision=Precision.NEVER,
    element=lambda a, i, data: bitcast(data[i], a.dtype),
    samples=_reinterpret_samples,
)


# --- fixed_point_multiply, fixed_point_multiply_per_axis


#: Number of fractional bits of a multiplier, and largest shift.
_FRACTION: Final = 31


def _integers(*types: Type) -> TensorType:
    """Return the first type; raise AotcError (code "dtype") unless all types are int32 tensors."""
    for ty in types:
        own = tensor(ty)
        require_dtype(own.dtype, own.dtype == "int32")
    return tensor(types[0])


class FixedPointMultiplyAttrs(Attrs):
    """data * multiplier / 2^31 * 2^shift for int32, rounded with halves up, as int32 with
    wraparound.

    `shift` is -31 to 31.
    """

    multiplier: int
    shift: int


def _fixed_infer(a: FixedPointMultiplyAttrs, types: Types) -> Type:
    word, fits = 1 << _FRACTION, abs(a.shift) <= _FRACTION
    text = f"multiplier {a.multiplier} or shift {a.shift} is out of range"
    hint = "multipliers have 31 bits and a sign, shifts are -31 to 31"
    require("fixed-point", fits and -word <= a.multiplier < word, text, hint)
    return _integers(*types)


def _multiplied(data: Any, multiplier: Any, left: Any, right: Any) -> Any:
    """Return (data << left) * multiplier >> right for int64 arguments, rounded with halves up, as
    int32.
    """
    half = (right * 0 + 1) << (right - 1)
    return (((data << left) * multiplier + half) >> right).astype("int32")


def _fixed_element(a: FixedPointMultiplyAttrs, i: Index, data: Any) -> Any:
    wide = data[i].astype("int64")
    zero = wide * 0
    right = zero + (_FRACTION + max(-a.shift, 0))
    return _multiplied(wide, a.multiplier, zero + max(a.shift, 0), right)


_ENDS = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 23, -23, 1 << 20], np.int32)


def _fixed_samples() -> Samples:
    for multiplier, shift in ((1 << 30, -3), (2**31 - 1, 0), (-(2**31), -31), (1518500250, 4), (3, 31)):
        a = FixedPointMultiplyAttrs(multiplier=multiplier, shift=shift)
        yield exact(a, _ENDS)
    yield exact(a, random_array((2, 3, 5), "int32"))


fixed_point_multiply = OpDef(
    name="fixed_point_multiply",
    attrs=FixedPointMultiplyAttrs,
    infer=_fixed_infer,
    reference=of_formula(_fixed_infer, _fixed_element),
    pattern=OpPattern.ELEMWISE,
    axes=pointwise,
    element=_fixed_element,
    samples=_fixed_samples,
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


def _per_axis_infer(a: FixedPointMultiplyPerAxisAttrs, types: Types) -> Type:
    data = _integers(*types)
    wanted = tuple(data.shape[k] for k in axes_of(a.axes, data.rank))
    for own in map(tensor, types[1:]):
        fits = own.rank == len(wanted) and all(map(may_equal, own.shape, wanted))
        text = f"{own} does not have the axes {a.axes} of {data}: {shape_text(wanted)}"
        require("fixed-point", fits, text)
    return data


def _per_axis_element(a: FixedPointMultiplyPerAxisAttrs, i: Index, x: Any, y: Any, left: Any, right: Any) -> Any:
    at = tuple(i[k] for k in axes_of(a.axes, len(i)))
    value, factor = x[i].astype("int64"), y[at].astype("int64")
    shifts = [v[at].astype("int64") & _FRACTION for v in (left, right)]
    required = (a.is_lshift_required, a.is_rshift_required)
    up, down = (v if used else v * 0 for v, used in zip(shifts, required, strict=True))
    return _multiplied(value, factor, up, down + _FRACTION)


def _other_axes(a: FixedPointMultiplyPerAxisAttrs, types: Types) -> AxisMap:
    rank = tensor(types[0]).rank
    return AxisMap((row_but(axes_of(a.axes, rank), rank),))


def _per_axis_samples() -> Samples:
    x = random_array((2, 3, 4), "int32") * 9999
    y = np.array([1 << 30, 2**31 - 1, 77], np.int32)
    shifts = np.array([0, 3, 1], np.int32), np.array([5, 0, 31], np.int32)
    for left, right in ((True, True), (False, True), (False, False)):
        given: Any = {"is_lshift_required": left, "is_rshift_required": right}
        yield exact(FixedPointMultiplyPerAxisAttrs(axes=(1,), **given), x, y, *shifts)


fixed_point_multiply_per_axis = OpDef(
    name="fixed_point_multiply_per_axis",
    attrs=FixedPointMultiplyPerAxisAttrs,
    args=args("x", "y", "lshift", "rshift"),
    infer=_per_axis_infer,
    reference=of_formula(_per_axis_infer, _per_axis_element),
    pattern=OpPattern.INJECTIVE,
    axes=_other_axes,
    element=_per_axis_element,
    samples=_per_axis_samples,
)
