# SPDX-License-Identifier: Apache-2.0
"""Analyses of graphs of tensor expressions: topological order, tensors read, cost.

order = tensors_in_topological_order(outputs)  # producers first
element_reads_in_definition(order[-1])     # the elements that its body reads
"""

from collections.abc import Sequence
from typing import Final

from aotc.ir import SymDim, largest_size, product_of_dims, same_dim
from aotc.tir import Binary, Call, Element, Expr, Var, as_expr, te, walk
from aotc.tir.expr_occurrences import occurrences
from aotc.tir.simplify import Ranges, simplify

_OP_COST: Final = {"div": 4, "floordiv": 8, "floormod": 8, "truncdiv": 8, "truncmod": 8}
_CALL_COST: Final = {"sqrt": 6, "rsqrt": 6} | dict.fromkeys(
    ["abs", "fma", "product", "floor", "ceil", "trunc", "round_even", "isnan"], 1
)
_FUNCTION_COST: Final = 20
_COST_LIMIT: Final = 1_000_000


def strip_views(tensor: te.Tensor) -> te.Tensor:
    """Return the tensor whose memory `tensor` uses, views removed."""
    while isinstance(tensor, te.View):
        tensor = tensor.source
    return tensor


def scalar_exprs_defining_tensor(tensor: te.Tensor) -> tuple[Expr, ...]:
    """Return the scalar expressions that define a tensor."""
    match tensor:
        case te.Compute():
            return (tensor.body,)
        case te.Reduce():
            return (tensor.body,) if tensor.guard is None else (tensor.body, tensor.guard)
        case _:
            return ()


def element_reads_in_definition(tensor: te.Tensor) -> list[Element]:
    """Return every element that the body reads, once per occurrence, including those within
    indices.
    """
    return [node for body in scalar_exprs_defining_tensor(tensor) for node in walk(body) if isinstance(node, Element)]


def source_tensors(tensor: te.Tensor) -> list[te.Tensor]:
    """Return the tensors that a tensor is computed from, each once."""
    match tensor:
        case te.View():
            sources: Sequence[te.Tensor] = (tensor.source,)
        case te.Contraction() | te.Winograd():
            sources = (tensor.a, tensor.b)
        case te.Extern():
            sources = tensor.group.inputs
        case _:
            sources = [element.tensor for element in element_reads_in_definition(tensor)]
    return list(dict.fromkeys(sources))


