# SPDX-License-Identifier: Apache-2.0
# Written by `python -m tests.ops.builders_stub` from the table of operators.
from collections.abc import Sequence

from aotc.ir.dimensions import SymDim
from aotc.relay.expr import Call, Expr, Tuple, TupleGetItem

def abs(data: Expr) -> Call:
    """`abs` of each element."""

def acos(data: Expr) -> Call:
    """`acos` of each element."""

def acosh(data: Expr) -> Call:
    """`acosh` of each element."""

def adaptive_avg_pool1d(
    data: Expr, output_size: int | Sequence[int] | None = None, layout: str = "NCW", out_layout: str = ""
) -> Call:
    """The mean over windows that cut each spatial axis into `output_size` parts."""

def adaptive_avg_pool2d(
    data: Expr, output_size: int | Sequence[int] | None = None, layout: str = "NCHW", out_layout: str = ""
) -> Call:
    """The mean over windows that cut each spatial axis into `output_size` parts."""

def adaptive_avg_pool3d(
    data: Expr, output_size: int | Sequence[int] | None = None, layout: str = "NCDHW", out_layout: str = ""
) -> Call:
    """The mean over windows that cut each spatial axis into `output_size` parts."""

def adaptive_max_pool1d(
    data: Expr, output_size: int | Sequence[int] | None = None, layout: str = "NCW", out_layout: str = ""
) -> Call:
    """The greatest value over windows that cut each spatial axis into `output_size` parts."""

def adaptive_max_pool2d(
    data: Expr, output_size: int | Sequence[int] | None = None, layout: str = "NCHW", out_layout: str = ""
) -> Call:
    """The greatest value over windows that cut each spatial axis into `output_size` parts."""

def adaptive_max_pool3d(
    data: Expr, output_size: int | Sequence[int] | None = None, layout: str = "NCDHW", out_layout: str = ""
) -> Call:
    """The greatest value over windows that cut each spatial axis into `output_size` parts."""

def add(lhs: Expr, rhs: Expr) -> Call:
    """`add` of the elements of two tensors, which are broadcast."""

def adv_index(inputs: Sequence[Expr] | Expr) -> Call:
    """inputs[0][inputs[1], inputs[2], ...] as numpy indexes: the indices broadcast, further axes are kept."""

def affine_grid(data: Expr, target_shape: int | Sequence[int]) -> Call:
    """Grid of sampling positions (N, 2, OH, OW) from affine maps `data` (N, 2, 3); `target_shape`
    is (OH, OW).

    The maps are applied to (x, y, 1) for x and y from -1 to 1, ends included; x is the first
    result.
    """

def after(data: Expr, earlier: Expr) -> Call:
    """`data`, unchanged, once `earlier` is computed: what depends on it may depend on sizes that are found then."""

def all(data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False, exclude: bool = False) -> Call:
    """The all over `axis` (None: all axes; `exclude`: all but these)."""

def all_class_non_max_suppression(
    boxes: Expr,
    scores: Expr,
    max_output_boxes_per_class: int | Expr = -1,
    iou_threshold: float | Expr = -1.0,
    score_threshold: float | Expr = -1.0,
    output_format: str = "onnx",
) -> Call:
    """Non-maximum suppression of boxes (B, N, 4) for each image and each class of the scores (B, C,
    N).

    Of boxes with a score above `score_threshold`, at most `max_output_boxes_per_class` remain
    (below 1: all), without boxes whose intersection over union with a better box is at least
    `iou_threshold`; no box remains if the threshold is not above 0. `output_format` "onnx" gives a
    tuple: rows of image, class and box (B * C * N, 3), the best first within each class, and their
    number (1,). "tensorflow" gives rows of class and box (B, C * N, 2), their scores, and their
    number (B,). Unused rows are zero.
    """

def any(data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False, exclude: bool = False) -> Call:
    """The any over `axis` (None: all axes; `exclude`: all but these)."""

def arange(
    start: Expr | float, stop: Expr | float | None = None, step: Expr | float = 1, dtype: str = "float32"
) -> Call:
    """start, start + step, ... up to but excluding `stop`; from 0 to `start` if `stop` is None.

    Arguments are numbers or scalar constants; AotcError for other expressions.
    """

def argmax(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    select_last_index: bool = False,
) -> Call:
    """The argmax over `axis` as int32: the first of equals, or the last."""

def argmin(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    select_last_index: bool = False,
) -> Call:
    """The argmin over `axis` as int32: the first of equals, or the last."""

def argsort(data: Expr, axis: int = -1, is_ascend: bool = True, dtype: str = "int32") -> Call:
    """The indices that sort `data` along an axis."""

def asin(data: Expr) -> Call:
    """`asin` of each element."""

def asinh(data: Expr) -> Call:
    """`asinh` of each element."""

def atan(data: Expr) -> Call:
    """`atan` of each element."""

def atan2(lhs: Expr, rhs: Expr) -> Call:
    """`atan2` of the elements of two tensors, which are broadcast."""

def atanh(data: Expr) -> Call:
    """`atanh` of each element."""

