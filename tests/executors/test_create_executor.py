# SPDX-License-Identifier: Apache-2.0
"""create_executor: a program has the same result on every kind of executor that supports it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relay.programs import functions, inputs

import aotc
from aotc import relay
from aotc.contrib.graph_executor import GraphModule
from aotc.ir.architecture_names import normalized_architecture_name
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.types import FuncType, TensorType, TupleType, flatten_nested_tuple
from aotc.relay.expr import Expr, Function, GlobalVar, Let, Tuple, Var, typed_op_call
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import OpDef, Sample
from aotc.relay.testing import dcgan, mlp, mobilenet, resnet, squeezenet
from aotc.relay_api.executor import flatten_tuple_inputs
from tests.ops.harness import assert_agrees, constants, flat, type_of_value
from tests.share import share

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
STATIC = ("graph", "aot")
DYNAMIC = ("debug", "vm")
KINDS = (*DYNAMIC, *STATIC)
OWN_WAYS = (*DYNAMIC, "aot")
"""Kinds that run programs each in a way of its own: graph and aot are one."""
PAIR = TensorType((2,), "float32")
ONE, TWO = np.ones(2, "float32"), np.full(2, 2, "float32")
SOFTMAX = """
0.00089283 0.00103331 0.0009094 0.00102275 0.00108751 0.00106737 0.00106262 0.00095838 0.00110792 0.00113151
"""
SAMPLES = 2
"""Most samples of an operator."""
PARTS = 5
"""Programs that the samples of all operators are computed by, each of every fifth operator."""


def pair(name: str = "x") -> Var:
    return relay.var(name, PAIR)


def plain(value: Any) -> Any:
    """A result as numpy arrays."""
    return tuple(map(plain, value)) if isinstance(value, (tuple, list)) else value.numpy()


def evaluated(kind: str, mod: aotc.IRModule, *args: Any, **named: Any) -> Any:
    return plain(relay.create_executor(kind, mod).evaluate()(*args, **named))


def call_by_call(mod: aotc.IRModule, args: Sequence[Any], target: str = "llvm") -> list[np.ndarray]:
    """The outputs of @main, with every kernel called on memory of its own."""
    mod = flatten_tuple_inputs(mod)
    module = GraphModule(relay.build(mod, target)["debug_create"]("default", aotc.cpu()))
    module.run_with_inputs(
        {p.name: value for p, value in zip(mod["main"].params, flatten_nested_tuple(tuple(args)), strict=True)}
    )
    return [module.get_output(k).numpy() for k in range(module.get_num_outputs())]


# --- the same results


@pytest.mark.parametrize("kind", KINDS)
def test_quick_start_network(kind: str) -> None:
    generator = np.random.get_state()
    np.random.seed(0)
    mod, params = resnet.get_workload(num_layers=18, batch_size=1, image_shape=(3, 224, 224))
    data = np.random.uniform(-1, 1, (1, 3, 224, 224)).astype("float32")
    np.random.set_state(generator)
    with aotc.transform.PassContext(opt_level=3):
        out = relay.create_executor(kind, mod, aotc.cpu(), "llvm", params).evaluate()(data)
    assert str(out.numpy().flatten()[:10]).strip("[]").split() == SOFTMAX.split()


#: Functions that make a network and its parameters, their options, and the shape of the input.
WORKLOADS: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[int, ...]]] = {
    "mlp": (mlp.get_workload, {"batch_size": 2}, (2, 1, 28, 28)),
    "dcgan": (dcgan.get_workload, {"ngf": 8}, (1, 100)),
    "squeezenet": (squeezenet.get_workload, {"image_shape": (3, 64, 64)}, (1, 3, 64, 64)),
    "mobilenet": (mobilenet.get_workload, {"image_shape": (3, 32, 32)}, (1, 3, 32, 32)),
}


@pytest.mark.parametrize("name", share(WORKLOADS, 2))
def test_workloads(name: str) -> None:
    get_workload, options, shape = WORKLOADS[name]
    mod, params = get_workload(**options)
    data = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
    results = [
        relay.create_executor(kind, mod, params=params).evaluate()(data).numpy() for kind in ("debug", "vm", "aot")
    ]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-5 * np.abs(results[0]).max())


def spread(samples: list[Sample]) -> list[Sample]:
    """Some of an operator's samples, from the first to the last."""
    step = max(1, -(-len(samples) // SAMPLES))
    return samples[::step]


def program_of(cases: list[tuple[OpDef, Sample]]) -> tuple[aotc.IRModule, list[Any]]:
    """One program that computes every sample, and its arguments."""
    params: list[Var] = []
    results: list[Expr] = []
    for k, (op, sample) in enumerate(cases):
        typed = [(Var(f"s{k}_{j}", type_of_value(value)), value) for j, value in enumerate(sample.args)]
        own = [constants(value) if j in sample.known else var for j, (var, value) in enumerate(typed)]
        params += [arg for arg in own if isinstance(arg, Var)]
        results.append(typed_op_call(op, own, sample.attrs))
    given = [a for _, sample in cases for j, a in enumerate(sample.args) if j not in sample.known]
    return aotc.IRModule({"main": Function(params, Tuple(results))}), given


def samples_of(part: int) -> list[tuple[OpDef, Sample]]:
    """Samples of every operator, those of one program."""
    compiled = [op for op in OPERATORS_BY_NAME.values() if op.static is None]
    return [(op, sample) for op in compiled[part::PARTS] for sample in spread(list(op.samples()))]


@pytest.mark.parametrize(("part", "target"), share(product(range(PARTS), ("c", "llvm")), 2))
def test_samples_of_every_operator(part: int, target: str) -> None:
    cases = samples_of(part)
    mod, args = program_of(cases)
    results = {k: plain(relay.create_executor(k, mod, target=target).evaluate()(*args)) for k in OWN_WAYS}
    wrong: dict[tuple[str, str], str] = {}
    for k, (op, sample) in enumerate(cases):
        expected = flat(op.reference(sample.attrs, *sample.args))
        for kind in OWN_WAYS:
            try:
                for actual, wanted in zip(flat(results[kind][k]), expected, strict=True):
                    assert_agrees(actual, wanted, sample.accuracy)
            except AssertionError as error:
                wrong.setdefault((kind, op.name), str(error))
    single = iter(call_by_call(mod, args, target))
    for (op, _), result in zip(cases, results["aot"], strict=True):
        assert all(one.tobytes() == next(single).tobytes() for one in flat(result)), op.name
    assert not wrong, "\n".join(f"{kind}, {name}: {why}" for (kind, name), why in wrong.items())


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(functions(control_flow=False), min_size=8, max_size=8), st.integers(0, 3))
def test_random_static_programs(programs: list[Function], opt_level: int) -> None:
    with aotc.transform.PassContext(opt_level=opt_level):
        mod = joined(programs)
        expected, *others = (flat(evaluated(kind, mod, *inputs())) for kind in OWN_WAYS)
        single = call_by_call(mod, inputs())
    check_all([*others, single], expected)


def joined(programs: list[Function]) -> aotc.IRModule:
    """One program that gives the results of all, which have the same parameters."""
    mod = aotc.IRModule({f"f{k}": f for k, f in enumerate(programs)})
    x, y, flag = (Var(p.name, p.checked_type) for p in programs[0].params)
    mod["main"] = Function([x, y, flag], Tuple([relay.Call(GlobalVar(f), (x, y, flag)) for f in list(mod)]))
    return mod


def check_all(results: list[list[np.ndarray]], expected: list[np.ndarray]) -> None:
    for actual in results:
        for one, wanted in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, wanted, rtol=2e-4, atol=2e-5 * max(1, np.abs(wanted).max()))


