# SPDX-License-Identifier: Apache-2.0
"""Extents of a contraction that are known at run time only.

A contraction is tiled at a typical size: its copy with typical extents (`contraction_of_typical_size`)
has a layout, a cost and candidates as one with known extents. Loops and addresses then take the
extents of a run (`RunTimeExtents`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeVar

from aotc.ir import Dim, SymDim, frozen, interval_of_dim, is_static, product_of_dims, same_dim
from aotc.tir import Expr, Var, as_expr, te
from aotc.tir.schedule.contraction.contraction_index_analysis import OperandDimension, variables_in
from aotc.tir.schedule.contraction.untiled_contraction import tests_of_index_range
from aotc.tir.stmt import Number

T = TypeVar("T")


@frozen(eq=False)
class RunTimeExtents:
    """Extents and shapes of a contraction in a run, beside its copy with typical extents.

    extents           for each axis whose extent is known at run time only: that extent
    a_shape, b_shape  shapes of the data and of the weights in a run
    unfusible_axes    axes that cannot be fused with others: the extent, or the distance of neighboring elements
                      of the data, is known at run time only
    parts             for each axis that is part of a longer axis: the positions there at which it begins and ends
    """

    extents: Mapping[Var, Expr]
    a_shape: tuple[te.Extent, ...]
    b_shape: tuple[te.Extent, ...]
    unfusible_axes: frozenset[Var]
    parts: Mapping[Var, tuple[Expr, Expr]] = field(default_factory=dict)

    def data_address(self, dims: Sequence[OperandDimension]) -> Expr:
        """Return the address of an element of the data."""
        return te.flat_index(self.a_shape, [dim.index.to_expr() for dim in dims])

    def weight_address(self, dims: Sequence[OperandDimension]) -> Expr:
        """Return the address of a weight."""
        return te.flat_index(self.b_shape, [dim.index.to_expr() for dim in dims])

    def with_parts(self, parts: Mapping[Var, tuple[Expr, Expr]]) -> RunTimeExtents:
        """Return these extents with those of axes that are parts of longer ones, and are not fused."""
        extents = {var: end - begin for var, (begin, end) in parts.items()}
        unfusible = self.unfusible_axes | extents.keys()
        return replace(self, extents={**self.extents, **extents}, parts=parts, unfusible_axes=unfusible)

    @property
    def are_weights_static(self) -> bool:
        """True if the shape of the weights is known."""
        return is_static(self.b_shape)


def merge_row_axes(contraction: te.Contraction) -> tuple[te.Contraction, Callable[[Sequence[Expr]], tuple[Expr, ...]]]:
    """Merge neighboring axes of the output that only the data depends on, if they are whole neighboring
    dimensions of the data: batch and length of a sequence are one axis of rows then.

    Return the contraction, and a function that maps its output indices to those of `contraction`.
    """
    pair = next((k for k in range(len(contraction.axes) - 1) if _is_whole_pair_of_dimensions(contraction, k)), None)
    if pair is None:
        return contraction, tuple
    number = pair
    (outer, rows), (inner, columns) = contraction.axes[number : number + 2]
    place = contraction.a_index.index(outer)
    extent = te.as_extent(product_of_dims((rows, columns)))
    merged, joined = merge_row_axes(
        replace(
            contraction,
            shape=_with_merged_pair(contraction.shape, number, extent),
            axes=_with_merged_pair(contraction.axes, number, (inner, extent)),
            a=te.view(contraction.a, _with_merged_pair(contraction.a.shape, place, extent)),
            a_index=_with_merged_pair(contraction.a_index, place, inner),
        )
    )

    def split_merged_index(indices: Sequence[Expr]) -> tuple[Expr, ...]:
        inside = joined(indices)
        return (*inside[:number], *_divided_row(inside[number], rows, columns), *inside[number + 1 :])

    return merged, split_merged_index


def _divided_row(row: Expr, rows: te.Extent, columns: te.Extent) -> tuple[Expr, Expr]:
    """Return the indices along two axes that were merged. Along an axis of one element the index is 0, so that the
    other one has no quotient, which proofs would have to follow.
    """
    if rows == 1:
        return as_expr(0), row
    if columns == 1:
        return row, as_expr(0)
    return row // as_expr(columns), row % as_expr(columns)


def _is_whole_pair_of_dimensions(contraction: te.Contraction, number: int) -> bool:
    """Return True if an output axis and the next one are two neighboring dimensions of the data, and nothing
    else depends on them.
    """
    (outer, rows), (inner, columns) = contraction.axes[number : number + 2]
    index, shape = contraction.a_index, contraction.a.shape
    place = index.index(outer) if outer in index[:-1] else -1
    if place < 0 or index[place + 1] != inner:
        return False
    others = variables_in(*index[:place], *index[place + 2 :], *contraction.b_index)
    return not {outer, inner} & others and same_dim(shape[place], rows) and same_dim(shape[place + 1], columns)


def _with_merged_pair(items: tuple[T, ...], place: int, merged: T) -> tuple[T, ...]:
    """Return items with those at `place` and after it replaced by one."""
    return (*items[:place], merged, *items[place + 2 :])


def contraction_of_typical_size(
    contraction: te.Contraction, numbers: Sequence[Number]
) -> tuple[te.Contraction, RunTimeExtents] | None:
    """Return a contraction with typical extents, and its extents and shapes in a run; None if it may read outside
    of an operand whose extents are known at run time only.

    numbers    the sizes of the kernel
    """
    sizes = _sizes_for_costs(contraction, numbers)

    def typical_extent(extent: te.Extent) -> int:
        value = extent.bind(sizes) if isinstance(extent, SymDim) else extent
        return value if isinstance(value, int) else int(interval_of_dim(value)[1])

    def typical_axes(axes: Sequence[te.Axis]) -> tuple[te.Axis, ...]:
        return tuple((var, typical_extent(extent)) for var, extent in axes)

    def typical_tensor(tensor: te.Tensor) -> te.Tensor:
        if tensor.is_static:
            return tensor
        shape = tuple(map(typical_extent, tensor.shape))
        return te.Placeholder(name=tensor.name, shape=shape, dtype=tensor.dtype)

    axes = (*contraction.axes, *contraction.reduce_axes)
    extents = {var: as_expr(extent) for var, extent in axes if not is_static([extent])}
    known = {var for var, _ in axes} - extents.keys()
    operands = ((contraction.a_index, contraction.a.shape), (contraction.b_index, contraction.b.shape))
    for indices, shape in operands:
        for index, extent in zip(indices, shape, strict=True):
            is_known = is_static([extent]) and variables_in(index) <= known
            if not is_known and tests_of_index_range(index, extent, dict(axes)):
                return None
    typical = replace(
        contraction,
        shape=tuple(map(typical_extent, contraction.shape)),
        axes=typical_axes(contraction.axes),
        reduce_axes=typical_axes(contraction.reduce_axes),
        a=typical_tensor(contraction.a),
        b=typical_tensor(contraction.b),
    )
    # the distance of neighbors along a dimension is the product of the extents of inner ones
    is_pitch_known = [is_static(contraction.a.shape[k + 1 :]) for k in range(contraction.a.rank)]
    by_dimension = zip(contraction.a_index, is_pitch_known, strict=True)
    unknown = {var for index, is_known in by_dimension if not is_known for var in variables_in(index)}
    unfusible = frozenset(unknown | extents.keys())
    return typical, RunTimeExtents(extents, contraction.a.shape, contraction.b.shape, unfusible)


def _sizes_for_costs(contraction: te.Contraction, numbers: Sequence[Number]) -> dict[str, int]:
    """Return the typical sizes; the largest ones if an extent that may be longer would be less than 2, because loops
    of one iteration are left out of a tiling.
    """
    typical = {n.var.name: int(n.most) if n.typical is None else n.typical for n in numbers}
    axes = (extent for _, extent in (*contraction.axes, *contraction.reduce_axes))
    shapes: Iterable[Dim] = (*axes, *contraction.a.shape, *contraction.b.shape)
    dims = [dim for dim in shapes if isinstance(dim, SymDim)]
    try:
        bound = [(dim.bind(typical), interval_of_dim(dim)[1]) for dim in dims]
    except ValueError:  # no sizes of a run, which fulfill conditions
        bound = [(0, 2)]
    if all(not isinstance(size, int) or size >= min(2, largest) for size, largest in bound):
        return typical
    return {number.var.name: int(number.most) for number in numbers}
