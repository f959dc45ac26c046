# SPDX-License-Identifier: Apache-2.0
"""Choose the convolutions that use Winograd's algorithm, and the blocks in which their weights are packed.

choose_winograd_tiles selects the convolutions that use Winograd's algorithm: it maps a function and
a target to tile sizes.

choose_winograd_tiles(function, get_target("x86-64-v4"), ctx)  # {%1: 4, %5: 4, %9: 2}

Transformed weights are larger (16/9 for tiles of 2, 36/9 for tiles of 4). A larger tile is chosen
where it saves enough cycles for each byte that it adds. The choice is greedy: the step with the
largest saving per byte comes first, until the parameters of the whole network have reached their
size limit (docs/decisions/0031-weight-growth-limit.md).

Where the sizes of images are known at run time only, tiles have to pay on average over typical and small images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from aotc.ir import Dim, PassContext, are_bounded, frozen, interval_of_dim, is_static, numel, typical_size
from aotc.relay.graph_api import Call, Constant, Expr, Function, tensor_type_of, users
from aotc.relay.op.conv import Conv2DAttrs, ConvAttrs
from aotc.relay.transform.pass_base import is_constant_with_finite_elements
from aotc.tir import FILTER_EXTENT, SUPPORTED_OUTPUT_TILES, Target
from aotc.tir.schedule.algorithms.winograd import estimated_cycles_of_3x3_convolution
from aotc.tir.schedule.contraction import weight_packing_block_size

#: Winograd's algorithm is used only if its estimated time is below this fraction of the direct
#: algorithm's.
MAX_WINOGRAD_TIME_RATIO: Final = 0.95
#: Images whose height and width are known at run time only are compared at their typical sizes, and at the least ones,
#: but not at less than this fraction of the typical ones.
SMALL_IMAGE_FRACTION: Final = 1 / 8


def padding_fraction(channels: int, block_size: int) -> float:
    """Return the padding of `channels` to whole blocks, as a fraction of the channels."""
    return -channels % block_size / channels


def output_channel_block_size(
    call: Call, channels: int, outer_extents: Sequence[Dim], target: Target, channels_last: bool = True
) -> int:
    """Return the number of output channels per block in which to pack the weights of a call; 0 for
    no packing.

    outer_extents    the extents of the result's other axes
    channels_last    True if the channels of the data are contiguous in memory
    """
    dtype, inputs = tensor_type_of(call).dtype, tensor_type_of(call.args[0]).shape[-1]
    columns = numel(outer_extents) if is_static(outer_extents) else 0
    pitch = inputs * dtype.itemsize if channels_last and isinstance(inputs, int) else 0
    return weight_packing_block_size(channels, target, dtype, output_positions=columns, position_pitch_bytes=pitch)


@frozen
class _WinogradOption:
    """Candidate Winograd tile size for all convolutions by one weight, with the cycles saved and
    the bytes added.
    """

    weight: Constant
    tile: int
    saved: float
    added: int

    @property
    def saved_cycles_per_added_byte(self) -> float:
        """Cycles saved per byte of parameters that the transformed weight adds."""
        return self.saved / max(self.added, 1)


def choose_winograd_tiles(function: Function, target: Target, ctx: PassContext) -> dict[Expr, int]:
    """Return the Winograd tile size of every convolution that gains by it, within the configured
    limits (see AlterOpLayout).

    The result is empty for a target whose parameters may not grow.
    """
    limits, growth = target.budget, ctx.get_config("relay.AlterOpLayout.max_growth")
    least = ctx.get_config("relay.AlterOpLayout.min_saving", limits.parameter_saving)
    fast = ctx.get_config("compile.accuracy", "fast") == "fast" and ctx.get_config("relay.AlterOpLayout.winograd", True)
    if limits.parameter_growth <= 1.0 or not fast:
        return {}
    used = users(function)
    constants = [node for node in used if isinstance(node, Constant)]
    size = sum(constant.data.nbytes for constant in constants)
    usual = max((limits.parameter_growth - 1.0) * size, limits.parameter_room)
    budget = usual if growth is None else (growth - 1.0) * size
    calls = {
        w: [n for n in used[w] if isinstance(n, Call) and _is_float32_3x3_stride_1_conv2d(n) and n.args[1] is w]
        for w in constants
    }
    weights = [w for w in constants if calls[w] and is_constant_with_finite_elements(w)]
    chosen = _choose_options_greedily(
        [o for w in weights for o in _profitable_winograd_options(w, calls[w], len(used[w]), target)], budget, least
    )
    return {call: option.tile for weight, option in chosen.items() for call in calls[weight]}


def _choose_options_greedily(
    options: Sequence[_WinogradOption], byte_budget: float, min_cycles_per_byte: float
) -> dict[Constant, _WinogradOption]:
    """Choose at most one Winograd tile size for each weight, greedily by the cycles saved per added
    byte.

    A step transforms a plain weight, or replaces the tile size chosen for it before. Each step
    saves at least `min_cycles_per_byte` cycles for every byte that it adds, and all steps together
    add at most `byte_budget` bytes.
    """
    chosen: dict[Constant, _WinogradOption] = {}
    while True:
        steps = [_difference_from_option_chosen_before(option, chosen.get(option.weight)) for option in options]
        best_step = max(
            (s for s in steps if s.added <= byte_budget and s.saved_cycles_per_added_byte >= min_cycles_per_byte),
            key=lambda s: s.saved_cycles_per_added_byte,
            default=None,
        )
        if best_step is None or best_step.saved <= 0:
            return chosen
        chosen[best_step.weight] = next(o for o, s in zip(options, steps, strict=True) if s is best_step)
        byte_budget -= best_step.added


def _difference_from_option_chosen_before(
    option: _WinogradOption, chosen_before: _WinogradOption | None
) -> _WinogradOption:
    """Return the cycles saved and bytes added by a Winograd tile size relative to the size chosen
    before for its weight.
    """
    if chosen_before is None:
        return option
    return _WinogradOption(
        option.weight, option.tile, option.saved - chosen_before.saved, option.added - chosen_before.added
    )


def _profitable_winograd_options(
    weight: Constant, calls: Sequence[Call], use_count: int, target: Target
) -> Iterator[_WinogradOption]:
    """Yield the Winograd tile sizes that save time for the convolutions by one weight, with cycles
    and bytes.

    The plain weight stays in the program, and its bytes are not saved, if it has users other than
    these convolutions.
    """
    outputs, channels = weight.data.shape[:2]
    groups = {call.attrs.groups for call in calls if isinstance(call.attrs, ConvAttrs)}
    if weight_packing_block_size(outputs, target, "float32") == 0 or len(groups) != 1:
        return
    per_group = outputs // max(groups)
    direct = sum(estimated_winograd_or_direct_cycles(call, channels, 0, target) for call in calls)
    least_ratio = MAX_WINOGRAD_TIME_RATIO
    for tile in SUPPORTED_OUTPUT_TILES:
        blocks = {winograd_channel_block_size(call, weight, tile, target) for call in calls}
        if 0 in blocks or (
            groups != {1} and max(padding_fraction(per_group, b) for b in blocks) > target.budget.group_padding
        ):
            continue
        cost = sum(estimated_winograd_or_direct_cycles(call, channels, tile, target) for call in calls)
        ratio = cost / direct * _time_ratio_of_small_images(calls, channels, tile, target)
        if cost < MAX_WINOGRAD_TIME_RATIO * direct and ratio < least_ratio:
            least_ratio = ratio if _have_run_time_images(calls) else MAX_WINOGRAD_TIME_RATIO
            padded = outputs if groups == {1} else max(-(-per_group // b) * b for b in blocks) * max(groups)
            size = (tile + FILTER_EXTENT - 1) ** 2 * padded * channels * 4
            yield _WinogradOption(
                weight, tile, direct - cost, size - (weight.data.nbytes if use_count == len(calls) else 0)
            )


def _have_run_time_images(calls: Sequence[Call]) -> bool:
    """Return True if the result of a convolution has dimensions that are known at run time only."""
    return not all(tensor_type_of(call).is_static for call in calls)


def _time_ratio_of_small_images(calls: Sequence[Call], channels: int, tile: int, target: Target) -> float:
    """Return the estimated time of convolutions by Winograd tiles of this size divided by that of the direct
    algorithm, for small images; 1 if all sizes are known.

    Convolutions of few pixels take the time in which their weights are read, which are larger for Winograd's
    algorithm. Both ratios have equal weight in the choice, so that no size is much slower than another gets faster.
    """
    if not _have_run_time_images(calls):
        return 1.0

    def cycles(of_tile: int) -> float:
        total = 0.0
        for call in calls:
            attrs = call.attrs
            assert isinstance(attrs, ConvAttrs)
            images, outputs, *image = _typical_output_sizes(call, attrs)
            axes = (
                (attrs.out_layout or attrs.data_layout).index("H"),
                (attrs.out_layout or attrs.data_layout).index("W"),
            )
            least = (interval_of_dim(tensor_type_of(call).shape[axis])[0] for axis in axes)
            height, width = (
                max(1, int(low), math.ceil(n * SMALL_IMAGE_FRACTION)) for n, low in zip(image, least, strict=True)
            )
            shape = (images, outputs, height, width)
            total += estimated_cycles_of_3x3_convolution(shape, channels, of_tile, target, attrs.groups)
        return total

    return cycles(tile) / cycles(0)


def estimated_winograd_or_direct_cycles(call: Call, input_channels_per_group: int, tile: int, target: Target) -> float:
    """Return the estimated cycles of a 3x3 convolution with Winograd tiles of this size; `tile` 0
    is the direct algorithm.

    input_channels_per_group    input channels of each group
    """
    a = call.attrs
    assert isinstance(a, ConvAttrs)
    images, outputs, height, width = _typical_output_sizes(call, a)
    return estimated_cycles_of_3x3_convolution(
        (images, outputs, height, width), input_channels_per_group, tile, target, a.groups
    )


def _typical_output_sizes(call: Call, attrs: ConvAttrs) -> tuple[int, int, int, int]:
    """Return the images, channels, height and width of the result of a 2-D convolution, typical ones where they
    are known at run time only.
    """
    sizes = dict(zip(attrs.out_layout or attrs.data_layout, map(typical_size, tensor_type_of(call).shape), strict=True))
    return sizes["N"], sizes["C"], sizes["H"], sizes["W"]


def winograd_channel_block_size(call: Call, weight: Constant, tile: int, target: Target) -> int:
    """Return the number of output channels in a block of weights that are transformed for Winograd
    tiles of size `tile`.
    """
    a = call.attrs
    assert isinstance(a, ConvAttrs)
    tiles = [-(-extent // tile) for extent in _typical_output_sizes(call, a)[2:]]
    return output_channel_block_size(call, weight.data.shape[0] // a.groups, tiles, target, channels_last=False)


def _is_float32_3x3_stride_1_conv2d(call: Call) -> bool:
    """Return True for a float32 convolution with 3x3 filters, stride 1 and dilation 1: of NCHW data of
    known shape, with channels in one group or in groups of several channels, or of NHWC data whose height or
    width is known at run time only, with channels in one group.
    """
    a = call.attrs
    if not isinstance(a, Conv2DAttrs) or a.kernel_layout != "OIHW" or a.out_layout not in ("", a.data_layout):
        return False
    shape = tensor_type_of(call).shape
    if a.data_layout == "NCHW":
        fits = is_static(shape) and (a.groups == 1 or tensor_type_of(call.args[1]).shape[1] != 1)
    else:
        fits = a.data_layout == "NHWC" and a.groups == 1 and not is_static(shape[1:3]) and are_bounded(shape)
    return (
        fits
        and {*a.strides, *a.dilation} == {1}
        and 0 not in shape
        and all(tensor_type_of(x).dtype == "float32" for x in (*call.args, call))
        and tensor_type_of(call.args[1]).shape[2:] == (FILTER_EXTENT, FILTER_EXTENT)
    )
