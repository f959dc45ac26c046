# SPDX-License-Identifier: Apache-2.0
# Written by `python -m tests.ops.builders_stub` from the table of operators.
from collections.abc import Sequence

from aotc.ir.dimensions import SymDim
from aotc.relay.expr import Call, Expr

def abs(
    x: Expr, scale: Expr | float, zero_point: Expr | int, output_scale: Expr | float, output_zero_point: Expr | int
) -> Call:
    """`abs` of the numbers that integers stand for, of each element."""

def add(
    lhs: Expr,
    rhs: Expr,
    lhs_scale: Expr | float,
    lhs_zero_point: Expr | int,
    rhs_scale: Expr | float,
    rhs_zero_point: Expr | int,
    output_scale: Expr | float,
    output_zero_point: Expr | int,
    lhs_axis: int = -1,
    rhs_axis: int = -1,
) -> Call:
    """Sum of two quantized tensors, requantized to the output's scale and zero point, with the type
    of the inputs.

    round_even((lhs - lhs_zero) * p + (rhs - rhs_zero) * q) + output_zero, saturated, where p =
    lhs_scale / output_scale and q = rhs_scale / output_scale. Each operation is rounded to float32;
    to float64 if p or q is known at compile time and exceeds `max_quant_scale_ratio_for_float32`, since
    float32 would lose whole steps where the two products cancel.
    """

def avg_pool2d(
    data: Expr,
    input_scale: Expr | float,
    input_zero_point: Expr | int,
    output_scale: Expr | float,
    output_zero_point: Expr | int,
    pool_size: int | Sequence[int] = (1, 1),
    strides: int | Sequence[int] = (1, 1),
    dilation: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:
    """The mean over each window of the numbers that integers stand for.

    round_even(mean(data - input_zero_point) * (input_scale / output_scale)) + output_zero_point, saturated; the mean,
    the ratio and the product are each rounded to float32.
    """

def batch_matmul(
    x: Expr,
    y: Expr,
    x_zero_point: Expr | int,
    y_zero_point: Expr | int,
    x_scale: Expr | float,
    y_scale: Expr | float,
    out_dtype: str = "int32",
) -> Call:
    """Sums of (x - x_zero_point) * (y - y_zero_point): x (B, M, K), y (B, N, K), int32 (B, M, N)."""

def concatenate(
    data: Sequence[Expr] | Expr,
    input_scales: Sequence[Expr | float] | Expr,
    input_zero_points: Sequence[Expr | int] | Expr,
    output_scale: Expr | float,
    output_zero_point: Expr | int,
    axis: int = 0,
) -> Call:
    """Quantized tensors concatenated along an axis, requantized to the output's scale and zero
    point.
    """

def conv1d(
    data: Expr,
    kernel: Expr,
    input_zero_point: Expr | int,
    kernel_zero_point: Expr | int,
    input_scale: Expr | float,
    kernel_scale: Expr | float,
    kernel_size: int | Sequence[int] | None = None,
    channels: int | None = None,
    strides: int | Sequence[int] = (1,),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1,),
    groups: int = 1,
    data_layout: str = "NCW",
    kernel_layout: str = "OIW",
    out_layout: str = "",
    out_dtype: str = "int32",
) -> Call:
    """1-D convolution of data (N, C, W) by weight (O, C/groups, KW).

    Sums of (data - input_zero_point) * (kernel - kernel_zero_point), as int32; padding stands for 0.
    """

def conv1d_transpose(
    data: Expr,
    kernel: Expr,
    input_zero_point: Expr | int,
    kernel_zero_point: Expr | int,
    input_scale: Expr | float,
    kernel_scale: Expr | float,
    kernel_size: int | Sequence[int] | None = None,
    channels: int | None = None,
    strides: int | Sequence[int] = (1,),
    padding: int | Sequence[int] = (0,),
    dilation: int | Sequence[int] = (1,),
    groups: int = 1,
    data_layout: str = "NCW",
    kernel_layout: str = "IOW",
    out_layout: str = "",
    output_padding: int | Sequence[int] = (0,),
    out_dtype: str = "int32",
) -> Call:
    """1-D transposed convolution of data (N, C, W) by weight (C, O/groups, KW).

    Sums of (data - input_zero_point) * (kernel - kernel_zero_point), as int32; padding stands for 0.
    """

