# SPDX-License-Identifier: Apache-2.0
"""Operations of the 32 threads of a warp, and asynchronous copies: semantics, and valid positions."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify

SUMS = """kernel "sums" {
  input x: float32[192] align 4
  output y: float32[2] align 4
  output z: float32[192] align 4
  shared part: float32[3] align 4
  for b in 0..2 block {
    for t in 0..96 thread {
      let sum: float32 = x[b * 96 + t]
      for k in 0..5 {
        let other: float32 = shuffle_xor(sum, int32(16 >> k))
        sum = sum + other
      }
      let below: float32 = shuffle_down(sum + float32(t), 3:int32)
      z[b * 96 + t] = below
      if t % 32 < 1 { part[t // 32] = sum }
      sync
      if t < 32 {
        let all: float32 = t < 3 ? part[min(t, 2)] : 0.0
        let next: float32 = shuffle_down(all, 1:int32)
        let last: float32 = shuffle_down(all, 2:int32)
        if t < 1 { y[b] = all + next + last }
      }
    }
  }
}
"""
"""The sum of a row of 96: three warps, whose sums the first one adds."""


@pytest.mark.parametrize("backwards", [False, True])
def test_sums_of_warps(backwards: bool) -> None:
    kernel = parse_kernel(SUMS)
    assert parse_kernel(to_text(kernel)).name == "sums"
    assert to_text(parse_kernel(to_text(kernel))) == to_text(kernel)
    verify(kernel)
    x = np.arange(192, dtype=np.float32)
    y, z = run_kernel(kernel, [x], backwards=backwards)
    np.testing.assert_array_equal(y, x.reshape(2, 96).sum(1))
    lanes = np.where(np.arange(32) < 29, np.arange(32) + 3, np.arange(32))
    sums = x.reshape(6, 32).sum(1, keepdims=True)
    np.testing.assert_array_equal(z.reshape(6, 32), sums + lanes + np.tile([[0], [32], [64]], (2, 1)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("if t < 32 {", "if t < 31 {", "a warp instruction is under control flow that differs"),
        ("if t < 32 {", "if x[t] < 1.0 {", "a warp instruction is under control flow that differs"),
        ("in 0..5 {", "in 0..t {", "a warp instruction is under control flow that differs"),
        ("in 0..5 {", "in t // 31..5 {", "a warp instruction is under control flow that differs"),
        ("in 0..96 thread", "in 0..80 thread", "a warp instruction is under control flow that differs"),
        (
            "sum = sum + other",
            "sum = sum + shuffle_xor(other, 1:int32)",
            "shuffle_xor is a statement, and cannot be part of an expression",
        ),
        ("3:int32", "3", "shuffle_down of int64x1, not of int32"),
    ],
)
def test_where_they_may_not_stand(old: str, new: str, message: str) -> None:
    assert SUMS.count(old) == 1
    with pytest.raises(AotcError, match=message):
        verify(parse_kernel(SUMS.replace(old, new)))


@pytest.mark.parametrize("cond", ["t // 32 < 1", "t >= 64", "b < 1", "t // 64 * 2 + b < 2"])
def test_control_that_is_alike_in_a_warp(cond: str) -> None:
    verify(parse_kernel(SUMS.replace("if t < 32 {", f"if {cond} {{")))


def test_threads_that_miss_one() -> None:
    with pytest.raises(AotcError, match="31 threads of a warp execute an instruction of the whole warp"):
        run_kernel(parse_kernel(SUMS.replace("if t < 32 {", "if t < 31 {")), [np.zeros(192, np.float32)])
    host = 'kernel "k" { output y: float32[4] for i in 0..4 { let r: float32 = shuffle_xor(1.0, 1:int32) y[i] = r } }'
    for kernel in (host, 'kernel "k" { output y: float32[4] wait 0 for i in 0..4 { y[i] = 1.0 } }'):
        with pytest.raises(AotcError, match="blocks and threads are not two loops around all statements"):
            verify(parse_kernel(kernel))


RING = """kernel "ring" {
  input x: float32[1000] align 16
  output y: float32[1024] align 16
  shared s0: float32[256] align 16
  shared s1: float32[256] align 16
  for b in 0..1 block {
    for t in 0..64 thread {
      s0[4 * t] = copy_async(x[4 * t:4])
      wait 1
      s1[4 * t] = copy_async(x[4 * t + 256:4])
      for k in 0..2 {
        wait 1
        sync
        for i in 0..4 { y[512 * k + 64 * i + t] = s0[255 - (64 * i + t)] }
        sync
        if k < 1 { s0[4 * t] = copy_async(x[4 * t + 512 * k + 512:4]) }
        wait 1
        sync
        for i in 0..4 { y[512 * k + 256 + 64 * i + t] = s1[255 - (64 * i + t)] }
        sync
        if k < 1 { s1[4 * t] = copy_async(4 * t < 232 ? x[4 * t + 768:4] : 0.0:float32x4) }
      }
    }
  }
}
"""
"""Quarters turned around, each copied while another one is used; the last one ends in zeros."""


def turned(text: str, backwards: bool) -> bool:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    (made,) = run_kernel(parse_kernel(text), [x], backwards=backwards)
    return np.array_equal(made.reshape(4, 256)[:, ::-1].reshape(-1), [*x, *[0] * 24])


@pytest.mark.parametrize("backwards", [False, True])
def test_copies_land_while_others_are_used(backwards: bool) -> None:
    kernel = parse_kernel(RING)
    verify(kernel)
    assert to_text(parse_kernel(to_text(kernel))) == to_text(kernel)
    assert turned(RING, backwards)


def test_parts_of_one_memory_land_by_themselves() -> None:
    """Both halves of what the threads share."""
    text = RING.replace("  shared s1: float32[256] align 16\n", "").replace("s0: float32[256]", "s0: float32[512]")
    text = text.replace("s1[255 -", "s0[511 -").replace("s1[4 * t]", "s0[4 * t + 256]")
    verify(parse_kernel(text))
    assert turned(text, backwards=False) and turned(text, backwards=True)
    with pytest.raises(AotcError, match="s0 is read before an asynchronous copy to it is complete"):
        verify(parse_kernel(text.replace("s0[511 -", "s0[510 -")))


def test_interleaved_parts_of_one_memory_land_by_themselves() -> None:
    """Groups of four elements, in turn of one and of the other part."""
    text = RING.replace("  shared s1: float32[256] align 16\n", "").replace("s0: float32[256]", "s0: float32[512]")
    text = text.replace("s0[4 * t]", "s0[8 * t]").replace("s1[4 * t]", "s0[8 * t + 4]")
    for name, offset in (("s0", 0), ("s1", 4)):
        group = f"s0[(255 - (64 * i + t)) // 4 * 8 + (255 - (64 * i + t)) % 4 + {offset}]"
        text = text.replace(f"{name}[255 - (64 * i + t)]", group)
    verify(parse_kernel(text))
    assert turned(text, backwards=False) and turned(text, backwards=True)
    with pytest.raises(AotcError, match="s0 is read before an asynchronous copy to it is complete"):
        verify(parse_kernel(text.replace("% 4 + 4]", "% 4 + 3]")))


FIRST, SECOND = (f"wait 1\n        sync\n        for i in 0..4 {{ y[{at} + 64" for at in ("512 * k", "512 * k + 256"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (FIRST, FIRST.replace("1", "2", 1), "s0 is read before"),
        (FIRST, FIRST.replace("sync", ""), "s0 is read before"),
        (SECOND, SECOND.removeprefix("wait 1"), "s1 is read before"),
        ("      wait 1\n      s1", "      s1", "s0 is read before"),
        ("      for k", "      s1[t] = 0.0\n      for k", "s1 is written before"),
        ("      for k", "      wait 9\n      s1[4 * t] = copy_async(x[4 * t:4])\n      for k", "s1 is written before"),
    ],
)
def test_copies_that_have_not_landed(old: str, new: str, message: str) -> None:
    assert RING.count(old) == 1
    text = RING.replace(old, new)
    with pytest.raises(AotcError, match=f"{message} an asynchronous copy to it is complete"):
        verify(parse_kernel(text))
    if "read" in message:
        assert not (turned(text, backwards=False) and turned(text, backwards=True))


START = "s1[4 * t] = copy_async(x[4 * t + 256:4])"
NO_COPY = "copy_async must copy memory that the kernel does not write to shared memory"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (START, "s1[4 * t] = copy_async(x[4 * t + 255:4])", "x is not accessed at multiples of 4 elements"),
        (START, "s1[2 * t] = copy_async(x[4 * t + 256:4])", "s1 is not accessed at multiples of 4 elements"),
        (START, "y[4 * t] = copy_async(x[4 * t + 256:4])", NO_COPY),
        (START, "s1[4 * t] = copy_async(y[4 * t + 256:4])", NO_COPY),
        (START, "s1[8 * t] = copy_async(x[8 * t:8])", "x is not accessed at multiples of 8 elements"),
        ("0.0:float32x4", "1.0:float32x4", NO_COPY),
        ("x: float32[1000] align 16", "x: float32[1000] align 4", "x is not accessed at multiples of 4 elements"),
        (START, "let r: float32 = copy_async(x[4 * t:4])", "the result of copy_async is a register, not memory"),
        (START, "s1[4 * t] = copy_async(0.0)", "an operand of copy_async must be in memory, but is a value"),
    ],
)
def test_what_no_device_copies_asynchronously(old: str, new: str, message: str) -> None:
    assert RING.count(old) == 1
    with pytest.raises(AotcError, match=message):
        verify(parse_kernel(RING.replace(old, new)))


MATRICES = """kernel "{dtype}" {{
  input x: {dtype}[256] align 16
  input w: {dtype}[256] align 16
  input z: float32[256] align 16
  output y: float32[256] align 16
  stack a: uint32[4] align 16
  stack b: uint32[4] align 16
  stack sum: float32[8] align 16
  shared xs: {dtype}[384] align 16
  shared ws: {dtype}[384] align 16
  for block in 0..1 block {{
    for t in 0..32 thread {{
      for i in 0..8 {{
        xs[(t // 16 + 2 * i) * 24 + t % 16] = x[t % 16 * 16 + t // 16 + 2 * i]
        ws[(t // 16 + 2 * i) * 24 + t % 16] = w[t + 32 * i]
        sum[i] = z[(t // 4 + i % 4 // 2 * 8) * 16 + i // 4 * 8 + t % 4 * 2 + i % 2]
      }}
      sync
      a[0] = ldmatrix_{dtype}(xs[(t % 8 + t // 16 * 8) * 24 + t % 16 // 8 * 8:8])
      b[0] = ldmatrix_{dtype}(ws[t % 16 * 24 + t // 16 * 8:8])
      for j in 0..2 {{ sum[4 * j] = mma_{dtype}(sum[4 * j:4], a[0:4], b[2 * j:2]) }}
      for i in 0..8 {{ y[(t // 4 + i % 4 // 2 * 8) * 16 + i // 4 * 8 + t % 4 * 2 + i % 2] = sum[i] }}
    }}
  }}
}}
"""
"""z + x @ w of 16 x 16 numbers: x is shared by columns, w by rows."""


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_matrices(dtype: str, backwards: bool) -> None:
    kernel = parse_kernel(MATRICES.format(dtype=dtype))
    verify(kernel)
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal((16, 16)).astype(b.dtype.numpy) for b in kernel.inputs[:2])
    z = rng.standard_normal((16, 16)).astype(np.float32)
    (made,) = run_kernel(kernel, [x, w, z], backwards=backwards)
    expected = z.copy()
    for k in range(16):
        expected += x[:, k, None].astype(np.float32) * w[k].astype(np.float32)
    np.testing.assert_array_equal(made.reshape(16, 16), expected)


def test_rows_of_matrices_that_do_not_begin_at_16_bytes() -> None:
    text = MATRICES.format(dtype="float16").replace("* 24 + t % 16 // 8 * 8:8", "* 20 + t % 16 // 8 * 8:8")
    with pytest.raises(AotcError, match="xs is not accessed at multiples of 8 elements"):
        verify(parse_kernel(text))
