# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of the operators of StableHLO that read, write or order elements by positions.

OPS["STABLEHLO_GATHER"](table, rows, offset_dims=[1], collapsed_slice_dims=[0], start_index_map=[0],
                        index_vector_dim=1, slice_sizes=[1, 8])                   # take(table, rows, axis=0)

A window is a slice of the operand that a gather reads or a scatter writes. An axis of the operand is *whole* if windows
start at 0 and have its extent; the index tuples of `gather_nd` and `scatter_nd` have no element for such an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import TensorType, frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.tflite.node import Table, TfliteNode
from aotc.relay.frontend.tflite.ops_stablehlo import body_of_one_operator
from aotc.relay.graph_api import Var

#: Modes of scatter_nd, by the operator that computes a new element from the present one and the update.
_SCATTER_MODES: Final = {"add": "add", "multiply": "mul", "minimum": "min", "maximum": "max"}


@frozen
class _Windows:
    """The windows of a gather or a scatter.

    operand     shape of the operand
    sizes       extent of a window along each axis of the operand
    mapped      for each element of an index vector, the axis of the operand along which it moves the window
    grid        axes of the result or of the updates that enumerate the windows, in order
    inner       for each axis of the operand, the axis of the result or of the updates along which a window extends;
                None if the window has extent 1 and its axis is removed
    result      shape of the result or of the updates
    """

    operand: tuple[int, ...]
    sizes: tuple[int, ...]
    mapped: tuple[int, ...]
    grid: tuple[int, ...]
    inner: tuple[int | None, ...]
    result: tuple[int, ...]

    def whole_axes(self) -> list[int]:
        """Return the whole axes of the operand that have an axis of their own in the result."""
        return [
            axis
            for axis, size in enumerate(self.sizes)
            if self.inner[axis] is not None and size == self.operand[axis] and axis not in self.mapped
        ]

    def positions(self, starts: Sequence[Expr]) -> Expr:
        """Return index tuples along the first axis, for the axes of the operand that are not whole.

        starts    for each element of an index vector, the starts of all windows: int64, of the shape of the grid
        """
        whole = self.whole_axes()
        axes = [k for k in range(len(self.operand)) if k not in whole]
        outer = [k for k in range(len(self.result)) if k not in {self.inner[axis] for axis in whole}]
        extents = [self.result[k] for k in outer]
        g.check_materialization_cost((len(axes), *extents), "int64", "the positions of the elements")
        rows = []
        for axis in axes:
            place = self.inner[axis]
            offsets = np.arange(self.sizes[axis]) if place is not None else np.zeros(1, np.int64)
            at = outer.index(place) if place is not None else 0
            shape = [len(offsets) if k == at else 1 for k in range(len(outer))] if outer else []
            row: Expr = g.constant(offsets.reshape(shape), "int64")
            if axis in self.mapped:
                grid = [extents[k] if outer[k] in self.grid else 1 for k in range(len(outer))]
                row = g.add(g.reshape(starts[self.mapped.index(axis)], grid), row)
            rows.append(g.broadcast_to(row, extents))
        return g.stack(rows, 0)

    def operand_order(self) -> tuple[int, ...]:
        """Return the axes of the operand with the whole ones last."""
        whole = self.whole_axes()
        return (*(k for k in range(len(self.operand)) if k not in whole), *whole)

    def result_order(self) -> tuple[int, ...]:
        """Return the axes of the result with those of the whole axes of the operand last."""
        last = [k for axis in self.whole_axes() if (k := self.inner[axis]) is not None]
        return (*(k for k in range(len(self.result)) if k not in last), *last)


def _inverse(order: Sequence[int]) -> list[int]:
    return [int(k) for k in np.argsort(order)]


def _index_elements(indices: Expr, vector_axis: int, count: int, subject: str) -> tuple[list[Expr], tuple[int, ...]]:
    """Return the elements of all index vectors as int64, and the shape of the grid of windows."""
    shape = g.shape(indices)
    fits = g.dtype(indices).is_integer and 0 <= vector_axis <= len(shape)
    grid = (*shape[:vector_axis], *shape[vector_axis + 1 :])
    length = shape[vector_axis] if vector_axis < len(shape) else 1
    text = f"{subject} of index vectors along axis {vector_axis} of {g.dtype(indices)}{shape} for {count} axes"
    require("graph-shape", fits and length == count, text)
    wide = g.cast(indices, "int64")
    parts = [wide] if vector_axis == len(shape) else g.split(wide, [1] * count, vector_axis) if count else []
    return [g.reshape(part, grid) for part in parts], grid


