# SPDX-License-Identifier: Apache-2.0
"""Keys and values of attention layers that are stored as integers of 8 or 4 bits, with scales.

cache = cache_of_integers(node, "k_quant_type", 12, heads=2, size=16)    # None if they are stored as floats
cache.quantize(key)           # int8 (batch, heads, steps, 16), or bytes (batch, heads, steps, 8)
cache.dequantize(present)     # floats (batch, heads, positions, 16)

A number is integer * scale, without a zero point, and integers are rounded to nearest, ties to even. A byte of
integers of 4 bits has the even element in its low half, both plus 8.
"""

from __future__ import annotations

import math
from typing import Final

from aotc.ir import frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.onnx.node import OnnxNode

_CODE: Final = "onnx-attention"
#: Data types of caches by the number of bits of an integer.
_CACHE_DTYPES: Final = {8: "int8", 4: "uint8"}
_OFFSET_OF_4_BITS: Final = 8
_LOW_HALF: Final = 15


@frozen
class CacheOfIntegers:
    """How keys or values are stored.

    bits     8, or 4 with two integers in a byte
    scale    float32 scale of all integers, or of each channel: (1, 1, 1, 1) or (1, heads, 1, size)
    """

    bits: int
    scale: Expr

    def quantize(self, x: Expr) -> Expr:
        """Quantize keys or values (batch, heads, steps, size), and pack them if they have 4 bits."""
        most = (1 << (self.bits - 1)) - 1
        steps = g.call_op("round", g.div(g.cast(x, "float32"), self.scale))
        integers = g.cast(g.call_op("clip", steps, a_min=-most - 1, a_max=most), "int8")
        if self.bits == 8:
            return integers
        halves = g.cast(g.add(integers, _OFFSET_OF_4_BITS), "uint8")
        batch, heads, count, _ = g.dims(x)
        pairs = g.reshape(halves, (batch, heads, count, g.dim(x, 3) // 2, 2))
        low, high = (g.squeeze(half, [4]) for half in g.split(pairs, [1, 1], 4))
        return g.add(low, g.mul(high, _LOW_HALF + 1))

    def dequantize(self, stored: Expr, dtype: str) -> Expr:
        """Return stored keys or values as floats (batch, heads, positions, size)."""
        integers = stored
        if self.bits == 4:
            low = g.call_binary_op("bitwise_and", stored, _LOW_HALF)
            high = g.call_binary_op("right_shift", stored, 4)
            batch, heads, count, _ = g.dims(stored)
            both = g.reshape(g.stack([low, high], 4), (batch, heads, count, g.dim(stored, 3) * 2))
            integers = g.sub(g.cast(both, "int8"), _OFFSET_OF_4_BITS)
        return g.cast(g.mul(g.cast(integers, "float32"), self.scale), dtype)


def cache_of_integers(
    node: OnnxNode, kind_attribute: str, scale_input: int, cache: OptionalExpr, heads: int, size: int
) -> CacheOfIntegers | None:
    """Return how a layer stores keys or values; None if it stores them as floats.

    kind_attribute    name of the attribute that says how many scales there are
    scale_input       position of the input with the scales
    cache             the cache that is given to the layer

    Raises AotcError (codes "onnx-op" and "onnx-attention") for other formats, and for scales and caches that do
    not fit.
    """
    kind, bits = node.attrs.get(kind_attribute, "NONE"), int(node.attrs.get("kv_cache_bit_width", 0))
    scale = node.optional_input(scale_input)
    if kind == "NONE":
        text = f"input {scale_input} of {node.op_type} is a scale, but {kind_attribute} is 'NONE'"
        require(_CODE, scale is None and (cache is None or g.dtype(cache).is_float), text)
        return None
    known = kind in ("PER_TENSOR", "PER_CHANNEL") and bits in _CACHE_DTYPES
    text = f"{node.op_type} with {kind_attribute} {kind!r} and integers of {bits} bits is not supported"
    require("onnx-op", known, text)
    count = 1 if kind == "PER_TENSOR" else heads * size
    fits = scale is not None and math.prod(g.shape(scale)) == count
    require(_CODE, fits, f"{node.op_type} with {kind_attribute} {kind!r} needs {count} scales in input {scale_input}")
    assert scale is not None
    if cache is not None:
        text = f"a cache of {g.dtype(cache)} of {node.op_type} does not hold integers of {bits} bits"
        require(_CODE, g.dtype(cache) == _CACHE_DTYPES[bits], text)
    require(_CODE, bits == 8 or size % 2 == 0, f"heads of {size} elements of {node.op_type} do not fill bytes")
    return CacheOfIntegers(bits, g.reshape(scale, (1, 1, 1, 1) if count == 1 else (1, heads, 1, size)))
