# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms as products with constant matrices: one matrix, or two where the length has factors.

transformed(x, bins=1025)               # x (rows, 2048, 1), real signals: a result (rows, 1025, 2)
transformed(x, bins=20, inverse=True)   # x (rows, 20, 2)

A transform of length N = P * Q is P transforms of length Q behind Q transforms of length P (Cooley and Tukey, 1965):
with element Q * p + q of a signal, bin i + P * j, and w(N, k) = exp(-2 pi i k / N),

    X[i + P * j] = sum over q of w(Q, q * j) * (w(N, q * i) * (sum over p of w(P, p * i) * x[Q * p + q]))

The first 1,025 bins of a real signal of 2,048 elements take 200 products an element instead of 2,050, and matrices of
74 KB instead of 17 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isqrt
from typing import Final

import numpy as np

from aotc.ir import DType
from aotc.ir.compile_time_limits import array_cost, budget
from aotc.relay.expr import Constant, Expr, tensor_type_of
from aotc.relay.op import binary_elementwise, dense, shape
from aotc.relay.op import slice as slices
from aotc.relay.op.opdef import Array
from aotc.relay.op.type_rules import static_shape_of

#: What a pass over a signal takes, in products of an element: two factors need two more of them.
PASS_PRODUCTS: Final = 24


def fourier_matrix(transform: Callable[[Array], Array], length: int, columns: int, dtype: str) -> Array:
    """(2 * length, columns): takes a vector's interleaved real and imaginary parts to those of its transform.

    The rows are the transforms of the vectors that are 1 or i in one place.  Raises AotcError (code "budget") where
    the matrix would be too large.
    """
    cost = array_cost(2 * length * columns, DType(dtype).itemsize, 2)
    budget().require(cost, f"the matrix of a Fourier transform of shape {(2 * length, columns)}")
    units = np.stack([np.eye(length), 1j * np.eye(length)], 1).reshape(2 * length, length)
    parts = transform(units).view(np.float64)
    return np.ascontiguousarray(parts[:, :columns]).astype(DType(dtype).numpy)


def transformed(x: Expr, bins: int, inverse: bool = False, scale: float = 1.0) -> Expr:
    """The first `bins` bins of the transforms of signals, times a scale: (rows, length, parts) to (rows, bins, 2).

    parts   2 for real and imaginary parts, 1 for real signals
    """
    rows, length, parts = static_shape_of(x)
    first = _first_factor(length, parts, bins)
    if first == 1:
        dtype = str(tensor_type_of(x).dtype)
        matrix = scale * fourier_matrix(_unscaled(inverse), length, 2 * bins, dtype)[:: 3 - parts]
        flat = shape.reshape(x, (rows, length * parts), allowzero=True)
        return shape.reshape(dense.matmul(flat, Constant(matrix)), (rows, bins, 2), allowzero=True)
    return _by_factors(x, first, bins, inverse, scale)


def _unscaled(inverse: bool) -> Callable[[Array], Array]:
    return partial(np.fft.ifft, norm="forward") if inverse else np.fft.fft


def _first_factor(length: int, parts: int, bins: int) -> int:
    """The factor P that takes the least products for an element; 1 for a single matrix."""

    def products(first: int) -> int:
        if first == 1:
            return 2 * parts * bins
        return 2 * parts * first + 4 * -(-bins // first) + PASS_PRODUCTS

    smaller = [n for n in range(2, isqrt(length) + 1) if length % n == 0]
    return min((1, *smaller, *(length // n for n in smaller)), key=products)


def _by_factors(x: Expr, first: int, bins: int, inverse: bool, scale: float) -> Expr:
    """The transform by two matrices, the first for transforms of length `first`."""
    rows, length, parts = static_shape_of(x)
    second, sign = length // first, 1 if inverse else -1
    numpy_type = tensor_type_of(x).dtype.numpy
    elements = 2 * first * first * parts + 4 * length + 4 * second * -(-bins // first)
    cost = array_cost(elements, tensor_type_of(x).dtype.itemsize, 2)
    budget().require(cost, f"the matrices of Fourier transforms of {length} elements")

    def roots(of: int, powers: Array) -> Array:
        return np.exp(sign * 2j * np.pi * (powers % of) / of)

    def constant(values: Array) -> Constant:
        return Constant(np.ascontiguousarray(values.astype(numpy_type)))

    i, p, q = np.arange(first), np.arange(first), np.arange(second)
    j = np.arange(-(-bins // first))
    # (rows, p, part, q): a vector of neighbors q for each element of a short transform
    apart = shape.reshape(x, (rows, first, second, parts), allowzero=True)
    if parts == 2:
        apart = shape.transpose(apart, (0, 1, 3, 2))
    columns = shape.reshape(apart, (rows, first * parts, second), allowzero=True)
    short = _real_form(roots(first, i[:, None] * p))[:, :, :, :parts].reshape(1, 2 * first, first * parts)
    made = dense.batch_matmul(constant(short), columns, transpose_b=False)
    made = shape.reshape(made, (rows, first, 2, second), allowzero=True)
    # times w(N, q * i): the other part, with its sign, lies on the other side of the axis of parts
    twiddles = scale * roots(length, i[:, None] * q)
    real = np.stack([twiddles.real, twiddles.real], 1)
    imaginary = np.stack([-twiddles.imag, twiddles.imag], 1)
    swapped = slices.reverse(made, axis=2)
    rotated = binary_elementwise.add(
        binary_elementwise.multiply(made, constant(real)), binary_elementwise.multiply(swapped, constant(imaginary))
    )
    lines = shape.reshape(rotated, (rows * first, 2 * second), allowzero=True)
    # (part, q) to (j, part)
    long = _real_form(roots(second, j[:, None] * q)).transpose(3, 2, 0, 1).reshape(2 * second, 2 * len(j))
    found = dense.matmul(lines, constant(long))
    found = shape.reshape(found, (rows, first, len(j), 2), allowzero=True)
    found = shape.reshape(shape.transpose(found, (0, 2, 1, 3)), (rows, len(j) * first, 2), allowzero=True)
    if len(j) * first == bins:
        return found
    return slices.strided_slice(found, [0], [bins], [1], axes=[1])


def _real_form(matrix: Array) -> Array:
    """A complex matrix (rows, columns) as (rows, part of the result, columns, part of the vector)."""
    return np.stack([np.stack([matrix.real, -matrix.imag], -1), np.stack([matrix.imag, matrix.real], -1)], 1)
