# SPDX-License-Identifier: Apache-2.0
"""FoldExplicitPadding and FlattenAtrousConv: fold padding and dilation into convolutions and pools.

FoldExplicitPadding: fold nn.pad into the operator that follows, if that can pad by itself.

nn.conv2d(nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]), %w, padding=[0, 0, 0, 0])
nn.conv2d(%x, %w, padding=[1, 1, 1, 1])

It also removes the rows and columns of kernels that are multiplied by padding only
(`drop_padding_taps`).

Convolutions and average pools pad with zeros, max pools with the least value of their type; only
spatial axes are padded. Weights that are not constant are assumed to be finite: padding adds
nothing to a sum, whereas zeros times an infinite weight would add NaN.

FlattenAtrousConv: recognize a dilated convolution that is written as a convolution over blocks of
positions.

nn.batch_to_space_nd(nn.conv2d(nn.space_to_batch_nd(%x, block_shape=[2, 2], ...), %w,
data_layout="NHWC"), ...) nn.conv2d(%x, %w, dilation=[2, 2], padding=..., data_layout="NHWC")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from aotc.ir import dims_in_attrs
from aotc.relay.expr import Call, Constant, Expr, tensor_type_of
from aotc.relay.op import pool
from aotc.relay.op.conv import ConvAttrs, conv1d, conv2d, conv3d
from aotc.relay.op.qnn.convolution import QUANTIZED_CONVS_BY_RANK
from aotc.relay.op.qnn.quant_params import constant_value_or_none
from aotc.relay.op.space_to_depth_and_batch import BatchToSpaceNDAttrs, SpaceToBatchNDAttrs
from aotc.relay.op.window_attributes import DATA_LAYOUT_BY_RANK, pad_pairs_of_axes, repeat_for_each_axis
from aotc.relay.transform import drop_padding_taps, pass_base
from aotc.relay.transform.pass_base import Rewrite, RewriteOutcome, Rule, RulePass, WhyNot


def _padding_plus_pad_widths(pad_attrs: Any, layout: str, padding: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the sum of `padding` and the widths of nn.pad: first the widths before each axis, then
    those after.

    None if nn.pad is not constant padding, pads other than spatial axes, or crops.
    """
    n = len(layout) - 2
    known = pad_attrs.pad_mode == "constant" and not dims_in_attrs(pad_attrs)
    if not known or sorted(layout) != sorted(DATA_LAYOUT_BY_RANK.get(n, "")):
        return None
    outside = [pad_attrs.pad_width[layout.index(letter)] for letter in "NC"]
    inside = [pad_attrs.pad_width[layout.index(letter)] for letter in DATA_LAYOUT_BY_RANK[n][2:]]
    if any(pair != (0, 0) for pair in outside) or any(w < 0 for pair in inside for w in pair):
        return None
    pad_pairs = pad_pairs_of_axes(padding, n)
    return tuple(a[k] + b[k] for k in (0, 1) for a, b in zip(inside, pad_pairs, strict=True))


_CONVOLUTIONS: Final = (conv1d, conv2d, conv3d, *QUANTIZED_CONVS_BY_RANK.values())
#: Function of an operator, a pad value and the total padding: the reason why the operator cannot
#: pad; "" if it can.
PadObstacle = Callable[[Call, float, "tuple[int, ...]"], str]


def _fold_pad_rule(obstacle: PadObstacle, **changes: Any) -> Rewrite:
    """Return a rewrite rule that folds nn.pad into the operator that reads it, unless `obstacle`
    gives a reason against.
    """

    def fold_pad(node: Call) -> RewriteOutcome:
        a: Any = node.attrs
        pad = pass_base.as_op_call(node.args[0], "nn.pad")
        if pad is None:
            return None
        layout = getattr(a, "data_layout", None) or a.layout
        padding = _padding_plus_pad_widths(pad.attrs, layout, a.padding)
        if padding is None:
            return WhyNot("more than spatial axes are padded, or not with a constant")
        value = pass_base.uniform_value_of_constant(pad.args[1])
        reason = "the pad value is not constant" if value is None else obstacle(node, float(value), padding)
        if reason:
            return WhyNot(reason)
        return pass_base.rebuild_call(node, (pad.args[0], *node.args[1:]), padding=padding, **changes)

    return fold_pad


def _convolution_pad_value(node: Call) -> float | None:
    """Return the value with which a convolution pads: the zero point for integers; None if that is
    not constant.
    """
    if isinstance(node.attrs, ConvAttrs):
        return node.attrs.pad_value
    zero = constant_value_or_none(node.args[2])
    return None if zero is None else float(zero.reshape(()))


def _reason_convolution_cannot_absorb_pad(node: Call, pad_value: float, padding: tuple[int, ...]) -> str:
    if pad_value != _convolution_pad_value(node):
        return "the pad value is not the convolution's"
    return _reason_weights_forbid_zero_padding(node.args[1])


def _reason_weights_forbid_zero_padding(weight: Expr) -> str:
    """Return the reason why a convolution with non-finite constant weights cannot pad; "" for other
    weights.
    """
    infinite = isinstance(weight, Constant) and not pass_base.is_constant_with_finite_elements(weight)
    return "zeros times the infinite among the weights are NaN, which padding is not" if infinite else ""


def _reason_average_pool_cannot_absorb_pad(node: Call, pad_value: float, padding: tuple[int, ...]) -> str:
    a: Any = node.attrs
    if pad_value != 0:
        return "the pad value is not zero"
    partly = a.ceil_mode or (any(a.padding) and not a.count_include_pad)
    return "some padding is counted and some is not" if partly else ""


