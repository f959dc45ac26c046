# SPDX-License-Identifier: Apache-2.0
"""Sorting along an axis (sort, argsort, topk) and binary search in sorted rows (searchsorted).

topk(x, k=3, axis=-1)                  # ((values, indices)), the greatest first
argsort(x, axis=0, is_ascend=True)

All orders are stable: of equal elements, the one with the lower index comes first. NaN is greater
than all numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir import (
    Attrs,
    Dim,
    DType,
    TensorType,
    TupleType,
    Type,
    assume_at_least,
    attribute_field,
    is_static,
    largest_size,
    product_of_dims,
    require_static_shape,
    same_dim,
    tensor_types,
)
from aotc.ir.op import AxisMap, PrecisionTreatment, QuantizationTreatment, Types, declare_arguments, require
from aotc.relay.op.opdef import Array, OpDef, Samples, Scalar, tensor_types_of_values
from aotc.relay.op.operator_definition import (
    NUMBER_KIND,
    exact_sample,
    may_be_equal_dims,
    random_array,
    replace_item,
    special_values,
    to_numpy_computable_dtype,
)
from aotc.relay.op.type_rules import (
    axis_map_excluding_axis_attribute,
    normalize_axis,
    require_dtype,
    require_known_name,
    require_same_dtype,
    require_tensor_type,
)
from aotc.tir import Gpu, Target, Tensor, te
from aotc.tir.expr import BOOL, INDEX, Buffer, Const, Load, Var, as_expr, call, maximum, minimum, select
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, Store, While, forall, loop_nest

#: Largest number of results that are selected by insertion into a sorted list; more are
#: merge-sorted.
_MAX_INSERTION_SORTED_RESULTS: Final = 16
#: Data type of positions within a row.
_POSITION_DTYPE: Final = DType("int32")


class SortAttrs(Attrs):
    """The elements sorted along an axis."""

    axis: int = -1
    is_ascend: bool = True


class ArgsortAttrs(Attrs):
    """The indices that sort `data` along an axis."""

    axis: int = -1
    is_ascend: bool = True
    dtype: str = attribute_field(default="", parameter_default="int32")


class TopkAttrs(Attrs):
    """The k greatest (smallest, if `is_ascend`) elements along an axis, in order; all elements for
    k < 1.

    ret_type  "both" gives (values, indices), "values" or "indices" one of them; `dtype` is the indices' type
    """

    k: int | None = attribute_field(default=None, type="int", parameter_default=1)
    axis: int = -1
    ret_type: str = "both"
    is_ascend: bool = False
    dtype: str = attribute_field(default="", parameter_default="int32")


# --- numpy


def stable_argsort(data: Array, axis: int, ascend: bool) -> Array:
    """Return the indices that sort an array stably along an axis."""
    work = to_numpy_computable_dtype(data)
    if ascend:
        return np.argsort(work, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(work, axis), axis=axis, kind="stable")
    return np.asarray(data.shape[axis] - 1 - np.flip(backwards, axis))


# --- tensor program


def _sorts_strictly_before(a: Scalar, b: Scalar, ascend: bool) -> Scalar:
    """Return a condition that is True if `a` must come before `b`; NaN is greater than all numbers."""
    low, high = (a, b) if ascend else (b, a)
    less = low < high
    return (less | (call("isnan", high) & ~call("isnan", low))) if low.dtype.is_float else less


class _RowSortBuilder:
    """Builds statements that sort the positions of one row; element `p` of the row is source[base +
    p * stride].
    """

    def __init__(self, source: Buffer, base: Scalar, stride: Dim, extent: Dim, ascend: bool) -> None:
        self.source, self.base, self.stride = source, base, stride
        self.extent, self.ascend = extent, ascend

    def load_element(self, position: Scalar) -> Scalar:
        """Return the element at a position of the row."""
        return Load(self.source, self.base + position.astype(INDEX) * self.stride)

    def element_sorts_strictly_before(self, first_position: Scalar, second_position: Scalar) -> Scalar:
        """Return a condition that is True if element `first_position` sorts strictly before
        element `second_position`; False for equal elements, whose order the caller retains.
        """
        return _sorts_strictly_before(
            self.load_element(first_position), self.load_element(second_position), self.ascend
        )

    def build_insertion_selection(self, count: int, order: Buffer) -> Stmt:
        """Return statements that select the first `count` positions by insertion into a sorted list
        of that length.
        """
        i, filled, at = Var("i"), Var("filled"), Var("at")
        shifting = select(at > 0, self.element_sorts_strictly_before(i, Load(order, at - 1)), Const(False, BOOL))
        shift = Block((Store(order, at, Load(order, at - 1)), Assign(at, at - 1)))
        insert = Block((While(shifting, shift), Store(order, at, i.astype(_POSITION_DTYPE))))
        # a full list accepts only an element that precedes its last one
        full = filled.equal(count)
        is_candidate = select(
            full, self.element_sorts_strictly_before(i, Load(order, minimum(filled, count) - 1)), Const(True, BOOL)
        )
        start = Declare(at, select(full, filled - 1, filled))
        grow = Assign(filled, minimum(filled + 1, count))
        body = If(is_candidate, Block((start, insert, grow)))
        return Block((Declare(filled, Const(0, INDEX)), For(i, self.extent, body)))

    def build_serial_merge_sort(self, order: Buffer, spare: Buffer) -> Stmt:
        """Return statements that sort all positions by bottom-up merge sort: runs double in length
        at each level.
        """
        i, width, low = Var("i"), Var("width"), Var("low")
        start = forall(i, self.extent, Store(order, i, i.astype(_POSITION_DTYPE)))
        back = forall(i, self.extent, Store(order, i, Load(spare, i)))
        runs = While(
            low < self.extent,
            Block((self._build_merge_of_two_runs(order, spare, low, width), Assign(low, low + width * 2))),
        )
        level = Block((Declare(low, Const(0, INDEX)), runs, back, Assign(width, width * 2)))
        return Block((start, Declare(width, Const(1, INDEX)), While(width < self.extent, level)))

    def _build_merge_of_two_runs(self, order: Buffer, spare: Buffer, run_start: Var, run_length: Var) -> Stmt:
        left, right, middle, high, at = (Var(n) for n in ("left", "right", "middle", "high", "at"))
        later = Var("later", BOOL)
        # the right element goes first only if it must, so that the sort is stable
        must = self.element_sorts_strictly_before(Load(order, right), Load(order, left))
        choice = select(left >= middle, Const(True, BOOL), select(right >= high, Const(False, BOOL), must))
        step = Block(
            (
                Declare(later, choice),
                Store(spare, at, Load(order, select(later, right, left))),
                If(later, Assign(right, right + 1), Assign(left, left + 1)),
            )
        )
        return Block(
            (
                Declare(middle, minimum(run_start + run_length, self.extent)),
                Declare(high, minimum(run_start + run_length * 2, self.extent)),
                Declare(left, run_start),
                Declare(right, middle),
                For(at, high, step, begin=run_start),
            )
        )

    def build_parallel_merge_sort(
        self, count: int, order: Buffer, spare: Buffer, row_start: Scalar
    ) -> tuple[list[Stmt], Buffer]:
        """Return statements for a parallel merge sort of the first `count` positions, and the
        buffer with the result.

        The row's positions start at index `row_start` of both buffers. For each element of two
        merged runs, bisection finds the number of elements from the first run ("merge path": Odeh
        et al., IPDPS 2012). Runs are truncated to elements that may be among the first `count`.
        """
        i, most = Var("i"), 1 << (count - 1).bit_length()
        (extent,) = require_static_shape((self.extent,))
        fill = Store(order, row_start + i, i.astype(_POSITION_DTYPE))
        stmts: list[Stmt] = [forall(i, self.extent, fill)]
        span = length = 1
        while span < extent:
            longer = min(2 * length, most)
            stmts.append(self._build_parallel_merge_level(order, spare, row_start, (span, length, longer)))
            order, spare = spare, order
            span, length = 2 * span, longer
        return stmts, order

    def _build_parallel_merge_level(
        self, order: Buffer, spare: Buffer, row_start: Scalar, sizes: tuple[int, int, int]
    ) -> Stmt:
        """Return the statements of one level of a merge sort.

        Each pair of sorted runs of `span` positions becomes one run; of every run only the first
        `length` elements (`longer` in the result) are kept, as for the k smallest elements.
        """
        span, length, longer = sizes
        p, low, high = Var("p"), Var("low"), Var("high")
        (extent,) = require_static_shape((self.extent,))
        last = (extent - 1) // (2 * span)
        left = extent - last * 2 * span
        total = last * longer + min(longer, left)
        run, at = p // longer, p % longer
        a = row_start + run * (2 * length)
        b = a + length
        rest = extent - run * (2 * span)
        firsts = minimum(length, rest)
        seconds = maximum(minimum(length, rest - span), 0)

        def second_run_element_goes_first(first: Scalar, second: Scalar) -> Scalar:
            x, y = Load(order, a + first), Load(order, b + second)
            return self.element_sorts_strictly_before(y, x)

        middle = Var("middle")
        fewer, raise_low = Assign(high, middle), Assign(low, middle + 1)
        halve = Declare(middle, (low + high) // 2)
        probe = Block((halve, If(second_run_element_goes_first(middle, at - 1 - middle), fewer, raise_low)))
        probes = For(Var("probe"), length.bit_length(), If(low < high, probe))
        second = at - low
        must = select(second >= seconds, Const(False, BOOL), second_run_element_goes_first(low, second))
        choice = select(low >= firsts, Const(True, BOOL), must)
        source = select(choice, b + second, a + low)
        begin = Declare(low, maximum(at - seconds, 0))
        end = Declare(high, minimum(at, firsts))
        store = Store(spare, row_start + p, Load(order, source))
        return forall(p, total, Block((begin, end, probes, store)))


def compute_sorted_rows(
    data: Tensor, axis: int, is_ascending: bool, results: Sequence[tuple[bool, TensorType]]
) -> tuple[Tensor, ...]:
    """Return the first elements of each sorted row: values (True) or positions (False) for each of
    `results`.

    The number of elements is the extent of the result's type along `axis`. Extents may be known at run time only;
    a row then has at least as many elements as are selected.
    """
    count, extent = results[0][1].shape[axis], data.shape[axis]
    outer, inner = product_of_dims(data.shape[:axis]), product_of_dims(data.shape[axis + 1 :])
    is_small = isinstance(count, int) and count <= _MAX_INSERTION_SORTED_RESULTS
    insertion = is_small and not same_dim(count, extent)

    def sorts_rows_in_global_memory(gpu: Gpu | None) -> bool:
        """Return True if all rows are merged level by level in global memory, as a row exceeds a
        block's shared memory.
        """
        return gpu is not None and 2 * largest_size(extent) * _POSITION_DTYPE.itemsize > gpu.shared_bytes

    def build_row_sort_loops(
        gpu: Gpu | None, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Sequence[Buffer]
    ) -> Stmt:
        o, j, i, place = Var("o"), Var("j"), Var("i"), Var("place", _POSITION_DTYPE)
        row = _RowSortBuilder(inputs[0], o * (extent * inner) + j, inner, extent, is_ascending)
        rows: list[tuple[Var, Dim]] = [(o, outer), (j, inner)]
        order, first = scratch[0], o * inner + j if sorts_rows_in_global_memory(gpu) else as_expr(0)
        if gpu:
            levels, order = row.build_parallel_merge_sort(
                require_static_shape((count,))[0], order, scratch[1], first * extent
            )
        elif insertion:
            levels = [row.build_insertion_selection(require_static_shape((count,))[0], order)]
        else:
            levels = [row.build_serial_merge_sort(*scratch)]
        stores: list[Stmt] = [Declare(place, Load(order, first * extent + i))]
        for (values, ty), out in zip(results, outputs, strict=True):
            value = row.load_element(place) if values else place.astype(ty.dtype)
            stores.append(Store(out, o * (count * inner) + i * inner + j, value))
        write = forall(i, count, Block(stores))
        levels.append(write)
        if sorts_rows_in_global_memory(gpu):
            return Block(loop_nest(rows, level, "independent") for level in levels)
        # on a CPU, rows are sorted serially, since they share the scratch buffer
        return loop_nest(rows, Block(levels), "independent" if gpu else "serial")

    def sort_program_for_target(target: Target) -> te.ExternProgram:
        gpu = target.gpu
        alone = insertion and gpu is None
        size = largest_size(product_of_dims((extent, outer, inner)) if sorts_rows_in_global_memory(gpu) else extent)
        sizes = [require_static_shape((count,))[0]] if alone else [size, size]
        private = gpu is not None and not sorts_rows_in_global_memory(gpu)
        scratch = (te.Scratch(_POSITION_DTYPE, max(n, 1), private) for n in sizes)
        return te.ExternProgram(partial(build_row_sort_loops, gpu), tuple(scratch))

    kinds = [(ty.shape, ty.dtype) for _, ty in results]
    return te.extern_for_target("sort", kinds, [data], sort_program_for_target, takes_sizes=True)


# --- sort, argsort, topk


def _sort_test_samples(make_attrs: Callable[..., Attrs]) -> Samples:
    for dtype in NUMBER_KIND.examples:
        values = special_values(dtype)
        rows = np.stack([values, values[::-1], np.roll(values, 5)])
        for ascend in (True, False):
            yield exact_sample(make_attrs(is_ascend=ascend), rows)
    few = (random_array((3, 40), "int8") % 4).astype(np.float32)
    for ascend, axis in product((True, False), (0, 1)):
        yield exact_sample(make_attrs(axis=axis, is_ascend=ascend), few)
    for shape, axis in (((2, 5, 3), 1), ((2, 5, 3), -3), ((1,), 0), ((2, 1), 1), ((0, 3), 1)):
        yield exact_sample(make_attrs(axis=axis), random_array(shape))


_RESULT_KINDS_BY_RET_TYPE: Final = {"both": (True, False), "values": (True,), "indices": (False,)}


def _is_value_flags_of_sort_results(attrs: Any) -> tuple[bool, ...]:
    """Return the kinds of an operator's results: values (True) or positions (False)."""
    return (
        _RESULT_KINDS_BY_RET_TYPE[attrs.ret_type] if isinstance(attrs, TopkAttrs) else (isinstance(attrs, SortAttrs),)
    )


