# SPDX-License-Identifier: Apache-2.0
"""ONNX Loop as a loop of the program, against ONNX Runtime, the interpreters and the virtual machine."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir.diagnostics import AotcError
from aotc.relay.frontend.onnx import from_onnx
from tests.e2e.control_flow import Feeds, arrays, choice, interpreter_of, model_of, reference_of

V, S = "float[4,6] ", "float[1,4] "


def loop(call: str, results: str, inputs: str, body: str, outputs: str) -> str:
    """A Loop in ONNX's text form. `inputs` and `outputs` of the body come after the iteration number `i`
    and the condition `go`, and after the condition `on`.
    """
    return f"{results} = Loop ({call}) <body = b (int64 i, bool go{inputs}) => (bool on{outputs}) {{ {body} }}> "


GO = "on = Identity(go) "
COUNTS = [{"n": n} for n in (0, 1, 7)]
#: Models with Loop: the interface, the body, and values of the inputs that decide.
MODELS: dict[str, tuple[str, str, list[Feeds]]] = {
    "trips_at_run_time": (
        f"{V}x, int64 n => {V}y, int64 count",
        "e = Exp(x) zero = Constant <value_int = 0> () "
        + loop("n, , e, zero", "r, count", f", {V}a, int64 k", GO + "t = Tanh(a) c = Add(t, x) m = Add(k, i)",
               f", {V}c, int64 m")
        + "y = Mul(r, x)",
        [*COUNTS, {"n": -3}],
    ),
    "values_that_swap_places": (
        f"{V}x, {V}z, int64[1] n, bool c => {V}p, {V}q",
        loop("n, c, x, z", "p, q", f", {V}a, {V}b", GO + "u = Identity(b) v = Add(a, x)", f", {V}u, {V}v"),
        [{"n": [n], "c": c} for n, c in itertools.product((0, 1, 7), (True, False))],
    ),
    "early_exit": (
        f"{V}x, int64 n, float limit => {V}y",
        "t = Constant <value = bool {1}> () "
        + loop("n, t, x", "y", f", {V}a",
               "b = Add(a, a) s = Abs(b) top = ReduceMax <keepdims = 0> (s) on = Less(top, limit)", f", {V}b"),
        [{"n": 20, "limit": limit} for limit in (0.1, 9, 1e3)] + [{"n": 2, "limit": 1e3}],
    ),
    "condition_only": (
        f"{V}x, float limit => {V}y, int64 steps",
        "top = ReduceMax <keepdims = 0> (x) first = Less(top, limit) zero = Constant <value_int = 0> () "
        "one = Constant <value_int = 1> () "
        + loop(", first, x, zero", "y, steps", f", {V}a, int64 k",
               "e = Exp(a) b = Add(a, e) m = Add(k, one) tp = ReduceMax <keepdims = 0> (b) on = Less(tp, limit)",
               f", {V}b, int64 m"),
        [{"limit": limit} for limit in (-9, 3, 50)],
    ),
    "nested": (
        f"{V}x, int64 n, int64 m => {V}y",
        "half = Constant <value_float = 0.5> () "
        + loop("n, , x", "y", f", {V}a",
               GO + "k = Add(m, i) h = Mul(a, half) "
               + loop("k, , h", "c", f", {V}d", "on2 = Identity(go2) f = Sin(d) g = Add(f, a) e = Mul(g, h)", f", {V}e")
               .replace("int64 i, bool go", "int64 i2, bool go2").replace("bool on", "bool on2"),
               f", {V}c"),
        [{"n": n, "m": m} for n, m in itertools.product((0, 1, 3), (0, 2))],
    ),
    "choice_in_loop": (
        f"{V}x, int64 n, bool flip => {V}y",
        "w = Sigmoid(x) two = Constant <value_int = 2> () zero = Constant <value_int = 0> () "
        + loop("n, , x", "y", f", {V}a",
               GO + "r = Mod(i, two) even = Equal(r, zero) odd = Xor(even, flip) "
               + choice("odd", "b", "p = Softmax(a) s = Add(p, w)", "s = Mul(a, w)", V + "s"),
               f", {V}b"),
        [{"n": n, "flip": flip} for n, flip in itertools.product((0, 1, 7), (True, False))],
    ),
    "loop_in_choice": (
        f"{V}x, int64 n, bool c => {V}y",
        "w = Sigmoid(x) "
        + choice("c", "r", loop("n, , w", "s", f", {V}a", GO + "t = Cos(a) b = Add(t, x)", f", {V}b"),
                 "s = Exp(x)", V + "s")
        + "y = Add(r, w)",
        [{"n": n, "c": c} for n, c in itertools.product((0, 1, 7), (True, False))],
    ),
    "state_of_a_cell": (
        f"{S}h, float[4,4] u, float[4,4] w, float[12,4] x, int64 n => {S}y",
        "one = Constant <value_float = 1.0> () axis = Constant <value_ints = [0]> () "
        + loop("n, , h", "y", f", {S}a",
               GO + "row = Gather <axis = 0> (x, i) xi = Unsqueeze(row, axis) xu = MatMul(xi, u) aw = MatMul(a, w) "
               "zs = Add(xu, aw) z = Sigmoid(zs) am = Mul(a, z) cm = MatMul(am, w) cx = Add(cm, xu) c = Tanh(cx) "
               "keep = Sub(one, z) old = Mul(keep, a) new = Mul(z, c) b = Add(old, new)", f", {S}b"),
        COUNTS,
    ),
    "known_trips": (
        f"{V}x => {V}y",
        "n = Constant <value_int = 100> () t = Constant <value = bool {1}> () "
        + loop("n, t, x", "y", f", {V}a", GO + "s = Sin(a) b = Add(s, x)", f", {V}b"),
        [{}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Graphs and schedules, without C: test_control_flow_models.py compiles all models to one library."""
    interface, body, cases = MODELS[name]
    model = model_of(interface, body)
    module = from_onnx(model)
    assert any(other.startswith("loop_") for other in module)
    graph, machine = (relay.create_executor(kind, module).evaluate() for kind in ("debug", "vm"))
    reference, interpreter = reference_of(model), interpreter_of(model)
    for decisions in cases:
        feeds = arrays(model, decisions)
        expected = reference.run(None, feeds)
        ways = [list(interpreter(feeds).values())]
        for executor in (graph, machine):
            value = executor(*feeds.values())
            ways.append([v.numpy() for v in value] if len(expected) > 1 else [value.numpy()])
        for found in ways:
            for a, b in zip(found, expected, strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=str(decisions))


