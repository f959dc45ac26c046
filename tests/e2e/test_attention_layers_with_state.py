# SPDX-License-Identifier: Apache-2.0
"""Attention layers of ONNX and of com.microsoft with their caches as state, against ONNX Runtime fed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import aotc
from aotc.driver.pass_observers import ProgramVerifier
from aotc.ir.diagnostics import AotcError
from aotc.runtime.session import Session

Array = np.ndarray[Any, Any]
HEADS, KEY_HEADS, SIZE, CAPACITY = 4, 2, 16, 12
DIM: Final = HEADS * SIZE
#: Numbers of new tokens of the runs of a model whose number of tokens is a size.
STEPS: Final = (3, 1, 2, 1, 1)


def decoder(batch: int, past: str, total: str) -> onnx.ModelProto:
    """One layer, whose lengths are inputs, and whose keys are rotated by their positions."""
    cache = f"float[{batch},{KEY_HEADS},{past},{SIZE}]"
    longer = f"float[{batch},{KEY_HEADS},{total},{SIZE}]"
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft": 1]>
        g (float[{batch},1,{DIM}] x, {cache} past_k, {cache} past_v, int32[{batch}] last, int32 total)
          => (float[{batch},1,{DIM}] y, {longer} present_k, {longer} present_v) {{
          q = MatMul (x, wq)  k = MatMul (x, wk)  v = MatMul (x, wv)
          a, present_k, present_v = com.microsoft.GroupQueryAttention
            <num_heads = {HEADS}, kv_num_heads = {KEY_HEADS}, do_rotary = 1, local_window_size = 7>
            (q, k, v, past_k, past_v, last, total, cosines, sines)
          y = MatMul (a, wo)
        }}""")
    rng = np.random.default_rng(0)
    shapes = {"wq": (DIM, DIM), "wk": (DIM, KEY_HEADS * SIZE), "wv": (DIM, KEY_HEADS * SIZE), "wo": (DIM, DIM)}
    shapes |= {"cosines": (CAPACITY, SIZE // 2), "sines": (CAPACITY, SIZE // 2)}
    values = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items())
    return model


def session_with(model: onnx.ModelProto, state: dict[str, str], folder: Path, **options: Any) -> Session:
    options = {"target": "host", "cflags": ["-O0"], "instruments": [ProgramVerifier()]} | options
    return aotc.compile(model, output=folder / "net", state=state, **options).session()


def step(lengths: Array, number: int) -> dict[str, Array]:
    """Inputs of a step of sequences that have so many earlier tokens."""
    x = np.random.default_rng(number).normal(size=(len(lengths), 1, DIM)).astype(np.float32)
    return {"x": x, "last": lengths.astype(np.int32), "total": np.array(lengths.max() + 1, np.int32)}


class Reference:
    """ONNX Runtime with the caches as inputs and outputs."""

    def __init__(self, model: onnx.ModelProto, dtype: Any = np.float32) -> None:
        self.session = ort.InferenceSession(model.SerializeToString())
        pasts = [i for i in self.session.get_inputs() if i.name.startswith("past_")]
        shapes = {i.name: [d if isinstance(d, int) else 0 for d in i.shape] for i in pasts}
        self.caches = {name: np.zeros(shape, dtype) for name, shape in shapes.items()}

    def __call__(self, inputs: dict[str, Array]) -> Array:
        y, *presents = self.session.run(None, {**inputs, **self.caches})
        self.caches = dict(zip(self.caches, presents, strict=True))
        return np.asarray(y)


def test_caches_grow_in_place_and_other_lengths_are_refused(tmp_path: Path) -> None:
    model = decoder(1, "past", "longer")
    session = session_with(model, {"past_*": f"present_*:{CAPACITY}"}, tmp_path)
    state, reference = session.new_state(), Reference(model)
    for n in range(CAPACITY):
        inputs = step(np.array([n]), n)
        np.testing.assert_allclose(session.run(None, inputs, state=state)[0], reference(inputs), 1e-4, 1e-5)
    assert state.length == CAPACITY
    state.truncate(5)
    before = bytes(state)
    for last, total in ((5, 5), (4, 6), (5, 7)):
        wrong = step(np.array([5]), 0) | {"last": np.array([last], np.int32), "total": np.array(total, np.int32)}
        with pytest.raises(AotcError, match="GroupQueryAttention"):
            session.run(None, wrong, state=state)
    assert bytes(state) == before


def test_sequences_of_a_batch_have_lengths_of_their_own(tmp_path: Path) -> None:
    model = decoder(2, str(CAPACITY), str(CAPACITY))
    session = session_with(model, {"past_*": "present_*"}, tmp_path)
    state, reference = session.new_state(), Reference(model)
    lengths = np.array([0, 0])
    for n in range(9):
        inputs = step(lengths, n)
        np.testing.assert_allclose(session.run(None, inputs, state=state)[0], reference(inputs), 1e-4, 1e-5)
        lengths = lengths + 1 if n != 3 else np.array([4, 1])  # the second one begins again behind its first token
    before = bytes(state)
    for last, total in ((4, 3), (3, CAPACITY + 1)):
        wrong = step(np.array([3, last]), 0) | {"total": np.array(total, np.int32)}
        with pytest.raises(AotcError, match="GroupQueryAttention"):
            session.run(None, wrong, state=state)
    assert bytes(state) == before


def test_caches_of_integers_of_four_bits_grow_in_place(tmp_path: Path) -> None:
    cache, longer = (f"uint8[1,{KEY_HEADS},{length},{SIZE // 2}]" for length in ("past", "longer"))
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft": 1]>
        g (float[1,1,{2 * DIM}] x, {cache} past_k, {cache} past_v, int32[1] last, int32 total)
          => (float[1,1,{DIM}] y, {longer} present_k, {longer} present_v) {{
          y, present_k, present_v = com.microsoft.GroupQueryAttention
            <num_heads = {HEADS}, kv_num_heads = {KEY_HEADS}, k_quant_type = "PER_CHANNEL",
             v_quant_type = "PER_CHANNEL", kv_cache_bit_width = 4>
            (x, , , past_k, past_v, last, total, , , , , , k_scale, v_scale)
        }}""")
    rng = np.random.default_rng(0)
    for name in ("k_scale", "v_scale"):
        scale = (rng.random(KEY_HEADS * SIZE) / 4 + 0.1).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(scale, name))
    session = session_with(model, {"past_*": "present_*:6"}, tmp_path, opt_level=1)
    state, reference = session.new_state(), Reference(model, np.uint8)
    for n in range(6):
        x = rng.normal(size=(1, 1, 2 * DIM)).astype(np.float32)
        inputs = {"x": x, "last": np.array([n], np.int32), "total": np.array(n + 1, np.int32)}
        np.testing.assert_allclose(session.run(None, inputs, state=state)[0], reference(inputs), 1e-4, 1e-5)


def layers() -> onnx.ModelProto:
    """MultiHeadAttention, com.microsoft's Attention, and that of ONNX with grouped
    heads, one behind the other, for several new tokens.
    """
    cache, longer = (f"float[1,{HEADS},{n},{SIZE}]" for n in ("past", "longer"))
    shared, shared_longer = (f"float[1,{KEY_HEADS},{n},{SIZE}]" for n in ("past", "longer"))
    model = parser.parse_model(f"""
        <ir_version: 11, opset_import: ["" : 23, "com.microsoft": 1]>
        g (float[1,steps,{DIM}] x, {cache} past_k, {cache} past_v,
           float[2,1,{HEADS},past,{SIZE}] past_kv, {shared} past_keys, {shared} past_values)
          => (float[1,steps,{DIM}] y, {longer} present_k, {longer} present_v,
              float[2,1,{HEADS},longer,{SIZE}] present_kv,
              {shared_longer} present_keys, {shared_longer} present_values) {{
          q = MatMul (x, wq)  k = MatMul (x, wk)  v = MatMul (x, wv)
          a, present_k, present_v = com.microsoft.MultiHeadAttention <num_heads = {HEADS}, unidirectional = 1>
            (q, k, v, , , , past_k, past_v)
          b, present_kv = com.microsoft.Attention <num_heads = {HEADS}, unidirectional = 1> (a, w, bias, , past_kv)
          r = MatMul (b, wr)  s = MatMul (b, ws)  t = MatMul (b, wt)
          y, present_keys, present_values = Attention
            <is_causal = 1, q_num_heads = {HEADS}, kv_num_heads = {KEY_HEADS}> (r, s, t, , past_keys, past_values)
        }}""")
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("wq", "wk", "wv", "wr"), (DIM, DIM))
    shapes |= {"w": (DIM, 3 * DIM), "bias": (3 * DIM,), "ws": (DIM, DIM // 2), "wt": (DIM, DIM // 2)}
    values = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items())
    return model


def test_layers_with_caches_of_several_kinds_grow_together(tmp_path: Path) -> None:
    dims = {"steps": (1, max(STEPS))}
    session = session_with(layers(), {"past_*": f"present_*:{CAPACITY}"}, tmp_path, dims=dims, target="c")
    state, reference = session.new_state(), Reference(layers())
    for count in STEPS:
        inputs = {"x": np.random.default_rng(count).normal(size=(1, count, DIM)).astype(np.float32)}
        np.testing.assert_allclose(session.run(None, inputs, state=state)[0], reference(inputs), 1e-4, 1e-4)
    assert state.length == sum(STEPS)


def buffers_model() -> onnx.ModelProto:
    """Two layers with buffers of a fixed length: DecoderMaskedMultiHeadAttention, which writes a row of them itself,
    and ONNX's Attention of what TensorScatter wrote, for two sequences with lengths of their own.
    """
    cache, shared = (f"float[2,{heads},{CAPACITY},{SIZE}]" for heads in (HEADS, KEY_HEADS))
    pasts = f"{cache} past_k, {cache} past_v, {shared} past_keys, {shared} past_values"
    model = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 24, "com.microsoft": 1]>
        g (float[2,1,{DIM}] x, int32[1] place, int64[2] ends, {pasts})
          => (float[2,1,{DIM}] y, {pasts.replace("past", "present")}) {{
          q = MatMul (x, wq)  k = MatMul (x, wk)  v = MatMul (x, wv)
          a, present_k, present_v = com.microsoft.DecoderMaskedMultiHeadAttention
            <num_heads = {HEADS}, past_present_share_buffer = 1> (q, k, v, , , past_k, past_v, place)
          r = MatMul (a, wr)  s = MatMul (a, ws)  t = MatMul (a, wt)
          sh = Reshape (s, heads)  st = Transpose <perm = [0, 2, 1, 3]> (sh)
          th = Reshape (t, heads)  tt = Transpose <perm = [0, 2, 1, 3]> (th)
          rh = Reshape (r, queries)  rt = Transpose <perm = [0, 2, 1, 3]> (rh)
          present_keys = TensorScatter <axis = 2> (past_keys, st, ends)
          present_values = TensorScatter <axis = 2> (past_values, tt, ends)
          count = Add (ends, one)
          b = Attention <is_causal = 1> (rt, present_keys, present_values, , , , count)
          bt = Transpose <perm = [0, 2, 1, 3]> (b)
          y = Reshape (bt, joined)
        }}""")
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("wq", "wk", "wv", "wr"), (DIM, DIM))
    shapes |= {"ws": (DIM, DIM // 2), "wt": (DIM, DIM // 2)}
    values: dict[str, Array] = {name: rng.normal(0, 0.3, s).astype(np.float32) for name, s in shapes.items()}
    values |= {"heads": np.array([2, 1, KEY_HEADS, SIZE]), "queries": np.array([2, 1, HEADS, SIZE])}
    values |= {"joined": np.array([2, 1, DIM]), "one": np.array([1])}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items())
    return model


def test_buffers_of_a_fixed_length_are_updated_in_place(tmp_path: Path) -> None:
    model = buffers_model()
    compiled = aotc.compile(model, output=tmp_path / "net", state={"past_*": "present_*"}, target="c", cflags=["-O0"])
    assert [tensor["copies"] for tensor in compiled.metadata["state"]["tensors"]] == [1] * 4
    session = compiled.session()
    state, reference = session.new_state(), Reference(model)
    # the second sequence begins again behind its first token
    for n, ends in enumerate(([0, 0], [1, 1], [2, 2], [3, 1], [4, 2])):
        x = np.random.default_rng(n).normal(size=(2, 1, DIM)).astype(np.float32)
        inputs = {"x": x, "place": np.array([n], np.int32), "ends": np.array(ends)}
        np.testing.assert_allclose(session.run(None, inputs, state=state)[0], reference(inputs), 1e-4, 1e-5)
    before = bytes(state)
    with pytest.raises(AotcError, match="DecoderMaskedMultiHeadAttention"):
        session.run(None, inputs | {"place": np.array([CAPACITY], np.int32)}, state=state)
    assert bytes(state) == before
