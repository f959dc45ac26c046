# SPDX-License-Identifier: Apache-2.0
"""Table of elementary functions: the program of each name in `aotc.tir.INSTRUCTIONS`, and bounds on
its error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final, TypeAlias

from aotc.ir.dtype import DTYPES, DType
from aotc.tir import Declare, Expr
from aotc.tir.functions import (
    float16_conversion,
    float32_exponential,
    float32_functions,
    float32_gamma,
    float32_inverse_trigonometric,
    float32_logarithm,
    float32_power,
    float32_trigonometric,
    float64_functions,
    float64_gamma,
    float64_inverse_functions,
    float_remainder,
    float_rounding,
    integer_functions,
)
from aotc.tir.functions.fma_contraction import contract_to_fma as fuse
from aotc.tir.functions.function_from_formula import ElementaryFunction, function_from_formula

_Formula: TypeAlias = Callable[..., Expr]
_FLOAT32_FORMULAS: Final[Mapping[str, _Formula]] = {
    name: getattr(module, name)
    for module, names in (
        (float32_functions, "exp log tanh erf"),
        (float32_power, "pow"),
        (float32_gamma, "tgamma lgamma"),
        (float32_exponential, "exp2 expm1 sinh cosh"),
        (float32_logarithm, "log2 log10 log1p asinh acosh atanh"),
        (float32_trigonometric, "sin cos tan"),
        (float32_inverse_trigonometric, "asin acos atan atan2 cbrt"),
    )
    for name in names.split()
}
_FLOAT64_FORMULAS: Final[Mapping[str, _Formula]] = {
    name: getattr(module, name)
    for module, names in (
        (float64_functions, "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh erf pow"),
        (float64_inverse_functions, "asin acos atan atan2 asinh acosh atanh cbrt"),
        (float64_gamma, "tgamma lgamma"),
    )
    for name in names.split()
}
#: Functions with exactly one correct result, which C libraries implement for scalars.
EXACT_FUNCTIONS: Final[Mapping[str, _Formula]] = {
    "floor": float_rounding.floor, "ceil": float_rounding.ceil, "trunc": float_rounding.trunc,
    "round_even": float_rounding.round_even, "round_away": float_rounding.round_away,
    "fmod": float_remainder.fmod,
}  # fmt: skip
#: Functions on int32 values.
INTEGER_FUNCTION_NAMES: Final = ("scale_once", "scale_twice", "saturate_int8", "saturate_uint8")
#: Elementwise instructions that read and write memory. Each value is a function that takes one element of
#: every elementwise operand, and the scalar operands, and returns the expression of one result element.
ELEMENT_MEANINGS: Final[Mapping[str, _Formula]] = {
    f"requantize_{name}": partial(integer_functions.requantize, f"scale_{name}") for name in ("once", "twice")
}
_FORMULAS: Final[Mapping[tuple[str, str], _Formula]] = {
    **{(name, "float32"): formula for name, formula in (*_FLOAT32_FORMULAS.items(), *EXACT_FUNCTIONS.items())},
    **{(name, "float64"): formula for name, formula in (*_FLOAT64_FORMULAS.items(), *EXACT_FUNCTIONS.items())},
    **{(name, "float32"): formula for name, formula in float_rounding.QUANTIZE_FUNCTIONS.items()},
    **{("rsqrt", name): float32_functions.rsqrt for name in ("float32", "float64")},
    **{(name, "int32"): getattr(integer_functions, name) for name in INTEGER_FUNCTION_NAMES},
    **{
        (f.__name__, str(d)): f
        for f in (integer_functions.popcount, integer_functions.clz)
        for d in DTYPES
        if d.is_integer
    },
}

_FLOAT32_ULP_BOUNDS: Final = {
    1.0: "log log2 log10 log1p sin cos tan asin acos sinh cosh acosh atanh cbrt power",
    1.5: "exp exp2 expm1 tanh asinh atan atan2 rsqrt",
    2.0: "tgamma lgamma",
    2.5: "erf sigmoid",
}
#: Largest errors of float32 operators in units in the last place (ULP), for every target and
#: argument. A unit is the distance between the floats around the exact value. For subnormal values
#: it is the smallest subnormal; for lgamma of negative numbers, which has many zeros, it is at
#: least the unit of 1. Tests compare floats (the slow tests: all floats) with the C library's
#: functions in double. sigmoid uses exp.
ULP: Final = {name: bound for bound, names in _FLOAT32_ULP_BOUNDS.items() for name in names.split()}

_FLOAT64_ULP_BOUNDS: Final = {
    0.0: "fmod",
    1.0: "exp exp2 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh cbrt pow"
    " tgamma lgamma",
    1.5: "expm1 erf",
}
#: Largest errors of float64 functions in units in the last place; tests compare samples with
#: results of at least 64 bits. For lgamma below -2, where it has zeros, a unit is at least the unit
#: of 1/4.
ULP_DOUBLE: Final = {name: bound for bound, names in _FLOAT64_ULP_BOUNDS.items() for name in names.split()}


@cache
def elementary_function_definition(name: str, dtype: DType, uses_fma: bool = False) -> ElementaryFunction | None:
    """Return the program of a function for a dtype (for narrow floats: the float32 program); None
    if there is none.

    uses_fma    if True, the program uses fused multiply-adds, which round once
    """
    if name in float16_conversion.CONVERSION_NAMES:
        return float16_conversion.narrow_float_conversion(name, dtype)
    carrier = DType("float32") if dtype.is_narrow_float else dtype
    formula = _FORMULAS.get((name, carrier))
    if formula is None:
        return None
    program = function_from_formula(name, carrier, formula)
    if not uses_fma:
        return program
    body = tuple(Declare(stmt.var, fuse(stmt.value)) for stmt in program.body)
    return ElementaryFunction(name, program.params, body, fuse(program.result))
