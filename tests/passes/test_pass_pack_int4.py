# SPDX-License-Identifier: Apache-2.0
"""Tables of 4-bit integers in compiled code; `pack_int4.test` has single cases."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest

import aotc
from aotc import relay
from tests.share import share_of_each

RNG = np.random.default_rng(0)


def table(dtype: str, *shape: int) -> np.ndarray:
    """All values of a type."""
    info = ml_dtypes.iinfo(getattr(ml_dtypes, dtype))
    values = np.resize(np.arange(int(info.min), int(info.max) + 1), int(np.prod(shape)))
    return RNG.permutation(values).reshape(shape).astype(getattr(ml_dtypes, dtype))


def looked_up(values: np.ndarray) -> aotc.IRModule:
    """Rows of a table as real numbers."""
    rows = relay.var("rows", shape=(5,), dtype="int64")
    taken = relay.take(relay.const(values), rows, axis=0)
    real = relay.qnn.op.dequantize(taken, relay.const(0.5), relay.const(0))
    return aotc.IRModule.from_expr(relay.Function([rows], real))


@pytest.mark.parametrize(
    ("setting", "shape"), share_of_each(product(["int4", "uint4"], ["c", "host"]), [(64, 32), (64, 33), (9, 4, 15)], 1)
)
def test_compiled_tables(setting: tuple[str, str], shape: tuple[int, ...]) -> None:
    dtype, target = setting
    values = table(dtype, *shape)
    made = aotc.compile(looked_up(values), target=target, cflags=["-O1"])
    plain = aotc.compile(looked_up(values), target=target, cflags=["-O1"], disabled_pass=["PackNibbles"])
    assert plain.metadata["weights_bytes"] >= values.size
    assert made.metadata["weights_bytes"] <= values.size // 2 + 256
    assert made.metadata["kernels"] == plain.metadata["kernels"] and made.metadata["memory"]["peak"] == 0
    rows = np.array([0, shape[0] - 1, 3, 8, 1])
    expected = values[rows].astype(np.float32) * np.float32(0.5)
    for compiled in (made, plain):
        np.testing.assert_array_equal(compiled.session().run(None, {"rows": rows})[0], expected)
