# SPDX-License-Identifier: Apache-2.0
"""Converters of signal processing: Fourier transforms as products with constant matrices,
Col2Im as a scatter.

OPS["DFT"](node)                        # real and imaginary parts along the last axis
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.matmul import matmul
from aotc.relay.frontend.onnx.node import Node, Table
from aotc.relay.frontend.shapes import take

# --- Fourier transforms


def _matrix(length: int, bins: int, inverse: bool, dtype: str) -> Expr:
    """(2 * length, 2 * bins): takes interleaved real and imaginary parts to those of the transform."""
    g.check_materialized((2 * length, 2 * bins), dtype, "the matrix of a Fourier transform")
    turns = np.outer(np.arange(length), np.arange(bins)) % length  # exact angles, however long the signal
    angle = turns * (2 * math.pi / length) * (1 if inverse else -1)
    scale = 1 / length if inverse else 1.0
    c, s = np.cos(angle) * scale, np.sin(angle) * scale
    matrix = np.empty((length, 2, bins, 2))
    matrix[:, 0, :, 0], matrix[:, 0, :, 1] = c, s
    matrix[:, 1, :, 0], matrix[:, 1, :, 1] = -s, c
    return g.constant(matrix.reshape(2 * length, 2 * bins), dtype)


def _real_matrix(bins: int, length: int, dtype: str) -> Expr:
    """(2 * bins, length): takes the one-sided spectrum of a real signal back to the signal."""
    full = np.zeros((bins, 2, length))
    for k, n in itertools.product(range(bins), range(length)):
        weight = 1.0 if k == 0 or 2 * k == length else 2.0
        angle = 2 * math.pi * (k * n % length) / length
        full[k, 0, n], full[k, 1, n] = weight * math.cos(angle) / length, -weight * math.sin(angle) / length
    return g.constant(full.reshape(2 * bins, length), dtype)


def transform(x: Expr, length: int, inverse: bool, onesided: bool) -> Expr:
    """The transform along the second last axis of (..., n, 1 or 2); (..., bins, 2), real
    signals (..., n, 1).
    """
    *lead, size, parts = g.shape(x)
    dtype = g.dtype(x)
    if parts not in (1, 2) or length < 1:
        raise AotcError("onnx-dft", f"a signal of shape {g.shape(x)} cannot be transformed to length {length}")
    if inverse and onesided:
        bins = length // 2 + 1
        x = _fitted(x, size, bins, len(lead))
        if parts == 1:
            x = g.pad(x, [(0, 0)] * (len(lead) + 1) + [(0, 1)])
        g.check_materialized((2 * bins, length), dtype, "the matrix of a Fourier transform")
        return g.reshape(matmul(g.reshape(x, (*lead, 2 * bins)), _real_matrix(bins, length, dtype)), (*lead, length, 1))
    bins = length // 2 + 1 if onesided else length
    matrix = _matrix(length, bins, inverse, dtype)
    if parts == 1:
        matrix = g.reshape(g.cut(g.reshape(matrix, (length, 2, 2 * bins)), [0], [1], [1]), (length, 2 * bins))
    x = _fitted(x, size, length, len(lead))
    return g.reshape(matmul(g.reshape(x, (*lead, length * parts)), matrix), (*lead, bins, 2))


def _fitted(x: Expr, size: int, length: int, axis: int) -> Expr:
    """A signal cut, or filled up with zeros, to `length`."""
    if size >= length:
        return g.cut(x, [0], [length], [axis]) if size > length else x
    return g.pad(x, [(0, length - size) if k == axis else (0, 0) for k in range(g.rank(x))])


def _dft(node: Node) -> Expr:
    """The axis is an attribute up to version 17, an input after."""
    x = node[0]
    rank = g.rank(x)
    if node.since < 20:
        axis = g.axis(node.integer("axis", 1), rank)
    else:
        given = node.const_ints(2, "the axis")
        axis = g.axis(given[0] if given else -2, rank)
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    size = g.shape(x)[axis]
    length = node.const_ints(1, "the length")
    default = 2 * (size - 1) if inverse and onesided else size
    order = [k for k in range(rank - 1) if k != axis] + [axis, rank - 1]
    y = transform(g.transpose(x, order), length[0] if length else default, inverse, onesided)
    return g.transpose(y, [order.index(k) for k in range(rank)])


def _stft(node: Node) -> Expr:
    """Overlapping frames are gathered, weighted by the window and transformed."""
    x, step, window = node[0], node.const_int(1, "the step"), node.optional(2)
    if g.rank(x) == 2:
        x = g.reshape(x, (*g.shape(x), 1))
    batch, size, parts = g.shape(x)
    given = node.const_ints(3, "the frame length")
    length = given[0] if given else g.shape(window)[0] if window is not None else size
    if step < 1 or not 1 <= length <= size:
        raise AotcError("onnx-dft", f"frames of {length} every {step} do not fit a signal of {size}")
    count = (size - length) // step + 1
    g.check_materialized((count, length), "int64", "the frames of STFT")
    index = np.arange(count)[:, None] * step + np.arange(length)[None, :]
    frames = take(x, g.constant(index.reshape(-1), "int64"), 1)
    frames = g.reshape(frames, (batch, count, length, parts))
    if window is not None:
        frames = g.mul(frames, g.reshape(window, (1, 1, length, 1)))
    return transform(frames, length, False, node.flag("onesided", 1))


# --- windows laid over each other


def _col2im(node: Node) -> Expr:
    """Each column is added into the image at the place of its window."""
    x = node[0]
    image = node.needed(node.const_ints(1, "the image shape"), "the image shape")
    block = node.needed(node.const_ints(2, "the block shape"), "the block shape")
    rank = len(image)
    strides, dilations = node.ints("strides") or [1] * rank, node.ints("dilations") or [1] * rank
    pads = node.ints("pads") or [0] * (2 * rank)
    batch, rows, columns = g.shape(x)
    taps = math.prod(block)
    channels = rows // max(taps, 1)
    index, total = _places(image, block, strides, dilations, pads, rank)
    if channels * taps != rows or index.size != taps * columns:
        raise AotcError("onnx-col2im", f"columns of shape {g.shape(x)} do not fit image {image} and block {block}")
    flat = g.reshape(x, (batch, channels, taps * columns))
    places = g.broadcast(g.constant(index.reshape(1, 1, -1), "int64"), (batch, channels, taps * columns))
    zeros = g.filled(0, (batch, channels, math.prod(total)), g.dtype(x))
    y = g.op("scatter_elements", zeros, places, flat, axis=2, reduction="add")
    y = g.reshape(y, (batch, channels, *total))
    ends = [pads[k] + image[k] for k in range(rank)]
    return g.cut(y, pads[:rank], ends, list(range(2, rank + 2)))


def _places(
    image: Sequence[int],
    block: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    rank: int,
) -> tuple[np.ndarray, list[int]]:
    """The flat position in the padded image of (tap, window), and the shape of the padded image."""
    total = [image[k] + pads[k] + pads[k + rank] for k in range(rank)]
    g.check_materialized((math.prod(block), math.prod(total)), "int64", "the positions of Col2Im")
    flat = np.zeros((1, 1), np.int64)
    for k in range(rank):
        windows = (total[k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1
        at = np.arange(block[k])[:, None] * dilations[k] + np.arange(windows)[None, :] * strides[k]
        joined = flat[:, None, :, None] * total[k] + at[None, :, None, :]
        flat = joined.reshape(flat.shape[0] * block[k], -1)
    return flat, total


OPS: Table = {"Col2Im": _col2im, "DFT": _dft, "STFT": _stft}
