# SPDX-License-Identifier: Apache-2.0
"""Graph builders for normalization of data (batch, channels, ...): calls of nn.batch_norm and
nn.rms_norm, or compositions of arithmetic operators.

batch_norm(x, scale, offset, mean, variance, 1e-5)
normalize_to_zero_mean_unit_variance(x, (2, 3), 1e-5)  # mean 0 and variance 1 over the last two axes
"""

from collections.abc import Sequence
from functools import reduce as fold

from aotc.ir import DType
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g


def mean_centered_and_variance(x: Expr, axes: Sequence[int]) -> tuple[Expr, Expr, Expr]:
    """Return the mean over axes, `x` minus the mean, and the variance; reduced axes remain with
    extent 1. Narrow floats are computed, and returned, in float32.
    """
    x = g.cast(x, g.accumulation_dtype(g.dtype(x)))
    mean = g.call_reduction("mean", x, axes, True)
    centered = g.sub(x, mean)
    return mean, centered, g.call_reduction("mean", g.mul(centered, centered), axes, True)


def normalize_to_zero_mean_unit_variance(x: Expr, axes: Sequence[int], epsilon: float) -> Expr:
    """Shift and scale `x` to mean 0 and variance 1 over the given axes; `epsilon` is added to the
    variance.
    """
    _, centered, variance = mean_centered_and_variance(x, axes)
    return g.cast(g.div(centered, g.sqrt(g.add(variance, epsilon))), g.dtype(x))


def scale_and_shift_channels(x: Expr, scale: Expr, offset: Expr) -> Expr:
    """Compute x * scale + offset with vectors that hold one value per channel (axis 1)."""
    rank = g.rank(x)
    return g.add(g.mul(x, g.reshape_along_axis(scale, 1, rank)), g.reshape_along_axis(offset, 1, rank))


def rms_norm(x: Expr, scale: Expr | None, normalized_axis_count: int, epsilon: float) -> Expr:
    """Build RMS normalization: divide `x` by the root of its mean square over the last
    `normalized_axis_count` axes, then multiply by `scale`, which has the shape of these axes,
    unless it is None.
    """
    if normalized_axis_count == 1:
        gamma = g.full(1, (g.dim(x, -1),), g.dtype(x)) if scale is None else scale
        return g.call_op("nn.rms_norm", x, gamma, axis=-1, epsilon=epsilon)

    def multiply_by_inverse_rms_and_factors(y: Expr, *factors: Expr) -> Expr:
        square = g.call_reduction("mean", g.mul(y, y), range(g.rank(x) - normalized_axis_count, g.rank(x)), True)
        return fold(g.mul, (y, g.call_op("rsqrt", g.add(square, epsilon)), *factors))

    return g.call_with_narrow_floats_in_float32(
        multiply_by_inverse_rms_and_factors, x, *(() if scale is None else (scale,))
    )


def batch_norm(x: Expr, scale: Expr, offset: Expr, mean: Expr, variance: Expr, epsilon: float) -> Expr:
    """Build batch normalization with given statistics: subtract the mean per channel, divide by the
    standard deviation, multiply by `scale` and add `offset`. If the statistics or the scale differ
    from the data in type, the computation is done in the type of the statistics, or in float32 if
    that is narrow.
    """
    work = g.dtype(mean)
    if g.dtype(x) == g.dtype(scale) == work:
        return g.field(g.call_op("nn.batch_norm", x, scale, offset, mean, variance, axis=1, epsilon=epsilon), 0)
    return batch_norm_as_elementwise_arithmetic(work, x, scale, offset, mean, variance, epsilon)


def batch_norm_as_elementwise_arithmetic(
    compute_dtype: str, x: Expr, scale: Expr, offset: Expr, mean: Expr, variance: Expr, epsilon: float
) -> Expr:
    """Build batch normalization from arithmetic in the data type `compute_dtype`, or in float32 if
    `compute_dtype` is a narrow float; the result has the data type of `x`.
    """
    wide = g.accumulation_dtype(DType(compute_dtype))
    mean, variance, compute_dtype = g.cast(mean, wide), g.cast(variance, wide), str(wide)
    factor = g.div(g.cast(scale, compute_dtype), g.sqrt(g.add(variance, epsilon)))
    shift = g.sub(g.cast(offset, compute_dtype), g.mul(mean, factor))
    return g.cast(scale_and_shift_channels(g.cast(x, compute_dtype), factor, shift), g.dtype(x))
