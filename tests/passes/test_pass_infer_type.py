# SPDX-License-Identifier: Apache-2.0
"""Type inference: forwards, backwards, through functions, recursion and control flow; all errors at once."""

from __future__ import annotations

import numpy as np
import pytest
from passes.graphs import const, var

from aotc.ir.attrs import NO_ATTRS
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.span import Span
from aotc.ir.types import FuncType, TensorType, TupleType
from aotc.relay.expr import Call, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, Var
from aotc.relay.merge_and_join_types import join_types, merge_types
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.binary_elementwise import add, less, subtract
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import bias_add, dense
from aotc.relay.op.elementwise_unary import relu
from aotc.relay.op.normalization import batch_norm
from aotc.relay.transform import InferType
from aotc.relay.type_inference import infer_expr, infer_function, infer_module
from aotc.relay.visitor import post_order

F32 = TensorType((2, 3), "float32")


def untyped(name: str, *args: Expr) -> Call:
    return Call(OPERATORS_BY_NAME[name], args, NO_ATTRS)


def test_types_flow_forwards() -> None:
    x = var("x", 2, 3)
    f = infer_function(Function((x,), untyped("nn.relu", untyped("exp", x))))
    assert f.checked_type == FuncType((F32,), F32)
    assert f.ret_type == F32
    assert all(n.checked_type is not None for n in post_order(f) if isinstance(n, Call))


def test_typed_functions_stay_the_same_object() -> None:
    x = var("x", 2, 3)
    module = infer_module(IRModule.from_expr(untyped("nn.relu", x)))
    assert infer_module(module) is module
    assert InferType()(module) is module


def test_variables_are_solved_from_their_uses() -> None:
    x = var("x", 1, 3, 8, 8)
    names = ["weight", "bias", "gamma", "beta", "mean", "var", "fc"]
    weight, bias, gamma, beta, mean, variance, fc = params = [Var(name) for name in names]
    conv = conv2d(x, weight, channels=16, kernel_size=(3, 3), padding=(1, 1))
    norm = batch_norm(relu(bias_add(conv, bias)), gamma, beta, mean, variance)
    flat = Call(OPERATORS_BY_NAME["nn.batch_flatten"], (TupleGetItem(norm, 0),))
    f = infer_function(Function((x, *params), dense(flat, fc, units=10)))
    shapes = {p.name: p.checked_type.shape for p in f.params if isinstance(p.checked_type, TensorType)}
    assert shapes["weight"] == (16, 3, 3, 3)
    assert shapes["fc"] == (10, 16 * 64)
    assert all(shapes[name] == (16,) for name in names[1:-1])
    assert all(p.annotation == p.checked_type for p in f.params)


def test_what_cannot_be_solved_is_reported_by_name() -> None:
    with pytest.raises(AotcError, match="cannot infer the type of %w") as caught:
        infer_function(Function((var("x", 2), w := Var("w")), add(var("y", 2), w)))
    assert "annotate it" in str(caught.value)


def test_all_errors_are_reported_and_not_their_consequences() -> None:
    x, y = var("x", 2), var("y", 3)
    first = Call(OPERATORS_BY_NAME["add"], (x, y), span=Span("net", node="first"))
    second = Call(OPERATORS_BY_NAME["add"], (y, x), span=Span("net", node="second"))
    body = Tuple((relu(first), relu(second)))
    with pytest.raises(AotcError) as caught:
        infer_function(Function((x, y), body))
    assert [str(d.span) for d in caught.value.diagnostics] == ["net: node first", "net: node second"]
    assert all("do not broadcast" in d.message for d in caught.value.diagnostics)


def test_let_and_tuples() -> None:
    x, a = var("x", 2, 3), Var("a")
    pair = Tuple((untyped("nn.relu", a), a))
    f = infer_function(Function((x,), Let(a, untyped("exp", x), TupleGetItem(pair, 1))))
    assert f.ret_type == F32
    assert isinstance(f.body, Let)
    assert f.body.var.checked_type == F32


def test_a_long_chain_of_lets() -> None:
    x = var("x", 2, 3)
    names = [Var(f"v{k}") for k in range(10_000)]
    body: Expr = names[-1]
    for k in reversed(range(len(names))):
        body = Let(names[k], untyped("nn.relu", names[k - 1] if k else x), body)
    assert infer_function(Function((x,), body)).ret_type == F32


