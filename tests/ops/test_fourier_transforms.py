# SPDX-License-Identifier: Apache-2.0
"""Window functions and Fourier transforms against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.relay.expr import Call, Function
from aotc.relay.interpreter import evaluate
from aotc.relay.op import dft_as_matrix_product, sliding_window_dft_stft
from tests.ops.onnxruntime_oracle import close, error_code, normal, reference, var


def test_windows_are_slices() -> None:
    x = normal(2, 5, 9)
    a = sliding_window_dft_stft.SlidingWindowAttrs(axis=1, window_shape=(3, 4), strides=(2, 3))
    found = reference("sliding_window", a, x)
    assert found.shape == (2, 2, 2, 3, 4)
    for row, column in np.ndindex(2, 2):
        np.testing.assert_array_equal(found[:, row, column], x[:, row * 2 :, column * 3 :][:, :3, :4])


@pytest.mark.parametrize("onesided", [True, False])
@pytest.mark.parametrize("normalized", [True, False])
def test_frames_are_transformed(onesided: bool, normalized: bool) -> None:
    x, window = normal(2, 20), normal(3)
    fields: Any = {"normalized": normalized, "onesided": onesided}
    found = reference(
        "stft", sliding_window_dft_stft.STFTAttrs(n_fft=5, hop_length=4, win_length=3, **fields), x, window
    )
    whole, wave = np.pad(window, 1), np.exp(-2j * np.pi * np.outer(np.arange(5), np.arange(5)) / 5)
    bins = 3 if onesided else 5
    for frame in range(4):
        want = (x[:, frame * 4 :][:, :5] * whole) @ wave[:, :bins] / (np.sqrt(5) if normalized else 1)
        close(found[:, :, frame], np.stack([want.real, want.imag], -1))


def test_transforms_have_an_inverse() -> None:
    parts = normal(3, 6), normal(3, 6, seed=1)
    there = sliding_window_dft_stft.dft.reference(sliding_window_dft_stft.DFTAttrs(), *parts)
    wave = np.exp(-2j * np.pi * np.outer(np.arange(6), np.arange(6)) / 6)
    want = (parts[0] + 1j * parts[1]) @ wave
    close(np.stack(there), np.stack([want.real, want.imag]))
    back = sliding_window_dft_stft.dft.reference(sliding_window_dft_stft.DFTAttrs(inverse=True), *there)
    close(np.stack(back), np.stack(parts))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("length", "bins"), [(2048, 1025), (400, 201), (360, 360), (96, 50), (1021, 511), (7, 4)])
def test_any_length_is_transformed(length: int, bins: int, parts: int) -> None:
    """Those with factors by two matrices, primes and short ones by one."""
    x = normal(3, length, parts)
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    for inverse, scale in ((False, 1.0), (True, 1 / length)):
        data = var(3, length, parts)
        found = evaluate(
            Function((data,), dft_as_matrix_product.expand_fourier_transform(data, bins, inverse, scale)), x
        )
        want = (np.fft.ifft if inverse else np.fft.fft)(signal)[:, :bins]
        error = np.abs(found - np.stack([want.real, want.imag], -1)).max()
        assert error < 1e-5 * want.std()


def test_defaults_of_frames() -> None:
    made = sliding_window_dft_stft.stft(var(2, 40), 8)
    assert isinstance(made, Call)
    assert (made.attrs["hop_length"], made.attrs["win_length"]) == (2, 8)
    assert str(made.args[1].checked_type) == "Tensor[(8), int32]"
    assert str(made.checked_type) == "Tensor[(2, 5, 17, 2), float32]"


def test_what_is_refused() -> None:
    assert error_code(sliding_window_dft_stft.sliding_window, var(2, 5), 0, (2,), (1,)) == "window"
    assert error_code(sliding_window_dft_stft.sliding_window, var(2, 5), 1, (6,), (1,)) == "window"
    assert error_code(sliding_window_dft_stft.stft, var(1, 9), 4, window=var(5)) == "signal"
    assert error_code(sliding_window_dft_stft.stft, var(1, 9), 4, hop_length=0) == "window"
    assert error_code(sliding_window_dft_stft.dft, var(3), var(4)) == "signal"
    assert error_code(sliding_window_dft_stft.dft, var(), var()) == "signal"
    assert (
        error_code(dft_as_matrix_product.fourier_matrix_of_interleaved_parts, np.fft.fft, 1 << 20, 1 << 21, "float32")
        == "budget"
    )
