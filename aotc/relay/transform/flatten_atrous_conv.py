# SPDX-License-Identifier: Apache-2.0
"""FlattenAtrousConv: a dilated convolution that was written as one over blocks of positions.

nn.batch_to_space_nd(nn.conv2d(nn.space_to_batch_nd(%x, block_shape=[2, 2], ...), %w, data_layout="NHWC"), ...)
nn.conv2d(%x, %w, dilation=[2, 2], padding=..., data_layout="NHWC")

In: typed functions.  Out: the same values from one convolution.
"""

from __future__ import annotations

from typing import Any, Final, cast

from aotc.relay.expr import Call, Constant, tensor_type_of
from aotc.relay.op.batch_space import BatchToSpaceNDAttrs, SpaceToBatchNDAttrs
from aotc.relay.op.conv import ConvAttrs, conv1d, conv2d, conv3d
from aotc.relay.op.window import pad_pairs, spread
from aotc.relay.transform.base import Outcome, Rule, RulePass, WhyNot, is_finite, op_call, recall

_CHANNELS_LAST: Final = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


def _flatten(last: Call) -> Outcome:
    conv = op_call(last.args[0], conv1d, conv2d, conv3d)
    first = None if conv is None else op_call(conv.args[0], "nn.space_to_batch_nd")
    if conv is None or first is None:
        return None
    before, after, a = cast(Any, (first.attrs, last.attrs, conv.attrs))
    n = tensor_type_of(conv).rank - 2
    reason = _obstacle(n, before, after, a)
    if reason:
        return WhyNot(reason)
    if isinstance(conv.args[1], Constant) and not is_finite(conv.args[1]):
        return WhyNot("zeros times the infinite among the weights are NaN, which padding is not")
    more = n - len(before.block_shape)
    blocks = (*before.block_shape, *(1,) * more)
    none = ((0, 0),) * more
    paddings, crops = (*before.paddings, *none), (*after.crops, *none)
    own = pad_pairs(a.padding, n)
    pads = [
        tuple(pad[k] + block * inner[k] - crop[k] for k in (0, 1))
        for block, pad, inner, crop in zip(blocks, paddings, own, crops, strict=True)
    ]
    if min(p for pair in pads for p in pair) < 0:
        return WhyNot("the crops leave out more than the padding adds")
    return recall(
        conv,
        (first.args[0], conv.args[1]),
        dilation=tuple(d * b for d, b in zip(spread(a.dilation, n), blocks, strict=True)),
        padding=tuple(pair[k] for k in (0, 1) for pair in pads),
    )


def _obstacle(n: int, before: SpaceToBatchNDAttrs, after: BatchToSpaceNDAttrs, a: ConvAttrs) -> str:
    """Why the three operators are no dilated convolution; "" if they are one."""
    channels_last = a.data_layout == _CHANNELS_LAST[n]
    if before.block_shape != after.block_shape:
        return "the blocks are put together in another way than they were taken apart"
    if not channels_last or a.out_layout not in ("", a.data_layout) or len(before.block_shape) > n:
        return "blocks of other axes than the convolution's"
    if before.pad_value != 0:
        return "the padding is not zero"
    if any(s != 1 for s in spread(a.strides, n)):
        return "the convolution has strides"
    return ""


_RULE: Final = Rule(
    "batch_to_space_nd(conv(space_to_batch_nd(x, b), w), b) => conv(x, w, dilation=b)",
    ("nn.batch_to_space_nd",),
    _flatten,
)


class FlattenAtrousConv(RulePass):
    """space_to_batch_nd, convolution, batch_to_space_nd become one convolution with dilation.

    For convolutions of one to three axes, channels last, without strides.
    """

    rules = (_RULE,)
