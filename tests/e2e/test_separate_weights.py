# SPDX-License-Identifier: Apache-2.0
"""Parameters that are a file of their own: equal bits, exchange of the file, and files that are refused."""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import aotc
from aotc import relay
from aotc.driver.pipeline import CompiledModel
from aotc.ir import AotcError
from aotc.packaging.write_package import package_project
from tests.e2e.projects import affine, run
from tests.e2e.test_state import recurrent_model
from tests.targets.firmware import board

WARNINGS = "-Wall -Wextra -Wconversion -pedantic -Werror"
ADDRESS = 0x20200000


def compiled(model: object, folder: Path, **options: object) -> CompiledModel:
    """A project with its library, in which kernels are not optimized."""
    facts = {"name": "net", "target": "c", "cflags": ["-O0"], **options}
    return aotc.compile(model, output=folder, **facts)  # type: ignore[arg-type]


def clipped(seed: int, limit: float) -> aotc.IRModule:
    """A matrix product, whose weights are drawn, and a clip, whose bound is a number in the code."""
    weights = np.random.default_rng(seed).normal(size=(4, 8)).astype(np.float32)
    product = relay.nn.dense(x := relay.var("x", shape=(1, 8)), relay.const(weights))
    return aotc.IRModule.from_expr(relay.Function([x], relay.clip(product, 0.0, limit)))


def test_the_file_of_an_equal_structure_replaces_another(tmp_path: Path) -> None:
    """Also after pickling, in bindings, and with threads."""
    x = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
    options = {"target": "x86-64-v3", "threads": True}
    first, second = (
        compiled(affine(64, seed), tmp_path / str(seed), separate_weights=True, **options) for seed in (0, 1)
    )
    expected = [
        compiled(affine(64, seed), tmp_path / f"linked{seed}", **options).session().run(None, {"x": x})[0]
        for seed in (0, 1)
    ]
    assert not np.array_equal(*expected)
    files = [made.path / made.metadata["weights"]["file"] for made in (first, second)]
    for weights, values in ((None, expected[0]), *zip(files, expected, strict=True)):
        for threads in (1, 2):
            session = aotc.load(first.path, weights=weights, threads=threads)
            assert [info.name for info in session.get_inputs()] == ["x"]
            for one in (session, pickle.loads(pickle.dumps(session))):
                np.testing.assert_array_equal(one.run(None, {"x": x})[0], values)
            binding = session.bind({"x": x})
            binding.run()
            np.testing.assert_array_equal(binding.outputs["y"], values)
    # two sessions of one library do not share parameters
    sessions = [aotc.load(first.path, weights=file) for file in files]
    for session, values in zip(sessions, expected, strict=True):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], values)
    files[0].unlink()
    np.testing.assert_array_equal(sessions[0].run(None, {"x": x})[0], expected[0])
    with pytest.raises(AotcError, match="there is no file net_weights") as caught:
        aotc.load(first.path)
    assert caught.value.code == "weights"
    with pytest.raises(AotcError, match="contains its parameters"):
        aotc.load(tmp_path / "linked0", weights=files[1])


