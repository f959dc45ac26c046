# SPDX-License-Identifier: Apache-2.0
"""FuseOps: Relay's grouping, meaning unchanged, every operator inside a kernel to be."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from relay.programs import FLAG, MATRIX, chain, functions, inputs, let_chain, matrix, scalar

from aotc.ir.op import Op
from aotc.ir.span import Span, span_scope
from aotc.ir.transform import PassContext
from aotc.ir.types import TensorType
from aotc.relay.analysis import free_vars, list_op_freqs
from aotc.relay.binding import bind_params_by_name
from aotc.relay.expr import Call, Constant, Expr, Function, If, Let, Tuple, TupleGetItem, Var, splat_constant
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.cast_clip_prelu import cast, clip
from aotc.relay.op.concat_split import concatenate, split
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import dense
from aotc.relay.op.elementwise_unary import exp, relu, sqrt, tanh
from aotc.relay.op.reduce import sum as sum_
from aotc.relay.op.shape import transpose
from aotc.relay.op.softmax import softmax
from aotc.relay.op.sorting import argsort
from aotc.relay.structural_equality import assert_structural_equal, structural_equal
from aotc.relay.transform.expand_ops import CanonicalizeOps, SimplifyInference
from aotc.relay.transform.fold_constant import FoldConstant
from aotc.relay.transform.fold_scale_axis import FoldScaleAxis
from aotc.relay.transform.fuse_ops import FuseOps, fuse_operators
from aotc.relay.type_inference import infer_function
from aotc.relay.visitor import post_order
from tests.effort import grows_linearly

FACTS = json.loads((Path(__file__).parents[1] / "relay" / "golden" / "facts.json").read_text(encoding="utf-8"))
X = Var("x", MATRIX)
IMAGE = Var("image", TensorType((1, 3, 8, 8)))
WEIGHT = Var("weight", TensorType((4, 3, 3, 3)))


def conv(x: Expr = IMAGE, w: Expr = WEIGHT) -> Expr:
    return conv2d(x, w, padding=(1, 1))


def groups(function: Function) -> list[str]:
    """The operators of each primitive function, joined by +, in order of the calls."""
    calls = [n for n in post_order(function) if isinstance(n, Call) and isinstance(n.op, Function)]
    return ["+".join(list_op_freqs(c.op)) for c in calls if isinstance(c.op, Function) and c.op.is_primitive]


def of(body: Expr, **options: int) -> list[str]:
    return groups(fuse_operators(Function(free_vars(body), body), **options))


# --- meaning


@settings(max_examples=150, deadline=None)
@given(functions())
def test_fusion_changes_no_result(function: Function) -> None:
    fused = fuse_operators(function)
    for flag in (True, False):
        before, after = (evaluate(f, *inputs(flag=flag)) for f in (function, fused))
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (before, after)), strict=True):
            np.testing.assert_array_equal(a, b)
    assert fused.checked_type == function.checked_type
    assert fuse_operators(fused) is fused


@settings(max_examples=150, deadline=None)
@given(functions())
def test_every_operator_is_in_a_closed_function(function: Function) -> None:
    fused = fuse_operators(function)
    outside = post_order(fused, lambda n: not (isinstance(n, Function) and n.is_primitive))
    assert not [n for n in outside if isinstance(n, Call) and isinstance(n.op, Op)]
    for call in post_order(fused):
        if isinstance(call, Call) and isinstance(call.op, Function) and call.op.is_primitive:
            assert not free_vars(call.op)
            assert [p.name for p in call.op.params] == [f"p{k}" for k in range(len(call.args))]
            assert [p.checked_type for p in call.op.params] == [a.checked_type for a in call.args]
            assert call.checked_type == call.op.ret_type == call.op.body.checked_type
            assert len(set(call.args)) == len(call.args)
    assert_structural_equal(infer_function(fused), fused)


# --- Relay's groups


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: relu(tanh(exp(X))), ["exp+tanh+nn.relu"]),
        (lambda: relu(add(conv(), Var("b", TensorType((4, 1, 1))))), ["nn.conv2d+add+nn.relu"]),
        (lambda: add(conv(), conv()), ["nn.conv2d", "nn.conv2d+add"]),  # one contraction per kernel
        (lambda: softmax(dense(X, X)), ["nn.dense", "nn.softmax"]),
        (lambda: sum_(exp(transpose(X, (1, 0))), axis=1), ["transpose", "exp+sum"]),
        (lambda: sqrt(sum_(exp(X), axis=1)), ["exp+sum", "sqrt"]),  # a reduction ends a kernel
        (lambda: transpose(relu(dense(X, X)), (1, 0)), ["nn.dense+nn.relu", "transpose"]),
        (lambda: add(dense(X, X), transpose(X, (1, 0))), ["transpose", "nn.dense+add"]),
        (lambda: dense(relu(X), exp(X)), ["nn.relu", "exp", "nn.dense"]),
        (lambda: concatenate(Tuple((exp(X), tanh(X))), axis=0), ["exp+tanh+concatenate"]),
        (lambda: concatenate(Tuple((dense(X, X), exp(X))), axis=0), ["nn.dense", "exp+concatenate"]),
        (lambda: relu(argsort(X, dtype="float32")), ["argsort", "nn.relu"]),  # an opaque operator stays alone
        (lambda: Tuple((exp(X), tanh(X))), ["exp", "tanh"]),
    ],
)
def test_groups(make: Callable[[], Expr], expected: list[str]) -> None:
    assert of(make()) == expected


def test_a_diamond_fuses_whole() -> None:
    a = exp(X)
    assert of(add(relu(a), multiply(tanh(a), a))) == ["exp+nn.relu+tanh+multiply+add"]


def test_a_result_needed_elsewhere_ends_a_group() -> None:
    a = exp(X)
    assert of(Tuple((a, relu(a)))) == ["exp", "nn.relu"]
    b = relu(dense(X, X))
    assert of(add(softmax(b), tanh(b))) == ["nn.dense+nn.relu", "nn.softmax", "tanh+add"] or of(
        add(softmax(b), tanh(b))
    ) == ["nn.dense+nn.relu", "nn.softmax+tanh+add"]


def test_a_residual_block_merges_with_one_convolution() -> None:
    a = relu(conv())
    w = Var("w", TensorType((4, 4, 3, 3)))
    body = relu(add(conv2d(relu(conv2d(a, w, padding=(1, 1))), w, padding=(1, 1)), a))
    assert of(body) == ["nn.conv2d+nn.relu", "nn.conv2d+nn.relu", "nn.conv2d+add+nn.relu"]


def test_fields_of_a_split() -> None:
    parts = split(X, 2, axis=0)
    value = getattr(parts, "tuple_value", parts)
    assert of(relu(TupleGetItem(value, 1))) == ["split+nn.relu"]
    assert of(add(TupleGetItem(value, 0), TupleGetItem(value, 1))) == ["split+add"]


def test_control_flow_bounds_groups() -> None:
    flag, t = Var("flag", FLAG), Var("t", MATRIX)
    assert of(If(flag, relu(exp(X)), tanh(X))) == ["exp+nn.relu", "tanh"]
    assert of(relu(Let(t, exp(X), tanh(t)))) == ["exp", "tanh", "nn.relu"]
    inner = Function((t,), relu(tanh(t)))
    assert of(Call(inner, (exp(X),), checked_type=MATRIX)) == ["tanh+nn.relu", "exp"]


@pytest.mark.parametrize("name", FACTS)
def test_networks_fuse_as_in_relay(name: str) -> None:
    module, params = importlib.import_module(f"aotc.relay.testing.{name.removesuffix('18')}").get_workload()
    module = module.with_function("main", bind_params_by_name(module.main, params))
    with PassContext(opt_level=3):
        for step in (SimplifyInference(), FoldConstant(), FoldScaleAxis(), CanonicalizeOps(), FuseOps()):
            module = step(module)
    calls = [n for n in post_order(module.main) if isinstance(n, Call) and isinstance(n.op, Function)]
    expected = dict(FACTS[name]["+FuseOps"])
    assert len(calls) == expected.pop("<fused function calls>")
    assert list_op_freqs(module.main) == expected
    if name == "resnet18":
        distinct: list[Expr] = []
        for call in calls:
            if not any(structural_equal(call.op, known) for known in distinct):
                distinct.append(call.op)
        assert len(distinct) == 30


# --- constants


def test_single_values_are_inside_and_tensors_are_parameters() -> None:
    one, table = scalar(1), matrix(0)
    (call,) = _calls(fuse_operators(Function((X,), add(multiply(X, one), table))))
    assert call.args == (X, table)
    big = splat_constant(2.0, (4, 4), "float32")
    (call,) = _calls(fuse_operators(Function((X,), add(X, big))))
    assert call.args == (X,)
    narrow = Var("h", TensorType((4,), "float16"))
    (call,) = _calls(fuse_operators(Function((narrow,), add(narrow, Constant(np.float16(1))))))
    assert len(call.args) == 2


def test_a_shared_single_value_is_inside_all_its_users() -> None:
    one = scalar(1)
    calls = _calls(fuse_operators(Function((X,), add(softmax(add(X, one)), one))))
    assert [len(c.args) for c in calls] == [1, 1]


def test_link_params_keeps_constants_inside() -> None:
    module = IRModule({"main": Function((X,), relu(dense(X, matrix(0))))})
    with PassContext(config={"relay.FuseOps.link_params": True}):
        (call,) = _calls(FuseOps()(module).main)
    assert call.args == module.main.params


def _calls(function: Function) -> list[Call]:
    return [n for n in post_order(function) if isinstance(n, Call) and isinstance(n.op, Function)]


# --- options, spans, size


def test_levels_and_depth() -> None:
    body = relu(tanh(exp(X)))
    assert of(body, opt_level=0) == ["exp", "tanh", "nn.relu"]
    assert of(body, max_depth=2) == ["exp+tanh", "nn.relu"]
    module = IRModule({"main": Function((X,), body)})
    with PassContext(opt_level=0):
        assert len(groups(FuseOps()(module).main)) == 3
        assert len(groups(FuseOps(fuse_opt_level=2)(module).main)) == 1
    with PassContext(opt_level=3, config={"relay.FuseOps.max_depth": 1}):
        assert len(groups(FuseOps()(module).main)) == 3


@pytest.mark.parametrize("most", [5, 9, 10, 12, 100])
def test_functions_take_no_more_than_they_may(most: int) -> None:
    """A concatenation of six, which takes eight by itself, and its sums with six others."""
    wide = TensorType((2, 18), "float32")
    body = concatenate(Tuple([Var(f"x{k}", TensorType((2, 3), "float32")) for k in range(6)]), axis=1)
    for k in range(6):
        body = add(body, Var(f"a{k}", wide))
    function = fuse_operators(Function(free_vars(body), body), max_args=most)
    taken = [len(call.args) + 2 for call in _calls(function)]
    assert max(taken) <= max(most, 8) and len(taken) == {5: 4, 9: 2, 10: 2, 12: 2, 100: 1}[most]
    given = [np.full(p.checked_type.shape, k, np.float32) for k, p in enumerate(function.params)]
    np.testing.assert_array_equal(evaluate(function, *given), evaluate(Function(free_vars(body), body), *given))


def test_spans_of_a_group_are_merged() -> None:
    body: Expr = X
    for node, op in (("first", exp), ("second", tanh)):
        with span_scope(Span("model.onnx", node=node)):
            body = op(body)
    (call,) = _calls(fuse_operators(Function((X,), body)))
    for span in (call.span, call.op.span):
        assert span is not None and [s.node for s in span.all_origins()] == ["first", "second"]


@pytest.mark.parametrize("make", [chain, let_chain])
def test_long_programs_take_linear_time(make: Callable[[int], Function]) -> None:
    def prepare(length: int) -> Callable[[], object]:
        program = make(length)
        return lambda: fuse_operators(program)

    assert grows_linearly(prepare)
    fused = fuse_operators(make(10_000))
    assert len(groups(fused)) == (40 if make is chain else 10_000)


def test_a_value_used_at_every_depth_takes_linear_time() -> None:
    def prepare(length: int) -> Callable[[], int]:
        body: Expr = X
        for _ in range(length):
            body = add(softmax(body), X)
        return lambda: len(of(body))

    assert grows_linearly(prepare)
    assert prepare(4_000)() == 4_000


def test_functions_for_other_compilers_are_left_alone() -> None:
    foreign = Function((X,), relu(X), attrs={"Compiler": "other"})
    assert fuse_operators(foreign) is foreign


def test_a_narrow_result_is_stored_where_the_rest_goes_to_another_anchor() -> None:
    """Of two convolutions whose bytes become int32 and are added, one adds; the other stores bytes."""
    image = Var("image", TensorType((1, 4, 8, 8), "int8"))

    def branch(name: str) -> Expr:
        sums = conv2d(image, Var(name, TensorType((4, 4, 3, 3), "int8")), padding=(1, 1), out_dtype="int32")
        return cast(cast(clip(sums, -128, 127), dtype="int8"), dtype="int32")

    body = cast(add(branch("v"), branch("w")), dtype="int8")
    made = fuse_operators(Function(free_vars(body), body))
    calls = [n for n in post_order(made) if isinstance(n, Call) and isinstance(n.op, Function)]
    assert [str(c.checked_type) for c in calls] == ["Tensor[(1, 4, 8, 8), int8]"] * 2
