# SPDX-License-Identifier: Apache-2.0
"""Defines quantized operators in exact arithmetic, and draws scales and zero points.

result = clip(round_even(f(scale * (x - zero), ...) / output_scale) + output_zero)

real(x, (scale, zero))                         # the numbers that integers stand for, exactly
check(found, quotient, onto, distance)         # the quotient rounded once, or its neighbor next to ties
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
F32 = np.float32
Wide = np.longdouble
Pair = tuple[np.floating[Any], int]
DTYPES = ("int8", "uint8")
SEEDS = range(40)
ROUNDING = 2.0**-22
"""What three roundings to float32 change, relative to the result."""


class Draw:
    """Scales and zero points from a seed: every third draw has powers of two and small multiples of them, so that many
    quotients are ties.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = DTYPES[seed % 2]
        self.ties = seed % 3 == 0
        self.kind = np.iinfo(self.dtype)
        self.every = np.arange(256, dtype=np.uint8).view(self.dtype)

    def one(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def scale(self) -> np.floating[Any]:
        if self.ties:
            return F32(2.0 ** int(self.rng.integers(-20, 3)) * self.one(1, 1, 3, 5, 6))
        return F32(2.0 ** self.rng.uniform(-20, 3))

    def near(self, scale: Any) -> np.floating[Any]:
        """A scale for results that mostly fit."""
        if self.ties:
            return F32(scale * self.one(0.5, 1, 2, 4, 6, 82))
        return F32(np.clip(float(scale) * 2.0 ** self.rng.uniform(-2, 6), 2.0**-20, 8))

    def zero(self) -> int:
        low, high = int(self.kind.min), int(self.kind.max)
        return int(self.one(low, high, 0, low + 128, self.rng.integers(low, high + 1)))

    def pair(self) -> Pair:
        return self.scale(), self.zero()

    def onto(self, size: Any) -> Pair:
        return self.one(self.scale, lambda: self.near(size), lambda: self.near(size))(), self.zero()


def real(x: Array, pair: Pair) -> Array:
    """The numbers that integers stand for, exactly."""
    return np.asarray((x.astype(np.int64) - pair[1]).astype(Wide) * Wide(pair[0]))


def from_ties(quotient: Array) -> Array:
    """How far numbers are from the nearest one halfway between two integers."""
    return np.asarray(np.abs(quotient - np.floor(quotient) - Wide(0.5)))


def defined(quotient: Array, onto: Pair, dtype: Any) -> Array:
    """A quotient rounded to even, around a zero point, saturated; NaN is the least integer."""
    kind, work = np.iinfo(dtype), np.nan_to_num(quotient, nan=-np.inf)
    return np.clip(np.clip(np.rint(work), -1e6, 1e6).astype(np.int64) + onto[1], kind.min, kind.max)


def outside(found: Array, quotient: Array, onto: Pair, distance: Any = 0.0) -> Array:
    """Where integers are neither the quotient rounded once nor, within `distance` of a tie, its neighbor.

    quotient    the exact result divided by the output scale
    """
    step = np.abs(found.astype(np.int64) - defined(quotient, onto, found.dtype))
    near = from_ties(np.nan_to_num(quotient, nan=-np.inf)) <= np.asarray(distance, np.float64)
    return np.asarray((step > 1) | ((step > 0) & ~near))


def check(found: Array, quotient: Array, onto: Pair, distance: Any = 0.0) -> None:
    """Fails where there are integers outside of what `outside` allows."""
    bad = outside(found, quotient, onto, distance)
    shown = (found[bad][:4], defined(quotient, onto, found.dtype)[bad][:4], quotient[bad][:4])
    assert not bad.any(), (*shown, int(bad.sum()))
