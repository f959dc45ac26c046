# SPDX-License-Identifier: Apache-2.0
"""Max and average pooling over one to three spatial axes: sliding, adaptive and global windows.

With `ceil_mode`, a last, partial window produces an output unless it starts after the end of the
data and its leading padding. An average is divided by the number of data elements in the window or,
with `count_include_pad`, of data and padding elements.

    max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1))
    global_avg_pool2d(x)               # (N, C, H, W) -> (N, C, 1, 1)
    adaptive_avg_pool2d(x, (7, 7))     # (N, C, H, W) -> (N, C, 7, 7)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from aotc.ir import Attrs, Dim, DType, SymDim, TensorType, Type, frozen, largest_size
from aotc.ir.op import AxisMap, OpPattern, PrecisionTreatment, QuantizationTreatment, Types, require
from aotc.relay.op import window_attributes
from aotc.relay.op.adaptive_pool_window import AdaptiveWindow
from aotc.relay.op.contraction_accumulator_types import (
    average_accumulator_dtype,
    cast_array,
    divide_integers_rounding_to_zero,
    widen_narrow_float_array,
)
from aotc.relay.op.layout import add_blocked_layout_support
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import (
    greater,
    lesser,
    random_sample,
    random_samples_from_rows,
    require_dtype,
    require_tensor_of_rank,
    require_tensor_type,
)
from aotc.relay.op.window_attributes import (
    attrs_class_for_rank,
    canonical_to_layout_order,
    layout_to_canonical_order,
    per_axis_attribute_field,
    repeat_for_each_axis,
    strides_dilations_and_pads,
)
from aotc.tir import Const, Operand, Tensor, all_of, binary, const, maximum, te


class MaxPoolAttrs(Attrs):
    """Attributes of a sliding maximum; those of one dimensionality have one value for each axis."""

    pool_size: tuple[int, ...]
    strides: tuple[int, ...] = (1,)
    dilation: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0,)
    layout: str = ""
    out_layout: str = ""
    ceil_mode: bool = False


class AvgPoolAttrs(MaxPoolAttrs):
    """Attributes of a sliding mean."""

    count_include_pad: bool = False


def pool_axis_positions(spatial_rank: int, attrs: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the positions of the canonical axes (N, C, spatial axes) in the data and in the
    result.
    """
    return window_attributes.data_and_result_axis_positions(spatial_rank, attrs.layout, attrs.out_layout)


def pool_operator(
    spatial_rank: int,
    name_prefix: str,
    is_average: bool,
    doc: str,
    result_extents: Callable[..., Any],
    reference_values: Callable[..., Array],
    **facets: Any,
) -> OpDef:
    """Return the OpDef of a pool over `spatial_rank` spatial axes.

    name_prefix         "" for sliding windows, "adaptive" or "global"
    is_average          True for average pooling, False for max pooling
    doc                 documentation, in which {} stands for the pooled value
    result_extents      (attrs, the data's spatial extents) -> the result's spatial extents
    reference_values    (attrs, data in canonical axis order and in the dtype of the computation, the data's
                        dtype) -> the result in canonical axis order
    """

    def infer_pool_type(attrs: Any, types: Types) -> Type:
        data = require_tensor_of_rank("pool.rank", types[0], spatial_rank + 2)
        require_dtype(data.dtype, not (is_average and data.dtype.is_bool))
        source, result = pool_axis_positions(spatial_rank, attrs)
        batch, channels, *space = layout_to_canonical_order(data.shape, source)
        return TensorType(
            canonical_to_layout_order((batch, channels, *result_extents(attrs, space)), result), data.dtype
        )

    def pool_reference(attrs: Any, data: Array) -> Array:
        source, result = pool_axis_positions(spatial_rank, attrs)
        dtype = DType.from_numpy(data)
        work = data.astype(average_accumulator_dtype(dtype).numpy) if is_average else widen_narrow_float_array(data)
        return window_attributes.transpose_to_layout(
            cast_array(
                reference_values(attrs, window_attributes.transpose_to_canonical(work, source), dtype), data.dtype
            ),
            result,
        )

    name = "_".join(filter(None, (name_prefix, "avg" if is_average else "max", f"pool{spatial_rank}d")))
    shared: dict[str, Any] = {
        "pattern": OpPattern.OUT_ELEMWISE_FUSABLE,
        "axes": lambda a, _: AxisMap(
            (window_attributes.axis_map_row_of_leading_axes(*pool_axis_positions(spatial_rank, a), 2),)
        ),
        "precision": None if is_average else PrecisionTreatment.FOLLOW,
        "quantized": QuantizationTreatment.RESCALE if is_average else QuantizationTreatment.PASS,
    }
    pooled_value = "mean" if is_average else "greatest value"
    return add_blocked_layout_support(
        OpDef(
            name=f"nn.{name}",
            doc=doc.format(pooled_value),
            infer=infer_pool_type,
            reference=pool_reference,
            **shared | facets,
        )
    )