def _selected_element_count(attrs: Any, extent: Dim) -> Dim:
    k = attrs.k if isinstance(attrs, TopkAttrs) else None
    if k is None or k < 1:
        return extent
    require("topk.k", not isinstance(extent, int) or k <= extent, f"cannot select the first {k} of {extent} elements")
    assume_at_least(extent, k)
    return int(k)


def _infer_sort_type(attrs: Any, types: Types) -> Type:
    data = require_tensor_type(types[0])
    require_dtype(data.dtype, not data.dtype.is_bool)
    axis = normalize_axis(attrs.axis, data.rank)
    extent = data.shape[axis]
    require("sort.size", not isinstance(extent, int) or extent <= _POSITION_DTYPE.max, f"{extent} elements in a row")
    if isinstance(attrs, TopkAttrs):
        require_known_name("topk.ret_type", "ret_type", attrs.ret_type, _RESULT_KINDS_BY_RET_TYPE)
    shape = replace_item(data.shape, axis, _selected_element_count(attrs, extent))
    results = [
        TensorType(shape, data.dtype if values else attrs.dtype or "int32")
        for values in _is_value_flags_of_sort_results(attrs)
    ]
    return TupleType(results) if len(results) > 1 else results[0]


def _is_value_flags_and_types_of_results(attrs: Any, data: Any) -> list[tuple[bool, TensorType]]:
    """Return for each result of an operator on an array or a tensor its kind (True: values) and its
    type.
    """
    types = tensor_types(_infer_sort_type(attrs, tensor_types_of_values([data])))
    return list(zip(_is_value_flags_of_sort_results(attrs), types, strict=True))


