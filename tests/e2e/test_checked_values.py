# SPDX-License-Identifier: Apache-2.0
"""Values that a run computes and that must be in a range: a run with another value ends with a status."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir import AotcError
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.interpreter import evaluate
from aotc.relay.text.parser import parse
from aotc.relay.text.printer import astext
from tests.e2e.control_flow import choice, compiled, interpreter_of, model_of, reference_of
from tests.e2e.test_found_sizes import STRICT
from tests.e2e.test_onnx_loops import GO, loop

V = "float[2,3] "
#: Positions in a sequence, outside of control flow, in an arm that only some runs take, and in each iteration.
POSITIONS = model_of(
    f"{V}x, int64 n, bool c, int64 k => {V}a, {V}b, {V}d",
    "e = Exp(x) y = Neg(x) s = SequenceConstruct(x, e, y) a = SequenceAt(s, n) two = Constant <value_int = 2> () "
    + choice("c", "b", "m = Mul(n, two) z = SequenceAt(s, m) q = Sin(z)", "q = Cos(x)", f"{V}q")
    + "trips = Constant <value_int = 9> () "
    + loop("trips, , x", "d", f", {V}p", GO + "o = Mod(i, k) r = SequenceAt(s, o) g = Add(p, r)", f", {V}g"),
)
#: n, c, k, and what is said of values that no run takes.
RUNS: list[tuple[int, bool, int, str]] = [
    (1, True, 3, ""),
    (-1, True, 2, ""),
    (2, False, 1, ""),
    (3, False, 3, "SequenceAt_3"),
    (2, True, 3, "a position in a sequence of 3 elements is -3 to 2"),
    (-2, True, 3, "a position in a sequence of 3 elements is -3 to 2"),
    (-3, False, 4, "a position in a sequence of 3 elements is -3 to 2"),
    (0, True, 3, ""),
]


def feeds_of(n: int, c: bool, k: int) -> dict[str, Any]:
    x = np.random.default_rng(abs(n)).normal(size=(2, 3)).astype(np.float32)
    return {"x": x, "n": np.array(n), "c": np.array(c), "k": np.array(k)}


def _evaluated(module: aotc.IRModule, feeds: dict[str, Any]) -> Any:
    return evaluate(module, params=feeds)


def check_positions(run: Any) -> None:
    reference = reference_of(POSITIONS)
    for n, c, k, message in RUNS:
        feeds = feeds_of(n, c, k)
        if message:
            with pytest.raises((AotcError, ValueError), match="a position in a sequence of 3 elements is -3 to 2") as e:
                run(feeds)
            assert "sizes" not in str(e.value)
            continue
        for a, b in zip(run(feeds), reference.run(None, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_positions_in_sequences(tmp_path: Path) -> None:
    session = compiled(POSITIONS, tmp_path, cflags=[*STRICT, "-fsanitize=undefined", "-fno-sanitize-recover"]).session()
    check_positions(lambda feeds: session.run(None, feeds))


def test_teams_of_threads_end_together(tmp_path: Path) -> None:
    body = choice(
        "c", "r", "s = SequenceConstruct(x, w) z = SequenceAt(s, n) t = MatMul(z, w) q = MatMul(t, w)",
        "q = MatMul(w, x)", "float[192,192] q",
    )  # fmt: skip
    model = model_of("float[192,192] x, float[192,192] w, int64 n, bool c => float[192,192] y", body + "y = Add(r, x)")
    project = compiled(model, tmp_path, target="x86-64-v3", threads=True, cflags=[])
    assert "*given->status = " in (tmp_path / "src" / "net.c").read_text()
    session, reference = aotc.load(project.built, threads=2), reference_of(model)
    rng = np.random.default_rng(0)
    x, w = (rng.normal(0, 0.1, (192, 192)).astype(np.float32) for _ in range(2))
    for n, c, is_valid in ((0, True, True), (2, True, False), (2, False, True), (-3, True, False), (-1, True, True)):
        feeds = {"x": x, "w": w, "n": np.array(n), "c": np.array(c)}
        if not is_valid:
            with pytest.raises(AotcError, match="a position in a sequence of 2 elements is -2 to 1"):
                session.run(None, feeds)
            continue
        np.testing.assert_allclose(session.run(None, feeds)[0], reference.run(None, feeds)[0], rtol=1e-3, atol=1e-4)


def test_interpreters_and_the_virtual_machine() -> None:
    program = interpreter_of(POSITIONS)
    check_positions(lambda feeds: list(program(feeds).values()))
    module = from_onnx(POSITIONS)
    for same in (module, parse(astext(module))):
        check_positions(partial(_evaluated, same))
    machine = relay.create_executor("vm", module).evaluate()
    check_positions(lambda feeds: [value.numpy() for value in machine(**feeds)])


def test_mel_weights_of_numbers_that_make_none(tmp_path: Path) -> None:
    body = "c8 = Constant <value_int = 8> () c64 = Constant <value_int = 64> () y = MelWeightMatrix(c8, c64, r, lo, hi)"
    model = model_of("int64 r, float lo, float hi => float[33,8] y", body)
    session, reference = compiled(model, tmp_path).session(), reference_of(model)
    for rate, low, high, is_valid in (
        (8000, 0.0, 4000.0, True), (8000, 300.0, 200.0, False), (0, 0.0, 100.0, False), (8000, -1.0, 100.0, False),
        (8000, 0.0, 8000.0, False), (8000, np.nan, 100.0, False), (16000, 20.0, 7000.0, True),
    ):  # fmt: skip
        feeds = {"r": np.array(rate), "lo": np.array(low, np.float32), "hi": np.array(high, np.float32)}
        if is_valid:
            np.testing.assert_allclose(session.run(None, feeds)[0], reference.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
            continue
        for run in (partial(session.run, None), partial(_evaluated, from_onnx(model))):
            with pytest.raises(AotcError, match="the numbers of MelWeightMatrix are positive"):
                run(feeds)


def test_the_interpreter_checks_conditions_on_sizes() -> None:
    interface = "float[8,3] x, int64[2] n => float[a,3] y, float[b,3] z"
    module = from_onnx(model_of(interface, "y, z = Split <axis = 0> (x, n)"))
    x = np.ones((8, 3), np.float32)
    assert [part.shape for part in evaluate(module, params={"x": x, "n": np.array([3, 5])})] == [(3, 3), (5, 3)]
    with pytest.raises(AotcError, match=r"node Split#0: 'n\[0\]'\+'n\[1\]' == 8 does not hold"):
        evaluate(module, params={"x": x, "n": np.array([3, 4])})


def test_a_step_of_a_range_that_may_be_zero(tmp_path: Path) -> None:
    model = model_of("int64 a, int64 b, int64 s => int64[n] y", "y = Range(a, b, s)")
    session = compiled(model, tmp_path, dims={"a[0]": (0, 9), "b[0]": (0, 20), "s[0]": (0, 4)}).session()
    for first, last, step in ((0, 20, 3), (9, 0, 1), (4, 5, 4)):
        feeds = {"a": np.array(first), "b": np.array(last), "s": np.array(step)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], np.arange(first, last, step))
    with pytest.raises(AotcError, match=r"the size s\[0\] is 1 to 4"):
        session.run(None, {"a": np.array(0), "b": np.array(9), "s": np.array(0)})


def test_a_run_that_ends_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    """The state is written before the position is known, which depends on it."""
    model = model_of(
        f"{V}x, {V}h => {V}y, {V}g",
        "g = Add(x, h) m = ReduceMax <keepdims = 0> (g) n = Cast <to = 7> (m) s = SequenceConstruct(x, g) "
        "y = SequenceAt(s, n)",
    )
    session = compiled(model, tmp_path, state={"h": "g"}).session()
    state, expected = session.new_state(), np.zeros((2, 3), np.float32)
    for value, is_valid in ((0.25, True), (0.5, True), (9.0, False), (-8.0, False), (0.25, True)):
        x = np.full((2, 3), value, np.float32)
        if not is_valid:
            with pytest.raises(AotcError, match="a position in a sequence"):
                session.run(None, {"x": x}, state=state)
            continue
        expected = expected + x
        (y,) = session.run(None, {"x": x}, state=state)
        np.testing.assert_array_equal(y, expected if expected.max() >= 1 else x)
