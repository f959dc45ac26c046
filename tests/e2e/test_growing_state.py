# SPDX-License-Identifier: Apache-2.0
"""State that grows, such as the caches of a decoder: compiled with a capacity, against ONNX Runtime fed by hand."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import aotc
from aotc.checking.verify import verify
from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import CompiledModel
from aotc.ir.diagnostics import AotcError
from aotc.measuring.run_library import run_library
from aotc.runtime.session import Session
from aotc.tir.passes import ProgramVerifier
from aotc.tir.program_interpreter import ProgramInterpreter
from tests.e2e.projects import run

HEADS, KEY_HEADS, WIDTH, TOKENS = 4, 2, 8, 40
DIM = HEADS * WIDTH
CAPACITY = 12
STATE = {"past_*": f"present_*:{CAPACITY}"}


def decoder(layers: int = 2, steps: str = "1", masked: bool = False) -> onnx.ModelProto:
    """A Llama-like decoder with grouped heads, whose caches grow along their third axis.

    steps     number of tokens of a run: a number or a symbol
    masked    add a mask of shape (1, steps, past + steps), whose shape depends on the length of the caches
    """
    rng = np.random.default_rng(0)
    caches = [f"{kind}{layer}" for layer in range(layers) for kind in "kv"]
    inputs = [f"int64[1,{steps}] tokens"] + ([f"float[1,{steps},total] mask"] if masked else [])
    inputs += [f"float[1,{KEY_HEADS},past,{WIDTH}] past_{name}" for name in caches]
    outputs = [f"float[1,{steps},{TOKENS}] logits"]
    outputs += [f"float[1,{KEY_HEADS},longer,{WIDTH}] present_{name}" for name in caches]
    weights = {"embedding": (TOKENS, DIM)}
    body = "x0 = Gather (embedding, tokens)"
    for n in range(layers):
        weights |= {f"q{n}": (DIM, DIM), f"k{n}": (DIM, KEY_HEADS * WIDTH), f"v{n}": (DIM, KEY_HEADS * WIDTH)}
        weights |= {f"o{n}": (DIM, DIM)}
        body += f"""
          a{n} = MatMul (x{n}, q{n})  b{n} = MatMul (x{n}, k{n})  c{n} = MatMul (x{n}, v{n})
          d{n} = Reshape (a{n}, heads)  e{n} = Reshape (b{n}, key_heads)  f{n} = Reshape (c{n}, key_heads)
          query{n} = Transpose <perm = [0, 2, 1, 3]> (d{n})
          key{n} = Transpose <perm = [0, 2, 1, 3]> (e{n})
          value{n} = Transpose <perm = [0, 2, 1, 3]> (f{n})
          present_k{n} = Concat <axis = 2> (past_k{n}, key{n})
          present_v{n} = Concat <axis = 2> (past_v{n}, value{n})
          g{n} = Unsqueeze (present_k{n}, two)  h{n} = Expand (g{n}, repeats)  keys{n} = Reshape (h{n}, all_heads)
          i{n} = Unsqueeze (present_v{n}, two)  j{n} = Expand (i{n}, repeats)  values{n} = Reshape (j{n}, all_heads)
          l{n} = Transpose <perm = [0, 1, 3, 2]> (keys{n})
          m{n} = MatMul (query{n}, l{n})
          scores{n} = {f"Add (m{n}, mask)" if masked else f"Mul (m{n}, scale)"}
          p{n} = Softmax <axis = -1> (scores{n})
          r{n} = MatMul (p{n}, values{n})
          s{n} = Transpose <perm = [0, 2, 1, 3]> (r{n})
          t{n} = Reshape (s{n}, flat)
          u{n} = MatMul (t{n}, o{n})
          x{n + 1} = Add (x{n}, u{n})"""
    body += f"  w = Transpose (embedding)  logits = MatMul (x{layers}, w)"
    graph = f"g ({', '.join(inputs)}) => ({', '.join(outputs)}) {{ {body} }}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    values: dict[str, Any] = {n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in weights.items()}
    values |= {"heads": [0, 0, HEADS, WIDTH], "key_heads": [0, 0, KEY_HEADS, WIDTH], "flat": [0, 0, DIM]}
    values |= {"repeats": [1, KEY_HEADS, HEADS // KEY_HEADS, 1, WIDTH], "all_heads": [1, HEADS, -1, WIDTH], "two": [2]}
    values |= {"scale": np.float32(WIDTH**-0.5)}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(v), n) for n, v in values.items())
    return model


class Reference:
    """ONNX Runtime with the caches as inputs and outputs."""

    def __init__(self, model: onnx.ModelProto) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(model.SerializeToString(), options)
        self.caches = [i for i in self.session.get_inputs() if i.name.startswith("past_")]
        self.past = {i.name: np.zeros([1, i.shape[1], 0, i.shape[3]], np.float32) for i in self.caches}

    def __call__(self, inputs: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        logits, *presents = self.session.run(None, {**inputs, **self.past})
        self.past = {i.name: a for i, a in zip(self.caches, presents, strict=True)}
        return np.asarray(logits)


def compiled(model: onnx.ModelProto, folder: Path, **options: Any) -> CompiledModel:
    given = {"state": STATE, "target": "c", "cflags": ["-O1"]} | options
    return aotc.compile(model, output=folder / "net", instruments=[ProgramVerifier()], **given)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return compiled(decoder(), tmp_path_factory.mktemp("decoder"), target="host").session()


def inputs_of_steps(count: int, steps: int = 1) -> list[dict[str, np.ndarray[Any, Any]]]:
    tokens = np.random.default_rng(1).integers(0, TOKENS, (count, 1, steps))
    return [{"tokens": t} for t in tokens]


def test_a_decoder_appends_to_its_caches_in_place(session: Session) -> None:
    reference, state = Reference(decoder()), session.new_state()
    assert (state.length, state.capacity) == (0, CAPACITY)
    for length, inputs in enumerate(inputs_of_steps(CAPACITY)):
        (logits,) = session.run(None, inputs, state=state)
        np.testing.assert_allclose(logits, reference(inputs), rtol=1e-4, atol=1e-5)
        assert state.length == length + 1
    assert [i.name for i in session.get_inputs()] == ["tokens"]


def test_no_kernel_copies_a_cache_and_the_block_has_the_capacity() -> None:
    work = CompileOptions(state=STATE, target="c").start_compilation(decoder())
    (program,) = work.scheduled_programs
    appends = [step for step in program.steps if step.kernel.name == "append_to_state"]
    assert len(appends) == len(program.state) == 4
    names = {step.kernel.name for step in program.steps}
    assert not names & {"concatenate", "transpose", "copy"} and "sum" in names, names
    assert all(tensor.past is tensor.present for tensor in program.state)


def test_a_state_without_room_is_as_before_the_run(session: Session) -> None:
    state = session.new_state()
    inputs = inputs_of_steps(CAPACITY + 1)
    for given in inputs[:-1]:
        session.run(None, given, state=state)
    before = bytes(state)
    with pytest.raises(AotcError, match=r"no room.*capacity is 12") as caught:
        session.run(None, inputs[-1], state=state)
    assert caught.value.code == "state-full"
    assert bytes(state) == before


def test_states_are_truncated_copied_saved_and_reset(session: Session) -> None:
    inputs, state = inputs_of_steps(8), session.new_state()
    expected = [session.run(None, given, state=state)[0] for given in inputs]
    fork = state.copy()
    saved = pickle.loads(pickle.dumps(bytes(state)))
    state.truncate(3)
    for given, logits in zip(inputs[3:], expected[3:], strict=True):
        np.testing.assert_array_equal(session.run(None, given, state=state)[0], logits)
    assert bytes(state) == bytes(fork) == saved
    restored = session.new_state(saved)
    pair = [session.run(None, inputs[0], state=s)[0] for s in (restored, fork)]
    np.testing.assert_array_equal(*pair)
    for length in (-1, 10, True, 1.5):
        with pytest.raises(AotcError, match="cannot be truncated"):
            fork.truncate(length)  # type: ignore[arg-type]
    fork.reset()
    assert fork.length == 0
    np.testing.assert_array_equal(session.run(None, inputs[0], state=fork)[0], expected[0])
    damaged = bytearray(saved)
    damaged[8:12] = (CAPACITY + 1).to_bytes(4, "little")
    with pytest.raises(AotcError, match="length exceeds its capacity"):
        session.new_state(bytes(damaged))


def test_runs_of_several_tokens_with_a_mask_of_the_length(tmp_path: Path) -> None:
    model = decoder(layers=1, steps="steps", masked=True)
    dims = {"steps": (1, 5)}
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "total":
                dim.dim_param = "past + steps"
    work = CompileOptions(state=STATE, target="c", dims=dims, output=tmp_path / "net", cflags=["-O1"])
    work = work.start_compilation(model, toolchain=work.toolchain_factory())
    interpreter = ProgramInterpreter(work.scheduled_programs[0])
    session = work.emit_project_and_build_library(tmp_path / "net").session()
    reference, state = Reference(model), session.new_state()
    rng = np.random.default_rng(2)
    for steps in (1, 5, 2, 3):
        total = state.length + steps
        mask = np.where(np.tri(steps, total, total - steps), 0, -1e9).astype(np.float32)[None]
        inputs = {"tokens": rng.integers(0, TOKENS, (1, steps)), "mask": mask}
        expected = reference(inputs)
        (logits,) = session.run(None, inputs, state=state)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(interpreter(inputs)["logits"], expected, rtol=1e-4, atol=1e-5)
        assert state.length == interpreter.length == total
    full = {"tokens": np.zeros((1, 2), np.int64), "mask": np.zeros((1, 2, 13), np.float32)}
    before = bytes(state)
    with pytest.raises(AotcError, match="the state has room: 12 >= past") as caught:
        session.run(None, full, state=state)
    assert caught.value.code == "state-full"
    assert bytes(state) == before
    with pytest.raises(AotcError, match=r"shape \[1, 1, 9\], expected"):
        session.run(None, {"tokens": np.zeros((1, 1), np.int64), "mask": np.zeros((1, 1, 9), np.float32)}, state=state)


def test_threads_and_other_instruction_sets(tmp_path: Path) -> None:
    project = compiled(decoder(), tmp_path, target="x86-64", threads=True)
    session = aotc.load(project.path, threads=2)
    alone, states = aotc.load(project.path), (session.new_state(), session.new_state())
    for inputs in inputs_of_steps(CAPACITY):
        pair = [s.run(None, inputs, state=state)[0] for s, state in zip((session, alone), states, strict=True)]
        np.testing.assert_array_equal(*pair)


PROGRAM = """
#include <stdio.h>
#include <string.h>
#include "net.h"

