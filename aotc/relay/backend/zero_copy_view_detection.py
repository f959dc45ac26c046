# SPDX-License-Identifier: Apache-2.0
"""Detect fused functions that move no data: their results are contiguous parts of their one
argument.

Input: a primitive Function. Output: the element offset of each result within the argument, or None.

    fn (%p0: Tensor[(4, 6), float32]) { strided_slice(%p0, begin=[2, 0], ...) }      # [12]

The operators' references are run on an array that numbers the argument's elements
(`aotc.relay.backend.element_number_evaluation`), so reshapes, squeezes, slices, splits and
transposes that only move axes of size 1 need no rules of their own. The numbers are shuffled, so
that the result of an operator that computes (e.g. interpolates) does not look like a view by
accident. A function of sizes that are known at run time only moves no data if it consists of
reshapes.
"""

from typing import Any, Final

import numpy as np

from aotc.ir import FuncType, Op, OpPattern, TensorType, tensor_types
from aotc.ir.compilation_work_and_memory_limits import current_budget
from aotc.relay.backend.element_number_evaluation import evaluate_on_element_numbers
from aotc.relay.backend.function_to_kernel import has_static_types
from aotc.relay.graph_api import Call, Expr, Function, post_order
from aotc.relay.op.opdef import OpDef

#: Largest argument, in elements, that is analyzed; it bounds the compiler's memory. Larger
#: arguments are copied.
MAX_ANALYZED_ELEMENTS: Final = 1 << 24
_DATA_MOVEMENT_PATTERNS: Final = (OpPattern.INJECTIVE, OpPattern.BROADCAST)
#: Operators that only mark nodes for passes and return their argument.
_ANNOTATION_OPS: Final = frozenset({"annotation.stop_fusion", "annotation.compiler_begin", "annotation.compiler_end"})


def _may_only_move_elements(call: Call, arguments: tuple[Any, ...]) -> bool:
    """Return True for a call whose result may consist of elements of its one argument, which is no
    tuple, if its operator's reference may be run.
    """
    match call.op:
        case Op(arity=1) as op if op.pattern in _DATA_MOVEMENT_PATTERNS or op.name in _ANNOTATION_OPS:
            return not isinstance(arguments[0], tuple) and _is_result_no_larger_and_within_budget(call, op)
    return False


def _is_result_no_larger_and_within_budget(node: Call, op: Op) -> bool:
    """Return True if a call's result has at most as many elements as its arguments, and the budget
    allows to compute it.
    """
    types = [a.checked_type for a in node.args if a.checked_type is not None]
    result = node.checked_type
    if result is None or isinstance(result, FuncType) or not all(t.is_static for t in tensor_types(result)):
        return False
    grows = sum(t.numel for t in tensor_types(result)) > sum(t.numel for ty in types for t in tensor_types(ty))
    return not grows and current_budget().is_cost_within_compile_time_limits(
        op.reference_cost(node.attrs, types, result)
    )


def _contiguous_slice_start(
    flat_element_indices: Any, offset_by_flat_element_index: np.ndarray[Any, Any]
) -> int | None:
    """Return the offset in the argument of an array of element numbers, None if the elements are
    not consecutive there.
    """
    flat = np.asarray(flat_element_indices).reshape(-1)
    if flat.size == 0:
        return 0
    if (
        flat.dtype != offset_by_flat_element_index.dtype
        or flat.min() < 0
        or flat.max() >= offset_by_flat_element_index.size
    ):
        return None
    places = offset_by_flat_element_index[flat]
    consecutive = places[-1] - places[0] == flat.size - 1 and bool((np.diff(places) == 1).all())
    return int(places[0]) if consecutive else None


def _is_reshape(function: Function) -> bool:
    """Return True if a function only gives its one tensor another shape, without looking at sizes."""
    calls = [n for n in post_order(function.body) if n is not function.params[0] and not isinstance(n, Op)]
    return all(
        isinstance(n, Call) and isinstance(n.op, OpDef) and (n.op.view or n.op.name in _ANNOTATION_OPS) for n in calls
    )


def view_offsets_of_results(function: Function) -> list[int] | None:
    """Return the offset, in elements, of each result of `function` in its only argument; None if it
    must compute.
    """
    if len(function.params) != 1:
        return None
    param = function.params[0]
    ty = param.checked_type
    if not has_static_types(function):
        return [0] if _is_reshape(function) else None
    if not isinstance(ty, TensorType) or not ty.is_static or ty.numel > MAX_ANALYZED_ELEMENTS:
        return None
    labels = np.random.default_rng(0).permutation(ty.numel)
    position = np.empty_like(labels)
    position[labels] = np.arange(ty.numel)
    arguments: dict[Expr, Any] = {param: labels.reshape(ty.static_shape)}
    result = evaluate_on_element_numbers(function, arguments, _may_only_move_elements)
    if result is None:
        return None
    starts = [_contiguous_slice_start(v, position) for v in (result if isinstance(result, tuple) else (result,))]
    return None if None in starts else [s for s in starts if s is not None]