def tensors_in_topological_order(outputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """All tensors that the outputs need, producers before consumers, in a deterministic order."""
    order: list[te.Tensor] = []
    visited_tensors: set[te.Tensor] = set()
    stack = [(output, False) for output in reversed(outputs)]
    while stack:
        tensor, done = stack.pop()
        if done:
            order.append(tensor)
        elif tensor not in visited_tensors:
            visited_tensors.add(tensor)
            stack.append((tensor, True))
            stack.extend((source, False) for source in reversed(source_tensors(tensor)))
    return order


def output_axes(tensor: te.Tensor) -> tuple[te.Axis, ...]:
    """Return the axes over which the elements of a tensor are computed."""
    computed = (te.Compute, te.Reduce, te.Contraction, te.Winograd)
    return tensor.axes if isinstance(tensor, computed) else ()


def output_and_reduction_axes(tensor: te.Tensor) -> tuple[te.Axis, ...]:
    """Return the axes over which the body of a tensor is evaluated, reduction axes last."""
    reduced = tensor.reduce_axes if isinstance(tensor, (te.Reduce, te.Contraction)) else ()
    return (*output_axes(tensor), *reduced)


def inclusive_ranges_of_axes(axes: Sequence[te.Axis]) -> dict[Var, tuple[int, int]]:
    """Return the inclusive ranges of the variables of axes."""
    return {var: (0, max(largest_size(extent) - 1, 0)) for var, extent in axes}


def substitution_for_axes(axes: Sequence[te.Axis], values: Sequence[Expr]) -> dict[Var, Expr]:
    """Return a substitution of the variables of axes by values."""
    return {var: value for (var, _), value in zip(axes, values, strict=True)}


def estimated_operations_per_element(tensor: te.Tensor) -> int:
    """Estimate the number of operations in one evaluation of the body, without reads of elements."""
    nodes = (item for body in scalar_exprs_defining_tensor(tensor) for item in occurrences(body))
    return sum(_operation_cost_of_node(node) * times for node, times in nodes)


def _operation_cost_of_node(node: Expr) -> int:
    if isinstance(node, Call):
        return _CALL_COST.get(node.name, _FUNCTION_COST)
    return _OP_COST.get(node.op, 1) if isinstance(node, Binary) else 0


def cost_per_element_if_inlined(tensors: Sequence[te.Tensor]) -> dict[te.Tensor, int]:
    """Return the cost of one element of each tensor if no intermediate tensor is stored."""
    result: dict[te.Tensor, int] = {}
    for tensor in tensors:
        inlined = isinstance(tensor, (te.Compute, te.View))
        inner = (
            estimated_operations_per_element(tensor) + sum(result[s] for s in source_tensors(tensor)) if inlined else 1
        )
        result[tensor] = min(inner, _COST_LIMIT)
    return result


def indices_from_flat_offset(flat: Expr, shape: Sequence[te.Extent]) -> tuple[Expr, ...]:
    """Return the indices of the element at a row-major offset."""
    indices: list[Expr] = []
    for position, extent in reversed(list(enumerate(shape))):
        indices.insert(0, as_expr(0) if extent == 1 else flat if position == 0 else flat % extent)
        flat = flat if extent == 1 else flat // extent
    return tuple(indices)


def indices_in_reshaped_tensor(
    tensor: te.Tensor, indices: Sequence[Expr], target: te.Tensor, ranges: Ranges
) -> tuple[Expr, ...]:
    """Return the indices in `target` of the element `tensor[indices]`; both tensors have equal
    row-major elements.
    """
    if target is tensor or target.shape == tensor.shape:
        return tuple(indices)
    new: list[Expr] = []
    for axes, target_axes in _groups_of_axes_with_equal_sizes(tensor.shape, target.shape):
        flat = simplify(te.flat_index(tensor.shape[axes], indices[axes]), ranges)
        new += indices_from_flat_offset(flat, target.shape[target_axes])
    return tuple(simplify(i, ranges) for i in new)


def _groups_of_axes_with_equal_sizes(
    shape: Sequence[te.Extent], target: Sequence[te.Extent]
) -> list[tuple[slice, slice]]:
    """Return the shortest runs of axes of two shapes, in order, that have equal numbers of elements.

    An index in a run does not depend on other runs. With extents that are known at run time only, divisions
    by them would remain in the index otherwise: the simplifier knows no index to be less than such an
    extent. Shapes that are known are one group, for which it finds this itself.
    """
    whole = slice(0, len(shape)), slice(0, len(target))
    if not any(isinstance(extent, SymDim) for extent in (*shape, *target)):
        return [whole]
    groups: list[tuple[slice, slice]] = []
    begin = target_begin = 0
    for end in range(1, len(shape) + 1):
        while target_begin < len(target) and target[target_begin] == 1:
            groups.append((slice(begin, begin), slice(target_begin, target_begin + 1)))
            target_begin += 1
        size = product_of_dims(shape[begin:end])
        ends = range(target_begin + 1, len(target) + 1)
        found = next((e for e in ends if same_dim(size, product_of_dims(target[target_begin:e]))), None)
        if found is not None:
            groups.append((slice(begin, end), slice(target_begin, found)))
            begin, target_begin = end, found
    return [*groups, (slice(begin, len(shape)), slice(target_begin, len(target)))]


def have_equal_flat_offsets(
    a: te.Tensor, a_indices: Sequence[Expr], b: te.Tensor, b_indices: Sequence[Expr], ranges: Ranges
) -> bool:
    """Return True if two elements have equal row-major offsets in tensors with equal numbers of
    elements.
    """
    if not a.has_live_size_of(b):
        return False
    if a.shape == b.shape and tuple(a_indices) == tuple(b_indices):
        return True
    difference = te.flat_index(a.shape, a_indices) - te.flat_index(b.shape, b_indices)
    return simplify(difference, ranges) == as_expr(0)
