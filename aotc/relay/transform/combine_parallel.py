# SPDX-License-Identifier: Apache-2.0
"""CombineParallelConv2D, CombineParallelDense, CombineParallelBatchMatmul: merge calls on a common
input into one.

CombineParallelDense(min_num_branches=3, to_batch=False)
relu(nn.dense(%x, %a)), relu(nn.dense(%x, %b)), relu(nn.dense(%x, %c))
%0 = relu(nn.dense(%x, concatenate((%a, %b, %c))))    # and a strided_slice of %0 for each

Input: typed functions. Output: functions with equal values and fewer, larger calls. Calls inside
lets, branches and nested functions are not combined.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from aotc.ir import NO_ATTRS, OpPattern, frozen, merge_spans, span_scope
from aotc.relay.expr import (
    Call,
    Constant,
    Expr,
    Function,
    TupleGetItem,
    axis_map_of_call,
    require_function,
    require_op_of_call,
    tensor_type_of,
)
from aotc.relay.graph_api import (
    children,
    depth_first_post_order,
    is_not_a_scope,
    map_children,
    post_order,
    structural_equal,
    users,
)
from aotc.relay.op.binary_elementwise import add
from aotc.relay.op.concat_split import concatenate, split, stack
from aotc.relay.op.conv import ConvAttrs
from aotc.relay.op.dense import BiasAddAttrs, batch_matmul
from aotc.relay.op.shape import expand_dims, squeeze
from aotc.relay.op.slice import strided_slice
from aotc.relay.op.window_attributes import befores_then_afters_padding, repeat_for_each_axis
from aotc.relay.transform.pass_base import FunctionPass, as_op_call, rebuild_call

T = TypeVar("T")


def all_except_position(items: Sequence[T], position: int) -> tuple[T, ...]:
    """Return a tuple of the items except the one at `position`."""
    return (*items[:position], *items[position + 1 :])


def are_same_node_or_equal_constants(exprs: Sequence[Expr]) -> bool:
    """Return True if all expressions are one node or are constants of equal bits (0.0 and -0.0
    differ as divisors).
    """
    first = exprs[0]
    return all(e is first or (isinstance(e, Constant) and structural_equal(first, e)) for e in exprs)


@frozen
class ElementwiseStep:
    """One elementwise call in each of several parallel branches; argument `position` is the
    branch's value.

    The calls have equal operators and attributes.
    """

    nodes: tuple[Call, ...]
    position: int


@frozen
class ParallelGroup:
    """Parallel calls on one input that are merged into one, and the elementwise calls that follow
    each of them.
    """

    anchors: tuple[Call, ...]
    steps: list[ElementwiseStep] = field(default_factory=list)

    @property
    def last_call_of_each_branch(self) -> tuple[Call, ...]:
        return self.steps[-1].nodes if self.steps else self.anchors

    def all_operands_from_outside_group(self) -> Iterator[Expr]:
        """Yield all operands of a group of parallel calls and of the elementwise calls that follow
        them.
        """
        yield from (arg for node in self.anchors for arg in node.args)
        for step in self.steps:
            yield from (arg for node in step.nodes for arg in all_except_position(node.args, step.position))


@dataclass(frozen=True)
class Concatenation:
    """How parallel calls of one operator are merged by concatenating their results along an axis.

    name          the operator's name
    alike         (attributes) -> a key that the calls must have in common, besides the weights' other axes;
                  None for a call that cannot be combined
    axis          (attributes, rank) -> the axis of an anchor's result, from 0
    weight_axis   (attributes) -> the corresponding axis of the second argument
    extent        the attribute that holds the extent of the result along the axis, "" if there is none
    from_end      True if operands of the steps are joined along axes counted from the end
    """

    name: str
    alike: Callable[[Any], Hashable | None]
    axis: Callable[[Any, int], int]
    weight_axis: Callable[[Any], int]
    extent: str = ""
    from_end: bool = False

    def key_equal_for_mergeable_calls(self, node: Call) -> Hashable | None:
        """Return a key of an operator call: calls on one input with equal keys can be merged. None
        if it cannot be merged.
        """
        alike, weight = self.alike(node.attrs), tensor_type_of(node.args[1])
        rest = all_except_position(weight.shape, self.weight_axis(node.attrs))
        return None if alike is None else (alike, rest, str(weight.dtype))

    def _concatenation_axis_of_result(self, node: Call) -> int:
        return self.axis(node.attrs, tensor_type_of(node).rank)

    def merge_anchor_calls(self, group: ParallelGroup, branch_arguments: Sequence[Sequence[Expr]]) -> Expr:
        """Return the merged call that replaces the parallel calls of a group; `branch_arguments`
        are their rewritten arguments.
        """
        first = group.anchors[0]
        weight = concatenate([a[1] for a in branch_arguments], axis=self.weight_axis(first.attrs))
        changes = {self.extent: sum(self._branch_extents_along_concatenation(group))} if self.extent else {}
        return rebuild_call(first, (branch_arguments[0][0], weight), **changes)

    def _branch_extents_along_concatenation(self, group: ParallelGroup) -> list[int]:
        return [tensor_type_of(node).static_shape[self._concatenation_axis_of_result(node)] for node in group.anchors]

    def _operand_concat_axis(self, step: ElementwiseStep, axis: int, operand_index: int) -> int | None:
        """Return the axis along which operand `operand_index` of the branches' elementwise calls is
        concatenated.

        None if the operand is common to all branches; -1 if these calls cannot be merged.
        """
        columns = [_operand_axis_maps(node)[operand_index][axis] for node in step.nodes]
        operands = [node.args[operand_index] for node in step.nodes]
        along = next((c for c in columns if c is not None), None)
        if along is None:
            return None if are_same_node_or_equal_constants(operands) else -1
        for node, column in zip(step.nodes, columns, strict=True):
            # an operand of one element for a single channel looks like a broadcast one
            single = (
                column is None
                and tensor_type_of(node).shape[axis] == 1
                and tensor_type_of(node.args[operand_index]).rank > along
            )
            if column != along and not single:
                return -1
        types = [tensor_type_of(o) for o in operands]
        alike = len({(all_except_position(t.shape, along), str(t.dtype)) for t in types}) == 1
        return along if alike else -1

    def can_merge_step(self, step: ElementwiseStep, group: ParallelGroup) -> bool:
        """Return True if the branches' elementwise calls can be merged by concatenating their
        operands.

        Operators and shapes of the branches must have been compared before.
        """
        axis = self._concatenation_axis_of_result(group.anchors[0])
        other_positions = [k for k in range(len(step.nodes[0].args)) if k != step.position]
        if any(_operand_axis_maps(node)[step.position][axis] not in (axis, None) for node in step.nodes):
            return False
        return all(self._operand_concat_axis(step, axis, k) != -1 for k in other_positions)

    def merge_step(
        self, step: ElementwiseStep, group: ParallelGroup, value: Expr, operands: Sequence[Sequence[Expr]]
    ) -> Expr:
        """Return one elementwise call on the merged value of all branches; `operands` are the new
        arguments of each branch.
        """
        axis = self._concatenation_axis_of_result(group.anchors[0])
        args = list(operands[0])
        for k in range(len(args)):
            along = None if k == step.position else self._operand_concat_axis(step, axis, k)
            if along is not None:
                along -= tensor_type_of(args[k]).rank if self.from_end else 0
                args[k] = concatenate([branch[k] for branch in operands], axis=along)
        args[step.position] = value
        return rebuild_call(step.nodes[0], args)

    def split_merged_value(self, value: Expr, group: ParallelGroup) -> list[Expr]:
        """Return for each of the merged parallel calls the slice of the combined value that is its
        result.
        """
        extents = self._branch_extents_along_concatenation(group)
        axis = self._concatenation_axis_of_result(group.anchors[0])
        before, rest, steps = [0] * axis, [-1] * axis, [1] * (axis + 1)
        ends = zip(extents, accumulate(extents), strict=True)
        places = [([*before, end - n], [*rest, n]) for n, end in ends]
        return [strided_slice(value, *place, steps, slice_mode="size") for place in places]


#: How several calls become one call: by concatenation, or as a batch of matrices.
Combination: TypeAlias = "Concatenation | _DenseBatch"


def _operand_axis_maps(node: Call) -> tuple[tuple[int | None, ...], ...]:
    axes = axis_map_of_call(node)
    rank = tensor_type_of(node).rank
    return axes.inputs if axes is not None else ((None,) * rank,) * len(node.args)


class _Search:
    """Search for the groups of parallel calls in a function that can be merged.

    Merging makes each branch depend on the arguments of all branches. No cycle arises if the level
    of every argument (the number of calls of the operator on a path to it) is at most that of the
    data: data and arguments of a group are then below it, and all of its users are above.
    """

    def __init__(self, function: Function, how: Combination, least: int) -> None:
        self.function, self.combination, self.min_branches = function, how, max(least, 2)
        self.levels: dict[Expr, int] = {}
        for node in post_order(function):
            below = max((self.levels[c] for c in children(node)), default=0)
            self.levels[node] = below + (as_op_call(node, how.name) is not None)
        self.users = users(function)

    def find_groups(self) -> list[ParallelGroup]:
        calls_by_key: dict[Hashable, list[Call]] = {}
        self.region = dict.fromkeys(post_order(self.function.body, is_not_a_scope))
        for node in self.region:
            call = as_op_call(node, self.combination.name)
            if call is None or not self._are_args_not_downstream_of_data(call.args, call.args[0]):
                continue
            key = self.combination.key_equal_for_mergeable_calls(call) if tensor_type_of(call).is_static else None
            if key is not None:
                calls_by_key.setdefault((call.args[0], key), []).append(call)
        return [
            self._append_elementwise_steps_to_group(ParallelGroup(tuple(calls)))
            for calls in calls_by_key.values()
            if len(calls) >= self.min_branches
        ]

    def _are_args_not_downstream_of_data(self, args: Sequence[Expr], data: Expr) -> bool:
        return all(self.levels[a] <= self.levels[data] for a in args)

    def _append_elementwise_steps_to_group(self, group: ParallelGroup) -> ParallelGroup:
        while (step := self._next_elementwise_step_of_branches(group)) is not None:
            group.steps.append(step)
        return group

    def _next_elementwise_step_of_branches(self, group: ParallelGroup) -> ElementwiseStep | None:
        """Return the elementwise calls that follow next in all branches of a group, or None if the
        branches differ or end.
        """
        nodes = [self._single_user_if_pointwise(end) for end in group.last_call_of_each_branch]
        calls = [n for n in nodes if n is not None]
        if len(calls) < len(nodes) or len({*calls}) < len(nodes):
            return None
        pairs = zip(calls, group.last_call_of_each_branch, strict=True)
        positions = {next(k for k, a in enumerate(n.args) if a is e) for n, e in pairs}
        first = calls[0]
        # compare attributes as text: zeros of different signs differ
        if len(positions) > 1 or any(n.op is not first.op or repr(n.attrs) != repr(first.attrs) for n in calls):
            return None
        step = ElementwiseStep(tuple(calls), positions.pop())
        return (
            step
            if self._has_independent_static_operands(step, group) and self.combination.can_merge_step(step, group)
            else None
        )

    def _single_user_if_pointwise(self, branch_result: Expr) -> Call | None:
        call = as_op_call(self.users[branch_result][0]) if len(self.users[branch_result]) == 1 else None
        return call if call is not None and call in self.region and _is_elementwise_or_plain_broadcast(call) else None

    def _has_independent_static_operands(self, step: ElementwiseStep, group: ParallelGroup) -> bool:
        data = group.anchors[0].args[0]
        for node, end in zip(step.nodes, group.last_call_of_each_branch, strict=True):
            other_operands = all_except_position(node.args, step.position)
            static = all(tensor_type_of(o).is_static for o in other_operands)
            same = tensor_type_of(node).shape == tensor_type_of(end).shape
            if not (same and static and self._are_args_not_downstream_of_data(other_operands, data)):
                return False
        return True


def _is_elementwise_or_plain_broadcast(node: Call) -> bool:
    """Return True for an elementwise or broadcasting operator whose result shape does not depend on
    its attributes.
    """
    op = require_op_of_call(node)
    broadcast = op.pattern is OpPattern.BROADCAST and (node.attrs == NO_ATTRS or op.name == "nn.bias_add")
    return op.pattern is OpPattern.ELEMWISE or broadcast


def combine_parallel_calls(function: Function, combination: Combination, min_num_branches: int) -> Function:
    """Return `function` with groups of at least `min_num_branches` calls combined; the same object
    if there are none.
    """
    groups = _Search(function, combination, min_num_branches).find_groups()
    if not groups:
        return function
    group_of: dict[Expr, ParallelGroup] = {end: group for group in groups for end in group.last_call_of_each_branch}
    memo: dict[Expr, Expr] = {}

    def operands_of_node_or_its_group(node: Expr) -> Iterable[Expr]:
        return group_of[node].all_operands_from_outside_group() if node in group_of else children(node)

    roots: list[Expr] = [function]
    for node in depth_first_post_order(roots, operands_of_node_or_its_group):
        group = group_of.get(node)
        if group is None:
            memo[node] = map_children(node, memo.__getitem__)
        elif node not in memo:
            for end, part in zip(group.last_call_of_each_branch, _merge_group(group, combination, memo), strict=True):
                memo[end] = part
    return require_function(memo[function])


def _merge_group(group: ParallelGroup, combination: Combination, rewritten: dict[Expr, Expr]) -> list[Expr]:
    """Return the results of merged parallel branches as slices of one combined value."""
    nodes = [*group.anchors, *(n for step in group.steps for n in step.nodes)]
    with span_scope(merge_spans(n.span for n in nodes)):
        value = combination.merge_anchor_calls(group, [[rewritten[a] for a in node.args] for node in group.anchors])
        for step in group.steps:
            operands = [[rewritten.get(a, a) for a in node.args] for node in step.nodes]
            value = combination.merge_step(step, group, value, operands)
        return combination.split_merged_value(value, group)


# --- the operators that are combined


def _key_of_mergeable_convolution_attrs(attrs: ConvAttrs) -> Hashable | None:
    # blocked layouts would need padding between the branches' channels
    if attrs.groups != 1 or not (attrs.data_layout + attrs.kernel_layout + attrs.out_layout).isalpha():
        return None
    window = (
        repeat_for_each_axis(attrs.strides, 2),
        befores_then_afters_padding(attrs.padding, 2),
        repeat_for_each_axis(attrs.dilation, 2),
    )
    return (
        window,
        attrs.data_layout,
        attrs.kernel_layout,
        attrs.out_layout or attrs.data_layout,
        attrs.out_dtype,
        attrs.pad_value,
    )


_CONVOLUTIONS: Final = Concatenation(
    "nn.conv2d",
    _key_of_mergeable_convolution_attrs,
    lambda a, _: (a.out_layout or a.data_layout).index("C"),
    lambda a: a.kernel_layout.index("O"),
    "channels",
)
_DENSES: Final = Concatenation("nn.dense", lambda a: a.out_dtype, lambda _, rank: rank - 1, lambda _: 0, "units")
_BATCH_MATMULS: Final = Concatenation(
    "nn.batch_matmul", lambda a: a, lambda _, rank: 2, lambda a: 1 if a.transpose_b else 2, from_end=True
)


@dataclass(frozen=True)
class _DenseBatch:
    """Combination of dense products of equal sizes into one batched product: results (M, N) become
    one (B, M, N).

    It has the methods of `Concatenation`.
    """

    copies_data: bool

    name: ClassVar[str] = "nn.dense"

    def key_equal_for_mergeable_calls(self, node: Call) -> Hashable | None:
        weight = tensor_type_of(node.args[1])
        static = tensor_type_of(node).rank == 2 and weight.is_static
        return (node.attrs["out_dtype"], weight.shape, str(weight.dtype)) if static else None

    def merge_anchor_calls(self, group: ParallelGroup, branch_arguments: Sequence[Sequence[Expr]]) -> Expr:
        out_dtype = group.anchors[0].attrs["out_dtype"]
        data = stack([a[0] for a in branch_arguments]) if self.copies_data else expand_dims(branch_arguments[0][0], 0)
        return batch_matmul(data, stack([a[1] for a in branch_arguments]), out_dtype)

    def can_merge_step(self, step: ElementwiseStep, group: ParallelGroup) -> bool:
        first = step.nodes[0]
        if isinstance(first.attrs, BiasAddAttrs) and (first.attrs.axis not in (1, -1) or step.position != 0):
            return False
        columns = list(zip(*(node.args for node in step.nodes), strict=True))
        return all(
            k == step.position or are_same_node_or_equal_constants(c) or len({str(tensor_type_of(e)) for e in c}) == 1
            for k, c in enumerate(columns)
        )

    def merge_step(
        self, step: ElementwiseStep, group: ParallelGroup, value: Expr, operands: Sequence[Sequence[Expr]]
    ) -> Expr:
        first = step.nodes[0]
        args = [
            value if k == step.position else _stack_broadcast_operands(c)
            for k, c in enumerate(zip(*operands, strict=True))
        ]
        return add(*args) if isinstance(first.attrs, BiasAddAttrs) else rebuild_call(first, args)

    def split_merged_value(self, value: Expr, group: ParallelGroup) -> list[Expr]:
        numbers = range(len(group.anchors))
        if self.copies_data:
            whole = split(value, len(numbers))
            return [squeeze(TupleGetItem(whole, k), [0]) for k in numbers]
        return [squeeze(strided_slice(value, (k,), (k + 1,), axes=(0,)), 0) for k in numbers]


def _stack_broadcast_operands(operands: Sequence[Expr]) -> Expr:
    """Stack operands that broadcast to matrices into one operand that broadcasts to the batch of
    the matrices.
    """
    if are_same_node_or_equal_constants(operands):
        return operands[0]
    shape = tensor_type_of(operands[0]).static_shape
    missing = 2 - len(shape)
    return stack([expand_dims(o, 0, missing) if missing > 0 else o for o in operands])


@dataclass(frozen=True, repr=False)
class _CombineParallel(FunctionPass):
    """Base of the passes that merge parallel calls on one input, at least `min_num_branches`, in
    the way given by `combination`.
    """

    opt_level = 4

    min_num_branches: int = 3

    combination: ClassVar[Combination]

    def rewrite_function_body(self, function: Function) -> Function:
        return combine_parallel_calls(function, self.combination, self.min_num_branches)


class CombineParallelConv2D(_CombineParallel):
    """Pass that merges ungrouped convolutions of one input with equal windows and layouts into one
    with all their channels.

    Elementwise operators that follow in all branches are merged too. Groups of fewer than
    `min_num_branches` calls stay.
    """

    combination = _CONVOLUTIONS


@dataclass(frozen=True, repr=False)
class CombineParallelDense(_CombineParallel):
    """Pass that merges dense products of one input into one product.

    to_batch      True: weights of equal shapes are stacked for one nn.batch_matmul (data of rank 2);
                  False: weights with any numbers of units are concatenated for one nn.dense
    copies_data   with to_batch: True stacks a copy of the data for each weight, as Relay does; False broadcasts it
    """

    to_batch: bool = True
    copies_data: bool = True

    def rewrite_function_body(self, function: Function) -> Function:
        how = _DenseBatch(self.copies_data) if self.to_batch else _DENSES
        return combine_parallel_calls(function, how, self.min_num_branches)


class CombineParallelBatchMatmul(_CombineParallel):
    """Pass that merges batched products with a common first operand by concatenating the second
    operands' columns.
    """

    combination = _BATCH_MATMULS
