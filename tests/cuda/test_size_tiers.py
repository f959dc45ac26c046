# SPDX-License-Identifier: Apache-2.0
"""Tiers of exact sizes on GPUs: one library with kernels for each size, which share weights and memory."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from aotc_codegen.c.parameter_files import ParameterLayout
from aotc_codegen.cuda.cuda_project import print_cuda_kernels_and_source
from aotc_codegen.cuda.launch_schedule import launch_schedule_tables
from onnx import numpy_helper, parser

from aotc.checking.verify import verify
from aotc.driver.compile import CompileOptions
from aotc.driver.cuda_emulation import build_fake_cuda_driver
from aotc.driver.pipeline import CompiledModel
from aotc.ir.diagnostics import AotcError
from aotc.measuring.profile import profile_library
from aotc.tir.plan.memory_plan import storages_of_block_counters
from aotc.tir.plan.program_nodes import steps_in
from aotc.tir.target import get_target
from tests.e2e.test_models_with_size_ranges import encoder, inputs_of, perceptron

ort = pytest.importorskip("onnxruntime")
SANITIZED = "-O1 -g -Wall -Wextra -Wconversion -pedantic -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
HEADER = '<ir_version: 8, opset_import: ["" : 17]> '


def compiled(model: onnx.ModelProto, dims: Mapping[str, Any], **options: Any) -> CompiledModel:
    return CompileOptions(target="cuda", emulated=True, dims=dims, name="net", **options).compile_model(model)


@pytest.mark.parametrize(
    ("make", "dims", "cases", "refused"),
    [
        (perceptron, {"batch": [8, 1, 20]}, [(8,), (1,), (20,), (8,)], [(0,), (2,), (21,)]),
        (encoder, {"batch": [1, 3], "seq": [5, 8]}, [(1, 5), (3, 5), (1, 8), (3, 8)], [(2, 5), (1, 6)]),
    ],
    ids=["perceptron", "encoder"],
)
def test_each_tier_is_the_model_of_its_size(
    make: Any, dims: Mapping[str, list[int]], cases: Sequence[Sequence[int]], refused: Sequence[Sequence[int]]
) -> None:
    """Results are those of ONNX Runtime; weights are stored once, and the typical tier has the bits of a model of its
    size.
    """
    proto = make()
    model = compiled(proto, dims)
    session, reference = model.session(), ort.InferenceSession(proto.SerializeToString())
    for seed, sizes in enumerate(cases):
        arrays = inputs_of(session, dict(zip(dims, sizes, strict=True)), seed)
        results = session.run(None, arrays)
        for result, expected in zip(results, reference.run(None, arrays), strict=True):
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        binding = session.bind(arrays)
        binding.run()
        assert all(map(np.array_equal, binding.outputs.values(), results))
        if all(size == max(dims[name]) for name, size in zip(dims, sizes, strict=True)):
            one = compiled(proto, dict(zip(dims, sizes, strict=True)))
            assert all(map(np.array_equal, one.session().run(None, arrays), results))
            assert one.metadata["weights_bytes"] == model.metadata["weights_bytes"]
    for sizes in refused:
        with pytest.raises(AotcError, match=r"the inputs have the size .*, which is not .* or "):
            session.run(None, inputs_of(session, dict(zip(dims, sizes, strict=True)), 0))


def test_tensors_on_the_device_state_sizes() -> None:
    session = compiled(perceptron(), {"batch": [1, 4]}).session()
    assert session.device is not None
    for batch in (4, 1):
        x = np.random.default_rng(batch).standard_normal((batch, 16)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        (there,) = session.run(None, {"x": x}, outputs="device")
        assert there.shape == (batch, 5)
        np.testing.assert_array_equal(there.numpy(), expected)
        driver = session.device.cuda_driver
        given = driver.allocate_tensor(x.shape, x.dtype)
        driver("cuMemcpy", *map(ctypes.c_uint64, (given.pointer, x.ctypes.data)), ctypes.c_size_t(x.nbytes))
        np.testing.assert_array_equal(session.run(None, {"x": given})[0], expected)
    with pytest.raises(AotcError, match=r"batch = 3, which is not 1 or 4"):
        session.run(None, {"x": driver.allocate_tensor((3, 16), x.dtype)})


APP = """\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "net.h"

