# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions: nn.conv1d_transpose, nn.conv2d_transpose, nn.conv3d_transpose.

Each input element adds its multiple of the kernel to the result, at positions `strides` apart. The
result is decomposed into phases, one for each position modulo the stride. A phase is an ordinary
convolution of the data by every stride-th kernel element. On CPUs the operators expand to the
convolutions of all phases, interleaved. On GPUs one program computes all phases and finds the phase
of a result by a remainder.

    conv2d_transpose(x, w, strides=(2, 2), channels=8, kernel_size=(2, 2))   # w: (I, O/groups, KH, KW)

A result element is the sum of existing products only: it is 0 if no input element reaches it, even
with infinities or NaN elsewhere in data and weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import Any, Final

import numpy as np

from aotc.ir import (
    AotcError,
    Attrs,
    Dim,
    DType,
    Shape,
    TensorType,
    Type,
    Types,
    frozen,
    is_static,
    maximum_of_dims,
    require,
    require_static_shape,
)
from aotc.ir.compilation_work_and_memory_limits import current_budget
from aotc.relay.expr import Expr, splat_constant, tensor_type_of
from aotc.relay.op import concat_split, conv, window_attributes
from aotc.relay.op import shape as shapes
from aotc.relay.op import slice as slices
from aotc.relay.op.contraction_accumulator_types import (
    accumulator_dtype,
    cast_array,
    contract_to_dtype,
    contraction_result_dtype,
    widen_narrow_float_array,
)
from aotc.relay.op.operator_definition import (
    Array,
    Scalar,
    require_tensor_of_rank,
    require_tensor_type,
    static_shape_of,
    tensor_types_of_values,
)
from aotc.relay.op.space_to_depth_and_batch import Rearrangement
from aotc.relay.op.window_attributes import (
    TRANSPOSED_KERNEL_LAYOUT_BY_RANK,
    canonical_to_layout_order,
    layout_to_canonical_order,
    per_axis_attribute_field,
    repeat_for_each_axis,
    strides_dilations_and_pads,
)
from aotc.tir import Tensor


class ConvTransposeAttrs(Attrs):
    """{n}-D transposed convolution of data (N, C, {axes}) by weight (C, O/groups, {taps}).

    The result is 0 where no input element contributes; `output_padding` extends it at its end.
    """

    channels: int | None = None
    kernel_size: tuple[int, ...] | None = None
    strides: tuple[int, ...] = (1,)
    output_padding: tuple[int, ...] = (0,)
    padding: tuple[int, ...] = (0,)
    dilation: tuple[int, ...] = (1,)
    groups: int = 1
    data_layout: str = ""
    kernel_layout: str = ""
    out_layout: str = ""
    out_dtype: str = ""


def _conv_transpose_attrs_class(spatial_rank: int) -> type[ConvTransposeAttrs]:
    extra_fields: Any = {
        "output_padding": per_axis_attribute_field(spatial_rank, 0),
        "kernel_layout": TRANSPOSED_KERNEL_LAYOUT_BY_RANK[spatial_rank],
    }
    return window_attributes.attrs_class_for_rank(
        spatial_rank, ConvTransposeAttrs, f"Conv{spatial_rank}DTransposeAttrs", **extra_fields
    )


Conv1DTransposeAttrs, Conv2DTransposeAttrs, Conv3DTransposeAttrs = map(_conv_transpose_attrs_class, (1, 2, 3))