def _sort_reference(attrs: Any, data: Array) -> Array | tuple[Array, ...]:
    axis, result_specs = normalize_axis(attrs.axis, data.ndim), _is_value_flags_and_types_of_results(attrs, data)
    order = stable_argsort(data, axis, attrs.is_ascend).take(range(result_specs[0][1].static_shape[axis]), axis)
    values = np.take_along_axis(data, order, axis)
    results = tuple(values if kind else order.astype(ty.dtype.numpy) for kind, ty in result_specs)
    return results if len(results) > 1 else results[0]


def _compute_sort(attrs: Any, data: Tensor) -> Tensor | tuple[Tensor, ...]:
    results = compute_sorted_rows(
        data, normalize_axis(attrs.axis, data.rank), attrs.is_ascend, _is_value_flags_and_types_of_results(attrs, data)
    )
    return results if len(results) > 1 else results[0]


def _topk_test_samples() -> Samples:
    yield from _sort_test_samples(partial(TopkAttrs, k=1, ret_type="values"))
    yield from _sort_test_samples(partial(TopkAttrs, k=0))
    few = (random_array((4, 30), "int8") % 5).astype(np.float32)
    for k, ret_type in product((1, 3, 7), _RESULT_KINDS_BY_RET_TYPE):
        yield exact_sample(TopkAttrs(k=k, ret_type=ret_type, dtype="int64", is_ascend=k == 3), few)
    for k in (17, 20):
        yield exact_sample(TopkAttrs(k=k), random_array((2, 20)))