def conv2d(
    data: Expr,
    kernel: Expr,
    input_zero_point: Expr | int,
    kernel_zero_point: Expr | int,
    input_scale: Expr | float,
    kernel_scale: Expr | float,
    kernel_size: int | Sequence[int] | None = None,
    channels: int | None = None,
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "int32",
) -> Call:
    """2-D convolution of data (N, C, H, W) by weight (O, C/groups, KH, KW).

    Sums of (data - input_zero_point) * (kernel - kernel_zero_point), as int32; padding stands for 0.
    """

def conv2d_transpose(
    data: Expr,
    kernel: Expr,
    input_zero_point: Expr | int,
    kernel_zero_point: Expr | int,
    input_scale: Expr | float,
    kernel_scale: Expr | float,
    kernel_size: int | Sequence[int] | None = None,
    channels: int | None = None,
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str = "",
    output_padding: int | Sequence[int] = (0, 0),
    out_dtype: str = "int32",
) -> Call:
    """2-D transposed convolution of data (N, C, H, W) by weight (C, O/groups, KH, KW).

    Sums of (data - input_zero_point) * (kernel - kernel_zero_point), as int32; padding stands for 0.
    """

def conv3d(
    data: Expr,
    kernel: Expr,
    input_zero_point: Expr | int,
    kernel_zero_point: Expr | int,
    input_scale: Expr | float,
    kernel_scale: Expr | float,
    kernel_size: int | Sequence[int] | None = None,
    channels: int | None = None,
    strides: int | Sequence[int] = (1, 1, 1),
    padding: int | Sequence[int] = (0, 0, 0),
    dilation: int | Sequence[int] = (1, 1, 1),
    groups: int = 1,
    data_layout: str = "NCDHW",
    kernel_layout: str = "OIDHW",
    out_layout: str = "",
    out_dtype: str = "int32",
) -> Call:
    """3-D convolution of data (N, C, D, H, W) by weight (O, C/groups, KD, KH, KW).

    Sums of (data - input_zero_point) * (kernel - kernel_zero_point), as int32; padding stands for 0.
    """

def conv3d_transpose(
    data: Expr,
    kernel: Expr,
    input_zero_point: Expr | int,
    kernel_zero_point: Expr | int,
    input_scale: Expr | float,
    kernel_scale: Expr | float,
    kernel_size: int | Sequence[int] | None = None,
    channels: int | None = None,
    strides: int | Sequence[int] = (1, 1, 1),
    padding: int | Sequence[int] = (0, 0, 0),
    dilation: int | Sequence[int] = (1, 1, 1),
    groups: int = 1,
    data_layout: str = "NCDHW",
    kernel_layout: str = "IODHW",
    out_layout: str = "",
    output_padding: int | Sequence[int] = (0, 0, 0),
    out_dtype: str = "int32",
) -> Call:
    """3-D transposed convolution of data (N, C, D, H, W) by weight (C, O/groups, KD, KH, KW).

    Sums of (data - input_zero_point) * (kernel - kernel_zero_point), as int32; padding stands for 0.
    """

def dense(
    data: Expr,
    weight: Expr,
    input_zero_point: Expr | int,
    kernel_zero_point: Expr | int,
    input_scale: Expr | float,
    kernel_scale: Expr | float,
    units: int | SymDim | None = None,
    out_dtype: str = "int32",
) -> Call:
    """Sums of (data - input_zero_point) * (weight - kernel_zero_point): data (..., K), weight (N,
    K), int32 (..., N).

    Scales and zero points of the weights are one value, or one for each of the N units.
    """

def dequantize(
    data: Expr, input_scale: Expr | float, input_zero_point: Expr | int, out_dtype: str = "float32", axis: int = -1
) -> Call:
    """(data - input_zero_point) * input_scale as `out_dtype`.

    Scale and zero point are one value, or one for each element along `axis`.
    """

