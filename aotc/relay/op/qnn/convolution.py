# SPDX-License-Identifier: Apache-2.0
"""Convolutions of quantized tensors: qnn.conv1d to qnn.conv3d, and qnn.conv1d_transpose to
qnn.conv3d_transpose.

sum((data - input_zero_point) * (kernel - kernel_zero_point)) over each window, padded with the zero point

    conv2d(x, w, 128, 0, 0.05, 0.01, padding=(1, 1))           # int32, with scale 0.05 * 0.01
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, DType, OpPattern, TensorType, Type, Types, args, frozen, record, variant
from aotc.relay.expr import Expr, splat, tensor_type_of
from aotc.relay.op import concat_split, conv, conv_transpose, pad, reduce, window_attributes
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact, random_array, tensor
from aotc.relay.op.qnn import dense_batch_matmul as sums
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.qnn.dense_batch_matmul import NAMES, zero_points

_ORDER: Final = """data kernel input_zero_point kernel_zero_point input_scale kernel_scale kernel_size channels strides
padding dilation groups data_layout kernel_layout out_layout {} out_dtype"""


@frozen(eq=False)
class _Kind:
    """A quantized convolution, defined by the integer convolution `plain` over `n` spatial axes and
    its kernel layout.
    """

    n: int
    plain: OpDef
    letters: str

    @property
    def transposed(self) -> bool:
        return self.letters[0] == "I"

    def place(self, a: Any) -> int:
        """Return the index of the output-channel axis in the result."""
        return window_attributes.layouts(self.n, a.data_layout, a.out_layout)[1][1]

    def channels(self, a: Any) -> int | None:
        """Return the index of the output-channel axis in the kernel; None for a grouped transposed
        convolution.

        The kernel of a grouped transposed convolution has the output channels of one group only.
        """
        where = window_attributes.positions(a.kernel_layout, self.letters)
        grouped = self.transposed and a.groups > 1
        return None if grouped else where[self.letters.index("O")]

    def plainly(self, a: Attrs) -> Any:
        """Return the attributes converted to the attribute record of the integer convolution."""
        return self.plain.attrs(**dict(a.items()))

    def infer(self, a: Any, types: Types) -> Type:
        data, kernel, xz, wz, x_scale, w_scale = types
        x, w = q.quantized_type(data), q.quantized_type(kernel, "kernel")
        q.check_pairs((xz, x_scale), x, None, *NAMES[::2])
        result = tensor(self.plain.infer(self.plainly(a), (x, w)))
        outer = TensorType((result.shape[self.place(a)],))
        q.check_pairs((w_scale,), outer, 0, "kernel_scale")
        q.check_pairs((wz,), w, self.channels(a), "kernel_zero_point")
        return result

    def reference(self, a: Any, *args: Array) -> Array:
        x, w, xz, wz = args[:4]
        kernel = _wide(w, wz, self.channels(a))
        result = self.plain.reference(self.plainly(a), _wide(x, xz), kernel)
        return np.asarray(result)

    def expand(self, a: Any, *args: Expr) -> Expr:
        data, kernel, xz, wz = args[:4]
        sums.check_pair(*args)
        axis = self.channels(a)
        kernel, wz = sums.without_zero(kernel, wz, axis)
        if not self.transposed:
            return _Sums(self, self.plainly(a), data, kernel, (xz, wz)).expr()
        if q.is_vector(wz):
            centered = q.centered(kernel, wz, axis)
            kernel, wz = q.converted(centered, "int16"), q.constant(0, "int32")
        convolve = partial(_convolved, CONVOLUTIONS[self.n], (xz, wz))
        return conv_transpose.expand(self.n, a, data, kernel, convolve)


def _wide(x: Array, zero: Array, axis: int | None = None) -> Array:
    """Return an array minus its zero points, as int16 for 8-bit inputs, so that float64 sums of
    products are exact.
    """
    wide = np.int16 if DType.of(x).bits <= 8 else np.int32
    return q.offsets(x, zero, axis, wide)


def _convolved(op: OpDef, zeros: sums.Zeros, x: Expr, w: Expr, **how: Any) -> Expr:
    """Build a quantized convolution with the zero points `zeros`, as a part of a transposed
    convolution.
    """
    one = q.constant(1, "float32")
    return op(x, q.settled(w), *zeros, one, one, **how)


@frozen(eq=False)
class _Sums:
    """Expansion of a qnn convolution into a convolution of integers and correction terms for the
    zero points.
    """

    kind: _Kind
    a: Any
    data: Expr
    kernel: Expr
    zeros: sums.Zeros

    def expr(self) -> Expr:
        n, a = self.kind.n, self.a
        axis = self.kind.channels(a)
        place, rank = self.kind.place(a), n + 2
        summed = [k for k in range(rank) if k != axis]
        if a.out_dtype == "int32":
            sums.check_bounds(f"qnn.conv{n}d", self.data, self.kernel, self.zeros, axis, summed)
        data, a = self.padded()
        total = q.made(self.kind.plain, data, self.kernel, **dict(a.items()))

        def weights() -> Expr:
            return q.made(reduce.sum, q.converted(self.kernel, "int32"), axis=summed)

        def windows() -> Expr:
            return self.windows(data, a, q.size_of(total, place))

        shape = tensor_type_of(self.kernel).static_shape
        count = prod(shape[k] for k in summed)
        return sums.taken(total, self.zeros, count, weights, windows, lambda v: q.laid(v, place, rank))

    def windows(self, data: Expr, a: Any, outer: int) -> Expr:
        """Return the sum of the data in each window, for each output channel or broadcast over the
        channels.
        """
        kind, shape = self.kind, tensor_type_of(self.kernel).static_shape
        _, inner, *taps = window_attributes.pick(shape, window_attributes.positions(a.kernel_layout, kind.letters))
        ones = splat(1, (a.groups, inner, *taps), "int8")
        own = a.replace(channels=a.groups, kernel_layout=kind.letters, kernel_size=tuple(taps))
        seen = q.made(kind.plain, data, ones, **dict(own.items()))
        if a.groups in (1, outer):
            return seen
        return q.made(concat_split.repeat, seen, repeats=outer // a.groups, axis=kind.place(a))

    def padded(self) -> tuple[Expr, Any]:
        """Return data and attributes such that the padding value is the zero point.

        A constant zero point becomes the attribute pad_value; with a zero point known only at run
        time, an explicit pad is inserted.
        """
        n, a, data, zero = self.kind.n, self.a, self.data, self.zeros[0]
        pads, value = window_attributes.pad_pairs(a.padding, n), q.known(zero)
        if not any(map(any, pads)):
            return data, a
        if value is not None:
            return data, a.replace(pad_value=int(value.reshape(())))
        source = window_attributes.positions(a.data_layout, window_attributes.DATA_LAYOUT[n])
        widths = window_attributes.arrange(((0, 0), (0, 0), *pads), source)
        filling = q.laid(zero, None, 0, q.dtype_of(data))
        written = q.made(pad.pad, data, pad_value=filling, pad_width=widths)
        return written, a.replace(padding=(0,) * (2 * n))


# --- samples and the table


_ZEROS: Final = (  # dtypes of data and kernel, zero points of data and kernel, True if constant
    ("uint8 int8", 117, 0, True),
    ("int8 int8", -5, 3, True),
    ("int8 int8", 0, 0, False),
    ("uint8 uint8", 255, 128, False),
    ("uint8 uint8", 0, 7, True),
    ("int8 uint8", 3, 255, True),
)


def _samples(attributes: type[Attrs], rows: Any) -> Samples:
    """Yield samples: the first shape with every combination in _ZEROS, each other shape with one
    combination.
    """
    plain = [row for row in rows if len(row) == 2 and "4o" not in str(row)]
    for k, ((shape, kernel), given) in enumerate(plain):
        for dtypes, xz, wz, known in _ZEROS if k == 0 else [_ZEROS[k % len(_ZEROS)]]:
            data, weight = dtypes.split()
            x, w = random_array(shape, data), random_array(kernel, weight, 1)
            w = w * w.dtype.type(3)  # integers of all signs and sizes
            make = q.with_constants if known else exact
            yield make(attributes(**given), x, w, *zero_points(xz, wz))


def _operator(n: int, plain: OpDef, letters: str, rows: Any, more: str = "") -> OpDef:
    own = [f for f in fields(plain.attrs) if f.name != "pad_value"]
    name = f"Quantized{plain.attrs.__name__}"
    attributes: Any = variant(record("ConvAttrs", own), name, out_dtype="int32")
    attributes.__doc__ = f"""{plain.doc.splitlines()[0]}

    Sums of (data - input_zero_point) * (kernel - kernel_zero_point), as int32; padding stands for 0.
    """
    kind = _Kind(n, plain, letters)
    return OpDef(
        name=plain.name.replace("nn.", "qnn."),
        attrs=attributes,
        args=(*args("data", "kernel"), *q.scales(*NAMES)),
        order=_ORDER.format(more),
        infer=kind.infer,
        reference=kind.reference,
        axes=plain.axes,
        expand=kind.expand,
        samples=partial(_samples, attributes, rows),
        **q.facets(OpPattern.OUT_ELEMWISE_FUSABLE, sums=True),
    )


_PLAIN = enumerate((conv.conv1d, conv.conv2d, conv.conv3d), 1)
conv1d, conv2d, conv3d = (
    _operator(n, plain, window_attributes.KERNEL_LAYOUT[n], conv.SAMPLES[n]) for n, plain in _PLAIN
)
CONVOLUTIONS: Final = {1: conv1d, 2: conv2d, 3: conv3d}
_WOVEN = (conv_transpose.conv1d_transpose, conv_transpose.conv2d_transpose, conv_transpose.conv3d_transpose)
conv1d_transpose, conv2d_transpose, conv3d_transpose = (
    _operator(n, plain, window_attributes.TRANSPOSED_LAYOUT[n], conv_transpose.SAMPLES[n], "output_padding")
    for n, plain in enumerate(_WOVEN, 1)
)
