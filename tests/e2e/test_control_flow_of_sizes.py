# SPDX-License-Identifier: Apache-2.0
"""Branches, loops and scans over tensors whose sizes are known at run time only, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import aotc
from aotc.ir.diagnostics import AotcError
from aotc.tir import Loop
from aotc.tir.plan.copy_elimination import is_copy_kernel
from aotc.tir.plan.program_nodes import steps_in
from tests.e2e.control_flow import choice, compiled, interpreter_of, joined, model_of, program_of, reference_of
from tests.e2e.test_control_flow_models import scan
from tests.e2e.test_onnx_loops import GO, loop

N, R, MOST = "float[n,4] ", "float[4] ", 13
#: The interface and the body of each model. `n` is a size, and `trips` an input of which shapes are formulas.
MODELS = {
    "choice": (
        f"{N}x, bool c => {N}y",
        "e = Exp(x) " + choice("c", "r", "s = Tanh(e)", "s = Softmax(x)", N + "s") + "y = Add(r, x)",
    ),
    "choice_of_formulas": (
        f"{N}x, bool c => float[m,4] y, float[k] z",
        "flat = Constant <value_ints = [-1]> () "
        + choice("c", "y, z", "t = Concat <axis = 0> (x, x) u = Reshape(x, flat)",
                 "v = Neg(x) t = Concat <axis = 0> (v, x) w = Cos(x) u = Reshape(w, flat)", "float[m,4] t, float[k] u"),
    ),
    "carried": (
        f"{N}x, int64 trips => {N}y",
        loop("trips, , x", "y", f", {N}a", GO + "t = Tanh(a) b = Sub(t, x)", f", {N}b"),
    ),
    "early_exit": (
        f"{N}x, bool c => {N}y, int64 count",
        "zero = Constant <value_int = 0> () half = Constant <value_float = 0.1> () "
        "rate = Constant <value_float = 0.6> () "
        + loop(", c, x, zero", "y, count", f", {N}a, int64 k",
               "b = Mul(a, rate) q = Abs(b) m = ReduceMax <keepdims = 0> (q) on = Greater(m, half) one = Shape(m) "
               "o = Size(m) j = Add(k, o)", f", {N}b, int64 j"),
    ),
    "rows_of_an_input": (
        f"{R}x, int64 trips => {R}p, float[t,4] y, int64[t] k",
        loop("trips, , x", "p, y, k", f", {R}a", GO + "b = Add(a, x) d = Cos(b) j = Add(i, i)",
             f", {R}b, {R}d, int64 j"),
    ),
    "rows_of_a_size": (
        f"{N}x, {R}h => {R}p, {N}y",
        "s = Shape <start = 0, end = 1> (x) count = Squeeze (s) "
        + loop("count, , h", "p, y", f", {R}a", GO + "w = Gather(x, i) v = Add(a, w) b = Tanh(v) d = Neg(b)",
               f", {R}b, {R}d"),
    ),
    "rows_of_sizes": (
        f"{N}x, int64 trips => {N}p, float[t,n,4] y",
        loop("trips, , x", "p, y", f", {N}a", GO + "b = Sin(a) d = Mul(b, x)", f", {N}b, {N}d"),
    ),
    "scan": (
        f"{R}h, {N}x, float[3,n] z => {R}p, {N}y, float[3,n] w",
        scan("h, x, z", "p, y, w", f"{R}a, {R}xi, float[3] zi", "s = Add(a, xi) c = Tanh(s) d = Sin(c) e = Exp(zi)",
             f"{R}c, {R}d, float[3] e", "scan_input_axes = [0, 1], scan_input_directions = [0, 1], "
             "scan_output_axes = [0, 1], scan_output_directions = [1, 0]", 2),
    ),
    "scan_in_choice_in_loop": (
        f"{N}x, int64 trips => {N}y",
        "two = Constant <value_int = 2> () zero = Constant <value_int = 0> () "
        + loop("trips, , x", "y", f", {N}a",
               GO + "r = Mod(i, two) odd = Greater(r, zero) "
               + choice("odd", "q", scan("a", "u", f"{R}ai", "v = Softmax(ai)", f"{R}v"), "u = Mul(a, x)", N + "u")
               + "b = Sub(q, x)", f", {N}b"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return joined({name: model_of(*parts) for name, parts in MODELS.items()})


DIMS: dict[str, Any] = {"n": (1, MOST)}
TRIPS = [f"{name}_trips" for name, (interface, _) in MODELS.items() if "int64 trips" in interface]
ROWS = ("rows_of_an_input", "rows_of_sizes")
OPERANDS = {f"{name}_trips[0]": (0, 9) for name in ROWS}


def feeds_of(model: onnx.ModelProto, n: int, trips: int, decision: bool) -> dict[str, Any]:
    """Values of all inputs for a size and a trip count."""
    rng, feeds = np.random.default_rng(n), {}
    for value in model.graph.input:
        shape = [n if d.dim_param else d.dim_value for d in value.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        given = trips if value.name in TRIPS else decision if kind == np.bool_ else rng.normal(0, 0.6, shape)
        feeds[value.name] = np.array(given, kind)
    return feeds


@pytest.mark.always
def test_all_sizes_in_one_library(model: onnx.ModelProto, tmp_path: Path) -> None:
    dims = DIMS | OPERANDS
    session, interpreter = compiled(model, tmp_path, dims=dims).session(), interpreter_of(model, dims=dims)
    reference = reference_of(model)
    names = [output.name for output in reference.get_outputs()]
    for n, trips, decision in (
        (MOST, 9, True),
        (1, 0, False),
        (2, 1, True),
        (7, 4, False),
        (MOST, 0, True),
        (3, 9, False),
    ):
        feeds = feeds_of(model, n, trips, decision)
        expected = reference.run(None, feeds)
        for name, a, b, c in zip(names, session.run(None, feeds), expected, interpreter(feeds).values(), strict=True):
            assert a.dtype == b.dtype and a.shape == c.shape, name
            if name == "rows_of_sizes_y" and trips == 0:
                # ONNX Runtime does not know the shape of rows that it did not compute
                assert a.shape == (0, n, 4)
                continue
            assert a.shape == b.shape, name
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=f"{name}, n {n}, trips {trips}")
            np.testing.assert_allclose(c, b, rtol=1e-4, atol=1e-5, err_msg=f"{name}, n {n}, trips {trips}")
    for wrong in (-1, 10):
        with pytest.raises(AotcError, match="trips"):
            session.run(None, feeds_of(model, 2, wrong, True))


def test_sizes_that_a_run_finds(tmp_path: Path) -> None:
    """Branches and loops work on as many rows as a call before them finds."""
    body = (
        "places = NonZero(x) near = Transpose(places) f = Cast <to = 1> (near) "
        + choice("c", "g", "s = Sin(f)", "s = Softmax(f)", "float[k,2] s")
        + loop("trips, , g", "y", ", float[k,2] a", GO + "t = Tanh(a) b = Sub(t, f)", ", float[k,2] b")
    )
    model = model_of("float[7,4] x, bool c, int64 trips => float[k,2] y", body)
    session, interpreter = compiled(model, tmp_path).session(), interpreter_of(model)
    reference, rng = reference_of(model), np.random.default_rng(1)
    for trips, share in ((3, 0.5), (0, 0.5), (2, 0.9), (1, 0.1)):
        x = np.where(rng.uniform(size=(7, 4)) < share, 1, 0).astype(np.float32)
        x[0, 0] = 1
        feeds = {"x": x, "c": np.array(trips > 1), "trips": np.array(trips)}
        expected = reference.run(None, feeds)
        for a, b, c in zip(session.run(None, feeds), expected, interpreter(feeds).values(), strict=True):
            assert a.shape == b.shape == c.shape
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(c, b, rtol=1e-4, atol=1e-5)


def test_rows_are_written_where_they_belong() -> None:
    """An iteration copies neither what it carries nor the rows of other iterations."""
    for name in ("rows_of_an_input", "rows_of_a_size", "rows_of_sizes", "scan"):
        dims = (DIMS if name != "rows_of_an_input" else {}) | ({"trips[0]": (0, 9)} if name in ROWS else {})
        program = program_of(model_of(*MODELS[name]), dims=dims)
        (loop_node,) = (node for node in program.body if isinstance(node, Loop))
        assert not [step for step in steps_in(loop_node.body) if is_copy_kernel(step.kernel)], name


def test_known_trip_counts_of_run_time_sizes_stay_loops() -> None:
    body = "count = Constant <value_int = 20> () "
    body += loop("count, , x", "y", f", {N}a", GO + "t = Tanh(a) b = Sub(t, x)", f", {N}b")
    program = program_of(model_of(f"{N}x => {N}y", body), dims=DIMS)
    assert sum(isinstance(node, Loop) for node in program.body) == 1


@pytest.mark.parametrize(
    ("interface", "body", "dims", "message"),
    [
        ("float[4] x, int64 n => float[4] p, float[N,4] y",
         loop("n, , x", "p, y", f", {R}a", GO + "c = Add(a, x) d = Cos(c)", f", {R}c, {R}d"), {},
         r"nothing bounds element 0 of the input 'n', on which a shape depends"),
    ],
)  # fmt: skip
def test_what_is_refused(interface: str, body: str, dims: dict[str, Any], message: str) -> None:
    with pytest.raises(AotcError, match=message) as caught:
        aotc.compile(model_of(interface, body), dims=dims, build=False)
    assert len(caught.value.diagnostics) == 1


def test_conditions_on_sizes_are_those_of_the_whole_program() -> None:
    """A run checks at entry what it needs in any case; what only an arm needs is refused."""
    first = "zero = Constant <value_int = 0> () row = Gather(x, zero) "
    outside = first + choice("c", "y", "z = Tanh(row)", "z = Neg(row)", R + "z")
    inside = choice("c", "y", first + "z = Tanh(row)", "z = Neg(h)", R + "z")
    program = program_of(model_of(f"{N}x, bool c => {R}y", outside), dims={"n": (0, 4)})
    assert [str(check) for check in program.checks] == ["n >= 1"]
    with pytest.raises(AotcError, match="sizes of a model with branches or loops must fulfill n >= 1"):
        program_of(model_of(f"{N}x, {R}h, bool c => {R}y", inside), dims={"n": (0, 4)})
    again = first.replace("zero", "nul").replace("row", "low") + "z = Tanh(low)"
    both = first + "k = Neg(row) " + choice("c", "q", again, "z = Abs(h)", R + "z") + "y = Add(q, k)"
    program = program_of(model_of(f"{N}x, {R}h, bool c => {R}y", both), dims={"n": (0, 4)})
    assert [str(check) for check in program.checks] == ["n >= 1"]
