# SPDX-License-Identifier: Apache-2.0
"""SelectLayout: convert networks of convolutions to channels-last layout where the target computes
that faster.

nn.conv2d(%x, %w), ...   =>   nn.conv2d(%x, %w, data_layout="NCHW", out_layout="NHWC"),
                              nn.conv2d(%1, %w1, data_layout="NHWC", groups=32), ...

Input: typed functions. Output: functions with equal results and unchanged parameters. A function is
converted as a whole, by ConvertLayout, if this shortens the estimated time of its convolutions and
of the required transforms. Depthwise convolutions and narrow images gain; Winograd's algorithm
needs the channels first, if the size of the images is known.

Networks of images whose height or width is known at run time only are always converted on targets with
vectors: there, vectors along the channels are the only ones of a known number of elements.

On microcontrollers whose 8-bit dot products read the channels of a position as one run of memory,
memory decides instead of time: with the channels first, a convolution copies all of its data into
channels-last order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aotc.ir import (
    Attrs,
    JsonFormat,
    Op,
    PassContext,
    TensorType,
    is_static,
    load_or_compute_memoized_result,
    tensor_types,
)
from aotc.relay.graph_api import Call, Expr, Function, IRModule, post_order, tensor_type_of, type_of
from aotc.relay.op.conv import Conv2DAttrs, ConvAttrs, conv2d
from aotc.relay.op.layout import LayoutTransformAttrs
from aotc.relay.transform.convert_layout import convert_to_layouts
from aotc.relay.transform.pack_constant_weights import pack_convolution_weight
from aotc.relay.transform.pass_base import FunctionPass, Rewriter, Rule, as_op_call, rebuild_call
from aotc.relay.transform.winograd_tiles import choose_winograd_tiles, estimated_winograd_or_direct_cycles
from aotc.tir import Block, Buffer, C, Target, te
from aotc.tir.schedule.contraction import cpu_tiling_candidates

_DESIRED_LAYOUTS: Final = {"nn.conv2d": ("NHWC", "OIHW")}
#: A conversion is made if its estimated time is below this fraction of the original time.
_MAX_TIME_RATIO: Final = 0.97


@dataclass(frozen=True, repr=False)
class SelectLayout(FunctionPass):
    """Pass that converts 2-D convolutions and the operators between them to NHWC where that is
    estimated to be faster.

    The configuration `relay.SelectLayout.channels_last`, if set, overrides the estimate.
    """

    opt_level = 3

    target: Target = C

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        channels_last = ctx.get_config("relay.SelectLayout.channels_last", None)
        by_bytes = self.target.bare and _uses_contiguous_dot_products(self.target)
        chooses = channels_last or by_bytes or not self.target.is_scalar
        varies = not self.target.is_scalar and any(map(_has_run_time_image_size, post_order(function)))
        if channels_last is False or not chooses or not (varies or any(map(_is_static_conv2d, post_order(function)))):
            return function
        rules = (_nchw_input_rule(self.target.tiles.nchw_input_channels),)
        converted = Rewriter(rules).rewrite_to_fixpoint(convert_to_layouts(function, _DESIRED_LAYOUTS, quiet=True))
        if channels_last or varies:
            return converted
        if by_bytes:
            return (
                converted
                if _max_bytes_of_conv_or_layout_transform(converted) < _max_bytes_of_conv_or_layout_transform(function)
                else function
            )
        estimate = _Estimate(self.target, ctx)
        return (
            converted
            if estimate.estimate_cycles(converted) < _MAX_TIME_RATIO * estimate.estimate_cycles(function)
            else function
        )


def _is_static_conv2d(node: Expr) -> bool:
    """Return True if a node is a 2-D convolution with static shapes, whose time can be estimated."""
    if not isinstance(node, Call) or not isinstance(node.attrs, Conv2DAttrs):
        return False
    return all(tensor_type_of(e).is_static for e in (node, *node.args))


def _has_run_time_image_size(node: Expr) -> bool:
    """Return True if a node is a 2-D convolution of NCHW images whose height or width is known at run time
    only.
    """
    if not isinstance(node, Call) or not isinstance(node.attrs, Conv2DAttrs) or node.attrs.data_layout != "NCHW":
        return False
    return not all(is_static(tensor_type_of(e).shape[2:]) for e in (node, node.args[0]))


# --- the input layer


def _nchw_input_rule(max_channels: int) -> Rule:
    """Return the rule that lets convolutions of few channels read NCHW data."""
    return Rule(
        "conv2d(layout_transform(x)) => conv2d(x)", ("nn.conv2d",), partial(_rewrite_conv_to_read_nchw, max_channels)
    )


def _rewrite_conv_to_read_nchw(max_channels: int, node: Call) -> Expr | None:
    """Rewrite rule: a convolution of at most `max_channels` channels reads NCHW data directly and
    writes NHWC, without a transform.
    """
    transform_call = as_op_call(node.args[0], "layout_transform")
    a: Any = node.attrs
    if transform_call is None or transform_call.attrs != LayoutTransformAttrs(src_layout="NCHW", dst_layout="NHWC"):
        return None
    channels = tensor_type_of(transform_call).shape[3]
    if a.data_layout != "NHWC" or not isinstance(channels, int) or channels > max_channels:
        return None
    return rebuild_call(
        node, (transform_call.args[0], node.args[1]), data_layout="NCHW", out_layout=a.out_layout or "NHWC"
    )


# --- bytes


def _uses_contiguous_dot_products(target: Target) -> bool:
    """Return True if the target's 8-bit dot products are functions that read consecutive elements
    of the data.
    """
    kernel = target.micro_kernel_for_types("int8", "int8", "int32")
    return kernel is not None and kernel.data == "im2col"


def _max_bytes_of_conv_or_layout_transform(function: Function) -> int:
    """Return the largest number of bytes that one 8-bit convolution or layout transform needs.

    A convolution needs its data, its result, and a copy of the data if the channels are not last.
    Other operators, and tensors that are live at the time, need equally many bytes in any layout.
    """
    return max(map(_bytes_of_conv_or_layout_transform, post_order(function)), default=0)


def _bytes_of_conv_or_layout_transform(node: Expr) -> int:
    """Return the bytes of data, copy and result of an 8-bit convolution or a layout transform; 0
    for other nodes.
    """
    transform_call = as_op_call(node, "layout_transform")
    if transform_call is not None and all(tensor_type_of(e).is_static for e in (transform_call, *transform_call.args)):
        return 2 * tensor_type_of(transform_call).nbytes
    if not isinstance(node, Call) or not _is_static_conv2d(node) or not isinstance(node.attrs, Conv2DAttrs):
        return 0
    data, weight = (tensor_type_of(arg) for arg in node.args)
    if data.dtype.itemsize > 1:
        return 0
    attrs = node.attrs
    channels = weight.static_shape[attrs.kernel_layout.index("I")]
    is_copied = channels > 1 and not attrs.data_layout.endswith("C")
    # sums of products are requantized to 8 bits before they are stored
    return data.nbytes * (1 + is_copied) + tensor_type_of(node).numel


# --- the estimate


@dataclass
class _Estimate:
    """Estimated cycles of convolutions on a target, computed once for each kind of convolution."""

    target: Target
    ctx: PassContext
    cycles_cache: dict[tuple[Attrs, tuple[Any, ...]], float] = field(default_factory=dict)

    def estimate_cycles(self, function: Function) -> float:
        """Return the cycles of convolutions and layout transforms; other operators take equally
        long in any layout.
        """
        tiles = choose_winograd_tiles(function, self.target, self.ctx)
        return sum(self._node_cycles(node, tiles) for node in post_order(function) if isinstance(node, Call))

    def _node_cycles(self, node: Call, tiles: Mapping[Expr, int]) -> float:
        if _is_static_conv2d(node) and isinstance(node.attrs, Conv2DAttrs):
            return self._convolution_cycles(node, node.attrs) * self._winograd_time_ratio(node, tiles.get(node, 0))
        return _data_movement_cycles(node, self.target)

    def _winograd_time_ratio(self, node: Call, tile: int) -> float:
        """Return the ratio of Winograd's estimated time to that of the direct algorithm; 1 for tile
        size 0.
        """
        if tile == 0:
            return 1.0
        channels = tensor_type_of(node.args[1]).static_shape[1]
        direct, fast = (estimated_winograd_or_direct_cycles(node, channels, t, self.target) for t in (0, tile))
        return fast / direct

    def _convolution_cycles(self, node: Call, attrs: ConvAttrs) -> float:
        packed = pack_convolution_weight(node, attrs, self.target)
        types = [tensor_type_of(arg) for arg in packed.args]
        key = (packed.attrs, tuple((t.static_shape, t.dtype) for t in types))
        if key not in self.cycles_cache:
            self.cycles_cache[key] = self._best_tiling_cycles(packed.attrs, types)
        return self.cycles_cache[key]

    def _best_tiling_cycles(self, attrs: Attrs, types: list[TensorType]) -> float:
        data, weight = (te.placeholder(t.static_shape, t.dtype, "x", finite=True) for t in types)
        assert conv2d.compute is not None
        tensor = conv2d.compute(attrs, data, weight)
        assert isinstance(tensor, te.Tensor)
        # with a type conversion, the time does not depend on the layout
        if not isinstance(tensor, te.Contraction):
            return 0.0
        return load_or_compute_memoized_result(
            "cost", (tensor, self.target), partial(_min_tiling_cycles, tensor, self.target), JsonFormat(float)
        )


def _min_tiling_cycles(contraction: te.Contraction, target: Target) -> float:
    """Return the estimated cycles of the best tiling of a convolution."""
    a, b = (Buffer("x", x.dtype, x.size) for x in (contraction.a, contraction.b))
    candidates = cpu_tiling_candidates(contraction, a, b, lambda indices, value: Block(()), target)
    return min((candidate.cost for candidate in candidates), default=float(contraction.macs))


def _data_movement_cycles(node: Call, target: Target) -> float:
    """Return the estimated cycles of a call that only moves data; 0 for other calls."""
    if not isinstance(node.op, Op):
        return 0.0
    types = [t for e in (node, *node.args) for t in tensor_types(type_of(e))]
    if not all(t.is_static for t in types):
        return 0.0
    nbytes = max((t.nbytes for t in types), default=0)
    match node.op.name:
        case "layout_transform":
            return nbytes / target.transpose_rate
        case "concatenate" | "split" | "strided_slice":
            return nbytes / target.copy_rate if _is_join_or_split_along_inner_axis(node) else 0.0
        case _:
            return 0.0


def _is_join_or_split_along_inner_axis(node: Call) -> bool:
    """Return True if a concatenate, split or slice works on an inner axis, so that its parts are
    not contiguous in memory.
    """
    a: Any = node.attrs
    ty = next(t for t in map(type_of, (node, *node.args)) if isinstance(t, TensorType))
    axes = a.axes if hasattr(a, "axes") else (a.axis,)
    first = min((k % ty.rank for k in axes), default=0) if axes is not None else 0
    return math.prod(ty.static_shape[:first]) != 1
