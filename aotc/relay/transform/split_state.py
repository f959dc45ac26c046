# SPDX-License-Identifier: Apache-2.0
"""Split the state tensors of a streaming model into the parts that its operators read and write.

Models often join all of their state to one tensor, which each run takes apart and joins again:

    h = cache[0]; c = cache[1]; h1, c1 = lstm(x, h, c); cache_out = stack((h1, c1))

Input: a module with the inputs and outputs that form state.  Output: a module with one input and
one output for each part (here h with h1, and c with c1), so that no operator copies a whole state.

Elements are followed by number: the elements of a state and of all computed tensors get different
numbers, and operators that only move elements are evaluated on these numbers.  Elements of a state
that one operator reads together, or that move to each other's place in a run, form a part.  A state
remains whole if a part is not a tensor of the graph.  This is scalar replacement of aggregates, with
forwarding of stores to loads, on tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import Array, FuncType, TensorType, frozen, tensor_types
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, tensor_type_of
from aotc.relay.graph_api import IRModule, children, infer_module, map_children, output_names_or_default, post_order
from aotc.relay.op.shape import reshape
from aotc.relay.op.slice import strided_slice
from aotc.relay.state_pair import STATE_PAIRS_ATTRIBUTE, StatePair

#: Largest number of elements that are followed by number; it bounds the compiler's memory.
MAX_FOLLOWED_ELEMENTS: Final = 1 << 22
#: Operators that move elements of their arguments, if indices are constant.
_MOVING_OPERATORS: Final = frozenset(
    [
        "concatenate",
        "stack",
        "split",
        "take",
        "scatter_nd",
        "strided_slice",
        "reshape",
        "squeeze",
        "expand_dims",
        "transpose",
    ]
)
_INDEXED_OPERATORS: Final = frozenset({"take", "scatter_nd"})
_INDEX_ARGUMENT: Final = 1

#: Numbers of the elements of a tensor, in its shape; a tuple for tuples.
ElementNumbers: TypeAlias = "Array | tuple[Any, ...]"


def split_states(module: IRModule, pairs: Sequence[StatePair]) -> tuple[IRModule, tuple[StatePair, ...]]:
    """Return a module in which each state is split into parts, with the pairs of the parts.

    The module attribute `STATE_PAIRS_ATTRIBUTE` has the names of all pairs.
    """
    done: list[StatePair] = []
    for pair in pairs:
        module, parts = _split_state(module, pair)
        done += parts
    names = tuple((pair.past, pair.present) for pair in done)
    return module.with_attr(STATE_PAIRS_ATTRIBUTE, names), tuple(done)


def _split_state(module: IRModule, pair: StatePair) -> tuple[IRModule, list[StatePair]]:
    """Split the state of one pair; return the module and the pair itself if that is impossible."""
    main = module.main
    outputs = list(main.body.fields) if isinstance(main.body, Tuple) else [main.body]
    names = list(output_names_or_default(module, len(outputs)))
    past = next(p for p in main.params if p.name == pair.past)
    position = names.index(pair.present)
    if not _can_follow_elements(main, past):
        return module, [pair]
    elements = _ElementNumbering(past)
    elements.number_tensors_of_graph(main.body, outputs[position])
    others = [*outputs[:position], *outputs[position + 1 :]]
    parts = _parts_of_state(elements, outputs[position], others)
    if parts is None:
        return module, [pair]
    new = _rewrite_over_parts(elements, parts, [*others, *(part.present for part in parts)])
    if new is None:
        return module, [pair]
    contents = [part.present for part in parts]
    results = [new[result] for result in (*outputs[:position], *contents, *outputs[position + 1 :])]
    suffixes = [f"[{k}]" for k in range(len(parts))] if len(parts) > 1 else [""]
    part_names = [f"{pair.present}{suffix}" for suffix in suffixes]
    params = [q for p in main.params for q in ([part.variable for part in parts] if p is past else [p])]
    body = results[0] if len(results) == 1 else Tuple(results)
    function = replace(main, params=tuple(params), body=body, ret_type=None)
    output_names = (*names[:position], *part_names, *names[position + 1 :])
    new_pairs = [
        StatePair(part.variable.name, name, part.initial_contents(pair))
        for part, name in zip(parts, part_names, strict=True)
    ]
    return infer_module(module.with_function("main", function).with_attr("output_names", output_names)), new_pairs


def _can_follow_elements(main: Function, past: Var) -> bool:
    """Return True if a state is small enough, and the graph has neither functions nor scopes, nor sizes that are
    known at run time only.
    """
    ty = past.checked_type
    if not isinstance(ty, TensorType) or not ty.is_static or not 0 < ty.numel <= MAX_FOLLOWED_ELEMENTS:
        return False
    is_plain = (Var, Constant, Call, Tuple, TupleGetItem)
    return all(
        (isinstance(node, is_plain) or not children(node)) and _is_static(node) for node in post_order(main.body)
    )


def _is_static(node: Expr) -> bool:
    """Return True if the sizes of all tensors in a node's value are known."""
    ty = node.checked_type
    return ty is None or isinstance(ty, FuncType) or all(tensor.is_static for tensor in tensor_types(ty))


