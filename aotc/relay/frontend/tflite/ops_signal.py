# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of Fourier transforms and of complex tensors.

A complex64 tensor is a float32 tensor with a last axis of two: real and imaginary parts.

OPS["RFFT2D"](x, [4, 8])            # (..., h, w) -> (..., 4, 5, 2)
OPS["COMPLEX_ABS"](spectrum)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aotc.ir import require
from aotc.relay.expr import Expr, TupleGetItem
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.tflite.node import KnownInts, Table

#: Operators that move complex elements: they are applied to both parts.
MOVES_COMPLEX: Final = frozenset(
    {
        *("CONCATENATION", "EXPAND_DIMS", "GATHER", "PACK", "RESHAPE", "REVERSE_V2", "SLICE", "SPLIT"),
        *("SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK"),
    }
)
#: Operators that compute with complex numbers.
COMPLEX_OPERATORS: Final = frozenset({"COMPLEX_ABS", "IMAG", "REAL", "RFFT2D"})


def complex_part(x: Expr, k: int) -> Expr:
    """Return the real (0) or imaginary (1) part of a complex tensor."""
    last = g.rank(x) - 1
    return g.squeeze(g.strided_slice(x, [k], [k + 1], [last]), [last])


def complex_from_parts(parts: Sequence[Expr]) -> Expr:
    """Return the complex tensor of a real and an imaginary part."""
    return g.stack(list(parts), g.rank(parts[0]))


def _with_extent(x: Expr, axis: int, extent: int) -> Expr:
    """Cut an axis, or pad it with zeros, to an extent."""
    present = g.dim(x, axis)
    x = g.strided_slice(x, [0], [extent], [axis]) if extent < present else x
    widths = [(0, max(extent - present, 0) if k == axis else 0) for k in range(g.rank(x))]
    return g.pad(x, widths) if extent > present else x


def _transform_last_axis(parts: Sequence[Expr]) -> list[Expr]:
    both = g.call_op("dft", *parts, inverse=False)
    return [TupleGetItem(both, k) for k in (0, 1)]


def _convert_rfft2d_node(x: Expr, lengths: KnownInts) -> Expr:
    """Convert RFFT2D: the transform of real numbers over the last two axes, which are cut or padded to
    `lengths`; the last axis of the result has the frequencies that are not negative.
    """
    rank = g.rank(x)
    fits = rank >= 2 and len(lengths) == 2 and min(lengths) > 0
    require("graph-shape", fits, f"lengths {lengths} of a transform do not fit rank {rank}")
    height, width = lengths
    x = _with_extent(_with_extent(x, rank - 2, height), rank - 1, width)
    parts = _transform_last_axis([x, g.full(0.0, g.shape(x), "float32")])
    parts = [g.strided_slice(v, [0], [width // 2 + 1], [rank - 1]) for v in parts]
    if height > 1:
        order = (*range(rank - 2), rank - 1, rank - 2)
        parts = [g.transpose(v, order) for v in _transform_last_axis([g.transpose(v, order) for v in parts])]
    return complex_from_parts(parts)


def _convert_real_node(x: Expr) -> Expr:
    return complex_part(x, 0)


def _convert_imag_node(x: Expr) -> Expr:
    return complex_part(x, 1)


def _convert_complex_abs_node(x: Expr) -> Expr:
    """Return the absolute values, computed in float64 so that no square overflows."""
    real, imaginary = (g.cast(complex_part(x, k), "float64") for k in (0, 1))
    return g.cast(g.sqrt(g.add(g.mul(real, real), g.mul(imaginary, imaginary))), "float32")


OPS: Final[Table] = {
    "COMPLEX_ABS": _convert_complex_abs_node,
    "IMAG": _convert_imag_node,
    "REAL": _convert_real_node,
    "RFFT2D": _convert_rfft2d_node,
}
INTEGERS: Final[frozenset[str]] = frozenset()
MOVES: Final[frozenset[str]] = frozenset()
