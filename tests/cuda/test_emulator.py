# SPDX-License-Identifier: Apache-2.0
"""CUDA C on the CPU: kernels of all kinds give the results of a device, and races and invalid accesses are detected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.emulator import Kernels, build, driver, launch

Array = np.ndarray[Any, Any]

TEXT = """\
#include "aotc_emulator.h"

extern "C" __global__ void __launch_bounds__(64) scaled(const float *__restrict__ x, float *__restrict__ y, int n) {
  const int k = (int)blockIdx.x * 64 + (int)threadIdx.x;
  if (k < n) y[k] = fmaf(x[k], 2.0f, (float)blockDim.x + (float)gridDim.x);
}
AOTC_EMULATE(scaled)

extern "C" __global__ void __launch_bounds__(1) nothing() {}
AOTC_EMULATE(nothing)

/* The sum of a block's 100 numbers by halves, every second block having none. */
template <bool with_barrier> static __device__ __forceinline__ void sum_of(const int *x, int *y) {
  __shared__ int part[128];
  const int t = (int)threadIdx.x;
  if (blockIdx.x % 2 == 1) {
    y[blockIdx.x] = 7;
    return;
  }
  part[t] = x[(int)blockIdx.x * 100 + t];
  for (int half = 64; half > 0; half /= 2) {
    if (with_barrier) __syncthreads();
    if (t < half && t + half < 100) part[t] += part[t + half];
  }
  if (t == 0) y[blockIdx.x] = part[0];
}
extern "C" __global__ void __launch_bounds__(100) sums(const int *x, int *y) { sum_of<true>(x, y); }
extern "C" __global__ void __launch_bounds__(100) raced(const int *x, int *y) { sum_of<false>(x, y); }
AOTC_EMULATE(sums)
AOTC_EMULATE(raced)

/* What a block finds in memory that it shares. */
extern "C" __global__ void stale(unsigned *y) {
  __shared__ unsigned fixed[32];
  unsigned *sized = (unsigned *)aotc_shared;
  const unsigned t = threadIdx.x;
  y[blockIdx.x * 64 + t * 2] = fixed[t];
  y[blockIdx.x * 64 + t * 2 + 1] = sized[t];
  fixed[t] = sized[t] = 5;
  __syncthreads();
}
AOTC_EMULATE(stale)

/* Sums of rows, a warp each; warps beyond the last row have nothing to do. */
extern "C" __global__ void row_sums(const double *x, double *y, int rows) {
  const int row = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
  if (row < rows) {
    double sum = x[row * 32 + lane];
    for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, k);
    y[row * 32 + lane] = sum;
  }
}
AOTC_EMULATE(row_sums)

extern "C" __global__ void moved(const int *x, int *y) {
  const int t = (int)threadIdx.x, v = x[t];
  y[t * 3] = __shfl_xor_sync(~0u, v, 5);
  y[t * 3 + 1] = __shfl_down_sync(~0u, v, 3u);
  y[t * 3 + 2] = __shfl_down_sync(~0u, y[t * 3], 32u);
}
AOTC_EMULATE(moved)

struct alignas(16) Four {
  float of[4];
};
/* Rows through memory of the block, fetched `ahead` rows before they are used. */
template <int waited> static __device__ __forceinline__ void through(const Four *x, Four *y) {
  __shared__ Four ring[3][32];
  const int t = (int)threadIdx.x;
  for (int k = 0; k < 2; ++k) {
    if (k != 0) aotc_wait<waited>();
    aotc_copy<16>(&ring[k][t], x + k * 32 + t);
  }
  for (int k = 0; k < 8; ++k) {
    aotc_wait<waited>();
    __syncthreads();
    if (k + 2 < 8) aotc_copy<16>(&ring[(k + 2) % 3][t], x + (k + 2) * 32 + t);
    y[k * 32 + t] = ring[k % 3][31 - t];
  }
}
extern "C" __global__ void fetched(const Four *x, Four *y) { through<1>(x, y); }
extern "C" __global__ void early(const Four *x, Four *y) { through<2>(x, y); }
AOTC_EMULATE(fetched)
AOTC_EMULATE(early)

extern "C" __global__ void pieces(const float *x, float *y) {
  const int t = (int)threadIdx.x;
  aotc_move<4>(y + t * 4, x + t * 4);
}
AOTC_EMULATE(pieces)

extern "C" __global__ void split_barrier(int first) {
  if ((int)threadIdx.x >= first) __syncthreads();
}
extern "C" __global__ void split_warp(int first) {
  if ((int)threadIdx.x >= first) __shfl_down_sync(~0u, 1, 0u);
}
extern "C" __global__ void half_warp() { __shfl_down_sync(0xffffu, 1, 0u); }
AOTC_EMULATE(split_barrier)
AOTC_EMULATE(split_warp)
AOTC_EMULATE(half_warp)
"""
ORDERS = [False, True]


@pytest.fixture(scope="module", params=["", pytest.param("-DAOTC_EMULATOR_UCONTEXT", marks=pytest.mark.slow)])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """Threads of blocks switch by code for the processor, or by the system's own."""
    flags = request.param.split()
    return build(TEXT, tmp_path_factory.mktemp("kernels"), "-O1", emulator=driver(*flags))


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("backwards", ORDERS)
def test_threads_without_barriers(kernels: Kernels, backwards: bool, hosts: int) -> None:
    x, y = np.arange(1000, dtype=np.float32), np.full(1024, np.nan, np.float32)
    assert not launch(kernels, "scaled", [x, y, 1000], blocks=16, threads=64, backwards=backwards, hosts=hosts)
    np.testing.assert_array_equal(y[:1000], x * 2 + 80)
    assert np.isnan(y[1000:]).all()
    assert not launch(kernels, "nothing", [], blocks=1, threads=1, backwards=backwards)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("backwards", ORDERS)
