# SPDX-License-Identifier: Apache-2.0
"""Real numbers times weights of 8 bits: the numbers are quantized as
they come, with a scale and a zero point for each row or image, as in
XNNPACK.

In: data, and axes that share a scale.  Out: int8, and what brings
sums of products back.

    d = dynamic(x, (1, 2, 3))
    d.real(sums, w, bias, 3)                # real numbers again
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir import frozen
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.converter_signatures import Maybe
from aotc.relay.frontend.quantization import Quantized


@frozen
class Dynamic:
    """Integers, their zero points, and the scales that sums of them are multiplied by: one, or as they broadcast."""

    data: Expr
    zero: Expr
    scale: Expr

    def around_zero(self) -> Dynamic:
        """Integers without their zero points, of 16 bits: what stands for 0 is 0."""
        data = g.sub(g.cast(self.data, "int16"), g.cast(self.zero, "int16"))
        return Dynamic(data, g.filled(0, (1,), "int32"), self.scale)

    def terms(self, w: Quantized) -> tuple[Expr, ...]:
        """What operators of products take after data and weights; several zero points wait for `real`."""
        zero = g.reshape(self.zero, ()) if single(self.zero) else g.constant(0, "int32")
        return zero, w.zero, g.constant(1.0, "float32"), w.scale

    def real(self, sums: Expr, w: Quantized, bias: Maybe, axis: int) -> Expr:
        """Sums of products with weights (channels first) as real numbers, and a bias along an axis."""
        if not single(self.zero):
            whole = q.centered(w.data, w.zero, 0)
            total = g.reduce("sum", whole, range(1, g.rank(whole)), False)
            sums = g.sub(sums, g.mul(self.zero, total))
        y = g.op("qnn.product", g.cast(sums, "float32"), self.scale)
        y = g.op("qnn.product", y, q.laid(w.scale, axis, g.rank(sums)))
        return conv_pool.with_bias(y, bias, axis)


def single(v: Expr) -> bool:
    """Whether a tensor has one element."""
    return all(d == 1 for d in g.dims(v))


def dynamic(x: Expr, axes: Sequence[int]) -> Dynamic:
    """`x` in 255 steps from its least to its greatest element, or 0; `axes` share a scale."""
    low = g.minimum(g.reduce("min", x, axes, True), 0.0)
    high = g.maximum(g.reduce("max", x, axes, True), 0.0)
    steps = g.where(g.equal(low, high), g.filled(1.0, (), "float32"), g.div(255.0, g.sub(high, low)))
    below, above = (g.op("qnn.product", v, steps) for v in (low, high))
    zero = q.zero_from_nearer(below, above)
    data = g.op("qnn.nearest_int8", g.op("qnn.product", x, steps), zero)
    return Dynamic(data, g.cast(zero, "int32"), g.div(1.0, steps))
