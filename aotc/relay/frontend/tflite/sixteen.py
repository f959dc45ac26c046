# SPDX-License-Identifier: Apache-2.0
"""Layers with activations of 16 bits and weights of 8, whose zero
points are 0: both interpreters take TFLite's reference kernels.

In: sums of products of 64 bits.  Out: int16.

    requantized(sums, ratio, onto, axis=3)

Source: TFLite's MultiplyByQuantizedMultiplier of 64 bits (Apache-2.0),
by its meaning.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aotc.ir import Array, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.arguments import Maybe
from aotc.relay.frontend.quantisation import Onto
from aotc.relay.frontend.tflite.load import Tensor
from aotc.relay.op.qnn.fixed_point import factors_of

#: The type of sums.
SUMS: Final = "int64"
#: The greatest multiplier, which has 15 bits.
_MOST: Final = 0x7FFF


def requantized(sums: Expr, ratio: Array, onto: Onto, axis: int) -> Expr:
    """Sums times numbers (one, or one for each element of an axis) as multipliers of 15 bits, halves up."""
    factors = factors_of(np.asarray(ratio), np.float64(1), "TFLITE")
    multiplier = np.minimum((factors.multiplier + (1 << 15)) >> 16, _MOST)
    last = 15 - (factors.left - factors.right)
    require("tflite-quant", bool((last > 0).all()), "the scales of a layer of 16 bits are too far apart")
    rank = g.rank(sums)

    def along(value: Array) -> Expr:
        found = g.constant(np.asarray(value, np.int64))
        return g.along(found, axis, rank) if value.size > 1 else g.reshape(found, ())

    half = np.int64(1) << (last - 1)
    y = g.add(g.mul(sums, along(multiplier)), along(half))
    y = g.clip(g.op("right_shift", y, along(last)), int(onto.dtype.min), int(onto.dtype.max))
    return g.cast(y, onto.dtype)


def check(name: str, weight: Tensor, bias: Maybe) -> None:
    """AotcError (code "tflite-quant") for what is no layer of the kind: a bias of 32 bits is rounded in another way."""
    fits = weight.dtype == "int8" and (bias is None or g.dtype(bias) == SUMS)
    text = f"{name} of integers of 16 bits takes weights of int8 and a bias of int64"
    require("tflite-quant", fits, text)
