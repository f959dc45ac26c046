# SPDX-License-Identifier: Apache-2.0
"""Models that keep state between runs: compiled with the option `state`, against ONNX Runtime fed by hand."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from aotc_codegen.c.state_block import state_block_layout
from onnx import numpy_helper, parser

import aotc
from aotc import relay
from aotc.checking.verify import verify
from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import CompiledModel
from aotc.driver.state_pairs import ModelInterface
from aotc.driver.state_proposals import propose_growing_state, propose_state_pairs
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.types import TensorType
from aotc.measuring.bench import benchmark_model
from aotc.measuring.run_library import run_library
from aotc.relay.module import IRModule
from aotc.reporting.model_inspection import inspect_model
from aotc.runtime.session import Session
from aotc.tir.passes import ProgramVerifier
from tests.cli.invoke import call
from tests.e2e.projects import run

#: Models in ONNX's text form with their state pairs, and the number of copies that the block has of each part.
MODELS = {
    "in_place": ("x, h => y, h_out", {"h": "h_out"}, "h_out = Add(h, x)  y = Tanh(h_out)", [1]),
    "read_late": ("x, h => y, h_out", {"h": "h_out"}, "h_out = Tanh(x)  s = Add(h_out, h)  y = Mul(s, h)", [2]),
    "moved_behind": ("x, h => h_out, y", {"h": "h_out"}, "h_out = Tanh(x)  y = Softmax(h)", [1]),
    "also_output": ("x, h => y, h_out", {"h": "h_out"}, "s = Add(h, x)  y = Tanh(s)  h_out = Identity(y)", None),
    "unchanged": ("x, h => y, h_out", {"h": "h_out"}, "h_out = Identity(h)  y = Add(h, x)", [1]),
    "delay": ("x, a, b => y, a_o, b_o", {"*": "*_o"}, "a_o = Identity(x)  b_o = Identity(a)  y = Tanh(b)", None),
    "exchange": ("x, a, b => y, a_o, b_o", {"*": "*_o"}, "a_o = Add(b, x)  b_o = Identity(a)  y = Sub(a, b)", None),
    "never_read": ("x, h => y, h_out", {"h": "h_out"}, "h_out = Tanh(x)  y = Exp(x)", [1]),
}  # fmt: skip
WIDTH = 24


def elementwise_model(interface: str, body: str) -> onnx.ModelProto:
    """A model on tensors of float32[1, 24] alone."""
    sides = [[f"float[1,{WIDTH}] {name.strip()}" for name in side.split(",")] for side in interface.split("=>")]
    inputs, outputs = (", ".join(side) for side in sides)
    return graph_model(f"g ({inputs}) => ({outputs}) {{ {body} }}")


def graph_model(graph: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')


def recurrent_model(kind: str = "LSTM", hidden: int = 16) -> onnx.ModelProto:
    """A step of a recurrent layer over 8 inputs, whose state is one tensor of float32[states, 1, hidden]."""
    rng = np.random.default_rng(3)
    gates, states = (4, 2) if kind == "LSTM" else (3, 1)
    rows = {"w": (1, gates * hidden, 8), "r": (1, gates * hidden, hidden)}
    texts = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in rows.items())
    body = f"y, h1 = GRU <hidden_size = {hidden}> (x, w, r, none, none, state)  state_out = Identity(h1)"
    if kind == "LSTM":
        body = f"""h, c = Split <axis = 0> (state)
          y, h1, c1 = LSTM <hidden_size = {hidden}> (x, w, r, none, none, h, c)
          state_out = Concat <axis = 0> (h1, c1)"""
    graph = f"""g (float[1,1,8] x, float[{states},1,{hidden}] state, {texts})
      => (float[1,1,1,{hidden}] y, float[{states},1,{hidden}] state_out) {{ {body} }}"""
    model = graph_model(graph.replace("none", ""))
    del model.graph.input[2:]
    values = [numpy_helper.from_array(rng.normal(0, 0.3, s).astype(np.float32), n) for n, s in rows.items()]
    model.graph.initializer.extend(values)
    return model


def window_model(frames: int = 3) -> onnx.ModelProto:
    """A convolution over a window of frames, of which the last ones are state."""
    shape = [1, 4, frames, 6]
    graph = f"""g (float[1,4,1,6] x, float[{",".join(map(str, shape))}] cache)
      => (float[1,2,1,6] y, float[{",".join(map(str, shape))}] cache_out)
      <float[2,4,{frames + 1},1] w, int64[1] one = {{1}}, int64[1] end = {{100}}, int64[1] along = {{2}}> {{
        window = Concat <axis = 2> (cache, x)
        y = Conv <kernel_shape = [{frames + 1}, 1]> (window, w)
        cache_out = Slice(window, one, end, along)
      }}"""
    model = graph_model(graph)
    weights = np.random.default_rng(4).normal(0, 0.3, (2, 4, frames + 1, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


def compiled(model: Any, state: Mapping[str, str], folder: Path, **options: Any) -> CompiledModel:
    return aotc.compile(model, output=folder, state=state, name="net", **options)


def names_of_pairs(model: onnx.ModelProto, state: Mapping[str, str]) -> dict[str, str]:
    """The pairs that patterns stand for."""
    if state != {"*": "*_o"}:
        return dict(state)
    return {v.name: f"{v.name}_o" for v in model.graph.input if v.name != "x"}


def assert_streams_equal(
    session: Session, model: onnx.ModelProto | Path, pairs: Mapping[str, str], frames: int = 12,
    initial: Mapping[str, np.ndarray[Any, Any]] | None = None, fixed: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Run frames in a session with a state, and in ONNX Runtime with the state fed by hand."""
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    reference = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    outputs = [o.name for o in reference.get_outputs()]
    state, rng, kept = session.new_state(), np.random.default_rng(0), dict(initial or {})
    for number in range(frames):
        x = {i.name: rng.normal(0, 0.2, i.shape).astype(i.dtype.numpy) for i in session.get_inputs()}
        x |= fixed or {}
        feeds = {i.name: kept.get(i.name, x.get(i.name)) for i in reference.get_inputs()}
        feeds |= {
            n: np.zeros(_static(i.shape), np.float32) for i in reference.get_inputs() if feeds[n := i.name] is None
        }
        expected = dict(zip(outputs, reference.run(None, feeds), strict=True))
        kept = {past: expected[present] for past, present in pairs.items()}
        for info, found in zip(session.get_outputs(), session.run(None, x, state=state), strict=True):
            error = f"frame {number}, {info.name}"
            np.testing.assert_allclose(found, expected[info.name], rtol=2e-4, atol=2e-5, err_msg=error)