def _require_axes(subject: str, axes: Sequence[int], rank: int) -> None:
    fits = len(set(axes)) == len(axes) and all(0 <= k < rank for k in axes)
    require("graph-shape", fits, f"{subject} {list(axes)} are not distinct axes of {rank}")


def _convert_gather_node(
    x: Expr,
    indices: Expr,
    *,
    offset_dims: Any = None,
    collapsed_slice_dims: Any = None,
    start_index_map: Any = None,
    index_vector_dim: int = 0,
    slice_sizes: Any = None,
) -> Expr:
    """Convert STABLEHLO_GATHER; starts are moved so that the windows are inside of the operand."""
    offsets, collapsed, mapped, sizes = (
        tuple(v or ()) for v in (offset_dims, collapsed_slice_dims, start_index_map, slice_sizes)
    )
    shape = g.shape(x)
    starts, grid = _index_elements(indices, index_vector_dim, len(mapped), "STABLEHLO_GATHER")
    kept = [k for k in range(len(shape)) if k not in collapsed]
    _require_axes("the axes start_index_map", mapped, len(shape))
    _require_axes("the axes collapsed_slice_dims", collapsed, len(shape))
    _require_axes("the axes offset_dims", offsets, len(grid) + len(offsets))
    fits = len(sizes) == len(shape) and all(0 <= n <= d for n, d in zip(sizes, shape, strict=True))
    fits = fits and len(offsets) == len(kept) and all(sizes[k] == 1 for k in collapsed)
    text = f"windows {list(sizes)} with the axes {list(offsets)} and without {list(collapsed)} do not fit {shape}"
    require("graph-shape", fits, text)
    outer = tuple(k for k in range(len(grid) + len(offsets)) if k not in offsets)
    extents = dict(zip(outer, grid, strict=True)) | {k: sizes[a] for k, a in zip(offsets, kept, strict=True)}
    places = dict(zip(kept, offsets, strict=True))
    result = tuple(extents[k] for k in range(len(extents)))
    windows = _Windows(shape, sizes, mapped, outer, tuple(places.get(k) for k in range(len(shape))), result)
    if 0 in result:
        return g.full(0, result, str(g.dtype(x)))
    starts = [
        g.minimum(g.maximum(start, 0), shape[axis] - sizes[axis]) for start, axis in zip(starts, mapped, strict=True)
    ]
    order = windows.operand_order()
    y = x if not shape else g.transpose(x, order)
    if len(windows.whole_axes()) < len(shape):
        y = g.call_op("gather_nd", y, windows.positions(starts))
    else:
        y = g.broadcast_to(y, [result[k] for k in windows.result_order()])
    return g.transpose(y, _inverse(windows.result_order())) if result else y


def _scatter_mode(node: TfliteNode, subgraph: int, x: Expr) -> str:
    """Return the mode of scatter_nd that an update computation is: the update itself, or one operator."""
    parameters = [Var(name, TensorType((), g.dtype(x))) for name in "ab"]
    name, operands = body_of_one_operator(node, subgraph, parameters)
    if operands == (parameters[1],):
        return "update"
    known = name in _SCATTER_MODES and set(operands) == set(parameters)
    text = f"{node.op.name} is supported if its computation is the update, or one sum, product, minimum or maximum"
    require("tflite-options", known, text)
    return _SCATTER_MODES[name]


