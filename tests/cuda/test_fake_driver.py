# SPDX-License-Identifier: Apache-2.0
"""The C runtime and a handwritten model on a fake driver without a GPU, which detects errors that a GPU may hide."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from pathlib import Path

import aotc_runtime_c
import numpy as np
import pytest

from aotc.driver.cuda_emulation import build_fake_cuda_driver, compile_cuda_as_sm80_for_fake_device
from aotc.ir.device import gpu_count

KERNELS = """\
#include "aotc_emulator.h"
extern "C" __global__ void product(const float *__restrict__ x, const float *__restrict__ w, float *y) {
  const int k = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  y[k] = x[k] * w[k];
}
extern "C" __global__ void sums(const float *__restrict__ x, float *y) {
  __shared__ float part[64];
  const int t = (int)threadIdx.x;
  part[t] = x[(int)blockIdx.x * 64 + t];
  for (int half = 32; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) part[t] += part[t + half];
  }
  if (t == 0) y[blockIdx.x] = part[0];
}
extern "C" __global__ void more(const float *__restrict__ x, float *y) {
  const int k = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  y[k] = (size_t)x % 16 == 0 ? x[k] + 1.0f : 0.0f;
}
extern "C" __global__ void joined(const float *__restrict__ x, const float *__restrict__ s, float *y) {
  const int k = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  y[k] = (size_t)y % 16 == 0 ? x[k] + s[blockIdx.x] : 0.0f;
}
AOTC_EMULATE(product)
AOTC_EMULATE(sums)
AOTC_EMULATE(more)
AOTC_EMULATE(joined)
"""
HERE = Path(__file__).parent
PLACES = ("-I", str(aotc_runtime_c.include_dir()), "-I", str(aotc_runtime_c.source_dir()))
X, W = (np.arange(256, dtype=np.float32).reshape(4, 64) % n for n in (7, 5))
EXPECTED = X + 1 + (X * W).sum(1, keepdims=True)


def host(folder: Path, *flags: str) -> Path:
    """The program of tests/cuda/host.c."""
    ((_, image),) = compile_cuda_as_sm80_for_fake_device(KERNELS, [80], "-O1").items()
    (folder / "image").write_bytes(image)
    sources = [
        str(p)
        for p in (*aotc_runtime_c.hosted_runtime_files(), *aotc_runtime_c.cuda_runtime_files())
        if p.suffix == ".c"
    ]
    strict = ("-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O1", f'-DIMAGE="{folder / "image"}"')
    command = ["gcc", *strict, *PLACES, *flags, str(HERE / "host.c"), *sources, "-ldl", "-o", str(folder / "host")]
    subprocess.run(command, check=True)
    return folder / "host"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return host(tmp_path_factory.mktemp("host"))


def run(program: Path, mode: str, **settings: str) -> tuple[list[str], np.ndarray]:
    """What a program says of its calls, and its outputs."""
    environment = {**os.environ, "AOTC_CUDA_DRIVER": str(build_fake_cuda_driver()), **settings}
    done = subprocess.run([program, mode], env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return lines[:3], np.array(lines[3:], np.float32)


@pytest.mark.parametrize("order", ["forwards", "backwards"])
@pytest.mark.parametrize(
    "mode", ["host", "device", "shifted", "shifted plain", "odd", "odd plain", "plain", "late", "captured"]
)
def test_a_model_runs(program: Path, mode: str, order: str) -> None:
    """In memory of the host and of the device, as a graph and step by step; what is not waited for comes late.

    Tensors of the device that are not aligned as kernels need them, or not even to their elements, are copied. Runs
    take no memory and make nothing; those whose stream the caller captures do not wait, and mark nothing.
    """
    said, outputs = run(program, mode, AOTC_EMULATOR_ORDER=order)
    assert said == ["0 ", "0", "0 CUDA_SUCCESS"]
    np.testing.assert_array_equal(outputs, EXPECTED.ravel())


def test_other_pointers_change_their_nodes_alone(program: Path) -> None:
    """Two nodes read the input, one writes the output; pointers of before change nothing."""
    said, outputs = run(program, "moved")
    assert said == ["0 ", "0", "30122 CUDA_SUCCESS"]
    np.testing.assert_array_equal(outputs, EXPECTED.ravel())


@pytest.mark.parametrize(
    ("mode", "code", "arch", "opened"),
    [
        ("host", 80, 79, 13),
        ("host", 80, 86, 0),
        ("host", 80, 90, 13),
        ("host", 80, 87, 13),
        ("host", 87, 87, 0),
        ("host", 87, 89, 13),
        ("host", 100, 101, 13),
        ("host", 100, 103, 0),
        ("host", 101, 103, 13),
        ("ptx", 80, 75, 13),
        ("ptx", 80, 87, 0),
        ("ptx", 80, 90, 0),
    ],
)
def test_devices_that_code_is_for(program: Path, mode: str, code: int, arch: int, opened: int) -> None:
    """Machine code: those of its major version that are not older, Jetson's for itself; PTX: all that are not older."""
    said, _ = run(program, mode, AOTC_FAKE_ARCH=str(arch), IMAGE_ARCH=str(code))
    assert said[0].startswith(f"{opened} ")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_missing_edge_shows(step: int, tmp_path: Path) -> None:
    """Without a dependence edge (read after write, or write after read) the emulated driver gives other results."""
    said, outputs = run(host(tmp_path, f"-DMISSING={step}"), "host")
    assert said[-1] == "0 CUDA_SUCCESS"
    assert not np.array_equal(outputs, EXPECTED.ravel())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"AOTC_CUDA_DRIVER": "/nowhere/libcuda.so.1"}, ["10 "]),
        ({"AOTC_CUDA_DRIVER": "libm.so.6"}, ["11 "]),  # a driver without what is called
        ({"AOTC_FAKE_DEVICES": "0"}, ["12 "]),
        ({"AOTC_FAKE_VERSION": "11040"}, ["11 "]),
        ({"AOTC_FAKE_ARCH": "90"}, ["13 "]),
        ({"AOTC_FAKE_MEMORY": "1023"}, ["14 "]),
        ({"AOTC_FAKE_MEMORY": "4000"}, ["0 ", "14"]),
    ],
)
def test_what_a_device_lacks(program: Path, settings: dict[str, str], said: list[str]) -> None:
    found, _ = run(program, "host", **settings)
    assert len(found) == len(said)
    assert all(line.startswith(begin) for line, begin in zip(found, said, strict=True))


def test_a_pointer_that_leaves_its_memory_is_an_error(program: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run(program, "beyond")
    assert raised.value.returncode == -signal.SIGSEGV


def test_the_host_cannot_touch_memory_of_the_device(program: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run(program, "touch")
    assert raised.value.returncode == -signal.SIGSEGV


def test_it_is_not_taken_for_the_system_s_driver() -> None:
    """A process that has loaded it finds as many GPUs as before."""
    before = gpu_count()
    ctypes.CDLL(str(build_fake_cuda_driver()))
    assert gpu_count() == before
