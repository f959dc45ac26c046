# SPDX-License-Identifier: Apache-2.0
"""Compare the bytes of programs with random forests on a Cortex-M0+ with those of emlearn and m2cgen.

python -m benchmarks.tree_code_size           # needs the extra bench-trees and arm-none-eabi-gcc

Forests of scikit-learn, grown until the leaves are pure, learn its own data sets. Each program gives the label of a
row in a static array, is compiled with -Os, and is linked without functions that are not called. The bytes are those
of `size` (text, constants and data), less those of a program that does nothing. Features are float32, or int16 (a
data set's features are scaled to integers before the forest is trained). The labels of aotc's programs are checked
against those of scikit-learn, on at most 100 rows that were not used for training. The table has the number of these
rows to which emlearn gives another label. Rows for which two classes have the same number of trees are left out,
because the rounding of sums decides them.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import ModelProto, TensorProto, helper

import aotc

FLAGS: Final = (
    "-mcpu=cortex-m0plus", "-mthumb", "-Os", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections",
    "--specs=nano.specs", "--specs=nosys.specs", "-w",
)  # fmt: skip
TREES: Final = (10, 50)
C_TYPES: Final = {"float32": "float", "int16": "int16_t"}


def data_sets() -> Mapping[str, tuple[Any, Any]]:
    """Return features and classes of scikit-learn's small data sets."""
    from sklearn import datasets

    loaders = {"iris": datasets.load_iris, "breast cancer": datasets.load_breast_cancer, "digits": datasets.load_digits}
    return {name: load(return_X_y=True) for name, load in loaders.items()}


def as_integers(features: Any) -> Any:
    """Return features, each multiplied by a power of ten so that it uses the range of int16, and rounded."""
    scale = 10.0 ** np.floor(np.log10(30_000 / np.maximum(np.abs(features).max(0), 1e-9)))
    return np.round(features * np.minimum(scale, 1000)).astype(np.int16)


def rows_without_ties(forest: Any, rows: Any) -> Any:
    """Return the rows for which one class has more trees than any other."""
    votes = np.stack([tree.predict(rows) for tree in forest.estimators_]).astype(int)
    counts = np.sort([np.bincount(column, minlength=len(forest.classes_)) for column in votes.T])
    return rows[counts[:, -1] > counts[:, -2]]


def label_model(forest: Any, features: int, dtype: str) -> ModelProto:
    """Return a forest as an ONNX model that gives the labels of rows of a type."""
    from skl2onnx import to_onnx

    model = to_onnx(forest, np.zeros((1, features), np.float32), options={"zipmap": False})
    graph = model.graph
    del graph.output[1:]
    name = graph.input[0].name
    if dtype == "int16":
        for node in graph.node:
            node.input[:] = ["converted" if given == name else given for given in node.input]
        graph.node.insert(0, helper.make_node("Cast", [name], ["converted"], to=TensorProto.FLOAT))
    kind = TensorProto.INT16 if dtype == "int16" else TensorProto.FLOAT
    graph.input[0].CopyFrom(helper.make_tensor_value_info(name, kind, [1, features]))
    return model


def program_bytes(folder: Path, main: str, sources: Sequence[Path] = (), include: Sequence[Path] = ()) -> int:
    """Return the bytes of text, constants and data of a linked program."""
    (folder / "main.c").write_text(main, encoding="utf-8")
    program = folder / "program.elf"
    command = ["arm-none-eabi-gcc", *FLAGS, *(f"-I{path}" for path in include), "-o", str(program)]
    subprocess.run([*command, str(folder / "main.c"), *map(str, sources), "-lm"], check=True, capture_output=True)
    done = subprocess.run(["arm-none-eabi-size", str(program)], capture_output=True, text=True, check=True)
    text, data = map(int, done.stdout.splitlines()[1].split()[:2])
    return text + data


