# SPDX-License-Identifier: Apache-2.0
"""Gamma function of float64 and its logarithm.

From 8 on Stirling's series is used; below 8 the argument is shifted by the product a (a + 1) ... (a
+ 7); for negative arguments Euler's reflection gamma(-a) gamma(a) = -pi / (a sin(pi a)) is used.
Intermediate results are pairs, and the result is rounded once.
"""

from __future__ import annotations

from typing import Final

from aotc.tir.expr import Expr, as_expr, call, select
from aotc.tir.functions.double_double import (
    ROUND_TO_INTEGER_SHIFTER,
    add_double_doubles,
    divide_double_doubles,
    exact_product,
    multiply_double_doubles,
    negate_double_double,
    select_double_double,
    two_sum,
)
from aotc.tir.functions.double_float32 import FloatPair, evaluate_polynomial_by_horner, fast_two_sum
from aotc.tir.functions.float64_functions import (
    INFINITY,
    LOG2_E_PAIR,
    NAN,
    PI_PAIR,
    clamp_keeping_nan,
    cosine_of_reduced_angle,
    exp2_mantissa_and_exponent,
    log2_as_pair,
    log_as_pair,
    multiply_by_power_of_2_in_low_bits,
    sine_of_reduced_angle,
)

#: log(sqrt(2 pi)) - 1/2, the binary logarithm of sqrt(2 pi), and log(pi), each as a pair.
_HALF_LOG_2PI_MINUS_HALF: Final = (0.4189385332046727, 1.6728209650585413e-17)
_LOG2_SQRT_2PI: Final = (1.3257480647361595, -7.153413670427599e-17)
_LOG_PI_PAIR: Final = (1.1447298858494002, 1.0265951162707826e-17)
#: Argument beyond which the logarithm overflows to infinity.
_MAX_LGAMMA_ARGUMENT: Final = 2.5599833278516383e305


def _one_as_double_double(x: Expr) -> FloatPair:
    return as_expr(1.0, x), as_expr(0.0, x)


def _shift_argument_above_8(a: Expr) -> tuple[Expr, FloatPair, FloatPair]:
    """Return (far, w, p): if a >= 8 (`far`), w is a and p is 1; else w is a + 8 and p is (a + 1) (a
    + 2) ... (a + 7).
    """
    far = a >= 8.0
    p = two_sum(a, 1.0)
    for k in range(2, 8):
        p = multiply_double_doubles(p, two_sum(a, float(k)))
    return (
        far,
        select_double_double(far, (a, as_expr(0.0, a)), two_sum(a, 8.0)),
        select_double_double(far, _one_as_double_double(a), p),
    )


def _stirling_series_correction(w: FloatPair) -> FloatPair:
    """Return the error of Stirling's approximation of log(gamma(w)): 1 / (12 w) and further terms,
    as a pair.
    """
    v = divide_double_doubles(_one_as_double_double(w[0]), w)
    z = v[0] * v[0]
    p = evaluate_polynomial_by_horner(z, "-0.020877750207661284 0.006209337474104733 "
"-0.0019149917455289094 0.0008417328024907184"
                  " -0.000595238024939999 0.0007936507935156733 -0.0027777777777776786")  # fmt: skip
    head, tail = multiply_double_doubles(v, (0.08333333333333333, 4.625929269271485e-18))
    return fast_two_sum(head, tail + (v[0] * z) * p)


def _abs_sin_pi(a: Expr) -> FloatPair:
    """Return |sin(pi a)| for a >= 0 as a sum of two floats."""
    f = call("abs", a - call("round_even", a))
    steep = f > 0.25
    head, tail = exact_product(select(steep, as_expr(0.5, a) - f, f), PI_PAIR[0])
    angle = head, tail + select(steep, as_expr(0.5, a) - f, f) * PI_PAIR[1]
    return select_double_double(steep, cosine_of_reduced_angle(angle), sine_of_reduced_angle(angle))


