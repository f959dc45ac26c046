# SPDX-License-Identifier: Apache-2.0
"""Models whose control flow depends on run-time values, against ONNX Runtime and the interpreter of programs."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest

import aotc
from aotc import relay
from aotc.ir.diagnostics import AotcError
from aotc.measuring.profile import profile_library
from aotc.reporting.model_inspection import inspect_model
from tests.e2e.control_flow import Feeds, arrays, choice, compiled, interpreter_of, model_of, reference_of

FLAGS = [True, False]
VECTOR = "float[4, 24] "
#: Models with If: the interface, the body, and values of the inputs that decide.
MODELS: dict[str, tuple[str, str, list[Feeds]]] = {
    "one": (
        "float[4,24] x, bool c => float[4,24] y",
        "a = Exp(x) " + choice("c", "r", "s = Softmax(a)", "n = Neg(a)  s = Relu(n)", VECTOR + "s") + " y = Mul(r, a)",
        [{"c": c} for c in FLAGS],
    ),
    "given_values": (
        "float[4,24] x, bool c => float[4,24] y, float[4,24] z",
        choice("c", "y, z", "s = Identity(x) t = Identity(x)", "s = Exp(x) t = Identity(s)", VECTOR + f"s, {VECTOR} t"),
        [{"c": c} for c in FLAGS],
    ),
    "nested": (
        "float[4,24] x, bool[1] c, bool[1] d => float[4,24] y",
        choice("c", "y", "p = Exp(x) " + choice("d", "s", "u = Add(p, x)", "u = Softmax(p)", VECTOR + "u"),
               choice("d", "s", "u = Identity(x)", "q = Abs(x) u = Sqrt(q)", VECTOR + "u"), VECTOR + "s"),
        [{"c": [c], "d": [d]} for c in FLAGS for d in FLAGS],
    ),
    "computed_conditions": (
        "float[4,24] x, int64 n => float[4,24] y, bool late",
        "two = Constant <value_int = 2> () four = Constant <value_int = 4> () c = Greater(n, two) "
        + choice("c", "r", "m = Mul(x, x) s = Softmax(m)", "s = Tanh(x)", VECTOR + "s")
        + " top = ReduceMax <keepdims = 0> (r) bound = Constant <value_float = 0.9> () late = Less(top, bound) "
        + choice("late", "y", "s = Sub(r, x)", "e = Exp(r) s = Mul(e, x)", VECTOR + "s"),
        [{"n": n} for n in (1, 3, 9)],
    ),
    "views": (
        "float[4,24] x, bool c => float[24,4] y, float[2,24] z",
        "e = Exp(x) low, high = Split <axis = 0> (e) "
        + choice("c", "r, z", "s = Transpose(e) t = Identity(high)",
                 "shape = Constant <value_ints = [24, 4]> () s = Reshape(x, shape) t = Tanh(low)",
                 "float[24,4] s, float[2,24] t")
        + " y = Add(r, r)",
        [{"c": c} for c in FLAGS],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """The schedules, without C: test_control_flow_models.py compiles all models to one library."""
    interface, body, cases = MODELS[name]
    model = model_of(interface, body)
    reference, interpreter = reference_of(model), interpreter_of(model)
    for decisions in cases:
        feeds = arrays(model, decisions)
        for a, b in zip(interpreter(feeds).values(), reference.run(None, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_only_the_arm_that_is_taken_runs_and_arms_share_memory() -> None:
    interface, _, _ = MODELS["one"]
    body = choice("c", "y", "a = Softmax(x) s = Softmax <axis = 0> (a)",
                  "a = Softmax <axis = 0> (x) b = Exp(a) q = Softmax(b) s = Softmax <axis = 0> (q)",
                  VECTOR + "s")  # fmt: skip
    model = model_of(interface, body)
    run = interpreter_of(model)
    for flag, count in ((True, 2), (False, 3)):
        run(arrays(model, {"c": flag}))
        assert len(run.called) == count
    report = inspect_model(model, target="c")
    assert report["steps"] == 5
    peaks = [inspect_model(model, target="c", params={"c": np.array(c)})["arena"]["peak"] for c in FLAGS]
    assert report["arena"]["peak"] == max(peaks)


def test_state_in_arms(tmp_path: Path) -> None:
    """A state that one arm updates, and the other one keeps, or of which each arm makes another one."""
    outputs = f"{VECTOR} s, {VECTOR} n"
    body = choice("c", "y, h_o", "n = Add(h, x) s = Tanh(n)", "n = Identity(h) s = Mul(h, x)", outputs)
    body += choice("d", "k_o", "t = Softmax(k) m = Mul(t, x)", "m = Sub(x, k)", VECTOR + "m")
    inputs, outputs = (", ".join(VECTOR + name for name in names) for names in (("x", "h", "k"), ("y", "h_o", "k_o")))
    model = model_of(f"{inputs}, bool c, bool d => {outputs}", body)
    pairs = {"h": "h_o", "k": "k_o"}
    session = compiled(model, tmp_path, state=pairs).session()
    reference, interpreter = reference_of(model), interpreter_of(model, state=pairs)
    kept = {name: np.zeros((4, 24), np.float32) for name in pairs}
    state = session.new_state()
    for number, (c, d) in enumerate(itertools.product(FLAGS, FLAGS * 2)):
        feeds = arrays(model, {"c": c, "d": d}) | {"x": np.full((4, 24), number / 8, np.float32)}
        y, *new = reference.run(None, feeds | kept)
        kept = dict(zip(pairs, new, strict=True))
        given = {name: a for name, a in feeds.items() if name not in pairs}
        np.testing.assert_allclose(session.run(None, given, state=state)[0], y, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(interpreter(given)["y"], y, rtol=1e-5, atol=1e-6)


def team_model() -> onnx.ModelProto:
    """Products that are worth several threads in arms, around a choice that one thread makes alone."""
    product = "t = MatMul(x, w) s = MatMul(t, w)"
    small = choice("d", "v", "u = Exp(k)", "u = Neg(k)", "float[192] u")
    return model_of(
        "float[192,192] x, float[192,192] w, float[192] k, bool c, bool d => float[192,192] y",
        small + choice("c", "r", product, "s = MatMul(w, x)", "float[192,192] s") + " y = Add(r, v)",
    )


def test_teams_of_threads(tmp_path: Path) -> None:
    model = team_model()
    reference, project = reference_of(model), compiled(model, tmp_path, target="x86-64-v3", threads=True, cflags=[])
    session = aotc.load(project.built, threads=2)
    text = (tmp_path / "src" / "net.c").read_text()
    assert text.count("AOTC_TEAM_SYNC") >= 3 and "if (first) {" in text
    for c, d in itertools.product(FLAGS, FLAGS):
        feeds = arrays(model, {"c": c, "d": d})
        np.testing.assert_allclose(session.run(None, feeds)[0], reference.run(None, feeds)[0], rtol=1e-3, atol=1e-3)


def test_a_profile_has_no_steps_of_arms_that_are_not_taken(tmp_path: Path) -> None:
    interface, _, _ = MODELS["one"]
    model = model_of(interface, choice("c", "y", "s = Softmax(x)", "s = Exp(x)", VECTOR + "s"))
    project = compiled(model, tmp_path)
    np.savez(tmp_path / "feeds.npz", **arrays(model, {"c": False}))
    (step,) = profile_library(project.built, inputs=tmp_path / "feeds.npz", repeat=2)["steps"]
    assert step["step"] == 1 and step["calls"] == 1 and step["milliseconds"] > 1e-5


def test_a_constant_condition_that_is_not_folded(tmp_path: Path) -> None:
    text = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(4), float32]) { if (True) { negative(%x) } else { abs(%x) } }'
    session = compiled(relay.fromtext(text), tmp_path, opt_level=0).session()
    np.testing.assert_array_equal(session.run(None, {"x": np.ones(4, np.float32)})[0], -np.ones(4, np.float32))


def test_branches_of_other_types_are_refused() -> None:
    interface, _, _ = MODELS["one"]
    model = model_of(
        interface, "s = Identity(x)" + choice("c", "y", "r = Exp(x)", "r = ReduceMax <keepdims = 0> (x)", "float r")
    )
    with pytest.raises(
        AotcError, match=r"the branches of If have outputs of different types: .*\(4, 24\).* and float32"
    ):
        aotc.compile(model, build=False)
    text = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(2, 3), float32], %c: bool) { if (%c) { %x } else { sum(%x) } }'
    with pytest.raises(AotcError, match="the branches have types"):
        aotc.compile(relay.fromtext(text), build=False)


def test_a_condition_of_several_values_is_refused() -> None:
    model = model_of(
        "float[4,24] x, bool[2] c => float[4,24] y", choice("c", "y", "s = Exp(x)", "s = Abs(x)", VECTOR + "s")
    )
    with pytest.raises(AotcError, match=r"the condition of If must be one value, it has shape \(2\)"):
        aotc.compile(model, build=False)


def test_gpus_are_refused() -> None:
    interface, body, _ = MODELS["one"]
    with pytest.raises(AotcError, match="target cuda has no control flow") as caught:
        aotc.compile(model_of(interface, body), target="cuda", build=False)
    assert caught.value.code == "target"
