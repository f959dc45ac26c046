# SPDX-License-Identifier: Apache-2.0
"""Evaluate functions that only move elements on arrays of element numbers.

Input: a primitive Function, and arrays with a number for each element of its arguments. Output: the
numbers of the elements that its result has, or None if it computes.

    fn (%p0: Tensor[(2, 3), int8]) { transpose(%p0) }, %p0: [[0, 1, 2], [3, 4, 5]]
    # [[0, 3], [1, 4], [2, 5]]
"""

from collections.abc import Callable, Mapping
from typing import Any

from aotc.ir import Op, dims_in_attrs
from aotc.relay.graph_api import Call, Expr, Function, Tuple, TupleGetItem, Var, post_order


def evaluate_on_element_numbers(
    function: Function, arguments: Mapping[Expr, Any], only_moves_elements: Callable[[Call, tuple[Any, ...]], bool]
) -> Any:
    """Return the numbers of the elements of a function's result: an array, or nested tuples of arrays;
    None if a node may do more than move elements. The references of the operators are run.

    arguments             numbers of the elements of the function's parameters
    only_moves_elements   True if a call of an operator only moves elements; its second argument are the
                          numbers of the call's arguments
    """
    values: dict[Expr, Any] = dict(arguments)
    for node in post_order(function.body):
        match node:
            case Op() | Var():
                continue
            case Call(op=Op() as op):
                numbers = tuple(values[argument] for argument in node.args)
                if dims_in_attrs(node.attrs) or not only_moves_elements(node, numbers):
                    return None
                values[node] = op.reference(node.attrs, *numbers)
            case Tuple():
                values[node] = tuple(values[field] for field in node.fields)
            case TupleGetItem():
                values[node] = values[node.tuple_value][node.index]
            case _:
                return None
    return values[function.body]
