# SPDX-License-Identifier: Apache-2.0
"""CompactTrees: store decision trees in narrow tables, on targets with little memory.

ml.tree_ensemble(cast(%x, dtype="float32"), nodes, roots, groups, values, depth=6)        # %x: int16
=>
ml.compact_tree_ensemble(%x, features, thresholds, branches, roots, groups, values, depth=6)

argmax(ml.tree_ensemble(%x, ...))                            # each leaf has one value, 1 / trees, for one class
=>
argmax(ml.tree_votes(%x, features, thresholds, branches, roots, depth=6, leaves=10))

greater(ml.tree_ensemble(%x, ...), 0.5)                      # two classes: leaves of 11 trees have 0 or 1 / 11
=>
greater(take(ml.tree_votes(%x, ...), [1], axis=1), 5)

Input: typed functions. Output: functions with equal results. Thresholds take the type of the rows: an integer is at
most 2.5 if it is at most 2. Leaves of equal values become one, and so do nodes that compare the same and have the same
branches; a node whose branches are equal is left out. Numbers take the narrowest type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from aotc.ir import Array
from aotc.relay.expr import Call, Constant, Expr, Function, tensor_type_of
from aotc.relay.op.binary_elementwise import greater
from aotc.relay.op.cast_clip_prelu import cast
from aotc.relay.op.compact_tree_ensemble import compact_tree_ensemble, narrow_numbers, tree_votes
from aotc.relay.op.gather import take
from aotc.relay.op.reduce import argmax
from aotc.relay.op.shape import reshape
from aotc.relay.op.tree_ensemble import WORDS_PER_NODE, TreeEnsembleAttrs
from aotc.relay.transform.pass_base import FunctionPass, rewrite_nodes
from aotc.tir import C, Target

#: For each type of floats, the integers that it represents exactly.
_EXACT_INTEGERS: Final = {
    "float32": ("int8", "uint8", "int16", "uint16"),
    "float64": ("int8", "uint8", "int16", "uint16", "int32"),
}


@dataclass(frozen=True, repr=False)
class CompactTrees(FunctionPass):
    """Pass that stores ensembles of decision trees in narrow tables, on bare machines and for small programs."""

    opt_level = 3

    target: Target = C

    def rewrite_function_body(self, function: Function) -> Function:
        if not (self.target.bare or self.target.small):
            return function
        return rewrite_nodes(function, _rewrite)


class _Nodes(NamedTuple):
    """Inner nodes, with branches that are numbers of inner nodes, or -1 - l for leaf l."""

    words: Array
    thresholds: Array
    branches: Array
    roots: Array
    depth: int


def _rewrite(_: Expr, node: Expr) -> Expr:
    if not isinstance(node, Call):
        return node
    if isinstance(node.attrs, TreeEnsembleAttrs) and all(isinstance(arg, Constant) for arg in node.args[1:]):
        return _compact(node, node.attrs)
    return _without_scores_of_votes(node)


def _compact(call: Call, a: TreeEnsembleAttrs) -> Expr:
    """Return a call with narrow tables that computes a call of ml.tree_ensemble, whose tables are constant."""
    data, *rest = call.args
    table, roots, groups, values = (arg.data for arg in rest if isinstance(arg, Constant))
    rows, nodes = _in_type_of_rows(data, _read_nodes(table, roots, values, a))
    by_node = a.missing == "node" and rows is data
    missing = a.missing if rows is data else "no"
    if not by_node:
        nodes = nodes._replace(words=nodes.words >> 1)
    distinct, leaf_of_value = _distinct_rows(values.reshape(len(values), -1))
    class_of_leaf, weight = _class_of_each_leaf(distinct) if _is_one_sum(a, groups, len(roots)) else (None, None)
    if class_of_leaf is not None:
        leaf_of_value = class_of_leaf[leaf_of_value]
    nodes = _merged(_with_leaves(nodes, leaf_of_value))
    tables = [Constant(array) for array in _tables(nodes)]
    if class_of_leaf is None or weight is None:
        groups, leaves = narrow_numbers(np.clip(groups, 0, len(roots))), distinct.reshape(-1, *values.shape[1:])
        arrays = Constant(groups), Constant(np.ascontiguousarray(leaves))
        return compact_tree_ensemble(rows, *tables, *arrays, depth=nodes.depth, aggregate=a.aggregate, missing=missing)
    columns = values.shape[1] if values.ndim == 2 else 1
    votes = tree_votes(rows, *tables, depth=nodes.depth, leaves=max(columns, 2), missing=missing)
    if columns == 1:
        votes = take(votes, Constant(np.ones(1, np.int32)), axis=1)
    addends = np.full(len(roots) + 1, weight)
    addends[0] = 0
    sums = np.add.accumulate(addends, dtype=addends.dtype)  # one by one, as the operator adds them
    return take(Constant(sums), votes, axis=0)


def _read_nodes(table: Array, roots: Array, values: Array, a: TreeEnsembleAttrs) -> _Nodes:
    """Return the nodes of a table of `aotc.relay.op.tree_ensemble.pack_tree_nodes`, with numbers clipped to it."""
    inner = len(table) - len(values)

    def branch(numbers: Array) -> Array:
        place = np.clip(numbers.astype(np.int64) // WORDS_PER_NODE + inner, 0, len(table) - 1)
        return np.where(place < inner, place, inner - 1 - place)

    words = table[:inner, 0].astype(np.int64)
    thresholds = np.ascontiguousarray(table[:inner, 1]).view(values.dtype)
    return _Nodes(np.maximum(words, 0), thresholds, branch(table[:inner, [3, 2]]), branch(roots), a.depth)


def _in_type_of_rows(data: Expr, nodes: _Nodes) -> tuple[Expr, _Nodes]:
    """Return the integers that `data` converts to floats, if that is exact, with thresholds of their type."""
    source = data.args[0] if isinstance(data, Call) and data.op is cast else data
    dtype = str(tensor_type_of(source).dtype)
    if source is data or dtype not in _EXACT_INTEGERS[str(nodes.thresholds.dtype)]:
        return data, nodes
    limits = np.iinfo(dtype)
    floors = np.floor(nodes.thresholds.astype(np.float64))
    never = ~(floors >= limits.min)  # NaN, too
    thresholds = np.clip(np.where(never, limits.min, floors), limits.min, limits.max).astype(dtype)
    branches = np.where(never[:, None], nodes.branches[:, :1], nodes.branches)
    return source, nodes._replace(thresholds=thresholds, branches=branches)


def _is_one_sum(a: TreeEnsembleAttrs, groups: Array, trees: int) -> bool:
    return a.aggregate == "sum" and groups.tolist() == [0, trees]


def _distinct_rows(values: Array) -> tuple[Array, Array]:
    """Return the rows with distinct bits, and the number of each row among them."""
    bits = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    _, first, number = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    return values[first], number.reshape(-1)


def _class_of_each_leaf(rows: Array) -> tuple[Array | None, Array | None]:
    """Return the column of the only value of each row that is not zero, and that value, if it is the same positive
    number in all rows; else None. A single column is that of the class 1, and zero a vote for the class 0.
    """
    weights = rows[rows != 0]
    is_vote = rows.shape[1] == 1 or (len(weights) == len(rows) and bool((rows != 0).any(1).all()))
    if not is_vote or np.unique(weights).size != 1 or not 0 < weights[0] < np.inf or np.signbit(rows).any():
        return None, None
    return (rows[:, 0] != 0).astype(int) if rows.shape[1] == 1 else np.argmax(rows, 1), weights[0]


def _with_leaves(nodes: _Nodes, leaf_of_value: Array) -> _Nodes:
    def renumber(branches: Array) -> Array:
        return np.where(branches < 0, -1 - leaf_of_value[np.maximum(-1 - branches, 0)], branches)

    return nodes._replace(branches=renumber(nodes.branches), roots=renumber(nodes.roots))


def _merged(nodes: _Nodes) -> _Nodes:
    """Return nodes without duplicates, and without nodes whose two branches are equal."""
    while len(nodes.words):
        smaller = _merged_once(nodes)
        if len(smaller.words) == len(nodes.words):
            break
        nodes = smaller
    return nodes


def _merged_once(nodes: _Nodes) -> _Nodes:
    """Replace each node by the first equal one, and a node with equal branches by the node that it leads to."""
    own = np.arange(len(nodes.words))
    bits = nodes.thresholds.view(f"i{nodes.thresholds.itemsize}").astype(np.int64)
    keys = np.column_stack([nodes.words, bits, nodes.branches])
    _, first, number = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    is_useless = nodes.branches[:, 0] == nodes.branches[:, 1]
    target = np.where(is_useless, nodes.branches[:, 0], first[number.reshape(-1)])
    kept = np.flatnonzero(target == own)
    place = np.zeros(len(own), np.int64)
    place[kept] = np.arange(len(kept))

    def renumber(branches: Array) -> Array:
        for _ in range(nodes.depth + 1):  # a node that a target is may have a target, too
            branches = np.where(branches >= 0, target[np.maximum(branches, 0)], branches)
        return np.where(branches >= 0, place[np.maximum(branches, 0)], branches)

    branches, roots = renumber(nodes.branches[kept]), renumber(nodes.roots)
    return _Nodes(nodes.words[kept], nodes.thresholds[kept], branches, roots, nodes.depth)


def _tables(nodes: _Nodes) -> list[Array]:
    inner = len(nodes.words)

    def number(branches: Array) -> Array:
        return narrow_numbers(np.where(branches < 0, inner - 1 - branches, branches))

    thresholds = np.ascontiguousarray(nodes.thresholds)
    return [narrow_numbers(nodes.words), thresholds, number(nodes.branches), number(nodes.roots)]


def _without_scores_of_votes(call: Call) -> Expr:
    """Return a node that uses scores of votes, computed from the votes instead: the column of the greatest score, or
    whether a score is greater than a constant. Scores grow with the votes.
    """
    if call.op is argmax and (found := _votes_of_scores(call.args[0])):
        return Call(call.op, [found[0]], call.attrs, None, call.span, None)
    if call.op is not greater or not isinstance(call.args[1], Constant) or call.args[1].data.ndim:
        return call
    limit = call.args[1].data
    reshaped = call.args[0] if isinstance(call.args[0], Call) and call.args[0].op is reshape else None
    if (found := _votes_of_scores(reshaped.args[0] if reshaped else call.args[0])) is None:
        return call
    votes, sums = found
    if reshaped:
        votes = Call(reshaped.op, [votes], reshaped.attrs, None, reshaped.span, None)
    return greater(votes, Constant(np.int32(np.count_nonzero(sums <= limit) - 1)))


def _votes_of_scores(scores: Expr) -> tuple[Expr, Array] | None:
    """Return the votes that scores come from, and the score of each number of votes, if it grows with that number."""
    if not (isinstance(scores, Call) and scores.op is take and isinstance(scores.args[0], Constant)):
        return None
    sums, votes = scores.args[0].data, scores.args[1]
    column = votes.args[0] if isinstance(votes, Call) and votes.op is take else votes
    is_vote = isinstance(column, Call) and column.op is tree_votes and sums.ndim == 1
    return (votes, sums) if is_vote and bool((np.diff(sums) > 0).all()) else None
