# SPDX-License-Identifier: Apache-2.0
"""Python's operators on expressions build the calls of the functions with these names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.relay.expr import Expr, Var


def operands() -> tuple[Var, Var]:
    return relay.var("x", shape=(2, 3)), relay.var("y", shape=(2, 3))


CASES: dict[str, tuple[Callable[[Any, Any], Expr], Callable[[Any, Any], Any]]] = {
    "add": (lambda x, y: x + y, np.add),
    "subtract": (lambda x, y: x - y, np.subtract),
    "multiply": (lambda x, y: x * y, np.multiply),
    "divide": (lambda x, y: x / y, np.divide),
    "negative": (lambda x, y: -x, lambda a, b: -a),
    "less": (lambda x, y: x < y, np.less),
    "less_equal": (lambda x, y: x <= y, np.less_equal),
    "greater": (lambda x, y: x > y, np.greater),
    "greater_equal": (lambda x, y: x >= y, np.greater_equal),
    "cast": (lambda x, y: x.astype("int32"), lambda a, b: a.astype("int32")),
}


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    x, y = operands()
    build, meaning = CASES[name]
    made = build(x, y)
    assert made.op.name == name and made.checked_type is not None
    a, b = (np.random.default_rng(k).uniform(-3, 3, (2, 3)).astype("float32") for k in range(2))
    value = relay.create_executor("debug").evaluate(relay.Function([x, y], made))(a, b).numpy()
    np.testing.assert_allclose(value, meaning(a, b), rtol=1e-6)


@pytest.mark.parametrize("wrong", [1.0, 2, True, np.ones(3), "x", None])
@pytest.mark.parametrize("build", [lambda x, v: x + v, lambda x, v: v * x if not hasattr(v, "shape") else x * v])
def test_numbers_are_not_guessed_at(build: Callable[[Any, Any], Any], wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"const` first|expected an expression"):
        build(operands()[0], wrong)


def test_equality_is_identity() -> None:
    x, y = operands()
    assert x == x and x != y and (x + y) != (x + y)
    assert len({x, y, x}) == 2


def test_functions_are_called() -> None:
    x, y = operands()
    square = relay.Function([x], x * x)
    mod = aotc.IRModule.from_expr(relay.Function([y], square(y + y)))
    two = np.full((2, 3), 2, "float32")
    np.testing.assert_array_equal(relay.create_executor("debug", mod).evaluate()(two).numpy(), two * 8)
    call = relay.GlobalVar("main")(x)
    assert isinstance(call, relay.Call) and call.args == (x,)


def test_results_that_are_tuples() -> None:
    x, y = operands()
    parts = relay.split(x, 3, axis=1)
    assert len(parts) == 3 and bool(parts)
    first, second, third = parts
    assert [p.index for p in (first, second, third)] == [0, 1, 2]
    assert parts[-1].index == 2 and str(first.checked_type) == "Tensor[(2, 1), float32]"
    with pytest.raises(IndexError):
        parts[3]
    with pytest.raises(TypeError, match="not a tuple"):
        len(x + y)
    pair = relay.Tuple([x, y])
    assert (len(pair), pair[0], list(pair)) == (2, x, [x, y])
    assert bool(relay.Tuple([])) and bool(x + y)


def test_names() -> None:
    assert aotc.ir.Op.get("nn.conv2d").name == "nn.conv2d"
    with pytest.raises(aotc.AotcError, match=r"nn\.conv2"):
        aotc.ir.Op.get("nn.conv2")
    assert str(relay.scalar_type("float32")) == "float32"
    assert str(relay.var("v", shape=(relay.Any(), 3)).checked_type) == "Tensor[(?, 3), float32]"


def test_ill_typed_programs_are_shown_with_a_caret() -> None:
    head = "def @main(%x: Tensor[(2, 3), float32]) -> Tensor[(3, 3), float32] {"
    text = '#[version = "0.0.5"]\n' + head + "\n  nn.relu(%x)\n}"
    with pytest.raises(aotc.AotcError) as caught:
        relay.transform.InferType()(relay.fromtext(text))
    first, line, caret = str(caught.value).split("\n")[:3]
    assert "Tensor[(2, 3), float32]" in first and "Tensor[(3, 3), float32]" in first
    assert line.strip() == head and caret.strip() == "^"


@pytest.mark.parametrize(("name", "hint"), [("lvm", "llvm"), ("x86-64-v5", "x86-64-v4")])
def test_unknown_targets_name_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(aotc.AotcError, match=hint):
        aotc.target.Target(name)


def test_unknown_operators_have_no_layout() -> None:
    with pytest.raises(aotc.AotcError, match=r"nn\.conv2d"):
        relay.transform.ConvertLayout({"nn.conv2": ["NHWC", "HWIO"]})
