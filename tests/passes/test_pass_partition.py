# SPDX-License-Identifier: Apache-2.0
"""AnnotateTarget, MergeCompilerRegions, PartitionGraph and MergeComposite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from graphs import checked, const, module_of, noise, ops, var
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.diagnostics import AotcError
from aotc.ir.op import Op, register_op_attr, reset_op_attr
from aotc.ir.transform import Pass, PassContext, Sequential
from aotc.relay.analysis import free_vars, global_uses
from aotc.relay.dataflow_pattern import is_op, wildcard
from aotc.relay.expr import Call, Constant, Expr, Function, If, Tuple
from aotc.relay.module import IRModule
from aotc.relay.op.annotation import compiler_begin, compiler_end
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.concat_split import concatenate, split
from aotc.relay.op.contrib import get_pattern_table, register_pattern_table
from aotc.relay.op.dense import dense
from aotc.relay.op.elementwise_unary import exp, negative, relu, tanh
from aotc.relay.transform import AnnotateTarget, InferType, Inline, MergeComposite, PartitionGraph
from aotc.relay.transform import MergeCompilerRegions as Merge
from aotc.relay.visitor import post_order

OPERATORS = ("add", "multiply", "exp", "tanh", "negative", "nn.relu", "nn.dense", "split", "concatenate")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    forget()


def forget() -> None:
    for name in OPERATORS:
        for compiler in ("one", "two"):
            reset_op_attr(name, f"target.{compiler}")


def takes(compiler: str, *names: str, check: Callable[[Expr], bool] = lambda _: True) -> None:
    for name in names:
        register_op_attr(name, f"target.{compiler}", check)


def partitioned(module: IRModule, *targets: str, merge: bool = True, **options: bool) -> IRModule:
    """`module` through all passes, the values compared."""
    steps: list[Pass[IRModule]] = [AnnotateTarget(targets), *([Merge()] if merge else []), PartitionGraph(**options)]  # type: ignore[arg-type]
    return checked(Sequential(steps), module)


def external(module: IRModule) -> Mapping[str, Function]:
    return {name: f for name, f in module.functions.items() if "Compiler" in f.attrs}


def inside(function: Function) -> list[str]:
    return [n.op.name for n in post_order(function.body) if isinstance(n, Call) and isinstance(n.op, Op)]


def test_a_region() -> None:
    takes("one", "exp", "nn.relu")
    x = var("x", 2, 3)
    result = partitioned(module_of(tanh(relu(exp(x))), x), "one")
    assert ops(result) == {"tanh": 1}
    (function,) = external(result).values()
    assert inside(function) == ["exp", "nn.relu"]
    assert dict(function.attrs) == {
        "Compiler": "one", "Primitive": 1, "Inline": 1, "global_symbol": "tvmgen_default_one_main_0",
    }  # fmt: skip


def test_each_call_alone_without_merging() -> None:
    takes("one", "exp", "split")
    x = var("x", 2, 4)
    halves = split(exp(x), 2, axis=1)
    result = partitioned(module_of(add(halves[0], halves[1]), x), "one", merge=False)
    assert [inside(f) for f in external(result).values()] == [["exp"], ["split"]]


def test_the_first_target_wins_and_the_name_is_a_c_name() -> None:
    takes("one", "exp")
    takes("two", "exp", "tanh")
    x = var("x", 3)
    result = partitioned(module_of(tanh(exp(x)), x), "one", "two")
    assert list(external(result)) == ["tvmgen_default_one_main_0", "tvmgen_default_two_main_1"]
    marked = compiler_end(exp(compiler_begin(x, "a-b")), "a-b")
    assert list(PartitionGraph("net")(module_of(marked, x))) == ["main", "tvmgen_net_a_b_main_0"]


def test_a_path_around_keeps_regions_apart() -> None:
    takes("one", "exp", "add")
    x = var("x", 2, 3)
    first = exp(x)
    result = partitioned(module_of(add(first, tanh(first)), x), "one")
    assert [inside(f) for f in external(result).values()] == [["exp"], ["add"]]


def test_regions_that_would_need_each_other() -> None:
    """a1 feeds b1 and b2 feeds a2: either both a's or both b's may be together."""
    takes("one", "exp", "add")
    takes("two", "tanh", "multiply")
    x, y = var("x", 2), var("y", 2)
    a1, b2 = exp(x), tanh(y)
    b1, a2 = multiply(a1, b2), add(b2, a1)
    partitioned(module_of(Tuple([b1, a2]), x, y), "one", "two")


def test_several_outputs_and_tuples() -> None:
    takes("one", "exp", "split", "nn.relu")
    x = var("x", 2, 4)
    first = exp(x)
    halves = split(relu(first), 2, axis=1)
    result = partitioned(module_of(Tuple([tanh(first), concatenate(halves, axis=1)]), x), "one")
    (function,) = external(result).values()
    assert inside(function) == ["exp", "nn.relu", "split"]
    assert (
        str(function.body.checked_type) == "(Tensor[(2, 4), float32], Tensor[(2, 2), float32], Tensor[(2, 2), float32])"
    )


def test_one_output_that_is_a_tuple_with_a_tuple() -> None:
    x = var("x", 2)
    inner = compiler_begin(x, "one")
    result = compiler_end(Tuple((exp(inner), Tuple((tanh(inner), negative(inner))))), "one")
    module = InferType()(module_of(result, x))
    parts = PartitionGraph()(module)
    assert list(external(parts)) and parts.main.ret_type == module.main.ret_type


@pytest.mark.parametrize("bind", [True, False])
def test_constants(bind: bool) -> None:
    takes("one", "nn.dense", "add")
    x = var("x", 2, 3)
    weights = noise(4, 3)
    result = partitioned(module_of(add(dense(x, weights), const([1.0, 2, 3, 4])), x), "one", bind_constants=bind)
    (function,) = external(result).values()
    assert len(function.params) == (1 if bind else 3)
    assert any(isinstance(n, Constant) for n in post_order(function.body)) == bind


def test_non_call_ops() -> None:
    takes("one", "exp", "tanh", "concatenate")
    x = var("x", 2, 4)
    module = module_of(concatenate(Tuple([exp(x), tanh(x)]), axis=1), x)
    assert len(external(partitioned(module, "one"))) == 1
    with PassContext(opt_level=3):
        apart = PartitionGraph()(Merge()(AnnotateTarget("one", include_non_call_ops=False)(module)))
    assert len(external(apart)) == 3


def test_composites() -> None:
    x, w, v = var("x", 2, 3), noise(3, 3), noise(3, 3, seed=1)
    pattern = is_op("nn.relu")(is_op("nn.dense")(wildcard(), wildcard()))
    register_pattern_table("one")(lambda: [("one.dense_relu", pattern, lambda e: e.args[0].args[1] is w)])
    table = get_pattern_table("one")
    assert table is not None
    assert get_pattern_table("nobody") is None
    module = module_of(relu(dense(relu(dense(x, w)), v)), x)
    merged = checked(MergeComposite(table), module)
    result = partitioned(merged, "one")
    (function,) = external(result).values()
    composites = [n.op for n in post_order(function.body) if isinstance(n, Call) and isinstance(n.op, Function)]
    assert [f.attrs["Composite"] for f in composites] == ["one.dense_relu"]
    assert ops(checked(Inline(everything=True), merged)) == {"nn.dense": 2, "nn.relu": 2}


def test_branches_stay() -> None:
    takes("one", "exp")
    x = var("x", 2)
    condition = var("c", dtype="bool")
    first = exp(x)
    module = module_of(tanh(If(condition, negative(first), exp(first))), x, condition)
    assert PartitionGraph()(Merge()(AnnotateTarget("one")(module))) is not None
    assert not external(PartitionGraph()(Merge()(AnnotateTarget("one")(module))))


def test_nothing_to_take() -> None:
    x = var("x", 2)
    module = module_of(exp(x), x)
    assert partitioned(module, "one") is module


def test_partitioned_functions_are_neither_inlined_nor_partitioned_again() -> None:
    takes("one", "exp")
    x = var("x", 2)
    result = partitioned(module_of(exp(x), x), "one")
    assert Inline()(result) is result
    assert list(Inline(everything=True)(result)) == list(result)
    assert partitioned(result, "one") is result


def test_an_operator_that_is_not_there() -> None:
    with pytest.raises(AotcError, match="operator `expp` not found"):
        register_op_attr("expp", "target.one", lambda _: True)


@pytest.mark.parametrize("length", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("period", [1, 3])
def test_a_long_chain(period: int, length: int) -> None:
    takes("one", "exp")
    x = var("x", 2)
    body: Expr = x
    for k in range(length):
        body = tanh(body) if k % period == 1 else exp(body)
    result = PartitionGraph()(Merge()(AnnotateTarget("one")(module_of(body, x))))
    assert len(external(result)) == (1 if period == 1 else (length + 2) // 3)


@st.composite
def graphs(draw: st.DrawFn) -> IRModule:
    """Graphs of tensors of one shape, with tuples in between."""
    x, y = var("x", 2, 2), var("y", 2, 2)
    nodes: list[Expr] = [x, y, const([[1.0, 2], [3, 4]])]
    for _ in range(draw(st.integers(1, 14))):
        a, b = (nodes[draw(st.integers(0, len(nodes) - 1))] for _ in range(2))
        match draw(st.integers(0, 5)):
            case 0:
                nodes.append(add(a, b))
            case 1:
                nodes.append(multiply(a, b))
            case 2:
                nodes.append(tanh(a))
            case 3:
                nodes.append(negative(a))
            case 4:
                nodes.append(Tuple([a, b])[draw(st.integers(0, 1))])
            case _:
                halves = split(a, 2, axis=1)
                nodes += [halves[1], concatenate(Tuple([halves[1], halves[0]]), axis=1)]
                nodes.remove(halves[1]) if halves[1] in nodes else nodes.pop(-2)
    return module_of(Tuple(nodes[-3:]), x, y)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.lists(st.sampled_from(["", "one", "two"]), min_size=40, max_size=40), st.booleans(), st.booleans())
def test_random_graphs(module: IRModule, choice: list[str], merge: bool, bind: bool) -> None:
    calls = [n for n in post_order(module.main.body) if isinstance(n, Call)]
    wanted = {call: choice[k % len(choice)] for k, call in enumerate(calls)}
    for compiler in ("one", "two"):
        takes(compiler, *OPERATORS, check=lambda e, c=compiler: wanted.get(e) == c)  # type: ignore[misc]
    try:
        result = partitioned(module, "one", "two", merge=merge, bind_constants=bind)
    finally:
        forget()
    assert "annotation" not in str(result)
    functions = external(result)
    for function in functions.values():
        assert not free_vars(function)
        assert not global_uses(function)
    counted = sum(len(inside(f)) for f in functions.values())
    assert counted == sum(bool(w) for w in wanted.values())
    assert counted + sum(ops(result).values()) == len(calls)
    assert InferType()(result) is not None


def test_outputs_come_in_the_order_of_their_marks() -> None:
    x = var("x", 2, 3)
    first = exp(compiler_begin(x, "one"))
    second = relu(first)
    body = Tuple([compiler_end(second, "one"), tanh(compiler_end(first, "one"))])
    (function,) = external(checked(PartitionGraph(), module_of(body, x))).values()
    assert [f.op.name for f in function.body.fields] == ["nn.relu", "exp"]  # type: ignore[union-attr]


def test_tuples_of_constants_are_bound() -> None:
    x = var("x", 2, 3)
    parts = Tuple([const([[1.0, 2.0, 3.0]]), const([[4.0, 5.0, 6.0]])])
    joined = compiler_end(concatenate(compiler_begin(parts, "one"), axis=0), "one")
    module = module_of(add(joined, x), x)
    for bind, count in ((True, 0), (False, 1)):
        (function,) = external(checked(PartitionGraph(bind_constants=bind), module)).values()
        assert len(function.params) == count
