# SPDX-License-Identifier: Apache-2.0
"""Kernels that read and write along different axes: through shared memory, or by a short axis in each thread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.stmt import Kernel
from aotc.tir.target import CUDA, Gpu
from tests.tir.test_lower_to_launches import check, values

#: One processor is kept busy by few threads.
SMALL = replace(CUDA, gpu=Gpu(processors=1, threads=64))


def permuted(extents: str, source: str, value: str = "x[{}]") -> str:
    """A kernel of three loops, whose input is read at a place."""
    n, i, j = map(int, extents.split())
    return f"""kernel "permuted" {{
  input x: float32[{n * i * j}]
  input b: float32[{n * i * j}]
  output y: float32[{n * i * j}]
  for n in 0..{n} independent {{
    for i in 0..{i} independent {{
      for j in 0..{j} independent {{ y[n * {i * j} + i * {j} + j] = {value.format(source)} }}
    }}
  }}
}}
"""


def mapped(text: str) -> Kernel:
    kernel = parse_kernel(text)
    (made,) = check(kernel, values(kernel), SMALL)
    return made


@pytest.mark.parametrize(
    ("extents", "source", "tiles"),
    [
        ("2 64 32", "n * 2048 + j * 64 + i", 4),  # the last two axes
        ("3 17 37", "n * 629 + j * 17 + i", 6),  # with borders
        ("16 3 40", "j * 48 + i * 16 + n", 6),  # the first axis comes last
        ("40 2 33", "i * 1320 + j * 40 + n", 8),
    ],
)
def test_tiles(extents: str, source: str, tiles: int) -> None:
    made = mapped(permuted(extents, source))
    (tile,) = made.shared
    assert tile.size == 32 * 33
    text = to_text(made)
    assert f"in 0..{tiles} block" in text and text.count("sync") == 1


def test_what_else_is_read_stays_where_it_is() -> None:
    """Several tiles, where several tensors are turned; what is computed is computed behind the barrier."""
    value = "exp(x[n * 2048 + j * 64 + i] * b[n * 2048 + j * 64 + i] + b[j]) + x[n * 2048 + j * 64 + i]"
    made = mapped(permuted("2 64 32", "", value))
    before, _, behind = to_text(made).partition("sync")
    assert len(made.shared) == 2
    assert "exp" not in before and "exp" in behind and "b[j" in behind


@pytest.mark.parametrize(
    ("extents", "source", "value"),
    [
        ("2 64 32", "n * 2048 + i * 32 + j", "x[{}]"),  # neighbors are read as they are written
        ("2 64 32", "n * 2048 + j * 64 + i", "j > 3 ? x[{}] : 1.0"),  # which may not be there
        ("2 64 32", "n * 1024 + j * 32 + i // 2", "x[{}]"),  # each for two of them
        ("64 64 3", "j * 4096 + n * 64 + i", "x[{}]"),  # short rows are written: neighbors are near
    ],
)
def test_no_tiles(extents: str, source: str, value: str) -> None:
    assert not mapped(permuted(extents, source, value)).shared


@pytest.mark.parametrize("channels", [3, 15])
def test_short_axes_are_inside_of_threads(channels: int) -> None:
    """Pixels with their channels to channels with their pixels: a thread fetches all channels of a pixel."""
    made = mapped(permuted(f"2 {channels} 320", f"n * {channels * 320} + j * {channels} + i"))
    lines = [line.strip() for line in to_text(made).splitlines()]
    assert not made.shared
    assert f"for i in 0..{channels} {{" in lines
