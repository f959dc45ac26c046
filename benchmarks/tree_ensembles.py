# SPDX-License-Identifier: Apache-2.0
"""Time ensembles of decision trees against ONNX Runtime, in turns in one process.

python benchmarks/tree_ensembles.py                     # 10, 100 and 1,000 trees of depth 6; batches of 1 and 1,000
python benchmarks/tree_ensembles.py --trees 100 --depth 12 --sparse

The trees are random: complete ones, or with --sparse ones of which a node is a leaf with probability 1/5. Times
are the minimum and the median in microseconds, with one thread, called from Python.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper

import aotc

FEATURES = 20
POOL_ROWS = 4096


def forest_model(rng: np.random.Generator, trees: int, depth: int, rows: int, sparse: bool) -> ModelProto:
    """A TreeEnsembleRegressor with random trees."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    targets: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    first = 0
    for tree in range(trees):
        levels, count = [0], 1
        while levels:
            level = levels.pop(0)
            number = len(columns["treeids"]) - first
            is_leaf = level == depth or (sparse and level > 0 and rng.random() < 0.2)
            row = (tree, number, int(rng.integers(FEATURES)), float(rng.standard_normal()))
            branches = ("LEAF", 0, 0) if is_leaf else ("BRANCH_LEQ", count, count + 1)
            for column, value in zip(columns.values(), (*row, *branches), strict=True):
                column.append(value)
            if is_leaf:
                for column, value in zip(
                    targets.values(), (tree, number, 0, float(rng.standard_normal())), strict=True
                ):
                    column.append(value)
            else:
                levels += [level + 1] * 2
                count += 2
        first = len(columns["treeids"])
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        **{f"nodes_{name}": column for name, column in columns.items()},
        **{f"target_{name}": column for name, column in targets.items()},
    )
    graph = helper.make_graph(
        [node],
        "forest",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 1])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3)], ir_version=9)


def times_in_turns(calls: list[Callable[..., Any]], inputs: Iterator[Any], seconds: float) -> list[list[float]]:
    """Run the sessions in turns for a time, and return the microseconds of each run."""
    found: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[0]) < 5:
        feed = {"x": next(inputs)}
        for call, times in zip(calls, found, strict=True):
            begin = time.perf_counter()
            call(None, feed)
            times.append((time.perf_counter() - begin) * 1e6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trees", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 1000])
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--target", default="host")
    options = parser.parse_args()
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    print("| trees | rows | aotc, least | aotc, median | ONNX Runtime, least | ONNX Runtime, median | quotient |")
    print("|---|---|---|---|---|---|---|")
    for trees in options.trees:
        for rows in options.rows:
            rng = np.random.default_rng(trees)
            model = forest_model(rng, trees, options.depth, rows, options.sparse)
            # other rows in each call: a processor would learn the branches of one row by heart
            inputs = cycle(rng.standard_normal((max(POOL_ROWS // rows, 2), rows, FEATURES)).astype(np.float32))
            ours = aotc.compile(model, target=options.target).session()
            theirs = onnxruntime.InferenceSession(model.SerializeToString(), settings)
            x = next(inputs)
            np.testing.assert_array_equal(ours.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0])
            found = times_in_turns([ours.run, theirs.run], inputs, options.seconds)
            least, median = ([f(t) for t in found] for f in (np.min, np.median))
            figures = f"{least[0]:.1f} | {median[0]:.1f} | {least[1]:.1f} | {median[1]:.1f} | {least[0] / least[1]:.2f}"
            print(f"| {trees} | {rows} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