static unsigned char work[NET_WORKSPACE_BYTES + 1] __attribute__((aligned(NET_WORKSPACE_ALIGNMENT)));
static unsigned char state[NET_STATE_BYTES] __attribute__((aligned(NET_STATE_ALIGNMENT)));
static unsigned char saved[NET_STATE_BYTES] __attribute__((aligned(NET_STATE_ALIGNMENT)));

int main(void) {
  int64_t token = 3;
  float logits[NET_OUTPUT_LOGITS_ELEMENTS], again[NET_OUTPUT_LOGITS_ELEMENTS];
  const net_inputs in = {&token, state};
  net_outputs out = {logits};
  int k;
  if (net_state_length(state) != -1 || net_state_truncate(state, 0) != AOTC_ERROR_STATE) return 1;
  if (net_run(&in, &out, work, NULL) != AOTC_ERROR_STATE || net_workspace_bytes(&in) != 0) return 2;
  if (net_state_init(state) != AOTC_OK || net_state_length(state) != 0) return 3;
  for (k = 0; k < NET_STATE_CAPACITY; ++k, token += 2) {
    if (k == 4) memcpy(saved, state, sizeof state);
    if (net_run(&in, &out, work, NULL) != AOTC_OK || net_state_length(state) != k + 1) return 4;
    if (k == 4) memcpy(again, logits, sizeof again);
    for (int i = 0; i < NET_OUTPUT_LOGITS_ELEMENTS; ++i) printf("%.9g\\n", logits[i]);
  }
  k = net_run(&in, &out, work, NULL);
  if ((k & 255) != AOTC_ERROR_CAPACITY || net_state_length(state) != NET_STATE_CAPACITY) return 5;
  printf("%s\\n%s\\n", aotc_status_message(k), net_check(k));
  token = 3 + 2 * 4;
  if (net_state_truncate(state, 4) != AOTC_OK || net_run(&in, &out, work, NULL) != AOTC_OK) return 6;
  if (memcmp(again, logits, sizeof again) != 0) return 7;
  memcpy(state, saved, sizeof state);
  if (net_state_length(state) != 4 || net_run(&in, &out, work, NULL) != AOTC_OK) return 8;
  if (memcmp(again, logits, sizeof again) != 0) return 9;
  if (net_state_truncate(state, 6) != AOTC_ERROR_DIMS || net_state_truncate(state, -1) != AOTC_ERROR_DIMS) return 10;
  return net_state_reset(state) != AOTC_OK || net_state_length(state) != 0;
}
"""


def test_a_program_in_c(tmp_path: Path) -> None:
    project = compiled(decoder(layers=1), tmp_path, build=False, name="net").path
    (project / "app.c").write_text(PROGRAM)
    flags = "-g -Wall -Wextra -Wconversion -pedantic -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
    run(["make", "-s", "-j2", "static", f"CFLAGS={flags}"], project)
    libraries = ["build/libnet.a", "build/libaotc_rt.a", "-lm"]
    run(["gcc", "-Iinclude", *flags.split(), "app.c", *libraries, "-o", "app"], project)
    *numbers, message, condition = run(["./app"], project).splitlines()
    printed = np.array(numbers, np.float32).reshape(CAPACITY, TOKENS)
    assert message == "the state has no room for what a run appends"
    assert condition == "the length past of the state is 0 to 11, as its capacity is 12"
    reference = Reference(decoder(layers=1))
    expected = [reference({"tokens": np.array([[3 + 2 * k]])}).reshape(-1) for k in range(CAPACITY)]
    np.testing.assert_allclose(printed, expected, rtol=1e-4, atol=1e-5)


def test_verify_and_run(tmp_path: Path) -> None:
    model = decoder(layers=1)
    onnx.save(model, tmp_path / "net.onnx")
    report = verify(tmp_path / "net.onnx", state=STATE, target="c", seeds=1, check_compiler=False)
    assert report.ok and [c.source for c in report.cases] == [f"past 0, seed 0, run {k}" for k in (1, 2, 3, 4)]
    project = compiled(model, tmp_path)
    assert run_library(project.path, repeat=CAPACITY + 2)["repeat"] == CAPACITY + 2


MISTAKES = {
    "first contents": ({}, {"params": {"past_k0": np.zeros((1, 2, 0, 8), np.float32)}}, "begins empty"),
    "two capacities": ({"past_k*": "present_k*:8", "past_v*": "present_v*:9"}, {}, "grow together"),
    "a range that begins later": ({}, {"dims": {"past": (1, 8)}}, "begins empty, but its length past is at least 1"),
    "no capacity": ({"past_*": "present_*"}, {}, "nothing bounds the length of the state 'past_k0'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    state, options, text = MISTAKES[name]
    options_of_state = CompileOptions(state=state or STATE, target="c", **options)
    with pytest.raises(AotcError, match=text):
        options_of_state.start_compilation(decoder(1))


def test_a_state_that_is_not_appended_to_is_refused() -> None:
    graph = """g (float[1,4] x, float[n,4] past) => (float[1,4] y, float[m,4] present) {
      present = Concat <axis = 0> (x, past)  y = ReduceSum <keepdims = 1> (present, zero) }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "zero"))
    with pytest.raises(AotcError, match="does not grow by elements that are appended"):
        CompileOptions(state={"past": "present:8"}, target="c").start_compilation(model)


