# SPDX-License-Identifier: Apache-2.0
"""Models with choices, loops and scans, all in one library, against ONNX Runtime and the interpreters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import aotc
from aotc.ir.diagnostics import AotcError
from aotc.tir import Loop
from aotc.tir.plan.copy_elimination import is_copy_kernel
from aotc.tir.plan.program_nodes import steps_in
from tests.e2e import test_branches, test_onnx_loops
from tests.e2e.control_flow import (
    Feeds,
    arrays,
    choice,
    compiled,
    interpreter_of,
    joined,
    model_of,
    program_of,
    reference_of,
)
from tests.e2e.projects import run, run_all, write_raw
from tests.e2e.test_onnx_loops import GO, loop

R, X = "float[4] ", "float[20,4] "


def scan(call: str, results: str, inputs: str, body: str, outputs: str, attributes: str = "", scanned: int = 1) -> str:
    """A Scan in ONNX's text form; `inputs` and `outputs` are the types and names of those of the body."""
    more = f", {attributes}" if attributes else ""
    graph = f"b ({inputs}) => ({outputs}) {{ {body} }}"
    return f"{results} = Scan <num_scan_inputs = {scanned}{more}, body = {graph}> ({call}) "


TRUE = "t = Constant <value = bool {1}> () "
TWENTY = "n = Constant <value_int = 20> () "
#: Models with Scan, and with Loop that has scan outputs: the interface, the body, and values of the inputs that decide.
MODELS: dict[str, tuple[str, str, list[Feeds]]] = {
    "axes_and_directions": (
        f"{R}h, {X}x, float[3,20] z => {R}hy, {X}y, float[3,20] w",
        scan("h, x, z", "hy, y, w", f"{R}a, {R}xi, float[3] zi",
             "s = Add(a, xi) c = Tanh(s) d = Sin(c) q = ReduceMax <keepdims = 0> (d) e = Mul(zi, q)",
             f"{R}c, {R}d, float[3] e",
             "scan_input_axes = [0, 1], scan_input_directions = [0, 1], scan_output_axes = [0, 1], "
             "scan_output_directions = [1, 0]", 2),
        [{}],
    ),
    "last_axes": (
        "float[2,3,20] x => float[2,20,3] y",
        scan("x", "y", "float[2,3] xi", "d = Softmax(xi)", "float[2,3] d", "scan_input_axes = [-1], "
             "scan_output_axes = [-2]"),
        [{}],
    ),
    "state_only": (
        f"{R}h, {X}x => {R}y",
        scan("h, x", "y", f"{R}a, {R}xi", "s = Mul(a, xi) c = Cos(s)", f"{R}c"),
        [{}],
    ),
    "values_that_swap_places": (
        f"{R}h, {R}k, {X}x => {R}p, {R}q, {X}y",
        scan("h, k, x", "p, q, y", f"{R}a, {R}b, {R}xi", "c = Identity(b) d = Add(a, xi) e = Sub(a, b)",
             f"{R}c, {R}d, {R}e"),
        [{}],
    ),
    "values_that_do_not_change": (
        f"{R}h, {X}x => {R}p, {X}y, {X}z, {X}w",
        scan("h, x", "p, y, z, w", f"{R}a, {R}xi", "c = Identity(a) d = Identity(xi) e = Identity(a) f = Abs(h)",
             f"{R}c, {R}d, {R}e, {R}f"),
        [{}],
    ),
    "one_value_as_state_and_output": (
        f"{R}h, {X}x => {R}p, {X}y, {X}z",
        scan("h, x", "p, y, z", f"{R}a, {R}xi", "c = Add(a, xi) d = Identity(c) e = Identity(c)", f"{R}c, {R}d, {R}e"),
        [{}],
    ),
    "scalars_and_types": (
        "float[20] x, int64[20] k => float s, int64 m, float[20] y, bool[20] big, int64[20] j",
        "zero = Constant <value_float = 0.0> () nul = Constant <value_int = 0> () "
        + scan("zero, nul, x, k", "s, m, y, big, j", "float a, int64 b, float xi, int64 ki",
               "c = Add(a, xi) d = Add(b, ki) e = Identity(c) f = Greater(c, xi) h = Mul(d, ki)",
               "float c, int64 d, float e, bool f, int64 h", "", 2),
        [{"k": list(range(20))}],
    ),
    "few_iterations": (
        f"{R}h, float[3,4] x => {R}p, float[4,3] y",
        scan("h, x", "p, y", f"{R}a, {R}xi", "c = Add(a, xi) d = Exp(c)", f"{R}c, {R}d",
             "scan_input_directions = [1], scan_output_axes = [1], scan_output_directions = [1]"),
        [{}],
    ),
    "recurrent_cell": (
        "float[1,8] h, float[20,8] x, float[8,8] u, float[8,8] w => float[1,8] p, float[20,1,8] y",
        "uh = Mul(u, u) axis = Constant <value_ints = [0]> () "
        + scan("h, x", "p, y", "float[1,8] a, float[8] xi",
               "row = Unsqueeze(xi, axis) m = MatMul(row, uh) k = MatMul(a, w) s = Add(m, k) c = Tanh(s) "
               "d = Identity(c)",
               "float[1,8] c, float[1,8] d"),
        [{}],
    ),
    "scan_of_scan": (
        "float[20,12] x, float[12] h => float[20] y, float[20,12] z, float s",
        "zero = Constant <value_float = 0.0> () "
        + scan("zero, x", "s, y, z", "float a, float[12] row",
               scan("a, row", "b, v", "float c, float e", "d = Add(c, e) g = Sin(d)", "float d, float g")
               + "l = Add(v, h) m = ReduceSum <keepdims = 0> (l) o = Mul(b, m) r = Tanh(o) u = Identity(b)",
               "float r, float u, float[12] l"),
        [{}],
    ),
    "scan_in_loop": (
        f"{R}h, {X}x, int64 n => {R}p",
        loop("n, , h", "p", f", {R}a",
             GO + scan("a, x", "r, v", f"{R}c, {R}xi", "s = Add(c, xi) d = Tanh(s) e = Mul(d, xi)", f"{R}d, {R}e")
             + "m = ReduceMax <axes = [0], keepdims = 0> (v) b = Sub(r, m)", f", {R}b"),
        [{"n": n} for n in (0, 1, 4)],
    ),
    "loop_in_scan": (
        f"{R}h, {X}x, int64 n => {R}p, {X}y",
        scan("h, x", "p, y", f"{R}a, {R}xi",
             loop("n, , a", "r", f", {R}c", GO + "s = Mul(c, xi) d = Cos(s)", f", {R}d")
             + "q = Add(r, xi) w = Sub(q, h)",
             f"{R}q, {R}w"),
        [{"n": n} for n in (0, 1, 4)],
    ),
    "scan_in_choice": (
        f"{X}x, bool c => {X}y",
        "e = Exp(x) "
        + choice("c", "r", scan("x", "s", f"{R}xi", "d = Softmax(xi)", f"{R}d"), "s = Sub(x, e)", X + "s")
        + "y = Add(r, x)",
        [{"c": c} for c in (True, False)],
    ),
    "choice_in_scan": (
        f"{R}h, {X}x, bool flip => {R}p, {X}y",
        "zero = Constant <value_float = 0.0> () "
        + scan("h, x", "p, y", f"{R}a, {R}xi",
               "m = ReduceSum <keepdims = 0> (xi) big = Greater(m, zero) c = Xor(big, flip) "
               + choice("c", "q", "u = Add(a, xi) v = Tanh(u)", "v = Mul(a, xi)", R + "v") + "w = Exp(q)",
               f"{R}q, {R}w"),
        [{"flip": flip} for flip in (True, False)],
    ),
    "loop_with_scan_outputs": (
        f"{R}x => {R}p, {X}y, int64[20] k",
        TWENTY + TRUE + loop("n, t, x", "p, y, k", f", {R}a", GO + "c = Add(a, x) d = Cos(c) j = Add(i, i)",
                             f", {R}c, {R}d, int64 j"),
        [{}],
    ),
    "loop_with_scan_outputs_only": (
        f"{X}x => float[20,1,4] y",
        "axis = Constant <value_ints = [0]> () "
        + TWENTY + TRUE
        + loop("n, t", "y", "", GO + "r = Gather(x, i) e = Exp(r) d = Unsqueeze(e, axis)", ", float[1,4] d"),
        [{}],
    ),
    "loop_of_no_iteration": (
        f"{R}x => {R}p, float[0,4] y",
        "n = Constant <value_int = 0> () "
        + loop("n, , x", "p, y", f", {R}a", GO + "c = Add(a, x) d = Cos(c)", f", {R}c, {R}d"),
        [{}],
    ),
    "scan_outputs_in_loop_in_loop": (
        f"{R}x, int64 n => {R}p",
        "twenty = Constant <value_int = 20> () "
        + loop("n, , x", "p", f", {R}a",
               GO + f"b, y = Loop (twenty, , a) <body = b2 (int64 i2, bool go2, {R}c) => (bool on2, {R}f, {R}k) {{ "
               "on2 = Identity(go2) e = Sin(c) f = Add(e, x) k = Mul(f, f) }> "
               "m = ReduceMean <axes = [0], keepdims = 0> (y) d = Sub(b, m)", f", {R}d"),
        [{"n": n} for n in (0, 1, 3)],
    ),
    "rows_written_by_the_body": (
        f"{R}h, int64 n => {X}y",
        "zero = Constant <value_float = 0.0> () size = Constant <value_ints = [20, 4]> () "
        "one = Constant <value_ints = [1, 1]> () f = Expand(zero, size) axis = Constant <value_ints = [0]> () "
        + loop("n, , h, f", "last, y", f", {R}a, {X}m",
               GO + "at = Reshape(i, one) c = Sin(a) s = Add(c, h) row = Unsqueeze(s, axis) w = ScatterND(m, at, row)",
               f", {R}s, {X}w"),
        [{"n": n} for n in (0, 1, 20)],
    ),
    "voice_activity": (
        "float[512] x, float[1,8] h, int64 sr, float[8,32] w8, float[8,64] w16, float[8,8] u => float p, float[1,8] hn",
        "low = Constant <value_int = 8000> () slow = Equal(sr, low) m32 = Constant <value_ints = [16, 32]> () "
        "m64 = Constant <value_ints = [8, 64]> () "
        + choice(
            "slow", "hn",
            "f8 = Reshape(x, m32) "
            + scan("h, f8", "g", "float[1,8] a, float[32] xi",
                   "v = MatMul(w8, xi) k = MatMul(a, u) s = Add(k, v) c = Tanh(s)", "float[1,8] c"),
            "f16 = Reshape(x, m64) "
            + scan("h, f16", "g", "float[1,8] a2, float[64] x2",
                   "v2 = MatMul(w16, x2) k2 = MatMul(a2, u) s2 = Add(k2, v2) c2 = Tanh(s2)", "float[1,8] c2"),
            "float[1,8] g")
        + "o = ReduceMean <keepdims = 0> (hn) p = Sigmoid(o)",
        [{"sr": sr} for sr in (8000, 16000)],
    ),
}  # fmt: skip
ALL = {
    **{f"branch_{name}": model for name, model in test_branches.MODELS.items()},
    **{f"loop_{name}": model for name, model in test_onnx_loops.MODELS.items()},
    **{f"scan_{name}": model for name, model in MODELS.items()},
}


