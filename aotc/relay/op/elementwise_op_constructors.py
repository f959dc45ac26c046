# SPDX-License-Identifier: Apache-2.0
"""Constructors of elementwise operators from a numpy function, a tir expression and the accepted
dtypes.

exp = unary("exp", np.exp, intrinsic_for_scalars_and_arrays("exp"), FLOAT)
exp(x)                                 # Call(exp, [x])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from aotc.ir import Attrs, DType, OpPattern, SymDim, TensorType, Type, Types, declare_arguments
from aotc.relay.op import type_rules
from aotc.relay.op.opdef import Array, Index, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_test_inputs import (
    DTypeKind,
    random_array,
    random_samples_from_rows,
    sample_accuracy,
    special_values,
)
from aotc.relay.op.type_rules import broadcasting_type_rule, elementwise_axis_map, normalize_axis, require_tensor_type
from aotc.tir import Tensor, all_of, as_expr, const, maximum, minimum, select
from aotc.tir import call as intrinsic_call

NumpyFn: TypeAlias = Callable[..., Any]
ScalarFn: TypeAlias = Callable[..., Scalar]
T = TypeVar("T")


def to_numpy_computable_dtype(data: Array) -> Array:
    """Return an array in a dtype that numpy computes in: bfloat16 and float8 as float32, sub-byte
    integers as int32.
    """
    dtype = DType.from_numpy(data)
    if dtype.is_narrow_float and dtype != "float16":
        return data.astype(np.float32)
    return data.astype(np.int32) if dtype.is_integer and dtype.bits < 8 else data


def elementwise_numpy_reference(fn: NumpyFn, result_dtype: str = "") -> Callable[..., Array]:
    """Return an operator's numpy reference for a numpy function of its arguments.

    The result has the dtype `result_dtype`, or that of the last argument if `result_dtype` is "".
    """

    def apply_numpy_fn_and_cast_result(_: Any, *args: Array) -> Array:
        dtype = DType(result_dtype or DType.from_numpy(args[-1]))
        return np.asarray(fn(*map(to_numpy_computable_dtype, args))).astype(dtype.numpy, copy=False)

    return apply_numpy_fn_and_cast_result


def compute_narrow_floats_in_float32(fn: NumpyFn) -> NumpyFn:
    """Return `fn`, computed in float32 for narrow floats (float16, bfloat16) and rounded once; for
    scalars and arrays.
    """

    def apply_in_float32_if_narrow(*args: Any) -> Any:
        dtype = args[0].dtype
        narrow = DType(str(dtype)).is_narrow_float
        return fn(*(a.astype("float32") for a in args)).astype(dtype) if narrow else fn(*args)

    return apply_in_float32_if_narrow


def dispatch_scalar_or_array(scalar_fn: NumpyFn, array_fn: NumpyFn) -> NumpyFn:
    """Return a function that applies `scalar_fn` to scalar expressions and `array_fn` to numpy
    arrays.
    """
    return lambda *args: (array_fn if isinstance(args[0], (np.ndarray, np.generic)) else scalar_fn)(*args)


def intrinsic_for_scalars_and_arrays(name: str) -> NumpyFn:
    """Return a function that applies the tir intrinsic `name` to scalar expressions and numpy's
    `name` to arrays.
    """
    return dispatch_scalar_or_array(partial(intrinsic_call, name), lambda *args: getattr(np, name)(*args))


greater: Final = dispatch_scalar_or_array(maximum, np.maximum)
lesser: Final = dispatch_scalar_or_array(minimum, np.minimum)
choose: Final = dispatch_scalar_or_array(select, np.where)
same: Final = dispatch_scalar_or_array(lambda a, b: a.equal(b), np.equal)
every: Final = dispatch_scalar_or_array(
    all_of, lambda *conditions: np.logical_and.reduce(np.broadcast_arrays(*conditions))
)


def select_constant_at_index(values: Sequence[float | SymDim], index: Scalar, dtype: str) -> Scalar:
    """Return the element of a non-empty list of numbers and dimensions at a symbolic index, as a chain of
    selects.
    """

    def element(value: float | SymDim) -> Scalar:
        return as_expr(value, const(0, dtype)) if isinstance(value, SymDim) else const(value, dtype)

    result: Scalar = element(values[-1])
    for k, value in reversed(list(enumerate(values[:-1]))):
        result = select(index.equal(k), element(value), result)
    return result


def replace_item(items: Sequence[T], position: int, item: T) -> tuple[T, ...]:
    """Return `items` with the item at `position` replaced."""
    return (*items[:position], item, *items[position + 1 :])


def element_of_broadcast_tensor(x: Tensor, indices: Sequence[Any]) -> Scalar:
    """Return the element of `x` at `indices` of the shape that `x` is broadcast to."""
    tail_indices = indices[len(indices) - x.rank :]
    return x[tuple(0 if extent == 1 else i for extent, i in zip(x.shape, tail_indices, strict=True))]


def element_function_of_scalar_function(fn: ScalarFn) -> ScalarFn:
    """Return an element function that applies `fn` to the elements of broadcast arguments."""
    return lambda _, i, *args: fn(*(element_of_broadcast_tensor(x, i) for x in args))


# --- samples


def _unary_test_samples(dtype_kind: DTypeKind, exact: bool) -> Samples:
    arrays = [special_values(dtype) for dtype in dtype_kind.examples]
    for data in (*arrays, *(random_array(shape, dtype_kind.examples[0]) for shape in ((), (3, 1, 5), (0, 2)))):
        yield Sample(args=(data,), accuracy=sample_accuracy(str(data.dtype), exact))


def _binary_test_samples(dtype_kind: DTypeKind, exact: bool) -> Samples:
    # all pairs of special values, as a column and a row
    arrays = [(values.reshape(-1, 1), values.reshape(1, -1)) for values in map(special_values, dtype_kind.examples)]
    shapes: Any = (((), ()), ((2, 3, 4), (3, 1)), ((4,), (2, 3, 1)), ((2, 3), (2, 3)), ((0, 3), (1, 3)), ((), (3,)))
    first = dtype_kind.examples[0]
    for a, b in (*arrays, *((random_array(a, first, 1), random_array(b, first, 2)) for a, b in shapes)):
        yield Sample(args=(a, b), accuracy=sample_accuracy(str(a.dtype), exact))


# --- rows


def _elementwise_op(
    argument_names: str,
    name: str,
    reference: NumpyFn,
    scalar_fn: ScalarFn,
    dtype_kind: DTypeKind,
    *,
    result_dtype: str = "",
    exact: bool = False,
    **facets: Any,
) -> OpDef:
    """Return the OpDef of an elementwise operator with broadcasting.

    result_dtype    dtype of the result if it differs from the arguments' dtype
    exact           True if the result is not rounded
    facets          other fields of OpDef
    """
    pair = argument_names != "data"
    of = "the elements of two tensors, which are broadcast" if pair else "each element"
    samples = _binary_test_samples if pair else _unary_test_samples
    return OpDef(
        name=name,
        doc=f"`{name.rpartition('.')[2]}` of {of}.",
        args=declare_arguments(*argument_names.split()),
        infer=broadcasting_type_rule(result_dtype or None, lambda t: dtype_kind.accepts(t.dtype)),
        reference=elementwise_numpy_reference(reference, result_dtype),
        pattern=OpPattern.BROADCAST if pair else OpPattern.ELEMWISE,
        axes=elementwise_axis_map,
        element=element_function_of_scalar_function(scalar_fn),
        samples=partial(samples, dtype_kind, exact or bool(result_dtype)),
        **facets,
    )


#: Return an elementwise operator of one tensor (name, numpy function, tir expression, dtypes); see
#: `_elementwise_op`.
unary = partial(_elementwise_op, "data")
#: Return a broadcasting operator of two tensors, from arguments as for `unary`.
binary = partial(_elementwise_op, "lhs rhs")


def op_with_vector_along_axis(
    name: str,
    attrs_class: type[Attrs],
    vector_name: str,
    fn: NumpyFn,
    error_code: str,
    samples: Sequence[Any],
    accepts: Callable[[Type], TensorType] = require_tensor_type,
    **facets: Any,
) -> OpDef:
    """Return an elementwise operator of data and of a vector along `axis`.

    fn            function of (data, vector element), for arrays and scalars
    error_code    code of the diagnostic for a vector that does not fit the data
    samples       rows of `operator_test_inputs.random_samples_from_rows`
    accepts       returns the data's type, or raises AotcError if it is not supported
    """

    def infer_type_and_check_vector(attrs: Any, types: Types) -> Type:
        data = accepts(types[0])
        type_rules.check_vectors_match_axis(error_code, attrs, data, types[1:], vector_name)
        return data

    def combine_with_vector_element(attrs: Any, i: Index, data: Tensor, values: Tensor) -> Any:
        return fn(data[i], values[i[normalize_axis(attrs.axis, data.rank)]])

    return OpDef(
        name=name,
        attrs=attrs_class,
        args=declare_arguments("data", vector_name),
        infer=infer_type_and_check_vector,
        refine=type_rules.infer_missing_vector_types,
        reference=lambda a, x, v: fn(x, type_rules.reshape_to_broadcast_along(v, a.axis, x.ndim)),
        pattern=OpPattern.BROADCAST,
        axes=type_rules.elementwise_with_vectors_axis_map,
        element=combine_with_vector_element,
        samples=random_samples_from_rows(attrs_class, samples),
        **facets,
    )