def avg_pool1d(
    data: Expr,
    pool_size: int | Sequence[int] = (1,),
    strides: int | Sequence[int] = (1,),
    dilation: int | Sequence[int] = (1,),
    padding: int | Sequence[int] = (0,),
    layout: str = "NCW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:
    """The mean over each window."""

def avg_pool2d(
    data: Expr,
    pool_size: int | Sequence[int] = (1, 1),
    strides: int | Sequence[int] = (1, 1),
    dilation: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:
    """The mean over each window."""

def avg_pool3d(
    data: Expr,
    pool_size: int | Sequence[int] = (1, 1, 1),
    strides: int | Sequence[int] = (1, 1, 1),
    dilation: int | Sequence[int] = (1, 1, 1),
    padding: int | Sequence[int] = (0, 0, 0),
    layout: str = "NCDHW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:
    """The mean over each window."""

def batch_flatten(data: Expr) -> Call:
    """(d0, d1, d2, ...) as (d0, d1 * d2 * ...)."""

def batch_matmul(
    tensor_a: Expr, tensor_b: Expr, out_dtype: str = "", transpose_a: bool = False, transpose_b: bool = True
) -> Call:
    """Batched matrix product: (B, M, K) times (B, N, K) transposed, or (B, K, N) without
    `transpose_b`.

    A batch of 1 is broadcast.
    """

def batch_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    moving_mean: Expr,
    moving_var: Expr,
    axis: int = 1,
    epsilon: float = 1e-05,
    center: bool = True,
    scale: bool = True,
) -> Call:
    """Batch normalization with moving statistics: a tuple of the normalized data, the mean and the
    variance.
    """

def batch_to_space_nd(data: Expr, block_shape: int | Sequence[int], crops: Sequence[Sequence[int]]) -> Call:
    """The inverse of `space_to_batch_nd`: data (N, S..., rest) as (N / prod(block), S * block - crops..., rest)."""

def bias_add(data: Expr, bias: Expr, axis: int = 1) -> Call:
    """data plus a bias vector along one axis."""

def bitwise_and(lhs: Expr, rhs: Expr) -> Call:
    """`bitwise_and` of the elements of two tensors, which are broadcast."""

def bitwise_not(data: Expr) -> Call:
    """`bitwise_not` of each element."""

def bitwise_or(lhs: Expr, rhs: Expr) -> Call:
    """`bitwise_or` of the elements of two tensors, which are broadcast."""

def bitwise_xor(lhs: Expr, rhs: Expr) -> Call:
    """`bitwise_xor` of the elements of two tensors, which are broadcast."""

def broadcast_to(data: Expr, shape: Expr | int | Sequence[int]) -> Call:
    """`data` repeated to `shape`, as numpy broadcasts."""

def broadcast_to_like(data: Expr, broadcast_type: Expr) -> Call:
    """`data` repeated to the shape of `broadcast_type`, as numpy broadcasts."""

def cast(data: Expr, dtype: str) -> Call:
    """`data` converted to `dtype`."""

def cast_like(data: Expr, dtype_like: Expr) -> Call:
    """`data` converted to the data type of `dtype_like`."""

def ceil(data: Expr) -> Call:
    """`ceil` of each element."""

def checkpoint(data: Expr) -> Call:
    """`data` itself, which gradients may compute again rather than keep."""

def clip(a: Expr, a_min: float, a_max: float) -> Call:
    """min(max(a, a_min), a_max), with NaN preserved; bounds of integers are rounded toward the
    inside.
    """

def collapse_sum_like(data: Expr, collapse_type: Expr) -> Call:
    """`data` summed over all that broadcasting `collapse_type` to its shape repeats."""

def collapse_sum_to(data: Expr, shape: int | Sequence[int]) -> Call:
    """`data` summed over the axes along which broadcasting `shape` to the data's shape would repeat
    elements.
    """

def compact_tree_ensemble(
    data: Expr,
    features: Expr,
    thresholds: Expr,
    branches: Expr,
    roots: Expr,
    groups: Expr,
    values: Expr,
    depth: int,
    aggregate: str = "sum",
    missing: str = "no",
) -> Call:
    """The sum (minimum, maximum) of the values of the leaves that each row of `data` (N, F) reaches.

    Inner node k takes the branch branches[k, 1] if the feature features[k] of the row is at most thresholds[k],
    whose type is that of the data, and branches[k, 0] otherwise. Branches are numbers of nodes: those of the inner
    nodes come first, then those of the leaves. `roots` (T,) are the trees' first nodes. Trees
    groups[g] to groups[g + 1] - 1 give the columns of group g: one with `values` (leaves,), D with `values`
    (leaves, D). The result is (N, groups * D) in the type of the values, accumulated in the order of the trees.
    Numbers of nodes, trees and features that are outside of the tables are clipped to them.

    depth       largest number of inner nodes from a root to a leaf
    aggregate   "sum", "min" or "max"
    missing     branch of NaN: "no", "yes", or "node" if features[k] is twice the feature, plus 1 if NaN takes "yes"
    """

def compiler_begin(data: Expr, compiler: str) -> Call:
    """`data` itself, which enters a region for the external compiler `compiler`."""

def compiler_end(data: Expr, compiler: str) -> Call:
    """`data` itself, which leaves a region for the external compiler `compiler`."""

def concatenate(data: Sequence[Expr] | Expr, axis: int = 0) -> Call:
    """Tensors concatenated along an existing axis."""

def contrib_conv2d_nchwc(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: int | Sequence[int] | None = None,
    data_layout: str = "NCHW8c",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
    pad_value: int = 0,
) -> Call:
    """2-D convolution of data (N, C, H, W) by weight (O, C/groups, KH, KW).

    `padding` is one value, one for each axis, or the values before and then after all axes. Padding
    adds nothing to a sum, even if a weight is infinite. The result has the data's type, or
    `out_dtype`: sums of int8 products need "int32". With `channels` and `kernel_size`, the kernel's
    type can be inferred. Integer data may be padded with a number other than zero, `pad_value`.
    """

def contrib_conv2d_winograd_weight_transform(weight: Expr, tile_size: int) -> Call:
    """Winograd transform of weights (O, I, 3, 3) to (tile_size + 2, tile_size + 2, O, I); tiles of
    2 or 4 rows and columns.
    """

def contrib_conv2d_winograd_without_weight_transform(
    data: Expr,
    weight: Expr,
    tile_size: int,
    padding: int | Sequence[int] = (0, 0, 0, 0),
    *,
    channels: int,
    groups: int = 1,
    data_layout: str = "NCHW",
) -> Call:
    """3x3 Winograd convolution of data (N, groups * I, H, W) by transformed weights in layout
    HWOI{n}o; stride 1.

    The result differs from that of the direct convolution by rounding: a few 1e-6 (tile 4) of its
    standard deviation. An infinity or NaN in the data may make NaN of every result of a tile
    (tile_size rows and columns) whose patch contains it.

    tile_size   of the output, for which the weights were transformed
    padding     top, left, bottom, right
    channels    of the output; the weights hold whole blocks
    groups      number of groups of channels; the weights of each group are padded to whole blocks
    data_layout NCHW, or NHWC with one group, for the data and the result
    """

def contrib_dense_bits(
    data: Expr, weight: Expr, scale: Expr, zero: Expr, units: int, bits: int, block_size: int, scale_first: bool = False
) -> Call:
    """data (..., K) times the transpose of scale * (weight - zero) (N, K), in float32: a result
    (..., N).

    weight   uint32 (tiles, ceil(K / fields), tile): integers of `bits` bits packed along K, the first in the lowest
             bits, for tiles of consecutive units
    scale    (tiles, ceil(K / block_size), tile): one scale for `block_size` consecutive weights along K
    zero     2 ** bits + the zero points, in the shape of the scales, or one value: (1, 1, 1)

    The sum of a block is multiplied by its scale. With `scale_first` each weight is multiplied
    instead, so that no sum overflows.
    """

def contrib_dense_integer_bits(
    data: Expr,
    data_scale: Expr,
    data_sum: Expr,
    weight: Expr,
    scale: Expr,
    zero: Expr,
    units: int,
    bits: int,
    block_size: int,
) -> Call:
    """data (..., K) times the transpose of scale * (weight - zero) (N, K), in float32: a result (..., N).

    data          int8 (..., K), with the scales and the sums of its blocks of `block_size` elements, float32 and int32
                  (..., K / block_size)
    weight        uint8 (tiles, K / fields, tile, 4): integers of 8 bits for tiles of consecutive units, four
                  consecutive ones in a row (fields = 4); of 4 bits, the first four of eight in the lower halves of
                  the bytes (fields = 8)
    scale         float32 or float16 (tiles, K / block_size, tile)
    zero          zero points, uint8 in the shape of the scales, or one value: (1, 1, 1)
    """

def contrib_dense_pack(
    data: Expr, weight: Expr, weight_layout: str = "NC", units: int | SymDim | None = None, out_dtype: str = ""
) -> Call:
    """nn.dense with a packed weight in blocks of units, "NC16n": (ceil(N/16), K, 16); `units` is N.

    "NC16n4c" has groups of K innermost: (ceil(N/16), ceil(K/4), 16, 4), zero-padded along K.
    """

def contrib_quantize_blocks(data: Expr, block_size: int) -> Call:
    """The integers of nn.contrib_round_blocks: int8 (..., blocks * block_size), which are followed by zeros, and for
    each block the scale, float32 (..., blocks), and the sum of the integers, int32 (..., blocks).

    The scale of a block with an infinity or NaN is NaN.
    """

def contrib_round_blocks(data: Expr, block_size: int) -> Call:
    """The data, float32 (..., K), rounded to the integers from -127 to 127 times a scale for each block of
    `block_size` consecutive elements of the last axis: the largest magnitude of the block, divided by 127.

    Blocks whose scale is not a normal number become zeros, and those with an infinity or NaN become NaN.
    """

def conv1d(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = (1,),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1,),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: int | Sequence[int] | None = None,
    data_layout: str = "NCW",
    kernel_layout: str = "OIW",
    out_layout: str = "",
    out_dtype: str = "",
    pad_value: int = 0,
) -> Call:
    """1-D convolution of data (N, C, W) by weight (O, C/groups, KW).

    `padding` is one value, one for each axis, or the values before and then after all axes. Padding
    adds nothing to a sum, even if a weight is infinite. The result has the data's type, or
    `out_dtype`: sums of int8 products need "int32". With `channels` and `kernel_size`, the kernel's
    type can be inferred. Integer data may be padded with a number other than zero, `pad_value`.
    """

def conv1d_transpose(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = (1,),
    padding: int | Sequence[int] = (0,),
    dilation: int | Sequence[int] = (1,),
    channels: int | None = None,
    kernel_size: int | Sequence[int] | None = None,
    groups: int = 1,
    data_layout: str = "NCW",
    kernel_layout: str = "IOW",
    out_layout: str = "",
    output_padding: int | Sequence[int] = (0,),
    out_dtype: str = "",
) -> Call:
    """1-D transposed convolution of data (N, C, W) by weight (C, O/groups, KW).

    The result is 0 where no input element contributes; `output_padding` extends it at its end.
    """

def conv2d(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: int | Sequence[int] | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
    pad_value: int = 0,
) -> Call:
    """2-D convolution of data (N, C, H, W) by weight (O, C/groups, KH, KW).

    `padding` is one value, one for each axis, or the values before and then after all axes. Padding
    adds nothing to a sum, even if a weight is infinite. The result has the data's type, or
    `out_dtype`: sums of int8 products need "int32". With `channels` and `kernel_size`, the kernel's
    type can be inferred. Integer data may be padded with a number other than zero, `pad_value`.
    """

def conv2d_transpose(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    channels: int | None = None,
    kernel_size: int | Sequence[int] | None = None,
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str = "",
    output_padding: int | Sequence[int] = (0, 0),
    out_dtype: str = "",
) -> Call:
    """2-D transposed convolution of data (N, C, H, W) by weight (C, O/groups, KH, KW).

    The result is 0 where no input element contributes; `output_padding` extends it at its end.
    """

def conv3d(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = (1, 1, 1),
    padding: int | Sequence[int] = (0, 0, 0),
    dilation: int | Sequence[int] = (1, 1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: int | Sequence[int] | None = None,
    data_layout: str = "NCDHW",
    kernel_layout: str = "OIDHW",
    out_layout: str = "",
    out_dtype: str = "",
    pad_value: int = 0,
) -> Call:
    """3-D convolution of data (N, C, D, H, W) by weight (O, C/groups, KD, KH, KW).

    `padding` is one value, one for each axis, or the values before and then after all axes. Padding
    adds nothing to a sum, even if a weight is infinite. The result has the data's type, or
    `out_dtype`: sums of int8 products need "int32". With `channels` and `kernel_size`, the kernel's
    type can be inferred. Integer data may be padded with a number other than zero, `pad_value`.
    """

def conv3d_transpose(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = (1, 1, 1),
    padding: int | Sequence[int] = (0, 0, 0),
    dilation: int | Sequence[int] = (1, 1, 1),
    channels: int | None = None,
    kernel_size: int | Sequence[int] | None = None,
    groups: int = 1,
    data_layout: str = "NCDHW",
    kernel_layout: str = "IODHW",
    out_layout: str = "",
    output_padding: int | Sequence[int] = (0, 0, 0),
    out_dtype: str = "",
) -> Call:
    """3-D transposed convolution of data (N, C, D, H, W) by weight (C, O/groups, KD, KH, KW).

    The result is 0 where no input element contributes; `output_padding` extends it at its end.
    """

def copy(data: Expr) -> Call:
    """`copy` of each element."""

def correlation(
    data1: Expr,
    data2: Expr,
    kernel_size: int = 1,
    max_displacement: int = 1,
    stride1: int = 1,
    stride2: int = 1,
    padding: int | Sequence[int] = (0, 0, 0, 0),
    is_multiply: bool = True,
    layout: str = "NCHW",
) -> Call:
    """Correlation of patches of `data1` with shifted patches of `data2` (N, C, H, W): mean product
    or distance.

    Patches have kernel_size x kernel_size pixels and are `stride1` apart. Patches of `data2` are
    shifted by every multiple of `stride2` up to `max_displacement` in y and x; each shift is a
    channel of the result. Without `is_multiply` the mean absolute difference is computed.
    """

def cos(data: Expr) -> Call:
    """`cos` of each element."""

def cosh(data: Expr) -> Call:
    """`cosh` of each element."""

def couple_probabilities(data: Expr, classes: int) -> Call:
    """The probability of each class, (N, classes), from the probability `data` (N, pairs) of the first class
    of each pair (0, 1), (0, 2), ..., (1, 2), ... of classes.

    The second method of Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by
    Pairwise Coupling" (2004), as libsvm implements it.
    """

def crop_and_resize(
    data: Expr,
    boxes: Expr,
    box_indices: Expr,
    crop_size: int | Sequence[int],
    layout: str = "NHWC",
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
    out_dtype: str = "",
) -> Call:
    """Box n of image box_indices[n] of `data` resampled to `crop_size`.

    Corners of a box are y1, x1, y2, x2, where 0 and 1 are the centers of the first and the last
    pixel. Positions outside of the image give `extrapolation_value`. A single row or column is
    sampled at the middle of the box. `method` is "bilinear" or "nearest_neighbor".
    """

def cumprod(data: Expr, axis: int | None = None, dtype: str | None = None, exclusive: bool | None = None) -> Call:
    """The running product; see cumsum."""

def cumsum(data: Expr, axis: int | None = None, dtype: str | None = None, exclusive: bool | None = None) -> Call:
    """The running sum along an axis (None: of the flattened data); `exclusive` leaves out the own element."""

def deformable_conv2d(
    data: Expr,
    offset: Expr,
    weight: Expr,
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    deformable_groups: int = 1,
    groups: int = 1,
    channels: int | None = None,
    kernel_size: int | Sequence[int] | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Call:
    """2-D convolution with a data-dependent offset for each tap of each output.

    data (N, C, H, W), offset (N, deformable_groups * KH * KW * 2, OH, OW) with a y and an x offset
    for each tap. Channels are divided among the `deformable_groups`. Values between pixels are
    interpolated bilinearly, values outside of the image are 0.
    """

def deformable_im2col(
    data: Expr,
    offset: Expr,
    mask: Expr,
    kernel_size: int | Sequence[int],
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilation: int | Sequence[int] = (1, 1),
    deformable_groups: int = 1,
) -> Call:
    """The values that the taps of a deformable convolution sample, times a mask: of data (N, C, H, W) an image
    (N, C, OH * KH, OW * KW), in which the taps of an output element are adjacent.

    offset (N, deformable_groups * KH * KW * 2, OH, OW) has a y and an x offset for each tap, mask
    (N, deformable_groups * KH * KW, OH, OW) a factor. Channels are divided among the
    `deformable_groups`. Values between pixels are interpolated bilinearly, pixels outside of the
    image are 0.
    """

def dense(data: Expr, weight: Expr, units: int | SymDim | None = None, out_dtype: str = "") -> Call:
    """data (..., K) times the transpose of weight (N, K): a result (..., N)."""

def depth_to_space(data: Expr, block_size: int, layout: str = "NCHW", mode: str = "DCR") -> Call:
    """Every block_size^2 channels become a block of pixels of one channel."""

def dft(re_data: Expr, im_data: Expr, inverse: bool = False) -> Call:
    """Discrete Fourier transform along the last axis: real and imaginary parts in, a tuple of both
    parts out.

    `inverse` selects the inverse transform, which divides by the number of elements.
    """

def dilation2d(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    dilations: int | Sequence[int] = (1, 1),
    data_layout: str = "NCHW",
    kernel_layout: str = "IHW",
    out_dtype: str = "",
) -> Call:
    """Grayscale dilation: the maximum over a window of data (N, C, H, W) plus weight (C, KH, KW),
    per channel.
    """

def divide(lhs: Expr, rhs: Expr) -> Call:
    """`divide` of the elements of two tensors, which are broadcast."""

def dropout(data: Expr, rate: float = 0.5) -> TupleGetItem:
    """The data unchanged: inference drops no elements."""

def einsum(data: Sequence[Expr] | Expr, equation: str) -> Call:
    """Einstein summation of the operands by an equation such as "bij,bjk->bik", as in numpy.einsum."""

def equal(lhs: Expr, rhs: Expr) -> Call:
    """`equal` of the elements of two tensors, which are broadcast."""

def erf(data: Expr) -> Call:
    """`erf` of each element."""

def exp(data: Expr) -> Call:
    """`exp` of each element."""

def expand_dims(data: Expr, axis: Expr | int, num_newaxis: int = 1) -> Call:
    """The data with `num_newaxis` new axes of extent 1 before `axis`; -1 appends them after the
    last axis.
    """

def expm1(data: Expr) -> Call:
    """`expm1` of each element."""

def fast_erf(data: Expr) -> Call:
    """`fast_erf` of each element."""

def fast_exp(data: Expr) -> Call:
    """`fast_exp` of each element."""

def fast_softmax(data: Expr, axis: int = -1) -> Call:
    """softmax with `fast_exp`: what is 87 or more below the largest counts as 87 below."""

def fast_tanh(data: Expr) -> Call:
    """`fast_tanh` of each element."""

def fixed_point_multiply(data: Expr, multiplier: int, shift: int) -> Call:
    """data * multiplier / 2^31 * 2^shift for int32, rounded with halves up, as int32 with
    wraparound.

    `shift` is -31 to 31.
    """

def fixed_point_multiply_per_axis(
    x: Expr,
    y: Expr,
    lshift: Expr,
    rshift: Expr,
    is_lshift_required: bool = False,
    is_rshift_required: bool = False,
    axes: int | Sequence[int] = (),
) -> Call:
    """x * y / 2^31 * 2^(lshift - rshift) for int32, rounded with halves up, as int32 with
    wraparound.

    The multipliers y and the shifts, 0 to 31, have one value for each index of the axes `axes` of
    x. `lshift` and `rshift` are used only if `is_lshift_required` and `is_rshift_required` are set.
    """

def floor(data: Expr) -> Call:
    """`floor` of each element."""

def floor_divide(lhs: Expr, rhs: Expr) -> Call:
    """`floor_divide` of the elements of two tensors, which are broadcast."""

def floor_mod(lhs: Expr, rhs: Expr) -> Call:
    """`floor_mod` of the elements of two tensors, which are broadcast."""

def full(fill_value: Expr, shape: Expr | int | Sequence[int] = (), dtype: str = "") -> Call:
    """A tensor of one value, converted to `dtype` if that is given."""

def full_like(data: Expr, fill_value: Expr) -> Call:
    """One value in the shape of `data`."""

def gather(data: Expr, axis: int, indices: Expr) -> Call:
    """out[i, j, ...] = data[i, indices[i, j, ...], ...]: the index replaces the position along
    `axis`.
    """

def gather_nd(data: Expr, indices: Expr, batch_dims: int = 0, index_rank: int | None = None) -> Call:
    """Slices of `data` selected by index tuples, whose elements lie along the *first* axis of
    `indices`.

    out[y..., x...] = data[y[:batch_dims]..., indices[0, y...], indices[1, y...], ..., x...]
    """

def get_valid_counts(data: Expr, score_threshold: float | Expr = 0.0, id_index: int = 0, score_index: int = 1) -> Call:
    """Moves rows of `data` (N, A, E) with a score above `score_threshold` and a class >= 0 to the
    front.

    The result is a tuple: the number of valid rows (N,); the rows, followed by rows of -1; the
    original index of each row (N, A), followed by -1. A row has its score at `score_index` and its
    class at `id_index` (-1: no class).
    """

def global_avg_pool1d(data: Expr, layout: str = "NCW", out_layout: str = "") -> Call:
    """The mean of each channel: (N, C, 1)."""

def global_avg_pool2d(data: Expr, layout: str = "NCHW", out_layout: str = "") -> Call:
    """The mean of each channel: (N, C, 1, 1)."""

def global_avg_pool3d(data: Expr, layout: str = "NCDHW", out_layout: str = "") -> Call:
    """The mean of each channel: (N, C, 1, 1, 1)."""

def global_max_pool1d(data: Expr, layout: str = "NCW", out_layout: str = "") -> Call:
    """The greatest value of each channel: (N, C, 1)."""

def global_max_pool2d(data: Expr, layout: str = "NCHW", out_layout: str = "") -> Call:
    """The greatest value of each channel: (N, C, 1, 1)."""

def global_max_pool3d(data: Expr, layout: str = "NCDHW", out_layout: str = "") -> Call:
    """The greatest value of each channel: (N, C, 1, 1, 1)."""

def greater(lhs: Expr, rhs: Expr) -> Call:
    """`greater` of the elements of two tensors, which are broadcast."""

def greater_equal(lhs: Expr, rhs: Expr) -> Call:
    """`greater_equal` of the elements of two tensors, which are broadcast."""

def grid_sample(
    data: Expr,
    grid: Expr,
    method: str = "bilinear",
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    align_corners: bool = True,
) -> Call:
    """data (N, C, [D,] H, W) sampled at positions grid (N, 2 or 3, [OD,] OH, OW): (N, C, [OD,] OH,
    OW).

    With `align_corners`, positions -1 and 1 are the centers of the outermost elements, otherwise
    their outer edges.
    """

def group_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    num_groups: int,
    axis: int = 1,
    epsilon: float = 1e-05,
    center: bool = True,
    scale: bool = True,
) -> Call:
    """Normalization of each group of channels of each batch item; gamma and beta are per channel."""

def gru(data: Expr, weight: Expr, recurrent: Expr, bias: Expr, h: Expr, inner: Expr, reverse: bool = False) -> Call:
    """A layer of gated recurrent units (Cho et al., 2014): (outputs, last h).

    data (steps, batch, inputs); weights (inputs, 3 * hidden) and (hidden, 3 * hidden), gates in the order reset,
    update, new; bias (3 * hidden); h (batch, hidden); `inner` (hidden) is added to the new gate's part of the state's
    product before the reset gate scales that.
    """

def instance_norm(
    data: Expr, gamma: Expr, beta: Expr, axis: int = 1, epsilon: float = 1e-05, center: bool = True, scale: bool = True
) -> Call:
    """Normalization of each channel (along `axis`) of each batch item over all other axes."""

def isfinite(data: Expr) -> Call:
    """`isfinite` of each element."""

def isinf(data: Expr) -> Call:
    """`isinf` of each element."""

def isnan(data: Expr) -> Call:
    """`isnan` of each element."""

def l2_normalize(data: Expr, eps: float, axis: int | Sequence[int] | None = None) -> Call:
    """data / sqrt(max(sum(data^2), eps)), the sum over `axis` (None: all axes)."""

def layer_norm(
    data: Expr, gamma: Expr, beta: Expr, axis: int = -1, epsilon: float = 1e-05, center: bool = True, scale: bool = True
) -> Call:
    """Layer normalization along one axis, scaled by gamma and shifted by beta."""

def layout_transform(data: Expr, src_layout: str, dst_layout: str) -> Call:
    """`data` converted from one layout to another; incomplete blocks are zero-padded."""

def leading_rows(data: Expr, count: Expr, rows: int | SymDim) -> Call:
    """The first rows of `data`, as many as the one element of `count` says.

    `rows` is this number: a size that is known at run time only, from this call on. Each size is the `rows` of
    one `count`.
    """

def leaky_relu(data: Expr, alpha: float = 0.25) -> Call:
    """x where x > 0, else alpha * x."""

def left_shift(lhs: Expr, rhs: Expr) -> Call:
    """`left_shift` of the elements of two tensors, which are broadcast."""

def less(lhs: Expr, rhs: Expr) -> Call:
    """`less` of the elements of two tensors, which are broadcast."""

def less_equal(lhs: Expr, rhs: Expr) -> Call:
    """`less_equal` of the elements of two tensors, which are broadcast."""

def log(data: Expr) -> Call:
    """`log` of each element."""

def log10(data: Expr) -> Call:
    """`log10` of each element."""

def log1p(data: Expr) -> Call:
    """`log1p` of each element."""

def log2(data: Expr) -> Call:
    """`log2` of each element."""

def log_softmax(data: Expr, axis: int = -1) -> Call:
    """The logarithm of softmax, computed without taking one of a tiny number."""

def logical_and(lhs: Expr, rhs: Expr) -> Call:
    """`logical_and` of the elements of two tensors, which are broadcast."""

def logical_not(data: Expr) -> Call:
    """`logical_not` of each element."""

def logical_or(lhs: Expr, rhs: Expr) -> Call:
    """`logical_or` of the elements of two tensors, which are broadcast."""

def logical_xor(lhs: Expr, rhs: Expr) -> Call:
    """`logical_xor` of the elements of two tensors, which are broadcast."""

def logsumexp(data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Call:
    """log(sum(exp(data))) over axes, computed without overflow."""

def lrn(data: Expr, size: int = 5, axis: int = 1, bias: float = 2.0, alpha: float = 0.0001, beta: float = 0.75) -> Call:
    """data / (bias + alpha / size * sum of the squares of `size` neighbors along `axis`) ^ beta.

    If `size` is even, one more neighbor after the element than before it is included, as in ONNX.
    """

def lstm(data: Expr, weight: Expr, recurrent: Expr, bias: Expr, h: Expr, c: Expr, reverse: bool = False) -> Call:
    """A layer of long short-term memory (Hochreiter and Schmidhuber, 1997): (outputs, last h, last c).

    data (steps, batch, inputs); weights (inputs, 4 * hidden) and (hidden, 4 * hidden), gates in the order input,
    forget, cell, output; bias (4 * hidden); h, c (batch, hidden).
    """

def matmul(
    tensor_a: Expr,
    tensor_b: Expr,
    units: int | SymDim | None = None,
    out_dtype: str = "",
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Call:
    """tensor_a (..., M, K) times a matrix (K, N); each operand may be transposed first."""

def matrix_determinant(data: Expr) -> Call:
    """The determinant of each matrix of data (..., n, n)."""

def matrix_set_diag(data: Expr, diagonal: Expr, k: int | Sequence[int] = 0, align: str = "RIGHT_LEFT") -> Call:
    """The innermost matrices of `data` with diagonals `k[0]` to `k[1]` replaced; 0 is the main
    diagonal.

    If there are several, `diagonal` has one row for each, the uppermost first. `align` states at
    which end of their rows shorter diagonals are aligned: first for diagonals above and including
    the main one, then for diagonals below it.
    """

def max(data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False, exclude: bool = False) -> Call:
    """The max over `axis` (None: all axes; `exclude`: all but these)."""

def max_pool1d(
    data: Expr,
    pool_size: int | Sequence[int] = (1,),
    strides: int | Sequence[int] = (1,),
    dilation: int | Sequence[int] = (1,),
    padding: int | Sequence[int] = (0,),
    layout: str = "NCW",
    out_layout: str = "",
    ceil_mode: bool = False,
) -> Call:
    """The greatest value over each window."""

def max_pool2d(
    data: Expr,
    pool_size: int | Sequence[int] = (1, 1),
    strides: int | Sequence[int] = (1, 1),
    dilation: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
) -> Call:
    """The greatest value over each window."""

def max_pool3d(
    data: Expr,
    pool_size: int | Sequence[int] = (1, 1, 1),
    strides: int | Sequence[int] = (1, 1, 1),
    dilation: int | Sequence[int] = (1, 1, 1),
    padding: int | Sequence[int] = (0, 0, 0),
    layout: str = "NCDHW",
    out_layout: str = "",
    ceil_mode: bool = False,
) -> Call:
    """The greatest value over each window."""

def maximum(lhs: Expr, rhs: Expr) -> Call:
    """`maximum` of the elements of two tensors, which are broadcast."""

def mean(data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False, exclude: bool = False) -> Call:
    """The mean over `axis` (None: all axes; `exclude`: all but these)."""

def mean_std(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Tuple:
    """Mean and standard deviation over axes, as a tuple."""

def mean_variance(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Tuple:
    """Mean and variance over axes, as a tuple."""

def meshgrid(data: Sequence[Expr] | Expr, indexing: str = "ij") -> Call:
    """Coordinate grids: each vector (or scalar) along its own axis, repeated along the axes of the
    other vectors.

    indexing  "ij", or "xy" to exchange the first two axes
    """

def min(data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False, exclude: bool = False) -> Call:
    """The min over `axis` (None: all axes; `exclude`: all but these)."""

def minimum(lhs: Expr, rhs: Expr) -> Call:
    """`minimum` of the elements of two tensors, which are broadcast."""

def mirror_pad(data: Expr, pad_width: Sequence[Sequence[int]], mode: str = "SYMMETRIC") -> Call:
    """Padding by reflection, with the edge repeated ("SYMMETRIC") or not ("REFLECT")."""

def mod(lhs: Expr, rhs: Expr) -> Call:
    """`mod` of the elements of two tensors, which are broadcast."""

def multibox_prior(
    data: Expr,
    sizes: Sequence[float] = (1.0,),
    ratios: Sequence[float] = (1.0,),
    steps: Sequence[float] = (-1.0, -1.0),
    offsets: Sequence[float] = (0.5, 0.5),
    clip: bool = False,
) -> Call:
    """Anchor boxes for each pixel of `data` (N, C, H, W): corners from 0 to 1, (1, H * W * (sizes +
    ratios - 1), 4).

    A pixel has one anchor for each of `sizes`, with the first of `ratios`, then one anchor of the
    first size for each further ratio. `steps` between pixels and `offsets`, in units of steps, are
    given for y, then x; negative steps divide the image evenly. `clip` clips corners to [0, 1].
    """

def multibox_transform_loc(
    cls_prob: Expr,
    loc_pred: Expr,
    anchor: Expr,
    clip: bool = True,
    threshold: float = 0.01,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    keep_background: bool = False,
) -> Call:
    """Boxes decoded from class probabilities (N, C, A), box offsets (N, A * 4) and anchors (1, A,
    4).

    The result is a tuple: rows (N, A, 6) of class, probability and two corners (clipped to [0, 1]
    with `clip`), and the number of valid rows (N,). Valid rows come first, others are -1. The first
    class is the background: unless `keep_background`, background boxes and boxes with a probability
    below `threshold` are dropped, and class numbers do not count the background.
    """

def multiply(lhs: Expr, rhs: Expr) -> Call:
    """`multiply` of the elements of two tensors, which are broadcast."""

def ndarray_size(data: Expr, dtype: str = "int32") -> Call:
    """The number of elements, as a scalar."""

def negative(data: Expr) -> Call:
    """`negative` of each element."""

def nll_loss(
    predictions: Expr, targets: Expr, weights: Expr, reduction: str = "mean", ignore_index: int = -100
) -> Call:
    """Negative log likelihood -weights[t] * predictions[n, t, ...] for each target t = targets[n,
    ...].

    predictions (N, C, d1, ..., dk), targets (N, d1, ..., dk), weights (C). Targets equal to
    `ignore_index` contribute nothing; others are clipped to 0 .. C - 1. `reduction` is "none",
    "sum", or "mean", the weighted mean.
    """

def non_max_suppression(
    data: Expr,
    valid_count: Expr,
    indices: Expr,
    max_output_size: int | Expr = -1,
    iou_threshold: float | Expr = 0.5,
    force_suppress: bool = False,
    top_k: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = 0,
    return_indices: bool = True,
    invalid_to_bottom: bool = False,
) -> Call:
    """Non-maximum suppression of the first `valid_count` (N,) rows of `data` (N, A, E), by
    descending score.

    A row has two corners (four numbers from `coord_start` on), a score and a class. A row is
    suppressed if its intersection over union with a better row of its class (any class with
    `force_suppress`) is at least `iou_threshold`. Of the `top_k` best rows, at most
    `max_output_size` with a score above 0 remain; negative numbers mean all. The result is the rows
    in order with suppressed ones set to -1 (moved to the end with `invalid_to_bottom`), or with
    `return_indices` a tuple: the remaining rows' `indices` (N, A), followed by -1, and their number
    (N, 1).
    """

def nonzero_positions(data: Expr) -> Call:
    """The indices of all elements that are not 0, in row-major order, and their number.

    The result is a tuple: the indices, one row for each element of the data, of which the first ones are used and
    the others are 0; and the number of rows that are used, of shape (1,). NaN is not 0.
    """

def not_equal(lhs: Expr, rhs: Expr) -> Call:
    """`not_equal` of the elements of two tensors, which are broadcast."""

def one_hot(
    indices: Expr, on_value: Expr | float, off_value: Expr | float, depth: Expr | int, axis: int = -1, dtype: str = ""
) -> Call:
    """One-hot encoding: `on_value` where the position along a new axis of extent `depth` equals the
    index.

    Other elements are `off_value`; an index outside 0 .. depth - 1 matches no position.
    """

def ones(shape: Expr | int | Sequence[int], dtype: str) -> Call:
    """A tensor of ones."""

def ones_like(data: Expr) -> Call:
    """Ones in the shape and type of `data`."""

def pad(
    data: Expr, pad_width: Expr | Sequence[Sequence[int]], pad_value: Expr | float = 0, pad_mode: str = "constant"
) -> Call:
    """`data` with (before, after) elements added to each axis.

    pad_value  a number, or a scalar expression of the data's type; only for "constant"
    pad_mode   "constant" (negative widths crop), "edge", "reflect" (without the edge) or "wrap"
    """

def permute_axes(data: Expr, places: int | Sequence[int], shape: int | Sequence[int]) -> Call:
    """`data` with permuted axes: axis k of the data is axis places[k] of the result, which has a `shape`.

    Both may be known at run time only; then, whoever builds the call states that they fit.
    """

def power(lhs: Expr, rhs: Expr) -> Call:
    """`power` of the elements of two tensors, which are broadcast."""

def prelu(data: Expr, alpha: Expr, axis: int = 1) -> Call:
    """x where x > 0, else alpha[channel] * x."""

def prod(data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False, exclude: bool = False) -> Call:
    """The prod over `axis` (None: all axes; `exclude`: all but these)."""

def proposal(
    cls_prob: Expr,
    bbox_pred: Expr,
    im_info: Expr,
    scales: Sequence[float] = (4.0, 8.0, 16.0, 32.0),
    ratios: Sequence[float] = (0.5, 1.0, 2.0),
    feature_stride: float = 16.0,
    threshold: float = 0.7,
    rpn_pre_nms_top_n: int = 6000,
    rpn_post_nms_top_n: int = 300,
    rpn_min_size: int = 16,
    iou_loss: bool = False,
) -> Call:
    """Region proposals: the best decoded anchors after non-maximum suppression, (N *
    rpn_post_nms_top_n, 5).

    A row is the image index and two corners. Pixels are `feature_stride` apart; each has an anchor
    for each of `ratios` and, within, of `scales`: A in all. Only the second half of the scores (N,
    2 * A, H, W) is used. Offsets (N, 4 * A, H, W) are center shifts in units of the size and
    logarithms of size factors, or shifts of corners with `iou_loss`. `im_info` (N, 3) has the
    height, width and scale of each image.

    Boxes are clipped to the image. Boxes smaller than `rpn_min_size` times the scale, which grow by
    half of that on each side, and boxes of pixels outside the image have a score of -1. Of the
    `rpn_pre_nms_top_n` best boxes (0: all), boxes whose intersection over union with a better box
    exceeds `threshold` are removed; the remaining boxes repeat until there are enough. Corners are
    pixel positions: a size is the difference of corners plus 1.
    """

def reinterpret(data: Expr, dtype: str) -> Call:
    """The bits of the data reinterpreted as `dtype`, which must have the bit width of the data's
    type.
    """

def relu(data: Expr) -> Call:
    """`relu` of each element."""

def repeat(data: Expr, repeats: int, axis: int | None = None) -> Call:
    """Each element repeated `repeats` times along an axis, as in numpy.repeat; an axis of None
    flattens first.
    """

def require_range(data: Expr, value: Expr, least: int, most: int, requirement: str) -> Call:
    """`data`, unchanged, in a run in which the one element of `value`, an integer or bool, is from `least` to `most`.

    Any other run ends with a status, whose text is `requirement`: what the value must be.
    """

def reshape(data: Expr, newshape: Expr | int | Sequence[int], allowzero: bool = False) -> Call:
    """The data's elements, in unchanged order, with another shape.

    In `newshape`, 0 copies a dimension (unless `allowzero`), -1 is inferred from the number of
    elements, -2 copies all remaining dimensions, -3 merges two dimensions, -4 splits one into the
    two values that follow.
    """

def reshape_like(
    data: Expr,
    shape_like: Expr,
    lhs_begin: int = 0,
    lhs_end: int | None = None,
    rhs_begin: int = 0,
    rhs_end: int | None = None,
) -> Call:
    """`data` with its axes `lhs_begin` to `lhs_end` replaced by axes `rhs_begin` to `rhs_end` of
    `shape_like`.

    The replaced axes must have as many elements as the new ones. Ends are exclusive, negative
    numbers count from the last axis, and an end of None includes all further axes.
    """

def resize1d(
    data: Expr,
    size: int | Sequence[int] | None,
    roi: Sequence[float] | None = None,
    layout: str = "NCW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: str = "",
    scales: Sequence[float] | None = None,
    antialias: bool = False,
    scale_fractions: Sequence[Sequence[int]] | None = None,
    roi_fractions: Sequence[Sequence[int]] | None = None,
) -> Call:
    """Data resampled to `size` along its spatial axes."""

def resize2d(
    data: Expr,
    size: Expr | int | Sequence[int] | None,
    roi: Expr | Sequence[float] | None = None,
    layout: str = "NCHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: str = "",
    scales: Sequence[float] | None = None,
    antialias: bool = False,
    scale_fractions: Sequence[Sequence[int]] | None = None,
    roi_fractions: Sequence[Sequence[int]] | None = None,
) -> Call:
    """Data resampled to `size` along its spatial axes."""

def resize3d(
    data: Expr,
    size: int | Sequence[int] | None,
    roi: Sequence[float] | None = None,
    layout: str = "NCDHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: str = "",
    scales: Sequence[float] | None = None,
    antialias: bool = False,
    scale_fractions: Sequence[Sequence[int]] | None = None,
    roi_fractions: Sequence[Sequence[int]] | None = None,
) -> Call:
    """Data resampled to `size` along its spatial axes."""

def reverse(data: Expr, axis: int) -> Call:
    """`data` in reverse order along an axis."""

def reverse_reshape(data: Expr, newshape: int | Sequence[int]) -> Call:
    """The data's elements, in unchanged order, with another shape; special values are matched from
    the right.

    In `newshape`, 0 copies the dimension at this position counted from the end, -1 is inferred from
    the number of elements, -2 copies all remaining dimensions to the left, -3 merges two
    dimensions.
    """

def reverse_sequence(data: Expr, seq_lengths: Expr, seq_axis: int = 1, batch_axis: int = 0) -> Call:
    """The first seq_lengths[b] elements of each batch item b in reverse order, followed by its
    other elements unchanged.
    """

def right_shift(lhs: Expr, rhs: Expr) -> Call:
    """`right_shift` of the elements of two tensors, which are broadcast."""

def rms_norm(data: Expr, gamma: Expr, axis: int = -1, epsilon: float = 1e-05) -> Call:
    """data / sqrt(mean(data^2) + epsilon) * gamma, the mean along one axis (Zhang and Sennrich,
    2019).
    """

def rnn(
    data: Expr, weight: Expr, recurrent: Expr, bias: Expr, h: Expr, activation: str = "tanh", reverse: bool = False
) -> Call:
    """A layer of h = activation(x W + bias + h R): (outputs, last h); shapes as in `lstm`, with one gate."""

def roi_align(
    data: Expr,
    rois: Expr,
    pooled_size: int | Sequence[int],
    spatial_scale: float,
    sample_ratio: int = -1,
    layout: str = "NCHW",
    mode: str = "avg",
    aligned: bool = False,
) -> Call:
    """Mean (or maximum, with `mode` "max") of bilinear samples in each cell of a region of
    interest.

    `rois` (N, 5) has image, x1, y1, x2, y2 of each region, in pixels before multiplication by
    `spatial_scale`. A region has pooled_size[0] x pooled_size[1] cells. A cell has `sample_ratio`
    samples along each axis, or about one for each pixel if that is not positive. With `aligned`, the
    centers of pixels are at halves, and a region may be smaller than a pixel. The mode "max_weighted" is the
    maximum of the pixels around all samples, each multiplied by its weight in the interpolation, as
    ONNX defines it.
    """

def roi_pool(
    data: Expr, rois: Expr, pooled_size: int | Sequence[int], spatial_scale: float, layout: str = "NCHW"
) -> Call:
    """Maximum of each cell of a region of interest, 0 for an empty cell.

    `rois` (N, 5) has image, x1, y1, x2, y2 of each region, in pixels before multiplication by
    `spatial_scale`; corners are rounded. A region has pooled_size[0] x pooled_size[1] cells.
    """

def round(data: Expr) -> Call:
    """`round` of each element."""

def rsqrt(data: Expr) -> Call:
    """`rsqrt` of each element."""

def run_automaton(symbols: Expr, table: Expr, reverse: bool = False) -> Call:
    """The state of a deterministic finite automaton after each symbol of each row of `symbols` (..., n).

    `table` (states, symbols) holds the next state for each state and symbol, and has the element type of the
    result. The automaton starts each row in state 0. Symbols and states that the table does not have count as the
    nearest ones that it has.

    reverse  True to read each row from its end
    """

def scatter_elements(data: Expr, indices: Expr, updates: Expr, axis: int = 0, reduction: str = "update") -> Call:
    """A copy of `data` with updates[i, j, ...] written to position indices[i, j, ...] along `axis`.

    reduction  "update" overwrites; "add", "mul", "min", "max" combine the update with the present value
    """

def scatter_nd(data: Expr, indices: Expr, updates: Expr, mode: str = "update") -> Call:
    """A copy of `data` with slices written at index tuples, whose elements lie along the *first*
    axis of `indices`.

    out[indices[0, y...], indices[1, y...], ..., x...] = updates[y..., x...]

    `mode` is the reduction of scatter_elements.
    """

def searchsorted(sorted_sequence: Expr, values: Expr, right: bool = False, dtype: str = "int32") -> Call:
    """Insertion index of each of `values` in the sorted rows of `sorted_sequence`, before or
    `right` of equal elements.

    The sequence is a vector, or has the axes of `values` except for the last one.
    """

def segment_sum(data: Expr, segment_ids: Expr, num_segments: int | Expr | None = None) -> Call:
    """Sums of the rows of `data` with equal ids: row k of the result is the sum of rows whose id is
    k.

    The number of rows is `num_segments`, or one more than the largest id. Rows without an id and
    rows whose id is not below `num_segments` are ignored. Negative ids count from the end.
    """

def select_boxes(
    boxes: Expr, scores: Expr, max_output_boxes: Expr, iou_threshold: Expr, score_threshold: Expr, most: int = -1
) -> Call:
    """The boxes (B, N, 4) that remain for each image and each class of the scores (B, C, N).

    The corners of a box are its first two and its last two numbers. Of the boxes of a class with a score above
    `score_threshold`, the best one remains, then the best one whose intersection over union with none of those that
    remain exceeds `iou_threshold`, and so on, up to `max_output_boxes`. The result is a tuple: rows of image, class and
    box (B * C * N, 3), of which the first ones are used and the others are 0; and the number of rows that are used,
    of shape (1,). With `most` of at least 0, at most `most` boxes of a class remain, and there are so many fewer rows.
    """

def sequence_mask(data: Expr, valid_length: Expr, mask_value: float = 0.0, axis: int = 0) -> Call:
    """`data` with elements after the first `valid_length[b]` of each sequence b replaced by
    `mask_value`.

    The sequences run along `axis`, which is 0 or 1; the batch axis is 1 or 0 accordingly.
    """

def shape_of(data: Expr, dtype: str = "int32") -> Call:
    """The shape as a vector of integers."""

def sigmoid(data: Expr) -> Call:
    """`sigmoid` of each element."""

def sign(data: Expr) -> Call:
    """`sign` of each element."""

def sin(data: Expr) -> Call:
    """`sin` of each element."""

def sinh(data: Expr) -> Call:
    """`sinh` of each element."""

def slice_like(data: Expr, shape_like: Expr, axes: int | Sequence[int] | None = None) -> Call:
    """The leading elements of `data` along `axes`, with the extents that `shape_like` has there.

    Without `axes`, all axes that both tensors have are sliced.
    """

def sliding_window(data: Expr, axis: int, window_shape: int | Sequence[int], strides: int | Sequence[int]) -> Call:
    """All windows of shape `window_shape` over the axes from `axis` on, `strides` apart.

    Each of these axes is replaced by the number of windows along it; the axes of the window are
    appended.
    """

def softmax(data: Expr, axis: int = -1) -> Call:
    """exp(data) / sum(exp(data)) along an axis."""

def sort(data: Expr, axis: int = -1, is_ascend: bool = True) -> Call:
    """The elements sorted along an axis."""

def space_to_batch_nd(
    data: Expr, block_shape: int | Sequence[int], paddings: Sequence[Sequence[int]], pad_value: float = 0.0
) -> Call:
    """Data (N, S..., rest) as (N * prod(block), S / block..., rest), each S padded first."""

def space_to_depth(data: Expr, block_size: int, layout: str = "NCHW", mode: str = "DCR") -> Call:
    """Every block of pixels becomes block_size^2 channels."""

def sparse_fill_empty_rows(sparse_indices: Expr, sparse_values: Expr, dense_shape: Expr, default_value: Expr) -> Call:
    """A sparse tensor of `dense_shape`, by rows, with `default_value` in column 0 of each row that has no value.

    Its indices, its values, and which rows had none.
    """

def sparse_reshape(sparse_indices: Expr, prev_shape: Expr, new_shape: Expr) -> Call:
    """The coordinates (N, rank) of a tensor of `prev_shape` in one of `new_shape`, and that shape, -1 resolved."""

def sparse_to_dense(
    sparse_indices: Expr,
    output_shape: Expr | int | Sequence[int],
    sparse_values: Expr,
    default_value: Expr | float | None = None,
) -> Call:
    """A tensor of `output_shape` with `sparse_values` at `sparse_indices` and `default_value` (0)
    elsewhere.

    Indices are (N, rank), or (N,) or a scalar for a vector; values are (N,), or one for all. The
    last of several values at one position wins; indices out of bounds are ignored.
    """

def split(data: Expr, indices_or_sections: int | Sequence[int], axis: int = 0) -> Call:
    """A tuple of parts of the data along `axis`.

    An integer `indices_or_sections` is the number of equal parts. A tuple lists the start of each
    part except the first, which starts at 0.
    """

def sqrt(data: Expr) -> Call:
    """`sqrt` of each element."""

def squeeze(data: Expr, axis: Expr | int | Sequence[int] | None = None) -> Call:
    """The data without the listed axes, which must have extent 1; None removes all axes of extent
    1.
    """

def stack(data: Sequence[Expr] | Expr, axis: int = 0) -> Call:
    """Tensors of equal shape stacked along a new axis."""

def std(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Call:
    """Standard deviation, the square root of the variance."""

def stft(
    data: Expr,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Expr | None = None,
    normalized: bool = False,
    onesided: bool = True,
) -> Call:
    """Short-time Fourier transform of signals (N, L): frames of `n_fft` elements, `hop_length`
    apart, times a window.

    The result is (N, bins, 1 + (L - n_fft) / hop_length, 2), with real and imaginary parts last;
    with `onesided` it has only the first n_fft / 2 + 1 bins. The window, ones by default, has
    `win_length` elements and is zero-padded on both sides. `normalized` divides by the square root
    of `n_fft`.
    """

def stop_fusion(data: Expr) -> Call:
    """`data` itself, which no kernel computes together with what uses it."""

def strided_set(
    data: Expr,
    v: Expr,
    begin: Sequence[int] | Expr,
    end: Sequence[int] | Expr,
    strides: Sequence[int] | Expr | None = None,
) -> Call:
    """A copy of `data` in which the slice data[begin:end:strides] is `v`; what `v` is too small for stays."""

def strided_slice(
    data: Expr,
    begin: Expr | int | Sequence[int],
    end: Expr | int | Sequence[int],
    strides: Expr | int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    slice_mode: str = "end",
) -> Call:
    """data[begin:end:stride] along each of `axes` (None: the leading axes), as Python slices.

    slice_mode  "end"; "size": `end` then has the extents (-1: all remaining elements) and strides are ignored;
                or "count": `end` then has the numbers of elements from `begin` on, in steps of `strides`, all of
                which may be known at run time only: whoever builds the call states that they fit
    """

def subtract(lhs: Expr, rhs: Expr) -> Call:
    """`subtract` of the elements of two tensors, which are broadcast."""

def sum(data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False, exclude: bool = False) -> Call:
    """The sum over `axis` (None: all axes; `exclude`: all but these)."""

def take(data: Expr, indices: Expr, axis: int | None = None, batch_dims: int = 0, mode: str = "clip") -> Call:
    """Slices of `data` along `axis` selected by indices; an axis of None flattens the data.

    mode  "clip" clips indices to the range of the axis (negative ones to 0), "wrap" takes them modulo the extent
    """

def tan(data: Expr) -> Call:
    """`tan` of each element."""

def tanh(data: Expr) -> Call:
    """`tanh` of each element."""

def tile(data: Expr, reps: Expr | int | Sequence[int]) -> Call:
    """The whole tensor repeated `reps` times along its axes, as in numpy.tile."""

def topk(
    data: Expr, k: Expr | int = 1, axis: int = -1, ret_type: str = "both", is_ascend: bool = False, dtype: str = "int32"
) -> Call:
    """The k greatest (smallest, if `is_ascend`) elements along an axis, in order; all elements for
    k < 1.

    ret_type  "both" gives (values, indices), "values" or "indices" one of them; `dtype` is the indices' type
    """

def transpose(data: Expr, axes: int | Sequence[int] | None = None) -> Call:
    """The data with permuted axes: axis k of the result is axis axes[k] of the data; None reverses
    the axes.
    """

def tree_ensemble(
    data: Expr,
    nodes: Expr,
    roots: Expr,
    groups: Expr,
    values: Expr,
    depth: int,
    aggregate: str = "sum",
    missing: str = "node",
) -> Call:
    """The sum (minimum, maximum) of the values of the leaves that each row of `data` (N, F) reaches.

    Trees are tables of `pack_tree_nodes`. At an inner node, a row takes the branch "yes" if its feature
    is at most the threshold. The number of an inner node is negative, -4 for the last one of the table,
    and that of leaf l is 4 * l. `roots` (T,) are the trees' first nodes. Trees groups[g] to groups[g + 1]
    - 1 give the columns of group g: one with `values` (leaves,), D with `values` (leaves, D). The result
    is (N, groups * D), accumulated in the order of the trees. Numbers of nodes, trees and features that are
    outside of the tables are clipped to them.

    aggregate   "sum", "min" or "max"
    missing     branch of NaN: "no", "yes", or "node" as each node says
    depth       largest number of inner nodes from a root to a leaf
    """

def tree_votes(
    data: Expr,
    features: Expr,
    thresholds: Expr,
    branches: Expr,
    roots: Expr,
    depth: int,
    leaves: int,
    missing: str = "no",
) -> Call:
    """The number of trees of which each row of `data` (N, F) reaches each leaf, as int32 (N, leaves).

    The tables are those of `compact_tree_ensemble`. Trees share their leaves, one for each class.

    depth       largest number of inner nodes from a root to a leaf
    leaves      number of leaves
    missing     branch of NaN, as in `compact_tree_ensemble`
    """

def trilu(data: Expr, k: Expr | int = 0, upper: bool = True) -> Call:
    """The upper (or lower) triangle of each matrix, bounded by diagonal k, with zeros elsewhere."""

def trunc(data: Expr) -> Call:
    """`trunc` of each element."""

def trunc_divide(lhs: Expr, rhs: Expr) -> Call:
    """`trunc_divide` of the elements of two tensors, which are broadcast."""

def trunc_mod(lhs: Expr, rhs: Expr) -> Call:
    """`trunc_mod` of the elements of two tensors, which are broadcast."""

def unique(data: Expr, is_sorted: bool = True, return_counts: bool = False) -> Call:
    """The distinct elements of a vector, sorted if `is_sorted`, else in the order of first
    occurrence.

    The result is a tuple: the values, the first position of each value, the index of each element's
    value, the number of values, and with `return_counts` the number of occurrences of each value.
    Unused entries are zero. NaN equals no element.
    """

def unique_rows(data: Expr, is_sorted: bool = True) -> Call:
    """The distinct rows of a matrix, in lexicographic order if `is_sorted`, else in the order of first occurrence.

    The result is a tuple: the first position of each distinct row, the index of each row among the distinct ones, the
    number of occurrences of each distinct row, and the number of distinct rows, of shape (1,). Unused entries are 0.
    NaN equals no element. The time grows with the product of the numbers of rows and of distinct rows.
    """

def unravel_index(indices: Expr, shape: Expr) -> Call:
    """The coordinates of flat positions in a tensor of a shape: result[k, ...] are those along axis k."""

def upsampling(
    data: Expr,
    scale_h: Expr | float = 1,
    scale_w: Expr | float = 1,
    layout: str = "NCHW",
    method: str = "nearest_neighbor",
    align_corners: bool = False,
) -> Call:
    """Data upsampled by two factors; `method` is "nearest_neighbor", "bilinear" or "bicubic"."""

def upsampling3d(
    data: Expr,
    scale_d: Expr | float = 1,
    scale_h: Expr | float = 1,
    scale_w: Expr | float = 1,
    layout: str = "NCDHW",
    method: str = "nearest_neighbor",
    coordinate_transformation_mode: str = "half_pixel",
) -> Call:
    """Data upsampled by three factors; `method` is "nearest_neighbor" or "trilinear"."""

def variance(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Call:
    """Variance: the mean squared difference from the mean; `unbiased` divides by the count minus
    one.
    """

def where(condition: Expr, x: Expr, y: Expr) -> Call:
    """x where the condition holds, else y; all three broadcast."""

def yolo_reorg(data: Expr, stride: int) -> Call:
    """The layer "reorg" of YOLO 2: (N, C, H, W) becomes (N, C * stride^2, H / stride, W / stride).

    The data is read as (N, C / stride^2, H * stride, W * stride), whose blocks of stride x stride
    pixels become channels; the result is read in the new shape.
    """

def zeros(shape: Expr | int | Sequence[int], dtype: str) -> Call:
    """A tensor of zeros."""

def zeros_like(data: Expr) -> Call:
    """Zeros in the shape and type of `data`."""
