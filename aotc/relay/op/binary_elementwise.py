# SPDX-License-Identifier: Apache-2.0
"""Broadcasting operators of two tensors, one definition each, and `where`.

add(x, y)                              # shapes broadcast as in numpy; data types must match

Integers wrap around. Integer division and remainder by zero give 0. `divide` truncates integer
quotients, as C does.
"""

from functools import partial
from operator import truediv
from typing import Any

import numpy as np

from aotc.ir import (
    NO_ATTRS,
    DType,
    OpPattern,
    PrecisionTreatment,
    QuantizationTreatment,
    TensorType,
    Type,
    Types,
    declare_arguments,
    require,
)
from aotc.relay.op.elementwise_op_constructors import (
    NumpyFn,
    binary,
    choose,
    compute_narrow_floats_in_float32,
    dispatch_scalar_or_array,
    element_function_of_scalar_function,
    elementwise_numpy_reference,
    intrinsic_for_scalars_and_arrays,
)
from aotc.relay.op.opdef import Array, OpDef, Samples, Scalar
from aotc.relay.op.operator_test_inputs import (
    ANY_DTYPE_KIND,
    BOOL_KIND,
    FLOAT_KIND,
    INTEGER_KIND,
    INTEGER_OR_BOOL_KIND,
    NUMBER_KIND,
    DTypeKind,
    exact_sample,
    random_array,
    special_values,
)
from aotc.relay.op.type_rules import broadcasting_type_rule, elementwise_axis_map, require_tensor_type
from aotc.tir import binary as scalar
from aotc.tir import const, select


def _dispatch_float_or_integer(float_fn: NumpyFn, integer_fn: NumpyFn) -> Any:
    """Return a function that applies `float_fn` to floats and `integer_fn` to integers, scalar
    expressions or arrays.
    """
    return lambda a, b: (float_fn if DType(str(a.dtype)).is_float else integer_fn)(a, b)


def _integer_division_defined_everywhere(op: str, divide_by_minus_one: NumpyFn) -> NumpyFn:
    """Return integer division `op` without undefined cases: division by zero gives 0, minimum / -1
    wraps.
    """

    def divide_without_undefined_cases(a: Scalar, b: Scalar) -> Scalar:
        result = scalar(op, a, b)
        if b.dtype.is_signed:
            result = select(b.equal(-1), divide_by_minus_one(a), result)
        return select(b.equal(0), const(0, b.dtype), result)

    return divide_without_undefined_cases


def _zero_of_same_dtype(a: Scalar) -> Scalar:
    return const(0, a.dtype)


_trunc_div = _integer_division_defined_everywhere("truncdiv", lambda a: -a)
_floor_div = _integer_division_defined_everywhere("floordiv", lambda a: -a)
_trunc_rem = _integer_division_defined_everywhere("truncmod", _zero_of_same_dtype)
_floor_rem = _integer_division_defined_everywhere("floormod", _zero_of_same_dtype)


