# SPDX-License-Identifier: Apache-2.0
"""Loop algebra: dependence between iterations, and rewriting of loops that leaves what they compute as it is.

Loops of `aotc.tir.stmt` in; facts, or other loops, out.  `dependence` proves what loops say of their iterations, and
finds which statements touch the same memory; `nest` merges, splits and unrolls loops; `vectorize` gives straight-line
bodies vector forms, `widen` and `converted` use it on loops over float16.

    polished(for i in 0..4: for j in 0..8: y[8 * i + j] = x[8 * i + j])     # for i in 0..32: y[i] = x[i]
"""
