# SPDX-License-Identifier: Apache-2.0
"""Time ensembles of decision trees against ONNX Runtime, tl2cgen and treelite, in turns in one process.

python benchmarks/tree_ensembles.py                     # 10, 100 and 1,000 trees of depth 6; batches of 1 and 1,000
python benchmarks/tree_ensembles.py --trees 100 --depth 12 --sparse
python benchmarks/tree_ensembles.py --in-c              # without Python: a C program calls aotc and tl2cgen for one row

The trees are random: complete ones, or with --sparse ones of which a node is a leaf with probability 1/5. Times
are the minimum and the median in microseconds, with one thread, called from Python with arrays that are bound once:
before each call, new rows are copied into an array; a call reads it and writes into another array. tl2cgen (extra
`bench-trees`; without it the columns stay empty) compiles the trees to branches, with gcc -O3: for one row, its C
function is called by ctypes; for more rows, its own predictor goes through a DMatrix that is made before. gcc takes
more than 15 minutes for the branches of 1,000 trees: above 100 trees, treelite's own interpreter of trees (GTIL) takes
its place. In C, each time is that of 64 rows, divided by 64, in nanoseconds.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper

import aotc
from aotc.ir import Array

FEATURES = 20
POOL_ROWS = 4096
#: Largest number of trees that tl2cgen compiles.
MOST_COMPILED_TREES = 100


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


def bound_aotc_call(model: ModelProto, target: str, x: Array) -> tuple[Callable[[], Any], Array]:
    """Return a call that reads `x`, and the array that it writes."""
    binding = aotc.compile(model, target=target).session().bind({"x": x})
    return binding.run, binding.outputs["y"]


def bound_onnxruntime_call(model: ModelProto, x: Array) -> tuple[Callable[[], Any], Array]:
    """Return a call that reads `x`, and the array that it writes."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings)
    y = np.empty((len(x), 1), np.float32)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    return lambda: session.run_with_iobinding(binding), y


def bound_tl2cgen_call(model: ModelProto, x: Array, folder: Path) -> tuple[Callable[[], Any], Array]:
    """Return a call that reads `x`, and the array that it writes; a DMatrix has its own copy of the rows."""
    import tl2cgen

    library = tl2cgen_library(model, folder)
    y = np.zeros((len(x), 1), np.float32)
    if len(x) == 1:
        function = ctypes.CDLL(str(library)).predict
        arguments = ctypes.c_void_p(x.ctypes.data), ctypes.c_int(1), ctypes.c_void_p(y.ctypes.data)

        def call_function() -> None:
            y[0, 0] = 0  # the function adds to what is there
            function(*arguments)

        return call_function, y
    predictor, rows = tl2cgen.Predictor(str(library), nthread=1), tl2cgen.DMatrix(x, dtype="float32")
    return lambda: np.copyto(y, predictor.predict(rows, pred_margin=True).reshape(y.shape)), y


def bound_treelite_call(model: ModelProto, x: Array) -> tuple[Callable[[], Any], Array]:
    """Return a call that reads `x`, and the array that it writes."""
    from treelite import gtil

    trees, y = treelite_model(model), np.zeros((len(x), 1), np.float32)
    return lambda: np.copyto(y, gtil.predict(trees, x, nthread=1, pred_margin=True).reshape(y.shape)), y


def tl2cgen_library(model: ModelProto, folder: Path) -> Path:
    """Return the library that tl2cgen makes of a model's trees."""
    import tl2cgen

    library = folder / "trees.so"
    params = {"parallel_comp": 16}  # files of a size that gcc compiles in minutes
    tl2cgen.export_lib(treelite_model(model), toolchain="gcc", libpath=library, params=params, nthread=1)
    return library


def treelite_model(model: ModelProto) -> Any:
    """Return the trees of a TreeEnsembleRegressor as a model of treelite."""
    from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation

    attributes = {item.name: helper.get_attribute_value(item) for item in model.graph.node[0].attribute}
    nodes: dict[int, list[tuple[Any, ...]]] = {}
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    for tree, *node in zip(*(attributes[f"nodes_{name}"] for name in names), strict=True):
        nodes.setdefault(tree, []).append(tuple(node))
    keys = zip(attributes["target_treeids"], attributes["target_nodeids"], strict=True)
    weights = dict(zip(keys, attributes["target_weights"], strict=True))
    builder = ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=Metadata(FEATURES, "kRegressor", False, 1, [1], (1, 1)),
        tree_annotation=TreeAnnotation(len(nodes), [0] * len(nodes), [0] * len(nodes)),
        postprocessor=PostProcessorFunc("identity"),
        base_scores=[0.0],
    )
    for tree, members in nodes.items():
        builder.start_tree()
        for number, feature, threshold, mode, yes, no in members:
            builder.start_node(number)
            if mode == b"LEAF":
                builder.leaf(weights[tree, number])
            else:
                branches = {"left_child_key": yes, "right_child_key": no}
                builder.numerical_test(feature, threshold, default_left=False, opname="<=", **branches)
            builder.end_node()
        builder.end_tree()
    return builder.commit()


def times_in_turns(calls: Sequence[Callable[[], Any]], x: Array, rows: Iterator[Array], seconds: float) -> list[Any]:
    """Run the calls in turns for a time, each time on other rows, and return the microseconds of each run."""
    found: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[0]) < 5:
        given = next(rows)
        for call, times in zip(calls, found, strict=True):
            np.copyto(x, given)
            begin = time.perf_counter()
            call()
            times.append((time.perf_counter() - begin) * 1e6)
    return found