@pytest.mark.skipif(normalized_architecture_name() != "x86_64", reason="another architecture")
@pytest.mark.parametrize("kind", ["aot", "vm"])
def test_a_target_of_several_instruction_sets(kind: str) -> None:
    x = pair()
    mod = aotc.IRModule.from_expr(Function([x], relay.add(x, relay.const(1.0))))
    result = relay.create_executor(kind, mod, target="x86-64-multi").evaluate()(ONE)
    np.testing.assert_array_equal(result, TWO)


# --- what is evaluated, and how


@pytest.mark.parametrize("kind", KINDS)
def test_functions_expressions_and_bindings(kind: str) -> None:
    x, y = pair(), pair("y")
    mod = aotc.IRModule.from_expr(Function([x, y], relay.subtract(x, y)))
    mod["twice"] = Function([x], relay.Call(GlobalVar("main"), [relay.add(x, x), x]))
    executor = relay.create_executor(kind, mod)
    np.testing.assert_array_equal(executor.evaluate()(TWO, y=ONE), ONE)
    np.testing.assert_array_equal(executor.evaluate(GlobalVar("twice"))(TWO), TWO)
    np.testing.assert_array_equal(executor.evaluate(Function([y], relay.negative(y)))(ONE), -ONE)
    of_main = relay.Call(GlobalVar("main"), [relay.const(TWO), relay.const(ONE)])
    np.testing.assert_array_equal(executor.evaluate(of_main), ONE)
    total = relay.add(x, y)
    np.testing.assert_array_equal(executor.evaluate(total, binds={x: ONE, y: relay.negative(relay.const(TWO))}), -ONE)
    np.testing.assert_array_equal(executor.evaluate()(aotc.nd.array(ONE), [1, 2]), [0, -1])
    chained = {x: ONE, y: relay.add(x, x)}
    np.testing.assert_array_equal(executor.evaluate(total, chained), ONE + TWO)
    assert relay.create_executor(kind).evaluate(relay.add(relay.const(1), relay.const(2))).numpy() == 3
    assert list(mod) == ["main", "twice"]


