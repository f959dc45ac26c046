# SPDX-License-Identifier: Apache-2.0
"""Sequences and optional values of ONNX, also as inputs and outputs, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import onnx_backend
from aotc.ir.diagnostics import AotcError
from tests.e2e.control_flow import arrays, choice, compiled, joined, model_of, reference_of
from tests.e2e.test_control_flow_models import check_runs
from tests.e2e.test_found_sizes import STRICT
from tests.e2e.test_onnx_loops import GO, loop

V = "float[2,3] "
#: Models with sequences: the interface, and the body.
MODELS: dict[str, tuple[str, str]] = {
    "positions_at_run_time": (
        f"{V}x, {V}y, int64 n, int64 m => {V}a, {V}b, {V}c",
        "e = Exp(x) s = SequenceConstruct(x, y, e) a = SequenceAt(s, n) z = Neg(y) t = SequenceInsert(s, z, m) "
        "u = SequenceErase(t, n) b = SequenceAt(u, m) c = ConcatFromSequence <axis = 0> (u)"
        .replace("float[2,3] c", "float[6,3] c"),
    ),
    "split_and_map": (
        "float[7,3] x => float[7,3] y, int64 count, float[3,2,3] z",
        "three = Constant <value_int = 3> () s = SplitToSequence <axis = 0> (x, three) "
        "t = SequenceMap <body = b (float[K,3] a) => (float[K,3] c) { c = Softmax(a) }> (s) "
        "y = ConcatFromSequence <axis = 0> (t) count = SequenceLength(t) "
        "two = Constant <value_ints = [2, 2, 2]> () six = Constant <value_ints = [6]> () "
        "zero = Constant <value_ints = [0]> () h = Slice(x, zero, six) u = SplitToSequence(h, two) "
        "z = ConcatFromSequence <axis = 0, new_axis = 1> (u)",
    ),
    "collected_by_a_loop": (
        f"{V}x => float[24,3] y, int64 count",
        "twelve = Constant <value_int = 12> () none = SequenceEmpty <dtype = 1> () "
        + loop("twelve, , x, none", "last, s", f", {V}a, seq(float[2,3]) q",
               GO + "c = Sin(a) d = Add(c, x) r = SequenceInsert(q, d)", f", {V}d, seq(float[2,3]) r")
        + "y = ConcatFromSequence <axis = 0> (s) count = SequenceLength(s)",
    ),
    "chosen_at_run_time": (
        f"{V}x, bool c => float[4,3] y",
        "e = Exp(x) "
        + choice("c", "s", "p = SequenceConstruct(x, e)", "n = Neg(x) p = SequenceConstruct(n, x)", "seq(float[2,3]) p")
        + "y = ConcatFromSequence <axis = 0> (s)",
    ),
    "optional_values": (
        f"{V}x, {V}z => {V}y, bool there, bool empty",
        "o = Optional(x) v = OptionalGetElement(o) y = Add(v, z) there = OptionalHasElement(o) "
        "a = Optional <type = float[2,3]> () empty = OptionalHasElement(a)",
    ),
}  # fmt: skip
DECISIONS: list[dict[str, Any]] = [{"n": n, "m": m, "c": n > 0} for n, m in ((0, 0), (2, 1), (-3, -1), (1, 2))]


def test_models_in_one_library(tmp_path: Path) -> None:
    models = {name: model_of(*model) for name, model in MODELS.items()}
    runs = [
        {f"{name}_{key}": value for name, model in models.items() for key, value in arrays(model, given).items()}
        for given in DECISIONS
    ]
    model = joined(models)
    session = compiled(model, tmp_path).session()
    check_runs(model, runs, lambda feeds: session.run(None, feeds))


def test_positions_and_parts_of_elements_that_differ(tmp_path: Path) -> None:
    """Positions are sizes, of which the shapes of elements are formulas; so are the extents of parts."""
    model = model_of(
        "float[2,3] x, float[2,1] y, float[1,4] z, int64 m, int64[1] n, int64 k, float[3,7] w, int64[3] parts => "
        "float[a,b] at, float[c,d] p, float[c1,d1] q, float[c2,d2] r, float[c3,d3] t, float[e,f] left, "
        "float[e1,f1] right, float[g,3] third, float[h,3] joined",
        "s = SequenceConstruct(x, y, z) at = SequenceAt(s, m) e = Exp(z) u = SequenceInsert(s, e, n) "
        "zero = Constant <value_int = 0> () one = Constant <value_int = 1> () two = Constant <value_int = 2> () "
        "three = Constant <value_int = 3> () p = SequenceAt(u, zero) q = SequenceAt(u, one) r = SequenceAt(u, two) "
        "t = SequenceAt(u, three) v = SequenceErase(s, k) left = SequenceAt(v, zero) right = SequenceAt(v, one) "
        "c = SplitToSequence <axis = 1> (w, parts) h = SequenceAt(c, two) third = Transpose(h) "
        "i = ConcatFromSequence <axis = 1> (c) joined = Transpose(i)",
    )
    session, reference = compiled(model, tmp_path, cflags=STRICT).session(), reference_of(model)
    rng = np.random.default_rng(5)
    fixed = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    given = {name: rng.normal(size=fixed[name]).astype(np.float32) for name in "xyzw"}
    for m, n, k, parts in ((0, 0, 0, [1, 2, 4]), (-1, 3, -1, [7, 0, 0]), (2, -3, 1, [0, 0, 7]), (-3, 1, -3, [2, 3, 2])):
        feeds = given | {"m": np.array(m), "n": np.array([n]), "k": np.array(k), "parts": np.array(parts)}
        for a, b in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-6)
    for wrong, message in (({"m": np.array(3)}, r"m\[0\]|element 0 of the input m is 3"),
                           ({"n": np.array([-4])}, "element 0 of the input n is -4"),
                           ({"parts": np.array([2, 2, 2])}, "parts")):  # fmt: skip
        with pytest.raises(AotcError, match=message):
            session.run(None, feeds | wrong)


LISTS = "seq(float[N,3]) xs, optional(float[2,3]) o, optional(seq(float[K])) os, float[2,3] x => "


def test_sequences_as_inputs_and_outputs() -> None:
    outputs = "seq(float[M,3]) ys, seq(float[K]) zs, bool there"
    model = model_of(
        LISTS + outputs,
        "e = Exp(x) ys = SequenceInsert(xs, e) there = OptionalHasElement(o) zs = OptionalGetElement(os)",
    )
    prepared, reference = onnx_backend.prepare(model, cflags=("-O0",)), reference_of(model)
    rng = np.random.default_rng(1)
    for lengths, sizes in (((2, 5), (4,)), ((3,), (1, 2))):
        feeds = {
            "xs": [rng.normal(size=(n, 3)).astype(np.float32) for n in lengths],
            "o": rng.normal(size=(2, 3)).astype(np.float32),
            "os": [rng.normal(size=n).astype(np.float32) for n in sizes],
            "x": rng.normal(size=(2, 3)).astype(np.float32),
        }
        *lists, there = prepared.run(feeds)
        *expected, _ = reference.run(None, feeds)
        assert there
        for a, b in zip(lists, expected, strict=True):
            assert len(a) == len(b)
            for found, right in zip(a, b, strict=True):
                np.testing.assert_allclose(found, right, rtol=1e-5)
    assert prepared.calls == 2


def test_lengths_of_sequences_are_dimensions() -> None:
    model = model_of(
        "seq(float[2,3]) xs => seq(float[2,3]) ys, float[6,3] y",
        "y = ConcatFromSequence <axis = 0> (xs) ys = Identity(xs)".replace("axis = 0", "axis = 1"),
    )
    metadata = aotc.compile(model, dims={"xs": 3}, build=False).metadata
    assert [i["name"] for i in metadata["inputs"]] == ["xs[0]", "xs[1]", "xs[2]"]
    assert [o["name"] for o in metadata["outputs"]] == ["ys[0]", "ys[1]", "ys[2]", "y"]
    with pytest.raises(AotcError, match="the length of the sequence 'xs' is not known"):
        aotc.compile(model, build=False)


@pytest.mark.parametrize(
    ("interface", "body", "message"),
    [
        (f"{V}x, float[3] z, int64 n => {V}y", "s = SequenceConstruct(x, z) y = SequenceAt(s, n)",
         "a position that is known at run time only needs elements of one type"),
        (f"{V}x => {V}y", "two = Constant <value_int = 2> () s = SequenceConstruct(x, x) y = SequenceAt(s, two)",
         "index 2 is out of range for a sequence of 2 elements"),
        (f"{V}x => {V}y", "o = Optional <type = float[2,3]> () v = OptionalGetElement(o) y = Add(v, x)",
         "OptionalGetElement of an optional value that is absent"),
        (f"{V}x => optional(float[2,3]) y", "y = Optional <type = float[2,3]> ()",
         "output 'y' is an optional value that is absent"),
        (f"{V}x => seq(float[2,3]) y", "y = SequenceEmpty()", "output 'y' is a sequence without elements"),
        (f"{V}x, int64 n => seq(float[2,3]) y",
         "none = SequenceEmpty() " + loop("n, , none", "y", ", seq(float[2,3]) q",
                                          GO + "r = SequenceInsert(q, x)", ", seq(float[2,3]) r"),
         "nothing bounds element 0 of the input 'n'"),
    ],
)  # fmt: skip
def test_what_is_refused(interface: str, body: str, message: str) -> None:
    with pytest.raises(AotcError, match=message):
        aotc.compile(model_of(interface, body), build=False)
