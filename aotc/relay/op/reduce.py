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

from aotc.ir import Attrs, DType, TensorType, Type, assume_at_least, frozen, maximum_of_dims
from aotc.ir.op import (
    Arg,
    AxisMap,
    OpPattern,
    PrecisionTreatment,
    QuantizationTreatment,
    Types,
    declare_arguments,
    require,
)
from aotc.relay.expr import Call, Constant, Expr, Tuple, tensor_type_of
from aotc.relay.op import binary_elementwise as arithmetic
from aotc.relay.op import elementwise_unary
from aotc.relay.op.cast_clip_prelu import compute_narrow_floats_in_float32
from aotc.relay.op.contraction_accumulator_types import (
    average_accumulator_dtype,
    cast_tensor,
    divide_integers_rounding_to_zero,
    widen_narrow_float_array,
    widen_narrow_float_tensor,
)
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    Samples,
    Scalar,
    normalize_axes,
    require_dtype,
    require_tensor_type,
    to_numpy_computable_dtype,
)
from aotc.relay.op.operator_test_inputs import (
    BOOL_KIND,
    FLOAT_KIND,
    NUMBER_KIND,
    DTypeKind,
    exact_sample,
    random_array,
    sample_accuracy,
    special_values,
)
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
    def reduced_extents(self) -> tuple[Any, ...]:
        return tuple(self.shape[k] for k in self.axes)

    @property
    def reduced_elements_per_result(self) -> te.Extent:
        return math.prod(self.reduced_extents)

    @property
    def averaged_elements_per_result(self) -> te.Extent:
        """The number by which a sum is divided: at least 1."""
        return te.as_extent(maximum_of_dims((self.reduced_elements_per_result, 1)))

    @property
    def result_shape(self) -> tuple[Any, ...]:
        """Shape of the result."""
        return self.select_items_of_result_axes(self.shape, 1)

    def select_items_of_result_axes(self, items: Sequence[T], reduced_item: T) -> tuple[T, ...]:
        """Map a sequence over the data's axes to the result's axes; `reduced_item` replaces items
        of reduced axes with keepdims.
        """
        inner = self.axes
        return tuple(
            reduced_item if k in inner else item for k, item in enumerate(items) if self.keepdims or k not in inner
        )

    def result_index_of(self, data_index: Sequence[Scalar]) -> tuple[Scalar | int, ...]:
        """Return the index of the result element to which the data element at `data_index`
        contributes.
        """
        return self.select_items_of_result_axes(data_index, 0)

    def reduce_terms(self, combiner: str, term: Callable[[tuple[Scalar, ...]], Scalar], name: str = "") -> te.Reduce:
        """Return the te.reduce that combines `term(index)` over all data elements of each result
        element.
        """
        order = [*self.select_items_of_result_axes(range(len(self.shape)), -1), *self.axes]

        def term_at_loop_indices(*v: Scalar) -> Scalar:
            index = dict(zip(order, v, strict=True))
            return term(tuple(index[k] for k in range(len(self.shape))))

        return te.reduce(combiner, self.result_shape, self.reduced_extents, term_at_loop_indices, name or combiner)


def _reduction_of_shape(attrs: Any, shape: Sequence[Any]) -> Reduction:
    """Return the reduction that the attributes describe for data of a shape."""
    named = normalize_axes(attrs.axis, len(shape))
    removed = (
        tuple(k for k in range(len(shape)) if k not in named) if attrs.exclude and attrs.axis is not None else named
    )
    return Reduction(tuple(shape), removed, attrs.keepdims)


def _reduction_axis_map(attrs: Any, types: Types) -> AxisMap:
    """Return the axis map of a reduction, in which all arguments have the axes of the first.

    The mean, an argument of `variance`, has the rank of the data.
    """
    axes: Sequence[int | None] = range(require_tensor_type(types[0]).rank)
    return AxisMap((_reduction_of_shape(attrs, axes).select_items_of_result_axes(axes, None),) * len(types))