@pytest.mark.parametrize("kind", KINDS)
def test_tuples_in_and_out(kind: str) -> None:
    p = relay.var("p", TupleType([PAIR, TupleType([PAIR])]))
    inner = relay.TupleGetItem(relay.TupleGetItem(p, 1), 0)
    body = Tuple([inner, Tuple([relay.TupleGetItem(p, 0), relay.const(3)]), p, Tuple([])])
    first, (second, three), whole, none = evaluated(kind, aotc.IRModule.from_expr(Function([p], body)), (ONE, [TWO]))
    np.testing.assert_array_equal([first, second], [TWO, ONE])
    np.testing.assert_array_equal([whole[0], whole[1][0]], [ONE, TWO])
    assert three == 3 and none == ()


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_inputs_do_not_matter(kind: str) -> None:
    mod = aotc.IRModule.from_expr(Function([pair("self"), pair("key"), pair("value")], relay.const(ONE)))
    np.testing.assert_array_equal(evaluated(kind, mod, value=ONE, key=ONE, self=TWO), ONE)
    x, y = pair("x"), relay.var("x", "int32")
    twins = aotc.IRModule.from_expr(Function([x, y], relay.subtract(x, relay.cast(y, "float32"))))
    np.testing.assert_array_equal(evaluated(kind, twins, [2.5, 3], 2), [0.5, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_bound_by_name(kind: str) -> None:
    x, w = pair(), pair("w")
    mod = aotc.IRModule.from_expr(Function([x, w], relay.add(x, w)))
    np.testing.assert_array_equal(relay.create_executor(kind, mod, params={"w": ONE}).evaluate()(ONE), TWO)
    with pytest.raises(AotcError, match="no parameter is called 'v'"):
        relay.create_executor(kind, mod, params={"v": ONE})


@pytest.mark.parametrize("kind", KINDS)
def test_calls_from_several_threads(kind: str) -> None:
    x = relay.var("x", TensorType((64, 64)))
    function = relay.create_executor(kind, aotc.IRModule.from_expr(Function([x], relay.sort(x)))).evaluate()
    arrays = [np.random.default_rng(seed).normal(size=(64, 64)).astype("float32") for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for array, result in zip(arrays, pool.map(function, arrays), strict=True):
            np.testing.assert_array_equal(result, np.sort(array))


# --- what only some kinds can express


def choice() -> aotc.IRModule:
    x, c = pair(), relay.var("c", "bool")
    return aotc.IRModule.from_expr(Function([c, x], relay.If(c, relay.add(x, x), relay.negative(x))))


def recursion() -> aotc.IRModule:
    """The sum of 1 to n."""
    n, k, f = relay.var("n", "int32"), relay.var("k", "int32"), GlobalVar("sum_to")
    again = relay.add(n, relay.Call(f, [relay.subtract(n, relay.const(1))]))
    body = relay.If(relay.less(n, relay.const(1)), relay.const(0), again)
    return aotc.IRModule(
        {"sum_to": Function([n], body, TensorType((), "int32")), "main": Function([k], relay.Call(f, [k]))}
    )


def local_recursion() -> aotc.IRModule:
    """As `recursion`, with a function that a variable holds."""
    text = "let %loop = fn (%n: int32) -> int32 { if (%n < 1) { 0 } else { %n + %loop(%n - 1) } }; %loop(%k)"
    return relay.fromtext('#[version = "0.0.5"]\ndef @main(%k: int32) { ' + text + " }")


def closures() -> aotc.IRModule:
    """A function that gives fn (%y) { %x - %y }."""
    x, y = pair(), pair("y")
    return aotc.IRModule.from_expr(Function([x], Function([y], relay.subtract(x, y))))


def higher_order() -> aotc.IRModule:
    f, x = relay.var("f", FuncType([PAIR], PAIR)), pair()
    return aotc.IRModule.from_expr(Function([f, x], relay.Call(f, [relay.Call(f, [x])])))


def any_batch() -> aotc.IRModule:
    x = relay.var("x", TensorType((SymDim("n"), 2)))
    return aotc.IRModule.from_expr(Function([x], relay.add(x, x)))


@pytest.mark.parametrize("kind", DYNAMIC)
def test_control_flow_closures_and_shapes_that_vary(kind: str) -> None:
    np.testing.assert_array_equal(evaluated(kind, choice(), True, ONE), TWO)
    np.testing.assert_array_equal(evaluated(kind, choice(), False, ONE), -ONE)
    assert evaluated(kind, recursion(), 10) == 55
    for n in (1, 3):
        np.testing.assert_array_equal(evaluated(kind, any_batch(), np.ones((n, 2), "float32")), np.full((n, 2), 2))


def test_functions_in_and_out() -> None:
    minus = relay.create_executor("debug", closures()).evaluate()(TWO)
    np.testing.assert_array_equal(minus(y=ONE), ONE)
    twice = relay.create_executor("debug", higher_order()).evaluate()
    np.testing.assert_array_equal(twice(minus, TWO), TWO)

    for make in (closures, higher_order):
        with pytest.raises(AotcError, match=r"takes or gives a function\n.*\"debug\""):
            relay.create_executor("vm", make()).evaluate()


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(functions(), min_size=6, max_size=6), st.booleans())
def test_random_programs_with_control_flow(programs: list[Function], flag: bool) -> None:
    expected, *others = (flat(evaluated(kind, joined(programs), *inputs(flag=flag))) for kind in DYNAMIC)
    check_all(others, expected)


@pytest.mark.parametrize("kind", STATIC)
def test_choices_of_static_executors(kind: str) -> None:
    np.testing.assert_array_equal(evaluated(kind, choice(), True, ONE), TWO)
    np.testing.assert_array_equal(evaluated(kind, choice(), False, ONE), -ONE)


def test_a_graph_of_calls_has_no_choices() -> None:
    factory = relay.build(choice(), target="c")
    with pytest.raises(AotcError, match="which a graph of all calls cannot express"):
        factory.get_graph_json()


@pytest.mark.parametrize("kind", STATIC)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (recursion, "@sum_to, a function that calls itself"),
        (local_recursion, "%loop, a function that calls itself"),
        (closures, "a function as a value"),
        (higher_order, "input 'f' is a function"),
        (any_batch, r"input 'x' has a shape that is not known"),
    ],
)
def test_static_executors_name_what_they_cannot_express(
    kind: str, make: Callable[[], aotc.IRModule], message: str
) -> None:
    with pytest.raises(AotcError, match=f"(?s)not for executor '{kind}': {message}.*\"debug\""):
        relay.create_executor(kind, make()).evaluate()


