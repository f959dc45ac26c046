# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of Fourier transforms, as products with constant matrices, and of mel weights.

OPS["DFT"](x)                           # real and imaginary parts along the last axis
OPS["STFT"](x, 128, window)             # transforms of frames of which each begins 128 elements after the last
"""

import math
from functools import partial

import numpy as np

from aotc.ir import DType, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.matmul_einsum import matmul
from aotc.relay.frontend.onnx.node import KnownArray, KnownInt, Table, table_by_function_name
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices, pad_or_crop
from aotc.relay.op.dft_as_matrix_product import expand_fourier_transform, fourier_matrix_of_interleaved_parts


def _fourier_transform(x: Expr, length: int, inverse: bool, onesided: bool) -> Expr:
    """Return the Fourier transform of (..., n, 1 or 2) along its second last axis, zero-padded or
    truncated to `length`, as (..., bins, 2); an inverse one-sided transform returns a real signal
    (..., length, 1).
    """
    *lead, size, parts = g.shape(x)
    dtype, fits = g.dtype(x), parts in (1, 2) and length >= 1
    text = f"a Fourier transform of length {length} of a signal of shape {g.shape(x)}: the length must be at least 1, "
    require("onnx-dft", fits, text + "and the last axis must have 1 or 2 elements (real and imaginary part)")
    if inverse and onesided:
        bins = length // 2 + 1
        x = _crop_or_zero_pad(x, size, bins, len(lead))
        if parts == 1:
            x = g.pad(x, [(0, 0)] * (len(lead) + 1) + [(0, 1)])
        back = fourier_matrix_of_interleaved_parts(partial(np.fft.irfft, n=length), bins, length, dtype)
        return g.reshape(matmul(g.reshape(x, (*lead, 2 * bins)), g.constant(back)), (*lead, length, 1))
    bins = length // 2 + 1 if onesided else length
    x = g.reshape(_crop_or_zero_pad(x, size, length, len(lead)), (math.prod(lead), length, parts))
    return g.reshape(expand_fourier_transform(x, bins, inverse, 1 / length if inverse else 1.0), (*lead, bins, 2))


def _crop_or_zero_pad(x: Expr, signal_length: int, result_length: int, axis: int) -> Expr:
    """Truncate a signal, or pad it with zeros, to `result_length` elements along `axis`."""
    return pad_or_crop(x, [(0, result_length - signal_length) if k == axis else (0, 0) for k in range(g.rank(x))])


def _dft(x: Expr, dft_length: KnownInt | None = None, axis: KnownInt = -2, *, inverse: bool, onesided: bool) -> Expr:
    """Convert DFT; the axis is an attribute up to version 17 and an input later."""
    rank = g.rank(x)
    place = g.normalize_axis(axis, rank)
    size = g.shape(x)[place]
    usual = 2 * (size - 1) if inverse and onesided else size
    order = [k for k in range(rank - 1) if k != place] + [place, rank - 1]
    length = usual if dft_length is None else dft_length
    y = _fourier_transform(g.transpose(x, order), length, inverse, onesided)
    return g.transpose(y, [order.index(k) for k in range(rank)])


def _stft(
    x: Expr, step: KnownInt, window: Expr | None = None, frame_length: KnownInt | None = None, *, onesided: bool = True
) -> Expr:
    """Convert STFT: gather overlapping frames, multiply them by the window and transform them."""
    if g.rank(x) == 2:
        x = g.reshape(x, (*g.shape(x), 1))
    batch, size, parts = g.shape(x)
    length = size if window is None else g.shape(window)[0]
    length = length if frame_length is None else frame_length
    fits = step >= 1 and 1 <= length <= size
    require("onnx-dft", fits, f"frames of {length} every {step} do not fit a signal of {size}")
    count = (size - length) // step + 1
    g.check_materialization_cost((count, length), "int64", "the frames of STFT")
    index = np.arange(count)[:, None] * step + np.arange(length)[None, :]
    frames = gather_slices(x, g.constant(index.reshape(-1), "int64"), 1)
    frames = g.reshape(frames, (batch, count, length, parts))
    if window is not None:
        frames = g.mul(frames, g.reshape(window, (1, 1, length, 1)))
    return _fourier_transform(frames, length, False, onesided)


def _mel_weight_matrix(
    num_mel_bins: KnownInt,
    dft_length: KnownInt,
    sample_rate: KnownInt,
    lower_edge_hertz: KnownArray,
    upper_edge_hertz: KnownArray,
    *,
    output_datatype: DType,
) -> Expr:
    """Convert MelWeightMatrix, the weights (dft_length // 2 + 1, num_mel_bins) of triangular windows at equal
    distances on the mel scale.

    Frequencies of windows are multiples of a step from the lower edge, of which num_mel_bins + 2 reach the upper
    edge, as the standard's reference computes it.
    """
    edges = (lower_edge_hertz, upper_edge_hertz)
    low, high = (float(g.require_single_element(v, "each edge of MelWeightMatrix")) for v in edges)
    fits = min(num_mel_bins, dft_length, sample_rate) > 0 and 0 <= low < high < math.inf
    sizes = f"num_mel_bins {num_mel_bins}, dft_length {dft_length}, sample_rate {sample_rate}, edges {low} and {high}"
    require("onnx-mel", fits, f"{sizes} make no weights: the first three must be positive, the edges must increase")
    rows = dft_length // 2 + 1
    g.check_materialization_cost((rows, num_mel_bins), "float64", "the result of MelWeightMatrix")
    first, last = (2595 * math.log10(1 + hertz / 700) for hertz in (low, high))
    mels = np.arange(num_mel_bins + 2) * ((last - first) / (num_mel_bins + 2)) + first
    hertz = 700 * np.expm1(mels / 2595 * math.log(10))
    bins = np.floor((dft_length + 1) * hertz / sample_rate).astype(np.int64)
    text = f"{sizes}: the window of frequency {hertz.max():.6g} is beyond the spectrum"
    require("onnx-mel", bool(bins[-1] <= rows), text)
    begin, center, end = bins[:-2], bins[1:-1], bins[2:]
    row = np.arange(rows)[:, None]
    rising = np.where(center > begin, (row - begin) / np.maximum(center - begin, 1), 1.0)
    falling = (end - row) / np.maximum(end - center, 1)
    weights = np.where((row >= begin) & (row <= center), rising, 0.0)
    weights = np.where((row >= center) & (row < end), falling, weights)
    return g.constant(weights.astype(output_datatype.numpy))


OPS: Table = {**table_by_function_name(_mel_weight_matrix), "DFT": _dft, "STFT": _stft}
