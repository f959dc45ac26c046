# SPDX-License-Identifier: Apache-2.0
"""Sizes that a run finds in branches and loops, branches whose results differ in size, and found sizes with state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc.ir import AotcError
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.interpreter import evaluate
from tests.e2e.control_flow import choice, compiled, interpreter_of, model_of, reference_of
from tests.e2e.test_found_sizes import STRICT
from tests.e2e.test_onnx_loops import GO, loop

#: Branches: sizes of shapes, of constants and of data, in axes of each kind; and calls that find sizes in parts.
MODEL = model_of(
    "float[n,4] x, bool c, bool d, int64 trips => float[a,4] rows, float[n,b] columns, float[p,q] both, "
    "int64[2,r] places, float s, float[4] t, float[u,4] nested, float[4] last",
    "zero = Constant <value_int = 0> () one = Constant <value_float = 1.0> () axis = Constant <value_ints = [0]> () "
    + choice("c", "rows", "e = Tanh(x)", "e = Concat <axis = 0> (x, x)", "float[a,4] e")
    + choice("d", "columns", "f = Concat <axis = 1> (x, x)", "f = ReduceMax <axes = [1]> (x)", "float[n,b] f")
    + choice("c", "both", "tr = Transpose(x) h = Exp(tr)", "h = Concat <axis = 1> (x, x)", "float[p,q] h")
    + choice("d", "places", "i = NonZero(x)", "pos = Relu(x) i = NonZero(pos)", "int64[2,r] i")
    + choice("c", "s", "nz = NonZero(x) z = Cast <to = 1> (nz) m = ReduceSum <keepdims = 0> (z)",
             "m = ReduceSum <keepdims = 0> (x)", "float m")
    + choice("c", "nested", choice("d", "o", "w = Sin(x)", "w = Concat <axis = 0> (x, x, x)", "float[v,4] w")
             + "k = Neg(o)", "k = Cos(x)", "float[u,4] k")
    + "first = Gather(x, zero) nine = Constant <value_int = 9> () "
    + loop("nine, , first", "t", ", float[4] g",
           GO + "aa = Abs(g) ii = NonZero(aa) picked = Squeeze(ii, axis) vals = Gather(g, picked) "
           "su = ReduceSum <keepdims = 0> (vals) sc = Shape(vals) fl = Cast <to = 1> (sc) "
           "st = Expand(one, sc) sm = ReduceSum <keepdims = 0> (st) mu = Mul(su, sm) di = Tanh(mu) "
           "hh = Sub(g, di) hr = Relu(hh)", ", float[4] hr")
    + loop("trips, , first", "last", ", float[4] l1", GO
           + choice("d", "l2", "l3 = Concat <axis = 0> (l1, l1)", "l3 = Sin(l1)", "float[l,4] l3".replace("l,4", "l"))
           + "l4 = ReduceMean <keepdims = 0> (l2) l5 = Sub(l1, l4)", ", float[4] l5"),
)  # fmt: skip
DIMS = {"n": (1, 6)}


def feeds_of(n: int, c: bool, d: bool, trips: int) -> dict[str, Any]:
    x = np.round(np.random.default_rng(n).normal(size=(n, 4)) * 2).astype(np.float32) / 2
    return {"x": x, "c": np.array(c), "d": np.array(d), "trips": np.array(trips)}


@pytest.mark.always
def test_sizes_found_in_branches_and_loops(tmp_path: Path) -> None:
    session = compiled(MODEL, tmp_path, dims=DIMS, cflags=[*STRICT, "-fsanitize=undefined"]).session()
    interpret, reference, module = interpreter_of(MODEL, dims=DIMS), reference_of(MODEL), from_onnx(MODEL, dims=DIMS)
    names = [output.name for output in reference.get_outputs()]
    for n, c, d, trips in ((6, True, False, 3), (1, False, True, 0), (3, True, True, 2), (5, False, False, 1)):
        feeds = feeds_of(n, c, d, trips)
        expected = reference.run(None, feeds)
        results = session.run(None, feeds), list(interpret(feeds).values()), evaluate(module, params=feeds)
        for given in results:
            for name, got, want in zip(names, given, expected, strict=True):
                assert got.shape == want.shape, (name, n, c, d)
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{name} {n} {c} {d}")


def test_branches_of_other_types_are_refused() -> None:
    body = choice("c", "y", "z = Tanh(x)", "z = Cast <to = 11> (x)", "float[n,4] z")
    with pytest.raises(AotcError, match="the branches of If have outputs of different types"):
        aotc.compile(model_of("float[n,4] x, bool c => float[n,4] y", body), dims=DIMS, build=False)


def test_found_sizes_with_state(tmp_path: Path) -> None:
    """What a run finds depends on the state; a run that ends leaves the state as it was."""
    model = model_of(
        "float[5] x, float[5] h => float[k,1] y, float[5] g, float zs",
        "g = Add(x, h) p = Relu(g) i = NonZero(p) at = Transpose(i) y = Cast <to = 1> (at) j = NonZero(x) "
        "jt = Transpose(j) jf = Cast <to = 1> (jt) z = Add(y, jf) zs = ReduceSum <keepdims = 0> (z)",
    )
    session = compiled(model, tmp_path, state={"h": "g"}, cflags=STRICT).session()
    state, before, ended = session.new_state(), np.zeros(5, np.float32), 0
    for x in ([1, 0, 2, 0, 0], [0, 1, -5, 0, 0], [0, 0, 0, 0, 7], [-2, 0, 0, 3, 4], [3, 2, 0, 0, 0]):
        given = np.array(x, np.float32)
        now = before + given
        if np.count_nonzero(now > 0) != np.count_nonzero(given):
            with pytest.raises(AotcError, match="found0 == found1"):
                session.run(None, {"x": given}, state=state)
            ended += 1
            continue
        before = now
        y, _ = session.run(None, {"x": given}, state=state)
        np.testing.assert_array_equal(y, np.argwhere(now > 0).astype(np.float32))
    assert 0 < ended < 4
