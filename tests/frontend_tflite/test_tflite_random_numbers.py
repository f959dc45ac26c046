# SPDX-License-Identifier: Apache-2.0
"""Random operators draw the numbers of LiteRT's first run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

import aotc
from aotc.ir import AotcError
from aotc.relay.frontend.counter_based_random_bits import philox_4x32, threefry_2x32
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert

LOGITS = np.log(np.array([[0.1, 0.2, 0.3, 0.4], [0.25, 0.5, 0.125, 0.125]], np.float32))


def drawing(name: str, count: int = 9, seed: int = 7, seed2: int = 5) -> bytes:
    model = Builder()
    shape, y = model.tensor((2,), "int32", [3, count // 3]), model.tensor((3, count // 3))
    model.op(name, [shape], [y], "RandomOptions", seed=seed, seed2=seed2)
    return model.data([], [y])


def run(data: bytes, arrays: Any = (), **options: Any) -> list[Any]:
    module = from_tflite(data, **options)
    return run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})


def test_words_are_those_of_the_authors() -> None:
    """Known answers of Random123, the library of the authors: all bits 0, all bits 1, digits of pi."""
    words = ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0")
    pi_counter, pi_key = ([int(w, 16) for w in text.split()] for text in words)
    for counter, key, expected in (
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (pi_counter, pi_key, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ):
        found = philox_4x32([np.array(v, np.uint64) for v in key], [np.array(v, np.uint64) for v in counter])
        assert " ".join(f"{int(v):08x}" for v in found) == expected
    for counter, key, expected in (
        ([0] * 2, [0] * 2, "6b200159 99ba4efe"),
        ([0xFFFFFFFF] * 2, [0xFFFFFFFF] * 2, "1cb996fc bb002be7"),
        (pi_counter[:2], [0x13198A2E, 0x03707344], "c4923a9c 483df7a0"),
    ):
        found = threefry_2x32([np.array(v, np.uint64) for v in key], [np.array(v, np.uint64) for v in counter])
        assert " ".join(f"{int(v):08x}" for v in found) == expected


@pytest.mark.parametrize("name", ["RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL"])
@pytest.mark.parametrize("seeds", [(7, 5), (-1, 5), (0, 3), ((1 << 40) + 9, 5 << 33)])
def test_numbers_with_seeds(name: str, seeds: tuple[int, int]) -> None:
    data = drawing(name, 999, *seeds)
    found, expected = run(data)[0], litert(data, [])[0]
    if name == "RANDOM_UNIFORM":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert abs(found.mean()) < 0.1 and abs(found.std() - 1) < 0.1


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_classes_are_drawn_by_their_probabilities(dtype: str) -> None:
    model = Builder()
    x, count, y = model.tensor((2, 4)), model.tensor((), "int32", 333), model.tensor((2, 333), dtype)
    model.op("MULTINOMIAL", [x, count], [y], "RandomOptions", seed=7, seed2=5)
    data = model.data([x], [y])
    np.testing.assert_array_equal(run(data, [LOGITS])[0], litert(data, [LOGITS])[0])


def test_numbers_without_seeds_depend_on_the_option() -> None:
    data = drawing("RANDOM_UNIFORM", 9, 0, 0)
    first, again, other = run(data)[0], run(data)[0], run(data, seed=1)[0]
    np.testing.assert_array_equal(first, again)
    assert not np.isin(other, first).any()
    model = Builder()
    shape, outputs = model.tensor((1,), "int32", [4]), [model.tensor((4,)), model.tensor((4,))]
    for y in outputs:
        model.op("RANDOM_UNIFORM", [shape], [y], "RandomOptions")
    a, b = run(model.data([], outputs))
    assert not np.isin(a, b).any()


def bits(algorithm: int, states: int, dtype: str, size: int = 10) -> bytes:
    model = Builder()
    x, after, y = model.tensor((states,), "uint64"), model.tensor((states,), "uint64"), model.tensor((size,), dtype)
    options = {"algorithm": algorithm}
    model.op("STABLEHLO_RNG_BIT_GENERATOR", [x], [after, y], "StablehloRngBitGeneratorOptions", **options)
    return model.data([x], [after, y])


STATES = [[3 + (9 << 32), (1 << 64) - 2], [3 + (9 << 32), (1 << 64) - 2, 7 + (8 << 32)]]


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize(("algorithm", "state"), [(0, 0), (1, 1), (2, 0)])
def test_bits(algorithm: int, state: int, dtype: str) -> None:
    values = np.array(STATES[state], np.uint64)
    data = bits(algorithm, len(values), dtype)
    for found, expected in zip(run(data, [values]), litert(data, [values]), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_compiled_bits(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(bits(0, 2, "int32"))
    session = aotc.compile(tmp_path / "net.tflite", target="c", cflags=("-O0",)).session()
    values = np.array(STATES[0], np.uint64)
    found = session.run(None, {session.get_inputs()[0].name: values})
    for a, e in zip(found, litert(bits(0, 2, "int32"), [values]), strict=True):
        np.testing.assert_array_equal(a, e)


def test_states_that_do_not_fit_are_refused() -> None:
    for algorithm, states in ((2, 3), (0, 4), (7, 2)):
        with pytest.raises(AotcError) as caught:
            from_tflite(bits(algorithm, states, "int32"))
        assert caught.value.diagnostics
    model = Builder()
    shape, y = model.tensor((1,), "int32", [-4]), model.tensor((4,))
    model.op("RANDOM_UNIFORM", [shape], [y], "RandomOptions", seed=1)
    with pytest.raises(AotcError, match="the result of RANDOM_UNIFORM"):
        from_tflite(model.data([], [y]))