@pytest.mark.parametrize("kind", KINDS)
def test_free_variables_are_named(kind: str) -> None:
    mod = aotc.IRModule({"main": Function([pair()], relay.add(pair("x"), pair("y")))})
    with pytest.raises(AotcError, match="free variables without values: %x, %y"):
        relay.create_executor(kind, mod).evaluate()


def test_a_compiled_program_has_outputs() -> None:
    with pytest.raises(AotcError, match="holds no tensor"):
        relay.create_executor("aot", aotc.IRModule.from_expr(Tuple([]))).evaluate()


@pytest.mark.parametrize("kind", ["debug", "vm"])
def test_numbers_that_a_type_cannot_hold_are_refused(kind: str) -> None:
    x = relay.var("x", shape=(2,), dtype="int8")
    run = relay.create_executor(kind, aotc.IRModule.from_expr(relay.Function([x], x + x))).evaluate()
    np.testing.assert_array_equal(run([1, 2]).numpy(), np.array([2, 4], np.int8))
    for numbers in ([1.5, 2.0], [300, 1]):
        with pytest.raises(AotcError, match=r"must be Tensor\[\(2\), int8\]"):
            run(numbers)


# --- bad use


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: relay.create_executor("grpah"), r"unknown kind of executor 'grpah'\n.*did you mean 'graph'"),
        (lambda: relay.create_executor("fast"), "known: debug, graph, aot"),
        (lambda: relay.create_executor("graph", choice(), aotc.cuda(63)), r"there is no device cuda\(63\)"),
        (lambda: relay.create_executor("graph", choice(), aotc.cpu(), "cuda"), "cpu.0. does not run what is"),
        (lambda: relay.create_executor("graph", choice()["main"]), "expected an IRModule"),
        (lambda: relay.create_executor().evaluate(), "no function @main"),
        (lambda: relay.create_executor(params={"w": ONE}), "no function @main"),
        (lambda: relay.create_executor(mod=choice()).evaluate(binds={pair(): ONE}), "binds go with an expression"),
        (lambda: relay.create_executor().evaluate(relay.add(pair("a"), pair("b"))), "without values: %a, %b"),
        (lambda: relay.create_executor().evaluate(pair(), {pair(): ONE}), "no free variable"),
        (lambda: relay.create_executor().evaluate(pair(), {"x": ONE}), "no free variable 'x'"),  # type: ignore[dict-item]
        (lambda: relay.create_executor().evaluate(GlobalVar("f")), "no function @f"),
        (lambda: relay.create_executor().evaluate(relay.Call(GlobalVar("f"), [relay.const(1)])), "@f"),
        (lambda: relay.create_executor().evaluate(Let(pair(), relay.const(1), relay.const(2))), "int32"),
    ],
)
def test_bad_executors_and_expressions(make: Callable[[], object], message: str) -> None:
    with pytest.raises(AotcError, match=message):
        make()


