# SPDX-License-Identifier: Apache-2.0
"""Indices of reshaped tensors whose extents are known at run time only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from aotc.ir import Dim, SymDim
from aotc.tir import Binary, te, walk
from aotc.tir.expr import Const, Expr, Var, const, substitute, variable_of_symbol
from aotc.tir.simplify import simplify
from aotc.tir.tensor_graph import indices_in_reshaped_tensor

N = SymDim("n", 7)
#: Shapes with equal numbers of elements, and the number of divisions and remainders in the indices.
SHAPES: list[tuple[tuple[Dim, ...], tuple[Dim, ...], int]] = [
    ((1, 4, 2, N, 8), (1, 8, N, 8), 0),
    ((1, 8, N, 8), (1, 4, 2, N, 8), 2),
    ((N, 1, 4, 8), (N, 32), 0),
    ((2, N, 3), (2 * N, 3), 0),
    ((N, 6), (N, 2, 1, 3), 2),
    ((N, 6), (6 * N,), 0),
    ((1, N, 1), (N,), 0),
    ((N,), (1, N, 1, 1), 0),
    ((N, 4), (2, 2, N), 4),
]


@pytest.mark.parametrize(("shape", "target", "divisions"), SHAPES)
def test_indices_are_those_of_numpy(shape: Sequence[Dim], target: Sequence[Dim], divisions: int) -> None:
    source = te.placeholder(target, "float32", "x")
    axes = [Var(f"i{k}") for k in range(len(shape))]
    ranges = {axis: (0, (7 if isinstance(d, SymDim) else d) * 7) for axis, d in zip(axes, shape, strict=True)}
    indices = indices_in_reshaped_tensor(te.view(source, shape), axes, source, ranges)
    divided = {e for index in indices for e in walk(index) if isinstance(e, Binary) and e.op.startswith("floor")}
    assert len(divided) <= divisions
    for n in (1, 2, 5):
        extents, wide = ([d if isinstance(d, int) else int(str(d.bind({"n": n}))) for d in s] for s in (shape, target))
        for place in np.ndindex(*extents):
            values: dict[Var, Expr] = {axis: const(k) for axis, k in zip(axes, place, strict=True)}
            values[variable_of_symbol("n")] = const(n)
            found = [simplify(substitute(index, values), {}) for index in indices]
            expected = np.unravel_index(np.ravel_multi_index(place, extents), wide)
            assert [f.value for f in found if isinstance(f, Const)] == list(map(int, expected))
