# SPDX-License-Identifier: Apache-2.0
"""Resource usage read from machine code agrees with the assembler's report and NVIDIA's occupancy header."""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from aotc_codegen.cuda.kernel_resources import (
    KernelResources,
    read_kernel_resources_from_cubin,
    resident_blocks_per_multiprocessor,
)

from aotc.driver import nvrtc_worker
from aotc.driver.nvrtc import FLAGS, find_nvrtc_compiler
from aotc.ir.diagnostics import AotcError
from tests.conftest import skip_or_fail_without
from tests.cuda.test_driver_declarations import theirs as theirs

SOURCE = """
extern "C" __global__ void plain(float *y) { y[threadIdx.x] = 1.0f; }
extern "C" __global__ void sharing(float *y) {
  __shared__ float kept[1000];
  kept[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = kept[threadIdx.x ^ 1] * y[7];
}
extern "C" __global__ void spilling(float *y, int *at) {
  float many[300];
  for (int k = 0; k < 300; ++k) many[k] = y[k];
  for (int k = 0; k < 300; ++k) y[at[k]] = many[at[k + 1]];
}
"""
SAID = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame.*?Used (\d+) registers(?:.*?(\d+) bytes smem)?",
    re.DOTALL,
)


@pytest.mark.parametrize("arch", [80, 90, 120])
def test_the_assembler_says_so_too(arch: int) -> None:
    try:
        path = find_nvrtc_compiler().images.args[0].path  # type: ignore[attr-defined]
    except AotcError:
        skip_or_fail_without("NVRTC")
    flags = (f"--gpu-architecture=sm_{arch}", "--ptxas-options=-v", *FLAGS)
    command = [sys.executable, "-I", str(nvrtc_worker.__file__), str(path), *flags]
    done = subprocess.run(command, input=SOURCE.encode(), capture_output=True, check=True)
    found = read_kernel_resources_from_cubin(done.stdout[8:])
    said = re.split("(?=Compiling entry)", done.stderr.decode())[1:]
    assert len(said) == len(found) == 3
    for text in said:
        (row,) = SAID.findall(text)
        name, frame, registers, shared = row
        one = found[name]
        assert (one.registers, one.local_bytes) == (int(registers), int(frame)), name
        assert one.shared_bytes == int(shared or 0) and one.code_bytes > 0
    assert found["sharing"].shared_bytes >= 4000 and found["spilling"].local_bytes >= 1200


CHECK = """
#include "cuda_occupancy.h"
extern "C" int blocks(int arch, int threads, int registers, int shared, int held, int held_bytes) {
  cudaOccDeviceProp device;
  cudaOccFuncAttributes kernel;
  cudaOccDeviceState state;
  cudaOccResult found;
  device.computeMajor = arch / 10;
  device.computeMinor = arch % 10;
  device.maxThreadsPerBlock = 1024;
  device.maxThreadsPerMultiprocessor = held * 32;
  device.regsPerBlock = device.regsPerMultiprocessor = 1 << 16;
  device.warpSize = 32;
  device.sharedMemPerBlock = 48 << 10;
  device.sharedMemPerMultiprocessor = (size_t)held_bytes;
  device.reservedSharedMemPerBlock = arch >= 80 ? 1024 : 0;
  device.sharedMemPerBlockOptin = (size_t)held_bytes - device.reservedSharedMemPerBlock;
  device.numSms = 100;
  kernel.maxThreadsPerBlock = 1024;
  kernel.numRegs = registers;
  kernel.sharedSizeBytes = (size_t)shared;
  kernel.maxDynamicSharedSizeBytes = 0;
  if (cudaOccMaxActiveBlocksPerMultiprocessor(&found, &device, &kernel, &state, threads, 0) != CUDA_OCC_SUCCESS)
    return -1;
  return found.activeBlocksPerMultiprocessor;
}
"""


def test_occupancy_is_that_of_cuda(theirs: str, tmp_path: Path) -> None:
    (tmp_path / "check.cpp").write_text(CHECK)
    command = ["g++", "-shared", "-fPIC", "-w", "-I", theirs, str(tmp_path / "check.cpp"), "-o", str(tmp_path / "it")]
    subprocess.run(command, check=True)
    library, rng = ctypes.CDLL(str(tmp_path / "it")), random.Random(7)
    holds = {75: (32, 64), 80: (64, 164), 86: (48, 100), 89: (48, 100), 90: (64, 228), 100: (64, 228), 120: (48, 100)}
    for arch, (warps, shared) in holds.items():
        for _ in range(200):
            threads = 32 * rng.randint(1, 32)
            most = min(255, 65536 // (128 * -(-threads // 128)) // 8 * 8)
            kernel = KernelResources(rng.randint(1, most), rng.randrange(48 << 10), 0, 0)
            expected = library.blocks(arch, threads, kernel.registers, kernel.shared_bytes, warps, shared << 10)
            assert resident_blocks_per_multiprocessor(kernel, threads, arch) == expected, (arch, threads, kernel)
    assert resident_blocks_per_multiprocessor(KernelResources(32, 0, 0, 0), 256, 70) is None
