# SPDX-License-Identifier: Apache-2.0
"""Detect fused functions that only move rows of elements, such as concatenations and slices.

Input: a primitive Function. Output: the pieces of its arguments that each row of its result has.

    fn (%p0: Tensor[(4, 6), float32], %p1: Tensor[(4, 2), float32]) { concatenate((%p0, %p1), axis=1) }
    # 4 rows: elements 0 to 6 of %p0's rows of 6, and elements 0 to 2 of %p1's rows of 2

The elements of the arguments get numbers (`aotc.relay.backend.element_number_evaluation`).
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import Op, TensorType, nest_values_like_type, product_of_dims, tensor_types
from aotc.relay.backend.element_number_evaluation import evaluate_on_element_numbers
from aotc.relay.expr import Tuple, tensor_type_of, type_of
from aotc.relay.graph_api import Call, Expr, Function
from aotc.relay.op.concat_split import ConcatenateAttrs
from aotc.relay.op.type_rules import normalize_axis
from aotc.tir import RowPiece, RowPieces

#: Largest number of elements of the arguments that are followed; it bounds the compiler's memory.
MAX_FOLLOWED_ELEMENTS: Final = 1 << 22
_MOVING_OPERATORS: Final = frozenset(
    ["concatenate", "stack", "split", "strided_slice", "reshape", "squeeze", "expand_dims"]
)
#: Largest number of pieces of a row.
MAX_PIECES: Final = 2


def row_pieces_of_result(function: Function) -> RowPieces | None:
    """Return the pieces that each row of a function's result has; None if it has several results,
    computes, or moves elements in another way. Of functions with sizes that are known at run time only,
    concatenations of two parameters are found.
    """
    types = [t for p in function.params for t in tensor_types(type_of(p))]
    if not isinstance(type_of(function.body), TensorType):
        return None
    if not all(t.is_static for t in types):
        return _joined_rows_of_run_time_length(function)
    if not 0 < sum(t.numel for t in types) <= MAX_FOLLOWED_ELEMENTS:
        return None
    # the number between the elements of two arguments is no element
    begins = np.cumsum([0, *(t.numel + 1 for t in types)])
    numbers = iter(
        np.arange(begin, begin + t.numel).reshape(t.static_shape) for begin, t in zip(begins, types, strict=False)
    )
    arguments: dict[Expr, Any] = {p: nest_values_like_type(type_of(p), numbers) for p in function.params}
    result = evaluate_on_element_numbers(function, arguments, _only_moves_elements)
    return None if result is None else _pieces_of_rows(np.asarray(result).reshape(-1), begins)


def _joined_rows_of_run_time_length(function: Function) -> RowPieces | None:
    """Return the two pieces of the one row that a function has which concatenates its two parameters along
    the outermost axis; None for other functions.
    """
    body = function.body
    if not isinstance(body, Call) or not isinstance(body.attrs, ConcatenateAttrs):
        return None
    operands = body.args[0].fields if isinstance(body.args[0], Tuple) else ()
    is_outermost = normalize_axis(body.attrs.axis, tensor_type_of(body).rank) == 0
    if not is_outermost or len(operands) != MAX_PIECES or operands != function.params:
        return None
    lengths = [product_of_dims(tensor_type_of(p).shape) for p in function.params]
    return RowPieces(1, tuple(RowPiece(k, 0, length, length) for k, length in enumerate(lengths)))


def _only_moves_elements(call: Call, _: tuple[Any, ...]) -> bool:
    """Return True for a call of an operator that moves elements of its arguments."""
    return isinstance(call.op, Op) and call.op.name in _MOVING_OPERATORS


def _pieces_of_rows(numbers: np.ndarray[Any, Any], begins: Sequence[int] | np.ndarray[Any, Any]) -> RowPieces | None:
    """Return the pieces of each row, from the numbers of the result's elements in order."""
    if not numbers.size:
        return None
    starts = np.flatnonzero(np.concatenate([[True], np.diff(numbers) != 1]))
    lengths = np.diff(np.append(starts, numbers.size))
    inputs = np.searchsorted(begins, numbers[starts], side="right") - 1
    offsets = numbers[starts] - np.asarray(begins)[inputs]
    for count in range(1, MAX_PIECES + 1):
        if len(starts) % count:
            continue
        rows = len(starts) // count
        table = [column.reshape(rows, count) for column in (inputs, lengths, offsets)]
        strides = np.diff(table[2], axis=0)
        alike = all((column == column[0]).all() for column in table[:2]) and (strides == strides[:1]).all()
        if alike:
            stride = (
                strides[0] if rows > 1 else np.asarray(begins)[table[0][0] + 1] - np.asarray(begins)[table[0][0]] - 1
            )
            pieces = (
                RowPiece(int(table[0][0, k]), int(table[2][0, k]), int(table[1][0, k]), int(stride[k]))
                for k in range(count)
            )
            return RowPieces(rows, tuple(pieces))
    return None
