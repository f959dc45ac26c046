# SPDX-License-Identifier: Apache-2.0
"""Convolutions of quantized tensors: qnn.conv1d to qnn.conv3d, and qnn.conv1d_transpose to
qnn.conv3d_transpose.

sum((data - input_zero_point) * (kernel - kernel_zero_point)) over each window, padded with the zero
point

    conv2d(x, w, 128, 0, 0.05, 0.01, padding=(1, 1))           # int32, with scale 0.05 * 0.01
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir import (
    Attrs,
    DType,
    OpPattern,
    TensorType,
    Type,
    Types,
    attrs_class_from_fields,
    attrs_class_with_defaults,
    declare_arguments,
    frozen,
)
from aotc.relay.expr import Expr, splat_constant, tensor_type_of
from aotc.relay.op import concat_split, conv, conv_transpose, pad, reduce, window_attributes
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact_sample, random_array, require_tensor_type
from aotc.relay.op.qnn import dense_batch_matmul as sums
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.qnn.dense_batch_matmul import QUANT_PARAMETER_NAMES, sample_zero_points_and_scales

_PARAMETER_ORDER_TEMPLATE: Final = """data kernel input_zero_point kernel_zero_point input_scale kernel_scale
kernel_size channels strides padding dilation groups data_layout kernel_layout out_layout {} out_dtype"""


@frozen(eq=False)
class _QuantizedConvKind:
    """A quantized convolution, defined by the integer convolution `plain` over `n` spatial axes and
    its kernel layout.
    """

    n: int
    plain: OpDef
    letters: str

    @property
    def is_transposed(self) -> bool:
        return self.letters[0] == "I"

    def result_output_channel_axis(self, attrs: Any) -> int:
        """Return the index of the output-channel axis in the result."""
        return window_attributes.data_and_result_axis_positions(self.n, attrs.data_layout, attrs.out_layout)[1][1]

    def kernel_output_channel_axis_or_none(self, attrs: Any) -> int | None:
        """Return the index of the output-channel axis in the kernel; None for a grouped transposed
        convolution.

        The kernel of a grouped transposed convolution has the output channels of one group only.
        """
        where = window_attributes.canonical_axis_positions(attrs.kernel_layout, self.letters)
        grouped = self.is_transposed and attrs.groups > 1
        return None if grouped else where[self.letters.index("O")]

    def integer_conv_attrs(self, attrs: Attrs) -> Any:
        """Return the attributes converted to the attribute record of the integer convolution."""
        return self.plain.attrs(**dict(attrs.items()))

    def infer_quantized_conv_type(self, attrs: Any, types: Types) -> Type:
        data, kernel, xz, wz, x_scale, w_scale = types
        x, w = q.require_integer_type_up_to_bits(data), q.require_integer_type_up_to_bits(kernel, "kernel")
        q.check_quant_param_types((xz, x_scale), x, None, *QUANT_PARAMETER_NAMES[::2])
        result = require_tensor_type(self.plain.infer(self.integer_conv_attrs(attrs), (x, w)))
        outer = TensorType((result.shape[self.result_output_channel_axis(attrs)],))
        q.check_quant_param_types((w_scale,), outer, 0, "kernel_scale")
        q.check_quant_param_types((wz,), w, self.kernel_output_channel_axis_or_none(attrs), "kernel_zero_point")
        return result

    def quantized_conv_reference(self, attrs: Any, *args: Array) -> Array:
        x, w, xz, wz = args[:4]
        kernel = _subtract_zero_point_widened(w, wz, self.kernel_output_channel_axis_or_none(attrs))
        result = self.plain.reference(self.integer_conv_attrs(attrs), _subtract_zero_point_widened(x, xz), kernel)
        return np.asarray(result)

    def expand_quantized_conv(self, attrs: Any, *args: Expr) -> Expr:
        data, kernel, xz, wz = args[:4]
        sums.check_quant_params_if_constant(*args)
        axis = self.kernel_output_channel_axis_or_none(attrs)
        kernel, wz = sums.fold_zero_point_into_constant_weight(kernel, wz, axis)
        if not self.is_transposed:
            return _ZeroPointExpansion(
                self, self.integer_conv_attrs(attrs), data, kernel, (xz, wz)
            ).expand_to_integer_conv()
        if q.is_per_channel_quant_param(wz):
            centered = q.subtract_zero_point(kernel, wz, axis)
            kernel, wz = q.cast_unless_dtype_equal(centered, "int16"), q.constant_of_dtype(0, "int32")
        convolve = partial(_quantized_conv_of_phase, QUANTIZED_CONVS_BY_RANK[self.n], (xz, wz))
        return conv_transpose.expand_conv_transpose(self.n, attrs, data, kernel, convolve)


def _subtract_zero_point_widened(x: Array, zero: Array, axis: int | None = None) -> Array:
    """Return an array minus its zero points, as int16 for 8-bit inputs, so that float64 sums of
    products are exact.
    """
    wide = np.int16 if DType.from_numpy(x).bits <= 8 else np.int32
    return q.subtract_zero_point_from_array(x, zero, axis, wide)


def _quantized_conv_of_phase(
    op: OpDef, data_and_weight_zero_points: sums.DataAndWeightZeroPoints, x: Expr, w: Expr, **attributes: Any
) -> Expr:
    """Build a quantized convolution with the zero points `data_and_weight_zero_points`, as a part of a transposed
    convolution.
    """
    unit_scale = q.constant_of_dtype(1, "float32")
    return op(x, q.fold_to_constant_if_known(w), *data_and_weight_zero_points, unit_scale, unit_scale, **attributes)


@frozen(eq=False)
class _ZeroPointExpansion:
    """Expansion of a qnn convolution into a convolution of integers and correction terms for the
    zero points.
    """

    kind: _QuantizedConvKind
    a: Any
    data: Expr
    kernel: Expr
    zeros: sums.DataAndWeightZeroPoints

    def expand_to_integer_conv(self) -> Expr:
        n, a = self.kind.n, self.a
        axis = self.kind.kernel_output_channel_axis_or_none(a)
        place, rank = self.kind.result_output_channel_axis(a), n + 2
        summed = [k for k in range(rank) if k != axis]
        if a.out_dtype == "int32":
            sums.warn_if_int32_sum_may_overflow(f"qnn.conv{n}d", self.data, self.kernel, self.zeros, axis, summed)
        data, a = self.pad_with_zero_point()
        total = q.call_or_fold_constants(self.kind.plain, data, self.kernel, **dict(a.items()))

        def weight_sums_per_output_channel() -> Expr:
            return q.call_or_fold_constants(reduce.sum, q.cast_unless_dtype_equal(self.kernel, "int32"), axis=summed)

        def data_sums_per_window() -> Expr:
            return self.sum_data_in_windows(data, a, q.require_static_axis_extent(total, place))

        shape = tensor_type_of(self.kernel).static_shape
        count = prod(shape[k] for k in summed)
        return sums.subtract_zero_point_terms(
            total,
            self.zeros,
            count,
            weight_sums_per_output_channel,
            data_sums_per_window,
            lambda v: q.broadcast_quant_param_along(v, place, rank),
        )

    def sum_data_in_windows(self, data: Expr, attrs: Any, output_channels: int) -> Expr:
        """Return the sum of the data in each window, for each output channel or broadcast over the
        channels.
        """
        kind, shape = self.kind, tensor_type_of(self.kernel).static_shape
        _, inner, *taps = window_attributes.layout_to_canonical_order(
            shape, window_attributes.canonical_axis_positions(attrs.kernel_layout, kind.letters)
        )
        ones = splat_constant(1, (attrs.groups, inner, *taps), "int8")
        sum_attrs = attrs.replace(channels=attrs.groups, kernel_layout=kind.letters, kernel_size=tuple(taps))
        window_sums = q.call_or_fold_constants(kind.plain, data, ones, **dict(sum_attrs.items()))
        if attrs.groups in (1, output_channels):
            return window_sums
        return q.call_or_fold_constants(
            concat_split.repeat,
            window_sums,
            repeats=output_channels // attrs.groups,
            axis=kind.result_output_channel_axis(attrs),
        )

    def pad_with_zero_point(self) -> tuple[Expr, Any]:
        """Return data and attributes such that the padding value is the zero point.

        A constant zero point becomes the attribute pad_value; with a zero point known only at run
        time, an explicit pad is inserted.
        """
        n, a, data, zero = self.kind.n, self.a, self.data, self.zeros[0]
        pads, value = window_attributes.pad_pairs_of_axes(a.padding, n), q.constant_value_or_none(zero)
        if not any(map(any, pads)):
            return data, a
        if value is not None:
            return data, a.replace(pad_value=int(value.reshape(())))
        source = window_attributes.canonical_axis_positions(a.data_layout, window_attributes.DATA_LAYOUT_BY_RANK[n])
        widths = window_attributes.canonical_to_layout_order(((0, 0), (0, 0), *pads), source)
        filling = q.broadcast_quant_param_along(zero, None, 0, q.tensor_dtype_of(data))
        written = q.call_or_fold_constants(pad.pad, data, pad_value=filling, pad_width=widths)
        return written, a.replace(padding=(0,) * (2 * n))


# --- samples and the table


_ZERO_POINT_SAMPLES: Final = (  # dtypes of data and kernel, zero points of data and kernel, True if constant
    ("uint8 int8", 117, 0, True),
    ("int8 int8", -5, 3, True),
    ("int8 int8", 0, 0, False),
    ("uint8 uint8", 255, 128, False),
    ("uint8 uint8", 0, 7, True),
    ("int8 uint8", 3, 255, True),
)


def _quantized_conv_test_samples(attrs_class: type[Attrs], test_cases: Any) -> Samples:
    """Yield samples: the first shape with every combination in _ZERO_POINT_SAMPLES, each other
    shape with one combination.
    """
    plain = [row for row in test_cases if len(row) == 2 and "4o" not in str(row)]
    for k, ((shape, kernel), given) in enumerate(plain):
        for dtypes, xz, wz, known in (
            _ZERO_POINT_SAMPLES if k == 0 else [_ZERO_POINT_SAMPLES[k % len(_ZERO_POINT_SAMPLES)]]
        ):
            data, weight = dtypes.split()
            x, w = random_array(shape, data), random_array(kernel, weight, 1)
            w = w * w.dtype.type(3)  # integers of all signs and sizes
            make = q.exact_sample_with_constants if known else exact_sample
            yield make(attrs_class(**given), x, w, *sample_zero_points_and_scales(xz, wz))


def _quantized_conv_op(
    spatial_rank: int, integer_conv: OpDef, kernel_layout: str, test_cases: Any, extra_parameters: str = ""
) -> OpDef:
    attr_fields = [f for f in fields(integer_conv.attrs) if f.name != "pad_value"]
    name = f"Quantized{integer_conv.attrs.__name__}"
    attributes: Any = attrs_class_with_defaults(
        attrs_class_from_fields("ConvAttrs", attr_fields, __name__), name, out_dtype="int32"
    )
    attributes.__doc__ = f"""{integer_conv.doc.splitlines()[0]}

    Sums of (data - input_zero_point) * (kernel - kernel_zero_point), as int32; padding stands for 0.
    """
    kind = _QuantizedConvKind(spatial_rank, integer_conv, kernel_layout)
    return OpDef(
        name=integer_conv.name.replace("nn.", "qnn."),
        attrs=attributes,
        args=(*declare_arguments("data", "kernel"), *q.quant_param_arguments(*QUANT_PARAMETER_NAMES)),
        order=_PARAMETER_ORDER_TEMPLATE.format(extra_parameters),
        infer=kind.infer_quantized_conv_type,
        reference=kind.quantized_conv_reference,
        axes=integer_conv.axes,
        expand=kind.expand_quantized_conv,
        samples=partial(_quantized_conv_test_samples, attributes, test_cases),
        **q.shared_fields_of_quantized_op_def(OpPattern.OUT_ELEMWISE_FUSABLE, sums_products=True),
    )


_INTEGER_CONVS_BY_RANK = enumerate((conv.conv1d, conv.conv2d, conv.conv3d), 1)
conv1d, conv2d, conv3d = (
    _quantized_conv_op(n, plain, window_attributes.KERNEL_LAYOUT_BY_RANK[n], conv.CONV_TEST_CASES_BY_RANK[n])
    for n, plain in _INTEGER_CONVS_BY_RANK
)
QUANTIZED_CONVS_BY_RANK: Final = {1: conv1d, 2: conv2d, 3: conv3d}
_INTEGER_TRANSPOSED_CONVS = (
    conv_transpose.conv1d_transpose,
    conv_transpose.conv2d_transpose,
    conv_transpose.conv3d_transpose,
)
conv1d_transpose, conv2d_transpose, conv3d_transpose = (
    _quantized_conv_op(
        n,
        plain,
        window_attributes.TRANSPOSED_KERNEL_LAYOUT_BY_RANK[n],
        conv_transpose.CONV_TRANSPOSE_TEST_CASES_BY_RANK[n],
        "output_padding",
    )
    for n, plain in enumerate(_INTEGER_TRANSPOSED_CONVS, 1)
)