def aotc_program(folder: Path, forest: Any, rows: Any, dtype: str) -> tuple[int, Any]:
    """Return the bytes of aotc's program, and the labels of rows, computed by the same kernels on this machine."""
    features = rows.shape[1]
    model = label_model(forest, features, dtype)
    options: dict[str, Any] = {"name": "forest", "size": True, "cflags": ("-Os",), "overwrite": True}
    session = aotc.compile(model, target="c", **options).session()
    (name,) = (info.name for info in session.get_inputs())
    labels = np.concatenate([session.run(None, {name: row[None]})[0] for row in rows])
    project = folder / "project"
    aotc.compile(model, target="cortex-m0plus", output=project, **options)
    main = f"""#include "forest.h"
static {C_TYPES[dtype]} row[{features}];
volatile int label;
static int64_t result;
static unsigned char workspace[FOREST_WORKSPACE_BYTES] __attribute__((aligned(8)));
int main(void) {{
  forest_inputs in = {{row}};
  forest_outputs out = {{&result}};
  int status = forest_run(&in, &out, workspace, 0);
  label = (int)result;
  return status;
}}
"""
    return program_bytes(folder, main, [project / "lib" / "libforest.a"], [project / "include"]), labels


def emlearn_program(folder: Path, forest: Any, rows: Any, dtype: str, method: str) -> tuple[int, Any]:
    """Return the bytes of emlearn's program, and the labels of rows."""
    import emlearn

    converted = emlearn.convert(forest, method=method, dtype=C_TYPES[dtype])
    converted.save(file=str(folder / "emlearn_forest.h"), name="forest", include_proba=False)
    main = f"""#include "emlearn_forest.h"
static {C_TYPES[dtype]} row[{rows.shape[1]}];
volatile int label;
int main(void) {{ label = forest_predict(row, {rows.shape[1]}); return 0; }}
"""
    return program_bytes(folder, main, include=[folder, Path(emlearn.includedir)]), converted.predict(rows)


def m2cgen_program(folder: Path, forest: Any, rows: Any) -> int:
    """Return the bytes of m2cgen's program, whose features and scores are of type double."""
    import m2cgen

    code = m2cgen.export_to_c(forest)
    classes = len(forest.classes_)
    main = f"""{code}
static double row[{rows.shape[1]}], scores[{classes}];
volatile int label;
int main(void) {{
  int k, best = 0;
  score(row, scores);
  for (k = 1; k < {classes}; ++k) if (scores[k] > scores[best]) best = k;
  label = best;
  return 0;
}}
"""
    return program_bytes(folder, main)


def main() -> None:
    """Print the table."""
    from sklearn.ensemble import RandomForestClassifier

    print(
        "| data | features | trees | nodes | aotc | emlearn, tables | emlearn, code | emlearn differs | m2cgen "
        "| aotc / emlearn |"
    )
    print("|" + "---|" * 10)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        empty = program_bytes(folder, "int main(void) { return 0; }")
        for (data, (features, classes)), dtype, trees in product(data_sets().items(), C_TYPES, TREES):
            x = as_integers(features) if dtype == "int16" else features.astype(np.float32)
            forest = RandomForestClassifier(trees, random_state=0).fit(x[::2], classes[::2])
            rows = rows_without_ties(forest, x[1::2])[:100]
            ours, labels = aotc_program(folder, forest, rows, dtype)
            np.testing.assert_array_equal(labels, forest.predict(rows))
            sizes, other = {}, 0
            for method in ("loadable", "inline") if dtype == "int16" else ("inline",):
                sizes[method], theirs = emlearn_program(folder, forest, rows, dtype, method)
                other = max(other, int(np.sum(theirs != labels)))
            double = m2cgen_program(folder, forest, rows)
            nodes = sum(tree.tree_.node_count for tree in forest.estimators_)
            quotient = (ours - empty) / (min(sizes.values()) - empty)
            tables = sizes["loadable"] - empty if "loadable" in sizes else "-"
            cells = (data, dtype, trees, nodes, ours - empty, tables, sizes["inline"] - empty, other, double - empty)
            print("| " + " | ".join(map(str, cells)) + f" | {quotient:.2f} |", flush=True)


if __name__ == "__main__":
    main()
