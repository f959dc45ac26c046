# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of Fourier transforms, as products with matrices, and of mel weights. The matrices are constant
unless the length of the transform is known at run time only.

OPS["DFT"](x)                           # real and imaginary parts along the last axis
OPS["STFT"](x, 128, window)             # transforms of frames of which each begins 128 elements after the last
"""

import math
from functools import partial

import numpy as np

from aotc.ir import Array, Dim, DType, SymDim, interval_of_dim, largest_size, product_of_dims, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.found_sizes import with_required_range
from aotc.relay.frontend.matmul_einsum import matmul
from aotc.relay.frontend.onnx.node import SizeInput, Table, table_by_function_name
from aotc.relay.frontend.onnx.run_time_axes import apply_along_axis_known_at_run_time
from aotc.relay.frontend.run_time_slices import largest_of_dims
from aotc.relay.frontend.size_conditions import require_at_least, require_equal_dims
from aotc.relay.frontend.size_operands import define_size
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices, pad_or_crop
from aotc.relay.graph_api import compile_time_elements
from aotc.relay.op.dft_as_matrix_product import expand_fourier_transform, fourier_matrix_of_interleaved_parts


def _fourier_transform(x: Expr, length: Dim, inverse: bool, onesided: bool) -> Expr:
    """Return the Fourier transform of (..., n, 1 or 2) along its second last axis, zero-padded or
    truncated to `length`, as (..., bins, 2); an inverse one-sided transform returns a real signal
    (..., length, 1).
    """
    *lead, size, parts = g.dims(x)
    fits = parts in (1, 2) and interval_of_dim(length)[1] >= 1
    text = f"a Fourier transform of length {length} of a signal of shape {g.dims(x)}: the length must be at least 1, "
    require("onnx-dft", fits, text + "and the last axis must have 1 or 2 elements (real and imaginary part)")
    rows = product_of_dims(lead)
    bins = length // 2 + 1 if onesided else length
    if isinstance(length, SymDim):
        length = define_size(length, 1, largest_size(length))
        bins = define_size(length // 2 + 1, 1, largest_size(length) // 2 + 1) if onesided else length
    given = bins if inverse and onesided else length
    x = pad_or_crop(x, [*[(0, 0)] * len(lead), (0, given - size), (0, 0)])
    if inverse and onesided:
        if parts == 1:
            x = g.pad(x, [(0, 0)] * (len(lead) + 1) + [(0, 1)])
        back = _matrix_of_real_inverse(bins, length, g.dtype(x))
        return g.reshape(matmul(g.reshape(x, (rows, 2 * bins)), back), (*lead, length, 1))
    x = g.reshape(x, (rows, length, parts))
    if isinstance(length, int):
        transform = expand_fourier_transform(
            x, length // 2 + 1 if onesided else length, inverse, 1 / length if inverse else 1.0
        )
    else:
        matrix = _matrix_of_run_time_length(length, bins, parts == 2, inverse, g.dtype(x))
        transform = matmul(g.reshape(x, (rows, length * parts)), matrix)
    return g.reshape(transform, (*lead, bins, 2))


def _matrix_of_real_inverse(bins: Dim, length: Dim, dtype: DType) -> Expr:
    """Return the matrix (2 * bins, length) from the first bins of a spectrum, as interleaved real and imaginary parts,
    to a real signal.
    """
    if isinstance(length, int):
        known = fourier_matrix_of_interleaved_parts(partial(np.fft.irfft, n=length), length // 2 + 1, length, dtype)
        return g.constant(known)
    cosines, sines = _roots_of_unity(length)
    table = g.stack([cosines, g.negative(sines)], 1)
    waves = g.transpose(g.call_op("take", table, _exponents(bins, length, length), axis=0, mode="clip"), (0, 2, 1))
    # all bins but the first one, and the middle one of an even length, stand for their conjugates too
    twice = g.mul(g.positions_up_to(bins), 2)
    is_single = g.logical_or(g.equal(twice, 0), g.equal(twice, g.size_as_tensor(length)))
    weights = g.div(g.where(is_single, g.constant(1.0), g.constant(2.0)), g.cast(g.size_as_tensor(length), "float64"))
    return g.cast(g.reshape(g.mul(waves, g.reshape(weights, (bins, 1, 1))), (2 * bins, length)), dtype)


def _matrix_of_run_time_length(length: Dim, bins: Dim, is_complex: bool, inverse: bool, dtype: DType) -> Expr:
    """Return the matrix (parts * length, 2 * bins) of a Fourier transform of interleaved real and imaginary parts, or
    of real signals.
    """
    cosines, sines = _roots_of_unity(length)
    sines = sines if inverse else g.negative(sines)
    columns = [g.stack([cosines, sines], 1)]
    if is_complex:
        columns.append(g.stack([g.negative(sines), cosines], 1))
    table = g.stack(columns, 1)
    if inverse:
        table = g.div(table, g.cast(g.size_as_tensor(length), "float64"))
    table = g.cast(table, dtype)
    waves = g.call_op("take", table, _exponents(length, bins, length), axis=0, mode="clip")
    return g.reshape(g.transpose(waves, (0, 2, 1, 3)), (length * len(columns), 2 * bins))


def _roots_of_unity(length: Dim) -> tuple[Expr, Expr]:
    """Return the vectors cos(2 pi k / length) and sin(2 pi k / length) for k from 0 to length - 1, as float64."""
    angles = g.div(
        g.mul(g.positions_up_to(length, "float64"), 2 * math.pi), g.cast(g.size_as_tensor(length), "float64")
    )
    return g.call_op("cos", angles), g.call_op("sin", angles)


def _exponents(rows: Dim, columns: Dim, length: Dim) -> Expr:
    """Return the products of row and column modulo a length, as int64 (rows, columns)."""
    row, column = g.reshape(g.positions_up_to(rows), (rows, 1)), g.reshape(g.positions_up_to(columns), (1, columns))
    return g.floor_mod(g.mul(row, column), g.size_as_tensor(length))


def _dft(
    x: Expr, dft_length: SizeInput | None = None, axis: SizeInput | None = None, *, inverse: bool, onesided: bool
) -> Expr:
    """Convert DFT; the axis is an attribute up to version 17 and an input later."""
    rank = g.rank(x)
    place = -2 if axis is None else _single_value(axis, -rank, rank - 2)
    length = None if dft_length is None else _single_value(dft_length, 1, None)

    def transform(y: Expr) -> Expr:
        size = g.dims(y)[-2]
        usual = 2 * (size - 1) if inverse and onesided else size
        return _fourier_transform(y, usual if length is None else length, inverse, onesided)

    if isinstance(place, SymDim):
        return apply_along_axis_known_at_run_time(transform, x, place, 1)
    place = g.normalize_axis(place, rank)
    require("onnx-dft", place < rank - 1, "the axis of DFT is the last one, which holds real and imaginary parts")
    order = [k for k in range(rank - 1) if k != place] + [place, rank - 1]
    return g.transpose(transform(g.transpose(x, order)), [order.index(k) for k in range(rank)])


def _single_value(given: SizeInput, least: int, most: int | None) -> Dim:
    values = given.within(least, most)
    text = f"`{given.name}` of {given.node.op_type} must be one value, got {values}"
    require("onnx-input", len(values) == 1, text)
    return values[0]


def _stft(
    x: Expr,
    frame_step: SizeInput,
    window: Expr | None = None,
    frame_length: SizeInput | None = None,
    *,
    onesided: bool = True,
) -> Expr:
    """Convert STFT: gather overlapping frames, multiply them by the window and transform them."""
    if g.rank(x) == 2:
        x = g.reshape(x, (*g.dims(x), 1))
    batch, size, parts = g.dims(x)
    most = largest_of_dims([size])
    step = _single_value(frame_step, 1, most)
    length = size if window is None else g.dims(window)[0]
    if frame_length is not None:
        length = _single_value(frame_length, 1, most)
    text = f"frames of {length} every {step} do not fit a signal of {size}"
    require("onnx-dft", isinstance(step, SymDim) or step >= 1, text)
    require("onnx-dft", interval_of_dim(length)[1] >= 1, text)
    require_at_least("onnx-dft", size, length, text)
    if window is not None:
        require_equal_dims("onnx-dft", g.dims(window)[0], length, f"a window of {g.dims(window)} for {text}")
    count = (size - length) // step + 1
    if isinstance(count, SymDim):
        count = define_size(count, 1, largest_size(count))
    frames = gather_slices(x, _positions_of_frames(count, length, step), 1)
    frames = g.reshape(frames, (batch, count, length, parts))
    if window is not None:
        frames = g.mul(frames, g.reshape(window, (1, 1, length, 1)))
    return _fourier_transform(frames, length, False, onesided)


def _positions_of_frames(count: Dim, length: Dim, step: Dim) -> Expr:
    """Return the positions (count * length) of the elements of frames, of which each begins `step` elements after the
    last.
    """
    if isinstance(count, int) and isinstance(length, int) and isinstance(step, int):
        g.check_materialization_cost((count, length), "int64", "the frames of STFT")
        index = np.arange(count)[:, None] * step + np.arange(length)[None, :]
        return g.constant(index.reshape(-1), "int64")
    begins = g.mul(g.reshape(g.positions_up_to(count), (count, 1)), g.size_as_tensor(step))
    positions = g.add(begins, g.reshape(g.positions_up_to(length), (1, length)))
    return g.reshape(positions, (product_of_dims((count, length)),))


def _mel_weight_matrix(
    num_mel_bins: SizeInput,
    dft_length: SizeInput,
    sample_rate: Expr,
    lower_edge_hertz: Expr,
    upper_edge_hertz: Expr,
    *,
    output_datatype: DType,
) -> Expr:
    """Convert MelWeightMatrix, the weights (dft_length // 2 + 1, num_mel_bins) of triangular windows at equal
    distances on the mel scale.

    Frequencies of windows are multiples of a step from the lower edge, of which num_mel_bins + 2 reach the upper
    edge, as the standard's reference computes it.
    """
    bins, length = _single_value(num_mel_bins, 1, None), _single_value(dft_length, 1, None)
    numbers = (sample_rate, lower_edge_hertz, upper_edge_hertz)
    for number in numbers:
        text = f"each number of MelWeightMatrix must be one value, got the shape {g.dims(number)}"
        require("onnx-mel", g.shape(number) in ((), (1,)), text)
    known = [compile_time_elements(number) for number in numbers]
    if isinstance(bins, int) and isinstance(length, int) and all(v is not None for v in known):
        elements = [v.reshape(-1)[0] for v in known if v is not None]
        weights = _known_mel_weights(bins, length, int(elements[0]), *map(float, elements[1:]))
        return g.constant(weights.astype(output_datatype.numpy))
    rate, low, high = (g.cast(g.reshape(number, ()), "float64") for number in numbers)
    return g.cast(_run_time_mel_weights(bins, length, rate, low, high), output_datatype)


def _known_mel_weights(num_mel_bins: int, dft_length: int, sample_rate: int, low: float, high: float) -> Array:
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
    return np.where((row >= center) & (row < end), falling, weights)


def _run_time_mel_weights(num_mel_bins: Dim, dft_length: Dim, rate: Expr, low: Expr, high: Expr) -> Expr:
    """Return what `_known_mel_weights` does, as float64; a run ends for numbers that make no weights."""
    rows: Dim = dft_length // 2 + 1
    if isinstance(rows, SymDim):
        rows = define_size(rows, 1, largest_size(rows))
    first, last = (g.mul(g.call_op("log10", g.add(g.div(hertz, 700.0), 1.0)), 2595.0) for hertz in (low, high))
    count = g.cast(g.size_as_tensor(num_mel_bins + 2), "float64")
    mels = g.add(g.mul(g.positions_up_to(num_mel_bins + 2, "float64"), g.div(g.sub(last, first), count)), first)
    hertz = g.mul(g.call_op("expm1", g.mul(g.div(mels, 2595.0), math.log(10))), 700.0)
    length = g.cast(g.size_as_tensor(dft_length + 1), "float64")
    bins = g.call_op("floor", g.div(g.mul(hertz, length), rate))
    # whole numbers as floats: values that are too large or no numbers have no integers
    begin, center, end = (g.counted_slice(bins, [k], [num_mel_bins], [1]) for k in (0, 1, 2))
    row = g.reshape(g.positions_up_to(rows, "float64"), (rows, 1))
    width = g.sub(center, begin)
    rising = g.where(g.greater(width, 0.0), g.div(g.sub(row, begin), g.maximum(width, 1.0)), 1.0)
    falling = g.div(g.sub(end, row), g.maximum(g.sub(end, center), 1.0))
    is_rising = g.logical_and(g.greater_equal(row, begin), g.greater_equal(center, row))
    is_falling = g.logical_and(g.greater_equal(row, center), g.less(row, end))
    weights = g.where(is_falling, falling, g.where(is_rising, rising, 0.0))
    last_end = g.counted_slice(bins, [num_mel_bins + 1], [1], [1])
    conditions = (
        g.greater(rate, 0.0),
        g.greater_equal(low, g.constant(0.0)),
        g.less(low, high),
        g.greater_equal(g.cast(g.size_as_tensor(rows), "float64"), last_end),
    )
    text = "the numbers of MelWeightMatrix are positive, its edges increase, and its windows are in the spectrum"
    return with_required_range(weights, g.logical_and(*conditions), 1, 1, text)


OPS: Table = {**table_by_function_name(_mel_weight_matrix), "DFT": _dft, "STFT": _stft}
