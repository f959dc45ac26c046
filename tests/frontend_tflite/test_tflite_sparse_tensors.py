# SPDX-License-Identifier: Apache-2.0
"""Sparse constants of TFLite models are those of LiteRT's DENSIFY; formats that contradict themselves
are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from ai_edge_litert import schema_py_generated as fb

from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert

VECTORS = {"Int32Vector": np.int32, "Uint16Vector": np.uint16, "Uint8Vector": np.uint8}


def sparsity(
    dense: Any, order: Sequence[int], compressed: Sequence[bool], blocks: dict[int, int], vector: str
) -> tuple[Any, Any]:
    """The format of an array, and its stored elements: dimensions in an order, of which some are
    compressed, with blocks of some sizes along some dimensions."""
    rank = dense.ndim
    split = [n // blocks.get(d, 1) for d, n in enumerate(dense.shape)] + list(blocks.values())
    view = dense.reshape([v for d in range(rank) for v in (split[d], blocks.get(d, 1))])
    inner = [2 * d + 1 for d in (*blocks, *(d for d in range(rank) if d not in blocks))]
    view = view.transpose(*range(0, 2 * rank, 2), *inner)
    view = view.reshape(split).transpose(order)
    segments: list[list[int]] = [[0] for _ in order]
    indices: list[list[int]] = [[] for _ in order]

    def walk(part: Any, level: int) -> Iterator[Any]:
        if level == len(order):
            yield part
            return
        for k, inner in enumerate(part):
            if compressed[level] and not np.any(inner):
                continue
            if compressed[level]:
                indices[level].append(k)
            yield from walk(inner, level + 1)
        segments[level].append(len(indices[level]))

    elements = np.array(list(walk(view, 0)), dense.dtype)
    made = fb.SparsityParametersT()
    made.traversalOrder, made.blockMap, made.dimMetadata = list(order), list(blocks) or None, []
    for level, dimension in enumerate(order):
        metadata = fb.DimensionMetadataT()
        metadata.format, metadata.denseSize = int(compressed[level]), split[dimension]
        if compressed[level]:
            metadata.denseSize = 0
            for name, values in (("Segments", segments[level]), ("Indices", indices[level])):
                table = getattr(fb, f"{vector}T")()
                table.values = np.array(values, VECTORS[vector])
                setattr(metadata, f"array{name}", table)
                setattr(metadata, f"array{name}Type", getattr(fb.SparseIndexVector, vector))
        made.dimMetadata.append(metadata)
    return made, elements


def densified(dense: Any, made: Any, elements: Any) -> bytes:
    """A model that adds a densified constant to its input."""
    model, dtype = Builder(), str(dense.dtype)
    stored = model.tensor(dense.shape, dtype, elements)
    model.graph.tensors[stored].sparsity = made
    x, whole, y = (model.tensor(dense.shape, dtype) for _ in range(3))
    model.op("DENSIFY", [stored], [whole])
    model.op("ADD", [x, whole], [y], "AddOptions")
    return model.data([x], [y])


def array(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    rng = np.random.default_rng(len(shape))
    return np.where(rng.random(shape) < 0.3, rng.integers(1, 99, shape), 0).astype(dtype)


FORMATS: dict[str, tuple[tuple[int, ...], Sequence[int], Sequence[bool], dict[int, int], str]] = {
    "rows": ((5, 8), (0, 1), (False, True), {}, "Int32Vector"),
    "columns": ((5, 8), (1, 0), (False, True), {}, "Uint8Vector"),
    "both": ((5, 8), (0, 1), (True, True), {}, "Uint16Vector"),
    "blocks": ((5, 8), (0, 1, 2), (False, True, False), {1: 4}, "Int32Vector"),
    "blocks of rows and columns": ((4, 8), (0, 1, 2, 3), (False, True, False, False), {0: 2, 1: 4}, "Uint8Vector"),
    "convolution": ((3, 1, 2, 8), (0, 1, 2, 3), (False, False, False, True), {}, "Int32Vector"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_densify(name: str) -> None:
    shape, *how = FORMATS[name]
    dense = array(shape)
    data = densified(dense, *sparsity(dense, *how))
    x = np.full(shape, 0.5, np.float32)
    expected = litert(data, [x])[0]
    np.testing.assert_array_equal(expected, dense + x)
    np.testing.assert_array_equal(run_model(from_tflite(data), {"t1": x})[0], expected)


def test_weights_of_layers_may_be_sparse() -> None:
    """Without DENSIFY; LiteRT computes such layers, too."""
    dense, model = array((6, 8)), Builder()
    w = model.tensor(dense.shape, data=sparsity(dense, (0, 1), (False, True), {}, "Int32Vector")[1])
    model.graph.tensors[w].sparsity = sparsity(dense, (0, 1), (False, True), {}, "Int32Vector")[0]
    x, y = model.tensor((2, 8)), model.tensor((2, 6))
    model.op("FULLY_CONNECTED", [x, w, -1], [y], "FullyConnectedOptions")
    data, given = model.data([x], [y]), np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    actual = run_model(from_tflite(data), {"t1": given})[0]
    np.testing.assert_allclose(actual, litert(data, [given], xnnpack=False)[0], rtol=1e-5)


def changed(change: Callable[[Any], Any]) -> tuple[Any, Any]:
    made, elements = sparsity(array((4, 8)), *FORMATS["blocks of rows and columns"][1:])
    change(made)
    return made, elements


def _set(level: int, field: str, value: Any) -> Callable[[Any], Any]:
    return lambda made: setattr(made.dimMetadata[level], field, value)


def _set_values(field: str, k: int, value: int) -> Callable[[Any], Any]:
    return lambda made: getattr(made.dimMetadata[1], field).values.__setitem__(k, value)


CONTRADICTIONS: dict[str, Callable[[Any], Any]] = {
    r"traverses the dimensions \[0, 1, 2, 2\] of 4": lambda made: setattr(made, "traversalOrder", [0, 1, 2, 2]),
    r"traverses the dimensions \[0, 1, 2, 3\] of 3": lambda made: setattr(made, "blockMap", [0]),
    r"divides the dimensions \[0, 9\] of 2 into blocks": lambda made: setattr(made, "blockMap", [0, 9]),
    "has 3 dimensions, not 4": lambda made: made.dimMetadata.pop(),
    "divides 8 positions into blocks of 3": _set(3, "denseSize", 3),
    "has 5 positions in a dimension of 2": _set(0, "denseSize", 5),
    "has segments that do not divide its indices": _set_values("arraySegments", 1, 200),
    "has an index outside of a dimension of 2": _set_values("arrayIndices", 0, 7),
    "has two elements at one position": _set_values("arrayIndices", 0, 1),
    "has a sparse dimension without segments or indices": _set(1, "arraySegments", None),
}


@pytest.mark.parametrize("text", CONTRADICTIONS)
def test_contradicting_formats_are_refused(text: str) -> None:
    made, elements = changed(CONTRADICTIONS[text])
    with pytest.raises(AotcError, match=text) as caught:
        from_tflite(densified(array((4, 8)), made, elements))
    (found,) = caught.value.diagnostics
    assert found.code == "tflite-file" and found.span is not None and found.span.node == "tensor 0"


def test_stored_elements_must_fit() -> None:
    made, elements = changed(lambda _: None)
    with pytest.raises(AotcError, match=f"has {len(elements)} positions for {len(elements) - 1} stored elements"):
        from_tflite(densified(array((4, 8)), made, elements[1:]))
