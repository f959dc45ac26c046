# SPDX-License-Identifier: Apache-2.0
"""Kernels for blocks of threads: their form, their text, and what they compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.tir.interp import run_kernel
from aotc.tir.launch import Launch, launch_of
from aotc.tir.parse import parse_kernel
from aotc.tir.simplify import simplify_stmt
from aotc.tir.stmt import For
from aotc.tir.text import to_text
from aotc.tir.verify import verify

DOUBLE = """kernel "double" {
  input x: float32[100] align 4
  output y: float32[100] align 4
  stack own: float32[2] align 4
  shared tile: float32[16] align 16
  for b in 0..7 block {
    for t in 0..16 thread {
      if b * 16 + t < 100 {
        own[1] = x[b * 16 + t]
        y[b * 16 + t] = own[1] * 2.0
      }
    }
  }
}
"""


def test_a_launch_is_what_the_loops_say() -> None:
    kernel = parse_kernel(DOUBLE)
    assert to_text(kernel) == DOUBLE
    assert launch_of(kernel) == Launch(grid=7, block=16, shared_bytes=64)
    verify(kernel)
    x = np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(run_kernel(kernel, [x])[0], x * 2)


def test_loops_of_one_block_and_one_thread_are_kept() -> None:
    text = DOUBLE.replace("0..7", "0..1").replace("0..16", "0..1").replace("shared tile: float32[16] align 16\n", "")
    kernel = parse_kernel(text)
    simple = replace(kernel, body=simplify_stmt(kernel.body, {}))
    assert launch_of(simple) == Launch(grid=1, block=1, shared_bytes=0)
    verify(simple)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0..16", "0..1025"),  # too many threads
        ("0..16", "1..16"),
        ("0..7", "0..0"),
        ("0..7", "0..2147483648"),
        ("16 thread", "16 block"),
        ("16 thread", "16 independent"),
        ("7 block", "7 independent"),
        ("if b * 16 + t < 100", "for u in 0..2 thread"),
        ("    for t", "    let z: int64 = b\n    for t"),
    ],
)
def test_other_forms_are_no_launch(old: str, new: str) -> None:
    kernel = parse_kernel(DOUBLE.replace(old, new))
    assert launch_of(kernel) is None
    with pytest.raises(AotcError, match="blocks and threads are not two loops around all statements"):
        verify(kernel)


def test_a_kernel_of_the_host_is_no_launch() -> None:
    assert launch_of(parse_kernel('kernel "k" { output y: float32[4] for i in 0..4 { y[i] = 1.0 } }')) is None


def test_threads_that_write_one_element_are_refused() -> None:
    with pytest.raises(AotcError, match="loop over t is not thread: iterations may touch the same elements of y"):
        verify(parse_kernel(DOUBLE.replace("y[b * 16 + t]", "y[b * 16 + t // 2]")))
    with pytest.raises(AotcError, match="loop over b is not block: iterations may touch the same elements of y"):
        verify(parse_kernel(DOUBLE.replace("y[b * 16 + t]", "y[b + t]")))


def test_every_block_and_thread_finds_its_memory_unset() -> None:
    kernel = parse_kernel(DOUBLE.replace("own[1] = x[b * 16 + t]", "if t < 1 { own[1] = 1.0 }"))
    made = run_kernel(kernel, [np.zeros(100, np.float32)])[0]
    assert np.isnan(made).tolist() == [n % 16 > 0 for n in range(100)]
    assert isinstance(kernel.body, For)