def _sort_op(name: str, attrs_class: type[Attrs], samples: Callable[[], Samples], **facets: Any) -> OpDef:
    return OpDef(
        name=name,
        attrs=attrs_class,
        infer=_infer_sort_type,
        reference=_sort_reference,
        axes=axis_map_excluding_axis_attribute,
        compute=_compute_sort,
        precision=PrecisionTreatment.FOLLOW,
        samples=samples,
        **facets,
    )


sort = _sort_op("sort", SortAttrs, partial(_sort_test_samples, SortAttrs), quantized=QuantizationTreatment.PASS)
argsort = _sort_op("argsort", ArgsortAttrs, partial(_sort_test_samples, ArgsortAttrs))
topk = _sort_op("topk", TopkAttrs, _topk_test_samples)


# --- searchsorted


class SearchSortedAttrs(Attrs):
    """Insertion index of each of `values` in the sorted rows of `sorted_sequence`, before or
    `right` of equal elements.

    The sequence is a vector, or has the axes of `values` except for the last one.
    """

    right: bool = False
    dtype: str = "int32"


def _infer_searchsorted_type(a: SearchSortedAttrs, types: Types) -> Type:
    sequence, values = require_tensor_type(types[0], "sorted_sequence"), require_tensor_type(types[1], "values")
    require_same_dtype(sequence, values)
    require_dtype(sequence.dtype, not sequence.dtype.is_bool)
    require_known_name("searchsorted.dtype", "dtype", a.dtype, ("int32", "int64"))
    rows = sequence.rank == 1 or sequence.rank == values.rank > 0
    fits = rows and all(map(may_be_equal_dims, sequence.shape[:-1], values.shape))
    require("searchsorted.shape", fits, lambda: f"there is no row of {sequence} for each of {values}")
    return TensorType(values.shape, a.dtype)


