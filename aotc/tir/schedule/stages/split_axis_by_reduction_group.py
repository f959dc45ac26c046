# SPDX-License-Identifier: Apache-2.0
"""Split an output axis into groups and elements of a group, if the output reads one reduction
result per group.

    y[n, c, i] = x[n, c, i] - mean[n, c // 8]
    =>  y'[n, g, c, i] = x[n, g * 8 + c, i] - mean[n, g]           # y is y' under its own shape

Stages can only share loops that all of them have: in a group norm these then are the loops over
batch and groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from aotc.tir import INDEX, Binary, Const, Element, Expr, Var, operands, substitute, te, tensor_graph, with_operands
from aotc.tir.schedule.stages.store_or_inline_tensors import StoragePlan

#: A way to split: shape of the tensors to split, axis, and number of consecutive elements in a
#: group.
_AxisSplit: TypeAlias = "tuple[tuple[int, ...], int, int]"


def split_outputs_axis_by_reduction_groups(outputs: Sequence[te.Tensor], plan: StoragePlan) -> tuple[te.Tensor, ...]:
    """Split an axis of a kernel's stored tensors into groups, if they read one reduction result per
    group; return the outputs.

    The outputs are unchanged if there is no way, or several ways, to split.
    """
    ways = {way for tensor in plan.stored for way in _axis_splits_at_group_reduction_reads(tensor, plan)}
    simple = (te.Placeholder, te.Compute, te.View, te.Reduce)
    if len(ways) != 1 or not all(isinstance(tensor, simple) for tensor in plan.order):
        return tuple(outputs)
    ((shape, axis, size),) = ways
    new_tensors: dict[te.Tensor, te.Tensor] = {}
    for tensor in plan.order:
        new_tensors[tensor] = fresh = _rebuild_tensor_on_replaced_sources(tensor, new_tensors)
        if isinstance(fresh, te.Compute) and tensor in plan.stored and fresh.shape == shape:
            new_tensors[tensor] = _view_of_tensor_with_split_axis(fresh, axis, size)
    return tuple(new_tensors[output] for output in outputs)


def _axis_splits_at_group_reduction_reads(tensor: te.Tensor, plan: StoragePlan) -> Iterator[_AxisSplit]:
    """Yield the ways to split a tensor that reads results of reductions at `i // size` after common
    outermost axes.
    """
    if not isinstance(tensor, te.Compute):
        return
    results = {t.shape for t in plan.stored if isinstance(t, te.Reduce)}
    needs = (need for need in plan.needs.get(tensor, ()) if need[0].shape in results)
    for _, read in needs:
        for axis, (index, (axis_var, extent)) in enumerate(zip(read.indices, tensor.axes, strict=False)):
            if index is axis_var or extent == 1:
                continue
            match index:
                case Binary(op="floordiv", a=var, b=Const(value=size)) if var is axis_var and extent % size == 0:
                    if axis == len(read.indices) - 1:
                        yield tensor.shape, axis, int(size)
            break


def _rebuild_tensor_on_replaced_sources(tensor: te.Tensor, replacements: Mapping[te.Tensor, te.Tensor]) -> te.Tensor:
    """Return a tensor that reads the tensors in `replacements` in place of its original sources."""
    if all(replacements[source] is source for source in tensor_graph.source_tensors(tensor)):
        return tensor

    def replace_sources_in_expr(expr: Expr) -> Expr:
        fresh = with_operands(expr, tuple(map(replace_sources_in_expr, operands(expr))))
        if isinstance(fresh, Element):
            return Element(replacements[fresh.tensor], fresh.indices)
        return fresh

    match tensor:
        case te.View():
            return replace(tensor, source=replacements[tensor.source])
        case te.Reduce(guard=guard):
            guard = guard and replace_sources_in_expr(guard)
            return replace(tensor, body=replace_sources_in_expr(tensor.body), guard=guard)
        case te.Compute():
            return replace(tensor, body=replace_sources_in_expr(tensor.body))
    return tensor


def _view_of_tensor_with_split_axis(tensor: te.Compute, axis: int, group_size: int) -> te.View:
    """Return a view of a tensor whose axis is split in two: groups of `group_size`, and elements of
    a group.
    """
    var, extent = tensor.axes[axis]
    group, place = Var(var.name, INDEX), Var(f"{var.name}_in", INDEX)
    pair = ((group, extent // group_size), (place, group_size))
    axes = (*tensor.axes[:axis], *pair, *tensor.axes[axis + 1 :])
    body = substitute(tensor.body, {var: group * group_size + place})
    split_tensor = replace(tensor, shape=tuple(n for _, n in axes), axes=axes, body=body)
    return te.view(split_tensor, tensor.shape, tensor.name)
