# SPDX-License-Identifier: Apache-2.0
"""Fixed-point multiplication by a ratio of two scales: the integer rounding modes of
qnn.requantize.

A ratio is represented as multiplier / 2^31 * 2^shift with a 31-bit multiplier. The modes "UPWARD"
and "TONEAREST" round x * multiplier / 2^(31 - shift) once, with halves up or away from zero.
"TFLITE" rounds twice, as gemmlowp does: first x * multiplier / 2^31 with halves up, then the right
shift with halves away from zero.

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

#: Rounding modes of requantize that are computed in integer arithmetic.
ROUNDINGS: Final = ("UPWARD", "TONEAREST", "TFLITE")
_BITS: Final = 31
#: For each rounding mode with an operator on 32-bit integers: its smallest right shift, and the
#: operator.
_OF_WORDS: Final = {"UPWARD": (33, defined_rounding.scale_once), "TFLITE": (1, defined_rounding.scale_twice)}
#: Largest right shift: a product has 62 bits and a sign, and a half is added before the shift.
_LONGEST: Final = 62


@frozen(eq=False)
class Factors:
    """Fixed-point representation of a scale ratio; each array has one element or one for each
    element of an axis.

    rounding    rounding mode, one of ROUNDINGS
    multiplier  31-bit multiplier
    left        left shift of x before the product, saturated to 32 bits
    right       right shift after the product
    """

    rounding: str
    multiplier: Array
    left: Array
    right: Array

    def _fields(self, axis: int | None, rank: int) -> list[Array]:
        fields = (self.multiplier, self.left, self.right)
        return [q.spread(v, axis, rank, np.int64) for v in fields]

    def scaled(self, x: Array, axis: int | None = None) -> Array:
        """Return x times the ratio, rounded, as int64; the factors lie along `axis` of x."""
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
        """Return an expression for int32 x times the ratio that uses 32-bit operators only, as
        int32.

        Return None if the rounding mode or the shifts need 64-bit arithmetic.
        """
        least, made = _OF_WORDS.get(self.rounding, (0, None))
        if made is None or self.left.any() or (self.right < least).any():
            return None
        rank = q.rank_of(x)
        fields = (q.laid(Constant(v.astype(np.int32)), axis, rank) for v in (self.multiplier, self.right - least))
        return q.made(made, x, *fields)

    def expr(self, x: Expr, axis: int | None) -> Expr:
        """Return an expression for x times the ratio, rounded; x is int64 with values that fit 32
        bits.
        """
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
    """Return the fixed-point factors that convert integers with scale `source` to integers with
    scale `result`.

    Scales must be positive and finite.
    """
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
