# SPDX-License-Identifier: Apache-2.0
"""State in the memory of a GPU: runs change it where it is, or copy a block of the host there and back."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from aotc.driver.compile import CompileOptions
from aotc.driver.cuda_emulation import build_fake_cuda_driver
from aotc.driver.pipeline import CompiledModel
from aotc.ir.diagnostics import AotcError
from aotc.tir.passes import ProgramVerifier
from tests.cuda.test_size_tiers import HEADER, SANITIZED

ort = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(4)


def with_weights(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    made = parser.parse_model(HEADER + text)
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return made


def gru() -> onnx.ModelProto:
    """A recurrent layer and a running mean, whose last value is an output, too."""
    text = """net (float[1, 1, 6] x, float[1, 1, 5] h, float[1, 6] m)
      => (float[1, 5] y, float[1, 1, 5] n, float[1, 6] k) {
      s, n = GRU <hidden_size = 5> (x, w, r, b, l, h)
      a = Constant <value_ints = [0, 1]> ()
      z = Squeeze(n, a)
      f = Squeeze(x, c)
      half = Constant <value_float = 0.5> ()
      d = Mul(m, half)
      e = Mul(f, half)
      k = Add(d, e)
      t = ReduceSum <keepdims = 1> (k)
      q = Add(z, t)
      y = Reshape(q, g)
    }""".replace(", l, h)", ", , h)")
    shapes = {"w": (1, 15, 6), "r": (1, 15, 5), "b": (1, 30)}
    weights = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return with_weights(text, **weights, c=np.array([0]), g=np.array([1, 5]))


def swap() -> onnx.ModelProto:
    """Two tensors that change places, and a row that moves along: old contents are read after new ones are known."""
    text = """net (float[4] x, float[4] a, float[4] b, float[3, 4] c)
      => (float[4] y, float[4] d, float[4] e, float[3, 4] f) {
      d = Add(b, x)
      e = Identity(a)
      i = Constant <value_ints = [1, 3]> ()
      u = Constant <value_ints = [0]> ()
      o = Constant <value_ints = [1]> ()
      n = Constant <value_ints = [3]> ()
      r = Slice(c, o, n, u)
      p = Unsqueeze(x, u)
      f = Concat <axis = 0> (r, p)
      s = ReduceSum <keepdims = 0> (c, u)
      t = Mul(a, s)
      y = Sub(t, b)
    }"""
    return with_weights(text)


def cache() -> onnx.ModelProto:
    """A cache of fixed size, of which a run replaces the row that an input names."""
    text = """net (float[1, 4] x, int64[1, 1] at, float[6, 4] p) => (float[1, 4] y, float[6, 4] q) {
      q = ScatterND(p, at, x)
      u = Constant <value_ints = [0]> ()
      y = ReduceSum <keepdims = 1> (q, u)
    }"""
    return with_weights(text)


MODELS: dict[str, tuple[Any, dict[str, str]]] = {
    "gru": (gru, {"h": "n", "m": "k"}),
    "swap": (swap, {"a": "d", "b": "e", "c": "f"}),
    "cache": (cache, {"p": "q"}),
}


def compiled(name: str, **options: Any) -> tuple[CompiledModel, onnx.ModelProto]:
    make, state = MODELS[name]
    proto = make()
    chosen = CompileOptions(
        target="cuda", emulated=True, state=state, name="net", instruments=[ProgramVerifier()], **options
    )
    return chosen.compile_model(proto), proto


def drawn(proto: onnx.ModelProto, pairs: Mapping[str, str], seed: int) -> dict[str, np.ndarray]:
    """Inputs of a run, without the state."""
    rng, found = np.random.default_rng(seed), dict[str, np.ndarray]()
    weights = {w.name for w in proto.graph.initializer}
    for value in proto.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.name not in pairs and value.name not in weights:
            is_index = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
            found[value.name] = rng.integers(0, 6, shape) if is_index else rng.standard_normal(shape).astype(np.float32)
    return found


class Reference:
    """ONNX Runtime, with the state as inputs and outputs."""

    def __init__(self, proto: onnx.ModelProto, pairs: Mapping[str, str]) -> None:
        self.session, self.pairs = ort.InferenceSession(proto.SerializeToString()), pairs
        shapes = {i.name: i.shape for i in self.session.get_inputs()}
        self.state = {past: np.zeros(shapes[past], np.float32) for past in pairs}

    def run(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        y, *new = self.session.run(["y", *self.pairs.values()], {**inputs, **self.state})
        self.state = dict(zip(self.pairs, new, strict=True))
        return np.asarray(y)


@pytest.mark.parametrize("order", ["forwards", "backwards"])
@pytest.mark.parametrize("name", MODELS)
def test_runs_change_the_state(name: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs, two states in turn, a copy of one in the middle, and outputs that stay on the device."""
    monkeypatch.setenv("AOTC_EMULATOR_ORDER", order)
    model, proto = compiled(name)
    session, pairs = model.session(), MODELS[name][1]
    states, references = [session.new_state() for _ in range(2)], [Reference(proto, pairs) for _ in range(2)]
    for step in range(8):
        inputs = drawn(proto, pairs, step)
        (y,) = session.run(["y"], inputs, state=states[step % 2])
        np.testing.assert_allclose(y, references[step % 2].run(inputs), rtol=1e-5, atol=1e-5)
    fork, inputs = states[0].copy(), drawn(proto, pairs, 99)
    (there,) = session.run(["y"], inputs, state=fork, outputs="device")
    np.testing.assert_array_equal(there.numpy(), session.run(["y"], inputs, state=states[0])[0])
    assert bytes(fork) == bytes(states[0])
    restored = session.new_state(bytes(fork))
    binding = session.bind(inputs, state=restored)
    binding.run()
    expected = references[0].run(inputs), references[0].run(inputs)
    np.testing.assert_allclose(binding.outputs["y"], expected[1], rtol=1e-5, atol=1e-5)
    restored.reset()
    assert bytes(restored) == bytes(session.new_state())


