# SPDX-License-Identifier: Apache-2.0
"""Constant evaluation: compute an operator call on constants as a constant, or a tuple of
constants.

Memory and time are bounded. Nothing is computed if the result or an argument would be larger than a
limit and larger than the stored constants, or if the budget (`aotc.ir.compilation_work_and_memory_limits`) is
exhausted. Splats (one repeated value) stay splats: they are computed on one element.

    evaluate_constant_call(call(add, (one, two)), max_bytes=1 << 20)  # Constant(3), or None where it is too large
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import (
    AotcError,
    Attrs,
    Cost,
    FuncType,
    Op,
    OpPattern,
    TensorType,
    TupleType,
    Type,
    dims_in_attrs,
    tensor_types,
)
from aotc.ir.compilation_work_and_memory_limits import current_budget
from aotc.relay.expr import Call, Constant, Expr, Tuple, axis_map_of_call

#: Default size limit, in bytes, of a folded constant that is larger than the constants it is
#: computed from.
MAX_FOLDED_CONSTANT_BYTES: Final = 64 << 20

Array: TypeAlias = "np.ndarray[Any, Any]"
Value: TypeAlias = "Array | tuple[Array, ...]"

#: Operators whose result has equal elements.
_FILL_OPS: Final = frozenset({"zeros", "ones", "full", "zeros_like", "ones_like", "full_like"})
#: Operators whose result consists of elements of the first argument: a splat gives a splat.
_SPLAT_PRESERVING_OPS: Final = frozenset(
    {"broadcast_to", "reshape", "transpose", "squeeze", "expand_dims", "nn.batch_flatten", "strided_slice"}
    | {"tile", "repeat", "reverse", "copy"}
)
#: Operators whose result depends on the argument's type only.
_SHAPE_ONLY_OPS: Final = frozenset({"shape_of", "ndarray_size", "zeros_like", "ones_like"})
_IMPURE_OPS: Final = frozenset({"nn.dropout"})


def is_constant(expr: Expr) -> bool:
    """Return True if `expr` is a constant or a tuple of constants."""
    return all(isinstance(part, Constant) for part in _tuple_fields_or_self(expr))


def _tuple_fields_or_self(expr: Expr) -> tuple[Expr, ...]:
    return expr.fields if isinstance(expr, Tuple) else (expr,)


def evaluate_constant_call(node: Call, max_bytes: int = MAX_FOLDED_CONSTANT_BYTES) -> Expr | None:
    """Return the value of a typed operator call on constants; None if it has none or one that is
    too large.

    max_bytes    size limit of results that are larger than all arguments together; splats count as one element
    """
    op, ty = node.op, node.checked_type
    if not isinstance(op, Op) or not op.computed or op.name in _IMPURE_OPS:
        return None
    if ty is None or isinstance(ty, FuncType):
        return None
    if not all(t.is_static for t in tensor_types(ty)) or dims_in_attrs(node.attrs):
        return None
    if op.name in _SHAPE_ONLY_OPS:
        return _evaluate_shape_only_op(node, op, ty)
    if not all(is_constant(a) for a in node.args):
        return None
    uniform = _evaluate_on_one_element_as_splat(node, op, ty)
    if uniform is not None:
        return uniform
    stored = sum(map(_stored_bytes, node.args))
    if max(_materialized_bytes(node), *map(_materialized_bytes, node.args), 0) > max(max_bytes, stored):
        return None
    if not current_budget().spend_compile_time_cost_if_affordable(_constant_evaluation_cost(node, op, ty, stored)):
        return None
    return wrap_result_in_constants(
        run_numpy_reference(op, node.attrs, [array_or_nested_arrays_of_constant(a) for a in node.args]), ty, node
    )


def _constant_evaluation_cost(node: Call, op: Op, ty: Type, stored_bytes: int) -> Cost:
    """Return the cost of evaluating a call: its work, and the bytes beyond the constants that are
    stored already.
    """
    cost = op.reference_cost(node.attrs, [a.checked_type for a in node.args if a.checked_type is not None], ty)
    total_bytes = _materialized_bytes(node) + sum(map(_materialized_bytes, node.args))
    return Cost(cost.work, cost.nbytes + max(total_bytes - 2 * stored_bytes, 0))


def run_numpy_reference(op: Op, attributes: Attrs, args: Sequence[Value]) -> Any:
    """Return the result of an operator's numpy reference; floating-point warnings are suppressed."""
    with np.errstate(all="ignore"):
        return op.reference(attributes, *args)


def array_or_nested_arrays_of_constant(expr: Expr) -> Value:
    """Return the array of a constant, or the arrays of a tuple of constants."""
    if isinstance(expr, Tuple):
        return tuple(f.data for f in expr.fields if isinstance(f, Constant))
    assert isinstance(expr, Constant)
    return expr.data


