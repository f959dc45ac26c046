# SPDX-License-Identifier: Apache-2.0
"""ONNX converter of If.

An If whose condition is known becomes its chosen branch, any other becomes an If of the graph IR.

    OPS["If"](condition, node=node)         # the outputs of one branch
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto

from aotc.ir import Dim, SymDim, TensorType, Type, are_bounded, largest_size, require, same_dim
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.found_sizes import cut_to_found_sizes, with_room
from aotc.relay.frontend.onnx.node import OnnxNode, Strings, Table, table_by_function_name
from aotc.relay.frontend.onnx.run_time_values import SlotsForm, form_of_choice, needs_form
from aotc.relay.frontend.size_conditions import (
    SizeCondition,
    collect_size_conditions,
    require_equal_dims,
    state_conditions,
)
from aotc.relay.frontend.size_operands import value_at_bounds, without_size_operands
from aotc.relay.frontend.size_values import size_values
from aotc.relay.frontend.string_slots import slot_size, with_slot_size
from aotc.relay.graph_api import Constant, Expr, If, Tuple, TupleGetItem, type_of

#: The outputs of a branch, and what they require of the sizes of a run.
_Branch = tuple[list[Expr | Strings], list[SizeCondition]]


def _if(
    condition: Expr, *, then_branch: GraphProto, else_branch: GraphProto, node: OnnxNode
) -> Sequence[Expr | Strings]:
    if isinstance(condition, Constant):
        is_true = g.require_single_element(condition.data, "the condition of If")
        return node.branch(then_branch if is_true else else_branch)
    with without_size_operands():  # a number that only decides about a branch needs no range
        decided = _single_size(condition)
    if decided is not None and not isinstance(decided, SymDim):
        return node.branch(then_branch if decided else else_branch)
    branches = _converted_branch(then_branch, node), _converted_branch(else_branch, node)
    counts = [len(outputs) for outputs, _ in branches]
    require("onnx-if", counts[0] == counts[1], f"the branches of If have {counts[0]} and {counts[1]} outputs")
    strings, (yes, no) = _outputs_with_equal_slots(branches[0][0], branches[1][0])
    forms = [_form_of_pair(pair, k in strings, node) for k, pair in enumerate(zip(yes, no, strict=True))]
    counts = [1 if form is None else len(form.fields(a, node.sequences)) for form, a in zip(forms, yes, strict=True)]
    yes, no = (_tensors_of_forms(forms, side, node) for side in (yes, no))
    types = [(type_of(a), type_of(b)) for a, b in zip(yes, no, strict=True)]
    differ = "; ".join(f"{a} and {b}" for a, b in types if a != b and not _may_differ_in_sizes(a, b))
    if any(isinstance(a, TensorType) and isinstance(b, TensorType) and a.rank != b.rank for a, b in types):
        chosen = _branch_of_largest_sizes(condition, branches)
        if chosen is not None:
            return chosen
    require("onnx-if", not differ, f"the branches of If have outputs of different types: {differ}")
    for _, conditions in branches:
        state_conditions(conditions)
    dims = g.dims(condition)
    has_one_value = all(dim == 1 for dim in dims if isinstance(dim, int))
    text = f"the condition of If must be one value, it has shape ({', '.join(map(str, dims))})"
    require("onnx-if", has_one_value, text)
    rest = iter(_outputs_of_chosen_branch(g.reshape(condition, ()), yes, no))
    results: list[Expr] = []
    for form, count in zip(forms, counts, strict=True):
        fields = [next(rest) for _ in range(count)]
        results.append(fields[0] if form is None else form.value(fields, node.sequences))
    return [Strings(x) if k in strings else x for k, x in enumerate(results)]


def _form_of_pair(pair: Sequence[Expr], is_string: bool, node: OnnxNode) -> SlotsForm | None:
    """Return the form of an output that is a sequence or an optional value, of which a run decides the length; None
    for other outputs.

    pair    the output of both branches
    """
    return form_of_choice(pair, node.sequences) if not is_string and needs_form(pair, node.sequences) else None


def _tensors_of_forms(forms: Sequence[SlotsForm | None], outputs: Sequence[Expr], node: OnnxNode) -> list[Expr]:
    """Return the outputs of a branch, with the tensors of those that have a form."""
    parts = ([x] if f is None else f.fields(x, node.sequences) for f, x in zip(forms, outputs, strict=True))
    return [x for part in parts for x in part]


def _outputs_with_equal_slots(
    yes: Sequence[Expr | Strings], no: Sequence[Expr | Strings]
) -> tuple[set[int], tuple[list[Expr], list[Expr]]]:
    """Return the positions of outputs of branches that are strings, and the outputs of both branches, where strings
    have slots of one size. Raises AotcError (code "onnx-if") for strings that a run cannot choose between.
    """
    strings: set[int] = set()
    sides: tuple[list[Expr], list[Expr]] = ([], [])
    for k, pair in enumerate(zip(yes, no, strict=True)):
        if any(isinstance(x, Strings) for x in pair):
            pair = _strings_with_equal_slots(pair)
            strings.add(k)
        for side, x in zip(sides, pair, strict=True):
            side.append(x.slots if isinstance(x, Strings) else x)
    return strings, sides


def _strings_with_equal_slots(pair: Sequence[Expr | Strings]) -> tuple[Expr, Expr]:
    slots = [x.slots for x in pair if isinstance(x, Strings) and x.count is None]
    known = len(slots) == 2 and all(isinstance(type_of(x), TensorType) for x in slots)
    text = "strings can be an output of If if both branches compute as many of them"
    require("onnx-if", known, text)
    shapes = [g.dims(x)[:-1] for x in slots]
    require("onnx-if", shapes[0] == shapes[1], f"{text}, here in the shapes {shapes[0]} and {shapes[1]}")
    size = max(map(slot_size, slots))
    first, second = (with_slot_size(x, size) for x in slots)
    return first, second


def _may_differ_in_sizes(a: Type, b: Type) -> bool:
    """Return True for types of results of branches that a tensor with room for either one can hold."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return False
    return (a.dtype, a.rank) == (b.dtype, b.rank) and are_bounded(a.shape) and are_bounded(b.shape)