def _convert_scatter_node(
    x: Expr,
    indices: Expr,
    update: Expr,
    *more: Expr,
    update_window_dims: Any = None,
    inserted_window_dims: Any = None,
    scatter_dims_to_operand_dims: Any = None,
    index_vector_dim: int = 0,
    update_computation_subgraph_index: int,
    node: TfliteNode,
) -> Expr:
    """Convert STABLEHLO_SCATTER of one tensor; elements of windows outside of the operand are left out."""
    require("tflite-options", not more, "STABLEHLO_SCATTER of several tensors is not supported")
    inside, removed, mapped = (
        tuple(v or ()) for v in (update_window_dims, inserted_window_dims, scatter_dims_to_operand_dims)
    )
    shape, given = g.shape(x), g.shape(update)
    starts, grid = _index_elements(indices, index_vector_dim, len(mapped), "STABLEHLO_SCATTER")
    kept = [k for k in range(len(shape)) if k not in removed]
    _require_axes("the axes scatter_dims_to_operand_dims", mapped, len(shape))
    _require_axes("the axes inserted_window_dims", removed, len(shape))
    _require_axes("the axes update_window_dims", inside, len(given))
    outer = tuple(k for k in range(len(given)) if k not in inside)
    fits = len(inside) == len(kept) and tuple(given[k] for k in outer) == grid
    fits = fits and all(given[k] <= shape[a] for k, a in zip(inside, kept, strict=True))
    text = f"updates {given} with the window axes {list(inside)} do not fit {shape} and indices {g.shape(indices)}"
    require("graph-shape", fits, text)
    places = dict(zip(kept, inside, strict=True))
    sizes = tuple(given[places[k]] if k in places else 1 for k in range(len(shape)))
    windows = _Windows(shape, sizes, mapped, outer, tuple(places.get(k) for k in range(len(shape))), given)
    mode = _scatter_mode(node, update_computation_subgraph_index, x)
    if 0 in given or 0 in shape:
        return x
    # an operator of the graph counts negative indices from the end
    order, count = windows.operand_order(), len(shape) - len(windows.whole_axes())
    if not count:
        order, x, shape = (0, *(k + 1 for k in order)), g.unsqueeze(x, [0]), (1, *shape)
        index: Expr = g.full(0, (1, *grid), "int64")
    else:
        index = windows.positions(starts)
        extents = np.array([shape[k] for k in order[:count]]).reshape(count, *(1,) * (g.rank(index) - 1))
        limits = g.constant(extents, "int64")
        index = g.where(g.less(index, 0), g.broadcast_to(limits, g.shape(index)), index)
    updates = g.transpose(update, windows.result_order()) if given else update
    y = g.call_op("scatter_nd", g.transpose(x, order), index, updates, mode=mode)
    y = g.transpose(y, _inverse(order))
    return y if count else g.squeeze(y, [0])


def _convert_sort_node(
    *tensors: Expr, dimension: int = 0, comparator_subgraph_index: int, node: TfliteNode
) -> list[Expr]:
    """Convert STABLEHLO_SORT whose comparator compares two elements of one tensor; the order is stable. In an ascending
    order NaN are last.
    """
    require("tflite-input", bool(tensors), "STABLEHLO_SORT needs a tensor")
    shapes = {g.shape(x) for x in tensors}
    require("graph-shape", len(shapes) == 1, f"STABLEHLO_SORT takes tensors of one shape, not {sorted(shapes)}")
    axis = g.normalize_axis(dimension, g.rank(tensors[0]))
    parameters = [Var(f"{name}{k}", TensorType((), g.dtype(x))) for k, x in enumerate(tensors) for name in "ab"]
    name, operands = body_of_one_operator(node, comparator_subgraph_index, parameters)
    compared = [parameters.index(v) for v in operands if isinstance(v, Var)]
    known = name in ("less", "greater") and len(compared) == 2 and compared[0] ^ 1 == compared[1]
    text = "STABLEHLO_SORT is supported if its comparator is one comparison, LT or GT, of two elements of one tensor"
    require("tflite-options", known, text)
    key = tensors[compared[0] // 2]
    ascending = (name == "less") == (compared[0] % 2 == 0)
    if len(tensors) == 1:
        return [g.call_op("sort", key, axis=axis, is_ascend=ascending)]
    order = g.call_op("argsort", key, axis=axis, is_ascend=ascending, dtype="int32")
    return [g.call_op("gather", x, order, axis=axis) for x in tensors]


OPS: Final[Table] = {
    "STABLEHLO_GATHER": _convert_gather_node,
    "STABLEHLO_SCATTER": _convert_scatter_node,
    "STABLEHLO_SORT": _convert_sort_node,
}
INTEGERS: Final[frozenset[str]] = frozenset()
MOVES: Final[frozenset[str]] = frozenset()