def tgamma(x: Expr) -> Expr:
    size = call("abs", x)
    below = x < 0.0
    a = clamp_keeping_nan(size, 0.0, 189.5)
    far, w, p = _shift_argument_above_8(a)
    y = log2_as_pair(*w)
    half = add_double_doubles(w, (-0.5, 0.0))
    power = add_double_doubles(
        add_double_doubles(
            multiply_double_doubles(half, y), negate_double_double(multiply_double_doubles(w, LOG2_E_PAIR))
        ),
        _LOG2_SQRT_2PI,
    )
    s, c, t = exp2_mantissa_and_exponent(
        *add_double_doubles(power, multiply_double_doubles(_stirling_series_correction(w), LOG2_E_PAIR))
    )
    alone = a, as_expr(0.0, a)
    above = multiply_double_doubles(select_double_double(far, _one_as_double_double(a), alone), p)
    other = multiply_double_doubles(
        multiply_double_doubles(_abs_sin_pi(a), select_double_double(far, alone, _one_as_double_double(a))), (s, c)
    )
    n = select_double_double(below, multiply_double_doubles(p, PI_PAIR), (s, c))
    d = select_double_double(below, other, select_double_double(far, _one_as_double_double(a), above))
    head, tail = divide_double_doubles(n, d)
    value = multiply_by_power_of_2_in_low_bits(
        head + tail, select(below, as_expr(2 * ROUND_TO_INTEGER_SHIFTER, t) - t, t)
    )
    whole = call("floor", size)
    half_whole = whole * 0.5
    value = select(below & call("floor", half_whole).equal(half_whole), -value, value)
    value = select(size < 2.0**-60, as_expr(1.0, x) / x, value)
    return select(below & whole.equal(size), NAN, value)


def _log_gamma_near_zero(t: Expr, slope: tuple[float, float], coefficients: str) -> Expr:
    """Return log(gamma) at distance t from its zero at 1 or 2; `slope` is the derivative at the
    zero.
    """
    head, tail = exact_product(t, slope[0])
    return head + (tail + (t * slope[1] + (t * t) * evaluate_polynomial_by_horner(t, coefficients)))


def lgamma(x: Expr) -> Expr:
    a = call("abs", x)
    below = x < 0.0
    far, w, p = _shift_argument_above_8(a)
    size = add_double_doubles(
        multiply_double_doubles(add_double_doubles(w, (-0.5, 0.0)), add_double_doubles(log_as_pair(*w), (-1.0, 0.0))),
        _HALF_LOG_2PI_MINUS_HALF,
    )
    size = add_double_doubles(size, _stirling_series_correction(w))
    alone = a, as_expr(0.0, a)
    sines = _abs_sin_pi(a)
    product_ = select_double_double(below, multiply_double_doubles(sines, alone), _one_as_double_double(a))
    rest = select_double_double(below, divide_double_doubles(sines, p), multiply_double_doubles(alone, p))
    value = add_double_doubles(
        select_double_double(below, add_double_doubles(negate_double_double(size), _LOG_PI_PAIR), size),
        negate_double_double(log_as_pair(*select_double_double(far, product_, rest))),
    )
    result = value[0] + value[1]
    x_minus_1, two = x - 1.0, x - 2.0
    near_one = _log_gamma_near_zero(x_minus_1, (-0.5772156649015329, 4.942915152430645e-18),
                          "-0.07785081477671336 0.08419639294913914 -0.09094913690744505 0.10009574692025688"
                          " -0.11133427842670506 0.1255096770484116 -0.1440498967529541 0.16955717699051576"
                          " -0.20738555102868272 0.27058080842778687 -0.40068563438653143"
                          " 0.8224670334241132")  # fmt: skip
    near_two = _log_gamma_near_zero(two, (0.42278433509846713, 4.942915152430645e-18),
                          "-9.467419666806915e-06 2.0558564661983863e-05 -4.492608857521468e-05"
                          " 9.945728698776387e-05 -0.00022315475883445297 0.0005096695252005156"
                          " -0.0011927539117027792 0.0028905103307411044 -0.007385551028673986"
                          " 0.020580808427784546 -0.0673523010531981 0.3224670334241132")  # fmt: skip
    result = select(call("abs", x_minus_1) < 0.0625, near_one, select(call("abs", two) < 0.0625, near_two, result))
    result = select(a < 2.0**-60, -call("log", a), result)
    pole = (x <= 0.0) & call("floor", a).equal(a)
    result = select(pole | (a > _MAX_LGAMMA_ARGUMENT) & (x > 0.0), INFINITY, result)
    return select(x.equal(x), result, x)
