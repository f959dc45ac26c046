# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of ensembles of decision trees: TreeEnsembleClassifier, TreeEnsembleRegressor and TreeEnsemble.

The tables of a node's attributes become constants of the operator `ml.tree_ensemble`; base values,
transforms and labels are other operators. Comparisons are exact, sums have the order of the trees. A
binary classifier that has weights for one class only selects the second label for a score above 0.5, or
above 0 if some weight is negative, as ONNX Runtime does.

    OPS["TreeEnsembleRegressor"](x, node=node, ...)        # scores (rows, targets)
    OPS["TreeEnsembleClassifier"](x, node=node, ...)       # [labels (rows,), scores (rows, classes)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from aotc.ir import Array, frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.onnx.node import Converted, OnnxNode, Table, table_by_function_name
from aotc.relay.frontend.onnx.ops_classical_ml import (
    POST_TRANSFORMS,
    class_labels,
    feature_rows,
    labels_of_greatest_scores,
    require_attribute,
    require_known_attribute,
    scores_of_both_classes,
    transform_scores,
    with_string_labels,
)
from aotc.relay.frontend.onnx.tree_ensemble_tables import (
    MEMBER,
    MODES,
    InnerNodes,
    NodeOrder,
    normalize_modes,
    order_by_tree,
    values_at_branches,
)
from aotc.relay.op.tree_ensemble import AGGREGATES, node_number, pack_tree_nodes

#: Names of aggregate functions and transforms by their numbers in TreeEnsemble.
_AGGREGATES_BY_NUMBER: Final = ("AVERAGE", "SUM", "MIN", "MAX")
#: Number of the mode of leaves, beside the numbers of MODES.
_LEAF: Final = len(MODES)
#: Number of targets from which ensembles are refused: the groups of their trees are a table.
_MAX_TARGETS: Final = 1 << 24


@frozen(eq=False)
class _Forest:
    """The trees of a node, with branches as in `InnerNodes`, and the weights of their leaves.

    roots            the root of each tree, in the order of the sum
    weight_leaves    leaf of each weight
    weight_targets   target or class that it is added to
    weights          float32 or float64, as the thresholds
    leaf_count       number of leaves
    targets          number of targets or classes
    """

    nodes: InnerNodes
    roots: Array
    weight_leaves: Array
    weight_targets: Array
    weights: Array
    leaf_count: int
    targets: int

    @property
    def dtype(self) -> str:
        return str(self.weights.dtype)


def _ints(node: OnnxNode, name: str, count: int | None = None) -> Array:
    """Return an attribute of integers. Raises AotcError unless it has `count` values, if that is given."""
    values = np.asarray(node.attrs.get(name, ()), np.int64)
    require_attribute(count in (None, values.size), node, name, f"has {values.size} values; {count} are needed")
    return values


def _floats(node: OnnxNode, name: str) -> Array:
    """Return an attribute of floats, or its variant `name`_as_tensor; an empty vector without both."""
    tensor = node.attrs.get(f"{name}_as_tensor")
    require_attribute(not (tensor and node.attrs.get(name)), node, name, f"is given twice, also as {name}_as_tensor")
    values = np.asarray(node.attrs.get(name, ()), np.float32) if tensor is None else node.tensor(tensor).reshape(-1)
    known = str(values.dtype) in ("float16", "float32", "float64")
    require_attribute(known, node, name, f"must hold floats, got {values.dtype}")
    return values


def _require_range(values: Array, end: int, node: OnnxNode, attribute: str, meaning: str) -> None:
    """Raise AotcError unless all values of an attribute are from 0 to `end` - 1."""
    outside = np.flatnonzero((values < 0) | (values >= end))
    if outside.size:
        at = int(outside[0])
        require_attribute(
            False, node, attribute, f"names {meaning} {int(values[at])} at position {at}; there are {end}"
        )


def _wide_dtype(x: Expr, *arrays: Array) -> str:
    """Return the type in which features and thresholds are compared: float64 if one of them has it."""
    wide = any(str(a.dtype) == "float64" for a in arrays) or g.dtype(x) == "float64"
    return "float64" if wide else "float32"


# --- TreeEnsembleClassifier and TreeEnsembleRegressor