# --- sliding windows


@frozen
class _Window:
    """Sliding window along one axis: tap k of output i reads position `i * stride - pad + k *
    dilation`.
    """

    extent: int
    size: int
    stride: int
    dilation: int
    pad: tuple[int, int]
    count: int  # outputs

    def tap_position(self, output: Scalar, tap: Scalar) -> Scalar:
        return output * self.stride + tap * self.dilation - self.pad[0]

    def tap_in_bounds_conditions(self, output: Scalar, tap: Scalar) -> list[Scalar]:
        """Return the conditions for a tap to be inside the data; empty if all taps of all outputs
        are inside.
        """
        if isinstance(self.extent, SymDim):
            leaves = self.pad != (0, 0)  # partial windows have no number of outputs as a formula
        else:
            leaves = self.pad[0] > 0 or self.padded_extent_of_taps() > self.pad[0] + self.extent
        return [self.tap_position(output, tap) >= 0, self.tap_position(output, tap) < self.extent] if leaves else []

    def position_range_counted_by_average(self, include_pad: bool) -> tuple[int, int]:
        """Return the half-open range of positions that an average counts."""
        return (-self.pad[0], self.extent + self.pad[1]) if include_pad else (0, self.extent)

    def padded_extent_of_taps(self) -> int:
        """Return the number of positions from the first tap of the first output to the last tap or
        the end of the data.
        """
        last = (self.count - 1) * self.stride + (self.size - 1) * self.dilation + 1
        return max(last, self.pad[0] + self.extent)

    def counted_tap_count(self, outputs: Any, include_pad: bool) -> Any:
        """Return the number of counted taps of outputs `outputs`, an expression or an array."""
        low, high = self.position_range_counted_by_average(include_pad)
        start = outputs * self.stride - self.pad[0]
        first = greater((low - start + (self.dilation - 1)) // self.dilation, 0)
        last = lesser((high - 1 - start) // self.dilation, self.size - 1)
        return last - first + 1

    def counted_tap_count_constant_if_uniform(self, output: Scalar, include_pad: bool) -> Operand:
        """Return the number of counted taps of output `output`: an integer if it is equal for all
        outputs, else an expression.
        """
        if isinstance(self.extent, SymDim):
            is_whole = include_pad or self.pad == (0, 0)
            count: Operand = self.size if is_whole else self.counted_tap_count(output, include_pad)
            return count
        ends = {int(n) for n in self.counted_tap_count(np.array([0, self.count - 1]), include_pad)}
        low, high = self.position_range_counted_by_average(include_pad)
        # if the first and the last window are complete or cover all of the data, so do the windows
        # between them
        alike = {self.size, high - low} if self.dilation == 1 else {self.size}
        if self.count == 1 or (len(ends) == 1 and ends <= alike):
            return ends.pop()
        tap_count: Operand = self.counted_tap_count(output, include_pad)
        return tap_count


def pool_windows_by_axis(spatial_rank: int, a: MaxPoolAttrs, spatial_extents: Sequence[int]) -> list[_Window]:
    size = repeat_for_each_axis(a.pool_size, spatial_rank)
    counts = window_attributes.window_counts_of_axes(spatial_rank, a, spatial_extents, size, a.ceil_mode)
    return [
        _Window(*w)
        for w in zip(spatial_extents, size, *strides_dilations_and_pads(spatial_rank, a), counts, strict=True)
    ]


def _pool_result_extents(spatial_rank: int, a: MaxPoolAttrs, spatial_extents: Sequence[Dim]) -> list[Dim]:
    return window_attributes.window_counts_of_axes(
        spatial_rank, a, spatial_extents, repeat_for_each_axis(a.pool_size, spatial_rank), a.ceil_mode
    )


def reduce_pool_windows(
    spatial_rank: int, attrs: Any, data: Tensor, windows: Sequence[Any], is_average: bool = False, name: str = ""
) -> te.Reduce:
    """Return the reduction (maximum or sum) over windows that are the product of one window
    per spatial axis.

    Each element of `windows` describes an axis: `count` outputs with `size` taps each. Tap k of
    output i reads position `tap_position(i, k)`, and is skipped unless all conditions of
    `tap_in_bounds_conditions(i, k)` hold.
    """
    source, result = pool_axis_positions(spatial_rank, attrs)
    batch, channels, *_ = layout_to_canonical_order(data.shape, source)
    combiner = "sum" if is_average else "or" if data.dtype.is_bool else "max"
    dtype = average_accumulator_dtype(data.dtype) if is_average else data.dtype

    def window_output_tap_triples(loop_indices: Sequence[Scalar]) -> list[tuple[Any, Scalar, Scalar]]:
        return list(
            zip(
                windows,
                layout_to_canonical_order(loop_indices, result[2:]),
                loop_indices[spatial_rank + 2 :],
                strict=True,
            )
        )

    def element_of_tap(*v: Scalar) -> Scalar:
        where = (
            *layout_to_canonical_order(v, result[:2]),
            *(p.tap_position(i, k) for p, i, k in window_output_tap_triples(v)),
        )
        return data[canonical_to_layout_order(where, source)].astype(dtype)

    def tap_in_bounds_condition(*v: Scalar) -> Scalar:
        return all_of(*(c for p, i, k in window_output_tap_triples(v) for c in p.tap_in_bounds_conditions(i, k)))

    shape = canonical_to_layout_order((batch, channels, *(p.count for p in windows)), result)
    nothing = const(0)
    some = tap_in_bounds_condition if any(p.tap_in_bounds_conditions(nothing, nothing) for p in windows) else None
    return te.reduce(combiner, shape, [p.size for p in windows], element_of_tap, name or f"{combiner}_pool", guard=some)


def average_treating_zero_count_as_one(total: Scalar, count: Scalar | int) -> Scalar:
    """Return total / count, truncated for integers; a count of 0 is treated as 1."""
    if not isinstance(count, int):
        count = maximum(count, 1).astype(total.dtype)
    elif count <= 1:
        return total
    return total / count if total.dtype.is_float else binary("truncdiv", total, count)


#: Smallest number of taps for which max pooling runs axis by axis: k + k comparisons instead of k *
#: k.
MIN_TAPS_FOR_SEPARABLE_POOL: Final = 25
#: Smallest number of taps for pooling axis by axis if rows have at least MIN_LONG_ROW_COLUMNS
#: columns; on shorter rows the loop overhead exceeds the savings.
MIN_TAPS_FOR_SEPARABLE_LONG_ROWS: Final = 9
MIN_LONG_ROW_COLUMNS: Final = 48


def _compute_max_pool(spatial_rank: int, a: MaxPoolAttrs, data: Tensor) -> Tensor:
    source, result = pool_axis_positions(spatial_rank, a)
    space = layout_to_canonical_order(data.shape, source)[2:]
    windows = pool_windows_by_axis(spatial_rank, a, space)
    wide = [w.size for w in windows if w.size > 1]
    is_long = largest_size(space[-1]) >= MIN_LONG_ROW_COLUMNS
    least = MIN_TAPS_FOR_SEPARABLE_LONG_ROWS if is_long else MIN_TAPS_FOR_SEPARABLE_POOL
    if len(wide) < 2 or prod(wide) < least or source != result:
        return reduce_pool_windows(spatial_rank, a, data, windows)
    for axis, window in enumerate(windows):  # rows first: whole rows are compared elementwise
        single = (
            _Window(extent, 1, 1, 1, (0, 0), extent) for extent in layout_to_canonical_order(data.shape, source)[2:]
        )
        data = reduce_pool_windows(spatial_rank, a, data, [window if k == axis else w for k, w in enumerate(single)])
    return data


def _compute_avg_pool(spatial_rank: int, attrs: Any, data: Tensor) -> Tensor:
    source, result = pool_axis_positions(spatial_rank, attrs)
    windows = pool_windows_by_axis(spatial_rank, attrs, layout_to_canonical_order(data.shape, source)[2:])
    total = reduce_pool_windows(spatial_rank, attrs, data, windows, is_average=True)

    def average_of_window_at_output(*v: Scalar) -> Scalar:
        tap_counts = [
            w.counted_tap_count_constant_if_uniform(v[p], attrs.count_include_pad)
            for w, p in zip(windows, result[2:], strict=True)
        ]
        count: Any = prod(s for s in tap_counts if isinstance(s, int))
        for s in tap_counts:
            count = count if isinstance(s, int) else s * count
        return average_treating_zero_count_as_one(total[v], count).astype(data.dtype)

    return te.compute(total.shape, average_of_window_at_output, "avg_pool")


def _pool_values_of_array(spatial_rank: int, is_average: bool, attrs: Any, x: Array, dtype: DType) -> Array:
    windows = pool_windows_by_axis(spatial_rank, attrs, x.shape[2:])
    reach = [(w.size - 1) * w.dilation + 1 for w in windows]
    pads = ((w.pad[0], w.padded_extent_of_taps() - w.extent - w.pad[0]) for w in windows)
    x = np.pad(x, ((0, 0), (0, 0), *pads), constant_values=0 if is_average else dtype.smallest_value)
    view = sliding_window_view(x, reach, tuple(range(2, spatial_rank + 2)))
    outputs = [slice(0, (w.count - 1) * w.stride + 1, w.stride) for w in windows]
    taps = (slice(None, None, w.dilation) for w in windows)
    steps = (slice(None), slice(None), *outputs, *taps)
    inner = tuple(range(-spatial_rank, 0))
    if not is_average:
        return np.asarray(view[steps].max(axis=inner))
    count = np.ones((), np.int64)
    for w in windows:
        count = np.multiply.outer(
            count, np.maximum(w.counted_tap_count(np.arange(w.count), attrs.count_include_pad), 1)
        )
    return divide_with_zero_count_as_one(sum_windows_in_row_major_order(view[steps], spatial_rank), count)


def _padded_data_element_count(spatial_rank: int, a: MaxPoolAttrs, types: Types) -> int:
    """Return the number of elements of the padded data, the scratch memory of the operator."""
    batch, channels, *space = layout_to_canonical_order(
        require_tensor_type(types[0]).static_shape, pool_axis_positions(spatial_rank, a)[0]
    )
    return batch * channels * prod(w.padded_extent_of_taps() for w in pool_windows_by_axis(spatial_rank, a, space))


def sum_windows_in_row_major_order(windows: Array, spatial_rank: int) -> Array:
    """Return the sums over the last `spatial_rank` axes, added in row-major order: float sums
    depend on the order.
    """
    total = np.zeros(windows.shape[:-spatial_rank], windows.dtype)
    for tap in np.ndindex(*windows.shape[-spatial_rank:]):
        place = (Ellipsis, *tap)
        total += windows[place]
    return total


def divide_with_zero_count_as_one(total: Array, count: Any) -> Array:
    """Return total / count, truncated for integers; a count of 0 is treated as 1."""
    count = np.maximum(count, 1)
    if DType.from_numpy(total).is_float:
        return np.asarray(total / np.asarray(count).astype(total.dtype))
    return divide_integers_rounding_to_zero(total, count)


# --- samples and the table

SAMPLE_SHAPES_BY_RANK: Final = {1: (2, 3, 9), 2: (1, 3, 8, 7), 3: (1, 2, 5, 6, 4)}


def _pool_test_samples(spatial_rank: int, attributes: type[MaxPoolAttrs]) -> Samples:
    def pool_sample(dtype: str = "float32", **fields: Any) -> Sample:
        return random_sample((SAMPLE_SHAPES_BY_RANK[spatial_rank],), attributes(**fields), dtype)

    yield pool_sample(pool_size=(2,) * spatial_rank, strides=(2,) * spatial_rank)
    yield pool_sample(
        pool_size=(3,) * spatial_rank, strides=(2,) * spatial_rank, padding=(1,) * spatial_rank, ceil_mode=True
    )
    yield pool_sample(pool_size=(2,) * spatial_rank, dilation=(2,) * spatial_rank, padding=(1, 0) * spatial_rank)
    yield pool_sample(
        pool_size=(3,) * spatial_rank, strides=(2,) * spatial_rank, padding=(1,) * spatial_rank, dtype="int8"
    )
    yield pool_sample(pool_size=(3,) * spatial_rank, dtype="float16")
    yield pool_sample(
        pool_size=(5,) * spatial_rank, strides=(2,) * spatial_rank, padding=(2,) * spatial_rank, ceil_mode=True
    )
    if issubclass(attributes, AvgPoolAttrs):
        yield pool_sample(
            pool_size=(3,) * spatial_rank,
            strides=(2,) * spatial_rank,
            padding=(1,) * spatial_rank,
            ceil_mode=True,
            count_include_pad=True,
        )
    if spatial_rank == 2:
        yield pool_sample(pool_size=(3, 2), padding=(1, 0), layout="NHWC")
        yield pool_sample(pool_size=(3, 2), out_layout="NHWC")
        yield random_sample(((1, 2, 8, 7, 4),), attributes(pool_size=(3, 2), layout="NCHW4c"))


def _sliding_pool_op(spatial_rank: int, is_average: bool) -> OpDef:
    base, size = (
        AvgPoolAttrs if is_average else MaxPoolAttrs,
        per_axis_attribute_field(spatial_rank, given=(1,) * spatial_rank),
    )
    attributes = window_attributes.attrs_class_for_rank(
        spatial_rank, base, f"{'Avg' if is_average else 'Max'}Pool{spatial_rank}DAttrs", pool_size=size
    )
    return pool_operator(
        spatial_rank,
        "",
        is_average,
        "The {} over each window.",
        partial(_pool_result_extents, spatial_rank),
        partial(_pool_values_of_array, spatial_rank, is_average),
        attrs=attributes,
        scratch=partial(_padded_data_element_count, spatial_rank),
        precision=PrecisionTreatment.FOLLOW,
        compute=partial(_compute_avg_pool if is_average else _compute_max_pool, spatial_rank),
        samples=partial(_pool_test_samples, spatial_rank, attributes),
    )


max_pool1d, max_pool2d, max_pool3d = (_sliding_pool_op(n, is_average=False) for n in (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = (_sliding_pool_op(n, is_average=True) for n in (1, 2, 3))


# --- pools over all of the data, or over windows that cut it into a given number of parts


class GlobalPoolAttrs(Attrs):
    """Attributes of a pool over all of the data."""

    layout: str = ""
    out_layout: str = ""


GlobalPool1DAttrs, GlobalPool2DAttrs, GlobalPool3DAttrs = (
    attrs_class_for_rank(n, GlobalPoolAttrs, f"GlobalPool{n}DAttrs") for n in (1, 2, 3)
)


class AdaptivePoolAttrs(Attrs):
    """Attributes of an adaptive pool; an empty `output_size` keeps the data's."""

    output_size: tuple[int, ...] = ()
    layout: str = ""
    out_layout: str = ""


def _adaptive_output_sizes(spatial_rank: int, a: AdaptivePoolAttrs, spatial_extents: Sequence[Dim]) -> Sequence[Dim]:
    sizes = repeat_for_each_axis(a.output_size, spatial_rank) if a.output_size else spatial_extents
    positive = all(not isinstance(m, int) or m > 0 for m in sizes)
    require("pool.size", positive, f"output_size must be positive, got {a.output_size}")
    return sizes


def _adaptive_windows_by_axis(
    spatial_rank: int, a: AdaptivePoolAttrs, spatial_extents: Sequence[int]
) -> list[AdaptiveWindow]:
    return list(
        map(
            AdaptiveWindow,
            spatial_extents,
            repeat_for_each_axis(a.output_size, spatial_rank) if a.output_size else spatial_extents,
        )
    )


def _compute_adaptive_pool(
    spatial_rank: int, is_average: bool, name: str, a: AdaptivePoolAttrs, data: Tensor
) -> Tensor:
    source, result = pool_axis_positions(spatial_rank, a)
    parts = _adaptive_windows_by_axis(spatial_rank, a, layout_to_canonical_order(data.shape, source)[2:])
    total = reduce_pool_windows(spatial_rank, a, data, parts, is_average, name)

    def averaged_element(*v: Scalar) -> Scalar:
        fixed, varying = 1, const(1)
        for p, part in zip(result[2:], parts, strict=True):
            low, high = part.position_range_of_adaptive_window(v[p])
            least, most = part.min_and_max_adaptive_window_width
            if least == most:
                fixed *= part.size
            else:
                varying = varying * (high - low)
        return average_treating_zero_count_as_one(
            total[v], fixed if isinstance(varying, Const) else varying * fixed
        ).astype(data.dtype)

    return te.compute(total.shape, averaged_element, "avg_pool") if is_average else total


def _adaptive_pool_values_of_array(
    spatial_rank: int, is_average: bool, a: AdaptivePoolAttrs, x: Array, dtype: DType
) -> Array:
    count = np.ones((), np.int64)
    for axis, part in enumerate(_adaptive_windows_by_axis(spatial_rank, a, x.shape[2:]), start=2):
        spans = [part.position_range_of_adaptive_window(i) for i in range(part.count)]
        slices = [np.take(x, range(*span), axis) for span in spans]
        x = np.stack([s.sum(axis) if is_average else s.max(axis, initial=dtype.smallest_value) for s in slices], axis)
        count = np.multiply.outer(count, [hi - lo for lo, hi in spans])
    return divide_with_zero_count_as_one(x, count) if is_average else x


# --- samples and the table


_GLOBAL_POOL2D_TEST_CASES: Any = (
    (((2, 3, 5, 4),), {}),
    (((2, 5, 4, 3),), {"layout": "NHWC"}),
    (((1, 3, 5, 4),), {}, "int32"),
    (((1, 3, 5, 4),), {}, "float16"),
)


def _adaptive_pool_test_cases(spatial_rank: int) -> list[Any]:
    plain = [
        ((SAMPLE_SHAPES_BY_RANK[spatial_rank],), {"output_size": (size,) * spatial_rank} if size else {})
        for size in (3, 1, 0)
    ]
    return plain + ([(((2, 8, 6, 3),), {"output_size": (4, 4), "layout": "NHWC"})] if spatial_rank == 2 else [])


def _adapt_to_global_pool(adaptive_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a global pool derived from the adaptive pool with an output size of 1."""

    def call_with_output_size_one(a: GlobalPoolAttrs, *given: Any) -> Any:
        return adaptive_fn(AdaptivePoolAttrs(output_size=(1,), **dict(a.items())), *given)

    return call_with_output_size_one


def _adaptive_pool_functions(spatial_rank: int, is_average: bool, name: str) -> dict[str, Any]:
    """Return the functions that define an adaptive pool over `spatial_rank` axes, whose tensor is
    called `name`.
    """
    return {
        "result_extents": partial(_adaptive_output_sizes, spatial_rank),
        "reference_values": partial(_adaptive_pool_values_of_array, spatial_rank, is_average),
        "compute": partial(_compute_adaptive_pool, spatial_rank, is_average, name),
    }


def _global_pool_op(spatial_rank: int, attrs_class: type[GlobalPoolAttrs], is_average: bool) -> OpDef:
    name = f"{'sum' if is_average else 'max'}_pool"
    facets = {k: _adapt_to_global_pool(v) for k, v in _adaptive_pool_functions(spatial_rank, is_average, name).items()}
    doc = f"The {{}} of each channel: (N, C{', 1' * spatial_rank})."
    samples = random_samples_from_rows(
        attrs_class, _GLOBAL_POOL2D_TEST_CASES if spatial_rank == 2 else [((SAMPLE_SHAPES_BY_RANK[spatial_rank],), {})]
    )
    return pool_operator(spatial_rank, "global", is_average, doc, attrs=attrs_class, samples=samples, **facets)


def _adaptive_pool_op(spatial_rank: int, is_average: bool) -> OpDef:
    size = per_axis_attribute_field(spatial_rank, (), given=None)
    attributes = attrs_class_for_rank(
        spatial_rank, AdaptivePoolAttrs, f"AdaptivePool{spatial_rank}DAttrs", output_size=size
    )
    doc = "The {} over windows that cut each spatial axis into `output_size` parts."
    samples, facets = (
        random_samples_from_rows(attributes, _adaptive_pool_test_cases(spatial_rank)),
        _adaptive_pool_functions(spatial_rank, is_average, "pool"),
    )
    return pool_operator(spatial_rank, "adaptive", is_average, doc, attrs=attributes, samples=samples, **facets)


global_max_pool1d, global_avg_pool1d = (_global_pool_op(1, GlobalPool1DAttrs, mean) for mean in (False, True))
global_max_pool2d, global_avg_pool2d = (_global_pool_op(2, GlobalPool2DAttrs, mean) for mean in (False, True))
global_max_pool3d, global_avg_pool3d = (_global_pool_op(3, GlobalPool3DAttrs, mean) for mean in (False, True))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (
    _adaptive_pool_op(n, is_average=False) for n in (1, 2, 3)
)
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (
    _adaptive_pool_op(n, is_average=True) for n in (1, 2, 3)
)