def joined_models() -> tuple[onnx.ModelProto, list[dict[str, object]]]:
    """All models as one, and inputs of its runs, such that each case of each model is in one of them."""
    models = {name: model_of(interface, body) for name, (interface, body, _) in ALL.items()}
    runs = []
    for number in range(max(len(cases) for _, _, cases in ALL.values())):
        feeds: dict[str, object] = {}
        for name, (_, _, cases) in ALL.items():
            given = arrays(models[name], cases[number % len(cases)])
            feeds |= {f"{name}_{key}": value for key, value in given.items()}
        runs.append(feeds)
    return joined(models), runs


def check_runs(model: onnx.ModelProto, runs: list[dict[str, object]], execute: object) -> None:
    reference = reference_of(model)
    names = [output.name for output in reference.get_outputs()]
    for feeds in runs:
        for name, a, b in zip(names, execute(feeds), reference.run(None, feeds), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape, name
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=name)


def test_all_models_in_one_library(tmp_path: Path) -> None:
    assert len(ALL) >= 30
    model, runs = joined_models()
    session, interpreter = compiled(model, tmp_path).session(), interpreter_of(model)
    check_runs(model, runs, lambda feeds: session.run(None, feeds))
    check_runs(model, runs[:2], lambda feeds: list(interpreter(feeds).values()))
    for source in (tmp_path / "src").glob("*.c"):
        assert "malloc" not in source.read_text()