def test_a_name_that_ends_like_a_capacity_is_a_name() -> None:
    graph = "g (float[1,4] x, float[1,4] h) => (float[1,4] y, float[1,4] out) { y = Add (x, h) out = Tanh (y) }"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    model.graph.output[1].name = "out:1"
    model.graph.node[1].output[0] = "out:1"
    work = CompileOptions(state={"h": "out:1"}, target="c").start_compilation(model)
    assert work.state[0].present == "out:1"
    with pytest.raises(AotcError, match="has the capacity 5, but does not grow"):
        CompileOptions(state={"h": "out:1:5"}, target="c").start_compilation(model)


def test_a_trained_decoder(models: Path, tmp_path: Path) -> None:
    """512 tokens from an empty state on, each the most likely one after those before it."""
    model = onnx.load(models / "tinystories260k_decode.onnx")
    project = aotc.compile(model, output=tmp_path / "net", state={"past_*": "present_*:512"}, name="net")
    session, reference = project.session(), Reference(model)
    state, token = session.new_state(), 1
    for position in range(512):
        inputs = {"tokens": np.array([[token]]), "position": np.array([position])}
        (logits,) = session.run(None, inputs, state=state)
        expected = reference(inputs)
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)
        token = int(logits.argmax())
        assert token == expected.argmax()
    assert state.length == state.capacity == 512


