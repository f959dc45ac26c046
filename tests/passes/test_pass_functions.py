# SPDX-License-Identifier: Apache-2.0
"""LambdaLift and EtaExpand: function values as global functions and the other way round."""

from __future__ import annotations

import numpy as np
from passes.graphs import checked, const, module_of, var

from aotc.ir.types import FuncType, TensorType
from aotc.relay.analysis import well_formed
from aotc.relay.expr import Call, Expr, Function, GlobalVar, If, Let, Var
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, greater, multiply, subtract
from aotc.relay.op.elementwise_unary import exp, relu, tanh
from aotc.relay.transform import EtaExpand, FuseOps, Inline, LambdaLift, ToANormalForm
from aotc.relay.type_inference import infer_module
from aotc.relay.visitor import post_order

VECTOR = TensorType((4,), "float32")


def literals(expr: Expr) -> int:
    """Function literals below a function."""
    return sum(isinstance(n, Function) and n is not expr for n in post_order(expr))


def test_a_literal_without_captures_becomes_a_function() -> None:
    x, a, f = var("x", 4), var("a", 4), Var("f")
    module = module_of(Let(f, Function((a,), tanh(a)), add(Call(f, (x,)), Call(f, (exp(x),)))), x)
    result = checked(LambdaLift(), module)
    assert list(result) == ["main", "main_lifted"]
    assert literals(result.main) == literals(result["main_lifted"]) == 0
    assert LambdaLift()(result) is result


def test_captures_become_parameters() -> None:
    x, w, a, b = var("x", 4), var("w", 4), var("a", 4), var("b", 4)
    inner = Function((b,), multiply(add(b, w), a))
    outer = Function((a,), add(Call(inner, (relu(a),)), w))
    module = module_of(Call(outer, (Call(outer, (x,)),)), x, w)
    result = checked(LambdaLift(), module)
    assert list(result) == ["main", "main_lifted", "main_lifted_1"]
    assert literals(result.main) == 0
    closures = [result["main_lifted"], result["main_lifted_1"]]
    assert [f.attrs.get("Closure") for f in closures] == [1, 1]
    assert [len(f.params) for f in closures] == [2, 1]
    assert LambdaLift()(result) is result


def test_a_let_that_several_literals_share() -> None:
    """It becomes part of several global functions: each binds a variable of its own."""
    x, a, b, v, w = var("x", 4), var("a", 4), var("b", 4), Var("v"), Var("w")
    shared = Let(v, tanh(x), add(v, v))
    first, second = Function((a,), add(a, shared)), Function((b,), Let(w, exp(b), multiply(w, shared)))
    module = module_of(add(Call(first, (x,)), add(Call(second, (x,)), shared)), x)
    result = checked(LambdaLift(), module)
    assert len(result) == 3 and literals(result.main) == 0
    assert well_formed(result)


def test_recursive_literals() -> None:
    x, w, n, v, loop = var("x", 2), var("w", 2), var("n"), var("v", 2), Var("loop")
    step = Call(loop, (subtract(n, const(1.0)), multiply(v, w)))
    body = Function((n, v), If(greater(n, const(0.0)), step, v), TensorType((2,), "float32"))
    module = module_of(Let(loop, body, Call(loop, (const(3.0), x))), x, w)
    result = checked(LambdaLift(), module)
    assert list(result) == ["main", "main_lifted"]
    assert literals(result.main) == 0
    values = [np.array([1, 2], np.float32), np.array([2, 3], np.float32)]
    np.testing.assert_array_equal(evaluate(result, *values), [8, 54])


def test_names_that_are_taken_are_not_used() -> None:
    x, y, a = var("x", 4), var("y", 4), var("a", 4)
    main = Function((x,), Call(Function((a,), tanh(a)), (x,)))
    module = infer_module(IRModule({"main": main, "main_lifted": Function((y,), exp(y))}))
    result = checked(LambdaLift(), module)
    assert list(result) == ["main", "main_lifted", "main_lifted_1"]
    assert result["main_lifted"] is module["main_lifted"]


def test_fused_functions_stay() -> None:
    x = var("x", 4)
    module = FuseOps()(module_of(tanh(exp(x)), x))
    assert LambdaLift()(module) is module
    named = ToANormalForm()(module)
    assert LambdaLift()(named) is named


def higher_order() -> IRModule:
    """@main hands @double to @twice."""
    x, y, g, z = var("x", 4), var("y", 4), Var("g", FuncType((VECTOR,), VECTOR)), var("z", 4)
    return infer_module(
        IRModule(
            {
                "main": Function((x,), Call(GlobalVar("twice"), (GlobalVar("double"), x))),
                "double": Function((y,), add(y, y)),
                "twice": Function((g, z), Call(g, (Call(g, (z,)),))),
            }
        )
    )


def test_eta_expansion() -> None:
    module = higher_order()
    assert EtaExpand()(module).main is module.main
    result = checked(EtaExpand(expand_global_var=True), module)
    assert literals(result.main) == 1
    assert isinstance(result.main.body, Call)
    assert isinstance(result.main.body.op, GlobalVar)
    wrapper = result.main.body.args[0]
    assert isinstance(wrapper, Function)
    assert isinstance(wrapper.body, Call)
    assert isinstance(wrapper.body.op, GlobalVar)
    again = EtaExpand(expand_global_var=True)(result)
    assert literals(again.main) == 1


def test_inlining_reaches_what_functions_are_handed() -> None:
    result = checked(Inline(everything=True), EtaExpand(expand_global_var=True)(higher_order()))
    assert not any(isinstance(n, (GlobalVar, Function)) and n is not result.main for n in post_order(result.main))
