# SPDX-License-Identifier: Apache-2.0
"""CompactTrees: ensembles of decision trees in narrow tables give the bits of those in wide tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aotc
from aotc import relay
from aotc.relay.graph_api import Call, IRModule, evaluate, post_order
from aotc.relay.op.builders import argmax, cast, greater, reshape, tree_ensemble
from aotc.relay.op.tree_ensemble import WORDS_PER_NODE, random_tree_tables
from aotc.relay.transform import CompactTrees, InferType
from aotc.tir import C
from aotc.tir.bare_metal_portable_and_small_targets import target_optimized_for_size

SMALL = target_optimized_for_size(C)
FEATURES = 3
INTEGERS = ("int8", "uint8", "int16", "uint16")


def compacted(x: Any, result: Any) -> IRModule:
    module = InferType()(IRModule.from_expr(relay.Function([x], result)))
    return CompactTrees(SMALL)(module)


def operators(module: IRModule) -> set[str]:
    return {str(node.op) for node in post_order(module["main"]) if isinstance(node, Call)}


def random_ensemble(seed: int) -> tuple[Any, Any, Any]:
    """Return a variable of rows, an ensemble of them whose properties the seed draws, and rows."""
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["float32", "float64", "int8", "uint8", "int16", "uint16", "int32"]))
    wide = dtype if dtype.startswith("float") else str(rng.choice(["float32", "float64"]))
    trees, depth, width = (int(rng.choice(options)) for options in ((1, 4, 70), (0, 1, 3, 6), (1, 2, 5)))
    nodes, roots, values = random_tree_tables(trees, depth, FEATURES, width, wide, seed)
    inner = len(nodes) - len(values)
    special = rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e6, -1e6, 2.5, 255, -128], inner)
    scaled = nodes[:inner, 1].copy().view(wide) * (1 if wide == dtype else 30)
    thresholds = np.where(rng.random(inner) < 0.2, special, scaled).astype(wide)
    nodes[:inner, 1] = thresholds.view(nodes.dtype)
    if rng.random() < 0.4 and width == 1:  # each leaf votes for the first or the second class
        values = (rng.integers(0, 2, values.shape) / trees).astype(wide)
    elif rng.random() < 0.4:  # each leaf votes for a class
        values = (np.eye(width)[rng.integers(0, width, len(values))] / trees).astype(wide)
    elif rng.random() < 0.5:
        values = values.round()
    groups = [0, trees // 2, trees] if width == 1 and rng.random() < 0.5 else [0, trees]
    wide_type = np.dtype(wide).type
    if dtype.startswith("float"):
        data = rng.choice([0, -0.0, np.nan, np.inf, 1.5, -0.3], (9, FEATURES)) + rng.choice([0, 0.5], (9, FEATURES))
    else:
        limits = np.iinfo(dtype)
        edges = [limits.min, limits.max, 2, 3, 254] if limits.max > 254 else [limits.min, limits.max, 2, 3]
        data = rng.choice([*edges, *rng.integers(0, 60, 9)], (9, FEATURES))
    x = relay.var("x", shape=(9, FEATURES), dtype=dtype)
    tables = [relay.const(table) for table in (nodes, roots, np.array(groups, np.int32))]
    missing = str(rng.choice(["no", "yes", "node"]))
    aggregate = str(rng.choice(["sum", "sum", "min", "max"]))
    rows = x if wide == dtype else cast(x, wide)
    leaves = relay.const(values[:, 0] if width == 1 else values)
    result = tree_ensemble(rows, *tables, leaves, depth=depth, missing=missing, aggregate=aggregate)
    if width > 1 and rng.random() < 0.5:
        result = argmax(result, axis=(1,), keepdims=False)
    elif len(groups) == 2 and rng.random() < 0.5:
        result = greater(reshape(result, (-1,)), relay.const(wide_type(rng.choice([0.5, 0.25, -1, 2]))))
    return x, result, data.astype(dtype)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_narrow_tables_give_the_same_bits(seed: int) -> None:
    x, result, data = random_ensemble(seed)
    module = compacted(x, result)
    assert "ml.tree_ensemble" not in operators(module)
    found, wanted = (evaluate(m, data) for m in (module, IRModule.from_expr(relay.Function([x], result))))
    assert found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_compared_as_integers(dtype: str) -> None:
    """A threshold outside of the integers' range is always true or always false; between two integers, the lower."""
    limits = np.iinfo(dtype)
    edges = [limits.min - 1, limits.min - 0.5, limits.min, 2.5, limits.max, limits.max + 0.5, np.nan]
    thresholds = np.array(edges, np.float32)
    data = np.array([limits.min, 2, 3, limits.max], dtype)[:, None]
    for threshold in thresholds:
        bits = threshold[None].view(np.int32)[0]
        nodes = np.array([[0, bits, 0, WORDS_PER_NODE], [0, 0, 0, 0], [0, 0, 4, 4]], np.int32)
        x = relay.var("x", shape=(4, 1), dtype=dtype)
        roots, groups = (relay.const(np.array(a, np.int32)) for a in ([-WORDS_PER_NODE], [0, 1]))
        leaves = relay.const(np.float32([1, 2]))
        result = tree_ensemble(cast(x, "float32"), relay.const(nodes), roots, groups, leaves, depth=1, missing="no")
        module = compacted(x, result)
        assert "cast" not in operators(module)
        wanted = np.where(data.astype(np.float32) <= threshold, np.float32(1), np.float32(2))
        np.testing.assert_array_equal(evaluate(module, data), wanted, str(threshold))


