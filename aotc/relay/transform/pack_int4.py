# SPDX-License-Identifier: Apache-2.0
"""PackNibbles: store int4 and uint4 constants packed, two elements per byte.

take(meta[Constant][0] /* Tensor[(64, 32), int4] */, %i, axis=0)

%0 = repeat(meta[Constant][0] /* Tensor[(64, 16), uint8] */, repeats=2, axis=1)
%1 = bitwise_and(right_shift(%0, meta[Constant][1] /* 0, 4, 0, 4, ... */), 15)
take(cast(subtract(bitwise_xor(cast(%1, "int8"), 8), 8), "int4"), %i, axis=0)

FuseOps fuses the unpacking operators into the operator that reads them, so that its kernel unpacks
the values in registers. Only operands of elementwise, broadcasting and injective operators are
packed: other operators would need the unpacked tensor in memory.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from aotc.ir import DType, Op, OpPattern
from aotc.relay.expr import Call, Constant, Expr, Function
from aotc.relay.op.binary_elementwise import bitwise_and, bitwise_xor, right_shift, subtract
from aotc.relay.op.cast_clip_prelu import cast
from aotc.relay.op.concat_split import repeat
from aotc.relay.transform.pass_base import FunctionPass, rewrite_nodes
from aotc.tir import C, Target


@dataclass(frozen=True, repr=False)
class PackNibbles(FunctionPass):
    """Pass that stores int4 and uint4 constants in half a byte per element, if some extent is even.

    Constants with fewer than `target.code_size.min_int4_elements` elements stay as they are.
    """

    opt_level = 3

    target: Target = C

    def rewrite_function_body(self, function: Function) -> Function:
        pack = partial(_pack_int4_constant_operands, self.target.code_size.min_int4_elements)
        return rewrite_nodes(function, pack)


def _pack_int4_constant_operands(min_elements: int, _: Expr, node: Expr) -> Expr:
    if not isinstance(node, Call) or not isinstance(node.op, Op):
        return node
    if node.op.pattern > OpPattern.INJECTIVE:
        return node
    args = [_pack_int4_constant_and_add_unpacking(arg, min_elements) for arg in node.args]
    if all(a is b for a, b in zip(args, node.args, strict=True)):
        return node
    return Call(node.op, args, node.attrs, None, node.span, node.checked_type)


def _pack_int4_constant_and_add_unpacking(node: Expr, min_elements: int) -> Expr:
    """Return a constant's packed form with the operators that unpack it; other expressions, and
    constants of fewer elements, unchanged.
    """
    if not isinstance(node, Constant) or node.is_splat:
        return node
    data = node.data
    dtype = DType.from_numpy(data)
    even = [k for k, extent in enumerate(data.shape) if extent % 2 == 0]
    if dtype not in ("int4", "uint4") or data.size < min_elements or not even:
        return node
    axis = even[-1]
    low_bits = np.moveaxis(data.astype(np.int8).view(np.uint8) & 15, axis, 0)
    packed = np.moveaxis(low_bits[::2] | low_bits[1::2] << 4, 0, axis)
    shape = [1] * data.ndim
    shape[axis] = data.shape[axis]
    shifts = np.resize(np.array([0, 4], np.uint8), shape)
    twice = repeat(Constant(np.ascontiguousarray(packed)), repeats=2, axis=axis)
    bits = bitwise_and(right_shift(twice, Constant(shifts)), Constant(np.uint8(15)))
    if dtype == "uint4":
        return cast(bits, dtype)
    sign = Constant(np.int8(8))
    return cast(subtract(bitwise_xor(cast(bits, "int8"), sign), sign), dtype)
