# SPDX-License-Identifier: Apache-2.0
"""The probabilities of classes from those of pairs of classes, as support vector classifiers compute them.

couple_probabilities(pairs, classes=3)                     # (rows, 3 pairs) -> (rows, 3 classes)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aotc.ir import Attrs, AxisMap, DType, PrecisionTreatment, TensorType, Type, Types, require
from aotc.relay.op.opdef import Accuracy, Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import may_be_equal_dims, require_dtype, require_tensor_of_rank
from aotc.tir import BOOL, Block, Buffer, Const, Declare, For, If, Load, Stmt, Store, Tensor, Var, te
from aotc.tir.expr import call, const, maximum, minimum, select
from aotc.tir.stmt import Assign, While

#: Iterations after which the coupling of probabilities ends, and the error (times 1 / classes) at which it ends.
_MAX_COUPLING_ITERATIONS: Final = 100
_COUPLING_TOLERANCE: Final = 0.005


class CoupleProbabilitiesAttrs(Attrs):
    """The probability of each class, (N, classes), from the probability `data` (N, pairs) of the first class
    of each pair (0, 1), (0, 2), ..., (1, 2), ... of classes.

    The second method of Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by
    Pairwise Coupling" (2004), as libsvm implements it.
    """

    classes: int


def _infer_couple_probabilities_type(a: CoupleProbabilitiesAttrs, types: Types) -> Type:
    data = require_tensor_of_rank("couple_probabilities.data", types[0], 2)
    require_dtype(data.dtype, data.dtype in ("float32", "float64"))
    pairs = a.classes * (a.classes - 1) // 2
    fits = a.classes > 1 and may_be_equal_dims(data.shape[1], pairs)
    text = f"{a.classes} classes have {pairs} pairs, but the data are {data}"
    require("couple_probabilities.data", fits, text)
    return TensorType((data.shape[0], a.classes), data.dtype)


def _pair_matrix(classes: int, row: Array) -> Array:
    """Return the matrix (classes, classes) of probabilities of the first class of two, with 0 on the diagonal."""
    matrix = np.zeros((classes, classes), row.dtype)
    upper = np.triu_indices(classes, 1)
    matrix[upper] = row
    matrix.T[upper] = 1 - row
    return matrix


def _couple_probabilities_reference(a: CoupleProbabilitiesAttrs, data: Array) -> Array:
    classes = a.classes
    result = np.full((len(data), classes), 1 / classes, data.dtype)
    for row, p in zip(data, result, strict=True):
        r = _pair_matrix(classes, row)
        q = -r.T * r
        np.fill_diagonal(q, (r.T * r.T).sum(1))
        for _ in range(_MAX_COUPLING_ITERATIONS):
            product = q @ p
            total = p @ product
            if np.abs(product - total).max() < _COUPLING_TOLERANCE / classes:
                break
            for i in range(classes):
                step = (total - product[i]) / q[i, i]
                p[i] += step
                scale = 1 + step
                total = (total + step * (step * q[i, i] + 2 * product[i])) / scale / scale
                product = (product + step * q[i]) / scale
                p /= scale
    return result


class _CouplingProgram:
    """Builds the loops of `ml.couple_probabilities`."""

    def __init__(self, classes: int, data: Tensor) -> None:
        self.classes, (self.rows, self.pairs), self.dtype = classes, data.shape, str(data.dtype)
        self.row, self.i, self.j = Var("row"), Var("i"), Var("j")
        self.total, self.error, self.step, self.scale = (
            Var(name, DType(self.dtype)) for name in ("total", "error", "step", "scale")
        )
        self.zero: Scalar = const(0.0, self.dtype)

    def build(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Sequence[Buffer]) -> Stmt:
        """Return the loops over the rows: a matrix of all pairs, then iterations over the classes."""
        (self.source,), (self.out,), (self.matrix, self.product) = inputs, outputs, scratch
        running, count = Var("running", BOOL), Var("count")
        iteration = Block(
            (
                Declare(self.total, self.zero),
                For(self.i, self.classes, self._multiply_row()),
                Declare(self.error, self.zero),
                For(self.i, self.classes, self._measure()),
                Assign(running, ~(self.error < _COUPLING_TOLERANCE / self.classes)),
                If(running, For(self.i, self.classes, self._update_class())),
                Assign(count, count + 1),
            )
        )
        loop = While(running & (count < _MAX_COUPLING_ITERATIONS), iteration)
        declare = (Declare(running, Const(True, BOOL)), Declare(count, const(0, "int64")))
        return For(self.row, self.rows, Block((For(self.i, self.classes, self._start_class()), *declare, loop)))

    def _probability(self, index: Scalar) -> Scalar:
        return Load(self.out, self.row * self.classes + index)

    def _won(self, first: Scalar, second: Scalar) -> Scalar:
        """Return the probability of class `first` against class `second`; 0 for one class."""
        low, high = minimum(first, second), maximum(first, second)
        # the pairs before those of class `low`, plus the distance to `high`
        at = (low * (2 * self.classes - 1 - low)) // 2 + (high - low - 1)
        value = Load(self.source, self.row * self.pairs + minimum(at, self.pairs - 1))
        return select(first < second, value, select(first.equal(second), self.zero, const(1.0, self.dtype) - value))

    def _start_class(self) -> Stmt:
        """Return statements that fill row i of the matrix, and set the probability of class i to 1 / classes."""
        i, j, total = self.i, self.j, self.total
        off = select(i.equal(j), self.zero, -(self._won(j, i) * self._won(i, j)))
        return Block(
            (
                For(j, self.classes, Store(self.matrix, i * self.classes + j, off)),
                Store(self.out, self.row * self.classes + i, const(1.0 / self.classes, self.dtype)),
                Declare(total, self.zero),
                For(j, self.classes, Assign(total, total + self._won(j, i) * self._won(j, i))),
                Store(self.matrix, i * self.classes + i, total),
            )
        )

    def _multiply_row(self) -> Stmt:
        i, j, step = self.i, self.j, self.step
        term = Load(self.matrix, i * self.classes + j) * self._probability(j)
        return Block(
            (
                Declare(step, self.zero),
                For(j, self.classes, Assign(step, step + term)),
                Store(self.product, i, step),
                Assign(self.total, self.total + step * self._probability(i)),
            )
        )

    def _measure(self) -> Stmt:
        return Assign(self.error, maximum(self.error, call("abs", Load(self.product, self.i) - self.total)))

    def _update_class(self) -> Stmt:
        i, j, total, step, scale = self.i, self.j, self.total, self.step, self.scale
        own, product = Load(self.matrix, i * self.classes + i), Load(self.product, i)
        moved = Load(self.product, j) + step * Load(self.matrix, i * self.classes + j)
        rescale = Block(
            (
                Store(self.product, j, moved / scale),
                Store(self.out, self.row * self.classes + j, self._probability(j) / scale),
            )
        )
        return Block(
            (
                Declare(step, (total - product) / own),
                Declare(scale, step + 1.0),
                Store(self.out, self.row * self.classes + i, self._probability(i) + step),
                Assign(total, (total + step * (step * own + product * 2.0)) / scale / scale),
                For(j, self.classes, rescale),
            )
        )


def _compute_couple_probabilities(a: CoupleProbabilitiesAttrs, data: Tensor) -> Tensor:
    program = _CouplingProgram(a.classes, data)
    scratch = [(str(data.dtype), a.classes**2), (str(data.dtype), a.classes)]
    return te.extern("couple", [((data.shape[0], a.classes), data.dtype)], [data], program.build, scratch=scratch)[0]


def _couple_probabilities_test_samples() -> Samples:
    for rows, classes, dtype in ((1, 2, "float32"), (4, 3, "float32"), (3, 5, "float64")):
        pairs = classes * (classes - 1) // 2
        data = np.random.default_rng(classes).uniform(0.05, 0.95, (rows, pairs)).astype(dtype)
        yield Sample(args=(data,), attrs=CoupleProbabilitiesAttrs(classes=classes), accuracy=Accuracy.LOOSE)


couple_probabilities = OpDef(
    name="ml.couple_probabilities",
    attrs=CoupleProbabilitiesAttrs,
    infer=_infer_couple_probabilities_type,
    reference=_couple_probabilities_reference,
    axes=lambda _, __: AxisMap(((0, None),)),
    compute=_compute_couple_probabilities,
    precision=PrecisionTreatment.NEVER,
    samples=_couple_probabilities_test_samples,
)