def test_barriers(kernels: Kernels, backwards: bool, hosts: int) -> None:
    x, y = np.random.default_rng(0).integers(-99, 99, 600, np.int32), np.zeros(6, np.int32)
    assert not launch(kernels, "sums", [x, y], blocks=6, threads=100, backwards=backwards, hosts=hosts)
    expected = x.reshape(6, 100).sum(1)
    expected[1::2] = 7
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("backwards", ORDERS)
def test_shared_memory_is_poisoned_in_every_block(kernels: Kernels, backwards: bool) -> None:
    y = np.zeros((3, 64), np.uint32)
    assert not launch(kernels, "stale", [y], blocks=3, threads=32, shared=128, backwards=backwards)
    assert (y == 0xFFFFFFFF).all()


@pytest.mark.parametrize("backwards", ORDERS)
def test_instructions_of_warps(kernels: Kernels, backwards: bool) -> None:
    rows = np.random.default_rng(1).integers(-99, 99, (4, 32)).astype(np.float64)
    sums = np.zeros((4, 32))
    assert not launch(kernels, "row_sums", [rows, sums, 3], blocks=1, threads=128, backwards=backwards)
    np.testing.assert_array_equal(sums[:3], np.broadcast_to(rows[:3].sum(1, keepdims=True), (3, 32)))
    assert not sums[3].any()
    x, y, lane = np.arange(32, dtype=np.int32) + 100, np.zeros((32, 3), np.int32), np.arange(32)
    assert not launch(kernels, "moved", [x, y], blocks=1, threads=32, backwards=backwards)
    down = np.where(lane < 29, lane + 3, lane)
    np.testing.assert_array_equal(y, x[np.stack([lane ^ 5, down, lane ^ 5], 1)])


@pytest.mark.parametrize("backwards", ORDERS)
def test_copies_land_when_they_are_waited_for(kernels: Kernels, backwards: bool) -> None:
    x, y = np.random.default_rng(2).standard_normal((8, 32, 4), np.float32), np.zeros((8, 32, 4), np.float32)
    assert not launch(kernels, "fetched", [x, y], blocks=1, threads=32, backwards=backwards)
    np.testing.assert_array_equal(y, x[:, ::-1])
    assert not launch(kernels, "early", [x, y], blocks=1, threads=32, backwards=backwards)
    assert np.isnan(y).any()
    odd = np.zeros(x.size + 4, np.float32)[1:]
    assert "multiple of their bytes" in launch(kernels, "fetched", [odd, y], blocks=1, threads=32, backwards=backwards)


@pytest.mark.parametrize("backwards", ORDERS)
def test_pieces_begin_at_multiples_of_their_bytes(kernels: Kernels, backwards: bool) -> None:
    x, y = np.random.default_rng(3).standard_normal((2, 132), np.float32)
    begin = -x.ctypes.data // 4 % 4
    x, y = x[begin:], np.full(132, np.nan, np.float32)
    to = y[-y.ctypes.data // 4 % 4 :]
    sizes = {"blocks": 1, "threads": 32, "backwards": backwards}
    assert not launch(kernels, "pieces", [x, to], **sizes)
    np.testing.assert_array_equal(to[:128], x[:128])
    for arguments in ([x[1:], to], [x, to[2:]]):
        assert "multiple of their bytes" in launch(kernels, "pieces", arguments, **sizes)


def test_a_missing_barrier_shows_in_one_of_two_orders(kernels: Kernels) -> None:
    x = np.random.default_rng(0).integers(1, 99, 100, np.int32)
    found = []
    for backwards in ORDERS:
        y = np.zeros(1, np.int32)
        assert not launch(kernels, "raced", [x, y], blocks=1, threads=100, backwards=backwards)
        found.append(y[0] == x.sum())
    assert not all(found)


@pytest.mark.parametrize("backwards", ORDERS)
@pytest.mark.parametrize(
    ("name", "first", "threads", "problem"),
    [
        ("split_barrier", 1, 64, "barrier"),
        ("split_barrier", 32, 64, "32 of 64 threads come to a barrier"),
        ("split_barrier", 63, 64, "barrier"),
        ("split_warp", 16, 32, "warp"),
        ("split_warp", 0, 48, "not for 32 threads"),
    ],
)
def test_threads_that_do_not_meet(
    kernels: Kernels, name: str, first: int, threads: int, problem: str, backwards: bool
) -> None:
    assert problem in launch(kernels, name, [first], blocks=2, threads=threads, backwards=backwards)
    assert not launch(kernels, name, [0], blocks=2, threads=32, backwards=backwards)


def test_what_is_no_launch(kernels: Kernels) -> None:
    assert "not for 32 threads" in launch(kernels, "half_warp", [], blocks=1, threads=32)
    for blocks, threads in ((0, 1), (1, 0), (1, 1025)):
        assert "1 to 1024 threads" in launch(kernels, "nothing", [], blocks=blocks, threads=threads)
