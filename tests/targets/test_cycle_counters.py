# SPDX-License-Identifier: Apache-2.0
"""The example that counts the cycles of each step on a Cortex-M, by the timer that QEMU emulates."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import aotc
from tests.e2e.projects import DIGITS
from tests.targets.firmware import FILES, board

MAIN = """
#include "board.h"
#include "cycles.h"
#include "net.h"
static unsigned char workspace[NET_WORKSPACE_BYTES] __attribute__((aligned(NET_WORKSPACE_ALIGNMENT)));
static float image[NET_INPUT_IMAGE_ELEMENTS], scores[NET_OUTPUT_SCORES_ELEMENTS];
int main(void) {
  const net_inputs in = {image};
  const net_outputs out = {scores};
  int runs;
  if (cycles_start() != 0) return 1; /* QEMU has no DWT */
  for (runs = 0; runs < 2; ++runs)
    if (net_run(&in, &out, workspace, NULL) != AOTC_OK) return 2;
  print_bytes(cycles_of_step, sizeof cycles_of_step);
  return 0;
}
"""


@pytest.mark.parametrize("name", ["cortex-m0plus", "cortex-m4"])
def test_each_step_has_its_cycles(name: str, tmp_path: Path) -> None:
    here = board(name)
    model = aotc.compile(DIGITS, output=tmp_path / "net", name="net", target=name, build=False)
    hooks = f"-include {FILES / 'cycles.h'} -D'AOTC_STEP(k)=cycles_step(k)'"
    library = here.make(model.path, hooks)
    program = here.link(library, f'#include "{FILES / "cycles.c"}"\n{MAIN}', tmp_path)
    # instructions take a nanosecond each: counts are those of the emulated clock
    cycles = np.frombuffer(bytes.fromhex(here.start(program, "-icount", "shift=0").strip()), np.uint32)
    source = (model.path / "src" / "net.c").read_text(encoding="utf-8")
    steps = len(re.findall(r"^  STEP\(\d+\) net_", source, re.MULTILINE))
    assert steps > 2
    assert (cycles[:steps] > 0).all() and not cycles[steps:].any()
    heaviest = re.findall(r"STEP\((\d+)\) net_conv2d", source)[-1]
    assert cycles[int(heaviest)] > cycles[steps - 1]
