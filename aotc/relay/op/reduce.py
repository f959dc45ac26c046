# SPDX-License-Identifier: Apache-2.0
"""Reductions over axes: sum, prod, max, min, mean, all, any, argmax, argmin, variance.

sum(x, axis=(1, 2), keepdims=True)
argmax(x, axis=-1)                     # int32; NaN is the greatest value, the first of equal values is chosen

If `axis` is None, all axes are reduced; `exclude` reduces all axes except the listed ones. Narrow
floats (float16, bfloat16) are summed in float32.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np

from aotc.ir import Attrs, DType, TensorType, Type, frozen
from aotc.ir.op import Arg, AxisMap, OpPattern, Precision, Quantized, Types, args, require
from aotc.relay.expr import Call, Constant, Expr, Tuple, tensor_type_of
from aotc.relay.op import binary_elementwise as arithmetic
from aotc.relay.op import elementwise_unary
from aotc.relay.op.casts import in_float32
from aotc.relay.op.contraction import convert, float_work, promoted, sum_type, truncated_quotient
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    Samples,
    Scalar,
    axes_of,
    carried,
    require_dtype,
    tensor,
)
from aotc.relay.op.sample_arguments import BOOL, FLOAT, NUMBER, Kind, accuracy, exact, random_array, special_values
from aotc.tir import Tensor, binary, call, const, select, te

T = TypeVar("T")


class ReduceAttrs(Attrs):
    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    exclude: bool = False


class ArgReduceAttrs(Attrs):
    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    select_last_index: bool = False
    exclude: bool = False


class VarianceAttrs(ReduceAttrs):
    """Variance: the mean squared difference from the mean; `unbiased` divides by the count minus
    one.
    """

    unbiased: bool = False


@frozen
class Reduction:
    """A reduction of a tensor of shape `shape` over the ascending axes `axes`."""

    shape: tuple[Any, ...]
    axes: tuple[int, ...]
    keepdims: bool = False

    @property
    def extents(self) -> tuple[Any, ...]:
        return tuple(self.shape[k] for k in self.axes)

    @property
    def count(self) -> int:
        return math.prod(self.extents)

    @property
    def result(self) -> tuple[Any, ...]:
        """Shape of the result."""
        return self.of(self.shape, 1)

    def of(self, items: Sequence[T], one: T) -> tuple[T, ...]:
        """Map a sequence over the data's axes to the result's axes; `one` replaces items of reduced
        axes with keepdims.
        """
        inner = self.axes
        return tuple(one if k in inner else item for k, item in enumerate(items) if self.keepdims or k not in inner)

    def at(self, index: Sequence[Scalar]) -> tuple[Scalar | int, ...]:
        """Return the index of the result element to which the data element at `index` contributes."""
        return self.of(index, 0)

    def reduce(self, combiner: str, term: Callable[[tuple[Scalar, ...]], Scalar], name: str = "") -> te.Reduce:
        """Return the te.reduce that combines `term(index)` over all data elements of each result
        element.
        """
        order = [*self.of(range(len(self.shape)), -1), *self.axes]

        def body(*v: Scalar) -> Scalar:
            index = dict(zip(order, v, strict=True))
            return term(tuple(index[k] for k in range(len(self.shape))))

        return te.reduce(combiner, self.result, self.extents, body, name or combiner)


def _space(a: Any, shape: Sequence[Any]) -> Reduction:
    """Return the reduction that the attributes describe for data of a shape."""
    named = axes_of(a.axis, len(shape))
    removed = tuple(k for k in range(len(shape)) if k not in named) if a.exclude and a.axis is not None else named
    return Reduction(tuple(shape), removed, a.keepdims)


def _axis_map(a: Any, types: Types) -> AxisMap:
    """Return the axis map of a reduction, in which all arguments have the axes of the first.

    The mean, an argument of `variance`, has the rank of the data.
    """
    axes: Sequence[int | None] = range(tensor(types[0]).rank)
    return AxisMap((_space(a, axes).of(axes, None),) * len(types))


def _moved(a: Any, types: Types, now: Callable[[int], int]) -> Any:
    if a.axis is None:
        return a
    return a.replace(axis=tuple(sorted(map(now, axes_of(a.axis, tensor(types[0]).rank)))))


def _moved_arg(a: ArgReduceAttrs, types: Types, now: Callable[[int], int]) -> Attrs | None:
    """Return the attributes after a permutation of the axes; None if it changes the order of the
    reduced axes.

    The flat position of an extremum over several axes depends on their order.
    """
    places = [*map(now, _space(a, tensor(types[0]).shape).axes)]
    return _moved(a, types, now) if places == sorted(places) else None


def _infer(kind: Kind, a: Any, types: Types) -> Type:
    data = tensor(types[0])
    require_dtype(data.dtype, kind.accepts(data.dtype))
    return TensorType(_space(a, data.shape).result, data.dtype)


# --- sum, prod, max, min, all, any, mean


def _numpy(ufunc: Any, a: Any, data: Array, limit: str = "") -> Array:
    """Apply a ufunc's reduction to an array.

    limit  attribute of the dtype ("lowest", "highest") with the result of an empty reduction, if the
           ufunc has none
    """
    work = float_work(carried(data))
    initial = {"initial": getattr(DType.of(work), limit)} if limit else {}
    value = ufunc.reduce(work, axis=_space(a, data.shape).axes, keepdims=a.keepdims, dtype=work.dtype, **initial)
    return np.asarray(value).astype(data.dtype)


def _numpy_mean(a: Any, data: Array) -> Array:
    work = data.astype(sum_type(DType.of(data)).numpy)
    total = _numpy(np.add, a, work)
    count = _space(a, data.shape).count
    if not DType.of(work).is_float:
        return truncated_quotient(total, builtins.max(count, 1)).astype(data.dtype)
    return np.asarray(total / work.dtype.type(count)).astype(data.dtype)


def _compute(combiner: str, a: Any, data: Tensor) -> Tensor:
    x = promoted(data)
    bool_combiner = {"sum": "or", "max": "or", "min": "and"}.get(combiner, combiner) if x.dtype.is_bool else combiner
    return convert(_space(a, x.shape).reduce(bool_combiner, x.__getitem__), data.dtype)


def _compute_mean(a: Any, data: Tensor) -> Tensor:
    x = convert(data, sum_type(data.dtype))
    space = _space(a, x.shape)
    total = space.reduce("sum", x.__getitem__)

    def mean(*i: Scalar) -> Scalar:
        if x.dtype.is_float:
            return (total[i] / space.count).astype(data.dtype)
        return binary("truncdiv", total[i], builtins.max(space.count, 1)).astype(data.dtype)

    return te.compute(space.result, mean, "mean")


_CASES: Any = (
    ((2, 3, 4), (1,)), ((2, 3, 4), (-1,), True), ((2, 3, 4), (0, 2)), ((2, 3, 4), None), ((2, 3, 4), None, True),
    ((2, 3, 4), (1,), False, True), ((2, 3, 4), ()), ((1, 70), (1,)), ((5,), (0,)), ((), None), ((0, 3), (1,)),
    ((3, 0), (1,)),
)  # fmt: skip


def _cases(make: Any, empty: bool) -> Iterator[tuple[tuple[int, ...], Any]]:
    for shape, *values in _CASES if empty else _CASES[:-1]:
        yield shape, make(**dict(zip(("axis", "keepdims", "exclude"), values, strict=False)))


def _few(shape: Sequence[int], dtype: str) -> Array:
    """Return random values with many duplicates."""
    return (random_array(shape, "int8") % 5 - (2 if DType(dtype).is_signed else 0)).astype(DType(dtype).numpy)


def _samples(kind: Kind, make: Any, exact: bool, empty: bool = True) -> Samples:
    for dtype in kind.examples:
        values = special_values(dtype)
        rows = np.stack([values, np.roll(values, 1), np.sort(values), values[:1].repeat(values.size)])
        for data in (rows, _few((3, 40), dtype)):
            yield Sample(args=(data,), attrs=make(axis=(1,)), accuracy=accuracy(dtype, exact))
    for shape, attributes in _cases(make, empty):
        first = kind.examples[0]
        yield Sample(args=(random_array(shape, first),), attrs=attributes, accuracy=accuracy(first, exact))


def _reduction(
    name: str, kind: Kind, ufunc: Any, combiner: str, exact: bool = False, limit: str = "", **facets: Any
) -> OpDef:
    shared: dict[str, Any] = {"reference": partial(_numpy, ufunc, limit=limit), "compute": partial(_compute, combiner)}
    return OpDef(
        name=name,
        doc=f"The {name} over `axis` (None: all axes; `exclude`: all but these).",
        attrs=ReduceAttrs,
        infer=partial(_infer, kind),
        pattern=OpPattern.COMM_REDUCE,
        axes=_axis_map,
        moved=_moved,
        samples=lambda: _samples(kind, ReduceAttrs, exact),
        **shared | facets,
    )


_SELECTS: dict[str, Any] = {"exact": True, "precision": Precision.FOLLOW, "quantized": Quantized.PASS}
_MEAN: dict[str, Any] = {"reference": _numpy_mean, "compute": _compute_mean}
_ANYTHING = Kind(lambda d: True, (*NUMBER.examples, "bool"))
# the sum of bools is a logical or, as in Relay and in numpy
sum = _reduction("sum", _ANYTHING, np.add, "sum", quantized=Quantized.RESCALE)
prod = _reduction("prod", NUMBER, np.multiply, "prod")
max = _reduction("max", _ANYTHING, np.maximum, "max", limit="lowest", **_SELECTS)
min = _reduction("min", _ANYTHING, np.minimum, "min", limit="highest", **_SELECTS)
mean = _reduction("mean", NUMBER, np.add, "sum", quantized=Quantized.RESCALE, **_MEAN)
all = _reduction("all", BOOL, np.logical_and, "and")
any = _reduction("any", BOOL, np.logical_or, "or")


# --- argmax, argmin


def _numpy_arg(find: Any, a: ArgReduceAttrs, data: Array) -> Array:
    space = _space(a, data.shape)
    rows = np.moveaxis(float_work(data), space.axes, range(-len(space.axes), 0))
    rows = rows.reshape(*rows.shape[: data.ndim - len(space.axes)], space.count)
    index = rows.shape[-1] - 1 - find(rows[..., ::-1], axis=-1) if a.select_last_index else find(rows, axis=-1)
    return np.asarray(index, np.int32).reshape(space.result)


def _infer_arg(a: ArgReduceAttrs, types: Types) -> Type:
    data = tensor(types[0])
    require_dtype(data.dtype, NUMBER.accepts(data.dtype))
    space = _space(a, data.shape)
    require("argreduce.empty", 0 not in space.extents, "the maximum or minimum of an empty axis is not defined")
    count = math.prod(d for d in space.extents if isinstance(d, int))
    require("argreduce.size", count <= DType("int32").max, f"{count} positions do not fit int32")
    return TensorType(space.result, "int32")


def _stored(x: Tensor) -> Tensor:
    """Return `x` in memory, so that two passes over it read identical values."""
    if isinstance(x, te.Placeholder):
        return x
    return te.compute(x.shape, lambda *i: x[i], "data", materialize=True)


def _compute_arg(combiner: str, a: ArgReduceAttrs, data: Tensor) -> Tensor:
    """Compute the extremum first, then the first (or last) position where it occurs."""
    x = _stored(data)
    space = _space(a, x.shape)
    best = space.reduce(combiner, x.__getitem__)
    absent = -1 if a.select_last_index else DType("int32").max

    def place(index: tuple[Scalar, ...]) -> Scalar:
        value, wanted = x[index], best[space.at(index)]
        found = value.equal(wanted)
        if x.dtype.is_float:
            found = found | (call("isnan", value) & call("isnan", wanted))
        flat = te.flat_index(space.extents, [index[k] for k in space.axes])
        return select(found, flat.astype("int32"), const(absent, "int32"))

    return space.reduce("max" if a.select_last_index else "min", place)


def _arg_samples() -> Samples:
    yield from _samples(NUMBER, ArgReduceAttrs, exact=True, empty=False)
    for axis, last in product(((0,), (-1,), None), (False, True)):
        yield exact(ArgReduceAttrs(axis=axis, select_last_index=last), _few((6, 8), "float32"))


def _arg_reduction(name: str, combiner: str, find: Any) -> OpDef:
    return OpDef(
        name=name,
        doc=f"The {name} over `axis` as int32: the first of equals, or the last.",
        attrs=ArgReduceAttrs,
        order="data axis keepdims exclude select_last_index",
        infer=_infer_arg,
        reference=partial(_numpy_arg, find),
        pattern=OpPattern.COMM_REDUCE,
        axes=_axis_map,
        moved=_moved_arg,
        precision=Precision.FOLLOW,
        compute=partial(_compute_arg, combiner),
        samples=_arg_samples,
    )


argmax = _arg_reduction("argmax", "max", np.argmax)
argmin = _arg_reduction("argmin", "min", np.argmin)


# --- variance


def _infer_variance(a: VarianceAttrs, types: Types) -> Type:
    data, mean = tensor(types[0], "data"), tensor(types[1], "mean")
    kept = TensorType(_space(a.replace(keepdims=True), data.shape).result, data.dtype)
    require("variance.mean", mean == kept, lambda: f"the mean must be {kept}, got {mean}")
    return _infer(FLOAT, a, types)


def _numpy_variance(a: VarianceAttrs, data: Array, mean: Array) -> Array:
    work = float_work(data)
    total = _numpy(np.add, a, np.square(work - float_work(mean)))
    return np.asarray(total / work.dtype.type(_space(a, data.shape).count - a.unbiased)).astype(data.dtype)


def _compute_variance(a: VarianceAttrs, data: Tensor, mean: Tensor) -> Tensor:
    x, mean = promoted(data), promoted(mean)
    space, kept = (_space(b, x.shape) for b in (a, a.replace(keepdims=True)))

    def squared(index: tuple[Scalar, ...]) -> Scalar:
        difference = x[index] - mean[kept.at(index)]
        return difference * difference

    total = space.reduce("sum", squared)
    divisor = space.count - a.unbiased
    return te.compute(space.result, lambda *i: (total[i] / divisor).astype(data.dtype), "variance")


def _variance_samples() -> Samples:
    def sample(data: Array, a: VarianceAttrs) -> Sample:
        args = (data, _numpy_mean(a.replace(keepdims=True), data))
        return Sample(args=args, attrs=a, accuracy=accuracy(str(data.dtype)))

    for shape, attributes in _cases(VarianceAttrs, empty=False):
        yield sample(random_array(shape), attributes)
    yield sample(random_array((3, 5), "float16"), VarianceAttrs(axis=(1,), unbiased=True))


def _mean_of(_: Any, given: Mapping[str, Any]) -> Expr:
    return mean(given["data"], given["axis"], True, given["exclude"])


variance = OpDef(
    name="variance",
    attrs=VarianceAttrs,
    args=args("data", Arg("mean", takes=_mean_of)),
    order="data axis keepdims exclude unbiased",
    infer=_infer_variance,
    reference=_numpy_variance,
    pattern=OpPattern.COMM_REDUCE,
    axes=_axis_map,
    moved=_moved,
    compute=_compute_variance,
    samples=_variance_samples,
)


def std(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Call:
    """Standard deviation, the square root of the variance."""
    return in_float32(lambda x: elementwise_unary.sqrt(variance(x, axis, keepdims, exclude, unbiased)), data)


def mean_variance(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Tuple:
    """Mean and variance over axes, as a tuple."""
    found = variance(data, axis, keepdims, exclude, unbiased)
    return Tuple((mean(data, axis, keepdims, exclude), found))


def mean_std(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Tuple:
    """Mean and standard deviation over axes, as a tuple."""
    return Tuple((mean(data, axis, keepdims, exclude), std(data, axis, keepdims, exclude, unbiased)))


def logsumexp(data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Call:
    """log(sum(exp(data))) over axes, computed without overflow."""

    def shifted(x: Expr) -> Call:
        greatest = max(x, axis, True)
        zero = Constant(np.zeros((), tensor_type_of(x).dtype.numpy))
        finite = arithmetic.where(elementwise_unary.isfinite(greatest), greatest, zero)
        total = elementwise_unary.log(sum(elementwise_unary.exp(arithmetic.subtract(x, finite)), axis, keepdims))
        return arithmetic.add(total, finite if keepdims else sum(finite, axis))

    return in_float32(shifted, data)
