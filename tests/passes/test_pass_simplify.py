# SPDX-License-Identifier: Apache-2.0
"""A predicate that prevents sharing, and lossless casts; `simplify.test` has all other cases."""

from __future__ import annotations

import numpy as np
import pytest
from passes.graphs import module_of, ops, var

from aotc.ir.dtype import DTYPES, DType
from aotc.relay.expr import Call
from aotc.relay.op.binary_elementwise import add
from aotc.relay.op.elementwise_unary import exp
from aotc.relay.transform import EliminateCommonSubexpr
from aotc.relay.transform.simplify_expr import is_lossless_cast


@pytest.mark.parametrize("source", [d for d in DTYPES if d.bits <= 16 and not d.startswith(("float8", "float4"))])
@pytest.mark.parametrize("target", DTYPES)
def test_lossless_is_what_numpy_finds(source: DType, target: DType) -> None:
    if source.is_float:
        with np.errstate(invalid="ignore"):
            values = np.arange(1 << 16, dtype=np.uint16).view(source.numpy).astype(np.float64)
        values = values[np.isfinite(values)]
    else:
        values = np.arange(int(source.min), int(source.max) + 1).astype(np.int32 if target.is_integer else np.float64)
    with np.errstate(all="ignore"):
        exact = bool((values.astype(target.numpy).astype(np.float64) == values).all())
    # the smallest floats and bool as targets: not claimed, so never relied on
    assert (
        is_lossless_cast(source, target) == exact
        or (exact and target.startswith(("float8", "float4")))
        or target.is_bool
    )
    assert not is_lossless_cast(source, "bool") or source.is_bool


def test_sharing_can_be_forbidden() -> None:
    x = var("x", 2, 3)
    module = module_of(add(exp(x), exp(x)), x)
    keep = EliminateCommonSubexpr(fskip=lambda node: isinstance(node, Call) and str(node.op) == "exp")
    assert ops(keep(module))["exp"] == 2
    assert ops(EliminateCommonSubexpr()(module))["exp"] == 1
