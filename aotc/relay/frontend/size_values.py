# SPDX-License-Identifier: Apache-2.0
"""Values of integer tensors that hold sizes: what is computed from shapes is known as formulas when a
model is compiled, even where the shapes are known at run time only.

size_values(shape_of(x))                          # [n, 3]: x has the shape (n, 3)
size_values(concatenate((take(shape_of(x), 0), [-1])))      # [n, -1]

Operators on such tensors stay in the graph; what is used as a size only is never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import (
    Dim,
    DType,
    Op,
    SymDim,
    TensorType,
    equality_of_dims,
    interval_of_dim,
    maximum_of_dims,
    minimum_of_dims,
    product_of_dims,
    same_dim,
    sign_bit_of_dim,
    sum_of_dims,
)
from aotc.relay.frontend.size_operands import are_floats_truncated, number_of_nonzeros, operand_values
from aotc.relay.graph_api import (
    Call,
    Constant,
    Expr,
    Tuple,
    TupleGetItem,
    Var,
    children,
    depth_first_post_order,
    tensor_type_of,
)

Array: TypeAlias = np.ndarray[Any, Any]
#: Values of a tensor: an array of numbers and dimensions; for a tuple, one array per field.
Values: TypeAlias = "Array | tuple[Array, ...]"
#: Largest number of elements of a tensor whose values are known as formulas.
MAX_SIZE_VALUES: Final = 64


class _UnknownError(Exception):
    """A value that is not known as a formula."""


def size_values(expr: Expr) -> Array | None:
    """Return the values of a tensor of integers or bools, an array of numbers and dimensions of the
    tensor's shape; None if they are not known when the model is compiled.
    """
    nodes = list(depth_first_post_order([expr], _operands))
    moved_only = all(_only_moves_elements(node) for node in nodes)
    known: dict[Expr, Values | None] = {}
    for node in nodes:
        known[node] = operand_values(node, moved_only) if isinstance(node, Var) else _values_of_node(node, known)
    result = known[expr]
    return result if isinstance(result, np.ndarray) else None


#: The iteration numbers of the loops whose bodies are being converted.
_COUNTERS: Final[ContextVar[tuple[Var, ...]]] = ContextVar("aotc_loop_counters", default=())


@contextmanager
def loop_counter(variable: Var) -> Iterator[None]:
    """Context manager: a variable, an int64 scalar, is the iteration number of a loop."""
    token = _COUNTERS.set((*_COUNTERS.get(), variable))
    try:
        yield
    finally:
        _COUNTERS.reset(token)


def distances(starts: Expr, ends: Expr) -> list[int | None]:
    """Return for each pair of positions in two vectors the number of elements from the first to the second one, where
    it is the same in each iteration of a loop, and neither is negative; else None.
    """
    counters = {v: SymDim(f"loop_counter{k}", None) for k, v in enumerate(_COUNTERS.get())}
    pair = [_values_with_counters(x, counters) for x in (starts, ends)]
    if pair[0] is None or pair[1] is None:
        return [None] * tensor_type_of(starts).numel
    result: list[int | None] = []
    for start, end in zip(pair[0].reshape(-1), pair[1].reshape(-1), strict=True):
        distance = sum_of_dims((end, product_of_dims((start, -1))))
        is_known = all(interval_of_dim(d)[0] >= 0 for d in (start, end))
        result.append(None if isinstance(distance, SymDim) or not is_known else max(int(distance), 0))
    return result


def _values_with_counters(expr: Expr, counters: Mapping[Var, SymDim]) -> Array | None:
    known: dict[Expr, Values | None] = {}
    for node in depth_first_post_order([expr], _operands):
        if isinstance(node, Var):
            known[node] = np.array(counters[node], object) if node in counters else None
        else:
            known[node] = _values_of_node(node, known)
    result = known[expr]
    return result if isinstance(result, np.ndarray) else None


def _operands(node: Expr) -> Sequence[Expr]:
    """Return the nodes whose values determine the value of a node."""
    if isinstance(node, (Tuple, TupleGetItem)):
        return children(node)
    if not isinstance(node, Call) or not isinstance(node.op, Op) or node.op.name in _SHAPE_RULES:
        return ()
    return node.args if _is_small(node) and node.op.name in _RULES else ()


def _only_moves_elements(node: Expr) -> bool:
    """Return False for a call that computes other values than those of its operands."""
    return not isinstance(node, Call) or (isinstance(node.op, Op) and node.op.name in _MOVING_OPERATORS)


def _is_small(node: Expr) -> bool:
    ty = node.checked_type
    return not isinstance(ty, TensorType) or (ty.is_static and ty.numel <= MAX_SIZE_VALUES)


def _values_of_node(node: Expr, known: Mapping[Expr, Values | None]) -> Values | None:
    if not _is_small(node):
        return None
    match node:
        case Constant():
            return _values_of_constant(node.data)
        case Tuple():
            fields = [known[f] for f in node.fields]
            return tuple(f for f in fields if isinstance(f, np.ndarray)) if all_arrays(fields) else None
        case TupleGetItem():
            whole = known[node.tuple_value]
            return whole[node.index] if isinstance(whole, tuple) else None
        case Call(op=Op(name=name)) if name in _SHAPE_RULES:
            return _SHAPE_RULES[name](node)
        case Call(op=Op(name="sum")) if (count := _number_of_true_elements(node)) is not None:
            return count
        case Call(op=Op(name=name) as op) if name in _RULES:
            arguments = [known[a] for a in node.args]
            if any(a is None for a in arguments):
                return None
            try:
                return _exact_values(node, _as_values(_RULES[name](op, node, *arguments)))
            except (_UnknownError, ValueError, TypeError, IndexError):
                return None
    return None


def _number_of_true_elements(total: Call) -> Array | None:
    """Return the value of a sum of all elements of bools that are cast to integers, if a run finds this number by the
    positions of those that are true; else None.
    """
    flags = total.args[0]
    dtypes = []
    while isinstance(flags, Call) and isinstance(flags.op, Op) and flags.op.name in ("reshape", "cast"):
        dtypes += [tensor_type_of(flags).dtype] if flags.op.name == "cast" else []
        flags = flags.args[0]
    ty = flags.checked_type
    if not isinstance(ty, TensorType) or ty.dtype != "bool" or not all(d.is_integer and d.bits >= 32 for d in dtypes):
        return None
    if tensor_type_of(total).numel != 1 or (count := number_of_nonzeros(flags)) is None:
        return None
    return np.full(tensor_type_of(total).static_shape, count, object)


def _values_of_constant(data: Array) -> Array | None:
    if data.size > MAX_SIZE_VALUES:
        return None
    if data.dtype.kind in "iub":
        return data.astype(object)
    dtype = DType.from_numpy(data)
    if not dtype.is_float:
        return None
    numbers = data.astype(np.float64)
    is_whole = bool((np.abs(numbers) <= _largest_exact_integer(dtype)).all()) and bool((numbers % 1 == 0).all())
    return numbers.astype(np.int64).astype(object) if is_whole else None


def _largest_exact_integer(dtype: DType) -> int:
    """Return the number up to which every integer is a number of a float type."""
    return 1 << _MANTISSA_BITS.get(str(dtype), 0)


#: Number of significant bits of numbers of a float type.
_MANTISSA_BITS: Final[Mapping[str, int]] = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def _exact_values(node: Call, values: Values) -> Values:
    """Return the values of a call. Raises _UnknownError for floats that may be rounded."""
    ty = node.checked_type
    if isinstance(ty, TensorType) and ty.dtype.is_float and isinstance(values, np.ndarray):
        assert isinstance(node.op, Op)
        most = _largest_exact_integer(ty.dtype)
        ends = [abs(end) for v in values.reshape(-1) for end in interval_of_dim(v)]
        if node.op.name not in _EXACT_ON_FLOATS or any(end > most for end in ends):
            raise _UnknownError
    return values


def all_arrays(values: Sequence[object]) -> bool:
    """Return True if all values are arrays."""
    return all(isinstance(v, np.ndarray) for v in values)


def _as_values(value: Any) -> Values:
    if isinstance(value, (tuple, list)):
        return tuple(np.asarray(v, object) for v in value)
    result = np.empty(np.shape(value), object)
    result[...] = value
    return result


# --- operators on shapes


def _values_of_shape(node: Call) -> Array:
    ty = node.args[0].checked_type
    assert isinstance(ty, TensorType)
    result = np.empty(ty.rank, object)
    result[:] = list(ty.shape)
    return result


def _value_of_element_count(node: Call) -> Array:
    ty = node.args[0].checked_type
    assert isinstance(ty, TensorType)
    result = np.empty((), object)
    result[()] = product_of_dims(ty.shape)
    return result


_SHAPE_RULES: Final[Mapping[str, Callable[[Call], Array]]] = {
    "shape_of": _values_of_shape,
    "ndarray_size": _value_of_element_count,
}


# --- operators on values


def _move_elements(op: Op, node: Call, *values: Any) -> Any:
    """Run the reference of an operator that only moves elements of its first argument."""
    indices = [v.astype(np.int64) for v in values[1:]]
    return op.reference(node.attrs, values[0], *indices)


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of an operator that is computed for each element."""
    vectorized: dict[int, Any] = {}

    def rule(_: Op, __: Call, *values: Array) -> Any:
        count = len(values)
        if count not in vectorized:
            vectorized[count] = np.frompyfunc(function, count, 1)
        return vectorized[count](*values)

    return rule