def _reduce_attrs_after_permutation(attrs: Any, types: Types, new_axis_of: Callable[[int], int]) -> Any:
    if attrs.axis is None:
        return attrs
    return attrs.replace(
        axis=tuple(sorted(map(new_axis_of, normalize_axes(attrs.axis, require_tensor_type(types[0]).rank))))
    )


def _arg_reduce_attrs_after_permutation(
    a: ArgReduceAttrs, types: Types, new_axis_of: Callable[[int], int]
) -> Attrs | None:
    """Return the attributes after a permutation of the axes; None if it changes the order of the
    reduced axes.

    The flat position of an extremum over several axes depends on their order.
    """
    places = [*map(new_axis_of, _reduction_of_shape(a, require_tensor_type(types[0]).shape).axes)]
    return _reduce_attrs_after_permutation(a, types, new_axis_of) if places == sorted(places) else None


def _infer_reduction_type(dtype_kind: DTypeKind, attrs: Any, types: Types) -> Type:
    data = require_tensor_type(types[0])
    require_dtype(data.dtype, dtype_kind.accepts(data.dtype))
    return TensorType(_reduction_of_shape(attrs, data.shape).result_shape, data.dtype)


# --- sum, prod, max, min, all, any, mean


def _numpy_reduce(ufunc: Any, attrs: Any, data: Array, empty_result_dtype_attribute: str = "") -> Array:
    """Apply a ufunc's reduction to an array.

    empty_result_dtype_attribute    attribute of the dtype ("smallest_value", "largest_value") with the result of an
                    empty reduction, if the ufunc has none
    """
    work = widen_narrow_float_array(to_numpy_computable_dtype(data))
    initial = (
        {"initial": getattr(DType.from_numpy(work), empty_result_dtype_attribute)}
        if empty_result_dtype_attribute
        else {}
    )
    value = ufunc.reduce(
        work, axis=_reduction_of_shape(attrs, data.shape).axes, keepdims=attrs.keepdims, dtype=work.dtype, **initial
    )
    return np.asarray(value).astype(data.dtype)


def _numpy_mean(attrs: Any, data: Array) -> Array:
    work = data.astype(average_accumulator_dtype(DType.from_numpy(data)).numpy)
    total = _numpy_reduce(np.add, attrs, work)
    count = _reduction_of_shape(attrs, data.shape).reduced_elements_per_result
    if not DType.from_numpy(work).is_float:
        return divide_integers_rounding_to_zero(total, builtins.max(count, 1)).astype(data.dtype)
    return np.asarray(total / work.dtype.type(count)).astype(data.dtype)


def _compute_reduction(combiner: str, attrs: Any, data: Tensor) -> Tensor:
    x = widen_narrow_float_tensor(data)
    bool_combiner = {"sum": "or", "max": "or", "min": "and"}.get(combiner, combiner) if x.dtype.is_bool else combiner
    return cast_tensor(_reduction_of_shape(attrs, x.shape).reduce_terms(bool_combiner, x.__getitem__), data.dtype)


def _compute_mean(attrs: Any, data: Tensor) -> Tensor:
    x = cast_tensor(data, average_accumulator_dtype(data.dtype))
    space = _reduction_of_shape(attrs, x.shape)
    total = space.reduce_terms("sum", x.__getitem__)

    def mean_element(*i: Scalar) -> Scalar:
        if x.dtype.is_float:
            return (total[i] / space.reduced_elements_per_result).astype(data.dtype)
        return binary("truncdiv", total[i], space.averaged_elements_per_result).astype(data.dtype)

    return te.compute(space.result_shape, mean_element, "mean")


_REDUCTION_TEST_CASES: Any = (
    ((2, 3, 4), (1,)), ((2, 3, 4), (-1,), True), ((2, 3, 4), (0, 2)), ((2, 3, 4), None), ((2, 3, 4), None, True),
    ((2, 3, 4), (1,), False, True), ((2, 3, 4), ()), ((1, 70), (1,)), ((5,), (0,)), ((), None), ((0, 3), (1,)),
    ((3, 0), (1,)),
)  # fmt: skip