def test_sanitizers(tmp_path: Path) -> None:
    """No run reads or writes beyond a tensor."""
    model, runs = joined_models()
    emitted = compiled(model, tmp_path / "net", target="c", build=False, threads=False)
    assert emitted.metadata["footprint"]["stack"] > 0
    folder = emitted.path
    sources = [path for part in ("src", "runtime") for path in sorted((folder / part).glob("*.c"))]
    flags = ["gcc", "-std=gnu99", "-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    flags += ["-Iinclude", "-Isrc", "-DMODEL=net_info"]
    objects = [tmp_path / f"{path.parent.name}_{path.stem}.o" for path in sources]
    run_all([[*flags, "-c", path, "-o", made] for path, made in zip(sources, objects, strict=True)], folder)
    caller = Path(__file__).with_name("exact_buffers.c")
    run([*flags, caller, *objects, "-lm", "-o", "exact"], folder)
    for feeds in runs:
        files = [write_raw(tmp_path, f"in{k}", np.asarray(value)) for k, value in enumerate(feeds.values())]
        assert run(["./exact", *files], folder) == "0 outputs differ\n"


BATCH = """<ir_version: 8, opset_import: ["" : 8]>
g (int64[3] lens, float[3,4] h, float[3,20,4] x) => (float[3,4] p, float[3,20,4] y, float[3,20] m) {
  e = Exp(h)
  p, y, m = Scan <num_scan_inputs = 1, directions = [DIRECTION], body = b (float[4] a, float[4] xi)
    => (float[4] c, float[4] d, float k) { s = Add(a, xi) c = Tanh(s) d = Mul(c, xi) k = ReduceSum <keepdims = 0> (d) }>
    (LENS, e, x)
}"""


@pytest.mark.parametrize(("lens", "direction"), [("lens", 1), ("", 0)])
def test_scan_of_a_batch(lens: str, direction: int, tmp_path: Path) -> None:
    """Scan of operator set 8, whose batch elements may have lengths of their own."""
    model = parser.parse_model(BATCH.replace("LENS", lens).replace("DIRECTION", str(direction)))
    runs = [arrays(model, {"lens": lengths}) for lengths in ([20, 1, 7], [3, 20, 20])]
    session = compiled(model, tmp_path).session()
    check_runs(model, runs, lambda feeds: session.run(None, feeds))


def test_a_scan_of_no_iteration(tmp_path: Path) -> None:
    """It is the state, and outputs without rows. ONNX Runtime refuses it."""
    body = scan("h, x", "p, y", f"{R}a, {R}xi", "c = Add(a, xi) d = Exp(c)", f"{R}c, {R}d", "scan_output_axes = [1]")
    session = compiled(model_of(f"{R}h, float[0,4] x => {R}p, float[4,0] y", body), tmp_path).session()
    h = np.arange(4, dtype=np.float32)
    p, y = session.run(None, {"h": h, "x": np.zeros((0, 4), np.float32)})
    np.testing.assert_array_equal(p, h)
    assert y.shape == (4, 0)


def test_loops_copy_no_carried_value() -> None:
    """What an iteration computes is written over the values of the one before, and into the outputs."""
    for name in ("axes_and_directions", "loop_with_scan_outputs", "recurrent_cell", "rows_written_by_the_body"):
        interface, body, _ = MODELS[name]
        program = program_of(model_of(interface, body))
        (loop_node,) = (node for node in program.body if isinstance(node, Loop))
        assert not [step for step in steps_in(loop_node.body) if is_copy_kernel(step.kernel)], name


@pytest.mark.parametrize(
    ("interface", "body", "message"),
    [
        (f"{X}x, float[12,4] z => {X}y",
         scan("x, z", "y", f"{R}xi, {R}zi", "d = Add(xi, zi)", f"{R}d", "", 2),
         r"the scanned axes of Scan have different extents: \[20, 12\]"),
        (f"{R}x, int64 n => {R}p, float[N,4] y",
         loop("n, , x", "p, y", f", {R}a", GO + "c = Add(a, x) d = Cos(c)", f", {R}c, {R}d"),
         "nothing bounds element 0 of the input 'n', on which a shape depends"),
    ],
)  # fmt: skip
def test_what_is_refused(interface: str, body: str, message: str) -> None:
    with pytest.raises(AotcError, match=message) as caught:
        aotc.compile(model_of(interface, body), build=False)
    assert len(caught.value.diagnostics) == 1