int main(void) {
  aotc_cuda *opened;
  aotc_cuda_session *session;
  char message[256];
  int status = aotc_cuda_open(net_program(), 0, &opened, message, sizeof message);
  if (status == AOTC_OK) status = net_session_open(opened, &session);
  if (status != AOTC_OK) return 1;
  for (int64_t batch = -1; batch <= 9; ++batch) {
    const size_t rows = batch < 1 ? 1 : (size_t)batch;
    float *x = calloc(rows * 16, sizeof(float)), *y = malloc(rows * 5 * sizeof(float));
    net_inputs inputs = {x, batch};
    net_outputs outputs = {y, {-1, -1}};
    float sum = 0;
    memset(y, 0x5A, rows * 5 * sizeof(float));
    status = net_run(&inputs, &outputs, session, NULL);
    for (size_t k = 0; k < rows * 5; ++k) sum += y[k];
    if (status == AOTC_OK) printf("%d: %d rows, sum %.3f\\n", (int)batch, (int)outputs.y_shape[0], (double)sum);
    else if ((status & 255) != AOTC_ERROR_DIMS || outputs.y_shape[0] != -1 || *(unsigned char *)y != 0x5A) return 2;
    else printf("%d: %s\\n", (int)batch, net_check(status));
    if (net_workspace_bytes(&inputs) != 0 || net_shapes(&inputs, &outputs) != status) return 3;
    free(x);
    free(y);
  }
  net_session_close(session);
  aotc_cuda_close(opened);
  return 0;
}
"""


@pytest.mark.always
def test_tiers_in_c(tmp_path: Path) -> None:
    """A run copies the tensors of its size, and one with other sizes writes nothing."""
    folder = compiled(perceptron(), {"batch": [1, 4, 8]}, output=tmp_path / "net", build=False).path
    (tmp_path / "app.c").write_text(APP, encoding="utf-8")
    sources = [tmp_path / "app.c", *folder.glob("src/*.[cS]"), *folder.glob("runtime/*.c")]
    command = ["gcc", *SANITIZED.split(), f"-I{folder}/include", *sources, "-ldl", "-lm", "-o", tmp_path / "app"]
    subprocess.run([*map(str, command)], check=True, cwd=folder)
    settings = {"AOTC_CUDA_DRIVER": str(build_fake_cuda_driver()), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([tmp_path / "app"], check=True, capture_output=True, text=True, env=os.environ | settings)
    lines = done.stdout.splitlines()
    assert [line for line in lines if "rows" in line] == [f"{n}: {n} rows, sum {n}.000" for n in (1, 4, 8)]
    assert lines[3] == "2: the size batch is 1, 4 or 8" and len(lines) == 11


def test_the_example_program_runs_typical_sizes(tmp_path: Path) -> None:
    folder = compiled(perceptron(), {"batch": [1, 4]}, output=tmp_path / "net", build=False).path
    subprocess.run(["make", "-s", "CFLAGS=-O1 -Wall -Wextra -Werror"], check=True, cwd=folder)
    np.ones((4, 16), np.float32).tofile(tmp_path / "x")
    environment = {**os.environ, "AOTC_CUDA_DRIVER": str(build_fake_cuda_driver())}
    command = [folder / "build/net_example", tmp_path / "x", tmp_path / "y"]
    subprocess.run([*map(str, command)], check=True, env=environment)
    np.testing.assert_allclose(np.fromfile(tmp_path / "y", np.float32).reshape(4, 5).sum(1), 1, rtol=1e-5)


def normalized_product() -> onnx.ModelProto:
    """A product and a normalization of its rows, which the last block of some computes for 128 rows."""
    text = "net (float[rows, 96] x) => (float[rows, 96] z) "
    text += "{ p = MatMul(x, w) y = Add(p, x) z = LayerNormalization(y, g, g) }"
    made = parser.parse_model(HEADER + text)
    rng = np.random.default_rng(9)
    for name, shape in (("w", (96, 96)), ("g", (96,))):
        made.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return made


def test_counters_of_blocks_survive_runs_of_other_tiers() -> None:
    """They are zero between runs, so that no temporary of any tier has their memory."""
    options = CompileOptions(target="cuda", emulated=True, dims={"rows": [128, 160, 5]})
    compilation = options.start_compilation(normalized_product())
    (program,) = compilation.scheduled_programs
    counters = storages_of_block_counters(program)
    assert len(counters) >= 2
    places = {s: range(at, at + s.nbytes) for s, at in program.plan.offsets.items()}
    for counter in counters:
        mine = places[counter]
        assert mine.stop <= program.plan.peak
        others = (place for storage, place in places.items() if storage is not counter)
        assert all(place.stop <= mine.start or mine.stop <= place.start for place in others)
    session = compilation.emit_project_and_build_library().session()
    found: dict[int, np.ndarray[Any, Any]] = {}
    for rows in (128, 160, 5, 160, 128, 5, 128):
        x = np.random.default_rng(rows).standard_normal((rows, 96)).astype(np.float32)
        (z,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(z, found.setdefault(rows, z))


def test_steps_wait_for_steps_of_their_tier() -> None:
    """Edges stay inside of a tier, though all tiers use the same memory."""
    chosen = CompileOptions(target="cuda", dims={"rows": [128, 5]})
    (program,) = chosen.start_compilation(normalized_product()).scheduled_programs
    printed, _ = print_cuda_kernels_and_source(program, get_target("cuda"))
    tables = launch_schedule_tables(program, printed, ParameterLayout("net", program.constants, 0))
    counts = [len(list(steps_in(tier.body))) for tier in program.tiers]
    firsts = [0, counts[0]]
    assert [row.strip("{},").split(", ")[:2] for row in tables.tier] == [
        [str(a), str(b)] for a, b in zip(firsts, counts, strict=True)
    ]
    for number, row in enumerate(tables.step):
        first_edge, edges = map(int, row.strip("{},").split(", ")[4:])
        begin = firsts[number >= firsts[1]]
        assert all(begin <= e < number for e in tables.edge[first_edge : first_edge + edges])


def test_profiles_have_the_steps_of_the_tier_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_CUDA_DRIVER", str(build_fake_cuda_driver()))
    model = compiled(normalized_product(), {"rows": [5, 128]}, output=tmp_path / "net")
    tiers = model.metadata["tiers"]
    assert [tier["dims"] for tier in tiers] == [{"rows": "5"}, {"rows": "128"}]
    assert model.library is not None
    steps = profile_library(model.library, repeat=2)["steps"]
    assert [row["step"] for row in steps] == [*range(tiers[1]["first_step"], tiers[1]["end_step"])]


def test_verification_draws_the_size_of_each_tier() -> None:
    report = verify(perceptron(), dims={"batch": [3, 1]}, target="cuda", seeds=1)
    assert report.ok
    assert [case.source.removesuffix(", seed 0") for case in report.cases][:2] == ["batch 3", "batch 1"]


@pytest.mark.parametrize(
    ("dims", "text", "hint"),
    [
        ({"batch": [1, (2, 8)]}, 'each tier of code for cuda is one size.* dims={"batch": "1,2..8"}', "[1, 2, 8]"),
        ({"batch": (1, 8)}, "no sizes that vary at run time within a range: batch 1..8", "[1, 8]"),
    ],
)
def test_ranges_are_refused_in_terms_of_the_option(dims: Mapping[str, Any], text: str, hint: str) -> None:
    with pytest.raises(AotcError, match=text) as caught:
        _ = CompileOptions(target="cuda", dims=dims).start_compilation(perceptron()).scheduled_programs
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "target" and f'dims={{"batch": {hint}}}' in diagnostic.hint


def test_sizes_in_values_are_refused_by_the_input() -> None:
    model = parser.parse_model(HEADER + "net (float[2, 6] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }")
    with pytest.raises(AotcError, match="no sizes that are values of inputs, as those of 's' are"):
        _ = CompileOptions(target="cuda").start_compilation(model).scheduled_programs