def damage_value(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def cut_short(data: bytes) -> bytes:
    return data[:-64]


def add_byte(data: bytes) -> bytes:
    return data + b"\0"


def change_format(data: bytes) -> bytes:
    return data[:7] + b"\2" + data[8:]


def forge_checksum(data: bytes) -> bytes:
    """The identifier of other code, with a right checksum of the parameters."""
    return data[:8] + bytes(8) + data[16:24] + struct.pack("<I", zlib.crc32(data[64:])) + data[28:]


def empty(data: bytes) -> bytes:
    return data[:0]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    return compiled(clipped(0, 6.0), tmp_path_factory.mktemp("small") / "net", separate_weights=True)


@pytest.mark.parametrize("change", [damage_value, cut_short, add_byte, change_format, forge_checksum, empty])
def test_files_that_do_not_fit_are_refused(
    change: Callable[[bytes], bytes], small: CompiledModel, tmp_path: Path
) -> None:
    data = (small.path / "net_weights.bin").read_bytes()
    (tmp_path / "other.bin").write_bytes(change(data))
    with pytest.raises(AotcError) as caught:
        aotc.load(small.path, weights=tmp_path / "other.bin")
    assert caught.value.code == "weights"
    (tmp_path / "other.bin").write_bytes(data)
    aotc.load(small.path, weights=tmp_path / "other.bin")


def test_parameters_for_other_code_are_refused(small: CompiledModel, tmp_path: Path) -> None:
    """Only numbers in the code differ: tensors have equal shapes."""
    other = compiled(clipped(0, 3.0), tmp_path / "other", separate_weights=True, build=False)
    files = [(made.path / "net_weights.bin").read_bytes() for made in (small, other)]
    assert files[0][64:] == files[1][64:]
    with pytest.raises(AotcError, match="the parameters are damaged, or those of another model"):
        aotc.load(small.path, weights=other.path / "net_weights.bin")


def models_with_other_inputs() -> list[tuple[onnx.ModelProto, dict[str, object]]]:
    """Models with a size of a run among the inputs, and with an input of the name `weights`."""
    free = affine(16, 0)
    free.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    free.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    return [(free, {"dims": {"n": "1..4"}}), (affine(16, 0, name="weights"), {})]


@pytest.mark.parametrize("case", [0, 1])
def test_other_inputs(case: int, tmp_path: Path) -> None:
    model, options = models_with_other_inputs()[case]
    name = model.graph.input[0].name
    x = np.random.default_rng(0).normal(size=(3 if options else 1, 16)).astype(np.float32)
    outputs = [
        compiled(model, tmp_path / str(separate), separate_weights=separate, **options)
        .session()
        .run(None, {name: x})[0]
        for separate in (False, True)
    ]
    np.testing.assert_array_equal(*outputs)


def test_a_model_with_state(tmp_path: Path) -> None:
    model, pairs = recurrent_model(), {"state": "state_out"}
    results = []
    for separate in (False, True):
        made = compiled(model, tmp_path / str(separate), separate_weights=separate, state=pairs)
        session = made.session()
        state = session.new_state()
        draw = np.random.default_rng(0)
        (info,) = session.get_inputs()
        frames = [draw.normal(size=info.shape).astype(np.float32) for _ in range(3)]
        results.append([session.run(None, {info.name: frame}, state=state)[0] for frame in frames])
    np.testing.assert_array_equal(*results)


def test_the_project_builds_and_reads_the_file(small: CompiledModel, tmp_path: Path) -> None:
    """By make, without warnings; the example refuses a file that is damaged."""
    run(["make", "-s", f"CFLAGS={WARNINGS} -O0"], small.path)
    example = small.path / "build" / "net_example"
    x = np.arange(8, dtype=np.float32)
    x.tofile(tmp_path / "x.bin")
    run([example, "-w", small.path / "net_weights.bin", "x.bin", "y.bin"], tmp_path)
    expected = small.session().run(None, {"x": x[None]})[0]
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y.bin", np.float32), expected[0])
    (tmp_path / "bad.bin").write_bytes(damage_value((small.path / "net_weights.bin").read_bytes()))
    with pytest.raises(AssertionError, match="the parameters are damaged"):
        run([example, "-w", "bad.bin", "x.bin"], tmp_path)
    run(["make", "-s", "clean"], small.path)


MAIN = """
#include "board.h"
#include "net.h"
static unsigned char workspace[NET_WORKSPACE_BYTES + 8] __attribute__((aligned(NET_WORKSPACE_ALIGNMENT)));
static unsigned char statuses[2];
static float x[8], y[4];
int main(void) {
  const unsigned char *const weights = (const unsigned char *)ADDRESS;
  net_inputs in = {x, weights};
  const net_outputs out = {y};
  int k;
  for (k = 0; k < 8; ++k) x[k] = (float)k;
  statuses[0] = (unsigned char)net_check_weights(weights, NET_WEIGHTS_FILE_BYTES);
  statuses[1] = (unsigned char)net_run(&in, &out, workspace, NULL);
  print_bytes(statuses, sizeof statuses);
  print_bytes((unsigned char *)y, sizeof y);
  if (net_check_weights(weights, NET_WEIGHTS_FILE_BYTES - 1) != AOTC_ERROR_WEIGHTS) return 1;
  in.weights = NULL;
  if (net_run(&in, &out, workspace, NULL) != AOTC_ERROR_NULL_ARGUMENT) return 2;
  if (net_check_weights(NULL, NET_WEIGHTS_FILE_BYTES) != AOTC_ERROR_NULL_ARGUMENT) return 3;
  in.weights = weights + 1;
  if (net_run(&in, &out, workspace, NULL) != AOTC_ERROR_ALIGNMENT) return 4;
  return 0;
}
"""


@pytest.mark.parametrize("single", [False, True], ids=["files", "single-file"])
def test_firmware_reads_parameters_in_place(single: bool, tmp_path: Path) -> None:
    """At an address of external memory, where another file gives other results without a new build."""
    here = board("cortex-m4")
    options = {"target": "cortex-m4", "build": False, "separate_weights": True, "cflags": (), "single_file": single}
    made = compiled(clipped(0, 6.0), tmp_path / "net", **options)
    assert not list((made.path / "src").glob("*params*"))
    program = here.link(here.make(made.path), MAIN.replace("ADDRESS", hex(ADDRESS)), tmp_path)
    x = np.arange(8, dtype=np.float32)[None]
    for seed, limit, change, statuses in (
        (0, 6.0, None, [0, 0]),
        (1, 6.0, None, [0, 0]),
        (0, 3.0, None, [19, 19]),
        (0, 6.0, damage_value, [19, 0]),
    ):
        other = compiled(clipped(seed, limit), tmp_path / f"{seed}{limit}", overwrite=True, **options)
        data = (other.path / "net_weights.bin").read_bytes()
        (tmp_path / "weights.bin").write_bytes(data if change is None else change(data))
        loader = f"loader,file={tmp_path / 'weights.bin'},addr={ADDRESS:#x},force-raw=on"
        found, values = map(bytes.fromhex, here.start(program, "-device", loader).split())
        assert list(found) == statuses
        if change is None and limit == 6.0:
            expected = compiled(clipped(seed, limit), tmp_path / f"host{seed}").session().run(None, {"x": x})[0]
            np.testing.assert_allclose(np.frombuffer(values, np.float32), expected[0], rtol=1e-6)


def test_what_separate_parameters_exclude(small: CompiledModel, tmp_path: Path) -> None:
    with pytest.raises(AotcError, match="a self-test keeps its values with the parameters") as caught:
        compiled(clipped(0, 6.0), tmp_path / "a", target="cortex-m4", separate_weights=True, selftest=True, build=False)
    assert caught.value.code == "target"
    with pytest.raises(AotcError, match="for cuda cannot be a file of their own"):
        compiled(clipped(0, 6.0), tmp_path / "b", target="cuda", separate_weights=True, cflags=())
    with pytest.raises(AotcError, match="a file of their own, and packages contain sources only") as caught:
        package_project(small.path, "meson", tmp_path / "c")
    assert caught.value.code == "package"