def test_labels_of_votes_need_no_scores() -> None:
    nodes, roots, values = random_tree_tables(12, 4, FEATURES, 3, "float32")
    values = (np.eye(3)[np.arange(len(values)) % 3] / 12).astype(np.float32)
    x = relay.var("x", shape=(5, FEATURES), dtype="float32")
    tables = [relay.const(table) for table in (nodes, roots, np.int32([0, 12]), values)]
    scores = tree_ensemble(x, *tables, depth=4)
    label = argmax(scores, axis=(1,), keepdims=False)
    assert operators(compacted(x, label)) == {"ml.tree_votes", "argmax"}
    assert operators(compacted(x, scores)) == {"ml.tree_votes", "take"}
    data = np.random.default_rng(0).standard_normal((5, FEATURES)).astype(np.float32)
    session = aotc.compile(IRModule.from_expr(relay.Function([x], label)), size=True, cflags=("-O0",)).session()
    wanted = evaluate(IRModule.from_expr(relay.Function([x], label)), data)
    np.testing.assert_array_equal(session.run(None, {"x": data})[0], wanted)


def test_the_label_of_two_classes_needs_no_score() -> None:
    nodes, roots, values = random_tree_tables(12, 4, FEATURES, 1, "float32")
    values = np.float32(np.arange(len(values)) % 2) / np.float32(12)
    x = relay.var("x", shape=(5, FEATURES), dtype="float32")
    tables = [relay.const(table) for table in (nodes, roots, np.int32([0, 12]), values)]
    wins = greater(reshape(tree_ensemble(x, *tables, depth=4), (5,)), relay.const(np.float32(0.5)))
    module = compacted(x, wins)
    assert operators(module) == {"ml.tree_votes", "take", "reshape", "greater"}
    assert not any(
        str(node.checked_type.dtype) == "float32" for node in post_order(module["main"].body) if isinstance(node, Call)
    )


def test_other_targets_keep_wide_tables() -> None:
    x, result, _ = random_ensemble(1)
    module = InferType()(IRModule.from_expr(relay.Function([x], result)))
    assert CompactTrees(C)(module) is module or operators(CompactTrees(C)(module)) == operators(module)
