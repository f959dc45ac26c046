# SPDX-License-Identifier: Apache-2.0
"""What sums of products of quantised tensors share: zero points taken from the sums, and bounds of int32 sums.

sum((x - xz) * (w - wz)) = sum(x * w) - xz * sum(w) - wz * sum(x) + count * xz * wz

So operands stay as narrow as they are, and what depends on constants alone is one
constant for each channel.  Constant weights that fit int8 without their zero point are
stored without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import Final, TypeAlias

import numpy as np

from aotc.ir import current_span
from aotc.relay.expr import Constant, Expr
from aotc.relay.op.qnn import numbers as q

Zeros: TypeAlias = "tuple[Expr, Expr]"
_INT8: Final = np.iinfo(np.int8)
_MOST: Final = np.iinfo(np.int32).max
#: The arguments after data and weights.
NAMES: Final = ("input_zero_point", "kernel_zero_point", "input_scale", "kernel_scale")


def without_zero(weight: Expr, zero: Expr, axis: int | None) -> Zeros:
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
    zeros: Zeros,
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
    none, flat = map(q.is_zero, zeros)
    ours, theirs = map(_flat, zeros)
    if not none:
        total = weights()
        if not flat:
            every = q.mul(q.constant(count, "int32"), theirs)
            total = q.sub(total, every)
        sums = q.sub(sums, place(q.mul(ours, total)))
    if flat:
        return sums
    return q.sub(sums, q.mul(windows(), place(theirs)))


def _flat(zero: Expr) -> Expr:
    """Zero points as int32, one without axes."""
    if q.is_vector(zero):
        return q.converted(q.settled(zero), "int32")
    return q.laid(zero, None, 0, "int32")


def check_bounds(what: str, data: Expr, weight: Expr, zeros: Zeros, axis: int | None, summed: Sequence[int]) -> None:
    """Warns where sums of products can leave int32, as far as it is known what is summed.

    axis    of the weights' zero points
    summed  axes of the weights
    """
    low, high = _range(data, zeros[0])
    count = prod(q.size_of(weight, k) for k in summed)
    values, zero = q.known(weight), q.known(zeros[1])
    if values is not None and zero is not None:
        whole = q.offsets(values, zero, axis, np.int64)
        ends = whole * low, whole * high
        least, most = (f(*ends).sum(tuple(summed)) for f in (np.minimum, np.maximum))
        reached = max(int(most.max(initial=0)), -int(least.min(initial=0)))
    else:
        reached = count * max(-low, high) * max(map(abs, _range(weight, zeros[1])))
    if reached <= _MOST:
        return
    where = f"{current_span()}: " if current_span() is not None else ""
    text = f"{where}{what}: sums of {count} products may reach {reached:,}"
    warnings.warn(f"{text}, int32 holds {_MOST:,}; they wrap", stacklevel=2)


def _range(x: Expr, zero: Expr) -> tuple[int, int]:
    """The least and the greatest value without the zero point."""
    dtype, value = q.dtype_of(x), q.known(zero)
    low, high = int(dtype.min), int(dtype.max)
    if value is None:
        return low - high, high - low
    return low - int(value.max()), high - int(value.min())


def check(data: Expr, weight: Expr, *values: Expr, names: Sequence[str] = NAMES) -> None:
    """AotcError for known zero points that their tensors do not hold, and for scales that are none."""
    pairs = list(zip(names, values, strict=True))
    for (name, zero), x in zip(pairs, (data, weight), strict=False):
        q.checked_zero(name, zero, q.dtype_of(x))
    q.checked_scales(pairs[2:])
