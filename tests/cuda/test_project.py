# SPDX-License-Identifier: Apache-2.0
"""Projects for GPUs: built by make with all warnings, run by the strict fake driver, loaded into Python."""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aotc_codegen.cuda.cuda_project import emit_cuda_project, print_cuda_kernels_and_source

from aotc.driver.compile_sources import build_project_library
from aotc.driver.cuda_emulation import build_fake_cuda_driver, compile_cuda_as_sm80_for_fake_device
from aotc.driver.toolchain import find_toolchain
from aotc.ir.diagnostics import AotcError
from aotc.runtime.abi import ffi
from aotc.runtime.library import find_library
from aotc.runtime.session import Session, load
from aotc.tir.target import get_target
from tests.cli.invoke import call
from tests.conftest import skip_or_fail_without
from tests.cuda.programs import SIZE, diamond, diamond_results

MINGW = "x86_64-w64-mingw32-gcc"
WARNINGS = "-Wall -Wextra -Wconversion -Wshadow -pedantic -Werror"
X = np.linspace(-3, 3, SIZE, dtype=np.float32)


def written(folder: Path, images: Mapping[str, bytes] | None = None, name: str = "net") -> dict[str, Any]:
    """The metadata of the project of a small program."""
    target, program = get_target("cuda"), diamond(name)
    printed, text = print_cuda_kernels_and_source(program, target)
    code = compile_cuda_as_sm80_for_fake_device(text, [80]) if images is None else images
    folder.mkdir(exist_ok=True)
    return emit_cuda_project(program, printed, text, code, folder, target=target, least_driver=12000)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("device") / "net"
    metadata = written(folder)
    build_project_library(folder, metadata, find_toolchain(), get_target("cuda"))
    return folder


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AOTC_CUDA_DRIVER", str(build_fake_cuda_driver()))
    yield
    gc.collect()


