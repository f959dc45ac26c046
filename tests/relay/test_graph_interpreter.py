# SPDX-License-Identifier: Apache-2.0
"""The graph interpreter: lazy branches, closures, recursion, and checked inputs."""

from __future__ import annotations

import importlib
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from aotc.ir.attrs import NO_ATTRS
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.op import Op, OpPattern
from aotc.ir.types import FuncType, TensorType, TupleType
from aotc.relay.analysis import list_op_freqs
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, Var, typed_op_call
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, less, multiply, subtract
from aotc.relay.op.elementwise_unary import relu
from aotc.relay.op.type_rules import infer_type_of_first_argument
from aotc.relay.testing import resnet
from aotc.relay.text.parser import parse
from relay.programs import MATRIX, chain, functions, if_chain, inputs, let_chain, scalar

INT = TensorType((), "int32")
BOOL = TensorType((), "bool")


def integer(value: int) -> Constant:
    return Constant(np.int32(value))


def apply(f: Expr, *args: Expr) -> Call:
    return Call(f, args, checked_type=INT)  # type: ignore[arg-type]


def test_expressions_take_inputs_by_name() -> None:
    a, b = Var("a", MATRIX), Var("b", MATRIX)
    x, y, _ = inputs()
    np.testing.assert_array_equal(evaluate(add(a, b), params={"a": x, "b": y}), x + y)
    np.testing.assert_array_equal(evaluate(Function((a, b), subtract(a, b)), x, params={"b": y}), x - y)


def test_tuples_nest() -> None:
    t = Var("t", TupleType((INT, TupleType((INT, INT)))))
    inner = TupleGetItem(t, 1)
    f = Function((t,), Tuple((TupleGetItem(inner, 1), Tuple((TupleGetItem(t, 0),)))))
    assert evaluate(f, (1, (2, 3))) == (3, (1,))
    with pytest.raises(AotcError, match=r"input 't' must be \(int32, \(int32, int32\)\), got \(int32, int64\)"):
        evaluate(f, (1, 2))


def test_only_the_chosen_branch_is_evaluated() -> None:
    ran: list[str] = []

    def spy(name: str) -> Op:
        def reference(_: object, x: np.ndarray) -> np.ndarray:
            ran.append(name)
            return x

        return Op(name=name, infer=infer_type_of_first_argument, reference=reference, pattern=OpPattern.OPAQUE)

    flag, x = Var("flag", BOOL), Var("x", INT)
    shared = typed_op_call(spy("shared"), (x,), NO_ATTRS)
    body = If(flag, typed_op_call(spy("yes"), (shared,)), typed_op_call(spy("no"), (shared,)))
    f = Function((flag, x), add(body, shared))
    assert evaluate(f, True, 2) == 4 and sorted(ran) == ["shared", "yes"]
    ran.clear()
    assert evaluate(f, False, 3) == 6 and sorted(ran) == ["no", "shared"]


def factorial() -> Expr:
    n, f = Var("n", INT), Var("f", FuncType((INT,), INT))
    body = If(less(n, integer(2)), integer(1), multiply(n, apply(f, subtract(n, integer(1)))))
    return Let(f, Function((n,), body, INT), apply(f, integer(10)))


def test_local_recursion() -> None:
    assert evaluate(factorial()) == 3628800


def test_mutual_recursion_of_global_functions() -> None:
    text = """#[version = "0.0.5"]
    def @even(%n: int32) -> bool { if (%n == 0) { True } else { @odd(%n - 1) } }
    def @odd(%n: int32) -> bool { if (%n == 0) { False } else { @even(%n - 1) } }
    def @main(%n: int32) -> bool { @even(%n) }"""
    module = parse(text)
    assert evaluate(module, 10_001).item() is False and evaluate(module, 10_000).item() is True


def test_deep_recursion_needs_no_python_stack() -> None:
    n, f = Var("n", INT), Var("f", FuncType((INT,), INT))
    body = If(less(n, integer(1)), integer(0), add(apply(f, subtract(n, integer(1))), integer(1)))
    assert evaluate(Let(f, Function((n,), body, INT), apply(f, integer(20_000)))) == 20_000


def test_closures_capture_and_functions_are_values() -> None:
    a, b, g, x = Var("a", INT), Var("b", INT), Var("g", FuncType((INT,), INT)), Var("x", INT)
    make = Function((a,), Function((b,), multiply(a, b)))
    twice = Function((g, x), apply(g, apply(g, x)))
    three = Call(make, (integer(3),), checked_type=FuncType((INT,), INT))
    assert evaluate(apply(twice, three, integer(5))) == 45


def test_each_activation_has_its_own_values() -> None:
    x, y = Var("x", INT), Var("y", INT)
    double = Function((x,), Let(y, add(x, x), add(y, integer(1))))
    assert evaluate(apply(double, apply(double, integer(1)))) == 7
    assert evaluate(Tuple((apply(double, integer(1)), apply(double, integer(10))))) == (3, 21)


