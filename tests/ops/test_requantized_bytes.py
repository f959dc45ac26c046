# SPDX-License-Identifier: Apache-2.0
"""Bytes converted to another scale: by a factor where it gives the same 256 results, otherwise by a table."""

from __future__ import annotations

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir.dtype import DType
from aotc.relay.instrument.op_count_changes import count_op_calls
from aotc.relay.interpreter import evaluate
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.qnn.concatenate import ConcatenateAttrs
from aotc.relay.transform import InferType, QnnCanonicalizeOps

CONCATENATE = OPERATORS_BY_NAME["qnn.concatenate"]


def joined(dtype: str, scale: float, zero: int, onto: float, other: int) -> tuple[dict[str, int], bool]:
    """The operators of a concatenation of one tensor, and whether it gives what its definition does."""
    x = relay.var("x", shape=(256,), dtype=dtype)
    numbers = (np.float32(scale), np.int32(zero), np.float32(onto), np.int32(other))
    first, second, third, fourth = map(relay.const, numbers)
    y = relay.qnn.op.concatenate((x,), (first,), (second,), third, fourth)
    module = QnnCanonicalizeOps()(InferType()(aotc.IRModule.from_expr(relay.Function([x], y))))
    every = np.arange(256, dtype=np.uint8).view(DType(dtype).numpy)
    assert CONCATENATE.reference is not None
    expected = CONCATENATE.reference(ConcatenateAttrs(), (every,), *((v,) for v in numbers[:2]), *numbers[2:])
    return dict(count_op_calls(module)), np.array_equal(evaluate(module, every), expected)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_factors(dtype: str) -> None:
    rng = np.random.default_rng(0)
    low = 0 if dtype == "uint8" else -128
    for _ in range(20):
        scales, zeros = rng.uniform(0.001, 0.1, 2), rng.integers(0, 256, 2) + low
        ops, right = joined(dtype, scales[0], int(zeros[0]), scales[1], int(zeros[1]))
        assert right and "take" not in ops


@pytest.mark.parametrize("ratio", [0.5, 1.5, 0.25, 100.0, 1e-4])
def test_ties_and_ends(ratio: float) -> None:
    """Halves that no factor rounds as the definition does; results that are all saturated, or all one number."""
    for scale, zero, onto in ((0.1, 0, 0), (0.013, 128, 17), (0.3, 255, 255)):
        assert joined("uint8", ratio * scale, zero, scale, onto)[1]
