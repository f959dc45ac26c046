# SPDX-License-Identifier: Apache-2.0
"""Combinations of normal forms and inlining, and code compiled from them; see `normal_forms.test`, too."""

from __future__ import annotations

import time

import numpy as np
import pytest
from passes.graphs import checked, const, module_of, noise, ops, random_inputs, var

import aotc
from aotc.ir.transform import Pass, PassContext
from aotc.ir.types import TensorType
from aotc.relay.expr import Call, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, Var
from aotc.relay.instrument.verifier import Verifier
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, greater, multiply, subtract
from aotc.relay.op.concat_split import split
from aotc.relay.op.conv import conv2d
from aotc.relay.op.elementwise_unary import exp, negative, relu, tanh
from aotc.relay.op.reduce import sum as sum_of
from aotc.relay.testing import mlp
from aotc.relay.transform import Inline, ToANormalForm, ToBasicBlockNormalForm, ToGraphNormalForm
from aotc.relay.transform.pipeline import optimize
from aotc.relay.type_inference import infer_module
from aotc.relay.visitor import post_order
from aotc.tir.target import C


def lets(module: IRModule) -> int:
    return sum(isinstance(n, Let) for n in post_order(module.main))


def diamond() -> IRModule:
    x = var("x", 2, 6)
    shared = relu(x)
    parts = split(add(shared, exp(shared)), 2, axis=1)
    return module_of(Tuple((multiply(TupleGetItem(parts, 0), TupleGetItem(parts, 1)), shared)), x)


def branches() -> IRModule:
    """An if whose branches share what the condition does not use, one branch having an if of its own."""
    x, y = var("x", 3), var("y", 3)
    both = exp(multiply(x, const(0.1)))
    inner = If(greater(sum_of(y), const(1.0)), add(both, y), negative(both))
    return module_of(If(greater(sum_of(x), const(0.0)), relu(both), inner), x, y)


def closures() -> IRModule:
    """let f = fn(a) { tanh(a) + w }; f(f(x)) + g(x) with a closure g over a step of the outer body."""
    x, w, a, b, f = var("x", 4), var("w", 4), var("a", 4), var("b", 4), Var("f")
    double = Function((a,), add(tanh(a), w))
    shared = multiply(x, w)
    other = Call(Function((b,), subtract(shared, b)), (x,))
    return module_of(Let(f, double, add(Call(f, (Call(f, (x,)),)), multiply(other, shared))), x, w)


def several() -> IRModule:
    """@main calls @f twice; @f calls @g; nobody calls @h."""
    x, y, z, u = var("x", 2, 3), var("y", 2, 3), var("z", 2, 3), var("u", 2, 3)
    f, g, local = GlobalVar("f"), GlobalVar("g"), Var("local")
    return infer_module(
        IRModule(
            {
                "main": Function((x,), add(Call(f, (x,)), Call(f, (exp(x),)))),
                "f": Function((y,), Let(local, negative(y), multiply(local, Call(g, (local,))))),
                "g": Function((z,), relu(z)),
                "h": Function((u,), Call(g, (u,))),
            }
        )
    )


def looping() -> IRModule:
    """let loop = fn(n, v) { if n > 0 then loop(n - 1, v * 2) else v }; loop(3, x)."""
    x, n, v, loop = var("x", 2), var("n"), var("v", 2), Var("loop")
    step = Call(loop, (subtract(n, const(1.0)), multiply(v, const(2.0))))
    body = Function((n, v), If(greater(n, const(0.0)), step, v), TensorType((2,), "float32"))
    return module_of(Let(loop, body, Call(loop, (const(3.0), x))), x)


PROGRAMS = {"diamond": diamond, "branches": branches, "closures": closures, "several": several, "looping": looping}
FORMS: dict[str, Pass[IRModule]] = {
    "a": ToANormalForm(),
    "basic blocks": ToBasicBlockNormalForm(),
    "graph": ToGraphNormalForm(),
    "inlined": Inline(everything=True),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
def test_forms_keep_values(program: str, first: str, second: str) -> None:
    module = checked(FORMS[first], PROGRAMS[program]())
    checked(FORMS[second], module)


@pytest.mark.parametrize("sign", [1, -1])
def test_both_branches_keep_their_values(sign: int) -> None:
    module = branches()
    inputs = [np.full(3, sign, np.float32), np.full(3, 2, np.float32)]
    for form in FORMS.values():
        np.testing.assert_array_equal(evaluate(form(module), *inputs), evaluate(module, *inputs))


@pytest.mark.parametrize("program", ["diamond", "closures", "several"])
@pytest.mark.parametrize("level", range(4))
def test_one_flat_function_for_the_back_end(program: str, level: int) -> None:
    for form in ("a", "graph"):
        module = FORMS[form](PROGRAMS[program]())
        with PassContext(opt_level=level, instruments=[Verifier()]):
            result = optimize(module, C)
        assert list(result) == ["main"]
        assert lets(result) == 0
        inputs = random_inputs(module)
        expected, got = evaluate(module, *inputs), evaluate(result, *inputs)
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


def test_lets_do_not_hide_patterns() -> None:
    x = var("x", 1, 3, 8, 8)
    module = module_of(relu(multiply(conv2d(x, noise(4, 3, 3, 3)), noise(4, 1, 1, positive=True))), x)
    with PassContext(opt_level=3):
        plain, named = optimize(module, C), optimize(ToANormalForm()(module), C)
    assert ops(named) == ops(plain)
    assert "multiply" not in ops(named)


@pytest.mark.parametrize("program", ["diamond", "closures", "several"])
def test_compiled_to_c(program: str) -> None:
    module = ToANormalForm()(PROGRAMS[program]())
    inputs = random_inputs(module)
    names = [p.name for p in module.main.params]
    expected = evaluate(module, *inputs)
    session = aotc.compile(module, target="c").session()
    results = session.run(None, dict(zip(names, inputs, strict=True)))
    wanted = list(expected) if isinstance(expected, tuple) else [expected]
    for a, b in zip(wanted, results, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


def test_a_long_chain() -> None:
    x = var("x", 2)
    body: Expr = x
    for _ in range(10_000):
        body = negative(body)
    module = module_of(body, x)
    start = time.monotonic()
    named = ToANormalForm()(module)
    assert lets(named) == 10_000
    assert lets(ToGraphNormalForm()(named)) == 0
    assert lets(ToBasicBlockNormalForm()(module)) == 0
    assert ops(Inline(everything=True)(named))["negative"] == 10_000
    assert time.monotonic() - start < 60


def test_a_workload() -> None:
    module, params = mlp.get_workload(1)
    module = infer_module(module)
    named = ToANormalForm()(module)
    assert lets(named) == sum(ops(module).values())
    data = np.random.default_rng(0).standard_normal((1, 1, 28, 28)).astype(np.float32)
    values = {k: np.asarray(v) for k, v in params.items()} | {"data": data}
    np.testing.assert_array_equal(evaluate(named, params=values), evaluate(module, params=values))
