# SPDX-License-Identifier: Apache-2.0
"""Decision trees of ONNX as tables of the operator `ml.tree_ensemble`.

Input: inner nodes with their modes, thresholds and branches. Output: nodes that all test "feature <=
threshold", in an order in which the nodes of a tree lie side by side.

    trees = normalize_modes(inner_nodes)        # x > 3 becomes x <= 3 with its branches exchanged
    order = order_by_tree(trees, roots, label)  # raises AotcError for a cycle
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

import numpy as np

from aotc.ir import AotcError, Array, frozen

#: Modes of inner nodes: the comparisons of a feature with the threshold, and set membership.
MODES: Final = (
    "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER",
)  # fmt: skip
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(len(MODES))
#: Largest set for whose membership test a feature is compared with each value in turn; larger sets are
#: searched by bisection.
_MAX_CHAINED_MEMBERS: Final = 4
#: Depth at which trees are checked once for cycles, in linear time; few trees are as deep.
_DEPTH_OF_CYCLE_CHECK: Final = 64


@frozen(eq=False)
class InnerNodes:
    """The inner nodes of trees, as vectors of equal length.

    A branch is k for inner node k, or -1 - l for leaf l.

    modes         numbers of MODES
    features      features that are compared
    thresholds    float32 or float64
    yes, no       branches taken if the comparison is true or false
    nan_is_yes    True if NaN takes the branch `yes`
    """

    modes: Array
    features: Array
    thresholds: Array
    yes: Array
    no: Array
    nan_is_yes: Array


def _next_below(thresholds: Array) -> Array:
    """Return the greatest float below each threshold; NaN, with which no comparison is true, for -infinity."""
    with np.errstate(all="ignore"):
        below = np.nextafter(thresholds, thresholds.dtype.type(-np.inf))
    return np.asarray(np.where(np.isneginf(thresholds), thresholds.dtype.type(np.nan), below))


class _NodeList:
    """Inner nodes that test "feature <= threshold", to which further ones are appended."""

    def __init__(self, nodes: InnerNodes) -> None:
        self.dtype = nodes.thresholds.dtype
        self.columns = [
            [*column.tolist()] for column in (nodes.features, nodes.thresholds, nodes.yes, nodes.no, nodes.nan_is_yes)
        ]

    def write(self, at: int | None, feature: int, threshold: float, yes: int, no: int, nan_is_yes: bool) -> int:
        """Write a node to position `at`, or append it, and return its position."""
        values = (feature, threshold, yes, no, nan_is_yes)
        for column, value in zip(self.columns, values, strict=True):
            if at is None:
                column.append(value)
            else:
                column[at] = value
        return len(self.columns[0]) - 1 if at is None else at

    def write_equality(
        self, at: int | None, feature: int, values: Sequence[float], yes: int, no: int, nan: bool
    ) -> int:
        """Write nodes that take `yes` if the feature is one of the sorted `values`, and return the first one.

        x == t is x <= t without x <= (the greatest float below t).
        """
        if not values:
            return self.write(at, feature, float("nan"), yes, no, nan)
        if len(values) > _MAX_CHAINED_MEMBERS:
            half = len(values) // 2
            first = self.write_equality(None, feature, values[:half], yes, no, nan)
            second = self.write_equality(None, feature, values[half:], yes, no, False)
            return self.write(at, feature, values[half - 1], first, second, nan)
        *others, last = values
        dtype = self.dtype.type
        below = self.write(None, feature, float(_next_below(np.array([last], dtype))[0]), no, yes, False)
        if not others:
            return self.write(at, feature, last, below, no, nan)
        rest = self.write_equality(None, feature, others, yes, no, nan)
        equal = self.write(None, feature, last, below, no, False)
        # values up to the last but one, then the last one
        return self.write(at, feature, others[-1], rest, equal, nan)


def normalize_modes(nodes: InnerNodes, members: Sequence[Array]) -> InnerNodes:
    """Return nodes that all test "feature <= threshold" and lead from the same node numbers to the same
    leaves.

    members   the set of values of each node of mode BRANCH_MEMBER, in the order of the nodes

    Nodes that test equality or membership become several nodes; the further ones are appended.
    """
    modes, thresholds = nodes.modes, nodes.thresholds
    is_swapped = np.isin(modes, (GTE, GT)) & ~np.isnan(thresholds)
    is_strict = np.isin(modes, (LT, GTE))
    result = InnerNodes(
        np.zeros_like(modes),
        nodes.features,
        np.where(is_strict, _next_below(thresholds), thresholds),
        np.where(is_swapped, nodes.no, nodes.yes),
        np.where(is_swapped, nodes.yes, nodes.no),
        nodes.nan_is_yes ^ is_swapped,
    )
    special = np.flatnonzero(modes >= EQ)
    if not special.size:
        return result
    table = _NodeList(result)
    sets = iter(members)
    for at in special.tolist():
        feature, yes, no, nan = (int(c[at]) for c in (nodes.features, nodes.yes, nodes.no, nodes.nan_is_yes))
        if modes[at] == MEMBER:
            values = sorted({float(v) for v in np.asarray(next(sets), thresholds.dtype) if v == v})
        else:
            values = [float(thresholds[at])] if thresholds[at] == thresholds[at] else []
        if modes[at] == NEQ:
            # NaN differs from every threshold
            table.write_equality(at, feature, values, no, yes, False)
        else:
            table.write_equality(at, feature, values, yes, no, bool(nan))
    features, thresholds_list, *branches, flags = table.columns
    wide = np.array(thresholds_list, np.float64).astype(thresholds.dtype)
    yes_column, no_column = (np.array(b, np.int64) for b in branches)
    zeros = np.zeros(len(features), np.int64)
    return InnerNodes(zeros, np.array(features, np.int64), wide, yes_column, no_column, np.array(flags, bool))


def values_at_branches(branches: Array, inner_values: Array, leaf_values: Array) -> Array:
    """Return the value of the inner node or of the leaf to which each branch leads."""
    inner, leaves = (np.append(values, values.dtype.type(0)) for values in (inner_values, leaf_values))
    return np.asarray(np.where(branches >= 0, inner[np.maximum(branches, 0)], leaves[np.maximum(-1 - branches, 0)]))


@frozen(eq=False)
class NodeOrder:
    """The nodes that the roots reach, tree by tree.

    inner, leaves   their former numbers, in the new order
    depth           largest number of inner nodes between a root and a leaf
    """

    inner: Array
    leaves: Array
    depth: int


def order_by_tree(nodes: InnerNodes, roots: Array, node_label: Callable[[int], str]) -> NodeOrder:
    """Return the nodes that the roots reach, level by level within each tree, and the depth of the trees.

    Raises AotcError (code "onnx-tree") with the names of the nodes of a cycle.
    """
    count = len(nodes.features)
    leaf_count = -min(int(b.min(initial=0)) for b in (nodes.yes, nodes.no, roots))
    tree_of_inner, tree_of_leaf = np.full(count, -1), np.full(leaf_count, -1)
    found_inner, found_leaves = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    frontier, tree = roots, np.arange(len(roots))
    depth = 0
    while True:
        inside = frontier >= 0
        for at, trees, owner, found in (
            (frontier[inside], tree[inside], tree_of_inner, found_inner),
            (-1 - frontier[~inside], tree[~inside], tree_of_leaf, found_leaves),
        ):
            is_new = owner[at] < 0
            owner[at[is_new]] = trees[is_new]
            found.append(_without_repetitions(at[is_new]))
        if not inside.any():
            break
        depth += 1
        if depth == _DEPTH_OF_CYCLE_CHECK:
            _require_no_cycle(nodes, frontier[inside], node_label)
        at, owners = frontier[inside], tree[inside]
        frontier, first = np.unique(np.concatenate([nodes.yes[at], nodes.no[at]]), return_index=True)
        # in the order in which they were found
        order = np.argsort(first, kind="stable")
        frontier, tree = frontier[order], np.concatenate([owners, owners])[first[order]]
    inner, leaves = np.concatenate(found_inner), np.concatenate(found_leaves)
    return NodeOrder(
        inner[np.argsort(tree_of_inner[inner], kind="stable")],
        leaves[np.argsort(tree_of_leaf[leaves], kind="stable")],
        depth,
    )


def _without_repetitions(values: Array) -> Array:
    """Return the values without repetitions, in the order in which they first occur."""
    _, first = np.unique(values, return_index=True)
    return values[np.sort(first)]


def _require_no_cycle(nodes: InnerNodes, start: Array, node_label: Callable[[int], str]) -> None:
    """Raise AotcError (code "onnx-tree") with the names of the nodes of a cycle that `start` reaches."""
    stack, followers = [int(k) for k in start], dict[int, list[int]]()
    while stack:
        k = stack.pop()
        if k in followers:
            continue
        followers[k] = [int(b[k]) for b in (nodes.yes, nodes.no) if b[k] >= 0]
        stack += followers[k]
    try:
        TopologicalSorter(followers).prepare()
    except CycleError as error:
        names = " -> ".join(node_label(k) for k in reversed(error.args[1][:8]))
        raise AotcError("onnx-tree", f"the branches of a tree form a cycle: {names}") from None
