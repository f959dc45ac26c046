# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pools for onnx's reference evaluator, whose own need memory and time that grow
with the square of the dilation.

In: arrays and ONNX attributes.  Out: the results, computed one kernel element at a time over strips
of rows, so that temporary arrays stay below `MAX_STRIP_BYTES` (or the size of one row, if that is
larger).

    ReferenceEvaluator(model, new_ops=list(WINDOW_OPERATORS))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, Final

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import _op_list

from aotc.ir import Array, frozen

#: Largest size in bytes of the temporary arrays for one strip of rows.
MAX_STRIP_BYTES: Final = 1 << 25


@frozen
class SlidingWindow:
    """Geometry of a sliding window, with one value per spatial axis.

    size       extents of the data
    results    extents of the result
    kernel     extents of the kernel
    strides, dilations, begins    strides, dilations and padding before each axis

    For a transposed convolution, `size` and `results` are exchanged: each element of the data is
    added to a window of the result.
    """

    size: tuple[int, ...]
    results: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]

    def window_data_and_result_indices(
        self, kernel_element: Sequence[int], first_row: int, end_row: int
    ) -> tuple[Any, Any]:
        """Return the index of the data that one kernel element is applied to, and the index of the
        results that it contributes to.

        Only result rows `first_row` to `end_row` (exclusive) of the first spatial axis are covered;
        elements in the padding are left out.
        """
        pairs = []
        for axis, k in enumerate(kernel_element):
            stride, offset = self.strides[axis], k * self.dilations[axis] - self.begins[axis]
            low, high = (first_row, end_row) if axis == 0 else (0, self.results[axis])
            low = max(low, -(offset // stride))
            high = max(low, min(high, (self.size[axis] - 1 - offset) // stride + 1))
            start = low * stride + offset
            pairs.append((slice(start, start + (high - low) * stride, stride), slice(low, high)))
        data, results = zip(*pairs, strict=True)
        return (..., *data), (..., *results)

    def memory_bounded_result_row_ranges(self, bytes_per_element: int) -> Iterator[tuple[int, int]]:
        """Yield ranges (first, last) of result rows whose temporary arrays fit in MAX_STRIP_BYTES,
        at least one row each.

        bytes_per_element    bytes of temporary arrays per position of the result
        """
        row = max(1, prod(self.results[1:]) * bytes_per_element)
        height = max(1, MAX_STRIP_BYTES // row)
        for first in range(0, self.results[0], height):
            yield first, min(first + height, self.results[0])


def _resolve_auto_pad(
    auto_pad: str, size: Sequence[int], kernel: Sequence[int], attributes: dict[str, Any]
) -> list[int]:
    """Return the padding of a convolution or pool: the counts before each axis, then the counts
    after each axis.

    auto_pad      the ONNX attribute auto_pad; with SAME_UPPER and SAME_LOWER the result has ceil(size /
                  stride) positions
    attributes    attributes, with strides and dilations filled in
    """
    if auto_pad == "VALID":
        return [0] * 2 * len(size)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return list(attributes.get("pads") or [0] * 2 * len(size))
    total = [
        max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        for n, k, s, d in zip(size, kernel, attributes["strides"], attributes["dilations"], strict=True)
    ]
    small = [t // 2 for t in total]
    large = [t - t // 2 for t in total]
    return small + large if auto_pad == "SAME_UPPER" else large + small


def _window_and_end_padding(
    size: Sequence[int], kernel: Sequence[int], attributes: dict[str, Any]
) -> tuple[SlidingWindow, list[int]]:
    """Return the Window of a convolution or pool from its ONNX attributes, and the padding after
    each spatial axis.
    """
    n = len(size)
    a = attributes | {k: list(attributes.get(k) or [1] * n) for k in ("strides", "dilations")}
    pads = _resolve_auto_pad(attributes.get("auto_pad") or "NOTSET", size, kernel, a)
    results = []
    for x, k, s, d, p, q in zip(size, kernel, a["strides"], a["dilations"], pads[:n], pads[n:], strict=True):
        room = x + p + q - (k - 1) * d - 1
        count = (-(-room // s) if attributes.get("ceil_mode") else room // s) + 1
        # with ceil_mode, a window that starts after the data and the padding before it is not counted
        count -= bool(attributes.get("ceil_mode")) and (count - 1) * s >= x + p
        results.append(max(0, count))
    fixed = (tuple(a["strides"]), tuple(a["dilations"]), tuple(pads[:n]))
    return SlidingWindow(tuple(size), tuple(results), tuple(kernel), *fixed), pads[n:]


def _kernel_values_at_position(kernels: Array, position: Sequence[int]) -> Array:
    """Return the values of all kernels at one spatial position, as a matrix per group."""
    index: Any = (..., *position)
    return np.asarray(kernels[index])


def _add_channel_bias_in_place(y: Array, bias: Array | None) -> Array:
    """Add a bias per channel to `y` in place, if there is one; return `y`."""
    if bias is not None:
        y += bias.reshape(-1, *[1] * (y.ndim - 2))
    return y


class Conv(OpRun):  # type: ignore[misc]
    """Convolution of data (N, C, spatial axes) with weights (O, C / group, kernel axes)."""

    op_domain = ""

    def _run(self, x: Array, w: Array, bias: Array | None = None, **attributes: Any) -> tuple[Array]:
        groups = attributes.get("group") or 1
        window, _ = _window_and_end_padding(x.shape[2:], w.shape[2:], attributes)
        y = np.zeros((x.shape[0], groups, w.shape[0] // groups, *window.results), x.dtype)
        parts = x.reshape(x.shape[0], groups, w.shape[1], *x.shape[2:])
        kernels = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
        for first, last in window.memory_bounded_result_row_ranges((x.shape[1] + 2 * w.shape[0]) * x.itemsize):
            for element in np.ndindex(*window.kernel):
                data, results = window.window_data_and_result_indices(element, first, last)
                for image, result in zip(parts, y, strict=True):
                    patch = image[data]
                    share = _kernel_values_at_position(kernels, element) @ patch.reshape(*patch.shape[:2], -1)
                    result[results] += share.reshape(*share.shape[:2], *patch.shape[2:])
        return (_add_channel_bias_in_place(y.reshape(x.shape[0], w.shape[0], *window.results), bias),)


class ConvTranspose(OpRun):  # type: ignore[misc]
    """Transposed convolution of data (N, C, spatial axes) with weights (C, O / group, kernel axes)."""

    op_domain = ""

    def _run(self, x: Array, w: Array, bias: Array | None = None, **attributes: Any) -> tuple[Array]:
        groups = attributes.get("group") or 1
        window = _transposed_convolution_window(x.shape[2:], w.shape[2:], attributes)
        channels = groups * w.shape[1]
        y = np.zeros((x.shape[0], groups, w.shape[1], *window.size), x.dtype)
        parts = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
        kernels = w.reshape(groups, -1, *w.shape[1:]).swapaxes(1, 2)
        for first, last in window.memory_bounded_result_row_ranges((x.shape[1] + 2 * channels) * x.itemsize):
            for element in np.ndindex(*window.kernel):
                results, data = window.window_data_and_result_indices(element, first, last)
                for image, result in zip(parts, y, strict=True):
                    patch = image[data]
                    share = _kernel_values_at_position(kernels, element) @ patch.reshape(*patch.shape[:2], -1)
                    result[results] += share.reshape(*share.shape[:2], *patch.shape[2:])
        return (_add_channel_bias_in_place(y.reshape(x.shape[0], channels, *window.size), bias),)


def _transposed_convolution_window(
    size: Sequence[int], kernel: Sequence[int], attributes: dict[str, Any]
) -> SlidingWindow:
    """Return the Window of the convolution that a transposed convolution is the transpose of: it
    reads the result and gives the data.
    """
    n = len(size)
    strides, dilations = (list(attributes.get(k) or [1] * n) for k in ("strides", "dilations"))
    output_padding = list(attributes.get("output_padding") or [0] * n)
    pads = list(attributes.get("pads") or [0] * 2 * n)
    how, output_shape = attributes.get("auto_pad") or "NOTSET", attributes.get("output_shape")
    same = how in ("SAME_UPPER", "SAME_LOWER")
    if how == "VALID":
        pads = [0] * 2 * n
    axes = zip(size, kernel, strides, dilations, output_padding, strict=True)
    whole = [(x - 1) * s + (k - 1) * d + 1 + m for x, k, s, d, m in axes]
    if not (output_shape or same):
        extents = [total - pads[k] - pads[n + k] for k, total in enumerate(whole)]
        return SlidingWindow(
            tuple(extents), tuple(size), tuple(kernel), tuple(strides), tuple(dilations), tuple(pads[:n])
        )
    extents = list(output_shape)[-n:] if output_shape else [x * s for x, s in zip(size, strides, strict=True)]
    surplus = [max(0, total - extent) for total, extent in zip(whole, extents, strict=True)]
    begins = [t // 2 if how == "SAME_UPPER" else t - t // 2 for t in surplus]
    return SlidingWindow(tuple(extents), tuple(size), tuple(kernel), tuple(strides), tuple(dilations), tuple(begins))


def _combine_elements_in_windows(
    x: Array, window: SlidingWindow, initial_value: float, combine: Callable[..., Any]
) -> Array:
    """Return an array of `initial_value` values, each combined by `combine` with all data elements
    in its window.
    """
    y = np.full((*x.shape[:2], *window.results), initial_value, x.dtype)
    for first, last in window.memory_bounded_result_row_ranges(2 * prod(x.shape[:2]) * x.itemsize):
        for element in np.ndindex(*window.kernel):
            data, results = window.window_data_and_result_indices(element, first, last)
            target = y[results]
            combine(target, x[data], out=target)
    return y


class MaxPool(_op_list.MaxPool):  # type: ignore[misc]
    """Maximum of each window of float data; integer data and the indices output are left to onnx's
    evaluator.
    """

    op_domain = ""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array, ...]:
        if len(self.onnx_node.output) > 1 or not np.issubdtype(x.dtype, np.floating):
            return tuple(super()._run(x, **attributes))
        window, _ = _window_and_end_padding(x.shape[2:], attributes["kernel_shape"], attributes)
        return (_combine_elements_in_windows(x, window, -np.inf, np.maximum),)


class AveragePool(OpRun):  # type: ignore[misc]
    """Mean of each window, over its elements in the data, or in data and padding if
    count_include_pad is set.
    """

    op_domain = ""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        kernel = attributes["kernel_shape"]
        window, ends = _window_and_end_padding(x.shape[2:], kernel, attributes)
        total = _combine_elements_in_windows(x, window, 0.0, np.add)
        ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
        if attributes.get("count_include_pad"):
            pairs = zip(window.begins, ends, strict=True)
            ones = np.pad(ones, ((0, 0), (0, 0), *pairs), constant_values=1)
            padded = (tuple(ones.shape[2:]), window.results, window.kernel, window.strides, window.dilations)
            window = SlidingWindow(*padded, (0,) * len(ends))
        return (total / _combine_elements_in_windows(ones, window, 0.0, np.add),)


#: Operators that replace those of onnx's reference evaluator.
WINDOW_OPERATORS: Final = (Conv, ConvTranspose, MaxPool, AveragePool)
