# SPDX-License-Identifier: Apache-2.0
"""The determinants of square matrices.

matrix_determinant(x)                              # (..., n, n) -> (...)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.ir import AxisMap, PrecisionTreatment, TensorType, Type, Types, require
from aotc.ir.dimensions import Dim
from aotc.relay.op.contraction_accumulator_types import (
    cast_array,
    cast_tensor,
    widen_narrow_float_array,
    widen_narrow_float_tensor,
)
from aotc.relay.op.opdef import Accuracy, Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import may_be_equal_dims, random_array, require_float_tensor
from aotc.tir import Block, Buffer, Declare, For, If, Load, Stmt, Store, Tensor, Var, te
from aotc.tir.expr import call, const, minimum
from aotc.tir.stmt import Assign


def _infer_determinant_type(_: Any, types: Types) -> Type:
    data = require_float_tensor(types[0])
    square = data.rank >= 2 and may_be_equal_dims(data.shape[-1], data.shape[-2])
    require("determinant.data", square, lambda: f"the last two axes of {data} are not a square matrix")
    size: Dim = data.shape[-1]
    require("dynamic-shape", isinstance(size, int), lambda: f"the size of the matrices must be known, got {data}")
    return TensorType(data.shape[:-2], data.dtype)


def _determinant_reference(_: Any, data: Array) -> Array:
    return cast_array(np.asarray(np.linalg.det(widen_narrow_float_array(data))), data.dtype)


class _EliminationProgram:
    """Builds the loops of `matrix_determinant`: Gaussian elimination with partial pivoting in a copy of each matrix
    (Golub and Van Loan, "Matrix Computations", algorithm 3.4.1).
    """

    def __init__(self, data: Tensor) -> None:
        self.size, self.dtype = data.shape[-1], data.dtype
        self.matrices = math.prod(data.shape[:-2])
        self.k = Var("k")

    def build(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Sequence[Buffer]) -> Stmt:
        """Return the loops over the matrices."""
        size, row, element = self.size, Var("matrix"), Var("element")
        (self.matrix,), product = scratch, Var("product", self.dtype)
        copy = Store(self.matrix, element, Load(inputs[0], row * (size * size) + element))
        body = Block(
            (
                For(element, size * size, copy),
                Declare(product, const(1.0, self.dtype)),
                For(self.k, size, self._eliminate_column(product)),
                Store(outputs[0], row, product),
            )
        )
        return For(row, self.matrices, body)

    def _element(self, row: Scalar, column: Scalar) -> Scalar:
        return Load(self.matrix, row * self.size + column)

    def _eliminate_column(self, product: Var) -> Stmt:
        """Return statements that multiply the product by the pivot of column k and clear the column below it."""
        k, i, j, size = self.k, Var("i"), Var("j"), self.size
        pivot, factor = Var("pivot", self.dtype), Var("factor", self.dtype)
        update = Store(self.matrix, i * size + j, self._element(i, j) - factor * self._element(k, j))
        clear_row = Block((Declare(factor, self._element(i, k) / pivot), For(j, size, update, begin=k + 1)))
        return Block(
            (
                *self._swap_pivot_row(product),
                Declare(pivot, self._element(k, k)),
                Assign(product, product * pivot),
                If(~pivot.equal(const(0.0, self.dtype)), For(i, size, clear_row, begin=k + 1)),
            )
        )

    def _swap_pivot_row(self, product: Var) -> tuple[Stmt, ...]:
        """Return statements that swap row k with the row of the greatest element in column k; a swap changes the
        sign of the product. A NaN counts as the greatest, so that it reaches the result.
        """
        k, i, j, size = self.k, Var("i"), Var("j"), self.size
        best, greatest = Var("best", k.dtype), Var("greatest", self.dtype)
        candidate, swapped = Var("candidate", self.dtype), Var("swapped", self.dtype)
        take = Block((Assign(greatest, candidate), Assign(best, i)))
        look = Block((Declare(candidate, call("abs", self._element(i, k))), If(~(candidate <= greatest), take)))
        row = minimum(best, size - 1)
        exchange = Block(
            (
                Declare(swapped, self._element(k, j)),
                Store(self.matrix, k * size + j, self._element(row, j)),
                Store(self.matrix, row * size + j, swapped),
            )
        )
        swap = Block((For(j, size, exchange), Assign(product, -product)))
        return (
            Declare(best, k),
            Declare(greatest, call("abs", self._element(k, k))),
            For(i, size, look, begin=k + 1),
            If(~best.equal(k), swap),
        )


def _compute_determinant(_: Any, data: Tensor) -> Tensor:
    shape = data.shape[:-2]
    if 0 in data.shape:
        return te.compute(shape, lambda *_: const(1.0, data.dtype), "determinant")
    x = widen_narrow_float_tensor(data)
    program, scratch = _EliminationProgram(x), [(str(x.dtype), x.shape[-1] ** 2)]
    return cast_tensor(te.extern("determinant", [(shape, x.dtype)], [x], program.build, scratch=scratch)[0], data.dtype)


def _determinant_test_samples() -> Samples:
    for shape, dtype in (
        ((1, 1), "float32"),
        ((3, 4, 4), "float32"),
        ((2, 2, 7, 7), "float64"),
        ((5, 2, 2), "float16"),
    ):
        yield Sample(args=(random_array(shape, dtype),), accuracy=Accuracy.LOOSE)
    singular = np.array([[[0, 2], [3, 0]], [[1, 2], [2, 4]], [[0, 0], [0, 1]]], np.float32)
    yield Sample(args=(singular,), accuracy=Accuracy.LOOSE)
    yield Sample(args=(np.zeros((2, 0, 0), np.float32),), accuracy=Accuracy.LOOSE)


matrix_determinant = OpDef(
    name="matrix_determinant",
    doc="The determinant of each matrix of data (..., n, n).",
    infer=_infer_determinant_type,
    reference=_determinant_reference,
    axes=lambda _, types: AxisMap((tuple(range(require_float_tensor(types[0]).rank - 2)),)),
    compute=_compute_determinant,
    precision=PrecisionTreatment.NEVER,
    samples=_determinant_test_samples,
)
