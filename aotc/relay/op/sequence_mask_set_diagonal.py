# SPDX-License-Identifier: Apache-2.0
"""Operators that replace elements by position: sequence_mask (past the sequence's end) and
matrix_set_diag.

sequence_mask(x, lengths, axis=1)      # x with zeros from element lengths[b] of each row b on
matrix_set_diag(x, diagonal, k=1)      # x with its first superdiagonal replaced
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, DType, OpPattern, Type, Types, declare_arguments, require, require_static_shape
from aotc.relay.op import gather
from aotc.relay.op.opdef import Index, OpDef, Samples, reference_from_element_function
from aotc.relay.op.operator_definition import (
    NUMBER_KIND,
    choose,
    exact_sample,
    greater,
    lesser,
    may_be_equal_dims,
    random_array,
)
from aotc.relay.op.type_rules import (
    axis_map_row_without_axes,
    require_dtype,
    require_known_name,
    require_same_dtype,
    require_tensor_of_rank,
    require_tensor_type,
    shape_text,
)

# --- sequence_mask


class SequenceMaskAttrs(Attrs):
    """`data` with elements after the first `valid_length[b]` of each sequence b replaced by
    `mask_value`.

    The sequences run along `axis`, which is 0 or 1; the batch axis is 1 or 0 accordingly.
    """

    mask_value: float = 0.0
    axis: int = 0


def _infer_sequence_mask_type(a: SequenceMaskAttrs, types: Types) -> Type:
    data, lengths = (
        require_tensor_type(types[0], "data"),
        require_tensor_of_rank("sequence_mask.length", types[1], 1, "valid_length"),
    )
    require_dtype(data.dtype, not data.dtype.is_bool)
    require_dtype(lengths.dtype, not lengths.dtype.is_bool)
    require("sequence_mask.axis", a.axis in (0, 1), f"axis must be 0 or 1, got {a.axis}")
    require("sequence_mask.rank", data.rank >= 2, lambda: f"data needs axes of sequences and of the batch, got {data}")
    same = may_be_equal_dims(data.shape[1 - a.axis], lengths.shape[0])
    require("sequence_mask.length", same, lambda: f"{lengths.shape[0]} lengths for the sequences of {data}")
    holds = data.dtype.is_float or (a.mask_value % 1 == 0 and data.dtype.min <= a.mask_value <= data.dtype.max)
    require("sequence_mask.value", holds, lambda: f"{a.mask_value} is no {data.dtype}")
    return data


def _is_index_below_length(index: Any, length: Any) -> Any:
    """Return a condition that is true if the index `index` is less than `length`, which may be a
    float.
    """
    if not str(length.dtype).startswith(("int", "uint")):
        wide = "float64" if str(length.dtype) == "float64" else "float32"
        return index.astype(wide) < length.astype(wide)
    return index < gather.convert_index_to_int64(length)


def _sequence_mask_element(a: SequenceMaskAttrs, i: Index, data: Any, lengths: Any) -> Any:
    inside = _is_index_below_length(i[a.axis], lengths[(i[1 - a.axis],)])
    whole = a.mask_value % 1 == 0 and not DType(str(data.dtype)).is_float
    return choose(inside, data[i], int(a.mask_value) if whole else a.mask_value)


def _sequence_mask_axis_map(a: SequenceMaskAttrs, types: Types) -> AxisMap:
    rank = require_tensor_type(types[0]).rank
    return AxisMap((axis_map_row_without_axes((0, 1), rank),))


def _sequence_mask_test_samples() -> Samples:
    for dtype in NUMBER_KIND.examples:
        yield exact_sample(
            SequenceMaskAttrs(mask_value=3.0), random_array((5, 3), dtype), np.array([2, 0, 7], np.int32)
        )
    for kind in ("int8", "uint64", "float32", "float64"):
        lengths = np.array([1, 5, 0]).astype(kind)
        yield exact_sample(SequenceMaskAttrs(mask_value=-0.5, axis=1), random_array((3, 4, 2)), lengths)
    yield exact_sample(SequenceMaskAttrs(axis=1), random_array((2, 4)), np.array([2.5, np.nan], np.float32))


sequence_mask = OpDef(
    name="sequence_mask",
    attrs=SequenceMaskAttrs,
    args=declare_arguments("data", "valid_length"),
    infer=_infer_sequence_mask_type,
    reference=reference_from_element_function(_infer_sequence_mask_type, _sequence_mask_element),
    pattern=OpPattern.INJECTIVE,
    axes=_sequence_mask_axis_map,
    element=_sequence_mask_element,
    samples=_sequence_mask_test_samples,
)


# --- matrix_set_diag


_DIAGONAL_ALIGNMENTS: Final = ("RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT")


class MatrixSetDiagAttrs(Attrs):
    """The innermost matrices of `data` with diagonals `k[0]` to `k[1]` replaced; 0 is the main
    diagonal.

    If there are several, `diagonal` has one row for each, the uppermost first. `align` states at
    which end of their rows shorter diagonals are aligned: first for diagonals above and including
    the main one, then for diagonals below it.
    """

    k: int | tuple[int, ...] = 0
    align: str = "RIGHT_LEFT"


def _first_and_last_diagonal(a: MatrixSetDiagAttrs) -> tuple[int, int]:
    both = (a.k,) if isinstance(a.k, int) else a.k
    fits = len(both) in (1, 2) and both[0] <= both[-1]
    require("matrix_set_diag.k", fits, f"k must be the index of a diagonal or a pair of indices, got {a.k}")
    return both[0], both[-1]


def _diagonal_length(rows: int, columns: int, diagonal: Any) -> Any:
    """Return the number of elements of diagonal k of a rows x columns matrix, for arrays or scalar
    expressions k.
    """
    return lesser(rows + lesser(diagonal, 0), columns - greater(diagonal, 0))


def _longest_diagonal_length(a: MatrixSetDiagAttrs, rows: int, columns: int) -> int:
    low, high = _first_and_last_diagonal(a)
    require(
        "matrix_set_diag.k",
        -rows < low and high < columns,
        f"diagonals {low} to {high} do not exist in a {rows} x {columns} matrix",
    )
    return min(rows + min(high, 0), columns - max(low, 0))


def _infer_matrix_set_diag_type(a: MatrixSetDiagAttrs, types: Types) -> Type:
    data, diagonal = require_tensor_type(types[0], "data"), require_tensor_type(types[1], "diagonal")
    require("matrix_set_diag.rank", data.rank >= 2, lambda: f"data must be matrices, got {data}")
    require_known_name("matrix_set_diag.align", "align", a.align, _DIAGONAL_ALIGNMENTS)
    require_same_dtype(data, diagonal)
    (low, high), (*batch, rows, columns) = _first_and_last_diagonal(a), data.shape
    known = isinstance(rows, int) and isinstance(columns, int)
    require("dynamic-shape", known, lambda: f"the extents of the matrices must be known, got {data}")
    longest = _longest_diagonal_length(a, *require_static_shape((rows, columns)))
    expected = (*batch, *[high - low + 1] * (low != high), longest)
    same = len(expected) == diagonal.rank and all(map(may_be_equal_dims, expected, diagonal.shape))
    require("matrix_set_diag.shape", same, lambda: f"diagonal must be {shape_text(expected)}, got {diagonal}")
    return data


def _diagonal_source_of_element(
    a: MatrixSetDiagAttrs, rows: int, columns: int, row: Any, column: Any
) -> tuple[Any, Any, Any]:
    """Return the source of the matrix element at (row, column) in `diagonal`.

    The result is a condition that is true if the element lies on a replaced diagonal, and the row
    and column of `diagonal` with its value.
    """
    low, high = _first_and_last_diagonal(a)
    k = column - row
    inside = (k >= low) & (k <= high)
    k = lesser(greater(k, low), high)
    above, below = (part == "RIGHT" for part in a.align.split("_"))
    spare = _longest_diagonal_length(a, rows, columns) - _diagonal_length(rows, columns, k)
    nothing = spare * 0
    offset = choose(k >= 0, spare if above else nothing, spare if below else nothing)
    # clamped to a valid position for elements that lie on no replaced diagonal
    along = lesser(lesser(row, column), _diagonal_length(rows, columns, k) - 1) + offset
    return inside, high - k, along


def _matrix_set_diag_element(a: MatrixSetDiagAttrs, i: Index, data: Any, diagonal: Any) -> Any:
    inside, which, along = _diagonal_source_of_element(a, *data.shape[-2:], *i[-2:])
    where = (*i[:-2], *[which] * (len(diagonal.shape) == len(data.shape)), along)
    return choose(inside, diagonal[where], data[i])


def _matrix_set_diag_axis_map(_: Any, types: Types) -> AxisMap:
    rank = require_tensor_type(types[0]).rank
    row = (*range(rank - 2), None, None)
    return AxisMap((row, row))


def _matrix_set_diag_test_samples() -> Samples:
    for dtype in ("float32", "float16", "int8", "bool"):
        yield exact_sample(MatrixSetDiagAttrs(), random_array((2, 3, 4), dtype), random_array((2, 3), dtype, 1))
    for k, shape_of_diagonal in ((2, (2,)), (-2, (1,)), (-1, (2,))):
        yield exact_sample(MatrixSetDiagAttrs(k=k), random_array((3, 4)), random_array(shape_of_diagonal, seed=1))
    for align in _DIAGONAL_ALIGNMENTS:
        yield exact_sample(
            MatrixSetDiagAttrs(k=(-1, 2), align=align), random_array((3, 4)), random_array((4, 3), seed=1)
        )
    yield exact_sample(MatrixSetDiagAttrs(k=(1, 2)), random_array((4, 3)), random_array((2, 2), seed=1))


matrix_set_diag = OpDef(
    name="matrix_set_diag",
    attrs=MatrixSetDiagAttrs,
    args=declare_arguments("data", "diagonal"),
    infer=_infer_matrix_set_diag_type,
    reference=reference_from_element_function(_infer_matrix_set_diag_type, _matrix_set_diag_element),
    pattern=OpPattern.INJECTIVE,
    axes=_matrix_set_diag_axis_map,
    element=_matrix_set_diag_element,
    samples=_matrix_set_diag_test_samples,
)
