# SPDX-License-Identifier: Apache-2.0
"""The dataflow pattern language: matches, rewriting and partitioning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aotc
from aotc import relay
from aotc.ir.diagnostics import AotcError
from aotc.ir.op import OpPattern
from aotc.ir.span import Span, span_scope
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
from aotc.relay.interpreter import evaluate
from aotc.relay.structural_equality import assert_structural_equal

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


def test_patterns_print_as_what_they_are() -> None:
    text = "CallPattern(ExprPattern(nn.relu), (VarPattern(x),))"
    assert repr(is_op("nn.relu")(is_var("x"))) == text
    assert str(has_shape((2, 3))) == "ShapePattern(WildcardPattern(), (2, 3))"


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


def test_replacements_say_where_they_come_from() -> None:
    one, two = Span("model.onnx", node="one"), Span("model.onnx", node="two")
    with span_scope(one):
        inner = relay.nn.relu(X)
    with span_scope(two):
        expr = relay.tanh(inner)
    result = Rule(is_op("tanh")(is_op("nn.relu")(wildcard())), lambda *_: relay.exp(X)).rewrite(expr)
    assert result.span is not None
    assert result.span.all_origins() == (one, two)
    moved = is_op("tanh")(is_op("nn.relu")(wildcard())).partition(expr)
    assert moved.span == result.span


def test_new_types_reach_the_users() -> None:
    x = wildcard()
    halve = Rule(is_op("exp")(x), lambda pre, post, found: relay.cast(found[x][0], "float16"))
    result = rewrite(halve, relay.nn.relu(relay.exp(X)))
    assert result.checked_type == relay.TensorType((1, 3, 8, 8), "float16")


def test_global_functions_are_typed_by_the_module() -> None:
    v = tensor("v", 2)
    helper = relay.GlobalVar("helper")
    mod = relay.transform.InferType()(aotc.IRModule({"helper": relay.Function([v], relay.exp(v))}))
    halve = Rule(is_op("tanh")(wildcard()), lambda pre, post, _: relay.cast(post.args[0], "float16"), require_type=True)
    expr = relay.Call(relay.nn.relu(v).op, [relay.tanh(relay.Call(helper, [v]))])
    result = rewrite(halve, expr, mod)
    assert result.checked_type == relay.TensorType((2,), "float16")
    with pytest.raises(AotcError, match="no function @helper"):
        rewrite(halve, expr)


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
    assert len(composites(pairs.partition(deep))) == DEEP // 2


@pytest.mark.parametrize("start", [X, relay.reshape(X, (1, 3, 8, 8))], ids=["variable", "operator"])
def test_deep_chains_without_a_parent(start: relay.Expr) -> None:
    region = is_op("nn.relu")(wildcard()).dominates(is_conv(), ELEMENTWISE)
    deep = relus(DEEP, start)
    assert region.partition(deep) is deep
    assert len(composites(region.partition(relay.add(relus(10, conv()), deep)))) == 1


def _nodes(expr: relay.Expr) -> list[relay.Expr]:
    found: list[relay.Expr] = []
    relay.analysis.post_order_visit(expr, found.append)
    return found


# --- partitioning


def composites(expr: relay.Expr) -> list[str]:
    """What the functions were made from, operands before users."""
    return [str(n.attrs["PartitionedFromPattern"]) for n in _nodes(expr) if isinstance(n, relay.Function) if n.attrs]


def conv_add_relu() -> DFPattern:
    return is_op("nn.relu")(is_conv() + wildcard())


def test_partition_makes_a_function_with_the_arguments_of_the_pattern() -> None:
    expr = relay.nn.relu(relay.add(BIAS, conv()))  # the sum the other way round: the parameters keep the order
    result = conv_add_relu().partition(expr, {"Composite": "conv_bias_relu"})
    x, w, b = (tensor(f"FunctionVar_0_{k}", *v.checked_type.shape) for k, v in enumerate((X, W, BIAS)))
    inner = relay.nn.relu(relay.add(b, relay.nn.conv2d(x, w, padding=(1, 1))))
    attrs = {"Composite": "conv_bias_relu", "PartitionedFromPattern": "nn.conv2d_add_nn.relu_"}
    assert_structural_equal(result, relay.Function([x, w, b], inner, attrs=attrs)(X, W, BIAS))
    assert isinstance(result, relay.Call)
    assert result.checked_type == expr.checked_type
    assert [p.name for p in result.op.params] == ["FunctionVar_0_0", "FunctionVar_0_1", "FunctionVar_0_2"]
    assert result.op.checked_type is not None


def test_partition_twice() -> None:
    expr = relay.nn.relu(relay.add(conv(relay.nn.relu(relay.add(conv(), BIAS))), BIAS))
    result = conv_add_relu().partition(relay.add(expr, conv(Y)))
    assert composites(result) == ["nn.conv2d_add_nn.relu_"] * 2
    again = is_conv().partition(result)
    assert composites(again) == ["nn.conv2d_add_nn.relu_"] * 2 + ["nn.conv2d_"]
    assert is_conv().partition(again) is again


def test_partition_of_nothing_is_the_same_object() -> None:
    expr = relay.nn.relu(X)
    assert is_conv().partition(expr) is expr
    assert wildcard().partition(expr) is expr


def test_nodes_used_outside_keep_a_match_apart() -> None:
    c = conv()
    for expr in (relay.Tuple([relay.nn.relu(c), c]), relay.add(relay.nn.relu(c), relay.tanh(c))):
        assert is_op("nn.relu")(is_conv()).partition(expr) is expr
        either = is_op("nn.relu")(is_conv()) | is_conv()
        assert composites(either.partition(expr)) == ["nn.conv2d_"]
    gated = relay.multiply(c, relay.sigmoid(c))  # the other operand depends on a node inside
    assert (is_conv() * wildcard()).partition(gated) is gated


def test_the_order_of_a_sum_is_chosen_so_that_the_match_is_closed() -> None:
    one, two = relay.nn.relu(X), relay.nn.relu(Y)
    expr = relay.Tuple([relay.add(one, two), one])
    assert composites((is_op("nn.relu")(wildcard()) + wildcard()).partition(expr)) == ["nn.relu_add_"]


def test_shared_operands_are_one_parameter() -> None:
    top = relay.nn.relu(X)
    result = (is_op("nn.relu")(wildcard()) + wildcard()).partition(relay.add(top, top))
    assert isinstance(result, relay.Call)
    assert result.args == (X,)
    x, y = wildcard(), wildcard()
    result = (x * y).partition(relay.multiply(X, X))
    assert isinstance(result, relay.Call)
    assert result.args == (X,)


def test_constants_stay_inside_where_the_pattern_wants_them() -> None:
    two = relay.const(2.0)
    inside = (wildcard() * is_constant()).partition(relay.multiply(X, two))
    assert isinstance(inside, relay.Call)
    assert inside.args == (X,)
    inside = (wildcard() * (is_var("n") | is_expr(two))).partition(relay.multiply(X, two))
    assert isinstance(inside, relay.Call)
    assert inside.args == (X,)
    outside = (wildcard() * wildcard()).partition(relay.multiply(X, two))
    assert isinstance(outside, relay.Call)
    assert outside.args == (X, two)


def test_check_decides() -> None:
    expr = relay.nn.relu(conv(relay.nn.relu(conv())))
    pattern = is_op("nn.relu")(is_conv()) | is_conv()
    seen: list[relay.Expr] = []

    def inner_relu_only(node: relay.Expr) -> bool:
        seen.append(node)
        return node is not expr and node is not expr.args[0]

    assert composites(pattern.partition(expr, check=inner_relu_only)) == ["nn.conv2d_nn.relu_"]
    assert seen[0] is expr


def test_partition_of_tuples_and_fields() -> None:
    joined = relay.concatenate((relay.nn.relu(X), Y), axis=1)
    assert composites(is_op("concatenate")(is_tuple(None)).partition(joined)) == ["Tuple_concatenate_"]
    x = wildcard()
    halves = relay.split(X, 2, 2)
    shared = is_op("split")(x)
    swish = is_tuple_get_item(shared, 0) * is_op("sigmoid")(is_tuple_get_item(shared, 1))
    result = swish.partition(relay.multiply(halves[0], relay.sigmoid(halves[1])))
    assert composites(result) == ["split_TupleGetItem0_TupleGetItem1_sigmoid_multiply_"]
    assert isinstance(result, relay.Call)
    assert result.args == (X,)


def test_partition_of_a_region() -> None:
    c = conv()
    expr = relay.exp(relay.add(relay.nn.relu(c), relay.tanh(relay.nn.relu(c))))
    result = diamond().partition(expr)
    assert composites(result) == ["nn.conv2d_nn.relu_nn.relu_tanh_add_"]
    c = conv()
    reshaped = relay.reshape(relay.nn.relu(relay.add(c, BIAS)), (1, -1))
    region = is_op("reshape")(wildcard()).dominates(is_conv())
    result = region.partition(reshaped)
    assert isinstance(result, relay.Call)
    assert result.args == (X, W, BIAS)


def test_partition_of_calls_of_functions() -> None:
    p, q = tensor("p", 1, 3, 8, 8), tensor("q", 3, 3, 3, 3)
    function = relay.Function([p, q], relay.nn.conv2d(p, q, padding=(1, 1)))
    pattern = FunctionPattern([wildcard(), wildcard()], is_conv())(wildcard(), wildcard()) + wildcard()
    result = pattern.partition(relay.add(function(X, W), BIAS))
    assert composites(result) == ["nn.conv2d_FunctionCall_add_"]
    assert isinstance(result, relay.Call)
    assert result.args == (X, W, BIAS)


def test_a_function_that_two_matches_share_goes_into_one() -> None:
    v, u = tensor("v", 2), tensor("u", 2)
    function = relay.Function([v], relay.add(v, relay.exp(u)))
    both = relay.Tuple([relay.log(function(u)), relay.log(function(tensor("z", 2)))])
    result = is_op("log")(FunctionPattern(None, wildcard())(wildcard())).partition(both)
    assert composites(result) == ["exp_add_FunctionCall_log_"]


def test_closures_and_branches_stay_whole() -> None:
    cond, v, u = tensor("c", dtype="bool"), tensor("v", 2), tensor("u", 2)
    closure = relay.Function([v], relay.add(v, relay.exp(u)))
    result = FunctionPattern(None, wildcard())(wildcard()).partition(closure(tensor("z", 2)))
    assert relay.analysis.free_vars(result.op) == []
    choice = relay.If(cond, relay.exp(u), relay.log(u))
    result = is_if(wildcard(), wildcard(), wildcard()).partition(choice)
    assert isinstance(result, relay.Call)
    assert result.args == (cond, u)
    t = tensor("t", 2)
    let = relay.Let(t, relay.exp(u), relay.add(t, t))
    result = is_let(wildcard(), wildcard(), wildcard()).partition(let)
    assert isinstance(result, relay.Call)
    assert result.args == (u,)
    assert relay.analysis.well_formed(result)


def test_partition_by_type_infers_types() -> None:
    x = relay.var("x", shape=(2, 3))
    body = relay.Call(relay.nn.relu(x).op, [x])
    result = is_op("nn.relu")(wildcard()).has_shape((2, 3)).partition(relay.Function([x], body))
    assert composites(result) == ["nn.relu_"]


def test_partition_in_functions() -> None:
    x = tensor("x", 2)
    inner = relay.Function([x], relus(2, x))
    outer = relay.Function([X], relay.Tuple([inner(tensor("z", 2)), relus(2, X)]))
    assert composites(is_op("nn.relu")(is_op("nn.relu")(wildcard())).partition(outer)) == ["nn.relu_nn.relu_"] * 2


# --- partitioned programs compute the same

PATTERNS: dict[str, Callable[[], DFPattern]] = {
    "chain": lambda: is_op("tanh")(wildcard()).optional(is_op("nn.relu")),
    "sum": lambda: is_op("tanh")(wildcard()) + (wildcard() | is_constant()),
    "gate": lambda: (lambda x: x * is_op("tanh")(x))(wildcard()),
    "two sums": lambda: (wildcard() + wildcard()) * (is_op("nn.relu")(wildcard()) + wildcard()),
    "region": lambda: (wildcard() + wildcard()).dominates(is_op("tanh")(wildcard()), ELEMENTWISE),
    "loose region": lambda: is_op("multiply")(None).dominates(is_op("add")(None)),
    "pair": lambda: is_tuple_get_item(is_tuple([wildcard(), is_op("nn.relu")(wildcard())])),
}


MOTIFS: dict[str, Callable[[relay.Expr, relay.Expr], list[relay.Expr]]] = {
    "tanh": lambda a, b: [relay.tanh(a)],
    "relu": lambda a, b: [relay.nn.relu(a)],
    "add": lambda a, b: [relay.add(a, b)],
    "multiply": lambda a, b: [relay.multiply(a, b)],
    "gate": lambda a, b: [t := relay.tanh(a), relay.multiply(t, a)],
    "two sums": lambda a, b: [s := relay.add(relay.nn.relu(b), a), relay.multiply(s, relay.add(a, b))],
    "region": lambda a, b: [t := relay.tanh(a), relay.add(relay.nn.relu(t), relay.exp(relay.nn.relu(t)))],
    "pair": lambda a, b: [r := relay.nn.relu(b), relay.TupleGetItem(relay.Tuple([a, r]), 1)],
}


@st.composite
def programs(draw: st.DrawFn) -> relay.Function:
    params = [tensor("a", 3), tensor("b", 3)]
    nodes: list[relay.Expr] = [*params, relay.const(np.array([0.5, -1.0, 2.0], "float32"))]
    for _ in range(draw(st.integers(1, 8))):
        a, b = (nodes[draw(st.integers(max(0, len(nodes) - 4), len(nodes) - 1))] for _ in range(2))
        nodes += MOTIFS[draw(st.sampled_from(sorted(MOTIFS)))](a, b)
    return relay.Function(params, relay.Tuple(nodes[-draw(st.integers(1, 2)) :]))


@given(programs(), st.sampled_from(sorted(PATTERNS)))
@settings(max_examples=150, deadline=None)
def test_partition_keeps_the_meaning(function: relay.Function, name: str) -> None:
    pattern = PATTERNS[name]()
    result = pattern.partition(function)
    assert relay.analysis.well_formed(result)
    made = [n for n in _nodes(result) if isinstance(n, relay.Function) and n.attrs]
    assert all(not relay.analysis.free_vars(f) for f in made)
    assert all(pattern.match(f.body) for f in made)
    assert relay.analysis.list_op_freqs(result) == relay.analysis.list_op_freqs(function)
    a, b = np.array([1.0, -2.0, 0.25], "float32"), np.array([-0.5, 3.0, 1.5], "float32")
    for have, wanted in zip(evaluate(result, a, b), evaluate(function, a, b), strict=True):
        np.testing.assert_array_equal(have, wanted)


@given(programs())
@settings(max_examples=60, deadline=None)
def test_rewrite_keeps_the_meaning(function: relay.Function) -> None:
    x, y = wildcard(), wildcard()
    zero = relay.const(0.0)
    rules = [
        Rule(is_op("nn.relu")(x), lambda pre, post, found: relay.maximum(found[x][0], zero)),
        Rule((x + y) * x, lambda pre, post, _: relay.multiply(*reversed(post.args)), rewrite_once=True),
        Rule(is_tuple_get_item(is_tuple(None)), lambda pre, post, _: post.tuple_value[post.index]),
    ]
    result = rewrite(rules, function)
    assert not {"nn.relu"} & set(relay.analysis.list_op_freqs(result))
    assert not any(isinstance(n, relay.TupleGetItem) for n in _nodes(result))
    a, b = np.array([1.0, -2.0, 0.25], "float32"), np.array([-0.5, 3.0, 1.5], "float32")
    for have, wanted in zip(evaluate(result, a, b), evaluate(function, a, b), strict=True):
        np.testing.assert_array_equal(have, wanted)
