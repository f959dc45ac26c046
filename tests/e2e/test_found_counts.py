# SPDX-License-Identifier: Apache-2.0
"""Ranges and loops whose number of elements or iterations a run finds, against ONNX Runtime."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc.ir import AotcError
from tests.codegen.test_project import run
from tests.e2e.control_flow import compiled, interpreter_of, model_of, reference_of
from tests.e2e.test_found_sizes import SANITIZE, STRICT
from tests.e2e.test_onnx_loops import GO, loop

R = "float[4] "
#: A range of floats and one of computed integers; a loop that may end early, one whose trip count is computed, and
#: one that a run enters or not.
MODEL = model_of(
    f"float a, float b, float c, float[3] d, {R}x, float limit, int64 n, bool go => "
    f"float[i] r, int64[j] s, float[j] w, {R}p, float[k,4] y, int64[k] at, {R}q, float[l,4] z, float[m,4] u",
    "r = Range(a, b, c) whole = Cast <to = 7> (d) first, last, step = Split <axis = 0> (whole) "
    "f0 = Squeeze(first) f1 = Squeeze(last) f2 = Squeeze(step) s = Range(f0, f1, f2) "
    "sf = Cast <to = 1> (s) w = Sin(sf) "
    + loop("n, go, x", "p, y, at", f", {R}h",
           "g = Add(h, x) t = Abs(g) top = ReduceMax <keepdims = 0> (t) on = Less(top, limit) v = Cos(g) "
           "k = Identity(i)",
           f", {R}g, {R}v, int64 k")
    + "trips = Cast <to = 7> (b) "
    + loop("trips, , x", "q, z", f", {R}h", GO + "g = Add(h, x) v = Sin(g)", f", {R}g, {R}v")
    + "ten = Constant <value_int = 10> () enter = Less(a, b) "
    + loop("ten, enter, x", "e, u", f", {R}h", GO + "g = Mul(h, x) v = Neg(g)", f", {R}g, {R}v"),
)  # fmt: skip
DIMS: dict[str, Any] = {"found0": (0, 17), "[*]": (0, 12)}


def feeds(numbers: list[float], integers: list[int], limit: float, trips: int, go: bool) -> dict[str, Any]:
    values = dict(zip("abc", map(np.float32, numbers), strict=True))
    values |= {"d": np.array(integers, np.float32), "x": np.array([0.5, -1, 0.2, 1], np.float32)}
    return {k: np.asarray(v) for k, v in (values | {"limit": np.float32(limit), "n": trips, "go": go}).items()}


FEEDS = [
    feeds([0, 5, 1], [9, -14, -2], 5, 9, True),
    feeds([1, -7.5, -0.5], [0, 5, 1], 0.1, 9, True),
    feeds([3, 3, 1], [2, 2, 1], 100, 12, True),
    feeds([0.5, 6.7, 0.4], [2, 100, -1], 100, 9, False),
    feeds([5, 0, 2], [-6, 6, 1], 100, 0, True),
    feeds([-9, 8, 1], [-(2**40), 2**40, 2**39], 7, 2**60, True),
]
TOO_MANY = {
    "found0": [feeds(n, [0, 1, 1], 1, 1, True)
               for n in ([0, 18, 1], [0, 9, 0], [9, 0, 0], [0, np.nan, 1], [np.nan] * 3)],
    "found1": [feeds([0, 1, 1], n, 1, 1, True) for n in ([0, 13, 1], [5, -8, -1], [0, 5, 0], [-(2**62), 2**62, 1])],
    "found2": [feeds([0, 1, 1], [0, 1, 1], 100, n, True) for n in (13, 2**62)],
    "found3": [feeds([0, 13, 1], [0, 1, 1], 1, 1, True)],
}  # fmt: skip


def test_numbers_of_elements_and_iterations(tmp_path: Path) -> None:
    """One library and the interpreter of programs; more elements than there is room for end a run."""
    made = compiled(MODEL, tmp_path / "net", dims=DIMS, cflags=STRICT)
    session, interpret, reference = made.session(), interpreter_of(MODEL, dims=DIMS), reference_of(MODEL)
    outputs = session.get_outputs()
    assert {o.name: o.bounds for o in outputs if o.name in "rsu"} == {
        "r": ((0, 17),),
        "s": ((0, 12),),
        "u": ((0, 10), (4, 4)),
    }
    for given in FEEDS:
        expected = reference.run(None, given)
        for info, got, simulated, want in zip(
            outputs, session.run(None, given), interpret(given).values(), expected, strict=True
        ):
            if info.name in "yzu" and not len(want):
                assert got.shape == simulated.shape == (0, 4)  # ONNX Runtime gives other shapes for no rows
                continue
            assert got.dtype == want.dtype and got.shape == simulated.shape == want.shape, info.name
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=info.name)
            np.testing.assert_allclose(simulated, want, rtol=1e-5, atol=1e-5, err_msg=info.name)
    for size, wrong in TOO_MANY.items():
        for given in wrong:
            with pytest.raises(
                AotcError, match=rf"node (Range|Loop)#\d+: the size {size}, which the run finds, is 0 to"
            ):
                session.run(None, given)
    sources = [*(made.path / "src").glob("*.c"), *(made.path / "runtime").glob("*.c")]
    flags = ["-std=c99", *SANITIZE, "-Iinclude", "-Isrc", "-DMODEL=net_info"]
    program = tmp_path / "exact"
    run(
        ["gcc", *flags, Path(__file__).with_name("exact_buffers.c"), *sources, "-lm", "-pthread", "-o", program],
        made.path,
    )
    for given, result in ((FEEDS[0], "0 outputs differ\n"), (TOO_MANY["found2"][0], f"status {23 + (2 << 8)}\n")):
        files = [tmp_path / f"{name}.bin" for name in given]
        for file, value in zip(files, given.values(), strict=True):
            value.tofile(file)
        done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (result, "")


def test_ranges_of_sizes_that_a_run_finds() -> None:
    """A range bounds what nothing else bounds, and may make what something bounds smaller."""
    model = model_of("float[3, 4] x => int64[2, k] y", "y = NonZero(x)")
    session = aotc.compile(model, dims={"found0": "0..5"}, target="c", cflags=["-O0"]).session()
    assert session.get_outputs()[0].bounds == ((2, 2), (0, 5))
    x = np.zeros((3, 4), np.float32)
    x[1] = 1
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.nonzero(x))
    x[2, :2] = 1
    with pytest.raises(AotcError, match=r"node NonZero#0: the size found0, which the run finds, is 0 to 5"):
        session.run(None, {"x": x})
    for dims, message in (
        ({"found0": (1, 5)}, "the range of the size found0, which a run finds, must begin at 0, it is 1..5"),
        ({"found0": 5}, "must begin at 0, it is 5"),
        ({"found1": (0, 5)}, "no operator finds a size called 'found1'"),
    ):
        with pytest.raises(AotcError, match=message):
            aotc.compile(model, dims=dims, build=False)
    with pytest.raises(AotcError, match="nothing bounds the size found0, which a run finds") as caught:
        aotc.compile(model_of("float a, float b => float[k] y", "y = Range(a, b, a)"), build=False)
    assert caught.value.code == "onnx-operand-bound"
    named = model_of("float[found0] x, float[6] z => float[found0] y, int64[1, k] w", "y = Neg(x) w = NonZero(z)")
    program = interpreter_of(named, dims={"found0": (1, 4)})
    got = program({"x": np.ones(3, np.float32), "z": np.ones(6, np.float32)})
    assert [a.shape for a in got.values()] == [(3,), (1, 6)]


def test_sizes_found_in_tensors_of_run_time_sizes(tmp_path: Path) -> None:
    """The number of elements that there may be is a formula of the sizes of a run."""
    model = model_of(
        "float[n,3] x, float[m] w => int64[2,k] y, float[k] v, float[k,2] u, float[l,3] a, float[j,3] b, float[i] c",
        "y = NonZero(x) r = Transpose(y) v = GatherND(x, r) rf = Cast <to = 1> (r) u = Sin(rf) "
        "at = Constant <value_int = 0> () col = Gather <axis = 1> (x, at) pos = Cast <to = 9> (col) "
        "a = Compress <axis = 0> (x, pos) some = Cast <to = 9> (w) "
        "b = Compress <axis = 0> (x, some) c = Compress(x, some)",
    )
    dims = {"n": (1, 7), "m": (1, 9)}
    made = compiled(model, tmp_path / "net", dims=dims, cflags=STRICT)
    session, interpret, reference = made.session(), interpreter_of(model, dims=dims), reference_of(model)
    assert session.get_outputs()[0].bounds == ((2, 2), (0, 21))
    rng = np.random.default_rng(0)
    for n, m, share in ((7, 1, 0.5), (1, 9, 0.5), (3, 3, 1), (2, 5, 0), (7, 9, 0.8)):
        feeds = {
            name: (rng.uniform(size=shape) < share).astype(np.float32) for name, shape in (("x", (n, 3)), ("w", m))
        }
        for got, simulated, want in zip(
            session.run(None, feeds), interpret(feeds).values(), reference.run(None, feeds), strict=True
        ):
            assert got.shape == simulated.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(simulated, want, rtol=1e-5, atol=1e-6)


def test_sorted_and_distinct_elements_of_run_time_sizes(tmp_path: Path) -> None:
    """Rows of run-time sizes are sorted; the searched extents of Unique and NonMaxSuppression have ranges."""
    model = model_of(
        "float[n,4] x, float[b,n,4] boxes, float[b,c,n] scores, int64[1] most, float[m] v => float[k,4] a, float[p] d, "
        "int64[p] first, int64[m] inverse, int64[p] count, float[r,4] u, int64[s,3] kept, float[n,4] sorted, "
        "int64[n,4] order, float[2,4] top, int64[2,4] at",
        "two = Constant <value_ints = [2]> () limit = Constant <value_floats = [0.5]> () shape = Shape(x) "
        "zero = Constant <value_ints = [0]> () rows = Gather(shape, zero) d, first, inverse, count = Unique(v) "
        "u = Unique <axis = 0, sorted = 0> (x) a = Unique <axis = 0> (x) "
        "kept = NonMaxSuppression(boxes, scores, most, limit) sorted, order = TopK <axis = 0> (x, rows) "
        "top, at = TopK <axis = 0, largest = 0> (x, two)",
    )
    dims = {"n": (1, 40), "m": (1, 20), "b": (1, 2), "c": (1, 3)}
    made = compiled(model, tmp_path / "net", dims=dims, cflags=[*STRICT, "-fsanitize=undefined"])
    session, interpret, reference = made.session(), interpreter_of(model, dims=dims), reference_of(model)
    rng = np.random.default_rng(0)

    def feeds_of(n: int, m: int, b: int, c: int) -> dict[str, Any]:
        return {
            "x": rng.integers(0, 2, (n, 4)).astype(np.float32),
            "boxes": rng.uniform(size=(b, n, 4)).astype(np.float32),
            "scores": rng.uniform(size=(b, c, n)).astype(np.float32),
            "most": np.array([4]),
            "v": rng.integers(0, 5, m).astype(np.float32),
        }

    for sizes in ((2, 1, 1, 1), (40, 20, 2, 3), (17, 9, 1, 2), (39, 2, 2, 1)):
        feeds = feeds_of(*sizes)
        simulated = interpret(feeds)
        results = zip(simulated, session.run(None, feeds), simulated.values(), reference.run(None, feeds), strict=True)
        for name, got, same, want in results:
            np.testing.assert_array_equal(got, want, err_msg=name)
            np.testing.assert_array_equal(same, want, err_msg=name)
    with pytest.raises(AotcError, match="n >= 2"):
        session.run(None, feeds_of(1, 1, 1, 1))