C_PROGRAM = """
#include "forest.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void predict(void *row, int pred_margin, float *result);
static float pool[POOL_ROWS][FEATURES];

static double nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv) {
  const double end = nanoseconds() + 1e9 * atof(argv[2]);
  void *workspace = aligned_alloc(64, (FOREST_WORKSPACE_BYTES + 127) / 64 * 64);
  FILE *file = fopen(argv[1], "rb");
  if (fread(pool, sizeof pool, 1, file) != 1) return 1;
  for (int k = 0; nanoseconds() < end; k = (k + 64) % POOL_ROWS) {
    float ours, theirs, difference = 0;
    const double t0 = nanoseconds();
    for (int row = k; row < k + 64; ++row) {
      forest_inputs in = {pool[row]};
      forest_outputs out = {&ours};
      if (forest_run(&in, &out, workspace, NULL) != 0) return 1;
      difference += ours;
    }
    const double t1 = nanoseconds();
    for (int row = k; row < k + 64; ++row) {
      theirs = 0;
      predict(pool[row], 1, &theirs);
      difference -= theirs;
    }
    printf("%f %f %f\\n", (t1 - t0) / 64, (nanoseconds() - t1) / 64, difference);
  }
  return 0;
}
"""


def times_in_c(model: ModelProto, target: str, rows: Array, folder: Path, seconds: float) -> Array:
    """Return the nanoseconds for a row of aotc and of tl2cgen, (measurements, 2)."""
    theirs = tl2cgen_library(model, folder)
    project = folder / "project"
    aotc.compile(model, target=target, name="forest", output=project)
    (ours,) = (project / "lib").glob("*.so")
    rows.tofile(folder / "rows")
    (folder / "main.c").write_text(C_PROGRAM, encoding="utf-8")
    sizes = (f"-DPOOL_ROWS={len(rows)}", f"-DFEATURES={FEATURES}")
    command = ["gcc", "-O2", *sizes, f"-I{project / 'include'}", str(folder / "main.c"), str(ours), str(theirs)]
    paths = f"-Wl,-rpath,{ours.parent}:{theirs.parent}"
    subprocess.run([*command, paths, "-o", str(folder / "main")], check=True)
    run = [str(folder / "main"), str(folder / "rows"), str(seconds)]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    figures = np.loadtxt(done.stdout.splitlines())
    assert np.abs(figures[:, 2]).max() < 1, "the scores differ"
    return np.asarray(figures[:, :2])


def print_times_in_c(options: argparse.Namespace) -> None:
    """Print the table of times without Python, in nanoseconds."""
    print("| trees | aotc, least | aotc, median | tl2cgen, least | tl2cgen, median | quotient |\n" + "|---" * 6 + "|")
    for trees in options.trees:
        rng = np.random.default_rng(trees)
        model = forest_model(rng, trees, options.depth, 1, options.sparse)
        rows = rng.standard_normal((POOL_ROWS, FEATURES)).astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            figures = times_in_c(model, options.target, rows, Path(folder), options.seconds)
        (ours, theirs), medians = figures.min(0), np.median(figures, 0)
        cells = f"{ours:.0f} | {medians[0]:.0f} | {theirs:.0f} | {medians[1]:.0f}"
        print(f"| {trees} | {cells} | {ours / theirs:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trees", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 1000])
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--target", default="host")
    parser.add_argument("--in-c", action="store_true", help="call aotc and tl2cgen from C, for one row")
    options = parser.parse_args()
    if options.in_c:
        print_times_in_c(options)
        return
    has_rival = find_spec("tl2cgen") is not None and find_spec("treelite") is not None
    names = ["aotc", "ONNX Runtime", *["tl2cgen or GTIL"] * has_rival]
    heads = ["trees", "rows", *(f"{name}, {kind}" for name in names for kind in ("least", "median"))]
    heads += [f"aotc / {name}" for name in names[1:]]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for trees, rows in product(options.trees, options.rows):
        rng = np.random.default_rng(trees)
        model = forest_model(rng, trees, options.depth, rows, options.sparse)
        # other rows in each call: the processor would predict all branches of rows that repeat
        pool = rng.standard_normal((max(POOL_ROWS // rows, 2), rows, FEATURES)).astype(np.float32)
        x = pool[0].copy()
        with tempfile.TemporaryDirectory() as folder:
            bound = [bound_aotc_call(model, options.target, x), bound_onnxruntime_call(model, x)]
            if has_rival and trees <= MOST_COMPILED_TREES:
                bound.append(bound_tl2cgen_call(model, x, Path(folder)))
            elif has_rival:
                bound.append(bound_treelite_call(model, x))
            for call, y in bound:
                call()
                np.testing.assert_allclose(y, bound[0][1], rtol=1e-3, atol=1e-4)
            found = times_in_turns([call for call, _ in bound], x, cycle(pool), options.seconds)
        least, median = ([float(f(times)) for times in found] for f in (np.min, np.median))
        cells = [f"{value:.1f}" for pair in zip(least, median, strict=True) for value in pair]
        cells += [f"{least[0] / other:.2f}" for other in least[1:]]
        print(f"| {trees} | {rows} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
