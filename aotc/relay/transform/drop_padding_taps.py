# SPDX-License-Identifier: Apache-2.0
"""The rewrite rule that removes rows and columns of a convolution kernel that are multiplied by
padding only, for every output position.

nn.conv2d(%x, %w, padding=[3, 3, 3, 3])     with %x of 2 x 5 pixels and %w of 7 x 7 taps
nn.conv2d(%x, %w[:, :, 2:5, :], padding=[1, 3, 1, 3])

Small images under large or dilated kernels have such taps; their weights are then neither stored
nor read. The result does not change, as padding with zeros adds nothing to a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from aotc.ir import frozen
from aotc.relay.expr import Call, Constant, Expr, tensor_type_of
from aotc.relay.op.conv import ConvAttrs, conv1d, conv2d, conv3d
from aotc.relay.op.window_attributes import (
    DATA_LAYOUT_BY_RANK,
    KERNEL_LAYOUT_BY_RANK,
    pad_pairs_of_axes,
    repeat_for_each_axis,
)
from aotc.relay.transform import pass_base
from aotc.relay.transform.pass_base import Rule


@frozen
class _ConvolutionAxis:
    """Geometry of a convolution along one spatial axis.

    size           number of data positions
    outputs        number of output positions
    taps           number of kernel positions
    pad_before     number of padding positions before the data
    """

    size: int
    outputs: int
    taps: int
    pad_before: int
    stride: int
    dilation: int

    def is_tap_multiplied_by_data(self, tap: int) -> bool:
        """Return True if a tap is multiplied by data, not by padding, for at least one output."""
        first = tap * self.dilation - self.pad_before
        earliest = max(0, -(first // self.stride))  # the first output for which the tap is not before the data
        return earliest < self.outputs and first + earliest * self.stride < self.size

    def shortest_equivalent_tap_range(self) -> range:
        """Return the shortest range of taps that gives an equal result without cropping the data;
        all taps if none is multiplied by data.
        """
        useful = [tap for tap in range(self.taps) if self.is_tap_multiplied_by_data(tap)]
        if not useful:
            return range(self.taps)
        # without this tap, the data would give more outputs than there are
        limit = self.size + self.pad_before - self.outputs * self.stride
        last = next(tap for tap in range(useful[-1], self.taps) if tap * self.dilation >= limit)
        return range(min(useful[0], self.pad_before // self.dilation), last + 1)

    def padding_for_taps(self, taps: range) -> tuple[int, int]:
        """Return the padding before and after the data with which `taps` give an equal result."""
        last_read = (self.outputs - 1) * self.stride + (taps.stop - 1) * self.dilation - self.pad_before
        return self.pad_before - taps.start * self.dilation, max(0, last_read + 1 - self.size)


def _spatial_axes_of_convolution(node: Call) -> Iterator[tuple[int, _ConvolutionAxis]]:
    """Yield each spatial axis of a convolution of static shapes: its position in the shape of the
    kernel, and its geometry.
    """
    a: Any = node.attrs
    data, kernel, result = (tensor_type_of(t).static_shape for t in (*node.args, node))
    n, out_layout = len(data) - 2, a.out_layout or a.data_layout
    per_axis = (repeat_for_each_axis(values, n) for values in (a.strides, a.dilation))
    axes = zip(DATA_LAYOUT_BY_RANK[n][2:], pad_pairs_of_axes(a.padding, n), *per_axis, strict=True)
    for letter, (pad_before, _), stride, dilation in axes:
        position = a.kernel_layout.find(letter)
        size, outputs = data[a.data_layout.find(letter)], result[out_layout.find(letter)]
        yield position, _ConvolutionAxis(size, outputs, kernel[position], pad_before, stride, dilation)


def _has_unblocked_layouts_and_static_shapes(node: Call) -> bool:
    a: Any = node.attrs
    n = tensor_type_of(node).rank - 2
    data_letters, kernel_letters = sorted(DATA_LAYOUT_BY_RANK[n]), sorted(KERNEL_LAYOUT_BY_RANK[n])
    data_layouts = (a.data_layout, a.out_layout or a.data_layout)
    if any(sorted(layout) != data_letters for layout in data_layouts) or sorted(a.kernel_layout) != kernel_letters:
        return False
    return all(isinstance(extent, int) for e in (*node.args, node) for extent in tensor_type_of(e).shape)


def _remove_padding_taps(node: Call) -> Expr | None:
    a, weight = node.attrs, node.args[1]
    assert isinstance(a, ConvAttrs)
    if not isinstance(weight, Constant) or a.pad_value or not _has_unblocked_layouts_and_static_shapes(node):
        return None
    index = [slice(None)] * weight.data.ndim
    pads, sizes = list[tuple[int, int]](), list[int]()
    for position, axis in _spatial_axes_of_convolution(node):
        taps = axis.shortest_equivalent_tap_range()
        index[position] = slice(taps.start, taps.stop)
        pads.append(axis.padding_for_taps(taps))
        sizes.append(len(taps))
    remaining = weight.data[tuple(index)]
    if remaining.shape == weight.data.shape:
        return None
    size = {"kernel_size": tuple(sizes)} if a.kernel_size else {}
    padding = tuple(pair[k] for k in (0, 1) for pair in pads)
    return pass_base.rebuild_call(node, (node.args[0], Constant(remaining)), padding=padding, **size)


RULE: Final = Rule(
    "conv(x, w) => conv(x, w without taps that meet only padding)", (conv1d, conv2d, conv3d), _remove_padding_taps
)
