# SPDX-License-Identifier: Apache-2.0
"""Matrix products against numpy; type rules; backward inference."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.attrs import Attrs
from aotc.ir.dimensions import SymDim
from aotc.ir.types import TensorType
from aotc.relay.expr import Var, type_of
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.dense import (
    BatchMatmulAttrs,
    BiasAddAttrs,
    DenseAttrs,
    DensePackAttrs,
    MatmulAttrs,
    batch_matmul,
    contrib_dense_pack,
    dense,
    matmul,
)
from tests.ops.onnxruntime_oracle import close, error_code, normal, reference


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_dense(lead: tuple[int, ...]) -> None:
    x, w = normal(*lead, 7), normal(5, 7, seed=1)
    close(reference("nn.dense", DenseAttrs(units=5), x, w), x @ w.T)


@pytest.mark.parametrize("units", [6, 8, None])
def test_packed_dense_is_dense_in_blocks(units: int | None) -> None:
    x, w = normal(3, 7), normal(8, 7, seed=1)
    packed = w.reshape(2, 4, 7).transpose(0, 2, 1)
    got = reference("nn.contrib_dense_pack", DensePackAttrs(units=units, weight_layout="NC4n"), x, packed)
    close(got, x @ w[: units or 8].T)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_matmul_and_batch_matmul(transpose_a: bool, transpose_b: bool) -> None:
    x, w = normal(3, 2, 4), normal(3, 4, 5, seed=1)
    a, b = x.swapaxes(1, 2) if transpose_a else x, w.swapaxes(1, 2) if transpose_b else w
    swaps = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    close(reference("nn.matmul", MatmulAttrs(units=None, **swaps), a, b[0]), x @ w[0])
    close(reference("nn.matmul", MatmulAttrs(units=5, **swaps), a[0], b[0]), x[0] @ w[0])
    close(reference("nn.batch_matmul", BatchMatmulAttrs(**swaps), a, b), x @ w)
    close(reference("nn.batch_matmul", BatchMatmulAttrs(**swaps), a[:1], b), x[:1] @ w)
    close(reference("nn.batch_matmul", BatchMatmulAttrs(**swaps), a, b[:1]), x @ w[:1])


def test_narrow_floats_are_summed_in_float32() -> None:
    x, w = np.ones((1, 4096), np.float16), np.ones((1, 4096), np.float16)
    assert reference("nn.dense", DenseAttrs(units=1), x, w).item() == 4096
    assert reference("nn.dense", DenseAttrs(units=1, out_dtype="float32"), x, w).dtype == np.float32


def test_int8_products() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, s).astype(np.int8) for s in ((3, 500), (4, 500)))
    wide = x.astype(np.int64) @ w.astype(np.int64).T
    np.testing.assert_array_equal(reference("nn.dense", DenseAttrs(units=4, out_dtype="int32"), x, w), wide)
    np.testing.assert_array_equal(reference("nn.dense", DenseAttrs(units=4), x, w), wide.astype(np.int8))


@pytest.mark.parametrize(
    ("name", "code", "shapes", "attributes"),
    [
        ("nn.dense", "matmul.inner", ((2, 3), (4, 5)), DenseAttrs(units=4)),
        ("nn.dense", "matmul.units", ((2, 3), (4, 3)), DenseAttrs(units=5)),
        ("nn.dense", "dense.weight-rank", ((2, 3), (4,)), DenseAttrs(units=4)),
        ("nn.contrib_dense_pack", "dense.block", ((2, 3), (2, 3, 4)), DensePackAttrs(units=9, weight_layout="NC4n")),
        ("nn.contrib_dense_pack", "layout", ((2, 3), (2, 3, 4)), DensePackAttrs(units=8)),
        ("nn.matmul", "matmul.rank", ((2, 3), (3,)), MatmulAttrs(units=None)),
        ("nn.batch_matmul", "batch_matmul.batch", ((2, 3, 4), (3, 4, 5)), BatchMatmulAttrs()),
        ("nn.batch_matmul", "batch_matmul.rank", ((3, 4), (3, 4, 5)), BatchMatmulAttrs()),
        ("nn.bias_add", "bias_add.bias", ((2, 3), (2,)), BiasAddAttrs()),
        ("nn.bias_add", "axis", ((2, 3), (3,)), BiasAddAttrs(axis=2)),
    ],
)
def test_ill_typed_products(name: str, code: str, shapes: tuple[tuple[int, ...], ...], attributes: Attrs) -> None:
    assert error_code(OPERATORS_BY_NAME[name].infer, attributes, [TensorType(s) for s in shapes]) == code


def test_weights_without_type_are_solved_from_their_use() -> None:
    data = TensorType((2, 7))
    for name, attributes, want in (
        ("nn.dense", DenseAttrs(units=5), TensorType((5, 7))),
        ("nn.matmul", MatmulAttrs(units=5), TensorType((7, 5))),
        ("nn.bias_add", BiasAddAttrs(), TensorType((7,))),
    ):
        refine = OPERATORS_BY_NAME[name].refine
        assert refine is not None
        assert refine(attributes, [data, None])[1] == want


def test_functions() -> None:
    batch = SymDim("batch")
    x, w = Var("x", TensorType((batch, 7))), Var("w", TensorType((5, 7)))
    assert type_of(dense(x, w)) == TensorType((batch, 5))
    assert type_of(matmul(x, w, transpose_b=True)) == TensorType((batch, 5))
    packed = Var("p", TensorType((2, 7, 4)))
    assert type_of(contrib_dense_pack(x, packed, "NC4n", units=6)) == TensorType((batch, 6))
    a, b = Var("a", TensorType((4, 2, 3))), Var("b", TensorType((4, 5, 3)))
    assert type_of(batch_matmul(a, b)) == TensorType((4, 2, 5))
