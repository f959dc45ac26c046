# SPDX-License-Identifier: Apache-2.0
"""CUDA source of kernels: one text for all kernels of a program, signatures, launch sizes, and refused kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.c_dialects import CUDA
from aotc_codegen.c.kernel_printer import print_kernel
from aotc_codegen.cuda.cuda_source import print_cuda_kernels, render_cuda_source_file

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.tir.expr import Buffer
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.stmt import Kernel, UserSource, block_stmts_or_self
from aotc.tir.target import Gpu
from tests.cuda.emulator import build, launch

SUMS = """kernel "sums" {
  input x: float32[100]
  output y: float32[100]
  stack own: float32[20]
  shared tile: float32[16]
  for b in 0..7 block {
    for t in 0..16 thread {
      tile[t] = x[min(b * 16 + t, 99)]
      own[1] = tile[t]
      sync
      let n: int64 = b * 16 + t
      if n < 100 { y[n // 10 + n % 10 * 10] = max(tile[15 - t], own[1]) }
    }
  }
}
"""
TEXT = """\
extern "C" __global__ void __launch_bounds__(16, 1) net_sums(const float *__restrict__ x, float *y) {
  __align__(4) float own[20];
  __shared__ __align__(4) float tile[16];
  const int b = (int)blockIdx.x;
  const int t = (int)threadIdx.x;
  tile[t] = x[aotc_index_min_i64(b * 16 + t, 99)];
  own[1] = tile[t];
  __syncthreads();
  int n = b * 16 + t;
  if (n < 100) {
    y[n / 10 + n % 10 * 10] = aotc_max_f32(tile[15 - t], own[1]);
  }
}
"""


def resized(kernel: Kernel, size: int) -> Kernel:
    """The kernel with an input of so many elements more, which it does not read."""
    return replace(kernel, inputs=(*kernel.inputs, Buffer("more", DType("int8"), size)))


def test_one_text_for_all_kernels() -> None:
    """Blocks and threads that a kernel does not tell apart are not asked for their numbers."""
    kernel = parse_kernel(SUMS)
    alone = parse_kernel(
        'kernel "one" { output y: int32[1] for b in 0..1 block { for t in 0..1 thread { y[0] = 7:int32 } } }'
    )
    source = render_cuda_source_file(
        print_cuda_kernels([kernel, alone], "net", Gpu()), name="net", banner="made by a test"
    )
    assert source.startswith("/* made by a test */\n")
    assert TEXT in source
    assert "__launch_bounds__(1) net_one(int32_t *__restrict__ y) {\n  y[0] = 7;\n}\n" in source
    assert source.index("aotc_index_min_i64(int a, int b) {") < source.index("net_sums")
    assert source.endswith("AOTC_EMULATE(net_sums)\nAOTC_EMULATE(net_one)\n#endif\n")


def test_indices_of_large_buffers_have_64_bits() -> None:
    kernel = parse_kernel(SUMS)
    (small,), (large,) = (
        print_cuda_kernels([resized(kernel, size)], "net", Gpu()).kernels for size in (1 << 29, 1 << 30)
    )
    assert "const int b = (int)blockIdx.x;" in small.text
    assert "int64_t" not in small.text
    assert "const int64_t b = (int)blockIdx.x;" in large.text
    assert "int64_t n = b * 16 + t;" in large.text


FAR = """kernel "far" {
  input x: float32[65536]
  output y: float32[217]
  for b in 0..217 block {
    for t in 0..1 thread {
      let part: int64 = b
      let sum: float32 = 0.0
      for k in part * SIZE..min(part * SIZE + SIZE, TOTAL) step 65536 { sum = sum + x[k // 65536] }
      y[b] = sum
    }
  }
}
"""


@pytest.mark.parametrize(("size", "total", "index"), [(1 << 20, 217 << 20, "int"), (303 << 16, 1 << 32, "int64_t")])
def test_counts_of_more_iterations_than_elements(size: int, total: int, index: str, tmp_path: Path) -> None:
    """Parts of what has few elements and many iterations, such as the sum of all sums of two tensors' elements."""
    kernel = parse_kernel(FAR.replace("SIZE", str(size)).replace("TOTAL", str(total)))
    printed = print_cuda_kernels([kernel], "net", Gpu())
    assert f"for ({index} k = part * {size}; k <" in printed.kernels[0].text
    built = build(render_cuda_source_file(printed, name="net", banner=""), tmp_path, "-O1")
    x, y = np.arange(65536, dtype=np.float32) % 7, np.zeros(217, np.float32)
    assert launch(built, "net_far", [x, y], blocks=217, threads=1) == ""
    parts = np.split(x[: total >> 16], range(size >> 16, total >> 16, size >> 16))
    np.testing.assert_array_equal(y, [part.sum() for part in parts])


def test_what_a_gpu_does_not_run_is_refused() -> None:
    kernel = parse_kernel(SUMS)
    mine = replace(kernel, source=UserSource("void mine(void) {}", "somebody"))
    with pytest.raises(AotcError, match="the code of sums is C, which somebody wrote") as raised:
        print_cuda_kernels([mine], "net", Gpu())
    assert raised.value.code == "external"
    with pytest.raises(AotcError, match="kernel sums has 2 parameters, a GPU takes 1 at most") as raised:
        print_cuda_kernels([kernel], "net", Gpu(argument_bytes=8))
    assert raised.value.code == "target"
    with pytest.raises(AotcError, match="takes 64 bytes of shared memory, a GPU has 60 for a block") as raised:
        print_cuda_kernels([kernel], "net", Gpu(shared_bytes=60))
    assert raised.value.code == "target"
    with pytest.raises(AotcError, match="a kernel that is not launched cannot be printed"):
        print_kernel(replace(kernel, body=block_stmts_or_self(kernel.body)[0].body), CUDA)  # type: ignore[union-attr]
