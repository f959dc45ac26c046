# SPDX-License-Identifier: Apache-2.0
"""Account for the bytes of a project's weights: the model's own, and those added by optimizations
to save time.

sizes = project_weight_bytes_by_cause(module, graph, target, program, weights_bytes)
sizes["model"], sizes["winograd"], sizes["time_ratio"]          # 46753964, 34651008, 1.77
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from aotc.ir import TensorType, is_static
from aotc.relay.graph_api import Call, Constant, Expr, Function, IRModule, post_order, tensor_type_of, type_of
from aotc.relay.op.conv import Conv2DAttrs, ConvAttrs
from aotc.relay.op.dense import DensePackAttrs
from aotc.relay.op.winograd_conv import Conv2DWinogradAttrs
from aotc.relay.transform.winograd_tiles import MAX_WINOGRAD_TIME_RATIO
from aotc.tir import FILTER_EXTENT, SUPPORTED_OUTPUT_TILES, Program, Target
from aotc.tir.schedule.algorithms.winograd import estimated_cycles_of_3x3_convolution
from aotc.tir.target import Budget, get_target

#: Budget of targets on which optimizations may enlarge weights.
_SPEED_TARGET_BUDGET: Final[Budget] = get_target("x86-64").budget


def project_weight_bytes_by_cause(
    module: IRModule, graph: IRModule, target: Target, program: Program, weights_bytes: int
) -> dict[str, Any]:
    """Return the sizes in bytes of a project's weights by cause, and an estimate of the time that
    the added bytes save.

    module          the model as imported
    graph           the module after the graph passes for `target`
    program         the complete program that is printed as C
    weights_bytes   total size of the project's weights

    "weights" is the total, the sum of: "model", the constants of the model; "winograd", the growth
    of 3x3 convolution weights by the Winograd transform; "padding", zeros in the last blocks of
    packed weights; "other", tables, alignment and wider types, negative if constant folding and
    merging of equal weights save more.  "small" is True if the project was compiled for small size.
    "time_ratio" is the estimated time of a size-optimized project divided by that of a
    time-optimized one, from the cost model that chooses algorithms; 1.0 if they are equal.
    """
    constants = {id(n): n for n in post_order(module.main) if isinstance(n, Constant) and not n.is_splat}
    model = sum(n.data.nbytes for n in constants.values())
    winograd = padding = 0
    saved = 0.0
    weight_ids = set[int]()
    for call, weight in _calls_with_constant_weights(graph):
        saved += _cycles_saved_by_winograd(call, target)
        plain = _weight_elements_before_packing_or_none(call)
        if id(weight) in weight_ids or plain is None:
            continue
        weight_ids.add(id(weight))
        added_bytes = max(0, weight.data.nbytes - plain * weight.data.itemsize)
        if isinstance(call.attrs, Conv2DWinogradAttrs):
            winograd += added_bytes
        else:
            padding += added_bytes
    return {
        "weights": weights_bytes,
        "model": model,
        "winograd": winograd,
        "padding": padding,
        "other": weights_bytes - model - winograd - padding,
        "small": target.small,
        "time_ratio": _direct_to_winograd_time_ratio(
            sum(s.kernel.macs for s in program.typical_steps) / target.winograd.macs, saved
        ),
    }


def _direct_to_winograd_time_ratio(direct_cycles: float, saved_cycles: float) -> float:
    """Return the time of direct convolution divided by that of Winograd, from the direct cycles and
    the cycles saved.
    """
    return round(direct_cycles / (direct_cycles - saved_cycles), 2) if 0 < saved_cycles < direct_cycles else 1.0


def _calls_with_constant_weights(graph: IRModule) -> Iterator[tuple[Call, Constant]]:
    """Yield each call with a constant second argument, also inside fused functions, together with
    that constant.
    """
    for node in post_order(graph.main):
        if not isinstance(node, Call):
            continue
        if isinstance(node.op, Function):
            given: dict[Expr, Expr] = dict(zip(node.op.params, node.args, strict=True))
            inner = [n for n in post_order(node.op.body) if isinstance(n, Call)]
        else:
            given, inner = {}, [node]
        for call in inner:
            weight = given.get(call.args[1], call.args[1]) if len(call.args) > 1 else None
            if isinstance(weight, Constant):
                yield call, weight


def _is_static_tensor(expr: Expr) -> bool:
    ty = type_of(expr)
    return isinstance(ty, TensorType) and is_static(ty.shape)


def _weight_elements_before_packing_or_none(call: Call) -> int | None:
    """Return the number of weight elements of a call before the Winograd transform and padding;
    None if unchanged.
    """
    match call.attrs:
        case Conv2DWinogradAttrs(channels=channels):
            return channels * tensor_type_of(call.args[1]).static_shape[3] * FILTER_EXTENT**2
        case ConvAttrs(channels=int(channels), data_layout=layout, kernel_layout=kernel) as attrs:
            packed = layout.isupper() and not kernel.isupper()
            inputs = _size_of_axis(call.args[0], layout.index("C")) // attrs.groups if packed else 0
            return channels * inputs * math.prod(attrs.kernel_size or ()) if packed else None
        case DensePackAttrs(units=int(units)):
            return units * _size_of_axis(call.args[0], -1)
    return None


def _size_of_axis(expr: Expr, axis: int) -> int:
    """Return the extent of an axis whose size is known."""
    extent = tensor_type_of(expr).shape[axis]
    assert isinstance(extent, int)
    return extent


def _cycles_saved_by_winograd(call: Call, target: Target) -> float:
    """Return the cycles that Winograd convolution saves in a call, or would save if the project
    were not small; 0 for a call whose time is not estimated, as its sizes are known at run time only.
    """
    if not all(map(_is_static_tensor, (call, *call.args[:2]))):
        return 0.0
    shape, data = tensor_type_of(call).static_shape, tensor_type_of(call.args[0])
    match call.attrs:
        case Conv2DWinogradAttrs(tile_size=tile, groups=groups):
            images, channels, height, width = shape
            return _cycles_saved_by_winograd_tile_size(
                (images, channels, height, width), data.static_shape[1] // groups, tile, target, groups
            )
        case Conv2DAttrs() as attrs if target.small and not target.is_scalar and _is_winograd_candidate(call, attrs):
            axes = dict(zip(attrs.out_layout or attrs.data_layout, shape, strict=True))
            inputs = data.static_shape[attrs.data_layout.index("C")] // attrs.groups
            sizes = axes["N"], axes["C"], axes["H"], axes["W"]
            return max(
                0.0,
                *(
                    _cycles_saved_by_winograd_if_profitable(sizes, inputs, tile, target, attrs.groups)
                    for tile in SUPPORTED_OUTPUT_TILES
                ),
            )
    return 0.0


def _is_winograd_candidate(call: Call, attrs: ConvAttrs) -> bool:
    """Return True for a float32 3x3 convolution of stride and dilation 1, whose channels are in one
    group or in groups of several channels.
    """
    data, weight = (tensor_type_of(x) for x in call.args[:2])
    if not attrs.data_layout.isupper() or {data.dtype, weight.dtype, tensor_type_of(call).dtype} != {"float32"}:
        return False
    is_depthwise = attrs.groups > 1 and attrs.groups == data.static_shape[attrs.data_layout.index("C")]
    is_3x3 = tuple(attrs.kernel_size or ()) == (FILTER_EXTENT, FILTER_EXTENT)
    return is_3x3 and not is_depthwise and {*attrs.strides, *attrs.dilation} == {1}


def _cycles_saved_by_winograd_tile_size(
    output_sizes: tuple[int, int, int, int], input_channels: int, tile_size: int, target: Target, groups: int = 1
) -> float:
    """Return the cycles that Winograd convolution saves, for `input_channels` channels in each of
    `groups` groups.
    """
    direct, winograd = (
        estimated_cycles_of_3x3_convolution(output_sizes, input_channels, tile, target, groups)
        for tile in (0, tile_size)
    )
    return direct - winograd


def _cycles_saved_by_winograd_if_profitable(
    output_sizes: tuple[int, int, int, int], input_channels: int, tile_size: int, target: Target, groups: int
) -> float:
    """Return the cycles that Winograd tiles of size `tile_size` save for `input_channels` channels
    in each of `groups` groups; 0 if the compiler would not use them.
    """
    saved = _cycles_saved_by_winograd_tile_size(output_sizes, input_channels, tile_size, target, groups)
    added = ((tile_size + FILTER_EXTENT - 1) ** 2 - FILTER_EXTENT**2) * output_sizes[1] * input_channels * 4
    enough = saved > (1 - MAX_WINOGRAD_TIME_RATIO) * estimated_cycles_of_3x3_convolution(
        output_sizes, input_channels, 0, target, groups
    )
    return saved if enough and saved >= _SPEED_TARGET_BUDGET.parameter_saving * added else 0.0
