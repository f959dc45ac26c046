# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators of one tensor, one definition each.

exp(x)                                 # Call(exp, [x]), with the type of x
fast_exp(x)                            # exp of x clamped to [-87, 88]: never infinite
fast_tanh(x)                           # a rational function, within 1e-6
fast_erf(x)                            # a rational function, within 2e-6

The approximations are odd rational functions. Their coefficients are least-squares fits, weighted
for relative error, at Chebyshev points of [-9, 9] (tanh) and [-4, 4] (erf); both functions are 1 in
float32 above these ranges. For float64 the exact functions are used.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import DType, PrecisionTreatment, QuantizationTreatment
from aotc.relay.op.elementwise_op_constructors import (
    NumpyFn,
    compute_narrow_floats_in_float32,
    dispatch_scalar_or_array,
    greater,
    intrinsic_for_scalars_and_arrays,
    lesser,
    unary,
)
from aotc.relay.op.operator_definition import (
    ANY_DTYPE_KIND,
    BOOL_KIND,
    FLOAT_KIND,
    INTEGER_OR_BOOL_KIND,
    NUMBER_KIND,
    NUMBER_WITH_ZERO_KIND,
    Array,
    OpDef,
    Scalar,
)
from aotc.tir import call, const, maximum, minimum, select


def _rounding_op(name: str, round_float: NumpyFn) -> OpDef:
    """Return an operator that rounds floats by `round_float` and leaves integers unchanged."""

    def round_if_float(x: Any) -> Any:
        return round_float(x) if DType(str(x.dtype)).is_float else x

    return unary(name, round_if_float, round_if_float, NUMBER_KIND, exact=True)


def _sign_of_scalar(x: Scalar) -> Scalar:
    if not x.dtype.is_signed:
        return minimum(x, 1)
    # NaN is preserved
    negative = select(x < 0, const(-1, x.dtype), select(x.equal(0), const(0, x.dtype), x))
    return select(x > 0, const(1, x.dtype), negative)


def _relu_of_scalar(x: Scalar) -> Scalar:
    return maximum(x, 0) if x.dtype.is_signed else x


def sigmoid_of_scalar(x: Scalar) -> Scalar:
    """Return the logistic function (sigmoid) of a scalar expression."""
    # underflows gradually for large negative x; 1 / (1 + exp(-x)) would jump to zero when exp
    # overflows
    e = call("exp", minimum(x, math.log(x.dtype.max) - 1.0))
    return e / (1.0 + e)


def _numpy_erf(x: Array) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


#: Functions that are well-conditioned, so that they may be computed in float16.
_FLOAT16_SAFE_FUNCTIONS: Final = ("sqrt", "sin", "cos", "atan", "tanh")


def _float_intrinsic_op(name: str) -> OpDef:
    """Return the float operator of an intrinsic; numpy's function has its name, or "arc" for "a" in
    inverse functions.
    """
    numpy = getattr(np, f"arc{name[1:]}" if name.startswith("a") else name)
    return unary(
        name,
        numpy,
        intrinsic_for_scalars_and_arrays(name),
        FLOAT_KIND,
        precision=None if name in _FLOAT16_SAFE_FUNCTIONS else PrecisionTreatment.NEVER,
    )


def _return_argument(x: Any) -> Any:
    return x


