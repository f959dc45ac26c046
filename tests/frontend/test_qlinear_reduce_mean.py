# SPDX-License-Identifier: Apache-2.0
"""QLinearReduceMean, which ONNX Runtime's package defines but does not compute, against exact means."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.frontend.test_quantized_onnx import Case, Generator, numbers, scales, zero


def mean(rng: Generator, dtype: str, axes: list[int], keepdims: int) -> Case:
    """Scales are small multiples of one number: many means lie between two integers."""
    (sx, sy), zx, zy = scales(rng, 2), zero(rng, dtype), zero(rng, dtype)
    args = [numbers(rng, dtype, 2, 3, 4, 5), sx, zx, sy, zy]
    return Case("QLinearReduceMean", args, attributes={"axes": axes, "keepdims": keepdims})


def exact(case: Case) -> tuple[list[Fraction], tuple[int, ...]]:
    """The means as numbers of the result, before they are rounded and saturated."""
    x, sx, zx, sy, _ = case.args
    axes, keep = tuple(case.attributes["axes"]), case.attributes["keepdims"] == 1
    sums = np.asarray((x.astype(np.int64) - int(zx)).sum(axes, keepdims=keep))
    factor = Fraction(float(sx)) / Fraction(float(sy)) / (x.size // max(sums.size, 1))
    return [Fraction(int(v)) * factor for v in sums.flat], sums.shape


@pytest.mark.parametrize("axes", [[1], [2, 3], [-1, 0], [0, 1, 2, 3]])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_means(dtype: str, axes: list[int]) -> None:
    """Rounded to the nearest integer; even ones of two, unless single precision cannot tell."""
    ends = np.iinfo(dtype)
    for seed in range(12):
        case = mean(np.random.default_rng([seed, len(axes)]), dtype, axes, seed % 2)
        wanted, shape = exact(case)
        (found,) = case.ours()
        assert found.shape == shape and found.dtype == dtype
        for y, real in zip(found.flat, wanted, strict=True):
            whole = min(max(real + int(case.args[4]), Fraction(int(ends.min))), Fraction(int(ends.max)))
            assert abs(int(y) - whole) < Fraction(501, 1000)
            assert y == round(whole) or abs(whole - round(whole)) > Fraction(499, 1000)


def test_nobody_else_computes_it() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    case = mean(np.random.default_rng(0), "uint8", [1], 1)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented):
        case.theirs()
