# SPDX-License-Identifier: Apache-2.0
"""Helpers of the pass tests: small graphs, random constants, and comparison of a module with its rewritten form."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc.ir.transform import Pass, PassContext
from aotc.ir.types import TensorType
from aotc.relay.analysis import list_op_freqs
from aotc.relay.expr import Constant, Expr, Function, Var
from aotc.relay.instrument.verifier import Verifier
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.type_inference import infer_module


def var(name: str, *shape: int, dtype: str = "float32") -> Var:
    return Var(name, TensorType(shape, dtype))


def const(value: Any, dtype: str = "float32") -> Constant:
    return Constant(np.asarray(value, dtype))


def noise(*shape: int, seed: int = 0, positive: bool = False) -> Constant:
    values = np.random.default_rng(seed).standard_normal(shape)
    return Constant((np.abs(values) + 0.5 if positive else values).astype(np.float32))


def module_of(body: Expr, *params: Var) -> IRModule:
    return infer_module(IRModule({"main": Function(params, body)}))


def random_inputs(module: IRModule, seed: int = 7) -> list[Any]:
    rng = np.random.default_rng(seed)
    types = [p.checked_type for p in module.main.params]
    assert all(isinstance(t, TensorType) for t in types)
    return [(rng.standard_normal(t.static_shape) * 3).astype(t.dtype.numpy) for t in types]  # type: ignore[union-attr]


def checked(pass_: Pass[IRModule], module: IRModule, opt_level: int = 3, **tolerance: float) -> IRModule:
    """The rewritten module, verified: well formed, its input untouched, the same values on random inputs."""
    with PassContext(opt_level=opt_level, instruments=[Verifier()]):
        result = pass_(module)
    inputs = random_inputs(module)
    expected, got = evaluate(module, *inputs), evaluate(result, *inputs)
    if not isinstance(expected, tuple):
        expected, got = (expected,), (got,)
    for a, b in zip(expected, got, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            b.astype(np.float64),
            a.astype(np.float64),
            rtol=tolerance.get("rtol", 1e-5),
            atol=tolerance.get("atol", 1e-5),
        )
    return result


def ops(module: IRModule) -> dict[str, int]:
    """Calls of each operator in @main."""
    return list_op_freqs(module.main)