@frozen(eq=False)
class _StatePart:
    """Part of a state: the positions of its elements in the state, in order, the variable that
    replaces them, and the tensor of the graph with their new contents.
    """

    positions: Array
    variable: Var
    present: Expr

    def initial_contents(self, pair: StatePair) -> Array | None:
        """Return the contents of the part in the first run; None for zeros."""
        if pair.initial is None:
            return None
        contents: Array = np.ascontiguousarray(pair.initial).reshape(-1)[self.positions]
        return contents


@dataclass
class _ElementNumbering:
    """Element numbers: 0, 1, ... for the elements of a state, and the following numbers for the
    elements of all tensors that are joined with them.

    numbers    numbers of the elements of each tensor that moves elements of the state
    sources    number of the first element of each computed tensor, and the tensor
    """

    past: Var
    numbers: dict[Expr, ElementNumbers] = field(default_factory=dict)
    sources: list[tuple[int, Expr]] = field(default_factory=list)
    count: int = 0

    def number_tensors_of_graph(self, body: Expr, present: Expr) -> None:
        """Number the elements of all tensors that derive from the state by movement, or from which
        its new contents derive by movement.
        """
        self._number_new_source(self.past)
        joined = self._tensors_moved_to(present)
        for node in post_order(body):
            if node in self.numbers or not (node in joined or any(child in self.numbers for child in children(node))):
                continue
            if isinstance(node, TupleGetItem):
                whole = self.numbers.get(node.tuple_value)
                if isinstance(whole, tuple):
                    self.numbers[node] = whole[node.index]
            elif isinstance(node, Tuple):
                self.numbers[node] = tuple(self._element_numbers_of_node(f) for f in node.fields)
            elif isinstance(node, Call) and self._only_moves_elements(node):
                self._number_result_of_call(node)

    def _tensors_moved_to(self, present: Expr) -> set[Expr]:
        """Return the results of operators that only move elements, from which a tensor derives."""
        reached, moved = {present}, set[Expr]()
        for node in reversed(list(post_order(present))):
            moves = isinstance(node, (Tuple, TupleGetItem)) or (
                isinstance(node, Call) and self._only_moves_elements(node)
            )
            if node in reached and moves:
                moved.add(node)
                reached.update(children(node))
        return moved

    def _only_moves_elements(self, call: Call) -> bool:
        name = getattr(call.op, "name", "")
        if name not in _MOVING_OPERATORS or self.count > MAX_FOLLOWED_ELEMENTS:
            return False
        if name in _INDEXED_OPERATORS and not isinstance(call.args[_INDEX_ARGUMENT], Constant):
            return False
        return name != "scatter_nd" or call.attrs["mode"] == "update"

    def _number_result_of_call(self, call: Call) -> None:
        op: Any = call.op
        args = [
            argument.data
            if op.name in _INDEXED_OPERATORS and k == _INDEX_ARGUMENT and isinstance(argument, Constant)
            else self._element_numbers_of_node(argument)
            for k, argument in enumerate(call.args)
        ]
        result = op.reference(call.attrs, *args)
        self.numbers[call] = tuple(result) if isinstance(result, (tuple, list)) else np.asarray(result)

    def _element_numbers_of_node(self, node: Expr) -> ElementNumbers:
        """Return the numbers of a tensor's elements; a tensor without numbers is a new source."""
        if node not in self.numbers:
            self._number_new_source(node)
        return self.numbers[node]

    def _number_new_source(self, node: Expr) -> None:
        shape = tensor_type_of(node).static_shape
        self.sources.append((self.count, node))
        self.numbers[node] = np.arange(self.count, self.count + prod(shape)).reshape(shape)
        self.count += prod(shape)

    def flat_numbers(self, node: Expr) -> Array | None:
        """Return the numbers of a tensor's elements in order; None for tuples, empty tensors and
        tensors without numbers.
        """
        numbers = self.numbers.get(node)
        return numbers.reshape(-1) if isinstance(numbers, np.ndarray) and numbers.size else None

    def is_part_of_state(self, node: Expr) -> bool:
        """Return True if all elements of a tensor are elements of the state."""
        flat = self.flat_numbers(node)
        return flat is not None and int(flat.max()) < tensor_type_of(self.past).numel

    def source_and_offset(self, node: Expr) -> tuple[Expr, int] | None:
        """Return the computed tensor whose consecutive elements another tensor has, and the number
        of its first element there; None if there is none, or if it is the tensor itself.
        """
        flat = self.flat_numbers(node)
        if flat is None or not _are_consecutive(flat):
            return None
        begin, source = max((row for row in self.sources if row[0] <= flat[0]), key=lambda row: row[0])
        is_inside = flat[-1] < begin + tensor_type_of(source).numel and source is not node
        return (source, int(flat[0]) - begin) if is_inside and source is not self.past else None

    def sources_of(self, numbers: Array) -> list[Expr]:
        """Return the computed tensors that have some of these elements."""
        tensors = [self.sources[k][1] for k in np.unique(self.source_indices(numbers))]
        return [tensor for tensor in tensors if tensor is not self.past]

    def source_indices(self, numbers: Array) -> Array:
        """Return, for each number of an element, the index of its tensor in `sources`."""
        return np.searchsorted([begin for begin, _ in self.sources], numbers, side="right") - 1

    def needed_nodes(self, results: Iterable[Expr]) -> set[Expr]:
        """Return the nodes that results need if tensors are replaced by parts of a state, or by
        consecutive elements of a computed tensor, wherever they are equal.
        """
        roots = tuple(results)
        needed = set(roots)
        for node in reversed(list(post_order(Tuple(roots)))):
            if node not in needed or self.is_part_of_state(node):
                continue
            source = self.source_and_offset(node)
            needed.update(children(node) if source is None else [source[0]])
        return needed


