# SPDX-License-Identifier: Apache-2.0
"""Elementary functions (exp, log, sin, pow, ...) as tensor-IR programs with equal rounding on every
processor.

They replace the C library's functions, whose results differ between platforms.

float32: `float32_functions`, `float32_exponential`, `float32_logarithm`, `float32_power`,
`float32_trigonometric`, `float32_inverse_trigonometric` and `float32_gamma`, with pairs of floats
in `double_float32`. float64: `float64_functions`, `float64_inverse_functions` and `float64_gamma`,
with pairs of doubles in `double_double`. Both: `float_rounding` rounds to integral values,
`float_remainder` is fmod. `float16_conversion` converts floats of at most 16 bits;
`integer_functions` has bit counts and fixed-point multiplications. `function_from_formula` makes
straight-line programs from formulas, `fma_contraction` replaces products and sums by fused
multiply-adds, and `elementary_function_table` looks up the program of a call. Polynomials for
float32 are Lawson-weighted least-squares fits on Chebyshev nodes, rounded coefficient by
coefficient.

    definition("exp", DType("float32"))              # its registers, and its result
    definition("exp", DType("float32"), fused=True)  # with fma in place of a product and a sum
"""