def test_states_of_gpus_are_checked() -> None:
    """The block begins with a hash of the model, also on the device; a run with another one changes nothing."""
    session, other = compiled("swap")[0].session(), compiled("cache")[0].session()
    inputs = drawn(swap(), MODELS["swap"][1], 0)
    with pytest.raises(AotcError, match="needs a state"):
        session.run(None, inputs)
    with pytest.raises(AotcError, match="belongs to another library"):
        session.run(None, inputs, state=other.new_state())
    state, foreign = session.new_state(), other.new_state()
    before = bytes(state)
    state.pointer = foreign.pointer
    with pytest.raises(AotcError, match="of another model, or was not initialized"):
        session.run(None, inputs, state=state)
    with pytest.raises(AotcError, match="of another model, or was not initialized"):  # and again
        session.run(None, inputs, state=state)
    assert bytes(state) == before
    with pytest.raises(AotcError, match="cannot be pickled"):
        pickle.dumps(state)


APP = """\
#include <stdio.h>
#include <stdlib.h>
#include "net.h"

int main(void) {
  aotc_cuda *opened;
  aotc_cuda_session *session;
  char message[256];
  unsigned char *state = aligned_alloc(NET_STATE_ALIGNMENT, NET_STATE_BYTES);
  int status = aotc_cuda_open(net_program(), 0, &opened, message, sizeof message);
  if (status == AOTC_OK) status = net_session_open(opened, &session);
  if (status != AOTC_OK || state == NULL) return 1;
  for (size_t k = 0; k < NET_STATE_BYTES; ++k) state[k] = 7;
  for (int64_t step = 0; step < 4; ++step) {
    const float x[4] = {1, 2, 3, 4};
    const int64_t at[1] = {step % 3};
    float y[4] = {0};
    net_inputs inputs = {x, at, state};
    const net_outputs outputs = {y};
    status = net_run(&inputs, &outputs, session, NULL);
    printf("%d: %g\\n", status, (double)y[3]);
    if (step == 0 && net_state_init(state) != AOTC_OK) return 2;
  }
  net_session_close(session);
  aotc_cuda_close(opened);
  free(state);
  return 0;
}
"""


@pytest.mark.always
def test_a_block_of_the_host_is_copied(tmp_path: Path) -> None:
    folder = compiled("cache", output=tmp_path / "net", build=False)[0].path
    (tmp_path / "app.c").write_text(APP, encoding="utf-8")
    sources = [tmp_path / "app.c", *folder.glob("src/*.[cS]"), *folder.glob("runtime/*.c")]
    command = ["gcc", *SANITIZED.split(), f"-I{folder}/include", *sources, "-ldl", "-lm", "-o", tmp_path / "app"]
    subprocess.run([*map(str, command)], check=True, cwd=folder)
    environment = {**os.environ, "AOTC_CUDA_DRIVER": str(build_fake_cuda_driver()), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([tmp_path / "app"], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["21: 0", "0: 4", "0: 8", "0: 12"]
    subprocess.run(["make", "-s", "CFLAGS=-O1 -Wall -Wextra -Werror"], check=True, cwd=folder)
    subprocess.run([folder / "build/net_example", "-n", "3"], check=True, env=environment)


def test_state_that_grows_is_refused_by_its_names() -> None:
    text = "net (float[2, 4] x, float[past, 4] p) => (float[2, 4] y, float[total, 4] q) "
    text += "{ q = Concat <axis = 0> (p, x) s = ReduceSum <keepdims = 1> (q) y = Add(x, s) }"
    chosen = CompileOptions(target="cuda", state={"p": "q"}, dims={"past": (0, 16)})
    with pytest.raises(AotcError, match=r'keeps no state that grows: state={"p": "q"}') as caught:
        chosen.start_compilation(with_weights(text))
    assert caught.value.diagnostics[0].code == "target"
