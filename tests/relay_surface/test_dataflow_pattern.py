# SPDX-License-Identifier: Apache-2.0
"""The pattern language: what matches, what rewriting and partitioning make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aotc import relay
from aotc.ir.diagnostics import AotcError
from aotc.ir.op import OpPattern
from aotc.relay.dataflow_pattern import (
    DFPattern,
    DFPatternCallback,
    FunctionPattern,
    dominates,
    has_attr,
    has_dtype,
    has_shape,
    has_type,
    is_constant,
    is_expr,
    is_if,
    is_let,
    is_op,
    is_tuple,
    is_tuple_get_item,
    is_var,
    rewrite,
    wildcard,
)
from aotc.relay.structural import assert_structural_equal

DEEP = 10_000


def tensor(name: str, *shape: int, dtype: str = "float32") -> relay.Var:
    return relay.var(name, shape=shape, dtype=dtype)


def relus(length: int, start: relay.Expr) -> relay.Expr:
    for _ in range(length):
        start = relay.nn.relu(start)
    return start


X, Y, W = tensor("x", 1, 3, 8, 8), tensor("y", 1, 3, 8, 8), tensor("w", 3, 3, 3, 3)
BIAS = tensor("b", 3, 1, 1)


def conv(data: relay.Expr = X) -> relay.Call:
    return relay.nn.conv2d(data, W, padding=(1, 1))


def is_conv() -> DFPattern:
    return is_op("nn.conv2d")(wildcard(), wildcard())


# --- matching


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (is_op("add"), relay.add(X, Y).op, relay.subtract(X, Y).op),
        (is_op("add")(is_var("x"), is_var("y")), relay.add(Y, X), relay.add(X, X)),
        (is_var("x") - is_var("y"), relay.subtract(X, Y), relay.subtract(Y, X)),
        (is_var("x") / is_var("y"), relay.divide(X, Y), relay.divide(Y, X)),
        (is_var("x") * is_var("y"), relay.multiply(Y, X), relay.divide(Y, X)),
        (is_op("add")(None), relay.add(X, Y), relay.multiply(X, Y)),
        (is_op("add")(wildcard()), relay.Call(relay.add(X, Y).op, [X]), relay.add(X, Y)),
        (is_var(), X, relay.const(1.0)),
        (is_constant(), relay.const(1.0), X),
        (is_expr(relay.const(1.0)), relay.const(1.0), relay.const(2.0)),
        (is_expr(X), X, tensor("x", 1, 3, 8, 8)),
        (is_tuple([is_var("x"), wildcard()]), relay.Tuple([X, Y]), relay.Tuple([Y, X])),
        (is_tuple(None), relay.Tuple([X]), X),
        (is_tuple_get_item(wildcard(), 1), relay.split(X, 3, 1)[1], relay.split(X, 3, 1)[0]),
        (is_tuple_get_item(is_op("split")(wildcard())), relay.split(X, 3, 1)[2], relay.Tuple([X])),
        (has_type(relay.TensorType((3, 1, 1), "float32")), BIAS, X),
        (has_dtype("float32"), X, tensor("i", 2, dtype="int8")),
        (has_shape((3, 1, 1), is_var()), BIAS, X),
        (has_attr({"TOpPattern": OpPattern.ELEMWISE}), relay.nn.relu(X).op, relay.add(X, Y).op),
        (wildcard().has_attr({"TOpPattern": 1})(None), relay.add(X, Y), relay.nn.relu(X)),
        (is_conv().has_attr({"kernel_layout": "OIHW", "strides": [1, 1]}), conv(), relay.nn.relu(X)),
        (is_conv().has_attr({"strides": [1, 1]}), conv(), relay.nn.conv2d(X, W, strides=(2, 2))),
        (is_conv().has_attr({"no such": 1}) | is_var(), X, conv()),
        (is_conv().optional(is_op("nn.relu")), relay.nn.relu(conv()), relay.nn.relu(X)),
        (is_conv().optional(lambda c: is_op("nn.relu")(c)).has_dtype("float32"), conv(), X),
    ],
)
def test_what_matches(pattern: DFPattern, yes: relay.Expr, no: relay.Expr) -> None:
    assert pattern.match(yes)
    assert not pattern.match(no)


def test_control_flow_and_functions_match() -> None:
    cond, v = tensor("c", dtype="bool"), tensor("v", 2)
    choice = relay.If(cond, v, relay.exp(v))
    assert is_if(is_var("c"), wildcard(), is_op("exp")(wildcard())).match(choice)
    assert not is_if(is_var("v"), wildcard(), wildcard()).match(choice)
    let = relay.Let(tensor("t", 2), relay.exp(v), v)
    assert is_let(is_var("t"), is_op("exp")(is_var("v")), is_var("v")).match(let)
    assert not is_let(is_var("t"), is_constant(), is_var("v")).match(let)
    function = relay.Function([v], relay.exp(v), attrs={"Composite": "exp"})
    assert FunctionPattern([wildcard()], is_op("exp")(wildcard())).match(function)
    assert FunctionPattern(None, wildcard()).has_attr({"Composite": "exp"}).match(function)
    assert not FunctionPattern([], wildcard()).match(function)
    assert not FunctionPattern(None, wildcard()).has_attr({"Composite": "log"}).match(function)


def test_a_pattern_is_one_node() -> None:
    x = wildcard()
    assert (x + x).match(relay.add(X, X))
    assert not (x + x).match(relay.add(X, Y))
    assert is_op("add")(is_op("exp")(x), x).match(relay.add(X, relay.exp(X)))
    assert not is_op("add")(is_op("exp")(x), x).match(relay.add(Y, relay.exp(X)))


def test_matching_backtracks() -> None:
    x, y = wildcard(), wildcard()
    # the sum fits both ways; only the second lets x be the divisor too
    assert ((x + y) / x).match(relay.divide(relay.add(X, Y), Y))
    either = is_op("exp")(x) | is_op("exp")(is_op("exp")(x))
    assert (either * x).match(relay.multiply(relay.exp(relay.exp(X)), X))


ELEMENTWISE = wildcard().has_attr({"TOpPattern": OpPattern.ELEMWISE})(wildcard())


def diamond() -> DFPattern:
    return dominates(is_conv(), ELEMENTWISE, is_op("add")(wildcard(), wildcard()))


def test_dominators_match() -> None:
    c = conv()
    assert diamond().match(relay.add(relay.nn.relu(c), relay.tanh(c)))
    assert diamond().match(relay.add(relus(3, c), relay.tanh(relay.exp(c))))
    top = relay.nn.relu(c)
    assert diamond().match(relay.add(top, relay.tanh(top)))
    reshaped = relay.reshape(relay.nn.relu(relay.add(c, BIAS)), (1, -1))
    path = ELEMENTWISE | is_op("add")(wildcard(), wildcard())
    assert is_op("reshape")(wildcard()).dominates(is_conv(), path).match(reshaped)
    assert is_op("reshape")(wildcard()).dominates(is_conv()).match(reshaped)
    assert diamond().match(relay.add(relus(DEEP, c), c))


@pytest.mark.parametrize(
    "make",
    [
        lambda: relay.add(relay.nn.relu(conv()), relay.tanh(conv(Y))),
        lambda: relay.add(relay.nn.relu(X), relay.tanh(conv())),
        lambda: relay.add(relay.nn.relu(X), relay.tanh(X)),
        lambda: relay.add(relay.reshape(conv(), (1, 3, 8, 8)), conv()),
    ],
    ids=["two convolutions", "one branch without", "no convolution", "another operator on the way"],
)
def test_dominators_do_not_match(make: Callable[[], relay.Expr]) -> None:
    assert not diamond().match(make())


def test_patterns_of_something_else_are_errors() -> None:
    with pytest.raises(AotcError, match=r"operator `nn\.convolution` not found"):
        is_op("nn.convolution")
    with pytest.raises(TypeError, match="expected a pattern, not int"):
        wildcard() + 1  # type: ignore[operator]


# --- rewriting


class Rule(DFPatternCallback):
    def __init__(self, pattern: DFPattern, make: Callable[[relay.Expr, relay.Expr, Any], Any], **options: bool) -> None:
        super().__init__(**options)
        self.pattern = pattern
        self.make = make

    def callback(self, pre: relay.Expr, post: relay.Expr, node_map: Any) -> relay.Expr:
        return self.make(pre, post, node_map)  # type: ignore[no-any-return]


def test_rewrite_batch_norm() -> None:
    data, mean, var, gamma, beta = (wildcard() for _ in range(5))
    eps = is_constant()
    pattern = gamma * (data - mean) / is_op("sqrt")(var + eps) + beta
    names = [tensor(n, 4) for n in ("mean", "var", "gamma", "beta")]
    m, v, g, b = names
    x, epsilon = tensor("x", 2, 4), relay.const(1e-3)
    before = b + (x - m) * g / relay.sqrt(epsilon + v)
    order = (data, gamma, beta, mean, var)

    def make(pre: relay.Expr, post: relay.Expr, found: Any) -> Any:
        return relay.nn.batch_norm(*(found[p][0] for p in order), epsilon=float(found[eps][0].data))[0]

    after = rewrite(Rule(pattern, make), before)
    assert_structural_equal(after, relay.nn.batch_norm(x, g, b, m, v, epsilon=float(np.float32(1e-3)))[0])


def test_rules_run_until_nothing_changes() -> None:
    x = wildcard()
    zero = is_constant()
    rules = [
        Rule(x + zero, lambda pre, post, found: found[x][0] if not found[zero][0].data.any() else post),
        Rule(is_op("nn.relu")(is_op("nn.relu")(x)), lambda pre, post, found: relay.nn.relu(found[x][0])),
    ]
    before = relay.nn.relu(relay.add(relay.const(np.zeros((), "float32")), relay.nn.relu(X)))
    assert_structural_equal(rewrite(rules, before), relay.nn.relu(X))
    kept = relay.add(X, relay.const(1.0))
    assert rewrite(rules, kept) is kept


def test_rewrite_once_and_no_fixpoint() -> None:
    x = wildcard()

    def grow(**options: bool) -> Rule:
        return Rule(is_op("exp")(x), lambda pre, post, found: relay.exp(relay.exp(found[x][0])), **options)

    assert_structural_equal(grow(rewrite_once=True).rewrite(relay.exp(X)), relay.exp(relay.exp(X)))
    swap = Rule(x - wildcard(), lambda pre, post, found: relay.subtract(*reversed(post.args)))
    with pytest.raises(AotcError, match="still changes after 100 rounds"):
        swap.rewrite(relay.subtract(X, Y))


def test_new_types_reach_the_users() -> None:
    x = wildcard()
    halve = Rule(is_op("exp")(x), lambda pre, post, found: relay.cast(found[x][0], "float16"))
    result = rewrite(halve, relay.nn.relu(relay.exp(X)))
    assert result.checked_type == relay.TensorType((1, 3, 8, 8), "float16")


def test_callbacks_that_go_wrong() -> None:
    with pytest.raises(TypeError, match="returned NoneType, not an expression"):
        rewrite(Rule(is_op("exp")(wildcard()), lambda *_: None), relay.exp(X))
    with pytest.raises(TypeError, match="DFPatternCallback has no pattern"):
        rewrite(DFPatternCallback(), X)


def test_the_callback_sees_types_if_it_asks() -> None:
    def body() -> relay.Expr:
        v = relay.var("v")
        return relay.Function([v], relay.nn.relu(relay.nn.conv2d(X, v, channels=3, kernel_size=(3, 3), padding=(1, 1))))

    seen: list[Any] = []
    for require in (False, True):
        rule = Rule(is_op("nn.relu")(wildcard()), lambda pre, post, _: seen.append(pre.checked_type) or post)
        rule.require_type = require
        rule.rewrite(body())
    assert seen[0] is None
    assert seen[-1] == relay.TensorType((1, 3, 8, 8), "float32")


def test_deep_chains() -> None:
    x = wildcard()
    pairs = is_op("nn.relu")(is_op("nn.relu")(x))
    deep = relus(DEEP, X)
    assert_structural_equal(rewrite(Rule(pairs, lambda pre, post, m: relay.nn.relu(m[x][0])), deep), relay.nn.relu(X))
    freqs = relay.analysis.list_op_freqs(pairs.partition(deep))
    assert freqs == {"nn.relu": DEEP}
    calls = [n for n in _nodes(pairs.partition(deep)) if isinstance(n, relay.Function)]
    assert len(calls) == DEEP // 2


def _nodes(expr: relay.Expr) -> list[relay.Expr]:
    found: list[relay.Expr] = []
    relay.analysis.post_order_visit(expr, found.append)
    return found