def _read_forest(x: Expr, node: OnnxNode, prefix: str, targets: int) -> tuple[_Forest, Callable[[int], str]]:
    """Return the trees of a TreeEnsembleClassifier (`prefix`: "class") or TreeEnsembleRegressor ("target"),
    and a function that names an inner node in messages.
    """
    ids = _ints(node, "nodes_nodeids")
    count = ids.size
    require_attribute(count > 0, node, "nodes_nodeids", "is missing: an ensemble needs nodes")
    trees, features, yes, no = (
        _ints(node, f"nodes_{name}", count) for name in ("treeids", "featureids", "truenodeids", "falsenodeids")
    )
    modes, thresholds = _read_modes(node, count), _floats(node, "nodes_values")
    text = f"has {thresholds.size} values; {count} are needed"
    require_attribute(thresholds.size == count, node, "nodes_values", text)
    nan_is_yes = _read_missing_value_tracks(node, count)
    position = _NodePositions(node, trees, ids)
    is_leaf = modes == _LEAF
    inner, leaves = np.flatnonzero(~is_leaf), np.flatnonzero(is_leaf)
    branch = np.empty(count, np.int64)
    branch[inner], branch[leaves] = np.arange(inner.size), -1 - np.arange(leaves.size)
    followers = [
        branch[position.find(trees[inner], targets_of[inner], f"nodes_{name}")]
        for name, targets_of in (("truenodeids", yes), ("falsenodeids", no))
    ]
    _require_range(features[inner], g.dim(x, 1), node, "nodes_featureids", "feature")

    weight_at, classes, weights = _read_weights(node, prefix, position, is_leaf, targets)
    dtype = np.dtype(_wide_dtype(x, thresholds, weights))
    nodes = InnerNodes(
        modes[inner], features[inner], thresholds[inner].astype(dtype), followers[0], followers[1], nan_is_yes[inner]
    )
    forest = _Forest(
        nodes,
        branch[position.roots(branch, followers)],
        -1 - branch[weight_at],
        classes,
        weights.astype(dtype),
        leaves.size,
        targets,
    )
    return forest, lambda k: position.label(int(inner[k]))


def _read_modes(node: OnnxNode, count: int) -> Array:
    """Return the numbers of the modes of nodes, `_LEAF` for leaves."""
    names = list(node.attrs.get("nodes_modes", ()))
    require_attribute(len(names) == count, node, "nodes_modes", f"has {len(names)} values; {count} are needed")
    known = (*MODES[:MEMBER], "LEAF")
    for name in sorted(set(names)):
        require_known_attribute(node, "nodes_modes", name, known)
    number_by_mode = dict(zip(known, (*range(MEMBER), _LEAF), strict=True))
    return np.array([number_by_mode[name] for name in names])


def _read_missing_value_tracks(node: OnnxNode, count: int) -> Array:
    """Return True for nodes at which NaN takes the branch of a true comparison."""
    name = "nodes_missing_value_tracks_true"
    values = _ints(node, name)
    require_attribute(values.size in (0, count), node, name, f"has {values.size} values; {count} are needed")
    return np.asarray(values == 1 if values.size else np.zeros(count, bool))


def _read_weights(
    node: OnnxNode, prefix: str, position: _NodePositions, is_leaf: Array, targets: int
) -> tuple[Array, Array, Array]:
    """Return the positions of the leaves that have weights, and the target and the value of each weight.

    Weights of inner nodes, which old converters wrote, are left out. Raises AotcError for a leaf without weights.
    """
    at = position.find(_ints(node, f"{prefix}_treeids"), _ints(node, f"{prefix}_nodeids"), f"{prefix}_nodeids")
    weights, classes = _floats(node, f"{prefix}_weights"), _ints(node, f"{prefix}_ids", at.size)
    text = f"has {weights.size} values; {at.size} are needed"
    require_attribute(weights.size == at.size, node, f"{prefix}_weights", text)
    _require_range(classes, targets, node, f"{prefix}_ids", prefix)
    bare = np.flatnonzero(is_leaf & (np.bincount(at, minlength=is_leaf.size) == 0))
    if bare.size:
        text = f"has no weight for the leaf {position.label(int(bare[0]))}"
        require_attribute(False, node, f"{prefix}_nodeids", text)
    kept = is_leaf[at]
    return at[kept], classes[kept], weights[kept]