def test_fields_of_what_is_no_tuple() -> None:
    with pytest.raises(AotcError, match="which is no tuple"):
        infer_expr(TupleGetItem(var("x", 2), 0))
    with pytest.raises(AotcError, match="outside the tuple"):
        infer_expr(TupleGetItem(Tuple((var("x", 2),)), 1))


def test_if() -> None:
    x, yes = var("x", 2, 3), const(True, "bool")
    chosen = infer_expr(If(yes, untyped("exp", x), x))
    assert chosen.checked_type == F32
    with pytest.raises(AotcError, match="must be a bool scalar"):
        infer_expr(If(x, x, x))
    with pytest.raises(AotcError, match="the branches have types"):
        infer_expr(If(yes, x, var("y", 2)))


def test_calls_of_function_literals_type_the_parameters() -> None:
    x, p = var("x", 2, 3), Var("p")
    f = Function((p,), untyped("nn.relu", p))
    typed = infer_expr(Call(f, (x,)))
    assert typed.checked_type == F32
    with pytest.raises(AotcError, match="takes 1 arguments, got 2"):
        infer_expr(Call(Function((var("q", 2),), var("q", 2)), (x, x)))
    with pytest.raises(AotcError, match="argument 0 is"):
        infer_expr(Call(Function((q := var("q", 2),), q), (x,)))
    with pytest.raises(AotcError, match="called as a function"):
        infer_expr(Call(x, (x,)))


def test_global_functions_in_any_order() -> None:
    x, p = var("x", 2, 3), var("p", 2, 3)
    main = Function((x,), Call(GlobalVar("first"), (x,)))
    first = Function((p,), Call(GlobalVar("second"), (p,)))
    second = Function((q := var("q", 2, 3),), untyped("exp", q))
    module = infer_module(IRModule({"main": main, "first": first, "second": second}))
    assert {f.ret_type for f in module.functions.values()} == {F32}
    with pytest.raises(AotcError, match="no function @missing"):
        infer_module(IRModule({"main": Function((x,), Call(GlobalVar("missing"), (x,)))}))


def recursive(ret: TensorType | None) -> IRModule:
    n = Var("n", TensorType((), "int32"))
    less_one = Call(GlobalVar("count"), (subtract(n, const(1, "int32")),))
    body = If(less(n, const(1, "int32")), n, less_one)
    return IRModule({"count": Function((n,), body, ret)})


def test_recursion() -> None:
    scalar = TensorType((), "int32")
    assert infer_module(recursive(scalar))["count"].ret_type == scalar
    assert infer_module(recursive(None))["count"].ret_type == scalar, "the branch that ends decides"
    with pytest.raises(AotcError, match="the branches have types int32 and"):
        infer_module(recursive(TensorType((1,), "int32")))


def test_the_declared_result_must_match() -> None:
    x = var("x", 2, 3)
    with pytest.raises(AotcError, match="does not match the declared"):
        infer_function(Function((x,), untyped("nn.relu", x), TensorType((3, 2))))


def test_recursion_that_never_ends_needs_an_annotation() -> None:
    n = Var("n", TensorType((), "int32"))
    with pytest.raises(AotcError, match="cannot infer the type of @loop"):
        infer_module(IRModule({"loop": Function((n,), Call(GlobalVar("loop"), (n,)))}))


def test_recursive_lets() -> None:
    f, n = Var("f"), Var("n", TensorType((), "int32"))
    loop = Function((n,), If(less(n, const(1, "int32")), n, Call(f, (n,))), TensorType((), "int32"))
    assert infer_expr(Let(f, loop, Call(f, (const(3, "int32"),)))).checked_type == TensorType((), "int32")


def test_symbolic_dimensions() -> None:
    n, anonymous = SymDim("n", 8), SymDim()
    named, unknown, four = TensorType((n, 3)), TensorType((anonymous, 3)), TensorType((4, 3))
    assert merge_types(named, four) == four
    assert merge_types(unknown, named) == named
    assert merge_types(four, TensorType((5, 3))) is None
    assert join_types(four, TensorType((4, 3))) == four
    assert join_types(four, named) == TensorType((SymDim(), 3))
    assert join_types(TupleType((four,)), TupleType((F32,))) is None
    f = infer_function(Function((Var("x", named),), Var("y", four), unknown))
    assert f.ret_type == four


def test_spans_and_constants_survive() -> None:
    span = Span("net", node="relu")
    x = Var("x", F32, span)
    f = infer_function(Function((x,), Call(OPERATORS_BY_NAME["add"], (x, const(np.ones(3))), span=span)))
    assert f.body.span == span
    assert f.params[0] is x