BAD_ARGUMENTS: list[tuple[Callable[[Any], object], str]] = [
    (lambda f: f(), "no value for 'x', 'i'"),
    (lambda f: f(ONE, 1, 2), "3 inputs are given for a function of 2"),
    (lambda f: f(ONE, 1, x=ONE), "'x' is given by position and again by name"),
    (lambda f: f(ONE, j=1), "no input is called 'j'"),
    (lambda f: f(ONE.astype("float64"), 1), "'x' must be .*float32.*float64"),
    (lambda f: f(ONE[:1], 1), r"'x' must be Tensor\[\(2\), float32\], got Tensor\[\(1\)"),
    (lambda f: f(ONE, 1.5), "'i' must be int32, got float64"),
    (lambda f: f(ONE, 2**40), "'i' must be int32, got int64"),
    (lambda f: f(ONE, True), "'i' must be int32, got bool"),
    (lambda f: f((ONE, ONE), 1), "'x' must be"),
    (lambda f: f("text", 1), "no tensor data type"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_bad_arguments(kind: str) -> None:
    x, i = pair(), relay.var("i", "int32")
    function = relay.create_executor(kind, aotc.IRModule.from_expr(Function([x, i], x))).evaluate()
    for act, message in BAD_ARGUMENTS:
        with pytest.raises(AotcError, match=message):
            act(function)