def _are_consecutive(numbers: Array) -> bool:
    return bool(numbers[-1] - numbers[0] == numbers.size - 1 and (np.diff(numbers) == 1).all())


def _parts_of_state(
    elements: _ElementNumbering, present: Expr, other_results: Sequence[Expr]
) -> list[_StatePart] | None:
    """Return the parts of a state, whose new contents are `present`; None if one of them is not a
    tensor of the graph.
    """
    after = elements.flat_numbers(present)
    if after is None:
        return None
    labels = _part_label_of_each_element(elements, after, other_results)
    tensors = _first_tensor_of_each_element_set(elements)
    names = list(dict.fromkeys(labels.tolist()))
    parts: list[_StatePart] = []
    for k, label in enumerate(names):
        positions = np.flatnonzero(labels == label)
        contents = after[positions]
        tensor = tensors.get(np.sort(contents).tobytes())
        if tensor is None or np.unique(contents).size != contents.size:
            return None
        # the order of the elements in the part is that of the tensor with their new contents
        numbers = elements.flat_numbers(tensor)
        assert numbers is not None
        in_order = np.empty_like(positions)
        in_order[np.argsort(numbers, kind="stable")] = positions[np.argsort(contents, kind="stable")]
        name = elements.past.name if len(names) == 1 else f"{elements.past.name}[{k}]"
        variable = Var(name, tensor_type_of(tensor), elements.past.span)
        parts.append(_StatePart(in_order, variable, tensor))
    return parts


