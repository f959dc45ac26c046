# SPDX-License-Identifier: Apache-2.0
"""Elementary functions as tensor programs: arithmetic that every processor rounds alike, in place of its library's.

`single` has formulas for float32, as have `exponential`, `logarithm`, `power`, `trigonometric`, `inverse` and `gamma`,
with `digits` for numbers of more digits; `double`, `double_inverse` and `double_gamma` have those for float64, with
`pairs`; `rounding` has those that round to integers, `remainder` has fmod, `narrow` the conversions of floats of 16
bits and fewer; `define` makes straight-line programs of formulas, `fuse` makes multiply-adds of products and sums,
`table` finds the program of a call.
Polynomials of float32 are Lawson-weighted least-squares fits on Chebyshev nodes, rounded coefficient by coefficient.

    definition("exp", DType("float32"))              # its registers, and its result
    definition("exp", DType("float32"), fused=True)  # with fma in place of a product and a sum
"""
