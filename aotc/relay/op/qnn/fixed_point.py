# SPDX-License-Identifier: Apache-2.0
"""Fixed-point multiplication by a ratio of two scales: the integer rounding modes of
qnn.requantize.

A ratio is represented as multiplier / 2^31 * 2^shift with a 31-bit multiplier. The modes "UPWARD"
and "TONEAREST" round x * multiplier / 2^(31 - shift) once, with halves up or away from zero.
"TFLITE" rounds twice, as gemmlowp does: first x * multiplier / 2^31 with halves up, then the right
shift with halves away from zero.

    factors = fixed_point_factors_of_scales(np.float32(0.5), np.float32(2.0), "UPWARD")
    factors.multiply_array_by_ratio_rounded(np.array([5, 6, -6]))          # [1, 2, -1]
"""

from typing import Any, Final

import numpy as np

from aotc.ir import frozen
from aotc.relay.expr import Constant, Expr
from aotc.relay.op import binary_elementwise
from aotc.relay.op.opdef import Array
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.qnn import target_independent_rounding

#: Rounding modes of requantize that are computed in integer arithmetic.
FIXED_POINT_ROUNDING_MODES: Final = ("UPWARD", "TONEAREST", "TFLITE")
_MULTIPLIER_BITS: Final = 31
#: For each rounding mode with an operator on 32-bit integers: its smallest right shift, and the
#: operator.
_SCALE_OPS_BY_ROUNDING: Final = {
    "UPWARD": (33, target_independent_rounding.scale_once),
    "TFLITE": (1, target_independent_rounding.scale_twice),
}
#: Largest right shift: a product has 62 bits and a sign, and a half is added before the shift.
_MAX_RIGHT_SHIFT: Final = 62


@frozen(eq=False)
class FixedPointFactors:
    """Fixed-point representation of a scale ratio; each array has one element or one for each
    element of an axis.

    rounding     rounding mode, one of ROUNDINGS
    multiplier   31-bit multiplier
    left_shift   left shift of x before the product, saturated to 32 bits
    right_shift  right shift after the product
    """

    rounding: str
    multiplier: Array
    left_shift: Array
    right_shift: Array

    def _multiplier_and_shifts_to_broadcast(self, axis: int | None, rank: int) -> list[Array]:
        fields = (self.multiplier, self.left_shift, self.right_shift)
        return [q.broadcast_array_along(v, axis, rank, np.int64) for v in fields]

    def multiply_array_by_ratio_rounded(self, x: Array, axis: int | None = None) -> Array:
        """Return x times the ratio, rounded, as int64; the factors lie along `axis` of x."""
        multiplier, left, right = self._multiplier_and_shifts_to_broadcast(axis, x.ndim)
        wide = np.clip(x.astype(np.int64), -(1 << _MULTIPLIER_BITS), (1 << _MULTIPLIER_BITS) - 1)
        least = -(np.int64(1 << _MULTIPLIER_BITS) >> left)
        v = (np.clip(wide, least, -least - 1) << left) * multiplier
        if self.rounding == "TFLITE":
            v = (v + (1 << _MULTIPLIER_BITS - 1)) >> _MULTIPLIER_BITS
        half = (np.int64(1) << right) >> 1
        down = self.rounding != "UPWARD"
        half = half - ((v < 0) & (right > 0) & down)
        return np.asarray((v + half) >> right)

    def multiply_by_ratio_in_32_bits_or_none(self, x: Expr, axis: int | None) -> Expr | None:
        """Return an expression for int32 x times the ratio that uses 32-bit operators only, as
        int32.

        Return None if the rounding mode or the shifts need 64-bit arithmetic.
        """
        least, scale_op = _SCALE_OPS_BY_ROUNDING.get(self.rounding, (0, None))
        if scale_op is None or self.left_shift.any() or (self.right_shift < least).any():
            return None
        rank = q.rank_of(x)
        fields = (
            q.broadcast_quant_param_along(Constant(v.astype(np.int32)), axis, rank)
            for v in (self.multiplier, self.right_shift - least)
        )
        return q.call_or_fold_constants(scale_op, x, *fields)

    def multiply_int64_expr_by_ratio(self, x: Expr, axis: int | None) -> Expr:
        """Return an expression for x times the ratio, rounded; x is int64 with values that fit 32
        bits.
        """
        rank = q.rank_of(x)

        def constant_along_axis(value: Any) -> Expr:
            return q.broadcast_quant_param_along(Constant(np.asarray(value, np.int64)), axis, rank)

        if self.left_shift.any():
            least = -(np.int64(1 << _MULTIPLIER_BITS) >> self.left_shift)
            x = q.call_or_fold_constants(binary_elementwise.maximum, x, constant_along_axis(least))
            x = q.call_or_fold_constants(binary_elementwise.minimum, x, constant_along_axis(-least - 1))
            x = q.call_or_fold_constants(binary_elementwise.left_shift, x, constant_along_axis(self.left_shift))
        v = q.mul(x, constant_along_axis(self.multiplier))
        if self.rounding == "TFLITE":
            v = q.add(v, q.constant_of_dtype(1 << _MULTIPLIER_BITS - 1, "int64"))
            v = q.call_or_fold_constants(
                binary_elementwise.right_shift, v, q.constant_of_dtype(_MULTIPLIER_BITS, "int64")
            )
        if not self.right_shift.any():
            return v
        half = (np.int64(1) << self.right_shift) >> 1
        up = constant_along_axis(half)
        if self.rounding != "UPWARD":
            negative = q.call_or_fold_constants(binary_elementwise.less, v, q.constant_of_dtype(0, "int64"))
            up = q.call_or_fold_constants(
                binary_elementwise.where, negative, constant_along_axis(half - (self.right_shift > 0)), up
            )
        return q.call_or_fold_constants(
            binary_elementwise.right_shift, q.add(v, up), constant_along_axis(self.right_shift)
        )


def fixed_point_factors_of_scales(source_scale: Array, result_scale: Array, rounding: str) -> FixedPointFactors:
    """Return the fixed-point factors that convert integers with scale `source_scale` to integers
    with scale `result_scale`.

    Scales must be positive and finite.
    """
    ratio = np.asarray(source_scale, np.float64) / np.asarray(result_scale, np.float64)
    digits, shift = np.frexp(np.clip(ratio, 2.0**-99, 2.0**99))
    whole = np.floor(digits * 2.0**_MULTIPLIER_BITS + 0.5).astype(np.int64)
    carried = whole == 1 << _MULTIPLIER_BITS
    multiplier, shift = whole >> carried, shift + carried
    if rounding == "TFLITE":
        left, right, last = np.clip(shift, 0, _MULTIPLIER_BITS - 1), -shift, _MULTIPLIER_BITS
        multiplier = np.where(shift >= _MULTIPLIER_BITS, (1 << _MULTIPLIER_BITS) - 1, multiplier)
    else:
        left, right, last = np.clip(shift - _MULTIPLIER_BITS, 0, 1), _MULTIPLIER_BITS - shift, _MAX_RIGHT_SHIFT
    multiplier = np.where(right > last, 0, multiplier)
    shifts = (np.asarray(v, np.int64) for v in (left, np.clip(right, 0, last)))
    return FixedPointFactors(rounding, np.asarray(multiplier, np.int64), *shifts)
