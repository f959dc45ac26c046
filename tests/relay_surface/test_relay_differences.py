# SPDX-License-Identifier: Apache-2.0
"""The differences from Relay that the documentation states, each shown by a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.relay import transform

Q = relay.qnn.op


def x(*shape: int, dtype: str = "float32", name: str = "x") -> relay.Var:
    return relay.var(name, shape=shape, dtype=dtype)


def after(passed: Any, expr: relay.Expr) -> list[str]:
    """The operators that a pass leaves of an expression, sorted."""
    module = passed(transform.InferType()(aotc.IRModule.from_expr(expr)))
    return sorted(relay.analysis.list_op_freqs(module))


#: What the page says is an error, and a part of its message.
ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "operands of two types": (lambda: relay.add(x(2), relay.const(1)), "float32 and int32"),
    "a convolution of two types": (
        lambda: relay.nn.conv2d(x(1, 3, 8, 8), relay.const(np.zeros((4, 3, 3, 3)))),
        "float32 and float64",
    ),
    "a logarithm of integers": (lambda: relay.log(x(2, dtype="int32")), "int32"),
    "a condition of numbers": (lambda: relay.where(x(2), x(2), x(2)), "must be bool"),
    "depth that is no multiple": (lambda: relay.nn.depth_to_space(x(1, 3, 8, 8), 4), "not a multiple"),
    "batches that blocks do not divide": (
        lambda: relay.nn.batch_to_space_nd(x(1, 4, 4, 2), (2, 2), ((0, 0), (0, 0))),
        "not a multiple",
    ),
    "bounds of two lengths": (lambda: relay.strided_slice(x(4, 4), [0, 0], [2], [1, 1]), "1 ends"),
    "a zero point outside": (
        lambda: after(
            relay.qnn.transform.CanonicalizeOps(),
            Q.dense(x(2, 3, dtype="int8"), x(4, 3, dtype="int8", name="w"), 0, 200, 1.0, 1.0, units=4),
        ),
        "outside of int8",
    ),
    "several results for each channel, channels first": (
        lambda: relay.nn.conv2d(x(1, 4, 8, 8), x(4, 2, 3, 3, name="w"), groups=4, channels=8),
        "groups=4",
    ),
    "float64 as reduced precision": (lambda: transform.ToMixedPrecision("float64"), "float64"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    act, message = ERRORS[name]
    with pytest.raises((aotc.TVMError, ValueError), match=message):
        act()


def _bias() -> relay.Expr:
    pair = relay.const(0.5), relay.const(0)
    w = relay.const(np.ones((4, 3), "int8"))
    sums = relay.nn.dense(Q.dequantize(x(2, 3, dtype="int8"), *pair), Q.dequantize(w, *pair))
    bias = Q.dequantize(x(4, dtype="int32", name="b"), *pair)
    return Q.quantize(relay.add(sums, bias), relay.const(1.0), relay.const(0))


#: Expressions, and the operators that a pass leaves of them.
FORMS: dict[str, tuple[Any, Callable[[], relay.Expr], list[str]]] = {
    "a bias that is no constant": (
        transform.FakeQuantizationToInteger(),
        _bias,
        ["add", "nn.dense", "qnn.dequantize", "qnn.quantize"],
    ),
    "a reciprocal root": (
        transform.SimplifyExpr(),
        lambda: relay.divide(relay.const(1.0), relay.sqrt(x(2))),
        ["divide", "sqrt"],
    ),
    "half": (transform.SimplifyExpr(), lambda: relay.divide(x(2), relay.const(2.0)), ["multiply"]),
    "a sum of sums": (
        transform.SimplifyExpr(),
        lambda: relay.add(relay.add(x(2), relay.const([0.1, 0.2])), relay.const([0.3, 0.4])),
        ["add"],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    passed, make, left = FORMS[name]
    assert after(passed, make()) == left


def test_values() -> None:
    assert isinstance(relay.const(1).data, np.ndarray)
    assert str(relay.argmax(x(2, 3), axis=1).checked_type.dtype) == "int32"
    for absent in ("debug", "loops", "quantize"):
        assert not hasattr(relay, absent)
    assert not hasattr(Q, "simulated_quantize") and not hasattr(relay.transform, "gradient")


def test_functions_of_other_compilers_stay_where_they_are() -> None:
    module = relay.parse("""#[version = "0.0.5"]
def @main(%a: int32) -> int32 { @f(%a) }
def @f(%a: int32, Inline=1, Compiler="other") -> int32 { %a }""")
    assert "f" in transform.Inline()(module).functions