def _searchsorted_reference(a: SearchSortedAttrs, sequence: Array, values: Array) -> Array:
    columns = values.shape[-1:] or (1,)
    count = prod(values.shape[:-1])
    queries = to_numpy_computable_dtype(values).reshape(count, *columns)
    extent = sequence.shape[-1] if sequence.size else 0
    shape = (-1, extent) if extent else (1, 0)
    rows = to_numpy_computable_dtype(sequence).reshape(shape)
    rows = np.broadcast_to(rows, (len(queries), rows.shape[-1]))
    pairs = zip(rows, queries, strict=True)
    positions = [np.searchsorted(row, query_row, "right" if a.right else "left") for row, query_row in pairs]
    return np.reshape(np.array(positions, DType(a.dtype).numpy), values.shape)


def _is_before(a: SearchSortedAttrs, other: Scalar, query: Scalar) -> Scalar:
    """Return whether an element of a sorted row lies before the place of `query`."""
    return ~_sorts_strictly_before(query, other, True) if a.right else _sorts_strictly_before(other, query, True)


def _count_elements_before(a: SearchSortedAttrs, sequence: Tensor, values: Tensor) -> Tensor:
    """Return the number of elements before each value, for which sizes need not be known."""

    def count_of_element(*indices: Var) -> Scalar:
        *index, k = indices
        row = (*index[:-1], k) if sequence.rank > 1 else (k,)
        return _is_before(a, sequence[row], values[tuple(index)]).astype(a.dtype)

    return te.reduce("sum", values.shape, (sequence.shape[-1],), count_of_element, "searchsorted")