def _reduction_cases_with_attrs(attrs_class: Any, includes_empty: bool) -> Iterator[tuple[tuple[int, ...], Any]]:
    for shape, *values in _REDUCTION_TEST_CASES if includes_empty else _REDUCTION_TEST_CASES[:-1]:
        yield shape, attrs_class(**dict(zip(("axis", "keepdims", "exclude"), values, strict=False)))


def _random_values_with_duplicates(shape: Sequence[int], dtype: str) -> Array:
    """Return random values with many duplicates."""
    return (random_array(shape, "int8") % 5 - (2 if DType(dtype).is_signed else 0)).astype(DType(dtype).numpy)


def _reduction_test_samples(
    dtype_kind: DTypeKind, attrs_class: Any, exact: bool, includes_empty: bool = True
) -> Samples:
    for dtype in dtype_kind.examples:
        values = special_values(dtype)
        rows = np.stack([values, np.roll(values, 1), np.sort(values), values[:1].repeat(values.size)])
        for data in (rows, _random_values_with_duplicates((3, 40), dtype)):
            yield Sample(args=(data,), attrs=attrs_class(axis=(1,)), accuracy=sample_accuracy(dtype, exact))
    for shape, attributes in _reduction_cases_with_attrs(attrs_class, includes_empty):
        first = dtype_kind.examples[0]
        yield Sample(args=(random_array(shape, first),), attrs=attributes, accuracy=sample_accuracy(first, exact))


def _reduction_op(
    name: str,
    dtype_kind: DTypeKind,
    ufunc: Any,
    combiner: str,
    exact: bool = False,
    empty_result: str = "",
    **facets: Any,
) -> OpDef:
    shared: dict[str, Any] = {
        "reference": partial(_numpy_reduce, ufunc, empty_result_dtype_attribute=empty_result),
        "compute": partial(_compute_reduction, combiner),
    }
    return OpDef(
        name=name,
        doc=f"The {name} over `axis` (None: all axes; `exclude`: all but these).",
        attrs=ReduceAttrs,
        infer=partial(_infer_reduction_type, dtype_kind),
        pattern=OpPattern.COMM_REDUCE,
        axes=_reduction_axis_map,
        moved=_reduce_attrs_after_permutation,
        samples=lambda: _reduction_test_samples(dtype_kind, ReduceAttrs, exact),
        **shared | facets,
    )


_SELECTING_REDUCTION_FACETS: dict[str, Any] = {
    "exact": True,
    "precision": PrecisionTreatment.FOLLOW,
    "quantized": QuantizationTreatment.PASS,
}
_MEAN_FACETS: dict[str, Any] = {"reference": _numpy_mean, "compute": _compute_mean}
_NUMBER_OR_BOOL_KIND = DTypeKind(lambda d: True, (*NUMBER_KIND.examples, "bool"))
# the sum of bools is a logical or, as in Relay and in numpy
sum = _reduction_op("sum", _NUMBER_OR_BOOL_KIND, np.add, "sum", quantized=QuantizationTreatment.RESCALE)
prod = _reduction_op("prod", NUMBER_KIND, np.multiply, "prod")
max = _reduction_op(
    "max", _NUMBER_OR_BOOL_KIND, np.maximum, "max", empty_result="smallest_value", **_SELECTING_REDUCTION_FACETS
)
min = _reduction_op(
    "min", _NUMBER_OR_BOOL_KIND, np.minimum, "min", empty_result="largest_value", **_SELECTING_REDUCTION_FACETS
)
mean = _reduction_op("mean", NUMBER_KIND, np.add, "sum", quantized=QuantizationTreatment.RESCALE, **_MEAN_FACETS)
all = _reduction_op("all", BOOL_KIND, np.logical_and, "and")
any = _reduction_op("any", BOOL_KIND, np.logical_or, "or")