class _NodePositions:
    """The positions of nodes in the attributes `nodes_*` by the numbers of their trees and their own."""

    def __init__(self, node: OnnxNode, trees: Array, ids: Array) -> None:
        self.node, self.trees, self.ids = node, trees, ids
        self.order = np.lexsort((ids, trees))
        self.keys = np.stack([trees, ids], 1)[self.order]
        same = np.flatnonzero((self.keys[1:] == self.keys[:-1]).all(1))
        if same.size:
            label = self.label(int(self.order[same[0]]))
            require_attribute(False, node, "nodes_nodeids", f"names the node {label} twice")
        # one number for both, for binary search
        self.tree_values, tree_rank = np.unique(trees, return_inverse=True)
        self.id_values, id_rank = np.unique(ids, return_inverse=True)
        self.sorted_codes = np.sort(tree_rank * len(self.id_values) + id_rank)

    def label(self, position: int) -> str:
        return f"{int(self.ids[position])} of tree {int(self.trees[position])}"

    def find(self, trees: Array, ids: Array, attribute: str) -> Array:
        """Return the positions of nodes. Raises AotcError for one that does not exist."""
        text = f"has {ids.size} values; {trees.size} are needed"
        require_attribute(trees.size == ids.size, self.node, attribute, text)
        tree_at = np.minimum(np.searchsorted(self.tree_values, trees), len(self.tree_values) - 1)
        id_at = np.minimum(np.searchsorted(self.id_values, ids), len(self.id_values) - 1)
        codes = tree_at * len(self.id_values) + id_at
        at = np.minimum(np.searchsorted(self.sorted_codes, codes), len(self.sorted_codes) - 1)
        exists = (
            (self.tree_values[tree_at] == trees) & (self.id_values[id_at] == ids) & (self.sorted_codes[at] == codes)
        )
        absent = np.flatnonzero(~exists)
        if absent.size:
            k = int(absent[0])
            text = f"names the node {int(ids[k])} of tree {int(trees[k])}, which does not exist"
            require_attribute(False, self.node, attribute, text)
        return self.order[at]

    def roots(self, branch: Array, followers: Sequence[Array]) -> Array:
        """Return the position of each tree's first node, which is its root. Raises AotcError if a branch
        leads to it.
        """
        _, first = np.unique(self.trees, return_index=True)
        roots = np.sort(first)
        led_to = np.flatnonzero(np.isin(branch[roots], np.concatenate(followers)))
        if led_to.size:
            label = self.label(int(roots[led_to[0]]))
            text = f"have a branch that leads to the first node of a tree, {label}, which is its root"
            require_attribute(False, self.node, "nodes_truenodeids, nodes_falsenodeids", text)
        return roots


# --- calls of the operator


def _call_tree_ensemble(
    x: Expr, forest: _Forest, node_label: Callable[[int], str], aggregate: str, members: Sequence[Array] = ()
) -> Expr:
    """Return the sums (minima, maxima) of the weights that each row reaches, (rows, targets), in the type of
    the weights.
    """
    nodes = normalize_modes(forest.nodes, members)
    original = len(forest.nodes.features)
    order = order_by_tree(nodes, forest.roots, lambda k: node_label(k) if k < original else "of a set")
    values, groups, tree_order, width = _leaf_values(forest, nodes, order, aggregate)
    place_of_inner, place_of_leaf = (np.zeros(n, np.int64) for n in (len(nodes.features), forest.leaf_count))
    place_of_inner[order.inner] = np.arange(order.inner.size)
    place_of_leaf[order.leaves] = order.inner.size + np.arange(order.leaves.size)

    def places(branches: Array) -> Array:
        return values_at_branches(branches, place_of_inner, place_of_leaf)

    flags = nodes.nan_is_yes[order.inner]
    table = pack_tree_nodes(
        nodes.features[order.inner],
        nodes.thresholds[order.inner],
        places(nodes.yes[order.inner]),
        places(nodes.no[order.inner]),
        flags,
        order.leaves.size,
    )
    roots = node_number(places(forest.roots[tree_order]), order.inner.size)
    require("onnx-tree", int(np.abs(table[:, 2:]).max(initial=0)) < 1 << 31, "the ensemble has too many nodes")
    result = g.call_op(
        "ml.tree_ensemble",
        g.cast(x, forest.dtype),
        g.constant(table),
        g.constant(roots.astype(np.int32)),
        g.constant(groups.astype(np.int32)),
        g.constant(values if width > 1 else values.reshape(-1)),
        depth=order.depth,
        aggregate=aggregate,
        missing="no" if not flags.any() else "yes" if flags.all() else "node",
    )
    if aggregate == "sum":
        return result
    # a target that no leaf gives a weight is 0
    return g.where(g.equal(result, AGGREGATES[aggregate][1]), 0.0, result)


