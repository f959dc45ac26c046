# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs in the arena, outputs over inputs, and reordered steps, in compiled C."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest

from aotc.driver.compile import CompileOptions, compile
from aotc.ir import AotcError
from aotc.tir import C, Threads
from aotc.tir.passes import ProgramVerifier
from tests.conftest import ROOT

DIGITS = ROOT / "examples" / "digits"
MAIN = """
#include <string.h>
#include <stdio.h>
#include "net.h"
static unsigned char workspace[NET_WORKSPACE_BYTES + NET_WORKSPACE_ALIGNMENT];
static unsigned char kept[NET_INPUT_%(input)s_BYTES], other[NET_OUTPUT_%(output)s_BYTES];
int main(void) {
  size_t past = (size_t)workspace %% NET_WORKSPACE_ALIGNMENT;
  unsigned char *arena = workspace + (past ? NET_WORKSPACE_ALIGNMENT - past : 0);
  net_inputs in;
  net_outputs out;
  for (size_t k = 0; k < sizeof kept; ++k) kept[k] = (unsigned char)(k * 7 %% 16);
  in.%(in)s = (const void *)kept;
  out.%(out)s = (void *)other;
  if (net_run(&in, &out, arena, NULL) != AOTC_OK) return 1;
  memcpy(arena + NET_INPUT_%(input)s_OFFSET, kept, sizeof kept);
  in.%(in)s = (const void *)(arena + NET_INPUT_%(input)s_OFFSET);
  out.%(out)s = (void *)(arena + NET_OUTPUT_%(output)s_OFFSET);
  if (net_run(&in, &out, arena, NULL) != AOTC_OK) return 2;
  if (memcmp(other, arena + NET_OUTPUT_%(output)s_OFFSET, sizeof other) != 0) return 3;
  puts("equal");
  return 0;
}
"""


@pytest.mark.parametrize("model", ["digits.onnx", "digits_int8.onnx"])
def test_callers_may_keep_tensors_in_the_workspace(model: str, tmp_path: Path) -> None:
    config = {"compile.overlap": True, "compile.reorder": True}
    options: dict[str, Any] = {"target": "c", "name": "net", "cache": False}
    plain = compile(DIGITS / model, **options)
    made = compile(DIGITS / model, output=tmp_path / "net", config=config, workspace_io=True, **options)
    assert made.metadata["footprint"]["io"] == 0
    whole = [m.metadata["footprint"]["arena"] + m.metadata["footprint"]["io"] for m in (plain, made)]
    assert whole[1] < whole[0]
    (taken,) = plain.session().get_inputs()
    data = np.random.default_rng(0).uniform(0, 16, taken.shape).astype(np.float32)
    results = [m.session().run(None, {taken.name: data})[0] for m in (plain, made)]
    assert results[0].tobytes() == results[1].tobytes()
    (source,), (target,) = made.metadata["inputs"], made.metadata["outputs"]
    names = {"in": source["c_name"], "out": target["c_name"]}
    text = MAIN % {**names, "input": names["in"].upper(), "output": names["out"].upper()}
    (tmp_path / "main.c").write_text(text)
    files = [*made.path.glob("src/net*.c"), *made.path.glob("src/*.S"), made.path / "runtime" / "aotc_rt.c"]
    flags = [
        "-std=c99",
        "-O2",
        "-ffp-contract=off",
        "-fsanitize=address",
        f"-I{made.path}/include",
        f"-I{made.path}/src",
    ]
    run(["gcc", *flags, tmp_path / "main.c", *files, "-lm", "-o", tmp_path / "main"], check=True)
    assert run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout == "equal\n"


def test_where_results_lie_has_no_part_in_the_name_of_bits() -> None:
    work = [
        CompileOptions(target="c", build=False, config={"compile.overlap": on}).start_compilation(
            DIGITS / "digits.onnx"
        )
        for on in (False, True)
    ]
    assert work[1].scheduled_programs[0].plan.peak < work[0].scheduled_programs[0].plan.peak
    assert any(kernel.overlaps for kernel in work[1].scheduled_programs[0].distinct_kernels)
    assert work[0].numerics_id_per_target_version == work[1].numerics_id_per_target_version


def test_kernels_of_one_thread_overlap_among_those_of_several() -> None:
    """Kernels that threads share write beside their inputs, others over them; the results are equal."""
    machine = replace(C, threads=Threads(barrier_ns=1, macs_per_ns=0.01))
    peaks, results = [], set()
    for on in (False, True):
        config = {"compile.overlap": on, "compile.reorder": on}
        options = CompileOptions(target=machine, config=config, instruments=[ProgramVerifier()], cache=False)
        work = options.start_compilation(DIGITS / "digits.onnx")
        (program,) = work.scheduled_programs
        assert {k.team for k in program.distinct_kernels} == {True, False} and not any(
            k.team and k.overlaps for k in program.distinct_kernels
        )
        peaks.append(program.plan.peak)
        model = work.emit_project_and_build_library()
        for threads in (1, 2):
            session = model.session(threads=threads)
            (taken,) = session.get_inputs()
            data = np.random.default_rng(0).uniform(0, 16, taken.shape).astype(np.float32)
            results.add(session.run(None, {taken.name: data})[0].tobytes())
    assert peaks[1] < peaks[0] and len(results) == 1


@pytest.mark.parametrize("target", ["x86-64-multi", "cuda"])
def test_several_arenas_have_no_one_place(target: str) -> None:
    """Each instruction set has its own plan of memory, and a header has one place for each tensor."""
    with pytest.raises(AotcError, match="no one place") as caught:
        compile(DIGITS / "digits.onnx", target=target, build=False, workspace_io=True)
    assert caught.value.code == "target"


def test_pointers_that_may_meet_are_not_restrict(tmp_path: Path) -> None:
    made = compile(DIGITS / "digits_int8.onnx", target="c", build=False, config={"compile.overlap": True})
    plain = compile(DIGITS / "digits_int8.onnx", target="c", build=False)
    texts = [(m.path / "src" / f"{m.metadata['name']}_internal.h").read_text() for m in (made, plain)]
    free = [len(re.findall(r"\*(?!AOTC_RESTRICT)\w+[,)]", text)) for text in texts]
    assert free[0] > free[1] == 0


def test_small_machines_reorder_and_overlap_unless_told() -> None:
    def peak(**options: Any) -> int:
        return (
            CompileOptions(build=False, **options)
            .start_compilation(DIGITS / "digits_int8.onnx")
            .scheduled_programs[0]
            .plan.peak
        )

    off = {"compile.overlap": False, "compile.reorder": False}
    assert peak(target="cortex-m0plus") < peak(target="cortex-m0plus", config=off)
    assert peak(target="cortex-m4") <= peak(target="cortex-m4", config=off)
