# SPDX-License-Identifier: Apache-2.0
"""Models that keep state between runs, as firmware in QEMU: results of all frames, and states saved by memcpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import aotc
from tests.codegen.batch import Array
from tests.e2e.projects import ROOT, run
from tests.e2e.test_growing_state import TOKENS, decoder
from tests.e2e.test_state import graph_model, recurrent_model, window_model
from tests.targets.firmware import FILES, board

FRAMES = 6

MAIN = """
#include <string.h>
#include "board.h"
#include "net.h"
enum { FRAMES = @FRAMES, X = NET_INPUT_@X_ELEMENTS, Y = NET_OUTPUT_@Y_ELEMENTS };
static unsigned char work[NET_WORKSPACE_BYTES + 8] __attribute__((aligned(NET_WORKSPACE_ALIGNMENT)));
static unsigned char state[NET_STATE_BYTES] __attribute__((aligned(NET_STATE_ALIGNMENT)));
static unsigned char saved[NET_STATE_BYTES] __attribute__((aligned(NET_STATE_ALIGNMENT)));
static float y[Y], again[Y], third[Y];
static const @TYPE frames[FRAMES][X] = {@VALUES};
int main(void) {
  net_outputs out = {y}, other = {again};
  int k;
  net_inputs in = {frames[0], state};
  if (net_run(&in, &out, work, NULL) != AOTC_ERROR_STATE) return 100;
  if (net_state_reset(state) != AOTC_ERROR_STATE || net_state_init(state) != AOTC_OK) return 101;
  for (k = 0; k < FRAMES; ++k) {
    in.@x = frames[k];
    memcpy(saved, state, sizeof state);
    if (net_run(&in, &out, work, NULL) != AOTC_OK) return 102;
    print_bytes((unsigned char *)y, sizeof y);
    in.state = saved;
    if (net_run(&in, &other, work, NULL) != AOTC_OK) return 103;
    if (memcmp(y, again, sizeof y) != 0 || memcmp(state, saved, sizeof state) != 0) return 104;
    in.state = state;
    if (k == 2) memcpy(third, y, sizeof y);
  }
#ifdef NET_STATE_CAPACITY
  if (FRAMES != NET_STATE_CAPACITY || net_state_length(state) != FRAMES) return 105;
  if ((net_run(&in, &out, work, NULL) & 255) != AOTC_ERROR_CAPACITY) return 106;
  if (memcmp(state, saved, sizeof state) != 0 || net_state_truncate(state, 2) != AOTC_OK) return 107;
  in.@x = frames[2];
  if (net_run(&in, &out, work, NULL) != AOTC_OK || memcmp(y, third, sizeof y) != 0) return 108;
#else
  (void)third;
#endif
  return net_state_reset(state);
}
"""


def spotter_model() -> onnx.ModelProto:
    """A keyword spotter: a convolution over the last 4 frames of 10 coefficients, a GRU, and scores of 4 words."""
    graph = """g (float[1,1,1,10] x, float[1,1,3,10] cache, float[1,1,16] h)
      => (float[1,4] y, float[1,1,3,10] cache_out, float[1,1,16] h_out)
      <int64[1] one = {1}, int64[1] end = {100}, int64[1] along = {2}, int64[3] row = {1,1,64},
       int64[2] flat = {1,16}> {
        window = Concat <axis = 2> (cache, x)
        cache_out = Slice (window, one, end, along)
        features = Conv <kernel_shape = [4, 3]> (window, taps)
        positive = Relu (features)
        step = Reshape (positive, row)
        all, h_out = GRU <hidden_size = 16> (step, w, r, , , h)
        hidden = Reshape (h_out, flat)
        sums = MatMul (hidden, words)
        y = Softmax (sums)
      }"""
    model, rng = graph_model(graph), np.random.default_rng(6)
    for name, shape in {"taps": (8, 1, 4, 3), "w": (1, 48, 64), "r": (1, 48, 16), "words": (16, 4)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name))
    return model


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, str]]] = {
    "recurrent": (recurrent_model, {"state": "state_out"}),
    "window": (window_model, {"cache": "cache_out"}),
    "spotter": (spotter_model, {"cache": "cache_out", "h": "h_out"}),
    "decoder": (lambda: decoder(layers=1), {"past_*": f"present_*:{FRAMES}"}),
}


def frames_of(model: onnx.ModelProto) -> list[Array]:
    """Values of the first input: numbers of tokens, or frames of a signal."""
    kind, rng = model.graph.input[0].type.tensor_type, np.random.default_rng(5)
    shape = [d.dim_value for d in kind.shape.dim]
    if kind.elem_type == onnx.TensorProto.INT64:
        return [rng.integers(0, TOKENS, shape) for _ in range(FRAMES)]
    return [rng.normal(0, 0.3, shape).astype(np.float32) for _ in range(FRAMES)]


def program_of(model: onnx.ModelProto, frames: list[Array]) -> str:
    """A program that prints the first output of each frame."""
    x, y = model.graph.input[0].name, model.graph.output[0].name
    integers = frames[0].dtype.kind == "i"
    rows = [", ".join(str(v) if integers else f"{float(v)!r}f" for v in frame.reshape(-1)) for frame in frames]
    words = {"FRAMES": str(FRAMES), "TYPE": "int64_t" if integers else "float"}
    words |= {"VALUES": ", ".join(f"{{{row}}}" for row in rows), "X": x.upper(), "Y": y.upper(), "x": x}
    return re.sub(r"@(FRAMES|TYPE|VALUES|[XYx])(?=\b|_)", lambda match: words[match[1]], MAIN)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ["cortex-m4", "cortex-m55"])
def test_frames_are_those_of_the_host(name: str, kind: str, tmp_path: Path) -> None:
    place, (make_model, state) = board(name), MODELS[kind]
    model = make_model()
    frames = frames_of(model)
    project = aotc.compile(model, output=tmp_path / "net", name="net", target=name, state=state, build=False)
    printed = place.start(place.link(place.make(project.path), program_of(model, frames), tmp_path)).split()
    session = aotc.compile(model, output=tmp_path / "host", target="c", state=state, cflags=["-O0"]).session()
    kept = session.new_state()
    for frame, row in zip(frames, printed, strict=True):
        (expected,) = session.run(None, {model.graph.input[0].name: frame}, state=kept)
        found = np.frombuffer(bytes.fromhex(row), np.float32).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert project.metadata["footprint"]["state"] == project.metadata["state"]["bytes"] > 0


REGIONS = """MEMORY
{
  near (rx) : ORIGIN = 0x00300000, LENGTH = 512K
  fast (rw) : ORIGIN = 0x20300000, LENGTH = 64K
  external (r) : ORIGIN = 0x21000000, LENGTH = 1M"""
SECTIONS = """SECTIONS
{
  .near : { *(.text.net_* .text.aotc_*) } > near
  .fast (NOLOAD) : { *(.fast) } > fast
  .weights : { INCLUDE net_weights.ld } > external"""


def test_code_parameters_arena_and_state_are_in_regions_of_the_linker_script(tmp_path: Path) -> None:
    """By the linker script that the page on microcontrollers shows."""
    page = (ROOT / "docs" / "targets" / "microcontrollers.md").read_text(encoding="utf-8")
    assert SECTIONS.partition("{\n")[2] in page
    place, (make_model, state) = board("cortex-m4"), MODELS["recurrent"]
    model = make_model()
    frames = frames_of(model)
    project = aotc.compile(model, output=tmp_path / "net", name="net", target="cortex-m4", state=state, build=False)
    library = place.make(project.path)
    script = (FILES / "board.ld").read_text(encoding="utf-8")
    script = script.replace("MEMORY\n{", REGIONS).replace("SECTIONS\n{", SECTIONS)
    (tmp_path / "regions.ld").write_text(script, encoding="utf-8")
    main = program_of(model, frames)
    placed = re.sub(r"(_ALIGNMENT\))\)\);", r'\1, section(".fast")));', main)
    assert placed.count('section(".fast")') == 3
    program = place.link(library, placed, tmp_path, f"-L{library.parents[1]}", script=tmp_path / "regions.ld")
    printed = place.start(program)
    symbols = {
        name: int(address, 16)
        for address, _, name in map(str.split, run([place.tool_prefix + "nm", program], tmp_path).splitlines())
    }
    assert all(symbols[name] >> 16 == 0x2030 for name in ("work", "state", "saved"))
    assert symbols["net_params"] == 0x21000000
    functions = [name for name in symbols if name.startswith("net_") and name != "net_params"]
    assert len(functions) > 3 and all(symbols[name] >> 20 == 0x003 for name in functions), functions
    assert printed == place.start(place.link(library, main, tmp_path))


@pytest.mark.parametrize("single_file", [False, True])
def test_the_self_test_is_the_first_run(single_file: bool, tmp_path: Path) -> None:
    place, model = board("cortex-m4"), recurrent_model()
    first = np.random.default_rng(9).normal(size=(2, 1, 16)).astype(np.float32)
    options = {"params": {"state": first}, "selftest": True, "single_file": single_file, "build": False}
    project = aotc.compile(
        model, output=tmp_path / "net", name="net", target="cortex-m4", state={"state": "state_out"}, **options
    )
    main = """#include "board.h"
#include "net.h"
static unsigned char work[NET_WORKSPACE_BYTES + 8] __attribute__((aligned(NET_WORKSPACE_ALIGNMENT)));
static float y[NET_OUTPUT_Y_ELEMENTS];
int main(void) {
  const net_outputs out = {y};
  return net_selftest(&out, work);
}
"""
    place.start(place.link(place.make(project.path), main, tmp_path))