def _leaf_values(
    forest: _Forest, nodes: InnerNodes, order: NodeOrder, aggregate: str
) -> tuple[Array, Array, Array, int]:
    """Return the values of leaves, (leaves, width) in the order of `order`, the ends of the groups of trees, the
    order of the trees, and the width.

    If each tree gives weights to one target only, the trees are grouped by targets, and the width is 1.
    """
    neutral = AGGREGATES[aggregate][1]
    require(
        "onnx-tree", forest.targets < _MAX_TARGETS, f"the ensemble has {forest.targets} targets, which are too many"
    )
    single = forest.weight_leaves.size == forest.leaf_count == np.unique(forest.weight_leaves).size
    if single:
        target_of_leaf = np.zeros(forest.leaf_count, np.int64)
        target_of_leaf[forest.weight_leaves] = forest.weight_targets
        target_of_tree = _common_target_of_trees(forest, nodes, target_of_leaf)
        if target_of_tree is not None:
            column = np.zeros(forest.leaf_count, forest.weights.dtype)
            column[forest.weight_leaves] = forest.weights
            ends = np.searchsorted(np.sort(target_of_tree), np.arange(forest.targets + 1))
            return column[order.leaves, None], ends, np.argsort(target_of_tree, kind="stable"), 1
    size = forest.leaf_count * forest.targets
    require("onnx-tree", size < 1 << 31, f"{forest.leaf_count} leaves with {forest.targets} targets are too many")
    table = np.full((forest.leaf_count, forest.targets), neutral, forest.weights.dtype)
    table[forest.weight_leaves, forest.weight_targets] = forest.weights
    count = len(forest.roots)
    return table[order.leaves], np.array([0, count]), np.arange(count), forest.targets


def _common_target_of_trees(forest: _Forest, nodes: InnerNodes, target_of_leaf: Array) -> Array | None:
    """Return the target that all leaves of each tree have, or None if the leaves of a tree differ."""
    if forest.targets == 1:
        return np.zeros(len(forest.roots), np.int64)
    # nodes take the target of a branch until nothing changes: parents are visited after children
    target_of_inner = np.full(len(nodes.features), -1)
    while True:
        found = [values_at_branches(b, target_of_inner, target_of_leaf) for b in (nodes.yes, nodes.no)]
        known = (found[0] >= 0) & (found[1] >= 0) & (target_of_inner == -1)
        if not known.any():
            break
        # -2: the branches differ
        target_of_inner[known] = np.where(found[0] == found[1], found[0], -2)[known]
    result = values_at_branches(forest.roots, target_of_inner, target_of_leaf)
    return result if (result >= 0).all() else None


def _check_repeated_weights(forest: _Forest, node: OnnxNode, attribute: str) -> None:
    """Raise AotcError if a leaf has two weights for one target."""
    codes = forest.weight_leaves * forest.targets + forest.weight_targets
    repeated = np.unique(codes).size != codes.size
    require_attribute(not repeated, node, attribute, "gives a leaf two weights for one target")


def _base_values(node: OnnxNode, counts: Sequence[int], dtype: str) -> Array | None:
    values = _floats(node, "base_values")
    expected = " or ".join(map(str, counts))
    fits = values.size in (0, *counts)
    require_attribute(fits, node, "base_values", f"has {values.size} values; {expected} are needed")
    return values.astype(dtype) if values.size else None


def _add_base(scores: Expr, base: Array | None) -> Expr:
    return scores if base is None else g.add(scores, g.constant(base))


