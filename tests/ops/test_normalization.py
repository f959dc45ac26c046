# SPDX-License-Identifier: Apache-2.0
"""Normalizations and softmax against ONNX Runtime; type rules; backward inference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from aotc.ir.types import TensorType, TupleType
from aotc.relay.expr import Var, type_of
from aotc.relay.op import OPERATORS_BY_NAME, normalization
from aotc.relay.op.normalization import (
    BatchNormAttrs,
    GroupNormAttrs,
    InstanceNormAttrs,
    L2NormalizeAttrs,
    LayerNormAttrs,
    LRNAttrs,
    RMSNormAttrs,
)
from aotc.relay.op.softmax import SoftmaxAttrs
from tests.ops.onnxruntime_oracle import close, error_code, normal, ort, reference


def test_batch_norm_agrees_with_onnx_runtime() -> None:
    x, gamma, beta, mean = normal(2, 3, 4, 5), normal(3, seed=1), normal(3, seed=2), normal(3, seed=3)
    var = np.abs(normal(3, seed=4)) + 0.1
    got = OPERATORS_BY_NAME["nn.batch_norm"].reference(BatchNormAttrs(epsilon=1e-3), x, gamma, beta, mean, var)
    close(got[0], ort("BatchNormalization", x, gamma, beta, mean, var, epsilon=1e-3), 1e-5)
    np.testing.assert_array_equal(got[1], mean)
    np.testing.assert_array_equal(got[2], var)


def test_batch_norm_result_and_backward_inference() -> None:
    data = TensorType((1, 3, 4, 5))
    x = Var("x", data)
    params = [Var(n, TensorType((3,))) for n in "gbmv"]
    assert type_of(normalization.batch_norm(x, *params)) == TupleType((data, TensorType((3,)), TensorType((3,))))
    refine = OPERATORS_BY_NAME["nn.batch_norm"].refine
    assert refine is not None
    assert list(refine(BatchNormAttrs(), [data, None, None, None, None])) == [data, *[TensorType((3,))] * 4]
    infer = OPERATORS_BY_NAME["nn.batch_norm"].infer
    assert error_code(infer, BatchNormAttrs(axis=2), [data, *[TensorType((3,))] * 4]) == "norm.params"


def test_layer_norm_agrees_with_onnx_runtime() -> None:
    x, gamma, beta = normal(2, 3, 16) + 100, normal(16, seed=1), normal(16, seed=2)
    got = reference("nn.layer_norm", LayerNormAttrs(epsilon=1e-3), x, gamma, beta)
    close(got, ort("LayerNormalization", x, gamma, beta, epsilon=1e-3), 2e-5)


def test_instance_norm_agrees_with_onnx_runtime() -> None:
    x, gamma, beta = normal(2, 3, 4, 5), normal(3, seed=1), normal(3, seed=2)
    got = reference("nn.instance_norm", InstanceNormAttrs(), x, gamma, beta)
    close(got, ort("InstanceNormalization", x, gamma, beta), 1e-5)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_is_instance_norm_of_groups(groups: int) -> None:
    x, gamma, beta = normal(2, 6, 4, 5), normal(6, seed=1), normal(6, seed=2)
    got = reference("nn.group_norm", GroupNormAttrs(num_groups=groups), x, gamma, beta)
    ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    plain = ort("InstanceNormalization", x.reshape(2, groups, -1), ones, zeros).reshape(x.shape)
    close(got, plain * gamma[:, None, None] + beta[:, None, None], 1e-5)


def test_rms_norm_agrees_with_onnx() -> None:
    x, gamma = normal(2, 3, 16) + 10, normal(16, seed=1)
    node = helper.make_node("RMSNormalization", ["x", "g"], ["y"], epsilon=1e-3)
    (want,) = ReferenceEvaluator(node).run(None, {"x": x, "g": gamma})
    close(reference("nn.rms_norm", RMSNormAttrs(epsilon=1e-3), x, gamma), want, 1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_lrn_agrees_with_onnx_runtime(size: int) -> None:
    x = normal(1, 7, 3, 2)
    fields = {"alpha": 0.5, "beta": 0.6, "bias": 1.5, "size": size}
    want = ort("LRN", x, **fields) if size % 2 else _lrn(x, size)
    close(reference("nn.lrn", LRNAttrs(**fields), x), want, 1e-5)


def _lrn(x: np.ndarray, size: int) -> np.ndarray:
    """ONNX's definition, which ONNX Runtime has for odd sizes only."""
    total = np.zeros_like(x)
    for c in range(x.shape[1]):
        first, last = max(0, c - (size - 1) // 2), min(x.shape[1] - 1, c + -(-(size - 1) // 2))
        total[:, c] = np.square(x[:, first : last + 1]).sum(1)
    return x / (1.5 + 0.5 / size * total) ** 0.6


def test_l2_normalize_gives_unit_vectors() -> None:
    x = normal(2, 3, 5)
    got = reference("nn.l2_normalize", L2NormalizeAttrs(eps=1e-12, axis=(1,)), x)
    close(got, ort("LpNormalization", x, axis=1, p=2), 1e-6)
    zero = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(reference("nn.l2_normalize", L2NormalizeAttrs(eps=1e-6, axis=(1,)), zero), zero)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_agrees_with_onnx_runtime(axis: int) -> None:
    x = 30 * normal(3, 5, 4)
    close(reference("nn.softmax", SoftmaxAttrs(axis=axis), x), ort("Softmax", x, axis=axis))
    close(reference("nn.log_softmax", SoftmaxAttrs(axis=axis), x), ort("LogSoftmax", x, axis=axis))


def test_softmax_of_large_and_infinite_values() -> None:
    x = np.array([[1e38, 1e38], [-np.inf, 0.0], [-np.inf, -np.inf]], np.float32)
    with np.errstate(invalid="ignore"):
        got = reference("nn.softmax", SoftmaxAttrs(), x)
    np.testing.assert_array_equal(got, np.array([[0.5, 0.5], [0, 1], [np.nan, np.nan]], np.float32))


def test_dropout_is_the_identity() -> None:
    x = Var("x", TensorType((2, 3)))
    assert type_of(normalization.dropout(x)) == TensorType((2, 3))
    data = normal(2, 3)
    np.testing.assert_array_equal(
        OPERATORS_BY_NAME["nn.dropout"].reference(normalization.DropoutAttrs(), data)[0], data
    )


def test_ill_typed_norms() -> None:
    x, p = TensorType((1, 6, 4)), TensorType((6,))
    assert error_code(OPERATORS_BY_NAME["nn.softmax"].infer, SoftmaxAttrs(axis=3), [x]) == "axis"
    assert error_code(OPERATORS_BY_NAME["nn.softmax"].infer, SoftmaxAttrs(), [TensorType((2,), "int32")]) == "dtype"
    assert (
        error_code(OPERATORS_BY_NAME["nn.group_norm"].infer, GroupNormAttrs(num_groups=4), [x, p, p]) == "norm.groups"
    )
    assert error_code(OPERATORS_BY_NAME["nn.layer_norm"].infer, LayerNormAttrs(), [x, p, p]) == "norm.params"
    half = TensorType((6,), "float16")
    assert (
        error_code(OPERATORS_BY_NAME["nn.instance_norm"].infer, InstanceNormAttrs(), [x, half, p]) == "dtype-mismatch"
    )