def _compute_searchsorted(a: SearchSortedAttrs, sequence: Tensor, values: Tensor) -> Tensor:
    extent = sequence.shape[-1]
    if not (is_static(sequence.shape) and is_static(values.shape)):
        return _count_elements_before(a, sequence, values)
    columns = max(*values.shape[-1:], 1, 1)

    def build_binary_search_loops(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        at, low, high, middle = (Var(name) for name in ("at", "low", "high", "middle"))
        row = at // columns * extent if sequence.rank > 1 else as_expr(0)
        query, other = Load(inputs[1], at), Load(inputs[0], row + middle)
        before = _is_before(a, other, query)
        halve = Block((Declare(middle, (low + high) // 2), If(before, Assign(low, middle + 1), Assign(high, middle))))
        probes = For(Var("probe"), extent.bit_length(), If(low < high, halve))
        ends = (Declare(low, Const(0, INDEX)), Declare(high, Const(extent, INDEX)))
        return forall(at, values.size, Block((*ends, probes, Store(outputs[0], at, low.astype(a.dtype)))))

    return te.extern("searchsorted", [(values.shape, a.dtype)], [sequence, values], build_binary_search_loops)[0]


def _searchsorted_axis_map(_: Any, types: Types) -> AxisMap:
    sequence, values = map(require_tensor_type, types)
    value_axes = tuple(range(values.rank))
    return AxisMap(((*value_axes[:-1], None) if sequence.rank > 1 else (None,) * values.rank, value_axes))


def _searchsorted_test_samples() -> Samples:
    shapes = (((5,), (2, 3)), ((2, 4), (2, 3)), ((1,), ()), ((2, 1, 9), (2, 1, 5)))
    for right in (False, True):
        special = np.array([-np.inf, 1, np.nan, np.nan], np.float32)
        values = np.append(special, np.float32(2))
        yield exact_sample(SearchSortedAttrs(right=right), special, values)
    for right, dtype, (shape, value_shape) in product((False, True), ("float32", "int8", "float16"), shapes):
        rows, values = (random_array(s, dtype, seed) for seed, s in enumerate((shape, value_shape)))
        yield exact_sample(SearchSortedAttrs(right=right, dtype="int64" if right else "int32"), np.sort(rows), values)
    few = random_array((2, 40), "int8") % 6
    yield exact_sample(SearchSortedAttrs(), np.sort(few), np.arange(-1, 9, dtype=np.int8)[None].repeat(2, 0))


searchsorted = OpDef(
    name="searchsorted",
    attrs=SearchSortedAttrs,
    args=declare_arguments("sorted_sequence", "values"),
    infer=_infer_searchsorted_type,
    reference=_searchsorted_reference,
    axes=_searchsorted_axis_map,
    compute=_compute_searchsorted,
    precision=PrecisionTreatment.FOLLOW,
    samples=_searchsorted_test_samples,
)
