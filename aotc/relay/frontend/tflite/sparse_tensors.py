# SPDX-License-Identifier: Apache-2.0
"""Expand the sparse constants of TFLite files to dense ones.

Input: the stored elements and the format of their positions. Output: a dense array with zeros at all
other positions. The format is that of the tensor algebra compiler (TACO, doi:10.1145/3133901): the
dimensions are traversed in a given order, and each of them is dense or compressed. A dimension may be
divided into blocks of equal size; the position within a block is then one more dimension, with a
number after those of the tensor.

    rows = DenseDimension(2)
    columns = CompressedDimension(np.array([0, 1, 3]), np.array([2, 0, 1]))
    expand_sparse_elements(np.array([7, 8, 9]), (2, 3), SparseFormat((0, 1), (), (rows, columns)), "w")
    # [[0, 0, 7], [8, 9, 0]]
"""

from __future__ import annotations

import math

import numpy as np

from aotc.ir import AotcError, Array, DType, frozen
from aotc.relay.frontend import op_calls as g


@frozen(eq=False)
class DenseDimension:
    """A dimension of which all positions are stored; `size` is their number."""

    size: int


@frozen(eq=False)
class CompressedDimension:
    """A dimension of which some positions are stored.

    indices    the stored positions, for all entries of the dimensions that are traversed before this one
    segments   `indices[segments[k] : segments[k + 1]]` are the positions for entry k of those dimensions
    """

    segments: Array
    indices: Array


@frozen(eq=False)
class SparseFormat:
    """Format of a sparse tensor of rank r.

    order     dimensions in the order of traversal; r + k is the position within a block of dimension
              `blocked[k]`
    blocked   dimensions that are divided into blocks
    levels    formats of the dimensions in the order of traversal
    """

    order: tuple[int, ...]
    blocked: tuple[int, ...]
    levels: tuple[DenseDimension | CompressedDimension, ...]


def expand_sparse_elements(elements: Array, shape: tuple[int, ...], sparse: SparseFormat, subject: str) -> Array:
    """Return the dense array of `shape` with the stored `elements` of a sparse tensor at their
    positions, and zeros elsewhere.

    Raises AotcError (code "tflite-file") for a format that contradicts itself, the shape or the
    number of elements; `subject` names the tensor.
    """
    g.check_materialization_cost(shape, str(DType.from_numpy(elements)), "a sparse tensor")
    extents = _extents_of_blocks_and_positions(shape, sparse, subject)
    positions, count = _positions_of_stored_elements(shape, extents, sparse, subject)
    _require(count == elements.size, subject, f"has {count} positions for {elements.size} stored elements")
    rank = len(shape)
    for k, dimension in enumerate(sparse.blocked):
        positions[dimension] = positions[dimension] * extents[rank + k] + positions[rank + k]
    places = np.ravel_multi_index([positions[d] for d in range(rank)], shape) if rank and count else np.arange(count)
    _require(np.unique(places).size == count, subject, "has two elements at one position")
    dense = np.zeros(math.prod(shape), elements.dtype)
    dense[places] = elements
    return dense.reshape(shape)


def _require(condition: bool, subject: str, text: str) -> None:
    if not condition:
        hint = "the file is damaged; convert the model again"
        raise AotcError("tflite-file", f"the sparse format of {subject} {text}", hint=hint)


def _extents_of_blocks_and_positions(shape: tuple[int, ...], sparse: SparseFormat, subject: str) -> list[int]:
    """Return the number of blocks along each dimension of a sparse tensor, then the number of
    positions in each block.
    """
    rank, total = len(shape), len(shape) + len(sparse.blocked)
    text = f"traverses the dimensions {list(sparse.order)} of {total}"
    _require(sorted(sparse.order) == list(range(total)), subject, text)
    _require(len(sparse.levels) == total, subject, f"has {len(sparse.levels)} dimensions, not {total}")
    fits = len(set(sparse.blocked)) == len(sparse.blocked) and all(0 <= d < rank for d in sparse.blocked)
    _require(fits, subject, f"divides the dimensions {list(sparse.blocked)} of {rank} into blocks")
    extents = list(shape)
    for k, dimension in enumerate(sparse.blocked):
        block = sparse.levels[sparse.order.index(rank + k)]
        size = block.size if isinstance(block, DenseDimension) else 0
        divides = size > 0 and shape[dimension] % size == 0
        _require(divides, subject, f"divides {shape[dimension]} positions into blocks of {size}")
        extents[dimension] //= size
        extents.append(size)
    return extents


def _positions_of_stored_elements(
    shape: tuple[int, ...], extents: list[int], sparse: SparseFormat, subject: str
) -> tuple[dict[int, Array], int]:
    """Return the positions of the stored elements along each dimension, and their number."""
    positions: dict[int, Array] = {}
    count, text = 1, "has more positions than the tensor has elements"
    for dimension, level in zip(sparse.order, sparse.levels, strict=True):
        extent = extents[dimension]
        repeats: Array
        if isinstance(level, DenseDimension):
            _require(level.size == extent, subject, f"has {level.size} positions in a dimension of {extent}")
            _require(count * extent <= math.prod(shape), subject, text)
            repeats, new = np.full(count, extent), np.tile(np.arange(extent), count)
        else:
            segments, new = level.segments, level.indices
            _require(new.size <= math.prod(shape), subject, text)
            repeats = np.diff(segments)
            whole = segments.size == count + 1 and segments[0] == 0 and segments[-1] == new.size
            divided = whole and bool((repeats >= 0).all())
            _require(divided, subject, "has segments that do not divide its indices")
            inside = bool(((new >= 0) & (new < extent)).all())
            _require(inside, subject, f"has an index outside of a dimension of {extent}")
        positions = {d: np.repeat(p, repeats) for d, p in positions.items()} | {dimension: new}
        count = int(new.size)
    return positions, count
