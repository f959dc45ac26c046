# SPDX-License-Identifier: Apache-2.0
"""What sums of products of quantised tensors share: zero points taken from the sums, and bounds of int32 sums.

sum((x - xz) * (w - wz)) = sum(x * w) - xz * sum(w) - wz * sum(x) + count * xz * wz

So operands stay as narrow as they are, and what depends on constants alone is one
constant for each channel.  Constant weights that fit int8 without their zero point are
stored without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aotc.ir import DType, current_span
from aotc.relay.expr import Constant, Expr, tensor_type_of
from aotc.relay.op import binary
from aotc.relay.op.qnn import numbers as q

_INT8: Final = np.iinfo(np.int8)
_INT32: Final = np.iinfo(np.int32)
#: The arguments after data and weights.
ZEROS: Final = ("input_zero_point", "kernel_zero_point")
SCALES: Final = ("input_scale", "kernel_scale")


def without_zero(weight: Expr, zero: Expr, axis: int | None) -> tuple[Expr, Expr]:
    """Weights and their zero points along an axis; known ones as int8 around 0 where that holds them."""
    values, offset = q.known(weight), q.known(zero)
    if values is None or offset is None:
        return weight, zero
    whole = q.offsets(values, offset, axis, np.int64)
    if whole.size and (whole.min() < _INT8.min or whole.max() > _INT8.max):
        return q.settled(weight), q.settled(zero)
    return Constant(whole.astype(np.int8)), q.constant(0, "int32")


def taken(
    sums: Expr,
    zeros: tuple[Expr, Expr],
    count: int,
    weights: Callable[[], Expr],
    windows: Callable[[], Expr],
    place: Callable[[Expr], Expr],
) -> Expr:
    """The sums without zero points.

    count    products in each sum
    weights  the sums of the weights, a vector or what broadcasts with the sums
    windows  the sums of the data, which broadcast with the sums
    place    what is one value for each output channel as it broadcasts with the sums
    """
    ours, theirs = zeros
    none, flat = q.is_zero(ours), q.is_zero(theirs)
    wide, other = (laid_flat(z) for z in zeros)
    if not none:
        total = weights()
        if not flat:
            total = q.made(binary.subtract, total, q.made(binary.multiply, q.constant(count, "int32"), other))
        sums = q.made(binary.subtract, sums, place(q.made(binary.multiply, wide, total)))
    if flat:
        return sums
    return q.made(binary.subtract, sums, q.made(binary.multiply, windows(), place(other)))


def laid_flat(zero: Expr) -> Expr:
    """Zero points as int32, one without axes."""
    single = tensor_type_of(zero).shape == (1,)
    return q.laid(zero, None, 0, "int32") if single else q.converted(q.settled(zero), "int32")


def check_sums(what: str, data: Expr, weight: Expr, zeros: tuple[Expr, Expr], axis: int | None, count: int) -> None:
    """Warns where sums of products can leave int32, as far as it is known what is summed.

    axis   of the weights, that of output channels; None where there is one sum for each row of weights' last axis
    """
    low, high = _range(data, zeros[0])
    values, zero = q.known(weight), q.known(zeros[1])
    if values is not None and zero is not None:
        whole = q.offsets(values, zero, axis, np.int64)
        others = tuple(k for k in range(whole.ndim) if k != (axis if axis is not None else -1) % max(whole.ndim, 1))
        ends = np.stack([whole * low, whole * high])
        most = max(int(ends.max(0).sum(others).max(initial=0)), -int(ends.min(0).sum(others).min(initial=0)))
    else:
        most = count * max(-low, high) * max(abs(v) for v in _range(weight, zeros[1]))
    if most > _INT32.max:
        span = current_span()
        where = f"{span}: " if span is not None else ""
        text = f"{where}{what}: sums of {count} products may reach {most:,}, int32 holds {_INT32.max:,}; they wrap"
        warnings.warn(text, stacklevel=2)


def _range(x: Expr, zero: Expr) -> tuple[int, int]:
    """The least and the greatest value without the zero point."""
    dtype: DType = tensor_type_of(x).dtype
    low, high, value = int(dtype.min), int(dtype.max), q.known(zero)
    if value is None:
        return low - high, high - low
    return low - int(value.max()), high - int(value.min())


def check_zeros(data: Expr, weight: Expr, zeros: tuple[Expr, Expr], scales: tuple[Any, ...]) -> None:
    """AotcError for known zero points that their tensors do not hold, and for scales that are none."""
    for name, zero, x in zip(ZEROS, zeros, (data, weight), strict=True):
        q.checked_zero(name, zero, tensor_type_of(x).dtype)
    q.checked_scales(zip(SCALES, scales, strict=True))
