# SPDX-License-Identifier: Apache-2.0
"""Discrete Fourier transforms as products with constant matrices: one matrix, or two for a
composite length.

expand_fourier_transform(x, bins=1025)  # x (rows, 2048, 1), real signals: a result (rows, 1025, 2)
expand_fourier_transform(x, bins=20, inverse=True)  # x (rows, 20, 2)

A transform of length N = P * Q consists of Q transforms of length P followed by P transforms of
length Q (Cooley and Tukey, 1965). For element Q * p + q of a signal, bin i + P * j and w(N, k) =
exp(-2 pi i k / N):

    X[i + P * j] = sum over q of w(Q, q * j) * (w(N, q * i) * (sum over p of w(P, p * i) * x[Q * p + q]))

The first 1,025 bins of a real signal of 2,048 elements take 200 multiplications per element instead
of 2,050, and matrices of 74 KB instead of 17 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isqrt
from typing import Final

import numpy as np

from aotc.ir import Dim, DType, is_static, product_of_dims, require, require_static_shape
from aotc.ir.compilation_work_and_memory_limits import array_computation_cost, current_budget
from aotc.relay.expr import Constant, Expr, tensor_type_of
from aotc.relay.op import binary_elementwise, dense, shape
from aotc.relay.op import slice as slices
from aotc.relay.op.opdef import Array

#: Cost of a pass over a signal, in multiplications per element; two factors need two more passes
#: than one matrix.
PASS_COST_IN_MULTIPLICATIONS: Final = 24


def fourier_matrix_of_interleaved_parts(
    transform: Callable[[Array], Array], length: int, columns: int, dtype: str
) -> Array:
    """Return the matrix (2 * length, columns) of a Fourier transform of interleaved real and
    imaginary parts.

    The rows are the transforms of the unit vectors and of the unit vectors times i. Raise AotcError
    (code "budget") if the matrix is too large.
    """
    cost = array_computation_cost(2 * length * columns, DType(dtype).itemsize, 2)
    current_budget().spend_compile_time_cost_or_raise(
        cost, f"the matrix of a Fourier transform of shape {(2 * length, columns)}"
    )
    units = np.stack([np.eye(length), 1j * np.eye(length)], 1).reshape(2 * length, length)
    parts = transform(units).view(np.float64)
    return np.ascontiguousarray(parts[:, :columns]).astype(DType(dtype).numpy)


def expand_fourier_transform(signals: Expr, bins: int, inverse: bool = False, scale: float = 1.0) -> Expr:
    """Return the first `bins` bins of the transforms of signals: (rows, length, parts) -> (rows,
    bins, 2).

    signals    signals with parts = 2 for real and imaginary part, 1 for real signals; the number of rows may be
               known at run time only
    inverse    True for the inverse transform without division by the length
    scale      factor of the result
    """
    rows, length, parts = _shape_of_signals(signals)
    first = _cheapest_first_factor_of_length(length, parts, bins)
    if first == 1:
        dtype = str(tensor_type_of(signals).dtype)
        matrix = (
            scale
            * fourier_matrix_of_interleaved_parts(_numpy_unscaled_fft(inverse), length, 2 * bins, dtype)[:: 3 - parts]
        )
        flat = shape.reshape(signals, (rows, length * parts), allowzero=True)
        return shape.reshape(dense.matmul(flat, Constant(matrix)), (rows, bins, 2), allowzero=True)
    return _expand_two_factor_transform(signals, first, bins, inverse, scale)


def _shape_of_signals(signals: Expr) -> tuple[Dim, int, int]:
    """Return the number of rows, which may be symbolic, and the other dimensions; raise AotcError (code
    "dynamic-shape") if one of these is symbolic.
    """
    ty = tensor_type_of(signals)
    require("dynamic-shape", is_static(ty.shape[1:]), lambda: f"signals must have a known length, got {ty}")
    length, parts = require_static_shape(ty.shape[1:])
    return ty.shape[0], length, parts


def _numpy_unscaled_fft(inverse: bool) -> Callable[[Array], Array]:
    return partial(np.fft.ifft, norm="forward") if inverse else np.fft.fft


def _cheapest_first_factor_of_length(length: int, parts_per_signal_element: int, bins: int) -> int:
    """Return the factor P of the length with the fewest multiplications per element; 1 for a single
    matrix.
    """

    def multiplications_per_element(first_factor: int) -> int:
        if first_factor == 1:
            return 2 * parts_per_signal_element * bins
        return 2 * parts_per_signal_element * first_factor + 4 * -(-bins // first_factor) + PASS_COST_IN_MULTIPLICATIONS

    smaller = [n for n in range(2, isqrt(length) + 1) if length % n == 0]
    return min((1, *smaller, *(length // n for n in smaller)), key=multiplications_per_element)


def _expand_two_factor_transform(x: Expr, first_factor: int, bins: int, inverse: bool, scale: float) -> Expr:
    """Return the transform by two matrices, the first for transforms of length `first_factor`."""
    rows, length, parts = _shape_of_signals(x)
    second, sign = length // first_factor, 1 if inverse else -1
    numpy_type = tensor_type_of(x).dtype.numpy
    elements = 2 * first_factor * first_factor * parts + 4 * length + 4 * second * -(-bins // first_factor)
    cost = array_computation_cost(elements, tensor_type_of(x).dtype.itemsize, 2)
    current_budget().spend_compile_time_cost_or_raise(cost, f"the matrices of Fourier transforms of {length} elements")

    def powers_of_root_of_unity(order: int, exponents: Array) -> Array:
        return np.exp(sign * 2j * np.pi * (exponents % order) / order)

    def constant_of_signal_dtype(values: Array) -> Constant:
        return Constant(np.ascontiguousarray(values.astype(numpy_type)))

    i, p, q = np.arange(first_factor), np.arange(first_factor), np.arange(second)
    j = np.arange(-(-bins // first_factor))
    # (rows, p, part, q): a vector over q for each element of a short transform
    grid = shape.reshape(x, (rows, first_factor, second, parts), allowzero=True)
    if parts == 2:
        grid = shape.transpose(grid, (0, 1, 3, 2))
    columns = shape.reshape(grid, (rows, first_factor * parts, second), allowzero=True)
    short = _complex_matrix_as_real_array(powers_of_root_of_unity(first_factor, i[:, None] * p))[
        :, :, :, :parts
    ].reshape(1, 2 * first_factor, first_factor * parts)
    partial_dfts = dense.batch_matmul(constant_of_signal_dtype(short), columns, transpose_b=False)
    partial_dfts = shape.reshape(partial_dfts, (rows, first_factor, 2, second), allowzero=True)
    # complex multiplication by the twiddle factor w = w(N, q * i) in real arithmetic:
    # re(x * w) = re(x) * re(w) - im(x) * im(w) and im(x * w) = im(x) * re(w) + re(x) * im(w)
    twiddles = scale * powers_of_root_of_unity(length, i[:, None] * q)
    real = np.stack([twiddles.real, twiddles.real], 1)
    imaginary = np.stack([-twiddles.imag, twiddles.imag], 1)
    swapped = slices.reverse(partial_dfts, axis=2)
    rotated = binary_elementwise.add(
        binary_elementwise.multiply(partial_dfts, constant_of_signal_dtype(real)),
        binary_elementwise.multiply(swapped, constant_of_signal_dtype(imaginary)),
    )
    lines = shape.reshape(rotated, (product_of_dims((rows, first_factor)), 2 * second), allowzero=True)
    # (part, q) to (j, part)
    long = (
        _complex_matrix_as_real_array(powers_of_root_of_unity(second, j[:, None] * q))
        .transpose(3, 2, 0, 1)
        .reshape(2 * second, 2 * len(j))
    )
    spectrum = dense.matmul(lines, constant_of_signal_dtype(long))
    spectrum = shape.reshape(spectrum, (rows, first_factor, len(j), 2), allowzero=True)
    spectrum = shape.reshape(shape.transpose(spectrum, (0, 2, 1, 3)), (rows, len(j) * first_factor, 2), allowzero=True)
    if len(j) * first_factor == bins:
        return spectrum
    return slices.strided_slice(spectrum, [0], [bins], [1], axes=[1])


def _complex_matrix_as_real_array(matrix: Array) -> Array:
    """Return a complex matrix (rows, columns) as a real array (rows, result part, columns, vector
    part).
    """
    return np.stack([np.stack([matrix.real, -matrix.imag], -1), np.stack([matrix.imag, matrix.real], -1)], 1)