def _static(shape: list[Any]) -> list[int]:
    return [d if isinstance(d, int) else 1 for d in shape]


@pytest.mark.parametrize("name", MODELS)
def test_elementwise_models(name: str, tmp_path: Path) -> None:
    interface, state, body, copies = MODELS[name]
    model = elementwise_model(interface, body)
    if "*" in state:
        # x is no state
        state = names_of_pairs(model, state)
    project = compiled(model, state, tmp_path, target="c")
    assert_streams_equal(project.session(), model, state)
    if copies is not None:
        assert [t["copies"] for t in project.metadata["state"]["tensors"]] == copies


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_read_and_write_parts_of_the_state(kind: str, tmp_path: Path) -> None:
    model = recurrent_model(kind)
    project = compiled(model, {"state": "state_out"}, tmp_path)
    assert_streams_equal(project.session(), model, {"state": "state_out"})
    assert len(project.metadata["state"]["tensors"]) == (2 if kind == "LSTM" else 1)
    assert "concatenate" not in str(project.metadata["steps"]) and "split" not in str(project.metadata["steps"])


@pytest.mark.parametrize("target", ["c", "host"])
def test_a_window_of_frames_moves_in_its_memory(target: str, tmp_path: Path) -> None:
    model = window_model()
    first = np.random.default_rng(9).normal(size=(1, 4, 3, 6)).astype(np.float32)
    options = {"params": {"cache": first}, "target": target, "instruments": [ProgramVerifier()]}
    project = compiled(model, {"cache": "cache_out"}, tmp_path, **options)
    assert_streams_equal(project.session(), model, {"cache": "cache_out"}, initial={"cache": first})
    assert [step["kernel"] for step in project.metadata["steps"]].count("net_shift_window") == 1
    assert "concatenate" not in str(project.metadata["steps"])
    assert [t["bytes"] for t in project.metadata["state"]["tensors"]] == [4 * 4 * 4 * 6]


