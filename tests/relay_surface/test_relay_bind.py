# SPDX-License-Identifier: Apache-2.0
"""relay.bind replaces parameters and free variables by expressions; bound modules by GlobalVar."""

from __future__ import annotations

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.relay.analysis import free_vars
from aotc.relay.interpreter import evaluate

x, y, z = (relay.var(name, shape=(2,)) for name in "xyz")


def run(expr: relay.Expr, *values: float) -> list[float]:
    """What a function, or an expression of its free variables, makes of vectors of these values."""
    args = [np.full(2, v, "float32") for v in values]
    return list(np.asarray(evaluate(relay.transform.InferType()(aotc.IRModule.from_expr(expr)), *args)))


def test_constants_take_the_place_of_parameters() -> None:
    f = relay.Function([x, y], x - y)
    bound = relay.bind(f, {y: relay.const(np.full(2, 3, "float32"))})
    assert isinstance(bound, relay.Function) and bound.params == (x,)
    assert run(bound, 5) == [2, 2]
    assert f.params == (x, y) and run(f, 5, 1) == [4, 4]


def test_free_variables_of_an_expression() -> None:
    bound = relay.bind(x - y, {x: y * z, y: relay.exp(z)})  # at once: the y of the first value stays
    assert free_vars(bound) == [y, z]
    assert relay.bind(x, {x: y}) is y
    expr = relay.add(x, y)
    assert relay.bind(expr, {}) is expr and relay.bind(expr, {z: x}) is expr


def test_variables_take_the_place_of_parameters() -> None:
    f = relay.Function([x, y], x - y)
    bound = relay.bind(f, {x: z})
    assert bound.params == (z, y) and run(bound, 5, 1) == [4, 4]
    swapped = relay.bind(f, {x: y, y: x})
    assert swapped.params == (y, x) and run(swapped, 5, 1) == [4, 4]
    assert relay.bind(f, {x: z, y: z}).params == (z,)


def test_variables_of_values_become_parameters() -> None:
    f = relay.Function([x, y], x - y)
    bound = relay.bind(f, {x: relay.multiply(z, z)})
    assert bound.params == (y, z) and run(bound, 1, 3) == [8, 8]
    again = relay.bind(f, {x: x + x})
    assert again.params == (y, x) and run(again, 1, 3) == [5, 5]
    closure = relay.Function([x], x - y)
    assert relay.bind(closure, {x: relay.multiply(y, y)}).params == ()  # y was free before
    assert relay.bind(closure, {y: relay.negative(z)}).params == (x, z)


def test_attributes_stay_and_types_are_found() -> None:
    n = relay.var("n", relay.TensorType((relay.Any(), 4), "float32"))
    f = relay.Function([n], relay.nn.relu(n), attrs={"Tag": 1})
    bound = relay.bind(f, {n: relay.var("m", shape=(3, 4))})
    assert bound.attrs["Tag"] == 1
    typed = relay.transform.InferType()(aotc.IRModule.from_expr(bound))["main"]
    assert str(typed.body.checked_type) == "Tensor[(3, 4), float32]"


def test_a_long_chain() -> None:
    expr: relay.Expr = x
    for _ in range(10_000):
        expr = relay.negative(expr)
    assert run(relay.bind(relay.Function([x], expr), {x: y}), 2) == [2, 2]


def test_what_cannot_be_bound() -> None:
    f = relay.Function([x], relay.Let(y, relay.exp(x), y + x))
    inner = relay.Tuple([relay.Function([z], z), x])
    with pytest.raises(aotc.AotcError, match="%y is bound inside"):
        relay.bind(f, {y: x})
    with pytest.raises(aotc.AotcError, match="%z is bound inside") as caught:
        relay.bind(inner, {z: x, x: relay.const(1)})
    assert "%x is Tensor[(2), float32], the value is int32" in str(caught.value)
    with pytest.raises(TypeError, match="bind_params_by_name takes names"):
        relay.bind(f, {"x": relay.const(1.0)})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="not to ndarray"):
        relay.bind(f, {x: np.zeros(2)})  # type: ignore[dict-item]


def test_arrays_are_no_tuples() -> None:
    pair = relay.var("pair", relay.TupleType([relay.TensorType((2,)), relay.TensorType((2,))]))
    f = relay.Function([pair], relay.TupleGetItem(pair, 0))
    for value in (np.zeros(2, "float32"), np.zeros((2, 2), "float32")):
        with pytest.raises(aotc.AotcError, match=r"parameter 'pair' is .*, the value is Tensor") as caught:
            relay.bind_params_by_name(f, {"pair": value})
        assert caught.value.code == "bind"


def test_modules_by_global_variable() -> None:
    double, twice = relay.GlobalVar("double"), relay.GlobalVar("main")
    module = aotc.IRModule({double: relay.Function([x], x + x), twice: relay.Function([y], relay.Call(double, [y]))})
    assert list(module) == ["double", "main"] and module[double] is module["double"]
    typed = relay.transform.InferType()(module)
    assert list(np.asarray(evaluate(typed, np.ones(2, "float32")))) == [2, 2]
    with pytest.raises(TypeError, match="a module holds functions, not int"):
        aotc.IRModule({"main": 3})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="not by int"):
        aotc.IRModule({1: relay.Function([x], x)})  # type: ignore[dict-item]


def test_integers_take_the_type_of_the_parameter_if_it_holds_them() -> None:
    x, n = relay.var("x", shape=(2,), dtype="int8"), relay.var("n", shape=(), dtype="float32")
    function = relay.Function([x, n], relay.Tuple([x, n]))
    pair, number = relay.bind_params_by_name(function, {"x": np.array([-3, 100]), "n": 2}).body.fields
    assert (pair.data.dtype, number.data.dtype) == ("int8", "float32")
    for bad in ({"x": np.array([0, 128])}, {"x": np.array([1.0, 2.0])}, {"n": 2**24 + 1}):
        with pytest.raises(aotc.AotcError, match="the value is"):
            relay.bind_params_by_name(function, bad)