# --- converters


def _regression_scores(
    x: Expr, forest: _Forest, node_label: Callable[[int], str], aggregate: str, members: Sequence[Array] = ()
) -> Expr:
    kind = "sum" if aggregate == "AVERAGE" else aggregate.lower()
    scores = _call_tree_ensemble(x, forest, node_label, kind, members)
    return g.div(scores, float(len(forest.roots))) if aggregate == "AVERAGE" else scores


def _tree_ensemble_regressor(x: Expr, *, aggregate_function: str, post_transform: str, node: OnnxNode) -> Expr:
    require_known_attribute(node, "aggregate_function", aggregate_function, _AGGREGATES_BY_NUMBER)
    require_known_attribute(node, "post_transform", post_transform, POST_TRANSFORMS)
    targets = int(node.attrs.get("n_targets", 0))
    require_attribute(targets > 0, node, "n_targets", f"is {targets}; at least 1 is needed")
    rows = feature_rows(x, node)
    forest, node_label = _read_forest(rows, node, "target", targets)
    _check_repeated_weights(forest, node, "target_ids")
    scores = _regression_scores(rows, forest, node_label, aggregate_function)
    scores = _add_base(scores, _base_values(node, (targets,), forest.dtype))
    return g.cast(transform_scores(scores, post_transform), "float32")


def _tree_ensemble_classifier(x: Expr, *, post_transform: str, node: OnnxNode) -> Converted:
    require_known_attribute(node, "post_transform", post_transform, POST_TRANSFORMS)
    labels = class_labels(node, "classlabels_int64s")
    require_attribute(len(labels) > 1, node, "classlabels_int64s", "has 1 label; a classifier needs at least 2")
    rows = feature_rows(x, node)
    forest, node_label = _read_forest(rows, node, "class", len(labels))
    _check_repeated_weights(forest, node, "class_ids")
    # with two base values, the scores of both classes are given
    if len(labels) == 2 and np.unique(forest.weight_targets).size == 1 and _floats(node, "base_values").size != 2:
        label, scores = _binary_classifier(rows, forest, node_label, labels, post_transform, node)
    else:
        base = _base_values(node, (len(labels),), forest.dtype)
        scores = _add_base(_call_tree_ensemble(rows, forest, node_label, "sum"), base)
        candidates = scores
        if base is None:
            candidates = _scores_of_reached_classes(rows, forest, node_label, scores)
        label, scores = labels_of_greatest_scores(candidates, labels), transform_scores(scores, post_transform)
    return [label, g.cast(scores, "float32")]


def _binary_classifier(
    rows: Expr, forest: _Forest, node_label: Callable[[int], str], labels: Array, post_transform: str, node: OnnxNode
) -> tuple[Expr, Expr]:
    """Return the labels and the scores of both classes from trees with weights for one class only, whose sum
    is the score of the second label.
    """
    position = int(forest.weight_targets[0])
    # which score one base value belongs to is clear only if the trees give weights to the first class
    base = _base_values(node, (2,) if position else (1, 2), forest.dtype)
    single = replace(forest, weight_targets=np.zeros_like(forest.weight_targets), targets=1)
    score = _call_tree_ensemble(rows, single, node_label, "sum")
    if base is not None:
        score = g.add(score, g.constant(base[0]))
    negative = bool((forest.weights < 0).any())
    wins = g.greater(g.reshape(score, (g.dim(score, 0),)), 0.0 if negative else 0.5)
    label = g.where(wins, g.constant(labels[1], "int64"), g.constant(labels[0], "int64"))
    if position == 0:
        return label, scores_of_both_classes(score, post_transform, negative, node)
    both = g.concat([g.full(0.0, g.shape(score), forest.dtype), score], 1)
    return label, transform_scores(both, post_transform)


def _scores_of_reached_classes(rows: Expr, forest: _Forest, node_label: Callable[[int], str], scores: Expr) -> Expr:
    """Return the scores, with -infinity for classes to which no leaf that a row reaches gives a weight."""
    # a class without weights has the score 0, which is at most that of a class whose weights are positive
    is_full = forest.weight_leaves.size == forest.leaf_count * forest.targets
    if is_full or (forest.weights > 0).all():
        return scores
    count = _call_tree_ensemble(rows, replace(forest, weights=np.ones_like(forest.weights)), node_label, "sum")
    return g.where(g.greater(count, 0.0), scores, float("-inf"))