def _add(a: Dim, b: Dim) -> Dim:
    return sum_of_dims((a, b))


def _truncated_quotient(a: Dim, b: Dim) -> Dim:
    """Return a quotient of integers as C computes it, for a divisor that is known to be positive."""
    if interval_of_dim(b)[0] < 1:
        raise _UnknownError
    if interval_of_dim(a)[0] >= 0:
        return a // b
    return sum_of_dims((a, product_of_dims((b - 1, sign_bit_of_dim(a))))) // b


def _floored_quotient(a: Dim, b: Dim) -> Dim:
    if interval_of_dim(b)[0] < 1:
        raise _UnknownError
    return a // b


def _floored_remainder(a: Dim, b: Dim) -> Dim:
    return a - b * _floored_quotient(a, b)


def _truncated_remainder(a: Dim, b: Dim) -> Dim:
    return a - b * _truncated_quotient(a, b)


def _absolute(a: Dim) -> Dim:
    if interval_of_dim(a)[0] < 0:
        raise _UnknownError
    return a


def _equal(a: Dim, b: Dim) -> Dim:
    """Return whether two numbers are equal: a bool, or 0 or 1 as a formula if sizes of the run decide it."""
    if same_dim(a, b):
        return True
    if not isinstance(a, SymDim) and not isinstance(b, SymDim):
        return bool(a == b)
    (low, high), (least, most) = interval_of_dim(a), interval_of_dim(b)
    if high < least or most < low:
        return False
    return equality_of_dims(a, b)


