# SPDX-License-Identifier: Apache-2.0
"""Compiled attention: grouped queries, masks, several strips; the same bits on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.driver.compile import compile
from aotc.driver.pipeline import CompiledModel
from aotc.ir.types import TensorType
from aotc.relay.expr import Constant, Expr, Function, Var
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, multiply, where
from aotc.relay.op.concat_split import repeat
from aotc.relay.op.dense import batch_matmul
from aotc.relay.op.shape import reshape, transpose
from aotc.relay.op.softmax import softmax
from aotc.runtime.session import load

HEADS, GROUPS, ROWS, COLUMNS, DEPTH = 6, 2, 300, 610, 20
SHAPES = {"q": (HEADS, ROWS), "k": (GROUPS, COLUMNS), "v": (GROUPS, COLUMNS)}
CAUSAL = np.tri(ROWS, COLUMNS, COLUMNS - ROWS, bool)
Array = np.ndarray[Any, Any]


def heads(x: Expr, count: int) -> Expr:
    split = transpose(reshape(x, (1, -1, count, DEPTH)), (0, 2, 1, 3))
    return reshape(repeat(split, HEADS // count, axis=1), (HEADS, -1, DEPTH))


def network() -> IRModule:
    """Queries of six heads, keys and values of two, a causal mask, and one that is added to every row."""
    params = {name: Var(name, TensorType((1, n, count * DEPTH))) for name, (count, n) in SHAPES.items()}
    bias = Var("bias", TensorType((1, 1, 1, COLUMNS)))
    q, k, v = (heads(x, SHAPES[name][0]) for name, x in params.items())
    scores = reshape(batch_matmul(q, k), (1, HEADS, ROWS, COLUMNS))
    scores = add(multiply(scores, Constant(np.float32(0.25))), bias)
    soft = softmax(where(Constant(CAUSAL), scores, Constant(np.float32(-np.inf))))
    result = batch_matmul(reshape(soft, (HEADS, ROWS, COLUMNS)), v, transpose_b=False)
    merged = transpose(reshape(result, (1, HEADS, ROWS, DEPTH)), (0, 2, 1, 3))
    return IRModule({"main": Function((*params.values(), bias), reshape(merged, (1, ROWS, HEADS * DEPTH)))})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    folder = tmp_path_factory.mktemp("attention") / "net"
    return compile(network(), output=folder, name="net", target="x86-64-v3", check_compiler=True)


def feed() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    found = {name: rng.standard_normal((1, n, count * DEPTH)).astype("f") for name, (count, n) in SHAPES.items()}
    return {**found, "bias": rng.standard_normal((1, 1, 1, COLUMNS)).astype("f")}


def expected(inputs: dict[str, Array]) -> Array:
    arrays = {}
    for name, (count, n) in SHAPES.items():
        split = inputs[name].astype(np.float64).reshape(n, count, DEPTH).transpose(1, 0, 2)
        arrays[name] = np.repeat(split, HEADS // count, axis=0)
    scores = arrays["q"] @ arrays["k"].swapaxes(1, 2) / 4 + inputs["bias"][0]
    scores = np.where(CAUSAL, scores, -np.inf)
    terms = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = terms / terms.sum(axis=-1, keepdims=True) @ arrays["v"]
    return np.asarray(mixed.transpose(1, 0, 2).reshape(1, ROWS, HEADS * DEPTH))


def test_one_kernel_without_scores(model: CompiledModel) -> None:
    (step,) = model.metadata["steps"]
    assert step["macs"] == 2 * HEADS * ROWS * COLUMNS * DEPTH
    assert model.metadata["memory"]["peak"] < HEADS * ROWS * COLUMNS * 4 // 4
    wanted = expected(feed())
    (found,) = load(model.path).run(None, feed())
    assert np.abs(found - wanted).max() < 1e-5 * wanted.std()


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_the_same_bits(model: CompiledModel, threads: int) -> None:
    (alone,) = load(model.path).run(None, feed())
    binding = load(model.path, threads=threads).bind(feed())
    for _ in range(3):
        binding.run()
        np.testing.assert_array_equal(next(iter(binding.outputs.values())), alone)