def _numpy_integer_trunc_divide(a: Array, b: Array) -> Any:
    quotient = np.floor_divide(a, b)
    inexact = (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
    return quotient + inexact.astype(quotient.dtype)


_floor, _trunc, _fmod = map(intrinsic_for_scalars_and_arrays, ("floor", "trunc", "fmod"))
_nonzero = dispatch_scalar_or_array(lambda x: x.not_equal(0), lambda x: x != 0)
_floored = compute_narrow_floats_in_float32(lambda x, y: _floor(x / y))
_truncated = compute_narrow_floats_in_float32(lambda x, y: _trunc(x / y))


def _float_floor_mod(a: Any, b: Any) -> Any:
    rest = _fmod(a, b)
    return choose(_nonzero(rest) & ((rest < 0) ^ (b < 0)), rest + b, rest)


_TRUNC_MOD_FN = _dispatch_float_or_integer(_fmod, _trunc_rem)


def _numpy_integer_power(base: Array, exponent: Array) -> Any:
    """Return integer powers with wraparound; a negative exponent gives 0 except for the bases 1 and
    -1.
    """
    unit = np.where(exponent % 2 == 0, base * base, base)
    inverse = np.where((base == 1) | (base == np.array(-1).astype(base.dtype)), unit, 0)
    return np.where(exponent < 0, inverse, np.power(base, np.maximum(exponent, 0)))


def _numpy_shift_defined_for_large_counts(shift_ufunc: Any) -> Any:
    """Return a shift function in which a shift by the bit width or more gives 0, or -1 for negative
    right shifts.
    """

    def shift_or_fill_if_count_out_of_range(a: Array, b: Array) -> Any:
        inside = (b >= 0) & (b < a.dtype.itemsize * 8)
        # of the dtype of the data: uint64 and int64 together would become float64
        fill = np.where(a < 0, -1, 0).astype(a.dtype) if shift_ufunc is np.right_shift else a.dtype.type(0)
        return np.where(inside, shift_ufunc(a, np.where(inside, b, 0).astype(b.dtype)), fill)

    return shift_or_fill_if_count_out_of_range


def _binary_op_named_as_numpy(name: str, tir_operation: str, dtype_kind: DTypeKind, **facets: Any) -> OpDef:
    """Return an OpDef for an operator with the same name in numpy, computed by a tir
    `tir_operation`.
    """
    return binary(name, getattr(np, name), partial(scalar, tir_operation), dtype_kind, **facets)


def _comparison_op(name: str, tir_operation: str, dtype_kind: DTypeKind = NUMBER_KIND) -> OpDef:
    return _binary_op_named_as_numpy(name, tir_operation, dtype_kind, result_dtype="bool")


add = _binary_op_named_as_numpy("add", "add", NUMBER_KIND, quantized=QuantizationTreatment.RESCALE)
subtract = _binary_op_named_as_numpy("subtract", "sub", NUMBER_KIND, quantized=QuantizationTreatment.RESCALE)
multiply = _binary_op_named_as_numpy("multiply", "mul", NUMBER_KIND, quantized=QuantizationTreatment.RESCALE)
divide = binary(
    "divide",
    _dispatch_float_or_integer(truediv, _numpy_integer_trunc_divide),
    _dispatch_float_or_integer(truediv, _trunc_div),
    NUMBER_KIND,
)
floor_divide = binary(
    "floor_divide",
    _dispatch_float_or_integer(_floored, np.floor_divide),
    _dispatch_float_or_integer(_floored, _floor_div),
    NUMBER_KIND,
)
trunc_divide = binary(
    "trunc_divide",
    _dispatch_float_or_integer(_truncated, _numpy_integer_trunc_divide),
    _dispatch_float_or_integer(_truncated, _trunc_div),
    NUMBER_KIND,
)
mod = binary("mod", np.fmod, _TRUNC_MOD_FN, NUMBER_KIND)
trunc_mod = binary("trunc_mod", np.fmod, _TRUNC_MOD_FN, NUMBER_KIND)
floor_mod = binary(
    "floor_mod",
    _dispatch_float_or_integer(compute_narrow_floats_in_float32(_float_floor_mod), np.mod),
    _dispatch_float_or_integer(compute_narrow_floats_in_float32(_float_floor_mod), _floor_rem),
    NUMBER_KIND,
)
power = binary(
    "power",
    _dispatch_float_or_integer(np.power, _numpy_integer_power),
    intrinsic_for_scalars_and_arrays("pow"),
    NUMBER_KIND,
    precision=PrecisionTreatment.NEVER,
)
atan2 = binary("atan2", np.arctan2, intrinsic_for_scalars_and_arrays("atan2"), FLOAT_KIND)
maximum = _binary_op_named_as_numpy("maximum", "max", NUMBER_KIND, exact=True, quantized=QuantizationTreatment.PASS)
minimum = _binary_op_named_as_numpy("minimum", "min", NUMBER_KIND, exact=True, quantized=QuantizationTreatment.PASS)
equal, not_equal = _comparison_op("equal", "eq", ANY_DTYPE_KIND), _comparison_op("not_equal", "ne", ANY_DTYPE_KIND)
less, less_equal = _comparison_op("less", "lt"), _comparison_op("less_equal", "le")
greater, greater_equal = _comparison_op("greater", "gt"), _comparison_op("greater_equal", "ge")
logical_and, logical_or, logical_xor = (
    _binary_op_named_as_numpy(f"logical_{op}", op, BOOL_KIND) for op in ("and", "or", "xor")
)
bitwise_and, bitwise_or, bitwise_xor = (
    _binary_op_named_as_numpy(f"bitwise_{op}", op, INTEGER_OR_BOOL_KIND) for op in ("and", "or", "xor")
)
left_shift = binary(
    "left_shift", _numpy_shift_defined_for_large_counts(np.left_shift), partial(scalar, "shl"), INTEGER_KIND
)
right_shift = binary(
    "right_shift", _numpy_shift_defined_for_large_counts(np.right_shift), partial(scalar, "shr"), INTEGER_KIND
)


# --- where


def _infer_where_type(_: Any, types: Types) -> Type:
    condition, x, y = (require_tensor_type(t) for t in types)
    require("where.condition", condition.dtype.is_bool, lambda: f"the condition must be bool, got {condition.dtype}")
    chosen = broadcasting_type_rule()(None, (x, y))
    return broadcasting_type_rule()(None, (TensorType(condition.shape, x.dtype), chosen))


def _where_test_samples() -> Samples:
    condition = np.array([[True], [False]])
    for dtype in ANY_DTYPE_KIND.examples:
        values = special_values(dtype)
        yield exact_sample(NO_ATTRS, condition, values, values[::-1].copy())
    for c, x, y in (((), (), ()), ((3,), (2, 1), ()), ((2, 3), (2, 3), (2, 3)), ((1, 4), (0, 1), (4,))):
        yield exact_sample(NO_ATTRS, random_array(c, "bool"), random_array(x, seed=1), random_array(y, seed=2))


where = OpDef(
    name="where",
    doc="x where the condition holds, else y; all three broadcast.",
    args=declare_arguments("condition", "x", "y"),
    infer=_infer_where_type,
    reference=elementwise_numpy_reference(np.where),
    pattern=OpPattern.BROADCAST,
    axes=elementwise_axis_map,
    element=element_function_of_scalar_function(select),
    quantized=QuantizationTreatment.PASS,
    samples=_where_test_samples,
)
