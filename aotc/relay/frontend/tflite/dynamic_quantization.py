# SPDX-License-Identifier: Apache-2.0
"""Dynamic-range quantization of layers with 8-bit weights and floating-point data: the data is
quantized to int8 at run time, with a scale and a zero point per row or image, as in XNNPACK.

Input: data, and the axes over which a scale is shared. Output: int8 data, and a conversion of sums
of products back to real numbers.

    d = quantize_dynamically(x, (1, 2, 3))
    d.dequantize_sums(sums, w, bias, 3)     # real numbers again
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir import frozen
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.quantization import QuantizedTensor


@frozen
class DynamicallyQuantized:
    """Dynamically quantized data: integers, their zero points, and the scales by which integer sums
    are multiplied; scale and zero point are single or broadcast against the data.
    """

    data: Expr
    zero: Expr
    scale: Expr

    def with_zero_point_subtracted(self) -> DynamicallyQuantized:
        """Return the data with its zero point subtracted, as int16, so that padding with 0
        represents the real number 0.
        """
        data = g.sub(g.cast(self.data, "int16"), g.cast(self.zero, "int16"))
        return DynamicallyQuantized(data, g.full(0, (1,), "int32"), self.scale)

    def qnn_zero_points_and_scales(self, w: QuantizedTensor) -> tuple[Expr, ...]:
        """Return the arguments of quantized convolutions and products that follow data and weights:
        zero points, then scales. Several zero points are passed as 0 and are corrected by
        `dequantize_sums`.
        """
        zero = g.reshape(self.zero, ()) if has_only_unit_extents(self.zero) else g.constant(0, "int32")
        return zero, w.zero, g.constant(1.0, "float32"), w.scale

    def dequantize_sums(self, sums: Expr, w: QuantizedTensor, bias: OptionalExpr, axis: int) -> Expr:
        """Convert integer sums of products with weights (output channels first) to real numbers,
        correct them for several zero points, and add a bias along `axis`.
        """
        if not has_only_unit_extents(self.zero):
            whole = q.subtract_zero_point(w.data, w.zero, 0)
            total = g.call_reduction("sum", whole, range(1, g.rank(whole)), False)
            sums = g.sub(sums, g.mul(self.zero, total))
        y = g.call_op("qnn.product", g.cast(sums, "float32"), self.scale)
        y = g.call_op("qnn.product", y, q.reshape_param_to_broadcast_along_axis(w.scale, axis, g.rank(sums)))
        return conv_pool.add_optional_bias(y, bias, axis)


def has_only_unit_extents(v: Expr) -> bool:
    """Return True if all extents of a tensor are 1."""
    return all(d == 1 for d in g.dims(v))


def quantize_dynamically(x: Expr, reduced_axes: Sequence[int]) -> DynamicallyQuantized:
    """Quantize `x` to int8 in 255 steps from its minimum to its maximum, both extended to include
    0; elements along `reduced_axes` share a scale.
    """
    low = g.minimum(g.call_reduction("min", x, reduced_axes, True), 0.0)
    high = g.maximum(g.call_reduction("max", x, reduced_axes, True), 0.0)
    steps = g.where(g.equal(low, high), g.full(1.0, (), "float32"), g.div(255.0, g.sub(high, low)))
    below, above = (g.call_op("qnn.product", v, steps) for v in (low, high))
    zero = q.int8_zero_point_from_range(below, above)
    data = g.call_op("qnn.nearest_int8", g.call_op("qnn.product", x, steps), zero)
    return DynamicallyQuantized(data, g.cast(zero, "int32"), g.div(1.0, steps))


def quantize_symmetrically(x: Expr, reduced_axes: Sequence[int]) -> DynamicallyQuantized:
    """Quantize `x` to int8 with the zero point 0, in 127 steps up to its largest absolute value; elements along
    `reduced_axes` share a scale. Halves are rounded away from zero.
    """
    size = g.call_op("abs", x)
    largest = g.call_reduction("max", size, reduced_axes, True)
    steps = g.where(g.equal(largest, 0.0), g.full(1.0, (), "float32"), g.div(127.0, largest))
    count = g.minimum(g.call_op("floor", g.add(g.mul(size, steps), 0.5)), 127.0)
    data = g.cast(g.mul(g.call_op("sign", x), count), "int8")
    return DynamicallyQuantized(data, g.full(0, (1,), "int32"), g.div(largest, 127.0))