def _axis_positions_of_tensors(
    spatial_rank: int, a: ConvTransposeAttrs
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the positions of the canonical axes in data, kernel and result."""
    source, result = window_attributes.data_and_result_axis_positions(spatial_rank, a.data_layout, a.out_layout)
    return (
        source,
        window_attributes.canonical_axis_positions(a.kernel_layout, TRANSPOSED_KERNEL_LAYOUT_BY_RANK[spatial_rank]),
        result,
    )


def _conv_transpose_output_extent(
    extent: Dim, kernel: int, stride: int, dilation: int, pad: tuple[int, int], output_padding: int
) -> Dim:
    fixed = dilation * (kernel - 1) + 1 - sum(pad) + output_padding - stride
    return extent * stride + fixed


def _infer_conv_transpose_type(spatial_rank: int, a: ConvTransposeAttrs, types: Types) -> Type:
    data, weight = (
        require_tensor_of_rank("conv.rank", ty, spatial_rank + 2, label)
        for ty, label in zip(types, ("data", "weight"), strict=True)
    )
    source, form, result = _axis_positions_of_tensors(spatial_rank, a)
    batch, channels, *space = layout_to_canonical_order(data.shape, source)
    inner, outer, *kernel = layout_to_canonical_order(weight.shape, form)
    sizes = conv.checked_kernel_spatial_sizes(spatial_rank, a, weight, kernel)
    total = outer * a.groups if isinstance(outer, int) else a.channels or outer
    conv.check_conv_channel_counts(a, channels, inner, total, transposed=True)
    strides, dilation, pads = strides_dilations_and_pads(spatial_rank, a)
    output_padding = repeat_for_each_axis(a.output_padding, spatial_rank)
    text = f"strides and dilation must be positive, got {strides} and {dilation}"
    require("conv.steps", min(*strides, *dilation) > 0, text)
    require("conv.steps", min(output_padding) >= 0, f"output_padding must not be negative, got {output_padding}")
    extents = [
        _conv_transpose_output_extent(*w)
        for w in zip(space, sizes, strides, dilation, pads, output_padding, strict=True)
    ]
    fits = all(not isinstance(e, int) or e > 0 for e in extents)
    require("conv.empty", fits, lambda: f"the result would be empty: {extents}")
    return TensorType(
        canonical_to_layout_order((batch, total, *extents), result), contraction_result_dtype(data, weight, a.out_dtype)
    )


def _infer_transposed_kernel_shape(
    spatial_rank: int, a: ConvTransposeAttrs, data: TensorType, kernel_sizes: Sequence[int]
) -> tuple[Dim, ...]:
    source, form, _ = _axis_positions_of_tensors(spatial_rank, a)
    return canonical_to_layout_order(
        (layout_to_canonical_order(data.shape, source)[1], (a.channels or 0) // a.groups, *kernel_sizes), form
    )


def _conv_transpose_reference(spatial_rank: int, a: ConvTransposeAttrs, data: Array, weight: Array) -> Array:
    """Compute by a loop over taps, which add to results that are a stride apart."""
    source, form, result = _axis_positions_of_tensors(spatial_rank, a)
    x = window_attributes.transpose_to_canonical(widen_narrow_float_array(data), source)
    w = window_attributes.transpose_to_canonical(widen_narrow_float_array(weight), form)
    result_type = require_tensor_type(
        _infer_conv_transpose_type(spatial_rank, a, tensor_types_of_values((data, weight)))
    )
    batch, channels, *extents = layout_to_canonical_order(result_type.static_shape, result)
    kernels = w.reshape(a.groups, w.shape[0] // a.groups, *w.shape[1:]).swapaxes(1, 2)
    images = x.reshape(batch, a.groups, w.shape[0] // a.groups, *x.shape[2:])
    acc = accumulator_dtype(DType.from_numpy(x), result_type.dtype)
    total = conv.convolve_tap_by_tap(spatial_rank, a, images, kernels, extents, acc, transposed=True)
    return window_attributes.transpose_to_layout(
        cast_array(total.reshape(batch, channels, *extents), result_type.dtype), result
    )


# --- one program


def _data_index_and_tap_of_product(
    output_index: Scalar, product_index: Scalar, taps: int, stride: int, dilation: int
) -> tuple[Scalar, Scalar]:
    """Return the data index and the kernel tap of product `product_index` of the uncropped result
    `output_index`, along one axis.

    The indices are out of bounds if there is no such product. They are derived as in
    `_phase_taps_along_axis`, for a symbolic `output_index`: `output_index` minus the offset of the
    tap is a multiple of the stride.
    """
    common = gcd(stride, dilation)
    step, phase = stride // common, output_index % stride
    first = phase // common * pow(dilation // common, -1, step) % step if step > 1 else phase * 0
    data_offset = (phase - first * dilation) // stride - product_index * (dilation // common)
    return output_index // stride + data_offset, first + product_index * step + phase % common * taps


def _compute_conv_transpose(spatial_rank: int, a: ConvTransposeAttrs, data: Tensor, weight: Tensor) -> Tensor:
    source, form, result = _axis_positions_of_tensors(spatial_rank, a)
    result_shape = require_tensor_type(
        _infer_conv_transpose_type(spatial_rank, a, tensor_types_of_values((data, weight)))
    ).static_shape
    inner, outer, *kernel = layout_to_canonical_order(weight.shape, form)
    strides, dilation, pads = strides_dilations_and_pads(spatial_rank, a)
    inputs = inner // a.groups
    counts = [-(-k * gcd(s, d) // s) for k, s, d in zip(kernel, strides, dilation, strict=True)]
    # sum over channels innermost if they are innermost in the data
    order = (spatial_rank, *range(spatial_rank)) if source[1] == spatial_rank + 1 else tuple(range(spatial_rank + 1))

    def data_and_kernel_indices(loop_variables: Sequence[Scalar]) -> tuple[Sequence[Scalar], Sequence[Scalar]]:
        """Return the index of the data element and the index of the kernel element of one product."""
        (image, channel, *at), (ic, *j) = (
            layout_to_canonical_order(loop_variables[: spatial_rank + 2], result),
            layout_to_canonical_order(loop_variables[spatial_rank + 2 :], order),
        )
        axes = zip(at, j, kernel, strides, dilation, pads, strict=True)
        where, taps = zip(
            *(_data_index_and_tap_of_product(o + p[0], k, t, s, d) for o, k, t, s, d, p in axes), strict=True
        )
        ic = ic + channel // outer * inputs if a.groups > 1 else ic
        return canonical_to_layout_order((image, ic, *where), source), canonical_to_layout_order(
            (ic, channel % outer, *taps), form
        )

    return contract_to_dtype(
        result_shape,
        canonical_to_layout_order((inputs, *counts), order),
        data,
        lambda *v: data_and_kernel_indices(v)[0],
        weight,
        lambda *v: data_and_kernel_indices(v)[1],
        out_dtype=a.out_dtype,
        name=f"conv{spatial_rank}d_transpose",
    )


# --- expansion


@frozen
class _Phase:
    """One axis of one phase of a transposed convolution.

    The uncropped output `b * stride + phase` is the sum over taps j = 0, 1, ... `count - 1` of the
    kernel element `first + step * j` times the data element `b + shift - j * dilation`.
    """

    first: int
    step: int
    count: int
    dilation: int
    shift: int

    def conv_padding_for_outputs(self, extent: Dim, output_count: Dim) -> tuple[int, int]:
        """Return the padding (before, after) with which a convolution of the data has
        `output_count` outputs.

        Raise TypeError if it is known at run time only.
        """
        (after,) = require_static_shape((output_count - extent + self.shift,))
        return (self.count - 1) * self.dilation - self.shift, after


def _phase_taps_along_axis(phase: int, kernel: int, stride: int, dilation: int) -> _Phase | None:
    """Return the phase with the taps k for which k * dilation is congruent to `phase` modulo the
    stride.

    Return None if there are no such taps.
    """
    common = gcd(stride, dilation)
    first = next((k for k in range(min(kernel, stride)) if k * dilation % stride == phase), None)
    if first is None:
        return None
    step = stride // common
    count = (kernel - first + step - 1) // step
    return _Phase(first, step, count, dilation // common, (phase - first * dilation) // stride)


_CONV_OPS_BY_RANK = {1: conv.conv1d, 2: conv.conv2d, 3: conv.conv3d}


@frozen
class _PhaseDecomposition:
    """A transposed convolution with canonical axis order, to be decomposed into phases."""

    n: int
    a: ConvTransposeAttrs
    data: Expr  # (N, C, ...)
    weight: Expr  # (I, O/groups, ...)
    channels: int
    space: Shape
    out: Shape
    convolution: Callable[..., Expr]

    def phases_by_axis(self) -> list[list[_Phase | None]]:
        """Return the phases of each axis; None for a phase without taps."""
        kernel = static_shape_of(self.weight)[2:]
        strides, dilation, _ = strides_dilations_and_pads(self.n, self.a)
        current_budget().require_within_compile_time_limit(
            "compile.max_unroll", prod(strides), "a transposed convolution"
        )
        return [
            [_phase_taps_along_axis(r, k, s, d) for r in range(s)]
            for k, s, d in zip(kernel, strides, dilation, strict=True)
        ]

    def outputs_per_phase_along_each_axis(self, phases_by_axis: list[list[_Phase | None]]) -> Shape:
        """Return the number of outputs that each phase computes: all required ones, and all that
        the data reaches.
        """
        counts = []
        for k, (phases, pad) in enumerate(
            zip(phases_by_axis, strides_dilations_and_pads(self.n, self.a)[2], strict=True)
        ):
            required_count = (self.out[k] + (pad[0] + len(phases) - 1)) // len(phases)
            reached = [self.space[k] - p.shift for p in phases if p is not None]
            counts.append(maximum_of_dims((required_count, *reached)))
        return tuple(counts)

    def phase_kernel(self, phases: Sequence[_Phase]) -> Expr:
        """Return the kernel of one phase as (O, I/groups, taps...)."""
        spatial = tuple(range(2, self.n + 2))
        weight = self.weight
        shape = static_shape_of(weight)
        if any(p.first or p.step > 1 for p in phases):
            begin, step = [p.first for p in phases], [p.step for p in phases]
            weight = slices.strided_slice(weight, begin, list(shape[2:]), step, axes=list(spatial))
        for axis, p in zip(spatial, phases, strict=True):
            if p.count > 1:
                weight = slices.reverse(weight, axis)
        taps, groups = tuple(p.count for p in phases), self.a.groups
        inputs, order = shape[0] // groups, (0, 2, 1, *range(3, self.n + 3))
        return Rearrangement(
            (groups, inputs, shape[1], *taps), order, (groups * shape[1], inputs, *taps)
        ).rearrange_expr(weight)

    def convolve_phase(
        self, kernel: Expr, phases: Sequence[_Phase], channels: int, output_counts: Sequence[Dim]
    ) -> Expr:
        pads = [p.conv_padding_for_outputs(e, b) for p, e, b in zip(phases, self.space, output_counts, strict=True)]
        return self.convolution(
            self.data,
            kernel,
            padding=(*(b for b, _ in pads), *(a for _, a in pads)),
            dilation=tuple(p.dilation for p in phases),
            groups=self.a.groups,
            channels=channels,
            kernel_size=tuple(p.count for p in phases),
            out_dtype=self.a.out_dtype,
        )

    def convolve_all_phases(self) -> Expr:
        """Return the results of all phases as (N, O, strides..., blocks...)."""
        axes = self.phases_by_axis()
        blocks = self.outputs_per_phase_along_each_axis(axes)
        combinations = list(itertools.product(*axes))
        batch = tensor_type_of(self.data).shape[0]
        full = [tuple(p for p in c if p is not None) for c in combinations]
        alike = {tuple((p.count, p.dilation, p.shift) for p in c) for c in full}
        if len(alike) == 1 and all(len(c) == self.n for c in full):
            kernels = concat_split.stack([self.phase_kernel(c) for c in full], axis=1)
            total = self.channels * len(full)
            shape = static_shape_of(kernels)
            parts = self.convolve_phase(shapes.reshape(kernels, (total, *shape[2:])), full[0], total, blocks)
        else:
            dtype = self.a.out_dtype or tensor_type_of(self.data).dtype
            none_shape = (batch, self.channels, *blocks)
            if not is_static(none_shape) and any(len(c) < self.n for c in full):
                raise AotcError("dynamic-shape", "strides greater than the kernel need extents that are known")
            none = splat_constant(0, require_static_shape(none_shape), dtype) if is_static(none_shape) else self.data
            phase_results = [
                self.convolve_phase(self.phase_kernel(c), c, self.channels, blocks) if len(c) == self.n else none
                for c in full
            ]
            parts = concat_split.stack(phase_results, axis=2)
        return shapes.reshape(parts, (batch, self.channels, *(len(p) for p in axes), *blocks))

    def interleave_phases_and_crop(self) -> Expr:
        """Return the result in canonical axis order: phases interleaved, padding cropped."""
        phases = self.convolve_all_phases()
        n, shape = self.n, tensor_type_of(phases).shape
        order = [k for axis in range(n) for k in (2 + n + axis, 2 + axis)]
        mixed = shapes.transpose(phases, (0, 1, *order)) if shape[2 : 2 + n] != (1,) * n else phases
        whole = [s * b for s, b in zip(shape[2 : 2 + n], shape[2 + n :], strict=True)]
        result = shapes.reshape(mixed, (*shape[:2], *whole))
        begin = [p[0] for p in strides_dilations_and_pads(n, self.a)[2]]
        end = [b + o for b, o in zip(begin, self.out, strict=True)]
        if any(begin) or end != whole:
            result = slices.strided_slice(result, begin, end, [1] * n, axes=list(range(2, n + 2)))
        return result


def expand_conv_transpose(
    spatial_rank: int,
    a: ConvTransposeAttrs,
    data: Expr,
    weight: Expr,
    build_convolution: Callable[..., Expr] | None = None,
) -> Expr:
    """Return a transposed convolution as an expression of convolutions, one per phase, interleaved.

    build_convolution    builds a convolution from data, kernel and attributes; default: nn.conv1d to
                         nn.conv3d
    """
    source, form, result = _axis_positions_of_tensors(spatial_rank, a)
    space = layout_to_canonical_order(tensor_type_of(data).shape, source)[2:]
    result_type = require_tensor_type(
        _infer_conv_transpose_type(spatial_rank, a, [tensor_type_of(data), tensor_type_of(weight)])
    )
    if 0 in (*tensor_type_of(data).shape, *static_shape_of(weight)):  # all sums are empty
        return splat_constant(0, result_type.static_shape, result_type.dtype)
    out = layout_to_canonical_order(result_type.shape, result)
    weave = _PhaseDecomposition(
        spatial_rank,
        a,
        _transpose_unless_identity(data, source),
        _transpose_unless_identity(weight, form),
        require_static_shape(out[1:2])[0],
        space,
        out[2:],
        build_convolution or _CONV_OPS_BY_RANK[spatial_rank],
    )
    return _transpose_unless_identity(weave.interleave_phases_and_crop(), np.argsort(result).tolist())


def _transpose_unless_identity(x: Expr, order: Sequence[int]) -> Expr:
    return x if list(order) == list(range(len(order))) else shapes.transpose(x, order)


# --- samples and the table


CONV_TRANSPOSE_TEST_CASES_BY_RANK: Final[Any] = {  # shapes of data and weight, attributes; their data type
    1: (
        (((2, 3, 5), (3, 4, 3)), {"strides": (2,), "padding": (1, 0)}),
        (((1, 4, 5), (4, 1, 4)), {"strides": (2,), "groups": 4, "output_padding": (1,)}),
        (((1, 2, 4), (2, 3, 3)), {"strides": (4,), "dilation": (2,)}),
    ),
    2: (
        (((1, 3, 4, 5), (3, 2, 2, 2)), {"strides": (2, 2), "channels": 2, "kernel_size": (2, 2)}),
        (((2, 3, 4, 5), (3, 2, 3, 3)), {"strides": (2, 2), "padding": (1, 1), "output_padding": (1, 0)}),
        (((1, 4, 4, 3), (4, 2, 4, 4)), {"strides": (2, 2), "padding": (1, 1), "groups": 2}),
        (((1, 2, 3, 4), (2, 3, 3, 2)), {"padding": (1, 0), "dilation": (2, 3)}),
        (((1, 2, 3, 4), (2, 3, 3, 2)), {"strides": (2, 3), "dilation": (2, 1), "padding": (0, 1, 2, 0)}),
        (((1, 2, 3, 3), (2, 3, 1, 1)), {"strides": (2, 2)}),
        (((1, 4, 3, 2), (2, 2, 2, 3)), {"strides": (2, 1), "data_layout": "NHWC", "kernel_layout": "HWIO"}),
        (((1, 2, 3, 3), (2, 2, 2, 2)), {"strides": (2, 2), "out_dtype": "int32"}, "int8"),
    ),
    3: (
        (((1, 2, 2, 3, 3), (2, 2, 2, 2, 3)), {"strides": (2, 2, 1)}),
        (((1, 2, 2, 3, 2), (2, 1, 3, 2, 2)), {"strides": (2, 1, 2), "groups": 2}),
    ),
}

_PARAMETER_ORDER = (
    "data weight strides padding dilation channels kernel_size groups data_layout kernel_layout out_layout "
    "output_padding out_dtype"
)


conv1d_transpose, conv2d_transpose, conv3d_transpose = conv.conv_operators_of_ranks_1_to_3(
    "nn.conv{n}d_transpose",
    (Conv1DTransposeAttrs, Conv2DTransposeAttrs, Conv3DTransposeAttrs),
    _infer_transposed_kernel_shape,
    CONV_TRANSPOSE_TEST_CASES_BY_RANK,
    parameter_order=_PARAMETER_ORDER,
    infer=_infer_conv_transpose_type,
    reference=_conv_transpose_reference,
    compute=_compute_conv_transpose,
    expand=expand_conv_transpose,
)
