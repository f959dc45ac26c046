# SPDX-License-Identifier: Apache-2.0
"""Constructors of elementwise operators from a numpy function, a tir expression and the accepted
dtypes.

exp = unary("exp", np.exp, intrinsic("exp"), FLOAT)
exp(x)                                 # Call(exp, [x])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from aotc.ir import Attrs, DType, OpPattern, TensorType, Type, Types, args
from aotc.relay.op import type_rules
from aotc.relay.op.opdef import Array, Index, OpDef, Sample, Samples, Scalar
from aotc.relay.op.sample_arguments import Kind, accuracy, cases, random_array, special_values
from aotc.relay.op.type_rules import axis_of, broadcast_rule, pointwise, tensor
from aotc.tir import Tensor, all_of, const, maximum, minimum, select
from aotc.tir import call as intrinsic_call

NumpyFn: TypeAlias = Callable[..., Any]
ScalarFn: TypeAlias = Callable[..., Scalar]
T = TypeVar("T")


def carried(data: Array) -> Array:
    """Return an array in a dtype that numpy computes in: bfloat16 and float8 as float32, sub-byte
    integers as int32.
    """
    dtype = DType.of(data)
    if dtype.is_narrow_float and dtype != "float16":
        return data.astype(np.float32)
    return data.astype(np.int32) if dtype.is_integer and dtype.bits < 8 else data


def elementwise(fn: NumpyFn, result: str = "") -> Callable[..., Array]:
    """Return an operator's numpy reference for a numpy function of its arguments.

    The result has the dtype `result`, or that of the last argument if `result` is "".
    """

    def reference(_: Any, *args: Array) -> Array:
        dtype = DType(result or DType.of(args[-1]))
        return np.asarray(fn(*map(carried, args))).astype(dtype.numpy, copy=False)

    return reference


def wide(fn: NumpyFn) -> NumpyFn:
    """Return `fn`, computed in float32 for narrow floats (float16, bfloat16) and rounded once; for
    scalars and arrays.
    """

    def apply(*args: Any) -> Any:
        dtype = args[0].dtype
        narrow = DType(str(dtype)).is_narrow_float
        return fn(*(a.astype("float32") for a in args)).astype(dtype) if narrow else fn(*args)

    return apply


def either(scalars: NumpyFn, arrays: NumpyFn) -> NumpyFn:
    """Return a function that applies `scalars` to scalar expressions and `arrays` to numpy arrays."""
    return lambda *args: (arrays if isinstance(args[0], (np.ndarray, np.generic)) else scalars)(*args)


def intrinsic(name: str) -> NumpyFn:
    """Return a function that applies the tir intrinsic `name` to scalar expressions and numpy's
    `name` to arrays.
    """
    return either(partial(intrinsic_call, name), lambda *args: getattr(np, name)(*args))


greater: Final = either(maximum, np.maximum)
lesser: Final = either(minimum, np.minimum)
choose: Final = either(select, np.where)
same: Final = either(lambda a, b: a.equal(b), np.equal)
every: Final = either(all_of, lambda *conditions: np.logical_and.reduce(np.broadcast_arrays(*conditions)))


def literal(values: Sequence[float], index: Scalar, dtype: str) -> Scalar:
    """Return the element of a non-empty list of numbers at a symbolic index, as a chain of selects."""
    result: Scalar = const(values[-1], dtype)
    for k, value in reversed(list(enumerate(values[:-1]))):
        result = select(index.equal(k), const(value, dtype), result)
    return result


def replaced(items: Sequence[T], position: int, item: T) -> tuple[T, ...]:
    """Return `items` with the item at `position` replaced."""
    return (*items[:position], item, *items[position + 1 :])


def broadcast_at(x: Tensor, indices: Sequence[Any]) -> Scalar:
    """Return the element of `x` at `indices` of the shape that `x` is broadcast to."""
    own = indices[len(indices) - x.rank :]
    return x[tuple(0 if extent == 1 else i for extent, i in zip(x.shape, own, strict=True))]


def broadcast(fn: ScalarFn) -> ScalarFn:
    """Return an `element` function that applies `fn` to the elements of broadcast arguments."""
    return lambda _, i, *args: fn(*(broadcast_at(x, i) for x in args))


# --- samples


def _unary_samples(kind: Kind, exact: bool) -> Samples:
    arrays = [special_values(dtype) for dtype in kind.examples]
    for data in (*arrays, *(random_array(shape, kind.examples[0]) for shape in ((), (3, 1, 5), (0, 2)))):
        yield Sample(args=(data,), accuracy=accuracy(str(data.dtype), exact))


def _binary_samples(kind: Kind, exact: bool) -> Samples:
    # all pairs of special values, as a column and a row
    arrays = [(values.reshape(-1, 1), values.reshape(1, -1)) for values in map(special_values, kind.examples)]
    shapes: Any = (((), ()), ((2, 3, 4), (3, 1)), ((4,), (2, 3, 1)), ((2, 3), (2, 3)), ((0, 3), (1, 3)), ((), (3,)))
    first = kind.examples[0]
    for a, b in (*arrays, *((random_array(a, first, 1), random_array(b, first, 2)) for a, b in shapes)):
        yield Sample(args=(a, b), accuracy=accuracy(str(a.dtype), exact))


# --- rows


def _row(
    arguments: str,
    name: str,
    reference: NumpyFn,
    expression: ScalarFn,
    kind: Kind,
    *,
    result: str = "",
    exact: bool = False,
    **facets: Any,
) -> OpDef:
    """Return the OpDef of an elementwise operator with broadcasting.

    result   dtype of the result if it differs from the arguments' dtype
    exact    True if the result is not rounded
    facets   other fields of OpDef
    """
    pair = arguments != "data"
    of = "the elements of two tensors, which are broadcast" if pair else "each element"
    samples = _binary_samples if pair else _unary_samples
    return OpDef(
        name=name,
        doc=f"`{name.rpartition('.')[2]}` of {of}.",
        args=args(*arguments.split()),
        infer=broadcast_rule(result or None, lambda t: kind.accepts(t.dtype)),
        reference=elementwise(reference, result),
        pattern=OpPattern.BROADCAST if pair else OpPattern.ELEMWISE,
        axes=pointwise,
        element=broadcast(expression),
        samples=partial(samples, kind, exact or bool(result)),
        **facets,
    )


#: Return an elementwise operator of one tensor (name, numpy function, tir expression, dtypes); see
#: `_row`.
unary = partial(_row, "data")
#: Return a broadcasting operator of two tensors, from arguments as for `unary`.
binary = partial(_row, "lhs rhs")


def along_axis(
    name: str,
    attributes: type[Attrs],
    vector: str,
    fn: NumpyFn,
    code: str,
    samples: Sequence[Any],
    accepts: Callable[[Type], TensorType] = tensor,
    **facets: Any,
) -> OpDef:
    """Return an elementwise operator of data and of a vector along `axis`.

    fn       function of (data, vector element), for arrays and scalars
    code     code of the diagnostic for a vector that does not fit the data
    samples  rows of `sample_arguments.cases`
    accepts  returns the data's type, or raises AotcError if it is not supported
    """

    def infer(a: Any, types: Types) -> Type:
        data = accepts(types[0])
        type_rules.check_vectors(code, a, data, types[1:], vector)
        return data

    def element(a: Any, i: Index, data: Tensor, values: Tensor) -> Any:
        return fn(data[i], values[i[axis_of(a.axis, data.rank)]])

    return OpDef(
        name=name,
        attrs=attributes,
        args=args("data", vector),
        infer=infer,
        refine=type_rules.vectors_along_axis,
        reference=lambda a, x, v: fn(x, type_rules.broadcast_along(v, a.axis, x.ndim)),
        pattern=OpPattern.BROADCAST,
        axes=type_rules.elements_and_vectors,
        element=element,
        samples=cases(attributes, samples),
        **facets,
    )
