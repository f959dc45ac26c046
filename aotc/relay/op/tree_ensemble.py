# SPDX-License-Identifier: Apache-2.0
"""Ensembles of decision trees, as tables of nodes that loops descend.

nodes = pack_tree_nodes(features, thresholds, yes, no, nan_is_yes, leaf_count)
tree_ensemble(data, nodes, roots, groups, values, depth=6)     # (rows, features) -> (rows, targets)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, PrecisionTreatment, TensorType, Type, Types, declare_arguments, require
from aotc.relay.op.opdef import Accuracy, Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import (
    may_be_equal_dims,
    random_array,
    require_dtype,
    require_known_name,
    require_tensor_of_rank,
)
from aotc.tir import INDEX, Block, Buffer, Declare, For, If, Load, Stmt, Store, Target, Tensor, Var, te
from aotc.tir.expr import binary, bitcast, call, const, maximum, minimum
from aotc.tir.stmt import Assign, While, forall

#: Words of a node's record: the feature (doubled, plus 1 if NaN follows the branch "yes"), the bits of the
#: threshold, the node of the branch "yes", and the node of the branch "no".
WORDS_PER_NODE: Final = 4
_FEATURE, _THRESHOLD, _YES = 0, 1, 2
#: Data type of the words of nodes by the data type of the features.
NODE_DTYPES: Final = {"float32": "int32", "float64": "int64"}
#: Trees or rows that are descended side by side: the processor works on one while another waits for memory.
_LANES: Final = 8
#: Blocks of rows that visit one tree in succession, while it is in the L1 cache.
_BLOCKS_PER_CHUNK: Final = 16
#: For each aggregate, the operation of tensor programs and the result of no leaves.
AGGREGATES: Final[dict[str, tuple[str, float]]] = {"sum": ("add", 0.0), "min": ("min", np.inf), "max": ("max", -np.inf)}


class TreeEnsembleAttrs(Attrs):
    """The sum (minimum, maximum) of the values of the leaves that each row of `data` (N, F) reaches.

    Trees are tables of `pack_tree_nodes`. At an inner node, a row takes the branch "yes" if its feature
    is at most the threshold. The number of an inner node is negative, -4 for the last one of the table,
    and that of leaf l is 4 * l. `roots` (T,) are the trees' first nodes. Trees groups[g] to groups[g + 1]
    - 1 give the columns of group g: one with `values` (leaves,), D with `values` (leaves, D). The result
    is (N, groups * D), accumulated in the order of the trees. Numbers of nodes, trees and features that are
    outside of the tables are clipped to them.

    aggregate   "sum", "min" or "max"
    missing     branch of NaN: "no", "yes", or "node" as each node says
    depth       largest number of inner nodes from a root to a leaf
    """

    depth: int
    aggregate: str = "sum"
    missing: str = "node"


def pack_tree_nodes(
    features: Array, thresholds: Array, yes: Array, no: Array, nan_is_yes: Array, leaf_count: int
) -> Array:
    """Return the table of nodes (inner nodes + leaves, 4) of `ml.tree_ensemble`.

    features     feature of each inner node, from 0
    thresholds   float32 or float64; its type is that of the data
    yes, no      nodes that follow: k for inner node k, inner nodes + l for leaf l
    nan_is_yes   True if NaN follows the branch "yes"
    """
    inner = len(features)
    table = np.zeros((inner + leaf_count, WORDS_PER_NODE), NODE_DTYPES[str(thresholds.dtype)])
    table[:inner, _FEATURE] = features * 2 + nan_is_yes
    table[:inner, _THRESHOLD] = np.ascontiguousarray(thresholds).view(table.dtype)
    for column, target in ((_YES, yes), (_YES + 1, no)):
        table[:inner, column] = node_number(target, inner)
        # a leaf leads to itself
        table[inner:, column] = node_number(inner + np.arange(leaf_count), inner)
    return table


def node_number(position: Array, inner_count: int) -> Array:
    """Return the numbers of nodes from their positions in a table with `inner_count` inner nodes."""
    return np.asarray(WORDS_PER_NODE * (position - inner_count))


def _static_shape(table: TensorType) -> tuple[int, ...]:
    require("tree_ensemble.tables", table.is_static, lambda: f"the sizes of tables of trees must be known, got {table}")
    return table.static_shape


def _infer_tree_ensemble_type(a: TreeEnsembleAttrs, types: Types) -> Type:
    data = require_tensor_of_rank("tree_ensemble.data", types[0], 2)
    require_dtype(data.dtype, str(data.dtype) in NODE_DTYPES)
    nodes = require_tensor_of_rank("tree_ensemble.tables", types[1], 2, "nodes")
    roots, groups = (
        require_tensor_of_rank("tree_ensemble.tables", ty, 1, name)
        for ty, name in zip(types[2:4], ("roots", "groups"), strict=True)
    )
    values = types[4]
    is_table = isinstance(values, TensorType) and values.rank in (1, 2)
    require("tree_ensemble.tables", is_table, lambda: f"values must be a vector or a matrix, got {values}")
    assert isinstance(values, TensorType)
    require_known_name("tree_ensemble.attrs", "aggregate", a.aggregate, AGGREGATES)
    require_known_name("tree_ensemble.attrs", "missing", a.missing, ("no", "yes", "node"))
    word = NODE_DTYPES[str(data.dtype)]
    fits = nodes.dtype == word and may_be_equal_dims(nodes.shape[1], WORDS_PER_NODE)
    require("tree_ensemble.tables", fits, lambda: f"nodes must be {word} of shape (nodes, 4), got {nodes}")
    numbers = roots.dtype == "int32" and groups.dtype == "int32"
    require("tree_ensemble.tables", numbers, lambda: f"roots and groups must be int32, got {roots} and {groups}")
    require("tree_ensemble.tables", values.dtype == data.dtype, lambda: f"values must be {data.dtype}, got {values}")
    (all_nodes, _), (leaves, *widths), group_ends = map(_static_shape, (nodes, values, groups))
    text = f"{all_nodes} nodes with {leaves} leaves and {group_ends} ends of groups are no ensemble"
    require("tree_ensemble.tables", all_nodes >= leaves > 0 and group_ends > (0,) and 0 not in widths, text)
    require("tree_ensemble.data", data.shape[1] != 0, f"rows have no features: {data}")
    require("tree_ensemble.attrs", a.depth >= 0, f"depth is {a.depth}")
    return TensorType((data.shape[0], (group_ends[0] - 1) * sum(widths or [1])), data.dtype)


def _reached_leaves(a: TreeEnsembleAttrs, leaf_count: int, data: Array, nodes: Array, roots: Array) -> Array:
    """Return the number of the leaf that each row reaches in each tree, (rows, trees)."""
    inner, last = len(nodes) - leaf_count, data.shape[1] - 1
    rows, thresholds = np.arange(len(data)), np.ascontiguousarray(nodes[:, _THRESHOLD]).view(data.dtype)
    reached = np.empty((len(data), len(roots)), np.int64)
    for tree, root in enumerate(roots):
        at = np.full(len(data), root, np.int64)
        for _ in range(a.depth):
            record = np.clip(at // WORDS_PER_NODE + inner, 0, len(nodes) - 1)
            word = nodes[record, _FEATURE].astype(np.int64)
            x = data[rows, np.clip(word // 2, 0, last)]
            nan_is_yes = {"no": np.False_, "yes": np.True_, "node": word % 2 == 1}[a.missing]
            yes = (x <= thresholds[record]) | (np.isnan(x) & nan_is_yes)
            at = np.where(at < 0, nodes[record, np.where(yes, _YES, _YES + 1)], at)
        reached[:, tree] = np.clip(at // WORDS_PER_NODE, 0, leaf_count - 1)
    return reached


def aggregate_leaf_values(aggregate: str, reached: Array, groups: Array, values: Array) -> Array:
    """Return the sums, minima or maxima of the values of leaves over the trees of each group, in their order.

    aggregate    "sum", "min" or "max"
    reached      number of the leaf that each row reaches in each tree, (rows, trees)
    groups       group g consists of the trees groups[g] to groups[g + 1] - 1, as far as they exist
    values       (leaves,) or (leaves, D); the result is (rows, number of groups * D) in their data type
    """
    table = values.reshape(len(values), -1)
    ufunc: Any = {"sum": np.add, "min": np.minimum, "max": np.maximum}[aggregate]
    result = np.full((len(reached), len(groups) - 1, table.shape[1]), AGGREGATES[aggregate][1], values.dtype)
    ends = np.clip(groups.astype(np.int64), 0, reached.shape[1])
    for group in range(len(ends) - 1):
        for tree in range(ends[group], ends[group + 1]):
            result[:, group] = ufunc(result[:, group], table[reached[:, tree]])
    return result.reshape(len(reached), math.prod(result.shape[1:]))


def _tree_ensemble_reference(
    a: TreeEnsembleAttrs, data: Array, nodes: Array, roots: Array, groups: Array, values: Array
) -> Array:
    return aggregate_leaf_values(a.aggregate, _reached_leaves(a, len(values), data, nodes, roots), groups, values)


class _TreeProgram:
    """Builds the loops of `ml.tree_ensemble` for one target."""

    def __init__(self, a: TreeEnsembleAttrs, tensors: Sequence[Tensor], lanes: int) -> None:
        data, nodes, roots, groups, values = tensors
        self.attrs, self.lanes = a, lanes
        self.rows, self.features = data.shape
        self.node_count, self.leaves = nodes.shape[0], values.shape[0]
        self.base = WORDS_PER_NODE * (self.node_count - self.leaves)
        self.trees, self.groups = roots.shape[0], groups.shape[0] - 1
        self.width = values.shape[1] if values.rank == 2 else 1
        self.dtype = data.dtype
        # as many trees side by side in each pass over a group: 10 are two times 5, not 8 and 2
        trees = -(-self.trees // max(self.groups, 1))
        self.trees_side_by_side = -(-trees // -(-trees // lanes)) if trees else lanes
        self.operation, neutral = AGGREGATES[a.aggregate]
        self.neutral: Scalar = const(neutral, str(data.dtype))

    def build(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        """Return the loops: several rows side by side if there are enough, else several trees."""
        self.data, self.nodes, self.roots, self.group_ends, self.values = inputs
        (self.out,) = outputs
        if self.lanes == 1 or self.rows < self.lanes:
            row = Var("row")
            return forall(row, self.rows, self._build_row(row))
        blocks = self.rows // self.lanes
        whole = blocks // _BLOCKS_PER_CHUNK
        parts = [
            (0, whole, _BLOCKS_PER_CHUNK, self.lanes),
            (whole * _BLOCKS_PER_CHUNK * self.lanes, 1, blocks - whole * _BLOCKS_PER_CHUNK, self.lanes),
            (blocks * self.lanes, 1, 1, self.rows - blocks * self.lanes),
        ]
        return Block(self._build_chunks(*part) for part in parts if all(part[1:]))

    # --- descending trees

    def _load_node_word(self, node: Scalar, word: Scalar | int) -> Scalar:
        return Load(self.nodes, node + (self.base + word) if isinstance(word, int) else node + self.base + word)

    def _next_node(self, node: Scalar, row: Scalar) -> Scalar:
        """Return the node that follows a node for a row."""
        a = self.attrs
        word = self._load_node_word(node, _FEATURE).astype(INDEX)
        feature = binary("shr", word, const(1, "int64"))
        feature = minimum(maximum(feature, 0), self.features - 1)
        x = Load(self.data, row * self.features + feature)
        threshold = bitcast(self._load_node_word(node, _THRESHOLD), str(self.dtype))
        yes = x <= threshold
        if a.missing == "yes":
            yes = yes | call("isnan", x)
        elif a.missing == "node":
            yes = yes | (call("isnan", x) & binary("and", word, const(1, "int64")).equal(1))
        at = self._load_node_word(node, const(_YES + 1, "int64") - yes.astype(INDEX)).astype(INDEX)
        return self._clip_node(at)

    def _clip_node(self, node: Scalar) -> Scalar:
        aligned = binary("and", node, const(-WORDS_PER_NODE, "int64"))
        return minimum(maximum(aligned, -self.base), WORDS_PER_NODE * (self.leaves - 1))

    def _descend(self, lanes: Sequence[tuple[Scalar, Scalar]]) -> tuple[list[Stmt], list[Scalar]]:
        """Return statements that descend a tree for each (root, row) of `lanes`, and the leaves."""
        nodes = [Var(f"n{k}") for k in range(len(lanes))]
        rows = [Var(f"r{k}") for k in range(len(lanes))]
        step = Var("step")
        stmts: list[Stmt] = [Declare(n, self._clip_node(root)) for n, (root, _) in zip(nodes, lanes, strict=True)]
        stmts += [Declare(r, row) for r, (_, row) in zip(rows, lanes, strict=True)]
        signs: Scalar = nodes[0]
        for other in nodes[1:]:
            signs = binary("or", signs, other)
        # leaves lead to themselves, until the last of the nodes is one
        body = [Assign(n, self._next_node(n, row)) for n, row in zip(nodes, rows, strict=True)]
        going = (signs < 0) & (step < self.attrs.depth)
        stmts += [Declare(step, const(0, "int64")), While(going, Block((*body, Assign(step, step + 1))))]
        leaves = [binary("shr", n, const(2, "int64")) for n in nodes]
        return stmts, [maximum(leaf, 0) for leaf in leaves]

    # --- accumulation

    def _initialize(self, row: Scalar) -> Stmt:
        column, count = Var("c"), self.groups * self.width
        return forall(column, count, Store(self.out, row * count + column, self.neutral))

    def _accumulate(self, row: Scalar, group: Scalar, leaf: Scalar) -> Stmt:
        column = Var("c")
        at = row * (self.groups * self.width) + group * self.width + column
        value = Load(self.values, leaf * self.width + column)
        return forall(column, self.width, Store(self.out, at, binary(self.operation, Load(self.out, at), value)))

    def _tree_range(self, group: Scalar) -> tuple[Scalar, Scalar]:
        begin, end = (Load(self.group_ends, group + k).astype(INDEX) for k in (0, 1))
        return minimum(maximum(begin, 0), self.trees), minimum(maximum(end, 0), self.trees)

    def _build_row(self, row: Var) -> Stmt:
        """Return the loops over the groups and trees of one row, with several trees side by side."""
        group, tree = Var("g"), Var("t")
        begin, end = self._tree_range(group)
        first, last = Var("first"), Var("last")
        numbers = [tree + k for k in range(self.trees_side_by_side)]
        # the last trees are repeated where the group's size is no multiple of the lanes
        clipped = [minimum(number, last - 1) if k else number for k, number in enumerate(numbers)]
        stmts, leaves = self._descend([(Load(self.roots, t).astype(INDEX), row * 1) for t in clipped])
        for k, (number, leaf) in enumerate(zip(numbers, leaves, strict=True)):
            add = self._accumulate(row, group, leaf)
            stmts.append(If(number < last, add) if k else add)
        loop = For(tree, last, Block(stmts), begin=first, step=self.trees_side_by_side)
        body = Block((Declare(first, begin), Declare(last, end), loop))
        return Block((self._initialize(row), For(group, self.groups, body)))

    def _build_chunks(self, start: int, chunks: int, blocks: int, lanes: int) -> Stmt:
        """Return the loops over chunks of rows, trees, and blocks of rows that are descended side by side."""
        chunk, group, tree, block, r = Var("chunk"), Var("g"), Var("t"), Var("block"), Var("r")
        first_row = chunk * (blocks * lanes) + start
        begin, end = self._tree_range(group)
        root, first = Var("root"), Var("first")
        rows = [first + k for k in range(lanes)]
        stmts, leaves = self._descend([(root, row) for row in rows])
        stmts += [self._accumulate(row, group, leaf) for row, leaf in zip(rows, leaves, strict=True)]
        inner = For(block, blocks, Block((Declare(first, first_row + block * lanes), *stmts)))
        trees = For(tree, end, Block((Declare(root, Load(self.roots, tree).astype(INDEX)), inner)), begin=begin)
        start_rows = forall(r, blocks * lanes, self._initialize(first_row + r))
        return forall(chunk, chunks, Block((start_rows, For(group, self.groups, trees))))


def _compute_tree_ensemble(a: TreeEnsembleAttrs, *tensors: Tensor) -> Tensor:
    data, _, _, groups, values = tensors
    width = values.shape[1] if values.rank == 2 else 1
    shape = (data.shape[0], (groups.shape[0] - 1) * width)

    def program(target: Target) -> te.ExternProgram:
        lanes = 1 if target.small or target.gpu is not None else _LANES
        return te.ExternProgram(_TreeProgram(a, tensors, lanes).build)

    return te.extern_for_target("trees", [(shape, data.dtype)], tensors, program)[0]


def random_tree_tables(
    trees: int, depth: int, features: int, width: int, dtype: str, seed: int = 0
) -> tuple[Array, Array, Array]:
    """Return random tables of trees of at most `depth` inner nodes from root to leaf: nodes, roots and
    values (leaves, width).
    """
    rng = np.random.default_rng(seed)
    yes: list[int] = []
    no: list[int] = []
    leaves, roots = 0, []

    def grow(levels: int) -> int:
        # a leaf l is -1 - l until the number of inner nodes is known
        nonlocal leaves
        if levels == 0 or rng.random() < 0.2:
            leaves += 1
            return -leaves
        number = len(yes)
        yes.append(0)
        no.append(0)
        yes[number], no[number] = grow(levels - 1), grow(levels - 1)
        return number

    roots = [grow(depth) for _ in range(trees)]
    inner = len(yes)
    yes_at, no_at, root_at = (np.array([k if k >= 0 else inner - 1 - k for k in n], int) for n in (yes, no, roots))
    nodes = pack_tree_nodes(
        rng.integers(0, features, inner),
        rng.standard_normal(inner).round(1).astype(dtype),
        yes_at,
        no_at,
        rng.random(inner) < 0.5,
        leaves,
    )
    values = rng.standard_normal((leaves, width)).astype(dtype)
    return nodes, node_number(root_at, inner).astype(np.int32), values


def _tree_ensemble_test_samples() -> Samples:
    cases: Any = (
        (1, 5, 1, "float32", "sum", "no"), (20, 9, 1, "float32", "sum", "node"), (19, 5, 3, "float32", "sum", "yes"),
        (3, 11, 2, "float64", "min", "node"), (9, 4, 1, "float64", "max", "no"),
    )  # fmt: skip
    for rows, trees, width, dtype, aggregate, missing in cases:
        data = random_array((rows, 3), dtype).round(1)
        data[rows // 2, 1] = np.nan
        nodes, roots, values = random_tree_tables(trees, 4, 3, width, dtype)
        groups = [0, trees // 3, trees // 3, trees] if width == 1 else [0, trees]
        a = TreeEnsembleAttrs(depth=4, aggregate=aggregate, missing=missing)
        args = (data, nodes, roots, np.array(groups, np.int32), values[:, 0] if width == 1 else values)
        yield Sample(args=args, attrs=a, accuracy=Accuracy.EXACT)


tree_ensemble = OpDef(
    name="ml.tree_ensemble",
    attrs=TreeEnsembleAttrs,
    args=declare_arguments("data", "nodes", "roots", "groups", "values"),
    infer=_infer_tree_ensemble_type,
    reference=_tree_ensemble_reference,
    axes=lambda _, __: AxisMap(((0, None), *((None, None),) * 4)),
    compute=_compute_tree_ensemble,
    precision=PrecisionTreatment.NEVER,
    samples=_tree_ensemble_test_samples,
)