def _part_label_of_each_element(elements: _ElementNumbering, after: Array, results: Sequence[Expr]) -> Array:
    """Return a label for each element of a state; all elements of a part have the same label.

    after      numbers of the elements that replace those of the state
    results    results of the graph that are not the new contents of the state
    """
    size = tensor_type_of(elements.past).numel
    groups = [
        np.unique(numbers)
        for node in elements.needed_nodes([*results, *elements.sources_of(after)])
        if elements.is_part_of_state(node) and (numbers := elements.flat_numbers(node)) is not None
    ]
    moved = np.flatnonzero(after < size)
    # elements that nothing reads are grouped by the tensor that replaces them
    unread = np.setdiff1d(np.arange(size), np.concatenate([*groups, moved, after[moved]]))
    origins = elements.source_indices(after[unread])
    groups += [unread[origins == origin] for origin in np.unique(origins)]
    labels = np.arange(size)
    while True:
        previous = labels.copy()
        for group in groups:
            labels[group] = labels[group].min()
        np.minimum.at(labels, moved, labels[after[moved]])
        np.minimum.at(labels, after[moved], labels[moved])
        if (labels == previous).all():
            return labels


def _first_tensor_of_each_element_set(elements: _ElementNumbering) -> Mapping[bytes, Expr]:
    """Return, for the sorted numbers of elements as bytes, the first tensor with these elements."""
    tensors: dict[bytes, Expr] = {}
    for node in elements.numbers:
        flat = elements.flat_numbers(node)
        if flat is not None and node is not elements.past:
            tensors.setdefault(np.sort(flat).tobytes(), node)
    return tensors


def _rewrite_over_parts(
    elements: _ElementNumbering, parts: Sequence[_StatePart], results: Sequence[Expr]
) -> dict[Expr, Expr] | None:
    """Return the replacement of each node that results need, which reads the variables of parts in
    place of the whole state; None if an operator reads elements in another order than a part has.
    """
    needed = elements.needed_nodes(results)
    new: dict[Expr, Expr] = {}
    for node in post_order(Tuple(tuple(results))):
        if node not in needed:
            continue
        source = elements.source_and_offset(node)
        if elements.is_part_of_state(node):
            view = _view_of_part(elements, parts, node)
            if view is None:
                return None
            new[node] = view
        elif source is not None:
            new[node] = _consecutive_elements(new[source[0]], source[1], node)
        else:
            new[node] = map_children(node, lambda child: new.get(child, child))
    return new


def _view_of_part(elements: _ElementNumbering, parts: Sequence[_StatePart], node: Expr) -> Expr | None:
    """Return a tensor of elements of a state as consecutive elements of a part; None if it has
    elements of several parts, or in another order.
    """
    numbers = elements.flat_numbers(node)
    assert numbers is not None
    for part in parts:
        index = np.full(tensor_type_of(elements.past).numel, -1)
        index[part.positions] = np.arange(part.positions.size)
        places = index[numbers]
        if places.min() >= 0:
            return _consecutive_elements(part.variable, int(places[0]), node) if _are_consecutive(places) else None
    return None


def _consecutive_elements(tensor: Expr, offset: int, node: Expr) -> Expr:
    """Return the elements of `tensor` from `offset` on, in the shape of `node`."""
    ty = tensor_type_of(node)
    flat = reshape(tensor, (-1,))
    if tensor_type_of(tensor).numel != ty.numel:
        flat = strided_slice(flat, begin=(offset,), end=(offset + ty.numel,))
    return reshape(flat, ty.static_shape) if ty.rank else reshape(flat, ())