def _less(a: Dim, b: Dim) -> Dim:
    (low, high), (least, most) = interval_of_dim(a), interval_of_dim(b)
    if high < least:
        return True
    if low >= most:
        return False
    return sign_bit_of_dim(a - b)


def _negated(condition: Dim) -> Dim:
    return 1 - condition if isinstance(condition, SymDim) else not condition


def _chosen(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


def _cast(_: Op, node: Call, values: Array) -> Array:
    ty, given = node.checked_type, node.args[0].checked_type
    assert isinstance(ty, TensorType)
    assert isinstance(given, TensorType)
    kept = ty.dtype.is_float or (ty.dtype.is_integer and ty.dtype.bits >= 32)
    if not kept or not (given.dtype.is_integer or given.dtype.is_float):
        raise _UnknownError
    # 2.9999999999 is truncated to 2, but is 3 as a float32
    is_rounded = ty.dtype.is_float and given.dtype.is_float and ty.dtype.bits < given.dtype.bits
    if is_rounded and are_floats_truncated() and any(isinstance(v, SymDim) for v in values.reshape(-1)):
        raise _UnknownError
    return values


def _reduction(combine: Callable[[Sequence[Dim]], Dim]) -> Callable[..., Any]:
    """Return the rule of a reduction of all elements."""

    def rule(_: Op, node: Call, values: Array) -> Any:
        ty = node.checked_type
        assert isinstance(ty, TensorType)
        if ty.numel != 1:
            raise _UnknownError
        result = np.empty(ty.static_shape, object)
        result[...] = combine(list(values.reshape(-1)))
        return result

    return rule


def _concatenated(op: Op, node: Call, parts: tuple[Array, ...]) -> Any:
    return op.reference(node.attrs, tuple(parts))


_MOVING_RULES: Final[Mapping[str, Callable[..., Any]]] = {
    **dict.fromkeys(
        (
            *("take", "strided_slice", "reshape", "squeeze", "expand_dims", "transpose", "split", "copy", "reverse"),
            *("broadcast_to", "tile", "repeat"),
        ),
        _move_elements,
    ),
    "concatenate": _concatenated,
    "stack": _concatenated,
    "cast": _cast,
}
#: Operators that compute no other values than those of their operands, or than sizes.
_MOVING_OPERATORS: Final = frozenset({*_MOVING_RULES, *_SHAPE_RULES})
#: Operators whose results on floats that are integers are these integers, unless they are too large.
_EXACT_ON_FLOATS: Final = frozenset(
    {*_MOVING_OPERATORS, "add", "subtract", "multiply", "negative", "abs", "maximum", "minimum", "where"}
)
_RULES: Final[Mapping[str, Callable[..., Any]]] = {
    **_MOVING_RULES,
    "add": _elementwise(_add),
    "subtract": _elementwise(lambda a, b: a - b),
    "multiply": _elementwise(lambda a, b: product_of_dims((a, b))),
    "negative": _elementwise(lambda a: 0 - a),
    "abs": _elementwise(_absolute),
    "divide": _elementwise(_truncated_quotient),
    "floor_divide": _elementwise(_floored_quotient),
    "floor_mod": _elementwise(_floored_remainder),
    "mod": _elementwise(_truncated_remainder),
    "maximum": _elementwise(lambda a, b: maximum_of_dims((a, b))),
    "minimum": _elementwise(lambda a, b: minimum_of_dims((a, b))),
    "equal": _elementwise(_equal),
    "not_equal": _elementwise(lambda a, b: _negated(_equal(a, b))),
    "less": _elementwise(_less),
    "greater": _elementwise(lambda a, b: _less(b, a)),
    "less_equal": _elementwise(lambda a, b: _negated(_less(b, a))),
    "greater_equal": _elementwise(lambda a, b: _negated(_less(a, b))),
    "where": _elementwise(_chosen),
    "prod": _reduction(product_of_dims),
    "sum": _reduction(sum_of_dims),
    "max": _reduction(maximum_of_dims),
    "min": _reduction(minimum_of_dims),
}
