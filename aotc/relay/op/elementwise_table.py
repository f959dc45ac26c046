# SPDX-License-Identifier: Apache-2.0
"""Operators of single elements as rows of a table: a numpy function, a tir expression, the accepted types.

exp = unary("exp", np.exp, intrinsic("exp"), FLOAT)
exp(x)                                 # the graph node
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
    """An array whose elements numpy can compute with: of a wider type where its arithmetic for theirs is incomplete."""
    dtype = DType.of(data)
    if dtype.is_narrow_float and dtype != "float16":
        return data.astype(np.float32)
    return data.astype(np.int32) if dtype.is_integer and dtype.bits < 8 else data


def elementwise(fn: NumpyFn, result: str = "") -> Callable[..., Array]:
    """A reference of arrays from a numpy function; the result has the dtype of the last argument, or `result`."""

    def reference(_: Any, *args: Array) -> Array:
        dtype = DType(result or DType.of(args[-1]))
        return np.asarray(fn(*map(carried, args))).astype(dtype.numpy, copy=False)

    return reference


def wide(fn: NumpyFn) -> NumpyFn:
    """`fn` of scalars or of arrays, computed in float32 where they are narrower floats, rounded once."""

    def apply(*args: Any) -> Any:
        dtype = args[0].dtype
        narrow = DType(str(dtype)).is_narrow_float
        return fn(*(a.astype("float32") for a in args)).astype(dtype) if narrow else fn(*args)

    return apply


def either(scalars: NumpyFn, arrays: NumpyFn) -> NumpyFn:
    """A function of scalar expressions and of arrays, for formulas of both."""
    return lambda *args: (arrays if isinstance(args[0], (np.ndarray, np.generic)) else scalars)(*args)


def intrinsic(name: str) -> NumpyFn:
    """The tir intrinsic called `name` of scalars, and numpy's function of that name of arrays."""
    return either(partial(intrinsic_call, name), lambda *args: getattr(np, name)(*args))


greater: Final = either(maximum, np.maximum)
lesser: Final = either(minimum, np.minimum)
choose: Final = either(select, np.where)
same: Final = either(lambda a, b: a.equal(b), np.equal)
every: Final = either(all_of, lambda *conditions: np.logical_and.reduce(np.broadcast_arrays(*conditions)))


def literal(values: Sequence[float], index: Scalar, dtype: str) -> Scalar:
    """The element of a list of numbers, which is not empty, that an index names."""
    result: Scalar = const(values[-1], dtype)
    for k, value in reversed(list(enumerate(values[:-1]))):
        result = select(index.equal(k), const(value, dtype), result)
    return result


def replaced(items: Sequence[T], position: int, item: T) -> tuple[T, ...]:
    """`items` with one of them exchanged."""
    return (*items[:position], item, *items[position + 1 :])


def broadcast_at(x: Tensor, indices: Sequence[Any]) -> Scalar:
    """The element of `x` that lies at `indices` of what it is broadcast to."""
    own = indices[len(indices) - x.rank :]
    return x[tuple(0 if extent == 1 else i for extent, i in zip(x.shape, own, strict=True))]


def broadcast(fn: ScalarFn) -> ScalarFn:
    """The element of the result, which is fn(elements of the arguments, which are broadcast)."""
    return lambda _, i, *args: fn(*(broadcast_at(x, i) for x in args))


# --- samples


def _unary_samples(kind: Kind, exact: bool) -> Samples:
    arrays = [special_values(dtype) for dtype in kind.examples]
    for data in (*arrays, *(random_array(shape, kind.examples[0]) for shape in ((), (3, 1, 5), (0, 2)))):
        yield Sample(args=(data,), accuracy=accuracy(str(data.dtype), exact))


def _binary_samples(kind: Kind, exact: bool) -> Samples:
    # every special value against every other, a column and a row
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
    """An operator of the elements of tensors, which are broadcast.

    result   the result's dtype where it is not the arguments'
    exact    no rounding occurs
    facets   what else the operator states
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


#: An operator of one tensor, element by element: name, numpy function, tir expression, types; for more see `_row`.
unary = partial(_row, "data")
#: A broadcasting operator of two tensors, said like one of one tensor.
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
    """An elementwise operator of data and of a `vector` along `axis`, as a function of arrays or of scalars.

    code     of the diagnostic where the vector does not fit
    samples  as `samples.cases` takes them
    accepts  the data's type, if it is one that the operator takes
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
