# SPDX-License-Identifier: Apache-2.0
"""Programs with visitors over node kinds, and programs that build expressions from the outside in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir.diagnostics import AotcError
from aotc.relay.testing import mlp

DEEP = 10_000


def chain(length: int) -> relay.Function:
    x = relay.var("x", shape=(2,))
    body: relay.Expr = x
    for _ in range(length):
        body = relay.nn.relu(body)
    return relay.Function([x], body)


class ToTanh(relay.ExprMutator):
    def visit_call(self, call: relay.Call) -> relay.Expr:
        new = super().visit_call(call)
        return relay.tanh(*new.args) if new.op.name == "nn.relu" else new


class Counter(relay.ExprVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def visit_call(self, call: relay.Call) -> None:
        self.calls += 1
        super().visit_call(call)


@pytest.mark.parametrize("length", [3, DEEP])
def test_visiting_and_rewriting(length: int) -> None:
    function = chain(length)
    counter = Counter()
    counter.visit(function)
    assert counter.calls == length
    result = ToTanh().visit(function)
    assert relay.analysis.list_op_freqs(result) == {"tanh": length}
    assert result.params == function.params


def test_what_stays_is_the_same_object() -> None:
    mod, _ = mlp.get_workload(batch_size=1)
    assert relay.ExprMutator().visit(mod["main"]) is mod["main"]
    a, b, flag = relay.var("a", shape=(2,)), relay.var("b", shape=(2,)), relay.var("flag", shape=(), dtype="bool")
    t = relay.var("t", shape=(2,))
    choice = relay.Let(t, a, relay.If(flag, t, relay.TupleGetItem(relay.Tuple((t, relay.nn.relu(b))), 1)))
    function = relay.Function([a, b, flag], choice)
    assert relay.ExprMutator().visit(function) is function
    assert relay.analysis.list_op_freqs(ToTanh().visit(function)) == {"tanh": 1}


def test_a_shared_node_is_visited_once() -> None:
    x = relay.var("x", shape=(2,))
    body: relay.Expr = x
    for _ in range(200):  # 2^200 paths
        body = relay.add(body, body)
    counter = Counter()
    counter.visit(body)
    assert counter.calls == 200


def test_a_method_decides_what_lies_below() -> None:
    class Outer(Counter):
        def visit_function(self, fn: relay.Function) -> None:
            if not fn.is_primitive:
                super().visit_function(fn)

    mod, _ = mlp.get_workload(batch_size=1)
    fused = relay.transform.FuseOps(2)(mod)
    outer, everything = Outer(), Counter()
    outer.visit(fused["main"])
    everything.visit(fused["main"])
    primitive = len(relay.analysis.extract_fused_functions(fused))
    assert 0 < primitive <= outer.calls < everything.calls


@pytest.mark.parametrize("length", [3, DEEP])
def test_errors_reach_the_caller(length: int) -> None:
    class Refuses(relay.ExprVisitor):
        def visit_var(self, var: relay.Var) -> None:
            raise KeyError(var.name)

    with pytest.raises(KeyError, match="x"):
        Refuses().visit(chain(length).body)
    assert not [t for t in threading.enumerate() if t.name == "aotc-visit"]


def test_a_kind_without_a_method() -> None:
    class Names(relay.ExprFunctor):
        def visit_call(self, call: relay.Call) -> str:
            return f"{call.op.name}({', '.join(map(self.visit, call.args))})"

        def visit_var(self, var: relay.Var) -> str:
            return str(var.name_hint)

    assert Names().visit(chain(2).body) == "nn.relu(nn.relu(x))"
    with pytest.raises(NotImplementedError, match="Names does not say what to do with a Constant"):
        Names().visit(relay.add(relay.var("x", shape=(2,)), relay.const(1.0)))


def test_deep_walks_see_the_pass_context() -> None:
    seen: set[int] = set()

    class Looks(relay.ExprVisitor):
        def visit_call(self, call: relay.Call) -> None:
            seen.add(aotc.transform.PassContext.current().opt_level)
            super().visit_call(call)

    with aotc.transform.PassContext(opt_level=1):
        Looks().visit(chain(300))
    assert seen == {1}


def test_a_pass_made_of_a_mutator() -> None:
    @relay.transform.function_pass(opt_level=0, name="ToTanh")
    class Rewrite:
        def __init__(self, mutator: Callable[[], Any]) -> None:
            self.mutator = mutator

        def transform_function(self, function: Any, module: Any, ctx: Any) -> Any:
            return self.mutator().visit(function)

    mod = Rewrite(ToTanh)(aotc.IRModule.from_expr(chain(2)))
    value = np.array([-1, 1], "float32")
    result = relay.create_executor("debug", mod).evaluate()(value)
    np.testing.assert_allclose(result.numpy(), np.tanh(np.tanh(value)), rtol=1e-6)


def test_scopes() -> None:
    x, flag = relay.var("x", shape=(2,)), relay.var("flag", shape=(), dtype="bool")
    sb = relay.ScopeBuilder()
    y = sb.let("y", relay.add(x, x))
    with sb.if_scope(flag):
        z = sb.let(("z", relay.TensorType((2,), "float32")), relay.exp(y))
        sb.ret(relay.multiply(z, z))
    with sb.else_scope():
        sb.ret(sb.let(relay.var("w", shape=(2,)), y))
    function = relay.Function([x, flag], sb.get())
    text = """fn (%x: Tensor[(2), float32], %flag: bool) {
      let %y = add(%x, %x);
      if (%flag) { let %z: Tensor[(2), float32] = exp(%y); multiply(%z, %z) }
      else { let %w: Tensor[(2), float32] = %y; %w }
    }"""
    typed = relay.transform.InferType()(aotc.IRModule.from_expr(function))
    aotc.ir.assert_structural_equal(typed, relay.transform.InferType()(aotc.IRModule.from_expr(relay.parse_expr(text))))


def _two_results(sb: relay.ScopeBuilder) -> None:
    sb.ret(relay.const(1))
    sb.ret(relay.const(2))


def _no_else(sb: relay.ScopeBuilder) -> None:
    with sb.if_scope(relay.const(True)):
        sb.ret(relay.const(1))
    sb.get()


def _empty_branch(sb: relay.ScopeBuilder) -> None:
    with sb.if_scope(relay.const(True)):
        sb.let("x", relay.const(1))


def _let_between(sb: relay.ScopeBuilder) -> None:
    with sb.if_scope(relay.const(True)):
        sb.ret(relay.const(1))
    sb.let("x", relay.const(1))


def _only_else(sb: relay.ScopeBuilder) -> None:
    with sb.else_scope():
        sb.ret(relay.const(1))


def _get_inside(sb: relay.ScopeBuilder) -> None:
    with sb.if_scope(relay.const(True)):
        sb.get()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (_two_results, "ret after the result of the block"),
        (_no_else, "the program ends after an if_scope"),
        (_empty_branch, "the if_scope has no result"),
        (_let_between, "let after an if_scope"),
        (_only_else, "an else_scope must follow an if_scope"),
        (_get_inside, "get inside of a scope"),
        (lambda sb: sb.get(), "the program has no result"),
    ],
)
def test_scopes_out_of_order(act: Callable[[relay.ScopeBuilder], object], message: str) -> None:
    with pytest.raises(AotcError, match=message):
        act(relay.ScopeBuilder())
