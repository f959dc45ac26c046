# SPDX-License-Identifier: Apache-2.0
"""FuseOps on random functions and networks, its limits, spans and work; `fuse_ops.test` has single cases."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from relay.programs import MATRIX, chain, functions, inputs, let_chain

from aotc.ir.op import Op
from aotc.ir.span import Span, span_scope
from aotc.ir.transform import PassContext
from aotc.ir.types import TensorType
from aotc.relay.analysis import free_vars, list_op_freqs
from aotc.relay.bind_variables_and_parameters import bind_params_by_name
from aotc.relay.expr import Call, Expr, Function, Tuple, Var
from aotc.relay.interpreter import evaluate
from aotc.relay.op.binary_elementwise import add
from aotc.relay.op.concat_split import concatenate
from aotc.relay.op.elementwise_unary import exp, tanh
from aotc.relay.op.softmax import softmax
from aotc.relay.structural_equality import assert_structural_equal, structural_equal
from aotc.relay.transform.expand_ops import CanonicalizeOps, SimplifyInference
from aotc.relay.transform.fold_constant import FoldConstant
from aotc.relay.transform.fold_scale_axis import FoldScaleAxis
from aotc.relay.transform.fuse_ops import FuseOps, fuse_operators
from aotc.relay.type_inference import infer_function
from aotc.relay.visitor import post_order
from tests.call_counts import grows_linearly

FACTS = json.loads((Path(__file__).parents[1] / "relay" / "golden" / "facts.json").read_text(encoding="utf-8"))
X = Var("x", MATRIX)


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


def _calls(function: Function) -> list[Call]:
    return [n for n in post_order(function) if isinstance(n, Call) and isinstance(n.op, Function)]


# --- options, spans, size


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