def wrap_result_in_constants(value: Any, ty: Type, origin: Expr) -> Expr:
    """Wrap arrays that an operator's reference implementation returned in constants of the inferred
    type.

    Raise AotcError (code "reference-type") if the result has another type.
    """
    if isinstance(ty, TupleType):
        return Tuple(
            (wrap_result_in_constants(v, t, origin) for v, t in zip(value, ty.fields, strict=True)), origin.span
        )
    array = np.asarray(value)
    constant = Constant(array, origin.span)
    if constant.checked_type != ty:
        name = origin.op if isinstance(origin, Call) else type(origin).__name__
        message = f"evaluating {name} gave {constant.checked_type} where {ty} is due"
        raise AotcError("reference-type", message, span=origin.span)
    return constant


def _materialized_bytes(expr: Expr) -> int:
    """Return the bytes that the value of a typed expression may take in a reference, where splats
    are materialized.
    """
    return sum(t.nbytes for t in tensor_types(expr.checked_type)) if expr.checked_type is not None else 0


def _stored_bytes(expr: Expr) -> int:
    """Return the bytes that a constant argument takes in memory."""
    return sum(part.stored_elements.nbytes for part in _tuple_fields_or_self(expr) if isinstance(part, Constant))


def _evaluate_shape_only_op(node: Call, op: Op, ty: Type) -> Expr | None:
    """Return the value of an operator that depends on its argument's type only; the argument need
    not be constant.
    """
    source = node.args[0].checked_type
    if not isinstance(source, TensorType) or not source.is_static or not isinstance(ty, TensorType):
        return None
    if op.name in _FILL_OPS:
        element = run_numpy_reference(op, node.attrs, [np.zeros((1,), source.dtype.numpy)])
        return _splat_constant_of_type(np.asarray(element), ty, node)
    stand_in = np.broadcast_to(np.zeros((), source.dtype.numpy), source.static_shape)
    return wrap_result_in_constants(run_numpy_reference(op, node.attrs, [stand_in]), ty, node)


def _evaluate_on_one_element_as_splat(node: Call, op: Op, ty: Type) -> Expr | None:
    """Return the value of a call as a splat, computed on one element, if it is one by construction;
    else None.
    """
    if not isinstance(ty, TensorType) or ty.numel <= 1:
        return None
    if op.name in _FILL_OPS:
        return _fold_fill_op_to_splat(node, op, ty)
    arrays = [a.data for a in node.args if isinstance(a, Constant)]
    if not arrays or len(arrays) != len(node.args):
        return None
    if op.name in _SPLAT_PRESERVING_OPS:
        return (
            _splat_constant_of_type(arrays[0].flat[0:1], ty, node)
            if _has_one_element_or_zero_strides(arrays[0])
            else None
        )
    if (
        op.pattern > OpPattern.BROADCAST
        or not all(map(_has_one_element_or_zero_strides, arrays))
        or _depends_on_element_position(node, ty)
    ):
        return None
    element = np.asarray(run_numpy_reference(op, node.attrs, [_shrink_splat_to_one_element(a) for a in arrays]))
    return _splat_constant_of_type(element, ty, node) if element.size == 1 else None


def _depends_on_element_position(node: Call, ty: TensorType) -> bool:
    """Return True if an operator's result depends on element positions, e.g. trilu.

    Some axis of the result is then not an axis of any argument.
    """
    maps = axis_map_of_call(node)
    if maps is None:
        return False
    return any(d != 1 and all(axes[k] is None for axes in maps.inputs) for k, d in enumerate(ty.shape))


def _fold_fill_op_to_splat(node: Call, op: Op, ty: TensorType) -> Expr | None:
    """Return zeros, ones or full as a splat; the value is computed on a shape of one element and
    equal rank.
    """
    if not any(f == "shape" for f, _ in node.attrs.items()):
        return None
    small = node.attrs.replace(shape=(1,) * ty.rank)
    return _splat_constant_of_type(
        np.asarray(run_numpy_reference(op, small, [array_or_nested_arrays_of_constant(a) for a in node.args])), ty, node
    )


def _has_one_element_or_zero_strides(array: Array) -> bool:
    return array.size == 1 or (array.size > 1 and not any(array.strides))


def _shrink_splat_to_one_element(array: Array) -> Array:
    """Return the value of a splat as a one-element array of equal rank."""
    return array[(slice(0, 1),) * array.ndim] if array.ndim else array


def _splat_constant_of_type(element: Array, ty: TensorType, origin: Expr) -> Constant:
    value = element.reshape(()).astype(ty.dtype.numpy, copy=False)
    return Constant(np.broadcast_to(value, ty.static_shape), origin.span)
