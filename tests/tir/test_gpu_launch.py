# SPDX-License-Identifier: Apache-2.0
"""Kernels with block and thread loops: their form, their text, and their results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.tir.gpu_launch import Launch, launch_of
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.simplify_statements import simplify_stmt
from aotc.tir.stmt import For

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
    with pytest.raises(AotcError, match="loop over t is not thread: iterations may access the same elements of y"):
        verify(parse_kernel(DOUBLE.replace("y[b * 16 + t]", "y[b * 16 + t // 2]")))
    with pytest.raises(AotcError, match="loop over b is not block: iterations may access the same elements of y"):
        verify(parse_kernel(DOUBLE.replace("y[b * 16 + t]", "y[b + t]")))


DEALT = """kernel "deal" {
  input x: float32[1000] align 4
  output y: float32[1000] align 4
  for b in 0..7 block {
    for t in 0..16 thread {
      if b < 3 {
        for n in b * 16 + t..600 step 48 { y[n % 30 * 20 + n // 30] = x[n] }
      } else {
        for n in b * 16 + t - 48..400 step 64 { y[600 + n] = x[600 + n] }
      }
    }
  }
}
"""


def test_iterations_that_loops_deal_out() -> None:
    kernel = parse_kernel(DEALT)
    verify(kernel)
    x = np.arange(1000, dtype=np.float32)
    for backwards in (False, True):
        made = run_kernel(kernel, [x], backwards=backwards)[0]
        np.testing.assert_array_equal(made, [*x[:600].reshape(20, 30).T.reshape(-1), *x[600:]])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("step 48", "step 47"),  # some values are copied twice
        ("b < 3", "b < 4"),
        ("b * 16 + t..600", "b * 15 + t..600"),
        ("n % 30 * 20", "n % 30 * 19"),
        ("..600 step", "..601 step"),  # the parts overlap
        ("= x[n]", "= y[n]"),
        ("b < 3", "y[700] < 1.0"),
    ],
)
def test_iterations_that_meet(old: str, new: str) -> None:
    with pytest.raises(AotcError, match="iterations may access the same elements of y"):
        verify(parse_kernel(DEALT.replace(old, new)))


ONE = "for b in 0..1 block { for t in 0..1 thread {"
TILES = """kernel "tiles" {
  input x: float32[50] align 4
  output y: float32[4600] align 4
  for b in 0..6 block {
    for t in 0..16 thread {
      for i in 0..2 {
        for j in 0..4 {
          let m: int64 = b // 3 * 32 + i * 16 + t // 4 * 4 + j
          for k in 0..8 {
            let n: int64 = b % 3 * 32 + k * 4 + t % 4
            if m < 50 & n < 90 { y[m * 90 + n] = x[m] }
          }
        }
      }
    }
  }
}
"""
"""Tiles of 32 x 32 with borders, of which each thread has 8 x 8."""


@pytest.mark.parametrize("place", ["m * 90 + n", "n * 50 + m", "(m // 10 * 90 + n) * 10 + m % 10 + 70"])
def test_places_that_registers_tell_apart(place: str) -> None:
    verify(parse_kernel(TILES.replace("m * 90 + n", place)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m * 90 + n", "m * 89 + n"),  # the border of one row is the beginning of the next
        ("m * 90 + n", "m // 10 * 900 + n * 10 + m % 11"),
        ("m * 90 + n", "n"),
        ("n < 90", "n < 91"),
        ("t % 4\n", "t % 3\n"),
        ("b % 3", "b % 2"),
        ("t // 4 * 4", "t // 4 * 3"),
        ("= x[m]", "= y[m]"),
        ("let n: int64 =", "let n: int64 = 0 n ="),
    ],
)
def test_places_that_registers_do_not_tell_apart(old: str, new: str) -> None:
    assert old in TILES
    with pytest.raises(AotcError, match="iterations may access the same elements of y"):
        verify(parse_kernel(TILES.replace(old, new)))


PHASES = """kernel "phases" {
  input x: float32[30] align 4
  output y: float32[60] align 4
  for b in 0..8 block {
    for t in 0..16 thread {
      let element: int64 = t
      let row: int64 = b % 4 * 8 + element % 8
      if row < 30 & element < 8 { y[row // 5 * 10 + b // 4 * 5 + row % 5] = x[row] }
    }
  }
}
"""
"""Rows of five, every second one by other blocks; half of the threads rest."""


@pytest.mark.parametrize("place", ["row // 5 * 10 + b // 4 * 5 + row % 5", "row // 5 * 10 + row % 5 * 2 + b // 4"])
def test_phases_of_rows_are_told_apart(place: str) -> None:
    kernel = parse_kernel(PHASES.replace("row // 5 * 10 + b // 4 * 5 + row % 5", place))
    verify(kernel)
    found = [run_kernel(kernel, [np.arange(1, 31, dtype=np.float32)], backwards=b)[0] for b in (False, True)]
    assert sorted(found[0]) == sorted([*range(1, 31)] * 2)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("element < 8", "element < 9"),
        ("element % 8", "element % 7"),
        ("b % 4 * 8", "b % 4 * 7"),
        ("b % 4 * 8", "b % 3 * 8"),
        ("b // 4 * 5", "b // 4 * 4"),
        ("row // 5 * 10", "row // 5 * 9"),
        ("row % 5", "row % 4"),
        ("= x[row]", "= y[row]"),
    ],
)
def test_phases_of_rows_that_meet(old: str, new: str) -> None:
    assert old in PHASES
    with pytest.raises(AotcError, match="iterations may access the same elements of y"):
        verify(parse_kernel(PHASES.replace(old, new)))


@pytest.mark.parametrize(("most", "more", "right"), [(1, 20, True), (1, 19, False), (2, 20, False)])
def test_what_one_thread_of_many_does(most: int, more: int, right: bool) -> None:
    text = f"""kernel "one" {{
      input x: int64[20]
      output y: int64[40]
      for b in 0..2 block {{ for t in 0..32 thread {{
        if b < 1 {{ if t < {most} {{ for i in 0..20 {{ y[min(max(x[i], 0), 19)] = 1 }} }} }}
        else {{ let n: int64 = b * 32 + t - 32 if n < 20 {{ y[{more} + n] = x[n] }} }}
      }} }} }}"""
    if right:
        verify(parse_kernel(text))
        return
    with pytest.raises(AotcError, match="iterations may access the same elements of y"):
        verify(parse_kernel(text))


def test_one_thread_by_itself() -> None:
    body = "for i in 0..9 { y[x[i]] = y[i] }"
    verify(parse_kernel(f'kernel "k" {{ input x: int64[9] output y: int64[9] {ONE} {body} }} }} }}'))


def test_scratch_that_all_threads_share_is_not_private() -> None:
    text = DOUBLE.replace("stack own", "workspace own").replace("float32[2] align 4", "float32[2] align 4 private")
    with pytest.raises(AotcError, match="loop over b is not block: iterations may access the same elements of own"):
        verify(parse_kernel(text))


def test_every_block_and_thread_finds_its_memory_unset() -> None:
    kernel = parse_kernel(DOUBLE.replace("own[1] = x[b * 16 + t]", "if t < 1 { own[1] = 1.0 }"))
    made = run_kernel(kernel, [np.zeros(100, np.float32)])[0]
    assert np.isnan(made).tolist() == [n % 16 > 0 for n in range(100)]
    assert isinstance(kernel.body, For)


PRODUCT = """kernel "product" {
  input x: float32[60] align 4
  input w: float32[70] align 4
  output y: float32[42] align 4
  stack acc: float32[2] align 4
  shared xs: float32[40] align 4
  shared ws: float32[24] align 4
  for b in 0..4 block {
    for t in 0..8 thread {
      for j in 0..2 { acc[j] = 0.0 }
      for k in 0..3 {
        for j in 0..2 {
          let row: int64 = b // 2 * 4 + j * 2 + t // 4
          let kx: int64 = k * 4 + t % 4
          xs[j * 20 + t // 4 * 10 + t % 4] = row < 6 & kx < 10 ? x[min(row, 5) * 10 + min(kx, 9)] : 0.0
        }
        for j in 0..2 {
          let kw: int64 = k * 4 + j * 2 + t // 4
          let col: int64 = b % 2 * 4 + t % 4
          ws[(j * 2 + t // 4) * 6 + t % 4] = kw < 10 & col < 7 ? w[min(kw, 9) * 7 + min(col, 6)] : 0.0
        }
        sync
        for c in 0..4 reduction {
          for j in 0..2 {
            acc[j] = fma(xs[j * 20 + t // 4 * 10 + c], ws[c * 6 + t % 4], acc[j])
          }
        }
        sync
      }
      for j in 0..2 {
        if b // 2 * 4 + j * 2 + t // 4 < 6 & b % 2 * 4 + t % 4 < 7 {
          y[(b // 2 * 4 + j * 2 + t // 4) * 7 + b % 2 * 4 + t % 4] = acc[j]
        }
      }
    }
  }
}
"""
"""x[6, 10] times w[10, 7] in tiles of 4 x 4 with borders: two products of each thread, three steps of shared memory."""


def product(text: str, backwards: bool) -> np.ndarray:
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-9, 9, n).astype(np.float32) for n in (60, 70))
    made = run_kernel(parse_kernel(text), [x, w], backwards=backwards)[0]
    return made.reshape(6, 7) - x.reshape(6, 10) @ w.reshape(10, 7)


@pytest.mark.parametrize("backwards", [False, True])
def test_threads_run_from_barrier_to_barrier(backwards: bool) -> None:
    verify(parse_kernel(PRODUCT))
    assert not product(PRODUCT, backwards).any()


def test_a_barrier_that_lacks_is_seen_in_one_order() -> None:
    first, second = (k for k in range(len(PRODUCT)) if PRODUCT.startswith("sync", k))
    for at in (first, second):
        text = PRODUCT[:at] + PRODUCT[at + 4 :]
        assert product(text, backwards=False).any() or product(text, backwards=True).any()
        with pytest.raises(AotcError, match=r"iterations may access the same elements of [wx]s"):
            verify(parse_kernel(text))


def test_threads_that_wait_in_vain() -> None:
    text = PRODUCT.replace("        sync\n        for c", "        if t < 7 { sync }\n        for c")
    with pytest.raises(AotcError, match="of 8 threads wait at a barrier, but the other threads have ended"):
        product(text, backwards=False)


SUM = """kernel "sum" {
  input x: float32[300] align 4
  output y: float32[3] align 4
  shared part: float32[16] align 4
  for b in 0..3 block {
    for t in 0..16 thread {
      let total: float32 = 0.0
      for k in t..100 step 16 { total = total + x[b * 100 + k] }
      part[t] = total
      sync
      if t < 8 { part[t] = part[t] + part[t + 8] }
      sync
      if t < 4 { part[t] = part[t] + part[t + 4] }
      sync
      if t < 1 { y[b] = part[t] + part[t + 1] + part[t + 2] + part[t + 3] }
    }
  }
}
"""


@pytest.mark.parametrize("backwards", [False, True])
def test_sums_of_a_block(backwards: bool) -> None:
    verify(parse_kernel(SUM))
    x = np.arange(300, dtype=np.float32)
    made = run_kernel(parse_kernel(SUM), [x], backwards=backwards)[0]
    np.testing.assert_array_equal(made, x.reshape(3, 100).sum(1))


@pytest.mark.parametrize("number", range(3))
def test_sums_without_a_barrier(number: int) -> None:
    parts = SUM.split("sync")
    text = "sync".join(parts[: number + 1]) + "sync".join(parts[number + 1 :])
    with pytest.raises(AotcError, match="iterations may access the same elements of part"):
        verify(parse_kernel(text))


TURNS = """kernel "turns" {
  input x: float32[64] align 4
  output y: float32[64] align 4
  shared tile: float32[16] align 4
  for b in 0..1 block {
    for t in 0..8 thread {
      tile[t] = x[t]
      sync
      for k in 0..4 {
        tile[8 + t] = x[k * 16 + 8 + t]
        y[k * 16 + t] = tile[7 - t]
        sync
        if k < 3 { tile[t] = x[min(k + 1, 3) * 16 + t] }
        y[k * 16 + 8 + t] = tile[15 - t]
        sync
      }
    }
  }
}
"""
"""Kernel with a double-buffered tile: one half is read while the other half is written."""


def test_double_buffered_tile_has_no_race() -> None:
    verify(parse_kernel(TURNS))
    x = np.arange(64, dtype=np.float32)
    for backwards in (False, True):
        made = run_kernel(parse_kernel(TURNS), [x], backwards=backwards)[0]
        np.testing.assert_array_equal(made, x.reshape(8, 8)[:, ::-1].reshape(-1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tile[8 + t]", "tile[6 + t]", "iterations may access the same elements of tile"),
        ("      sync\n      for k", "      for k", "iterations may access the same elements of tile"),
        ("        sync\n        if k", "        if k", "iterations may access the same elements of tile"),
        ("sync\n      }", "}", "iterations may access the same elements of tile"),  # of one round and the next
        ("sync\n      }", "if k < 2 { sync } }", "iterations may access the same elements of tile"),
        (
            "      y[k * 16 + t]",
            "for i in 0..2 { if i < k { sync } } y[k * 16 + t]",
            "a barrier inside a loop is under a",
        ),
        ("sync\n      for k", "if t < 4 { sync }\n      for k", "a barrier is under control flow that differs"),
        ("in 0..4 {", "in 0..min(t, 4) {", "a barrier is under control flow that differs"),
        ("in 0..4 {", "in 0..4 { let r: int64 = 0 r = t while r < 9 { sync r = r + 1 }", "a barrier is under control"),
    ],
)
def test_phases_that_meet_and_barriers_that_some_miss(old: str, new: str, message: str) -> None:
    assert TURNS.count(old) == 1
    with pytest.raises(AotcError, match=message):
        verify(parse_kernel(TURNS.replace(old, new)))


def test_a_barrier_that_all_threads_of_a_block_meet_or_miss() -> None:
    text = TURNS.replace("in 0..1 block", "in 0..2 block").replace("in 0..4 {", "in b * 2..b * 2 + 2 {")
    text = text.replace("x[t]", "x[b * 32 + t]").replace(
        "sync\n      for k", "if b < 1 { sync } else { sync }\n      for k"
    )
    verify(parse_kernel(text))
    x = np.arange(64, dtype=np.float32)
    made = run_kernel(parse_kernel(text), [x])[0]
    np.testing.assert_array_equal(made, x.reshape(8, 8)[:, ::-1].reshape(-1))
    with pytest.raises(AotcError, match="iterations may access the same elements of tile"):
        verify(parse_kernel(text.replace("{ sync } else { sync }", "{ sync }")))