@settings(max_examples=100, deadline=None)
@given(functions())
def test_a_program_means_what_python_makes_of_it(function: Function) -> None:
    """Against a plain recursive evaluation of the same program."""

    def value(node: Expr, env: dict[Expr, object]) -> object:
        match node:
            case Var():
                return env[node]
            case Constant():
                return node.data
            case Tuple():
                return tuple(value(f, env) for f in node.fields)
            case TupleGetItem():
                return value(node.tuple_value, env)[node.index]  # type: ignore[index]
            case If():
                return value(node.true_branch if value(node.cond, env) else node.false_branch, env)
            case Let():
                return value(node.body, {**env, node.var: value(node.value, env)})
            case Call(op=Op() as op):
                return op.reference(node.attrs, *(value(a, env) for a in node.args))
            case Call(op=Function() as f):
                return value(f.body, {**env, **dict(zip(f.params, (value(a, env) for a in node.args), strict=True))})
        raise AssertionError(node)

    for flag in (True, False):
        args = inputs(flag=flag)
        expected = value(function.body, dict(zip(function.params, args, strict=True)))
        got = evaluate(function, *args)
        for a, b in zip(
            got if isinstance(got, tuple) else (got,),
            expected if isinstance(expected, tuple) else (expected,),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("args", "params", "message"),
    [
        ((), {}, "no value for 'a', 'b'"),
        ((np.zeros(4, np.float32),), {"a": np.zeros(4, np.float32)}, "'a' is given by position and again by name"),
        ((np.zeros(4, np.float32),), {"c": np.zeros(4, np.float32)}, "no input is called 'c'"),
        ((np.zeros(4), np.zeros(4, np.float32)), {}, r"input 'a' must be Tensor\[\(n<=8\), float32\], got .*float64"),
        ((np.zeros(4, np.float32), np.zeros(5, np.float32)), {}, r"input 'b' must be Tensor\[\(n<=8\), float32\]"),
        ((np.zeros(9, np.float32), np.zeros(9, np.float32)), {}, "input 'a' must be"),
        ((np.zeros((4, 1), np.float32), np.zeros(4, np.float32)), {}, "input 'a' must be"),
        ((1.0, 2.0, 3.0), {}, "3 inputs are given for a function of 2 parameters"),
    ],
)
def test_inputs_are_checked(args: tuple[object, ...], params: dict[str, object], message: str) -> None:
    ty = TensorType((SymDim("n", 8),))
    a, b = Var("a", ty), Var("b", ty)
    f = Function((a, b), add(a, b))
    assert evaluate(f, np.ones(3, np.float32), [1, 2, 3]).tolist() == [2, 3, 4]
    with pytest.raises(AotcError, match=message):
        evaluate(f, *args, params=params)


def test_unbound_names_are_refused() -> None:
    x = Var("x", INT)
    with pytest.raises(AotcError, match="free variable %x"):
        evaluate(Function((), relu(x)))
    with pytest.raises(AotcError, match="@f is not defined: no module is given"):
        evaluate(apply(GlobalVar("f"), integer(1)))
    with pytest.raises(AotcError, match="no function @g"):
        evaluate(IRModule({"main": Function((), apply(GlobalVar("g"), integer(1)))}))
    with pytest.raises(AotcError, match="2 arguments for a function of 1 parameters"):
        evaluate(apply(Function((x,), x), integer(1), integer(2)))


@pytest.mark.parametrize("make", [chain, let_chain])
def test_long_programs(make: object) -> None:
    x, _, _ = inputs()
    np.testing.assert_array_equal(evaluate(make(10_000), x), np.maximum(x, 0))  # type: ignore[operator]


def test_deep_branches() -> None:
    x, _, _ = inputs()
    np.testing.assert_array_equal(evaluate(if_chain(5_000), x, False), x)


def test_scalars_are_arrays() -> None:
    result = evaluate(add(scalar(1), scalar(2)))
    assert isinstance(result, np.ndarray) and result.dtype == np.float32


# --- workloads

FACTS = json.loads((Path(__file__).parent / "golden" / "facts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FACTS)
def test_workloads_give_relay_s_numbers(name: str) -> None:
    facts = FACTS[name]
    module, params = importlib.import_module(f"aotc.relay.testing.{name.removesuffix('18')}").get_workload()
    assert len(params) == facts["params"]
    (shape,) = facts["inputs"].values()
    data = np.random.uniform(-1, 1, shape).astype(np.float32)  # goes on in the stream of the parameters
    result = evaluate(module, data, params=params)
    (expected,) = facts["outputs"]
    assert list(result.shape) == expected["shape"]
    first = np.array(expected["first10"])  # printed with six digits; sums of thousands of products differ in the last
    np.testing.assert_allclose(result.ravel()[:10], first, rtol=0, atol=5e-5 * np.abs(first).max())
    np.testing.assert_allclose(np.abs(result, dtype=np.float64).sum(), expected["abs_sum"], rtol=1e-5)


def test_resnets_have_the_layers_they_are_named_for() -> None:
    for layers in (18, 34, 50, 101):
        counts = list_op_freqs(resnet.get_net(num_layers=layers))
        assert counts["nn.conv2d"] - 4 + counts["nn.dense"] == layers  # a projection per stage comes on top
    small = list_op_freqs(resnet.get_net(num_layers=20, image_shape=(3, 28, 28), num_classes=10))
    assert small["nn.conv2d"] - 3 + small["nn.dense"] == 20
    last = resnet.get_net(num_layers=18, layout="NHWC", image_shape=(224, 224, 3)).body.checked_type
    assert str(last) == "Tensor[(1, 1000), float32]"
    with pytest.raises(AotcError, match="no ResNet with 19 layers is known"):
        resnet.get_net(num_layers=19)


def test_values_are_freed_after_their_last_use() -> None:
    """A chain of 30 sums holds two values at a time; a value that an inner function reads is held until its call."""
    ty = TensorType((1 << 17,), "float64")
    x, inner = Var("x", ty), Var("p", ty)
    y = shared = add(x, Constant(np.array(1.0)))
    for _ in range(30):
        y = add(y, Constant(np.array(1.0)))
    y = Call(Function([inner], add(inner, shared)), [y])
    function = Function([x], multiply(y, y))
    array = np.linspace(0.0, 1.0, 1 << 17)
    tracemalloc.start()
    try:
        found = evaluate(function, array)
        assert tracemalloc.get_traced_memory()[1] < 8 * array.nbytes
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(found, (2 * array + 32) ** 2)
