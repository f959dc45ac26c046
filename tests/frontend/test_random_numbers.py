# SPDX-License-Identifier: Apache-2.0
"""Random numbers of ONNX are drawn when compiling: from the stream of the node, with the stated distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from evaluation import Array, model_of, run_model
from onnx import helper

import aotc
from aotc.ir import AotcError
from aotc.relay.frontend.onnx import from_onnx


def drawn(op: str, x: Array | None = None, **attributes: Any) -> Array:
    data = np.zeros((2, 3), np.float32) if x is None else x
    node = helper.make_node(op, [] if op in ("RandomNormal", "RandomUniform") else ["x"], ["y"], **attributes)
    return run_model(from_onnx(model_of([node], {"x": data.shape}, ["y"])), {"x": data})[0]


def test_first_numbers_are_those_of_philox() -> None:
    """Philox4x64-10 with key 1065353216, the bits of 1.0, as numpy's generator has it."""
    words = np.random.Philox(key=0x3F800000).random_raw(3)
    want = [float(int(word) >> 11) / 2**53 for word in words]
    np.testing.assert_array_equal(drawn("RandomUniform", shape=[3], seed=1.0), np.float32(want))


@pytest.mark.parametrize("seed", [{}, {"seed": 7.0}])
def test_distributions(seed: dict[str, float]) -> None:
    wide = np.zeros((40, 500), np.float32)
    normal = drawn("RandomNormalLike", wide, mean=2.0, scale=3.0, **seed)
    assert abs(normal.mean() - 2) < 0.1 and abs(normal.std() - 3) < 0.1
    assert abs(((normal - normal.mean()) ** 3).mean()) < 1.5  # symmetric
    uniform = drawn("RandomUniformLike", wide, low=1.0, high=3.0, dtype=11, **seed)
    assert uniform.dtype == np.float64 and 1 <= uniform.min() < 1.01 and 2.99 < uniform.max() < 3
    assert abs(drawn("Bernoulli", wide + np.float32(0.3), **seed).mean() - 0.3) < 0.02
    logs = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-9]], np.float32))
    for row, want in zip(drawn("Multinomial", logs, sample_size=5000, **seed), np.exp(logs), strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / 5000, want, atol=0.03)


def test_nodes_without_a_seed_have_different_numbers_and_models_the_same() -> None:
    nodes = [helper.make_node("RandomNormal", [], [name], shape=[4]) for name in "yz"]
    model = model_of(nodes, {}, ["y", "z"])
    (y, z), again = run_model(from_onnx(model), {}), run_model(from_onnx(model), {})
    assert not np.isin(y, z).any()
    np.testing.assert_array_equal(again, [y, z])


def test_a_seed_chooses_the_numbers_of_nodes_that_state_none() -> None:
    nodes = [
        helper.make_node("RandomNormal", [], [name], shape=[4], **a) for name, a in (("y", {}), ("z", {"seed": 3.0}))
    ]
    model = model_of(nodes, {}, ["y", "z"])
    drawn_by_seed = {s: run_model(from_onnx(model, seed=s), {}) for s in (None, 0, 1, 2**63 - 1)}
    assert len({y.tobytes() for y, _ in drawn_by_seed.values()}) == 4
    assert len({z.tobytes() for _, z in drawn_by_seed.values()}) == 1
    words = np.random.Philox(key=3 << 64).random_raw(2) >> np.uint64(11)
    first, second = (float(word) / 2**53 for word in words)
    want = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)
    assert drawn_by_seed[1][0][0] == np.float32(want)
    found = aotc.compile(model, seed=1, cflags=("-O0",)).session().run(None, {})
    np.testing.assert_array_equal(found, drawn_by_seed[1])
    with pytest.raises(AotcError, match="seed"):
        aotc.compile(model, seed=-1)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(AotcError, match="RandomNormal of int32 is not supported"):
        drawn("RandomNormal", shape=[2], dtype=6)
    with pytest.raises(AotcError, match="Multinomial takes"):
        drawn("Multinomial", sample_size=0)


def test_sparse_initializers_become_dense() -> None:
    def added(values: list[float], indices: Any, shape: list[int]) -> Array:
        x = np.zeros(shape, np.float32)
        model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": shape}, ["y"])
        places = np.asarray(indices)
        given = helper.make_tensor("w", 1, [len(values)], values)
        where = helper.make_tensor("i", 7, list(places.shape), places.reshape(-1).tolist())
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(given, where, shape))
        return run_model(from_onnx(model), {"x": x})[0]

    np.testing.assert_array_equal(added([1, 5], [[0, 1], [1, 2]], [2, 3]), [[0, 1, 0], [0, 0, 5]])
    np.testing.assert_array_equal(added([1, 5], [1, 5], [2, 3]), [[0, 1, 0], [0, 0, 5]])
    for values, indices, message in (
        ([1, 5], [1, 6], "outside of the shape"),
        ([1, 5], [5, 1], "not in ascending order"),
        ([1, 5], [[0, 1]], "has values of shape"),
    ):
        with pytest.raises(AotcError, match=message):
            added(values, indices, [2, 3])