# --- argmax, argmin


def _numpy_arg_reduce(arg_fn: Any, a: ArgReduceAttrs, data: Array) -> Array:
    space = _reduction_of_shape(a, data.shape)
    rows = np.moveaxis(widen_narrow_float_array(data), space.axes, range(-len(space.axes), 0))
    rows = rows.reshape(*rows.shape[: data.ndim - len(space.axes)], space.reduced_elements_per_result)
    index = rows.shape[-1] - 1 - arg_fn(rows[..., ::-1], axis=-1) if a.select_last_index else arg_fn(rows, axis=-1)
    return np.asarray(index, np.int32).reshape(space.result_shape)


def _infer_arg_reduce_type(a: ArgReduceAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0])
    require_dtype(data.dtype, NUMBER_KIND.accepts(data.dtype))
    space = _reduction_of_shape(a, data.shape)
    require("argreduce.empty", 0 not in space.reduced_extents, "the maximum or minimum of an empty axis is not defined")
    for extent in space.reduced_extents:
        assume_at_least(extent, 1)
    count = math.prod(d for d in space.reduced_extents if isinstance(d, int))
    require("argreduce.size", count <= DType("int32").max, f"{count} positions do not fit int32")
    return TensorType(space.result_shape, "int32")


def _materialize_tensor(x: Tensor) -> Tensor:
    """Return `x` in memory, so that two passes over it read identical values."""
    if isinstance(x, te.Placeholder):
        return x
    return te.compute(x.shape, lambda *i: x[i], "data", materialize=True)


def _compute_arg_reduce(combiner: str, a: ArgReduceAttrs, data: Tensor) -> Tensor:
    """Compute the extremum first, then the first (or last) position where it occurs."""
    x = _materialize_tensor(data)
    space = _reduction_of_shape(a, x.shape)
    best = space.reduce_terms(combiner, x.__getitem__)
    absent = -1 if a.select_last_index else DType("int32").max

    def position_if_extremum(index: tuple[Scalar, ...]) -> Scalar:
        value, extremum = x[index], best[space.result_index_of(index)]
        is_match = value.equal(extremum)
        if x.dtype.is_float:
            is_match = is_match | (call("isnan", value) & call("isnan", extremum))
        flat = te.flat_index(space.reduced_extents, [index[k] for k in space.axes])
        return select(is_match, flat.astype("int32"), const(absent, "int32"))

    return space.reduce_terms("max" if a.select_last_index else "min", position_if_extremum)


def _arg_reduce_test_samples() -> Samples:
    yield from _reduction_test_samples(NUMBER_KIND, ArgReduceAttrs, exact=True, includes_empty=False)
    for axis, last in product(((0,), (-1,), None), (False, True)):
        yield exact_sample(
            ArgReduceAttrs(axis=axis, select_last_index=last), _random_values_with_duplicates((6, 8), "float32")
        )


def _arg_reduce_op(name: str, combiner: str, arg_fn: Any) -> OpDef:
    return OpDef(
        name=name,
        doc=f"The {name} over `axis` as int32: the first of equals, or the last.",
        attrs=ArgReduceAttrs,
        order="data axis keepdims exclude select_last_index",
        infer=_infer_arg_reduce_type,
        reference=partial(_numpy_arg_reduce, arg_fn),
        pattern=OpPattern.COMM_REDUCE,
        axes=_reduction_axis_map,
        moved=_arg_reduce_attrs_after_permutation,
        precision=PrecisionTreatment.FOLLOW,
        compute=partial(_compute_arg_reduce, combiner),
        samples=_arg_reduce_test_samples,
    )


argmax = _arg_reduce_op("argmax", "max", np.argmax)
argmin = _arg_reduce_op("argmin", "min", np.argmin)


# --- variance