def erf(
    x: Expr, scale: Expr | float, zero_point: Expr | int, output_scale: Expr | float, output_zero_point: Expr | int
) -> Call:
    """`erf` of the numbers that integers stand for, of each element."""

def exp(
    x: Expr, scale: Expr | float, zero_point: Expr | int, output_scale: Expr | float, output_zero_point: Expr | int
) -> Call:
    """`exp` of the numbers that integers stand for, of each element."""

def hardswish(
    x: Expr, scale: Expr | float, zero_point: Expr | int, output_scale: Expr | float, output_zero_point: Expr | int
) -> Call:
    """`hardswish` of the numbers that integers stand for, of each element."""

def leaky_relu(
    x: Expr,
    input_scale: Expr | float,
    input_zero_point: Expr | int,
    output_scale: Expr | float,
    output_zero_point: Expr | int,
    alpha: float = 0.25,
) -> Call:
    """Leaky ReLU of quantized numbers: x where x > 0, else alpha * x."""

def log(
    x: Expr, scale: Expr | float, zero_point: Expr | int, output_scale: Expr | float, output_zero_point: Expr | int
) -> Call:
    """`log` of the numbers that integers stand for, of each element."""

def lstm_by_series(
    data: Expr,
    recurrent: Expr,
    bias: Expr,
    multiplier: Expr,
    shift: Expr,
    h: Expr,
    c: Expr,
    digits: int = 12,
    clip: int = 0,
    zero_point: int = 0,
) -> Call:
    """A layer of long short-term memory of states of 16 bits, as LiteRT computes it.

    data (steps, batch, 4 * hidden), the inputs times their weights with 12 digits behind the point;
    the recurrent weight (4 * hidden, hidden); bias (4 * hidden), added to its products with h;
    their multipliers of 31 bits and shifts, and those of the outputs (5); first h and c (batch, hidden).
    Gates: input, forget, cell, output.  The result is int8 (steps, batch, hidden).
    """

def lstm_by_table(
    data: Expr,
    recurrent: Expr,
    bias: Expr,
    multiplier: Expr,
    shift: Expr,
    h: Expr,
    c: Expr,
    table: Expr,
    digits: int = 12,
    clip: int = 0,
    zero_point: int = 0,
) -> Call:
    """A layer of long short-term memory of states of 16 bits, as TFLite Micro computes it.

    data (steps, batch, 4 * hidden), the inputs times their weights with 12 digits behind the point;
    the recurrent weight (4 * hidden, hidden); bias (4 * hidden), added to its products with h;
    their multipliers of 31 bits and shifts, and those of the outputs (5); first h and c (batch, hidden);
    the logistic function at multiples of 1/24, times 2^16.
    Gates: input, forget, cell, output.  The result is int8 (steps, batch, hidden).
    """

def mul(
    lhs: Expr,
    rhs: Expr,
    lhs_scale: Expr | float,
    lhs_zero_point: Expr | int,
    rhs_scale: Expr | float,
    rhs_zero_point: Expr | int,
    output_scale: Expr | float,
    output_zero_point: Expr | int,
    lhs_axis: int = -1,
    rhs_axis: int = -1,
) -> Call:
    """Product of two quantized tensors, requantized to the output's scale and zero point, with the
    type of the inputs.

    round_even((lhs - lhs_zero) * (rhs - rhs_zero) * (lhs_scale * rhs_scale / output_scale)) +
    output_zero, saturated, each operation in float32; the first product is exact for integers of 8
    bits.
    """

def multiply_add(data: Expr, factor: Expr, addend: Expr) -> Call:
    """data * factor + addend, rounded once."""

def nearest_int8(data: Expr, zero: Expr) -> Call:
    """data to the nearest integers, even ones of two, plus the zero point, saturated as int8; NaN is -128."""

def nearest_uint8(data: Expr, zero: Expr) -> Call:
    """data to the nearest integers, even ones of two, plus the zero point, saturated as uint8; NaN is 0."""