#: Windows of float32[4, 6]: the axis along which they move, new elements, elements that are dropped.
WINDOWS = [(0, 1, 1), (0, 2, 2), (0, 3, 1), (1, 1, 1), (1, 4, 4), (1, 5, 2), (1, 8, 8)]


@pytest.mark.parametrize(("axis", "new", "dropped"), WINDOWS)
@pytest.mark.parametrize("is_joined_first", [True, False])
def test_windows_along_axes(axis: int, new: int, dropped: int, is_joined_first: bool, tmp_path: Path) -> None:
    x_shape, first = [4, 6], np.arange(24, dtype=np.float32).reshape(4, 6)
    x_shape[axis] = new
    end = dropped + (4, 6)[axis]
    body = f"""all = Concat <axis = {axis}> (w, x)  y = Tanh(all)  w_out = Slice(all, from, to, along)"""
    if not is_joined_first:
        if new != dropped or new >= (4, 6)[axis]:
            pytest.skip("the new window is the end of the old one and the new elements")
        body = f"""rest = Slice(w, from, to, along)  w_out = Concat <axis = {axis}> (rest, x)  y = Tanh(w)"""
    y_shape = [4, 6]
    y_shape[axis] += new if is_joined_first else 0
    model = graph_model(f"""g (float[{x_shape[0]},{x_shape[1]}] x, float[4,6] w)
      => (float[{y_shape[0]},{y_shape[1]}] y, float[4,6] w_out)
      <int64[1] from = {{{dropped}}}, int64[1] to = {{{end}}}, int64[1] along = {{{axis}}}> {{ {body} }}""")
    options = {"params": {"w": first}, "target": "c", "instruments": [ProgramVerifier()], "cflags": ["-O1"]}
    project = compiled(model, {"w": "w_out"}, tmp_path, **options)
    assert_streams_equal(project.session(), model, {"w": "w_out"}, frames=5, initial={"w": first})
    assert "net_shift_window" in [step["kernel"] for step in project.metadata["steps"]]
    assert [t["copies"] for t in project.metadata["state"]["tensors"]] == [1]


def test_threads_and_several_instruction_sets(tmp_path: Path) -> None:
    model = recurrent_model("LSTM", hidden=256)
    project = compiled(model, {"state": "state_out"}, tmp_path, target="x86-64", threads=True)
    assert any("STATE" in line for line in (tmp_path / "include" / "net.h").read_text().splitlines())
    session = aotc.load(project.built, threads=2)
    assert_streams_equal(session, model, {"state": "state_out"}, frames=6)


def test_the_first_contents_are_the_default_of_the_model_or_given_values(tmp_path: Path) -> None:
    model = elementwise_model("x, h => y, h_out", "h_out = Add(h, x)  y = Tanh(h_out)")
    first = np.linspace(-1, 1, WIDTH, dtype=np.float32).reshape(1, WIDTH)
    given = compiled(model, {"h": "h_out"}, tmp_path / "given", params={"h": first}).session()
    assert_streams_equal(given, model, {"h": "h_out"}, initial={"h": first})
    with_default = onnx.ModelProto.FromString(model.SerializeToString())
    with_default.graph.initializer.append(numpy_helper.from_array(2 * first, "h"))
    stated = compiled(with_default, {"h": "h_out"}, tmp_path / "stated").session()
    assert_streams_equal(stated, model, {"h": "h_out"}, initial={"h": 2 * first})


def test_a_window_that_is_an_output_in_the_arena(tmp_path: Path) -> None:
    """With `workspace_io` callers read the joined window in the arena, so that it does not lie in the block."""
    model = graph_model("""g (float[3] x, float[6] w) => (float[9] y, float[6] w_out)
      <int64[1] from = {3}, int64[1] to = {9}> { y = Concat <axis = 0> (w, x)  w_out = Slice(y, from, to) }""")
    project = compiled(model, {"w": "w_out"}, tmp_path, target="c", workspace_io=True)
    assert_streams_equal(project.session(), model, {"w": "w_out"})