def _tree_ensemble(
    x: Expr, *, aggregate_function: int, post_transform: int, n_targets: int = 1, node: OnnxNode
) -> Expr:
    for name, value, known in (
        ("aggregate_function", aggregate_function, _AGGREGATES_BY_NUMBER),
        ("post_transform", post_transform, POST_TRANSFORMS),
    ):
        require_attribute(0 <= value < len(known), node, name, f"is {value}; it must be from 0 to {len(known) - 1}")
    require_attribute(n_targets > 0, node, "n_targets", f"is {n_targets}; at least 1 is needed")
    dtype = str(g.dtype(x))
    rows = feature_rows(x, node)
    forest, members = _read_joint_forest(rows, node, n_targets)
    scores = _regression_scores(rows, forest, str, _AGGREGATES_BY_NUMBER[aggregate_function], members)
    return g.cast(transform_scores(scores, POST_TRANSFORMS[post_transform]), dtype)


def _read_joint_forest(x: Expr, node: OnnxNode, targets: int) -> tuple[_Forest, list[Array]]:
    """Return the trees of a TreeEnsemble, and the sets of its nodes that test membership."""
    features = _ints(node, "nodes_featureids")
    count = features.size
    modes = np.asarray(node.tensor(node.attrs["nodes_modes"])).reshape(-1).astype(np.int64)
    thresholds = node.tensor(node.attrs["nodes_splits"]).reshape(-1)
    weights = node.tensor(node.attrs["leaf_weights"]).reshape(-1)
    for name, values in (("nodes_modes", modes), ("nodes_splits", thresholds)):
        require_attribute(values.size == count > 0, node, name, f"has {values.size} values; {count} are needed")
    _require_range(modes, len(MODES), node, "nodes_modes", "mode")
    _require_range(features, g.dim(x, 1), node, "nodes_featureids", "feature")
    weight_targets = _ints(node, "leaf_targetids", weights.size)
    _require_range(weight_targets, targets, node, "leaf_targetids", "target")
    branches = []
    for kind in ("true", "false"):
        at, is_leaf = _ints(node, f"nodes_{kind}nodeids", count), _ints(node, f"nodes_{kind}leafs", count) != 0
        _require_range(at[is_leaf], weights.size, node, f"nodes_{kind}nodeids", "leaf")
        _require_range(at[~is_leaf], count, node, f"nodes_{kind}nodeids", "node")
        branches.append(np.where(is_leaf, -1 - at, at))
    roots = _ints(node, "tree_roots")
    require_attribute(roots.size > 0, node, "tree_roots", "is empty: an ensemble needs a tree")
    _require_range(roots, count, node, "tree_roots", "node")
    dtype = np.dtype(_wide_dtype(x, thresholds, weights))
    flags = _read_missing_value_tracks(node, count)
    nodes = InnerNodes(modes, features, thresholds.astype(dtype), branches[0], branches[1], flags)
    sets = _membership_sets(node, int((modes == MEMBER).sum()))
    forest = _Forest(
        nodes, roots, np.arange(weights.size), weight_targets, weights.astype(dtype), weights.size, targets
    )
    return forest, sets


def _membership_sets(node: OnnxNode, count: int) -> list[Array]:
    """Return the sets of `membership_values`, each of which NaN ends, in the order of the nodes."""
    tensor = node.attrs.get("membership_values")
    values = np.empty(0, np.float32) if tensor is None else node.tensor(tensor).reshape(-1)
    ends = np.flatnonzero(values != values)
    text = f"has {ends.size} sets, each ended by NaN, for {count} nodes of mode BRANCH_MEMBER"
    complete = ends.size == count and (not values.size or bool(values[-1] != values[-1]))
    require_attribute(complete, node, "membership_values", text)
    return np.split(values, ends + 1)[:count]


OPS: Table = {
    **table_by_function_name(_tree_ensemble, _tree_ensemble_regressor),
    "TreeEnsembleClassifier": with_string_labels(_tree_ensemble_classifier),
}
