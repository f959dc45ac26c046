# SPDX-License-Identifier: Apache-2.0
"""Random graphs of quantized operators, compiled for all targets that run here or under an emulator (all byte
instructions), give the integers of the numpy interpreter.

`make test-all` compares 3,000 graphs on each target of this machine, and 200 on each emulated one.
"""

from __future__ import annotations

import warnings
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c import kernel_files

from aotc.driver.compile import CompileOptions
from aotc.ir.types import flatten_nested_tuple
from aotc.relay.interpreter import evaluate
from tests.share import share
from tests.targets.machines import FOREIGN, PORTABLE, machine, native_targets
from tests.targets.quantized_graphs import drawn, whole

HERE = native_targets()
THERE = (*FOREIGN, *PORTABLE)
EACH = 10
"""Graphs that are one model."""


@pytest.fixture(autouse=True)
def one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels of a model in one file: compilers read vectors' headers once."""
    monkeypatch.setattr(kernel_files, "distribute_kernels_over_files", lambda kernels, _: [list(kernels)])


def check(target: str, first: int, folder: Path) -> None:
    """The graphs from a seed on."""
    here, graphs = machine(target), [drawn(seed) for seed in range(first, first + EACH)]
    inputs = {v.name: a for g in graphs for v, a in zip(g.variables, g.inputs, strict=True)}
    seeds = [seed for seed, g in enumerate(graphs, first) for _ in g.results]
    level, output = ("-O1", "-O0", "-O2")[first // EACH % 3], folder / "integers"
    with warnings.catch_warnings():
        # sums stay within int32
        warnings.simplefilter("error")
        module = whole(graphs)
        options = CompileOptions(
            target=here.target, output=output, name="integers", cflags=(level,), build=not here.emulator
        )
        model = options.compile_model(module)
    expected = map(np.asarray, flatten_nested_tuple(evaluate(module, params=inputs)))
    found = here.run_model(model, list(inputs.values())) if here.emulator else model.session().run(None, inputs)
    pairs = zip(seeds, found, expected, strict=True)
    assert [seed for seed, ours, want in pairs if not np.array_equal(ours, want)] == []


@pytest.mark.parametrize(("target", "number"), share(product(HERE, range(3000 // EACH)), 2))
def test_integers_here(target: str, number: int, tmp_path: Path) -> None:
    check(target, EACH * number, tmp_path)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("target", "number"), share(product(THERE, range(200 // EACH)), 1))
def test_integers_there(target: str, number: int, tmp_path: Path) -> None:
    check(target, EACH * number, tmp_path)


def test_graphs_are_of_all_kinds() -> None:
    """Most results are no constants, many values are the ends of their types, and all operators are there."""
    graphs = [drawn(seed) for seed in range(300)]
    inputs = {v.name: a for g in graphs for v, a in zip(g.variables, g.inputs, strict=True)}
    module = whole(graphs)
    found = [np.asarray(y) for y in flatten_nested_tuple(evaluate(module, params=inputs))]
    assert np.mean([len(np.unique(y)) > 8 for y in found if y.size > 16]) > 0.4
    ends = [(y == np.iinfo(y.dtype).min) | (y == np.iinfo(y.dtype).max) for y in found]
    assert np.mean([e.mean() > 0.1 for e in ends]) > 0.5 and any(e.all() for e in ends)
    assert Counter(y.dtype.name for y in found).keys() == {"int8", "uint8"}
    text = str(module)
    kinds = (
        "conv2d conv2d_transpose dense batch_matmul requantize add subtract mul concatenate avg_pool2d softmax sigmoid"
    )
    assert all(f"qnn.{kind}(" in text for kind in kinds.split())