def _reason_max_pool_cannot_absorb_pad(node: Call, pad_value: float, padding: tuple[int, ...]) -> str:
    a: Any = node.attrs
    dtype = tensor_type_of(node).dtype
    if pad_value != (float("-inf") if dtype.is_float else dtype.min):
        return "the pad value is not the least"
    outside = any(p >= k for p, k in zip(padding, (*a.pool_size, *a.pool_size), strict=True))
    return "a window may lie in the padding" if a.ceil_mode or outside else ""


def _merge_nested_pads(node: Call) -> Expr | WhyNot | None:
    inner = pass_base.as_op_call(node.args[0], "nn.pad")
    if inner is None:
        return None
    outer: Any = node.attrs
    first: Any = inner.attrs
    value = pass_base.uniform_value_of_constant(node.args[1])
    same = value is not None and pass_base.is_constant_filled_with(inner.args[1], float(value))
    if outer.pad_mode != "constant" or first.pad_mode != "constant" or not same:
        return WhyNot("the two pads fill in different values")
    if dims_in_attrs(outer) or dims_in_attrs(first):
        return WhyNot("a width is known at run time only")
    widths = tuple((a + c, b + d) for (a, b), (c, d) in zip(outer.pad_width, first.pad_width, strict=True))
    if any(w < 0 for a in (outer, first) for pair in a.pad_width for w in pair):
        return WhyNot("a pad crops")
    return pass_base.rebuild_call(node, inner.args, pad_width=widths)


RULES: Final = (
    Rule("pad(pad(x)) => pad(x)", ("nn.pad",), _merge_nested_pads),
    Rule("conv(pad(x), w) => conv(x, w)", _CONVOLUTIONS, _fold_pad_rule(_reason_convolution_cannot_absorb_pad)),
    Rule(
        "avg_pool(pad(x)) => avg_pool(x)",
        (pool.avg_pool1d, pool.avg_pool2d, pool.avg_pool3d),
        _fold_pad_rule(_reason_average_pool_cannot_absorb_pad, count_include_pad=True),
    ),
    Rule(
        "max_pool(pad(x)) => max_pool(x)",
        (pool.max_pool1d, pool.max_pool2d, pool.max_pool3d),
        _fold_pad_rule(_reason_max_pool_cannot_absorb_pad),
    ),
    drop_padding_taps.RULE,
)


class FoldExplicitPadding(RulePass):
    """Pass that folds nn.pad into the convolutions and pools that use its result, and removes the
    taps of convolutions that are multiplied by padding only.
    """

    rules = RULES


# --- dilation


_CHANNELS_LAST: Final = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


def _fold_atrous_convolution(batch_to_space: Call) -> RewriteOutcome:
    conv = pass_base.as_op_call(batch_to_space.args[0], *_CONVOLUTIONS)
    first = None if conv is None else pass_base.as_op_call(conv.args[0], "nn.space_to_batch_nd")
    if conv is None or first is None:
        return None
    before, after, a = cast(Any, (first.attrs, batch_to_space.attrs, conv.attrs))
    n = tensor_type_of(conv).rank - 2
    reason = _reason_not_one_dilated_convolution(n, before, after, conv) or _reason_weights_forbid_zero_padding(
        conv.args[1]
    )
    if reason:
        return WhyNot(reason)
    unblocked_count = n - len(before.block_shape)
    blocks = (*before.block_shape, *(1,) * unblocked_count)
    none = ((0, 0),) * unblocked_count
    paddings, crops = (*before.paddings, *none), (*after.crops, *none)
    pad_pairs = pad_pairs_of_axes(a.padding, n)
    pads = [
        tuple(pad[k] + block * inner[k] - crop[k] for k in (0, 1))
        for block, pad, inner, crop in zip(blocks, paddings, pad_pairs, crops, strict=True)
    ]
    if min(p for pair in pads for p in pair) < 0:
        return WhyNot("the crops leave out more than the padding adds")
    return pass_base.rebuild_call(
        conv,
        (first.args[0], *conv.args[1:]),
        dilation=tuple(d * b for d, b in zip(repeat_for_each_axis(a.dilation, n), blocks, strict=True)),
        padding=tuple(pair[k] for k in (0, 1) for pair in pads),
    )


def _reason_not_one_dilated_convolution(
    spatial_rank: int, before: SpaceToBatchNDAttrs, after: BatchToSpaceNDAttrs, conv: Call
) -> str:
    """Return why space_to_batch_nd, a convolution and batch_to_space_nd are not one dilated
    convolution; "" if they are.
    """
    a: Any = conv.attrs
    channels_last = a.data_layout == _CHANNELS_LAST[spatial_rank]
    if before.block_shape != after.block_shape:
        return "the blocks are put together in another way than they were taken apart"
    if not channels_last or a.out_layout not in ("", a.data_layout) or len(before.block_shape) > spatial_rank:
        return "blocks of other axes than the convolution's"
    if before.pad_value != _convolution_pad_value(conv):
        return "the padding is not the convolution's"
    if any(s != 1 for s in repeat_for_each_axis(a.strides, spatial_rank)):
        return "the convolution has strides"
    return ""


_ATROUS_RULE: Final = Rule(
    "batch_to_space_nd(conv(space_to_batch_nd(x, b), w), b) => conv(x, w, dilation=b)",
    ("nn.batch_to_space_nd",),
    _fold_atrous_convolution,
)


class FlattenAtrousConv(RulePass):
    """Pass that replaces space_to_batch_nd, convolution, batch_to_space_nd by one convolution with
    dilation.

    It applies to convolutions of one to three spatial axes with channels last and without strides.
    """

    rules = (_ATROUS_RULE,)