def _outputs_of_chosen_branch(condition: Expr, yes: Sequence[Expr], no: Sequence[Expr]) -> list[Expr]:
    """Return the outputs of the branch that a condition chooses, as results of one `If`.

    `yes` and `no` are the outputs of the two branches. Where an axis of an output differs between the branches, both
    branches pad it to the larger extent and return the extent before padding as a further result; the output is cut
    to this extent, a size that a run finds.
    """
    rooms = [_rooms_of_differing_axes(type_of(a), type_of(b)) for a, b in zip(yes, no, strict=True)]
    arms = [
        [
            *(with_room(value, room) for value, room in zip(values, rooms, strict=True)),
            *(g.size_as_tensor(g.dims(v)[axis]) for v, room in zip(values, rooms, strict=True) for axis in room),
        ]
        for values in (yes, no)
    ]
    if len(arms[0]) == 1:
        return [If(condition, arms[0][0], arms[1][0])]
    both = If(condition, Tuple(arms[0]), Tuple(arms[1]))
    sizes = iter([TupleGetItem(both, k) for k in range(len(yes), len(arms[0]))])
    return [
        cut_to_found_sizes(TupleGetItem(both, k), {axis: next(sizes) for axis in room}) for k, room in enumerate(rooms)
    ]


def _rooms_of_differing_axes(a: Type, b: Type) -> dict[int, int]:
    """Return the larger one of the largest extents, by axis, of each axis whose extents differ."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return {}
    pairs = enumerate(zip(a.shape, b.shape, strict=True))
    return {axis: max(map(largest_size, dims)) for axis, dims in pairs if not same_dim(*dims)}


def _single_size(condition: Expr) -> Dim | None:
    """Return a condition that sizes decide: a bool, or 0 or 1 as a formula; None for others."""
    values = size_values(condition)
    return values.reshape(-1)[0] if values is not None and values.size == 1 else None


def _converted_branch(graph: GraphProto, node: OnnxNode) -> _Branch:
    with collect_size_conditions() as conditions:
        return node.branch(graph), conditions


def _branch_of_largest_sizes(condition: Expr, branches: tuple[_Branch, _Branch]) -> list[Expr | Strings] | None:
    """Return the outputs of the branch that the largest sizes of a run choose, and state that all runs choose it: a
    tensor has one rank. None if not only sizes decide.
    """
    decided = _single_size(condition)
    value = None if decided is None else value_at_bounds(decided)
    if decided is None or value is None:
        return None
    text = "the branches of If have outputs of different ranks"
    require_equal_dims("onnx-if", decided, value, text)
    outputs, conditions = branches[0 if value else 1]
    state_conditions(conditions)
    return outputs


OPS: Table = table_by_function_name(_if)