def product(lhs: Expr, rhs: Expr) -> Call:
    """lhs * rhs, rounded by itself whatever is added to it."""

def quantize(
    data: Expr, output_scale: Expr | float, output_zero_point: Expr | int, out_dtype: str = "int8", axis: int = -1
) -> Call:
    """clip(round_even(data / output_scale) + output_zero_point), computed in the scale's type.

    Scale and zero point are one value, or one for each element along `axis`.
    """

def requantize(
    data: Expr,
    input_scale: Expr | float,
    input_zero_point: Expr | int,
    output_scale: Expr | float,
    output_zero_point: Expr | int,
    axis: int = -1,
    rounding: str = "None",
    compute_dtype: str = "None",
    out_dtype: str = "int8",
) -> Call:
    """Integers with one scale and zero point converted to another scale and zero point, saturated.

    Input scales are one value, or one for each element along `axis`.

    rounding  "UPWARD" (also "None") and "TONEAREST" multiply by the ratio of the scales as a 31-bit fixed-point number
              and round once, halves up or away from zero; "TFLITE" rounds twice, as gemmlowp does; "FLOAT_EVEN"
              multiplies by the float32 ratio in float32 and rounds halves to even
    compute_dtype  accepted for compatibility with TVM; the result does not depend on it
    """

def rsqrt(
    x: Expr, scale: Expr | float, zero_point: Expr | int, output_scale: Expr | float, output_zero_point: Expr | int
) -> Call:
    """`rsqrt` of the numbers that integers stand for, of each element."""

def saturate_int8(data: Expr) -> Call:
    """data as int8, the nearest value."""

def saturate_uint8(data: Expr) -> Call:
    """data as uint8, the nearest value."""

def scale_once(data: Expr, multiplier: Expr, shift: Expr) -> Call:
    """data * multiplier / 2^(33 + shift), halves up; shifts are 0 to 29."""

def scale_twice(data: Expr, multiplier: Expr, shift: Expr) -> Call:
    """data * multiplier / 2^31, halves up, and that / 2^(1 + shift), halves away from zero; shifts are 0 to 30."""

def sigmoid(
    x: Expr, scale: Expr | float, zero_point: Expr | int, output_scale: Expr | float, output_zero_point: Expr | int
) -> Call:
    """`sigmoid` of the numbers that integers stand for, of each element."""

def softmax(
    x: Expr,
    scale: Expr | float,
    zero_point: Expr | int,
    output_scale: Expr | float,
    output_zero_point: Expr | int,
    axis: int = -1,
) -> Call:
    """Softmax of 8-bit quantized numbers along an axis, quantized to the output's scale with the
    type of the input.

    round_even(e * (1 / (total * output_scale))) + output_zero_point, saturated. The integers e are
    round(exp((x - max) * scale) * 2^30), and total is their exact sum; both are rounded to float32,
    and so is each operation on them.
    """

def sqrt(
    x: Expr, scale: Expr | float, zero_point: Expr | int, output_scale: Expr | float, output_zero_point: Expr | int
) -> Call:
    """`sqrt` of the numbers that integers stand for, of each element."""

def subtract(
    lhs: Expr,
    rhs: Expr,
    lhs_scale: Expr | float,
    lhs_zero_point: Expr | int,
    rhs_scale: Expr | float,
    rhs_zero_point: Expr | int,
    output_scale: Expr | float,
    output_zero_point: Expr | int,
    lhs_axis: int = -1,
    rhs_axis: int = -1,
) -> Call:
    """Difference of two quantized tensors, requantized to the output's scale and zero point, with
    the type of the inputs.

    round_even((lhs - lhs_zero) * p - (rhs - rhs_zero) * q) + output_zero, saturated, where p =
    lhs_scale / output_scale and q = rhs_scale / output_scale, in the floating-point type that
    qnn.add computes in.
    """

def tanh(
    x: Expr, scale: Expr | float, zero_point: Expr | int, output_scale: Expr | float, output_zero_point: Expr | int
) -> Call:
    """`tanh` of the numbers that integers stand for, of each element."""
