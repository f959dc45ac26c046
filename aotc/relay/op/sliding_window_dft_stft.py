# SPDX-License-Identifier: Apache-2.0
"""Signal processing: sliding windows, discrete Fourier transform (dft), short-time Fourier
transform (stft).

sliding_window(x, 1, (3,), (2,))       # (N, 9) -> (N, 4, 3)
dft(re, im, inverse=False)             # a tuple of real and imaginary parts
stft(x, 8, hop_length=2)               # (N, L) -> (N, 5, 1 + (L - 8) / 2, 2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from aotc.ir import (
    Arg,
    Attrs,
    AxisMap,
    OpPattern,
    PrecisionTreatment,
    TensorType,
    TupleType,
    Type,
    Types,
    declare_arguments,
    require,
)
from aotc.ir.attrs import attribute_field
from aotc.relay.expr import Expr, Tuple, TupleGetItem, const, tensor_type_of
from aotc.relay.op import binary_elementwise, cast_clip_prelu, concat_split, pad, shape
from aotc.relay.op.dft_as_matrix_product import expand_fourier_transform
from aotc.relay.op.opdef import Array, Index, OpDef, Samples, reference_from_element_function
from aotc.relay.op.operator_definition import (
    exact_samples_from_rows,
    may_be_equal_dims,
    random_sample,
    random_samples_from_rows,
    widen_narrow_float_array,
    window_count,
)
from aotc.relay.op.type_rules import (
    normalize_axis,
    require_float_tensor,
    require_same_dtype,
    require_tensor_of_rank,
    require_tensor_type,
    static_shape_of,
)

# --- sliding_window


class SlidingWindowAttrs(Attrs):
    """All windows of shape `window_shape` over the axes from `axis` on, `strides` apart.

    Each of these axes is replaced by the number of windows along it; the axes of the window are
    appended.
    """

    axis: int
    window_shape: tuple[int, ...]
    strides: tuple[int, ...]


def _infer_sliding_window_type(a: SlidingWindowAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0], "data")
    first = normalize_axis(a.axis, data.rank)
    count = data.rank - first
    fits = len(a.window_shape) == len(a.strides) == count
    text = f"window {a.window_shape} and strides {a.strides} do not fit the {count} axes from {a.axis} on"
    require("window", fits, text)
    windows = zip(data.shape[first:], a.window_shape, a.strides, strict=True)
    counts = [window_count(*w) for w in windows]
    return TensorType((*data.shape[:first], *counts, *a.window_shape), data.dtype)


def _sliding_window_element(a: SlidingWindowAttrs, i: Index, data: Any) -> Any:
    count = len(a.strides)
    first = len(i) - 2 * count
    steps = zip(i[first:], a.strides, i[first + count :], strict=False)
    place = (*i[:first], *(k * stride + at for k, stride, at in steps))
    return data[place]


def _sliding_window_axis_map(a: SlidingWindowAttrs, types: Types) -> AxisMap:
    lead_rank, count = require_tensor_type(types[0]).rank - len(a.strides), 2 * len(a.strides)
    return AxisMap(((*range(lead_rank), *(None,) * count),))


_SLIDING_WINDOW_TEST_CASES = [((2, 3, 8, 7), 1, (3, 4, 5), (1, 2, 2)), ((6,), 0, (2,), (1,)), ((2, 5), -1, (5,), (3,))]
sliding_window = OpDef(
    name="sliding_window",
    attrs=SlidingWindowAttrs,
    infer=_infer_sliding_window_type,
    reference=reference_from_element_function(_infer_sliding_window_type, _sliding_window_element),
    pattern=OpPattern.INJECTIVE,
    axes=_sliding_window_axis_map,
    element=_sliding_window_element,
    samples=exact_samples_from_rows(SlidingWindowAttrs, "axis window_shape strides", _SLIDING_WINDOW_TEST_CASES),
)


# --- Fourier transforms


class DFTAttrs(Attrs):
    """Discrete Fourier transform along the last axis: real and imaginary parts in, a tuple of both
    parts out.

    `inverse` selects the inverse transform, which divides by the number of elements.
    """

    inverse: bool = False


def _infer_dft_type(_: DFTAttrs, types: Types) -> Type:
    data, other = map(require_float_tensor, types)
    require_same_dtype(data, other)
    fits = 0 < data.rank == other.rank and all(map(may_be_equal_dims, data.shape, other.shape))
    require(
        "signal", fits and data.shape[-1] != 0, f"{data} and {other} do not describe the parts of one complex signal"
    )
    return TupleType((data, data))


def _dft_reference(a: DFTAttrs, real: Array, imaginary: Array) -> tuple[Array, ...]:
    spectrum = (np.fft.ifft if a.inverse else np.fft.fft)(real + 1j * imaginary.astype(np.float64))
    return spectrum.real.astype(real.dtype), spectrum.imag.astype(real.dtype)


def _expand_dft(a: DFTAttrs, real: Expr, imaginary: Expr) -> Expr:
    extents = static_shape_of(real)
    *lead, size = extents
    flat = (prod(lead), size, 1)
    parts = [shape.reshape(x, flat, allowzero=True) for x in (real, imaginary)]
    factor = 1 / size if a.inverse else 1.0
    spectrum = cast_clip_prelu.compute_narrow_floats_in_float32(
        lambda x: expand_fourier_transform(x, size, a.inverse, factor), concat_split.concatenate(parts, axis=2)
    )
    halves = concat_split.split(spectrum, 2, axis=2)
    return Tuple(shape.reshape(TupleGetItem(halves, k), extents, allowzero=True) for k in (0, 1))


dft = OpDef(
    name="dft",
    attrs=DFTAttrs,
    args=declare_arguments("re_data", "im_data"),
    infer=_infer_dft_type,
    reference=_dft_reference,
    precision=PrecisionTreatment.NEVER,
    expand=_expand_dft,
    samples=random_samples_from_rows(
        DFTAttrs,
        [
            (((2, 3, 5),) * 2, {}),
            (((6,),) * 2, {"inverse": True}),
            (((4, 1),) * 2, {}),
            (((3, 90),) * 2, {}),
            (((96,),) * 2, {"inverse": True}),
        ],
    ),
)


def _hop_length_or_default(value: int | None, arguments: Mapping[str, Any]) -> int:
    return arguments["n_fft"] // 4 if value is None else value


class STFTAttrs(Attrs):
    """Short-time Fourier transform of signals (N, L): frames of `n_fft` elements, `hop_length`
    apart, times a window.

    The result is (N, bins, 1 + (L - n_fft) / hop_length, 2), with real and imaginary parts last;
    with `onesided` it has only the first n_fft / 2 + 1 bins. The window, ones by default, has
    `win_length` elements and is zero-padded on both sides. `normalized` divides by the square root
    of `n_fft`.
    """

    n_fft: int
    hop_length: int = attribute_field(parameter_default=None, convert=_hop_length_or_default)
    win_length: int = attribute_field(
        parameter_default=None, convert=lambda value, given: given["n_fft"] if value is None else value
    )
    normalized: bool = False
    onesided: bool = True


def _stft_bin_count(a: STFTAttrs) -> int:
    return a.n_fft // 2 + 1 if a.onesided else a.n_fft


def _infer_stft_type(a: STFTAttrs, types: Types) -> Type:
    data = require_float_tensor(require_tensor_of_rank("signal", types[0], 2))
    window = require_tensor_of_rank("signal", types[1], 1, "window")
    (extent,) = window.shape
    fits = not isinstance(extent, int) or extent <= a.n_fft
    require("signal", fits, f"{window} is longer than frames of {a.n_fft}")
    frames = window_count(data.shape[1], a.n_fft, a.hop_length)
    return TensorType((data.shape[0], _stft_bin_count(a), frames, 2), data.dtype)


def _window_zero_padding(a: STFTAttrs, window_length: int) -> tuple[int, int]:
    """Return the numbers of zeros before and after the window that pad it to the frame length."""
    before = (a.n_fft - window_length) // 2
    return before, a.n_fft - window_length - before


def _numpy_fft_with_stft_scaling(a: STFTAttrs) -> Callable[[Array], Array]:
    return partial(np.fft.fft, norm="ortho" if a.normalized else "backward")


def _stft_reference(a: STFTAttrs, data: Array, window: Array) -> Array:
    # views of windows do not exist for the narrow floats of ml_dtypes
    begins = np.arange(0, data.shape[1] - a.n_fft + 1, a.hop_length)
    frames = data[:, begins[:, None] + np.arange(a.n_fft)]
    whole = np.pad(window, _window_zero_padding(a, len(window))).astype(widen_narrow_float_array(data).dtype)
    spectrum = _numpy_fft_with_stft_scaling(a)(frames * whole)[..., : _stft_bin_count(a)]
    parts = np.stack([spectrum.real, spectrum.imag], -1)
    return np.asarray(parts.transpose(0, 2, 1, 3), data.dtype)


def _expand_stft(a: STFTAttrs, data: Expr, window: Expr) -> Expr:
    return cast_clip_prelu.compute_narrow_floats_in_float32(lambda x: _expand_stft_in_dtype_of_data(a, x, window), data)


def _expand_stft_in_dtype_of_data(a: STFTAttrs, data: Expr, window: Expr) -> Expr:
    dtype, bins = str(tensor_type_of(data).dtype), _stft_bin_count(a)
    frames = sliding_window(data, 1, (a.n_fft,), (a.hop_length,))
    window_padding = _window_zero_padding(a, *static_shape_of(window))
    whole = pad.pad(cast_clip_prelu.cast(window, dtype), pad_width=(window_padding,))
    weighted = binary_elementwise.multiply(frames, whole)
    batch, count, _ = static_shape_of(weighted)
    rows = shape.reshape(weighted, (batch * count, a.n_fft, 1), allowzero=True)
    spectrum = expand_fourier_transform(rows, bins, scale=a.n_fft**-0.5 if a.normalized else 1.0)
    return shape.transpose(shape.reshape(spectrum, (batch, count, bins, 2), allowzero=True), (0, 2, 1, 3))


def _window_or_default_ones(value: Any, arguments: Mapping[str, Any]) -> Any:
    return const(np.ones(arguments["n_fft"], np.int32)) if value is None else value


def _stft_test_samples() -> Samples:
    for window, given in ((3, {}), (8, {"normalized": True}), (6, {"onesided": False})):
        a: Any = {"n_fft": 8, "hop_length": 3, "win_length": window, **given}
        yield random_sample(((2, 30), (window,)), STFTAttrs(**a))
    whisper: Any = {"n_fft": 400, "hop_length": 160, "win_length": 400}
    yield random_sample(((1, 740), (400,)), STFTAttrs(**whisper))


stft = OpDef(
    name="stft",
    attrs=STFTAttrs,
    args=declare_arguments("data", Arg("window", "Expr | None", None, _window_or_default_ones)),
    order="data n_fft hop_length win_length window normalized onesided",
    infer=_infer_stft_type,
    axes=lambda *_: AxisMap(((0, None, None, None),)),
    reference=_stft_reference,
    precision=PrecisionTreatment.NEVER,
    expand=_expand_stft,
    samples=_stft_test_samples,
)