@pytest.mark.parametrize("values", [np.ones((1, 5), np.float32), np.ones((1, 4)), np.full((1, 4), (1 << 24) + 1)])
def test_first_contents_of_another_type(values: np.ndarray[Any, Any]) -> None:
    model = elementwise_model("x, h => y, h_out", "h_out = Add(h, x)  y = Tanh(h_out)")
    values = np.repeat(values, WIDTH // 4, axis=1)
    with pytest.raises(AotcError, match=r"parameter 'h' is Tensor\[\(1, 24\), float32\], the value is Tensor"):
        aotc.compile(model, state={"h": "h_out"}, params={"h": values}, build=False)


def test_first_contents_of_an_input_that_the_model_does_not_have() -> None:
    model = elementwise_model("x, h => y, h_out", "h_out = Add(h, x)  y = Tanh(h_out)")
    options: dict[str, Any] = {"state": {"h*": "h*_out"}, "params": {"h1": np.zeros((1, WIDTH), np.float32)}}
    with pytest.raises(AotcError, match="first contents for 'h1', and the model has no such input"):
        aotc.compile(model, **options, build=False)


def test_first_contents_of_integers(tmp_path: Path) -> None:
    model = elementwise_model("x, h => y, h_out", "h_out = Add(h, x)  y = Tanh(h_out)")
    session = compiled(model, {"h": "h_out"}, tmp_path, params={"h": [[2] * WIDTH]}, target="c").session()
    first = np.full((1, WIDTH), 2, np.float32)
    assert_streams_equal(session, model, {"h": "h_out"}, initial={"h": first})


def test_first_contents_that_are_negative_zeros_keep_their_bits(tmp_path: Path) -> None:
    """The reciprocal of the state is -inf for the first element and inf for the others."""
    model = elementwise_model("x, h => y, h_out", "y = Reciprocal(h)  h_out = Add(h, x)")
    first = np.zeros((1, WIDTH), np.float32)
    first[0, 0] = -0.0
    project = compiled(model, {"h": "h_out"}, tmp_path, params={"h": first}, target="c", cflags=["-O0"])
    session = project.session()
    x = {"x": np.ones((1, WIDTH), np.float32)}
    (found,) = session.run(None, x, state=session.new_state())
    np.testing.assert_array_equal(found, np.where(np.signbit(first), -np.inf, np.inf))


@pytest.mark.parametrize("accuracy", ["reproducible", "fast"])
def test_identifiers_of_builds_with_other_pairs_or_first_contents_differ(accuracy: str) -> None:
    """The states are a and b. In the second build, each receives the output that the other one had."""
    model = elementwise_model("x, a, b => y, c, d", "c = Add(a, x)  d = Mul(b, x)  s = Sub(a, b)  y = Mul(s, c)")
    rows: list[tuple[dict[str, str], np.ndarray[Any, Any]]] = [
        ({"a": "c", "b": "d"}, np.zeros((1, WIDTH), np.float32)),
        ({"a": "d", "b": "c"}, np.zeros((1, WIDTH), np.float32)),
        ({"a": "c", "b": "d"}, np.full((1, WIDTH), -0.0, np.float32)),
    ]
    found = []
    for state, first in rows:
        options: dict[str, Any] = {"state": state, "params": {"a": first}, "accuracy": accuracy, "target": "c"}
        work = CompileOptions(**options).start_compilation(model)
        layout = state_block_layout(work.scheduled_programs, ", ".join(work.numerics_id_per_target_version))
        assert layout is not None
        found.append((work.numerics_id_per_target_version, layout.hash))
    assert len({numerics for numerics, _ in found}) == 3
    assert len({hash_of_layout for _, hash_of_layout in found}) == 3


def test_the_first_contents_of_parts(tmp_path: Path) -> None:
    model = recurrent_model()
    first = np.random.default_rng(9).normal(size=(2, 1, 16)).astype(np.float32)
    session = compiled(model, {"state": "state_out"}, tmp_path, params={"state": first}).session()
    assert_streams_equal(session, model, {"state": "state_out"}, initial={"state": first})


DIAGNOSTICS = [
    ({"hh": "h_out"}, ["no input 'hh'", "did you mean 'h'"]),
    ({"h": "h_oot"}, ["no output 'h_oot' for the input 'h'", "did you mean 'h_out'"]),
    ({"h": "wide"}, ["input 'h' is Tensor[(1, 4), float32] and output 'wide' is Tensor[(1, 5), float32]",
                     "outputs that fit 'h': 'y', 'h_out'"]),
    ({"*": "*_out*"}, ["'*' and '*_out*' have different numbers of *"]),
    ({"q*": "q*_out"}, ["no input of the model matches 'q*'"]),
    ({"h": "h_out", "*h": "*y"}, ["input 'h' is in two state pairs, with the outputs 'h_out' and 'y'"]),
    ({"x": "h_out", "h": "h_out"}, ["output 'h_out' is in two state pairs, with the inputs 'x' and 'h'"]),
    ({"x": "y", "h": "h_out", "v": "wide"}, ["all outputs of the model are state"]),
]  # fmt: skip


@pytest.mark.parametrize(("state", "texts"), DIAGNOSTICS, ids=[str(k) for k in range(len(DIAGNOSTICS))])
def test_pairs_that_a_model_does_not_have(state: Mapping[str, str], texts: list[str]) -> None:
    model = graph_model("""g (float[1,4] x, float[1,4] h, float[1,5] v)
      => (float[1,4] y, float[1,4] h_out, float[1,5] wide) { h_out = Add(x, h)  y = Tanh(h_out)  wide = Tanh(v) }""")
    with pytest.raises(AotcError) as caught:
        aotc.compile(model, state=state, build=False)
    message = str(caught.value)
    assert caught.value.code == "state"
    for text in texts:
        assert text in message


def test_state_that_grows_along_a_fixed_axis_is_refused() -> None:
    model = graph_model(
        "g (float[1,4] x, float[3,4] p) => (float[4,4] q, float[1,4] y) { q = Concat<axis=0>(p, x) y = Exp(x) }"
    )
    with pytest.raises(AotcError, match="a state grows along one axis, whose length is a size"):
        aotc.compile(model, state={"p": "q"}, build=False)


def test_passes_without_state() -> None:
    model = elementwise_model("x, h => y, h_out", "h_out = Add(h, x)  y = Tanh(h_out)")
    with pytest.raises(AotcError, match="KeepState"):
        aotc.compile(model, state={"h": "h_out"}, build=False, disabled_pass=["KeepState"])


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A session of a model that sums its inputs."""
    model = elementwise_model("x, h => y, h_out", "h_out = Add(h, x)  y = Identity(h_out)")
    return compiled(model, {"h": "h_out"}, tmp_path_factory.mktemp("counter"), target="c").session()


def count(session: Session, state: Any, times: int = 1) -> float:
    one = {"x": np.ones((1, WIDTH), np.float32)}
    for _ in range(times):
        (y,) = session.run(None, one, state=state)
    return float(y[0, 0])


def test_states_are_saved_copied_and_reset(counter: Session) -> None:
    state = counter.new_state()
    assert count(counter, state, 3) == 3
    saved, fork = bytes(state), state.copy()
    assert count(counter, state, 2) == 5 and count(counter, fork) == 4
    assert count(counter, counter.new_state(saved)) == 4
    interleaved = memoryview(np.repeat(np.frombuffer(saved, np.uint8), 2))[::2]  # not contiguous
    assert count(counter, counter.new_state(interleaved)) == 4
    assert count(counter, pickle.loads(pickle.dumps(state))) == 6
    state.reset()
    assert bytes(state) == bytes(counter.new_state()) and count(counter, state) == 1
    assert state.nbytes == len(saved) == counter.state_bytes


def test_bound_arrays_with_a_state(counter: Session) -> None:
    state = counter.new_state()
    binding = counter.bind({"x": np.ones((1, WIDTH), np.float32)}, state=state)
    for _ in range(4):
        binding.run()
    assert binding.outputs["y"][0, 0] == 4 and count(counter, state) == 5


def test_states_that_do_not_fit(counter: Session, tmp_path: Path) -> None:
    x = {"x": np.ones((1, WIDTH), np.float32)}
    other_model = elementwise_model("x, h => y, h_out", "h_out = Sub(h, x)  y = Identity(h_out)")
    other = compiled(other_model, {"h": "h_out"}, tmp_path / "other", target="c").session()
    plain = aotc.compile(elementwise_model("x => y", "y = Exp(x)"), output=tmp_path / "plain", target="c").session()
    with pytest.raises(AotcError, match="needs a state"):
        counter.run(None, x)
    with pytest.raises(AotcError, match="needs a state"):
        counter.bind(x)
    with pytest.raises(AotcError, match="takes no state"):
        plain.run(None, x, state=counter.new_state())
    with pytest.raises(AotcError, match="keeps nothing between runs"):
        plain.new_state()
    with pytest.raises(AotcError, match=r"session\.new_state"):
        counter.run(None, x, state=other.new_state())
    with pytest.raises(AotcError, match="another build"):
        counter.new_state(bytes(other.new_state()))
    with pytest.raises(AotcError, match=r"has [0-9]+ bytes, got 5"):
        counter.new_state(bytes(5))
    with pytest.raises(AotcError, match=r"has [0-9]+ bytes, got 0"):
        counter.new_state(b"")
    with pytest.raises(TypeError, match=r"made by session\.new_state"):
        counter.run(None, x, state=bytes(5))  # type: ignore[arg-type]


def test_a_run_that_fails_leaves_the_state_as_it_was(counter: Session) -> None:
    state = counter.new_state()
    count(counter, state, 3)
    before = bytes(state)
    with pytest.raises(AotcError):
        counter.run(None, {"x": np.ones((1, WIDTH + 1), np.float32)}, state=state)
    assert bytes(state) == before


def test_a_state_is_for_one_run_at_a_time(counter: Session) -> None:
    state = counter.new_state()
    with state.exclusive_use(), pytest.raises(AotcError, match="in use by another thread"):
        count(counter, state)
    states = [counter.new_state() for _ in range(4)]
    threads = [threading.Thread(target=count, args=(counter, s, 200)) for s in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [count(counter, s) for s in states] == [201] * 4


C_PROGRAM = """
#include <stdio.h>
#include <string.h>
#include "net.h"
static float x[NET_INPUT_X_ELEMENTS], y[NET_OUTPUT_Y_ELEMENTS], again[NET_OUTPUT_Y_ELEMENTS];
static unsigned char work[NET_WORKSPACE_BYTES + 64] __attribute__((aligned(64)));
static unsigned char one[NET_STATE_BYTES] __attribute__((aligned(NET_STATE_ALIGNMENT)));
static unsigned char two[NET_STATE_BYTES + 1] __attribute__((aligned(NET_STATE_ALIGNMENT)));
static int step(void *state, float *result) {
  net_inputs in = {x, state};
  net_outputs out = {result};
  int k;
  for (k = 0; k < NET_INPUT_X_ELEMENTS; ++k) x[k] = 0.1f * (float)(k % 5) + x[k] / 2;
  return net_run(&in, &out, work, NULL);
}
int main(void) {
  int k;
  printf("%d %d %d ", step(one, y), net_state_reset(one), net_state_init(NULL));
  printf("%d %d ", net_state_init(two + 1), net_state_init(one));
  for (k = 0; k < 5; ++k)
    if (step(one, y) != 0) return 1;
  memcpy(two, one, sizeof one);
  memset(x, 0, sizeof x);
  if (step(one, y) != 0) return 1;
  memset(x, 0, sizeof x);
  if (step(two, again) != 0) return 1;
  printf("%d %d ", memcmp(y, again, sizeof y), memcmp(one, two, sizeof one));
  two[0] ^= 1;
  printf("%d %d %d ", step(two, y), step(NULL, y), step(two + 1, y));
  printf("%d\\n", net_state_reset(one));
  return 0;
}
"""


@pytest.mark.parametrize("name", ["LSTM", "window"])
def test_a_program_in_c(name: str, tmp_path: Path) -> None:
    model, state = (window_model(), {"cache": "cache_out"}) if name == "window" else (
        recurrent_model(), {"state": "state_out"})  # fmt: skip
    compiled(model, state, tmp_path, target="c", build=False)
    (tmp_path / "app.c").write_text(C_PROGRAM)
    flags = "-g -Wall -Wextra -Wconversion -pedantic -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
    run(["make", "-s", "-j2", "static", f"CFLAGS={flags}"], tmp_path)
    run(
        ["gcc", "-Iinclude", *flags.split(), "app.c", "build/libnet.a", "build/libaotc_rt.a", "-lm", "-o", "app"],
        tmp_path,
    )
    assert run(["./app"], tmp_path).split() == ["21", "21", "1", "2", "0", "0", "0", "21", "1", "2", "0"]
    (tmp_path / "app.cc").write_text('#include "net.h"\nint main() { return net_state_init(nullptr) == AOTC_OK; }\n')
    run(["g++", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Iinclude", "app.cc"], tmp_path)


TRAINED = {
    "dtln_1": ({"input_3": "tf_op_layer_stack_2"}, {}),
    "dtln_2": ({"input_5": "tf_op_layer_stack_5"}, {}),
    "gtcrn_simple": ({"*_cache": "*_cache_out"}, {}),
    "silero_vad_16k_op15": ({"state": "stateN"}, {"batch": 1, "sequence": 576}),
}


@pytest.mark.parametrize("name", TRAINED)
def test_trained_models(name: str, models: Path, tmp_path: Path) -> None:
    """200 frames, and no kernel that copies a state: layers write it, and windows move."""
    state, dims = TRAINED[name]
    path = models / f"{name}.onnx"
    work = CompileOptions(state=state, dims=dims, name=name).start_compilation(path)
    project = work.emit_project_and_build_library(tmp_path)
    pairs = {"conv_cache": "conv_cache_out", "tra_cache": "tra_cache_out", "inter_cache": "inter_cache_out"}
    pairs = pairs if "*_cache" in state else dict(state)
    fixed = {"sr": np.array(16000)} if name.startswith("silero") else {}
    assert_streams_equal(project.session(), path, pairs, frames=200, fixed=fixed)
    for step in work.scheduled_programs[0].steps:
        if any(view.storage.kind == "state" for view in step.args[len(step.kernel.inputs) :]):
            assert step.row_pieces is None and step.kernel.name != "copy", step.kernel.name


def test_verify_compares_several_runs(tmp_path: Path) -> None:
    model = recurrent_model()
    report = verify(model, state={"state": "state_out"}, seeds=1, check_compiler=False)
    assert report.ok and [c.source for c in report.cases[:4]] == [f"seed 0, run {k}" for k in (1, 2, 3, 4)]
    assert {output.name for output in report.cases[0].outputs} == {"y"}
    project = compiled(model, {"state": "state_out"}, tmp_path)
    assert verify(model, state={"state": "state_out"}, seeds=1, project=project.path).ok
    with pytest.raises(AotcError, match="with state cannot be compared one by one"):
        verify(model, state={"state": "state_out"}, bisect=True)


def test_bench_and_run_with_a_state(tmp_path: Path) -> None:
    onnx.save(recurrent_model(), tmp_path / "net.onnx")
    result = benchmark_model(tmp_path / "net.onnx", state={"state": "state_out"}, against=("onnxruntime",), seconds=0.1)
    assert result["verdict"] == "agree" and result["rounds"][0]["contestants"][1]["agrees"]
    project = compiled(tmp_path / "net.onnx", {"state": "state_out"}, tmp_path / "net")
    assert [row["name"] for row in run_library(project.path, repeat=2)["outputs"]] == ["y"]


PROPOSALS = {
    "past_0_key, past_key_values.1.key => present_0_key, present.1.key": [("past_key_values.1.key", "present.1.key"),
                                                                       ("past_0_key", "present_0_key")],
    "h0, c0 => hn, cn": [("h0", "hn"), ("c0", "cn")],
    "state, conv_cache => stateN, conv_cache_out": [("state", "stateN"), ("conv_cache", "conv_cache_out")],
    "prev, input => next, output": [("prev", "next")],
    "input, a => output, b": [],
}  # fmt: skip


@pytest.mark.parametrize("interface", PROPOSALS)
def test_names_suggest_state(interface: str) -> None:
    inputs, outputs = ([name.strip() for name in side.split(",")] for side in interface.split("=>"))
    variables = [relay.var(name, shape=(1, 4)) for name in inputs]
    body = relay.Tuple([relay.tanh(variable) for variable in variables])
    module = IRModule.from_expr(relay.Function(variables, body)).with_attr("output_names", tuple(outputs))
    assert set(propose_state_pairs(module)) == set(PROPOSALS[interface])


def test_inspect_proposes_state(tmp_path: Path) -> None:
    onnx.save(recurrent_model(), tmp_path / "net.onnx")
    assert inspect_model(tmp_path / "net.onnx")["proposed_state"] == [("state", "state_out")]
    assert not inspect_model(tmp_path / "net.onnx", state={"state": "state_out"})["proposed_state"]
    shown = call("inspect", tmp_path / "net.onnx")
    assert "--state state=state_out" in shown.out


#: Inputs and outputs with the lengths of their second axes, and the values of the option `state` that they suggest.
GROWING_PROPOSALS: Final = {
    "past_k0 P, past_v0 P, x 3 => present_k0 P+1, present_v0 P+1, y P": [("past_*", "present_*:512")],
    "past_key_values.0.key n, past_key_values.1.key n => present.0.key m, present.1.key m":
        [("past_key_values.*", "present.*:512")],
    "past_k n, past_v n, past_mask 4 => present_k m, present_v m, y n": [
        ("past_k", "present_k:512"), ("past_v", "present_v:512")],
    "cache n => cache_out m": [("cache", "cache_out:512")],
    "cache n, prev n => cache_out n, next 7": [("prev", "next:7")],
    "a n => b m": [],
}  # fmt: skip


@pytest.mark.parametrize("interface", GROWING_PROPOSALS)
def test_names_and_lengths_suggest_state_that_grows(interface: str) -> None:
    sides = [[pair.split() for pair in side.split(",")] for side in interface.split("=>")]
    inputs, outputs = (
        {name: TensorType((2, int(n) if n.isdigit() else SymDim(n))) for name, n in side} for side in sides
    )
    assert propose_growing_state(ModelInterface(inputs, outputs)) == GROWING_PROPOSALS[interface]


def test_inspect_proposes_state_that_grows(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,1] x, float[1,past] past_k, float[1,past] past_v)
        => (float[1,longer] y, float[1,longer] present_k, float[1,longer] present_v) {
        present_k = Concat <axis = 1> (past_k, x)  present_v = Concat <axis = 1> (past_v, x)
        y = Mul (present_k, present_v) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    assert "--state 'past_*=present_*:512'" in call("inspect", tmp_path / "net.onnx").out
    with_range = inspect_model(tmp_path / "net.onnx", dims={"past": (0, 63)})
    assert with_range["proposed_state"] == [("past_*", "present_*:64")]
    work = CompileOptions(state=dict(with_range["proposed_state"])).start_compilation(tmp_path / "net.onnx")
    assert len(work.state) == 2


def test_instruction_sets_of_a_library_share_states(tmp_path: Path) -> None:
    interface, pairs, body, _ = MODELS["read_late"]
    project = compiled(elementwise_model(interface, body), pairs, tmp_path, target="x86-64-multi")
    isas = [isa for isa, missing in project.session()._library.isas.items() if not missing]
    sessions = [aotc.load(project.built, isa=isa) for isa in isas]
    state, alone = sessions[0].new_state(), sessions[-1].new_state()
    for number in range(6):
        x = {"x": np.random.default_rng(number).normal(size=(1, WIDTH)).astype(np.float32)}
        (mixed,) = sessions[number % len(sessions)].run(None, x, state=state)
        (expected,) = sessions[-1].run(None, x, state=alone)
        np.testing.assert_allclose(mixed, expected, rtol=1e-5, atol=1e-6)


def test_instruction_sets_with_states_of_different_sizes_are_refused() -> None:
    """One of them would write beyond the tensors of the other one."""
    interface, pairs, body, _ = MODELS["in_place"]
    models = [(window_model(), {"cache": "cache_out"}), (elementwise_model(interface, body), pairs)]
    works = [CompileOptions(state=state, target="c").start_compilation(model) for model, state in models]
    with pytest.raises(AotcError, match="keep the state 'cache' in 96 and 384 bytes"):
        state_block_layout([work.scheduled_programs[0] for work in works], "")


def test_integer_inputs_leave_the_state_as_it_is(tmp_path: Path) -> None:
    model = graph_model("""g (float[1,4] x, float[1,4] h) => (float[1,4] y, float[1,4] h_out)
      <float s = {0.1}, int8 z = {0}> {
        xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
        hq = QuantizeLinear(h, s, z)  hd = DequantizeLinear(hq, s, z)
        sum = Add(xd, hd)  sq = QuantizeLinear(sum, s, z)  h_out = DequantizeLinear(sq, s, z)
        positive = Relu(h_out)  yq = QuantizeLinear(positive, s, z)  y = DequantizeLinear(yq, s, z)
      }""")
    session = compiled(model, {"h": "h_out"}, tmp_path, io_dtype="int8", target="c").session()
    state, x = session.new_state(), np.full((1, 4), 3, np.int8)
    assert [int(session.run(None, {"x": x}, state=state)[0][0, 0]) for _ in range(3)] == [3, 6, 9]
    with pytest.raises(AotcError, match="there is no input or output 'h'"):
        compiled(model, {"h": "h_out"}, tmp_path / "named", io_dtype={"h": "int8"})
