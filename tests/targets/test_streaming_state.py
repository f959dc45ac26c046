# SPDX-License-Identifier: Apache-2.0
"""Models that keep state between runs, as firmware in QEMU: results of all frames, and states saved by memcpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import aotc
from tests.codegen.batch import Array
from tests.e2e.test_state import recurrent_model, window_model
from tests.targets.firmware import board

FRAMES = 6

MAIN = """
#include <string.h>
#include "board.h"
#include "net.h"
static unsigned char work[NET_WORKSPACE_BYTES + 8] __attribute__((aligned(NET_WORKSPACE_ALIGNMENT)));
static unsigned char state[NET_STATE_BYTES] __attribute__((aligned(NET_STATE_ALIGNMENT)));
static unsigned char saved[NET_STATE_BYTES] __attribute__((aligned(NET_STATE_ALIGNMENT)));
static float y[NET_OUTPUT_Y_ELEMENTS], again[NET_OUTPUT_Y_ELEMENTS];
static const float frames[FRAMES][NET_INPUT_X_ELEMENTS] = {VALUES};
int main(void) {
  const net_outputs out = {y}, other = {again};
  int k;
  net_inputs in = {frames[0], state};
  if (net_run(&in, &out, work, NULL) != AOTC_ERROR_STATE) return 100;
  if (net_state_reset(state) != AOTC_ERROR_STATE || net_state_init(state) != AOTC_OK) return 101;
  for (k = 0; k < FRAMES; ++k) {
    in.x = frames[k];
    memcpy(saved, state, sizeof state);
    if (net_run(&in, &out, work, NULL) != AOTC_OK) return 102;
    print_bytes((unsigned char *)y, sizeof y);
    in.state = saved;
    if (net_run(&in, &other, work, NULL) != AOTC_OK) return 103;
    if (memcmp(y, again, sizeof y) != 0 || memcmp(state, saved, sizeof state) != 0) return 104;
    in.state = state;
  }
  return net_state_reset(state);
}
"""

MODELS = {"recurrent": (recurrent_model, "state"), "window": (window_model, "cache")}


def frames_of(model: onnx.ModelProto) -> list[Array]:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(5)
    return [rng.normal(0, 0.3, shape).astype(np.float32) for _ in range(FRAMES)]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ["cortex-m4", "cortex-m55"])
def test_frames_are_those_of_the_host(name: str, kind: str, tmp_path: Path) -> None:
    place, (make_model, past) = board(name), MODELS[kind]
    model, state = make_model(), {past: f"{past}_out"}
    frames = frames_of(model)
    project = aotc.compile(model, output=tmp_path / "net", name="net", target=name, state=state, build=False)
    values = ", ".join("{" + ", ".join(f"{float(v)!r}f" for v in frame.reshape(-1)) + "}" for frame in frames)
    main = MAIN.replace("FRAMES", str(FRAMES)).replace("VALUES", values)
    printed = place.start(place.link(place.make(project.path), main, tmp_path)).split()
    session = aotc.compile(model, output=tmp_path / "host", target="c", state=state).session()
    kept = session.new_state()
    for frame, row in zip(frames, printed, strict=True):
        (expected,) = session.run(None, {"x": frame}, state=kept)
        found = np.frombuffer(bytes.fromhex(row), np.float32).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert project.metadata["footprint"]["state"] == project.metadata["state"]["bytes"] > 0


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
