# SPDX-License-Identifier: Apache-2.0
"""Partitioning for external compilers: composites, random graphs, a long chain; see `partition.test`, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from graphs import checked, const, module_of, noise, ops, var
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.diagnostics import AotcError
from aotc.ir.op import Op, register_op_attr, reset_op_attr
from aotc.ir.transform import Pass, Sequential
from aotc.relay.analysis import free_vars, global_uses
from aotc.relay.dataflow_pattern import is_op, wildcard
from aotc.relay.expr import Call, Expr, Function, Tuple
from aotc.relay.module import IRModule
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
