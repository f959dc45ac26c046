# SPDX-License-Identifier: Apache-2.0
"""Elementary functions (exp, log, sin, pow, ...) as tensor programs that round alike on every processor.

They replace the C library's functions, whose results differ between platforms.  `float32_functions` has formulas for
float32, as have `float32_exponential`, `float32_logarithm`, `float32_power`, `float32_trigonometric`, `float32_inverse`
and `float32_gamma`, with `double_float32` for sums of two floats; `float64_functions`, `float64_inverse` and
`float64_gamma` have those for float64, with `double_double`; `float_rounding` rounds to integral values,
`float_remainder` is fmod, `float16_conversion` converts floats of at most 16 bits; `function_definition` makes
straight-line programs from formulas, `fma_contraction` replaces products and sums by fused multiply-adds, and
`function_table` finds the program of a call.
Polynomials of float32 are Lawson-weighted least-squares fits on Chebyshev nodes, rounded coefficient by coefficient.

    definition("exp", DType("float32"))              # its registers, and its result
    definition("exp", DType("float32"), fused=True)  # with fma in place of a product and a sum
"""
