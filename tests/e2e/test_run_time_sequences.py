# SPDX-License-Identifier: Apache-2.0
"""Sequences and optional values whose length a run decides, and values of loops whose shape changes, by one library,
against ONNX Runtime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import aotc
from aotc import onnx_backend
from aotc.driver.compile import CompileOptions
from aotc.ir.diagnostics import AotcError
from aotc.reporting.model_inspection import inspect_model
from aotc.tir.passes import ProgramVerifier
from aotc.tir.program_interpreter import ProgramInterpreter
from tests.e2e.control_flow import choice
from tests.e2e.test_found_sizes import STRICT
from tests.e2e.test_onnx_loops import GO, loop

X = "float[5,3] x"
#: The first n rows of x, where n is the iteration number and one, as `part`.
PART = (
    "one = Constant <value_ints = [1]> () zero = Constant <value_ints = [0]> () "
    "i1 = Unsqueeze(i, zero) e = Add(i1, one) part = Slice(x, zero, e) "
)
COLLECT = "none = SequenceEmpty <dtype = 1> () " + loop(
    "n, , none", "s", ", seq(float[k,3]) q", GO + PART + "r = SequenceInsert(q, part)", ", seq(float[k,3]) r"
)
GROW = loop("n, , x", "y", ", float[r,3] a", GO + "u = Neg(x) b = Concat <axis = 0> (a, u)", ", float[r,3] b")
#: Models: the interface, and the body.
MODELS: dict[str, tuple[str, str]] = {
    "elements": (f"{X}, int64 n, int64 k => float[a,3] y, int64 count",
                 COLLECT + "y = SequenceAt(s, k) count = SequenceLength(s)"),
    "joined": (f"{X}, int64 n => float[a,3] y", COLLECT + "y = ConcatFromSequence <axis = 0> (s)"),
    "inserted_at_a_position": (
        f"{X}, int64 n, int64 k => float[a,3] y, int64 count",
        COLLECT + "z = Exp(x) t = SequenceInsert(s, z, k) u = SequenceErase(t) v = SequenceErase(u, k) "
        "w = SequenceInsert(v, x) y = ConcatFromSequence <axis = 0> (w) count = SequenceLength(w)",
    ),
    "stacked": (
        f"{X}, int64 n => float[a,5,3] y",
        "none = SequenceEmpty <dtype = 1> () "
        + loop("n, , none", "s", ", seq(float[5,3]) q",
               GO + "f = Cast <to = 1> (i) z = Add(x, f) r = SequenceInsert(q, z)", ", seq(float[5,3]) r")
        + "y = ConcatFromSequence <axis = 0, new_axis = 1> (s)",
    ),
    "parts": (f"{X}, int64 n => float[a,3] y, int64 count",
              "s = SplitToSequence(x, n) last = Constant <value_int = -1> () y = SequenceAt(s, last) "
              "count = SequenceLength(s)"),
    "parts_joined": (f"{X}, int64 n => float[5,3] y", "m = Mul(n, n) s = SplitToSequence(x, m) "
                     "y = ConcatFromSequence <axis = 0> (s)"),
    "chosen": (
        f"{X}, bool c, int64 k => float[a,3] y, int64 count",
        choice("c", "s", "p = SequenceConstruct(x)",
               "two = Constant <value_int = 2> () p = SplitToSequence(x, two)", "seq(float[r,3]) p")
        + "y = SequenceAt(s, k) count = SequenceLength(s)",
    ),
    "mapped": (
        f"{X}, int64 n => float[a,3] y",
        COLLECT + "t = SequenceMap <body = b (float[K,3] a) => (float[K,3] c) { c = Exp(a) }> (s) "
        "y = ConcatFromSequence <axis = 0> (t)",
    ),
    "grown_by_a_loop": (f"{X}, int64 n => float[r,3] y", GROW),
    "window": (f"{X}, int64 n => float[1,3] y, float[r,1,3] z",
               "zeros = Constant <value = float[1,3] {0, 0, 0}> () "
               + loop("n, , zeros", "y, z", ", float[1,3] a",
                      GO + "one = Constant <value_ints = [1]> () zero = Constant <value_ints = [0]> () "
                      "i1 = Unsqueeze(i, zero) e = Add(i1, one) part = Slice(x, i1, e) b = Add(a, part) "
                      "w = Identity(b)",
                      ", float[1,3] b, float[1,3] w")),
    "backwards": (
        f"{X}, int64 n => float[a,3] y",
        "f = Cast <to = 1> (n) q = Mul(f, f) h = Sqrt(q) m = Cast <to = 7> (h) one = Constant <value_ints = [1]> () "
        "b = Reshape(m, one) five = Constant <value_ints = [4]> () e = Sub(b, five) "
        "zero = Constant <value_ints = [0]> () step = Constant <value_ints = [-2]> () y = Slice(x, b, e, zero, step)",
    ),
    "until_a_condition": (
        f"{X}, bool c, int64 n => float[a,3] y",
        "none = SequenceEmpty <dtype = 1> () "
        + loop("n, c, none", "s", ", seq(float[k,3]) q",
               "three = Constant <value_int = 3> () on = Less(i, three) " + PART + "r = SequenceInsert(q, part)",
               ", seq(float[k,3]) r")
        + "t = SequenceInsert(s, x) y = ConcatFromSequence <axis = 0> (t)",
    ),
}  # fmt: skip
RUNS = [{"n": n, "k": k, "c": c} for n, k, c in ((1, 0, True), (2, 1, False), (3, -2, True), (5, 0, False))]


def _model(name: str) -> onnx.ModelProto:
    return _parsed(*MODELS[name])


def _parsed(interface: str, body: str) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({interface.replace("=>", ") => (")}) {{ {body} }}'
    return onnx.parser.parse_model(text)


def _feeds(model: onnx.ModelProto) -> list[dict[str, Any]]:
    given = {"x": np.random.default_rng(3).normal(size=(5, 3)).astype(np.float32)}
    names = [v.name for v in model.graph.input]
    return [{k: np.asarray(v) for k, v in {**given, **run}.items() if k in names} for run in RUNS]


def _reference(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_onnxruntime(name: str, tmp_path: Path) -> None:
    model = _model(name)
    (tmp_path / "g.onnx").write_bytes(model.SerializeToString())
    options: dict[str, Any] = {"dims": {"[*]": (0, 6)}, "target": "c", "cache": False}
    kept = CompileOptions.from_keywords(options, inspect_model).start_compilation(tmp_path / "g.onnx")
    interpreter = ProgramInterpreter(kept.scheduled_programs[0])
    project = aotc.compile(
        tmp_path / "g.onnx", output=tmp_path / "net", cflags=["-O0", *STRICT], instruments=[ProgramVerifier()],
        **options,
    )  # fmt: skip
    session, reference = aotc.load(project.path), _reference(model)
    names = [o.name for o in model.graph.output]
    for feeds in _feeds(model):
        try:
            expected = reference.run(names, feeds)
        except Exception:  # its own types: a position out of range
            for run in (lambda f: interpreter(f), lambda f: session.run(names, f)):
                with pytest.raises((AotcError, ValueError)):
                    run(feeds)
            continue
        interpreted = interpreter(feeds)
        for found in ([interpreted[k] for k in names], session.run(names, feeds)):
            for a, b in zip(found, expected, strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_optional_values_that_a_run_chooses() -> None:
    model = _parsed(
        "float[2] x, bool c => bool there, float[2] y, optional(seq(float[2])) z",
        choice("c", "o", "p = Optional(x)", "p = Optional <type = float[2]> ()", "optional(float[2]) p")
        + choice("c", "z", "q = SequenceConstruct(x, x) p = Optional(q)", "p = Optional <type = seq(float[2])> ()",
                 "optional(seq(float[2])) p")
        + "there = OptionalHasElement(o) "
        + choice("there", "y", "p = OptionalGetElement(o)", "p = Neg(x)", "float[2] p"),
    )  # fmt: skip
    prepared = onnx_backend.prepare(model, cflags=("-O0",))
    x = np.array([1, 2], np.float32)
    there, y, z = prepared.run([x, np.array(True)])
    assert there
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, [x, x])
    there, y, z = prepared.run([x, np.array(False)])
    assert not there
    assert z is None
    np.testing.assert_array_equal(y, -x)


def test_elements_of_different_ranks_are_outputs() -> None:
    model = _parsed(
        "float[2] x, bool c => seq(float) s",
        "zero = Constant <value = float {0}> () "
        + choice("c", "s", "p = SequenceConstruct(zero, x)", "p = SequenceConstruct(x)", "seq(float) p"),
    )
    prepared = onnx_backend.prepare(model, cflags=("-O0",))
    x = np.array([1, 2], np.float32)
    for flag in (True, False):
        (found,) = prepared.run([x, np.array(flag)])
        expected = [np.float32(0), x] if flag else [x]
        assert [e.tolist() for e in found] == [e.tolist() for e in expected]


@pytest.mark.parametrize(
    ("carried", "body", "result"),
    [
        ("seq(float[5,3])", "r = SequenceInsert(q, x)", "y = ConcatFromSequence <axis = 0> (s)"),
        ("float[k,3]", "r = Concat <axis = 0> (q, x)", "y = Identity(s)"),
        ("float[5,3]", "r = Neg(q)", "y = Identity(s)"),
    ],
)
def test_a_run_ends_when_there_is_no_room(carried: str, body: str, result: str, tmp_path: Path) -> None:
    start = "q0 = SequenceEmpty <dtype = 1> () " if "seq" in carried else "q0 = Identity(x) "
    # the scan output is not read: the final state depends on the number of iterations nevertheless
    step = loop("n, c, q0", "s, t", f", {carried} q", f"{GO}{body} w = Identity(i)", f", {carried} r, int64 w")
    model = _parsed(f"{X}, int64 n, bool c => float[r,3] y", start + step + result)
    project = aotc.compile(model, output=tmp_path / "net", cflags=["-O0"], target="c", dims={"[*]": (0, 3)})
    session = aotc.load(project.path)
    x = np.ones((5, 3), np.float32)
    for trips in (1, 3):
        rows = {"seq(float[5,3])": 5 * trips, "float[k,3]": 5 * (trips + 1), "float[5,3]": 5}[carried]
        (y,) = session.run(None, {"x": x, "n": np.array(trips), "c": np.array(True)})
        assert y.shape == (rows, 3)
    with pytest.raises(AotcError):
        session.run(None, {"x": x, "n": np.array(4), "c": np.array(True)})


#: A loop that inserts n elements into none, and one that inserts m elements into a given sequence.
ROWS = "none = SequenceEmpty <dtype = 1> () " + loop(
    "n, , none", "s", ", seq(float[5,3]) q", GO + "z = Exp(x) r = SequenceInsert(q, z)", ", seq(float[5,3]) r"
)
FURTHER = "{} = Loop (m, , {}) <body = c (int64 j, bool go2, seq(float[5,3]) q2) => (bool on2, seq(float[5,3]) r2) " \
    "{{ on2 = Identity(go2) z2 = Neg(x) r2 = SequenceInsert(q2, z2) }}> "  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        ROWS + "t = SequenceInsert(s, x) ",
        ROWS + FURTHER.format("t", "s"),
        "none = SequenceEmpty <dtype = 1> () " + loop(
            "n, , none", "t", ", seq(float[5,3]) q", GO + FURTHER.format("r", "q"), ", seq(float[5,3]) r"),
    ],
    ids=["one_more", "further_loop", "nested_loops"],
)  # fmt: skip
def test_there_is_room_for_elements_that_are_inserted_behind_a_full_loop(body: str, tmp_path: Path) -> None:
    model = _parsed(f"{X}, int64 n, int64 m => float[a,3] y", body + "y = ConcatFromSequence <axis = 0> (t)")
    project = aotc.compile(model, output=tmp_path / "net", cflags=["-O0"], target="c", dims={"[*]": (0, 3)})
    session, reference = aotc.load(project.path), _reference(model)
    for n, m in ((1, 1), (3, 1), (3, 3)):
        feeds = {"x": _feeds(model)[0]["x"], "n": np.array(n), "m": np.array(m)}
        (found,), (expected,) = session.run(None, feeds), reference.run(None, feeds)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("interface", "body", "message"),
    [
        (f"{X}, bool c, int64 k => float[a,3] y",
         "e = ReduceMax <keepdims = 0> (x) "
         + choice("c", "s", "p = SequenceConstruct(x)", "p = SequenceConstruct(e)", "seq(float) p")
         + "y = SequenceAt(s, k)",
         "an element of this sequence has 0 to 2 axes"),
        (f"{X}, bool c => float[a,3] y",
         "e = Cast <to = 7> (x) "
         + choice("c", "s", "p = SequenceConstruct(x)", "p = SequenceConstruct(e, e)", "seq(float) p")
         + "y = ConcatFromSequence <axis = 0> (s)",
         "one element type, found float32 and int64"),
        (f"{X}, int64 n => float[r] y",
         loop("n, , x", "y", ", float[r,3] a", GO + "b = Concat <axis = 0> (a, a)", ", float[r,3] b"),
         "changes in each iteration"),
    ],
)  # fmt: skip
def test_what_is_refused(interface: str, body: str, message: str) -> None:
    with pytest.raises(AotcError, match=message):
        aotc.compile(_parsed(interface, body), target="c", dims={"[*]": (0, 6)}, output="unused")
