# SPDX-License-Identifier: Apache-2.0
"""Ensembles of decision trees as narrow tables, for machines with little memory.

nodes = features, thresholds, branches, roots                          # 7 bytes for a node that compares int16
compact_tree_ensemble(data, *nodes, groups, values, depth=6)           # (rows, features) -> (rows, targets)
tree_votes(data, *nodes, depth=6, leaves=10)                           # (rows, features) -> (rows, 10), int32
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, DType, PrecisionTreatment, TensorType, Type, Types, declare_arguments, require
from aotc.relay.op.opdef import Accuracy, Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import random_array, require_known_name, require_tensor_of_rank
from aotc.relay.op.tree_ensemble import AGGREGATES, aggregate_leaf_values
from aotc.tir import INDEX, Block, Buffer, Declare, For, Load, Stmt, Store, Tensor, Var, te
from aotc.tir.expr import binary, call, const, maximum, minimum
from aotc.tir.stmt import Assign, While, forall

#: Types of the numbers in tables. They are read as int32.
_INDEX_DTYPES: Final = ("uint8", "uint16", "int32")
_DATA_DTYPES: Final = ("int8", "uint8", "int16", "uint16", "int32", "float32", "float64")


class CompactTreesAttrs(Attrs):
    """The sum (minimum, maximum) of the values of the leaves that each row of `data` (N, F) reaches.

    Inner node k takes the branch branches[k, 1] if the feature features[k] of the row is at most thresholds[k],
    whose type is that of the data, and branches[k, 0] otherwise. Branches are numbers of nodes: those of the inner
    nodes come first, then those of the leaves. `roots` (T,) are the trees' first nodes. Trees
    groups[g] to groups[g + 1] - 1 give the columns of group g: one with `values` (leaves,), D with `values`
    (leaves, D). The result is (N, groups * D) in the type of the values, accumulated in the order of the trees.
    Numbers of nodes, trees and features that are outside of the tables are clipped to them.

    depth       largest number of inner nodes from a root to a leaf
    aggregate   "sum", "min" or "max"
    missing     branch of NaN: "no", "yes", or "node" if features[k] is twice the feature, plus 1 if NaN takes "yes"
    """

    depth: int
    aggregate: str = "sum"
    missing: str = "no"


class TreeVotesAttrs(Attrs):
    """The number of trees of which each row of `data` (N, F) reaches each leaf, as int32 (N, leaves).

    The tables are those of `compact_tree_ensemble`. Trees share their leaves, one for each class.

    depth       largest number of inner nodes from a root to a leaf
    leaves      number of leaves
    missing     branch of NaN, as in `compact_tree_ensemble`
    """

    depth: int
    leaves: int
    missing: str = "no"


_Attrs = CompactTreesAttrs | TreeVotesAttrs


def _require_tables(a: _Attrs, types: Types) -> TensorType:
    """Return the type of the data. Raises AotcError for tables that do not fit together."""
    data = require_tensor_of_rank("tree_ensemble.data", types[0], 2)
    known = data.dtype in _DATA_DTYPES and data.shape[1] != 0
    require("tree_ensemble.data", known, lambda: f"rows must have features of {', '.join(_DATA_DTYPES)}, got {data}")
    ranks = (("features", 1), ("thresholds", 1), ("branches", 2), ("roots", 1))
    tables = [
        require_tensor_of_rank("tree_ensemble.tables", ty, rank, name)
        for ty, (name, rank) in zip(types[1:5], ranks, strict=True)
    ]
    features, thresholds, branches, roots = tables
    fits = (
        all(table.is_static for table in tables)
        and features.shape == thresholds.shape == branches.shape[:1]
        and branches.shape[1] == 2
        and thresholds.dtype == data.dtype
        and all(table.dtype in _INDEX_DTYPES for table in (features, branches, roots))
    )
    require("tree_ensemble.tables", fits, lambda: f"{', '.join(map(str, tables))} are not valid tables of nodes")
    require("tree_ensemble.attrs", a.depth >= 0, f"depth is {a.depth}")
    require_known_name("tree_ensemble.attrs", "missing", a.missing, ("no", "yes", "node"))
    return data


def _infer_compact_trees_type(a: CompactTreesAttrs, types: Types) -> Type:
    data = _require_tables(a, types)
    require_known_name("tree_ensemble.attrs", "aggregate", a.aggregate, AGGREGATES)
    groups, values = types[5], types[6]
    fits = (
        isinstance(groups, TensorType)
        and isinstance(values, TensorType)
        and groups.is_static
        and values.is_static
        and groups.dtype in _INDEX_DTYPES
        and groups.rank == 1
        and groups.static_shape > (0,)
        and values.rank in (1, 2)
        and 0 not in values.static_shape
        and values.dtype in ("float32", "float64")
    )
    require("tree_ensemble.tables", fits, lambda: f"{groups} and {values} are not valid groups and values of leaves")
    assert isinstance(groups, TensorType) and isinstance(values, TensorType)
    width = values.static_shape[1] if values.rank == 2 else 1
    return TensorType((data.shape[0], (groups.static_shape[0] - 1) * width), values.dtype)


def _infer_tree_votes_type(a: TreeVotesAttrs, types: Types) -> Type:
    data = _require_tables(a, types)
    require("tree_ensemble.attrs", a.leaves > 0, f"leaves is {a.leaves}")
    return TensorType((data.shape[0], a.leaves), "int32")


def _reached_leaves(a: _Attrs, leaves: int, data: Array, *tables: Array) -> Array:
    """Return the number of the leaf that each row reaches in each tree, (rows, trees)."""
    words, thresholds, branches, roots = tables
    inner, rows = len(words), np.arange(len(data))
    features = words.astype(np.int64) >> (a.missing == "node")
    nan_is_yes = (words & 1) == 1 if a.missing == "node" else np.full(inner, a.missing == "yes")
    found = np.empty((len(data), len(roots)), np.int64)
    for tree, root in enumerate(roots):
        at = np.full(len(data), max(root, 0), np.int64)
        for _ in range(a.depth if inner else 0):
            record = np.minimum(at, inner - 1)
            x = data[rows, np.clip(features[record], 0, data.shape[1] - 1)]
            yes = (x <= thresholds[record]) | ((x != x) & nan_is_yes[record])
            at = np.where(at < inner, np.maximum(branches[record, yes.astype(int)], 0), at)
        found[:, tree] = np.clip(at - inner, 0, leaves - 1)
    return found


def _compact_trees_reference(a: CompactTreesAttrs, data: Array, *tables: Array) -> Array:
    *nodes, groups, values = tables
    return aggregate_leaf_values(a.aggregate, _reached_leaves(a, len(values), data, *nodes), groups, values)


def _tree_votes_reference(a: TreeVotesAttrs, data: Array, *nodes: Array) -> Array:
    leaves = _reached_leaves(a, a.leaves, data, *nodes)
    return np.asarray((leaves[:, :, None] == np.arange(a.leaves)).sum(1), np.int32)


class _Descent:
    """Builds the loop that descends one tree for one row, with numbers of 32 bits."""

    def __init__(self, a: _Attrs, tensors: Sequence[Tensor], leaves: int) -> None:
        data, features, _, _, roots = tensors
        self.attrs, self.leaves = a, leaves
        self.rows, self.width = data.shape
        self.inner, self.trees = features.shape[0], roots.shape[0]
        self.has_nan = str(data.dtype).startswith("float")

    def bind(self, buffers: Sequence[Buffer]) -> None:
        """Take the buffers of the data and the four tables."""
        self.data, self.features, self.thresholds, self.branches, self.roots = buffers

    def find_leaf(self, row: Scalar, tree: Scalar) -> tuple[list[Stmt], Scalar]:
        """Return statements that find the leaf of a tree that a row reaches, and its number."""
        node, step = Var("node", DType("int32")), Var("step", DType("int32"))
        stmts: list[Stmt] = [Declare(node, self._clipped_node(Load(self.roots, tree)))]
        if self.inner:
            going = (node < self.inner) & (step < self.attrs.depth)
            following = Load(
                self.branches, node.astype(INDEX) * 2 + self._is_yes(row, node.astype(INDEX)).astype(INDEX)
            )
            body = Block((Assign(node, self._clipped_node(following)), Assign(step, step + 1)))
            stmts += [Declare(step, const(0, "int32")), While(going, body)]
        leaf = Var("leaf")
        stmts.append(Declare(leaf, minimum(maximum(node - self.inner, 0), self.leaves - 1).astype(INDEX)))
        return stmts, leaf

    def _is_yes(self, row: Scalar, node: Scalar) -> Scalar:
        word = Load(self.features, node).astype("int32")
        by_node = self.attrs.missing == "node"
        feature = binary("shr", word, const(1, "int32")) if by_node else word
        at = row * self.width + minimum(maximum(feature, 0), self.width - 1).astype(INDEX)
        x = Load(self.data, at)
        yes: Scalar = x <= Load(self.thresholds, node)
        if not self.has_nan or self.attrs.missing == "no":
            return yes
        flag = binary("and", word, const(1, "int32")).equal(1)
        return yes | (call("isnan", x) & flag if by_node else call("isnan", x))

    def _clipped_node(self, number: Scalar) -> Scalar:
        return maximum(number.astype("int32"), 0)


def _compute_compact_trees(a: CompactTreesAttrs, *tensors: Tensor) -> Tensor:
    *nodes, groups, values = tensors
    width = values.shape[1] if values.rank == 2 else 1
    count = groups.shape[0] - 1
    columns = count * width
    descent = _Descent(a, nodes, values.shape[0])
    operation, neutral = AGGREGATES[a.aggregate]

    def build(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        *tables, ends, table = inputs
        (out,) = outputs
        descent.bind(tables)
        row, group, tree, column, start = Var("row"), Var("g"), Var("t"), Var("c"), Var("s")
        stmts, leaf = descent.find_leaf(row, tree)
        at = row * columns + group * width + column
        value = binary(operation, Load(out, at), Load(table, leaf * width + column))
        bounds = [minimum(maximum(Load(ends, group + k).astype(INDEX), 0), descent.trees) for k in (0, 1)]
        begin, end = Var("first"), Var("last")
        trees = For(tree, end, Block((*stmts, forall(column, width, Store(out, at, value)))), begin=begin)
        body = Block((Declare(begin, bounds[0]), Declare(end, bounds[1]), trees))
        clear = forall(start, columns, Store(out, row * columns + start, const(neutral, str(values.dtype))))
        return forall(row, descent.rows, Block((clear, For(group, count, body))))

    return te.extern("trees", [((tensors[0].shape[0], columns), values.dtype)], tensors, build)[0]


def _compute_tree_votes(a: TreeVotesAttrs, *tensors: Tensor) -> Tensor:
    descent = _Descent(a, tensors, a.leaves)

    def build(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        (out,) = outputs
        descent.bind(inputs)
        row, tree, start = Var("row"), Var("t"), Var("s")
        stmts, leaf = descent.find_leaf(row, tree)
        at = row * a.leaves + leaf
        vote = Store(out, at, Load(out, at) + 1)
        clear = forall(start, a.leaves, Store(out, row * a.leaves + start, const(0, "int32")))
        return forall(row, descent.rows, Block((clear, For(tree, descent.trees, Block((*stmts, vote))))))

    return te.extern("votes", [((tensors[0].shape[0], a.leaves), "int32")], tensors, build)[0]


def narrow_numbers(numbers: Array) -> Array:
    """Return numbers that are not negative in the narrowest type that tables may have."""
    largest = int(numbers.max(initial=0))
    dtype = next(dtype for dtype in _INDEX_DTYPES if largest <= np.iinfo(dtype).max)
    return np.ascontiguousarray(numbers.astype(dtype))


def _random_tables(data: Array, trees: int, leaves: int, by_node: bool) -> tuple[Array, ...]:
    """Return random tables of four inner nodes for each tree, at most three on a path."""
    rng = np.random.default_rng(trees)
    inner = 4 * trees
    first = np.arange(0, inner, 4)
    branches = rng.integers(inner, inner + leaves, (inner, 2))
    branches[first] = np.stack([first + 1, first + 2], 1)
    branches[first + 2, 0] = first + 3
    words = rng.integers(0, data.shape[1] << by_node, inner)
    thresholds = rng.choice(data[np.isfinite(data)], inner).astype(data.dtype)
    return narrow_numbers(words), thresholds, narrow_numbers(branches), narrow_numbers(first)


def _random_rows(rows: int, dtype: str) -> Array:
    data = random_array((rows, 3), "float32") * 20
    if dtype.startswith("float"):
        data[rows // 2, 1] = np.nan
    return np.asarray(np.abs(data) if dtype.startswith("u") else data).astype(dtype)


def _compact_trees_test_samples() -> Samples:
    cases: Any = (
        (1, 3, 1, "int16", "sum", "no"), (5, 70, 2, "float32", "sum", "yes"), (4, 3, 1, "float32", "max", "node"),
        (3, 2, 3, "uint8", "min", "no"), (2, 3, 2, "float64", "sum", "no"),
    )  # fmt: skip
    for rows, trees, width, dtype, aggregate, missing in cases:
        data = _random_rows(rows, dtype)
        values = random_array((6, width), "float64" if dtype == "float64" else "float32")
        groups = [0, trees // 2, trees] if width == 1 else [0, trees]
        nodes = _random_tables(data, trees, len(values), missing == "node")
        args = (data, *nodes, narrow_numbers(np.array(groups)), values[:, 0] if width == 1 else values)
        a = CompactTreesAttrs(depth=3, aggregate=aggregate, missing=missing)
        yield Sample(args=args, attrs=a, accuracy=Accuracy.EXACT)


def _tree_votes_test_samples() -> Samples:
    for rows, trees, dtype, missing in ((1, 5, "int8", "no"), (3, 80, "float32", "node"), (2, 3, "uint16", "no")):
        data = _random_rows(rows, dtype)
        nodes = _random_tables(data, trees, 4, missing == "node")
        yield Sample(args=(data, *nodes), attrs=TreeVotesAttrs(depth=3, leaves=4, missing=missing))


_NODE_ARGUMENTS: Final = ("data", "features", "thresholds", "branches", "roots")

compact_tree_ensemble = OpDef(
    name="ml.compact_tree_ensemble",
    attrs=CompactTreesAttrs,
    args=declare_arguments(*_NODE_ARGUMENTS, "groups", "values"),
    infer=_infer_compact_trees_type,
    reference=_compact_trees_reference,
    axes=lambda _, __: AxisMap(((0, None), *((None, None),) * 6)),
    compute=_compute_compact_trees,
    precision=PrecisionTreatment.NEVER,
    samples=_compact_trees_test_samples,
)

tree_votes = OpDef(
    name="ml.tree_votes",
    attrs=TreeVotesAttrs,
    args=declare_arguments(*_NODE_ARGUMENTS),
    infer=_infer_tree_votes_type,
    reference=_tree_votes_reference,
    axes=lambda _, __: AxisMap(((0, None), *((None, None),) * 4)),
    compute=_compute_tree_votes,
    precision=PrecisionTreatment.NEVER,
    samples=_tree_votes_test_samples,
)
