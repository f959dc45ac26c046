# SPDX-License-Identifier: Apache-2.0
"""Quotients of two scales as integers, and products with them: the roundings of requantize that are exact.

A ratio is multiplier / 2^31 * 2^shift, the multiplier having 31 bits.  "UPWARD" and
"TONEAREST" round x * multiplier / 2^(31 - shift) once, halves up or away from zero.
"TFLITE" rounds twice, as gemmlowp does: x * multiplier / 2^31 with halves up, and what
that is after a shift to the right with halves away from zero.

    factors = factors_of(np.float32(0.5), np.float32(2.0), "UPWARD")
    factors.scaled(np.array([5, 6, -6]))                       # [1, 2, -1]
"""

from typing import Any, Final

import numpy as np

from aotc.ir import frozen
from aotc.relay.expr import Constant, Expr
from aotc.relay.op import binary_elementwise
from aotc.relay.op.opdef import Array
from aotc.relay.op.qnn import defined_rounding
from aotc.relay.op.qnn import quant_params as q

#: The roundings in integers.
ROUNDINGS: Final = ("UPWARD", "TONEAREST", "TFLITE")
_BITS: Final = 31
#: The least shift that operators of 32 bits take, and these.
_OF_WORDS: Final = {"UPWARD": (33, defined_rounding.scale_once), "TFLITE": (1, defined_rounding.scale_twice)}
#: Of the last shift: a product has 62 bits and a sign, and a half is added to it.
_LONGEST: Final = 62


@frozen(eq=False)
class Factors:
    """What integers of 32 bits are multiplied by and shifted; one of each, or one for each element of an axis.

    left   a shift of x before the product, saturated to 32 bits
    right  the last shift
    """

    rounding: str
    multiplier: Array
    left: Array
    right: Array

    def _fields(self, axis: int | None, rank: int) -> list[Array]:
        fields = (self.multiplier, self.left, self.right)
        return [q.spread(v, axis, rank, np.int64) for v in fields]

    def scaled(self, x: Array, axis: int | None = None) -> Array:
        """The products, rounded, as int64."""
        multiplier, left, right = self._fields(axis, x.ndim)
        wide = np.clip(x.astype(np.int64), -(1 << _BITS), (1 << _BITS) - 1)
        least = -(np.int64(1 << _BITS) >> left)
        v = (np.clip(wide, least, -least - 1) << left) * multiplier
        if self.rounding == "TFLITE":
            v = (v + (1 << _BITS - 1)) >> _BITS
        half = (np.int64(1) << right) >> 1
        down = self.rounding != "UPWARD"
        half = half - ((v < 0) & (right > 0) & down)
        return np.asarray((v + half) >> right)

    def of_words(self, x: Expr, axis: int | None) -> Expr | None:
        """The same of an expression of int32 in words of 32 bits, as int32; None where it takes more."""
        least, made = _OF_WORDS.get(self.rounding, (0, None))
        if made is None or self.left.any() or (self.right < least).any():
            return None
        rank = q.rank_of(x)
        fields = (q.laid(Constant(v.astype(np.int32)), axis, rank) for v in (self.multiplier, self.right - least))
        return q.made(made, x, *fields)

    def expr(self, x: Expr, axis: int | None) -> Expr:
        """The same of an expression, which is int64 and has 32 bits."""
        rank = q.rank_of(x)

        def along(value: Any) -> Expr:
            return q.laid(Constant(np.asarray(value, np.int64)), axis, rank)

        if self.left.any():
            least = -(np.int64(1 << _BITS) >> self.left)
            x = q.made(binary_elementwise.maximum, x, along(least))
            x = q.made(binary_elementwise.minimum, x, along(-least - 1))
            x = q.made(binary_elementwise.left_shift, x, along(self.left))
        v = q.mul(x, along(self.multiplier))
        if self.rounding == "TFLITE":
            v = q.add(v, q.constant(1 << _BITS - 1, "int64"))
            v = q.made(binary_elementwise.right_shift, v, q.constant(_BITS, "int64"))
        if not self.right.any():
            return v
        half = (np.int64(1) << self.right) >> 1
        up = along(half)
        if self.rounding != "UPWARD":
            negative = q.made(binary_elementwise.less, v, q.constant(0, "int64"))
            up = q.made(binary_elementwise.where, negative, along(half - (self.right > 0)), up)
        return q.made(binary_elementwise.right_shift, q.add(v, up), along(self.right))


def factors_of(source: Array, result: Array, rounding: str) -> Factors:
    """What brings integers of one scale to another one; of scales that are positive and finite."""
    ratio = np.asarray(source, np.float64) / np.asarray(result, np.float64)
    digits, shift = np.frexp(np.clip(ratio, 2.0**-99, 2.0**99))
    whole = np.floor(digits * 2.0**_BITS + 0.5).astype(np.int64)
    carried = whole == 1 << _BITS
    multiplier, shift = whole >> carried, shift + carried
    if rounding == "TFLITE":
        left, right, last = np.clip(shift, 0, _BITS - 1), -shift, _BITS
        multiplier = np.where(shift >= _BITS, (1 << _BITS) - 1, multiplier)
    else:
        left, right, last = np.clip(shift - _BITS, 0, 1), _BITS - shift, _LONGEST
    multiplier = np.where(right > last, 0, multiplier)
    shifts = (np.asarray(v, np.int64) for v in (left, np.clip(right, 0, last)))
    return Factors(rounding, np.asarray(multiplier, np.int64), *shifts)