def _infer_variance_type(a: VarianceAttrs, types: Types) -> Type:
    data, mean = require_tensor_type(types[0], "data"), require_tensor_type(types[1], "mean")
    mean_type = TensorType(_reduction_of_shape(a.replace(keepdims=True), data.shape).result_shape, data.dtype)
    require("variance.mean", mean == mean_type, lambda: f"the mean must be {mean_type}, got {mean}")
    return _infer_reduction_type(FLOAT_KIND, a, types)


def _numpy_variance(a: VarianceAttrs, data: Array, mean: Array) -> Array:
    work = widen_narrow_float_array(data)
    total = _numpy_reduce(np.add, a, np.square(work - widen_narrow_float_array(mean)))
    return np.asarray(
        total / work.dtype.type(_reduction_of_shape(a, data.shape).reduced_elements_per_result - a.unbiased)
    ).astype(data.dtype)


def _compute_variance(a: VarianceAttrs, data: Tensor, mean: Tensor) -> Tensor:
    x, mean = widen_narrow_float_tensor(data), widen_narrow_float_tensor(mean)
    space, mean_space = (_reduction_of_shape(b, x.shape) for b in (a, a.replace(keepdims=True)))

    def squared_difference_from_mean(index: tuple[Scalar, ...]) -> Scalar:
        difference = x[index] - mean[mean_space.result_index_of(index)]
        return difference * difference

    total = space.reduce_terms("sum", squared_difference_from_mean)
    divisor = space.reduced_elements_per_result - a.unbiased
    return te.compute(space.result_shape, lambda *i: (total[i] / divisor).astype(data.dtype), "variance")


def _variance_test_samples() -> Samples:
    def variance_sample(data: Array, a: VarianceAttrs) -> Sample:
        args = (data, _numpy_mean(a.replace(keepdims=True), data))
        return Sample(args=args, attrs=a, accuracy=sample_accuracy(str(data.dtype)))

    for shape, attributes in _reduction_cases_with_attrs(VarianceAttrs, includes_empty=False):
        yield variance_sample(random_array(shape), attributes)
    yield variance_sample(random_array((3, 5), "float16"), VarianceAttrs(axis=(1,), unbiased=True))


def _mean_of_data_argument(_: Any, arguments: Mapping[str, Any]) -> Expr:
    return mean(arguments["data"], arguments["axis"], True, arguments["exclude"])


variance = OpDef(
    name="variance",
    attrs=VarianceAttrs,
    args=declare_arguments("data", Arg("mean", takes=_mean_of_data_argument)),
    order="data axis keepdims exclude unbiased",
    infer=_infer_variance_type,
    reference=_numpy_variance,
    pattern=OpPattern.COMM_REDUCE,
    axes=_reduction_axis_map,
    moved=_reduce_attrs_after_permutation,
    compute=_compute_variance,
    samples=_variance_test_samples,
)


def std(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Call:
    """Standard deviation, the square root of the variance."""
    return compute_narrow_floats_in_float32(
        lambda x: elementwise_unary.sqrt(variance(x, axis, keepdims, exclude, unbiased)), data
    )


def mean_variance(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Tuple:
    """Mean and variance over axes, as a tuple."""
    variance_expr = variance(data, axis, keepdims, exclude, unbiased)
    return Tuple((mean(data, axis, keepdims, exclude), variance_expr))


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

    def log_sum_exp_minus_maximum(x: Expr) -> Call:
        greatest = max(x, axis, True)
        zero = Constant(np.zeros((), tensor_type_of(x).dtype.numpy))
        finite = arithmetic.where(elementwise_unary.isfinite(greatest), greatest, zero)
        total = elementwise_unary.log(sum(elementwise_unary.exp(arithmetic.subtract(x, finite)), axis, keepdims))
        return arithmetic.add(total, finite if keepdims else sum(finite, axis))

    return compute_narrow_floats_in_float32(log_sum_exp_minus_maximum, data)
