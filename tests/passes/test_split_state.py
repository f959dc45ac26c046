# SPDX-License-Identifier: Apache-2.0
"""Splitting of state tensors into parts: random graphs that move elements, evaluated before and after."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import relay
from aotc.relay.expr import Expr, tensor_type_of
from aotc.relay.graph_api import evaluate, infer_module
from aotc.relay.module import IRModule
from aotc.relay.state_pair import StatePair
from aotc.relay.transform.split_state import split_states
from tests.codegen.batch import Array

RUNS = 3


def random_movement(rng: np.random.Generator, x: Expr) -> Expr:
    """An operator that moves elements of a tensor, or leaves some out."""
    shape = tensor_type_of(x).static_shape
    axis = int(rng.integers(len(shape)))
    kind = rng.integers(5)
    if kind == 0 and shape[axis] > 1:
        begin = int(rng.integers(shape[axis]))
        end = int(rng.integers(begin + 1, shape[axis] + 1))
        return relay.strided_slice(x, begin=(begin,), end=(end,), axes=(axis,))
    if kind == 1:
        return relay.transpose(x, tuple(int(k) for k in rng.permutation(len(shape))))
    if kind == 2:
        return relay.reshape(x, (-1,))
    if kind == 3 and len(shape) > 1:
        return relay.take(x, relay.const(int(rng.integers(shape[axis])), "int64"), axis=axis)
    return relay.expand_dims(x, axis=axis)


def random_stream(rng: np.random.Generator) -> IRModule:
    """A step with one state, of which parts are read, changed and joined again in random ways."""
    rows, columns = (int(n) for n in rng.integers(2, 5, 2))
    x, past = relay.var("x", shape=(1, columns)), relay.var("past", shape=(rows, columns))
    pieces: list[Expr] = []
    for k in range(rows):
        row = relay.strided_slice(past, begin=(k,), end=(k + 1,), axes=(0,))
        kind = rng.integers(4)
        changed = [relay.tanh(relay.add(row, x)), x, row, relay.multiply(x, x)][kind]
        pieces.append(changed)
    order = rng.permutation(rows) if rng.integers(2) else np.arange(rows)
    present = relay.concatenate([pieces[int(k)] for k in order], axis=0)
    if rng.integers(2):
        at = relay.const(np.array([[int(rng.integers(rows))]]), "int64")
        present = relay.scatter_nd(present, at, relay.reshape(relay.exp(x), (1, columns)), "update")
    read: Expr = [past, present][int(rng.integers(2))]
    for _ in range(int(rng.integers(4))):
        read = random_movement(rng, read)
    outputs = [relay.sum(relay.sin(read)), present]
    module = IRModule.from_expr(relay.Function([x, past], relay.Tuple(outputs)))
    return infer_module(module.with_attr("output_names", ("y", "present")))


def outputs_of_runs(module: IRModule, pairs: tuple[StatePair, ...], frames: list[Array]) -> list[Array]:
    """The output y of each run, with the state handed from run to run."""
    contents = {p.past: p.initial for p in pairs}
    names = module.attrs["output_names"]
    found = []
    for frame in frames:
        inputs = [frame if p.name == "x" else contents[p.name] for p in module.main.params]
        shaped = [
            np.asarray(a).reshape(tensor_type_of(p).static_shape)
            for a, p in zip(inputs, module.main.params, strict=True)
        ]
        results = dict(zip(names, evaluate(module, *shaped), strict=True))
        found.append(np.asarray(results["y"]))
        contents = {p.past: np.asarray(results[p.present]) for p in pairs}
    return found


@pytest.mark.parametrize("seed", range(40))
def test_parts_give_the_outputs_of_the_whole_state(seed: int) -> None:
    rng = np.random.default_rng(seed)
    module = random_stream(rng)
    shape = tensor_type_of(module.main.params[1]).static_shape
    pair = StatePair("past", "present", rng.normal(size=shape).astype(np.float32))
    frames = [rng.normal(size=(1, shape[1])).astype(np.float32) for _ in range(RUNS)]
    split, parts = split_states(module, (pair,))
    expected = outputs_of_runs(module, (pair,), frames)
    for before, after in zip(expected, outputs_of_runs(split, parts, frames), strict=True):
        np.testing.assert_array_equal(before, after)


def test_most_random_states_are_split() -> None:
    counts = []
    for seed in range(40):
        module = random_stream(np.random.default_rng(seed))
        counts.append(len(split_states(module, (StatePair("past", "present"),))[1]))
    assert sum(count > 1 for count in counts) >= 8