def loops_of(interface: str, body: str) -> int:
    return sum(name != "main" for name in from_onnx(model_of(interface, body)))


def test_few_iterations_and_changing_shapes_are_unrolled() -> None:
    step = "b = Add(a, x)"
    for count, expected in ((8, 0), (9, 1)):
        known = f"n = Constant <value_int = {count}> () "
        text = known + loop("n, , x", "y", f", {V}a", GO + step, f", {V}b")
        assert loops_of(f"{V}x => {V}y", text) == expected
        text = known + loop("n, , x", "y", ", float[N,6] a", GO + "b = Concat <axis = 0> (a, x)", ", float[M,6] b")
        assert loops_of(f"{V}x => float[M,6] y", text) == 0
        text = known + loop("n, , x", "y", f", {V}a", GO + "w = Range(zero, i, one) r = ReduceSum <keepdims = 0> (w) "
                            "f = Cast <to = 1> (r) b = Add(a, f)", f", {V}b")  # fmt: skip
        text = "zero = Constant <value_int = 0> () one = Constant <value_int = 1> () " + text
        assert loops_of(f"{V}x => {V}y", text) == 0


@pytest.mark.parametrize(
    ("body", "outputs", "message"),
    [
        ("b = Concat <axis = 0> (a, x)", ", float[M,6] b", "Loop#0: nothing bounds element 0 of the input 'n'"),
        ("b = Identity(a) z = Neg(a)", f", {V}b, {V}z", "Loop#0: nothing bounds element 0 of the input 'n'"),
        ("b = Foo(a)", f", {V}b", "operator Foo"),
    ],
)
def test_what_no_loop_can_express_is_refused(body: str, outputs: str, message: str) -> None:
    results = "y" if outputs.count(",") < 3 else "y, z2"
    model = model_of(f"{V}x, int64 n => {V}y", loop("n, , x", results, f", {V}a", GO + body, outputs))
    with pytest.raises(AotcError, match=message) as caught:
        aotc.compile(model, build=False)
    assert len(caught.value.diagnostics) == 1


def test_gpus_unroll_loops_of_known_trip_counts(tmp_path: Path) -> None:
    interface, body, _ = MODELS["known_trips"]
    assert aotc.compile(model_of(interface, body), target="cuda", output=tmp_path, build=False)
    interface, body, _ = MODELS["trips_at_run_time"]
    with pytest.raises(AotcError, match="target cuda has no control flow"):
        aotc.compile(model_of(interface, body), target="cuda", build=False)