def test_a_state_of_a_fixed_size_beside_one_that_grows(tmp_path: Path) -> None:
    graph = """g (float[1,steps,4] x, float[1,1,4] h, float[1,2,n,4] past_k)
      => (float[1,more,4] y, float[1,1,4] h_out, float[1,2,m,4] present_k) {
      all = Concat <axis = 1> (h, x)  y = Relu (all)  h_out = ReduceMean <axes = [1], keepdims = 1> (all)
      new = Concat <axis = 1> (h, h_out)  row = Unsqueeze (new, two)  present_k = Concat <axis = 2> (past_k, row) }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    model.graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
    state = {"h": "h_out", "past_*": "present_*:4"}
    session = compiled(model, tmp_path, state=state, dims={"steps": (1, 4)}).session()
    kept, h = session.new_state(), np.zeros((1, 1, 4), np.float32)
    for steps in (1, 3, 2, 4):
        x = np.random.default_rng(steps).normal(size=(1, steps, 4)).astype(np.float32)
        joined = np.concatenate([h, x], 1)
        (y,) = session.run(None, {"x": x}, state=kept)
        np.testing.assert_allclose(y, np.maximum(joined, 0), rtol=1e-5, atol=1e-6)
        h = joined.mean(1, keepdims=True)
    assert kept.length == 4
    with pytest.raises(AotcError, match="not all of its tensors grow"):
        kept.truncate(0)