# abs, round: Relay's names, wanted as attributes of this module
abs = unary("abs", np.abs, lambda x: call("abs", x) if x.dtype.is_signed else x, NUMBER_KIND, exact=True)
ceil, floor, trunc = (_rounding_op(name, intrinsic_for_scalars_and_arrays(name)) for name in ("ceil", "floor", "trunc"))
round = _rounding_op("round", dispatch_scalar_or_array(intrinsic_for_scalars_and_arrays("round_even"), np.rint))
sign = unary("sign", np.sign, _sign_of_scalar, NUMBER_WITH_ZERO_KIND, exact=True)
negative = unary("negative", np.negative, lambda x: -x, NUMBER_KIND, exact=True)
relu = unary(
    "nn.relu",
    lambda x: np.maximum(x, x.dtype.type(0)),
    _relu_of_scalar,
    NUMBER_WITH_ZERO_KIND,
    exact=True,
    quantized=QuantizationTreatment.PASS,
)
exp, expm1, log, log2, log10, log1p, sqrt = map(
    _float_intrinsic_op, ["exp", "expm1", "log", "log2", "log10", "log1p", "sqrt"]
)
rsqrt = unary(
    "rsqrt",
    compute_narrow_floats_in_float32(lambda x: 1 / np.sqrt(x)),
    intrinsic_for_scalars_and_arrays("rsqrt"),
    FLOAT_KIND,
    precision=PrecisionTreatment.NEVER,
)
sin, cos, tan, asin, acos, atan = map(_float_intrinsic_op, ["sin", "cos", "tan", "asin", "acos", "atan"])
sinh, cosh, tanh, asinh, acosh, atanh = map(_float_intrinsic_op, ["sinh", "cosh", "tanh", "asinh", "acosh", "atanh"])
erf = unary(
    "erf",
    compute_narrow_floats_in_float32(_numpy_erf),
    intrinsic_for_scalars_and_arrays("erf"),
    FLOAT_KIND,
    precision=PrecisionTreatment.NEVER,
)
sigmoid = unary(
    "sigmoid",
    compute_narrow_floats_in_float32(lambda x: 1 / (1 + np.exp(-x))),
    compute_narrow_floats_in_float32(sigmoid_of_scalar),
    FLOAT_KIND,
)
logical_not = unary("logical_not", np.logical_not, lambda x: ~x, BOOL_KIND)
bitwise_not = unary("bitwise_not", np.invert, lambda x: ~x, INTEGER_OR_BOOL_KIND)
isnan = unary("isnan", np.isnan, intrinsic_for_scalars_and_arrays("isnan"), FLOAT_KIND, result_dtype="bool")
isinf = unary("isinf", np.isinf, lambda x: call("abs", x) > x.dtype.max, FLOAT_KIND, result_dtype="bool")
isfinite = unary("isfinite", np.isfinite, lambda x: call("abs", x) <= x.dtype.max, FLOAT_KIND, result_dtype="bool")
copy = unary(
    "copy", _return_argument, _return_argument, ANY_DTYPE_KIND, exact=True, quantized=QuantizationTreatment.PASS
)


# --- approximations for float32 and narrower


_FAST_TANH_COEFFICIENTS = (
    (0.999999977, 0.133774455, 0.00349138535, 2.05422158e-05, 1.32669164e-08),
    (1.0, 0.467107593, 0.0258608619, 0.000327885659, 7.73957678e-07),
)
_FAST_ERF_COEFFICIENTS = (
    (1.12837912, 0.378139052, 0.0744311068, 0.01075915, 0.00026820511, -1.49906306e-06),
    (1.0, 0.66844657, 0.188807655, 0.029363086, 0.00251662826),
)
_EXP_FUNCTION = intrinsic_for_scalars_and_arrays("exp")
_EXP_ARGUMENT_RANGE = (-87.0, 88.0)
Fit = tuple[Sequence[float], Sequence[float]]


def _evaluate_polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Return the sum of coefficients[k] * t^k by Horner's rule, for a scalar expression or an
    array.
    """
    total = x * coefficients[-1] + coefficients[-2]
    for c in coefficients[-3::-1]:
        total = total * x + c
    return total


def _odd_rational_function(coefficients: Fit, x: Any) -> Any:
    t = x * x
    return x * _evaluate_polynomial(coefficients[0], t) / _evaluate_polynomial(coefficients[1], t)


def _fast_rational_op(
    name: str, exact_fn: NumpyFn, argument_limit: float, coefficients: Fit, precision: PrecisionTreatment | None = None
) -> OpDef:
    of_others = dispatch_scalar_or_array(intrinsic_for_scalars_and_arrays(name), exact_fn)

    def rational_approximation_if_float32(x: Any) -> Any:
        return (
            _odd_rational_function(coefficients, greater(lesser(x, argument_limit), -argument_limit))
            if x.dtype == "float32"
            else of_others(x)
        )

    return unary(
        f"fast_{name}",
        compute_narrow_floats_in_float32(rational_approximation_if_float32),
        compute_narrow_floats_in_float32(rational_approximation_if_float32),
        FLOAT_KIND,
        precision=precision,
    )


def exp_with_clamped_argument(x: Any) -> Any:
    """Return exp of a scalar or array; float32 arguments are clamped so that the result is finite
    and normal.
    """
    low, high = _EXP_ARGUMENT_RANGE
    return _EXP_FUNCTION(greater(lesser(x, high), low) if x.dtype == "float32" else x)


fast_exp = unary(
    "fast_exp",
    compute_narrow_floats_in_float32(exp_with_clamped_argument),
    compute_narrow_floats_in_float32(exp_with_clamped_argument),
    FLOAT_KIND,
    precision=PrecisionTreatment.NEVER,
)
fast_tanh = _fast_rational_op("tanh", np.tanh, 9.0, _FAST_TANH_COEFFICIENTS)
fast_erf = _fast_rational_op(
    "erf",
    lambda x: np.vectorize(math.erf, otypes=[np.float64])(x),
    4.0,
    _FAST_ERF_COEFFICIENTS,
    PrecisionTreatment.NEVER,
)
