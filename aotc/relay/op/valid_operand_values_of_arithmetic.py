# SPDX-License-Identifier: Apache-2.0
"""Domain rules of arithmetic and elementwise functions: the domains required of the operands if
the result is to be in a domain.

    rule = ARITHMETIC_DOMAIN_RULES_BY_OP_NAME["log"]
    rule(call, UNCONSTRAINED_DOMAIN)     # the argument is at least 2^-10

Used by `aotc.relay.op.infer_valid_model_input_values`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from aotc.ir import DType, Op
from aotc.relay.expr import Call, Expr
from aotc.relay.op.operand_shapes_and_constants import (
    constant_elements_in_any_order_or_none,
    constant_min_and_max,
    has_bool_or_unknown_type,
    is_tensor_of_requested_number_kind,
    static_tensor_type_or_none,
)
from aotc.relay.valid_input_values_and_random_arrays import (
    UNCONSTRAINED_DOMAIN,
    ZERO_ONE_DOMAIN,
    ValueDomain,
    intersect_value_domains,
    value_domain_before_affine_map,
)

#: The domain required of each argument; a tuple of domains for a tuple argument.
OperandDomains: TypeAlias = "Sequence[ValueDomain | tuple[ValueDomain, ...]]"
#: Maps a call and the domain of its result to the domains of its first arguments (others are free).
DomainRule: TypeAlias = Callable[[Call, ValueDomain], OperandDomains]

#: Smallest distance of arguments from a pole of a function: 2^-10 for logarithms, 2^-4 for divisors.
MIN_DISTANCE_FROM_LOG_POLE: Final = 2.0**-10
MIN_DIVISOR_MAGNITUDE: Final = 2.0**-4
#: Smallest factor that indicates an attention mask: (1 - mask) * -10000, added to softmax's argument.
MIN_ATTENTION_MASK_PENALTY: Final = 9e3
#: Fraction of the largest exponent for which exp(x) is finite; the margin allows sums of exp(x).
MAX_EXPONENT_FRACTION: Final = 0.9
NONNEGATIVE_DOMAIN: Final = ValueDomain(lo=0.0)
NONZERO_DOMAIN: Final = ValueDomain(gap=(-MIN_DIVISOR_MAGNITUDE, MIN_DIVISOR_MAGNITUDE))
NONZERO_INTEGER_DOMAIN: Final = ValueDomain(gap=(-1, 1))
MINUS_ONE_TO_ONE_DOMAIN: Final = ValueDomain(-1, 1)
_LOG_ARGUMENT_DOMAIN: Final = ValueDomain(lo=MIN_DISTANCE_FROM_LOG_POLE)


# --- rules of arithmetic


def _add_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    return _linear_sum_operand_domains(call, result_domain, 1.0, 1.0)


def _subtract_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    return _linear_sum_operand_domains(call, result_domain, 1.0, -1.0)


def _linear_sum_operand_domains(
    call: Call, result_domain: ValueDomain, left_factor: float, right_factor: float
) -> OperandDomains:
    """Rule of left * x + right * y where one operand is constant; terms of a nonnegative sum are
    nonnegative.
    """
    integer = is_tensor_of_requested_number_kind(call, integer=True)
    for place, (factor, other) in enumerate(((left_factor, right_factor), (right_factor, left_factor))):
        ends = constant_min_and_max(call.args[1 - place])
        if ends is not None:
            least, most = sorted(other * end for end in ends)
            if least == most:
                operand_domain = value_domain_before_affine_map(result_domain, factor, least, is_integer=integer)
            else:
                # for every element of the constant
                operand_domain = value_domain_before_affine_map(
                    ValueDomain(result_domain.lo - least, result_domain.hi - most, firm=result_domain.firm), factor, 0.0
                )
                operand_domain = operand_domain if operand_domain.lo <= operand_domain.hi else UNCONSTRAINED_DOMAIN
            return [operand_domain, UNCONSTRAINED_DOMAIN] if place == 0 else [UNCONSTRAINED_DOMAIN, operand_domain]
    if result_domain.lo >= 0 and left_factor == right_factor:
        half = ValueDomain(lo=result_domain.lo / 2)
        return [half, half]
    return [UNCONSTRAINED_DOMAIN, UNCONSTRAINED_DOMAIN]


def _multiply_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    for place in (0, 1):
        ends = constant_min_and_max(call.args[1 - place])
        if ends is not None:
            operand_domain = intersect_value_domains(
                [
                    _attention_mask_factor_domain(call.args[place], ends),
                    _operand_domain_before_multiplication(call, result_domain, ends),
                ]
            )
            return [operand_domain, UNCONSTRAINED_DOMAIN] if place == 0 else [UNCONSTRAINED_DOMAIN, operand_domain]
    if result_domain.lo >= 0 and call.args[0] is not call.args[1]:
        operand_domain = ValueDomain(lo=min(result_domain.lo, 1.0))
        return [operand_domain, operand_domain]
    return [UNCONSTRAINED_DOMAIN, UNCONSTRAINED_DOMAIN]


def _attention_mask_factor_domain(factor: Expr, penalty_range: tuple[float, float]) -> ValueDomain:
    """Return the domain of the factor of an attention mask's penalty: of 1 - mask in (1 - mask) *
    -10000, or of mask - 1 in (mask - 1) * 10000.
    """
    if penalty_range[0] != penalty_range[1] or abs(penalty_range[0]) < MIN_ATTENTION_MASK_PENALTY:
        return UNCONSTRAINED_DOMAIN
    if penalty_range[0] < 0:
        return ZERO_ONE_DOMAIN
    match factor:
        case Call(op=Op(name="subtract"), args=[_, constant]) if constant_min_and_max(constant) == (1.0, 1.0):
            return ValueDomain(-1, 0, whole=True)
        case Call(op=Op(name="add"), args=[_, constant]) if constant_min_and_max(constant) == (-1.0, -1.0):
            return ValueDomain(-1, 0, whole=True)
    return UNCONSTRAINED_DOMAIN


def _operand_domain_before_multiplication(
    call: Call, result_domain: ValueDomain, factor_range: tuple[float, float]
) -> ValueDomain:
    """Return the domain of x for which x times any factor within `factor_range` is in
    `result_domain`.
    """
    least, most = factor_range
    if least == most:
        return value_domain_before_affine_map(
            result_domain, least, 0.0, is_integer=is_tensor_of_requested_number_kind(call, integer=True)
        )
    if most < 0:
        return value_domain_before_affine_map(
            _operand_domain_before_multiplication(call, result_domain, (-most, -least)), -1.0, 0.0
        )
    if least <= 0 or not (result_domain.lo <= 0 <= result_domain.hi or result_domain.lo >= 0):
        return NONNEGATIVE_DOMAIN if least >= 0 and result_domain.lo >= 0 else UNCONSTRAINED_DOMAIN
    lo = result_domain.lo / (least if result_domain.lo > 0 else most)
    hi = result_domain.hi / (most if result_domain.hi > 0 else least)
    return ValueDomain(lo, hi) if lo <= hi else UNCONSTRAINED_DOMAIN


def _divide_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    ends = constant_min_and_max(call.args[1])
    if ends is not None:
        by_zero = ends[0] <= 0 <= ends[1]
        return [
            UNCONSTRAINED_DOMAIN
            if by_zero
            else _operand_domain_before_multiplication(call, result_domain, (1 / ends[1], 1 / ends[0]))
        ]
    if is_tensor_of_requested_number_kind(call, integer=True):
        return [UNCONSTRAINED_DOMAIN, NONZERO_INTEGER_DOMAIN]
    if result_domain.lo >= 0:
        return [ValueDomain(lo=result_domain.lo), ValueDomain(lo=MIN_DIVISOR_MAGNITUDE)]
    return [UNCONSTRAINED_DOMAIN, NONZERO_DOMAIN]


def _remainder_operand_domains(call: Call, _: ValueDomain) -> OperandDomains:
    constant = constant_min_and_max(call.args[1]) is not None
    return [
        UNCONSTRAINED_DOMAIN,
        UNCONSTRAINED_DOMAIN
        if constant
        else NONZERO_INTEGER_DOMAIN
        if is_tensor_of_requested_number_kind(call, integer=True)
        else NONZERO_DOMAIN,
    ]


def _power_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    """Rule of `power`: a root needs a nonnegative base, a negative exponent a nonzero base.

    With an exponent that is not constant, the base must be positive and the exponent small.
    """
    base, exponent = map(constant_min_and_max, call.args)
    if exponent is None:
        small = ValueDomain(-4, 4)
        if base is None:
            return [ValueDomain(lo=MIN_DIVISOR_MAGNITUDE), small]
        return [
            UNCONSTRAINED_DOMAIN,
            small if abs(math.log(max(abs(base[1]), MIN_DISTANCE_FROM_LOG_POLE))) > 1 else UNCONSTRAINED_DOMAIN,
        ]
    if not float(exponent[0]).is_integer() or exponent[0] != exponent[1]:
        return [ValueDomain(lo=MIN_DIVISOR_MAGNITUDE if exponent[0] < 0 else 0.0)]
    if exponent[0] < 0:
        return [ValueDomain(lo=MIN_DIVISOR_MAGNITUDE) if exponent[0] % 2 and result_domain.lo >= 0 else NONZERO_DOMAIN]
    return [NONNEGATIVE_DOMAIN if exponent[0] % 2 and result_domain.lo >= 0 else UNCONSTRAINED_DOMAIN]


def _clip_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    least, most = float(call.attrs["a_min"]), float(call.attrs["a_max"])
    inner = ValueDomain(
        result_domain.lo if result_domain.lo > least else -math.inf,
        result_domain.hi if result_domain.hi < most else math.inf,
        sides=tuple(end for end in (least, most) if math.isfinite(end)),
    )
    return [inner]


def _minimum_maximum_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    """Rule of minimum and maximum: the operands must be within the bounds of the result, except
    that a bound which a constant operand guarantees does not restrict the variable operand.

    For `minimum(x, 3)` with a result of at most 5, `x` has no upper bound.
    """
    lowers = isinstance(call.op, Op) and call.op.name == "minimum"
    for place in (0, 1):
        ends = constant_min_and_max(call.args[1 - place])
        if ends is not None:
            lo = result_domain.lo if lowers or result_domain.lo > ends[0] else -math.inf
            hi = result_domain.hi if not lowers or result_domain.hi < ends[1] else math.inf
            sides = (ends[0],) if ends[0] == ends[1] and math.isfinite(ends[0]) else ()
            operand_domain = ValueDomain(lo, hi, sides=sides)
            return [operand_domain, UNCONSTRAINED_DOMAIN] if place == 0 else [UNCONSTRAINED_DOMAIN, operand_domain]
    both = ValueDomain(result_domain.lo, result_domain.hi)
    return [both, both]


def _comparison_domain_rule(step_down: bool, is_equality: bool) -> DomainRule:
    """Return the rule of a comparison with a constant: values on both sides of the point where the
    result changes.

    step_down     True if, for integers, the result changes between constant - 1 and constant rather than above it
    is_equality   True if the constant itself is a value that the model tests for
    """

    def comparison_operand_domains(call: Call, _: ValueDomain) -> OperandDomains:
        for place in (0, 1):
            data = constant_elements_in_any_order_or_none(call.args[1 - place])
            if data is None or DType.from_numpy(data).is_bool or has_bool_or_unknown_type(call.args[place]):
                continue
            points = [float(p) for p in np.unique(data.astype(np.float64)) if math.isfinite(p)]
            if is_tensor_of_requested_number_kind(call.args[place], integer=True):
                # x < c changes below c, c < x above it
                down = step_down if place == 0 else not step_down and not is_equality
                operand_domain = ValueDomain(
                    sides=_thin_out_boundary_points([q for p in points for q in ((p - 1, p) if down else (p, p + 1))])
                )
            else:
                operand_domain = (
                    ValueDomain(values=_thin_out_boundary_points(points))
                    if is_equality
                    else ValueDomain(sides=_thin_out_boundary_points(points))
                )
            return [operand_domain, UNCONSTRAINED_DOMAIN] if place == 0 else [UNCONSTRAINED_DOMAIN, operand_domain]
        return [UNCONSTRAINED_DOMAIN]

    return comparison_operand_domains


def _thin_out_boundary_points(points: list[float]) -> tuple[float, ...]:
    return intersect_value_domains([ValueDomain(sides=tuple(points))]).sides


# --- rules of functions


def _increasing_function_domain_rule(
    natural_domain: ValueDomain = UNCONSTRAINED_DOMAIN,
    inverse: Callable[[float], float] | None = None,
    image_interval: tuple[float, float] = (0, 0),
) -> DomainRule:
    """Return the rule of an increasing elementwise function.

    natural_domain    domain where the function is defined and finite
    inverse           inverse function, for values strictly inside `image_interval`; None if the domain of the
                      result does not restrict the argument
    image_interval    open interval of the function's values
    """

    def function_operand_domains(_: Call, result_domain: ValueDomain) -> OperandDomains:
        if inverse is None:
            return [natural_domain]
        lo = inverse(result_domain.lo) if image_interval[0] < result_domain.lo < image_interval[1] else -math.inf
        hi = inverse(result_domain.hi) if image_interval[0] < result_domain.hi < image_interval[1] else math.inf
        return [intersect_value_domains([natural_domain, ValueDomain(lo, hi)])]

    return function_operand_domains


def _exponential_domain_rule(limits_negative_arguments: bool = False) -> DomainRule:
    def exponential_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
        ty = static_tensor_type_or_none(call)
        if ty is None or not ty.dtype.is_float:
            return [UNCONSTRAINED_DOMAIN]
        end = MAX_EXPONENT_FRACTION * math.log(float(ty.dtype.max))
        if limits_negative_arguments:
            return [ValueDomain(-end, end)]
        lo = math.log(result_domain.lo) if 0 < result_domain.lo < math.inf else -math.inf
        hi = math.log(result_domain.hi) if 0 < result_domain.hi < math.inf else math.inf
        return [intersect_value_domains([ValueDomain(hi=end), ValueDomain(lo, hi)])]

    return exponential_operand_domains


def _abs_operand_domains(_: Call, result_domain: ValueDomain) -> OperandDomains:
    gap = (-result_domain.lo, result_domain.lo) if 0 < result_domain.lo < math.inf else None
    end = result_domain.hi if result_domain.hi > 0 else math.inf
    return [ValueDomain(-end, end, gap=gap)]


def _negative_operand_domains(_: Call, result_domain: ValueDomain) -> OperandDomains:
    return [value_domain_before_affine_map(result_domain, -1.0, 0.0)]


def _relu_operand_domains(_: Call, result_domain: ValueDomain) -> OperandDomains:
    return [
        ValueDomain(
            result_domain.lo if result_domain.lo > 0 else -math.inf,
            result_domain.hi if result_domain.hi > 0 else math.inf,
        )
    ]


def _sum_operand_domains(_: Call, result_domain: ValueDomain) -> OperandDomains:
    return [ValueDomain(lo=result_domain.lo) if result_domain.lo >= 0 else UNCONSTRAINED_DOMAIN]


def _contraction_operand_domains(call: Call, result_domain: ValueDomain) -> OperandDomains:
    """Rule of dense and convolution: nonnegative results and weights imply nonnegative data, as in
    mel filter banks.
    """
    weights = constant_min_and_max(call.args[1])
    return [
        NONNEGATIVE_DOMAIN
        if result_domain.lo >= 0 and weights is not None and weights[0] >= 0
        else UNCONSTRAINED_DOMAIN
    ]


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


def _exponential_with_capped_exponent(base: float) -> Callable[[float], float]:
    return lambda y: float(base ** min(y, 30.0))


#: The rules by name of the operator.
ARITHMETIC_DOMAIN_RULES_BY_OP_NAME: Final[Mapping[str, DomainRule]] = {
    # arithmetic
    "add": _add_operand_domains,
    "nn.bias_add": _add_operand_domains,
    "subtract": _subtract_operand_domains,
    "multiply": _multiply_operand_domains,
    **dict.fromkeys(("divide", "floor_divide", "trunc_divide"), _divide_operand_domains),
    **dict.fromkeys(("mod", "floor_mod", "trunc_mod"), _remainder_operand_domains),
    "power": _power_operand_domains,
    "clip": _clip_operand_domains,
    **dict.fromkeys(("minimum", "maximum"), _minimum_maximum_operand_domains),
    "less": _comparison_domain_rule(True, False),
    "greater_equal": _comparison_domain_rule(True, False),
    "greater": _comparison_domain_rule(False, False),
    "less_equal": _comparison_domain_rule(False, False),
    "equal": _comparison_domain_rule(False, True),
    "not_equal": _comparison_domain_rule(False, True),
    "sum": _sum_operand_domains,
    "cumsum": _sum_operand_domains,
    **dict.fromkeys(
        ("nn.dense", "nn.matmul", "nn.batch_matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"),
        _contraction_operand_domains,
    ),
    # functions
    **dict.fromkeys(("exp", "fast_exp", "expm1"), _exponential_domain_rule()),
    **dict.fromkeys(("sinh", "cosh"), _exponential_domain_rule(limits_negative_arguments=True)),
    "log": _increasing_function_domain_rule(_LOG_ARGUMENT_DOMAIN, math.exp, (-30, 30)),
    "log2": _increasing_function_domain_rule(_LOG_ARGUMENT_DOMAIN, _exponential_with_capped_exponent(2), (-30, 30)),
    "log10": _increasing_function_domain_rule(_LOG_ARGUMENT_DOMAIN, _exponential_with_capped_exponent(10), (-30, 30)),
    "log1p": _increasing_function_domain_rule(ValueDomain(lo=MIN_DISTANCE_FROM_LOG_POLE - 1), math.expm1, (-30, 30)),
    "sqrt": _increasing_function_domain_rule(NONNEGATIVE_DOMAIN, lambda y: y * y, (0, math.inf)),
    "rsqrt": _increasing_function_domain_rule(_LOG_ARGUMENT_DOMAIN),
    "sigmoid": _increasing_function_domain_rule(UNCONSTRAINED_DOMAIN, _logit, (0, 1)),
    **dict.fromkeys(("tanh", "fast_tanh"), _increasing_function_domain_rule(UNCONSTRAINED_DOMAIN, math.atanh, (-1, 1))),
    **dict.fromkeys(("acos", "asin"), _increasing_function_domain_rule(MINUS_ONE_TO_ONE_DOMAIN)),
    "acosh": _increasing_function_domain_rule(ValueDomain(lo=1.0)),
    "atanh": _increasing_function_domain_rule(
        ValueDomain(MIN_DISTANCE_FROM_LOG_POLE - 1, 1 - MIN_DISTANCE_FROM_LOG_POLE)
    ),
    "tan": _increasing_function_domain_rule(ValueDomain(-1.5, 1.5)),
    "abs": _abs_operand_domains,
    "negative": _negative_operand_domains,
    "nn.relu": _relu_operand_domains,
}
