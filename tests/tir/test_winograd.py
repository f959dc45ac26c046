# SPDX-License-Identifier: Apache-2.0
"""Winograd's algorithm: exact matrices, and its loops against the plain convolution, on every target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.tir import te
from aotc.tir.expr import maximum
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule import schedule
from aotc.tir.schedule.algorithms.winograd import divide_tiles_into_strips, estimated_cycles_of_3x3_convolution
from aotc.tir.target import TARGETS, Target, get_target
from aotc.tir.winograd_matrices import FILTER_EXTENT, SUPPORTED_OUTPUT_TILES, winograd_matrices_at_g_bt

V4 = get_target("x86-64-v4")


@pytest.mark.parametrize("tile", SUPPORTED_OUTPUT_TILES)
def test_matrices_filter_exactly(tile: int) -> None:
    at, g, bt = winograd_matrices_at_g_bt(tile)
    rng = np.random.default_rng(0)
    d, w = rng.standard_normal((tile + 2, tile + 2)), rng.standard_normal((FILTER_EXTENT, FILTER_EXTENT))
    expected = [[(d[i : i + FILTER_EXTENT, j : j + FILTER_EXTENT] * w).sum() for j in range(tile)] for i in range(tile)]
    np.testing.assert_allclose(at @ ((g @ w @ g.T) * (bt @ d @ bt.T)) @ at.T, expected, rtol=0, atol=1e-13)


def plain(x: np.ndarray, w: np.ndarray, pads: tuple[int, int], shape: tuple[int, ...], groups: int = 1) -> np.ndarray:
    """The convolution in double precision, zeros around as far as the result needs them."""
    if groups > 1:
        part_shape = (shape[0], shape[1] // groups, *shape[2:])
        parts = zip(np.split(x, groups, axis=1), np.split(w, groups), strict=True)
        return np.concatenate([plain(xg, wg, pads, part_shape) for xg, wg in parts], axis=1)
    padded = np.zeros((*x.shape[:2], shape[2] + FILTER_EXTENT - 1, shape[3] + FILTER_EXTENT - 1))
    height, width = (min(n, p - q) for n, p, q in zip(x.shape[2:], padded.shape[2:], pads, strict=True))
    padded[:, :, pads[0] : pads[0] + height, pads[1] : pads[1] + width] = x[:, :, :height, :width]
    result = np.zeros(shape)
    for i in range(FILTER_EXTENT):
        for j in range(FILTER_EXTENT):
            window = padded[:, :, i : i + shape[2], j : j + shape[3]]
            result += np.einsum("nchw,oc->nohw", window, w[:, :, i, j].astype(np.float64))
    return result


def check(
    tile: int,
    batch: int,
    channels: int,
    outputs: int,
    size: tuple[int, int],
    pads: tuple[int, int],
    on: str | Target,
    groups: int = 1,
) -> None:
    """Compare the kernel with the convolution in double precision; `channels` are those of one group."""
    target = get_target(on) if isinstance(on, str) else on
    block, alpha = 16, tile + FILTER_EXTENT - 1
    per_group = outputs // groups
    blocks = -(-per_group // block) * groups
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, groups * channels, *size)).astype(np.float32)
    w = rng.standard_normal((outputs, channels, FILTER_EXTENT, FILTER_EXTENT)).astype(np.float32)
    g = winograd_matrices_at_g_bt(tile)[1]
    u = np.zeros((alpha * alpha, channels, groups, blocks * block // groups))
    transformed = np.einsum("ai,ocij,bj->abco", g, w, g)
    u[..., :per_group] = transformed.reshape(alpha * alpha, channels, groups, per_group)
    packed = u.reshape(alpha * alpha, channels, blocks, block).transpose(0, 2, 1, 3).astype(np.float32)
    a = te.placeholder(x.shape, "float32", "a")
    b = te.placeholder(packed.shape, "float32", "b")
    shape = (batch, outputs, size[0] + 2 * pads[0] - 2, size[1] + 2 * pads[1] - 2)
    out = te.winograd(shape, a, b, tile=tile, pads=pads)
    relu = te.compute(shape, lambda *i: maximum(out[i], 0.0), "relu")
    kernel = schedule("conv", [a, b], [relu], target)
    verify(kernel)
    assert kernel.approximate
    (found,) = run_kernel(kernel, [x, np.ascontiguousarray(packed)])
    expected = np.maximum(plain(x, w, pads, shape, groups), 0.0)
    np.testing.assert_allclose(found.reshape(shape), expected, rtol=0, atol=3e-5 * max(1.0, expected.max()))


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("tile", SUPPORTED_OUTPUT_TILES)
def test_loops_are_right_on_every_target(tile: int, target: str) -> None:
    check(tile, 2, 3, 18, (9, 7), (1, 1), target)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_groups_of_channels_on_every_target(target: str) -> None:
    check(4, 2, 3, 42, (9, 7), (1, 1), target, groups=2)


@pytest.mark.parametrize("tile", SUPPORTED_OUTPUT_TILES)
def test_groups_of_several_blocks(tile: int) -> None:
    check(tile, 1, 5, 96, (6, 21), (0, 2), V4, groups=3)


@settings(max_examples=25, deadline=None)
@given(
    tile=st.sampled_from(SUPPORTED_OUTPUT_TILES),
    batch=st.integers(1, 2),
    channels=st.integers(1, 5),
    outputs=st.integers(1, 34),
    size=st.tuples(st.integers(3, 20), st.integers(3, 20)),
    pads=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_any_shape(
    tile: int, batch: int, channels: int, outputs: int, size: tuple[int, int], pads: tuple[int, int]
) -> None:
    check(tile, batch, channels, outputs, size, pads, "x86-64-v4")


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "aarch64", "c"])
@pytest.mark.parametrize(("size", "pads"), [((3, 3), (0, 0)), ((9, 5), (1, 1)), ((3, 2), (1, 1)), ((1, 1), (1, 1))])
def test_images_narrower_than_a_tile(size: tuple[int, int], pads: tuple[int, int], target: str) -> None:
    """No column outside of the image is read, as the interpreter checks."""
    check(4, 1, 3, 3, size, pads, target)


def test_images_wider_than_a_part_and_higher_than_a_strip() -> None:
    check(4, 1, 2, 5, (6, 150), (1, 1), "x86-64-v4")
    a, b = te.placeholder((1, 64, 56, 56), "float32", "a"), te.placeholder((36, 2, 64, 32), "float32", "b")
    strips = divide_tiles_into_strips(te.winograd((1, 64, 56, 56), a, b, tile=4, pads=(1, 1)), V4)
    assert strips.down > 1 and strips.down * strips.rows == 14  # no row of tiles is computed for nothing
    assert (strips.across, strips.columns) == (1, 14)


@pytest.mark.parametrize(("width", "pads"), [(150, (1, 1)), (157, (0, 0)), (149, (2, 3))])
def test_images_of_which_a_row_does_not_fit_the_cache(width: int, pads: tuple[int, int]) -> None:
    """The last part of a row sticks out of the image, and whole parts begin beyond the padding."""
    small = replace(V4, name="small", l2=16 << 10)
    a, b = te.placeholder((1, 2, 6, width), "float32", "a"), te.placeholder((36, 1, 2, 16), "float32", "b")
    strips = divide_tiles_into_strips(te.winograd((1, 5, 6, width), a, b, tile=4, pads=pads), small)
    assert strips.across > 2 and strips.rows == 1
    check(4, 1, 2, 5, (6, width), pads, small)


def test_cost_knows_when_weights_outweigh_the_products_saved() -> None:
    """Deep layers with small images: large tiles mean many weights, used a few times each."""
    large = {t: estimated_cycles_of_3x3_convolution((1, 64, 56, 56), 64, t, V4) for t in (0, *SUPPORTED_OUTPUT_TILES)}
    assert large[4] < large[2] < large[0]
    one = {t: estimated_cycles_of_3x3_convolution((1, 512, 2, 2), 512, t, V4) for t in (0, *SUPPORTED_OUTPUT_TILES)}
    assert one[4] > one[0]