def command(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_make_builds_what_runs(compiler: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The example, with address and undefined-behavior checks of its own code, on files."""
    if compiler == "clang":
        request.getfixturevalue("clang")
    written(tmp_path / "net")
    X.tofile(tmp_path / "x")
    checks = "-fsanitize=undefined -fno-sanitize-recover=all"
    command("make", "-s", f"CC={compiler}", f"CFLAGS={WARNINGS} {checks}", cwd=tmp_path / "net", LDFLAGS=checks)
    files = [tmp_path / name for name in "xyz"]
    program = tmp_path / "net/build/net_example"
    said = command(program, "-n", "3", *files, cwd=tmp_path, AOTC_CUDA_DRIVER=str(build_fake_cuda_driver()))
    assert said.startswith("y: ") and "3 runs" in said
    for path, expected in zip(files[1:], diamond_results(X), strict=True):
        np.testing.assert_array_equal(np.fromfile(path, np.float32), expected)
    environment = {**os.environ, "AOTC_CUDA_DRIVER": "/nowhere/libcuda.so.1"}
    done = subprocess.run([program, *files], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "there is no /nowhere/libcuda.so.1" in done.stderr


def test_projects_compile_for_windows(tmp_path: Path) -> None:
    if shutil.which(MINGW) is None:
        skip_or_fail_without(MINGW)
    written(tmp_path)
    sources = [*tmp_path.glob("src/*.[cS]"), *tmp_path.glob("runtime/*.c"), tmp_path / "examples/main.c"]
    command(MINGW, "-std=c99", *WARNINGS.split(), "-Iinclude", *sources, "-o", "net.exe", cwd=tmp_path)


def test_cmake_builds_and_installs(tmp_path: Path) -> None:
    written(tmp_path / "net")
    command("cmake", "-S", "net", "-B", "made", "-DCMAKE_INSTALL_PREFIX=out", cwd=tmp_path)
    command("cmake", "--build", "made", "--target", "all", "net_example", cwd=tmp_path)
    command("cmake", "--install", "made", cwd=tmp_path)
    assert {p.name for p in (tmp_path / "out/lib").glob("*.a")} == {"libnet.a", "libaotc_rt.a", "libaotc_cuda.a"}
    said = command(tmp_path / "made/net_example", cwd=tmp_path, AOTC_CUDA_DRIVER=str(build_fake_cuda_driver()))
    assert said.startswith("y: -1")


def test_projects_are_reproducible(tmp_path: Path) -> None:
    images = {"sm_80": b"\x7fELF code", "compute_80": b".version 7.0\n"}
    first, second = (written(tmp_path / name, images) for name in ("one", "two"))
    assert first == second
    assert first["device"] == {"least_driver": "12.0", "code_bytes": {"compute_80": 13, "sm_80": 9}, "kernels": {}}
    assert first == json.loads((tmp_path / "one/metadata.json").read_text())
    assert {"grid": 16, "block": 64, "shared_bytes": 0}.items() <= first["steps"][0].items()
    names = {p.name for p in (tmp_path / "one/src").iterdir()}
    assert {"net.cu", "net_sm_80.cubin", "net_compute_80.ptx", "net_params.bin", "net_images.S"} <= names


@pytest.mark.usefixtures("gpu")
def test_sessions_run_on_arrays(project: Path) -> None:
    session = load(project)
    assert session.device is not None and session.device.number == 0
    for scale in (1, 2):
        results = session.run(None, {"x": X * np.float32(scale)})
        for result, expected in zip(results, diamond_results(X * np.float32(scale)), strict=True):
            np.testing.assert_array_equal(result, expected)
    binding = session.bind({"x": X})
    binding.run()
    np.testing.assert_array_equal(binding.outputs["z"], diamond_results(X)[1])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(session)).run(["y"], {"x": X})[0], diamond_results(X)[0])


@pytest.mark.usefixtures("gpu")
def test_threads_run_one_loaded_model(project: Path) -> None:
    session = load(project, device=0)
    found: list[Any] = [None] * 4

    def work(k: int) -> None:
        x = X + np.float32(k)
        for _ in range(5):
            found[k] = session.run(None, {"x": x})

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, results in enumerate(found):
        np.testing.assert_array_equal(results[1], diamond_results(X + np.float32(k))[1])


@pytest.mark.usefixtures("gpu")
def test_steps_are_told_of(project: Path) -> None:
    """Before each step, when those before have ended, and after the last."""
    seen: list[int] = []
    told = ffi.callback("aotc_step_fn", lambda _, step: seen.append(step))
    binding = load(project).bind({"x": X})
    binding.run_with_step_callback(int(ffi.cast("intptr_t", told)), 0)
    assert seen == [0, 1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(binding.outputs["z"], diamond_results(X)[1])


@pytest.mark.usefixtures("gpu")
def test_run_takes_a_device(project: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X)
    inputs = ("--inputs", tmp_path / "x.npz", "--output", tmp_path / "y.npz")
    assert call("run", project, "--device", "0", *inputs).code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["z"], diamond_results(X)[1])
    assert "there is no GPU of that number" in call("run", project, "--device", "3").err
    said = json.loads(call("run", project, "--profile", "--repeat", "2", "--json").out)
    assert [row["kernel"] for row in said["steps"]] == [
        row["kernel"] for row in json.loads((project / "metadata.json").read_text())["steps"]
    ]
    assert all(row["milliseconds"] > 0 for row in said["steps"]) and not said["machine"]["measured"]
    # 1000 processors of 64 lanes and 1 MHz; 1 MHz on 1000 bits
    assert said["machine"]["peak_gflops"] == 128 and said["machine"]["bandwidth_gbytes_per_s"] == 0.25
    assert "as the driver states, not measured" in call("run", project, "--profile", "--repeat", "1").out


@pytest.mark.usefixtures("gpu")
def test_forked_children_are_told_to_load_anew(project: Path) -> None:
    session = load(project)
    session.run(None, {"x": X})
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            with pytest.raises(AotcError, match="before a process was forked"):
                session.run(None, {"x": X})
            status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], diamond_results(X)[0])


def refused(project: Path, **options: Any) -> str:
    with pytest.raises(AotcError) as caught:
        Session.run(load(project, **options), None, {"x": X})
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "gpu"
    return diagnostic.message


def test_what_is_missing_is_said(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    assert "the driver of the GPU cannot be loaded: there is no /nowhere/libcuda.so.1" in refused(project)
    assert call("inspect", find_library(project)).code == 0
    # a copy of the driver is a library of its own, on whose device no other test has allocated memory
    driver_copy = shutil.copy(build_fake_cuda_driver(), tmp_path)
    monkeypatch.setenv("AOTC_CUDA_DRIVER", driver_copy)
    assert "there is no GPU of that number: CUDA_ERROR_INVALID_DEVICE" in refused(project, device=7)
    for device in (1 << 31, -1, "0", True, 0.0):
        assert f"GPU {device!r} does not exist" in refused(project, device=device)
    for name, value, said in (
        ("AOTC_FAKE_DEVICES", 0, "there is no GPU of that number: CUDA_ERROR_NO_DEVICE"),
        ("AOTC_FAKE_VERSION", 11040, "older than the model needs: it is for CUDA 11.4, not 12.0"),
        ("AOTC_FAKE_ARCH", 90, "no code for the GPU: its compute capability is 9.0"),
        ("AOTC_FAKE_MEMORY", 1000, "the GPU has not enough memory left"),
        ("AOTC_FAKE_MEMORY", 5000, "does not take another run: the GPU has not enough memory left"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(value))
            assert said in refused(project), name
